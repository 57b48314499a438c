"""Control's end of one keeper: what was asked of it, what it says, and the pipes of its processes.

1. `spawn` and `cut` are sent in the caller's own step. `cut` hangs up, which cannot fail; the keeper does the rest.
2. A process is told by its keeper's words alone. What was not told when the containment is empty was ended with it.
3. Nobody waits here: pipes are read as they fill (`output.py`).
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

from interlock.core.names import BodyState
from interlock.processes import kernel, notice, wire
from interlock.processes.base import SpawnFailed, SpawnOrder
from interlock.processes.output import Input, Output

if TYPE_CHECKING:
    from interlock.processes.local import Helper, LocalProcesses

TASKS = 64  # threads of a host, and of what it started, that are looked at in one step; one with more is not judged
ERRORS = -1  # among descriptors that are given: a pipe whose lines are told on our error output
INSIST_SECONDS = 1.0  # a keeper that has not answered a cut for so long is replaced by the helper


class LocalProcess:
    """A process that a keeper of this machine has been asked for."""

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
        self.tells = -1  # its notice, where it has one: open until it is gone, since to close it is to tell, too
        self.on_end: Callable[[], None] | None = None  # told in the step that its end is heard

    def attach(self, output: int, given: int, terminal: int, limit: int) -> None:
        """Take over our ends of its pipes."""
        self._terminal = terminal
        if output >= 0:
            self._output = Output(
                output, limit=limit, streamed=self.order.streamed, hold=self.order.pty, on_close=self._pipe_closed
            )
        if given >= 0:
            data = self.order.input or b""
            if self.order.pty:  # a terminal's end is a character; in the middle of a line it only sends what there is
                data += b"\x04" if data.endswith(b"\n") or not data else b"\x04\x04"
            self._input = Input(given, data)

    async def started(self) -> None:
        """Wait until it runs; raise SpawnFailed if it does not."""
        await self._answered.wait()
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def notify(self) -> None:
        """Tell it that its run is over; nothing is waited for."""
        if self.tells >= 0:
            notice.write(self.tells)

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

    def recent(self) -> bytes:
        """Return the end of its output, also where it is read by lines."""
        return b"" if self._output is None else self._output.recent

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
        self._close_notice()
        self.exited.set()
        if self.on_end is not None:
            self.on_end()

    @property
    def settled(self) -> bool:
        """True if it has exited and nobody holds its pipe."""
        return self.exited.is_set() and (self._output is None or self._output.closed)

    def _pipe_closed(self) -> None:
        if self.exited.is_set():
            self._containment.settle(self)

    def on_done(self) -> None:
        """Nothing of its containment is left, so nobody holds its pipes."""
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
        """Let go of its pipes."""
        self._close_terminal()
        self._close_notice()
        if self._input is not None:
            self._input.close()
        if self._output is not None:
            self._output.close()


class Sender:
    """Sends in the caller's own step, or as soon as the other side has room."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[tuple[Any, ...], list[int]]] = deque()

    def send(self, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
        """Send a message, or keep it with copies of its descriptors."""
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
            except OSError:  # hung up: whoever reads there will see it
                self.drop()
                return
            self._waiting.popleft()
            wire.close_all(copies)
        self._loop.remove_writer(self._sock.fileno())

    def drop(self) -> None:
        """What was not sent never will be."""
        if self._sock.fileno() >= 0:
            self._loop.remove_writer(self._sock.fileno())
        while self._waiting:
            wire.close_all(self._waiting.popleft()[1])


class LocalContainment:
    """One keeper, seen from here."""

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
        self.helper = helper  # who made its keeper, and stands in for it
        self.keeper: int | None = None  # its pid, once it has spoken
        self.init: int | None = None  # of its PID namespace, if it has one
        self.leaf: str | None = None
        self._processes = processes
        self._sock = sock
        self._sender = Sender(sock)
        self._loop = asyncio.get_running_loop()
        self._requested: dict[int, LocalProcess] = {}
        self._hung_up = False
        self._insisting: asyncio.TimerHandle | None = None
        self._answered = False  # its keeper has sent KILL to all of it, and says what is stuck
        self.on_cut: Callable[[], None] | None = None  # told in the step of a cut, before the keeper can know of it
        self._open = True
        self._numbers = itertools.count(1)
        self._loop.add_reader(sock.fileno(), self._readable)

    # Asking

    def spawn(self, order: SpawnOrder, stdio: tuple[int, ...] | None = None) -> LocalProcess:
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

    def company(self, host: int) -> dict[tuple[int, int], tuple[int, int, str]]:
        """Return what is here besides the main thread of a host: the traces of every other thread and process.

        The kernel is asked, and nobody else. Raise OSError if it does not show all of it. Processes are listed before
        the threads and after them: a thread that starts a process and exits between the two would else be missed.
        """
        held = self._held()
        if host not in held:
            raise OSError(errno.ESRCH, "the host is not below its keeper")
        found: dict[tuple[int, int], tuple[int, int, str]] = {}
        for pid in held:
            found.update(kernel.traces(pid, but=host))
            if len(found) > TASKS:
                raise OSError(errno.E2BIG, "there is more than is looked at")
        if self._held() != held:
            raise OSError(errno.EAGAIN, "processes came and went during the look")
        return found

    def _held(self) -> frozenset[int]:
        if self.keeper is None:
            raise OSError(errno.ESRCH, "its keeper is not known")
        held = kernel.below(self.keeper, TASKS)  # also one that has left the leaf
        if self.leaf is not None:
            held |= {int(pid) for pid in kernel.read(self.leaf + "/cgroup.procs").split()}
        return held - {self.keeper, self.init}  # our own programs: the keeper is in the leaf while it spawns, and reaps

    def end_one(self, number: int) -> None:
        """End one process and its group."""
        with contextlib.suppress(OSError):
            self._sender.send(("end", number))

    def allow(self, grace: float) -> None:
        """Say how long its process has, from TERM to KILL, if it is cut from now on; what it leaves is killed then."""
        if grace != self.grace and not self._hung_up:
            self.grace = grace
            with contextlib.suppress(OSError):
                self._sender.send(("grace", grace))

    def cut(self) -> None:
        """Hang up: the keeper takes no further request and ends everything. It cannot fail, and does not wait."""
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
        """A keeper says within half a second what is stuck; for one that says nothing the helper stands in.

        Also when nobody waits for it any more: a process that has stopped its keeper would else live for good.
        """
        if not self.done.is_set():
            self._insisting = self._loop.call_later(INSIST_SECONDS, self._insist)
            if not self._answered:
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
        """It has exited and nobody holds its pipe: it is not needed here any more."""
        if self._requested.get(process.number) is process:
            del self._requested[process.number]

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
            self._sender.drop()
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


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
    """Say why a process could not be started, and what to do."""
    if what.startswith("its directory"):
        return f"{program!r:.100} was not started: {what} cannot be entered ({os.strerror(code)})"
    return f"{program!r:.100} was not started: {what or _MEANING.get(code) or os.strerror(code)}"
