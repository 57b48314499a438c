"""Control: the verbs of everyone who is not the agent.

1. It decides in one synchronous step and acts in tasks of its own; a caller that vanishes changes nothing.
2. Every verb takes `by=` and asks `authority` once; not yours and not found look the same.
3. Stop is never refused and never waits for anything but the bounded commit.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import TypeVar

import anyio
import msgspec

from interlock.core.authority import Action, Authority
from interlock.core.decision import RunRow
from interlock.core.errors import BadInput, NotYet, Unavailable, Unknown
from interlock.core.events import Entry, Event, transcript
from interlock.core.lifecycle import State
from interlock.core.names import LOCAL, Ending, Principal, ReceiptId, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Cause, Outcome
from interlock.core.receipt import Receipt
from interlock.core.takeover import BUILT
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.ending import Endings
from interlock.runtime.inbox import Inbox
from interlock.runtime.inline import DaemonThreads, Threads
from interlock.runtime.outlet import Feed
from interlock.runtime.registry import LiveRun, Registry, Sent
from interlock.runtime.run import Agent
from interlock.runtime.settings import FALLS, MESSAGE_BYTES, Settings
from interlock.runtime.sight import Sight
from interlock.runtime.stage import Stage
from interlock.runtime.stopping import Stopping
from interlock.runtime.tool import need_utf8
from interlock.runtime.watch import Watch, whole_log
from interlock.stores.base import READ_SECONDS, Store, read

T = TypeVar("T")

SLACK_SECONDS = 1.0  # beyond the sum of the bounds, for the loop to come round


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a list shows it."""

    id: RunId
    session: SessionId
    principal: Principal
    kind: RunKind
    state: State
    generation: int | None = None
    phase: str | None = None
    outcome: Outcome | None = None


