"""Inside a host: one loop that serves the turns of one session, and the Run verbs as messages to control.

1. The fence is control's. What the host knows of a fall it applies at once; what it does not know yet control refuses.
2. A fallen turn is cut here as it would be inline: one cancel, and nothing more. Whoever takes too long is killed from
   outside, with the whole host.
3. After an early end the host says whether anything the turn began is left (tasks, timers, threads); then it is not
   used again.
"""

import asyncio
import errno
import io
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from interlock.core import errors
from interlock.core.errors import BadInput, InterlockError, Refused, Stale
from interlock.core.events import Entry, Json
from interlock.core.fence import describe
from interlock.core.names import CallId, Effect, Ending, Principal, RunId, SessionId, ToolState
from interlock.core.outcome import Cause
from interlock.hosts import link
from interlock.hosts.finding import SERVED, find_agent
from interlock.processes import kernel
from interlock.processes.base import SpawnFailed, SpawnOrder
from interlock.processes.workers import ToolFailed
from interlock.runtime.crew import Crew
from interlock.runtime.delegation import Child
from interlock.runtime.holds import Hold
from interlock.runtime.inline import Bodies, DaemonThreads, Leash, Threads
from interlock.runtime.live import Body
from interlock.runtime.run import Agent, Message, Run, Work
from interlock.runtime.settings import OPEN_CALLS, REFUSALS, REPLY_BYTES
from interlock.runtime.spawning import Finished, Running
from interlock.runtime.tool import ToolSpec, describe_error

T = TypeVar("T")

HIGH_BYTES, LOW_BYTES = 256 * 1024, 64 * 1024  # said and not yet taken by control, before a verb waits
READ_BYTES = 256 * 1024
LAST_ROUNDS = 5  # of the loop, until what a turn began must be over
ALARMS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
ARGS_BYTES = 2 * 1024 * 1024  # of a program and its environment: no system takes more


class Link(Protocol):
    """The host's end of the link."""

    @property
    def full(self) -> bool:
        """True if control is behind."""
        ...

    def send(self, word: link.Word) -> None:
        """Say something; it is on its way when this returns, or waits for room."""
        ...

    async def room(self) -> None:
        """Wait until control has taken most of what was said."""
        ...

    def exchange(self, word: link.Request) -> link.Answer | link.Refusal:
        """Ask for something and wait for the answer here and now."""
        ...


class SocketLink:
    """The link of a process of its own."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._out = bytearray()
        self._frames = link.Frames(link.Told)
        self._room: asyncio.Event | None = None
        self.hear: Callable[[link.Told], None] = lambda _: None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def full(self) -> bool:
        """True if control is behind."""
        return len(self._out) > HIGH_BYTES

    def send(self, word: link.Word) -> None:
        """Say something in this step: the agent may block its loop in the next."""
        waiting = bool(self._out)
        self._out += link.frame(word, link.FRAME_BYTES)
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                del self._out[: self._sock.send(self._out)]
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._writable)
                break
            except OSError:
                self._gone()
        if self._room is not None and len(self._out) <= LOW_BYTES:
            self._room.set()

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    async def room(self) -> None:
        """Wait until control has taken most of what was said."""
        while self.full:
            if self._room is None or self._room.is_set():
                self._room = asyncio.Event()
            await self._room.wait()

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
        self._frames.feed(data)
        for word in self._frames:
            self.hear(word)

    def exchange(self, word: link.Request) -> link.Answer | link.Refusal:
        """Ask for something and wait for the answer here and now; whatever else arrives is heard afterwards."""
        self._out += link.frame(word)
        self._sock.setblocking(True)
        later: list[link.Told] = []
        answer: link.Answer | link.Refusal | None = None
        try:
            self._sock.sendall(self._out)
            self._out.clear()
            while answer is None:
                self._frames.feed(self._sock.recv(READ_BYTES) or self._gone())
                for heard in self._frames:
                    if isinstance(heard, link.Answer | link.Refusal) and heard.number == word.number:
                        answer = heard
                        continue
                    later.append(heard)
                    if isinstance(heard, link.Fallen) and answer is None:  # then nobody answers any more
                        answer = link.Refusal(word.number, Stale.__name__, "the run has ended; let Stale pass")
            return answer
        except OSError:
            self._gone()
        finally:
            self._sock.setblocking(False)
            for heard in later:
                self._loop.call_soon(self.hear, heard)

    def close(self) -> None:
        """Let go of the socket."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    @staticmethod
    def _gone() -> NoReturn:
        """Control is gone, or has hung up: there is nobody left to work for."""
        os._exit(0)


