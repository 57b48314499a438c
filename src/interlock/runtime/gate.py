"""The pre-tool gate: current? allowed? on record? Only then is a body permitted.

1. It fails closed: whatever goes wrong before the permit, the body does not run.
2. A call's start is committed before its body begins, so that a crash can never hide one.
3. The last fence is in the same synchronous step as the permit; the next is in the step that records the result.
"""

from collections import deque
from collections.abc import Sequence

import anyio

from interlock.core.decision import Decision, ToolRow
from interlock.core.errors import Unavailable
from interlock.core.events import Json, Tool
from interlock.core.names import CallId, Effect, ToolState
from interlock.runtime.outlet import Outlet
from interlock.runtime.registry import LiveRun, ToolCall
from interlock.runtime.settings import TOOLS_LISTED, Settings
from interlock.stores.base import Store, StoreFailed, Ticket


class Gate:
    """The gate of one run."""

    def __init__(self, run: LiveRun, outlet: Outlet, store: Store, settings: Settings) -> None:
        self._run = run
        self._outlet = outlet
        self._store = store
        self._settings = settings

    def record(self, wanted: Sequence[tuple[str, Json]]) -> list[ToolCall]:
        """Write down calls that are about to be made; from here on each will have a result."""
        run = self._run
        self._outlet.close_block(Effect.TOOL)
        if run.calls is None:
            run.calls = {}
        calls = []
        for name, arguments in wanted:
            run.calls_made += 1
            call = ToolCall(CallId(f"{run.id}.{run.calls_made}"), name, arguments)
            run.calls[call.id] = call
            calls.append(call)
            self._tell(Effect.TOOL, call, arguments=arguments)
        return calls

    async def permit(self, call: ToolCall) -> None:
        """Let a recorded call begin, or raise: Stale if the run fell, Unavailable if its start cannot be kept."""
        run = self._run
        run.fence.check(Effect.TOOL)
        ticket = self._store.decide(Decision(tools=(self._row(call, ToolState.RUNNING),)))
        if not await committed(self._store, ticket, self._settings.commit_seconds):
            self.finish(call, ToolState.FAILED, error="not started: the store did not record it in time")
            raise Unavailable(f"tool {call.name} was not started: the store did not record it in time; try again")
        run.fence.check(Effect.TOOL)  # and in the same step:
        call.state = ToolState.RUNNING
        self._tell(Effect.TOOL, call)

    def finish(self, call: ToolCall, state: ToolState, *, result: Json | None = None, error: str | None = None) -> None:
        """Record what became of a call, or raise Stale: then its result was written when the run fell."""
        run = self._run
        run.fence.check(Effect.RESULT)
        assert run.calls is not None
        if run.calls.pop(call.id, None) is None:
            return  # it has a result already
        call.state = state
        if run.finished is None:
            run.finished = deque(maxlen=TOOLS_LISTED)
        run.finished.append(call)
        self._store.decide(Decision(tools=(self._row(call, state),)))  # not waited for: the start is what must be in
        self._tell(Effect.RESULT, call, result=result, error=error)

    def _row(self, call: ToolCall, state: ToolState) -> ToolRow:
        return ToolRow(call_id=call.id, run_id=self._run.id, name=call.name, arguments=call.arguments, state=state)

    def _tell(
        self,
        effect: Effect,
        call: ToolCall,
        *,
        arguments: Json | None = None,
        result: Json | None = None,
        error: str | None = None,
    ) -> None:
        told = Tool(call_id=call.id, name=call.name, state=call.state, arguments=arguments, result=result, error=error)
        self._outlet.emit(effect, told)


async def committed(store: Store, ticket: Ticket, seconds: float) -> bool:
    """Return whether a decision is in the store, waiting at most so long and then making it conclusive."""
    if not await ticket.within(seconds):
        with anyio.CancelScope(shield=True):
            await store.withdraw(ticket)
    try:
        await ticket
    except StoreFailed:
        return False
    return True
