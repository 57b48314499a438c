"""Detached children belong to the session: each outlives its parent run and ends with the session or with control."""

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, Run, RunInfo, open_control
from interlock.core.names import RunKind

from .families import AGENTS, begun_child, child_of, endings, lets_go, nothing_left, ticks, to, told_once
from .scene import idles, seeded

ENDS = ["takeover", "stop", "deadline", "completion"]


def lines_of(runs: list[RunInfo]) -> list[tuple[str, str | None, int, bool]]:
    return [(run.id, run.parent, run.depth, run.detached) for run in runs]


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
    """A stop of the session, a reset and a close end detached children, whether or not their parent still lives."""

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
    """A stop, a reset or a close of the session ends a detached child at any instant of its arrival (race 44)."""

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
                # A waiting announcement is left for the next start.
                if row.kind is RunKind.ANNOUNCE and how == "close":
                    continue
                assert row.outcome is not None, (row.id, sent.run_id)
                assert row.outcome.ending in (Ending.STOPPED, Ending.SHUTDOWN)

    seeded(main, range(4))


def test_a_detached_child_never_outlives_the_control() -> None:
    """A detached child ends with control even if the server's strategy is `collect`."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(lets_go("idle"), agents=AGENTS, store=store, strategy="collect") as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
        row = await store.run(child)
        assert row is not None and row.outcome is not None and row.outcome.ending is Ending.SHUTDOWN

    seeded(main, range(4))


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
            assert lines_of(live) == tree
            assert [run.agent for run in live] == [None, "middle", "idle", "idle"]
            assert [run.id for run in await control.runs("s")] == [sent.run_id]
            await control.stop(run=sent.run_id)
            await anyio.sleep(30)
            assert list(control._registry.runs) == [free]
            assert set(lines_of(await control.runs("s", tree=True))) == set(tree)
            await control.stop(session="s")
            await nothing_left(control)
            after = await control.runs("s", tree=True)
            assert lines_of(after) == tree
            assert [run.outcome and run.outcome.ending.value for run in after] == [
                "stopped",
                "parent_ended",
                "stopped",
                "parent_ended",
            ]

    seeded(main)


def test_a_detached_grandchild_belongs_to_the_top_session() -> None:
    """A detached grandchild outlives its parent and the stop of the parent's session, and ends with its home."""

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
    """The children of a detached child fall with it, and not with the runs above it."""

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
    """A detached child without a timeout of its own has the server's deadline; any other child has its parent's."""

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
