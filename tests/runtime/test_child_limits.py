"""Limits of children and of agents: of the operator's, the parent's and the caller's, the first to pass ends a run.

The outcome says whose limit it was, on both drivers and both stores, also after a restart.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock import BadInput, Control, Ending, LimitOf, Message, Outcome, Run, Settings, open_control
from interlock.core.projection import client_words

from .families import begun_child, child_of, nothing_left
from .lives import Place
from .scene import echoes, idles, put_forward, raises, seeded, started

ROOM = "tests.contracts.agents"
BOUND_SECONDS = 60.0

Told = tuple[Ending, int | None, LimitOf | None]


def limit_of(outcome: Outcome) -> Told:
    """Return how a run ended, by which limit, and whose limit that was."""
    return outcome.ending, outcome.limit_ms, outcome.limit_of


def late(seconds: float, of: LimitOf) -> Told:
    """Return the ending, the milliseconds and the owner of a limit that ended a run."""
    return Ending.TIMED_OUT, round(seconds * 1000), of


# The shortest wins


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(
    ("children", "of_agent", "caller", "shortest"),
    [
        (3, None, None, late(3, LimitOf.OPERATOR)),
        (None, 3, None, late(3, LimitOf.AGENT)),
        (None, None, 3, late(3, LimitOf.CALLER)),
        (3, 5, 7, late(3, LimitOf.OPERATOR)),
        (5, 3, 7, late(3, LimitOf.AGENT)),
        (5, 7, 3, late(3, LimitOf.CALLER)),
        (3, 7, 0, late(3, LimitOf.OPERATOR)),
        (0, 0, 3, late(3, LimitOf.CALLER)),
    ],
)
def test_a_child_has_the_shortest_limit_of_all(
    children: float | None, of_agent: float | None, caller: float | None, shortest: Told, detached: bool
) -> None:
    """The shortest of the operator's, the agent's and the caller's limits ends a child, and the outcome says whose."""
    heard: list[Told] = []

    async def agent(run: Run, message: Message) -> None:
        child = await run.delegate("idle", "work", timeout=caller, detached=detached)
        heard.append(limit_of(child.outcome))
        await idles(run, message)

    limits = {"child_deadline": children, "agent_deadlines": {} if of_agent is None else {"idle": of_agent}}

    async def main() -> None:
        heard.clear()
        async with open_control(agent, agents={"idle": idles}, deadline=1000, **limits) as control:
            sent = await control.send("s", "hello")
            child = await child_of(control, sent.run_id)
            assert limit_of(await control.wait(child)) == shortest
            assert (await control.wait(sent.run_id, timeout=10)).ending is Ending.PENDING
            assert heard == ([(Ending.PENDING, None, None)] if detached else [shortest])
            await control.stop(session="s")
            await nothing_left(control)

    seeded(main, range(2))


def test_no_caller_lengthens_what_a_detached_child_may_take() -> None:
    """The control's deadline bounds a detached child whatever its caller asks; a message's deadline may be longer."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("idle", "work", timeout=1000, detached=True)
        await idles(run, message)

    async def main() -> None:
        async with open_control(agent, agents={"idle": idles}, deadline=5) as control:
            sent = await control.send("s", "hello", deadline=50)
            child = await begun_child(control, sent.run_id)
            assert limit_of(await control.wait(child)) == late(5, LimitOf.OPERATOR)
            assert limit_of(await control.wait(sent.run_id)) == late(50, LimitOf.CALLER)

    seeded(main, range(3))


@pytest.mark.parametrize(("children", "below"), [(3, 3), (10, 7)])
def test_every_generation_is_bounded(children: float, below: float) -> None:
    """A grandchild has the same limit, counted from its own dispatch, and falls with its parent if that falls first."""

    async def middle(run: Run, message: Message) -> None:
        await asyncio.sleep(1)
        await run.delegate("idle", "work", timeout=7)

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("middle", "work")

    async def main() -> None:
        async with open_control(agent, agents={"middle": middle, "idle": idles}, child_deadline=children) as control:
            sent = await control.send("s", "hello")
            first = await begun_child(control, sent.run_id)
            second = await begun_child(control, first)
            outcomes = [limit_of(await control.wait(run)) for run in (first, second)]
            if below < children:
                assert outcomes == [(Ending.COMPLETED, None, None), late(below, LimitOf.CALLER)]
            else:
                assert outcomes == [late(children, LimitOf.OPERATOR), (Ending.PARENT_ENDED, None, LimitOf.PARENT)]

    seeded(main, range(3))


# The parent's limit


def test_a_parent_s_limit_takes_its_children_along() -> None:
    """When a parent's limit passes first, only the parent is timed out, and every run below it ends by that limit."""

    async def middle(run: Run, message: Message) -> None:
        await run.delegate("idle", "work", timeout=100)

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("middle", "work", timeout=100)

    async def main() -> None:
        async with open_control(agent, agents={"middle": middle, "idle": idles}, child_deadline=50) as control:
            sent = await control.send("s", "hello", deadline=5)
            child = await begun_child(control, sent.run_id)
            leaf = await begun_child(control, child)
            assert limit_of(await control.wait(sent.run_id)) == late(5, LimitOf.CALLER)
            for below in (child, leaf):
                outcome = await control.wait(below)
                assert limit_of(outcome) == (Ending.PARENT_ENDED, None, LimitOf.PARENT)
                assert client_words(outcome) == "ended with its parent (its parent's limit)"
            stopped = await control.send("s", "again", deadline=5)
            child = await begun_child(control, stopped.run_id)
            await control.stop(run=stopped.run_id)
            assert limit_of(await control.wait(child)) == (Ending.PARENT_ENDED, None, None)

    seeded(main, range(3))


