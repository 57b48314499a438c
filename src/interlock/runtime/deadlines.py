"""Limits of a run, on the monotonic clock: its deadline from dispatch, a limit on silence, a limit on waiting.

1. A timer only asks; `settle` decides by the clock. A timer that fires late or early changes no ending.
2. A late loop may come to a host's link and to a timer at the same time, long after both were due. So the timer first
   reads what the host has sent (`hear_out`): a return that came in time must not lie unread while the run times out.
   A stop that comes first stands all the same.
3. All deadlines of a run count from its dispatch, so only the shortest is armed. The store keeps the caller's deadline
   alone (0: none): an operator's limit is that of the server that runs the message.
4. A parent's deadline needs no timer for the child: the child falls with its parent. A parent that passed its limit
   ended at that instant, however late the loop comes to it, so its children are settled as of then (`Fall.add(at=)`),
   and a child's own limit stands only if it is not later.
5. Neither a sender nor an agent that delegates can lengthen the operator's limits: `child_deadline` bounds every child,
   `agent_deadlines` every run of an agent.
"""

import asyncio
from collections.abc import Iterator

from interlock.agent.bounds import SERVED
from interlock.core.names import Ending, KnownPhase, LimitOf, RunKind
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
        """Arm the queue limit of a message that begins to wait for the seat."""
        if self._settings.queue_limit:
            limit = self._settings.queue_limit
            self._arm(run, Limit(self._clock.now() + limit, limit, KnownPhase.QUEUE))

    def dispatched(self, run: LiveRun) -> None:
        """Replace the queue limit of a dispatched run by its deadline and its idle limit, which count from here."""
        run.limits.disarm()
        run.limits.armed, run.limits.touched = (), self._clock.now()
        shortest = min(self._bounds(run), key=lambda bound: bound[0], default=None)
        if shortest is not None:
            seconds, of = shortest
            self._arm(run, Limit(self._clock.now() + seconds, seconds, of=of))
        if self._settings.idle_limit:
            limit = self._settings.idle_limit
            self._arm(run, Limit(self._clock.now() + limit, limit, KnownPhase.IDLE))

    def _bounds(self, run: LiveRun) -> Iterator[tuple[float, LimitOf]]:
        """Yield every deadline of a run, and who set it.

        The control's own deadline bounds messages whose callers gave none, and detached children.
        """
        settings = self._settings
        said = [run, *run.ties.collected]
        is_child = run.arrival.kind is RunKind.CHILD
        for each in said:
            if each.arrival.deadline:
                yield each.arrival.deadline, LimitOf.CALLER
        if (of_agent := settings.agent_deadlines.get(run.arrival.agent or SERVED)) is not None:
            yield of_agent, LimitOf.AGENT
        if is_child and settings.child_deadline:
            yield settings.child_deadline, LimitOf.OPERATOR
        unsaid = run.ties.detached if is_child else any(each.arrival.deadline is None for each in said)
        if unsaid and settings.deadline:
            yield settings.deadline, LimitOf.OPERATOR

    def _arm(self, run: LiveRun, limit: Limit) -> None:
        run.limits.armed = (*run.limits.armed, limit)
        self._set_timer(run, limit, limit.at)

    def _set_timer(self, run: LiveRun, limit: Limit, at: float) -> None:
        # At least one step of the loop ahead: uvloop makes a plain callback of a timer that is due now, and a plain
        # callback has no `when()`.
        timer = self._loop.call_at(max(at, self._clock.now() + LOOP_STEP_SECONDS), self._fire, run, limit)
        run.limits.timers = [*(other for other in run.limits.timers or () if other.when() > self._clock.now()), timer]

    def _fire(self, run: LiveRun, limit: Limit) -> None:
        if run.fallen or limit not in run.limits.armed:
            return
        if run.limits.hear_out is not None and self._clock.now() >= run.limits.limit_now(limit).at:
            run.limits.hear_out()
        at = run.limits.limit_now(limit).at
        # The agent returned in time; its ending is on its way.
        if run.fallen or (run.limits.returned is not None and run.limits.returned < at):
            return
        # A sign of life moved the idle limit, or the timer fired early: arm it again.
        if self._clock.now() < at:
            self._set_timer(run, limit, min(at, self._clock.now() + limit.seconds))
        else:
            self._endings.end(run, TIMED_OUT)
