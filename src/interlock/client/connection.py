"""A connection to a gateway that is made again when it drops.

1. A request gets its answer, its error, or Dropped; its caller decides whether to ask again.
2. A listening whose sink has no room drops what it is told, and asks for it again; no other listening waits for it.
3. No call waits for ever: after `patience` seconds without a connection it raises Unavailable.
4. The token is in the first frame and nowhere else: no URL, no error, no repr.
5. A refused token raises at once, and so does a first connection that fails. Only a connection that dropped is dialled
   again.
"""

import asyncio
import contextlib
import itertools
import json
import math
import platform
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from interlock.core.errors import BadInput, InterlockError, Refused, Unavailable
from interlock.protocol.frames import ERRORS, FRAME_BYTES, METHODS, PROTOCOL, QUIET, Watched

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

OPEN_SECONDS: Final = 10.0  # from dialling to hello-ok
CLOSE_SECONDS: Final = 1.0
PING_SECONDS: Final = 10.0  # between pings, and for each answer
INSIST_SECONDS: Final = 2.0  # the longest pause before a request that was Unavailable is sent again
PAUSE_SECONDS: Final = (0.1, 5.0)  # between two dials: the first pause, the longest
ANSWER_BYTES: Final = 32 * 1024 * 1024
# A request that drops every connection on which it is sent is given up after so many tries.
TRIES: Final = 8
T = TypeVar("T")
NEWER: Final = "this client does not understand the gateway's answer; install the same version on both sides"
UNPAIRED: Final = frozenset({"NOT_PAIRED", "PAIRING_REQUIRED", "DEVICE_IDENTITY_REQUIRED"})  # codes of other gateways
WEB: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Dropped(Exception):
    """The connection is gone; whether the request took effect is not known."""


class Later(Exception):
    """No server could be reached; the text says why, and the next dial may succeed."""


class _Frame(msgspec.Struct, frozen=True):
    type: str
    id: str = ""
    ok: bool = False
    payload: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None
    event: str = ""


NO_SUCH_TOKEN: Final = (
    "the gateway does not know this token; name its data directory, or ask whoever runs it for a token"
)
_frame = msgspec.json.Decoder(_Frame)
_watched = msgspec.json.Decoder(Watched)
_encode = msgspec.json.Encoder().encode


class Heard(Protocol):
    """A listening that hears the frames of one watch."""

    def says(self, run: str) -> bool | None:
        """Return whether a run has not fallen; None if this listening does not know."""
        ...

    def put(self, told: Watched) -> None:
        """Take a frame."""
        ...

    def end(self, told: Watched | None) -> None:
        """Note that there will be no further frame."""
        ...


class Link:
    """One accepted connection: its requests in flight and its watches."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[_Frame | None]] = {}
        self._listenings: dict[int, Heard] = {}
        self._last_words: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, params: bytes) -> Any:
        """Send a request and return its answer; raise its error, or Dropped."""
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - an extra

        number = str(next(self._numbers))
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            frame = b'{"type":"req","id":"%b","method":"%b","params":%b}' % (number.encode(), method.encode(), params)
            await self._socket.send(frame, text=True)
            found = await answer
        except ConnectionClosed:
            found = None
        finally:
            del self._asked[number]
        if found is None:
            raise Dropped
        if not found.ok:
            raise error_of(found.error or {})
        try:
            return msgspec.json.decode(found.payload, type=METHODS[method].result or Any)
        except msgspec.MsgspecError:
            raise Refused(NEWER) from None

    async def listen(self) -> None:
        """Hand frames to their requests and watches until the connection is gone."""
        async for text in self._socket:  # ends without an error after a close frame
            frame = _frame.decode(text)
            if frame.type == "res":
                answer = self._asked.get(frame.id)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            elif frame.event == "interlock.event":
                told = _watched.decode(frame.payload)
                if (listening := self._listenings.get(told.watch)) is not None:
                    listening.put(told)

    async def end(self) -> None:
        """End every request with Dropped and every watch, and close the socket."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)
        for listening in list(self._listenings.values()):
            listening.end(None)
        for task in self._last_words:
            task.cancel()
        await self._socket.close()

    def is_current(self, run: str) -> bool:
        """Return whether a watch of this connection knows that a run goes on, and none knows of its fall."""
        said = {listening.says(run) for listening in self._listenings.values()}
        return True in said and False not in said

    def follow(self, listening: "Heard") -> int:
        """Give a listening the frames of a new watch; return the number of the watch."""
        number = next(self._numbers)
        self._listenings[number] = listening
        return number

    def unfollow(self, number: int) -> None:
        """End a watch, without waiting for the gateway."""
        if self._listenings.pop(number, None) is not None:
            task = asyncio.get_running_loop().create_task(self._unwatch(number))
            self._last_words.add(task)
            task.add_done_callback(self._last_words.discard)

    async def _unwatch(self, number: int) -> None:
        with contextlib.suppress(Dropped, InterlockError):
            await self.ask("interlock.unwatch", _encode({"watch": number}))


