"""Finds by trial what this machine allows, and says what to change where it could allow more.

1. Every grade is tried for real, with a helper, a keeper, and a process with a child; both must be gone at the end.
2. The report is plain values; the caller draws them.
"""

import asyncio
import os
import pwd
import sys
import time
from pathlib import Path

import msgspec

from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.processes import kernel
from interlock.processes.base import UNSEEN, Confinement, Grade, Machine
from interlock.processes.local import LocalProcesses

TRIAL_SECONDS = 10.0
KILL_FILE = (5, 14)  # the first kernel with cgroup.kill
FAVOUR_OPTION = (6, 0)  # the first kernel with favordynmods
PROGRAM = """
import os, signal, sys
reading, writing = os.pipe()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    if sys.argv[1] == "leave":
        os.setsid()
    os.write(writing, b".")
    signal.pause()
os.read(reading, 1)
os.write(1, b"ready\\n")
signal.pause()
"""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one grade's trial with two processes that ignore TERM.

    One of the two leaves its session, except at the grade `group`, which cannot follow.
    """

    grade: Grade
    works: bool
    why: str = ""  # why it does not work
    gone_ms: float | None = None  # from the cut until both were seen gone
    unseen: tuple[str, ...] = ()  # the processes that the grade cannot reach


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `good` is None if it is neither good nor bad; `change` says what would make it better."""

    name: str
    found: str
    good: bool | None = None
    change: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the doctor found. `grade` is the best that worked, None if none did."""

    grade: Grade | None
    why: str = ""  # why no better grade works
    trials: tuple[Trial, ...]
    facts: tuple[Fact, ...]


async def examine() -> Report:
    """Try every grade, best first, and look at the machine's settings."""
    machine, best = None, None
    trials = []
    for grade in Grade:
        trial, found = await _try(grade)
        trials.append(trial)
        if trial.works and best is None:
            best, machine = grade, found
    why = "; ".join(f"{trial.grade}: {trial.why}" for trial in trials if not trial.works)
    works = {trial.grade: trial.works for trial in trials}
    facts = [*_facts(machine, works), *await _apart()]
    return Report(grade=best, why=why, trials=tuple(trials), facts=tuple(facts))


# Trials


async def _try(grade: Grade) -> tuple[Trial, Machine | None]:
    processes = LocalProcesses(Confinement(grade=grade))
    unseen = UNSEEN[grade]
    try:
        machine = await processes.ready()
        if machine.grade is not grade:
            return Trial(grade=grade, works=False, why=machine.why or "refused by the trial", unseen=unseen), machine
        async with asyncio.timeout(TRIAL_SECONDS):
            gone_ms, ended = await _end_two(processes)
        if grade is not Grade.GROUP and ended != 2:
            why = f"{ended} of 2 processes were seen to end"
            return Trial(grade=grade, works=False, why=why, unseen=unseen), machine
        return Trial(grade=grade, works=True, gone_ms=round(gone_ms, 2), unseen=unseen), machine
    except TimeoutError:
        return Trial(grade=grade, works=False, why=f"nothing was seen in {TRIAL_SECONDS:g} s", unseen=unseen), None
    except SpawnFailed as failure:
        return Trial(grade=grade, works=False, why=str(failure.strerror or failure), unseen=unseen), None
    finally:
        await processes.close()


async def _end_two(processes: LocalProcesses) -> tuple[float, int]:
    """Start a process and its child, and end both; return the milliseconds until they were gone, and their number."""
    way = "stay" if processes.confinement.grade is Grade.GROUP else "leave"
    containment = processes.contain("doctor", once=True)
    try:
        order = SpawnOrder(argv=(sys.executable, "-I", "-S", "-c", PROGRAM, way), streamed=True)
        process = containment.spawn(order)
        await process.started()
        if await process.line() is None:
            raise SpawnFailed(5, f"the process of the trial ended by itself with status {process.status}")
    finally:
        began = time.perf_counter()
        containment.cut()
    await containment.done.wait()
    return (time.perf_counter() - began) * 1000, containment.ended


