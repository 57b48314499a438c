"""strace as a bad disk: it attaches to a living process and fails its calls on a store's files, or kills it there.

1. Only calls on the store's files count. strace counts them by thread, from when it attached; a store has one thread
   that writes and one that opens, so a count of both needs strace to attach twice.
2. A kill comes before the n-th call. The judge hears everything that a scene said before it died.
3. The judge reads a copy of the database with plain sqlite3, which changes nothing and knows nothing of the store.
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
SECONDS = 60.0  # bound for anything here that should take one
LEAVE_SECONDS = 0.5  # bound for strace to detach by itself
POINTS = 10_000  # bound for the writes of a scene
PR_SET_PTRACER = 0x59616D61

State = dict[str, list[dict[str, Any]]]


def missing() -> str | None:
    """Return what this machine lacks, None if strace can be used."""
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
    """Attach strace to a process, this one or another, for the length of a block."""
    # Without this, only root could be traced by its own child.
    if pid == os.getpid():
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
        # strace delays a call, and would not detach before that call is over.
        except subprocess.TimeoutExpired:
            strace.kill()
            strace.wait()


def _tracers(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found.add(int((task / "status").read_text().split("TracerPid:")[1].split()[0]))
    return found


def injected(calls: str, what: str, directory: Path) -> list[str]:
    """Return the options that let calls on a store's files fail."""
    files = [option for name in FILES for option in ("-P", str(directory / name))]
    return [*files, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]


@contextlib.contextmanager
def fault(calls: str, what: str, directory: Path) -> Iterator[None]:
    """Let this process's own calls on a store's files fail: `fault("pwrite64", "error=EROFS", DIR)`."""
    with traced(os.getpid(), *injected(calls, what, directory)):
        yield


# Crashes


class Script:
    """The means of a scene: a directory, a file for effects, and a wire to the judge."""

    def __init__(self, directory: Path, wire: socket.socket) -> None:
        self.directory = directory
        self._wire = wire

    def say(self, *words: str) -> None:
        """Tell the judge, who hears even the words of the last instant."""
        self._wire.sendall((" ".join(words) + "\n").encode())

    def ready(self) -> None:
        """Wait for strace to attach."""
        self.say("ready")
        self._wire.recv(3)

    def effect(self, *words: str) -> None:
        """Do something outside that cannot be taken back."""
        with effects(self.directory).open("a") as world:
            world.write(" ".join(words) + "\n")


Act = Callable[[Script], Coroutine[Any, Any, None]]


class Played(NamedTuple):
    """The end of a scene."""

    said: list[str]
    killed: bool
    before: State  # the rows of the database when strace attached


def play(
    act: Act,
    directory: Path,
    *,
    fails: tuple[str, str] | None = None,
    log: Path | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> Played:
    """Play a scene in a process of its own; when it is ready, let (calls, how) fail, or have strace write a log.

    `meanwhile` is called with that process as soon as strace is attached; strace leaves after it.
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
    """Be the process of a scene, and exit without cleaning up anything of the process that forked it."""
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


# The remains of a scene


def effects(directory: Path) -> Path:
    """Return the file of a scene's effects, beside its store."""
    return directory.with_suffix(".effects")


def done(directory: Path) -> list[str]:
    """Return the effects that were done."""
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
