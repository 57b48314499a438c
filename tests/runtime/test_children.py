"""Child runs: they share their parent's fate, and what became of them is told once, truly and at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Child,
    Control,
    Ending,
    MemoryStore,
    Message,
    QuestionClosed,
    Receipt,
    Refused,
    Run,
    RunInfo,
    Stale,
    Strategy,
    Unavailable,
    Unknown,
    open_control,
)
from interlock.core.names import EventKind, RunKind
from interlock.runtime.settings import CHILDREN, DEPTH
from interlock.testing.loop import Mode

from .scene import at_once, deaf, echoes, idles, kinds, log_of, mumbles, raises, seeded, started, swallowed, told

Agent = Callable[[Run, Message], Coroutine[Any, Any, str | None]]

AGENTS: dict[str, Agent] = {"echo": echoes, "idle": idles, "deaf": deaf, "mumble": mumbles}


def to(name: str, **options: Any) -> Agent:
    """An agent that hands its message on and answers with what became of it."""

    async def agent(run: Run, message: Message) -> str:
        child = await run.delegate(name, message.text, **options)
        return f"{child.outcome.ending.value}: {child.text}"

    return agent


def lets_go(name: str) -> Agent:
    """An agent that begins a detached child and waits for ever."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate(name, message.text, detached=True)
        await idles(run, message)

    return agent


async def ticks(number: int) -> None:
    """Let the others take a number of steps."""
    for _ in range(number):
        await asyncio.sleep(0)


async def child_of(control: Control, run: str) -> str:
    """The id of a run's first child, once it is told of."""
    return str((await told(control, run, EventKind.CHILD)).data.child)


async def begun_child(control: Control, run: str) -> str:
    """The id of a run's first child, once its agent has begun."""
    child = await child_of(control, run)
    await started(control, child)
    return child


async def told_once(control: Control, run: str, session: str | None = None) -> None:
    """A run's terminal event is there, is its only one, and is its last."""
    mine = kinds(await log_of(control, session or f"run:{run}"), run)
    assert mine.count("ended") == 1 and mine[-1] == "ended", mine


async def nothing_left(control: Control) -> None:
    """When everything has had its time, nothing is in memory."""
    await anyio.sleep(10)
    registry = control._registry
    left = (registry.runs, registry.sessions, registry.questions, registry.falls, registry.keys, registry.holds._lines)
    assert left == ({}, {}, {}, {}, {}, {})


def endings(receipt: Receipt) -> list[tuple[str, str]]:
    return [(run.id, run.outcome.ending.value) for run in receipt.runs]


# What a child is


def test_a_child_does_the_work_in_a_session_of_its_own() -> None:
    """The parent gets the child's reply; the child's words are in its own session and not in the parent's."""
    heard: list[Message] = []

    async def worker(run: Run, message: Message) -> str:
        heard.append(message)
        await run.post("thinking")
        return "done"

    async def main() -> None:
        heard.clear()
        async with open_control(to("worker"), agents={"worker": worker}) as control:
            sent = await control.send("s", "build it", by="alice")
            child = await child_of(control, sent.run_id)
            assert (await control.wait(sent.run_id)).text == "completed: thinking\n\ndone"
            [message] = heard
            assert (message.text, message.by, message.session) == ("build it", "alice", f"run:{child}")
            assert (await control.wait(child)).text == "thinking\n\ndone"
            texts = [(entry.role, entry.text) for entry in await control.history(f"run:{child}")]
            assert texts == [("user", "build it"), ("assistant", "thinking"), ("assistant", "done")]
            assert [entry.role for entry in await control.history("s")] == ["user", "assistant"]
            assert {event.run_id for event in await log_of(control, "s")} == {sent.run_id, None}
            await nothing_left(control)

    seeded(main)


def test_a_child_that_fails_is_told_and_not_raised() -> None:
    """How a child ended is in what is returned; the parent goes on."""

    async def breaks(run: Run, message: Message) -> None:
        raise ValueError("no such branch")

    async def agent(run: Run, message: Message) -> str:
        child = await run.delegate("breaks", "go")
        return f"{child.outcome.ending.value} {child.outcome.error} {child.text!r}"

    async def main() -> None:
        async with open_control(agent, agents={"breaks": breaks}) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "failed ValueError: no such branch ''"
            await nothing_left(control)

    seeded(main)


def test_two_children_side_by_side() -> None:
    """Children in parallel tasks are each told their own ending; stopping one leaves the other."""

    async def agent(run: Run, message: Message) -> str:
        both = await asyncio.gather(run.delegate("idle", "a"), run.delegate("slow", "b"))
        return " ".join(f"{child.outcome.ending.value}:{child.text}" for child in both)

    async def slow(run: Run, message: Message) -> str:
        await anyio.sleep(3)
        return message.text

    async def main() -> None:
        async with open_control(agent, agents={"idle": idles, "slow": slow}) as control:
            sent = await control.send("s", "hello")
            await anyio.sleep(1)
            [child] = [run.id for run in await control.runs("s", tree=True) if run.agent == "idle"]
            receipt = await control.stop(run=child)
            assert endings(receipt) == [(child, "stopped")]
            assert (await control.wait(sent.run_id)).text == "stopped: completed:b"
            await nothing_left(control)

    seeded(main)


