"""The error output of helper, zygote, hosts and workers: a thread of control copies it to control's own, line by line.

1. Each of these processes has a pipe of its own, and none has control's descriptor. A process with that descriptor
   could truncate the log behind it, or change the terminal for everybody, whatever the rights of its user are. (Only
   `interlock run` hands its own descriptors over.)
2. Each line begins with the name of its writer, and control characters are spelled out, so no process can forge a line
   of the log.
3. Each source may write BURST_BYTES at once and then BYTES_PER_SECOND. More is read slowly, left out and counted.
4. Control does not wait for a slow reader of its error output: lines are left out instead.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

BURST_BYTES = 1024 * 1024  # of one source, at once
BYTES_PER_SECOND = 64 * 1024  # of one source, after its burst
LINE_BYTES = 16 * 1024  # a longer line is written in pieces
READ_BYTES = 64 * 1024
PAUSE_SECONDS = 0.02  # between two reads of a source that is beyond its bound
BLOCKED_SECONDS = 0.1  # how long control's error output may be full before a line is left out
PIECE_BYTES = 4096  # the least that a pipe which select calls writable takes
CLOSE_SECONDS = 1.0
OURS = 2


class Source:
    """The reading end of one process's error output."""

    def __init__(self, fd: int, name: Callable[[], str]) -> None:
        self.fd = fd
        self._name = name
        self._data = bytearray()
        self._budget = float(BURST_BYTES)
        self._at = time.monotonic()
        self._left_out = 0

    @property
    def beyond(self) -> bool:
        """True while the source writes more than its bound."""
        return self._left_out > 0

    def feed(self, data: bytes) -> list[str]:
        """Add data of the source; return the lines to write now. Empty data is the end of the source."""
        now = time.monotonic()
        self._budget = min(self._budget + (now - self._at) * BYTES_PER_SECOND, BURST_BYTES)
        self._at = now
        self._data += data
        *lines, rest = bytes(self._data).split(b"\n")
        while len(rest) > LINE_BYTES or (rest and not data):
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self._data = bytearray(rest)
        told = [said for line in lines for said in self._tell(line)]
        return told if data else told + self._gap()

    def _tell(self, line: bytes) -> list[str]:
        if len(line) + 1 > self._budget:
            self._left_out += len(line) + 1
            return []
        self._budget -= len(line) + 1
        pieces = [line[at : at + LINE_BYTES] for at in range(0, len(line), LINE_BYTES)] or [b""]
        return self._gap() + [self._line(_text(piece)) for piece in pieces]

    def _gap(self) -> list[str]:
        count, self._left_out = self._left_out, 0
        return [self._line(f"({count} bytes left out here: it wrote too much)")] if count else []

    def _line(self, text: str) -> str:
        return f"{_plain(self._name())}: {_plain(text)}\n"


class ErrorOutput:
    """Reads every source, in a thread that begins with the first of them."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._paused: list[tuple[float, Source]] = []
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._close_at: float | None = None

    def pipe(self, name: Callable[[], str], user: int | None = None) -> int:
        """Return the writing end of a new source; the caller hands it over and closes it.

        The pipe belongs to `user` if there is one, so that a program of that user may open /dev/stderr.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(reading, False)
            if user is not None:
                os.fchown(writing, user, -1)
            with self._lock:
                if self._close_at is not None:
                    raise OSError(9, "this control is closed")
                self._open().register(reading, select.EPOLLIN)
                self._sources[reading] = Source(reading, name)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="interlock error output", daemon=True)
                    self._thread.start()
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        return writing

    def _open(self) -> select.epoll:
        if self._epoll is None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC)
            try:
                self._epoll = select.epoll()
            except OSError:
                os.close(self._wake)
                raise
            self._epoll.register(self._wake, select.EPOLLIN)
        return self._epoll

    def close(self) -> bool:
        """Accept no more sources and write what is left within CLOSE_SECONDS; return whether `join` has a thread."""
        with self._lock:
            self._close_at = time.monotonic() + CLOSE_SECONDS
            if self._thread is not None:
                os.eventfd_write(self._wake, 1)
            return self._thread is not None

    def join(self) -> None:
        """Wait until everything is written; bounded. This blocks, and is called in a thread."""
        if self._thread is not None:
            self._thread.join(2 * CLOSE_SECONDS)

    def _run(self) -> None:
        epoll = self._open()
        while (timeout := self._timeout()) is None or timeout > 0:
            for fd, _ in epoll.poll(timeout):
                if fd == self._wake:
                    os.eventfd_read(fd)
                else:
                    self._read(epoll, self._sources[fd])
            now = time.monotonic()
            for _, source in [each for each in self._paused if each[0] <= now]:
                epoll.register(source.fd, select.EPOLLIN)
            self._paused = [each for each in self._paused if each[0] > now]
        for source in list(self._sources.values()):
            self._end(source)
        epoll.close()
        os.close(self._wake)

    def _timeout(self) -> float | None:
        """Return the seconds until the next look, None for as long as it takes, 0 when all is over."""
        with self._lock:
            if self._close_at is not None and (not self._sources or time.monotonic() > self._close_at):
                return 0
            return PAUSE_SECONDS if self._paused or self._close_at is not None else None

    def _read(self, epoll: select.epoll, source: Source) -> None:
        try:
            data = os.read(source.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            epoll.unregister(source.fd)
            self._end(source)
            return
        _write(source.feed(data))
        if source.beyond:
            epoll.unregister(source.fd)
            self._paused.append((time.monotonic() + PAUSE_SECONDS, source))

    def _end(self, source: Source) -> None:
        _write(source.feed(b""))
        with self._lock:
            del self._sources[source.fd]
            os.close(source.fd)


def _write(lines: list[str]) -> None:
    """Write lines to control's own error output; a reader that is too slow misses lines."""
    for line in lines:
        view = memoryview(line.encode())
        try:
            while view:
                if not select.select([], [OURS], [], BLOCKED_SECONDS)[1]:
                    return
                view = view[os.write(OURS, view[:PIECE_BYTES]) :]
        except OSError:
            # The error output is full after all, or closed.
            return


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "backslashreplace")


def _plain(text: str) -> str:
    """Spell out every character that would move a cursor or begin a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\t" else ascii(each)[1:-1] for each in text)
