"""The events of a watch over a connection that its reader has not read, and whether their runs are current.

A `fell` frame overtakes the events that were sent before it: deltas of that run that wait here are not read any more.
"""

import asyncio
from collections import deque
from typing import Final

from interlock.core.names import PASSING, EventKind
from interlock.surfaces.frames import Fell, Watched

WATCH_EVENTS: Final = 256  # waiting for one watcher
RUNS: Final = 4_096  # remembered by a watch
HISTORY: Final = "history"  # the cause of a run of which only history was told so far


class RemoteSource:
    """The run behind an event, as this client knows it: current until the gateway says that it fell.

    A run of which only history was told is not current: it may have ended long ago.
    """

    __slots__ = ("cause", "early")

    def __init__(self, cause: str | None = None) -> None:
        self.cause = cause
        # The run was cut short: its deltas count no more.
        self.early = False


class Feed:
    """The events of one watch on one connection that the watcher has not read."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Each with the run that it came from.
        self._told: deque[tuple[Watched, RemoteSource | None]] = deque()
        self._news = asyncio.Event()
        self._over = False
        self.sources: dict[str, RemoteSource] = {}

    def put(self, told: Watched) -> bool:
        """Add an event; False if there is no room."""
        if isinstance(told.fell, Fell):
            source = self._source(told.fell.run_id)
            source.cause, source.early = "fell", told.fell.early
            return True
        if isinstance(told.caught_up, int):
            # The runs of which no end was told go on.
            for source in self.sources.values():
                source.cause = None if source.cause == HISTORY else source.cause
            return True
        if len(self._told) >= WATCH_EVENTS:
            return False
        event = told.event
        of = None if event is None or event.run_id is None else self._source(event.run_id, replay=told.replay)
        if event is not None and of is not None and event.kind is EventKind.ENDED:
            of.cause = "ended"
        self._told.append((told, of))
        self._news.set()
        return True

    def _source(self, run_id: str, *, replay: bool = False) -> RemoteSource:
        source = self.sources.get(run_id)
        if source is None:
            if len(self.sources) >= RUNS:
                del self.sources[next(iter(self.sources))]
            source = self.sources[run_id] = RemoteSource(HISTORY if replay else None)
        return source

    def end(self) -> None:
        """Accept no more events; the watcher still reads those that wait."""
        self._over = True
        # Without a connection this client hears of no fall, so no run is known to go on.
        for source in self.sources.values():
            source.cause = source.cause or "gone"
        self._news.set()

    async def next(self) -> Watched | None:
        """Wait for the next event and return it; None if there will be none."""
        while True:
            while self._told:
                told, source = self._told.popleft()
                if told.event is None:
                    return told
                if source is None or not source.early or told.event.kind not in PASSING:
                    told.event.of(source)
                    return told
            if self._over:
                return None
            self._news.clear()
            await self._news.wait()
