"""The data directory and its files, which belong to the server's user alone.

1. A file is written beside its place, synced and renamed: kill -9 and a full disk leave the old or the new.
2. The directory is 0700, a file 0600. One that was open to other users is closed, and the log says so; one that
   belongs to another user is refused.
3. No error and no log quotes a file's contents.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.core.errors import Unavailable

log = logging.getLogger("interlock")
T = TypeVar("T")

FILE_BYTES = 4 * 1024 * 1024


class AccessFailed(Unavailable):
    """The tokens of a server cannot be read or written; no new token counts."""


@contextlib.contextmanager
def _opened(path: Path, flags: int, hint: str) -> Iterator[int]:
    """Open a file that may be missing; any other trouble with it inside the block is told with a hint."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AccessFailed(f"{path} cannot be used: {error.strerror}; {hint}") from None


def make_directory(where: Path) -> None:
    """Make the data directory if it is not there."""
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AccessFailed(f"{where} cannot be made: {error.strerror}; choose another --data") from None


def close_directory(where: Path) -> None:
    """Close the directory to other users, or refuse it: a user who can write there could add a token."""
    try:
        with _opened(where, os.O_RDONLY | os.O_DIRECTORY, "choose another --data") as fd:
            if os.fstat(fd).st_mode & stat.S_ISVTX:  # such as /tmp
                raise AccessFailed(f"{where} is shared by many users; choose a directory of its own with --data")
            _close_to_others(where, fd, 0o700)
    except FileNotFoundError:
        raise AccessFailed(f"there is no {where}; name the gateway's directory with --data") from None


def read(path: Path, *, make: bool = False) -> bytes | None:
    """Return a file's contents, None if there is no file; with `make` an empty file is made then."""
    flags = (os.O_CREAT | os.O_RDWR if make else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with _opened(path, flags, "put it right or remove it") as fd:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_BYTES:
                raise AccessFailed(f"{path} is not a file of ours; move it away")
            _close_to_others(path, fd, 0o600)
            return os.read(fd, FILE_BYTES)
    except FileNotFoundError:
        return None


def write(path: Path, data: bytes) -> None:
    """Replace a file as a whole, or leave it as it was. The caller has the lock, so the temporary name is free."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)  # left by a process that was killed
        fd = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # in spite of the umask
            file.write(data)
            file.flush()
            os.fsync(fd)
        beside.replace(path)
        with _opened(path.parent, os.O_RDONLY | os.O_DIRECTORY, "try again") as above:
            os.fsync(above)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise AccessFailed(f"{path} could not be written: {error.strerror}; make room and try again") from None


def decoded(data: bytes, path: Path, kind: type[T]) -> T:
    """Return the JSON in a file."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = str(error).rpartition(" - ")[2]  # the text before it may quote the file's contents
        raise AccessFailed(f"{path} is not what we write ({where}); put it right or remove it") from None


def _close_to_others(path: Path, fd: int, mode: int) -> None:
    """Check that a file or directory is ours, and close it to other users; warn if it was open to them."""
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid():
        raise AccessFailed(f"{path} belongs to user {facts.st_uid}; be that user, or choose another --data")
    if facts.st_mode & 0o077:
        os.fchmod(fd, mode)
        if os.fstat(fd).st_mode & 0o077:
            raise AccessFailed(f"{path} cannot be closed to other users on this file system; choose another --data")
        said = "%s was open to other users (mode %o) and is closed; if they may have looked, `interlock token rotate`"
        log.warning(said, path, stat.S_IMODE(facts.st_mode))
