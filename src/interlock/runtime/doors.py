"""The door in process: what a surface or an embedder asks of control for one principal."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

from interlock.client.door import Asked, Sink
from interlock.core.names import EventKind, Principal, SessionId
from interlock.core.verbs import Verb

if TYPE_CHECKING:
    from interlock.runtime.control import Control
    from interlock.runtime.following import Everything, Listening

T = TypeVar("T")


class ControlDoor:
    """Control, for one principal. Sessions are named by their ids; `id_of` gives the id of a name."""

    def __init__(self, control: Control, by: Principal) -> None:
        self._control = control
        self.by = by

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of agents that a message may ask for."""
        return self._control.agents

    def ask(self, verb: Verb[T]) -> Asked[T]:
        """Ask a verb; sends and stops begin in this step."""
        return self._control.ask(verb, by=self.by)

    async def listen(
        self, sink: Sink, session: str | None, *, run: str | None, after: int, begin: str | None
    ) -> Listening | None:
        """Give a sink the events of a session or a run behind a position, then those to come."""
        return await self._control.listen(sink, session, run=run, after=after, begin=begin, by=self.by)

    def listen_to_all(
        self, sink: Sink | None, *, approver: Sink | None = None, kinds: Collection[EventKind] | None = None
    ) -> Everything:
        """Give a sink every event that the principal may see, from this step on."""
        return self._control.feed.follow_all(sink, self.by, approver=approver, kinds=kinds)

    def is_current(self, run: str) -> bool:
        """Return whether a run has not fallen."""
        return self._control.is_current(run, by=self.by)

    def name_of(self, session: SessionId) -> str:
        """Return a session's name as the principal writes it."""
        return self._control.naming.name_of(session, self.by)

    def id_of(self, name: str) -> SessionId:
        """Return the id of the session that the principal names."""
        return self._control.naming.id_of(name, self.by)
