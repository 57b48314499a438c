"""The inline driver: agents run in control's own loop, on a leash, and call control's verbs directly."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from interlock.core.answers import HostsInfo
from interlock.core.errors import BadInput
from interlock.core.names import CallId
from interlock.processes.notice import Notice, heard
from interlock.processes.workers import pack
from interlock.runtime.inline import Bodies, DaemonThreads, Leash, Strangers, Threads
from interlock.runtime.live import LiveRun
from interlock.runtime.run import Agent, Message, Run, Work
from interlock.runtime.tool import ToolSpec
from interlock.runtime.verbs import Verbs


class InlinePort(Verbs):
    """The verbs of an agent in this loop, and the places where its tools run."""

    bodies: Bodies

    async def checkpoint(self) -> None:
        """Let other tasks run, then drop the bodies of a fallen run that has used up its budget of refusals."""
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(
                "a run's verbs belong to the loop that its agent runs on; "
                "from a thread use asyncio.run_coroutine_threadsafe(run.say(...), loop)"
            )
        self.touch()
        await asyncio.sleep(0)
        if self.run.fallen and self.spend_refusal():
            self.bodies.drop()

    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Return a tool's work: packed for a worker if the tool is synchronous, else as a call."""
        return pack(function, arguments, spec.name) if spec.worker else partial(function, **arguments)

    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a permitted tool call."""
        open_call = self.open_call(call)
        if isinstance(work, bytes):
            return await self.spawning.in_worker(self.run, work, spec.grace)
        if spec.thread:
            return await self.bodies.in_thread(spec.name, work, open_call)
        return await self.bodies.in_place(spec, work(), open_call)

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch next to each other."""
        calls = [self.open_call(call) for call, _, _ in bodies]
        await self.bodies.side_by_side([(spec, body) for _, spec, body in bodies], calls)


class InlineDriver:
    """Runs agents in this loop."""

    port: type[Verbs] = InlinePort
    info: HostsInfo | None = None

    def __init__(self, agent: Agent, agents: Mapping[str, Agent] | None = None, threads: Threads | None = None) -> None:
        self._agent = agent
        self._agents = dict(agents or {})
        self._threads = threads or DaemonThreads()
        self.names = tuple(agents or ())

    async def open(self) -> None:
        """Do nothing: an inline agent needs no preparation."""

    async def drive(self, run: LiveRun, verbs: Verbs, message: Message) -> str | None:
        """Run the agent on a leash, from its first step to its last."""
        assert isinstance(verbs, InlinePort)
        run.work.bodies, run.work.notice = [], Notice(told_by=threading.get_ident())
        with heard(run.work.notice):
            return await self._drive(run, verbs, message)

    async def _drive(self, run: LiveRun, verbs: InlinePort, message: Message) -> str | None:
        assert run.generation is not None
        assert run.work.bodies is not None
        verbs.bodies = Bodies(run.id, run.work.bodies, crew=verbs.crew, threads=self._threads)
        handle = Run(verbs, run_id=run.id, session=run.session.id, generation=run.generation)
        body = (self._agent if run.arrival.agent is None else self._agents[run.arrival.agent])(handle, message)
        if not asyncio.iscoroutine(body):
            raise BadInput("the agent is not async; declare it with `async def agent(run, message)`")
        leash = Leash(body, name=f"agent of {run.id}")
        strangers = Strangers(run.id, run.work.bodies, self._threads)
        run.work.bodies += [leash, strangers]
        try:
            text: str | None = await leash
        finally:
            strangers.look()
        if text is not None and not isinstance(text, str):
            raise BadInput(f"the agent returned {type(text).__name__}; return the reply as text, or None")
        return None if text is None else str.__str__(text)

    async def close(self) -> None:
        """Do nothing: the driver keeps nothing open."""
