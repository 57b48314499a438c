"""Bytes per idle session and per active run, as tracemalloc counts them.

The figure is everything allocated between two full collections and still alive, in the whole process, over N sessions:
objects, tasks, coroutine frames, contexts, dict growth. With a store that forgets everything, that is the runtime's own
share; the rest, with the memory store, is the store's.
Idle: the session had one run, which said two words, completed and drained. Active: the agent has begun, said nothing
and waits for an asyncio.Event; its own coroutine and future are counted too. Dropped: the agent swallowed Stale and
cancel until it was not resumed any more; its coroutine is kept for ever. The first N/10 sessions are not counted.
"""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import Awaitable, Callable

from bench.forgetful import ForgetfulStore
from bench.result import Result
from bench.scale import Scale
from interlock import MemoryStore, Message, Run, Stale, open_control
from interlock.runtime.control import Control
from interlock.stores.base import Store

TOGETHER = 20
IDLE_KB, ACTIVE_KB = 0.5, 16.0

Fill = Callable[[Control, int, int], Awaitable[None]]


async def _agent(run: Run, message: Message) -> None:
    if message.text == "park":
        await asyncio.Event().wait()
    while message.text == "swallow":
        with contextlib.suppress(Stale, asyncio.CancelledError):
            await run.say("")
    await run.say("two ")
    await run.say("words")


async def _idle(control: Control, begin: int, end: int) -> None:
    for first in range(begin, end, TOGETHER):
        names = [f"session {n}" for n in range(first, min(first + TOGETHER, end))]
        sent = await asyncio.gather(*(control.send(name, "talk") for name in names))
        for one in sent:
            await control.wait(one.run_id, drained=True)
    await asyncio.sleep(0.05)


async def _active(control: Control, begin: int, end: int) -> None:
    for n in range(begin, end):
        await control.send(f"session {n}", "park")
    await asyncio.sleep(0.05)


async def _dropped(control: Control, begin: int, end: int) -> None:
    for n in range(begin, end):
        sent = await control.send(f"session {n}", "swallow")
        await asyncio.sleep(0.001)  # until it has begun
        await control.stop(run=sent.run_id)
        await control.wait(sent.run_id, drained=True)
    await asyncio.sleep(0.05)


async def _bytes_each(store: Store, fill: Fill, count: int) -> float:
    async with open_control(_agent, store=store) as control:
        await fill(control, 0, count // 10)
        before = _traced()
        await fill(control, count // 10, count // 10 + count)
        return (_traced() - before) / count


def _traced() -> int:
    for _ in range(2):
        gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _both(fill: Fill, count: int) -> tuple[float, float]:
    """Return the bytes of each with a store that forgets and with one that does not."""
    return (
        asyncio.run(_bytes_each(ForgetfulStore(), fill, count)),
        asyncio.run(_bytes_each(MemoryStore(), fill, count)),
    )


def measure(scale: Scale) -> list[Result]:
    """Return the runtime's share, with the store's beside it."""
    count = scale.rounds(2_000, 500)
    tracemalloc.start()
    try:
        idle, active = (_both(fill, count) for fill in (_idle, _active))
        dropped = _both(_dropped, count // 10)
    finally:
        tracemalloc.stop()
    return [
        _result("idle session, the runtime's own memory", idle, IDLE_KB, count),
        _result("active run without transcript, the runtime's own memory", active, ACTIVE_KB, count),
        _result("run whose agent had to be dropped, kept for ever", dropped, None, count // 10),
    ]


def _result(name: str, both: tuple[float, float], goal: float | None, count: int) -> Result:
    own, total = both
    small = f"{own:,.0f} bytes each over {count:,}; the memory store keeps {total - own:,.0f} bytes more for it"
    return Result(name=name, value=own / 1024, unit="KB", goal=goal, small=(small,))
