"""Bodies in the embedder's own loop: agents and tools on a leash.

1. A small awaitable (`Leash`) drives a body's coroutine inside the awaiting task. To cut the body it throws in one
   cancel, so that the body may clean up. After its grace the body is not resumed any more: the leash leaves the loop
   instead of passing on the next step, and the task ends. So an agent that swallows every cancel costs nothing and
   keeps nothing from closing (race 38). A level-triggered cancel scope around such an agent would burn a core for ever.
2. A dropped coroutine is never freed, not even when the interpreter ends: freeing it would enter its code again. The
   receipt names it as abandoned, because nothing shows that what it began elsewhere has ended.
3. Bodies of a parallel batch are root tasks with leashes of their own; so is a tool that the agent calls from a task it
   made itself.
4. Code that cannot be ended from here (a thread, tasks the agent made) is fenced, and named as abandoned. So are
   threads that a library started, or gave work, while the run ran: nothing shows whether they act for the run.
5. A fallen body that goes on trying is not resumed after REFUSALS refused verbs, even within its grace
   (`InlinePort.checkpoint`). Otherwise a loop of `say` that swallows Stale would spin until the grace is over.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from interlock.agent import pools
from interlock.agent.crew import Crew
from interlock.agent.flag import Flag, Happening
from interlock.agent.notice import Notice, heard, stopping
from interlock.agent.tool import ToolSpec
from interlock.core.errors import Refused, Stale
from interlock.core.names import BodyState, RunId, ToolState

# A receipt adds this to the name of a dropped body.
DROPPED = " (never resumed)"
# Synchronous tools with thread=True that may run at once.
THREADS = 64
# Threads that one receipt names.
THREADS_NAMED = 5
# The first and the longest pause between two looks at threads that are still at work.
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.001, 0.05


class Body(Protocol):
    """Code of a run that is being executed: the agent's own, or a tool's. None of these methods waits."""

    name: str
    # Seconds that the tool asked for to clean up.
    grace: float
    state: BodyState

    @property
    def done(self) -> Happening:
        """Set when the code is over."""
        ...

    def cut(self) -> None:
        """Ask the code to end: one cancel, so that it may clean up."""
        ...

    def drop(self) -> None:
        """Never resume the code."""
        ...

    def abandon(self) -> None:
        """Stop waiting for the code. It may still run, fenced, and the receipt names it."""
        ...


class Called(Protocol):
    """A tool call, as far as its body changes it."""

    state: ToolState


def _keep(body: Coroutine[Any, Any, Any]) -> None:
    """Keep a coroutine from being freed: freeing throws GeneratorExit into it, which runs its code again.

    A list of coroutines would not do: the interpreter empties it at exit.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(body))


class Dropped(BaseException):
    """A body was not resumed after its grace; only the code that awaits the leash sees this."""


