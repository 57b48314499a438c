"""The link carries every word whole, and a host that says anything at all harms only its own run.

Control's side is the real one, with fence, gate and outlet. The test plays the other end of each socket as a peer: a
host that says what no host of ours would say.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import math
import os
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from random import Random
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import Control, Drain, Effect, Ending, Outcome, Settings, open_control
from interlock.agent import verbs
from interlock.agent.order import SpawnOrder
from interlock.core.events import Ended, Event, ProcessData, Tool
from interlock.core.names import Announce, BodyState, CallId, ErrorKind, EventKind, ProcessState, ToolState
from interlock.core.outcome import Cause
from interlock.hosts import link, process, turn
from interlock.hosts.driver import HostDriver
from interlock.hosts.process import HostProcess
from interlock.processes.base import Grade

from .test_hogs import PATIENT, unhurried

BOUND_SECONDS, RUN_SECONDS = 240.0, 30.0
QUICK = Settings(commit_seconds=1.0, grace_seconds=0.1, drain_seconds=2.0, retry_seconds=0.05)
SEQUENCES, SESSIONS = 2_000 if os.environ.get("INTERLOCK_ALL_SUITES") else 800, 6  # `make prove` has more
SAID, TOLD = get_args(link.Said), get_args(link.Told)

# The words


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any value that a field of a word may have."""
    kind = getattr(kind, "__supertype__", kind)
    if get_origin(kind) in (UnionType, Union):
        return st.one_of([any_value(one) for one in get_args(kind)])
    match get_origin(kind) or kind:
        case inner if inner is Annotated:
            return any_value(get_args(kind)[0])
        case inner if inner is tuple:
            return st.lists(any_value(get_args(kind)[0]), max_size=3).map(tuple)
        case inner if inner is dict:
            return st.dictionaries(*map(any_value, get_args(kind)), max_size=3)
        case inner if inner is msgspec.Raw:
            return st.one_of(st.none(), st.text(UTF8), st.integers(0, 9)).map(link.pack)
        case inner if inner is NoneType:
            return st.none()
        case inner if issubclass(inner, StrEnum):
            return st.sampled_from(inner)
        case inner if issubclass(inner, msgspec.Struct):
            return any_word(inner)
        case inner:
            return PLAIN[inner]


def any_word(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any word of a kind."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: any_value(hints[name]) for name in kind.__struct_fields__})


def words_of(kinds: tuple[type, ...]) -> st.SearchStrategy[Any]:
    """Return a strategy for any words of some kinds, with any values."""
    return st.one_of([any_word(kind) for kind in kinds])


UTF8 = st.characters(exclude_categories=["Cs"])
PLAIN = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(UTF8, max_size=20),
    bytes: st.binary(max_size=20),
}


def taken(kind: Any, data: bytes, cuts: list[int] | None = None) -> list[Any]:
    """Return the words that are heard when bytes come in pieces."""
    frames, heard, at = link.Frames(kind, link.FRAME_BYTES), [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]:
        frames.feed(data[at:cut])
        at = max(at, cut)
        heard += list(frames)
    return heard


@given(said=st.lists(words_of(SAID), max_size=4), cuts=st.lists(st.integers(0), max_size=6))
def test_what_a_host_says_is_heard_as_it_was_said(said: list[link.Word], cuts: list[int]) -> None:
    """Control hears every word of a host as it was said, with any values, cut anywhere."""
    assert taken(link.Said, b"".join(map(link.frame, said)), cuts) == said


@given(told=st.lists(words_of(TOLD), max_size=4), cuts=st.lists(st.integers(0), max_size=6))
def test_what_control_says_is_heard_as_it_was_said(told: list[link.Word], cuts: list[int]) -> None:
    """A host hears every word of control as it was said, with any values, cut anywhere."""
    heard = taken(link.Told, b"".join(map(link.frame, told)), cuts)
    assert [link.frame(word) for word in heard] == [link.frame(word) for word in told]  # a Raw equals only itself