def test_the_parent_s_stream_tells_of_its_children() -> None:
    """A child is told in the parent's stream when it begins and when it ends, and in the same words everywhere."""

    async def main() -> None:
        async with open_control(to("echo"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.ending is Ending.COMPLETED
            log = await log_of(control, "s")
            assert kinds(log, sent.run_id) == ["message", "started", "child", "child", "block", "ended"]
            begin, end = [event.data for event in log if event.kind is EventKind.CHILD]
            assert (begin.child, begin.agent, begin.session) == (end.child, "echo", f"run:{end.child}")
            assert begin.outcome is None and not begin.detached
            assert end.outcome.same_story(await control.wait(begin.child))
            moments = [(each.what, each.name, each.state) for each in await control.timeline(sent.run_id)]
            assert ("child", "echo", "begun") in moments and ("child", "echo", "completed") in moments

    seeded(main)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_child_begins_at_once_whatever_the_strategy(strategy: Strategy) -> None:
    """A child is alone in its session: no strategy of the server keeps it waiting or outside."""

    async def main() -> None:
        async with open_control(to("echo"), agents=AGENTS, strategy=strategy) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            began = asyncio.get_running_loop().time()
            assert (await control.wait(sent.run_id)).text == "completed: hello"
            assert asyncio.get_running_loop().time() - began < 0.3

    seeded(main, range(3))


# One fate


def test_a_parent_that_falls_while_its_child_arrives() -> None:
    """Whenever the stop comes, a child that arrives falls with its parent, and none begins after (races 44 and 45)."""
    reached: set[str] = set()

    async def once(number: int) -> None:
        late: list[str] = []

        async def worker(run: Run, message: Message) -> None:
            if control._registry.runs[run.id].parent.fallen:
                late.append(run.id)
            await idles(run, message)

        async with open_control(to("worker"), agents={"worker": worker}) as control:
            sent = await control.send("s", "hello")
            await ticks(number)
            known = [run.id for run in control._registry.runs.values() if run.parent is not None]
            receipt = await control.stop(run=sent.run_id)
            assert endings(receipt) == [(sent.run_id, "stopped"), *((child, "parent_ended") for child in known)]
            await anyio.sleep(10)
            rows = [run for run in await control.runs("s", tree=True) if run.parent is not None]
            assert [row.id for row in rows] == known
            for child in known:
                reached.add(receipt.runs[1].body.value)
                await told_once(control, child)
                assert (await control.wait(child)).ending is Ending.PARENT_ENDED
            assert late == []
            await nothing_left(control)

    async def main() -> None:
        for number in range(24):
            await once(number)

    for mode in Mode:
        seeded(main, range(20), mode=mode, limit_seconds=6000)
    assert reached == {"none", "cut"}  # some were born ended, some had begun


@pytest.mark.parametrize("how", ["session", "takeover", "deadline", "shutdown"])
def test_every_way_to_fall_takes_the_arriving_child(how: str) -> None:
    """A takeover, a deadline or a shutdown ends a child in any instant of its arrival, as a stop does (race 44)."""

    async def once(number: int) -> None:
        store = MemoryStore()
        late: list[str] = []

        async def agent(run: Run, message: Message) -> None:
            await (idles(run, message) if message.text == "new" else to("worker")(run, message))

        async def worker(run: Run, message: Message) -> None:
            if control._registry.runs[run.id].parent.fallen:
                late.append(run.id)
            await idles(run, message)

        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            deadline = 1e-6 * (10 + 4 * number) if how == "deadline" else None
            sent = await control.send("s", "hello", deadline=deadline)
            await ticks(number)
            if how == "session":
                await control.stop(session="s")
            elif how == "takeover":
                await control.send("s", "new")
            if how != "shutdown":
                assert (await control.wait(sent.run_id, drained=True)).ended
        assert late == []
        rows = [row for row in await store.runs("s", tree=True) if row.parent is not None]
        assert len(rows) <= 1
        for row in rows:
            assert row.outcome is not None and row.outcome.ending is Ending.PARENT_ENDED
            await told_once(control, row.id)

    async def main() -> None:
        for number in range(0, 24, 2):
            await once(number)

    seeded(main, range(4))


@pytest.mark.parametrize("detached", [False, True])
def test_a_parent_that_is_over_begins_no_child(detached: bool) -> None:
    """A parent that swallowed its end and delegates all the same is refused, counted, and begets nobody (race 44)."""
    tried: list[BaseException | None] = []

    async def main() -> None:
        tried.clear()

        async def agent(run: Run, message: Message) -> None:
            await swallowed(anyio.sleep_forever())
            for _ in range(2):
                tried.append(await swallowed(run.delegate("echo", "late", detached=detached)))
                assert len(control._registry.runs) == 1

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).refused == {"child": 2, "final": 1}
            assert len(await control.runs("s", tree=True)) == 1
            await nothing_left(control)
        assert [type(error) for error in tried] == [Stale, Stale]

    seeded(main)


async def _fails(run: Run, message: Message) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("how", ["run", "session", "takeover", "deadline", "shutdown", "completion", "failure"])
def test_the_whole_tree_falls_in_one_step(how: str) -> None:
    """Children and grandchildren fall in the step that ends their parent: one receipt, one terminal event each."""

    async def main() -> None:
        store, go = MemoryStore(), asyncio.Event()
        background: list[asyncio.Task[Child]] = []

        async def agent(run: Run, message: Message) -> str | None:
            if message.text == "new":
                return await idles(run, message)
            background.append(asyncio.create_task(run.delegate("middle", "work")))
            await go.wait()
            return "done" if how == "completion" else await _fails(run, message)

        async with open_control(agent, agents={"middle": to("idle"), "idle": idles}, store=store) as control:
            sent = await control.send("s", "hello", deadline=5 if how == "deadline" else None)
            middle = await begun_child(control, sent.run_id)
            leaf = await begun_child(control, middle)
            if how == "run":
                await control.stop(run=sent.run_id)
            elif how == "session":
                await control.stop(session="s")
            elif how == "takeover":
                await control.send("s", "new")
            elif how in ("completion", "failure"):
                go.set()
            if how != "shutdown":
                await control.wait(sent.run_id, drained=True)
                receipt = await control.receipt(sent.run_id)
                assert (await control.receipt(leaf)).id == receipt.id
        kept = await store.receipt(sent.run_id)
        assert kept is not None
        ending = {"run": "stopped", "session": "stopped", "takeover": "superseded", "deadline": "timed_out"}
        ending |= {"shutdown": "shutdown", "completion": "completed", "failure": "failed"}
        assert endings(kept) == [(sent.run_id, ending[how]), (middle, "parent_ended"), (leaf, "parent_ended")]
        assert len({run.outcome.ended_at for run in kept.runs}) == 1
        assert [run.body for run in kept.runs][1:] == ["cut", "cut"]
        assert kept.drain == "observed"
        await told_once(control, sent.run_id, "s")
        await told_once(control, middle)
        await told_once(control, leaf)
        [error] = await asyncio.gather(*background, return_exceptions=True)
        assert isinstance(error, Stale)

    seeded(main)


def test_nothing_is_told_to_a_parent_after_its_end() -> None:
    """The parent's terminal event is its last although its children are told as ended with it."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await told_once(control, child)
            mine = kinds(await log_of(control, "s"), sent.run_id)
            assert mine == ["message", "started", "child", "ended"]
            [end] = [event.data for event in await log_of(control, "s") if event.kind is EventKind.ENDED]
            assert [(each.child, each.agent, each.ending) for each in end.children] == [(child, "idle", "parent_ended")]
            moments = [(each.what, each.name, each.state) for each in await control.timeline(sent.run_id)]
            assert moments[2:5] == [
                ("child", "idle", "begun"), ("fell", "local", "stopped"), ("child", "idle", "parent_ended"),
            ]  # fmt: skip
            await nothing_left(control)
            assert kinds(await log_of(control, "s"), sent.run_id) == mine

    seeded(main)


def test_a_stop_of_one_run_leaves_other_trees() -> None:
    """A run-scoped stop takes that run's children; another session's and an earlier turn's stay (race 45)."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("idle", "work", detached=message.text == "earlier")
        await idles(run, message)

    async def main() -> None:
        async with open_control(agent, agents=AGENTS) as control:
            elsewhere = await control.send("other", "hello")
            earlier = await control.send("s", "earlier")
            left = [await begun_child(control, each.run_id) for each in (elsewhere, earlier)]
            now = await control.send("s", "now")
            child = await begun_child(control, now.run_id)
            receipt = await control.stop(run=now.run_id)
            assert endings(receipt) == [(now.run_id, "stopped"), (child, "parent_ended")]
            for other in left:
                assert (await control.wait(other, timeout=5)).ending is Ending.PENDING

    seeded(main)


def test_a_child_alone_can_be_stopped() -> None:
    """Stopping a child takes what is below it; its parent is told at once and goes on."""

    async def main() -> None:
        async with open_control(to("middle"), agents={"middle": to("idle"), "idle": idles}) as control:
            sent = await control.send("s", "hello", by="alice")
            middle = await begun_child(control, sent.run_id)
            leaf = await begun_child(control, middle)
            receipt = await control.stop(run=middle, by="alice")
            assert endings(receipt) == [(middle, "stopped"), (leaf, "parent_ended")]
            assert (await control.wait(sent.run_id)).text == "stopped: "
            await nothing_left(control)

    seeded(main)


# The true ending, at once


def test_the_parent_does_not_wait_for_the_child_s_cleanup() -> None:
    """A deaf child is told as timed out long before it is drained; its parent may end before that too."""

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
            assert clock() > began  # it took its time, and until then the parent was not gone either
            await control.wait(child, drained=True)
            final = await control.receipt(child)
            assert final.drain == "unconfirmed" and (final.fence_to_drained_ms or 0) > 1500
            await nothing_left(control)

    seeded(main)


def test_a_stop_does_not_wait_for_a_deaf_child() -> None:
    """Stop returns at once though the child swallows every cancel; nothing of it is left once drained."""

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
    """Whatever the child's code does after its hard timeout, everyone is told of one timeout (race 47)."""

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
    """Work handed on again is a child of its own: each completion is told once, and again by nobody (race 106)."""

    async def agent(run: Run, message: Message) -> str:
        first = await run.delegate("deaf", "work", timeout=1)
        again = await run.delegate("echo", "work")
        await anyio.sleep(20)  # long enough for everything of the first to be gone
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
    """A completion that was decided and not told yet is public when the stop of its session is acknowledged."""

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
            assert {event.run_id for event in rest} <= {None}  # receipts, of nobody's run

    seeded(main)


def test_a_child_that_completed_in_time_is_told_so() -> None:
    """A completion settled before the deadline is told as completed though its commit ends later (race 48)."""

    async def main() -> None:
        clock, returned = asyncio.get_running_loop().time, [0.0]

        async def worker(run: Run, message: Message) -> str:
            await anyio.sleep(0.5)
            returned[0] = clock()
            return "in time"

        async def agent(run: Run, message: Message) -> str:
            child = await run.delegate("worker", "go", timeout=1)
            return f"{child.outcome.ending.value}: {child.text}"

        # Dispatch, 0.3 s until the start is in, 0.5 s of work, 0.3 s until the end is in: the deadline is in between.
        store = MemoryStore(latency_seconds=0.3)
        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            while not (live := control._registry.runs[child]).limits:
                await anyio.sleep(0.01)
            [limit] = live.limits
            outcome = await control.wait(child)
            assert returned[0] < limit.at < clock()
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "in time")
            assert (await control.wait(sent.run_id)).text == "completed: in time"
            await told_once(control, child)

    seeded(main)


