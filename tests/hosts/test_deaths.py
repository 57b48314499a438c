"""After any death, a host's own or a KILL, every run has a true ending, the next is served, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from interlock import Ending, Grade, Outcome
from interlock.core.names import ErrorKind
from interlock.hosts import process
from interlock.hosts.driver import HostDriver
from interlock.hosts.forked import ForkedHosts
from interlock.hosts.process import HostProcess
from interlock.processes import kernel
from interlock.processes.local import LocalProcesses

from .test_hogs import (
    AGENT,
    BOUND_SECONDS,
    GRADES,
    STALL_SECONDS,
    Stage,
    Theatre,
    both_grades,
    bounded,
    nothing_acts,
    staged,
    streaming,
    there,
    until,
)

pytestmark = pytest.mark.long

GONE_SECONDS = 30.0
HOST_BYTES = 256 * 1024 * 1024


@pytest.fixture(scope="module", params=GRADES, ids=[str(grade) for grade in GRADES])
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """Yield a stage of each grade, with little memory for each host."""
    opened = Theatre(request.param, tmp_path_factory.mktemp("deaths"), host_memory=HOST_BYTES)
    yield opened
    opened.close()


@pytest.fixture
def told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a keeper time to say how its host died, however slow the machine: only then can the run's ending say how."""
    monkeypatch.setattr(process, "STATUS_SECONDS", BOUND_SECONDS)


def failed(outcome: Outcome, words: str) -> None:
    """Check that the run failed because its host died, and that the reason says how."""
    assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.HOST), outcome
    assert words in (outcome.error or ""), outcome.error


# Deaths of the host's own making


DEATHS = {
    "exits": "exited with status 3",
    "segfaults": "died of SIGSEGV",
    "aborts": "died of SIGABRT",
    "exits_in_task": "exited with status 70",
    "exits_deaf": "exited with status 70",
    "stops_loop": "exited with status 70",
    "stops_loop_at_work": "exited with status 70",
    "dies_beside_fork": "exited with status 3",
    "kills_its_keeper": "died of SIGKILL",
}
HANGING_UP = {"closes_link": "hung up", "closes_everything": "the host", "becomes_another": "hung up"}


@pytest.mark.parametrize("deaths", [DEATHS, HANGING_UP], ids=["dying", "hanging up"])
def test_a_host_that_dies_ends_its_run_and_no_other(
    theatre: Theatre, deaths: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each death has a true ending and a killed host, and a fresh host serves next; another session feels nothing."""
    # A host that hangs up and lives on keeps the usual, short time.
    if deaths is DEATHS:
        monkeypatch.setattr(process, "STATUS_SECONDS", BOUND_SECONDS)

    async def one(stage: Stage, name: str) -> Any:
        act = await stage.play(name)
        failed(await act.outcome(), deaths[name])
        receipt = await act.drained()
        assert (receipt.host, receipt.cause) == ("killed", Ending.FAILED), name
        # The count leaves out the host itself.
        assert receipt.processes.ended <= (name == "dies_beside_fork"), name
        # A process whose keeper died still has to be reaped, so it may be there for a moment.
        await until(lambda: there(act.pids) == [], f"{name} is gone")
        assert (await stage.hosted_by(act.session))[1] == 1, name
        return act

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            await nothing_acts(await asyncio.gather(*(one(stage, name) for name in deaths)))

    theatre.run(main(theatre.stage))


def test_a_fork_that_talks_on_a_dead_hosts_link_stalls_nobody(theatre: Theatre) -> None:
    """A host dies while its fork floods the link: the run ends, the fork is killed, control's loop goes on."""

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            ticking = asyncio.create_task(tick())
            act = await stage.play("dies_beside_talker")
            failed(await act.outcome(), "exited with status 3")
            await act.drained()
            ticking.cancel()
            assert await ticking < STALL_SECONDS
        assert there(int(pid) for pid in (act.place / "pids").read_text().split()) == []
        assert (await stage.hosted_by(act.session))[1] == 1

    theatre.run(main(theatre.stage))


async def tick() -> float:
    """Return, once cancelled, the longest time that the loop needed for one round."""
    longest = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - began)
    return longest


