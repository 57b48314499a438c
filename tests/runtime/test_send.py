"""The one way in: order, ack, takeover, and what the sender is told."""

import asyncio

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, Run, open_control
from interlock.core.lifecycle import State
from interlock.core.names import EventKind

from .scene import BRIEF, Sink, at_once, echoes, idles, kinds, log_of, mumbles, seeded, started, swallowed, told


def test_a_message_is_answered() -> None:
    """A message gets a run id and a generation, and its reply is the outcome's text."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send("s", "hello", by="alice")
            outcome = await control.wait(sent.run_id, drained=True)
            assert (sent.generation, sent.superseded, sent.session) == (1, None, "s")
            assert (outcome.ending, outcome.text, outcome.drained, outcome.durable) == (
                "completed",
                "hello",
                True,
                True,
            )
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "started", "block", "ended"]

    seeded(main)


def test_the_ack_follows_the_commit() -> None:
    """A sender is told nothing until its message is in the store."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.2)
        async with open_control(idles, store=store) as control:
            task = asyncio.create_task(control.send("s", "hello"))
            await anyio.sleep(0.1)
            assert not task.done()
            [info] = await control.runs("s")
            assert await store.run(info.id) is None
            sent = await task
            row = await store.run(sent.run_id)
            assert row is not None and row.text == "hello"

    seeded(main)


def test_a_new_message_takes_over() -> None:
    """By default the new message is dominant: the old run is superseded by it and the generation rises twice."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            old = await control.send("s", "one", by="alice")
            await told(control, old.run_id, EventKind.DELTA)
            new = await control.send("s", "two", by="alice")
            outcome = await control.wait(old.run_id)
            assert new.superseded == old.run_id
            assert (outcome.ending, outcome.superseded_by, outcome.by) == (Ending.SUPERSEDED, new.run_id, "alice")
            assert outcome.text == "about one"
            assert (old.generation, new.generation) == (1, 3)

    seeded(main)


def test_the_successor_is_shown_after_the_end_it_brought() -> None:
    """A watcher hears that the old run ended before it hears of the message that took over."""

    async def main() -> None:
        async with open_control(idles) as control:
            old = await control.send("s", "one")
            await started(control, old.run_id)
            new = await control.send("s", "two")
            await started(control, new.run_id)
            events = [(event.run_id, event.kind.value) for event in await log_of(control, "s")]
            assert events.index((old.run_id, "ended")) < events.index((new.run_id, "message"))

    seeded(main)


def test_the_next_turn_is_told_how_the_last_one_ended() -> None:
    """`message.previous` carries the ending and the partial text of the turn before."""
    seen: list[object] = []

    async def agent(run: Run, message: Message) -> str | None:
        previous = message.previous
        seen.append(None if previous is None else (previous.ending.value, previous.text, previous.by))
        if message.text == "long":
            await run.say("half an ans")
            await anyio.sleep_forever()
        return message.text

    async def main() -> None:
        seen.clear()
        async with open_control(agent) as control:
            first = await control.send("s", "long", by="alice")
            await told(control, first.run_id, EventKind.DELTA)
            await control.stop(session="s", by="alice")
            second = await control.send("s", "short", by="alice")
            await control.wait(second.run_id, drained=True)
            third = await control.send("s", "short", by="alice")
            await control.wait(third.run_id)
        assert seen == [None, ("stopped", "half an ans", "alice"), ("completed", "short", None)]

    seeded(main)


def test_the_last_turn_is_the_one_that_ran() -> None:
    """A takeover that also ends a queued message tells the next turn of the turn that ran, with its partial text."""
    seen: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        seen.append("" if message.previous is None else message.previous.text)
        await mumbles(run, message)

    async def main() -> None:
        seen.clear()
        async with open_control(agent) as control:
            first = await control.send("s", "one")
            await told(control, first.run_id, EventKind.DELTA)
            await control.send("s", "waits", strategy="queue")
            third = await control.send("s", "two")
            await started(control, third.run_id)
        assert seen == ["", "about one"]

    seeded(main)


def test_an_arrival_can_be_stopped_at_once() -> None:
    """A message that is not decided on yet ends with a stop right after it, and its agent never begins (race 2)."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)

    async def main() -> None:
        began.clear()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello", by="alice"))
            while not await control.runs(by="alice"):
                await asyncio.sleep(0)
            stopping = asyncio.create_task(control.stop(session="s", by="alice"))
            await anyio.sleep(0.1)
            store.resume()
            receipt, sent = await stopping, await sending
            assert receipt.aborted and [run.id for run in receipt.runs] == [sent.run_id]
            assert (sent.state, sent.generation) == (State.ENDED, None)
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "ended"]
        assert began == []

    seeded(main)


def test_a_stop_between_registration_and_ack() -> None:
    """A run that is stopped while its admission commits: the sender is acked, then the end is told (race 2)."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(idles, store=store) as control:
            sending = asyncio.create_task(control.send("s", "hello", by="alice"))
            await anyio.sleep(0.05)
            [live] = control._registry.runs.values()
            receipt = await control.stop(session="s", by="alice")
            assert live.admittance.acked.is_set()
            sent = await sending
            assert receipt.aborted and receipt.runs[0].id == sent.run_id
            assert receipt.runs[0].body == "none"
            assert sent.state is State.ENDED

    seeded(main)


def test_a_stop_between_ack_and_first_step() -> None:
    """A run that is stopped before its start is on record never executes a line of its agent (races 3 and 4)."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)

    async def main() -> None:
        began.clear()
        store = MemoryStore(latency_seconds=0.05)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            receipt = await control.stop(run=sent.run_id)
            assert receipt.aborted and receipt.runs[0].outcome.started_at is None
            await anyio.sleep(10)
        assert began == []

    seeded(main)