class Connection:
    """Sends requests to a gateway, over one link after another."""

    def __init__(self, url: str, token: str | None, *, data: str | Path | None, patience: float) -> None:
        self.url, self._dialled = addresses(url)
        if (token is None) == (data is None):
            raise BadInput(
                "say who you are with one of token= or data=, the data directory of a server on this machine"
            )
        self._token, self._data = token, None if data is None else Path(data)
        self.patience = patience
        self._link: Link | None = None
        self._failure: InterlockError | None = None
        self._why = "it was not tried yet"
        self._news = asyncio.Event()  # set while there is a link, or once there will be none
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, or raise why that failed."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"connection to {self.url}")
        await self.linked()

    async def close(self) -> None:
        """Close the connection. Pending calls raise; runs go on."""
        self._failure = self._failure or BadInput("this client is closed; connect again")
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))

    async def _keep(self) -> None:
        """Keep a connection until the client is closed."""
        pause, longest = PAUSE_SECONDS
        met = False
        while True:
            try:
                link = await self._dial(met)
            except Later as why:
                self._why = str(why)
            except InterlockError as failure:
                self._failure = failure
                self._news.set()
                return
            else:
                pause, met, self._link = PAUSE_SECONDS[0], True, link
                self._news.set()
                try:
                    await link.listen()
                except (msgspec.MsgspecError, UnicodeError):
                    self._failure = Refused(NEWER)
                    return
                except Exception as gone:  # websockets' errors for a broken connection
                    self._why = str(gone) or type(gone).__name__
                finally:
                    # Clear the link before it ends: a caller that gets Dropped at once asks for the next link.
                    self._link = None
                    if self._failure is None:
                        self._news.clear()
                    await link.end()
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, longest)

    def is_current(self, run: str) -> bool:
        """Return whether a run that is watched over this connection has not fallen; False while there is none."""
        return self._link is not None and self._link.is_current(run)

    async def linked(self, until: float = math.inf) -> Link:
        """Return the link, waiting for the next one if there is none."""
        until = min(until, monotonic() + self.patience)
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                while self._link is None:
                    if self._failure is not None:
                        raise type(self._failure)(*self._failure.args)
                    await self._news.wait()
                return self._link
        except TimeoutError:
            raise Unavailable(
                f"no connection to {self.url}: {self._why}; see that it is served, and try again"
            ) from None

    async def _dial(self, met: bool) -> Link:
        token = self._token or "" if self._data is None else read_token(self._data)
        try:
            socket, _ = await dial(self._dialled, token, caps=(QUIET,))
        except Refused as failure:
            raise Refused(f"{self.url}: {failure}") from None
        except Unavailable as failure:
            if met:
                raise Later(str(failure)) from None
            raise Unavailable(f"{self.url}: {failure}") from None
        return Link(socket)

    # The type of the answer is METHODS' `result`; each verb of the client names it again for its caller.
    async def call(
        self,
        method: str,
        params: object,
        *,
        again: Callable[[], bool] = lambda: True,
        until: float = math.inf,
        insist: Callable[[], bool] = lambda: False,
    ) -> T:
        """Ask, and ask again if the connection drops and `again` allows it.

        If `insist` allows it, ask again after Unavailable too, for `patience` seconds.
        """
        asked = params_of(method, params)
        tries, pause, patient = 0, PAUSE_SECONDS[0], min(until, monotonic() + self.patience)
        while True:
            tries += 1
            link = await self.linked(until)
            try:
                return await link.ask(method, asked)  # type: ignore[no-any-return]
            except Unavailable:  # the gateway has kept nothing of the request
                if not insist() or monotonic() + pause > patient:
                    raise
                tries = 0
                await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
                pause = min(2 * pause, INSIST_SECONDS)
                if not insist():
                    raise
            except Dropped:
                if not again() or monotonic() >= until or tries >= TRIES:
                    raise Unavailable(
                        f"the connection was lost before {method} was answered: it may have happened; look before you "
                        "try again"
                    ) from None
                if tries > 1:  # give a server that drops every connection more time
                    await asyncio.sleep(min(PAUSE_SECONDS[1], PAUSE_SECONDS[0] * 2**tries))


