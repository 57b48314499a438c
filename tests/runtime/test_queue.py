"""Strategies at work: interrupt, queue, reject; a bounded queue; fairness; storms."""

import asyncio
from collections import Counter
from itertools import pairwise
from random import Random

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, QueueFull, Rejected, Run, Settings, open_control
from interlock.core.names import Strategy
from interlock.runtime.inbox import PASSES
from interlock.testing import run_seeded

from .scene import BRIEF, at_once, idles, kinds, log_of, seeded, started, swallowed


class Gated:
    """An agent that answers when its message is let through, and writes down what began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def let(self, text: str) -> None:
        """Let a message's run return."""
        self.gates.setdefault(text, asyncio.Event()).set()

    async def __call__(self, run: Run, message: Message) -> str:
        self.began.append(message.text)
        await self.gates.setdefault(message.text, asyncio.Event()).wait()
        return message.text


def test_queued_messages_run_one_by_one_in_order() -> None:
    """With `queue` each message gets the seat when the one before it has ended, in the order they came."""

    async def main() -> None:
        agent = Gated()
        async with open_control(agent, strategy="queue") as control:
            sent = [await control.send("s", text) for text in "abc"]
            assert [each.state for each in sent] == ["seated", "queued", "queued"]
            assert [each.superseded for each in sent] == [None] * 3
            for text, each in zip("abc", sent, strict=True):
                await started(control, each.run_id)
                assert agent.began[-1] == text
                agent.let(text)
                assert (await control.wait(each.run_id)).text == text
            assert agent.began == ["a", "b", "c"]

    seeded(main)


def test_a_message_says_its_own_strategy() -> None:
    """A message's strategy goes before the control's."""

    async def main() -> None:
        async with open_control(idles, strategy="reject") as control:
            first = await control.send("s", "one")
            with pytest.raises(Rejected):
                await control.send("s", "two")
            queued = await control.send("s", "three", strategy="queue")
            assert queued.generation is None
            last = await control.send("s", "four", strategy=Strategy.INTERRUPT)
            assert last.superseded == first.run_id
            assert (await control.wait(queued.run_id)).ending is Ending.SUPERSEDED

    seeded(main)


def test_settings_carry_a_strategy() -> None:
    """A strategy given in the settings counts where `open_control` is not told another."""

    async def main() -> None:
        async with open_control(idles, settings=Settings(strategy=Strategy.REJECT)) as control:
            await control.send("s", "one")
            with pytest.raises(Rejected):
                await control.send("s", "two")

    seeded(main, range(1))


def test_a_rejected_message_never_was() -> None:
    """With `reject` a busy session refuses aloud with the remedy; nothing of the message is kept, its key is free."""

    async def main() -> None:
        store = MemoryStore()
        agent = Gated()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one", by="alice")
            await started(control, first.run_id)
            log = await log_of(control, "s")
            with pytest.raises(Rejected, match="stop its run, or send with strategy='interrupt'"):
                await control.send("s", "two", by="alice", strategy="reject", key="k")
            assert await log_of(control, "s") == log
            assert len(await store.runs("s")) == 1
            agent.let("one")
            await control.wait(first.run_id)
            again = await control.send("s", "two", by="alice", strategy="reject", key="k")
            await started(control, again.run_id)

    seeded(main)


def test_a_takeover_ends_the_queue() -> None:
    """A message that takes over ends the waiting ones too, each with an ending of its own, none of them begun."""

    async def main() -> None:
        agent = Gated()
        async with open_control(agent) as control:
            first = await control.send("s", "a")
            await started(control, first.run_id)
            waiting = [await control.send("s", text, strategy="queue") for text in "bc"]
            last = await control.send("s", "d")
            for each in [first, *waiting]:
                outcome = await control.wait(each.run_id)
                assert (outcome.ending, outcome.superseded_by) == (Ending.SUPERSEDED, last.run_id)
            receipt = await control.receipt(first.run_id)
            assert [run.id for run in receipt.runs] == [first.run_id, *(each.run_id for each in waiting)]
            assert receipt.queued == 2
            await started(control, last.run_id)
            assert agent.began == ["a", "d"]

    seeded(main)


def test_a_full_queue_is_refused_aloud() -> None:
    """The message beyond the bound is refused before the ack; none that was accepted is dropped."""

    async def main() -> None:
        store = MemoryStore()
        agent = Gated()
        async with open_control(agent, store=store, strategy="queue", settings=Settings(queue=3)) as control:
            sent = [await control.send("s", str(n)) for n in range(4)]
            for _ in range(2):
                with pytest.raises(QueueFull, match="3 messages wait in session s; send this message again later"):
                    await control.send("s", "too many", key="k")
            assert len(await store.runs("s")) == 4
            agent.let("0")
            await started(control, sent[1].run_id)
            fifth = await control.send("s", "4", key="k2")
            for n in range(1, 5):
                agent.let(str(n))
            assert (await control.wait(fifth.run_id)).text == "4"
            assert agent.began == ["0", "1", "2", "3", "4"]

    seeded(main, range(4))


