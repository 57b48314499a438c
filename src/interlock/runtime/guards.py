"""Rights while they are used: a watch or a wait goes on only as long as its caller may see what it shows.

1. A guard asks `authority` again in the very step that changes a right, and is told at once if the right is gone.
2. Whose a session was when the guard began is kept with it: the session may leave memory while somebody watches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from interlock.core.authority import Action, Authority, Whose
from interlock.core.names import Principal, SessionId


class Guard:
    """One caller's use of a right to see a session or a run; `gone` is called when the right goes, once."""

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
        self.session = session  # the one whose sharing counts: of a child, the session at the top of its tree
        self.whose = whose
        self.principal = principal
        self.void = False
        self._gone = gone

    def end(self) -> None:
        """The right is gone."""
        if not self.void:
            self.void = True
            self._gone()


class Guards:
    """Every right in use, and whoever else must hear that rights have changed."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._guards: dict[Guard, None] = {}
        self._listeners: list[Callable[[], None]] = []

    @contextmanager
    def held(self, guard: Guard) -> Iterator[Guard]:
        """Keep a right under watch while it is used."""
        self._guards[guard] = None
        try:
            self._ask(guard)
            yield guard
        finally:
            del self._guards[guard]

    def listen(self, listener: Callable[[], None]) -> None:
        """Call somebody in every step that changes a right."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call it no longer."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def reconsider(self, session: SessionId | None = None, whose: Whose | None = None) -> None:
        """Rights have changed, of everybody or in one session: end every use of one that is gone."""
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
    """Leave a block at its next wait when the right it uses is gone."""
    with anyio.CancelScope() as scope, guards.held(guard_of(scope.cancel)) as guard:
        yield guard
