"""A parent is told its child's true ending at once and only once, whatever ended the child."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import Child, Ending, MemoryStore, Message, Run, Stale, open_control
from interlock.core.names import EventKind, RunId
from interlock.core.receipt import shown

from .families import AGENTS, begun_child, child_of, endings, nothing_left, ticks, to, told_once
from .scene import idles, kinds, log_of, seeded, swallowed


def test_the_parent_does_not_wait_for_the_child_s_cleanup() -> None:
    """A parent is told of a deaf child's timeout long before the child is drained, and may itself end before that."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time

        async def agent(run: Run, message: Message) -> str:
            began = clock()
            child = await run.delegate("deaf", "work", timeout=1)
            assert clock() - began < 1.5
            receipt = await control.receipt(child.run_id)
            assert receipt.drain == "pending" and not child.outcome.drained
            return child.outcome.ending.value

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            assert (await control.wait(sent.run_id)).text == "timed_out"
            assert (await control.receipt(child)).drain == "pending"
            began = clock()
            await control.wait(child, drained=True)
            assert clock() > began  # the child's cleanup outlasts its parent
            await control.wait(child, drained=True)
            final = await control.receipt(child)
            assert final.drain == "unconfirmed" and (final.fence_to_drained_ms or 0) > 1500
            await nothing_left(control)

    seeded(main)


def test_a_stop_does_not_wait_for_a_deaf_child() -> None:
    """A stop returns at once though the child swallows every cancel, and nothing of the child is left once drained."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        async with open_control(to("deaf"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            began = clock()
            receipt = await control.stop(session="s")
            assert clock() - began < 0.5
            assert receipt.drain == "pending" and endings(receipt)[1] == (child, "parent_ended")
            await control.wait(child, drained=True)
            assert (await control.receipt(child)).drain != "pending"
            await nothing_left(control)

    seeded(main)


@pytest.mark.parametrize("late", ["returns", "fails", "talks"])
def test_a_child_s_timeout_is_told_once(late: str) -> None:
    """A child that times out is told as timed out once, whatever its code does afterwards (race 47)."""

    async def stubborn(run: Run, message: Message) -> str:
        await swallowed(anyio.sleep_forever())
        if late == "fails":
            raise ValueError("late error")
        if late == "talks":
            await swallowed(run.say("late words"))
        return "late result"

    async def main() -> None:
        async with open_control(to("stubborn", timeout=1), agents={"stubborn": stubborn}) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            assert (await control.wait(sent.run_id)).text == "timed_out: "
            outcome = await control.wait(child, drained=True)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 1000)
            await told_once(control, child)
            ends = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD][1:]
            assert [end.outcome.ending for end in ends] == [Ending.TIMED_OUT]
            await nothing_left(control)
            log = [*await log_of(control, "s"), *await log_of(control, f"run:{child}")]
            assert "late" not in repr(log)
            refused = (await control.receipt(child)).refused
            assert refused == {"returns": {"final": 1}, "fails": {}, "talks": {"delta": 1, "final": 1}}[late]

    seeded(main)


def test_a_child_s_ending_is_told_to_its_parent_once() -> None:
    """Each of two children that get the same work has one ending told to the parent, once (race 106)."""

    async def agent(run: Run, message: Message) -> str:
        first = await run.delegate("deaf", "work", timeout=1)
        again = await run.delegate("echo", "work")
        # Wait until everything of the first child is gone.
        await anyio.sleep(20)
        return f"{first.outcome.ending.value}, {again.outcome.ending.value}"

    async def main() -> None:
        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "timed_out, completed"
            told_of = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD]
            begun = [child.child for child in told_of if child.outcome is None]
            ended = [(child.child, child.outcome.ending.value) for child in told_of if child.outcome is not None]
            assert len(set(begun)) == 2
            assert ended == [(begun[0], "timed_out"), (begun[1], "completed")]

    seeded(main)


def test_a_detached_child_that_had_ended_is_told_before_the_session_s_stop() -> None:
    """A child's completion that was decided and not yet published is public when its session's stop is acknowledged."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("echo", "work", detached=True)
        await idles(run, message)

    async def main() -> None:
        async with open_control(agent, agents=AGENTS, store=MemoryStore(latency_seconds=0.3)) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            while not (live := control._registry.runs[child]).fallen:
                await anyio.sleep(0.01)
            assert not live.ended.is_set()
            await control.stop(session="s")
            assert live.ended.is_set()
            told_by_then = len(await log_of(control, f"run:{child}"))
            await anyio.sleep(5)
            rest = (await log_of(control, f"run:{child}"))[told_by_then:]
            # The remaining events are receipts, which belong to no run.
            assert {event.run_id for event in rest} <= {None}

    seeded(main)


