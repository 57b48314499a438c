"""Frames without a wire: which are read, which are refused, and how errors and events are worded.

`make prove` reads a million changed frames (`python -m proofs frames`); this file reads some of the same.
"""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proofs import frames as fuzz

from interlock.core import errors
from interlock.core.events import Block, Data, Delta, Ended, Event, Phase, Progress, QuestionData, Started, Tool, Typing
from interlock.core.fence import Fence
from interlock.core.names import CallId, Ending, QuestionId, QuestionState, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.protocol import frames, shapes
from interlock.surfaces.gateway import telling
from interlock.surfaces.gateway.published import PublishedWording
from surfaces.protocol import EXTRACT, PARAMS, Conversation

READ_INPUTS = 20_000
WIRE_INPUTS = 500


def request(method: str, params: Any = None, **more: Any) -> frames.Request:
    """Return a request after reading its frame."""
    frame = {"type": "req", "id": "1", "method": method, **({} if params is None else {"params": params}), **more}
    return frames.read_request(json.dumps(frame))


def read(method: str, params: Any) -> Any:
    """Read the params of a method."""
    return frames.read_params(request(method, params), frames.METHODS[method]).params


def deep(levels: int) -> Any:
    """Return a list nested to this depth."""
    return json.loads("[" * levels + "]" * levels)


# Requests


@pytest.mark.parametrize("method", frames.METHODS)
def test_what_is_right_is_read(method: str) -> None:
    """The proofs' example of every method is read."""
    assert isinstance(read(method, fuzz.PARAMS[method]), frames.METHODS[method].params)


def test_every_method_has_an_example() -> None:
    """The proofs have an example of every method."""
    assert set(fuzz.PARAMS) == set(frames.METHODS)


@pytest.mark.parametrize("method", [name for name, definition in PARAMS.items() if definition is not None])
def test_fields_of_the_published_schema_are_known(method: str) -> None:
    """Each published field is read, refused or ignored by us, and we name no field that is not published."""
    shape = json.loads(EXTRACT.read_text("utf-8"))["definitions"][PARAMS[method]]
    published = {name for part in (shape, *shape.get("anyOf", [])) for name in part.get("properties", {})}
    entry = frames.METHODS[method]
    ours = {field.encode_name for field in msgspec.structs.fields(entry.params)}
    assert published <= ours | entry.ignored | entry.refused
    assert entry.ignored | entry.refused <= published
    assert not (entry.ignored | entry.refused) & ours
    assert not entry.ignored & entry.refused


@pytest.mark.parametrize(
    ("value", "meant"),
    [(None, False), (False, False), ("", False), ([], False), ({}, False), (0, False), (True, True), ("x", True)],
)
def test_a_field_that_is_not_used_is_named_if_it_means_something(value: Any, meant: bool) -> None:
    """A field that we do not use is named only if its value asks for something else than we do."""
    asked = {"message": "hello", "idempotencyKey": "k", "model": value, "thinking": value}
    found = frames.read_params(request("agent", asked), frames.METHODS["agent"])
    assert found.params == shapes.Agent(message="hello", idempotency_key="k")
    assert (found.ignored, found.refused) == ((("thinking",), ("model",)) if meant else ((), ()))


def test_the_word_for_the_usual_way_means_nothing() -> None:
    """A word for the usual way (`webchat`, `full`) asks for nothing in its own field, and for something in another."""
    asked = {"message": "hello", "idempotencyKey": "k", "channel": "webchat", "promptMode": "full", "to": "webchat"}
    assert frames.read_params(request("agent", asked), frames.METHODS["agent"]).refused == ("to",)


def test_a_request_has_params_and_may_have_none() -> None:
    """A request without params has no fields."""
    assert bytes(request("health").params) == b"{}"
    assert request("health", {}, traceparent="00-1-2-01").traceparent == "00-1-2-01"


@pytest.mark.parametrize("number", ["x", "x" * 256, "\u20ac", "a b"])
def test_an_id_is_printable_and_not_long(number: str) -> None:
    """A printable id comes back unchanged."""
    frame = frames.read_request(json.dumps({"type": "req", "id": number, "method": "health"}))
    assert json.loads(frames.response(frame.id, {"a": 1})) == {
        "type": "res", "id": number, "ok": True, "payload": {"a": 1},
    }  # fmt: skip
    error = json.loads(frames.refusal(frame.id, frames.fault("UNAVAILABLE", "no")))
    assert (error["id"], error["ok"], error["error"]) == (number, False, {"code": "UNAVAILABLE", "message": "no"})