def test_arrivals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that cannot be decided on yet are bounded too, and the one beyond is refused at once."""
    monkeypatch.setattr("interlock.runtime.inbox.ARRIVALS", 5)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            store.faults.stall = True
            sending = [asyncio.create_task(control.send("s", str(n))) for n in range(5)]
            while len(await control.runs()) < 5:
                await asyncio.sleep(0)
            with pytest.raises(QueueFull, match="not decided on yet; send this message again later"):
                await control.send("s", "too many")
            store.resume()
            for task in sending:
                await task

    seeded(main, range(3))


def test_a_message_between_the_end_and_the_drain() -> None:
    """A message that arrives while the old run drains gets the seat at once and is not lost (race 27)."""

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "long":
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
        return message.text

    async def main() -> None:
        async with open_control(agent, strategy="queue") as control:
            first = await control.send("s", "long")
            await started(control, first.run_id)
            await control.stop(run=first.run_id)
            second = await control.send("s", "short")
            assert second.generation is not None
            assert (await control.wait(second.run_id)).text == "short"
            assert not (await control.wait(first.run_id)).drained

    seeded(main)


def test_an_old_run_s_cleanup_takes_nothing_from_the_queue() -> None:
    """An ended run's cleanup does not dequeue: the waiting message begins once, by the fall alone (races 25 and 26)."""

    async def main() -> None:
        agent = Gated()
        async with open_control(agent, strategy="queue") as control:
            sent = [await control.send("s", text) for text in "abcd"]
            await started(control, sent[0].run_id)
            await at_once(control.stop(run=sent[0].run_id), control.stop(run=sent[0].run_id))
            await started(control, sent[1].run_id)
            agent.let("b")
            stop, outcome = await at_once(control.stop(run=sent[1].run_id), control.wait(sent[1].run_id))
            assert stop.runs[0].outcome.ending is outcome.ending
            await started(control, sent[2].run_id)
            await anyio.sleep(20)
            assert agent.began == ["a", "b", "c"]
            agent.let("c")
            await started(control, sent[3].run_id)
            log = await log_of(control, "s")
            assert [kinds(log, each.run_id).count("started") for each in sent] == [1, 1, 1, 1]

    seeded(main)


def test_repeated_takeovers_starve_nobody() -> None:
    """A waiting message of someone else is passed over at most PASSES times, then it gets the seat first."""

    async def main() -> None:
        agent = Gated()
        async with open_control(agent) as control:
            # Bob owns the session, so that neither of the two senders below does.
            first = await control.send("s", "the owner's", by="bob")
            await control.stop(run=first.run_id, by="bob")
            await control.share("s", with_="alice")
            await control.share("s", with_="carol")
            running = await control.send("s", "alice 0", by="alice")
            await started(control, running.run_id)
            waiting = await control.send("s", "carol", by="carol")
            for n in range(1, PASSES + 1):
                taking = await control.send("s", f"alice {n}", by="alice")
                assert taking.superseded is not None and taking.generation is not None
            behind = await control.send("s", "alice last", by="alice")
            assert behind.superseded == taking.run_id and behind.generation is None
            await started(control, waiting.run_id)
            assert agent.began[-1] == "carol"
            agent.let("carol")
            await started(control, behind.run_id)
            assert (await control.wait(waiting.run_id)).ending is Ending.COMPLETED

    seeded(main)


def test_a_storm_of_messages() -> None:
    """1,000 messages at once: the last is dominant, each has one ending, and no task or entry is left (race 28)."""
    storm = 1000

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await at_once(*(control.send("s", f"m{n}") for n in range(storm)))
            await started(control, sent[-1].run_id)
            assert control._registry.sessions["s"].seat.id == sent[-1].run_id
            for each, successor in pairwise(sent):
                outcome = await control.wait(each.run_id)
                assert (outcome.ending, outcome.superseded_by) == (Ending.SUPERSEDED, successor.run_id)
            assert [each.generation for each in sent] == list(range(1, 2 * storm, 2))
            await anyio.sleep(5)
            assert list(control._registry.runs) == [sent[-1].run_id]
            assert len(control._crew._tasks) == 1
            assert control._registry.keys == {}

    seeded(main, range(1), max_steps=2_000_000)


def test_a_storm_on_the_stock_loop() -> None:
    """The same storm on asyncio's own loop, with keys, leaves nothing but the one that runs (race 28)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sending = [asyncio.create_task(control.send("s", f"m{n}", key=f"k{n}")) for n in range(300)]
            sent = [await task for task in sending]
            await started(control, sent[-1].run_id)
            for each in sent[:-1]:
                await control.wait(each.run_id, drained=True)
            while len(control._registry.runs) > 1:
                await asyncio.sleep(0)
            await control.stop(session="s")
            await control.wait(sent[-1].run_id, drained=True)
            while control._registry.runs:
                await asyncio.sleep(0)
            assert control._registry.sessions == {} and control._registry.keys == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_queue_of_others_goes_on_at_once_after_a_stop() -> None:
    """A stop by a guest of their own run gives the seat to the next message of another without delay."""

    async def main() -> None:
        agent = Gated()
        async with open_control(agent) as control:
            bobs = await control.send("s", "bob", by="bob")
            await started(control, bobs.run_id)
            await control.share("s", with_="alice")
            alices = await control.send("s", "alice", by="alice")
            receipt = await control.stop(run=bobs.run_id, by="bob")
            assert [run.id for run in receipt.runs] == [bobs.run_id]
            before = asyncio.get_running_loop().time()
            await started(control, alices.run_id)
            assert asyncio.get_running_loop().time() - before < 0.2

    seeded(main)


def test_only_an_empty_seat_takes_from_the_queue() -> None:
    """A takeover leaves another's message waiting; that begins once, when the seat is free (race 25)."""
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
    """A message that still waits begins once, one at a time, when several runs end or leave the queue (race 26)."""
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
