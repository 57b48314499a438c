"""Children while the store fails: each is told once, and none begins after the end of its parent."""

import asyncio

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, Receipt, Run, Unavailable, open_control
from interlock.core.names import EventKind

from .families import AGENTS, begun_child, endings, nothing_left, ticks, to, told_once
from .scene import at_once, log_of, raises, seeded, swallowed


@pytest.mark.parametrize("fault", ["stall", "fail"])
@pytest.mark.parametrize("detached", [False, True])
def test_a_child_the_store_does_not_take(fault: str, detached: bool) -> None:
    """An agent whose child the store does not commit gets an error; nothing of the child is left, and a retry works."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            setattr(store.faults, fault, True)
            with raises(Unavailable, "send it again"):
                await run.delegate("echo", "work", detached=detached)
            store.resume()
            assert len(control._registry.runs) == 1
            return (await run.delegate("echo", "again")).text

        async with open_control(agent, agents=AGENTS, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "again", outcome.error
            assert [run.depth for run in await control.runs("s", tree=True)] == [0, 1]
            await nothing_left(control)

    seeded(main)


def test_a_child_that_never_was_is_not_told_as_running() -> None:
    """A parent's stream that tells of a child's begin also tells of its end, even if the store did not commit it."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> None:
            store.faults.fail = True
            assert isinstance(await swallowed(run.delegate("echo", "work")), Unavailable)
            store.resume()

        async with open_control(agent, agents=AGENTS, store=store) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            told_of = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD]
            begun = {each.child for each in told_of if each.outcome is None}
            assert begun == {each.child for each in told_of if each.outcome is not None}

    seeded(main, range(1))


def test_a_child_given_up_while_it_arrives_is_told_of_in_order() -> None:
    """A parent's stream tells of a child's begin before its end, even if the child ended while it arrived."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> None:
            task = asyncio.create_task(run.delegate("echo", "work"))
            while len(control._registry.runs) < 2:
                await asyncio.sleep(0)
            task.cancel()
            await swallowed(task)
            await anyio.sleep(1)

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            told_of = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD]
            assert [each.outcome and each.outcome.ending.value for each in told_of] == [None, "stopped"]

    seeded(main, range(1))


@pytest.mark.parametrize("fault", ["stall", "fail", "lose"])
def test_a_store_that_fails_at_any_instant_of_a_delegation(fault: str) -> None:
    """When the store fails at any instant, the agent gets an ended child or a retryable error, and nothing is left."""
    reached: set[str] = set()

    async def once(number: int) -> None:
        store = MemoryStore()
        began: list[str] = []

        async def worker(run: Run, message: Message) -> str:
            began.append(run.id)
            return "done"

        async def agent(run: Run, message: Message) -> str:
            task = asyncio.create_task(run.delegate("worker", "work"))
            await ticks(number)
            setattr(store.faults, fault, True)
            try:
                child = await task
                assert child.outcome.ended
                return child.outcome.ending.value
            except Unavailable:
                return "unavailable"
            finally:
                store.resume()

        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            reached.add(outcome.text)
            assert outcome.text in ("completed", "failed", "unavailable"), outcome.error
            assert len(began) <= 1
            await nothing_left(control)
            for run in await control.runs("s", tree=True):
                assert run.outcome is not None
                await told_once(control, run.id, run.session)

    async def main() -> None:
        for number in range(0, 24, 2):
            await once(number)

    seeded(main, range(4), limit_seconds=6000)
    assert "completed" in reached and (fault == "lose" or "unavailable" in reached)


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_a_stop_while_the_store_is_in_trouble_takes_the_arriving_child(fault: str) -> None:
    """A stop is accepted while the store fails, and an arriving child that cannot be stored never begins (race 44)."""

    async def main() -> None:
        store, began = MemoryStore(), []

        async def worker(run: Run, message: Message) -> None:
            began.append(run.id)

        async def agent(run: Run, message: Message) -> None:
            setattr(store.faults, fault, True)
            stoppers.append(asyncio.create_task(stop_when_begun(run)))
            await run.delegate("worker", "work")

        async def stop_when_begun(run: Run) -> None:
            while len(control._registry.runs) < 2 and run.current:
                await asyncio.sleep(0)
            if run.current:
                child = list(control._registry.runs)[1]
                receipts.append((child, await control.stop(run=run.id)))

        stoppers: list[asyncio.Task[None]] = []
        receipts: list[tuple[str, Receipt]] = []
        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            await asyncio.gather(*stoppers)
            store.resume()
            await nothing_left(control)
            # The list is empty where the store refused the child before the stop came.
            for child, receipt in receipts:
                caught.append(fault)
                assert endings(receipt) == [(sent.run_id, "stopped"), (child, "parent_ended")]
                assert not receipt.durable and outcome.ending is Ending.STOPPED
                assert (await control.wait(child)).ending is Ending.PARENT_ENDED
                await told_once(control, child)
        assert began == []

    caught: list[str] = []
    seeded(main)
    assert caught


def test_a_takeover_keeps_the_generation_of_every_session_it_touched() -> None:
    """A fall stores the raised generation of the children's sessions too, whether a stop or a takeover caused it."""

    async def main() -> None:
        for how in ("stop", "takeover"):
            store = MemoryStore()
            async with open_control(to("idle"), agents=AGENTS, store=store) as control:
                sent = await control.send("s", "hello")
                child = await begun_child(control, sent.run_id)
                before = control._registry.generations.get(f"run:{child}")
                await (control.stop(run=sent.run_id) if how == "stop" else control.send("s", "new"))
                await control.wait(child)
                row = await store.session(f"run:{child}")
                assert row is not None and row.generation > before, how

    seeded(main, range(1))


def test_a_tie_of_two_ends_has_one_winner_in_the_whole_tree() -> None:
    """A stop of the parent and a stop of the child in the same instant leave each run one ending, told everywhere."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            for_child, for_parent = await at_once(control.stop(run=child), control.stop(run=sent.run_id))
            assert endings(for_child) == [(child, "stopped")]
            assert endings(for_parent) == [(sent.run_id, "stopped")]
            assert for_child.id != for_parent.id
            await told_once(control, child)
            await told_once(control, sent.run_id, "s")
            assert (await control.wait(child)).ending is Ending.STOPPED
            await nothing_left(control)

    seeded(main)
