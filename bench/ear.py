"""A sink that wakes its owner at the first delta of a session's next run."""

import asyncio

from interlock import Event
from interlock.client.door import Sink
from interlock.core.fence import Fence
from interlock.core.names import EventKind, RunId, SessionId
from interlock.runtime.control import Control


class Ear(Sink):
    """Hears one session, synchronously, where the outlet hands events over."""

    def __init__(self, control: Control, session: str) -> None:
        self._not = RunId("")
        self._heard: asyncio.Future[RunId] = asyncio.get_running_loop().create_future()
        self._listening = control.feed.follow(SessionId(session), self)

    def take(self, event: Event, source: Fence | None) -> bool:
        """Note a delta of a run that was not heard before."""
        if event.kind is EventKind.DELTA and event.run_id not in (None, self._not) and not self._heard.done():
            self._heard.set_result(RunId(event.run_id or ""))
        return True

    async def first(self) -> None:
        """Wait for the next run's first delta."""
        self._not = await self._heard
        self._heard = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        """Hear no more."""
        self._listening.close()