@pytest.mark.parametrize("number", ["", "x" * 257, "a\nb", "\0", "\u202e", "\u2028"])
def test_any_other_id_closes(number: str) -> None:
    """A request with another id cannot be answered, so the connection is closed."""
    with pytest.raises(frames.BadFrame) as bad:
        frames.read_request(json.dumps({"type": "req", "id": number, "method": "health"}))
    assert bad.value.code == frames.BROKEN_RULE


def test_what_is_wrong_is_not_told_again() -> None:
    """The reason of a close does not quote the frame: a client may have put a token in the wrong place."""
    for raw in (
        '{"type":"SECRET"}',
        '{"SECRET":1}',
        '"SECRET"',
        "SECRET",
        '{"type":"req","id":"1","method":"x","SECRET":1}',
    ):
        with pytest.raises(frames.BadFrame) as bad:
            frames.read_request(raw)
        assert "SECRET" not in str(bad.value)


@pytest.mark.parametrize(("levels", "right"), [(1, True), (31, True), (32, False), (100, False), (500, False)])
def test_how_deep_params_may_be(levels: int, right: bool) -> None:
    """Params may have 32 levels, themselves included, also in a field that is ignored."""
    if right:
        read("health", {"probe": deep(levels)})
    else:
        with pytest.raises(errors.BadInput, match="nested deeper than 32"):
            read("health", {"probe": deep(levels)})


def test_many_brackets_are_not_deep() -> None:
    """Many brackets side by side do not count as depth."""
    read("health", {"probe": [[] for _ in range(1_000)]})


ELEMENTS = frames.ELEMENTS
WIDE: dict[str, Any] = {
    "a list": [0] * (ELEMENTS + 1),
    "lists in a list": [[]] * ELEMENTS,
    "lists in lists": [[0] * 100] * 101,
    "objects": [{"a": 1, "b": 2}] * ELEMENTS,
    "texts": [""] * (ELEMENTS + 1),
    "keys": {f"{number}": "" for number in range(ELEMENTS + 1)},
    "texts that end in a backslash": ["\\", 0] * ELEMENTS,
}


@pytest.mark.parametrize("shape", WIDE)
@pytest.mark.parametrize(
    ("method", "field"), [("health", "probe"), ("chat.send", "attachments"), ("interlock.send", "x")]
)
def test_params_have_a_bounded_number_of_elements(method: str, field: str, shape: str) -> None:
    """Params with more than ELEMENTS entries are refused, in whichever field and whatever they are."""
    with pytest.raises(errors.BadInput, match="more than 10,000 elements; send fewer"):
        read(method, {field: WIDE[shape]})


def test_params_of_as_many_elements_as_may_be_are_read() -> None:
    """Params of exactly ELEMENTS entries are read, and one more is refused."""
    read("health", {"probe": [0] * (ELEMENTS - 1)})
    with pytest.raises(errors.BadInput, match="elements"):
        read("health", {"probe": [0] * ELEMENTS})


