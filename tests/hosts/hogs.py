"""Agents that misbehave: each message names a play, and the directory where the play can be witnessed from outside.

1. Code that acts beats: it writes one byte to the file `beats`. A beat after `drained` has broken the promise.
2. A process that is started writes its pid to the file `pids`.
3. Every play ends by itself after LIFE_SECONDS, if no test ends it sooner.

The zygote imports this module, so the module starts nothing and imports little.
"""

import asyncio
import contextlib
import ctypes
import os
import queue
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from interlock import Message, Run, tool
from interlock.agent import verbs
from interlock.hosts import link
from interlock.processes import kernel

LIFE_SECONDS = 120.0  # longer than any test waits
BEAT_SECONDS = 0.002
GRACE_SECONDS = 1.0
CROWD = 100

Play = Callable[[Run, Path], Awaitable[str | None]]
plays: dict[str, Play] = {}
turns = 0  # turns that this process has served
kept: list[Any] = []  # objects that must outlive their turn
pool: ThreadPoolExecutor | None = None  # as a library keeps one between turns
helper: subprocess.Popen[bytes] | None = None  # a process that a library keeps between turns
work: queue.SimpleQueue[Callable[[], Any] | None] | None = None  # the queue of a thread that outlives its turn


def play(function: Play) -> Play:
    """Make a play known by its name."""
    plays[function.__name__] = function
    return function


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message says."""
    global turns
    turns += 1
    name, _, place = message.text.partition(" ")
    return await plays[name](run, Path(place))


# Traces for the test


def beat(place: Path, mark: bytes = b".") -> None:
    """Write one beat."""
    fd = os.open(place / "beats", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, mark)
    finally:
        os.close(fd)


def beats(place: Path) -> None:
    """Write one beat after another."""
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        beat(place)
        time.sleep(BEAT_SECONDS)


def note(place: Path, pid: int) -> None:
    """Write a pid down in one write."""
    fd = os.open(place / "pids", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, f"{pid}\n".encode())
    finally:
        os.close(fd)


async def idle(place: Path) -> None:
    """Tell the test that all is set up, and wait politely."""
    note(place, os.getpid())
    beat(place, b"!")
    await asyncio.sleep(LIFE_SECONDS)


def begin(place: Path) -> None:
    """Tell the test that the play begins."""
    note(place, os.getpid())
    beat(place, b"!")


SHELL = 'echo $$ >> "$1/pids"; i=0; while [ $i -lt 12000 ]; do printf . >> "$1/beats"; sleep 0.01; i=$((i+1)); done'


def shell(place: Path) -> subprocess.Popen[bytes]:
    """Start a process that beats, as a library might start one."""
    return subprocess.Popen(["sh", "-c", SHELL, "sh", str(place)])


# Polite


@play
async def answers(run: Run, place: Path) -> str:
    """Return this host's pid and how many turns the host has had."""
    return f"{os.getpid()} {turns}"


@play
async def answers_when_told(run: Run, place: Path) -> str:
    """Return as soon as the test says so, without another step of the loop."""
    beat(place, b"!")
    while not (place / "go").exists():
        await asyncio.sleep(BEAT_SECONDS)
    return "done"


@play
async def talks_when_told(run: Run, place: Path) -> str:
    """Say much text as soon as the test says so, and return."""
    beat(place, b"!")
    while not (place / "go").exists():
        await asyncio.sleep(BEAT_SECONDS)
    for _ in range(40):
        await run.say("x" * 100)
    return "done"


@play
async def raises_when_told(run: Run, place: Path) -> str:
    """Raise as soon as the test says so."""
    beat(place, b"!")
    while not (place / "go").exists():
        await asyncio.sleep(BEAT_SECONDS)
    raise ValueError("done")


@play
async def waits(run: Run, place: Path) -> None:
    """Wait, and end when cancelled."""
    await idle(place)


@play
async def streams(run: Run, place: Path) -> None:
    """Say one number after another."""
    begin(place)
    for number in range(100_000):
        await run.say(f"{number} ")
        await asyncio.sleep(0.001)


@play
async def mops_up(run: Run, place: Path) -> None:
    """Clean up for a moment, which is shorter than a host has to settle."""
    try:
        await idle(place)
    finally:
        await asyncio.sleep(0.03)


@play
async def mops_until_told(run: Run, place: Path) -> None:
    """Clean up until the test says that it is enough."""
    try:
        await idle(place)
    finally:
        while not (place / "enough").exists():
            await asyncio.sleep(BEAT_SECONDS)


