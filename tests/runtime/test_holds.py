"""Named holds: one holder, in the order of asking, and no grant is lost or given twice."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import (
    BadInput,
    Control,
    Ending,
    Hold,
    MemoryStore,
    Message,
    Refused,
    Run,
    Stale,
    open_control,
)
from interlock.core.names import EventKind, Principal, RunId, RunKind, SessionId
from interlock.core.outcome import Cause
from interlock.runtime import holds as holds_module
from interlock.runtime.arrival import Arrival
from interlock.runtime.holds import Holds, Place
from interlock.runtime.live import LiveRun
from interlock.runtime.numbers import Numbers
from interlock.runtime.session import Session
from interlock.runtime.settings import HOLDS
from interlock.testing.loop import run_seeded

from .scene import idles, log_of, raises, seeded, started, swallowed, told

Agent = Callable[[Run, Message], Coroutine[Any, Any, str | None]]


class Clinging(asyncio.Future[None]):
    """A future that cannot be cancelled, so that a run that waits for it cannot be ended."""

    def cancel(self, msg: Any = None) -> bool:
        return False


class Stage:
    """An agent that holds "x" and says so, with a list of the runs that had it."""

    def __init__(self) -> None:
        self.had: list[tuple[str, int]] = []
        self.holds: dict[str, Hold] = {}
        self.let_go = asyncio.Event()

    async def __call__(self, run: Run, message: Message) -> str | None:
        async with run.hold("x") as hold:
            self.had.append((message.text, hold.token))
            self.holds[message.text] = hold
            await run.say("has it")
            await self.let_go.wait()
        await run.say("let it go")
        return await idles(run, message)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.had]


async def has_it(control: Control, run: str) -> None:
    await told(control, run, EventKind.DELTA)


def waiting(control: Control) -> list[str]:
    """Return the texts of the runs in the line for "x", the holder first."""
    line = control._registry.holds._lines["x"]
    return [
        *([line.holder.run.arrival.text] if line.holder else []),
        *(place.run.arrival.text for place in line.waiting),
    ]


async def in_line(control: Control, *texts: str) -> None:
    """Send a message to a session of its own for each text, and wait until each run is in the line."""
    for text in texts:
        await control.send(text, text)
        while "x" not in control._registry.holds._lines or text not in waiting(control):
            await anyio.sleep(0.01)


def quiet(control: Control) -> None:
    """Assert that nobody has a hold or waits for one."""
    assert control._registry.holds._lines == {}


# A hold has one holder at a time


def test_one_holder_in_the_order_of_asking() -> None:
    """Runs of different sessions get a hold one after the other, in the order of asking, with rising tokens."""

    async def main() -> None:
        had: list[tuple[str, int]] = []
        inside: list[str] = []

        async def agent(run: Run, message: Message) -> str:
            async with run.hold("x") as hold:
                assert inside == [] and (hold.name, hold.unconfirmed) == ("x", None)
                inside.append(message.text)
                had.append((message.text, hold.token))
                await anyio.sleep(1)
                inside.remove(message.text)
            return "done"

        async with open_control(agent) as control:
            await in_line(control, *"abcd")
            await anyio.sleep(10)
            assert [name for name, _ in had] == list("abcd")
            tokens = [token for _, token in had]
            assert tokens == sorted(set(tokens))
            quiet(control)

    seeded(main)


def test_names_are_independent() -> None:
    """A run may have two holds of different names at once."""

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("x") as one, run.hold(message.text) as two:
            await anyio.sleep(1)
            return f"{one.name} {two.name} {two.token > one.token}"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "y")
            assert (await control.wait(sent.run_id)).text == "x y True"
            quiet(control)

    seeded(main, range(3))


def test_tokens_rise_across_a_restart() -> None:
    """A token of a later start is higher than any before it."""

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("x") as hold:
            return str(hold.token)

    async def main() -> None:
        store, tokens = MemoryStore(), []
        for _ in range(3):
            async with open_control(agent, store=store) as control:
                sent = await control.send("s", "hello")
                tokens.append(int((await control.wait(sent.run_id)).text))
        assert tokens == sorted(set(tokens))

    seeded(main, range(2))


@pytest.mark.parametrize("how", ["leaves", "raises"])
def test_the_end_of_the_block_lets_go_at_once(how: str) -> None:
    """A current run frees its hold in the step that leaves the block, by return or by error."""

    async def main() -> None:
        clock, times = asyncio.get_running_loop().time, []

        async def agent(run: Run, message: Message) -> None:
            try:
                async with run.hold("x"):
                    times.append(clock())
                    await anyio.sleep(1)
                    if how == "raises":
                        raise ValueError("broken")
            except ValueError:
                pass
            times.append(clock())
            await idles(run, message)

        async with open_control(agent) as control:
            await in_line(control, "a", "b")
            await anyio.sleep(1.5)
            _, left, entered = times[:3]
            assert abs(entered - left) < 0.06
            assert control._registry.runs and waiting(control) == ["b"]

    seeded(main)


# Stopped waiters


def test_a_stopped_waiter_leaves_the_line() -> None:
    """A run that is stopped while it waits leaves the line and never gets the hold (race 31)."""

    async def main() -> None:
        stage = Stage()
        async with open_control(stage) as control:
            await in_line(control, "a", "b", "c")
            receipt = await control.stop(session="b")
            assert (receipt.aborted, receipt.holds) == (True, 0)
            assert waiting(control) == ["a", "c"]
            stage.let_go.set()
            await anyio.sleep(10)
            assert stage.names == ["a", "c"]
            quiet(control)

    seeded(main)


def test_a_stopped_waiter_that_goes_on_never_acquires() -> None:
    """A waiter that swallows its cancel and tries again is refused each time, and counted (race 31)."""
    tried: list[BaseException | None] = []

    async def main() -> None:
        tried.clear()
        holder = Stage()

        async def stubborn(run: Run, message: Message) -> None:
            async def take() -> None:
                async with run.hold("x"):
                    raise AssertionError("it got the hold after its end")

            for _ in range(3):
                tried.append(await swallowed(take()))

        async def agent(run: Run, message: Message) -> None:
            await (stubborn if message.text == "b" else holder)(run, message)

        async with open_control(agent) as control:
            await in_line(control, "a", "b")
            receipt = await control.stop(session="b")
            holder.let_go.set()
            await control.wait(receipt.runs[0].id, drained=True)
            assert (await control.receipt(receipt.runs[0].id)).refused == {"hold": 2, "final": 1}
            quiet(control)
        assert [type(error) for error in tried] == [asyncio.CancelledError, Stale, Stale]

    seeded(main)


@pytest.mark.parametrize("first", ["release", "stop"])
def test_a_grant_in_the_same_tick_as_a_stop_passes_on(first: str) -> None:
    """A hold granted in the very step in which its waiter is stopped goes to the next in line (race 33)."""

    async def main() -> None:
        had: list[str] = []
        go = asyncio.Event()

        async def agent(run: Run, message: Message) -> None:
            async with run.hold("x"):
                had.append(message.text)
                if message.text == "a":
                    await go.wait()
                    if first == "stop":
                        await control.stop(session="b")
            if first == "release" and message.text == "a":
                await control.stop(session="b")  # no other step has run since the block was left

        async with open_control(agent) as control:
            await in_line(control, "a", "b", "c")
            go.set()
            await anyio.sleep(10)
            assert had == ["a", "c"]
            quiet(control)

    seeded(main)


def test_a_grant_that_is_not_seen_before_the_fall_is_no_hold() -> None:
    """A waiter that no cancel reaches wakes with its grant after its run fell, and is refused (races 31 and 33)."""
    caught: dict[str, BaseException | None] = {}

    async def main() -> None:
        caught.clear()
        had: list[str] = []
        go = asyncio.Event()

        async def take(run: Run, name: str) -> None:
            async with run.hold("x"):
                had.append(name)
                if name == "a":
                    await go.wait()
            if name == "a":
                await control.stop(session="b")  # no other step has run since the block was left

        async def agent(run: Run, message: Message) -> None:
            # The fall cuts the agent's own task and not this one.
            waits = asyncio.create_task(swallowed(take(run, message.text)))
            await swallowed(asyncio.shield(waits))
            caught[message.text] = await waits

        async with open_control(agent) as control:
            await in_line(control, "a", "b", "c")
            go.set()
            await anyio.sleep(10)
            assert had == ["a", "c"]
            quiet(control)
        assert (type(caught["b"]), caught["a"], caught["c"]) == (Stale, None, None)

    seeded(main)


def test_a_grant_in_the_same_tick_as_a_cancel_passes_on() -> None:
    """A hold granted in the very step in which the agent gives its wait up goes to the next in line (race 33)."""

    async def main() -> None:
        had: list[str] = []
        go, waits = asyncio.Event(), []

        async def take(run: Run, name: str) -> None:
            async with run.hold("x"):
                had.append(name)
                if name == "a":
                    await go.wait()
            if name == "a":
                waits[0].cancel()  # no other step has run since the block was left

        async def agent(run: Run, message: Message) -> str:
            if message.text == "b":
                waits.append(asyncio.create_task(take(run, "b")))
                error = await swallowed(waits[0])
                await take(run, "b again")
                return type(error).__name__
            await take(run, message.text)
            return "done"

        async with open_control(agent) as control:
            await in_line(control, "a", "b", "c")
            go.set()
            await anyio.sleep(10)
            assert had == ["a", "c", "b again"]
            [b] = await control.runs("b")
            assert (await control.wait(b.id)).text == "CancelledError"
            quiet(control)

    seeded(main)


def test_a_waiter_with_a_timeout_of_its_own() -> None:
    """An agent whose own timeout ends its wait leaves the line, goes on, and may ask again."""

    async def main() -> None:
        stage = Stage()

        async def impatient(run: Run, message: Message) -> str:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), run.hold("x"):
                    raise AssertionError("it is taken")
            assert waiting(control) == ["a", "c"]
            stage.let_go.set()
            async with run.hold("x"):
                return "later"

        async def agent(run: Run, message: Message) -> str | None:
            return await (impatient if message.text == "b" else stage)(run, message)

        async with open_control(agent) as control:
            await in_line(control, "a", "b", "c")
            [b] = await control.runs("b")
            outcome = await control.wait(b.id)
            assert outcome.text == "later", outcome.error
            assert stage.names == ["a", "c"]
            quiet(control)

    seeded(main)


# Stopped holders


def test_the_hold_of_a_stopped_holder_passes_on_when_it_is_gone() -> None:
    """A stopped holder's hold is free when its body is seen gone; its seat is free at once (race 32)."""

    async def main() -> None:
        clock, times = asyncio.get_running_loop().time, {}

        async def agent(run: Run, message: Message) -> None:
            if message.text == "new":
                await idles(run, message)
            async with run.hold("x") as hold:
                times[message.text] = clock()
                assert hold.unconfirmed is None
                try:
                    await anyio.sleep_forever()
                finally:
                    if message.text == "a":
                        with anyio.CancelScope(shield=True):
                            await anyio.sleep(1)
                        times["gone"] = clock()

        async with open_control(agent) as control:
            await in_line(control, "a", "b")
            before, stopped = control._registry.generations.get("a"), clock()
            receipt = await control.stop(session="a")
            assert (receipt.holds, receipt.drain) == (1, "pending")
            assert control._registry.sessions["a"].seat is None
            assert control._registry.generations.get("a") > before
            # The session has a free seat although the hold is still taken.
            new = await control.send("a", "new")
            await started(control, new.run_id)
            assert clock() - stopped < 0.5 and "b" not in times
            assert waiting(control) == ["a", "b"]
            await control.wait(receipt.runs[0].id, drained=True)
            assert (await control.receipt(receipt.runs[0].id)).drain == "observed"
            await anyio.sleep(0.5)
            assert stopped + 0.9 < times["gone"] <= times["b"] < times["gone"] + 0.2

    seeded(main)