def test_a_wait_for_a_child_that_gives_up_is_no_ending() -> None:
    """A waiter whose patience ends is told `pending`; the child and its parent know nothing of it (race 48)."""

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
    """An agent that waits no longer, by a timeout of its own, ends the child, and goes on at once."""

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
    """Whenever the agent's own task is cancelled, the child is not there or has ended, and the parent goes on."""
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
    """A completion decided before the takeover stands on the child, and never reaches the new turn (race 46)."""

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
            await ticks(20)  # it has settled, and its commit takes longer
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


# Detached


ENDS = ["takeover", "stop", "deadline", "completion"]


@pytest.mark.parametrize("how", ENDS)
def test_a_detached_child_outlives_its_parent(how: str) -> None:
    """A detached child survives its parent's takeover, run-scoped stop, deadline and completion."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> str | None:
            if message.text == "old":
                child = await run.delegate("slow", "work", detached=True, announce=None)
                assert (child.outcome.ending, child.text) == (Ending.PENDING, "")
            return "done" if how == "completion" else await idles(run, message)

        async def slow(run: Run, message: Message) -> str:
            await anyio.sleep(20)
            return "finished by itself"

        async with open_control(agent, agents={"slow": slow}) as control:
            sent = await control.send("s", "old", deadline=5 if how == "deadline" else None)
            child = await begun_child(control, sent.run_id)
            if how == "takeover":
                await control.send("s", "new")
            elif how == "stop":
                await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert endings(await control.receipt(sent.run_id))[1:] == []
            outcome = await control.wait(child)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "finished by itself")
            await told_once(control, sent.run_id, "s")
            if how != "takeover":
                await nothing_left(control)

    seeded(main, range(5))


@pytest.mark.parametrize("how", ["stop", "reset", "close"])
@pytest.mark.parametrize("orphan", [False, True])
def test_a_detached_child_ends_with_its_session(how: str, orphan: bool) -> None:
    """A session-scoped stop, a reset and the close end detached children, whether or not their parent still lives."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(lets_go("idle"), agents=AGENTS, store=store) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            if orphan:
                await control.stop(run=sent.run_id)
                await anyio.sleep(30)
                assert list(control._registry.runs) == [child]
            fallen = [child] if orphan else [sent.run_id, child]
            if how != "close":
                receipt = await (control.stop(session="s") if how == "stop" else control.reset("s"))
                assert endings(receipt) == [(run, "stopped") for run in fallen]
                await told_once(control, child)
                await nothing_left(control)
        row = await store.run(child)
        assert row is not None and row.outcome is not None
        assert row.outcome.ending == ("shutdown" if how == "close" else "stopped")
        await told_once(control, child)

    seeded(main, range(5))


