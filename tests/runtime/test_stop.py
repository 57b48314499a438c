"""Stop: never refused, never waiting, and a receipt that says what it did."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, Receipt, Run, Stale, open_control
from interlock.core.events import ReceiptData
from interlock.core.names import EventKind
from interlock.core.projection import agent_wait, chat_event
from interlock.core.verbs import Send, Stop

from .scene import (
    answers,
    at_once,
    deaf,
    echoes,
    forgotten,
    harmless,
    idles,
    kinds,
    log_of,
    mumbles,
    seeded,
    started,
    story,
    swallowed,
    told,
)


def test_a_stopped_run_is_over() -> None:
    """Stop returns a receipt at once; the run is stopped by the caller and its partial text is kept once."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            sent = await control.send("s", "hello", by="alice")
            await told(control, sent.run_id, EventKind.DELTA)
            receipt = await control.stop(session="s", by="alice")
            assert (receipt.aborted, receipt.already, receipt.cause, receipt.by) == (True, None, "stopped", "alice")
            assert receipt.session == "s" and receipt.durable and receipt.grade == "inline"
            [fallen] = receipt.runs
            assert story(fallen.outcome) == ("stopped", "about hello", "alice", None)
            [ended] = [event for event in await log_of(control, "s") if event.kind is EventKind.ENDED]
            assert ended.data.cut == "about hello"
            outcome = await control.wait(sent.run_id, drained=True)
            assert story(outcome) == story(fallen.outcome)
            assert (await control.receipt(sent.run_id)).runs[0].body == "cut"

    seeded(main)


def test_nothing_of_the_run_follows_its_end() -> None:
    """An agent that swallows every cancel and goes on talking is heard no more, and each refusal is counted."""
    tried: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> None:
        await run.say("before")
        await swallowed(anyio.sleep_forever())
        for _ in range(3):
            tried.append(await swallowed(run.say("after")))
        tried.append(await swallowed(run.post("after")))

    async def main() -> None:
        tried.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            assert (await control.wait(sent.run_id, drained=True)).text == "before"
            receipt = await control.receipt(sent.run_id)
            assert receipt.refused == {"delta": 3, "block": 1, "final": 1}
            log = await log_of(control, "s")
            assert kinds(log, sent.run_id)[-1] == "ended"
            assert "after" not in repr(log)
        assert [type(error) for error in tried] == [Stale] * 4

    seeded(main)


def test_two_stops_of_one_run() -> None:
    """The second stop gets the same receipt with `aborted: false` and the ending it found (race 14)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            first, second = await at_once(*(control.stop(run=sent.run_id, by="local") for _ in range(2)))
            assert (first.aborted, first.already) == (True, None)
            assert (second.aborted, second.already) == (False, Ending.STOPPED)
            assert first.id == second.id and first.runs[0].outcome == second.runs[0].outcome
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(5)
            assert control._registry.runs == {}
            third = await control.stop(run=sent.run_id)
            assert (third.id, third.aborted, third.already) == (first.id, False, Ending.STOPPED)
            assert kinds(await log_of(control, "s")).count("ended") == 1

    seeded(main)


def test_a_late_stop_harms_nobody() -> None:
    """A stop for a run that ended leaves its successor alone (race 15)."""

    async def agent(run: Run, message: Message) -> str | None:
        return message.text if message.text == "quick" else await idles(run, message)

    async def main() -> None:
        async with open_control(agent) as control:
            quick = await control.send("s", "quick")
            await control.wait(quick.run_id)
            long = await control.send("s", "long")
            await started(control, long.run_id)
            generation = control._registry.generations.get("s")
            receipt = await control.stop(run=quick.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.COMPLETED)
            assert control._registry.generations.get("s") == generation
            assert (await control.wait(long.run_id, timeout=5)).ending is Ending.PENDING

    seeded(main)


def test_a_session_stop_ends_the_queue_too() -> None:
    """A session-scoped stop ends what runs and what waits; the waiting message is never dispatched (race 16)."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)
        await anyio.sleep_forever()

    async def main() -> None:
        began.clear()
        async with open_control(agent, strategy="queue") as control:
            sent = [await control.send("s", text) for text in ("a", "b", "c")]
            await started(control, sent[0].run_id)
            assert sent[1].generation is sent[2].generation is None
            receipt = await control.stop(session="s")
            assert [run.id for run in receipt.runs] == [each.run_id for each in sent]
            assert receipt.queued == 2
            assert [run.body for run in receipt.runs][1:] == ["none", "none"]
            for each in sent:
                assert (await control.wait(each.run_id)).ending is Ending.STOPPED
            await anyio.sleep(10)
        assert began == ["a"]

    seeded(main)


