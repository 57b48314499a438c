"""From the fall to the receipt: t1 (told), t2 (drain), t3 (drained). All of it in tasks that control owns.

t0 is `Fall.take` and the lines of `Endings.close` that hand its one Decision to the store, in the same step.
t1 at most COMMIT_SECONDS later: the terminal event of every fallen run. If the store did not answer, it says
   `durable: false` and the write is tried again until it is in.
t2 bodies have their grace, then are not resumed; every wait has a bound.
t3 everything was seen to end, or what was not is named.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import anyio
import msgspec

from interlock.core.decision import Decision, Verdict
from interlock.core.events import Correction, Proof
from interlock.core.lifecycle import Move, may
from interlock.core.names import BodyState, Drain, Effect, Principal
from interlock.core.outcome import Cause
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.fall import Fall, was_dropped
from interlock.runtime.live import Body, Falling, LiveRun, delegated
from interlock.runtime.outlet import Feed, Outlet
from interlock.runtime.registry import Registry, Session
from interlock.runtime.settings import Settings
from interlock.stores.base import Store, StoreFailed, Ticket, committed

log = logging.getLogger("interlock")

Reporter = Callable[[Fall], None]
"""Makes the messages that announce a fall's detached children, in its step."""

UNKEPT_SECONDS = 0.1  # beyond COMMIT_SECONDS, for a takeover to be known as kept or not before its end is told
LAST_SECONDS = 0.1  # for a body that has just been dropped to be seen gone


