"""Connections, the schema and its migrations, and the statements, which live in .sql files with a name each.

A database with a later schema is refused: this version does not know what its columns mean. The migrations that a
database lacks run in one transaction.
"""

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from interlock.stores.base import StoreFailed

_NAMED = re.compile(r"^-- name: (\w+)\n((?:--.*\n)+)", re.MULTILINE)
_ROW = re.compile(r"\((?:\?, )*\?\)")
_SQL = resources.files("interlock.stores.sqlite") / "sql"

# A connection waits this long for a locked database; the writer then tries again.
BUSY_MS = 20
# The most rows of one statement. Their number is a power of two, so that few statements are prepared.
MANY = 64


@cache
def statements(name: str) -> dict[str, str]:
    """Return the statements of a .sql file by name."""
    parts = _NAMED.split((_SQL / f"{name}.sql").read_text())
    return {parts[at]: parts[at + 2].strip().rstrip(";") for at in range(1, len(parts), 3)}


def many(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Execute a statement with VALUES for many rows, in few steps; return how many rows it changed.

    If this raises, some of the rows may be written: the caller rolls back, or writes each of them again.
    """
    changed = at = 0
    while left := len(rows) - at:
        size = min(MANY, 1 << left.bit_length() - 1)
        given = [value for row in rows[at : at + size] for value in row]
        changed += connection.execute(_for_rows(sql, size), given).rowcount
        at += size
    return changed


@cache
def _for_rows(sql: str, count: int) -> str:
    """Return a statement for so many rows.

    OR FAIL: SQLite need not be able to undo the first rows when a later one fails, so it copies no page beforehand.
    """
    verb, rest = sql.split(" ", 1)
    return f"{verb} OR FAIL {_ROW.sub(lambda row: ', '.join([row[0]] * count), rest, count=1)}"


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Return every migration, in order, by number."""
    files = (file for file in (_SQL / "migrations").iterdir() if file.name.endswith(".sql"))
    return tuple(sorted((int(file.name[:4]), file.read_text()) for file in files))


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """Open the database; without `writes` SQLite refuses every write."""
    mode = "rw" if writes else "ro"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, cached_statements=256,
        check_same_thread=False, timeout=BUSY_MS / 1000,
    )  # fmt: skip
    connection.execute("PRAGMA temp_store = MEMORY")
    if writes:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA synchronous = FULL")
    return connection


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the database to this schema, or refuse one that is newer."""
    have = connection.execute("PRAGMA user_version").fetchone()[0]
    newest = migrations()[-1][0]
    if have > newest:
        raise StoreFailed(
            f"{path} has schema {have}, this version knows {newest}; upgrade interlock, or use another directory"
        )
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreFailed(f"{path} cannot keep a write-ahead log here; choose a directory on a local disk")
    missing = [script for number, script in migrations() if number > have]
    # One transaction for all: a kill between two migrations would leave a schema that no version has written (race 94).
    if missing:
        script = "\n".join(missing)
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {newest};\nCOMMIT;")
