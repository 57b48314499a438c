"""The gateway: agents served over WebSocket, in the published protocol's words and our own.

1. Host and Origin are checked before a request is routed. A socket that has shown no token is limited in time, bytes
   and number.
2. Every connection has one outbox and one pump. A slow reader's connection is closed; no other connection waits for it.
3. The requests of a connection run concurrently and begin in the order in which they came. Stops have a budget of
   their own.
4. Rights belong to the principal, not to the connection. Revoking a token closes its connections.
5. Wrong tokens are counted and refused by address, but a valid token is always accepted: otherwise anybody on the same
   machine could keep the operator from stopping a run.

The gateway is one more subscriber of control's `Feed`. It hears every event in the step that admits it, and puts it
into the outbox of each connection whose principal may see it (`Control.sees`). So a fall takes a run's deltas back from
connections in the same step as from watchers.

Broadcast, or quiet. The published protocol tells a connection everything that its principal may see. Our own client
declares the capability `interlock.quiet` and is told only what it watches, with positions and replay. A connection with
`interlock.outline` is told besides, of everything its principal may see, what a list of sessions needs: messages,
starts, questions, children, endings, receipts and corrections, with long texts cut. So a page with a hundred sessions
is not sent their deltas. An event is encoded once for all connections.

Scopes do two things. They say which methods a token may call (`frames.METHODS`), and they appoint the token's
principal in control (`Control.appoint`: admins, readers, writers, approvers), which then decides whose run is whose.
The gateway reads the token files every ACCESS_SECONDS, and before each `connect`.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from interlock.core.errors import BadInput, InterlockError, Refused, Unknown
from interlock.core.events import Ended, Event
from interlock.core.names import EventKind, Principal, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.core.stopwords import is_stop
from interlock.runtime.control import Control
from interlock.runtime.naming import UnknownSession
from interlock.surfaces import frames, shapes
from interlock.surfaces.access import (
    RATE_LIMITED,
    Access,
    Audit,
    AuthFailures,
    Caller,
    Codes,
    Scope,
    allowed_host,
    allowed_origin,
    digest_of,
    fold,
)
from interlock.surfaces.frames import BadFrame, Request
from interlock.surfaces.methods import HANDLERS, is_typed
from interlock.surfaces.metrics import Meters
from interlock.surfaces.outbox import Outbox
from interlock.surfaces.page import Page, address_of, refuse
from interlock.surfaces.telling import AGENT, OUTLINE, Item, Teller, Watcher, event_item

ASGIScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CONNECT_SECONDS: Final = 5.0  # from the accepted socket to a valid token
STRANGERS: Final = 32  # sockets that have shown no token
STRANGERS_PER_ADDRESS: Final = 8
REQUESTS: Final = 64  # in flight on one connection, stops not counted
STOPS: Final = 64  # in flight on one connection
WATCHES: Final = 64  # of one connection
WRITE_BYTES: Final = 2048  # handed to the kernel in one call, unless one frame is larger
FLUSH_SECONDS: Final = 1.0  # to send the rest of an outbox when its connection closes
ACCESS_SECONDS: Final = 0.5  # between two reads of the token files
# By method: the kind of its line in the audit. Stops are audited by their receipts.
AUDITED: Final = {
    "exec.approval.resolve": "answer",
    "interlock.answer": "answer",
    "interlock.share": "share",
    "interlock.unshare": "unshare",
}
NOTED: Final = (  # parameters of a request that its line in the audit holds
    "with_", "may", "id", "question", "decision", "answer", "session_key", "session", "key", "run_id", "run", "task_id",
)  # fmt: skip
REASON_BYTES: Final = 120  # in a close frame
SCOPES: Final = {scope: f"operator.{'approvals' if scope is Scope.APPROVE else scope}" for scope in Scope}

SEEING: Final = frozenset({Scope.ADMIN, Scope.WRITE, Scope.READ})
ANSWERING: Final = frozenset({Scope.ADMIN, Scope.WRITE, Scope.APPROVE})

log = logging.getLogger("interlock.gateway")


class Gateway:
    """An ASGI application that serves one control."""

    def __init__(
        self,
        control: Control,
        access: Access,
        audit: Audit,
        *,
        allow_hosts: Collection[str] = (),
        allow_origins: Collection[str] = (),
        name: str | None = None,
        stop_words: Collection[str] = (),
    ) -> None:
        self.control = control
        self.access = access
        self.audit = audit
        self.meters = Meters(control)
        self.is_stop: Callable[[str], bool] = partial(is_stop, name=(AGENT, name or AGENT), also=tuple(stop_words))
        # The first call builds the tables of stop words; the first person who types a stop must not wait for that.
        self.is_stop("stop")
        self.closing = False
        self.connections: dict[Principal, set[Connection]] = {}
        self.failures = AuthFailures()
        self.codes = Codes()
        self._allow_hosts, self._allow_origins = tuple(allow_hosts), (*allow_hosts, *allow_origins)
        self._strangers: Counter[str] = Counter()
        self._teller = Teller()
        self.watcher = Watcher()
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
        control.feed.subscribe(None, self)
        control.guards.listen(self._take_back)

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
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # What control calls, in the step in which it happens

    def put(self, event: Event) -> None:
        """Put an event into the outbox of each connection whose principal may see it.

        This never raises: the feed drops a subscriber that does, and then no connection would hear anything more.
        """
        try:
            self.meters.count(event)
            if isinstance(event.data, Ended):
                known = {"run": event.run_id, "generation": event.generation, "session": event.session}
                log.info("ended", extra={"ending": event.data.outcome.ending.value, **known})
            listening = [principal for principal in self.connections if self._listens(principal, event)]
            names = {principal: self.control.naming.name_of(event.session, principal) for principal in listening}
            told = self._teller.tell(event, dict.fromkeys(names.values()) or (event.session,))
            for principal in listening:
                self._tell(principal, event, told[names[principal]])
        except Exception:
            log.exception("an event could not be told", extra={"session": event.session, "run": event.run_id})

    def _listens(self, principal: Principal, event: Event) -> bool:
        """Return whether a connection of this principal is told the event without watching its session."""
        outlined = event.kind in OUTLINE
        return any(not each.quiet or (outlined and each.outline) for each in self.connections[principal])

    def _tell(self, principal: Principal, event: Event, items: list[Item]) -> None:
        asked = event.kind is EventKind.QUESTION
        sees = self.control.sees(principal, event.session, event.run_id, question=asked)
        questions = [item for item in items if item.question]
        approves = questions and (sees or Scope.APPROVE in self._scopes_of(principal))
        for connection in self.connections[principal]:
            if sees and connection.scopes & SEEING:
                connection.tell(items, self.watcher.outline(event) if connection.outline else ())
            elif approves and connection.scopes & ANSWERING:
                connection.tell(questions, self.watcher.questions(event) if connection.outline else ())

    def _take_back(self) -> None:
        """Remove from every outbox the events that its principal may no longer see; called when rights change."""
        for connection in self._everyone():
            connection.outbox.keep(partial(self._sees, connection))

    def _sees(self, connection: "Connection", item: Item) -> bool:
        by = connection.by
        if item.session is None or (item.question and Scope.APPROVE in self._scopes_of(by)):
            return True
        if self.control.whose(item.session).owner is None and not connection.scopes & {Scope.ADMIN, Scope.READ}:
            # Memory does not know the session, and memory holds every change of a session's sharing. So there was
            # none: the principal might see this item when it was put into the outbox, and still may.
            return True
        return self.control.sees(by, item.session, item.run_id, question=item.question)

    def drop(self, run_id: RunId) -> None:
        """Take a cut run's unwritten deltas out of every outbox."""
        for connection in self._everyone():
            connection.outbox.drop(run_id)

    def close(self) -> None:
        """Tell every connection that the server restarts, and close it once its outbox is sent.

        Control calls this when it closes, after the last event.
        """
        self.closing = True
        for connection in self._everyone():
            connection.outbox.put(event_item("shutdown", {"reason": "restart"}))
            connection.leave(frames.RESTART, "restart")
        if self._clockwork is not None:
            self._clockwork.cancel()
        self.audit.tell_left_out(at_once=True)

    # Principals

    def pair(self, by: Principal, scopes: Collection[Scope], name: str | None = None) -> str:
        """Return a code that lets in a page of the caller, or, for an admin, of any principal that has a token."""
        if name not in (None, by) and Scope.ADMIN not in scopes:
            raise Refused("only an admin may pair a page for somebody else; leave the name out")
        digest = self.access.own(name or by)
        if digest is None:
            raise Unknown(f"there is no principal {name!r:.80}; `interlock token list` names them")
        return self.codes.make(Principal(name or by), digest, time.monotonic())

    async def overview(self) -> frames.Overview:
        """Return the figures of this gateway, for its operator."""
        uptime = time.monotonic() - self._began
        return self.meters.overview(grade=await self.control.grade(), uptime_seconds=uptime)

    def _scopes_of(self, principal: Principal) -> Collection[Scope]:
        caller = self.access.callers.get(principal)
        return () if caller is None else caller.scopes

    def _appoint(self) -> None:
        """Tell control which principals are admins, readers, writers and approvers.

        A token with `read` and `write` makes its principal a writer too: control lets a mere reader change nothing.
        """
        callers = self.access.callers.values()
        self.control.appoint(
            admins=[each.name for each in callers if Scope.ADMIN in each.scopes],
            readers=[each.name for each in callers if Scope.READ in each.scopes],
            writers=[each.name for each in callers if Scope.WRITE in each.scopes],
            approvers=[each.name for each in callers if Scope.APPROVE in each.scopes],
        )

    def look_again(self) -> None:
        """Read the token files again; if they changed, appoint anew and close the connections that lost their right."""
        if self.access.refresh():
            self._appoint()
            for connection in self._everyone():
                connection.reconsider()

    def _everyone(self) -> list["Connection"]:
        return [each for connections in self.connections.values() for each in connections]

    async def _tick(self) -> None:
        """Read the token files every ACCESS_SECONDS and send a tick every TICK_SECONDS."""
        ticked = time.monotonic()
        while True:
            await anyio.sleep(ACCESS_SECONDS)
            try:
                self.audit.tell_left_out()
                self.look_again()
            except Exception:
                log.exception("the tokens could not be looked at")
            if time.monotonic() - ticked >= frames.TICK_SECONDS:
                ticked = time.monotonic()
                tick = event_item("tick", {"ts": int(time.time() * 1000)}).head + b"}"
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
            await connection.serve(caller)

    @contextlib.contextmanager
    def _stranger(self, address: str) -> Iterator[None]:
        self._strangers[address] += 1
        try:
            yield
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    def hello(self, connection: "Connection", caller: Caller) -> dict[str, Any]:
        """Return the payload of `hello-ok`, the answer to `connect`."""
        return {
            "type": "hello-ok",
            "protocol": frames.PROTOCOL,
            "server": {"version": VERSION, "connId": connection.id},
            "features": {
                "methods": sorted(frames.METHODS),
                "events": list(frames.EVENTS),
                "capabilities": [frames.QUIET, frames.OUTLINE],
            },
            "snapshot": {
                # The caller alone: a principal may not see who else is connected.
                "presence": [{"ts": int(time.time() * 1000), "user": {"id": connection.by}}],
                "health": {"ok": True, "ts": int(time.time() * 1000)},
                "stateVersion": {"presence": 0, "health": 0},
                "uptimeMs": int((time.monotonic() - self._began) * 1000),
            },
            "auth": {"role": "operator", "scopes": sorted(SCOPES[scope] for scope in connection.scopes)},
            "policy": {
                "maxPayload": frames.FRAME_BYTES,
                "maxBufferedBytes": frames.BUFFER_BYTES,
                "tickIntervalMs": int(frames.TICK_SECONDS * 1000),
            },
        }

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
        self.control.feed.unsubscribe(None, self)
        self.control.guards.unlisten(self._take_back)
        self.audit.close()


