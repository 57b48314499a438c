"""The life of a message: one task of control's own takes it from its arrival to the end of its agent's code.

1. `Stage.begin` puts the arrival into the session's line and starts the task. The task admits the message, waits for
   the seat, commits the started mark, drives the agent and settles its return. The sender only waits for the ack. So
   no hand-over between tasks exists in which a message could be forgotten, and a sender that vanishes changes nothing.
   A fall starts one further task for t1 to t3, and a third if its write must be tried again.
2. The started mark is committed before the agent's first step. After a crash the next start admits a message without
   the mark again, and ends a run with the mark as `lost`: no agent runs twice for one message.
3. A start that is not recorded in time does not happen. The run ends as `failed` with error kind `store`.
4. A run begins only when its predecessors' endings are public, soon after they fell (t1, `ending.py`). So a watcher
   sees the old run's terminal event before the new run's first one. A run never waits for its predecessors' cleanup.
5. The agent's return or error settles the ending only if nothing else has: a fallen run keeps its ending.
"""

import asyncio

import anyio

from interlock.core.decision import Decision
from interlock.core.errors import BadInput, Unavailable
from interlock.core.events import Started
from interlock.core.lifecycle import Move
from interlock.core.names import Effect, Ending, ErrorKind, RunKind
from interlock.core.outcome import Cause, cause_of
from interlock.runtime.approvals import Approvals, Policy
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.delegation import Delegation
from interlock.runtime.driver import AgentFailed, Driver, kind_of
from interlock.runtime.ending import Endings
from interlock.runtime.gate import Gate
from interlock.runtime.inbox import Inbox, endings_told
from interlock.runtime.inline import Dropped
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.run import Message, Part
from interlock.runtime.spawning import Spawning
from interlock.runtime.tool import describe_error
from interlock.runtime.verbs import Verbs
from interlock.stores.base import Unsure, commit_in_time


