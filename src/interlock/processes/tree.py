"""Ends every process below this one, even processes that fork faster than they can be killed one by one.

1. A process is stopped first and killed second. A stopped process forks no more, and keeps its place under the limit of
   processes. A KILL frees that place, and the forks of the other processes take it: killed one by one, with looks
   between, a bomb of 300 processes never ends.
2. Processes are signalled only through pidfds. Each pidfd is opened before its process is seen to be the child of a
   process of ours, so a recycled pid is never signalled.
3. A process group is killed as a whole, because the kernel gives the KILL of a group to a fork under way as well. A
   group's number is used only while a dead, unreaped child of ours is in it, so it cannot be another group's.
4. A process that others wake again and again is killed after STOPS signals.

The bare helper imports this file, so it imports only the smallest modules of the standard library.
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

# STOP signals to one process before it is killed: others may wake it as fast as it is stopped, or it cannot be stopped.
STOPS = 10
# After so long without a death or a new process, looks become rare: a KILL does not end a process in every state.
FRUITLESS_SECONDS = 0.5
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.002, 0.1
STOPPED, DEAD = ("T", "t"), ("Z", "X")  # states, as /proc has them


class Tree:
    """Every process below this one. `meanwhile` is called for each process in a look, since a look may take long."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile
        self._held: dict[int, int] = {}  # pid → pidfd
        self._stops: dict[int, int] = {}  # STOP signals sent, by pid
        self._killed: set[int] = set()  # pids in `_held` that were sent KILL
        self._struck: set[int] = set()  # groups that were sent KILL since the last look
        self._calm = True
        self._moved_at = 0.0  # when a process was found, or died

    @property
    def pause(self) -> float:
        """The seconds to wait for a death before the next look: none while the last look found a process that ran."""
        if not self._calm:
            return 0.0
        fruitless = time.monotonic() > self._moved_at + FRUITLESS_SECONDS
        return LAST_PAUSE_SECONDS if fruitless else FIRST_PAUSE_SECONDS

    def end(self, spare: Container[int] = ()) -> None:
        """Look once and STOP every process that runs; if none runs, KILL all of them.

        `spare` names children to leave alone, with everything below them. Call `end` until nothing is left, with a
        `pause` between two calls.
        """
        # No KILL goes out before a whole look has found every process stopped. A process that was sent STOP in the
        # middle of a fork still finishes the fork as soon as there is room under the limit, and a KILL of another
        # process makes that room. With an earlier KILL a fork bomb outlives its keeper (tests/races.md, race 70).
        self._close_reaped()
        self._struck.clear()
        self._calm = self._stop_all(spare)
        if not self._calm or not self._moved_at:
            self._moved_at = time.monotonic()
        if self._calm:
            for pid, pidfd in self._held.items():
                self._kill(pid, pidfd)

    def over(self) -> None:
        """Close every pidfd: nothing is left below this process."""
        for pid, pidfd in list(self._held.items()):
            self._close(pid, pidfd)

    def strike(self, pid: int) -> None:
        """KILL the process group of a dead child that is about to be reaped."""
        self._moved_at = time.monotonic()
        try:
            group = os.getpgid(pid)
            if group not in self._struck and os.getsid(pid) != os.getsid(0):
                self._struck.add(group)
                os.killpg(group, signal.SIGKILL)
        except OSError:
            # The child was the last member of its group.
            return

    def _stop_all(self, spare: Container[int]) -> bool:
        """Walk down and STOP every process that runs; return True if none ran and none was new."""
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
        """STOP a process unless it is stopped already; return whether it ran, or was not known yet."""
        known = pid in self._held
        pidfd = self._held[pid] if known else self._open(parent, pid)
        if pidfd is None:
            return False
        state = self._state(parent, pid)
        if state in DEAD or (state is None and not known):
            self._close(pid, pidfd)
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
        """Return the state of a child of `parent`, or None if the process is no child of `parent` (any more)."""
        status = kernel.stat(pid)
        if status is None or status[1] != parent:
            return None
        # A parent that was reaped proves nothing: its pid may be another process's by now.
        if parent in self._held and not _send(self._held[parent], 0):
            return None
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
                # No descriptor is left: kill the processes that are held, and close their pidfds to make room.
                for held, pidfd in list(self._held.items()):
                    self._kill(held, pidfd)
                    self._close(held, pidfd)
        # Without a pidfd only a child of this process is killed: it is not reaped, so the pid is its own.
        if parent == os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                return None
        return None

    def _kill(self, pid: int, pidfd: int) -> None:
        if pid not in self._killed:
            self._killed.add(pid)
            _send(pidfd, signal.SIGKILL)

    def _close_reaped(self) -> None:
        for pid, pidfd in list(self._held.items()):
            if not _send(pidfd, 0):
                self._close(pid, pidfd)

    def _close(self, pid: int, pidfd: int) -> None:
        self._held.pop(pid, None)
        self._stops.pop(pid, None)
        self._killed.discard(pid)
        os.close(pidfd)


def _send(pidfd: int, number: int) -> bool:
    """Signal a process; return False if it was reaped, since its pid may then be another process's."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    except OSError:
        # This process may not signal it. The process is then told as stuck.
        return True
    return True
