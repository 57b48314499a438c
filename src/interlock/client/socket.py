"""The door over a socket: a gateway's methods, asked again when a connection drops.

1. If a connection drops before the answer, the door asks again on the next one where a second request changes nothing
   (`Verb.again`): looking, sending (every message has a key), stopping, answering, sharing.
2. A session's stop or reset means what runs now. The door asks it within STOP_SECONDS or not at all, and not again once
   it has sent the session a newer message. A stop has a key of its own: if the first request arrived, the second is
   answered with the first one's receipt.
3. The door sends a message that the gateway could not keep again, under its key, for `patience` seconds. It gives up
   once it has stopped the message's session, also where the connection dropped: a message that no server knows yet
   would otherwise run behind the stop that means it.
4. A waiter that leaves changes nothing for the run. A wait occupies the gateway for at most WAIT_SECONDS at a time.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from interlock.client.client import Client
from interlock.client.connection import PAUSE_SECONDS, Connection
from interlock.client.door import Asked, Sink
from interlock.client.listening import RemoteListening
from interlock.core import verbs
from interlock.core.answers import Sent
from interlock.core.errors import BadInput, Unknown
from interlock.core.lifecycle import State
from interlock.core.names import Ending, RunId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.values import seconds_of
from interlock.core.verbs import Verb
from interlock.protocol.frames import NewToken, PairCode, TokenInfo

PATIENCE_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 5.0
CROWDED_SECONDS: Final = 1.0  # in place of WAIT_SECONDS while more than WAITS wait and take turns
# Waits in flight. The gateway serves 64 requests of a connection at once, and other verbs need some of them.
WAITS: Final = 32

T = TypeVar("T")


@asynccontextmanager
async def connect(
    url: str, token: str | None = None, *, data: str | Path | None = None, patience: float = PATIENCE_SECONDS
) -> "AsyncIterator[RemoteClient]":
    """Connect to a gateway with a token, or with the one in the data directory of a server on this machine.

    This raises at once if no server answers or the token is refused. A connection that drops later is made again for
    `patience` seconds.
    """
    connection = Connection(url, token, data=data, patience=patience)
    try:
        await connection.open()
        yield RemoteClient(SocketDoor(connection))
    finally:
        await connection.close()


class _Flight:
    """A stop or a message of a session that is on its way, and whether the other of the two was asked since.

    `main` and `alice/main` are one session if the caller is alice. The door does not know its own principal, so names
    with the same last part count as one session.
    """

    __slots__ = ("everywhere", "name", "overtaken")

    def __init__(self, session: str | None, *, everywhere: bool = False) -> None:
        self.name = None if session is None else session.rpartition("/")[2]
        self.everywhere = everywhere
        self.overtaken = False

    def overtake(self, others: "set[_Flight]") -> None:
        """Note that the others of this session were asked before this one."""
        for other in others:
            mine = self.everywhere or (self.name is not None and self.name == other.name)
            other.overtaken = other.overtaken or mine


class SocketDoor:
    """A gateway, over one connection after another."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._stops: set[_Flight] = set()
        self._sends: set[_Flight] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waits = asyncio.Semaphore(WAITS)

    def ask(self, verb: Verb[T]) -> Asked[T]:
        """Ask a verb of the gateway; messages and stops are on their way from this step on."""
        if not verb.method:
            raise BadInput(f"a gateway has no method for {type(verb).__name__}; ask it in the process of control")
        if isinstance(verb, verbs.Send):
            return self.send(verb.session, verb.method, _with_key(verb))
        return self._stop(verb) if verb.stops else Asked(partial(self._look, verb))

    def send(self, session: str | None, method: str, params: object) -> Asked[Any]:
        """Send a message that has a key, and again if the gateway could not keep it (rule 3)."""
        sending = _Flight(session)
        sending.overtake(self._stops)

        def again() -> bool:
            return not sending.overtaken

        return self._begin(self._call(method, params, again=again, insist=again), sending, self._sends)

    def _stop(self, verb: Verb[Any]) -> Asked[Any]:
        session = getattr(verb, "session", None)
        stop = _Flight(session, everywhere=isinstance(verb, verbs.StopAll) and verb.of is None)
        stop.overtake(self._sends)
        by_name = session is None and not isinstance(verb, verbs.StopAll)
        until = math.inf if by_name else monotonic() + STOP_SECONDS
        keyed = verb if session is None else _with_key(verb)

        def again() -> bool:
            return verb.again and not stop.overtaken

        return self._begin(self._call(verb.method, keyed, again=again, until=until), stop, self._stops)

    def _begin(self, work: Coroutine[Any, Any, Any], flight: _Flight, flights: set[_Flight]) -> Asked[Any]:
        """Begin a request in this step; a caller that waits no longer does not end it."""
        task = asyncio.get_running_loop().create_task(work)
        flights.add(flight)
        self._tasks.add(task)

        def landed(task: asyncio.Task[Any]) -> None:
            flights.remove(flight)
            self._tasks.remove(task)
            if not task.cancelled():
                # Nobody may await the answer; asyncio would log its error.
                task.exception()

        task.add_done_callback(landed)
        return Asked(partial(_shielded, task))

    async def _look(self, verb: Verb[Any]) -> Any:
        if isinstance(verb, verbs.Wait):
            return await self._wait(verb)
        return await self._call(verb.method, verb, again=lambda: verb.again)

    async def _call(self, method: str, params: object, **how: Any) -> Any:
        return await self.connection.call(method, params, **how)

    async def _wait(self, verb: verbs.Wait) -> Outcome:
        # Refuse what control would refuse: with a timeout of NaN this loop would ask without end.
        seconds_of(verb.timeout, "timeout", None)
        until = math.inf if verb.timeout is None else monotonic() + verb.timeout
        while True:
            most = WAIT_SECONDS if not self._waits.locked() else CROWDED_SECONDS
            async with self._waits if until - monotonic() > CROWDED_SECONDS else nullcontext():
                began = monotonic()
                left = min(most, max(0.0, until - began))
                asked = msgspec.structs.replace(verb, timeout=left)
                outcome: Outcome = await self._call(verb.method, asked)
            early = monotonic() - began < left
            if monotonic() >= until or outcome.ending is Ending.UNKNOWN:
                return outcome
            if outcome.ended and (early or outcome.drained or not verb.drained):
                return outcome
            # An early answer without an ending means that the server is closing. It keeps the message, and the next
            # server runs it, so ask that one.
            if early:
                await asyncio.sleep(PAUSE_SECONDS[0])

    async def listen(
        self, sink: Sink, session: str | None, *, run: str | None, after: int, begin: str | None = None
    ) -> "RemoteListening":
        """Give a sink the events of a session or a run behind a position, over one connection after another."""
        listening = RemoteListening(self, sink, {"session": session, "run": run, "begin": begin}, after)
        await listening.open()
        return listening

    def is_current(self, run: str) -> bool:
        """Return whether a run that is listened to here has not fallen; False while there is no connection."""
        return self.connection.is_current(run)


