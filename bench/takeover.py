"""From a message that takes over to the first word of its run, against cancel-and-start elsewhere.

The shape is the same everywhere: a run that said one word and waits is replaced by one that says one word; the clock
runs from the call to the moment a waiting coroutine has the new word. Ours keeps both messages, the ending and a
receipt in the memory store on the way; the others keep nothing.
"""

import asyncio
import contextlib
import gc
import importlib.util
from collections.abc import Awaitable, Callable

from bench.crowd import parked
from bench.ear import Ear
from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from interlock import open_control
from interlock.runtime.control import Control

PER_ROUND = 20
GOAL = 3.0

Turn = Callable[[], Awaitable[None]]


class Ours:
    """A session in which every message takes over."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._ear = Ear(control, "taken over")

    async def turn(self) -> None:
        """Send, and return at the new run's first word."""
        await asyncio.gather(self._control.send("taken over", "hello"), self._ear.first())


class Bare:
    """A task that is cancelled and started again: the floor."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def turn(self) -> None:
        """Cancel, start, and return at the first word."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._say())
        await self._words.get()

    async def _say(self) -> None:
        self._words.put_nowait("word ")
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Cancel the last task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def measure(scale: Scale) -> list[Result]:
    """Return ours over the SDK's, and both over the floor; without the SDK only ours."""
    return asyncio.run(_measure(scale))


async def _measure(scale: Scale) -> list[Result]:
    bare = Bare()
    async with contextlib.AsyncExitStack() as stack:
        turns: dict[str, Turn] = {"ours": Ours(await stack.enter_async_context(open_control(parked))).turn}
        turns["bare"] = bare.turn
        stack.push_async_callback(bare.close)
        if importlib.util.find_spec("agents") is not None:
            from bench.rival import Rival  # noqa: PLC0415 - an extra; only `make bench` installs it

            rival = Rival()
            turns["sdk"] = rival.turn
            stack.push_async_callback(rival.close)
        taken = await _in_turn(turns, scale.rounds(40, 10))
    return _results(taken)


async def _in_turn(turns: dict[str, Turn], rounds: int) -> dict[str, Samples]:
    taken: dict[str, Samples] = {name: Samples() for name in turns}
    warm_up = Samples()
    with still():
        for round_ in range(rounds + 1):  # the first round warms up and is not counted
            for _ in range(PER_ROUND):
                for name, turn in turns.items():
                    with (taken[name] if round_ else warm_up).clock():
                        await turn()
                    # Let the old run finish its cleanup, so that no timing of a first word includes it.
                    await asyncio.sleep(0.001)
            gc.collect()
    return taken


def _results(taken: dict[str, Samples]) -> list[Result]:
    p50 = {name: times.percentile(50) for name, times in taken.items()}
    small = tuple(f"{name:<5}{times.spread()}" for name, times in taken.items())
    floor = Result(name="takeover, ours / bare asyncio task", value=p50["ours"] / p50["bare"])
    if "sdk" not in p50:
        note = "openai-agents is not installed: `make bench` installs it"
        return [Result(name=floor.name, value=floor.value, small=(note, *small))]
    return [
        Result(
            name="takeover to first output / OpenAI Agents SDK cancel-and-start",
            value=p50["ours"] / p50["sdk"],
            goal=GOAL,
            small=small,
        ),
        floor,
        Result(name="OpenAI Agents SDK cancel-and-start / bare asyncio task", value=p50["sdk"] / p50["bare"]),
    ]
