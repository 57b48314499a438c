"""The verbs of a run, on control's side: one handler for each, the same for every driver.

1. Each handler reads the fence in the step that admits its effect, with no await between. No handler trusts its caller
   to have read the fence: a host may not know of the fall yet, and code may call a verb late (races 11 and 35).
2. The inline port calls a handler directly, and a host's verb ends in the same one. So fence, gate and outlet exist
   once, and the contract suites run unchanged on both drivers.
3. A host that knows of the fall refuses its agent's verbs itself, which saves messages. A host that does not know yet
   sends them, and they are refused here and counted in the receipt.
4. Steering has two verbs. `Check` returns what is offered, and `Took`, in the step that hands the messages to the
   agent, absorbs them. Inline both are one step. A message to a host may never arrive: if the host dies or the run
   falls between the two, the messages wait as before.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interlock.agent import verbs
from interlock.agent.crew import Crew
from interlock.agent.message import Child, Hold, Message, Part
from interlock.agent.order import Finished
from interlock.agent.verbs import AgentVerb
from interlock.core.errors import BadInput
from interlock.core.events import Entry, Phase, Progress, Typing
from interlock.core.names import CallId, Effect, KnownPhase, RunId, ToolState
from interlock.core.story import transcript
from interlock.runtime.approvals import Approvals
from interlock.runtime.delegation import Delegation
from interlock.runtime.fall import Fall
from interlock.runtime.feed import whole_log
from interlock.runtime.gate import Gate
from interlock.runtime.holds import Holds, Place
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.spawning import Spawned, Spawning
from interlock.runtime.steering import Steering
from interlock.runtime.work import ToolCall
from interlock.stores.base import Log


class Violation(Exception):
    """An agent's side broke the protocol. Only a host can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of control that the verbs of every run reach."""

    approvals: Approvals
    delegation: Delegation
    steering: Steering
    holds: Holds
    spawning: Spawning
    crew: Crew
    log: Log


class Acting:
    """One run whose agent acts: the parts of control, and what the agent's side has numbered."""

    __slots__ = ("gate", "holding", "now", "offered", "on_exit", "outlet", "parts", "processes", "reading", "run")

    def __init__(self, run: LiveRun, outlet: Outlet, gate: Gate, parts: Parts) -> None:
        self.run = run
        self.outlet = outlet
        self.gate = gate
        self.parts = parts
        self.now = asyncio.get_running_loop().time
        self.holding: dict[int, Place] = {}
        # Steered messages on their way to the agent.
        self.offered: dict[int, tuple[RunId, ...]] = {}
        self.processes: dict[int, Spawned] = {}
        # The driver is told when a process has exited: its number, its status, and whether its timeout passed.
        self.on_exit: Callable[[int, int | None, bool], None] = lambda *_: None
        # One history at a time, since each may be the whole of a long session.
        self.reading: asyncio.Lock | None = None

    @property
    def current(self) -> bool:
        """True while the run may have effects."""
        return self.run.fence.cause is None

    def open_call(self, call_id: CallId) -> ToolCall:
        """Return an open call of a current run."""
        self.run.fence.check(Effect.TOOL)
        calls = self.run.work.calls or {}
        if call_id not in calls:
            raise BadInput(f"call {call_id} is not open: it has a result already")
        return calls[call_id]

    def process(self, number: int) -> Spawned:
        """Return a process by the number that the agent's side gave it."""
        if number not in self.processes:
            raise BadInput(f"this run has no process {number} to ask about")
        return self.processes[number]


# Saying


def say(acting: Acting, verb: verbs.Say) -> None:
    """Publish a piece of the reply."""
    acting.outlet.delta(verb.text)


def post(acting: Acting, verb: verbs.Post) -> None:
    """Publish a whole block."""
    acting.outlet.block(verb.text)


def set_typing(acting: Acting, verb: verbs.SetTyping) -> None:
    """Publish that something is coming, or no longer."""
    acting.outlet.emit(Effect.TYPING, Typing(on=verb.on))


def set_progress(acting: Acting, verb: verbs.SetProgress) -> None:
    """Publish how far long work has come."""
    acting.outlet.emit(Effect.PROGRESS, Progress(text=verb.text, done=verb.done, total=verb.total))


