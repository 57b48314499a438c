"""Guards: a watch or a wait goes on only as long as its caller may see what it shows.

1. Rights in use are guarded, not polled. A watch and a wait hold a Guard; each change of a right asks `authority` again
   for every guard, in the same step, and ends those whose right is gone. A later check would show one event too many.
2. The guard keeps the session's owner and shares itself: the session may leave memory while its watcher stays.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from interlock.core.authority import Action, Authority, Whose
from interlock.core.names import Principal, SessionId


class Guard:
    """One caller's use of a right to see a session or a run. `gone` is called once, when the right is taken away."""

    __slots__ = ("_gone", "action", "by", "principal", "session", "void", "whose")

    def __init__(
        self,
        action: Action,
        by: Principal,
        *,
        session: SessionId,
        whose: Whose,
        principal: Principal | None = None,
        gone: Callable[[], object],
    ) -> None:
        self.action = action
        self.by = by
        # The session whose shares count: for a child, the one at the top of its tree.
        self.session = session
        self.whose = whose
        self.principal = principal
        self.void = False
        self._gone = gone

    def end(self) -> None:
        """Void the guard and tell its user, once."""
        if not self.void:
            self.void = True
            self._gone()


class Guards:
    """Every right in use, and listeners for changes of rights."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._guards: dict[Guard, None] = {}
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def held(self, guard: Guard) -> Iterator[Guard]:
        """Guard a right inside the block; ask for it at once."""
        self.hold(guard)
        try:
            yield guard
        finally:
            self.release(guard)

    def hold(self, guard: Guard) -> None:
        """Guard a right until `release`; ask for it at once."""
        self._guards[guard] = None
        self._ask(guard)

    def release(self, guard: Guard) -> None:
        """Guard a right no longer."""
        self._guards.pop(guard, None)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a listener in every step that changes a right."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling a listener."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def reconsider(self, session: SessionId | None = None, whose: Whose | None = None) -> None:
        """End every use of a right that is gone, after a change for all principals or in one session."""
        for guard in list(self._guards):
            if session is None or guard.session == session:
                guard.whose = guard.whose if whose is None else whose
                self._ask(guard)
        for listener in list(self._listeners):
            listener()

    def _ask(self, guard: Guard) -> None:
        if not self._authority.may(guard.action, guard.by, whose=guard.whose, principal=guard.principal):
            guard.end()


@contextmanager
def cut_short(guards: Guards, guard_of: Callable[[Callable[[], object]], Guard]) -> Iterator[Guard]:
    """Cancel the block when the right it uses is taken away."""
    with anyio.CancelScope() as scope, guards.held(guard_of(scope.cancel)) as guard:
        yield guard
