"""P2. On any one stream nothing of a run follows its terminal event; there is exactly one; numbers only rise.
(Receipts, gaps and corrections are events of the session, not of the run, and alone may follow.)
"""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from random import Random

import pytest

from interlock import Control, Ending, Event, MemoryStore, Message, Run, Settings, open_control
from interlock.core.events import Ended
from interlock.core.names import EventKind
from interlock.core.outcome import Outcome
from interlock.testing import BEHAVIOURS, Kit, VirtualProcesses, VirtualThreads, run_seeded
from runtime.scene import Sink, idles, swallowed, told

from .scene import OF_THE_SESSION, pester, seeded

BRIEF = Settings(grace_seconds=0.4, drain_seconds=1.0)
ENDINGS = (Ending.COMPLETED, Ending.FAILED, Ending.STOPPED, Ending.SUPERSEDED, Ending.TIMED_OUT, Ending.SHUTDOWN)


def check_stream(events: Iterable[Event], ended: Iterable[str]) -> None:
    """Check one stream against the clause."""
    position, over = 0, set()
    for event in events:
        assert event.position > position, f"{event.kind} at {event.position} after {position}"
        position = event.position
        if event.kind in OF_THE_SESSION:
            assert event.run_id is None
            continue
        assert event.run_id is not None
        assert event.run_id not in over, f"{event.kind} of {event.run_id} follows its terminal event"
        if event.kind is EventKind.ENDED:
            over.add(event.run_id)
    assert over >= set(ended), "a run that ended was not told so"


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_seals_every_stream(ending: Ending) -> None:
    """Each of five streams has one terminal event, as its last, for every ending and however the agent goes on."""

    async def agent(run: Run, message: Message) -> str | None:
        if message.text != "hello":
            return None
        await run.say("part")
        if ending in (Ending.COMPLETED, Ending.FAILED):
            own = asyncio.create_task(swallowed(pester(run, Run.typing, [], times=30, swallow=True)), name="own task")
            await asyncio.sleep(0.002)
            assert not own.done()
            if ending is Ending.FAILED:
                raise RuntimeError("provider gone")
            return "reply"
        await pester(run, Run.typing, [], times=90, swallow=True)
        return "late"

    async def live(control: Control, seen: list[Event], **what: str) -> None:
        async with aclosing(control.watch(**what)) as events:
            async for event in events:
                seen.append(event)
                await asyncio.sleep(pause)

    async def main() -> None:
        nonlocal pause
        pause = Random(seed).choice((0.0, 0.0005, 0.01))
        streams: list[list[Event]] = [[], []]
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", deadline=0.02 if ending is Ending.TIMED_OUT else None)
            watchers = [
                asyncio.create_task(live(control, streams[0], run=sent.run_id)),
                asyncio.create_task(live(control, streams[1], session="s")),
            ]
            await sink.until(sent.run_id, EventKind.DELTA)
            if ending is Ending.STOPPED:
                await control.stop(session="s")
            elif ending is Ending.SUPERSEDED:
                await control.send("s", "next")
            if ending is not Ending.SHUTDOWN:
                assert (await control.wait(sent.run_id)).ending is ending
                await control.wait(sent.run_id, drained=True)
                again: list[Event] = []
                await live(control, again, run=sent.run_id)  # ends by itself
                streams.append(again)
        await asyncio.gather(*watchers)
        for stream in (*streams, sink.events, (await store.events("s", after=0, limit=10_000)).events):
            check_stream(stream, [sent.run_id])
            [last] = [event for event in stream if isinstance(event.data, Ended) and event.run_id == sent.run_id]
            assert last.data.outcome.ending is ending

    pause = 0.0
    for seed in range(8):
        seeded(main, (seed,))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_hostile_agents_are_sealed_too(behaviour: str) -> None:
    """An agent of the kit, stopped at any instant and followed by another, leaves two sealed runs on every stream."""

    async def main() -> None:
        kit = Kit()
        random = Random(seed)
        ports = {"threads": VirtualThreads(random), "processes": VirtualProcesses(random)}
        async with open_control(kit.agent, settings=BRIEF, **ports) as control:
            kit.control = control
            sink = Sink(control)
            first = await control.send("s", f"{behaviour} 1")
            await asyncio.sleep(random.choice((0.0, 0.0001, 0.001, 0.02, 0.3)))
            second = await control.send("s", "polite 2", strategy=random.choice(("interrupt", "queue")))
            await asyncio.sleep(random.choice((0.0, 0.0003, 0.01)))
            await control.stop(session="s")
            for sent in (first, second):
                assert (await control.wait(sent.run_id, timeout=60, drained=True)).ended
            await asyncio.sleep(5)
            check_stream(sink.events, [first.run_id, second.run_id])

    for seed in range(6):
        run_seeded(main, seed, charge=2e-5)


