"""A way to control for one principal: in process, over a socket, or through another node.

1. `ask` begins in the step that calls it where the verb sends or stops something, so that a stop right behind a message
   finds the message. The answer may be awaited later, or never.
2. `listen` gives a sink events in the step that publishes them, or reads them off the wire. A sink never waits.
"""

from collections.abc import Callable, Collection, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from interlock.core.errors import InterlockError
from interlock.core.events import Event, Source
from interlock.core.names import PASSING, EventKind, RunId, SessionId
from interlock.core.verbs import Verb

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Answering = Callable[[], Coroutine[Any, Any, T]]
"""The answer to something that was begun: call it and await. Nothing depends on that it is called."""

Sees = Callable[[SessionId, RunId | None, bool], bool]
"""Says whether a principal may see an event of a session or of a run in it; with True, answer the question in it."""


class Asked(Generic[T_co]):
    """The answer to a verb; await it, once, or leave it."""

    __slots__ = ("_answering",)

    def __init__(self, answering: Callable[[], Coroutine[Any, Any, T_co]]) -> None:
        self._answering = answering

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._answering().__await__()


class Sink:
    """Hears events in the step that publishes them. No method may wait or raise."""

    __slots__ = ()

    def take(self, event: Event, source: Source | None) -> bool:
        """Take an event; return False if there is no room: it is read from the log later.

        `source` is the run that the event came from; None if the run is not known here, or the event is the session's.
        """
        raise NotImplementedError

    def caught_up(self, position: int) -> None:
        """Note that the events up to a position were history, and the next one is news."""

    def fell(self, source: Source) -> None:
        """Note that a run fell, in the step of its fall."""

    def take_back(self, sees: Sees) -> None:
        """Forget waiting events that the principal may no longer see: its rights have changed."""

    def close(self, error: InterlockError | None) -> None:
        """Note that no further event will come."""


class Listening(Protocol):
    """A sink's listening to a session, or to one run in it."""

    @property
    def session(self) -> SessionId | None:
        """The id of the session, as far as it is known."""
        ...

    @property
    def is_behind(self) -> bool:
        """True while the sink must be given what the log has before it hears what is published."""
        ...

    def resume(self) -> None:
        """Begin to read what the sink lacks: after `listen`, and whenever the sink has room again."""
        ...

    def close(self, error: InterlockError | None = None) -> None:
        """Hear nothing more; a second call does nothing."""
        ...


class Everything(Protocol):
    """A sink's listening to all that its principal may see."""

    def close(self) -> None:
        """Hear nothing more."""
        ...


class Door(Protocol):
    """A way to control for one principal."""

    def ask(self, verb: Verb[T]) -> Asked[T]:
        """Ask a verb; sends and stops begin in this step."""
        ...

    async def listen(
        self, sink: Sink, session: str | None, *, run: str | None, after: int, begin: str | None
    ) -> Listening | None:
        """Give a sink the events of a session or a run behind a position, then those to come; None: there are none."""
        ...

    def is_current(self, run: str) -> bool:
        """Return whether a run has not fallen."""
        ...


class Inside(Door, Protocol):
    """A door in the process of control, for surfaces."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of agents that a message may ask for."""
        ...

    def name_of(self, session: SessionId) -> str:
        """Return a session's name as the principal writes it."""
        ...

    def id_of(self, name: str) -> SessionId:
        """Return the id of the session that the principal names."""
        ...

    def listen_to_all(
        self, sink: Sink | None, *, approver: Sink | None = None, kinds: Collection[EventKind] | None = None
    ) -> Everything:
        """Give a sink every event that the principal may see, from this step on.

        `approver` hears the events whose questions the principal may answer, if it may not see their runs.
        """
        ...


class House(Protocol):
    """Control, as a server of many principals sees it."""

    def door(self, by: str) -> Inside:
        """Return the door of a principal."""
        ...

    def appoint(
        self,
        *,
        admins: Collection[str],
        readers: Collection[str],
        writers: Collection[str],
        approvers: Collection[str],
    ) -> None:
        """Say which principals may do everything, see everything, write too, and answer every question."""
        ...


def is_over(event: Event, source: Source | None) -> bool:
    """Return whether an event must not be told any more: it is a passing one, and its run is gone or was cut short."""
    return (
        event.data.kind in PASSING
        and event.run_id is not None
        and (source is None or (source.cause is not None and source.cause.early))
    )
