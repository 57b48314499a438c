"""Rollback: the turn before is hidden, and the next turn is told which tools it had started."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import pytest

from interlock import Control, Ending, MemoryStore, Message, Outcome, Run, open_control, tool
from interlock.core.names import EventKind
from interlock.testing.loop import Mode

from .scene import QUICK, answers, echoes, log_of, mumbles, seeded, started, told
from .test_steer import Listener, taken_in

pytestmark = pytest.mark.usefixtures("nothing_breaks")


def test_a_rollback_names_what_its_children_began() -> None:
    """A hidden turn names each tool that began in it or in its children once, and not more than a hundred."""

    async def deploy() -> None:
        """A tool."""

    async def wipe() -> None:
        """A tool."""

    async def burn() -> None:
        """A tool."""

    def numbered(n: int) -> Callable[[], Awaitable[str]]:
        async def each() -> str:
            return "done"

        return tool(name=f"tool{n}")(each)

    many = [numbered(n) for n in range(120)]

    async def child(run: Run, message: Message) -> None:
        if message.text == "stay":
            await run.call(burn)
            await asyncio.sleep(3600)
        await run.call(wipe)

    async def main() -> None:
        told: list[tuple[str, ...]] = []

        async def agent(run: Run, message: Message) -> None:
            told.append(() if message.previous is None else message.previous.tools)
            if message.text == "many":
                for each in many:
                    await run.call(each)
                await asyncio.sleep(3600)
            if message.text in ("go", "again"):
                await run.call(deploy)
                await run.delegate("child", "x")
                if message.text == "go":
                    await run.delegate("child", "stay")
                await asyncio.sleep(3600)

        async with open_control(agent, agents={"child": child}) as control:
            for text in ("go", "again", "again", "many"):
                await control.send("s", text, strategy="rollback")
                await asyncio.sleep(1)
            assert [sorted(each) for each in told] == [[], *[["burn", "deploy", "wipe"]] * 3]
            last = await control.send("s", "last", strategy="rollback")
            await control.wait(last.run_id)
            assert len(told[-1]) == len(set(told[-1])) == 100

    seeded(main, limit_seconds=5000)


def test_a_rollback_over_a_passed_deadline_still_hides() -> None:
    """A turn that is rolled back when its time is up ends as timed out, and is hidden all the same."""
    seen: set[Ending] = set()

    async def main(turns: int) -> None:
        async with open_control(answers, settings=QUICK) as control:
            first = await control.send("s", "wait", deadline=0.02)
            for _ in range(turns):
                await asyncio.sleep(0)
            second = await control.send("s", "two", strategy="rollback")
            outcome = await control.wait(first.run_id)
            if second.superseded == first.run_id:
                # Otherwise the first run had timed out before.
                seen.add(outcome.ending)
                assert outcome.hidden
                entries = await control.history("s")
                assert {entry.run_id for entry in entries if entry.hidden} == {first.run_id}

    for turns in range(40):
        # Every step takes its time, so timers come late.
        seeded(partial(main, turns), (0,), charge=1e-3, mode=Mode.FIFO)
    assert Ending.TIMED_OUT in seen, "the schedules should have covered it"


async def lookup(what: str) -> str:
    """A tool."""
    return f"found {what}"


async def endless() -> None:
    """A tool that never returns."""
    await asyncio.sleep(3600)


class Doer:
    """An agent that calls tools by what it is told: `do` one that returns, `hang` one that does not."""

    def __init__(self) -> None:
        self.previous: dict[str, Outcome | None] = {}
        self.history: dict[str, list[tuple[str, str]]] = {}

    async def __call__(self, run: Run, message: Message) -> str:
        self.previous[message.text] = message.previous
        self.history[message.text] = [(entry.role, entry.text) for entry in await run.history()]
        if message.text.startswith("do"):
            await run.call(lookup, what="it")
            await run.say("so far")
            await asyncio.sleep(3600)
        if message.text.startswith("hang"):
            await run.call(endless)
        return "done"


async def tool_of(control: Control, run: str, state: str) -> None:
    """Wait until a tool call of a run stands so."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if event.kind is EventKind.TOOL and event.data.state == state:
                return


def test_a_rollback_hides_the_turn() -> None:
    """The old run ends superseded and hidden: gone from the model's context, marked for people, whole in the log."""

    async def main() -> None:
        agent = Doer()
        async with open_control(agent) as control:
            kept = await control.send("s", "hello")
            await control.wait(kept.run_id)
            old = await control.send("s", "do it")
            await told(control, old.run_id, EventKind.DELTA)
            log = await log_of(control, "s")
            new = await control.send("s", "rather this", strategy="rollback")
            assert new.superseded == old.run_id
            outcome = await control.wait(old.run_id)
            assert (outcome.ending, outcome.hidden, outcome.superseded_by) == (Ending.SUPERSEDED, True, new.run_id)
            assert outcome.text == "so far" and outcome.tools == ("lookup",)
            await control.wait(new.run_id)
            assert agent.history["rather this"] == [
                ("user", "hello"),
                ("assistant", "done"),
                ("user", "rather this"),
            ]
            entries = await control.history("s")
            assert {entry.run_id for entry in entries if entry.hidden} == {old.run_id}
            assert [entry.role for entry in entries if entry.hidden] == ["user", "call", "result", "assistant"]
            after = await log_of(control, "s")
            lasting = [event for event in log if event.kind is not EventKind.DELTA]
            assert [event for event in after if event in lasting] == lasting

    seeded(main)


