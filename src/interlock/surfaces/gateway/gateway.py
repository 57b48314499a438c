"""The ASGI application of a server: every route (WebSocket, page, health, metrics), and who may come in by it.

1. Host and Origin are checked before a request is routed. A socket that has shown no token is limited in time, bytes
   and number.
2. Rights belong to the principal, not to the connection. In the step that revokes a token its connections take no more
   requests, and nothing more is written to them; those that are being let in ask again when they are counted.
3. Wrong tokens are counted and refused by address, but a valid token is always accepted: otherwise anybody on the same
   machine could keep the operator from stopping a run.

Broadcast, or quiet. The published protocol tells a connection everything that its principal may see. Our own client
declares the capability `interlock.quiet.2` and is told only what it watches, with positions and replay. A connection
with `interlock.outline.2` is told besides, of everything its principal may see, what a list of sessions needs:
messages, starts, questions, children, endings, receipts and corrections, with long texts cut. So a page with a hundred
sessions is not sent their deltas. An event is worded and encoded once for all connections.

Scopes do two things. They say which methods a token may call (`frames.METHODS`), and they appoint the token's
principal in control (`Control.appoint`: admins, readers, writers, approvers), which then decides whose run is whose.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from importlib.metadata import version
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from interlock.access.audit import Audit
from interlock.access.changes import Changes
from interlock.access.failures import RATE_LIMITED, AuthFailures, fold
from interlock.access.origins import allowed_host, allowed_origin
from interlock.access.pairing import Codes
from interlock.access.tokens import Access
from interlock.client.chat import Chat
from interlock.client.door import House, Sink
from interlock.core.answers import Figures
from interlock.core.errors import InterlockError, Refused, Unknown
from interlock.core.events import Ended, Event, Source
from interlock.core.names import LOCAL, PASSING, EventKind, Principal
from interlock.core.scopes import Scope
from interlock.core.verbs import Measure
from interlock.protocol import frames
from interlock.surfaces.gateway.connection import FLUSH_SECONDS, Connection, Receive, Send
from interlock.surfaces.gateway.items import event_frame
from interlock.surfaces.gateway.own import OwnWording
from interlock.surfaces.gateway.published import PublishedWording
from interlock.surfaces.gateway.telling import AGENT
from interlock.surfaces.metrics import Meters
from interlock.surfaces.outbox import Pace
from interlock.surfaces.page import Page, address_of, refuse

ASGIScope = MutableMapping[str, Any]

STRANGERS: Final = 32  # sockets that have shown no token
STRANGERS_PER_ADDRESS: Final = 8

log = logging.getLogger("interlock.gateway")


class Hearing(Sink):
    """Counts every lasting event and reads it for the published wording, whether or not a connection is told.

    This never raises: the feed lets go of a sink that does, and then no connection would hear anything more.
    """

    __slots__ = ("_gateway",)

    kinds = frozenset(EventKind) - PASSING

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def take(self, event: Event, source: Source | None) -> bool:
        try:
            self._gateway.published.take(event, source)
            self._gateway.meters.count(event)
            if isinstance(event.data, Ended):
                known = {"run": event.run_id, "generation": event.generation, "session": event.session}
                log.info("ended", extra={"ending": event.data.outcome.ending.value, **known})
        except Exception:
            log.exception("an event could not be told", extra={"session": event.session, "run": event.run_id})
        return True

    def close(self, error: InterlockError | None) -> None:
        self._gateway.close()


class Gateway:
    """An ASGI application that serves one control."""

    def __init__(
        self,
        house: House,
        access: Access,
        audit: Audit,
        *,
        allow_hosts: Collection[str] = (),
        allow_origins: Collection[str] = (),
        name: str | None = None,
        stop_words: Collection[str] = (),
    ) -> None:
        self.house = house
        self.access = access
        self.audit = audit
        self.meters = Meters()
        self.chat = Chat(names=(AGENT, name or AGENT), stop_words=stop_words)
        self.closing = False
        self.connections: dict[Principal, set[Connection]] = {}
        self.failures = AuthFailures()
        self.codes = Codes()
        self.tokens = Changes(access)
        self._allow_hosts, self._allow_origins = tuple(allow_hosts), (*allow_hosts, *allow_origins)
        self._strangers: Counter[str] = Counter()
        self.published = PublishedWording()
        self.own = OwnWording()
        self.pace = Pace()
        self.version = VERSION
        self._began = time.monotonic()
        self._clockwork: asyncio.Task[None] | None = None
        self._page = Page(self)
        self._routes = Starlette(
            routes=[
                WebSocketRoute("/", _Raw(self._socket)),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                *self._page.routes,
            ],
            exception_handlers={404: refuse, 405: refuse},
        )
        self._routes.router.redirect_slashes = False
        self._appoint()
        access.heard = self._reconsider
        self._hearing = house.door(LOCAL).listen_to_all(Hearing(self), kinds=Hearing.kinds)

    # HTTP

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Serve an ASGI connection."""
        if scope["type"] in ("http", "websocket"):
            if self._clockwork is None:
                self._clockwork = asyncio.get_running_loop().create_task(self._tick(), name="gateway's clock")
            refused = self._unwelcome(scope)
            if refused is not None:
                address = address_of(scope)
                self.audit.note("refused", by="", address=address, why=refused, path=scope["path"])
                await _deny(scope, receive, send, 403, refused)
                return
        await self._routes(scope, receive, send)

    def _unwelcome(self, scope: ASGIScope) -> str | None:
        """Return why a request's Host or Origin is refused, or None."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        host = ",".join(hosts)
        if not allowed_host(host, self._allow_hosts):
            return "this host is not served here; name it with --allow-host"
        if origins and not allowed_origin(",".join(origins), host=host, allow=self._allow_origins):
            return "pages of this origin may not talk to this server; name it with --allow-origin"
        return None

    async def _health(self, request: HttpRequest) -> Response:
        return JSONResponse({"ok": not self.closing}, status_code=503 if self.closing else 200)

    async def _metrics(self, request: HttpRequest) -> Response:
        caller = self._page.caller(request)
        if isinstance(caller, Response):
            return caller
        if not caller.may(Scope.READ):
            address = address_of(request.scope)
            self.audit.note("refused", by=caller.name, address=address, why="/metrics needs scope read")
            return JSONResponse({"error": "this token may not read; use one with scope read"}, 403)
        return Response(self.meters.text(await self._figures()), media_type="text/plain; version=0.0.4; charset=utf-8")

    # What control calls, in the step in which it happens

    def close(self) -> None:
        """Tell every connection that the server restarts, and close it once its outbox is sent.

        Control calls this when it closes, after the last event.
        """
        self.closing = True
        for connection in self._everyone():
            connection.outbox.put(event_frame("shutdown", {"reason": "restart"}))
            connection.leave(frames.RESTART, "restart")
        if self._clockwork is not None:
            self._clockwork.cancel()
        self.audit.tell_left_out(at_once=True)
        self.tokens.close()

    # Principals

    def pair(self, by: Principal, scopes: Collection[Scope], name: str | None = None) -> str:
        """Return a code that lets in a page of the caller, or, for an admin, of any principal that has a token."""
        if name not in (None, by) and Scope.ADMIN not in scopes:
            raise Refused("only an admin may pair a page for somebody else; leave the name out")
        own = self.access.own(name or by)
        if own is None or not self.access.valid(own.digest):
            raise Unknown(f"there is no principal {name!r:.80}; `interlock token list` names them")
        return self.codes.make(own.name, own.digest, time.monotonic())

    async def overview(self) -> frames.Overview:
        """Return the figures of this gateway, for its operator."""
        return self.meters.overview(await self._figures(), uptime_seconds=self.uptime)

    async def _figures(self) -> Figures:
        return await self.house.door(LOCAL).ask(Measure())

    @property
    def uptime(self) -> float:
        """Seconds since this gateway was made."""
        return time.monotonic() - self._began

    def _appoint(self) -> None:
        """Tell control which principals are admins, readers, writers and approvers.

        A token with `read` and `write` makes its principal a writer too: control lets a mere reader change nothing.
        """
        callers = self.access.callers.values()
        self.house.appoint(
            admins=[each.name for each in callers if Scope.ADMIN in each.scopes],
            readers=[each.name for each in callers if Scope.READ in each.scopes],
            writers=[each.name for each in callers if Scope.WRITE in each.scopes],
            approvers=[each.name for each in callers if Scope.APPROVE in each.scopes],
        )

    def _reconsider(self) -> None:
        """Appoint anew, and close the connections whose token is gone; called in the step that changes the tokens."""
        self._appoint()
        for connection in self._everyone():
            connection.reconsider()

    def _everyone(self) -> list[Connection]:
        return [each for connections in self.connections.values() for each in connections]

    async def _tick(self) -> None:
        """Send a tick every TICK_SECONDS, and write how many refusals the audit left out."""
        while True:
            await anyio.sleep(frames.TICK_SECONDS)
            self.audit.tell_left_out()
            tick = event_frame("tick", {"ts": int(time.time() * 1000)}).body + b"}"
            for connection in self._everyone():
                connection.outbox.answer(tick, urgent=True)

    # Sockets

    async def _socket(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        address = address_of(scope)
        counted, state = fold(address), scope.get("state", {})
        welcome = state.get("welcome")
        full = self._strangers.total() >= STRANGERS or self._strangers[counted] >= STRANGERS_PER_ADDRESS
        # Where `welcome` is set the server is our own, which has counted this socket when it was accepted.
        if self.closing or (full and welcome is None):
            await _deny(scope, receive, send, 503, "too many connections without a token, or closing; try again")
            return
        connection = Connection(self, address, receive, send, state.get("socket"))
        with self._stranger(counted):
            caller = await connection.meet(state.get("since", time.monotonic()))
        if caller is not None:
            if welcome is not None:
                welcome()
            await connection.serve()

    def enter(self, connection: Connection) -> None:
        """Count a connection that has shown its token."""
        self.connections.setdefault(connection.by, set()).add(connection)
        self.meters.connections += 1
        connection.reconsider()  # its token may have been revoked while hello-ok was being sent
        known = {"by": connection.by, "address": connection.address, "conn": connection.id}
        log.debug("connected", extra=known)

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer."""
        mine = self.connections.get(connection.by, set())
        mine.discard(connection)
        if not mine:
            self.connections.pop(connection.by, None)
        self.meters.connections -= 1

    @contextlib.contextmanager
    def _stranger(self, address: str) -> Iterator[None]:
        self._strangers[address] += 1
        try:
            yield
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    def wrong_token(self, address: str, token: str | None) -> str:
        """Count a wrong token of an address, and return the error code that its sender is told."""
        now = time.monotonic()
        code = "AUTH_TOKEN_MISMATCH" if token else "AUTH_TOKEN_MISSING"
        if self.failures.blocked(address, now) is not None:
            code = RATE_LIMITED
        elif token:
            self.failures.failed(address, now)
        self.audit.note("refused", by="", address=address, why=code)
        return code

    async def shut(self) -> None:
        """Close, and wait for the outboxes to be sent, at most twice FLUSH_SECONDS."""
        self.close()
        with anyio.move_on_after(2 * FLUSH_SECONDS):
            while self._everyone():
                await anyio.sleep(0.01)
        self._hearing.close()
        self.audit.close()


VERSION: Final = version("interlock")


class _Raw:
    """An endpoint that speaks ASGI itself. It is an object because Starlette would wrap a function or a method."""

    def __init__(self, serve: Callable[[ASGIScope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


async def _deny(scope: ASGIScope, receive: Receive, send: Send, status: int, why: str) -> None:
    """Refuse a request over HTTP, also an upgrade to a WebSocket."""
    answer = JSONResponse({"error": {"type": "refused", "message": why}}, status)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await receive()
        await send({"type": "websocket.close", "code": frames.BROKEN_RULE, "reason": why[:120]})
    else:
        await answer(scope, receive, send)
