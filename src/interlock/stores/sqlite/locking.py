"""The kernel's lock on a store's directory.

The kernel frees the lock with its holder, however that ends. The pid in the file is only for the error text: no pid is
believed and no stale lock is broken. A forked child gives the lock up.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from interlock.stores.base import StoreFailed

# How often, and at what pace, the lock is tried.
HOLD_TRIES, HOLD_SECONDS = 50, 0.005
_HELD: set[int] = set()


def hold(directory: Path, name: str = "lock", *, tries: int = HOLD_TRIES) -> int:
    """Take the lock on a directory; raise StoreFailed if another has it (race 83)."""
    path = directory / name
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _try_lock(handle, tries):
        holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        which = "this process" if holder == str(os.getpid()) else f"another interlock (process {holder})"
        raise StoreFailed(f"{directory} is in use by {which}; stop that one, or use another directory")
    _HELD.add(handle)
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        unlock(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Give a directory's lock back."""
    _HELD.discard(handle)
    os.close(handle)


def _try_lock(handle: int, tries: int) -> bool:
    """Take the lock; try several times, because a reader that checks whether it is taken holds it for an instant."""
    for _ in range(tries):
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(HOLD_SECONDS)
    return False


def _unlock_in_child() -> None:
    """Close the locks in a forked child, so that it does not keep them when its parent is gone."""
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_unlock_in_child)
