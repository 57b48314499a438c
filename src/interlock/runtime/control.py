"""Control: the verbs for every caller other than the agent.

1. Control decides in one synchronous step and acts in tasks of its own. A caller that vanishes changes nothing: no
   step of a run depends on the task that asked for it.
2. Every verb takes `by=` and asks `authority` in the step that shows or changes something. A session or run that the
   caller may not see raises the same error as one that does not exist, so an error gives nothing away.
3. A verb that reads the store asks for the right again after the read: another caller may have taken it away meanwhile.
4. A stop is never refused and never waits for anything but the bounded commit.
5. A control belongs to the loop it was opened on. Decisions without an await are atomic only there.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import anyio
import msgspec

from interlock.core.authority import Action, Authority, Whose
from interlock.core.decision import Decision, RunRow, WakeRow
from interlock.core.errors import BadInput, Unavailable, Unknown
from interlock.core.events import Entry, Event
from interlock.core.lifecycle import State
from interlock.core.names import (
    LOCAL,
    REPORTS,
    Ending,
    Principal,
    QuestionId,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    WakeId,
)
from interlock.core.outcome import Cause, Outcome
from interlock.core.receipt import Receipt
from interlock.core.story import transcript
from interlock.core.timeline import Moment, timeline
from interlock.processes.base import Processes, SpawnFailed
from interlock.runtime.approvals import Approvals, Policy, QuestionInfo
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.driver import Driver, HostsInfo
from interlock.runtime.ending import Endings
from interlock.runtime.feed import Feed, Listening, Sink
from interlock.runtime.guards import Guard, Guards, cut_short
from interlock.runtime.inbox import Inbox
from interlock.runtime.listing import RunInfo, as_tree, info_of, info_of_row
from interlock.runtime.live import RUN_SESSION, LiveRun, Order, Sent, own_session
from interlock.runtime.naming import Anothers, Naming, UnknownSession
from interlock.runtime.recovery import Recovery
from interlock.runtime.registry import Registry, StopCall
from interlock.runtime.reporting import Reporting
from interlock.runtime.settings import FALLS, Settings
from interlock.runtime.sharing import Shared, Sharing
from interlock.runtime.sight import Sight
from interlock.runtime.spawning import ProcessInfo, Running, Spawning
from interlock.runtime.stage import Stage
from interlock.runtime.stopping import Answering, Remaining, Stopping
from interlock.runtime.values import (
    count_of,
    instructions_of,
    kind_of,
    may_of,
    name_of,
    order_of,
    seconds_of,
    strategy_of,
    text_of,
)
from interlock.runtime.wakes import Wake, Wakes, schedule
from interlock.runtime.watch import Watch, whole_log
from interlock.stores.base import READ_SECONDS, SessionInfo, Store, StoreFailed, committed, read

# Closing waits this much longer than the sum of its bounds: a busy loop comes late to its timers.
SLACK_SECONDS = 1.0
ELSEWHERE = "from elsewhere use asyncio.run_coroutine_threadsafe(control.stop(...), loop)"


class Control:
    """Sends, stops, watches and answers for callers outside a run. Open one with `interlock.open_control`."""

    def __init__(
        self,
        *,
        driver: Driver,
        policy: Policy,
        store: Store,
        boot: int,
        settings: Settings,
        admins: Collection[str] = (),
        readers: Collection[str] = (),
        processes: Processes,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self._loop = loop
        self._closing: asyncio.Task[None] | None = None
        self._store = store
        self._driver = driver
        self._processes = processes
        self._authority = Authority(admins, readers)
        self.guards = Guards(self._authority)
        self.naming = Naming()
        self._registry = Registry(boot, store.epoch)
        self._crew = Crew()
        self._clock = Clock(loop)
        self.feed = Feed(self._registry, store=store, clock=self._clock, authority=self._authority, guards=self.guards)
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
            clock=self._clock,
            settings=settings,
        )
        self._sight = Sight(self._authority, self._registry, store)
        self._approvals = Approvals(
            self._registry,
            store=store,
            feed=self.feed,
            authority=self._authority,
            sight=self._sight,
            crew=self._crew,
            clock=self._clock,
            settings=settings,
        )
        self._sharing = Sharing(
            self._registry,
            store=store,
            authority=self._authority,
            guards=self.guards,
            inbox=self._inbox,
            endings=self._endings,
            settings=settings,
        )
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
            driver=driver,
            policy=policy,
            approvals=self._approvals,
            inbox=self._inbox,
            endings=self._endings,
            deadlines=deadlines,
            feed=self.feed,
            store=store,
            crew=self._crew,
            spawning=Spawning(
                self._registry, processes=processes, crew=self._crew, clock=self._clock, settings=settings
            ),
            clock=self._clock,
            settings=settings,
        )
        reporting = Reporting(
            self._registry,
            stage=self._stage,
            inbox=self._inbox,
            endings=self._endings,
            feed=self.feed,
            crew=self._crew,
            clock=self._clock,
        )
        self._recovery = Recovery(
            self._registry,
            store=store,
            feed=self.feed,
            endings=self._endings,
            inbox=self._inbox,
            stage=self._stage,
            reporting=reporting,
            processes=processes,
            clock=self._clock,
            settings=settings,
        )
        self._wakes = Wakes(self._registry, stage=self._stage, endings=self._endings, clock=self._clock)

    @property
    def hosts(self) -> HostsInfo | None:
        """Counts of hosts started, reused and killed, and why they are not warm; None without hosts."""
        return self._driver.info

    @property
    def queued(self) -> int:
        """How many messages wait for a seat, over all sessions."""
        return sum(len(session.waiting or ()) for session in self._registry.sessions.values())

    async def grade(self) -> str:
        """Return the grade of containment that receipts name; `inline` where no process can be started."""
        self._here()
        try:
            return (await self._processes.ready()).grade
        except SpawnFailed:
            return "inline"

    def appoint(
        self,
        *,
        admins: Collection[str] = (),
        readers: Collection[str] = (),
        writers: Collection[str] = (),
        approvers: Collection[str] = (),
    ) -> None:
        """Replace the lists of principals who may do everything, see everything, write too, or answer every question.

        The change counts at once: a watch or a wait whose caller has lost the right to see ends in this step.
        """
        if any(isinstance(names, str) for names in (admins, readers, writers, approvers)):
            raise BadInput("admins=, readers=, writers= and approvers= take a list of names, not one text")
        self._authority.appoint(admins=admins, readers=readers, writers=writers, approvers=approvers)
        self.guards.reconsider()

    async def recover(self) -> None:
        """Load and settle what an earlier start left in the store. Call it before anyone else uses this control."""
        self.naming.keep(await read(self._store.plain_sessions()))
        await self._recovery.settle()
        for row in await read(self._store.wakes()):
            self._wakes.add(row)
        for stop in await read(self._store.stops()):
            self._registry.recall(stop)

    # Sending

    async def send(
        self,
        session: str | None,
        text: str,
        *,
        by: str = LOCAL,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
        order: tuple[str, float] | None = None,
        kind: str = "chat",
        agent: str | None = None,
        instructions: str | None = None,
    ) -> Sent:
        """Send a message; return once the store has it. By default the message takes over the run in the session.

        Without a session (None) the run has a session of its own. `kind` is chat, or agent for a program's message,
        which queues unless it names a strategy itself. `agent` names the agent of open_control(agents=...) that
        answers; `instructions` reach the agent together with the message. `order` is (channel, the channel's own number
        or time). A message that was written before a stop in the same channel, and arrives after it, is stopped too.
        """
        begun = self.begin_send(
            session, text, by=by, key=key, strategy=strategy, deadline=deadline, order=order, kind=kind, agent=agent,
            instructions=instructions,
        )  # fmt: skip
        return await begun()

    def begin_send(
        self,
        session: str | None,
        text: str,
        *,
        by: str = LOCAL,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
        order: tuple[str, float] | None = None,
        kind: str = "chat",
        agent: str | None = None,
        instructions: str | None = None,
    ) -> Callable[[], Coroutine[Any, Any, Sent]]:
        """Take a message in this very step, so that a stop right behind it finds it; return what waits for the ack."""
        self._here()
        run = self._arrive(
            None if session is None else _session_name(session),
            text_of(text),
            kind=kind_of(kind),
            by=name_of(by, "by"),
            key=None if key is None else name_of(key, "key"),
            strategy=strategy_of(strategy),
            deadline=None if deadline is None else seconds_of(deadline, "deadline", None) or 0.0,
            order=order_of(order),
            agent=self.named(agent),
            instructions=instructions_of(instructions),
            begins=not isinstance(session, Anothers),
        )
        # An acked run means that the key was used before. If that run is over, the answer says `ended`, as it would
        # after a restart.
        return partial(self._sent, run, run.acked.is_set())

    async def _sent(self, run: LiveRun, again: bool) -> Sent:
        await run.acked.wait()
        if run.problem is not None:
            raise run.problem.with_traceback(None)
        # The message ended before it was seated: answer when its ending is public.
        if run.fall is not None and run.generation is None:
            await run.fall.ended.wait()
        assert run.sent is not None
        # An aliased run ends when the run that absorbed it ends.
        over = again and run.itself.ended.is_set()
        return msgspec.structs.replace(run.sent, state=State.ENDED) if over else run.sent

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of open_control(agents=...), for `send(agent=)` and `run.delegate`."""
        return self._driver.names

    def named(self, name: str | None) -> str | None:
        """Return an agent's name, or raise if no agent has it; None names the agent that control serves."""
        if name is None or name_of(name, "agent") in self._driver.names:
            return name
        known = ", ".join(self._driver.names) or "none"
        raise BadInput(
            f"no agent {name!r:.80} here; leave agent= out for the agent that control serves; the others are: {known}"
        )

    def _here(self, instead: str = ELSEWHERE) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        # RuntimeError: a thread without a loop calls a verb that is not a coroutine.
        except RuntimeError:
            here = False
        if not here:
            raise BadInput(f"a control belongs to the loop it was opened on; {instead}")

    def _arrive(
        self,
        session_id: str | None,
        text: str,
        *,
        kind: RunKind = RunKind.CHAT,
        by: str,
        key: str | None,
        strategy: Strategy | None,
        deadline: float | None,
        order: Order | None,
        agent: str | None = None,
        instructions: str | None = None,
        begins: bool = True,
    ) -> LiveRun:
        """Register a message and start its task, in one synchronous step.

        From this step on a stop finds the message, although nothing of it was loaded or stored yet (races 1 and 24).
        """
        if self._registry.closing:
            raise Unavailable("this control is closing; nothing was kept, send the message again after the restart")
        if not self._authority.may(Action.FOUND, Principal(by)):
            raise UnknownSession(SessionId(session_id or "of its own"), Principal(by))
        if len(self._registry.falls) >= FALLS:
            raise Unavailable("too many endings wait for the store; nothing was taken, send it again later")
        run_id = RunId(self._registry.new_id("r"))
        # The digest of a key holds the deadline that counts. Stored keys were made so: a change here would refuse
        # retries of messages that an earlier start accepted.
        limit = (self.settings.deadline if deadline is None else deadline) or None
        run = LiveRun(
            run_id,
            self._registry.session(own_session(run_id) if session_id is None else SessionId(session_id)),
            principal=Principal(by),
            text=text,
            kind=kind,
            method="send" if kind is RunKind.CHAT else kind,
            key=key,
            digest="" if key is None else _digest(session_id, text, strategy, limit, *_beside(agent, instructions)),
            strategy=strategy,
            deadline=deadline,
            admitted_at=self._clock.wall(),
            order=order,
            agent=agent,
            instructions=instructions,
            begins=begins,
        )
        return self._stage.begin(run)

    # Stopping

    async def stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        message: str | None = None,
        key: str | None = None,
        by: str = LOCAL,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Receipt:
        """Stop a session's runs, one run, or the message sent under a key (also before that message arrives).

        `key` is the stop's own: a second delivery gets the same receipt and ends nothing newer. `order` is the stop's
        own place in its channel: messages of the session that were written before it, and arrive within an hour after
        it, are stopped as well; messages that were written after it are spared. `typed` says that a person typed the
        stop as a message to the session; the outcome carries that on.
        """
        begun = self.begin_stop(session=session, run=run, message=message, key=key, by=by, order=order, typed=typed)
        return await begun()

    def begin_stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        message: str | None = None,
        key: str | None = None,
        by: str = LOCAL,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Answering:
        """Stop in this very step, and return what waits for the receipt: `await control.begin_stop(session="s")()`.

        A surface calls this in the step that reads a stop. The stop counts whether or not its answer is awaited.
        """
        self._here()
        if [session, run, message].count(None) != 2:
            raise BadInput("stop one thing: session=, run= or message=")
        if order is not None and session is None:
            raise BadInput("order= belongs to the stop of a session")
        place = order_of(order)
        what = [None if order is None else tuple(order), session, run, message]
        call = _call(by, key, "stop", what, typed=bool(typed) and session is not None)
        if session is not None:
            session_id = SessionId(name_of(session, "session"))
            return self._stopping.once(call, session_id, lambda: self._stopping.session(session_id, call, place))
        if run is not None:
            run_id = RunId(name_of(run, "run"))
            return self._stopping.once(call, None, lambda: self._stopping.run(run_id, call))
        sent = name_of(message, "message")
        return self._stopping.once(call, None, lambda: self._stopping.message(sent, call))

    def remaining(self, session: str, *, by: str = LOCAL) -> Remaining:
        """Return what the caller may still stop in a session. It reads memory alone and never waits for the store."""
        return self._stopping.remaining(SessionId(name_of(session, "session")), Principal(name_of(by, "by")))

    async def reset(self, session: str, *, key: str | None = None, by: str = LOCAL) -> Receipt:
        """End everything of a session, detached children and processes too, and begin a new transcript.

        The log and the schedules stay.
        """
        return await self.begin_reset(session, key=key, by=by)()

    def begin_reset(self, session: str, *, key: str | None = None, by: str = LOCAL) -> Answering:
        """Reset in this very step, as far as memory knows the session, and return what waits for the receipt."""
        self._here()
        session_id = SessionId(name_of(session, "session"))
        call = _call(by, key, "reset", [session])
        return self._stopping.once(call, session_id, lambda: self._stopping.reset(session_id, call))

    # Questions

    async def answer(self, question: str, answer: bool | str, *, by: str = LOCAL) -> QuestionInfo:
        """Answer a question with True or False, or one of its choices. Raise QuestionClosed if it is not open."""
        self._here()
        return await self._approvals.answer(
            QuestionId(name_of(question, "question")), answer, Principal(name_of(by, "by"))
        )

    async def questions(self, session: str | None = None, *, by: str = LOCAL) -> list[QuestionInfo]:
        """List the open questions that the caller may answer; with a session, also those of the children below it."""
        self._here()
        wanted = None if session is None else SessionId(name_of(session, "session"))
        return self._approvals.opened(wanted, Principal(name_of(by, "by")))

    # Sessions

    async def sessions(self, *, limit: int = 100, by: str = LOCAL) -> list[SessionInfo]:
        """List the sessions that the caller may see, the latest first, without sessions of single runs."""
        self._here()
        infos = await read(self._sight.sessions(count_of(limit, "limit"), Principal(name_of(by, "by"))))
        return [self._as_it_is(info) for info in infos]

    async def session(self, session: str, *, by: str = LOCAL) -> SessionInfo:
        """Return a session as a list shows it."""
        self._here()
        session_id = SessionId(name_of(session, "session"))
        row, runs = await read(self._store.session(session_id)), await read(self._store.runs(session_id))
        # Ask after the reads (rule 3).
        await self._owned(session_id, Principal(name_of(by, "by")))
        if row is None:
            raise UnknownSession(session_id, Principal(by))
        open_ones = sum(run.outcome is None and run.alias is None for run in runs)
        latest = max((run.admitted_at for run in runs), default=None)
        return self._as_it_is(SessionInfo(session=row, runs=len(runs), open=open_ones, latest_at=latest))

    def _as_it_is(self, info: SessionInfo) -> SessionInfo:
        live = self._registry.sessions.get(info.session.id)
        if live is None or live.confirmed_owner is None:
            return info
        return msgspec.structs.replace(info, session=self._registry.session_row(live))

    async def share(self, session: str, *, with_: str, may: str = "write", by: str = LOCAL) -> Shared:
        """Let another principal see a session and write in it, or (may="read") only see it; for owners and admins."""
        self._here()
        session_id, principal = SessionId(name_of(session, "session")), Principal(name_of(by, "by"))
        return await self._sharing.change(session_id, Principal(name_of(with_, "with_")), may_of(may), principal)

    async def unshare(self, session: str, *, with_: str, by: str = LOCAL) -> Shared:
        """Take a share away. From this step on, watches and waits that used it show nothing more."""
        self._here()
        session_id, principal = SessionId(name_of(session, "session")), Principal(name_of(by, "by"))
        return await self._sharing.change(session_id, Principal(name_of(with_, "with_")), None, principal)

    async def set_strategy(self, session: str, strategy: str | None, *, by: str = LOCAL) -> None:
        """Set what messages do while a session is busy; None is the server's setting. A message may override it."""
        self._here()
        session_id, principal, chosen = await self._mine(session, by), name_of(by, "by"), strategy_of(strategy)
        with self._registry.pinned(session_id) as live:
            if not live.loaded:
                self._inbox.take_up(live, await read(self._store.load(session_id, principal=LOCAL, key=None)))
            if not live.stored:
                raise UnknownSession(session_id, Principal(principal))
            before, live.strategy = live.strategy, chosen
            try:
                await self._keep(Decision(sessions=(self._registry.session_row(live),)))
            except StoreFailed:
                live.strategy = before
                raise

    async def wake(
        self,
        session: str,
        text: str,
        *,
        at: datetime | float | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
        by: str = LOCAL,
    ) -> Wake:
        """Schedule a message, once or repeatedly. A wake that finds the session busy is skipped and not made up for."""
        self._here()
        said, principal, now = text_of(text), Principal(name_of(by, "by")), self._clock.wall()
        once, seconds, line = schedule(at, every, cron, now)
        row = WakeRow(
            id=WakeId(self._registry.new_id("w")),
            session=await self._mine(_session_name(session), by),
            principal=principal,
            text=said,
            since=now,
            at=once,
            every=seconds,
            cron=line,
        )
        with self._wakes.room(row.session):
            try:
                await self._keep(Decision(wakes=(row,)))
            # The caller was told of no schedule, so none may stay, also if the caller was cancelled.
            except BaseException:
                self._endings.insist(Decision(unwakes=(row.id,)))
                raise
            return self._wakes.add(row)

    async def unwake(self, wake: str, *, by: str = LOCAL) -> None:
        """Remove a schedule; a run that it began goes on."""
        self._here()
        wake_id = WakeId(name_of(wake, "wake"))
        row = self._wakes.get(wake_id)
        try:
            if row is None:
                raise Unknown
            await self._mine(row.session, by)
        except Unknown:
            raise Unknown(f"no wake {wake!r} that {by} may remove; `wakes` lists them") from None
        # The schedule is gone from memory in this step. A slow store is tried again after this call has returned.
        removed = self._wakes.remove(wake_id)
        if removed is not None:
            await removed.within(self.settings.commit_seconds)

    async def wakes(self, session: str, *, by: str = LOCAL) -> list[Wake]:
        """List a session's schedules."""
        self._here()
        return self._wakes.of(await self._mine(session, by))

    async def _mine(self, session: str, by: str) -> SessionId:
        """Return the session's id if the caller may change its schedules and settings; else raise."""
        session_id = SessionId(name_of(session, "session"))
        await self._owned(session_id, Principal(name_of(by, "by")), Action.WAKE)
        return session_id

    async def _keep(self, decision: Decision) -> None:
        if not await committed(self._store, self._store.decide(decision), self.settings.commit_seconds):
            raise StoreFailed("the store did not accept the change in time; nothing was kept, try again")

    # Asking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False, by: str = LOCAL) -> Outcome:
        """Return how a run ended; `pending` if the timeout passed first, `unknown` if the caller sees no such run."""
        self._here()
        run_id, principal = RunId(name_of(run, "run")), Principal(name_of(by, "by"))
        seconds_of(timeout, "timeout", None)
        live = self._registry.runs.get(run_id)
        if live is None:
            patience = self.settings.commit_seconds if timeout == 0 else timeout or READ_SECONDS
            with anyio.move_on_after(patience):
                return await self._sight.outcome(run_id, principal) or _not_ended(run_id, Ending.UNKNOWN)
            return _not_ended(run_id, Ending.PENDING)
        if not live.itself.ended.is_set() or drained:
            with cut_short(self.guards, lambda gone: self._guard(live, principal, gone)):
                if timeout is None:
                    await _over(live, drained)
                else:
                    with anyio.move_on_after(timeout):
                        await _over(live, drained)
        # Ask after the wait: the right may have been taken away meanwhile.
        if not self._sight.may_see(principal, live.itself):
            return _not_ended(run_id, Ending.UNKNOWN)
        return _told(live.itself)

    def _guard(self, live: LiveRun, by: Principal, gone: Callable[[], object]) -> Guard:
        run = live.itself
        home, whose = run.home.id, run.session.whose
        return Guard(Action.SEE_RUN, by, session=home, whose=whose, principal=run.principal, gone=gone)

    async def receipt(self, wanted: str | None, *, by: str = LOCAL) -> Receipt:
        """Return a receipt, by its own id or a run's, as it stands now and with the runs the caller may see."""
        self._here()
        principal, asked = Principal(name_of(by, "by")), name_of(wanted, "receipt")
        run = self._registry.runs.get(RunId(asked))
        fall = run.itself.fall if run is not None else self._registry.falls.get(ReceiptId(asked))
        if fall is not None:
            shown = self._sight.receipt(fall, principal)
        else:
            shown = await read(self._sight.kept_receipt(ReceiptId(asked), principal))
        if shown is None:
            raise Unknown(f"no receipt {asked!r} that {by} may see; receipts are found by their id or a run's")
        return shown

    async def find(self, name: str, *, by: str = LOCAL) -> RunInfo | None:
        """Return a run the caller may see, by its id or by a key of the caller's; None if there is none."""
        self._here()
        wanted, principal = name_of(name, "name"), Principal(name_of(by, "by"))
        by_key = self._registry.keys.get((principal, wanted))
        # The key of an announcement is its child's id, and that id must find the child.
        if by_key is not None and by_key.kind in REPORTS:
            by_key = None
        for live in (by_key, self._registry.runs.get(RunId(wanted))):
            if live is not None and self._sight.may_see(principal, live.itself):
                return info_of(live.itself)
        key = (await read(self._store.load(SessionId(""), principal=principal, key=wanted))).key
        key_run = None if key is None or key.method == RunKind.ANNOUNCE else key.run_id
        for run_id in (key_run, RunId(wanted)):
            row = None if run_id is None else await read(self._sight.row(run_id, principal))
            if row is not None:
                # The run may have come to life during the read.
                live = self._registry.runs.get(row.id)
                seen = live is not None and self._sight.may_see(principal, live.itself)
                return info_of(live.itself) if live is not None and seen else info_of_row(row)
        return None

    async def runs(
        self, session: str | None = None, *, tree: bool = False, latest: int = 0, by: str = LOCAL
    ) -> list[RunInfo]:
        """List live runs the caller may see; with a session, its ended ones too, and with tree=True their children.

        Without a session, `latest` adds that many of the latest stored runs.
        """
        self._here()
        stored = count_of(latest, "latest")
        principal = Principal(name_of(by, "by"))
        wanted = None if session is None else SessionId(name_of(session, "session"))
        alive = self._alive(wanted, principal, tree=tree)
        rows: list[RunRow] = []
        if wanted is not None:
            rows = await read(self._sight.rows(wanted, principal, tree=tree))
        elif stored:
            rows = await read(self._sight.latest(stored, principal))
        known = {run.id for run in alive}
        # Ask after the reads (rule 3).
        live = [info_of(run) for run in alive if self._sight.may_see(principal, run)]
        ended = [info_of_row(row) for row in rows if row.id not in known and self._sight.still(principal, row)]
        if wanted is not None and not live and not ended:
            # Raise if the caller sees no such session.
            await self._owned(wanted, principal)
        return as_tree([*ended, *live]) if tree else [*ended, *live]

    def _alive(self, session: SessionId | None, by: Principal, *, tree: bool = False) -> list[LiveRun]:
        return [
            run
            for run in self._registry.runs.values()
            if session in (None, run.session.id, run.home.id if tree else None) and self._sight.may_see(by, run)
        ]

    def live_runs(self, session: str | None = None, *, by: str = LOCAL) -> list[RunInfo]:
        """List live runs the caller may see, from memory alone; the call never waits for the store."""
        self._here()
        wanted = None if session is None else SessionId(name_of(session, "session"))
        return [info_of(run) for run in self._alive(wanted, Principal(name_of(by, "by")))]

    async def processes(self, session: str | None = None, *, by: str = LOCAL) -> list[ProcessInfo]:
        """List live processes of runs the caller may see, and detached ones the caller may stop."""
        return self.live_processes(session, by=by)

    def live_processes(self, session: str | None = None, *, by: str = LOCAL) -> list[ProcessInfo]:
        """List what `processes` lists; the call never waits."""
        self._here()
        principal = Principal(name_of(by, "by"))
        wanted = None if session is None else SessionId(name_of(session, "session"))
        found: dict[Running, None] = {}
        for run in self._registry.runs.values():
            if run.kept is not None and wanted in (None, run.home.id) and self._sight.may_see(principal, run):
                found.update(run.kept.running)
        for each in self._registry.sessions.values():
            if wanted in (None, each.id):
                found.update(dict.fromkeys(self._stopping.detached(each, principal)))
        return [running.info() for running in found if running.running or running.order.detached]

    async def history(self, session: str, *, by: str = LOCAL) -> list[Entry]:
        """Return a session's conversation."""
        self._here()
        session_id, principal = SessionId(name_of(session, "session")), Principal(name_of(by, "by"))
        since = await self._owned(session_id, principal)
        log = await whole_log(self.feed.log, session_id, after=since)
        # Ask again after the read (rule 3).
        await self._owned(session_id, principal)
        return transcript(log)

    async def timeline(self, run: str, *, by: str = LOCAL) -> list[Moment]:
        """Return what happened in a run, in order, as a few moments that a surface can draw."""
        self._here()
        wanted, principal = RunId(name_of(run, "run")), Principal(name_of(by, "by"))
        live = self._registry.runs.get(wanted)
        found = await self._seen(wanted if live is None else live.itself.id, principal)
        if found is None:
            return []
        session_id, run_id = found
        fall = None if live is None else live.itself.fall
        kept = None if fall is not None else await read(self._sight.kept_receipt(ReceiptId(run_id), principal))
        receipt = kept if fall is None else self._sight.receipt(fall, principal)
        log = await whole_log(self.feed.log, session_id)
        # Ask again after the reads (rule 3).
        await self._seen(run_id, principal)
        return timeline(run_id, log, receipt)

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0, by: str = LOCAL
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events after a position, then follow; with run=, that run's, up to its terminal event."""
        watch = Watch()
        watch.listening = listening = await self.listen(watch, session, run=run, after=after, by=by)
        if listening is None:
            return
        try:
            while (event := await watch.next()) is not None:
                yield event
        finally:
            listening.close()

    async def listen(
        self,
        sink: Sink,
        session: str | None = None,
        *,
        run: str | None = None,
        after: int = 0,
        begin: str | None = None,
        by: str = LOCAL,
    ) -> Listening | None:
        """Give a sink what `watch` yields, each event in the step that publishes it; None if the run was withdrawn.

        `begin` names a run: events of the session before that run's first are left out, as those up to `after` are.

        Control reads the log once `resume` is called on what this returns. The listening ends when the caller loses the
        right to see what it shows.
        """
        self._here()
        if (session is None) == (run is None):
            raise BadInput("watch one thing: a session, or run=")
        if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < 2**63:
            raise BadInput(f"after= is an event's position, not {after!r:.40}; 0 replays from the beginning")
        principal = Principal(name_of(by, "by"))
        only = None if run is None else RunId(name_of(run, "run"))
        # Events of an aliased run belong to the run that absorbed it.
        if only is not None and (live := self._registry.runs.get(only)) is not None:
            only = live.itself.id
        if only is None:
            session_id = SessionId(name_of(session, "session"))
            await self._owned(session_id, principal)
        elif (found := await self._seen(only, principal)) is None:
            return None
        else:
            session_id, only = found
        if begin is not None:
            after = max(after, await read(self.feed.log.began(session_id, RunId(name_of(begin, "begin")))) - 1)
        # The last read: a right that is taken away before the guard is held would otherwise still count.
        guard = await self._guard_of(session_id, only, principal)
        listening = self.feed.follow(session_id, sink, after=after, only=only)
        listening.guarded(guard(listening.forbid))
        return listening

    async def _guard_of(
        self, session_id: SessionId, run_id: RunId | None, by: Principal
    ) -> Callable[[Callable[[], object]], Guard]:
        if run_id is None:
            return partial(_session_guard, by, session_id, await read(self._sight.whose(session_id)))
        if (live := self._registry.runs.get(run_id)) is not None:
            return partial(self._guard, live, by)
        row = await read(self._store.run(run_id))
        home = SessionId("") if row is None else row.home or row.session
        whose, principal = await read(self._sight.whose(home)), None if row is None else row.principal
        return partial(_run_guard, by, home, whose, principal)

    def sees(self, by: str, session: SessionId, run: RunId | None, *, question: bool = False) -> bool:
        """Return whether the caller may see an event of a session or a run now; the call never waits for the store."""
        live = None if run is None else self._registry.runs.get(run)
        return self.feed.sees(Principal(by), session, None if live is None else live.principal, question=question)

    def is_current(self, run: str, *, by: str = LOCAL) -> bool:
        """Return whether a run has not fallen. A sink asks this in the step in which it begins a delivery (race 135).

        The call never waits. The answer turns False in the step of the fall, whatever the ending, and stays False: a
        sink cannot act on a False that was only early. A run that waits for its seat is current: only a fall makes it
        stale. A run that completed is not current; a sink that is late sees by its ending that its text is final. An
        aliased run is as current as the run that absorbed it. A run that is not in memory, or that the caller may not
        see, is not current.
        """
        # A thread is refused: a stop could be answered between its question and its delivery.
        self._here(
            "ask there, in the step that delivers: the run may fall between a thread's question and its delivery"
        )
        wanted, principal = RunId(name_of(run, "run")), Principal(name_of(by, "by"))
        live = self._registry.runs.get(wanted)
        if live is None or self._registry.closing:
            return False
        return live.itself.current and self._sight.may_see(principal, live.itself)

    def whose(self, session: SessionId) -> Whose:
        """Return a session's owner and shares, as far as memory knows them."""
        return self._registry.whose(session)

    async def _seen(self, run_id: RunId, by: Principal) -> tuple[SessionId, RunId] | None:
        """Return session and id of a run the caller may see (of its absorber, if aliased); None if it was withdrawn."""
        live = self._registry.runs.get(run_id)
        if live is not None and self._sight.may_see(by, live):
            # Until the ack nothing of a run is public, and it may still be withdrawn.
            await live.acked.wait()
            return None if live.state is State.WITHDRAWN else (live.session.id, live.itself.id)
        row = await read(self._sight.row(run_id, by)) if live is None else None
        if row is None:
            raise Unknown(f"no run {run_id!r} that {by} may see; `runs` lists them")
        return row.session, row.id

    async def _owned(self, session_id: SessionId, by: Principal, action: Action = Action.SEE_SESSION) -> int:
        """Return where a session's transcript begins; raise if there is none on which the caller may act."""
        whose, since = await read(self._sight.session(session_id))
        if whose.owner is None or not self._authority.may(action, by, whose=whose):
            raise UnknownSession(session_id, by)
        return since

    # Closing

    async def close(self) -> None:
        """End running runs as `shutdown`, leave waiting messages in the store, and close everything, bounded.

        A caller that cancels this call still waits until everything is closed.
        """
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
        self._wakes.close()
        for run in list(self._registry.runs.values()):
            self._let_go(run)
        for session in self._registry.sessions.values():
            for running in session.kept.running if session.kept is not None else ():
                running.end()
        bounds = self.settings
        await self._crew.wait(2 * bounds.commit_seconds + bounds.grace_seconds + bounds.drain_seconds + SLACK_SECONDS)
        # Set this in one step with the cut: a run that falls after the cut would have no task left to publish its
        # ending.
        self._registry.closed = True
        self._crew.cut()
        await self._crew.wait(SLACK_SECONDS)
        self.feed.close()
        await self._driver.close()
        await self._processes.close()
        with anyio.move_on_after(SLACK_SECONDS):
            await self._store.close(clean=not self._registry.settling)

    def _let_go(self, run: LiveRun) -> None:
        if run.state in (State.SEATED, State.STARTED):
            # During recovery the run is one of an earlier start; the next start settles it.
            if not self._registry.settling:
                self._endings.end(run, Cause(ending=Ending.SHUTDOWN))
        # A queued message stays in the store for the next start; its waiters get `pending`.
        elif run.state is State.QUEUED:
            for timer in run.timers or ():
                timer.cancel()
            run.ended.set()
            run.called.set()
        # A message that is joining another one is already decided on and is not turned away.
        elif run.state is State.ARRIVING and run.joining is None:
            self._inbox.turn_away(
                run, Unavailable("this control is closing; nothing was kept, send the message again after the restart")
            )


