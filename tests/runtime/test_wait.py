"""Waiting: at once after the end, never lost, and never an ending by itself."""

import asyncio
import contextlib
from random import Random

import anyio
import pytest

from interlock import Drain, Ending, MemoryStore, Message, Run, open_control

from .scene import BRIEF, at_once, deaf, echoes, idles, seeded, started, story, swallowed


def test_wait_after_the_end_answers_at_once() -> None:
    """A wait that comes late gets the same outcome, from memory and from the store (race 107)."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send("s", "hello")
            first = await control.wait(sent.run_id)
            before = asyncio.get_running_loop().time()
            second = await control.wait(sent.run_id)
            assert asyncio.get_running_loop().time() - before < 0.06
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(5)
            assert control._registry.runs == {}
            third = await control.wait(sent.run_id, drained=True)
            assert story(first) == story(second) == story(third)
            assert third.drained and third.durable

    seeded(main)


def test_many_waiters_are_told_the_same() -> None:
    """Waiters that came before, with and after the end are all told one outcome; none is left waiting (race 108)."""

    async def main() -> None:
        done = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            await done.wait()
            return "done"

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            waiting = [asyncio.create_task(control.wait(sent.run_id)) for _ in range(5)]
            await started(control, sent.run_id)
            done.set()
            waiting += [asyncio.create_task(control.wait(sent.run_id)) for _ in range(5)]
            outcomes = [await task for task in waiting]
            outcomes.append(await control.wait(sent.run_id))
            assert {story(outcome) for outcome in outcomes} == {("completed", "done", None, None)}

    seeded(main)


def test_a_wait_that_runs_out_is_pending() -> None:
    """A waiter who gives up is told `pending`: that is not an ending and changes nothing."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            before = asyncio.get_running_loop().time()
            outcome = await control.wait(sent.run_id, timeout=2)
            assert 1.9 <= asyncio.get_running_loop().time() - before <= 2.1
            assert (outcome.ending, outcome.ended, outcome.run_id) == (Ending.PENDING, False, sent.run_id)
            await control.stop(run=sent.run_id)
            assert (await control.wait(sent.run_id, timeout=2)).ending is Ending.STOPPED

    seeded(main)


def test_a_wait_that_runs_out_on_the_drain_tells_the_ending() -> None:
    """A wait for `drained` that runs out still tells the ending, with `drained: false`."""

    async def main() -> None:
        async with open_control(deaf) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True, timeout=0.5)
            assert (outcome.ending, outcome.drained) == (Ending.STOPPED, False)
            assert (await control.wait(sent.run_id, drained=True)).drained

    seeded(main)


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_pending_is_not_unknown(timeout: float | None) -> None:
    """A run that never was is `unknown` at once, whatever the timeout."""

    async def main() -> None:
        async with open_control(echoes) as control:
            before = asyncio.get_running_loop().time()
            outcome = await control.wait("r-1-ff", timeout=timeout)
            assert (outcome.ending, outcome.ended) == (Ending.UNKNOWN, False)
            assert asyncio.get_running_loop().time() - before < 0.06

    seeded(main, range(3))


def test_timed_out_is_not_pending() -> None:
    """A run that passed its deadline is `timed_out`; a waiter that passed its own is told `pending`."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello", deadline=2)
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            assert (await control.wait(sent.run_id, timeout=5)).ending is Ending.TIMED_OUT

    seeded(main)


def test_a_waiter_that_goes_away_frees_itself() -> None:
    """A cancelled wait leaves nothing behind and the run is unaffected (race 109)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            waiting = [asyncio.create_task(control.wait(sent.run_id, drained=n % 2 == 0)) for n in range(10)]
            await started(control, sent.run_id)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            live = control._registry.runs[sent.run_id]
            assert not live.ended._waiters
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_a_wait_for_a_queued_message() -> None:
    """A wait may begin while the message waits for the seat, and ends with its own run."""

    async def main() -> None:
        done = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            await done.wait()
            return message.text

        async with open_control(agent, strategy="queue") as control:
            first, second = await control.send("s", "one"), await control.send("s", "two")
            waiting = asyncio.create_task(control.wait(second.run_id))
            await started(control, first.run_id)
            assert not waiting.done()
            done.set()
            assert (await waiting).text == "two"

    seeded(main)


