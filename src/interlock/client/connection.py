"""Control's verbs over the gateway: a connection that is made again when it drops.

1. A verb whose answer was not seen is asked again on the next connection where that changes nothing: looking always;
   sending, because every message has a key; stopping by run or key; answering. A schedule is not made twice.
2. A session's stop or reset means what runs now. It is asked within STOP_SECONDS or not at all, and not again once
   this client has sent the session something newer.
3. A watch goes on behind the last event it passed on: no event twice, one end per run, none of an older run's deltas
   behind a newer run's beginning.
4. A watcher that is slow holds up nobody: its events are given up and read again when it has room.
5. Nothing waits for ever: without a connection for `patience` seconds a verb raises Unavailable.
6. The token goes into the first frame and nowhere else: no URL, no error, no repr.
"""

import asyncio
import contextlib
import itertools
import json
import math
import platform
import random
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from interlock.core.errors import BadInput, InterlockError, Refused, Unavailable
from interlock.core.events import Ended, Entry, Event, Started
from interlock.core.names import PASSING, Ending, RunId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment
from interlock.runtime.approvals import QuestionInfo
from interlock.runtime.listing import RunInfo, SessionInfo
from interlock.runtime.live import Sent
from interlock.runtime.spawning import ProcessInfo
from interlock.runtime.wakes import Wake
from interlock.surfaces.frames import (
    ERRORS,
    FRAME_BYTES,
    METHODS,
    PROTOCOL,
    QUIET,
    ReceiptResult,
    TimelineResult,
    Watched,
)

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PATIENCE_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
OPEN_SECONDS: Final = 10.0  # from dialling to being let in
CLOSE_SECONDS: Final = 1.0
PING_SECONDS: Final = 10.0  # between pings, and for each answer
PAUSE_SECONDS: Final = (0.1, 5.0)  # between attempts: the first, the longest
WAIT_SECONDS: Final = 15.0  # of one request; a waiter that left holds no place longer
ANSWER_BYTES: Final = 32 * 1024 * 1024
WATCH_EVENTS: Final = 512  # held for a watcher
ENDED_RUNS: Final = 4_096  # remembered by a watch
T = TypeVar("T")
WEB: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@asynccontextmanager
async def connect(
    url: str, token: str | None = None, *, data: str | Path | None = None, patience: float = PATIENCE_SECONDS
) -> "AsyncIterator[Client]":
    """Connect to a gateway; the token is given, or read from the data directory of a server on this machine.

    Raises at once if nobody is there or the token is refused; later drops are bridged for `patience` seconds.
    """
    client = Client(url, token, data=data, patience=patience)
    try:
        await client.open()
        yield client
    finally:
        await client.close()


class _Dropped(Exception):
    """The connection is gone; whether what was asked took effect is not known."""


class _Later(Exception):
    """Nobody could be reached now; its text says why."""


class _Frame(msgspec.Struct, frozen=True):
    type: str
    id: str = ""
    ok: bool = False
    payload: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None
    event: str = ""


_frame = msgspec.json.Decoder(_Frame)
_watched = msgspec.json.Decoder(Watched)
_encode = msgspec.json.Encoder().encode


