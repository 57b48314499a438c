"""Code of a run hears that the run is over wherever it runs, even while it blocks: real workers, hosts and threads."""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    BadInput,
    Confinement,
    Control,
    Drain,
    Ending,
    EventKind,
    Grade,
    Message,
    Notice,
    Receipt,
    Run,
    Settings,
    ToolState,
    open_control,
    stopping,
)
from interlock.agent.notice import pipe, write

pytestmark = pytest.mark.long

ROOT = str(Path(__file__).resolve().parents[2])
AGENT, COLD = "tests.contracts.listeners:agent", "tests.contracts.cold_listeners:agent"
BOUND_SECONDS = 60.0
SHORT_SECONDS = 0.4  # the grace of `listeners.ignores` and `lost_in_c`
PATIENT = Settings(grace_seconds=40, drain_seconds=45)  # for a tool that is done far sooner, on a busy machine
GRADES = [pytest.param(None, id="as the machine gives"), pytest.param(Grade.KEEPER, id="keeper")]

at_each_grade = pytest.mark.parametrize("grade", GRADES)
on_each_driver = pytest.mark.parametrize("driver", ["inline", "host"])

if ROOT not in sys.path:  # `pytest` alone does not add it; a host gets this path
    sys.path.insert(0, ROOT)


@asynccontextmanager
async def opened(driver: str, grade: Grade | None = None, agent: str = AGENT, **given: Any) -> AsyncIterator[Control]:
    """Open a control; bound everything that is done with it."""
    confinement = Confinement(grade=grade, **given)
    async with asyncio.timeout(2 * BOUND_SECONDS):
        async with open_control(agent, driver=driver, settings=PATIENT, confinement=confinement) as control:
            yield control


def noted(path: Path) -> list[str]:
    """Return the notes so far."""
    return path.read_text("utf-8").splitlines() if path.exists() else []


