"""Who may do what: one table, one choke point.

1. The right belongs to the principal, not to the connection.
2. An action without an entry, or a relation not named in it, is denied.
3. Stopping is easier than starting; a reader sees and never changes; an approver answers, whatever else it is.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum

from interlock.core.names import LOCAL, Principal


class Relation(StrEnum):
    """What a caller is to a run or a session."""

    SYSTEM = "system"  # control itself: a deadline, a shutdown
    ADMIN = "admin"
    OWNER = "owner"  # created the session
    PRINCIPAL = "principal"  # started the run
    PARENT = "parent"  # the run that delegated it
    READER = "reader"  # may see everything, change nothing
    APPROVER = "approver"  # may answer every question; sees questions, nothing else
    OTHER = "other"


class Action(StrEnum):
    """What a caller may want."""

    SEND = "send"
    TAKE_OVER = "take_over"
    STOP = "stop"
    ANSWER = "answer"
    SEE_RUN = "see_run"  # wait, receipt, timeline, watch(run=)
    SEE_SESSION = "see_session"  # watch, history, runs
    WAKE = "wake"
    RESET = "reset"


_R = Relation
_CHANGES = frozenset({_R.SYSTEM, _R.ADMIN, _R.OWNER, _R.PRINCIPAL, _R.PARENT})

_ADMIN = frozenset({_R.ADMIN})

RIGHTS: dict[Action, frozenset[Relation]] = {
    # Anyone who is not merely a reader may speak in a shared session; without the right to stop they queue.
    Action.SEND: _CHANGES | {_R.OTHER},
    Action.TAKE_OVER: _CHANGES,
    Action.STOP: _CHANGES,
    Action.ANSWER: frozenset({_R.ADMIN, _R.OWNER, _R.PRINCIPAL, _R.APPROVER}),
    Action.SEE_RUN: _CHANGES | {_R.READER},
    Action.SEE_SESSION: frozenset({_R.SYSTEM, _R.ADMIN, _R.OWNER, _R.READER}),
    Action.WAKE: frozenset({_R.SYSTEM, _R.ADMIN, _R.OWNER}),
    Action.RESET: frozenset({_R.SYSTEM, _R.ADMIN, _R.OWNER}),
}


def may(action: Action, relations: Iterable[Relation]) -> bool:
    """Return whether a caller who stands in these relations may act; what is not listed is denied."""
    allowed = RIGHTS.get(action)
    return allowed is not None and not allowed.isdisjoint(relations)


class Authority:
    """The people this control knows by name, and the one place where a right is asked for."""

    __slots__ = ("_admins", "_approvers", "_named", "_readers", "_writers")

    def __init__(self, admins: Collection[str] = (), readers: Collection[str] = ()) -> None:
        self._named = frozenset(admins) | {LOCAL}, frozenset(readers)
        self.appoint()

    def appoint(self, **roles: Collection[str]) -> None:
        """Say anew who, besides those named at first, is one of admins, readers, approvers; it counts from here on.

        A reader who is also one of `writers` is an ordinary principal that sees everything.
        """
        admins, readers = self._named
        self._admins, self._readers = admins.union(roles.get("admins", ())), readers.union(roles.get("readers", ()))
        self._approvers, self._writers = frozenset(roles.get("approvers", ())), frozenset(roles.get("writers", ()))

    def relations(
        self, by: Principal, *, owner: Principal | None = None, principal: Principal | None = None
    ) -> frozenset[Relation]:
        """Return what a caller is to a session (its owner) and a run (its principal)."""
        if by in self._admins:
            return _ADMIN
        held = {Relation.READER} if by in self._readers else set()
        if not held or by in self._writers:  # a mere reader changes nothing, not even what once was its own
            mine = ((Relation.OWNER, owner), (Relation.PRINCIPAL, principal))
            held |= {relation for relation, who in mine if who == by} or {Relation.OTHER}
        return frozenset(held | {Relation.APPROVER} if by in self._approvers else held)

    def may(
        self, action: Action, by: Principal, *, owner: Principal | None = None, principal: Principal | None = None
    ) -> bool:
        """Return whether `by` may act on the run or session whose owner and principal are given."""
        return may(action, self.relations(by, owner=owner, principal=principal))
