"""Uvicorn as our own server: prepared sockets, limits before a token, no signals of its own.

1. A fall can take back nearly everything that a stalled reader has not read: the kernel buffers 4 KiB beyond what is
   in flight, and nothing else is buffered between the kernel and the outbox.
2. A socket that has shown no token is limited in time (5 s), bytes (8 KiB) and number (32 sockets, 8 of one address),
   from the moment it is accepted.
3. A closed connection is gone after CLOSE_SECONDS, whether or not its peer reads.

Strangers and visitors. The limits of rule 2 count sockets that have not yet sent a whole request, and WebSockets
without a token. A connection that asked for a file of the page, whole and in time, is a visitor and no longer counts:
a browser keeps six such connections open, and would otherwise use up the limit of its own address.
"""

import asyncio
import contextlib
import logging
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

from interlock.access.failures import fold
from interlock.protocol.frames import FRAME_BYTES, PRE_AUTH_BYTES
from interlock.surfaces.gateway.connection import CONNECT_SECONDS
from interlock.surfaces.gateway.gateway import STRANGERS, STRANGERS_PER_ADDRESS, Gateway

UNSEEN_BYTES: Final = 1024  # written before `room` polls the kernel again
CLOSE_SECONDS: Final = 2.0  # from our close frame until the socket is aborted
PING_SECONDS: Final = 20.0  # between pings, and for each answer
# A silent socket older than this makes room for another of its address.
IDLE_SECONDS: Final = 0.5
VISITORS: Final = 128  # idle HTTP connections
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class StrangerLimit:
    """Counts the sockets that have shown no token, and the visitors: idle HTTP connections that fetched a page."""

    def __init__(self) -> None:
        self._visitors: dict[asyncio.Transport, None] = {}
        self._silent: dict[asyncio.BaseTransport, None] = {}
        self._inside: dict[asyncio.BaseTransport, str] = {}
        self._since: dict[asyncio.BaseTransport, float] = {}
        self._of: Counter[str] = Counter()

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Count a socket as a stranger; False if there are too many in all or of its address."""
        peer = transport.get_extra_info("peername")
        address = fold(str(peer[0])) if peer else "local"
        if transport in self._inside:
            return True
        if self._of[address] >= STRANGERS_PER_ADDRESS:
            self._make_room(address)
        if len(self._inside) >= STRANGERS or self._of[address] >= STRANGERS_PER_ADDRESS:
            return False
        self._silent[transport] = None
        self._inside[transport] = address
        self._since[transport] = time.monotonic()
        self._of[address] += 1
        return True

    def _make_room(self, address: str) -> None:
        """Abort the oldest silent socket of an address: browsers open sockets ahead and leave some of them unused."""
        before = time.monotonic() - IDLE_SECONDS
        for silent in self._silent:
            if self._inside[silent] == address and self._since[silent] < before:
                cast(asyncio.Transport, silent).abort()
                self.leave(silent)
                return

    def spoke(self, transport: asyncio.BaseTransport) -> None:
        """Note that a socket has sent bytes, so that it is not silent."""
        self._silent.pop(transport, None)

    def since(self, transport: asyncio.BaseTransport) -> float:
        """Return when a stranger was accepted, on the monotonic clock; CONNECT_SECONDS count from then."""
        return self._since.get(transport, time.monotonic())

    def visited(self, transport: asyncio.Transport) -> None:
        """Count a socket as a visitor, not a stranger: it has sent a whole request in time.

        Beyond VISITORS the one that came first is closed.
        """
        self.leave(transport)
        self._visitors[transport] = None
        if len(self._visitors) > VISITORS:
            next(iter(self._visitors)).close()

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Count a socket no longer: it has shown its token, or it is closed."""
        self._visitors.pop(transport, None)  # type: ignore[call-overload]
        self._silent.pop(transport, None)
        self._since.pop(transport, None)
        address = self._inside.pop(transport, None)
        if address is not None:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]


