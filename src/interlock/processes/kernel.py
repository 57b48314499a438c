"""What the kernel offers to hold processes: subreapers, pids that are still the same, cgroups.

Imported by the bare helper: the standard library's smallest modules only.
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
MARK = "interlock-"  # every directory we make in a cgroup tree begins so
OWNER = "INTERLOCK_OWNER"  # in the environment of whatever is kept: a hint for the next start, no proof
READ_BYTES = 8192

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> bool:
    """Set a property of this process; False where the system has none such."""
    try:
        return bool(_libc.prctl(option, value, 0, 0, 0) == 0)
    except AttributeError:
        return False


def unshare(what: int) -> None:
    """Leave a namespace for a new one; for PIDs it is the children who are born there."""
    _called(_libc.unshare(what))


def setns(fd: int, kind: int) -> None:
    """Enter a namespace that is open."""
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
        while piece:  # a short piece is not the end: the kernel gives a list a page at a time
            piece = os.read(fd, READ_BYTES)
            data += piece
        return data.decode("utf-8", "surrogateescape")
    finally:
        os.close(fd)


def write(path: str, text: str) -> None:
    """Write a small file that exists: cgroup files want each value in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# Processes


def children() -> list[int]:
    """Return this process's children as they are now, dead ones too. One empty answer proves nothing: ECHILD does."""
    me = os.getpid()
    try:
        return [int(pid) for pid in read(f"/proc/{me}/task/{me}/children").split()]
    except OSError:  # a kernel without that file
        return [pid for pid in pids() if (status := stat(pid)) is not None and status[1] == me]


def children_of(pid: int) -> list[int]:
    """Return the children of any process, whichever of its threads started them."""
    found: list[int] = []
    for task in _tasks(pid):
        try:
            found += [int(child) for child in read(f"/proc/{pid}/task/{task}/children").split()]
        except OSError:
            continue  # that thread has exited; its children are another's
    return found


def below(pid: int, most: int) -> frozenset[int]:
    """Return every process below one; raise OSError where that cannot be seen, or where there are more threads.

    One look may miss a process that lost its parent meanwhile and came up: two that agree are worth more.
    """
    found, rest, tasks = set[int](), [pid], 0
    while rest:
        at = rest.pop()
        threads = os.listdir(f"/proc/{at}/task")
        tasks += len(threads)
        if tasks > most:
            raise OSError(errno.E2BIG, "there is more than is looked at")
        for thread in threads:
            for child in read(f"/proc/{at}/task/{thread}/children").split():
                found.add(int(child))
                rest.append(int(child))
    return frozenset(found)


def traces(pid: int, but: int = 0) -> dict[tuple[int, int], tuple[int, int, str]]:
    """Return what each thread of a process, but one, has done so far, by process and thread. Raise OSError if unseen.

    That is when it started, how often it was switched off its processor, and its state now. One that is not running (R)
    and has the same trace as at an earlier look has not run since. CPU time, which is told in hundredths of a second,
    would not show that.
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
    """Return whether a process has more threads than its first, which may have exited alone."""
    return len(_tasks(pid)) > 1


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def pids() -> list[int]:
    """Return every process that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat(pid: int) -> tuple[str, int, int, str] | None:
    """Return (state, parent, start time, command) of a process, None if there is none."""
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
    """Return a name for a process that no other has: its pid namespace, pid and start time."""
    status = stat(pid)
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{0 if status is None else status[2]}"


def owner_lives(owner: str) -> bool | None:
    """Return whether the process of that name lives; None if it cannot be told from here."""
    parts = owner.split("-")
    if len(parts) not in (3, 4) or not all(part.isdigit() for part in parts):
        return None
    if int(parts[0]) != os.stat("/proc/self/ns/pid").st_ino:
        return None
    status = stat(int(parts[1]))
    if status is None:  # hidden from us (hidepid), or not there
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
    """Return the directory of our own cgroup v2, None if there is none."""
    return _own("cgroup2", "")


def own_cgroup_v1(controller: str) -> str | None:
    """Return the directory of our own cgroup in a version 1 hierarchy, None if there is none."""
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
        if controller in controllers.split(","):  # version 2 has the empty list, and so the empty name
            path = where
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        here = kind == version and (not controller or controller in options.split(" ")[-1].split(","))
        if here and path is not None:
            if root != "/" and not f"{path}/".startswith(f"{root}/"):
                continue  # not above our own cgroup: a bind from outside our cgroup namespace, say
            inner = path if root == "/" else path[len(root) :]
            return (point.replace("\\040", " ") + "/" + inner.strip("/")).rstrip("/")
    return None


def populated(leaf: str) -> bool:
    """Return whether anything lives in a cgroup or below it; one that is gone holds nothing."""
    try:
        return "populated 1" in read(leaf + "/cgroup.events")
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno != 19  # ENODEV: it was removed while we held it


def kill_cgroup(leaf: str) -> None:
    """KILL everything in a cgroup and below it, also what is being forked right now."""
    try:
        write(leaf + "/cgroup.kill", "1")
    except OSError:
        return  # removed, or emptied and removed by another


def remove_cgroup(path: str, seconds: float = 0.05) -> None:
    """Remove an empty cgroup; the kernel may call it busy for a moment longer."""
    until = time.monotonic() + seconds
    while True:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != 16 or time.monotonic() > until or populated(path):
                return  # not empty: whoever is in there is not ours to remove
        time.sleep(0.0005)


def remove_tree(path: str) -> None:
    """Remove a cgroup and all below it, as far as they are empty."""
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for inner in below:
        remove_tree(inner)
    remove_cgroup(path)


def file_name(text: str) -> str:
    """Return a text as a directory's name."""
    kept = "".join(letter if (letter.isalnum() and letter.isascii()) or letter in "._-" else "_" for letter in text)
    return kept.strip(".")[:100] or "_"
