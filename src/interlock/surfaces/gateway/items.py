"""The items of the gateway's outboxes: event frames of JSON.

1. An item's body is encoded once and shared by all connections. The parts that differ stand apart: the label (a watch's
   number), and the connection's `seq`.
2. Texts of one stream that wait are sent as one frame, with the position of the last. Readers that wait for the same
   texts share that frame's body too.
"""

from collections.abc import Sequence
from typing import Any, cast

from interlock.core.events import Source
from interlock.core.names import SessionId
from interlock.protocol.frames import encode
from interlock.surfaces.outbox import Item


class Frame:
    """A whole event frame, but for its label and `seq`."""

    __slots__ = ("body", "passing", "question", "session", "size", "source")

    stream = None
    characters = 0

    def __init__(
        self,
        body: bytes,
        *,
        session: SessionId | None = None,
        source: Source | None = None,
        passing: bool = False,
        question: bool = False,
    ) -> None:
        self.body = body
        self.session = session
        self.source = source
        self.passing = passing
        self.question = question  # approvers are told it too
        self.size = len(body)

    def render(self, label: bytes, number: int, joined: Sequence[Item]) -> bytes:
        """Return the frame."""
        return b'%b%b,"seq":%d}' % (label, self.body, number)


class Stream:
    """The deltas of one run in one wording: the beginning of their body, and the body that was last rendered."""

    __slots__ = ("_body", "_first", "_joined", "_last", "head", "session", "source")

    def __init__(self, head: bytes, session: SessionId, source: Source | None) -> None:
        self.head = head
        self.session = session
        self.source = source
        self._first: Item | None = None
        self._last: Item | None = None
        self._joined = 0
        self._body = b""

    def body(self, pieces: "Sequence[Piece]") -> bytes:
        """Return the body of joined texts; readers at the same place get the same."""
        first, last = pieces[0], pieces[-1]
        if first is not self._first or last is not self._last or len(pieces) != self._joined:
            text = last.text if len(pieces) == 1 else "".join([piece.text for piece in pieces])
            self._first, self._last, self._joined = first, last, len(pieces)
            self._body = b"%b%b%b" % (self.head, encode(text), last.tail)
        return self._body


class Piece:
    """A delta: a text that the outbox may join to the next."""

    __slots__ = ("characters", "session", "size", "source", "stream", "tail", "text")

    passing = True
    question = False

    def __init__(self, stream: Stream, text: str, tail: bytes) -> None:
        self.stream = stream
        self.session = stream.session
        self.source = stream.source
        self.text = text
        self.tail = tail
        self.characters = len(text)
        self.size = len(stream.head) + len(tail) + self.characters

    def render(self, label: bytes, number: int, joined: Sequence[Item]) -> bytes:
        """Return the frame of the joined texts."""
        return b'%b%b,"seq":%d}' % (label, self.stream.body(cast(Sequence[Piece], joined)), number)


def event_frame(
    name: str,
    payload: Any,
    *,
    session: SessionId | None = None,
    source: Source | None = None,
    passing: bool = False,
    question: bool = False,
) -> Frame:
    """Return an event frame."""
    body = b'{"type":"event","event":"%b","payload":%b' % (name.encode(), encode(payload))
    return Frame(body, session=session, source=source, passing=passing, question=question)
