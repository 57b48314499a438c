"""Limits: a deadline from dispatch, a limit on silence, a limit on waiting; monotonic, decided by the clock."""

import asyncio
import time
from typing import Any

import anyio
import pytest

from interlock import BadInput, Ending, Message, Run, Settings, open_control
from interlock.core.names import EventKind

from .scene import (
    BRIEF,
    echoes,
    idles,
    kinds,
    log_of,
    mumbles,
    now,
    put_forward,
    raises,
    seeded,
    started,
    swallowed,
    told,
)

DEADLINE = 60.0  # seconds of a run on the real clock, which tests put forward
HORIZON = 0.06  # how far the seeded clock may run ahead


def test_a_deadline_ends_a_run() -> None:
    """A run that passes its deadline is timed out at that moment, told with phase and limit, and keeps its text."""

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("provider"):
            await run.say("half")
            await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=5)
            await started(control, sent.run_id)
            before = now()
            outcome = await control.wait(sent.run_id)
            assert 5 - 2 * HORIZON <= now() - before <= 5 + 2 * HORIZON
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "provider", 5000)
            assert (outcome.text, outcome.by) == ("half", None)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.cause, receipt.by, receipt.aborted) == (Ending.TIMED_OUT, None, False)

    seeded(main)


@pytest.mark.parametrize("none", [None, 0, 0.0, float("inf")])
def test_no_deadline(none: float | None) -> None:
    """None, 0 and infinity mean no deadline: eight hours later the run is still there (races 91 and 92)."""

    async def main() -> None:
        async with open_control(mumbles, deadline=None) as control:
            sent = await control.send("s", "hello", deadline=none)
            assert (await control.wait(sent.run_id, timeout=8 * 3600)).ending is Ending.PENDING

    seeded(main, range(2), limit_seconds=100_000)


def test_zero_switches_the_control_s_deadline_off() -> None:
    """A message with deadline=0 has no deadline though the control has one; a message without it has the control's."""

    async def main() -> None:
        async with open_control(idles, deadline=5) as control:
            free, bound = await control.send("a", "x", deadline=0), await control.send("b", "x")
            assert (await control.wait(bound.run_id)).limit_ms == 5000
            assert (await control.wait(free.run_id, timeout=50)).ending is Ending.PENDING

    seeded(main, range(3))


@pytest.mark.parametrize("days", [25, 60])
def test_a_very_long_deadline(days: int) -> None:
    """A deadline beyond 24.8 days is kept to the second, since no timer has a cap (race 92)."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello", deadline=days * 86400)
            assert (await control.wait(sent.run_id, timeout=days * 86400 - 10)).ending is Ending.PENDING
            outcome = await control.wait(sent.run_id, timeout=20)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, days * 86400 * 1000)

    seeded(main, range(2), limit_seconds=1e8)


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("-inf"), "5", True, [5], 10**400], ids=lambda value: repr(value)[:8]
)
def test_a_deadline_in_the_past(value: Any) -> None:
    """A limit that is negative or no number is refused with the remedy, and nothing changes."""

    async def main() -> None:
        async with open_control(echoes) as control:
            with raises(BadInput, "deadline must be 0 or more seconds.*leave it out for none"):
                await control.send("s", "hello", deadline=value)
            assert await control.runs() == []
            assert control._registry.sessions == {}
        for name in ("deadline", "idle_limit", "queue_limit"):
            with raises(BadInput, f"{name} must be 0 or more seconds"):
                async with open_control(echoes, **{name: value}):
                    pass

    seeded(main, range(1))


def test_the_deadline_counts_from_dispatch() -> None:
    """A message that waits in the queue does not use up its deadline."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            first = await control.send("s", "one")
            second = await control.send("s", "two", deadline=5)
            assert (await control.wait(second.run_id, timeout=60)).ending is Ending.PENDING
            await control.stop(run=first.run_id)
            await started(control, second.run_id)
            assert (await control.wait(second.run_id, timeout=4)).ending is Ending.PENDING
            assert (await control.wait(second.run_id, timeout=2)).ending is Ending.TIMED_OUT

    seeded(main, range(4))


def test_the_queue_limit() -> None:
    """A message that waits too long for the seat is timed out in phase `queue` and never begins."""

    async def main() -> None:
        async with open_control(idles, strategy="queue", queue_limit=3) as control:
            first = await control.send("s", "one")
            second = await control.send("s", "two")
            outcome = await control.wait(second.run_id)
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "queue", 3000)
            assert outcome.started_at is None
            assert kinds(await log_of(control, "s"), second.run_id) == ["message", "ended"]
            assert (await control.wait(first.run_id, timeout=30)).ending is Ending.PENDING

    seeded(main)


