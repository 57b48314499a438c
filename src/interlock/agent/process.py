"""Processes of a run, as its agent sees them."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
from msgspec.structs import replace

from interlock.agent.order import Finished, SpawnFailed, SpawnOrder
from interlock.agent.port import Port
from interlock.agent.verbs import EndProcess, ReadLine, ReadOutput, StartProcess, StopProcess, WaitProcess
from interlock.core.errors import BadInput

T = TypeVar("T")


class Running:
    """A process of a run: wait for it, read its lines, end it."""

    def __init__(self, port: Port, number: int, order: SpawnOrder) -> None:
        self._port = port
        self._number = number
        self._order = order
        self._over = asyncio.Event()
        self.pid: int | None = None
        # None while the process runs.
        self.status: int | None = None
        self.timed_out = False
        port.processes[number] = self

    def __del__(self) -> None:
        self._port.forget(self._number)

    def on_exit(self, status: int | None, timed_out: bool) -> None:
        """Note that the process has exited."""
        self.status, self.timed_out = status, timed_out
        self._over.set()

    @property
    def name(self) -> str | None:
        """The name from `spawn(name=)`."""
        return self._order.name

    @property
    def running(self) -> bool:
        """True while the process has not exited."""
        return not self._over.is_set()

    @property
    def output(self) -> str:
        """The output so far, bounded; empty once the run has ended."""
        return self._port.look(ReadOutput(self._number)) if self._port.current else ""

    async def exited(self) -> None:
        """Wait for the exit, without a bound."""
        await self._over.wait()

    async def wait(self) -> Finished:
        """Wait for the exit and return how the process ended."""
        return await self._port.ask(WaitProcess(self._number))

    def __aiter__(self) -> AsyncIterator[str]:
        if not self._order.streamed:
            raise BadInput("lines are read in a block: `async with run.spawn(...) as process`")
        return self._lines()

    async def _lines(self) -> AsyncIterator[str]:
        while (line := await self._port.ask(ReadLine(self._number))) is not None:
            yield line.decode("utf-8", "replace")

    async def stop(self) -> None:
        """End the process with all it started, and wait until that was seen."""
        await self._port.ask(StopProcess(self._number))

    def end(self) -> None:
        """End the process without waiting."""
        self._port.tell(EndProcess(self._number))


class Spawn(Generic[T]):
    """A process to be started: `await` it for its end, or read its lines in an `async with` block.

    `await` shares the run's keeper. If the agent gives up waiting, by a timeout of its own for example, the process is
    ended with its process group, and processes that left the group stay until the run ends. `timeout=` ends exactly
    what the process started, because it gives the process a keeper of its own.
    """

    __slots__ = ("_order", "_port", "_running")

    def __init__(self, port: Port, order: SpawnOrder) -> None:
        self._port = port
        self._order = order
        self._running: Running | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _start(self, order: SpawnOrder) -> Running:
        await self._port.checkpoint()
        number = next(self._port.numbers)
        running = Running(self._port, number, order)
        running.pid = await self._port.ask(StartProcess.of(number, order))
        return running

    async def _wait(self) -> Any:
        running = await self._start(self._order)
        if self._order.background or self._order.detached:
            return running
        try:
            return await running.wait()
        # No code will read the result. The agent's next step must not meet the process, so wait until it is gone.
        except BaseException:
            running.end()
            if self._port.current:
                with anyio.CancelScope(shield=True), suppress(SpawnFailed):
                    await running.stop()
            raise

    async def __aenter__(self) -> Running:
        if self._order.detached:
            raise BadInput("a detached process outlives the block; await it instead")
        self._running = await self._start(replace(self._order, streamed=True))
        return self._running

    async def __aexit__(self, *raised: object) -> None:
        assert self._running is not None
        self._running.end()
        if self._port.current:
            await self._running.stop()
