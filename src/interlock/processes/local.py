"""Control's side of the processes of this machine: the helper, and one end of every keeper.

1. Every message is sent in the caller's own step, and read when it comes. The loop never waits.
2. A containment is done when its keeper saw it empty, or the helper did in the keeper's place. If both were killed at
   once, control looks for itself: at the leaf, or at its own children where it is a subreaper. Where there is neither,
   the containment is never called empty.
3. The helper is started again when it is next needed.
4. Work that blocks runs in threads of our own, never in the loop's thread pool: an embedder may have filled the pool,
   and a stop or a close must not wait for that.

Whichever process is killed with -9, another one ends the tree:

    control              each keeper (EOF on its socket, and a pidfd of control)
    the helper           each keeper (EOF on its lifeline)
    a keeper             the helper, a subreaper too: a child of the helper that is no keeper has lost its keeper
    control and helper   each keeper
    helper and keeper    control, by the leaf at the cgroup grade, or as a subreaper (`interlock run`)
    the zygote           each warden (EOF on its lifeline), and the zygote's keeper, below which all of it stands
    the zygote's keeper  each warden, and the helper
    a warden             the zygote, which is a helper; if both are killed, the zygote's keeper
    all of them          the next start, before it serves (`probe.sweep`)
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
    """The helper process, seen from control."""

    def __init__(self, process: "subprocess.Popen[bytes] | LocalProcess", sock: socket.socket) -> None:
        self.process: Any = process
        self.sock = sock
        # The sender is made on the loop, because the helper itself is started in a thread.
        self.sender: Sender | None = None
        self.alive = True

    def wake(self) -> None:
        """Send SIGCONT: a process that the helper is to end may have stopped it."""
        self.process.send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Wait for the helper's death. This blocks, and is called in a thread."""
        self.process.wait()

    def send(self, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
        """Send a message in this step, or as soon as there is room."""
        if self.sender is None:
            self.sender = Sender(self.sock)
        self.sender.send(message, fds)

    def hang_up(self) -> None:
        """Close the socket. The keepers see that for themselves, and the helper exits after the last of them."""
        self.alive = False
        if self.sender is not None:
            self.sender.drop()
        asyncio.get_running_loop().remove_reader(self.sock.fileno())
        self.sock.close()


class SecondHelper(Helper):
    """A helper that is itself in a containment, since it has imported other people's code; it forks warm processes."""

    def __init__(self, containment: LocalContainment, process: LocalProcess, sock: socket.socket) -> None:
        super().__init__(process, sock)
        self.containment = containment
        self.facts: dict[str, object] = {}

    def wake(self) -> None:
        """Send SIGCONT, while its pid is surely its own."""
        if self.process.pid is not None and not self.process.exited.is_set():
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGCONT)

    def bury(self) -> None:
        """Do nothing: its keeper reaps it."""


