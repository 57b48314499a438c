"""P5. An accepted message is never lost and never run twice; a tool call whose start was recorded is never silently run
again.
"""

import asyncio
import contextlib
from collections import Counter
from random import Random

import pytest

from interlock import (
    Ending,
    KeyConflict,
    MemoryStore,
    Message,
    QueueFull,
    Run,
    Sent,
    Settings,
    ToolState,
    Unavailable,
    open_control,
)
from interlock.core.names import EventKind
from runtime.scene import Sink, told

from .scene import seeded

BRIEF = Settings(grace_seconds=0.2, drain_seconds=0.3, retry_seconds=0.1, queue=5)


@pytest.mark.parametrize("latency", [0.0, 0.01, 0.3])
def test_the_ack_follows_the_commit(latency: float) -> None:
    """When send returns, the message, its session and its key are in the store, however slow that is."""

    async def agent(run: Run, message: Message) -> str:
        return "reply"

    async def main() -> None:
        store = MemoryStore(latency_seconds=latency)
        async with open_control(agent, store=store) as control:
            for n in range(3):
                sent = await control.send("s", f"hello {n}", by="alice", key=f"k{n}")
                row = store._runs.get(sent.run_id)
                assert row is not None and row.text == f"hello {n}"
                assert f"k{n}" in store._keys["alice"] and "s" in store._sessions

    seeded(main)


def test_what_was_accepted_ends_and_what_was_refused_never_runs() -> None:
    """Under faults of every kind each accepted message ends once and runs at most once; a refused one never runs."""
    begun: Counter[str] = Counter()

    async def agent(run: Run, message: Message) -> str:
        begun[message.text] += 1
        await run.say("part ")
        await asyncio.sleep(0.01)
        return "reply"

    async def main() -> None:
        begun.clear()
        store, random = MemoryStore(latency_seconds=Random(seed).choice((0.0, 0.001))), Random(seed)
        accepted: dict[str, Sent] = {}
        refused: set[str] = set()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)

            async def send(text: str) -> None:
                try:
                    accepted[text] = await control.send("s", text, strategy=random.choice(("queue", "interrupt")))
                except (Unavailable, QueueFull):
                    refused.add(text)

            sends = []
            for n in range(15):
                sends.append(asyncio.create_task(send(f"m{n}")))
                await asyncio.sleep(random.choice((0.0, 0.001, 0.2)))
                if random.random() < 0.4:
                    setattr(store.faults, random.choice(("fail", "stall", "lose")), True)
                elif random.random() < 0.6:
                    store.resume()
            await asyncio.gather(*sends)
            store.resume()
            for text, sent in accepted.items():
                outcome = await control.wait(sent.run_id, timeout=60)
                assert outcome.ended, f"{text} was accepted and lost"
                assert sink.kinds(sent.run_id).count("ended") == 1
                assert begun[text] == 1 if outcome.ending is Ending.COMPLETED else begun[text] <= 1
            assert len(accepted) + len(refused) == 15
        assert not refused & set(begun), "a message ran whose sender was refused"

    for seed in range(30):
        seeded(main, (seed,))


def test_one_key_one_run() -> None:
    """A message sent under one key runs once and all senders get one answer, however often and close together."""
    begun: Counter[str] = Counter()

    async def agent(run: Run, message: Message) -> str:
        begun[message.text] += 1
        await asyncio.sleep(0.01)
        return "reply"

    async def main() -> None:
        begun.clear()
        store, random = MemoryStore(latency_seconds=Random(seed).choice((0.0, 0.002))), Random(seed)
        answers = set()
        for _ in range(2):  # the second time after a restart
            async with open_control(agent, store=store) as control:
                sends = []
                for _ in range(5):
                    sends.append(asyncio.create_task(control.send("s", "hello", by="alice", key="k")))
                    await asyncio.sleep(random.choice((0.0, 0.0, 0.001, 0.02)))
                answers |= {(sent.run_id, sent.generation, sent.superseded) for sent in await asyncio.gather(*sends)}
                [(run_id, _, _)] = answers
                assert (await control.wait(run_id)).ending is Ending.COMPLETED
                with pytest.raises(KeyConflict):
                    await control.send("s", "another body", by="alice", key="k")
                assert (await control.send("t", "bob's own", by="bob", key="k")).run_id != run_id
        assert begun["hello"] == 1

    for seed in range(15):
        seeded(main, (seed,))


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_refused_message_may_be_sent_again(key: str | None, fault: str) -> None:
    """A refused message can be sent again and runs once; the run that it had taken over stays superseded."""
    begun: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        begun.append(message.text)
        await asyncio.sleep(60 if message.text == "old" else 0)
        return "reply"

    async def main() -> None:
        begun.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            old = await control.send("s", "old")
            await sink.until(old.run_id, EventKind.STARTED)
            setattr(store.faults, fault, True)
            with pytest.raises(Unavailable):
                await control.send("s", "new", key=key)
            store.resume()
            await asyncio.sleep(1)
            assert begun == ["old"]
            # With a key, control asks the store first and has decided nothing; without one, the takeover had happened.
            found = await control.wait(old.run_id, timeout=0)
            assert found.ending is (Ending.PENDING if key else Ending.SUPERSEDED)
            sent = await control.send("s", "new", key=key)
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            assert (await control.wait(old.run_id)).ending is Ending.SUPERSEDED
            assert begun == ["old", "new"]

    seeded(main)