async def until(seen: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not seen():
            await asyncio.sleep(0.002)


async def began(path: Path) -> str:
    """Wait until a part has begun; return what the part noted then."""
    await until(lambda: any(line.startswith("began") for line in noted(path)))
    return next(line for line in noted(path) if line.startswith("began")).partition(" ")[2]


async def ended(control: Control, run: str) -> Receipt:
    """Wait until a run is drained; return its receipt."""
    await control.wait(run, drained=True)
    return await control.receipt(run)


async def stopped(control: Control, part: str, path: Path, session: str = "s") -> Receipt:
    """Begin a part and stop it once it has begun."""
    sent = await control.send(session, f"{part} {path}")
    await began(path)
    assert (await control.stop(run=sent.run_id)).aborted
    return await ended(control, sent.run_id)


def is_gone(pid: int) -> bool:
    """True if there is no such process."""
    return not Path(f"/proc/{pid}").exists()


# A tool that cleans up


@at_each_grade
@on_each_driver
def test_a_synchronous_tool_cleans_up_within_its_grace(driver: str, grade: Grade | None, tmp_path: Path) -> None:
    """Race 136: a blocking tool hears at once and has its grace; its result goes nowhere, and then the tool is gone."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver, grade) as control:
            receipt = await stopped(control, "waits", path)
            assert [line.partition(" ")[0] for line in noted(path)] == ["began", "cleaned"]
            assert noted(path)[-1] == "cleaned True"
            assert receipt.drain is Drain.OBSERVED and receipt.drained_at is not None
            assert receipt.drained_at - receipt.fenced_at < PATIENT.grace_seconds, "it did not run its grace out"
            assert [(each.name, each.state) for each in receipt.tools] == [("waits", ToolState.INTERRUPTED)]
            assert [each.body.value for each in receipt.runs] == ["cut"]
            assert receipt.host == {"inline": "none", "host": "reused"}[driver]
            told = [event async for event in control.watch(run=receipt.runs[0].id)]
            assert "late" not in str(told), "the result is in nobody's transcript"
            assert [event.kind for event in told][-1] is EventKind.ENDED

    asyncio.run(main())


def test_a_host_that_was_not_forked_hears(tmp_path: Path) -> None:
    """A spawned host, of a module that cannot be forked, finds its notice, and keeps the notice to itself."""

    async def main() -> None:
        async with opened("host", agent=COLD) as control:
            assert control.hosts is not None and not control.hosts.warm
            for number in range(2):
                path = tmp_path / f"notes-{number}"
                receipt = await stopped(control, "waits", path)
                assert noted(path)[-1] == "cleaned True"
                assert receipt.drain is Drain.OBSERVED

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give rights away: agent_user= needs root")
@pytest.mark.parametrize(("driver", "user"), [("inline", "root"), ("host", "nobody")])
def test_code_of_an_agent_user_hears(driver: str, user: str) -> None:
    """Code of another user, and in a PID namespace, hears the notice. (A worker needs a user who finds this Python.)"""

    async def main(place: Path) -> None:
        async with opened(driver, agent_user=user) as control:
            for part, last in (("waits", "cleaned True"), ("ignores", "heard")):
                receipt = await stopped(control, part, place / part)
                assert last in noted(place / part)
                assert receipt.drain is Drain.OBSERVED

    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        asyncio.run(main(Path(place)))


PARTS = ["polls", "waits_in_turns", "selects", "awaits_elsewhere", "crowds", "threaded"]


@pytest.mark.parametrize("part", PARTS)
@on_each_driver
def test_every_way_to_ask(driver: str, part: str, tmp_path: Path) -> None:
    """Code that polls, waits, selects, awaits in another loop or waits in many threads hears the notice."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver) as control:
            receipt = await stopped(control, part, path)
            assert noted(path)[-1] == "cleaned True"
            assert receipt.drain is Drain.OBSERVED, receipt.unconfirmed

    asyncio.run(main())


@pytest.mark.parametrize(
    ("part", "last"), [("waits", "cleaned True"), ("threaded", "cleaned True"), ("hears", "task True")]
)
@on_each_driver
def test_tools_of_a_parallel_batch_hear(driver: str, part: str, last: str, tmp_path: Path) -> None:
    """A tool of a parallel batch, in a task of its own, hears the notice of the run."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver) as control:
            receipt = await stopped(control, f"batch:{part}", path)
            assert noted(path)[-1] == last
            assert receipt.drain is Drain.OBSERVED, receipt.unconfirmed

    asyncio.run(main())


@on_each_driver
def test_what_stands_beside_an_async_tool_hears(driver: str, tmp_path: Path) -> None:
    """A thread of `asyncio.to_thread` and a task of an async tool hear; the tool itself is cut, and can tell why."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver) as control:
            receipt = await stopped(control, "beside", path)
            assert sorted(noted(path)) == ["began", "set True", "task True", "thread True"]
            assert receipt.tools[0].state is ToolState.INTERRUPTED

    asyncio.run(main())


@pytest.mark.parametrize("ending", [Ending.TIMED_OUT, Ending.SUPERSEDED, Ending.SHUTDOWN])
@on_each_driver
def test_every_early_end_is_heard(driver: str, ending: Ending, tmp_path: Path) -> None:
    """Code hears a deadline, a takeover and a close like a stop; the new run does not wait for the cleanup."""
    path, other = tmp_path / "notes", tmp_path / "other"

    async def main() -> None:
        async with opened(driver) as control:
            for seconds in (1, 5, 25):  # until one is long enough for the part to begin
                limit = seconds if ending is Ending.TIMED_OUT else None
                sent = await control.send("s", f"waits {path}", deadline=limit)
                if limit is not None:
                    await control.wait(sent.run_id)
                else:
                    await began(path)
                if noted(path):
                    break
            if ending is Ending.SUPERSEDED:
                next_one = await control.send("s", f"parks {other}")
                assert await began(other) == "False"
                await control.stop(run=next_one.run_id)
            if ending is not Ending.SHUTDOWN:
                receipt = await ended(control, sent.run_id)
                outcome = receipt.runs[0].outcome
                assert (outcome.ending, receipt.drain) == (ending, Drain.OBSERVED)
        assert noted(path)[-1] == "cleaned True"

    asyncio.run(main())


# A tool that has not begun


@pytest.mark.parametrize(("driver", "part"), [("host", "gathers"), ("host", "batches"), ("inline", "unpacks")])
def test_no_body_begins_when_its_run_is_over(driver: str, part: str, tmp_path: Path) -> None:
    """A permitted call whose body waits for a blocked loop or for its module looks at the notice, and never begins."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver) as control:
            receipt = await stopped(control, part, path)
            assert "effect" not in noted(path)
            assert {each.state for each in receipt.tools} == {ToolState.INTERRUPTED}
            assert receipt.drain is Drain.OBSERVED, receipt.unconfirmed

    asyncio.run(main())


# A tool that does not clean up


@at_each_grade
@on_each_driver
def test_one_that_goes_on_is_killed_when_its_grace_is_over(driver: str, grade: Grade | None, tmp_path: Path) -> None:
    """A tool that hears the notice (and TERM in a worker) and goes on is killed after its grace, and seen gone."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver, grade) as control:
            receipt = await stopped(control, "ignores", path)
            pid = int(noted(path)[0].partition(" ")[2])
            assert is_gone(pid)
            words = noted(path)[1:]
            assert sorted(words) == {"inline": ["heard", "term"], "host": ["heard"]}[driver]
            assert receipt.drain is Drain.OBSERVED and receipt.drained_at is not None
            assert receipt.drained_at - receipt.fenced_at >= SHORT_SECONDS
            assert receipt.tools[0].state is ToolState.INTERRUPTED
            assert receipt.runs[0].body.value == {"inline": "cut", "host": "killed"}[driver]

    asyncio.run(main())


@at_each_grade
@on_each_driver
def test_one_in_a_c_call_is_killed_when_its_grace_is_over(driver: str, grade: Grade | None, tmp_path: Path) -> None:
    """A tool in a C call, which asks nothing and hears no signal, is killed with its worker or its host."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver, grade) as control:
            receipt = await stopped(control, "lost_in_c", path)
            assert is_gone(int(noted(path)[0].partition(" ")[2]))
            assert receipt.drain is Drain.OBSERVED and receipt.drained_at is not None
            assert receipt.drained_at - receipt.fenced_at >= SHORT_SECONDS

    asyncio.run(main())


@at_each_grade
@on_each_driver
def test_one_without_a_grace_is_killed_at_once(driver: str, grade: Grade | None, tmp_path: Path) -> None:
    """A tool without a grace is killed unheard, so that it does not begin a cleanup that it cannot end."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver, grade) as control:
            receipt = await stopped(control, "without_grace", path)
            assert is_gone(int(noted(path)[0].partition(" ")[2]))
            assert len(noted(path)) == 1
            assert receipt.drain is Drain.OBSERVED

    asyncio.run(main())


def test_the_notice_comes_before_the_signal(tmp_path: Path) -> None:
    """A handler of TERM in a worker finds the notice set."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened("inline") as control:
            await stopped(control, "handles_term", path)
            assert noted(path)[-1] == "cleaned [True]"

    asyncio.run(main())


def test_a_program_of_a_tool_is_sent_term(tmp_path: Path) -> None:
    """A tool that waits for a program is freed by the TERM that its group gets; forks of the tool hear TERM as ever."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened("inline") as control:
            receipt = await stopped(control, "runs_a_program", path)
            assert noted(path)[-1] == f"cleaned True {-signal.SIGTERM} {-signal.SIGTERM}"
            assert receipt.drain is Drain.OBSERVED

    asyncio.run(main())


def test_a_call_that_is_given_up_is_told_so(tmp_path: Path) -> None:
    """The tool of a call that its agent gives up hears in its worker; the run goes on and is not over."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened("inline") as control:
            sent = await control.send("s", f"gives_up {path}")
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "False")
            assert {"gave up False", "cleaned True"} <= set(noted(path))

    asyncio.run(main())


# The notice of one run, and of no other


def test_a_host_s_next_turn_does_not_hear_the_last_one_s(tmp_path: Path) -> None:
    """A host that heard and was kept begins every further turn with a notice that is not set, and hears again."""

    async def main() -> None:
        async with opened("host") as control:
            pids = set()
            for number in range(6):
                path = tmp_path / f"notes-{number}"
                if number % 3 == 2:
                    sent = await control.send("s", f"asks {path}")
                    pids.add((await control.wait(sent.run_id)).text)
                    assert noted(path) == ["set False False"]
                    continue
                receipt = await stopped(control, "waits" if number % 3 else "parks", path)
                assert receipt.host == "reused"
                assert noted(path)[-1] == ("cleaned True" if number % 3 else "cut True")
                assert number % 3 or noted(path)[0] == "began False"
            assert len(pids) == 1, "it was the same process all the while"

    asyncio.run(main())


def test_a_worker_s_next_tool_hears_nothing_of_the_last(tmp_path: Path) -> None:
    """A tool hears nothing before its run is over, though the tools of a run share a worker."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened("inline") as control:
            sent = await control.send("s", f"asks {path}")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            assert noted(path) == ["set False False"]

    asyncio.run(main())


@on_each_driver
def test_only_the_run_that_was_stopped_hears(driver: str, tmp_path: Path) -> None:
    """A stop of one of two waiting runs is heard by that run alone; the other waits until its own stop."""
    paths = [tmp_path / "first", tmp_path / "second"]

    async def main() -> None:
        async with opened(driver) as control:
            runs = [(await control.send(path.name, f"waits {path}")).run_id for path in paths]
            for path in paths:
                await began(path)
            for number in (0, 1):
                await control.stop(run=runs[number])
                await ended(control, runs[number])
                cleaned = [noted(path)[-1] == "cleaned True" for path in paths]
                assert cleaned == [True, number == 1]

    asyncio.run(main())


@on_each_driver
def test_a_thread_that_outlives_its_run_hears_that_it_is_over(driver: str, tmp_path: Path) -> None:
    """A thread that outlives a run which ended by itself hears that the run is over."""
    path = tmp_path / "notes"

    async def main() -> None:
        async with opened(driver) as control:
            sent = await control.send("s", f"leaves_thread {path}")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            await until(lambda: "heard True" in noted(path))

    asyncio.run(main())


def test_a_host_hears_when_control_is_killed(tmp_path: Path) -> None:
    """A host's tool may hear when control is killed, and is ended in any case."""
    path = tmp_path / "notes"
    program = (
        "import asyncio, sys\n"
        "from interlock import open_control\n"
        "async def main():\n"
        f"    async with open_control({AGENT!r}, driver='host') as control:\n"
        f"        await control.send('s', 'waits {path}')\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    control = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        pid = int(asyncio.run(began(path)))
        control.kill()
        asyncio.run(until(lambda: is_gone(pid)))
        assert noted(path)[1:] in ([], ["cleaned True"])
    finally:
        control.kill()
        control.wait()


# Bad input, and no run at all


def test_outside_of_a_run_it_is_never_set() -> None:
    """Code outside of a run, as in a script, never finds the notice set, and waits for its whole timeout."""
    program = subprocess.run(
        [sys.executable, "-m", "tests.contracts.listeners"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert program.stdout == "False False\n"
    assert (stopping().is_set(), stopping().wait(0), stopping().wait(-1)) == (False, False, False)
    assert repr(stopping()) == "<stopping: not set>"

    async def awaits() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stopping()

    asyncio.run(awaits())


@pytest.mark.parametrize("timeout", [math.nan, "1", True, 10**400, [1]])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    """A timeout that is no number of seconds is refused, whether the notice is set or not."""
    told = Notice()
    told.tell()
    for notice in (stopping(), Notice(), told):
        with pytest.raises(BadInput, match="timeout= is a number of seconds or None"):
            notice.wait(timeout)


@pytest.mark.parametrize("timeout", [-1, -math.inf, 0, 0.0, -1e300])
def test_a_time_that_is_over_is_not_waited_for(timeout: float) -> None:
    """A timeout of zero or less returns at once, so that a caller may pass what is left of its time."""
    before = time.monotonic()
    assert not Notice().wait(timeout)
    assert time.monotonic() - before < BOUND_SECONDS


def test_an_inline_agent_cannot_wait_for_itself(tmp_path: Path) -> None:
    """An inline agent that would block the loop on which its run falls is refused, with what to do instead."""

    async def main() -> None:
        async with opened("inline") as control:
            sent = await control.send("s", f"blocks {tmp_path / 'notes'}")
            assert "use `await interlock.stopping()` here" in (await control.wait(sent.run_id)).text

    asyncio.run(main())


# The notice itself


@pytest.mark.parametrize("far", [False, True], ids=["told here", "told by another process"])
def test_a_notice_is_heard_by_everybody_for_good(far: bool) -> None:
    """Threads that wait, loops that await and a descriptor are woken, and stay so; the notice leaves no descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    hears, tells = pipe()
    _hear(Notice(hears), lambda notice: write(tells)) if far else _hear(Notice(), Notice.tell)
    for fd in (hears, tells):
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def _hear(notice: Notice, tell: Callable[[Notice], None]) -> None:
    heard: list[Any] = []

    async def awaits() -> None:
        await asyncio.gather(notice, notice)
        heard.append("awaited")

    threads = [threading.Thread(target=lambda: heard.append(notice.wait(BOUND_SECONDS))) for _ in range(4)]
    threads += [threading.Thread(target=asyncio.run, args=(awaits(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert not notice.is_set() and not notice.wait(0.01)
    tell(notice)
    tell(notice)
    for thread in threads:
        thread.join(BOUND_SECONDS)
    assert sorted(map(str, heard)) == ["True"] * 4 + ["awaited"] * 2
    assert notice.is_set() and notice.wait() and notice.wait(math.inf)
    asyncio.run(awaits())
    assert select.select([notice], [], [], 0)[0] == [notice]


def test_a_fork_hears_what_its_parent_was_told() -> None:
    """A fork that waits is woken by its parent's notice: the descriptor is shared, though the memory is not."""
    program = (
        "import os\n"
        "from interlock import Notice\n"
        "notice = Notice()\n"
        "notice.fileno()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if notice.wait(20) and notice.is_set() else 1)\n"
        "notice.tell()\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=BOUND_SECONDS).returncode == 0


def test_to_tell_never_waits() -> None:
    """A write to a notice never waits, also if no process reads or holds the pipe."""
    hears, tells = pipe()
    for _ in range(100_000):
        write(tells)
    assert Notice(hears).is_set()
    os.close(hears)
    write(tells)
    os.close(tells)


def test_the_end_of_control_is_heard_as_well() -> None:
    """A notice is set when the other end is gone, since no control is left to work for."""
    hears, tells = pipe()
    notice = Notice(hears)
    os.close(tells)
    assert notice.is_set()
    os.close(hears)


def test_a_descriptor_that_a_tool_has_closed_says_nothing() -> None:
    """A tool that closes a descriptor it does not know loses the notice, and hears nothing false."""
    hears, tells = pipe()
    notice = Notice(hears)
    os.close(hears)
    assert not notice.is_set()
    os.close(tells)


@on_each_driver
def test_stops_that_were_heard_leave_no_descriptor(driver: str, tmp_path: Path) -> None:
    """Control's ends of the notices of workers and hosts are closed with them. (A spare has some of its own.)"""

    async def main() -> None:
        async with opened(driver) as control:
            for number in range(3 + 10):
                await stopped(control, "polls" if number % 2 else "ignores", tmp_path / f"notes-{number}")
                if number == 2:
                    first = len(os.listdir("/proc/self/fd"))
            await until(lambda: len(os.listdir("/proc/self/fd")) < first + 10)

    asyncio.run(main())


def test_no_descriptor_of_a_run_is_left() -> None:
    """An inline notice that was asked for in every way is closed with its run."""
    seen: list[Notice] = []

    async def agent(run: Run, message: Message) -> None:
        notice = stopping()
        notice.fileno()
        seen[:] = [notice]
        await asyncio.gather(asyncio.to_thread(notice.wait, 0.001), return_exceptions=True)

    async def main() -> None:
        async with open_control(agent) as control:
            counts = []
            for _ in range(8):
                sent = await control.send("s", "go")
                await control.wait(sent.run_id, drained=True)
                assert seen[0].is_set()
                counts.append(len(os.listdir("/proc/self/fd")))
            # A leak would be a descriptor for each run; one more or less may be another thread's of this process.
            assert counts[-1] <= counts[2] + 2, counts

    asyncio.run(main())