class LocalProcesses:
    """Every process of a control.

    `subreaper` says that this process has no children of other origin, so that it may end any child it does not know.
    """

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
        # Children from before this object was made, for example those of a shell that exec'd this program. Not ours.
        self._before = set(kernel.children()) if subreaper else set()
        self._tree = Tree()
        self._workers = Workers(self)
        self._closed = False
        self._homes: set[str] = set()
        self._helpers: set[int] = set()  # pids of our helpers: children of a subreaper that are no orphans
        self._starts = threading.Lock()
        self._error_output = ErrorOutput()

    # The helper

    async def ready(self) -> Machine:
        """Start the helper if there is none (all callers wait for the same one); return what the machine allows."""
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
                facts, leftovers_ended = await answer
        except (OSError, TimeoutError) as error:
            self._end_helper(helper)
            raise SpawnFailed(errno.EIO, f"the helper did not answer: {error!r}") from None
        self.machine = Machine(
            grade=Grade(str(facts["grade"])),
            why=str(facts["why"]),
            pids=str(facts["pids"]),
            memory=str(facts["memory"]),
            home=None if facts["home"] is None else str(facts["home"]),
            leftovers_ended=leftovers_ended,
            left=tuple(map(str, facts["left"])) if isinstance(facts["left"], list) else (),
            apart=bool(facts["apart"]),
            together=str(facts.get("together", "")),
        )
        if self.machine.left:
            log.warning(
                "processes of a dead control cannot be ended, and every start spends seconds trying: %s; "
                "thaw them if they are frozen, or free what they wait for",
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
                case ("ready", dict(facts), int(leftovers_ended), _) if not answer.done():
                    answer.set_result((facts, leftovers_ended))
                case ("gone", int(number), int(ended), str(why)):
                    containment = self._containments.get(number)
                    # The keeper spoke before it exited, on a socket of its own. Its word ("drained", an exit status)
                    # must be read before the helper's.
                    if containment is not None:
                        containment.hear_out()
                    if containment is not None and why and containment.keeper is None and not ended:
                        containment.refuse(why)
                    elif containment is not None:
                        containment.empty(ended)

    def _lost_helper(self, helper: Helper, answer: "asyncio.Future[tuple[dict[str, object], int]]") -> None:
        """Note that a helper was killed. Its keepers end what they keep; control rescues containments without one."""
        self._drop_helper(helper)
        if not answer.done():
            answer.set_exception(ConnectionResetError("the helper died"))
            # Mark the exception as retrieved: there may be no waiter, and asyncio would then log it as lost.
            answer.exception()
        if self._helper is helper:
            self._helper = None
        for containment in list(self._containments.values()):
            # A containment with an open socket still hears its keeper's last word, or its hang-up.
            if not containment._open:
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
        """Ask the helper to stand in for a keeper that does not answer."""
        if containment.helper.alive:
            containment.helper.wake()
            with contextlib.suppress(OSError):
                containment.helper.send(("finish", containment.number))
        else:
            self.bereft(containment)

    def bereft(self, containment: LocalContainment) -> None:
        """Rescue a containment without a keeper if its helper is dead too; a living helper ends it and says so."""
        if not containment.helper.alive and not containment.done.is_set():
            self._rescued(self._rescue(containment))

    def _rescued(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="rescue")
        self._rescues.add(task)
        task.add_done_callback(self._rescues.discard)

    async def _bury_with(self, helper: "SecondHelper") -> None:
        """Call the containments of a dead second helper empty once its own containment is.

        Every process that a second helper made stands below that helper's own keeper, so an empty containment there
        proves that they are gone.
        """
        await helper.containment.done.wait()
        for containment in list(self._containments.values()):
            if containment.helper is helper and containment.leaf is None:
                containment.empty(1)

    async def _rescue(self, containment: LocalContainment) -> None:
        """End what a dead helper and a dead keeper left: by the leaf, or as the subreaper that adopted the orphans."""
        if containment.leaf is not None or self._subreaper:
            if await _in_thread(_rescue, containment.leaf, self._orphans if self._subreaper else list):
                if containment.keeper is None:
                    containment.refuse("the helper died")
                else:
                    containment.empty(1)
        # The helper died before it had made a keeper.
        elif containment.keeper is None:
            containment.refuse("the helper died")

    def _orphans(self) -> list[int]:
        """KILL and reap the orphans that this process adopted as a subreaper; return those that are left."""
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
        """Start a second helper from `order`: it is sent `wanted`, and its answer becomes its `facts`."""
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
            # No answer came: the helper failed, was late, or the caller was cancelled.
            if not helper.facts:
                self.drop_second(helper)
        return helper

    async def close_second(self, helper: SecondHelper) -> None:
        """Let a second helper exit by itself, so that it can clean up, and cut it after SECOND_SECONDS."""
        if helper.alive:
            helper.hang_up()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SECOND_SECONDS):
                    await helper.process.exited.wait()
        helper.containment.cut()

    def drop_second(self, helper: SecondHelper) -> None:
        """End a second helper, with every process it made."""
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
        """Make a containment, without waiting: the request for its keeper is sent when this returns."""
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
        """Forget a containment that was seen empty."""
        self._containments.pop(containment.number, None)

    def environment(self, order: SpawnOrder) -> dict[str, str]:
        """Return the environment of a process: allowed variables, its user's own, those of its order, and our mark."""
        env = allowed(os.environ, self.confinement.environment)
        env |= self._user_environment
        env.setdefault("PATH", os.defpath)
        for name, value in order.env.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        env[kernel.OWNER] = self._owner
        # INTERLOCK_WORKER holds a pid. Handed on by an agent it would name the wrong process, since two PID namespaces
        # have equal pids.
        env.pop("INTERLOCK_WORKER", None)
        return env

    def error_pipe(self, name: Callable[[], str]) -> int:
        """Return the writing end of a pipe for a process's error output; the caller hands it over and closes it."""
        return self._error_output.pipe(name, None if self._user is None else self._user[0])

    def worker(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step; the warm spare if there is one."""
        return self._workers.claim(of)

    def kill(self) -> None:
        """End every process of every containment now, without a grace; does not wait."""
        for containment in list(self._containments.values()):
            containment.on_cut = None
            containment.allow(0.0)
            containment.cut()

    async def close(self) -> None:
        """End every process, then the helper; bounded."""
        await self._workers.close()
        self._closed = True
        # A start that is under way is bounded by READY_SECONDS, and ends the helper it has just started.
        if self._starting is not None:
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
            containment.close()
        for task in list(self._rescues):
            task.cancel()
        helper, self._helper = self._helper, None
        if helper is not None and helper.alive:
            helper.hang_up()
            await _in_thread(_wait, helper.process)
        if self._error_output.close():
            await _in_thread(self._error_output.join)
        # A helper that was killed, as a second helper always is, has left its directories.
        if self._homes:
            await _in_thread(self._remove_directories)

    def _remove_directories(self) -> None:
        for home in self._homes:
            kernel.remove_tree(f"{home}/{kernel.MARK}{self._owner}")


async def _in_thread(work: Callable[..., T], *given: Any) -> T:
    """Run blocking work in a thread of our own, because the loop's pool may be full of the embedder's work."""
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
    """Execute a helper, in a session of its own and with almost no environment."""
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
    """End every process in a leaf, or adopted as an orphan; return whether all were seen gone. This blocks."""
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
