"""The one way to end: `Fall.add` settles every run's ending and closes its fence (t0), whatever the cause.

1. The causes are completion, failure, stop, takeover, a passed limit, a parent's end, shutdown and loss. All of t0
   happens in one synchronous step: the ending is settled · the fence closes · if the run has the seat, the seat is free
   and the generation rises · readers elsewhere are told · the run's work is closed (`Work.close`): open questions go
   void, lines for holds are left, open tool calls are closed as skipped or interrupted, and if the agent had started,
   its bodies and processes are cut · the children fall, but for detached ones. Nothing in this file waits. What follows
   t0 is in `ending.py`: the ending becomes public (t1), the bodies and processes of the run end (t2), and the receipt
   is complete (t3).
2. A Fall holds all runs that fall in one step. A stop of a session ends the run in the seat, the messages that arrive
   or wait, and the detached children, as far as the caller may stop them. A takeover ends the run in the seat and the
   waiting messages that the sender may stop; announcements go on waiting. The children of each of these runs fall too.
   A Fall has one instant, one Decision and one receipt. The `cause` of a Fall is that of its first run; each run has an
   outcome of its own. A completed run has a receipt too.
3. A rollback marks the turn (`outcome.hidden`) and deletes nothing. `outcome.tools` names the tools of the turn whose
   bodies began, since their effects remain.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from interlock.agent.bodies import Body
from interlock.agent.flag import Flag
from interlock.core.decision import Decision, KeyRow, SessionRow, StopKey
from interlock.core.events import ChildEnd, Ended, Tool
from interlock.core.lifecycle import Move, may
from interlock.core.names import (
    CallId,
    Drain,
    Ending,
    LimitOf,
    Principal,
    ReceiptId,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Cause, Outcome, cause_of, passed_limit, settle
from interlock.core.projection import tool_words
from interlock.core.receipt import Receipt, shown, summed
from interlock.processes.base import Containment
from interlock.runtime.fallen import (
    Closed,
    begun,
    closed_rows,
    fallen,
    listed,
    names_of,
    tool_rows,
    totals,
    with_children,
)
from interlock.runtime.feed import Feed
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import Registry
from interlock.runtime.session import Session
from interlock.runtime.settings import TOOLS_LISTED

if TYPE_CHECKING:
    from interlock.runtime.spawning import Spawned

log = logging.getLogger("interlock")

WITH_PARENT = Cause(ending=Ending.PARENT_ENDED)
BY_ITS_LIMIT = Cause(ending=Ending.PARENT_ENDED, limit_of=LimitOf.PARENT)


class Fall:
    """The runs that fall in one synchronous step, and their one receipt."""

    def __init__(self, registry: Registry, feed: Feed, session: Session, *, by: Principal | None) -> None:
        self.id = ReceiptId(registry.new_id("f"))
        self.session = session
        self.by = by
        self.cause: Cause | None = None
        self.runs: list[LiveRun] = []
        self._below: dict[LiveRun, list[LiveRun]] = {}  # of `runs`: children, by parent
        self.closed: dict[RunId, Closed] = {}
        self.detached_ended: list[Spawned] = []  # detached processes that a stop of their session ended
        self.resets: list[Session] = []  # sessions whose transcripts begin anew after this fall
        # The keys of runs that fell before their ack. They are stored with the endings, so that a sender who tries
        # again under the same key is told how the run ended.
        self.keys: list[KeyRow] = []
        # The announcements of this fall's detached children. They are admitted in the Decision that ends the children:
        # with two commits, a crash in between would lose an announcement, or make it twice (race 139).
        self.reports: list[LiveRun] = []
        # The message that takes over, if that is the cause. The Decision of this fall admits it.
        self.successor: LiveRun | None = None
        self.stops: tuple[StopKey, ...] = ()  # the key of the stop that made this fall, stored with what it ended
        self.durable = True
        self.drain = Drain.PENDING
        self.fenced_at, self._fenced_mono = feed.clock.wall(), feed.clock.now()
        self.ended_at: float | None = None
        self.drained_at: float | None = None
        self.ended = Flag()
        self.drained = Flag()
        self.stored = Flag()  # set when the endings are in the store
        self._recorded: Receipt | None = None  # the receipt as it was last built
        self._registry = registry
        self._feed = feed

    def stamp(self) -> float:
        """Return the time of day at t0 plus the monotonic time since; it does not jump when the clock is set."""
        return self.fenced_at + (self._feed.clock.now() - self._fenced_mono)

    # t0

    def add(self, run: LiveRun, cause: Cause, *, closing: str | None = None, at: float = math.inf) -> None:
        """Let a run fall; a run that has fallen already is left alone.

        A passed limit beats the cause given (`settle`). `closing` is the text that the agent returned. If the run falls
        because a limit of its parent passed, `at` is the instant of that limit, and the run is settled as of `at`. So
        the run's own limit counts only if it passed at or before `at`, even if a slow loop handles both late.
        """
        if run.fallen or not may(run.state, Move.END):
            return
        was_started = run.state.started
        limits = [run.limits.limit_now(limit) for limit in run.limits.armed]
        # If the agent in a host has returned, use the instant of its return, even if control reads of it later.
        now = min(at, self._feed.clock.now() if run.limits.returned is None else run.limits.returned)
        passed = passed_limit(now, limits)
        settled = settle(cause, now=now, limits=limits, phase=run.doing)
        # This line closes the run's fence. Every verb of an agent tests the fence in the step that admits its effect,
        # so from here on no effect of this run is admitted, even if the agent ignores every cancel. Nothing between
        # here and the end of the step awaits, so no other code sees a fallen run that still has its seat, an open
        # question or a current child. With an await in here a second cause could settle the run again (races 17 to 21),
        # an Allow could start a tool of the fallen run (race 52), a child could begin below it (race 44), and the next
        # message could be seated while this run still has the seat (races 25 and 26). A stop is answered only after
        # this step.
        run.fence.fall(settled)
        self.cause = self.cause or settled
        decided = not run.state.undecided
        # Count the waiting messages that this fall ends early. A note also ends while it is queued, but as completed,
        # so it is not counted.
        queued = settled.early and run.ties.parent is None and run.state.waits
        run.move(Move.END)
        run.fall = self
        # True if the run was never seated and the store has no row of its session. The text of such a run is shown to
        # nobody: the session has no certain owner yet, and a sender admitted later may become the owner, who must not
        # read the text.
        run.withheld = run.session.loaded and not run.session.stored and run.generation is None
        self.runs.append(run)
        if run.ties.parent is not None:
            self._below.setdefault(run.ties.parent, []).append(run)
        if run.session.seat is run:
            self._registry.unseat(run)
            self._registry.generations.rise(run.session.id)
        self._registry.dequeue(run)
        self._registry.unlink(run)
        self._before_parent(run)
        run.limits.disarm()
        # No buffer is searched: deltas that wait in one read this mark, and are not told (races 9 and 10).
        # Readers elsewhere cannot read it, and are told of the fall now.
        self._feed.fell(run.session.id, run.fence)
        blocks = self._close_reply(run, settled, closing)
        self.closed[run.id] = Closed(
            blocks, *run.work.close(run.id, self._registry.holds, started=was_started), queued, decided
        )
        run.outcome = self._outcome(run, settled)
        if not run.admittance.acked.is_set() and (key := run.key_row()) is not None:
            self.keys.append(key)
        # A run that was never seated is no part of the conversation: the next turn is not told of it.
        if run.generation is not None:
            run.session.previous = run.outcome
            # The server did not go down with this run, so the session's crashes in a row are over.
            if settled.ending is not Ending.LOST:
                run.session.crashes = 0
        run.seated_or_over.set()
        self._take_along(run, settled, at if passed is None else passed.at)

    def _before_parent(self, run: LiveRun) -> None:
        """If the run's parent has not fallen yet, add this fall to `parent.child_falls`.

        So the parent's ending is published after this fall's, and the parent is drained only when this fall is drained.
        The tools that a child began count as begun by the parent, unless the child is detached.
        """
        parent = run.ties.parent
        if parent is None or parent.fallen:
            return
        if not run.ties.detached:
            parent.work.count_begun(run.work)
        parent.ties.child_fell(self)

    def _take_along(self, run: LiveRun, settled: Cause, at: float) -> None:
        """Let all that is part of a run fall in the same step: its children, and a message being added to it.

        `at` is the instant at which a limit of the run, or of a parent above it, passed; infinity if none did. The
        children are settled as of `at`, or as of now if that is earlier.
        """
        with_parent = WITH_PARENT if settled.limit_of is None else BY_ITS_LIMIT
        for child in tuple((run.ties.children or {}).values()):
            if not child.ties.detached:
                self.add(child, with_parent, at=at)
        if run.ties.collection is not None and run.ties.collection.merging is not None:
            self.add(run.ties.collection.merging, settled)

    def sweep(self, running: Sequence[Spawned], cause: Cause) -> None:
        """End detached processes with this fall, in the same step."""
        self.cause = self.cause or cause
        for process in running:
            process.end()
            self.detached_ended.append(process)

    def _close_reply(self, run: LiveRun, cause: Cause, closing: str | None) -> tuple[str, ...]:
        """Return the blocks that complete a completed run's reply; any other ending leaves the open block as `cut`.

        A returned text that begins with the open deltas takes their place: an agent may stream its reply and then
        return the whole, and the reply is there once. Otherwise the open deltas become a block, and the text another.
        """
        if cause.ending is not Ending.COMPLETED:
            return ()
        unfinished = run.reply.open
        blocks = [unfinished] if unfinished and not (closing or "").startswith(unfinished) else []
        blocks += [closing] if closing else []
        for text in blocks:
            run.reply.close(text)
        return tuple(blocks)

    def _outcome(self, run: LiveRun, cause: Cause) -> Outcome:
        previous = run.session.previous
        # The next turn's agent learns from `previous.tools` which tools of a rolled-back turn had begun. If that next
        # run never starts, its own outcome carries the names on to the turn after it.
        undone = previous.tools if previous is not None else ()
        return Outcome(
            run_id=run.id,
            ending=cause.ending,
            text=run.reply.text,
            by=cause.by,
            superseded_by=cause.superseded_by,
            phase=cause.phase,
            limit_ms=cause.limit_ms,
            limit_of=cause.limit_of,
            error=cause.error,
            error_kind=cause.error_kind,
            hidden=cause.hidden,
            typed=cause.typed,
            born_stopped=cause.born_stopped,
            tools=names_of(undone, begun(run)) if cause.hidden else undone if run.started_at is None else (),
            started_at=run.started_at,
            ended_at=self.fenced_at,
        )

    @property
    def containments(self) -> list[Containment]:
        """The containments of these runs, of their children that fell before them, and of the processes in `swept`.

        `swept` are the detached processes that this fall ended.
        """
        of_runs = [containment for run in with_children(self.runs) for containment in run.work.containments]
        return [*of_runs, *(process.containment for process in self.detached_ended)]

    @property
    def bodies(self) -> list[Body]:
        """The bodies of these runs, and of their children that fell before them."""
        return [body for run in with_children(self.runs) for body in run.work.bodies or ()]

    @property
    def sessions(self) -> list[Session]:
        """The sessions that this fall touches: its own, those of fallen children, and the homes of detached ones."""
        if len(self.runs) == 1 and self.runs[0].session is self.session and not self.runs[0].ties.detached:
            return [self.session]
        touched = {self.session: None}
        touched.update((run.session, None) for run in self.runs)
        touched.update((run.ties.home, None) for run in self.runs if run.ties.detached)
        return list(touched)

    def seat_next(self) -> None:
        """Give each free seat to the first message that waits for it, in the same step."""
        for session in self.sessions:
            seat_next(self._registry, session)

    def adopt(self, run: LiveRun, found: Outcome) -> None:
        """Replace a run's outcome by the one that counts.

        `found` is another ending that the store already had; or the same ending marked `unkept`, if the store did not
        keep the message that took over.
        """
        if run.session.previous is not None and run.session.previous.run_id == run.id:
            run.session.previous = found
        if run is self.runs[0]:
            self.cause = cause_of(found)
        run.outcome = found
        self._recorded = None

    # The Decision, the terminal events and the receipt

    def decision(self) -> Decision:
        """Return this fall as one transaction."""
        decided = {run.session.id for run in self.runs if self.closed[run.id].decided}
        sessions: dict[SessionId, SessionRow] = {}
        for run in self.runs:
            # If the store does not know the session yet, write its row only if the inbox has decided on one of its
            # messages. The sender of that message was told of a run and owns the session. A message that was stopped
            # before the inbox decided on it must not create the session: its sender could still be refused, and would
            # own the session nevertheless.
            founded = run.session.stored or run.session.id in decided
            if run.session.owner is not None and founded:
                sessions[run.session.id] = self._registry.session_row(run.session)
        return Decision(
            sessions=tuple(sessions.values()),
            admissions=tuple(report.row() for report in self.reports),
            endings=tuple(run.row() for run in self.runs),
            keys=(*self.keys, *(key for report in self.reports if (key := report.key_row()) is not None)),
            stops=self.stops,
            tools=tuple(row for run in self.runs for row in tool_rows(run)),
            questions=tuple(row for run in self.runs for row in closed_rows(run)),
            receipts=(self.record(),),
            aliases=tuple((part.id, run.id) for run in self.runs for part in run.ties.absorbed or ()),
        )

    def terminal(self, run: LiveRun) -> Ended:
        """Return a run's terminal event."""
        assert run.outcome is not None
        return Ended(
            outcome=run.outcome,
            cut=run.reply.open,
            tools=tuple(_without_results(run, run.outcome)),
            void=self.closed[run.id].void,
            children=tuple(self._children_of(run)),
        )

    def _children_of(self, run: LiveRun) -> Iterator[ChildEnd]:
        """Yield the children whose endings no `child` event told.

        Such children fell with this run, or their endings were not public yet when this run fell.
        """
        before = (child for fall in run.ties.child_falls or () for child in fall.runs if child.ties.parent is run)
        for child in (*self._below.get(run, ()), *before):
            if not child.ties.announced and child.outcome is not None:
                yield ChildEnd(child=child.id, agent=child.arrival.agent or "", ending=child.outcome.ending)

    def told(self, run: LiveRun) -> Outcome:
        """Return a run's outcome, with `drained` and `durable` as they are now."""
        assert run.outcome is not None
        return msgspec.structs.replace(run.outcome, drained=self.drained.is_set(), durable=self.durable)

    def record(self) -> Receipt:
        """Build the receipt from the facts as they are now.

        A fall is recorded at t0 and when it is drained. Between the two only `publish` changes what the receipt says,
        unless a caller asks. From t3 on the receipt is what was published and stored.
        """
        assert self.cause is not None
        head = Receipt(
            id=self.id,
            session=self.session.id,
            cause=self.cause.ending,
            by=self.by,
            fenced_at=self.fenced_at,
            ended_at=self.ended_at,
            drained_at=self.drained_at,
            drain=self.drain,
            durable=self.durable,
        )
        runs = [fallen(run, self.told(run), self.closed[run.id], self.detached_ended) for run in self.runs]
        tools = tuple(tool for run in self.runs for tool in listed(run))[:TOOLS_LISTED]
        # The detached processes that a stop ended belong to none of its runs.
        beside = (totals([each.containment for each in self.detached_ended]),) if self.detached_ended else ()
        self._recorded = summed(head, runs, tools, *beside)
        return self._recorded

    def publish(self, *, durable: bool) -> None:
        """Note that the endings are public now, and whether the store has them."""
        self.durable = durable
        self.ended_at = self.stamp()
        for run in self.runs:
            assert run.outcome is not None
            run.outcome = msgspec.structs.replace(run.outcome, durable=durable)
        if self._recorded is not None:
            self._recorded = msgspec.structs.replace(self._recorded, ended_at=self.ended_at) if durable else None

    def receipt(
        self, *, aborted: bool = False, already: Ending | None = None, runs: Sequence[LiveRun] | None = None
    ) -> Receipt:
        """Return the receipt as it was last recorded; where `runs` are given, the part about these alone."""
        whole = self._recorded or self.record()
        part = whole if runs is None else shown(whole, [run.id for run in runs])
        told = aborted or already is not None
        return msgspec.structs.replace(part, aborted=aborted, already=already) if told else part


