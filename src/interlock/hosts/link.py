"""The link: a run's verbs as messages, between control and a host.

1. Length-prefixed msgpack, to a host on a stream socket and from it on a pipe; each message is a closed struct with a
   tag, and checked when decoded.
2. Control trusts nothing a host says: what is too long, unknown or out of order ends the host, not control.
3. Both sides are bounded. A host waits when control does not read; one that does not read is ended.
4. What a host sends of a turn carries the turn's number; a request carries a number of its own, which only rises.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from interlock.core.errors import BadInput
from interlock.core.events import Json
from interlock.core.names import Announce, CallId, Effect, RunId, SessionId, ToolState
from interlock.core.outcome import Cause
from interlock.processes.base import ARGUMENTS, SpawnOrder
from interlock.runtime.run import Message
from interlock.runtime.settings import REPLY_BYTES

VERSION = 2
FRAME_BYTES = 4 * REPLY_BYTES + 64 * 1024  # the longest message a host may send: a reply of wide characters
HEAD_BYTES = 4
CALLS = 1_000  # that one message may record: each costs control far more than the bytes it comes in
CHOICES = 100


class Word(msgspec.Struct, array_like=True, tag=True):
    """A message of a host, or of control."""


# What a host says


class Hello(Word):
    """It is ready for turns."""

    version: int
    pid: int


class Broken(Word):
    """It cannot serve: the agent could not be imported, and why."""

    why: str


class OfTurn(Word):
    """Anything a turn's agent wants."""

    turn: int


class Say(OfTurn):
    """A piece of the reply."""

    text: str


class Post(OfTurn):
    """A whole block."""

    text: str


class SetTyping(OfTurn):
    """Something is coming, or not."""

    on: bool


class SetProgress(OfTurn):
    """How far long work has come."""

    text: str
    done: float | None
    total: float | None


class SetPhase(OfTurn):
    """What the run is doing."""

    name: str | None


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """A tool call that is about to be made."""

    name: str
    arguments: Json
    asks: bool
    grace: float


class Record(OfTurn):
    """Calls that are about to be made. Their numbers follow from the order."""

    calls: Annotated[tuple[Wanted, ...], msgspec.Meta(max_length=CALLS)]


class Finish(OfTurn):
    """What became of a call."""

    call: CallId
    state: ToolState
    result: Json | None
    error: str | None


class GiveUp(OfTurn):
    """A call is not waited for any longer."""

    call: CallId


class Release(OfTurn):
    """A hold is let go."""

    name: str


class EndProcess(OfTurn):
    """End a process."""

    handle: int


class ForgetProcess(OfTurn):
    """Nobody asks for a process any more."""

    handle: int


class Tried(OfTurn):
    """The host itself refused an effect, because it knew of the end; it is counted."""

    effect: Effect


class Took(OfTurn):
    """The agent was handed the messages that a Check was answered with."""

    number: int


class Cancel(OfTurn):
    """A request is not waited for any longer."""

    number: int


class Returned(OfTurn):
    """The agent returned, `at` that instant of the machine's monotonic clock. `settled`: nothing else of it runs."""

    text: str | None
    settled: bool
    at: float


class Raised(OfTurn):
    """The agent raised, `at` that instant."""

    error: str
    phase: str | None
    settled: bool
    at: float


class Settled(OfTurn):
    """Nothing of a fallen turn runs any more. `clean`: nothing it began is left in the host either."""

    clean: bool


class Request(OfTurn):
    """Something that is answered."""

    number: int


class Check(Request):
    """Messages steered to the run."""


class Permit(Request):
    """May a recorded call begin?"""

    call: CallId


class Ask(Request):
    """Ask a person."""

    text: str
    choices: Annotated[tuple[str, ...], msgspec.Meta(max_length=CHOICES)] | None
    seconds: float | None


class Delegate(Request):
    """Hand work to another agent."""

    agent: str
    text: str
    deadline: float | None
    detached: bool
    announce: Announce | None = None


class TakeHold(Request):
    """Take a hold."""

    name: str


class Spawn(Request):
    """Start a process; its handle is the request's number. Arguments and environment are bytes: not all are UTF-8."""

    order: SpawnOrder
    argv: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=ARGUMENTS)] = ()
    env: Annotated[dict[bytes, bytes | None], msgspec.Meta(max_length=ARGUMENTS)] = {}


class WaitProcess(Request):
    """Wait for a process."""

    handle: int