VERSION: Final = version("interlock")


class _Raw:
    """An endpoint that speaks ASGI itself. It is an object because Starlette would wrap a function or a method."""

    def __init__(self, serve: Callable[[ASGIScope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


class Socket(Protocol):
    """A socket of our own server (surfaces/server), which tells when the kernel has room."""

    async def room(self) -> None:
        """Wait until the kernel holds little that is unsent."""
        ...

    def write(self, frames: list[bytes]) -> None:
        """Hand text frames to the kernel in one call; raises if the connection is over."""
        ...


class Connection:
    """One WebSocket: its principal, its requests in flight, its watches and its outbox."""

    def __init__(
        self, gateway: Gateway, address: str, receive: Receive, send: Send, socket: "Socket | None" = None
    ) -> None:
        self.gateway = gateway
        self.control = gateway.control
        self.address = address
        self.id = secrets.token_hex(8)
        self.by = Principal("")
        self.scopes: frozenset[Scope] = frozenset()
        # The scope of the pump: cancelled at an overflow, and FLUSH_SECONDS after `leave`.
        self._writing = anyio.CancelScope()
        self.outbox = Outbox(self._writing.cancel)
        self._asked_scopes: frozenset[Scope] = frozenset()
        self._digest = ""
        self._receive, self._send = receive, send
        self._socket = socket  # None under another ASGI server
        self._busy = Counter[bool]()  # requests in flight, by whether they stop something
        self._watches: dict[int, anyio.CancelScope] = {}
        self._tasks: TaskGroup | None = None
        self._closing: tuple[int, str] | None = None
        # True once the token is gone or has other scopes: a request that has not begun is then not begun any more.
        self._revoked = False

    # Before a token

    async def meet(self, since: float) -> Caller | None:
        """Send the challenge and read the token; None if it is refused. CONNECT_SECONDS count from `since`."""
        try:
            with anyio.fail_after(CONNECT_SECONDS - (time.monotonic() - since)):
                await self._receive()
                await self._send({"type": "websocket.accept"})
                challenge = event_item(
                    "connect.challenge", {"nonce": secrets.token_hex(16), "ts": int(time.time() * 1000)}
                )
                await self._send({"type": "websocket.send", "text": (challenge.head + b"}").decode()})
                text = await self._hear(frames.PRE_AUTH_BYTES)
                return None if text is None else await self._admit(frames.read_request(text))
        except TimeoutError:
            await self._shut(frames.BROKEN_RULE, "no connect request in time")
        except BadFrame as wrong:
            await self._shut(wrong.code, str(wrong))
        except (OSError, RuntimeError):
            pass  # the peer is gone, or the server has closed it for bytes that are no frame
        return None

    async def _hear(self, limit: int) -> str | None:
        """Return the next text frame, or None if the peer is gone."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        if text is None:
            raise BadFrame(frames.NOT_TEXT, "text frames only")
        if len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit):
            raise BadFrame(frames.TOO_BIG, f"a frame here has at most {limit} bytes")
        return str(text)

    async def _admit(self, request: Request) -> Caller | None:
        if request.method != "connect":
            return await self._turn_away(request, frames.fault("INVALID_REQUEST", "the first request is connect"))
        try:
            asked: shapes.Connect = frames.read_params(request, frames.METHODS["connect"]).params
        except InterlockError as error:
            return await self._turn_away(request, frames.error_of(error))
        if not asked.min_protocol <= frames.PROTOCOL <= asked.max_protocol:
            words = f"this server speaks protocol {frames.PROTOCOL}"
            details = {"code": "PROTOCOL_MISMATCH", "expectedProtocol": frames.PROTOCOL}
            return await self._turn_away(request, frames.fault("INVALID_REQUEST", words, **details))
        if asked.role != "operator":
            return await self._turn_away(request, frames.fault("INVALID_REQUEST", "only the role operator is served"))
        token = asked.auth.token
        self.gateway.look_again()
        caller = None if not token else self.gateway.access.who(token)
        if token is None or caller is None:
            code = self.gateway.wrong_token(self.address, token)
            words = "this token is unknown here; `interlock token path` says where the operator's is"
            return await self._turn_away(request, frames.fault("FORBIDDEN", words, code=code), frames.NO_TOKEN)
        self.by, self._digest = caller.name, digest_of(token)
        self._asked_scopes = _asked(asked.scopes)
        self.scopes = _granted(caller, self._asked_scopes)
        self.outline = frames.OUTLINE in asked.caps
        self.quiet = self.outline or frames.QUIET in asked.caps
        if self.outline:
            # Outline events carry watch 0, so a watch of the client's own may not have that number.
            self._watches[0] = anyio.CancelScope()
        await self._send_text(frames.response(request.id, self.gateway.hello(self, caller)))
        return caller

    async def _turn_away(
        self, request: Request, error: dict[str, Any], code: int = frames.BROKEN_RULE
    ) -> Caller | None:
        await self._send_text(frames.refusal(request.id, error))
        await self._shut(code, error["message"][:100])
        return None

    # Serving

    quiet = outline = False

    async def serve(self, caller: Caller) -> None:
        """Answer requests until either side closes."""
        gateway, mine = self.gateway, self.gateway.connections.setdefault(self.by, set())
        mine.add(self)
        gateway.meters.connections += 1
        log.debug("connected", extra={"by": self.by, "address": self.address, "conn": self.id})
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._pump)
                await self._listen()
                tasks.cancel_scope.cancel()
        finally:
            self.outbox.close()
            mine.discard(self)
            if not mine and gateway.connections.get(self.by) is mine:
                del gateway.connections[self.by]
            gateway.meters.connections -= 1
            why = (self._closing or (0, "the client left"))[1]
            log.debug("disconnected", extra={"by": self.by, "conn": self.id, "why": why})

    async def _listen(self) -> None:
        while True:
            try:
                text = await self._hear(frames.FRAME_BYTES)
                if text is None:
                    return
                self._take(frames.read_request(text))
            except BadFrame as wrong:
                self.leave(wrong.code, str(wrong))
                # The pump sends the rest and the close frame; returning at once would cancel it.
                await anyio.sleep(FLUSH_SECONDS)
                return

    async def _pump(self) -> None:
        """Write the outbox, at most WRITE_BYTES at a time; once the connection serves, this task alone writes."""
        # An error means that the peer is gone; `_listen` hears of it as well.
        with self._writing, contextlib.suppress(OSError, RuntimeError):
            while await self.outbox.wait():
                if self._socket is None:
                    for frame in self.outbox.take():
                        await self._send_text(frame)
                else:
                    # Take frames only when the kernel has room: a fall can still drop those in the outbox.
                    await self._socket.room()
                    self._socket.write(self.outbox.take(WRITE_BYTES))
        if self.outbox.overflowed:
            self._closing = self._closing or (frames.BROKEN_RULE, "too slow: more was said than this connection read")
            self.gateway.audit.note("refused", by=self.by, address=self.address, why=self._closing[1])
        code, reason = self._closing or (1000, "")
        await self._shut(code, reason)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def tell(self, items: Collection[Item], outline: Collection[Item]) -> None:
        """Add an event to the outbox: its outline where the connection has one, nothing where it is quiet."""
        for item in outline if self.outline else () if self.quiet else items:
            self.outbox.put(item)

    def leave(self, code: int, reason: str) -> None:
        """Close the connection once its outbox is sent, at the latest after FLUSH_SECONDS."""
        self._closing = self._closing or (code, reason)
        self.outbox.close()
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._writing.cancel)

    def reconsider(self) -> None:
        """Close the connection if its token is gone, or has other scopes than when it connected."""
        caller = self.gateway.access.callers.get(self.by)
        if caller is None or not self.gateway.access.valid(self._digest):
            self.gateway.audit.note("closed", by=self.by, address=self.address, why="its token was revoked")
            self._revoked = True
            self.outbox.keep(lambda item: False)
            self.leave(frames.NO_TOKEN, "this token was revoked")
        elif _granted(caller, self._asked_scopes) != self.scopes:
            self._revoked = True
            self.leave(frames.RESTART, "what this token may has changed; connect again")

    # Requests

    def _take(self, request: Request) -> None:
        if self._closing is not None:  # the principal's right may be gone
            return
        method = frames.METHODS.get(request.method)
        if method is None or request.method == "connect":
            words = f"no method {request.method[:80]!r} here; hello-ok lists them"
            self.outbox.answer(frames.refusal(request.id, frames.fault("INVALID_REQUEST", words)))
            return
        if not method.scopes & self.scopes and Scope.ADMIN not in self.scopes:
            needed = sorted(SCOPES[scope] for scope in method.scopes)
            words = f"{request.method} needs a token with scope {' or '.join(sorted(method.scopes))}"
            details = {"code": "MISSING_SCOPE", "missingScope": needed[0], "requiredScopes": needed}
            self.outbox.answer(frames.refusal(request.id, frames.fault("FORBIDDEN", words, **details)))
            self.gateway.audit.note("refused", by=self.by, address=self.address, why=words)
            return
        try:
            params, ignored, refused = frames.read_params(request, method)
            written: dict[str, str] = {}
            params = frames.resolve(params, partial(self._session_id, written))
            stops = method.stops or (isinstance(params, shapes.OwnChat) and is_typed(params, self.gateway.is_stop))
            if refused and not stops:  # a stop is never refused for its other fields
                raise frames.not_done(request, refused)
        except InterlockError as error:
            self.outbox.answer(frames.refusal(request.id, frames.error_of(error)), urgent=method.stops)
            return
        if self._busy[stops] >= (STOPS if stops else REQUESTS):
            fault = frames.fault("UNAVAILABLE", "too many requests in flight on this connection; wait for answers")
            self.outbox.answer(frames.refusal(request.id, fault | {"retryable": True}), urgent=stops)
            return
        assert self._tasks is not None
        self._busy[stops] += 1
        self._tasks.start_soon(self._answer, request, params, stops, (*ignored, *refused), written)

    def _session_id(self, written: dict[str, str], name: str) -> SessionId:
        """Return a session's id, and remember in `written` what a refusal may call it.

        A refusal repeats the name that the caller wrote. Sessions of schema 1 have ids without an owner, and such an
        id in a refusal would tell the caller that the session exists.
        """
        session = self.control.naming.id_of(name, self.by)
        written[session] = name if "/" in name else session
        return session

    def _error(self, error: InterlockError, written: Mapping[str, str]) -> dict[str, Any]:
        if isinstance(error, UnknownSession):
            error = UnknownSession(written.get(error.session, error.session), self.by)
        return frames.error_of(error)

    def _nothing(self, payload: Any, written: Mapping[str, str]) -> Any:
        """Return an answer; a receipt in it that ended nothing names its session as the caller wrote it."""
        found = payload.get("receipt") if isinstance(payload, dict) else payload
        if not isinstance(found, Receipt) or found.id is not None or found.session is None:
            return payload
        named = SessionId(written.get(found.session, found.session))
        receipt = msgspec.structs.replace(found, session=named)
        return payload | {"receipt": receipt} if isinstance(payload, dict) else receipt

    async def _answer(
        self, request: Request, params: Any, stops: bool, ignored: tuple[str, ...], written: Mapping[str, str]
    ) -> None:
        arrived = time.time()
        session: SessionId | None = None
        if self._revoked:  # the right was taken away after the request was read
            return
        try:
            asking = Asking(self, request, ignored, written)
            payload = self._nothing(asking.told(await HANDLERS[request.method](asking, params)), written)
            frame = frames.response(request.id, payload)
            receipts = _receipts_in(payload)
            for receipt in receipts:
                session = receipt.session
                if not receipt.again:
                    self._note_stop(request, receipt, arrived)
            if not receipts and request.method in AUDITED:
                self._note(AUDITED[request.method], request, params)
        except InterlockError as error:
            frame = frames.refusal(request.id, self._error(error, written))
            if stops or request.method in AUDITED:
                self._note("refused", request, params, why=str(error))
        except asyncio.CancelledError:
            if stops:  # the stop counts although its caller left before the answer
                self._note("stop", request, params, why="the caller left before the answer")
            raise
        except Exception:
            log.exception("request failed", extra={"method": request.method, "conn": self.id})
            error_frame = frames.fault("UNAVAILABLE", "something went wrong here; the log has it, try again")
            frame = frames.refusal(request.id, error_frame | {"retryable": True})
        finally:
            self._busy[stops] -= 1
        about = getattr(params, "session_key", None) or getattr(params, "session", None)
        self.outbox.answer(frame, about=about, hasten=session, urgent=stops)

    def _note_stop(self, request: Request, receipt: Receipt, arrived: float) -> None:
        if receipt.aborted:
            self.gateway.meters.fenced(receipt.fenced_at - arrived)
        runs = ",".join(run.id for run in receipt.runs)
        facts = {"method": request.method, "session": receipt.session, "runs": runs, "receipt": receipt.id}
        self.gateway.audit.note("stop", by=self.by, address=self.address, aborted=receipt.aborted, **facts)

    def _note(self, kind: str, request: Request, params: Any, **facts: object) -> None:
        for name in NOTED:
            if (value := getattr(params, name, None)) is not None:
                facts[name] = value
        self.gateway.audit.note(kind, by=self.by, address=self.address, method=request.method, **facts)

    # Watching

    def watch(self, wanted: shapes.OwnWatch, written: Mapping[str, str]) -> None:
        """Send this connection the events of a session or a run, as `interlock.event` frames."""
        if wanted.watch in self._watches or len(self._watches) >= WATCHES:
            raise BadInput(f"watch {wanted.watch} is taken, or there are {WATCHES} already; unwatch one")
        assert self._tasks is not None
        self._watches[wanted.watch] = scope = anyio.CancelScope()
        self._tasks.start_soon(self._follow, wanted, scope, written)

    async def _follow(self, wanted: shapes.OwnWatch, scope: anyio.CancelScope, written: Mapping[str, str]) -> None:
        over = frames.Watched(watch=wanted.watch)
        try:
            with scope:
                events = self.control.watch(wanted.session, run=wanted.run, after=wanted.after, by=self.by)
                async with contextlib.aclosing(events):
                    async for event in events:
                        self.outbox.put(self.gateway.watcher.tell(wanted.watch, event))
                        await self.outbox.room()
        except InterlockError as error:
            over = frames.Watched(watch=wanted.watch, error=self._error(error, written))
        self._watches.pop(wanted.watch, None)
        self.outbox.put(event_item("interlock.event", over))

    def unwatch(self, number: int) -> None:
        """End a watch."""
        if (scope := self._watches.get(number)) is not None:
            scope.cancel()

    # The socket

    async def _send_text(self, frame: bytes) -> None:
        await self._send({"type": "websocket.send", "text": frame.decode()})

    async def _shut(self, code: int, reason: str) -> None:
        with contextlib.suppress(OSError, RuntimeError), anyio.move_on_after(FLUSH_SECONDS):
            short = reason.encode()[:REASON_BYTES].decode(errors="ignore")
            await self._send({"type": "websocket.close", "code": code, "reason": short})


class Asking:
    """What the handler of one request sees of its connection."""

    __slots__ = ("_connection", "_ignored", "_request", "by", "control", "is_stop", "overview", "unwatch", "watch")

    def __init__(
        self, connection: Connection, request: Request, ignored: tuple[str, ...], written: Mapping[str, str]
    ) -> None:
        self._connection, self._request, self._ignored = connection, request, ignored
        self.watch = partial(connection.watch, written=written)
        self.control, self.by, self.is_stop = connection.control, connection.by, connection.gateway.is_stop
        self.unwatch, self.overview = connection.unwatch, connection.gateway.overview

    def first(self, payload: dict[str, Any], about: SessionId) -> None:
        """Send the first of two answers to a request; the handler returns the second."""
        self._connection.outbox.answer(frames.response(self._request.id, self.told(payload)), about=about)

    def name(self, session: SessionId) -> str:
        """Return a session's name as the caller writes it."""
        return self.control.naming.name_of(session, self.by)

    def told(self, payload: Any) -> Any:
        """Return an answer with the names of the fields that were ignored, if there were any."""
        return payload | {"ignored": self._ignored} if self._ignored and isinstance(payload, dict) else payload

    def pair(self, name: str | None) -> str:
        """Return a code that lets a page in."""
        return self._connection.gateway.pair(self.by, self._connection.scopes, name)


def _receipts_in(payload: Any) -> list[Receipt]:
    found = payload.get("receipt") if isinstance(payload, dict) else payload
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, Receipt)]


def _asked(names: Collection[str]) -> frozenset[Scope]:
    """Return the scopes that a client asks for: all of them if it names admin or none."""
    known = frozenset(scope for scope, name in SCOPES.items() if name in names)
    return frozenset(Scope) if not names or Scope.ADMIN in known else known


def _granted(caller: Caller, asked: frozenset[Scope]) -> frozenset[Scope]:
    return frozenset(scope for scope in asked if caller.may(scope))


async def _deny(scope: ASGIScope, receive: Receive, send: Send, status: int, why: str) -> None:
    """Refuse a request over HTTP, also an upgrade to a WebSocket."""
    answer = JSONResponse({"error": {"type": "refused", "message": why}}, status)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await receive()
        await send({"type": "websocket.close", "code": frames.BROKEN_RULE, "reason": why[:120]})
    else:
        await answer(scope, receive, send)