def test_a_host_that_takes_all_memory(theatre: Theatre) -> None:
    """A host that passes its memory limit fails its own run alone, and the next message is served."""

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            act = await stage.play("eats_memory")
            outcome = await act.outcome()
            assert outcome.ending is Ending.FAILED
            assert outcome.error_kind is ErrorKind.HOST or "MemoryError" in (outcome.error or "")
            await act.drained()
            assert (await stage.hosted_by(act.session))[1] <= 2

    theatre.run(main(theatre.stage))


# Deaths from outside


class Cast:
    """The processes of a control, by their roles."""

    def __init__(self, stage: Stage, session: str) -> None:
        driver, processes = stage.control._driver, stage.control._processes
        assert isinstance(driver, HostDriver) and isinstance(processes, LocalProcesses)
        assert isinstance(driver._hosts, ForkedHosts) and driver._hosts._zygote is not None
        busy = [turn.host for turn in driver._busy if turn.run.session.id == session]
        host: Any = [*busy, *(each for name, each in driver._idle.items() if name == session)][0]
        assert isinstance(host, HostProcess) and processes._helper is not None
        self.pids: dict[str, int | None] = {
            "host": host.pid,
            "warden": host.containment.keeper,
            "zygote": driver._hosts._zygote.process.pid,
            "zygote's keeper": driver._hosts._zygote.containment.keeper,
            "helper": processes._helper.process.pid,
            "spare": None if driver._spare is None else driver._spare.pid,  # type: ignore[attr-defined]
        }

    def kill(self, *names: str) -> list[int]:
        """KILL several processes at once: all are stopped before the first dies, so that none can react."""
        chosen = [pid for name in names if (pid := self.pids[name]) is not None]
        assert len(chosen) == len(names)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in chosen:
                with suppress(ProcessLookupError):  # the death of the first may have ended the second
                    os.kill(pid, number)
        return chosen


ALONE = [("host",), ("warden",), ("warden", "host")]
TOGETHER = [("zygote",), ("helper",), ("zygote's keeper",), ("zygote", "warden"), ("helper", "warden")]


@pytest.mark.usefixtures("told_in_time")
def test_kill_9_of_one_host_or_its_warden(theatre: Theatre) -> None:
    """A KILL of a busy host or its warden fails that run as the host's; a fresh host serves; others feel nothing."""

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            for names in ALONE:
                for name in ("waits", "calls_blocking", "leaves_daemon"):
                    act = await (await stage.play(name)).reached()
                    Cast(stage, act.session).kill(*names)
                    failed(await act.outcome(), "the host died of SIGKILL")
                    assert (await act.drained()).host == "killed"
                    await until(lambda act=act: there(act.pids) == [], "it is gone")
                    assert (await stage.hosted_by(act.session))[1] == 1

    theatre.run(main(theatre.stage))


@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
def test_kill_9_of_what_holds_all_hosts(theatre: Theatre, names: tuple[str, ...]) -> None:
    """A KILL of zygote or helper, alone or with a warden, fails every run as the host's; new runs are served."""

    async def main(stage: Stage) -> None:
        before = stage.info.started
        acts = [await (await stage.play(name)).reached() for name in ("waits", "spins", "leaves_daemon")]
        await until(lambda: stage.info.spare, "a spare")
        cast = Cast(stage, acts[1].session)
        old = [pid for act in acts for pid in act.pids] + [pid for pid in cast.pids.values() if pid is not None]
        killed = cast.kill(*names)
        for act in acts:
            failed(await act.outcome(), "the host")
            assert (await act.drained()).host == "killed"
        for act in acts:
            await served_anew(stage, act.session, old)
        left = {cast.pids["helper"], cast.pids["zygote"], cast.pids["zygote's keeper"]} - set(killed)
        await until(lambda: not set(there(old)) - left, "the old ones are gone")
        assert stage.info.started > before
        await nothing_acts(acts, 0.0)

    theatre.run(main(theatre.stage))


