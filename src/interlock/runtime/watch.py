"""Watching: replay, then live, without duplicates.

1. A watcher subscribes first and reads the log second. An event between the two is then in both, and its position says
   that it was seen; in the other order it would be in neither (race 99).
2. A delta of a run that was cut is not passed on, wherever it waits: in the buffer or in a page already read (race 10).
3. A slow watcher's buffer is bounded. When it overflows it is emptied, and the watcher reads the log again. It may then
   miss deltas of runs that have ended, never a block or an ending.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from interlock.core.events import Ended, Event, Gap, MessageData
from interlock.core.names import PASSING, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.outlet import Feed
from interlock.runtime.registry import Registry
from interlock.runtime.settings import WATCH_EVENTS
from interlock.stores.base import Log, read

PAGE_EVENTS = 1_024


class Buffer:
    """The events that one watcher has still to be shown."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        # The watcher has lost the right to see the session.
        self.forbidden = False
        # The watcher must read the log before the buffer.
        self.behind = True
        self.closed = False
        # A bare future: an Event would cost every watcher more with each delta.
        self._waiting: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Add an event; if the buffer is full, empty it and have the watcher read the log."""
        if len(self.events) >= WATCH_EVENTS:
            self.events.clear()
            self.behind = True
        self.events.append(event)
        self._wake()

    def drop(self, run_id: RunId) -> None:
        """Remove the unread deltas of a cut run."""
        self.events = deque(e for e in self.events if e.run_id != run_id or e.kind not in PASSING)

    def close(self) -> None:
        """End the watch after the events that wait."""
        self.closed = True
        self._wake()

    def forbid(self) -> None:
        """End the watch without another event: the watcher's right is gone."""
        self.forbidden = True
        self.events.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Wait for the next event, `close` or `forbid`."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting


class Watch:
    """One watcher's view of a session."""

    def __init__(self, session: SessionId, *, registry: Registry, feed: Feed, clock: Clock) -> None:
        self._session = session
        self._registry = registry
        self._feed = feed
        self._clock = clock

    async def events(
        self, after: int, only: RunId | None = None, *, buffer: Buffer | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield events after a position; with `only`, those of one run, up to its terminal event.

        A caller that passes a buffer may call its `forbid`; the watch then ends without another event.
        """
        buffer = buffer or Buffer()
        self._feed.subscribe(self._session, buffer)
        try:
            async with aclosing(self._follow(buffer, after, only)) as events:
                async for event in events:
                    if only is None:
                        yield event
                        continue
                    # The message was absorbed: follow the run that absorbed it.
                    if isinstance(event.data, MessageData) and event.data.of == only and event.run_id is not None:
                        only = event.run_id
                    only = self._itself(only)
                    if event.run_id == only:
                        yield event
                        if isinstance(event.data, Ended):
                            return
        finally:
            self._feed.unsubscribe(self._session, buffer)

    async def _follow(self, buffer: Buffer, seen: int, only: RunId | None) -> AsyncGenerator[Event, None]:
        while not buffer.forbidden:
            if buffer.behind:
                # Before the read: an overflow during the read sets the mark again, and the log is read once more.
                buffer.behind = False
                page = await read(self._feed.log.events(self._session, after=seen, limit=PAGE_EVENTS))
                if page.lost_to > seen and not buffer.forbidden:
                    yield self._gap(seen, page.lost_to)
                    seen = page.lost_to
                if len(page.events) == PAGE_EVENTS:
                    buffer.behind = True
                for event in page.events:
                    seen = event.position
                    if buffer.forbidden:
                        return
                    if self._tellable(event):
                        yield event
            elif buffer.events:
                event = buffer.events.popleft()
                if event.position > seen:
                    seen = event.position
                    if self._tellable(event):
                        yield event
            elif buffer.closed or (only is not None and self._silent(only)):
                return
            else:
                await buffer.wait()

    def _tellable(self, event: Event) -> bool:
        """Return whether an event may still be shown.

        Deltas count only while their run is alive and was not cut; a block or the terminal event holds their text.
        """
        if event.kind not in PASSING or event.run_id is None:
            return True
        run = self._registry.runs.get(event.run_id)
        return run is not None and (run.fence.cause is None or not run.fence.cause.early)

    def _silent(self, run_id: RunId) -> bool:
        """Return whether a run will publish nothing more: it is not in memory, or its terminal event is published.

        Without this a watch would wait for ever for a terminal event that the log has dropped.
        """
        run = self._registry.runs.get(self._itself(run_id))
        return run is None or run.sealed

    def _itself(self, run_id: RunId) -> RunId:
        """Return the id of a run, or of the run that absorbed it."""
        run = self._registry.runs.get(run_id)
        return run_id if run is None else run.itself.id

    def _gap(self, after: int, lost_to: int) -> Event:
        return Event(
            position=lost_to,
            at=self._clock.wall(),
            session=self._session,
            run_id=None,
            generation=None,
            data=Gap(after=after),
        )


async def whole_log(log: Log, session: SessionId, *, after: int = 0) -> list[Event]:
    """Return all events of a session's log after a position, read page by page."""
    events: list[Event] = []
    while True:
        page = await read(log.events(session, after=after, limit=PAGE_EVENTS))
        events.extend(page.events)
        if len(page.events) < PAGE_EVENTS:
            return events
        after = page.events[-1].position
