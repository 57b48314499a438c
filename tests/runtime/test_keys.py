"""Keys: one answer per principal and key, whenever and however often the message is sent."""

import asyncio

import anyio
import pytest

from interlock import (
    Ending,
    Event,
    KeyConflict,
    MemoryStore,
    Message,
    QueueFull,
    Run,
    Settings,
    Unavailable,
    open_control,
)
from interlock.client.door import Sink
from interlock.core.decision import Decision, KeyRow
from interlock.core.fence import Fence
from interlock.core.lifecycle import State
from interlock.core.names import SessionId
from interlock.runtime import registry

from .scene import BRIEF, at_once, echoes, idles, kinds, log_of, seeded, started


class Counting:
    """An agent that answers with the message and counts how often it ran."""

    def __init__(self) -> None:
        self.ran = 0

    async def __call__(self, run: Run, message: Message) -> str:
        self.ran += 1
        return message.text


def test_a_duplicate_gets_the_same_answer() -> None:
    """A message with the same key and body is the same run: while it runs, after it, and after it left memory.

    Races 102 and 105.
    """

    async def main() -> None:
        agent = Counting()
        async with open_control(agent) as control:
            first = await control.send("s", "hello", by="alice", key="k")
            again = [await control.send("s", "hello", by="alice", key="k")]
            await control.wait(first.run_id, drained=True)
            again.append(await control.send("s", "hello", by="alice", key="k"))
            await anyio.sleep(5)
            assert control._registry.runs == {}
            again.append(await control.send("s", "hello", by="alice", key="k"))
            for each in again:
                assert (each.run_id, each.generation, each.superseded) == (first.run_id, first.generation, None)
            assert again[-1].state is State.ENDED
            await anyio.sleep(1)
            assert control._registry.runs == {} and control._registry.sessions == {}
            assert kinds(await log_of(control, "s")).count("message") == 1
        assert agent.ran == 1

    seeded(main)


def test_a_duplicate_joins_the_first_in_flight() -> None:
    """Duplicates that arrive before the first is acked wait for its ack and get its answer."""

    async def main() -> None:
        agent = Counting()
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(agent, store=store) as control:
            sent = await asyncio.gather(*(control.send("s", "hello", key="k") for _ in range(5)))
            assert len({each.run_id for each in sent}) == 1
            assert (await control.wait(sent[0].run_id)).text == "hello"
        assert agent.ran == 1

    seeded(main)


def test_a_duplicate_takes_nobody_over() -> None:
    """A duplicate gets its answer and takes over nobody: the run in the seat goes on (race 105)."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one", key="k1")
            second = await control.send("s", "two", key="k2")
            await started(control, second.run_id)
            for _ in range(2):
                again = await control.send("s", "one", key="k1")
                assert again.run_id == first.run_id
                await anyio.sleep(5)
            assert (await control.wait(second.run_id, timeout=1)).ending is Ending.PENDING
            repeated = await control.send("s", "two", key="k2")
            assert repeated.superseded == first.run_id

    seeded(main)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("other", ["text", "session", "strategy", "deadline"])
def test_a_key_with_another_body_is_refused(other: str, forgotten: bool) -> None:
    """A key that was used for another message is refused with the remedy, and nothing changes (race 102)."""

    async def main() -> None:
        agent = Counting()
        async with open_control(agent) as control:
            first = await control.send("s", "hello", key="k")
            if forgotten:
                await control.wait(first.run_id, drained=True)
                await anyio.sleep(5)
                assert control._registry.runs == {}
            session, text = ("t" if other == "session" else "s"), ("bye" if other == "text" else "hello")
            more = {"strategy": "queue"} if other == "strategy" else {"deadline": 5} if other == "deadline" else {}
            with pytest.raises(KeyConflict, match="key 'k' was used for another message; use a new key"):
                await control.send(session, text, key="k", **more)
            await control.wait(first.run_id, drained=True)
            await anyio.sleep(2)
            assert control._registry.sessions == {} and control._registry.runs == {}
            assert await log_of(control, "t") == []
            assert kinds(await log_of(control, "s")).count("message") == 1
        assert agent.ran == 1

    seeded(main, range(2))


def test_the_same_key_of_another_principal() -> None:
    """Two principals may use the same key for different messages, since a key belongs to its principal."""

    async def main() -> None:
        async with open_control(echoes) as control:
            alices = await control.send("a", "one", by="alice", key="k")
            bobs = await control.send("b", "two", by="bob", key="k")
            assert (await control.wait(alices.run_id)).text == "one"
            assert (await control.wait(bobs.run_id)).text == "two"

    seeded(main, range(3))


def test_a_key_after_a_restart() -> None:
    """A key finds its run under another control on the same store (race 104)."""

    async def main() -> None:
        store = MemoryStore()
        agent = Counting()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "hello", by="alice", key="k")
            await control.wait(first.run_id, drained=True)
        async with open_control(agent, store=store) as control:
            again = await control.send("s", "hello", by="alice", key="k")
            assert again.run_id == first.run_id
            assert (await control.wait(first.run_id, by="alice")).text == "hello"
            with pytest.raises(KeyConflict):
                await control.send("s", "bye", by="alice", key="k")
        assert agent.ran == 1

    seeded(main, range(3))


def test_a_tombstone_after_a_restart() -> None:
    """A message whose key was stopped before it came is born stopped under the next control too (race 1)."""

    async def main() -> None:
        store = MemoryStore()
        agent = Counting()
        async with open_control(agent, store=store) as control:
            await control.stop(message="k", by="alice")
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
        assert agent.ran == 0

    seeded(main, range(3))


def test_a_duplicate_is_answered_before_a_tombstone_is_looked_for() -> None:
    """A duplicate of an ended run gets the first answer, though its key was stopped since."""

    async def main() -> None:
        agent = Counting()
        async with open_control(agent) as control:
            first = await control.send("s", "hello", by="alice", key="k")
            await control.wait(first.run_id, drained=True)
            await anyio.sleep(5)
            receipt = await control.stop(message="k", by="alice")
            assert (receipt.aborted, receipt.already) == (False, Ending.COMPLETED)
            again = await control.send("s", "hello", by="alice", key="k")
            assert again.run_id == first.run_id
            assert (await control.wait(again.run_id)).ending is Ending.COMPLETED

    seeded(main)


def test_a_tombstone_belongs_to_its_principal() -> None:
    """A stop of another principal's key does not stop that principal's message."""

    async def main() -> None:
        async with open_control(echoes) as control:
            await control.stop(message="k", by="mallory")
            sent = await control.send("s", "hello", by="alice", key="k")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED

    seeded(main, range(3))


def test_tombstones_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal who stops many unseen keys pushes out only their own oldest tombstones."""
    monkeypatch.setattr(registry, "TOMBSTONES", 3)

    async def main() -> None:
        async with open_control(echoes) as control:
            await control.stop(message="k", by="bob")
            for n in range(5):
                await control.stop(message=f"k{n}", by="alice")
            known = control._registry
            assert [known.buried("alice", f"k{n}") for n in range(5)] == [False, False, True, True, True]
            assert known.buried("bob", "k") and not known.buried("alice", None)

    seeded(main, range(2))


