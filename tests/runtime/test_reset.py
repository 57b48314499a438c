"""Reset: everything of a session ends, a fresh transcript begins, and no message right after it is lost."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from interlock import (
    Control,
    Ending,
    Event,
    MemoryStore,
    Message,
    Outcome,
    Run,
    Sent,
    Settings,
    Unavailable,
    Unknown,
    open_control,
)
from interlock.core.names import EventKind, SessionId
from interlock.core.verbs import Reset, Send
from interlock.stores.sqlite import SqliteStore

from .scene import QUICK, answers, at_once, echoes, forgotten, idles, log_of, now, seeded, started, told

pytestmark = pytest.mark.usefixtures("nothing_breaks")

COMMIT_SECONDS = 0.5
SLACK = 0.1


class Memory:
    """An agent that answers, and writes down which earlier conversation it was told of."""

    def __init__(self) -> None:
        self.history: dict[str, list[str]] = {}
        self.previous: dict[str, Outcome | None] = {}

    async def __call__(self, run: Run, message: Message) -> str:
        self.previous[message.text] = message.previous
        self.history[message.text] = [entry.text for entry in await run.history()]
        if message.text == "long":
            await run.say("so far")
            await anyio.sleep_forever()
        return "done"

    def fresh(self, text: str) -> bool:
        """Whether a message was given a fresh transcript."""
        return self.previous[text] is None and self.history[text] == [text]


async def said(control: Control, text: str, session: str = "s") -> Sent:
    """Send a message and wait for its answer."""
    sent = await control.send(session, text)
    await control.wait(sent.run_id, drained=True)
    return sent


async def replay(control: Control, session: str, last: EventKind, count: int) -> list[Event]:
    """Watch a session from the beginning until so many events of a kind."""
    seen: list[Event] = []
    async with aclosing(control.watch(session)) as events:
        async for event in events:
            seen.append(event)
            if sum(each.kind is last for each in seen) == count:
                return seen
    raise AssertionError("the watch ended")


@pytest.mark.parametrize("where", ["running", "idle", "absent"])
def test_a_fresh_transcript_begins(where: str) -> None:
    """History and the next turn know nothing of before; a watcher is still told the whole log."""

    async def main() -> None:
        agent = Memory()
        async with open_control(agent) as control:
            await said(control, "before")
            if where == "running":
                long = await control.send("s", "long")
                await told(control, long.run_id, EventKind.DELTA)
            if where == "absent":
                await forgotten(control)
            before = await log_of(control, "s")
            receipt = await control.reset("s")
            assert receipt.durable and receipt.session == "s"
            assert receipt.aborted is (where == "running")
            assert await control.history("s") == []
            sent = await said(control, "after")
            assert agent.fresh("after")
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]
            second = await said(control, "and after")
            assert agent.history["and after"] == ["after", "done", "and after"]
            previous = agent.previous["and after"]
            assert previous is not None and previous.run_id == sent.run_id
            watched = await replay(control, "s", EventKind.ENDED, 4 if where == "running" else 3)
            assert [event.data.text for event in watched if event.kind is EventKind.MESSAGE] == [
                "before",
                *(["long"] if where == "running" else []),
                "after",
                "and after",
            ]
            lasting = [event for event in before if event.kind is not EventKind.DELTA]
            assert [event for event in watched if event in lasting] == lasting
            assert watched[-1].run_id == second.run_id

    seeded(main)


@pytest.mark.parametrize("where", ["running", "idle", "absent"])
def test_the_generation_goes_on_rising(where: str) -> None:
    """A reset gives no number twice, and raises the generation like any end or stop."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(Memory(), store=store) as control:
            await said(control, "before")
            if where == "running":
                long = await control.send("s", "long")
                await told(control, long.run_id, EventKind.DELTA)
            if where == "absent":
                await forgotten(control)
            before = await store.session("s")
            await control.reset("s")
            after = await store.session("s")
            assert before is not None and after is not None and after.generation > before.generation
            sent = await control.send("s", "after")
            assert sent.generation is not None and sent.generation > after.generation
            positions = [event.position for event in await log_of(control, "s")]
            assert positions == sorted(set(positions))

    seeded(main)