def test_kill_9_of_whoever_is_idle(theatre: Theatre) -> None:
    """A KILL of an idle host, its warden or the spare harms no run, and the next message gets another host."""

    async def main(stage: Stage) -> None:
        for name in ("host", "warden", "spare"):
            session = f"idle {name}"
            pid, _ = await stage.hosted_by(session)
            await until(lambda: stage.info.spare, "a spare")
            cast = Cast(stage, session)
            dead = cast.kill(name)
            await until(lambda dead=dead: there(dead) == [], "it is gone")
            await until(lambda cast=cast, name=name: not alive(stage, cast.pids[name]), "control knows")
            fresh, turns = await stage.hosted_by(session if name != "spare" else "another")
            assert turns == 1 and fresh not in (pid, *dead)
            if name == "spare":
                assert (await stage.hosted_by(session)) == (pid, 2)

    theatre.run(main(theatre.stage))


def alive(stage: Stage, pid: int | None) -> bool:
    """Return whether control would still use the host of that pid, or with that warden."""
    driver: Any = stage.control._driver
    hosts = [*driver._idle.values(), *([driver._spare] if driver._spare is not None else [])]
    return any(host.alive and pid in (host.pid, host.containment.keeper) for host in hosts)


def test_messages_right_behind_the_death_of_the_zygote(theatre: Theatre) -> None:
    """A message sent while the zygote and its hosts die is served or fails as the host's; soon a new host serves."""

    async def main(stage: Stage) -> None:
        for name in ("zygote", "helper"):
            old, _ = await stage.hosted_by("behind")
            Cast(stage, "behind").kill(name)
            await served_anew(stage, "behind", [old])

    theatre.run(main(theatre.stage))


async def served_anew(stage: Stage, session: str, old: list[int]) -> None:
    """Send until a new host answers; a message to a host that is about to die fails as the host's."""
    end = time.monotonic() + BOUND_SECONDS
    while True:
        outcome = await (await stage.play("answers", session)).outcome()
        if outcome.ending is Ending.COMPLETED and int(outcome.text.split()[0]) not in old:
            return
        if outcome.ending is not Ending.COMPLETED:
            failed(outcome, "host")
        assert time.monotonic() < end, "no new host serves"


def test_a_child_whose_host_dies_is_heard_of(theatre: Theatre) -> None:
    """Race 49: a delegated child's host is killed with -9; its parent hears `failed` at once, and goes on."""

    async def main(stage: Stage) -> None:
        act = await (await stage.play("delegates")).reached()
        (child,) = act.pids
        os.kill(child, signal.SIGKILL)
        outcome = await act.outcome()
        assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "failed host")
        await until(lambda: there([child]) == [], "it is gone")

    theatre.run(main(theatre.stage))


def test_a_child_that_hogs_goes_with_its_parent(theatre: Theatre) -> None:
    """A stop of the parent ends the child's hog too, in one receipt."""

    async def main(stage: Stage) -> None:
        act = await (await stage.play("delegates_hog")).reached()
        receipt = await act.stop()
        assert {run.outcome.ending for run in receipt.runs} == {Ending.STOPPED, Ending.PARENT_ENDED}
        assert receipt.host == "killed"
        await nothing_acts([act])

    theatre.run(main(theatre.stage))


def test_many_deaths_leak_nothing(theatre: Theatre) -> None:
    """A dozen deaths leave control with no more descriptors than before, and with no dead child."""

    async def main(stage: Stage) -> None:
        await stage.hosted_by("many")
        await until(lambda: stage.info.spare, "a spare")
        before = len(os.listdir("/proc/self/fd"))
        for number in range(12):
            name = ("exits", "segfaults", "dies_beside_fork", "kills_its_keeper")[number % 4]
            act = await stage.play(name, "many")
            assert (await act.outcome()).error_kind is ErrorKind.HOST
            await act.drained()
        await stage.hosted_by("many")
        await until(lambda: stage.info.spare and len(os.listdir("/proc/self/fd")) <= before, "no descriptor more")
        await until(lambda: zombies() == [], "no dead child")

    theatre.run(main(theatre.stage))


