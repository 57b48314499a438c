"""The disk, made to fail: killed at every write and every fsync (`python -m interlock.testing.disk --bare --control`).

strace does it: it comes to a living process, counts the calls on the store's files, and kills at the n-th, for every n
until the scene ends unharmed. (It counts by thread, from when it came; the store has one thread that writes.)
The judge knows nothing of the store: it reads the database with plain sqlite3, and what the scene said, line by line,
only after it was told so.
1. What was acknowledged is there. What was not is there whole, or not at all.
2. The database is sound, and the next start settles it: no message is lost, none runs twice, none runs on.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from interlock.testing.disk_scenes import Act, Script, settle

WRITES = "write,pwrite64,pwritev,ftruncate,fallocate,fsync,fdatasync,rename,unlink"
FILES = ("interlock.db", "interlock.db-wal", "interlock.db-journal", "lock", "")
SECONDS = 60.0  # for anything here that should take one
POINTS = 10_000  # a scene that writes more often than this never ends
KINDS = ("lost", "torn", "damaged", "twice", "running", "changed")
PR_SET_PTRACER, ANYONE = 0x59616D61, ctypes.c_ulong(-1)

State = dict[str, list[tuple[Any, ...]]]


# strace


def missing() -> str | None:
    """Say what this machine lacks; None if strace can be used."""
    if shutil.which("strace") is None:
        return "this needs strace (Debian: apt-get install strace, or `make tools` as root)"
    here = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if here.returncode == 0 else f"strace may not trace here: {here.stderr.strip()}"


def tracer(pid: int) -> set[int]:
    """Return who traces the threads of a process; 0 is nobody."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            said = (task / "status").read_text()
            found.add(int(said.split("TracerPid:")[1].split()[0]))
    return found


def until(done: Callable[[], object], what: str) -> None:
    """Wait for something, a bounded time."""
    end = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {SECONDS} s")
        time.sleep(0.001)


@contextlib.contextmanager
def traced(pid: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have strace at a process, this one or another, from here to there."""
    if pid == os.getpid():  # else only root may be traced by its own child
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYONE)
    strace = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", *options, "-p", str(pid)])
    try:
        until(lambda: strace.poll() is not None or tracer(pid) == {strace.pid}, "strace")
        yield strace
    finally:
        strace.terminate()
        strace.wait(SECONDS)


def on_files(directory: Path) -> list[str]:
    """The options that make strace look at the store's files only."""
    return [option for name in FILES for option in ("-P", str(directory / name))]


@contextlib.contextmanager
def fault(calls: str, what: str, directory: Path) -> Iterator[None]:
    """Let this process's calls on the store's files fail: `fault("pwrite64", "error=EROFS", DIR)`."""
    with traced(os.getpid(), *on_files(directory), "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"):
        yield


# One crash


class Crashed(NamedTuple):
    """How a scene came out."""

    said: list[str]
    killed: bool
    before: State  # what the database held when strace came


def play(work: Callable[[Script], Awaitable[None]], directory: Path, kill_at: int | None) -> Crashed:
    """Play a scene in a process of its own; kill it at its n-th call on the store's files."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _be(work, directory, theirs)
    theirs.close()
    ours.settimeout(SECONDS)
    said: list[str] = []
    before: State = {}
    with ours, ours.makefile("r") as lines, contextlib.ExitStack() as stack:
        for line in map(str.strip, lines):
            if line == "ready":
                before = read(directory)
                if kill_at is not None:
                    kill = f"inject={WRITES}:signal=SIGKILL:when={kill_at}"
                    stack.enter_context(traced(pid, *on_files(directory), "-e", f"trace={WRITES}", "-e", kill))
                ours.sendall(b"go\n")
            else:
                said.append(line)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError("\n".join(said))
    return Crashed(said, status != 0, before)


def _be(work: Callable[[Script], Awaitable[None]], directory: Path, wire: socket.socket) -> None:
    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(_work(work, Script(directory, wire)), SECONDS))
    except BaseException:
        wire.sendall(traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


async def _work(work: Callable[[Script], Awaitable[None]], script: Script) -> None:
    await work(script)


# The judge


def read(directory: Path) -> State:
    """Return everything that a database holds, by table, from a copy that is thrown away."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "interlock.db"
        for name in ("interlock.db", "interlock.db-wal", "interlock.db-journal"):
            if (directory / name).exists():
                shutil.copy(directory / name, Path(place) / name)
        with contextlib.closing(sqlite3.connect(copy)) as db:
            sound = db.execute("PRAGMA integrity_check").fetchall()
            tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            state = {name: db.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}
    return state if sound == [("ok",)] else {"damaged": sound}


def boot(state: State) -> int:
    """Return the number of the last start."""
    return dict(state.get("facts", [])).get("boot", 0)


class Verdict(NamedTuple):
    """What the judge found in one scene."""

    scene: str
    points: int
    troubles: list[tuple[str, str]]  # kind and words


def crash_bare(name: str, jobs: tuple[Act, ...]) -> Verdict:
    """Kill a step of the store's at every write; it must have happened, or not."""
    troubles: list[tuple[str, str]] = []
    seen: list[tuple[int, Crashed, State]] = []
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        template = place / "template"
        for act in jobs[:-1]:
            play(act, template, None)
        killed, n = True, 0
        while killed and n < POINTS:
            n += 1
            directory = place / str(n)
            if template.exists():
                shutil.copytree(template, directory)
            crashed = play(jobs[-1], directory, n)
            killed = crashed.killed
            state = read(directory)
            seen.append((n, crashed, state))
            play(settle, directory, None)
            after = read(directory)
            if "damaged" in after or boot(after) != boot(state) + 1:
                troubles.append(("damaged", f"{name} {n}: the next start did not go well"))
            if any(
                run[:-1] not in [other[:-1] for other in after["runs"]]
                for run in state.get("runs", [])
                if run[16] is not None
            ):
                troubles.append(("lost", f"{name} {n}: the next start lost a run"))
            shutil.rmtree(directory)
    whole = seen[-1][2]
    allowed = [seen[-1][1].before, whole] if seen[-1][1].before or not template_made(jobs) else [whole]
    return Verdict(name, n - 1, troubles + [t for each in seen for t in judge_bare(name, allowed, *each)])
