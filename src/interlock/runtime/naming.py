"""What sessions are called by the people who use them.

1. A name without an owner is the caller's own: `main` of two people are two sessions.
2. Another's session is written with its owner, `owner/name`. Its id is just that, and only its owner may found it.
3. The embedder names its sessions as it likes; on a surface they are written `local/NAME`, and nobody else founds them.
4. Sessions of a version whose ids did not say whose they are keep their ids; their owners write the bare names.
"""

from collections.abc import Iterable

from interlock.core.errors import BadInput
from interlock.core.names import LOCAL, Principal, SessionId
from interlock.runtime.live import RUN_SESSION


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

    def told(self, session: SessionId, by: Principal) -> SessionId:
        """Return the id that a refusal names: of another's it has the owner, or it would tell which there are (4)."""
        owner = self._plain.get(session, by)
        return session if owner == by else SessionId(f"{owner}/{session}")

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
