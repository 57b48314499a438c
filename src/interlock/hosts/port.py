"""Inside a host: the Run verbs as messages to control.

1. The fence is control's. A fall that the host knows of it applies at once, which saves messages; an effect of a fall
   that it does not know yet is refused by control.
2. A verb without an answer is sent in the caller's step. If control could not do it, the run's next verb raises why.
3. A tool's body runs here, after control's permit. Before the body begins, the notice is asked: the fall may be told
   there while its message still waits behind a blocked loop.
"""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from interlock.core import errors
from interlock.core.errors import BadInput, InterlockError, Refused, Stale
from interlock.core.events import Entry, Json
from interlock.core.fence import describe
from interlock.core.names import Announce, CallId, Effect, RunId, ToolState
from interlock.core.outcome import Cause
from interlock.hosts import link
from interlock.processes.base import SpawnFailed, SpawnOrder
from interlock.processes.notice import Notice
from interlock.processes.workers import ToolFailed
from interlock.runtime.crew import Crew
from interlock.runtime.flag import Flag
from interlock.runtime.holds import Hold
from interlock.runtime.inline import Bodies, Threads
from interlock.runtime.run import Message, Work
from interlock.runtime.settings import OPEN_CALLS, REFUSALS, REPLY_BYTES
from interlock.runtime.spawning import Finished, Running
from interlock.runtime.ties import Child
from interlock.runtime.tool import ToolSpec, describe_error
from interlock.runtime.work import Body

T = TypeVar("T")

ARGS_BYTES = 2 * 1024 * 1024  # arguments and environment of one program: no system takes more


class Link(Protocol):
    """The host's end of the link."""

    @property
    def full(self) -> bool:
        """True if control is behind with reading."""
        ...

    def send(self, word: link.Word) -> None:
        """Send a message in this step, or as soon as there is room."""
        ...

    async def room(self) -> None:
        """Wait until control has read most of what was sent."""
        ...

    def exchange(self, word: link.Request) -> link.Answer | link.Refusal:
        """Send a request and block until its answer is there."""
        ...


class Turn:
    """One turn of the session, as the host sees it."""

    def __init__(self, number: int, hears: int = -1) -> None:
        self.number = number
        self.notice = Notice(hears)
        self.before: frozenset[object] = frozenset()  # the baseline: what was at work when the turn began
        self.bodies: list[Body] = []
        self.over = Flag()  # set when the agent's own code has ended

    @property
    def quiet(self) -> bool:
        """True if no body of the turn runs."""
        return all(body.done.is_set() for body in self.bodies)


