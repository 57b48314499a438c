"""Control's verbs over a connection to a gateway.

1. If a connection drops before the answer, the client asks again on the next one where a second request changes
   nothing: looking, sending (every message has a key), stopping, answering, sharing. `wake` and `unwake` are not asked
   again: the second request would make the schedule twice.
2. A session's stop or reset means what runs now. The client asks it within STOP_SECONDS or not at all, and not again
   once it has sent the session a newer message. A stop has a key of its own: if the first request arrived, the second
   is answered with the first one's receipt.
3. The client sends a message that the gateway could not keep again, under its key, for `patience` seconds. It gives up
   once it has stopped the message's session: no server knows the message yet, so the stop means the message too.
4. A watch continues behind the last event that it passed on: no event comes twice, each run ends once, and no delta of
   an older run follows the start of a newer one. A slow watcher reads the events that it had no room for again.
5. A waiter that leaves changes nothing for the run. A wait occupies the gateway for at most WAIT_SECONDS at a time.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from interlock.client.connection import PAUSE_SECONDS, Connection, Dropped, error_of, params_of
from interlock.core.errors import Unavailable, Unknown
from interlock.core.events import Ended, Entry, Event
from interlock.core.lifecycle import State
from interlock.core.names import Ending, RunId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.story import Conversation
from interlock.core.timeline import Moment
from interlock.runtime.approvals import QuestionInfo
from interlock.runtime.listing import RunInfo, SessionInfo
from interlock.runtime.live import Sent
from interlock.runtime.sharing import Shared
from interlock.runtime.spawning import ProcessInfo
from interlock.runtime.wakes import Wake
from interlock.surfaces.frames import PairCode, ReceiptResult, TimelineResult, Watched

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
) -> "AsyncIterator[Client]":
    """Connect to a gateway with a token, or with the one in the data directory of a server on this machine.

    This raises at once if no server answers or the token is refused. A connection that drops later is made again for
    `patience` seconds.
    """
    connection = Connection(url, token, data=data, patience=patience)
    try:
        await connection.open()
        yield Client(connection)
    finally:
        await connection.close()


class Seen:
    """What a watch has passed on, so that a replay after a drop repeats nothing."""

    def __init__(self, after: int) -> None:
        self.position = after
        self._told = Conversation()

    def passes(self, event: Event) -> bool:
        """Return whether an event is new, and remember it."""
        if event.position <= self.position:
            return False
        self.position = event.position
        news = bool(self._told.take(event))
        if isinstance(event.data, Ended) and event.run_id is not None:
            self._told.forget(event.run_id)
        return news


class _Stop:
    """A session's stop in flight, and whether this client has sent that session a message since."""

    def __init__(self, session: str) -> None:
        self._name = _bare(session)
        self.overtaken = False

    def overtake(self, session: str | None) -> None:
        """Note that a message is sent to a session.

        `main` and `alice/main` are one session if the caller is alice. The client does not know its own principal, so
        names with the same last part count as one session.
        """
        self.overtaken = self.overtaken or (session is not None and _bare(session) == self._name)


def _bare(session: str) -> str:
    return session.rpartition("/")[2]


class _Sending:
    """A message in flight, and whether this client has stopped its session since."""

    def __init__(self, session: str | None) -> None:
        self._name = None if session is None else _bare(session)
        self.stopped = False

    def stop(self, session: str) -> None:
        """Note that a session is stopped; names with the same last part count as one session."""
        self.stopped = self.stopped or _bare(session) == self._name


