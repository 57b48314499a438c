"""Control's verbs, asked of a gateway.

1. A verb whose answer was not seen is asked again on the next connection where that changes nothing: looking always;
   sending, because every message has a key; stopping; answering; sharing. A schedule is not made twice.
2. A session's stop or reset means what runs now. It is asked within STOP_SECONDS or not at all, and not again once
   this client has sent the session something newer. A stop has a key too: if the first asking arrived, the second is
   told what came of it.
3. A message that the gateway could not keep now is sent again under its key, until this client's patience is over or
   it has stopped the session: that stop meant the message too.
4. A watch goes on behind the last event it passed on: no event twice, one end per run, none of an older run's deltas
   behind a newer run's beginning. A watcher that is slow reads again what it had no room for.
5. A waiter that leaves changes nothing for the run, and holds no place at the gateway for longer than WAIT_SECONDS.
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
from interlock.core.events import Ended, Entry, Event, Started
from interlock.core.lifecycle import State
from interlock.core.names import PASSING, Ending, RunId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
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
CROWDED_SECONDS: Final = 1.0  # the same where more than WAITS wait, who then take turns
WAITS: Final = 32  # at once; the gateway's places are for others too
ENDED_RUNS: Final = 4_096  # remembered by a watch

T = TypeVar("T")


@asynccontextmanager
async def connect(
    url: str, token: str | None = None, *, data: str | Path | None = None, patience: float = PATIENCE_SECONDS
) -> "AsyncIterator[Client]":
    """Connect to a gateway; the token is given, or read from the data directory of a server on this machine.

    Raises at once if nobody is there or the token is refused; later drops are bridged for `patience` seconds.
    """
    connection = Connection(url, token, data=data, patience=patience)
    try:
        await connection.open()
        yield Client(connection)
    finally:
        await connection.close()


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
        if event.kind in PASSING and event.generation is not None and event.generation < self._floor:
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


class _Stop:
    """A session's stop in flight, and whether this client has sent the session something since."""

    def __init__(self, session: str) -> None:
        self._name = _bare(session)
        self.overtaken = False

    def overtake(self, session: str | None) -> None:
        """Take down that something is sent to a session, which `main` and `alice/main` may both be the name of.

        The gateway knows whose name this is and the client does not: names that may mean one session count as one.
        """
        self.overtaken = self.overtaken or (session is not None and _bare(session) == self._name)


def _bare(session: str) -> str:
    return session.rpartition("/")[2]


class _Sending:
    """A message on its way, and whether this client has stopped its session since."""

    def __init__(self, session: str | None) -> None:
        self._name = None if session is None else _bare(session)
        self.stopped = False

    def stop(self, session: str) -> None:
        """Take down that a session is stopped, by a name that may be this one's."""
        self.stopped = self.stopped or _bare(session) == self._name


class Client:
    """Control's verbs, without `by`: the gateway knows who asks by the token."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self._connection = connection
        self._call = connection.call
        self._stops: set[_Stop] = set()
        self._sends: set[_Sending] = set()
        self._waits = asyncio.Semaphore(WAITS)

    async def close(self) -> None:
        """Leave. Whoever still waits is told; what runs goes on."""
        await self._connection.close()

    async def _now(self, session: str, method: str, params: dict[str, Any]) -> T:
        """Ask for what means a session as it is now."""
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
        """Send a message; returns once it is safely taken. Without a key it gets one, so that it cannot run twice."""
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
        """Send what a person typed: a message, or, if it says nothing else, a stop or `/new`, which has a receipt."""
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
        """Stop a session's runs, one run, or the message sent under a key (also before it was seen).

        `key` is the stop's own; a session's stop without one gets one, so that asking again ends nothing newer.
        """
        if session is not None and key is None:
            key = secrets.token_hex(16)
        asked = {"session": session, "run": run, "message": message, "key": key, "order": order, "typed": typed}
        if session is not None:
            return await self._now(session, "interlock.stop", asked)
        return await self._call("interlock.stop", asked)

    async def reset(self, session: str, *, key: str | None = None) -> Receipt:
        """End everything of a session, detached parts too, and begin a fresh transcript. Its schedules stay."""
        asked = {"session": session, "key": secrets.token_hex(16) if key is None else key}
        return await self._now(session, "interlock.reset", asked)

    async def answer(self, question: str, answer: bool | str) -> QuestionInfo:
        """Answer a question: True or False, or one of its choices. Raises QuestionClosed if it is not open any more."""
        return await self._call("interlock.answer", {"question": question, "answer": answer})

    async def set_strategy(self, session: str, strategy: str | None) -> None:
        """Say what messages to a session do while it is busy; None: what the server does."""
        await self._call("interlock.strategy", {"session": session, "strategy": strategy})

    async def share(self, session: str, *, with_: str, may: str = "write") -> Shared:
        """Let somebody else see a session and write in it, or (may="read") only see it. Its owner's to do."""
        return await self._call("interlock.share", {"session": session, "with": with_, "may": may})

    async def unshare(self, session: str, *, with_: str) -> Shared:
        """Take that right away again."""
        return await self._call("interlock.unshare", {"session": session, "with": with_})

    async def stop_all(self, *, of: str | None = None) -> list[Receipt]:
        """Stop everything that runs, or what one principal started and everything in its sessions. An admin's to do."""
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
        """Return a receipt by its own id, or a run's id or key, as it stands now."""
        name = "receiptId" if str(wanted).startswith("f-") else "runId"
        found: ReceiptResult = await self._call("receipts.get", {name: wanted})
        return found.receipt

    async def timeline(self, run: str) -> list[Moment]:
        """Return what happened in a run, in order."""
        found: TimelineResult = await self._call("runs.timeline", {"runId": run})
        return found.moments

    async def wakes(self, session: str) -> list[Wake]:
        """List a session's schedules."""
        return await self._call("interlock.wakes", {"session": session})

    async def pair(self, name: str | None = None) -> PairCode:
        """Return a code that lets a page in, once: behind `/#pair=` in the gateway's URL. An admin may name another."""
        return await self._call("interlock.pair", {"name": name})

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        seen = Seen(after)
        until = math.inf  # when a server that cannot tell us is given up
        while True:
            link = await self._connection.linked()
            feed = link.feed()
            told: Watched | None = None
            try:
                asked = {"watch": feed.number, "session": session, "run": run, "after": seen.position}
                await link.ask("interlock.watch", params_of("interlock.watch", asked))
                while (told := await feed.next()) is not None and told.event is not None:
                    until = math.inf
                    if seen.passes(told.event):
                        yield told.event
                        if run is not None and isinstance(told.event.data, Ended):
                            return
            except Dropped:
                continue
            finally:
                link.forget(feed)
            if told is None:  # the connection dropped, or we were too slow: go on behind what was passed on
                continue
            if told.error:
                error = error_of(told.error)
                until = min(until, monotonic() + self._connection.patience)
                if not isinstance(error, Unavailable) or monotonic() >= until:
                    raise error
            elif run is not None and (await self.wait(run, timeout=0)).ending is not Ending.PENDING:
                return  # its end was told before, or is no longer kept
            await asyncio.sleep(PAUSE_SECONDS[0])  # the server is closing: the next one goes on
