"""What the tests of access share: a data directory, its operator, and a disk that is full."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from interlock.access.changes import Changes
from interlock.access.tokens import Access
from interlock.core.scopes import Scope

INTERLOCK = (sys.executable, "-m", "interlock.cli")
BOUND = 30.0  # seconds for any command on a busy machine
WRITE = frozenset({Scope.WRITE})


@contextmanager
def opened(data: Path, *, make: bool = True) -> Iterator[Access]:
    """Open the tokens of a directory for the length of a block, as a server does from its start to its end."""
    access = Access(data)
    access.open(make=make)
    try:
        yield access
    finally:
        access.close()


def change(access: Access, verb: str, *arguments: Any) -> Any:
    """Make a change to its end, as the shell does where no server has the directory."""
    return asyncio.run(getattr(Changes(access), verb)(*arguments))


def add(access: Access, name: str, scopes: Collection[Scope] = WRITE) -> str:
    """Make a principal; return its token."""
    return str(change(access, "add_token", name, scopes).token)


def rows(data: Path) -> list[str]:
    """Return the names in the database, the oldest first."""
    with closing(sqlite3.connect(data / "access.db")) as database:
        return [name for (name,) in database.execute("SELECT name FROM tokens ORDER BY rowid")]


def mode(path: Path) -> int:
    """Return a file's mode."""
    return stat.S_IMODE(path.stat().st_mode)


def operator_token(data: Path) -> str:
    """Return the token that the shell on this machine reads."""
    return (data / "token").read_text().strip()


@contextmanager
def file_bytes(limit: int) -> Iterator[None]:
    """Forbid files to grow beyond a limit: the kernel's own stand-in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def interlock(*arguments: str, data: Path, good: bool = True) -> subprocess.CompletedProcess[str]:
    """Call `interlock token`."""
    done = subprocess.run(
        [*INTERLOCK, "token", *arguments, "--data", str(data)],
        capture_output=True, check=False, timeout=BOUND, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode == 0) is good, done
    return done
