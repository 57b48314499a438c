"""Child runs: a run hands work to another agent, in a session of the child's own.

1. A child arrives by the same way as any message, in a session `run:<id>` that takes no other message, with its
   parent's principal and owner. So children need no second path and no second set of rights.
2. A child begins in the step that passes its parent's fence. A child whose parent falls while it arrives is born ended
   (race 44).
3. A child falls with its parent, in the same step (`Fall.add`). A detached child belongs to the session at the top of
   the tree and ends with that.
4. `delegate` returns the child's ending when it is public, and never waits for its cleanup. The child's ending is
   published to the parent's watchers while the parent is there; afterwards the parent's terminal event names it
   (`Ended.children`), because nothing of a run may follow its end. A detached child's ending comes to the session at
   the top as a message (`reporting`).
5. `delegate(timeout=)` is the child's deadline: the child ends `timed_out`, and `delegate` returns that. An agent's own
   timeout around `delegate` is a stop: no code will read the result.
"""

from typing import Protocol

from interlock.agent.message import Child
from interlock.agent.verbs import Delegate
from interlock.core.errors import BadInput, Refused
from interlock.core.names import Effect, Ending, KnownPhase, RunId, RunKind, Strategy
from interlock.core.outcome import Cause, Outcome
from interlock.runtime.arrival import Arrival
from interlock.runtime.clock import Clock
from interlock.runtime.ending import Endings
from interlock.runtime.live import LiveRun, own_session
from interlock.runtime.registry import Registry
from interlock.runtime.settings import CHILDREN, DEPTH


class Starter(Protocol):
    """Starts the task of a message."""

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

    async def delegate(self, parent: LiveRun, verb: Delegate) -> Child:
        """Begin a child and, unless it is detached, wait for its ending."""
        child, detached = self._begin(parent, verb), verb.detached
        with parent.limits.rest(self._clock.now, child, KnownPhase.CHILD):
            try:
                await (child.admittance.acked if detached else child.ended).wait()
            except BaseException:
                # The agent gave up waiting, by a timeout of its own for example: no code will read the result.
                if not detached:
                    self._endings.end(child, Cause(ending=Ending.STOPPED, by=parent.principal))
                raise
        # The child's result is an effect on its parent: a superseded parent must not receive it (race 46).
        parent.fence.check(Effect.CHILD)
        if child.admittance.problem is not None:
            raise child.admittance.problem.with_traceback(None)
        # An announced child's ending comes by its announcement alone, so it is `pending` here even if it is over.
        outcome = None if child.arrival.announce is not None else child.outcome_now
        if outcome is None:
            return Child(run_id=child.id, outcome=Outcome(run_id=child.id, ending=Ending.PENDING))
        return Child(run_id=child.id, outcome=outcome, text=outcome.text)

    def _begin(self, parent: LiveRun, verb: Delegate) -> LiveRun:
        """Admit a child: fence, limits and registration in one synchronous step."""
        parent.fence.check(Effect.CHILD)
        if verb.agent not in self._names:
            known = ", ".join(self._names) or "none"
            raise BadInput(f"no agent {verb.agent!r} to delegate to; open_control(agents=...) has {known}")
        self._room(parent, verb.detached)
        run_id = RunId(self._registry.new_id("r"))
        session = self._registry.session(own_session(run_id))
        # The id is new, so the store cannot have this session. Owner and rights are the parent's from the first step.
        session.loaded = True
        session.owner, session.stored = parent.session.owner, parent.session.stored
        session.home = parent.ties.home
        child = LiveRun(
            run_id,
            session,
            Arrival(
                principal=parent.principal,
                text=verb.text,
                kind=RunKind.CHILD,
                method="delegate",
                strategy=Strategy.INTERRUPT,
                deadline=verb.deadline,
                admitted_at=self._clock.wall(),
                # A late stop that spares the parent by the order of its channel spares the child too.
                order=parent.arrival.order,
                agent=verb.agent,
                announce=verb.announce,
            ),
            parent=parent,
            detached=verb.detached,
        )
        return self._stage.begin(child)

    def _room(self, parent: LiveRun, detached: bool) -> None:
        depth, root, above = 1, parent, parent.ties.parent
        while above is not None:
            depth, root, above = depth + 1, root if root.ties.detached else above, above.ties.parent
        if depth > DEPTH:
            raise Refused(f"this run is {DEPTH} generations below the first, the most there may be; do the work here")
        alive = len(parent.ties.home.detached or ()) if detached else root.ties.descendants
        if alive >= CHILDREN:
            kind = "detached in its session" if detached else "alive in its tree"
            raise Refused(f"{CHILDREN} children are {kind}, the most there may be; wait for some to end")
