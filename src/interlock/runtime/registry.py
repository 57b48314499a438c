"""The registry: sessions, runs, keys and generations that are alive in this process.

1. A session has one seat. Only the run in `session.seat` is driven.
2. An entry is removed only for the object that put it there (identity, not key). A late cleanup of an old run must not
   free the seat or the key of its successor (race 13).
3. A run leaves the registry when it is drained and its ending is durable; a session leaves when no run of it is left.
   The session's generation survives that: it raises the common floor (see `fence`), and a session that is loaded again
   starts at the floor or at the stored number, whichever is higher (race 43).
4. Every change of a right passes through memory first. So what memory knows of a session's owner and shares is never
   older than what the store returns (`fresher`).
5. Tombstones, keys of stops and stop marks are bounded per principal, so that one principal cannot push out another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from interlock.core.authority import NOBODYS, Whose
from interlock.core.decision import SessionRow, StopKey, StopMark, Tombstone, with_mark
from interlock.core.fence import StoredGenerations
from interlock.core.lifecycle import Move
from interlock.core.names import Ending, Principal, QuestionId, ReceiptId, RunId, SessionId
from interlock.core.values import Order
from interlock.runtime.flag import Flag
from interlock.runtime.holds import Holds
from interlock.runtime.live import LiveRun
from interlock.runtime.numbers import Count, Numbers, Positions
from interlock.runtime.session import Session
from interlock.runtime.work import Question
from interlock.stores.base import Loaded

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall

# Per principal; the store keeps as many.
TOMBSTONES = 1_000
# Keys of stops, per principal; the store keeps as many.
STOPS = 10_000
# Owners and shares of sessions no longer in memory: late events (a receipt) still need to know who may see them.
LEFT = 10_000
# Stop marks, per principal.
MARKS = 1_000


class StopCall:
    """One call of stop or reset. With a key, its result answers a second delivery of the same call.

    The key is claimed in the step that decides and stored in the Decision of what the stop ended, so that two
    deliveries at once are one stop: the second waits for the result of the first (races 129 and 130). Memory holds
    every stop's key that the store has. A stop must not read before it decides: it could end a message that came while
    it read. A stop that must read all the same (to learn the session's owner) goes on in a task of control's own, since
    a caller that left would free the key for a second stop.
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
        # The result, once it is decided.
        self.row: StopKey | None = None
        self.decided = Flag()

    def decide(
        self,
        *,
        at: float,
        receipt: ReceiptId | None = None,
        aborted: bool = False,
        already: Ending | None = None,
    ) -> tuple[StopKey, ...]:
        """Set the result, and return the rows to store; none without a key."""
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

    def __init__(self, boot: int, highest: int = 0) -> None:
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, LiveRun] = {}
        self.falls: dict[ReceiptId, Fall] = {}
        self.keys: dict[tuple[Principal, str], LiveRun] = {}
        self.generations = StoredGenerations()
        # Sessions whose runs of an earlier start are not settled, each with its gate: no run of it begins.
        self.recovering: dict[SessionId, Flag] = {}
        # Control refuses new messages.
        self.closing = False
        # Control publishes nothing more.
        self.closed = False
        self.numbers = Numbers(boot)
        self.new_id = self.numbers.new_id
        self.positions = Positions(highest)
        self.questions: dict[QuestionId, Question] = {}
        self.holds = Holds(self.numbers)
        self._left: OrderedDict[SessionId, tuple[Whose, SessionId | None]] = OrderedDict()
        self._tombstones: dict[Principal, OrderedDict[str, None]] = {}
        self._stops: dict[Principal, OrderedDict[str, StopCall]] = {}
        self._marks: dict[SessionId, dict[tuple[str, Principal], tuple[StopMark, ...]]] = {}
        self._marks_of: dict[Principal, OrderedDict[tuple[SessionId, str], None]] = {}

    # Sessions

    def session(self, session_id: SessionId) -> Session:
        """Return a session; make it if it is not in memory."""
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    def count(self, session_id: SessionId) -> Count:
        """Return what numbers a session's events: children's sessions count with the session at the top."""
        session = self.sessions.get(session_id)
        return self.positions.of(session_id if session is None or session.home is None else session.home.id)

    def gate_of(self, session: Session) -> Flag | None:
        """Return the gate of a session that recovery has not settled yet; children are settled with their home."""
        return self.recovering.get(session.id if session.home is None else session.home.id)

    @contextmanager
    def pinned(self, session_id: SessionId) -> Iterator[Session]:
        """Keep a session in memory inside the block.

        A change that is decided here counts before the store has it; a session that left memory meanwhile would be
        loaded again without the change.
        """
        session = self.session(session_id)
        session.live += 1
        try:
            yield session
        finally:
            session.live -= 1
            self.forget_if_quiet(session)

    def session_row(self, session: Session) -> SessionRow:
        """Return a session's row as it stands now."""
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

    def load(self, session: Session, known: Loaded) -> None:
        """Fill a session in memory with what the store has of it, unless that was done before."""
        if session.loaded:
            return
        session.loaded = True
        if session.home is None:
            self.positions.load(session.id, known.epoch)
        if known.session is not None:
            session.stored = True
            session.owner = known.session.owner
            session.shares = dict(known.session.shares)
            session.strategy = known.session.strategy
            session.since = known.session.since
            session.renewed = known.session.renewed
            session.crashes = known.session.crashes
            session.announced = known.session.announced
            self.generations.restore(session.id, known.session.generation)
        else:
            # The store has no row, so the session has no owner yet. Hide the text of messages stopped until now: the
            # first sender admitted later becomes the owner and must not read them.
            for run in [run for fall in session.falls or () for run in fall.runs]:
                run.withheld |= run.session is session and run.generation is None
        if session.previous is None:
            session.previous = known.previous
        self.mark(known.marks)

    def seat(self, run: LiveRun) -> None:
        """Give a run its session's empty seat, and raise the generation in the same step.

        Only this method fills a seat, and only an empty one: two runs of a session are never driven together (races 25
        and 26). A generation that stayed the same would let late output of the last run pass as this run's.
        """
        session = run.session
        assert session.seat is None, "the seat is taken"
        run.move(Move.SEAT)
        session.seat = run
        run.generation = self.generations.rise(session.id)
        session.count_turn(run.arrival.kind)
        run.seated_or_over.set()

    def unseat(self, run: LiveRun) -> None:
        """Free the seat if this run has it."""
        if run.session.seat is run:
            run.session.seat = None

    def dequeue(self, run: LiveRun) -> None:
        """Remove a run from its session's queue if it waits there."""
        waiting = run.session.queue
        if waiting is not None and run in waiting:
            waiting.remove(run)

    # Runs

    def register(self, run: LiveRun) -> None:
        """Make a run findable by id, key and parent; from this step on a stop ends it."""
        self.runs[run.id] = run
        if run.ties.home is not run.session:
            run.session.home = run.ties.home
        run.session.live += 1
        self._link(run)
        if run.arrival.key is not None:
            self.keys.setdefault((run.principal, run.arrival.key), run)

    def release_key(self, run: LiveRun) -> None:
        """Free a run's key if the key still names this run."""
        if run.arrival.key is not None and self.keys.get((run.principal, run.arrival.key)) is run:
            del self.keys[run.principal, run.arrival.key]

    def retire(self, run: LiveRun) -> None:
        """Remove a run that is drained and stored, the messages it absorbed, and its session if that is empty now."""
        if self.runs.get(run.id) is not run:
            return
        del self.runs[run.id]
        self.release_key(run)
        self.unlink(run)
        for question in run.work.questions or ():
            self.questions.pop(question, None)
        run.session.live -= 1
        self.forget_if_quiet(run.session)
        if run.ties.detached:
            run.ties.home.live -= 1
            self.forget_if_quiet(run.ties.home)
        for part in run.ties.absorbed or ():
            self.retire(part)

    def _link(self, run: LiveRun) -> None:
        """Bind a child to its parent; bind a detached one also to its home, which may outlive the parent."""
        if run.ties.parent is not None:
            if run.ties.parent.ties.children is None:
                run.ties.parent.ties.children = {}
            run.ties.parent.ties.children[run.id] = run
        if run.ties.detached:
            if run.ties.home.detached is None:
                run.ties.home.detached = {}
            run.ties.home.detached[run.id] = run
            run.ties.home.live += 1
            return
        above: LiveRun | None = run.ties.parent
        while above is not None:
            above.ties.descendants += 1
            above = None if above.ties.detached else above.ties.parent

    def unlink(self, run: LiveRun) -> None:
        """Unbind a child that has ended or was withdrawn from its parent and its home; a second call does nothing."""
        bound = None if run.ties.parent is None else (run.ties.parent.ties.children or {}).pop(run.id, None)
        if run.ties.detached:
            (run.ties.home.detached or {}).pop(run.id, None)
        if bound is None or run.ties.detached:
            return
        above: LiveRun | None = run.ties.parent
        while above is not None:
            above.ties.descendants -= 1
            above = None if above.ties.detached else above.ties.parent

    def absorb(self, part: LiveRun, into: LiveRun) -> None:
        """Alias a message to the run that absorbs it; that run answers for it from then on."""
        self.dequeue(part)
        part.move(Move.ALIAS)
        part.ties.alias = into
        into.ties.absorbed = [*(into.ties.absorbed or ()), part]
        part.limits.disarm()
        part.seated_or_over.set()
        part.ended.set()

    def forget_if_quiet(self, session: Session) -> None:
        """Remove a session without live runs; its generation is never given again."""
        if session.live == 0 and self.sessions.get(session.id) is session:
            del self.sessions[session.id]
            self.generations.forget(session.id)
            if session.home is None:
                self.positions.leave(session.id)
            if session.stored:
                self._left[session.id] = session.whose, None if session.home is None else session.home.id
                self._left.move_to_end(session.id)
                if len(self._left) > LEFT:
                    self._left.popitem(last=False)

    def whose(self, session_id: SessionId) -> Whose:
        """Return a session's owner and shares as far as memory knows them: it is alive, or left not long ago."""
        session = self.sessions.get(session_id)
        if session is not None and session.loaded:
            return session.whose
        whose, home = self._left.get(session_id, (NOBODYS, None))
        return whose if home is None else Whose(whose.owner, self.whose(home).shares)

    def fresher(self, session_id: SessionId, read: Whose) -> Whose:
        """Return owner and shares from memory if it has them, else those that were read from the store.

        A right may be taken away while a read is on its way. Every change passes through memory, so memory is never
        older than a read that began before the change.
        """
        known = self.whose(session_id)
        return read if known.owner is None else known

    # Tombstones

    def bury(self, tombstone: Tombstone) -> None:
        """Remember that a key was stopped before its message arrived (race 1)."""
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
        """Free the key of a stop that failed before it decided anything: it may be tried again."""
        if call.key is not None and self.stop_of(call.by, call.key) is call:
            del self._stops[call.by][call.key]

    def recall(self, row: StopKey) -> None:
        """Load a stop's key that an earlier start stored."""
        call = StopCall(row.principal, method=row.method, key=row.key, digest=row.digest)
        call.row = row
        call.decided.set()
        self.claim(call)

    # Stops by their place in a channel

    def mark(self, marks: Iterable[StopMark]) -> None:
        """Remember where stops stood in their own channels, at most MARKS for each principal."""
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
        """Return the principals who stopped a session after a message was written, by the order of its own channel.

        Only numbers of one channel are compared, never our clock or another channel's numbers.
        """
        if order is None:
            return []
        kept = self._marks.get(session, {})
        return [
            by
            for (channel, by), marks in kept.items()
            if channel == order.channel and any(order.at < mark.at and mark.stands(now) for mark in marks)
        ]