async def _apart() -> list[Fact]:
    """Try whether agents of one user can be kept apart. Without root there is no agent_user, and nothing to try."""
    if os.geteuid() != 0:
        return []
    processes = LocalProcesses(Confinement(agent_user=_user_name(0)))
    try:
        machine = await processes.ready()
    except SpawnFailed as failure:
        machine = Machine(grade=Grade.GROUP, together=str(failure.strerror or failure))
    finally:
        await processes.close()
    if machine.apart:
        found = "with --agent-user, by a PID namespace for each host, worker and run; tried"
        return [Fact(name="agents apart", found=found, good=True)]
    found = f"no: {machine.together}. With --agent-user one session's agent can signal and trace another's processes"
    change = "serve each tenant from a server, and a user, of its own"
    if _in_container():
        change = f"docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined …; or {change}"
    else:
        change = f"let interlock keep CAP_SYS_ADMIN, and call unshare, setns and mount; or {change}"
    return [Fact(name="agents apart", found=found, good=False, change=change)]


# Looking around


def _facts(machine: Machine | None, works: dict[Grade, bool]) -> list[Fact]:
    facts = [_system()]
    facts += _cgroups(works[Grade.CGROUP])
    facts.append(
        Fact(name="subreaper", found="yes, tried", good=True)
        if works[Grade.KEEPER]
        else Fact(name="subreaper", found="no", good=False, change="use Linux 3.4 or newer, with /proc mounted")
    )
    facts += [_pidfd(), _children()]
    if machine is not None:
        facts += [_pids(machine), _memory(machine)]
    facts += _users()
    if machine is not None and machine.leftovers_ended:
        found = f"{machine.leftovers_ended} processes of a dead control, ended just now"
        facts.append(Fact(name="left behind", found=found))
    if machine is not None and machine.left:
        found = f"{', '.join(machine.left)}: of a dead control, and no KILL ends it; every start tries, for seconds"
        change = "thaw it if it is frozen (freezer.state, cgroup.freeze), or free what it waits for in the kernel"
        facts.append(Fact(name="left behind", found=found, good=False, change=change))
    return facts


def _system() -> Fact:
    here = os.uname()
    inside = ", in a container" if _in_container() else ", with systemd" if _has_systemd() else ""
    return Fact(name="system", found=f"{here.sysname} {here.release}{inside}")


def _in_container() -> bool:
    signs = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return any(Path(sign).exists() for sign in signs)


def _has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _cgroups(works: bool) -> list[Fact]:
    """Check the conditions of cgroup v2, one after another; the first that fails is the last fact."""
    mount, own = _mount(), kernel.own_cgroup()
    if mount is None:
        return [Fact(name="cgroup v2", found="not mounted", good=False, change=_to_mount())]
    point, read_only, foreign = mount
    if foreign or own is None:
        found = f"mounted at {point} from outside our cgroup namespace: our own cgroup is not to be found there"
        return [Fact(name="cgroup v2", found=found, good=False, change=f"leave out the bind mount; {_to_write()}")]
    facts = [
        Fact(name="cgroup v2", found=f"mounted at {point}" + (", read-only" if read_only else ""), good=not read_only),
        Fact(name="own cgroup", found=own),
    ]
    if read_only:
        facts[0] = msgspec.structs.replace(facts[0], change=_to_write())
        return facts
    may = os.access(own, os.W_OK) and os.access(f"{own}/cgroup.procs", os.W_OK)
    facts.append(
        Fact(name="delegated", found="yes: cgroups can be made in it", good=True)
        if may
        else Fact(name="delegated", found=f"no: it belongs to {_owner(own)}", good=False, change=_to_delegate())
    )
    if works:
        facts.append(Fact(name="cgroup.kill", found="yes, tried", good=True))
        facts.append(_moves(point))
    elif _release() >= KILL_FILE:
        facts.append(Fact(name="cgroup.kill", found=f"in kernels since {_dotted(KILL_FILE)}; not tried", good=None))
    else:
        change = f"use Linux {_dotted(KILL_FILE)} or newer"
        facts.append(Fact(name="cgroup.kill", found="no, the kernel is too old", good=False, change=change))
    return facts


def _moves(point: str) -> Fact:
    """Say whether a step into a cgroup is fast: without favordynmods the first one after a pause takes some 10 ms."""
    if "favordynmods" in kernel.read("/proc/self/mountinfo"):
        return Fact(name="steps into a cgroup", found="fast (favordynmods)", good=True)
    change = f"mount -o remount,favordynmods {point} (it lasts until the next boot)"
    return Fact(
        name="steps into a cgroup",
        found="the first after a pause waits for the kernel, some 10 ms",
        change=change if _release() >= FAVOUR_OPTION else "",
    )


