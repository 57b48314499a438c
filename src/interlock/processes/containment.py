"""Control's end of one keeper: the requests to it, its answers, and the pipes of its processes.

1. `spawn` and `cut` are sent in the caller's own step. `cut` hangs up, which cannot fail; the keeper does the rest.
2. Control knows a process by its keeper's messages alone. A process whose exit was not told when the containment is
   empty was ended with it (`lost`).
3. Nothing here waits: pipes are read as they fill (`output.py`).

`await run.spawn(...)` returns when the process it started exits. A process that a shell leaves behind
(`sh -c "server &"`) belongs to the run and lives until the run ends; its output is read and thrown away, so that it
does not block. An agent that gives up a foreground process (by a timeout of its own around `await run.spawn`) ends it
with its process group only, because the process shares its keeper; `timeout=` gives it a keeper of its own, and ends
exactly what it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import pwd
import signal
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from interlock.agent import notice
from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.core.names import BodyState
from interlock.processes import kernel, wire
from interlock.processes.output import Input, Output

if TYPE_CHECKING:
    from interlock.processes.local import Helper, LocalProcesses

# The most threads, of a host and of the processes it started, that `company` looks at. A host with more is killed.
TASKS = 64
# Stands among the descriptors of a spawn for a pipe whose lines are written to control's error output.
ERRORS = -1
# A keeper that has not answered so long after a cut (and its grace) is replaced by the helper.
INSIST_SECONDS = 1.0


class LocalProcess:
    """A process that was requested of a keeper on this machine."""

    def __init__(self, number: int, containment: LocalContainment, order: SpawnOrder) -> None:
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
        # The writing end of its notice, if it has one. It stays open until the process is gone: a close sets the
        # notice too, and a tool without a grace is killed without being told.
        self.tells = -1
        # Called in the step in which the keeper's word of its end is read.
        self.on_end: Callable[[], None] | None = None

    def attach(self, output: int, given: int, terminal: int, limit: int) -> None:
        """Take over control's ends of its pipes."""
        self._terminal = terminal
        if output >= 0:
            self._output = Output(
                output, limit=limit, streamed=self.order.streamed, hold=self.order.pty, on_close=self._pipe_closed
            )
        if given >= 0:
            data = self.order.input or b""
            # A terminal marks the end of its input by a character (^D). In the middle of a line the first ^D only
            # sends the line, so a second one follows.
            if self.order.pty:
                data += b"\x04" if data.endswith(b"\n") or not data else b"\x04\x04"
            self._input = Input(given, data)

    async def started(self) -> None:
        """Wait until the process runs; raise SpawnFailed if it does not start."""
        await self._answered.wait()
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def notify(self) -> None:
        """Set the process's notice: its run is over. This does not wait."""
        if self.tells >= 0:
            notice.write(self.tells)

    def end(self) -> None:
        """End the process; if it has a keeper of its own, also everything it started."""
        if self.order.alone:
            self._containment.cut()
        elif not self.exited.is_set():
            self._containment.end_one(self.number)

    async def line(self) -> bytes | None:
        """Return the next line of its output, None at the end."""
        return None if self._output is None else await self._output.line()

    def output(self) -> tuple[bytes, int, bytes]:
        """Return the beginning of its output, the number of bytes left out, and the end."""
        return (b"", 0, b"") if self._output is None else self._output.collected()

    def recent(self) -> bytes:
        """Return the end of its output, even if the agent reads it by lines."""
        return b"" if self._output is None else self._output.recent

    # What the keeper says

    def on_started(self, pid: int) -> None:
        """Note that the process runs."""
        self.pid = pid
        self._close_terminal()
        self._answered.set()

    def on_failed(self, code: int, what: str) -> None:
        """Note that the process was not started, and nothing of it is left."""
        self.failure = SpawnFailed(code, _trouble(self.order.argv[0], code, what))
        self._over()
        self._answered.set()
        self.close()

    def on_exit(self, status: int) -> None:
        """Note that the process has exited. Its descendants may still hold its pipe."""
        self.status = status
        if self._input is not None:
            self._input.close()
        if self._output is not None:
            self._output.finish()
        self._over()

    def _over(self) -> None:
        self._close_notice()
        self.exited.set()
        if self.on_end is not None:
            self.on_end()

    @property
    def settled(self) -> bool:
        """True if the process has exited and no descendant holds its pipe."""
        return self.exited.is_set() and (self._output is None or self._output.closed)

    def _pipe_closed(self) -> None:
        if self.exited.is_set():
            self._containment.settle(self)

    def on_done(self) -> None:
        """Read the last output and close the pipes: the containment is empty, so no process holds them."""
        if not self._answered.is_set():
            self.on_failed(errno.ECANCELED, "it was ended before it began")
        elif not self.exited.is_set():
            self.lost = True
            self.on_exit(-signal.SIGKILL)
        if self._output is not None:
            self._output.last()
        self.close()

    def _close_terminal(self) -> None:
        if self._terminal >= 0:
            terminal, self._terminal = self._terminal, -1
            os.close(terminal)

    def _close_notice(self) -> None:
        if self.tells >= 0:
            tells, self.tells = self.tells, -1
            os.close(tells)

    def close(self) -> None:
        """Close control's ends of its pipes."""
        self._close_terminal()
        self._close_notice()
        if self._input is not None:
            self._input.close()
        if self._output is not None:
            self._output.close()