def test_the_hold_of_a_polite_holder_passes_on_at_its_end() -> None:
    """A holder that ends at its cancel passes its hold on at once (race 32)."""

    async def main() -> None:
        stage = Stage()
        async with open_control(stage) as control:
            await in_line(control, "a", "b")
            receipt = await control.stop(session="a")
            assert receipt.holds == 1
            [b] = await control.runs("b")
            with anyio.fail_after(0.3):
                await has_it(control, b.id)
            assert stage.names == ["a", "b"]

    seeded(main)


def test_the_hold_of_a_deaf_holder_passes_on_after_its_grace() -> None:
    """A holder that swallows every cancel is dropped after its grace, and the next holder is told (race 32)."""

    async def main() -> None:
        stage, clock = Stage(), asyncio.get_running_loop().time

        async def agent(run: Run, message: Message) -> None:
            if message.text != "a":
                await stage(run, message)
            async with run.hold("x"):
                while True:
                    await swallowed(asyncio.sleep(3600))

        async with open_control(agent) as control:
            await in_line(control, "a", "b")
            began = clock()
            await control.stop(session="a")
            [b] = await control.runs("b")
            await has_it(control, b.id)
            assert 1.9 < clock() - began < 3
            assert (stage.holds["b"].unconfirmed or "").startswith("r-")

    seeded(main)


