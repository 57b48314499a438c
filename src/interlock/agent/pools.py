"""Threads of this process that may act for a run: all but control's own, and all but pool threads that wait for work.

1. A thread cannot be ended from outside, and Python does not say what a thread does. It can be seen whether a pool's
   thread waits for work.
2. Only threads that run Python are seen. A thread that a library made without Python is not.
"""

import gc
import sys
import threading
from collections.abc import Set
from types import FrameType
from typing import Any, NamedTuple

# Names of control's own threads begin with this, also those of tools with thread=True.
OWN = "interlock"
# The threads of the last look, if all of them were control's own: the next look mostly finds the same ones.
_only_own: list[tuple[Set[int], list[threading.Thread]]] = []


class Nameless(NamedTuple):
    """A thread that runs Python and was started without `threading`."""

    ident: int

    @property
    def name(self) -> str:
        """The thread's name in a receipt."""
        return f"a thread without a name ({self.ident})"


def at_work() -> frozenset[threading.Thread | Nameless]:
    """Return the threads that are not known to be idle. Call it on the loop."""
    here = threading.current_thread()
    # Frames first, names second. In the other order a thread that starts in between would have a frame, and count as
    # one without a name.
    running = set(_frames())
    known = threading.enumerate()
    if _only_own == [(running, known)]:
        return frozenset()
    found = {each for each in known if each is not here and not each.name.startswith(OWN)}
    nameless = running - {each.ident for each in known if each.ident is not None}
    _only_own[:] = [] if found or nameless else [(running, known)]
    return frozenset([*(found - idle() if found else ()), *map(Nameless, nameless)])


def idle() -> set[threading.Thread]:
    """Return the threads of executors, the loop's own among them, and of anyio's pool that wait for work."""
    found: set[threading.Thread] = set()
    frames = _frames()
    pools: Any = sys.modules.get("concurrent.futures.thread")
    for worker, queue in list(getattr(pools, "_threads_queues", {}).items()):
        executor = getattr(worker, "_args", (lambda: None,))[0]()
        frame = frames.get(worker.ident)
        resting = executor is not None and executor._idle_semaphore._value >= len(executor._threads)
        # The semaphore alone is not enough: it counts too many idle threads once work has had to wait. So the queue
        # must be empty and the thread must stand in the pool's own function.
        if resting and queue.empty() and frame is not None and frame.f_code is pools._worker.__code__:
            found.add(worker)
    pool: Any = sys.modules.get("anyio._backends._asyncio")
    if pool is not None:
        found.update(pool._threadpool_idle_workers.get(()))
    return found


def _frames() -> dict[int, FrameType]:
    """Return the frame of each thread but this one, without a garbage collection amid.

    A dict with the caller's own frame, in a variable of that frame, would be a cycle that holds everything above it.

    CPython 3.11 makes the frames while it holds the lock on the list of threads. A collection there may run Python and
    let another thread go on; if that one starts a thread, it waits for the lock and holds the interpreter, for ever.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    del frames[threading.get_ident()]
    return frames
