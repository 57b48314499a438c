"""Steering: messages that a run at work takes in.

The step that hands a steered message to the agent makes it part of the run, and gives its alias to the store without
waiting. The store writes the alias before the run's next tool call, or together with that call. So if the store holds a
tool call that the message may have caused, it also holds the fact that the run absorbed the message.
"""

from collections.abc import Sequence

from interlock.core.decision import Decision
from interlock.core.names import Effect, RunKind
from interlock.runtime.ending import Endings
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet


class Steering(Inner):
    """Offers messages to runs at work, and makes them part of those."""

    def __init__(self, inside: Inside, endings: Endings) -> None:
        super().__init__(inside)
        self._endings = endings

    def steered(self, run: LiveRun) -> list[LiveRun]:
        """Return the messages offered to a run by steering; none while the run waits for a person's answer.

        A message that the run's agent does not take with `check()` stays in the queue.
        """
        if run.limits.asking or not run.session.queue:
            return []
        return [
            other for other in run.session.queue if other.admittance.steers is run and other.admittance.acked.is_set()
        ]

    def absorb(self, run: LiveRun, taken: Sequence[LiveRun]) -> None:
        """Make messages part of a current run, in the step that hands them to its agent."""
        outlet = Outlet(run, self._feed)
        for message in taken:
            if message.arrival.kind is RunKind.CHAT:
                run.session.count_turn(message.arrival.kind)
            self._registry.absorb(message, run)
            # The text that the run said before the message stands before it in the transcript.
            outlet.close_block(Effect.BLOCK)
            outlet.introduce_part(message)
        if taken:
            # The store is not waited for. If this write is not committed when the run's next tool call is stored, the
            # aliases go into the store with that call (`Gate._written`).
            ticket = self._endings.store_until_in(Decision(aliases=tuple((message.id, run.id) for message in taken)))
            for message in taken:
                message.ties.alias_written(ticket)
