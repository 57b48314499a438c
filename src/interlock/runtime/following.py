"""The listenings of the feed: one sink's to a session or a run, one principal's to everything.

1. A listening to one session may begin behind any position. Control registers it first and reads the log second: an
   event between the two comes both ways, and its position says that the sink has it already (race 99).
2. A sink without room refuses an event. Its listening then ignores what is published, and reads it from the log when
   the sink calls `resume`. No other sink waits for it. `Sink.caught_up` says where history ends and news begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from interlock.client.door import Sink, is_over
from interlock.client.watch import WATCH_EVENTS
from interlock.core.errors import InterlockError, Unknown
from interlock.core.events import Ended, Event, MessageData
from interlock.core.fence import Fence
from interlock.core.names import EventKind, Principal, RunId, SessionId
from interlock.runtime.guards import Guard
from interlock.stores.base import Page, read

if TYPE_CHECKING:
    from interlock.runtime.feed import Feed

PAGE_EVENTS = 1_024


class Listening:
    """A sink's listening to a session, or to one run in it."""

    __slots__ = ("_behind", "_feed", "_guard", "_held", "_only", "_over", "_task", "seen", "session", "sink")

    def __init__(self, feed: Feed, session: SessionId, sink: Sink, seen: int | None, only: RunId | None) -> None:
        self._feed = feed
        self.session = session
        self.sink = sink
        # The position of the last event that the sink took.
        self.seen = seen or 0
        self._only = only  # the run that the sink hears; None for the whole session
        self._guard: Guard | None = None
        # The sink must be given what the log has before it hears what is published.
        self._behind = seen is not None
        # While the log is read: the events published meanwhile, with their sources.
        self._held: deque[tuple[Event, Fence | None]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    @property
    def is_behind(self) -> bool:
        """True while the sink must be given what the log has before it hears what is published."""
        return self._behind

    # What the feed calls

    def hear(self, event: Event, source: Fence | None) -> None:
        """Hand an event to the sink, or leave it to the log."""
        if not self._behind:
            self._give(event, source)
        elif self._held is not None:
            # Beyond this bound nothing is held: the log is read once more.
            if len(self._held) >= WATCH_EVENTS:
                self._held = None
            else:
                self._held.append((event, source))

    def fell(self, source: Fence) -> None:
        """Tell the sink of a fall."""
        if self._only is None or self._only == source.run_id:
            self.sink.fell(source)

    def guarded(self, guard: Guard) -> None:
        """Hear only as long as a right lasts."""
        self._guard = guard
        self._feed.guards.hold(guard)

    def forbid(self) -> None:
        """End without another event: the right to hear is gone."""
        by = "" if self._guard is None else f"{self._guard.by} "
        self.close(Unknown(f"{by}may not see this any more; the watch is over"))

    # What the sink's user calls

    def resume(self) -> None:
        """Begin to read from the log what the sink lacks: after `follow`, and whenever the sink has room again."""
        if self._behind and self._task is None and not self._over:
            self._task = asyncio.get_running_loop().create_task(self._catch_up(), name=f"catch up in {self.session}")

    def close(self, error: InterlockError | None = None) -> None:
        """Hear nothing more; a second call does nothing."""
        if self._over:
            return
        self._over = True
        self._feed.unfollow(self)
        if self._guard is not None:
            self._feed.guards.release(self._guard)
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()
        self.sink.close(error)

    # Catching up

    async def _catch_up(self) -> None:
        try:
            while await self._read_page():
                pass
        except InterlockError as error:
            self.close(None if self._feed.closed else error)
        finally:
            self._held = None
            self._task = None

    async def _read_page(self) -> bool:
        """Give the sink one page of the log; return whether there is more to read, and room for it."""
        self._held = deque()
        page = await read(self._feed.log.events(self.session, after=self.seen, limit=PAGE_EVENTS))
        for event in self._with_gap(page):
            source = self._feed.source_of(event.run_id)
            # A delta in the log may be older than the end of its run.
            if is_over(event, source):
                self.seen = event.position
            elif self._over or not self._give(event, source):
                return False
        held = self._held
        # The page may have been full, or more was published meanwhile than is held here: read on.
        if len(page.events) == PAGE_EVENTS or held is None:
            return True
        for event, source in held:
            if self._over or (event.position > self.seen and not self._give(event, source)):
                return False
        self._behind = False
        self.sink.caught_up(self.seen)
        if self._feed.closed or (self._only is not None and self._feed.is_silent(self._only)):
            self.close()
        return False

    def _with_gap(self, page: Page) -> Sequence[Event]:
        """Return the events of a page with the gap of the log in its place.

        A disk that refused writes for long leaves events before the gap. Told before them, the gap would have the
        higher position, and a reader who goes on behind it would never get them.
        """
        if self._only is not None or page.lost_to <= self.seen:
            return page.events
        before = [event for event in page.events if event.position < page.lost_to]
        if len(before) == PAGE_EVENTS:
            return page.events
        gap = self._feed.gap(self.session, self.seen, page.lost_to)
        return [*before, gap, *(event for event in page.events if event.position > page.lost_to)]

    def _give(self, event: Event, source: Fence | None) -> bool:
        """Give the sink an event that is for it; return False if there is no room, or nothing more to hear."""
        if self._only is not None and not self._is_about(event):
            self.seen = event.position
            return True
        if not self.sink.take(event, source):
            self._behind = True
            return False
        self.seen = event.position
        if self._only is not None and isinstance(event.data, Ended):
            self.close()
            return False
        return True

    def _is_about(self, event: Event) -> bool:
        """Return whether an event belongs to the run that is listened to, or to the run that absorbed it."""
        assert self._only is not None
        if isinstance(event.data, MessageData) and event.data.of == self._only and event.run_id is not None:
            self._only = event.run_id
        self._only = self._feed.absorber_of(self._only)
        return event.run_id == self._only


class Everything:
    """A principal's listening to all that it may see."""

    __slots__ = ("_feed", "approver", "by", "kinds", "saw_all", "sink")

    def __init__(
        self, feed: Feed, by: Principal, sink: Sink | None, approver: Sink | None, kinds: Collection[EventKind] | None
    ) -> None:
        self._feed = feed
        self.by = by
        self.sink = sink
        # Hears events with questions that the principal may answer in runs that it may not see.
        self.approver = approver
        self.kinds = kinds
        # The principal had, or has, a role by which it sees every session.
        self.saw_all = False

    def close(self) -> None:
        """Hear nothing more."""
        self._feed.unfollow_all(self)


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
