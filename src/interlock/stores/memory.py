"""The in-memory twin of the durable stores: same port, same rules, and switches to make it misbehave."""

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from interlock.core.answers import SessionInfo
from interlock.core.decision import (
    Decision,
    EpochRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StopKey,
    ToolRow,
    Verdict,
    WakeRow,
)
from interlock.core.events import Ended, Event
from interlock.core.names import (
    Drain,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    SessionId,
)
from interlock.core.receipt import Receipt
from interlock.stores.base import ABANDONED, Expelled, Loaded, Page, Pruned, StoreFailed, Ticket, Written, is_unsettled
from interlock.stores.memory_rows import MemoryRows, SessionLog


@dataclass(slots=True)
class Faults:
    """Faults of the store; each one lasts while its switch is on. Clear `stall` through `MemoryStore.resume`."""

    fail: bool = False  # refuse every decision and read
    stall: bool = False  # accept decisions and reads, answer none
    lose: bool = False  # carry decisions out, lose the answer


class MemoryStore(MemoryRows):
    """Keeps everything in this process and loses it with the process."""

    shared = False

    def __init__(self, *, latency_seconds: float = 0.0) -> None:
        super().__init__()
        self.faults = Faults()
        self.latency_seconds = latency_seconds
        self.clean = True
        self._boot = self._closed_boot = self.epoch = 0
        self._line: deque[Ticket] = deque()
        # Decisions that were carried out and whose answer was lost (`Faults.lose`).
        self._lost: dict[Ticket, Verdict] = {}
        self._flushing = self._abandoned = False
        self._resumed = asyncio.Event()

    async def open(self) -> int:
        self._abandoned = False
        self.clean = self._closed_boot == self._boot
        highest = max(self._epochs.values(), default=0)
        # By as many as the server before may have published and not written (`Store.epoch`).
        self._floor = self._floor if self.clean else max(self._floor, highest) + 2
        self.epoch = max(self._floor, highest)
        self._boot += 1
        return self._boot

    async def close(self, *, clean: bool = True) -> None:
        if not self.faults.stall:
            self._flush()
            self._closed_boot = self._boot if clean and not self._abandoned else self._closed_boot

    def abandon(self) -> None:
        self._abandoned = True
        while self._line:
            self._line.popleft().refuse(Expelled(ABANDONED))

    # Decisions

    def decide(self, decision: Decision) -> Ticket:
        ticket = Ticket(decision)
        if self._abandoned:
            ticket.refuse(Expelled(ABANDONED))
            return ticket
        self._line.append(ticket)
        if not self._flushing:
            self._flushing = True
            loop = asyncio.get_running_loop()
            if self.latency_seconds:
                loop.call_later(self.latency_seconds, self._flush)
            else:
                loop.call_soon(self._flush)
        return ticket

    async def withdraw(self, ticket: Ticket) -> bool:
        if ticket in self._line:
            self._line.remove(ticket)
            ticket.refuse(StoreFailed("the store did not accept the write in time and never will; send it again"))
            return False
        if (lost := self._lost.pop(ticket, None)) is not None:
            ticket.accept(lost)
        return await ticket.certain()

    def resume(self) -> None:
        """Clear every fault and go on with what waits."""
        self.faults = Faults()
        self._resumed.set()
        self._resumed = asyncio.Event()
        self._flush()

    def _flush(self) -> None:
        if self.faults.stall:
            return
        while self._line:
            ticket = self._line.popleft()
            if self.faults.fail:
                ticket.refuse(StoreFailed("the store refused the write; send it again later"))
                continue
            if (refusal := self._refusal(ticket.decision)) is not None:
                ticket.refuse(refusal)
                continue
            verdict = self._carry_out(ticket.decision)
            if self.faults.lose:
                self._lost[ticket] = verdict
            else:
                ticket.accept(verdict)
        self._flushing = False

    # Events

    def append(self, event: Event, epoch: EpochRow | None = None) -> bool:
        if self._abandoned:
            return True
        if epoch is not None:
            self._store_epoch(epoch)
        log = self._logs.get(event.session)
        if log is None:
            log = self._logs[event.session] = SessionLog()
        log.append(event)
        self._touched[event.session] = event.position
        row = self._runs.get(event.run_id) if event.run_id is not None and isinstance(event.data, Ended) else None
        if row is not None:
            self._runs[row.id] = msgspec.structs.replace(row, told=True)
        return True

    def tell_written(self, to: Written) -> None:
        """Do nothing: every event is written when it is appended."""

    def forget(self, events: Sequence[Event]) -> None:
        """Do nothing: no event is unwritten."""

    def drop(self, session: SessionId, events: Sequence[Event]) -> None:
        """Do nothing: no event is unwritten."""

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        await self._readable()
        log = self._logs.get(session)
        if log is None:
            return Page()
        return Page(events=log.after(after, limit), lost_to=log.lost_to if after < log.lost_to else 0)

    async def began(self, session: SessionId, run_id: RunId) -> int:
        await self._readable()
        log = self._logs.get(session)
        return 0 if log is None else next((each.position for each in log.lasting if each.run_id == run_id), 0)

    # Reads

    async def _readable(self) -> None:
        while self.faults.stall:
            await self._resumed.wait()
        if self.faults.fail:
            raise StoreFailed("the store cannot be read; try again later")

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        await self._readable()
        return Loaded(
            session=self._session(session),
            key=None if key is None else self._keys.get(principal, OrderedDict()).get(key),
            buried=key is not None and key in self._tombstones.get(principal, ()),
            previous=self._previous(session),
            marks=tuple(mark for marks in self._marks.get(session, {}).values() for mark in marks),
            epoch=max(self._epoch(session), self._floor),
        )

    def _epoch(self, session: SessionId) -> int:
        """Return a session's epoch; a child's events count with its home, so its session has the epoch of the last."""
        log = self._logs.get(session)
        return self._epochs.get(session, log.lasting[-1].position >> 32 if log is not None and log.lasting else 0)

    async def session(self, session: SessionId) -> SessionRow | None:
        await self._readable()
        return self._session(session)

    def _session(self, session: SessionId) -> SessionRow | None:
        row, shares = self._sessions.get(session), self._shares.get(session, {})
        shared = {each.principal: each.may for each in shares.values() if each.may is not None}
        return row if row is None else msgspec.structs.replace(row, shares=shared)

    async def plain_sessions(self) -> tuple[tuple[Principal, SessionId], ...]:
        await self._readable()
        # No earlier version has kept anything in memory.
        return ()

    async def sessions(self, *, limit: int, of: Principal | None = None) -> tuple[SessionInfo, ...]:
        await self._readable()
        runs: dict[SessionId, list[RunRow]] = {}
        for row in reversed(self._runs.values()):
            runs.setdefault(row.session, []).append(row)
        names = dict.fromkeys([*runs, *sorted(self._sessions)])
        known = [found for name in names if (found := self._session(name)) is not None]
        mine = [row for row in known if not row.id.startswith("run:") and (of in (None, row.owner) or of in row.shares)]
        return tuple(_info(row, runs.get(row.id, [])) for row in mine[: None if limit < 0 else limit])

    async def run(self, run_id: RunId) -> RunRow | None:
        await self._readable()
        return self._runs.get(run_id)

    async def runs(
        self, session: SessionId | None, *, tree: bool = False, limit: int = 1_000, of: Principal | None = None
    ) -> tuple[RunRow, ...]:
        await self._readable()
        if session is None:
            mine = (row for row in reversed(self._runs.values()) if of is None or self._is_of(row, of))
            return tuple(reversed(list(itertools.islice(mine, None if limit < 0 else limit))))
        ids = [*self._runs_of.get(session, ()), *(self._children_of.get(session, ()) if tree else ())]
        return tuple(self._runs[run_id] for run_id in ids if run_id in self._runs)

    async def open_runs(self, *, of: Principal | None = None) -> tuple[RunRow, ...]:
        waiting = (row for row in await self.runs(None, limit=-1, of=of) if row.outcome is None and row.alias is None)
        return tuple(waiting)

    async def open_questions(self) -> tuple[QuestionRow, ...]:
        await self._readable()
        return tuple(row for row in self._questions.values() if row.state is QuestionState.OPEN)

    def _is_of(self, row: RunRow, principal: Principal) -> bool:
        session, home = self._sessions.get(row.session), self._session(row.home or row.session)
        owns = session is not None and session.owner == principal
        return owns or (home is not None and principal in home.shares)

    async def unsettled(self) -> tuple[SessionId, ...]:
        await self._readable()
        return tuple(dict.fromkeys(row.home or row.session for row in self._runs.values() if is_unsettled(row)))

    async def unsettled_runs(self, session: SessionId) -> tuple[RunRow, ...]:
        tree = await self.runs(session, tree=True)
        return tuple(row for row in tree if is_unsettled(row) and session == (row.home or row.session))

    async def parts(self, run_id: RunId) -> tuple[RunRow, ...]:
        await self._readable()
        return tuple(row for row in self._runs.values() if row.alias == run_id and row.outcome is None)

    async def questions(self, run_id: RunId) -> tuple[QuestionRow, ...]:
        await self._readable()
        return tuple(self._questions[question] for question in self._questions_of.get(run_id, ()))

    async def pending_receipts(self) -> tuple[Receipt, ...]:
        await self._readable()
        return tuple(receipt for receipt in self._receipts.values() if receipt.drain is Drain.PENDING)

    async def prune(self, *, before: float | None = None) -> Pruned:
        """Return an empty count: rows beyond a bound were forgotten when they were added, and age is not counted."""
        return Pruned()

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        await self._readable()
        return self._questions.get(question_id)

    async def wakes(self) -> tuple[WakeRow, ...]:
        await self._readable()
        return tuple(self._wakes.values())

    async def stops(self) -> tuple[StopKey, ...]:
        await self._readable()
        return tuple(row for kept in self._stops.values() for row in kept.values())

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        await self._readable()
        return tuple(self._tools.get(run_id, {}).values())

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        await self._readable()
        return self._receipts.get(self._receipt_of.get(RunId(wanted), ReceiptId(wanted)))


def _info(row: SessionRow, runs: list[RunRow]) -> SessionInfo:
    return SessionInfo(
        session=row,
        runs=len(runs),
        open=sum(run.outcome is None and run.alias is None for run in runs),
        latest_at=max((run.admitted_at for run in runs), default=None),
    )
