"""A served gateway and a raw client, for tests: a real process, real sockets, every frame checked by the schemas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import websockets

from .protocol import Conversation

ROOT = Path(__file__).parent.parent.parent
WAIT_SECONDS = 30.0
AGAIN = 20  # sends of a message to a store that answers "again", half a second apart


class Served:
    """`interlock serve` in a process of its own; `url`, `token`, `data`, and its log when the process has exited."""

    command: tuple[str, ...] = (str(Path(sys.executable).with_name("interlock")), "serve")

    def __init__(self, agent: str, data: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self.log_path = data.parent / f"{data.name}.log"
        self._log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            [*self.command, agent, "--json", "--data", str(data)]
            + (list(options) if "--port" in options else ["--port", "0", *options]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        self.read_ready()

    def read_ready(self) -> None:
        """Wait until the server is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(WAIT_SECONDS)
            raise AssertionError(f"it did not serve: {self.log()}")
        self.ready = json.loads(line)
        self.url = self.ready["url"].replace("http", "ws", 1)
        self.port = int(self.ready["url"].rpartition(":")[2])
        self.token = Path(self.ready["tokenFile"]).read_text().strip()

    def log(self) -> str:
        """Return the log so far."""
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the server with -9."""
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def close(self) -> int:
        """End the server in order; return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        status = self.process.wait(WAIT_SECONDS)
        self._log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return status


@contextlib.contextmanager
def served(agent: str, data: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """Serve an agent for the length of a block."""
    server = Served(agent, data, *options, env=env)
    try:
        yield server
    finally:
        server.close()


class WireError(Exception):
    """An error response."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.error = error

    @property
    def again(self) -> bool:
        """Return whether the store was slow for a moment: nothing was stored, and the error asks for a retry."""
        return "nothing was kept, send it again" in str(self.error["message"])


async def insisting(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Send a request, and send it again if the error is retryable."""
    for _ in range(AGAIN):
        try:
            return await ask()
        except WireError as refused:
            if not refused.again:
                raise
    return await ask()


class Wire:
    """A raw connection; the schemas check every frame it receives, and `heard` keeps them in order."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.conversation = Conversation()
        self.heard: list[dict[str, Any]] = []  # every frame, in order
        self._news = asyncio.Condition()
        self._next = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            async for raw in self.socket:
                self.conversation.server(raw)
                async with self._news:
                    self.heard.append(json.loads(raw))
                    self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def ask(self, method: str, **params: Any) -> str:
        """Send a request and return its id."""
        self._next += 1
        frame = json.dumps({"type": "req", "id": f"q{self._next}", "method": method, "params": params})
        self.conversation.client(frame)
        await self.socket.send(frame)
        return f"q{self._next}"

    async def answer(self, request_id: str, number: int = 1) -> Any:
        """Wait for the n-th answer to a request; raise WireError if it is an error."""

        def found() -> dict[str, Any] | None:
            mine = [frame for frame in self.heard if frame["type"] == "res" and frame["id"] == request_id]
            return mine[number - 1] if len(mine) >= number else None

        frame = await self.until(found)
        if not frame["ok"]:
            raise WireError(frame["error"])
        return frame["payload"]

    async def request(self, method: str, **params: Any) -> Any:
        """Send a request and wait for its answer; send it again if the error is retryable."""

        async def once() -> Any:
            return await self.answer(await self.ask(method, **params))

        return await insisting(once)

    async def until(self, found: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Wait until `found` finds something in the frames received."""
        async with asyncio.timeout(seconds), self._news:
            while (value := found()) is None:
                if self._reader.done():
                    raise AssertionError(f"the connection is over: {self.socket.close_code} {self.socket.close_reason}")
                await self._news.wait()
        return value

    def events(self, name: str | None = None, run: str | None = None) -> list[dict[str, Any]]:
        """Return the payloads of the events received so far."""
        frames = [f for f in self.heard if f["type"] == "event" and (name is None or f["event"] == name)]
        return [f["payload"] for f in frames if run is None or f["payload"].get("runId") == run]

    async def event(self, name: str, check: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Wait for the first event of a name for which a check is true."""
        return await self.until(lambda: next((each for each in self.events(name) if check(each)), None))

    async def ended(self, run: str) -> dict[str, Any]:
        """Wait for a run's terminal chat event."""
        return await self.event("chat", lambda e: e["runId"] == run and e["state"] in ("final", "aborted", "error"))

    async def close(self) -> None:
        """Close the connection."""
        await self.socket.close()
        await self._reader


@contextlib.asynccontextmanager
async def wire(
    url: str, token: str | None, *, caps: tuple[str, ...] = (), scopes: tuple[str, ...] = ()
) -> AsyncIterator[Wire]:
    """Connect and say hello; with token=None only open the socket."""
    async with websockets.connect(url, max_size=64 * 1024 * 1024, compression=None) as socket:
        connection = Wire(socket)
        await connection.event("connect.challenge")
        if token is not None:
            client = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
            more = {"scopes": list(scopes)} if scopes else {}
            await connection.request(
                "connect", minProtocol=4, maxProtocol=4, client=client, caps=list(caps), auth={"token": token}, **more
            )
        try:
            yield connection
        finally:
            await connection.close()
