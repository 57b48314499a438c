"""The one thread that writes.

1. The writer takes the database's lock first and the decisions second. While another process has the lock, the
   decisions still wait in the line and can be withdrawn.
2. All decisions that wait become one transaction and one fsync (group commit). If the content of one of them makes the
   transaction fail, each is carried out in a savepoint of its own, so that one bad decision cannot spoil the others. If
   the disk refuses (no room, no right to write), all are refused and nothing is kept.
3. Lasting events that were appended before a decision are written with it (the oldest thousand), so the log never lags
   behind what was decided. Deltas, typing and progress are written between decisions, in small pieces with a rest
   before each and without an fsync, so that a flood of them does not delay a stop. `kill -9` loses no written delta; a
   power cut may lose some.
4. A failed fsync ends this store until the next start. The kernel may have dropped the dirty pages and marked them
   clean; a second fsync would then succeed and mean nothing. Every caller is told that the outcome is not known, and
   the next start reads what the disk really has.
5. A finished receipt (`unhurried`) has no caller that waits for it. The writer adds it to the next transaction.
"""

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from interlock.core.decision import Decision
from interlock.core.names import Drain
from interlock.stores.base import ABANDONED, Expelled, StoreFailed, Ticket, Written
from interlock.stores.sqlite.checkpoints import Checkpoints
from interlock.stores.sqlite.decisions import SQL, Answer, carry_out
from interlock.stores.sqlite.events import Events, Taken
from interlock.stores.sqlite.faults import Replaced, identity, is_passing, of_disk, reason, unsure
from interlock.stores.sqlite.reader import answer_all, wait_for_work, wake

log = logging.getLogger("interlock")

T = TypeVar("T")

# A full line refuses decisions, but never one that holds an ending: an ending must not be lost.
LINE = 10_000
# Pause after the disk refused events.
REST_SECONDS = 0.5
# Events that have waited for decisions this long are written next.
LATE_SECONDS = 0.1
# Rest before each piece of events.
PIECE_SECONDS = 0.001
# `close` waits this long for a database that another process has locked.
CLOSE_SECONDS = 0.5


