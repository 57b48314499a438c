"""The `interlock` command on a store's directory: forked ready-made, and stores that real controls filled."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from interlock import Control, Message, Run, events, open_control

T = TypeVar("T")
BOUND = 60.0  # seconds that anything here may take on a busy machine
INTERLOCK = (sys.executable, "-m", "interlock.cli")
PYTHON_HERE = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
# A user without other rights keeps this one: otherwise it could not reach an interpreter under /root.
READER = "dac_read_search"
DROPPED = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    f"--inh-caps=-all,+{READER}",
    f"--ambient-caps=-all,+{READER}",
    f"--bounding-set=-all,+{READER}",
)
# Starting Python and importing the command takes longer than any command here. So most commands are processes forked
# from one that has imported everything; a test that sets an output or an environment starts Python from scratch.
READY_MADE = """
import contextlib, json, os, signal, sys
from interlock import InterlockError
from interlock.cli import main
from interlock.cli.app import command_line
with contextlib.suppress(InterlockError):  # some of it is imported at the first call
    command_line()(["runs", "--data", "/nonexistent"], standalone_mode=False)
for line in sys.stdin:
    outputs, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, place in enumerate(outputs, start=1):
            os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["interlock", *arguments]
        try:
            main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)  # taking everything apart takes longer than the command
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ReadyMade:
    """The process from which commands are forked, while this package's tests run."""

    process: subprocess.Popen[str]
    place: Path


def interlock(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Call the command and wait for it."""
    return fresh(*arguments, **options) if options else _interlock(list(map(str, arguments)))


def fresh(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Call the command as a shell does, in a Python of its own."""
    settings: dict[str, Any] = {"capture_output": True, "check": False, "timeout": BOUND, "text": True, **options}
    if "input" not in settings:
        settings.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([*settings.pop("prefix", ()), *INTERLOCK, *map(str, arguments)], **settings)


def dropped() -> tuple[str, ...]:
    """Return the prefix that runs a command as a user without rights; nothing if we are such a user."""
    if os.geteuid() != 0:
        return ()
    assert shutil.which("setpriv"), "install util-linux: setpriv drops the rights"
    return DROPPED


def _interlock(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    out, err = ReadyMade.place / "out", ReadyMade.place / "err"
    asked, answers = ReadyMade.process.stdin, ReadyMade.process.stdout
    assert asked is not None and answers is not None
    print(json.dumps([[str(out), str(err)], arguments]), file=asked, flush=True)
    status = int(answers.readline())
    return subprocess.CompletedProcess(arguments, status, out.read_text("utf-8"), err.read_text("utf-8"))


def told(*arguments: str | Path, data: Path, **options: Any) -> str:
    """Return what a command that must end well says to people; nothing on the error output."""
    done = interlock(*arguments, "--data", data, **options)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def document(kind: type[T], *arguments: str | Path, data: Path) -> T:
    """Return what a command that must end well says to programs: one document of this kind, and no field unknown."""
    return msgspec.json.decode(told(*arguments, "--json", data=data), type=kind)


def refused(*arguments: str | Path, **options: Any) -> str:
    """Return the one sentence with which a command refused."""
    done = interlock(*arguments, **options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert done.stderr.startswith("interlock: ")
    return done.stderr


def line_of(text: str, word: str) -> str:
    """Return the one line that has a word at its beginning."""
    lines = [line for line in text.splitlines() if line.split()[:1] == [word]]
    assert len(lines) == 1, f"{word!r} in:\n{text}"
    return lines[0]


async def look_up(word: str) -> str:
    """A tool."""
    return word.upper()


async def helper(run: Run, message: Message) -> str:
    """Another agent."""
    return f"helped with {message.text}"


async def assistant(run: Run, message: Message) -> str:
    """Do what the message says."""
    await run.say("so far ")
    match message.text:
        case "fail":
            raise ValueError("no such luck")
        case "work":
            await run.call(look_up, word="oslo")
            await run.delegate("helper", "the rest")
            await run.ask("Is that all?")
            finished = await run.spawn("sh", "-c", "exit 3")
            await run.spawn("sleep", "600", background=True, name="server")
            return f"status {finished.status}"
        case "wait":
            await asyncio.sleep(600)
        case "leave":
            await run.delegate("helper", "the rest", detached=True)
            await run.delegate("helper", "a little", detached=True, announce="note")
    return f"did {message.text}"


def serve(data: Path, use: Callable[[Control], Awaitable[T]]) -> T:
    """Open a control on a directory, use it, and close it."""

    async def main() -> T:
        async with (
            asyncio.timeout(BOUND),
            open_control(assistant, agents={"helper": helper}, store=url(data)) as control,
        ):
            return await use(control)

    return asyncio.run(main())


def url(data: Path) -> str:
    """The store in a directory."""
    return f"sqlite:///{data}"


async def until(control: Control, run_id: str, kind: type[Any]) -> Any:
    """Return a run's first event of a kind."""
    async for event in control.watch(run=run_id):
        if isinstance(event.data, kind):
            return event.data
    raise AssertionError(f"{run_id} ended without {kind}")


async def everything(control: Control) -> list[str]:
    """Fill a store with every sort of run; return the runs in the order they were admitted."""
    done = await control.send("alice", "greet", by="alice", key="k1")
    await control.wait(done.run_id, drained=True)
    work = await control.send("alice", "work", by="alice")
    asked = await until(control, work.run_id, events.QuestionData)
    await control.answer(asked.question_id, True, by="alice")
    await control.wait(work.run_id, drained=True)
    failed = await control.send("bob", "fail", by="bob")
    await control.wait(failed.run_id, drained=True)
    old = await control.send("carol", "wait", by="carol")
    await until(control, old.run_id, events.Delta)
    new = await control.send("carol", "wait", by="carol")
    await until(control, new.run_id, events.Delta)
    await control.stop(session="carol", by="carol")
    late = await control.send("carol", "wait", by="carol", deadline=0.01)
    for run in (old, new, late):
        await control.wait(run.run_id, drained=True)
    return [run.run_id for run in (done, work, failed, old, new, late)]


async def said(control: Control, run_ids: list[str]) -> dict[str, Any]:
    """Return what control says of runs and sessions."""
    return {
        "outcomes": [await control.wait(run_id) for run_id in run_ids],
        "receipts": [await control.receipt(run_id) for run_id in run_ids],
        "timelines": [await control.timeline(run_id) for run_id in run_ids],
        "listed": {name: await control.runs(name, tree=True) for name in ("alice", "bob", "carol")},
    }


class Filled(NamedTuple):
    """A store with every sort of run, and what control said of it."""

    data: Path
    run_ids: list[str]
    control_said: dict[str, Any]