def test_a_run_stop_leaves_the_queue() -> None:
    """A run-scoped stop ends that run only; the next message in the queue gets the seat at once."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            first, second = await control.send("s", "a"), await control.send("s", "b")
            await started(control, first.run_id)
            receipt = await control.stop(run=first.run_id)
            assert [run.id for run in receipt.runs] == [first.run_id]
            await started(control, second.run_id)

    seeded(main)


def test_a_waiting_message_can_be_stopped_alone() -> None:
    """A run-scoped stop of a queued message ends it where it waits and disturbs nobody."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            first, second, third = [await control.send("s", text) for text in "abc"]
            receipt = await control.stop(run=second.run_id)
            assert (receipt.queued, receipt.runs[0].body) == (1, "none")
            await control.stop(run=first.run_id)
            await started(control, third.run_id)
            assert kinds(await log_of(control, "s"), second.run_id) == ["message", "ended"]

    seeded(main)


def test_a_stop_that_finds_nothing() -> None:
    """A stop of what is not there raises nothing, ends nothing and leaves no receipt behind (race 128)."""

    async def main() -> None:
        async with open_control(echoes) as control:
            for receipt in (
                await control.stop(session="nowhere"),
                await control.stop(run="r-9-9"),
                await control.stop(message="never"),
            ):
                assert (receipt.id, receipt.aborted, receipt.runs, receipt.already) == (None, False, (), None)
                assert receipt.drain == "observed"

    seeded(main)


def test_a_session_stop_on_an_empty_seat_raises_the_generation() -> None:
    """A stop that finds the seat empty still raises the session's generation, in memory or only in the store."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            before = control._registry.generations.get("s")
            receipt = await control.stop(session="s")
            assert not receipt.aborted and receipt.runs == ()
            await anyio.sleep(5)
            assert control._registry.sessions == {}
            row = await store.session("s")
            assert row is not None and row.generation > before
            await control.stop(session="s")
            again = await store.session("s")
            assert again is not None and again.generation == row.generation + 1
            new = await control.send("s", "hello")
            assert new.generation is not None and new.generation > again.generation

    seeded(main)


def test_stop_and_completion_tie() -> None:
    """The first to settle stands, and stop, wait, watch, receipt and store agree on it (race 17)."""
    endings: set[str] = set()

    async def main() -> None:
        done = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            await done.wait()
            return "done"

        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            stopping = asyncio.create_task(control.stop(run=sent.run_id))
            done.set()
            receipt = await stopping
            outcome = await control.wait(sent.run_id, drained=True)
            row = await store.run(sent.run_id)
            ended = [event for event in await log_of(control, "s") if event.kind is EventKind.ENDED]
            assert row is not None and row.outcome is not None and len(ended) == 1
            told_as = {story(each) for each in (outcome, row.outcome, ended[0].data.outcome, receipt.runs[0].outcome)}
            assert len(told_as) == 1
            assert receipt.aborted == (outcome.ending is Ending.STOPPED)
            assert receipt.already == (None if receipt.aborted else Ending.COMPLETED)
            endings.add(outcome.ending.value)

    seeded(main, range(40))
    assert endings == {"completed", "stopped"}


def test_an_error_after_the_stop_changes_nothing() -> None:
    """An agent that raises in answer to the cut stays stopped (race 20)."""

    async def agent(run: Run, message: Message) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("late")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.error) == (Ending.STOPPED, None)
            assert kinds(await log_of(control, "s")).count("ended") == 1

    seeded(main)


def test_a_late_reply_after_the_stop_changes_nothing() -> None:
    """An agent that swallows the cut and returns a reply stays stopped, and the reply is nowhere (race 20)."""

    async def agent(run: Run, message: Message) -> str:
        await swallowed(anyio.sleep_forever())
        return "too late"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.text) == (Ending.STOPPED, "")
            assert (await control.receipt(sent.run_id)).refused == {"final": 1}
            assert "too late" not in repr(await log_of(control, "s"))

    seeded(main)


def test_a_caller_that_goes_away_changes_nothing() -> None:
    """Cancelling `stop` while it waits for the commit leaves the ending and its receipt complete."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            stopping = asyncio.create_task(control.stop(run=sent.run_id))
            await anyio.sleep(0.05)
            stopping.cancel()
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.STOPPED and outcome.durable
            assert (await control.receipt(sent.run_id)).drain == "observed"

    seeded(main)