def read_token(data: Path) -> str:
    """Return the token of a data directory; it is read for each connection, as it may have been rotated."""
    path = data / "token"
    try:
        return path.expanduser().read_text("ascii").strip()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"no token in {path}: {why}; name the server's --data, or set INTERLOCK_TOKEN") from None


def addresses(url: str) -> tuple[str, str]:
    """Return a URL as it is shown and as it is dialled; refuse one with a user or a query, which may be a secret."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in WEB or not parts.hostname or parts.port == 0
    except (ValueError, AttributeError, TypeError):
        wrong = True
    if wrong:
        raise BadInput("this is no URL of a gateway; write http://127.0.0.1:8719, or https://, ws://, wss://")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput("a gateway's URL holds no user, token or query: others read URLs; give the token apart")
    where = f"{parts.netloc}{parts.path if parts.path != '/' else ''}"
    secure = WEB[parts.scheme] == "wss"
    return f"http{'s' * secure}://{where}", f"ws{'s' * secure}://{where if parts.path.strip('/') else where + '/'}"


def params_of(method: str, params: object) -> bytes:
    """Return a method's parameters as JSON; raise BadInput for those that the gateway could not read."""
    values = params.values() if isinstance(params, dict) else msgspec.structs.asdict(params).values()  # type: ignore[arg-type]
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise BadInput(f"{method}: NaN and infinity are no JSON; give finite numbers")
    try:
        found = _encode(params)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{method}: {error}; give plain values") from None
    if len(found) > FRAME_BYTES - 256:
        raise BadInput(f"{method}: {len(found):,} bytes are too many for one frame of {FRAME_BYTES:,}; send less")
    return found


def error_of(error: dict[str, Any]) -> InterlockError:
    """Return the wire's error as the class that control raised."""
    details = _details(error)
    words = str(error.get("message") or "refused without a reason")
    kind = ERRORS.get(str(details.get("kind")))
    if kind is None:
        kind = {"FORBIDDEN": Refused, "UNAVAILABLE": Unavailable}.get(str(error.get("code")), BadInput)
    return kind(words)


def _details(error: dict[str, Any]) -> dict[str, Any]:
    found = error.get("details")
    return found if isinstance(found, dict) else {}  # another gateway may send any JSON here


