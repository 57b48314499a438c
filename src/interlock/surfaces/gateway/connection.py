"""One WebSocket of the gateway: its token, its requests, its watches and its outbox.

1. A connection has one outbox and one pump. A slow reader's connection is closed; no other connection waits for it.
2. The requests of a connection run concurrently and begin in the order in which they came. A stop takes effect in the
   step that reads its frame, however many are in flight; only the answers are bounded. A person who presses stop a
   hundred times, and a program that stops a hundred runs, must not leave the last of them running.
3. A connection hears events in the step that publishes them: it is a sink of the feed for each of its watches, and for
   all that its principal may see, unless it is quiet.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import anyio

from interlock.access.tokens import Holder, digest_of
from interlock.client.client import Client
from interlock.client.door import Everything, Inside
from interlock.core.errors import BadInput, InterlockError, Unavailable
from interlock.core.names import Principal, SessionId
from interlock.core.receipt import Receipt
from interlock.core.scopes import Scope
from interlock.protocol import frames, shapes
from interlock.protocol.frames import BadFrame, Request
from interlock.surfaces.gateway import telling
from interlock.surfaces.gateway.context import RequestContext
from interlock.surfaces.gateway.items import event_frame
from interlock.surfaces.gateway.methods import BEGINS, HANDLERS
from interlock.surfaces.gateway.own import OUTLINE
from interlock.surfaces.gateway.sinks import Telling, Watching
from interlock.surfaces.gateway.stops import Answering
from interlock.surfaces.gateway.telling import SCOPES
from interlock.surfaces.outbox import Line, Outbox, pump

if TYPE_CHECKING:
    from interlock.surfaces.gateway.gateway import Gateway

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CONNECT_SECONDS: Final = 5.0  # from the accepted socket to a valid token
FRAMES_AT_ONCE: Final = 32  # read in one step of the loop
REQUESTS: Final = 64  # in flight on one connection, stops not counted
STOP_ANSWERS: Final = 256  # answers of stops in flight on one connection
WATCHES: Final = 64  # of one connection
FLUSH_SECONDS: Final = 1.0  # to send the rest of an outbox when its connection closes
# By method: the kind of its line in the audit. Stops are audited by their receipts.
AUDITED: Final = {
    "exec.approval.resolve": "answer",
    "interlock.answer": "answer",
    "interlock.share": "share",
    "interlock.unshare": "unshare",
    "interlock.token.add": "token",
    "interlock.token.remove": "token",
    "interlock.token.rotate": "token",
}
NOTED: Final = (  # parameters of a request that its line in the audit holds
    "name", "scopes", "with_", "may", "id", "question", "decision", "answer", "session_key", "session", "key", "run_id",
    "run", "task_id",
)  # fmt: skip
REASON_BYTES: Final = 120  # in a close frame
SEEING: Final = frozenset({Scope.ADMIN, Scope.WRITE, Scope.READ})
ANSWERING: Final = frozenset({Scope.ADMIN, Scope.WRITE, Scope.APPROVE})

log = logging.getLogger("interlock.gateway")


class AsgiLine:
    """The line of a connection under somebody else's ASGI server, which buffers as it likes."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def room(self) -> None:
        """Return at once: such a server does not say when it has room."""

    async def write(self, frames: list[bytes]) -> None:
        """Send frames one after another."""
        for frame in frames:
            await self._send({"type": "websocket.send", "text": frame.decode()})


