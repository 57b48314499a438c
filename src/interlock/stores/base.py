"""The store port: what the runtime asks of memory that may outlive it.

1. `decide` is a plain function: it enqueues at once, so store order is decision order. One Decision, one transaction.
2. A ticket answers once, with a Verdict or an error. `withdraw` makes it answer conclusively: in, or never.
3. `append` never delays a decision. Reads see what was appended, committed or not.
4. A read or a write that cannot be done raises StoreFailed; the runtime bounds how long it waits.
"""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Protocol, TypeVar

import anyio
import msgspec

from interlock.core.decision import (
    Decision,
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

READ_SECONDS = 5.0


class StoreFailed(Unavailable):
    """The store could not do it; nothing of it was kept."""


class Unsure(StoreFailed):
    """The disk failed: nobody knows whether it was kept, and nothing more is taken before a restart."""


class OldToken(StoreFailed):
    """A write under a writer right that has passed to someone else; nothing of it was kept, and never will be."""


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
        """True once the store has said in or never."""
        return self._answered

    @property
    def inside(self) -> bool:
        """True once the decision is in the store."""
        return self._verdict is not None

    @property
    def failure(self) -> StoreFailed | None:
        """Why it never will be, once the store has said so."""
        return self._error

    def accept(self, verdict: Verdict) -> None:
        """Answer: it is in."""
        if not self._answered:
            self._verdict = verdict
            self._wake()

    def refuse(self, error: StoreFailed) -> None:
        """Answer: it never will be."""
        if not self._answered:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self._answered = True
        for waiter in self._waiters:
            _release(waiter)

    async def within(self, seconds: float | None) -> bool:
        """Wait for the answer, at most so long; return whether there is one.

        By hand, because every effect that must be on record comes through here: a cancel scope costs six times this.
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
    """What is known of a session and a key before a message is decided on."""

    session: SessionRow | None = None
    key: KeyRow | None = None
    buried: bool = False  # the key has a tombstone
    previous: Outcome | None = None  # how the session's last turn ended
    marks: tuple[StopMark, ...] = ()  # where in their own channels its stops stood


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a session's log. `lost_to` > 0: events up to that position are no longer to be had."""

    events: tuple[Event, ...] = ()
    lost_to: int = 0


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a list shows it."""

    session: SessionRow
    runs: int
    open: int  # those that have not ended
    latest_at: float | None = None  # when its latest message came


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    sessions: int = 0
    runs: int = 0
    events: int = 0


class Log(Protocol):
    """Whatever a session's events can be read from."""

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        """Return the events behind a position, in order."""
        ...


class Store(Log, Protocol):
    """Remembers sessions, messages, endings and events."""

    clean: bool
    """Once open: whether whoever had it before closed it, so that nothing was cut short."""

    async def open(self) -> int:
        """Make ready and return this start's boot number, higher than any before."""
        ...

    async def close(self, *, clean: bool = True) -> None:
        """Finish what was taken and let go; unless `clean`, the next start is told that something was cut short."""
        ...

    def decide(self, decision: Decision) -> Ticket:
        """Enqueue one transaction at once."""
        ...

    async def withdraw(self, ticket: Ticket) -> bool:
        """Return True if the ticket's decision is in, False if it never will be; the ticket is answered then."""
        ...

    def append(self, event: Event) -> None:
        """Add an event to its session's log; a run's `ended` takes the run's deltas out of it."""
        ...

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        """Return what must be known before a message can be decided on."""
        ...

    async def session(self, session: SessionId) -> SessionRow | None:
        """Return a session's row."""
        ...

    async def sessions(self, *, limit: int, of: Principal | None = None) -> tuple[SessionInfo, ...]:
        """Return sessions that people send to (not runs' own), the latest first; `of`: its own, or shared with it."""
        ...

    async def plain_sessions(self) -> tuple[tuple[Principal, SessionId], ...]:
        """Return the owners and ids of sessions kept by a version whose ids did not say whose they are."""
        ...

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return a run's row."""
        ...

    async def runs(
        self, session: SessionId | None, *, tree: bool = False, limit: int = 1_000, of: Principal | None = None
    ) -> tuple[RunRow, ...]:
        """Return a session's runs in the order they were admitted; with `tree` the children below them too.

        Without a session: the latest of all, up to a limit; `of`: those in sessions it owns or that are shared with it.
        """
        ...

    async def unsettled(self) -> tuple[SessionId, ...]:
        """Return the sessions with runs that have no ending, or whose ending the log does not tell; oldest first."""
        ...

    async def unsettled_runs(self, session: SessionId) -> tuple[RunRow, ...]:
        """Return those runs of a session, in the order they were admitted; not those that another run took in."""
        ...

    async def parts(self, run_id: RunId) -> tuple[RunRow, ...]:
        """Return the messages that a run took in, in order."""
        ...

    async def questions(self, run_id: RunId) -> tuple[QuestionRow, ...]:
        """Return what a run has asked."""
        ...

    async def pending_receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts that do not say drained."""
        ...

    async def prune(self, *, before: float | None = None) -> Pruned:
        """Forget what is beyond the bounds, and sessions in which nobody wrote since `before`."""
        ...

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        """Return a question."""
        ...

    async def wakes(self) -> tuple[WakeRow, ...]:
        """Return every schedule."""
        ...

    async def stops(self) -> tuple[StopKey, ...]:
        """Return every stop's key that is kept, oldest first."""
        ...

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        """Return the tool calls a run has on record."""
        ...

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        """Return a receipt by its own id or by the id of a run in it."""
        ...


def is_unsettled(row: RunRow) -> bool:
    """Whether a run has no ending, or one that the log does not tell; what another run took in ends with that."""
    return row.alias is None if row.outcome is None else not row.told


async def read(asked: Awaitable[T]) -> T:
    """Ask a store for something, at most READ_SECONDS long."""
    with anyio.move_on_after(READ_SECONDS):
        return await asked
    raise StoreFailed(f"the store did not answer within {READ_SECONDS} s; try again")


async def committed(store: Store, ticket: Ticket, seconds: float) -> bool:
    """Return whether a decision is in the store, waiting at most so long and then making it conclusive."""
    if not await ticket.within(seconds):
        with anyio.CancelScope(shield=True):
            await store.withdraw(ticket)
    try:
        await ticket
    except StoreFailed:
        return False
    return True