def test_everything_of_the_session_ends() -> None:
    """Seat, queue, steered, collected, children and detached children fall together, and nobody else's session."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("idles", "detached", detached=True)
        await run.delegate("idles", "child")

    async def main() -> None:
        settings = Settings(collect_seconds=60)
        async with open_control(agent, agents={"idles": idles}, settings=settings) as control:
            other = await control.send("other", "mine")
            seat = await control.send("s", "seat")
            await started(control, seat.run_id)
            while len([info for info in await control.runs("s", tree=True) if info.state == "started"]) < 3:
                await anyio.sleep(0.1)
            waiting = [await control.send("s", "x", strategy=each) for each in ("queue", "steer", "collect")]
            merged = await control.send("s", "y", strategy="collect")
            assert merged.run_id == waiting[2].run_id
            children = [info.id for info in await control.runs("s", tree=True) if info.parent == seat.run_id]
            assert len(children) == 2
            receipt = await control.reset("s")
            mine = [seat.run_id, *(each.run_id for each in waiting), *children]
            assert sorted(run.id for run in receipt.runs) == sorted(mine)
            outcomes = {run: (await control.wait(run, drained=True)).ending for run in mine}
            attached = [run.id for run in receipt.runs if run.outcome.ending is Ending.PARENT_ENDED]
            assert len(attached) == 1 and attached[0] in children
            assert all(ending is Ending.STOPPED for run, ending in outcomes.items() if run not in attached)
            assert (await control.wait(other.run_id, timeout=1)).ending is Ending.PENDING
            while "s" in control._registry.sessions:
                await anyio.sleep(1)
            assert [info.session for info in await control.runs() if info.session == "s"] == []

    seeded(main)


def test_arrivals_end_too() -> None:
    """A message that is not decided on yet when the reset comes is stopped, and its sender told."""

    async def main() -> None:
        store, agent = MemoryStore(), Memory()
        async with open_control(agent, store=store) as control:
            await said(control, "before")
            store.latency_seconds = 0.05
            first, second, receipt = await at_once(
                control.send("s", "first"), control.send("s", "second", strategy="queue"), control.reset("s")
            )
            assert {first.run_id, second.run_id} == {run.id for run in receipt.runs}
            for each in (first, second):
                assert (await control.wait(each.run_id)).ending is Ending.STOPPED
            await anyio.sleep(5)
            assert list(agent.previous) == ["before"]

    seeded(main)


def test_nobody_resets_what_is_not_theirs() -> None:
    """The owner and admins may reset; to others, and where there is none, there is no such session."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, admins=["root"], readers=["rita"]) as control:
            for by in ("alice", "root", "local"):
                await control.send("s", "mine", by="alice")
                assert (await control.reset("s", by=by)).by == by
            sent = await control.send("s", "mine", by="alice")
            await control.share("s", with_="bob")
            await control.send("s", "bob's", by="bob")
            await started(control, sent.run_id)
            for by in ("bob", "rita", "stranger"):
                with pytest.raises(Unknown):
                    await control.reset("s", by=by)
            with pytest.raises(Unknown):
                await control.reset("nowhere")
            assert "nowhere" not in control._registry.sessions
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            await control.stop(session="s")
            await forgotten(control)
            row = await store.session("s")
            for by in ("bob", "rita", "stranger"):
                with pytest.raises(Unknown):
                    await control.reset("s", by=by)
            assert await store.session("s") == row

    seeded(main, range(4))


