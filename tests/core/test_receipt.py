"""The receipt: its schema, its defaults, and that it crosses a wire whole."""

import msgspec
import pytest

from interlock.core.names import BodyState, Drain, Effect, Ending, Principal, ReceiptId, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, FallenTool, Processes, Receipt, nothing

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