@pytest.mark.parametrize("how", ["stop", "reset", "close"])
def test_a_detached_child_is_the_session_s_from_its_first_instant(how: str) -> None:
    """A session-scoped end ends a detached child in any instant of its arrival (race 44)."""

    async def main() -> None:
        for number in range(0, 24, 2):
            store = MemoryStore()
            async with open_control(lets_go("idle"), agents=AGENTS, store=store) as control:
                sent = await control.send("s", "hello", by="bob")
                await ticks(number)
                if how == "stop":
                    await control.stop(session="s", by="bob")
                elif how == "reset":
                    await control.reset("s", by="bob")
                if how != "close":
                    await nothing_left(control)
            for row in await store.runs("s", tree=True):
                if row.kind is RunKind.ANNOUNCE and how == "close":  # what waits is for the next start
                    continue
                assert row.outcome is not None, (row.id, sent.run_id)
                assert row.outcome.ending in (Ending.STOPPED, Ending.SHUTDOWN)

    seeded(main, range(4))


def test_a_detached_child_never_outlives_the_control() -> None:
    """A detached child ends with the control although the server collects messages before it begins."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(lets_go("idle"), agents=AGENTS, store=store, strategy="collect") as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
        row = await store.run(child)
        assert row is not None and row.outcome is not None and row.outcome.ending is Ending.SHUTDOWN

    seeded(main, range(4))


def _lines(runs: list[RunInfo]) -> list[tuple[str, str | None, int, bool]]:
    return [(run.id, run.parent, run.depth, run.detached) for run in runs]


def test_the_tree_is_listed_live_and_afterwards() -> None:
    """`runs(tree=True)` shows children below their parents with depth and `detached`, in memory and from the store."""

    async def middle(run: Run, message: Message) -> None:
        await run.delegate("idle", "free", detached=True)
        await run.delegate("idle", "bound")

    async def main() -> None:
        async with open_control(to("middle"), agents={"middle": middle, "idle": idles}) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            while len(control._registry.runs) < 4 or any(
                run.started_at is None for run in control._registry.runs.values()
            ):
                await anyio.sleep(0.01)
            free, bound = list(control._registry.runs)[2:]
            tree = [
                (sent.run_id, None, 0, False),
                (child, sent.run_id, 1, False),
                (free, child, 2, True),
                (bound, child, 2, False),
            ]
            live = await control.runs("s", tree=True)
            assert _lines(live) == tree
            assert [run.agent for run in live] == [None, "middle", "idle", "idle"]
            assert [run.id for run in await control.runs("s")] == [sent.run_id]
            await control.stop(run=sent.run_id)
            await anyio.sleep(30)
            assert list(control._registry.runs) == [free]
            assert set(_lines(await control.runs("s", tree=True))) == set(tree)
            await control.stop(session="s")
            await nothing_left(control)
            after = await control.runs("s", tree=True)
            assert _lines(after) == tree
            assert [run.outcome and run.outcome.ending.value for run in after] == [
                "stopped",
                "parent_ended",
                "stopped",
                "parent_ended",
            ]

    seeded(main)


def test_a_detached_grandchild_belongs_to_the_top_session() -> None:
    """It outlives the child that began it, and the stop of that child's session; the top session's stop ends it."""

    async def main() -> None:
        async with open_control(to("middle"), agents={"middle": lets_go("idle"), "idle": idles}) as control:
            sent = await control.send("s", "hello")
            middle = await begun_child(control, sent.run_id)
            free = await begun_child(control, middle)
            receipt = await control.stop(session=f"run:{middle}")
            assert endings(receipt) == [(middle, "stopped")]
            assert (await control.wait(sent.run_id)).text == "stopped: "
            assert (await control.wait(free, timeout=30)).ending is Ending.PENDING
            assert endings(await control.stop(session="s")) == [(free, "stopped")]
            await nothing_left(control)

    seeded(main)


def test_the_children_of_a_detached_child_fall_with_it() -> None:
    """What is below a detached child shares its fate, not that of the runs above."""

    async def main() -> None:
        async with open_control(lets_go("middle"), agents={"middle": to("idle"), "idle": idles}) as control:
            sent = await control.send("s", "hello")
            middle = await begun_child(control, sent.run_id)
            leaf = await begun_child(control, middle)
            await control.stop(run=sent.run_id)
            assert (await control.wait(leaf, timeout=10)).ending is Ending.PENDING
            receipt = await control.stop(session="s")
            assert endings(receipt) == [(middle, "stopped"), (leaf, "parent_ended")]
            await nothing_left(control)

    seeded(main)


def test_a_detached_child_has_the_server_s_deadline() -> None:
    """Without a timeout of its own a detached child has the server's; any other child has its parent's."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("idle", "free", detached=True)
        await run.delegate("idle", "bound")

    async def main() -> None:
        async with open_control(agent, agents=AGENTS, deadline=5) as control:
            sent = await control.send("s", "hello", deadline=2)
            free = await begun_child(control, sent.run_id)
            await control.wait(sent.run_id, drained=True)
            fallen = endings(await control.receipt(sent.run_id))
            assert [ending for _, ending in fallen] == ["timed_out", "parent_ended"]
            outcome = await control.wait(free)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 5000)

    seeded(main)


