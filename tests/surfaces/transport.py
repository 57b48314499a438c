"""A served gateway, and clients that stall, vanish or come by the thousand; scene.py is the plain kit.

1. `Served` is the real command in a process of its own, patched first where a test asks for it; `serving` is the same
   server in this loop, whose insides a test can count.
2. A `Wire` is a raw client. Every frame goes through a `Conversation`: the first that breaks a rule fails the wire.
3. Every wait has a bound; when it passes, the error says what came instead.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import websockets
from websockets.asyncio.client import ClientConnection

from interlock import app, open_control
from interlock.core.scopes import Scope
from interlock.protocol import frames
from interlock.runtime.control import Control
from interlock.runtime.settings import Settings
from interlock.surfaces import server
from interlock.surfaces.gateway.connection import Connection
from interlock.surfaces.gateway.gateway import Gateway
from interlock.surfaces.listener import listen, url_of

from .floods import agent
from .protocol import Conversation, Frame, Wrong
from .scene import WireError, insisting

TESTS = Path(__file__).parent.parent
BOUND_SECONDS = 30.0
SO_ATTACH_FILTER = 26
QUIET = (frames.QUIET,)
CLIENT = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}


class Gone(Exception):
    """The connection closed while a test waited on it."""


class Wire:
    """A raw client that the gateway has let in."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.conversation = Conversation()
        self.events: list[Frame] = []
        self.bytes = 0  # received in frames
        self.hello: Frame = {}
        self._asked: dict[str, asyncio.Queue[Frame]] = {}
        self._number = 0
        self._news = asyncio.Event()
        self._wrong: BaseException | None = None
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def dial(cls, url: str, token: str, *, caps: tuple[str, ...] = (), local: str | None = None) -> Self:
        """Connect and show the token."""
        wire = cls(await dial(url, local=local))
        params = {"minProtocol": 4, "maxProtocol": 4, "client": CLIENT, "caps": list(caps), "auth": {"token": token}}
        try:
            wire.hello = await wire.request("connect", **params)
        except BaseException:
            await wire.close()
            raise
        return wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; raise what was wrong by then."""
        self.resume()
        await self.socket.close()
        await asyncio.wait((self._reader,), timeout=BOUND_SECONDS)
        self._check()

    async def vanish(self) -> None:
        """Cut the socket without a close frame."""
        self.socket.transport.abort()
        await asyncio.wait((self._reader,), timeout=BOUND_SECONDS)

    # Asking

    async def ask(self, method: str, **params: Any) -> str:
        """Send a request and return its id, which `answer` takes."""
        self._number += 1
        name = str(self._number)
        raw = json.dumps({"type": "req", "id": name, "method": method, "params": params})
        self.conversation.client(raw)
        self._asked[name] = asyncio.Queue()
        await self.socket.send(raw)
        return name

    async def answer(self, name: str, seconds: float = BOUND_SECONDS) -> Any:
        """Return the next answer to a request, or raise WireError."""
        queue = self._asked[name]
        await self.until(lambda: not queue.empty(), f"an answer to request {name}", seconds)
        frame = queue.get_nowait()
        if not frame["ok"]:
            raise WireError(frame["error"])
        return frame["payload"]

    async def request(self, method: str, **params: Any) -> Any:
        """Send a request and return its answer; send it again if the error is retryable."""

        async def once() -> Any:
            return await self.answer(await self.ask(method, **params))

        return await insisting(once)

    # Events

    async def wait_for(self, told: Callable[[Frame], Any], *, after: int = 0, seconds: float = BOUND_SECONDS) -> Frame:
        """Return the first event that fits, from a place in `events` on."""
        at = after

        def found() -> bool:
            nonlocal at
            while at < len(self.events) and not told(self.events[at]):
                at += 1
            return at < len(self.events)

        await self.until(found, "an event", seconds)
        return self.events[at]

    async def until(self, fits: Callable[[], Any], what: str = "it", seconds: float = BOUND_SECONDS) -> None:
        """Wait until a condition on this wire is met."""
        try:
            async with asyncio.timeout(seconds):
                while not fits():
                    self._check()
                    if self._reader.done():
                        raise Gone(f"closed while waiting for {what}: {self.closed}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            last = [json.dumps(event)[:300] for event in self.events[-5:]]
            raise AssertionError(f"waited {seconds} s for {what}; the last events were {last}") from None
        self._check()

    async def gone(self, seconds: float = BOUND_SECONDS) -> tuple[int, str]:
        """Wait until the server has closed; return code and reason."""
        await asyncio.wait((self._reader,), timeout=seconds)
        self._check()
        assert self._reader.done(), "the server did not close"
        return self.closed

    @property
    def closed(self) -> tuple[int, str]:
        """Return the code and reason of the close."""
        return self.socket.close_code or 0, self.socket.close_reason or ""

    def stall(self) -> None:
        """Read no more: incoming bytes stay in the kernel, and pings are not answered."""
        self.socket.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self.socket.transport.is_closing():
            self.socket.transport.resume_reading()

    def cut(self) -> None:
        """Cut the wire: no packet reaches this end any more, and the other end is not told."""
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a filter that keeps 0 bytes
        program = struct.pack("HL", 1, ctypes.addressof(drop_all))
        self.socket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def chats(self, run: str, *states: str) -> list[Frame]:
        """Return the chat events of a run, in these states or all."""
        payloads = [event["payload"] for event in self.events if event["event"] == "chat"]
        return [each for each in payloads if each["runId"] == run and (not states or each["state"] in states)]

    def watched(self, watch: int) -> list[Frame]:
        """Return the events of one watch, without its end."""
        payloads = [event["payload"] for event in self.events if event["event"] == "interlock.event"]
        return [each["event"] for each in payloads if each["watch"] == watch and "event" in each and each["event"]]

    async def _read(self) -> None:
        try:
            async for raw in self.socket:
                self.bytes += len(raw)
                frame = self.conversation.server(raw)
                if frame["type"] == "res":
                    self._asked[frame["id"]].put_nowait(frame)
                else:
                    self.events.append(frame)
                self._news.set()
        except websockets.ConnectionClosed:
            pass
        except (Wrong, KeyError, ValueError) as wrong:
            self._wrong = wrong
        finally:
            self._news.set()

    def _check(self) -> None:
        if self._wrong is not None:
            raise self._wrong


async def dial(url: str, *, local: str | None = None) -> ClientConnection:
    """Open a WebSocket and send no token yet."""
    return await websockets.connect(
        url.replace("http", "ws", 1),
        max_queue=None,
        max_size=None,
        ping_interval=None,
        compression=None,
        close_timeout=1,
        proxy=None,
        **({} if local is None else {"local_addr": (local, 0)}),
    )


def ended(run: str) -> Callable[[Frame], bool]:
    """Return a test of whether an event is the last of a run's chat."""
    return lambda event: (
        event["event"] == "chat" and event["payload"]["runId"] == run and event["payload"]["state"] != "delta"
    )


