"""The seeded loop: what a schedule may do, what it may never do, and that a seed replays."""

import asyncio
import asyncio.tasks
import contextvars
import gc
import hashlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio._backends import _asyncio as anyio_backend

from interlock.testing.loop import (
    HORIZON_SECONDS,
    PATIENCE_CALLBACKS,
    START_SECONDS,
    Mode,
    SeededLoop,
    Stuck,
    ordered_anyio,
    run_seeded,
)

SEEDS = range(200)
KEEPS_ORDER = [Mode.ORDERED, Mode.FIFO]
Program = Callable[[], Coroutine[Any, Any, Any]]


def outcomes(main: Program, mode: Mode = Mode.ORDERED, **options: Any) -> set[Any]:
    return {run_seeded(main, seed, mode=mode, **options) for seed in SEEDS}


# -- anyio on the loop --------------------------------------------------------------------------------------------


async def task_group() -> None:
    results: list[int] = []

    async def child(number: int) -> None:
        await anyio.sleep(number / 100)
        results.append(number)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(child, number)
    assert sorted(results) == list(range(5))


async def task_group_start() -> None:
    async def service(*, task_status: anyio.abc.TaskStatus[str]) -> None:
        await anyio.lowlevel.checkpoint()
        task_status.started("up")
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        assert await group.start(service) == "up"
        group.cancel_scope.cancel()


async def failing_child_cancels_siblings() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")

    async def fails() -> None:
        await anyio.sleep(0.01)
        raise ValueError("planned")

    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            group.start_soon(fails)
    assert [str(error) for error in caught.value.exceptions] == ["planned"]
    assert ended == ["sibling"]


async def cancel_scopes() -> None:
    with anyio.CancelScope() as outer:
        with anyio.CancelScope() as inner:
            inner.cancel()
            await anyio.sleep_forever()
        assert inner.cancelled_caught
        assert not outer.cancel_called
        outer.cancel()
        await anyio.sleep_forever()
    assert outer.cancelled_caught


async def shielded_scope() -> None:
    with anyio.CancelScope() as outer:
        outer.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)
        with pytest.raises(anyio.get_cancelled_exc_class()):
            await anyio.lowlevel.checkpoint()
        await anyio.sleep_forever()
    assert outer.cancelled_caught


async def move_on_after() -> None:
    before = anyio.current_time()
    with anyio.move_on_after(3) as scope:
        await anyio.sleep(8)
    assert scope.cancelled_caught
    assert 3 <= anyio.current_time() - before <= 3 + 2 * HORIZON_SECONDS
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.1):
            await anyio.sleep_forever()


async def memory_stream() -> None:
    send, receive = anyio.create_memory_object_stream[int](2)
    received: list[int] = []

    async def produce() -> None:
        async with send:
            for item in range(10):
                await send.send(item)

    async def consume() -> None:
        async with receive:
            async for item in receive:
                received.append(item)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        group.start_soon(produce)
    assert received == list(range(10))


async def event() -> None:
    happened = anyio.Event()
    seen: list[bool] = []

    async def wait() -> None:
        await happened.wait()
        seen.append(happened.is_set())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
        await anyio.sleep(0.01)
        happened.set()
    assert seen == [True, True]


async def lock() -> None:
    guard = anyio.Lock()
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with guard:
            inside += 1
            await anyio.sleep(0.01)
            assert inside == 1
            inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(enter)


async def condition() -> None:
    changed = anyio.Condition()
    value = 0

    async def wait() -> None:
        async with changed:
            while value == 0:
                await changed.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
        await anyio.sleep(0.01)
        async with changed:
            value = 1
            changed.notify_all()


async def most_at_once(room: Any) -> int:
    inside = most = 0

    async def enter() -> None:
        nonlocal inside, most
        async with room:
            inside += 1
            most = max(most, inside)
            await anyio.sleep(0.01)
            inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(enter)
    return most


async def semaphore() -> None:
    assert await most_at_once(anyio.Semaphore(2)) == 2