class Stage(Inner):
    """Takes messages through their life: admitted, seated, started, driven, ended."""

    def __init__(
        self,
        inside: Inside,
        *,
        driver: Driver,
        policy: Policy,
        approvals: Approvals,
        inbox: Inbox,
        endings: Endings,
        deadlines: Deadlines,
        spawning: Spawning,
    ) -> None:
        super().__init__(inside)
        self._driver = driver
        self._policy = policy
        self._approvals = approvals
        self._inbox = inbox
        self._endings = endings
        self._deadlines = deadlines
        self._spawning = spawning
        self._delegation = Delegation(
            inside.registry, stage=self, names=driver.names, endings=endings, clock=inside.clock
        )

    def begin(self, run: LiveRun) -> LiveRun:
        """Register a message and start its task, in this step; return the run that answers it.

        A message under a used key is answered by the first run with that key and gets no task.
        """
        run.limits.touch(self._clock.now())
        try:
            answering = self._inbox.enter(run)
        finally:
            self._registry.forget_if_quiet(run.session)
        if answering is run:
            self._crew.start(self.carry(run), name=f"run {run.id}")
        return answering

    def resume(self, run: LiveRun) -> None:
        """Start the task of a message that an earlier start admitted; the task waits for the seat."""
        run.limits.touch(self._clock.now())
        self._inbox.requeue(run)
        self._crew.start(self.carry(run, admitted=True), name=f"run {run.id}")

    async def carry(self, run: LiveRun, *, admitted: bool = False) -> None:
        """Take a message from its arrival to the end of its agent's code.

        If this task itself breaks, the message is refused (before the ack) or its run ends as `failed` (after it): an
        accepted message always has an ending.
        """
        try:
            if admitted or await self._inbox.admit(run):
                await self._carry(run)
        except BaseException as error:
            if not run.admittance.acked.is_set():
                self._inbox.turn_away(run, _not_taken(run))
            elif not run.fallen and not self._registry.closing and not run.ended.is_set():
                self._endings.end(run, _failed(f"the task of the run broke: {describe_error(error)}", ErrorKind.AGENT))
            raise

    async def _carry(self, run: LiveRun) -> None:
        await run.seated_or_over.wait()
        if not run.state.at_work:
            return
        self._deadlines.dispatched(run)
        await endings_told(run.session)
        if await self._start(run):
            await self._drive(run)

    async def _start(self, run: LiveRun) -> bool:
        """Commit the started mark; return True if the agent may begin now.

        The fence is read after the last await, before True is returned: a stop that came while the store was asked
        must find an agent that never ran (races 3 and 4).
        """
        if run.fallen:
            return False
        # If the run was seated in the Decision that admitted it, the store already has this generation.
        on_record = run.admittance.sent is not None and run.admittance.sent.generation == run.generation
        rows = () if on_record else (self._registry.session_row(run.session),)
        mark = Decision(sessions=rows, starts=(run.id,))
        ticket = self._store.decide(mark)
        inside = await commit_in_time(self._store, ticket, self._settings.commit_seconds)
        while not inside and run.arrival.kind is RunKind.ANNOUNCE and not run.fallen and not self._registry.closing:
            # An announcement has no sender who would send it again, so its start is tried until the store takes it.
            await anyio.sleep(self._settings.retry_seconds)
            ticket = self._store.decide(mark)
            inside = await commit_in_time(self._store, ticket, self._settings.commit_seconds)
        if run.fallen:
            return False
        if not inside:
            self._endings.end(
                run, _failed("the store did not record the start in time; send it again", ErrorKind.STORE)
            )
            return False
        # The store had an ending already: another node was first.
        if found := (await ticket).found:
            self._endings.end(run, cause_of(found[0]))
            return False
        return not run.fallen

    async def _drive(self, run: LiveRun) -> None:
        """Run the agent, from its first step to its last, and settle the ending by its return or error."""
        outlet = Outlet(run, self._feed)
        run.move(Move.START)
        run.started_at = self._clock.wall()
        outlet.emit(Effect.PHASE, Started())
        try:
            self._need_agent(run)
            text = await self._driver.drive(run, self._verbs(run, outlet), _message(run))
            outlet.measure(text or "")
        except BaseException as error:
            self._failed(run, error)
            if isinstance(error, KeyboardInterrupt):
                raise
        else:
            if self._endings.end(run, Cause(ending=Ending.COMPLETED), closing=text) is None:
                run.fence.refuse(Effect.FINAL)

    def _need_agent(self, run: LiveRun) -> None:
        """Raise if the run's agent is not served: the message may have waited over a restart that left it out."""
        if run.arrival.agent is not None and run.arrival.agent not in self._driver.names:
            raise BadInput(f"agent {run.arrival.agent!r} is not served any more; open_control(agents=...) names them")

    def _verbs(self, run: LiveRun, outlet: Outlet) -> Verbs:
        gate = Gate(run, outlet, self._store, self._settings, self._approvals, self._policy)
        return self._driver.port(
            run,
            outlet=outlet,
            gate=gate,
            approvals=self._approvals,
            delegation=self._delegation,
            inbox=self._inbox,
            holds=self._registry.holds,
            log=self._feed.log,
            crew=self._crew,
            spawning=self._spawning,
        )

    def _failed(self, run: LiveRun, error: BaseException) -> None:
        """Settle a run whose agent raised; if the run had fallen, change nothing."""
        if run.fallen or isinstance(error, Dropped):
            return
        if isinstance(error, asyncio.CancelledError) and self._registry.closing:
            self._endings.end(run, Cause(ending=Ending.SHUTDOWN))
            return
        if isinstance(error, AgentFailed):
            self._endings.end(run, _failed(error.text, error.kind))
            return
        phase = run.blamed[0] if run.blamed is not None and run.blamed[1] is error else run.phase
        run.blamed = None
        self._endings.end(run, _failed(describe_error(error), kind_of(phase)))


def _message(run: LiveRun) -> Message:
    """Return the agent's message. Collected messages become one text, in order, and name their authors if several."""
    said = [run, *run.ties.collected]
    parts = tuple(Part(text=part.arrival.text, by=part.principal, child=part.ties.announces) for part in said)
    named = len({part.by for part in parts}) > 1
    return Message(
        text="\n\n".join(f"{part.by}: {part.text}" if named else part.text for part in parts),
        by=run.principal,
        session=run.session.id,
        run_id=run.id,
        previous=run.session.previous,
        parts=parts,
        instructions=run.arrival.instructions,
        child=run.ties.announces,
    )


def _not_taken(run: LiveRun) -> Unavailable:
    """Return the error for the sender of a message whose task broke before the ack.

    The store may have the message although the task was not told. Then the error says that it is not known whether the
    message was taken: after "not taken" the sender would send it again without its key, and it would run twice.
    """
    ticket = run.admittance.ticket
    if ticket is None or (ticket.answered and not ticket.inside):
        return Unavailable("the message was not taken; send it again")
    return Unsure("whether the message was kept is not known; send it again with the same key")


def _failed(error: str, kind: ErrorKind) -> Cause:
    return Cause(ending=Ending.FAILED, error=error, error_kind=kind)
