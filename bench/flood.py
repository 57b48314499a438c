"""Does a stop get slower while other runs on the same loop say 10,000 deltas a second?

One control has the same hundred runs all the time; they speak in every other stretch and are silent in between.
"""

import asyncio
import gc
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from bench.crowd import parked, timed_stop
from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from interlock import Message, Run, open_control

SPEAKERS = 100
DELTAS_PER_SECOND = 10_000
STRETCH_SECONDS = 0.5
PAUSE_SECONDS = 0.001  # between a stop and the next run
GOAL = 1.5


@dataclass(slots=True)
class Speech:
    """Lets the speakers speak, and counts their deltas."""

    on: asyncio.Event = field(default_factory=asyncio.Event)
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    said: int = 0
    seconds: float = 0.0

    async def agent(self, run: Run, message: Message) -> None:
        """Speak at an even pace while told to."""
        if message.text != "speak":
            await parked(run, message)
        loop = asyncio.get_running_loop()
        pace = SPEAKERS / DELTAS_PER_SECOND
        while True:
            await self.on.wait()
            due = loop.time() + pace * self.dice.random()  # neither all at the same instant, nor in step
            while self.on.is_set():
                due += pace
                await asyncio.sleep(due - loop.time())
                await run.say("a few words ")
                self.said += 1


def measure(scale: Scale) -> list[Result]:
    """Return p99 while others speak over p99 while they are silent."""
    return asyncio.run(_measure(scale))


async def _measure(scale: Scale) -> list[Result]:
    speech = Speech()
    silent, loud = Samples(), Samples()
    async with open_control(speech.agent) as control:
        for n in range(SPEAKERS):
            await control.send(f"speaker {n}", "speak")

        async def stretch(taken: Samples) -> None:
            end = perf_counter() + STRETCH_SECONDS
            while perf_counter() < end:
                await timed_stop(control, taken, PAUSE_SECONDS)

        with still():
            await stretch(Samples())
            for _ in range(scale.rounds(30, 6)):
                await stretch(silent)
                await _aloud(speech, stretch(loud))
                gc.collect()
    rate = speech.said / speech.seconds
    small = (f"at {rate:,.0f} deltas/s: {loud.spread()}", f"silent:            {silent.spread()}")
    name = "stop ack at 10k deltas/s of other runs / silent"
    return [
        Result(name=f"{name}, p50", value=loud.percentile(50) / silent.percentile(50)),
        Result(name=f"{name}, p99", value=loud.percentile(99) / silent.percentile(99), goal=GOAL, small=small),
    ]


async def _aloud(speech: Speech, stretch: Coroutine[Any, Any, None]) -> None:
    """Let all runs speak for a stretch."""
    begin = perf_counter()
    speech.on.set()
    await stretch
    speech.on.clear()
    speech.seconds += perf_counter() - begin
    await asyncio.sleep(2 * SPEAKERS / DELTAS_PER_SECOND)  # until the last of them notices
