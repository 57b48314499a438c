"""The port of the processes: the verbs the runtime calls, and the values that cross.

1. `contain` and `Containment.spawn` are synchronous: the fence is tested in the same step that sends the request.
2. `cut` cannot fail and does not wait: it hangs up, and the keeper ends everything.
3. `done` is set when the kernel said that the containment is empty, and never otherwise.

A containment belongs to a run, to a session (detached processes) or to a host. A plain `await run.spawn(...)` shares
the keeper of its run, so it costs no fork of the helper. A process that can be ended by itself (it has a timeout, a
grace, streamed lines or a name, or is in the background, detached, or a worker) has a keeper of its own (`alone`),
which costs about 1 ms. Without one, ending it would mean walking a tree of pids, which loses races, or a cgroup for
each process, which the keeper grade does not have.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from interlock.core.errors import InterlockError
from interlock.core.names import BodyState

OUTPUT_BYTES = 1024 * 1024
LINE_BYTES = 64 * 1024
# The most arguments, or variables of the environment, of one process: more than any system takes.
ARGUMENTS = 500_000
ROOT = str(Path(__file__).resolve().parent.parent)  # the package's directory, for programs that load parts of it
ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR")
"""The variables of control's environment that a process gets by default."""


class SpawnFailed(InterlockError, OSError):
    """A process could not be started; nothing of it is left. `errno` is the system's own number."""


class Grade(StrEnum):
    """How surely processes can be held and ended here, best first.

    `cgroup` needs cgroup v2 with `cgroup.kill` (kernel 5.14) and a cgroup that control may write. `keeper` needs
    subreapers, which every Linux has. `group` needs nothing, and loses each process that leaves its process group.
    """

    CGROUP = "cgroup"
    KEEPER = "keeper"
    GROUP = "group"


UNSEEN = {
    Grade.CGROUP: ("what another daemon starts for us (cron, docker, systemd-run)",),
    Grade.KEEPER: ("what another daemon starts for us (cron, docker, systemd-run)",),
    Grade.GROUP: (
        "what another daemon starts for us (cron, docker, systemd-run)",
        "processes that left their process group (setsid, daemons): best effort",
    ),
}
"""The processes that a grade cannot reach; receipts name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """What the processes of a run may be and use. `grade` asks for a lower grade than the machine allows."""

    grade: Grade | None = None
    pids: int | None = 4096
    memory: int | None = None  # bytes
    host_memory: int | None = 2 * 1024**3  # bytes, for one host and the processes of its libraries
    output_bytes: int = OUTPUT_BYTES
    environment: tuple[str, ...] = ENVIRONMENT
    agent_user: str | None = None
    # With agent_user: processes of different hosts, workers and runs cannot reach each other.
    apart: bool = True


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One process to be started. The values are plain, so that an order can come from another process."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(max_length=ARGUMENTS)]
    cwd: str | None = None
    env: Annotated[dict[str, str | None], msgspec.Meta(max_length=ARGUMENTS)] = {}
    input: bytes | None = None
    timeout: float | None = None
    grace: float = 0.0
    pty: bool = False
    background: bool = False
    detached: bool = False
    name: str | None = None
    streamed: bool = False  # the agent reads its lines as they come
    # The process gets control's own descriptors 0, 1 and 2. Only `interlock run` sets this; an agent may not.
    inherit: bool = False

    @property
    def alone(self) -> bool:
        """True if the process can be ended by itself, and so has a keeper of its own."""
        bound = self.timeout is not None or self.grace > 0 or self.name is not None
        return bound or self.background or self.detached or self.streamed


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine allows, found by trial."""

    grade: Grade
    why: str = ""  # why no better grade works
    pids: str = "none"  # how the number of processes is limited: v2, v1, rlimit
    memory: str = "none"
    home: str | None = None  # the cgroup in which leaves are made
    # Containments of one user are kept apart by PID namespaces. Tried only where there is an agent_user.
    apart: bool = False
    together: str = ""  # why they are not kept apart
    leftovers_ended: int = 0  # processes of a dead control that were ended at the start
    # Processes of a dead control that no KILL ended, by name. Every start tries again, and takes longer for it.
    left: tuple[str, ...] = ()


class Process(Protocol):
    """A process of a run, as the runtime sees it."""

    number: int
    pid: int | None
    status: int | None
    exited: asyncio.Event  # the process's own exit; its descendants may go on
    lost: bool  # ended with its containment, before its exit was seen

    async def started(self) -> None:
        """Wait until the process runs; raise SpawnFailed if it does not start."""
        ...

    def end(self) -> None:
        """End the process; if it has a keeper of its own, also everything it started."""
        ...

    async def line(self) -> bytes | None:
        """Return the next line of its output, None at the end."""
        ...

    def output(self) -> tuple[bytes, int, bytes]:
        """Return the beginning of its output, the number of bytes left out, and the end."""
        ...

    def recent(self) -> bytes:
        """Return the end of its output, even if the agent reads it by lines."""
        ...


class Containment(Protocol):
    """Holds processes. To the fall it is a body like any other: cut at t0 and observed at t2."""

    name: str
    grade: Grade
    grace: float
    state: BodyState
    done: asyncio.Event
    ended: int  # processes that the cut ended
    stuck: tuple[str, ...]  # processes that a KILL did not end so far

    def spawn(self, order: SpawnOrder) -> Process:
        """Ask for a process, without waiting."""
        ...

    def cut(self) -> None:
        """End every process in the containment, now or after its grace."""
        ...

    def drop(self) -> None:
        """Insist: the containment is late to end."""
        ...

    def abandon(self) -> None:
        """Stop waiting, and name the processes that are stuck."""
        ...


class Worker(Protocol):
    """A process that runs synchronous tools of one run, one at a time."""

    @property
    def containment(self) -> Containment:
        """The containment of the worker, and of all processes that its tools start."""
        ...

    @property
    def alive(self) -> bool:
        """True while the worker can be asked."""
        ...

    def ask(self, work: bytes, *, grace: float = 0.0) -> "asyncio.Future[Any]":
        """Hand work over in this step; the future brings the tool's result, or raises its error.

        A cut before that first sets the tool's notice, and gives the tool its grace.
        """
        ...

    def end(self) -> None:
        """End the worker, with every process that its tool started."""
        ...


class Processes(Protocol):
    """Makes containments and workers."""

    @property
    def machine(self) -> Machine | None:
        """What the machine allows, once that was tried."""
        ...

    async def ready(self) -> Machine:
        """Start the helper if there is none, and return what the machine allows."""
        ...

    def contain(self, of: str, *, grace: float = 0.0, once: bool = False) -> Containment:
        """Make a containment for a run (or session) of that name."""
        ...

    def worker(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step."""
        ...

    def kill(self) -> None:
        """End every process of every containment now, without a grace; does not wait."""
        ...

    async def close(self) -> None:
        """End everything, bounded."""
        ...


def allowed(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that an allow-list lets through; a name in the list may end in a star."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    wanted = [name for name in environment if name in names or (prefixes and name.startswith(prefixes))]
    return {name: environment[name] for name in wanted}