class Client:
    """Control's verbs, without `by`: the gateway knows the principal by the token."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self._connection = connection
        self._call = connection.call
        self._stops: set[_Stop] = set()
        self._sends: set[_Sending] = set()
        self._waits = asyncio.Semaphore(WAITS)

    async def close(self) -> None:
        """Close the connection. Pending calls raise; runs go on."""
        await self._connection.close()

    async def _now(self, session: str, method: str, params: dict[str, Any]) -> T:
        """Ask for a stop or a reset, which mean the session as it is now (rule 2)."""
        for sending in self._sends:
            sending.stop(session)
        stop = _Stop(session)
        self._stops.add(stop)
        try:
            return await self._call(method, params, again=lambda: not stop.overtaken, until=monotonic() + STOP_SECONDS)
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
        agent: str | None = None,
        instructions: str | None = None,
    ) -> Sent:
        """Send a message; return once the gateway has stored it. Without a key it gets one, so it cannot run twice."""
        for stop in self._stops:
            stop.overtake(session)
        asked: dict[str, Any] = {"session": session, "text": text, "key": secrets.token_hex(16) if key is None else key}
        asked |= {"strategy": strategy, "deadline": deadline, "order": order, "kind": kind}
        asked |= {"agent": agent, "instructions": instructions}
        sending = _Sending(session)
        self._sends.add(sending)
        try:
            return await self._call("interlock.send", asked, insist=lambda: not sending.stopped)
        finally:
            self._sends.remove(sending)

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
        for stop in self._stops:
            stop.overtake(session)
        asked: dict[str, Any] = {"sessionKey": session, "message": text}
        asked["idempotencyKey"] = secrets.token_hex(16) if key is None else key
        asked["queueMode"] = "followup" if strategy == "queue" else strategy
        asked["timeoutMs"] = None if deadline is None else round(deadline * 1000)
        sending = _Sending(session)
        self._sends.add(sending)
        try:
            told: dict[str, Any] = await self._call("interlock.chat", asked, insist=lambda: not sending.stopped)
        finally:
            self._sends.remove(sending)
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

    async def stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        message: str | None = None,
        key: str | None = None,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Receipt:
        """Stop a session's runs, one run, or the message under a key, also one that has not arrived yet.

        `key` is the stop's own. A session's stop without one gets one, so that a second request ends nothing newer.
        """
        if session is not None and key is None:
            key = secrets.token_hex(16)
        asked = {"session": session, "run": run, "message": message, "key": key, "order": order, "typed": typed}
        if session is not None:
            return await self._now(session, "interlock.stop", asked)
        return await self._call("interlock.stop", asked)

    async def reset(self, session: str, *, key: str | None = None) -> Receipt:
        """End everything of a session, detached children too, and begin a fresh transcript. Its schedules stay."""
        asked = {"session": session, "key": secrets.token_hex(16) if key is None else key}
        return await self._now(session, "interlock.reset", asked)

    async def answer(self, question: str, answer: bool | str) -> QuestionInfo:
        """Answer a question: True or False, or one of its choices. Raise QuestionClosed if it is not open any more."""
        return await self._call("interlock.answer", {"question": question, "answer": answer})

    async def set_strategy(self, session: str, strategy: str | None) -> None:
        """Set the strategy of messages to a session that is busy; None for the server's own."""
        await self._call("interlock.strategy", {"session": session, "strategy": strategy})

    async def share(self, session: str, *, with_: str, may: str = "write") -> Shared:
        """Let another principal see a session and write in it, or with may="read" only see it. Only its owner may."""
        return await self._call("interlock.share", {"session": session, "with": with_, "may": may})

    async def unshare(self, session: str, *, with_: str) -> Shared:
        """Take a share back."""
        return await self._call("interlock.unshare", {"session": session, "with": with_})

    async def stop_all(self, *, of: str | None = None) -> list[Receipt]:
        """Stop every run, or those that one principal started and those in its sessions. Only an admin may."""
        asked = {"of": of}
        return await self._call("interlock.stopall", asked, again=lambda: False, until=monotonic() + STOP_SECONDS)

    async def wake(
        self,
        session: str,
        text: str,
        *,
        at: datetime | float | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
    ) -> Wake:
        """Schedule a message, once or repeatedly. If the connection drops this raises; `wakes` lists what was made."""
        asked: dict[str, Any] = {"session": session, "text": text, "cron": cron}
        asked["at"] = at.timestamp() if isinstance(at, datetime) else at
        asked["every"] = every.total_seconds() if isinstance(every, timedelta) else every
        return await self._call("interlock.wake", asked, again=lambda: False)

    async def unwake(self, wake: str) -> None:
        """Remove a schedule; a run that it has started goes on. If the connection drops this raises."""
        await self._call("interlock.unwake", {"wake": wake}, again=lambda: False)

    # Looking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False) -> Outcome:
        """Return how a run ended; `pending` if `timeout` passed first, `unknown` if the caller may see no such run."""
        until = math.inf if timeout is None else monotonic() + timeout
        while True:
            most = WAIT_SECONDS if not self._waits.locked() else CROWDED_SECONDS
            async with self._waits if until - monotonic() > CROWDED_SECONDS else nullcontext():
                began = monotonic()
                left = min(most, max(0.0, until - began))
                asked = {"run": run, "timeout": left, "drained": drained}
                outcome: Outcome = await self._call("interlock.wait", asked)
            early = monotonic() - began < left
            if monotonic() >= until or outcome.ending is Ending.UNKNOWN:
                return outcome
            if outcome.ended and (early or outcome.drained or not drained):
                return outcome
            # An early answer without an ending means that the server is closing. It keeps the message, and the next
            # server runs it, so ask that one.
            if early:
                await asyncio.sleep(PAUSE_SECONDS[0])

    async def questions(self, session: str | None = None) -> list[QuestionInfo]:
        """List the open questions that the caller may answer, also those of children below a session."""
        return await self._call("interlock.questions", {"session": session})

    async def runs(self, session: str | None = None, *, tree: bool = False, latest: int = 0) -> list[RunInfo]:
        """List live runs; with a session its ended ones too; with `latest` that many from the store."""
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
        """Return a session's transcript."""
        return await self._call("interlock.history", {"session": session})

    async def receipt(self, wanted: str) -> Receipt:
        """Return a receipt by its own id, or a run's id or key, as it stands now."""
        name = "receiptId" if str(wanted).startswith("f-") else "runId"
        found: ReceiptResult = await self._call("receipts.get", {name: wanted})
        return found.receipt

    async def timeline(self, run: str) -> list[Moment]:
        """Return the moments of a run, in order."""
        found: TimelineResult = await self._call("runs.timeline", {"runId": run})
        return found.moments

    async def wakes(self, session: str) -> list[Wake]:
        """List a session's schedules."""
        return await self._call("interlock.wakes", {"session": session})

    async def pair(self, name: str | None = None) -> PairCode:
        """Return a code that lets a page in once, behind `/#pair=` in the gateway's URL.

        An admin may name another principal.
        """
        return await self._call("interlock.pair", {"name": name})

    def is_current(self, run: str) -> bool:
        """Return whether a run that this client watches has not fallen. A sink asks this where it begins a delivery.

        The call never waits: the gateway says in the step of a fall that the run fell, ahead of everything else that it
        has to send. The answer is later than the fall by the way of that frame. A run that this client does not watch,
        or while there is no connection, is not current.
        """
        return self._connection.is_current(run)

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        seen = Seen(after)
        until = math.inf  # the monotonic time at which Unavailable is raised
        while True:
            link = await self._connection.linked()
            feed = link.feed()
            told: Watched | None = None
            try:
                asked = {"watch": feed.number, "session": session, "run": run, "after": seen.position}
                await link.ask("interlock.watch", params_of("interlock.watch", asked))
                while (told := await feed.next()) is not None and not told.over:
                    until = math.inf
                    if told.event is not None and seen.passes(told.event):
                        yield told.event
                        if run is not None and isinstance(told.event.data, Ended):
                            return
            except Dropped:
                continue
            finally:
                link.forget(feed)
            if told is None:  # the connection dropped, or this watcher was too slow
                continue
            if told.error:
                error = error_of(told.error)
                until = min(until, monotonic() + self._connection.patience)
                if not isinstance(error, Unavailable) or monotonic() >= until:
                    raise error
            elif run is not None and (await self.wait(run, timeout=0)).ending is not Ending.PENDING:
                return  # the terminal event is behind `after`, or is no longer kept
            # The server is closing; watch on at the next one.
            await asyncio.sleep(PAUSE_SECONDS[0])
