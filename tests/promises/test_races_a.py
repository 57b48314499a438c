"""Section A of tests/races.md, stop and takeover: the rows whose race is shown best by a small scene of its own."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from interlock import Ending, Event, MemoryStore, Message, Run, Settings, Stale, ToolState, open_control
from interlock.core.names import EventKind
from interlock.testing import run_seeded

from .scene import Sink, seeded, swallowed

BRIEF = Settings(grace_seconds=0.3, drain_seconds=0.5, retry_seconds=0.1)


class Deaf:
    """Drives a coroutine and keeps every cancel from it: the fence must hold with cancellation switched off."""

    def __init__(self, body: Coroutine[Any, Any, Any]) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            try:
                wanted = self._body.send(None)
            except StopIteration as returned:
                return returned.value
            with contextlib.suppress(asyncio.CancelledError):
                yield wanted


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await asyncio.sleep(3600)


@pytest.mark.parametrize("latency", [0.0, 0.005])
def test_a_stop_before_the_ack(latency: float) -> None:
    """A stop that comes before the ack ends the message: acked, then told as stopped, and it never runs (race 2)."""
    begun: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        begun.append(message.text)

    async def main() -> None:
        begun.clear()
        random = Random(seed)
        store = MemoryStore(latency_seconds=latency)
        async with open_control(agent, store=store) as control:
            sink = Sink(control)
            acked: list[str] = []

            async def send() -> None:
                sent = await control.send("s", "hello", by="alice", key="k")
                acked.append(sent.run_id)
                assert sent.run_id in store._runs, "registered before the ack"

            sending = asyncio.create_task(send())
            for _ in range(random.choice((1, 2, 3))):
                await asyncio.sleep(0)
            if acked or not control._registry.runs:
                await sending
                return  # in this schedule the two do not meet
            receipt = await control.stop(session="s", by="alice")
            [fallen] = receipt.runs
            await sending
            assert acked == [fallen.id] and fallen.outcome.ending is Ending.STOPPED
            assert sink.kinds(fallen.id) == ["message", "ended"]
            assert begun == []

    for seed in range(30):
        seeded(main, (seed,))


def test_no_body_begins_between_record_and_permit() -> None:
    """A stop while a call's start is being committed, in a task no cancel reaches: its body never begins (race 5)."""
    acts: list[str] = []

    async def act() -> None:
        acts.append("acts")

    async def agent(run: Run, message: Message) -> None:
        own = asyncio.create_task(swallowed(run.call(act)), name="own task")
        await asyncio.sleep(3600)
        assert own.done()

    async def main() -> None:
        acts.clear()
        store = MemoryStore(latency_seconds=0.01)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.TOOL)
            await asyncio.sleep(0.002)
            receipt = await control.stop(session="s")
            assert receipt.aborted
            assert [each.state for each in receipt.tools] == [ToolState.SKIPPED]
            await control.wait(sent.run_id, drained=True)
        assert acts == []

    seeded(main, range(12), jump=0.0)


def test_what_an_adapter_has_not_sent_is_dropped() -> None:
    """A slow channel sends no delta after the stop; what was on the wire has a lower position than the end (race 9)."""

    async def agent(run: Run, message: Message) -> None:
        for n in range(30):
            await run.say(f"{n} ")
        await asyncio.sleep(3600)

    async def main() -> None:
        random = Random(seed)
        wire: list[tuple[Event, bool]] = []
        stopped = False
        async with open_control(agent, settings=BRIEF) as control:
            sent = await control.send("s", "hello")

            async def channel() -> None:
                async for event in control.watch(run=sent.run_id):
                    wire.append((event, stopped))
                    await asyncio.sleep(0.01)

            sending = asyncio.create_task(channel())
            await asyncio.sleep(random.choice((0.015, 0.05, 0.12)))
            await control.stop(session="s")
            stopped = True
            await sending
        *before, (end, _) = wire
        assert end.kind is EventKind.ENDED
        assert [event.kind for event, late in before if late and event.kind is EventKind.DELTA] == []
        assert all(event.position < end.position for event, _ in before)
        sent_text = "".join(event.data.text for event, _ in before if event.kind is EventKind.DELTA)
        assert end.data.outcome.text.startswith(sent_text)

    for seed in range(8):
        seeded(main, (seed,))


