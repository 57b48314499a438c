"""Rollback: the turn before is hidden, and the next turn is told which tools it had started."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from interlock import Ending, Message, Run, open_control, tool
from interlock.testing.loop import Mode

from .scene import QUICK, answers, seeded


def test_a_rollback_names_what_its_children_began() -> None:
    """A hidden turn names each tool that began in it or in its children once, and not more than a hundred."""

    async def deploy() -> None:
        """A tool."""

    async def wipe() -> None:
        """A tool."""

    async def burn() -> None:
        """A tool."""

    def numbered(n: int) -> Callable[[], Awaitable[str]]:
        async def each() -> str:
            return "done"

        return tool(name=f"tool{n}")(each)

    many = [numbered(n) for n in range(120)]

    async def child(run: Run, message: Message) -> None:
        if message.text == "stay":
            await run.call(burn)
            await asyncio.sleep(3600)
        await run.call(wipe)

    async def main() -> None:
        told: list[tuple[str, ...]] = []

        async def agent(run: Run, message: Message) -> None:
            told.append(() if message.previous is None else message.previous.tools)
            if message.text == "many":
                for each in many:
                    await run.call(each)
                await asyncio.sleep(3600)
            if message.text in ("go", "again"):
                await run.call(deploy)
                await run.delegate("child", "x")
                if message.text == "go":
                    await run.delegate("child", "stay")
                await asyncio.sleep(3600)

        async with open_control(agent, agents={"child": child}) as control:
            for text in ("go", "again", "again", "many"):
                await control.send("s", text, strategy="rollback")
                await asyncio.sleep(1)
            assert [sorted(each) for each in told] == [[], *[["burn", "deploy", "wipe"]] * 3]
            last = await control.send("s", "last", strategy="rollback")
            await control.wait(last.run_id)
            assert len(told[-1]) == len(set(told[-1])) == 100

    seeded(main, limit_seconds=5000)


def test_a_rollback_over_a_passed_deadline_still_hides() -> None:
    """A turn that is rolled back when its time is up ends as timed out, and is hidden all the same."""
    seen: set[Ending] = set()

    async def main(turns: int) -> None:
        async with open_control(answers, settings=QUICK) as control:
            first = await control.send("s", "wait", deadline=0.02)
            for _ in range(turns):
                await asyncio.sleep(0)
            second = await control.send("s", "two", strategy="rollback")
            outcome = await control.wait(first.run_id)
            if second.superseded == first.run_id:  # else it had timed out before
                seen.add(outcome.ending)
                assert outcome.hidden
                entries = await control.history("s")
                assert {entry.run_id for entry in entries if entry.hidden} == {first.run_id}

    for turns in range(40):
        seeded(
            partial(main, turns), (0,), charge=1e-3, mode=Mode.FIFO
        )  # every step takes its time, so timers come late
    assert Ending.TIMED_OUT in seen, "the schedules should have covered it"