@pytest.mark.parametrize("piece", [",", "[", "{", '"', "\\", '\\"', '",[', "\\,[", "[[[{,", "\u20ac,", "\n[", "\0[,"])
@pytest.mark.parametrize("method", ["chat.send", "interlock.chat", "agent"])
def test_marks_in_a_text_are_no_elements(method: str, piece: str) -> None:
    """A message may have any number of commas, brackets, quotes and backslashes: only what is outside texts counts."""
    text = piece * (600_000 // len(json.dumps(piece)))
    session = {} if method == "agent" else {"sessionKey": "s"}
    for ascii_only in (True, False):
        asked = {"message": text, "idempotencyKey": "k", **session}
        frame = {"type": "req", "id": "1", "method": method, "params": asked}
        raw = frames.read_request(json.dumps(frame, ensure_ascii=ascii_only))
        assert frames.read_params(raw, frames.METHODS[method]).params.message == text


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet='",:[]{}\\ab/'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='",[{\\a'), inner),
        max_leaves=60,
    )
)
def test_depth_and_elements_are_those_of_the_value(value: Any) -> None:
    """The bounds are those of the value that a reader of JSON makes of the params, whatever its texts hold."""

    def depth(here: Any) -> int:
        inside = here.values() if isinstance(here, dict) else here if isinstance(here, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    try:
        read("health", {"probe": [value] * 40})
    except errors.BadInput as wrong:
        assert "nested deeper" in str(wrong) and depth(value) + 2 > frames.DEPTH
    else:
        assert depth(value) + 2 <= frames.DEPTH


@pytest.mark.parametrize("params", ["," * 100, "[" * 100, ["a"] * 100, 7, None])
def test_params_are_an_object(params: Any) -> None:
    """Params of another type are refused, also those with many commas or brackets."""
    frame = frames.read_request(json.dumps({"type": "req", "id": "1", "method": "health", "params": params}))
    with pytest.raises(errors.BadInput, match="Expected `object`"):
        frames.read_params(frame, frames.METHODS["health"])


def test_numbers_of_unused_fields_are_not_made() -> None:
    """A number of a field that is not used may have any number of digits: no value is made of it."""
    raw = '{"type":"req","id":"1","method":"health","params":{"probe":%s}}' % ("7" * 500_000)
    assert frames.read_params(frames.read_request(raw), frames.METHODS["health"]).ignored == ("probe",)


def test_the_last_of_two_fields_counts() -> None:
    """The last of two equal fields in a frame or its params counts, as in every reader of JSON."""
    raw = '{"type":"req","id":"1","method":"chat.abort","method":"health","params":{"x":1},"params":{}}'
    asked = frames.read_request(raw)
    assert (asked.method, bytes(asked.params)) == ("health", b"{}")


def test_a_token_is_in_no_repr() -> None:
    """The repr of a request shows no token, so that no log does."""
    params = {**fuzz.PARAMS["connect"], "auth": {"token": "SECRET", "password": "SECRET", "deviceToken": "SECRET"}}
    assert read("connect", params).auth.token == "SECRET"
    assert "SECRET" not in repr(read("connect", params))


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 10**40, 1.5, True, "1"])
def test_numbers_are_whole_and_not_huge(number: Any) -> None:
    """A number that a float or a clock cannot hold is refused before a method meets it."""
    with pytest.raises(errors.BadInput):
        read("agent.wait", {"runId": "r", "timeoutMs": number})


def test_changed_frames_break_nothing() -> None:
    """Frames that are almost right are read, refused or closed, and raise nothing else."""
    played = fuzz.play(1, READ_INPUTS)
    assert played.broken == []
    assert min(played.seen[word] for word in ("read", "refused", "closed", "no method")) > 100, played.seen


def test_changed_frames_break_no_server() -> None:
    """A server that gets changed frames answers or closes with a known code, logs no traceback and does not grow."""
    played, grown = fuzz.over_the_wire(1, WIRE_INPUTS)
    assert played.broken == []
    assert played.seen["sent"] > WIRE_INPUTS / 2
    assert min(played.seen[word] for word in ("answered", "INVALID_REQUEST", "closed with 1008")) > 10, played.seen
    assert grown < fuzz.GROWTH_BYTES


# Errors


@pytest.mark.parametrize("kind", frames.ERRORS)
def test_an_error_names_its_kind(kind: str) -> None:
    """An error on the wire names its class, so that our client raises the error that control raised."""
    told = frames.error_of(frames.ERRORS[kind]("try again"))
    assert (told["details"], told["message"]) == ({"kind": kind}, "try again")
    codes = {"Unknown": "NOT_FOUND", "Unavailable": "UNAVAILABLE", "QueueFull": "UNAVAILABLE"}
    assert told["code"] == codes.get(kind, "INVALID_REQUEST")
    assert told.get("retryable") == (True if told["code"] == "UNAVAILABLE" else None)


def test_an_error_of_another_kind_is_told_as_what_it_is_of() -> None:
    """A subclass is told as its base; an error without a text says its kind."""

    class Odd(errors.Rejected):
        pass

    class Other(errors.InterlockError):
        pass

    assert frames.error_of(Odd("busy"))["details"] == {"kind": "Rejected"}
    assert frames.error_of(Other())["code"] == "INVALID_REQUEST"
    assert frames.error_of(errors.Unknown())["message"] == "Unknown"


