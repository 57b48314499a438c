"""Retelling: what was decided before a crash and is missing in the log, or in the store, is published and stored.

1. An ending that the store or the log has is the true one: it is published if the log lacks it, stored if the store
   lacks it.
2. A receipt that was still pending is completed: the code that it waited for went down with its server.
3. After an unclean end the log of each session that is settled gets one `gap`.
"""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from interlock.core.decision import Decision, RunRow
from interlock.core.events import ChildEnd, Ended, Event, Gap, ReceiptData
from interlock.core.names import (
    LOCAL,
    PASSING,
    Drain,
    Ending,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt, Totals, split
from interlock.core.story import BETWEEN, OPEN_CALLS, Story
from interlock.runtime.ending import Endings
from interlock.runtime.fall import without_result
from interlock.runtime.feed import whole_log
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import tell_again
from interlock.runtime.session import Session
from interlock.stores.base import Ticket, read


class Tree:
    """A session and the children below it, while what an earlier server left there is settled."""

    def __init__(self, *, leftovers_ended: bool) -> None:
        # Control saw that no process is left of the server that ran these runs.
        self.leftovers_ended = leftovers_ended
        # Runs that had begun, a parent before its children, so that the children fall with it.
        self.living: dict[RunId, LiveRun] = {}
        # Reports of detached children, to be offered when every child's ending is public.
        self.reports: list[LiveRun] = []
        # Keeps the homes of `reports` in memory until those are queued.
        self.homes = contextlib.ExitStack()
        # Receipts to complete, each once.
        self.pending: dict[ReceiptId | None, Receipt] = {}
        self.written: list[Ticket] = []
        self.with_gap: set[SessionId] = set()


class Retelling(Inner):
    """Completes the log and the store."""

    def __init__(self, inside: Inside, *, endings: Endings) -> None:
        super().__init__(inside)
        self._endings = endings

    async def load(self, session: Session) -> None:
        """Fill a session in memory with what the store has of it."""
        if not session.loaded:
            self._registry.load(session, await read(self._store.load(session.id, principal=LOCAL, key=None)))

    @contextlib.asynccontextmanager
    async def counted(self, session_id: SessionId, home_id: SessionId) -> AsyncGenerator[Session, None]:
        """Keep a session and its home in memory while events are published there; its home's epoch numbers them."""
        with self._registry.pinned(session_id) as session, self._registry.pinned(home_id) as home:
            session.home = None if home is session else home
            await self.load(home)
            yield session

    async def tell_gap(self, tree: Tree, session_id: SessionId, events: Sequence[Event] | None = None) -> None:
        """Publish a `gap`, once per session: the last events before the crash may be missing."""
        if self._store.clean or session_id in tree.with_gap:
            return
        tree.with_gap.add(session_id)
        if events is None:
            events = await whole_log(self._feed.log, session_id)
        # Deltas are written apart from decisions, so a stored delta does not show that the events before it are stored.
        lasting = (event.position for event in events if event.kind not in PASSING)
        self._feed.publish(session_id, None, Gap(after=max(lasting, default=0)))

    # Endings that stand

    async def tell_again(self, tree: Tree, row: RunRow, story: Story) -> None:
        """Publish an ending that the store has and the log has not: the same ending, with the calls it left open."""
        assert row.outcome is not None
        if story.outcome is not None:
            await self.store_told(tree, row, row.outcome)
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
        said, blocks = introduced(story) or row.started, _unsaid(row.outcome, story)
        tell_again(self._feed, row, ended, said=said, blocks=blocks)
        receipt = await read(self._store.receipt(row.id))
        # A receipt that is still pending is published when `complete_receipts` completes it.
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

    async def store_told(
        self,
        tree: Tree,
        row: RunRow,
        outcome: Outcome,
        proof: Receipt | None = None,
        reports: tuple[LiveRun, ...] = (),
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
        if proof is not None and proof.drain is Drain.PENDING:
            tree.pending[proof.id] = proof
        tree.written.append(self._endings.store_until_in(told))

    # Receipts

    async def complete_receipts(self, tree: Tree) -> None:
        """Complete the receipts that were still pending: the code they waited for went down with the server."""
        for receipt in tree.pending.values():
            done = _completed(await self._as_told(receipt), self._clock.wall(), tree.leftovers_ended)
            for session_id, (home_id, shown) in (await self._shares(done)).items():
                async with self.counted(session_id, home_id):
                    # The crash may have taken an event with this receipt from the session's log.
                    await self.tell_gap(tree, session_id)
                    self._feed.publish(session_id, None, ReceiptData(receipt=shown))
            # Store the receipt after publishing it: the transaction takes the published events along.
            tree.written.append(self._endings.store_until_in(Decision(receipts=(done,))))

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


def introduced(story: Story) -> bool:
    """Return whether the run's own message is in the log."""
    return any(message.of is None for message in story.messages)


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


def _completed(receipt: Receipt, now: float, leftovers_ended: bool) -> Receipt:
    def over(part: Totals | Receipt) -> dict[str, Any]:
        # No host outlives its control.
        host = "killed" if part.host == "settling" else part.host
        unseen = () if leftovers_ended else ("processes of the server that went down",)
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
        drain=Drain.OBSERVED if leftovers_ended else Drain.UNCONFIRMED,
        durable=True,
        **over(receipt),
    )
