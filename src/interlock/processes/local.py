"""Control's side of the processes of this machine: the helper, and one end of every keeper.

1. Everything sent is sent in the caller's own step; what is read is read as it comes. The loop never waits.
2. A containment is done when its keeper saw it empty, or the helper did in its place. If both were killed at once, what
   is left to ask is the cgroup, or our own children where we are a subreaper; where there is neither, nothing is said.
3. The helper is started again when it is next needed.
"""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import logging
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from interlock.core.errors import BadInput
from interlock.core.names import BodyState
from interlock.processes import kernel, wire
from interlock.processes.base import ROOT, Confinement, Grade, Machine, SpawnFailed, SpawnOrder, allowed
from interlock.processes.output import Input, Output
from interlock.processes.workers import Worker, Workers

log = logging.getLogger("interlock")

READY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
RESCUE_SECONDS = 5.0
INSIST_SECONDS = 1.0  # a keeper that has not answered a cut for so long is replaced by the helper
BARE = (
    "import sys, types; package = types.ModuleType('interlock'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['interlock'] = package; "
    "from interlock.processes.helper import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class LocalProcess:
    """A process that a keeper of this machine has been asked for."""

    def __init__(self, number: int, containment: "LocalContainment", order: SpawnOrder) -> None:
        self.number = number
        self.order = order
        self.pid: int | None = None
        self.status: int | None = None
        self.lost = False
        self.exited = asyncio.Event()
        self.failure: SpawnFailed | None = None
        self._answered = asyncio.Event()
        self._containment = containment
        self._output: Output | None = None
        self._input: Input | None = None
        self._terminal = -1
        self.on_end: Callable[[], None] | None = None  # told in the step that its end is heard

    def attach(self, output: int, given: int, terminal: int, limit: int) -> None:
        """Take over our ends of its pipes."""
        self._terminal = terminal
        if output >= 0:
            self._output = Output(output, limit=limit, streamed=self.order.streamed)
        if given >= 0:
            data = self.order.input or b""
            self._input = Input(given, data + b"\x04" if self.order.pty else data)

    async def started(self) -> None:
        """Wait until it runs; raise SpawnFailed if it does not."""
        await self._answered.wait()
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def end(self) -> None:
        """End it, with all it started where it has a keeper of its own."""
        if self.order.alone:
            self._containment.cut()
        elif not self.exited.is_set():
            self._containment.end_one(self.number)

    async def line(self) -> bytes | None:
        """Return the next line of its output, None at the end."""
        return None if self._output is None else await self._output.line()

    def output(self) -> tuple[bytes, int, bytes]:
        """Return the beginning of its output, how many bytes were left out, and the end."""
        return (b"", 0, b"") if self._output is None else self._output.collected()

    # What the keeper says

    def on_started(self, pid: int) -> None:
        """It runs."""
        self.pid = pid
        self._close_terminal()
        self._answered.set()

    def on_failed(self, code: int, what: str) -> None:
        """It does not run, and nothing of it is left."""
        self.failure = SpawnFailed(code, _trouble(self.order.argv[0], code, what))
        self._over()
        self._answered.set()
        self.close()

    def on_exit(self, status: int) -> None:
        """It has exited; what it started may still hold its pipe."""
        self.status = status
        if self._input is not None:
            self._input.close()
        if self._output is not None:
            self._output.finish()
        self._over()

    def _over(self) -> None:
        self.exited.set()
        if self.on_end is not None:
            self.on_end()

    @property
    def settled(self) -> bool:
        """True if it has exited and nobody holds its pipe."""
        return self.exited.is_set() and (self._output is None or self._output.closed)

    def on_done(self) -> None:
        """Nothing of its containment is left, so nobody holds its pipes."""
        if not self._answered.is_set():
            self.on_failed(errno.ECANCELED, "it was ended before it began")
        elif not self.exited.is_set():
            self.lost = True
            self.on_exit(-signal.SIGKILL)
        self.close(keep_lines=True)

    def _close_terminal(self) -> None:
        if self._terminal >= 0:
            terminal, self._terminal = self._terminal, -1
            os.close(terminal)

    def close(self, *, keep_lines: bool = False) -> None:
        """Let go of its pipes; a reader still gets the lines that are left in them."""
        self._close_terminal()
        if self._input is not None:
            self._input.close()
        if self._output is not None and not (keep_lines and self.order.streamed and not self._output.ended):
            self._output.close()


class LocalContainment:
    """One keeper, seen from here."""

    def __init__(
        self,
        processes: "LocalProcesses",
        helper: "Helper",
        number: int,
        of: str,
        sock: socket.socket,
        grace: float,
    ) -> None:
        self.name = f"processes of {of}"
        assert processes.machine is not None
        self.grade = processes.machine.grade
        self.grace = grace
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self.ended = 0
        self.stuck: tuple[str, ...] = ()
        self.number = number
        self.helper = helper  # who made its keeper, and stands in for it
        self.keeper: int | None = None  # its pid, once it has spoken
        self.leaf: str | None = None
        self._processes = processes
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._requested: dict[int, LocalProcess] = {}
        self._hung_up = False
        self._insisting: asyncio.TimerHandle | None = None
        self._open = True
        self._numbers = itertools.count(1)
        self._loop.add_reader(sock.fileno(), self._readable)

    # Asking

    def spawn(self, order: SpawnOrder, stdio: tuple[int, int, int] | None = None) -> LocalProcess:
        """Ask for a process, with pipes of ours or with descriptors that are given. Nothing is waited for."""
        if self._hung_up or self.done.is_set():
            why = "it was ended before it began" if self.state is BodyState.CUT else "its keeper was killed; try again"
            raise SpawnFailed(errno.ECANCELED, _trouble(order.argv[0], errno.ECANCELED, why))
        if order.inherit:
            stdio = (0, 1, 2)
        process = LocalProcess(next(self._numbers), self, order)
        confinement = self._processes.confinement
        ours: list[int] = []  # output, input, terminal
        theirs: list[int] = []
        path = None
        try:
            if order.pty:
                ours, path = _terminal(order, confinement.agent_user)
            elif stdio is None:
                ours, theirs = _pipes(order)
            argv = [_exact(argument) for argument in order.argv]
            env = {_exact(name): _exact(value) for name, value in self._processes.environment(order).items()}
            message = ("spawn", process.number, argv, env, _exact(_cwd(order)), path)
            wire.send(self._sock, message, stdio or tuple(theirs))
        except OSError as error:
            code = error.errno or errno.EIO
            if code in (errno.EPIPE, errno.ECONNRESET):  # hung up already, and we have not read it yet
                code, what = errno.EAGAIN, "no keeper could be made for it, or it was killed; try again"
            else:
                what = getattr(error, "what", "")
            raise SpawnFailed(code, _trouble(order.argv[0], code, what)) from None
        else:
            kept, ours = ours or [-1, -1, -1], []
        finally:
            wire.close_all([*theirs, *ours])
        self._requested[process.number] = process
        output, given, terminal = kept
        process.attach(output, given, terminal, limit=confinement.output_bytes)
        return process

    def move(self, of: str) -> None:
        """Give what it holds another name, before there is anything to it."""
        self.name = f"processes of {of}"
        if self.leaf is not None and self._processes.machine is not None:
            base = Path(self.leaf).parent.parent
            leaf = str(base / kernel.file_name(of) / f"k{self.number}")
            with contextlib.suppress(OSError):
                Path(leaf).mkdir(parents=True, exist_ok=True)
                wire.send(self._sock, ("move", leaf))
                self.leaf = leaf

    def end_one(self, number: int) -> None:
        """End one process and its group."""
        with contextlib.suppress(OSError):
            wire.send(self._sock, ("end", number))

    def cut(self) -> None:
        """Hang up: the keeper takes no further request and ends everything. It cannot fail, and does not wait."""
        if not self._hung_up:
            self._hung_up = True
            if self.state is BodyState.RUNNING:
                self.state = BodyState.CUT
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._insisting = self._loop.call_later(self.grace + INSIST_SECONDS, self._insist)

    def _insist(self) -> None:
        """A keeper says within half a second what is stuck; for one that says nothing the helper stands in."""
        if not self.done.is_set() and not self.stuck:
            self._processes.finish(self)

    def drop(self) -> None:
        """Nothing more can be done from here: it hung up long ago, and insists by itself."""

    def abandon(self) -> None:
        """Stop waiting; the receipt names what is left."""
        self.state = BodyState.ABANDONED
        self.name = ", ".join(self.stuck) or self.name
        self.stuck = self.stuck or (self.name,)

    # Hearing

    def _readable(self) -> None:
        while self._open:
            try:
                received = wire.receive(self._sock)
            except wire.Closed:
                self._lost_keeper()
                return
            if received is None:
                return
            message, fds = received
            wire.close_all(fds)
            self._hear(*message)

    def hear_out(self) -> None:
        """Take what its keeper has said; somebody else is about to speak for it."""
        if self._open:
            self._readable()

    def _hear(self, word: str, *said: object) -> None:
        match word, said:
            case "started", (int(number), int(pid)):
                self._requested[number].on_started(pid)
            case "failed", (int(number), int(code), str(what)):
                self._requested.pop(number).on_failed(code, what)
            case "exit", (int(number), int(status)):
                process = self._requested.get(number)
                if process is not None:
                    process.on_exit(status)
                    if process.settled:
                        del self._requested[number]
            case "stuck", (list(names),):
                self.stuck = tuple(str(name) for name in names)
            case "here", (int(pid),):
                self.keeper = pid
            case "drained", (int(ended),):
                self.empty(ended)

    def _lost_keeper(self) -> None:
        """The keeper is gone without a last word: the helper ends what it kept, and says so."""
        self._hung_up = True
        self._close()
        self._processes.bereft(self)

    def empty(self, ended: int) -> None:
        """It was seen empty."""
        if self.done.is_set():
            return
        self.ended = ended
        self.stuck = ()
        self._hung_up = True
        if self.state is BodyState.RUNNING:
            self.state = BodyState.RETURNED
        self._close()
        if self._insisting is not None:
            self._insisting.cancel()
        for process in list(self._requested.values()):
            process.on_done()
        self._requested.clear()
        self._processes.forget(self)
        self.done.set()

    def refuse(self, why: str) -> None:
        """There is no keeper and never was: nothing was started."""
        for process in list(self._requested.values()):
            if process.pid is None:
                process.on_failed(errno.EAGAIN, why)
        self.empty(0)

    def let_go(self) -> None:
        """Control closes: whatever was not seen is not waited for any longer."""
        if self._insisting is not None:
            self._insisting.cancel()
        self._close()
        for process in self._requested.values():
            process.close()

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class Helper:
    """The helper process, seen from here."""

    def __init__(self, process: "subprocess.Popen[bytes]", sock: socket.socket) -> None:
        self.process = process
        self.sock = sock
        self.alive = True


class LocalProcesses:
    """Every process of a control. `subreaper`: this process has no other children, and may end any it does not know."""

    def __init__(self, confinement: Confinement | None = None, *, subreaper: bool = False) -> None:
        self.confinement = confinement or Confinement()
        self.machine: Machine | None = None
        self._subreaper = subreaper
        self._user = _user(self.confinement.agent_user)
        self._helper: Helper | None = None
        self._starting: asyncio.Task[Machine] | None = None
        self._containments: dict[int, LocalContainment] = {}
        self._numbers = itertools.count(1)
        self._rescues: set[asyncio.Task[None]] = set()
        self._owner = kernel.owner_of(os.getpid())
        self._workers = Workers(self)
        self._closed = False
        self._homes: set[str] = set()
        self._helpers: set[int] = set()  # pids of those we started: a subreaper's children that are no orphans
        self._starts = threading.Lock()

    # The helper

    async def ready(self) -> Machine:
        """See to it that there is a helper; whoever asks meanwhile waits for the same one."""
        if self._closed:
            raise SpawnFailed(errno.ECANCELED, "this control is closed; nothing can be started any more")
        if self._helper is not None and self._helper.alive and self.machine is not None:
            return self.machine
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start(), name="start the helper")
        return await asyncio.shield(self._starting)

    async def _start(self) -> Machine:
        if self._subreaper:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        loop = asyncio.get_running_loop()
        try:
            helper = await asyncio.to_thread(self._launch)
        except OSError as error:
            raise SpawnFailed(error.errno or errno.EIO, f"the helper could not be started: {error}") from None
        answer: asyncio.Future[tuple[dict[str, object], int]] = loop.create_future()
        loop.add_reader(helper.sock.fileno(), self._readable, helper, answer)
        try:
            wire.send(helper.sock, ("open", self.confinement.grade and str(self.confinement.grade)))
            async with asyncio.timeout(READY_SECONDS):
                facts, swept = await answer
        except (OSError, TimeoutError) as error:
            self._end_helper(helper)
            raise SpawnFailed(errno.EIO, f"the helper did not answer: {error!r}") from None
        self.machine = Machine(
            grade=Grade(str(facts["grade"])),
            why=str(facts["why"]),
            pids=str(facts["pids"]),
            memory=str(facts["memory"]),
            home=None if facts["home"] is None else str(facts["home"]),
            swept=swept,
        )
        self._homes |= {str(facts[name]) for name in ("home", "pids_home", "memory_home") if facts[name] is not None}
        self._helper = helper
        if self._closed:
            self._end_helper(helper)
            raise SpawnFailed(errno.ECANCELED, "this control is closed; nothing can be started any more")
        return self.machine

    def _launch(self) -> Helper:
        with self._starts:
            helper = _launch()
            self._helpers.add(helper.process.pid)
        return helper

    def _readable(self, helper: Helper, answer: "asyncio.Future[tuple[dict[str, object], int]]") -> None:
        while helper.alive:
            try:
                received = wire.receive(helper.sock)
            except wire.Closed:
                self._lost_helper(helper, answer)
                return
            if received is None:
                return
            message, fds = received
            wire.close_all(fds)
            match message:
                case ("ready", dict(facts), int(swept), _) if not answer.done():
                    answer.set_result((facts, swept))
                case ("gone", int(number), int(ended), str(why)):
                    containment = self._containments.get(number)
                    if containment is not None:
                        containment.hear_out()  # its keeper spoke before it went, on a socket of its own
                    if containment is not None and why and containment.keeper is None and not ended:
                        containment.refuse(why)
                    elif containment is not None:
                        containment.empty(ended)

    def _lost_helper(self, helper: Helper, answer: "asyncio.Future[tuple[dict[str, object], int]]") -> None:
        """It was killed. Its keepers end what they keep and say so; what has lost its keeper too is for us."""
        self._drop_helper(helper)
        if not answer.done():
            answer.set_exception(ConnectionResetError("the helper died"))
        if self._helper is helper:
            self._helper = None
        for containment in list(self._containments.values()):
            if not containment._open:  # the others hear their keeper's last word, or that there is none
                self.bereft(containment)

    def _drop_helper(self, helper: Helper) -> None:
        if helper.alive:
            helper.alive = False
            asyncio.get_running_loop().remove_reader(helper.sock.fileno())
            helper.sock.close()
            threading.Thread(target=self._bury, args=(helper,), name="reap the helper", daemon=True).start()

    def _bury(self, helper: Helper) -> None:
        helper.process.wait()
        self._helpers.discard(helper.process.pid)

    def _end_helper(self, helper: Helper) -> None:
        self._drop_helper(helper)
        helper.process.kill()

    def finish(self, containment: LocalContainment) -> None:
        """Ask the helper to stand in for a keeper."""
        if containment.helper.alive:
            with contextlib.suppress(OSError):
                wire.send(containment.helper.sock, ("finish", containment.number))
        else:
            self.bereft(containment)

    def bereft(self, containment: LocalContainment) -> None:
        """A containment has no keeper. The helper will tell of it; if that died as well, look for ourselves."""
        if not containment.helper.alive and not containment.done.is_set():
            task = asyncio.get_running_loop().create_task(self._rescue(containment), name="rescue")
            self._rescues.add(task)
            task.add_done_callback(self._rescues.discard)

    async def _rescue(self, containment: LocalContainment) -> None:
        """Helper and keeper are dead. End what they left by the leaf, or as the subreaper that it came to."""
        if containment.leaf is not None or self._subreaper:
            if await asyncio.to_thread(_rescue, containment.leaf, self._orphans if self._subreaper else list):
                if containment.keeper is None:
                    containment.refuse("the helper died")
                else:
                    containment.empty(1)
        elif containment.keeper is None:  # the helper died before it had made one
            containment.refuse("the helper died")

    def _orphans(self) -> list[int]:
        """KILL and reap what came to us as the subreaper; return what is left of it."""
        with self._starts:
            orphans = [pid for pid in kernel.children() if pid not in self._helpers]
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
        return orphans

    # Containments

    def contain(self, of: str, *, grace: float = 0.0, once: bool = False) -> LocalContainment:
        """Make a containment; its keeper is on its way when this returns."""
        helper = self._helper
        if helper is None or not helper.alive or self.machine is None or self._closed:
            raise SpawnFailed(errno.EAGAIN, "the helper is gone; try again, it will be started anew")
        number = next(self._numbers)
        names = (kernel.file_name(of), f"k{number}")
        limits = (self.confinement.pids, self.confinement.memory)
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SpawnFailed(error.errno or errno.EIO, f"no keeper could be asked for: {error.strerror}") from None
        mine.setblocking(False)
        try:
            wire.send(helper.sock, ("keep", number, names, limits, grace, once, self._user), (theirs.fileno(),))
        except OSError as error:
            mine.close()
            raise SpawnFailed(error.errno or errno.EIO, f"no keeper could be asked for: {error.strerror}") from None
        finally:
            theirs.close()
        containment = LocalContainment(self, helper, number, of, mine, grace)
        if self.machine.home is not None:
            containment.leaf = f"{self.machine.home}/{kernel.MARK}{self._owner}/{names[0]}/{names[1]}"
        self._containments[number] = containment
        return containment

    def forget(self, containment: LocalContainment) -> None:
        """It is empty."""
        self._containments.pop(containment.number, None)

    def environment(self, order: SpawnOrder) -> dict[str, str]:
        """Return what a process sees: what is allowed, its user's own, what it was given, and our mark."""
        env = allowed(os.environ, self.confinement.environment)
        if self.confinement.agent_user is not None:
            entry = pwd.getpwnam(self.confinement.agent_user)
            env |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
        env.setdefault("PATH", os.defpath)
        for name, value in order.env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        env[kernel.OWNER] = self._owner
        return env

    def worker(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step; warm if there is one."""
        return self._workers.take(of)

    async def close(self) -> None:
        """End everything and let the helper go, bounded."""
        await self._workers.close()
        self._closed = True
        if self._starting is not None:  # bounded by READY_SECONDS; it ends what it has just started
            await asyncio.wait([self._starting])
            self._starting.cancelled() or self._starting.exception()
        live = list(self._containments.values())
        for containment in live:
            containment.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for containment in live:
                    await containment.done.wait()
        for containment in list(self._containments.values()):
            containment.let_go()
        for task in list(self._rescues):
            task.cancel()
        helper, self._helper = self._helper, None
        if helper is not None and helper.alive:
            helper.alive = False
            asyncio.get_running_loop().remove_reader(helper.sock.fileno())
            helper.sock.close()
            await asyncio.to_thread(_wait, helper.process)
        elif self._homes:  # the last one was killed: nobody else removes our directories
            await asyncio.to_thread(self._remove_directories)

    def _remove_directories(self) -> None:
        for home in self._homes:
            kernel.remove_tree(f"{home}/{kernel.MARK}{self._owner}")


def _launch() -> Helper:
    """Start a helper: exec'd, in a session of its own, with next to nothing in its environment."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setblocking(False)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BARE, ROOT, str(theirs.fileno()), str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None,
            env=kept,
            start_new_session=True,
        )
    except OSError:
        mine.close()
        raise
    finally:
        theirs.close()
    return Helper(process, mine)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _rescue(leaf: str | None, orphans: Callable[[], list[int]]) -> bool:
    """End what is in a leaf, or came to us as our child; return whether it was seen gone."""
    until = time.monotonic() + RESCUE_SECONDS
    while time.monotonic() < until:
        if leaf is not None:
            kernel.kill_cgroup(leaf)
        if not orphans() and (leaf is None or not kernel.populated(leaf)):
            if leaf is not None:
                kernel.remove_cgroup(leaf)
            return True
        time.sleep(0.001)
    return False


