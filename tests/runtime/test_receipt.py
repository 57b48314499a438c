"""The receipt of a fall: how often it is built, and that it is one receipt wherever it is read."""

import asyncio
import gc

import pytest

from interlock import Control, MemoryStore, Message, Run, Stale, open_control
from interlock.core.events import ReceiptData
from interlock.core.names import Drain
from interlock.core.receipt import Receipt
from interlock.runtime.fall import Fall
from interlock.runtime.live import LiveRun
from runtime.scene import BRIEF, echoes, forgotten, log_of, raises, seeded, started


async def lingers(run: Run, message: Message) -> None:
    """Wait for ever, and take a while to clean up."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.1)


async def told(control: Control) -> list[Receipt]:
    """Return the receipts in the log of session s."""
    return [event.data.receipt for event in await log_of(control) if isinstance(event.data, ReceiptData)]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Receipt]:
    """Every receipt that is built, in order."""
    found: list[Receipt] = []
    record = Fall.record

    def counted(fall: Fall) -> Receipt:
        found.append(record(fall))
        return found[-1]

    monkeypatch.setattr(Fall, "record", counted)
    return found


def test_the_receipt_of_a_completed_run_is_built_twice(built: list[Receipt]) -> None:
    """A completed run has one receipt for its Decision, and one that is told, stored and returned."""

    async def main() -> None:
        built.clear()
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            run = (await control.send("s", "hello")).run_id
            await control.wait(run, drained=True)
            returned = await control.receipt(run)
            await forgotten(control)
            assert [receipt.drain for receipt in built] == [Drain.PENDING, Drain.OBSERVED]
            assert returned == built[-1] == await store.receipt(run) == await control.receipt(run)
            assert await told(control) == [built[-1]]

    seeded(main)


def test_the_receipt_of_a_stop_with_a_slow_drain_is_built_twice(built: list[Receipt]) -> None:
    """A stop is answered with what was told at t1, and the receipt is built again only when all is drained."""

    async def main() -> None:
        built.clear()
        store = MemoryStore()
        async with open_control(lingers, store=store, settings=BRIEF) as control:
            run = (await control.send("s", "hello")).run_id
            await started(control, run)
            answered = await control.stop(session="s")
            assert answered.aborted and answered.ended_at is not None and answered.drain is Drain.PENDING
            await control.wait(run, drained=True)
            await forgotten(control)
            assert [receipt.drain for receipt in built] == [Drain.PENDING, Drain.OBSERVED]
            first, last = await told(control)
            assert first.ended_at == answered.ended_at and first.runs == answered.runs
            assert last == built[-1] == await store.receipt(run)

    seeded(main)


def test_a_receipt_that_is_asked_for_during_the_drain_stands_as_it_is_then() -> None:
    """Who asks while a run is draining is shown its body as it is now, not as it was when the run fell."""

    async def agent(run: Run, message: Message) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            with raises(Stale, "refused"):
                await run.say("too late")
            await asyncio.sleep(0.1)

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            run = (await control.send("s", "hello")).run_id
            await started(control, run)
            stopped = await control.stop(session="s")
            while not control._registry.runs[run].fence.refused:
                await asyncio.sleep(0)
            asked = await control.receipt(run)
            assert asked.drain is Drain.PENDING and sum(asked.refused.values()) == 1
            assert stopped.id == asked.id

    seeded(main, jump=0.0)


def test_receipts_that_are_complete_together_are_all_stored() -> None:
    """Of many runs that end at once each has its receipt in the store, and all have left memory."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await asyncio.gather(*(control.send(f"s{n}", "hello") for n in range(20)))
            await forgotten(control)
            for each in sent:
                receipt = await store.receipt(each.run_id)
                assert receipt is not None and receipt.drain is Drain.OBSERVED

    seeded(main)


def test_a_run_that_left_memory_is_freed_without_a_collection() -> None:
    """A run and its fall are no cycle once both have left memory: no collection is needed to free them."""

    async def main() -> None:
        async with open_control(echoes) as control:
            run = (await control.send("s", "hello")).run_id
            await control.wait(run, drained=True)
            await forgotten(control)
            # Tests before this one may have left runs behind.
            held = [each.id for each in gc.get_objects() if isinstance(each, LiveRun | Fall) and id(each) not in before]
            assert held == []

    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, LiveRun | Fall)}
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
