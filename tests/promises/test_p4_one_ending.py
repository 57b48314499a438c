"""P4. A run has exactly one ending, decided once, the same on every surface, after a restart, and on every node.
Cleanup signals never rewrite it. (The one exception: an ending told as `durable: false` that a crash erases reads as
`lost`, or, if the run had not started, its message is admitted again; the receipt had said so.)
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from interlock import Control, Ending, MemoryStore, Message, Outcome, Run, open_control
from interlock.core import projection
from interlock.core.names import EventKind
from runtime.scene import BRIEF, Sink, idles, swallowed

from .scene import seeded

ENDINGS = (Ending.COMPLETED, Ending.FAILED, Ending.STOPPED, Ending.SUPERSEDED, Ending.TIMED_OUT, Ending.SHUTDOWN)

SURFACES: dict[str, Callable[[Outcome], object]] = {
    "agent.wait": projection.agent_wait,
    "chat": projection.chat_event,
    "responses": projection.responses,
    "parent": projection.parent_word,
    "client": projection.client_words,
    "channel": projection.channel_words,
    "every other": projection.row,
}


def agree(tellings: dict[str, Outcome]) -> Outcome:
    """Check that all tellings of one ending agree, in our words and in those of every surface."""
    first, *others = tellings.items()
    for where, outcome in others:
        assert outcome.same_story(first[1]), f"{where} tells {outcome}, {first[0]} told {first[1]}"
        for surface, words in SURFACES.items():
            assert words(outcome) == words(first[1]), f"{surface} differs between {where} and {first[0]}"
    return first[1]


async def everywhere(control: Control, store: MemoryStore, sink: Sink, run_id: str) -> dict[str, Outcome]:
    """Collect one run's ending from everyone who tells it."""
    tellings = {"wait": await control.wait(run_id)}
    tellings["its terminal event"] = (await sink.until(run_id, EventKind.ENDED)).data.outcome
    receipt = await control.receipt(run_id)
    tellings |= {f"receipt {n}": run.outcome for n, run in enumerate(receipt.runs) if run.id == run_id}
    again = await control.stop(run=run_id)
    tellings |= {f"a late stop {n}": run.outcome for n, run in enumerate(again.runs) if run.id == run_id}
    assert (again.aborted, again.already) == (False, tellings["wait"].ending)
    [listed] = [info.outcome for info in await control.runs("s") if info.id == run_id]
    assert listed is not None
    tellings["runs()"] = listed
    row = await store.run(run_id)
    assert row is not None and row.outcome is not None
    tellings["the store"] = row.outcome
    return tellings


def make(ending: Ending, heard: list[Outcome | None]) -> Callable[..., object]:
    """Make an agent whose first run ends in a given way, and whose every later signal says something else."""

    async def agent(run: Run, message: Message) -> str | None:
        heard.append(message.previous)
        if message.text != "hello":
            return None
        async with run.phase("provider"):
            await run.say("part ")
            if ending is Ending.COMPLETED:
                await asyncio.sleep(0.01)
                return "and whole"
            if ending is Ending.FAILED:
                raise RuntimeError("provider gone")
            error = await swallowed(asyncio.sleep(60))
            await swallowed(run.say("more"))
        if isinstance(error, asyncio.CancelledError) and Random(ending).random() < 0.5:
            raise ValueError("in cleanup")
        return "a late reply"

    return agent


@pytest.mark.parametrize("ending", ENDINGS)
def test_everyone_tells_one_ending(ending: Ending) -> None:
    """Wait, terminal event, receipt, late stop, runs(), store and next turn tell one ending, also after a restart."""

    async def main() -> None:
        store, heard = MemoryStore(), []
        agent = make(ending, heard)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", deadline=0.05 if ending is Ending.TIMED_OUT else None)
            await sink.until(sent.run_id, EventKind.DELTA)
            if ending is Ending.STOPPED:
                await control.stop(session="s", by="local")
            elif ending is Ending.SUPERSEDED:
                await control.send("s", "next")
            if ending is not Ending.SHUTDOWN:
                at_t1 = agree(await everywhere(control, store, sink, sent.run_id))
                await control.wait(sent.run_id, drained=True)
                await asyncio.sleep(3)
                late = await everywhere(control, store, sink, sent.run_id)
                assert agree({"at t1": at_t1, **late}).ending is ending
        async with open_control(agent, store=store) as control:  # a restart
            tellings = await everywhere(control, store, sink, sent.run_id)
            assert agree(tellings).ending is ending
            if ending is not Ending.SUPERSEDED:
                await control.wait((await control.send("s", "next")).run_id)
            assert heard[-1] is not None
            agree({**tellings, "the next turn": heard[-1]})

    seeded(main)


