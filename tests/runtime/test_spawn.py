"""Processes of a run, through the whole control: what they give, how they end, and that they are gone with the run."""

import asyncio
import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Confinement,
    Control,
    Drain,
    Effect,
    Ending,
    Event,
    EventKind,
    Finished,
    Grade,
    Message,
    Run,
    Running,
    Settings,
    SpawnFailed,
    Stale,
    open_control,
)
from interlock.core.events import ProcessData
from interlock.runtime.handlers import Acting

from .scene import QUICK, echoes, idles, kinds, log_of, put_forward, started, swallowed, told

BOUND_SECONDS = 30.0
DEADLINE = 300.0  # seconds for a run or a process, on the loop's clock, which is put forward
GRADES = [pytest.param(None, id="as the machine gives"), pytest.param(Grade.KEEPER, id="keeper")]
at_each_grade = pytest.mark.parametrize("grade", GRADES)

DEAF = "trap '' TERM; echo $$ > {at}; while :; do sleep 0.05; done"
"""A shell that ignores TERM and writes its pid to a file."""
LINGERS = "trap '' TERM; echo $$ > {at}; while [ ! -e {go} ]; do sleep 0.01; done"
"""A shell that ignores TERM, and goes when a file is there."""
TREE = "setsid sh -c 'trap \"\" TERM HUP; echo $$ > {at}; while :; do sleep 0.05; done' & "
"""A child in a session of its own that ignores TERM, and writes its pid to a file."""


async def until(seen: Callable[[], Any], seconds: float = BOUND_SECONDS) -> None:
    """Wait until something was seen."""
    async with asyncio.timeout(seconds):
        while not seen():
            await asyncio.sleep(0.002)


async def pid_in(path: Path) -> int:
    """Wait for a process to write down its pid."""
    await until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def there(pid: int | None) -> bool:
    """True while a process exists, dead and not reaped included."""
    assert pid is not None
    return Path(f"/proc/{pid}").exists()


def descriptors() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


async def does(work: Callable[[Run], Awaitable[Any]], **options: Any) -> Any:
    """Have an agent do something; return its result once nothing of the run is left."""
    came: list[Any] = []

    async def agent(run: Run, message: Message) -> None:
        came.append(await work(run))

    async with open_control(agent, **options) as control:
        sent = await control.send("s", "go")
        async with asyncio.timeout(DEADLINE + 3 * BOUND_SECONDS):
            outcome = await control.wait(sent.run_id, drained=True)
        assert outcome.ending is Ending.COMPLETED, outcome.error
    return came[0]


def confined(grade: Grade | None) -> Confinement:
    """Ask for a grade."""
    return Confinement(grade=grade)


# Results


@at_each_grade
def test_status_and_output(grade: Grade | None) -> None:
    """A process gives its exit status, what it wrote to both outputs in order, and whether it went well."""

    async def work(run: Run) -> tuple[Finished, ...]:
        return (
            await run.spawn("sh", "-c", "echo out; echo err >&2; exit 3"),
            await run.spawn("true"),
            await run.spawn("sh", "-c", "kill -9 $$"),
        )

    told, fine, killed = asyncio.run(does(work, confinement=confined(grade)))
    assert (told.status, told.output, told.ok, told.left_out, told.timed_out) == (3, "out\nerr\n", False, 0, False)
    assert (fine.status, fine.data, fine.ok) == (0, b"", True)
    assert (killed.status, killed.ok) == (-9, False)


def test_output_is_bytes_and_text() -> None:
    """`data` holds the bytes as they were written, `output` text that any wire can hold."""

    async def work(run: Run) -> Finished:
        return await run.spawn("printf", r"a\377b\n")

    finished = asyncio.run(does(work))
    assert (finished.data, finished.output) == (b"a\xffb\n", "a\ufffdb\n")


@pytest.mark.parametrize(
    "argv",
    [("seq", "20000"), ("printf", "%3000s", "x"), ("sh", "-c", "for i in $(seq 300); do echo $i; done")],
    ids=["large pieces", "one piece", "small pieces"],
)
def test_output_is_bounded(argv: tuple[str, ...]) -> None:
    """Output beyond the bound keeps its beginning and its end, with a line between that counts the rest."""

    async def work(run: Run) -> Finished:
        return await run.spawn(*argv)

    whole = subprocess.run(argv, capture_output=True, check=True).stdout
    finished = asyncio.run(does(work, confinement=Confinement(output_bytes=100)))
    left_out = len(whole) - 100
    assert finished.left_out == left_out
    assert finished.data == whole[:50] + f"\n[{left_out} bytes left out]\n".encode() + whole[-50:]


