"""A seeded asyncio loop on a virtual clock: real asyncio and anyio code, one schedule per seed.

Rules kept here:
 1. The schedule is a function of the seed and the program. It depends on no wall clock, no address, no hash seed and no
    collector: tasks hash by seed and number, anyio's scopes and groups keep insertion order, and the cyclic collector
    is off. (A program must not iterate over sets of its own objects, nor use `asyncio.as_completed` over bare
    coroutines.)
 2. ORDERED, the mode that judges: plain callbacks run first in, first out, as `call_soon` promises and anyio needs. A
    task step may be moved back, at most LATE_MOVES times: it overtakes no callback queued before it.
 3. FIFO, the ground truth: turn for turn what the stock loop does; only the clock is random.
 4. SHUFFLE, for rules that must hold in any order: any ready handle is next.
 5. Time moves by `charge` per callback, and to the next timer when no callback is ready. While one is ready a timer may
    come early by at most HORIZON_SECONDS (the machine was slow) and late by at most PATIENCE_CALLBACKS.
 6. Threads, sockets, processes and signals do not exist here: using one raises.
 7. A program that cannot go on raises Stuck, which names each pending task and where it waits. Tasks that `main` leaves
    behind are listed and never resumed.
"""

import asyncio
import contextvars
import ctypes
import gc
import itertools
import math
import sys
import threading
import weakref
from asyncio import base_events, events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import StrEnum
from heapq import heappop, heappush
from pathlib import PurePath
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from anyio._backends import _asyncio as anyio_backend

