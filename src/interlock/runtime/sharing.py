"""Sharing a session: who else may see it, or write in it.

1. Only its owner or an admin shares a session. For every other principal the session does not exist.
2. Taking a right away counts in this step, whatever the store does; every open use of the right ends. The write is
   tried until the store has it.
3. Giving a right counts once the store has it: a crash must not take back what a principal was told to have.
4. Both carry a position, and of two changes for one principal the later one stands. A late write of the one cannot undo
   the other.
"""

from interlock.core.answers import Shared
from interlock.core.authority import Action
from interlock.core.decision import Decision, ShareRow
from interlock.core.errors import BadInput, Refused, UnknownSession
from interlock.core.names import LOCAL, May, Principal, SessionId
from interlock.runtime.ending import Endings
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.session import Session
from interlock.runtime.settings import SHARES
from interlock.stores.base import StoreFailed, commit_or_withdraw, read


class Sharing(Inner):
    """Gives and takes rights to sessions."""

    def __init__(self, inside: Inside, *, inbox: Inbox, endings: Endings) -> None:
        super().__init__(inside)
        self._inbox = inbox
        self._endings = endings
        # The position of the latest change for a principal, while its write is on its way.
        self._latest: dict[tuple[SessionId, Principal], int] = {}

    async def change(self, session_id: SessionId, who: Principal, may: May | None, by: Principal) -> Shared:
        """Set what a principal may do in a session; None takes the share away."""
        with self._registry.pinned(session_id) as session:
            if not session.loaded:
                self._registry.load(session, await read(self._store.load(session_id, principal=by, key=None)))
            if session.confirmed_owner is None or not self._authority.may(Action.SHARE, by, whose=session.whose):
                raise UnknownSession(session_id, by)
            if who in (session.owner, LOCAL):
                raise BadInput(f"{who} may do everything in session {session_id} already; name somebody else")
            if may is not None and who not in session.shares and len(session.shares) >= SHARES:
                raise Refused(f"session {session_id} is shared with {SHARES} others, the most it may be; unshare one")
            count = self._registry.count(session_id)
            row = ShareRow(session=session_id, principal=who, may=may, at=count.next())
            place = session_id, who
            self._latest[place] = row.at
            try:
                return await self._keep(session, Decision(shares=(row,), epochs=(count.row,)))
            finally:
                if self._latest.get(place) == row.at:
                    del self._latest[place]

    async def _keep(self, session: Session, decision: Decision) -> Shared:
        (row,) = decision.shares
        before = session.shares.get(row.principal)
        # The change takes something away: it counts now.
        if row.may is None or (row.may, before) == (May.READ, May.WRITE):
            if before is not None:
                self._set(session, row.principal, row.may)
            # Until the store has the change, `store_until_in` keeps the session in memory: loaded from the store, it
            # would have the share again.
            ticket = self._endings.store_until_in(decision, session)
            await ticket.within(self._settings.commit_seconds)
            return _shared(session, durable=ticket.inside)
        ticket = self._store.decide(decision)
        if not await commit_or_withdraw(self._store, ticket, self._settings.commit_seconds):
            raise StoreFailed("the store did not accept the share in time; nothing more was shared, try again")
        # A later change for this principal may have come while the store was asked; it stands.
        if self._latest.get((row.session, row.principal)) == row.at:
            self._set(session, row.principal, row.may)
        return _shared(session)

    def _set(self, session: Session, who: Principal, may: May | None) -> None:
        shares = {name: each for name, each in session.shares.items() if name != who}
        session.shares = shares if may is None else {**shares, who: may}
        self._guards.reconsider(session.id, session.whose)


def _shared(session: Session, *, durable: bool = True) -> Shared:
    assert session.owner is not None
    return Shared(session=session.id, owner=session.owner, shares=dict(session.shares), durable=durable)
