"""What the sender of a message may do: send it to its session, take over a run there; and whether a stop was first.

The inbox asks in the step that decides on the message. A stop asks earlier: it ends no message that will be refused.
"""

from interlock.core.authority import Action, Whose, may_found
from interlock.core.names import Principal, RunKind
from interlock.runtime.inside import Inner
from interlock.runtime.live import LiveRun
from interlock.stores.base import Loaded


class Senders(Inner):
    """The rights of those who send."""

    def may_send(self, run: LiveRun) -> bool:
        """Return whether the sender may send to the session, or begin it if it has no owner yet."""
        session = run.session
        if session.owner is None:
            found = self._authority.may(Action.FOUND, run.principal)
            return found and run.arrival.begins and may_found(run.principal, session.id)
        # A child needs no right of its own: its parent had the right to begin it. The child's session takes no other
        # message.
        if run.ties.parent is not None:
            return True
        return self._authority.may(Action.SEND, run.principal, whose=Whose(session.owner, session.shares))

    def may_come(self, run: LiveRun) -> bool:
        """Return whether a message was admitted or may still be.

        A stop does not end a message that will be refused anyway. Otherwise a stopped run of a stranger would be
        recorded in another principal's session, and the stranger would learn that the session exists. While the session
        is not read, or its first message is not stored, the answer is not known, and this method returns True.
        """
        session = run.session
        if not run.state.undecided or not session.loaded or (session.owner is not None and not session.stored):
            return True
        return self.may_send(run)

    def unsure(self, run: LiveRun) -> bool:
        """Return whether a message arrives for a session that was not read yet and may be another principal's."""
        session, by = run.session, run.principal
        if session.loaded or not run.state.undecided or run.ties.parent is not None:
            return False
        return not (run.arrival.begins and may_found(by, session.id)) and not self._authority.may(Action.SEND, by)

    def may_stop(self, run: LiveRun, other: LiveRun) -> bool:
        """Return whether the sender of a message may end another run; any message may end a wake's."""
        if other.arrival.kind is RunKind.WAKE:
            return True
        whose = Whose(run.session.owner, run.session.shares)
        return self._authority.may(Action.TAKE_OVER, run.principal, whose=whose, principal=other.principal)

    def stopped_before(self, run: LiveRun, known: Loaded) -> Principal | None:
        """Return who stopped a message before it arrived, or None.

        The stop named the message's key, or it was written after the message in the same channel but arrived first.
        """
        buried = known.buried or self._registry.buried(run.principal, run.arrival.key)
        return run.principal if buried else self._stopped_after(run)

    def _stopped_after(self, run: LiveRun) -> Principal | None:
        whose = Whose(run.session.owner, run.session.shares)
        for by in self._registry.stopped_after(run.session.id, run.arrival.order, self._clock.wall()):
            if self._authority.may(Action.STOP, by, whose=whose, principal=run.principal):
                return by
        return None
