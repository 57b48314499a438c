"""Processes of a run: fenced, contained before exec, registered, and ended with the run.

1. The fence is read in the step that sends the request and registers its containment, with no await between. A process
   that was asked for in any other step could begin after the stop was acknowledged (race 5).
2. A plain `await run.spawn(...)` shares its run's keeper, which costs no fork of the helper. A process that can be
   ended by itself (a timeout, a grace, lines, in the background, detached) has a keeper of its own, at the price of one
   fork (about 1 ms). To end one of several in a shared keeper would mean to walk a tree by pids, which loses races, or
   to have a cgroup per process, which the keeper grade does not have.
3. A run's first process waits, bounded, for the processes of the runs before it, then goes on and names what is stuck.
4. A process that a shell leaves running belongs to the run: `sh -c "server &"` returns when the shell does, and
   the server lives until the run ends. Its output is read and thrown away, so that it does not block.
5. A detached process belongs to the session once it is heard to run. One that was only asked for when its run falls is
   ended with the run: nothing of a run begins after its stop was acknowledged.
6. Output goes to the agent. Watchers see that a process was started, how it ended, and the end of its output. Collected
   output keeps its beginning and its end; streamed output holds the writer back.
"""

import asyncio
import errno
import shlex
from collections.abc import Callable
from typing import Any

import anyio

from interlock.agent.flag import Flag, Happening
from interlock.agent.order import Finished, SpawnFailed, SpawnOrder
from interlock.core.answers import ProcessInfo
from interlock.core.events import ProcessData
from interlock.core.names import Effect, Principal, ProcessState
from interlock.processes.base import Containment, Process, Processes, Worker
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.session import Session
from interlock.runtime.settings import COMMAND_CHARACTERS, PROCESSES
from interlock.runtime.work import ProcessTable, Work

LIVE_CHARACTERS = 2_000  # of a live process's output, in a list
EXIT_CHARACTERS = 1_000  # of its output, in the event of its exit


