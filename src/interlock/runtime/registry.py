"""What is alive in this process: sessions, runs, keys, generations.

1. A session has one seat. Who has it is `session.seat`; nobody else is driven.
2. Clean up only what is yours: an entry is removed only by the object that put it there (identity, not key).
3. A run leaves when it is drained and its ending is durable; a session when nothing of it is left here. Its generation
   survives that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from interlock.core.authority import NOBODYS, Whose
from interlock.core.decision import SessionRow, StopKey, StopMark, Tombstone, with_mark
from interlock.core.fence import StoredGenerations
from interlock.core.lifecycle import Move
from interlock.core.names import Ending, May, Principal, QuestionId, ReceiptId, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Outcome
from interlock.runtime.holds import Holds
from interlock.runtime.live import Falling, Kept, LiveRun, Order, Question
from interlock.runtime.numbers import Numbers
from interlock.runtime.settings import CRASHES

TOMBSTONES = 1_000  # per principal; the store keeps as many
STOPS = 10_000  # keys of stops, per principal; the store keeps as many
LEFT = 10_000  # sessions no longer in memory whose rights are remembered: late events of theirs still need them
MARKS = 1_000  # stops by their place in a channel, per principal, so that nobody can push out another's


class Session:
    """A conversation: one seat, a line of arrivals, a queue. Its lists are made when first needed."""

    __slots__ = (
        "announced", "crashes", "detached", "falls", "home", "id", "kept", "line", "live", "loaded", "owner",
        "previous", "reading", "renewed", "seat", "shares", "since", "stored", "strategy", "waiting",
    )  # fmt: skip

    def __init__(self, session_id: SessionId) -> None:
        self.id = session_id
        self.owner: Principal | None = None
        self.shares: dict[Principal, May] = {}
        self.home: Session | None = None  # of a child's session: the one at the top of its tree, whose rights it has
        self.loaded = False
        self.stored = False  # the store has it
        self.seat: LiveRun | None = None
        self.line: deque[LiveRun] | None = None  # arrivals, not decided yet
        self.reading: set[asyncio.Event] | None = None  # set when stops that must read before they decide have read
        self.waiting: list[LiveRun] | None = None  # admitted, without the seat
        self.falls: list[Falling] | None = None  # from t0 until nothing is left of them
        self.detached: dict[RunId, LiveRun] | None = None  # of its tree, alive, and not bound to their parents
        self.kept: Kept | None = None  # detached processes
        self.previous: Outcome | None = None
        self.strategy: Strategy | None = None
        self.since = 0  # its transcript begins behind this position
        self.renewed = 0  # its generation when it was last reset
        self.crashes = 0  # times in a row that the server died while a run of it was going
        self.announced = 0  # turns in a row that announcements began
        self.live = 0  # runs of this session in the registry, and its detached ones elsewhere

    @property
    def parked(self) -> bool:
        """True if it may be what brings the server down: nothing of it begins until it is reset."""
        return self.crashes >= CRASHES

    def count_turn(self, kind: RunKind) -> None:
        """Count the turns that announcements begin in a row; what a person writes ends the row."""
        if kind is RunKind.ANNOUNCE:
            self.announced += 1
        elif kind is RunKind.CHAT:
            self.announced = 0

    @property
    def confirmed_owner(self) -> Principal | None:
        """The owner, once the store knows it; whoever is only about to own a session has no right to it yet."""
        return self.owner if self.stored else None

    @property
    def whose(self) -> Whose:
        """Whose it is, once the store knows it; a child's session is shared as its home is."""
        shares = self.shares if self.home is None else self.home.shares
        return Whose(self.owner, shares) if self.stored else NOBODYS


class StopCall:
    """One call of stop or reset. Under a key it is known from its first instant, and what came of it answers a retry.

    Memory holds every key that the store keeps: a stop must not read before it decides, or it could end a message that
    came while it read.
    """

    __slots__ = ("by", "decided", "digest", "key", "method", "row", "typed")

    def __init__(
        self, by: Principal, *, method: str = "stop", key: str | None = None, digest: str = "", typed: bool = False
    ) -> None:
        self.by = by
        self.method = method
        self.key = key
        self.digest = digest
        self.typed = typed
        self.row: StopKey | None = None  # what came of it, once that is decided
        self.decided = asyncio.Event()

    def decide(
        self,
        *,
        at: float,
        receipt: ReceiptId | None = None,
        aborted: bool = False,
        already: Ending | None = None,
    ) -> tuple[StopKey, ...]:
        """Say what came of it, and return what is to be kept of that: nothing, without a key."""
        if self.key is None:
            return ()
        self.row = StopKey(
            principal=self.by,
            key=self.key,
            method=self.method,
            digest=self.digest,
            at=at,
            receipt=receipt,
            aborted=aborted,
            already=already,
        )
        self.decided.set()
        return (self.row,)


