"""Does a stop of many runs of one session grow faster than their number?

A session has one run at work and many messages waiting; one stop ends them all. Small and large stops take turns, each
in a control of its own. The figure is the processor time per run of a large stop over that of a small one, all threads.
"""

import asyncio
import gc
from time import process_time

from bench.crowd import parked
from bench.durable import directory
from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from interlock import open_control
from interlock.runtime.settings import Settings

FEW, MANY = 250, 2_000
PATIENT = Settings(queue=MANY, commit_seconds=30.0)
GOAL = 1.2


def measure(scale: Scale) -> list[Result]:
    """Return the processor time per run of large stops over that of small ones, for both stores."""
    return [asyncio.run(_measure(name, scale)) for name in ("memory", "SQLite")]


async def _measure(name: str, scale: Scale) -> Result:
    few, many = Samples(), Samples()
    for _ in range(scale.rounds(7, 3)):
        for count, samples in ((FEW, few), (MANY, many)):
            with directory() as path:
                samples.seconds.append(await _stopped(count, "memory://" if name == "memory" else f"sqlite:///{path}"))
            gc.collect()
    return Result(
        name=f"stop of {MANY:,} runs / of {FEW:,}, processor time per run, {name}, p50",
        value=many.percentile(50) / few.percentile(50),
        goal=GOAL,
        small=(f"{MANY:,}: {many.spread()} a run", f"{FEW:,}: {few.spread()} a run"),
    )


async def _stopped(count: int, store: str) -> float:
    async with open_control(parked, store=store, settings=PATIENT) as control:
        await asyncio.gather(*(control.send("crowded", "go", strategy="queue") for _ in range(count)))
        with still():
            began = process_time()
            await control.stop(session="crowded")
            return (process_time() - began) / count
