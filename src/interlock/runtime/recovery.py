"""Recovery: settle what an earlier start of the server left, before anything new is accepted.

1. A run that had begun is `lost`. It is put back on its seat as the log tells it (text, tool calls, questions), with a
   body that is already gone, and falls by `Fall.add`: the same Decision, terminal event and receipt as any other
   fall. So recovery has no second set of rules for endings. Nothing that the run started is started again.
2. A message that was accepted and had not begun goes back into the queue, in order and under its own id.
3. An ending that the store or the log has is the true one. Recovery publishes it if the log lacks it, and stores it if
   the store lacks it.
4. Recovery may be killed and done again: a settled run is not found unsettled a second time (race 82).
5. The store records a clean end of a start (`Store.clean`). Only after any other end does recovery look for leftover
   processes, and publish a `gap`.
6. A session during whose runs the server went down CRASHES times in a row is parked: it takes no message until it is
   reset.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from interlock.core.answers import Sent
from interlock.core.decision import Decision, RunRow
from interlock.core.events import (
    ChildEnd,
    Ended,
    Event,
    Gap,
    Json,
    ReceiptData,
    Tool,
)
from interlock.core.lifecycle import Move, State
from interlock.core.names import (
    LOCAL,
    PASSING,
    REPORTS,
    BodyState,
    CallId,
    Drain,
    Effect,
    Ending,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Cause, Outcome
from interlock.core.receipt import Receipt, Totals, split
from interlock.core.story import BETWEEN, OPEN_CALLS, Conversation, Story
from interlock.processes.base import Processes
from interlock.runtime.arrival import Arrival
from interlock.runtime.ending import Endings
from interlock.runtime.fall import seat_next, without_result
from interlock.runtime.feed import whole_log
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import RUN_SESSION, LiveRun
from interlock.runtime.outlet import Outlet, tell_again
from interlock.runtime.registry import Session
from interlock.runtime.reporting import Reporting
from interlock.runtime.settings import CRASHES, RECOVERED
from interlock.runtime.stage import Stage
from interlock.runtime.ties import Child, Collection
from interlock.runtime.work import Question, ToolCall
from interlock.stores.base import Ticket, read

log = logging.getLogger("interlock")


class Gone:
    """The body of a run whose server is gone."""

    name = "the server that ran it"
    grace = 0.0
    state = BodyState.KILLED

    def __init__(self, *, seen: bool) -> None:
        self.done = asyncio.Event()
        # Without `seen`, processes of the run may still be there: the body never counts as done, and is abandoned.
        if seen:
            self.done.set()

    def cut(self) -> None:
        """Do nothing: the body is gone."""

    def drop(self) -> None:
        """Do nothing: the body is gone."""

    def abandon(self) -> None:
        """Become `abandoned`, so that the receipt names the body as not seen to end."""
        self.state = BodyState.ABANDONED


class Recovery(Inner):
    """Settles what an earlier start left unsettled."""

    def __init__(
        self,
        inside: Inside,
        *,
        endings: Endings,
        inbox: Inbox,
        stage: Stage,
        reporting: Reporting,
        processes: Processes,
    ) -> None:
        super().__init__(inside)
        self._endings = endings
        self._inbox = inbox
        self._stage = stage
        self._reporting = reporting
        self._processes = processes
        self._swept = True
        self._insisted: list[Ticket] = []
        self._gaps: set[SessionId] = set()
        self._reports: list[LiveRun] = []
        self._homes = contextlib.ExitStack()  # pins the homes of `_reports` in memory until those are queued

    async def settle(self) -> None:
        """Settle everything that an earlier start left; return when every ending is public.

        The first step closes every seat: `seat_next` gives none while `settling` is set, and control accepts nothing
        before this method returns. So no run begins while an old run is unsettled: a message that was accepted before
        the crash does not run before the lost run of its session has ended (race 81), and no client finds a run that
        says `running` for ever (race 80). Then the processes that the last server left are ended, before any receipt
        says whether they are gone (race 67). If recovery fails, the next start finds the same runs and settles them.
        """
        self._registry.recovering = True
        if not self._store.clean:
            self._swept = await self._end_leftovers()
        unsettled = list(await read(self._store.unsettled()))
        if unsettled and not self._store.clean:
            log.warning("the last start was cut short; sessions settled now: %d", len(unsettled))
        # Runs that had begun, a parent before its children, so that the children fall with it.
        living: dict[RunId, LiveRun] = {}
        for session_id in unsettled:
            await self._take_up(session_id, living)
        lost = list(living.values())
        for first in range(0, len(lost), RECOVERED):
            falls = [self._endings.end(run, Cause(ending=Ending.LOST)) for run in lost[first : first + RECOVERED]]
            # A run without a fall of its own fell with its parent.
            for fall in falls:
                if fall is not None:
                    await fall.ended.wait()
        await self._complete_receipts(self._swept)
        for ticket in self._insisted:
            await ticket.within(self._settings.commit_seconds)
        self._insisted.clear()
        # Every child's ending is public, so its report may be offered.
        for report in self._reports:
            self._reporting.resume(report)
        self._reports.clear()
        self._homes.close()
        self._registry.recovering = False
        for session in list(self._registry.sessions.values()):
            seat_next(self._registry, session)

    async def _end_leftovers(self) -> bool:
        """End processes that the last start left; return whether control saw that none is left."""
        try:
            # The helper ends these processes before it says that it is ready.
            machine = await self._processes.ready()
        except Exception as error:
            log.warning("processes that an earlier start left could not be looked for: %s", error)
            return False
        return not machine.left

    # One session

    async def _take_up(self, session_id: SessionId, living: dict[RunId, LiveRun]) -> None:
        """Put a session's unsettled runs back; add those that had begun to `living`, to fall as lost."""
        rows = await read(self._store.unsettled_runs(session_id))
        if not rows:
            return
        events = await whole_log(self._feed.log, session_id)
        told = Conversation()
        for event in events:
            told.take(event)
        stories = told.stories
        async with self._counted(session_id, rows[0].home or session_id) as session:
            await self._load(session)
            await self._tell_gap(session_id, events)
            began = len(living)
            for row in rows:
                story = stories.get(row.id, Story())
                if row.outcome is not None:
                    await self._tell_again(row, story)
                elif story.outcome is not None:
                    # A receipt of another session's fall: the run fell with its home, for example.
                    own = story.receipt is None or story.receipt.session == session_id
                    reports = await self._report_again(row, story.outcome) if own else ()
                    await self._keep_told(row, story.outcome, story.receipt if own else None, reports)
                elif row.started or row.parent is not None:
                    living[row.id] = await self._bring_back(session, row, story, living)
            # A run's own session takes no further message, so it need not be parked.
            if len(living) > began and not session_id.startswith(RUN_SESSION):
                session.crashes += 1
                if session.parked:
                    log.error("session %s is parked: the server went down %d times with it", session_id, CRASHES)
            await self._readmit(session, [row for row in rows if _waits(row, stories)], stories)

    async def _tell_gap(self, session_id: SessionId, events: Sequence[Event] | None = None) -> None:
        """Publish a `gap`, once per session: the last events before the crash may be missing."""
        if self._store.clean or session_id in self._gaps:
            return
        self._gaps.add(session_id)
        if events is None:
            events = await whole_log(self._feed.log, session_id)
        # Deltas are written apart from decisions, so a stored delta does not show that the events before it are stored.
        lasting = (event.position for event in events if event.kind not in PASSING)
        self._feed.publish(session_id, None, Gap(after=max(lasting, default=0)))

    async def _bring_back(self, session: Session, row: RunRow, story: Story, living: dict[RunId, LiveRun]) -> LiveRun:
        """Return a run that had begun, on its seat, as the store and the log know it."""
        with self._registry.pinned(row.home or session.id) as home:
            await self._load(home)
            run = await self._live(session, row, living.get(row.parent) if row.parent is not None else None)
            run.ties.home, run.ties.parent_id = home, row.parent
            if run.arrival.announce is not None:
                run.ties.announce_to = await self._agent_above(row)
            await self._put_in_place(run, row, story)
        return run

    async def _agent_above(self, row: RunRow) -> str | None:
        """Return the agent of the run at the top of a child's tree."""
        above: RunRow | None = row
        while above is not None and above.parent is not None:
            above = await read(self._store.run(above.parent))
        return None if above is None else above.agent

    async def _put_in_place(self, run: LiveRun, row: RunRow, story: Story) -> None:
        session = run.session
        # A run's message is published before the run begins. Its event may be gone: the log may have been pruned.
        run.message_published = True
        # The session's generation rose when this run took the seat, and has not risen since.
        run.generation = self._registry.generations.get(session.id)
        run.started_at = story.started_at or row.admitted_at
        run.work.bodies = [Gone(seen=self._swept)]
        for block in story.blocks:
            run.reply.close(block)
        for delta in story.open:
            run.reply.add(delta)
        run.work.calls = await self._open_calls(run, row, story)
        run.work.questions = {each.id: each for each in await self._open_questions(run)}
        self._registry.register(run)
        if session.seat is None:
            session.seat = run
        run.move(Move.SEAT)
        run.move(Move.START)
        run.admittance.sent = Sent(run_id=run.id, session=session.id, generation=run.generation)
        run.admittance.acked.set()
        run.seated_or_over.set()

    async def _live(self, session: Session, row: RunRow, parent: LiveRun | None) -> LiveRun:
        method, digest = "send", ""
        if row.key is not None:
            key = (await read(self._store.load(session.id, principal=row.principal, key=row.key))).key
            method, digest = (method, digest) if key is None else (key.method, key.digest)
        return LiveRun(
            row.id,
            session,
            Arrival(
                principal=row.principal,
                text=row.text,
                kind=row.kind,
                method=method,
                key=row.key,
                digest=digest,
                deadline=row.deadline,
                admitted_at=row.admitted_at,
                agent=row.agent,
                instructions=row.instructions,
                announce=row.announce,
            ),
            parent=parent,
            detached=row.detached,
        )

    async def _open_calls(self, run: LiveRun, row: RunRow, story: Story) -> dict[CallId, ToolCall]:
        """Return the calls without a result. The store decides whether a call had begun, whatever the log says.

        A call that is missing in the log is published first, so that the log has no result without its call.
        """
        calls = {tool.call_id: _call(tool.call_id, tool) for tool in story.calls.values() if tool.state in OPEN_CALLS}
        begun: dict[str, None] = {}
        for kept in await read(self._store.tools(row.id)):
            begun[kept.name] = None
            if kept.call_id not in story.calls and kept.state in OPEN_CALLS:
                told = Tool(call_id=kept.call_id, name=kept.name, state=ToolState.PENDING, arguments=kept.arguments)
                Outlet(run, self._feed).emit(Effect.TOOL, told)
                calls[kept.call_id] = _call(kept.call_id, told)
            if kept.call_id in calls and kept.state is not ToolState.PENDING:
                calls[kept.call_id].state = ToolState.RUNNING
        run.work.begun = begun
        return calls

    async def _open_questions(self, run: LiveRun) -> list[Question]:
        opened = []
        for row in await read(self._store.questions(run.id)):
            if row.state is QuestionState.OPEN:
                opened.append(Question(row.id, run, row.text, row.choices))
        return opened

    # Messages that had not begun

    async def _readmit(self, session: Session, rows: list[RunRow], stories: dict[RunId, Story]) -> None:
        """Queue accepted messages again: first the one that had the seat, then the others in their order."""
        for row in sorted(rows, key=lambda row: row.generation is None):
            run = await self._live(session, row, None)
            story = stories.get(row.id, Story())
            run.message_published = _introduced(story)
            if row.kind in REPORTS:
                await self._read_report(run)
                continue
            self._registry.register(run)
            parts = await read(self._store.parts(row.id))
            if parts:
                run.ties.collection = Collection(until=self._clock.now())
                run.ties.collection.quiet_over = True
            absorbed = {message.of for message in story.messages}
            for part in parts:
                await self._put_back(part, run, told=part.id in absorbed)
            self._stage.resume(run)
            if not run.message_published:
                Outlet(run, self._feed).introduce()

    async def _read_report(self, report: LiveRun) -> None:
        """Fill a report with the ending of its child, and put it aside until every ending is public."""
        child = await read(self._store.run(RunId(report.arrival.key or "")))
        if child is not None and child.outcome is not None:
            report.ties.announces = Child(run_id=child.id, outcome=child.outcome, text=child.outcome.text)
        self._put_aside(report)

    def _put_aside(self, report: LiveRun) -> None:
        self._homes.enter_context(self._registry.pinned(report.session.id))
        self._reports.append(report)

    async def _report_again(self, row: RunRow, outcome: Outcome) -> tuple[LiveRun, ...]:
        """Make the report of a child whose ending is in the log and not in the store: the same Decision held both.

        Make none if the store has a report of the child: a stop of its home has voided that report. Make none for a
        stopped child either: without the receipt in the log, the child may have been stopped together with its home.
        """
        if row.announce is None or row.home is None or outcome.ending is Ending.STOPPED:
            return ()
        if any(each.kind in REPORTS and each.key == row.id for each in await read(self._store.runs(row.home))):
            return ()
        with self._registry.pinned(row.home) as home:
            await self._load(home)
            report = self._reporting.report_of(row, home, outcome, to=await self._agent_above(row))
            if not self._inbox.may_report(report):
                return ()
            self._put_aside(report)
        return (report,)

    async def _load(self, session: Session) -> None:
        if not session.loaded:
            self._inbox.load(session, await read(self._store.load(session.id, principal=LOCAL, key=None)))

    async def _put_back(self, row: RunRow, into: LiveRun, *, told: bool) -> None:
        """Add a message again to the waiting turn into which it was collected."""
        part = await self._live(into.session, row, None)
        self._registry.register(part)
        part.admittance.sent = Sent(run_id=into.id, session=into.session.id, state=State.QUEUED)
        part.admittance.acked.set()
        self._registry.absorb(part, into)
        assert into.ties.collection is not None
        into.ties.collection.parts.append(part)
        if into.message_published and not told:
            Outlet(into, self._feed).introduce_part(part)

    # Endings that stand

    async def _tell_again(self, row: RunRow, story: Story) -> None:
        """Publish an ending that the store has and the log has not: the same ending, with the calls it left open."""
        assert row.outcome is not None
        if story.outcome is not None:
            await self._keep_told(row, row.outcome)
            return
        kept = {tool.call_id: tool for tool in await read(self._store.tools(row.id))}
        results = []
        for call in story.calls.values():
            if call.state in OPEN_CALLS:
                began = call.call_id in kept and kept[call.call_id].state is not ToolState.SKIPPED
                state = ToolState.INTERRUPTED if began else ToolState.SKIPPED
                results.append(without_result(call.call_id, call.name, state, row.outcome))
        void = [q.id for q in await read(self._store.questions(row.id)) if q.state is QuestionState.VOID]
        ended = Ended(
            outcome=row.outcome,
            cut=row.cut,
            tools=tuple(results),
            void=tuple(question for question in void if _was_open(story, question)),
            children=tuple(await self._children(row, story)),
        )
        said, blocks = _introduced(story) or row.started, _unsaid(row.outcome, story)
        tell_again(self._feed, row, ended, said=said, blocks=blocks)
        receipt = await read(self._store.receipt(row.id))
        # A receipt that is still pending is published when `_complete_receipts` completes it.
        if receipt is not None and receipt.drain is not Drain.PENDING:
            self._feed.publish(row.session, None, ReceiptData(receipt=receipt))

    async def _children(self, row: RunRow, story: Story) -> list[ChildEnd]:
        """Return the children whose endings have no event in the run's own stream."""
        home = row.home or row.session
        told = {child for child, data in story.children.items() if data.outcome is not None}
        return [
            ChildEnd(child=child.id, agent=child.agent or "", ending=child.outcome.ending)
            for child in await read(self._store.runs(home, tree=True))
            if child.parent == row.id and child.outcome is not None and child.id not in told
        ]

    async def _keep_told(
        self, row: RunRow, outcome: Outcome, proof: Receipt | None = None, reports: tuple[LiveRun, ...] = ()
    ) -> None:
        """Store an ending that the log tells, with its receipt and the announcements that belong to it."""
        tools = await read(self._store.tools(row.id))
        told = Decision(
            admissions=tuple(report.row() for report in reports),
            keys=tuple(key for report in reports if (key := report.key_row()) is not None),
            endings=(msgspec.structs.replace(row, outcome=outcome),),
            told=(row.id,),
            tools=tuple(
                msgspec.structs.replace(tool, state=ToolState.INTERRUPTED)
                for tool in tools
                if tool.state in OPEN_CALLS and outcome.ending is not Ending.COMPLETED
            ),
            receipts=() if proof is None else (proof,),
        )
        self._insisted.append(self._endings.insist(told))

    # Receipts

    async def _complete_receipts(self, swept: bool) -> None:
        """Complete the receipts that were still pending: the code they waited for went down with the server."""
        for receipt in await read(self._store.pending_receipts()):
            if receipt.id in self._registry.falls:
                continue
            done = _completed(await self._as_told(receipt), self._clock.wall(), swept)
            for session_id, (home_id, shown) in (await self._shares(done)).items():
                async with self._counted(session_id, home_id):
                    # The crash may have taken an event with this receipt from the session's log.
                    await self._tell_gap(session_id)
                    self._feed.publish(session_id, None, ReceiptData(receipt=shown))
            # Store the receipt after publishing it: the transaction takes the published events along.
            self._insisted.append(self._endings.insist(Decision(receipts=(done,))))

    @contextlib.asynccontextmanager
    async def _counted(self, session_id: SessionId, home_id: SessionId) -> AsyncGenerator[Session, None]:
        """Keep a session and its home in memory while events are published there; its home's epoch numbers them."""
        with self._registry.pinned(session_id) as session, self._registry.pinned(home_id) as home:
            session.home = None if home is session else home
            await self._load(home)
            yield session

    async def _as_told(self, receipt: Receipt) -> Receipt:
        """Return a receipt as the log has it: only there are the time of the public end and the refused effects."""
        log_of_it = [] if receipt.session is None else await whole_log(self._feed.log, receipt.session)
        proofs = [event.data.receipt for event in log_of_it if isinstance(event.data, ReceiptData)]
        return next((told for told in reversed(proofs) if told.id == receipt.id), receipt)

    async def _shares(self, receipt: Receipt) -> dict[SessionId, tuple[SessionId, Receipt]]:
        """Return a receipt by session: whole for the session of the fall, for others the part about their runs.

        With each comes its home.
        """
        of: dict[SessionId, list[RunId]] = {}
        homes: dict[SessionId, SessionId] = {}
        for fallen in receipt.runs:
            row = await read(self._store.run(fallen.id))
            if row is not None and row.home is not None:
                homes[row.session] = row.home
            for session_id in () if row is None else (row.session, row.home if row.detached else None):
                if session_id is not None:
                    of.setdefault(session_id, []).append(fallen.id)
        shares = split(receipt, of)
        if receipt.session is not None:
            shares[receipt.session] = receipt
        return {session_id: (homes.get(session_id, session_id), shown) for session_id, shown in shares.items()}


