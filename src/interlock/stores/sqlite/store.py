"""The store in a directory.

1. One process at a time. The kernel's lock on DIR/lock decides, and goes with its holder however that ends. The pid in
   the file is only for the error text: no pid is believed and no stale lock is broken. A fork gives the lock up.
2. The directory is made 0700, its files 0600.
3. Reads have a connection and a thread of their own, so no read waits for a write. Events that were appended and not
   written yet are added to what is read.
4. A clean end is on record: `close` stores the number of the boot it closed. After any other end the next start looks
   for leftover processes and publishes a `gap`.
5. Looking is not starting. `Look` opens the database read-only and takes no boot number, and `interlock prune` takes
   the lock without a boot: as a start it would end cleanly and hide from the next start that the server was killed.
6. Blocking work runs in threads of the store's own, never in the loop's thread pool: an embedder may have filled that,
   and a stop and a close must not wait for it.
"""

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from interlock.core.decision import (
    Decision,
    QuestionRow,
    RunRow,
    SessionRow,
    StopKey,
    ToolRow,
    WakeRow,
)
from interlock.core.errors import BadInput
from interlock.core.events import Ended, Event
from interlock.core.names import PASSING, Principal, QuestionId, ReceiptId, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.stores.base import Loaded, Page, Pruned, SessionInfo, StoreFailed, Ticket
from interlock.stores.sqlite import pruning, rows
from interlock.stores.sqlite.schema import connect, migrate, statements
from interlock.stores.sqlite.writer import ORPHAN_SECONDS, Writer
from interlock.stores.sqlite.writer import SQL as WRITES

log = logging.getLogger("interlock")

T = TypeVar("T")
Asked = tuple[Callable[[sqlite3.Connection], Any], "asyncio.Future[Any]"]
Questions = queue.PriorityQueue[tuple[int, int, Asked | None]]
# Pages of a log (BULK) are read after everything else: a message must not wait for watchers that replay.
FIRST, BULK, LAST = 0, 1, 2

DATABASE = "interlock.db"
# Events that no decision has taken along are written after this time.
FLUSH_SECONDS = 0.1
# Events held in memory while the disk accepts none.
PENDING_EVENTS = 100_000
# How often, and at what pace, the directory's lock is tried.
HOLD_TRIES, HOLD_SECONDS = 50, 0.005
# Reads that may wait for the reading thread.
READS = 10_000
# `close` waits this long for the reading thread.
LAST_READ_SECONDS = 0.3
# The store prunes itself this long after its start, and then at this pace.
FIRST_TIDY_SECONDS = 60.0
TIDY_SECONDS = 3_600.0
# A session without a message for so many days is pruned.
KEEP_DAYS = 90.0
SQL = statements("reads")


