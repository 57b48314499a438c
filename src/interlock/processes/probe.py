"""Finds by trial which grade the machine allows, and sweeps up the processes that dead controls left on it.

1. Each grade is tried by ending a real process. A kernel that has the files may still refuse to use them.
2. The sweep ends leaves whose owner is dead, and orphans that carry a dead owner's mark. The mark alone proves nothing,
   since a service that a kept process starts inherits it. So a marked process with a living parent outside the kept
   tree is left alone.
3. A process that no KILL ends (frozen, or waiting in the kernel) is named in the log and by the doctor, and receipts of
   the dead control stay `unconfirmed`.

The bare helper imports this file, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import time

from interlock.processes import kernel
from interlock.processes.namespace import Namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TRIAL_SECONDS = 5.0  # long, since a loaded machine must not be taken for one without cgroups
SWEEP_SECONDS = 2.0


def probe(wanted: str | None = None, apart: bool = False) -> dict[str, Any]:
    """Try the grades, best first, each by ending a real process; return the facts, with why no better grade works.

    With `apart`, try also whether processes of one user can be kept apart.
    """
    home = kernel.own_cgroup()
    why = ""
    grade = "group"
    if wanted in (None, "cgroup"):
        why = "no cgroup v2 is mounted" if home is None else try_cgroup(home)
        if not why:
            grade = "cgroup"
    if grade != "cgroup" and wanted in (None, "cgroup", "keeper"):
        trouble = try_subreaper()
        if trouble:
            why = f"{why}; {trouble}" if why else trouble
        else:
            grade = "keeper"
    facts: dict[str, Any] = {"grade": grade, "home": home if grade == "cgroup" else None, "why": why}
    for what in ("pids", "memory"):
        facts[what], facts[f"{what}_home"] = _limit_by(what, facts["home"])
    if apart:
        facts["together"] = "the grade is group" if grade == "group" else try_namespace()
    facts["apart"] = facts.get("together") == ""
    return facts


LEFT_SECONDS = 30  # how long a trial's child lives at most if the trying process is killed


def trial_leaf(home: str) -> str:
    """Return the leaf of a trial. It is named by its owner, so a later sweep finds the leaf of a killed trial."""
    return f"{home}/{kernel.MARK}{kernel.owner_of(os.getpid())}"


def try_cgroup(home: str) -> str:
    """Hold a process in a leaf and end it by the leaf; return what was in the way, or "" if it worked."""
    leaf = trial_leaf(home)
    try:
        os.mkdir(leaf, 0o755)
    except OSError as error:
        return f"no cgroup can be made in {home} ({error.strerror})"
    child = 0
    try:
        if not os.path.exists(leaf + "/cgroup.kill"):
            return "this kernel has no cgroup.kill (5.14 has)"
        kernel.write(leaf + "/cgroup.procs", "0")
        try:
            child = os.fork()
            if child == 0:
                signal.alarm(LEFT_SECONDS)
                while True:
                    signal.pause()
        finally:
            kernel.write(home + "/cgroup.procs", "0")
        if not kernel.populated(leaf):
            return "a process put into a cgroup was not counted there"
        kernel.kill_cgroup(leaf)
        return "" if _gone(child, lambda: not kernel.populated(leaf)) else "cgroup.kill did not end a process"
    except OSError as error:
        return f"a process cannot be moved into a cgroup of ours ({error.strerror})"
    finally:
        if child:
            _put_away(child)
        kernel.remove_cgroup(leaf)


def try_subreaper() -> str:
    """Let a process lose its parent and its session; return "" if it became our child, else what was in the way."""
    if not kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1):
        return "this system has no subreapers"
    reading, writing = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(LEFT_SECONDS)
            while True:
                signal.pause()
        os.write(writing, str(grandchild).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    grandchild = int(os.read(reading, 20) or b"0")
    os.close(reading)
    found = grandchild in kernel.children()
    if found:
        _put_away(grandchild)
    return "" if found else "an orphan did not come to its subreaper"


def try_namespace() -> str:
    """Hold a process in a PID namespace and end it by that; return what was in the way, or "" if it worked."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # The trial needs a process of its own: all later children of a process that made a namespace are born in it.
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(LEFT_SECONDS)
            os.write(writing, _try_namespace().encode())
        except BaseException as error:
            os.write(writing, f"a trial failed: {error}".encode()[:500])
        finally:
            os._exit(0)
    os.close(writing)
    said = b""
    while piece := os.read(reading, 1000):
        said += piece
    os.close(reading)
    os.waitpid(child, 0)
    return "" if said == b"apart" else said.decode("utf-8", "replace") or "the process that tried it died"


def _try_namespace() -> str:
    try:
        space = Namespace()
    except OSError as error:
        return f"no PID namespace can be made, with a /proc of its own ({error.strerror})"
    space.enter()
    inside = os.fork()
    if inside == 0:
        signal.alarm(LEFT_SECONDS)
        os._exit(0 if sorted(kernel.pids()) == [1, os.getpid()] else 1)
    space.leave()
    if os.waitpid(inside, 0)[1] != 0:
        return "in a PID namespace of its own a process saw others"
    left = os.fork()
    if left == 0:
        while True:
            signal.pause()
    space.end()
    ended = os.waitpid(left, 0)[1] == signal.SIGKILL
    space.may_go()
    ended = os.waitpid(space.init, 0)[1] == 0 and ended
    return "apart" if ended else "the end of a PID namespace did not end what was in it"


