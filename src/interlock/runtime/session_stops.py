"""Picks and ends all that a stop or a reset of one session may end, once stops.py has read the verb.

1. A stop of a session ends all that the caller may end there, in the step that calls it (`run_stops.py`).
2. A stop with an order (`order=(channel, n)`) leaves a mark for its channel and principal: a message of that channel
   with a lower number, arriving later, is born stopped if that principal may stop it. A message with a higher number is
   spared (race 131). Readers leave no marks, and the number of marks of one principal is bounded.
3. A reset ends everything of a session and lets its transcript begin anew after a position (`Session.since`). The log
   and the schedules stay. The session stays in memory until the new beginning is stored.
"""

import contextlib
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from interlock.core.answers import Remaining
from interlock.core.authority import Action, Whose
from interlock.core.decision import Decision, StopMark
from interlock.core.errors import Unavailable, UnknownSession
from interlock.core.lifecycle import Move, may
from interlock.core.names import Ending, Principal, SessionId
from interlock.core.receipt import Receipt, nothing
from interlock.core.values import Order
from interlock.runtime.fall import Fall
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import StopCall
from interlock.runtime.run_stops import Receiving, RunStops, is_stopped
from interlock.runtime.session import Session
from interlock.runtime.spawning import Spawned, command_of
from interlock.stores.base import Ticket


