"""Pruning a directory that no server has, as a server does every hour.

Pruning takes the directory's lock without a boot. It is no start of a server, so runs that a killed server left stay
unsettled, and the next start settles them.
"""

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from interlock.core.errors import BadInput
from interlock.look.documents import Forgotten
from interlock.look.reading import BUSY_MS, readable
from interlock.stores.base import Pruned, StoreFailed
from interlock.stores.sqlite import pruning
from interlock.stores.sqlite.locking import hold, unlock
from interlock.stores.sqlite.reads import Look
from interlock.stores.sqlite.schema import connect
from interlock.stores.sqlite.store import KEEP_DAYS

T = TypeVar("T")

UNITS_OF_AGE = {"h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def age(text: str) -> float:
    """Read an age: 12h, 30d, 8w."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hdw])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no age; write 12h, 30d or 8w")
    return float(found[1]) * UNITS_OF_AGE[found[2]]


async def forget(directory: Path, older_than: float, *, dry_run: bool) -> Forgotten:
    """Forget sessions without a message in the last `older_than` seconds, and of others what is beyond the bounds."""
    directory = readable(directory)
    try:
        held = hold(directory)
    except OSError as error:
        raise StoreFailed(f"{directory} cannot be taken: {error.strerror}") from None
    except StoreFailed:
        raise StoreFailed(f"{directory} is in use by a server, which prunes it every hour; nothing was done") from None
    try:
        with contextlib.closing(connect(Look(directory).path, writes=True)) as db:
            gone = await _forget(db, time.time() - older_than, dry_run=dry_run)
    except sqlite3.Error as error:
        raise StoreFailed(f"{directory} cannot be written: {error}") from None
    finally:
        unlock(held)
    return Forgotten(data=str(directory), dry_run=dry_run, older_than_seconds=older_than, forgotten=gone)


async def _forget(db: sqlite3.Connection, before: float, *, dry_run: bool) -> Pruned:
    async def look(work: Callable[[sqlite3.Connection], T], /) -> T:
        return work(db)

    async def change(work: Callable[[sqlite3.Connection], T], /) -> T:
        if dry_run:  # the whole pruning is one transaction, which is rolled back
            return work(db)
        db.execute("BEGIN IMMEDIATE")
        try:
            done = work(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        return done

    db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    db.execute("CREATE TEMP TABLE doomed (id TEXT PRIMARY KEY) WITHOUT ROWID")
    if dry_run:
        db.execute("BEGIN IMMEDIATE")
    try:
        return await pruning.prune(look, change, before=before, keep_days=KEEP_DAYS)
    finally:
        if dry_run:
            db.execute("ROLLBACK")