@play
async def rested_threads(run: Run, place: Path) -> None:
    """Use the loop's threads, and wait while they are idle."""
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.001) for _ in range(3)))
    await idle(place)


# Blocking


@play
async def sleeps(run: Run, place: Path) -> None:
    """Block the loop in time.sleep."""
    begin(place)
    time.sleep(LIFE_SECONDS)


@play
async def spins(run: Run, place: Path) -> None:
    """Beat for ever without an await."""
    begin(place)
    beats(place)


@play
async def swallows(run: Run, place: Path) -> None:
    """Swallow every cancel and every Stale, and go on beating."""
    begin(place)
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(BaseException):
            beat(place)
            await asyncio.sleep(BEAT_SECONDS)
            await run.say("still here ")


@play
async def holds_gil(run: Run, place: Path) -> None:
    """Sleep in C with the interpreter's lock held, so that no thread of this process runs Python code."""
    begin(place)
    ctypes.PyDLL(None).sleep(int(LIFE_SECONDS))


@play
async def matches(run: Run, place: Path) -> None:
    """Match a regular expression that takes for ever."""
    begin(place)
    re.match(r"(a+)+$", "a" * 34 + "b")


@play
async def deaf_to_signals(run: Run, place: Path) -> None:
    """Ignore every signal that can be ignored, and block."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    begin(place)
    time.sleep(LIFE_SECONDS)


@play
async def stops_itself(run: Run, place: Path) -> None:
    """Send SIGSTOP to this process."""
    begin(place)
    os.kill(os.getpid(), signal.SIGSTOP)


@play
async def stops_its_keeper(run: Run, place: Path) -> None:
    """Send SIGSTOP to this host's keeper, leave a child, and block."""
    shell(place)
    os.kill(os.getppid(), signal.SIGSTOP)
    begin(place)
    time.sleep(LIFE_SECONDS)


# Polite, with something left in the host


@play
async def leaves_thread(run: Run, place: Path) -> None:
    """Leave a thread that beats."""
    threading.Thread(target=beats, args=(place,), daemon=True).start()
    await idle(place)


@play
async def leaves_work(run: Run, place: Path) -> None:
    """Leave work in one of the loop's own threads."""
    asyncio.get_running_loop().run_in_executor(None, beats, place)
    await idle(place)


@play
async def leaves_queued_work(run: Run, place: Path) -> None:
    """Leave work that waits for one of the loop's threads, all of which do something short first."""
    loop = asyncio.get_running_loop()
    for _ in range(32):
        loop.run_in_executor(None, time.sleep, 0.01)
    for _ in range(2):
        loop.run_in_executor(None, beats, place)
    await asyncio.sleep(0.3)
    await idle(place)


@play
async def keeps_pool(run: Run, place: Path) -> str:
    """Make a pool of threads that stays idle, and return."""
    global pool
    pool = ThreadPoolExecutor(1)
    pool.submit(os.getpid).result()
    return f"{os.getpid()}"


@play
async def leaves_work_in_pool(run: Run, place: Path) -> None:
    """Leave work in a thread that an earlier turn started."""
    assert pool is not None
    pool.submit(beats, place)
    await idle(place)


@play
async def leaves_task(run: Run, place: Path) -> None:
    """Leave a task that beats and swallows every cancel."""
    kept.append(asyncio.get_running_loop().create_task(plays["swallows"](run, place)))
    await idle(place)


@play
async def leaves_timer(run: Run, place: Path) -> None:
    """Set a timer that beats and sets itself again, so that one is always to come, however late the end."""
    loop = asyncio.get_running_loop()

    def again() -> None:
        beat(place)
        loop.call_later(0.4, again)

    loop.call_later(0.4, again)
    await idle(place)


@play
async def leaves_callback(run: Run, place: Path) -> None:
    """Beat in a callback that schedules itself again: neither a task nor a timer."""
    loop = asyncio.get_running_loop()

    def again() -> None:
        beat(place)
        time.sleep(BEAT_SECONDS)
        loop.call_soon(again)

    loop.call_soon(again)
    await idle(place)


@play
async def leaves_alarm(run: Run, place: Path) -> None:
    """Let the kernel call a handler later."""
    signal.signal(signal.SIGALRM, lambda *_: beat(place))
    signal.setitimer(signal.ITIMER_REAL, 0.4, 0.01)
    await idle(place)


