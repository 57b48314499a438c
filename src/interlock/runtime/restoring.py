"""Restoring: the unsettled runs of one tree of sessions come back into memory, as the store and the log know them.

1. A run that had begun gets its seat back, with its text, tool calls and questions, and a body that is already gone.
   Nothing that the run started is started again.
2. A message that was accepted and had not begun goes back into the queue, in order and under its own id.
3. The report of a detached child is put aside until every ending of the tree is public.
"""

import asyncio
import logging
from collections.abc import Sequence

from interlock.core.answers import Sent
from interlock.core.decision import RunRow
from interlock.core.events import Json, Tool
from interlock.core.lifecycle import Move, State
from interlock.core.names import REPORTS, BodyState, CallId, Effect, Ending, QuestionState, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.story import OPEN_CALLS, Conversation, Story
from interlock.runtime.arrival import Arrival
from interlock.runtime.feed import whole_log
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import RUN_SESSION, LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.reporting import Reporting
from interlock.runtime.retelling import Retelling, Tree, introduced
from interlock.runtime.session import Session
from interlock.runtime.settings import CRASHES
from interlock.runtime.stage import Stage
from interlock.runtime.ties import Child, Collection
from interlock.runtime.work import Question, ToolCall
from interlock.stores.base import read

log = logging.getLogger("interlock")


class BodyOfDeadServer:
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


class Restoring(Inner):
    """Puts unsettled runs back."""

    def __init__(self, inside: Inside, *, stage: Stage, reporting: Reporting, retelling: Retelling) -> None:
        super().__init__(inside)
        self._stage = stage
        self._reporting = reporting
        self._retelling = retelling

    async def put_back(self, tree: Tree, session_id: SessionId, rows: Sequence[RunRow]) -> None:
        """Put a session's unsettled runs back; add those that had begun to `tree.living`, to fall as lost."""
        events = await whole_log(self._feed.log, session_id)
        told = Conversation()
        for event in events:
            told.take(event)
        stories = told.stories
        async with self._retelling.counted(session_id, rows[0].home or session_id) as session:
            await self._retelling.load(session)
            await self._retelling.tell_gap(tree, session_id, events)
            began = len(tree.living)
            for row in rows:
                story = stories.get(row.id, Story())
                if row.outcome is not None:
                    await self._retelling.tell_again(tree, row, story)
                elif story.outcome is not None:
                    # A receipt of another session's fall: the run fell with its home, for example.
                    own = story.receipt is None or story.receipt.session == session_id
                    reports = await self._report_again(tree, row, story.outcome) if own else ()
                    await self._retelling.store_told(tree, row, story.outcome, story.receipt if own else None, reports)
                elif row.started or row.parent is not None:
                    tree.living[row.id] = await self._bring_back(tree, session, row, story)
            # A run's own session takes no further message, so it need not be parked.
            if len(tree.living) > began and not session_id.startswith(RUN_SESSION):
                session.crashes += 1
                if session.parked:
                    log.error("session %s is parked: the server went down %d times with it", session_id, CRASHES)
            await self._readmit(tree, session, [row for row in rows if _waits(row, stories)], stories)

    # Runs that had begun

    async def _bring_back(self, tree: Tree, session: Session, row: RunRow, story: Story) -> LiveRun:
        """Return a run that had begun, on its seat, as the store and the log know it."""
        with self._registry.pinned(row.home or session.id) as home:
            await self._retelling.load(home)
            run = await self._live(session, row, tree.living.get(row.parent) if row.parent is not None else None)
            run.ties.home, run.ties.parent_id = home, row.parent
            if run.arrival.announce is not None:
                run.ties.announce_to = await self._agent_above(row)
            await self._put_in_place(tree, run, row, story)
        return run

    async def _agent_above(self, row: RunRow) -> str | None:
        """Return the agent of the run at the top of a child's tree."""
        above: RunRow | None = row
        while above is not None and above.parent is not None:
            above = await read(self._store.run(above.parent))
        return None if above is None else above.agent

    async def _put_in_place(self, tree: Tree, run: LiveRun, row: RunRow, story: Story) -> None:
        session = run.session
        # A run's message is published before the run begins. Its event may be gone: the log may have been pruned.
        run.message_published = True
        # The session's generation rose when this run took the seat, and has not risen since.
        run.generation = self._registry.generations.get(session.id)
        run.started_at = story.started_at or row.admitted_at
        run.work.bodies = [BodyOfDeadServer(seen=tree.leftovers_ended)]
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

    async def _readmit(self, tree: Tree, session: Session, rows: list[RunRow], stories: dict[RunId, Story]) -> None:
        """Queue accepted messages again: first the one that had the seat, then the others in their order."""
        for row in sorted(rows, key=lambda row: row.generation is None):
            run = await self._live(session, row, None)
            story = stories.get(row.id, Story())
            run.message_published = introduced(story)
            if row.kind in REPORTS:
                await self._read_report(tree, run)
                continue
            self._registry.register(run)
            parts = await read(self._store.parts(row.id))
            if parts:
                run.ties.collection = Collection(until=self._clock.now())
                run.ties.collection.quiet_over = True
            absorbed = {message.of for message in story.messages}
            for part in parts:
                await self._collect_again(part, run, told=part.id in absorbed)
            self._stage.resume(run)
            if not run.message_published:
                Outlet(run, self._feed).introduce()

    async def _read_report(self, tree: Tree, report: LiveRun) -> None:
        """Fill a report with the ending of its child, and put it aside until every ending is public."""
        child = await read(self._store.run(RunId(report.arrival.key or "")))
        if child is not None and child.outcome is not None:
            report.ties.announces = Child(run_id=child.id, outcome=child.outcome, text=child.outcome.text)
        self._put_aside(tree, report)

    def _put_aside(self, tree: Tree, report: LiveRun) -> None:
        tree.homes.enter_context(self._registry.pinned(report.session.id))
        tree.reports.append(report)

    async def _report_again(self, tree: Tree, row: RunRow, outcome: Outcome) -> tuple[LiveRun, ...]:
        """Make the report of a child whose ending is in the log and not in the store: the same Decision held both.

        Make none if the store has a report of the child: a stop of its home has voided that report. Make none for a
        stopped child either: without the receipt in the log, the child may have been stopped together with its home.
        """
        if row.announce is None or row.home is None or outcome.ending is Ending.STOPPED:
            return ()
        if any(each.kind in REPORTS and each.key == row.id for each in await read(self._store.runs(row.home))):
            return ()
        with self._registry.pinned(row.home) as home:
            await self._retelling.load(home)
            report = self._reporting.report_of(row, home, outcome, to=await self._agent_above(row))
            if not self._reporting.may_report(report):
                return ()
            self._put_aside(tree, report)
        return (report,)

    async def _collect_again(self, row: RunRow, into: LiveRun, *, told: bool) -> None:
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


def _waits(row: RunRow, stories: dict[RunId, Story]) -> bool:
    told = stories.get(row.id)
    return row.outcome is None and not row.started and row.parent is None and (told is None or told.outcome is None)


def _call(call_id: CallId, tool: Tool) -> ToolCall:
    call = ToolCall(call_id, tool.name, tool.arguments or Json("{}"))
    call.state = tool.state
    return call
