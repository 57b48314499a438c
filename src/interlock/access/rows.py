"""The rows of tokens, in DATA/access.db.

1. One process at a time has them: the kernel's lock on DATA/access.lock decides. That is the server, or a shell where
   no server has it. So nothing in the file changes behind a server's back, and a server never reads it again.
2. One change is one transaction, on the disk when the call returns. With a rollback journal, SQLite's EXTRA syncs the
   directory too: otherwise a power cut could bring the journal back, and with it a token that was removed.
3. The operator's token is a file in plain text, which the shell on this machine reads. The rename of that file is the
   rotation; a page that stands on an older token is forgotten.

A database of its own, not the store's: `asgi` serves any control, also one whose store is in memory or elsewhere, and a
store that refuses writes after a fault must not keep a token from being removed.
"""

import re
import sqlite3
import time
from pathlib import Path
from typing import Annotated

import msgspec

from interlock.access import files
from interlock.access.files import AccessFailed
from interlock.core.names import LOCAL, Principal
from interlock.core.scopes import Scope
from interlock.stores.base import StoreFailed
from interlock.stores.sqlite.locking import hold, unlock
from interlock.stores.sqlite.schema import connect

OPERATOR = Principal("operator")
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
LOCK_SECONDS = 5.0
BUSY_MS = 1_000  # for a program that reads the file, such as a backup
SCHEMA = 1
TABLE = (
    "CREATE TABLE tokens (digest TEXT PRIMARY KEY, name TEXT NOT NULL, token TEXT NOT NULL, scopes TEXT NOT NULL,"
    " created_at TEXT NOT NULL)",
    "CREATE UNIQUE INDEX one_of_each_name ON tokens (name) WHERE digest = token",
    f"PRAGMA user_version = {SCHEMA}",
)
ADD = "INSERT INTO tokens (digest, name, token, scopes, created_at) VALUES (?, ?, ?, ?, ?)"
REMOVE = "DELETE FROM tokens WHERE ? IN (digest, token)"
FIND = "SELECT digest, name, token, scopes, created_at FROM tokens ORDER BY rowid"


class Row(msgspec.Struct, frozen=True):
    """A token, by its digest. `token` is the principal's own: itself, or for a page the one on which it stands."""

    digest: str
    name: Principal
    token: str
    scopes: tuple[Scope, ...] = ()  # of a principal's own token
    created_at: str = ""


Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token in principals.json of an earlier directory, by its principal's name."""

    hash: Digest
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1)]
    created_at: str


class _Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page in pages.json of an earlier directory."""

    hash: Digest
    name: str
    of: Digest
    created_at: str


class InUse(AccessFailed):
    """Another process has the tokens: a server, at `url` if it says so."""

    def __init__(self, directory: Path, url: str | None) -> None:
        where = f"at {url}" if url else "which does not say where; name it with --url"
        super().__init__(f"the tokens in {directory} are in use by a server, {where}")
        self.url = url


def is_name(name: str) -> bool:
    """Return whether a principal may have this name."""
    return NAME.fullmatch(name) is not None and name.lower() not in (OPERATOR, LOCAL)


class Rows:
    """The rows of a directory, from `__init__` until `close`; `found` are those at the beginning. Verbs wait."""

    def __init__(self, directory: Path, patience: float = LOCK_SECONDS) -> None:
        self._operator, self._url, self._path = (directory / name for name in ("token", "url", "access.db"))
        self._hold = _hold(directory, self._url, patience)
        try:
            self._url.unlink(missing_ok=True)  # of a server that was killed
            files.read(self._path, make=True)
            self._db = connect(self._path, writes=True)
            self._db.execute("PRAGMA synchronous = EXTRA")
            self._db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            self._prepare(directory)
            self.found = [
                Row(digest, name, token, tuple(Scope(scope) for scope in scopes.split(",") if scope), at)
                for digest, name, token, scopes, at in self._db.execute(FIND)
            ]
        except BaseException as error:
            unlock(self._hold)
            if isinstance(error, sqlite3.Error | ValueError):
                raise AccessFailed(f"{self._path} cannot be read: {error}; put it right or remove it") from None
            raise

    def close(self) -> None:
        """Give the rows back."""
        self._url.unlink(missing_ok=True)
        self._db.close()
        unlock(self._hold)

    def _prepare(self, directory: Path) -> None:
        """Make the table, and take over the tokens that an earlier directory has in files."""
        schema = self._db.execute("PRAGMA user_version").fetchone()[0]
        if schema > SCHEMA:
            raise AccessFailed(f"{self._path} has schema {schema}, this version knows {SCHEMA}; upgrade interlock")
        if schema == SCHEMA:
            return
        old = directory / "principals.json", directory / "pages.json"
        tokens, pages = (files.read(path) for path in old)
        entries = {} if tokens is None else files.decoded(tokens, old[0], dict[str, _Entry])
        if not all(map(is_name, entries)):
            raise AccessFailed(f"{old[0]} has a name that no principal may have; put it right or remove it")
        rows = [Row(own.hash, Principal(name), own.hash, own.scopes, own.created_at) for name, own in entries.items()]
        for page in [] if pages is None else files.decoded(pages, old[1], list[_Page]):
            rows.append(Row(page.hash, Principal(page.name), page.of, (), page.created_at))
        self._write(*((statement, ()) for statement in TABLE), *map(_added, rows))
        for path in old:
            path.unlink(missing_ok=True)

    def add(self, row: Row, *gone: Row) -> None:
        """Add a row, and remove others."""
        self._write(*((REMOVE, (each.digest,)) for each in gone), _added(row))

    def remove(self, *gone: Row) -> None:
        """Remove rows, and those of the pages that stand on them."""
        self._write(*((REMOVE, (each.digest,)) for each in gone))

    def rotate(self, token: str) -> None:
        """Replace the operator's token."""
        files.write(self._operator, f"{token}\n".encode())

    def tell_url(self, url: str) -> None:
        """Write where the server is, for the shell on this machine."""
        files.write(self._url, f"{url}\n".encode())

    def _write(self, *statements: tuple[str, tuple[str, ...]]) -> None:
        """Make one transaction of statements."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for statement, values in statements:
                    self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise AccessFailed(f"{self._path} could not be written: {error}; make room and try again") from None


def _added(row: Row) -> tuple[str, tuple[str, ...]]:
    return ADD, (row.digest, row.name, row.token, ",".join(row.scopes), row.created_at)


def _hold(directory: Path, url: Path, patience: float) -> int:
    """Take the lock; raise InUse at once if a server that is ready has it, and after `patience` seconds if another."""
    end = time.monotonic() + patience
    while True:
        try:
            return hold(directory, "access.lock", tries=1)
        except StoreFailed:
            told = (files.read(url) or b"").decode(errors="replace").strip()
            if told or time.monotonic() > end:
                raise InUse(directory, told or None) from None
        except OSError as error:
            raise AccessFailed(f"{directory / 'access.lock'} cannot be opened: {error.strerror}; remove it") from None