def zombies() -> list[int]:
    """Return the dead processes below us that no parent has reaped."""
    found, rest = [], [os.getpid()]
    while rest:
        for pid in kernel.children_of(rest.pop()):
            rest.append(pid)
            status = kernel.stat(pid)
            if status is not None and status[0] == "Z":
                found.append(pid)
    return found


# Deaths of control


CONTROL = """
import asyncio, json, sys
from interlock import Confinement, Grade, open_control

agent, grade, store, places = json.loads(sys.argv[1])

async def main():
    confinement = Confinement(grade=Grade(grade))
    async with open_control(agent, driver="host", store=store, confinement=confinement) as control:
        for name, place in places:
            await control.send(name, f"{name} {place}")
        print(control._processes._owner, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def bearers(owner: str) -> list[int]:
    """Return the processes that carry the mark of a control."""
    found = []
    for pid in kernel.pids():
        with suppress(OSError):
            if f"{kernel.OWNER}={owner}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def inhabited(owner: str) -> list[str]:
    """Return the cgroups of a control in which something lives."""
    homes = (kernel.own_cgroup(), kernel.own_cgroup_v1("pids"), kernel.own_cgroup_v1("memory"))
    bases = [Path(home) / f"{kernel.MARK}{owner}" for home in homes if home is not None]
    found = []
    for base in bases:
        for directory, _, _ in os.walk(base):
            with suppress(OSError):  # removed meanwhile
                found += [directory] if Path(directory, "cgroup.procs").read_text() else []
    return found


def by_then(seen: Callable[[], Any], seconds: float) -> Any:
    """Wait until a list is seen empty; return what the list holds at the end."""
    end = time.monotonic() + seconds
    while (found := seen()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


@contextmanager
def another_control(grade: Grade, store: str, places: dict[str, Path]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a control whose hosts hog in a process of its own; end whatever a failed test leaves."""
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = json.dumps([AGENT, grade, store, [(name, str(place)) for name, place in places.items()]])
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROL, given],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    owner = ""
    try:
        assert process.stdout is not None
        heard, _, _ = select.select([process.stdout], [], [], BOUND_SECONDS)
        assert heard, "the control says nothing"
        owner = process.stdout.readline().strip()
        assert owner
        yield process, owner
    finally:
        process.kill()
        process.communicate()
        for pid in bearers(owner) if owner else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@both_grades
def test_kill_9_of_control_leaves_nothing(grade: Grade, tmp_path: Path) -> None:
    """A KILL of control soon ends its hosts, hogs included; the next control ends their runs as `lost`, and serves."""
    if grade is Grade.CGROUP and os.geteuid() != 0:
        pytest.skip("the cgroup grade needs root, or a cgroup that was delegated to us")
    names = ("waits", "sleeps", "spins", "holds_gil", "stops_itself", "leaves_daemon", "calls_blocking")
    places = {name: tmp_path / name for name in names}
    for place in places.values():
        place.mkdir()
    store = f"sqlite:///{tmp_path / 'store'}"
    with another_control(grade, store, places) as (process, owner):
        missing = by_then(
            lambda: [name for name, place in places.items() if not (place / "beats").exists()], BOUND_SECONDS
        )
        assert missing == []
        assert len(bearers(owner)) >= len(names)
        process.kill()
        assert by_then(lambda: bearers(owner), GONE_SECONDS) == []
        assert by_then(lambda: inhabited(owner), GONE_SECONDS) == []
        sizes = {name: (place / "beats").stat().st_size for name, place in places.items()}

    async def main() -> None:
        async with staged(grade, tmp_path, store=store) as stage:
            for name in names:
                (row,) = await stage.control.runs(name)
                assert (await stage.control.wait(row.id)).ending is Ending.LOST, name
                assert (await stage.hosted_by(name))[1] == 1

    bounded(main())
    assert sizes == {name: (place / "beats").stat().st_size for name, place in places.items()}
