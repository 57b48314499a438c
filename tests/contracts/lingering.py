"""An agent that comes to a point and stays there: the message says to which. Imported by name, here or in a host."""

import asyncio
from collections.abc import Awaitable, Callable

from interlock import Message, Run, tool


async def hangs() -> None:
    """A tool that does not end."""
    await asyncio.Event().wait()


async def hurries() -> str:
    """A tool that is done at once."""
    return "done"


@tool(approval="ask")
async def risky() -> None:
    """A tool that a person must allow."""


async def silent(run: Run) -> None:
    """Do not say a word."""


async def spoken(run: Run) -> None:
    """Say something first."""
    await run.say("well, ")


async def phase(run: Run) -> None:
    """Name what it does."""
    async with run.phase("research"):
        await hangs()


async def phase_left(run: Run) -> None:
    """Have named something that is over."""
    async with run.phase("research"):
        await run.say("found ")


async def phase_outside(run: Run) -> None:
    """Be in the outer of two phases again."""
    async with run.phase("outer"):
        async with run.phase("inner"):
            await run.say("so ")
        await hangs()


async def in_tool(run: Run) -> None:
    """Wait for a tool."""
    await run.call(hangs)


async def tool_in_phase(run: Run) -> None:
    """Wait for a tool inside a phase."""
    async with run.phase("research"):
        await run.call(hangs)


async def phase_in_tool(run: Run) -> None:
    """Name a phase in a tool's own body."""

    async def uploads() -> None:
        async with run.phase("upload"):
            await hangs()

    await run.call(uploads)


async def tool_left(run: Run) -> None:
    """Have waited for a tool."""
    await run.call(hurries)


async def asks(run: Run) -> None:
    """Wait for a person."""
    await run.ask("May I?")


async def asks_for_tool(run: Run) -> None:
    """Wait for a person to allow a tool, in a phase."""
    async with run.phase("research"):
        await run.call(risky)


async def holds(run: Run) -> None:
    """Have a hold."""
    async with run.hold("desk"):
        await run.say("mine ")
        await hangs()


async def delegates(run: Run) -> None:
    """Wait for a child."""
    await run.delegate("child", "silent")


POINTS: dict[str, Callable[[Run], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        silent, spoken, phase, phase_left, phase_outside, in_tool, tool_in_phase, phase_in_tool, tool_left, asks,
        asks_for_tool, holds, delegates,
    )
}  # fmt: skip


async def agent(run: Run, message: Message) -> None:
    """Come to a point, and stay."""
    await POINTS[message.text](run)
    await hangs()
