"""Watching: replay, then live; nothing twice, nothing missing, nothing of a run after its end."""

import asyncio
import sqlite3
from contextlib import aclosing
from pathlib import Path
from random import Random

import anyio
import pytest

from interlock import Control, Ending, Event, MemoryStore, Message, Run, Unknown, open_control
from interlock.core.names import PASSING, EventKind
from interlock.runtime import unwritten
from interlock.stores import bounds, memory
from interlock.stores.sqlite import SqliteStore

from .scene import BRIEF, Sink, echoes, idles, kinds, log_of, mumbles, raises, seeded, started, swallowed, told


async def collect(control: Control, session: str, until: int, after: int = 0) -> list[Event]:
    """Watch a session until so many terminal events were told."""
    events, ended = [], 0
    async with aclosing(control.watch(session, after=after)) as stream:
        async for event in stream:
            events.append(event)
            ended += event.kind is EventKind.ENDED
            if ended == until:
                break
    return events


def sound(events: list[Event]) -> None:
    """Positions rise, and nothing of a run follows its one terminal event."""
    positions = [event.position for event in events]
    assert positions == sorted(set(positions))
    over: set[str] = set()
    for event in events:
        if event.run_id is not None:
            assert event.run_id not in over
            if event.kind is EventKind.ENDED:
                over.add(event.run_id)


def test_a_watcher_sees_everything_in_order() -> None:
    """A watcher that was there from the start sees message, start, deltas, the closing block and the end."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("he")
        await run.say("llo")
        return "hello"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hi")
            events = [event async for event in control.watch(run=sent.run_id)]
            sound(events)
            lasting = [event.kind.value for event in events if event.kind not in PASSING]
            assert lasting == ["message", "started", "block", "ended"]
            assert {event.run_id for event in events} == {sent.run_id}
            assert {event.generation for event in events} == {sent.generation}
            assert {event.session for event in events} == {"s"}

    seeded(main)


def test_replay_then_live_has_no_gap_and_no_duplicate() -> None:
    """A watcher that joins anywhere, from any position, gets each event after that exactly once (race 99)."""

    async def agent(run: Run, message: Message) -> str:
        await run.post("one")
        await anyio.sleep(0.01)
        await run.post("two")
        return "three"

    async def main() -> None:
        async with open_control(agent) as control:
            tasks = []
            for n in range(3):
                sent = await control.send("s", f"m{n}")
                tasks.append(asyncio.create_task(collect(control, "s", 3)))
                await control.wait(sent.run_id)
            tasks.append(asyncio.create_task(collect(control, "s", 3)))
            seen = [await task for task in tasks]
            for events in seen:
                sound(events)
                assert events == seen[0]
            for cut in range(0, len(seen[0]), 3):
                ended = kinds(seen[0][cut:]).count("ended")
                rest = await collect(control, "s", ended, after=seen[0][cut - 1].position if cut else 0)
                assert rest == seen[0][cut:]

    seeded(main, range(4))


def test_a_run_s_watch_ends_with_its_end() -> None:
    """`watch(run=)` ends by itself with exactly one terminal event, live or from the log (race 100)."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            first = await control.send("s", "one")

            async def watch() -> list[Event]:
                return [event async for event in control.watch(run=first.run_id)]

            live = asyncio.create_task(watch())
            await told(control, first.run_id, EventKind.DELTA)
            await control.send("s", "two")
            at_the_end = asyncio.create_task(watch())
            for events in (await live, await at_the_end, await watch()):
                sound(events)
                assert kinds(events).count("ended") == 1 and kinds(events)[-1] == "ended"
            await anyio.sleep(5)
            assert kinds(await watch()) == ["message", "started", "ended"]

    seeded(main)


