"""The kernel's means to hold processes: subreapers, /proc, namespaces and cgroups.

The bare helper imports this file, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_NAME, PR_CAP_AMBIENT = 36, 38, 15, 47
PR_SET_PDEATHSIG = 1
AMBIENT_CLEAR_ALL = 4
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
MARK = "interlock-"  # the beginning of every directory that we make in a cgroup tree
# This variable in a kept process's environment names its control. It is a hint for the next start's sweep, no proof.
OWNER = "INTERLOCK_OWNER"
READ_BYTES = 8192

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> bool:
    """Set a property of this process; return False where the system does not know the property."""
    try:
        return bool(_libc.prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:
        return False


def unshare(what: int) -> None:
    """Leave a namespace for a new one. In a new PID namespace not this process but its later children are born."""
    _called(_libc.unshare(what))


def setns(fd: int, kind: int) -> None:
    """Enter the namespace of an open descriptor."""
    _called(_libc.setns(fd, kind))


def mount(what: str, where: str, kind: str | None, flags: int) -> None:
    """Mount a file system, or change how a mount is shared."""
    _called(_libc.mount(what.encode(), where.encode(), kind and kind.encode(), ctypes.c_ulong(flags), None))


def _called(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def read(path: str) -> str:
    """Return a small file's text."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(fd, READ_BYTES)
        # A short piece is not the end: the kernel gives a list page by page.
        while piece:
            piece = os.read(fd, READ_BYTES)
            data += piece
        return data.decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def write(path: str, text: str) -> None:
    """Write a small file that exists, in one write: a cgroup file takes no value in pieces."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# Processes


def children() -> list[int]:
    """Return this process's children, dead ones too. An empty answer proves nothing; only ECHILD does."""
    me = os.getpid()
    try:
        return descent(me)
    except OSError:  # a kernel without that file
        return [pid for pid in pids() if (status := stat(pid)) is not None and status[1] == me]


def children_of(pid: int) -> list[int]:
    """Return the children of any process, whichever of its threads started them."""
    found: list[int] = []
    for task in _tasks(pid):
        try:
            found += [int(child) for child in read(f"/proc/{pid}/task/{task}/children").split()]
        except OSError:
            # That thread has exited, and its children belong to another thread.
            continue
    return found


def descent(pid: int) -> list[int]:
    """Return the children that the main thread of a process started or inherited."""
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def threads(pid: int) -> int:
    """Return how many threads a process has: its directory has a link for each, besides the two of every directory."""
    return os.stat(f"/proc/{pid}/task").st_nlink - 2


def below(pid: int, most: int) -> frozenset[int]:
    """Return every process below `pid`; raise OSError if one cannot be seen, or if there are more than `most` threads.

    One look may miss a process that loses its parent and moves up meanwhile, so a caller compares two looks.
    """
    found, rest, tasks = set[int](), [pid], 0
    while rest:
        at = rest.pop()
        threads = os.listdir(f"/proc/{at}/task")
        tasks += len(threads)
        if tasks > most:
            raise OSError(errno.E2BIG, "there are more threads than are looked at")
        for thread in threads:
            for child in read(f"/proc/{at}/task/{thread}/children").split():
                found.add(int(child))
                rest.append(int(child))
    return frozenset(found)


def traces(pid: int, but: int = 0) -> dict[tuple[int, int], tuple[int, int, str]]:
    """Return the trace of each thread of a process except thread `but`, by process and thread.

    A trace is (start time, context switches, state). A thread that does not run now (its state is not R) and has the
    same trace as at an earlier look has not run since. CPU time would not show that: the kernel tells it in hundredths
    of a second. Raise OSError if a thread cannot be seen.
    """
    found = {}
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        if thread != but:
            where = f"/proc/{pid}/task/{thread}"
            lines = dict(line.partition(":")[::2] for line in read(where + "/status").splitlines())
            try:
                switched = int(lines["voluntary_ctxt_switches"]) + int(lines["nonvoluntary_ctxt_switches"])
                state = lines["State"].split()[0]
            except (KeyError, IndexError, ValueError):
                raise OSError(errno.ENOSYS, "this system does not count what a thread does") from None
            found[pid, thread] = (_fields(where)[2], switched, state)
    return found


