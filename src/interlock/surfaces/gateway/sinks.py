"""The sinks of a connection: each puts the events that it takes into the outbox, in the step that publishes them.

A connection that is told everything cannot read an event again later, so its sinks always take; a reader that is too
slow is closed. A watch has positions: while the outbox is full it takes nothing, and reads on in the log when there is
room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from interlock.client.door import Listening, Sees, Sink
from interlock.core.errors import InterlockError
from interlock.core.events import Event, Source
from interlock.protocol.frames import Fell, encode
from interlock.surfaces.gateway.items import Frame, Piece, event_frame
from interlock.surfaces.gateway.own import watch_label

if TYPE_CHECKING:
    from interlock.surfaces.gateway.connection import Connection


class Telling(Sink):
    """Tells a connection what its principal may see: in the published words, or as an outline in our own.

    With `questions`, only the questions that the principal may answer.
    """

    __slots__ = ("_connection", "_questions")

    def __init__(self, connection: Connection, *, questions: bool = False) -> None:
        self._connection = connection
        self._questions = questions

    def take(self, event: Event, source: Source | None) -> bool:
        connection = self._connection
        own = connection.gateway.own
        items: Sequence[Frame | Piece]
        if connection.outline:
            items = own.questions(event, source) if self._questions else own.outline(event, source)
        else:
            items = connection.gateway.published.items(event, source, connection.door.name_of(event.session))
        for item in items:
            if item.question or not self._questions:
                connection.outbox.put(item)
        return True

    def take_back(self, sees: Sees) -> None:
        self._connection.outbox.keep(lambda item, label: _may_stay(item, sees))


def _may_stay(item: Any, sees: Sees) -> bool:
    run_id = None if item.source is None else item.source.run_id
    return item.session is None or sees(item.session, run_id, item.question)


class Watching(Sink):
    """One watch of a connection: a session's or a run's events, in our own words."""

    __slots__ = ("_connection", "_error_of", "_fallen", "_label", "_number", "_over", "listening")

    def __init__(self, connection: Connection, number: int, error_of: Callable[[InterlockError], Any]) -> None:
        self._connection = connection
        self._number = number
        self._error_of = error_of
        self._label = watch_label(number, replay=True)
        self._over = False
        # The last run whose fall was told.
        self._fallen: Source | None = None
        self.listening: Listening | None = None

    def take(self, event: Event, source: Source | None) -> bool:
        outbox = self._connection.outbox
        if outbox.full:
            # The events from here on are read from the log later; until then they are history.
            self._label = watch_label(self._number, replay=True)
            outbox.when_room(self.resume)
            return False
        # The watch began after the fall of this run, and before its terminal event.
        if source is not None and source.cause is not None and source is not self._fallen:
            self.fell(source)
        outbox.put(self._connection.gateway.own.item(event, source), self._label)
        return True

    def resume(self) -> None:
        """Read on in the log."""
        if self.listening is not None:
            self.listening.resume()

    def caught_up(self, position: int) -> None:
        self._label = watch_label(self._number)
        self._say({"caught_up": position})

    def fell(self, source: Source) -> None:
        assert source.cause is not None
        self._fallen = source
        fell = Fell(run_id=source.run_id, early=source.cause.early)
        session = None if self.listening is None else self.listening.session
        told = Frame(b'"fell":%b}' % encode(fell), session=session, source=source)
        # At the head: what waits of the run is not sent any more.
        self._connection.outbox.put(told, watch_label(self._number), urgent=True)

    def close(self, error: InterlockError | None) -> None:
        if error is not None:
            mine = watch_label(self._number), watch_label(self._number, replay=True)
            self._connection.outbox.keep(lambda item, label: label not in mine)
        self.end(error)

    def end(self, error: InterlockError | None) -> None:
        """Tell the reader that the watch is over, once."""
        if not self._over:
            self._over = True
            self._connection.forget_watch(self._number, self)
            told = {"over": True} if error is None else {"over": True, "error": self._error_of(error)}
            self._say(told)

    def _say(self, told: dict[str, Any]) -> None:
        """Tell the reader about the watch, in its place among the session's events: a stop hastens it with them."""
        frame = event_frame("interlock.event", {"watch": self._number, **told}).body + b"}"
        self._connection.outbox.answer(frame, about=None if self.listening is None else self.listening.session)
