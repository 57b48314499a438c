"""How long does a start take that finds the last one killed, and how fast is a log replayed?

The directory is written through the store and copied while it is open, which is how kill -9 leaves it. A bare scan
reads every row of sessions, runs, tools, receipts, events and passing with sqlite3's own cursor into tuples, in the
same process, from the same copy. Recovery is timed from `open_control` to its block: control looks for processes of
the last start, ends every unfinished run that had begun, publishes and stores that, and queues the other messages.
"""

import asyncio
import gc
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.durable import AtLeast, directory
from bench.result import Result
from bench.sample import still
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.core.decision import Decision, RunRow, SessionRow, ToolRow
from interlock.core.events import Block, Data, Delta, Ended, Event, Json, MessageData, ReceiptData, Started, Tool
from interlock.core.names import (
    BodyState,
    CallId,
    Drain,
    Ending,
    Principal,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt
from interlock.runtime.numbers import Numbers, Positions
from interlock.runtime.unwritten import Unwritten
from interlock.stores.sqlite import SqliteStore

TURNS = 3  # turns of a session before the kill
DELTAS = 20  # said by an unfinished run before the kill
TABLES = ("sessions", "runs", "tools", "receipts", "events", "passing")
EACH = 500  # sessions handed to the store at a time
LOG_EVENTS = 10_000
ME = Principal("local")
FEW = 100  # sessions of the start that the start with many is put beside
START_GOAL, RECOVERY_GOAL, REPLAY_GOAL = 1.5, 20.0, 0.3


async def _agent(run: Run, message: Message) -> None:
    await asyncio.Event().wait()


def measure(scale: Scale) -> list[Result]:
    """Return a start with many sessions over one with few, recovery over a scan, and replay over a cursor."""
    return [_start_of_many(scale), _recovery(scale), _replay(scale)]


class Past:
    """Sessions as control would have written them."""

    def __init__(self, store: SqliteStore, boot: int) -> None:
        self._numbers = Numbers(boot)
        self._positions = Positions(0)
        self._log = Unwritten(store, self._positions.keep)
        self.written = 0

    async def settled(self) -> None:
        """Wait until every event is in the database."""
        while self._log._count or self._log._ended:  # the log has no public name for this
            await asyncio.sleep(0.05)

    def turns(self, session: SessionId, count: int) -> Decision:
        """Write turns that ended, each with a tool call; return the decision to make."""
        runs, receipts, tools = [], [], []
        for generation in range(1, count + 1):
            run_id, call = RunId(self._numbers.new_id("r")), CallId(self._numbers.new_id("c"))
            reply = f"What was found in turn {generation}: " + "a sentence of some length. " * 8
            outcome = Outcome(run_id=run_id, ending=Ending.COMPLETED, text=reply, started_at=1.8e9, ended_at=1.8e9)
            receipt = _receipt(ReceiptId(self._numbers.new_id("t")), session, outcome)
            search = Tool(call_id=call, name="search", state=ToolState.PENDING, arguments=Json('{"for":"a thing"}'))
            done = Tool(call_id=call, name="search", state=ToolState.FINISHED, result=Json('"found it"'))
            told: tuple[Data, ...] = (_said(generation), Started(), search, done, Block(text=reply))
            self._tell(session, run_id, generation, (*told, Ended(outcome=outcome)))
            self._tell(session, None, None, (ReceiptData(receipt=receipt),))
            runs.append(_run(run_id, session, generation, started=True, outcome=outcome))
            receipts.append(receipt)
            tools.append(
                ToolRow(call_id=call, run_id=run_id, name="search", arguments=Json("{}"), state=ToolState.FINISHED)
            )
        row = SessionRow(id=session, owner=ME, generation=count)
        return Decision(sessions=(row,), endings=tuple(runs), tools=tuple(tools), receipts=tuple(receipts))

    def unfinished(self, session: SessionId, number: int) -> Decision:
        """Write a run that was at work, amid a tool call, or in one of four a message that had not begun."""
        run_id, call, begun = RunId(self._numbers.new_id("r")), CallId(self._numbers.new_id("c")), number % 4 != 0
        self._tell(session, run_id, TURNS + 1, (_said(TURNS + 1),))
        tools: tuple[ToolRow, ...] = ()
        if begun:
            running = Tool(call_id=call, name="shell", state=ToolState.PENDING, arguments=Json('{"run":"make"}'))
            self._tell(session, run_id, TURNS + 1, (Started(), *[Delta(text="some words ")] * DELTAS, running))
            tools = (ToolRow(call_id=call, run_id=run_id, name="shell", arguments=Json("{}"), state=ToolState.RUNNING),)
        row = SessionRow(id=session, owner=ME, generation=TURNS + 1)
        return Decision(
            sessions=(row,), admissions=(_run(run_id, session, TURNS + 1, started=begun),), tools=tools
        )  # fmt: skip

    def _tell(self, session: SessionId, run_id: RunId | None, generation: int | None, told: tuple[Data, ...]) -> None:
        for data in told:
            count = self._positions.of(session)
            event = Event(position=count.next(), session=session, run_id=run_id, generation=generation, data=data)
            self._log.append(event, count.tell())
            self.written += 1


def _said(generation: int) -> MessageData:
    return MessageData(text=f"Please look into the {generation}. of these things.", by=ME)


def _run(
    run_id: RunId, session: SessionId, generation: int, *, started: bool, outcome: Outcome | None = None
) -> RunRow:
    return RunRow(
        id=run_id, session=session, principal=ME, kind=RunKind.CHAT, text=_said(generation).text, admitted_at=1.8e9,
        generation=generation, started=started, outcome=outcome, told=outcome is not None,
    )  # fmt: skip


def _receipt(receipt_id: ReceiptId, session: SessionId, outcome: Outcome) -> Receipt:
    fallen = FallenRun(id=outcome.run_id, outcome=outcome, body=BodyState.RETURNED)
    return Receipt(
        id=receipt_id, session=session, cause=outcome.ending, runs=(fallen,), fenced_at=1.8e9, ended_at=1.8e9,
        drained_at=1.8e9, drain=Drain.OBSERVED,
    )  # fmt: skip


# Starts


def _start_of_many(scale: Scale) -> Result:
    """Put a start with many settled sessions beside one with few; each of both was killed while it was idle."""
    many = scale.rounds(100_000, 10_000)
    starts: dict[int, list[float]] = {FEW: [], many: []}
    with directory() as path:
        for sessions in starts:
            asyncio.run(_build(path / "built", path / "open", sessions, 0))
            asyncio.run(_leave(path / "built", path / f"killed {sessions}"))
            for each in ("built", "open"):
                shutil.rmtree(path / each)
        for number in range(scale.rounds(9, 5)):
            for sessions, taken in starts.items():
                copy = path / f"start {number}"
                shutil.copytree(path / f"killed {sessions}", copy)
                with still():
                    _scan(copy)  # warms the cache
                    taken.append(asyncio.run(_start(copy)))
                gc.collect()
                shutil.rmtree(copy)
    few, much = (sorted(taken)[len(taken) // 2] for taken in starts.values())
    small = (f"{few * 1000:.0f} ms with {FEW} sessions, {much * 1000:.0f} ms with {many:,}; each had {TURNS} turns",)
    return Result(name=f"start with {many:,} / with {FEW} sessions", value=much / few, goal=START_GOAL, small=small)


async def _leave(store_path: Path, killed: Path) -> None:
    """Copy a directory that a server has open, with nothing to write."""
    store = SqliteStore(store_path)
    await store.open()
    shutil.copytree(store_path, killed)
    await store.close()


# Recovery


def _recovery(scale: Scale) -> Result:
    sessions, unfinished = scale.rounds(10_000, 1_000), scale.rounds(1_000, 100)
    scans, starts, ended = [], [], 0
    with directory() as path:
        asyncio.run(_build(path / "store", path / "killed", sessions, unfinished))
        for number in range(scale.rounds(3, 2)):
            copy = path / f"start {number}"
            shutil.copytree(path / "killed", copy)
            with still():
                _scan(copy)  # warms the cache
                began = perf_counter()
                rows = _scan(copy)
                scans.append(perf_counter() - began)
                starts.append(asyncio.run(_start(copy)))
            gc.collect()
            ended = _count(copy, "SELECT count(*) FROM runs WHERE ending = 'lost'")
            shutil.rmtree(copy)
    start, scan = (sorted(each)[len(each) // 2] for each in (starts, scans))
    each_start = ", ".join(f"{each:.2f}" for each in starts)
    small = (
        f"start {start:.2f} s ({each_start}), scan {scan * 1000:,.0f} ms of {rows:,} rows: {', '.join(TABLES)}",
        f"{sessions:,} sessions, {unfinished:,} unfinished runs, of which {ended:,} had begun and were lost",
    )
    name = f"recovery of {sessions:,} sessions, {unfinished:,} unfinished / scan"
    return Result(name=name, value=start / scan, goal=RECOVERY_GOAL, small=small)


async def _build(store_path: Path, killed: Path, sessions: int, unfinished: int) -> None:
    store = SqliteStore(store_path)
    past = Past(store, await store.open())
    for first in range(0, sessions, EACH):
        decisions = []
        for number in range(first, min(first + EACH, sessions)):
            session = SessionId(f"chat/{number}")
            decisions.append(past.turns(session, TURNS))
            if number < unfinished:
                decisions.append(past.unfinished(session, number))
        await asyncio.gather(*[store.decide(each).within(None) for each in decisions])
        await past.settled()
    shutil.copytree(store_path, killed)
    await store.close()


def _scan(path: Path) -> int:
    return sum(1 for _ in _rows(path))


def _rows(path: Path) -> Iterator[tuple[object, ...]]:
    connection = sqlite3.connect(path / "interlock.db")
    for name in TABLES:
        yield from connection.execute(f"SELECT * FROM {name}")
    connection.close()


def _count(path: Path, query: str) -> int:
    connection = sqlite3.connect(path / "interlock.db")
    found: int = connection.execute(query).fetchone()[0]
    connection.close()
    return found


async def _start(path: Path) -> float:
    began = perf_counter()
    async with open_control(_agent, store=f"sqlite:///{path}"):
        return perf_counter() - began


# Replay


def _replay(scale: Scale) -> Result:
    with directory() as path:
        session, written = asyncio.run(_long_log(path))
        cursors, pages, watches = [], [], []
        for _ in range(scale.rounds(9, 3)):
            with still():
                cursors.append(_cursor(path, session))
                pages.append(asyncio.run(_paged(path, session)))
                watches.append(asyncio.run(_watched(path, session, written)))
            gc.collect()
    cursor, paged, watched = (sorted(each)[len(each) // 2] for each in (cursors, pages, watches))
    small = (
        f"watch {written / watched:,.0f} events/s, a bare cursor over the same rows {written / cursor:,.0f} rows/s",
        f"store.events in pages of 256: {written / paged:,.0f} events/s, {cursor / paged:.2f} x",
    )
    name = f"replay of {LOG_EVENTS:,} events by watch / a bare cursor"
    return AtLeast(name=name, value=cursor / watched, goal=REPLAY_GOAL, small=small)


async def _long_log(path: Path) -> tuple[SessionId, int]:
    store, session = SqliteStore(path), SessionId("long")
    past = Past(store, await store.open())
    await store.decide(past.turns(session, LOG_EVENTS // 7))
    await past.settled()
    await store.close()
    return session, past.written


def _cursor(path: Path, session: SessionId) -> float:
    connection = sqlite3.connect(path / "interlock.db")
    query = "SELECT position, at, run_id, generation, data FROM events WHERE session = ? ORDER BY position"
    connection.execute(query, (session,)).fetchall()  # warms the cache
    began = perf_counter()
    for _ in connection.execute(query, (session,)):
        pass
    took = perf_counter() - began
    connection.close()
    return took


async def _paged(path: Path, session: SessionId) -> float:
    store = SqliteStore(path)
    await store.open()
    await store.events(session, after=0, limit=LOG_EVENTS)  # warms the cache
    began, after = perf_counter(), 0
    while page := (await store.events(session, after=after, limit=256)).events:
        after = page[-1].position
    took = perf_counter() - began
    await store.close()
    return took


async def _watched(path: Path, session: SessionId, count: int) -> float:
    async with open_control(_agent, store=f"sqlite:///{path}") as control:
        await control.history(session)  # warms the cache
        began, seen = perf_counter(), 0
        async for _ in control.watch(session):
            seen += 1
            if seen == count:
                break
        return perf_counter() - began