def seat_next(registry: Registry, session: Session) -> LiveRun | None:
    """Give a session's seat, if it is free, to the first waiting message that may take it; return that message's run.

    Every waiting message gets its seat here, in one step, and a taken seat is never given. So no message is seated
    twice, and the late end of an old run cannot seat a message while a newer run has the seat (races 25 and 26).
    """
    if session.seat is not None or registry.closing or session.parked or not session.queue:
        return None
    if registry.recovering and registry.gate_of(session) is not None:
        return None
    # A stop is about to decide: what waits here must not begin behind its answer. The stop calls this function again.
    if session.reading:
        return None
    run = next((run for run in session.queue if run.admittance.due), None)
    # A collecting message is not seated until its quiet time is over. The inbox then calls this function again.
    if run is None or (run.ties.collection is not None and not run.ties.collection.ready):
        return None
    session.queue.remove(run)
    registry.seat(run)
    return run


def without_result(call_id: CallId, name: str, state: ToolState, outcome: Outcome) -> Tool:
    """Return the event of a tool call that its run's end left without a result."""
    return Tool(call_id=call_id, name=name, state=state, error=tool_words(state, outcome))


def _without_results(run: LiveRun, outcome: Outcome) -> Iterator[Tool]:
    for call in (run.work.calls or {}).values():
        yield without_result(call.id, call.name, call.state, outcome)