def test_the_owner_ends_what_others_sent() -> None:
    """A reset ends the whole session, whoever sent its messages; the session stays its owner's."""

    async def main() -> None:
        async with open_control(idles) as control:
            mine = await control.send("s", "mine", by="alice")
            await control.share("s", with_="bob")
            bobs = await control.send("s", "bob's", by="bob")
            await control.reset("s", by="alice")
            for each in (mine, bobs):
                outcome = await control.wait(each.run_id)
                assert (outcome.ending, outcome.by) == (Ending.STOPPED, "alice")
            await control.send("s", "bob's again", by="bob")
            with pytest.raises(Unknown):
                await control.reset("s", by="bob")
            assert len(await control.runs("s", by="alice")) == 3

    seeded(main, range(4))


@pytest.mark.parametrize("where", ["running", "idle", "absent"])
@pytest.mark.parametrize("latency", [0.0, 0.02])
def test_a_message_right_behind_a_reset(where: str, latency: float) -> None:
    """A message right after a reset belongs to the fresh transcript and is not lost, however close it follows."""

    async def main() -> None:
        store, agent = MemoryStore(), Memory()
        async with open_control(agent, store=store) as control:
            await said(control, "before")
            if where == "running":
                long = await control.send("s", "long")
                await told(control, long.run_id, EventKind.DELTA)
            if where == "absent":
                await forgotten(control)
            store.latency_seconds = latency
            _, sent = await at_once(control.reset("s"), control.send("s", "after"))
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "done")
            assert agent.fresh("after")
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]
            await forgotten(control)
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]

    seeded(main, range(12))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_reset_right_behind_the_first_message(key: str | None, steps: int) -> None:
    """A reset that finds no session yet says so, and ends the caller's message that would found it; no stranger's."""

    async def main() -> None:
        agent, store = Memory(), MemoryStore(latency_seconds=0.02)
        async with open_control(agent, store=store) as control:
            sent = [control.ask(Send(session=name, text=name)) for name in ("s", "t")]
            for _ in range(steps):
                await asyncio.sleep(0.001)
            resets = [
                control.ask(Reset(session="s", key=key)),
                control.ask(Reset(session="t", key=key), by="bob"),
            ]
            after = control.ask(Send(session="s", text="after"))
            for resetting in resets:
                with pytest.raises(Unknown):
                    await resetting
            endings = [(await control.wait((await each).run_id)).ending for each in (*sent, after)]
            assert endings == [Ending.STOPPED, Ending.COMPLETED, Ending.COMPLETED]
            assert set(agent.previous) == {"t", "after"}

    seeded(main, range(8))


@pytest.mark.parametrize("key", [None, "k"])
def test_a_message_right_behind_a_reset_of_a_stored_session(key: str | None, tmp_path: Path) -> None:
    """A reset that must read its session ends what had arrived before it, and spares the message right behind it."""

    async def main() -> None:
        agent = Memory()
        async with open_control(agent, store=SqliteStore(tmp_path)) as control:
            await said(control, "before")
            await forgotten(control)
            earlier = control.ask(Send(session="s", text="long"))
            resetting = control.ask(Reset(session="s", key=key))
            later = control.ask(Send(session="s", text="after"))
            assert (await control.wait((await earlier).run_id)).ending is Ending.STOPPED
            assert (await control.wait((await later).run_id)).ending is Ending.COMPLETED
            assert (await resetting).aborted
            assert agent.fresh("after")
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]

    asyncio.run(main())


def test_a_reset_that_nobody_waits_for() -> None:
    """A reset of a session that is not in memory counts although its answer is never awaited."""

    async def main() -> None:
        async with open_control(Memory()) as control:
            await said(control, "before")
            await forgotten(control)
            control.ask(Reset(session="s"))
            await asyncio.sleep(0.01)
            await forgotten(control)
            assert await control.history("s") == []

    seeded(main)


