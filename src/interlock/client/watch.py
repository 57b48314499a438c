"""A watch: a sink with a queue.

1. A delta of a run that was cut is not shown, wherever it waits: the queue asks the event's source when the watcher
   reads it (race 10).
2. The queue is bounded. A slow watcher reads from the log what the queue had no room for. It may then miss deltas of
   runs that have ended, never a block or an ending.
"""

import asyncio
from collections import deque

from interlock.client.door import Listening, Sink, is_over
from interlock.core.errors import InterlockError
from interlock.core.events import Event, Source

WATCH_EVENTS = 1_024  # events in one watcher's buffer; beyond it the watcher reads the log


class Watch(Sink):
    """The events that one watcher has still to be shown."""

    __slots__ = ("_closed", "_events", "_waiting", "error", "listening")

    def __init__(self) -> None:
        self._events: deque[tuple[Event, Source | None]] = deque()
        self._closed = False
        # A bare future: an asyncio.Event would cost every watcher more with each delta.
        self._waiting: asyncio.Future[None] | None = None
        self.error: InterlockError | None = None
        self.listening: Listening | None = None

    def take(self, event: Event, source: Source | None) -> bool:
        if len(self._events) >= WATCH_EVENTS:
            return False
        self._events.append((event, source))
        if self._waiting is not None:
            self._wake()
        return True

    def close(self, error: InterlockError | None) -> None:
        """End the watch after the events that wait; with an error, without another event."""
        self._closed = True
        self.error = error
        if error is not None:
            self._events.clear()
        self._wake()

    async def next(self) -> Event | None:
        """Return the next event that may be shown, or None at the end; raise the error that ended the watch."""
        while True:
            while self._events:
                event, source = self._events.popleft()
                if not is_over(event, source):
                    return event.of(source)
            if self._closed:
                if self.error is not None:
                    raise self.error
                return None
            # Only an empty queue has room for a whole page of the log.
            if self.listening is not None and self.listening.is_behind:
                self.listening.resume()
            waiting = self._waiting = asyncio.get_running_loop().create_future()
            await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
