"""Control's side of the processes of this machine: the helper, and one end of every keeper.

1. Everything sent is sent in the caller's own step; what is read is read as it comes. The loop never waits.
2. A containment is done when its keeper saw it empty, or the helper did in its place. If both were killed at once, what
   is left to ask is the cgroup, or our own children where we are a subreaper; where there is neither, nothing is said.
3. The helper is started again when it is next needed.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from interlock.core.errors import BadInput
from interlock.processes import kernel, wire
from interlock.processes.base import ROOT, Confinement, Grade, Machine, SpawnFailed, SpawnOrder, allowed
from interlock.processes.containment import ERRORS, LocalContainment, LocalProcess, Sender
from interlock.processes.error_output import ErrorOutput
from interlock.processes.tree import Tree
from interlock.processes.workers import Worker, Workers

log = logging.getLogger("interlock")

T = TypeVar("T")

READY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
SECOND_SECONDS = 1.0
RESCUE_SECONDS = 5.0
BARE = (
    "import sys, types; package = types.ModuleType('interlock'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['interlock'] = package; "
    "from interlock.processes.helper import main; main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)

_controls = itertools.count(1)


class Helper:
    """The helper process, seen from here."""

    def __init__(self, process: "subprocess.Popen[bytes] | LocalProcess", sock: socket.socket) -> None:
        self.process: Any = process
        self.sock = sock
        self.sender: Sender | None = None  # made on the loop; the helper itself is started in a thread
        self.alive = True

    def wake(self) -> None:
        """Let it run: what it is to end may have stopped it."""
        self.process.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Wait for its death; called in a thread."""
        self.process.wait()

    def send(self, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
        """Send in this step, or as soon as there is room."""
        if self.sender is None:
            self.sender = Sender(self.sock)
        self.sender.send(message, fds)

    def hang_up(self) -> None:
        """Let go of it; its keepers see that for themselves, and it goes with the last of them."""
        self.alive = False
        if self.sender is not None:
            self.sender.drop()
        asyncio.get_running_loop().remove_reader(self.sock.fileno())
        self.sock.close()


class SecondHelper(Helper):
    """A helper that is kept itself, since it has imported what others wrote; it forks warm processes."""

    def __init__(self, containment: LocalContainment, process: LocalProcess, sock: socket.socket) -> None:
        super().__init__(process, sock)
        self.containment = containment
        self.facts: dict[str, object] = {}

    def wake(self) -> None:
        """Let it run."""
        if self.process.pid is not None and not self.process.exited.is_set():
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGCONT)

    def bury(self) -> None:
        """Its keeper reaps it."""


