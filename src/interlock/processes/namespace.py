"""A PID namespace for what one keeper holds, so that processes of one user do not reach those of other containments.

1. The keeper stays outside. Whatever it starts is born inside, and sees, signals and traces nothing but what is there:
   its /proc is one of its own, in a mount namespace of its own.
2. The first process inside, the init, is ours and root's: none of theirs can touch it. It takes the orphans in, and
   ends everything inside when it is told to, or when the keeper dies. The kernel ends the rest with it.
3. It goes when nobody else is inside, by the kernel's word (ESRCH), once it was told that it may.

Imported by the bare helper: the standard library's smallest modules only.
"""

from __future__ import annotations

import os
import signal

from interlock.processes import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# What the keeper says. Of several that wait the kernel gives the lowest number first: an init that was told to leave
# before it was told to count would not count the last it reaps.
COUNT, LEAVE, END = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM
HEARD = (COUNT, LEAVE, END, signal.SIGCHLD)
READY = b"+"


class Namespace:
    """One namespace, seen from its keeper. Making it raises OSError where the machine does not allow it."""

    def __init__(self) -> None:
        self.init = 0  # its pid, 0 when it was reaped
        self._outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._inside = self._told = -1
        telling = -1
        try:
            self._told, telling = os.pipe2(os.O_CLOEXEC)
            kernel.unshare(kernel.CLONE_NEWPID)
            self.init = os.fork()
            if self.init == 0:
                _be_init(telling)
            os.close(telling)
            telling = -1
            said = os.read(self._told, 200)
            if said != READY:
                os.waitpid(self.init, 0)
                self.init = 0
                raise OSError(int(said or b"5"), os.strerror(int(said or b"5")))
            self._inside = os.open(f"/proc/{self.init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            if telling >= 0:
                os.close(telling)
            raise

    @property
    def descriptors(self) -> set[int]:
        """Those of ours that no process inside may have."""
        return {fd for fd in (self._outside, self._inside, self._told) if fd >= 0}

    def enter(self) -> None:
        """See files as those inside do, and be in the root directory."""
        kernel.setns(self._inside, kernel.CLONE_NEWNS)

    def leave(self) -> None:
        """See files as ever, and be in the root directory."""
        kernel.setns(self._outside, kernel.CLONE_NEWNS)

    def count(self) -> None:
        """Count the orphans that end from now on."""
        self._signal(COUNT)

    def may_go(self) -> None:
        """None of the keeper's own children is left: go as soon as nobody else is inside."""
        self._signal(LEAVE)

    def end(self) -> None:
        """KILL everything inside, and go."""
        self._signal(END)

    def _signal(self, number: int) -> None:
        if self.init:
            os.kill(self.init, number)

    def reaped(self) -> int:
        """The init is gone, and so is everything inside; return how many orphans it has counted."""
        self.init = 0
        try:
            return int(os.read(self._told, 20) or b"0")
        except ValueError:
            return 0

    def close(self) -> None:
        """Let go of our descriptors."""
        for fd in self.descriptors:
            os.close(fd)
        self._outside = self._inside = self._told = -1


def _be_init(telling: int) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.prctl(kernel.PR_SET_NAME, b"interlock-init")
        os.closerange(0, telling)
        os.closerange(telling + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            _mount_proc()
        except OSError as error:
            os.write(telling, str(error.errno).encode())
            os._exit(1)
        os.write(telling, READY)
        os.write(telling, str(_attend()).encode())
        status = 0
    finally:
        os._exit(status)


def _mount_proc() -> None:
    """See only what is in our PID namespace, and that nobody outside sees the difference."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    os.chdir("/")


def _attend() -> int:
    """Reap until we are told to go and are alone; return how many were reaped since we were told to count."""
    counting = leaving = ending = False
    ended = 0
    while True:
        number = signal.sigwait(HEARD)
        counting = counting or number == COUNT
        ending = ending or number == END
        leaving = leaving or ending or number == LEAVE
        if ending:
            _all(signal.SIGKILL)
        reaped = _reap()
        ended += reaped if counting else 0
        if leaving and not _all(0):
            return ended


def _reap() -> int:
    count = 0
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            count += 1
    except ChildProcessError:
        return count
    return count


def _all(number: int) -> bool:
    """Signal everyone inside but ourselves, in one step of the kernel's; return whether there is anyone, dead or not.

    A child of the keeper's is there until the keeper has reaped it, and then says so: `may_go`.
    """
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return False
    return True
