"""Stopping: a session, a run, or a message by its key.

1. What is to fall is decided in one synchronous step and falls in it; then the caller waits for t1, no longer.
2. It is never refused. The store is asked at most once COMMIT_SECONDS long, and its trouble is no reason to refuse.
3. The answer says what was decided: `aborted` if this call ended something, else `already`, the ending it found.
"""

import contextlib
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar

import anyio
import msgspec

from interlock.core.authority import Action, Authority, Whose
from interlock.core.decision import Decision, StopMark, Tombstone
from interlock.core.errors import Unavailable
from interlock.core.lifecycle import Move, State, may
from interlock.core.names import Ending, Principal, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.core.receipt import Receipt, nothing
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.ending import Endings
from interlock.runtime.fall import Fall
from interlock.runtime.inbox import Inbox, unknown_session
from interlock.runtime.live import Falling, LiveRun, Order
from interlock.runtime.registry import Registry, Session
from interlock.runtime.settings import Settings
from interlock.runtime.sight import Sight
from interlock.runtime.spawning import Running, command_of
from interlock.stores.base import Store, Ticket, read

T = TypeVar("T")


class Remaining(NamedTuple):
    """What a stop left of a session: runs that go on, how many messages wait, what is detached."""

    running: list[RunId]
    queued: int
    detached: list[str]  # child runs by their ids, processes by their commands