def test_the_hold_of_a_holder_that_cannot_be_ended_is_marked() -> None:
    """A hold passes on after DRAIN_SECONDS at the latest, and the next holder is told who had it (race 32)."""

    async def main() -> None:
        stage, clock, stuck = Stage(), asyncio.get_running_loop().time, Clinging()

        async def agent(run: Run, message: Message) -> None:
            if message.text != "a":
                await stage(run, message)
            async with run.hold("x"):
                await stuck

        async with open_control(agent) as control:
            await in_line(control, "a", "b")
            began = clock()
            receipt = await control.stop(session="a")
            holder = receipt.runs[0].id
            assert clock() - began < 0.5
            [b] = await control.runs("b")
            await has_it(control, b.id)
            assert control.settings.drain_seconds - 0.1 < clock() - began < control.settings.drain_seconds + 1
            assert stage.holds["b"].unconfirmed == holder
            final = await control.receipt(holder)
            assert (final.drain, final.holds, len(final.unconfirmed)) == ("unconfirmed", 1, 1)
            await control.stop(session="b")
            # Control saw b's body gone, so c is told nothing of a.
            await in_line(control, "c")
            assert stage.holds["c"].unconfirmed is None
            stuck.set_result(None)
            await control.stop(session="c")
            await anyio.sleep(10)
            quiet(control)

    seeded(main)