def test_only_the_session_speaks_after_the_end() -> None:
    """A body that outlives its run's end brings a second receipt, and that is all that follows the terminal event."""

    async def agent(run: Run, message: Message) -> None:
        while True:
            await swallowed(asyncio.sleep(0.3))
            await swallowed(run.say("again"))

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            await asyncio.sleep(5)
            end = [event.kind for event in sink.events].index(EventKind.ENDED)
            assert [event.kind for event in sink.events[end + 1 :]] == [EventKind.RECEIPT, EventKind.RECEIPT]

    seeded(main)


def test_a_correction_follows_and_is_the_session_s() -> None:
    """A correction of the session follows if the store holds another ending; the run's end stays one."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            store.faults.stall = True
            await control.stop(session="s")
            row = store._runs[sent.run_id]
            store._runs[sent.run_id] = type(row)(
                **{name: getattr(row, name) for name in row.__struct_fields__ if name != "outcome"},
                outcome=Outcome(run_id=sent.run_id, ending=Ending.TIMED_OUT),
            )  # as another node would have written it
            store.resume()
            await control.wait(sent.run_id, drained=True)
            await asyncio.sleep(2)
            kinds = [event.kind for event in sink.events]
            assert kinds.count(EventKind.ENDED) == 1
            assert EventKind.CORRECTION in kinds[kinds.index(EventKind.ENDED) :]
            check_stream(sink.events, [sent.run_id])

    seeded(main)


def test_positions_rise_across_runs_and_restarts() -> None:
    """Within a session numbers only rise: over takeovers, queued turns and a second control on the same store."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("part ")
        return message.text

    async def main() -> None:
        store = MemoryStore()
        seen: list[Event] = []
        for boot in range(3):
            async with open_control(agent, store=store) as control:
                sink = Sink(control)
                for n in range(4):
                    await control.send("s", f"{boot}.{n}", strategy=("queue", "interrupt")[n % 2])
                await asyncio.sleep(1)
            seen += sink.events
        check_stream(seen, [run.id for run in store._runs.values()])
        assert len(store._runs) == 12
        epochs = [event.position >> 32 for event in seen]
        assert epochs == sorted(epochs) and set(epochs) == {1, 2, 3}

    seeded(main)


def test_generations_rise_with_every_start_and_every_fall() -> None:
    """The numbers that guard what outlives memory rise too: by two from one turn to the next, whatever the ending."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "fail":
            raise RuntimeError("no")
        if message.text == "idle":
            await asyncio.sleep(60)
        return "reply"

    async def main() -> None:
        generations = []
        async with open_control(agent) as control:
            for text in ("ok", "fail", "idle", "ok", "idle", "ok"):
                sent = await control.send("s", text)
                generations.append(sent.generation)
                if text == "idle":
                    await control.stop(run=sent.run_id)
                await control.wait(sent.run_id)
        assert generations == [1, 3, 5, 7, 9, 11]

    seeded(main)


def test_a_watcher_may_go_away_and_come_back() -> None:
    """A watcher that reconnects from its last position gets the rest once, and the terminal event once."""

    async def agent(run: Run, message: Message) -> str:
        for n in range(10):
            await run.post(f"block {n}")
            await asyncio.sleep(0.001)
        return "reply"

    async def main() -> None:
        random = Random(seed)
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            seen: list[Event] = []
            while not any(event.kind is EventKind.ENDED for event in seen):
                with suppress(TimeoutError):
                    async with (
                        asyncio.timeout(random.choice((0.0, 0.0007, 0.003))),
                        aclosing(control.watch("s", after=seen[-1].position if seen else 0)) as events,
                    ):
                        async for event in events:
                            seen.append(event)
            check_stream(seen, [sent.run_id])
            blocks = [event.data.text for event in seen if event.kind is EventKind.BLOCK]
            assert blocks == [*(f"block {n}" for n in range(10)), "reply"]
            [end] = [event for event in seen if event.kind is EventKind.ENDED]
            assert await told(control, sent.run_id, EventKind.ENDED) == end

    for seed in range(12):
        seeded(main, (seed,))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_one_terminal_event_though_it_is_written_twice(fault: str) -> None:
    """An end that is told before it is stored, and stored later, is one terminal event to all (race 100)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=replace(BRIEF, retry_seconds=0.1)) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            setattr(store.faults, fault, True)
            await control.stop(session="s")
            watching = asyncio.create_task(all_of(control.watch(run=sent.run_id)))
            store.resume()
            await asyncio.sleep(2)
            assert sink.kinds(sent.run_id) == ["message", "started", "ended"]
            assert [event.kind for event in await watching].count(EventKind.ENDED) == 1
            assert [event.kind for event in await all_of(control.watch(run=sent.run_id))][-1] is EventKind.ENDED

    seeded(main)


async def all_of(events: object) -> list[Event]:
    return [event async for event in events]  # type: ignore[attr-defined]