async def dial(
    address: str, token: str, *, caps: tuple[str, ...], scopes: tuple[str, ...] = ()
) -> tuple["ClientConnection", dict[str, Any]]:
    """Return a connected socket and the gateway's hello; raise Later for a failure that may pass.

    Without scopes our own gateway grants all that the token has; other gateways then grant none.
    """
    try:
        from websockets.asyncio.client import connect as dialling  # noqa: PLC0415 - an extra
        from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException  # noqa: PLC0415
    except ModuleNotFoundError:
        raise BadInput("talking to a gateway needs websockets; install it: pip install 'interlock[client]'") from None
    dialled = dialling(
        address, compression=None, proxy=None, max_size=ANSWER_BYTES, open_timeout=None,
        ping_interval=PING_SECONDS, ping_timeout=PING_SECONDS, close_timeout=CLOSE_SECONDS,
    )  # fmt: skip
    # Follow no redirect: the token is meant for this address alone.
    dialled.process_redirect = lambda exc: exc  # type: ignore[method-assign]
    socket = None
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            socket = await dialled
            hello = await _introduce(socket, token, caps=caps, scopes=scopes)
            let_in, socket = socket, None
            return let_in, hello
    except InvalidStatus as status:
        raise _unwelcome(status.response.status_code, bytes(status.response.body or b"")) from None
    except InvalidHandshake:
        raise Unavailable("what answers is no gateway; check the URL") from None
    except ConnectionRefusedError:
        raise Unavailable("nobody listens there; start `interlock serve`, or name its URL") from None
    except TimeoutError:
        raise Unavailable(f"no answer within {OPEN_SECONDS:g} s; check the URL") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: the host is no valid name
        raise Unavailable(f"{getattr(error, 'strerror', None) or error}; check the URL") from None
    except (WebSocketException, msgspec.MsgspecError) as error:
        raise Later(str(error) or type(error).__name__) from None
    finally:
        if socket is not None:
            await socket.close()


async def _introduce(
    socket: "ClientConnection", token: str, *, caps: tuple[str, ...], scopes: tuple[str, ...]
) -> dict[str, Any]:
    """Send `connect` and return the gateway's hello, or raise why it refused."""
    from importlib.metadata import version  # noqa: PLC0415 - slow to import

    await socket.recv()  # the challenge; a token is sent without signing it
    me = {"id": "gateway-client", "version": version("interlock"), "platform": platform.system().lower() or "unknown"}
    params = {"minProtocol": PROTOCOL, "maxProtocol": PROTOCOL, "client": me | {"mode": "backend"}, "caps": caps}
    params |= {"role": "operator", "auth": {"token": token}} | ({"scopes": scopes} if scopes else {})
    await socket.send(_encode({"type": "req", "id": "0", "method": "connect", "params": params}), text=True)
    while True:
        frame = _frame.decode(await socket.recv())
        if frame.type == "res" and frame.id == "0":
            break
    if frame.ok:
        return msgspec.json.decode(frame.payload, type=dict[str, Any])
    error = frame.error or {}
    code = str(_details(error).get("code", ""))
    if code.startswith("AUTH_"):
        raise Refused(NO_SUCH_TOKEN)
    if UNPAIRED & {code, str(error.get("code"))}:
        raise Refused(f"{error.get('message')}: it asks for a device key, and there is none here; use a token without")
    if code == "PROTOCOL_MISMATCH":
        raise Refused(f"{error.get('message')}, this client speaks {PROTOCOL}; install the same version on both sides")
    if error.get("code") == "UNAVAILABLE":
        raise Later(str(error.get("message")))
    raise error_of(error)


def _unwelcome(status: int, body: bytes) -> InterlockError:
    """Return the error that an HTTP answer to our upgrade means; raise Later for 503."""
    try:
        words = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        words = f"HTTP {status}"
    if status == 503:
        raise Later(words)
    if status == 403:
        return Refused(f"the gateway refused the connection: {words}")
    return Unavailable(words if status == 429 else f"what answers is no gateway ({words}); check the URL")