def test_who_comes_later_is_told_too() -> None:
    """A run that asks much later for a hold that was taken from a run not seen gone is still told of that run."""

    async def main() -> None:
        stage, stuck = Stage(), Clinging()

        async def agent(run: Run, message: Message) -> None:
            if message.text != "a":
                await stage(run, message)
            async with run.hold("x"):
                await stuck

        async with open_control(agent) as control:
            await in_line(control, "a")
            receipt = await control.stop(session="a")
            await anyio.sleep(60)
            await in_line(control, "b")
            assert stage.holds["b"].unconfirmed == receipt.runs[0].id
            stuck.set_result(None)

    seeded(main, range(3))


def test_an_untaken_grant_keeps_the_mark() -> None:
    """A waiter that falls before it takes a marked hold leaves the mark for the next in line (race 33)."""
    holds, (a, b, c) = Holds(Numbers(1)), (_run(number) for number in range(3))
    first, _, third = (holds.enter(run, "x") for run in (a, b, c))
    holds.take(first)
    a.fence.fall(STOPPED)
    assert holds.fall(a.work) == 1
    holds.drained(a, confirmed=False)
    b.fence.fall(STOPPED)
    holds.fall(b.work)  # granted, and never taken
    assert holds.take(third).unconfirmed == a.id


