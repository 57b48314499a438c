"""Collecting: messages that wait become one turn, in the run of the first one.

1. Messages are collected into one turn only where each author may stop the other's runs, because a stop by either of
   them ends the whole turn, with the other's message in it.
2. Collected messages are committed one after another, and the turn does not begin while one is being committed.
   Otherwise a sender could be told that the message is part of the turn while the turn began without it.
3. The turn begins when the session has been quiet for a while, and at the latest COLLECT_TIMES that time after the
   first message.
"""

import asyncio

import msgspec

from interlock.core.answers import Sent
from interlock.core.decision import Decision
from interlock.core.lifecycle import State
from interlock.runtime.fall import seat_next
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.senders import Senders
from interlock.runtime.settings import COLLECT_TIMES, COLLECTED
from interlock.stores.base import Ticket


class Collecting(Inner):
    """Adds messages to waiting turns."""

    def __init__(self, inside: Inside, senders: Senders) -> None:
        super().__init__(inside)
        self._senders = senders
        self._loop = asyncio.get_running_loop()

    def collector(self, run: LiveRun, waiting: list[LiveRun]) -> LiveRun | None:
        """Return the waiting message to which this one may be added, or None.

        The search goes back from the end of the queue to the author's own latest message: the new message must not get
        ahead of that one.
        """
        for other in reversed(waiting):
            if self._joins(run, other):
                return other
            if other.principal == run.principal:
                return None
        return None

    def _joins(self, run: LiveRun, other: LiveRun) -> bool:
        """Return whether a message may become part of a waiting turn (rule 1)."""
        collection = other.ties.collection
        if collection is None or collection.merging is not None or 1 + len(collection.parts) >= COLLECTED:
            return False
        # A turn has one agent and, in addition to its messages, one text of instructions.
        if (run.arrival.agent, run.arrival.instructions) != (other.arrival.agent, other.arrival.instructions):
            return False
        return self._senders.may_stop(run, other) and self._senders.may_stop(other, run)

    def merge(self, run: LiveRun, into: LiveRun) -> Ticket:
        """Begin to add a message to a waiting one; once committed, the message is part of that turn."""
        run.ties.join(run, into)
        row = msgspec.structs.replace(run.row(), alias=into.id)
        key = run.key_row()
        keys = () if key is None else (msgspec.structs.replace(key, run_id=into.id),)
        return self._store.decide(Decision(admissions=(row,), keys=keys))

    def merged(self, run: LiveRun, into: LiveRun, *, inside: bool) -> None:
        """Finish adding a message: the store has it (`inside`), or never will. The turn waits for a new quiet time."""
        run.ties.joined(run if inside and not run.fallen else None)
        if inside and not run.fallen:
            self._registry.absorb(run, into)
            session = into.session
            run.admittance.accept(Sent(run_id=into.id, session=session.id, owner=session.owner, state=State.QUEUED))
            if into.message_published:
                Outlet(into, self._feed).introduce_part(run)
        self.wait_for_quiet(into)

    def begin(self, run: LiveRun) -> None:
        """Let a message collect others while it waits."""
        run.ties.collect(until=self._clock.now() + COLLECT_TIMES * self._settings.collect_seconds)

    def wait_for_quiet(self, run: LiveRun) -> None:
        """Let a collected turn begin when its session has been quiet for a while from now."""
        collection = run.ties.collection
        if collection is None or not run.state.queued or self._registry.closing:
            return
        if collection.timer is not None:
            collection.timer.cancel()
        at = min(self._clock.now() + self._settings.collect_seconds, collection.until)
        collection.timer = self._loop.call_at(at, self._quiet_elapsed, run)
        run.limits.add_timer(collection.timer)

    def _quiet_elapsed(self, run: LiveRun) -> None:
        if run.state.queued and run.ties.collection is not None and run.ties.collection.merging is None:
            run.ties.collection.quiet_over = True
            seat_next(self._registry, run.session)