class Stopping:
    """Ends what a caller may end."""

    def __init__(
        self,
        registry: Registry,
        *,
        endings: Endings,
        inbox: Inbox,
        store: Store,
        sight: Sight,
        authority: Authority,
        crew: Crew,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._endings = endings
        self._inbox = inbox
        self._store = store
        self._sight = sight
        self._authority = authority
        self._crew = crew
        self._clock = clock
        self._settings = settings

    # A session

    async def session(
        self, session_id: SessionId, by: Principal, order: Order | None = None, *, typed: bool = False
    ) -> Receipt:
        """End everything of a session that the caller may end: what waits, what arrives, what is detached."""
        until, marked = self._until(), None
        if order is not None and self._authority.may(Action.FOUND, by):  # (a reader changes nothing)
            marked = self._mark(StopMark(session=session_id, channel=order.channel, by=by, at=order.at))
        receipt = await self._stop_session(session_id, by, typed)
        durable = marked is None or await self._soon(marked, until) is not None
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    async def _stop_session(self, session_id: SessionId, by: Principal, typed: bool) -> Receipt:
        if session_id not in self._registry.sessions or self._registry.closed:
            return await self._absent(session_id, by)
        with self._registry.pinned(session_id) as session:  # whatever is read or raised here must be forgotten again
            if not session.loaded and not all(self._may(by, run) for run in session.line or ()):
                # Whose session it is decides; until that is read nothing of these arrivals is decided on either.
                known = await self._soon(self._store.load(session_id, principal=by, key=None), self._until())
                if known is not None:
                    self._inbox.take_up(session, known)
            targets = [run for run in _everyone(session) if self._may(by, run)]
            fall = self._end_all(session, targets, by, processes=self.detached(session, by), typed=typed)
            return await (self._empty(session, by) if fall is None else self._receipt_of(fall, by))

    def _end_all(
        self,
        session: Session,
        targets: list[LiveRun],
        by: Principal,
        *,
        processes: Sequence[Running] = (),
        resets: bool = False,
        typed: bool = False,
    ) -> Fall | None:
        """Let runs, and detached processes, fall together, in one step."""
        if not (targets or processes) or self._registry.closed:
            return None
        fall = self._endings.open(session, by=by)
        stopped = Cause(ending=Ending.STOPPED, by=by, typed=typed)
        for target in targets:
            fall.take(target, stopped)
        fall.sweep(processes, stopped)
        if resets:  # from here on: what ends behind this is a previous turn again
            self._forget_turns(session)
            fall.resets.append(session)
        self._endings.close(fall)
        return fall

    def _mark(self, mark: StopMark) -> Ticket | None:
        """Remember a stop by its place in its channel: what was written before it may still come."""
        self._registry.mark((mark,))
        return None if self._registry.closed else self._endings.insist(Decision(marks=(mark,)))

    async def reset(self, session_id: SessionId, by: Principal) -> Receipt:
        """End everything of a session and let its transcript begin anew; the generation goes on rising."""
        if self._registry.closed:
            raise Unavailable("this control is closed; reset the session at the next one")
        with self._registry.pinned(session_id) as session:  # a message right behind it must find it so
            if not session.loaded:
                known = await read(self._store.load(session_id, principal=by, key=None))
                self._inbox.take_up(session, known)
            if session.confirmed_owner is None or not self._authority.may(Action.RESET, by, whose=session.whose):
                raise unknown_session(session_id, by)
            processes = list(session.kept.running) if session.kept is not None else []
            fall = self._end_all(session, _everyone(session), by, processes=processes, resets=True)
            if fall is None:
                if session.seat is None:
                    self._registry.generations.rise(session_id)
                await self._begin_anew(session)
                receipt = nothing(session=session_id, by=by, now=self._clock.wall())
            else:
                receipt = await self._receipt_of(fall, by)
            decision = Decision(sessions=(self._registry.session_row(session),))
            # Asked for once, to tell whether it is in: `begin_anew` insists on it.
            durable = await self._soon(self._store.decide(decision), self._until()) is not None
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    def _forget_turns(self, session: Session) -> None:
        session.previous = None
        session.renewed = self._registry.generations.get(session.id)

    async def _begin_anew(self, session: Session) -> None:
        """Nothing is left to end; what has fallen and is not told yet still belongs to the old transcript."""
        self._forget_turns(session)
        untold = [fall for fall in session.falls or () if not fall.ended.is_set()]
        if not untold:
            self._endings.begin_anew(session)
            return
        untold[-1].resets.append(session)
        await untold[-1].ended.wait()

    async def _empty(self, session: Session, by: Principal) -> Receipt:
        """Nothing to end. What is just ending is named; on an empty seat the generation rises all the same."""
        durable = True
        if session.seat is None and session.stored and self._may_stop_session(by, session):
            self._registry.generations.rise(session.id)
            durable = await self._keep(Decision(sessions=(self._registry.session_row(session),)), self._until())
        for fall in reversed(session.falls or ()):
            mine = [run for run in fall.runs if self._may(by, run)]
            if mine and (not fall.drained.is_set() or _stopped(mine[0])):
                return await self._same_again(fall, mine[0], by)
        last = session.previous if self._may_stop_session(by, session) else None
        already = last.ending if last is not None else None
        return nothing(session=session.id, by=by, now=self._clock.wall(), already=already, durable=durable)

    async def _absent(self, session_id: SessionId, by: Principal) -> Receipt:
        """Nobody has the session in memory: raise its generation where it is kept, if the caller may."""
        until = self._until()
        known = await self._soon(self._store.load(session_id, principal=by, key=None), until)
        already, durable = None, known is not None
        row = None if known is None else known.session
        if session_id in self._registry.sessions:  # it came to life while we asked, and counts for itself
            row = None
        whose = None if row is None else Whose(row.owner, row.shares)
        if known is not None and whose is not None and self._authority.may(Action.STOP, by, whose=whose):
            already = None if known.previous is None else known.previous.ending
            durable = await self._keep(Decision(rises=(session_id,)), until)
        return nothing(session=session_id, by=by, now=self._clock.wall(), already=already, durable=durable)

    # A run

    async def run(self, run_id: RunId, by: Principal) -> Receipt:
        """End one run, wherever it is; its session's queue goes on."""
        run = self._registry.runs.get(run_id)
        if run is not None and self._may(by, run.itself):
            return await self._live(run.itself, by)
        found = await self._soon(self._stored(run_id, by), self._until()) if run is None else None
        return found or nothing(session=None, by=by, now=self._clock.wall())

    async def _live(self, run: LiveRun, by: Principal) -> Receipt:
        if run.state not in (State.WITHDRAWN, State.ALIASED):
            steering = [other for other in run.session.waiting or () if other.steers is run and self._may(by, other)]
            live = not run.fallen and not self._registry.closed
            fall = self._end_all(run.session, [run, *steering], by) if live else None
            if fall is not None:
                return await self._receipt_of(fall, by)
        if run.fall is None:  # it never was, or this control is closed
            return nothing(session=run.session.id, by=by, now=self._clock.wall())
        return await self._same_again(run.fall, run, by)

    async def _stored(self, run_id: RunId, by: Principal) -> Receipt | None:
        outcome = await self._sight.outcome(run_id, by)
        if outcome is None or not outcome.ended:
            return None
        kept = await self._store.receipt(outcome.run_id)
        shown = None if kept is None else await self._sight.stored_receipt(kept, by)
        if shown is None:
            return nothing(session=None, by=by, now=self._clock.wall(), already=outcome.ending)
        return msgspec.structs.replace(shown, aborted=False, already=outcome.ending)

    # A key

    async def key(self, key: str, by: Principal) -> Receipt:
        """End the message with a key of the caller's; if it was not seen yet it will be born stopped."""
        run = self._registry.keys.get((by, key))
        if run is not None and self._may(by, run.itself):
            return await self._live(run.itself, by)
        tombstone = Tombstone(principal=by, key=key)
        self._registry.bury(tombstone)
        until = self._until()
        durable = await self._keep(Decision(tombstones=(tombstone,)), until)
        known = await self._soon(self._store.load(SessionId(""), principal=by, key=key), until)
        found = None
        if known is not None and known.key is not None:
            came = self._registry.runs.get(known.key.run_id)
            if came is not None:  # it arrived while we asked, and was born stopped
                return await self._live(came.itself, by)
            found = await self._soon(self._stored(known.key.run_id, by), until)
        return found or nothing(session=None, by=by, now=self._clock.wall(), durable=durable)

    # Answers

    async def _receipt_of(self, fall: Fall, by: Principal) -> Receipt:
        """Return the receipt of what this call ended; `aborted` follows from what was decided, not what was asked."""
        seen = [run for run in fall.runs if self._sight.may_see(by, run)]  # asked now: the right may go before the end
        await fall.ended.wait()
        endings = [_ending(run) for run in fall.runs]
        stopped = Ending.STOPPED in endings or bool(fall.swept)
        return fall.receipt(aborted=stopped, already=None if stopped else endings[0], runs=seen if fall.runs else None)

    async def _same_again(self, fall: Falling, run: LiveRun, by: Principal) -> Receipt:
        """A second stop gets the same receipt, with `aborted: false` and the ending it found."""
        await fall.ended.wait()
        already = _ending(run)
        shown = self._sight.receipt(fall, by, aborted=False, already=already)
        return shown or nothing(session=run.session.id, by=by, now=self._clock.wall(), already=already)

    def _may(self, by: Principal, run: LiveRun) -> bool:
        return self._authority.may(Action.STOP, by, whose=run.session.whose, principal=run.principal)

    def detached(self, session: Session, by: Principal) -> list[Running]:
        """The detached processes of a session that the caller may end."""
        whose, running = session.whose, session.kept.running if session.kept is not None else ()
        return [each for each in running if self._authority.may(Action.STOP, by, whose=whose, principal=each.principal)]

    def remaining(self, session_id: SessionId, by: Principal) -> Remaining:
        """Return what of a session the caller may stop and has not: it runs, waits, or is detached."""
        session = self._registry.sessions.get(session_id)
        runs = [] if session is None else [run for run in _everyone(session) if self._may(by, run)]
        processes = [] if session is None else [each for each in self.detached(session, by) if not each.ending]
        return Remaining(
            running=[run.id for run in runs if not run.detached and run.state in (State.SEATED, State.STARTED)],
            queued=sum(run.state in (State.ARRIVING, State.QUEUED) for run in runs),
            detached=[*(run.id for run in runs if run.detached), *(command_of(each.order) for each in processes)],
        )

    def _may_stop_session(self, by: Principal, session: Session) -> bool:
        return self._authority.may(Action.STOP, by, whose=session.whose)

    def _until(self) -> float:
        return self._clock.now() + self._settings.commit_seconds

    async def _keep(self, decision: Decision, until: float) -> bool:
        """Hand a decision over; if it is not in soon, go on trying without the caller. Return whether it is in."""
        if self._registry.closed:
            return False
        if await self._soon(self._store.decide(decision), until) is not None:
            return True
        self._crew.start(self._endings.keep(lambda: decision), name="keep what a stop decided")
        return False

    async def _soon(self, asked: Awaitable[T], until: float) -> T | None:
        """Ask the store until an instant, None if it is in trouble."""
        with anyio.CancelScope(deadline=until), contextlib.suppress(Unavailable):
            return await asked
        return None


def _everyone(session: Session) -> list[LiveRun]:
    """Every run of a session that has not fallen: seated, waiting, arriving, detached."""
    detached = (session.detached or {}).values()
    everyone = dict.fromkeys([session.seat, *(session.waiting or ()), *(session.line or ()), *detached])
    return [run for run in everyone if run is not None and not run.fallen and may(run.state, Move.END)]


def _ending(run: LiveRun) -> Ending | None:
    return None if run.outcome is None else run.outcome.ending


def _stopped(run: LiveRun) -> bool:
    return _ending(run) is Ending.STOPPED
