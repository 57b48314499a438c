"""Stopping: a session, a run, or a message by its key. Resetting a session is a stop too.

1. One synchronous step decides what is to fall, and lets it fall. So every verb here is a plain function: it decides
   in the step that calls it, and returns what waits for the receipt (`Answering`). A surface calls it in the step that
   reads the stop, however many answers are on their way. Then the caller waits for t1 and no longer.
2. A stop is never refused for trouble of the store. It waits for the store for COMMIT_SECONDS at most. Where it must
   ask the store and gets no answer, it returns the receipt of a stop that found nothing.
3. The answer says what was decided, not what was asked: `aborted` if this call ended something, else `already`, the
   ending it found (race 128).
4. A stop may have a key of its own. The key is claimed in memory in the step that decides, before anything is awaited,
   and stored in the Decision with what the stop ended. So two deliveries at once are one stop, and a later delivery
   gets the result of the first and ends nothing newer, also after a restart (races 129 and 130).
5. A stop that must read before it can decide (whose session is it?) goes on in a task of control's own. Otherwise a
   caller who left would leave the key free for a second stop.
6. A stop with an order (`order=(channel, n)`) leaves a mark for its channel and principal: a message of that channel
   with a lower number, arriving later, is born stopped if that principal may stop it. A message with a higher number is
   spared (race 131). Readers leave no marks, and the number of marks of one principal is bounded.
7. A reset ends everything of a session and lets its transcript begin anew after a position (`Session.since`). The log
   and the schedules stay. The session stays in memory until the new beginning is stored.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec

from interlock.core.authority import Action, Authority, Whose
from interlock.core.decision import Decision, StopKey, StopMark, Tombstone
from interlock.core.errors import KeyConflict, Unavailable
from interlock.core.lifecycle import Move, State, may
from interlock.core.names import REPORTS, Ending, Principal, ReceiptId, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.core.receipt import Receipt, nothing
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.ending import Endings
from interlock.runtime.fall import Fall
from interlock.runtime.inbox import Inbox
from interlock.runtime.live import Falling, LiveRun, Order
from interlock.runtime.naming import UnknownSession
from interlock.runtime.registry import Registry, Session, StopCall
from interlock.runtime.settings import Settings
from interlock.runtime.sight import Sight
from interlock.runtime.spawning import Running, command_of
from interlock.stores.base import Store, Ticket

T = TypeVar("T")

Answering = Callable[[], Coroutine[Any, Any, Receipt]]
"""The answer to a stop that was begun: call it and await the receipt. Nothing depends on that it is called."""


class Remaining(NamedTuple):
    """What of a session goes on after a stop: its runs, the number of waiting messages, its detached work."""

    running: list[RunId]
    queued: int
    detached: list[str]  # child runs by their ids, processes by their commands


class Stopping:
    """Ends the runs and detached processes that a caller may end."""

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

    # Once per key

    def once(self, call: StopCall, session: SessionId | None, stop: Callable[[], Answering]) -> Answering:
        """Stop. If the call's key was used before, end nothing and answer with the result of its first use instead."""
        if call.key is None:
            return stop()
        first = self._registry.stop_of(call.by, call.key)
        if first is None:
            self._registry.claim(call)
            try:
                return stop()
            except BaseException:
                self._release(call)
                raise
        if (first.method, first.digest) != (call.method, call.digest):
            raise KeyConflict(f"key {call.key!r} was used for another stop; use a new key for this one")
        return partial(self._again, first, call, session, stop)

    async def _again(
        self, first: StopCall, call: StopCall, session: SessionId | None, stop: Callable[[], Answering]
    ) -> Receipt:
        """Answer with the result of the first use of a key; if that failed, stop now."""
        await first.decided.wait()
        if first.row is not None:
            return await self._told_again(first.row, session)
        return await self.once(call, session, stop)()

    def _release(self, call: StopCall) -> None:
        """Free the key of a stop that failed before it decided anything."""
        if call.key is not None and call.row is None:
            self._registry.release(call)
            call.decided.set()

    async def _told_again(self, row: StopKey, session: SessionId | None) -> Receipt:
        """Return the result of the first stop with this key, with its receipt as it stands now."""
        if row.already is Ending.UNKNOWN:
            raise UnknownSession(SessionId(session or ""), row.principal)
        told = nothing(session=session, by=row.principal, now=row.at)
        if row.receipt is None:
            told = msgspec.structs.replace(told, durable=await self._keep(Decision(stops=(row,)), self._until()))
        else:
            told = await self._receipt_now(row.receipt, row.principal) or msgspec.structs.replace(told, id=row.receipt)
        return msgspec.structs.replace(told, aborted=row.aborted, already=row.already, again=True)

    async def _receipt_now(self, receipt_id: ReceiptId, by: Principal) -> Receipt | None:
        """Return a receipt as it stands now; None if the store no longer has it, or does not answer."""
        fall = self._registry.falls.get(receipt_id)
        if fall is None:
            return await self._soon(self._sight.kept_receipt(receipt_id, by), self._until())
        await fall.ended.wait()
        return self._sight.receipt(fall, by)

    def _own(self, call: StopCall, work: Answering, *, always: bool = False) -> Answering:
        """Begin a stop that must wait before it decides, in a task that goes on if its caller leaves (rule 5)."""
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            problem: Exception = Unavailable("this control was closed before it was decided; stop it at the next one")
            try:
                receipt = await work()
            except Exception as error:
                problem = error
            else:
                if not answer.done():
                    answer.set_result(receipt)
            finally:
                self._release(call)
                if not answer.done():
                    answer.set_exception(problem)
                    # The caller may have left; then the problem is told to nobody.
                    answer.exception()

        async def told() -> Receipt:
            return await answer

        if (call.key is None and not always) or self._crew.start(carry(), name="a stop by its key") is None:
            return work
        return told

    # A session

    def session(self, session_id: SessionId, call: StopCall, order: Order | None = None) -> Answering:
        """End everything of a session that the caller may end: the run in the seat, arrivals, the queue, detached work.

        With an order, messages written after it in the same channel are spared.
        """
        until, marked, now = self._until(), None, self._clock.wall()
        # A reader has no right to FOUND, and leaves no mark.
        if order is not None and self._authority.may(Action.FOUND, call.by):
            mark = StopMark(session=session_id, channel=order.channel, by=call.by, at=order.at, stopped_at=now)
            marked = self._mark(mark)
        answer = self._stop_session(session_id, call, order)
        return answer if marked is None else partial(self._with_mark, answer, marked, until)

    async def _with_mark(self, answer: Answering, marked: Ticket, until: float) -> Receipt:
        receipt = await answer()
        durable = await self._soon(marked, until) is not None
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    def _stop_session(self, session_id: SessionId, call: StopCall, order: Order | None) -> Answering:
        session = self._registry.sessions.get(session_id)
        if session is None or self._registry.closed:
            return self._own(call, partial(self._absent, session_id, call))
        arriving = () if session.loaded else tuple(session.line or ())
        unsure = any(self._inbox.unsure(run) for run in arriving)
        if unsure or not all(self._may(call.by, run) for run in arriving):
            return self._loaded(session_id, call, lambda here: self._stop_here(here, call, order, arriving))
        # The pin forgets the session again if the stop leaves nothing of it but a raised generation.
        with self._registry.pinned(session_id):
            return self._stop_here(session, call, order)

    def _loaded(self, session_id: SessionId, call: StopCall, decide: Callable[[Session], Answering]) -> Answering:
        """Read whose session it is, then decide. From this step until then no arrival of the session is decided on."""
        held = contextlib.ExitStack()
        session = held.enter_context(self._registry.pinned(session_id))
        held.enter_context(self._inbox.held_up(session))
        until = self._until()

        async def load_and_decide() -> Receipt:
            with held:
                await self._load(session, call.by, until)
                answer = decide(session)
            return await answer()

        return self._own(call, load_and_decide, always=True)

    async def _load(self, session: Session, by: Principal, until: float) -> None:
        # Arrivals wait for this read. Otherwise the inbox would decide on them first, and dispatch them.
        with self._inbox.held_up(session):
            known = await self._soon(self._store.load(session.id, principal=by, key=None), until)
            if known is not None:
                self._inbox.take_up(session, known)

    def _stop_here(
        self, session: Session, call: StopCall, order: Order | None, arrived: Collection[LiveRun] | None = None
    ) -> Answering:
        """Stop a session; with `arrived` only those runs: messages that came while the stop read are spared."""
        everyone = [run for run in _everyone(session) if self._may(call.by, run) and _was_there(run, arrived)]
        targets = [run for run in everyone if not _written_after(run, order)]
        fall = self._end_all(session, targets, call, processes=self.detached(session, call.by))
        return self._empty(session, call) if fall is None else self._receipt_of(fall, call.by)

    def _end_all(
        self,
        session: Session,
        targets: list[LiveRun],
        call: StopCall,
        *,
        processes: Sequence[Running] = (),
        resets: bool = False,
    ) -> Fall | None:
        """Let runs and detached processes fall together, in one step; None if there is nothing to end."""
        if not (targets or processes) or self._registry.closed:
            return None
        fall = self._endings.open(session, by=call.by)
        stopped = Cause(ending=Ending.STOPPED, by=call.by, typed=call.typed)
        for target in targets:
            fall.take(target, stopped)
        fall.sweep(processes, stopped)
        aborted, already = _came_to(fall)
        fall.stops = call.decide(at=fall.fenced_at, receipt=fall.id, aborted=aborted, already=already)
        # After a reset the next turn has no `previous`. A run that ends after this step can be `previous` again.
        if resets:
            self._forget_turns(session)
            fall.resets.append(session)
        self._endings.close(fall)
        return fall

    def _mark(self, mark: StopMark) -> Ticket | None:
        """Remember a stop by its place in its channel: messages written before it may still arrive."""
        self._registry.mark((mark,))
        return None if self._registry.closed else self._endings.insist(Decision(marks=(mark,)))

    def reset(self, session_id: SessionId, call: StopCall) -> Answering:
        """End everything of a session and let its transcript begin anew; the generation goes on rising."""
        if self._registry.closed:
            raise Unavailable("this control is closed; reset the session at the next one")
        session = self._registry.sessions.get(session_id)
        if session is None or not session.loaded:
            arrived = () if session is None else tuple(session.line or ())
            return self._loaded(session_id, call, lambda here: self._reset_here(here, call, arrived))
        return self._reset_here(session, call)

    def _reset_here(self, session: Session, call: StopCall, arrived: Collection[LiveRun] | None = None) -> Answering:
        if not session.loaded:
            raise Unavailable("the store did not answer in time, and nothing was reset; try again")
        by, now = call.by, self._clock.wall()
        if session.confirmed_owner is None or not self._authority.may(Action.RESET, by, whose=session.whose):
            return partial(self._unknown, session.id, by, self._note(call, now, already=Ending.UNKNOWN))
        processes = list(session.kept.running) if session.kept is not None else []
        everyone = [run for run in _everyone(session) if self._inbox.may_come(run) and _was_there(run, arrived)]
        fall = self._end_all(session, everyone, call, processes=processes, resets=True)
        told: Answering | None = None
        untold: Falling | None = None
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
                durable = await self._soon(self._store.decide(decision), self._until()) is not None
            finally:
                pin.__exit__(None, None, None)
            return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

        return self._own(call, answer, always=True)

    async def _unknown(self, session_id: SessionId, by: Principal, written: Ticket | None) -> Receipt:
        """Say that there is no such session, once the key of the reset is stored: a second delivery must find it."""
        if written is not None:
            await self._soon(written, self._until())
        raise UnknownSession(session_id, by)

    def _forget_turns(self, session: Session) -> None:
        session.previous = None
        session.renewed = self._registry.generations.get(session.id)

    def _begin_anew(self, session: Session) -> Falling | None:
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

    def _empty(self, session: Session, call: StopCall) -> Answering:
        """Answer a stop of a session that found nothing to end.

        A run that is just ending is named in the answer. If the seat is empty, the generation rises all the same.
        """
        by, now, until = call.by, self._clock.wall(), self._until()
        ended = self._just_ended(session, by)
        # The run may leave memory while the store is awaited, and with it its fall.
        fall = None if ended is None else ended.fall
        last = session.previous if self._may_stop_session(by, session) else None
        already = last.ending if last is not None else None
        written = [self._note(call, now, ended=ended, already=already)]
        if session.seat is None and session.stored and self._may_stop_session(by, session):
            self._registry.generations.rise(session.id)
            decision = Decision(sessions=(self._registry.session_row(session),))
            written.append(None if self._registry.closed else self._endings.insist(decision, session))

        async def answer() -> Receipt:
            kept = [await self._soon(each, until) is not None for each in written if each is not None]
            if ended is not None and fall is not None:
                return await self._same_again(fall, ended, by)
            durable = all(kept) and not self._registry.closed
            return nothing(session=session.id, by=by, now=now, already=already, durable=durable)

        return answer

    def _just_ended(self, session: Session, by: Principal) -> LiveRun | None:
        """Return the run that a late stop must have meant: a run that is draining, or that was stopped."""
        for fall in reversed(session.falls or ()):
            mine = [run for run in fall.runs if self._may(by, run)]
            if mine and (not fall.drained.is_set() or _stopped(mine[0])):
                return mine[0]
        return None

    def _note(
        self, call: StopCall, now: float, *, ended: LiveRun | None = None, already: Ending | None = None
    ) -> Ticket | None:
        """Store the result of a stop with a key that ended nothing itself; the caller need not wait for it."""
        receipt = None if ended is None or ended.fall is None else ended.fall.id
        rows = call.decide(at=now, receipt=receipt, already=already if ended is None else _ending(ended))
        return self._endings.insist(Decision(stops=rows)) if rows and not self._registry.closed else None

    async def _noted(self, call: StopCall, receipt: Receipt) -> Receipt:
        """Store the key of a stop that found this receipt, and return the receipt."""
        rows = call.decide(at=receipt.fenced_at, receipt=receipt.id, already=receipt.already)
        durable = not rows or await self._keep(Decision(stops=rows), self._until())
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    async def _absent(self, session_id: SessionId, call: StopCall) -> Receipt:
        """Answer a stop of a session that is not in memory: raise its generation in the store, if the caller may."""
        until, by, now = self._until(), call.by, self._clock.wall()
        known = await self._soon(self._store.load(session_id, principal=by, key=None), until)
        already, durable = None, known is not None
        row = None if known is None else known.session
        # The session came into memory meanwhile, and the generation there counts: raise none in the store.
        if session_id in self._registry.sessions:
            row = None
        whose = None if row is None else Whose(row.owner, row.shares)
        if known is not None and whose is not None and self._authority.may(Action.STOP, by, whose=whose):
            already = None if known.previous is None else known.previous.ending
            durable = await self._keep(Decision(rises=(session_id,)), until)
        kept = self._note(call, now, already=already)
        durable = durable and (kept is None or await self._soon(kept, until) is not None)
        return nothing(session=session_id, by=by, now=now, already=already, durable=durable)

    # A run

    def run(self, run_id: RunId, call: StopCall) -> Answering:
        """End one run, in whatever state it is; its session's queue goes on."""
        return self._sure(self._registry.runs.get(run_id), call, lambda: self._run(run_id, call))

    def _sure(self, run: LiveRun | None, call: StopCall, stop: Callable[[], Answering]) -> Answering:
        """Call `stop` for one run. If the run is a message to a session of unknown owner, read that session first."""

        async def loaded(session: Session) -> Receipt:
            with self._registry.pinned(session.id):
                await self._load(session, call.by, self._until())
                return await stop()()

        if run is None or not self._inbox.unsure(run):
            return stop()
        return self._own(call, partial(loaded, run.session), always=True)

    def _run(self, run_id: RunId, call: StopCall) -> Answering:
        run, by = self._registry.runs.get(run_id), call.by
        if run is not None and self._may(by, run.itself):
            return self._live(run.itself, call)

        async def answer() -> Receipt:
            found = await self._soon(self._stored(run_id, by), self._until()) if run is None else None
            return await self._noted(call, found or nothing(session=None, by=by, now=self._clock.wall()))

        return self._own(call, answer)

    def _live(self, run: LiveRun, call: StopCall) -> Answering:
        by = call.by
        if run.state not in (State.WITHDRAWN, State.ALIASED):
            steering = [other for other in run.session.waiting or () if other.steers is run and self._may(by, other)]
            # A stop of one run does not end the queue, and so not the announcements in it.
            steering = [other for other in steering if other.kind not in REPORTS]
            live = not run.fallen and not self._registry.closed
            fall = self._end_all(run.session, [run, *steering], call) if live else None
            if fall is not None:
                return self._receipt_of(fall, by)
        earlier = run.fall

        async def answer() -> Receipt:
            # Without a fall the run was withdrawn or absorbed and has no ending of its own, or this control is closed.
            if earlier is None:
                return await self._noted(call, nothing(session=run.session.id, by=by, now=self._clock.wall()))
            return await self._noted(call, await self._same_again(earlier, run, by))

        return self._own(call, answer)

    async def _stored(self, run_id: RunId, by: Principal) -> Receipt | None:
        outcome = await self._sight.outcome(run_id, by)
        if outcome is None or not outcome.ended:
            return None
        kept = await self._store.receipt(outcome.run_id)
        shown = None if kept is None else await self._sight.stored_receipt(kept, by)
        if shown is None:
            return nothing(session=None, by=by, now=self._clock.wall(), already=outcome.ending)
        return msgspec.structs.replace(shown, aborted=False, already=outcome.ending)

    # A message

    def message(self, key: str, call: StopCall) -> Answering:
        """End the caller's message with this key; if it has not arrived yet, it will be born stopped (race 1)."""
        return self._sure(self._registry.keys.get((call.by, key)), call, lambda: self._message(key, call))

    def _message(self, key: str, call: StopCall) -> Answering:
        run = self._registry.keys.get((call.by, key))
        if run is not None and self._may(call.by, run.itself):
            return self._live(run.itself, call)
        tombstone = Tombstone(principal=call.by, key=key)
        self._registry.bury(tombstone)
        written = None if self._registry.closed else self._endings.insist(Decision(tombstones=(tombstone,)))
        return self._own(call, partial(self._bury, key, call, written))

    async def _bury(self, key: str, call: StopCall, written: Ticket | None) -> Receipt:
        """Answer a stop of a message that control does not know; the store may."""
        by, until = call.by, self._until()
        durable = written is not None and await self._soon(written, until) is not None
        known = await self._soon(self._store.load(SessionId(""), principal=by, key=key), until)
        found = None
        if known is not None and known.key is not None:
            came = self._registry.runs.get(known.key.run_id)
            # The message arrived while the store was asked, and was born stopped.
            if came is not None and self._may(by, came.itself):
                return await self._live(came.itself, call)()
            found = await self._soon(self._stored(known.key.run_id, by), until)
        return await self._noted(call, found or nothing(session=None, by=by, now=self._clock.wall(), durable=durable))

    # Answers

    def _receipt_of(self, fall: Fall, by: Principal) -> Answering:
        """Answer with the receipt of what this call ended, with the runs that the caller may see (rule 3)."""
        # The right to see is asked in the step of the stop: it may be taken away before the ending is public.
        seen = [run for run in fall.runs if self._sight.may_see(by, run)]

        async def answer() -> Receipt:
            await fall.ended.wait()
            aborted, already = _came_to(fall)
            return fall.receipt(aborted=aborted, already=already, runs=seen if fall.runs else None)

        return answer

    async def _same_again(self, fall: Falling, run: LiveRun, by: Principal) -> Receipt:
        """Return the receipt of an earlier fall for a later stop: `aborted: false`, and the ending found (race 14)."""
        await fall.ended.wait()
        already = _ending(run)
        shown = self._sight.receipt(fall, by, aborted=False, already=already)
        return shown or nothing(session=run.session.id, by=by, now=self._clock.wall(), already=already)

    def _may(self, by: Principal, run: LiveRun) -> bool:
        return self._inbox.may_come(run) and self._authority.may(
            Action.STOP, by, whose=run.session.whose, principal=run.principal
        )

    def detached(self, session: Session, by: Principal) -> list[Running]:
        """Return the detached processes of a session that the caller may end."""
        whose, running = session.whose, session.kept.running if session.kept is not None else ()
        return [each for each in running if self._authority.may(Action.STOP, by, whose=whose, principal=each.principal)]

    def remaining(self, session_id: SessionId, by: Principal) -> Remaining:
        """Return what of a session goes on and could be stopped by the caller."""
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
        """Hand a decision to the store and return whether it is committed by an instant; if not, a task tries on."""
        if self._registry.closed:
            return False
        if await self._soon(self._store.decide(decision), until) is not None:
            return True
        self._crew.start(self._endings.keep(decision), name="keep what a stop decided")
        return False

    async def _soon(self, asked: Awaitable[T], until: float) -> T | None:
        """Return the store's answer, or None if the store fails or does not answer by an instant."""
        with anyio.CancelScope(deadline=until), contextlib.suppress(Unavailable):
            return await asked
        return None


