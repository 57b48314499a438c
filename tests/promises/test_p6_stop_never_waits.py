"""P6. Stop is never refused and never waits: not for the model, a tool, a lock, a full disk, a slow client or a dead
node. If the end was already decided, the answer says which.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock import Control, Ending, MemoryStore, Message, Receipt, Run, open_control
from interlock.core.names import EventKind
from runtime.scene import BRIEF, Sink, swallowed

from .scene import seeded

BOUND = BRIEF.commit_seconds
# The seeded loop may lose up to 50 ms at any moment, as a busy machine does.
SLACK = 0.06


@asynccontextmanager
async def in_time(bound: float) -> AsyncIterator[None]:
    """Fail if what is inside takes longer than its bound, on the loop's clock."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() - began <= bound + SLACK, f"it took {loop.time() - began:.3f} s"


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await asyncio.sleep(3600)


async def deaf(run: Run, message: Message) -> None:
    """Swallow every cancel."""
    while True:
        await swallowed(asyncio.sleep(3600))


async def in_a_tool(run: Run, message: Message) -> None:
    """Be within a tool that swallows every cancel."""

    async def dig() -> None:
        await deaf(run, message)

    await run.call(dig)


async def floods(run: Run, message: Message) -> None:
    """Say as much as can be said, whatever comes."""
    while True:
        with contextlib.suppress(BaseException):
            await run.say("flood ")


async def holds_a_lock(run: Run, message: Message) -> None:
    """Wait for a lock that nobody frees."""
    lock = asyncio.Lock()
    async with lock:
        await swallowed(lock.acquire())


BUSY = (idles, deaf, in_a_tool, floods, holds_a_lock)

