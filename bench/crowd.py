"""Does a stop get slower with 10,000 other runs in the process: idle ones, asking ones, ones that wait for a hold?

Two controls in one loop, one of them with the crowd; a run is started in each in turn and its stop is timed. The run
that is stopped does what the crowd does: it asks, or waits for the same hold, too.
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


async def busy(run: Run, message: Message) -> None:
    """Say one word, then do what the message says for ever: nothing, ask, have the hold, or wait for it."""
    await run.say("here")
    if message.text == "ask":
        await run.ask("may I?")
    elif message.text == "hold":
        async with run.hold("line"):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def timed_stop(control: Control, taken: Samples, pause_seconds: float = 0.0, what: str = "go") -> None:
    """Start a run, wait for its first word, and time its stop up to the acknowledgement."""
    since = switches()
    await asyncio.sleep(pause_seconds)
    ear = Ear(control, "timed")
    await control.send("timed", what)
    await ear.first()
    ear.leave()
    with taken.clock(since):
        await control.stop(session="timed")


async def crowded(control: Control, size: int, what: str = "go") -> None:
    """Start runs in sessions of their own, each of which does something for ever."""
    for begin in range(0, size, 500):
        await asyncio.gather(*(control.send(f"idle {n}", what) for n in range(begin, min(begin + 500, size))))
    await asyncio.sleep(0.2)


KINDS = {
    "go": f"stop with {CROWD:,} other idle runs / with none",
    "ask": f"stop with {CROWD:,} pending questions / with none",
    "hold": f"stop with {CROWD:,} waiters for one hold / with none",
}


def measure(scale: Scale) -> list[Result]:
    """Return p50 and p99, crowded over alone."""
    return [result for what in KINDS for result in asyncio.run(_measure(scale, what))]


async def _measure(scale: Scale, what: str) -> list[Result]:
    rounds = scale.rounds(40, 10)
    before, alone, among = Samples(), Samples(), Samples()
    async with open_control(busy) as quiet, open_control(busy) as full:
        for control in (quiet, full):
            await control.send("first", what)  # the run that later ones wait for
        await _round(rounds // 4, (quiet, before), what=what)
        await crowded(full, CROWD, what)
        await _round(1, (quiet, Samples()), (full, Samples()), what=what)
        await _round(rounds, (quiet, alone), (full, among), what=what)
    grown = among.percentile(50) / before.percentile(50)
    small = (
        f"with {CROWD:,}: {among.spread()}",
        f"with none:   {alone.spread()} (another control, same loop, in turn)",
        f"before the crowd was there: {before.spread()}; p50 has grown {grown:.2f} x since",
    )
    return [_result(f"{KINDS[what]}, p50", among, alone, 50), _result(f"{KINDS[what]}, p99", among, alone, 99, small)]


async def _round(rounds: int, *sides: tuple[Control, Samples], what: str) -> None:
    with still():
        for _ in range(rounds):
            for n in range(PER_ROUND * len(sides)):
                control, taken = sides[n % len(sides)]
                await timed_stop(control, taken, what=what)
            gc.collect()


def _result(name: str, among: Samples, alone: Samples, q: float, small: tuple[str, ...] = ()) -> Result:
    return Result(name=name, value=among.percentile(q) / alone.percentile(q), goal=GOAL, small=small)
