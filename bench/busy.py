"""A stop while the loop is busy with other work, against a stop on an idle loop.

The store's thread and the loop share one interpreter: each statement of a commit has to wait for its turn. The work is
steps of Python, as agents on one loop make them: the loop computes for nine tenths of each step and is free for the
rest. Idle and busy stretches take turns.
"""

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from time import perf_counter

from bench.crowd import parked
from bench.durable import directory
from bench.ear import Ear
from bench.result import Result
from bench.sample import Samples
from bench.scale import Scale
from interlock import open_control
from interlock.runtime.control import Control

STEPS_SECONDS, SHARE = (0.001, 0.01), 0.9
PER_ROUND = 25
PAUSE_SECONDS = 0.005
GOAL = 5.0


def measure(scale: Scale) -> list[Result]:
    """Return p50 on a busy loop over p50 on an idle one."""
    return [asyncio.run(_measure(step, scale)) for step in STEPS_SECONDS]


async def _measure(step: float, scale: Scale) -> Result:
    idle, busy = Samples(), Samples()
    with directory() as path:
        async with open_control(parked, store=f"sqlite:///{path / 'store'}") as control:
            for number in range(scale.rounds(12, 3) + 1):
                for samples, at_work in ((idle, False), (busy, True)):
                    async with _working(step) if at_work else contextlib.nullcontext():
                        for _ in range(PER_ROUND):
                            await _stopped(control, samples if number else Samples())
                gc.collect()
    return Result(
        name=f"stop ack, loop {SHARE:.0%} busy in steps of {step * 1e3:.0f} ms / idle, SQLite, p50",
        value=busy.percentile(50) / idle.percentile(50),
        goal=GOAL,
        small=(f"busy {busy.spread()}", f"idle {idle.spread()}", f"switch interval {sys.getswitchinterval() * 1e3} ms"),
    )


async def _stopped(control: Control, samples: Samples) -> None:
    """Time a stop, also when another thread had the core: that may be our own writer."""
    ear = Ear(control, "timed")
    await control.send("timed", "go")
    await ear.first()
    ear.leave()
    await asyncio.sleep(PAUSE_SECONDS)
    began = perf_counter()
    await control.stop(session="timed")
    samples.seconds.append(perf_counter() - began)


@contextlib.asynccontextmanager
async def _working(step: float) -> AsyncIterator[None]:
    """Keep the loop busy for the length of a block."""

    async def work() -> None:
        while True:
            end = perf_counter() + step * SHARE
            while perf_counter() < end:
                pass
            await asyncio.sleep(step * (1 - SHARE))

    task = asyncio.create_task(work())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