def test_a_wait_for_an_arrival() -> None:
    """A wait may begin before the message is decided on."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.2)
        async with open_control(echoes, store=store) as control:
            sending = asyncio.create_task(control.send("s", "hello"))
            while not (infos := await control.runs()):
                await asyncio.sleep(0)
            assert (await control.wait(infos[0].id)).text == "hello"
            assert (await sending).run_id == infos[0].id

    seeded(main)


def test_a_wait_for_an_arrival_that_was_a_duplicate() -> None:
    """A waiter for an arrival that turns out to be a known key is released, not left waiting for ever."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "hello", key="k")
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(2)
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello", key="k"))
            while not (infos := await control.runs()):
                await asyncio.sleep(0)
            waiting = asyncio.create_task(control.wait(infos[0].id))
            await anyio.sleep(0.1)
            store.resume()
            assert (await sending).run_id == sent.run_id
            with anyio.move_on_after(20):
                await asyncio.wait([waiting])
            assert waiting.done()

    seeded(main, range(3))


def test_waits_race_with_the_end() -> None:
    """A waiter that comes in the very step of a stop is told the end (race 108)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            before, receipt, after = await at_once(
                control.wait(sent.run_id), control.stop(run=sent.run_id), control.wait(sent.run_id)
            )
            assert story(before) == story(after) == story(receipt.runs[0].outcome)

    seeded(main)


def test_a_wait_long_after_an_end_the_store_missed() -> None:
    """A wait that comes when the run has left memory tells the end that was told then (race 107)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF) as control:
            sent = await control.send("s", "hello", by="alice")
            await asyncio.sleep(0.01)
            store.faults.fail = True
            await control.stop(session="s", by="alice")
            then = await control.wait(sent.run_id)
            await asyncio.sleep(1)
            store.resume()
            await asyncio.sleep(5)
            assert control._registry.runs == {}
            later = await control.wait(sent.run_id, timeout=0)
            assert later.same_story(then) and later.durable
        async with open_control(idles, store=store) as control:
            assert (await control.wait(sent.run_id, timeout=0)).same_story(then)

    seeded(main)


def test_no_waiter_is_left_behind() -> None:
    """Waiters of every kind, around an end whose caller vanishes, wake with that end (race 108)."""

    async def agent(run: Run, message: Message) -> None:
        await swallowed(asyncio.sleep(3600))

    async def main() -> None:
        random = Random(seed)
        async with open_control(agent, store=MemoryStore(latency_seconds=0.02), settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            waits = [asyncio.create_task(control.wait(sent.run_id, drained=n % 2 == 0)) for n in range(4)]
            await asyncio.sleep(random.choice((0.0, 0.01)))
            run = control._registry.runs[sent.run_id]
            asking = asyncio.create_task(control.stop(session="s"))
            while not run.fallen:
                waits.append(asyncio.create_task(control.wait(sent.run_id)))
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(10):
                told = [await wait for wait in waits]
            assert {(outcome.ending, outcome.durable) for outcome in told} == {(Ending.STOPPED, True)}
            assert (await control.receipt(sent.run_id)).drain is Drain.OBSERVED

    for seed in range(20):
        seeded(main, (seed,))


def test_a_waiter_that_goes_away_ends_nothing() -> None:
    """Waiters that time out, are cancelled or fail leave the run as it was, and no trace of themselves (race 109)."""

    async def main() -> None:
        async with open_control(idles, settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(0.01)
            tasks = len(asyncio.all_tasks())
            waits = [asyncio.create_task(control.wait(sent.run_id, drained=n % 2 == 0)) for n in range(6)]
            await asyncio.sleep(0.01)
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await control.wait(sent.run_id)
            assert (await control.wait(sent.run_id, timeout=0.01)).ending is Ending.PENDING
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            assert len(asyncio.all_tasks()) == tasks
            assert not control._registry.runs[sent.run_id].ended._waiters  # type: ignore[attr-defined]
            assert (await control.stop(run=sent.run_id)).aborted

    seeded(main)
