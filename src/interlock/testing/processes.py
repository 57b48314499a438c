"""The process port's twin: a keeper that plays processes on the virtual clock.

The seeded loop cannot wait for real processes. With this twin, spawn, fall, drain and takeover are explored together
with everything else.

A virtual process acts every ACT_SECONDS from its start to its death, and the oracle sees each act. Like a real one it
starts a moment after the request and dies a moment after the hang-up; now and then one is stuck. `argv` is ("work",
run id, seconds).
"""

import asyncio
import errno
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

from interlock.core.names import BodyState, RunId
from interlock.processes.base import Grade, Machine, SpawnFailed, SpawnOrder
from interlock.testing.oracle import Oracle

READY_SECONDS = (0.0, 0.0, 1e-4, 0.003)
START_SECONDS = (0.0, 0.0, 1e-4, 0.002, 0.02)
DEATH_SECONDS = (0.0, 1e-4, 0.003, 0.03, 0.03)
STUCK_SECONDS = 3.0
ACT_SECONDS = 0.004


class Book:
    """Compares what processes did with what callers were told; without an oracle it judges nothing."""

    def __init__(self, oracle: Oracle | None = None) -> None:
        self.oracle = oracle
        self.stuck: set[int] = set()
        self._lives: dict[int, tuple[RunId, bool]] = {}

    def requested(self, run_id: RunId, number: int) -> None:
        """Note that a run has requested a process."""
        oracle = self.oracle
        if oracle is None:
            return
        oracle._note("asked for", run_id, number)
        if run_id in oracle._over or run_id in oracle._terminal:
            oracle._fail(f"P1: {run_id} asked for a process after its end was told")

    def ran(self, run_id: RunId, number: int, *, detached: bool) -> None:
        """Note that a process was started."""
        oracle = self.oracle
        self._lives[number] = (run_id, detached)
        if oracle is None:
            return
        oracle._note("ran", run_id, number)
        if run_id in oracle._over and not detached:
            oracle._fail(f"P1: a process of {run_id} began after its end was acknowledged")
        for other, (before, free) in self._lives.items():
            same = oracle._said.get(before, "")[:1] == oracle._said.get(run_id, "")[:1]
            if same and before != run_id and before in oracle._terminal and not free and other not in self.stuck:
                oracle._fail(f"P3: a process of {run_id} began beside one of {before}")

    def acted(self, run_id: RunId, number: int) -> None:
        """Note that a process acted."""
        if self.oracle is not None and run_id in self.oracle._drained and not self._lives[number][1]:
            self.oracle._fail(f"P3: a process of {run_id} acted after the receipt said drained")

    def died(self, number: int) -> None:
        """Note that a process is gone."""
        run_id, _ = self._lives.pop(number)
        if self.oracle is not None:
            self.oracle._note("died", run_id, number)

    def crunched(self, run_id: RunId, tool: str) -> None:
        """Note that a synchronous tool began."""
        if self.oracle is not None:
            self.oracle.acted(run_id, tool, begins=True)

    async def close(self) -> None:
        """Wait for every fall to drain; then report a process that lives, detached or not, and is not stuck."""
        assert self.oracle is not None
        for fall in list(self.oracle.control._registry.falls.values()):
            await fall.drained.wait()
        for number, (run_id, _) in self._lives.items():
            if number not in self.stuck:
                self.oracle._fail(f"P3: a process of {run_id} outlived the end of its session")


class VirtualProcess:
    """A process that only acts."""

    def __init__(self, number: int, keeper: "VirtualContainment", order: SpawnOrder) -> None:
        self.number = number
        self.order = order
        self.pid: int | None = None
        self.status: int | None = None
        self.lost = False
        self.exited = asyncio.Event()
        self.run_id = RunId(order.argv[1])
        self._keeper = keeper
        self._answered = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def lives(self) -> bool:
        """True from its start to its death."""
        return self.pid is not None and self.status is None

    def begin(self) -> None:
        """Start, unless the keeper was hung up on first: a real keeper checks for that right before exec."""
        if self._keeper.hung_up:
            self._answered.set()
            self.exited.set()
            return
        self.pid = self.number
        self._answered.set()
        self._keeper.book.ran(self.run_id, self.number, detached=self.order.detached)
        self._act()
        self._timers.append(asyncio.get_running_loop().call_later(float(self.order.argv[2]), self.die, 0))

    def _act(self) -> None:
        if self.lives:
            self._keeper.book.acted(self.run_id, self.number)
            self._timers = [timer for timer in self._timers if not timer.cancelled()][-2:]
            self._timers.append(asyncio.get_running_loop().call_later(ACT_SECONDS, self._act))

    def die(self, status: int) -> None:
        """Die with a status."""
        for timer in self._timers:
            timer.cancel()
        if self.lives:
            self.status = status
            self._keeper.book.died(self.number)
        self._answered.set()
        self.exited.set()
        self._keeper.look()

    async def started(self) -> None:
        """Wait until the process runs; raise SpawnFailed if it never will."""
        await self._answered.wait()
        if self.pid is None:
            raise SpawnFailed(errno.ECANCELED, "it was ended before it began")

    def end(self) -> None:
        """End the process."""
        if self.order.alone:
            self._keeper.cut()
        else:
            self._keeper.later(self.die, -9)

    async def line(self) -> bytes | None:
        """Wait for the exit and return None: a virtual process writes nothing."""
        await self.exited.wait()
        return None

    def output(self) -> tuple[bytes, int, bytes]:
        """Return no output: a virtual process writes nothing."""
        return b"", 0, b""

    def recent(self) -> bytes:
        """Return no output: a virtual process writes nothing."""
        return b""


