"""The output of a process, read without ever waiting for it, and bounded.

1. Collected output keeps its beginning and its end, and counts the bytes between. Streamed output holds the writer back
   instead.
2. The output ends with the process's own exit, not with the end of the pipe, since a descendant may hold the pipe for
   ever. Bytes that are in the pipe at the exit still count. Later ones are read and thrown away, so that no descendant
   blocks.
3. A fast writer gets a share of the loop, not the loop.
4. Output belongs to the agent. Watchers are told that a process started and how it ended, never what it wrote.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable

from interlock.processes.base import LINE_BYTES

READ_BYTES = 64 * 1024
BURST_BYTES = 4 * 1024 * 1024  # read from a full pipe before a rest of REST_SECONDS
REST_SECONDS = 0.005
RECENT_BYTES = 8 * 1024  # kept for `recent`, even if the agent reads the lines
LAST_BYTES = 1024 * 1024  # that still count after the exit


class Output:
    """One end of a pipe or terminal that a process writes to."""

    def __init__(self, fd: int, *, limit: int, streamed: bool, hold: bool, on_close: Callable[[], None]) -> None:
        os.set_blocking(fd, False)
        self._on_close = on_close
        # True for a terminal: a close before the exit would send SIGHUP.
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._limit = max(limit, LINE_BYTES if streamed else 2)  # a line must fit
        self._streamed = streamed
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._lines = bytearray()
        self.recent = b""
        self._scanned = 0
        self._more = asyncio.Event()
        self.left_out = 0
        self.ended = False  # later bytes do not count
        self._exited = False
        self._last = LAST_BYTES
        self._burst = 0
        self._reading = False
        self._rest: asyncio.TimerHandle | None = None
        self._resume()

    @property
    def closed(self) -> bool:
        """True if the pipe was closed on our side."""
        return self._fd < 0

    # Reading

    def _resume(self) -> None:
        if self._fd >= 0 and not self._reading:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        self._read()
        self._burst += READ_BYTES
        if self._burst >= BURST_BYTES and self._reading:
            self._burst = 0
            self._pause()
            self._rest = self._loop.call_later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._resume()

    def _read(self) -> bool:
        """Read one piece; return whether there may be more right now."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            self._burst = 0
            if self._exited:
                self._end()
            return False
        except OSError:  # EIO, from a terminal whose other side is closed
            data = b""
        if not data:
            # A process that has closed its terminal may go on. `finish` reads again after its exit.
            if self._hold and not self._exited:
                self._pause()
            else:
                self.close()
            return False
        if len(data) < READ_BYTES:
            self._burst = 0
        if not self.ended:
            self._add(data)
        return True

    def _add(self, data: bytes) -> None:
        if self._exited:
            self._last -= len(data)
        self.recent = (self.recent + data[-RECENT_BYTES:])[-RECENT_BYTES:]
        if self._streamed:
            self._lines += data
            self._more.set()
            if len(self._lines) >= self._limit:
                self._pause()
        else:
            self._collect(data)
        if self._exited and self._last <= 0:
            self._end()

    def _collect(self, data: bytes) -> None:
        half = self._limit // 2
        if (room := half - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail.append(data)
            self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0] if self._tail else b"") >= self._limit - half:
            gone = self._tail.popleft()
            self._tail_bytes -= len(gone)
            self.left_out += len(gone)

    def finish(self) -> None:
        """Read what is in the pipe and end the output: the process has exited."""
        self._exited = True
        while self._fd >= 0 and not self.ended and len(self._lines) < self._limit and self._read():
            continue
        if self._fd < 0:
            self._end()

    def last(self) -> None:
        """Read what is in the pipe, even beyond the limit, and close it: no process is left that could write.

        A slow reader still gets its lines from memory. A reader whose run has fallen never comes for them, so a pipe
        that is kept for it would stay open for ever.
        """
        self._exited = True
        while self._fd >= 0 and not self.ended and self._read():
            continue
        self.close()

    def _end(self) -> None:
        self.ended = True
        self._more.set()
        # Go on reading: later bytes are thrown away, so that a descendant that writes does not block.
        if not self._rest:
            self._resume()

    def close(self) -> None:
        """Close the pipe."""
        self._pause()
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)
            self._on_close()
        self.ended = True
        self._more.set()

    # What was read

    def collected(self) -> tuple[bytes, int, bytes]:
        """Return the beginning, the number of bytes left out, and the end."""
        tail = b"".join(self._tail)
        cut = max(0, len(tail) - (self._limit - self._limit // 2))
        return bytes(self._head), self.left_out + cut, tail[cut:]

    async def line(self) -> bytes | None:
        """Return the next line without its line end, None at the end; a line longer than LINE_BYTES comes in pieces."""
        while True:
            at = self._lines.find(b"\n", self._scanned)
            if at >= 0:
                return self._cut(at, at + 1)
            if len(self._lines) >= LINE_BYTES:
                return self._cut(LINE_BYTES, LINE_BYTES)
            self._scanned = len(self._lines)
            if self.ended:
                return self._cut(len(self._lines), len(self._lines)) if self._lines else None
            self._more.clear()
            self._catch_up()
            if not self.ended and len(self._lines) == self._scanned:
                await self._more.wait()

    def _cut(self, end: int, after: int) -> bytes:
        line = bytes(self._lines[:end])
        # A whole line may end in \r\n. A piece of a long line ends anywhere, and its \r belongs to the text.
        if after > end:
            line = line.removesuffix(b"\r")
        del self._lines[:after]
        self._scanned = 0
        self._catch_up()
        return line

    def _catch_up(self) -> None:
        """Read again if there is room for more lines."""
        if len(self._lines) >= self._limit or self._fd < 0 or self._rest is not None:
            return
        if self._exited and not self.ended:
            self.finish()
        else:
            self._resume()


class Input:
    """The input of a process, written as fast as the process reads."""

    def __init__(self, fd: int, data: bytes) -> None:
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._rest = memoryview(data)
        self._loop.add_writer(fd, self._writable)

    def _writable(self) -> None:
        try:
            self._rest = self._rest[os.write(self._fd, self._rest[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the process has closed its input
            self._rest = self._rest[:0]
        if not self._rest:
            self.close()

    def close(self) -> None:
        """Close the pipe; the process sees the end of its input."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._loop.remove_writer(fd)
            os.close(fd)
