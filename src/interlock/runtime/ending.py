"""Opens and closes every fall, stores and publishes its endings (t1), drains it (t2), completes its receipt (t3).

t0 is `Fall.add`, and in the same step `Endings.close` hands the fall's one Decision to the store.
t1 comes at most COMMIT_SECONDS later, after a takeover at most UNKEPT_SECONDS more: one terminal event for every fallen
   run, then the receipt. If the store has not answered by then, the event says `durable: false`, and the write is tried
   again until it is committed. Then the receipt is published again.
t2 is the drain. Bodies have their grace and then are not resumed. DRAIN_SECONDS bounds the whole drain, for a run and
   its children together. A child that was cut may still clean up after `delegate` returned, so a parent is drained only
   when its children are.
t3 completes the receipt: control saw everything end (`observed`), or the receipt names what control did not see end.

1. t1 to t3 run in tasks that control owns; callers only wait for them. A caller may vanish, or be the run that falls,
   and the ending must be stored and published all the same (races 23, 40 and 108).
2. Endings of a session are published in the order of their falls, and a child's before its parent's.
3. A run leaves memory only when it is drained and its ending is stored.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence

import anyio
import msgspec

from interlock.agent.bodies import Body
from interlock.agent.flag import Happening
from interlock.core.decision import Decision, Verdict
from interlock.core.events import Correction, ReceiptData
from interlock.core.lifecycle import Move, may
from interlock.core.names import BodyState, Drain, Effect, Principal, RunId
from interlock.core.outcome import Cause
from interlock.core.receipt import split
from interlock.runtime.fall import Fall
from interlock.runtime.fallen import was_dropped
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun, delegated
from interlock.runtime.outlet import Outlet
from interlock.runtime.session import Session
from interlock.stores.base import Expelled, StoreFailed, Ticket, commit_in_time

log = logging.getLogger("interlock")

Reporter = Callable[[Fall], None]
"""Makes the announcements of a fall's detached children, in the step of the fall."""

# How long, beyond COMMIT_SECONDS, a superseded run's ending waits to know whether the newer message is stored.
UNKEPT_SECONDS = 0.1
LAST_SECONDS = 0.1  # how long a body that was just dropped has to end


