"""The notice that a run is over, for code that no cancel reaches: a thread, a worker, a host whose loop is blocked.

1. Where control is another process the notice is a pipe, and control writes to it in the step of the fall. Code that
   asks polls the pipe itself, so no loop and no thread need be free to hear.
2. Asking takes nothing out of the pipe: every thread that waits is woken, and the answer stays the same.
3. `tell` neither waits nor fails: it is a part of the step in which a run falls.
4. A worker serves one run, and so its whole process hears one notice. A host serves many turns with one pipe: each
   `Fallen` comes with one byte, and the bytes of earlier turns are taken out before the next turn begins.
5. Control's end of the pipe stays open until the process is gone. A close makes the pipe readable, and so would tell a
   tool without a grace, which is killed and not told.

A host and a worker ask the notice immediately before the body of a tool begins. A tool that was permitted, and then
waited for a blocked loop or for an import, never begins after the fall was told (tests/races.md, race 136).

The bare worker imports this file, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from contextvars import ContextVar

from interlock.core.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

NOTICE_FD = 3  # the descriptor at which an exec'd program finds its end of the pipe
LONGEST_SECONDS = 86_400.0  # one poll at most, since its milliseconds are a C int
SET = select.POLLIN | select.POLLHUP | select.POLLERR

_making = threading.Lock()


class Notice:
    """Set once, when the run is over: stopped, taken over, out of time, or ended by itself."""

    __slots__ = ("__weakref__", "_both", "_own", "_pipe", "_told", "_told_by", "_wakers")

    def __init__(self, pipe: int = -1, *, told_by: int | None = None) -> None:
        # Readable once control, in another process, has told. -1 if the notice is told in this process.
        self._pipe = pipe
        # The thread that calls `tell`. It must not wait for itself.
        self._told_by = told_by
        self._told = False
        self._own = -1  # readable once `tell` was called here; made when first needed
        self._both: select.epoll | None = None  # readable when `_pipe` or `_own` is
        self._wakers: dict[object, Callable[[], None]] = {}  # by the future that awaits the notice

    def __repr__(self) -> str:
        return f"<stopping: {'set' if self.is_set() else 'not set'}>"

    def __del__(self) -> None:
        if self._own >= 0:
            os.close(self._own)

    def is_set(self) -> bool:
        """Return whether the run is over. This asks the descriptors themselves, and never waits."""
        # In a fork `_own` may be readable though `tell` was not called there: it was called in the parent process.
        if not self._told and (_ready(self._pipe, 0.0) or _ready(self._own, 0.0)):
            self.tell()
        return self._told

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over, `timeout` seconds at most; return whether it is over. This blocks the thread."""
        until = math.inf if timeout is None else time.monotonic() + _seconds(timeout)
        if self.is_set() or until <= time.monotonic():
            return self._told
        if self._told_by == threading.get_ident():
            raise BadInput(
                "stopping().wait() would block the loop that the run falls on, so it could never return; "
                "use `await interlock.stopping()` here, or wait in a thread"
            )
        fd = -1 if self is NEVER else self.fileno()
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            _ready(fd, min(left, LONGEST_SECONDS))
        return self._told

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in a loop until the run is over."""
        return self._heard().__await__()

    def fileno(self) -> int:
        """Return a descriptor that is readable once the run is over, for `select` and its like. Never read from it."""
        with _making:
            if self._own < 0:
                own = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                try:
                    if self._pipe >= 0:
                        both = select.epoll()
                        both.register(self._pipe, select.EPOLLIN)
                        both.register(own, select.EPOLLIN)
                        self._both = both
                except OSError:
                    os.close(own)
                    raise
                self._own = own
                # `tell` may have been called before there was an eventfd to write to.
                if self._told:
                    os.eventfd_write(own, 1)
        return self._own if self._both is None else self._both.fileno()

    def tell(self) -> None:
        """Set the notice, from any thread. The code that ends the run calls this."""
        if self._told:
            return
        self._told = True
        if self._own >= 0:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._own, 1)
        for wake in tuple(self._wakers.values()):
            wake()

    async def _heard(self) -> None:
        import asyncio  # noqa: PLC0415 - a worker does without it, unless its tool awaits

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle)

        self._wakers[woken] = wake
        try:
            with self._read_by(loop):
                if not self.is_set():
                    await woken
        finally:
            del self._wakers[woken]

    @contextlib.contextmanager
    def _read_by(self, loop: Any) -> Iterator[None]:
        """Let a loop watch the pipe, through a duplicate: a loop has only one reader for each descriptor."""
        if self._pipe < 0 or self._told:
            yield
            return
        fd = os.dup(self._pipe)
        try:
            loop.add_reader(fd, self.is_set)
            yield
        finally:
            loop.remove_reader(fd)
            os.close(fd)


def _ready(fd: int, seconds: float) -> bool:
    """Return whether a descriptor is readable, or becomes so within `seconds`; -1 never does."""
    if fd < 0 and not seconds:
        return False
    poll = select.poll()  # a new one, since two threads may not use the same
    if fd >= 0:
        poll.register(fd, select.POLLIN)
    return any(events & SET for _, events in poll.poll(math.ceil(seconds * 1000)))


def _seconds(timeout: object) -> float:
    """Return `timeout` as a float. A negative number is allowed, and means no wait: the caller's time is over."""
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float can hold
            if not math.isnan(seconds := float(timeout)):
                return seconds
    raise BadInput(f"timeout= is a number of seconds or None, not {timeout!r:.40}")


NEVER = Notice()
"""The notice of code outside a run. It is never set, so that the same code works in a script and in a test."""

_of_context: ContextVar[Notice | None] = ContextVar("interlock.stopping", default=None)
_of_process = [NEVER]


def stopping() -> Notice:
    """Return the notice of the run that this code belongs to; outside a run the notice is never set."""
    here = _of_context.get()
    return _of_process[0] if here is None else here


@contextlib.contextmanager
def heard(notice: Notice) -> Iterator[None]:
    """Let the code in this context hear a notice, and all code that inherits the context."""
    before = _of_context.set(notice)
    try:
        yield
    finally:
        # ValueError: a task was closed from another context. Its own context is gone, and nothing is to be reset.
        with contextlib.suppress(ValueError):
            _of_context.reset(before)


def heard_by_all(notice: Notice) -> None:
    """Let the whole process hear a notice, even threads without a context. For a process that serves one run only."""
    _of_process[0] = notice


def take_notice() -> int:
    """Move the pipe from NOTICE_FD to a descriptor that programs executed here do not inherit, and return it."""
    fd = os.dup(NOTICE_FD)
    os.close(NOTICE_FD)
    return fd


def pipe() -> tuple[int, int]:
    """Return both ends of a notice for another process: the end that it polls, and the end that control writes to.

    Control's end is non-blocking, so the other process cannot make control wait.
    """
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    return hears, tells


def write(tells: int) -> None:
    """Tell another process. A full pipe was told often enough, and of a pipe without a reader nobody asks."""
    with contextlib.suppress(OSError):
        os.write(tells, b"\0")