class Writer:
    """Decisions and events on their way into the database. The loop calls the public methods, the thread the others."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, written: Written, unlock: Callable[[], None]
    ) -> None:
        self._path = path
        self._connection = connection
        self._execute = connection.execute
        self._written = written
        self._unlock = unlock
        self._file = identity(path)
        self.events = Events(connection)
        self._checkpoints = Checkpoints(path, self._die_if_unsure)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._line: dict[Ticket, None] = {}
        self._chores: deque[tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]] = deque()
        # Events are to be written now.
        self._due = False
        # The length of the write-ahead log is to be looked at: once for each flush, not for each piece.
        self._unlooked = False
        # COMMIT waits for an fsync (FULL); without it (NORMAL) the next fsync covers the pages.
        self._syncs = True
        self._resting_until = 0.0
        self._due_since = 0.0
        self._closing_at: float | None = None
        # The caller of `close` says that nothing was cut short.
        self._clean = False
        self._dead: StoreFailed | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="interlock store", daemon=True)
        connection.execute("CREATE TEMP TABLE doomed (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._thread.start()

    # The loop's side

    def decide(self, ticket: Ticket) -> None:
        """Put a decision in the line at once."""
        # Without the lock the ticket could be added to a line that the thread has just taken, and never be answered.
        with self._lock:
            refusal = self._refusal(ticket)
            if refusal is None:
                self._line[ticket] = None
        if refusal is not None:
            ticket.refuse(refusal)
        elif not unhurried(ticket.decision):
            wake(self._wakeups)

    def _refusal(self, ticket: Ticket) -> StoreFailed | None:
        if self._dead is not None or self._closing_at is not None:
            return self._dead or StoreFailed("the store is closed; nothing was kept")
        if len(self._line) >= LINE and not ticket.decision.endings:
            return StoreFailed(f"{LINE} writes wait for the disk; nothing was kept, try again later")
        return None

    def withdraw(self, ticket: Ticket) -> bool:
        """Take a decision out of the line; return False if it is being written or was answered."""
        with self._lock:
            if ticket not in self._line:
                return False
            del self._line[ticket]
            return True

    def abandon(self) -> None:
        """Write nothing more, apart from a transaction that is being written, and refuse every decision."""
        self._die(Expelled(ABANDONED))

    def flush(self) -> None:
        """Write events now."""
        if self._dead is None and self._closing_at is None:
            self._unlooked = True
            if not self._due:
                self._due, self._due_since = True, time.monotonic()
            wake(self._wakeups)

    def chore(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Do something in a transaction of its own when no decision waits."""
        if self._dead is not None or self._closing_at is not None:
            raise self._dead or StoreFailed("the store is closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._chores.append((work, done))
        wake(self._wakeups)
        return done

    async def close(self, *, clean: bool = True) -> None:
        """Write everything that was accepted and close the database; bounded unless the disk hangs."""
        if self._closing_at is None:
            self._clean = clean
            self._closing_at = time.monotonic() + CLOSE_SECONDS
            self._due = self._dead is None
            wake(self._wakeups)
        await asyncio.shield(self._closed)

    # The thread's side

    def _work(self) -> None:
        try:
            while self._closing_at is None or self._line or self._due or self._chores:
                if not wait_for_work(self._wakeups, self._loop):
                    self._dead = StoreFailed("the loop of this store was closed")
                    break
                while self._step():
                    pass
        # A bug in this thread must not leave callers waiting for ever, so every error answers them.
        except BaseException as error:
            log.exception("the store's writer failed")
            self._die(StoreFailed(f"the store failed ({error}); restart to go on"))
        finally:
            self._close_database()

    def _step(self) -> bool:
        """Do one piece of work; return True if there may be more."""
        if self._line and not self._late():
            self._write_decisions()
        elif self._due:
            if not self._called_away():
                self._due = self._write_events()
                self._due_since = time.monotonic()
        elif self._chores:
            self._do_chore(*self._chores.popleft())
        else:
            return False
        return True

    def _late(self) -> bool:
        """Whether events have waited LATE_SECONDS for decisions. They go first then: they cost no fsync."""
        return self._due and time.monotonic() - self._due_since > LATE_SECONDS

    def _called_away(self) -> bool:
        """Rest before a piece of events; return True if other work came meanwhile.

        The loop has answers to send after a commit. A writer that went on at once would keep the interpreter, and often
        the core, from it.
        """
        if self._closing_at is not None or self._late():
            return False
        with contextlib.suppress(queue.Empty):
            self._wakeups.get(timeout=PIECE_SECONDS)
            return True
        return False

    def _close_database(self) -> None:
        self._checkpoints.join()
        with contextlib.suppress(sqlite3.Error):
            if self._dead is None and not self.events.waiting:
                if self._clean and self._begin(lambda: True):
                    self._execute(SQL["close_boot"])
                    self._execute("COMMIT")
                self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._unlock()
        self._in_loop(answer_all, [(self._closed, None, None)])

    def _in_loop(self, callback: Callable[..., object], *args: Any) -> None:
        # RuntimeError: the loop is closed, so no caller waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _begin(self, wanted: Callable[[], object], *, syncs: bool = True) -> bool:
        """Take the database's lock. Try for as long as `wanted()` is true; return False when it no longer is."""
        if syncs is not self._syncs:
            self._execute(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")
            self._syncs = syncs
        while wanted():
            try:
                self._execute("BEGIN IMMEDIATE")
                return True
            except sqlite3.OperationalError as error:
                if not is_passing(error):
                    raise
                if self._closing_at is not None and time.monotonic() > self._closing_at:
                    raise
        return False

    def _rollback(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._execute("ROLLBACK")

    def _write_decisions(self) -> None:
        batch: list[Ticket] = []
        taken: Taken | None = None
        # The lock first, `_claim` second. A claimed decision can no longer be withdrawn; claimed before the lock is
        # ours, it would keep its sender waiting for as long as another process holds the database (race 89).
        try:
            if not self._begin(lambda: self._line):
                return
            batch = self._claim()
            taken = self.events.take()
            answers = self._commit(batch, taken)
        except Exception as error:
            self._rollback()
            if taken is not None:
                self.events.put_back(taken)
            self._refuse(batch, error, alone=taken is None or not taken.lasting)
            return
        self._in_loop(self._answer_tickets, list(zip(batch, answers, strict=True)), taken)

    def _commit(self, batch: list[Ticket], taken: Taken) -> list[Answer]:
        self.events.write(taken)
        answers = self._carry_out(batch)
        # After the decisions: one of them may bring the run's row.
        self.events.tell_ended(taken)
        # The commit. When COMMIT returns, every decision of the batch is on disk, whole, together with the lasting
        # events that were published before it: `synchronous` is FULL here, so COMMIT has waited for the fsync. Only
        # after that does `_answer_tickets` run, and only an answer lets the runtime acknowledge a message, begin an
        # agent or a tool, or publish an ending as durable.
        #
        # An answer before COMMIT would let a crash erase a message that its sender believes accepted (races 75, 87).
        # Two transactions for one decision would let a crash keep a takeover without the message that took over
        # (race 78), or a message without its key, so that a retry would run it twice (race 76). If COMMIT fails,
        # SQLite rolls back and the tickets are refused: a full or read-only disk keeps nothing of the batch (races 84,
        # 86, 88). After a failed fsync the writer never tries again: the kernel may have dropped the pages, and a
        # second fsync would report them as stored (race 85).
        self._execute("COMMIT")
        # If the file was removed or replaced, the next start opens another one: this commit may be lost.
        if identity(self._path) != self._file:
            raise Replaced("the store's file was removed or replaced while it was in use")
        self.events.note_written(taken)
        return answers

    def _carry_out(self, batch: list[Ticket]) -> list[Answer]:
        """Carry out a batch; of several decisions, one whose content makes it fail does not spoil the others."""
        if len(batch) == 1:
            return carry_out(self._connection, [batch[0].decision])
        self._execute("SAVEPOINT batch")
        try:
            return carry_out(self._connection, [ticket.decision for ticket in batch])
        except Exception as error:
            if of_disk(error):
                raise
            # Roll back to the savepoint, not the transaction: the lock stays ours, so no other process can come
            # between and keep the batch, which can no longer be withdrawn, waiting.
            self._execute("ROLLBACK TO batch")
            return [self._carry_out_alone(ticket.decision) for ticket in batch]

    def _carry_out_alone(self, decision: Decision) -> Answer:
        """Carry out one decision in a savepoint; one that fails is rolled back."""
        self._execute("SAVEPOINT alone")
        try:
            [answer] = carry_out(self._connection, [decision])
        except Exception as error:
            if of_disk(error):
                raise
            self._execute("ROLLBACK TO alone")
            answer = _unfit(error)
        self._execute("RELEASE alone")
        return answer

    def _claim(self) -> list[Ticket]:
        """Remove and return the whole line; from here on none of its decisions can be withdrawn."""
        with self._lock:
            taken, self._line = self._line, {}
        return list(taken)

    def _refuse(self, batch: list[Ticket], error: Exception, *, alone: bool) -> None:
        """Answer a batch that failed, or try it once more without its events: it may fit without them."""
        if (failure := unsure(error)) is not None:
            self._die(failure, batch)
        elif of_disk(error) and not alone:
            self._write_alone(batch)
        else:
            refusal = _refused(error) if of_disk(error) else _unfit(error)
            # The batch is empty if not even the lock could be had; the line is refused then.
            self._in_loop(self._answer_tickets, [(ticket, refusal) for ticket in batch or self._claim()], Taken([], []))

    def _write_alone(self, batch: list[Ticket]) -> None:
        try:
            self._begin(lambda: True)
            answers = self._commit(batch, Taken([], []))
        except Exception as error:
            self._rollback()
            self._refuse(batch, error, alone=True)
        else:
            self._in_loop(self._answer_tickets, list(zip(batch, answers, strict=True)), Taken([], []))

    def _die_if_unsure(self, error: Exception) -> None:
        if (failure := unsure(error)) is not None:
            self._die(failure)

    def _die(self, failure: StoreFailed, batch: Iterable[Ticket] = ()) -> None:
        """Accept nothing more, and answer every caller that waits."""
        with self._lock:
            self._dead = failure
        log.error("%s", failure)
        waiting = [*batch, *self._claim()]
        self._due = False
        self._in_loop(self._answer_tickets, [(ticket, failure) for ticket in waiting], Taken([], []))
        while self._chores:
            self._in_loop(answer_all, [(self._chores.popleft()[1], None, failure)])

    def _answer_tickets(self, answers: list[tuple[Ticket, Answer]], taken: Taken) -> None:
        """In the loop: answer tickets in the order in which they were decided."""
        self._written(taken.lasting, taken.epochs)
        for ticket, answer in answers:
            if isinstance(answer, StoreFailed):
                ticket.refuse(answer)
            else:
                ticket.accept(answer)

    # Events

    def _write_events(self) -> bool:
        """Write a piece of the events in a transaction of its own; return True if some are left."""
        if time.monotonic() < self._resting_until and self._closing_at is None:
            # The store tries again soon.
            self._in_loop(self._written, [], [])
            return False
        taken: Taken | None = None
        try:
            if not self._begin(lambda: not self._line or self._late(), syncs=False):
                return True
            taken = self.events.take_all()
            self.events.write(taken)
            self.events.tell_ended(taken)
            self.events.write_passing(taken)
            self._execute("COMMIT")
        except Exception as error:
            self._rollback()
            if taken is not None:
                self.events.put_back(taken)
            self._resting_until = time.monotonic() + REST_SECONDS
            self._die_if_unsure(error)
            if self._dead is None:
                log.warning("events wait for the disk: %s", reason(error))
                self._in_loop(self._written, [], [])
            return False
        self.events.note_written(taken)
        self._in_loop(self._written, taken.events, taken.epochs)
        if self._unlooked:
            self._unlooked = False
            self._checkpoints.copy_if_long(self._connection)
        return self.events.waiting

    def _do_chore(self, work: Callable[[sqlite3.Connection], Any], done: asyncio.Future[Any]) -> None:
        try:
            if not self._begin(lambda: True):
                return
            result = work(self._connection)
            self._execute("COMMIT")
        except Exception as error:
            self._rollback()
            self._die_if_unsure(error)
            failure = self._dead or StoreFailed(f"the store could not tidy up ({reason(error)})")
            self._in_loop(answer_all, [(done, None, failure)])
        else:
            self._in_loop(answer_all, [(done, result, None)])


def unhurried(decision: Decision) -> bool:
    """Whether no caller waits for a decision: it only completes receipts, and is written with the next one, or soon."""
    receipts = decision.receipts
    return bool(receipts) and not decision.endings and all(each.drain is not Drain.PENDING for each in receipts)


def _refused(error: Exception) -> StoreFailed:
    return StoreFailed(f"the store did not accept the write ({reason(error)}); nothing was kept, try again later")


def _unfit(error: Exception) -> StoreFailed:
    if isinstance(error, StoreFailed):
        return error
    return StoreFailed(f"the store cannot hold this decision ({reason(error)}); nothing was kept")
