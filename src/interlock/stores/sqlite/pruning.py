"""Pruning: rows beyond a bound go by count, sessions without a message for long go whole.

A reading connection finds the rows. The writer deletes them in small transactions between decisions, so that pruning
delays no stop. A run that has not ended is never pruned, nor a session with such a run or with a schedule.
"""

import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from interlock.stores import bounds
from interlock.stores.base import Pruned
from interlock.stores.sqlite import rows
from interlock.stores.sqlite.schema import statements

T = TypeVar("T")

SQL = statements("prune")
EVENTS = statements("events")

PIECE_EVENTS = 2_000  # events deleted in one transaction
PIECE = 200  # runs or sessions deleted in one transaction
DAY_SECONDS = 86_400.0
# In this order: the statements for the first five look up the rows in `runs`.
FORGOTTEN = ("tools", "questions", "child_events", "child_sessions", "receipts", "runs")


class Does(Protocol):
    """Runs a function with a database connection, in another thread."""

    def __call__(self, work: Callable[[sqlite3.Connection], T], /) -> Awaitable[T]:
        """Run the function and return its result."""
        ...


async def prune(read: Does, write: Does, *, before: float | None, keep_days: float) -> Pruned:
    """Forget what is beyond the bounds; return how much."""
    sessions = runs = events = 0
    since = time.time() - keep_days * DAY_SECONDS if before is None else before
    while old := await read(lambda db: _column(db, SQL["old_sessions"], since, PIECE)):
        for session in old:
            runs += await write(lambda db, name=session: _forget_session(db, name, since))  # type: ignore[misc]
        sessions += len(old)
    for session in await read(lambda db: _column(db, SQL["long_sessions"], bounds.RUNS_KEPT)):
        while gone := await read(
            lambda db, name=session: _column(db, SQL["old_runs"], name, bounds.RUNS_KEPT, PIECE)  # type: ignore[misc]
        ):
            await write(lambda db, ids=gone: _forget_runs(db, ids))  # type: ignore[misc]
            runs += len(gone)
    for session in await read(lambda db: _column(db, SQL["long_logs"], bounds.LOG_EVENTS)):
        while cut := await write(lambda db, name=session: _shorten_log(db, name)):  # type: ignore[misc]
            events += cut
    await write(_bound)
    return Pruned(sessions=sessions, runs=runs, events=events)


def _column(db: sqlite3.Connection, statement: str, *given: object) -> list[str]:
    return [row[0] for row in db.execute(statement, given)]


def _forget_runs(db: sqlite3.Connection, ids: Sequence[str]) -> int:
    db.execute(SQL["doom"], (rows.text_of(ids),))
    for what in FORGOTTEN:
        db.execute(SQL[f"forget_{what}"])
    db.execute(SQL["spare"])
    return len(ids)


def _forget_session(db: sqlite3.Connection, session: str, since: float) -> int:
    if db.execute(SQL["is_old"], (session, since)).fetchone() is None:
        # A message came after the reader had found the session.
        return 0
    runs = _forget_runs(db, _column(db, SQL["runs_of_sessions"], session))
    db.execute(SQL["skip_epoch"], (session,))
    for what in ("session", "epoch", "events", "passing", "dropped", "marks", "shares"):
        db.execute(SQL[f"forget_{what}"], (session,))
    return runs


def _shorten_log(db: sqlite3.Connection, session: str) -> int:
    found = db.execute(EVENTS["oldest_dropped"], (session, bounds.LOG_EVENTS)).fetchone()
    if found is None:
        return 0
    piece = db.execute(EVENTS["end_of_piece"], (session, PIECE_EVENTS)).fetchone()
    upto = found[0] if piece is None else min(found[0], piece[0])
    gone = db.execute(EVENTS["drop_events"], (session, upto)).rowcount
    db.execute(EVENTS["remember_dropped"], (session, upto))
    return gone


def _bound(db: sqlite3.Connection) -> None:
    db.execute(SQL["bound_keys"], (bounds.KEYS_KEPT,))
    db.execute(SQL["bound_tombstones"], (bounds.TOMBSTONES_KEPT,))
    db.execute(SQL["bound_stops"], (bounds.STOPS_KEPT,))
    db.execute(SQL["bound_marks"], (bounds.MARKS_KEPT,))
    db.execute(SQL["bound_runless"], (bounds.RUNLESS_KEPT,))
    db.execute(SQL["bound_shares"])