# Limits and refusals


def test_depth_is_limited() -> None:
    """A tree has so many generations; the last is told to do the work itself."""

    async def agent(run: Run, message: Message) -> str:
        try:
            return (await run.delegate("again", str(int(message.text) + 1))).text
        except Refused as refusal:
            return f"{message.text}: {refusal}"

    async def main() -> None:
        async with open_control(agent, agents={"again": agent}) as control:
            sent = await control.send("s", "0")
            text = (await control.wait(sent.run_id)).text
            assert text.startswith(f"{DEPTH}: this run is {DEPTH} generations below") and "do the work here" in text
            await nothing_left(control)

    seeded(main, range(3))


@pytest.mark.parametrize("detached", [False, True])
def test_the_number_of_children_is_limited(detached: bool) -> None:
    """So many children may be alive; one more is refused, and there is room when one ended, drained or not."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> str:
            tasks[:] = [
                asyncio.create_task(swallowed(run.delegate("deaf", "x", detached=detached))) for _ in range(CHILDREN)
            ]
            runs = control._registry.runs
            while len(runs) < CHILDREN + 1 or any(each.started_at is None for each in runs.values()):
                await anyio.sleep(0.01)
            with raises(Refused, f"{CHILDREN} children are .*wait for some to end"):
                await run.delegate("idle", "x", detached=detached)
            receipt = await control.stop(run=list(runs)[1])
            assert receipt.drain == "pending"
            return (await run.delegate("echo", "there is room", detached=detached)).outcome.ending.value

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == ("pending" if detached else "completed"), outcome.error
            await control.stop(session="s")
            await nothing_left(control)
            assert all(task.done() for task in tasks)

    tasks: list[asyncio.Task[Any]] = []
    seeded(main, range(1))


def test_wrong_values_are_refused() -> None:
    """An agent that is not there, an empty message or a wrong timeout is refused with what to do; no child is left."""

    async def agent(run: Run, message: Message) -> str:
        with raises(BadInput, "no agent 'nobody' to delegate to; .*echo, idle, deaf, mumble"):
            await run.delegate("nobody", "hello")
        for wrong in ({"timeout": -1}, {"timeout": float("nan")}):
            with raises(BadInput, "timeout"):
                await run.delegate("echo", "hello", **wrong)  # type: ignore[arg-type]
        with raises(BadInput, "message"):
            await run.delegate("echo", None)  # type: ignore[arg-type]
        with raises(BadInput, "agent"):
            await run.delegate("", "hello")
        return "ok"

    async def main() -> None:
        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            assert len(await control.runs("s", tree=True)) == 1
            assert "child" not in kinds(await log_of(control, "s"))

    seeded(main, range(2))


def test_nobody_can_send_to_a_child_s_session() -> None:
    """A child's session is its own: a message to it is refused while it lives and afterwards, and nothing changes."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            for name in (f"run:{child}", "run:anything"):
                with raises(BadInput, "belongs to that run alone; send to the session it came from"):
                    await control.send(name, "hijack")
            assert (await control.wait(child, timeout=1)).ending is Ending.PENDING
            await control.stop(session="s")
            await nothing_left(control)
            with raises(BadInput, "belongs to that run alone"):
                await control.send(f"run:{child}", "hijack")
            assert "hijack" not in repr(await log_of(control, f"run:{child}"))

    seeded(main, range(3))


