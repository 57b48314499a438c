"""Names of sessions: the names that people write, and the ids that control knows.

1. A name without an owner is the caller's own: `main` of two people are two sessions.
2. Another principal's session is written `owner/name`. That is its id, and only `owner` may found it, so two principals
   cannot race for a name. The owner in the id needs no look-up before a message can stand in its session's line; a stop
   right behind the message therefore finds it (race 24).
3. A surface resolves a name in the step that reads the request. Control knows ids alone.
4. The embedder names its sessions as it likes. On a surface they are written `local/NAME`, and only the embedder founds
   them.
5. Sessions of schema 1 have ids without an owner and keep them; their owners write the bare names.
"""

from collections.abc import Iterable

from interlock.core.errors import BadInput
from interlock.core.names import LOCAL, Principal, SessionId
from interlock.runtime.live import RUN_SESSION


class Anothers(str):
    """A bare session id written by a principal who is not its owner: a message to it founds nothing."""

    __slots__ = ()


class Naming:
    """Turns names into ids and ids into names, without asking whether the session exists or the caller may see it."""

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        # Owners of the sessions of rule 5, by id.
        self._plain: dict[str, Principal] = {}

    def keep(self, plain: Iterable[tuple[Principal, SessionId]]) -> None:
        """Remember the sessions of rule 5, by owner and id."""
        self._plain.update((session, owner) for owner, session in plain)

    def id_of(self, name: str, by: Principal) -> SessionId:
        """Return the id of the session that a principal names."""
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
        """Return a session's name as a principal writes it: bare for its owner, else with the owner."""
        if session.startswith(RUN_SESSION):
            return session
        owner, slash, bare = session.partition("/")
        if session in self._plain:
            owner, bare = self._plain[session], session
        elif not slash:
            owner, bare = LOCAL, session
        return bare if owner == by and ("/" not in bare or bare in self._plain) else f"{owner}/{bare}"