class Leash:
    """Drives a coroutine inside the awaiting task and can refuse to resume it."""

    def __init__(
        self, body: Coroutine[Any, Any, Any], *, name: str, call: Called | None = None, grace: float = 0.0
    ) -> None:
        self.name = name
        self.grace = grace
        self.state = BodyState.RUNNING
        self.done = Flag()
        self._body = body
        self._call = call
        self.task: asyncio.Task[Any] | None = None
        # The body was left where it stood, for good.
        self.dropped = False
        # `drop` was called: do not resume the body again.
        self._dropped = False

    def holds(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the code that a task runs now is on this leash."""
        return self.task is task and not self.done.is_set()

    def cut(self) -> None:
        """Throw one cancel into the body; a body that has not begun never will."""
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
        """Name the body as abandoned: it did not end within its bound."""
        self.state = BodyState.ABANDONED
        if self._call is not None:
            self._call.state = ToolState.ABANDONED

    def _leave(self) -> None:
        """Leave the body where it stands, and name it as abandoned: it was not seen to end."""
        _keep(self._body)
        self.dropped = True
        self.state = BodyState.ABANDONED
        self.name += DROPPED

    def __await__(self) -> Generator[Any, None, Any]:
        self.task = asyncio.current_task()
        thrown: BaseException | None = None
        try:
            if self.state is BodyState.CUT:
                # The body has not begun, so closing it runs none of its code.
                self._body.close()
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

    def __init__(self, name: str, call: Called | None = None) -> None:
        self.name = name
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = Flag()
        self.value: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._cut = False

    def begin(self) -> bool:
        """Return, in the thread, whether the work may still begin."""
        return not self._cut

    def cut(self) -> None:
        """Keep the work from beginning. A thread that has begun cannot be ended; its result is fenced."""
        self._cut = True

    def drop(self) -> None:
        """Do nothing: a thread cannot be ended."""

    def abandon(self) -> None:
        """Name the thread as abandoned: it still runs."""
        self.state = BodyState.ABANDONED
        if self._call is not None:
            self._call.state = ToolState.ABANDONED

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Set the result; called on the loop."""
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
        """Return the threads of this process that may act for a run and that control did not start."""
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
        """Return the threads of this process that may act for a run and that control did not start."""
        return pools.at_work()

    def _work(self, work: Callable[[], Any], body: ThreadBody) -> None:
        value, error = None, None
        try:
            value = work() if body.begin() else None
        except BaseException as raised:
            error = raised
        # RuntimeError: the loop is closed, so no task waits for the result.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._done, body, value, error)

    def _done(self, body: ThreadBody, value: Any, error: BaseException | None) -> None:
        self._running -= 1
        body.finish(value, error)


class Strangers:
    """Threads that libraries started, or gave work, while a run ran: seen idle or gone, or named in the receipt.

    A thread that began while several runs ran may act for each of them, so each of their receipts names it.
    """

    def __init__(self, run_id: RunId, running: list[Body], threads: Threads) -> None:
        self.name = f"threads of {run_id}"
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = Flag()
        self._running = running
        self._threads = threads
        self._before = threads.others()
        self._fallen = False
        self._wait = FIRST_LOOK_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def cut(self) -> None:
        """Begin to look for threads that are still at work; a thread cannot be ended."""
        self._fallen = True
        self.look()

    def drop(self) -> None:
        """Do nothing: a thread cannot be ended."""

    def look(self) -> None:
        """Once the run has fallen and its own code is over, look whether a thread is at work; if so, look again."""
        if not self._fallen or self.done.is_set() or not self._running[0].done.is_set():
            return
        if all(body is self or body.done.is_set() for body in self._running) and not self._left():
            self._end(BodyState.RETURNED)
            return
        self._timer = asyncio.get_running_loop().call_later(self._wait, self.look)
        self._wait = min(2 * self._wait, LAST_LOOK_SECONDS)

    def abandon(self) -> None:
        """Name the threads that are still at work as abandoned."""
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
        # Free the references: a thread that has ended must not stay in memory, and the list of bodies holds this one.
        self._before, self._running = frozenset(), []
        self.done.set()


class Bodies:
    """Code of one run that runs in this loop: the agent's own, then those of its tools."""

    def __init__(self, run_id: RunId, running: list[Body], *, crew: Crew, threads: Threads) -> None:
        self._run_id = run_id
        self.running = running
        self._crew = crew
        self._threads = threads

    async def in_place(self, spec: ToolSpec, body: Coroutine[Any, Any, Any], call: Called | None = None) -> Any:
        """Run a tool's body in the calling task; in a task that the agent made, on a leash of its own."""
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

    async def in_thread(self, name: str, work: Callable[[], Any], call: Called | None = None) -> Any:
        """Run a tool's body in a thread of its own."""
        body = ThreadBody(f"thread of tool {name}", call)
        self._threads.start(work, body)
        self._add(body)
        await body.done.wait()
        if body.error is not None:
            raise body.error
        return body.value

    async def side_by_side(
        self, bodies: Sequence[tuple[ToolSpec, Coroutine[Any, Any, None]]], calls: Sequence[Called | None]
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
        # The agent gave the batch up, or the run fell: no code will read the results.
        except BaseException:
            for leash in leashes:
                leash.cut()
            raise

    def _add(self, body: Body) -> None:
        """Add a body for the fall to cut; remove bodies that are done, but never the agent's own."""
        self.running[1:] = [other for other in self.running[1:] if not other.done.is_set()]
        self.running.append(body)

    def drop(self) -> None:
        """Resume none of the bodies."""
        for body in self.running:
            body.drop()


async def _quietly(leash: Leash, notice: Notice) -> None:
    """Drive one body of a batch to its end. Its error is in its result already, or its run has fallen.

    The task has control's own context, so it is given the run's notice: without it `interlock.stopping()` in the tool
    would never be set.
    """
    try:
        with heard(notice):
            await leash
    except KeyboardInterrupt:
        raise
    # SystemExit in a root task would stop the embedder's loop.
    except BaseException:
        return