def test_a_child_that_completed_in_time_is_told_so() -> None:
    """A completion that was settled before the deadline is told as completed though its commit ends later (race 48)."""

    async def main() -> None:
        clock, returned = asyncio.get_running_loop().time, [0.0]

        async def worker(run: Run, message: Message) -> str:
            await anyio.sleep(0.5)
            returned[0] = clock()
            return "in time"

        async def agent(run: Run, message: Message) -> str:
            child = await run.delegate("worker", "go", timeout=1)
            return f"{child.outcome.ending.value}: {child.text}"

        # The order is: dispatch, 0.3 s until the start is stored, 0.5 s of work, 0.3 s until the end is stored. The
        # deadline passes within the last 0.3 s.
        store = MemoryStore(latency_seconds=0.3)
        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            while not (live := control._registry.runs[child]).limits.armed:
                await anyio.sleep(0.01)
            [limit] = live.limits.armed
            outcome = await control.wait(child)
            assert returned[0] < limit.at < clock()
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "in time")
            assert (await control.wait(sent.run_id)).text == "completed: in time"
            await told_once(control, child)

    seeded(main)


def test_a_wait_for_a_child_that_gives_up_is_no_ending() -> None:
    """A wait that times out returns `pending` and changes neither the child nor its parent (race 48)."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            assert (await control.wait(child, timeout=0.01)).ending is Ending.PENDING
            assert (await control.wait(child, timeout=0.01, drained=True)).ending is Ending.PENDING
            assert (await control.wait(sent.run_id, timeout=5)).ending is Ending.PENDING
            assert kinds(await log_of(control, f"run:{child}")) == ["message", "started"]

    seeded(main)


@pytest.mark.parametrize("name", ["idle", "deaf"])
def test_a_delegate_the_agent_gives_up(name: str) -> None:
    """An agent whose own timeout cuts its `delegate` goes on at once, and the child ends."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time

        async def agent(run: Run, message: Message) -> str:
            began = clock()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await run.delegate(name, "work")
            assert clock() - began < 1.5
            return "went on"

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello", by="alice")
            child = await child_of(control, sent.run_id)
            assert (await control.wait(sent.run_id)).text == "went on"
            outcome = await control.wait(child)
            assert (outcome.ending, outcome.by) == (Ending.STOPPED, "alice")
            await told_once(control, child)
            await nothing_left(control)

    seeded(main)


def test_a_delegate_given_up_at_any_instant() -> None:
    """A cancel of the agent's own task at any instant leaves no child that runs, and the parent goes on."""
    reached: set[str] = set()

    async def once(number: int) -> None:
        async def agent(run: Run, message: Message) -> str:
            task = asyncio.create_task(run.delegate("echo", "work"))
            await ticks(number)
            task.cancel()
            [child] = await asyncio.gather(task, return_exceptions=True)
            return child.outcome.ending.value if isinstance(child, Child) else "given up"

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            text = (await control.wait(sent.run_id)).text
            assert text in ("completed", "given up")
            children = [run for run in await control.runs("s", tree=True) if run.parent is not None]
            assert len(children) <= 1
            for child in children:
                outcome = await control.wait(child.id)
                reached.add(outcome.ending.value)
                assert outcome.ending in (Ending.STOPPED, Ending.COMPLETED)
                await told_once(control, child.id)
            await nothing_left(control)

    async def main() -> None:
        for number in range(24):
            await once(number)

    seeded(main, range(4), limit_seconds=6000)
    assert reached == {"stopped", "completed"}


