"""A subscriber that wakes its owner at the first delta of a session's next run."""

import asyncio

from interlock import Event
from interlock.core.names import EventKind, RunId, SessionId
from interlock.runtime.control import Control


class Ear:
    """Hears one session, synchronously, where the outlet hands events over."""

    def __init__(self, control: Control, session: str) -> None:
        self._feed = control.feed
        self._session = SessionId(session)
        self._not = RunId("")
        self._heard: asyncio.Future[RunId] = asyncio.get_running_loop().create_future()
        self._feed.subscribe(self._session, self)

    def put(self, event: Event) -> None:
        """Note a delta of a run that was not heard before."""
        if event.kind is EventKind.DELTA and event.run_id not in (None, self._not) and not self._heard.done():
            self._heard.set_result(RunId(event.run_id or ""))

    def drop(self, run_id: RunId) -> None:
        """Do nothing: nothing is buffered here."""

    def close(self) -> None:
        """Do nothing: nothing is held here."""

    async def first(self) -> None:
        """Wait for the next run's first delta."""
        self._not = await self._heard
        self._heard = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Hear no more."""
        self._feed.unsubscribe(self._session, self)
