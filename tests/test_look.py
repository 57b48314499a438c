"""Looking into a store from the shell: real commands, and directories that real controls wrote, some of them killed."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from interlock import Control, InterlockError, Message, Run, events, open_control
from interlock.core.names import RunKind
from interlock.look.documents import Forgotten, Runs, Sessions, Shown
from interlock.look.forgetting import age
from interlock.runtime.listing import RunInfo
from interlock.stores.base import Pruned

T = TypeVar("T")

BOUND = 60.0  # seconds that anything here may take on a busy machine
INTERLOCK = (sys.executable, "-m", "interlock.cli")
PYTHON_HERE = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


# Starting Python and importing the command takes longer than any command here. So most of them are processes that are
# forked when everything is imported; a test that says where it prints, or with which environment, has one from scratch.
READY_MADE = """
import contextlib, json, os, signal, sys
import interlock.cli
with contextlib.suppress(interlock.InterlockError):  # some of it is imported at the first call
    interlock.cli.app(["runs", "--data", "/nonexistent"], standalone_mode=False)
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
            interlock.cli.main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)  # taking everything apart takes longer than the command
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ReadyMade:
    """Where those come from, while this module's tests run."""

    process: subprocess.Popen[str]
    place: Path


@pytest.fixture(scope="module", autouse=True)
def ready_made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Import the command once."""
    command = [sys.executable, "-c", READY_MADE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        ReadyMade.process, ReadyMade.place = process, tmp_path_factory.mktemp("outputs")
        yield


def interlock(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Call the command and wait for it."""
    if not options:
        return _interlock(list(map(str, arguments)))
    settings: dict[str, Any] = {
        "capture_output": True, "check": False, "timeout": BOUND, "text": True, "stdin": subprocess.DEVNULL, **options
    }  # fmt: skip
    return subprocess.run([*INTERLOCK, *map(str, arguments)], **settings)


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
    """Return the one sentence of a command that could not."""
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
    asked = await until(control, work.run_id, events.Asked)
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


# What control said


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


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A store that is only looked at; it was looked at while it was served, too."""
    data = tmp_path_factory.mktemp("filled") / "data"

    async def use(control: Control) -> Filled:
        run_ids = await everything(control)
        filled = Filled(data, run_ids, await said(control, run_ids))
        lists = await asyncio.to_thread(document, Runs, "runs", data=data)
        assert lists.in_use
        for run, outcome in zip(lists.runs, filled.control_said["outcomes"], strict=True):
            assert run.outcome is not None
            assert run.outcome.same_story(outcome)  # (that it is drained may be written a moment later)
        return filled

    return serve(data, use)


def test_the_commands_say_what_control_said(filled: Filled) -> None:
    """Outcomes, receipts, timelines and trees are the same from the shell, while it was served and after."""
    data, run_ids, control_said = filled
    lists = document(Runs, "runs", data=data)
    assert not lists.in_use
    assert [run.id for run in lists.runs] == run_ids
    assert [run.outcome for run in lists.runs] == control_said["outcomes"]
    shown = [document(Shown, "show", run_id, data=data) for run_id in run_ids]
    assert [each.run for each in shown] == list(lists.runs)
    assert [each.receipt for each in shown] == control_said["receipts"]
    assert [list(each.timeline) for each in shown] == control_said["timelines"]
    assert [each.reply for each in shown] == [outcome.text for outcome in control_said["outcomes"]]
    for name, infos in control_said["listed"].items():
        tree = document(Runs, "runs", "--session", name, "--tree", data=data).runs
        assert [(run.id, run.depth, run.state, run.outcome) for run in tree] == [
            (info.id, info.depth, info.state, info.outcome) for info in infos
        ]


def test_people_are_told_the_same_facts(filled: Filled) -> None:
    """Who, when, how it ended in the projection's words, and what a run did; no escape sequence in a pipe."""
    data, run_ids, _ = filled
    runs = told("runs", data=data)
    words = ("completed", "completed", "failed: ValueError: no such luck", f"superseded by {run_ids[4]}")
    late = r"timed out after 10 ms in phase (start|agent) \(its caller's limit\)"
    for run_id, ending in zip(run_ids, (*words, "stopped by carol", late), strict=True):
        assert re.search(f"  {ending}  ", line_of(runs, run_id))
    sessions = told("sessions", data=data)
    assert [line.split()[0] for line in sessions.splitlines()[1:]] == ["carol", "bob", "alice"]
    assert re.fullmatch(r"carol +carol +3 +0 +(\d+ (s|min) ago|just now)", line_of(sessions, "carol"))
    work = told("show", run_ids[1], data=data)
    for fact in (
        f"{run_ids[1]} of session alice, by alice, ",
        "so far status 3",
        'finished: look_up({"word":"oslo"})',
        "answered True by alice: Is that all?",
        "exited with 3: sh -c ",
        "ended with its run: sleep 600 (server)",
        "1 process ended, grade ",
        "drain observed after ",
    ):
        assert fact in work, work
    assert next(line.split()[2] for line in work.splitlines() if line.startswith("+")) == "admitted"
    assert "\x1b" not in runs + sessions + work
    child = told("runs", "--tree", "--session", "alice", data=data).splitlines()[-1]
    assert child.startswith("  r-"), child
    assert " helper " in child


