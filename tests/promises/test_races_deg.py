"""Sections D, E and G of tests/races.md: time, delivery and agreement, where a small scene shows a row best."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from interlock import Drain, Ending, Event, KeyConflict, MemoryStore, Message, Run, Settings, open_control
from interlock.core.decision import Decision, KeyRow
from interlock.core.events import transcript
from interlock.core.names import PASSING, EventKind

from .scene import Sink, harmless, seeded, swallowed

BRIEF = Settings(grace_seconds=0.3, drain_seconds=0.5, retry_seconds=0.1)


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await asyncio.sleep(3600)


def test_only_a_run_s_own_limits_end_it() -> None:
    """A run that is heard from outlives its first timers, and those of other runs; a silent one does not (race 93)."""

    async def agent(run: Run, message: Message) -> str:
        for _ in range(20 if message.text == "talks" else 0):
            await asyncio.sleep(0.5)
            await run.typing()
        if message.text == "silent":
            await asyncio.sleep(3600)
        return "reply"

    async def main() -> None:
        async with open_control(agent, settings=BRIEF, idle_limit=1) as control:
            talks = await control.send("s", "talks", deadline=60)
            others = [await control.send(f"o{n}", "silent", deadline=(None, 0.3)[n % 2]) for n in range(6)]
            endings = [(await control.wait(other.run_id)).phase for other in others]
            assert endings == ["idle", "start"] * 3
            assert (await control.wait(talks.run_id)).ending is Ending.COMPLETED

    seeded(main)


def test_a_reader_that_comes_while_the_store_hangs() -> None:
    """A watcher that joins while its page cannot be read gets each event once, in order, when it can (race 99)."""

    async def agent(run: Run, message: Message) -> str:
        for n in range(6):
            await run.post(f"block {n}")
            await asyncio.sleep(0.01)
        return "reply"

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            store.faults.stall = True
            seen: list[Event] = []

            async def watch() -> None:
                async for event in control.watch("s", after=Random(seed).choice((0, sink.events[0].position))):
                    seen.append(event)

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0.035)
            store.resume()
            await control.wait(sent.run_id)
            await asyncio.sleep(1)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            wanted = [event for event in sink.events if event.position >= seen[0].position]
            assert [event.position for event in seen] == [event.position for event in wanted]

    for seed in range(10):
        seeded(main, (seed,))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_one_terminal_event_though_it_is_written_twice(fault: str) -> None:
    """An end that is told before it could be kept, and kept later, is one terminal event to all (race 100)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            setattr(store.faults, fault, True)
            await control.stop(session="s")
            watching = asyncio.create_task(_all(control.watch(run=sent.run_id)))
            store.resume()
            await asyncio.sleep(2)
            assert sink.kinds(sent.run_id) == ["message", "started", "ended"]
            assert [event.kind for event in await watching].count(EventKind.ENDED) == 1
            assert [event.kind for event in await _all(control.watch(run=sent.run_id))][-1] is EventKind.ENDED

    seeded(main)


async def _all(events: object) -> list[Event]:
    return [event async for event in events]  # type: ignore[attr-defined]


def test_a_key_of_another_method_is_refused() -> None:
    """A key that another verb used is refused aloud and stays that verb's; the session goes on (race 103)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF) as control:
            mine = await control.send("s", "mine", by="alice", key="mine")
            own = store._keys["alice"]["mine"]
            other = KeyRow(principal="alice", key="k", method="agent", digest=own.digest, run_id="r-0-1")
            await store.decide(Decision(keys=(other,)))
            store._keys["alice"]["twin"] = KeyRow(
                principal="alice", key="twin", method="agent", digest=own.digest, run_id="r-0-2"
            )
            with pytest.raises(KeyConflict, match="use a new key"):
                await control.send("s", "mine", by="alice", key="twin")
            with pytest.raises(KeyConflict):
                await control.send("s", "other text", by="alice", key="k")
            assert store._keys["alice"]["k"] is other
            assert (await control.wait(mine.run_id, timeout=1)).ending is Ending.PENDING
            assert list(control._registry.keys) == [("alice", "mine")]

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
    """Waiters of every kind, around an end whose caller vanishes: each wakes with that end (race 108)."""

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


SAYS: dict[str, Callable[[Run], Awaitable[object]]] = {
    "delta": lambda run: run.say("d "),
    "block": lambda run: run.post("block"),
    "tool": lambda run: run.call(harmless),
    "phase": lambda run: run.typing(),
}


def test_the_rebuilt_story_is_the_live_one() -> None:
    """For every prefix of the log the transcript is the same without deltas, and the text shown is told (race 126)."""

    async def agent(run: Run, message: Message) -> str | None:
        random = Random(message.text)
        for _ in range(random.randrange(12)):
            await SAYS[random.choice(list(SAYS))](run)
        if random.random() < 0.3:
            await asyncio.sleep(3600)
        return random.choice((None, "reply"))

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            for n in range(4):
                sent = await control.send("s", f"{seed} {n}")
                await asyncio.sleep(Random(seed + n).choice((0.0, 0.0003, 0.01)))
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            live = sink.events
            for length in range(len(live) + 1):
                kept = [event for event in live[:length] if event.kind not in PASSING]
                assert transcript(kept) == transcript(live[:length])
            assert await control.history("s") == transcript(live)
            for run in {event.run_id for event in live if event.run_id}:
                assert _shown(sink.of(run)) == (await control.wait(run)).text

    for seed in range(20):
        seeded(main, (seed,))


def _shown(events: list[Event]) -> str:
    """What a live watcher has on the screen: blocks take the place of the deltas they close."""
    blocks: list[str] = []
    unfinished = ""
    for event in events:
        if event.kind is EventKind.DELTA:
            unfinished += event.data.text
        elif event.kind is EventKind.BLOCK:
            if unfinished and not event.data.text.startswith(unfinished):
                blocks.append(unfinished)
            blocks.append(event.data.text)
            unfinished = ""
    return "\n\n".join([*blocks, unfinished] if unfinished else blocks)
