"""The port of the processes: what the runtime asks for, and the values that cross.

1. `contain` and `Containment.spawn` are synchronous: the fence is tested in the same step that sends the request.
2. `cut` cannot fail and does not wait: it hangs up, and the keeper ends everything.
3. `done` is set when the containment was seen empty, by the kernel's word, and never otherwise.
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
ARGUMENTS = 500_000  # of one process, or variables of its environment: more than any system takes
ROOT = str(Path(__file__).resolve().parent.parent)  # where the package is, for programs that load only parts of it
ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TERM", "TZ", "TMPDIR")
"""What a process sees of our environment unless it is given more."""


class SpawnFailed(InterlockError, OSError):
    """A process could not be started; nothing of it is left. `errno` is the system's own number."""


class Grade(StrEnum):
    """How surely processes can be held and ended here, best first."""

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
"""What a grade cannot reach; receipts name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confinement:
    """What the processes of a run may be and use. `grade` asks for less than the machine gives."""

    grade: Grade | None = None
    pids: int | None = 4096
    memory: int | None = None  # bytes
    host_memory: int | None = 2 * 1024**3  # bytes that one host, and what its libraries start, may use
    output_bytes: int = OUTPUT_BYTES
    environment: tuple[str, ...] = ENVIRONMENT
    agent_user: str | None = None
    apart: bool = True  # with agent_user: processes of different hosts, workers and runs do not reach each other


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One process to be started: plain values, so that they can come from another process."""

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
    streamed: bool = False  # its lines are read as they come
    inherit: bool = False  # control's own descriptors 0, 1 and 2: for `interlock run`, never for an agent to ask

    @property
    def alone(self) -> bool:
        """True if it can be ended by itself, and so has a keeper of its own."""
        bound = self.timeout is not None or self.grace > 0 or self.name is not None
        return bound or self.background or self.detached or self.streamed


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine allows, found by trial."""

    grade: Grade
    why: str = ""  # not better
    pids: str = "none"  # how the number of processes is limited: v2, v1, rlimit
    memory: str = "none"
    home: str | None = None  # the cgroup that ours are made in
    apart: bool = False  # those of one user are kept apart, by PID namespaces; tried where there is an agent_user
    together: str = ""  # why they are not
    swept: int = 0  # processes of a dead control that were ended at the start
    left: tuple[str, ...] = ()  # those that no KILL ended, named; every start tries again, and takes longer for it


class Process(Protocol):
    """A process of a run, as the runtime sees it."""

    number: int
    pid: int | None
    status: int | None
    exited: asyncio.Event  # its own exit; what it started may go on
    lost: bool  # ended with its containment, before its exit was seen

    async def started(self) -> None:
        """Wait until it runs; raise SpawnFailed if it does not."""
        ...

    def end(self) -> None:
        """End it, with all it started where it has a keeper of its own."""
        ...

    async def line(self) -> bytes | None:
        """Return the next line of its output, None at the end."""
        ...

    def output(self) -> tuple[bytes, int, bytes]:
        """Return the beginning of its output, how many bytes were left out, and the end."""
        ...

    def recent(self) -> bytes:
        """Return the end of its output, also where it is read by lines."""
        ...


class Containment(Protocol):
    """What holds processes: a body like any other to the fall, cut at t0 and observed at t2."""

    name: str
    grade: Grade
    grace: float
    state: BodyState
    done: asyncio.Event
    ended: int  # processes that its end ended
    stuck: tuple[str, ...]  # processes that a KILL did not end so far

    def spawn(self, order: SpawnOrder) -> Process:
        """Ask for a process; nothing is waited for."""
        ...

    def cut(self) -> None:
        """End everything in it, now or after its grace."""
        ...

    def drop(self) -> None:
        """It is late: insist."""
        ...

    def abandon(self) -> None:
        """Stop waiting; what is stuck is named."""
        ...


class Worker(Protocol):
    """A process that runs synchronous tools of one run, one at a time."""

    @property
    def containment(self) -> Containment:
        """What holds it, and whatever its tools start."""
        ...

    @property
    def alive(self) -> bool:
        """True while it can be asked."""
        ...

    def ask(self, work: bytes, *, grace: float = 0.0) -> "asyncio.Future[Any]":
        """Hand work over in this step; the future brings the result, or raises what the tool raised.

        If it is cut before that, it is told first, and has its grace.
        """
        ...

    def end(self) -> None:
        """End it, with what its tool started."""
        ...


class Processes(Protocol):
    """Where processes come from."""

    @property
    def machine(self) -> Machine | None:
        """What the machine allows, once that was tried."""
        ...

    async def ready(self) -> Machine:
        """See to it that there is a helper."""
        ...

    def contain(self, of: str, *, grace: float = 0.0, once: bool = False) -> Containment:
        """Make a containment for a run (or session) of that name."""
        ...

    def worker(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step."""
        ...

    async def close(self) -> None:
        """End everything, bounded."""
        ...


def allowed(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Return what an allow-list lets through; a name may end in a star."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    wanted = [name for name in environment if name in names or (prefixes and name.startswith(prefixes))]
    return {name: environment[name] for name in wanted}
