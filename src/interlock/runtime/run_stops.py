"""Ends one run, or a message by its key, once stops.py has read the verb; and the steps that every stop shares.

1. One synchronous step decides what is to fall, and lets it fall. So every stop here is a plain function: it decides in
   the step that calls it, and returns what waits for the receipt (`Receiving`). A surface calls it in the step that
   reads the stop, however many answers are on their way. Then the caller waits for t1 and no longer.
2. A stop is never refused for trouble of the store. It waits for the store for COMMIT_SECONDS at most. Where it must
   ask the store and gets no answer, it returns the receipt of a stop that found nothing.
3. The answer says what was decided, not what was asked: `aborted` if this call ended something, else `already`, the
   ending it found (race 128).
4. A stop that must read before it can decide (whose session is it?) goes on in a task of control's own. Otherwise a
   caller who left would leave the key free for a second stop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import anyio
import msgspec

from interlock.client.door import Answering
from interlock.core.authority import Action
from interlock.core.decision import Decision, RunRow, Tombstone
from interlock.core.errors import Unavailable
from interlock.core.names import REPORTS, Ending, Principal, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.core.receipt import Receipt, nothing
from interlock.runtime.ending import Endings
from interlock.runtime.fall import Fall, seat_next
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import StopCall
from interlock.runtime.session import Session
from interlock.runtime.spawning import Spawned
from interlock.stores.base import Ticket

T = TypeVar("T")

Receiving = Answering[Receipt]
"""Waits for the receipt of a stop that was begun."""


class RunStops(Inner):
    """Ends single runs that a caller may end."""

    def __init__(self, inside: Inside, *, endings: Endings, inbox: Inbox) -> None:
        super().__init__(inside)
        self._endings = endings
        self._inbox = inbox

    # What every stop has in common

    def release(self, call: StopCall) -> None:
        """Free the key of a stop that failed before it decided anything."""
        if call.key is not None and call.row is None:
            self._registry.release(call)
            call.decided.set()

    def _own(self, call: StopCall, work: Receiving, *, always: bool = False) -> Receiving:
        """Begin a stop that must wait before it decides, in a task that goes on if its caller leaves (rule 4)."""
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            try:
                receipt = await work()
            except Exception as error:
                fail(error)
            else:
                if not answer.done():
                    answer.set_result(receipt)

        def fail(problem: Exception) -> None:
            self.release(call)
            if not answer.done():
                answer.set_exception(problem)
                # The caller may have left; then the problem is told to nobody.
                answer.exception()

        def over(_: asyncio.Task[None]) -> None:
            fail(Unavailable("this control was closed before it was decided; stop it at the next one"))

        async def told() -> Receipt:
            return await answer

        task = self._crew.start(carry(), name="a stop by its key") if always or call.key is not None else None
        if task is None:
            return work
        # Not in the task itself: one that is cancelled before its first step runs nothing.
        task.add_done_callback(over)
        return told

    def _end_all(
        self,
        session: Session,
        targets: list[LiveRun],
        call: StopCall,
        *,
        processes: Sequence[Spawned] = (),
        resets: bool = False,
    ) -> Fall | None:
        """Let runs and detached processes fall together, in one step; None if there is nothing to end."""
        if not (targets or processes) or self._registry.closed:
            return None
        fall = self._endings.open(session, by=call.by)
        stopped = Cause(ending=Ending.STOPPED, by=call.by, typed=call.typed)
        for target in targets:
            fall.add(target, stopped)
        fall.sweep(processes, stopped)
        aborted, already = _came_to(fall)
        fall.stops = call.decide(at=fall.fenced_at, receipt=fall.id, aborted=aborted, already=already)
        # After a reset the next turn has no `previous`. A run that ends after this step can be `previous` again.
        if resets:
            self._forget_turns(session)
            fall.resets.append(session)
        self._endings.close(fall)
        return fall

    def _forget_turns(self, session: Session) -> None:
        session.previous = None
        session.renewed = self._registry.generations.get(session.id)

    async def _load(self, session: Session, by: Principal, until: float) -> None:
        # Arrivals wait for this read. Otherwise the inbox would decide on them first, and dispatch them.
        with session.held_up():
            known = await self.soon(self._store.load(session.id, principal=by, key=None), until)
            if known is not None:
                self._registry.load(session, known)

    def _note(
        self, call: StopCall, now: float, *, ended: LiveRun | None = None, already: Ending | None = None
    ) -> Ticket | None:
        """Store the result of a stop with a key that ended nothing itself; the caller need not wait for it."""
        receipt = None if ended is None or ended.fall is None else ended.fall.id
        rows = call.decide(at=now, receipt=receipt, already=already if ended is None else _ending(ended))
        return self._endings.store_until_in(Decision(stops=rows)) if rows and not self._registry.closed else None

    async def _noted(self, call: StopCall, receipt: Receipt) -> Receipt:
        """Store the key of a stop that found this receipt, and return the receipt."""
        rows = call.decide(at=receipt.fenced_at, receipt=receipt.id, already=receipt.already)
        durable = not rows or await self.keep(Decision(stops=rows), self.until())
        return msgspec.structs.replace(receipt, durable=receipt.durable and durable)

    def _receipt_of(self, fall: Fall, by: Principal) -> Receiving:
        """Answer with the receipt of what this call ended, with the runs that the caller may see (rule 3)."""
        # The right to see is asked in the step of the stop: it may be taken away before the ending is public.
        seen = [run for run in fall.runs if self._sight.may_see(by, run)]

        async def answer() -> Receipt:
            await fall.ended.wait()
            aborted, already = _came_to(fall)
            return fall.receipt(aborted=aborted, already=already, runs=seen if fall.runs else None)

        return answer

    async def _same_again(self, fall: Fall, run: LiveRun, by: Principal) -> Receipt:
        """Return the receipt of an earlier fall for a later stop: `aborted: false`, and the ending found (race 14)."""
        await fall.ended.wait()
        already = _ending(run)
        shown = self._sight.receipt(fall, by, aborted=False, already=already)
        return shown or nothing(session=run.session.id, by=by, now=self._clock.wall(), already=already)

    def _may(self, by: Principal, run: LiveRun) -> bool:
        return self._inbox.senders.may_come(run) and self._authority.may(
            Action.STOP, by, whose=run.session.whose, principal=run.principal
        )

    def until(self) -> float:
        """Return the instant up to which a stop waits for the store."""
        return self._clock.now() + self._settings.commit_seconds

    async def keep(self, decision: Decision, until: float) -> bool:
        """Hand a decision to the store and return whether it is committed by an instant; if not, a task tries on."""
        if self._registry.closed:
            return False
        if await self.soon(self._store.decide(decision), until) is not None:
            return True
        self._crew.start(self._endings.keep(decision), name="keep what a stop decided")
        return False

    async def soon(self, asked: Awaitable[T], until: float) -> T | None:
        """Return the store's answer, or None if the store fails or does not answer by an instant."""
        with anyio.CancelScope(deadline=until), contextlib.suppress(Unavailable):
            return await asked
        return None

    # Runs that recovery has not settled

    @contextlib.contextmanager
    def _held(self, session_id: SessionId) -> Iterator[Session]:
        """Keep a session as it is inside the block, in which a stop waits before it decides: nothing of it begins.

        The stop may be answered before recovery has settled the session; a message that began then would run on behind
        the answer.
        """
        with self._registry.pinned(session_id) as session:
            try:
                with session.held_up():
                    yield session
            finally:
                seat_next(self._registry, session)

    def _after_recovery(
        self, call: StopCall, named: Callable[[], Awaitable[RunRow | None]], stop: Callable[[], Receiving]
    ) -> Receiving:
        """Call `stop` once recovery has settled the session of the run that it names, as the store knows that run.

        If the store does not say, wait for every session: the run may be in any of them.
        """
        until, gates = self.until(), list(self._registry.recovering.values())

        async def settled() -> Receipt:
            row = await self.soon(named(), until)
            if row is None:
                for gate in gates:
                    await gate.wait()
                return await stop()()
            with self._held(row.home or row.session) as session:
                if (closed := self._registry.gate_of(session)) is not None:
                    await closed.wait()
                answer = stop()
            return await answer()

        return self._answered_by(self._own(call, settled, always=True), call, until)

    def _answered_by(self, stop: Receiving, call: StopCall, until: float) -> Receiving:
        """Answer by an instant; a stop that recovery keeps waiting longer goes on, and found nothing so far."""

        async def answer() -> Receipt:
            receipt = await self.soon(stop(), until)
            return receipt or nothing(session=None, by=call.by, now=self._clock.wall(), durable=False)

        return answer

    # A run

    def run(self, run_id: RunId, call: StopCall) -> Receiving:
        """End one run, in whatever state it is; its session's queue goes on."""
        if self._registry.recovering and run_id not in self._registry.runs:
            return self._after_recovery(call, lambda: self._store.run(run_id), lambda: self._run(run_id, call))
        return self._sure(self._registry.runs.get(run_id), call, lambda: self._run(run_id, call))

    def _sure(self, run: LiveRun | None, call: StopCall, stop: Callable[[], Receiving]) -> Receiving:
        """Call `stop` for one run. If the run is a message to a session of unknown owner, read that session first."""

        async def loaded(session: Session) -> Receipt:
            with self._registry.pinned(session.id):
                await self._load(session, call.by, self.until())
                return await stop()()

        if run is None or not self._inbox.senders.unsure(run):
            return stop()
        return self._own(call, partial(loaded, run.session), always=True)

    def _run(self, run_id: RunId, call: StopCall) -> Receiving:
        run, by = self._registry.runs.get(run_id), call.by
        if run is not None and self._may(by, run.absorber_or_self):
            return self._live(run.absorber_or_self, call)

        async def answer() -> Receipt:
            found = await self.soon(self._stored(run_id, by), self.until()) if run is None else None
            return await self._noted(call, found or nothing(session=None, by=by, now=self._clock.wall()))

        return self._own(call, answer)

    def _live(self, run: LiveRun, call: StopCall) -> Receiving:
        by = call.by
        if not (run.state.withdrawn or run.state.aliased):
            steering = [
                other for other in run.session.queue or () if other.admittance.steers is run and self._may(by, other)
            ]
            # A stop of one run does not end the queue, and so not the announcements in it.
            steering = [other for other in steering if other.arrival.kind not in REPORTS]
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

    def message(self, key: str, call: StopCall) -> Receiving:
        """End the caller's message with this key; if it has not arrived yet, it will be born stopped (race 1)."""
        if self._registry.recovering and (call.by, key) not in self._registry.keys:
            # The message may still arrive, and is born stopped then.
            self._registry.bury(Tombstone(principal=call.by, key=key))
            return self._after_recovery(call, partial(self._sent_as, key, call.by), lambda: self._message(key, call))
        return self._sure(self._registry.keys.get((call.by, key)), call, lambda: self._message(key, call))

    async def _sent_as(self, key: str, by: Principal) -> RunRow | None:
        known = await self._store.load(SessionId(""), principal=by, key=key)
        return None if known.key is None else await self._store.run(known.key.run_id)

    def _message(self, key: str, call: StopCall) -> Receiving:
        run = self._registry.keys.get((call.by, key))
        if run is not None and self._may(call.by, run.absorber_or_self):
            return self._live(run.absorber_or_self, call)
        tombstone = Tombstone(principal=call.by, key=key)
        self._registry.bury(tombstone)
        written = None if self._registry.closed else self._endings.store_until_in(Decision(tombstones=(tombstone,)))
        return self._own(call, partial(self._bury, key, call, written))

    async def _bury(self, key: str, call: StopCall, written: Ticket | None) -> Receipt:
        """Answer a stop of a message that control does not know; the store may."""
        by, until = call.by, self.until()
        durable = written is not None and await self.soon(written, until) is not None
        known = await self.soon(self._store.load(SessionId(""), principal=by, key=key), until)
        found = None
        if known is not None and known.key is not None:
            came = self._registry.runs.get(known.key.run_id)
            # The message arrived while the store was asked, and was born stopped.
            if came is not None and self._may(by, came.absorber_or_self):
                return await self._live(came.absorber_or_self, call)()
            found = await self.soon(self._stored(known.key.run_id, by), until)
        return await self._noted(call, found or nothing(session=None, by=by, now=self._clock.wall(), durable=durable))


def _came_to(fall: Fall) -> tuple[bool, Ending | None]:
    """Return whether a fall stopped anything; if not, also the ending that came first."""
    endings = [_ending(run) for run in fall.runs]
    stopped = Ending.STOPPED in endings or bool(fall.detached_ended)
    return stopped, None if stopped else endings[0]


def _ending(run: LiveRun) -> Ending | None:
    return None if run.outcome is None else run.outcome.ending


def is_stopped(run: LiveRun) -> bool:
    """Return whether a run ended as stopped."""
    return _ending(run) is Ending.STOPPED