class Connection:
    """One WebSocket: its principal, its requests in flight, its watches and its outbox."""

    quiet = outline = outdated = False

    def __init__(
        self, gateway: "Gateway", address: str, receive: Receive, send: Send, line: Line | None = None
    ) -> None:
        self.gateway = gateway
        self.address = address
        self.id = secrets.token_hex(8)
        self.by = Principal("")
        # Set when the token is read: before that there is nobody to ask for.
        self.door: Inside
        self.client: Client
        self.scopes: frozenset[Scope] = frozenset()
        # The scope of the pump: cancelled at an overflow, and FLUSH_SECONDS after `leave`.
        self._writing = anyio.CancelScope()
        self.outbox = Outbox(gateway.pace, self._writing.cancel)
        self._digest = ""
        self._revoked = False
        # The last answer, if a request of this connection ends its own token.
        self.parting: bytes | None = None
        self._receive, self._send = receive, send
        self._line = AsgiLine(send) if line is None else line
        self._busy = Counter[bool]()  # answers in flight, by whether they are those of stops
        self._watches: dict[int, Watching] = {}
        self._everything: Everything | None = None
        self._tasks: dict[asyncio.Task[None], bool] = {}  # by whether its request took effect when it was read
        self._serving: anyio.CancelScope | None = None
        self._closing: tuple[int, str] | None = None

    # Before a token

    async def meet(self, since: float) -> Holder | None:
        """Send the challenge and read the token; None if it is refused. CONNECT_SECONDS count from `since`."""
        try:
            with anyio.fail_after(CONNECT_SECONDS - (time.monotonic() - since)):
                await self._receive()
                await self._send({"type": "websocket.accept"})
                challenge = event_frame(
                    "connect.challenge", {"nonce": secrets.token_hex(16), "ts": int(time.time() * 1000)}
                )
                await self._send({"type": "websocket.send", "text": (challenge.body + b"}").decode()})
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

    async def _admit(self, request: Request) -> Holder | None:
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
        caller = None if not token else self.gateway.access.who(token)
        if token is None or caller is None:
            code = self.gateway.wrong_token(self.address, token)
            words = "this token is unknown here; `interlock token path` says where the operator's is"
            return await self._turn_away(request, frames.fault("FORBIDDEN", words, code=code), frames.NO_TOKEN)
        self.by, self._digest = caller.name, digest_of(token)
        self.door = self.gateway.house.door(self.by)
        self.client = Client(self.door)
        self.scopes = frozenset(scope for scope in _asked(asked.scopes) if caller.may(scope))
        self.outdated = frames.OUTDATED.intersection(asked.caps) != frozenset() and frames.QUIET not in asked.caps
        self.outline = frames.OUTLINE in asked.caps
        self.quiet = self.outdated or self.outline or frames.QUIET in asked.caps
        gateway = self.gateway
        hello = telling.hello(self.by, self.id, self.scopes, version=gateway.version, uptime=gateway.uptime)
        await self._send({"type": "websocket.send", "text": frames.response(request.id, hello).decode()})
        return caller

    async def _turn_away(
        self, request: Request, error: dict[str, Any], code: int = frames.BROKEN_RULE
    ) -> Holder | None:
        await self._send({"type": "websocket.send", "text": frames.refusal(request.id, error).decode()})
        await self._shut(code, error["message"][:100])
        return None

    # Serving

    async def serve(self) -> None:
        """Answer requests until either side closes."""
        gateway = self.gateway
        gateway.enter(self)
        self._everything = self._follow_all()
        try:
            async with anyio.create_task_group() as tasks:
                self._serving = tasks.cancel_scope
                tasks.start_soon(self._pump)
                await self._listen()
                tasks.cancel_scope.cancel()
        finally:
            self.outbox.close()
            if self._everything is not None:
                self._everything.close()
            for watching in list(self._watches.values()):
                if watching.listening is not None:
                    watching.listening.close()
            gateway.leave(self)
            why = (self._closing or (0, "the client left"))[1]
            log.debug("disconnected", extra={"by": self.by, "conn": self.id, "why": why})
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(self._tasks, timeout=FLUSH_SECONDS)

    def _follow_all(self) -> Everything | None:
        """Hear what the principal may see: everything, or the outline of it; nothing if the connection is quiet."""
        if self.quiet and not self.outline:
            return None
        sees, answers = bool(self.scopes & SEEING), bool(self.scopes & ANSWERING)
        return self.door.listen_to_all(
            Telling(self) if sees else None,
            approver=Telling(self, questions=True) if answers else None,
            kinds=OUTLINE if self.outline else None,
        )

    async def _listen(self) -> None:
        for number in itertools.count(1):
            try:
                text = await self._hear(frames.FRAME_BYTES)
                if text is None:
                    return
                self._take(frames.read_request(text))
                # Frames that are there already are read without a pause; others must have their turn between them.
                if number % FRAMES_AT_ONCE == 0:
                    await asyncio.sleep(0)
            except BadFrame as wrong:
                self.leave(wrong.code, str(wrong))
                # The pump sends the rest and the close frame; returning at once would cancel it.
                await anyio.sleep(FLUSH_SECONDS)
                return

    async def _pump(self) -> None:
        """Write the outbox; once the connection serves, this task alone writes."""
        # An error means that the peer is gone; `_listen` hears of it as well.
        with self._writing, contextlib.suppress(OSError, RuntimeError):
            await pump(self.outbox, self._line)
        if self.outbox.overflowed:
            self._closing = self._closing or (frames.BROKEN_RULE, "too slow: more was said than this connection read")
            self.gateway.audit.note("refused", by=self.by, address=self.address, why=self._closing[1])
        code, reason = self._closing or (1000, "")
        await self._shut(code, reason)
        if self._serving is not None:
            self._serving.cancel()

    def leave(self, code: int, reason: str) -> None:
        """Close the connection once its outbox is sent, at the latest after FLUSH_SECONDS."""
        self._closing = self._closing or (code, reason)
        self.outbox.close()
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._writing.cancel)

    def reconsider(self) -> None:
        """Close the connection if its token is gone: nothing waiting is sent, and no request begins or goes on.

        A request that took effect when it was read is left alone: its message is sent, or its stop made, already.
        """
        if self._revoked or self.gateway.access.valid(self._digest):
            return
        self._revoked = True
        self.gateway.audit.note("closed", by=self.by, address=self.address, why="its token was revoked")
        self.outbox.clear()
        if self.parting is not None:
            self.outbox.answer(self.parting)
        self.leave(frames.NO_TOKEN, "this token was revoked")
        for task, took_effect in self._tasks.items():
            if not took_effect:
                task.cancel()

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
        asking = RequestContext(self, request)
        begun: Answering | None = None
        stops = method.stops
        try:
            params, ignored, refused = frames.read_params(request, method)
            params = frames.resolve(params, asking.session_id)
            asking.ignored = (*ignored, *refused)
            asking.typed = isinstance(params, shapes.OwnChat) and self._is_command(params)
            stops = stops or asking.typed
            if self.outdated and not stops:
                raise BadInput(frames.RELOAD)
            if refused and not stops:  # a stop is never refused for its other fields
                raise frames.not_done(request, refused)
            if not stops and self._busy[False] >= REQUESTS:
                raise Unavailable("too many requests in flight on this connection; wait for answers")
            if (begin := BEGINS.get(request.method)) is not None:
                asking.arrived = time.time()
                begun = begin(asking, params)
            if stops and self._busy[True] >= STOP_ANSWERS:
                raise Unavailable("the stop counts, but too many answers are in flight here; ask for its receipt later")
        except InterlockError as error:
            told = asking.error(error)
            # A stop that counts is not to be sent again: it could end what began since.
            told |= {"retryable": False} if begun is not None else {}
            self.outbox.answer(frames.refusal(request.id, told), urgent=stops)
            if stops and asking.arrived:
                self._note("refused" if begun is None else "stop", request, params, why=str(error))
            return
        self._busy[stops] += 1
        self._start(self._answer(asking, params, begun, stops), took_effect=begun is not None)

    def _is_command(self, asked: shapes.OwnChat) -> bool:
        return self.gateway.chat.is_command(asked.message, forwarded=asked.suppress_command_interpretation)

    def _start(self, work: Coroutine[Any, Any, None], *, took_effect: bool = False) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = took_effect
        task.add_done_callback(self._tasks.pop)

    async def _answer(self, asking: RequestContext, params: Any, begun: Answering | None, stops: bool) -> None:
        request = asking.request
        ended: set[SessionId] = set()
        try:
            payload = await (HANDLERS[request.method](asking, params) if begun is None else begun())
            payload = asking.nothing(asking.told(payload))
            frame = frames.response(request.id, payload)
            receipts = _receipts_in(payload)
            ended = {receipt.session for receipt in receipts if receipt.session is not None}
            for receipt in receipts:
                if not receipt.again:
                    self._note_stop(request, receipt, asking.arrived or time.time())
            if not receipts and request.method in AUDITED:
                self._note(AUDITED[request.method], request, params)
        except InterlockError as error:
            frame = frames.refusal(request.id, asking.error(error))
            if stops or request.method in AUDITED:
                self._note("refused", request, params, why=str(error))
        except asyncio.CancelledError:
            # A stop counts although its caller left before the answer, and so may a change of tokens or shares.
            if stops or request.method in AUDITED:
                kind = AUDITED.get(request.method, "stop")
                self._note(kind, request, params, why="the connection ended before the answer")
            raise
        except Exception:
            log.exception("request failed", extra={"method": request.method, "conn": self.id})
            error_frame = frames.fault("UNAVAILABLE", "something went wrong here; the log has it, try again")
            frame = frames.refusal(request.id, error_frame | {"retryable": True})
        finally:
            self._busy[stops] -= 1
        about = getattr(params, "session_key", None) or getattr(params, "session", None)
        self.outbox.answer(frame, about=about, hasten=ended, urgent=stops)

    def _note_stop(self, request: Request, receipt: Receipt, arrived: float) -> None:
        if receipt.aborted:
            self.gateway.meters.fenced(receipt.fenced_at - arrived)
        runs = ",".join(run.id for run in receipt.runs)
        facts = {"method": request.method, "session": receipt.session, "runs": runs, "receipt": receipt.id}
        self.gateway.audit.note("stop", by=self.by, address=self.address, aborted=receipt.aborted, **facts)

    def _note(self, kind: str, request: Request, params: Any, **facts: object) -> None:
        for name in NOTED:
            if (value := getattr(params, name, None)) is not None:
                facts[name] = ",".join(value) if isinstance(value, tuple) else value
        self.gateway.audit.note(kind, by=self.by, address=self.address, method=request.method, **facts)

    # Watching

    def watch(self, wanted: shapes.OwnWatch, error_of: Callable[[InterlockError], Any]) -> None:
        """Send this connection the events of a session or a run, as `interlock.event` frames."""
        # Outline events carry watch 0.
        taken = wanted.watch in self._watches or (self.outline and wanted.watch == 0)
        if taken or len(self._watches) >= WATCHES:
            raise BadInput(f"watch {wanted.watch} is taken, or there are {WATCHES} already; unwatch one")
        self._watches[wanted.watch] = watching = Watching(self, wanted.watch, error_of)
        self._start(self._begin(wanted, watching))

    async def _begin(self, wanted: shapes.OwnWatch, watching: Watching) -> None:
        try:
            listening = await self.client.listen(
                watching, wanted.session, run=wanted.run, after=wanted.after, begin=wanted.begin
            )
        except InterlockError as error:
            watching.end(error)
            return
        if listening is None:
            watching.end(None)
        elif self._watches.get(wanted.watch) is not watching:
            # The watch ended while control asked for the right.
            listening.close()
        else:
            watching.listening = listening
            listening.resume()

    def unwatch(self, number: int) -> None:
        """End a watch."""
        watching = self._watches.get(number)
        if watching is not None and watching.listening is not None:
            watching.listening.close()
        elif watching is not None:
            watching.end(None)

    def forget_watch(self, number: int, watching: Watching) -> None:
        """Free the number of a watch that is over."""
        if self._watches.get(number) is watching:
            del self._watches[number]

    # The socket

    async def _shut(self, code: int, reason: str) -> None:
        with contextlib.suppress(OSError, RuntimeError), anyio.move_on_after(FLUSH_SECONDS):
            short = reason.encode()[:REASON_BYTES].decode(errors="ignore")
            await self._send({"type": "websocket.close", "code": code, "reason": short})


def _receipts_in(payload: Any) -> list[Receipt]:
    found = payload.get("receipt") if isinstance(payload, dict) else payload
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, Receipt)]


def _asked(names: Collection[str]) -> frozenset[Scope]:
    """Return the scopes that a client asks for: all of them if it names admin or none."""
    known = frozenset(scope for scope, name in SCOPES.items() if name in names)
    return frozenset(Scope) if not names or Scope.ADMIN in known else known