async def capacity_limiter() -> None:
    assert await most_at_once(anyio.CapacityLimiter(3)) == 3


async def asyncio_group_and_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.1))
            group.create_task(asyncio.sleep(5))
    assert await asyncio.gather(asyncio.sleep(0.1, "a"), asyncio.sleep(0, "b")) == ["a", "b"]


async def generators() -> None:
    closed: list[str] = []

    async def count() -> Any:
        try:
            for number in range(10):
                yield number
                await anyio.lowlevel.checkpoint()
        finally:
            closed.append("closed")

    async for number in count():
        if number == 3:
            break
    await anyio.sleep(1)  # the loop closes the dropped generator in a task of its own
    assert closed == ["closed"]


PROGRAMS = [
    task_group,
    task_group_start,
    failing_child_cancels_siblings,
    cancel_scopes,
    shielded_scope,
    move_on_after,
    memory_stream,
    event,
    lock,
    condition,
    semaphore,
    capacity_limiter,
    asyncio_group_and_timeout,
    generators,
]


@pytest.mark.parametrize("mode", KEEPS_ORDER)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_anyio_programs_hold_under_every_seed(program: Program, mode: Mode) -> None:
    """Real anyio and asyncio code keeps its promises, leaks no task and reports no problem under 200 schedules."""

    def nothing_left(loop: SeededLoop) -> None:
        assert loop.leaked_tasks() == []
        assert loop.problems == []

    for seed in SEEDS:
        run_seeded(program, seed, mode=mode, on_close=nothing_left)


def test_anyio_runner_accepts_the_loop() -> None:
    """anyio.run, with its own shutdown sequence, works on the loop as a loop factory."""

    async def main() -> float:
        await anyio.sleep(5)
        return anyio.current_time()

    ended = anyio.run(main, backend_options={"loop_factory": lambda: SeededLoop(1)})
    assert ended == pytest.approx(START_SECONDS + 5, abs=0.01)


# -- order --------------------------------------------------------------------------------------------------------


async def plain_callbacks() -> tuple[int, ...]:
    loop = asyncio.get_running_loop()
    order: list[int] = []

    async def noise() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(noise()) for _ in range(3)]
    for number in range(8):
        loop.call_soon(order.append, number)
    await asyncio.gather(*tasks)
    return tuple(order)


@pytest.mark.parametrize("mode", KEEPS_ORDER)
def test_plain_callbacks_keep_their_order(mode: Mode) -> None:
    """call_soon stays first in, first out among plain callbacks, whatever the task steps between them do."""
    assert outcomes(plain_callbacks, mode) == {tuple(range(8))}


def test_shuffle_reorders_plain_callbacks() -> None:
    """SHUFFLE breaks the promise of call_soon, which is what it is for."""
    assert len(outcomes(plain_callbacks, Mode.SHUFFLE)) > 100


async def two_walkers() -> str:
    path: list[str] = []

    async def walk(name: str) -> None:
        for _ in range(2):
            path.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(walk("a"), walk("b"))
    return "".join(path)


def test_a_task_step_may_come_late() -> None:
    """ORDERED finds interleavings of two tasks that strict FIFO never shows."""
    assert outcomes(two_walkers, Mode.FIFO) == {"abab"}
    assert {"abab", "baba", "aabb"} <= outcomes(two_walkers, Mode.ORDERED)
    assert outcomes(two_walkers, Mode.ORDERED, late=0.0) == {"abab"}


async def step_behind_a_callback() -> bool:
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "callback")

    async def step() -> None:
        order.append("step")

    await asyncio.create_task(step())
    return order == ["callback", "step"]


def test_a_task_step_overtakes_no_earlier_callback() -> None:
    """A late step only moves back: what was queued before it runs before it."""
    assert outcomes(step_behind_a_callback, late=0.9) == {True}


def test_a_step_is_late_a_bounded_number_of_times() -> None:
    """Even when every draw says late, each step runs in the end."""
    assert len(run_seeded(two_walkers, 1, late=1.0)) == 4


