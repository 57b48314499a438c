"""Synchronous tools of an inline agent: each in a worker process that is ended exactly, wherever its tool is."""

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from interlock import (
    BadInput,
    Control,
    Denied,
    Drain,
    Ending,
    Message,
    QuestionState,
    Run,
    ToolState,
    open_control,
    tool,
)
from interlock.agent.tool import ToolFailed
from interlock.core.events import QuestionData, Tool

from .scene import log_of, swallowed
from .test_spawn import BOUND_SECONDS, at_each_grade, confined, descriptors, does, pid_in, there, until

# Tools. They live at the top of a module, where a worker finds them.


class Odd(Exception):
    """An error of our own."""


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def everything() -> dict[str, Any]:
    """Return plain values of every kind."""
    return {"text": "grüße", "number": 1.5, "none": None, "list": [1, True], "inner": {"a": "b"}}


def raises(kind: str) -> None:
    """Raise something."""
    raise {"value": ValueError("no"), "key": KeyError("k"), "odd": Odd("mine"), "exit": SystemExit(3)}[kind]


def stops_iterating() -> None:
    """Raise what a future cannot carry."""
    raise StopIteration("x")


def killed() -> None:
    """Be killed, as by a machine that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_answer() -> object:
    """Return what cannot leave the process."""
    return object()


def prints() -> str:
    """Write to the output."""
    print("printed by a tool")
    sys.stdout.flush()
    os.system("echo printed by a shell")
    return "done"


def reads() -> list[str]:
    """Read the input, here and in a program."""
    return [sys.stdin.read(), subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout]


def catastrophe(at: str) -> None:
    """Start a shell that hides in a session of its own, fork, then get lost in a C call that hears no signal."""
    subprocess.Popen(["setsid", "sh", "-c", f"trap '' TERM HUP; echo $$ > {at}/child; while :; do sleep 0.05; done"])
    if os.fork() == 0:
        Path(at, "fork").write_text(str(os.getpid()))
        while True:
            time.sleep(1)
    Path(at, "worker").write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 64 + "b")


def dies_beside_a_child(how: str) -> None:
    """Exit at once, while something it started lives on with all it inherited."""
    if how == "fork":
        if os.fork() == 0:
            time.sleep(600)
    else:
        subprocess.Popen(["sleep", "600"])
    os._exit(3)


def meets(at: str, mine: str, other: str) -> int:
    """Wait for another tool that runs at the same time."""
    Path(at, mine).write_text("here")
    while not Path(at, other).exists():
        time.sleep(0.002)
    return os.getpid()


@tool(approval="ask")
def dangerous(at: str) -> str:
    """Leave a trace."""
    Path(at).write_text("done")
    return "done"


# Results


def test_plain_values() -> None:
    """Synchronous tools run in one other process; what they return comes back as plain values, four megabytes too."""
    text = "x" * 4_000_000

    async def work(run: Run) -> list[Any]:
        values = [await run.call(add, a=2, b=3), await run.call(everything), await run.call(textwrap.dedent, text=text)]
        return [*values, await run.call(os.getpid), await run.call(os.getpid)]

    *values, first, again = asyncio.run(does(work))
    assert values == [5, everything(), text]
    assert first == again != os.getpid() and not there(first)


def test_errors() -> None:
    """Python's own errors come back as themselves, others by name; a tool that exits does not end its worker."""

    async def work(run: Run) -> list[Any]:
        errors: list[Any] = [await swallowed(run.call(raises, kind=kind)) for kind in ("value", "key", "odd", "exit")]
        errors.append(await swallowed(run.call(stops_iterating)))
        errors.append(await swallowed(run.call(no_answer)))
        return [*errors, await run.call(add, a=1, b=1)]

    value, key, odd, left, iteration, no, after = asyncio.run(does(work))
    assert (type(value), str(value)) == (ValueError, "no")
    assert (type(key), key.args) == (KeyError, ("k",))
    assert type(odd) is ToolFailed and str(odd) == "Odd: mine"
    assert isinstance(left, Exception) and "SystemExit" in str(left)
    assert isinstance(iteration, Exception) and "StopIteration" in str(iteration)
    assert type(no) is BadInput and "plain values" in str(no)
    assert after == 2


