"""Listening over a socket: what a sink refused, or a drop cut off, is asked for again.

A listening continues behind the last event that its sink took: no event comes twice, each run ends once, and no delta
of an older run follows the start of a newer one. A sink without room reads later what it refused; meanwhile it still
hears which runs fell, and that its right is gone.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from interlock.client.connection import PAUSE_SECONDS, Dropped, Link, error_of, params_of
from interlock.client.door import Sink, is_over
from interlock.core import verbs
from interlock.core.errors import InterlockError, Unavailable
from interlock.core.events import Ended, Event
from interlock.core.names import EARLY, Ending, RunId, SessionId
from interlock.core.story import Conversation
from interlock.protocol.frames import Fell, Watched

if TYPE_CHECKING:
    from interlock.client.socket import SocketDoor

RUNS: Final = 4_096  # remembered by a listening
NEWS: Final = Watched(watch=0)  # in place of a last word: the watch goes on
EARLY_FRAMES: Final = 1_024  # held until the reading begins


class RemoteCause(NamedTuple):
    """Why a run counts as fallen here; `early`: it was cut short, and its deltas count no more."""

    why: str
    early: bool = False


HISTORY: Final = RemoteCause("history")  # of a run of which only history was told so far: it may have ended long ago
# Of a run that was listened to when the listening was interrupted: it may have fallen since.
GONE: Final = RemoteCause("gone")


class RemoteSource:
    """The run behind an event, as this process knows it: current until the gateway says that it fell."""

    __slots__ = ("cause", "run_id")

    def __init__(self, run_id: RunId, cause: RemoteCause | None = None) -> None:
        self.run_id = run_id
        self.cause = cause


class Seen:
    """What a listening has passed on, so that a replay after a drop repeats nothing."""

    def __init__(self, after: int) -> None:
        self.position = after
        self._told = Conversation()

    def passes(self, event: Event) -> bool:
        """Return whether an event is new, and remember it."""
        if event.position <= self.position:
            return False
        self.position = event.position
        news = bool(self._told.take(event))
        if isinstance(event.data, Ended) and event.run_id is not None:
            self._told.forget(event.run_id)
        return news


class RemoteListening:
    """A sink's listening over a socket: what the sink refused, or a drop cut off, is asked for again."""

    def __init__(self, door: SocketDoor, sink: Sink, asked: dict[str, Any], after: int) -> None:
        self._door, self._connection = door, door.connection
        self._sink, self._asked, self._run = sink, asked, asked["run"]
        self._seen = Seen(after)
        self.sources: dict[RunId, RemoteSource] = {}
        # The event that the sink had no room for: it is given first when there is room again.
        self._refused: tuple[Event, RemoteSource | None] | None = None
        # What the gateway told before the reading began; None from then on.
        self._early: list[Watched] | None = []
        self._heard = asyncio.Event()
        self._link: Link | None = None
        self._number = 0
        # Done when the watch on the present link is over: with the gateway's last word, or None.
        self._ended: asyncio.Future[Watched | None] | None = None
        self._room = asyncio.Event()
        # The monotonic time at which Unavailable ends the listening.
        self._until = math.inf
        self._task: asyncio.Task[None] | None = None
        self._over = False

    @property
    def session(self) -> SessionId | None:
        """The session, as the caller named it."""
        named: SessionId | None = self._asked["session"]
        return named

    @property
    def is_behind(self) -> bool:
        """True while the sink has refused an event, and before the reading began."""
        return self._refused is not None or self._task is None

    def resume(self) -> None:
        """Begin to read, or read on: the sink has room."""
        loop = asyncio.get_running_loop()
        if self._task is None and not self._over:
            loop.call_soon(self._give_early)
            self._task = loop.create_task(self._follow(), name="listen to a gateway")
        elif self._refused is not None:
            loop.call_soon(self._give_refused)

    def close(self, error: InterlockError | None = None) -> None:
        """Hear nothing more; a second call does nothing."""
        if self._over:
            return
        self._over = True
        self._leave()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._sink.close(error)

    # What the link calls

    def put(self, told: Watched) -> None:
        """Take a frame of this watch."""
        self._heard.set()
        if isinstance(told.fell, Fell):
            source = self._source(told.fell.run_id)
            source.cause = RemoteCause("fell", told.fell.early)
            self._sink.fell(source)
        elif told.over:
            self.end(told)
        elif self._early is not None:
            self._early += [told] if len(self._early) < EARLY_FRAMES else []
        elif self._refused is not None:
            # What follows a refused event is asked for again.
            return
        elif isinstance(told.caught_up, int):
            self._until = math.inf
            # The runs of which no end was told go on.
            for source in self.sources.values():
                source.cause = None if source.cause is HISTORY else source.cause
            self._sink.caught_up(told.caught_up)
        elif told.event is not None and self._seen.passes(told.event):
            self._until = math.inf
            self._give(told.event, told.replay)

    def says(self, run: str) -> bool | None:
        """Return whether a run has not fallen; None if this listening does not know."""
        source = self.sources.get(RunId(run))
        if source is None or source.cause in (HISTORY, GONE):
            return None
        return source.cause is None

    def _give(self, event: Event, replay: bool) -> None:
        source = None if event.run_id is None else self._source(event.run_id, replay=replay)
        if source is not None and isinstance(event.data, Ended):
            # Also of a run that was cut while there was no connection: its deltas may wait in the sink.
            source.cause = RemoteCause("ended", event.data.outcome.ending in EARLY)
        if not self._sink.take(event, source):
            # The watch goes on, and what it tells is dropped: falls must still be heard.
            self._refused = event, source
            self._room.clear()
        elif self._run is not None and isinstance(event.data, Ended):
            self.close()

    def _give_early(self) -> None:
        """Give the sink what came before the reading began; ask for the rest again if there was no room for it."""
        early, self._early = self._early or [], None
        for told in early:
            if not self._over:
                self.put(told)
        if len(early) == EARLY_FRAMES and self._refused is None:
            self._leave()
            self.end(None)

    def _give_refused(self) -> None:
        """Give the sink the event that it had no room for, and ask for what was dropped since."""
        if self._refused is None or self._over:
            return
        event, source = self._refused
        # A delta may have waited longer than its run went on.
        if not is_over(event, source) and not self._sink.take(event, source):
            return
        self._refused = None
        if self._run is not None and isinstance(event.data, Ended):
            self.close()
        # Leave before another frame comes: its position would hide what was dropped.
        self._leave()
        self.end(None)
        self._room.set()

    def _source(self, run_id: RunId, *, replay: bool = False) -> RemoteSource:
        source = self.sources.get(run_id)
        if source is None:
            if len(self.sources) >= RUNS:
                del self.sources[next(iter(self.sources))]
            source = self.sources[run_id] = RemoteSource(run_id, GONE)
        # The gateway tells of a run that it knows as fallen before it tells any event of the run.
        if source.cause is GONE:
            source.cause = HISTORY if replay else None
        return source

    def end(self, told: Watched | None) -> None:
        """Note that the watch on this link is over: with the gateway's last word, or because the link is gone."""
        # Without a watch this process hears of no fall, so no run is known to go on.
        for source in self.sources.values():
            source.cause = GONE if source.cause in (None, HISTORY) else source.cause
        if told is None and self._early:
            # The next watch tells them again, and what became of their runs.
            self._early.clear()
        self._heard.set()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(told)

    # Following

    async def open(self) -> None:
        """Have the gateway listen, and wait for its first word; raise what it refuses."""
        try:
            while True:
                self._heard.clear()
                await self._begin()
                await self._heard.wait()
                assert self._ended is not None
                told = self._ended.result() if self._ended.done() else NEWS
                if told is not None and not told.error:
                    return
                self._leave()
                if told is not None:
                    await self._be_patient(error_of(told.error or {}))
        except BaseException:
            self._leave()
            raise

    async def _begin(self) -> None:
        """Ask the gateway to listen, and again where the connection drops or has no room for the request."""
        while True:
            self._link = link = await self._connection.linked()
            self._ended = asyncio.get_running_loop().create_future()
            self._number = link.follow(self)
            try:
                asked = {"watch": self._number, "after": self._seen.position, **self._asked}
                await link.ask("interlock.watch", params_of("interlock.watch", asked))
                return
            except Dropped:
                self._leave()
            except Unavailable as error:
                # The gateway has too many requests of this connection, as right after a reconnect.
                self._leave()
                await self._be_patient(error)

    async def _be_patient(self, error: InterlockError) -> None:
        """Wait before the next request; raise the error if it is another than Unavailable, or patience is over."""
        self._until = min(self._until, monotonic() + self._connection.patience)
        if not isinstance(error, Unavailable) or monotonic() >= self._until:
            raise error
        await asyncio.sleep(PAUSE_SECONDS[0])

    async def _follow(self) -> None:
        assert self._ended is not None
        try:
            while not self._over:
                told = await self._ended
                self._leave()
                if told is not None and told.error:
                    await self._be_patient(error_of(told.error))
                if self._refused is not None:
                    await self._room.wait()
                elif told is not None and not told.error:
                    if await self._is_silent():
                        return self.close()
                    # The server is closing; listen on at the next one.
                    await asyncio.sleep(PAUSE_SECONDS[0])
                await self._begin()
        except InterlockError as error:
            self.close(error)
        return None

    def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.unfollow(self._number)

    async def _is_silent(self) -> bool:
        """Return whether a run will say nothing more: its terminal event is behind `after`, or is no longer kept."""
        if self._run is None:
            return False
        return (await self._door.ask(verbs.Wait(run=self._run, timeout=0))).ending is not Ending.PENDING
