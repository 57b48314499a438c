"""Agents that hog, in real hosts: a stop is acknowledged at once, ends them, and nothing acts afterwards.

The other tests of this directory use the stage that is defined here (`Stage`, `Act`, `streaming`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from interlock import (
    Confinement,
    Control,
    Drain,
    Ending,
    EventKind,
    Grade,
    Outcome,
    Receipt,
    Settings,
    ToolState,
    open_control,
)
from interlock.core.answers import HostsInfo
from interlock.core.names import BodyState
from interlock.hosts import turn
from interlock.hosts.driver import HostDriver
from interlock.hosts.turn import SETTLE_SECONDS
from interlock.processes import kernel

from . import hogs

pytestmark = pytest.mark.long

T = TypeVar("T")

AGENT = f"{hogs.__name__}:agent"
BOUND_SECONDS = 30.0
TEST_SECONDS = 300.0  # by the loop's clock, which some tests put forward
WATCH_SECONDS = 0.5  # longer than any effect that a play puts off
# Another session may wait so long on a loaded machine; a hog hogs for far longer.
STALL_SECONDS = 5.0
# A killed process has this time to be gone.
PATIENT = Settings(grace_seconds=BOUND_SECONDS, drain_seconds=2 * BOUND_SECONDS)
GRADES = [Grade.CGROUP, Grade.KEEPER]
both_grades = pytest.mark.parametrize("grade", GRADES, ids=[str(grade) for grade in GRADES])


# The stage


async def until(seen: Any, what: str, seconds: float = BOUND_SECONDS) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < end, f"not seen in {seconds:.0f} s: {what}"
        await asyncio.sleep(0.002)
    return found


@contextmanager
def unhurried() -> Iterator[None]:
    """Give every host BOUND_SECONDS to settle, so that a slow machine makes none late."""
    turn.SETTLE_SECONDS = BOUND_SECONDS
    try:
        yield
    finally:
        turn.SETTLE_SECONDS = SETTLE_SECONDS


async def put_forward(stage: Stage, seconds: float) -> None:
    """Put the loop's clock forward: the time to settle and the graces, which control takes from it, are over."""
    await until(lambda: stage.info.spare, "a spare")  # a spare that is still being made would be late
    loop: Any = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


def there(pids: Iterable[int]) -> list[int]:
    """Return those processes that exist, also dead ones that no parent has reaped."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def living(pids: Iterable[int]) -> list[int]:
    """Return those processes that are not dead."""
    return [pid for pid in pids if (status := kernel.stat(pid)) is not None and status[0] not in "ZX"]


def descriptors() -> list[str]:
    """Return what this process has open; anonymous descriptors by their kind."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}").partition(":[")[0])
    return sorted(found)


def leaves() -> list[str]:
    """Return every cgroup directory of this process's controls."""
    homes = (kernel.own_cgroup(), kernel.own_cgroup_v1("pids"), kernel.own_cgroup_v1("memory"))
    mine = f"{kernel.MARK}{kernel.owner_of(os.getpid())}*"
    return [str(path) for home in homes if home is not None for path in Path(home).glob(mine)]


class Act:
    """A play that runs in a session, and the traces of it that a test can see."""

    def __init__(self, control: Control, session: str, run: str, place: Path) -> None:
        self.control = control
        self.session = session
        self.run = run
        self.place = place

    @property
    def beats(self) -> bytes:
        """Return the beats so far."""
        return (self.place / "beats").read_bytes() if (self.place / "beats").exists() else b""

    @property
    def pids(self) -> list[int]:
        """Return the pids of the processes that the play started."""
        return [int(pid) for pid in (self.place / "pids").read_text().split()] if self.beats else []

    async def reached(self) -> Act:
        """Wait until the play has done its worst."""
        await until(lambda: b"!" in self.beats, f"{self.place.name} is reached")
        return self

    async def stop(self) -> Receipt:
        """Stop the run; return the receipt once drained, and check that nothing of the play is left."""
        told = await self.control.stop(session=self.session)
        assert told.aborted, self.place.name
        receipt = await self.drained()
        if receipt.host == "killed":
            assert there(self.pids) == [], self.place.name
        return receipt

    async def outcome(self) -> Outcome:
        """Wait for the end of the run."""
        return await self.control.wait(self.run, timeout=BOUND_SECONDS)

    async def drained(self) -> Receipt:
        """Wait until the run is drained; return the receipt."""
        outcome = await self.control.wait(self.run, drained=True, timeout=BOUND_SECONDS)
        assert outcome.ended, f"{self.place.name} did not end"
        self.at_end = self.beats
        receipt = await self.control.receipt(self.run)
        assert receipt.drain is Drain.OBSERVED, (self.place.name, receipt.unconfirmed, receipt.processes)
        if receipt.host == "killed":
            # If the keeper was killed too, another process reaps the dead host: wait for its death only.
            await until(lambda: living(self.pids) == [], f"{self.place.name} is dead")
        return receipt