@pytest.mark.parametrize("store", [MemoryStore, SqliteStore])
def test_a_child_s_session_is_reset_by_itself(store: Any, tmp_path: Path) -> None:
    """A child's events count with its home; a reset of its session, not in memory, begins after them all the same."""

    async def delegates(run: Run, message: Message) -> Any:
        return await run.delegate("kid", message.text)

    async def main() -> None:
        place = store() if store is MemoryStore else store(tmp_path)
        async with open_control(delegates, agents={"kid": echoes}, store=place) as control:
            await said(control, "hello")
            child = next(run.session for run in await control.runs("s", tree=True) if run.session != "s")
            await forgotten(control)
            assert await control.history(child)
            await control.reset(child)
            assert await control.history(child) == []

    asyncio.run(main())


@pytest.mark.parametrize("late", range(0, 12, 2))
def test_a_message_around_a_reset_is_stopped_or_fresh(late: int) -> None:
    """A message at any instant is ended by the reset or answered with a fresh transcript, never half of each."""

    async def main() -> None:
        agent = Memory()
        async with open_control(agent, store=MemoryStore(latency_seconds=0.001)) as control:
            await said(control, "before")
            long = await control.send("s", "long")
            await told(control, long.run_id, EventKind.DELTA)
            resetting = asyncio.create_task(control.reset("s"))
            await asyncio.sleep(0.0003 * late)
            sent = await control.send("s", "after")
            await resetting
            outcome = await control.wait(sent.run_id)
            if outcome.ending is Ending.STOPPED:
                assert "after" not in agent.previous
            else:
                assert outcome.ending is Ending.COMPLETED
                texts = [entry.text for entry in await control.history("s")]
                if agent.fresh("after"):
                    assert texts == ["after", "done"]
                else:
                    # The message was there before the reset, and went with the old transcript.
                    assert texts == [] and outcome.run_id in [run.run_id for run in await _ended(control)]

    seeded(main, range(8))


async def _ended(control: Control) -> list[Outcome]:
    return [info.outcome for info in await control.runs("s") if info.outcome is not None]


def test_a_reset_twice_at_once() -> None:
    """Two resets in one instant end a run once; both are answered."""

    async def main() -> None:
        agent = Memory()
        async with open_control(agent) as control:
            long = await control.send("s", "long")
            await told(control, long.run_id, EventKind.DELTA)
            first, second = await at_once(control.reset("s"), control.reset("s"))
            assert first.aborted and not second.aborted
            await said(control, "after")
            assert agent.fresh("after")

    seeded(main)


def test_a_schedule_stays() -> None:
    """A reset ends what a wake began, not the wake."""

    async def main() -> None:
        agent = Memory()
        async with open_control(agent) as control:
            await said(control, "before")
            wake = await control.wake("s", "heartbeat", every=10)
            await control.reset("s")
            assert [each.id for each in await control.wakes("s")] == [wake.id]
            while "heartbeat" not in agent.previous:
                await anyio.sleep(1)
            assert agent.fresh("heartbeat")

    seeded(main, range(3))


def test_the_next_control_sees_the_fresh_transcript() -> None:
    """A transcript that a reset began is still the session's after a restart."""

    async def main() -> None:
        store, agent = MemoryStore(), Memory()
        async with open_control(agent, store=store) as control:
            await said(control, "before")
            await control.send("s", "long")
            await control.reset("s")
        async with open_control(agent, store=store) as control:
            assert await control.history("s") == []
            await said(control, "after")
            assert agent.fresh("after")

    seeded(main)


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("where", ["running", "idle"])
def test_a_store_in_trouble_is_told_and_tried_again(where: str, fault: str) -> None:
    """The reset counts at once, is told as not durable in bounded time, and is kept as soon as it can be."""

    async def main() -> None:
        store, agent = MemoryStore(), Memory()
        async with open_control(agent, store=store) as control:
            await said(control, "before")
            long = await control.send("s", "long")
            await told(control, long.run_id, EventKind.DELTA)
            if where == "idle":
                await control.stop(run=long.run_id)
                assert "s" in control._registry.sessions
            setattr(store.faults, fault, True)
            began = now()
            receipt = await control.reset("s")
            assert now() - began <= 2 * COMMIT_SECONDS + 2 * SLACK
            assert receipt.aborted is (where == "running") and not receipt.durable
            store.faults.fail = False
            store.resume()
            await said(control, "after")
            assert agent.fresh("after")
            await anyio.sleep(5)
        async with open_control(agent, store=store) as control:
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]

    seeded(main)