def test_a_takeover_waits_for_the_hold_and_not_for_the_seat() -> None:
    """A takeover's new run starts at once and gets the old run's hold when that run is gone (races 22 and 32)."""

    async def main() -> None:
        had: list[str] = []

        async def agent(run: Run, message: Message) -> str:
            await run.say("began")
            async with run.hold("x"):
                had.append(message.text)
                if message.text == "old":
                    await swallowed(anyio.sleep_forever())
                    await swallowed(anyio.sleep(1))
                    had.append("old is gone")
            return "done"

        async with open_control(agent) as control:
            old = await control.send("s", "old")
            while not had:
                await anyio.sleep(0.01)
            new = await control.send("s", "new")
            with anyio.fail_after(0.3):
                await has_it(control, new.run_id)
            assert had == ["old"]
            assert (await control.wait(new.run_id)).ending is Ending.COMPLETED
            assert had == ["old", "old is gone", "new"]
            assert (await control.receipt(old.run_id)).holds == 1
            quiet(control)

    seeded(main)


def test_a_run_that_completes_with_a_task_in_the_block() -> None:
    """A task that outlives its run keeps no hold, and frees nobody else's when it leaves the block later."""

    async def main() -> None:
        left: list[asyncio.Task[None]] = []
        stage, go = Stage(), asyncio.Event()

        async def linger(run: Run) -> None:
            async with run.hold("x"):
                await go.wait()

        async def agent(run: Run, message: Message) -> str | None:
            if message.text != "a":
                return await stage(run, message)
            left.append(asyncio.create_task(linger(run)))
            while "x" not in control._registry.holds._lines:
                await anyio.sleep(0.01)
            await anyio.sleep(1)
            return "done"

        async with open_control(agent) as control:
            await in_line(control, "a", "b", "c")
            await anyio.sleep(2)
            assert stage.names == ["b"]
            go.set()
            await asyncio.gather(*left)
            assert waiting(control) == ["b", "c"]
            [a] = await control.runs("a")
            assert (await control.receipt(a.id)).holds == 1

    seeded(main, range(4))


# Refusals


def test_a_run_takes_a_hold_once() -> None:
    """A run that asks again for a hold it has or waits for is refused, and keeps its first place."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> str:
            async with run.hold("x"):
                with raises(Refused, "this run holds 'x' or waits for it already; take it once"):
                    async with run.hold("x"):
                        pass
                assert waiting(control) == ["hello"]
            async with run.hold("x"):
                return "again"

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "again", outcome.error
            quiet(control)

    seeded(main, range(2))


def test_a_child_that_wants_what_is_held_above_it() -> None:
    """A child or grandchild that asks for a hold of a run above it is refused at once, since it would wait for ever."""

    async def wants(run: Run, message: Message) -> str:
        try:
            async with run.hold("x"):
                return "got it"
        except Refused as refusal:
            return str(refusal)

    async def middle(run: Run, message: Message) -> str:
        return (await run.delegate("wants", "x")).text

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("x"):
            texts = [(await run.delegate(name, "x")).text for name in ("wants", "middle")]
        texts.append((await run.delegate("middle", "x")).text)
        held = f"run {run.id}, which delegated this one, holds 'x': work under its hold"
        return "ok" if texts == [held, held, "got it"] else repr(texts)

    async def main() -> None:
        async with open_control(agent, agents={"wants": wants, "middle": middle}) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "ok"
            quiet(control)

    seeded(main, range(4))


def test_a_detached_child_may_wait_for_its_parent_s_hold() -> None:
    """A detached child may wait for its parent's hold, since its parent does not wait for it."""

    async def main() -> None:
        stage = Stage()

        async def agent(run: Run, message: Message) -> str:
            async with run.hold("x"):
                await run.delegate("stage", "child", detached=True)
                while len(waiting(control)) < 2:
                    await anyio.sleep(0.01)
                assert stage.names == []
            return "done"

        async with open_control(agent, agents={"stage": stage.__call__}) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "done"
            await anyio.sleep(1)
            assert stage.names == ["child"]
            await control.stop(session="s")
            await anyio.sleep(10)
            quiet(control)

    seeded(main, range(4))


