"""A sink that delivers by the batch: a batch whose run fell while it filled, or while it waited, is not begun."""

import asyncio
from collections.abc import Awaitable, Callable

from interlock import Control, Ending, Message, Run, events, open_control


async def batched(control: Control, session: str, deliver: Callable[[str], Awaitable[None]], *, size: int) -> None:
    """Deliver a session's blocks so many at a time, the last of a run at its end; one delivery after the other."""
    batches: dict[str, list[str]] = {}  # by run
    async for event in control.watch(session):
        if (run := event.run_id) is not None and isinstance(event.data, events.Block):
            batches.setdefault(run, []).append(event.data.text)
        if run in batches and (len(batches[run]) == size or event.kind == "ended"):
            due = " ".join(batches.pop(run))
            if control.is_current(run) or (await control.wait(run)).ending is Ending.COMPLETED:
                await deliver(due)  # begins in this step; what it awaits after that is under way


async def assistant(run: Run, message: Message) -> None:
    """Say so many lines at once; with many, go on thinking."""
    for number in range(int(message.text)):
        await run.post(f"{number + 1}/{message.text}")
    await asyncio.sleep(60 if message.text == "20" else 0)


async def main() -> None:
    """Stop a long answer while its second batch is under way, then let a short one pass."""
    begun: list[str] = []

    async def deliver(lines: str) -> None:
        begun.append(lines)
        await asyncio.sleep(0.01)
        if len(begun) == 2:  # a person says stop while this batch is under way
            await control.stop(session="alice")
            await control.send("alice", "6")

    async with open_control(assistant) as control:
        await control.send("alice", "20")
        sink = asyncio.create_task(batched(control, "alice", deliver, size=4))
        while len(begun) < 4:
            await asyncio.sleep(0.005)
    await sink  # the watch ends with its control
    print("begun:", "; ".join(begun))


if __name__ == "__main__":
    asyncio.run(main())
