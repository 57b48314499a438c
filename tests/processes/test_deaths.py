"""A KILL of gateway, helper or keepers leaks nothing; the gateway runs in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.processes import doctor, kernel, wire
from interlock.processes.base import Confinement, Grade, Machine
from interlock.processes.local import BARE, ROOT, LocalProcesses

from .scene import read
from .test_drain import frozen
from .test_spawn import BOUND_SECONDS, TREE, Witness, both_grades, cgroups_of, listed, need, play, room, until

pytestmark = pytest.mark.long

# So many tries are far more than it takes beside another test worker.
PLAYED_AGAIN = 25
GONE_SECONDS = 30.0

GATEWAY = """
import asyncio, json, os, signal, sys, threading
from interlock.processes.base import Confinement, Grade
from interlock.agent.order import SpawnFailed
from interlock.agent.order import SpawnOrder
from interlock.processes.local import LocalProcesses

grade, subreaper, tree, place = json.loads(sys.argv[1])

def say(**values):
    print(json.dumps(values), flush=True)

async def until(seen):
    while not seen():
        await asyncio.sleep(0.002)

async def spawned(processes, *argv):
    await processes.ready()
    containment = processes.contain("run r-2.g1")
    process = containment.spawn(SpawnOrder(argv=argv))
    await process.started()
    return containment, process

async def main():
    loop = asyncio.get_running_loop()
    lines = asyncio.Queue()
    loop.add_reader(0, lambda: lines.put_nowait(os.read(0, 100).decode().strip()))
    processes = LocalProcesses(Confinement(grade=Grade(grade)), subreaper=subreaper)
    machine = await processes.ready()
    containment = processes.contain("run r-1.g1")
    process = containment.spawn(SpawnOrder(argv=("sh", "-c", tree, "sh", place)))
    await process.started()
    await until(lambda: len(open(place).read().split()) == 3 if os.path.exists(place) else False)
    say(gateway=os.getpid(), helper=processes._helper.process.pid, keeper=containment.keeper, owner=processes._owner)
    while True:
        match await lines.get():
            case "wait":  # until the tree's containment is done
                await containment.done.wait()
                say(done=True, exited=process.exited.is_set(), lost=process.lost)
            case "spawn" | "spawn at once" as word:
                if word == "spawn at once":  # as soon as the helper's death was noticed
                    while processes._helper is not None:
                        await asyncio.sleep(0)
                try:
                    other, again = await spawned(processes, "echo", "again")
                    await again.exited.wait()
                    say(output=again.output()[0].decode(), status=again.status)
                except SpawnFailed as error:
                    say(errno=error.errno, error=str(error))
            case "ask":  # and wait for the answer
                waiting = containment.spawn(SpawnOrder(argv=("true",)))
                say(asked=True)
                try:
                    await waiting.started()
                    say(started=True)
                except SpawnFailed as error:
                    say(errno=error.errno, error=str(error))
            case "fork":
                child = os.fork()
                if child == 0:
                    while True:
                        signal.pause()
                say(child=child)
            case "thread":  # the one that started the helper ends
                lasting = ("MainThread", "interlock error output")
                started = {thread for thread in threading.enumerate() if thread.name not in lasting}
                await loop.shutdown_default_executor()
                say(threads=len(started), left=sum(thread.is_alive() for thread in started))
            case "close" | "":
                await processes.close()
                break

asyncio.run(main())
"""


class Gateway:
    """A gateway in a process of its own that has started the hostile tree."""

    def __init__(self, grade: Grade, place: Path, *, subreaper: bool = False) -> None:
        need(grade)
        arguments = json.dumps([grade, subreaper, TREE, str(place)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", GATEWAY, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pids: dict[str, Any] = {"gateway": self._process.pid}
        self.pids = self.hear()
        self.owner: str = self.pids.pop("owner")
        self.tree = listed(place)

    def ask(self, word: str) -> dict[str, Any]:
        """Give the gateway an order; return the answer."""
        self.tell(word)
        return self.hear()

    def tell(self, word: str) -> None:
        """Give the gateway an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the gateway's next line, within the bound."""
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], BOUND_SECONDS)
        assert heard, "the gateway says nothing"
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def kill(self, *names: str) -> None:
        """KILL several processes at once: all are stopped before the first dies, so that none can react."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for name in names:
                os.kill(self.pids[name], number)

    def end(self) -> None:
        """End the gateway, and everything it may have left."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


@contextmanager
def gateway(grade: Grade, place: Path, *, subreaper: bool = False) -> Iterator[tuple[Gateway, Witness]]:
    """Yield a gateway and a witness of its tree; end afterwards whatever a failed test leaves."""
    started = Gateway(grade, place, subreaper=subreaper)
    try:
        with Witness([*started.tree, started.pids["keeper"], started.pids["helper"]]) as witness:
            assert len(started.tree) == 3
            assert len(witness.alive()) == 5
            try:
                yield started, witness
            finally:
                started.end()
                if witness.alive(GONE_SECONDS):
                    witness.signal(signal.SIGKILL)
    finally:
        started.end()