@play
async def leaves_server(run: Run, place: Path) -> None:
    """Leave a server: a client that connects makes this process beat."""
    await asyncio.start_unix_server(lambda reader, writer: beat(place), place / "door")
    await idle(place)


@play
async def leaves_process(run: Run, place: Path) -> None:
    """Leave a process that a library started."""
    shell(place)
    await idle(place)


@play
async def leaves_daemon(run: Run, place: Path) -> None:
    """Leave a process in a session of its own, whose parent has exited."""
    subprocess.run(["sh", "-c", 'setsid sh -c "$0" sh "$1" > /dev/null 2>&1 &', SHELL, str(place)], check=True)
    await idle(place)


@play
async def leaves_fugitive(run: Run, place: Path) -> None:
    """Leave a process that has moved to the uppermost cgroup, where that move is allowed."""
    fugitive = shell(place)
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    with contextlib.suppress(OSError, StopIteration):
        (Path(next(line[4] for line in mounts if "cgroup2" in line)) / "cgroup.procs").write_text(str(fugitive.pid))
    await idle(place)


@play
async def leaves_fork(run: Run, place: Path) -> None:
    """Leave a fork of the host itself, with all its descriptors."""
    if os.fork() == 0:
        note(place, os.getpid())
        beats(place)
        os._exit(0)
    await idle(place)


@play
async def keeps_process(run: Run, place: Path) -> str:
    """Start a process that stays, and return when that process sleeps."""
    child = subprocess.Popen(["sleep", str(int(LIFE_SECONDS))])
    note(place, child.pid)
    await asleep(child.pid, "sleep")
    return f"{os.getpid()}"


HELPER = """
import os, sys, time
def beat():
    fd = os.open(sys.argv[1] + "/beats", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b".")
    os.close(fd)
os.write(1, b"ready\\n")
while line := os.read(0, 100):
    os.write(1, b"taken\\n")
    if line == b"later\\n":
        time.sleep(0.4)
    for _ in range(12000):
        beat()
        time.sleep(0.01)
"""


async def asleep(pid: int, name: str = "") -> None:
    """Wait until a process has become the program of that name, and sleeps."""
    while (status := kernel.stat(pid)) is None or status[0] != "S" or name not in status[3]:
        await asyncio.sleep(BEAT_SECONDS)


async def still(threads: int) -> None:
    """Wait until this process has so many other threads, and two looks find them all asleep."""
    me, seen = os.getpid(), {}
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        before, seen = seen, kernel.traces(me, but=me)
        if len(seen) >= threads and seen == before and all(state != "R" for _, _, state in seen.values()):
            return


@play
async def keeps_helper(run: Run, place: Path) -> str:
    """Start a helper that waits for work, as a tool server does, and return when the helper waits."""
    global helper
    program = [sys.executable, "-I", "-S", "-c", HELPER, str(place)]
    helper = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    note(place, helper.pid)
    heard_from(helper)
    await asleep(helper.pid)
    return f"{helper.pid}"


def heard_from(child: subprocess.Popen[bytes]) -> None:
    """Wait for a line from a helper."""
    assert child.stdout is not None
    assert child.stdout.readline()


@play
async def gives_helper_work(run: Run, place: Path) -> None:
    """Give the helper of an earlier turn work, and wait politely meanwhile."""
    assert helper is not None and helper.stdin is not None
    helper.stdin.write(b"now\n")
    heard_from(helper)
    await idle(place)


@play
async def gives_helper_work_for_later(run: Run, place: Path) -> None:
    """Give the helper of an earlier turn work during which the helper sleeps."""
    assert helper is not None and helper.stdin is not None
    helper.stdin.write(b"later\n")
    heard_from(helper)
    await idle(place)


def _lies(run: Run) -> None:
    """Tell control, in the host's name, that the turn left nothing, as soon as control tells the host of the fall."""
    turn = run._port.turn.number  # type: ignore[attr-defined]
    run._port._link.send(link.Settled(turn, clean=True))  # type: ignore[attr-defined]


@play
async def lies_with_thread(run: Run, place: Path) -> None:
    """Leave a thread that beats, and tell control that nothing is left."""
    threading.Thread(target=beats, args=(place,), daemon=True).start()
    try:
        await idle(place)
    finally:
        _lies(run)


@play
async def keeps_thread(run: Run, place: Path) -> str:
    """Start a thread that waits for work, and return when the thread waits."""
    global work
    work = queue.SimpleQueue()
    threading.Thread(target=lambda: [each() for each in iter(work.get, None)], daemon=True).start()
    await still(1)
    return f"{os.getpid()}"