async def _over(run: LiveRun, drained: bool) -> None:
    await run.ended.wait()
    # An aliased run ends when the run that absorbed it ends.
    while run.alias is not None:
        run = run.alias
        await run.ended.wait()
    if drained and run.fall is not None:
        await run.fall.drained.wait()


def _told(run: LiveRun) -> Outcome:
    if run.state in (State.WITHDRAWN, State.ALIASED):
        return _not_ended(run.id, Ending.UNKNOWN)
    if not run.sealed:
        return _not_ended(run.id, Ending.PENDING)
    return run.outcome_now or _not_ended(run.id, Ending.PENDING)


def _not_ended(run_id: RunId, answer: Ending) -> Outcome:
    return Outcome(run_id=run_id, ending=answer)


def _session_guard(by: Principal, session: SessionId, whose: Whose, gone: Callable[[], object]) -> Guard:
    return Guard(Action.SEE_SESSION, by, session=session, whose=whose, gone=gone)


def _run_guard(
    by: Principal, home: SessionId, whose: Whose, principal: Principal | None, gone: Callable[[], object]
) -> Guard:
    return Guard(Action.SEE_RUN, by, session=home, whose=whose, principal=principal, gone=gone)


def _session_name(value: object) -> str:
    name = name_of(value, "session")
    if name.startswith(RUN_SESSION):
        raise BadInput(f"session {name!r:.80} belongs to that run alone; send to the session it came from, or stop it")
    return name


def _beside(agent: str | None, instructions: str | None) -> tuple[object, ...]:
    """Return the further parts of a key's digest; none for a plain message, so that older stored keys still match."""
    return () if agent is None and instructions is None else (agent, instructions)


def _call(by: str, key: str | None, method: str, what: Sequence[object], *, typed: bool = False) -> StopCall:
    own = None if key is None else name_of(key, "key")
    digest = "" if own is None else _digest(*what)
    return StopCall(Principal(name_of(by, "by")), method=method, key=own, digest=digest, typed=typed)


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
