"""Two clocks: the loop's monotonic clock decides, the wall clock is written down for people.

Limits are compared on the monotonic clock, so setting the machine's time ends no run (race 90). Receipts are stamped
with the wall time of t0 plus monotonic differences, so a change of the clock makes no duration negative.
"""

import asyncio
import time
from collections.abc import Callable


class Clock:
    """Gives both times: `now` (the loop's own, monotonic) for limits, `wall` for receipts and schedules."""

    __slots__ = ("_loop", "wall")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # A virtual loop has a wall clock of its own.
        self.wall: Callable[[], float] = getattr(loop, "wall", time.time)

    def now(self) -> float:
        """Return the loop's monotonic time."""
        return self._loop.time()