class SessionStops(RunStops):
    """Ends the runs and detached processes of a session that a caller may end."""

    def session(self, session_id: SessionId, call: StopCall, order: Order | None, *, queue: bool = True) -> Receiving:
        """End everything of a session that the caller may end: the run in the seat, arrivals, the queue, detached work.

        With an order, messages written after it in the same channel are spared; without `queue`, what waits and what is
        detached.
        """
        until, marked, now = self.until(), None, self._clock.wall()
        # A reader has no right to FOUND, and leaves no mark.
        if order is not None and self._authority.may(Action.FOUND, call.by):
            mark = StopMark(session=session_id, channel=order.channel, by=call.by, at=order.at, stopped_at=now)
            marked = self._mark(mark)
        answer = self._stop_session(session_id, call, order, queue)
        return answer if marked is None else partial(self._with_mark, answer, marked, until)

    async def _with_mark(self, answer: Receiving, marked: Ticket, until: float) -> Receipt:
        receipt = await answer()
        durable = await self.soon(marked, until) is not None
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    def _stop_session(self, session_id: SessionId, call: StopCall, order: Order | None, queue: bool) -> Receiving:
        session, gated = self._registry.sessions.get(session_id), session_id in self._registry.recovering
        if self._registry.closed or (session is None and not gated):
            return self._own(call, partial(self._absent, session_id, call))
        loaded = session is None or (session.loaded and not gated)
        arriving = frozenset[LiveRun]() if session is None or loaded else frozenset(session.arrivals or ())
        unsure = gated or any(self._inbox.senders.unsure(run) for run in arriving)
        if session is None or unsure or not all(self._may(call.by, run) for run in arriving):
            return self._loaded(session_id, call, lambda here: self._stop_here(here, call, order, queue, arriving))
        # The pin forgets the session again if the stop leaves nothing of it but a raised generation.
        with self._registry.pinned(session_id):
            return self._stop_here(session, call, order, queue)

    def _loaded(self, session_id: SessionId, call: StopCall, decide: Callable[[Session], Receiving]) -> Receiving:
        """Read whose session it is, then decide. From this step until then nothing of the session begins (`_held`).

        If recovery has not settled the session, the stop decides after that, in whatever time: otherwise a message that
        an earlier server accepted would begin after the stop was answered.
        """
        held = contextlib.ExitStack()
        session = held.enter_context(self._held(session_id))
        until = self.until()

        async def load_and_decide() -> Receipt:
            with held:
                if (gate := self._registry.gate_of(session)) is not None:
                    await gate.wait()
                await self._load(session, call.by, until)
                answer = decide(session)
            return await answer()

        told = self._own(call, load_and_decide, always=True)
        return self._answered_by(told, call, until) if session_id in self._registry.recovering else told

    def _stop_here(
        self,
        session: Session,
        call: StopCall,
        order: Order | None,
        queue: bool,
        arrived: Collection[LiveRun] | None = None,
    ) -> Receiving:
        """Stop a session; with `arrived` only those runs: messages that came while the stop read are spared."""
        everyone = [run for run in _everyone(session) if self._may(call.by, run) and _was_there(run, arrived)]
        targets = [run for run in everyone if not _written_after(run, order) and (queue or _at_work(run))]
        fall = self._end_all(session, targets, call, processes=self.detached(session, call.by) if queue else ())
        return self._empty(session, call) if fall is None else self._receipt_of(fall, call.by)

    def unsettled(self, session_id: SessionId, call: StopCall, of: Principal | None) -> Receiving:
        """Stop a session once recovery has settled it; with `of`, in a session of another, that principal's runs."""
        session = self._registry.sessions.get(session_id)
        arriving = frozenset[LiveRun]() if session is None else frozenset(session.arrivals or ())

        def decide(here: Session) -> Receiving:
            if of is None or here.owner == of:
                return self._stop_here(here, call, None, True, arriving)
            everyone = [run for run in _everyone(here) if run.principal == of and _was_there(run, arriving)]
            fall = self._end_all(here, [run for run in everyone if self._may(call.by, run)], call)
            return self._empty(here, call) if fall is None else self._receipt_of(fall, call.by)

        return self._loaded(session_id, call, decide)

    def _mark(self, mark: StopMark) -> Ticket | None:
        """Remember a stop by its place in its channel: messages written before it may still arrive."""
        self._registry.mark((mark,))
        return None if self._registry.closed else self._endings.store_until_in(Decision(marks=(mark,)))

    def reset(self, session_id: SessionId, call: StopCall) -> Receiving:
        """End everything of a session and let its transcript begin anew; the generation goes on rising."""
        if self._registry.closed:
            raise Unavailable("this control is closed; reset the session at the next one")
        session = self._registry.sessions.get(session_id)
        if session is None or not session.loaded or session_id in self._registry.recovering:
            arrived = frozenset[LiveRun]() if session is None else frozenset(session.arrivals or ())
            return self._loaded(session_id, call, lambda here: self._reset_here(here, call, arrived))
        return self._reset_here(session, call)

    def _reset_here(self, session: Session, call: StopCall, arrived: Collection[LiveRun] | None = None) -> Receiving:
        if not session.loaded:
            raise Unavailable("the store did not answer in time, and nothing was reset; try again")
        by, now = call.by, self._clock.wall()
        if session.confirmed_owner is None or not self._authority.may(Action.RESET, by, whose=session.whose):
            if session.confirmed_owner is None:
                # Nobody owns the session until its first message is stored. That message must not run on behind this.
                self._stop_here(session, StopCall(by), None, True, arrived)
            return partial(self._unknown, session.id, by, self._note(call, now, already=Ending.UNKNOWN))
        processes = list(session.processes.running) if session.processes is not None else []
        everyone = [run for run in _everyone(session) if self._inbox.senders.may_come(run) and _was_there(run, arrived)]
        fall = self._end_all(session, everyone, call, processes=processes, resets=True)
        told: Receiving | None = None
        untold: Fall | None = None
        if fall is None:
            self._note(call, now)
            if session.seat is None:
                self._registry.generations.rise(session.id)
            untold = self._begin_anew(session)
        else:
            told = self._receipt_of(fall, by)
        # The session stays in memory: a message right after the reset must find it as the reset left it.
        pin = self._registry.pinned(session.id)
        pin.__enter__()

        async def answer() -> Receipt:
            try:
                if untold is not None:
                    await untold.ended.wait()
                receipt = nothing(session=session.id, by=by, now=now) if told is None else await told()
                decision = Decision(sessions=(self._registry.session_row(session),))
                # This write only tells whether the new beginning is stored; `begin_anew` tries again until it is.
                durable = await self.soon(self._store.decide(decision), self.until()) is not None
            finally:
                pin.__exit__(None, None, None)
            return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

        return self._own(call, answer, always=True)

    async def _unknown(self, session_id: SessionId, by: Principal, written: Ticket | None) -> Receipt:
        """Say that there is no such session, once the key of the reset is stored: a second delivery must find it."""
        if written is not None:
            await self.soon(written, self.until())
        raise UnknownSession(session_id, by)

    def _begin_anew(self, session: Session) -> Fall | None:
        """Begin a new transcript where there is nothing to end; return the fall after which it begins, if there is one.

        An ending that is not public yet still belongs to the old transcript: the new one begins after it.
        """
        self._forget_turns(session)
        untold = [fall for fall in session.falls or () if not fall.ended.is_set()]
        if not untold:
            self._endings.begin_anew(session)
            return None
        untold[-1].resets.append(session)
        return untold[-1]

    def _empty(self, session: Session, call: StopCall) -> Receiving:
        """Answer a stop of a session that found nothing to end.

        A run that is just ending is named in the answer. If the seat is empty, the generation rises all the same.
        """
        by, now, until = call.by, self._clock.wall(), self.until()
        ended = self._just_ended(session, by)
        # The run may leave memory while the store is awaited, and with it its fall.
        fall = None if ended is None else ended.fall
        last = session.previous if self._may_stop_session(by, session) else None
        already = last.ending if last is not None else None
        written = [self._note(call, now, ended=ended, already=already)]
        if session.seat is None and session.stored and self._may_stop_session(by, session):
            self._registry.generations.rise(session.id)
            decision = Decision(sessions=(self._registry.session_row(session),))
            written.append(None if self._registry.closed else self._endings.store_until_in(decision, session))

        async def answer() -> Receipt:
            kept = [await self.soon(each, until) is not None for each in written if each is not None]
            if ended is not None and fall is not None:
                return await self._same_again(fall, ended, by)
            durable = all(kept) and not self._registry.closed
            return nothing(session=session.id, by=by, now=now, already=already, durable=durable)

        return answer

    def _just_ended(self, session: Session, by: Principal) -> LiveRun | None:
        """Return the run that a late stop must have meant: a run that is draining, or that was stopped."""
        for fall in reversed(session.falls or ()):
            mine = [run for run in fall.runs if self._may(by, run)]
            if mine and (not fall.drained.is_set() or is_stopped(mine[0])):
                return mine[0]
        return None

    async def _absent(self, session_id: SessionId, call: StopCall) -> Receipt:
        """Answer a stop of a session that is not in memory: raise its generation in the store, if the caller may."""
        until, by, now = self.until(), call.by, self._clock.wall()
        known = await self.soon(self._store.load(session_id, principal=by, key=None), until)
        already, durable = None, known is not None
        row = None if known is None else known.session
        # The session came into memory meanwhile, and the generation there counts: raise none in the store.
        if session_id in self._registry.sessions:
            row = None
        whose = None if row is None else Whose(row.owner, row.shares)
        if known is not None and whose is not None and self._authority.may(Action.STOP, by, whose=whose):
            already = None if known.previous is None else known.previous.ending
            durable = await self.keep(Decision(rises=(session_id,)), until)
        kept = self._note(call, now, already=already)
        durable = durable and (kept is None or await self.soon(kept, until) is not None)
        return nothing(session=session_id, by=by, now=now, already=already, durable=durable)

    def detached(self, session: Session, by: Principal) -> list[Spawned]:
        """Return the detached processes of a session that the caller may end."""
        whose, running = session.whose, session.processes.running if session.processes is not None else ()
        return [each for each in running if self._authority.may(Action.STOP, by, whose=whose, principal=each.principal)]

    def remaining(self, session_id: SessionId, by: Principal) -> Remaining:
        """Return what of a session goes on and could be stopped by the caller."""
        session = self._registry.sessions.get(session_id)
        runs = [] if session is None else [run for run in _everyone(session) if self._may(by, run)]
        processes = [] if session is None else [each for each in self.detached(session, by) if not each.ending]
        return Remaining(
            running=[run.id for run in runs if not run.ties.detached and run.state.at_work],
            queued=sum(run.state.waits for run in runs),
            detached=[*(run.id for run in runs if run.ties.detached), *(command_of(each.order) for each in processes)],
        )

    def _may_stop_session(self, by: Principal, session: Session) -> bool:
        return self._authority.may(Action.STOP, by, whose=session.whose)


def _written_after(run: LiveRun, order: Order | None) -> bool:
    """Return whether a run's message was written after a stop, by the numbers of the channel that both came by."""
    written = run.arrival.order
    return order is not None and written is not None and written.channel == order.channel and written.at > order.at


def _at_work(run: LiveRun) -> bool:
    """Return whether a run has the seat or is on its way to it: it neither waits nor is detached."""
    return not run.ties.detached and not run.state.queued


def _was_there(run: LiveRun, arrived: Collection[LiveRun] | None) -> bool:
    """Return whether a run is one that a stop means: all that it finds, without those that arrived behind it."""
    return arrived is None or not run.state.undecided or run in arrived


def _everyone(session: Session) -> list[LiveRun]:
    """Return every run of a session that has not fallen: seated, waiting, arriving, detached."""
    detached = (session.detached or {}).values()
    everyone = dict.fromkeys([session.seat, *(session.queue or ()), *(session.arrivals or ()), *detached])
    return [run for run in everyone if run is not None and not run.fallen and may(run.state, Move.END)]
