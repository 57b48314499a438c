"""The one way in, for every message: a person's, a program's, a parent's to its child, a schedule's.

A message stands in its session's line of arrivals from the first instant. So a stop that comes right after the message
finds it and ends it (races 2 and 24). The inbox decides on the arrivals of a session in their order, on each in one
synchronous step: used key? · stopped meanwhile? · may the sender send? · stopped before it came? · takeover · seat or
queue · one Decision.

1. The inbox first checks whether the key was used, then whether a stop came ahead of the message, and only then takes
   over a run. If the inbox did not check the key first, the second delivery of a message would take over the run of the
   first (race 102).
2. The ack follows the commit. A message that the store does not take in time is withdrawn: its seat and its key are
   free again, and the sender is told to send it again.
3. One task of control's own carries a message from here to its end (`Stage.carry`). The sender only waits for the ack,
   and may vanish. So there is no hand-over between tasks at which a message could be forgotten.
4. The sender of the first message admitted to a session becomes its owner. Until that message is committed the next
   arrival waits, and can be stopped meanwhile. Otherwise a first message that is withdrawn could leave its sender as
   the owner of another principal's session.
5. A run begins when the endings before it in its session are public. That is at most COMMIT_SECONDS after their falls,
   and after a takeover at most UNKEPT_SECONDS more (`ending.py`). So a watcher sees the old run's terminal event before
   the new run's message. A run never waits for the cleanup of others.
"""

import asyncio
from collections import deque

import msgspec

from interlock.agent.flag import Flag
from interlock.core.answers import Sent
from interlock.core.decision import Decision, KeyRow
from interlock.core.errors import InterlockError, KeyConflict, QueueFull, Refused, Rejected, Unavailable, UnknownSession
from interlock.core.lifecycle import Move, State
from interlock.core.names import REPORTS, Effect, Ending, RunKind, SessionId, Strategy
from interlock.core.outcome import Cause
from interlock.core.takeover import Admission, Scene, decide, place, strategy_of
from interlock.runtime.collecting import Collecting
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.ending import Endings, earlier
from interlock.runtime.fall import Fall, seat_next
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun, delegated, own_session
from interlock.runtime.outlet import Outlet
from interlock.runtime.senders import Senders
from interlock.runtime.session import Session
from interlock.runtime.settings import ARRIVALS
from interlock.runtime.steering import Steering
from interlock.stores.base import Buried, Loaded, StoreFailed, Taken, Ticket, Unsure, is_committed

# If the store does not take a session's first message, messages that arrived up to this long after it are refused too.
PATIENCE_SECONDS = 0.1
# How many takeovers may go ahead of a waiting message that their senders may not stop (`takeover`, rule 3).
PASSES = 1