def has_threads(pid: int) -> bool:
    """Return whether a process has threads besides its first. (The first may have exited and leave them running.)"""
    return len(_tasks(pid)) > 1


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def pids() -> list[int]:
    """Return the pids of all processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid: int) -> tuple[str, int, int, str] | None:
    """Return (state, parent, start time, command) of a process, or None if there is no such process."""
    try:
        return _fields(f"/proc/{pid}")
    except OSError:
        return None


def _fields(where: str) -> tuple[str, int, int, str]:
    text = read(where + "/stat")
    command, _, rest = text[text.index("(") + 1 :].rpartition(") ")
    fields = rest.split()
    return fields[0], int(fields[1]), int(fields[19]), command


def describe(pid: int) -> str:
    """Name a process for a person."""
    status = stat(pid)
    return f"process {pid}" if status is None else f"process {pid} ({status[3]}, state {status[0]})"


def owner_of(pid: int) -> str:
    """Return a name that no other process has: PID namespace, pid and start time."""
    status = stat(pid)
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{0 if status is None else status[2]}"


def owner_lives(owner: str) -> bool | None:
    """Return whether the process that `owner_of` named lives; None if that cannot be seen from here."""
    parts = owner.split("-")
    if len(parts) not in (3, 4) or not all(part.isdigit() for part in parts):
        return None
    if int(parts[0]) != os.stat("/proc/self/ns/pid").st_ino:
        return None
    status = stat(int(parts[1]))
    # The process is gone, or hidden from us (hidepid).
    if status is None:
        try:
            os.kill(int(parts[1]), 0)
        except PermissionError:
            return None
        except OSError:
            return False
        return None
    return status[2] == int(parts[2]) and status[0] not in "ZX"


# Cgroups


def own_cgroup() -> str | None:
    """Return the directory of this process's cgroup v2, or None."""
    return _own("cgroup2", "")


def own_cgroup_v1(controller: str) -> str | None:
    """Return the directory of this process's cgroup in a version 1 hierarchy, or None."""
    return _own("cgroup", controller)


def _own(version: str, controller: str) -> str | None:
    try:
        mounts = read("/proc/self/mountinfo").splitlines()
        lines = read("/proc/self/cgroup").splitlines()
    except OSError:
        return None
    path = None
    for line in lines:
        _, controllers, where = line.split(":", 2)
        # Version 2 has an empty list of controllers, and so matches the empty name.
        if controller in controllers.split(","):
            path = where
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        here = kind == version and (not controller or controller in options.split(" ")[-1].split(","))
        if here and path is not None:
            # This mount is not above our own cgroup: it is a bind from outside our cgroup namespace, say.
            if root != "/" and not f"{path}/".startswith(f"{root}/"):
                continue
            inner = path if root == "/" else path[len(root) :]
            return (point.replace("\\040", " ") + "/" + inner.strip("/")).rstrip("/")
    return None


def populated(leaf: str) -> bool:
    """Return whether a process lives in a cgroup or below it; a cgroup that was removed holds none."""
    try:
        return "populated 1" in read(leaf + "/cgroup.events")
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != 19  # ENODEV: removed while it was open


def kill_cgroup(leaf: str) -> None:
    """KILL every process in a cgroup and below it, including a fork that is under way."""
    try:
        write(leaf + "/cgroup.kill", "1")
    except OSError:
        # The cgroup is gone: another process has emptied and removed it.
        return


def remove_cgroup(path: str, seconds: float = 0.05) -> None:
    """Remove an empty cgroup. The kernel may call it busy for a moment, so try for some `seconds`."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A cgroup with a process in it stays: that process is not ours.
            if error.errno != 16 or time.monotonic() > until or populated(path):
                return
        time.sleep(0.0005)


def remove_tree(path: str) -> None:
    """Remove a cgroup and those below it, as far as they are empty."""
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for inner in below:
        remove_tree(inner)
    remove_cgroup(path)


def file_name(text: str) -> str:
    """Return a text as the name of a directory."""
    kept = "".join(letter if (letter.isalnum() and letter.isascii()) or letter in "._-" else "_" for letter in text)
    return kept.strip(".")[:100] or "_"