class Feed:
    """What one watch was told on one connection and has not passed on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._told: deque[Watched] = deque()
        self._news = asyncio.Event()
        self._over = False

    def put(self, told: Watched) -> bool:
        """Take an event; False if there is no room."""
        if len(self._told) >= WATCH_EVENTS:
            return False
        self._told.append(told)
        self._news.set()
        return True

    def end(self) -> None:
        """Nothing more comes this way."""
        self._over = True
        self._news.set()

    async def next(self) -> Watched | None:
        """Return the next; None if there will be none."""
        while not self._told:
            if self._over:
                return None
            self._news.clear()
            await self._news.wait()
        return self._told.popleft()


class Link:
    """One connection that was let in."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[_Frame | None]] = {}
        self._feeds: dict[int, Feed] = {}
        self._last_words: set[asyncio.Task[None]] = set()

    async def ask(self, method: str, params: bytes) -> Any:
        """Return the answer, raise the error, or _Dropped."""
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
            raise _Dropped
        if not found.ok:
            raise _error_of(found.error or {})
        return msgspec.json.decode(found.payload, type=METHODS[method].result or Any)

    async def listen(self) -> None:
        """Hear until the connection is gone."""
        try:
            async for text in self._socket:  # ends without an error where it was closed in order
                frame = _frame.decode(text)
                if frame.type == "res":
                    answer = self._asked.get(frame.id)
                    if answer is not None and not answer.done():
                        answer.set_result(frame)
                elif frame.event == "interlock.event":
                    told = _watched.decode(frame.payload)
                    feed = self._feeds.get(told.watch)
                    if feed is not None and not feed.put(told):
                        self.forget(feed)
        finally:
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result(None)
            for feed in self._feeds.values():
                feed.end()
            for task in self._last_words:
                task.cancel()
            await self._socket.close()

    def feed(self) -> Feed:
        """Return a place for a watch's events."""
        feed = Feed(next(self._numbers))
        self._feeds[feed.number] = feed
        return feed

    def forget(self, feed: Feed) -> None:
        """Watch it no longer, without waiting."""
        feed.end()
        if self._feeds.pop(feed.number, None) is not None:
            task = asyncio.get_running_loop().create_task(self._unwatch(feed.number))
            self._last_words.add(task)
            task.add_done_callback(self._last_words.discard)

    async def _unwatch(self, number: int) -> None:
        with contextlib.suppress(_Dropped, InterlockError):
            await self.ask("interlock.unwatch", _encode({"watch": number}))


class Seen:
    """What a watch has passed on."""

    def __init__(self, after: int) -> None:
        self.position = after
        self._floor = 0  # the lowest generation whose passing events still count
        self._ended: dict[RunId | None, None] = {}

    def passes(self, event: Event) -> bool:
        """Return whether an event is news."""
        if event.position <= self.position:
            return False
        self.position = event.position
        if event.kind in PASSING and (event.generation or 0) < self._floor:
            return False
        if isinstance(event.data, Started) and event.generation is not None:
            self._floor = max(self._floor, event.generation)
        if isinstance(event.data, Ended):
            if event.run_id in self._ended:
                return False
            self._ended[event.run_id] = None
            if len(self._ended) > ENDED_RUNS:
                del self._ended[next(iter(self._ended))]
            self._floor = max(self._floor, (event.generation or 0) + 1)
        return True


