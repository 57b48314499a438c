"""The rules of the outbox hold for any order of puts, hastened answers, drops and takes."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.fence import Fence
from interlock.core.names import Ending, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.surfaces import outbox as boxes
from interlock.surfaces.gateway.items import Piece, Stream, event_frame
from interlock.surfaces.outbox import Item, Outbox, Pace

SESSIONS = ("s1", "s2")
RUNS = ("r1", "r2", "r3")  # r1 and r3 belong to one session
STREAMS = ("chat", "agent")


CUT = Cause(ending=Ending.STOPPED)


class AtOnce(Pace):
    """Texts are written at once: there is no loop here to wait on."""

    def soon(self, outbox: Outbox) -> None:
        """Wake the outbox."""
        outbox.wake()


def box_of() -> Outbox:
    """Return an outbox that writes at once."""
    return Outbox(AtOnce())


FENCES: dict[str, Fence] = {}
HEADS: dict[tuple[str, str], Stream] = {}


@pytest.fixture(autouse=True)
def anew() -> None:
    """No run has fallen yet."""
    begin()


def begin() -> None:
    """Give every run a new fence."""
    FENCES.clear()
    HEADS.clear()
    FENCES.update({run: Fence(RunId(run)) for run in RUNS})


def first(box: Outbox) -> bytes | None:
    """Take one frame from the outbox."""
    return next(iter(box.pop()), None)


def session_of(run: str) -> SessionId:
    """Return the session of a run."""
    return SessionId(SESSIONS[RUNS.index(run) % 2])


def text_item(run: str, stream: str, text: str, number: int) -> Item:
    """Return a delta, as telling makes it."""
    head = b'{"type":"event","event":"%b","payload":{"runId":"%b","text":' % (stream.encode(), run.encode())
    of = HEADS.setdefault((run, stream), Stream(head, session_of(run), FENCES[run]))
    return Piece(of, text, b',"last":%d}' % number)


def whole_item(run: str, number: int, *, passing: bool) -> Item:
    """Return an event that is no text."""
    payload = {"runId": run, "last": number}
    name = "tool" if passing else "end"
    return event_frame(name, payload, session=session_of(run), source=FENCES[run], passing=passing)


def answer(number: int) -> bytes:
    """Return an answer."""
    return b'{"type":"res","last":%d}' % number


def drained(box: Outbox) -> list[dict[str, Any]]:
    """Return everything that is still to be written."""
    frames = []
    while not box.empty:
        frame = first(box)
        assert frame is not None
        frames.append(json.loads(frame))
    return frames


class Story:
    """The items put into an outbox, and the frames taken from it."""

    def __init__(self) -> None:
        begin()
        self.box = box_of()
        self.put: dict[int, tuple[str, str, str | None, bool]] = {}  # by number: run, kind, text, passing
        self.dropped: set[int] = set()
        self.out: list[dict[str, Any]] = []
        self.number = 0

    def play(self, step: tuple[Any, ...]) -> None:
        """Do one step."""
        match step:
            case ("text", run, stream, text):
                self.number += 1
                self.put[self.number] = (run, stream, text, True)
                self.box.put(text_item(run, stream, text, self.number))
                self.dropped |= {self.number} if FENCES[run].cause is not None else set()
            case ("whole", run, passing):
                self.number += 1
                self.put[self.number] = (run, "tool" if passing else "end", None, passing)
                self.box.put(whole_item(run, self.number, passing=passing))
                self.dropped |= {self.number} if passing and FENCES[run].cause is not None else set()
            case ("answer", session, urgent):
                self.number += 1
                self.box.answer(answer(self.number), hasten=[] if session is None else [session], urgent=urgent)
            case ("drop", run):
                self.dropped |= {n for n, (whose, _, _, passing) in self.put.items() if whose == run and passing}
                before = len(self.out)
                if FENCES[run].cause is None:
                    FENCES[run].fall(CUT)
                assert len(self.out) == before
            case ("take",):
                self.take()

    def take(self) -> None:
        """Write one frame."""
        frame = first(self.box)
        if frame is None:
            return
        told = json.loads(frame)
        self.out.append(told)
        if told["type"] == "event":
            number = told["payload"]["last"]
            assert number not in self.dropped, "a cut run's delta was written after the fall"

    def finish(self) -> None:
        """Take the remaining frames, and check all of them."""
        while not self.box.empty:
            self.take()
        assert self.box._bytes == 0
        assert first(self.box) is None
        events = [told for told in self.out if told["type"] == "event"]
        assert [told["seq"] for told in events] == list(range(1, len(events) + 1))
        for session in SESSIONS:
            self.in_order([told for told in events if session_of(told["payload"]["runId"]) == session], "tool", "end")
        for run in RUNS:
            for stream in STREAMS:
                mine = [told for told in events if told["payload"]["runId"] == run]
                self.in_order(mine, stream, "tool", "end")
                self.same_text(mine, run, stream)
        answers = [told["last"] for told in self.out if told["type"] == "res"]
        assert len(answers) == len(set(answers))

    def in_order(self, events: list[dict[str, Any]], *kinds: str) -> None:
        """Assert that frames come in the order of their items; a joined text counts as its last item."""
        numbers = [told["payload"]["last"] for told in events if told["event"] in kinds]
        assert numbers == sorted(numbers)

    def same_text(self, events: list[dict[str, Any]], run: str, stream: str) -> None:
        """Assert that every text that was not dropped is written once, unchanged."""
        mine = [told["payload"] for told in events if told["event"] == stream]
        said = "".join(payload["text"] for payload in mine)
        ours = {n: text for n, (whose, kind, text, _) in self.put.items() if (whose, kind) == (run, stream)}
        if not self.dropped & set(ours):
            assert said == "".join(text or "" for text in ours.values())
        written = {payload["last"] for payload in mine}
        assert written <= set(ours)


steps = st.one_of(
    st.tuples(st.just("text"), st.sampled_from(RUNS), st.sampled_from(STREAMS), st.text(max_size=3)),
    st.tuples(st.just("whole"), st.sampled_from(RUNS), st.booleans()),
    st.tuples(st.just("answer"), st.sampled_from([None, *map(SessionId, SESSIONS)]), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(RUNS)),
    st.tuples(st.just("take")),
)


@given(st.lists(steps, max_size=40))
@settings(max_examples=300)
def test_any_order_of_doings_keeps_the_rules(story: list[tuple[Any, ...]]) -> None:
    """Any order keeps a session's order, rising numbers and whole texts, drops a fallen run, and leaves 0 bytes."""
    played = Story()
    for step in story:
        played.play(step)
    played.finish()


