"""The notice that a run is over, for code that cannot be cut: a thread, a worker, a host whose loop is blocked.

1. Where control is another process the notice is a pipe, and control writes to it in the step of the fall. Whoever asks
   polls the pipe itself, so no loop and no thread need be free to hear.
2. Asking takes nothing out of the pipe: every thread that waits is woken, and the answer stays the same.
3. `tell` neither waits nor fails: it is a part of the step in which a run falls.

Imported by the bare worker: the standard library's smallest modules only.
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

NOTICE_FD = 3  # where a program that was exec'd finds its end of the pipe
LONGEST_SECONDS = 86_400.0  # of one poll, whose milliseconds are a C int
SET = select.POLLIN | select.POLLHUP | select.POLLERR

_making = threading.Lock()


class Notice:
    """Set once, when the run is over: stopped, taken over, out of time, or ended by itself."""

    __slots__ = ("__weakref__", "_both", "_own", "_pipe", "_told", "_told_by", "_wakers")

    def __init__(self, pipe: int = -1, *, told_by: int | None = None) -> None:
        self._pipe = pipe  # readable once control says so, from its own process; -1: it is told in this one
        self._told_by = told_by  # the thread that tells, which must not wait for itself
        self._told = False
        self._own = -1  # readable once it was told here; made when first needed
        self._both: select.epoll | None = None  # readable with either of the two
        self._wakers: dict[object, Callable[[], None]] = {}  # of those who await it

    def __repr__(self) -> str:
        return f"<stopping: {'set' if self.is_set() else 'not set'}>"

    def __del__(self) -> None:
        if self._own >= 0:
            os.close(self._own)

    def is_set(self) -> bool:
        """Return whether the run is over. It asks the descriptors themselves, and never waits.

        In a fork its own may be readable though nobody told it there: the process it was forked from was told.
        """
        if not self._told and (_ready(self._pipe, 0.0) or _ready(self._own, 0.0)):
            self.tell()
        return self._told

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over, at most `timeout` seconds; return whether it is. This blocks the thread."""
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
                if self._told:  # whoever told it may have done so before there was anything to write to
                    os.eventfd_write(own, 1)
        return self._own if self._both is None else self._both.fileno()

    def tell(self) -> None:
        """Set it, from any thread; for whoever ends the run."""
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
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
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
        """Have a loop watch the pipe, through a copy: a loop has one reader for each descriptor."""
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
    """Return whether a descriptor is readable, or becomes so within some seconds; -1 never does."""
    if fd < 0 and not seconds:
        return False
    poll = select.poll()  # a fresh one: two threads may not use the same
    if fd >= 0:
        poll.register(fd, select.POLLIN)
    return any(events & SET for _, events in poll.poll(math.ceil(seconds * 1000)))


def _seconds(timeout: object) -> float:
    """Return a time to wait. What is left of a time that is over is less than nothing: then nobody waits."""
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float can hold
            if not math.isnan(seconds := float(timeout)):
                return seconds
    raise BadInput(f"timeout= is a number of seconds or None, not {timeout!r:.40}")


NEVER = Notice()
"""What code hears that runs in no run: it is never set, so that the same code works in a script and in a test."""

_of_context: ContextVar[Notice | None] = ContextVar("interlock.stopping", default=None)
_of_process = [NEVER]


def stopping() -> Notice:
    """Return the notice that the run is over, for code of a run; outside of one it is never set."""
    here = _of_context.get()
    return _of_process[0] if here is None else here


@contextlib.contextmanager
def heard(notice: Notice) -> Iterator[None]:
    """Let what runs in this context hear a notice, and whatever inherits the context."""
    before = _of_context.set(notice)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # closed from another context, with its task: nobody hears it any more
            _of_context.reset(before)


def heard_by_all(notice: Notice) -> None:
    """Let all of this process hear a notice, threads without a context too: it serves one run only."""
    _of_process[0] = notice


def take_notice() -> int:
    """Take the pipe from where it was handed over, and keep it from what is executed here."""
    fd = os.dup(NOTICE_FD)
    os.close(NOTICE_FD)
    return fd


def pipe() -> tuple[int, int]:
    """Return both ends of a notice for another process: what it polls, and what control writes to, without waiting.

    That process holds an end of its own, and can neither fill control's nor make it wait.
    """
    hears, tells = os.pipe()
    os.set_blocking(tells, False)
    return hears, tells


def write(tells: int) -> None:
    """Tell another process. If its pipe is full, it was told often enough; if nobody holds it, nobody asks."""
    with contextlib.suppress(OSError):
        os.write(tells, b"\0")
