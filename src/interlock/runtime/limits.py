"""The limits of a run, and what the run does while they count."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from interlock.core.names import KnownPhase
from interlock.core.outcome import Limit


class Limits:
    """The limits of a run, its signs of life, and the phases it is in."""

    __slots__ = ("armed", "asking", "hear_out", "heard", "resting", "returned", "timers", "touched", "within")

    def __init__(self) -> None:
        self.armed: tuple[Limit, ...] = ()
        self.timers: list[asyncio.TimerHandle] | None = None
        # The last sign of life, on the loop's clock.
        self.touched = 0.0
        # The agent has called a verb.
        self.heard = False
        # How many questions, and how many children or holds, the run waits for now. The idle limit rests meanwhile:
        # the silence is not the run's own.
        self.asking = 0
        self.resting = 0
        # The phases and tools that the run is in, and the questions, holds and children it waits for, innermost last.
        self.within: dict[object, str] | None = None
        # An agent in a host: reads what the host has sent and control has not read yet.
        self.hear_out: Callable[[], None] | None = None
        # An agent in a host: when it returned, on the machine's monotonic clock.
        self.returned: float | None = None

    def limit_now(self, limit: Limit) -> Limit:
        """Return a limit as it stands now.

        The idle limit moves with every sign of life. It rests while the run waits for a person, a child or a hold,
        because that silence is not the run's own. A deadline never rests.
        """
        if limit.phase != KnownPhase.IDLE:
            return limit
        rests = self.asking or self.resting
        return Limit(math.inf if rests else self.touched + limit.seconds, limit.seconds, KnownPhase.IDLE)

    def enter(self, what: object, phase: str) -> None:
        """Enter a phase, inside the one the run is in."""
        if self.within is None:
            self.within = {}
        self.within[what] = phase

    def leave(self, what: object) -> None:
        """Leave a phase; phases that were entered later may go on."""
        if self.within is not None:
            self.within.pop(what, None)