def restarted(grade: Grade) -> int:
    """Start another control and close it; return how many processes that control swept."""
    swept = []

    async def main() -> None:
        async with room(grade) as processes:
            assert processes.machine is not None
            swept.append(processes.machine.leftovers_ended)

    play(main())
    return swept[0]


# Deaths of one or two processes


@both_grades
@pytest.mark.parametrize("dead", ["gateway", "helper", "keeper", "gateway helper", "gateway keeper"])
def test_the_tree_goes_with_whoever_dies(grade: Grade, dead: str, tmp_path: Path) -> None:
    """Races 60, 67 and 68: TERM-ignoring shells and setsid daemons are gone soon after a kill -9 of their keepers."""
    with gateway(grade, tmp_path / "pids") as (control, witness):
        control.kill(*dead.split())
        if "gateway" in dead:
            assert witness.alive(GONE_SECONDS) == []
            restarted(grade)  # removes the directories that a dead gateway left
        else:
            assert witness.alive(GONE_SECONDS, control.tree) == []
            answer = control.ask("wait")
            assert answer["done"] and answer["exited"]
            assert control.ask("spawn") == {"output": "again\n", "status": 0}
            control.tell("close")
            control._process.wait(BOUND_SECONDS)
            assert witness.alive(GONE_SECONDS) == []
        assert cgroups_of(control.owner) == []


@pytest.mark.parametrize(
    ("grade", "subreaper"),
    [(Grade.CGROUP, False), (Grade.CGROUP, True), (Grade.KEEPER, True)],
    ids=["cgroup", "cgroup subreaper", "keeper subreaper"],
)
def test_helper_and_keeper_die_together(grade: Grade, subreaper: bool, tmp_path: Path) -> None:
    """Race 67: control ends the tree by its leaf or as its subreaper, says done only then, and goes on."""
    with gateway(grade, tmp_path / "pids", subreaper=subreaper) as (control, witness):
        control.tell("wait")
        control.kill("helper", "keeper")
        assert control.hear()["done"]
        assert witness.alive() == []
        assert control.ask("spawn") == {"output": "again\n", "status": 0}
        control.tell("close")
        control._process.wait(BOUND_SECONDS)
        assert cgroups_of(control.owner) == []


def test_a_spawn_right_after_helper_and_keeper_died(tmp_path: Path) -> None:
    """A helper that starts while a subreaper looks for orphans is not taken for an orphan."""
    with gateway(Grade.KEEPER, tmp_path / "pids", subreaper=True) as (control, witness):
        control.kill("helper", "keeper")
        assert control.ask("spawn at once") == {"output": "again\n", "status": 0}
        assert control.ask("wait")["done"]
        assert witness.alive() == []


@both_grades
def test_all_die_and_the_next_start_ends_what_they_left(grade: Grade, tmp_path: Path) -> None:
    """Race 67: a tree whose gateway, helper and keeper died at once lives until the next start, which says so.

    Any control that starts on this machine sweeps, also one of a test beside this one: then the test is played again.
    """
    for number in range(PLAYED_AGAIN):
        with gateway(grade, tmp_path / f"pids {number}") as (control, witness):
            control.kill("gateway", "helper", "keeper")
            control.end()
            left = set(witness.alive(0.05))
            ended = restarted(grade)
            assert witness.alive() == []
            assert cgroups_of(control.owner) == []
            if left == set(control.tree) and ended >= len(control.tree):
                return
    pytest.fail("what was left was never seen alive, or never ended by our own start")


