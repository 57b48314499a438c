"""The server of a data directory: whether one has it, and where that server is.

The kernel says whether a server has the directory: the server holds a lock alone, and a look is refused a shared one.
What the server wrote there counts only meanwhile: a killed server leaves its URL behind, and the port may be another
program's by now.
"""

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Return whether a process has a lock; the look itself holds a shared one for an instant."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def served_at(data: Path) -> str | None:
    """Return where the server of a data directory is; None if there is none, or it does not say."""
    try:
        data = data.expanduser()
        told = (data / "url").read_text("utf-8").strip()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home directory
        return None
    return told if told and is_locked(data / "access.lock") else None