def test_a_hastened_delta_is_dropped_too() -> None:
    """A delta that was hastened with an answer still belongs to its run: the fall of that run drops it."""
    box = box_of()
    box.put(text_item("r1", "chat", "late", 1))
    box.answer(answer(2), hasten=[session_of("r1")])
    FENCES["r1"].fall(CUT)
    assert [told["type"] for told in drained(box)] == ["res"]
    assert box._bytes == 0


def test_the_answer_to_a_stop_overtakes_the_others() -> None:
    """The answer to a stop overtakes other sessions' events, but no earlier event of the stopped session."""
    box = box_of()
    for number in range(100):
        box.put(text_item("r2", "chat", "y", number))
        box.put(whole_item("r2", number, passing=True))
    box.put(whole_item("r1", 200, passing=False))
    box.answer(answer(201), hasten=[session_of("r1")])
    told = drained(box)
    assert [each.get("last", each.get("payload", {}).get("last")) for each in told[:2]] == [200, 201]


def test_deltas_that_wait_are_joined() -> None:
    """Waiting deltas are joined into fewer frames with the same text; a delta that was written alone stays alone."""
    box = box_of()
    texts = [f"{number} " for number in range(500)]
    for number, text in enumerate(texts):
        box.put(text_item("r1", "chat", text, number))
        box.put(text_item("r1", "agent", text, number))
    told = drained(box)
    assert len(told) < 50
    for stream in STREAMS:
        assert "".join(each["payload"]["text"] for each in told if each["event"] == stream) == "".join(texts)
    assert told[-1]["payload"]["last"] == 499


def test_a_joined_frame_is_short() -> None:
    """A joined frame is bounded: a frame that was handed over cannot be taken back, so it must not hold everything."""
    box = box_of()
    for number in range(2000):
        box.put(text_item("r1", "chat", "x" * 500, number))
    frames = []
    while (frame := first(box)) is not None:
        frames.append(frame)
    assert max(map(len, frames)) <= 8 * 1024
    assert len(frames) < 2000


def fill(box: Outbox, make: Callable[[int], Item]) -> int:
    """Put items until the outbox overflows; return how many it took."""
    for number in range(100_000):
        box.put(make(number))
        if box.overflowed:
            return number
    raise AssertionError("it never overflows")


@pytest.mark.parametrize("kind", ["whole", "text"])
def test_beyond_the_bound_the_reader_is_too_slow(kind: str) -> None:
    """An outbox that exceeds its bytes forgets everything and takes nothing later, so that no frame follows a hole."""
    box = box_of()

    def make(number: int) -> Item:
        if kind == "whole":
            return event_frame("end", {"runId": "r1", "last": number, "text": "x" * 1000}, session=session_of("r1"))
        return text_item("r1", STREAMS[number % 2], "x" * 1000, number)

    went = fill(box, make)
    assert 0.8 * boxes.BUFFER_BYTES < went * 1050 < 1.4 * boxes.BUFFER_BYTES
    assert box.empty
    box.put(make(went + 1))
    box.answer(answer(1))
    box.answer(answer(2), urgent=True)
    assert first(box) is None
    assert box.empty


