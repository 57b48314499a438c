"""The verbs of a run, on control's side, for both drivers.

1. Each verb reads the fence in the step that admits its effect, with no await between. Nothing here trusts its caller
   to have read the fence: a host may not know of the fall yet, and code may call a verb late (races 11 and 35).
2. Arguments and answers are plain values. The inline port calls these methods directly, and a host's messages end in
   the same methods. So fence, gate and outlet exist once, and the contract suites run unchanged on both drivers.
3. A host that knows of the fall refuses its agent's verbs itself, which saves messages. A host that does not know yet
   sends them, and they are refused here and counted in the receipt.
4. Steering has two steps in a host. Inline, the step that hands a message to the agent also absorbs it. A message to a
   host may never arrive: the host gets what is `offered`, says which it handed to its agent, and `take_in` absorbs
   those. If the host dies or the run falls between, the message waits as before.
"""

import asyncio
from collections.abc import Collection, Sequence

from interlock.core.errors import BadInput
from interlock.core.events import Entry, Json, Phase, Progress, Typing
from interlock.core.names import Announce, CallId, Effect, KnownPhase, RunId, ToolState
from interlock.core.story import transcript
from interlock.processes.base import SpawnOrder
from interlock.runtime.approvals import Approvals
from interlock.runtime.crew import Crew
from interlock.runtime.delegation import Delegation
from interlock.runtime.fall import Fall
from interlock.runtime.feed import whole_log
from interlock.runtime.gate import Gate
from interlock.runtime.holds import Hold, Holds, Place
from interlock.runtime.inbox import Inbox
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.run import Message, Part
from interlock.runtime.spawning import Running, Spawning
from interlock.runtime.ties import Child
from interlock.runtime.tool import ToolSpec
from interlock.runtime.work import ToolCall
from interlock.stores.base import Log


class Verbs:
    """The verbs of one run."""

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
        log: Log,
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
        self._log = log
        self._loop = asyncio.get_running_loop()

    @property
    def current(self) -> bool:
        """True while the run may have effects."""
        return self.run.fence.cause is None

    def touch(self) -> None:
        """Note a sign of life; the idle limit counts from here."""
        self.run.limits.touched = self._loop.time()
        self.run.limits.heard = True

    def spend_refusal(self) -> bool:
        """Count a refused effect of a fallen run; return True when it has used up its budget (REFUSALS).

        Its body is then not resumed any more, even within its grace: a loop that swallows Stale would spin until then.
        """
        self.run.work.refusal_budget -= 1
        return self.run.work.refusal_budget < 0

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
        self.run.limits.leave(Phase)
        if name is not None:
            self.run.limits.enter(Phase, name)
        return before

    def blame(self, phase: str, error: BaseException) -> None:
        """Remember the innermost phase that an error came from."""
        if self.run.blamed is None or self.run.blamed[1] is not error:
            self.run.blamed = (phase, error)

    # People, children, holds

    async def steered(self) -> list[Message]:
        offered = self.offered()
        self.take_in([message.run_id for message in offered])
        return offered

    def offered(self) -> list[Message]:
        """Return the messages steered to this run; `take_in` makes them part of it."""
        run = self.run
        run.fence.check(Effect.PHASE)
        return [
            Message(
                text=other.arrival.text,
                by=other.principal,
                session=run.session.id,
                run_id=other.id,
                parts=(Part(text=other.arrival.text, by=other.principal, child=other.ties.announces),),
                instructions=other.arrival.instructions,
                child=other.ties.announces,
            )
            for other in self._inbox.steered(run)
        ]

    def take_in(self, taken: Collection[RunId]) -> None:
        """Absorb messages that the agent was handed, as far as they are still steered to this run."""
        self.run.fence.check(Effect.PHASE)
        self._inbox.absorb(self.run, [other for other in self._inbox.steered(self.run) if other.id in taken])

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
            # Fence and take in one step: a run that fell after the grant must not keep the hold.
            self.run.fence.check(Effect.HOLD)
            return self._holds.take(place)
        # A place that was granted in the tick of the cancel is passed on too (race 33).
        except BaseException:
            self._holds.leave(place)
            raise

    async def _rest(self, place: Place) -> None:
        """Wait for a hold; the idle limit rests meanwhile."""
        self.run.limits.resting += 1
        self.run.limits.enter(place, KnownPhase.HOLD)
        try:
            await place.woken.wait()
        finally:
            self.run.limits.resting -= 1
            self.run.limits.leave(place)
            self.run.limits.touched = self._loop.time()

    def release(self, name: str) -> None:
        """Free a hold. After the fall this does nothing: the hold stays until the run is drained."""
        place = (self.run.work.holds or {}).get(name)
        if place is None or not self.current:
            return
        draining = [fall for fall in self.run.ties.child_falls or () if not fall.drained.is_set()]
        # A child that was cut may still clean up under the hold; the hold is freed when the child is drained.
        if draining:
            place.leaving = True
            self.crew.start(self._release_behind(place, draining), name=f"release {name}")
        else:
            self._holds.leave(place)

    async def _release_behind(self, place: Place, draining: Sequence[Fall]) -> None:
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
        # A call that is not open any more has a result already.
        if (open_call := (self.run.work.calls or {}).get(call)) is not None:
            self._gate.finish(open_call, state, result=result, error=error)

    def give_up(self, call: CallId) -> None:
        """Close a call that the agent no longer waits for. If the run fell, the fall has closed it already."""
        open_call = (self.run.work.calls or {}).get(call)
        if open_call is not None and self.current:
            self._gate.give_up(open_call)

    def is_pending(self, call: CallId) -> bool:
        """Return True for a recorded call of a current run that is not permitted yet."""
        open_call = (self.run.work.calls or {}).get(call)
        return self.current and open_call is not None and open_call.state is ToolState.PENDING

    def open_call(self, call_id: CallId) -> ToolCall:
        self.run.fence.check(Effect.TOOL)
        calls = self.run.work.calls or {}
        if call_id not in calls:
            raise BadInput(f"call {call_id} is not open: it has a result already")
        return calls[call_id]

    # Reading

    async def history(self) -> list[Entry]:
        session = self.run.session
        log = await whole_log(self._log, session.id, after=session.since)
        return [entry for entry in transcript(log) if not entry.hidden]
