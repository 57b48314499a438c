"""Processes of a run: fence, contained before exec, registered; and they go when the run goes.

1. The fence is tested in the step that sends the request and registers its containment; there is no await between.
2. What can be ended by itself (a timeout, a grace, lines, in the background, detached) has a keeper of its own.
3. A run's first process waits, bounded, for those of the runs before it, then goes on and names what is stuck.
4. Output goes to the agent. Watchers are told that a process was started, how it ended, and the end of what it wrote.
"""

import asyncio
import errno
import shlex
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec

from interlock.core.errors import BadInput
from interlock.core.events import Spawned
from interlock.core.names import Effect, Principal, ProcessState, RunId, SessionId
from interlock.processes.base import Containment, Process, Processes, SpawnFailed, SpawnOrder, Worker
from interlock.runtime.clock import Clock
from interlock.runtime.crew import Crew
from interlock.runtime.live import Kept, LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.registry import Registry, Session
from interlock.runtime.settings import COMMAND_CHARACTERS, PROCESSES, Settings

LIVE_CHARACTERS = 2_000  # of a live process's output, in a list
EXIT_CHARACTERS = 1_000  # and in the event of its exit


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. A negative status is the signal that ended it, as everywhere in Python."""

    status: int
    data: bytes = b""  # the beginning and the end of its output, with a line between that tells what was left out
    left_out: int = 0  # bytes of output that were not kept
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """True if it exited with 0."""
        return self.status == 0

    @property
    def output(self) -> str:
        """What it wrote to its output and its error output, as text."""
        return self.data.decode("utf-8", "replace")


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live process as a list shows it."""

    pid: int | None
    command: str
    run_id: RunId
    started_at: float
    session: SessionId = SessionId("")  # whose stop ends it
    name: str | None = None
    detached: bool = False
    tail: str = ""  # the end of what it has written


class Running:
    """A process of a run: wait for it, read its lines, end it."""

    def __init__(self, run: LiveRun, process: Process, containment: Containment, order: SpawnOrder, at: float) -> None:
        self._run = run
        self._process = process
        self.order = order
        self.containment = containment
        self.started_at = at
        self.timed_out = False
        self.ending = False  # somebody has ended it; it may still be there
        self.drain_seconds = 0.0
        self.told = asyncio.Event()  # watchers were told of its exit, or there is no run to tell it of

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    @property
    def name(self) -> str | None:
        """The name it was given."""
        return self.order.name

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.status

    @property
    def running(self) -> bool:
        """True while it has not exited."""
        return not self._process.exited.is_set()

    @property
    def output(self) -> str:
        """What it has written so far, bounded."""
        return self._data()[0].decode("utf-8", "replace")

    @property
    def principal(self) -> Principal:
        """Whose run started it."""
        return self._run.principal

    @property
    def over(self) -> asyncio.Event:
        """Set when it was seen gone; where it shares a keeper, when it has exited."""
        return self.containment.done if self.order.alone else self._process.exited

    async def started(self) -> None:
        """Wait until it runs."""
        try:
            await self._process.started()
        except asyncio.CancelledError:
            if not (self.order.detached and self._run.fallen):  # (that is the fall's to decide)
                self._process.end()
            raise

    async def exited(self) -> None:
        """Wait for its exit, as long as it takes."""
        await self._process.exited.wait()

    async def wait(self) -> Finished:
        """Wait for its exit and return how it ended."""
        await self._process.exited.wait()
        await self.told.wait()  # else the run may be over before its exit is told
        if self.timed_out:
            await self._gone()
        self._run.fence.check(Effect.RESULT)
        if self._process.lost and not self.timed_out and not self.order.alone:
            raise SpawnFailed(errno.EIO, f"{self.order.argv[0]!r:.100} was ended: its keeper was killed")
        data, left_out = self._data()
        status = self._process.status
        return Finished(status=-9 if status is None else status, data=data, left_out=left_out, timed_out=self.timed_out)

    def __aiter__(self) -> AsyncIterator[str]:
        if not self.order.streamed:
            raise BadInput("lines are read in a block: `async with run.spawn(...) as process`")
        return self._lines()

    async def _lines(self) -> AsyncIterator[str]:
        while (line := await self._process.line()) is not None:
            self._run.fence.check(Effect.RESULT)
            yield line.decode("utf-8", "replace")

    async def stop(self) -> None:
        """End it, with all it started, and wait until that was seen."""
        self.end()
        await self._gone()

    def end(self) -> None:
        """End it; nothing is waited for."""
        self.ending = True
        self._process.end()

    async def _gone(self) -> None:
        """Wait until it was seen gone; its group only, where it shares a keeper."""
        over = self.over
        with anyio.move_on_after(self.order.grace + self.drain_seconds):
            await over.wait()
        if not over.is_set():
            names = ", ".join(self.containment.stuck) or self.containment.name
            raise SpawnFailed(errno.EBUSY, f"{self.order.argv[0]!r:.100} was sent KILL and is still there: {names}")

    def _data(self) -> tuple[bytes, int]:
        head, left_out, tail = self._process.output()
        marker = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return head + marker + tail, left_out

    def info(self) -> ProcessInfo:
        """Return it as a list shows it. What it writes after its run's fall is told to nobody."""
        told = self.order.detached or not self._run.fallen
        return ProcessInfo(
            pid=self.pid,
            command=command_of(self.order),
            run_id=self._run.id,
            started_at=self.started_at,
            session=self._run.home.id,
            name=self.order.name,
            detached=self.order.detached,
            tail=tail_of(self._process, LIVE_CHARACTERS) if told else "",
        )