def test_stop_does_not_wait_for_the_agent() -> None:
    """A stop of an agent that hears no cancel returns at t1; the receipt completes when the leash drops the agent."""

    async def main() -> None:
        async with open_control(deaf) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            before = asyncio.get_running_loop().time()
            receipt = await control.stop(run=sent.run_id)
            assert asyncio.get_running_loop().time() - before < 0.5
            assert receipt.drain == "pending" and receipt.drained_at is None
            assert not (await control.wait(sent.run_id)).drained
            assert (await control.wait(sent.run_id, drained=True)).drained
            final = await control.receipt(receipt.id or "")
            assert (final.drain, final.unconfirmed) == ("unconfirmed", (f"agent of {sent.run_id} (never resumed)",))
            assert final.fenced_at <= (final.ended_at or 0) <= (final.drained_at or 0)

    seeded(main)


def test_receipts_are_events_of_the_session() -> None:
    """A watcher of the session sees the receipt at the end and again when it is drained, after the terminal event."""

    async def main() -> None:
        async with open_control(deaf) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            receipt = await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            log = await log_of(control, "s")
            assert kinds(log)[-3:] == ["ended", "receipt", "receipt"]
            proofs = [event for event in log if event.kind is EventKind.RECEIPT]
            assert all(event.run_id is None and event.data.receipt.id == receipt.id for event in proofs)
            assert [event.data.receipt.drain for event in proofs] == ["pending", "unconfirmed"]

    seeded(main)


def test_a_stop_by_key_finds_the_run() -> None:
    """A key names the run it began, for the principal it belongs to."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            await started(control, sent.run_id)
            assert not (await control.stop(message="k", by="bob")).aborted
            receipt = await control.stop(message="k", by="alice")
            assert receipt.aborted and receipt.runs[0].id == sent.run_id

    seeded(main)


def test_a_key_can_be_stopped_before_it_is_seen() -> None:
    """A stop that names a key nobody has used yet lets its run be born stopped (race 1)."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)

    async def main() -> None:
        began.clear()
        async with open_control(agent) as control:
            receipt = await control.stop(message="k", by="alice")
            assert not receipt.aborted
            sent = await control.send("s", "hello", by="alice", key="k")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.by, outcome.started_at) == (Ending.STOPPED, "alice", None)
            assert sent.generation is None
            again = await control.send("s", "hello", by="alice", key="k")
            assert again.run_id == sent.run_id
        assert began == []

    seeded(main)