__all__ = ["Mode", "SeededLoop", "Stuck", "ordered_anyio", "run_seeded"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Not zero, so that code which takes an instant for a duration fails.
START_SECONDS = 1000.0
# anyio delivers a cancel again in every turn, so the loop may never be idle: a clock that moves only then would freeze.
CHARGE_SECONDS = 1e-6
# Without this bound a busy loop could end a limit of 3 s at its first callback.
HORIZON_SECONDS = 0.05
PATIENCE_CALLBACKS = 50
LATE_MOVES = 4
LIMIT_SECONDS = 600.0
MAX_STEPS = 200_000

# A task step of the C implementation is an object of this type without a name. `task.cancel` belongs to a task as well,
# but is no step, so the Python implementation's steps are recognised by owner and name.
_STEP_TYPE = "TaskStepMethWrapper"
_STEP_OWNERS = (asyncio.Task, asyncio.tasks._PyTask)  # type: ignore[attr-defined]
_STEP_NAMES = frozenset({"task_wakeup", "__step", "__wakeup"})

_NO_THREADS = "threads do not exist on a virtual clock; use the thread port's twin instead"
_NO_NETWORK = "sockets and pipes do not exist on a virtual clock; use an in-memory stream instead"
_NO_PROCESSES = "processes and signals do not exist on a virtual clock; use the process port's twin instead"

EPOCH_SECONDS = 1_800_000_000.0  # where a virtual loop's wall clock begins


class Mode(StrEnum):
    """How the next ready handle is chosen."""

    ORDERED = "ordered"
    FIFO = "fifo"
    SHUFFLE = "shuffle"


class Stuck(Exception):
    """The program cannot finish: a deadlock, or a bound of virtual time or of steps was passed."""


class _SeededTask(asyncio.Task[Any]):
    """A task whose hash follows from seed and number, so that the seed decides the order of a set of tasks."""

    def __init__(self, identity: tuple[int, int], coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._hash = hash(identity)  # before super(), which hashes the task
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._hash


def _is_step(callback: Any) -> bool:
    if type(callback).__name__ == _STEP_TYPE:
        return True
    owner = getattr(callback, "__self__", None)
    return getattr(callback, "__name__", None) in _STEP_NAMES and isinstance(owner, _STEP_OWNERS)


class _Ready(asyncio.Handle):
    """A queued callback; a task step may still be moved back `moves` times."""

    __slots__ = ("moves",)

    def __init__(self, callback: Any, args: Any, loop: Any, context: contextvars.Context | None) -> None:
        # This is asyncio's own constructor without its check of the debug flag: it runs once per callback.
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.moves = LATE_MOVES if _is_step(callback) else 0


class _Timer(asyncio.TimerHandle):
    """A callback with an instant; FIFO queues it among the ready ones when it is due."""

    __slots__ = ()
    moves = 0


def _refusal(reason: str) -> Any:
    def refuse(self: object, *args: object, **options: object) -> NoReturn:
        raise RuntimeError(reason)

    return refuse


class SeededLoop(asyncio.AbstractEventLoop):
    """An event loop whose schedule and clock follow from its seed."""

    def __init__(
        self,
        seed: int,
        *,
        mode: Mode = Mode.ORDERED,
        late: float = 0.25,
        jump: float = 0.05,
        charge: float = CHARGE_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if not jump < 1.0:
            raise ValueError("jump must be below 1.0, or timers would starve the callbacks that are ready")
        self.seed = seed
        self.mode = mode
        self.steps = 0  # callbacks executed
        self.problems: list[dict[str, Any]] = []  # the contexts given to call_exception_handler
        self._random = Random(seed).random
        self._late = late
        self._jump = jump
        self._charge = charge
        self._patience = PATIENCE_CALLBACKS * charge
        self._now = START_SECONDS
        self._end = START_SECONDS + limit_seconds
        self._max_steps = max_steps
        self._ready: deque[_Ready | _Timer] = deque()
        self._turn = 0  # FIFO: how many of _ready belong to the current turn
        self._timers: list[tuple[float, float, _Timer]] = []  # heap of (due, tie, handle)
        self._ties = itertools.count()
        # Every task in order of creation, held so that none is collected unseen.
        self._tasks: list[asyncio.Task[Any]] = []
        self._asyncgens: dict[int, weakref.ref[AsyncGenerator[Any, Any]]] = {}
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self._debug = False
        self._running = False
        self._stopping = False
        self._closed = False
        self._thread = threading.get_ident()

    def __repr__(self) -> str:
        return f"<SeededLoop {self._position()}>"

    # -- choosing what runs next ------------------------------------------------------------------------------------

    def _next_ordered(self) -> _Ready | _Timer | None:
        ready = self._ready
        if ready and (timer := self._interruption()) is not None:
            return timer
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if handle.moves and ready and self._random() < self._late:
                handle.moves -= 1
                ready.insert(1 + int(self._random() * len(ready)), handle)
                continue
            return handle
        return self._pop_timer()

    def _next_fifo(self) -> _Ready | _Timer | None:
        ready = self._ready
        while True:
            while self._turn:
                self._turn -= 1
                handle = ready.popleft()
                if not handle._cancelled:
                    return handle
            self._queue_due_timers()
            self._turn = len(ready)
            if not ready:
                return None

    def _next_shuffle(self) -> _Ready | _Timer | None:
        ready = self._ready
        if ready and (timer := self._interruption()) is not None:
            return timer
        while ready:
            ready.rotate(-int(self._random() * len(ready)))
            handle = ready.popleft()
            if not handle._cancelled:
                return handle
        return self._pop_timer()

    def _interruption(self) -> _Timer | None:
        """Return a timer that fires although callbacks are ready, or None."""
        timers = self._timers
        horizon = self._now + HORIZON_SECONDS
        if not timers or timers[0][0] > horizon:
            return None
        due = self._next_due()
        if due > horizon:
            return None
        if self._now - due < self._patience and self._random() >= self._jump:
            return None
        return self._pop_timer()

    def _queue_due_timers(self) -> None:
        """Between two turns, perhaps lose some time, then queue the timers that are due behind the ready callbacks."""
        due = self._next_due()
        if due == math.inf:
            return
        slow = self._random() < self._jump
        if not self._ready or (slow and due <= self._now + HORIZON_SECONDS):
            self._now = max(self._now, due) + (self._random() * HORIZON_SECONDS if slow else 0.0)
        while self._next_due() <= self._now:
            self._ready.append(heappop(self._timers)[2])

    def _next_due(self) -> float:
        """Return when the next timer is due; infinity if there is none, or only `sleep(inf)`: that is a deadlock."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        return timers[0][0] if timers else math.inf

    def _pop_timer(self) -> _Timer | None:
        due = self._next_due()
        if due == math.inf:
            return None
        if due > self._now:
            self._now = due
        return heappop(self._timers)[2]

    # -- running ----------------------------------------------------------------------------------------------------

    def _spin(self) -> None:
        choices = {Mode.ORDERED: self._next_ordered, Mode.FIFO: self._next_fifo, Mode.SHUFFLE: self._next_shuffle}
        choose = choices[self.mode]
        while not self._stopping:
            handle = choose()
            if handle is None:
                raise Stuck(self._stuck_report("deadlock: nothing is ready and no timer is set"))
            if self.steps >= self._max_steps:
                raise Stuck(self._stuck_report("still busy after the last allowed step"))
            if self._now > self._end:
                raise Stuck(self._stuck_report("still waiting at the limit of virtual time"))
            self.steps += 1
            handle._run()
            self._now += self._charge

    def run_forever(self) -> None:
        self._check_open()
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("a loop is running in this thread already; run the seeded loop from synchronous code")
        hooks = sys.get_asyncgen_hooks()
        self._running = True
        try:
            sys.set_asyncgen_hooks(firstiter=self._asyncgen_begun, finalizer=self._asyncgen_dropped)
            events._set_running_loop(self)
            self._spin()
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            self._running = False
            self._stopping = False

    def run_until_complete(self, future: Any) -> Any:
        self._check_open()
        root = asyncio.ensure_future(future, loop=self)
        # anyio recognises the root task by this callback.
        root.add_done_callback(base_events._run_until_complete_cb)  # type: ignore[attr-defined]
        try:
            self.run_forever()
        except BaseException:
            if root.done() and not root.cancelled():
                root.exception()  # marks it as retrieved: the caller is about to get it
            raise
        finally:
            root.remove_done_callback(base_events._run_until_complete_cb)  # type: ignore[attr-defined]
        if not root.done():
            raise RuntimeError("the loop was stopped before the future was done")
        return root.result()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("a running loop cannot be closed; stop it first")
        if self._closed:
            return
        self.report_unretrieved()
        self._closed = True
        for task in self.leaked_tasks():
            _abandon(task)
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()
        self._turn = 0

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")  # asyncio's own text, which libraries compare with

    # -- callbacks, timers, tasks -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Return the time of day on this loop."""
        return EPOCH_SECONDS + self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._check_open()
        handle = _Ready(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._thread:
            raise RuntimeError(_NO_THREADS)
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_open()
        timer = _Timer(when, callback, args, self, context)
        tie = self._random() if self.mode is Mode.SHUFFLE else next(self._ties)
        # A timer in the past is due now: with its own time it would fire before every ready callback, again and again.
        heappush(self._timers, (max(when, self._now), tie, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing at asyncio's notice: a cancelled timer leaves the heap when it reaches its head."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Any = None, **options: Any) -> asyncio.Task[Any]:
        self._check_open()
        number = len(self._tasks) + 1
        # asyncio numbers its tasks per process, so its names would depend on the seeds that ran before this one.
        name = f"Task-{number}" if name is None else str(name)
        if self._task_factory is None:
            task: asyncio.Task[Any] = _SeededTask(
                (self.seed, number), coro, loop=self, name=name, context=context, **options
            )
        else:
            if context is not None:
                options["context"] = context
            task = self._task_factory(self, coro, **options)
            task.set_name(name)
        self._tasks.append(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # -- what went wrong --------------------------------------------------------------------------------------------

    def leaked_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, in order of creation."""
        return [task for task in self._tasks if not task.done()]

    def report_unretrieved(self) -> None:
        """Put the exceptions that were never retrieved into `problems` now, not when the tasks are collected."""
        for task in self._tasks:
            if task.done() and task._log_traceback:
                context = {"message": "Task exception was never retrieved", "exception": task.exception(), "task": task}
                self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)
        if self._exception_handler is not None:
            self._exception_handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: `problems` has the context already."""

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    def get_debug(self) -> bool:
        return self._debug

    def _position(self) -> str:
        return f"seed {self.seed}, {self.mode}, step {self.steps}, {self._now - START_SECONDS:.6f} s"

    def _stuck_report(self, reason: str) -> str:
        waiting = [f"  {task.get_name()}: {_whereabouts(task)}" for task in self.leaked_tasks()]
        return "\n".join([f"{reason} ({self._position()}); pending tasks:", *(waiting or ["  none"])])

    # -- asynchronous generators, executor --------------------------------------------------------------------------

    def _asyncgen_begun(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens[len(self._asyncgens)] = weakref.ref(generator)

    def _asyncgen_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        begun = [reference() for reference in self._asyncgens.values()]
        self._asyncgens.clear()
        await asyncio.gather(*(each.aclose() for each in begun if each is not None), return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""

    run_in_executor = set_default_executor = _refusal(_NO_THREADS)
    add_reader = remove_reader = add_writer = remove_writer = _refusal(_NO_NETWORK)
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = _refusal(_NO_NETWORK)
    sock_sendall = sock_sendto = sock_sendfile = sock_connect = sock_accept = _refusal(_NO_NETWORK)
    getaddrinfo = getnameinfo = sendfile = start_tls = connect_accepted_socket = _refusal(_NO_NETWORK)
    create_connection = create_server = create_datagram_endpoint = _refusal(_NO_NETWORK)
    create_unix_connection = create_unix_server = connect_read_pipe = connect_write_pipe = _refusal(_NO_NETWORK)
    subprocess_exec = subprocess_shell = add_signal_handler = remove_signal_handler = _refusal(_NO_PROCESSES)


def _abandon(task: asyncio.Task[Any]) -> None:
    """Give up a task for good without resuming it.

    Freeing a suspended coroutine closes it, which would run its `finally` blocks outside any loop, whenever the
    collector runs. So the coroutine is never freed.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task.get_coro()))


def _whereabouts(task: asyncio.Task[Any]) -> str:
    """Return the chain of awaits from the task's coroutine to the line that waits."""
    places: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        file = PurePath(frame.f_code.co_filename).name
        places.append(f"{frame.f_code.co_qualname} ({file}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(places)


class _OrderedSet(dict[Any, None]):
    """The part of a set that anyio uses, in order of insertion. It is built empty; with items it raises TypeError."""

    add = dict.setdefault
    remove = dict.__delitem__

    def discard(self, item: object) -> None:
        self.pop(item, None)


@contextmanager
def ordered_anyio() -> Iterator[None]:
    """Make anyio's scopes and groups keep their tasks and children in order, and refuse its worker threads."""
    names = vars(anyio_backend)
    if "set" in names:  # a campaign may keep this open over many seeds
        yield
        return
    worker_thread = names["WorkerThread"]
    names["set"] = _OrderedSet  # shadows the builtin, which anyio calls for each of its sets
    names["WorkerThread"] = _refusal(_NO_THREADS)
    try:
        yield
    finally:
        names["WorkerThread"] = worker_thread
        del names["set"]


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Turn the cyclic collector off: its moment depends on earlier seeds, and finalizers would run then."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_seeded(
    main: Callable[[], Coroutine[Any, Any, T]],
    seed: int,
    *,
    mode: Mode = Mode.ORDERED,
    late: float = 0.25,
    jump: float = 0.05,
    charge: float = CHARGE_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    max_steps: int = MAX_STEPS,
    on_close: Callable[[SeededLoop], None] | None = None,
) -> T:
    """Run `main` under one schedule; `on_close` may inspect the loop once main has returned or raised."""
    loop = SeededLoop(
        seed, mode=mode, late=late, jump=jump, charge=charge, limit_seconds=limit_seconds, max_steps=max_steps
    )
    with ordered_anyio(), _collector_at_rest():
        try:
            root: asyncio.Task[T] = loop.create_task(main(), name="main")
            try:
                return loop.run_until_complete(root)  # type: ignore[no-any-return]
            finally:
                if root.done():
                    loop.report_unretrieved()
                    if on_close is not None:
                        on_close(loop)
        finally:
            loop.close()
