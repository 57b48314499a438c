"""Rows, events and outcomes for tests of a store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from interlock.core.decision import KeyRow, QuestionRow, RunRow, SessionRow, StopMark, ToolRow, WakeRow
from interlock.core.events import Data, Ended, Event, Json
from interlock.core.names import (
    CallId,
    Ending,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    ToolState,
    WakeId,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt
from interlock.stores.base import Store

ALICE, BOB = Principal("alice"), Principal("bob")


S = SessionId("s")


def play(kit: Any, main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(main(), 120)  # type: ignore[arg-type]
        finally:
            await kit.close()

    asyncio.run(whole())


in_memory_only = pytest.mark.parametrize("kit", ["memory"], indirect=True)  # see MemoryKit.lose


def session(generation: int, *, owner: Principal = ALICE, name: SessionId = S) -> SessionRow:
    return SessionRow(id=name, owner=owner, generation=generation)


def outcome(run: str, ending: Ending, **more: Any) -> Outcome:
    return Outcome(run_id=RunId(run), ending=ending, **more)


def row(
    run: str,
    ended: Outcome | None = None,
    *,
    text: str = "hello",
    name: SessionId = S,
    generation: int | None = 1,
) -> RunRow:
    return RunRow(
        id=RunId(run),
        session=name,
        principal=ALICE,
        kind=RunKind.CHAT,
        text=text,
        admitted_at=1.0,
        outcome=ended,
        generation=generation,
    )


def ended(run: str, ending: Ending, **more: Any) -> RunRow:
    return row(run, outcome(run, ending, **more))


def key(name: str, run: str, *, by: Principal = ALICE, digest: str = "d") -> KeyRow:
    return KeyRow(principal=by, key=name, method="send", digest=digest, run_id=RunId(run), generation=1)


def receipt(name: str, *runs: str, durable: bool = True) -> Receipt:
    fallen = tuple(FallenRun(id=RunId(run), outcome=outcome(run, Ending.STOPPED)) for run in runs)
    return Receipt(id=ReceiptId(name), session=S, cause=Ending.STOPPED, runs=fallen, fenced_at=1.0, durable=durable)


def event(position: int, data: Data, run: str | None = "r", name: SessionId = S) -> Event:
    return Event(position=position, session=name, run_id=None if run is None else RunId(run), generation=1, data=data)


def tool_row(call: str = "r.1", state: ToolState = ToolState.RUNNING) -> ToolRow:
    return ToolRow(call_id=CallId(call), run_id=RunId("r"), name="t", arguments=Json("{}"), state=state)


def question(state: QuestionState = QuestionState.OPEN, *, name: str = "q", run: str = "r", **more: Any) -> QuestionRow:
    return QuestionRow(
        id=QuestionId(name), run_id=RunId(run), session=S, principal=ALICE, text="Deploy?", state=state, **more
    )


def wake(name: str, *, every: float = 60.0) -> WakeRow:
    return WakeRow(id=WakeId(name), session=S, principal=ALICE, text="look", since=1.0, every=every)


def mark(
    at: float, *, channel: str = "chat", by: Principal = ALICE, name: SessionId = S, since: float = 1.0
) -> StopMark:
    return StopMark(session=name, channel=channel, by=by, at=at, stopped_at=since)


def child(run: str, *, ended: Outcome | None = None, home: SessionId = S) -> RunRow:
    plain = row(run, ended, name=SessionId(f"run:{run}"))
    return msgspec.structs.replace(plain, kind=RunKind.CHILD, parent=RunId("r"), home=home, agent="other")


async def loaded(store: Store, wanted: str | None = None, *, by: Principal = ALICE) -> Any:
    return await store.load(S, principal=by, key=wanted)


S_ = QuestionState


async def told(store: Store, run: str) -> None:
    """Wait until a store has recorded that a run's end was published."""
    while True:
        kept = await store.run(RunId(run))
        if kept is not None and kept.told:
            return
        await asyncio.sleep(0.005)


def end_of(run: str, position: int = 1, name: SessionId = S) -> Event:
    return event(position, Ended(outcome=outcome(run, Ending.STOPPED)), run, name)