@play
async def keeps_crowd(run: Run, place: Path) -> str:
    """Start more threads than control looks at, and return when all of them wait."""
    for _ in range(CROWD):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    await still(CROWD)
    return f"{os.getpid()}"


@play
async def lies_with_old_thread(run: Run, place: Path) -> None:
    """Give a thread of an earlier turn work, and tell control that nothing is left."""
    assert work is not None
    work.put(lambda: beats(place))
    try:
        await idle(place)
    finally:
        _lies(run)


@play
async def lies_with_sleeper(run: Run, place: Path) -> None:
    """Give a thread of an earlier turn work during which the thread sleeps, and tell control that nothing is left."""
    assert work is not None
    work.put(lambda: (time.sleep(0.4), beat(place)))
    await asyncio.sleep(0.05)
    try:
        await idle(place)
    finally:
        _lies(run)


@play
async def speaks_later(run: Run, place: Path) -> str:
    """Return, and let a task say something afterwards."""

    async def later() -> None:
        try:
            await asyncio.sleep(0.02)
            await run.say("late")
        except BaseException:
            beat(place)
            raise

    kept.append(asyncio.get_running_loop().create_task(later()))
    return f"{os.getpid()}"


# Tools


def begun(place: str) -> None:
    """Tell the test that a tool has begun: a stop from here on finds the tool at work."""
    beat(Path(place), b"b")


def tool_blocks(place: str) -> None:
    """Block the loop, and beat."""
    begun(place)
    beats(Path(place))


@tool(grace=GRACE_SECONDS)
def tool_blocks_with_grace(place: str) -> None:
    """Block the loop, and beat; the tool declared a grace, so control gives the grace."""
    begun(place)
    beats(Path(place))


@tool(grace=LIFE_SECONDS)
def tool_blocks_for_long(place: str) -> None:
    """Block the loop, and beat; the tool's grace is longer than any test."""
    begun(place)
    beats(Path(place))


@tool(thread=True)
def tool_in_thread(place: str) -> None:
    """Beat in a thread."""
    begun(place)
    beats(Path(place))


async def tool_cleans(place: str) -> None:
    """Clean up when cancelled; the tool declared no grace, so its cleanup never runs."""
    begun(place)
    try:
        await asyncio.sleep(LIFE_SECONDS)
    finally:
        beat(Path(place), b"c")


@tool(grace=LIFE_SECONDS)
async def tool_with_grace(place: str) -> None:
    """Clean up when cancelled, for longer than a host has to settle."""
    begun(place)
    try:
        await asyncio.sleep(LIFE_SECONDS)
    finally:
        beat(Path(place), b"c")
        await asyncio.sleep(0.3)
        beat(Path(place), b"d")


@tool(grace=GRACE_SECONDS)
async def tool_deaf(place: str) -> None:
    """Swallow every cancel."""
    begun(place)
    end = time.monotonic() + LIFE_SECONDS
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.02)
            beat(Path(place))
        except asyncio.CancelledError:
            beat(Path(place), b"c")


def _calls(*functions: Callable[..., Any]) -> Play:
    async def calls(run: Run, place: Path) -> None:
        begin(place)
        if len(functions) == 1:
            await run.call(functions[0], place=str(place))
        else:
            await run.batch([(function, {"place": str(place)}) for function in functions], parallel=True)

    return calls


plays |= {
    "calls_blocking": _calls(tool_blocks),
    "calls_blocking_with_grace": _calls(tool_blocks_with_grace),
    "calls_blocking_for_long": _calls(tool_blocks_for_long),
    "calls_thread": _calls(tool_in_thread),
    "calls_cleaning": _calls(tool_cleans),
    "calls_with_grace": _calls(tool_with_grace),
    "calls_deaf": _calls(tool_deaf),
    "calls_mixed": _calls(tool_with_grace, tool_cleans),
}


# Deaths


@play
async def exits(run: Run, place: Path) -> None:
    """Exit this process."""
    os._exit(3)


@play
async def segfaults(run: Run, place: Path) -> None:
    """Read an address where nothing is mapped."""
    ctypes.string_at(0)


@play
async def aborts(run: Run, place: Path) -> None:
    """Abort."""
    os.abort()


@play
async def eats_memory(run: Run, place: Path) -> None:
    """Take memory until there is none; raise if the system only refuses."""
    eaten = []
    for _ in range(256):
        eaten.append(b"x" * (4 * 1024 * 1024))


