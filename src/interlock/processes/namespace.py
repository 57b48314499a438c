"""A PID namespace for the processes of one keeper, so that agents of one user cannot reach other containments.

1. The keeper stays outside. The processes it starts are born inside, and see, signal and trace only each other: they
   have a /proc of their own, in a mount namespace of their own.
2. The first process inside, the init, is ours and root's, so no process of the agent's user can touch it. The init
   adopts orphans, and ends everything inside when the keeper tells it to. It dies with its keeper (a parent-death
   signal), and the kernel then ends the rest.
3. The init exits once it was told that it may, and the kernel says (ESRCH) that no other process is inside.

The init is a program of our own. Were the agent's program the first process inside, TERM would not end it, its exit
would end the processes it left in the background, and nobody would reap orphans.

Namespaces are used instead of a user for each session. A spare host is forked before its session is known, so the
agent's files would belong to a user that changes from host to host, and no such user has a home directory. With
namespaces all files are the one user's, and only processes are apart. The price is CAP_SYS_ADMIN, which root in a plain
container does not have.

The bare helper imports this file, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import os
import signal

from interlock.processes import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# The keeper's orders to the init, as signals. Of several pending signals the kernel delivers the lowest number first,
# so COUNT must be the lowest: an init that hears LEAVE before COUNT would not count the last processes it reaps.
COUNT, LEAVE, END = signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM
HEARD = (COUNT, LEAVE, END, signal.SIGCHLD)
READY = b"+"


class Namespace:
    """One namespace, seen from its keeper. The constructor raises OSError where the machine allows no namespace."""

    def __init__(self) -> None:
        self.init = 0  # the pid of the init, 0 once it was reaped
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
        """The keeper's descriptors that no process inside may have."""
        return {fd for fd in (self._outside, self._inside, self._told) if fd >= 0}

    def enter(self) -> None:
        """Step into the mount namespace of the processes inside; the working directory becomes the root."""
        kernel.setns(self._inside, kernel.CLONE_NEWNS)

    def leave(self) -> None:
        """Step back into the keeper's own mount namespace; the working directory becomes the root."""
        kernel.setns(self._outside, kernel.CLONE_NEWNS)

    def count(self) -> None:
        """Tell the init to count the orphans that end from now on."""
        self._signal(COUNT)

    def may_go(self) -> None:
        """Tell the init to exit as soon as no other process is inside; the keeper has no children of its own left."""
        self._signal(LEAVE)

    def end(self) -> None:
        """Tell the init to KILL everything inside, and to exit."""
        self._signal(END)

    def _signal(self, number: int) -> None:
        if self.init:
            os.kill(self.init, number)

    def reaped(self) -> int:
        """Note that the init was reaped, and so everything inside is gone; return how many orphans it counted."""
        self.init = 0
        try:
            return int(os.read(self._told, 20) or b"0")
        except ValueError:
            return 0

    def close(self) -> None:
        """Close the keeper's descriptors of the namespace."""
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
    """Mount a /proc that shows this PID namespace only, in a mount namespace of its own: nothing changes outside."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    os.chdir("/")


def _attend() -> int:
    """Reap until the keeper says LEAVE or END and the init is alone; return the number reaped since COUNT."""
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
    """Signal every process inside except the init, in one step of the kernel; return whether there is one, dead or not.

    A child of the keeper's counts until the keeper has reaped it; the keeper then says so with `may_go`.
    """
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return False
    return True