def test_output_that_fits_is_whole() -> None:
    """Output of exactly the size that is kept has no marker."""

    async def work(run: Run) -> Finished:
        return await run.spawn("printf", "%100s", "x")

    finished = asyncio.run(does(work, confinement=Confinement(output_bytes=100)))
    assert (len(finished.data), finished.left_out) == (100, 0)


def test_directory_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process runs where it is told, with an allow-list of our environment and what is added, not what is removed."""
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    monkeypatch.setenv("LANG", "C.UTF-8")

    async def work(run: Run) -> Finished:
        return await run.spawn("sh", "-c", "pwd; env", cwd=tmp_path, env={"ADDED": "more", "LANG": None})

    lines = asyncio.run(does(work)).output.splitlines()
    names = {line.partition("=")[0] for line in lines[1:]}
    assert lines[0] == str(tmp_path)
    assert "ADDED=more" in lines and "PATH" in names
    assert not names & {"SECRET_TOKEN", "LANG"}


def test_what_it_reads() -> None:
    """A process reads the text or bytes it is given, however much, and otherwise finds the end of its input at once."""
    much = os.urandom(300_000)

    async def work(run: Run) -> list[bytes]:
        given = [await run.spawn("cat", input="grüße"), await run.spawn("cat", input=much), await run.spawn("cat")]
        return [each.data for each in given]

    assert asyncio.run(does(work)) == ["grüße".encode(), much, b""]


def test_one_that_does_not_read_its_input() -> None:
    """A process that exits without reading its input ends like any other."""

    async def work(run: Run) -> Finished:
        return await run.spawn("sh", "-c", "exec <&-; echo done", input="x" * 300_000)

    assert asyncio.run(does(work)).output == "done\n"


def test_terminal() -> None:
    """A process with `pty` has a terminal of its own, and reads its input from it."""

    async def work(run: Run) -> tuple[Finished, Finished]:
        return await run.spawn("tty", pty=True), await run.spawn("head", "-1", pty=True, input="hello\n")

    terminal, echoed = asyncio.run(does(work))
    assert terminal.ok and terminal.output.startswith("/dev/pts/")
    assert echoed.output.count("hello") == 2  # as typed, and as read


def keeper_of(run: Run, running: Running) -> int:
    """Return the keeper of a process."""
    acting: Acting = run._port._acting  # type: ignore[attr-defined]
    return acting.process(running._number).containment.keeper  # type: ignore[attr-defined,no-any-return]


def test_a_busy_loop_loses_no_exit() -> None:
    """Processes that exit, and are reaped, while the embedder's loop is busy keep their own status."""

    async def work(run: Run) -> list[int]:
        asked = [run.spawn("sh", "-c", f"sleep 0.0{n}; exit {n}", background=True) for n in range(1, 6)]
        running = [await each for each in asked]
        keepers = [keeper_of(run, each) for each in running]
        until_then = time.monotonic() + BOUND_SECONDS
        while any(there(pid) for pid in keepers) and time.monotonic() < until_then:
            time.sleep(0.005)  # not awaited: the loop is busy
        return [(await each.wait()).status for each in running]

    assert asyncio.run(does(work)) == [1, 2, 3, 4, 5]


# Lines


@at_each_grade
def test_lines_as_they_come(grade: Grade | None, tmp_path: Path) -> None:
    """In a block lines come one by one; leaving it ends the process with what it started, seen to be gone by then."""
    at = tmp_path / "child"

    async def work(run: Run) -> tuple[list[str], list[bool], int | None]:
        lines = []
        script = TREE.format(at=at) + "echo one; echo two; echo three; exec sleep 100"
        async with run.spawn("sh", "-c", script) as process:
            async for line in process:
                lines.append(line)
                if line == "two":
                    child = await pid_in(at)
                    break
        return lines, [there(process.pid), there(child)], process.status

    assert asyncio.run(does(work, confinement=confined(grade))) == (["one", "two"], [False, False], -9)


def test_all_lines_to_the_end() -> None:
    """Lines end with the process, the last one without an end too, though a child still holds the pipe."""

    async def work(run: Run) -> tuple[list[str], int | None]:
        async with run.spawn("sh", "-c", "sleep 100 & printf 'a\\r\\n\\nb'; exit 4") as process:
            lines = [line async for line in process]
        return lines, process.status

    assert asyncio.run(does(work)) == (["a", "", "b"], 4)


