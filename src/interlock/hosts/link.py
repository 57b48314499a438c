"""The link: the messages between control and a host. A verb of an agent travels in one as it is.

1. A message is length-prefixed msgpack of a closed struct with a tag, and is checked when decoded.
2. Control writes to a stream socket that it has shut for reading, and reads from a pipe. A socket can carry
   descriptors, and closing a descriptor that a host sent may block control's loop for as long as the host likes.
3. Control trusts nothing that a host says. A message that is too long, unknown or out of order ends the host, and
   control goes on.
4. Both directions are bounded. A host waits when control does not read; a host that does not read is ended.
5. A host's message about a turn carries the turn's number. A verb travels as it is (agent/verbs.py), inside `Tell` or
   `Ask`; an `Ask` carries a number of its own, and these only rise.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.agent.bounds import REPLY_BYTES
from interlock.agent.message import Message
from interlock.agent.verbs import REQUESTS, TELLINGS, Request, Telling
from interlock.core.errors import BadInput
from interlock.core.names import Effect, RunId, SessionId
from interlock.core.outcome import Cause

VERSION = 3
FRAME_BYTES = 4 * REPLY_BYTES + 64 * 1024  # the longest message of a host: a reply of four-byte characters
HEAD_BYTES = 4


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


if TYPE_CHECKING:
    AnyTelling = Telling
    AnyRequest = Request[Any]
else:
    AnyTelling = reduce(or_, TELLINGS)
    AnyRequest = reduce(or_, REQUESTS)


class OfTurn(Word):
    """A message that belongs to a turn."""

    turn: int


class Tell(OfTurn):
    """A verb of the agent that has no answer."""

    verb: AnyTelling


class Ask(OfTurn):
    """A verb of the agent that control answers with Answer or Refusal, under the same number."""

    number: int
    verb: AnyRequest


class Tried(OfTurn):
    """The host itself refused an effect, because it knew of the fall. Control counts the try."""

    effect: Effect


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


Said = Hello | Broken | Tell | Ask | Tried | Cancel | Returned | Raised | Settled

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
    process: int
    status: int | None
    timed_out: bool


Told = Load | Rehearse | Begin | Fallen | Answer | Refusal | Problem | Exited


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
