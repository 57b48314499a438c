"""Two clocks: one that only goes forward decides, one that people read is written down."""

import asyncio
import time


class Clock:
    """Deadlines and limits use `now` (monotonic, the loop's own); `wall` is for receipts and never compared."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Return the loop's monotonic time."""
        return self._loop.time()

    def wall(self) -> float:
        """Return the time as people read it."""
        return time.time()