@pytest.mark.parametrize("stopped", [False, True], ids=["by the timers", "by a stop"])
@pytest.mark.parametrize(
    ("parents", "childs", "told"),
    [
        (50.0, 55.0, (Ending.PARENT_ENDED, None, LimitOf.PARENT)),
        (55.0, 10.0, (Ending.TIMED_OUT, 10_000, LimitOf.CALLER)),
    ],
    ids=["the parent's first", "the child's first"],
)
def test_a_late_loop_knows_which_limit_came_first(parents: float, childs: float, told: Told, stopped: bool) -> None:
    """When both limits have passed by the time control looks, the child is told as ended by the earlier one."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("idle", "work", timeout=childs)

    async def main() -> None:
        async with asyncio.timeout(1000), open_control(agent, agents={"idle": idles}) as control:
            sent = await control.send("s", "hello", deadline=parents)
            child = await begun_child(control, sent.run_id)
            put_forward(60)
            if stopped:
                await control.stop(run=sent.run_id)
            assert limit_of(await control.wait(sent.run_id)) == late(parents, LimitOf.CALLER)
            assert limit_of(await control.wait(child)) == told

    asyncio.run(main())


# An agent's limit


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, late(5, LimitOf.AGENT)),
        (0, late(5, LimitOf.AGENT)),
        (100, late(5, LimitOf.AGENT)),
        (2, late(2, LimitOf.CALLER)),
    ],
)
def test_an_agent_s_limit_bounds_the_runs_that_are_sent_to_it(asked: float | None, told: Told) -> None:
    """An agent's limit bounds every message sent to that agent alone, and no sender lengthens it."""

    async def main() -> None:
        agents: dict[str, Any] = {"slow": idles, "other": mumbling}
        async with open_control(echoes, agents=agents, agent_deadlines={"slow": 5}, deadline=50) as control:
            sent = await control.send("s", "hello", agent="slow", deadline=asked)
            assert limit_of(await control.wait(sent.run_id)) == told
            free = await control.send("t", "hello", agent="other")
            assert limit_of(await control.wait(free.run_id)) == late(50, LimitOf.OPERATOR)

    seeded(main, range(2))


async def mumbling(run: Run, message: Message) -> None:
    """Wait for ever, under another name than `idles`."""
    await idles(run, message)


def test_an_agent_s_limit_holds_where_it_is_the_one_served() -> None:
    """A limit under the served agent's own name bounds it, registered or not; a limit under another name does not."""

    async def main() -> None:
        for agents in ({}, {"idles": idles, "guest": idles}):
            limits = {name: 5.0 for name in agents or ("idles",)}
            async with open_control(idles, agents=agents, agent_deadlines=limits) as control:
                for named in (None, *agents):
                    sent = await control.send("s", "hello", agent=named, deadline=0)
                    assert limit_of(await control.wait(sent.run_id)) == late(5, LimitOf.AGENT)
        for agents in ({"guest": idles}, {"guest": idles, "idles": mumbling}):
            async with open_control(idles, agents=agents, agent_deadlines={name: 5 for name in agents}) as control:
                sent = await control.send("s", "hello", deadline=20)
                assert limit_of(await control.wait(sent.run_id)) == late(20, LimitOf.CALLER)

    seeded(main, range(2))


