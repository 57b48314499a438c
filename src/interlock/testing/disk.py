"""The disk, made to fail: `python -m interlock.testing.disk --bare --control` kills at every write and every fsync.

strace does it: it comes to a living process, counts the calls on the store's files, and kills before the n-th, for
every n until the scene ends unharmed. (It counts by thread, from when it came; the store has one thread that writes.)
The judge knows nothing of the store: it reads the database with plain sqlite3, and what the scene said line by line.
1. What was acknowledged is there. What was not is there whole, or not at all.
2. The database is sound, and the next start settles it: no message is lost, none runs twice, none runs on.
"""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import msgspec
from interlock.app import open_control
from interlock.core.decision import Decision
from interlock.core.events import Event, Said
from interlock.core.names import Ending
from interlock.core.outcome import Outcome
from interlock.runtime.control import Control
from interlock.runtime.run import Message, Run
from interlock.runtime.settings import Settings
from interlock.stores.sqlite import SqliteStore, writer

CALLS = "write,pwrite64,pwritev,ftruncate,fallocate,fsync,fdatasync,rename,unlink"
FILES = ("interlock.db", "interlock.db-wal", "interlock.db-journal", "lock", "")
SECONDS = 60.0  # for anything here that should take one
POINTS = 10_000  # a scene that writes more often never ends
KINDS = ("lost", "torn", "damaged", "twice", "running", "changed")
PR_SET_PTRACER = 0x59616D61

State = dict[str, list[dict[str, Any]]]


# strace


def missing() -> str | None:
    """Say what this machine lacks; None if strace can be used."""
    if shutil.which("strace") is None:
        return "this needs strace (Debian: `apt-get install strace`, or `make tools` as root)"
    tried = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def until(done: Callable[[], object], what: str) -> None:
    """Wait for something, a bounded time."""
    end = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {SECONDS} s")
        time.sleep(0.001)


@contextlib.contextmanager
def traced(pid: int, directory: Path, *options: str, log: Path | None = None) -> Iterator[None]:
    """Have strace look at what a process, this one or another, does to the store's files, from here to there."""
    if pid == os.getpid():  # else only root could be traced by its own child
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))
    files = [option for name in FILES for option in ("-P", str(directory / name).rstrip("/"))]
    command = ["strace", "-f", "-qq", "-o", str(log or "/dev/null"), *files, *options, "-p", str(pid)]
    strace = subprocess.Popen(command)
    try:
        until(lambda: strace.poll() is not None or _tracers(pid) == {strace.pid}, "strace")
        yield
    finally:
        strace.terminate()
        strace.wait(SECONDS)