def test_what_nobody_wrote_is_not_told_as_somebodys(tmp_path: Path) -> None:
    """A run that announces a child names it, in the list and by itself; a detached child says so."""
    data = tmp_path / "data"

    async def use(control: Control) -> dict[RunKind, RunInfo]:
        await control.send("alice", "leave", by="alice")
        while True:
            runs = await control.runs("alice", by="alice", tree=True)
            found = {run.kind: run for run in runs}
            if {RunKind.ANNOUNCE, RunKind.NOTE} <= found.keys() and all(run.outcome for run in runs):
                return found
            await asyncio.sleep(0.01)

    found = serve(data, use)
    listed = told("runs", data=data)
    for kind, beside, words in (
        (RunKind.ANNOUNCE, "", "announces the end of child"),
        (RunKind.NOTE, r" \(note\)", "a note of the end of child"),
    ):
        report = found[kind]
        assert re.search(rf"  child {report.key}{beside}  ", line_of(listed, report.id)), listed
        shown = told("show", report.id, data=data)
        assert "has ended: ok. It said: helped with" in shown
        assert f"{report.id} of session alice, {words} {report.key}, " in shown and "by alice" not in shown
        child = told("show", str(report.key), data=data)
        assert re.search(r"child +of r-\S+, by agent helper, detached\n", child), child
    assert "helper, detached" in told("runs", "--tree", data=data)


# A server that was killed


CRASH = textwrap.dedent(
    """
    import asyncio, json, os, signal, sys
    from interlock import events, open_control

    async def slow(to: str) -> None:
        await asyncio.sleep(600)

    async def assistant(run, message):
        await run.say("so far ")
        if message.text == "call":
            await run.call(slow, to="bob")
        if message.text == "ask":
            await run.ask("Really?")
        if message.text == "spawn":
            await run.spawn("sleep", "600")
        return "done"

    async def main():
        async with open_control(assistant, store="sqlite:///" + sys.argv[1]) as control:
            runs = {}
            for text, kind in (("call", "tool"), ("ask", "question"), ("spawn", "process")):
                runs[text] = (await control.send(text, text)).run_id
                async for event in control.watch(run=runs[text]):
                    if event.kind == kind and event.data.state in ("running", "open"):
                        break
            runs["queued"] = (await control.send("call", "later", strategy="queue")).run_id
            while control._store._pending_count:  # what was told so far is to be found in the store
                await asyncio.sleep(0.01)
            print(json.dumps(runs), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(asyncio.wait_for(main(), 50))
    """
)