class Served:
    """`interlock serve` in a process of its own, ready. `patch` is Python that runs in that process first."""

    def __init__(self, data: Path, *options: str, agent: str = "surfaces.floods:agent", patch: str = "") -> None:
        program = f"{patch}\nfrom interlock.cli import main\nmain()"
        self.log = data / "serve.log"
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "serve", agent, "--json", "--port=0", f"--data={data}", *options],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.end(signal.SIGKILL)
            raise AssertionError(f"the server did not start: {self.log.read_text('utf-8')[-3000:]}")
        ready = json.loads(line)
        self.url, self.pid = ready["url"], self.process.pid
        self.token = Path(ready["tokenFile"]).read_text("utf-8").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    async def dial(self, **options: Any) -> Wire:
        """Return a client that has been let in."""
        return await Wire.dial(self.url, self.token, **options)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the server and return its exit status."""
        assert self.process.stdout is not None
        try:
            if self.process.poll() is None:
                self.process.send_signal(number)
            return self.process.wait(BOUND_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


class Serving:
    """A gateway in this loop."""

    def __init__(self, url: str, control: Control, gateway: Gateway) -> None:
        self.url, self.control, self.gateway = url, control, gateway
        self.token = gateway.access.token.read_text("utf-8").strip()

    async def dial(self, **options: Any) -> Wire:
        """Return a client that has been let in."""
        return await Wire.dial(self.url, self.token, **options)

    async def add(self, name: str, *scopes: Scope) -> str:
        """Make a principal; return its token."""
        return (await self.gateway.tokens.add_token(name, scopes)).token

    @property
    def connections(self) -> list[Connection]:
        """Return the connections that were let in and are still open."""
        return [each for connections in self.gateway.connections.values() for each in connections]

    def connection(self, wire: Wire) -> Connection:
        """Return the server's end of a client."""
        return next(each for each in self.connections if each.id == wire.hello["server"]["connId"])


@asynccontextmanager
async def serving(data: Path, agent: Any, *, store: str = "memory://", **options: Any) -> AsyncIterator[Serving]:
    """Serve an agent in this loop, with the server's own preparation of sockets."""
    options.setdefault("settings", Settings(grace_seconds=0.2, drain_seconds=1.0))
    async with open_control(agent, store=store, **options) as control:
        gateway = app.asgi(control, data=data)
        listener = listen("127.0.0.1", 0)
        over, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(server.serve(gateway, listener, ready.set, over))
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                await ready.wait()
            yield Serving(url_of(listener), control, gateway)
        finally:
            await gateway.shut()
            over.set()
            await task


async def eventually(fits: Callable[[], Any], what: str, seconds: float = BOUND_SECONDS) -> None:
    """Wait until a condition is met."""
    end = asyncio.get_running_loop().time() + seconds
    while not fits():
        assert asyncio.get_running_loop().time() < end, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.005)


async def chat(wire: Wire, text: str, key: str, session: str = "s") -> Any:
    """Send a message with a key."""
    return await wire.request("chat.send", sessionKey=session, message=text, idempotencyKey=key)


def endings(events: list[Frame]) -> list[str]:
    """Return the endings among these events."""
    return [event["data"]["outcome"]["ending"] for event in events if event["data"]["type"] == "ended"]


def in_loop(main: Callable[[Serving], Awaitable[None]], data: Path, body: Any = agent, **options: Any) -> None:
    """Run a test against a server in this loop."""

    async def play() -> None:
        async with serving(data, body, **options) as served:
            await main(served)

    asyncio.run(play())