def test_the_queue_limit_is_over_with_the_seat() -> None:
    """A message that got the seat in time is no longer under the queue's limit."""

    async def main() -> None:
        async with open_control(idles, strategy="queue", queue_limit=3) as control:
            first, second = await control.send("s", "one"), await control.send("s", "two")
            await anyio.sleep(2)
            await control.stop(run=first.run_id)
            await started(control, second.run_id)
            assert (await control.wait(second.run_id, timeout=30)).ending is Ending.PENDING

    seeded(main)


def test_the_idle_limit() -> None:
    """A run that is silent too long is timed out in phase `idle`; each sign of life moves the limit."""

    async def agent(run: Run, message: Message) -> None:
        for _ in range(5):
            await run.say(".")
            await anyio.sleep(2)
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent, idle_limit=3) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            before = now()
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "idle", 3000)
            assert outcome.text == "....."
            assert 11 - 10 * HORIZON <= now() - before <= 11 + 10 * HORIZON

    seeded(main)


def test_the_earlier_limit_is_told() -> None:
    """The limit that passed first, deadline or idle limit, is told as the ending."""

    async def main() -> None:
        async with open_control(idles, idle_limit=3) as control:
            first = await control.send("a", "x", deadline=2)
            second = await control.send("b", "x", deadline=4)
            assert (await control.wait(first.run_id)).limit_ms == 2000
            assert (await control.wait(second.run_id)).phase == "idle"

    seeded(main, range(4))


def test_the_clock_on_the_wall_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump of the wall clock by hours, either way, moves no deadline and falsifies no receipt (race 90)."""
    real = time.time
    offset = 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset)

    async def main() -> None:
        nonlocal offset
        async with open_control(idles) as control:
            for jump in (3600.0, -7200.0, 0.5, -1e9):
                sent = await control.send("s", "hello", deadline=10)
                await started(control, sent.run_id)
                offset += jump
                assert (await control.wait(sent.run_id, timeout=9)).ending is Ending.PENDING
                offset -= 2 * jump
                outcome = await control.wait(sent.run_id, drained=True, timeout=5)
                assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 10_000)
                receipt = await control.receipt(sent.run_id)
                assert receipt.fence_to_end_ms is not None and 0 <= receipt.fence_to_end_ms < 1000
                assert receipt.fenced_at <= (receipt.drained_at or 0)

    seeded(main, range(3))


def test_a_late_sweep_ends_only_what_has_passed() -> None:
    """After the loop slept past some deadlines, those runs end once, in one sweep, and no others (races 91 and 93)."""

    async def main() -> None:
        async with open_control(idles, settings=Settings(grace_seconds=0.1)) as control:
            short = [await control.send(f"a{n}", "x", deadline=DEADLINE) for n in range(20)]
            long = [await control.send(f"b{n}", "x", deadline=100 * DEADLINE) for n in range(20)]
            await started(control, long[-1].run_id)
            put_forward(DEADLINE)  # as if the machine was suspended
            for each in short:
                assert (await control.wait(each.run_id)).ending is Ending.TIMED_OUT
            for each in long:
                assert (await control.wait(each.run_id, timeout=0)).ending is Ending.PENDING
            for each in short:
                assert kinds(await log_of(control, each.session)).count("ended") == 1

    asyncio.run(main())


class Oversleeper:
    """An agent that blocks the loop past its deadline; a task that waits for `begun` runs before any timer."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, run: Run, message: Message) -> str:
        if message.text == "next":
            return "next"
        self.begun.set()
        # The clock jumps as it would over a `time.sleep`, without the wait.
        put_forward(DEADLINE)
        if message.text == "answers":
            return "too late"
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("scope", ["run", "session"])
def test_a_stop_after_the_deadline_is_too_late(scope: str) -> None:
    """A stop that comes after the deadline, though before its timer, finds `timed_out`: the clock decides (race 19)."""

    async def main() -> None:
        agent = Oversleeper()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=DEADLINE)
            await agent.begun.wait()
            receipt = await control.stop(**({"run": sent.run_id} if scope == "run" else {"session": "s"}))
            assert (receipt.aborted, receipt.already) == (False, Ending.TIMED_OUT)
            assert receipt.cause is Ending.TIMED_OUT
            assert (await control.wait(sent.run_id)).ending is Ending.TIMED_OUT

    asyncio.run(main())