async def cancel_as_a_callback() -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    order: list[str] = []

    async def sleeper() -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            order.append("cancelled")

    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0.5)
    loop.call_soon(task.cancel)
    loop.call_soon(lambda: order.append(f"cancelling={task.cancelling()}"))
    await task
    return tuple(order)


def test_a_bound_method_of_a_task_is_a_plain_callback() -> None:
    """task.cancel has a task as its owner but is no step, and keeps its place."""
    assert outcomes(cancel_as_a_callback, late=0.9) == {("cancelling=1", "cancelled")}


async def walkers_of_pure_python() -> str:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coro, **options: asyncio.tasks._PyTask(coro, loop=loop, **options))
    return await two_walkers()


def test_steps_of_pure_python_tasks_are_known_too() -> None:
    """Tasks of asyncio's Python implementation come late as those in C do."""
    assert {"abab", "baba"} <= outcomes(walkers_of_pure_python)


async def woken_walkers() -> str:
    loop = asyncio.get_running_loop()
    path: list[str] = []
    gate = loop.create_future()

    async def wait(name: str) -> None:
        await gate
        path.append(name)

    waiting = [asyncio.create_task(wait(name)) for name in "ab"]
    await asyncio.sleep(0.5)
    gate.set_result(None)
    loop.call_soon(path.append, "-")
    await asyncio.gather(*waiting)
    return "".join(path)


def test_a_wakeup_is_a_task_step() -> None:
    """A task woken by a future may come late, after a callback that was queued later."""
    found = outcomes(woken_walkers)
    assert found & {"a-b", "-ab", "-ba"}
    assert outcomes(woken_walkers, Mode.FIFO) <= {"ab-", "ba-"}


# -- time ---------------------------------------------------------------------------------------------------------


def test_eight_hours_take_no_time() -> None:
    """Sleeping moves the virtual clock only."""

    async def main() -> float:
        before = anyio.current_time()
        await anyio.sleep(8 * 3600)
        return anyio.current_time() - before

    began = time.perf_counter()
    assert run_seeded(main, 1, limit_seconds=10 * 3600) == pytest.approx(8 * 3600, abs=0.01)
    assert time.perf_counter() - began < 60


async def timer_among_callbacks() -> int:
    loop = asyncio.get_running_loop()
    fired_after: list[int] = []
    ran = 0
    done = loop.create_future()

    def callback() -> None:
        nonlocal ran
        ran += 1
        if ran == 20:
            done.set_result(None)

    loop.call_later(0.04, lambda: fired_after.append(ran))
    for _ in range(20):
        loop.call_soon(callback)
    await done
    return fired_after[0] if fired_after else -1


def test_a_timer_may_fire_between_two_ready_callbacks() -> None:
    """A timer within the horizon interrupts a run of ready callbacks in some seeds, at many places, and in some not."""
    found = outcomes(timer_among_callbacks)
    assert len(found) > 10
    assert -1 in found
    assert outcomes(timer_among_callbacks, jump=0.0) == {-1}
    # The stock loop looks at its timers between two turns only; FIFO does the same.
    assert outcomes(timer_among_callbacks, Mode.FIFO) <= {-1, 0, 20}


def busy_until_timer(delay: float) -> Program:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        turns = 0

        def spin() -> None:
            nonlocal turns
            turns += 1
            if not fired.done():
                loop.call_soon(spin)

        loop.call_later(delay, lambda: fired.set_result(turns))
        loop.call_soon(spin)
        return await fired

    return main


@pytest.mark.parametrize("mode", list(Mode))
def test_a_due_timer_is_not_starved(mode: Mode) -> None:
    """A timer that is due fires within 50 callbacks although something is always ready, even if no draw favours it."""
    for seed in SEEDS:
        assert run_seeded(busy_until_timer(0), seed, mode=mode, jump=0.0) <= PATIENCE_CALLBACKS + 2