@given(word=words_of(SAID))
def test_a_word_that_was_cut_short_is_waited_for(word: link.Word) -> None:
    """A message that is cut short is not heard, and the reader knows how much is missing."""
    data = link.frame(word)
    for size in {0, 1, 3, 4, 5, len(data) // 2, len(data) - 1}:
        frames = link.Frames(link.Said, link.FRAME_BYTES)
        frames.feed(data[:size])
        assert list(frames) == []
        assert frames.missing == (len(data) - size if size >= link.HEAD_BYTES else 0)
        frames.feed(data[size:])
        assert list(frames) == [word]


@given(data=st.binary(max_size=60))
def test_bytes_are_words_or_garbage(data: bytes) -> None:
    """Any bytes decode to a word or raise Garbage, never another error."""
    with contextlib.suppress(link.Garbage):
        taken(link.Said, framed(data))
        taken(link.Said, data)


@given(word=words_of(SAID), at=st.integers(0), bit=st.integers(0, 7))
def test_a_word_with_a_bit_flipped_is_a_word_or_garbage(word: link.Word, at: int, bit: int) -> None:
    """A word with one bit flipped, as by a host with bad memory, decodes to a word or raises Garbage."""
    data = bytearray(link.frame(word)[link.HEAD_BYTES :])
    data[at % len(data)] ^= 1 << bit
    with contextlib.suppress(link.Garbage):
        assert all(isinstance(heard, link.Word) for heard in taken(link.Said, framed(bytes(data))))


def framed(data: bytes) -> bytes:
    """Return a head that states the length of some bytes, and the bytes."""
    return struct.pack(">I", len(data)) + data


def spelled(*values: Any) -> bytes:
    """Return a message of any values at all."""
    return framed(msgspec.msgpack.encode(values))


NO_WORDS = {
    "nothing": framed(b""),
    "no array": framed(b"\x01"),
    "a map": framed(msgspec.msgpack.encode({"type": "Tried", "turn": 1, "effect": "delta"})),
    "an empty array": spelled(),
    "no tag": spelled(1, "x"),
    "an unknown tag": spelled("Obey", 1),
    "a word of control's": link.frame(link.Fallen(1, Cause(ending=Ending.STOPPED))),
    "a tag that is no text": spelled(b"Tell", 1, ["Say", "x"]),
    "too few values": spelled("Tell", 1, ["Say"]),
    "no verb": spelled("Tell", 1),
    "an unknown verb": spelled("Tell", 1, ["Obey"]),
    "a request that is told": spelled("Tell", 1, ["Check", 1]),
    "a telling that is asked": spelled("Ask", 1, 1, ["Say", "x"]),
    "a number for text": spelled("Tell", 1, ["Say", 2]),
    "text for a number": spelled("Tell", "1", ["Say", "x"]),
    "a fraction for a number": spelled("Tell", 1.5, ["Say", "x"]),
    "nothing for text": spelled("Tell", 1, ["Post", None]),
    "an unknown state": spelled("Tell", 1, ["Finish", "r-1.1", "eaten", None, None]),
    "an unknown effect": spelled("Tried", 1, "magic"),
    "no order": spelled("Ask", 1, 1, ["StartProcess", 1, {"argv": "ls"}, [], {}]),
    "an order without a program": spelled("Ask", 1, 1, ["StartProcess", 1, {"cwd": "/"}, [], {}]),
    "bytes that are no UTF-8": framed(b"\x93\xa4Tell\x01\x92\xa3Say\xa2\xff\xfe"),
    "half a surrogate pair": framed(b"\x93\xa4Tell\x01\x92\xa3Say\xa3\xed\xa0\x80"),
    "more after the word": framed(link.frame(link.Tell(1, verbs.Say("x")))[4:] + b"\x00"),
    "a text that is longer than the message": framed(b"\x93\xa4Tell\x01\x92\xa3Say\xdb\xff\xff\xff\xff"),
    "calls that are not there": framed(b"\x93\xa4Tell\x01\x92\xa6Record\xdd\x7f\xff\xff\xff"),
    "deep in values nobody wants": framed(b"\x93\xa4Tell\x01\x93\xa3Say\xa1x" + b"\x91" * 1_000_000 + b"\xc0"),
    "deep in place of text": framed(b"\x93\xa4Tell\x01\x92\xa3Say" + b"\x91" * 1_000_000 + b"\xc0"),
    "a length beyond the limit": struct.pack(">I", link.FRAME_BYTES + 1),
    "the greatest length": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", NO_WORDS.values(), ids=NO_WORDS)
def test_what_is_no_word_is_garbage(data: bytes) -> None:
    """Bytes that are no word raise Garbage, with a line that a person can read."""
    with pytest.raises(link.Garbage) as raised:
        taken(link.Said, link.frame(link.Tell(1, verbs.Say("before"))) + data)
    assert 0 < len(str(raised.value)) <= 200


def test_words_before_garbage_are_heard() -> None:
    """Garbage ends a link where the garbage begins, so every word before it is heard."""
    frames = link.Frames(link.Said, link.FRAME_BYTES)
    frames.feed(link.frame(link.Tell(1, verbs.Say("a"))) + link.frame(link.Tell(1, verbs.Say("b"))) + spelled("Obey"))
    heard = iter(frames)
    assert [next(heard), next(heard)] == [link.Tell(1, verbs.Say("a")), link.Tell(1, verbs.Say("b"))]
    with pytest.raises(link.Garbage, match="Obey"):
        next(heard)


def test_a_message_of_the_greatest_length_is_heard() -> None:
    """The length limit counts what follows the head."""
    spare = len(link.frame(link.Tell(1, verbs.Post("x" * 70_000)))) - link.HEAD_BYTES - 70_000
    word = link.Tell(1, verbs.Post("x" * (link.FRAME_BYTES - spare)))
    assert len(link.frame(word)) == link.FRAME_BYTES + link.HEAD_BYTES
    assert taken(link.Said, link.frame(word)) == [word]


def test_many_calls_in_one_message_cost_no_more_than_they_weigh() -> None:
    """A message of many tiny calls is refused: it would take half a second of control's time and 100 times its size."""
    one = msgspec.msgpack.encode(verbs.Wanted(1, "a", "1", False, 0.0))  # type: ignore[arg-type]
    count = link.FRAME_BYTES // len(one) - 10
    with pytest.raises(link.Garbage, match="length"):
        taken(link.Said, framed(b"\x93\xa4Tell\x01\x92\xa6Record\xdd" + struct.pack(">I", count) + one * count))
    size = link.FRAME_BYTES // 2 - 100
    items = b"\xdd" + struct.pack(">I", size) + b"\xa1a" * size
    start = b"\x94\xa3Ask\x01\x01\x95\xacStartProcess\x01"
    for word in (
        start + b"\x81\xa4argv" + items,
        start + b"\x81\xa4argv\x90" + items,
        b"\x94\xa3Ask\x01\x01\x94\xa3Ask\xa1?" + items + b"\xc0",
    ):
        with pytest.raises(link.Garbage, match="length"):
            taken(link.Said, framed(word))


# A peer, and hosts that are peers


class Place:
    """A stand-in for the containment of a host's process."""

    def __init__(self, played: Played) -> None:
        self.name = "a played host"
        self.grade = Grade.KEEPER
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self.ended = 0
        self.stuck: tuple[str, ...] = ()
        self.keeper: int | None = None
        self.helper = SimpleNamespace(alive=True)
        self._played = played

    def company(self, host: int) -> dict[tuple[int, int], tuple[int, int, str]]:
        """Return nothing: the host is alone."""
        assert host == self._played.pid
        return {}

    glimpse = company

    def cut(self) -> None:
        """Report this containment empty in a moment."""
        if self.state is BodyState.RUNNING:
            self.state = BodyState.CUT
            asyncio.get_running_loop().call_soon(self._empty)

    def _empty(self) -> None:
        self.ended = 1
        self._played.end(-9)
        self.done.set()

    def drop(self) -> None:
        """Do nothing: no process is late here."""

    def abandon(self) -> None:
        """Do nothing: no process is stuck here."""
        self.state = BodyState.ABANDONED


class Played:
    """A stand-in for a host's process."""

    _pids = itertools.count(1_000_000)  # no real process has these

    def __init__(self) -> None:
        self.pid = next(self._pids)
        self.status: int | None = None
        self.exited = asyncio.Event()
        self.on_end: Callable[[], None] | None = None

    def end(self, status: int) -> None:
        """Say, as the keeper, that the process has exited."""
        if not self.exited.is_set():
            self.status = status
            self.exited.set()
            if self.on_end is not None:
                self.on_end()

    def notify(self) -> None:
        """Do nothing: no code here looks at the notice."""


class Peer:
    """The other end of a link."""

    def __init__(self, sock: socket.socket, played: Played) -> None:
        self.sock = sock
        self.played = played
        self.turn = 0
        self.host: HostProcess  # control's end
        self._frames = link.Frames(link.Told)
        self._heard: list[link.Word] = []
        self._numbers = itertools.count(1)

    async def say(self, *words: link.Word) -> None:
        """Send a word as the protocol wants it."""
        await self.send(b"".join(map(link.frame, words)))

    async def send(self, data: bytes) -> None:
        """Put any bytes on the link; control may have hung up, and has its turn then."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        except OSError:
            await asyncio.sleep(0)

    async def hear(self) -> Any:
        """Return the next word of control, None if control hung up."""
        while not self._heard:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.sock, 256 * 1024)
            except OSError:
                data = b""
            if not data:
                return None
            self._frames.feed(data)
            self._heard += list(self._frames)
        return self._heard.pop(0)

    async def ask(self, make: Callable[[int, int], link.Ask]) -> Any:
        """Send a request and return the answer."""
        number = next(self._numbers)
        await self.say(make(self.turn, number))
        while (word := await self.hear()) is not None:
            if isinstance(word, link.Answer | link.Refusal) and word.number == number:
                return word
        return None

    async def hear_a(self, kind: Any) -> Any:
        """Return the next word of a kind, None if control hung up."""
        while (word := await self.hear()) is not None:
            if isinstance(word, kind):
                return word
        return None

    async def settle(self) -> None:
        """Wait for the fall, and say that nothing runs; control may have begun another turn instead."""
        fallen = await self.hear_a(link.Fallen | link.Begin)
        if isinstance(fallen, link.Begin):
            self._heard.insert(0, fallen)
        elif fallen is not None:
            await self.say(link.Settled(fallen.turn, True))

    def hang_up(self) -> None:
        """Close the link."""
        self.sock.close()

    async def serve(self, play: Play) -> None:
        """Greet, then play every turn that control begins."""
        await self.say(link.Hello(link.VERSION, self.played.pid))
        while self.sock.fileno() >= 0 and (word := await self.hear()) is not None:
            if isinstance(word, link.Begin):
                self.turn = word.turn
                await play(self, word)
            elif isinstance(word, link.Fallen):
                await self.say(link.Settled(word.turn, True))


Play = Callable[[Peer, link.Begin], Awaitable[None]]


class PlayedHosts:
    """Hosts whose every word a test decides."""

    names = ("other",)
    cold = None

    def __init__(self, play: Play, greet: Callable[[Peer], Awaitable[None]] | None = None) -> None:
        self.play = play
        self.greet = greet
        self.started = 0
        self.hosts: list[HostProcess] = []
        self._peers: dict[asyncio.Task[None], Peer] = {}

    async def open(self) -> None:
        """Do nothing: there is no agent to import."""

    async def start(self) -> HostProcess:
        """Start a played host, as real hosts are started."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        theirs.setblocking(False)
        played = Played()
        peer = Peer(theirs, played)
        host = peer.host = HostProcess(Place(played), played, mine, os.dup(mine.fileno()))  # type: ignore[arg-type]
        self.started += 1
        self.hosts = [*(each for each in self.hosts if each.alive), host]
        served = peer.serve(self.play) if self.greet is None else self.greet(peer)
        task = asyncio.get_running_loop().create_task(self._served(peer, served), name="a peer")
        self._peers[task] = peer
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                await host.hello
        finally:
            if not host.hello.done() or host.hello.cancelled() or host.hello.exception() is not None:
                host.kill()
        return host

    async def _served(self, peer: Peer, served: Awaitable[None]) -> None:
        try:
            await served
        finally:
            peer.hang_up()
            self._peers = {task: each for task, each in self._peers.items() if each is not peer}

    async def close(self) -> None:
        """End every peer."""
        tasks = list(self._peers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def polite(peer: Peer, begin: link.Begin) -> None:
    """Answer with the message, in two pieces."""
    text = begin.message.text
    await peer.say(
        link.Tell(peer.turn, verbs.Say(text[:1])),
        link.Tell(peer.turn, verbs.Say(text[1:])),
        link.Returned(peer.turn, text, True, time.monotonic()),
    )


@asynccontextmanager
async def opened(play: Play, **options: Any) -> AsyncIterator[tuple[Control, PlayedHosts]]:
    """Open a control with played hosts; a message that begins with a plus is played by `polite`."""

    async def chosen(peer: Peer, begin: link.Begin) -> None:
        await (polite if begin.message.text.startswith("+") else play)(peer, begin)

    hosts = PlayedHosts(chosen, options.pop("greet", None))
    async with open_control("nobody:at_all", driver=HostDriver(hosts), **{"settings": QUICK, **options}) as control:
        yield control, hosts


def played(main: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture) -> None:
    """Run a test; check that control logs no error and that nothing is raised into its loop."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        async with asyncio.timeout(BOUND_SECONDS):
            await main()
        gc.collect()  # coroutines that were never awaited are reported here
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, "interlock"):
        asyncio.run(watched())
    assert problems == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def ended(control: Control, session: str, text: str, **options: Any) -> Outcome:
    """Send a message and wait until its run is drained."""
    sent = await control.send(session, text, **options)
    return await over(control, sent.run_id)


async def over(control: Control, run: str) -> Outcome:
    """Wait until a run is drained; check that no request of its host goes on."""
    outcome = await control.wait(run, timeout=RUN_SECONDS, drained=True)
    assert outcome.ended, f"run {run} hangs: {[task.get_name() for task in control._crew.tasks]}"
    assert outcome.drained
    for _ in range(20):  # a cancelled task needs a step
        left = [task.get_name() for task in control._crew.tasks if f"of {run}" in task.get_name()]
        if not left:
            break
        await asyncio.sleep(0.001)
    assert left == []
    return outcome


async def check_log(control: Control, session: str, run: str) -> list[Event]:
    """Check that a run's terminal event is one and its last, and that each call has one result, its last event."""
    page = await control.feed.log.events(session, after=0, limit=100_000)  # type: ignore[arg-type]
    events = [event for event in page.events if event.run_id == run]
    kinds = [event.kind for event in events]
    assert kinds.count(EventKind.ENDED) == 1
    assert kinds[-1] is EventKind.ENDED
    open_calls: dict[CallId, ToolState] = {}
    results: set[CallId] = set()
    last = events[-1].data
    assert isinstance(last, Ended)
    for call in (*(event.data for event in events if isinstance(event.data, Tool)), *last.tools):
        assert call.call_id not in results, f"{call} after its result"
        if call.state in (ToolState.PENDING, ToolState.RUNNING):
            assert open_calls.get(call.call_id) is not call.state, f"{call} twice"
            open_calls[call.call_id] = call.state
        else:
            assert call.state is not ToolState.FINISHED or open_calls[call.call_id] is ToolState.RUNNING
            results.add(call.call_id)
    assert results == set(open_calls)
    return events


def check_host_ending(outcome: Outcome, says: str = "") -> None:
    """Check that a run failed by its host's fault, with a reason that a person can read."""
    assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.HOST), outcome
    assert outcome.error is not None
    assert re.fullmatch(r"the host (was ended: it [^\n]+|hung up|exited with [^\n]+|died of [^\n]+)", outcome.error), (
        outcome.error
    )
    assert len(outcome.error) < 400
    assert re.search(says, outcome.error), outcome.error


# Words that end a host


VIOLATIONS: dict[str, tuple[Callable[[Peer, str], list[link.Word | bytes]], str]] = {
    "garbage": (lambda p, r: [b"\x00\x00\x00\x05hello"], "broke the protocol"),
    "an oversized message": (lambda p, r: [struct.pack(">I", 2**30)], "a message of 1073741824 bytes"),
    "an unknown word": (lambda p, r: [spelled("Obey", 1)], "Obey"),
    "a word of control's own": (lambda p, r: [link.Problem(p.turn, "BadInput", "x")], "broke the protocol"),
    "a second greeting": (lambda p, r: [link.Hello(link.VERSION, 1)], "greeted twice"),
    "a late greeting of another version": (lambda p, r: [link.Hello(7, 1)], "greeted twice"),
    "late trouble with the import": (lambda p, r: [link.Broken("x" * 10_000)], "broke the protocol"),
    "a turn that is not yet": (lambda p, r: [link.Tell(p.turn + 1, verbs.Say("x"))], "spoke of turn 2 in turn 1"),
    "a request of a turn that is not yet": (lambda p, r: [link.Ask(p.turn + 5, 1, verbs.Check(1))], "spoke of turn"),
    "a number used twice": (
        lambda p, r: [link.Ask(p.turn, 5, verbs.Check(1)), link.Ask(p.turn, 5, verbs.ReadHistory())],
        "used before",
    ),
    "a number that falls": (
        lambda p, r: [link.Ask(p.turn, 5, verbs.ReadOutput(1)), link.Ask(p.turn, 4, verbs.Check(1))],
        "used before",
    ),
    "a negative number": (lambda p, r: [link.Ask(p.turn, -1, verbs.Check(1))], "used before"),
    "a result that is none": (
        lambda p, r: [
            link.Tell(p.turn, verbs.Record((verbs.Wanted(1, "f", "{}", False, 0.0),))),  # type: ignore[arg-type]
            link.Tell(p.turn, verbs.Finish(CallId(f"{r}.1"), ToolState.RUNNING, None, None)),
        ],
        "a call is running",
    ),
    "a result of a call that was not permitted": (
        lambda p, r: [
            link.Tell(p.turn, verbs.Record((verbs.Wanted(1, "f", "{}", False, 0.0),))),  # type: ignore[arg-type]
            link.Tell(p.turn, verbs.Finish(CallId(f"{r}.1"), ToolState.FINISHED, None, None)),
        ],
        "not permitted",
    ),
    "a call under a number of before": (
        lambda p, r: [link.Tell(p.turn, verbs.Record((verbs.Wanted(n, "f", "{}"),))) for n in (2, 2)],  # type: ignore[arg-type]
        "used before",
    ),
    "settled before the end": (lambda p, r: [link.Settled(p.turn, True)], "settled"),
    "settled unclean before the end": (lambda p, r: [link.Settled(p.turn, False)], "settled"),
    "too many things at once": (
        lambda p, r: [b"".join(link.frame(link.Ask(p.turn, n, verbs.Ask("?", None, None))) for n in range(101))],
        "100 things at once",
    ),
}


@pytest.mark.parametrize(("says", "why"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_what_no_host_would_say_ends_it(
    says: Callable[[Peer, str], list[link.Word | bytes]],
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A word that no host would say fails the run with a clear reason; a fresh host serves; others feel nothing."""
    monkeypatch.setattr(turn, "REQUESTS", 100)

    async def play(peer: Peer, begin: link.Begin) -> None:
        for word in [link.Tell(peer.turn, verbs.Say("partly")), *says(peer, begin.run_id)]:
            await (peer.send(word) if isinstance(word, bytes) else peer.say(word))
        assert await peer.hear_a(type(None)) is None  # control hangs up

    async def main() -> None:
        async with opened(play) as (control, hosts):
            before = await ended(control, "other", "+before")
            outcome = await ended(control, "s", "attack")
            check_host_ending(outcome, why)
            assert outcome.text == "partly"
            assert (await control.receipt(outcome.run_id)).host == "killed"
            await check_log(control, "s", outcome.run_id)
            assert (await ended(control, "s", "+again")).text == "+again"
            after = await ended(control, "other", "+after")
            assert (before.ending, after.ending) == (Ending.COMPLETED, Ending.COMPLETED)
            assert hosts.started >= 3  # the other session's, the attacker's, and a fresh one

    played(main, caplog)


def test_the_first_return_of_a_host_stands(caplog: pytest.LogCaptureFixture) -> None:
    """A second return of a host is not heard, or ends the host if its turn is not over."""

    async def play(peer: Peer, begin: link.Begin) -> None:
        settled = begin.message.text == "settled"
        await peer.say(
            link.Returned(peer.turn, "one", settled, time.monotonic()),
            link.Returned(peer.turn, "two", settled, time.monotonic()),
        )
        assert settled or await peer.hear_a(type(None)) is None

    async def main() -> None:
        async with opened(play) as (control, _):
            for text in ("settled", "not settled"):
                outcome = await ended(control, "s", text)
                assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "one")
                await check_log(control, "s", outcome.run_id)
                assert (await ended(control, "s", "+again")).text == "+again"

    played(main, caplog)


@pytest.mark.parametrize("settled", [True, False])
def test_what_a_turn_left_behind_is_not_heard_and_harms_nobody(settled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A task that an agent forgot speaks between turns and in the next one: the host is kept, nothing is published."""
    left = asyncio.Event()

    async def play(peer: Peer, begin: link.Begin) -> None:
        await peer.say(link.Returned(peer.turn, "done", settled, time.monotonic()))
        if not settled:
            await peer.settle()
        await peer.say(
            link.Tried(peer.turn, Effect.DELTA), link.Cancel(peer.turn, 7), link.Tell(peer.turn, verbs.Say("late"))
        )
        await peer.say(
            link.Settled(peer.turn, True),
            link.Returned(peer.turn, "late", True, time.monotonic()),
            link.Ask(peer.turn, 9, verbs.Check(1)),
        )
        left.set()
        begun = await peer.hear_a(link.Begin)
        assert begun is not None, "the host was ended between turns"
        await peer.say(
            link.Tell(peer.turn, verbs.Say("late")),
            link.Settled(peer.turn, False),
            link.Ask(peer.turn, 10, verbs.Check(1)),
        )
        await peer.say(link.Returned(begun.turn, "again", True, time.monotonic()))

    async def main() -> None:
        async with opened(play, settings=PATIENT) as (control, _):
            first = await ended(control, "s", "first")
            await left.wait()
            second = await ended(control, "s", "second")
            assert (first.text, second.text) == ("done", "again")
            assert (await control.receipt(second.run_id)).host == "reused"
            assert (await check_log(control, "s", first.run_id))[-1].kind is EventKind.ENDED

    with unhurried():
        played(main, caplog)


@pytest.mark.parametrize(
    ("greet", "why"),
    [
        ([link.Hello(link.VERSION + 1, 1)], f"version {link.VERSION + 1}"),
        ([link.Tell(1, verbs.Say("x"))], "without a turn"),
        ([link.Broken("ImportError: no module named chess\n" + "x" * 100_000)], "no module named chess"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "a message of 1195725856 bytes"),
        ([b"\x00\x00"], "hung up"),
    ],
    ids=["another version", "a verb", "it cannot import", "no greeting at all", "half a greeting"],
)
def test_a_host_that_does_not_greet_is_no_host(
    greet: list[link.Word | bytes], why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that does not greet fails its run with one line that says what was wrong; no run waits."""
    monkeypatch.setattr(process, "STATUS_SECONDS", 0.05)  # control never sees the exit

    async def greets(peer: Peer) -> None:
        for word in greet:
            await (peer.send(word) if isinstance(word, bytes) else peer.say(word))
        if greet == [b"\x00\x00"]:
            peer.hang_up()
            return
        peer.played.end(1) if isinstance(greet[0], link.Broken) else await peer.hear()

    async def main() -> None:
        async with opened(polite, greet=greets) as (control, _):
            outcome = await ended(control, "s", "hello")
            assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.HOST)
            assert outcome.error is not None
            assert why in outcome.error
            assert outcome.error.startswith("the host was not started")
            assert len(outcome.error) < 2_500

    played(main, caplog)


@pytest.mark.parametrize("first", ["the link", "the process"])
@pytest.mark.parametrize("half", [True, False])
def test_a_host_that_dies_in_the_middle_of_a_word(first: str, half: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Half a word of a dying host counts for nothing; every whole word before it counts, whatever is seen first."""

    async def play(peer: Peer, begin: link.Begin) -> None:
        data = link.frame(link.Tell(peer.turn, verbs.Say("whole"))) + link.frame(
            link.Tell(peer.turn, verbs.Say("half"))
        )
        await peer.send(data[:-3] if half else data)
        if first == "the link":
            peer.hang_up()
            await asyncio.sleep(0.01)
            peer.played.end(3)
        else:
            peer.played.end(3)

    async def main() -> None:
        async with opened(play) as (control, _):
            outcome = await ended(control, "s", "die")
            check_host_ending(outcome, "exited with status 3")
            assert outcome.text == ("whole" if half else "wholehalf")
            assert (await ended(control, "s", "+again")).text == "+again"

    played(main, caplog)


def test_a_stranger_that_keeps_a_dead_hosts_link_full_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    """A fork that floods the link of its dead host does not hold control up: control does not read for ever.

    The fork is played by a thread that gives up by itself, so that this test ends even if control is held up.
    """
    floods, over_now, gave_up = threading.Event(), threading.Event(), threading.Event()

    def flood(sock: socket.socket) -> None:
        data, at, until = link.frame(link.Tell(0, verbs.Say(""))) * 4_000, 0, time.monotonic() + 20
        with contextlib.suppress(OSError), sock:
            while not over_now.is_set():
                if time.monotonic() > until:
                    gave_up.set()
                    return
                with contextlib.suppress(BlockingIOError):
                    at = (at + sock.send(data[at:])) % len(data)
                floods.set()

    async def play(peer: Peer, begin: link.Begin) -> None:
        threads.append(threading.Thread(target=flood, args=(peer.sock.dup(),)))
        threads[-1].start()
        await asyncio.to_thread(floods.wait)
        peer.played.end(0)

    threads: list[threading.Thread] = []

    async def main() -> None:
        async with opened(play) as (control, _):
            sent = await control.send("s", "die")
            check_host_ending(await over(control, sent.run_id), "exited with status 0")
            assert not gave_up.is_set()
            over_now.set()
            assert (await ended(control, "s", "+again")).text == "+again"

    try:
        played(main, caplog)
    finally:
        over_now.set()
        for thread in threads:
            thread.join()


# Requests that are refused while the run goes on


def order(*argv: str, **values: Any) -> SpawnOrder:
    """Return an order as it comes from a host."""
    return SpawnOrder(argv=argv, **values)


REFUSED_ORDERS = {
    "control's own descriptors": (order("true", inherit=True), "descriptors"),
    "nothing to run": (order(), "a program"),
    "an empty name": (order(""), "empty"),
    "a NUL in an argument": (order("echo", "a\0b"), "NUL"),
    "a NUL in its directory": (order("true", cwd="/tmp\0"), "NUL"),
    "an empty directory": (order("true", cwd=""), "cwd"),
    "a NUL in its environment": (order("true", env={"A": "\0"}), "env"),
    "a name with an equals sign": (order("true", env={"A=B": "1"}), "environment variable"),
    "a name that is empty": (order("true", env={"": "1"}), "environment variable"),
    "a negative timeout": (order("true", timeout=-1.0), "timeout"),
    "a timeout that is no number": (order("true", timeout=math.nan), "timeout"),
    "a grace that is no number": (order("true", grace=math.nan), "grace"),
    "a blank name": (order("true", name=" "), "name"),
    "a long name": (order("true", name="x" * 600), "name"),
    "an argument of 8 MiB": (order("true", "x" * 8 * 1024 * 1024), "too long"),
    "a program that is not there": (order("/no/such/program"), "no such program"),
}


@pytest.mark.parametrize(("wanted", "why"), REFUSED_ORDERS.values(), ids=REFUSED_ORDERS)
def test_an_order_that_no_agent_may_give_is_refused(
    wanted: SpawnOrder, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An order that no agent may give starts nothing; the host is told why, and the run goes on."""

    async def play(peer: Peer, begin: link.Begin) -> None:
        answer = await peer.ask(lambda turn, number: link.Ask(turn, number, verbs.StartProcess.of(1, wanted)))
        assert isinstance(answer, link.Refusal), answer
        assert answer.kind in ("BadInput", "SpawnFailed")
        await peer.say(link.Returned(peer.turn, answer.text, True, time.monotonic()))

    async def main() -> None:
        async with opened(play) as (control, _):
            outcome = await ended(control, "s", "spawn")
            assert outcome.ending is Ending.COMPLETED, outcome
            assert why in outcome.text
            told = [
                event for event in await check_log(control, "s", outcome.run_id) if isinstance(event.data, ProcessData)
            ]
            assert [event.data.state for event in told] in ([], [ProcessState.RUNNING, ProcessState.FAILED])

    played(main, caplog)


def test_what_is_unknown_is_refused_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Calls, handles, agents, questions and arguments that no run has are each refused, and none ends the host."""
    asked: list[Callable[[int, int], link.Ask]] = [
        lambda t, n: link.Ask(t, n, verbs.Permit(CallId("r-1.99"))),
        lambda t, n: link.Ask(t, n, verbs.Permit(CallId(""))),
        lambda t, n: link.Ask(t, n, verbs.WaitProcess(4711)),
        lambda t, n: link.Ask(t, n, verbs.ReadLine(-1)),
        lambda t, n: link.Ask(t, n, verbs.ReadOutput(2**60)),
        lambda t, n: link.Ask(t, n, verbs.StopProcess(0)),
        lambda t, n: link.Ask(t, n, verbs.Delegate("nobody", "work", None, False)),
        lambda t, n: link.Ask(t, n, verbs.Delegate("other", "", None, False)),
        lambda t, n: link.Ask(t, n, verbs.Delegate("other", "work", math.nan, True)),
        lambda t, n: link.Ask(t, n, verbs.TakeHold(1, "")),
        lambda t, n: link.Ask(t, n, verbs.TakeHold(1, "x" * 1_000)),
        lambda t, n: link.Ask(t, n, verbs.Ask("", None, None)),
        lambda t, n: link.Ask(t, n, verbs.Ask("x" * 70_000, None, None)),
        lambda t, n: link.Ask(t, n, verbs.Ask("which?", (), None)),
        lambda t, n: link.Ask(t, n, verbs.Ask("which?", ("a", "a"), None)),
        lambda t, n: link.Ask(t, n, verbs.Ask("which?", ("",), None)),
        lambda t, n: link.Ask(t, n, verbs.Ask("when?", None, -1.0)),
    ]

    async def play(peer: Peer, begin: link.Begin) -> None:
        for make in asked:
            answer = await peer.ask(make)
            assert isinstance(answer, link.Refusal), (make(0, 0), answer)
            assert answer.kind == "BadInput", (make(0, 0), answer)
            assert len(answer.text) < 400
        for arguments in ("", "{", "NaN", "[" * 100_000, "{'a': 1}", '"\n"'):
            await peer.say(link.Tell(peer.turn, verbs.Record((verbs.Wanted(1, "f", arguments, False, 0.0),))))  # type: ignore[arg-type]
            assert (await peer.hear_a(link.Problem)).kind == "BadInput"
        for wanted in (verbs.Wanted(1, "", "{}", False, 0.0), verbs.Wanted(1, "f", "{}", False, math.nan)):  # type: ignore[arg-type]
            await peer.say(link.Tell(peer.turn, verbs.Record((wanted,))))
            assert (await peer.hear_a(link.Problem)).kind == "BadInput"
        await peer.say(
            link.Tell(peer.turn, verbs.GiveUp(CallId("r-1.99"))),
            link.Tell(peer.turn, verbs.Finish(CallId("r-1.99"), ToolState.FAILED, None, "x")),
            link.Tell(peer.turn, verbs.Release(4711)),
            link.Tell(peer.turn, verbs.Took(4711)),
            link.Tell(peer.turn, verbs.EndProcess(4711)),
            link.Tell(peer.turn, verbs.ForgetProcess(4711)),
            link.Cancel(peer.turn, 4711),
            link.Tried(peer.turn, Effect.DELTA),
        )
        await polite(peer, begin)

    async def main() -> None:
        async with opened(play) as (control, _):
            outcome = await ended(control, "s", "ask")
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "ask"), outcome
            assert not any(isinstance(event.data, Tool) for event in await check_log(control, "s", outcome.run_id))

    played(main, caplog)


def test_a_call_is_permitted_once_and_never_after_its_result(caplog: pytest.LogCaptureFixture) -> None:
    """A call is permitted once, though its host asks twice, and never once it was given up or has its result."""

    async def play(peer: Peer, begin: link.Begin) -> None:
        wanted = tuple(verbs.Wanted(number, "f", "{}", False, 0.0) for number in (1, 2, 3))  # type: ignore[arg-type]
        first, second, third = (CallId(f"{begin.run_id}.{number}") for number in (1, 2, 3))
        await peer.say(
            link.Tell(peer.turn, verbs.Record(wanted)),
            link.Ask(peer.turn, 1, verbs.Permit(first)),
            link.Ask(peer.turn, 2, verbs.Permit(first)),
            link.Ask(peer.turn, 3, verbs.Permit(second)),
            link.Tell(peer.turn, verbs.GiveUp(second)),
            link.Ask(peer.turn, 4, verbs.Permit(third)),
            link.Tell(peer.turn, verbs.Finish(third, ToolState.FAILED, None, "x")),
        )
        answers = {(word := await peer.hear()).number: type(word) for _ in range(4)}
        assert sorted(kind.__name__ for kind in answers.values()) == ["Answer", "Refusal", "Refusal", "Refusal"]
        await peer.say(link.Tell(peer.turn, verbs.Finish(first, ToolState.FINISHED, None, None)))
        await polite(peer, begin)

    async def main() -> None:
        async with opened(play) as (control, _):
            outcome = await ended(control, "s", "permit")
            assert outcome.ending is Ending.COMPLETED, outcome
            await check_log(control, "s", outcome.run_id)

    played(main, caplog)


# The fall


def test_words_after_the_fall_are_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A word that was on its way when the run was stopped has no effect; a host that settles is used again."""
    begun = asyncio.Event()

    async def play(peer: Peer, begin: link.Begin) -> None:
        begun.set()
        fallen = await peer.hear_a(link.Fallen)
        assert fallen.cause.ending is Ending.STOPPED
        await peer.say(
            *(link.Tell(peer.turn, verbs.Say("late")) for _ in range(300)), link.Tell(peer.turn, verbs.Post("late"))
        )
        await peer.say(link.Tell(peer.turn, verbs.Record((verbs.Wanted(1, "f", "{}", False, 0.0),))))  # type: ignore[arg-type]
        for make in (
            lambda t, n: link.Ask(t, n, verbs.Ask("late?", None, None)),
            lambda t, n: link.Ask(t, n, verbs.StartProcess.of(1, order("true"))),
            lambda t, n: link.Ask(t, n, verbs.TakeHold(1, "it")),
            lambda t, n: link.Ask(t, n, verbs.Delegate("other", "late", None, True)),
            lambda t, n: link.Ask(t, n, verbs.Check(1)),
        ):
            answer = await peer.ask(make)
            assert (type(answer), answer.kind) == (link.Refusal, "Stale")
        await peer.say(link.Returned(peer.turn, "late", True, time.monotonic()), link.Settled(peer.turn, True))

    async def main() -> None:
        async with opened(play, settings=PATIENT) as (control, hosts):
            sent = await control.send("s", "wait")
            await begun.wait()
            await control.stop(session="s")
            outcome = await over(control, sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.STOPPED, "")
            receipt = await control.receipt(sent.run_id)
            assert receipt.host == "reused"
            assert receipt.refused[Effect.DELTA] == 300
            assert {*receipt.refused} >= {Effect.BLOCK, Effect.TOOL, Effect.QUESTION, Effect.SPAWN, Effect.HOLD}
            await check_log(control, "s", sent.run_id)
            assert (await ended(control, "s", "+again")).text == "+again"
            assert [host.turns for host in hosts.hosts if host.turns] == [2]

    with unhurried():
        played(main, caplog)


@pytest.mark.parametrize("deaf", ["reads and says nothing", "reads nothing", "settles in another turn"])
def test_a_host_that_does_not_settle_is_killed(deaf: str, caplog: pytest.LogCaptureFixture) -> None:
    """A host that does not settle in time is ended; the stop is acknowledged at once, and the next message served."""
    begun, hung_up = asyncio.Event(), asyncio.Event()

    async def play(peer: Peer, begin: link.Begin) -> None:
        begun.set()
        if deaf == "reads nothing":
            await hung_up.wait()
            return
        await peer.hear_a(link.Fallen)
        if deaf == "settles in another turn":
            await peer.say(link.Settled(peer.turn - 1, True))
        assert await peer.hear_a(type(None)) is None

    async def main() -> None:
        async with opened(play) as (control, _):
            sent = await control.send("s", "wait")
            await begun.wait()
            assert (await control.stop(session="s")).drain is Drain.PENDING  # the time to settle is not over
            assert (await ended(control, "s", "+meanwhile")).text == "+meanwhile"
            outcome = await over(control, sent.run_id)
            assert outcome.ending is Ending.STOPPED
            assert (await control.receipt(sent.run_id)).host == "killed"
            hung_up.set()
            assert (await ended(control, "s", "+again")).text == "+again"

    with unhurried():  # the grace is over before the time to settle
        played(main, caplog)


def test_a_host_that_reads_nothing_is_ended_before_it_costs_much(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control bounds the answers that wait for a host that asks and does not read, and ends that host."""
    monkeypatch.setattr(process, "UNREAD_BYTES", 256 * 1024)
    held = 0

    async def play(peer: Peer, begin: link.Begin) -> None:
        nonlocal held
        for number in itertools.count(1):
            await peer.say(link.Ask(peer.turn, number, verbs.ReadOutput(4711)))
            [host] = [host for host in hosts.hosts if host.turn is not None] or [None]
            if host is None:
                return
            held = max(held, len(host._out))

    hosts: PlayedHosts

    async def main() -> None:
        nonlocal hosts
        async with opened(play) as (control, hosts):
            check_host_ending(await ended(control, "s", "deaf"), "did not read")
            assert 0 < held < 2 * process.UNREAD_BYTES
            assert (await ended(control, "s", "+again")).text == "+again"

    played(main, caplog)


def test_a_long_answer_is_no_reason_to_end_a_host(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history that is longer than the bound on unread answers arrives like any other."""
    monkeypatch.setattr(process, "UNREAD_BYTES", 256 * 1024)

    async def play(peer: Peer, begin: link.Begin) -> None:
        if begin.message.text == "fill":
            await peer.say(*(link.Tell(peer.turn, verbs.Post("x" * 100_000)) for _ in range(20)))
            await peer.say(link.Returned(peer.turn, None, True, time.monotonic()))
        else:
            answer = await peer.ask(lambda turn, number: link.Ask(turn, number, verbs.ReadHistory()))
            await peer.say(link.Returned(peer.turn, str(len(answer.value)), True, time.monotonic()))

    async def main() -> None:
        async with opened(play) as (control, _):
            assert (await ended(control, "s", "fill")).ending is Ending.COMPLETED
            outcome = await ended(control, "s", "read")
            assert outcome.ending is Ending.COMPLETED, outcome
            assert int(outcome.text) > 2_000_000

    played(main, caplog)


def test_what_an_agent_raised_is_told_in_bounds(caplog: pytest.LogCaptureFixture) -> None:
    """A host may send any text as its agent's error; control keeps one line of it."""

    async def play(peer: Peer, begin: link.Begin) -> None:
        await peer.say(link.Raised(peer.turn, "ValueError: " + "x" * 1_000_000, None, True, time.monotonic()))

    async def main() -> None:
        async with opened(play) as (control, _):
            outcome = await ended(control, "s", "raise")
            assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.AGENT)
            assert outcome.error is not None
            assert outcome.error.startswith("ValueError: xxx")
            assert len(outcome.error) <= 2_000

    played(main, caplog)


# Anything at all


class Chaos:
    """Words in any order, with any values, some of them mutated; one seed fixes all of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.returned = self.raised = False
        # The link may hold a part of a message, which would spoil the next turn of the host.
        self.half = False
        self.over = asyncio.Event()  # set when the peer says nothing more
        self._number = 0
        self._numbers = [0]
        self._call = 0
        self._run = ""
        self._turn = 1

    def script(self, begin: link.Begin) -> list[bytes]:
        """Return what a peer sends in a turn, in pieces."""
        self._run, self._turn = begin.run_id, begin.turn
        random = self.random
        data = [self._piece() for _ in range(random.randrange(12))]
        data.append(self._last())
        whole = b"".join(data)
        cuts = sorted(random.randrange(len(whole) + 1) for _ in range(random.choice((0, 0, 1, 3))))
        return [whole[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(whole)])]

    def _piece(self) -> bytes:
        random = self.random
        at = random.random()
        if at < 0.1:
            self.half = True
        if at < 0.04:
            return random.randbytes(random.randrange(1, 40))
        data = link.frame(self._word())
        if at < 0.1:
            return self._mutated(data)
        return data

    def _mutated(self, data: bytes) -> bytes:
        random, mutated = self.random, bytearray(data)
        for _ in range(random.randrange(1, 4)):
            place = random.randrange(len(mutated))
            match random.randrange(4):
                case 0:
                    mutated[place] ^= 1 << random.randrange(8)
                case 1:
                    del mutated[place : place + random.randrange(1, 4)]
                case 2:
                    mutated[place:place] = random.randbytes(random.randrange(1, 4))
                case 3:
                    mutated[place:place] = mutated[:place]
            mutated = mutated or bytearray(b"\0")
        self.returned = self.raised = True  # the mutated bytes may say anything
        return bytes(mutated)

    def _instant(self) -> float:
        return self.random.choice((time.monotonic(), 0.0, -1.0, math.inf, math.nan))

    def _last(self) -> bytes:
        match self.random.randrange(6):
            case 0 | 1:
                self.returned = True
                return link.frame(link.Returned(self._turn, self._text(), self.random.random() < 0.7, self._instant()))
            case 2:
                self.raised = True
                return link.frame(
                    link.Raised(
                        self._turn, self._text(), self.random.choice((None, "provider", "x")), True, self._instant()
                    )
                )
            case 3:
                self.half = True
                return link.frame(link.Tell(self._turn, verbs.Post("never all of it")))[: self.random.randrange(1, 12)]
            case 4:
                return spelled("Obey", self._turn)
            case _:
                return b""

    def _word(self) -> link.Word:
        random, turn = self.random, self._some_turn()
        kind = random.choice((*SAID, *[link.Tell, link.Ask] * 8))
        if kind in (link.Returned, link.Raised, link.Broken, link.Hello, link.Settled) and random.random() < 0.7:
            kind = link.Tell  # with other words, few sequences would be long
        self.returned |= kind is link.Returned
        self.raised |= kind is link.Raised
        if kind is link.Hello:
            return link.Hello(random.choice((1, link.VERSION)), 1)
        if kind is link.Broken:
            return link.Broken(self._text())
        values = [self._value(kind, name) for name in kind.__struct_fields__[1:]]
        return kind(turn, *values)  # type: ignore[no-any-return]

    def _some_turn(self) -> int:
        if self.random.random() < 0.97:
            return self._turn
        return self.random.choice((self._turn - 1, 0, -1, self._turn + 1, 2**63))

    def _value(self, kind: type, name: str) -> Any:
        random = self.random
        match name:
            case "verb":
                verb = random.choice(verbs.TELLINGS if kind is link.Tell else verbs.REQUESTS)
                return verb(*(self._value(verb, each) for each in verb.__struct_fields__))
            case "number" if kind is link.Ask:
                self._number += random.choice((1, 1, 1, 1, 1, 1, 2, 1_000)) if random.random() < 0.98 else 0
                self._numbers.append(self._number)
                return self._number
            case "number":
                return random.choice((*self._numbers, random.choice((-1, 0, 1, 2**63))))
            case "text" | "error" | "why" | "agent":
                return random.choice(("other", self._text()))
            case "name" | "phase":
                return random.choice(("a", "b", "provider", "", "x" * 600))
            case "on" | "settled" | "clean" | "handed":
                return random.random() < 0.5
            case "detached":
                return False
            case "announce":
                return random.choice((None, *Announce))
            case "done" | "total" | "seconds" | "deadline":
                return random.choice((None, 0.0, 1.0, 0.001, -1.0, math.inf, math.nan, 1e308))
            case "at":
                return self._instant()
            case "calls":
                return tuple(self._wanted() for _ in range(random.choice((0, 1, 1, 2, 5))))
            case "call":
                return random.choice(("", "x", *(f"{self._run}.{number}" for number in range(4))))
            case "state":
                return random.choice((ToolState.FAILED, ToolState.FAILED, ToolState.FINISHED, *ToolState))
            case "result":
                return random.choice((None, self._json()))
            case "effect":
                return random.choice(list(Effect))
            case "choices":
                return random.choice((None, (), ("a", "b"), ("a", "a"), ("",)))
            case "order":
                return self._order()
            case "argv":
                return random.choice(((), (b"true",), (b"/no/such\xff",), (b"",), (b"a\0",)))
            case "env":
                return random.choice(({}, {}, {b"A\xff": b"\xff"}, {b"": None}, {b"A=": b"1"}))
        raise AssertionError(f"no value for {name} of {kind}")

    def _text(self) -> str:
        return self.random.choice(("", "a", "+a", "two words", "ü\0\n", "😀" * 50, "x" * 5_000, " "))

    def _json(self) -> str:
        return self.random.choice(("{}", "[1, 2]", "null", '{"a": {"b": []}}', "", "{", "NaN", "[" * 3_000, '"\ud7ff"'))

    def _wanted(self) -> verbs.Wanted:
        name = self.random.choice(("f", "g", "", "x" * 600)) if self.random.random() < 0.2 else "f"
        grace = self.random.choice((0.0, 0.0, 0.1, -1.0, math.nan, math.inf))
        arguments = self._json() if self.random.random() < 0.3 else "{}"
        self._call += self.random.choice((1, 1, 1, 1, 1, 1, 1, 0))
        return verbs.Wanted(self._call, name, arguments, self.random.random() < 0.2, grace)  # type: ignore[arg-type]

    def _order(self) -> SpawnOrder:
        random = self.random
        if random.random() < 0.1:
            return order("true", background=random.random() < 0.5, streamed=random.random() < 0.5)
        return random.choice([wanted for wanted, why in REFUSED_ORDERS.values() if why != "too long"])


def test_anything_a_host_says_harms_only_its_run(caplog: pytest.LogCaptureFixture) -> None:
    """Words in any order, garbage and deaths harm only their own run: each run of many seeds has one true ending, each
    next message is served, and a session beside them goes on all the while."""
    chaos: dict[str, Chaos] = {}
    seeds = iter(range(SEQUENCES))

    async def play(peer: Peer, begin: link.Begin) -> None:
        if begin.message.text not in chaos:
            await polite(peer, begin)  # a child
            return
        playing = chaos[begin.message.text]
        for piece in playing.script(begin):
            await peer.send(piece)
            await asyncio.sleep(0)
        # This host reads on and settles, unless it has to die.
        if playing.random.random() < 0.3:
            reading = asyncio.create_task(peer.settle())
            await asyncio.wait([reading], timeout=0.02)
            reading.cancel()
            await asyncio.wait([reading])
        if peer.host.turn is not None or playing.half or playing.random.random() < 0.5:
            peer.hang_up()
            peer.played.end(playing.random.choice((0, 1, -9, -11)))
            while peer.host.alive:  # control would give the next turn to a host that died unseen
                await asyncio.sleep(0)
        playing.over.set()

    async def attack(control: Control, name: str) -> None:
        for count, seed in enumerate(seeds):
            session = f"{name}.{count // 25}"  # a long log takes long to read
            text = f"chaos {seed}"
            playing = chaos[text] = Chaos(seed)
            sent = await control.send(session, text)
            stops = playing.random.random() < 0.15
            if stops:
                for _ in range(playing.random.randrange(8)):
                    await asyncio.sleep(0)
                await control.stop(run=sent.run_id)
            outcome = await over(control, sent.run_id)
            if (await control.receipt(sent.run_id)).host != "none":  # the run was begun on a host
                await asyncio.wait_for(playing.over.wait(), RUN_SECONDS)
            await check_log(control, session, sent.run_id)
            if outcome.ending is Ending.FAILED and outcome.error_kind is ErrorKind.HOST:
                check_host_ending(outcome)
            else:
                agents = outcome.ending is Ending.FAILED and outcome.error_kind in (ErrorKind.AGENT, ErrorKind.PROVIDER)
                assert (
                    (outcome.ending is Ending.COMPLETED and playing.returned)
                    or (agents and (playing.raised or playing.returned))
                    or (outcome.ending is Ending.STOPPED and stops)
                ), (seed, outcome)
            del chaos[text]
            again = await ended(control, session, f"+{seed}")
            assert (again.ending, again.text) == (Ending.COMPLETED, f"+{seed}"), (seed, again.error)

    async def beside(control: Control) -> None:
        nonlocal trips
        for trips in itertools.count(1):
            outcome = await ended(control, f"beside.{trips // 25}", f"+{trips}")
            assert outcome.ending is Ending.COMPLETED
            await asyncio.sleep(0.005)

    trips = 0

    async def main() -> None:
        async with opened(play, approval="never") as (control, hosts):
            neighbour = asyncio.create_task(beside(control))
            async with asyncio.TaskGroup() as group:
                for number in range(SESSIONS):
                    group.create_task(attack(control, f"s{number}"))
            assert not neighbour.done()
            neighbour.cancel()
            await asyncio.wait([neighbour])
            assert trips > SEQUENCES / SESSIONS / 10
            info = control._driver.info  # type: ignore[attr-defined]
            assert info.busy <= 1
            assert len(control._registry.runs) <= 1 + SESSIONS
            held = sum(len(host._out) + len(host._frames._data) for host in hosts.hosts)
            assert held < 1024 * 1024

    played(main, caplog)
