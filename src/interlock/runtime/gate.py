"""The gate before every tool: is the run current, is the call allowed, is its start stored? Only then does it begin.

1. The gate fails closed: if anything goes wrong before the permit, the tool's body does not run. If the start is not
   committed in time, the call raises Unavailable.
2. A call's start is committed before its body begins. Otherwise a crash could hide a call that had an effect, and the
   call could be made again.
3. The fence is tested in the step that grants the permit, and again in the step that records the result. The result is
   handed to the store and not waited for.
"""

from collections.abc import Sequence

from interlock.core.decision import Decision, ToolRow, Writer
from interlock.core.errors import BadInput, Denied, Refused, Unavailable
from interlock.core.events import Json, Tool
from interlock.core.names import Effect, KnownPhase, QuestionState, ToolState
from interlock.core.projection import tool_words
from interlock.runtime.approvals import Approvals, Policy
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.settings import OPEN_CALLS, Settings
from interlock.runtime.work import ToolCall
from interlock.stores.base import Store, commit_in_time


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
        """Record calls that the agent is about to make; from here on each of them gets a result, whatever happens."""
        run = self._run
        self._outlet.close_block(Effect.TOOL)
        if len(run.work.calls or ()) + len(wanted) > OPEN_CALLS:
            raise Refused(f"this run would have more than {OPEN_CALLS} tool calls open; wait for some to end")
        calls = []
        for name, arguments, asks in wanted:
            call = run.work.record(run.id, name, arguments, asks=asks)
            calls.append(call)
            self._tell(Effect.TOOL, call, arguments=arguments)
        return calls

    async def permit(self, call: ToolCall) -> None:
        """Permit a recorded call, or raise: Stale if the run fell, Denied, Unavailable if its start is not stored."""
        run = self._run
        run.fence.check(Effect.TOOL)
        _need_pending(call)
        if self._policy.asks(call.name, marked=call.asks):
            await self._be_allowed(call)
            # The run may have fallen after the answer was given (races 52 and 54).
            run.fence.check(Effect.TOOL)
        ticket = self._store.decide(self._written(call, ToolState.RUNNING))
        if not await commit_in_time(self._store, ticket, self._settings.commit_seconds):
            self.finish(call, ToolState.FAILED, error="not started: the store did not record it in time")
            raise Unavailable(f"tool {call.name} was not started: the store did not record it in time; try again")
        # The permit. The fence is tested a last time after the commit, and from here to the end of the step nothing
        # awaits. So a stop finds the call either not permitted, and then its body never begins (race 5), or permitted,
        # and then `Fall.add` cuts the body and the receipt names the call `interrupted, effect unknown`. Without this
        # test a stop during the commit would be acknowledged and the body would begin afterwards. The call itself may
        # also have been given up, or permitted, while its start was being committed.
        run.fence.check(Effect.TOOL)
        _need_pending(call)
        run.work.begin(call)
        run.limits.enter(call, KnownPhase.TOOL)
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
        """Close a call for which the agent no longer waits: it gets a result at once, and its question goes void."""
        if call.question is not None:
            self._approvals.close(call.question, QuestionState.VOID)
        state = ToolState.SKIPPED if call.state is ToolState.PENDING else ToolState.INTERRUPTED
        self.finish(call, state, error=tool_words(state, why="given up by its agent"))

    def finish(self, call: ToolCall, state: ToolState, *, result: Json | None = None, error: str | None = None) -> None:
        """Record the result of a call, or raise Stale: the fall has already given every open call a result."""
        run = self._run
        run.fence.check(Effect.RESULT)
        # The call has a result already.
        if not run.work.finish(call, state):
            return
        run.limits.leave(call)
        # Publish the result before storing the row, so that a crash never leaves a finished call without its result in
        # the log. The row is not waited for: only the start must be stored before anything else happens.
        self._tell(Effect.RESULT, call, result=result, error=error)
        self._store.decide(self._written(call, state))
        # Drop the arguments, which the log has: receipts list finished calls, and stay in memory for long.
        call.arguments = Json("")

    def _written(self, call: ToolCall, state: ToolState) -> Decision:
        """Return a call as a Decision under the writer right: the store refuses it if another node has the session.

        Aliases of absorbed messages that are not stored yet go with it: after a crash the store must not have a call
        without the message that led to it.
        """
        run = self._run
        assert run.generation is not None
        row = ToolRow(call_id=call.id, run_id=run.id, name=call.name, arguments=call.arguments, state=state)
        taken = [
            part
            for part in run.ties.absorbed or ()
            if part.ties.alias_ticket is not None and not part.ties.alias_ticket.inside
        ]
        return Decision(
            writer=Writer(run.session.id, run.generation),
            tools=(row,),
            aliases=tuple((part.id, run.id) for part in taken),
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
        raise BadInput(f"call {call.id} is {call.state} and cannot begin; make a new call")