@both_grades
def test_what_cannot_be_ended_is_named_at_every_start(
    grade: Grade, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A leftover that no KILL ends is named in the log and by the doctor, until it is gone."""
    machines: list[Machine] = []

    async def main() -> None:
        async with room(grade) as processes:
            assert processes.machine is not None
            machines.append(processes.machine)

    with gateway(grade, tmp_path / "pids") as (control, witness):
        stuck = control.tree[0]
        with frozen(stuck):
            control.kill("gateway", "helper", "keeper")
            control.end()
            play(main())
            assert witness.alive(0.0) == [stuck]
            (named,) = [name for name in machines[0].left if name.startswith(f"process {stuck} (")]
            assert f"every start spends seconds trying: {', '.join(machines[0].left)}; thaw them" in caplog.text
            works = dict.fromkeys(Grade, True)
            (fact,) = [fact for fact in doctor._facts(machines[0], works) if fact.name == "left behind" and fact.change]
            assert named in fact.found and fact.good is False
        assert witness.alive(GONE_SECONDS) == []
    play(main())
    assert not [name for name in machines[1].left if f"process {stuck} (" in name]
    assert cgroups_of(control.owner) == []


def test_a_helper_that_died_leaves_no_directory_behind(tmp_path: Path) -> None:
    """A control whose helper was killed and never needed again leaves no cgroup directory when it closes."""
    with gateway(Grade.CGROUP, tmp_path / "pids") as (control, witness):
        control.kill("helper")
        assert control.ask("wait")["done"]
        control.tell("close")
        control._process.wait(BOUND_SECONDS)
        assert witness.alive(GONE_SECONDS) == []
        assert cgroups_of(control.owner) == []


# Control goes on


@both_grades
def test_a_spawn_that_waits_when_its_keeper_dies(grade: Grade, tmp_path: Path) -> None:
    """A spawn that waits when its keeper dies raises a clean error; the tree is ended, and the next spawn works."""
    with gateway(grade, tmp_path / "pids") as (control, witness):
        os.kill(control.pids["keeper"], signal.SIGSTOP)
        assert control.ask("ask") == {"asked": True}
        os.kill(control.pids["keeper"], signal.SIGKILL)
        answer = control.hear()
        assert "was not started" in answer["error"]
        assert witness.alive(GONE_SECONDS, control.tree) == []
        assert control.ask("spawn") == {"output": "again\n", "status": 0}


@both_grades
def test_a_fork_of_the_gateway_keeps_nothing_alive(grade: Grade, tmp_path: Path) -> None:
    """Race 68: a copy of the gateway that holds every socket does not keep the tree when the gateway dies."""
    with gateway(grade, tmp_path / "pids") as (control, witness):
        child = control.ask("fork")["child"]
        with Witness([child]) as copy:
            try:
                control.kill("gateway")
                assert witness.alive(GONE_SECONDS) == []
                assert copy.alive() == [child]
            finally:
                copy.signal(signal.SIGKILL)


@both_grades
def test_the_thread_that_started_the_helper_may_die(grade: Grade, tmp_path: Path) -> None:
    """Race 74: when the thread that started the helper ends, nothing dies with it."""
    with gateway(grade, tmp_path / "pids") as (control, witness):
        answer = control.ask("thread")
        assert answer["left"] == 0
        assert len(witness.alive(0.1)) == 5
        control.kill("gateway")
        assert witness.alive(GONE_SECONDS) == []


def test_a_helper_whose_control_hung_up_while_it_looked_around() -> None:
    """A helper that is told to open by a control that is gone ends quietly, with status 0."""
    for _ in range(3):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            command = [sys.executable, "-I", "-S", "-c", BARE, ROOT, str(theirs.fileno()), str(os.getpid()), "1-2-3"]
            helper = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True)
            wire.send(mine, ("open", "keeper", False))
        _, said = helper.communicate(timeout=BOUND_SECONDS)
        assert (helper.returncode, said) == (0, "")


# The sweep


def test_the_sweep_spares_who_lives_and_who_cannot_be_told(tmp_path: Path) -> None:
    """Race 67: another control's start spares the processes of a living owner and those of another PID namespace."""
    need(Grade.CGROUP)
    home = kernel.own_cgroup()
    assert home is not None
    space = os.stat("/proc/self/ns/pid").st_ino
    elsewhere = f"{space + 1}-{os.getpid()}-1"
    foreign = Path(home) / f"{kernel.MARK}{elsewhere}"
    foreign.mkdir()
    stranger = subprocess.Popen(["sleep", "1000"], env={kernel.OWNER: elsewhere})
    dead = subprocess.Popen(["sleep", "1000"], env={kernel.OWNER: f"{space}-{os.getpid()}-1"})
    nonsense = subprocess.Popen(["sleep", "1000"], env={kernel.OWNER: "nonsense"})
    try:
        (foreign / "cgroup.procs").write_text(str(stranger.pid))
        for grade in (Grade.CGROUP, Grade.KEEPER):
            with gateway(grade, tmp_path / str(grade)) as (_, witness):
                restarted(grade)
                assert len(witness.alive(0.05)) == 5
        assert stranger.poll() is None
        assert nonsense.poll() is None
        # The mark names this process's pid with another start time, so its owner counts as dead.
        assert dead.wait(BOUND_SECONDS) == -signal.SIGKILL
        assert foreign.exists()
    finally:
        for process in (stranger, dead, nonsense):
            process.kill()
            process.wait()
        kernel.remove_cgroup(str(foreign), 1.0)
    assert not foreign.exists()


def test_a_start_that_is_cut_short_leaves_nothing() -> None:
    """A control that closes while its helper starts refuses the spawn and leaves no process and no directory."""

    async def main() -> None:
        directories = cgroups_of(kernel.owner_of(os.getpid()))
        processes = LocalProcesses(Confinement())
        starting = asyncio.create_task(processes.ready())
        await until(lambda: processes._starting is not None, "the start")
        await processes.close()
        with pytest.raises(OSError, match="closed"):
            await starting
        await until(lambda: not kernel.children(), "no child is left")
        assert set(cgroups_of(kernel.owner_of(os.getpid()))) <= set(directories)

    play(main())


def test_the_sweep_spares_the_child_of_a_living_service(tmp_path: Path) -> None:
    """The sweep spares a process with the mark of a dead control whose parent is a living stranger; it ends an orphan.

    Any control that starts on this machine sweeps, also one of a test beside this one: then the test is played again.
    """
    with subprocess.Popen(["sleep", "1000"]) as dead:
        mark = f"{kernel.OWNER}={kernel.owner_of(dead.pid)}-1"
        dead.kill()
    assert kernel.owner_lives(mark.partition("=")[2]) is False
    code = '(env "$1" sleep 1000 & echo $! >> "$0"); env "$1" sleep 1000 & echo $! >> "$0"; wait'
    ours: list[bool] = []

    def marked(pid: int) -> bool:
        try:
            return mark in kernel.read(f"/proc/{pid}/environ").split("\0")
        except OSError:
            return False

    async def main(place: Path, service: int) -> None:
        pids = await until(lambda: len(text := read(place).split()) == 2 and [int(pid) for pid in text], "two pids")
        orphan, child = pids
        with Witness([child]) as spared:
            try:
                with Witness([orphan]) as ended:
                    await until(lambda: marked(child) and (marked(orphan) or not ended.alive()), "two marks")
                    assert (kernel.stat(child) or ("", 0))[1] == service
                    assert (kernel.stat(orphan) or ("", 0))[1] != service
                    left = ended.alive()
                    async with room(Grade.KEEPER) as processes:
                        assert processes.machine is not None
                        assert (ended.alive(BOUND_SECONDS), spared.alive()) == ([], [child])
                        ours.append(bool(left) and processes.machine.leftovers_ended >= 1)
            except ProcessLookupError:
                return  # another control swept the process before the witness saw it
            finally:
                spared.signal(signal.SIGKILL)

    for number in range(PLAYED_AGAIN):
        place = tmp_path / f"pids {number}"
        with subprocess.Popen(["sh", "-c", code, str(place), mark]) as service:
            try:
                play(main(place, service.pid))
            finally:
                service.kill()
        if ours[-1:] == [True]:
            return
    pytest.fail("the orphan was never ended by our own start")


DIES = """
import asyncio, os, signal, sys
from interlock.processes.base import Confinement, Grade
from interlock.agent.order import SpawnOrder
from interlock.processes.local import LocalProcesses
async def main():
    processes = LocalProcesses(Confinement(grade=Grade.KEEPER))
    await processes.ready()
    held = processes.contain("r")
    kept = held.spawn(SpawnOrder(argv=("env", "-i", "sleep", "60")))
    await kept.started()
    while open(f"/proc/{kept.pid}/comm").read() != "sleep\\n":
        await asyncio.sleep(0.001)
    print(kept.pid, flush=True)
    sys.stdin.readline()
    os.kill(held.keeper, signal.SIGSTOP)
    for pid in (processes._helper.process.pid, held.keeper, os.getpid()):
        os.kill(pid, signal.SIGKILL)
asyncio.run(main())
"""


def test_a_version_1_leaf_tells_the_next_start_who_is_left() -> None:
    """Without a mark and without cgroup v2, the sweep finds what a dead control left by the cgroup of its limits.

    Any control that starts on this machine sweeps, also one of a test beside this one: then the test is played again.
    """
    if os.geteuid() != 0 or kernel.own_cgroup_v1("pids") is None:
        pytest.skip("this needs root and a version 1 pids hierarchy")
    ours: list[bool] = []

    async def main(alive: bool) -> None:
        async with room(Grade.KEEPER) as processes:
            assert processes.machine is not None
            ours.append(alive and processes.machine.leftovers_ended >= 1)

    for _ in range(PLAYED_AGAIN):
        with subprocess.Popen(
            [sys.executable, "-c", DIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as control:
            assert control.stdin is not None and control.stdout is not None
            left = int(control.stdout.readline())
            with Witness([left]) as witness:
                control.stdin.write("die\n")
                control.stdin.close()
                control.wait(BOUND_SECONDS)
                play(main(witness.alive() == [left]))
                assert witness.alive(BOUND_SECONDS) == []
        if ours[-1]:
            return
    pytest.fail("what was left was never seen alive, or never ended by our own start")
