"""P3. Every process a run started, however deep and hidden, is gone when the receipt says `drained`; the kernel says
so, not a timer.

Processes come with a later issue. What exists now keeps the same rule for code in this process: `drained` means the
bodies of a run were observed to have ended, or will never be resumed; what could not be ended is named.
"""

import asyncio
import threading
from random import Random

import pytest

from interlock import Ending, Message, Run, Settings, open_control, tool
from interlock.core.names import BodyState, Drain, EventKind, ToolState
from interlock.core.receipt import Processes, Receipt
from interlock.testing import run_seeded

from .scene import Sink, seeded, swallowed

GRACE, DRAIN = 2.0, 5.0  # the library's own settings


async def polite(beats: list[int]) -> None:
    """End with the first cancel."""
    while True:
        await asyncio.sleep(0.1)
        beats.append(1)


async def slow_to_clean_up(beats: list[int]) -> None:
    """Take a second to clean up."""
    try:
        await polite(beats)
    finally:
        await asyncio.sleep(1)
        beats.append(1)


async def swallows_everything(beats: list[int]) -> None:
    """Never end."""
    while True:
        await swallowed(polite(beats))


@pytest.mark.parametrize(
    ("body", "bound"), [(polite, 0.1), (slow_to_clean_up, 1.1), (swallows_everything, GRACE + 0.1)]
)
@pytest.mark.parametrize("where", ["agent", "tool", "batch", "own task"])
def test_drained_means_observed(body: object, bound: float, where: str) -> None:
    """However a body takes its cancel and wherever it runs, `drained` comes within its bound, and then it is still."""
    beats: list[int] = []

    async def work() -> None:
        await body(beats)  # type: ignore[operator]

    async def agent(run: Run, message: Message) -> None:
        if where == "agent":
            await work()
        elif where == "tool":
            await run.call(work)
        elif where == "batch":
            await run.batch([(work, {}), (work, {})], parallel=True)
        else:
            await asyncio.create_task(swallowed(run.call(work)), name="own task")

    async def main() -> None:
        beats.clear()
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            assert beats
            await control.stop(session="s")
            stopped = loop.time()
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.drained and loop.time() - stopped <= bound
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.OBSERVED, ())
            assert receipt.runs[0].body in (BodyState.CUT, BodyState.RETURNED)
            still = len(beats)
            await asyncio.sleep(60)
            assert len(beats) == still

    for seed in range(4):
        run_seeded(main, seed)


def test_what_cannot_be_ended_is_named() -> None:
    """An agent that waits for a deaf task of its own making is abandoned: `unconfirmed`, by name, within the bounds."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.create_task(swallows_everything([]), name="own task")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            first = await control.stop(session="s")
            assert (first.drain, first.runs[0].body) == (Drain.PENDING, BodyState.CUT)
            stopped = loop.time()
            assert (await control.wait(sent.run_id, drained=True)).drained
            assert loop.time() - stopped == pytest.approx(DRAIN, abs=0.1)  # the grace is a part of it
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.UNCONFIRMED, (f"agent of {sent.run_id}",))
            assert receipt.runs[0].body is BodyState.ABANDONED
            assert receipt.runs[0].outcome.ending is Ending.STOPPED

    for seed in range(4):
        run_seeded(main, seed)


def test_a_thread_that_outlives_its_run_is_named() -> None:
    """A real thread cannot be ended: the receipt says `unconfirmed`, names it, and its result goes nowhere."""
    release, ran = threading.Event(), threading.Event()

    @tool(thread=True)
    def dig() -> str:
        release.wait(10)
        ran.set()
        return "gold"

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(dig))

    async def main() -> None:
        quick = Settings(grace_seconds=0.02, drain_seconds=0.05)
        async with open_control(agent, settings=quick) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            while ToolState.RUNNING not in [e.data.state for e in sink.events if e.kind is EventKind.TOOL]:
                await asyncio.sleep(0.001)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.UNCONFIRMED, ("thread of tool dig",))
            assert [(each.name, each.state) for each in receipt.tools] == [("dig", ToolState.ABANDONED)]
            release.set()
            assert await asyncio.to_thread(ran.wait, 10)
            await asyncio.sleep(0.01)
            assert "gold" not in repr(sink.events)

    asyncio.run(main())


def test_ended_and_drained_are_two_facts() -> None:
    """The end is public before the cleanup is over: `drained` is false at t1, true later, and the story is the same."""

    async def agent(run: Run, message: Message) -> None:
        await slow_to_clean_up([])

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(Random(seed).choice((0.05, 0.3)))
            at_t1 = await control.stop(session="s")
            assert (at_t1.drain, at_t1.drained_at) == (Drain.PENDING, None)
            early = await control.wait(sent.run_id)
            late = await control.wait(sent.run_id, drained=True)
            assert (early.drained, late.drained) == (False, True)
            assert early.same_story(late)
            at_t3: Receipt = await control.receipt(at_t1.id)
            assert at_t3.fence_to_drained_ms == pytest.approx(1000, abs=10)
            assert at_t3.fence_to_end_ms == at_t1.fence_to_end_ms

    for seed in range(6):
        seeded(main, (seed,))


def test_what_never_began_has_nothing_to_drain() -> None:
    """A message that was stopped while it waited is drained at once, and its body is `none`."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with open_control(agent, strategy="queue") as control:
            await control.send("s", "first")
            waiting = await control.send("s", "second")
            receipt = await control.stop(run=waiting.run_id)
            assert (receipt.drain, receipt.runs[0].body, receipt.queued) == (Drain.OBSERVED, BodyState.NONE, 1)
            assert (receipt.grade, receipt.processes, receipt.host) == ("inline", Processes(), "none")

    seeded(main)


def test_the_new_run_does_not_wait_for_the_old_one_s_cleanup() -> None:
    """The message that takes over is answered while the old body still has its grace."""

    async def agent(run: Run, message: Message) -> str | None:
        return "reply" if message.text == "new" else await swallows_everything([])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            old = await control.send("s", "old")
            await asyncio.sleep(1)
            began = loop.time()
            new = await control.send("s", "new")
            assert (await control.wait(new.run_id)).text == "reply"
            assert loop.time() - began < 0.1
            assert not (await control.wait(old.run_id)).drained
            assert (await control.wait(old.run_id, drained=True)).drained

    seeded(main)


def test_a_thousand_stopped_runs_leave_nothing_alive() -> None:
    """After a thousand runs, stopped by turns politely and not, no run, session, key or task of control's is left."""

    async def agent(run: Run, message: Message) -> None:
        await (polite if int(message.text) % 2 else swallows_everything)([])

    async def main() -> None:
        async with open_control(agent) as control:
            for n in range(1000):
                await control.send(f"s{n}", str(n))
            for n in range(1000):
                await control.stop(session=f"s{n}")
            await asyncio.sleep(GRACE + 1)
            registry = control._registry
            assert (registry.runs, registry.sessions, registry.keys) == ({}, {}, {})
            assert len(control._crew._tasks) == 0
            assert len(asyncio.all_tasks()) == 1

    run_seeded(main, 1)