class Turn:
    """One turn of the session, as the host sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.before: frozenset[object] = frozenset()  # what was at work in the process when it began
        self.bodies: list[Body] = []
        self.over = asyncio.Event()  # the agent's own code has ended

    @property
    def quiet(self) -> bool:
        """True if no body of it runs."""
        return all(body.done.is_set() for body in self.bodies)


class HostPort:
    """What an agent in a host reaches of control: every verb a message."""

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
        """True while control has not said otherwise."""
        return self.cause is None

    def fall(self, cause: Cause) -> None:
        """Control says that the run has fallen, or the agent has returned."""
        if self.cause is None:
            self.cause = cause
            for answer in self._answers.values():  # control answers none of them any more
                if not answer.done():
                    answer.set_exception(Stale(f"run {self.run_id} has ended ({cause.ending}); let Stale pass"))
                    answer.exception()  # whoever waits is told; nobody need wait

    async def checkpoint(self) -> None:
        """Let others run, and wait while control is behind."""
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
        """Raise what control said of something that was not waited for."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def check(self, effect: Effect) -> None:
        """Raise Stale if the run is known to have fallen; control counts what was tried."""
        if self.cause is not None:
            self._link.send(link.Tried(self.turn.number, effect))
            raise Stale(describe(self.run_id, self.cause, effect))

    # Saying

    def delta(self, text: str) -> None:
        self.check(Effect.DELTA)
        self.measure(text)
        self._link.send(link.Say(self.turn.number, text))  # an empty one too: it is a sign of life

    def block(self, text: str) -> None:
        self.check(Effect.BLOCK)
        self.measure(text)
        self._link.send(link.Post(self.turn.number, text))

    def measure(self, text: str) -> None:
        """Refuse text that no reply can hold, here as control would."""
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
        """Remember the innermost phase an error came from."""
        if self._blamed is None or self._blamed[1] is not error:
            self._blamed = (phase, error)

    def phase_of(self, error: BaseException) -> str | None:
        """Return the phase an error came from."""
        return self._blamed[0] if self._blamed is not None and self._blamed[1] is error else self._phase

    # Asking control

    async def _ask(self, make: Callable[[int], link.Request], kind: type[T] | Any) -> Any:
        if self.turn.over.is_set():  # nobody is left to answer
            raise Stale(f"run {self.run_id} has ended; let Stale pass")
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
        """Take the answer to a request, if anyone still waits for it."""
        answer = self._answers.get(word.number)
        if answer is None or answer.done():
            return
        if isinstance(word, link.Answer):
            answer.set_result(word)
        else:
            answer.set_exception(_error(word.kind, word.text, word.errno))

    def trouble(self, word: link.Problem) -> None:
        """Remember what went wrong; the next verb raises it."""
        self._problem = self._problem or _error(word.kind, word.text)

    async def steered(self) -> list[Message]:
        """What is steered to this run. Control makes it part of the run when it hears that the agent has it."""
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

    async def delegate(self, agent: str, text: str, deadline: float | None, detached: bool) -> Child:
        self.check(Effect.CHILD)
        child: Child = await self._ask(
            lambda n: link.Delegate(self.turn.number, n, agent, text, deadline, detached), Child
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
        """Nobody asks for a process any more; called from wherever it is collected."""
        if self.current and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._link.send, link.ForgetProcess(self.turn.number, handle))

    async def finished(self, handle: int) -> Finished:
        """Wait for a process."""
        done: Finished = await self._ask(lambda n: link.WaitProcess(self.turn.number, n, handle), Finished)
        return done

    async def line(self, handle: int) -> bytes | None:
        """Return the next line of a process, None at the end."""
        read: bytes | None = await self._ask(lambda n: link.ReadLine(self.turn.number, n, handle), bytes | None)
        return read

    async def stop(self, handle: int) -> None:
        """End a process and see it gone."""
        await self._ask(lambda n: link.StopProcess(self.turn.number, n, handle), None)

    def end(self, handle: int) -> None:
        """End a process; nothing is waited for."""
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
        if len(wanted) > OPEN_CALLS:  # as control would say, of all of them together
            raise Refused(f"this run would have more than {OPEN_CALLS} tool calls open; wait for some to end")
        calls = tuple(link.Wanted(spec.name, values, spec.asks, spec.grace) for spec, values in wanted)
        long = sum(len(values) for _, values in wanted) * 4 > link.FRAME_BYTES  # together; each fits by itself
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
            self.raise_problem()  # it was not recorded, and that is why
            raise
        self.check(Effect.TOOL)  # the permit may be older than the end, and both are here

    def finish(self, call: CallId, state: ToolState, result: Json | None, error: str | None) -> None:
        self.check(Effect.RESULT)
        self._link.send(link.Finish(self.turn.number, call, state, result, error))

    def give_up(self, call: CallId) -> None:
        if self.current:
            self._link.send(link.GiveUp(self.turn.number, call))

    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Nothing need be packed: this process can be ended."""
        return partial(function, **arguments)

    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a tool that was permitted; a synchronous one simply runs."""
        assert not isinstance(work, bytes)
        if spec.thread:
            return await self._bodies.in_thread(spec.name, work)
        if spec.worker:
            return _plainly(work)
        return await self._bodies.in_place(spec, work())

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch next to each other."""
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
        """It runs."""
        self._pid = pid

    def on_exit(self, status: int | None, timed_out: bool) -> None:
        """It has exited."""
        self._status = status
        self.timed_out = timed_out
        self._over.set()

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._pid

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._status

    @property
    def running(self) -> bool:
        """True while it has not exited."""
        return not self._over.is_set()

    @property
    def output(self) -> str:
        """What it has written so far, bounded."""
        return self._port.output(self.handle)

    async def exited(self) -> None:
        """Wait for its exit, as long as it takes."""
        await self._over.wait()

    async def wait(self) -> Finished:
        """Wait for its exit and return how it ended."""
        return await self._port.finished(self.handle)

    async def _lines(self) -> AsyncIterator[str]:
        while (line := await self._port.line(self.handle)) is not None:
            yield line.decode("utf-8", "replace")

    async def stop(self) -> None:
        """End it, with all it started, and wait until that was seen."""
        await self._port.stop(self.handle)

    def end(self) -> None:
        """End it; nothing is waited for."""
        self._port.end(self.handle)


class Serving:
    """Serves turns, one after another."""

    def __init__(
        self,
        line: Link,
        agents: Mapping[str, Agent],
        threads: Threads | None = None,
        at_work: Callable[[], frozenset[object]] | None = None,
    ) -> None:
        self._link = line
        self._agents = agents
        self._crew = Crew()
        self._threads = threads or DaemonThreads()
        self._at_work = at_work or _at_work
        self._port: HostPort | None = None
        self._before = self._at_work()

    def hear(self, word: link.Told) -> None:
        """Take a message of control's."""
        port = self._port
        match word:
            case link.Begin():
                self._begin(word)
            case link.Rehearse():
                self._crew.start(rehearse(), name="rehearse")
            case link.Answer() | link.Refusal() if port is not None:
                port.hear(word)
            case link.Fallen(turn, cause) if port is not None and port.turn.number == turn:
                port.fall(cause)
                self._crew.start(self._settle(port), name=f"settle {turn}")
                for body in tuple(port.turn.bodies):
                    body.cut()
            case link.Problem(turn) if port is not None and port.turn.number == turn:
                port.trouble(word)
            case link.Exited(turn, handle, status, timed_out) if port is not None and port.turn.number == turn:
                if (running := port.processes.get(handle)) is not None:
                    running.on_exit(status, timed_out)
            case _:
                pass  # of a turn that is over

    def _begin(self, begin: link.Begin) -> None:
        turn = Turn(begin.turn)
        self._port = HostPort(begin, turn, self._link, crew=self._crew, threads=self._threads)
        self._crew.start(self._turn(begin, self._port), name=f"turn {begin.turn}")

    async def _turn(self, begin: link.Begin, port: HostPort) -> None:
        """Run the agent on a leash, from its first step to its last."""
        turn, broken = port.turn, None
        word: link.Returned | link.Raised
        turn.before = self._before
        try:
            handle = Run(port, run_id=begin.run_id, session=begin.session, generation=begin.generation)
            body = self._agents[begin.agent](handle, begin.message)
            if not asyncio.iscoroutine(body):
                raise BadInput("the agent is not async; declare it with `async def agent(run, message)`")
            leash = Leash(body, name=f"agent of {begin.run_id}")
            turn.bodies.append(leash)
            if not port.current:
                leash.cut()  # it fell before its first step
            text: object = await leash
            port.raise_problem()
            if text is not None and not isinstance(text, str):
                raise BadInput(f"the agent returned {type(text).__name__}; return the reply as text, or None")
            port.measure(text or "")
            word = link.Returned(turn.number, None if text is None else _utf8(text), turn.quiet)
        except BaseException as error:
            word = link.Raised(turn.number, describe_error(error), port.phase_of(error), turn.quiet)
            broken = error if isinstance(error, KeyboardInterrupt) else None
        if port.current:
            returned = isinstance(word, link.Returned)
            port.fall(Cause(ending=Ending.COMPLETED if returned else Ending.FAILED))
            self._link.send(word)
        elif isinstance(word, link.Returned):
            self._link.send(link.Tried(turn.number, Effect.FINAL))
        turn.over.set()
        self._before = self._at_work()  # when nobody waits: what is born before the next turn counts as its own
        if broken is not None:
            raise broken

    async def _settle(self, port: HostPort) -> None:
        """See the turn's code end, and say so."""
        turn = port.turn
        await turn.over.wait()
        for body in tuple(turn.bodies):
            await body.done.wait()
        for _ in range(LAST_ROUNDS):  # tasks that have just ended leave, and what they called back is over soon
            await asyncio.sleep(0)
            if not (left := self._at_work() - turn.before - frozenset(self._crew.tasks)):
                break
        self._link.send(link.Settled(turn.number, clean=not left))