@pytest.mark.parametrize("kind", ["answer", "whole", "text", "texts"])
def test_one_large_frame_is_never_too_much(kind: str) -> None:
    """A single frame above the bound (a long run's end, a large answer) is sent, and its reader stays connected."""
    box, large = box_of(), "x" * (boxes.BUFFER_BYTES + 1)
    for number in range(10):
        if kind == "answer":
            box.answer(b'{"type":"res","text":"%b"}' % large.encode())
        elif kind == "whole":
            box.put(event_frame("end", {"runId": "r1", "last": number, "text": large}, session=session_of("r1")))
        else:
            if kind == "texts":
                box.put(text_item("r1", "chat", "before", number))
            box.put(text_item("r1", "chat", large, number))
        box.answer(answer(number))
        assert not box.overflowed
        while first(box) is not None:
            pass
        assert box._bytes == 0


def test_whoever_can_read_again_waits_for_room() -> None:
    """A watch stops putting at half of the bound, goes on when the outbox drains, and does not hang when it closes."""

    async def main() -> None:
        box, called = box_of(), list[str]()
        while not box.full:
            box.put(whole_item("r1", 1, passing=False))
        assert box._bytes > boxes.BUFFER_BYTES // 2
        box.when_room(lambda: called.append("room"))
        while box._bytes > boxes.BUFFER_BYTES // 4:
            assert called == []
            first(box)
        assert called == ["room"] and not box.full
        while not box.full:
            box.put(whole_item("r1", 1, passing=False))
        box.when_room(lambda: called.append("closed"))
        box.close()
        assert called == ["room", "closed"] and not box.full

    asyncio.run(main())


def test_a_closed_box_takes_nothing_and_sends_what_it_has() -> None:
    """After close the outbox writes what it holds, in order, and `wait` returns False when nothing more will come."""

    async def main() -> None:
        box = box_of()
        box.put(whole_item("r1", 1, passing=False))
        box.close()
        box.put(whole_item("r1", 2, passing=False))
        box.answer(answer(3))
        assert await box.wait()
        assert [told["payload"]["last"] for told in drained(box)] == [1]
        assert not await box.wait()

    asyncio.run(main())


def test_a_flood_of_texts_is_written_now_and_then_and_everything_else_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first text is written at once; the next ones wait for a moment and are joined, or leave with an answer."""
    monkeypatch.setattr(boxes, "PAUSE_SECONDS", (60.0, 60.0))

    async def play() -> None:
        box = Outbox(Pace())
        texts = [text_item("r1", "chat", "x", number) for number in range(9)]
        box.put(texts[0])
        assert await asyncio.wait_for(box.wait(), 30) and len(box.pop()) == 1
        await asyncio.sleep(0)
        for text in texts[1:8]:
            box.put(text)
        waiting = asyncio.create_task(box.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        box.answer(b"answer")
        assert await asyncio.wait_for(waiting, 30)
        told, answer = box.pop(4096)
        assert b'"xxxxxxx"' in told and answer == b"answer"
        box.close()

    asyncio.run(play())


def test_an_answer_is_written_together_with_the_events_before_it() -> None:
    """An event wakes the answer to a stop and the pump; the pump writes both frames in one call."""
    written: list[list[bytes]] = []

    class Kept:
        """A line that keeps what is written."""

        async def room(self) -> None:
            """There is always room."""

        async def write(self, frames: list[bytes]) -> None:
            written.append(frames)

    async def play() -> None:
        box, ended = Outbox(Pace()), asyncio.Event()

        async def answering() -> None:
            await ended.wait()
            box.answer(b"answer", hasten=[session_of("r1")])

        pumping, answered = asyncio.create_task(boxes.pump(box, Kept())), asyncio.create_task(answering())
        await asyncio.sleep(0)
        box.put(whole_item("r1", 1, passing=False))
        ended.set()
        await answered
        await asyncio.sleep(0)
        box.close()
        await pumping

    asyncio.run(play())
    assert [len(frames) for frames in written] == [2] and written[0][1] == b"answer"


def test_the_answer_to_a_message_is_not_overtaken_by_its_run() -> None:
    """A stop hastens its session's events; an earlier answer about that session goes with them, in its place."""
    box = box_of()
    box.put(whole_item("r2", 1, passing=False))  # an event of another session
    box.answer(answer(2), about=session_of("r1"))
    box.put(whole_item("r1", 3, passing=False))
    box.answer(answer(4), hasten=[session_of("r1")])
    order = [frame.get("last", frame.get("payload", {}).get("last")) for frame in drained(box)]
    assert order == [2, 3, 4, 1]


def test_a_stop_of_two_sessions_hastens_the_events_of_both() -> None:
    """The answer to a stop of several sessions follows what waits of each, and overtakes the others."""
    box = box_of()
    box.put(whole_item("r2", 1, passing=False))
    box.answer(answer(2))
    box.put(whole_item("r1", 3, passing=False))
    box.answer(answer(4), hasten=[session_of("r1"), session_of("r2")])
    order = [frame.get("last", frame.get("payload", {}).get("last")) for frame in drained(box)]
    assert order == [1, 3, 4, 2]