TARGETS: dict[str, Callable[[Control, str], Awaitable[Receipt]]] = {
    "session": lambda control, run: control.stop(session="s"),
    "run": lambda control, run: control.stop(run=run),
    "key": lambda control, run: control.stop(message="k"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("agent", BUSY)
def test_a_stop_waits_for_no_agent(agent: Any, target: str) -> None:
    """A stop with a healthy store is immediate, whatever the agent does and whether or not it hears the cancel."""

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", key="k")
            await sink.until(sent.run_id, EventKind.STARTED)
            await asyncio.sleep(0.01)
            async with in_time(0.0):
                receipt = await TARGETS[target](control, sent.run_id)
            assert (receipt.aborted, receipt.durable) == (True, True)
            assert (await control.wait(sent.run_id, timeout=0)).ending is Ending.STOPPED

    seeded(main)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
@pytest.mark.parametrize("agent", BUSY)
def test_a_stop_waits_for_no_store(agent: Any, fault: str, target: str) -> None:
    """With a store that fails, hangs or loses its answers, a stop is answered within COMMIT_SECONDS and says so."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello", key="k")
            await sink.until(sent.run_id, EventKind.STARTED)
            setattr(store.faults, fault, True)
            async with in_time(BOUND):
                receipt = await TARGETS[target](control, sent.run_id)
            assert (receipt.aborted, receipt.durable) == (True, False)
            assert sink.kinds(sent.run_id)[-1] == "ended"
            async with in_time(BOUND):
                again = await control.stop(run=sent.run_id)
            assert (again.aborted, again.already) == (False, Ending.STOPPED)
            store.resume()
            await asyncio.sleep(2)
            assert (await control.receipt(sent.run_id)).durable

    seeded(main, range(4))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
@pytest.mark.parametrize("what", [{"session": "nowhere"}, {"run": "r-1-99"}, {"message": "unseen"}, {"session": "s"}])
def test_a_stop_that_finds_nothing_is_no_error(what: dict[str, str], fault: str) -> None:
    """A stop that finds nothing, with a store in trouble, is answered in time, raises nothing and claims nothing."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            await control.stop(run=sent.run_id)
            await asyncio.sleep(3)
            setattr(store.faults, fault, True)
            async with in_time(BOUND):
                receipt = await control.stop(**what)
            assert (receipt.aborted, receipt.runs, receipt.id) == (False, (), None)
            store.resume()

    seeded(main, range(4))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_a_stop_behind_a_message_that_cannot_be_committed(fault: str) -> None:
    """A message whose admission hangs can be stopped in time, and never runs."""
    begun: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        begun.append(message.text)

    async def main() -> None:
        begun.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            await control.wait((await control.send("s", "first")).run_id)
            await asyncio.sleep(0.1)
            setattr(store.faults, fault, True)
            arrived = asyncio.Event()

            async def send() -> None:
                arrived.set()
                await swallowed(control.send("s", "second"))

            sending = asyncio.create_task(send())
            await arrived.wait()
            async with in_time(2 * BOUND):
                await control.stop(session="s")
            store.resume()
            await sending
            await asyncio.sleep(2)
        assert begun == ["first"]

    seeded(main, range(12))


def test_a_stop_is_not_starved_by_other_runs() -> None:
    """A hundred runs that never pause, in other sessions and in this one's queue, do not delay a stop."""

    async def main() -> None:
        async with open_control(floods, settings=BRIEF) as control:
            for n in range(100):
                await control.send(f"other {n}", "flood")
            sent = await control.send("s", "mine")
            for _ in range(20):
                await control.send("s", "mine too", strategy="queue")
            await asyncio.sleep(0.01)
            async with in_time(BOUND):
                receipt = await control.stop(session="s")
            assert receipt.aborted and len(receipt.runs) == 21 and receipt.queued == 20
            assert receipt.runs[0].id == sent.run_id
            assert all(run.outcome.ending is Ending.STOPPED for run in receipt.runs)

    seeded(main, range(2))


def test_a_stop_waits_for_no_watcher() -> None:
    """A watcher that never reads holds up neither the stop nor the terminal event of others."""

    async def main() -> None:
        async with open_control(floods, settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            lazy = control.watch("s")
            await anext(lazy)
            await asyncio.sleep(0.01)
            async with in_time(0.0):
                await control.stop(session="s")
            assert [event.kind async for event in control.watch(run=sent.run_id)][-1] is EventKind.ENDED
            await lazy.aclose()

    seeded(main)


def test_the_answer_says_which_end_was_decided() -> None:
    """A stop that comes too late is told the ending that stands, whichever, and has ended nothing (race 128)."""

    async def agent(run: Run, message: Message) -> None:
        if message.text == "failed":
            raise RuntimeError("no")
        if message.text != "completed":
            await asyncio.sleep(60)

    async def main() -> None:
        async with open_control(agent, settings=BRIEF) as control:
            for ending in (Ending.COMPLETED, Ending.FAILED, Ending.STOPPED, Ending.SUPERSEDED, Ending.TIMED_OUT):
                sent = await control.send("s", ending, deadline=0.1 if ending is Ending.TIMED_OUT else None)
                if ending is Ending.STOPPED:
                    await control.stop(run=sent.run_id)
                if ending is Ending.SUPERSEDED:
                    await control.wait((await control.send("s", "completed")).run_id)
                await control.wait(sent.run_id)
                for _ in range(2):
                    receipt = await control.stop(run=sent.run_id)
                    assert (receipt.aborted, receipt.already) == (False, ending)
                    assert [run.id for run in receipt.runs] == [sent.run_id]
                await asyncio.sleep(1)

    seeded(main)


def test_a_stop_outlives_the_one_who_asked() -> None:
    """A caller that vanishes right after asking has stopped the run all the same, and everyone is told."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.01)
        async with open_control(deaf, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            asking = asyncio.create_task(control.stop(session="s", by="local"))
            await asyncio.sleep(0.001)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            outcome = await control.wait(sent.run_id, timeout=1)
            assert (outcome.ending, outcome.by) == (Ending.STOPPED, "local")
            assert (await control.wait(sent.run_id, timeout=5, drained=True)).drained
            assert (await store.run(sent.run_id)).outcome.same_story(outcome)  # type: ignore[union-attr]

    seeded(main, range(12))


def test_a_run_may_stop_itself() -> None:
    """An agent that stops its own run, from its body or from a tool, is answered in time and is over."""

    async def main() -> None:
        answers: list[bool] = []

        async def stop() -> None:
            answers.append((await control.stop(session="s")).aborted)

        async def agent(run: Run, message: Message) -> None:
            await (run.call(stop) if message.text == "tool" else swallowed(stop()))
            await run.say("never heard")

        async with open_control(agent, settings=BRIEF) as control:
            for text in ("body", "tool"):
                sent = await control.send("s", text)
                async with in_time(0.0):
                    assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
                await control.wait(sent.run_id, drained=True)
            assert "never heard" not in repr(await control.history("s"))

    seeded(main)