def test_a_line_longer_than_what_is_kept() -> None:
    """A line that is longer than the bound on output, and comes in pieces, is read all the same."""

    async def work(run: Run) -> list[int]:
        script = "for i in 1 2 3 4; do printf %60s x; sleep 0.02; done; echo; echo y"
        async with run.spawn("sh", "-c", script) as process, asyncio.timeout(BOUND_SECONDS):
            return [len(line) async for line in process]

    assert sum(asyncio.run(does(work, confinement=Confinement(output_bytes=100)))) == 4 * 60 + 1


def test_an_error_in_the_block() -> None:
    """A block that is left by an error ends the process, and the error is what the agent sees."""

    async def work(run: Run) -> tuple[str, bool]:
        try:
            async with run.spawn("sleep", "100") as process:
                raise LookupError("mine")
        except LookupError as error:
            return str(error), there(process.pid)

    assert asyncio.run(does(work)) == ("mine", False)


def test_lines_need_a_block() -> None:
    """Reading lines of a process that is not streamed, and a block around a detached one, are refused with advice."""

    async def work(run: Run) -> list[BaseException | None]:
        running = await run.spawn("sleep", "100", background=True)

        async def read() -> None:
            async for _ in running:
                pass

        async def block() -> None:
            async with run.spawn("true", detached=True):
                pass

        return [await swallowed(read()), await swallowed(block())]

    errors = asyncio.run(does(work))
    assert [type(error) for error in errors] == [BadInput, BadInput]
    assert "async with" in str(errors[0]) and "await it" in str(errors[1])


# Time


@at_each_grade
def test_timeout(grade: Grade | None, tmp_path: Path) -> None:
    """A timeout returns what was written so far, marked, with everything the process started gone; the run goes on."""
    at, said = tmp_path / "child", tmp_path / "said"

    async def work(run: Run) -> tuple[Finished, bool, Finished]:
        script = TREE.format(at=at) + f"while [ ! -s {at} ]; do :; done; echo partial; : > {said}; exec sleep 100"
        asked = asyncio.ensure_future(run.spawn("sh", "-c", script, timeout=DEADLINE))
        await until(said.exists)
        put_forward(DEADLINE)
        return await asked, there(await pid_in(at)), await run.spawn("echo", "on")

    finished, left, after = asyncio.run(does(work, confinement=confined(grade)))
    assert (finished.timed_out, finished.ok, finished.output) == (True, False, "partial\n")
    assert not left
    assert (after.output, after.timed_out) == ("on\n", False)


def test_a_timeout_that_is_not_needed() -> None:
    """A process that is done before its timeout is not marked, and 0 means none."""

    async def work(run: Run) -> list[Finished]:
        return [await run.spawn("echo", "x", timeout=30), await run.spawn("sleep", "0.01", timeout=0)]

    assert [(each.ok, each.timed_out) for each in asyncio.run(does(work))] == [(True, False), (True, False)]


@at_each_grade
def test_grace(grade: Grade | None, tmp_path: Path) -> None:
    """With a grace the process is sent TERM and may clean up; without, it is simply ended."""
    script = "trap 'echo bye > {at}; exit 5' TERM; echo r; while :; do sleep 0.01; done"

    async def work(run: Run) -> list[int | None]:
        statuses = []
        for name, grace in (("polite", 5.0), ("not", 0.0)):
            async with run.spawn("sh", "-c", script.format(at=tmp_path / name), grace=grace) as process:
                async for _ in process:
                    break
            statuses.append(process.status)
        return statuses

    assert asyncio.run(does(work, confinement=confined(grade))) == [5, -9]
    assert [(tmp_path / name).exists() for name in ("polite", "not")] == [True, False]


def test_a_grace_longer_than_the_drain(tmp_path: Path) -> None:
    """Leaving the block of a process waits for its whole grace, also one longer than a drain may take."""
    at = tmp_path / "pid"

    async def work(run: Run) -> bool:
        async with run.spawn("sh", "-c", DEAF.format(at=at), grace=0.4) as process:
            await pid_in(at)
        return there(process.pid)

    assert asyncio.run(does(work, settings=Settings(drain_seconds=0.1, grace_seconds=0.05))) is False


