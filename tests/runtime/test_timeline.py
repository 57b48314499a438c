"""A run's timeline and transcript: the same live, from memory and from the store, for those who may see the run."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest

from interlock import Ending, MemoryStore, Message, Moment, Run, Unknown, open_control
from interlock.core.names import PASSING, EventKind
from interlock.core.story import transcript

from .scene import (
    BRIEF,
    Sink,
    deaf,
    echoes,
    forgotten,
    harmless,
    idles,
    mumbles,
    on_screen,
    seeded,
    started,
    swallowed,
    told,
)

pytestmark = pytest.mark.usefixtures("nothing_breaks")


async def search(query: str) -> str:
    """A tool."""
    return query


async def endless() -> None:
    """A tool that never returns."""
    await asyncio.sleep(3600)


async def lives(run: Run, message: Message) -> str:
    """Do one of everything, then wait in a tool, and go on talking when cut."""
    async with run.phase("provider"):
        await run.say("hello")
    await run.call(search, query="x")
    await run.ask("Deploy?")
    await run.delegate("echoes", "work")
    await asyncio.sleep(1)
    await run.check()
    await swallowed(run.call(endless))
    await swallowed(run.say("after"))
    return "done"


def lines(moments: list[Moment]) -> list[tuple[str, str, str]]:
    """Return each moment's kind, name and state."""
    return [(moment.what, moment.name, str(moment.state)) for moment in moments]


def in_order(moments: list[Moment]) -> bool:
    """Whether the moments are in the order of time."""
    return [moment.at for moment in moments] == sorted(moment.at for moment in moments)


BEGUN = [
    ("admitted", "alice", ""),
    ("started", "", ""),
    ("phase", "provider", ""),
    ("phase", "", "left"),
    ("output", "", "said"),
    ("tool", "search", "pending"),
    ("tool", "search", "running"),
    ("tool", "search", "finished"),
    ("question", "Deploy?", "open"),
    ("question", "Deploy?", "answered"),
    ("child", "echoes", "begun"),
    ("child", "echoes", "completed"),
    ("joined", "alice", ""),
    ("tool", "endless", "pending"),
    ("tool", "endless", "running"),
]
FALLEN = [
    ("fell", "alice", "stopped"),
    ("tool", "endless", "interrupted"),
    ("refused", "delta", ""),
    ("refused", "final", ""),
    ("ended", "", "stopped"),
    ("drained", "", "observed"),
]


def test_a_whole_life() -> None:
    """The timeline tells all in the order of time, while the run goes on, after its end, and from the store."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(lives, agents={"echoes": echoes}, store=store) as control:
            sent = await control.send("s", "work", by="alice")
            question = await told(control, sent.run_id, EventKind.QUESTION)
            await control.answer(question.data.question_id, True, by="alice")
            await told(control, sent.run_id, EventKind.CHILD)
            await control.send("s", "more", by="alice", strategy="steer")
            while lines(await control.timeline(sent.run_id))[-1] != BEGUN[-1]:
                await asyncio.sleep(0.1)
            running = await control.timeline(sent.run_id, by="alice")
            assert lines(running) == BEGUN and in_order(running)
            await control.stop(session="s", by="alice")
            await control.wait(sent.run_id, drained=True)
            live = await control.timeline(sent.run_id, by="alice")
            assert lines(live) == BEGUN + FALLEN and in_order(live)
            assert [moment.count for moment in live if moment.what == "refused"] == [1, 1]
            await forgotten(control)
            assert await control.timeline(sent.run_id, by="alice") == live
        async with open_control(lives, store=store) as control:
            assert await control.timeline(sent.run_id, by="alice") == live

    seeded(main)


def test_a_question_that_went_void() -> None:
    """A question that went void is named by the same words as when it was asked."""

    async def agent(run: Run, message: Message) -> None:
        await run.ask("Deploy?")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.QUESTION)
            await control.stop(run=sent.run_id)
            asked = [line for line in lines(await control.timeline(sent.run_id)) if line[0] == "question"]
            assert asked == [("question", "Deploy?", "open"), ("question", "Deploy?", "void")]

    seeded(main, range(3))


def test_a_run_that_waited_and_never_began() -> None:
    """A queued message that was stopped has a short life of its own; what the other run tried is not in it."""

    async def agent(run: Run, message: Message) -> None:
        await run.say("before")
        await swallowed(anyio.sleep_forever())
        await swallowed(run.say("after"))

    async def main() -> None:
        async with open_control(agent, strategy="queue") as control:
            first, second = await control.send("s", "one"), await control.send("s", "two")
            await told(control, first.run_id, EventKind.DELTA)
            await control.stop(session="s")
            await control.wait(first.run_id, drained=True)
            for again in (False, True):
                moments = await control.timeline(second.run_id)
                assert [moment.what for moment in moments] == ["admitted", "fell", "ended", "drained"]
                assert ("refused", "delta", "") in lines(await control.timeline(first.run_id))
                if not again:
                    await forgotten(control)

    seeded(main, range(3))


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED, Ending.TIMED_OUT, Ending.SUPERSEDED])
def test_every_ending_has_its_line(ending: Ending) -> None:
    """A run fell, ended and drained, in this order, however it ends."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "fail":
            raise RuntimeError("broken")
        if message.text == "wait":
            await anyio.sleep_forever()
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            text = {Ending.COMPLETED: "go", Ending.FAILED: "fail"}.get(ending, "wait")
            sent = await control.send("s", text, deadline=5 if ending is Ending.TIMED_OUT else None)
            await started(control, sent.run_id)
            if ending is Ending.SUPERSEDED:
                await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            moments = await control.timeline(sent.run_id)
            last = [(what, state) for what, _, state in lines(moments)][-3:]
            assert last == [("fell", ending.value), ("ended", ending.value), ("drained", "observed")]
            assert in_order(moments)

    seeded(main, range(3))