class Endings:
    """Ends runs; the only place that does."""

    def __init__(
        self, registry: Registry, *, feed: Feed, store: Store, crew: Crew, clock: Clock, settings: Settings
    ) -> None:
        self._registry = registry
        self._feed = feed
        self._store = store
        self._crew = crew
        self._clock = clock
        self._settings = settings
        self.report: Reporter = lambda fall: None

    # t0: synchronous

    def open(self, session: Session, *, by: Principal | None = None) -> Fall:
        """Begin a fall in a session; take runs into it, then close it in the same step."""
        return Fall(self._registry, self._feed, self._clock, session, by=by)

    def close(self, fall: Fall, *, admission: Decision | None = None) -> Ticket:
        """Finish t0: seat who waits, hand one Decision to the store, and let t1 to t3 run on their own."""
        self.report(fall)
        if admission is None:
            fall.seat_next()
        decision = fall.decision()
        ticket = self._store.decide(decision if admission is None else _merge(decision, admission))
        for session in fall.sessions:
            if session.falls is None:
                session.falls = []
            session.falls.append(fall)
        self._registry.falls[fall.id] = fall
        self._crew.start(self._conclude(fall, ticket), name=f"end {fall.id}")
        return ticket

    def end(self, run: LiveRun, cause: Cause, *, closing: str | None = None) -> Fall | None:
        """Let one run fall; None if there is nothing to end, or if this control is closed and says nothing any more."""
        if run.fallen or self._registry.closed or not may(run.state, Move.END):
            return None
        fall = self.open(run.session, by=cause.by)
        fall.take(run, cause, closing=closing)
        self.close(fall)
        return fall

    # t1 to t3

    async def _conclude(self, fall: Fall, ticket: Ticket) -> None:
        try:
            await self._end_and_drain(fall, ticket)
        except BaseException:  # someone cancelled this task from outside: nobody may wait for ever
            if not fall.ended.is_set():
                self._tell(fall, durable=False, drained=False)
                self._crew.start(self._persist(fall, ticket), name=f"persist {fall.id}")
            if not fall.drained.is_set():
                self._drained(fall, [body for body in _all_of(fall) if not body.done.is_set()])
            self._crew.start(self._aftermath(fall), name=f"keep {fall.id}")
            raise
        await self._aftermath(fall)

    async def _aftermath(self, fall: Fall) -> None:
        """When everything of it is in the store, a fall leaves memory."""
        await fall.kept.wait()
        await self.keep(lambda: Decision(receipts=(fall.receipt(),)))
        self._retire(fall)

    async def _end_and_drain(self, fall: Fall, ticket: Ticket) -> None:
        verdict = await self._commit(fall, ticket)
        if verdict is not None:
            self._adopt(fall, verdict)
        bodies = _all_of(fall)
        if not fall.ended.is_set():
            self._tell(fall, durable=verdict is not None, drained=all(body.done.is_set() for body in bodies))
        if verdict is None or not fall.durable:  # (a later ending may have had to tell this one before it was in)
            self._crew.start(self._persist(fall, ticket), name=f"persist {fall.id}")
        if fall.drain is Drain.PENDING:
            self._drained(fall, await self._drain(bodies))

    def _retire(self, fall: Fall) -> None:
        sessions = fall.sessions
        for run in fall.runs:
            self._registry.retire(run)
        self._registry.falls.pop(fall.id, None)
        for session in sessions:
            if session.falls is not None and fall in session.falls:
                session.falls.remove(fall)

    async def _commit(self, fall: Fall, ticket: Ticket) -> Verdict | None:
        """Wait for the store and for the acks of runs that fell before theirs, at most COMMIT_SECONDS together."""
        until = self._clock.now() + self._settings.commit_seconds
        verdict = None
        if await ticket.within(self._settings.commit_seconds):
            with contextlib.suppress(StoreFailed):
                verdict = await ticket
        if verdict is None and fall.successor is not None:  # whether there is a successor to name will be known soon
            await _all_set([fall.successor.acked], until + UNKEPT_SECONDS)
        ahead = [run.acked for run in fall.runs]
        ahead += [before.ended for before in earlier(fall)]  # else they are told with this one
        await _all_set(ahead, until)
        return verdict

    def _adopt(self, fall: Fall, verdict: Verdict) -> bool:
        """Where another node had ended a run first, that ending is the true one; return whether it was so."""
        found = {outcome.run_id: outcome for outcome in verdict.found}
        for run in fall.runs:
            if run.id in found:
                fall.adopt(run, found[run.id])
        return bool(found)

    def forsake(self, fall: Fall) -> None:
        """The message that took over was not kept: nobody is named who cannot be found. What was told is corrected."""
        assert fall.successor is not None
        for run in fall.runs:
            if run.outcome is None or run.outcome.superseded_by != fall.successor.id:
                continue
            fall.adopt(run, msgspec.structs.replace(run.outcome, superseded_by=None, unkept=True))
            if fall.ended.is_set():
                self._feed.publish(run.session.id, None, Correction(outcome=run.outcome))

    def _tell(self, fall: Fall, *, durable: bool, drained: bool) -> None:
        """t1, one step: one terminal event per run, then the receipt. A session's earlier endings are told before."""
        for before in earlier(fall):
            if isinstance(before, Fall) and not before.ended.is_set():
                self._tell(before, durable=False, drained=False)
        fall.durable = durable
        fall.ended_at = fall.stamp()
        for run in fall.runs:
            assert run.outcome is not None
            run.outcome = msgspec.structs.replace(run.outcome, durable=durable)
            self._seal(fall, run)
            run.ended.set()
        for session in fall.resets:
            self.begin_anew(session)
        if drained:
            self._mark_drained(fall, ())
        self._show_receipt(fall)
        fall.ended.set()
        if durable:
            fall.kept.set()

    def _seal(self, fall: Fall, run: LiveRun) -> None:
        """Tell a run's end. A parent that is still there learns it at once, not when all of the child is gone."""
        parent = run.parent  # where it has fallen, its own terminal event names the child
        above = None if parent is None or parent.fallen else Outlet(parent, self._feed)
        if above is not None and not run.said:
            above.emit(Effect.CHILD, msgspec.structs.replace(delegated(run), outcome=None))
        Outlet(run, self._feed).seal(fall.terminal(run), fall.closing[run.id])
        if above is not None:
            above.emit(Effect.CHILD, delegated(run))
            run.announced = True

    def begin_anew(self, session: Session) -> None:
        """Let a session's transcript begin behind everything that was told so far."""
        session.since = self._registry.position()
        session.crashes = session.announced = 0
        self.insist(Decision(sessions=(self._registry.session_row(session),)), session)

    def _show_receipt(self, fall: Fall) -> None:
        """Tell the whole receipt where it fell, and a child's session of its own run only: trees are large."""
        of: dict[Session, list[LiveRun]] = {}
        for run in fall.runs:
            of.setdefault(run.session, []).append(run)
            if run.detached:
                of.setdefault(run.home, []).append(run)
        for session in fall.sessions:
            receipt = fall.receipt(runs=None if session is fall.session else of[session])
            self._feed.publish(session.id, None, Proof(receipt=receipt))

    async def _drain(self, bodies: Sequence[Body]) -> list[Body]:
        """Wait for bodies: their grace, then never resumed; return those that were not seen to end."""
        began, settings = self._clock.now(), self._settings
        asked = max((body.grace for body in bodies), default=0.0)
        grace = min(max(settings.grace_seconds, asked), settings.drain_seconds)
        await _all_set([body.done for body in bodies], began + grace)
        late = [body for body in bodies if not body.done.is_set()]
        for body in late:
            body.drop()
        last = max(began + settings.drain_seconds, self._clock.now() + LAST_SECONDS)
        await _all_set([body.done for body in late], last)
        return [body for body in late if not body.done.is_set()]

    def _drained(self, fall: Fall, left: Sequence[Body]) -> None:
        """t3: complete the receipt."""
        for body in left:
            body.abandon()
        self._mark_drained(fall, left)
        self._show_receipt(fall)

    def _mark_drained(self, fall: Fall, left: Sequence[Body]) -> None:
        """Say `observed` only where everything was seen to end: a body that was dropped is over, and was not."""
        abandoned = any(body.state is BodyState.ABANDONED for body in left)
        dropped = any(was_dropped(body) for body in fall.bodies)
        drain = Drain.UNCONFIRMED if abandoned or dropped else Drain.OBSERVED
        for run in fall.runs:  # what the runs held was kept for as long as anything of them might use it
            self._registry.holds.drained(run, confirmed=drain is Drain.OBSERVED)
        fall.drain = drain
        fall.drained_at = fall.stamp()
        fall.drained.set()

    async def _persist(self, fall: Fall, ticket: Ticket) -> None:
        """Hand an ending over again until it is in; what the store held instead is told as a correction."""
        said = False
        while True:
            try:
                with anyio.move_on_after(self._settings.retry_seconds):
                    verdict = await ticket
                    break
                if await self._store.withdraw(ticket):
                    verdict = await ticket
                    break
            except StoreFailed as failure:
                if not said:
                    log.warning("an ending is not durable yet, and is tried again: %s", failure)
                said = True
                await anyio.sleep(self._settings.retry_seconds)
            if fall.successor is not None:  # the first write is not in, so it is about to be withdrawn
                await fall.successor.acked.wait()
            ticket = self._store.decide(fall.decision())
        fall.durable = True
        if self._adopt(fall, verdict):
            for outcome in verdict.found:
                session = next(run.session for run in fall.runs if run.id == outcome.run_id)
                self._feed.publish(session.id, None, Correction(outcome=outcome))
        self._show_receipt(fall)
        fall.kept.set()

    def insist(self, decision: Decision, session: Session | None = None) -> Ticket:
        """Hand a decision over in this step, and go on trying behind the caller's back until it is in.

        Until then the session is kept in memory, where the decision counts already.
        """
        ticket = self._store.decide(decision)
        pin = contextlib.nullcontext(session) if session is None else self._registry.pinned(session.id)
        pin.__enter__()  # in this step, or it may be forgotten first
        self._crew.start(self._insist(ticket, decision, pin), name="insist")
        return ticket

    async def _insist(
        self, ticket: Ticket, decision: Decision, pin: contextlib.AbstractContextManager[Session | None]
    ) -> None:
        try:
            if not await committed(self._store, ticket, self._settings.commit_seconds):
                await self.keep(lambda: decision)
        finally:
            pin.__exit__(None, None, None)

    async def keep(self, decision: Callable[[], Decision]) -> None:
        """Hand a decision to the store until it is in."""
        while not await committed(self._store, self._store.decide(decision()), self._settings.commit_seconds):
            await anyio.sleep(self._settings.retry_seconds)


def earlier(fall: Falling) -> list[Falling]:
    """Falls that came before and are to be told before: of the same sessions, and of children."""
    before: list[Falling] = []
    for session in fall.sessions:
        falls: list[Falling] = session.falls or []
        if fall in falls:
            before += falls[: falls.index(fall)]
    for run in fall.runs:
        before += run.child_falls or ()
    return before


def _all_of(fall: Fall) -> list[Body]:
    """Whatever of a fall may still run: code and processes."""
    return [*fall.bodies, *fall.containments]


async def _all_set(events: Sequence[asyncio.Event], until: float) -> None:
    """Wait for every event, at most until an instant; most are set, and then there is nothing to bound."""
    if all(event.is_set() for event in events):
        return
    with anyio.CancelScope(deadline=until):
        for event in events:
            await event.wait()


def _merge(fall: Decision, admission: Decision) -> Decision:
    """One step, one Decision: the endings and the admission that caused them."""
    return msgspec.structs.replace(
        fall,
        sessions=tuple({row.id: row for row in (*fall.sessions, *admission.sessions)}.values()),
        admissions=fall.admissions + admission.admissions,
        keys=fall.keys + admission.keys,
    )
