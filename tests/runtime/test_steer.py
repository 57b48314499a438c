"""Steer: a message goes into the run that is at work, and whoever asks after the message is told of that run."""

import asyncio

import pytest

from interlock import Event, MemoryStore, Message, Run, open_control
from interlock.core.names import EventKind

from .scene import answered, seeded


@pytest.mark.parametrize("slow", [0.0, 2.0])
def test_the_watcher_of_a_steered_message_is_told_the_end(slow: float) -> None:
    """Who watches a message that a run took in sees that run's end, also if all is over when they come to read it."""

    async def agent(run: Run, message: Message) -> str:
        while not (taken := await run.check()):
            await asyncio.sleep(0.1)
        await run.post("a")
        await run.post("b")
        return "took " + taken[0].text

    async def main() -> None:
        async with open_control(agent) as control:
            first = await control.send("s", "one", by="alice")
            await asyncio.sleep(0.25)
            steered = await control.send("s", "two", by="alice", strategy="steer")
            seen: list[Event] = []

            async def watch() -> None:
                async for event in control.watch(run=steered.run_id, by="alice"):
                    seen.append(event)
                    await asyncio.sleep(slow)

            await answered(asyncio.create_task(watch()))
            assert (seen[-1].kind, seen[-1].run_id) == (EventKind.ENDED, first.run_id)
            assert [event.kind for event in seen].count(EventKind.ENDED) == 1

    seeded(main)


def test_a_tool_call_carries_what_was_steered_before_it() -> None:
    """A tool never begins under a message that the store does not know to be part of the run."""

    async def main() -> None:
        store, rows = MemoryStore(), []

        async def pays() -> None:
            rows.append(await store.run(steered.run_id))

        async def agent(run: Run, message: Message) -> None:
            await asyncio.sleep(0.2)
            store.faults.fail = True
            assert len(await run.check()) == 1
            await asyncio.sleep(0.01)  # the alias is refused, and is tried again only later
            store.faults.fail = False
            await run.call(pays)
            await asyncio.sleep(3600)

        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one")
            steered = await control.send("s", "pay bob", strategy="steer")
            await asyncio.sleep(0.3)
            assert [row and row.alias for row in rows] == [first.run_id]

    seeded(main, jump=0.0)
