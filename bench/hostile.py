"""Agents that do not want to be stopped. Each swallows refusals and cancels and tries again, so many times at most."""

import asyncio
import contextlib
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bench.witness import Tally, Witness
from interlock import Message, Run, Stale

ATTEMPTS = 1_000  # a bound: even without a fence an agent ends
LATE_SECONDS = 0.02
VOICE_SECONDS = 0.001


class World:
    """The things that the agents of one process share: dice, witnesses, the runs a thread may speak for."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.tally = Tally()
        self.witnesses: dict[str, Witness] = {}
        self.runs: deque[Run] = deque(maxlen=256)
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    async def agent(self, run: Run, message: Message) -> str | None:
        """Be one of the hostile kinds."""
        self.runs.append(run)
        kind = self.dice.choices(KINDS, WEIGHTS)[0]
        return await kind(self, run)

    def witness(self, session: str) -> Witness:
        """Return the witness of a session."""
        if session not in self.witnesses:
            self.witnesses[session] = Witness(self.tally)
        return self.witnesses[session]

    def patience(self) -> int:
        """Return how often to try again; one agent in fifty goes on until it is not resumed any more."""
        return 10_000 if self.dice.random() < 0.02 else self.dice.randint(1, 12)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task of which the runtime does not know."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def insist(self, attempt: Callable[[], Awaitable[object]], times: int) -> None:
        """Try again and again; every refusal uses up one of the tries."""
        for _ in range(ATTEMPTS):
            try:
                await attempt()
            except Stale:
                self.tally.refused += 1
                times -= 1
            except asyncio.CancelledError:
                times -= 1
            if times <= 0:
                return

    async def once(self, attempt: Coroutine[Any, Any, object]) -> None:
        """Try once, whether the run has fallen or not."""
        try:
            await attempt
        except Stale:
            self.tally.refused += 1


async def flood(world: World, run: Run) -> None:
    """Say without end, through Stale and cancel alike."""
    await world.insist(lambda: run.say("x"), world.patience())


async def any_verb(world: World, run: Run) -> None:
    """Use every verb that shows something."""
    verbs: list[Callable[[], Awaitable[None]]] = [
        lambda: run.say("x"),
        lambda: run.post("block"),
        lambda: run.typing(),
        lambda: run.progress("half", done=1, total=2),
        lambda: _phase(run),
    ]
    await world.insist(lambda: world.dice.choice(verbs)(), world.patience())


async def _phase(run: Run) -> None:
    async with run.phase("provider"):
        await run.say("x")


async def tools(world: World, run: Run) -> None:
    """Call tools, alone and in batches."""
    touch, linger = _touch(world, run), _touch(world, run, stubborn=True)

    async def attempt() -> object:
        if world.dice.random() < 0.5:
            return await run.call(world.dice.choice((touch, touch, linger)))
        return await run.batch([(touch, {}), (linger, {}), (touch, {})], parallel=world.dice.random() < 0.5)

    await world.insist(attempt, world.patience())


def _touch(world: World, run: Run, *, stubborn: bool = False) -> Callable[[], Awaitable[None]]:
    """Return a tool whose beginning the witness sees, and which, if stubborn, goes on through a few cancels."""
    witness = world.witness(run.session)

    async def touch() -> None:
        witness.begin(run.id)
        for _ in range(world.dice.randint(0, 6) if stubborn else 0):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            witness.act(run.id)

    return touch


async def late(world: World, run: Run) -> str | None:
    """Leave timers and tasks that speak up later; then return, or go on talking."""
    for _ in range(3):
        world.loop.call_later(world.dice.random() * LATE_SECONDS, lambda: world.spawn(world.once(run.say("late"))))
    aside = world.dice.choice((lambda: run.say("aside"), lambda: run.call(_touch(world, run))))
    world.spawn(world.insist(aside, world.dice.randint(1, 12)))
    if world.dice.random() < 0.3:
        for _ in range(world.dice.randint(0, 8)):
            await run.say("x")
        return "done"
    await flood(world, run)
    return None


async def sleeper(world: World, run: Run) -> None:
    """Wait for something that never comes, through cancels too, then speak."""
    for _ in range(world.dice.randint(1, 3)):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            world.spawn(world.once(run.say("in cleanup")))
    await world.insist(lambda: run.post("after all"), 3)


async def finisher(world: World, run: Run) -> str:
    """Return at about the time of the stop."""
    for _ in range(world.dice.randint(0, 10)):
        await run.say("x")
    return "x" * world.dice.randint(1, 8)


KINDS: list[Callable[[World, Run], Awaitable[str | None]]] = [flood, any_verb, tools, late, sleeper, finisher]
WEIGHTS = [30, 15, 25, 15, 5, 10]


class Voice(threading.Thread):
    """A thread that speaks for the runs of the last moments, stopped or not."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._quiet = threading.Event()

    def run(self) -> None:
        """Speak until told to be quiet."""
        dice = random.Random(0)
        while not self._quiet.wait(VOICE_SECONDS):
            runs = list(self._world.runs)
            if runs:
                self._world.loop.call_soon_threadsafe(self._speak, dice.choice(runs))

    def _speak(self, run: Run) -> None:
        self._world.spawn(self._world.once(run.say("from a thread")))

    def hush(self) -> None:
        """Be quiet, and end."""
        self._quiet.set()
        self.join()
