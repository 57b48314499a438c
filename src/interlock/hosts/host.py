"""Inside a host: one loop that serves the turns of one session. The verbs of its runs are in `port.py`.

1. A host cuts a fallen turn as an inline run is cut: with one cancel, and nothing more. If its code takes too long,
   control kills the whole host from outside.
2. After an early end the host says whether it is clean. It is not if a task, callback, timer, alarm or thread is there
   that the turn began, or if a task of an earlier turn has run meanwhile. Such work would be an effect of the turn
   after its end, so control does not use the host again. Everything is compared with a list from before the turn.
   What an earlier turn left is no reason, unless it ran.
3. One pipe is the notice of all turns. Control writes one byte to it with each `Fallen`, and the host takes the bytes
   of earlier turns out before the next turn begins.
4. The host's word counts for its own loop only. Control asks the kernel about threads and processes
   (`HostProcess.look`).
"""

import asyncio
import contextlib
import gc
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from interlock.agent.bodies import DaemonThreads, Leash, Threads
from interlock.agent.crew import Crew
from interlock.agent.message import Message
from interlock.agent.notice import heard, take_notice
from interlock.agent.run import Agent, Run
from interlock.agent.tool import describe_error
from interlock.core.errors import BadInput, Stale
from interlock.core.names import Effect, Ending, Principal, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.hosts import link
from interlock.hosts.finding import SERVED, find_agent
from interlock.hosts.port import HostPort, Link, Turn
from interlock.processes import kernel