def _gone(pid: int, also: Any) -> bool:
    until = time.monotonic() + TRIAL_SECONDS
    while time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None and also():
            return True
        time.sleep(0.0005)
    return False


def _put_away(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _limit_by(what: str, home: str | None) -> tuple[str, str | None]:
    """Return how the number of processes (or their memory) can be limited here, and in which cgroup."""
    try:
        if home is not None and what in kernel.read(home + "/cgroup.controllers").split():
            kernel.write(home + "/cgroup.subtree_control", f"+{what}")
            return "v2", home
    except OSError:
        # The kernel enables controllers only below an empty cgroup, and this process is usually in `home`.
        pass
    beside = kernel.own_cgroup_v1(what)
    if beside is not None:
        trial = trial_leaf(beside)
        try:
            os.mkdir(trial, 0o755)
            os.rmdir(trial)
            return "v1", beside
        except OSError:
            pass  # this process may not make cgroups there
    return "rlimit", None


def sweep(facts: dict[str, Any]) -> int:
    """End the processes that dead controls left, by their leaves and by their marks; return how many were ended.

    A process that no KILL ends (frozen, or waiting in the kernel) is named in `facts["left"]`.
    """
    ended = _sweep_home(facts["home"])
    marked: set[int] = set()
    until = time.monotonic() + SWEEP_SECONDS
    while (found := _sweep_marked()) and time.monotonic() < until:
        marked |= found
    for home in {facts["pids_home"], facts["memory_home"]} - {facts["home"]}:
        # A version 1 cgroup has no `cgroup.kill`. It comes last, when the ways above have ended most of its members.
        ended += _sweep_home(home)
    leaves = [leaf for home in {facts[name] for name in ("home", "pids_home", "memory_home")} for leaf in _dead(home)]
    left = {pid for leaf in leaves for pid in _inside(leaf)}.union(pid for pid, _ in _marked())
    facts["left"] = [kernel.describe(pid) for pid in sorted(left)]
    return ended + len(marked - left)


def _sweep_home(home: str | None) -> int:
    return sum(_sweep_tree(leaf) for leaf in _dead(home))


def _dead(home: str | None) -> list[str]:
    """Return the leaves whose owner is dead."""
    try:
        names = [name for name in os.listdir(home) if name.startswith(kernel.MARK)] if home is not None else []
    except OSError:
        return []
    return [f"{home}/{name}" for name in names if kernel.owner_lives(name.removeprefix(kernel.MARK)) is False]


def _sweep_tree(path: str) -> int:
    """KILL by the leaf itself and wait until it is empty, without using pids; return how many processes were ended."""
    inside = len(_inside(path))
    until = time.monotonic() + SWEEP_SECONDS
    if os.path.exists(path + "/cgroup.kill"):
        while kernel.populated(path) and time.monotonic() < until:
            kernel.kill_cgroup(path)
            time.sleep(0.001)
        kernel.remove_tree(path)
        return inside - len(_inside(path))
    # A version 1 leaf exists for its limits, but it lists its members.
    ended = 0
    while _inside(path) and time.monotonic() < until:
        ended += _sweep_listed(path)
        time.sleep(0.001)
    kernel.remove_tree(path)
    return ended


def _sweep_listed(path: str) -> int:
    """KILL every process that a version 1 cgroup lists, through a pidfd that was opened while it was listed."""
    ended = 0
    for entry in [path, *(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))]:
        for pid in _listed(entry):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if pid in _listed(entry):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended += bool(select.select([pidfd], [], [], 0.1)[0])
            except OSError:
                continue
            finally:
                os.close(pidfd)
    return ended


def _listed(path: str) -> list[int]:
    try:
        return [int(pid) for pid in kernel.read(path + "/cgroup.procs").split()]
    except OSError:
        return []


def _inside(path: str) -> list[int]:
    """Return the pids in a cgroup and below it."""
    found = _listed(path)
    try:
        below = [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        below = []
    for inner in below:
        found += _inside(inner)
    return found


def _sweep_marked() -> set[int]:
    """KILL every orphan that carries a dead owner's mark; return their pids.

    The mark is read again after the pidfd was opened, so that no process with a recycled pid is hit.
    """
    killed = set()
    for pid, owner in _marked():
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _mark_of(pid) == owner:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.add(pid)
                select.select([pidfd], [], [], 0.1)
        except OSError:
            continue
        finally:
            os.close(pidfd)
    return killed


def _marked() -> Iterator[tuple[int, str]]:
    """Yield every process that a dead owner left, with the mark that it carries."""
    for pid in kernel.pids():
        owner = _mark_of(pid)
        if owner is not None and kernel.owner_lives(owner) is False and _orphaned(pid, owner):
            yield pid, owner


def _orphaned(pid: int, owner: str) -> bool:
    """Return whether a marked process is a leftover, not a child of a living service that inherited the mark.

    The parent of a leftover is another leftover, or a process that adopts orphans: init, or an ancestor of ours.
    """
    status = kernel.stat(pid)
    return status is not None and (status[1] in _ancestors() or _mark_of(status[1]) == owner)


def _ancestors() -> set[int]:
    found, pid = {0, 1}, os.getpid()
    while pid > 1 and (status := kernel.stat(pid)) is not None:
        pid = status[1]
        found.add(pid)
    return found


def _mark_of(pid: int) -> str | None:
    try:
        environment = kernel.read(f"/proc/{pid}/environ")
    except OSError:
        return None
    for line in environment.split("\0"):
        if line.startswith(kernel.OWNER + "="):
            return line[len(kernel.OWNER) + 1 :]
    return None