def set_phase(acting: Acting, verb: verbs.SetPhase) -> None:
    """Publish what the run is doing, and remember it for a timeout."""
    run, name = acting.run, verb.name
    acting.outlet.emit(Effect.PHASE, Phase(name=name))
    run.phase = name
    run.limits.leave(Phase)
    if name is not None:
        run.limits.enter(Phase, name)


async def read_history(acting: Acting, _: verbs.ReadHistory) -> list[Entry]:
    """Read the conversation so far."""
    session = acting.run.session
    if acting.reading is None:
        acting.reading = asyncio.Lock()
    async with acting.reading:
        log = await whole_log(acting.parts.log, session.id, after=session.since)
    return [entry for entry in transcript(log) if not entry.hidden]


# Steering, people, children, holds


async def check(acting: Acting, verb: verbs.Check) -> list[Message]:
    """Offer the messages that are steered to this run and not on their way to its agent already."""
    run = acting.run
    run.fence.check(Effect.PHASE)
    on_their_way = {run_id for ids in acting.offered.values() for run_id in ids}
    offered = [
        Message(
            text=other.arrival.text,
            by=other.principal,
            session=run.session.id,
            run_id=other.id,
            parts=(Part(text=other.arrival.text, by=other.principal, child=other.ties.announces),),
            instructions=other.arrival.instructions,
            child=other.ties.announces,
        )
        for other in acting.parts.steering.steered(run)
        if other.id not in on_their_way
    ]
    if offered:
        acting.offered[verb.number] = tuple(message.run_id for message in offered)
    return offered


def took(acting: Acting, verb: verbs.Took) -> None:
    """Absorb messages that the agent was handed, as far as they are still steered to this run."""
    run, taken = acting.run, acting.offered.pop(verb.number, ())
    # Messages that the agent was not handed are offered again, which is no effect.
    if verb.handed:
        run.fence.check(Effect.PHASE)
        # Also while the run asks a person, when nothing new is offered: the agent has these.
        waiting = [other for other in run.session.queue or () if other.admittance.steers is run]
        acting.parts.steering.absorb(run, [other for other in waiting if other.id in taken])


async def ask(acting: Acting, verb: verbs.Ask) -> bool | str:
    """Open a question and wait for its answer."""
    acting.outlet.close_block(Effect.QUESTION)
    approvals = acting.parts.approvals
    return await approvals.answered(approvals.open(acting.run, verb.text, verb.choices, verb.seconds))


async def delegate(acting: Acting, verb: verbs.Delegate) -> Child:
    """Begin a child and, unless it is detached, wait for its ending."""
    return await acting.parts.delegation.delegate(acting.run, verb)


async def take_hold(acting: Acting, verb: verbs.TakeHold) -> Hold:
    """Wait for a hold, and take it."""
    run, holds = acting.run, acting.parts.holds
    run.fence.check(Effect.HOLD)
    place = holds.enter(run, verb.name)
    try:
        if place.granted is None:
            with run.limits.rest(acting.now, place, KnownPhase.HOLD):
                await place.woken.wait()
        # Fence and take in one step: a run that fell after the grant must not keep the hold.
        run.fence.check(Effect.HOLD)
        held = holds.take(place)
    # A place that was granted in the tick of the cancel is passed on too (race 33).
    except BaseException:
        holds.leave(place)
        raise
    acting.holding[verb.number] = place
    return held


def release(acting: Acting, verb: verbs.Release) -> None:
    """Free a hold. After the fall this does nothing: the hold stays until the run is drained."""
    place = acting.holding.pop(verb.number, None)
    if place is None or not acting.current:
        return
    # A child that was cut may still clean up under the hold; the hold is freed when the child is drained.
    if _draining(acting):
        place.leaving = True
        acting.parts.crew.start(_release_behind(acting, place), name=f"release {place.name}")
    else:
        acting.parts.holds.leave(place)


def _draining(acting: Acting) -> list[Fall]:
    return [fall for fall in acting.run.ties.child_falls or () if not fall.drained.is_set()]


async def _release_behind(acting: Acting, place: Place) -> None:
    # Look again after each: the hold may have been taken and released once more, over another child.
    while draining := _draining(acting):
        await draining[0].drained.wait()
    if acting.current and place.leaving:
        acting.parts.holds.leave(place)


# Processes