def test_unread_deltas_of_a_cut_run_are_dropped() -> None:
    """Deltas that wait in a watcher's buffer, or in a page it has read, are not told after the stop (race 10)."""

    async def agent(run: Run, message: Message) -> None:
        await run.post("a block")
        for n in range(50):
            await run.say(f"{n} ")
        await swallowed(anyio.sleep_forever())

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            async with aclosing(control.watch("s")) as stream:
                seen = [await anext(stream)]
                while seen[-1].kind is not EventKind.BLOCK:
                    seen.append(await anext(stream))
                while "49" not in control._registry.runs[sent.run_id].reply.text:
                    await anyio.sleep(0.01)
                await control.stop(run=sent.run_id)
                rest = []
                async for event in stream:
                    rest.append(event)
                    if event.kind is EventKind.RECEIPT:
                        break
            assert kinds(rest, sent.run_id) == ["ended"]
            assert rest[0].data.cut == "".join(f"{n} " for n in range(50))

    seeded(main)


def test_deltas_of_a_completed_run_may_still_be_read() -> None:
    """Only an early end takes deltas out of the buffers: a completed run's are told until its terminal event."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("a")
        await run.say("b")
        return "ab"

    async def main() -> None:
        async with open_control(agent) as control:
            async with aclosing(control.watch("s")) as stream:
                with raises(Unknown, "a session begins with its first message"):
                    await anext(stream)
            sent = await control.send("s", "hello")
            events = await collect(control, "s", 1)
            sound(events)
            assert (await control.wait(sent.run_id)).text == "ab"

    seeded(main)


def test_a_slow_watcher_falls_back_on_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that does not read has a bounded buffer; when it reads again it misses nothing that lasts (race 97)."""
    monkeypatch.setattr("interlock.client.watch.WATCH_EVENTS", 8)

    async def agent(run: Run, message: Message) -> None:
        for n in range(40):
            await run.post(str(n))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            async with aclosing(control.watch("s")) as stream:
                events = [await anext(stream)]
                await control.wait(sent.run_id, drained=True)
                [listening] = control.feed._following["s"]
                assert len(listening.sink._events) <= 8
                async for event in stream:
                    events.append(event)
                    if event.kind is EventKind.RECEIPT:
                        break
            sound(events)
            assert [event.data.text for event in events if event.kind is EventKind.BLOCK] == [str(n) for n in range(40)]

    seeded(main, range(4))


def test_long_logs_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay of a log longer than a page is complete and in order, and so is the history."""
    monkeypatch.setattr("interlock.runtime.following.PAGE_EVENTS", 4)

    async def agent(run: Run, message: Message) -> None:
        for n in range(21):
            await run.post(str(n))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id, drained=True)
            events = await collect(control, "s", 1)
            sound(events)
            assert [event.data.text for event in events if event.kind is EventKind.BLOCK] == [str(n) for n in range(21)]
            assert len(await control.history("s")) == 22

    seeded(main, range(3))


def test_what_is_no_longer_to_be_had_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that forgot its beginning is told as one gap, then the rest."""
    monkeypatch.setattr(bounds, "LOG_EVENTS", 10)

    async def agent(run: Run, message: Message) -> None:
        for n in range(30):
            await run.post(str(n))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id, drained=True)
            events = await collect(control, "s", 1)
            sound(events)
            assert kinds(events)[0] == "gap" and kinds(events).count("gap") == 1
            assert events[0].data.after == 0 and events[0].run_id is None
            log = await log_of(control, "s")
            assert events[1:] == log[: len(events) - 1]

    seeded(main, range(3))