def test_the_agent_s_own_timeout(tmp_path: Path) -> None:
    """A timeout of the agent's own around `await run.spawn` ends that process alone, and the run goes on."""
    at, other = tmp_path / "pid", tmp_path / "other"

    async def work(run: Run) -> tuple[bool, str]:
        beside = asyncio.create_task(swallowed(run.spawn("sh", "-c", DEAF.format(at=other))))
        kept = await pid_in(other)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as bound:
                asked = asyncio.ensure_future(run.spawn("sh", "-c", DEAF.format(at=at)))
                ended = await pid_in(at)
                bound.reschedule(0)
                await asked
        await until(lambda: not there(ended))
        on = await run.spawn("echo", "on")
        still = there(kept)
        beside.cancel()
        return still, on.output

    assert asyncio.run(does(work)) == (True, "on\n")


# Wrong from the start


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ((), {}),
        (("",), {}),
        (("echo", 1), {}),
        ((["echo", "x"],), {}),
        ((b"echo",), {}),
        (("echo", "a\0b"), {}),
        (("true",), {"cwd": 5}),
        (("true",), {"cwd": "a\0b"}),
        (("true",), {"env": {"": "x"}}),
        (("true",), {"env": {"A=B": "x"}}),
        (("true",), {"env": {"A": "x\0"}}),
        (("true",), {"env": {"A": 1}}),
        (("true",), {"env": {1: "x"}}),
        (("true",), {"env": "A=B"}),
        (("true",), {"input": 5}),
        (("true",), {"input": "\ud800"}),
        (("true",), {"timeout": -1}),
        (("true",), {"timeout": "soon"}),
        (("true",), {"grace": -0.1}),
        (("true",), {"grace": float("nan")}),
        (("true",), {"name": ""}),
        (("true",), {"name": 7}),
    ],
    ids=repr,
)
def test_bad_input(argv: tuple[Any, ...], options: dict[str, Any]) -> None:
    """An argument that cannot be meant is BadInput, and nothing happens: not even a helper is started."""

    async def main() -> None:
        errors: list[BaseException] = []

        async def agent(run: Run, message: Message) -> None:
            try:
                await run.spawn(*argv, **options)
            except Exception as error:
                errors.append(error)

        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            assert (await control.wait(sent.run_id, drained=True)).ending is Ending.COMPLETED
            assert [type(error) for error in errors] == [BadInput], errors
            assert control._processes.machine is None
            assert "process" not in kinds(await log_of(control, "s"))

    asyncio.run(main())


