"""Shared parts of the promise tests: a sink that forgets nothing, verbs by their effect, and the seeded loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from interlock import Message, Run
from interlock.core.names import Effect, EventKind
from interlock.testing import SeededLoop, run_seeded
from runtime.scene import harmless

OF_THE_SESSION = (EventKind.RECEIPT, EventKind.GAP, EventKind.CORRECTION)

Verb = Callable[[Run], Awaitable[object]]


def seeded(main: Callable[[], Any], seeds: Iterable[int] = range(8), **options: Any) -> None:
    """Play a test under several schedules on a virtual clock; no task of control's may be left behind."""
    for seed in seeds:
        run_seeded(main, seed, on_close=_nothing_left, **options)


def _nothing_left(loop: SeededLoop) -> None:
    assert [task for task in loop.leaked_tasks() if not task.get_name().startswith("own ")] == []
    assert loop.problems == []


async def enter_phase(run: Run) -> None:
    """Enter a phase and leave it."""
    async with run.phase("thinking"):
        await asyncio.sleep(0)


async def take_hold(run: Run) -> None:
    """Hold something and let it go."""
    async with run.hold("worktree"):
        await asyncio.sleep(0)


async def helps(run: Run, message: Message) -> str:
    """A child that is soon done."""
    return "done"


AGENTS = {"other": helps}
"""Whom the verbs below delegate to."""


VERBS: dict[Effect, Verb] = {
    Effect.DELTA: lambda run: run.say("d"),
    Effect.BLOCK: lambda run: run.post("b"),
    Effect.TYPING: lambda run: run.typing(),
    Effect.PROGRESS: lambda run: run.progress("p"),
    Effect.PHASE: enter_phase,
    Effect.TOOL: lambda run: run.call(harmless),
    Effect.SPAWN: lambda run: run.spawn("work", run.id, "0.0005"),
    Effect.QUESTION: lambda run: run.ask("really?", timeout=0.0005),
    Effect.CHILD: lambda run: run.delegate("other", "do it"),
    Effect.HOLD: take_hold,
}
"""One verb for each effect an agent can ask for; control makes results and the final text of what is returned."""


async def pester(run: Run, verb: Verb, errors: list[BaseException], *, times: int, swallow: bool) -> None:
    """Use a verb again and again; with `swallow`, also after an error."""
    for _ in range(times):
        try:
            await verb(run)
            await asyncio.sleep(0.001)
        except GeneratorExit:
            raise
        except BaseException as error:
            errors.append(error)
            if not swallow:
                raise
