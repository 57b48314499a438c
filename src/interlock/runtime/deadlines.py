"""Limits of a run, on the monotonic clock: its deadline from dispatch, a limit on silence, a limit on waiting.

A timer only asks; `settle` decides by the clock, so a timer that comes late or early changes no ending. An agent in a
host is heard out first: its return may have come in time and lie unread, because this loop was late.

Of all deadlines that bound a run the shortest is armed. Its parent's needs no timer of its own: it takes the child
along (`Fall.take`).
"""

import asyncio
from collections.abc import Iterator

from interlock.core.names import Ending, KnownPhase, LimitOf, RunKind
from interlock.core.outcome import Cause, Limit
from interlock.runtime.clock import Clock
from interlock.runtime.ending import Endings
from interlock.runtime.live import LiveRun
from interlock.runtime.settings import SERVED, Settings

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
        shortest = min(self._bounds(run), key=lambda bound: bound[0], default=None)
        if shortest is not None:
            seconds, of = shortest
            self._arm(run, Limit(self._clock.now() + seconds, seconds, of=of))
        if self._settings.idle_limit:
            limit = self._settings.idle_limit
            self._arm(run, Limit(self._clock.now() + limit, limit, KnownPhase.IDLE))

    def _bounds(self, run: LiveRun) -> Iterator[tuple[float, LimitOf]]:
        """Every deadline of a run. The control's is for messages whose callers say nothing, and for detached children.

        A child is bounded whatever its caller says: an agent does not lengthen what the operator allows.
        """
        settings, said = self._settings, (run, *(run.collection.parts if run.collection is not None else ()))
        is_child = run.kind is RunKind.CHILD
        for each in said:
            if each.deadline:
                yield each.deadline, LimitOf.CALLER
        if (of_agent := settings.agent_deadlines.get(run.agent or SERVED)) is not None:
            yield of_agent, LimitOf.AGENT
        if is_child and settings.child_deadline:
            yield settings.child_deadline, LimitOf.OPERATOR
        unsaid = run.detached if is_child else any(each.deadline is None for each in said)
        if unsaid and settings.deadline:
            yield settings.deadline, LimitOf.OPERATOR

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