def test_a_tie_has_one_winner_everywhere() -> None:
    """All tell the ending that the first of completion, failure, stop, takeover and deadline decided (race 17)."""
    won: set[Ending] = set()

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "next":
            return None
        await run.say("part ")
        await swallowed(asyncio.sleep(0.01))
        if Random(seed).random() < 0.3:
            raise RuntimeError("no")
        return "reply"

    async def main() -> None:
        store, random = MemoryStore(), Random(seed)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", deadline=random.choice((None, 0.01, 0.01)))
            await sink.until(sent.run_id, EventKind.STARTED)
            await asyncio.sleep(0.01 - random.choice((0.0, 2e-4, 1e-3)))
            asked = [
                lambda: control.stop(run=sent.run_id),
                lambda: control.stop(session="s"),
                lambda: control.send("s", "next"),
            ]
            await asyncio.gather(*(ask() for ask in random.sample(asked, random.choice((1, 2, 3)))))
            won.add(agree(await everywhere(control, store, sink, sent.run_id)).ending)
            await control.wait(sent.run_id, drained=True)
            assert sink.kinds(sent.run_id).count("ended") == 1
            agree(await everywhere(control, store, sink, sent.run_id))

    for seed in range(60):
        seeded(main, (seed,), charge=2e-5)
    assert won >= {Ending.STOPPED, Ending.SUPERSEDED, Ending.TIMED_OUT}, "the schedules should have covered these"


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.STOPPED, Ending.TIMED_OUT])
def test_an_ending_told_without_the_store_is_the_one_it_gets(ending: Ending, fault: str) -> None:
    """An end while the store is in trouble says `durable: false`; the store later holds that very ending."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(make(ending, []), store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", deadline=0.05 if ending is Ending.TIMED_OUT else None)
            await sink.until(sent.run_id, EventKind.DELTA)
            setattr(store.faults, fault, True)
            if ending is Ending.STOPPED:
                receipt = await control.stop(session="s")
                assert receipt.durable is False
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.durable) == (ending, False)
            terminal = (await sink.until(sent.run_id, EventKind.ENDED)).data.outcome
            assert terminal.durable is False
            store.resume()
            await asyncio.sleep(2)
            tellings = await everywhere(control, store, sink, sent.run_id)
            assert agree({"then": outcome, "the event": terminal, **tellings}).ending is ending
            assert (await control.receipt(sent.run_id)).durable
            assert EventKind.CORRECTION not in [event.kind for event in sink.events]

    seeded(main)


def test_cleanup_never_rewrites_the_ending() -> None:
    """A run that timed out stays so, whatever its agent raises or returns and whoever stops it (race 21)."""

    async def agent(run: Run, message: Message) -> str:
        async with run.phase("provider"):
            try:
                await asyncio.sleep(60)
            except BaseException:
                match message.text:
                    case "raises":
                        raise RuntimeError("in cleanup") from None
                    case "returns":
                        return "late"
                    case "asks":
                        await swallowed(run.post("late"))
                raise
        return ""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            for text in ("raises", "returns", "asks", "passes"):
                sent = await control.send("s", text, deadline=1)
                outcome = await control.wait(sent.run_id)
                stopped = await control.stop(session="s")
                assert (stopped.aborted, stopped.already) == (False, Ending.TIMED_OUT)
                await control.wait(sent.run_id, drained=True)
                agree({"then": outcome, **await everywhere(control, store, sink, sent.run_id)})
                assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "provider", 1000)
                assert (outcome.error, outcome.by, outcome.text) == (None, None, "")

    seeded(main)


def test_pending_and_unknown_are_never_told_as_endings() -> None:
    """A waiter who gives up hears `pending`, one who asks for what never was `unknown`; neither is an ending."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            pending = await control.wait(sent.run_id, timeout=0.1)
            unknown = await control.wait("r-1-99")
            assert (pending.ending, unknown.ending) == (Ending.PENDING, Ending.UNKNOWN)
            assert not pending.ended and not unknown.ended
            assert [info.outcome for info in await control.runs("s")] == [None]
            assert projection.agent_wait(pending).status == "pending"

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
    """A stop right after the deadline, while the run cleans up, is told the timeout; all agree (races 19, 21)."""

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