class Client:
    """Control's verbs, asked of a gateway."""

    def __init__(self, url: str, token: str | None, *, data: str | Path | None, patience: float) -> None:
        self.url, self._dialled = _addresses(url)
        if (token is None) == (data is None):
            raise BadInput(
                "say who you are with one of token= or data=, the data directory of a server on this machine"
            )
        self._token, self._data = token, None if data is None else Path(data).expanduser()
        self._patience = patience
        self._link: Link | None = None
        self._failure: InterlockError | None = None
        self._why = "it was not tried yet"
        self._news = asyncio.Event()  # there is a link, or there will be none
        self._keeper: asyncio.Task[None] | None = None
        self._stops: list[list[object]] = []  # of sessions, in flight: the session, and whether one was sent since

    # The connection

    async def open(self) -> None:
        """Be let in, or raise why not."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"connection to {self.url}")
        await self._linked(monotonic() + self._patience)

    async def close(self) -> None:
        """Leave. Whoever still waits is told; what runs goes on."""
        self._failure = self._failure or BadInput("this client is closed; connect again")
        self._news.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))

    async def _keep(self) -> None:
        """Hold a connection as long as the client is open."""
        pause, longest = PAUSE_SECONDS
        met = False
        while True:
            try:
                link = await self._dial(met)
            except _Later as why:
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
                    self._why = "it says what this version does not understand"
                except Exception as gone:  # the library's word for a connection that broke
                    self._why = str(gone) or type(gone).__name__
                finally:
                    self._link = None
                self._news.clear()
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, longest)

    async def _linked(self, until: float) -> Link:
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
        try:
            from websockets.asyncio.client import connect as dial  # noqa: PLC0415 - an extra
            from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException  # noqa: PLC0415
        except ModuleNotFoundError:
            raise BadInput(
                "talking to a gateway needs websockets; install it: pip install 'interlock[client]'"
            ) from None
        token = self._read_token()
        socket = None
        failure: InterlockError
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                socket = await dial(
                    self._dialled, compression=None, proxy=None, max_size=ANSWER_BYTES, open_timeout=None,
                    ping_interval=PING_SECONDS, ping_timeout=PING_SECONDS, close_timeout=CLOSE_SECONDS,
                )  # fmt: skip
                await _introduce(socket, token)
                link, socket = Link(socket), None
                return link
        except InvalidStatus as status:
            failure = _unwelcome(status.response.status_code, bytes(status.response.body or b""))
        except InvalidHandshake:
            failure = Unavailable("what answers is no gateway; check the URL")
        except ConnectionRefusedError:
            failure = Unavailable("nobody listens there; start `interlock serve`, or name its URL")
        except TimeoutError:
            failure = Unavailable(f"no answer within {OPEN_SECONDS:g} s; check the URL")
        except OSError as error:
            failure = Unavailable(f"{error.strerror or error}; check the URL")
        except (WebSocketException, msgspec.MsgspecError) as error:
            raise _Later(str(error) or type(error).__name__) from None
        finally:
            if socket is not None:
                await socket.close()
        if met and not isinstance(failure, Refused):
            raise _Later(str(failure))
        raise type(failure)(f"{self.url}: {failure}")

    def _read_token(self) -> str:
        """Return the token; a directory's is read anew, as it may have been rotated."""
        if self._data is None:
            return self._token or ""
        path = self._data / "token"
        try:
            return path.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise BadInput(f"no token in {path}: {why}; name the server's --data, or set INTERLOCK_TOKEN") from None

    # Asking

    async def _call(  # METHODS says what each answers, and the verb says it again
        self, method: str, params: dict[str, Any], *, again: Callable[[], bool] = lambda: True, until: float = math.inf
    ) -> T:
        """Ask, and ask again where the connection drops and `again` allows it."""
        asked = _params(method, params)
        while True:
            link = await self._linked(min(until, monotonic() + self._patience))
            try:
                return await link.ask(method, asked)  # type: ignore[no-any-return]
            except _Dropped:
                if not again() or monotonic() >= until:
                    raise Unavailable(
                        f"the connection was lost before {method} was answered: it may have happened; look before you "
                        "try again"
                    ) from None

    async def _now(self, session: str, method: str, params: dict[str, Any]) -> T:
        """Ask for what means a session as it is now."""
        stop: list[object] = [session, False]
        self._stops.append(stop)
        try:
            return await self._call(
                method, params, again=lambda: stop[1] is False, until=monotonic() + min(STOP_SECONDS, self._patience)
            )
        finally:
            self._stops.remove(stop)

    async def send(
        self,
        session: str | None,
        text: str,
        *,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
        order: tuple[str, float] | None = None,
        kind: str = "chat",
    ) -> Sent:
        """Send a message; returns once it is safely taken. Without a key it gets one, so that it cannot run twice."""
        for stop in self._stops:
            stop[1] = stop[1] or stop[0] == session
        asked: dict[str, Any] = {"session": session, "text": text, "key": secrets.token_hex(16) if key is None else key}
        asked |= {"strategy": strategy, "deadline": deadline, "order": order, "kind": kind}
        return await self._call("interlock.send", asked)

    async def stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        key: str | None = None,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Receipt:
        """Stop a session's runs, one run, or the message with a key (also before it was seen)."""
        asked = {"session": session, "run": run, "key": key, "order": order, "typed": typed}
        if session is not None:
            return await self._now(session, "interlock.stop", asked)
        return await self._call("interlock.stop", asked)

    async def reset(self, session: str) -> Receipt:
        """End everything of a session, detached parts too, and begin a fresh transcript. Its schedules stay."""
        told: dict[str, Any] = await self._now(session, "sessions.reset", {"key": session})
        return msgspec.convert(told["receipt"], Receipt)

    async def answer(self, question: str, answer: bool | str) -> QuestionInfo:
        """Answer a question: True or False, or one of its choices. Raises QuestionClosed if it is not open any more."""
        return await self._call("interlock.answer", {"question": question, "answer": answer})

    async def set_strategy(self, session: str, strategy: str | None) -> None:
        """Say what messages to a session do while it is busy; None: what the server does."""
        await self._call("interlock.strategy", {"session": session, "strategy": strategy})

    async def wake(
        self,
        session: str,
        text: str,
        *,
        at: datetime | float | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
    ) -> Wake:
        """Send a message at a time, or again and again. Not asked again if the connection drops: `wakes` tells."""
        asked: dict[str, Any] = {"session": session, "text": text, "cron": cron}
        asked["at"] = at.timestamp() if isinstance(at, datetime) else at
        asked["every"] = every.total_seconds() if isinstance(every, timedelta) else every
        return await self._call("interlock.wake", asked, again=lambda: False)

    async def unwake(self, wake: str) -> None:
        """Remove a schedule; a run it has begun goes on. Not asked again if the connection drops."""
        await self._call("interlock.unwake", {"wake": wake}, again=lambda: False)

    # Looking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False) -> Outcome:
        """Return how a run ended; `pending` if the wait itself ran out, `unknown` if there is no such run for you."""
        until = math.inf if timeout is None else monotonic() + timeout
        while True:
            began = monotonic()
            left = min(WAIT_SECONDS, max(0.0, until - began))
            asked = {"run": run, "timeout": left, "drained": drained}
            outcome: Outcome = await self._call("interlock.wait", asked)
            early = monotonic() - began < left
            if monotonic() >= until or outcome.ending is Ending.UNKNOWN:
                return outcome
            if outcome.ended and (early or outcome.drained or not drained):
                return outcome
            if early:  # the server is closing and keeps the message: the next one takes it up
                await asyncio.sleep(PAUSE_SECONDS[0])

    async def questions(self, session: str | None = None) -> list[QuestionInfo]:
        """List the open questions that the caller may answer, also those of children below a session."""
        return await self._call("interlock.questions", {"session": session})

    async def runs(self, session: str | None = None, *, tree: bool = False, latest: int = 0) -> list[RunInfo]:
        """List live runs; with a session, its ended ones too; with `latest`, so many that the store knows."""
        asked = {"session": session, "tree": tree, "latest": latest}
        return await self._call("interlock.runs", asked)

    async def find(self, name: str) -> RunInfo | None:
        """Find a run by its id or a key of the caller's; None if there is none."""
        return await self._call("interlock.find", {"name": name})

    async def sessions(self, *, limit: int = 100) -> list[SessionInfo]:
        """List the sessions that the caller may see, the latest first."""
        return await self._call("interlock.sessions", {"limit": limit})

    async def processes(self, session: str | None = None) -> list[ProcessInfo]:
        """List live processes of runs the caller may see, and detached ones the caller may stop."""
        return await self._call("interlock.processes", {"session": session})

    async def history(self, session: str) -> list[Entry]:
        """Return a session's conversation."""
        return await self._call("interlock.history", {"session": session})

    async def receipt(self, wanted: str) -> Receipt:
        """Return a receipt by its own id or a run's, as it stands now."""
        found: ReceiptResult = await self._call("receipts.get", {"receiptId": wanted})
        return found.receipt

    async def timeline(self, run: str) -> list[Moment]:
        """Return what happened in a run, in order."""
        found: TimelineResult = await self._call("runs.timeline", {"runId": run})
        return found.moments

    async def wakes(self, session: str) -> list[Wake]:
        """List a session's schedules."""
        return await self._call("interlock.wakes", {"session": session})

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        seen = Seen(after)
        until = math.inf  # when a server that cannot tell us is given up
        while True:
            link = await self._linked(monotonic() + self._patience)
            feed = link.feed()
            told: Watched | None = None
            try:
                asked = {"watch": feed.number, "session": session, "run": run, "after": seen.position}
                await link.ask("interlock.watch", _params("interlock.watch", asked))
                while (told := await feed.next()) is not None and told.event is not None:
                    until = math.inf
                    if seen.passes(told.event):
                        yield told.event
                        if run is not None and isinstance(told.event.data, Ended):
                            return
            except _Dropped:
                continue
            finally:
                link.forget(feed)
            if told is None:  # the connection dropped, or we were too slow: go on behind what was passed on
                continue
            if told.error:
                error = _error_of(told.error)
                until = min(until, monotonic() + self._patience)
                if not isinstance(error, Unavailable) or monotonic() >= until:
                    raise error
            elif run is not None and (await self.wait(run, timeout=0)).ending is not Ending.PENDING:
                return  # its end was told before, or is no longer kept
            await asyncio.sleep(PAUSE_SECONDS[0])  # the server is closing: the next one goes on


