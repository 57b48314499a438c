"""The errors of a database, and what each means for a write.

After a failed fsync, or in a damaged or replaced file, the content of the disk is unknown. A full or read-only disk
refuses a write and keeps nothing of it. Any other error comes from the content that was to be written.
"""

import sqlite3
from pathlib import Path

from interlock.stores.base import Unsure

UNSURE = {
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_DIR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
PASSED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Replaced(Exception):
    """The open file is not the one that the next start would open."""


def identity(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file, or None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def unsure(error: Exception) -> Unsure | None:
    """Return the error for callers if the content of the disk is unknown after this one."""
    if isinstance(error, Replaced) or _code(error) in UNSURE or _code(error) & 0xFF in UNSURE:
        return Unsure(
            f"the disk failed ({reason(error)}): whether this was kept is not known, and nothing more is taken; "
            "look at the disk and restart, then send it again with the same key"
        )
    return None


def of_disk(error: Exception) -> bool:
    """Whether the disk or the database caused the error, not the content that was to be written."""
    return isinstance(error, sqlite3.OperationalError | Replaced) or type(error) is sqlite3.DatabaseError


def is_passing(error: sqlite3.Error) -> bool:
    """Whether the database was only locked by another connection."""
    return _code(error) & 0xFF in PASSED


def reason(error: BaseException) -> str:
    """Return an error with SQLite's name for it."""
    if isinstance(error, Replaced):
        return str(error)
    return f"{getattr(error, 'sqlite_errorname', None) or type(error).__name__}: {error}"


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) or 0
