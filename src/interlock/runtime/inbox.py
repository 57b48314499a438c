"""The one way in.

A message stands in its session's line from the first instant, so a stop right behind it ends it. It is decided on in
one synchronous step, in the order of arrival: duplicate? · tombstone? · takeover · seat or queue · one Decision.
1. A duplicate is answered before a tombstone is looked for, and that before anyone is taken over.
2. The ack follows the commit. A message that could not be committed in time is withdrawn: it never was.
3. One task of control's own carries a message from here to its end; the sender only waits for the ack.
4. Collected messages are committed one after another, and their turn does not begin while one is on its way.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import msgspec

from interlock.core.authority import Action, Authority, Whose, may_found
from interlock.core.decision import Decision, KeyRow
from interlock.core.errors import InterlockError, KeyConflict, QueueFull, Refused, Rejected, Unavailable
from interlock.core.lifecycle import Move, State
from interlock.core.names import REPORTS, Effect, Ending, Principal, RunKind, Strategy
from interlock.core.outcome import Cause
from interlock.core.takeover import Admission, Scene, decide, place, strategy_of
from interlock.runtime.clock import Clock
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.ending import Endings, earlier
from interlock.runtime.fall import Fall, seat_next
from interlock.runtime.live import Collection, LiveRun, Sent, delegated, own_session
from interlock.runtime.naming import UnknownSession
from interlock.runtime.outlet import Feed, Outlet
from interlock.runtime.registry import Registry, Session
from interlock.runtime.settings import ARRIVALS, COLLECT_TIMES, COLLECTED, Settings
from interlock.stores.base import Loaded, Store, StoreFailed, Ticket, Unsure, committed

PATIENCE_SECONDS = 0.1  # arrivals so close behind a first message that fails are turned away with it
PASSES = 1  # takeovers that may go ahead of a waiting message of someone else


class Inbox:
    """Takes messages in."""

    def __init__(
        self,
        registry: Registry,
        *,
        store: Store,
        feed: Feed,
        endings: Endings,
        deadlines: Deadlines,
        authority: Authority,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._store = store
        self._feed = feed
        self._endings = endings
        self._deadlines = deadlines
        self._authority = authority
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    def enter(self, run: LiveRun) -> LiveRun:
        """Put a message in its session's line at once; return the run that answers it (the first, of duplicates)."""
        if run.key is not None and (first := self._registry.keys.get((run.principal, run.key))) is not None:
            _same_body(run, first.method, first.digest)
            self._registry.forget_if_quiet(run.session)
            return first
        session = run.session
        if session.line is None:
            session.line = deque()
        if len(session.line) >= ARRIVALS:
            raise QueueFull(f"{ARRIVALS} messages to session {session.id} are not decided on yet; send it again later")
        self._registry.register(run)
        session.line.append(run)
        run.turn = asyncio.Event()
        if session.line[0] is run:
            run.turn.set()
        return run

    async def admit(self, run: LiveRun) -> bool:
        """Decide on a message when its turn comes; True if it goes on to wait for the seat."""
        assert run.turn is not None
        try:
            try:
                known = await self._load(run)
            except Unavailable as problem:
                run.problem = run.problem or problem
            await run.turn.wait()
            while run.session.reading:
                await next(iter(run.session.reading)).wait()
            if run.problem is not None:
                raise run.problem
            ticket = run.admission = self._step(run, known)
            if ticket is not None and not run.session.stored:
                await self._found(run, ticket)
            elif ticket is not None and run.state is not State.SEATED and self._strategy(run) is Strategy.COLLECT:
                await committed(self._store, ticket, self._settings.commit_seconds)  # see rule 4
        except InterlockError as problem:
            self.turn_away(run, problem)
            return False
        finally:
            self._next_turn(run)
        if ticket is None:
            return False
        return await self._ack(run, ticket)

    async def _found(self, run: LiveRun, ticket: Ticket) -> None:
        """The first message makes the session its sender's, so whether it is in must be known before the next."""
        if not await committed(self._store, ticket, self._settings.commit_seconds):
            for other in run.session.line or ():
                if (
                    other is not run and other.touched <= run.touched + PATIENCE_SECONDS
                ):  # else each waits as long again
                    other.problem = Unavailable("the store does not take messages now; nothing was kept, send it again")

    def _next_turn(self, run: LiveRun) -> None:
        line = run.session.line
        assert line is not None
        line.remove(run)
        if line and (next_turn := line[0].turn) is not None:
            next_turn.set()

    async def _load(self, run: LiveRun) -> Loaded:
        """Read what is not in memory: the only await before the decision."""
        if run.session.loaded and run.key is None:
            return Loaded()
        with anyio.move_on_after(self._settings.commit_seconds):
            try:
                return await self._store.load(run.session.id, principal=run.principal, key=run.key)
            except OSError as error:
                raise StoreFailed(f"the store cannot be read ({error}); nothing was taken, send it again") from error
        raise StoreFailed("the store did not answer in time; nothing was taken, send it again")

    # The one synchronous step

    def _step(self, run: LiveRun, known: Loaded) -> Ticket | None:
        self.take_up(run.session, known)
        if known.key is not None:
            self._answer_again(run, known.key)
            return None
        if run.fallen:  # stopped while it arrived: told so, never dispatched
            self._tell_sender(run)
            return None
        if not self._may_send(run):
            raise UnknownSession(run.session.id, run.principal)
        if self._registry.closing:
            raise Unavailable("this control is closing; send it to the next one")
        if self._registry.stop_of(run.principal, run.key) is not None:
            raise KeyConflict(f"key {run.key!r} was used for a stop; use a new key for this message")
        if (stopper := self._stopped_before(run, known)) is not None:
            self._endings.end(run, Cause(ending=Ending.STOPPED, by=stopper, born_stopped=True))
            self._tell_sender(run)
            return None
        return self._admit(run)

    def _stopped_before(self, run: LiveRun, known: Loaded) -> Principal | None:
        """Return who stopped a message before it came: by its key, or by a stop behind it in its channel."""
        buried = known.buried or self._registry.buried(run.principal, run.key)
        return run.principal if buried else self._stopped_after(run)

    def _may_send(self, run: LiveRun) -> bool:
        """Whose session it is decides. A session that nobody has founded is founded only under one's own name."""
        session = run.session
        if session.owner is None:
            found = self._authority.may(Action.FOUND, run.principal)
            return found and run.begins and may_found(run.principal, session.id)
        if run.parent is not None:  # a child comes by its parent's right, and nobody else can name its session
            return True
        return self._authority.may(Action.SEND, run.principal, whose=Whose(session.owner, session.shares))

    def may_come(self, run: LiveRun) -> bool:
        """Return whether a message can be admitted, or was: one that is to be refused leaves no trace when it falls.

        Where the founder is not in the store yet, or nothing was read, nobody can say so; then it may.
        """
        session = run.session
        if run.state is not State.ARRIVING or not session.loaded or (session.owner is not None and not session.stored):
            return True
        return self._may_send(run)

    @contextmanager
    def held_up(self, session: Session) -> Iterator[None]:
        """Decide on nothing that arrives while a stop of it reads whose session this is."""
        reading = asyncio.Event()
        session.reading = {*(session.reading or ()), reading}
        try:
            yield
        finally:
            session.reading.discard(reading)
            reading.set()

    def unsure(self, run: LiveRun) -> bool:
        """Return whether a message arrives for a session that may be another's, and nothing was read of it yet."""
        session, by = run.session, run.principal
        if session.loaded or run.state is not State.ARRIVING or run.parent is not None:
            return False
        return not (run.begins and may_found(by, session.id)) and not self._authority.may(Action.SEND, by)

    def _stopped_after(self, run: LiveRun) -> Principal | None:
        whose = Whose(run.session.owner, run.session.shares)
        for by in self._registry.stopped_after(run.session.id, run.order, self._clock.wall()):
            if self._authority.may(Action.STOP, by, whose=whose, principal=run.principal):
                return by
        return None

    def take_up(self, session: Session, known: Loaded) -> None:
        """Bring a session into memory with what the store knows of it."""
        if session.loaded:
            return
        session.loaded = True
        if known.session is not None:
            session.stored = True
            session.owner = known.session.owner
            session.shares = dict(known.session.shares)
            session.strategy = known.session.strategy
            session.since = known.session.since
            session.renewed = known.session.renewed
            session.crashes = known.session.crashes
            session.announced = known.session.announced
            self._registry.generations.restore(session.id, known.session.generation)
        else:  # nobody's: what fell before this was known is not for whoever founds it
            for run in [run for fall in session.falls or () for run in fall.runs]:
                run.withheld |= run.session is session and run.generation is None
        if session.previous is None:
            session.previous = known.previous
        self._registry.mark(known.marks)

    def _answer_again(self, run: LiveRun, key: KeyRow) -> None:
        """Give a used key the answer it got the first time."""
        _same_body(run, key.method, key.digest)
        alone = run.session.id == own_session(run.id)  # then so was the first
        run.sent = Sent(
            run_id=key.run_id,
            session=own_session(key.run_id) if alone else run.session.id,
            owner=run.principal if alone else run.session.owner,
            generation=key.generation,
            superseded=key.superseded,
            state=State.ENDED,
        )
        run.acked.set()
        if not run.fallen:
            run.move(Move.ALIAS)
            run.called.set()
            run.ended.set()
            self._registry.retire(run)

    def _strategy(self, run: LiveRun) -> Strategy:
        return strategy_of(run.kind, run.strategy, session=run.session.strategy, server=self._settings.strategy)

    def _admit(self, run: LiveRun) -> Ticket:
        session, seated, strategy = run.session, run.session.seat, self._strategy(run)
        if session.parked:
            raise Refused(
                f"session {session.id} is parked: the server went down {session.crashes} times in a row while a run "
                "of it was going; reset it to go on, or use another session"
            )
        if session.owner is None:  # whoever is first admitted created it
            session.owner, run.founds = run.principal, True
        everyone = session.waiting or []
        waiting = [other for other in everyone if other.kind not in REPORTS]  # those stay, and count for nobody
        staying = [other for other in waiting if not self._may_stop(run, other)]
        collector = self._collector(run, waiting)
        scene = Scene(
            seated=seated is not None,
            wake_seated=seated is not None and seated.kind is RunKind.WAKE,
            may_stop=seated is None or self._may_stop(run, seated),
            waiting=len(everyone if run.kind is RunKind.WAKE else waiting),
            capacity=self._settings.queue,
            overdue=bool(staying) and staying[0].passed >= PASSES,
            collecting=collector is not None,
        )
        match decide(strategy, scene, wake=run.kind is RunKind.WAKE):
            case Admission.REJECT | Admission.SKIP:
                raise Rejected(f"session {session.id} is busy; stop its run, or send with strategy='interrupt'")
            case Admission.FULL:
                raise QueueFull(f"{self._settings.queue} messages wait in session {session.id}; send it again later")
            case Admission.SEAT:
                self._registry.seat(run)
            case Admission.QUEUE:
                self._wait_for_seat(run)
            case Admission.STEER:
                run.steers = seated if seated is not None and seated.agent == run.agent else None
                self._wait_for_seat(run)
            case Admission.COLLECT:
                run.collection = Collection(until=self._clock.now() + COLLECT_TIMES * self._settings.collect_seconds)
                self._wait_for_seat(run)
                self._wait_for_quiet(run)
            case Admission.MERGE:
                assert collector is not None
                return self._merge(run, collector)
            case how:
                return self._take_over(run, staying, behind=how is Admission.TAKE_OVER_BEHIND)
        return self._store.decide(self._admission(run))

    def _take_over(self, run: LiveRun, staying: list[LiveRun], *, behind: bool) -> Ticket:
        session, old = run.session, run.session.seat
        cause = Cause(ending=Ending.SUPERSEDED, by=run.principal, superseded_by=run.id)
        fall = self._endings.open(session, by=run.principal)
        if old is not None:
            run.superseded = old.id
            # Whoever rolls an announced turn back takes the answer back, and not what the child had to say.
            rolled_back = self._strategy(run) is Strategy.ROLLBACK and old.kind not in REPORTS
            fall.take(old, msgspec.structs.replace(cause, hidden=True) if rolled_back else cause)
        for other in tuple(session.waiting or ()):
            if other not in staying and other.kind not in REPORTS:
                fall.take(other, cause)
        if behind:
            fall.seat_next()
            self._wait_for_seat(run)
        else:
            self._registry.seat(run)
            for other in staying:
                other.passed += 1
        return self._settle_takeover(fall, run)

    def _settle_takeover(self, fall: Fall, run: LiveRun) -> Ticket:
        if fall.runs:
            fall.successor, run.took = run, fall
            return self._endings.close(fall, admission=self._admission(run))
        return self._store.decide(self._admission(run))  # nobody had the seat, and those who wait stay

    def _may_stop(self, run: LiveRun, other: LiveRun) -> bool:
        """Return whether a message may end another's run; a wake yields to everyone."""
        if other.kind is RunKind.WAKE:
            return True
        whose = Whose(run.session.owner, run.session.shares)
        return self._authority.may(Action.TAKE_OVER, run.principal, whose=whose, principal=other.principal)

    def take_back(self, run: LiveRun) -> None:
        """Let a message wait for the seat again that an earlier start had admitted and not begun."""
        run.sent = Sent(run_id=run.id, session=run.session.id, owner=run.session.owner, state=State.QUEUED)
        run.acked.set()
        self._wait_for_seat(run)

    # Children's endings

    def take_report(self, report: LiveRun) -> None:
        """Let the report of a child's ending wait in its home; it is in the store with that ending, or not at all."""
        self._registry.register(report)
        report.due = False  # not before the ending is public
        self.take_back(report)

    def may_report(self, report: LiveRun) -> bool:
        """Return whether whoever began the child may still write where it is announced."""
        return report.session.owner is not None and self._may_send(report)

    def offer(self, report: LiveRun) -> None:
        """The ending is public: offer its report to the run at work, and let it wait for a turn of its own.

        Like any steer it gets only into a run that whoever began the child may stop: a guest's does not get into the
        owner's turn.
        """
        seated = report.session.seat
        report.due = True
        taken = seated is not None and seated.agent == report.agent and self._may_stop(report, seated)
        report.steers = seated if taken else None
        seat_next(self._registry, report.session)

    # Steering

    def steered(self, run: LiveRun) -> list[LiveRun]:
        """Return the messages steered to a run; none while it asks a person, who comes first."""
        if run.asking or not run.session.waiting:
            return []
        return [other for other in run.session.waiting if other.steers is run and other.acked.is_set()]

    def take_in(self, run: LiveRun, taken: Sequence[LiveRun]) -> None:
        """Make messages that a current run was handed part of it."""
        outlet = Outlet(run, self._feed)
        for message in taken:
            if message.kind is RunKind.CHAT:
                run.session.count_turn(message.kind)
            self._registry.absorb(message, run)
            outlet.close_block(Effect.BLOCK)  # what was said before stands before it
            outlet.introduce_part(message)
        if taken:
            # Not waited for: whatever the run records from here on comes behind it, or carries it along.
            ticket = self._endings.insist(Decision(aliases=tuple((message.id, run.id) for message in taken)))
            for message in taken:
                message.alias_ticket = ticket

    # Collecting

    def _collector(self, run: LiveRun, waiting: list[LiveRun]) -> LiveRun | None:
        """Return what a message would be added to; never past another one of its author's."""
        for other in reversed(waiting):
            if self._joins(run, other):
                return other
            if other.principal == run.principal:
                return None
        return None

    def _joins(self, run: LiveRun, other: LiveRun) -> bool:
        """Messages become one turn only where each author may stop the other's: the turn is theirs together."""
        collection = other.collection
        if collection is None or collection.merging is not None or 1 + len(collection.parts) >= COLLECTED:
            return False
        if (run.agent, run.instructions) != (other.agent, other.instructions):
            return False  # one turn has one agent, and is told one thing beside its messages
        return self._may_stop(run, other) and self._may_stop(other, run)

    def _merge(self, run: LiveRun, into: LiveRun) -> Ticket:
        """Add a message to one that waits; it is part of that once it is committed."""
        collection = into.collection
        assert collection is not None
        collection.merging, collection.ripe, run.joining = run, False, into
        row = msgspec.structs.replace(run.row(), alias=into.id)
        key = run.key_row()
        keys = () if key is None else (msgspec.structs.replace(key, run_id=into.id),)
        return self._store.decide(Decision(admissions=(row,), keys=keys))

    def _merged(self, run: LiveRun, into: LiveRun, *, inside: bool) -> None:
        """A message that was being added is in, or never will be; either way the turn may begin again."""
        collection = into.collection
        assert collection is not None
        collection.merging = run.joining = None
        if inside and not run.fallen:
            self._registry.absorb(run, into)
            collection.parts.append(run)
            run.sent = Sent(run_id=into.id, session=into.session.id, owner=into.session.owner, state=State.QUEUED)
            run.acked.set()
            if into.said:
                Outlet(into, self._feed).introduce_part(run)
        self._wait_for_quiet(into)

    def _wait_for_quiet(self, run: LiveRun) -> None:
        collection = run.collection
        if collection is None or run.state is not State.QUEUED or self._registry.closing:
            return
        if collection.timer is not None:
            collection.timer.cancel()
        at = min(self._clock.now() + self._settings.collect_seconds, collection.until)
        collection.timer = self._loop.call_at(at, self._ripen, run)
        run.timers = [*(run.timers or ()), collection.timer]

    def _ripen(self, run: LiveRun) -> None:
        if run.state is State.QUEUED and run.collection is not None and run.collection.merging is None:
            run.collection.ripe = True
            seat_next(self._registry, run.session)

    def _wait_for_seat(self, run: LiveRun) -> None:
        run.move(Move.QUEUE)
        if run.session.waiting is None:
            run.session.waiting = []
        waiting = run.session.waiting
        waiting.insert(place(run.kind, [other.kind for other in waiting]), run)
        if run.kind not in REPORTS:  # nobody sent it who could be told that it waited for too long
            self._deadlines.queued(run)

    def _admission(self, run: LiveRun) -> Decision:
        key = run.key_row()
        return Decision(
            sessions=(self._registry.session_row(run.session),),
            admissions=(run.row(),),
            keys=() if key is None else (key,),
        )

    # After the step

    async def _ack(self, run: LiveRun, ticket: Ticket) -> bool:
        """Tell the sender once the message is in; if it never will be, take it back."""
        into = run.joining
        run.sent = self._sent(run)
        inside = await committed(self._store, ticket, self._settings.commit_seconds)
        if into is not None:
            self._merged(run, into, inside=inside)
            if run.alias is not None:
                return False
        if not inside and not run.fallen:
            self._withdraw(run, ticket)
            return False
        run.session.stored |= inside
        await self._nothing_left_to_tell(run)
        self._tell_sender(run)
        await endings_told(run.session)  # whoever it took over is told as ended before it is shown
        if run.fallen or run.alias is not None:
            return False
        self._introduce(run)
        return True

    async def _nothing_left_to_tell(self, run: LiveRun) -> None:
        """Wait for endings that children of a run it took over had before; behind the ack they would be news of it."""
        old = None if run.superseded is None else self._registry.runs.get(run.superseded)
        if old is not None and old.fall is not None:
            for fall in earlier(old.fall):
                await fall.ended.wait()

    def _introduce(self, run: LiveRun) -> None:
        """Show a message that is in; a child's parent shows it first."""
        if run.parent is not None and not run.parent.fallen:
            Outlet(run.parent, self._feed).emit(Effect.CHILD, delegated(run))
        Outlet(run, self._feed).introduce()

    def _sent(self, run: LiveRun) -> Sent:
        return Sent(
            run_id=run.id,
            session=run.session.id,
            owner=run.session.owner,
            generation=run.generation,
            superseded=run.superseded,
            state=run.state,
        )

    def _tell_sender(self, run: LiveRun) -> None:
        if run.fallen:
            assert run.outcome is not None
            by = run.outcome.by if run.outcome.ending is Ending.STOPPED else None
            told = {"state": State.ENDED, "stopped_by": by, "born_stopped": run.outcome.born_stopped}
            run.sent = msgspec.structs.replace(run.sent or self._sent(run), **told)
        run.acked.set()

    def _withdraw(self, run: LiveRun, ticket: Ticket) -> None:
        """The message never was: its place, its key and its id are free of it, and whoever it took over is told so."""
        if isinstance(run.took, Fall):
            self._endings.forsake(run.took)
        run.move(Move.WITHDRAW)
        self._registry.unseat(run)
        self._registry.dequeue(run)
        if run.founds:
            run.session.owner = None  # it was not its session after all
        for timer in run.timers or ():
            timer.cancel()
        seat_next(self._registry, run.session)
        problem = Unavailable("the store did not take the message in time; nothing was kept, send it again")
        self.turn_away(run, ticket.failure if isinstance(ticket.failure, Unsure) else problem)

    def turn_away(self, run: LiveRun, problem: InterlockError) -> None:
        """Tell the sender that the message was not taken, unless it was stopped: then that is its ending."""
        if run.fallen:  # (a sender who must choose another key is told that)
            run.problem = problem if isinstance(problem, KeyConflict) else None
            self._tell_sender(run)
            return
        if run.state is not State.WITHDRAWN:
            run.move(Move.WITHDRAW)
        run.problem = problem
        run.acked.set()
        run.called.set()
        run.ended.set()
        self._registry.retire(run)


async def endings_told(session: Session) -> None:
    """Wait until earlier endings of a session are public; each is at most COMMIT_SECONDS away."""
    for fall in tuple(session.falls or ()):
        await fall.ended.wait()


def _same_body(run: LiveRun, method: str, digest: str) -> None:
    if (method, digest) != (run.method, run.digest):
        raise KeyConflict(f"key {run.key!r} was used for another message; use a new key for this one")