class VirtualContainment:
    """A containment whose keeper answers after delays that the seed picks."""

    def __init__(self, processes: "VirtualProcesses", of: str, grace: float, once: bool) -> None:
        self.name = f"processes of {of}"
        self.grade = Grade.KEEPER
        self.grace = grace
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self.ended = 0
        self.stuck: tuple[str, ...] = ()
        self.hung_up = False
        self._once = once
        self._processes = processes
        self._held: list[VirtualProcess] = []
        self.doomed = processes.random.random() < 0.03  # its processes are stuck at the first cut

    @property
    def book(self) -> "Book":
        """The book that judges what processes do."""
        return self._processes.book

    def spawn(self, order: SpawnOrder) -> VirtualProcess:
        """Accept a request, and start its process a moment later."""
        if self.hung_up:
            raise SpawnFailed(errno.ECANCELED, "it was ended before it began")
        process = VirtualProcess(self._processes.number(), self, order)
        self._held.append(process)
        self.book.requested(process.run_id, process.number)
        self.later(process.begin, delays=START_SECONDS)
        return process

    def cut(self) -> None:
        """Hang up; its processes die a moment later, or after STUCK_SECONDS."""
        if self.hung_up:
            return
        self.hung_up = True
        if self.state is BodyState.RUNNING:
            self.state = BodyState.CUT
        if self.doomed:
            self.stuck = (f"stuck {self.name}",)
            self.book.stuck.update([process.number for process in self._held])
            asyncio.get_running_loop().call_later(STUCK_SECONDS, self._kill)
        else:
            self.later(self._kill)

    def _kill(self) -> None:
        for process in self._held:
            self.ended += process.lives
            process.die(-9)
        self.look()

    def look(self) -> None:
        """Set `done` if the containment is over and empty."""
        over = self.hung_up or (self._once and self._held and all(each.exited.is_set() for each in self._held))
        if over and not any(process.lives for process in self._held) and (not self.doomed or self.ended):
            self.hung_up = True
            self.stuck = ()
            self.done.set()

    def later(self, do: Callable[..., None], *values: Any, delays: tuple[float, ...] = DEATH_SECONDS) -> None:
        """Call a function after a delay that the seed picks."""
        asyncio.get_running_loop().call_later(self._processes.random.choice(delays), do, *values)

    def drop(self) -> None:
        """Do nothing: a virtual keeper cannot be lost."""

    def abandon(self) -> None:
        """Give up on it, and name it as stuck."""
        self.state = BodyState.ABANDONED
        self.stuck = self.stuck or (self.name,)


class VirtualWorker:
    """Runs a synchronous tool at a later instant, unless it was ended by then."""

    def __init__(self, containment: VirtualContainment) -> None:
        self.containment = containment

    @property
    def alive(self) -> bool:
        """True until the worker's containment is cut."""
        return not self.containment.hung_up

    def ask(self, work: bytes, *, grace: float = 0.0) -> asyncio.Future[Any]:
        """Do the work a moment later; work that is cut before that does not begin, whatever its grace."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.containment.later(self._work, work, answer, delays=(0.0, 1e-4, 0.003, 0.03))
        return answer

    def _work(self, work: bytes, answer: asyncio.Future[Any]) -> None:
        if self.alive:
            function, arguments = pickle.loads(work)
            self.containment.book.crunched(RunId(arguments.get("run_id", "")), function.__name__)
            if not answer.done():
                answer.set_result(function(**arguments))

    def end(self) -> None:
        """End the worker."""
        self.containment.cut()


class VirtualProcesses:
    """The processes of a control on a virtual clock; `book` judges them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.machine = Machine(grade=Grade.KEEPER)
        self.book = Book()
        self._last = 0
        self._held: list[VirtualContainment] = []

    def number(self) -> int:
        """Return a pid that no other process had."""
        self._last += 1
        return self._last

    async def ready(self) -> Machine:
        """Return the machine after a moment."""
        await asyncio.sleep(self.random.choice(READY_SECONDS))
        return self.machine

    def contain(self, of: str, *, grace: float = 0.0, once: bool = False) -> VirtualContainment:
        """Make a containment."""
        held = VirtualContainment(self, of, grace, once)
        self._held.append(held)
        return held

    def worker(self, of: str) -> VirtualWorker:
        """Make a worker."""
        return VirtualWorker(self.contain(of))

    def kill(self) -> None:
        """End everything now."""
        for held in self._held:
            held.grace = 0.0
            held.cut()

    async def close(self) -> None:
        """End everything."""
        for held in self._held:
            held.cut()
            held.doomed = False
            held._kill()