def _pipes(order: SpawnOrder) -> tuple[list[int], list[int]]:
    """Return ([our output, our input, no terminal], [their input?, their output])."""
    opened: list[int] = []
    try:
        reading, writing = os.pipe()
        opened += [reading, writing]
        if order.input is None:
            return [reading, -1, -1], [writing]
        given, giving = os.pipe()
        return [reading, giving, -1], [given, writing]
    except OSError:
        wire.close_all(opened)
        raise


def _terminal(order: SpawnOrder, user: str | None) -> tuple[list[int], str]:
    """Return ([our side, our side for input, their side until it runs], its path)."""
    master, slave = os.openpty()
    try:
        path = os.ttyname(slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        if user is not None:
            os.fchown(slave, pwd.getpwnam(user).pw_uid, -1)
        given = -1 if order.input is None else os.dup(master)
    except OSError:
        wire.close_all([master, slave])
        raise
    return [master, given, slave], path


_UTF8 = sys.getfilesystemencoding() == "utf-8" and sys.getfilesystemencodeerrors() == "surrogateescape"


def _exact(text: str) -> str:
    """Return a text that the helper, whose locale is UTF-8, turns into the very bytes that ours would."""
    return text if _UTF8 else os.fsencode(text).decode("utf-8", "surrogateescape")


def _cwd(order: SpawnOrder) -> str:
    if order.cwd is not None:
        return order.cwd
    try:
        return os.getcwd()  # noqa: PTH109 (in every spawn)
    except OSError as error:
        error.what = "its directory, which is ours and was removed,"  # type: ignore[attr-defined]
        raise


def _user(name: str | None) -> tuple[int, int, list[int]] | None:
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise BadInput(f"there is no user {name!r} on this machine; make one, or leave agent_user out") from None
    if os.geteuid() != 0:
        raise BadInput("agent_user= needs root: only root can give rights away")
    return entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)


_MEANING = {
    errno.ENOENT: "there is no such program",
    errno.EACCES: "it may not be executed",
    errno.ENOEXEC: "it is not a program this machine can execute; name its interpreter",
    errno.EAGAIN: "the machine, or this run's limit of processes, allows no more",
    errno.EMFILE: "no descriptors are left; close some or raise the limit",
    errno.ENFILE: "no descriptors are left on this machine",
    errno.ENOMEM: "there is not enough memory",
    errno.E2BIG: "its arguments or environment are too long; use input= or a file",
}


def _trouble(program: str, code: int, what: str) -> str:
    """Say why a process could not be started, and what to do."""
    if what.startswith("its directory"):
        return f"{program!r:.100} was not started: {what} cannot be entered ({os.strerror(code)})"
    return f"{program!r:.100} was not started: {what or _MEANING.get(code) or os.strerror(code)}"
