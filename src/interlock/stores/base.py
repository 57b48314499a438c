"""The store port: the requests of the runtime to a store, and the rules for their answers.

1. `decide` is a plain function that enqueues at once, so store order is decision order. One Decision is one
   transaction.
2. A ticket answers once, with a Verdict or an error. `withdraw` makes the answer conclusive: in the store, or never. A
   store that does not answer within WITHDRAW_SECONDS leaves it open (`Unsure`).
3. `append` never delays a decision. It returns True if reads see the event now; if not, the store says when they do
   (`tell_written`). The runtime's `Unwritten` holds the events in between.
4. A read or a write that cannot be done raises StoreFailed. The runtime bounds how long it waits.
5. Writes are conditional, so that a store can be shared by several nodes one day: nothing is read, changed in Python
   and written back. An ending is written where none stands, a generation only rises. A Decision is refused whole if
   it admits a message under a key that another run has (`Taken`) or that was stopped (`Buried`), or if it comes under
   an older generation (`Expelled`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import anyio
import msgspec

from interlock.core.answers import SessionInfo
from interlock.core.decision import (
    Decision,
    EpochRow,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StopKey,
    StopMark,
    ToolRow,
    Verdict,
    WakeRow,
)
from interlock.core.errors import Unavailable
from interlock.core.events import Event
from interlock.core.names import Principal, QuestionId, ReceiptId, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt

T = TypeVar("T")

Written = Callable[[Sequence[Event], Sequence[EpochRow]], None]
"""Hears which events and epochs are written, in the loop."""

ABANDONED = "this control has lapsed: nothing more is kept"
READ_SECONDS = 5.0
WITHDRAW_SECONDS = 1.0


class StoreFailed(Unavailable):
    """The store could not carry out a read or a write; nothing of it was kept."""


class Unsure(StoreFailed):
    """Whether the write was kept is unknown: the disk failed, or the store does not answer. Send the same key again."""


class Expelled(StoreFailed):
    """The write came under a writer right that has passed on; nothing of it was or will be kept. Never tried again."""


class Taken(StoreFailed):
    """The message's key has named another run before; nothing of the Decision was kept."""

    def __init__(self, row: KeyRow) -> None:
        super().__init__(f"key {row.key!r} was used before, for run {row.run_id}; nothing was kept, send it again")
        self.row = row


class Buried(StoreFailed):
    """The message's key was stopped before the message arrived; nothing of the Decision was kept."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {key!r} was stopped before its message arrived; nothing was kept, send it again")


class Ticket:
    """The place of one Decision in the store's line; await it for the Verdict."""

    __slots__ = ("_answered", "_error", "_verdict", "_waiters", "decision")

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self._answered = False
        self._waiters: list[asyncio.Future[None]] = []
        self._verdict: Verdict | None = None
        self._error: StoreFailed | None = None

    @property
    def answered(self) -> bool:
        """True once the store has answered, with "in" or "never"."""
        return self._answered

    @property
    def inside(self) -> bool:
        """True once the decision is in the store."""
        return self._verdict is not None

    @property
    def failure(self) -> StoreFailed | None:
        """The store's error, if it has refused the decision."""
        return self._error

    def accept(self, verdict: Verdict) -> None:
        """Answer that the decision is in the store."""
        if not self._answered:
            self._verdict = verdict
            self._wake()

    def refuse(self, error: StoreFailed) -> None:
        """Answer that the decision will never be in the store."""
        if not self._answered:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self._answered = True
        for waiter in self._waiters:
            _release(waiter)

    async def within(self, seconds: float | None) -> bool:
        """Wait for the answer, at most so many seconds; return whether there is one.

        Written with a plain future because every recorded effect waits here: a cancel scope costs six times as much.
        """
        if self._answered:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _release, waiter)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)
            if timer is not None:
                timer.cancel()
        return self._answered

    async def certain(self) -> bool:
        """Return whether the decision is in the store; raise Unsure if the store does not say in time."""
        if not await self.within(WITHDRAW_SECONDS):
            raise Unsure("the store does not say whether it has this; send it again with the same key")
        return self.inside

    def __await__(self) -> Generator[Any, None, Verdict]:
        yield from self.within(None).__await__()
        if self._error is not None:
            raise self._error
        assert self._verdict is not None
        return self._verdict


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A session and a key as the store knows them, read before a message is decided on."""

    session: SessionRow | None = None
    key: KeyRow | None = None
    # The key has a tombstone.
    buried: bool = False
    # How the session's last turn ended.
    previous: Outcome | None = None
    # Where the session's stops stood in their own channels.
    marks: tuple[StopMark, ...] = ()
    # No position of the session that was published is above this epoch.
    epoch: int = 0


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a session's log. If `lost_to` > 0, the events up to that position were dropped."""

    events: tuple[Event, ...] = ()
    lost_to: int = 0


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How much a call of `prune` removed."""

    sessions: int = 0
    runs: int = 0
    events: int = 0


class Log(Protocol):
    """A source of a session's events."""

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        """Return the events after a position, in order."""
        ...

    async def began(self, session: SessionId, run_id: RunId) -> int:
        """Return the position of a run's first event in a session's log; 0 if the log has none."""
        ...