# Everybody is told


@pytest.mark.parametrize(
    ("driver", "store"), [("inline", "memory"), ("inline", "sqlite"), ("host", "memory"), ("host", "sqlite")]
)
def test_both_drivers_and_both_stores_tell_whose_limit_it_was(driver: str, store: str, tmp_path: Path) -> None:
    """A child's limit ends it on either driver; lists and waiters are told whose limit, after a restart too."""
    where = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'data'}"
    agents = {"child": f"{ROOM}:child", "guest": f"{ROOM}:child"}
    options: dict[str, Any] = {"agents": agents, "driver": driver, "store": where, "child_deadline": 0.3}
    options["agent_deadlines"] = {"guest": 0.2}

    async def told(control: Control, run: str, guest: str) -> None:
        [child] = [info for info in await control.runs("s", tree=True) if info.parent == run]
        assert child.outcome is not None and limit_of(child.outcome) == late(0.3, LimitOf.OPERATOR)
        assert limit_of(await control.wait(child.id)) == late(0.3, LimitOf.OPERATOR)
        assert limit_of(await control.wait(guest)) == late(0.2, LimitOf.AGENT)

    async def main() -> None:
        async with asyncio.timeout(BOUND_SECONDS), open_control(f"{ROOM}:agent", **options) as control:
            sent = await control.send("s", f"delegates_idly {tmp_path / 'notes'}")
            guest = await control.send("t", "idle", agent="guest")
            # The end of its child does not end the parent.
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            await control.wait(guest.run_id)
            await told(control, sent.run_id, guest.run_id)
        if store == "sqlite":
            async with asyncio.timeout(BOUND_SECONDS), open_control(f"{ROOM}:agent", **options) as control:
                await told(control, sent.run_id, guest.run_id)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_message_that_waited_over_a_restart_keeps_its_limit(kind: str, tmp_path: Path) -> None:
    """A message keeps the limit its sender asked for; without one it has the limit of the server that runs it."""
    place = Place(kind, tmp_path)

    async def leave(control: Control) -> dict[str, str]:
        await started(control, (await control.send("s", "first")).run_id)
        waiting = {"asked": 4, "nothing": None, "none": 0}
        return {name: (await control.send("s", name, deadline=asked)).run_id for name, asked in waiting.items()}

    async def find(control: Control) -> None:
        for name, told in {"asked": late(4, LimitOf.CALLER), "nothing": late(3, LimitOf.OPERATOR)}.items():
            await started(control, runs[name])
            put_forward(5)
            assert limit_of(await control.wait(runs[name])) == told
        await started(control, runs["none"])
        put_forward(20)
        assert (await control.wait(runs["none"], timeout=0)).ending is Ending.PENDING
        assert (await control.stop(run=runs["none"])).aborted

    runs = place.life(leave, idles, strategy="queue", deadline=1000)
    place.life(find, idles, strategy="queue", deadline=3)


# Refusals


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5", True, b"5", [5]])
def test_a_limit_that_is_none_is_refused(wrong: Any) -> None:
    """A limit that is not 0 or more seconds is refused by name, and nothing is opened."""

    async def main() -> None:
        for options in (
            {"child_deadline": wrong},
            {"agent_deadlines": {"idle": wrong}},
            {"settings": Settings(child_deadline=wrong)},
            {"settings": Settings(agent_deadlines={"idle": wrong})},
        ):
            with raises(BadInput, r"deadline.* must be 0 or more seconds from now, not .*; leave it out for none"):
                async with open_control(echoes, agents={"idle": idles}, **options):
                    raise AssertionError("it opened")

    asyncio.run(main())


def test_a_limit_of_nobody_is_refused() -> None:
    """A deadline for an agent that is not registered is refused, with the names of those that are."""

    async def main() -> None:
        with raises(BadInput, "no agent 'idel' to give a deadline; there are echoes, idle, other"):
            async with open_control(echoes, agents={"idle": idles, "other": echoes}, agent_deadlines={"idel": 5}):
                raise AssertionError("it opened")
        with raises(BadInput, "agent_deadlines= takes names of agents, each with its seconds"):
            async with open_control(echoes, agent_deadlines=5):  # type: ignore[arg-type]
                raise AssertionError("it opened")

    asyncio.run(main())