# A verb waits while more than HIGH_BYTES lie unread by control, until fewer than LOW_BYTES do.
HIGH_BYTES, LOW_BYTES = 256 * 1024, 64 * 1024
READ_BYTES = 256 * 1024
LAST_ROUNDS = 5  # of the loop, in which callbacks of ended tasks may still run
ALARMS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class SocketLink:
    """The host's end of the link: a socket to read from, and a pipe to write to."""

    def __init__(self, sock: socket.socket, saying: int) -> None:
        sock.setblocking(False)
        os.set_blocking(saying, False)
        self._sock = sock
        self._saying = saying
        self._loop = asyncio.get_running_loop()
        self._out = bytearray()
        self._frames = link.Frames(link.Told)
        self._room: asyncio.Event | None = None
        self.hear: Callable[[link.Told], None] = lambda _: None
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def full(self) -> bool:
        """True if control is behind with reading."""
        return len(self._out) > HIGH_BYTES

    def send(self, word: link.Word) -> None:
        """Send a message in this step, since the agent may block the loop in the next."""
        waiting = bool(self._out)
        self._out += link.frame(word, link.FRAME_BYTES)
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        while self._out:
            try:
                del self._out[: os.write(self._saying, self._out)]
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._saying, self._writable)
                break
            except OSError:
                self._gone()
        if self._room is not None and len(self._out) <= LOW_BYTES:
            self._room.set()

    def _writable(self) -> None:
        self._loop.remove_writer(self._saying)
        self._flush()

    async def room(self) -> None:
        """Wait until control has read most of what was sent."""
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

    def exchange(self, word: link.Ask) -> link.Answer | link.Refusal:
        """Send a request and block until its answer is there; other messages that arrive are handled afterwards."""
        self._out += link.frame(word)
        self._sock.setblocking(True)
        os.set_blocking(self._saying, True)
        later: list[link.Told] = []
        answer: link.Answer | link.Refusal | None = None
        try:
            while self._out:
                del self._out[: os.write(self._saying, self._out)]
            while answer is None:
                self._frames.feed(self._sock.recv(READ_BYTES) or self._gone())
                for heard in self._frames:
                    if isinstance(heard, link.Answer | link.Refusal) and heard.number == word.number:
                        answer = heard
                        continue
                    later.append(heard)
                    # Control answers no request of a run that has fallen.
                    if isinstance(heard, link.Fallen) and answer is None:
                        answer = link.Refusal(word.number, Stale.__name__, "the run has ended; do not catch Stale")
            return answer
        except OSError:
            self._gone()
        finally:
            self._sock.setblocking(False)
            os.set_blocking(self._saying, False)
            for heard in later:
                self._loop.call_soon(self.hear, heard)

    def close(self) -> None:
        """Close the socket and the pipe."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        os.close(self._saying)

    @staticmethod
    def _gone() -> NoReturn:
        """Exit at once: control is gone, or has hung up."""
        os._exit(0)


class Serving:
    """Serves turns, one after another."""

    def __init__(
        self,
        line: Link,
        agents: Mapping[str, Agent],
        threads: Threads | None = None,
        at_work: Callable[[], frozenset[object]] | None = None,
        collect: Callable[[], object] = gc.collect,
        hears: int = -1,
    ) -> None:
        self._link = line
        self._agents = agents
        self._crew = Crew()
        self._threads = threads or DaemonThreads()
        self._at_work = at_work or _at_work
        self._collect = collect
        self._hears = hears
        self._notices = 0  # bytes in the pipe, one for each turn that has fallen
        self._port: HostPort | None = None
        self._root = asyncio.current_task()  # the task of `_serve`, which waits for ever
        self._before = self._at_work()

    def hear(self, word: link.Told) -> None:
        """Handle a message of control's; one of a turn that is over is ignored."""
        port = self._port
        match word:
            case link.Begin():
                self._begin(word)
            case link.Rehearse():
                self._crew.start(rehearse(), name="rehearse")
            case link.Answer() | link.Refusal() if port is not None:
                port.hear(word)
            case link.Fallen(turn, cause) if port is not None and port.turn.number == turn:
                self._notices += 1
                port.fall(cause)
                self._crew.start(self._settle(port), name=f"settle {turn}")
                for body in tuple(port.turn.bodies):
                    body.cut()
            case link.Problem(turn) if port is not None and port.turn.number == turn:
                port.trouble(word)
            case link.Exited(turn, process, status, timed_out) if port is not None and port.turn.number == turn:
                port.processes.exited(process, status, timed_out)
            case _:
                pass

    def _begin(self, begin: link.Begin) -> None:
        # Take out exactly the bytes of earlier turns: the byte of this turn's fall may be behind them already.
        if self._notices and self._hears >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._hears, self._notices)
        self._notices = 0
        turn = Turn(begin.turn, self._hears)
        self._port = HostPort(begin, turn, self._link, crew=self._crew, threads=self._threads)
        self._crew.start(self._turn(begin, self._port), name=f"turn {begin.turn}")

    async def _turn(self, begin: link.Begin, port: HostPort) -> None:
        """Run the agent on a leash, from its first step to its last."""
        turn, loop = port.turn, asyncio.get_running_loop()
        word: link.Returned | link.Raised
        turn.before = self._before
        try:
            with heard(turn.notice):
                text = await self._agent(begin, port)
            port.raise_problem()
            if text is not None and not isinstance(text, str):
                raise BadInput(f"the agent returned {type(text).__name__}; return the reply as text, or None")
            port.measure(text or "")
            word = link.Returned(turn.number, None if text is None else _utf8(text), turn.quiet, loop.time())
        except BaseException as error:
            word = link.Raised(turn.number, describe_error(error), port.phase_of(error), turn.quiet, loop.time())
        if port.current:
            returned = isinstance(word, link.Returned)
            port.fall(Cause(ending=Ending.COMPLETED if returned else Ending.FAILED))
            self._link.send(word)
        elif isinstance(word, link.Returned):
            self._link.send(link.Tried(turn.number, Effect.FINAL))
        turn.over.set()
        # Take the baseline now, off the critical path. Anything that starts between two turns is charged to the next.
        self._before = self._at_work()

    async def _agent(self, begin: link.Begin, port: HostPort) -> object:
        handle = Run(port, run_id=begin.run_id, session=begin.session, generation=begin.generation)
        body = self._agents[begin.agent](handle, begin.message)
        if not asyncio.iscoroutine(body):
            raise BadInput("the agent is not async; declare it with `async def agent(run, message)`")
        leash = Leash(body, name=f"agent of {begin.run_id}")
        port.turn.bodies.append(leash)
        if not port.current:
            leash.cut()
        return await leash

    async def _settle(self, port: HostPort) -> None:
        """Wait until the turn's code has ended, and tell control whether the host is clean."""
        # The order matters. Bodies end first; then finalizers of the turn's cyclic garbage run, since they are effects
        # of the turn and none may come later; then the loop turns a few times, because tasks that have just ended need
        # a turn to leave, and their callbacks another. Only then is the list compared. Compared sooner, nearly every
        # host would look unclean and be killed.
        turn = port.turn
        await turn.over.wait()
        for body in tuple(turn.bodies):
            await body.done.wait()
        self._collect()
        for _ in range(LAST_ROUNDS):
            await asyncio.sleep(0)
            if not (left := [each for each in self._at_work() - turn.before if not self._is_ours(each)]):
                break
        self._link.send(link.Settled(turn.number, clean=not left))

    def _is_ours(self, each: object) -> bool:
        task = each.task if isinstance(each, Standing) else each
        return task is self._root or task in self._crew.tasks


class Standing(NamedTuple):
    """A task and the future it waits for. A task that waits for the same future as before has not run since."""

    task: "asyncio.Task[Any]"
    waits_for: object


