"""A client: the verbs of a caller over a door, the same in process, over a socket, and through another node.

A client speaks for one principal, whom its door knows: the token's over a socket, the one of `control.client(by)` in
process. Control decides what that principal may.
"""

from typing import TypeVar

from interlock.client.caller import Caller
from interlock.client.door import Asked, Door, Listening, Sink
from interlock.core.errors import BadInput
from interlock.core.names import LOCAL
from interlock.core.verbs import Verb

T = TypeVar("T")


class Client(Caller):
    """Sends, stops, watches and answers for one principal."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def ask(self, verb: Verb[T], *, by: str = LOCAL) -> Asked[T]:
        """Ask a verb; sends and stops begin in this step, whether or not the answer is awaited."""
        if by != LOCAL:
            raise _another(by)
        return self._door.ask(verb)

    async def listen(
        self,
        sink: Sink,
        session: str | None = None,
        *,
        run: str | None = None,
        after: int = 0,
        begin: str | None = None,
        by: str = LOCAL,
    ) -> Listening | None:
        """Give a sink what `watch` yields; None if the run was withdrawn. `resume` on the answer begins the reading."""
        if by != LOCAL:
            raise _another(by)
        return await self._door.listen(sink, session, run=run, after=after, begin=begin)

    def is_current(self, run: str) -> bool:
        """Return whether a run has not fallen. A sink asks this where it begins a delivery; the call never waits.

        Over a socket the answer is later than the fall by the way of one frame, which overtakes everything else. There
        a run that this client does not watch, or while there is no connection, is not current.
        """
        return self._door.is_current(run)


def _another(by: str) -> BadInput:
    return BadInput(f"a client speaks for one principal, not for {by!r:.80}; leave by= out, or use control.client")