class Endings(Inner):
    """Ends runs: every fall is opened and closed here."""

    def __init__(self, inside: Inside) -> None:
        super().__init__(inside)
        self.report: Reporter = lambda fall: None
        # Drained falls whose completed receipts are not stored yet.
        self._complete: list[Fall] = []
        self._storing = False

    # t0: synchronous

    def open(self, session: Session, *, by: Principal | None = None) -> Fall:
        """Begin a fall in a session. The caller takes runs into it and closes it, all in the same step."""
        return Fall(self._registry, self._feed, session, by=by)

    def close(self, fall: Fall, *, admission: Decision | None = None) -> Ticket:
        """Finish t0: seat the next message, hand one Decision to the store, and start the task of t1 to t3.

        `admission` admits the message that takes over, and becomes part of the same Decision. The message has its seat
        or its place in the queue already.
        """
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
        """Let one run fall and return its fall; None if the run has ended already, or this control is closed."""
        if run.fallen or self._registry.closed or not may(run.state, Move.END):
            return None
        fall = self.open(run.session, by=cause.by)
        fall.add(run, cause, closing=closing)
        self.close(fall)
        return fall

    # t1 to t3

    async def _conclude(self, fall: Fall, ticket: Ticket) -> None:
        try:
            await self._end_and_drain(fall, ticket)
        # Something outside control cancelled this task. Publish the ending and complete the receipt all the same:
        # otherwise their waiters would wait for ever.
        except BaseException:
            if not fall.ended.is_set():
                self._tell(fall, durable=False, drained=False)
                self._crew.start(self._persist(fall, ticket), name=f"persist {fall.id}")
            if not fall.drained.is_set():
                self._drained(fall, [body for body in _all_of(fall) if not body.done.is_set()])
            self._crew.start(self._aftermath(fall), name=f"keep {fall.id}")
            raise
        await self._aftermath(fall)

    async def _aftermath(self, fall: Fall) -> None:
        """Have the completed receipt stored; then the fall and its runs leave memory."""
        await fall.stored.wait()
        self._complete.append(fall)
        if not self._storing:
            self._storing = self._crew.start(self._store_receipts(), name="receipts") is not None

    async def _store_receipts(self) -> None:
        """Store the completed receipts, as many in one Decision as have come together."""
        try:
            while self._complete:
                falls = list(self._complete)
                await self.keep(Decision(receipts=tuple(fall.receipt() for fall in falls)))
                del self._complete[: len(falls)]
                for fall in falls:
                    self._retire(fall)
        finally:
            self._storing = False

    async def _end_and_drain(self, fall: Fall, ticket: Ticket) -> None:
        verdict = await self._commit(fall, ticket)
        if verdict is not None:
            self._adopt(fall, verdict)
        bodies = _all_of(fall)
        if not fall.ended.is_set():
            self._tell(fall, durable=verdict is not None, drained=all(body.done.is_set() for body in bodies))
        # Endings of a session are published in order, so a later fall may already have published this one as not
        # durable.
        if verdict is None or not fall.durable:
            self._crew.start(self._persist(fall, ticket), name=f"persist {fall.id}")
        if fall.drain is Drain.PENDING:
            self._drained(fall, await self._drain(bodies))

    def _retire(self, fall: Fall) -> None:
        sessions = fall.sessions
        for run in fall.runs:
            # A run that has left memory does not refer to its fall: the two would be a cycle, left to the collector.
            run.outcome, run.fall = fall.told(run), None
            # The receipt of a parent still names the bodies of its children.
            if run.ties.parent is None:
                run.work.forget_bodies()
                run.limits.of_host(None)
            self._registry.retire(run)
        if fall.successor is not None:
            fall.successor.admittance.forget_takeover()
        self._registry.falls.pop(fall.id, None)
        for session in sessions:
            if session.falls is not None and fall in session.falls:
                session.falls.remove(fall)

    async def _commit(self, fall: Fall, ticket: Ticket) -> Verdict | None:
        """Return the store's verdict, or None if it has not taken the fall within COMMIT_SECONDS.

        Within the same time, wait for the acks of runs that fell before their ack, and for endings to be published
        before this one.
        """
        until = self._clock.now() + self._settings.commit_seconds
        verdict = None
        if await ticket.within(self._settings.commit_seconds) and ticket.inside:
            verdict = await ticket
        # The store soon says whether it has the newer message. If not, the ending must not name that message as
        # successor.
        if verdict is None and fall.successor is not None:
            await _all_set([fall.successor.admittance.acked], until + UNKEPT_SECONDS)
        ahead = [run.admittance.acked for run in fall.runs]
        # An earlier ending that is not public by then is published together with this one (`_tell`).
        ahead += [before.ended for before in earlier(fall)]
        await _all_set(ahead, until)
        return verdict

    def _adopt(self, fall: Fall, verdict: Verdict) -> bool:
        """Adopt endings that the store already had, because another node was first; return whether there were any."""
        found = {outcome.run_id: outcome for outcome in verdict.found}
        for run in fall.runs:
            if run.id in found:
                fall.adopt(run, found[run.id])
        return bool(found)

    def forsake(self, fall: Fall) -> None:
        """Take the successor's name out of the endings of a takeover whose message was not kept (race 134).

        No run of that name exists, so the endings say `unkept` instead. Endings that are public already are corrected.
        """
        assert fall.successor is not None
        for run in fall.runs:
            if run.outcome is None or run.outcome.superseded_by != fall.successor.id:
                continue
            fall.adopt(run, msgspec.structs.replace(run.outcome, superseded_by=None, unkept=True))
            if fall.ended.is_set():
                self._feed.publish(run.session.id, None, Correction(outcome=run.outcome))

    def _tell(self, fall: Fall, *, durable: bool, drained: bool) -> None:
        """Do t1 in one step: publish one terminal event per run, then the receipt.

        Earlier endings that are not public yet are published first, as not durable.
        """
        for before in earlier(fall):
            if isinstance(before, Fall) and not before.ended.is_set():
                self._tell(before, durable=False, drained=False)
        fall.publish(durable=durable)
        for run in fall.runs:
            self._seal(fall, run)
            run.ended.set()
        for session in fall.resets:
            self.begin_anew(session)
        if drained:
            self._mark_drained(fall, ())
        self._show_receipt(fall)
        fall.ended.set()
        if durable:
            fall.stored.set()

    def _seal(self, fall: Fall, run: LiveRun) -> None:
        """Publish a run's terminal event, and tell its parent's watchers at once, not when the child is drained.

        Where the parent has fallen, its own terminal event names the child: nothing of a run follows that event.
        """
        parent = run.ties.parent
        above = None if parent is None or parent.fallen else Outlet(parent, self._feed)
        if above is not None and not run.message_published:
            above.emit(Effect.CHILD, msgspec.structs.replace(delegated(run), outcome=None))
        Outlet(run, self._feed).seal(fall.terminal(run), fall.closed[run.id].blocks)
        if above is not None:
            above.emit(Effect.CHILD, delegated(run))
            run.ties.told_parent()

    def begin_anew(self, session: Session) -> None:
        """Let a session's transcript begin after everything published so far.

        A reset that ends something calls this in the step that publishes the last ending of the old transcript. So a
        caller who vanishes, or is itself part of what is reset, changes nothing.
        """
        count = self._registry.count(session.id)
        session.since = count.next()
        session.crashes = session.announced = 0
        self.store_until_in(Decision(sessions=(self._registry.session_row(session),), epochs=(count.row,)), session)

    def _show_receipt(self, fall: Fall) -> None:
        """Publish the whole receipt in the session of the fall, and in a child's session the part about its own run.

        With the whole receipt in every session, a stop of 1,600 runs took 16 seconds.
        """
        of: dict[Session, list[RunId]] = {fall.session: [run.id for run in fall.runs]}
        for run in fall.runs:
            if run.session is not fall.session:
                of.setdefault(run.session, []).append(run.id)
            if run.ties.detached and run.ties.home is not fall.session:
                of.setdefault(run.ties.home, []).append(run.id)
        for session, receipt in split(fall.receipt(), of).items():
            self._feed.publish(session.id, None, ReceiptData(receipt=receipt))

    async def _drain(self, bodies: Sequence[Body]) -> list[Body]:
        """Wait for bodies to end within their grace, then drop the others; return those that did not end in time."""
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
        """Do t3: complete the receipt, and publish it."""
        for body in left:
            body.abandon()
        self._mark_drained(fall, left)
        self._show_receipt(fall)

    def _mark_drained(self, fall: Fall, left: Sequence[Body]) -> None:
        """Complete the facts of a receipt.

        The receipt says `observed` only if control saw every body and every process of the fall end. A keeper reports a
        process as gone when the kernel does; a sent signal counts for nothing. A dropped body is over, because it is
        never resumed, but control did not see it end: the receipt then says `unconfirmed`, as it does when a wait ran
        out. Were `observed` said too early, a named hold would pass to the next run while a process of the old run
        still writes there (races 32 and 127).
        """
        abandoned = any(body.state is BodyState.ABANDONED for body in left)
        dropped = any(was_dropped(body) for body in fall.bodies)
        drain = Drain.UNCONFIRMED if abandoned or dropped else Drain.OBSERVED
        # Pass the named holds on only now: until here a body or a process of the runs could still use the held things.
        for run in fall.runs:
            self._registry.holds.drained(run, confirmed=drain is Drain.OBSERVED)
        fall.drain = drain
        fall.drained_at = fall.stamp()
        fall.drained.set()
        fall.record()

    async def _persist(self, fall: Fall, ticket: Ticket) -> None:
        """Hand a fall's Decision to the store until it is committed; publish corrections if it had other endings."""
        said = False
        while True:
            try:
                with anyio.move_on_after(self._settings.retry_seconds):
                    verdict = await ticket
                    break
                if await self._store.withdraw(ticket):
                    verdict = await ticket
                    break
            except Expelled:
                raise
            except StoreFailed as failure:
                if not said:
                    log.warning("an ending is not durable yet, and is tried again: %s", failure)
                said = True
                await anyio.sleep(self._settings.retry_seconds)
            # The first write was not committed, so the newer message is about to be withdrawn. Wait for that: the next
            # write does not admit the message, and must not name it as successor.
            if fall.successor is not None:
                await fall.successor.admittance.acked.wait()
            ticket = self._store.decide(fall.decision())
        fall.durable = True
        if self._adopt(fall, verdict):
            for outcome in verdict.found:
                session = next(run.session for run in fall.runs if run.id == outcome.run_id)
                self._feed.publish(session.id, None, Correction(outcome=outcome))
        fall.record()
        self._show_receipt(fall)
        fall.stored.set()

    def store_until_in(self, decision: Decision, session: Session | None = None) -> Ticket:
        """Hand a decision to the store in this step, and let a task try again until it is committed.

        Until then the session stays in memory, where the decision counts already.
        """
        ticket = self._store.decide(decision)
        pin = contextlib.nullcontext(session) if session is None else self._registry.pinned(session.id)
        # The pin is taken in this step: before the task begins, the session could be forgotten.
        pin.__enter__()
        self._crew.start(self._until_in(ticket, decision, pin), name="store until in")
        return ticket

    async def _until_in(
        self, ticket: Ticket, decision: Decision, pin: contextlib.AbstractContextManager[Session | None]
    ) -> None:
        try:
            if not await commit_in_time(self._store, ticket, self._settings.commit_seconds):
                await self.keep(decision)
        finally:
            pin.__exit__(None, None, None)

    async def keep(self, decision: Decision) -> None:
        """Hand a decision to the store again and again until it is committed, or this writer is expelled."""
        ticket = self._store.decide(decision)
        while not await commit_in_time(self._store, ticket, self._settings.commit_seconds):
            if isinstance(ticket.failure, Expelled):
                return
            await anyio.sleep(self._settings.retry_seconds)
            ticket = self._store.decide(decision)


def earlier(fall: Fall) -> list[Fall]:
    """Return the falls that are to be published before this one: earlier ones of its sessions, and its children's."""
    before: list[Fall] = []
    for session in fall.sessions:
        falls: list[Fall] = session.falls or []
        if fall in falls:
            before += falls[: falls.index(fall)]
    for run in fall.runs:
        before += run.ties.child_falls or ()
    return before


def _all_of(fall: Fall) -> list[Body]:
    """Return everything of a fall that may still run: its bodies and its containments."""
    return [*fall.bodies, *fall.containments]


async def _all_set(events: Sequence[Happening], until: float) -> None:
    """Wait for every event, at most until an instant; without a cancel scope if all are set, as they mostly are."""
    if all(event.is_set() for event in events):
        return
    with anyio.CancelScope(deadline=until):
        for event in events:
            await event.wait()


def _merge(fall: Decision, admission: Decision) -> Decision:
    """Return one Decision with the endings and the admission that caused them."""
    return msgspec.structs.replace(
        fall,
        sessions=tuple({row.id: row for row in (*fall.sessions, *admission.sessions)}.values()),
        admissions=fall.admissions + admission.admissions,
        keys=fall.keys + admission.keys,
    )