def _plainly(work: Callable[[], Any]) -> Any:
    """Run a synchronous tool; give what a worker would: plain values, Python's own errors, and others by name."""
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
        raise BadInput(f"what the tool returned cannot be sent ({error}); return plain values") from None


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the reply holds half a surrogate pair; decode the text properly first") from None
    return str.__str__(text)


def _at_work() -> frozenset[object]:
    """Return what may act by itself in this process: tasks, callbacks, timers, and threads not known to be idle.

    What was put off in a turn would be an effect of it after its end.
    """
    loop = asyncio.get_running_loop()
    found: set[object] = {*asyncio.all_tasks(), *(timer for timer in getattr(loop, "_scheduled", ()))}
    found.update(getattr(loop, "_ready", ()))
    selector = getattr(loop, "_selector", None)
    for key in () if selector is None else tuple(selector.get_map().values()):
        found.update(key.data)  # whoever reads or writes: a server acts when somebody connects
    acting = {each for each in found if not _ours(each)}
    acting.update(("alarm", which) for which in ALARMS if signal.getitimer(which)[0])
    return frozenset([*acting, *_busy_threads()])


def _ours(each: object) -> bool:
    """True of what the loop and the link do for themselves, of steps of tasks (which are listed), and of nothing."""
    if each is None or (isinstance(each, asyncio.Handle) and each.cancelled()):
        return True
    callback = getattr(each, "_callback", None)
    if getattr(callback, "__name__", "") == "_read_from_self":
        return True
    return isinstance(getattr(callback, "__self__", None), SocketLink | asyncio.Task)