def crash(data: Path) -> dict[str, str]:
    """Let a server be killed with three runs going and one message waiting; return the runs."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH, data], capture_output=True, text=True, check=False, timeout=BOUND, env=PYTHON_HERE
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    runs: dict[str, str] = json.loads(done.stdout)
    return runs


def test_what_a_killed_server_left_is_told_as_unsettled(tmp_path: Path) -> None:
    """Never as running: the next start settles it, and until then nobody pretends to know more."""
    data = tmp_path / "data"
    runs = crash(data)
    lists = document(Runs, "runs", data=data)
    assert not lists.in_use
    assert {run.id: (run.state, run.unsettled, run.outcome) for run in lists.runs} == {
        runs["call"]: ("started", True, None),
        runs["ask"]: ("started", True, None),
        runs["spawn"]: ("started", True, None),
        runs["queued"]: ("queued", True, None),
    }
    text = told("runs", data=data)
    assert "unsettled: the next start settles it" in line_of(text, runs["call"])
    assert "queued: the next start takes it up" in line_of(text, runs["queued"])
    assert line_of(told("sessions", data=data), "ask").endswith("unsettled: the next start settles it")
    call = told("show", runs["call"], data=data)
    assert 'started, outcome unknown: slow({"to":"bob"})' in call
    assert line_of(call, "reply").split() == ["reply", "so", "far"]
    assert "open: Really?" in told("show", runs["ask"], data=data)
    assert "ended with the server: sleep 600" in told("show", runs["spawn"], data=data)


def test_looking_and_pruning_leave_the_settling_to_the_next_start(tmp_path: Path) -> None:
    """After both, the next start finds a crash as a crash: lost runs, a gap, and the waiting message is served."""
    data = tmp_path / "data"
    runs = crash(data)
    told("runs", data=data)
    assert document(Forgotten, "prune", "--older-than", "0h", data=data).forgotten.runs == 0

    async def settled(control: Control) -> dict[str, Any]:
        assert (await control.wait(runs["queued"], drained=True)).ending == "completed"
        return {
            **await said_of(control, list(runs.values())),
            "kinds": {event.kind for event in await replay(control, runs["call"], "call")},
        }

    control_said = serve(data, settled)
    assert "gap" in control_said["kinds"]
    shown = [document(Shown, "show", run_id, data=data) for run_id in runs.values()]
    assert [each.run.outcome for each in shown] == control_said["outcomes"]
    assert [each.receipt for each in shown] == control_said["receipts"]
    assert [list(each.timeline) for each in shown] == control_said["timelines"]
    assert not any(each.run.unsettled for each in shown)
    text = told("runs", data=data)
    assert "  lost in a crash  " in line_of(text, runs["call"])
    assert "  completed  " in line_of(text, runs["queued"])
    assert 'interrupted: slow({"to":"bob"})' in told("show", runs["call"], data=data)


async def said_of(control: Control, run_ids: list[str]) -> dict[str, Any]:
    """Return what control says of runs."""
    return {
        "outcomes": [await control.wait(run_id, drained=True) for run_id in run_ids],
        "receipts": [await control.receipt(run_id) for run_id in run_ids],
        "timelines": [await control.timeline(run_id) for run_id in run_ids],
    }


async def replay(control: Control, run_id: str, session: str) -> list[events.Event]:
    """Return a session's events up to a receipt that is told after a run's end."""
    found: list[events.Event] = []
    async for event in control.watch(session):
        found.append(event)
        if event.kind == "receipt" and any(each.run_id == run_id and each.kind == "ended" for each in found):
            break
    return found


def test_a_parked_session_says_what_to_do(tmp_path: Path) -> None:
    """Three crashes in a row with a run of it going: it is told as parked until it is reset."""
    data = tmp_path / "data"
    for _ in range(3):
        runs = crash(data)
    assert not any(session.parked for session in document(Sessions, "sessions", data=data).sessions)

    async def refusal(control: Control) -> str:
        with pytest.raises(InterlockError) as raised:
            await control.send("ask", "again")
        return str(raised.value)

    assert "is parked" in serve(data, refusal)
    found = {session.id: session for session in document(Sessions, "sessions", data=data).sessions}
    assert (found["ask"].parked, found["ask"].crashes, found["ask"].open) == (True, 3, 0)
    assert "parked after 3 crashes in a row: reset it to go on" in line_of(told("sessions", data=data), "ask")
    assert "parked: it takes no message until it is reset" in told("show", runs["ask"], data=data)
    serve(data, lambda control: control.reset("ask"))
    assert "parked" not in line_of(told("sessions", data=data), "ask")


# A server that has the directory


def test_a_live_server_is_looked_at_while_it_writes(tmp_path: Path) -> None:
    """A run that goes on is told as started, with what it said so far; every look is whole while others come and go."""
    data = tmp_path / "data"

    async def use(control: Control) -> None:
        going = await control.send("alice", "wait")
        await until(control, going.run_id, events.Delta)
        stop = asyncio.Event()
        work = asyncio.create_task(chatter(control, stop))
        seen = 0
        while seen < 3:
            lists = await asyncio.to_thread(document, Runs, "runs", "--all", data=data)
            assert lists.in_use
            assert not any(run.unsettled for run in lists.runs)
            seen += any(run.session == "bob" for run in lists.runs)
            shown = await asyncio.to_thread(document, Shown, "show", lists.runs[-1].id, data=data)
            assert (shown.run.outcome is None) or shown.run.outcome.text == shown.reply
        stop.set()
        assert await work >= 1
        while not (shown := await asyncio.to_thread(document, Shown, "show", going.run_id, data=data)).reply:
            await asyncio.sleep(0.01)
        assert (shown.run.state, shown.run.unsettled, shown.run.outcome) == ("started", False, None)
        assert shown.reply == "so far "
        assert "  started  " in line_of(await asyncio.to_thread(told, "runs", "--all", data=data), going.run_id)

    serve(data, use)


async def chatter(control: Control, stop: asyncio.Event) -> int:
    """Send and complete until told to stop; return how many."""
    count = 0
    while not stop.is_set():
        sent = await control.send("bob", f"message {count}")
        await control.wait(sent.run_id, drained=True)
        count += 1
    return count


def test_a_directory_in_use_is_not_pruned(tmp_path: Path) -> None:
    """One sentence says that its server does it by itself; nothing is forgotten, and the server is not disturbed."""
    data = tmp_path / "data"

    async def use(control: Control) -> None:
        sent = await control.send("alice", "greet")
        await control.wait(sent.run_id, drained=True)
        sentence = await asyncio.to_thread(refused, "prune", "--older-than", "0h", "--data", data)
        assert f"{data} is in use by a server, which prunes it every hour" in sentence
        assert (await control.send("alice", "again")).run_id
        assert len(await control.runs("alice")) == 2

    serve(data, use)


# Forgetting


def test_prune_forgets_what_is_old_and_says_how_much(tmp_path: Path) -> None:
    """A dry run says the same and forgets nothing; what is young, waits or is scheduled stays."""
    data = tmp_path / "data"

    async def fill(control: Control) -> None:
        await everything(control)
        await control.send("wakes", "greet", by="dora")
        await control.wake("wakes", "hello", every=3600, by="dora")

    serve(data, fill)
    before = document(Runs, "runs", "--all", "--tree", data=data)
    assert document(Forgotten, "prune", data=data).forgotten == Pruned()
    tried = document(Forgotten, "prune", "--older-than", "0h", "--dry-run", data=data)
    assert (tried.forgotten.sessions, tried.forgotten.runs, tried.dry_run) == (3, 7, True)
    assert document(Runs, "runs", "--all", "--tree", data=data) == before
    assert told("prune", "--older-than", "0h", data=data) == "forgotten: 3 sessions, 7 runs, 0 events\n"
    assert [each.id for each in document(Sessions, "sessions", data=data).sessions] == ["wakes"]
    assert {run.session for run in document(Runs, "runs", "--all", data=data).runs} == {"wakes"}
    with sqlite3.connect(data / "interlock.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_ages_are_read_as_people_write_them() -> None:
    """Hours, days and weeks; a bare number could be anything and is refused with an example."""
    assert [age(text) for text in ("12h", "30d", " 1.5 d ", "8w")] == [43_200, 2_592_000, 129_600, 4_838_400]
    for text in ("30", "", "-1d", "1m", "d", "inf d"):
        with pytest.raises(InterlockError, match="write 12h, 30d or 8w"):
            age(text)


# Lists


def test_the_latest_runs_are_listed_unless_all_are_wanted(tmp_path: Path) -> None:
    """Twenty, in order, with a word on how to see the rest."""
    data = tmp_path / "data"

    async def fill(control: Control) -> list[str]:
        sent = [await control.send("alice", f"message {number}", strategy="queue") for number in range(25)]
        for each in sent:
            await control.wait(each.run_id, drained=True)
        return [each.run_id for each in sent]

    run_ids = serve(data, fill)
    for options in ((), ("--session", "alice"), ("--tree",)):
        some = document(Runs, "runs", *options, data=data)
        assert ([run.id for run in some.runs], some.more) == (run_ids[-20:], True)
    every = document(Runs, "runs", "--all", "--session", "alice", data=data)
    assert ([run.id for run in every.runs], every.more) == (run_ids, False)
    assert told("runs", data=data).splitlines()[-1] == "these are the latest; --all lists every run"


def test_a_store_where_nobody_wrote_is_empty(tmp_path: Path) -> None:
    """An empty store is no error: empty lists, and a sentence for people."""
    data = tmp_path / "data"

    async def nothing(control: Control) -> None:
        assert await control.runs() == []

    serve(data, nothing)
    assert document(Runs, "runs", data=data).runs == ()
    assert document(Sessions, "sessions", data=data).sessions == ()
    assert told("runs", data=data) == f"no runs in {data}\n"
    assert told("sessions", data=data) == f"no sessions in {data}\n"


# What cannot be looked into


def test_what_is_not_there_is_one_sentence(filled: Filled, tmp_path: Path) -> None:
    """No such run, session or store; another program's database; a later schema: 1, a line, never a traceback."""
    data = shutil.copytree(filled.data, tmp_path / "data")
    assert "no run 'r-9-9'" in refused("show", "r-9-9", "--data", data)
    assert "no session 'nobody'" in refused("runs", "--session", "nobody", "--data", data)
    assert "write 12h, 30d or 8w" in refused("prune", "--older-than", "soon", "--data", data)
    with sqlite3.connect(data / "interlock.db") as db:
        db.execute("PRAGMA user_version = 999")
    (tmp_path / "empty").mkdir()
    for name in ("noise", "other", "blank"):
        (tmp_path / name).mkdir()
    (tmp_path / "noise" / "interlock.db").write_bytes(b"no database " * 100)
    (tmp_path / "blank" / "interlock.db").touch()
    with sqlite3.connect(tmp_path / "other" / "interlock.db") as db:
        db.execute("CREATE TABLE runs (id)")
        db.execute("PRAGMA user_version = 1")
    cases = {
        "missing": "holds no interlock store; name its directory with --data",
        "empty": "holds no interlock store",
        "empty/file": "holds no interlock store",
        "noise": "file is not a database",
        "other": "is no interlock store",
        "blank": "is no interlock store",
        "data": "has schema 999, this version knows ",
    }
    (tmp_path / "empty" / "file").touch()
    for name, words in cases.items():
        assert words in refused("runs", "--json", "--data", tmp_path / name), name
    assert cases["other"] in refused("prune", "--data", tmp_path / "other")
    assert not (tmp_path / "missing").exists()


