"""What sessions are called by the people who use them.

1. A name without an owner is the caller's own: `main` of two people are two sessions.
2. Another's session is written with its owner, `owner/name`. Its id is just that, and only its owner may found it.
3. The embedder names its sessions as it likes; on a surface they are written `local/NAME`, and nobody else founds them.
4. Sessions of a version whose ids did not say whose they are keep their ids; their owners write the bare names.
"""

from collections.abc import Iterable

from interlock.core.errors import BadInput, Unknown
from interlock.core.names import LOCAL, Principal, SessionId
from interlock.runtime.live import RUN_SESSION


class UnknownSession(Unknown):
    """There is no such session for this caller. A surface says it again with the name that its caller writes."""

    def __init__(self, session: str, by: str) -> None:
        super().__init__(
            f"no session {session!r} for {by}; a session begins with its first message, "
            "and another's (owner/name) is there only for those it is shared with"
        )
        self.session = session


class Anothers(str):
    """A bare id as somebody writes it whose session it is not: a message to it founds nothing."""

    __slots__ = ()


class Naming:
    """Names into ids, and ids into names. Neither direction asks whether there is such a session, or for whom."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain: dict[str, Principal] = {}  # owners of the sessions of rule 4, by id

    def keep(self, plain: Iterable[tuple[Principal, SessionId]]) -> None:
        """Take in the sessions, by owner and id, whose ids do not begin with their owner."""
        self._plain.update((session, owner) for owner, session in plain)

    def id_of(self, name: str, by: Principal) -> SessionId:
        """Return the id of a session as somebody writes its name."""
        if by == LOCAL or name.startswith(RUN_SESSION) or self._plain.get(name) == by:
            return SessionId(name)
        owner, slash, rest = name.partition("/")
        if not slash:
            owner, rest = by, name
        if not rest.strip() or not owner.strip():
            raise BadInput(
                f"{name!r:.80} is no session's name; write NAME for one of your own, OWNER/NAME for another's"
            )
        if owner == LOCAL or self._plain.get(rest) == owner:
            return SessionId(rest if owner == by else Anothers(rest))
        return SessionId(f"{owner}/{rest}")

    def name_of(self, session: SessionId, by: Principal) -> str:
        """Return a session's name as somebody writes it: bare where it is their own, else with its owner."""
        if session.startswith(RUN_SESSION):
            return session
        owner, slash, bare = session.partition("/")
        if session in self._plain:
            owner, bare = self._plain[session], session
        elif not slash:
            owner, bare = LOCAL, session
        return bare if owner == by and ("/" not in bare or bare in self._plain) else f"{owner}/{bare}"