def test_a_completion_after_the_deadline_is_too_late() -> None:
    """A reply that comes after the deadline does not count, although no timer had fired (race 18)."""

    async def main() -> None:
        async with open_control(Oversleeper()) as control:
            sent = await control.send("s", "answers", deadline=DEADLINE)
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.TIMED_OUT, "")
            assert "too late" not in repr(await log_of(control, "s"))

    asyncio.run(main())


def test_a_takeover_after_the_deadline() -> None:
    """A message that takes over a run whose deadline has passed finds it timed out, and runs (race 19)."""

    async def main() -> None:
        agent = Oversleeper()
        async with open_control(agent) as control:
            old = await control.send("s", "hello", deadline=DEADLINE)
            await agent.begun.wait()
            new = await control.send("s", "next")
            assert (await control.wait(new.run_id)).text == "next"
            assert (await control.wait(old.run_id)).ending is Ending.TIMED_OUT

    asyncio.run(main())


def test_a_tie_of_deadline_and_completion() -> None:
    """A deadline and a completion in one instant leave one ending everywhere, which nothing later erases (race 18)."""
    endings: set[Ending] = set()

    async def agent(run: Run, message: Message) -> str:
        await swallowed(anyio.sleep(5))
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=5)
            outcome = await control.wait(sent.run_id, drained=True)
            [ended] = [event for event in await log_of(control, "s") if event.kind is EventKind.ENDED]
            row = await control._store.run(sent.run_id)
            assert row is not None and row.outcome is not None
            assert outcome.ending is ended.data.outcome.ending is row.outcome.ending
            assert (outcome.text == "done") == (outcome.ending is Ending.COMPLETED)
            endings.add(outcome.ending)

    seeded(main, range(30))
    assert endings <= {Ending.COMPLETED, Ending.TIMED_OUT}


def test_cleanup_does_not_rewrite_a_timeout() -> None:
    """A stop, an error and a reply that follow a timeout leave it a timeout everywhere (race 21)."""

    async def agent(run: Run, message: Message) -> str:
        await swallowed(anyio.sleep_forever())
        raise RuntimeError("aborted by cleanup")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=1)
            await control.wait(sent.run_id)
            receipt = await control.stop(run=sent.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.TIMED_OUT)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.error) == (Ending.TIMED_OUT, None)
            assert kinds(await log_of(control, "s")).count("ended") == 1

    seeded(main)


def test_timers_go_with_their_run() -> None:
    """A run that has ended leaves no timer in the loop."""

    async def main() -> None:
        async with open_control(echoes, deadline=1000, idle_limit=500, queue_limit=100) as control:
            for n in range(5):
                sent = await control.send("s", f"m{n}")
                live = control._registry.runs.get(sent.run_id)
                await control.wait(sent.run_id, drained=True)
                if live is not None:
                    assert not live.limits.timers

    seeded(main, range(3))


def test_a_deadline_of_a_batch_names_its_phase() -> None:
    """A run that waits for tools and named no phase is timed out in phase `tool`, and its open calls get results."""

    async def hangs() -> None:
        await anyio.sleep_forever()

    async def agent(run: Run, message: Message) -> None:
        await run.batch([(hangs, {}), (hangs, {})])

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=1)
            await told(control, sent.run_id, EventKind.TOOL)
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase) == (Ending.TIMED_OUT, "tool")
            results = [entry.state for entry in await control.history("s") if entry.role == "result"]
            assert results == ["interrupted", "skipped"]

    seeded(main, range(3))


def test_only_a_run_s_own_limits_end_it() -> None:
    """A run that is heard from outlives its first timers and those of other runs; a silent one does not (race 93)."""

    async def agent(run: Run, message: Message) -> str:
        for _ in range(20 if message.text == "talks" else 0):
            await asyncio.sleep(0.5)
            await run.typing()
        if message.text == "silent":
            await asyncio.sleep(3600)
        return "reply"

    async def main() -> None:
        async with open_control(agent, settings=BRIEF, idle_limit=1) as control:
            talks = await control.send("s", "talks", deadline=60)
            others = [await control.send(f"o{n}", "silent", deadline=(None, 0.3)[n % 2]) for n in range(6)]
            endings = [(await control.wait(other.run_id)).phase for other in others]
            assert endings == ["idle", "start"] * 3
            assert (await control.wait(talks.run_id)).ending is Ending.COMPLETED

    seeded(main)
