"""A turn that runs in a host, seen from control: it hears the agent's verbs, and the fall cuts it.

1. The fence is control's, not the host's. Each verb passes it in its handler, in the step that reads the host's
   message, like an inline verb. The host applies a fall it knows of, which only saves messages; what it does not know
   yet control refuses and counts. Only a permit is given away: its answer is sent in the step that grants it, and from
   then on a fall finds the call `interrupted`.
2. A fall does one of four things to the host:

       a tool at work without a grace       KILL, in the step of the fall
       tools at work, all with graces       the notice and `Fallen` in that step, KILL after the longest grace
       no tool at work                      the notice and `Fallen` in that step, KILL after SETTLE_SECONDS
       the agent returned, nothing at work  nothing: the host is kept, and not told

   The notice reaches code even if the host's loop is blocked.
3. A turn is done when the host has said that nothing of the turn runs and control has checked it, or when the host's
   containment is empty.

To the fall a turn is one more body to cut: it has a name, a state, and an end that is awaited. So receipts, drains,
holds and takeovers need no second rule for hosts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from interlock.agent.flag import Flag
from interlock.agent.message import Message
from interlock.agent.order import SpawnFailed
from interlock.agent.tool import ERROR_CHARACTERS, describe_error
from interlock.agent.verbs import Request, StartProcess
from interlock.core.errors import BadInput, InterlockError, Stale
from interlock.core.names import BodyState, Effect, ErrorKind, ToolState
from interlock.core.outcome import returned_at
from interlock.hosts import link
from interlock.hosts.finding import SERVED
from interlock.processes.base import Containment
from interlock.runtime.driver import AgentFailed, kind_of
from interlock.runtime.handlers import HANDLERS, Acting, Violation
from interlock.runtime.live import LiveRun
from interlock.runtime.settings import PROCESSES
from interlock.runtime.spawning import Spawning, kept_of

log = logging.getLogger("interlock")

SETTLE_SECONDS = 0.2
REQUESTS = 4_000  # open at once, of one turn


class Host(Protocol):
    """A host, as control sees it."""

    turns: int  # turns given to it so far
    renewed: int  # the session's generation at its last reset before the host's first turn
    turn: HostTurn | None

    @property
    def heard(self) -> float:
        """The time at which control had read all that the host had said; a message read later was said later."""
        ...

    @property
    def containment(self) -> Containment:
        """The containment of the host and of every process that its libraries start."""
        ...

    @property
    def alive(self) -> bool:
        """True while the host can take a turn."""
        ...

    def remember(self) -> None:
        """Take the baseline of a turn that is about to begin."""
        ...

    def rest(self) -> None:
        """Take a baseline of threads and processes between two turns."""
        ...

    def look(self) -> tuple[str, ...] | None:
        """Name the processes of the baseline if nothing but them is there and none has run since; else None."""
        ...

    def send(self, word: link.Word) -> None:
        """Send a message to the host."""
        ...

    def notify(self) -> None:
        """Set the notice, for code in the host that asks `stopping()` while it blocks the loop."""
        ...

    def hear_out(self) -> None:
        """Read the messages that the host has sent already, in this step and bounded."""
        ...

    def kill(self) -> None:
        """End the host and every process it has started, in this step."""
        ...


class Cut(BaseException):
    """Raised to the task that waits for the agent's reply: the run fell, and no reply will come."""