def _waits(row: RunRow, stories: dict[RunId, Story]) -> bool:
    told = stories.get(row.id)
    return row.outcome is None and not row.started and row.parent is None and (told is None or told.outcome is None)


def _introduced(story: Story) -> bool:
    """Return whether the run's own message is in the log."""
    return any(message.of is None for message in story.messages)


def _call(call_id: CallId, tool: Tool) -> ToolCall:
    call = ToolCall(call_id, tool.name, tool.arguments or Json("{}"))
    call.state = tool.state
    return call


def _unsaid(outcome: Outcome, story: Story) -> list[str]:
    """Return the blocks that completed a reply and are not in the log: the open deltas, and the returned text."""
    if outcome.ending is not Ending.COMPLETED:
        return []
    rest = outcome.text.removeprefix(BETWEEN.join(story.blocks)).removeprefix(BETWEEN)
    unfinished = "".join(story.open)
    if unfinished and rest.startswith(unfinished + BETWEEN):
        return [unfinished, rest.removeprefix(unfinished + BETWEEN)]
    return [rest] if rest else []


def _was_open(story: Story, question: QuestionId) -> bool:
    asked = story.questions.get(question)
    return asked is None or asked.state is QuestionState.OPEN


def _completed(receipt: Receipt, now: float, swept: bool) -> Receipt:
    def over(part: Totals | Receipt) -> dict[str, Any]:
        # No host outlives its control.
        host = "killed" if part.host == "settling" else part.host
        unseen = () if swept else ("processes of the server that went down",)
        return {"host": host, "unconfirmed": (*part.unconfirmed, *unseen)}

    runs = tuple(
        msgspec.structs.replace(
            run,
            outcome=msgspec.structs.replace(run.outcome, drained=True, durable=True),
            totals=msgspec.structs.replace(run.totals, **over(run.totals)),
        )
        for run in receipt.runs
    )
    return msgspec.structs.replace(
        receipt,
        runs=runs,
        drained_at=now,
        drain=Drain.OBSERVED if swept else Drain.UNCONFIRMED,
        durable=True,
        **over(receipt),
    )