def test_a_reset_whose_answer_was_lost_counts() -> None:
    """A store that loses its answers keeps the reset all the same."""

    async def main() -> None:
        store, agent = MemoryStore(), Memory()
        async with open_control(agent, store=store) as control:
            long = await control.send("s", "long")
            await told(control, long.run_id, EventKind.DELTA)
            store.faults.lose = True
            receipt = await control.reset("s")
            assert receipt.aborted
            store.faults.lose = False
            await said(control, "after")
            assert agent.fresh("after")
        async with open_control(agent, store=store) as control:
            assert [entry.text for entry in await control.history("s")] == ["after", "done"]

    seeded(main)


def test_a_reset_of_what_cannot_be_read() -> None:
    """A reset of a session that is not in memory and cannot be read is refused as retryable: its owner is unknown."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            await said(control, "before")
            await forgotten(control)
            store.faults.fail = True
            with pytest.raises(Unavailable):
                await control.reset("s")
            store.faults.fail = False
            assert len(await control.history("s")) == 2
            await control.reset("s")
            assert await control.history("s") == []

    seeded(main, range(3))


def test_a_reset_by_the_run_itself_stays_done() -> None:
    """A run that resets its own session is ended by it, and the transcript begins anew, in memory and in the store."""

    async def main() -> None:
        store, previous, seen = MemoryStore(), [], []

        async def agent(run: Run, message: Message) -> str:
            if message.text == "/new":
                await control.reset(run.session, by="alice")
            previous.append(message.previous)
            seen.append([entry.text for entry in await run.history()])
            return "done"

        async with open_control(agent, store=store) as control:
            await control.wait((await control.send("s", "secret", by="alice")).run_id)
            new = await control.send("s", "/new", by="alice")
            assert (await control.wait(new.run_id, drained=True)).ending is Ending.STOPPED
            await forgotten(control)
            row = await store.session("s")
            assert row is not None and row.since > 0
            assert await control.history("s", by="alice") == []
            await control.wait((await control.send("s", "next", by="alice")).run_id)
            assert (previous[-1], seen[-1]) == (None, ["next"])

    seeded(main)


def test_a_reset_whose_caller_vanishes_stays_done() -> None:
    """A reset that has ended a run is done though its caller vanishes, also after the session left memory."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.05)
        async with open_control(answers, store=store) as control:
            await control.wait((await control.send("s", "secret", by="alice")).run_id)
            waits = await control.send("s", "wait", by="alice")
            await asyncio.sleep(0.3)
            asking = asyncio.create_task(control.reset("s", by="alice"))
            while not control._registry.runs[waits.run_id].fallen:
                await asyncio.sleep(0.001)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert (await control.wait(waits.run_id, drained=True)).ending is Ending.STOPPED
            await forgotten(control)
            row = await store.session("s")
            assert row is not None and row.since > 0
            assert await control.history("s", by="alice") == []

    seeded(main, jump=0.0)


class LastRead(MemoryStore):
    """A store that may break right after a read."""

    last = False

    async def load(self, session: Any, *, principal: Any, key: str | None) -> Any:
        """Read, and break if this was to be the last one."""
        known = await super().load(session, principal=principal, key=key)
        self.faults.fail, self.last = self.last, False
        return known


