"""Watching: replay, then live, without duplicates.

1. A watcher subscribes first and reads the log second, so nothing falls between; positions tell what it has seen.
2. A delta of a run that was cut is not passed on, wherever it waits: in the buffer or in a page already read.
3. A slow watcher's buffer is bounded: it is emptied and the watcher reads from the store again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from interlock.core.events import Ended, Event, Gap, Said
from interlock.core.names import PASSING, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.outlet import Feed
from interlock.runtime.registry import Registry
from interlock.runtime.settings import WATCH_EVENTS
from interlock.stores.base import Log, Store, read

PAGE_EVENTS = 1_024


class Buffer:
    """A watcher's place in the feed."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.forbidden = False  # the watcher may not see it any more
        self.behind = True  # must read the log before the buffer
        self.closed = False
        self._waiting: asyncio.Future[None] | None = None  # a bare one: an Event costs every watcher more a delta

    def put(self, event: Event) -> None:
        """Take an event; if there are too many, fall back on the log."""
        if len(self.events) >= WATCH_EVENTS:
            self.events.clear()
            self.behind = True
        self.events.append(event)
        self._wake()

    def drop(self, run_id: RunId) -> None:
        """Forget what a cut run said and nobody has been told."""
        self.events = deque(e for e in self.events if e.run_id != run_id or e.kind not in PASSING)

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._wake()

    def forbid(self) -> None:
        """The watcher's right is gone: what it has not been told it is not told."""
        self.forbidden = True
        self.events.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Everything known has been passed on: wait until there is something to do."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting


class Watch:
    """One watcher's view of a session."""

    def __init__(self, session: SessionId, *, registry: Registry, store: Store, feed: Feed, clock: Clock) -> None:
        self._session = session
        self._registry = registry
        self._store = store
        self._feed = feed
        self._clock = clock

    async def events(
        self, after: int, only: RunId | None = None, *, buffer: Buffer | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield events behind a position; with `only`, those of one run, up to its terminal event.

        Whoever gives the buffer may forbid it; the watch then ends without another event.
        """
        buffer = buffer or Buffer()
        self._feed.subscribe(self._session, buffer)
        try:
            async with aclosing(self._follow(buffer, after, only)) as events:
                async for event in events:
                    if only is None:
                        yield event
                        continue
                    if isinstance(event.data, Said) and event.data.of == only and event.run_id is not None:
                        only = event.run_id  # that run took it in
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
                buffer.behind = False  # before the read: what overflows meanwhile is read again
                page = await read(self._store.events(self._session, after=seen, limit=PAGE_EVENTS))
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
        """Deltas count only while their run does; a block or the terminal event holds their text."""
        if event.kind not in PASSING or event.run_id is None:
            return True
        run = self._registry.runs.get(event.run_id)
        return run is not None and (run.fence.cause is None or not run.fence.cause.early)

    def _silent(self, run_id: RunId) -> bool:
        """A run that is not alive here, or was told as ended, has nothing more to say, also if that was forgotten."""
        run = self._registry.runs.get(self._itself(run_id))
        return run is None or run.sealed

    def _itself(self, run_id: RunId) -> RunId:
        """Return the run, or the one that took it in."""
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


async def whole_log(store: Log, session: SessionId, *, after: int = 0) -> list[Event]:
    """Return everything a session's log still holds behind a position, read page by page."""
    events: list[Event] = []
    while True:
        page = await read(store.events(session, after=after, limit=PAGE_EVENTS))
        events.extend(page.events)
        if len(page.events) < PAGE_EVENTS:
            return events
        after = page.events[-1].position