def _busy_threads() -> set[object]:
    """Return the threads that are not known to be idle, each with its state and how often it has run.

    A thread of an earlier turn that was given work in this one has run since, or runs now.
    """
    idle: set[int | None] = {threading.get_native_id()}
    names = set(os.listdir("/proc/self/task"))  # noqa: PTH208 (after every turn)
    if len(names) == 1:
        return set()
    frames = sys._current_frames()
    pools: Any = sys.modules.get("concurrent.futures.thread")
    for worker, queue in list(getattr(pools, "_threads_queues", {}).items()):
        executor = getattr(worker, "_args", (lambda: None,))[0]()
        frame = frames.get(worker.ident)
        resting = executor is not None and executor._idle_semaphore._value >= len(executor._threads)
        if resting and queue.empty() and frame is not None and frame.f_code is pools._worker.__code__:
            idle.add(worker.native_id)  # (the semaphore alone counts too many once work had to wait)
    pool = sys.modules.get("anyio._backends._asyncio")
    if pool is not None:
        idle |= {worker.native_id for worker in pool._threadpool_idle_workers.get(())}
    return {(name, *_runs_of(name)) for name in names if int(name) not in idle}


def _runs_of(thread: str) -> list[str]:
    try:
        lines = kernel.read(f"/proc/self/task/{thread}/status").splitlines()
    except OSError:
        return ["gone"]
    return [line for line in lines if line.startswith(("State", "voluntary", "nonvoluntary"))]


