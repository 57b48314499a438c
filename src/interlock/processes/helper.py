"""The helper: a bare process beside control that forks a keeper for each containment.

1. Control executes the helper (`python -I -S`) and never forks itself for it. The helper is small, because every keeper
   is a fork of it: whatever the helper imports, each keeper weighs.
2. The helper is a subreaper. A child of the helper that is no keeper has lost its keeper, and the helper ends it.
3. Before it serves, the helper finds the grade of the machine by a real trial, and ends the processes that a dead
   control left behind.
4. When control dies, the helper stays until its keepers are gone, LINGER_SECONDS at most.

Keepers answer control on sockets of their own. The helper only makes them, and stands in for one that was killed or
does not answer. When helper and keeper die together, control itself ends what they left (`local.py`).
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from _socket import socket

from interlock.processes import kernel, wire
from interlock.processes.keeper import LINGER_SECONDS, Keeper
from interlock.processes.probe import probe, sweep
from interlock.processes.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_SECONDS = 0.1  # between two looks after control's death
# A keeper that has not ended its processes so long after control's death is killed, and the helper stands in for it.
INSIST_SECONDS = 1.0
RLIMIT_NPROC, RLIMIT_AS = 6, 9


class ContainmentRecord:
    """A containment: its number, its leaf, its run's directories, and the helper's end of the keeper's lifeline."""

    def __init__(self, number: int, leaf: str | None, of_run: list[str], lifeline: int) -> None:
        self.number = number
        self.leaf = leaf
        self.of_run = of_run
        self.lifeline = lifeline