def test_the_result_of_a_superseded_parent_s_child() -> None:
    """A child's result that comes after its parent was superseded stays on the child (race 46)."""
    caught: list[BaseException | None] = []

    async def main() -> None:
        caught.clear()
        waiting: list[asyncio.Task[Any]] = []

        async def worker(run: Run, message: Message) -> str:
            await swallowed(anyio.sleep_forever())
            return "late result"

        async def agent(run: Run, message: Message) -> str:
            if message.text == "new":
                return " ".join(entry.text for entry in await run.history())
            waiting.append(asyncio.create_task(run.delegate("worker", "work")))
            caught.append(await swallowed(asyncio.shield(waiting[0])))
            caught.append(await swallowed(waiting[0]))
            return "late turn"

        async with open_control(agent, agents={"worker": worker}) as control:
            old = await control.send("s", "old")
            child = await begun_child(control, old.run_id)
            new = await control.send("s", "new")
            assert "late" not in (await control.wait(new.run_id)).text
            assert (await control.wait(child)).ending is Ending.PARENT_ENDED
            await nothing_left(control)
            log = [*await log_of(control, "s"), *await log_of(control, f"run:{child}")]
            assert "late" not in repr(log)
            assert (await control.receipt(child)).refused == {"child": 1, "final": 2}
        assert [type(error) for error in caught] == [asyncio.CancelledError, Stale]

    seeded(main)


def test_a_child_that_had_completed_when_its_parent_was_superseded() -> None:
    """A completion decided before the takeover stands on the child and never reaches the new turn (race 46)."""

    async def main() -> None:
        waiting: list[asyncio.Task[Child]] = []
        done = asyncio.Event()

        async def worker(run: Run, message: Message) -> str:
            done.set()
            return "the result"

        async def agent(run: Run, message: Message) -> None:
            if message.text == "old":
                waiting.append(asyncio.create_task(run.delegate("worker", "work")))
            await idles(run, message)

        async with open_control(agent, agents={"worker": worker}, store=MemoryStore(latency_seconds=0.3)) as control:
            old = await control.send("s", "old")
            child = await child_of(control, old.run_id)
            await done.wait()
            # The child has settled by then, while its commit takes longer.
            await ticks(20)
            assert control._registry.runs[child].fallen and not control._registry.runs[child].ended.is_set()
            await control.send("s", "new")
            outcome = await control.wait(child)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "the result")
            receipt = await control.receipt(old.run_id)
            assert endings(receipt) == [(old.run_id, "superseded")]
            [error] = await asyncio.gather(*waiting, return_exceptions=True)
            assert isinstance(error, Stale)
            assert "the result" not in repr(await log_of(control, "s"))
            await told_once(control, child)

    seeded(main)


def test_the_receipt_in_a_child_s_session_is_the_part_about_the_child() -> None:
    """A child's session is shown the child's own totals, the same as the part of the receipt that is stored."""

    async def asks(run: Run, message: Message) -> None:
        async with run.hold("child's"):
            await run.ask("Shall I?")

    async def agent(run: Run, message: Message) -> None:
        async with run.hold("parent's"):
            await run.delegate("asks", "work")

    async def main() -> None:
        async with open_control(agent, agents={"asks": asks}) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            while not await control.questions():
                await asyncio.sleep(0)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            whole = await control.receipt(sent.run_id)
            assert (whole.holds, whole.questions, len(whole.runs)) == (2, 1, 2)
            log = await log_of(control, f"run:{child}")
            (last,) = [event.data.receipt for event in log if event.kind is EventKind.RECEIPT][-1:]
            assert (last.holds, last.questions, [run.id for run in last.runs]) == (1, 1, [child])
            assert last == shown(whole, [RunId(child)])

    seeded(main)
