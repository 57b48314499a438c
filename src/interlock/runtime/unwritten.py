"""Events that the store has accepted and not written yet.

1. A page of a session's log holds every published event, written or not, in order and once.
2. The deltas of a run leave the log with its terminal event. The store never writes those that wait; those that it has
   written stay out of every page until it has deleted them.
3. A disk that accepts nothing for long costs a bounded amount of memory: passing events are left out, and then the
   oldest events of the largest sessions are dropped. Readers get a gap.
4. A store that writes at once (`Store.append` returns True) leaves nothing to hold here.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from interlock.core.decision import EpochRow
from interlock.core.events import Ended, Event
from interlock.core.names import PASSING, RunId, SessionId
from interlock.stores.base import Page, Store

# Events held in memory while the disk accepts none.
PENDING_EVENTS = 100_000


class Unwritten:
    """The log of the store, with the events that are not written yet. `kept` hears of epochs that are written."""

    def __init__(self, store: Store, kept: Callable[[EpochRow], None] = lambda row: None) -> None:
        self._store = store
        self._kept = kept
        self._pending: dict[SessionId, dict[int, Event]] = {}
        self._count = 0
        # Runs that have not ended and whose deltas may be pending.
        self._speaking: set[RunId] = set()
        # Runs whose terminal event is not written yet; their deltas may still be in the store.
        self._ended: dict[RunId, None] = {}
        # The last position that was dropped, by session.
        self._dropped: dict[SessionId, int] = {}
        # Pages that are being read, each with the events to add to it.
        self._readings: dict[int, tuple[SessionId, list[Event]]] = {}
        store.tell_written(self.written)

    def append(self, event: Event, epoch: EpochRow | None = None) -> None:
        """Hand an event to the store, with its epoch if it is the first event under that."""
        over = event.run_id if isinstance(event.data, Ended) else None
        speaker = event.run_id if event.kind in PASSING else None
        if self._count >= PENDING_EVENTS:
            # A passing event may be left out: the block that closes it holds its text.
            if speaker is not None and epoch is None:
                return
            self._make_room()
        # Without this test a stop of many runs would look through all pending events of their session for each of them.
        if over in self._speaking:
            self._forget_passing(event.session, over)
        if self._store.append(event, epoch):
            if epoch is not None:
                self._kept(epoch)
            return
        self._pending.setdefault(event.session, {})[event.position] = event
        self._count += 1
        if speaker is not None:
            self._speaking.add(speaker)
        for session, held in self._readings.values():
            if session == event.session:
                held.append(event)
        if over is not None:
            self._ended[over] = None

    def written(self, events: Sequence[Event], epochs: Sequence[EpochRow]) -> None:
        """Note that the store has written these events and epochs, and deleted the deltas of runs that the events end.

        The store calls this in the loop.
        """
        for event in events:
            kept = self._pending.get(event.session)
            if kept is not None and kept.pop(event.position, None) is not None:
                self._count -= 1
                if not kept:
                    del self._pending[event.session]
            if event.run_id is not None and isinstance(event.data, Ended):
                self._ended.pop(event.run_id, None)
        for row in epochs:
            self._kept(row)

    def _forget_passing(self, session: SessionId, run_id: RunId) -> None:
        """Leave out a run's deltas that are not written yet; with the terminal event the store deletes the others.

        The store forgets them before it has the terminal event. In the other order it could write the terminal event,
        and then deltas, which would stay for good.
        """
        self._speaking.discard(run_id)
        kept = self._pending.get(session, {})
        gone = [event for event in kept.values() if event.run_id == run_id and event.kind in PASSING]
        for event in gone:
            del kept[event.position]
        if gone:
            self._count -= len(gone)
            self._store.forget(gone)

    def _make_room(self) -> None:
        """Drop the oldest pending events of the largest sessions, many at once, and record that."""
        wanted = PENDING_EVENTS // 10
        for session in sorted(self._pending, key=lambda each: len(self._pending[each]), reverse=True):
            kept = self._pending[session]
            gone = [kept.pop(position) for position in list(kept)[: max(1, len(kept) // 2)]]
            self._count -= len(gone)
            if not kept:
                del self._pending[session]
            if gone:
                self._dropped[session] = gone[-1].position
                self._store.drop(session, gone)
            wanted -= len(gone)
            if wanted <= 0:
                return

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        """Return a stretch of the log, with events that are not written yet, without deltas of runs that have ended."""
        held = [event for position, event in self._pending.get(session, {}).items() if position > after]
        # Events that are appended while the page is read are added to it. The store may write a later event before the
        # page's query runs; without this the page would hold that event and lack the one before it.
        self._readings[id(held)] = session, held
        try:
            return await self._page(session, after, limit, held)
        finally:
            del self._readings[id(held)]

    async def began(self, session: SessionId, run_id: RunId) -> int:
        """Return the position of a run's first event in a session's log; 0 if the log has none."""
        held = [event.position for event in self._pending.get(session, {}).values() if event.run_id == run_id]
        written = await self._store.began(session, run_id)
        return written or min(held, default=0)

    async def _page(self, session: SessionId, after: int, limit: int, held: list[Event]) -> Page:
        over = dict(self._ended)
        found: dict[int, Event] = {}
        at, lost_to, more = after, self._dropped.get(session, 0), True
        while more:
            page = await self._store.events(session, after=at, limit=limit)
            # Nothing is pending and no run has just ended: the store's page is the answer.
            if at == after and not (held or over or self._ended or lost_to):
                return page
            lost_to = max(lost_to, page.lost_to)
            # A run may have ended during the read. Leave its deltas out before the page is measured: a page that were
            # filtered later would be short, and its reader would take it for the last.
            over |= self._ended
            found.update({event.position: event for event in page.events})
            found = {position: event for position, event in found.items() if not _passed(event, over)}
            if page.events:
                at = page.events[-1].position
            more = len(page.events) == limit and len(found) < limit
        # No await since the last read: each event is in `found` or in `held`. Events behind a full page are cut off.
        found.update({event.position: event for event in held if event.position > after and not _passed(event, over)})
        events = sorted(found.values(), key=attrgetter("position"))
        return Page(events=tuple(events[:limit]), lost_to=lost_to if lost_to > after else 0)


def _passed(event: Event, over: dict[RunId, None]) -> bool:
    return event.kind in PASSING and event.run_id in over