def test_a_late_cleanup_frees_nothing_of_the_new_run() -> None:
    """The end of one that had no seat, and the cleanup of one that had, leave the seat to who has it (race 13)."""

    async def agent(run: Run, message: Message) -> None:
        await swallowed(asyncio.sleep(3600))
        await swallowed(run.say("bye"))

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            old = await control.send("s", "old")
            new = await control.send("s", "new")
            waiting = await control.send("s", "waiting", strategy="queue")
            await control.stop(run=waiting.run_id)
            await control.wait(old.run_id, drained=True)
            session = control._registry.sessions["s"]
            assert session.seat is control._registry.runs[new.run_id]
            assert control._registry.generations.get("s") == new.generation
            behind = await control.send("s", "behind", strategy="queue")
            assert behind.generation is None, "the seat was taken"
            assert (await control.wait(new.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_a_stop_of_the_old_run_while_it_drains() -> None:
    """A stop for A after B took over finds A superseded, rewrites nothing, and B is untouched (race 15)."""

    async def agent(run: Run, message: Message) -> None:
        await swallowed(asyncio.sleep(3600))
        await swallowed(asyncio.sleep(0.2))

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            old = await control.send("s", "a")
            await asyncio.sleep(0.01)
            new = await control.send("s", "b")
            receipt = await control.stop(run=old.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.SUPERSEDED)
            assert receipt.runs[0].outcome.superseded_by == new.run_id
            assert (await control.wait(new.run_id, timeout=1)).ending is Ending.PENDING
            assert (await control.wait(old.run_id, drained=True)).ending is Ending.SUPERSEDED
            assert (await store.run(old.run_id)).outcome.ending is Ending.SUPERSEDED  # type: ignore[union-attr]

    seeded(main)


def test_a_late_stop_does_not_erase_a_timeout() -> None:
    """A stop right behind the deadline, while the run cleans up, is told the timeout; all agree (races 19, 21)."""

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("provider"):
            await swallowed(asyncio.sleep(3600))
            await swallowed(asyncio.sleep(0.1))

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", deadline=1)
            await asyncio.sleep(1 + Random(seed).choice((0.0, 0.001, 0.06)))
            receipt = await control.stop(run=sent.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.TIMED_OUT)
            told = [receipt.runs[0].outcome, await control.wait(sent.run_id, drained=True)]
            told += [event.data.outcome for event in sink.of(sent.run_id) if event.kind is EventKind.ENDED]
            told.append((await store.run(sent.run_id)).outcome)  # type: ignore[union-attr,arg-type]
            assert len(told) == 4
            assert {(each.ending, each.phase, each.limit_ms, each.by) for each in told} == {
                (Ending.TIMED_OUT, "provider", 1000, None)
            }

    for seed in range(12):
        seeded(main, (seed,))


def test_a_message_behind_a_stop_whose_caller_vanished() -> None:
    """A message in the instant after a stop runs, also if whoever asked for the stop is gone by then (race 23)."""

    async def agent(run: Run, message: Message) -> str | None:
        return "reply" if message.text == "new" else await idles(run, message)

    async def main() -> None:
        async with open_control(agent, store=MemoryStore(latency_seconds=0.01), settings=BRIEF) as control:
            sink = Sink(control)
            old = await control.send("s", "old")
            await asyncio.sleep(0.1)
            run = control._registry.runs[old.run_id]
            asking = asyncio.create_task(control.stop(session="s", by="local"))
            while not run.fallen:
                await asyncio.sleep(0)
            asking.cancel()
            new = await control.send("s", "new")
            outcome = await control.wait(new.run_id, timeout=5)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "reply")
            ended = await sink.until(old.run_id, EventKind.ENDED)
            assert (ended.data.outcome.ending, ended.data.outcome.durable) == (Ending.STOPPED, True)
            await asyncio.gather(asking, return_exceptions=True)

    seeded(main, range(20))


def test_only_an_empty_seat_takes_from_the_queue() -> None:
    """A takeover passes the message of another by: it waits on, and begins once, when the seat is free (race 25)."""
    begun: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        begun.append(message.text)
        await idles(run, message)

    async def main() -> None:
        begun.clear()
        async with open_control(agent, settings=BRIEF) as control:
            await control.stop(run=(await control.send("s", "hers", by="owner")).run_id)
            begun.clear()
            for guest in ("alice", "bob"):
                await control.share("s", with_=guest)
            await control.send("s", "first", by="alice")
            bob = await control.send("s", "bob's", by="bob")
            await asyncio.sleep(0.01)
            new = await control.send("s", "second", by="alice")
            await asyncio.sleep(1)
            assert begun == ["first", "second"]
            assert control._registry.sessions["s"].seat is control._registry.runs[new.run_id]
            assert (await control.stop(run=new.run_id, by="alice")).aborted
            await asyncio.sleep(1)
            assert begun == ["first", "second", "bob's"]
            assert (await control.wait(bob.run_id, timeout=0)).ending is Ending.PENDING

    seeded(main)


def test_a_waiting_message_has_one_consumer() -> None:
    """Whatever ends, completes or leaves the queue at once: each of the rest begins once, one at a time (race 26)."""
    begun: Counter[str] = Counter()
    running: list[str] = []
    most: list[int] = []

    async def agent(run: Run, message: Message) -> str:
        begun[message.text] += 1
        running.append(message.text)
        most.append(len(running))
        try:
            await asyncio.sleep(0.01)
        finally:
            running.remove(message.text)
        return "reply"

    async def main() -> None:
        begun.clear()
        running.clear()
        random = Random(seed)
        async with open_control(agent, settings=BRIEF, strategy="queue") as control:
            sent = [await control.send("s", str(n)) for n in range(8)]
            await asyncio.sleep(random.choice((0.0, 0.005, 0.01, 0.02)))
            gone = random.sample(sent[1:], 3)
            receipts = await asyncio.gather(*(control.stop(run=each.run_id) for each in gone))
            outcomes = [await control.wait(each.run_id, timeout=5) for each in sent]
            assert all(outcome.ended for outcome in outcomes)
            assert max(most) == 1, "two had the seat at once"
            for each, outcome in zip(sent, outcomes, strict=True):
                text = str(sent.index(each))
                assert begun[text] == 1 if outcome.ending is Ending.COMPLETED else begun[text] <= 1
            assert sum(o.ending is Ending.STOPPED for o in outcomes) == sum(r.aborted for r in receipts)

    for seed in range(20):
        seeded(main, (seed,))


def test_a_storm_of_deaf_agents_leaves_one() -> None:
    """300 messages to agents that hear no cancel: the last is dominant, the rest are gone, tasks too (race 28)."""

    async def agent(run: Run, message: Message) -> None:
        while True:
            await swallowed(asyncio.sleep(60))

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            sent = [await control.send("s", str(n)) for n in range(300)]
            generations = [each.generation for each in sent]
            assert generations == list(range(1, 600, 2)), "a start and a fall each, no more"
            await asyncio.sleep(2)
            assert list(control._registry.runs) == [sent[-1].run_id]
            assert len(asyncio.all_tasks()) == 2, "this one, and the last run's"

    run_seeded(main, 3)


@pytest.mark.parametrize("phase", ["preflight", "provider", "compaction", "memory flush"])
def test_no_phase_follows_a_stop(phase: str) -> None:
    """A stop in any phase is the end: async work that goes on enters no other, and no run overlaps (race 34)."""
    entered: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text == "new":
            return
        async with run.phase(phase):
            await swallowed(asyncio.sleep(3600))
        for following in ("compaction", "memory flush", "post_turn"):
            with contextlib.suppress(Stale):
                async with run.phase(following):
                    entered.append(following)

    async def main() -> None:
        entered.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "old")
            await sink.until(sent.run_id, EventKind.PHASE)
            await control.stop(session="s")
            new = await control.send("s", "new")
            await control.wait(new.run_id)
            await control.wait(sent.run_id, drained=True)
            kinds = [(event.run_id, event.kind) for event in sink.events if event.run_id]
            assert kinds.index((sent.run_id, EventKind.ENDED)) < kinds.index((new.run_id, EventKind.STARTED))
            assert (await control.receipt(sent.run_id)).refused["phase"] == 3
        assert entered == []

    seeded(main)