def _addresses(url: str) -> tuple[str, str]:
    """Return a URL as people know it, and as it is dialled; without what may be a secret."""
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


def _params(method: str, params: dict[str, Any]) -> bytes:
    """Return what a method is asked with, or raise what the gateway could not even read."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in params.values()):
        raise BadInput(f"{method}: a number that is none; give finite ones")
    try:
        found = _encode(params)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{method}: {error}; give plain values") from None
    if len(found) > FRAME_BYTES - 256:
        raise BadInput(f"{method}: {len(found):,} bytes are too many for one frame of {FRAME_BYTES:,}; send less")
    return found


def _error_of(error: dict[str, Any]) -> InterlockError:
    """Return the wire's error as the class that control raised."""
    details = error.get("details") or {}
    words = str(error.get("message") or "refused without a reason")
    kind = ERRORS.get(str(details.get("kind")))
    if kind is None:
        kind = {"FORBIDDEN": Refused, "UNAVAILABLE": Unavailable}.get(str(error.get("code")), BadInput)
    return kind(words)


async def _introduce(socket: "ClientConnection", token: str) -> None:
    """Say who we are, and be let in."""
    await socket.recv()  # the challenge; a token alone answers it
    me = {"id": "gateway-client", "version": version("interlock"), "platform": platform.system().lower() or "unknown"}
    params = {"minProtocol": PROTOCOL, "maxProtocol": PROTOCOL, "client": me | {"mode": "backend"}, "caps": [QUIET]}
    params |= {"role": "operator", "auth": {"token": token}}
    await socket.send(_encode({"type": "req", "id": "0", "method": "connect", "params": params}), text=True)
    while True:
        frame = _frame.decode(await socket.recv())
        if frame.type == "res" and frame.id == "0":
            break
    if frame.ok:
        return
    error = frame.error or {}
    code = str((error.get("details") or {}).get("code", ""))
    if code.startswith("AUTH_"):
        raise Refused(
            "the gateway does not know this token; name its data directory, or ask whoever runs it for a token"
        )
    if code == "PROTOCOL_MISMATCH":
        raise Refused(f"{error.get('message')}, this client speaks {PROTOCOL}; install the same version on both sides")
    if error.get("code") == "UNAVAILABLE":
        raise _Later(str(error.get("message")))
    raise _error_of(error)


def _unwelcome(status: int, body: bytes) -> InterlockError:
    """Return what an HTTP answer to our upgrade means."""
    try:
        words = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        words = f"HTTP {status}"
    if status == 503:
        raise _Later(words)
    if status == 403:
        return Refused(f"not let in: {words}")
    return Unavailable(words if status == 429 else f"what answers is no gateway ({words}); check the URL")