def _came_to(fall: Fall) -> tuple[bool, Ending | None]:
    """Return whether a fall stopped anything; if not, also the ending that came first."""
    endings = [_ending(run) for run in fall.runs]
    stopped = Ending.STOPPED in endings or bool(fall.swept)
    return stopped, None if stopped else endings[0]


def _written_after(run: LiveRun, order: Order | None) -> bool:
    """Return whether a run's message was written after a stop, by the numbers of the channel that both came by."""
    written = run.order
    return order is not None and written is not None and written.channel == order.channel and written.at > order.at


def _was_there(run: LiveRun, arrived: Collection[LiveRun] | None) -> bool:
    """Return whether a run is one of those that a stop means: all that it finds, or those that had arrived."""
    return arrived is None or run in arrived


def _everyone(session: Session) -> list[LiveRun]:
    """Return every run of a session that has not fallen: seated, waiting, arriving, detached."""
    detached = (session.detached or {}).values()
    everyone = dict.fromkeys([session.seat, *(session.waiting or ()), *(session.line or ()), *detached])
    return [run for run in everyone if run is not None and not run.fallen and may(run.state, Move.END)]


def _ending(run: LiveRun) -> Ending | None:
    return None if run.outcome is None else run.outcome.ending


def _stopped(run: LiveRun) -> bool:
    return _ending(run) is Ending.STOPPED
