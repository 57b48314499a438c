"""What tests of child runs share: agents that delegate, and what is known of the children they began."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from interlock import Control, Message, Receipt, Run
from interlock.core.names import EventKind

from .scene import deaf, echoes, idles, kinds, log_of, mumbles, started, told

Agent = Callable[[Run, Message], Coroutine[Any, Any, str | None]]


AGENTS: dict[str, Agent] = {"echo": echoes, "idle": idles, "deaf": deaf, "mumble": mumbles}


def to(name: str, **options: Any) -> Agent:
    """An agent that hands its message on and answers with what became of it."""

    async def agent(run: Run, message: Message) -> str:
        child = await run.delegate(name, message.text, **options)
        return f"{child.outcome.ending.value}: {child.text}"

    return agent


def lets_go(name: str) -> Agent:
    """An agent that begins a detached child and waits for ever."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate(name, message.text, detached=True)
        await idles(run, message)

    return agent


async def ticks(number: int) -> None:
    """Let the others take a number of steps."""
    for _ in range(number):
        await asyncio.sleep(0)


async def child_of(control: Control, run: str) -> str:
    """The id of a run's first child, once it is told of."""
    return str((await told(control, run, EventKind.CHILD)).data.child)


async def begun_child(control: Control, run: str) -> str:
    """The id of a run's first child, once its agent has begun."""
    child = await child_of(control, run)
    await started(control, child)
    return child


async def told_once(control: Control, run: str, session: str | None = None) -> None:
    """A run's terminal event is there, is its only one, and is its last."""
    mine = kinds(await log_of(control, session or f"run:{run}"), run)
    assert mine.count("ended") == 1 and mine[-1] == "ended", mine


async def nothing_left(control: Control) -> None:
    """When everything has had its time, nothing is in memory."""
    await anyio.sleep(10)
    registry = control._registry
    left = (
        registry.runs,
        registry.sessions,
        registry.questions,
        registry.falls,
        registry.keys,
        registry.holds._lines,
    )
    assert left == ({}, {}, {}, {}, {}, {})


def endings(receipt: Receipt) -> list[tuple[str, str]]:
    return [(run.id, run.outcome.ending.value) for run in receipt.runs]