def test_nobody_can_wake_a_child_s_session() -> None:
    """A schedule is a message too: it cannot be aimed at a child's session."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            with raises(BadInput, "belongs to that run alone"):
                await control.wake(f"run:{child}", "hijack", every=5)

    seeded(main, range(1))


# Rights


def test_who_may_see_and_stop_a_child() -> None:
    """The session's owner and the run's principal may see and stop a child; a stranger finds nothing."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS, strategy="queue") as control:
            first = await control.send("s", "mine", by="alice")
            await control.stop(run=first.run_id, by="alice")
            await control.share("s", with_="bob")
            for owner in ("alice", "bob"):
                sent = await control.send("s", "hello", by="bob")
                child = await begun_child(control, sent.run_id)
                assert (await control.wait(child, timeout=0, by="carol")).ending is Ending.UNKNOWN
                stopped = await control.stop(run=child, by="carol")
                assert (stopped.aborted, stopped.runs) == (False, ())
                stopped = await control.stop(session=f"run:{child}", by="carol")
                assert (stopped.aborted, stopped.runs) == (False, ())
                with raises(Unknown, "carol"):
                    await told_by(control, child, "carol")
                assert (await control.wait(child, timeout=0, by=owner)).ending is Ending.PENDING
                assert child in [run.id for run in await control.runs("s", tree=True, by=owner)]
                receipt = await control.stop(run=child, by=owner)
                assert endings(receipt) == [(child, "stopped")] and receipt.by == owner
                with raises(Unknown, "carol"):
                    await control.receipt(child, by="carol")
                assert (await control.wait(sent.run_id, by="bob")).text == "stopped: "
            await nothing_left(control)
            assert (await control.wait(child, by="alice")).ending is Ending.STOPPED
            assert (await control.wait(child, by="carol")).ending is Ending.UNKNOWN

    seeded(main, range(4))