class Reads:
    """A thread that reads, and every read of the store's port."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            # Absolute, so that a later change of the working directory does not move the store.
            self.directory = Path(directory).expanduser().absolute()
        except (RuntimeError, TypeError) as error:
            raise BadInput(f"{directory!r:.100} is no directory for a store: {error}") from None
        self.path = self.directory / DATABASE
        self._questions: Questions = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._reader: threading.Thread | None = None
        self._asked_in: asyncio.AbstractEventLoop | None = None

    def start_reading(self) -> None:
        """Start the reading thread."""
        self._asked_in = asyncio.get_running_loop()
        # A new queue: the thread of an earlier open may still work on its own.
        self._questions = queue.PriorityQueue()
        self._reader = threading.Thread(
            target=self._read, args=(self._questions,), name="interlock store reads", daemon=True
        )
        self._reader.start()

    async def stop_reading(self) -> None:
        """Answer the reads that were asked, then end the reading thread."""
        if self._reader is not None:
            self._questions.put((LAST, next(self._numbers), None))
            reader = self._reader
            await self._in_thread(lambda: reader.join(LAST_READ_SECONDS))

    def _in_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run blocking work in a thread of the store's own (rule 6)."""
        self._asked_in = asyncio.get_running_loop()
        answer: asyncio.Future[T] = self._asked_in.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                self._answer(answer, None, error)
            else:
                self._answer(answer, result, None)

        threading.Thread(target=run, name="interlock store", daemon=True).start()
        return answer

    def _read(self, questions: "Questions") -> None:
        connection: sqlite3.Connection | None = None
        while (asked := self._next(questions)) is not None:
            work, answer = asked
            try:
                if connection is None:
                    connection = connect(self.path, writes=False)
                result = _at_one_instant(connection, work)
            except Exception as error:
                failure = StoreFailed(f"the store cannot be read ({type(error).__name__}: {error}); try again later")
                self._answer(answer, None, failure)
            else:
                self._answer(answer, result, None)
        if connection is not None:
            connection.close()

    def _next(self, questions: "Questions") -> "Asked | None":
        """Return the next read; None if no more will come."""
        while True:
            with contextlib.suppress(queue.Empty):
                return questions.get(timeout=ORPHAN_SECONDS)[2]
            assert self._asked_in is not None
            if self._asked_in.is_closed():
                return None

    def _answer(self, answer: asyncio.Future[Any], result: object, failure: BaseException | None) -> None:
        def answer_in_loop() -> None:
            if answer.done():
                return
            if failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(result)

        assert self._asked_in is not None
        # RuntimeError: the loop is closed, so no caller waits any more.
        with contextlib.suppress(RuntimeError):
            self._asked_in.call_soon_threadsafe(answer_in_loop)

    async def _ask(self, work: Callable[[sqlite3.Connection], T], lane: int = FIRST) -> T:
        if self._reader is None or not self._reader.is_alive():
            raise StoreFailed("the store is not open")
        if self._questions.qsize() >= READS:
            raise StoreFailed(f"{READS} reads wait for the disk; try again later")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._questions.put((lane, next(self._numbers), (work, answer)))
        return await answer

    async def _one(self, name: str, *given: object) -> rows.Row | None:
        found: rows.Row | None = await self._ask(lambda db: db.execute(SQL[name], given).fetchone())
        return found

    async def _all(self, name: str, *given: object) -> list[rows.Row]:
        return await self._ask(lambda db: db.execute(SQL[name], given).fetchall())

    # The port's questions

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        def look(db: sqlite3.Connection) -> Loaded:
            def one(name: str, *given: object) -> rows.Row | None:
                found: rows.Row | None = db.execute(SQL[name], given).fetchone()
                return found

            known = one("session", session)
            used = None if key is None else one("key", principal, key)
            last = one("previous", session)
            return Loaded(
                session=None if known is None else rows.session_of(known),
                key=None if used is None else rows.key_of(used),
                buried=key is not None and one("tombstone", principal, key) is not None,
                previous=None if last is None else rows.outcome_of(last[0], drained=last[1]),
                marks=tuple(map(rows.mark_of, db.execute(SQL["marks"], (session,)))),
            )

        return await self._ask(look)

    async def session(self, session: SessionId) -> SessionRow | None:
        found = await self._one("session", session)
        return None if found is None else rows.session_of(found)

    async def sessions(self, *, limit: int, of: Principal | None = None) -> tuple[SessionInfo, ...]:
        return tuple(
            SessionInfo(session=rows.session_of(row[:9]), runs=row[9], open=row[10] or 0, latest_at=row[11])
            for row in await self._all("sessions", limit, of)
        )

    async def plain_sessions(self) -> tuple[tuple[Principal, SessionId], ...]:
        found = await self._all("plain_sessions")
        return tuple((Principal(owner), SessionId(session)) for owner, session in found)

    async def run(self, run_id: RunId) -> RunRow | None:
        found = await self._one("run", run_id)
        return None if found is None else rows.run_of(found)

    async def runs(
        self, session: SessionId | None, *, tree: bool = False, limit: int = 1_000, of: Principal | None = None
    ) -> tuple[RunRow, ...]:
        if session is None:
            return tuple(map(rows.run_of, reversed(await self._all("latest_runs", limit, of))))
        names = ("runs", "children") if tree else ("runs",)
        found = await self._ask(lambda db: [row for name in names for row in db.execute(SQL[name], (session,))])
        return tuple(map(rows.run_of, found))

    async def unsettled(self) -> tuple[SessionId, ...]:
        return tuple(SessionId(row[0]) for row in await self._all("unsettled"))

    async def unsettled_runs(self, session: SessionId) -> tuple[RunRow, ...]:
        return tuple(map(rows.run_of, await self._all("unsettled_runs", session)))

    async def parts(self, run_id: RunId) -> tuple[RunRow, ...]:
        return tuple(map(rows.run_of, await self._all("parts", run_id)))

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        found = await self._one("question", question_id)
        return None if found is None else rows.question_of(found)

    async def questions(self, run_id: RunId) -> tuple[QuestionRow, ...]:
        return tuple(map(rows.question_of, await self._all("questions", run_id)))

    async def wakes(self) -> tuple[WakeRow, ...]:
        return tuple(map(rows.wake_of, await self._all("wakes")))

    async def stops(self) -> tuple[StopKey, ...]:
        return tuple(map(rows.stop_of, await self._all("stops")))

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        return tuple(map(rows.tool_of, await self._all("tools", run_id)))

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        found = await self._one("receipt", wanted)
        return None if found is None else rows.receipt_of(found)

    async def pending_receipts(self) -> tuple[Receipt, ...]:
        return tuple(map(rows.receipt_of, await self._all("pending_receipts")))

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        def look(db: sqlite3.Connection) -> Page:
            dropped = db.execute(SQL["dropped"], (session,)).fetchone()
            events = rows.events_of(session, db.execute(SQL["events"], (session, after, limit)))
            passing = rows.passing_of(session, after, db.execute(SQL["passing"], (session, after, limit)))
            if passing:
                events = sorted(events + passing, key=attrgetter("position"))[:limit]
            return Page(
                events=tuple(events),
                lost_to=dropped[0] if dropped is not None and dropped[0] > after else 0,
            )

        return await self._ask(look, BULK)