def test_our_own_schema_is_one() -> None:
    """Our schema is valid JSON Schema with exactly our own methods, closed, and our examples keep to it."""
    shape = frames.schema()
    assert set(shape["methods"]) == set(frames.METHODS) - frames.PUBLISHED
    for method, parts in shape["methods"].items():
        validator = jsonschema_rs.Draft202012Validator({**parts["params"], "$defs": shape["$defs"]})
        assert validator.is_valid(fuzz.PARAMS[method]), method
        assert not validator.is_valid({**fuzz.PARAMS[method], "more": 1}), method
        jsonschema_rs.Draft202012Validator({**parts["result"], "$defs": shape["$defs"]})


# Telling

RUN, SESSION = RunId("r-1-1"), SessionId("s")


class Told:
    """The published wording and its frames, checked as a connection would be."""

    def __init__(self) -> None:
        self.wording = PublishedWording()
        self.frames: list[dict[str, Any]] = []
        self._talk = Conversation()
        self._position = 0

    def tell(self, *several: Data, run: RunId | None = RUN) -> list[dict[str, Any]]:
        """Tell events; return the new frames."""
        before = len(self.frames)
        for data in several:
            self._position += 1
            event = Event(position=self._position, at=10.0, session=SESSION, run_id=run, generation=1, data=data)
            for item in self.wording.items(event, None, SESSION):
                raw = item.render(b"", len(self.frames) + 1, [item])
                self.frames.append(self._talk.server(raw))
        return self.frames[before:]


def ended(ending: Ending = Ending.COMPLETED, **more: Any) -> Ended:
    """Return the data of an ending."""
    return Ended(outcome=Outcome(run_id=RUN, ending=ending, started_at=1.0, ended_at=2.0, **more))


@pytest.mark.parametrize("ending", [each for each in Ending if each not in (Ending.PENDING, Ending.UNKNOWN)])
def test_an_end_is_told_once_in_each_stream_and_last(ending: Ending) -> None:
    """Each stream tells an ending once and last, with the native outcome and the generation."""
    told = Told()
    told.tell(Started(), Typing(on=True), Delta(text="a"))
    lifecycle, last = told.tell(ended(ending, text="a"))[-2:]
    assert (lifecycle["event"], last["event"]) == ("agent", "chat")
    assert lifecycle["payload"]["data"]["outcome"]["ending"] == ending
    assert last["payload"]["message"]["outcome"]["ending"] == ending
    assert last["payload"]["message"]["generation"] == lifecycle["payload"]["data"]["generation"] == 1
    assert last["payload"]["seq"] == lifecycle["payload"]["seq"]


def test_what_is_open_is_taken_back_before_the_end() -> None:
    """Typing is switched off and open questions are void in the same step, before the terminal event."""
    told = Told()
    told.tell(
        Started(), Typing(on=True), QuestionData(question_id=QuestionId("q-1"), text="may I?", state=QuestionState.OPEN)
    )
    names = [frame["event"] for frame in told.tell(ended(Ending.STOPPED))]
    assert names == ["exec.approval.resolved", "session.typing", "agent", "chat"]
    void, typing = told.frames[-4:-2]
    assert (void["payload"]["id"], void["payload"]["decision"]) == ("q-1", "deny")
    assert typing["payload"]["typing"] is False


def test_what_was_closed_is_not_taken_back() -> None:
    """An answered question stays answered, and typing that has ended is not ended again."""
    told = Told()
    told.tell(Typing(on=True), Typing(on=False))
    for state in (QuestionState.OPEN, QuestionState.ANSWERED):
        told.tell(QuestionData(question_id=QuestionId("q-1"), text="may I?", state=state, answer=True))
    assert [frame["event"] for frame in told.tell(ended())] == ["agent", "chat"]


def test_a_block_is_told_once() -> None:
    """A block's text is told once, streamed or whole; paragraphs are separated."""
    told = Told()
    assert len(told.tell(Delta(text="one "), Delta(text="two"))) == 4
    assert told.tell(Block(text="one two")) == []
    told.tell(Block(text="three"))
    chats = [frame["payload"]["deltaText"] for frame in told.frames if frame["event"] == "chat"]
    assert "".join(chats) == "one two\n\nthree"


def said(told: Told, stream: str) -> str:
    """Return the text of a run's stream so far."""
    payloads = [frame["payload"] for frame in told.frames]
    if stream == "chat":
        return "".join(each["deltaText"] for each in payloads if each.get("state") == "delta")
    return "".join(each["data"]["delta"] for each in payloads if each.get("stream") == stream)


