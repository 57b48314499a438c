"""Reports: a detached child's ending comes to the session at the top of its tree (its home), as one message.

1. A report is admitted in the Decision that ends its child. With two commits a crash between them would lose the report
   or bring it twice (race 139). Its key is the child's id. From that step on the report waits in its home's queue, so a
   stop or a reset there voids it like any waiting message (race 137). A stop that ends the child together with its home
   makes no report.
2. A report is published, offered and due only when the child's ending is public and stored: no agent may read an ending
   that is not public. It does not wait for the drain.
3. A report takes over no turn. It is offered to the run at work in its home. If that run does not absorb it, the report
   has a turn of its own after everything that people and programs have sent (race 138).
4. A note is a report without a turn: it is published and ends in the same step, and the next turn reads it. So a note
   needs no table and no second kind of entry.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from interlock.agent.message import Child
from interlock.core.decision import RunRow
from interlock.core.names import Announce, Ending, RunId, RunKind
from interlock.core.outcome import Cause, Outcome
from interlock.core.projection import announcement
from interlock.core.takeover import report_kind
from interlock.core.values import MESSAGE_BYTES, Order
from interlock.runtime.arrival import Arrival
from interlock.runtime.ending import Endings
from interlock.runtime.fall import Fall, seat_next
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import RUN_SESSION, LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.session import Session


class Carrier(Protocol):
    """Takes an admitted message to its end."""

    def carry(self, run: LiveRun, *, admitted: bool = False) -> Coroutine[Any, Any, None]:
        """Wait for the seat, and go on from there."""
        ...


class Reporting(Inner):
    """Makes reports of detached children that fall, and brings them home."""

    def __init__(self, inside: Inside, *, stage: Carrier, inbox: Inbox, endings: Endings) -> None:
        super().__init__(inside)
        self._stage = stage
        self._inbox = inbox
        self._endings = endings
        endings.report = self.report

    def report(self, fall: Fall) -> None:
        """Make the reports of a fall, in its step; they are part of its Decision."""
        for child in fall.runs:
            # A child that fell in a stop or reset of its home is not reported there.
            if child.arrival.announce is None or fall.session is child.ties.home:
                continue
            assert child.outcome is not None
            report = self.report_of(
                child.row(), child.ties.home, child.outcome, to=child.ties.announce_to, order=child.arrival.order
            )
            if not self.may_report(report):
                continue
            fall.reports.append(report)
            # The report waits in the store for the next start.
            if self._registry.closing:
                continue
            self._queue(report)
            self._crew.start(self._bring(report, child, fall), name=f"report {child.id}")

    def report_of(
        self, child: RunRow, home: Session, outcome: Outcome, *, to: str | None, order: Order | None = None
    ) -> LiveRun:
        """Return the message that reports a child to its home, for the agent that the tree began with."""
        assert child.announce is not None
        # A run's own session has no second turn, so the report is a note.
        alone = home.id.startswith(RUN_SESSION)
        stopped = alone or outcome.ending is Ending.STOPPED
        report = LiveRun(
            RunId(self._registry.new_id("r")),
            home,
            # Without a deadline: the operator's counts.
            Arrival(
                principal=child.principal,
                text=announcement(outcome, child.agent or "", MESSAGE_BYTES),
                kind=report_kind(child.announce, in_a_row=in_a_row(home), stopped=stopped),
                method=RunKind.ANNOUNCE,
                key=child.id,
                admitted_at=self._clock.wall(),
                order=order,
                agent=to,
            ),
        )
        report.ties.announce(Child(run_id=child.id, outcome=outcome, text=outcome.text))
        return report

    def may_report(self, report: LiveRun) -> bool:
        """Return whether the principal of the child may still write in the session where its ending is announced."""
        return report.session.owner is not None and self._inbox.senders.may_send(report)

    def _queue(self, report: LiveRun) -> None:
        """Queue the report of a child's ending in its home. The Decision with that ending stores the report too.

        The report may not take the seat before the ending is public. Otherwise the agent would learn of the ending
        before watchers do.
        """
        self._registry.register(report)
        report.admittance.wait_for_ending()
        self._inbox.requeue(report)

    async def _bring(self, report: LiveRun, child: LiveRun, fall: Fall) -> None:
        await fall.ended.wait()
        await fall.stored.wait()
        # Read the outcome again: the store may have had another ending.
        told = fall.told(child)
        report.ties.announce(Child(run_id=child.id, outcome=told, text=told.text))
        await self._deliver(report)

    def resume(self, report: LiveRun) -> None:
        """Deliver a report that an earlier start admitted; its child's ending is public.

        Count the turns in a row anew: the earlier start may have made each report before the others were queued.
        """
        if report.arrival.kind is RunKind.ANNOUNCE:
            kind = report_kind(Announce.TURN, in_a_row=in_a_row(report.session), stopped=False)
            report.arrival = msgspec.structs.replace(report.arrival, kind=kind)
        self._queue(report)
        self._crew.start(self._deliver(report), name=f"report {report.arrival.key}")

    async def _deliver(self, report: LiveRun) -> None:
        if report.fallen or self._registry.closing:
            return
        Outlet(report, self._feed).introduce()
        if report.arrival.kind is RunKind.NOTE:
            self._endings.end(report, Cause(ending=Ending.COMPLETED))
            return
        self._offer(report)
        await self._stage.carry(report, admitted=True)

    def _offer(self, report: LiveRun) -> None:
        """Offer a report, whose ending is public now, to the run in the seat.

        If that run may not or does not take the report, the report waits for a turn of its own.

        As with any steer, the child's principal must have the right to stop that run: the report of a child that a
        writer began does not get into the owner's turn.
        """
        seated = report.session.seat
        same_agent = seated is not None and seated.arrival.agent == report.arrival.agent
        may_steer = seated is not None and self._inbox.senders.may_stop(report, seated)
        report.admittance.offer_to(seated if same_agent and may_steer else None)
        seat_next(self._registry, report.session)


def in_a_row(session: Session) -> int:
    """Return how many turns in a row announcements have begun in a session, with those that wait for a turn."""
    return session.announced + sum(other.arrival.kind is RunKind.ANNOUNCE for other in session.queue or ())
