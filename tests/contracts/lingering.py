"""An agent that stays at the point that its message names. Imported by name, here or in a host."""

import asyncio
from collections.abc import Awaitable, Callable

from interlock import Message, Run, tool


async def hangs() -> None:
    """Never return, as a tool."""
    await asyncio.Event().wait()


async def hurries() -> str:
    """Return at once, as a tool."""
    return "done"


@tool(approval="ask")
async def risky() -> None:
    """Do nothing, as a tool that a person must allow."""


async def silent(run: Run) -> None:
    """Say nothing."""


async def spoken(run: Run) -> None:
    """Say something."""
    await run.say("well, ")


async def phase(run: Run) -> None:
    """Be in a phase."""
    async with run.phase("research"):
        await hangs()


async def phase_left(run: Run) -> None:
    """Have left a phase."""
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
    """Enter a phase in the body of a tool."""

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
    """Wait for a hold, and keep it."""
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
    """Go to a point, and stay there."""
    await POINTS[message.text](run)
    await hangs()
