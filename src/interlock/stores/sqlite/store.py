"""The store in a directory.

1. One process at a time: the kernel's lock on DIR/lock decides (`locking.py`).
2. The directory is made 0700, its files 0600.
3. No read waits for a write (`reader.py`).
4. A clean end is on record: `close` stores the number of the boot it closed. After any other end the next start looks
   for leftover processes and publishes a `gap`.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Sequence

import anyio

from interlock.core.decision import Decision, EpochRow
from interlock.core.errors import BadInput
from interlock.core.events import Event
from interlock.core.names import SessionId
from interlock.stores.base import Pruned, StoreFailed, Ticket, Written
from interlock.stores.sqlite import pruning
from interlock.stores.sqlite.locking import hold, unlock
from interlock.stores.sqlite.reader import in_thread
from interlock.stores.sqlite.reads import Look, Reads
from interlock.stores.sqlite.schema import connect, migrate, statements
from interlock.stores.sqlite.writer import Writer

log = logging.getLogger("interlock")

# Events that no decision has taken along are written after this time.
FLUSH_SECONDS = 0.1
# The store prunes itself this long after its start, and then at this pace.
FIRST_TIDY_SECONDS = 60.0
TIDY_SECONDS = 3_600.0
# A session without a message for so many days is pruned.
KEEP_DAYS = 90.0
SQL = statements("decisions")


class SqliteStore(Reads):
    """Keeps everything in DIR/interlock.db."""

    shared = False

    def __init__(self, directory: str | os.PathLike[str], *, keep_days: float = KEEP_DAYS) -> None:
        super().__init__(directory)
        self.keep_days = keep_days
        self._hold: int | None = None
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._told: Written = lambda events, epochs: None
        self.epoch = 0
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
            if not self.clean:
                connection.execute(SQL["skip_epochs"])
            self.epoch = connection.execute(SQL["highest_epoch"]).fetchone()[0]
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

    def abandon(self) -> None:
        self._writing.abandon()

    @property
    def _writing(self) -> Writer:
        assert self._writer is not None, "the store is not open"
        return self._writer

    # Decisions

    def decide(self, decision: Decision) -> Ticket:
        ticket = Ticket(decision)
        self._writing.decide(ticket)
        self._arm()
        return ticket

    async def withdraw(self, ticket: Ticket) -> bool:
        if self._writing.withdraw(ticket):
            ticket.refuse(StoreFailed("the store did not accept the write in time and never will; send it again"))
            return False
        return await ticket.certain()

    # Events

    def append(self, event: Event, epoch: EpochRow | None = None) -> bool:
        self._writing.events.add(event, epoch)
        self._arm()
        return False

    def tell_written(self, to: Written) -> None:
        self._told = to

    def forget(self, events: Sequence[Event]) -> None:
        self._writing.events.forget(events)

    def drop(self, session: SessionId, events: Sequence[Event]) -> None:
        self._writing.events.drop(session, events)

    def _arm(self) -> None:
        """Start the flush timer, so that events and finished receipts are written although no caller waits for them."""
        if self._flush is None and self._loop is not None:
            self._flush = self._loop.call_later(FLUSH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        if self._writer is not None:
            self._writer.flush()

    def _written(self, events: Sequence[Event], epochs: Sequence[EpochRow]) -> None:
        """In the loop, after each try to write events: tell which are written, and try again if some are left."""
        self._told(events, epochs)
        if self._writer is not None and self._writer.events.waiting:
            self._arm()

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
        # A reader of its own: a long search must not keep the reads of messages waiting.
        async with Look(self.directory) as beside:
            return await pruning.prune(beside._ask, self._writing.chore, before=before, keep_days=self.keep_days)
