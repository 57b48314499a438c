"""Who may do what: one table (`RIGHTS`), and one place that reads it (`Authority.may`).

1. A right belongs to a principal, not to the connection that the principal uses.
2. A caller is allowed an action only if `RIGHTS` lists one of the caller's relations (`Relation`: owner, writer,
   reader, …) for it. Everything that is not listed is denied.
3. Every check is about one session: `Whose` says who owns it and with whom it is shared. The owner and the admins may
   do everything in it. A principal with whom the session is shared for writing may see it and send to it, and may stop
   the runs they started and answer the questions of these runs. A principal with whom the session is shared for reading
   may see it. Every other principal, but for rules 4 and 5, gets "not found", as if the session did not exist, even a
   principal who once sent to the session.
4. A reader (`readers=`) sees every session and changes nothing, not even a run that the reader once started. `appoint`
   can lift that ban (`writers`).
5. An approver (`appoint`) sees and may answer every question, even if the approver is a reader. An approver keeps its
   other relations.
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
    WRITER = "writer"  # the session is shared with them for writing
    GUEST = "guest"  # the session is shared with them for reading
    READER = "reader"
    APPROVER = "approver"
    OTHER = "other"


class Action(StrEnum):
    """What a caller asks to do."""

    # To begin a session, which then belongs to the caller. Control checks this right for the sender of every message,
    # even to a session that exists, and for the caller of a stop that would leave a `StopMark`. So a reader who is not
    # in `writers` sends nothing and leaves no mark.
    FOUND = "found"
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
    # A writer may send, but may not take over another principal's run (`takeover`, rule 2).
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
    """Whose a session is: its owner and its shares. `owner` is None until the session's first message is admitted."""

    owner: Principal | None = None
    shares: Mapping[Principal, May] = MappingProxyType({})

    def relations(self, by: Principal, principal: Principal | None) -> set[Relation]:
        """Return what `by` is to the session, and to a run in it that `principal` started."""
        share = self.shares.get(by)
        held: set[Relation] = set()
        if self.owner == by:
            held.add(Relation.OWNER)
        elif share is not None:
            held.add(Relation.WRITER if share is May.WRITE else Relation.GUEST)
        # The sender of a run has a right to it only while they may write in its session. Otherwise a principal could
        # still stop and watch their old runs after `unshare`.
        if principal == by and (self.owner in (None, by) or share is May.WRITE):
            held.add(Relation.PRINCIPAL)
        return held or {Relation.OTHER}


NOBODYS = Whose()


def may(action: Action, relations: Iterable[Relation]) -> bool:
    """Return whether a caller in these relations may act."""
    allowed = RIGHTS.get(action)
    return allowed is not None and not allowed.isdisjoint(relations)


def may_found(by: Principal, session: SessionId) -> bool:
    """Return whether a message of `by` may begin a session of this name.

    A name with a slash, `owner/name`, says whose session it is: only `owner` may begin it. So two people cannot race
    for one name. The embedder itself (`local`) names its sessions as it likes.
    """
    owner, slash, _ = session.partition("/")
    return by == LOCAL or not slash or owner == by


class Authority:
    """The principals that have a role in this control, and the one place where a right is checked (`may`)."""

    __slots__ = ("_admins", "_approvers", "_named", "_readers", "_writers", "appointed")

    appointed: frozenset[Principal]
    """Every principal with a role; nobody else may see what is neither theirs nor shared with them."""

    def __init__(self, admins: Collection[str] = (), readers: Collection[str] = ()) -> None:
        self._named = frozenset(admins) | {LOCAL}, frozenset(readers)
        self.appoint()

    def appoint(self, **roles: Collection[str]) -> None:
        """Replace the roles appointed before (`admins`, `readers`, `approvers`, `writers`), from this step on.

        The admins and readers named at construction keep their roles. `writers` lifts the reader's ban on changes: a
        principal in both lists sees every session and otherwise has their usual rights.
        """
        admins, readers = self._named
        self._admins, self._readers = admins.union(roles.get("admins", ())), readers.union(roles.get("readers", ()))
        self._approvers, self._writers = frozenset(roles.get("approvers", ())), frozenset(roles.get("writers", ()))
        self.appointed = frozenset(map(Principal, self._admins | self._readers | self._approvers))

    def approves(self, by: Principal) -> bool:
        """Return whether `by` may answer every question."""
        return by in self._approvers

    def relations(
        self, by: Principal, *, whose: Whose = NOBODYS, principal: Principal | None = None
    ) -> frozenset[Relation]:
        """Return what `by` is to a session, and to a run in it that `principal` started."""
        if by in self._admins:
            return _ADMIN
        held = {Relation.READER} if by in self._readers else set()
        # A reader who is not in `writers` does not get the relations of owner, sender or share. Otherwise the reader
        # could still stop runs in a session that they owned before they became a reader.
        if not held or by in self._writers:
            held |= whose.relations(by, principal)
        return frozenset(held | {Relation.APPROVER} if by in self._approvers else held)

    def may(self, action: Action, by: Principal, *, whose: Whose = NOBODYS, principal: Principal | None = None) -> bool:
        """Return whether `by` may act on a session, or on a run in it that `principal` started."""
        return may(action, self.relations(by, whose=whose, principal=principal))