@pytest.mark.parametrize("stream", ["chat", "assistant"])
def test_what_a_block_adds_to_its_deltas_is_told_before_the_end(stream: str) -> None:
    """A block may be longer than its deltas, and may follow another that was posted whole."""
    told = Told()
    told.tell(Delta(text="Hel"), Delta(text="lo"), Block(text="Hello world."), Block(text="Second."))
    assert said(told, stream) == "Hello world.\n\nSecond."
    told.tell(Delta(text="Th"), Block(text="Third."), Delta(text="Four"), Block(text="Four"))
    assert said(told, stream) == "Hello world.\n\nSecond.\n\nThird.\n\nFour"


@pytest.mark.parametrize("stream", ["chat", "assistant"])
def test_a_block_whose_beginning_was_not_heard_is_told_whole(stream: str) -> None:
    """A wording that began inside a block tells the block whole, set apart from the piece it heard: no text is lost."""
    told = Told()
    told.tell(Delta(text="lo"), Block(text="Hello world."), Block(text="Second."))
    assert said(told, stream) == "lo\n\nHello world.\n\nSecond."


def test_texts_of_a_stream_can_be_joined() -> None:
    """Deltas of one run have the same streams, so that waiting ones can be joined into one frame."""
    wording, fences = PublishedWording(), {run: Fence(RunId(run)) for run in ("r-1", "r-2")}

    def items(position: int, run: str) -> list[Any]:
        event = Event(position=position, session=SESSION, run_id=RunId(run), generation=1, data=Delta(text="x"))
        return wording.items(event, fences[run], SESSION)

    first, second, other = items(1, "r-1"), items(2, "r-1"), items(3, "r-2")
    assert [item.stream for item in first] == [item.stream for item in second]
    assert not {item.stream for item in first} & {item.stream for item in other}
    assert first[0].stream != first[1].stream
    assert all(item.passing and item.source is fences["r-1"] for item in first)


def test_tools_phases_and_progress_are_told_to_agents_streams() -> None:
    """Tools, phases and progress are told in `agent`, and none of them in `chat`."""
    told = Told()
    call = CallId("c-1")
    told.tell(
        Started(),
        Phase(name="provider"),
        Progress(text="half", done=1, total=2),
        Tool(call_id=call, name="search", state=ToolState.PENDING),
        Tool(call_id=call, name="search", state=ToolState.FINISHED, result="1"),
    )
    assert {frame["event"] for frame in told.frames} == {"agent"}
    streams = [frame["payload"]["stream"] for frame in told.frames]
    assert streams == ["lifecycle", "progress", "progress", "tool", "tool"]
    assert [frame["payload"]["data"]["phase"] for frame in told.frames[-2:]] == ["start", "result"]


def test_what_may_carry_the_generation_carries_it() -> None:
    """Every event of the agent's streams, and every question, carries the generation: a reader can drop stale ones."""
    told = Told()
    told.tell(
        Started(),
        Delta(text="one"),
        Tool(call_id=CallId("c-1"), name="search", state=ToolState.RUNNING),
        QuestionData(question_id=QuestionId("q-1"), text="may I?", state=QuestionState.OPEN),
        ended(),
    )
    open_ones = [frame["payload"] for frame in told.frames if frame["event"] not in ("chat", "session.typing")]
    assert len(open_ones) == 7
    assert [each.get("data", each)["generation"] for each in open_ones] == [1] * 7


def test_what_belongs_to_no_run_has_no_word() -> None:
    """An event without a run is not told: the published protocol tells of runs only."""
    assert Told().tell(Typing(on=True), run=None) == []


@pytest.mark.parametrize("ending", Ending)
def test_a_wait_is_answered_with_what_there_is(ending: Ending) -> None:
    """A wait tells pending and unknown as such, and never as a timeout."""
    payload = telling.wait_payload(Outcome(run_id=RUN, ending=ending, started_at=1.0, ended_at=2.0, text="a"))
    if ending in (Ending.PENDING, Ending.UNKNOWN):
        assert payload == {"runId": RUN, "status": str(ending)}
    else:
        assert payload["outcome"].ending == ending
        assert (payload["status"] == "timeout") == (ending is Ending.TIMED_OUT)
        assert (payload["status"] == "ok") == (ending is Ending.COMPLETED)
        assert payload["result"] == {"payloads": [{"text": "a"}]}