def test_the_receipt_counts_the_holds_of_the_whole_tree() -> None:
    """A receipt counts the holds of fallen children with their parent's; all are free when the runs are gone."""

    async def child(run: Run, message: Message) -> None:
        async with run.hold("y"):
            await run.say("has it")
            await swallowed(anyio.sleep_forever())
            await swallowed(anyio.sleep(1))

    async def agent(run: Run, message: Message) -> None:
        async with run.hold("x"):
            await run.delegate("child", "work")

    async def main() -> None:
        async with open_control(agent, agents={"child": child}) as control:
            sent = await control.send("s", "hello")
            await has_it(control, (await told(control, sent.run_id, EventKind.CHILD)).data.child)
            receipt = await control.stop(session="s")
            assert (receipt.holds, len(receipt.runs)) == (2, 2)
            assert set(control._registry.holds._lines) == {"x", "y"}
            await control.wait(sent.run_id, drained=True)
            quiet(control)

    seeded(main, range(4))


def test_a_hold_is_refused_to_a_run_that_is_over() -> None:
    """A fallen run gets no hold, and neither the stream nor the line shows one (race 31)."""

    async def agent(run: Run, message: Message) -> None:
        await swallowed(anyio.sleep_forever())
        async with run.hold("x"):
            raise AssertionError("a fallen run got a hold")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).refused == {"hold": 1}
            assert [event.kind for event in await log_of(control, "s") if event.run_id == sent.run_id][-1] == "ended"
            quiet(control)

    seeded(main)


def test_holds_are_limited() -> None:
    """A hold beyond HOLDS and a wrong name are refused, and leave nothing in any line."""

    async def agent(run: Run, message: Message) -> str:
        async with AsyncExitStack() as stack:
            for number in range(HOLDS):
                await stack.enter_async_context(run.hold(f"n{number}"))
            with raises(Refused, f"this run has {HOLDS} holds, .*let some go first"):
                await stack.enter_async_context(run.hold("one more"))
            for wrong in ("", None, 3, "x" * 10_000):
                with raises(BadInput, "hold"):
                    await stack.enter_async_context(run.hold(wrong))  # type: ignore[arg-type]
        async with run.hold("one more"):
            return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.text == "ok", outcome.error
            quiet(control)

    seeded(main, range(1))