def test_a_timer_beyond_the_horizon_does_not_come_early() -> None:
    """A busy loop brings a timer forward by at most the horizon."""
    charged = 1e-3
    for seed in range(20):
        turns = run_seeded(busy_until_timer(1.0), seed, charge=charged)
        assert (1.0 - HORIZON_SECONDS) / charged - 2 <= turns


@pytest.mark.parametrize("mode", KEEPS_ORDER)
def test_equal_timers_fire_in_order_of_creation(mode: Mode) -> None:
    """Timers of the same moment keep the order in which they were set."""

    async def main() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        order: list[int] = []
        moment = loop.time() + 1
        for number in range(6):
            loop.call_at(moment, order.append, number)
        loop.call_at(moment, order.append, 99).cancel()
        await asyncio.sleep(2)
        return tuple(order)

    assert outcomes(main, mode) == {tuple(range(6))}
    assert len(outcomes(main, Mode.SHUFFLE)) > 50


@pytest.mark.parametrize("mode", list(Mode))
def test_cancelled_handles_are_skipped(mode: Mode) -> None:
    """A cancelled callback or timer neither runs, nor counts as a step, nor moves the clock."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(print).cancel()
        loop.call_later(0.01, print).cancel()
        loop.call_later(5, print).cancel()
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match=r"deadlock.* step 1, 0\.000001 s"):
        run_seeded(main, 1, mode=mode)


def test_a_timer_in_the_past_cannot_starve_what_is_ready() -> None:
    """A callback that sets itself a moment long gone, again and again, lets the others run."""

    async def main() -> int:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_at(0, again)

        again()
        for _ in range(10):
            await asyncio.sleep(0)
        return 1

    assert outcomes(main, max_steps=5_000) == {1}


@pytest.mark.parametrize("mode", KEEPS_ORDER)
def test_an_agent_that_swallows_every_cancel_does_not_freeze_the_clock(mode: Mode) -> None:
    """A sleep ends beside an agent that anyio cancels again and again, since every callback takes time."""

    async def main() -> bool:
        finished = False

        async def agent() -> None:
            while not finished:
                try:
                    await anyio.sleep(1)
                except asyncio.CancelledError:
                    continue

        async with anyio.create_task_group() as group:
            group.start_soon(agent)
            await anyio.sleep(0.1)
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2.0)
            finished = True
        return finished

    for seed in range(3):
        assert run_seeded(main, seed, mode=mode, charge=1e-4)
        with pytest.raises(Stuck, match="still busy"):
            run_seeded(main, seed, mode=mode, charge=0.0, max_steps=10_000)


# -- Stuck --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
def test_a_deadlock_names_the_waiting_task(mode: Mode) -> None:
    """Stuck says which task waits where; a sleep without end is no timer that hides it."""

    async def never_signalled() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(never_signalled, name="the waiter")
            await asyncio.sleep(math.inf)

    with pytest.raises(Stuck) as caught:
        run_seeded(main, 7, mode=mode)
    message = str(caught.value)
    assert message.startswith(f"deadlock: nothing is ready and no timer is set (seed 7, {mode}, step ")
    assert "main: test_a_deadlock_names_the_waiting_task" in message
    assert "the waiter: " in message
    assert "never_signalled (test_loop.py:" in message
    assert asyncio._get_running_loop() is None


def test_the_limits_of_time_and_steps_are_stuck() -> None:
    """A program that waits too long or never rests ends in Stuck, not in a hanging test."""

    async def naps() -> None:
        while True:
            await asyncio.sleep(60)

    async def spins() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match=r"limit of virtual time .* 6\d\d\."):
        run_seeded(naps, 1)
    with pytest.raises(Stuck, match=r"still busy .* step 1000,"):
        run_seeded(spins, 1, max_steps=1000)


# -- what is left behind ------------------------------------------------------------------------------------------


def test_a_task_left_behind_is_listed_and_never_resumed() -> None:
    """on_close sees the unfinished tasks in order of creation; afterwards they neither run, nor close, nor warn."""
    ran: list[str] = []
    names: list[str] = []

    async def left() -> None:
        try:
            await anyio.sleep(10)
        finally:
            ran.append("resumed")

    async def main() -> str:
        keep = [asyncio.create_task(left(), name=name) for name in ("first", "second")]
        await asyncio.create_task(asyncio.sleep(1))
        keep.append(asyncio.create_task(left(), name="last"))  # in some seeds main ends before its first step
        return "result"

    problems: list[list[dict[str, Any]]] = []

    def on_close(loop: SeededLoop) -> None:
        problems.append(loop.problems)
        names.extend(task.get_name() for task in loop.leaked_tasks())
        assert not loop.is_closed()

    for seed in range(20):
        names.clear()
        assert run_seeded(main, seed, on_close=on_close) == "result"
        assert names == ["first", "second", "last"]
    gc.collect()
    assert ran == []
    assert problems == [[]] * 20


def test_on_close_sees_a_main_that_failed() -> None:
    """The oracle looks at the loop however main finished, and main's own exception reaches the caller."""
    seen: list[int] = []

    async def main() -> None:
        left = asyncio.create_task(asyncio.sleep(1))
        await asyncio.sleep(0)
        raise LookupError(f"planned, {left.get_name()}")

    with pytest.raises(LookupError, match="planned"):
        run_seeded(main, 1, on_close=lambda loop: seen.append(len(loop.leaked_tasks())))
    assert seen == [1]


