"""What a run may ask of control, wherever its agent runs: each verb passes the fence in the step that admits it.

1. Arguments and answers are plain values. The inline port calls these straight; a host's messages end here as well.
2. Nothing here trusts its caller to have asked whether the run is current.
"""

import asyncio
from collections.abc import Collection, Sequence

from interlock.core.errors import BadInput
from interlock.core.events import Entry, Json, Phase, Progress, Typing, transcript
from interlock.core.names import Announce, CallId, Effect, KnownPhase, RunId, ToolState
from interlock.processes.base import SpawnOrder
from interlock.runtime.approvals import Approvals
from interlock.runtime.crew import Crew
from interlock.runtime.delegation import Delegation
from interlock.runtime.gate import Gate
from interlock.runtime.holds import Hold, Holds, Place
from interlock.runtime.inbox import Inbox
from interlock.runtime.live import Child, Falling, LiveRun, ToolCall
from interlock.runtime.outlet import Outlet
from interlock.runtime.run import Message, Part
from interlock.runtime.spawning import Running, Spawning
from interlock.runtime.tool import ToolSpec
from interlock.runtime.watch import whole_log
from interlock.stores.base import Store


class Verbs:
    """What the agent of one run reaches of control."""

    def __init__(
        self,
        run: LiveRun,
        *,
        outlet: Outlet,
        gate: Gate,
        approvals: Approvals,
        delegation: Delegation,
        inbox: Inbox,
        holds: Holds,
        store: Store,
        crew: Crew,
        spawning: Spawning,
    ) -> None:
        self.run = run
        self.outlet = outlet
        self.crew = crew
        self.spawning = spawning
        self._gate = gate
        self._approvals = approvals
        self._delegation = delegation
        self._inbox = inbox
        self._holds = holds
        self._store = store
        self._loop = asyncio.get_running_loop()

    @property
    def current(self) -> bool:
        """True while the run may have effects."""
        return self.run.fence.cause is None

    def touch(self) -> None:
        """Take notice of a sign of life."""
        self.run.touched = self._loop.time()
        self.run.heard = True

    def spend_refusal(self) -> bool:
        """Count another try of a fallen run; True when it has tried often enough."""
        self.run.refusal_budget -= 1
        return self.run.refusal_budget < 0

    def check(self, effect: Effect) -> None:
        self.run.fence.check(effect)

    def delta(self, text: str) -> None:
        self.outlet.delta(text)

    def block(self, text: str) -> None:
        self.outlet.block(text)

    def typing(self, on: bool) -> None:
        self.outlet.emit(Effect.TYPING, Typing(on=on))

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        self.outlet.emit(Effect.PROGRESS, Progress(text=text, done=done, total=total))

    def phase(self, name: str | None) -> str | None:
        before = self.run.phase
        self.outlet.emit(Effect.PHASE, Phase(name=name))
        self.run.phase = name
        self.run.leave(Phase)
        if name is not None:
            self.run.enter(Phase, name)
        self.run.provider_started |= name == "provider"
        return before

    def blame(self, phase: str, error: BaseException) -> None:
        """Remember the innermost phase an error came from."""
        if self.run.blamed is None or self.run.blamed[1] is not error:
            self.run.blamed = (phase, error)

    # People, children, holds

    async def steered(self) -> list[Message]:
        offered = self.offered()
        self.take_in([message.run_id for message in offered])
        return offered

    def offered(self) -> list[Message]:
        """Return the messages steered to this run; they are part of it once it has taken them in."""
        run = self.run
        run.fence.check(Effect.PHASE)
        return [
            Message(
                text=other.text,
                by=other.principal,
                session=run.session.id,
                run_id=other.id,
                parts=(Part(text=other.text, by=other.principal, child=other.announces),),
                instructions=other.instructions,
                child=other.announces,
            )
            for other in self._inbox.steered(run)
        ]

    def take_in(self, taken: Collection[RunId]) -> None:
        """Make messages that the agent was handed part of this run, those that are still steered to it."""
        self.run.fence.check(Effect.PHASE)
        self._inbox.take_in(self.run, [other for other in self._inbox.steered(self.run) if other.id in taken])

    async def ask(self, text: str, choices: tuple[str, ...] | None, seconds: float | None) -> bool | str:
        self.outlet.close_block(Effect.QUESTION)
        return await self._approvals.answered(self._approvals.open(self.run, text, choices, seconds))

    async def delegate(
        self, agent: str, text: str, deadline: float | None, detached: bool, announce: Announce | None
    ) -> Child:
        return await self._delegation.delegate(self.run, agent, text, deadline, detached, announce)

    async def hold(self, name: str) -> Hold:
        self.run.fence.check(Effect.HOLD)
        place = self._holds.enter(self.run, name)
        try:
            if place.granted is None:
                await self._rest(place)
            self.run.fence.check(Effect.HOLD)  # and in the same step:
            return self._holds.take(place)
        except BaseException:
            self._holds.leave(place)  # also one that was granted in this very tick
            raise

    async def _rest(self, place: Place) -> None:
        """Wait for others; that is no silence of this run's own."""
        self.run.resting += 1
        self.run.enter(place, KnownPhase.HOLD)
        try:
            await place.woken.wait()
        finally:
            self.run.resting -= 1
            self.run.leave(place)
            self.run.touched = self._loop.time()

    def release(self, name: str) -> None:
        """Let a hold go. After the fall it is kept until nothing of the run is left."""
        place = (self.run.holds or {}).get(name)
        if place is None or not self.current:
            return
        draining = [fall for fall in self.run.child_falls or () if not fall.drained.is_set()]
        if draining:  # a child that was cut may still work under the hold
            place.leaving = True
            self.crew.start(self._release_behind(place, draining), name=f"release {name}")
        else:
            self._holds.leave(place)

    async def _release_behind(self, place: Place, draining: Sequence[Falling]) -> None:
        for fall in draining:
            await fall.drained.wait()
        if self.current and place.leaving:
            self._holds.leave(place)

    # Processes

    async def spawn(self, order: SpawnOrder) -> Running:
        return await self.spawning.spawn(self.run, self.outlet, order)

    # Tools

    def record(self, wanted: Sequence[tuple[ToolSpec, Json]]) -> list[CallId]:
        return [call.id for call in self._gate.record([(spec.name, values, spec.asks) for spec, values in wanted])]

    async def permit(self, call: CallId) -> None:
        await self._gate.permit(self.open_call(call))

    def finish(self, call: CallId, state: ToolState, result: Json | None, error: str | None) -> None:
        self.run.fence.check(Effect.RESULT)
        if (open_call := (self.run.calls or {}).get(call)) is not None:  # else it has a result already
            self._gate.finish(open_call, state, result=result, error=error)

    def give_up(self, call: CallId) -> None:
        """The agent waits for a call no longer. If the run fell, it has a result already."""
        open_call = (self.run.calls or {}).get(call)
        if open_call is not None and self.current:
            self._gate.give_up(open_call)

    def is_pending(self, call: CallId) -> bool:
        """True for a call of a current run that is recorded and was not permitted."""
        open_call = (self.run.calls or {}).get(call)
        return self.current and open_call is not None and open_call.state is ToolState.PENDING

    def open_call(self, call_id: CallId) -> ToolCall:
        self.run.fence.check(Effect.TOOL)
        calls = self.run.calls or {}
        if call_id not in calls:
            raise BadInput(f"call {call_id} is not open: it has a result already")
        return calls[call_id]

    # Reading

    async def history(self) -> list[Entry]:
        session = self.run.session
        log = await whole_log(self._store, session.id, after=session.since)
        return [entry for entry in transcript(log) if not entry.hidden]
