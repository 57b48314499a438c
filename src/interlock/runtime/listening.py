"""Listening: how a caller begins to hear a session or a run, and keeps hearing only as long as it may."""

from collections.abc import Callable
from functools import partial

from interlock.client.door import Sink
from interlock.core.authority import Action, Whose
from interlock.core.errors import BadInput
from interlock.core.names import Principal, RunId, SessionId
from interlock.core.values import name_of
from interlock.runtime.following import Listening
from interlock.runtime.guards import Guard
from interlock.runtime.inside import Inner
from interlock.runtime.looking import guard_of
from interlock.stores.base import read


class Listeners(Inner):
    """Lets sinks listen to what their principals may see."""

    async def listen(
        self, sink: Sink, session: str | None, *, run: str | None, after: int, begin: str | None, by: Principal
    ) -> Listening | None:
        """Give a sink what `watch` yields, each event in the step that publishes it; None if the run was withdrawn.

        `begin` names a run: events of the session before that run's first are left out, as those up to `after` are.
        Control reads the log once `resume` is called on what this returns. The listening ends when the caller loses the
        right to see what it shows.
        """
        if (session is None) == (run is None):
            raise BadInput("watch one thing: a session, or run=")
        if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < 2**63:
            raise BadInput(f"after= is an event's position, not {after!r:.40}; 0 replays from the beginning")
        only = None if run is None else RunId(name_of(run, "run"))
        # Events of an aliased run belong to the run that absorbed it.
        if only is not None and (live := self._registry.runs.get(only)) is not None:
            only = live.absorber_or_self.id
        if only is None:
            session_id = SessionId(name_of(session, "session"))
            await self._sight.owned(session_id, by)
        elif (found := await self._sight.seen(only, by)) is None:
            return None
        else:
            session_id, only = found
        if begin is not None:
            after = max(after, await read(self._feed.log.began(session_id, RunId(name_of(begin, "begin")))) - 1)
        # The last read: a right that is taken away before the guard is held would otherwise still count.
        guard = await self._guard_of(session_id, only, by)
        listening = self._feed.follow(session_id, sink, after=after, only=only)
        listening.guarded(guard(listening.forbid))
        return listening

    async def _guard_of(
        self, session_id: SessionId, run_id: RunId | None, by: Principal
    ) -> Callable[[Callable[[], object]], Guard]:
        if run_id is None:
            return partial(_session_guard, by, session_id, await read(self._sight.whose(session_id)))
        if (live := self._registry.runs.get(run_id)) is not None:
            return partial(guard_of, live, by)
        row = await read(self._store.run(run_id))
        home = SessionId("") if row is None else row.home or row.session
        whose, principal = await read(self._sight.whose(home)), None if row is None else row.principal
        return partial(_run_guard, by, home, whose, principal)


def _session_guard(by: Principal, session: SessionId, whose: Whose, gone: Callable[[], object]) -> Guard:
    return Guard(Action.SEE_SESSION, by, session=session, whose=whose, gone=gone)


def _run_guard(
    by: Principal, home: SessionId, whose: Whose, principal: Principal | None, gone: Callable[[], object]
) -> Guard:
    return Guard(Action.SEE_RUN, by, session=home, whose=whose, principal=principal, gone=gone)