def test_what_cannot_be_sent() -> None:
    """A tool or argument that cannot leave this process is BadInput that names `thread=True`; nothing is recorded."""

    def local(n: int) -> int:
        return n

    async def main() -> None:
        errors: list[BaseException | None] = []

        async def agent(run: Run, message: Message) -> None:
            errors.append(await swallowed(run.call(local, n=1)))
            errors.append(await swallowed(run.call(lambda: 1)))
            errors.append(await swallowed(run.batch([(add, {"a": 1, "b": 1}), (local, {"n": 1})])))

        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            assert (await control.wait(sent.run_id, drained=True)).ending is Ending.COMPLETED
            assert [type(error) for error in errors] == [BadInput] * 3
            assert all("thread=True" in str(error) for error in errors)
            assert not [event for event in await log_of(control, "s") if isinstance(event.data, Tool)]
            assert control._processes.machine is None

    asyncio.run(main())


def test_what_a_tool_prints_and_reads(capfd: pytest.CaptureFixture[str]) -> None:
    """A tool's prints go to the error output; the tool, and a program it starts, finds its input ended at once."""

    async def work(run: Run) -> Any:
        assert await run.call(prints) == "done"
        async with asyncio.timeout(BOUND_SECONDS):
            return await run.call(reads)

    read = asyncio.run(does(work))
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed by a tool" in err and "printed by a shell" in err
    assert read == ["", ""]


# How it dies


@at_each_grade
def test_a_stop_inside_a_c_call(grade: None, tmp_path: Path) -> None:
    """A stop ends a tool inside a C call at once, with what it started and forked, and the receipt names the tool."""

    async def agent(run: Run, message: Message) -> None:
        await run.call(catastrophe, at=str(tmp_path))

    async def main() -> None:
        async with open_control(agent, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            pids = [await pid_in(tmp_path / name) for name in ("worker", "child", "fork")]
            async with asyncio.timeout(BOUND_SECONDS):  # the call itself would take for ever
                assert (await control.stop(session="s")).aborted
                await control.wait(sent.run_id, drained=True)
            assert [there(pid) for pid in pids] == [False] * 3
            receipt = await control.receipt(sent.run_id)
            assert [(each.name, each.state) for each in receipt.tools] == [("catastrophe", ToolState.INTERRUPTED)]
            assert receipt.drain is Drain.OBSERVED and receipt.processes.ended >= 3
            assert receipt.grade == (grade or (await control._processes.ready()).grade)

    asyncio.run(main())


def test_the_agent_s_own_timeout(tmp_path: Path) -> None:
    """A timeout of the agent's own ends that worker with what its tool started; another, and the run, go on."""

    async def agent(run: Run, message: Message) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * BOUND_SECONDS) as bound:
                call = asyncio.ensure_future(run.call(catastrophe, at=str(tmp_path)))
                pids.extend([await pid_in(tmp_path / name) for name in ("worker", "child", "fork")])
                bound.reschedule(0)
                await call
        await until(lambda: not any(there(pid) for pid in pids))
        return str(await run.call(add, a=20, b=22))

    pids: list[int] = []

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "42"), outcome.error
            states = [event.data.state for event in await log_of(control, "s") if isinstance(event.data, Tool)]
            assert ToolState.INTERRUPTED in states and states[-1] is ToolState.FINISHED

    asyncio.run(main())


def test_a_worker_that_dies() -> None:
    """A worker that exits, crashes or is killed fails its call with an ordinary error; the next call has a new one."""

    async def work(run: Run) -> list[Any]:
        first = await run.call(os.getpid)
        errors: list[Any] = [
            await swallowed(run.call(os._exit, status=3)),
            await swallowed(run.call(ctypes.string_at, ptr=0)),
            await swallowed(run.call(killed)),
        ]
        return [first, errors, await run.call(os.getpid)]

    first, errors, last = asyncio.run(does(work))
    assert all(type(error) is ToolFailed and "died" in str(error) for error in errors), errors
    assert first != last


@pytest.mark.parametrize("how", ["program", "fork"])
def test_a_worker_that_dies_beside_a_child(how: str) -> None:
    """A call whose worker died fails at once, though a child of the tool lives on and holds all it inherited."""

    async def work(run: Run) -> Any:
        async with asyncio.timeout(BOUND_SECONDS):
            error = await swallowed(run.call(dies_beside_a_child, how=how))
        return error, await run.call(add, a=1, b=1)

    error, after = asyncio.run(does(work))
    assert type(error) is ToolFailed, repr(error)
    assert after == 2


# Which worker