class ReadLine(Request):
    """The next line of a process."""

    handle: int


class ReadOutput(Request):
    """What a process has written so far."""

    handle: int


class StopProcess(Request):
    """End a process and see it gone."""

    handle: int


class ReadHistory(Request):
    """The conversation so far."""


Said = (
    Hello
    | Broken
    | Say
    | Post
    | SetTyping
    | SetProgress
    | SetPhase
    | Record
    | Finish
    | GiveUp
    | Release
    | EndProcess
    | ForgetProcess
    | Tried
    | Took
    | Cancel
    | Returned
    | Raised
    | Settled
    | Check
    | Permit
    | Ask
    | Delegate
    | TakeHold
    | Spawn
    | WaitProcess
    | ReadLine
    | ReadOutput
    | StopProcess
    | ReadHistory
)

# What control says


class Load(Word):
    """Import agents: for a host that was not forked from a process that has them."""

    path: tuple[str, ...]
    agents: dict[str, str]  # by their names; the one that is served has the empty name


class Rehearse(Word):
    """Play a turn of nobody's, so that the first real one finds everything at hand."""


class Begin(Word):
    """A turn."""

    turn: int
    agent: str
    run_id: RunId
    session: SessionId
    generation: int
    message: Message


class Fallen(Word):
    """A turn's run has fallen: let nothing of it go on, and say when nothing does."""

    turn: int
    cause: Cause


class Answer(Word):
    """The answer to a request."""

    number: int
    value: msgspec.Raw


class Refusal(Word):
    """A request was refused, or raised."""

    number: int
    kind: str
    text: str
    errno: int | None = None


class Problem(Word):
    """What was said without waiting could not be done."""

    turn: int
    kind: str
    text: str


class Exited(Word):
    """A process has exited."""

    turn: int
    handle: int
    status: int | None
    timed_out: bool


Told = Load | Rehearse | Begin | Fallen | Answer | Refusal | Problem | Exited


class Started(msgspec.Struct, frozen=True, array_like=True):
    """The answer to Spawn."""

    pid: int | None


class SteeredTo(msgspec.Struct, frozen=True, array_like=True):
    """The answer to Check."""

    messages: tuple[Message, ...]


class Garbage(Exception):
    """What arrived is no message."""


_encoder = msgspec.msgpack.Encoder()


def frame(word: Word, limit: int | None = None) -> bytes:
    """Return a message as it travels, or say that it is too long to."""
    data = bytearray(HEAD_BYTES)
    _encoder.encode_into(word, data, HEAD_BYTES)
    if limit is not None and len(data) - HEAD_BYTES > limit:
        raise BadInput(f"this is {len(data)} bytes, more than control takes at once ({limit}); use a file")
    data[:HEAD_BYTES] = (len(data) - HEAD_BYTES).to_bytes(HEAD_BYTES, "big")
    return bytes(data)


def pack(value: Any) -> msgspec.Raw:
    """Return the value of an answer, to be read by whoever asked."""
    return msgspec.Raw(_encoder.encode(value))


class Frames:
    """Takes bytes as they come and gives messages, one by one."""

    def __init__(self, kind: Any, limit: int | None = None) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._limit = limit
        self._data = bytearray()
        self._at = 0

    @property
    def empty(self) -> bool:
        """True if no part of a message is waiting for its rest."""
        return len(self._data) == self._at

    @property
    def missing(self) -> int:
        """Bytes that the message which is arriving still wants; 0 if that is not known yet."""
        if len(self._data) - self._at < HEAD_BYTES:
            return 0
        size = int.from_bytes(self._data[self._at : self._at + HEAD_BYTES], "big")
        return max(0, HEAD_BYTES + size - (len(self._data) - self._at))

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def __iter__(self) -> Iterator[Any]:
        """Yield whole messages; raise Garbage at the first that is none."""
        while len(self._data) - self._at >= HEAD_BYTES:
            begin = self._at + HEAD_BYTES
            size = int.from_bytes(self._data[self._at : begin], "big")
            if self._limit is not None and size > self._limit:
                raise Garbage(f"a message of {size} bytes")
            if len(self._data) < begin + size:
                return
            data = bytes(self._data[begin : begin + size])
            self._at = begin + size
            try:
                word = self._decoder.decode(data)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, MemoryError) as error:
                raise Garbage(str(error)[:200]) from None
            yield word