class Helper:
    """Forks keepers, and stands in for those that die."""

    keeper = Keeper  # the class of the keepers that it forks

    def __init__(self, sock: socket, gateway: int, owner: str) -> None:
        self._sock = sock
        self._gateway = gateway
        self._owner = owner
        self._keepers: dict[int, ContainmentRecord] = {}  # by the keeper's pid
        self._newest: ContainmentRecord | None = None  # the containment whose keeper is being forked
        # Containments whose keepers died without having seen them empty.
        self._lost: list[ContainmentRecord] = []
        self._tree = Tree()
        self._runs: dict[str, int] = {}  # directory of a run → number of containments in it
        self._outbox: list[tuple[Any, ...]] = []
        self._closing_at: float | None = None
        self._facts: dict[str, Any] = {}
        self._made: set[str] = set()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        kernel.prctl(kernel.PR_SET_NAME, b"interlock-help")
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        if gateway >= 0:
            self._poll.register(gateway, select.POLLIN)

    # Opening

    def open(self, wanted: str | None, apart: bool) -> None:
        """Try what the machine allows, end leftovers of dead controls, and tell control both."""
        self._facts = facts = probe(wanted, apart)
        leftovers_ended = sweep(facts)
        self._tell("ready", facts, leftovers_ended, os.getpid())

    # The loop

    def run(self) -> None:
        """Serve until control is gone and no keeper is left."""
        gc.collect()
        gc.freeze()
        while self._closing_at is None or self._keepers or self._lost:
            busy = bool(self._lost)
            for fd, _ in self._poll.poll(self._timeout(busy)):
                if fd == self._sock.fileno():
                    self._serve()
                elif fd == self._wake:
                    os.read(self._wake, 4096)
                elif fd == self._gateway:
                    self._close(fd)
            self._reap()
            self._end_orphans()
            if self._closing_at is not None and self._overdue(time.monotonic() - self._closing_at):
                break
        for directory in self._bases():
            kernel.remove_tree(directory)

    def _overdue(self, seconds: float) -> bool:
        """Kill keepers that do nothing, since a process may have stopped them; return whether it is time to give up."""
        if seconds > INSIST_SECONDS:
            for pid in self._keepers:
                os.kill(pid, signal.SIGKILL)
        return seconds > LINGER_SECONDS

    def _timeout(self, busy: bool) -> float | None:
        if busy:
            return self._tree.pause * 1000
        return None if self._closing_at is None else POLL_SECONDS * 1000

    def _close(self, fd: int) -> None:
        """Note that control is gone. The keepers see that for themselves."""
        try:
            self._poll.unregister(fd)
        except KeyError:
            # A message that could not be sent has shown it before.
            return
        if self._closing_at is None:
            self._closing_at = time.monotonic()

    def _serve(self) -> None:
        while True:
            try:
                received = wire.receive(self._sock)
            except wire.Closed:
                self._close(self._sock.fileno())
                return
            if received is None:
                break
            message, fds = received
            try:
                if message[0] == "keep":
                    self._make_keeper(message, fds)
                elif message[0] == "finish":
                    self._finish(message[1])
                elif message[0] == "open":
                    self.open(message[1], message[2])
            finally:
                wire.close_all(fds)
        self._flush()

    # Keepers

    def _make_keeper(self, message: tuple[Any, ...], fds: list[int]) -> None:
        _, number, names, limits, grace, once, user = message
        if fds[:1] in ([], [-1]):
            self._tell("gone", number, 0, "no descriptors are left")
            return
        record = ContainmentRecord(number, None, [], -1)
        mine = -1
        try:
            record.leaf, beside, rlimits = self._prepare(record.of_run, names, limits)
            mine, record.lifeline = os.pipe2(os.O_CLOEXEC)
            self._newest = record
            pid = os.fork()
        except OSError as error:
            wire.close_all([mine, record.lifeline])
            self._forget(record)
            self._tell("gone", number, 0, f"no keeper could be made: {error}")
            return
        if pid == 0:
            self._become_keeper(fds[0], mine, record.leaf, beside, rlimits, grace, once, user)
        os.close(mine)
        self._keepers[pid] = record

    def _forget(self, record: ContainmentRecord) -> None:
        """Remove the leaf of an empty containment; the last containment of a run also removes the run's directories."""
        if record.leaf is not None:
            kernel.remove_cgroup(record.leaf)
        for directory in record.of_run:
            self._runs[directory] -= 1
            if not self._runs[directory]:
                del self._runs[directory]
                kernel.remove_tree(directory)

    def _become_keeper(
        self,
        fd: int,
        lifeline: int,
        leaf: str | None,
        beside: list[tuple[str, str]],
        rlimits: list[tuple[int, int]],
        grace: float,
        once: bool,
        user: tuple[int, int, list[int]] | None,
    ) -> None:
        """Be a keeper, in the fork. Never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            self._close_all_but(fd, lifeline)
            self.keeper(
                socket(fileno=fd),
                lifeline,
                self._gateway,
                leaf=leaf,
                home=self._facts["home"],
                limits=beside,
                rlimits=rlimits,
                grade=self._facts["grade"],
                grace=grace,
                once=once,
                user=user,
                apart=user is not None and self._facts["apart"],
            ).run()
            status = 0
        finally:
            os._exit(status)

    def _close_all_but(self, fd: int, lifeline: int) -> None:
        spared = sorted({0, 1, 2, fd, lifeline, *([self._gateway] if self._gateway >= 0 else [])})
        for low, high in zip(spared, [*spared[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)

    def _prepare(
        self, of_runs: list[str], names: tuple[str, str], limits: tuple[int | None, int | None]
    ) -> tuple[str | None, list[tuple[str, str]], list[tuple[int, int]]]:
        """Make the leaf, and the limits of its whole run; return (leaf, version 1 leaves, rlimits).

        A directory stands for the run, and a leaf in it for each keeper: the limits bound the run as a whole. They are
        set by version 2 controllers, else by version 1 leaves beside (on hybrid machines), else by rlimits.
        """
        facts, beside, rlimits = self._facts, [], []
        of_run, of_keeper = names
        leaf = None
        if facts["grade"] == "cgroup":
            above = self._directory(facts["home"], of_run, of_runs)
            leaf = f"{above}/{of_keeper}"
            os.makedirs(leaf, 0o755, exist_ok=True)
        for what, most in (("pids", limits[0]), ("memory", limits[1])):
            if most is None:
                continue
            means = facts[what]
            if means == "v2" and leaf is not None:
                kernel.write(f"{os.path.dirname(leaf)}/{what}.max", str(most))
            elif means == "v1":
                home = facts[f"{what}_home"]
                above = self._directory(home, of_run, of_runs)
                file = "pids.max" if what == "pids" else "memory.limit_in_bytes"
                kernel.write(f"{above}/{file}", str(most))
                beside.append((above, home))
            elif what == "memory":
                rlimits.append((RLIMIT_AS, most))
            # The kernel never refuses root a process because of RLIMIT_NPROC.
            elif os.getuid() != 0:
                rlimits.append((RLIMIT_NPROC, most + _tasks_of_user()))
        return leaf, beside, rlimits

    def _directory(self, home: str, of_run: str, of_runs: list[str]) -> str:
        base = f"{home}/{kernel.MARK}{self._owner}"
        if base not in self._made:
            os.makedirs(base, 0o755, exist_ok=True)
            if "v2" in (self._facts["pids"], self._facts["memory"]) and home == self._facts["home"]:
                wanted = [f"+{what}" for what in ("pids", "memory") if self._facts[what] == "v2"]
                kernel.write(base + "/cgroup.subtree_control", " ".join(wanted))
            self._made.add(base)
        directory = f"{base}/{of_run}"
        os.makedirs(directory, 0o755, exist_ok=True)
        self._runs[directory] = self._runs.get(directory, 0) + 1
        of_runs.append(directory)
        return directory

    def _bases(self) -> list[str]:
        """Return the directories to remove at the end, even those that only another helper of this control made."""
        homes = {self._facts.get(name) for name in ("home", "pids_home", "memory_home")}
        return sorted(f"{home}/{kernel.MARK}{self._owner}" for home in homes if home is not None)

    def _finish(self, number: int) -> None:
        """End a keeper that does not answer control; the helper then stands in for it."""
        for pid, record in self._keepers.items():
            if record.number == number:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap every dead child. The processes of a keeper that was killed become children of the helper."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if dead is None:
                break
            if self._lost and dead.si_pid not in self._keepers:
                self._tree.strike(dead.si_pid)
            pid, status = os.waitpid(dead.si_pid, 0)
            if pid not in self._keepers:
                continue
            record = self._keepers.pop(pid)
            os.close(record.lifeline)
            if status == 0:
                self._forget(record)
                self._tell("gone", record.number, 0, "")
            else:
                self._lost.append(record)
        self._flush()

    def _end_orphans(self) -> None:
        """End the processes that have lost their keeper, and tell control when they were seen gone."""
        # True here: whatever a dead keeper kept is in its leaf, or a child of the helper or below one, since the
        # helper is a subreaper too. Orphans of several dead keepers cannot be told apart, so no containment is told as
        # gone before every child that is no keeper is reaped. Told sooner, a receipt would say drained while a process
        # of its run lives.
        if not self._lost:
            return
        for lost in self._lost:
            if lost.leaf is not None and kernel.populated(lost.leaf):
                kernel.kill_cgroup(lost.leaf)
        self._tree.end(spare=self._keepers)
        self._reap()
        if any(pid not in self._keepers for pid in kernel.children()):
            return
        self._tree.over()
        for lost in list(self._lost):
            if lost.leaf is None or not kernel.populated(lost.leaf):
                self._lost.remove(lost)
                self._forget(lost)
                self._tell("gone", lost.number, 1, "its keeper was killed")

    # Telling

    def _tell(self, *message: Any) -> None:
        if self._closing_at is None:
            self._outbox.append(message)
            self._flush()

    def _flush(self) -> None:
        while self._outbox and self._closing_at is None:
            try:
                wire.send(self._sock, self._outbox[0])
            except BlockingIOError:
                break
            except OSError:
                self._close(self._sock.fileno())
                return
            del self._outbox[0]
        if self._closing_at is None:
            self._poll.modify(self._sock.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0))


def _tasks_of_user() -> int:
    me, count = os.getuid(), 0
    for pid in kernel.pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid == me:
                count += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return count


def main(fd: int, gateway: int, owner: str) -> None:
    """Be the helper of the control that left one end of a socket as descriptor `fd`."""
    gc.disable()
    os.chdir("/")
    try:
        pidfd = os.pidfd_open(gateway)
    except (OSError, AttributeError):
        pidfd = -1
    # Control died before the pidfd was opened, so the pidfd may be another process's.
    if os.getppid() != gateway:
        sys.exit(0)
    Helper(socket(fileno=fd), pidfd, owner).run()