@pytest.mark.parametrize("fallback", [False, True])
def test_no_model_is_asked_after_a_stop(fallback: bool) -> None:
    """A retry loop, or a switch to another model, that takes a cancel for an error asks nobody again (races 35, 36)."""
    asked: list[str] = []

    async def ask(model: str) -> str:
        asked.append(model)
        await asyncio.sleep(0.01)
        raise ConnectionError("overloaded")

    async def agent(run: Run, message: Message) -> str:
        for attempt in range(20):
            try:
                async with run.phase("provider"):
                    return await ask(f"model {attempt}" if fallback else "model")
            except (Exception, asyncio.CancelledError):
                await swallowed(asyncio.sleep(0.005))
        return "none answered"

    async def main() -> None:
        asked.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(Random(seed).choice((0.03, 0.035, 0.04, 0.05)))
            await control.stop(session="s")
            before = len(asked)
            assert before > 1
            await control.wait(sent.run_id, drained=True)
            await asyncio.sleep(5)
            assert len(asked) == before

    for seed in range(12):
        seeded(main, (seed,), jump=0.0)


def test_a_provider_stream_that_goes_on_sending() -> None:
    """What a stream brings after the stop is discarded, and one that lets itself be closed is closed (race 37)."""
    closed: list[str] = []

    async def stream() -> AsyncIterator[str]:
        try:
            for n in range(60):
                await swallowed(asyncio.sleep(0.001))
                yield f"{n} "
        finally:
            closed.append("closed")

    async def agent(run: Run, message: Message) -> None:
        async def pump() -> None:
            async with aclosing(stream()) as deltas:
                async for delta in deltas:
                    await (swallowed(run.say(delta)) if message.text == "deaf" else run.say(delta))

        await (Deaf(pump()) if message.text == "deaf" else pump())

    async def main() -> None:
        closed.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            for text in ("deaf", "polite"):
                sent = await control.send("s", text)
                await sink.until(sent.run_id, EventKind.DELTA)
                await control.stop(session="s")
                shown = len(sink.of(sent.run_id))
                await control.wait(sent.run_id, drained=True)
                assert len(sink.of(sent.run_id)) == shown
                outcome = await control.wait(sent.run_id)
                said = "".join(e.data.text for e in sink.of(sent.run_id) if e.kind is EventKind.DELTA)
                assert outcome.text == said
        assert closed == ["closed", "closed"]

    seeded(main, range(12))


def test_the_outcome_is_kept_though_its_caller_is_cancelled() -> None:
    """A cancel that lands while the outcome is being written stops neither the write nor the telling (race 40)."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.02)
        async with open_control(idles, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            try:
                async with asyncio.timeout(0.01):
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        async with asyncio.timeout(0.005):
                            await control.stop(session="s")
            except TimeoutError:
                pass
            outcome = await control.wait(sent.run_id, timeout=1, drained=True)
            assert (outcome.ending, outcome.durable, outcome.drained) == (Ending.STOPPED, True, True)
            assert (await store.run(sent.run_id)).outcome.ending is Ending.STOPPED  # type: ignore[union-attr]

    seeded(main, range(12), jump=0.0)
