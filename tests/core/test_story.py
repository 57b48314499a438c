"""A run's story and a session's conversation, over random histories."""

from hypothesis import given

from core.histories import histories, logs
from interlock.core import events as old_events
from interlock.core.events import Ended, Entry, Event, Started
from interlock.core.names import QuestionState, RunId
from interlock.core.story import OPEN_CALLS, Conversation, transcript
from interlock.runtime.recovery import _stories
from interlock.surfaces.telling import Teller


def grouped(events: list[Event], entries: list[Entry]) -> list[Entry]:
    """Return entries turn by turn, in the order in which the turns began."""
    order: dict[RunId | None, None] = {}
    for length in range(1, len(events) + 1):
        if isinstance(events[length - 1].data, Started | Ended):
            order.setdefault(events[length - 1].run_id)
        for entry in old_events.transcript(events[:length]):
            order.setdefault(entry.run_id)
    return [entry for run_id in order for entry in entries if entry.run_id == run_id]


@given(logs())
def test_the_transcript_is_the_old_one_turn_by_turn(events: list[Event]) -> None:
    """The transcript has the entries that it had, each turn in one piece."""
    assert transcript(events) == grouped(events, old_events.transcript(events))


@given(logs())
def test_recovery_reads_the_same_facts(events: list[Event]) -> None:
    """A story holds every fact that recovery reads."""
    told = Conversation()
    for event in events:
        told.take(event)
    corrected = {e.data.outcome.run_id for e in events if e.kind == "correction"}
    for run_id, old in _stories(events).items():
        story = told.stories.get(run_id)
        if story is None:
            assert not (old.said or old.parts or old.ended or old.calls)
            continue
        assert any(each.of is None for each in story.messages) == old.said
        assert {each.of for each in story.messages if each.of is not None} == old.parts
        assert (story.started_at, story.blocks) == (old.started_at, old.blocks)
        over = old.ended is not None
        assert {c.call_id: c for c in old.calls.values() if c.state in OPEN_CALLS} == {
            c.call_id: c for c in story.calls.values() if c.state in OPEN_CALLS
        } or over
        if not over and run_id not in corrected:
            assert story.open == old.open
            assert {key: each.state for key, each in story.calls.items()} == {
                key: each.state for key, each in old.calls.items()
            }
            assert story.questions == old.questions
            assert {key for key, each in story.children.items() if each.outcome is not None} == old.children
        if run_id not in corrected:
            assert story.outcome == old.ended
        if story.receipt is not None and over:
            last = story.receipt
            assert (old.proof == last) if last.session == "s" else old.with_home
        else:
            assert (old.proof, old.with_home) == (None, False) or not over


@given(histories())
def test_the_published_wording_depends_on_the_same(events: list[Event]) -> None:
    """A story holds all that the published words of the next event depend on."""
    told, teller = Conversation(), Teller()
    for event in events:
        told.take(event)
        teller.tell(event, ["s"])
        for run_id, old in teller._runs.items():
            story = told.stories[run_id]
            note = next((m.text for m in story.messages[:1] if m.child is not None and story.started_at is None), "")
            assert (story.open, bool(story.blocks or story.open), story.typing) == (old.open, old.said, old.typing)
            asked = {k for k, q in story.questions.items() if q.state is QuestionState.OPEN}
            assert (asked, note) == (old.voidable, old.note)