async def told_by(control: Control, run: str, by: str) -> None:
    """Watch a run as someone until its first event."""
    async for _ in control.watch(run=run, by=by):
        return


@pytest.mark.parametrize("detached", [False, True])
def test_the_owner_s_right_does_not_wait_for_the_store(detached: bool) -> None:
    """In any instant of a child's arrival the session's owner ends it, whoever it works for (race 44)."""

    async def main() -> None:
        for number in range(0, 24, 2):
            agent = lets_go("idle") if detached else to("idle")
            async with open_control(agent, agents=AGENTS, strategy="queue") as control:
                first = await control.send("s", "mine", by="alice")
                await control.stop(session="s", by="alice")
                await control.wait(first.run_id, drained=True)
                await control.share("s", with_="bob")
                sent = await control.send("s", "hello", by="bob")
                await started(control, sent.run_id)
                await ticks(number)
                known = [
                    run.id for run in control._registry.runs.values() if run.parent and run.parent.id == sent.run_id
                ]
                receipt = await control.stop(session="s", by="alice")
                assert [run.id for run in receipt.runs] == [sent.run_id, *known]
                await nothing_left(control)

    seeded(main, range(4))


def test_a_child_s_question_is_answered_by_the_same_people() -> None:
    """The owner and the principal may answer a child's question, a stranger may not, and a fall makes it void."""

    async def asks(run: Run, message: Message) -> str:
        return "yes" if await run.ask("Deploy?") else "no"

    async def main() -> None:
        async with open_control(to("asks"), agents={"asks": asks}, strategy="queue") as control:
            first = await control.send("s", "mine", by="alice")
            await control.stop(run=first.run_id, by="alice")
            await control.share("s", with_="bob")
            for who in ("alice", "bob"):
                sent = await control.send("s", "hello", by="bob")
                child = await begun_child(control, sent.run_id)
                question = (await told(control, child, EventKind.QUESTION)).data.question_id
                with raises(Unknown, "carol"):
                    await control.answer(question, True, by="carol")
                assert (await control.answer(question, True, by=who)).by == who
                assert (await control.wait(sent.run_id)).text == "completed: yes"
            sent = await control.send("s", "hello", by="bob")
            child = await begun_child(control, sent.run_id)
            question = (await told(control, child, EventKind.QUESTION)).data.question_id
            receipt = await control.stop(run=sent.run_id, by="bob")
            assert receipt.questions == 1
            with raises(QuestionClosed, "void|over|ended"):
                await control.answer(question, True, by="bob")
            await nothing_left(control)

    seeded(main, range(4))


@pytest.mark.parametrize("work", ["asks", "works"])
def test_a_parent_is_not_idle_while_its_child_is_busy(work: str) -> None:
    """A limit on silence does not end a parent whose child is at work, or waits for a person."""

    async def asks(run: Run, message: Message) -> str:
        return "yes" if await run.ask("Deploy?") else "no"

    async def works(run: Run, message: Message) -> str:
        for _ in range(10):
            await anyio.sleep(1)
            await run.say(".")
        return "yes"

    async def main() -> None:
        async with open_control(to(work), agents={"asks": asks, "works": works}, idle_limit=3) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            if work == "asks":
                question = (await told(control, child, EventKind.QUESTION)).data.question_id
                await anyio.sleep(10)
                await control.answer(question, True)
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text[-3:]) == (Ending.COMPLETED, "yes")

    seeded(main, range(2))


# The store in trouble


@pytest.mark.parametrize("fault", ["stall", "fail"])
@pytest.mark.parametrize("detached", [False, True])
def test_a_child_the_store_does_not_take(fault: str, detached: bool) -> None:
    """The agent is told that the child was not taken; nothing of it is left, and the next try works."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            setattr(store.faults, fault, True)
            with raises(Unavailable, "send it again"):
                await run.delegate("echo", "work", detached=detached)
            store.resume()
            assert len(control._registry.runs) == 1
            return (await run.delegate("echo", "again")).text

        async with open_control(agent, agents=AGENTS, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "again", outcome.error
            assert [run.depth for run in await control.runs("s", tree=True)] == [0, 1]
            await nothing_left(control)

    seeded(main)


def test_a_child_that_never_was_is_not_told_as_running() -> None:
    """Every child the parent's stream tells of as begun is told of as over, also one the store did not take."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> None:
            store.faults.fail = True
            assert isinstance(await swallowed(run.delegate("echo", "work")), Unavailable)
            store.resume()

        async with open_control(agent, agents=AGENTS, store=store) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            told_of = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD]
            begun = {each.child for each in told_of if each.outcome is None}
            assert begun == {each.child for each in told_of if each.outcome is not None}

    seeded(main, range(1))


