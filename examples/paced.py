"""A sink that is slower than its agent: before each delivery it asks whether the run is still current."""

import asyncio
from collections.abc import Callable

from interlock import Control, Ending, Event, Message, Run, events, open_control


async def paced(control: Control, session: str, deliver: Callable[[str], None], *, seconds: float) -> None:
    """Deliver a session's blocks, one every so often, and nothing of a run that was stopped or taken over."""
    async for event in control.watch(session):
        match event:
            case Event(run_id=str(run), data=events.Block(text=text)):
                await asyncio.sleep(seconds)
                # A run that completed is delivered to its end. If the run is current nothing is awaited here, so no
                # stop can come between the question and the delivery.
                if control.is_current(run) or (await control.wait(run)).ending is Ending.COMPLETED:
                    deliver(text)


async def assistant(run: Run, message: Message) -> str:
    """Say so many lines at once; with many, go on thinking."""
    lines = int(message.text)
    for number in range(1, lines + 1):
        await run.post(f"line {number} of {lines}")
    if lines > 10:
        await asyncio.sleep(60)
    return "the end"


async def main() -> None:
    """Stop a long answer that is being delivered, then let a short one pass."""
    begun: list[str] = []
    async with open_control(assistant) as control:
        await control.send("alice", "20")
        sink = asyncio.create_task(paced(control, "alice", begun.append, seconds=0.02))
        while len(begun) < 3:
            await asyncio.sleep(0.005)
        await control.stop(session="alice")
        before = len(begun)
        await control.send("alice", "2")
        while begun[-1] != "the end":
            await asyncio.sleep(0.005)
    await sink  # the watch ends with its control
    print(f"before the answer to the stop: {begun[0]} to {begun[before - 1]}")
    print(f"after it: {', '.join(begun[before:])}")


if __name__ == "__main__":
    asyncio.run(main())
