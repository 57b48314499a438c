"""The transcript that is computed from a session's events."""

from itertools import pairwise

import pytest
from hypothesis import given

from core.histories import ALICE, S, histories, logs, stored
from interlock.core.events import Correction, Data, Ended, Entry, Event, Gap, Json, MessageData, Started, Tool
from interlock.core.names import PASSING, CallId, Ending, RunId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.projection import tool_words
from interlock.core.story import transcript

R, Q = RunId("r"), RunId("q")
CALL = Tool(call_id=CallId("c"), name="t", state=ToolState.PENDING, arguments=Json("{}"))


def told(*events: tuple[RunId | None, Data]) -> list[Event]:
    """Return a log of these events."""
    return [
        Event(position=place, session=S, run_id=run_id, generation=1, data=data)
        for place, (run_id, data) in enumerate(events, 1)
    ]


def message(text: str) -> MessageData:
    """Return a message."""
    return MessageData(text=text, by=ALICE)


def ended(run_id: RunId, ending: Ending, **more: object) -> Ended:
    """Return a terminal event."""
    return Ended(outcome=Outcome(run_id=run_id, ending=ending), **more)  # type: ignore[arg-type]


def over(events: list[Event]) -> set[RunId | None]:
    """Return the runs that have ended."""
    return {event.run_id for event in events if isinstance(event.data, Ended)}


@given(logs())
def test_the_transcript_is_valid_for_a_model(events: list[Event]) -> None:
    """Every result has its call before it, and every call of a run that ended has one result (race 50)."""
    entries = transcript(events)
    for run_id in {entry.run_id for entry in entries}:
        calls: dict[CallId | None, int] = {}
        for entry in entries:
            if entry.run_id == run_id and entry.role == "call":
                calls[entry.call_id] = 0
            elif entry.run_id == run_id and entry.role == "result":
                assert entry.text or entry.state is ToolState.ABANDONED
                calls[entry.call_id] += 1
        assert run_id not in over(events) or set(calls.values()) <= {1}


@given(logs())
def test_a_turn_stands_in_one_piece(events: list[Event]) -> None:
    """No entry of another run stands between two entries of a run: a call would stand apart from its result."""
    runs = [entry.run_id for entry in transcript(events)]
    changes = sum(one != other for one, other in pairwise(runs))
    assert changes == max(0, len(set(runs)) - 1)


@given(histories())
def test_a_log_without_deltas_tells_the_same(events: list[Event]) -> None:
    """For every prefix of the log the transcript is the same without the passing events (race 126)."""
    for length in range(len(events) + 1):
        prefix = events[:length]
        lasting = [event for event in prefix if event.kind not in PASSING]
        assert transcript(prefix) == transcript(lasting) == transcript(stored(prefix))


@given(histories())
def test_a_turn_grows_with_the_log(events: list[Event]) -> None:
    """A longer log adds to a turn and changes no entry but `hidden`: live and rebuilt transcripts agree (race 126)."""
    whole = transcript(events)
    hidden = {entry.run_id for entry in whole if entry.hidden}
    for length in range(len(events) + 1):
        part = transcript(events[:length])
        for run_id in {entry.run_id for entry in part} - hidden:
            mine = [entry for entry in part if entry.run_id == run_id]
            assert [entry for entry in whole if entry.run_id == run_id][: len(mine)] == mine


@given(histories())
def test_the_partial_text_is_there_once(events: list[Event]) -> None:
    """The partial text stands in the transcript exactly once, and an early end is marked as such."""
    entries = transcript(events)
    for event in events:
        if isinstance(event.data, Ended):
            mine = [entry for entry in entries if entry.run_id == event.run_id]
            cuts = [entry for entry in mine if entry.cut]
            if event.data.outcome.ending is Ending.COMPLETED:
                assert cuts == []
            else:
                assert [(entry.text, entry.ending) for entry in cuts] == [(event.data.cut, event.data.outcome.ending)]
                assert mine[-1] is cuts[0]
            assert {entry.hidden for entry in mine} <= {event.data.outcome.hidden}


@given(histories())
def test_each_message_stands_once_and_none_that_waits(events: list[Event]) -> None:
    """A message stands once, in the turn that ran it or absorbed it; a message that waits does not stand yet."""
    texts = [entry.text for entry in transcript(events) if entry.role == "user"]
    assert len(texts) == len(set(texts))
    began = {event.run_id for event in events if isinstance(event.data, Started | Ended)}
    waiting = [event.data.text for event in events if isinstance(event.data, MessageData) and event.run_id not in began]
    assert not set(waiting) & set(texts)


@pytest.mark.parametrize("data", [Gap(after=3), Correction(outcome=Outcome(run_id=R, ending=Ending.LOST))])
def test_session_events_are_not_of_the_transcript(data: Data) -> None:
    """Receipts, gaps and corrections are events of the session, and the transcript leaves them out."""
    log = told((R, message("go")), (R, Started()))
    assert transcript([*log, *told((None, data))]) == transcript(log)


@pytest.mark.parametrize("state", [ToolState.SKIPPED, ToolState.INTERRUPTED])
def test_a_call_without_a_result_says_why(state: ToolState) -> None:
    """A call without a result says why in words, so that a model is not left guessing."""
    log = told((R, Started()), (R, CALL), (R, Tool(call_id=CALL.call_id, name="t", state=state)))
    [result] = [entry for entry in transcript(log) if entry.role == "result"]
    assert result.text == tool_words(state) and result.state is state


def test_a_cut_without_text_still_tells_why() -> None:
    """An early end that left no text is told as an empty cut entry with its ending."""
    last = transcript(told((R, Started()), (R, ended(R, Ending.STOPPED))))[-1]
    assert last == Entry(role="assistant", run_id=R, cut=True, ending=Ending.STOPPED)


def test_a_message_that_ends_unrun_does_not_part_a_call_from_its_result() -> None:
    """A waiting message that is stopped while a tool of the turn before it runs stands behind that turn."""
    done = Tool(call_id=CALL.call_id, name="t", state=ToolState.FINISHED, result=Json("1"))
    log = told(
        (R, message("go")),
        (R, Started()),
        (R, CALL),
        (Q, message("wait")),
        (Q, ended(Q, Ending.STOPPED)),
        (R, done),
        (R, ended(R, Ending.COMPLETED)),
    )
    assert [entry.role for entry in transcript(log)] == ["user", "call", "result", "user", "assistant"]


def test_an_empty_log() -> None:
    """An empty log gives an empty transcript."""
    assert transcript([]) == []