def test_problems_are_collected() -> None:
    """A callback that raises and a task whose exception nobody asked for are both in problems when on_close looks."""
    found: list[tuple[str, str]] = []

    async def fails() -> None:
        raise ValueError("in a task")

    async def main() -> None:
        def broken() -> None:
            raise ValueError("in a callback")

        asyncio.get_running_loop().call_soon(broken)
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        assert task.done()

    def on_close(loop: SeededLoop) -> None:
        found.extend((problem["message"].split(" ")[0], str(problem["exception"])) for problem in loop.problems)

    run_seeded(main, 1, on_close=on_close)
    assert found == [("Exception", "in a callback"), ("Task", "in a task")]


def test_an_exception_handler_is_told_too() -> None:
    """A handler that the program sets hears what problems collects."""
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["message"]))
        loop.call_exception_handler({"message": "heard"})

    run_seeded(main, 1)
    assert told == ["heard"]


# -- the loop's surroundings --------------------------------------------------------------------------------------


def test_global_state_is_restored() -> None:
    """A seeded run restores the running loop, the generator hooks, the collector and anyio, whatever main raises."""

    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), SeededLoop)
        assert not gc.isenabled()
        raise KeyboardInterrupt

    hooks = sys.get_asyncgen_hooks()
    with pytest.raises(KeyboardInterrupt):
        run_seeded(main, 1)
    assert asyncio._get_running_loop() is None
    assert sys.get_asyncgen_hooks() == hooks
    assert gc.isenabled()
    assert "set" not in vars(anyio_backend)
    assert anyio_backend.WorkerThread.__name__ == "WorkerThread"


def test_ordered_anyio_may_be_held_open() -> None:
    """A campaign enters once; the runs inside leave anyio ordered, and the campaign's exit restores it."""
    with ordered_anyio():
        run_seeded(task_group, 1)
        assert "set" in vars(anyio_backend)
    assert "set" not in vars(anyio_backend)


def test_contexts_are_honoured() -> None:
    """Callbacks, timers and tasks run in the context they were given."""
    word = contextvars.ContextVar("word", default="none")
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(word.set, "given")

        async def look() -> None:
            seen.append(word.get())

        loop.call_soon(lambda: seen.append(word.get()), context=context)
        loop.call_later(1, lambda: seen.append(word.get()), context=context)
        await loop.create_task(look(), context=context)
        await asyncio.sleep(2)
        seen.append(word.get())

    run_seeded(main, 1, late=0.0)
    assert seen == ["given", "given", "given", "none"]