class Spawned:
    """A process of a run, on control's side."""

    def __init__(self, run: LiveRun, process: Process, containment: Containment, order: SpawnOrder, at: float) -> None:
        self._run = run
        self._process = process
        self.order = order
        self.containment = containment
        self.started_at = at
        self.timed_out = False
        # `end` was called; the process may still be there.
        self.ending = False
        self.drain_seconds = 0.0
        # Set when the exit is published, or the run has fallen and it never will be.
        self.told = Flag()
        # Tells the agent's side of the exit: the status, and whether the timeout passed.
        self.on_exit: Callable[[int | None, bool], None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None until the process runs."""
        return self._process.pid

    @property
    def name(self) -> str | None:
        """The name from `spawn(name=)`."""
        return self.order.name

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.status

    @property
    def running(self) -> bool:
        """True while the process has not exited."""
        return not self._process.exited.is_set()

    @property
    def output(self) -> str:
        """The output so far, bounded."""
        return self._data()[0].decode("utf-8", "replace")

    @property
    def lost(self) -> bool:
        """True if the process ended with its containment, before its exit was seen."""
        return self._process.lost

    @property
    def principal(self) -> Principal:
        """The principal of the run that started the process."""
        return self._run.principal

    @property
    def over(self) -> Happening:
        """Set when the process was seen gone; for a process in a shared keeper, when it has exited."""
        return self.containment.done if self.order.alone else self._process.exited

    async def started(self) -> None:
        """Wait until the process runs."""
        try:
            await self._process.started()
        except asyncio.CancelledError:
            # For a detached process of a fallen run the fall has decided already (rule 5).
            if not (self.order.detached and self._run.fallen):
                self._process.end()
            raise

    async def exited(self) -> None:
        """Wait for the exit, without a bound."""
        await self._process.exited.wait()

    async def wait(self) -> Finished:
        """Wait for the exit and return how the process ended."""
        await self._process.exited.wait()
        # Wait until the exit is published: the run might otherwise end first, and nothing of a run follows its end.
        await self.told.wait()
        if self.timed_out:
            await self._gone()
        self._run.fence.check(Effect.RESULT)
        if self._process.lost and not self.timed_out and not self.order.alone:
            raise SpawnFailed(errno.EIO, f"{self.order.argv[0]!r:.100} was ended: its keeper was killed")
        data, left_out = self._data()
        status = self._process.status
        return Finished(status=-9 if status is None else status, data=data, left_out=left_out, timed_out=self.timed_out)

    async def line(self) -> bytes | None:
        """Return the next line of the output, None at the end."""
        return await self._process.line()

    def tell_exit(self) -> None:
        """Tell the agent's side of an exit, once, before anything that follows from it."""
        if not self.running and self.on_exit is not None:
            on_exit, self.on_exit = self.on_exit, None
            on_exit(self.status, self.timed_out)

    async def stop(self) -> None:
        """End the process with all it started, and wait until that was seen."""
        self.end()
        await self._gone()

    def end(self) -> None:
        """End the process without waiting."""
        self.ending = True
        self._process.end()

    async def _gone(self) -> None:
        """Wait until the process was seen gone; in a shared keeper, its process group only."""
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
        """Return the process as a list shows it. Output after its run's fall is shown to nobody."""
        told = self.order.detached or not self._run.fallen
        return ProcessInfo(
            pid=self.pid,
            command=command_of(self.order),
            run_id=self._run.id,
            started_at=self.started_at,
            session=self._run.ties.home.id,
            name=self.order.name,
            detached=self.order.detached,
            tail=tail_of(self._process, LIVE_CHARACTERS) if told else "",
        )


class Spawning(Inner):
    """Starts processes for runs."""

    def __init__(self, inside: Inside, *, processes: Processes) -> None:
        super().__init__(inside)
        self._processes = processes

    async def spawn(self, run: LiveRun, outlet: Outlet, order: SpawnOrder) -> Spawned:
        """Start a process; return when it runs."""
        run.fence.check(Effect.SPAWN)
        beside = await self.behind(run)
        await self._processes.ready()
        while (first := _named(run, order)) is not None:
            first.drain_seconds = self._settings.drain_seconds
            await first.stop()
        running = self._start(run, outlet, order, beside)
        await running.started()
        return running

    def _start(self, run: LiveRun, outlet: Outlet, order: SpawnOrder, beside: tuple[str, ...]) -> Spawned:
        """Read the fence, send the request and register the process, in one synchronous step.

        Every registration that the fall needs to find the process is made here. After an await between fence and
        registration the fall would not find it, and the process would outlive the run.
        """
        run.fence.check(Effect.SPAWN)
        kept = kept_of(run.work)
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
        running = Spawned(run, process, containment, order, self._clock.wall())
        running.drain_seconds = self._settings.drain_seconds
        kept.running[running] = None
        if order.name is not None:
            kept_of(run.ties.home if order.detached else run.work).named[order.name] = running
        if order.detached:
            kept_of(run.ties.home).running[running] = None
            run.ties.home.live += 1
        outlet.emit(Effect.SPAWN, _told(order, process, ProcessState.RUNNING, beside))
        if self._crew.start(self._follow(run, outlet, running, process), name=f"process of {run.id}") is None:
            running.told.set()
        return running

    def _containment(self, run: LiveRun, kept: ProcessTable, order: SpawnOrder) -> Containment:
        if not order.alone:
            if kept.shared is None or kept.shared.done.is_set():
                kept.shared = self.contain(run)
            return kept.shared
        grace = min(order.grace, self._settings.drain_seconds)
        if order.detached:
            return self._processes.contain(f"session-{run.ties.home.id}", grace=grace, once=True)
        return self.contain(run, grace=grace, once=True)

    def contain(self, run: LiveRun, *, grace: float = 0.0, once: bool = False) -> Containment:
        """Make a containment that falls with a run, and register it in the same step."""
        containment = self._processes.contain(f"{run.id}.g{run.generation}", grace=grace, once=once)
        self.add(run, containment)
        return containment

    @staticmethod
    def add(run: LiveRun, containment: Containment) -> None:
        """Register a containment for the fall to cut; drop empty ones, unless a receipt counts them."""
        kept = kept_of(run.work)
        kept.grade = containment.grade
        if not run.fallen:
            kept.containments = [other for other in kept.containments if not other.done.is_set()]
        kept.containments.append(containment)

    async def _follow(self, run: LiveRun, outlet: Outlet, running: Spawned, process: Process) -> None:
        """Follow a process until its containment is empty; publish its exit if its run has not fallen."""
        order, exited = running.order, process.exited
        try:
            with anyio.move_on_after(order.timeout):
                await exited.wait()
            if not exited.is_set():
                running.timed_out = True
                running.end()
                await exited.wait()
            running.tell_exit()
            if not run.fallen:
                state = ProcessState.FAILED if process.pid is None else ProcessState.EXITED
                outlet.emit(Effect.SPAWN, _told(order, process, state, ()))
        finally:
            running.told.set()
        if order.alone:
            await running.containment.done.wait()
        self._forget(run, running)

    def _forget(self, run: LiveRun, running: Spawned) -> None:
        kept_of(run.work).running.pop(running, None)
        keeping, name = run.ties.home if running.order.detached else run.work, running.name
        if name is not None and kept_of(keeping).named.get(name) is running:
            del kept_of(keeping).named[name]
        if running.order.detached:
            del kept_of(run.ties.home).running[running]
            run.ties.home.live -= 1
            self._registry.forget_if_quiet(run.ties.home)

    async def in_worker(self, run: LiveRun, work: bytes, grace: float) -> Any:
        """Run a synchronous tool in a worker, which can be killed; return its result."""
        await self.behind(run)
        await self._processes.ready()
        # Fence, registration of the worker and handing over of the work are one step.
        run.fence.check(Effect.TOOL)
        kept = kept_of(run.work)
        kept.workers = [worker for worker in kept.workers if worker.alive]
        worker = kept.workers.pop() if kept.workers else self._worker(run)
        answer = worker.ask(work, grace=min(grace, self._settings.drain_seconds))
        try:
            return await answer
        finally:
            if answer.done() and not answer.cancelled() and worker.alive:
                kept.workers.append(worker)
            else:
                worker.end()

    def _worker(self, run: LiveRun) -> Worker:
        worker = self._processes.worker(f"{run.id}.g{run.generation}")
        self.add(run, worker.containment)
        return worker

    async def behind(self, run: LiveRun) -> tuple[str, ...]:
        """Wait, bounded and once per run, for processes of the runs before this one; return the names of stuck ones."""
        kept = kept_of(run.work)
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
        with run.limits.rest(self._clock.now), anyio.move_on_after(self._settings.drain_seconds):
            for containment in kept.behind:
                await containment.done.wait()
        left = [containment for containment in kept.behind if not containment.done.is_set()]
        kept.behind = []
        return tuple(name for containment in left for name in containment.stuck or (containment.name,))


def kept_of(keeping: Work | Session) -> ProcessTable:
    """Return the processes of a run, or a session's detached ones; make the record when first needed."""
    if keeping.processes is None:
        keeping.processes = ProcessTable()
    return keeping.processes


def _named(run: LiveRun, order: SpawnOrder) -> Spawned | None:
    if order.name is None:
        return None
    first = kept_of(run.ties.home if order.detached else run.work).named.get(order.name)
    return first if first is not None and not first.over.is_set() else None


def _above(run: LiveRun) -> list[Session]:
    """Return the sessions of a run and of its parents."""
    sessions = [run.session]
    while run.ties.parent is not None:
        run = run.ties.parent
        sessions.append(run.session)
    return sessions


def command_of(order: SpawnOrder) -> str:
    """Return a command as a person would type it, shortened."""
    line = shlex.join(order.argv)
    shown = line if len(line) <= COMMAND_CHARACTERS else line[: COMMAND_CHARACTERS - 1] + "…"
    return shown.encode("utf-8", "replace").decode()


def tail_of(process: Process, characters: int) -> str:
    """Return the end of a process's output."""
    return process.recent().decode("utf-8", "replace")[-characters:]


def _told(order: SpawnOrder, process: Process, state: ProcessState, beside: tuple[str, ...]) -> ProcessData:
    return ProcessData(
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