def test_started_tools_are_named_to_the_next_turn() -> None:
    """The next turn is told which tools began in hidden turns, over a chain of rollbacks too: their effects remain."""

    async def main() -> None:
        agent = Doer()
        async with open_control(agent, strategy="rollback") as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            second = await control.send("s", "hang on")
            await tool_of(control, second.run_id, "running")
            third = await control.send("s", "fine")
            await control.wait(third.run_id)
            fourth = await control.send("s", "next")
            await control.wait(fourth.run_id)
            told_of = {text: outcome and (outcome.hidden, outcome.tools) for text, outcome in agent.previous.items()}
            assert told_of == {
                "do it": None,
                "hang on": (True, ("lookup",)),
                "fine": (True, ("lookup", "endless")),
                "next": (False, ()),
            }

    seeded(main)


@pytest.mark.parametrize("between", ["rollback", "interrupt", "stop"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_started_tools_are_named_to_the_first_turn_that_begins(between: str, count: int) -> None:
    """The first turn that begins is told of the tools; turns that never began were told nothing."""

    async def main() -> None:
        agent = Doer()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            # Slow enough that hardly any run begins before the next message comes.
            store.latency_seconds = 0.05
            rolling = await control.send("s", "rolls back", strategy="rollback")
            assert rolling.superseded == first.run_id
            for _ in range(count):
                if between == "stop":
                    await control.stop(session="s")
                await control.send("s", "in vain", strategy=between if between != "stop" else None)
            store.latency_seconds = 0.0
            last = await control.send("s", "last")
            await control.wait(last.run_id)
            begun = next(text for text in agent.previous if text != "do it")
            previous = agent.previous[begun]
            assert previous is not None and previous.tools == ("lookup",)

    seeded(main)


def test_started_tools_are_named_after_a_restart() -> None:
    """The next control knows of the hidden turn's tools, and hides the turn."""

    async def main() -> None:
        store, agent = MemoryStore(), Doer()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            store.latency_seconds = 0.05
            sending = asyncio.create_task(control.send("s", "rolls back", key="k", strategy="rollback"))
            while control.is_current(first.run_id):
                await asyncio.sleep(0)
            await control.stop(message="k")
            await sending
            assert "rolls back" not in agent.previous
            store.latency_seconds = 0.0
        async with open_control(agent, store=store) as control:
            third = await control.send("s", "hello")
            await control.wait(third.run_id)
            previous = agent.previous["hello"]
            assert previous is not None and previous.tools == ("lookup",)
            assert ("user", "do it") not in agent.history["hello"]

    seeded(main, range(4))


def test_a_rollback_hides_what_was_steered_in() -> None:
    """A message that the hidden turn absorbed is hidden with it."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            await taken_in(agent, control, "more")
            new = await control.send("s", "again", strategy="rollback")
            await control.wait(new.run_id)
            shown = [(entry.text, entry.hidden) for entry in await control.history("s") if entry.role == "user"]
            assert shown == [("work", True), ("more", True), ("again", False)]

    seeded(main)


def test_a_rollback_of_an_idle_session_is_a_message() -> None:
    """A rollback in an idle session is a plain message: a turn that has ended is not undone."""

    async def main() -> None:
        async with open_control(echoes, strategy="rollback") as control:
            first = await control.send("s", "one")
            await control.wait(first.run_id)
            second = await control.send("s", "two")
            assert (second.state, second.superseded) == ("seated", None)
            await control.wait(second.run_id)
            assert not any(entry.hidden for entry in await control.history("s"))
            assert not (await control.wait(first.run_id)).hidden

    seeded(main)


def test_without_the_right_to_stop_a_rollback_queues() -> None:
    """A rollback by a stranger, who may not stop the run, queues and hides nothing."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            first = await control.send("s", "one", by="alice")
            await started(control, first.run_id)
            await control.share("s", with_="bob")
            second = await control.send("s", "two", by="bob", strategy="rollback")
            assert (second.state, second.superseded) == ("queued", None)
            await control.stop(run=first.run_id, by="alice")
            outcome = await control.wait(first.run_id)
            assert (outcome.ending, outcome.hidden) == (Ending.STOPPED, False)
            await started(control, second.run_id)

    seeded(main)