def test_a_reset_that_is_not_in_the_store_yet() -> None:
    """A reset that the store could not take counts here until it is in: the old transcript is never seen again."""

    async def main() -> None:
        store = LastRead()
        async with open_control(answers, store=store) as control:
            await control.wait((await control.send("s", "secret", by="alice")).run_id)
            await forgotten(control)
            store.last = True
            assert not (await control.reset("s", by="alice")).durable
            store.faults.fail = False
            assert await control.history("s", by="alice") == []
            await forgotten(control)
            row = await store.session("s")
            assert row is not None and row.since > 0
            assert await control.history("s", by="alice") == []

    seeded(main, jump=0.0)


def test_a_turn_that_ends_behind_a_reset_is_a_previous_one() -> None:
    """A turn that a reset ended is no previous turn; a turn that ends before the reset is told is one."""

    async def main() -> None:
        previous: dict[str, Ending | None] = {}

        async def agent(run: Run, message: Message) -> str:
            previous[message.text] = message.previous and message.previous.ending
            return await answers(run, message)

        async with open_control(agent, store=MemoryStore(latency_seconds=0.05)) as control:
            first = await control.send("s", "wait")
            await asyncio.sleep(0.3)
            # Keep the session in memory.
            with control._registry.pinned(SessionId("s")):
                resetting = asyncio.create_task(control.reset("s"))
                while not control._registry.runs[first.run_id].fallen:
                    await asyncio.sleep(0.001)
                second = asyncio.create_task(control.send("s", "wait too"))
                while control._registry.sessions["s"].seat is None:
                    await asyncio.sleep(0.001)
                assert not control._registry.runs[first.run_id].ended.is_set()
                ending = await control.stop(session="s")
                assert [run.outcome.ending for run in ending.runs] == [Ending.STOPPED]
                await asyncio.gather(resetting, second)
                third = await control.send("s", "three")
                await control.wait(third.run_id)
                assert previous["three"] is Ending.STOPPED

    seeded(main, jump=0.0)


def test_a_child_s_session_and_its_home_are_reset_at_once() -> None:
    """Two resets that one fall answers are both done."""

    async def main() -> None:
        store, sessions = MemoryStore(latency_seconds=0.05), []

        async def kid(run: Run, message: Message) -> None:
            sessions.append(run.session)
            await asyncio.sleep(3600)

        async def agent(run: Run, message: Message) -> None:
            await run.delegate("kid", "x", detached=True)
            await asyncio.sleep(3600)

        async with open_control(agent, agents={"kid": kid}, store=store) as control:
            parent = await control.send("s", "go", by="alice")
            await asyncio.sleep(1)
            home = asyncio.create_task(control.reset("s", by="alice"))
            while not control._registry.runs[parent.run_id].fallen:
                await asyncio.sleep(0.001)
            await asyncio.gather(home, control.reset(sessions[0], by="alice"))
            await forgotten(control)
            for session in ("s", sessions[0]):
                row = await store.session(session)
                assert row is not None and row.since > 0
                assert await control.history(session, by="alice") == []

    seeded(main, jump=0.0)


def test_a_turn_between_a_reset_and_its_telling_is_previous_also_later() -> None:
    """A turn that began after a reset and ended before the reset was told is the previous one, in the store too."""

    async def main() -> None:
        seen: list[str | None] = []

        async def agent(run: Run, message: Message) -> str:
            seen.append(None if message.previous is None else message.previous.ending.value)
            return await answers(run, message)

        store = MemoryStore(latency_seconds=0.05)
        async with open_control(agent, store=store, settings=QUICK) as control:
            await control.wait((await control.send("s", "one")).run_id)
            first = control._registry.runs[(await control.send("s", "wait")).run_id]
            reset = asyncio.create_task(control.reset("s"))
            while not first.fallen:
                await asyncio.sleep(0)
            second = asyncio.create_task(control.send("s", "wait too"))
            await asyncio.sleep(0.01)
            await control.stop(session="s")
            await asyncio.gather(reset, second)
            await forgotten(control)
            await control.wait((await control.send("s", "three")).run_id)
            assert seen[-1] == "stopped"

    seeded(main, jump=0.0)
