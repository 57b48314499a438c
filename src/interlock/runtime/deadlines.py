"""Limits of a run, on the monotonic clock: its deadline from dispatch, a limit on silence, a limit on waiting.

A timer only asks; `settle` decides by the clock, so a timer that comes late or early changes no ending. An agent in a
host is heard out first: its return may have come in time and lie unread, because this loop was late.
"""

import asyncio

from interlock.core.names import Ending, KnownPhase
from interlock.core.outcome import Cause, Limit
from interlock.runtime.clock import Clock
from interlock.runtime.ending import Endings
from interlock.runtime.live import LiveRun
from interlock.runtime.settings import Settings

TIMED_OUT = Cause(ending=Ending.TIMED_OUT)

LOOP_STEP_SECONDS = 0.001


class Deadlines:
    """Arms and fires the limits of runs."""

    def __init__(self, endings: Endings, clock: Clock, settings: Settings) -> None:
        self._endings = endings
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    def queued(self, run: LiveRun) -> None:
        """A message begins to wait for the seat."""
        if self._settings.queue_limit:
            limit = self._settings.queue_limit
            self._arm(run, Limit(self._clock.now() + limit, limit, KnownPhase.QUEUE))

    def dispatched(self, run: LiveRun) -> None:
        """A run is dispatched: its own limits count from here, the queue's is over."""
        for timer in run.timers or ():
            timer.cancel()
        run.timers, run.limits, run.touched = None, (), self._clock.now()
        if run.deadline:
            self._arm(run, Limit(self._clock.now() + run.deadline, run.deadline))
        if self._settings.idle_limit:
            limit = self._settings.idle_limit
            self._arm(run, Limit(self._clock.now() + limit, limit, KnownPhase.IDLE))

    def _arm(self, run: LiveRun, limit: Limit) -> None:
        run.limits = (*run.limits, limit)
        self._set_timer(run, limit, limit.at)

    def _set_timer(self, run: LiveRun, limit: Limit, at: float) -> None:
        # Not sooner than the loop's own step: uvloop would make a plain callback of it, which knows no time.
        timer = self._loop.call_at(max(at, self._clock.now() + LOOP_STEP_SECONDS), self._fire, run, limit)
        run.timers = [*(other for other in run.timers or () if other.when() > self._clock.now()), timer]

    def _fire(self, run: LiveRun, limit: Limit) -> None:
        if run.fallen or limit not in run.limits:
            return
        if run.hear_out is not None and self._clock.now() >= run.standing(limit).at:
            run.hear_out()
        at = run.standing(limit).at
        if run.fallen or (run.returned is not None and run.returned < at):
            return  # it was in time, and its end is on its way
        if self._clock.now() < at:  # the run was heard from since, or the timer came early: ask again
            self._set_timer(run, limit, min(at, self._clock.now() + limit.seconds))
        else:
            self._endings.end(run, TIMED_OUT)
