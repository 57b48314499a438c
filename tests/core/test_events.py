"""Events, and the transcript that is computed from them."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.events import (
    Block,
    Correction,
    Data,
    Delta,
    Ended,
    Entry,
    Event,
    Gap,
    Json,
    MessageData,
    Phase,
    Progress,
    ReceiptData,
    Started,
    Tool,
    Typing,
    transcript,
)
from interlock.core.names import (
    EARLY,
    ENDINGS,
    PASSING,
    CallId,
    Ending,
    EventKind,
    Principal,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.projection import tool_words
from interlock.core.receipt import nothing

ALICE, S = Principal("alice"), SessionId("s")


class Log:
    """Writes a log as the runtime would: positions rise, one run after the other."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._run = RunId("r-0")
        self._calls = 0

    def tell(self, data: Data, *, of_run: bool = True) -> None:
        """Add an event."""
        run = self._run if of_run else None
        self.events.append(Event(position=len(self.events) + 1, session=S, run_id=run, generation=1, data=data))

    def begin(self, number: int) -> None:
        """Begin a run."""
        self._run = RunId(f"r-{number}")
        self.tell(MessageData(text=f"message {number}", by=ALICE))
        self.tell(Started())

    def call(self) -> CallId:
        """Record a call."""
        self._calls += 1
        call = CallId(f"c-{self._calls}")
        self.tell(Tool(call_id=call, name="t", state=ToolState.PENDING, arguments=Json("{}")))
        return call

    def end(self, ending: Ending, open_calls: list[tuple[CallId, bool]], cut: str) -> None:
        """End the run: every open call gets its result."""
        tools = tuple(
            Tool(call_id=call, name="t", state=ToolState.INTERRUPTED if begun else ToolState.SKIPPED)
            for call, begun in open_calls
        )
        self.tell(Ended(outcome=Outcome(run_id=self._run, ending=ending, text=cut), cut=cut, tools=tools))
        self.tell(ReceiptData(receipt=nothing(session=S, by=ALICE, now=1.0)), of_run=False)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A log of a few runs: text, calls and batches, cut anywhere, with passing events mixed in."""
    log = Log()
    for number in range(draw(st.integers(1, 3))):
        log.begin(number)
        said = ""
        open_calls: list[tuple[CallId, bool]] = []
        for step in draw(st.lists(st.sampled_from(["say", "post", "call", "batch", "typing", "phase"]), max_size=6)):
            if step == "say":
                said += "ab"
                log.tell(Delta(text="ab"))
            elif step == "typing":
                log.tell(Typing(on=True))
                log.tell(Progress(text="half", done=1, total=2))
            elif step == "phase":
                log.tell(Phase(name="provider"))
            else:
                if said:
                    log.tell(Block(text=said))
                    said = ""
                if step == "post":
                    log.tell(Block(text="block"))
                    continue
                calls = [log.call() for _ in range(1 if step == "call" else 3)]
                finished = draw(st.integers(0, len(calls)))
                for call in calls[:finished]:
                    log.tell(Tool(call_id=call, name="t", state=ToolState.RUNNING))
                    state = draw(st.sampled_from([ToolState.FINISHED, ToolState.FAILED]))
                    told = {"result": Json("1")} if state is ToolState.FINISHED else {"error": "E: x"}
                    log.tell(Tool(call_id=call, name="t", state=state, **told))
                if finished < len(calls):
                    log.tell(Tool(call_id=calls[finished], name="t", state=ToolState.RUNNING))
                    open_calls = [(call, call == calls[finished]) for call in calls[finished:]]
                    break  # the run falls here
        ending = draw(st.sampled_from(sorted(EARLY) if open_calls else sorted(ENDINGS)))
        if ending == Ending.COMPLETED and said:
            log.tell(Block(text=said))
            said = ""
        log.end(Ending(ending), open_calls, said)
    return log.events


def whole_runs(events: list[Event]) -> list[list[Event]]:
    """The prefixes of a log at which no run is open."""
    ends = [index for index, event in enumerate(events, 1) if isinstance(event.data, Ended)]
    return [events[:end] for end in ends]


def valid_for_a_model(entries: list[Entry]) -> None:
    """Every call has exactly one result, and both stand before anything else is said."""
    open_calls: list[str] = []
    answered: set[str] = set()
    for entry in entries:
        if entry.role == "call":
            assert entry.call_id not in answered and entry.call_id not in open_calls
            open_calls.append(entry.call_id or "")
        elif entry.role == "result":
            open_calls.remove(entry.call_id or "")
            answered.add(entry.call_id or "")
            assert entry.text, "a result always says something"
        else:
            assert not open_calls
    assert not open_calls


@given(logs())
def test_the_transcript_is_valid_for_a_model(events: list[Event]) -> None:
    """After any run that ended, every call has exactly one result, in place (race 50)."""
    for prefix in whole_runs(events):
        valid_for_a_model(transcript(prefix))


@given(logs())
def test_a_log_without_deltas_tells_the_same(events: list[Event]) -> None:
    """For every prefix of the log the transcript is the same without the passing events (race 126)."""
    for length in range(len(events) + 1):
        prefix = events[:length]
        lasting = [event for event in prefix if event.kind not in PASSING]
        assert transcript(prefix) == transcript(lasting)


@given(logs())
def test_the_transcript_grows_with_the_log(events: list[Event]) -> None:
    """A longer log never changes the transcript of a shorter one: live and rebuilt projections agree (race 126)."""
    whole = transcript(events)
    for length in range(len(events) + 1):
        part = transcript(events[:length])
        assert whole[: len(part)] == part


@given(logs())
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


@given(logs())
def test_a_log_that_forgot_its_beginning_has_no_result_without_its_call(events: list[Event]) -> None:
    """A log that lost its first events has no result without its call, which a model would refuse."""
    for start in range(len(events) + 1):
        called: set[str | None] = set()
        for entry in transcript(events[start:]):
            if entry.role == "call":
                called.add(entry.call_id)
            assert entry.role != "result" or entry.call_id in called


@given(logs())
def test_events_cross_a_wire(events: list[Event]) -> None:
    """Every event is the same after being encoded and decoded."""
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_every_kind_of_data_has_its_own_tag() -> None:
    """Each sort of data encodes under the word of its kind, and no two share one."""
    tags = [kind.__struct_config__.tag for kind in get_args(Data)]
    kinds = [kind.kind for kind in get_args(Data)]
    assert len(set(tags)) == len(tags)
    assert tags == [kind.value for kind in kinds]
    assert set(EventKind) == set(kinds)


@pytest.mark.parametrize("data", [Gap(after=3), Correction(outcome=Outcome(run_id=RunId("r"), ending=Ending.LOST))])
def test_session_events_are_not_of_the_transcript(data: Data) -> None:
    """Receipts, gaps and corrections are events of the session, and the transcript leaves them out."""
    log = Log()
    log.begin(0)
    before = transcript(log.events)
    log.tell(data, of_run=False)
    assert transcript(log.events) == before


@pytest.mark.parametrize("state", [ToolState.SKIPPED, ToolState.INTERRUPTED])
def test_a_call_without_a_result_says_why(state: ToolState) -> None:
    """A call without a result says why in words, so that a model is not left guessing."""
    log = Log()
    log.begin(0)
    log.tell(Tool(call_id=log.call(), name="t", state=state))
    [result] = [entry for entry in transcript(log.events) if entry.role == "result"]
    assert result.text == tool_words(state) and result.state is state


def test_a_cut_without_text_still_tells_why() -> None:
    """An early end that left no text is told as an empty cut entry with its ending."""
    log = Log()
    log.begin(0)
    log.end(Ending.STOPPED, [], "")
    last = transcript(log.events)[-1]
    assert (last.role, last.text, last.cut, last.ending) == ("assistant", "", True, Ending.STOPPED)


def test_an_empty_log() -> None:
    """An empty log gives an empty transcript."""
    assert transcript([]) == []
