"""The keeper: the parent of every process of one containment, and the process that ends them.

1. The keeper is a subreaper. A kept process and all its descendants stay below the keeper, however often they fork or
   change their session.
2. A process is contained before it executes: the keeper steps into the leaf, calls `posix_spawn`, and steps out again.
   The keeper forks no Python, except for the init of a PID namespace (`namespace.py`).
3. The keeper is sealed before it kills. Once control has hung up, the keeper serves no request, not even one that
   control sent earlier.
4. "Gone" means that the kernel answers ECHILD and that the leaf is empty. The keeper signals its own unreaped children
   by pid, since no other process can have such a pid, and processes further down through pidfds (`tree.py`).
5. The keeper ends everything when control hangs up, when control dies (seen by a pidfd, since a fork of control may
   hold the socket) and when the helper dies (seen by a pipe). It exits when its containment is empty. Where a process
   survives KILL and control is gone, the keeper gives up after LINGER_SECONDS.

The order to end is a hang-up, not a message. A message can be refused by a full socket, and it waits behind the
messages before it. `shutdown(SHUT_WR)` does neither, and the keeper looks for it right before each exec.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time

from interlock.processes import kernel, wire
from interlock.processes.namespace import Namespace
from interlock.processes.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

# How long a keeper goes on killing after control is gone.
LINGER_SECONDS = 60.0
# A process that is still there so long after its KILL is told to control as stuck.
STUCK_SECONDS = 0.5
# A kill that takes longer than this is sent again, and the keeper asks for real-time priority.
SLOW_SECONDS = 0.02
# The kernel wakes control on the keeper's own core. After its last word the keeper sleeps so long, so that control can
# run there at once.
YIELD_SECONDS = 0.002
STUCK_LISTED = 20
GATEWAY_GONE, HELPER_GONE = "control is gone", "the helper is gone"


class NoInterpreter(OSError):
    """The first line of a script names a program that does not exist."""

    what = "the interpreter that its first line names was not found"


class Ended(OSError):
    """Control hung up while the keeper looked for the program."""

    what = "it was ended before it began"


class Keeper:
    """One containment. `leaf` and `limits` name directories of cgroups that exist already; `leaf` may be None."""

    def __init__(
        self,
        sock: socket,
        lifeline: int,
        gateway: int,
        *,
        leaf: str | None,
        home: str | None,
        limits: list[tuple[str, str]],  # (directory of a version 1 leaf, our own beside it)
        rlimits: list[tuple[int, int]],
        grade: str,
        grace: float,
        once: bool,
        user: tuple[int, int, list[int]] | None,
        apart: bool,
    ) -> None:
        self._sock = sock
        self._lifeline = lifeline
        self._gateway = gateway
        self._leaf = leaf
        self._home = home
        self._limits = limits
        self._grade = grade
        self._grace = grace
        # True if the grace belongs to a worker's tool: once the worker has exited, its leftovers are killed at once.
        self._of_main = False
        # True if the keeper serves one request only, and exits as soon as nothing is left of it.
        self._once = once
        self._user = user
        self._apart = apart  # in a PID namespace of its own
        self._space: Namespace | None = None  # made with the first process
        # Processes that were spawned here and are not reaped yet: pid → number of the request.
        self._main: dict[int, int] = {}
        self._tree = Tree(self._meanwhile)
        self._groups: list[int] = []  # process groups, at the grade `group`
        self._opened: list[tuple[int, int]] = []
        self._events = -1
        self._outbox: list[tuple[Any, ...]] = []
        self._listening = True
        self._served = False
        self._sealed = False
        self._killed_at: float | None = None
        self._term_until: float | None = None
        self._sealed_at = 0.0
        self._told_stuck = 0.0
        self._childless = True
        self._hurried = False
        self._ended = 0
        if grade != "group":
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.prctl(kernel.PR_SET_NAME, b"interlock-keep")
        if user is not None:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            # Ambient capabilities would pass to every program that is executed.
            kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.AMBIENT_CLEAR_ALL)
        if rlimits:
            import resource

            for which, most in rlimits:
                hard = resource.getrlimit(which)[1]
                bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(which, (bound, bound))
        _give_way()
        wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = wake
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN | select.POLLRDHUP)
        for fd in (lifeline, gateway, wake):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)

    # The loop

    def run(self) -> None:
        """Serve requests until control hangs up, then end everything and return when nothing is left."""
        self._tell("here", os.getpid())
        while True:
            self._turn()
            self._reap()
            if self._once and self._served and not self._sealed and self._childless:
                self._seal()
            if self._sealed:
                if self._killed_at is not None and self._empty():
                    break
                self._end()
                if self._empty():
                    break
                self._flush()
                if not self._listening and time.monotonic() > self._sealed_at + LINGER_SECONDS:
                    os._exit(1)
        self._tell("drained", self._ended)
        self._flush()
        time.sleep(YIELD_SECONDS)
        self._clean_up()

    def _turn(self) -> None:
        """Wait for the next event. After the KILL that is a death, and `sigtimedwait` is the cheapest way to wait."""
        if self._killed_at is not None:
            signal.sigtimedwait((signal.SIGCHLD,), self._tree.pause)
            if time.monotonic() < self._killed_at + STUCK_SECONDS:
                return
        for fd, events in self._poll.poll(self._timeout()):
            if fd == self._sock.fileno():
                self._serve(events)
            elif fd == self._wake:
                os.read(self._wake, 4096)
            elif fd == self._lifeline:
                self._lose(fd, HELPER_GONE)
            elif fd == self._gateway:
                self._lose(fd, GATEWAY_GONE)

    def _timeout(self) -> float | None:
        """Return the milliseconds to wait at most; a SIGCHLD usually comes sooner."""
        if not self._sealed:
            return None
        # After the KILL `_turn` has waited for a death already.
        if self._killed_at is not None:
            return 0.0
        assert self._term_until is not None
        return max(0.0, self._term_until - time.monotonic()) * 1000 + 1

    def _lose(self, fd: int, why: str) -> None:
        """Kill at once, without a grace: control or the helper has died."""
        self._poll.unregister(fd)
        self._listening = self._listening and why is not GATEWAY_GONE
        self._grace = 0.0
        self._seal()
        self._kill()

    # Requests

    def _serve(self, events: int) -> None:
        if events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
            # A keeper of one process first reads what lies in the socket: a "grace" that control sent right before the
            # hang-up must count. A "spawn" that lies there is refused, because `_answer_spawn` sees the hang-up.
            if self._once:
                self._read()
            self._seal()
            # Kill before reading the remaining requests. All of them are refused, and a long queue of them must not
            # delay the KILL.
            if self._term_until is None:
                self._kill()
            if events & (select.POLLHUP | select.POLLERR):
                self._listening = False
                self._poll.unregister(self._sock.fileno())
        self._read()
        self._flush()

    def _read(self) -> None:
        while True:
            try:
                received = wire.receive(self._sock)
            except wire.Closed:
                self._seal()
                # Control has shut down its writing half only, and still reads what the keeper says.
                if self._listening:
                    self._poll.modify(self._sock.fileno(), select.POLLOUT if self._outbox else 0)
                return
            if received is None:
                break
            message, fds = received
            try:
                if message[0] == "spawn":
                    self._answer_spawn(message, fds)
                elif message[0] == "end":
                    self._end_one(message[1])
                elif message[0] == "grace":
                    self._grace, self._of_main = message[1], True
            finally:
                wire.close_all(fds)

    def _answer_spawn(self, message: tuple[Any, ...], fds: list[int]) -> None:
        number = message[1]
        if self._sealed or self._hung_up():
            self._tell("failed", number, errno.ECANCELED, "it was ended before it began")
            return
        self._served = True
        try:
            if -1 in fds:
                raise OSError(errno.EMFILE, "no descriptors are left")
            argv, env, cwd, terminal = message[2:]
            pid = self._spawn(argv, env, cwd, terminal, fds)
        except OSError as error:
            self._tell("failed", number, error.errno or errno.EIO, getattr(error, "what", ""))
            return
        except (ValueError, TypeError, MemoryError) as error:
            self._tell("failed", number, errno.EINVAL, str(error)[:200])
            return
        self._childless = False
        self._main[pid] = number
        if self._grade == "group":
            self._groups.append(pid)
        self._tell("started", number, pid)

    def _hung_up(self) -> bool:
        """Return whether control has hung up. The keeper asks right before exec: nothing may start after a fall."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _spawn(self, argv: list[str], env: dict[str, str], cwd: str, terminal: str | None, fds: list[int]) -> int:
        actions = _actions(terminal, fds)
        if not self._apart:
            return self._spawn_here(argv, env, cwd, actions)
        if self._space is None:
            self._space = self._make_space()
        self._space.enter()
        try:
            return self._spawn_here(argv, env, cwd, actions)
        finally:
            self._space.leave()

    def _make_space(self) -> Namespace:
        try:
            space = Namespace()
        except OSError as error:
            error.what = f"no PID namespace could be made for it ({os.strerror(error.errno or 0)})"  # type: ignore[attr-defined]
            raise
        self._childless = False
        self._tell("inside", space.init)
        return space

    def _spawn_here(self, argv: list[str], env: dict[str, str], cwd: str, actions: list[tuple[Any, ...]]) -> int:
        try:
            os.chdir(cwd)
        except OSError as error:
            error.what = f"its directory {cwd}"  # type: ignore[attr-defined]
            raise
        stepped = []
        try:
            for inside, outside in self._doors():
                os.write(inside, b"0")
                stepped.append(outside)
            return self._as_user(argv, env, actions)
        finally:
            for outside in stepped:
                os.write(outside, b"0")
            os.chdir("/")

    def _doors(self) -> list[tuple[int, int]]:
        """Return the pairs of files to write to step into each leaf and out of it again; they are opened once."""
        if not self._opened:
            # `_populated` opens `cgroup.events` now, so that the end needs no new descriptor.
            if self._leaf is not None:
                self._populated()
            places = list(self._limits)
            if self._leaf is not None and self._home is not None:
                places.append((self._leaf, self._home))
            opened: list[int] = []
            try:
                for leaf, home in places:
                    opened += [_door(leaf)]
                    opened += [_door(home)]
            except OSError:
                # All doors or none: the next process must not step into some of its cgroups only.
                wire.close_all(opened)
                raise
            self._opened = list(zip(opened[::2], opened[1::2], strict=True))
        return self._opened

    def _as_user(self, argv: list[str], env: dict[str, str], actions: list[tuple[Any, ...]]) -> int:
        """Spawn with the rights of `agent_user`.

        posix_spawn cannot set a user, but it can reset the child's effective ids to the real ones. So the keeper takes
        the user's real ids during the spawn, and no trampoline program is needed. In that moment a process of the user
        that sees the keeper may signal it (none does in a PID namespace). If it kills the keeper, the helper ends the
        run's processes.
        """
        if self._user is None:
            return self._exec(argv, env, actions, resetids=False)
        uid, gid, groups = self._user
        before = os.getgroups()
        os.setgroups(groups)
        os.setresgid(gid, -1, -1)
        os.setresuid(uid, -1, -1)
        try:
            return self._exec(argv, env, actions, resetids=True)
        finally:
            os.setresuid(os.geteuid(), -1, -1)
            os.setresgid(os.getegid(), -1, -1)
            os.setgroups(before)

    def _exec(self, argv: list[str], env: dict[str, str], actions: list[tuple[Any, ...]], *, resetids: bool) -> int:
        return _exec(argv, env, actions, self._hung_up, resetids=resetids)

    def _end_one(self, number: int) -> None:
        """End one of several processes, with its process group.

        A descendant that left the group stays and ends with the containment. To end one process exactly, with all it
        started, control gives it a keeper of its own.
        """
        for pid, its in self._main.items():
            # The process is not reaped, so neither its pid nor its group can be another process's.
            if its == number:
                _signal_group(pid, signal.SIGKILL)
                _signal(pid, signal.SIGKILL)

    # Ending

    def _seal(self) -> None:
        if self._sealed:
            return
        self._sealed = True
        self._sealed_at = time.monotonic()
        if self._space is not None:
            self._space.count()
        if self._grace > 0 and self._main:
            self._term_until = self._sealed_at + self._grace
            for pid in self._main:
                _signal_group(pid, signal.SIGTERM)
                _signal_group(pid, signal.SIGCONT)

    def _end(self) -> None:
        """KILL when the grace is over; after that KILL again whatever has become the keeper's child since."""
        now = time.monotonic()
        over = self._term_until is None or now >= self._term_until or (self._of_main and not self._main)
        if self._killed_at is None and over:
            self._kill()
        elif self._killed_at is not None:
            self._kill_children()
            self._meanwhile()

    def _meanwhile(self) -> None:
        """Hurry if the kill takes long, and tell control what is stuck.

        The report must come: a keeper that has said nothing INSIST_SECONDS after the cut is replaced by the helper.
        """
        now = time.monotonic()
        assert self._killed_at is not None
        if not self._hurried and now > self._killed_at + SLOW_SECONDS:
            self._hurried = True
            _go_first()
        if now > max(self._killed_at, self._told_stuck) + STUCK_SECONDS:
            self._told_stuck = now
            self._tell("stuck", [kernel.describe(pid) for pid in self._left()[:STUCK_LISTED]])
            self._flush()

    # The keeper's kill. True here: the keeper is sealed, so nothing new starts; every process of the containment is in
    # the leaf, in the namespace, or below the keeper; and no pid that is signalled can be another process's, since the
    # keeper has not reaped it. A KILL proves nothing. `run` repeats kill and reap until `_empty` says that the kernel
    # knows no child (ECHILD) and no member of the leaf, and only then is "drained" told.
    #
    # Three ways are used because each alone leaks. `cgroup.kill` misses a process that moved itself out of the leaf. A
    # walk over pids misses a child that is forked behind it. A process group misses whatever called setsid. Without
    # the repetition a fork under way, or an orphan on its way up to its subreaper, would survive a receipt that says
    # drained. The races (tests/races.md): 60 (double fork, setsid), 63 (stopped, or stuck in the kernel), 64 (an exit
    # in the same instant), 65 (a recycled pid) and 70 (a fork bomb).
    def _kill(self) -> None:
        # From the first KILL on SIGCHLD is blocked, because `_turn` waits for it with `sigtimedwait`.
        if self._killed_at is None:
            self._killed_at = time.monotonic()
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        # The keeper knows these pids without a look at /proc. They begin to die while the rest is looked for.
        for pid in self._main:
            _signal_group(pid, signal.SIGKILL)
            _signal(pid, signal.SIGKILL)
        if self._space is not None:
            self._space.end()
        if self._leaf is not None:
            kernel.kill_cgroup(self._leaf)
        for group in self._groups:
            _signal_group(group, signal.SIGKILL)
        if self._leaf is None:
            self._kill_children()
        self._reap()

    def _kill_children(self) -> None:
        """KILL the leaf once more if it is slow to empty, and every process that is below the keeper by now."""
        if self._leaf is not None and self._populated():
            assert self._killed_at is not None
            # The leaf is dying: give the kernel SLOW_SECONDS.
            if time.monotonic() < self._killed_at + SLOW_SECONDS:
                return
            kernel.kill_cgroup(self._leaf)
        # The init of the namespace ends all that is inside, and no kept process is outside.
        if self._space is not None:
            self._space.end()
            return
        # At the grade `group` a process that left its group is out of reach.
        if not self._childless and self._grade != "group":
            self._tree.end()

    def _left(self) -> list[int]:
        children = kernel.children()
        if self._space is not None and self._space.init:
            children = [*(pid for pid in children if pid != self._space.init), *kernel.children_of(self._space.init)]
        left = {pid for pid in children if (found := kernel.stat(pid)) is not None and found[0] not in "ZX"}
        if self._leaf is not None:
            try:
                left.update(int(pid) for pid in kernel.read(self._leaf + "/cgroup.procs").split())
            except (OSError, ValueError):
                return sorted(left)
        return sorted(left)

    def _empty(self) -> bool:
        """Return whether the containment was seen empty: no child to wait for, no member of the leaf or of a group."""
        if not self._childless or (self._leaf is not None and self._populated()):
            return False
        self._groups = [group for group in self._groups if _signal_group(group, 0)]
        return not self._groups

    def _populated(self) -> bool:
        """Return whether the leaf has a member. The descriptor stays open, since this is asked until it says no."""
        assert self._leaf is not None
        try:
            if self._events < 0:
                self._events = os.open(self._leaf + "/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            return b"populated 1" in os.pread(self._events, 256, 0)
        except OSError:
            # The leaf was removed, or no descriptor is left.
            return kernel.populated(self._leaf)

    def _reap(self) -> None:
        """Reap every dead child, and tell control of those that were spawned here.

        Each is first seen with WNOWAIT: while a dead child is unreaped its process group is surely its own, and
        `Tree.strike` may signal it.
        """
        if self._grade == "group" and not self._sealed:
            self._tell_dead()
            return
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self._childless = True
                break
            if dead is None:
                self._childless = False
                break
            if self._killed_at is not None:
                self._tree.strike(dead.si_pid)
            pid, status = os.waitpid(dead.si_pid, 0)
            if self._space is not None and pid == self._space.init:
                self._ended += self._space.reaped()
                continue
            self._ended += self._sealed
            number = self._main.pop(pid, None)
            if number is not None:
                self._tell("exit", number, os.waitstatus_to_exitcode(status))
        if self._space is not None and not self._main and (self._once or self._sealed):
            self._space.may_go()

    def _tell_dead(self) -> None:
        """Tell control which processes have died, and leave them unreaped: their pids and groups stay theirs."""
        for pid, number in list(self._main.items()):
            dead = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is not None:
                del self._main[pid]
                self._tell("exit", number, dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status)
        if self._once and not self._main:
            self._childless = True

    # Telling

    def _tell(self, *message: Any) -> None:
        """Send a message to control, now or when control reads again. The keeper never waits for control."""
        if self._listening:
            self._outbox.append(message)
            # A sealed keeper sends its messages together, later: to wake control takes time that the kill needs.
            if not self._sealed:
                self._flush()

    def _flush(self) -> None:
        while self._outbox and self._listening:
            try:
                wire.send(self._sock, self._outbox[0])
            except BlockingIOError:
                break
            except OSError:
                self._listening = False
                self._outbox.clear()
                return
            del self._outbox[0]
        wanted = select.POLLOUT if self._outbox else 0
        if self._listening:
            self._poll.modify(self._sock.fileno(), wanted | (0 if self._sealed else select.POLLIN | select.POLLRDHUP))

    def _clean_up(self) -> None:
        until = time.monotonic() + 1.0
        while self._outbox and self._listening and time.monotonic() < until:
            self._poll.poll(100)
            self._flush()
        if self._leaf is not None:
            kernel.remove_cgroup(self._leaf)


def _actions(terminal: str | None, fds: list[int]) -> list[tuple[Any, ...]]:
    """Return what becomes of descriptors 0, 1 and 2 in the child.

    A terminal that the child opens in its new session becomes its controlling terminal, so its close hangs up on it.
    """
    if terminal is not None:
        opened = (os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0)
        return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    if len(fds) == 1:
        nothing = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        return [nothing, (os.POSIX_SPAWN_DUP2, fds[0], 1), (os.POSIX_SPAWN_DUP2, fds[0], 2)]
    if len(fds) == 2:
        fds = [fds[0], fds[1], fds[1]]
    return [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(fds)]


def _door(cgroup: str) -> int:
    return os.open(cgroup + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def _exec(argv: list[str], env: dict[str, str], actions: list[tuple[Any, ...]], over: Any, *, resetids: bool) -> int:
    """Start a program in a session of its own and with default signals; PATH is searched as a shell would.

    `over` is asked before each candidate: to look for a program may take long, and the run may fall meanwhile.
    """
    refused: OSError = FileNotFoundError(errno.ENOENT, "not found")
    for path in _candidates(argv[0], env):
        if over():
            raise Ended(errno.ECANCELED, path)
        try:
            return os.posix_spawn(
                path,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_RESET,
                resetids=resetids,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            if _is_file(path):
                refused = NoInterpreter(error.errno, path)
        except PermissionError as error:
            refused = error
    raise refused


_RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _candidates(program: str, env: dict[str, str]) -> list[str]:
    if "/" in program:
        return [program]
    directories = env.get("PATH", os.defpath).split(":")
    paths = [f"{directory or '.'}/{program}" for directory in directories]
    return [path for path in paths if _is_file(path)]


def _is_file(path: str) -> bool:
    try:
        return os.stat(path).st_mode & 0o170000 == 0o100000
    except OSError:
        return False


def _give_way() -> None:
    """Take no core from control: its hang-up wakes the keeper, and control has yet to answer the stop.

    The processes below do not inherit this.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    except OSError:
        return


def _go_first() -> None:
    """Ask for real-time priority, which only root gets: a few hundred forking processes leave the keeper no time."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        # The process is dead already, or the keeper may not signal it; then it is told as stuck.
        return


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; return False if the kernel says that it has no member."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