def test_a_sender_that_goes_away_changes_nothing() -> None:
    """Cancelling `send` while it waits for the ack leaves the message, which runs to its end."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(echoes, store=store) as control:
            sending = asyncio.create_task(control.send("s", "hello"))
            await anyio.sleep(0.05)
            sending.cancel()
            [info] = await control.runs("s")
            outcome = await control.wait(info.id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "hello")

    seeded(main)


def test_arrivals_are_decided_in_their_order() -> None:
    """Messages of one session that arrive together take over one another in the order they came (race 24)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await at_once(*(control.send("s", f"m{n}") for n in range(5)))
            assert [each.superseded for each in sent] == [None, *(each.run_id for each in sent[:-1])]
            assert [each.generation for each in sent] == [1, 3, 5, 7, 9]
            await started(control, sent[-1].run_id)
            said = [event.data.text for event in await log_of(control, "s") if event.kind is EventKind.MESSAGE]
            assert said == ["m0", "m1", "m2", "m3", "m4"]

    seeded(main)


def test_a_message_right_behind_a_stop_is_not_swallowed() -> None:
    """A message sent in the same instant as a stop, but after the stop, runs (races 23 and 24)."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            receipt, second = await at_once(control.stop(session="s"), control.send("s", "two"))
            assert [run.id for run in receipt.runs] == [first.run_id]
            await started(control, second.run_id)
            assert second.superseded is None

    seeded(main)


def test_a_stop_right_behind_a_message_ends_it() -> None:
    """A stop in the same instant as a message, but after the message, ends both it and the run (race 24)."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            second, receipt = await at_once(control.send("s", "two"), control.stop(session="s"))
            outcomes = [await control.wait(run) for run in (first.run_id, second.run_id)]
            assert outcomes[1].ending is Ending.STOPPED
            assert outcomes[0].ending in (Ending.STOPPED, Ending.SUPERSEDED)
            assert second.run_id in [run.id for run in receipt.runs]

    seeded(main)


def test_a_message_does_not_wait_for_cleanup() -> None:
    """A message sent while a stopped agent cleans up starts after the fence, not after the cleanup (race 22)."""

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "slow":
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1.5)
        return message.text

    async def main() -> None:
        async with open_control(agent) as control:
            slow = await control.send("s", "slow")
            await started(control, slow.run_id)
            receipt = await control.stop(session="s")
            assert receipt.drain == "pending"
            quick = await control.send("s", "quick")
            assert (await control.wait(quick.run_id)).text == "quick"
            assert (await control.receipt(slow.run_id)).drain == "pending"
            outcome = await control.wait(slow.run_id, drained=True)
            assert outcome.drained and (await control.receipt(slow.run_id)).drain == "observed"

    seeded(main)


def test_sessions_do_not_disturb_each_other() -> None:
    """A message takes over only in its own session."""

    async def main() -> None:
        async with open_control(idles) as control:
            one, two = await control.send("a", "x"), await control.send("b", "x")
            assert one.superseded is two.superseded is None
            await control.stop(session="a")
            assert (await control.wait(two.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_ids_and_generations_outlive_an_idle_session() -> None:
    """A session that left memory goes on counting where it stood, and no run id comes twice (races 41, 42 and 43)."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = []
            for n in range(4):
                sent.append(await control.send("s", f"m{n}"))
                await control.wait(sent[-1].run_id, drained=True)
                await anyio.sleep(5)
                assert control._registry.sessions == {}
            generations = [each.generation for each in sent]
            assert generations == sorted(set(generations)) and None not in generations
            assert len({each.run_id for each in sent}) == 4

    seeded(main)


def test_a_second_control_on_the_store_goes_on() -> None:
    """After a reopening neither ids, positions nor generations repeat (races 41 and 42)."""

    async def main() -> None:
        store = MemoryStore()
        sent, positions = [], []
        for _ in range(3):
            async with open_control(echoes, store=store) as control:
                sent.append(await control.send("s", "hello"))
                await control.wait(sent[-1].run_id, drained=True)
        positions = [event.position for event in (await store.events("s", after=0, limit=1000)).events]
        assert positions == sorted(set(positions))
        assert len({each.run_id for each in sent}) == 3
        assert [each.generation for each in sent] == sorted({each.generation for each in sent})

    seeded(main)


@pytest.mark.parametrize("strategy", ["queue", "interrupt", "reject"])
def test_an_empty_seat_is_taken_whatever_the_strategy(strategy: str) -> None:
    """Every strategy means the same while the seat is empty."""

    async def main() -> None:
        async with open_control(echoes, strategy=strategy) as control:
            sent = await control.send("s", "hello")
            assert sent.generation == 1
            assert (await control.wait(sent.run_id)).text == "hello"

    seeded(main)


def test_a_late_cleanup_frees_nothing_of_the_new_run() -> None:
    """Neither the end of a waiting run nor the cleanup of an old one frees the seat of the new run (race 13)."""

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


def test_a_message_behind_a_stop_whose_caller_vanished() -> None:
    """A message in the instant after a stop runs, also if the caller of the stop is gone by then (race 23)."""

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
