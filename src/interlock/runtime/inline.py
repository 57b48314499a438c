"""Where agents run in the embedder's own loop, on a leash.

1. A body is cut with one cancel, so that it may clean up; after its grace it is simply never resumed.
2. A coroutine that was dropped is kept for ever: collecting it would enter its code again. It is abandoned by name:
   what it had begun elsewhere nobody saw end.
3. What cannot be ended from here (a thread, tasks the agent made itself) is fenced, and abandoned by name. So are
   threads that a library started, or gave work, while the run ran: whether they act for it cannot be seen.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from interlock.core.errors import Refused, Stale
from interlock.core.names import BodyState, RunId, ToolState
from interlock.processes.notice import Notice, heard, stopping
from interlock.runtime import pools
from interlock.runtime.crew import Crew
from interlock.runtime.live import Body, ToolCall
from interlock.runtime.tool import ToolSpec

DROPPED = " (never resumed)"  # what a receipt adds to the name of a body that was dropped
THREADS = 64  # synchronous tools that may run at once
THREADS_NAMED = 5  # in a receipt
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.001, 0.05  # at threads that were left at work


def _keep(body: Coroutine[Any, Any, Any]) -> None:
    """Never let a coroutine be freed: that would throw GeneratorExit into it, which runs its code again.

    A list would not do, since the interpreter empties it on its way out.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(body))


class Dropped(BaseException):
    """A body was not resumed after its grace; only its own driver sees this."""