def test_a_born_stopped_message_takes_nobody_over() -> None:
    """Control looks for a tombstone before it takes over: the run in the seat goes on (race 1)."""

    async def main() -> None:
        async with open_control(idles) as control:
            running = await control.send("s", "one", by="alice")
            await started(control, running.run_id)
            await control.stop(message="k", by="alice")
            born = await control.send("s", "two", by="alice", key="k")
            assert born.superseded is None
            assert (await control.wait(born.run_id)).ending is Ending.STOPPED
            assert (await control.wait(running.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_stops_and_messages_in_a_storm() -> None:
    """However stops and messages are mixed, every run has one ending and the last message is never lost."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            calls = []
            for n in range(10):
                calls += [control.send("s", f"m{n}"), control.stop(session="s")]
            answers = await at_once(*calls, control.send("s", "last"))
            sent = [answer for answer in answers if not isinstance(answer, Receipt)]
            await started(control, sent[-1].run_id)
            for each in sent[:-1]:
                assert (await control.wait(each.run_id)).ending in (Ending.STOPPED, Ending.SUPERSEDED)
            log = await log_of(control, "s")
            for each in sent[:-1]:
                assert kinds(log, each.run_id).count("ended") == 1
                assert kinds(log, each.run_id)[-1] == "ended"

    seeded(main)


@pytest.mark.parametrize("phase", ["provider", "compaction", "memory"])
def test_a_stop_in_any_phase_is_the_same(phase: str) -> None:
    """A stop during compaction or any other phase ends the run, and no run overlaps its successor (race 34)."""
    running: list[str] = []
    most = 0

    async def agent(run: Run, message: Message) -> None:
        nonlocal most
        async with run.phase(phase):
            running.append(run.id)
            most = max(most, len(running))
            try:
                await anyio.sleep_forever()
            finally:
                running.remove(run.id)

    async def main() -> None:
        async with open_control(agent) as control:
            first = await control.send("s", "one")
            await told(control, first.run_id, EventKind.PHASE)
            receipt = await control.stop(session="s")
            assert receipt.aborted
            second = await control.send("s", "two")
            await told(control, second.run_id, EventKind.PHASE)

    seeded(main)
    assert most == 1


def test_no_provider_is_asked_again_after_a_stop() -> None:
    """An agent that retries, falls back to another model and swallows cancels asks nobody after the stop.

    Races 35, 36 and 37: `check` is the gate before each request, and what the old stream still sends is discarded.
    """
    asked: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        for model in ("first", "fallback", "last"):
            await run.check()
            asked.append(model)
            await run.say(f"{model} says ")
            await swallowed(anyio.sleep(60))

    async def main() -> None:
        asked.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.text == "first says "
        assert asked == ["first"]

    seeded(main)


def test_a_typed_stop_is_told_as_one() -> None:
    """A typed stop is told as typed in every telling of the ending; children, and stops by a call, are not."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("other", message.text)

    async def main() -> None:
        async with open_control(agent, agents={"other": idles}, strategy="queue") as control:
            sent = [await control.send("s", text) for text in ("one", "two")]
            while len(await control.runs("s", tree=True)) < 3:
                await anyio.sleep(0.01)
            [child] = [info for info in await control.runs("s", tree=True) if info.parent is not None]
            receipt = await control.stop(session="s", typed=True)
            assert [fallen.outcome.typed for fallen in receipt.runs] == [True, False, True]
            for each in sent:
                outcome = await control.wait(each.run_id)
                assert (outcome.ending, outcome.typed) == (Ending.STOPPED, True)
                assert agent_wait(outcome).stop_reason == chat_event(outcome).stop_reason == "stop"
            ended = [event.data.outcome for event in await log_of(control, "s") if event.kind is EventKind.ENDED]
            assert [outcome.typed for outcome in ended] == [True, True]
            assert not (await control.wait(child.id)).typed
            called = await control.send("s", "three")
            await control.stop(session="s")
            assert chat_event(await control.wait(called.run_id)).stop_reason == "rpc"
            for what in ("run", "message"):
                # A stop of these kinds has no message in which a person could have typed it.
                other = await control.send("s", "four", key=what)
                await control.stop(**{what: other.run_id if what == "run" else what}, typed=True)
                assert not (await control.wait(other.run_id)).typed

    seeded(main)


def test_a_large_tree_is_told_once() -> None:
    """A stop publishes the whole receipt in its own session, and to a child's session only the child's part."""
    mids, leaves = 4, 60

    async def mid(run: Run, message: Message) -> None:
        await asyncio.gather(*(run.delegate("leaf", "x") for _ in range(leaves)))

    async def agent(run: Run, message: Message) -> None:
        for _ in range(mids):
            await run.delegate("mid", "x", detached=True)
        await asyncio.sleep(3600)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, agents={"leaf": idles, "mid": mid}, store=store) as control:
            await control.send("s", "one")
            while sum(run.started_at is not None for run in control._registry.runs.values()) < 1 + mids + mids * leaves:
                await asyncio.sleep(0.01)
            receipt = await control.stop(session="s")
            await control.wait(receipt.runs[0].id, drained=True)
            await forgotten(control)
            everyone = {run.id for run in receipt.runs}
            assert len(everyone) == 1 + mids + mids * leaves
            for row in await store.runs("s", tree=True):
                log = (await store.events(row.session, after=0, limit=10_000)).events
                told = [event.data.receipt for event in log if isinstance(event.data, ReceiptData)]
                wanted = everyone if row.session == "s" else {row.id}
                assert 1 <= len(told) <= 3  # told, drained and stored
                for each in told:
                    assert {run.id for run in each.runs} == wanted
                    assert len(each.runs) == len(wanted)

    seeded(main, (0,))


class SlowRead(MemoryStore):
    """A store where one read may take its time, and the next overtakes it."""

    slow = 0.0

    async def load(self, session: Any, *, principal: Any, key: str | None) -> Any:
        """Wait, once, and read."""
        slow, self.slow = self.slow, 0.0
        await asyncio.sleep(slow)
        return await super().load(session, principal=principal, key=key)


def test_a_stop_of_an_absent_session_that_comes_alive() -> None:
    """A stop that found no run does not raise the generation above a run begun meanwhile, whose tools still work."""

    async def main() -> None:
        store = SlowRead()

        async def agent(run: Run, message: Message) -> str:
            await asyncio.sleep(0.5)
            return str(await run.call(harmless))

        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one", by="alice")
            await control.wait(first.run_id)
            await forgotten(control)
            store.slow = 0.1
            stopping = asyncio.create_task(control.stop(session="s", by="alice"))
            await asyncio.sleep(0.02)
            second = await control.send("s", "two", by="alice")
            assert not stopping.done()
            assert not (await stopping).aborted
            row = await store.session("s")
            assert row is not None and row.generation == second.generation
            outcome = await control.wait(second.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "done")

    seeded(main, jump=0.0)


def test_generations_of_forgotten_sessions_are_forgotten() -> None:
    """A stop that reads a session while a stranger's message is refused leaves no generation of it in memory."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(answers, store=store) as control:
            for n in range(3):
                await control.wait((await control.send(f"s{n}", "one", by="alice")).run_id)
            await forgotten(control)
            for n in range(3):
                store.faults.stall = True
                refused = asyncio.create_task(control.send(f"s{n}", "two", by="bob"))
                await asyncio.sleep(0.3)
                stopping = asyncio.create_task(control.stop(session=f"s{n}", by="alice"))
                await asyncio.sleep(0.3)
                store.resume()
                await asyncio.gather(refused, stopping, return_exceptions=True)
            await forgotten(control)
            assert control._registry.generations._now == {}

    seeded(main)


def test_a_stop_that_nobody_waits_for_ends_an_arrival_of_another() -> None:
    """An owner's stop ends an admin's message that arrives in a session not read yet, and spares the one behind it."""

    async def main() -> None:
        async with open_control(idles) as control:
            control.appoint(admins=["bob"], writers=["alice"])
            sent = await control.send("s", "before", by="alice")
            await control.stop(session="s", by="alice")
            await control.wait(sent.run_id, drained=True, by="alice")
            await forgotten(control)
            arriving = control.ask(Send(session="s", text="hello"), by="bob")
            control.ask(Stop(session="s"), by="alice")
            behind = control.ask(Send(session="s", text="more"), by="alice")
            first, second = await arriving, await behind
            assert (await control.wait(first.run_id, by="alice")).ending is Ending.STOPPED
            await started(control, second.run_id)
            assert (await control.stop(session="s", by="alice")).aborted

    seeded(main)