@play
async def exits_in_task(run: Run, place: Path) -> None:
    """Raise SystemExit in a task that the play starts."""

    async def leave() -> None:
        sys.exit(4)

    kept.append(asyncio.get_running_loop().create_task(leave()))
    await idle(place)


@play
async def exits_deaf(run: Run, place: Path) -> None:
    """Raise SystemExit in a task that the play starts, while the agent swallows every cancel."""

    async def leave() -> None:
        sys.exit(4)

    kept.append(asyncio.get_running_loop().create_task(leave()))
    await plays["swallows"](run, place)


@play
async def stops_loop(run: Run, place: Path) -> None:
    """Stop the loop."""
    asyncio.get_running_loop().stop()
    await idle(place)


@play
async def stops_loop_at_work(run: Run, place: Path) -> None:
    """Stop the loop while one of the loop's threads is at work."""
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, beats, place)
    loop.stop()
    await idle(place)


def sockets() -> list[int]:
    """Return this process's sockets: on one of them the host hears control."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and int(name) > 2:
                found.append(int(name))
    return found


async def rehearsed() -> None:
    """Wait until this host has rehearsed: a host whose rehearsal sockets are closed ends by itself."""
    while len(sockets()) > 3:  # the link, and the loop's own pair
        await asyncio.sleep(BEAT_SECONDS)


@play
async def closes_link(run: Run, place: Path) -> None:
    """Close the link without a word to the host's code."""
    await rehearsed()
    for fd in [*sockets(), run._port._link._saying]:  # type: ignore[attr-defined]
        os.close(fd)
    await idle(place)


@play
async def closes_everything(run: Run, place: Path) -> None:
    """Close every descriptor."""
    await rehearsed()
    os.closerange(3, 1024)
    await idle(place)


def unsent() -> socket.socket:
    """Return a connection whose close takes LIFE_SECONDS, since the other side does not read."""
    server = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(server.getsockname())
    kept.append((server, server.accept()))
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(64 * 1024))
    ours.setblocking(True)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(LIFE_SECONDS)))
    return ours


@play
async def sends_descriptor(run: Run, place: Path) -> None:
    """Send control a descriptor that takes for ever to close."""
    line: socket.socket = run._port._link._sock  # type: ignore[attr-defined]
    word = link.frame(link.Tell(run._port.turn.number, verbs.SetTyping(True)))  # type: ignore[attr-defined]
    kept.append(unsent())
    with contextlib.suppress(OSError):
        socket.send_fds(line, [word], [kept[-1].fileno()])
        kept.pop().close()  # control is the last to close it
    await idle(place)


@play
async def becomes_another(run: Run, place: Path) -> None:
    """Become another program."""
    begin(place)
    os.execvp("sleep", ["sleep", str(int(LIFE_SECONDS))])


@play
async def dies_beside_fork(run: Run, place: Path) -> None:
    """Die while a fork of this host holds the link open."""
    if os.fork() == 0:
        note(place, os.getpid())
        beats(place)
        os._exit(0)
    os._exit(3)


@play
async def dies_beside_talker(run: Run, place: Path) -> None:
    """Die while a fork of this host writes to the link for as long as it can."""
    word = link.frame(link.Tell(run._port.turn.number, verbs.SetTyping(True))) * 500  # type: ignore[attr-defined]
    if os.fork() == 0:
        note(place, os.getpid())
        end = time.monotonic() + LIFE_SECONDS
        line = run._port._link._saying  # type: ignore[attr-defined]
        os.set_blocking(line, True)
        while time.monotonic() < end:
            os.write(line, word)
        os._exit(0)
    time.sleep(0.05)
    os._exit(3)


@play
async def kills_its_keeper(run: Run, place: Path) -> None:
    """KILL this host's keeper."""
    begin(place)
    os.kill(os.getppid(), signal.SIGKILL)
    await asyncio.sleep(LIFE_SECONDS)


# Delegation


@play
async def delegates(run: Run, place: Path) -> str:
    """Delegate to an agent that never returns."""
    child = await run.delegate("other", f"waits {place}")
    return f"{child.outcome.ending} {child.outcome.error_kind}"


@play
async def delegates_hog(run: Run, place: Path) -> str:
    """Delegate to an agent that hogs."""
    child = await run.delegate("other", f"spins {place}")
    return f"{child.outcome.ending}"