class Stage:
    """A control with the hogs, on a loop of its own."""

    def __init__(self, control: Control, grade: Grade, places: Path) -> None:
        self.control = control
        self.grade = grade
        self._places = places
        self._made = 0

    @property
    def info(self) -> HostsInfo:
        """Return the driver's counts of hosts."""
        assert isinstance(self.control._driver, HostDriver)
        return self.control._driver.info

    async def play(self, name: str, session: str | None = None, place: Path | None = None) -> Act:
        """Begin a play, in a session of its own unless one is given."""
        self._made += 1
        if place is None:
            place = self._places / f"{name}-{self._made}"
            place.mkdir()
        session = session or place.name
        sent = await self.control.send(session, f"{name} {place}")
        return Act(self.control, session, sent.run_id, place)

    async def hosted_by(self, session: str) -> tuple[int, int]:
        """Return the pid of a session's host, and how many turns that host has had."""
        outcome = await (await self.play("answers", session)).outcome()
        assert outcome.ending is Ending.COMPLETED, outcome.error
        pid, turns = outcome.text.split()
        return int(pid), int(turns)


@asynccontextmanager
async def staged(grade: Grade, places: Path, **values: Any) -> AsyncIterator[Stage]:
    """Open a control with the hogs; check afterwards that no descriptor, child or cgroup of it is left."""
    if grade is Grade.CGROUP and os.geteuid() != 0:
        pytest.skip("the cgroup grade needs root, or a cgroup that was delegated to us")
    before, children, directories = descriptors(), kernel.children(), leaves()
    store = values.pop("store", "memory://")
    options = {"driver": "host", "store": store, "confinement": Confinement(grade=grade, **values)}
    async with open_control(AGENT, agents={"other": AGENT}, settings=PATIENT, **options) as control:
        machine = await control._processes.ready()
        if machine.grade is not grade:
            pytest.skip(f"this machine does not give the grade {grade}: {machine.why}")
        yield Stage(control, grade, places)
    await until(lambda: set(kernel.children()) <= set(children), "no child is left")
    await until(lambda: not Counter(descriptors()) - Counter(before), f"no descriptor but {before}")
    assert set(leaves()) <= set(directories)