def test_the_executor_and_the_network_are_refused_aloud() -> None:
    """Threads, sockets, processes and signals raise, with the way out in the message."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="threads do not exist on a virtual clock; use the thread port's twin"):
            await loop.run_in_executor(None, print)
        with pytest.raises(RuntimeError, match="threads do not exist on a virtual clock"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="threads do not exist on a virtual clock"):
            await anyio.to_thread.run_sync(print)
        with pytest.raises(RuntimeError, match="sockets and pipes do not exist"):
            loop.add_reader(0, print)
        with pytest.raises(RuntimeError, match="sockets and pipes do not exist"):
            await asyncio.open_connection("127.0.0.1", 9)
        with pytest.raises(RuntimeError, match="processes and signals do not exist"):
            await asyncio.create_subprocess_exec("true")

    run_seeded(main, 1)


def test_another_thread_is_refused() -> None:
    """call_soon_threadsafe is call_soon in the loop's own thread, and raises in any other."""
    loop = SeededLoop(1)
    refused: list[str] = []

    def intrude() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert not loop.call_soon_threadsafe(print).cancelled()
    loop.close()
    assert len(refused) == 1
    assert "threads do not exist" in refused[0]


def test_a_closed_or_nested_loop_refuses() -> None:
    """A closed loop takes no callbacks, and a seeded run cannot start inside a running loop."""

    async def inner() -> None: ...

    async def main() -> None:
        coroutine = inner()
        with pytest.raises(RuntimeError, match="running in this thread already"):
            run_seeded(lambda: coroutine, 2)

    run_seeded(main, 1)
    loop = SeededLoop(1)
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon(print)
    with pytest.raises(ValueError, match=r"below 1\.0"):
        SeededLoop(1, jump=1.0)


# -- replay -------------------------------------------------------------------------------------------------------


async def observed_program() -> str:
    """Tasks, scopes and sets of both, whose order would follow from addresses on a stock loop."""
    events: list[str] = []

    async def sleeper(name: str, shield: bool) -> None:
        try:
            with anyio.CancelScope(shield=shield), anyio.move_on_after(0.3):
                await anyio.sleep(0.1 if shield else 5)
        finally:
            events.append(f"{name} {asyncio.get_running_loop().time():.6f}")

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(sleeper, f"child-{number}", number % 3 == 0)
        await anyio.sleep(0.2)
        group.cancel_scope.cancel()

    naps = {asyncio.create_task(sleeper(f"nap-{number}", False)) for number in range(8)}
    done, pending = await asyncio.wait(naps, timeout=0.1)
    events.append(f"{len(done)} done")
    for task in pending:
        task.cancel()
        events.append(task.get_name())
    await asyncio.gather(*naps, return_exceptions=True)
    return "\n".join(events)


def traces() -> list[str]:
    modes = list(Mode)
    return [run_seeded(observed_program, seed, mode=modes[seed % 3]) for seed in SEEDS]


def print_trace_hashes() -> None:
    for trace in traces():
        print(hashlib.sha256(trace.encode()).hexdigest())


def trace_hashes_in_a_new_process(hash_seed: str) -> list[str]:
    surroundings = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__]
    finished = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True, timeout=60)
    assert finished.stderr == ""
    return finished.stdout.split()


def test_seeds_replay_across_processes() -> None:
    """200 seeds give the same traces in two processes with different hash seeds, and many distinct ones."""
    first, second = trace_hashes_in_a_new_process("1"), trace_hashes_in_a_new_process("2")
    assert first == second
    assert len(first) == len(SEEDS)
    assert len(set(first)) > 100


def test_seeds_replay_whatever_ran_before() -> None:
    """A seed gives the same trace a second time in the same process: names and counters start anew."""
    assert traces() == traces()


if __name__ == "__main__":
    # Garbage of a size that differs per process shifts addresses, should the system not randomise them.
    garbage = [bytearray(int(os.environ["PYTHONHASHSEED"]) * 1000 + size) for size in range(0, 4000, 7)]
    print_trace_hashes()