def test_a_stop_of_a_key_in_the_same_instant_as_its_message() -> None:
    """A stop by key ends its message, whichever of the two comes first (races 1 and 2)."""
    for order in (0, 1):

        async def main(order: int = order) -> None:
            agent = Counting()
            async with open_control(agent) as control:
                calls = [control.send("s", "hello", by="alice", key="k"), control.stop(message="k", by="alice")]
                answers = await at_once(*(reversed(calls) if order else calls))
                sent = answers[order]
                assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert agent.ran == 0

        seeded(main)


@pytest.mark.parametrize("problem", ["store", "full"])
def test_a_refused_message_frees_its_key(problem: str) -> None:
    """A refused message leaves its key free, also for another body, and its duplicates share the refusal."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, strategy="queue", settings=Settings(queue=0)) as control:
            if problem == "full":
                running = await control.send("s", "one")
            else:
                store.faults.fail = True
            expected = QueueFull if problem == "full" else Unavailable
            answers = await asyncio.gather(
                *(control.send("s", "two", key="k") for _ in range(3)), return_exceptions=True
            )
            assert all(isinstance(answer, expected) for answer in answers)
            store.resume()
            if problem == "full":
                await control.stop(run=running.run_id)
            sent = await control.send("s", "another body", key="k")
            await started(control, sent.run_id)

    seeded(main, range(4))


def test_a_key_of_a_stopped_run_stays_used() -> None:
    """A retry of a message that was stopped is told so and does not run."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            await control.stop(message="k", by="alice")
            for _ in range(2):
                again = await control.send("s", "hello", by="alice", key="k")
                assert again.run_id == sent.run_id
                assert (await control.wait(again.run_id)).ending is Ending.STOPPED
                await anyio.sleep(5)

    seeded(main)


def test_a_queued_duplicate_tells_the_same() -> None:
    """A duplicate of a message that waits for the seat is told that it waits."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            await control.send("s", "one")
            waits = await control.send("s", "two", key="k")
            again = await control.send("s", "two", key="k")
            assert again.run_id == waits.run_id
            assert again.generation is waits.generation is None

    seeded(main, range(3))


def test_a_stop_that_overtakes_its_message_answers_after_the_end_is_told() -> None:
    """A stop by key that finds a run born stopped in the store answers only after that run's end is published."""

    async def main() -> None:
        async with open_control(echoes, store=MemoryStore(latency_seconds=0.001)) as control:
            told: list[str] = []

            class Hearing(Sink):
                def take(self, event: Event, source: Fence | None) -> bool:
                    if event.kind == "ended" and event.run_id is not None:
                        told.append(event.run_id)
                    return True

            control.feed.follow(SessionId("s"), Hearing())
            for turn in range(6):
                key = f"k{turn}"
                stopping = asyncio.create_task(control.stop(message=key))
                for _ in range(turn):
                    await asyncio.sleep(0)
                sending = asyncio.create_task(control.send("s", "hello", key=key))
                receipt = await stopping
                assert all(run.id in told for run in receipt.runs)
                await sending

    seeded(main, range(30))


def test_a_key_of_another_method_is_refused() -> None:
    """A key that another verb used is refused and stays that verb's; the session goes on (race 103)."""

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