async def start_process(acting: Acting, verb: verbs.StartProcess) -> int | None:
    """Start a process; return its pid when it runs."""
    process = await acting.parts.spawning.spawn(acting.run, acting.outlet, verb.whole)
    acting.processes[verb.number] = process
    process.on_exit = lambda status, timed_out: acting.on_exit(verb.number, status, timed_out)
    # The process may have exited before it was heard to run.
    process.tell_exit()
    return process.pid


async def wait_process(acting: Acting, verb: verbs.WaitProcess) -> Finished:
    """Wait for the exit of a process."""
    acting.run.fence.check(Effect.RESULT)
    process = acting.process(verb.number)
    finished = await process.wait()
    process.tell_exit()
    return finished


async def read_line(acting: Acting, verb: verbs.ReadLine) -> bytes | None:
    """Wait for the next line of a process."""
    acting.run.fence.check(Effect.RESULT)
    line = await acting.process(verb.number).line()
    acting.run.fence.check(Effect.RESULT)
    return line


def read_output(acting: Acting, verb: verbs.ReadOutput) -> str:
    """Return the output of a process so far."""
    return acting.process(verb.number).output


async def stop_process(acting: Acting, verb: verbs.StopProcess) -> None:
    """End a process, and wait until it was seen gone."""
    process = acting.process(verb.number)
    await process.stop()
    process.tell_exit()


def end_process(acting: Acting, verb: verbs.EndProcess) -> None:
    """End a process. One that is not there was never started, or was given up on its way."""
    if (process := acting.processes.get(verb.number)) is not None:
        process.end()


def forget_process(acting: Acting, verb: verbs.ForgetProcess) -> None:
    """Drop a process that the agent has dropped; it goes on."""
    acting.processes.pop(verb.number, None)


# Tools


def record(acting: Acting, verb: verbs.Record) -> None:
    """Record calls; from here on each of them gets a result, whatever happens."""
    acting.run.fence.check(Effect.TOOL)
    last = acting.run.work.calls_made
    for call in verb.calls:
        if call.number <= last:
            raise Violation("it recorded a call under a number that was used before")
        last = call.number
    acting.gate.record(verb.calls)


async def permit(acting: Acting, verb: verbs.Permit) -> None:
    """Wait until a call may begin."""
    await acting.gate.permit(acting.open_call(verb.call))


def finish(acting: Acting, verb: verbs.Finish) -> None:
    """Record the result of a call. A call that is not open any more has a result already."""
    acting.run.fence.check(Effect.RESULT)
    if verb.state not in (ToolState.FINISHED, ToolState.FAILED):
        raise Violation(f"it said that a call is {verb.state}")
    call = (acting.run.work.calls or {}).get(verb.call)
    if call is None:
        return
    if verb.state is ToolState.FINISHED and call.state is ToolState.PENDING:
        raise Violation("it said that a call is finished that was not permitted")
    acting.gate.finish(call, verb.state, result=verb.result, error=verb.error)


def give_up(acting: Acting, verb: verbs.GiveUp) -> None:
    """Close a call that the agent no longer waits for. If the run fell, the fall has closed it already."""
    call = (acting.run.work.calls or {}).get(verb.call)
    if call is not None and acting.current:
        acting.gate.give_up(call)


def end_batch(acting: Acting, _: verbs.EndBatch) -> None:
    """Let the agent go on with the results of a batch, if its run is current."""
    acting.run.fence.check(Effect.RESULT)


HANDLERS: dict[type[AgentVerb], Callable[[Acting, Any], Any]] = {
    verbs.Say: say,
    verbs.Post: post,
    verbs.SetTyping: set_typing,
    verbs.SetProgress: set_progress,
    verbs.SetPhase: set_phase,
    verbs.ReadHistory: read_history,
    verbs.Check: check,
    verbs.Took: took,
    verbs.Ask: ask,
    verbs.Delegate: delegate,
    verbs.TakeHold: take_hold,
    verbs.Release: release,
    verbs.StartProcess: start_process,
    verbs.WaitProcess: wait_process,
    verbs.ReadLine: read_line,
    verbs.ReadOutput: read_output,
    verbs.StopProcess: stop_process,
    verbs.EndProcess: end_process,
    verbs.ForgetProcess: forget_process,
    verbs.Record: record,
    verbs.Permit: permit,
    verbs.Finish: finish,
    verbs.GiveUp: give_up,
    verbs.EndBatch: end_batch,
}
"""One handler for each verb. A handler of a request is a coroutine, except where its answer is there at once."""