class HostPort:
    """The Run verbs of an agent in a host, each sent to control as a message."""

    def __init__(self, begin: link.Begin, turn: Turn, line: Link, *, crew: Crew, threads: Threads) -> None:
        self.run_id: RunId = begin.run_id
        self.cause: Cause | None = None
        self.turn = turn
        self.processes: WeakValueDictionary[int, HostRunning] = WeakValueDictionary()
        self._link = line
        self._loop = asyncio.get_running_loop()
        self._bodies = Bodies(begin.run_id, turn.bodies, crew=crew, threads=threads)
        self._numbers = itertools.count(begin.turn << 32)
        self._answers: dict[int, asyncio.Future[link.Answer]] = {}
        self._calls_made = 0
        self._said = 0
        self._phase: str | None = None
        self._blamed: tuple[str, BaseException] | None = None
        self._problem: BaseException | None = None
        self._refusals = REFUSALS

    # The fence, as far as it is known here

    @property
    def current(self) -> bool:
        """True while control has not said that the run has fallen."""
        return self.cause is None

    def fall(self, cause: Cause) -> None:
        """Apply a fall: control has said so, or the agent has returned. Control answers no open request any more."""
        if self.cause is None:
            self.cause = cause
            self.turn.notice.tell()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(Stale(f"run {self.run_id} has ended ({cause.ending}); do not catch Stale"))
                    # Mark the exception as retrieved: its waiter may be gone, and asyncio would then log it as lost.
                    answer.exception()

    async def checkpoint(self) -> None:
        """Let other tasks run, and wait while control is behind with reading."""
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(
                "a run's verbs belong to the loop that its agent runs on; "
                "from a thread use asyncio.run_coroutine_threadsafe(run.say(...), loop)"
            )
        await asyncio.sleep(0)
        if self._link.full:
            await self._link.room()
        if self.cause is not None:
            self._refusals -= 1
            if self._refusals < 0:
                self._bodies.drop()
        else:
            self.raise_problem()

    def raise_problem(self) -> None:
        """Raise the error of an earlier verb that had no answer."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def check(self, effect: Effect) -> None:
        """Raise Stale if the run is known to have fallen, and tell control of the try, which counts it."""
        if self.cause is not None:
            self._link.send(link.Tried(self.turn.number, effect))
            raise Stale(describe(self.run_id, self.cause, effect))

    # Saying

    def delta(self, text: str) -> None:
        self.check(Effect.DELTA)
        self.measure(text)
        # An empty delta is sent too: it is a sign of life, which the idle limit counts.
        self._link.send(link.Say(self.turn.number, text))

    def block(self, text: str) -> None:
        self.check(Effect.BLOCK)
        self.measure(text)
        self._link.send(link.Post(self.turn.number, text))

    def measure(self, text: str) -> None:
        """Refuse text beyond REPLY_BYTES, as control would."""
        if self._said + len(text) > REPLY_BYTES:
            raise BadInput(
                f"this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
            )
        self._said += len(text)

    def typing(self, on: bool) -> None:
        self.check(Effect.TYPING)
        self._link.send(link.SetTyping(self.turn.number, on))

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        self.check(Effect.PROGRESS)
        self._link.send(link.SetProgress(self.turn.number, text, done, total))

    def phase(self, name: str | None) -> str | None:
        self.check(Effect.PHASE)
        before, self._phase = self._phase, name
        self._link.send(link.SetPhase(self.turn.number, name))
        return before

    def blame(self, phase: str, error: BaseException) -> None:
        """Remember the innermost phase that an error came from."""
        if self._blamed is None or self._blamed[1] is not error:
            self._blamed = (phase, error)

    def phase_of(self, error: BaseException) -> str | None:
        """Return the phase that an error came from."""
        return self._blamed[0] if self._blamed is not None and self._blamed[1] is error else self._phase

    # Asking control

    async def _ask(self, make: Callable[[int], link.Request], kind: type[T] | Any) -> Any:
        # Control answers no request after the turn.
        if self.turn.over.is_set():
            raise Stale(f"run {self.run_id} has ended; do not catch Stale")
        number = next(self._numbers)
        answer: asyncio.Future[link.Answer] = self._loop.create_future()
        self._answers[number] = answer
        try:
            self._link.send(make(number))
            return msgspec.msgpack.decode((await answer).value, type=kind)
        except asyncio.CancelledError:
            self._link.send(link.Cancel(self.turn.number, number))
            raise
        finally:
            del self._answers[number]

    def hear(self, word: link.Answer | link.Refusal) -> None:
        """Hand the answer of a request to its waiter, if there still is one."""
        answer = self._answers.get(word.number)
        if answer is None or answer.done():
            return
        if isinstance(word, link.Answer):
            answer.set_result(word)
        else:
            answer.set_exception(_error(word.kind, word.text, word.errno))

    def trouble(self, word: link.Problem) -> None:
        """Remember the first error of a verb without an answer; the next verb raises it."""
        self._problem = self._problem or _error(word.kind, word.text)

    async def steered(self) -> list[Message]:
        """Return the messages that are steered to this run; `Took` tells control to make them part of the run."""
        numbers: list[int] = []

        def make(number: int) -> link.Check:
            numbers.append(number)
            return link.Check(self.turn.number, number)

        answer: link.SteeredTo = await self._ask(make, link.SteeredTo)
        if answer.messages:
            self.check(Effect.PHASE)
            self._link.send(link.Took(self.turn.number, *numbers))
        return list(answer.messages)

    async def ask(self, text: str, choices: tuple[str, ...] | None, seconds: float | None) -> bool | str:
        self.check(Effect.QUESTION)
        answer: bool | str = await self._ask(
            lambda n: link.Ask(self.turn.number, n, text, choices, seconds), bool | str
        )
        return answer

    async def delegate(
        self, agent: str, text: str, deadline: float | None, detached: bool, announce: Announce | None
    ) -> Child:
        self.check(Effect.CHILD)
        child: Child = await self._ask(
            lambda n: link.Delegate(self.turn.number, n, agent, text, deadline, detached, announce), Child
        )
        return child

    async def hold(self, name: str) -> Hold:
        self.check(Effect.HOLD)
        held: Hold = await self._ask(lambda n: link.TakeHold(self.turn.number, n, name), Hold)
        return held

    def release(self, name: str) -> None:
        if self.current:
            self._link.send(link.Release(self.turn.number, name))

    async def history(self) -> list[Entry]:
        entries: list[Entry] = await self._ask(partial(link.ReadHistory, self.turn.number), list[Entry])
        return entries

    # Processes

    async def spawn(self, order: SpawnOrder) -> Running:
        self.check(Effect.SPAWN)
        if order.inherit:
            raise BadInput("a process of a host cannot have control's own descriptors")
        size = sum(map(len, order.argv)) + sum(len(name) + len(value or "") for name, value in order.env.items())
        if size > ARGS_BYTES:
            why = "its arguments or environment are too long; use input= or a file"
            raise SpawnFailed(errno.E2BIG, f"{order.argv[0]!r:.100} was not started: {why}")

        def make(number: int) -> link.Spawn:
            running.handle = number
            self.processes[number] = running
            argv = tuple(os.fsencode(part) for part in order.argv)
            env = {os.fsencode(k): None if v is None else os.fsencode(v) for k, v in order.env.items()}
            return link.Spawn(self.turn.number, number, msgspec.structs.replace(order, argv=(), env={}), argv, env)

        running = HostRunning(self, order)
        started: link.Started = await self._ask(make, link.Started)
        running.on_started(started.pid)
        return running

    def forget(self, handle: int) -> None:
        """Tell control that the agent has dropped a process. The garbage collector calls this, from any thread."""
        if self.current and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._link.send, link.ForgetProcess(self.turn.number, handle))

    async def finished(self, handle: int) -> Finished:
        """Wait for a process, and return how it ended."""
        done: Finished = await self._ask(lambda n: link.WaitProcess(self.turn.number, n, handle), Finished)
        return done

    async def line(self, handle: int) -> bytes | None:
        """Return the next line of a process, None at the end."""
        read: bytes | None = await self._ask(lambda n: link.ReadLine(self.turn.number, n, handle), bytes | None)
        return read

    async def stop(self, handle: int) -> None:
        """End a process, and wait until it was seen gone."""
        await self._ask(lambda n: link.StopProcess(self.turn.number, n, handle), None)

    def end(self, handle: int) -> None:
        """End a process, without waiting."""
        if self.current:
            self._link.send(link.EndProcess(self.turn.number, handle))

    def output(self, handle: int) -> str:
        """Return what a process has written so far."""
        if not self.current:
            return ""
        answer = self._link.exchange(link.ReadOutput(self.turn.number, next(self._numbers), handle))
        if isinstance(answer, link.Refusal):
            raise _error(answer.kind, answer.text, answer.errno)
        return msgspec.msgpack.decode(answer.value, type=str)

    # Tools

    def record(self, wanted: Sequence[tuple[ToolSpec, Json]]) -> list[CallId]:
        self.check(Effect.TOOL)
        # Control would refuse them too, but one Record after another, and would have recorded the first ones by then.
        if len(wanted) > OPEN_CALLS:
            raise Refused(f"this run would have more than {OPEN_CALLS} tool calls open; wait for some to end")
        calls = tuple(link.Wanted(spec.name, values, spec.asks, spec.grace) for spec, values in wanted)
        # Each call fits into a message by itself, but all of them together may not.
        long = sum(len(values) for _, values in wanted) * 4 > link.FRAME_BYTES
        size = 1 if long else link.CALLS
        for at in range(0, len(calls), size):
            self._link.send(link.Record(self.turn.number, calls[at : at + size]))
        first = self._calls_made + 1
        self._calls_made += len(calls)
        return [CallId(f"{self.run_id}.{number}") for number in range(first, first + len(calls))]

    async def permit(self, call: CallId) -> None:
        self.check(Effect.TOOL)
        try:
            await self._ask(lambda n: link.Permit(self.turn.number, n, call), None)
        except BadInput:
            # Control knows no such call, because it refused to record it. Raise that reason instead.
            self.raise_problem()
            raise
        # Permit and fall may both have arrived by now; the fall then counts.
        self.check(Effect.TOOL)

    def finish(self, call: CallId, state: ToolState, result: Json | None, error: str | None) -> None:
        self.check(Effect.RESULT)
        self._link.send(link.Finish(self.turn.number, call, state, result, error))

    def give_up(self, call: CallId) -> None:
        if self.current:
            self._link.send(link.GiveUp(self.turn.number, call))

    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Return the call as it is: it runs in this process, which can be killed, so nothing is packed."""
        return partial(function, **arguments)

    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a tool that was permitted; a synchronous one simply runs.

        Another tool may have blocked the loop since the permit. The notice knows of a fall whose message is not read
        yet: the body must not begin then, and the agent must not go on behind a body that heard the notice first.
        """
        assert not isinstance(work, bytes)
        await self._catch_up()
        self.check(Effect.TOOL)
        try:
            if spec.thread:
                return await self._bodies.in_thread(spec.name, work)
            if spec.worker:
                return _plainly(work)
            return await self._bodies.in_place(spec, work())
        finally:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Wait for the cut if the notice says that the run fell: nothing begins or goes on before the cut."""
        while self.cause is None and self.turn.notice.is_set():
            await asyncio.sleep(0)

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch in parallel."""
        await self._bodies.side_by_side([(spec, body) for _, spec, body in bodies], [None] * len(bodies))


class HostRunning(Running):
    """A process of a run, seen from its host."""

    def __init__(self, port: HostPort, order: SpawnOrder) -> None:
        self.order = order
        self.handle = 0
        self._port = port
        self._pid: int | None = None
        self._status: int | None = None
        self._over = asyncio.Event()
        self.timed_out = False

    def __del__(self) -> None:
        self._port.forget(self.handle)

    def on_started(self, pid: int | None) -> None:
        """Note that the process runs."""
        self._pid = pid

    def on_exit(self, status: int | None, timed_out: bool) -> None:
        """Note that the process has exited."""
        self._status = status
        self.timed_out = timed_out
        self._over.set()

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._pid

    @property
    def status(self) -> int | None:
        """The exit status, None while the process runs."""
        return self._status

    @property
    def running(self) -> bool:
        """True while the process has not exited."""
        return not self._over.is_set()

    @property
    def output(self) -> str:
        """The output of the process so far, bounded."""
        return self._port.output(self.handle)

    async def exited(self) -> None:
        """Wait for the exit, as long as it takes."""
        await self._over.wait()

    async def wait(self) -> Finished:
        """Wait for the exit, and return how the process ended."""
        return await self._port.finished(self.handle)

    async def _lines(self) -> AsyncIterator[str]:
        while (line := await self._port.line(self.handle)) is not None:
            yield line.decode("utf-8", "replace")

    async def stop(self) -> None:
        """End the process with everything it started, and wait until that was seen."""
        await self._port.stop(self.handle)

    def end(self) -> None:
        """End the process, without waiting."""
        self._port.end(self.handle)


def _plainly(work: Callable[[], Any]) -> Any:
    """Run a synchronous tool with the results of a worker: plain values, Python's own errors, and others by name."""
    try:
        value = work()
    except SystemExit:
        raise ToolFailed("RuntimeError: the tool raised SystemExit") from None
    except Exception as error:
        if type(error).__module__ == "builtins" or isinstance(error, BadInput):
            raise
        raise ToolFailed(describe_error(error)) from error
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"the tool's result cannot be sent ({error}); return plain values") from None


_ERRORS: dict[str, type[InterlockError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, InterlockError)
}


def _error(kind: str, text: str, errno: int | None = None) -> BaseException:
    if kind == Stale.__name__:
        return Stale(text)
    if kind == SpawnFailed.__name__:
        return SpawnFailed(errno or 0, text)
    return _ERRORS.get(kind, InterlockError)(text)