class Sender:
    """Sends a message in the caller's own step, or as soon as the other side has room."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[tuple[Any, ...], list[int]]] = deque()

    def send(self, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
        """Send a message, or queue it with copies of its descriptors."""
        if not self._waiting:
            try:
                wire.send(self._sock, message, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._writable)
        copies: list[int] = []
        try:
            for fd in fds:
                copies.append(os.dup(fd))
        except OSError:
            wire.close_all(copies)
            raise
        self._waiting.append((message, copies))

    def _writable(self) -> None:
        while self._waiting:
            message, copies = self._waiting[0]
            try:
                wire.send(self._sock, message, tuple(copies))
            except BlockingIOError:
                return
            except OSError:
                # The other side is gone; the reader of this socket sees that.
                self.drop()
                return
            self._waiting.popleft()
            wire.close_all(copies)
        self._loop.remove_writer(self._sock.fileno())

    def drop(self) -> None:
        """Discard every message that was not sent yet."""
        if self._sock.fileno() >= 0:
            self._loop.remove_writer(self._sock.fileno())
        while self._waiting:
            wire.close_all(self._waiting.popleft()[1])


class LocalContainment:
    """One keeper and what it holds, seen from control."""

    def __init__(
        self,
        processes: LocalProcesses,
        helper: Helper,
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
        self.helper = helper  # made the keeper, and stands in for it
        self.keeper: int | None = None  # the keeper's pid, known from its first message
        self.init: int | None = None  # the pid of the init of its PID namespace, if it has one
        self.leaf: str | None = None
        self._processes = processes
        self._sock = sock
        self._sender = Sender(sock)
        self._loop = asyncio.get_running_loop()
        self._requested: dict[int, LocalProcess] = {}
        self._hung_up = False
        self._insisting: asyncio.TimerHandle | None = None
        self._answered = False  # the keeper has sent KILL to every process, and has named those that are stuck
        # Called in the step of a cut, before the keeper can know of it.
        self.on_cut: Callable[[], None] | None = None
        self._open = True
        self._numbers = itertools.count(1)
        self._loop.add_reader(sock.fileno(), self._readable)

    # Asking

    def spawn(self, order: SpawnOrder, stdio: tuple[int, ...] | None = None) -> LocalProcess:
        """Ask the keeper for a process, with new pipes or with the descriptors in `stdio`, without waiting.

        The caller tests the fence in this same step. A request that is still on its way when the run falls is refused
        by the keeper, because the hang-up overtakes it.
        """
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
            if stdio is not None and ERRORS in stdio:
                theirs = [self._processes.error_pipe(lambda: self.name)]
                stdio = tuple(theirs[0] if fd == ERRORS else fd for fd in stdio)
            if order.pty:
                ours, path = _terminal(order, confinement.agent_user)
            elif stdio is None:
                ours, theirs = _pipes(order)
            argv = [_exact(argument) for argument in order.argv]
            env = {_exact(name): _exact(value) for name, value in self._processes.environment(order).items()}
            message = ("spawn", process.number, argv, env, _exact(_cwd(order)), path)
            self._sender.send(message, stdio or tuple(theirs))
        except OSError as error:
            code = error.errno or errno.EIO
            # The keeper is gone already, and control has not read that yet.
            if code in (errno.EPIPE, errno.ECONNRESET):
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

    def company(self, host: int) -> dict[tuple[int, int], tuple[int, int, str]]:
        """Return the traces of every thread in the containment except the main thread of `host` (`kernel.traces`).

        The answer is the kernel's alone. Processes are listed before the threads and again after them: otherwise a
        thread that starts a process and exits between the two would be missed. Raise OSError if the kernel does not
        show everything.
        """
        held = self._held()
        found = self._traces(held, host)
        if self._held() != held:
            raise OSError(errno.EAGAIN, "processes came and went during the look")
        return found

    def glimpse(self, host: int) -> dict[tuple[int, int], tuple[int, int, str]]:
        """Return what `company` does after one look below the keeper, which may miss a thread that moves meanwhile.

        Good for a baseline: a thread that is missing there counts against the host, never for it.
        """
        # Most hosts are alone, which three small files show.
        alone = self.keeper is not None and kernel.descent(self.keeper) == [host] and kernel.threads(host) == 1
        if alone and not kernel.descent(host):
            return {}
        return self._traces(self._held(leaf=False), host)

    @staticmethod
    def _traces(held: frozenset[int], host: int) -> dict[tuple[int, int], tuple[int, int, str]]:
        if host not in held:
            raise OSError(errno.ESRCH, "the host is not below its keeper")
        found: dict[tuple[int, int], tuple[int, int, str]] = {}
        for pid in held:
            found.update(kernel.traces(pid, but=host))
            if len(found) > TASKS:
                raise OSError(errno.E2BIG, "there are more threads than are looked at")
        return found

    def _held(self, *, leaf: bool = True) -> frozenset[int]:
        if self.keeper is None:
            raise OSError(errno.ESRCH, "its keeper is not known")
        # A process that has left the leaf is still below the keeper.
        held = kernel.below(self.keeper, TASKS)
        if leaf and self.leaf is not None:
            held |= {int(pid) for pid in kernel.read(self.leaf + "/cgroup.procs").split()}
        # Keeper and init are our own programs. (The keeper is in the leaf while it spawns.)
        return held - {self.keeper, self.init}

    def end_one(self, number: int) -> None:
        """End one process of several, with its process group."""
        with contextlib.suppress(OSError):
            self._sender.send(("end", number))

    def allow(self, grace: float) -> None:
        """Set the grace of a worker's tool: the time from TERM to KILL if the containment is cut from now on.

        The grace is the tool's. Once the worker has exited, the keeper kills its leftovers at once. A process of
        `run.spawn(grace=)` may be a shell whose children clean up, so there all of them have the whole grace.
        """
        if grace != self.grace and not self._hung_up:
            self.grace = grace
            with contextlib.suppress(OSError):
                self._sender.send(("grace", grace))

    def cut(self) -> None:
        """Hang up: the keeper takes no further request and ends everything. This cannot fail, and does not wait."""
        # This is a part of the fall's step. `shutdown` overtakes every request that is still on its way, because the
        # keeper looks for the hang-up right before exec. An "end" message instead would wait behind those requests, or
        # be refused by a full socket, and a process could start after the stop was acknowledged.
        if not self._hung_up:
            if self.on_cut is not None:
                self.on_cut()
            self._hung_up = True
            if self.state is BodyState.RUNNING:
                self.state = BodyState.CUT
            self._sender.drop()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            self._insisting = self._loop.call_later(self.grace + INSIST_SECONDS, self._insist)

    def _insist(self) -> None:
        """Let the helper stand in for a keeper that has said nothing INSIST_SECONDS after the cut.

        A keeper that works says within STUCK_SECONDS what is stuck. Control insists even if no receipt waits any more:
        otherwise a process that has stopped its keeper would live for ever.
        """
        if not self.done.is_set():
            self._insisting = self._loop.call_later(INSIST_SECONDS, self._insist)
            if not self._answered:
                self._processes.finish(self)

    def drop(self) -> None:
        """Do nothing: the cut has hung up already, and `_insist` goes on by itself."""

    def abandon(self) -> None:
        """Stop waiting; the receipt names the processes that are stuck."""
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
        """Read the keeper's last messages before the helper's word about it counts."""
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
                        self.settle(process)
            case "stuck", (list(names),):
                self._answered = True
                self.stuck = tuple(str(name) for name in names)
            case "here", (int(pid),):
                self.keeper = pid
            case "inside", (int(pid),):
                self.init = pid
            case "drained", (int(ended),):
                self.empty(ended)

    def settle(self, process: LocalProcess) -> None:
        """Forget a process that has exited and whose pipe no descendant holds."""
        if self._requested.get(process.number) is process:
            del self._requested[process.number]

    def _lost_keeper(self) -> None:
        """Hand over to the helper: the keeper is gone without having said "drained"."""
        self._hung_up = True
        self._close_socket()
        self._processes.bereft(self)

    def empty(self, ended: int) -> None:
        """Note that the containment was seen empty, and that `ended` processes were ended by the cut."""
        # True here: the keeper, the helper in its place, or control by the leaf has the kernel's word that nothing is
        # left. Only this step sets `done`, and a receipt says drained by it alone, never by a timer.
        if self.done.is_set():
            return
        self.ended = ended
        self.stuck = ()
        self._hung_up = True
        if self.state is BodyState.RUNNING:
            self.state = BodyState.RETURNED
        self._close_socket()
        if self._insisting is not None:
            self._insisting.cancel()
        for process in list(self._requested.values()):
            process.on_done()
        self._requested.clear()
        self._processes.forget(self)
        self.done.set()

    def refuse(self, why: str) -> None:
        """Fail every request: no keeper was ever made, so nothing was started."""
        for process in list(self._requested.values()):
            if process.pid is None:
                process.on_failed(errno.EAGAIN, why)
        self.empty(0)

    def close(self) -> None:
        """Close the socket and the pipes without waiting: control closes."""
        if self._insisting is not None:
            self._insisting.cancel()
        self._close_socket()
        for process in self._requested.values():
            process.close()

    def _close_socket(self) -> None:
        if self._open:
            self._open = False
            self._sender.drop()
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


def _pipes(order: SpawnOrder) -> tuple[list[int], list[int]]:
    """Return (control's ends: output, input, terminal; -1 if none), (the process's ends: input if any, output)."""
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
    """Return ([control's side, control's side for input, the process's side until it runs], the terminal's path)."""
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
    """Return a text that the helper, whose locale is UTF-8, encodes into the same bytes as control would."""
    return text if _UTF8 else os.fsencode(text).decode("utf-8", "surrogateescape")


def _cwd(order: SpawnOrder) -> str:
    if order.cwd is not None and order.cwd.startswith("/"):
        return order.cwd
    try:
        here = os.getcwd()  # noqa: PTH109 (in every spawn)
        return here if order.cwd is None else f"{here}/{order.cwd}"
    except OSError as error:
        error.what = "its directory, which is ours and was removed,"  # type: ignore[attr-defined]
        raise


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
    """Return the error text: why the process was not started, and what to do."""
    if what.startswith("its directory"):
        return f"{program!r:.100} was not started: {what} cannot be entered ({os.strerror(code)})"
    return f"{program!r:.100} was not started: {what or _MEANING.get(code) or os.strerror(code)}"
