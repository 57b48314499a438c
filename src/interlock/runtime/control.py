"""Control: what carries out the verbs of every caller other than the agent.

1. Control decides in one synchronous step and acts in tasks of its own. A caller that vanishes changes nothing: no
   step of a run depends on the task that asked for it.
2. Every verb asks `authority` in the step that shows or changes something. A session or run that the caller may not see
   raises the same error as one that does not exist, so an error gives nothing away.
3. Two tables say who carries out which verb: what begins in the step that asks it, and what answers when it is awaited.
4. A stop is never refused and never waits for anything but the bounded commit.
5. A control belongs to the loop it was opened on. Decisions without an await are atomic only there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

import anyio

from interlock.agent.crew import Crew
from interlock.agent.order import SpawnFailed
from interlock.client.caller import Caller
from interlock.client.client import Client
from interlock.client.door import Answering, Asked, Sink
from interlock.core import verbs
from interlock.core.answers import Figures, HostsInfo, QuestionInfo
from interlock.core.authority import Authority
from interlock.core.errors import BadInput, InterlockError, Unavailable
from interlock.core.names import LOCAL, Ending, Principal, QuestionId, RunId
from interlock.core.outcome import Cause
from interlock.core.values import name_of
from interlock.core.verbs import Verb
from interlock.processes.base import Processes
from interlock.runtime.approvals import Approvals, Policy
from interlock.runtime.clock import Clock
from interlock.runtime.deadlines import Deadlines
from interlock.runtime.doors import ControlDoor
from interlock.runtime.driver import Driver
from interlock.runtime.ending import Endings
from interlock.runtime.feed import Feed
from interlock.runtime.following import Listening
from interlock.runtime.guards import Guards
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inside
from interlock.runtime.listening import Listeners
from interlock.runtime.live import LiveRun
from interlock.runtime.looking import Looking
from interlock.runtime.naming import Naming
from interlock.runtime.owning import Owning
from interlock.runtime.recovery import Recovery
from interlock.runtime.registry import Registry
from interlock.runtime.reporting import Reporting
from interlock.runtime.sending import Sending
from interlock.runtime.session_stops import SessionStops
from interlock.runtime.settings import Settings
from interlock.runtime.sharing import Sharing
from interlock.runtime.sight import Sight
from interlock.runtime.spawning import Spawning
from interlock.runtime.stage import Stage
from interlock.runtime.stops import Stops
from interlock.runtime.wakes import Wakes
from interlock.stores.base import Store, read

T = TypeVar("T")

# Closing waits this much longer than the sum of its bounds: a busy loop comes late to its timers.
SLACK_SECONDS = 1.0
ELSEWHERE = "from elsewhere use asyncio.run_coroutine_threadsafe(control.stop(...), loop)"


class Control(Caller):
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
        self._lapsed = False
        self._store = store
        self._driver = driver
        self._processes = processes
        self._authority = Authority(admins, readers)
        self.guards = Guards(self._authority)
        self.naming = Naming()
        self._registry = Registry(boot, store.epoch)
        self._crew = Crew()
        self._clock = clock = Clock(loop)
        self.feed = Feed(self._registry, store=store, clock=clock, authority=self._authority, guards=self.guards)
        self._sight = Sight(self._authority, self._registry, store)
        inside = Inside(
            registry=self._registry,
            store=store,
            feed=self.feed,
            authority=self._authority,
            guards=self.guards,
            sight=self._sight,
            crew=self._crew,
            clock=clock,
            settings=settings,
        )
        self._endings = endings = Endings(inside)
        deadlines = Deadlines(endings, clock, settings)
        self._inbox = inbox = Inbox(inside, endings=endings, deadlines=deadlines)
        self._approvals = Approvals(inside)
        stopping = SessionStops(inside, endings=endings, inbox=inbox)
        self._stage = stage = Stage(
            inside,
            driver=driver,
            policy=policy,
            approvals=self._approvals,
            inbox=inbox,
            endings=endings,
            deadlines=deadlines,
            spawning=Spawning(inside, processes=processes),
        )
        reporting = Reporting(inside, stage=stage, inbox=inbox, endings=endings)
        self._recovery = Recovery(inside, endings=endings, stage=stage, reporting=reporting, processes=processes)
        self._wakes = Wakes(inside, stage=stage, endings=endings)
        self._listeners = Listeners(inside)
        sending = Sending(inside, stage=stage, driver=driver)
        stops = Stops(inside, stopping=stopping)
        looking = Looking(inside, stopping=stopping, approvals=self._approvals)
        sharing = Sharing(inside, inbox=inbox, endings=endings)
        owning = Owning(inside, inbox=inbox, endings=endings, sharing=sharing, wakes=self._wakes)
        # By verb: what begins in the step that asks it, and what answers when it is awaited.
        self._begins: dict[type, Callable[[Any, Principal], Answering[Any]]] = {
            verbs.Send: sending.send,
            verbs.Stop: stops.stop,
            verbs.Reset: stops.reset,
            verbs.StopAll: stops.stop_all,
        }
        self._answers: dict[type, Callable[[Any, Principal], Coroutine[Any, Any, Any]]] = {
            verbs.Left: looking.left,
            verbs.Answer: self._answer,
            verbs.Questions: looking.questions,
            verbs.Wait: looking.wait,
            verbs.GetReceipt: looking.receipt,
            verbs.Timeline: looking.timeline,
            verbs.History: looking.history,
            verbs.Runs: looking.runs,
            verbs.Find: looking.find,
            verbs.Sessions: looking.sessions,
            verbs.Describe: looking.session,
            verbs.Processes: looking.processes,
            verbs.SetStrategy: owning.set_strategy,
            verbs.Share: owning.share,
            verbs.Unshare: owning.unshare,
            verbs.Schedule: owning.wake,
            verbs.Unschedule: owning.unwake,
            verbs.Wakes: owning.wakes,
            verbs.Measure: self._measure,
        }

    @property
    def hosts(self) -> HostsInfo | None:
        """Counts of hosts started, reused and killed, and why they are not warm; None without hosts."""
        return self._driver.info

    @property
    def queued(self) -> int:
        """How many messages wait for a seat, over all sessions."""
        return sum(len(session.queue or ()) for session in self._registry.sessions.values())

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
        await self._recovery.start()
        for row in await read(self._store.wakes()):
            self._wakes.add(row)
        for stop in await read(self._store.stops()):
            self._registry.recall(stop)

    # Verbs

    def ask(self, verb: Verb[T], *, by: str = LOCAL) -> Asked[T]:
        """Ask a verb. A message is taken and a stop takes effect in this step, whether or not the answer is awaited."""
        self._here()
        principal = Principal(name_of(by, "by"))
        begin = self._begins.get(type(verb))
        if begin is not None:
            return Asked(partial(self._unless_lapsed, begin(verb, principal)))
        answer = partial(self._answers[type(verb)], verb, principal)
        settled = partial(self._settled, verb, answer) if self._registry.recovering else answer
        return Asked(partial(self._unless_lapsed, settled))

    def client(self, by: str = LOCAL) -> Client:
        """Return a client of one principal: the verbs without `by`, as a client over a socket has them."""
        return Client(self.door(by))

    def door(self, by: str = LOCAL) -> ControlDoor:
        """Return the door of one principal, for a surface."""
        return ControlDoor(self, Principal(name_of(by, "by")))

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of open_control(agents=...), for `send(agent=)` and `run.delegate`."""
        return self._driver.names

    def _here(self, instead: str = ELSEWHERE) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        # RuntimeError: a thread without a loop calls a verb that is not a coroutine.
        except RuntimeError:
            here = False
        if not here:
            raise BadInput(f"a control belongs to the loop it was opened on; {instead}")

    async def _unless_lapsed(self, answer: Answering[T]) -> T:
        """Answer a verb; whoever asked is told if control lapses first."""
        try:
            answered = await answer()
        except InterlockError:
            if not self._lapsed:
                raise
        else:
            if not self._lapsed:
                return answered
        raise _lapsed()

    async def _settled(self, verb: Verb[T], answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Answer a verb once the session that it names, or that of its run, is settled; else once all are."""
        # A question in memory is one of a settled session, and its run waits for the answer.
        opened = isinstance(verb, verbs.Answer) and verb.question in self._registry.questions
        if not opened and not isinstance(verb, verbs.Measure):
            await self._recovery.settled_for(getattr(verb, "session", None), getattr(verb, "run", None))
        return await answer()

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
        Control reads the log once `resume` is called on what this returns.
        """
        self._here()
        principal = Principal(name_of(by, "by"))
        if self._registry.recovering:
            await self._recovery.settled_for(session, run)
        return await self._listeners.listen(sink, session, run=run, after=after, begin=begin, by=principal)

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
        return live.absorber_or_self.current and self._sight.may_see(principal, live.absorber_or_self)

    # What control itself answers

    async def _answer(self, asked: verbs.Answer, by: Principal) -> QuestionInfo:
        return await self._approvals.answer(QuestionId(name_of(asked.question, "question")), asked.answer, by)

    async def _measure(self, asked: verbs.Measure, by: Principal) -> Figures:
        return Figures(grade=await self.grade(), queued=self.queued, hosts=self.hosts)

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

    async def lapse(self) -> None:
        """End everything in this step, as a crash would, and close: another control may have taken over.

        Every run falls, and every process is killed without a grace. Nothing more is published or stored, whatever was
        on its way, and whoever waits for an answer gets Unavailable. The next start finds the runs unsettled, and
        settles them as `lost`.
        """
        self._here()
        if not self._lapsed:
            self._lapsed = self._registry.closing = self._registry.closed = True
            self._let_lapse()
        if self._closing is None:
            self._closing = self._loop.create_task(self._end(), name="lapse")
        await self.close()

    def _let_lapse(self) -> None:
        # The fences first: nothing that the others wake may have an effect. No Fall is made: the next start decides how
        # these runs ended, and an ending that was decided here could differ from it.
        falling = [run for run in self._registry.runs.values() if not run.fallen]
        for run in falling:
            run.fence.fall(Cause(ending=Ending.LOST))
        self.feed.lapse(_lapsed())
        self._store.abandon()
        self._processes.kill()
        for run in falling:
            run.work.close(run.id, self._registry.holds, started=run.state.started)
        for body in [body for run in self._registry.runs.values() for body in run.work.bodies or ()]:
            # A body may wait for something that raises when it is cancelled; the others are dropped all the same.
            with contextlib.suppress(Exception):
                body.drop()
        self._crew.cut()
        self._wakes.close()
        self._recovery.close()
        for run in self._registry.runs.values():
            self._inbox.give_up(run, _lapsed())
        for fall in self._registry.falls.values():
            for flag in (fall.ended, fall.drained):
                flag.set()

    async def _close(self) -> None:
        self._registry.closing = True
        self._recovery.close()
        self._wakes.close()
        for run in list(self._registry.runs.values()):
            self._let_go(run)
        for session in self._registry.sessions.values():
            for running in session.processes.running if session.processes is not None else ():
                running.end()
        bounds = self.settings
        await self._crew.wait(2 * bounds.commit_seconds + bounds.grace_seconds + bounds.drain_seconds + SLACK_SECONDS)
        # Set this in one step with the cut: a run that falls after the cut would have no task left to publish its
        # ending.
        self._registry.closed = True
        self._crew.cut()
        await self._end()

    async def _end(self) -> None:
        """Close everything, once nothing more is begun or published."""
        await self._crew.wait(SLACK_SECONDS)
        self.feed.close()
        await self._driver.close()
        await self._processes.close()
        with anyio.move_on_after(SLACK_SECONDS):
            await self._store.close(clean=not self._lapsed and not self._recovery.unfinished)

    def _let_go(self, run: LiveRun) -> None:
        if run.state.at_work:
            # During recovery the run is one of an earlier start; the next start settles it.
            if self._registry.gate_of(run.session) is None:
                self._endings.end(run, Cause(ending=Ending.SHUTDOWN))
        # A queued message stays in the store for the next start; its waiters get `pending`.
        elif run.state.queued:
            run.limits.disarm()
            run.ended.set()
            run.seated_or_over.set()
        # A message that is joining another one is already decided on and is not turned away.
        elif run.state.undecided and run.ties.joining is None:
            self._inbox.turn_away(
                run, Unavailable("this control is closing; nothing was kept, send the message again after the restart")
            )


def _lapsed() -> Unavailable:
    return Unavailable(
        "this control has lapsed, and everything in it is over; ask again at the next one, with the same key"
    )