class Leash:
    """Drives a coroutine inside the awaiting task and can refuse to resume it."""

    def __init__(
        self, body: Coroutine[Any, Any, Any], *, name: str, call: ToolCall | None = None, grace: float = 0.0
    ) -> None:
        self.name = name
        self.grace = grace
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self._body = body
        self._call = call
        self.task: asyncio.Task[Any] | None = None
        self.dropped = False  # for good: its code is where it was
        self._dropped = False

    def holds(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether what runs in a task now is on this leash."""
        return self.task is task and not self.done.is_set()

    def cut(self) -> None:
        """Throw one cancel into the body; one that has not begun never will."""
        if not self.done.is_set():
            self.state = BodyState.CUT
            if self.task is not None:
                self.task.cancel()

    def drop(self) -> None:
        """Never resume the body."""
        if not self.done.is_set() and self.task is not None:
            self._dropped = True
            self.task.cancel()

    def abandon(self) -> None:
        """Give up: whatever the body waits for will not let go of it."""
        self.state = BodyState.ABANDONED
        if self._call is not None:
            self._call.state = ToolState.ABANDONED

    def _leave(self) -> None:
        """Leave the body where it stands, and say so: nobody saw it end."""
        _keep(self._body)
        self.dropped = True
        self.state = BodyState.ABANDONED
        self.name += DROPPED

    def __await__(self) -> Generator[Any, None, Any]:
        self.task = asyncio.current_task()
        thrown: BaseException | None = None
        try:
            if self.state is BodyState.CUT:
                self._body.close()  # not begun: there is nothing of it to run
                raise asyncio.CancelledError
            while not self._dropped:
                try:
                    wanted = self._body.send(None) if thrown is None else self._body.throw(thrown)
                except StopIteration as returned:
                    return returned.value
                thrown = None
                try:
                    yield wanted
                except GeneratorExit:
                    self._leave()
                    raise
                except BaseException as error:
                    thrown = error
            self._leave()
            raise Dropped
        finally:
            if self.state is BodyState.RUNNING:
                self.state = BodyState.RETURNED
            self.done.set()


class ThreadBody:
    """A synchronous tool in a thread: it cannot be ended, only fenced."""

    def __init__(self, name: str, call: ToolCall | None = None) -> None:
        self.name = name
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._cut = False

    def begin(self) -> bool:
        """Ask, in the thread, whether the work may still begin."""
        return not self._cut

    def cut(self) -> None:
        """Keep it from beginning. Nothing reaches into a thread that has begun; its result is fenced."""
        self._cut = True

    def drop(self) -> None:
        """Nothing reaches into a thread."""

    def abandon(self) -> None:
        """Say that it still runs."""
        self.state = BodyState.ABANDONED
        if self._call is not None:
            self._call.state = ToolState.ABANDONED

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Take the result; called on the loop."""
        self.value, self.error = value, error
        if self.state is BodyState.RUNNING:
            self.state = BodyState.RETURNED
        self.done.set()


class Threads(Protocol):
    """Where synchronous tools run; the seeded loop has a twin without threads."""

    def start(self, work: Callable[[], Any], body: ThreadBody) -> None:
        """Run the work elsewhere and call `body.finish` on the loop."""
        ...

    def others(self) -> frozenset[threading.Thread | pools.Nameless]:
        """Return the threads of this process that may act and are not known here."""
        ...


class DaemonThreads:
    """A daemon thread per call: an abandoned one must not keep the interpreter from ending."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = 0

    def start(self, work: Callable[[], Any], body: ThreadBody) -> None:
        """Run the work in a thread of its own."""
        if self._running >= THREADS:
            raise Refused(f"{THREADS} synchronous tools are still running; make this one async or wait for them")
        run = contextvars.copy_context().run
        name = f"{pools.OWN} {body.name}"
        threading.Thread(target=run, args=(self._work, work, body), name=name, daemon=True).start()
        self._running += 1

    def others(self) -> frozenset[threading.Thread | pools.Nameless]:
        """Return the threads of this process that may act and are not known here."""
        return pools.at_work()

    def _work(self, work: Callable[[], Any], body: ThreadBody) -> None:
        value, error = None, None
        try:
            value = work() if body.begin() else None
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._done, body, value, error)

    def _done(self, body: ThreadBody, value: Any, error: BaseException | None) -> None:
        self._running -= 1
        body.finish(value, error)


class Strangers:
    """Threads that were started, or given work, by nobody knows whom while a run ran: seen idle or gone, or named.

    One that began while several runs ran may act for each of them.
    """

    def __init__(self, run_id: RunId, running: list[Body], threads: Threads) -> None:
        self.name = f"threads of {run_id}"
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self._running = running
        self._threads = threads
        self._before = threads.others()
        self._fallen = False
        self._wait = FIRST_LOOK_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Nothing reaches into a thread; from here on it is looked for."""
        self._fallen = True
        self.look()

    def drop(self) -> None:
        """Nothing reaches into a thread."""

    def look(self) -> None:
        """See whether any is left at work, once the run's own code is over and it has fallen; if so, look again."""
        if not self._fallen or self.done.is_set() or not self._running[0].done.is_set():
            return
        if all(body is self or body.done.is_set() for body in self._running) and not self._left():
            self._end(BodyState.RETURNED)
            return
        self._timer = asyncio.get_running_loop().call_later(self._wait, self.look)
        self._wait = min(2 * self._wait, LAST_LOOK_SECONDS)

    def abandon(self) -> None:
        """Name those that are still at work."""
        if self._timer is not None:
            self._timer.cancel()
        names = sorted(thread.name for thread in self._left())
        if names:
            listed = ", ".join(names[:THREADS_NAMED]) + (", …" if len(names) > THREADS_NAMED else "")
            self.name = f"{self.name}, or of a run beside it: {listed}"
        self._end(BodyState.ABANDONED if names else BodyState.RETURNED)

    def _left(self) -> frozenset[threading.Thread | pools.Nameless]:
        return self._threads.others() - self._before

    def _end(self, state: BodyState) -> None:
        self.state = state
        self._before = frozenset()  # (a thread that has ended is not to be kept in memory)
        self.done.set()


class Bodies:
    """Code of one run that runs in this loop: the agent's own, then those of its tools."""

    def __init__(self, run_id: RunId, running: list[Body], *, crew: Crew, threads: Threads) -> None:
        self._run_id = run_id
        self.running = running
        self._crew = crew
        self._threads = threads

    async def in_place(self, spec: ToolSpec, body: Coroutine[Any, Any, Any], call: ToolCall | None = None) -> Any:
        """Run a tool's body in the calling task; in a task the agent made itself it gets a leash of its own."""
        task = asyncio.current_task()
        for other in self.running:
            if isinstance(other, Leash) and other.holds(task):
                other.grace = max(other.grace, spec.grace)
                return await body
        leash = Leash(body, name=f"tool {spec.name}", call=call, grace=spec.grace)
        self._add(leash)
        try:
            return await leash
        except Dropped:
            raise Stale(f"run {self._run_id} has ended; its tool {spec.name} was not resumed") from None

    async def in_thread(self, name: str, work: Callable[[], Any], call: ToolCall | None = None) -> Any:
        """Run a tool's body in a thread of its own."""
        body = ThreadBody(f"thread of tool {name}", call)
        self._threads.start(work, body)
        self._add(body)
        await body.done.wait()
        if body.error is not None:
            raise body.error
        return body.value

    async def side_by_side(
        self, bodies: Sequence[tuple[ToolSpec, Coroutine[Any, Any, None]]], calls: Sequence[ToolCall | None]
    ) -> None:
        """Run bodies next to each other, each a root task on a leash of its own; wait for all."""
        leashes = []
        for (spec, body), call in zip(bodies, calls, strict=True):
            leash = Leash(body, name=f"tool {spec.name}", call=call, grace=spec.grace)
            self._add(leash)
            leashes.append(leash)
            self._crew.start(_quietly(leash, stopping()), name=f"{self._run_id} {spec.name}")
        try:
            for leash in leashes:
                await leash.done.wait()
        except BaseException:
            for leash in leashes:
                leash.cut()  # the agent gave the batch up, or the run fell: nobody waits for them any more
            raise

    def _add(self, body: Body) -> None:
        """Let the fall know what to cut; bodies that are done make room, all but the agent's own."""
        self.running[1:] = [other for other in self.running[1:] if not other.done.is_set()]
        self.running.append(body)

    def drop(self) -> None:
        """Resume none of them."""
        for body in self.running:
            body.drop()


async def _quietly(leash: Leash, notice: Notice) -> None:
    """Drive a side body to its end; what it raised is in its result, or its run has fallen.

    Its task has control's own context, so it is given the notice of the run: else its tool would never hear.
    """
    try:
        with heard(notice):
            await leash
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit in a root task would stop the embedder's loop
        return