class Spawning:
    """Starts processes for runs."""

    def __init__(
        self, registry: Registry, *, processes: Processes, crew: Crew, clock: Clock, settings: Settings
    ) -> None:
        self._registry = registry
        self._processes = processes
        self._crew = crew
        self._clock = clock
        self._settings = settings

    async def spawn(self, run: LiveRun, outlet: Outlet, order: SpawnOrder) -> Running:
        """Start a process; returns when it runs."""
        run.fence.check(Effect.SPAWN)
        beside = await self.behind(run)
        await self._processes.ready()
        while (first := _named(run, order)) is not None:
            first.drain_seconds = self._settings.drain_seconds
            await first.stop()
        running = self._start(run, outlet, order, beside)
        await running.started()
        return running

    def _start(self, run: LiveRun, outlet: Outlet, order: SpawnOrder, beside: tuple[str, ...]) -> Running:
        """One step: the fence, the request, and whatever must know of it."""
        run.fence.check(Effect.SPAWN)
        kept = kept_of(run)
        if len(kept.running) >= PROCESSES:
            raise SpawnFailed(errno.EAGAIN, f"this run has {PROCESSES} processes; wait for some, or end them")
        outlet.close_block(Effect.SPAWN)
        containment = self._containment(run, kept, order)
        try:
            process = containment.spawn(order)
        except BaseException:
            if order.alone:
                containment.cut()
            raise
        running = Running(run, process, containment, order, self._clock.wall())
        running.drain_seconds = self._settings.drain_seconds
        kept.running[running] = None
        if order.name is not None:
            kept_of(run.home if order.detached else run).named[order.name] = running
        if order.detached:
            kept_of(run.home).running[running] = None
            run.home.live += 1
        outlet.emit(Effect.SPAWN, _told(order, process, ProcessState.RUNNING, beside))
        if self._crew.start(self._follow(run, outlet, running, process), name=f"process of {run.id}") is None:
            running.told.set()
        return running

    def _containment(self, run: LiveRun, kept: Kept, order: SpawnOrder) -> Containment:
        if not order.alone:
            if kept.shared is None or kept.shared.done.is_set():
                kept.shared = self.contain(run)
            return kept.shared
        grace = min(order.grace, self._settings.drain_seconds)
        if order.detached:
            return self._processes.contain(f"session-{run.home.id}", grace=grace, once=True)
        return self.contain(run, grace=grace, once=True)

    def contain(self, run: LiveRun, *, grace: float = 0.0, once: bool = False) -> Containment:
        """Make a containment that falls with a run; registered in the step that makes it."""
        containment = self._processes.contain(f"{run.id}.g{run.generation}", grace=grace, once=once)
        self.add(run, containment)
        return containment

    @staticmethod
    def add(run: LiveRun, containment: Containment) -> None:
        """Let the fall know what to cut; what is empty makes room, unless a receipt counts it."""
        kept = kept_of(run)
        kept.grade = containment.grade
        if not run.fallen:
            kept.containments = [other for other in kept.containments if not other.done.is_set()]
        kept.containments.append(containment)

    async def _follow(self, run: LiveRun, outlet: Outlet, running: Running, process: Process) -> None:
        """Watch over a process until its containment is empty; tell its exit while its run is there to be told of."""
        order, exited = running.order, process.exited
        try:
            with anyio.move_on_after(order.timeout):
                await exited.wait()
            if not exited.is_set():
                running.timed_out = True
                running.end()
                await exited.wait()
            if not run.fallen:
                state = ProcessState.FAILED if process.pid is None else ProcessState.EXITED
                outlet.emit(Effect.SPAWN, _told(order, process, state, ()))
        finally:
            running.told.set()
        if order.alone:
            await running.containment.done.wait()
        self._forget(run, running)

    def _forget(self, run: LiveRun, running: Running) -> None:
        kept_of(run).running.pop(running, None)
        keeping, name = run.home if running.order.detached else run, running.name
        if name is not None and kept_of(keeping).named.get(name) is running:
            del kept_of(keeping).named[name]
        if running.order.detached:
            del kept_of(run.home).running[running]
            run.home.live -= 1
            self._registry.forget_if_quiet(run.home)

    async def in_worker(self, run: LiveRun, work: bytes, grace: float) -> Any:
        """Have a synchronous tool run where it can be ended, after its grace; return what it returned."""
        await self.behind(run)
        await self._processes.ready()
        run.fence.check(Effect.TOOL)  # and in the same step: a worker that falls with the run, and the work
        kept = kept_of(run)
        kept.workers = [worker for worker in kept.workers if worker.alive]
        worker = kept.workers.pop() if kept.workers else self._worker(run)
        answer = worker.ask(work, grace=min(grace, self._settings.drain_seconds))
        try:
            return await answer
        finally:
            if answer.done() and not answer.cancelled() and worker.alive:
                kept.workers.append(worker)
            else:
                worker.end()  # nobody waits for it any more

    def _worker(self, run: LiveRun) -> Worker:
        worker = self._processes.worker(f"{run.id}.g{run.generation}")
        self.add(run, worker.containment)
        return worker

    async def behind(self, run: LiveRun) -> tuple[str, ...]:
        """Wait, bounded and once, for processes of the runs before this one; return what is stuck."""
        kept = kept_of(run)
        if kept.behind is None:
            kept.behind = [
                containment
                for session in _above(run)
                for fall in session.falls or ()
                for containment in fall.containments
                if not containment.done.is_set()
            ]
        if not kept.behind:
            return ()
        run.resting += 1
        try:
            with anyio.move_on_after(self._settings.drain_seconds):
                for containment in kept.behind:
                    await containment.done.wait()
        finally:
            run.resting -= 1
            run.touched = self._clock.now()
        left = [containment for containment in kept.behind if not containment.done.is_set()]
        kept.behind = []
        return tuple(name for containment in left for name in containment.stuck or (containment.name,))