def _protocols(strangers: StrangerLimit) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    class Http(HttpToolsProtocol):
        """HTTP where a request must come whole within CONNECT_SECONDS and have at most PRE_AUTH_BYTES."""

        _timer: asyncio.TimerHandle | None = None
        _heard = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if not strangers.enter(transport):
                cast(asyncio.Transport, transport).write(FULL)
                cast(asyncio.Transport, transport).close()
                self._refused = True
            super().connection_made(cast(asyncio.Transport, transport))
            self._timer = self.loop.call_later(CONNECT_SECONDS, self.transport.abort)

        _refused = False

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            self._heard += len(data)
            strangers.spoke(self.transport)
            if self._timer is not None and self._heard > PRE_AUTH_BYTES:
                self.transport.write(TOO_LONG)
                self.transport.close()
                return
            super().data_received(data)

        def on_message_complete(self) -> None:
            self._in_time()
            if not self.parser.should_upgrade():
                strangers.visited(self.transport)
            super().on_message_complete()

        def handle_websocket_upgrade(self) -> None:
            self._in_time()
            # Count it again: a connection that fetched a file first is a visitor, and visitors are not counted.
            if strangers.enter(self.transport):
                super().handle_websocket_upgrade()
            else:
                self.transport.write(FULL)
                self.transport.close()

        def _in_time(self) -> None:
            self._heard = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:  # a further request on a kept connection
                self._timer = self.loop.call_later(CONNECT_SECONDS, self.transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._in_time()
            strangers.leave(self.transport)
            super().connection_lost(exc)

    class WebSocket(WebSocketsSansIOProtocol):
        """A WebSocket that buffers nothing between outbox and kernel, and is aborted if it does not close in time."""

        _behind: asyncio.Future[None] | None = None  # set while the pump waits for the kernel
        _failed = False  # the peer sent something that is no WebSocket frame
        _unseen = 0  # bytes written since the kernel was last seen to have room

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.set_write_buffer_limits(high=0)
            self._fd = transport.get_extra_info("socket").fileno()
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLOUT)

        def handle_connect(self, event: Any) -> None:
            super().handle_connect(event)
            if self.response.status_code == 101:
                state = self.scope["state"]
                state["welcome"], state["since"] = self.welcome, strangers.since(self.transport)
                self.conn.max_message_size = PRE_AUTH_BYTES
                state["socket"] = self

        def welcome(self) -> None:
            """Lift the limits of strangers: the gateway has accepted this socket's token."""
            strangers.leave(self.transport)
            self.conn.max_message_size = FRAME_BYTES

        async def room(self) -> None:
            """Wait until the kernel holds fewer than UNSENT_BYTES unsent.

            The transport alone does not tell: the kernel compares with its mark only between segments, so a send may
            succeed beyond it. `poll` compares at once.
            """
            # Up to UNSEEN_BYTES are written without a poll, which would cost a system call for each frame.
            if self._unseen < UNSEEN_BYTES and self.writable.is_set():
                return
            await self.writable.wait()
            self._unseen = 0
            if self.transport.is_closing() or self._poll.poll(0):
                return
            # A duplicate, because the loop refuses `add_writer` for a descriptor that belongs to a transport.
            waiting = os.dup(self._fd)
            self._behind = self.loop.create_future()
            try:
                self.loop.add_writer(waiting, self._caught_up)
                await self._behind
            finally:
                self.loop.remove_writer(waiting)
                os.close(waiting)

        def _caught_up(self) -> None:
            if self._behind is not None and not self._behind.done():
                self._behind.set_result(None)

        async def write(self, frames: list[bytes]) -> None:
            """Hand text frames to the kernel in one call."""
            if self.disconnected or self.close_sent or self.conn.state is not OPEN:
                raise ClientDisconnected
            data = b"".join([part for frame in frames for part in (_head(len(frame)), frame)])
            self._unseen += len(data)
            self.transport.write(data)

        def data_received(self, data: bytes) -> None:
            # After a failure bytes are still read, and thrown away: closing a socket with unread bytes sends RST, and
            # the peer would lose our close frame.
            if not self._failed:
                super().data_received(data)

        def handle_parser_exception(self) -> None:
            """Send the close frame that says why, and read on until the peer has read it or CLOSE_SECONDS are over."""
            said = self.conn.close_sent
            if self._failed or said is None:
                return
            self._failed = self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": said.code, "reason": said.reason})
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_timer = self.loop.call_later(CLOSE_SECONDS, self.transport.abort)
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

        async def send(self, message: Any) -> None:
            if message["type"] == "websocket.close":
                # A close does not wait for a peer that has stopped reading.
                self.writable.set()
                self.loop.call_later(CLOSE_SECONDS, self.transport.abort)
            await super().send(message)

        def keepalive_timeout(self) -> None:
            super().keepalive_timeout()
            self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            strangers.leave(self.transport)
            self._caught_up()
            super().connection_lost(exc)

    return Http, WebSocket


def _head(size: int) -> bytes:
    if size < 126:
        return bytes((0x81, size))
    return b"\x81\x7e" + size.to_bytes(2, "big") if size < 65536 else b"\x81\x7f" + size.to_bytes(8, "big")


class Server(uvicorn.Server):
    """Uvicorn that leaves signals to its caller."""

    def __init__(self, gateway: Gateway) -> None:
        http, websocket = _protocols(StrangerLimit())
        for name in ("uvicorn.error", "uvicorn.access"):
            # Lines below ERROR hold the query of a request, and some clients put their tokens there.
            logging.getLogger(name).setLevel(logging.ERROR)
            logging.getLogger(name).addFilter(_no_strangers_bytes)
        super().__init__(
            uvicorn.Config(
                gateway,
                http=http,
                ws=websocket,
                lifespan="off",
                log_config=None,
                access_log=False,
                ws_max_size=FRAME_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PING_SECONDS,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave every signal handler as it is."""
        yield


def _no_strangers_bytes(record: logging.LogRecord) -> bool:
    # Uvicorn logs this one with a traceback, so that any peer could fill the log by sending bad bytes.
    return not str(record.msg).startswith("Invalid UTF-8")


async def serve(gateway: Gateway, listener: socket.socket, ready: Callable[[], None], until: asyncio.Event) -> None:
    """Serve until `until` is set; call `ready` once requests are accepted."""
    server = Server(gateway)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="the server")
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if not serving.done():
        ready()
    stopped = asyncio.ensure_future(until.wait())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    await serving
