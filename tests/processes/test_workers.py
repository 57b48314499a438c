"""Workers that misbehave: a tool's messages, answers and processes harm only its own call.

The tools stand at the top of this module, where a worker finds them.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from interlock import BadInput, Ending, Message, Run
from interlock.agent.tool import ToolFailed
from interlock.processes.worker import ANSWER_BYTES

from .scene import opened, over, read
from .test_spawn import BOUND_SECONDS, descriptors, play, until

SENT = 20
LINGER_SECONDS = 20


def to_control() -> socket.socket:
    """Return, in a worker, its end of the socket to control."""
    for number in range(3, 100):
        try:
            found = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if found.type == socket.SOCK_SEQPACKET:
            return found
    raise LookupError("no socket to control")


def answers() -> int:
    """Return, in a worker, the pipe of its answers."""
    for number in range(3, 100):
        try:
            writes = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if writes and stat.S_ISFIFO(os.fstat(number).st_mode):
                return number
        except OSError:
            continue
    raise LookupError("no pipe for answers")


def hands_over(sock: socket.socket, fds: list[int]) -> str:
    """Send descriptors to control; return what came of it."""
    try:
        sock.sendmsg([b"hx"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "sent"


def lingering() -> socket.socket:
    """Yield a connection with unread data in it, whose close() takes long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        _held.append(server.accept()[0])
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(65536))
    except BlockingIOError:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
        return ours


_held: list[socket.socket] = []


def gives_descriptors(at: str) -> list[str]:
    """Send descriptors to control while it waits for the answer, and again when no call is open."""
    sock, fd = to_control(), os.open(f"{at}/given", os.O_RDONLY)

    def later() -> None:
        while not Path(at, "answered").exists():
            time.sleep(0.002)
        Path(at, "said").write_text(" ".join(hands_over(sock, [fd] * 8) for _ in range(SENT)))

    threading.Thread(target=later, daemon=True).start()
    with lingering() as slow:
        said = [hands_over(sock, [slow.fileno()]), hands_over(sock, [fd] * 8)]
        # This process closes the connection as well.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    return said


def says(raw: bytes) -> None:
    """Write to the pipe of the answers, and never return."""
    view = memoryview(raw)
    while view:
        view = view[os.write(answers(), view) :]
    while True:
        signal.pause()


def returns(size: int) -> str:
    """Return a long text."""
    return "x" * size


def framed(answer: bytes) -> bytes:
    """Return an answer as a worker frames it."""
    return len(answer).to_bytes(4, "big") + answer


RAW = {
    "garbage": framed(b"\xc1garbage"),
    "a failure without a text": framed(b"\x92\xa6failed\xc0"),
    "nested arrays": framed(b"\x92\xa4done" + b"\x91" * 20_000 + b"\xc0"),
    "too long": (ANSWER_BYTES + 1).to_bytes(4, "big"),
}


INNER = """
import asyncio
import interlock

async def agent(run, message):
    return "served"

async def main():
    async with interlock.open_control(agent) as control:
        sent = await control.send("s", "go")
        print((await control.wait(sent.run_id)).ending)

asyncio.run(main())
"""


def opens_control() -> str:
    """Run a program that opens a control of its own."""
    ran = subprocess.run([sys.executable, "-c", INNER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ran.stdout.strip()


def test_a_tool_hands_no_descriptors_to_control(tmp_path: Path) -> None:
    """Control takes no descriptor that a worker's tool sends by its socket: none stays open or freezes control."""
    given = tmp_path / "given"
    given.touch()
    gap = 0.0

    def held() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and os.path.realpath(link) == str(given) for link in links)

    async def beat() -> None:
        nonlocal gap
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            gap = max(gap, time.monotonic() - began)

    async def agent(run: Run, message: Message) -> None:
        assert await run.call(gives_descriptors, at=str(tmp_path)) == ["EPIPE", "EPIPE"]
        (tmp_path / "answered").touch()
        said = await until(lambda: len(words := read(tmp_path / "said").split()) == SENT and words, "what became of it")
        assert set(said) == {"EPIPE"}
        assert held() == 0

    async def main() -> None:
        before = descriptors()
        beating = asyncio.create_task(beat())
        async with opened(agent) as control:
            sent = await control.send("s", "go")
            assert await over(control, sent.run_id) is Ending.COMPLETED
        assert gap < LINGER_SECONDS / 2
        beating.cancel()
        await until(lambda: descriptors() <= before, "no descriptor more")

    play(main())


def test_a_worker_that_answers_nonsense_fails_the_call() -> None:
    """Garbage, nested arrays or an over-long answer from a worker end the call with an error; the next call works."""
    came: dict[str, BaseException | str] = {}

    async def agent(run: Run, message: Message) -> None:
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                came[message.text] = str(await run.call(says, raw=RAW[message.text]))
        except ToolFailed as error:
            came[message.text] = error
        assert await run.call(returns, size=2) == "xx"  # by another worker

    async def main() -> None:
        async with opened(agent) as control:
            for number, name in enumerate(RAW):
                sent = await control.send(f"s{number}", name)
                assert await over(control, sent.run_id) is Ending.COMPLETED, name
        assert [name for name in RAW if not isinstance(came[name], ToolFailed)] == []

    play(main())


def test_a_tool_that_returns_too_much_is_told_so() -> None:
    """A worker refuses by itself a value longer than an answer may be, and goes on serving."""

    async def agent(run: Run, message: Message) -> None:
        assert len(await run.call(returns, size=ANSWER_BYTES // 2)) == ANSWER_BYTES // 2
        with pytest.raises(BadInput, match="write a file"):
            await run.call(returns, size=ANSWER_BYTES)
        assert await run.call(returns, size=2) == "xx"

    async def main() -> None:
        async with opened(agent) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())


def test_a_program_of_a_tool_is_no_worker() -> None:
    """A program that a synchronous tool starts may open a control; only the worker itself may not."""

    async def agent(run: Run, message: Message) -> None:
        assert await run.call(opens_control) == "completed"

    async def main() -> None:
        async with opened(agent) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())
