"""Control: the verbs of everyone who is not the agent.

1. It decides in one synchronous step and acts in tasks of its own; a caller that vanishes changes nothing.
2. Every verb takes `by=` and asks `authority` once; not yours and not found look the same.
3. Stop is never refused and never waits for anything but the bounded commit.
"""

import asyncio
import contextlib
import hashlib
import math
from collections.abc import AsyncGenerator, Awaitable, Collection
from contextlib import aclosing
from typing import TypeVar

import anyio
import msgspec

from interlock.core.authority import Action, Authority
from interlock.core.decision import Decision, RunRow, Tombstone
from interlock.core.errors import BadInput, NotYet, Unavailable, Unknown
from interlock.core.events import Entry, Event, transcript
from interlock.core.lifecycle import State
from interlock.core.names import LOCAL, Drain, Ending, Principal, ReceiptId, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Cause, Outcome
from interlock.core.receipt import Receipt, nothing
from interlock.core.takeover import BUILT
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.ending import Endings
from interlock.runtime.fall import Fall
from interlock.runtime.inbox import Inbox
from interlock.runtime.inline import DaemonThreads, Threads
from interlock.runtime.outlet import Feed
from interlock.runtime.registry import LiveRun, Registry, Sent, Session
from interlock.runtime.run import Agent
from interlock.runtime.settings import MESSAGE_BYTES, Settings
from interlock.runtime.stage import Stage
from interlock.runtime.tool import need_utf8
from interlock.runtime.watch import Watch, whole_log
from interlock.stores.base import Store, Ticket

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
            return await self._stop_session(SessionId(_name(session, "session")), principal)
        if run is not None:
            return await self._stop_run(RunId(_name(run, "run")), principal)
        return await self._stop_key(_name(key or "", "key"), principal)

    async def _stop_session(self, session_id: SessionId, by: Principal) -> Receipt:
        session = self._registry.sessions.get(session_id)
        if session is None:
            return await self._stop_absent(session_id, by)
        everyone = [session.seat, *(session.waiting or ()), *(session.line or ())]
        targets = [run for run in everyone if run and not run.fallen and self._may_stop(by, run)]
        unclear = [] if session.loaded else [run for run in session.line or () if not run.fallen and run not in targets]
        for run in unclear:  # whose session it is will be known when it is loaded, before they are decided on
            run.claims = (*run.claims, by)
        if not targets and unclear:
            return await self._stop_unclear(session, unclear, by)
        if not targets:
            return await self._stop_empty(session, by)
        fall = self._endings.open(session, by=by)
        for target in targets:
            fall.take(target, Cause(ending=Ending.STOPPED, by=by))
        self._endings.close(fall)
        return await self._receipt_of(fall)

    async def _stop_unclear(self, session: Session, arrivals: list[LiveRun], by: Principal) -> Receipt:
        """Wait, bounded, until it is decided whether the caller may stop what is arriving."""
        for run in arrivals:
            await self._soon(run.acked.wait())
            if run.fall is not None and run.outcome is not None and run.outcome.by == by:
                await run.fall.ended.wait()
                return run.fall.receipt(aborted=True)
        return nothing(session=session.id, by=by, now=self._clock.wall())

    async def _stop_empty(self, session: Session, by: Principal) -> Receipt:
        """Nothing to end. On an empty seat the generation rises all the same; a run that is ending is named."""
        if not self._authority.may(Action.STOP, by, owner=session.owner):
            return nothing(session=session.id, by=by, now=self._clock.wall())
        if session.seat is None and session.owner is not None:
            self._registry.generations.rise(session.id)
            ticket = self._store.decide(Decision(sessions=(self._registry.session_row(session),)))
            await self._soon(ticket)
        last = session.previous
        return nothing(
            session=session.id, by=by, now=self._clock.wall(), already=last.ending if last is not None else None
        )

    async def _stop_absent(self, session_id: SessionId, by: Principal) -> Receipt:
        """Nobody has the session in memory: raise its generation where it is kept, if the caller may."""
        already = await self._soon(self._raise_stored(session_id, by))
        return nothing(session=session_id, by=by, now=self._clock.wall(), already=already)

    async def _raise_stored(self, session_id: SessionId, by: Principal) -> Ending | None:
        known = await self._store.load(session_id, principal=by, key=None)
        if known.session is None or not self._authority.may(Action.STOP, by, owner=known.session.owner):
            return None
        await self._store.decide(Decision(rises=(session_id,)))
        return None if known.previous is None else known.previous.ending

    async def _stop_run(self, run_id: RunId, by: Principal) -> Receipt:
        run = self._registry.runs.get(run_id)
        if run is not None and self._may_stop(by, run):
            return await self._stop_live(run, by)
        found = await self._soon(self._receipt_again(run_id, by)) if run is None else None
        return found or nothing(session=None, by=by, now=self._clock.wall())

    async def _stop_live(self, run: LiveRun, by: Principal) -> Receipt:
        fall = self._endings.end(run, Cause(ending=Ending.STOPPED, by=by)) if _endable(run) else None
        if fall is not None:
            return await self._receipt_of(fall)
        if run.fall is None:  # withdrawn: it never was
            return nothing(session=run.session.id, by=by, now=self._clock.wall())
        await run.fall.ended.wait()
        return run.fall.receipt(aborted=False, already=_ending(run))

    @staticmethod
    async def _receipt_of(fall: Fall) -> Receipt:
        """Return the receipt of a stop at t1; `aborted` follows from what was decided, not from what was asked."""
        await fall.ended.wait()
        endings = [_ending(run) for run in fall.runs]
        stopped = Ending.STOPPED in endings
        return fall.receipt(aborted=stopped, already=None if stopped else endings[0])

    async def _receipt_again(self, run_id: RunId, by: Principal) -> Receipt | None:
        """A second stop gets the same receipt, with `aborted: false` and the ending it found."""
        outcome = await self._stored_outcome(run_id, by)
        if outcome is None or not outcome.ended:
            return None
        receipt = await self._store.receipt(run_id)
        if receipt is None:
            return nothing(session=None, by=by, now=self._clock.wall(), already=outcome.ending)
        return msgspec.structs.replace(receipt, aborted=False, already=outcome.ending)

    async def _stop_key(self, key: str, by: Principal) -> Receipt:
        run = self._registry.keys.get((by, key))
        if run is not None:
            return await self._stop_live(run, by)
        tombstone = Tombstone(principal=by, key=key)
        self._registry.bury(tombstone)
        ticket = self._store.decide(Decision(tombstones=(tombstone,)))
        found = await self._soon(self._find_by_key(key, by, ticket))
        return found or nothing(session=None, by=by, now=self._clock.wall())

    async def _find_by_key(self, key: str, by: Principal, buried: Ticket) -> Receipt | None:
        await buried
        known = await self._store.load(SessionId(""), principal=by, key=key)
        return None if known.key is None else await self._receipt_again(known.key.run_id, by)

    async def _soon(self, asked: Awaitable[T]) -> T | None:
        """Ask the store on behalf of a stop: at most COMMIT_SECONDS, and its trouble is no reason to refuse."""
        with anyio.move_on_after(self.settings.commit_seconds), contextlib.suppress(Unavailable):
            return await asked
        return None

    def _may_stop(self, by: Principal, run: LiveRun) -> bool:
        return self._authority.may(Action.STOP, by, owner=run.session.owner, principal=run.principal)

    # Asking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False, by: str = LOCAL) -> Outcome:
        """Return how a run ended; `pending` if the wait itself ran out, `unknown` if there is no such run for you."""
        self._here()
        run_id, principal = RunId(_name(run, "run")), Principal(_name(by, "by"))
        _seconds(timeout, "timeout", None)
        live = self._registry.runs.get(run_id)
        if live is None:
            with anyio.move_on_after(self.settings.commit_seconds if timeout == 0 else timeout):
                return await self._stored_outcome(run_id, principal) or _not_ended(run_id, Ending.UNKNOWN)
            return _not_ended(run_id, Ending.PENDING)
        if not self._may_see(principal, live):
            return _not_ended(run_id, Ending.UNKNOWN)
        with anyio.move_on_after(timeout):
            await live.ended.wait()
            if drained and live.fall is not None:
                await live.fall.drained.wait()
        return self._told(live)

    def _told(self, run: LiveRun) -> Outcome:
        if run.state in (State.WITHDRAWN, State.ALIASED):
            return _not_ended(run.id, Ending.UNKNOWN)
        if run.outcome is None or run.fall is None or not run.sealed:
            return _not_ended(run.id, Ending.PENDING)
        return run.fall.told(run)

    async def _stored_outcome(self, run_id: RunId, by: Principal) -> Outcome | None:
        row = await self._store.run(run_id)
        if row is None or not await self._may_see_row(row, by):
            return None
        if row.outcome is None:
            return _not_ended(run_id, Ending.PENDING)
        receipt = await self._store.receipt(run_id)
        over = receipt is None or receipt.drain is not Drain.PENDING
        return msgspec.structs.replace(row.outcome, drained=over, durable=True)

    def _may_see(self, by: Principal, run: LiveRun) -> bool:
        return self._authority.may(Action.SEE_RUN, by, owner=run.session.owner, principal=run.principal)

    async def _may_see_row(self, row: RunRow, by: Principal) -> bool:
        session = await self._store.session(row.session)
        owner = None if session is None else session.owner
        return self._authority.may(Action.SEE_RUN, by, owner=owner, principal=row.principal)

    async def receipt(self, wanted: str | None, *, by: str = LOCAL) -> Receipt:
        """Return a receipt by its own id or a run's, as it stands now."""
        principal, asked = Principal(_name(by, "by")), _name(wanted, "receipt")
        run = self._registry.runs.get(RunId(asked))
        fall = run.fall if run is not None else self._registry.falls.get(ReceiptId(asked))
        if fall is not None:
            visible = {run.id for run in fall.runs if self._may_see(principal, run)}
            kept: Receipt | None = fall.receipt()
        else:
            kept = await self._store.receipt(ReceiptId(asked))
            rows = [await self._store.run(fallen.id) for fallen in kept.runs] if kept is not None else []
            visible = {row.id for row in rows if row is not None and await self._may_see_row(row, principal)}
        if kept is None or not visible:
            raise Unknown(f"no receipt {asked!r} that {by} may see; receipts are found by their id or a run's")
        return _only(kept, visible)

    async def runs(self, session: str | None = None, *, by: str = LOCAL) -> list[RunInfo]:
        """List live runs the caller may see; with a session, its ended ones too."""
        principal = Principal(_name(by, "by"))
        live = [
            _info(run)
            for run in self._registry.runs.values()
            if session in (None, run.session.id) and self._may_see(principal, run)
        ]
        if session is None:
            return live
        known = {info.id for info in live}
        rows = [row for row in await self._store.runs(SessionId(session)) if row.id not in known]
        ended = [_info_of_row(row) for row in rows if await self._may_see_row(row, principal)]
        if not live and not ended:
            await self._owned(SessionId(session), principal)  # raises if there is no such session for the caller
        return [*ended, *live]

    async def history(self, session: str, *, by: str = LOCAL) -> list[Entry]:
        """Return a session's conversation."""
        session_id = SessionId(_name(session, "session"))
        await self._owned(session_id, Principal(_name(by, "by")))
        return transcript(await whole_log(self._store, session_id))

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0, by: str = LOCAL
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        if (session is None) == (run is None):
            raise BadInput("watch one thing: a session, or run=")
        principal = Principal(_name(by, "by"))
        only = None if run is None else RunId(run)
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
        if live is not None and self._may_see(by, live):
            await live.acked.wait()  # nothing of it is told before, and it may yet be withdrawn
            return None if live.state in (State.WITHDRAWN, State.ALIASED) else live.session.id
        row = await self._store.run(run_id) if live is None else None
        if row is None or not await self._may_see_row(row, by):
            raise Unknown(f"no run {run_id!r} that {by} may see; `runs` lists them")
        return row.session

    async def _owned(self, session_id: SessionId, by: Principal) -> None:
        """Raise unless there is such a session and the caller may see it."""
        session = self._registry.sessions.get(session_id)
        known = session is not None and session.loaded
        owner = session.owner if session is not None else None
        if not known and (row := await self._store.session(session_id)) is not None:
            known, owner = True, row.owner
        if not known or not self._authority.may(Action.SEE_SESSION, by, owner=owner):
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
        """End what runs as `shutdown`, keep what waits, and let go; bounded."""
        if self._registry.closing:
            return
        self._registry.closing = True
        with anyio.CancelScope(shield=True):
            for run in list(self._registry.runs.values()):
                if run.state in (State.SEATED, State.STARTED):
                    self._endings.end(run, Cause(ending=Ending.SHUTDOWN))
                elif run.state is State.QUEUED:
                    run.ended.set()  # it stays in the store's queue; whoever waits is told `pending`
                    run.called.set()
            bounds = self.settings
            await self._crew.wait(
                2 * bounds.commit_seconds + bounds.grace_seconds + bounds.drain_seconds + SLACK_SECONDS
            )
            self._crew.cut()
            await self._crew.wait(SLACK_SECONDS)
            self.feed.close()
            await self._store.close()


def _only(receipt: Receipt, visible: set[RunId]) -> Receipt:
    """Return what a receipt says of these runs: one fall may take runs of several people."""
    return msgspec.structs.replace(
        receipt,
        runs=tuple(run for run in receipt.runs if run.id in visible),
        tools=tuple(tool for tool in receipt.tools if tool.run_id in visible),
    )


def _endable(run: LiveRun) -> bool:
    return not run.fallen and run.state not in (State.WITHDRAWN, State.ALIASED)


def _ending(run: LiveRun) -> Ending | None:
    return None if run.outcome is None else run.outcome.ending


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
