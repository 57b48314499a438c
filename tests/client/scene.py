"""A served agent, a road to it that can be cut, and a bound on everything."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from interlock.client.socket import connect

ROOT = Path(__file__).parent.parent.parent
BOUND_SECONDS = 60.0
T = TypeVar("T")


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, within a bound."""
    return asyncio.run(asyncio.wait_for(scene, BOUND_SECONDS))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is met; `play` bounds the time."""
    while not await condition():
        await asyncio.sleep(0.01)


class Served:
    """`interlock serve`, ready."""

    def __init__(self, data: Path, *, port: int = 0) -> None:
        self.data = data
        self.log = data.with_suffix(".log")
        options = ("--driver=inline", f"--port={port}", f"--data={data}")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "interlock.cli", "serve", "client.agents:agent", "--json", *options],
                env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server did not start: {self.log.read_text('utf-8')[-3000:]}"
        self.url: str = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])
        self.token = (data / "token").read_text("ascii").strip()

    def add(self, name: str, scope: str) -> str:
        """Make a principal; return its token."""

        async def adding() -> str:
            async with connect(self.url, self.token) as operator:
                return (await operator.add_token(name, [scope])).token

        return play(adding())

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the server and wait for its exit."""
        self._process.send_signal(number)
        self._process.wait(BOUND_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Road:
    """A proxy to a server that can lose bytes, in each direction, or cut all connections."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.lost_up = self.lost_down = False  # drop bytes to the server, or from it
        self.passed = 0  # bytes from the server
        self.lost = 0  # bytes dropped
        self.cuts = 0
        self._ways: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._travel, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Refuse connections from now on, and cut the open ones."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Cut every connection; new ones lose no bytes."""
        self.lost_up = self.lost_down = False
        self.cuts += 1
        for way in self._ways:
            way.transport.abort()

    async def _travel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways.add(writer)
        try:
            up, down = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._ways.add(down)
        for task in (self._carry(reader, down, True), self._carry(up, writer, False)):
            carrying = asyncio.ensure_future(task)
            self._tasks.add(carrying)
            carrying.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upwards: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(4096):
                if not (self.lost_up if upwards else self.lost_down):
                    writer.write(data)
                    await writer.drain()
                    self.passed += 0 if upwards else len(data)
                else:
                    self.lost += len(data)
        writer.transport.abort()
        self._ways.discard(writer)