def _at_one_instant(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run one read in one transaction, so that all its queries see the same state of the database."""
    connection.execute("BEGIN")
    try:
        return work(connection)
    finally:
        connection.execute("COMMIT")


class Look(Reads):
    """A store that is only read, while a server may be writing it: `async with Look(DIR) as store`."""

    async def __aenter__(self) -> Self:
        if not self.path.exists():
            raise StoreFailed(f"{self.directory} holds no interlock store; name its directory with --data")
        self.start_reading()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_reading()


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
        opening = self._in_thread(self._open)
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
            self.clean = bool(connection.execute(WRITES["was_clean"]).fetchone()[0])
            boot: int = connection.execute(WRITES["boot"]).fetchone()[0]
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection, boot

    def _unlock(self) -> None:
        held, self._hold = self._hold, None
        if held is not None:
            let_go(held)

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
        self._pending.setdefault(event.session, {})[event.position] = event
        self._pending_count += 1
        writer.add(event, passing=passing)
        for session, held in self._readings:
            if session == event.session:
                held.append(event)
        if isinstance(event.data, Ended) and event.run_id is not None:
            self._end(event.session, event.run_id)
        self._arm()

    def _arm(self) -> None:
        """Start the flush timer, so that events and finished receipts are written although no caller waits for them."""
        if self._flush is None and self._loop is not None:
            self._flush = self._loop.call_later(FLUSH_SECONDS, self._flush_now)

    def _end(self, session: SessionId, run_id: RunId) -> None:
        """Remove a run's deltas from the log; those that are not written yet never will be."""
        assert self._writer is not None
        self._ended[run_id] = None
        kept = self._pending[session]
        gone = [event for event in kept.values() if event.kind in PASSING and event.run_id == run_id]
        for event in gone:
            del kept[event.position]
        if gone:
            self._pending_count -= len(gone)
            self._writer.forget(gone)
        # Queue the drop after the events it removes; an event written later would never be removed.
        self._writer.end(session, run_id)

    def _flush_now(self) -> None:
        self._flush = None
        if self._writer is not None:
            self._writer.flush()
        if self._pending_count or self._ended:
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
            self._writer.forget(gone)
            self._dropped[session] = gone[-1].position
            self._writer.drop(session, gone[-1].position)
            wanted -= len(gone)
            if wanted <= 0:
                return

    def _written(self, events: list[Event], over: list[tuple[SessionId, RunId]]) -> None:
        """In the loop: note that these events are in the database, and the deltas of these runs deleted from it."""
        for event in events:
            kept = self._pending.get(event.session)
            if kept is not None and kept.pop(event.position, None) is not None:
                self._pending_count -= 1
                if not kept:
                    del self._pending[event.session]
        for _, run_id in over:
            self._ended.pop(run_id, None)

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
            lost_to, more = max(lost_to, page.lost_to), len(page.events) == limit
            found.update({event.position: event for event in page.events if not _passed(event, over)})
            if page.events:
                at = page.events[-1].position
            more = more and len(found) < limit
        over |= self._ended
        found.update({event.position: event for event in held if event.position > after})
        found = {position: event for position, event in found.items() if not _passed(event, over)}
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


def hold(directory: Path) -> int:
    """Take the kernel's lock on a directory; the kernel frees it with this process, however that ends (race 83)."""
    path = directory / "lock"
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _try_lock(handle):
        holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        which = "this process" if holder == str(os.getpid()) else f"another interlock (process {holder})"
        raise StoreFailed(f"{directory} is in use by {which}; stop that one, or use another directory")
    _HELD.add(handle)
    try:
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        let_go(handle)
        raise
    return handle


def let_go(handle: int) -> None:
    """Give a directory's lock back."""
    _HELD.discard(handle)
    os.close(handle)


def _try_lock(handle: int) -> bool:
    """Take the lock; try several times, because a reader that checks whether it is taken holds it for an instant."""
    for _ in range(HOLD_TRIES):
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(HOLD_SECONDS)
    return False


_HELD: set[int] = set()


def _unlock_in_child() -> None:
    """Close the locks in a forked child, so that it does not keep them when its parent is gone."""
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_unlock_in_child)