def _standing(task: "asyncio.Task[Any]") -> Standing:
    # A task without an open future is about to run. A new object equals nothing, so such a task never looks the same.
    waits_for: Any = getattr(task, "_fut_waiter", None)
    return Standing(task, object() if waits_for is None or waits_for.done() else waits_for)


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("the reply holds half a surrogate pair; decode the text properly first") from None
    return str.__str__(text)


def _at_work() -> frozenset[object]:
    """Return what may act by itself in this process: tasks, callbacks, timers, alarms and threads.

    Work that a turn put off would be an effect of the turn after its end.
    """
    # A loop of another kind (uvloop) shows nothing of what it will do. A new object is never in an earlier list, so
    # such a host is never clean.
    if not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        return frozenset([object()])
    loop: Any = asyncio.get_running_loop()
    found: set[object] = {*map(_standing, asyncio.all_tasks()), *loop._scheduled, *loop._ready}
    for key in tuple(loop._selector.get_map().values()):
        found.update(key.data)  # readers and writers: a server, say, acts when a client connects
    acting = {each for each in found if not _ours(each)}
    acting.update(("alarm", which) for which in ALARMS if signal.getitimer(which)[0])
    return frozenset([*acting, *_threads()])


def _ours(each: object) -> bool:
    """Return True for callbacks of the loop and the link, and for steps of tasks, which are listed as tasks."""
    if each is None or (isinstance(each, asyncio.Handle) and each.cancelled()):
        return True
    callback = getattr(each, "_callback", None)
    if getattr(callback, "__name__", "") == "_read_from_self":
        return True
    return isinstance(getattr(callback, "__self__", None), SocketLink | asyncio.Task)


def _threads() -> list[str]:
    """Return the other threads of this process. Whether an old one has run meanwhile, control sees for itself."""
    if kernel.threads(os.getpid()) == 1:
        return []
    own = str(threading.get_native_id())
    return [name for name in os.listdir("/proc/self/task") if name != own]  # noqa: PTH208 (after every turn)


async def _greet(run: Run, message: Message) -> str:
    await run.say(message.text)
    async with run.phase("warm"):
        await run.typing()
    return ""


async def rehearse() -> None:
    """Play a whole turn of our own agent: the code and memory that a turn touches are warm afterwards."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    line = SocketLink(theirs, os.dup(theirs.fileno()))
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


async def _serve(sock: socket.socket, saying: int, hears: int, agents: Mapping[str, Agent]) -> None:
    line = SocketLink(sock, saying)
    os.set_blocking(hears, False)
    line.hear = Serving(line, agents, hears=hears).hear
    line.send(link.Hello(link.VERSION, os.getpid()))
    # Wait for ever: the process exits when control hangs up.
    await asyncio.get_running_loop().create_future()


def serve(sock: socket.socket, saying: int, hears: int, agents: Mapping[str, Agent]) -> NoReturn:
    """Be a host whose agents are imported, until control hangs up."""
    kernel.prctl(kernel.PR_SET_NAME, b"interlock-host")
    # The runner is never closed: a close would run the tasks that the agent left, and wait for them.
    runner = asyncio.Runner()
    try:
        runner.run(_serve(sock, saying, hears, agents))
    # An agent stopped the loop, or raised SystemExit in a task of its own.
    except BaseException as error:
        sys.stderr.write(f"interlock: a host ended: {describe_error(error)}\n")
    finally:
        os._exit(70)


def take_link() -> socket.socket:
    """Return the socket of the link, moved away from the standard input: processes started here do not inherit it."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A process that is killed flushes nothing, and a fork copies an unflushed buffer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    os.environ["INTERLOCK_WORKER"] = str(os.getpid())
    return sock


def take_pipe() -> int:
    """Return the pipe of the link, moved away from the standard output, which becomes the error output."""
    saying = os.dup(1)
    os.dup2(2, 1)
    return saying


def main() -> NoReturn:
    """Be a host that imports its agents itself."""
    # The notice is moved first: a descriptor that is opened now might get its number.
    hears = take_notice()
    sock, saying = take_link(), take_pipe()
    frames = link.Frames(link.Told)
    load: link.Load | None = None
    while load is None:
        frames.feed(sock.recv(READ_BYTES) or os._exit(0))
        load = next(iter(frames), None)
    try:
        agents = load_agents(load.path, load.agents)
    except BaseException as error:
        os.write(saying, link.frame(link.Broken(describe_error(error))))
        os._exit(1)
    serve(sock, saying, hears, agents)


def load_agents(path: Sequence[str], agents: Mapping[str, str]) -> dict[str, Agent]:
    """Import agents, on control's own module path."""
    sys.path[:] = path
    return {name: find_agent(agent) for name, agent in agents.items()}