def test_a_body_that_was_given_up() -> None:
    """Between the end and the drain the drain is not told yet; then it says when, and how sure it is."""

    async def main() -> None:
        async with open_control(deaf) as control:
            sent = await control.send("s", "work")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            assert [moment.what for moment in await control.timeline(sent.run_id)][-1] == "ended"
            await control.wait(sent.run_id, drained=True)
            moments = await control.timeline(sent.run_id)
            receipt = await control.receipt(sent.run_id)
            assert lines(moments)[-1] == ("drained", "", receipt.drain) and moments[-1].at == receipt.drained_at
            assert moments[-1].at - moments[-2].at > 1

    seeded(main, range(3))


def test_who_may_see_it() -> None:
    """Only those who may see the run see its timeline; to others there is no such run, live or stored."""

    async def main() -> None:
        async with open_control(mumbles, admins=["root"], readers=["rita"]) as control:
            await control.send("s", "owner's", by="alice")
            await control.share("s", with_="bob")
            sent = await control.send("s", "bob's", by="bob")
            await control.stop(session="s", by="alice")
            for again in (False, True):
                seen = [await control.timeline(sent.run_id, by=by) for by in ("alice", "bob", "root", "rita", "local")]
                assert all(len(each) >= 3 for each in seen)
                assert {line for line in lines(seen[1]) if line[0] != "refused"} == set(lines(seen[0]))
                with pytest.raises(Unknown):
                    await control.timeline(sent.run_id, by="carol")
                if not again:
                    await forgotten(control)
            with pytest.raises(Unknown):
                await control.timeline("r-9-9")

    seeded(main, range(3))


def test_a_run_of_many_events() -> None:
    """A long log is read to its end."""

    async def agent(run: Run, message: Message) -> str:
        for n in range(300):
            async with run.phase(f"phase {n}"):
                await run.post("x")
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await control.wait(sent.run_id, drained=True)
            moments = await control.timeline(sent.run_id)
            assert [moment.what for moment in moments].count("phase") == 600
            assert moments[-1].what == "drained"

    seeded(main, range(1))


def test_a_timeline_after_a_reset() -> None:
    """A reset begins a fresh transcript; what happened before can still be looked at."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "work")
            await started(control, sent.run_id)
            await control.reset("s")
            await forgotten(control)
            whats = [moment.what for moment in await control.timeline(sent.run_id)]
            assert whats == ["admitted", "started", "fell", "ended", "drained"]

    seeded(main, range(3))


SAYS: dict[str, Callable[[Run], Awaitable[object]]] = {
    "delta": lambda run: run.say("d "),
    "block": lambda run: run.post("block"),
    "tool": lambda run: run.call(harmless),
    "phase": lambda run: run.typing(),
}


def test_the_rebuilt_story_is_the_live_one() -> None:
    """For every prefix of the log the transcript is the same without deltas, and the text shown is told (race 126)."""

    async def agent(run: Run, message: Message) -> str | None:
        random = Random(message.text)
        for _ in range(random.randrange(12)):
            await SAYS[random.choice(list(SAYS))](run)
        if random.random() < 0.3:
            await asyncio.sleep(3600)
        return random.choice((None, "reply"))

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            for n in range(4):
                sent = await control.send("s", f"{seed} {n}")
                await asyncio.sleep(Random(seed + n).choice((0.0, 0.0003, 0.01)))
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            live = sink.events
            for length in range(len(live) + 1):
                kept = [event for event in live[:length] if event.kind not in PASSING]
                assert transcript(kept) == transcript(live[:length])
            assert await control.history("s") == transcript(live)
            for run in {event.run_id for event in live if event.run_id}:
                assert on_screen(sink.of(run)) == (await control.wait(run)).text

    for seed in range(20):
        seeded(main, (seed,))
