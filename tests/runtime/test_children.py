"""Child runs fall with their parent, and their endings are told once, truly and at once."""

import asyncio

import anyio
import pytest

from interlock import (
    Child,
    Ending,
    MemoryStore,
    Message,
    Run,
    Stale,
    Strategy,
    open_control,
)
from interlock.core.names import EventKind
from interlock.testing.loop import Mode

from .families import AGENTS, begun_child, child_of, endings, nothing_left, ticks, to, told_once
from .scene import idles, kinds, log_of, seeded, started, swallowed

# A child's work and its result


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
    """A child that fails makes `delegate` return its outcome and raise nothing, and the parent goes on."""

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
    """Two children in parallel tasks have endings of their own; a stop of one leaves the other."""

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
    """The parent's stream tells of a child when it begins and when it ends, in the same words as everywhere else."""

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
    """A child is alone in its session, so no strategy of the server makes it wait or rejects it."""

    async def main() -> None:
        async with open_control(to("echo"), agents=AGENTS, strategy=strategy) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            began = asyncio.get_running_loop().time()
            assert (await control.wait(sent.run_id)).text == "completed: hello"
            assert asyncio.get_running_loop().time() - began < 0.3

    seeded(main, range(3))


# A child falls with its parent


def test_a_parent_that_falls_while_its_child_arrives() -> None:
    """An arriving child falls with its parent whenever the stop comes, and none begins later (races 44 and 45)."""
    reached: set[str] = set()

    async def once(number: int) -> None:
        late: list[str] = []

        async def worker(run: Run, message: Message) -> None:
            if control._registry.runs[run.id].ties.parent.fallen:
                late.append(run.id)
            await idles(run, message)

        async with open_control(to("worker"), agents={"worker": worker}) as control:
            sent = await control.send("s", "hello")
            await ticks(number)
            known = [run.id for run in control._registry.runs.values() if run.ties.parent is not None]
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
    # Some children ended before their body began, others after.
    assert reached == {"none", "cut"}


@pytest.mark.parametrize("how", ["session", "takeover", "deadline", "shutdown"])
def test_every_way_to_fall_takes_the_arriving_child(how: str) -> None:
    """A takeover, a deadline or a shutdown ends a child at any instant of its arrival, as a stop does (race 44)."""

    async def once(number: int) -> None:
        store = MemoryStore()
        late: list[str] = []

        async def agent(run: Run, message: Message) -> None:
            await (idles(run, message) if message.text == "new" else to("worker")(run, message))

        async def worker(run: Run, message: Message) -> None:
            if control._registry.runs[run.id].ties.parent.fallen:
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
    """A parent that swallowed its end and delegates is refused and counted, and no child begins (race 44)."""
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


async def fails(run: Run, message: Message) -> None:
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
            return "done" if how == "completion" else await fails(run, message)

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
    """The parent's terminal event is its last, and names the children that ended with it."""

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
    """A stop of one run ends that run's children, and none of another session's or of an earlier turn's (race 45)."""

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
    """A stop of a child ends the runs below it too; its parent is told at once and goes on."""

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
