"""What the memory store keeps, and how a decision changes it.

Rows are forgotten by count. Events dropped from a log are reported as `lost_to`. Deltas beyond their bound are dropped
without a report: the block that closes them holds their text.
"""

import itertools
from collections import OrderedDict, deque
from operator import attrgetter

import msgspec

from interlock.core.decision import (
    Decision,
    EpochRow,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    ShareRow,
    StopKey,
    StopMark,
    Tombstone,
    ToolRow,
    Verdict,
    WakeRow,
    with_mark,
)
from interlock.core.events import Ended, Event
from interlock.core.names import (
    PASSING,
    CallId,
    Ending,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    SessionId,
    WakeId,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.stores import bounds
from interlock.stores.base import Buried, Expelled, StoreFailed, Taken

# For each new row at most this many of the oldest are checked for being over, so that adding stays cheap.
OLDEST_SEEN = 200


class SessionLog:
    """A session's events: lasting ones in order, passing ones by run."""

    __slots__ = ("lasting", "lost_to", "passing", "written_to")

    def __init__(self) -> None:
        self.lasting: deque[Event] = deque()
        self.passing: dict[RunId, deque[Event]] = {}
        self.lost_to = 0
        # The last position before the last decision: a durable store would have both.
        self.written_to = 0

    def append(self, event: Event) -> None:
        """Add an event; a run's end takes its passing events out."""
        if event.kind in PASSING and event.run_id is not None:
            self.passing.setdefault(event.run_id, deque(maxlen=bounds.PASSING_EVENTS)).append(event)
            return
        if isinstance(event.data, Ended) and event.run_id is not None:
            self.passing.pop(event.run_id, None)
        self.lasting.append(event)
        if len(self.lasting) > bounds.LOG_EVENTS:
            self.lost_to = self.lasting.popleft().position

    def after(self, position: int, limit: int) -> tuple[Event, ...]:
        """Return the events after a position, in order."""
        found = [event for event in self.lasting if event.position > position]
        for passing in self.passing.values():
            found.extend(event for event in passing if event.position > position)
        found.sort(key=attrgetter("position"))
        return tuple(found[:limit])


class MemoryRows:
    """The tables of a memory store."""

    def __init__(self) -> None:
        # Sessions with events since the last decision, each with the last position.
        self._touched: dict[SessionId, int] = {}
        self._sessions: dict[SessionId, SessionRow] = {}
        self._shares: dict[SessionId, dict[Principal, ShareRow]] = {}
        self._runs: dict[RunId, RunRow] = {}
        self._runs_of: dict[SessionId, dict[RunId, None]] = {}
        self._children_of: dict[SessionId, dict[RunId, None]] = {}
        self._questions: dict[QuestionId, QuestionRow] = {}
        self._questions_of: dict[RunId, list[QuestionId]] = {}
        self._wakes: dict[WakeId, WakeRow] = {}
        self._marks: dict[SessionId, dict[tuple[str, Principal], tuple[StopMark, ...]]] = {}
        self._marks_of: dict[Principal, OrderedDict[tuple[SessionId, str], None]] = {}
        self._keys: dict[Principal, OrderedDict[str, KeyRow]] = {}
        self._stops: dict[Principal, OrderedDict[str, StopKey]] = {}
        self._tombstones: dict[Principal, OrderedDict[str, None]] = {}
        self._tools: dict[RunId, dict[CallId, ToolRow]] = {}
        self._receipts: dict[ReceiptId, Receipt] = {}
        # Receipts of stops that ended detached processes only, oldest first.
        self._runless: OrderedDict[ReceiptId, None] = OrderedDict()
        self._receipt_of: dict[RunId, ReceiptId] = {}
        # Runs whose receipt says drained.
        self._drained: set[RunId] = set()
        self._last: dict[SessionId, tuple[int, RunId]] = {}
        self._logs: dict[SessionId, SessionLog] = {}
        self._epochs: dict[SessionId, int] = {}
        self._floor = 0

    def _refusal(self, decision: Decision) -> StoreFailed | None:
        """Return why a decision is not carried out; None if nothing speaks against it."""
        writer = decision.writer
        known = None if writer is None else self._sessions.get(writer.session)
        if writer is not None and known is not None and known.generation > writer.generation:
            return Expelled("the session's writer right has passed to another run; this one is over")
        refused = [(run.id, self._used_key(run)) for run in decision.admissions if run.id not in self._runs]
        # A run that one of its rows admits is not admitted twice, and that is no reason to refuse.
        admitted = {run_id for run_id, used in refused if used is None}
        return next((used for run_id, used in refused if run_id not in admitted), None)

    def _used_key(self, run: RunRow) -> StoreFailed | None:
        """Return why a message's key keeps it from being admitted; None if nothing does."""
        if run.key is None:
            return None
        used = self._keys.get(run.principal, OrderedDict()).get(run.key)
        if used is not None and used.run_id not in (run.id, run.alias):
            return Taken(used)
        return Buried(run.key) if run.key in self._tombstones.get(run.principal, ()) else None

    def _carry_out(self, decision: Decision) -> Verdict:
        # One decision is carried out in one step of the loop, so no reader sees half of it: here that is the
        # transaction. Each part is conditional, by the same rules as the statements in sqlite/sql/decisions.sql; the
        # contract suite runs on both stores and fails when the two differ.
        for name, position in self._touched.items():
            if (log := self._logs.get(name)) is not None:
                log.written_to = position
        self._touched.clear()
        for session in decision.sessions:
            self._store_session(session)
        for run in decision.admissions:
            self._insert_run(run)
        found = [other for run in decision.endings if (other := self._end(run)) is not None]
        for run_id in decision.starts:
            row = self._runs.get(run_id)
            if row is not None and row.outcome is None:
                self._runs[run_id] = msgspec.structs.replace(row, started=True)
            elif row is not None and row.outcome is not None:
                found.append(row.outcome)
        for run_id in decision.told:
            if (row := self._runs.get(run_id)) is not None:
                self._runs[run_id] = msgspec.structs.replace(row, told=True)
                if row.session in self._logs:
                    self._logs[row.session].passing.pop(run_id, None)
        for key in decision.keys:
            self._store_key(key)
        for tombstone in decision.tombstones:
            self._store_tombstone(tombstone)
        for tool in decision.tools:
            self._tools.setdefault(tool.run_id, {})[tool.call_id] = tool
        for message, absorber in decision.aliases:
            row = self._runs.get(message)
            if row is not None and row.outcome is None:
                self._runs[message] = msgspec.structs.replace(row, alias=absorber)
        for question in decision.questions:
            self._store_question(question)
        for wake in decision.wakes:
            self._wakes[wake.id] = wake
        for wake_id in decision.unwakes:
            self._wakes.pop(wake_id, None)
        for mark in decision.marks:
            self._store_mark(mark)
        for stop in decision.stops:
            self._store_stop(stop)
        for share in decision.shares:
            kept = self._shares.setdefault(share.session, {})
            if share.principal not in kept or share.at >= kept[share.principal].at:
                kept[share.principal] = share
        for receipt in decision.receipts:
            self._store_receipt(receipt)
        for epoch in decision.epochs:
            self._store_epoch(epoch)
        for session_id in decision.rises:
            if (known := self._sessions.get(session_id)) is not None:
                self._sessions[session_id] = msgspec.structs.replace(known, generation=known.generation + 1)
        return Verdict(found=tuple(found))

    def _store_epoch(self, row: EpochRow) -> None:
        self._epochs[row.session] = max(row.epoch, self._epochs.get(row.session, 0))

    def _store_session(self, row: SessionRow) -> None:
        known = self._sessions.get(row.id)
        if known is None:
            self._sessions[row.id] = row
            return
        self._sessions[row.id] = msgspec.structs.replace(
            known,
            generation=max(known.generation, row.generation),
            since=max(known.since, row.since),
            renewed=max(known.renewed, row.renewed),
            strategy=row.strategy if row.generation >= known.generation else known.strategy,
            crashes=row.crashes if row.generation >= known.generation else known.crashes,
            announced=row.announced if row.generation >= known.generation else known.announced,
        )

    def _insert_run(self, row: RunRow) -> None:
        if row.id in self._runs:
            return
        self._runs[row.id] = row
        self._add_bounded(self._runs_of.setdefault(row.session, {}), row.id)
        if row.home is not None:
            self._add_bounded(self._children_of.setdefault(row.home, {}), row.id)

    def _add_bounded(self, kept: dict[RunId, None], run_id: RunId) -> None:
        """Add a run and forget the oldest that have ended; a run that has not ended makes room only when it ends."""
        kept[run_id] = None
        for oldest in list(itertools.islice(kept, min(OLDEST_SEEN, max(0, len(kept) - bounds.RUNS_KEPT)))):
            row = self._runs.get(oldest)
            if row is None or row.outcome is not None or row.alias is not None:
                del kept[oldest]
                if row is not None:
                    self._forget_run(row)

    def _forget_run(self, row: RunRow) -> None:
        run_id = row.id
        del self._runs[run_id]
        self._drained.discard(run_id)
        self._tools.pop(run_id, None)
        for question in self._questions_of.pop(run_id, ()):
            del self._questions[question]
        # A child has a session to itself, which goes with its run.
        if row.home is not None:
            for kept in (self._sessions, self._logs, self._last, self._runs_of):
                kept.pop(row.session, None)
        receipt_id = self._receipt_of.pop(run_id, None)
        receipt = None if receipt_id is None else self._receipts.get(receipt_id)
        if receipt is not None and not any(run.id in self._receipt_of for run in receipt.runs):
            del self._receipts[receipt.id or ReceiptId("")]

    def _end(self, row: RunRow) -> Outcome | None:
        """Write an ending where none stands; return the one that stands if it is another."""
        assert row.outcome is not None
        known = self._runs.get(row.id)
        if known is not None and known.outcome is not None and known.outcome.ending is not Ending.LOST:
            return None if known.outcome.same_story(row.outcome) else known.outcome
        if known is None:
            # The run was never seated and its session has no row, so the session has no owner yet. Hide the text: the
            # first sender admitted later becomes owner and must not read it.
            unowned = row.generation is None and row.session not in self._sessions
            self._insert_run(msgspec.structs.replace(row, text="", instructions=None) if unowned else row)
            seat = row.generation
            self._note_drained(row.id)
        else:
            seat = row.generation if row.generation is not None else known.generation
            self._runs[row.id] = msgspec.structs.replace(
                known, outcome=row.outcome, cut=row.cut, generation=seat, told=known.told or row.told
            )
            self._note_drained(row.id)
        latest, _ = self._last.get(row.session, (-1, ""))
        # A run without a generation was never seated and is not part of the conversation. A lower generation is a late
        # write of an earlier turn.
        if seat is not None and seat >= latest:
            self._last[row.session] = (seat, row.id)
        return None

    def _note_drained(self, run_id: RunId) -> None:
        """Mark a stored outcome as durable, and as drained once a receipt has said so."""
        row = self._runs[run_id]
        if row.outcome is not None:
            drained = row.outcome.drained or run_id in self._drained
            told = msgspec.structs.replace(row.outcome, drained=drained, durable=True)
            self._runs[run_id] = msgspec.structs.replace(row, outcome=told)

    def _previous(self, session: SessionId) -> Outcome | None:
        """Return how the last turn ended, or None if that was before the last reset."""
        seat, run_id = self._last.get(session, (-1, RunId("")))
        known, row = self._sessions.get(session), self._runs.get(run_id)
        return None if row is None or (known is not None and seat <= known.renewed) else row.outcome

    def _store_question(self, row: QuestionRow) -> None:
        known = self._questions.get(row.id)
        if known is None:
            self._questions_of.setdefault(row.run_id, []).append(row.id)
        elif known.state in (QuestionState.VOID, QuestionState.EXPIRED):
            return
        elif known.state is QuestionState.ANSWERED and row.state is not QuestionState.VOID:
            # The first answer stands. Only the run's fall (void) overwrites one: the agent never received it.
            return
        self._questions[row.id] = row

    def _store_mark(self, mark: StopMark) -> None:
        kept = self._marks.setdefault(mark.session, {})
        kept[mark.channel, mark.by] = with_mark(kept.get((mark.channel, mark.by), ()), mark)
        made = self._marks_of.setdefault(mark.by, OrderedDict())
        made[mark.session, mark.channel] = None
        made.move_to_end((mark.session, mark.channel))
        if len(made) > bounds.MARKS_KEPT:
            session, channel = made.popitem(last=False)[0]
            del self._marks[session][channel, mark.by]
            if not self._marks[session]:
                del self._marks[session]

    def _store_key(self, row: KeyRow) -> None:
        kept = self._keys.setdefault(row.principal, OrderedDict())
        known = kept.get(row.key)
        own = self._runs.get(row.run_id)
        alone = own is not None and known is not None and own.alias == known.run_id and own.outcome is not None
        # The first use of a key stands. The exception: the message was to be absorbed by the run that the key names,
        # and then ended by itself; the key now names the message's own run.
        if known is None or alone:
            kept[row.key] = row
        for oldest in list(itertools.islice(kept, min(OLDEST_SEEN, max(0, len(kept) - bounds.KEYS_KEPT)))):
            message = self._runs.get(kept[oldest].run_id)
            if message is None or message.outcome is not None:
                del kept[oldest]

    def _store_stop(self, row: StopKey) -> None:
        kept = self._stops.setdefault(row.principal, OrderedDict())
        kept.setdefault(row.key, row)
        if len(kept) > bounds.STOPS_KEPT:
            kept.popitem(last=False)

    def _store_tombstone(self, tombstone: Tombstone) -> None:
        kept = self._tombstones.setdefault(tombstone.principal, OrderedDict())
        kept[tombstone.key] = None
        if len(kept) > bounds.TOMBSTONES_KEPT:
            kept.popitem(last=False)

    def _store_receipt(self, receipt: Receipt) -> None:
        assert receipt.id is not None
        known = [run for run in receipt.runs if run.id in self._runs]
        if receipt.runs and not known:
            # The receipt came after its runs were forgotten.
            return
        self._receipts[receipt.id] = receipt
        if not receipt.runs:
            self._runless[receipt.id] = None
            if len(self._runless) > bounds.RUNLESS_KEPT:
                del self._receipts[self._runless.popitem(last=False)[0]]
        for run in known:
            self._receipt_of[run.id] = receipt.id
            if run.outcome.drained:
                self._drained.add(run.id)
            self._note_drained(run.id)