SOMEONE_ELSE = """
import contextlib, io, os, sys
import interlock.cli
if os.geteuid() == 0:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):  # as root first: later nothing can be imported
        interlock.cli.app(sys.argv[1:], standalone_mode=False)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
interlock.cli.main()
"""


def test_a_directory_of_someone_else_is_one_sentence(tmp_path: Path) -> None:
    """Files and directory are for their owner; whoever may not read them is told so."""
    data = tmp_path / "data"
    serve(data, lambda control: control.send("alice", "greet"))
    assert data.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in data.iterdir()} == {0o600}
    if os.geteuid() != 0:
        data.chmod(0)
    for command in ("sessions", "runs", "prune"):
        done = subprocess.run(
            [sys.executable, "-c", SOMEONE_ELSE, command, "--data", data],
            capture_output=True, text=True, check=False, timeout=BOUND, cwd="/",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"interlock: {data} cannot be read: Permission denied\n"
    data.chmod(0o700)
    told("runs", data=data)
    assert {file.stat().st_mode & 0o777 for file in data.iterdir()} == {0o600}


# Where it looks, and where it prints


def test_the_directory_is_found_by_option_variable_and_habit(tmp_path: Path) -> None:
    """--data, then INTERLOCK_DATA, then XDG_STATE_HOME, then the home directory."""
    places = ("option", "variable", "xdg/interlock", "home/.local/state/interlock")
    for place in places:
        serve(tmp_path / place, lambda control, place=place: control.send(place.replace("/", "-"), "greet"))  # type: ignore[misc]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "INTERLOCK_"))}
    env["HOME"] = str(tmp_path / "home")

    def session(*options: str | Path, **more: str) -> str:
        done = interlock("sessions", "--json", *options, env={**env, **more})
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout, type=Sessions).sessions[0].id

    state = {"XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert session() == "home-.local-state-interlock"
    assert session(XDG_STATE_HOME="not/absolute") == "home-.local-state-interlock"
    assert session(**state) == "xdg-interlock"
    assert session(INTERLOCK_DATA=str(tmp_path / "variable"), **state) == "variable"
    assert session("--data", tmp_path / "option", INTERLOCK_DATA=str(tmp_path / "variable"), **state) == "option"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with more text than a pipe holds, and texts that a terminal would obey."""
    data = tmp_path_factory.mktemp("long") / "data"

    async def fill(control: Control) -> None:
        for number in range(20):
            sent = await control.send("a\x1b[31mb", f"{number}\n\x1b]0;title\x07\u202e [bold]æ {'x' * 20_000}")
            await control.wait(sent.run_id, drained=True)

    serve(data, fill)
    return data


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_is_no_accident(long: Path, options: tuple[str, ...]) -> None:
    """`interlock runs | head -1` prints a line and complains of nothing."""
    line = f"{' '.join(INTERLOCK)} runs --data {long} {' '.join(options)} | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=BOUND)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    with subprocess.Popen([*INTERLOCK, "runs", "--data", long, *options], stdout=subprocess.PIPE, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_output_that_takes_nothing_is_one_sentence(long: Path) -> None:
    """A full disk under the output is told in a line; a closed output is nobody's loss."""
    for options in ((), ("--json",)):
        with open("/dev/full", "w") as full:
            done = interlock("runs", "--data", long, *options, capture_output=False, stdout=full, stderr=-1)
        assert (done.returncode, done.stderr) == (125, "interlock: No space left on device\n")
        line = f"{' '.join(INTERLOCK)} runs --data {long} {' '.join(options)} >&-"
        closed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=BOUND)
        assert (closed.returncode, closed.stderr) == (0, "")


