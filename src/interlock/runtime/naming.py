"""What sessions are called by the people who use them.

1. A name without an owner is the caller's own: `main` of two people are two sessions.
2. Another's session is written with its owner, `owner/name`; its id is just that, so that nobody can found it for them.
3. The embedder names its sessions as it likes, and so does what it opened for others: those are `local/NAME`.
4. Sessions of a version whose ids did not say whose they are keep their ids; their owners write the bare names.
"""

from collections.abc import Iterable

from interlock.core.names import LOCAL, Principal, SessionId
from interlock.runtime.live import RUN_SESSION


class Naming:
    """Names into ids, and ids into names. Neither direction asks whether there is such a session, or for whom."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain: set[tuple[Principal, str]] = set()

    def keep(self, plain: Iterable[tuple[Principal, SessionId]]) -> None:
        """Take in the sessions, by owner and id, whose ids do not begin with their owner."""
        self._plain.update(plain)

    def id_of(self, name: str, by: Principal) -> SessionId:
        """Return the id of a session as somebody writes its name."""
        if by == LOCAL or name.startswith(RUN_SESSION) or (by, name) in self._plain:
            return SessionId(name)
        owner, slash, rest = name.partition("/")
        if not slash:
            owner, rest = by, name
        if owner == LOCAL or (Principal(owner), rest) in self._plain:
            return SessionId(rest)
        return SessionId(f"{owner}/{rest}")

    def name_of(self, session: SessionId, owner: Principal | None, by: Principal | None = None) -> str:
        """Return a session's name with its owner; for the owner itself (`by`) the bare one."""
        if session.startswith(RUN_SESSION):
            return session
        if owner is not None and session.startswith(f"{owner}/"):
            bare = session[len(owner) + 1 :]
        elif owner is not None and (owner, session) in self._plain:
            bare = session
        else:
            return f"{LOCAL}/{session}"
        return bare if owner == by and "/" not in bare else f"{owner}/{bare}"
