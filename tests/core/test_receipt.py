"""The receipt: its schema, its defaults, and that it crosses a wire whole."""

import msgspec
import pytest

from interlock.core.names import BodyState, Drain, Effect, Ending, Principal, ReceiptId, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.receipt import (
    FATES,
    GRADES,
    FallenRun,
    FallenTool,
    Processes,
    Receipt,
    Totals,
    nothing,
    shown,
    split,
    summed,
)
from interlock.processes.base import Grade

OUTCOME = Outcome(run_id=RunId("r-1"), ending=Ending.STOPPED, text="half", by=Principal("alice"))
FULL = Receipt(
    id=ReceiptId("f-1"),
    session=SessionId("s"),
    cause=Ending.STOPPED,
    by=Principal("alice"),
    runs=(FallenRun(id=RunId("r-1"), outcome=OUTCOME, body=BodyState.CUT),),
    fenced_at=10.0,
    ended_at=10.25,
    drained_at=11.0,
    drain=Drain.UNCONFIRMED,
    durable=False,
    refused={Effect.DELTA: 3, Effect.TOOL: 1},
    tools=(FallenTool(name="search", state=ToolState.INTERRUPTED, run_id=RunId("r-1")),),
    processes=Processes(ended=2, stuck=1),
    queued=4,
    unconfirmed=("thread of tool search",),
    aborted=True,
    already=None,
)


def test_the_schema() -> None:
    """A receipt has the fields the design names, and those of the one call that returned it."""
    named = (
        "id session cause by runs fenced_at ended_at drained_at drain durable grade refused tools processes host "
        "questions queued in_flight holds aborted already"
    )
    assert set(named.split()) <= set(Receipt.__struct_fields__)
    assert {field: getattr(FULL.runs[0], field) for field in ("id", "outcome", "body")}


def test_a_receipt_crosses_a_wire() -> None:
    """A receipt is the same after being encoded and decoded, with every word of its vocabularies."""
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Receipt) == FULL
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(FULL), type=Receipt) == FULL


def test_a_receipt_is_frozen() -> None:
    """A receipt is a fact: it grows by being made again, never by being changed."""
    with pytest.raises(AttributeError):
        FULL.drain = Drain.OBSERVED  # type: ignore[misc]


def test_from_the_fence_to_the_end() -> None:
    """A receipt tells in milliseconds how long the end took, once the end is public."""
    assert FULL.fence_to_end_ms == 250.0
    assert msgspec.structs.replace(FULL, ended_at=None).fence_to_end_ms is None


def test_a_receipt_begins_small() -> None:
    """A new receipt says what is not known yet: pending, nothing refused, nothing ended."""
    young = Receipt(id=ReceiptId("f"), session=SessionId("s"), cause=Ending.STOPPED, fenced_at=1.0)
    assert (young.drain, young.ended_at, young.drained_at) == (Drain.PENDING, None, None)
    assert (young.refused, young.tools, young.runs, young.unconfirmed) == ({}, (), (), ())
    assert (young.aborted, young.already, young.host, young.processes) == (False, None, "none", Processes())


def test_receipts_share_no_counts() -> None:
    """Two receipts never count into one dictionary."""
    one, two = (Receipt(id=None, session=None, cause=None, fenced_at=1.0) for _ in range(2))
    assert one.refused is not two.refused


@pytest.mark.parametrize("already", [None, Ending.COMPLETED])
def test_the_receipt_of_a_stop_that_ended_nothing(already: Ending | None) -> None:
    """The receipt of a stop that ended nothing has no id and no runs, says what it found, and is drained (race 128)."""
    receipt = nothing(session=SessionId("s"), by=Principal("alice"), now=5.0, already=already)
    assert (receipt.id, receipt.cause, receipt.runs, receipt.aborted) == (None, None, (), False)
    assert (receipt.already, receipt.by, receipt.session) == (already, "alice", "s")
    assert (receipt.drain, receipt.fenced_at, receipt.ended_at, receipt.drained_at) == (Drain.OBSERVED, 5.0, 5.0, 5.0)


TOTALS = [
    Totals(grade="cgroup", processes=Processes(ended=2), host="reused", kept=("web 7",), questions=1, holds=1),
    Totals(grade="keeper", unseen=("daemons",), processes=Processes(stuck=1), host="killed", unconfirmed=("agent",)),
    Totals(queued=1, unconfirmed=("agent",)),
]
RUNS = tuple(
    FallenRun(id=RunId(f"r-{n}"), outcome=OUTCOME, refused={Effect.DELTA: n}, totals=totals)
    for n, totals in enumerate(TOTALS, 1)
)
TOOLS = tuple(FallenTool(name=f"tool {run.id}", state=ToolState.FAILED, run_id=run.id) for run in RUNS)
WHOLE = summed(msgspec.structs.replace(FULL, runs=(), tools=()), RUNS, TOOLS, Totals(processes=Processes(ended=5)))


def test_totals_are_sums_over_the_runs() -> None:
    """A receipt counts what its runs add, and names the weakest grade, the worst fate and each name once."""
    assert (WHOLE.grade, WHOLE.unseen, WHOLE.processes) == ("keeper", ("daemons",), Processes(ended=7, stuck=1))
    assert (WHOLE.host, WHOLE.kept, WHOLE.unconfirmed) == ("killed", ("web 7",), ("agent",))
    assert (WHOLE.questions, WHOLE.queued, WHOLE.holds, WHOLE.refused) == (1, 1, 1, {Effect.DELTA: 6})
    assert (WHOLE.runs, WHOLE.tools, WHOLE.id) == (RUNS, TOOLS, FULL.id)


def test_a_part_has_its_own_totals() -> None:
    """A part of a receipt is the sum over its runs; the processes that belong to no run count in the whole alone."""
    part = shown(WHOLE, {RUNS[0].id})
    assert (part.runs, part.tools, part.processes) == (RUNS[:1], TOOLS[:1], Processes(ended=2))
    assert (part.grade, part.host, part.unconfirmed, part.queued) == ("cgroup", "reused", (), 0)
    assert (part.id, part.drain, part.fenced_at) == (WHOLE.id, WHOLE.drain, WHOLE.fenced_at)
    assert shown(WHOLE, [run.id for run in RUNS]) is WHOLE


def test_parts_are_those_that_are_asked_for() -> None:
    """A receipt is split by key, and a run that is not in the receipt adds nothing."""
    parts = split(WHOLE, {"a": [RUNS[0].id], "b": [RUNS[1].id, RUNS[2].id, RunId("r-9")]})
    assert parts == {"a": shown(WHOLE, [RUNS[0].id]), "b": shown(WHOLE, [RUNS[1].id, RUNS[2].id])}


def test_a_receipt_without_parts_of_totals_is_read() -> None:
    """A stored receipt whose runs have no totals keeps its own; a part of it counts nothing."""
    old = msgspec.json.decode(msgspec.json.encode(FULL).replace(b',"totals":{}', b""), type=Receipt)
    assert old == FULL
    assert shown(old, []).processes == Processes()


def test_every_grade_has_its_place() -> None:
    """The order of grades in a receipt is that of the grades, the weakest first."""
    assert tuple(reversed(Grade)) == GRADES
    assert FATES[0] == "none"
