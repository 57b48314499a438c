"""Programs that will not go away, each in one way, and a campaign that cuts them and looks for what is left.

1. The programs use the standard library only, in a bare interpreter. Each is bounded, by time and by a budget of forks.
2. The witness asks no process that is being judged: every process of a case carries a token in its arguments and beats
   into a file; a process that leaves its keeper becomes a child of the campaign, a subreaper; and everything happens in
   a cgroup that limits and counts it.
3. A trial that was cut before its case had become hostile proves little: `reached` counts those that had.

python -m proofs.processes --grade keeper --rounds 3     play a batch here, unlimited; print JSON
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

import interlock
from interlock.agent.order import SpawnOrder
from interlock.core.errors import InterlockError
from interlock.processes import kernel
from interlock.processes.base import Confinement, Grade
from interlock.processes.containment import LocalContainment
from interlock.processes.local import LocalProcesses

PACKAGES = [str(Path(module).parent.parent) for module in (interlock.__file__, __file__)]  # parents of our packages
LIFE_SECONDS = 90.0  # a program that is not ended exits by itself after this time, which no trial lasts
CUT_SECONDS = 0.05  # the latest moment of a cut
READY_SECONDS = 30.0  # bound for a case to become hostile
DONE_SECONDS = 30.0  # bound from the cut until its containment is done
SETTLE_SECONDS = 0.05  # a process that lives would beat within this time
FREEZER = Path("/sys/fs/cgroup/freezer")  # version 1, which can keep a process from dying
GONE_SECONDS = 30.0
RUN_PIDS = 256
SCOPE_PIDS = 1000
DROPPED_UID = 65534
CGROUPS = Path("/sys/fs/cgroup")

# The cases

_PRELUDE = """
import os, sys, time
import _signal as signal  # ("signal" itself takes longer to load than Python to start)
path, end, life = sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
sink = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

def beat(mark=b"."):
    os.write(sink, mark)

def ready():
    beat(b"!")

def held():
    with open("/proc/self/cgroup", "rb") as file:
        return any(line.startswith(b"0::") and b"/interlock-" in line for line in file)

def going():
    return time.monotonic() < end and os.access(path, os.F_OK)  # whoever removes the file wants no more of this

def live():
    while going():
        beat()
        time.sleep(0.002)
    os._exit(0)

def fork(do, *given):
    try:
        pid = os.fork()
    except OSError:
        return 0
    if pid == 0:
        try:
            do(*given)
        finally:
            os._exit(0)
    return pid

def haunt(do=None):
    if do:
        do()
    ready()
    live()

def again(env):
    os.execve(sys.executable, [*sys.orig_argv[:-1], str(life + 1)], env)

if not held():
    beat(b"?")
"""

_HOP = """
def hop(budget=20000):
    for hops in range(budget):
        if not going():
            return
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)
            continue
        os.setsid()
        ready() if hops == 2 else beat()
"""


_BOMB = """
def bomb(born=lambda parent: None, bore=lambda child: None, full=lambda: None):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    me = os.getpid()
    first = True
    while going():
        try:
            child = os.fork()
        except OSError:
            ready() if first else beat()
            first = False
            full()
            time.sleep(0.001)
            continue
        if child:
            bore(child)
        else:
            born(me)
            me = os.getpid()
            beat()
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, what it does in one sentence, and the marks that show that it has begun to."""

    name: str
    what: str
    program: str
    marks: int = 1  # calls of `ready` until it is as hostile as it gets
    leaves_group: bool = False  # leaves its process group, which then does not hold it
    shell: bool = False
    input: bytes | None = None
    grace: float = 0.0
    greedy: bool = False  # takes every free place for a process

    def order(self, token: str, sink: Path) -> SpawnOrder:
        """Return the order that starts this case."""
        end = str(time.monotonic() + LIFE_SECONDS)
        argv: tuple[str, ...] = (sys.executable, "-I", "-S", "-c", _PRELUDE + self.program, token, str(sink), end, "0")
        if self.shell:
            argv = ("/bin/sh", "-c", '"$@" & exit 0', "sh", *argv)
        return SpawnOrder(argv=argv, input=self.input, cwd="/")


_CASES = (
    Case(
        name="tree",
        what="Seven processes in three generations, none of them with a will of its own.",
        program="""
