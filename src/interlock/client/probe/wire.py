"""One plain connection to any gateway: the requests, and every frame that came, in order."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from interlock.client.connection import Later, addresses, dial
from interlock.core.errors import InterlockError, Refused, Unavailable
from interlock.protocol.frames import PROTOCOL

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

# Other gateways send tool events only to clients that declare this capability.
CAPS: Final = ("tool-events",)
SCOPES: Final = ("operator.write", "operator.read")
SENDING: Final = frozenset({"operator.write", "operator.admin"})
T = TypeVar("T")


class Frame(msgspec.Struct, frozen=True):
    """A frame of any gateway; unknown fields are ignored."""

    type: str
    id: Any = None
    ok: Any = None
    payload: Any = None
    error: Any = None
    event: Any = None


class Told(msgspec.Struct, frozen=True):
    """An event, with its arrival on the monotonic clock and its number among the frames of this connection."""

    at: float
    place: int
    event: str
    payload: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """An answer to a request; if it is an error, `payload` is the error."""

    at: float
    place: int
    ok: bool
    payload: dict[str, Any]


class Request:
    """A request and its answers so far; `agent` gets two."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.sent_at = monotonic()
        self.answers: list[Answer] = []

    @property
    def answer(self) -> Answer | None:
        """The first answer, or None before it comes."""
        return self.answers[0] if self.answers else None


class Wire:
    """An accepted connection, with a task that reads it."""

    def __init__(self, url: str, socket: "ClientConnection", hello: dict[str, Any]) -> None:
        self.url, self.hello = url, hello
        # Events by run since `forget`. A gateway may also send events of other people's runs.
        self._told: dict[str, list[Told]] = {}
        self._socket = socket
        self._numbers, self._places = itertools.count(1), itertools.count(1)
        self._asked: dict[str, Request] = {}
        self._news = asyncio.Event()
        self._gone: str | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen(), name=f"listening to {url}")

    @classmethod
    async def open(cls, url: str, token: str) -> Self:
        """Connect as published clients do; raise why that failed, in words for the user who typed the URL."""
        shown, dialled = addresses(url)
        try:
            socket, hello = await dial(dialled, token, caps=CAPS, scopes=SCOPES)
        except Later as why:
            words = f"{shown}: no gateway could be talked to ({why}); check the URL, or try again later"
            raise Unavailable(words) from None
        except InterlockError as error:
            raise type(error)(f"{shown}: {error}") from None
        try:
            _welcome(shown, hello)
        except Refused:
            await socket.close()
            raise
        return cls(shown, socket, hello)

    async def close(self) -> None:
        """Close the connection."""
        self._listening.cancel()
        await asyncio.wait((self._listening,))
        await self._socket.close()

    def forget(self) -> None:
        """Drop the events so far, and the requests so far with their answers."""
        self._told = {}
        self._asked.clear()

    def told(self, names: Iterable[str]) -> list[Told]:
        """Return the events of the run with these ids, in order."""
        found = [told for name in names for told in self._told.get(name, ())]
        return sorted(found, key=lambda told: told.place)

    async def ask(self, method: str, **params: Any) -> Request:
        """Send a request and return it at once; `until` waits for its answer."""
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - an extra

        number = f"p{next(self._numbers)}"
        request = self._asked[number] = Request(method)
        frame = msgspec.json.encode({"type": "req", "id": number, "method": method, "params": params})
        try:
            await self._socket.send(frame, text=True)
        except ConnectionClosed as gone:
            raise self._lost(str(gone)) from None
        return request

    async def until(self, found: Callable[[], T | None], seconds: float) -> T | None:
        """Call `found` again after each frame and return its first result; None after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                while (value := found()) is None:
                    if self._gone is not None:
                        raise self._lost(self._gone)
                    self._news.clear()
                    await self._news.wait()
                return value
        return found()

    async def listen(self, seconds: float) -> None:
        """Collect events for some seconds."""
        await self.until(lambda: None, seconds)

    async def _listen(self) -> None:
        try:
            async for raw in self._socket:
                self._hear(msgspec.json.decode(raw, type=Frame))
            self._gone = "it closed the connection"
        except (msgspec.MsgspecError, UnicodeError) as error:
            self._gone = f"it sent what is no frame of the protocol ({error})"
        except Exception as gone:  # websockets' errors for a broken connection
            self._gone = str(gone) or type(gone).__name__
        finally:
            self._news.set()

    def _hear(self, frame: Frame) -> None:
        at, place = monotonic(), next(self._places)
        payload = frame.payload if isinstance(frame.payload, dict) else {}
        if frame.type == "res":
            request = self._asked.get(str(frame.id))
            if request is not None:
                error = frame.error if isinstance(frame.error, dict) else {}
                request.answers.append(Answer(at, place, frame.ok is True, payload if frame.ok is True else error))
        elif frame.event in ("chat", "agent") and isinstance(run := payload.get("runId"), str):
            self._told.setdefault(run, []).append(Told(at, place, frame.event, payload))
        self._news.set()

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(f"{self.url}: the connection was lost: {why}; see that it is served, and try again")


def _welcome(url: str, hello: dict[str, Any]) -> None:
    """Raise Refused unless the gateway speaks our version and the token may send messages."""
    if hello.get("protocol") != PROTOCOL:
        spoken = hello.get("protocol")
        words = f"the gateway speaks protocol {spoken!r:.40}, and a probe only {PROTOCOL}; try one that speaks that"
        raise Refused(f"{url}: {words}")
    auth = hello.get("auth")
    scopes = auth.get("scopes") if isinstance(auth, dict) else None
    if isinstance(scopes, list) and not SENDING & {str(scope) for scope in scopes}:
        has = ", ".join(str(scope) for scope in scopes) or "no scope"
        raise Refused(f"{url}: this token may not send messages (it has {has:.200}); {WRITE}")


WRITE: Final = "set INTERLOCK_TOKEN to one that may write: `interlock token add NAME --scope write` makes one"