def test_a_gap_stands_where_the_events_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that were written before the disk refused others are told before the gap, and positions rise."""
    monkeypatch.setattr(unwritten, "PENDING_EVENTS", 100)
    said = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        for n in range(int(message.text)):
            await run.post(str(n))
        said.set()
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent, store=SqliteStore(tmp_path), settings=BRIEF) as control:
            sent = await control.send("s", "20")
            await said.wait()
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            while control.feed.log._count:
                await asyncio.sleep(0.01)
            said.clear()
            sent = await control.send("s", "200")
            await started(control, sent.run_id)
            other = sqlite3.connect(tmp_path / "interlock.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await said.wait()
            await control.stop(session="s")
            other.execute("ROLLBACK")
            other.close()
            events = await collect(control, "s", 2)
            sound(events)
            assert kinds(events).count("gap") == 1
            before = kinds(events[: kinds(events).index("gap")])
            # A host may not have sent all that its agent said before the stop.
            assert before.count("block") >= 1 and before.count("ended") == 1

    asyncio.run(main())


def test_a_run_whose_end_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch(run=)` of a run whose terminal event left the log ends by itself: it will not come again."""
    monkeypatch.setattr(bounds, "LOG_EVENTS", 3)

    async def main() -> None:
        async with open_control(echoes) as control:
            first = await control.send("s", "hello")
            await control.wait(first.run_id, drained=True)
            for n in range(3):
                sent = await control.send("s", f"m{n}")
                await control.wait(sent.run_id, drained=True)
            finished = False
            with anyio.move_on_after(20):
                assert [event async for event in control.watch(run=first.run_id)] == []
                finished = True
            assert finished

    seeded(main, range(2))


def test_a_watcher_that_goes_away_is_forgotten() -> None:
    """A watcher that is cancelled or closed leaves no buffer behind."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)

            async def watch() -> None:
                async for _ in control.watch("s"):
                    pass

            watching = [asyncio.create_task(watch()) for _ in range(3)]
            while len(control.feed._following.get("s", ())) < 3:
                await asyncio.sleep(0)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            assert control.feed._following == {}

    seeded(main)


def test_a_stalled_watcher_delays_nobody() -> None:
    """A watcher that never reads holds up neither the run, nor a stop, nor another watcher (race 98)."""

    async def agent(run: Run, message: Message) -> None:
        for _ in range(3000):
            await run.say(".")
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            async with aclosing(control.watch("s")) as stalled:
                await anext(stalled)
                await started(control, sent.run_id)
                receipt = await control.stop(run=sent.run_id)
                assert receipt.aborted
                assert kinds([event async for event in control.watch(run=sent.run_id)])[-1] == "ended"

    seeded(main, range(2))


def test_generations_tell_runs_apart() -> None:
    """Every event of a run carries its generation, and a successor's is higher."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            sent = []
            for n in range(3):
                sent.append(await control.send("s", f"m{n}"))
                await told(control, sent[-1].run_id, EventKind.DELTA)
            await control.stop(session="s")
            events = [event for event in await log_of(control, "s") if event.run_id is not None]
            for each in sent:
                assert {event.generation for event in events if event.run_id == each.run_id} == {each.generation}
            assert sorted(each.generation or 0 for each in sent) == [each.generation for each in sent]

    seeded(main)


def test_a_reopened_store_is_watched_from_where_it_was() -> None:
    """A watcher of the next control on the same store replays the old events before the new ones."""

    async def main() -> None:
        store = memory.MemoryStore()
        async with open_control(echoes, store=store) as control:
            await control.wait((await control.send("s", "one")).run_id, drained=True)
        async with open_control(echoes, store=store) as control:
            await control.wait((await control.send("s", "two")).run_id)
            events = await collect(control, "s", 2)
            sound(events)
            assert [event.data.text for event in events if event.kind is EventKind.MESSAGE] == ["one", "two"]

    seeded(main, range(3))


def test_the_log_rebuilds_what_was_told_live() -> None:
    """A live watcher's events without the passing ones are those of the log: projections of both agree (race 126)."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("a")
        await run.progress("half", done=1, total=2)
        await run.post("b")
        await run.typing()
        await run.say("c")
        if message.text == "hang":
            await anyio.sleep_forever()
        return "cd"

    async def main() -> None:
        async with open_control(agent) as control:
            first = await control.send("s", "quick")
            live = asyncio.create_task(collect(control, "s", 2))
            await control.wait(first.run_id)
            second = await control.send("s", "hang")
            await told(control, second.run_id, EventKind.TYPING)
            await control.stop(run=second.run_id)
            seen = [event for event in await live if event.kind not in PASSING]
            log = await log_of(control, "s")
            assert seen == log[: len(seen)]
            assert (await control.wait(second.run_id)).ending is Ending.STOPPED

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