def test_a_child_given_up_while_it_arrives_is_told_of_in_order() -> None:
    """A child the parent's stream tells of as over was told of as begun, also one that ended while it arrived."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> None:
            task = asyncio.create_task(run.delegate("echo", "work"))
            while len(control._registry.runs) < 2:
                await asyncio.sleep(0)
            task.cancel()
            await swallowed(task)
            await anyio.sleep(1)

        async with open_control(agent, agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            told_of = [event.data for event in await log_of(control, "s") if event.kind is EventKind.CHILD]
            assert [each.outcome and each.outcome.ending.value for each in told_of] == [None, "stopped"]

    seeded(main, range(1))


@pytest.mark.parametrize("fault", ["stall", "fail", "lose"])
def test_a_store_that_fails_at_any_instant_of_a_delegation(fault: str) -> None:
    """Whenever the store fails, the agent gets a child that has ended or a retryable error, and nothing is left."""
    reached: set[str] = set()

    async def once(number: int) -> None:
        store = MemoryStore()
        began: list[str] = []

        async def worker(run: Run, message: Message) -> str:
            began.append(run.id)
            return "done"

        async def agent(run: Run, message: Message) -> str:
            task = asyncio.create_task(run.delegate("worker", "work"))
            await ticks(number)
            setattr(store.faults, fault, True)
            try:
                child = await task
                assert child.outcome.ended
                return child.outcome.ending.value
            except Unavailable:
                return "unavailable"
            finally:
                store.resume()

        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            reached.add(outcome.text)
            assert outcome.text in ("completed", "failed", "unavailable"), outcome.error
            assert len(began) <= 1
            await nothing_left(control)
            for run in await control.runs("s", tree=True):
                assert run.outcome is not None
                await told_once(control, run.id, run.session)

    async def main() -> None:
        for number in range(0, 24, 2):
            await once(number)

    seeded(main, range(4), limit_seconds=6000)
    assert "completed" in reached and (fault == "lose" or "unavailable" in reached)


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_a_stop_while_the_store_is_in_trouble_takes_the_arriving_child(fault: str) -> None:
    """Stop is not refused and takes a child that cannot be kept: it never begins (race 44)."""

    async def main() -> None:
        store, began = MemoryStore(), []

        async def worker(run: Run, message: Message) -> None:
            began.append(run.id)

        async def agent(run: Run, message: Message) -> None:
            setattr(store.faults, fault, True)
            stoppers.append(asyncio.create_task(stop_when_begun(run)))
            await run.delegate("worker", "work")

        async def stop_when_begun(run: Run) -> None:
            while len(control._registry.runs) < 2 and run.current:
                await asyncio.sleep(0)
            if run.current:
                child = list(control._registry.runs)[1]
                receipts.append((child, await control.stop(run=run.id)))

        stoppers: list[asyncio.Task[None]] = []
        receipts: list[tuple[str, Receipt]] = []
        async with open_control(agent, agents={"worker": worker}, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            await asyncio.gather(*stoppers)
            store.resume()
            await nothing_left(control)
            for child, receipt in receipts:  # none where the store refused the child before the stop came
                caught.append(fault)
                assert endings(receipt) == [(sent.run_id, "stopped"), (child, "parent_ended")]
                assert not receipt.durable and outcome.ending is Ending.STOPPED
                assert (await control.wait(child)).ending is Ending.PARENT_ENDED
                await told_once(control, child)
        assert began == []

    caught: list[str] = []
    seeded(main)
    assert caught


def test_a_takeover_keeps_the_generation_of_every_session_it_touched() -> None:
    """What a fall raised is in the store for the children's sessions too, whichever way their parent fell."""

    async def main() -> None:
        for how in ("stop", "takeover"):
            store = MemoryStore()
            async with open_control(to("idle"), agents=AGENTS, store=store) as control:
                sent = await control.send("s", "hello")
                child = await begun_child(control, sent.run_id)
                before = control._registry.generations.get(f"run:{child}")
                await (control.stop(run=sent.run_id) if how == "stop" else control.send("s", "new"))
                await control.wait(child)
                row = await store.session(f"run:{child}")
                assert row is not None and row.generation > before, how

    seeded(main, range(1))


def test_a_tie_of_two_ends_has_one_winner_in_the_whole_tree() -> None:
    """A stop of the parent and one of the child in the same instant: each run has one ending, told everywhere."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            for_child, for_parent = await at_once(control.stop(run=child), control.stop(run=sent.run_id))
            assert endings(for_child) == [(child, "stopped")]
            assert endings(for_parent) == [(sent.run_id, "stopped")]
            assert for_child.id != for_parent.id
            await told_once(control, child)
            await told_once(control, sent.run_id, "s")
            assert (await control.wait(child)).ending is Ending.STOPPED
            await nothing_left(control)

    seeded(main)