class Control:
    """Everything one can do with sessions and runs. Open it with `interlock.open_control`."""

    def __init__(
        self,
        *,
        agent: Agent,
        store: Store,
        boot: int,
        settings: Settings,
        admins: Collection[str] = (),
        readers: Collection[str] = (),
        threads: Threads | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self._loop = loop
        self._closing: asyncio.Task[None] | None = None
        self._store = store
        self._authority = Authority(admins, readers)
        self._registry = Registry(boot)
        self._crew = Crew()
        self._clock = Clock(loop)
        self.feed = Feed(self._registry, store)
        self._endings = Endings(
            self._registry, feed=self.feed, store=store, crew=self._crew, clock=self._clock, settings=settings
        )
        deadlines = Deadlines(self._endings, self._clock, settings)
        self._inbox = Inbox(
            self._registry,
            store=store,
            feed=self.feed,
            endings=self._endings,
            deadlines=deadlines,
            authority=self._authority,
            settings=settings,
        )
        self._sight = Sight(self._authority, store)
        self._stopping = Stopping(
            self._registry,
            endings=self._endings,
            inbox=self._inbox,
            store=store,
            sight=self._sight,
            authority=self._authority,
            crew=self._crew,
            clock=self._clock,
            settings=settings,
        )
        self._stage = Stage(
            self._registry,
            agent=agent,
            inbox=self._inbox,
            endings=self._endings,
            deadlines=deadlines,
            feed=self.feed,
            store=store,
            crew=self._crew,
            threads=threads or DaemonThreads(),
            clock=self._clock,
            settings=settings,
        )

    # Sending

    async def send(
        self,
        session: str,
        text: str,
        *,
        by: str = LOCAL,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
    ) -> Sent:
        """Send a message; returns once it is safely taken. By default it takes over what runs in the session."""
        self._here()
        run = self._arrive(
            _name(session, "session"),
            _text(text),
            by=_name(by, "by"),
            key=None if key is None else _name(key, "key"),
            strategy=_strategy(strategy, self.settings.strategy),
            deadline=_seconds(deadline, "deadline", self.settings.deadline),
        )
        await run.acked.wait()
        if run.problem is not None:
            raise run.problem.with_traceback(None)
        if run.fall is not None and run.generation is None:
            await run.fall.ended.wait()  # it ended before it began: told when that is decided for good
        assert run.sent is not None
        return run.sent

    def _here(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(
                "a control belongs to the loop it was opened on; "
                "from elsewhere use asyncio.run_coroutine_threadsafe(control.stop(...), loop)"
            )

    def _arrive(
        self, session_id: str, text: str, *, by: str, key: str | None, strategy: Strategy, deadline: float | None
    ) -> LiveRun:
        """Register a message and start the task that carries it; one synchronous step."""
        if self._registry.closing:
            raise Unavailable("this control is closing; send it to the next one")
        if not self._authority.may(Action.SEND, Principal(by)):
            raise Unknown(f"no session {session_id} that {by} may send to")
        if len(self._registry.falls) >= FALLS:
            raise Unavailable("too many endings wait for the store; nothing was taken, send it again later")
        session = self._registry.session(SessionId(session_id))
        run = LiveRun(
            RunId(self._registry.new_id("r")),
            session,
            principal=Principal(by),
            text=text,
            kind=RunKind.CHAT,
            method="send",
            key=key,
            digest=_digest(session_id, text, strategy, deadline) if key is not None else "",
            strategy=strategy,
            deadline=deadline,
            admitted_at=self._clock.wall(),
        )
        run.touched = self._clock.now()
        try:
            answering = self._inbox.enter(run)
        finally:
            self._registry.forget_if_quiet(session)
        if answering is run:
            self._crew.start(self._stage.carry(run), name=f"run {run.id}")
        return answering

    # Stopping

    async def stop(
        self, *, session: str | None = None, run: str | None = None, key: str | None = None, by: str = LOCAL
    ) -> Receipt:
        """Stop a session's runs, one run, or the message with a key (also before it was seen)."""
        self._here()
        if [session, run, key].count(None) != 2:
            raise BadInput("stop one thing: session=, run= or key=")
        principal = Principal(_name(by, "by"))
        if session is not None:
            return await self._stopping.session(SessionId(_name(session, "session")), principal)
        if run is not None:
            return await self._stopping.run(RunId(_name(run, "run")), principal)
        return await self._stopping.key(_name(key, "key"), principal)

    # Asking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False, by: str = LOCAL) -> Outcome:
        """Return how a run ended; `pending` if the wait itself ran out, `unknown` if there is no such run for you."""
        self._here()
        run_id, principal = RunId(_name(run, "run")), Principal(_name(by, "by"))
        _seconds(timeout, "timeout", None)
        live = self._registry.runs.get(run_id)
        if live is None:
            patience = self.settings.commit_seconds if timeout == 0 else timeout or READ_SECONDS
            with anyio.move_on_after(patience):
                return await self._sight.outcome(run_id, principal) or _not_ended(run_id, Ending.UNKNOWN)
            return _not_ended(run_id, Ending.PENDING)
        if not self._sight.may_see(principal, live):
            return _not_ended(run_id, Ending.UNKNOWN)
        if timeout is None:
            await _over(live, drained)
        elif not live.ended.is_set() or drained:
            with anyio.move_on_after(timeout):
                await _over(live, drained)
        return _told(live)

    async def receipt(self, wanted: str | None, *, by: str = LOCAL) -> Receipt:
        """Return a receipt by its own id or a run's, as it stands now, of the runs the caller may see."""
        self._here()
        principal, asked = Principal(_name(by, "by")), _name(wanted, "receipt")
        run = self._registry.runs.get(RunId(asked))
        fall = run.fall if run is not None else self._registry.falls.get(ReceiptId(asked))
        if fall is not None:
            shown = self._sight.receipt(fall, principal)
        else:
            shown = await read(self._sight.kept_receipt(ReceiptId(asked), principal))
        if shown is None:
            raise Unknown(f"no receipt {asked!r} that {by} may see; receipts are found by their id or a run's")
        return shown

    async def runs(self, session: str | None = None, *, by: str = LOCAL) -> list[RunInfo]:
        """List live runs the caller may see; with a session, its ended ones too."""
        self._here()
        principal = Principal(_name(by, "by"))
        wanted = None if session is None else SessionId(_name(session, "session"))
        live = [
            _info(run)
            for run in self._registry.runs.values()
            if wanted in (None, run.session.id) and self._sight.may_see(principal, run)
        ]
        if wanted is None:
            return live
        known = {info.id for info in live}
        rows = await read(self._sight.rows(wanted, principal))
        ended = [_info_of_row(row) for row in rows if row.id not in known]
        if not live and not ended:
            await self._owned(wanted, principal)  # raises if there is no such session for the caller
        return [*ended, *live]

    async def history(self, session: str, *, by: str = LOCAL) -> list[Entry]:
        """Return a session's conversation."""
        self._here()
        session_id = SessionId(_name(session, "session"))
        await self._owned(session_id, Principal(_name(by, "by")))
        return transcript(await whole_log(self._store, session_id))

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0, by: str = LOCAL
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        self._here()
        if (session is None) == (run is None):
            raise BadInput("watch one thing: a session, or run=")
        if not isinstance(after, int) or isinstance(after, bool):
            raise BadInput(f"after= is an event's position, not {after!r:.40}; 0 replays from the beginning")
        principal = Principal(_name(by, "by"))
        only = None if run is None else RunId(_name(run, "run"))
        if only is None:
            session_id = SessionId(_name(session, "session"))
            await self._owned(session_id, principal)
        elif (found := await self._seen(only, principal)) is None:
            return
        else:
            session_id = found
        view = Watch(session_id, registry=self._registry, store=self._store, feed=self.feed)
        async with aclosing(view.events(after, only)) as events:
            async for event in events:
                yield event

    async def _seen(self, run_id: RunId, by: Principal) -> SessionId | None:
        """Return the session of a run the caller may see; None if the run turns out never to have been."""
        live = self._registry.runs.get(run_id)
        if live is not None and self._sight.may_see(by, live):
            await live.acked.wait()  # nothing of it is told before, and it may yet be withdrawn
            return None if live.state in (State.WITHDRAWN, State.ALIASED) else live.session.id
        row = await read(self._sight.row(run_id, by)) if live is None else None
        if row is None:
            raise Unknown(f"no run {run_id!r} that {by} may see; `runs` lists them")
        return row.session

    async def _owned(self, session_id: SessionId, by: Principal) -> None:
        """Raise unless there is such a session and the caller may see it."""
        session = self._registry.sessions.get(session_id)
        owner = session.confirmed_owner if session is not None else None
        if owner is None and (row := await read(self._store.session(session_id))) is not None:
            owner = row.owner
        if owner is None or not self._authority.may(Action.SEE_SESSION, by, owner=owner):
            raise Unknown(f"no session {session_id!r} that {by} may see; a session begins with its first message")

    # The next release

    async def answer(self, question: str, answer: object, *, by: str = LOCAL) -> None:
        """Answer a question."""
        raise NotYet("control.answer comes with questions")

    async def timeline(self, run: str, *, by: str = LOCAL) -> None:
        """Return what happened in a run, in order."""
        raise NotYet("control.timeline is not built yet; `watch(run=...)` tells the same as events")

    async def wake(self, session: str, text: str, **when: object) -> None:
        """Send a message later, or again and again."""
        raise NotYet("control.wake is not built yet; call send from a timer of your own")

    async def reset(self, session: str, *, by: str = LOCAL) -> Receipt:
        """End everything of a session and begin a fresh transcript."""
        raise NotYet("control.reset is not built yet; stop the session and use a new name")

    # Closing

    async def close(self) -> None:
        """End what runs as `shutdown`, keep what waits, and let go; bounded. Whoever cancels this waits for it too."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close control")
        interrupted: asyncio.CancelledError | None = None
        while not self._closing.done():
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError as cancel:
                interrupted = cancel
        if interrupted is not None:
            raise interrupted
        self._closing.result()

    async def _close(self) -> None:
        self._registry.closing = True
        for run in list(self._registry.runs.values()):
            self._let_go(run)
        bounds = self.settings
        await self._crew.wait(2 * bounds.commit_seconds + bounds.grace_seconds + bounds.drain_seconds + SLACK_SECONDS)
        self._crew.cut()
        await self._crew.wait(SLACK_SECONDS)
        self._registry.closed = True
        self.feed.close()
        with anyio.move_on_after(SLACK_SECONDS):
            await self._store.close()

    def _let_go(self, run: LiveRun) -> None:
        if run.state in (State.SEATED, State.STARTED):
            self._endings.end(run, Cause(ending=Ending.SHUTDOWN))
        elif run.state is State.QUEUED:  # it stays in the store's queue; whoever waits is told `pending`
            for timer in run.timers or ():
                timer.cancel()
            run.ended.set()
            run.called.set()
        elif run.state is State.ARRIVING:
            self._inbox.turn_away(run, Unavailable("this control is closing; send it to the next one"))


async def _over(run: LiveRun, drained: bool) -> None:
    await run.ended.wait()
    if drained and run.fall is not None:
        await run.fall.drained.wait()


def _told(run: LiveRun) -> Outcome:
    if run.state in (State.WITHDRAWN, State.ALIASED):
        return _not_ended(run.id, Ending.UNKNOWN)
    if run.fall is None or not run.sealed:
        return _not_ended(run.id, Ending.PENDING)
    return run.fall.told(run)


def _not_ended(run_id: RunId, answer: Ending) -> Outcome:
    return Outcome(run_id=run_id, ending=answer)


def _info(run: LiveRun) -> RunInfo:
    return RunInfo(
        id=run.id,
        session=run.session.id,
        principal=run.principal,
        kind=run.kind,
        state=run.state,
        generation=run.generation,
        phase=run.phase,
        outcome=run.fall.told(run) if run.fall is not None and run.sealed else None,
    )


def _info_of_row(row: RunRow) -> RunInfo:
    state = State.ENDED if row.outcome is not None else State.STARTED if row.started else State.QUEUED
    return RunInfo(
        id=row.id, session=row.session, principal=row.principal, kind=row.kind, state=state, outcome=row.outcome
    )


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 512:
        raise BadInput(f"{what} must be a name of 1 to 512 characters, not {value!r:.80}")
    need_utf8(value, what)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadInput(f"a message is text, not {type(value).__name__}; convert it first")
    if not value.strip():
        raise BadInput("the message is empty; send some text")
    need_utf8(value, "the message")
    if len(value) > MESSAGE_BYTES:
        raise BadInput(f"the message has {len(value)} characters, more than {MESSAGE_BYTES}; send a shorter one")
    return value


def _strategy(value: str | None, default: Strategy) -> Strategy:
    if value is None:
        return default
    known = ", ".join(BUILT)
    try:
        strategy = Strategy(value)
    except ValueError:
        raise BadInput(f"no strategy {value!r}; use one of {known}") from None
    if strategy not in BUILT:
        raise NotYet(f"strategy {value!r} is not built yet; use one of {known}")
    return strategy


def _seconds(value: object, what: str, default: float | None) -> float | None:
    """Return a limit in seconds; 0 and None mean none."""
    if value is None:
        return default or None
    try:
        seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        seconds = math.nan
    if math.isnan(seconds) or seconds < 0:
        raise BadInput(f"{what} must be 0 or more seconds from now, not {value!r:.40}; leave it out for none")
    return None if seconds in (0, math.inf) else seconds
