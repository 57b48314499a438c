"""The pre-tool gate: current? allowed? on record? Only then is a body permitted.

1. It fails closed: whatever goes wrong before the permit, the body does not run.
2. A call's start is committed before its body begins, so that a crash can never hide one.
3. The last fence is in the same synchronous step as the permit; the next is in the step that records the result.
"""

from collections import deque
from collections.abc import Sequence

from interlock.core.decision import Decision, ToolRow, Writer
from interlock.core.errors import BadInput, Denied, Refused, Unavailable
from interlock.core.events import Json, Tool
from interlock.core.names import CallId, Effect, KnownPhase, QuestionState, ToolState
from interlock.core.projection import tool_words
from interlock.runtime.approvals import Approvals, Policy
from interlock.runtime.live import LiveRun, ToolCall
from interlock.runtime.outlet import Outlet
from interlock.runtime.settings import OPEN_CALLS, TOOLS_LISTED, Settings
from interlock.stores.base import Store, committed


class Gate:
    """The gate of one run."""

    def __init__(
        self, run: LiveRun, outlet: Outlet, store: Store, settings: Settings, approvals: Approvals, policy: Policy
    ) -> None:
        self._run = run
        self._outlet = outlet
        self._approvals = approvals
        self._policy = policy
        self._store = store
        self._settings = settings

    def record(self, wanted: Sequence[tuple[str, Json, bool]]) -> list[ToolCall]:
        """Write down calls that are about to be made; from here on each will have a result."""
        run = self._run
        self._outlet.close_block(Effect.TOOL)
        if run.calls is None:
            run.calls = {}
        if len(run.calls) + len(wanted) > OPEN_CALLS:
            raise Refused(f"this run would have more than {OPEN_CALLS} tool calls open; wait for some to end")
        calls = []
        for name, arguments, asks in wanted:
            run.calls_made += 1
            call = ToolCall(CallId(f"{run.id}.{run.calls_made}"), name, arguments, asks=asks)
            run.calls[call.id] = call
            calls.append(call)
            self._tell(Effect.TOOL, call, arguments=arguments)
        return calls

    async def permit(self, call: ToolCall) -> None:
        """Let a recorded call begin, or raise: Stale if the run fell, Denied, or Unavailable if it cannot be kept."""
        run = self._run
        run.fence.check(Effect.TOOL)
        _need_pending(call)
        if self._policy.asks(call.name, marked=call.asks):
            await self._be_allowed(call)
            run.fence.check(Effect.TOOL)  # the answer may be older than the end
        ticket = self._store.decide(self._written(call, ToolState.RUNNING))
        if not await committed(self._store, ticket, self._settings.commit_seconds):
            self.finish(call, ToolState.FAILED, error="not started: the store did not record it in time")
            raise Unavailable(f"tool {call.name} was not started: the store did not record it in time; try again")
        run.fence.check(Effect.TOOL)  # and in the same step:
        _need_pending(call)  # it may have been given up, or permitted, while it was being written
        call.state = ToolState.RUNNING
        run.enter(call, KnownPhase.TOOL)
        if run.begun is None:
            run.begun = {}
        if len(run.begun) < TOOLS_LISTED:
            run.begun[call.name] = None
        self._tell(Effect.TOOL, call)

    async def _be_allowed(self, call: ToolCall) -> None:
        """Ask a person whether a call may begin."""
        text = f"Allow {call.name}?"
        question = self._approvals.open(self._run, text, None, None, tool=call.name, arguments=call.arguments)
        call.question = question
        if await self._approvals.answered(question):
            return
        why = f"denied by {question.by}" if question.by else "nobody allowed it in time"
        self.finish(call, ToolState.SKIPPED, error=f"not started: {why}")
        raise Denied(f"tool {call.name} was not started: {why}; go on without it")

    def give_up(self, call: ToolCall) -> None:
        """The agent waits for a call no longer; its result says so at once, and nobody need allow it any more."""
        if call.question is not None:
            self._approvals.close(call.question, QuestionState.VOID)
        state = ToolState.SKIPPED if call.state is ToolState.PENDING else ToolState.INTERRUPTED
        self.finish(call, state, error=tool_words(state, why="given up by its agent"))

    def finish(self, call: ToolCall, state: ToolState, *, result: Json | None = None, error: str | None = None) -> None:
        """Record what became of a call, or raise Stale: then its result was written when the run fell."""
        run = self._run
        run.fence.check(Effect.RESULT)
        assert run.calls is not None
        if run.calls.pop(call.id, None) is None:
            return  # it has a result already
        run.leave(call)
        call.state = state
        if run.finished is None:
            run.finished = deque(maxlen=TOOLS_LISTED)
        run.finished.append(call)
        self._tell(Effect.RESULT, call, result=result, error=error)  # first: the log has it when the store has the end
        self._store.decide(self._written(call, state))  # not waited for: the start is what must be in
        call.arguments = Json("")  # they are in the log; what receipts list is kept for long

    def _written(self, call: ToolCall, state: ToolState) -> Decision:
        """What is kept of a call, under the writer right: where another node has the session, it is refused."""
        run = self._run
        assert run.generation is not None
        row = ToolRow(call_id=call.id, run_id=run.id, name=call.name, arguments=call.arguments, state=state)
        taken = [part for part in run.absorbed or () if part.alias_ticket is not None and not part.alias_ticket.inside]
        return Decision(
            writer=Writer(run.session.id, run.generation),
            tools=(row,),
            aliases=tuple((part.id, run.id) for part in taken),  # a crash must not find the call without its message
        )

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


def _need_pending(call: ToolCall) -> None:
    if call.state is not ToolState.PENDING:
        raise BadInput(f"call {call.id} is {call.state}: it cannot begin")
