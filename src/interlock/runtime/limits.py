"""The limits of a run, and what the run does while they count.

`deadlines` arms the limits and moves them; everybody else calls the methods here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        # How many others the run waits for now, and how many of them are people. The idle limit rests meanwhile: the
        # silence is not the run's own.
        self.resting = 0
        self.asking = 0
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
        return Limit(math.inf if self.resting else self.touched + limit.seconds, limit.seconds, KnownPhase.IDLE)

    def touch(self, now: float) -> None:
        """Note a sign of life; the idle limit counts from here."""
        self.touched = now

    def hear(self, now: float) -> None:
        """Note a sign of life that the agent itself gave."""
        self.touched = now
        self.heard = True

    @contextmanager
    def rest(
        self, now: Callable[[], float], what: object = None, phase: str | None = None, *, asks: bool = False
    ) -> Iterator[None]:
        """Let the idle limit rest inside the block, in which the run waits for a person, a child, a hold or others.

        `phase` is what a timeout would name meanwhile, and `asks` says that the run waits for a person.
        """
        self.resting += 1
        self.asking += asks
        if phase is not None:
            self.enter(what, phase)
        try:
            yield
        finally:
            self.resting -= 1
            self.asking -= asks
            self.leave(what)
            self.touched = now()

    def of_host(self, hear_out: Callable[[], None] | None) -> None:
        """Let a timer first read what the agent's host has sent; None: the host is gone."""
        self.hear_out = hear_out

    def note_return(self, at: float) -> None:
        """Note when the agent in a host returned: the run is settled as of then, however late control reads of it."""
        self.returned = at

    def add_timer(self, timer: asyncio.TimerHandle) -> None:
        """Add a timer that is of no use once the run has ended."""
        self.timers = [*(self.timers or ()), timer]

    def disarm(self) -> None:
        """Cancel the timers; the limits stand all the same, as `settle` decides by the clock."""
        for timer in self.timers or ():
            timer.cancel()
        self.timers = None

    def enter(self, what: object, phase: str) -> None:
        """Enter a phase, inside the one the run is in."""
        if self.within is None:
            self.within = {}
        self.within[what] = phase

    def leave(self, what: object) -> None:
        """Leave a phase; phases that were entered later may go on."""
        if self.within is not None:
            self.within.pop(what, None)