def test_a_line_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter beyond HOLD_WAITERS for a name is refused, and leaves nothing in the line."""
    monkeypatch.setattr(holds_module, "HOLD_WAITERS", 3)
    holds, runs = Holds(Numbers(1)), [_run(number) for number in range(5)]
    places = [holds.enter(run, "x") for run in runs[:4]]
    with raises(Refused, "3 runs wait for 'x'; try again later"):
        holds.enter(runs[4], "x")
    assert not runs[4].work.holds
    for place in places:
        holds.leave(place)
    assert holds._lines == {}


# No grant is lost or doubled

STOPPED = Cause(ending=Ending.STOPPED, by=Principal("alice"))
NAMES = ("x", "y")


def _run(number: int) -> LiveRun:
    return LiveRun(
        RunId(f"r-{number}"),
        Session(SessionId(f"s-{number}")),
        Arrival(principal=Principal("alice"), text=str(number), kind=RunKind.CHAT, admitted_at=0.0),
    )


class Model:
    """Holds, and a model of them: for each name a plain list, whose first entry has the hold."""

    def __init__(self, runs: int) -> None:
        self.holds = Holds(Numbers(1))
        self.runs = [_run(number) for number in range(runs)]
        self.lines: dict[str, list[Place]] = {name: [] for name in NAMES}
        self.marked: dict[str, RunId] = {}  # by name: the last holder not seen gone, which the next one is told
        self.granted: list[Place] = []
        self.tokens: list[int] = []

    def possible(self) -> list[tuple[str, LiveRun, str]]:
        """Return the moves that the real runtime would let runs make now."""
        found = [("fall", run, "") for run in self.runs if not run.fallen]
        found += [(how, run, "") for run in self.runs if run.fallen for how in ("drained", "unconfirmed")]
        for name, line in self.lines.items():
            found += [("enter", run, name) for run in self.runs if not run.fallen]
            for place in line:
                if not place.run.fallen:
                    found.append(("leave", place.run, name))
                    found += [("take", place.run, name)] if place.granted is not None and not place.taken else []
        return found

    def move(self, move: str, run: LiveRun, name: str) -> None:
        """Make one move."""
        mine = next((place for place in self.lines.get(name, ()) if place.run is run), None)
        match move:
            case "enter" if mine is not None:
                with pytest.raises(Refused):
                    self.holds.enter(run, name)
            case "enter":
                self.lines[name].append(self.holds.enter(run, name))
            case "take":
                assert mine is not None
                hold = self.holds.take(mine)
                assert (hold.token, hold.unconfirmed) == (mine.granted, self.marked.pop(name, None))
            case "leave":
                assert mine is not None
                self._leaves(mine)
                self.holds.leave(mine)
                self.holds.leave(mine)  # a second `leave` does nothing
            case "fall":
                run.fence.fall(STOPPED)
                for place in self._places(run):
                    if not place.taken:
                        self._leaves(place)
                assert self.holds.fall(run.work) == len(self._places(run))
            case _:
                for place in self._places(run):
                    self._leaves(place, marks=move == "unconfirmed")
                self.holds.drained(run, confirmed=move == "drained")
                assert not run.work.holds

    def _places(self, run: LiveRun) -> list[Place]:
        return [place for line in self.lines.values() for place in line if place.run is run]

    def _leaves(self, place: Place, *, marks: bool = False) -> None:
        if marks:
            self.marked[place.name] = place.run.id
        self.lines[place.name].remove(place)

    def check(self) -> None:
        """Assert that only the first of each line has the hold, the others sleep, and each token is new and higher."""
        for name, line in self.lines.items():
            assert [place.granted is not None for place in line] == [index == 0 for index in range(len(line))]
            assert [place.woken.is_set() for place in line] == [index == 0 for index in range(len(line))]
            assert all((place.run.work.holds or {})[name] is place for place in line)
            for place in line[:1]:
                if place not in self.granted:
                    assert place.granted is not None
                    self.granted.append(place)
                    self.tokens.append(place.granted)
            real = self.holds._lines.get(name)
            assert (real is not None) == bool(line or name in self.marked)
            if real is not None:
                assert (real.holder, list(real.waiting)) == (line[0] if line else None, line[1:])
        assert len(set(self.tokens)) == len(self.tokens)
        for name in NAMES:
            mine = [place.granted for place in self.granted if place.name == name]
            assert mine == sorted(mine)  # type: ignore[type-var]


@settings(max_examples=300)
@given(st.lists(st.integers(0, 1000), min_size=4, max_size=60))
def test_no_grant_is_lost_or_doubled(choices: list[int]) -> None:
    """Exactly the first in line has the hold, whatever runs do and whenever they fall (races 31, 32 and 33)."""
    model = Model(4)
    for choice in choices:
        possible = model.possible()
        model.move(*possible[choice % len(possible)])
        model.check()
    # At the end every run goes, and its lines with it.
    for run in model.runs:
        if not run.fallen:
            model.move("fall", run, "")
            model.check()
        model.move("drained", run, "")
        model.check()
    assert set(model.holds._lines) == set(model.marked)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    runs=st.integers(2, 5),
    stops=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=4),
    deaf=st.sets(st.integers(0, 4), max_size=2),
)
def test_every_waiter_that_is_not_stopped_gets_it_once(
    seed: int, runs: int, stops: list[tuple[int, int]], deaf: set[int]
) -> None:
    """Stops in any step leave one holder, no lost grant and rising tokens (races 31, 32 and 33)."""
    run_seeded(lambda: _crowd(seed, runs, stops, deaf), seed, on_close=lambda loop: _clean(loop.problems))


def _clean(problems: list[Any]) -> None:
    assert problems == []


async def _crowd(seed: int, runs: int, stops: list[tuple[int, int]], deaf: set[int]) -> None:
    random, had, tokens = Random(seed), [], []
    holder: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("x") as hold:
            live = control._registry.runs[run.id]
            assert not live.fallen, "a stopped waiter got the hold"
            # The holder before this one has left the block or is drained.
            for before in holder:
                fall = control._registry.runs[before].fall if before in control._registry.runs else None
                assert before not in control._registry.runs or (fall is not None and fall.drained.is_set())
            holder[:] = [run.id]
            had.append(message.text)
            tokens.append(hold.token)
            for _ in range(random.randrange(4)):
                if int(message.text) in deaf:
                    await swallowed(asyncio.sleep(0))
                else:
                    await asyncio.sleep(0)
            if run.current:
                holder.remove(run.id)
        return "done"

    async def stop(after: int, target: str) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        await control.stop(session=target)

    async with open_control(agent) as control:
        sent = [asyncio.create_task(control.send(str(number), str(number))) for number in range(runs)]
        stopping = [asyncio.create_task(stop(after, str(target))) for after, target in stops]
        await asyncio.gather(*stopping)
        for number, each in enumerate(await asyncio.gather(*sent)):
            with anyio.fail_after(60):
                outcome = await control.wait(each.run_id, drained=True)
            assert outcome.ending in (Ending.COMPLETED, Ending.STOPPED), outcome.error
            assert had.count(str(number)) == 1 or (outcome.ending is Ending.STOPPED and str(number) not in had)
        assert tokens == sorted(set(tokens))
        quiet(control)


# Children of a holder


async def lingers(run: Run, message: Message) -> None:
    """Wait for ever, and clean up slowly."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(1)


