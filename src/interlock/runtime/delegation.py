"""Child runs: a run hands work to another agent, in a session of its own, and shares its fate with it.

1. A child begins in the step that passes its parent's fence; one whose parent falls while it arrives is born ended.
2. It falls with its parent, in the same step (`Fall.take`); a detached one belongs to the session at the top instead.
3. The parent learns the child's ending when it is public, and never waits for its cleanup. A detached child's comes to
   the session at the top as a message (`reporting`).
"""

from typing import Protocol

from interlock.core.errors import BadInput, Refused
from interlock.core.names import Announce, Effect, Ending, KnownPhase, RunId, RunKind, Strategy
from interlock.core.outcome import Cause, Outcome
from interlock.runtime.clock import Clock
from interlock.runtime.ending import Endings
from interlock.runtime.live import Child, LiveRun, own_session
from interlock.runtime.registry import Registry
from interlock.runtime.settings import CHILDREN, DEPTH


class Starter(Protocol):
    """Whoever starts the task that carries a message."""

    def begin(self, run: LiveRun) -> LiveRun:
        """Register a message and start its task, in this step."""
        ...


class Delegation:
    """Begins child runs and brings their endings back."""

    def __init__(
        self,
        registry: Registry,
        *,
        stage: Starter,
        names: tuple[str, ...],
        endings: Endings,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._stage = stage
        self._names = names
        self._endings = endings
        self._clock = clock

    async def delegate(
        self, parent: LiveRun, agent: str, text: str, deadline: float | None, detached: bool, announce: Announce | None
    ) -> Child:
        """Begin a child and, unless it is detached, wait for its ending."""
        child = self._begin(parent, agent, text, deadline, detached, announce)
        parent.resting += 1
        parent.enter(child, KnownPhase.CHILD)
        try:
            await (child.acked if detached else child.ended).wait()
        except BaseException:
            if not detached:  # the agent waits for it no longer, by a timeout of its own, say
                self._endings.end(child, Cause(ending=Ending.STOPPED, by=parent.principal))
            raise
        finally:
            parent.resting -= 1
            parent.leave(child)
            parent.touched = self._clock.now()
        parent.fence.check(Effect.CHILD)  # the result of a child is an effect on its parent
        if child.problem is not None:
            raise child.problem.with_traceback(None)
        if child.fall is None or child.announce is not None:  # it comes once: by its announcement
            return Child(run_id=child.id, outcome=Outcome(run_id=child.id, ending=Ending.PENDING))
        outcome = child.fall.told(child)
        return Child(run_id=child.id, outcome=outcome, text=outcome.text)

    def _begin(
        self, parent: LiveRun, agent: str, text: str, deadline: float | None, detached: bool, announce: Announce | None
    ) -> LiveRun:
        """Admit a child: fence, limits and registration in one synchronous step."""
        parent.fence.check(Effect.CHILD)
        if agent not in self._names:
            known = ", ".join(self._names) or "none"
            raise BadInput(f"no agent {agent!r} to delegate to; open_control(agents=...) has {known}")
        self._room(parent, detached)
        run_id = RunId(self._registry.new_id("r"))
        session = self._registry.session(own_session(run_id))
        session.loaded = True  # nobody else can have made it
        session.owner, session.stored = parent.session.owner, parent.session.stored  # theirs, whatever the store says
        session.home = parent.home
        child = LiveRun(
            run_id,
            session,
            principal=parent.principal,
            text=text,
            kind=RunKind.CHILD,
            method="delegate",
            key=None,
            digest="",
            strategy=Strategy.INTERRUPT,
            deadline=deadline,
            admitted_at=self._clock.wall(),
            order=parent.order,  # what spares the message that asked for it spares it, too
            agent=agent,
            parent=parent,
            detached=detached,
            announce=announce,
        )
        child.announce_to = parent.agent if parent.parent is None else parent.announce_to
        return self._stage.begin(child)

    def _room(self, parent: LiveRun, detached: bool) -> None:
        depth, root, above = 1, parent, parent.parent
        while above is not None:
            depth, root, above = depth + 1, root if root.detached else above, above.parent
        if depth > DEPTH:
            raise Refused(f"this run is {DEPTH} generations below the first, the most there may be; do the work here")
        alive = len(parent.home.detached or ()) if detached else root.descendants
        if alive >= CHILDREN:
            kind = "detached in its session" if detached else "alive in its tree"
            raise Refused(f"{CHILDREN} children are {kind}, the most there may be; wait for some to end")
