"""The store in a directory.

1. One process at a time: the kernel's lock on DIR/lock decides (`locking.py`).
2. The directory is made 0700, its files 0600.
3. No read waits for a write (`reader.py`). Events that were appended and not written yet are added to what is read.
4. A clean end is on record: `close` stores the number of the boot it closed. After any other end the next start looks
   for leftover processes and publishes a `gap`.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from operator import attrgetter

import anyio

from interlock.core.decision import Decision
from interlock.core.errors import BadInput
from interlock.core.events import Ended, Event
from interlock.core.names import PASSING, RunId, SessionId
from interlock.stores.base import Page, Pruned, StoreFailed, Ticket
from interlock.stores.sqlite import pruning
from interlock.stores.sqlite.locking import hold, unlock
from interlock.stores.sqlite.reader import in_thread
from interlock.stores.sqlite.reads import Look, Reads
from interlock.stores.sqlite.schema import connect, migrate, statements
from interlock.stores.sqlite.writer import Writer

log = logging.getLogger("interlock")

# Events that no decision has taken along are written after this time.
FLUSH_SECONDS = 0.1
# Events held in memory while the disk accepts none.
PENDING_EVENTS = 100_000
# The store prunes itself this long after its start, and then at this pace.
FIRST_TIDY_SECONDS = 60.0
TIDY_SECONDS = 3_600.0
# A session without a message for so many days is pruned.
KEEP_DAYS = 90.0
SQL = statements("decisions")


class SqliteStore(Reads):
    """Keeps everything in DIR/interlock.db."""

    def __init__(self, directory: str | os.PathLike[str], *, keep_days: float = KEEP_DAYS) -> None:
        super().__init__(directory)
        self.keep_days = keep_days
        self._hold: int | None = None
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._tidying: asyncio.Task[None] | None = None
        # Events that were appended and are not written yet.
        self._pending: dict[SessionId, dict[int, Event]] = {}
        self._pending_count = 0
        # Runs whose terminal event is not written yet. Readers leave out their deltas, which may still be on disk.
        self._ended: dict[RunId, None] = {}
        self._dropped: dict[SessionId, int] = {}
        # Pages that are being read, each with the events to add to it.
        self._readings: list[tuple[SessionId, list[Event]]] = []
        self.clean = True

    async def open(self) -> int:
        """Lock the directory and return this start's boot number; raise if another process has the lock."""
        self._loop = asyncio.get_running_loop()
        if hasattr(self._loop, "wall"):
            raise BadInput("there is no disk on a virtual clock; use a MemoryStore")
        opening = in_thread(self._open)
        try:
            connection, boot = await asyncio.shield(opening)
            self._writer = Writer(self.path, connection, self._written, self._unlock)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                # Wait even if cancelled again: the thread has the lock or will take it, and must give it back.
                while not opening.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([opening])
            if not opening.exception():
                opening.result()[0].close()
            self._unlock()
            raise
        except (OSError, ValueError, sqlite3.Error) as error:
            self._unlock()
            raise StoreFailed(f"the store in {self.directory} cannot be opened: {error}") from error
        except BaseException:
            self._unlock()
            raise
        self.start_reading()
        self._tidying = self._loop.create_task(self._tidy(), name="interlock store tidies")
        return boot

    def _open(self) -> tuple[sqlite3.Connection, int]:
        if not self.directory.is_dir():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            above = os.open(self.directory.parent, os.O_RDONLY | os.O_CLOEXEC)
            # SQLite syncs the directory itself, but not the entry in its parent that names it.
            os.fsync(above)
            os.close(above)
        self._hold = hold(self.directory)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = connect(self.path, writes=True)
        try:
            migrate(connection, self.path)
            connection.execute("BEGIN IMMEDIATE")
            self.clean = bool(connection.execute(SQL["was_clean"]).fetchone()[0])
            boot: int = connection.execute(SQL["boot"]).fetchone()[0]
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection, boot

    def _unlock(self) -> None:
        held, self._hold = self._hold, None
        if held is not None:
            unlock(held)

    async def close(self, *, clean: bool = True) -> None:
        """Write everything that was accepted and unlock the directory."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._tidying is not None:
            self._tidying.cancel()
        # Stop the reader first: SQLite removes the write-ahead log only for the last connection.
        await self.stop_reading()
        # The writer's thread unlocks the directory, also when this call is cancelled.
        if self._writer is not None:
            await self._writer.close(clean=clean)

    # Decisions

    def decide(self, decision: Decision) -> Ticket:
        ticket = Ticket(decision)
        assert self._writer is not None, "the store is not open"
        self._writer.decide(ticket)
        self._arm()
        return ticket

    async def withdraw(self, ticket: Ticket) -> bool:
        assert self._writer is not None, "the store is not open"
        if self._writer.withdraw(ticket):
            ticket.refuse(StoreFailed("the store did not accept the write in time and never will; send it again"))
            return False
        try:
            await ticket
        except StoreFailed:
            return False
        return True

    # Events

    def append(self, event: Event) -> None:
        writer, passing = self._writer, event.kind in PASSING and event.run_id is not None
        assert writer is not None, "the store is not open"
        if self._pending_count >= PENDING_EVENTS:
            # A passing event may be dropped: the block that closes it holds its text.
            if passing:
                return
            self._make_room()
        if isinstance(event.data, Ended) and event.run_id is not None:
            self._end(event.session, event.run_id)
        self._pending.setdefault(event.session, {})[event.position] = event
        self._pending_count += 1
        writer.add(event, passing=passing)
        for session, held in self._readings:
            if session == event.session:
                held.append(event)
        self._arm()

    def _arm(self) -> None:
        """Start the flush timer, so that events and finished receipts are written although no caller waits for them."""
        if self._flush is None and self._loop is not None:
            self._flush = self._loop.call_later(FLUSH_SECONDS, self._flush_now)

    def _end(self, session: SessionId, run_id: RunId) -> None:
        """Leave out a run's deltas that are not written yet; with the terminal event the writer drops the others.

        The store forgets them before the terminal event is added. In the other order the writer could write the
        terminal event, and then deltas, which would stay for good.
        """
        assert self._writer is not None
        self._ended[run_id] = None
        kept = self._pending.get(session, {})
        gone = [event for event in kept.values() if event.kind in PASSING and event.run_id == run_id]
        for event in gone:
            del kept[event.position]
        if gone:
            self._pending_count -= len(gone)
            self._writer.forget(gone)

    def _flush_now(self) -> None:
        self._flush = None
        if self._writer is not None:
            self._writer.flush()
        if self._pending_count:
            self._arm()

    def _make_room(self) -> None:
        """Drop the oldest pending events of the largest sessions and record that: the disk accepts none for long."""
        assert self._writer is not None
        wanted = PENDING_EVENTS // 10
        for session in sorted(self._pending, key=lambda each: len(self._pending[each]), reverse=True):
            kept = self._pending[session]
            gone = [kept.pop(position) for position in list(kept)[: max(1, len(kept) // 2)]]
            self._pending_count -= len(gone)
            if not kept:
                del self._pending[session]
            self._dropped[session] = gone[-1].position
            self._writer.drop(session, gone)
            wanted -= len(gone)
            if wanted <= 0:
                return

    def _written(self, events: list[Event]) -> None:
        """In the loop: note that these events are in the database, and the deltas of runs that ended with one not."""
        for event in events:
            kept = self._pending.get(event.session)
            if kept is not None and kept.pop(event.position, None) is not None:
                self._pending_count -= 1
                if not kept:
                    del self._pending[event.session]
            if event.run_id is not None and isinstance(event.data, Ended):
                self._ended.pop(event.run_id, None)

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        """Return a stretch of the log, with events that are not written yet, without deltas of runs that have ended."""
        held = [event for position, event in self._pending.get(session, {}).items() if position > after]
        with self._reading(session, held):
            return await self._events(session, after, limit, held)

    @contextlib.contextmanager
    def _reading(self, session: SessionId, held: list[Event]) -> Iterator[None]:
        """Add events that are appended while a page is read to that page.

        The writer may commit a later event before the page's query runs; without this the page would hold that event
        and lack the one before it.
        """
        reading = (session, held)
        self._readings.append(reading)
        try:
            yield
        finally:
            self._readings = [each for each in self._readings if each is not reading]

    async def _events(self, session: SessionId, after: int, limit: int, held: list[Event]) -> Page:
        over = dict(self._ended)
        found: dict[int, Event] = {}
        at, lost_to, more = after, self._dropped.get(session, 0), True
        while more:
            page = await super().events(session, after=at, limit=limit)
            # Nothing is pending and no run has just ended: the page on disk is the answer.
            if at == after and not (held or over or self._ended or lost_to):
                return page
            lost_to = max(lost_to, page.lost_to)
            # A run may have ended during the read. Leave its deltas out before the page is measured: a page that were
            # filtered later would be short, and its reader would take it for the last.
            over |= self._ended
            found.update({event.position: event for event in page.events})
            found = {position: event for position, event in found.items() if not _passed(event, over)}
            if page.events:
                at = page.events[-1].position
            more = len(page.events) == limit and len(found) < limit
        # No await since the last read: a page that is full on disk ends before what waits.
        found.update({event.position: event for event in held if event.position > after and not _passed(event, over)})
        events = sorted(found.values(), key=attrgetter("position"))
        return Page(events=tuple(events[:limit]), lost_to=lost_to if lost_to > after else 0)

    # Keeping it small

    async def _tidy(self) -> None:
        await asyncio.sleep(FIRST_TIDY_SECONDS)
        while True:
            try:
                await self.prune()
            except StoreFailed as failure:
                log.warning("%s", failure)
            await asyncio.sleep(TIDY_SECONDS)

    async def prune(self, *, before: float | None = None) -> Pruned:
        """Forget what is beyond the bounds, and sessions without a message since `before` (default: keep_days)."""
        writer = self._writer
        assert writer is not None, "the store is not open"
        # A reader of its own: a long search must not keep the reads of messages waiting.
        async with Look(self.directory) as beside:
            return await pruning.prune(beside._ask, writer.chore, before=before, keep_days=self.keep_days)


def _passed(event: Event, over: dict[RunId, None]) -> bool:
    return event.kind in PASSING and event.run_id in over
