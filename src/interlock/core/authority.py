"""Who may do what: one table, one choke point.

1. The right belongs to the principal, not to the connection.
2. An action without an entry, or a relation not named in it, is denied.
3. Rights are asked of a session: its owner's, an admin's, or somebody's it was shared with. To anybody else it looks as
   if it were not there, also to somebody who once sent to it.
4. Stopping is easier than starting; a reader sees and never changes; an approver answers, whatever else it is.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from interlock.core.names import LOCAL, May, Principal, SessionId


class Relation(StrEnum):
    """What a caller is to a run or a session."""

    ADMIN = "admin"
    OWNER = "owner"  # created the session
    PRINCIPAL = "principal"  # started the run
    WRITER = "writer"  # the session was shared with them, to write in
    GUEST = "guest"  # the session was shared with them, to read
    READER = "reader"  # may see everything, change nothing
    APPROVER = "approver"  # may answer every question; sees questions, nothing else
    OTHER = "other"


class Action(StrEnum):
    """What a caller may want."""

    FOUND = "found"  # begin a session of their own; leave a stop for what is still to come
    SEND = "send"
    TAKE_OVER = "take_over"
    STOP = "stop"
    ANSWER = "answer"
    SEE_RUN = "see_run"  # wait, receipt, timeline, watch(run=)
    SEE_SESSION = "see_session"  # watch, history, runs
    WAKE = "wake"
    RESET = "reset"
    SHARE = "share"


_R = Relation
_ENDS = frozenset({_R.ADMIN, _R.OWNER, _R.PRINCIPAL})
_OWNS = frozenset({_R.ADMIN, _R.OWNER})

_ADMIN = frozenset({_R.ADMIN})

RIGHTS: dict[Action, frozenset[Relation]] = {
    Action.FOUND: _ENDS | {_R.WRITER, _R.GUEST, _R.OTHER},
    # Whoever may write in a session, but may not stop what runs in it, queues.
    Action.SEND: _OWNS | {_R.WRITER},
    Action.TAKE_OVER: _ENDS,
    Action.STOP: _ENDS,
    Action.ANSWER: frozenset({_R.ADMIN, _R.OWNER, _R.PRINCIPAL, _R.APPROVER}),
    Action.SEE_RUN: _ENDS | {_R.WRITER, _R.GUEST, _R.READER},
    Action.SEE_SESSION: _OWNS | {_R.WRITER, _R.GUEST, _R.READER},
    Action.WAKE: _OWNS,
    Action.RESET: _OWNS,
    Action.SHARE: _OWNS,
}


class Whose(NamedTuple):
    """Whose a session is: its owner, and those it was shared with. Without an owner nobody has founded it yet."""

    owner: Principal | None = None
    shares: Mapping[Principal, May] = MappingProxyType({})

    def relations(self, by: Principal, principal: Principal | None) -> set[Relation]:
        """Return what somebody is to the session and to a run in it that `principal` started."""
        share = self.shares.get(by)
        held: set[Relation] = set()
        if self.owner == by:
            held.add(Relation.OWNER)
        elif share is not None:
            held.add(Relation.WRITER if share is May.WRITE else Relation.GUEST)
        # Only somebody who may write in the session has a right to the runs they started in it: what was shared and is
        # not any more is gone, runs included.
        if principal == by and (self.owner in (None, by) or share is May.WRITE):
            held.add(Relation.PRINCIPAL)
        return held or {Relation.OTHER}


NOBODYS = Whose()


def may(action: Action, relations: Iterable[Relation]) -> bool:
    """Return whether a caller who stands in these relations may act; what is not listed is denied."""
    allowed = RIGHTS.get(action)
    return allowed is not None and not allowed.isdisjoint(relations)


def may_found(by: Principal, session: SessionId) -> bool:
    """Return whether a session of this name may begin with a message of theirs: nobody founds one for another.

    A name with a slash says whose session it is. The embedder itself names its sessions as it likes.
    """
    owner, slash, _ = session.partition("/")
    return by == LOCAL or not slash or owner == by


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
        self, by: Principal, *, whose: Whose = NOBODYS, principal: Principal | None = None
    ) -> frozenset[Relation]:
        """Return what a caller is to a session and a run (its principal)."""
        if by in self._admins:
            return _ADMIN
        held = {Relation.READER} if by in self._readers else set()
        if not held or by in self._writers:  # a mere reader changes nothing, not even what once was its own
            held |= whose.relations(by, principal)
        return frozenset(held | {Relation.APPROVER} if by in self._approvers else held)

    def may(self, action: Action, by: Principal, *, whose: Whose = NOBODYS, principal: Principal | None = None) -> bool:
        """Return whether somebody may act on a session, or on a run in it that `principal` started."""
        return may(action, self.relations(by, whose=whose, principal=principal))
