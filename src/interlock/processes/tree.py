"""Ends what is below this process, also what forks faster than it can be killed one by one.

1. Stopped first, killed second. A stopped process forks no more and keeps its place under the limit of processes; a
   KILL one by one makes room for the forks of the others.
2. Only through pidfds, each opened before the process is seen to be the child of one that is ours: a pid that is
   another's by now is never signalled.
3. A process group goes whole. The kernel gives a group's KILL to a fork that is under way as well. Its number is used
   only while a dead child of ours that was not reaped has it, so it cannot be another's.

Imported by the bare helper: the standard library's smallest modules only.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from interlock.processes import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container

STOPS = 10  # to one process, then it is killed: others wake it as fast as it is stopped, or it cannot be stopped
FRUITLESS_SECONDS = 0.5  # without a death or a find, after which it is looked seldom: KILL does not reach all states
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.002, 0.1
STOPPED, DEAD = ("T", "t"), ("Z", "X")  # states, as /proc has them


class Tree:
    """Everything below this process. `meanwhile` is called for each process that is looked at: a look may take long."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self._held: dict[int, int] = {}  # pid → pidfd
        self._stops: dict[int, int] = {}  # sent to each of those
        self._killed: set[int] = set()  # of those
        self._struck: set[int] = set()  # groups, since the last look
        self._calm = True
        self._moved_at = 0.0  # when something was found, or died

    @property
    def pause(self) -> float:
        """How many seconds to wait for a death before looking again: none while there may be more to find."""
        if not self._calm:
            return 0.0
        fruitless = time.monotonic() > self._moved_at + FRUITLESS_SECONDS
        return LAST_PAUSE_SECONDS if fruitless else FIRST_PAUSE_SECONDS

    def end(self, spare: Container[int] = ()) -> None:
        """Look once, and STOP what runs; if nothing does, KILL all of it. `spare`: children, with what is below them.

        To be called until nothing is left, with a `pause` between. The KILL waits for the last to have stopped: one
        that is being stopped may be in the middle of a fork, which goes through as soon as there is room for it.
        """
        self._let_go_of_the_gone()
        self._struck.clear()
        self._calm = self._stop_all(spare)
        if not self._calm or not self._moved_at:
            self._moved_at = time.monotonic()
        if self._calm:
            for pid, pidfd in self._held.items():
                self._kill(pid, pidfd)

    def over(self) -> None:
        """Nothing is left: hold no descriptor of what is gone."""
        for pid, pidfd in list(self._held.items()):
            self._let_go(pid, pidfd)

    def strike(self, pid: int) -> None:
        """KILL the process group of a dead child that is about to be reaped."""
        self._moved_at = time.monotonic()
        try:
            group = os.getpgid(pid)
            if group not in self._struck and os.getsid(pid) != os.getsid(0):
                self._struck.add(group)
                os.killpg(group, signal.SIGKILL)
        except OSError:
            return  # it was the last of its group

    def _stop_all(self, spare: Container[int]) -> bool:
        """Walk down and STOP whatever runs; return whether nothing did, and all of it was known."""
        me, calm = os.getpid(), True
        rest = [(me, pid) for pid in kernel.children() if pid not in spare]
        met: set[int] = set()
        while rest:
            parent, pid = rest.pop()
            if pid in met:
                continue
            met.add(pid)
            self._meanwhile()
            if pid not in self._killed and self._stop(parent, pid):
                calm = False
            if pid in self._held:
                rest += [(pid, child) for child in kernel.children_of(pid)]
        return calm

    def _stop(self, parent: int, pid: int) -> bool:
        """STOP a process unless it is stopped; return whether it ran, or was not known yet."""
        known = pid in self._held
        pidfd = self._held[pid] if known else self._open(parent, pid)
        if pidfd is None:
            return False
        state = self._state(parent, pid)
        if state in DEAD or (state is None and not known):
            self._let_go(pid, pidfd)
            return False
        self._held[pid] = pidfd
        if state in STOPPED:
            return not known
        self._stops[pid] = self._stops.get(pid, 0) + 1
        if self._stops[pid] > STOPS:
            self._kill(pid, pidfd)
        else:
            _send(pidfd, signal.SIGSTOP)
        return True

    def _state(self, parent: int, pid: int) -> str | None:
        """Return the state of a child of `parent`, None if it is not that, or not any more."""
        status = kernel.stat(pid)
        if status is None or status[1] != parent:
            return None
        if parent in self._held and not _send(self._held[parent], 0):
            return None  # the parent's pid may be another's by now
        return "R" if status[0] == "Z" and kernel.has_threads(pid) else status[0]

    def _open(self, parent: int, pid: int) -> int | None:
        for _ in range(2):
            try:
                return os.pidfd_open(pid)
            except ProcessLookupError:
                return None
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    break
                for held, pidfd in list(self._held.items()):  # no descriptor is left: these make room
                    self._kill(held, pidfd)
                    self._let_go(held, pidfd)
        if parent == os.getpid():  # not reaped by us, so the pid is its own
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                return None
        return None

    def _kill(self, pid: int, pidfd: int) -> None:
        if pid not in self._killed:
            self._killed.add(pid)
            _send(pidfd, signal.SIGKILL)

    def _let_go_of_the_gone(self) -> None:
        for pid, pidfd in list(self._held.items()):
            if not _send(pidfd, 0):
                self._let_go(pid, pidfd)

    def _let_go(self, pid: int, pidfd: int) -> None:
        self._held.pop(pid, None)
        self._stops.pop(pid, None)
        self._killed.discard(pid)
        os.close(pidfd)


def _send(pidfd: int, number: int) -> bool:
    """Signal a process; return False if it was reaped, so that its pid may be another's."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # not ours to end: then it is stuck, and told as such
    return True
