"""Our own wording of events: `interlock.event` frames, for watches and outlines.

A watch's frame is its label (`watch_label`, with the watch's number) and the event as it is; so watches of any number,
on any connection, share one body. An event that is replayed from the log is told with `replay`, until the frame
`caught_up` says that the next one is news. A `fell` frame says in the step of a fall that a run is not current any
more: a reader elsewhere cannot ask the fence.
"""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from interlock.core.events import Delta, Ended, Event, QuestionData, Source
from interlock.core.names import PASSING, EventKind, QuestionState, RunId
from interlock.protocol.frames import encode
from interlock.surfaces.gateway.items import Frame, Piece, Stream, event_frame
from interlock.surfaces.gateway.telling import PREVIEW

OUTLINE: Final = frozenset(
    EventKind(kind) for kind in ("message", "started", "question", "child", "ended", "receipt", "correction")
)
LONG: Final = frozenset({"text", "cut", "error", "arguments", "result"})  # fields that an outline shortens
STREAMS: Final = 4_096  # runs whose deltas are joined

_HEAD: Final = b'{"type":"event","event":"interlock.event","payload":{"watch":%d%b,'


def watch_label(watch: int, *, replay: bool = False) -> bytes:
    """Return the beginning of the frames of a watch; the event's body follows."""
    return _HEAD % (watch, b',"replay":true' if replay else b"")


class OwnWording:
    """Makes the bodies of `interlock.event` frames; watches share them."""

    def __init__(self) -> None:
        # The last item is enough: all sinks are handed an event before the next one is published.
        self._last: tuple[Event, Frame | Piece] | None = None
        self._outlined: tuple[Event, tuple[Frame, ...]] | None = None
        self._streams: dict[RunId | None, Stream] = {}

    def item(self, event: Event, source: Source | None) -> Frame | Piece:
        """Return an event's body for `watch_label`."""
        last = self._last
        if last is not None and last[0] is event:
            return last[1]
        item: Frame | Piece
        if isinstance(event.data, Delta):
            item = self._piece(event, event.data.text, source)
        else:
            body = b'"event":%b}' % encode(event)
            item = Frame(body, session=event.session, source=source, passing=event.kind in PASSING)
        self._last = event, item
        return item

    def _piece(self, event: Event, text: str, source: Source | None) -> Piece:
        stream = self._streams.get(event.run_id)
        if stream is None or stream.source is not source:
            head = b'"event":{"session":%b,"run_id":%b,"generation":%b,"data":{"type":"delta","text":' % (
                encode(event.session),
                encode(event.run_id),
                encode(event.generation),
            )
            if len(self._streams) >= STREAMS:
                self._streams.clear()
            stream = self._streams[event.run_id] = Stream(head, event.session, source)
        return Piece(stream, text, b'},"position":%d,"at":%r}}' % (event.position, event.at))

    def outline(self, event: Event, source: Source | None) -> tuple[Frame, ...]:
        """Return an event's frame with its texts shortened; none for a kind that is not in OUTLINE."""
        if event.kind not in OUTLINE:
            return ()
        if self._outlined is None or self._outlined[0] is not event:
            told = {"watch": 0, "event": _shortened(msgspec.to_builtins(event))}
            asks = isinstance(event.data, QuestionData)
            frame = event_frame("interlock.event", told, session=event.session, source=source, question=asks)
            self._outlined = event, (frame,)
        return self._outlined[1]

    def questions(self, event: Event, source: Source | None) -> tuple[Frame, ...]:
        """Return the outline for a principal who may only answer: questions, also those that a run's end voids."""
        if isinstance(event.data, QuestionData):
            return self.outline(event, source)
        void = event.data.void if isinstance(event.data, Ended) else ()
        asked = (QuestionData(question_id=each, text="", state=QuestionState.VOID) for each in void)
        return tuple(frame for each in asked for frame in self.outline(replace(event, data=each), source))


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: each[: PREVIEW - 1] + "…"
        if name in LONG and isinstance(each, str) and len(each) > PREVIEW
        else _shortened(each)
        for name, each in value.items()
    }