_ERRORS: dict[str, type[InterlockError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, InterlockError)
}


def _error(kind: str, text: str, errno: int | None = None) -> BaseException:
    if kind == Stale.__name__:
        return Stale(text)
    if kind == SpawnFailed.__name__:
        return SpawnFailed(errno or 0, text)
    return _ERRORS.get(kind, InterlockError)(text)


async def _greet(run: Run, message: Message) -> str:
    await run.say(message.text)
    async with run.phase("warm"):
        await run.typing()
    return ""


async def rehearse() -> None:
    """Play a turn of an agent of our own, with all that a real one goes through: what it touches is warm afterwards."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    line = SocketLink(theirs)
    line.hear = Serving(line, {SERVED: _greet}).hear
    message = Message(text="hello", by=Principal("nobody"), session=SessionId("none"), run_id=RunId("none"))
    ours.send(link.frame(link.Begin(1, SERVED, message.run_id, message.session, 1, message)))
    frames = link.Frames(link.Said)
    loop = asyncio.get_running_loop()
    returned = False
    while not returned:
        frames.feed(await loop.sock_recv(ours, READ_BYTES))
        returned = any(isinstance(word, link.Returned | link.Raised) for word in frames)
    line.close()
    ours.close()


# The process


async def _serve(sock: socket.socket, agents: Mapping[str, Agent]) -> None:
    line = SocketLink(sock)
    line.hear = Serving(line, agents).hear
    line.send(link.Hello(link.VERSION, os.getpid()))
    await line.closed


def serve(sock: socket.socket, agents: Mapping[str, Agent]) -> NoReturn:
    """Be a host whose agents are imported, until control hangs up."""
    kernel.prctl(kernel.PR_SET_NAME, b"interlock-host")
    runner = asyncio.Runner()  # never closed: that would wait for whatever the agent left, and run it once more
    try:
        runner.run(_serve(sock, agents))
    except BaseException as error:  # an agent stopped the loop, or raised SystemExit in a task of its own
        sys.stderr.write(f"interlock: a host ended: {describe_error(error)}\n")
    finally:
        os._exit(70)


def take_link() -> socket.socket:
    """Take the link from where it was handed over, the standard input; nothing that is started here has it."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # whoever is killed flushes nothing, and a fork copies the rest
    os.environ["INTERLOCK_WORKER"] = str(os.getpid())
    return sock


def main() -> NoReturn:
    """Be a host that imports its agents itself."""
    sock = take_link()
    frames = link.Frames(link.Told)
    load: link.Load | None = None
    while load is None:
        frames.feed(sock.recv(READ_BYTES) or os._exit(0))
        load = next(iter(frames), None)
    try:
        agents = load_agents(load.path, load.agents)
    except BaseException as error:
        sock.sendall(link.frame(link.Broken(describe_error(error))))
        os._exit(1)
    serve(sock, agents)


def load_agents(path: Sequence[str], agents: Mapping[str, str]) -> dict[str, Agent]:
    """Import agents as control would find them."""
    sys.path[:] = path
    return {name: find_agent(agent) for name, agent in agents.items()}