def test_what_others_wrote_cannot_steer_the_terminal(long: Path) -> None:
    """Control characters of a message or a name are shown as such, in one short line; JSON keeps the text as it is."""
    runs = document(Runs, "runs", data=long).runs
    assert runs[0].text.startswith("0\n\x1b]0;title\x07\u202e [bold]æ xxx")
    assert len(runs[0].text) > 20_000
    for text in (told("runs", data=long), told("show", runs[0].id, data=long), told("sessions", data=long)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert all(len(line) < 300 for line in text.splitlines())
    assert "[bold]æ" in told("show", runs[0].id, data=long)
    narrow = interlock("runs", "--data", long, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (narrow.returncode, narrow.stderr) == (0, "")


def test_a_terminal_is_drawn_a_table(long: Path) -> None:
    """The same facts, drawn by rich for a terminal, still with nothing in it that the message asked for."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        [*INTERLOCK, "runs", "--data", long], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        drawn = b""
        while piece := _read(ours):
            drawn += piece
    os.close(ours)
    assert process.returncode == 0
    text = drawn.decode()
    assert "\x1b[1m" in text  # a bold head
    assert text.count("completed") == 20
    assert "[bold]" in text
    assert "\x1b]0;" not in text
    assert "\x1b[31m" not in text


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65_536)
    except OSError:  # the other end of a terminal is closed
        return b""


def test_a_session_is_named_as_people_write_it(tmp_path: Path) -> None:
    """By its id, with its owner, or bare where only one is called so; else the command says which there are."""

    async def use(control: Control) -> None:
        for session, by in (("ann/main", "ann"), ("bob/main", "bob"), ("bob/notes", "bob"), ("main", "local")):
            await control.wait((await control.send(session, f"of {by}", by=by)).run_id, drained=True)
        await control.share("ann/main", with_="bob", may="read", by="ann")
        await control.share("ann/main", with_="carol", by="ann")

    data = tmp_path / "data"
    serve(data, use)
    found = {each.id: each for each in document(Sessions, "sessions", data=data).sessions}
    assert {session: each.owner for session, each in found.items()} == {
        "ann/main": "ann", "bob/main": "bob", "bob/notes": "bob", "main": "local"
    }  # fmt: skip
    assert found["ann/main"].shares == {"bob": "read", "carol": "write"} and found["bob/main"].shares == {}
    lines = told("sessions", data=data).splitlines()
    assert lines[0].split()[:4] == ["session", "owner", "shared", "with"]
    (line,) = [line for line in lines if line.startswith("ann/main")]
    assert "bob (read), carol (write)" in line
    for name, texts in (("ann/main", ["of ann"]), ("notes", ["of bob"]), ("local/main", ["of local"])):
        listed = document(Runs, "runs", "--session", name, data=data).runs
        assert [run.text for run in listed] == texts, name
    which = interlock("runs", "--session", "main", "--data", data)
    assert which.returncode == 1 and "ann/main, bob/main, local/main; write one of these" in which.stderr
    assert "no session 'carol/main'" in interlock("runs", "--session", "carol/main", "--data", data).stderr


def test_json_names_do_not_change(filled: Filled) -> None:
    """Programs rely on these names: every field is there, also where it holds nothing."""
    data, run_ids, _ = filled
    sessions = json.loads(told("sessions", "--json", data=data, env=PYTHON_HERE))
    runs = json.loads(told("runs", "--json", data=data, env=PYTHON_HERE))
    shown = json.loads(told("show", run_ids[1], "--json", data=data, env=PYTHON_HERE))
    pruned = json.loads(told("prune", "--dry-run", "--json", data=data, env=PYTHON_HERE))
    session = {"id", "owner", "shares", "generation", "strategy", "runs", "open", "latest_at", "crashes", "parked"}
    run = {
        "id", "session", "principal", "kind", "state", "unsettled", "outcome", "text", "admitted_at", "started",
        "generation", "key", "deadline", "parent", "agent", "detached", "alias", "depth",
    }  # fmt: skip
    parts = {"run", "reply", "tools", "questions", "processes", "receipt", "timeline", "parked"}
    assert set(sessions) == {"data", "in_use", "sessions"}
    assert all(set(each) == session for each in sessions["sessions"])
    assert set(runs) == {"data", "in_use", "runs", "more"}
    assert all(set(each) == run for each in runs["runs"])
    assert set(shown) == {"data", "in_use"} | parts
    assert set(shown["run"]) == run
    process = {"command", "state", "name", "pid", "status", "background", "detached"}
    assert all(set(each) == process for each in shown["processes"])
    assert [each["state"] for each in shown["processes"]] == ["exited", "ended"]
    assert set(shown["tools"][0]) == {"call_id", "run_id", "name", "arguments", "state"}
    assert set(shown["timeline"][0]) == {"at", "what", "name", "state", "detail", "count"}
    assert set(pruned) == {"data", "dry_run", "older_than_seconds", "forgotten"}
    assert sessions["data"] == runs["data"] == shown["data"] == pruned["data"] == str(data)
