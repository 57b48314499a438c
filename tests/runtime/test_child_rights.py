"""Limits and rights of children: how deep, how many, and who may see, stop, answer or send to one."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import BadInput, Control, Ending, Message, QuestionClosed, Refused, Run, Unknown, open_control
from interlock.core.names import EventKind
from interlock.runtime.settings import CHILDREN, DEPTH

from .families import AGENTS, begun_child, endings, lets_go, nothing_left, ticks, to
from .scene import kinds, log_of, raises, seeded, started, swallowed, told


async def told_by(control: Control, run: str, by: str) -> None:
    """Watch a run as this principal until its first event."""
    async for _ in control.watch(run=run, by=by):
        return


def test_depth_is_limited() -> None:
    """A run DEPTH generations down may not delegate, and is told to do the work itself."""

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
    """A child beyond CHILDREN is refused, and there is room again when another has ended, drained or not."""

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
    """An unknown agent, an empty message and a wrong timeout are refused with the remedy, and no child is left."""

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
    """A message to a child's session is refused while the child lives and afterwards, and changes nothing."""

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
    """A schedule cannot be made for a child's session, since a wake is a message too."""

    async def main() -> None:
        async with open_control(to("idle"), agents=AGENTS) as control:
            sent = await control.send("s", "hello")
            child = await begun_child(control, sent.run_id)
            with raises(BadInput, "belongs to that run alone"):
                await control.wake(f"run:{child}", "hijack", every=5)

    seeded(main, range(1))


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


@pytest.mark.parametrize("detached", [False, True])
def test_the_owner_s_right_does_not_wait_for_the_store(detached: bool) -> None:
    """The session's owner can end a child at any instant of its arrival, whatever its principal (race 44)."""

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
                    run.id
                    for run in control._registry.runs.values()
                    if run.ties.parent and run.ties.parent.id == sent.run_id
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
    """An idle limit does not end a parent whose child is at work or waits for a person."""

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