@at_each_grade
def test_one_that_cannot_be_started(grade: Grade | None, tmp_path: Path) -> None:
    """A program that cannot be started is an ordinary error with the system's own number; the run goes on."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    plain.chmod(0o755)
    (tmp_path / "secret").write_text("not executable")
    before = descriptors()

    async def work(run: Run) -> list[Any]:
        came: list[Any] = []
        for argv, options in (
            (("nonesuch-program",), {}),
            ((str(tmp_path / "secret"),), {}),
            ((str(plain),), {}),
            (("true",), {"cwd": str(tmp_path / "nowhere")}),
            (("nonesuch-program",), {"background": True}),
            (("nonesuch-program",), {"timeout": 5.0}),
        ):
            try:
                await run.spawn(*argv, **options)  # type: ignore[call-overload]
            except SpawnFailed as error:
                came.append(error.errno)
        return [*came, (await run.spawn("echo", "on")).output]

    came = asyncio.run(does(work, confinement=confined(grade)))
    assert came == [errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOENT, errno.ENOENT, errno.ENOENT, "on\n"]
    assert descriptors() <= before


def test_a_failure_that_nobody_catches() -> None:
    """A SpawnFailed that the agent lets pass fails the run, with a text that names the program."""

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("nonesuch-program")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.FAILED
            assert "nonesuch-program" in (outcome.error or "")

    asyncio.run(main())


# Gone with the run


async def _stop(control: Control, run: str) -> None:
    assert (await control.stop(run=run)).aborted


async def _take_over(control: Control, run: str) -> None:
    await control.send("s", "echo")


async def _time_out(control: Control, run: str) -> None:
    put_forward(DEADLINE)


@pytest.mark.parametrize(
    ("end", "ending", "deadline"),
    [(_stop, Ending.STOPPED, None), (_take_over, Ending.SUPERSEDED, None), (_time_out, Ending.TIMED_OUT, DEADLINE)],
    ids=["stop", "takeover", "deadline"],
)
@at_each_grade
def test_every_early_end(
    grade: Grade | None, end: Callable[..., Awaitable[None]], ending: Ending, deadline: float | None, tmp_path: Path
) -> None:
    """However a run ends early, and though its agent swallows every cancel, what it started is gone at `drained`."""
    at, child = tmp_path / "pid", tmp_path / "child"
    refused: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "echo":
            return await echoes(run, message)
        await swallowed(run.spawn("sh", "-c", TREE.format(at=child) + DEAF.format(at=at)))
        refused.append(await swallowed(run.spawn("touch", str(tmp_path / "late"))))
        return await idles(run, message)

    async def main() -> None:
        settings = Settings(grace_seconds=0.2, drain_seconds=BOUND_SECONDS)
        async with open_control(agent, settings=settings, deadline=deadline, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            pids = [await pid_in(at), await pid_in(child)]
            await end(control, sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert [there(pid) for pid in pids] == [False, False]
            assert (outcome.ending, outcome.drained) == (ending, True)
            receipt = await control.receipt(sent.run_id)
            assert receipt.unconfirmed == (f"agent of {sent.run_id} (never resumed)",), "its processes were seen to end"
            machine = await control._processes.ready()
            assert receipt.grade == (grade or machine.grade)
            assert receipt.unseen and "daemon" in receipt.unseen[0]
            assert receipt.processes.ended >= 2 and receipt.processes.stuck == receipt.processes.detached == 0
            assert [type(error) for error in refused] == [Stale]
            assert receipt.refused[Effect.SPAWN] >= 1
            assert await control.processes() == []
        assert not (tmp_path / "late").exists()

    asyncio.run(main())


@at_each_grade
def test_closing_ends_processes(grade: Grade | None, tmp_path: Path) -> None:
    """Leaving control's block ends what runs, the helper and keepers too, and gives every descriptor back."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", TREE.format(at=at) + "sleep 100")

    async def main() -> None:
        await asyncio.to_thread(int)  # the loop's own threads are there
        before = descriptors()
        async with open_control(agent, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            helper = control._processes._helper.process.pid  # type: ignore[attr-defined]
        assert (await control.wait(sent.run_id)).ending is Ending.SHUTDOWN
        assert not there(pid)
        assert not there(helper)
        await until(lambda: descriptors() <= before)

    asyncio.run(main())


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_closing_while_the_helper_starts(steps: int) -> None:
    """Control that closes while the helper is on its way leaves no task, child or descriptor, and no complaint."""

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sleep", "100")

    async def main() -> None:
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.to_thread(int)
        before, children = descriptors(), set(_children())
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            await started(control, sent.run_id)
            for _ in range(steps):
                await asyncio.sleep(0)
        assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        await until(lambda: set(_children()) <= children)  # (a thread reaps it)
        await until(lambda: descriptors() <= before)
        assert problems == []

    asyncio.run(main())


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()]


