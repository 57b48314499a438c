"""The inline side of a run's verbs: straight into the outlet and the gate of its LiveRun, on control's own loop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from interlock.core.errors import BadInput, Stale
from interlock.core.events import Entry, Json, Phase, Progress, Typing, transcript
from interlock.core.names import CallId, Effect, ToolState
from interlock.processes.base import SpawnOrder
from interlock.processes.workers import pack
from interlock.runtime.approvals import Approvals
from interlock.runtime.crew import Crew
from interlock.runtime.delegation import Child, Delegation
from interlock.runtime.gate import Gate
from interlock.runtime.holds import Hold, Holds, Place
from interlock.runtime.inbox import Inbox
from interlock.runtime.inline import Dropped, Leash, ThreadBody, Threads
from interlock.runtime.live import Body, Falling, LiveRun, ToolCall
from interlock.runtime.outlet import Outlet
from interlock.runtime.run import Message, Part
from interlock.runtime.spawning import Running, Spawning
from interlock.runtime.tool import ToolSpec
from interlock.runtime.watch import whole_log
from interlock.stores.base import Store


class InlinePort:
    """What an agent in this loop reaches of control."""

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
        threads: Threads,
        spawning: Spawning,
    ) -> None:
        self._run = run
        self._outlet = outlet
        self._gate = gate
        self._approvals = approvals
        self._delegation = delegation
        self._inbox = inbox
        self._holds = holds
        self._store = store
        self._crew = crew
        self._threads = threads
        self._spawning = spawning
        self._loop = asyncio.get_running_loop()

    @property
    def current(self) -> bool:
        return self._run.fence.cause is None

    async def checkpoint(self) -> None:
        """Let others run, then see to it that a body which goes on trying after its end is not resumed for ever."""
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(
                "a run's verbs belong to the loop that control runs on; "
                "from a thread use asyncio.run_coroutine_threadsafe(run.say(...), loop)"
            )
        self._run.touched = self._loop.time()
        await asyncio.sleep(0)
        if self._run.fallen:
            self._spend_refusal()

    def _spend_refusal(self) -> None:
        self._run.refusal_budget -= 1
        if self._run.refusal_budget < 0:
            for body in self._run.bodies or ():
                body.drop()

    def check(self, effect: Effect) -> None:
        self._run.fence.check(effect)

    def delta(self, text: str) -> None:
        self._outlet.delta(text)

    def block(self, text: str) -> None:
        self._outlet.block(text)

    def typing(self, on: bool) -> None:
        self._outlet.emit(Effect.TYPING, Typing(on=on))

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        self._outlet.emit(Effect.PROGRESS, Progress(text=text, done=done, total=total))

    def phase(self, name: str | None) -> str | None:
        before = self._run.phase
        self._outlet.emit(Effect.PHASE, Phase(name=name))
        self._run.phase = name
        self._run.provider_started |= name == "provider"
        return before

    def blame(self, phase: str, error: BaseException) -> None:
        """Remember the innermost phase an error came from."""
        if self._run.blamed is None or self._run.blamed[1] is not error:
            self._run.blamed = (phase, error)

    # People, children, holds

    def steered(self) -> list[Message]:
        run = self._run
        run.fence.check(Effect.PHASE)
        return [
            Message(
                text=taken.text,
                by=taken.principal,
                session=run.session.id,
                run_id=taken.id,
                parts=(Part(text=taken.text, by=taken.principal),),
            )
            for taken in self._inbox.steered(run)
        ]

    async def ask(self, text: str, choices: tuple[str, ...] | None, seconds: float | None) -> bool | str:
        self._outlet.close_block(Effect.QUESTION)
        return await self._approvals.answered(self._approvals.open(self._run, text, choices, seconds))

    async def delegate(self, agent: str, text: str, deadline: float | None, detached: bool) -> Child:
        return await self._delegation.delegate(self._run, agent, text, deadline, detached)

    async def hold(self, name: str) -> Hold:
        self._run.fence.check(Effect.HOLD)
        place = self._holds.enter(self._run, name)
        try:
            if place.granted is None:
                await self._rest(place.woken)
            self._run.fence.check(Effect.HOLD)  # and in the same step:
            return self._holds.take(place)
        except BaseException:
            self._holds.leave(place)  # also one that was granted in this very tick
            raise

    async def _rest(self, event: asyncio.Event) -> None:
        """Wait for others; that is no silence of this run's own."""
        self._run.resting += 1
        try:
            await event.wait()
        finally:
            self._run.resting -= 1
            self._run.touched = self._loop.time()

    def release(self, name: str) -> None:
        """Let a hold go. After the fall it is kept until nothing of the run is left."""
        place = (self._run.holds or {}).get(name)
        if place is None or not self.current:
            return
        draining = [fall for fall in self._run.child_falls or () if not fall.drained.is_set()]
        if draining:  # a child that was cut may still work under the hold
            place.leaving = True
            self._crew.start(self._release_behind(place, draining), name=f"release {name}")
        else:
            self._holds.leave(place)

    async def _release_behind(self, place: Place, draining: Sequence[Falling]) -> None:
        for fall in draining:
            await fall.drained.wait()
        if self.current and place.leaving:
            self._holds.leave(place)

    # Processes

    async def spawn(self, order: SpawnOrder) -> Running:
        return await self._spawning.spawn(self._run, self._outlet, order)

    # Tools

    def record(self, wanted: Sequence[tuple[str, Json, bool]]) -> list[CallId]:
        return [call.id for call in self._gate.record(wanted)]

    async def permit(self, call: CallId) -> None:
        await self._gate.permit(self._call(call))

    def finish(self, call: CallId, state: ToolState, result: Json | None, error: str | None) -> None:
        self._run.fence.check(Effect.RESULT)
        if (open_call := (self._run.calls or {}).get(call)) is not None:  # else it has a result already
            self._gate.finish(open_call, state, result=result, error=error)

    def give_up(self, call: CallId) -> None:
        """The agent waits for a call no longer. If the run fell, it has a result already."""
        open_call = (self._run.calls or {}).get(call)
        if open_call is not None and self.current:
            self._gate.give_up(open_call)

    def _call(self, call_id: CallId) -> ToolCall:
        self._run.fence.check(Effect.TOOL)
        calls = self._run.calls or {}
        if call_id not in calls:
            raise BadInput(f"call {call_id} is not open: it has a result already")
        return calls[call_id]

    async def in_place(self, call: CallId, spec: ToolSpec, body: Coroutine[Any, Any, Any]) -> Any:
        """Run a tool's body in the calling task; in a task the agent made itself it gets a leash of its own."""
        task = asyncio.current_task()
        for other in self._run.bodies or ():
            if isinstance(other, Leash) and other.holds(task):
                other.grace = max(other.grace, spec.grace)
                return await body
        leash = Leash(body, name=f"tool {spec.name}", call=self._call(call), grace=spec.grace)
        self._add(leash)
        try:
            return await leash
        except Dropped:
            raise Stale(f"run {self._run.id} has ended; its tool {spec.name} was not resumed") from None

    async def in_thread(self, call: CallId, name: str, work: Callable[[], Any]) -> Any:
        body = ThreadBody(f"thread of tool {name}", self._call(call))
        self._threads.start(work, body)
        self._add(body)
        await body.done.wait()
        if body.error is not None:
            raise body.error
        return body.value

    def pack(self, function: Callable[..., Any], arguments: dict[str, Any], name: str) -> bytes:
        return pack(function, arguments, name)

    async def in_worker(self, call: CallId, work: bytes) -> Any:
        self._call(call)
        return await self._spawning.in_worker(self._run, work)

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run bodies next to each other, each a root task on a leash of its own; wait for all."""
        leashes = []
        for call, spec, body in bodies:
            leash = Leash(body, name=f"tool {spec.name}", call=self._call(call), grace=spec.grace)
            self._add(leash)
            leashes.append(leash)
            self._crew.start(_quietly(leash), name=f"{self._run.id} {spec.name}")
        try:
            for leash in leashes:
                await leash.done.wait()
        except BaseException:
            for leash in leashes:
                leash.cut()  # the agent gave the batch up, or the run fell: nobody waits for them any more
            raise

    def _add(self, body: Body) -> None:
        """Let the fall know what to cut; bodies that are done make room, all but the agent's own."""
        bodies = self._run.bodies
        assert bodies is not None
        bodies[1:] = [other for other in bodies[1:] if not other.done.is_set()]
        bodies.append(body)

    # Reading

    async def history(self) -> list[Entry]:
        session = self._run.session
        log = await whole_log(self._store, session.id, after=session.since)
        return [entry for entry in transcript(log) if not entry.hidden]


async def _quietly(leash: Leash) -> None:
    """Drive a side body to its end; what it raised is in its result, or its run has fallen."""
    try:
        await leash
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit in a root task would stop the embedder's loop
        return