class Inbox(Inner):
    """Admits messages."""

    def __init__(self, inside: Inside, *, endings: Endings, deadlines: Deadlines) -> None:
        super().__init__(inside)
        self._endings = endings
        self._deadlines = deadlines
        self.senders = senders = Senders(inside)
        self.steering = Steering(inside, endings)
        self._collecting = Collecting(inside, senders)

    def enter(self, run: LiveRun) -> LiveRun:
        """Put a message in its session's line at once; return the run that answers it.

        For a key that is in memory, that is the run of the first message with the key.
        """
        if (
            run.arrival.key is not None
            and (first := self._registry.keys.get((run.principal, run.arrival.key))) is not None
        ):
            _same_body(run, first.arrival.method, first.arrival.digest)
            self._registry.forget_if_quiet(run.session)
            return first
        session = run.session
        if session.arrivals is None:
            session.arrivals = deque()
        if len(session.arrivals) >= ARRIVALS:
            raise QueueFull(
                f"{ARRIVALS} messages to session {session.id} are not decided on yet; send this message again later"
            )
        self._registry.register(run)
        session.arrivals.append(run)
        run.admittance.turn = Flag()
        if session.arrivals[0] is run:
            run.admittance.turn.set()
        return run

    async def admit(self, run: LiveRun) -> bool:
        """Decide on a message when its turn in the line comes, and acknowledge it.

        Return True if the message has its seat or its place in the queue; False if it was refused, has a used key, was
        absorbed, or has ended.
        """
        assert run.admittance.turn is not None
        try:
            try:
                known = await self._read(run)
            except Unavailable as problem:
                run.admittance.problem = run.admittance.problem or problem
            await run.admittance.turn.wait()
            # Runs that an earlier server left in the session are settled first (races 80 and 81).
            if self._registry.recovering and (gate := self._registry.gate_of(run.session)) is not None:
                await gate.wait()
                if self._registry.gate_of(run.session) is not None and not self._registry.closing:
                    raise Unavailable(
                        f"session {run.session.id} could not be settled after the restart; send it again after the next"
                    )
            # If a stop reads the session's owner from the store, or waited for the gate too, it is decided before this
            # message (`held_up`).
            while run.session.reading:
                await next(iter(run.session.reading)).wait()
            if run.admittance.problem is not None:
                raise run.admittance.problem
            ticket = run.admittance.ticket = self._step(run, known)
            if ticket is not None and not run.session.stored:
                await self._found(run, ticket)
            # The next collected message is decided on only when this one is committed.
            elif ticket is not None and not run.state.at_work and self._strategy(run) is Strategy.COLLECT:
                await is_committed(self._store, ticket, self._settings.commit_seconds)
        except InterlockError as problem:
            self.turn_away(run, problem)
            return False
        finally:
            self._next_turn(run)
        if ticket is None:
            return False
        return await self._ack(run, ticket)

    async def _found(self, run: LiveRun, ticket: Ticket) -> None:
        """Wait until it is certain whether the store has a session's first message (rule 4).

        If the store does not take it, refuse the arrivals right after it as well: otherwise each of them would become
        the first message in its turn, and wait for COMMIT_SECONDS again.
        """
        if not await is_committed(self._store, ticket, self._settings.commit_seconds):
            for other in run.session.arrivals or ():
                if other is not run and other.limits.touched <= run.limits.touched + PATIENCE_SECONDS:
                    other.admittance.problem = Unavailable(
                        "the store does not take messages now; nothing was kept, send it again"
                    )

    def _next_turn(self, run: LiveRun) -> None:
        line = run.session.arrivals
        assert line is not None
        line.remove(run)
        if line and (next_turn := line[0].admittance.turn) is not None:
            next_turn.set()

    async def _read(self, run: LiveRun) -> Loaded:
        """Read the session and the key from the store, if they are not in memory.

        Between its arrival and its decision a message waits for this read, for its turn in the line, and for a stop
        that is reading the session's owner, and for nothing else.
        """
        if run.session.loaded and run.arrival.key is None:
            return Loaded()
        unread = SessionId("") if run.session.loaded else run.session.id
        try:
            # Not a cancel scope of anyio, which costs twice as much: every message waits here.
            async with asyncio.timeout(self._settings.commit_seconds):
                return await self._store.load(unread, principal=run.principal, key=run.arrival.key)
        except TimeoutError:
            raise StoreFailed("the store did not answer in time; nothing was taken, send it again") from None
        except OSError as error:
            raise StoreFailed(f"the store cannot be read ({error}); nothing was taken, send it again") from error

    # The one synchronous step. From here to `_store.decide` nothing awaits: the right to send, the takeover, the old
    # run's fall and the new seat belong to one instant and one Decision. With an await in between, two messages could
    # both find the seat free, or a stop could come between the old run's fall and the new run's seat.

    def _step(self, run: LiveRun, known: Loaded) -> Ticket | None:
        self._registry.load(run.session, known)
        if known.key is not None:
            self._answer_again(run, known.key)
            return None
        # A stop ended the message while it arrived. The message is never dispatched; its sender is told.
        if run.fallen:
            self._tell_sender(run)
            return None
        if not self.senders.may_send(run):
            raise UnknownSession(run.session.id, run.principal)
        if self._registry.closing:
            raise Unavailable("this control is closing; nothing was kept, send the message again after the restart")
        if self._registry.stop_of(run.principal, run.arrival.key) is not None:
            raise KeyConflict(f"key {run.arrival.key!r} was used for a stop; use a new key for this message")
        if (stopper := self.senders.stopped_before(run, known)) is not None:
            self._endings.end(run, Cause(ending=Ending.STOPPED, by=stopper, born_stopped=True))
            self._tell_sender(run)
            return None
        return self._admit(run)

    def _answer_again(self, run: LiveRun, key: KeyRow) -> None:
        """Give a message whose key was used before the same answer as the first message with the key."""
        _same_body(run, key.method, key.digest)
        # A message sent to no session has a session of its own. The first message with this key had one too.
        alone = run.session.id == own_session(run.id)
        run.admittance.sent = Sent(
            run_id=key.run_id,
            session=own_session(key.run_id) if alone else run.session.id,
            owner=run.principal if alone else run.session.owner,
            generation=key.generation,
            superseded=key.superseded,
            state=State.ENDED,
        )
        run.admittance.acked.set()
        if not run.fallen:
            run.move(Move.ALIAS)
            run.seated_or_over.set()
            run.ended.set()
            self._registry.retire(run)

    def _strategy(self, run: LiveRun) -> Strategy:
        return strategy_of(
            run.arrival.kind, run.arrival.strategy, session=run.session.strategy, server=self._settings.strategy
        )

    def _admit(self, run: LiveRun) -> Ticket:
        session, seated, strategy = run.session, run.session.seat, self._strategy(run)
        if session.parked:
            raise Refused(
                f"session {session.id} is parked: the server went down {session.crashes} times in a row while a run "
                "of it was going; reset it to go on, or use another session"
            )
        # The sender of the first message admitted becomes the session's owner (rule 4).
        if session.owner is None:
            session.owner, run.admittance.founds = run.principal, True
        everyone = session.queue or []
        # A takeover does not end waiting announcements, and announcements do not fill the queue. Only a wake is skipped
        # because of them.
        waiting = [other for other in everyone if other.arrival.kind not in REPORTS]
        staying = [other for other in waiting if not self.senders.may_stop(run, other)]
        collector = self._collecting.collector(run, waiting)
        scene = Scene(
            seated=seated is not None,
            wake_seated=seated is not None and seated.arrival.kind is RunKind.WAKE,
            may_stop=seated is None or self.senders.may_stop(run, seated),
            waiting=len(everyone if run.arrival.kind is RunKind.WAKE else waiting),
            capacity=self._settings.queue,
            overdue=bool(staying) and staying[0].admittance.passed >= PASSES,
            collecting=collector is not None,
        )
        match decide(strategy, scene, wake=run.arrival.kind is RunKind.WAKE):
            case Admission.REJECT | Admission.SKIP:
                raise Rejected(f"session {session.id} is busy; stop its run, or send with strategy='interrupt'")
            case Admission.FULL:
                raise QueueFull(
                    f"{self._settings.queue} messages wait in session {session.id}; send this message again later"
                )
            case Admission.SEAT:
                self._registry.seat(run)
            case Admission.QUEUE:
                self._wait_for_seat(run)
            case Admission.STEER:
                run.admittance.steers = (
                    seated if seated is not None and seated.arrival.agent == run.arrival.agent else None
                )
                self._wait_for_seat(run)
            case Admission.COLLECT:
                self._collecting.begin(run)
                self._wait_for_seat(run)
                self._collecting.wait_for_quiet(run)
            case Admission.MERGE:
                assert collector is not None
                return self._collecting.merge(run, collector)
            case how:
                return self._take_over(run, staying, behind=how is Admission.TAKE_OVER_BEHIND)
        return self._store.decide(self._admission(run))

    def _take_over(self, run: LiveRun, staying: list[LiveRun], *, behind: bool) -> Ticket:
        session, old = run.session, run.session.seat
        cause = Cause(ending=Ending.SUPERSEDED, by=run.principal, superseded_by=run.id)
        fall = self._endings.open(session, by=run.principal)
        if old is not None:
            run.admittance.superseded = old.id
            # A turn that an announcement began is superseded and not hidden: the model must still read how the child
            # ended.
            rolled_back = self._strategy(run) is Strategy.ROLLBACK and old.arrival.kind not in REPORTS
            fall.add(old, msgspec.structs.replace(cause, hidden=True) if rolled_back else cause)
        for other in tuple(session.queue or ()):
            if other not in staying and other.arrival.kind not in REPORTS:
                fall.add(other, cause)
        if behind:
            fall.seat_next()
            self._wait_for_seat(run)
        else:
            self._registry.seat(run)
            for other in staying:
                other.admittance.passed += 1
        return self._settle_takeover(fall, run)

    def _settle_takeover(self, fall: Fall, run: LiveRun) -> Ticket:
        if fall.runs:
            fall.successor, run.admittance.took = run, fall
            return self._endings.close(fall, admission=self._admission(run))
        # The seat was free and no waiting message fell, so the admission has no endings to go with.
        return self._store.decide(self._admission(run))

    def requeue(self, run: LiveRun) -> None:
        """Queue a message that was accepted earlier, for example before a restart of the server, and has not begun."""
        self._wait_for_seat(run)
        run.admittance.accept(self._sent(run))

    def _wait_for_seat(self, run: LiveRun) -> None:
        run.move(Move.QUEUE)
        if run.session.queue is None:
            run.session.queue = []
        waiting = run.session.queue
        waiting.insert(place(run.arrival.kind, [other.arrival.kind for other in waiting]), run)
        # The limit on waiting is not for announcements: they have no sender who could be told that it passed.
        if run.arrival.kind not in REPORTS:
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
        """Acknowledge a message once the store has it; withdraw it if the store never will."""
        into = run.ties.joining
        run.admittance.sent = self._sent(run)
        # The ack comes after the commit, so an acknowledged message is on disk together with its key. If the server is
        # killed before the commit, the store has neither, and the sender, who got no ack, sends again (race 75). If the
        # server is killed between commit and ack, the store has both, and the same key gets the same run (race 76).
        # With the ack before the commit, a kill in between would lose an accepted message. If the commit takes too
        # long, `is_committed` asks the store to withdraw the message, and the answer of the store is final: the message
        # is committed, or never will be. So a refused message cannot turn up later and run. A message that a stop ended
        # meanwhile is acknowledged with that ending, whatever the store says.
        inside = await is_committed(self._store, ticket, self._settings.commit_seconds)
        if into is not None:
            self._collecting.merged(run, into, inside=inside)
            if run.ties.alias is not None:
                return False
        if not inside and not run.fallen:
            self._withdraw(run, ticket)
            return False
        run.session.stored |= inside
        await self._nothing_left_to_tell(run)
        self._tell_sender(run)
        # The old run's terminal event is published before the new run's message (rule 5).
        await endings_told(run.session)
        if run.fallen or run.ties.alias is not None:
            return False
        self._introduce(run)
        return True

    async def _nothing_left_to_tell(self, run: LiveRun) -> None:
        """If this message took over a run, wait until every ending that must precede that run's own ending is public.

        Examples are the endings of the old run's children. Without this wait such an ending could be published after
        the ack, which tells the sender that the old run is over. The old run's own ending is not awaited here: if the
        store is slow, that ending itself waits for this ack (`Endings._commit`), and the two would wait for each other.
        """
        old = None if run.admittance.superseded is None else self._registry.runs.get(run.admittance.superseded)
        if old is not None and old.fall is not None:
            for fall in earlier(old.fall):
                await fall.ended.wait()

    def _introduce(self, run: LiveRun) -> None:
        """Publish the message of a run; for a child, publish the `child` event of its parent first."""
        if run.ties.parent is not None and not run.ties.parent.fallen:
            Outlet(run.ties.parent, self._feed).emit(Effect.CHILD, delegated(run))
        Outlet(run, self._feed).introduce()

    def _sent(self, run: LiveRun) -> Sent:
        return Sent(
            run_id=run.id,
            session=run.session.id,
            owner=run.session.owner,
            generation=run.generation,
            superseded=run.admittance.superseded,
            state=run.state,
        )

    def _tell_sender(self, run: LiveRun) -> None:
        if run.fallen:
            assert run.outcome is not None
            by = run.outcome.by if run.outcome.ending is Ending.STOPPED else None
            told = {"state": State.ENDED, "stopped_by": by, "born_stopped": run.outcome.born_stopped}
            run.admittance.sent = msgspec.structs.replace(run.admittance.sent or self._sent(run), **told)
        run.admittance.acked.set()

    def _withdraw(self, run: LiveRun, ticket: Ticket) -> None:
        """Remove a message that the store did not take: its seat and its key are free again.

        The run that it took over stays superseded, by a message that was not kept (`Endings.forsake`; race 134).
        """
        if run.admittance.took is not None:
            self._endings.forsake(run.admittance.took)
        run.move(Move.WITHDRAW)
        self._registry.unseat(run)
        self._registry.dequeue(run)
        # Clear the owner only if this withdrawn message was the one that set it. Otherwise a later message that is
        # withdrawn would leave the session without an owner, and the next sender would own it and read its text.
        if run.admittance.founds:
            run.session.owner = None
        run.limits.disarm()
        seat_next(self._registry, run.session)
        problem = Unavailable("the store did not take the message in time; nothing was kept, send it again")
        # Another node used or stopped the key since it was read here: the same message, sent again, is told of that.
        told = isinstance(ticket.failure, Unsure | Taken | Buried)
        self.turn_away(run, ticket.failure if told and ticket.failure is not None else problem)

    def give_up(self, run: LiveRun, problem: InterlockError) -> None:
        """Wake whoever waits for a run of a control that has lapsed; a sender without an ack is told the problem."""
        if not run.admittance.acked.is_set():
            run.admittance.problem = problem
        for flag in (run.admittance.acked, run.seated_or_over, run.ended):
            flag.set()

    def turn_away(self, run: LiveRun, problem: InterlockError) -> None:
        """Tell the sender that the message was not accepted; of a message that was stopped, tell the ending instead.

        A key conflict is told in both cases: the sender must choose another key.
        """
        if run.fallen:
            run.admittance.problem = problem if isinstance(problem, KeyConflict) else None
            self._tell_sender(run)
            return
        if not run.state.withdrawn:
            run.move(Move.WITHDRAW)
        run.admittance.problem = problem
        run.admittance.acked.set()
        run.seated_or_over.set()
        run.ended.set()
        self._registry.retire(run)


async def endings_told(session: Session) -> None:
    """Wait until the earlier endings of a session are public; rule 5 says how long that takes at most."""
    for fall in tuple(session.falls or ()):
        await fall.ended.wait()


def _same_body(run: LiveRun, method: str, digest: str) -> None:
    if (method, digest) != (run.arrival.method, run.arrival.digest):
        raise KeyConflict(f"key {run.arrival.key!r} was used for another message; use a new key for this one")