def test_a_warm_spare() -> None:
    """A worker serves one run and dies with it; the next has the spare that was kept warm; closing leaves nothing."""

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(os.getpid))

    async def main() -> None:
        await asyncio.to_thread(int)
        before = descriptors()
        async with open_control(agent) as control:
            pids = []
            for _ in range(2):
                workers = control._processes._workers  # type: ignore[attr-defined]
                spare = workers._spare
                sent = await control.send("s", "go")
                pids.append(int((await control.wait(sent.run_id, drained=True)).text))
                assert not there(pids[-1])
                if spare is not None:
                    assert spare.containment.name == f"a worker of {sent.run_id}.g{2 * len(pids) - 1}"
                await until(lambda workers=workers: workers._spare is not None)  # type: ignore[misc]
            assert pids[0] != pids[1]
            assert await control.processes() == []
        await until(lambda: descriptors() <= before)

    asyncio.run(main())


def test_a_batch_side_by_side(tmp_path: Path) -> None:
    """Synchronous tools of a parallel batch run at the same time, each in a worker of its own, results in order."""

    async def work(run: Run) -> list[Any]:
        one = {"at": str(tmp_path), "mine": "a", "other": "b"}
        two = {"at": str(tmp_path), "mine": "b", "other": "a"}
        results = await run.batch([(meets, one), (meets, two), (raises, {"kind": "value"})], parallel=True)
        return [(each.name, each.state, each.value, each.error) for each in results]

    first, second, third = asyncio.run(does(work))
    assert [each[:2] for each in (first, second)] == [("meets", ToolState.FINISHED)] * 2
    assert first[2] != second[2]
    assert third[:2] == ("raises", ToolState.FAILED) and isinstance(third[3], ValueError)


# The gate


def test_the_gate_still_applies(tmp_path: Path) -> None:
    """A synchronous tool that must be allowed begins only when a person says so, and never when one says no."""
    traces = [tmp_path / "denied", tmp_path / "allowed"]

    async def agent(run: Run, message: Message) -> None:
        with pytest.raises(Denied):
            await run.call(dangerous, at=str(traces[0]))
        await run.call(dangerous, at=str(traces[1]))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            for answer, trace in zip((False, True), traces, strict=True):
                question = await _open_question(control)
                assert not trace.exists()
                await control.answer(question, answer)
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.COMPLETED, outcome.error
        assert [trace.exists() for trace in traces] == [False, True]

    asyncio.run(main())


async def _open_question(control: Control) -> str:
    """Wait for a question that nobody has answered."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            asked = [event.data for event in await log_of(control, "s") if isinstance(event.data, QuestionData)]
            if asked and asked[-1].state is QuestionState.OPEN:
                return asked[-1].question_id
            await asyncio.sleep(0.002)


def test_a_stop_before_the_worker_is_there(tmp_path: Path) -> None:
    """A stop right after the call's start leaves no effect: the tool never began, and no process is left."""
    trace = tmp_path / "trace"

    async def agent(run: Run, message: Message) -> None:
        await run.call(_touch, at=str(trace))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            async with asyncio.timeout(BOUND_SECONDS):
                while "running" not in [
                    event.data.state for event in await log_of(control, "s") if isinstance(event.data, Tool)
                ]:
                    await asyncio.sleep(0)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            late = trace.exists()
            assert await control.processes() == []
        assert trace.exists() == late  # nothing came after `drained`

    asyncio.run(main())


def _touch(at: str) -> None:
    Path(at).write_text("x")


# Scripts


SCRIPT = """
import asyncio
from interlock import open_control

def double(n: int) -> int:
    return 2 * n

async def agent(run, message):
    return str(await run.call(double, n=21))

async def main():
    async with open_control(agent) as control:
        sent = await control.send("s", "go")
        outcome = await control.wait(sent.run_id, drained=True)
        print(outcome.ending, outcome.text, outcome.error)

{guard}asyncio.run(main())
"""


def _script(tmp_path: Path, guard: str) -> "subprocess.CompletedProcess[str]":
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT.format(guard=guard))
    command = [sys.executable, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=4 * BOUND_SECONDS, check=False)


def test_a_tool_of_a_script(tmp_path: Path) -> None:
    """A tool defined in the script that was started is found again by its worker."""
    done = _script(tmp_path, 'if __name__ == "__main__":\n    ')
    assert (done.returncode, done.stdout) == (0, "completed 42 None\n"), done.stderr


def test_a_script_without_the_guard(tmp_path: Path) -> None:
    """A script that would open control again in its worker is told what to write instead, once, and ends."""
    done = _script(tmp_path, "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("failed") and "__main__" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_tool_that_was_typed_in() -> None:
    """A tool of a program given on the command line cannot be found again, and is refused with advice."""
    command = [sys.executable, "-c", SCRIPT.format(guard="")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * BOUND_SECONDS, check=False)
    assert done.stdout.startswith("failed") and "thread=True" in done.stdout, done.stderr