async def _bounded(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(TEST_SECONDS):
        return await work


def bounded(work: Coroutine[Any, Any, T]) -> T:
    """Run a test on a loop of its own."""
    return asyncio.run(_bounded(work))


class Theatre:
    """A stage for many tests, since opening a control takes longer than most of them."""

    def __init__(self, grade: Grade, places: Path, **values: Any) -> None:
        self._runner = asyncio.Runner()
        self._stage: AbstractAsyncContextManager[Stage] = staged(grade, places, **values)
        self.stage = self._runner.run(self._stage.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a test on the stage, bounded in time."""
        return self._runner.run(_bounded(work))

    def close(self) -> None:
        """Close the stage, and check that nothing of all its tests is left."""
        with self._runner:
            self._runner.run(self._stage.__aexit__(None, None, None))


@pytest.fixture(scope="module", params=GRADES, ids=[str(grade) for grade in GRADES])
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """Yield a stage of each grade."""
    opened = Theatre(request.param, tmp_path_factory.mktemp("hogs"))
    yield opened
    opened.close()


@asynccontextmanager
async def streaming(stage: Stage) -> AsyncIterator[None]:
    """Stream in another session meanwhile; check that this session loses nothing and never waits long."""
    act = await (await stage.play("streams")).reached()
    gaps = []

    async def follow() -> None:
        last = time.monotonic()
        async with aclosing(stage.control.watch(run=act.run)) as events:
            async for event in events:
                if event.kind is EventKind.DELTA:
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

    following = asyncio.create_task(follow())
    try:
        await until(lambda: gaps, "the first delta")
        count = len(gaps)
        yield
        await until(lambda: len(gaps) > count, "it goes on")
        with unhurried():
            receipt = await act.stop()
    finally:
        following.cancel()
    outcome = await act.outcome()
    numbers = [int(number) for number in outcome.text.split()]
    assert (outcome.ending, receipt.host) == (Ending.STOPPED, "reused")
    assert numbers == list(range(len(numbers)))
    assert max(gaps) < STALL_SECONDS


async def nothing_acts(acts: Iterable[Act], seconds: float = WATCH_SECONDS) -> None:
    """Watch for a while, and check that no play has beaten since its run was drained."""
    await asyncio.sleep(seconds)
    assert [act.place.name for act in acts if act.beats != act.at_end] == []


# Between tools: a host has a moment to settle


POLITE = ["waits", "streams", "mops_up"]


def test_polite_hosts_are_used_again(theatre: Theatre) -> None:
    """A host that ends its turn when told is used again, with its memory, and the receipt says so."""

    async def main(stage: Stage) -> None:
        for name in POLITE:
            act = await (await stage.play(name)).reached()
            with unhurried():
                receipt = await act.stop()
            assert (receipt.cause, receipt.host, receipt.grade) == (Ending.STOPPED, "reused", stage.grade), name
            assert receipt.runs[0].body is BodyState.CUT, name
            assert await stage.hosted_by(act.session) == (act.pids[0], 2), name

    theatre.run(main(theatre.stage))


BLOCKING = ["sleeps", "spins", "swallows", "holds_gil", "matches", "deaf_to_signals", "stops_itself"]


def test_a_host_that_does_not_settle_is_killed(theatre: Theatre) -> None:
    """Race 39: a host that blocks in Python or C, holds the GIL, is deaf or stopped is acknowledged, killed, silent."""

    async def one(stage: Stage, name: str) -> Act:
        act = await (await stage.play(name)).reached()
        told = await stage.control.stop(session=act.session)
        assert told.aborted and told.drain is Drain.PENDING, name  # acknowledged while the play still hogs
        receipt = await act.drained()
        assert (receipt.cause, receipt.host) == (Ending.STOPPED, "killed"), name
        assert receipt.runs[0].body is BodyState.KILLED, name
        assert (receipt.fence_to_drained_ms or 0) >= SETTLE_SECONDS * 1000, name
        assert receipt.processes.ended == 0, name
        assert (await stage.hosted_by(act.session))[1] == 1, name
        return act

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            acts = await asyncio.gather(*(one(stage, name) for name in BLOCKING))
            await nothing_acts(acts)

    theatre.run(main(theatre.stage))


def test_a_host_cannot_hand_control_something_to_close(theatre: Theatre) -> None:
    """A descriptor that takes for ever to close does not reach control through the link: control's loop goes on."""

    async def main(stage: Stage) -> None:
        async with streaming(stage):
            act = await (await stage.play("sends_descriptor")).reached()
            receipt = await act.stop()
            assert receipt.cause is Ending.STOPPED

    theatre.run(main(theatre.stage))


def test_a_keeper_that_was_stopped_is_replaced(theatre: Theatre) -> None:
    """A host that stops its own keeper with SIGSTOP is ended like any other, with the child that it left."""

    async def main(stage: Stage) -> None:
        act = await (await stage.play("stops_its_keeper")).reached()
        await until(lambda: len(act.pids) == 2, "the child runs")
        assert (await act.stop()).host == "killed"
        assert there(act.pids) == []
        assert (await stage.hosted_by(act.session))[1] == 1

    theatre.run(main(theatre.stage))


LEAVING = [
    "leaves_thread",
    "leaves_work",
    "leaves_queued_work",
    "leaves_work_in_pool",
    "rested_threads",  # the threads are idle, but control cannot know what they wait for
    "leaves_task",
    "leaves_timer",
    "leaves_callback",
    "leaves_alarm",
    "leaves_server",
    "leaves_process",
    "leaves_daemon",
    "leaves_fugitive",
    "leaves_fork",
]


def test_a_host_in_which_something_is_left_is_killed(theatre: Theatre) -> None:
    """A host in which a polite agent left code that may act later is not used again, and nothing acts after drained."""

    async def one(stage: Stage, name: str) -> Act:
        if name == "leaves_work_in_pool":
            before = await (await stage.play("keeps_pool", name)).outcome()
            assert before.ending is Ending.COMPLETED
        act = await (await stage.play(name, name)).reached()
        receipt = await act.stop()
        assert (receipt.cause, receipt.host) == (Ending.STOPPED, "killed"), name
        if name == "leaves_server":
            with socket.socket(socket.AF_UNIX) as guest, suppress(OSError):
                guest.connect(str(act.place / "door"))
        assert (await stage.hosted_by(name))[1] == 1, name
        return act

    async def main(stage: Stage) -> None:
        acts = await asyncio.gather(*(one(stage, name) for name in LEAVING))
        await nothing_acts(acts)

    theatre.run(main(theatre.stage))


def test_a_process_of_a_completed_turn_stays_with_its_host(theatre: Theatre) -> None:
    """A process that a library started in a completed turn lives on with the host, and ends with the host."""

    async def main(stage: Stage) -> None:
        kept = await stage.play("keeps_process")
        pid = int((await kept.outcome()).text)
        started = int((kept.place / "pids").read_text())
        assert (await kept.drained()).host == "reused"
        waiting = await (await stage.play("waits", kept.session)).reached()
        assert (await waiting.stop()).host == "reused"  # the process is older than that turn
        assert there([pid, started]) == [pid, started]
        assert (await stage.hosted_by(kept.session))[0] == pid
        await stage.control.reset(kept.session)  # a new transcript begins with a new memory
        assert (await stage.hosted_by(kept.session))[0] != pid
        await until(lambda: there([pid, started]) == [], "both are gone")

    with unhurried():
        theatre.run(main(theatre.stage))


def test_a_word_after_the_return_does_not_cost_the_host(theatre: Theatre) -> None:
    """A task that says something after its turn completed gets Stale; the host stays warm."""

    async def main(stage: Stage) -> None:
        act = await stage.play("speaks_later")
        pid = int((await act.outcome()).text)
        await act.drained()
        await until(lambda: act.beats, "it was refused")
        assert (await stage.hosted_by(act.session)) == (pid, 2)  # control heard the late word before this answer
        assert (await stage.hosted_by(act.session)) == (pid, 3)

    with unhurried():
        theatre.run(main(theatre.stage))


# With a tool at work: control sends KILL at once


def test_a_tool_at_work_is_killed_at_once(theatre: Theatre) -> None:
    """A tool without a declared grace has no moment to settle: no `finally` runs, and the host is soon gone."""

    async def main(stage: Stage) -> None:
        acts, milliseconds = [], []
        for name in ("calls_blocking", "calls_thread", "calls_cleaning", "calls_mixed"):
            act = await (await stage.play(name)).reached()
            calls = 2 if name == "calls_mixed" else 1
            await permitted(act, calls)
            receipt = await act.stop()
            assert (receipt.host, receipt.runs[0].body) == ("killed", BodyState.KILLED), name
            assert [tool.state for tool in receipt.tools] == [ToolState.INTERRUPTED] * calls, name
            assert b"c" not in act.beats, name
            assert (await stage.hosted_by(act.session))[1] == 1, name
            acts.append(act)
            milliseconds.append(receipt.fence_to_drained_ms or 0)
        assert max(milliseconds) < BOUND_SECONDS * 1000 / 2, milliseconds  # half of the time to settle
        await nothing_acts(acts)

    with unhurried():
        theatre.run(main(theatre.stage))


async def permitted(act: Act, calls: int) -> None:
    """Wait until control has permitted so many calls of a run, and all have begun."""
    live = act.control._registry.runs[act.run]  # type: ignore[index]
    await until(
        lambda: [call.state for call in (live.work.calls or {}).values()].count(ToolState.RUNNING) == calls, "permits"
    )
    await until(lambda: act.beats.count(b"b") == calls, "tools that have begun")


def test_a_declared_grace_is_given(theatre: Theatre) -> None:
    """Tools that all declared a grace may clean up; a tool that goes on after the grace is killed."""

    async def one(stage: Stage, name: str) -> tuple[Act, Receipt]:
        act = await (await stage.play(name)).reached()
        await permitted(act, 1)
        return act, await act.stop()

    async def main(stage: Stage) -> None:
        names = ("calls_with_grace", "calls_deaf", "calls_blocking_with_grace")
        (cleaned, first), (deaf, second), (blocked, third) = await asyncio.gather(*(one(stage, name) for name in names))
        assert (first.host, cleaned.beats) == ("reused", b"!bcd")
        assert await stage.hosted_by(cleaned.session) == (cleaned.pids[0], 2)
        assert (second.host, third.host) == ("killed", "killed")
        assert b"c" in deaf.beats
        for receipt in (second, third):
            assert (receipt.fence_to_drained_ms or 0) >= hogs.GRACE_SECONDS * 1000
        await nothing_acts([cleaned, deaf, blocked])

    theatre.run(main(theatre.stage))


def test_a_tool_that_blocks_its_loop_delays_no_stop(theatre: Theatre) -> None:
    """Race 39: a tool that never awaits delays neither the stop of its own session nor that of another."""

    async def main(stage: Stage) -> None:
        hog = await (await stage.play("calls_blocking_for_long")).reached()
        await permitted(hog, 1)
        polite = await (await stage.play("waits")).reached()
        other = await polite.stop()
        assert other.host == "reused"
        told = await stage.control.stop(session=hog.session)
        assert (told.aborted, told.drain) == (True, Drain.PENDING)
        seen = len(hog.beats)
        # The stop was acknowledged, and the hog goes on in its grace.
        await until(lambda: len(hog.beats) > seen, "it hogs on, in its grace")
        again = await (await stage.play("waits")).reached()
        assert (await again.stop()).host == "reused"
        assert not (await stage.control.wait(hog.run)).drained
        await put_forward(stage, hogs.LIFE_SECONDS)
        assert (await hog.drained()).host == "killed"
        await nothing_acts([hog])

    with unhurried():
        theatre.run(main(theatre.stage))


# Takeover


def test_a_new_message_does_not_wait_for_a_hog(theatre: Theatre) -> None:
    """The new run answers on another host while the old host hogs and is killed later; events have one order."""

    async def main(stage: Stage) -> None:
        hogging = []
        for name in ("spins", "holds_gil"):
            hog = await (await stage.play(name)).reached()
            answer = await stage.play("answers", hog.session)
            outcome = await answer.outcome()
            assert there(hog.pids) == hog.pids, "the answer came while the hog was there"
            assert int(outcome.text.split()[0]) not in hog.pids
            ended = await hog.outcome()
            assert (ended.ending, ended.superseded_by) == (Ending.SUPERSEDED, answer.run)
            await put_forward(stage, BOUND_SECONDS)  # the hog's time to settle is over
            assert (await hog.drained()).host == "killed"
            kinds = [(event.run_id, event.kind) for event in await events_of(stage.control, hog.session)]
            assert kinds.index((hog.run, EventKind.ENDED)) < kinds.index((answer.run, EventKind.STARTED))
            assert [run for run, kind in kinds if kind is EventKind.ENDED] == [hog.run, answer.run]
            assert (await stage.hosted_by(hog.session))[0] == int(outcome.text.split()[0])
            hogging.append(hog)
        await nothing_acts(hogging)

    with unhurried():
        theatre.run(main(theatre.stage))


async def events_of(control: Control, session: str) -> list[Any]:
    """Return the events of a session so far."""
    page = await control.feed.log.events(session, after=0, limit=10_000)  # type: ignore[arg-type]
    return [event for event in page.events if event.run_id is not None]


def test_a_receipt_does_not_call_a_host_reused_that_is_gone(theatre: Theatre) -> None:
    """A polite host that settles when its session has another host is kept or ended, and the receipt says which."""

    async def main(stage: Stage) -> None:
        slow = await (await stage.play("mops_until_told")).reached()
        answer = await (await stage.play("answers", slow.session)).outcome()
        assert int(answer.text.split()[0]) not in slow.pids
        (slow.place / "enough").touch()
        assert (await stage.control.wait(slow.run, drained=True)).ending is Ending.SUPERSEDED
        if (await stage.control.receipt(slow.run)).host == "killed":
            await until(lambda: there(slow.pids) == [], "it is gone")
        else:
            # The new run had to wait for its host: the old host settled in time and stayed with the session.
            assert (await stage.hosted_by(slow.session))[0] == slow.pids[0]

    with unhurried():
        theatre.run(main(theatre.stage))


# Closing


@both_grades
def test_control_closes_on_hogs(grade: Grade, tmp_path: Path) -> None:
    """A control with hogs of every kind closes within its bounds; each run ends as shutdown, and nothing is left."""
    names = ("sleeps", "spins", "swallows", "holds_gil", "stops_itself", "calls_blocking", "leaves_daemon", "waits")

    async def main() -> None:
        acts = []
        async with staged(grade, tmp_path) as stage:
            acts = await asyncio.gather(*(stage.play(name) for name in names))
            for act in acts:
                await act.reached()
            waiting = [asyncio.create_task(act.outcome()) for act in acts]
            began = time.monotonic()
        assert time.monotonic() - began < PATIENT.grace_seconds / 2  # the close waited for no hog
        assert {(await each).ending for each in waiting} == {Ending.SHUTDOWN}
        assert [act.place.name for act in acts if there(act.pids)] == []
        for act in acts:
            act.at_end = act.beats
        await nothing_acts(acts)

    bounded(main())


@both_grades
def test_control_closes_before_its_first_host_is_there(grade: Grade, tmp_path: Path) -> None:
    """A control that is closed while its spare is being made leaves nothing."""

    async def main() -> None:
        async with staged(grade, tmp_path) as stage:
            assert stage.info.started == 0

    bounded(main())