class HostTurn:
    """One turn in a host."""

    def __init__(
        self,
        number: int,
        host: Host,
        acting: Acting,
        keeps: Callable[[HostTurn], bool],
        settled: Callable[[HostTurn], None],
    ) -> None:
        run = acting.run
        self.number = number
        self.name = f"agent of {run.id}"
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = Flag()
        self.host = host
        self.run: LiveRun = run
        self.result: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.killed = False  # the host was killed, or died by itself
        self.ours = False  # control killed it
        self.kept: tuple[str, ...] = ()  # processes that stay with the host: seen not to have run in the turn
        self._acting = acting
        acting.on_exit = self._exited
        self._keeps = keeps
        self._on_settled = settled
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._last = -1
        self._timer: asyncio.TimerHandle | None = None
        self._returned = False
        self._quiet = False  # no body of the turn ran when the agent returned, by the host's word
        kept_of(run.work).grade = host.containment.grade

    @property
    def fate(self) -> str:
        """What becomes of the host, as a receipt tells it.

        `settling` is told at t1 only, when a polite host has often not said yet that it is clean. `reused` means that
        the host is kept, not that a next turn came.
        """
        if not self.killed and not self.done.is_set():
            return "settling"
        return "killed" if self.killed else "reused"

    def begin(self, message: Message) -> None:
        """Hand the turn to the host."""
        run = self.run
        assert run.generation is not None
        agent = run.arrival.agent or SERVED
        self.host.send(link.Begin(self.number, agent, run.id, run.session.id, run.generation, message))

    # The fall

    def cut(self) -> None:
        """Cut the host: KILL it in this step if a tool without a grace is at work, else give it a bounded time."""
        # A host's cut. True here: the run has fallen in this same step, so the fence refuses every verb that the host
        # sends from now on, whether the host knows of the fall or not. The cut is about code that already runs. A tool
        # at work has effects that no fence sees, so a host with a tool that declared no grace is killed now, by the
        # hang-up on its containment and by its pidfd (`HostProcess.kill`). The pidfd needs no help of the host's loop,
        # of a thread or of the warden.
        #
        # Were the host only told, a tool that blocks its loop, swallows the cancel or hangs in a C call would go on,
        # and the stop would wait for it or lie. Were the notice sent with the later KILL, a tool with a grace could not
        # clean up. Were the turn done here, the receipt would say drained while the code still runs. The races
        # (tests/races.md): 38 (a library swallows the cancel), 39 (a tool blocks the loop), 127 (an ending is told
        # while a process lives) and 136 (a tool with a grace is told too late).
        if self.done.is_set() or self.killed:
            return
        if not self.result.done():
            self.result.set_exception(Cut())
            # Mark the exception as retrieved: there may be no waiter, and asyncio would then log it as lost.
            self.result.exception()
        if not self._returned:
            self.state = BodyState.CUT
        # Requests that wait are cancelled, as waiting verbs are inline. They were tried before the fall, so none of
        # them is counted as refused.
        for task in list(self._requests.values()):
            task.cancel()
        cause = self.run.fence.cause
        assert cause is not None
        # The agent has returned and left nothing at work: the host need not be told, and is kept for the next turn.
        if self._quiet and not cause.early:
            self._settled(clean=True)
            return
        graces = [call.grace for call in (self.run.work.calls or {}).values() if call.state is ToolState.INTERRUPTED]
        if graces and min(graces) <= 0 and (cause.early or not self._returned):
            self.kill()
            return
        self.host.notify()
        self.host.send(link.Fallen(self.number, msgspec.structs.replace(cause, error=None)))
        self.grace = max(graces, default=0.0)
        self._timer = self._loop.call_later(max([SETTLE_SECONDS, *graces]), self.kill)

    def kill(self) -> None:
        """End the host with everything in its containment, and add the containment to the run's processes."""
        if self.done.is_set() or self.killed:
            return
        self.killed = self.ours = True
        if not self._returned:
            self.state = BodyState.KILLED
        self._disarm()
        self.host.kill()
        Spawning.add(self.run, self.host.containment)
        self._acting.parts.crew.start(self._gone(), name=f"end the host of {self.run.id}")

    async def _gone(self) -> None:
        containment = self.host.containment
        await containment.done.wait()
        # The receipt tells the host apart from the processes that the run started, so it is not counted among them.
        if self.ours:
            containment.ended = max(0, containment.ended - 1)
        self._finish()

    def drop(self) -> None:
        """Kill the host: the turn is late to end."""
        self.kill()

    def abandon(self) -> None:
        """Stop waiting, and name the processes that are stuck."""
        self.state = BodyState.ABANDONED
        self.name = ", ".join(self.host.containment.stuck) or f"the host of {self.run.id}"

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self) -> None:
        """Note that nothing of the turn runs any more."""
        if self.done.is_set():
            return
        self._disarm()
        for task in list(self._requests.values()):
            task.cancel()
        self._acting.on_exit = lambda *_: None
        self._on_settled(self)
        self.done.set()

    # What the host says

    def hear(self, word: link.OfTurn) -> None:
        """Handle a message of this turn; a message of an earlier turn is ignored."""
        if word.turn != self.number:
            if word.turn > self.number:
                raise Violation(f"it spoke of turn {word.turn} in turn {self.number}")
            # Code that an earlier turn left behind has sent this. The run of that turn is over and sealed.
            return
        # The agent has returned and nothing of it ran then, so no message between that and the fall is the agent's.
        if self._quiet and not self.run.fallen:
            return
        self.run.limits.hear(self._loop.time())
        if isinstance(word, link.Ask):
            self._asked(word)
            return
        try:
            if isinstance(word, link.Tell):
                HANDLERS[type(word.verb)](self._acting, word.verb.checked())
            else:
                self._told(word)
        except Stale:
            # The fence has counted the try. The host hears of the fall by `Fallen`.
            return
        except InterlockError as error:
            self.host.send(link.Problem(self.number, type(error).__name__, str(error)))

    def _told(self, word: link.OfTurn) -> None:
        match word:
            case link.Tried(_, effect):
                self.run.fence.check(effect)
            case link.Cancel(_, number):
                if (task := self._requests.get(number)) is not None:
                    task.cancel()
            case link.Returned(_, text, settled, at):
                self._ended(settled, at)
                if self.run.fallen:
                    self.run.fence.refuse(Effect.FINAL)
                elif not self.result.done():
                    self.result.set_result(text)
            case link.Raised(_, error, phase, settled, at):
                self._ended(settled, at)
                if not self.result.done():
                    self.result.set_exception(AgentFailed(error[:ERROR_CHARACTERS], kind_of(phase)))
                    self.result.exception()
            case link.Settled(_, clean):
                if not self.run.fallen:
                    raise Violation("it settled a turn that has not ended")
                self._settled(clean)
            case _:
                raise Violation(f"it said {type(word).__name__} in a turn")

    def _ended(self, settled: bool, at: float) -> None:
        if self._returned:
            raise Violation("it returned twice")
        self._returned = True
        # The agent returned at the instant that the host tells, not when control reads it. The instant is believed if
        # it is not before `heard` and not in the future, so a host that lies gains at most the time for which control
        # did not read.
        if not self.run.fallen:
            self.run.limits.note_return(returned_at(at, heard=self.host.heard, now=self._loop.time()))
        if self.state is BodyState.RUNNING:
            self.state = BodyState.RETURNED
        # Only remember it: until the run falls a stop can still win, and then the host must prove again that it is
        # clean.
        self._quiet = settled

    def _settled(self, clean: bool) -> None:
        """Keep the host or kill it: the host says that nothing of the turn runs.

        After an early end control checks. For the host's own loop the host's word must do; for threads and processes
        control asks the kernel. A host that is not kept is killed here, so that the turn is done when the host was
        seen gone.
        """
        if self.killed or self.done.is_set():
            return
        cause = self.run.fence.cause
        early = cause is not None and cause.early
        kept: tuple[str, ...] | None = None
        if self._keeps(self) and (clean or not early):
            kept = self.host.look() if early else ()
        if kept is None:
            self.kill()
        else:
            self.kept = kept
            self._finish()

    # What the host asks for

    def _asked(self, word: link.Ask) -> None:
        if word.number <= self._last:
            raise Violation("it asked under a number that was used before")
        if len(self._requests) >= REQUESTS:
            raise Violation(f"it asked for {REQUESTS} things at once")
        self._last = word.number
        name = f"{type(word.verb).__name__} of {self.run.id}"
        task = self._acting.parts.crew.start(self._serve(word.number, word.verb), name=name)
        if task is not None:
            self._requests[word.number] = task
            # Not in the task itself: one that is cancelled before its first step runs nothing.
            task.add_done_callback(lambda _: self._requests.pop(word.number, None))

    async def _serve(self, number: int, verb: Request[Any]) -> None:
        """Do what was asked for. The answer is sent in the step that has it, because a permit counts from then on."""
        try:
            if isinstance(verb, StartProcess) and len(self._acting.processes) >= PROCESSES:
                raise BadInput(f"this run asks about {PROCESSES} processes, the most there may be")
            answer = HANDLERS[type(verb)](self._acting, verb.checked())
            self.host.send(link.Answer(number, link.pack(await answer if asyncio.iscoroutine(answer) else answer)))
        except Stale as stale:
            self.host.send(link.Refusal(number, "Stale", str(stale)))
        except InterlockError as error:
            code = error.errno if isinstance(error, SpawnFailed) else None
            text = error.strerror if isinstance(error, SpawnFailed) else str(error)
            self.host.send(link.Refusal(number, type(error).__name__, text or str(error), code))
        # A bug of ours: the agent's code that waits in the host must not wait for ever.
        except Exception as error:
            log.exception("a request of %s failed", self.run.id)
            self.host.send(link.Refusal(number, "InterlockError", describe_error(error)))

    def _exited(self, process: int, status: int | None, timed_out: bool) -> None:
        self.host.send(link.Exited(self.number, process, status, timed_out))

    def lost(self, why: str, *, ours: bool = False) -> None:
        """Fail the turn: the host is gone, and its link was read to the end. `ours` says that control ended it."""
        if not self.result.done():
            self.result.set_exception(AgentFailed(why, ErrorKind.HOST))
            self.result.exception()
        if not self.done.is_set() and not self.killed:
            self.killed, self.ours = True, ours
            if not self._returned:
                self.state = BodyState.KILLED
            self._disarm()
            Spawning.add(self.run, self.host.containment)
            self._acting.parts.crew.start(self._gone(), name=f"end the host of {self.run.id}")
