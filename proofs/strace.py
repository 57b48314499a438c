"""strace as a bad disk: it comes to a living process and fails its calls on a store's files, or kills it there.

1. Only calls on the store's files count. They are counted by thread, from when strace came; a store has one thread
   that writes (and one that opens: whoever wants to count both lets strace come twice).
2. A kill is before the n-th call. What a scene said before it died is heard.
3. The database is read from a copy, with plain sqlite3: looking changes nothing, and knows nothing of the store.
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
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CALLS = "write,pwrite64,pwritev,ftruncate,fallocate,fsync,fdatasync,rename,unlink"
FILES = ("interlock.db", "interlock.db-wal", "interlock.db-journal", "lock", "")
SECONDS = 60.0  # for anything here that should take one
LEAVE_SECONDS = 0.5  # for strace to let go by itself
POINTS = 10_000  # a scene that writes more often never ends
PR_SET_PTRACER = 0x59616D61

State = dict[str, list[dict[str, Any]]]


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
def traced(pid: int, *options: str, log: Path | None = None) -> Iterator[None]:
    """Have strace at a process, this one or another, from here to there."""
    if pid == os.getpid():  # else root alone could be traced by its own child
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))
    command = ["strace", "-f", "-qq", "-o", str(log or os.devnull), *options, "-p", str(pid)]
    strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: strace.poll() is not None or _tracers(pid) == {strace.pid}, "strace")
        yield
    finally:
        strace.terminate()
        try:
            strace.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:  # it holds a call back, and would until that is over
            strace.kill()
            strace.wait()


def _tracers(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.add(int((task / "status").read_text().split("TracerPid:")[1].split()[0]))
    return found


def injected(calls: str, what: str, directory: Path) -> list[str]:
    """Return the options that let calls on a store's files go wrong."""
    files = [option for name in FILES for option in ("-P", str(directory / name))]
    return [*files, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]


@contextlib.contextmanager
def fault(calls: str, what: str, directory: Path) -> Iterator[None]:
    """Let this process's own calls on a store's files go wrong: `fault("pwrite64", "error=EROFS", DIR)`."""
    with traced(os.getpid(), *injected(calls, what, directory)):
        yield


# One crash


class Script:
    """What a scene has: a directory, a world to do something to, and someone who hears what it says."""

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


Act = Callable[[Script], Coroutine[Any, Any, None]]


class Played(NamedTuple):
    """How a scene came out."""

    said: list[str]
    killed: bool
    before: State  # what the database held when strace came


def play(
    act: Act,
    directory: Path,
    *,
    fails: tuple[str, str] | None = None,
    log: Path | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> Played:
    """Play a scene in a process of its own; when it is ready, let (calls, how) fail, or have strace write a log.

    `meanwhile` is done with its process as soon as strace is there; strace leaves after it.
    """
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
            if line != "ready":
                said.append(line)
                continue
            before = read(directory)
            if fails is not None:
                stack.enter_context(traced(pid, *injected(*fails, directory)))
            elif log is not None:
                stack.enter_context(traced(pid, "-y", "-xx", "-s", "9999999", "-e", f"trace=sendto,{CALLS}", log=log))
            ours.sendall(b"go\n")
            if meanwhile is not None:
                meanwhile(pid)
                stack.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError("\n".join(said))
    return Played(said, status != 0, before)


def _be(act: Act, directory: Path, wire: socket.socket) -> None:
    """Be the process of a scene, and end as one: nothing of whoever forked it is cleaned up here."""
    status = 1
    try:
        logging.disable(logging.CRITICAL)
        asyncio.run(asyncio.wait_for(act(Script(directory, wire)), SECONDS))
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
        played = play(act, directory, fails=(CALLS, f"signal=SIGKILL:when={n}"))
        yield n, directory, played
        shutil.rmtree(directory)
        effects(directory).unlink(missing_ok=True)
        if not played.killed:
            return
    raise RuntimeError(f"the scene did not end within {POINTS} calls")


# What is left


def effects(directory: Path) -> Path:
    """Where the effects of a scene are written: beside its store."""
    return directory.with_suffix(".effects")


def done(directory: Path) -> list[str]:
    """Return what was done to the world."""
    return effects(directory).read_text().splitlines() if effects(directory).exists() else []


def read(directory: Path) -> State:
    """Return everything a database holds, by table; `damaged` if it is not sound."""
    with tempfile.TemporaryDirectory() as place:
        for name in FILES[:3]:
            if (directory / name).exists():
                shutil.copy(directory / name, place)
        with contextlib.closing(sqlite3.connect(Path(place) / FILES[0])) as db:
            db.row_factory = sqlite3.Row
            sound = [dict(row) for row in db.execute("PRAGMA integrity_check")]
            tables = [row["name"] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            state = {name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")] for name in tables}
    return state if sound == [{"integrity_check": "ok"}] else {"damaged": sound}
