"""Collect: messages that come while a turn waits become its parts, in order and under the shortest deadline."""

import asyncio

import pytest

from interlock import Control, Ending, MemoryStore, Message, Run, open_control

from .scene import answers, forgotten, idles, seeded


async def texts_waiting(control: Control) -> list[str]:
    return [run.text for run in control._registry.sessions["s"].waiting or ()]


def test_the_key_of_a_message_stopped_while_it_joins() -> None:
    """A message stopped on its way into a turn is no part of it, and its key says so, now and later."""

    async def main() -> None:
        store, turns = MemoryStore(latency_seconds=0.05), []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])

        async with open_control(agent, store=store, strategy="collect") as control:
            first = await control.send("s", "one", by="alice", key="k1")
            joining = asyncio.create_task(control.send("s", "two", by="alice", key="k2"))
            while not any(run.joining for run in control._registry.runs.values()):
                await asyncio.sleep(0.001)
            receipt = await control.stop(message="k2", by="alice")
            assert receipt.aborted
            own = (await joining).run_id
            assert [run.id for run in receipt.runs] == [own] != [first.run_id]
            assert (await control.send("s", "two", by="alice", key="k2")).run_id == own
            assert (await control.wait(first.run_id, drained=True)).ending is Ending.COMPLETED
            await forgotten(control)
            again = await control.send("s", "two", by="alice", key="k2")
            assert again.run_id == own
            assert (await control.wait(own, by="alice")).ending is Ending.STOPPED
            assert (await control.stop(message="k2", by="alice")).already is Ending.STOPPED
            assert turns == [["one"]]

    seeded(main, jump=0.0)


@pytest.mark.parametrize("deadlines", [(None, 0.5), (0.5, None), (60, 0.5), (0.5, 60)])
def test_a_collected_turn_obeys_its_shortest_deadline(deadlines: tuple[float | None, float | None]) -> None:
    """Whichever part of a turn brings the shorter deadline, it is the turn's."""

    async def main() -> None:
        async with open_control(idles) as control:
            first, second = [
                await control.send("s", f"m{n}", strategy="collect", deadline=each) for n, each in enumerate(deadlines)
            ]
            assert first.run_id == second.run_id
            outcome = await control.wait(second.run_id, timeout=10)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 500)

    seeded(main)


def test_collected_messages_pass_no_other_of_their_author() -> None:
    """A message joins a turn only where nothing its author said since waits between; others' may."""

    async def main() -> None:
        turns: list[list[str]] = []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])
            await answers(run, message)

        async with open_control(agent, admins=["root"]) as control:
            await control.send("s", "wait", by="root")
            await control.share("s", with_="alice")
            for text, by, strategy in (
                ("a1", "alice", "collect"),
                ("a2", "alice", "queue"),
                ("a3", "alice", "collect"),
                ("b1", "root", "queue"),
                ("a4", "alice", "collect"),
            ):
                last = await control.send("s", text, by=by, strategy=strategy)
            assert await texts_waiting(control) == ["a1", "a2", "a3", "b1"]
            seated = control._registry.sessions["s"].seat
            assert seated is not None
            await control.stop(run=seated.id, by="root")
            await control.wait(last.run_id, by="root")
            await asyncio.sleep(10)
            assert turns == [["wait"], ["a1"], ["a2"], ["a3", "a4"], ["b1"]]

    seeded(main)
