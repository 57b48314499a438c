"""Every field of every row and event comes back from a store as it was put in."""

from typing import Any

import pytest
from tests.contracts.rows import ALICE, BOB, S, loaded, mark, play

from interlock.core.decision import (
    Decision,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StopMark,
    Tombstone,
    ToolRow,
    WakeRow,
)
from interlock.core.events import (
    Block,
    ChildData,
    ChildEnd,
    Correction,
    Data,
    Delta,
    Ended,
    Event,
    Gap,
    Json,
    MessageData,
    Phase,
    ProcessData,
    Progress,
    QuestionData,
    ReceiptData,
    Started,
    Tool,
    Typing,
)
from interlock.core.names import (
    PASSING,
    BodyState,
    CallId,
    Drain,
    Effect,
    Ending,
    ErrorKind,
    ProcessState,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
    WakeId,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, FallenTool, Processes, Receipt

TEXTS = {
    "plain": "hello",
    "empty": "",
    "many scripts": "halt \u505c \u0633\u062a\u0648\u067e \U0001f6d1 e\u0301 \u202e",
    "nul and controls": "a\x00b\x01\x1f\x7f\r\n\t\u2028\ufeff\ufffe",
    "quotes": """'; DROP TABLE runs; -- " \\ %s ? {}""",
    "a megabyte": "\u00df" * 500_000,
}


def full(text: str) -> Decision:
    """Return a decision in which every field of every row is set, with the text in all fields that may hold any."""
    whole = Outcome(
        run_id=RunId("a"), ending=Ending.TIMED_OUT, text=text, by=BOB, superseded_by=RunId("z"), phase=text,
        limit_ms=2**40, error=text, error_kind=ErrorKind.PROVIDER, hidden=True, typed=True, tools=("t", text),
        started_at=1e9 + 0.1, ended_at=1e9 + 0.2, drained=True,
    )  # fmt: skip
    fallen = FallenRun(id=RunId("a"), outcome=whole, body=BodyState.KILLED, refused={Effect.DELTA: 3, Effect.TOOL: 1})
    proof = Receipt(
        id=ReceiptId("f"), session=S, cause=Ending.TIMED_OUT, by=BOB, runs=(fallen,), fenced_at=1.1, ended_at=1.2,
        drained_at=1.3, drain=Drain.UNCONFIRMED, durable=False, grade="process", unseen=(text,),
        refused={Effect.SPAWN: 2}, tools=(FallenTool(name=text, state=ToolState.INTERRUPTED, run_id=RunId("a")),),
        processes=Processes(ended=1, stuck=2, detached=3), host="killed", questions=1, queued=2, in_flight=3, holds=4,
        unconfirmed=(text,), aborted=True, already=Ending.STOPPED,
    )  # fmt: skip
    run = RunRow(
        id=RunId("a"), session=S, principal=BOB, kind=RunKind.CHILD, text=text, admitted_at=1e9 + 1e-6, key="k",
        deadline=1e9 + 7.25, parent=RunId("p"), home=SessionId("other"), agent=text, detached=True, alias=RunId("z"),
        generation=2**53 + 1, started=True, outcome=whole, cut=text, told=True,
    )  # fmt: skip
    asked = QuestionRow(
        id=QuestionId("q"), run_id=RunId("a"), session=S, principal=BOB, text=text, choices=(text, "no"),
        state=QuestionState.ANSWERED, answer=text, by=ALICE,
    )  # fmt: skip
    return Decision(
        sessions=(
            SessionRow(
                id=S, owner=BOB, generation=2**53 + 2, strategy=Strategy.COLLECT, since=2**62, renewed=3, crashes=2
            ),
        ),
        admissions=(run,),
        keys=(
            KeyRow(
                principal=BOB, key="k", method="send", digest="d" * 64, run_id=RunId("a"), generation=2**53,
                superseded=RunId("z"),
            ),
        ),
        tombstones=(Tombstone(principal=BOB, key="t"),),
        tools=(
            ToolRow(
                call_id=CallId("a.1"), run_id=RunId("a"), name=text, arguments=Json(text), state=ToolState.ABANDONED
            ),
        ),
        receipts=(proof,),
        questions=(asked,),
        wakes=(
            WakeRow(
                id=WakeId("w"), session=S, principal=BOB, text=text, since=1.1, at=2.2, every=3.3, cron="* * * * *"
            ),
        ),
        marks=(StopMark(session=S, channel=text, by=BOB, at=123_456_789_012_345_678_901_234_567_890, stopped_at=1.5),),
    )  # fmt: skip


def bare() -> Decision:
    """Return a decision in which only the required fields are set."""
    run = RunRow(id=RunId("b"), session=S, principal=ALICE, kind=RunKind.CHAT, text="", admitted_at=0.0)
    over = RunRow(
        id=RunId("c"), session=S, principal=ALICE, kind=RunKind.WAKE, text="", admitted_at=0.0,
        outcome=Outcome(run_id=RunId("c"), ending=Ending.COMPLETED),
    )  # fmt: skip
    other = SessionId("other")
    fallen = FallenRun(id=RunId("c"), outcome=Outcome(run_id=RunId("c"), ending=Ending.COMPLETED))
    return Decision(
        sessions=(SessionRow(id=other, owner=ALICE, generation=0),),
        admissions=(run,),
        endings=(over,),
        keys=(KeyRow(principal=ALICE, key="l", method="", digest="", run_id=RunId("b")),),
        tools=(
            ToolRow(call_id=CallId("b.1"), run_id=RunId("b"), name="", arguments=Json(""), state=ToolState.PENDING),
        ),
        receipts=(
            Receipt(id=ReceiptId("g"), session=other, cause=Ending.COMPLETED, runs=(fallen,), fenced_at=0.0),
            Receipt(id=ReceiptId("h"), session=None, cause=None, fenced_at=0.0),
        ),
        questions=(
            QuestionRow(id=QuestionId("p"), run_id=RunId("b"), session=S, principal=ALICE, text=""),
            QuestionRow(
                id=QuestionId("o"), run_id=RunId("b"), session=S, principal=ALICE, text="",
                state=QuestionState.ANSWERED, answer=False,
            ),
        ),
        wakes=(WakeRow(id=WakeId("v"), session=S, principal=ALICE, text="", since=0.0),),
        marks=(StopMark(session=other, channel="c", by=ALICE, at=-0.5, stopped_at=0.0),),
    )  # fmt: skip


def all_data(text: str) -> list[Data]:
    """Return every sort of event data, with every field set."""
    decision = full(text)
    over, proof = decision.admissions[0].outcome, decision.receipts[0]
    assert over is not None
    tool = Tool(
        call_id=CallId("a.1"), name=text, state=ToolState.FAILED, arguments=Json(text), result=Json(text), error=text
    )
    return [
        MessageData(text=text, by=ALICE, of=RunId("z")), MessageData(text=text, by=ALICE), Started(), Delta(text=text),
        Block(text=text), Typing(on=True), Typing(on=False), Progress(text=text, done=0.5, total=2.0),
        Progress(text=text), Phase(name=text), Phase(name=None), tool,
        Tool(call_id=CallId("a.2"), name="", state=ToolState.PENDING),
        ProcessData(
            command=text, state=ProcessState.EXITED, name=text, pid=2**31, status=-9, background=True, detached=True,
            beside=(text,),
        ),
        ProcessData(command="", state=ProcessState.FAILED),
        QuestionData(
            question_id=QuestionId("q"), text=text, state=QuestionState.ANSWERED, choices=(text,), tool=text,
            arguments=Json(text), answer=text, by=BOB,
        ),
        QuestionData(question_id=QuestionId("q"), text="", state=QuestionState.ANSWERED, answer=True),
        QuestionData(question_id=QuestionId("q"), text="", state=QuestionState.OPEN),
        ChildData(child=RunId("d"), session=S, agent=text, detached=True, outcome=over),
        ChildData(child=RunId("d"), session=S, agent=""), ReceiptData(receipt=proof), Gap(after=2**62),
        Correction(outcome=over),
        Ended(
            outcome=over, cut=text, tools=(tool,), void=(QuestionId("q"),),
            children=(ChildEnd(child=RunId("d"), agent=text, ending=Ending.PARENT_ENDED),),
        ),
    ]  # fmt: skip


LONG = {"0": 0, "-1": -1, "2^53+1": 2**53 + 1, "-2^53-1": -(2**53) - 1, "10^300+1": 10**300 + 1, "-10^300": -(10**300)}


FINE = {"0.1": 0.1, "-0.1": -0.1, "1e300": 1e300, "-1e300": -1e300, "5e-300": 5e-300}


@pytest.mark.parametrize("text", TEXTS)
def test_every_row_is_kept_field_by_field(kit: Any, text: str) -> None:
    """Every sort of row is read as it was written, after a close and an opening too, whatever the text holds."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        most, least = full(TEXTS[text]), bare()
        await store.decide(most)
        await store.decide(least)
        for _ in range(2):
            assert await store.session(S) == most.sessions[0]
            assert await store.session(SessionId("other")) == least.sessions[0]
            assert await store.runs(S) == (*most.admissions, *least.admissions, *least.endings)
            assert await store.runs(SessionId("other"), tree=True) == most.admissions
            assert (await loaded(store, "k", by=BOB)).key == most.keys[0]
            assert (await loaded(store, "l")).key == least.keys[0]
            assert (await loaded(store, "t", by=BOB)).buried
            assert await store.tools(RunId("a")) == most.tools
            assert await store.tools(RunId("b")) == least.tools
            assert [await store.receipt(ReceiptId(name)) for name in "fgh"] == [*most.receipts, *least.receipts]
            assert [await store.question(QuestionId(name)) for name in "qpo"] == [*most.questions, *least.questions]
            assert sorted(await store.wakes(), key=lambda each: each.id) == [*least.wakes, *most.wakes]
            assert (await loaded(store)).marks == most.marks
            found = (await store.load(SessionId("other"), principal=ALICE, key=None)).marks
            assert found == least.marks and type(found[0].at) is float
            store = await kit.reopened(store)

    play(kit, main)


@pytest.mark.parametrize("text", TEXTS)
def test_every_event_is_kept_field_by_field(kit: Any, text: str) -> None:
    """Every sort of event is read as it was appended, after a close and an opening too."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        events = [
            Event(position=(7 << 32) + n, at=1e9 + 0.1, session=S, run_id=RunId("a"), generation=2**53 + 1, data=data)
            for n, data in enumerate(all_data(TEXTS[text])[:-1], 1)
        ]
        events.append(Event(position=8 << 32, session=S, run_id=None, generation=None, data=Gap(after=0)))
        for each in events:
            store.append(each)
        for _ in range(2):
            store = await kit.reopened(store)
            assert (await store.events(S, after=0, limit=99)).events == tuple(events)
        end = Event(position=9 << 32, session=S, run_id=RunId("a"), generation=1, data=all_data(TEXTS[text])[-1])
        store.append(end)
        store = await kit.reopened(store)
        lasting = tuple(each for each in events if each.kind not in PASSING)
        assert (await store.events(S, after=0, limit=99)).events == (*lasting, end)

    play(kit, main)


@pytest.mark.parametrize("at", [*LONG.values(), *FINE.values()], ids=[*LONG, *FINE])
def test_a_mark_of_any_length_is_exact(kit: Any, at: float) -> None:
    """A channel's number is kept to the last digit and compared as a number, also with its neighbours."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        step = 1 if isinstance(at, int) else abs(at) / 2
        for value, kept in ((at, at), (at - step, at), (at + step, at + step), (at, at + step)):
            await store.decide(Decision(marks=(mark(value),)))
            found = (await loaded(store)).marks
            assert found == (mark(kept),), (value, kept)
        store = await kit.reopened(store)
        assert (await loaded(store)).marks == (mark(at + step),)

    play(kit, main)