def _tracers(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.add(int((task / "status").read_text().split("TracerPid:")[1].split()[0]))
    return found


@contextlib.contextmanager
def fault(calls: str, what: str, directory: Path) -> Iterator[None]:
    """Let this process's own calls on the store's files fail: `fault("pwrite64", "error=EROFS", DIR)`."""
    with traced(os.getpid(), directory, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"):
        yield


# One crash


class Script:
    """What a scene has: a directory, a place for effects, someone who hears what it says."""

    def __init__(self, directory: Path, wire: socket.socket) -> None:
        self.directory = directory
        self._wire = wire

    def say(self, *words: str) -> None:
        """Tell the judge; it hears even what was said in the last instant."""
        self._wire.sendall((" ".join(words) + "\n").encode())

    def ready(self) -> None:
        """Wait for strace to come."""
        self.say("ready")
        self._wire.recv(3)

    def effect(self, *words: str) -> None:
        """Do something to the world that cannot be taken back."""
        with effects(self.directory).open("a") as world:
            world.write(" ".join(words) + "\n")


Act = Callable[[Script], Awaitable[None]]


class Played(NamedTuple):
    """How a scene came out."""

    said: list[str]
    killed: bool
    before: State  # what the database held when strace came


def play(act: Act, directory: Path, kill_at: int | None = None) -> Played:
    """Play a scene in a process of its own; with `kill_at`, kill it before its n-th call on the store's files."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _be(act, directory, theirs)
    theirs.close()
    ours.settimeout(SECONDS)
    said: list[str] = []
    before: State = {}
    with ours, ours.makefile("r") as lines, contextlib.ExitStack() as stack:
        for line in map(str.rstrip, lines):
            if line == "ready":
                before = read(directory)
                if kill_at is not None:
                    kill = f"inject={CALLS}:signal=SIGKILL:when={kill_at}"
                    stack.enter_context(traced(pid, directory, "-e", f"trace={CALLS}", "-e", kill))
                ours.sendall(b"go\n")
            else:
                said.append(line)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError("\n".join(said))
    return Played(said, status != 0, before)


def _be(act: Act, directory: Path, wire: socket.socket) -> None:
    async def main() -> None:
        await asyncio.wait_for(act(Script(directory, wire)), SECONDS)  # type: ignore[arg-type]

    status = 1
    try:
        logging.disable(logging.CRITICAL)
        asyncio.run(main())
        status = 0
    except BaseException:
        wire.sendall(traceback.format_exc().encode())
    finally:
        os._exit(status)


def points(act: Act, template: Path, place: Path) -> Iterator[tuple[int, Path, Played]]:
    """Play a scene on copies of a directory, killed at its first call, its second, and so on until it ends."""
    for n in range(1, POINTS):
        directory = place / str(n)
        if template.exists():
            shutil.copytree(template, directory)
        if effects(template).exists():
            shutil.copy(effects(template), effects(directory))
        played = play(act, directory, n)
        yield n, directory, played
        shutil.rmtree(directory)
        if not played.killed:
            return
    raise RuntimeError(f"the scene did not end within {POINTS} calls")


# The judge


class Verdict(NamedTuple):
    """What the judge found in a scene."""

    scene: str
    points: int
    troubles: list[tuple[str, str]]  # of which kind, and where


def effects(directory: Path) -> Path:
    """Where the effects of a scene are written: beside its store."""
    return directory.with_suffix(".effects")


def read(directory: Path) -> State:
    """Return everything a database holds, by table, from a copy that is thrown away."""
    with tempfile.TemporaryDirectory() as place:
        for name in FILES[:3]:
            if (directory / name).exists():
                shutil.copy(directory / name, place)
        with contextlib.closing(sqlite3.connect(Path(place) / FILES[0])) as db:
            db.row_factory = sqlite3.Row
            sound = [dict(row) for row in db.execute("PRAGMA integrity_check")]
            tables = [row["name"] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            state = {name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")] for name in tables}  # noqa: S608
    return state if sound == [{"integrity_check": "ok"}] else {"damaged": sound}


def boot(state: State) -> int:
    """Return the number of the last start."""
    return max((row["value"] for row in state.get("facts", []) if row["name"] == "boot"), default=0)


def running(state: State) -> list[str]:
    """Return the runs that have no ending."""
    return [row["id"] for row in state.get("runs", []) if row["ending"] is None and row["alias"] is None]


def crash_bare(scene: str) -> Verdict:
    """Kill one step of the bare store at every write: it is there whole, or not at all, and if it was said, whole."""
    steps = list(BARE)
    given = [] if scene == OPENING else steps[: steps.index(scene)]
    troubles: list[tuple[str, str]] = []
    seen: list[tuple[str, Played, State]] = []
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        if given:
            play(lambda script: bare(script, given), place / "template")
        for n, directory, played in points(lambda script: bare(script, [scene]), place / "template", place):
            where, state = f"{scene}, {n}", read(directory)
            seen.append((where, played, state))
            play(settle, directory)
            after = read(directory)
            if "damaged" in state or "damaged" in after:
                troubles.append(("damaged", where))
            elif boot(after) != boot(state) + 1:
                troubles.append(("lost", f"{where}: the boot number"))
            troubles += [("running", f"{where}: {run}") for run in running(after)]
    _, whole, last = seen[-1]
    begun = {**last, "facts": [{"name": "boot", "value": 0}, {"name": "closed", "value": 0}]}
    allowed = [whole.before, last, begun] if scene == OPENING else [whole.before, last]
    for where, played, state in seen:
        if played.said and state != last:
            troubles.append(("lost", where))
        elif state not in allowed:
            troubles.append(("torn", where))
    return Verdict(scene, len(seen) - 1, troubles)


def crash_control(scene: str) -> Verdict:
    """Kill a whole control at every write, let another take up what is left, and judge what people were told."""
    troubles: list[tuple[str, str]] = []
    told: list[str] = []
    crashed = 0
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        act: Act = lambda script: serve(script, CONTROL[scene])  # noqa: E731
        if scene == RECOVERY:
            told = play(act, place / "template").said
            act = recover
        for n, directory, played in points(act, place / "template", place):
            crashed += played.killed
            again = play(recover, directory).said
            troubles += [(kind, f"{scene}, {n}: {what}") for kind, what in judge(directory, told + played.said, again)]
            effects(directory).unlink()
    return Verdict(scene, crashed, troubles)


def judge(directory: Path, told: list[str], again: list[str]) -> Iterator[tuple[str, str]]:
    """Hold what is in the database against what was said before the crash, what was said after, and what was done."""
    state = read(directory)
    if "damaged" in state:
        yield "damaged", str(state)
        return
    runs = {row["id"]: row for row in state["runs"]}
    keys = {row["key"]: row["run_id"] for row in state["keys"]}
    for word, *rest in map(str.split, told + again):
        if word == "sent" and (rest[0] not in keys or keys[rest[0]] != rest[1] or rest[1] not in runs):
            yield "lost", " ".join(rest)
        if word == "ended" and (rest[0] not in runs or runs[rest[0]]["ending"] != rest[1]):
            yield "changed", " ".join(rest)
    for run in running(state):
        yield "running", run
    did = Counter(effects(directory).read_text().splitlines() if effects(directory).exists() else ())
    for what, times in did.items():
        if times > 1:
            yield "twice", what
    yield from _torn(state, did)


def _torn(state: State, did: Counter[str]) -> Iterator[tuple[str, str]]:
    runs = {row["id"]: row for row in state["runs"]}
    ends = Counter(row["run_id"] for row in state["events"] if '"ended"' in row["data"].split(",")[0])
    for run in runs.values():
        if ends[run["id"]] != 1 or not run["told"]:
            yield "torn", f"{run['id']} is told as ended {ends[run['id']]} times"
        if run["session"] not in {row["id"] for row in state["sessions"]}:
            yield "torn", f"{run['id']} has no session"
        if run["ending"] == "completed" and not did[f"began {run['key']}"]:
            yield "torn", f"{run['id']} never began"
    for table in ("keys", "tools", "questions"):
        for row in state[table]:
            if row["run_id"] not in runs:
                yield "torn", f"{table} without {row['run_id']}"
    for row in state["receipts"]:
        if row["pending"]:
            yield "torn", f"receipt {row['id']} is pending"
    started = {runs[row["run_id"]]["key"] for row in state["tools"] if row["run_id"] in runs}
    for what in did:
        if what.startswith("tool ") and what.removeprefix("tool ") not in started:
            yield "torn", f"{what} without a start on record"


# Scenes of the bare store: each step on what the steps before it left

OPENING, REOPENING, CLOSING = "first opening", "later opening", "close"
RUN = {"session": "s", "principal": "local", "kind": "chat", "text": "hello", "admitted_at": 1e10, "generation": 1}
OUTCOME = {"text": "so far", "started_at": 1.0, "ended_at": 2.0}
TOOL = {"call_id": "c", "run_id": "r2", "name": "search", "arguments": "{}"}
QUESTION = {"id": "q", "run_id": "r2", "session": "s", "principal": "local", "text": "Deploy?"}
WAKE = {"id": "w", "session": "s", "principal": "local", "text": "look", "since": 1.0, "every": 60.0}


def _session(generation: int) -> list[dict[str, Any]]:
    return [{"id": "s", "owner": "local", "generation": generation}]


def _message(run: str, **more: Any) -> dict[str, Any]:
    key = {"principal": "local", "key": run, "method": "send", "digest": "d", "run_id": run}
    return {"admissions": [{"id": run, **RUN, "key": run, **more}], "keys": [key]}


def _ended(run: str, ending: str, drain: str = "pending") -> dict[str, Any]:
    outcome = {"run_id": run, "ending": ending, **OUTCOME}
    receipt = {"id": f"f-{run}", "session": "s", "cause": ending, "runs": [{"id": run, "outcome": outcome}]}
    return {
        "endings": [{"id": run, **RUN, "key": run, "outcome": outcome}],
        "receipts": [{**receipt, "fenced_at": 1.0, "drain": drain}],
    }


BARE: dict[str, dict[str, Any]] = {
    OPENING: {},
    REOPENING: {},
    "send": {"sessions": _session(1), **_message("r1")},
    "takeover": {"sessions": _session(3), **_message("r2"), **_ended("r1", "superseded")},
    "start": {"starts": ["r2"]},
    "tool start": {"tools": [{**TOOL, "state": "running"}]},
    "tool end": {"tools": [{**TOOL, "state": "finished"}]},
    "question": {"questions": [{**QUESTION, "state": "open"}]},
    "stop": {
        "sessions": _session(4),
        **_ended("r2", "stopped"),
        "questions": [{**QUESTION, "state": "void"}],
        "tombstones": [{"principal": "local", "key": "late"}],
        "marks": [{"session": "s", "channel": "chat", "by": "local", "at": 7}],
    },
    "queue": {"sessions": _session(5), **_message("r3"), "wakes": [WAKE]},
    "collect": {**_message("r4", alias="r3"), "unwakes": ["w"]},
    "final": _ended("r3", "completed", "observed"),
    "deltas": {},
    "checkpoint": {},
    "next": _message("r5"),
    "recovery": _ended("r5", "lost", "observed"),
    "prune": {},
    CLOSING: {},
}


async def bare(script: Script, scenes: list[str]) -> None:
    """Open the store and take steps; strace comes before the last one."""
    if scenes[-1] in (OPENING, REOPENING):
        script.ready()
    store = SqliteStore(script.directory)
    number = await store.open() << 32
    for scene in scenes:
        number += 1
        if scene == scenes[-1] and scene not in (OPENING, REOPENING):
            script.ready()
        if BARE[scene]:  # what was told before a decision is there with it
            store.append(_event(number, {"type": "message", "text": "hello", "by": "local"}))
            await store.decide(msgspec.convert(BARE[scene], Decision))
        elif scene == CLOSING:
            await store.close()
        elif scene == "prune":
            await store.prune(before=2e10)
        elif scene in ("deltas", "checkpoint"):
            writer.RESTART_BYTES = 0 if scene == "checkpoint" else writer.RESTART_BYTES
            store.append(_event(number, {"type": "delta", "text": "hel"}, run_id="r3"))
            while not any(row["position"] == number for row in read(script.directory)["passing"]):
                await asyncio.sleep(0.001)
            await store.prune()  # which waits for what the writer does
    script.say("done")


def _event(position: int, data: dict[str, Any], run_id: str | None = None) -> Event:
    return msgspec.convert(
        {"position": position, "session": "s", "run_id": run_id, "generation": 1, "data": data}, Event
    )


async def settle(script: Script) -> None:
    """The next start of a bare store: every run that has no ending gets one."""
    store = SqliteStore(script.directory)
    await store.open()
    for session in await store.unsettled():
        for run in await store.unsettled_runs(session):
            outcome = run.outcome or Outcome(run_id=run.id, ending=Ending.LOST)
            await store.decide(Decision(endings=(msgspec.structs.replace(run, outcome=outcome),)))
    await store.close()


# Scenes of a whole control: what people do, in order

RECOVERY = "recovery"
QUEUE = "queue"
CONTROL: dict[str, tuple[tuple[str, ...], ...]] = {
    "send and final": (("send", "a", "one"), ("wait", "one")),
    "takeover": (("send", "a", "long-one"), ("begun", "long-one"), ("send", "a", "two"), ("wait", "two")),
    "tool": (("send", "a", "tool-one"), ("wait", "tool-one")),
    "question": (("send", "a", "ask-one"), ("answer", "ask-one"), ("wait", "ask-one")),
    "stop": (("send", "a", "long-one"), ("begun", "long-one"), ("send", "a", "two", QUEUE), ("stop", "a")),
    "queue": (("send", "a", "long-one"), ("send", "a", "two", QUEUE), ("cut", "long-one"), ("wait", "two")),
    RECOVERY: (
        *(("send", "a", "one"), ("wait", "one"), ("send", "b", "tool-long-two"), ("send", "c", "ask-three")),
        *(("send", "d", "long-four"), ("send", "d", "five", QUEUE), ("send", "d", "tool-six", QUEUE)),
        *(("begun", "tool-long-two"), ("begun", "long-four"), ("asked", "ask-three"), ("die",)),
    ),
}
SETTINGS = Settings(commit_seconds=SECONDS / 2)  # a machine under strace is slow, and a refusal no part of these scenes
