"""The inline driver: agents run in control's own loop, on a leash, and call control's handlers directly."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from interlock.agent.bodies import Bodies, Body, DaemonThreads, Leash, Strangers, Threads
from interlock.agent.message import Message
from interlock.agent.notice import Notice, heard
from interlock.agent.port import ANOTHER_LOOP, Port, Work
from interlock.agent.run import Agent, Run
from interlock.agent.tool import ToolSpec, describe_error
from interlock.agent.verbs import ForgetProcess, Request, Telling
from interlock.core.answers import HostsInfo
from interlock.core.errors import BadInput
from interlock.core.names import CallId
from interlock.processes.workers import pack
from interlock.runtime.driver import AgentFailed, kind_of
from interlock.runtime.handlers import HANDLERS, Acting

T = TypeVar("T")


class InlinePort(Port):
    """The side of an agent in this loop, and the places where its tools run."""

    def __init__(self, acting: Acting, bodies: Bodies) -> None:
        super().__init__(acting.run.id, bodies)
        self._acting = acting
        # Every verb reads these, so they are kept at hand.
        self._fence = acting.run.fence
        self._limits = acting.run.limits
        self._now = self._loop.time
        acting.on_exit = self.processes.exited

    @property
    def current(self) -> bool:
        """True while the run may have effects."""
        return self._fence.cause is None

    async def checkpoint(self) -> None:
        """Let other tasks run, then drop the bodies of a fallen run that has used up its budget of refusals."""
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(ANOTHER_LOOP)
        self._limits.hear(self._now())
        await asyncio.sleep(0)
        if self._fence.cause is not None and self._acting.run.work.spend_refusal():
            self.bodies.drop()

    def tell(self, verb: Telling) -> None:
        """Carry a verb out, in this step."""
        HANDLERS[type(verb)](self._acting, verb)

    async def ask(self, verb: Request[T]) -> T:
        """Carry a verb out; if nothing has to be waited for, in this step."""
        answer: T = await HANDLERS[type(verb)](self._acting, verb)
        return answer

    def look(self, verb: Request[T]) -> T:
        """Return the answer of a verb that control has at once."""
        answer: T = HANDLERS[type(verb)](self._acting, verb)
        return answer

    def forget(self, number: int) -> None:
        """Forget a process; in any thread, since taking an item out of a dict is one step of the interpreter."""
        self.tell(ForgetProcess(number))

    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Return a tool's work: packed for a worker if the tool is synchronous, else as a call."""
        return pack(function, arguments, spec.name) if spec.worker else partial(function, **arguments)

    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a permitted tool call."""
        acting, open_call = self._acting, self._acting.open_call(call)
        if isinstance(work, bytes):
            return await acting.parts.spawning.in_worker(acting.run, work, spec.grace)
        if spec.thread:
            return await self.bodies.in_thread(spec.name, work, open_call)
        return await self.bodies.in_place(spec, work(), open_call)

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch next to each other."""
        calls = [self._acting.open_call(call) for call, _, _ in bodies]
        await self.bodies.side_by_side([(spec, body) for _, spec, body in bodies], calls)


class InlineDriver:
    """Runs agents in this loop."""

    info: HostsInfo | None = None

    def __init__(self, agent: Agent, agents: Mapping[str, Agent] | None = None, threads: Threads | None = None) -> None:
        self._agent = agent
        self._agents = dict(agents or {})
        self._threads = threads or DaemonThreads()
        self.names = tuple(agents or ())

    async def open(self) -> None:
        """Do nothing: an inline agent needs no preparation."""

    async def drive(self, acting: Acting, message: Message) -> str | None:
        """Run the agent on a leash, from its first step to its last."""
        run = acting.run
        notice, bodies = Notice(told_by=threading.get_ident()), list[Body]()
        run.work.run_bodies(bodies, notice)
        port = InlinePort(acting, Bodies(run.id, bodies, crew=acting.parts.crew, threads=self._threads))
        with heard(notice):
            try:
                return await self._drive(acting, port, message)
            except Exception as error:
                # No code of a fallen run is entered any more, and `__str__` of its error is such code.
                if run.fallen:
                    raise
                raise AgentFailed(describe_error(error), kind_of(port.phase_of(error))) from error

    async def _drive(self, acting: Acting, port: InlinePort, message: Message) -> str | None:
        run = acting.run
        assert run.generation is not None
        handle = Run(port, run_id=run.id, session=run.session.id, generation=run.generation)
        body = (self._agent if run.arrival.agent is None else self._agents[run.arrival.agent])(handle, message)
        if not asyncio.iscoroutine(body):
            raise BadInput("the agent is not async; declare it with `async def agent(run, message)`")
        leash = Leash(body, name=f"agent of {run.id}")
        strangers = Strangers(run.id, port.bodies.running, self._threads)
        port.bodies.running.extend((leash, strangers))
        try:
            text: str | None = await leash
        finally:
            strangers.look()
        if text is not None and not isinstance(text, str):
            raise BadInput(f"the agent returned {type(text).__name__}; return the reply as text, or None")
        return None if text is None else str.__str__(text)

    async def close(self) -> None:
        """Do nothing: the driver keeps nothing open."""