def kept_of(keeping: LiveRun | Session) -> Kept:
    """Return the processes of a run, or a session's detached ones; made when first needed."""
    if keeping.kept is None:
        keeping.kept = Kept()
    return keeping.kept


def _named(run: LiveRun, order: SpawnOrder) -> Running | None:
    if order.name is None:
        return None
    first = kept_of(run.home if order.detached else run).named.get(order.name)
    return first if first is not None and not first.over.is_set() else None


def _above(run: LiveRun) -> list[Session]:
    """The session of a run, and those of the runs it is a part of."""
    sessions = [run.session]
    while run.parent is not None:
        run = run.parent
        sessions.append(run.session)
    return sessions


def command_of(order: SpawnOrder) -> str:
    """Return a command as a person would type it, shortened."""
    line = shlex.join(order.argv)
    shown = line if len(line) <= COMMAND_CHARACTERS else line[: COMMAND_CHARACTERS - 1] + "…"
    return shown.encode("utf-8", "replace").decode()


def tail_of(process: Process, characters: int) -> str:
    """Return the end of what a process has written."""
    return process.recent().decode("utf-8", "replace")[-characters:]


def _told(order: SpawnOrder, process: Process, state: ProcessState, beside: tuple[str, ...]) -> Spawned:
    return Spawned(
        command=command_of(order),
        state=state,
        name=order.name,
        pid=process.pid,
        status=process.status,
        background=order.background,
        detached=order.detached,
        beside=beside,
        tail="" if state is ProcessState.RUNNING else tail_of(process, EXIT_CHARACTERS),
    )
