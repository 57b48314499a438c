"""Reading a store, also while a server has it.

1. A look opens the database read-only, changes nothing and delays no server that is writing meanwhile.
2. If no server has the directory, no run is told as running: a run without an ending is unsettled, and the next start
   settles it.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from interlock.cli.documents import LATEST, ProcessLine, RunLine, Runs, SessionLine, Sessions, Shown, line_of
from interlock.cli.servers import is_locked
from interlock.core.answers import SessionInfo
from interlock.core.decision import RunRow, SessionRow
from interlock.core.errors import BadInput, Unknown
from interlock.core.events import ProcessData
from interlock.core.names import Principal, ProcessState, RunId, SessionId
from interlock.core.story import Story
from interlock.core.timeline import timeline
from interlock.runtime.feed import whole_log
from interlock.runtime.listing import as_tree, info_of_row
from interlock.runtime.live import RUN_SESSION
from interlock.runtime.naming import Naming
from interlock.runtime.settings import CRASHES
from interlock.stores.base import StoreFailed, is_unsettled
from interlock.stores.sqlite.reads import Look
from interlock.stores.sqlite.schema import connect, migrations

T = TypeVar("T")

READ_FOR_LATEST = 500  # rows read to find those: children are among them
LOOKS = 5  # reads of one run that goes on meanwhile
# A server that starts may hold the database's lock for a moment.
BUSY_MS = 5_000
EVERY = -1  # SQLite's "no limit"
# This principal owns no session, so `name_of` writes every name with its owner.
NOBODY = Principal("")


def look(directory: Path, ask: Callable[[Look], Awaitable[T]]) -> T:
    """Open the store in a directory and return what `ask` returns."""

    async def asking() -> T:
        async with Look(readable(directory)) as store:
            return await ask(store)

    return asyncio.run(asking())


def readable(directory: Path) -> Path:
    """Return the directory if this version can read the store in it; raise why not."""
    try:
        directory = directory.expanduser().absolute()
        file = Look(directory).path
        if not file.exists():
            raise StoreFailed(f"{directory} holds no interlock store; name its directory with --data")
        with contextlib.closing(connect(file, writes=False)) as db:
            db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            ours = db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('facts', 'sessions', 'runs')")
            known = schema > 0 and ours.fetchone()[0] == 3
    except RuntimeError:
        raise StoreFailed("there is no home directory here; name the store's directory with --data") from None
    except OSError as error:
        raise StoreFailed(f"{directory} cannot be read: {error.strerror}") from None
    except sqlite3.Error as error:
        # SQLite writes an index beside a WAL database, also to read it, and fails so in a read-only directory.
        unwritable = error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
        hint = "; copy its directory to a place that can be written" if unwritable else ""
        raise StoreFailed(f"{file} cannot be read: {error}{hint}") from None
    newest = migrations()[-1][0]
    if not known:
        raise StoreFailed(f"{file} is no interlock store; name its directory with --data")
    if schema > newest:
        raise StoreFailed(f"{file} has schema {schema}, this version knows {newest}; upgrade interlock")
    if schema < newest:
        raise StoreFailed(f"{file} has schema {schema}, this version {newest}; the next start of a server upgrades it")
    return directory


# Lists


async def sessions(store: Look) -> Sessions:
    """Return every session, the latest first."""
    used = is_locked(store.directory / "lock")
    lines = tuple(map(_session_line, await store.sessions(limit=EVERY)))
    return Sessions(data=str(store.directory), in_use=used, sessions=lines)


def _session_line(info: SessionInfo) -> SessionLine:
    row = info.session
    more = {"runs": info.runs, "open": info.open, "latest_at": info.latest_at, "parked": _parked(row)}
    return line_of(SessionLine, row, **more)


def _parked(row: SessionRow | None) -> bool:
    return row is not None and row.crashes >= CRASHES


async def found(store: Look, name: str) -> SessionId:
    """Return the session of a name: its id, its name with the owner, or a bare name that only one session has."""
    if name.startswith(RUN_SESSION):
        return SessionId(name)
    naming = Naming()
    naming.keep(await store.plain_sessions())
    ids = [info.session.id for info in await store.sessions(limit=EVERY)]
    written = {session: naming.name_of(session, NOBODY) for session in ids}
    meant = [session for session, whole in written.items() if whole == name]
    meant = meant or [session for session, whole in written.items() if name in (session, whole.partition("/")[2])]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise Unknown(f"no session {name!r} in {store.directory}; `interlock sessions` lists them")
    which = ", ".join(sorted(written[session] for session in meant))
    raise BadInput(f"{name!r} is the name of {len(meant)} sessions: {which}; write one of these")


async def runs(store: Look, name: str | None, *, tree: bool, every: bool) -> Runs:
    """Return the runs of a session or of all, in the order of admission."""
    used, limit = is_locked(store.directory / "lock"), EVERY if every else READ_FOR_LATEST
    session = None if name is None else await found(store, name)
    rows = await store.runs(session, tree=tree, limit=limit)
    more = session is None and len(rows) == limit
    if session is None and not tree:
        rows = tuple(row for row in rows if row.parent is None)
    known = {row.id: row for row in rows}
    listed = [info_of_row(row) for row in rows]
    lines = [_run_line(known[info.id], used, info.depth) for info in (as_tree(listed) if tree else listed)]
    tops = [at for at, line in enumerate(lines) if line.depth == 0]
    if not every and len(tops) > LATEST:
        lines, more = lines[tops[-LATEST] :], True
    return Runs(data=str(store.directory), in_use=used, runs=tuple(lines), more=more)


def _run_line(row: RunRow, used: bool, depth: int = 0) -> RunLine:
    own = {"started": row.started, "deadline": row.deadline, "alias": row.alias}
    return line_of(RunLine, info_of_row(row), depth=depth, unsettled=not used and is_unsettled(row), **own)


# One run


async def show(store: Look, run_id: RunId) -> Shown:
    """Return everything that the store has of a run."""
    for _ in range(LOOKS):
        row = await store.run(run_id)
        if row is None:
            raise Unknown(f"no run {run_id!r} in {store.directory}; `interlock runs` lists them")
        shown = await _shown(store, row)
        # A run that changed meanwhile is read again: its parts might not fit together.
        if row == await store.run(run_id):
            break
    return shown


async def _shown(store: Look, row: RunRow) -> Shown:
    used = is_locked(store.directory / "lock")
    events = [event for event in await whole_log(store, row.session) if event.run_id == row.id]
    receipt, story, over = await store.receipt(row.id), Story(), row.outcome is not None
    for event in events:
        story.take(event)
    return Shown(
        data=str(store.directory),
        in_use=used,
        parked=_parked(await store.session(row.session)),
        run=_run_line(row, used),
        reply=story.text if row.outcome is None else row.outcome.text,
        tools=await store.tools(row.id),
        questions=await store.questions(row.id),
        # The log lacks the end of a process that was ended with its run, so that is derived.
        processes=tuple(_process_line(told, over=not used or (over and not told.detached)) for told in story.processes),
        receipt=receipt,
        timeline=tuple(timeline(row.id, events, receipt)),
    )


def _process_line(told: ProcessData, *, over: bool) -> ProcessLine:
    ended = over and told.state is ProcessState.RUNNING
    return line_of(ProcessLine, told, state="ended" if ended else told.state)