@pytest.mark.parametrize("latency", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("parallel", [False, True])
def test_a_start_is_on_record_before_the_body(latency: float, parallel: bool) -> None:
    """When a tool's body begins, the store holds the call as running; when a run begins, it holds it as started."""
    looked: list[object] = []

    async def main() -> None:
        looked.clear()
        store = MemoryStore(latency_seconds=latency)

        async def look(run_id: str, n: int) -> None:
            looked.append([row.state for row in store._tools[run_id].values()][n])
            await asyncio.sleep(0.001)

        async def agent(run: Run, message: Message) -> None:
            looked.append(store._runs[run.id].started)
            await run.call(look, run_id=run.id, n=0)
            await run.batch([(look, {"run_id": run.id, "n": n}) for n in (1, 2)], parallel=parallel)

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
        assert looked == [True, *([ToolState.RUNNING] * 3)]
        assert {row.state for row in store._tools[sent.run_id].values()} == {ToolState.FINISHED}

    seeded(main)


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_the_gate_fails_closed(fault: str) -> None:
    """A call whose start cannot be recorded does not run: the agent is told, and the transcript says so."""
    acts: list[str] = []

    async def act() -> None:
        acts.append("acts")

    async def main() -> None:
        acts.clear()
        store = MemoryStore()
        tried = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            setattr(store.faults, fault, True)
            with contextlib.suppress(Unavailable):
                await run.call(act)
                return "it ran"
            store.resume()
            tried.set()
            await run.call(act)
            return "refused, then done"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            await tried.wait()
            assert acts == []
            assert (await control.wait(sent.run_id)).text == "refused, then done"
            assert acts == ["acts"]
            results = [entry.state for entry in await control.history("s") if entry.role == "result"]
            assert results == [ToolState.FAILED, ToolState.FINISHED]

    seeded(main)


def test_a_started_call_is_never_run_again() -> None:
    """After a run was cut within a call, the record and the transcript say `effect unknown`, and nobody repeats it."""
    acts: list[str] = []

    async def deploy(where: str) -> None:
        acts.append(where)
        await asyncio.sleep(60)

    async def agent(run: Run, message: Message) -> str:
        if message.text == "hello":
            await run.call(deploy, where="production")
        return str([entry.text for entry in await run.history() if entry.role == "result"])

    async def main() -> None:
        acts.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sent = await control.send("s", "hello", by="local", key="k")
            await told(control, sent.run_id, EventKind.TOOL)
            await asyncio.sleep(0.5)
            await control.stop(run=sent.run_id)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            assert (await control.send("s", "hello", by="local", key="k")).run_id == sent.run_id
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert [row.state for row in await store.tools(sent.run_id)] == [ToolState.INTERRUPTED]
            following = await control.send("s", "what happened?")
            assert "unknown" in (await control.wait(following.run_id)).text
        assert acts == ["production"]

    seeded(main)


def test_a_queued_message_survives_a_shutdown() -> None:
    """A message that waits when control closes is kept, not ended: the store still holds it as accepted."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, strategy="queue", settings=BRIEF) as control:
            running, waiting = [await control.send("s", text) for text in ("running", "waiting")]
        row, kept = await store.run(running.run_id), await store.run(waiting.run_id)
        assert row is not None and row.outcome is not None and row.outcome.ending is Ending.SHUTDOWN
        assert kept is not None and kept.outcome is None and not kept.started

    seeded(main)