def branch(below):
    for _ in range(2 if below else 0):
        fork(branch, below - 1)
    live() if below else haunt()
branch(2)
""",
        marks=4,
    ),
    Case(
        name="deaf",
        what="Ignores TERM, INT, HUP and QUIT, and so does its child.",
        program="""
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
fork(haunt)
live()
""",
        grace=0.02,
    ),
    Case(
        name="setsid",
        what="A child leaves for a session of its own.",
        program="fork(haunt, os.setsid)\nlive()",
        leaves_group=True,
    ),
    Case(
        name="daemon",
        what="Forks twice, leaves session, directory and pipes, and its parents exit: a daemon by the book.",
        program="""
def become():
    os.chdir("/")
    os.umask(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
def first():
    os.setsid()
    fork(haunt, become)
os.waitpid(fork(first), 0)
""",
        leaves_group=True,
    ),
    Case(
        name="wiped",
        what="A child in a new session executes itself with an empty environment: no mark of ours is left on it.",
        program="""
if life:
    haunt()
def leave():
    os.setsid()
    again({})
fork(leave)
live()
""",
        leaves_group=True,
    ),
    Case(
        name="holder",
        what="A grandchild keeps the output's pipe open after everyone above it has exited.",
        program="fork(fork, haunt)",
    ),
    Case(
        name="stopped",
        what="It and its child are stopped (SIGSTOP), so that nothing but a KILL reaches them.",
        program="""
def stop():
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
def watch(parent, other):
    while going():
        time.sleep(0.1)
    if os.getppid() == parent:  # or else one of the pids could be another's by now
        os.kill(other, signal.SIGKILL)
        os.kill(parent, signal.SIGKILL)
fork(watch, os.getpid(), fork(stop))
stop()
""",
        marks=2,
    ),
    Case(
        name="hopper",
        what="Forks and exits, on and on, each time in a new session: whatever pid is aimed at is gone already.",
        program=_HOP + "hop()",
        leaves_group=True,
    ),
    Case(
        name="hoppers",
        what="Eight of those at once.",
        program=_HOP + "for _ in range(8): fork(hop, 4000)",
        marks=8,
        leaves_group=True,
    ),
    Case(
        name="bomb",
        what="Forks until it may not, and so does every child, which takes the place of any that is killed.",
        program=_BOMB + "bomb()",
        greedy=True,
    ),
    Case(
        name="scatter",
        what="A bomb of which every part is in a session of its own, and wakes (SIGCONT) those it knows.",
        program=_BOMB
        + """
known = []  # pidfds: a pid may be another's by now
def know(pid):
    try:
        known.append(os.pidfd_open(pid))
    except OSError:
        return
    if len(known) > 10:
        os.close(known.pop(0))
def leave(parent):
    os.setsid()
    know(parent)
def wake():
    for pidfd in known:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        except OSError:
            pass
bomb(leave, know, wake)
""",
        leaves_group=True,
        greedy=True,
    ),
    Case(
        name="storm",
        what="Forks as fast as it can; its children beat once and exit, every other one after a fork of its own.",
        program="""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for forks in range(4000):
    if not going():
        break
    fork(fork, beat) if forks % 2 else fork(beat)
    if forks == 10:
        ready()
live()
""",
    ),
    Case(
        name="writer",
        what="It and its child write as fast as the pipe takes it: a gigabyte per second where nobody held them back.",
        program="""
block = b"x" * 65536
def write():
    while going():
        beat()
        os.write(1, block)
fork(lambda: (ready(), write()))
write()
""",
    ),
    Case(
        name="shell",
        what="A shell puts it into the background and exits.",
        program="haunt()",
        shell=True,
    ),
    Case(
        name="exec",
        what="Three processes execute themselves over and over, so that the KILL meets one in the middle of that.",
        program="""
def on():
    ready() if life == 1 else beat()
    if going():
        again(dict(os.environ))
if life:
    on()
for _ in range(3):
    fork(on)
live()
""",
        marks=3,
    ),
    Case(
        name="reader",
        what="It and its child read a byte now and then of a megabyte that waits in their input.",
        program="""
def read():
    while going() and os.read(0, 1):
        beat()
        time.sleep(0.002)
fork(lambda: (os.read(0, 1), ready(), read()))
read()
""",
        input=b"x" * (1 << 20),
    ),
)
CASES = {case.name: case for case in _CASES}


# The witness


@dataclass(frozen=True)
class Seen:
    """A process, as /proc shows it."""

    pid: int
    state: str
    parent: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command}, state {self.state}, child of {self.parent})"


def seen(pid: int) -> Seen | None:
    """Return a process as /proc shows it, None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    command, _, rest = text.partition("(")[2].rpartition(") ")
    state, parent = rest.split()[:2]
    return Seen(pid, state, int(parent), command)


def everyone() -> list[Seen]:
    """Return every process."""
    found = (seen(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [one for one in found if one is not None]


def children(pid: int) -> list[Seen]:
    """Return the children of a process, dead ones too."""
    return [one for one in everyone() if one.parent == pid]


def zombies(of: set[int]) -> list[Seen]:
    """Return the dead that some processes, or their children, have not reaped."""
    people = everyone()
    parents = of | {one.pid for one in people if one.parent in of}
    return [one for one in people if one.state == "Z" and one.parent in parents]


def bearers(token: str) -> list[int]:
    """Return the living processes with a token in their arguments; a zombie has no arguments."""
    wanted, found = token.encode(), []
    for name in os.listdir("/proc"):  # noqa: PTH208 (looked at in every trial)
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb", 0) as file:  # noqa: PTH123
                if wanted in file.read():
                    found.append(int(name))
    return found


def end_bearers(token: str, seconds: float = GONE_SECONDS) -> bool:
    """KILL the processes that carry a token until none is left; no other process can be hit."""
    until = time.monotonic() + seconds
    while found := bearers(token):
        for pid in found:
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
                try:
                    if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        select.select([pidfd], [], [], 0.1)
                finally:
                    os.close(pidfd)
        if time.monotonic() > until:
            return False
    return True


def descriptors(pid: int) -> list[str]:
    """Return the open descriptors of a process, as far as they name things that can be told apart."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(f"{entry.name} {entry.readlink()}")
    return found


class Witness:
    """The effects of a batch's processes on the world, told apart by token."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = f"kit-{os.getpid()}-{time.monotonic_ns():x}"
        self._at_end: dict[str, int] = {}

    @property
    def everyone(self) -> str:
        """Return the beginning of all tokens of this batch."""
        return self._name

    def token(self, trial: str) -> str:
        """Return a token that no other trial has."""
        return f"{self._name}-{trial}-"

    def sink(self, token: str) -> Path:
        """Return the file into which the processes with a token beat."""
        return self._directory / token

    def release(self, token: str) -> bool:
        """End the processes with a token: by asking, because a hopper is faster than a KILL, and by KILL."""
        self.sink(token).unlink(missing_ok=True)
        gone = end_bearers(token)
        self.ended(token)
        return gone

    def reached(self, case: Case, token: str) -> bool:
        """Return whether a case has become as hostile as it gets."""
        try:
            return self.sink(token).read_bytes().count(b"!") >= case.marks
        except FileNotFoundError:
            return False

    def outside(self, token: str) -> bool:
        """Return whether a process found itself in no leaf of ours when it began."""
        try:
            return b"?" in self.sink(token).read_bytes()
        except FileNotFoundError:
            return False

    def ended(self, token: str) -> None:
        """Note that from here on no process may beat for a token."""
        self._at_end[token] = self._size(token)

    def late(self) -> list[str]:
        """Return the tokens for which a process beat after their end."""
        return [token for token, size in self._at_end.items() if self._size(token) != size]

    def _size(self, token: str) -> int:
        try:
            return self.sink(token).stat().st_size
        except FileNotFoundError:
            return 0


# The campaign


class Cell(msgspec.Struct):
    """The results of one case."""

    trials: int = 0
    reached: int = 0  # trials in which the case had become hostile before its end
    survivors: int = 0  # processes that lived when their containment was done
    late: int = 0  # trials in which a process beat after that
    undrained: int = 0  # trials that were not done in time
    slowest: float = 0.0  # milliseconds from a cut until its containment was done

    @property
    def sound(self) -> bool:
        """Return whether nothing was left."""
        return not (self.survivors or self.late or self.undrained)


class Batch(msgspec.Struct):
    """The results of some trials in one process. `left`: what was there at the end, each in words."""

    grade: str = ""
    why: str = ""
    uid: int = 0
    seconds: float = 0.0
    cells: dict[str, Cell] = {}
    troubles: list[str] = []  # survivors, late beats and undrained trials, each with the trial to play again
    zombies: list[str] = []
    fds: list[str] = []
    leaves: list[str] = []
    left: list[str] = []

    @property
    def trials(self) -> int:
        """Return how many trials there were."""
        return sum(cell.trials for cell in self.cells.values())

    @property
    def sound(self) -> bool:
        """Return whether nothing was left at all."""
        cells = all(cell.sound for cell in self.cells.values())
        return cells and not (self.troubles or self.zombies or self.fds or self.leaves or self.left)


@dataclass(frozen=True)
class Trial:
    """A case, cut once: `delay` counts from the request, from its start, or from when it had become hostile."""

    case: Case
    name: str
    since: str
    delay: float

    def __str__(self) -> str:
        return f"{self.name}: cut {self.delay * 1000:.1f} ms after {self.since}"


def plan(seed: int, rounds: int, names: tuple[str, ...] = tuple(CASES)) -> Iterator[Trial]:
    """Choose the moments of the cuts; every third counts from when the case is hostile, every seventh is 0."""
    for number in range(rounds):
        since = ("ready", "request", "start")[number % 3]
        for name in names:
            chosen = random.Random(f"{seed} {number} {name}").uniform(0.0, CUT_SECONDS)
            yield Trial(CASES[name], f"{name}-{seed}-{number}", since, 0.0 if number % 7 == 1 else chosen)


class Campaign:
    """Trials, one after another or a few at a time, under one helper."""

    def __init__(self, grade: Grade | None, *, width: int = 1) -> None:
        self._grade = grade
        self._width = width
        self._changed = asyncio.Condition()
        self._playing = 0
        self._alone = False
        self.batch = Batch()

    async def play(self, trials: Iterator[Trial]) -> Batch:
        """Play all trials, close, and look for what is left."""
        began = time.perf_counter()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # a process that escapes its keeper becomes our child
        before = descriptors(os.getpid())
        processes = LocalProcesses(Confinement(grade=self._grade, pids=RUN_PIDS))
        machine = await processes.ready()
        batch = self.batch
        batch.grade, batch.why, batch.uid = str(machine.grade), machine.why, os.getuid()
        with tempfile.TemporaryDirectory(prefix="interlock-kit-") as directory:
            witness = Witness(Path(directory))
            try:
                await self._play(processes, witness, trials)
                await processes.close()
                self._look_behind(before)
            finally:
                end_bearers(witness.everyone)
        batch.seconds = time.perf_counter() - began
        return batch

    async def _play(self, processes: LocalProcesses, witness: Witness, trials: Iterator[Trial]) -> None:
        (helper,) = (one.pid for one in children(os.getpid()))
        ours, its = descriptors(os.getpid()), descriptors(helper)

        async def lane() -> None:
            for trial in trials:
                async with self._beside(alone=trial.case.greedy):
                    await self._try(processes, witness, trial)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._width):
                group.create_task(lane())
        await asyncio.sleep(SETTLE_SECONDS)
        batch = self.batch
        for token in witness.late():
            name = token.removeprefix(witness.everyone + "-").removesuffix("-")
            batch.cells[name.split("-")[0]].late += 1
            batch.troubles.append(f"{name}: beats after its end")
            witness.release(token)
        until = time.monotonic() + GONE_SECONDS  # a keeper says that all is gone, and exits a moment later
        while children(helper) and time.monotonic() < until:
            await asyncio.sleep(0.002)
        if batch.grade != Grade.GROUP:  # the group grade keeps a directory while a process that escaped is in it
            batch.leaves += [f"{leaf} before close" for leaf in _leaves(below=True)]
        batch.zombies += map(str, zombies({os.getpid(), helper}))
        batch.left += [f"{one} below the helper" for one in children(helper) if one.state != "Z"]
        for whose, then, now in (("ours", ours, descriptors(os.getpid())), ("the helper's", its, descriptors(helper))):
            if len(now) != len(then):
                batch.fds += [f"{whose}: {fd}" for fd in sorted(set(now) ^ set(then))]

    @contextlib.asynccontextmanager
    async def _beside(self, *, alone: bool) -> AsyncIterator[None]:
        """Play beside the other lanes; a greedy case plays alone, because it leaves no place for another process."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone and not (alone and self._playing))
            self._playing, self._alone = self._playing + 1, alone
        try:
            yield
        finally:
            async with self._changed:
                self._playing, self._alone = self._playing - 1, False
                self._changed.notify_all()

    async def _try(self, processes: LocalProcesses, witness: Witness, trial: Trial) -> None:
        case, token = trial.case, witness.token(trial.name)
        cell = self.batch.cells.setdefault(case.name, Cell())
        cell.trials += 1
        try:
            containment = processes.contain(f"run {trial.name}", grace=case.grace)
        except InterlockError as error:
            self.batch.troubles.append(f"{trial.name}: {error}")
            return
        process = None
        try:
            process = containment.spawn(case.order(token, witness.sink(token)))
            if trial.since != "request":
                await process.started()
            if trial.since == "ready":
                await self._ready(witness, trial, token)
        except InterlockError as error:
            self.batch.troubles.append(f"{trial.name}: {error}")
        if trial.delay:
            await asyncio.sleep(trial.delay)
        cut = time.monotonic()
        containment.cut()
        if not await self._done(containment):
            cell.undrained += 1
            self.batch.troubles.append(f"{trial}: not done ({', '.join(containment.stuck) or 'nothing stuck'})")
        drained = time.monotonic()
        survivors = bearers(token)
        witness.ended(token)
        cell.slowest = max(cell.slowest, (drained - cut) * 1000)
        cell.reached += witness.reached(case, token)
        if self.batch.grade == Grade.CGROUP and witness.outside(token):
            self.batch.troubles.append(f"{trial}: executed before it was in its leaf")
        if survivors:
            cell.survivors += len(survivors)
            self.batch.troubles.append(f"{trial}: {', '.join(str(seen(pid)) for pid in survivors[:5])}")
            witness.release(token)
        if process is not None and not process.exited.is_set():
            self.batch.troubles.append(f"{trial}: done, and its process is not said to have exited")

    async def _ready(self, witness: Witness, trial: Trial, token: str) -> None:
        until = time.monotonic() + READY_SECONDS
        while not witness.reached(trial.case, token):
            if time.monotonic() > until:
                self.batch.troubles.append(f"{trial.name}: was not hostile after {READY_SECONDS:g} s")
                return
            await asyncio.sleep(0.002)

    async def _done(self, containment: LocalContainment) -> bool:
        try:
            async with asyncio.timeout(DONE_SECONDS):
                await containment.done.wait()
        except TimeoutError:
            return False
        return True

    def _look_behind(self, before: list[str]) -> None:
        """Look for what is left after the close: descriptors, children (so: escaped processes), cgroups."""
        now = descriptors(os.getpid())
        if len(now) != len(before):
            self.batch.fds += [f"after close: {fd}" for fd in sorted(set(now) ^ set(before))]
        self.batch.left += [f"{one} came up to us" for one in children(os.getpid())]
        self.batch.leaves += _leaves()


def _leaves(*, below: bool = False) -> list[str]:
    """Return the cgroups that carry our name, or only those below them."""
    mine = f"{kernel.MARK}{kernel.owner_of(os.getpid())}" + ("/" if below else "")
    return [where for where, _, _ in os.walk(CGROUPS) if mine in where]


# A batch in a process of its own, limited

_ENTER = """
import ctypes, json, os, resource, sys
given = json.loads(sys.argv[1])
if given["scope"]:
    with open(given["scope"] + "/cgroup.procs", "w") as file:
        file.write("0")
if given["nproc"]:
    resource.setrlimit(resource.RLIMIT_NPROC, (given["nproc"], given["nproc"]))
if given["uid"] is not None:
    libc = ctypes.CDLL(None, use_errno=True)
    def mount(source, target, kind, flags, data):
        if libc.mount(source.encode(), target.encode(), kind and kind.encode(), flags, data and data.encode()):
            raise OSError(ctypes.get_errno(), "mount " + target)
    if given["hidden"]:  # in a mount namespace of our own: nothing changes for anyone else
        if libc.unshare(0x00020000):
            raise OSError(ctypes.get_errno(), "unshare")
        mount("none", "/", None, 0x44000, None)
        wanted = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in given["seen"]]
        for path in given["hidden"]:
            mount("none", path, "tmpfs", 0, "mode=755")
        for path, fd in wanted:
            if not os.path.isdir(path):
                os.makedirs(path)
                mount("/proc/self/fd/%d" % fd, path, None, 0x5000, None)
    os.setgroups([])
    os.setresgid(given["uid"], given["uid"], given["uid"])
    os.setresuid(given["uid"], given["uid"], given["uid"])
os.chdir("/")
os.execv(sys.argv[2], sys.argv[2:])
"""


class NoScope(InterlockError):
    """There is no way here to limit the number of processes, so nothing hostile is started."""


@contextlib.contextmanager
def scope(pids: int = SCOPE_PIDS) -> Iterator[Path | None]:
    """Make a cgroup that limits processes and ends those left in it; None where a limit of the user must do."""
    homes = [kernel.own_cgroup_v1("pids"), kernel.own_cgroup()]
    for home in homes:
        if home is None:
            continue
        directory = Path(home) / f"kit-{os.getpid()}-{time.monotonic_ns():x}"
        try:
            directory.mkdir()
            (directory / "pids.max").write_text(str(pids), "ascii")
        except OSError:
            with contextlib.suppress(OSError):
                directory.rmdir()
            continue
        try:
            yield directory
        finally:
            frozen = thawed(directory)
            if emptied(directory, seconds=0.0):
                emptied(directory)
            kernel.remove_tree(str(directory))
            for place in frozen:
                kernel.remove_cgroup(str(place))
        return
    if os.getuid() == 0:
        raise NoScope("hostile processes are started only where their number is limited: no pids cgroup can be made")
    yield None


def inhabitants(directory: Path) -> list[Seen]:
    """Return the processes in a cgroup or below it."""
    pids = [int(pid) for file in directory.rglob("cgroup.procs") for pid in file.read_text("ascii").split()]
    return [one for pid in pids if (one := seen(pid)) is not None]


def thawed(directory: Path) -> list[Path]:
    """Thaw frozen processes in a scope, which no KILL reaches before. Return the directories that were frozen."""
    places = []
    for one in inhabitants(directory):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{one.pid}/cgroup").read_text("utf-8").splitlines()
            inner = [path for _, kind, path in (line.split(":", 2) for line in lines) if kind == "freezer"]
            state = FREEZER / inner[0].strip("/") / "freezer.state" if inner else FREEZER
            if inner and inner[0] != "/" and state.read_text("ascii").strip() != "THAWED":
                state.write_text("THAWED", "ascii")
                places.append(state.parent)
    return places


def emptied(directory: Path, seconds: float = GONE_SECONDS) -> list[str]:
    """Wait, bounded, until a scope is empty; end and name the processes left. The kernel counts zombies too."""
    until = time.monotonic() + seconds
    while (directory / "pids.current").read_text("ascii").strip() != "0":
        if time.monotonic() > until:
            left = [f"{one} outlived its control" for one in inhabitants(directory)]
            for one in inhabitants(directory):
                with contextlib.suppress(OSError):
                    os.kill(one.pid, signal.SIGKILL)
            return left or ["something is counted that cannot be seen"]
        time.sleep(0.002)
    return []


def entered(argv: list[str], directory: Path | None, *, pids: int = SCOPE_PIDS, uid: int | None = None) -> list[str]:
    """Return a command that enters a scope, gives its rights away, and executes another command."""
    seen_paths = [sys.base_prefix, sys.prefix, *PACKAGES]
    given = {
        "scope": None if directory is None else str(directory),
        "nproc": pids + _tasks() if directory is None else 0,
        "uid": uid,
        "seen": seen_paths,
        "hidden": sorted({hidden for path in seen_paths if (hidden := _hidden(Path(path)))}),
    }
    return [sys.executable, "-I", "-c", _ENTER, json.dumps(given), *argv]


def _tasks() -> int:
    """Count the tasks of our user, as the kernel's limit of a user does."""
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += len(list((entry / "task").iterdir()))
    return count


def _hidden(path: Path) -> str | None:
    """Return the directory above a path that other users may not pass, as /root often is."""
    for above in reversed(path.resolve().parents):
        if not above.stat().st_mode & 0o001:
            return str(above)
    return None


def play_apart(
    grade: Grade | None,
    *,
    seed: int,
    rounds: int,
    width: int = 1,
    uid: int | None = None,
    names: tuple[str, ...] = (),
) -> Batch:
    """Play a batch in a process of its own, limited, and as another user if asked; all cases unless some are named."""
    argv = [sys.executable, "-m", __name__, f"--seed={seed}", f"--rounds={rounds}", f"--width={width}"]
    argv += [f"--grade={grade}"] if grade else []
    argv += [f"--case={name}" for name in names]
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    env |= {"PYTHONPATH": os.pathsep.join(PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}
    bound = 60 + rounds * len(CASES) * 2
    with scope() as directory:
        command = entered(argv, directory, uid=uid)
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=bound
        )
        left = emptied(directory) if directory is not None else []
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace")
        raise RuntimeError(f"a batch of the kit ended with {done.returncode}:\n{said[-4000:]}")
    batch = msgspec.json.decode(done.stdout, type=Batch)
    batch.left += left
    return batch


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=__name__)
    parser.add_argument("--grade", type=Grade, help="ask for less than the machine gives")
    parser.add_argument("--seed", type=int, default=0, help="which moments")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case")
    parser.add_argument("--width", type=int, default=1, help="how many at a time")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="only these")
    asked = parser.parse_args(arguments)
    names = tuple(asked.case or CASES)
    campaign = Campaign(asked.grade, width=asked.width)
    batch = asyncio.run(campaign.play(plan(asked.seed, asked.rounds, names)))
    sys.stdout.write(msgspec.json.encode(batch).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