def test_a_hold_is_taken_again_while_a_child_drains() -> None:
    """A run that leaves a hold and takes it again at once gets it, though a child that it gave up is not gone yet."""

    async def main() -> None:
        order: list[str] = []

        async def agent(run: Run, message: Message) -> str:
            if message.text == "other":
                async with run.hold("tree"):
                    order.append("other")
                return "other"
            for n in range(2):
                async with run.hold("tree"):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await run.delegate("lingers", "x")
                    order.append(f"round {n}")
            await asyncio.sleep(3600)
            return "done"

        async with open_control(agent, agents={"lingers": lingers}) as control:
            first = await control.send("s", "one")
            await asyncio.sleep(0.1)
            second = await control.send("t", "other")
            await control.wait(second.run_id, timeout=60)
            assert order == ["round 0", "round 1", "other"]
            assert (await control.wait(first.run_id, timeout=0.1)).ending is Ending.PENDING

    seeded(main)


def test_a_hold_that_is_left_twice_waits_for_every_child() -> None:
    """A hold that is left again over a second child passes on when that child is gone too, not with the first."""

    async def main() -> None:
        order: list[str] = []

        async def cleans(run: Run, message: Message) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(1.5)
                order.append(f"{message.text} is gone")

        async def agent(run: Run, message: Message) -> None:
            async with run.hold("tree"):
                if message.text == "other":
                    order.append("other")
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await run.delegate("cleans", "first")
            async with run.hold("tree"):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await run.delegate("cleans", "second")
            await asyncio.sleep(3600)

        async with open_control(agent, agents={"cleans": cleans}) as control:
            await control.send("s", "one")
            await asyncio.sleep(0.1)
            await control.wait((await control.send("t", "other")).run_id, timeout=60)
            assert order == ["first is gone", "second is gone", "other"]

    seeded(main, jump=0.0)
