"""Threads of this process that may act for a run: all but control's own, and those of a pool that wait for work.

1. Nobody can end a thread, and nobody is told what it does. What can be seen is that one of a pool waits for work.
2. Only threads that run Python are seen: one that a library made without telling Python is not.
"""

import sys
import threading
from typing import Any, NamedTuple

OWN = "interlock"  # what the names of control's own threads begin with, those of tools included


class Nameless(NamedTuple):
    """A thread that runs Python and was started without `threading`."""

    ident: int

    @property
    def name(self) -> str:
        """How a receipt calls it."""
        return f"a thread without a name ({self.ident})"


def at_work() -> frozenset[threading.Thread | Nameless]:
    """Return the threads that are not known to be idle; to be asked on the loop."""
    here = threading.current_thread()
    running = set(sys._current_frames())  # first: whoever has a name by now had it then, or is in its first step
    known = threading.enumerate()
    found = {each for each in known if each is not here and not each.name.startswith(OWN)}
    nameless = map(Nameless, running - {each.ident for each in known if each.ident is not None})
    return frozenset([*(found - idle() if found else ()), *nameless])


def idle() -> set[threading.Thread]:
    """Return the threads of executors, the loop's own among them, and of anyio's pool that wait for work."""
    found: set[threading.Thread] = set()
    frames = sys._current_frames()
    pools: Any = sys.modules.get("concurrent.futures.thread")
    for worker, queue in list(getattr(pools, "_threads_queues", {}).items()):
        executor = getattr(worker, "_args", (lambda: None,))[0]()
        frame = frames.get(worker.ident)
        resting = executor is not None and executor._idle_semaphore._value >= len(executor._threads)
        if resting and queue.empty() and frame is not None and frame.f_code is pools._worker.__code__:
            found.add(worker)  # (the semaphore alone counts too many once work had to wait)
    pool: Any = sys.modules.get("anyio._backends._asyncio")
    if pool is not None:
        found.update(pool._threadpool_idle_workers.get(()))
    return found
