"""Does a stop get slower with 10,000 other runs in the process?

Two controls in one loop, one of them with the crowd; a run is started in each in turn and its stop is timed.
"""

import asyncio
import gc

from bench.ear import Ear
from bench.result import Result
from bench.sample import Samples, still, switches
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.runtime.control import Control

CROWD = 10_000
PER_ROUND = 100
GOAL = 1.5


async def parked(run: Run, message: Message) -> None:
    """Say one word, then wait for ever."""
    await run.say("here")
    await asyncio.Event().wait()


async def timed_stop(control: Control, taken: Samples, pause_seconds: float = 0.0) -> None:
    """Start a run, wait for its first word, and time its stop up to the acknowledgement."""
    since = switches()
    await asyncio.sleep(pause_seconds)
    ear = Ear(control, "timed")
    await control.send("timed", "go")
    await ear.first()
    ear.leave()
    with taken.clock(since):
        await control.stop(session="timed")


async def crowded(control: Control, size: int) -> None:
    """Park runs in sessions of their own."""
    for begin in range(0, size, 500):
        await asyncio.gather(*(control.send(f"idle {n}", "go") for n in range(begin, min(begin + 500, size))))
    await asyncio.sleep(0.2)


def measure(scale: Scale) -> list[Result]:
    """Return p50 and p99, crowded over alone."""
    return asyncio.run(_measure(scale))


async def _measure(scale: Scale) -> list[Result]:
    rounds = scale.rounds(40, 10)
    before, alone, among = Samples(), Samples(), Samples()
    async with open_control(parked) as quiet, open_control(parked) as full:
        await _round(rounds // 4, (quiet, before))
        await crowded(full, CROWD)
        await _round(1, (quiet, Samples()), (full, Samples()))
        await _round(rounds, (quiet, alone), (full, among))
    grown = among.percentile(50) / before.percentile(50)
    small = (
        f"with {CROWD:,}: {among.spread()}",
        f"with none:   {alone.spread()} (another control, same loop, in turn)",
        f"before the crowd was there: {before.spread()}; p50 has grown {grown:.2f} x since",
    )
    name = f"stop with {CROWD:,} other idle runs / with none"
    return [_result(f"{name}, p50", among, alone, 50), _result(f"{name}, p99", among, alone, 99, small)]


async def _round(rounds: int, *sides: tuple[Control, Samples]) -> None:
    with still():
        for _ in range(rounds):
            for n in range(PER_ROUND * len(sides)):
                control, taken = sides[n % len(sides)]
                await timed_stop(control, taken)
            gc.collect()


def _result(name: str, among: Samples, alone: Samples, q: float, small: tuple[str, ...] = ()) -> Result:
    return Result(name=name, value=among.percentile(q) / alone.percentile(q), goal=GOAL, small=small)