class Store(Log, Protocol):
    """Remembers sessions, messages, endings and events."""

    shared: bool
    """Whether other controls may use the store too: what those run is listed from the store."""

    clean: bool
    """Once open: whether the server before this one closed the store, so that nothing was cut short."""

    epoch: int
    """Once open: no session has a higher epoch. After an unclean end every session counts as having this one.

    The server before may have published events under epochs that it did not write: of a session that the store was
    asked for, the one after the stored one, and of any other, the one after the highest (`runtime/numbers.py`).
    """

    async def open(self) -> int:
        """Make ready and return this start's boot number, higher than any before."""
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Finish what was accepted and release the store; without `clean` the next start sees an unclean end."""
        ...

    def abandon(self) -> None:
        """Keep nothing more: refuse what waits and what comes, and drop events that are not written."""
        ...

    def decide(self, decision: Decision) -> Ticket:
        """Enqueue one transaction at once."""
        ...

    async def withdraw(self, ticket: Ticket) -> bool:
        """Answer the ticket; return True if its decision is in the store, False if it never will be.

        Raise Unsure if that is not known within WITHDRAW_SECONDS.
        """
        ...

    def append(self, event: Event, epoch: EpochRow | None = None) -> bool:
        """Add an event to its session's log, and keep its epoch; return whether that is done already.

        A run's `ended` takes the run's deltas out of the log. The epoch is written with the event or before it.
        """
        ...

    def tell_written(self, to: Written) -> None:
        """Set what hears of events and epochs for which `append` returned False, once they are written."""
        ...

    def forget(self, events: Sequence[Event]) -> None:
        """Do not write these events, if they are not written yet."""
        ...

    def drop(self, session: SessionId, events: Sequence[Event]) -> None:
        """Forget a session's oldest unwritten events, and record a gap; a run that ended with one stays ended."""
        ...

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        """Return what must be known before a message can be decided on."""
        ...

    async def session(self, session: SessionId) -> SessionRow | None:
        """Return a session's row."""
        ...

    async def sessions(self, *, limit: int, of: Principal | None = None) -> tuple[SessionInfo, ...]:
        """Return the sessions people send to, the latest first; with `of`, those it owns or that are shared with it.

        Sessions of children and of single runs (`run:<id>`) are left out.
        """
        ...

    async def plain_sessions(self) -> tuple[tuple[Principal, SessionId], ...]:
        """Return owner and id of each session whose id does not begin with its owner (kept from schema 1)."""
        ...

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return a run's row."""
        ...

    async def runs(
        self, session: SessionId | None, *, tree: bool = False, limit: int = 1_000, of: Principal | None = None
    ) -> tuple[RunRow, ...]:
        """Return a session's runs in the order they were admitted; with `tree` the children below them too.

        Without a session, return the latest of all sessions, up to a limit; with `of`, only those in sessions that this
        principal owns or that are shared with it.
        """
        ...

    async def open_runs(self, *, of: Principal | None = None) -> tuple[RunRow, ...]:
        """Return the runs of all sessions that have no ending, without aliased ones; with `of` as `runs` has it."""
        ...

    async def open_questions(self) -> tuple[QuestionRow, ...]:
        """Return the open questions of all runs, oldest first."""
        ...

    async def unsettled(self) -> tuple[SessionId, ...]:
        """Return the sessions with unsettled runs, in them or in the children below; the oldest run's first."""
        ...

    async def unsettled_runs(self, session: SessionId) -> tuple[RunRow, ...]:
        """Return a session's unsettled runs in the order they were admitted, then those of the children below it.

        Aliased runs are left out.
        """
        ...

    async def parts(self, run_id: RunId) -> tuple[RunRow, ...]:
        """Return the messages that were aliased to a run, in order."""
        ...

    async def questions(self, run_id: RunId) -> tuple[QuestionRow, ...]:
        """Return a run's questions."""
        ...

    async def pending_receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts that are not drained."""
        ...

    async def prune(self, *, before: float | None = None) -> Pruned:
        """Forget what is beyond the bounds, and sessions without a message since `before`."""
        ...

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        """Return a question."""
        ...

    async def wakes(self) -> tuple[WakeRow, ...]:
        """Return every schedule."""
        ...

    async def stops(self) -> tuple[StopKey, ...]:
        """Return the keys of stops, oldest first."""
        ...

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        """Return the tool calls a run has on record."""
        ...

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        """Return a receipt by its own id or by the id of a run in it."""
        ...


def is_unsettled(row: RunRow) -> bool:
    """Whether a run has no ending, or one that the log does not tell.

    An aliased run counts as settled: it ends when the run that absorbed it ends.
    """
    return row.alias is None if row.outcome is None else not row.told


async def read(asked: Awaitable[T]) -> T:
    """Await an answer of the store, at most READ_SECONDS."""
    with anyio.move_on_after(READ_SECONDS):
        return await asked
    raise StoreFailed(f"the store did not answer within {READ_SECONDS} s; try again")


async def commit_or_withdraw(store: Store, ticket: Ticket, seconds: float) -> bool:
    """Return whether a decision is in the store; after so many seconds withdraw it, which makes the answer final.

    Raise Unsure if the store does not say in time whether it has the decision.
    """
    if not await ticket.within(seconds):
        with anyio.CancelScope(shield=True):
            await store.withdraw(ticket)
    return ticket.inside


async def commit_in_time(store: Store, ticket: Ticket, seconds: float) -> bool:
    """Return whether a decision is known to be in the store; False also if the store does not say."""
    with contextlib.suppress(Unsure):
        return await commit_or_withdraw(store, ticket, seconds)
    return False


async def is_committed(store: Store, ticket: Ticket, seconds: float) -> bool:
    """Return whether a decision is in the store; wait until the store says so, however long that takes."""
    while True:
        try:
            return await commit_or_withdraw(store, ticket, seconds)
        except Unsure:
            await ticket.within(None)