@at_each_grade
def test_a_background_child_of_a_process(grade: Grade | None, tmp_path: Path) -> None:
    """A background child of a finished process lives until the run ends, and is gone at `drained`."""
    at = tmp_path / "child"
    go_on = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        finished = await run.spawn("sh", "-c", TREE.format(at=at) + "echo left")
        assert finished.output == "left\n"
        await run.say("left")
        await go_on.wait()

    async def main() -> None:
        async with open_control(agent, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            await told(control, sent.run_id, EventKind.DELTA)
            assert there(pid)
            go_on.set()
            assert (await control.wait(sent.run_id, drained=True)).ending is Ending.COMPLETED
            assert not there(pid)
            receipt = await control.receipt(sent.run_id)
            assert receipt.processes.ended >= 1 and receipt.drain is Drain.OBSERVED

    asyncio.run(main())


@at_each_grade
def test_completion_ends_background_processes(grade: Grade | None, tmp_path: Path) -> None:
    """A background process runs beside its agent, and ends when the agent returns."""
    at = tmp_path / "pid"

    async def work(run: Run) -> tuple[int | None, bool, str]:
        running = await run.spawn("sh", "-c", "echo up; " + DEAF.format(at=at), background=True, name="server")
        pid = await pid_in(at)
        await until(lambda: running.output == "up\n")
        assert running.pid == pid and running.name == "server"
        return pid, running.running, (await run.spawn("echo", "beside")).output

    pid, ran, beside = asyncio.run(does(work, confinement=confined(grade)))
    assert ran and beside == "beside\n"
    assert not there(pid)


def test_a_background_process_by_its_handle() -> None:
    """A background process can be waited for, or stopped and then is gone, and its status tells which."""

    async def work(run: Run) -> tuple[Finished, int | None, bool, bool]:
        quick = await run.spawn("sh", "-c", "echo x; exit 2", background=True)
        slow = await run.spawn("sleep", "100", background=True)
        finished = await quick.wait()
        await slow.stop()
        return finished, slow.status, slow.running, there(slow.pid)

    finished, status, running, left = asyncio.run(does(work))
    assert (finished.status, finished.output) == (2, "x\n")
    assert (status, running, left) == (-9, False, False)


def test_children_fall_with_their_processes(tmp_path: Path) -> None:
    """A stop of the parent ends its child run's processes in the same fall, and the receipt counts them."""
    at = tmp_path / "pid"

    async def parent(run: Run, message: Message) -> None:
        await run.delegate("worker", "work")

    async def worker(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", DEAF.format(at=at))

    async def main() -> None:
        async with open_control(parent, agents={"worker": worker}) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            async with asyncio.timeout(BOUND_SECONDS):
                while [each.pid for each in await control.processes("s")] != [pid]:
                    # The process's keeper tells of it soon.
                    await asyncio.sleep(0.01)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            assert not there(pid)
            receipt = await control.receipt(sent.run_id)
            assert [run.outcome.ending for run in receipt.runs] == [Ending.STOPPED, Ending.PARENT_ENDED]
            assert receipt.processes.ended >= 1 and receipt.grade != "inline"

    asyncio.run(main())


@at_each_grade
def test_the_ack_does_not_wait_for_a_grace(grade: Grade | None, tmp_path: Path) -> None:
    """Race 127: a stop is acknowledged at once though a process uses up its grace; `drained` waits for it."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", DEAF.format(at=at), grace=1)

    async def main() -> None:
        async with open_control(agent, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            first = await control.stop(session="s")
            assert (first.drain, first.aborted) == (Drain.PENDING, True)
            assert there(pid)
            await control.wait(sent.run_id, drained=True)
            assert not there(pid)
            receipt = await control.receipt(sent.run_id)
            assert receipt.fence_to_drained_ms >= 1_000
            assert receipt.drain is Drain.OBSERVED and receipt.processes.ended >= 1

    asyncio.run(main())


def test_what_a_process_writes_after_the_stop_is_told_to_nobody(tmp_path: Path) -> None:
    """A process in its grace after a stop is listed, but its output is of a fallen run and told to nobody."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", f"trap 'echo LATE' TERM; echo early; {DEAF.format(at=at)[14:]}", grace=0.5)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            await pid_in(at)
            async with asyncio.timeout(BOUND_SECONDS):
                while [each.tail for each in await control.processes("s")] != ["early\n"]:
                    # Control reads the output soon.
                    await asyncio.sleep(0.002)
            await control.stop(session="s")
            seen = 0
            while listed := await control.processes("s"):
                assert [each.tail for each in listed] == [""]
                seen += 1
                await asyncio.sleep(0.02)
            assert seen, "it lived on for a while"
            await control.wait(sent.run_id, drained=True)

    asyncio.run(main())


def test_a_grace_in_a_fall_is_bounded(tmp_path: Path) -> None:
    """A process that asks for a longer grace than a drain may take is ended when the drain's time is over."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", DEAF.format(at=at), grace=3600)

    async def main() -> None:
        async with open_control(agent, settings=Settings(drain_seconds=0.3, grace_seconds=0.05)) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            await control.stop(session="s")
            async with asyncio.timeout(BOUND_SECONDS):
                await control.wait(sent.run_id, drained=True)
            await until(lambda: not there(pid))

    asyncio.run(main())


def test_a_busy_loop_loses_no_count(tmp_path: Path) -> None:
    """The receipt counts every process that was ended, also when control hears of all of them late and at once."""
    names = [str(n) for n in range(5)]
    keepers: list[int] = []

    async def agent(run: Run, message: Message) -> None:
        for name in names:
            running = await run.spawn("sh", "-c", f"echo $$ > {tmp_path / name}; exec sleep 100", background=True)
            keepers.append(keeper_of(run, running))
        await idles(run, message)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            for name in names:
                await pid_in(tmp_path / name)
            await until(lambda: len(keepers) == len(names))
            await control.stop(session="s")
            until_then = time.monotonic() + BOUND_SECONDS
            while any(there(pid) for pid in keepers) and time.monotonic() < until_then:
                time.sleep(0.005)  # not awaited: the loop is busy
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).processes.ended == len(names)

    asyncio.run(main())


def test_a_hold_is_freed_behind_processes(tmp_path: Path) -> None:
    """A named hold of a stopped run goes to the next only when the processes that worked under it are gone."""
    at, go = tmp_path / "pid", tmp_path / "go"
    found: list[bool] = []

    async def agent(run: Run, message: Message) -> None:
        async with run.hold("worktree"):
            if message.text == "second":
                found.append(there(int(at.read_text())))
                return
            await run.spawn("sh", "-c", LINGERS.format(at=at, go=go), grace=BOUND_SECONDS)

    async def main() -> None:
        async with open_control(agent, settings=Settings(drain_seconds=BOUND_SECONDS)) as control:
            await control.send("one", "first")
            pid = await pid_in(at)
            second = await control.send("two", "second")
            await control.stop(session="one")
            await asyncio.sleep(0.1)  # while the process is there
            assert there(pid) and found == []
            go.touch()
            await control.wait(second.run_id)
            assert found == [False]

    asyncio.run(main())


# Telling


def test_watchers_are_told_of_processes_and_the_end_of_their_output() -> None:
    """Watchers are told that a process runs, how it ended and what it wrote last, before the terminal event."""

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", "printf '%s%s' SEC RET; exit 7")
        await swallowed(run.spawn("nonesuch-program"))
        await run.spawn("sleep", "100", background=True, name="server")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            log = await log_of(control, "s")
            told = _told(log)
            assert [(each.state, each.status, each.name) for each in told] == [
                ("running", None, None),
                ("exited", 7, None),
                ("running", None, None),
                ("failed", None, None),
                ("running", None, "server"),
            ]
            assert (told[-1].background, told[-1].detached, told[-1].command) == (True, False, "sleep 100")
            assert told[1].pid is not None and told[3].pid is None
            assert [each.tail for each in told] == ["", "SECRET", "", "", ""]
            assert repr(log).count("SECRET") == 1, "nowhere else"
            assert kinds(log, sent.run_id)[-1] == "ended"

    asyncio.run(main())


def _told(log: list[Event]) -> list[ProcessData]:
    return [event.data for event in log if isinstance(event.data, ProcessData)]


def test_the_timeline_names_processes() -> None:
    """A run's timeline tells of its processes, and how they ended."""

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", "exit 7")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            moments = [each for each in await control.timeline(sent.run_id) if each.what == "process"]
            assert [each.state for each in moments] == ["running", "exited"]
            assert all("exit 7" in each.name for each in moments)

    asyncio.run(main())


def test_a_receipt_without_processes() -> None:
    """A run that started nothing has a receipt that says so, and no helper was needed."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.grade, receipt.unseen, receipt.processes.ended) == ("inline", (), 0)
            assert control._processes.machine is None

    asyncio.run(main())


# After the processes of the previous run


def test_the_first_spawn_waits_for_the_processes_before(tmp_path: Path) -> None:
    """The run that takes over speaks at once; its first process waits until the old ones are gone."""
    at, go = tmp_path / "pid", tmp_path / "go"
    seen: dict[str, bool] = {}

    def look(when: str) -> None:
        seen[when] = there(int(at.read_text()))

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "old":
            await run.spawn("sh", "-c", LINGERS.format(at=at, go=go), grace=BOUND_SECONDS)
        await run.say("hello")
        look("said")
        await run.spawn("true")
        look("spawned")
        return None

    async def main() -> None:
        async with open_control(agent, settings=Settings(drain_seconds=BOUND_SECONDS)) as control:
            await control.send("s", "old")
            await pid_in(at)
            new = await control.send("s", "new")
            await until(lambda: "said" in seen)
            await asyncio.sleep(0.1)  # while the old process is there
            assert seen == {"said": True}
            go.touch()
            await control.wait(new.run_id, drained=True)
            assert seen == {"said": True, "spawned": False}
            [running, _] = _told(await log_of(control, "s"))[-2:]
            assert running.beside == ()

    asyncio.run(main())


def test_a_child_waits_for_the_processes_before_its_parent(tmp_path: Path) -> None:
    """A process of a child run waits, as its parent's would, for those of the run that the parent took over from."""
    at = tmp_path / "pid"
    seen: list[bool] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text == "old":
            await run.spawn("sh", "-c", DEAF.format(at=at), grace=0.4)
        await run.delegate("worker", "work")

    async def worker(run: Run, message: Message) -> None:
        await run.spawn("true")
        seen.append(there(int(at.read_text())))

    async def main() -> None:
        async with open_control(agent, agents={"worker": worker}) as control:
            await control.send("s", "old")
            await pid_in(at)
            new = await control.send("s", "new")
            await control.wait(new.run_id, drained=True)
            assert seen == [False]

    asyncio.run(main())


def test_what_is_stuck_is_named_beside(tmp_path: Path) -> None:
    """A spawn goes on after its bound, and says so, if the old run's process cannot be seen gone."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", DEAF.format(at=at) if message.text == "old" else "true")

    async def main() -> None:
        async with open_control(agent, settings=QUICK, confinement=confined(Grade.KEEPER)) as control:
            old = await control.send("s", "old")
            pid = await pid_in(at)
            _hold_back(pid)
            try:
                new = await control.send("s", "new")
                async with asyncio.timeout(BOUND_SECONDS):
                    assert (await control.wait(new.run_id)).ending is Ending.COMPLETED
                    await control.wait(old.run_id, drained=True)
                beside = [each.beside for each in _told(await log_of(control, "s")) if each.state == "running"]
                assert beside[0] == () and beside[1]
                receipt = await control.receipt(old.run_id)
                assert receipt.drain is Drain.UNCONFIRMED and receipt.unconfirmed and receipt.processes.stuck >= 1
            finally:
                # The tracer must take note first; only then can the parent reap the process.
                os.waitpid(pid, _WALL)
            await until(lambda: not there(pid))

    asyncio.run(main())


_SEIZE, _WALL = 0x4206, 0x40000000


def _hold_back(pid: int) -> None:
    """Trace a process: after a KILL nobody can see it gone before this process has taken note."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_SEIZE, ctypes.c_long(pid), None, None) != 0:
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")


# Named


def test_foreground_processes_of_one_name() -> None:
    """Several processes of one name in the same instant replace each other, and the loop goes on turning."""
    script = """
import asyncio
from interlock import Message, Run, open_control

async def agent(run: Run, message: Message) -> str:
    asked = (run.spawn("sleep", "0.02", name="n") for _ in range(3))
    done = await asyncio.gather(*asked, return_exceptions=True)
    return " ".join("ended" if getattr(each, "status", -9) == -9 else str(each.status) for each in done)

async def main() -> None:
    async with open_control(agent) as control:
        sent = await control.send("s", "go")
        print((await control.wait(sent.run_id)).text)

asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * BOUND_SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "ended ended 0\n"), done.stderr


@at_each_grade
def test_a_named_process_is_replaced(grade: Grade | None, tmp_path: Path) -> None:
    """A named process is ended, with what it started, and seen to be gone before the next of that name begins."""
    lock = tmp_path / "lock"
    # A server that a child in another session keeps: it fails if another holds the lock.
    script = f"exec 9> {lock}; flock -n 9 || exit 9; setsid sleep 100 & echo up; exec sleep 100"

    async def work(run: Run) -> tuple[list[int | None], list[bool]]:
        servers = []
        for _ in range(3):
            servers.append(server := await run.spawn("sh", "-c", script, background=True, name="server"))
            await until(lambda server=server: server.output == "up\n" or not server.running)  # type: ignore[misc]
        return [each.status for each in servers], [each.running for each in servers]

    statuses, running = asyncio.run(does(work, confinement=confined(grade)))
    assert (statuses, running) == ([-9, -9, None], [False, False, True])


def test_replacements_in_one_instant(tmp_path: Path) -> None:
    """Several replacements at once leave one process, and no two of them ever ran at the same time."""
    lock, clashes = tmp_path / "lock", tmp_path / "clashes"
    script = f"exec 9> {lock}; flock -n 9 || {{ echo x >> {clashes}; exit 9; }}; exec sleep 100"

    async def work(run: Run) -> int:
        asked = [run.spawn("sh", "-c", script, background=True, name="server") for _ in range(4)]
        came = await asyncio.gather(*asked, return_exceptions=True)
        assert all(not isinstance(each, BaseException) or isinstance(each, SpawnFailed) for each in came)
        return sum(each.running for each in came if not isinstance(each, BaseException))

    assert asyncio.run(does(work)) == 1
    assert not clashes.exists()


def test_names_belong_to_their_run() -> None:
    """A process of the same name in another session is another process."""
    pids: dict[str, int | None] = {}

    async def agent(run: Run, message: Message) -> None:
        pids[run.session] = (await run.spawn("sleep", "100", background=True, name="server")).pid
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            for session in ("one", "two"):
                await control.send(session, "go")
            await until(lambda: len(pids) == 2)
            assert there(pids["one"]) and there(pids["two"])
            await control.stop(session="one")
            await until(lambda: not there(pids["one"]))
            assert there(pids["two"])

    asyncio.run(main())