class LocalProcesses:
    """Every process of a control. `subreaper`: this process has no other children, and may end any it does not know."""

    def __init__(self, confinement: Confinement | None = None, *, subreaper: bool = False) -> None:
        self.confinement = confinement or Confinement()
        self.machine: Machine | None = None
        self._subreaper = subreaper
        self._user = _user(self.confinement.agent_user)
        self._user_environment = _environment_of(self.confinement.agent_user)
        self._helper: Helper | None = None
        self._facts: dict[str, object] = {}
        self._starting: asyncio.Task[Machine] | None = None
        self._containments: dict[int, LocalContainment] = {}
        self._numbers = itertools.count(1)
        self._rescues: set[asyncio.Task[None]] = set()
        self._owner = f"{kernel.owner_of(os.getpid())}-{next(_controls)}"  # no two controls share a leaf
        self._before = set(kernel.children()) if subreaper else set()  # of a shell that exec'd us, say
        self._tree = Tree()
        self._workers = Workers(self)
        self._closed = False
        self._homes: set[str] = set()
        self._helpers: set[int] = set()  # pids of those we started: a subreaper's children that are no orphans
        self._starts = threading.Lock()
        self._error_output = ErrorOutput()

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
        loop = asyncio.get_running_loop()
        if hasattr(loop, "wall"):
            raise BadInput(
                "there are no processes on a virtual clock; "
                "give open_control processes=interlock.testing.VirtualProcesses(random.Random(seed))"
            )
        if self._subreaper:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        try:
            helper = await _in_thread(self._launch)
        except OSError as error:
            raise SpawnFailed(error.errno or errno.EIO, f"the helper could not be started: {error}") from None
        answer: asyncio.Future[tuple[dict[str, object], int]] = loop.create_future()
        loop.add_reader(helper.sock.fileno(), self._readable, helper, answer)
        try:
            apart = self._user is not None and self.confinement.apart
            helper.send(("open", self.confinement.grade and str(self.confinement.grade), apart))
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
            left=tuple(map(str, facts["left"])) if isinstance(facts["left"], list) else (),
            apart=bool(facts["apart"]),
            together=str(facts.get("together", "")),
        )
        if self.machine.left:
            log.warning(
                "what a dead control left cannot be ended, and every start takes seconds longer for trying: %s; "
                "thaw it if it is frozen, or free what it waits for",
                ", ".join(self.machine.left),
            )
        if self.machine.together:
            log.warning(
                "agents of user %s can reach each other's processes: %s; interlock doctor says what to change",
                self.confinement.agent_user,
                self.machine.together,
            )
        self._facts = facts
        self._homes |= {str(facts[name]) for name in ("home", "pids_home", "memory_home") if facts[name] is not None}
        self._helper = helper
        if self._closed:
            self._end_helper(helper)
            raise SpawnFailed(errno.ECANCELED, "this control is closed; nothing can be started any more")
        return self.machine

    def _launch(self) -> Helper:
        with self._starts:
            errors = self._error_output.pipe(lambda: "the helper")
            try:
                helper = _launch(self._owner, errors)
            finally:
                os.close(errors)
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
            answer.exception()  # whoever waits is told; nobody need wait
        if self._helper is helper:
            self._helper = None
        for containment in list(self._containments.values()):
            if not containment._open:  # the others hear their keeper's last word, or that there is none
                self.bereft(containment)
        if isinstance(helper, SecondHelper):
            helper.containment.cut()
            self._rescued(self._bury_with(helper))

    def _drop_helper(self, helper: Helper) -> None:
        if helper.alive:
            helper.hang_up()
            threading.Thread(target=self._bury, args=(helper,), name="interlock helper", daemon=True).start()

    def _bury(self, helper: Helper) -> None:
        helper.bury()
        self._helpers.discard(helper.process.pid or 0)

    def _end_helper(self, helper: Helper) -> None:
        self._drop_helper(helper)
        helper.process.kill()

    def finish(self, containment: LocalContainment) -> None:
        """Ask the helper to stand in for a keeper."""
        if containment.helper.alive:
            containment.helper.wake()
            with contextlib.suppress(OSError):
                containment.helper.send(("finish", containment.number))
        else:
            self.bereft(containment)

    def bereft(self, containment: LocalContainment) -> None:
        """A containment has no keeper. The helper will tell of it; if that died as well, look for ourselves."""
        if not containment.helper.alive and not containment.done.is_set():
            self._rescued(self._rescue(containment))

    def _rescued(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="rescue")
        self._rescues.add(task)
        task.add_done_callback(self._rescues.discard)

    async def _bury_with(self, helper: "SecondHelper") -> None:
        """A second helper is gone. What it made was below its own keeper: seen empty there, it is empty."""
        await helper.containment.done.wait()
        for containment in list(self._containments.values()):
            if containment.helper is helper and containment.leaf is None:
                containment.empty(1)

    async def _rescue(self, containment: LocalContainment) -> None:
        """Helper and keeper are dead. End what they left by the leaf, or as the subreaper that it came to."""
        if containment.leaf is not None or self._subreaper:
            if await _in_thread(_rescue, containment.leaf, self._orphans if self._subreaper else list):
                if containment.keeper is None:
                    containment.refuse("the helper died")
                else:
                    containment.empty(1)
        elif containment.keeper is None:  # the helper died before it had made one
            containment.refuse("the helper died")

    def _orphans(self) -> list[int]:
        """KILL and reap what came to us as the subreaper; return what is left of it."""
        with self._starts:
            spare = self._helpers | self._before
            self._tree.end(spare)
            orphans = [pid for pid in kernel.children() if pid not in spare]
            for pid in orphans:
                with contextlib.suppress(OSError):
                    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                        self._tree.strike(pid)
                        os.waitpid(pid, 0)
        return orphans

    # Containments

    async def second_helper(self, order: SpawnOrder, wanted: object, seconds: float) -> SecondHelper:
        """Start a helper of another program, which is told what is wanted of it and says what it is."""
        await self.ready()
        containment = self.contain("zygote", as_user=False, limits=(None, None))
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            containment.cut()
            raise
        mine.setblocking(False)
        try:
            process = containment.spawn(order, stdio=(theirs.fileno(), ERRORS, ERRORS))
        except BaseException:
            containment.cut()
            mine.close()
            raise
        finally:
            theirs.close()
        helper = SecondHelper(containment, process, mine)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[dict[str, object], int]] = loop.create_future()
        loop.add_reader(mine.fileno(), self._readable, helper, answer)
        try:
            helper.send(("open", self._facts, self._owner, os.getpid(), wanted))
            async with asyncio.timeout(seconds):
                helper.facts, _ = await answer
        except (OSError, TimeoutError) as error:
            raise SpawnFailed(errno.EIO, f"it did not answer: {error!r}") from None
        finally:
            answer.cancel()
            if not helper.facts:  # whatever went wrong, or whoever went away
                self.drop_second(helper)
        return helper

    async def close_second(self, helper: SecondHelper) -> None:
        """Let a second helper go by itself, so that it can clean up; then see that it is gone. Bounded."""
        if helper.alive:
            helper.hang_up()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECOND_SECONDS):
                    await helper.process.exited.wait()
        helper.containment.cut()

    def drop_second(self, helper: SecondHelper) -> None:
        """End a second helper, and with it what it made."""
        if helper.alive:
            self._lost_helper(helper, asyncio.get_running_loop().create_future())

    def contain(
        self,
        of: str,
        *,
        grace: float = 0.0,
        once: bool = False,
        helper: Helper | None = None,
        as_user: bool = True,
        limits: tuple[int | None, int | None] | None = None,
    ) -> LocalContainment:
        """Make a containment; its keeper is on its way when this returns."""
        helper = helper or self._helper
        if helper is None or not helper.alive or self.machine is None or self._closed:
            raise SpawnFailed(errno.EAGAIN, "the helper is gone; try again, it will be started anew")
        number = next(self._numbers)
        names = (kernel.file_name(of), f"k{number}")
        limits = limits or (self.confinement.pids, self.confinement.memory)
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise SpawnFailed(error.errno or errno.EIO, f"no keeper could be asked for: {error.strerror}") from None
        mine.setblocking(False)
        try:
            helper.send(
                ("keep", number, names, limits, grace, once, self._user if as_user else None), (theirs.fileno(),)
            )
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
        env |= self._user_environment
        env.setdefault("PATH", os.defpath)
        for name, value in order.env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        env[kernel.OWNER] = self._owner
        # Handed on by an agent it would name the wrong process: in two PID namespaces there are equal pids.
        env.pop("INTERLOCK_WORKER", None)
        return env

    def error_pipe(self, name: Callable[[], str]) -> int:
        """Return a pipe for the error output of a process, to be handed over and closed."""
        return self._error_output.pipe(name, None if self._user is None else self._user[0])

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
            helper.hang_up()
            await _in_thread(_wait, helper.process)
        if self._error_output.close():
            await _in_thread(self._error_output.join)
        if self._homes:  # one that was killed, as a second one always is, has left its directories
            await _in_thread(self._remove_directories)

    def _remove_directories(self) -> None:
        for home in self._homes:
            kernel.remove_tree(f"{home}/{kernel.MARK}{self._owner}")


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    """Do what blocks in a thread of our own: the loop's pool may be full of the embedder's work."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def run() -> None:
        value, error = None, None
        try:
            value = work(*given)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="interlock", daemon=True).start()
    return await future


def _launch(owner: str, errors: int) -> Helper:
    """Start a helper: exec'd, in a session of its own, with next to nothing in its environment."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setblocking(False)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BARE, ROOT, str(theirs.fileno()), str(os.getpid()), owner],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
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


def _environment_of(name: str | None) -> dict[str, str]:
    if name is None:
        return {}
    entry = pwd.getpwnam(name)
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}


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
