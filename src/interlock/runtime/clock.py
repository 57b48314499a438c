"""Two clocks: one that only goes forward decides, one that people read is written down."""

import asyncio
import time
from collections.abc import Callable


class Clock:
    """Deadlines and limits use `now` (monotonic, the loop's own); `wall` is for receipts and schedules."""

    __slots__ = ("_loop", "wall")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wall: Callable[[], float] = getattr(loop, "wall", time.time)  # a virtual loop has a wall of its own

    def now(self) -> float:
        """Return the loop's monotonic time."""
        return self._loop.time()
