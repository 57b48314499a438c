"""The link: a run's verbs as messages between control and a host.

1. A message is length-prefixed msgpack of a closed struct with a tag, and is checked when decoded.
2. Control writes to a stream socket that it has shut for reading, and reads from a pipe. A socket can carry
   descriptors, and closing a descriptor that a host sent may block control's loop for as long as the host likes.
3. Control trusts nothing that a host says. A message that is too long, unknown or out of order ends the host, and
   control goes on.
4. Both directions are bounded. A host waits when control does not read; a host that does not read is ended.
5. A host's message about a turn carries the turn's number. A request carries a number of its own, and these only rise.
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
FRAME_BYTES = 4 * REPLY_BYTES + 64 * 1024  # the longest message of a host: a reply of four-byte characters
HEAD_BYTES = 4
CALLS = 1_000  # in one Record, since a call costs control far more than its bytes
CHOICES = 100


class Word(msgspec.Struct, array_like=True, tag=True):
    """A message of a host, or of control."""


# What a host says. A docstring says what the host (or its agent) means by the message.


class Hello(Word):
    """The host is ready for turns."""

    version: int
    pid: int


class Broken(Word):
    """The host cannot serve, because the agent could not be imported for the reason `why`."""

    why: str


class OfTurn(Word):
    """A message that belongs to a turn."""

    turn: int


class Say(OfTurn):
    """A piece of the reply."""

    text: str


class Post(OfTurn):
    """A whole block."""

    text: str


class SetTyping(OfTurn):
    """The agent is about to write, or no longer."""

    on: bool


class SetProgress(OfTurn):
    """The progress of long work."""

    text: str
    done: float | None
    total: float | None


class SetPhase(OfTurn):
    """The phase that the run is in, None if it left its phase."""

    name: str | None


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """One tool call of a Record."""

    name: str
    arguments: Json
    asks: bool
    grace: float


class Record(OfTurn):
    """Tool calls are about to be made. Host and control number them alike, by their order."""

    calls: Annotated[tuple[Wanted, ...], msgspec.Meta(max_length=CALLS)]


class Finish(OfTurn):
    """A permitted call has ended, with this result or error."""

    call: CallId
    state: ToolState
    result: Json | None
    error: str | None


class GiveUp(OfTurn):
    """The agent no longer waits for a call."""

    call: CallId


class Release(OfTurn):
    """The agent frees a hold."""

    name: str


class EndProcess(OfTurn):
    """End a process, without an answer."""

    handle: int


class ForgetProcess(OfTurn):
    """The agent has no reference to a process any more, and will not ask about it."""

    handle: int


class Tried(OfTurn):
    """The host itself refused an effect, because it knew of the fall. Control counts the try."""

    effect: Effect


class Took(OfTurn):
    """The agent was handed the messages of the answer to Check `number`; only this makes them part of the run."""

    number: int


class Cancel(OfTurn):
    """The agent no longer waits for the answer to a request."""

    number: int


class Returned(OfTurn):
    """The agent returned, `at` that instant of the machine's monotonic clock. `settled`: no body of the turn runs."""

    text: str | None
    settled: bool
    at: float


class Raised(OfTurn):
    """The agent raised an error, `at` that instant of the machine's monotonic clock."""

    error: str
    phase: str | None
    settled: bool
    at: float


class Settled(OfTurn):
    """Nothing of a fallen turn runs any more. `clean`: no task, timer or thread that it began is left in the host."""

    clean: bool


class Request(OfTurn):
    """A message that control answers with Answer or Refusal, under the same number."""

    number: int


class Check(Request):
    """Ask for the messages that are steered to the run."""


class Permit(Request):
    """Ask whether a recorded call may begin."""

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
    """Ask for the next line of a process."""

    handle: int


class ReadOutput(Request):
    """Ask for the output of a process so far."""

    handle: int


class StopProcess(Request):
    """End a process; the answer comes when it was seen gone."""

    handle: int


class ReadHistory(Request):
    """Ask for the conversation so far."""


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
    """Import these agents. Sent to a host that was spawned, not forked from the zygote."""

    path: tuple[str, ...]
    agents: dict[str, str]  # by name; the served agent has the empty name


class Rehearse(Word):
    """Play a turn of our own agent, so that the first real turn finds everything in memory."""


class Begin(Word):
    """Begin a turn."""

    turn: int
    agent: str
    run_id: RunId
    session: SessionId
    generation: int
    message: Message


class Fallen(Word):
    """The run of a turn has fallen: end everything of it, and say `Settled` when nothing of it runs."""

    turn: int
    cause: Cause


class Answer(Word):
    """The answer to a request."""

    number: int
    value: msgspec.Raw


class Refusal(Word):
    """A request was refused, or failed."""

    number: int
    kind: str
    text: str
    errno: int | None = None


class Problem(Word):
    """Control could not do what a message without an answer asked for; the agent's next verb raises this."""

    turn: int
    kind: str
    text: str


class Exited(Word):
    """A process of the turn has exited."""

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
    """Bytes arrived that are no message."""


_encoder = msgspec.msgpack.Encoder()


def frame(word: Word, limit: int | None = None) -> bytes:
    """Return a message as bytes with its length; raise BadInput if it is longer than `limit`."""
    data = bytearray(HEAD_BYTES)
    _encoder.encode_into(word, data, HEAD_BYTES)
    if limit is not None and len(data) - HEAD_BYTES > limit:
        raise BadInput(f"this is {len(data)} bytes, more than control takes at once ({limit}); use a file")
    data[:HEAD_BYTES] = (len(data) - HEAD_BYTES).to_bytes(HEAD_BYTES, "big")
    return bytes(data)


def pack(value: Any) -> msgspec.Raw:
    """Return the value of an Answer; the asking side knows its type."""
    return msgspec.Raw(_encoder.encode(value))


class Frames:
    """Collects bytes as they arrive, and yields whole messages."""

    def __init__(self, kind: Any, limit: int | None = None) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._limit = limit
        self._data = bytearray()
        self._at = 0

    @property
    def empty(self) -> bool:
        """True if no incomplete message is waiting."""
        return len(self._data) == self._at

    @property
    def missing(self) -> int:
        """The number of bytes that the incomplete message still needs; 0 if its length is not known yet."""
        if len(self._data) - self._at < HEAD_BYTES:
            return 0
        size = int.from_bytes(self._data[self._at : self._at + HEAD_BYTES], "big")
        return max(0, HEAD_BYTES + size - (len(self._data) - self._at))

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def __iter__(self) -> Iterator[Any]:
        """Yield whole messages; raise Garbage at the first bytes that are no message."""
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