class Registry:
    """Everything alive in this control."""

    def __init__(self, boot: int) -> None:
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, LiveRun] = {}
        self.falls: dict[ReceiptId, Falling] = {}
        self.keys: dict[tuple[Principal, str], LiveRun] = {}
        self.generations = StoredGenerations()
        self.settling = False  # what an earlier start left is taken up; nothing begins
        self.closing = False  # nothing new is taken
        self.closed = False  # nothing is told any more
        self.numbers = Numbers(boot)
        self.position, self.new_id = self.numbers.position, self.numbers.new_id
        self.questions: dict[QuestionId, Question] = {}
        self.holds = Holds(self.numbers)
        self._left: OrderedDict[SessionId, tuple[Whose, SessionId | None]] = OrderedDict()
        self._tombstones: dict[Principal, OrderedDict[str, None]] = {}
        self._stops: dict[Principal, OrderedDict[str, StopCall]] = {}
        self._marks: dict[SessionId, dict[tuple[str, Principal], tuple[StopMark, ...]]] = {}
        self._marks_of: dict[Principal, OrderedDict[tuple[SessionId, str], None]] = {}

    # Sessions

    def session(self, session_id: SessionId) -> Session:
        """Return a session, made if it is not here."""
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    @contextmanager
    def pinned(self, session_id: SessionId) -> Iterator[Session]:
        """Keep a session in memory: what is decided of it here counts before the store has it."""
        session = self.session(session_id)
        session.live += 1
        try:
            yield session
        finally:
            session.live -= 1
            self.forget_if_quiet(session)

    def session_row(self, session: Session) -> SessionRow:
        """What the store keeps of a session now."""
        assert session.owner is not None
        return SessionRow(
            id=session.id,
            owner=session.owner,
            generation=self.generations.get(session.id),
            strategy=session.strategy,
            since=session.since,
            renewed=session.renewed,
            crashes=session.crashes,
            announced=session.announced,
            shares=session.shares,
        )

    def seat(self, run: LiveRun) -> None:
        """Give a run its session's empty seat; the generation rises with it."""
        session = run.session
        assert session.seat is None, "the seat is taken"
        run.move(Move.SEAT)
        session.seat = run
        run.generation = self.generations.rise(session.id)
        session.count_turn(run.kind)
        run.called.set()

    def unseat(self, run: LiveRun) -> None:
        """Free the seat if this very run has it."""
        if run.session.seat is run:
            run.session.seat = None

    def dequeue(self, run: LiveRun) -> None:
        """Take a run out of its session's queue if it waits there."""
        waiting = run.session.waiting
        if waiting is not None and run in waiting:
            waiting.remove(run)

    # Runs

    def register(self, run: LiveRun) -> None:
        """Make a run findable: from here on it can be stopped."""
        self.runs[run.id] = run
        if run.home is not run.session:
            run.session.home = run.home
        run.session.live += 1
        self._link(run)
        if run.key is not None:
            self.keys.setdefault((run.principal, run.key), run)

    def release_key(self, run: LiveRun) -> None:
        """Free a run's key if it is this run's."""
        if run.key is not None and self.keys.get((run.principal, run.key)) is run:
            del self.keys[run.principal, run.key]

    def retire(self, run: LiveRun) -> None:
        """Drop a run that is over in every respect, and its session if nothing else of it is here."""
        if self.runs.get(run.id) is not run:
            return
        del self.runs[run.id]
        self.release_key(run)
        self.unlink(run)
        for question in run.questions or ():
            self.questions.pop(question, None)
        run.session.live -= 1
        self.forget_if_quiet(run.session)
        if run.detached:
            run.home.live -= 1
            self.forget_if_quiet(run.home)
        for part in run.absorbed or ():
            self.retire(part)

    def _link(self, run: LiveRun) -> None:
        """Bind a child to its parent, and if it is detached to the session at the top, which may outlive the parent."""
        if run.parent is not None:
            if run.parent.children is None:
                run.parent.children = {}
            run.parent.children[run.id] = run
        if run.detached:
            if run.home.detached is None:
                run.home.detached = {}
            run.home.detached[run.id] = run
            run.home.live += 1
            return
        above: LiveRun | None = run.parent
        while above is not None:
            above.descendants += 1
            above = None if above.detached else above.parent

    def unlink(self, run: LiveRun) -> None:
        """Undo that, once: a child that has ended, or never was, is nobody's any more."""
        bound = None if run.parent is None else (run.parent.children or {}).pop(run.id, None)
        if run.detached:
            (run.home.detached or {}).pop(run.id, None)
        if bound is None or run.detached:
            return
        above: LiveRun | None = run.parent
        while above is not None:
            above.descendants -= 1
            above = None if above.detached else above.parent

    def absorb(self, part: LiveRun, into: LiveRun) -> None:
        """Make a message part of another run; whoever asks for it is answered by that run."""
        self.dequeue(part)
        part.move(Move.ALIAS)
        part.alias = into
        if into.absorbed is None:
            into.absorbed = []
        into.absorbed.append(part)
        for timer in part.timers or ():
            timer.cancel()
        part.called.set()
        part.ended.set()

    def forget_if_quiet(self, session: Session) -> None:
        """Drop a session of which nothing is alive here; its generation is never given again."""
        if session.live == 0 and self.sessions.get(session.id) is session:
            del self.sessions[session.id]
            self.generations.forget(session.id)
            if session.stored:
                self._left[session.id] = session.whose, None if session.home is None else session.home.id
                self._left.move_to_end(session.id)
                if len(self._left) > LEFT:
                    self._left.popitem(last=False)

    def whose(self, session_id: SessionId) -> Whose:
        """Return whose a session is, as far as that is known here: it is alive, or was a while ago."""
        session = self.sessions.get(session_id)
        if session is not None and session.loaded:
            return session.whose
        whose, home = self._left.get(session_id, (NOBODYS, None))
        return whose if home is None else Whose(whose.owner, self.whose(home).shares)

    def fresher(self, session_id: SessionId, read: Whose) -> Whose:
        """Return whose a session is where the store was asked: memory's word goes before what was read meanwhile.

        A right may be taken away while a read is on its way. Every change passes through memory, so what is
        remembered here is never older than what a read that began before it has found.
        """
        known = self.whose(session_id)
        return read if known.owner is None else known

    # Tombstones

    def bury(self, tombstone: Tombstone) -> None:
        """Remember that a key was stopped before it was seen."""
        kept = self._tombstones.setdefault(tombstone.principal, OrderedDict())
        kept[tombstone.key] = None
        if len(kept) > TOMBSTONES:
            kept.popitem(last=False)

    def buried(self, principal: Principal, key: str | None) -> bool:
        """Return whether a key has a tombstone here."""
        return key is not None and key in self._tombstones.get(principal, ())

    # Stops by their keys

    def stop_of(self, principal: Principal, key: str | None) -> StopCall | None:
        """Return the stop that used a key first."""
        kept = self._stops.get(principal)
        return None if kept is None or key is None else kept.get(key)

    def claim(self, call: StopCall) -> None:
        """Make a stop known by its key."""
        assert call.key is not None
        kept = self._stops.setdefault(call.by, OrderedDict())
        kept[call.key] = call
        if len(kept) > STOPS:
            kept.popitem(last=False)

    def release(self, call: StopCall) -> None:
        """Forget a stop that came to nothing, not even to a decision: it may be tried again."""
        if call.key is not None and self.stop_of(call.by, call.key) is call:
            del self._stops[call.by][call.key]

    def recall(self, row: StopKey) -> None:
        """Take up a stop's key that an earlier start kept."""
        call = StopCall(row.principal, method=row.method, key=row.key, digest=row.digest)
        call.row = row
        call.decided.set()
        self.claim(call)

    # Stops by their place in a channel

    def mark(self, marks: Iterable[StopMark]) -> None:
        """Remember where in their own channels stops stood, so many for each principal."""
        for mark in marks:
            kept = self._marks.setdefault(mark.session, {})
            kept[mark.channel, mark.by] = with_mark(kept.get((mark.channel, mark.by), ()), mark)
            made = self._marks_of.setdefault(mark.by, OrderedDict())
            made[mark.session, mark.channel] = None
            made.move_to_end((mark.session, mark.channel))
            if len(made) > MARKS:
                self._unmark(mark.by, *made.popitem(last=False)[0])

    def _unmark(self, by: Principal, session: SessionId, channel: str) -> None:
        kept = self._marks[session]
        del kept[channel, by]
        if not kept:
            del self._marks[session]

    def stopped_after(self, session: SessionId, order: Order | None, now: float) -> list[Principal]:
        """Return who stopped a session after a message was written, by the message's own channel."""
        if order is None:
            return []
        kept = self._marks.get(session, {})
        return [
            by
            for (channel, by), marks in kept.items()
            if channel == order.channel and any(order.at < mark.at and mark.stands(now) for mark in marks)
        ]
