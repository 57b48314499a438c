"""Helpers for tests of child runs: agents that delegate, and functions that look at their children."""

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
    """Return an agent that delegates its message to another agent and answers with the child's outcome."""

    async def agent(run: Run, message: Message) -> str:
        child = await run.delegate(name, message.text, **options)
        return f"{child.outcome.ending.value}: {child.text}"

    return agent


def lets_go(name: str) -> Agent:
    """Return an agent that begins a detached child and waits for ever."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate(name, message.text, detached=True)
        await idles(run, message)

    return agent


async def ticks(number: int) -> None:
    """Let other tasks take this number of steps."""
    for _ in range(number):
        await asyncio.sleep(0)


async def child_of(control: Control, run: str) -> str:
    """Wait until a run's first child is published, and return its id."""
    return str((await told(control, run, EventKind.CHILD)).data.child)


async def begun_child(control: Control, run: str) -> str:
    """Wait until the agent of a run's first child has begun, and return the child's id."""
    child = await child_of(control, run)
    await started(control, child)
    return child


async def told_once(control: Control, run: str, session: str | None = None) -> None:
    """Assert that a run has exactly one terminal event, and that this event is its last."""
    mine = kinds(await log_of(control, session or f"run:{run}"), run)
    assert mine.count("ended") == 1 and mine[-1] == "ended", mine


async def nothing_left(control: Control) -> None:
    """Wait ten seconds and assert that control's registry is empty."""
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
