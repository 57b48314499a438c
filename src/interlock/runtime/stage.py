"""From the line to the last line: one task of control's own carries a message through its whole life.

1. The started mark is committed before the agent's first step: a crash before it admits the message again, one after
   it does not.
2. A run begins only when its predecessors' endings are public; it never waits for their cleanup.
3. What the agent returns or raises is asked for only if the ending is not decided yet.
"""

import asyncio

import anyio

from interlock.core.decision import Decision
from interlock.core.errors import BadInput, Unavailable
from interlock.core.events import Started
from interlock.core.lifecycle import Move, State
from interlock.core.names import Effect, Ending, ErrorKind, RunKind
from interlock.core.outcome import Cause, cause_of
from interlock.runtime.approvals import Approvals, Policy
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.delegation import Delegation
from interlock.runtime.driver import AgentFailed, Driver, kind_of
from interlock.runtime.ending import Endings
from interlock.runtime.gate import Gate
from interlock.runtime.inbox import Inbox, endings_told
from interlock.runtime.inline import Dropped
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Feed, Outlet
from interlock.runtime.registry import Registry
from interlock.runtime.run import Message, Part
from interlock.runtime.settings import Settings
from interlock.runtime.spawning import Spawning
from interlock.runtime.tool import describe_error
from interlock.runtime.verbs import Verbs
from interlock.stores.base import Store, Unsure, committed


class Stage:
    """Carries messages: admitted, seated, started, driven, ended."""

    def __init__(
        self,
        registry: Registry,
        *,
        driver: Driver,
        policy: Policy,
        approvals: Approvals,
        inbox: Inbox,
        endings: Endings,
        deadlines: Deadlines,
        feed: Feed,
        store: Store,
        crew: Crew,
        spawning: Spawning,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._driver = driver
        self._policy = policy
        self._approvals = approvals
        self._inbox = inbox
        self._endings = endings
        self._deadlines = deadlines
        self._feed = feed
        self._store = store
        self._crew = crew
        self._spawning = spawning
        self._clock = clock
        self._settings = settings
        self._delegation = Delegation(registry, stage=self, names=driver.names, endings=endings, clock=clock)

    def begin(self, run: LiveRun) -> LiveRun:
        """Register a message and start the task that carries it; returns the run that answers it, in this step."""
        run.touched = self._clock.now()
        try:
            answering = self._inbox.enter(run)
        finally:
            self._registry.forget_if_quiet(run.session)
        if answering is run:
            self._crew.start(self.carry(run), name=f"run {run.id}")
        return answering

    def resume(self, run: LiveRun) -> None:
        """Start the task that carries a message which an earlier start admitted; it waits for the seat."""
        run.touched = self._clock.now()
        self._inbox.take_back(run)
        self._crew.start(self.carry(run, admitted=True), name=f"run {run.id}")

    async def carry(self, run: LiveRun, *, admitted: bool = False) -> None:
        """Carry a message from its arrival to the end of its agent's code; whatever breaks on the way, it ends."""
        try:
            if admitted or await self._inbox.admit(run):
                await self._carry(run)
        except BaseException as error:
            if not run.acked.is_set():
                self._inbox.turn_away(run, _not_taken(run))
            elif not run.fallen and not self._registry.closing and not run.ended.is_set():
                self._endings.end(run, _failed(f"its task broke: {describe_error(error)}", ErrorKind.AGENT))
            raise

    async def _carry(self, run: LiveRun) -> None:
        await run.called.wait()
        if run.state is not State.SEATED:
            return
        self._deadlines.dispatched(run)
        await endings_told(run.session)
        if await self._start(run):
            await self._drive(run)

    async def _start(self, run: LiveRun) -> bool:
        """Commit the started mark; True if the agent may begin now."""
        if run.fallen:
            return False
        on_record = run.sent is not None and run.sent.generation == run.generation  # its admission had the seat
        rows = () if on_record else (self._registry.session_row(run.session),)
        mark = Decision(sessions=rows, starts=(run.id,))
        ticket = self._store.decide(mark)
        inside = await committed(self._store, ticket, self._settings.commit_seconds)
        while not inside and run.kind is RunKind.ANNOUNCE and not run.fallen and not self._registry.closing:
            await anyio.sleep(self._settings.retry_seconds)  # nobody sent it, so nobody would send it again
            ticket = self._store.decide(mark)
            inside = await committed(self._store, ticket, self._settings.commit_seconds)
        if run.fallen:
            return False
        if not inside:
            self._endings.end(
                run, _failed("the store did not record the start in time; send it again", ErrorKind.STORE)
            )
            return False
        if found := (await ticket).found:  # another node ended it first
            self._endings.end(run, cause_of(found[0]))
            return False
        return not run.fallen

    async def _drive(self, run: LiveRun) -> None:
        """Have the agent run, from its first step to its last."""
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
        """A message may have waited for an agent over a restart, and its control may be opened without it."""
        if run.agent is not None and run.agent not in self._driver.names:
            raise BadInput(f"agent {run.agent!r} is not served any more; open_control(agents=...) names them")

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
            store=self._store,
            crew=self._crew,
            spawning=self._spawning,
        )

    def _failed(self, run: LiveRun, error: BaseException) -> None:
        """The agent's code ended with an error; if the run had fallen that changes nothing."""
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
    """What the agent is told; collected messages are one, in order, and with their authors where there are several."""
    said = [run, *(run.collection.parts if run.collection is not None else ())]
    parts = tuple(Part(text=part.text, by=part.principal, child=part.announces) for part in said)
    named = len({part.by for part in parts}) > 1
    return Message(
        text="\n\n".join(f"{part.by}: {part.text}" if named else part.text for part in parts),
        by=run.principal,
        session=run.session.id,
        run_id=run.id,
        previous=run.session.previous,
        parts=parts,
        instructions=run.instructions,
        child=run.announces,
    )


def _not_taken(run: LiveRun) -> Unavailable:
    """What its sender is told when a message's task was cut short: the truth, as far as it is known."""
    ticket = run.admission
    if ticket is None or (ticket.answered and not ticket.inside):
        return Unavailable("the message was not taken; send it again")
    return Unsure("whether the message was kept is not known; send it again with the same key")


def _failed(error: str, kind: ErrorKind) -> Cause:
    return Cause(ending=Ending.FAILED, error=error, error_kind=kind)
