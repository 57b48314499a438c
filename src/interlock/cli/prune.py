"""`interlock prune`: a directory that no server has forgets what is too old, as a server does every hour.

Pruning takes the directory's lock without a boot. Were it a start, its clean end would hide from the next start that
the last server was killed; so runs that such a server left stay unsettled, and the next start settles them.
"""

import asyncio
import contextlib
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from interlock.cli.options import AsJson, Store
from interlock.cli.printing import count, print_json, print_line
from interlock.cli.reading import BUSY_MS, readable
from interlock.core.errors import BadInput
from interlock.stores.base import Pruned, StoreFailed
from interlock.stores.sqlite import pruning
from interlock.stores.sqlite.locking import hold, unlock
from interlock.stores.sqlite.reads import Look
from interlock.stores.sqlite.schema import connect
from interlock.stores.sqlite.store import KEEP_DAYS

T = TypeVar("T")

UNITS_OF_AGE = {"h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}

commands = typer.Typer()


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `interlock prune --json`."""

    data: str
    dry_run: bool
    older_than_seconds: float
    forgotten: Pruned


@commands.command("prune", short_help="Forget what is too old or too much.")
def prune_command(
    data: Store,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Forget sessions in which nobody wrote for so long: 12h, 30d, 8w.")
    ] = f"{KEEP_DAYS:.0f}d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be forgotten.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget old sessions, and of others what is beyond the bounds; never what runs, waits or is scheduled.

    A server does this by itself every hour; this is for a directory that none has.
    """
    found = asyncio.run(forget(data, age(older_than), dry_run=dry_run))
    print_json(found) if as_json else _tell(found)


def _tell(found: Forgotten) -> None:
    """Print what was forgotten."""
    gone = found.forgotten
    counts = (count(gone.sessions, "session"), count(gone.runs, "run"), count(gone.events, "event"))
    print_line(f"{'would be forgotten' if found.dry_run else 'forgotten'}: {', '.join(counts)}")


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