async def _shielded(task: asyncio.Task[T]) -> T:
    return await asyncio.shield(task)


def _with_key(verb: Any) -> Any:
    return verb if verb.key is not None else msgspec.structs.replace(verb, key=secrets.token_hex(16))


class RemoteClient(Client):
    """The verbs of a caller over a socket, and what only a server can do."""

    def __init__(self, door: SocketDoor) -> None:
        super().__init__(door)
        self._socket = door

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self._socket.connection.url

    async def close(self) -> None:
        """Close the connection. Pending calls raise; runs go on."""
        await self._socket.connection.close()

    async def chat(
        self,
        session: str,
        text: str,
        *,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
    ) -> Sent | Receipt:
        """Send what a person typed. A text that is a stop word or `/new` is carried out and returns a receipt."""
        asked: dict[str, Any] = {"sessionKey": session, "message": text}
        asked["idempotencyKey"] = secrets.token_hex(16) if key is None else key
        asked["queueMode"] = "followup" if strategy == "queue" else strategy
        asked["timeoutMs"] = None if deadline is None else round(deadline * 1000)
        told: dict[str, Any] = await self._socket.send(session, "interlock.chat", asked)
        if "receipt" in told:
            receipt: Receipt = msgspec.convert(told["receipt"], Receipt)
            return receipt
        if "runId" not in told:
            raise Unknown(f"nothing was ever said in session {session!r}; there is nothing to begin anew")
        state = State.QUEUED if told.get("queued") else State.SEATED if told["status"] == "started" else State.ENDED
        return Sent(
            run_id=RunId(told["runId"]),
            session=told.get("session", session),
            owner=told.get("owner"),
            generation=told.get("generation"),
            superseded=told.get("superseded"),
            state=state,
        )

    async def pair(self, name: str | None = None) -> PairCode:
        """Return a code that lets a page in once, behind `/#pair=` in the gateway's URL.

        An admin may name another principal.
        """
        code: PairCode = await self._socket.connection.call("interlock.pair", {"name": name})
        return code

    # Tokens: only an admin may

    async def tokens(self) -> list[TokenInfo]:
        """List who has a token."""
        return await self._socket.connection.call("interlock.tokens", {})

    async def add_token(self, name: str, scopes: Collection[str]) -> NewToken:
        """Make a principal and return its token, this once. If the connection drops this raises; remove it then."""
        return await self._socket.connection.call(
            "interlock.token.add", {"name": name, "scopes": tuple(scopes)}, again=lambda: False
        )

    async def remove_token(self, name: str) -> None:
        """Take a principal's token away. When this returns nothing more is taken from it; its runs go on."""
        await self._socket.connection.call("interlock.token.remove", {"name": name}, again=lambda: False)

    async def rotate_token(self) -> None:
        """Replace the operator's token; the new one is in the server's data directory, and the old one has ended."""
        await self._socket.connection.call("interlock.token.rotate", {}, again=lambda: False)