def _mount() -> tuple[str, bool, bool] | None:
    """Return where cgroup v2 is mounted, whether it is read-only, and whether it comes from outside our namespace."""
    try:
        lines = kernel.read("/proc/self/mountinfo").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            root, point, options = before.split()[3:6]
            of_all = after.split(" ")[-1].split(",")
            read_only = "ro" in options.split(",") or "ro" in of_all
            return point.replace("\\040", " "), read_only, root.startswith("/..")
    return None


def _to_mount() -> str:
    if _in_container():
        return f"on the host, boot with systemd.unified_cgroup_hierarchy=1; then {_to_write()}"
    return (
        "boot with systemd.unified_cgroup_hierarchy=1, "
        "or as root: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
    )


def _to_write() -> str:
    """Say how a container's own cgroup becomes writable. (A bind of the host's would lift the container's limits.)"""
    return (
        "docker run --cgroupns=private --security-opt writable-cgroups=true … (Docker 28), "
        "or podman run --security-opt unmask=/sys/fs/cgroup …"
    )


def _to_delegate() -> str:
    if _in_container():
        return f"run as root in the container, and {_to_write()}"
    if _has_systemd():
        return (
            "in a unit: [Service] Delegate=yes; "
            "by hand: systemd-run --user --scope -p Delegate=yes interlock run -- command …"
        )
    own = kernel.own_cgroup() or "/sys/fs/cgroup"
    name = _user_name(os.geteuid())
    return (
        f"run as root, or let root make a cgroup for {name}: mkdir {own}/{name} && chown -R {name} {own}/{name} "
        f"&& echo PID > {own}/{name}/cgroup.procs, PID being the shell's"
    )


def _pidfd() -> Fact:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        change = "use Linux 5.3 or newer, and a seccomp profile that allows pidfd_open"
        return Fact(name="pidfd", found=f"no ({error})", good=False, change=change)
    return Fact(name="pidfd", found="yes, tried", good=True)


def _children() -> Fact:
    me = os.getpid()
    if Path(f"/proc/{me}/task/{me}/children").exists():
        return Fact(name="list of children", found="yes, in /proc", good=True)
    change = "use a kernel with CONFIG_PROC_CHILDREN=y; without it all of /proc is read, which is slower"
    return Fact(name="list of children", found="no", good=False, change=change)


def _pids(machine: Machine) -> Fact:
    name = "limit of processes"
    if machine.pids != "rlimit":
        return Fact(name=name, found=f"for each run, by cgroup {machine.pids}", good=True)
    if os.getuid() == 0:
        change = "run as a user other than root, or on a machine with the version 1 pids controller mounted"
        return Fact(name=name, found="none: root is refused no process by an rlimit", good=False, change=change)
    change = "everything of the user counts: give interlock a user of its own"
    return Fact(name=name, found="by rlimit (RLIMIT_NPROC), for the user as a whole", good=False, change=change)


def _memory(machine: Machine) -> Fact:
    name = "limit of memory"
    if machine.memory != "rlimit":
        return Fact(name=name, found=f"for each run, by cgroup {machine.memory}", good=True)
    change = "it bounds the address space of each process, not a run: count with that, or bound the whole service"
    if _has_systemd():
        change += " (MemoryMax= in its unit)"
    elif _in_container():
        change += " (docker run --memory)"
    return Fact(name=name, found="by rlimit (RLIMIT_AS), for each process", good=False, change=change)


def _users() -> list[Fact]:
    uid = os.geteuid()
    user = Fact(name="user", found=f"{_user_name(uid)} (uid {uid})")
    if uid == 0:
        change = "tools share root's rights unless you say run --user, serve --agent-user, or agent_user="
        return [user, Fact(name="another user", found="possible", good=True, change=change)]
    change = "only root can give rights away: start interlock as root and name a user; until then tools share yours"
    return [user, Fact(name="another user", found="not possible", good=False, change=change)]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner(path: str) -> str:
    try:
        return _user_name(Path(path).stat().st_uid)
    except OSError as error:
        return f"an owner that cannot be seen ({error.strerror})"


def _release() -> tuple[int, ...]:
    parts = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
