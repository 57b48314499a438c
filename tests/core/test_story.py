"""A run's story and a session's conversation, over random histories."""

import msgspec
import pytest
from hypothesis import given

from core.histories import histories, logs
from core.vectors import told, vectors
from interlock.core.events import Block, ChildData, Delta, Ended, Event, QuestionData, Tool, Typing
from interlock.core.names import PASSING, QuestionState, RunId
from interlock.core.story import OPEN_CALLS, Conversation, Story


def of_run(events: list[Event]) -> dict[RunId, list[Event]]:
    """Return the events of each run."""
    runs: dict[RunId, list[Event]] = {}
    for event in events:
        if event.run_id is not None:
            runs.setdefault(event.run_id, []).append(event)
    return runs


@given(histories())
def test_the_joined_deltas_are_the_reply(events: list[Event]) -> None:
    """After every event the deltas told so far are the text so far, also where a block is longer than its deltas."""
    for mine in of_run(events).values():
        story, said = Story(), ""
        for event in mine:
            said += "".join(change.text for change in story.take(event) if isinstance(change, Delta))
            assert said == story.text


@given(histories())
def test_a_reader_who_heard_no_delta_is_told_the_same_reply(events: list[Event]) -> None:
    """The deltas told of a log without passing events are the reply that a listener heard live."""
    for mine in of_run(events).values():
        live, later = Story(), Story()
        heard = [change for event in mine for change in live.take(event)]
        read = [change for event in mine if event.kind not in PASSING for change in later.take(event)]
        if live.outcome is not None:
            texts = ["".join(each.text for each in told if isinstance(each, Delta)) for told in (heard, read)]
            assert texts[0] == texts[1]
        assert live.blocks == later.blocks


@given(logs())
def test_an_end_is_told_as_all_that_it_closes_and_then_itself(events: list[Event]) -> None:
    """Before the end every call, question, child and typing sign is told as closed; the end is the last change."""
    for mine in of_run(events).values():
        story = Story()
        told = [change for event in mine for change in story.take(event)]
        if story.outcome is None:
            continue
        assert [isinstance(change, Ended) for change in told].index(True) == len(told) - 1
        calls = {change.call_id: change.state for change in told if isinstance(change, Tool)}
        asked = {change.question_id: change.state for change in told if isinstance(change, QuestionData)}
        children = {change.child: change for change in told if isinstance(change, ChildData)}
        assert not set(calls.values()) & OPEN_CALLS
        assert QuestionState.OPEN not in asked.values()
        assert all(child.outcome is not None or child.detached for child in children.values())
        assert [change.on for change in told if isinstance(change, Typing)][-1:] in ([], [False])
        assert not story.typing


@given(logs())
def test_nothing_follows_the_end(events: list[Event]) -> None:
    """A run that has ended takes no event of its own, whether its conversation keeps it or has forgotten it."""
    kept, forgetful = Conversation(), Conversation()
    for event in events:
        assert kept.take(event) == forgetful.take(event)
        if isinstance(event.data, Ended) and event.run_id is not None:
            forgetful.forget(event.run_id)
    entries = kept.entries()
    ended = {run_id for run_id, story in kept.stories.items() if story.outcome is not None}
    for event in events:
        if event.run_id in ended:
            assert kept.take(event) == forgetful.take(event) == ()
    assert kept.entries() == entries


@given(histories())
def test_every_event_changes_something(events: list[Event]) -> None:
    """A conversation takes every event that is not late, and returns it behind what it implies."""
    told = Conversation()
    for event in events:
        assert told.take(event)[-1] == event.data or isinstance(event.data, Delta)


def test_a_block_of_which_the_first_deltas_were_missed_is_told_whole() -> None:
    """A reader who joined in the middle of a block is told the whole block, set apart from what it heard."""
    story = Story()
    told = [
        story.take(Event(position=place, session="s", run_id="r", generation=1, data=data))
        for place, data in enumerate((Delta(text="lo"), Block(text="Hello"), Delta(text="more")))
    ]
    assert told == [
        (Delta(text="lo"),),
        (Delta(text="\n\nHello"), Block(text="Hello")),
        (Delta(text="\n\nmore"),),
    ]
    assert story.text == "Hello\n\nmore"


@pytest.mark.parametrize("name", vectors())
def test_the_shared_vectors(name: str) -> None:
    """A conversation makes of each shared vector what the vector says; the page's model does too."""
    vector = vectors()[name]
    events = msgspec.convert(vector.pop("events"), list[Event])
    assert msgspec.to_builtins(told(events)) == vector
