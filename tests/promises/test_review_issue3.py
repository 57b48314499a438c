"""What a hostile review of the promise found, one rule each: trees, closing, resets, owners, keys, marks and more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from interlock import (
    Control,
    Ending,
    Event,
    MemoryStore,
    Message,
    Run,
    Settings,
    Unavailable,
    Unknown,
    open_control,
    tool,
)
from interlock.core.events import Proof
from interlock.core.lifecycle import State
from interlock.core.names import EventKind, SessionId
from interlock.runtime import registry
from interlock.stores import bounds
from interlock.testing.loop import Mode

from .scene import harmless, seeded

# (`jump=0.0`, below: no timer comes early, where a test must meet a moment between two of them)
BRIEF = Settings(commit_seconds=0.1, grace_seconds=0.1, drain_seconds=0.2, retry_seconds=0.1)


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await asyncio.sleep(3600)


async def answers(run: Run, message: Message) -> str:
    """Be done at once, unless told to wait."""
    if message.text.startswith("wait"):
        await asyncio.sleep(3600)
    return "done"


async def lingers(run: Run, message: Message) -> None:
    """Wait for ever, and clean up slowly."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(1)


async def forgotten(control: Control) -> None:
    """Wait until nothing is left in memory: from here on the store alone knows."""
    here = control._registry
    while here.runs or here.falls or here.sessions:
        await asyncio.sleep(0.05)


async def answered(*calls: asyncio.Task[Any]) -> None:
    """Raise if one of these calls is not answered long after every bound has passed."""
    _, hanging = await asyncio.wait(calls, timeout=60)
    for call in hanging:
        call.cancel()
    assert not hanging, "a call is never answered"


@contextlib.asynccontextmanager
async def open_until_closed(store: MemoryStore) -> AsyncIterator[Control]:
    """A control that the test closes itself, while it goes on asking."""
    async with open_control(idles, store=store, settings=BRIEF) as control:
        yield control


# Large trees


def test_a_large_tree_is_told_once() -> None:
    """A stop tells the whole receipt where it fell and each child's session of its own run: never all to all."""
    mids, leaves = 4, 60

    async def mid(run: Run, message: Message) -> None:
        await asyncio.gather(*(run.delegate("leaf", "x") for _ in range(leaves)))

    async def agent(run: Run, message: Message) -> None:
        for _ in range(mids):
            await run.delegate("mid", "x", detached=True)
        await asyncio.sleep(3600)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, agents={"leaf": idles, "mid": mid}, store=store) as control:
            await control.send("s", "one")
            while sum(run.started_at is not None for run in control._registry.runs.values()) < 1 + mids + mids * leaves:
                await asyncio.sleep(0.01)
            receipt = await control.stop(session="s")
            await control.wait(receipt.runs[0].id, drained=True)
            await forgotten(control)
            everyone = {run.id for run in receipt.runs}
            assert len(everyone) == 1 + mids + mids * leaves
            for row in await store.runs("s", tree=True):
                log = (await store.events(row.session, after=0, limit=10_000)).events
                told = [event.data.receipt for event in log if isinstance(event.data, Proof)]
                wanted = everyone if row.session == "s" else {row.id}
                assert 1 <= len(told) <= 3  # as it is told, drained and kept
                for each in told:
                    assert {run.id for run in each.runs} == wanted
                    assert len(each.runs) == len(wanted)

    seeded(main, (0,))


# Closing


def test_a_stop_while_an_arrival_is_turned_away() -> None:
    """A message that a close turned away and that still stands in the line refuses no stop, and nobody hangs."""

    async def main() -> None:
        store = MemoryStore()
        async with open_until_closed(store) as control:
            await control.send("s", "one", by="alice")
            queued = await control.send("s", "two", by="alice", strategy="queue")
            await asyncio.sleep(0.1)
            store.faults.stall = True  # so that the next one still reads its key when the close begins
            turned_away = asyncio.create_task(control.send("s", "three", by="alice", key="k"))
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(control.close())
            [arriving] = control._registry.sessions["s"].line or ()
            while arriving.state is not State.WITHDRAWN:
                await asyncio.sleep(0.001)
            assert list(control._registry.sessions["s"].line or ()) == [arriving]
            assert (await control.stop(session="s", by="alice")).session == "s"
            await answered(
                asyncio.create_task(control.stop(run=queued.run_id, by="alice")),
                asyncio.create_task(control.wait(queued.run_id, drained=True, by="alice")),
                closing,
            )
            with pytest.raises(Unavailable):
                await turned_away

    seeded(main, jump=0.0)


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("verb", ["session", "run", "reset"])
def test_no_call_hangs_around_the_end_of_a_close(fault: str, verb: str) -> None:
    """Once a close lets go of what is left nothing falls any more, so nobody waits for it to be told."""

    async def main(early: bool) -> None:
        store = MemoryStore()
        async with open_until_closed(store) as control:
            await control.send("s", "one", by="alice")
            queued = await control.send("s", "two", by="alice", strategy="queue")
            await asyncio.sleep(0.1)
            setattr(store.faults, fault, True)
            call = {
                "session": lambda: control.stop(session="s", by="alice"),
                "run": lambda: control.stop(run=queued.run_id, by="alice"),
                "reset": lambda: control.reset("s", by="alice"),
            }[verb]
            calls: list[asyncio.Task[Any]] = []
            cut = control._crew.cut

            def cut_and_call() -> None:
                cut()
                calls.append(asyncio.create_task(call()))

            control._crew.cut = cut_and_call  # type: ignore[method-assign]
            closing = asyncio.create_task(control.close())
            while not closing.done():
                await asyncio.sleep(0.02)
                if early or calls:
                    calls.append(asyncio.create_task(call()))
            await answered(*calls)
            await asyncio.gather(*calls, return_exceptions=True)

    for early in (False, True):
        seeded(partial(main, early), range(3))


def test_a_stop_and_a_reset_after_the_close() -> None:
    """A closed control ends nothing: a stop says so, a reset is refused at once."""

    async def main() -> None:
        async with open_until_closed(MemoryStore()) as control:
            await control.send("s", "one", by="alice")
            await control.send("s", "two", by="alice", strategy="queue")
            await control.close()
            assert not (await control.stop(session="s", by="alice")).aborted
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(control.reset("s", by="alice"), 20)

    seeded(main)


# Resets


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
    """Once a reset has ended a run it is done, whoever still waits for it, also after the session left memory."""

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
    """A store that may break right behind a read."""

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
    """What a reset ends is no previous turn; one that ends before that is told is one, for the next message."""

    async def main() -> None:
        previous: dict[str, Ending | None] = {}

        async def agent(run: Run, message: Message) -> str:
            previous[message.text] = message.previous and message.previous.ending
            return await answers(run, message)

        async with open_control(agent, store=MemoryStore(latency_seconds=0.05)) as control:
            first = await control.send("s", "wait")
            await asyncio.sleep(0.3)
            with control._registry.pinned(SessionId("s")):  # it stays in memory
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


# Whose session it is


def test_a_refused_first_message_founds_nothing() -> None:
    """The sender of a first message that was not taken owns nothing, though another's end is written meanwhile."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.6)  # longer than a commit may take
        async with open_control(answers, store=store) as control:
            refused = asyncio.create_task(control.send("s", "one", by="alice"))
            await asyncio.sleep(0.02)
            stopped = asyncio.create_task(control.send("s", "two", by="bob", key="k"))
            await asyncio.sleep(0.05)
            assert (await control.stop(message="k", by="bob")).aborted
            with pytest.raises(Unavailable):
                await refused
            await stopped
            store.latency_seconds = 0.0
            await forgotten(control)
            assert await store.session("s") is None
            await control.wait((await control.send("s", "three", by="carol")).run_id, by="carol")
            with pytest.raises(Unknown):
                await control.history("s", by="alice")
            row = await store.session("s")
            assert row is not None and row.owner == "carol"

    seeded(main, jump=0.0)


class SlowRead(MemoryStore):
    """A store where one read may take its time, and the next overtakes it."""

    slow = 0.0

    async def load(self, session: Any, *, principal: Any, key: str | None) -> Any:
        """Wait, once, and read."""
        slow, self.slow = self.slow, 0.0
        await asyncio.sleep(slow)
        return await super().load(session, principal=principal, key=key)


def test_a_stop_of_an_absent_session_that_comes_alive() -> None:
    """A stop that found nobody does not raise a session above a run that began meanwhile: its tools still work."""

    async def main() -> None:
        store = SlowRead()

        async def agent(run: Run, message: Message) -> str:
            await asyncio.sleep(0.5)
            return str(await run.call(harmless))

        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one", by="alice")
            await control.wait(first.run_id)
            await forgotten(control)
            store.slow = 0.1
            stopping = asyncio.create_task(control.stop(session="s", by="alice"))
            await asyncio.sleep(0.02)
            second = await control.send("s", "two", by="alice")
            assert not stopping.done()
            assert not (await stopping).aborted
            row = await store.session("s")
            assert row is not None and row.generation == second.generation
            outcome = await control.wait(second.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "done")

    seeded(main, jump=0.0)


def test_generations_of_forgotten_sessions_are_forgotten() -> None:
    """A stop that reads a session while a stranger's message is refused leaves nothing of it in memory."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(answers, store=store) as control:
            for n in range(3):
                await control.wait((await control.send(f"s{n}", "one", by="alice")).run_id)
            await forgotten(control)
            for n in range(3):
                store.faults.stall = True
                refused = asyncio.create_task(control.send(f"s{n}", "two", by="bob"))
                await asyncio.sleep(0.3)
                stopping = asyncio.create_task(control.stop(session=f"s{n}", by="alice"))
                await asyncio.sleep(0.3)
                store.resume()
                await asyncio.gather(refused, stopping, return_exceptions=True)
            await forgotten(control)
            assert control._registry.generations._now == {}

    seeded(main)


# Schedules


def test_a_wake_whose_caller_vanished_is_none() -> None:
    """Who was not told of a schedule has none: neither here nor in the store nor after a restart."""

    async def main() -> None:
        store, ran = MemoryStore(latency_seconds=0.05), []

        async def agent(run: Run, message: Message) -> None:
            ran.append(message.text)

        async with open_control(agent, store=store) as control:
            await control.wait((await control.send("s", "one", by="alice")).run_id)
            asking = asyncio.create_task(control.wake("s", "ghost", every=5, by="alice"))
            await asyncio.sleep(0.02)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await asyncio.sleep(20)
            assert await control.wakes("s", by="alice") == []
            assert await store.wakes() == ()
        async with open_control(agent, store=store):
            await asyncio.sleep(20)
        assert ran == ["one"]

    seeded(main, jump=0.0)


def test_a_stranger_cannot_tell_a_wake_from_none() -> None:
    """Removing another's schedule is refused with the same words as removing one that is not there."""

    async def main() -> None:
        async with open_control(answers) as control:
            await control.wait((await control.send("s", "one", by="alice")).run_id)
            wake = await control.wake("s", "look", every=1000, by="alice")
            said = []
            for wanted in (wake.id, "w-1-999"):
                with pytest.raises(Unknown) as refused:
                    await control.unwake(wanted, by="mallory")
                said.append(str(refused.value).replace(wanted, "?"))
            assert said[0] == said[1]
            assert [each.id for each in await control.wakes("s", by="alice")] == [wake.id]

    seeded(main)


# Collecting


def test_the_key_of_a_message_stopped_while_it_joins() -> None:
    """A message stopped on its way into a turn is no part of it, and its key says so, now and later."""

    async def main() -> None:
        store, turns = MemoryStore(latency_seconds=0.05), []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])

        async with open_control(agent, store=store, strategy="collect") as control:
            first = await control.send("s", "one", by="alice", key="k1")
            joining = asyncio.create_task(control.send("s", "two", by="alice", key="k2"))
            while not any(run.joining for run in control._registry.runs.values()):
                await asyncio.sleep(0.001)
            receipt = await control.stop(message="k2", by="alice")
            assert receipt.aborted
            own = (await joining).run_id
            assert [run.id for run in receipt.runs] == [own] != [first.run_id]
            assert (await control.send("s", "two", by="alice", key="k2")).run_id == own
            assert (await control.wait(first.run_id, drained=True)).ending is Ending.COMPLETED
            await forgotten(control)
            again = await control.send("s", "two", by="alice", key="k2")
            assert again.run_id == own
            assert (await control.wait(own, by="alice")).ending is Ending.STOPPED
            assert (await control.stop(message="k2", by="alice")).already is Ending.STOPPED
            assert turns == [["one"]]

    seeded(main, jump=0.0)


@pytest.mark.parametrize("deadlines", [(None, 0.5), (0.5, None), (60, 0.5), (0.5, 60)])
def test_a_collected_turn_obeys_its_shortest_deadline(deadlines: tuple[float | None, float | None]) -> None:
    """Whichever part of a turn brings the shorter deadline, it is the turn's."""

    async def main() -> None:
        async with open_control(idles) as control:
            first, second = [
                await control.send("s", f"m{n}", strategy="collect", deadline=each) for n, each in enumerate(deadlines)
            ]
            assert first.run_id == second.run_id
            outcome = await control.wait(second.run_id, timeout=10)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 500)

    seeded(main)


def test_collected_messages_pass_no_other_of_their_author() -> None:
    """A message joins a turn only where nothing its author said since waits between; others' may."""

    async def main() -> None:
        turns: list[list[str]] = []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])
            await answers(run, message)

        async with open_control(agent, admins=["root"]) as control:
            await control.send("s", "wait", by="root")
            await control.share("s", with_="alice")
            for text, by, strategy in (
                ("a1", "alice", "collect"),
                ("a2", "alice", "queue"),
                ("a3", "alice", "collect"),
                ("b1", "root", "queue"),
                ("a4", "alice", "collect"),
            ):
                last = await control.send("s", text, by=by, strategy=strategy)
            assert await _texts_waiting(control) == ["a1", "a2", "a3", "b1"]
            seated = control._registry.sessions["s"].seat
            assert seated is not None
            await control.stop(run=seated.id, by="root")
            await control.wait(last.run_id, by="root")
            await asyncio.sleep(10)
            assert turns == [["wait"], ["a1"], ["a2"], ["a3", "a4"], ["b1"]]

    seeded(main)


async def _texts_waiting(control: Control) -> list[str]:
    return [run.text for run in control._registry.sessions["s"].waiting or ()]


# Steering


@pytest.mark.parametrize("slow", [0.0, 2.0])
def test_the_watcher_of_a_steered_message_is_told_the_end(slow: float) -> None:
    """Who watches a message that a run took in sees that run's end, also if all is over when they come to read it."""

    async def agent(run: Run, message: Message) -> str:
        while not (taken := await run.check()):
            await asyncio.sleep(0.1)
        await run.post("a")
        await run.post("b")
        return "took " + taken[0].text

    async def main() -> None:
        async with open_control(agent) as control:
            first = await control.send("s", "one", by="alice")
            await asyncio.sleep(0.25)
            steered = await control.send("s", "two", by="alice", strategy="steer")
            seen: list[Event] = []

            async def watch() -> None:
                async for event in control.watch(run=steered.run_id, by="alice"):
                    seen.append(event)
                    await asyncio.sleep(slow)

            await answered(asyncio.create_task(watch()))
            assert (seen[-1].kind, seen[-1].run_id) == (EventKind.ENDED, first.run_id)
            assert [event.kind for event in seen].count(EventKind.ENDED) == 1

    seeded(main)


def test_a_tool_call_carries_what_was_steered_before_it() -> None:
    """A tool never begins under a message that the store does not know to be part of the run."""

    async def main() -> None:
        store, rows = MemoryStore(), []

        async def pays() -> None:
            rows.append(await store.run(steered.run_id))

        async def agent(run: Run, message: Message) -> None:
            await asyncio.sleep(0.2)
            store.faults.fail = True
            assert len(await run.check()) == 1
            await asyncio.sleep(0.01)  # the alias is refused, and is tried again only later
            store.faults.fail = False
            await run.call(pays)
            await asyncio.sleep(3600)

        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one")
            steered = await control.send("s", "pay bob", strategy="steer")
            await asyncio.sleep(0.3)
            assert [row and row.alias for row in rows] == [first.run_id]

    seeded(main, jump=0.0)


# Rolling back


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
        async with open_control(answers, settings=BRIEF) as control:
            first = await control.send("s", "wait", deadline=0.02)
            for _ in range(turns):
                await asyncio.sleep(0)
            second = await control.send("s", "two", strategy="rollback")
            outcome = await control.wait(first.run_id)
            if second.superseded == first.run_id:  # else it had timed out before
                seen.add(outcome.ending)
                assert outcome.hidden
                entries = await control.history("s")
                assert {entry.run_id for entry in entries if entry.hidden} == {first.run_id}

    for turns in range(40):
        seeded(
            partial(main, turns), (0,), charge=1e-3, mode=Mode.FIFO
        )  # every step takes its time, so timers come late
    assert Ending.TIMED_OUT in seen, "the schedules should have covered it"


# Marks


@pytest.mark.parametrize("readers", [(), ("eve",)])
@pytest.mark.parametrize("alive", [True, False])
def test_nobody_pushes_out_another_s_stop(
    monkeypatch: pytest.MonkeyPatch, readers: tuple[str, ...], alive: bool
) -> None:
    """Whatever strangers and readers stop, a message written before its owner's stop stays stopped."""
    monkeypatch.setattr(registry, "MARKS", 5)
    monkeypatch.setattr(bounds, "MARKS_KEPT", 5)

    async def main() -> None:
        store, ran = MemoryStore(), []

        async def agent(run: Run, message: Message) -> None:
            ran.append(message.text)
            await answers(run, message)

        async with open_control(agent, store=store, readers=readers) as control:
            await control.wait((await control.send("s", "one", by="alice", order=("chat", 1))).run_id)
            await control.stop(session="s", by="alice", order=("chat", 10))
            if alive:
                await control.send("s", "wait", by="alice", order=("chat", 20))
            for n in range(50):
                await control.stop(session=f"x{n}", by="eve", order=("chat", 1))
                await control.stop(session="s", by="eve", order=(f"chat{n}", 1))
            late = await control.send("s", "late", by="alice", order=("chat", 5))
            assert (await control.wait(late.run_id, by="alice")).ending is Ending.STOPPED
            assert "late" not in ran
            await asyncio.sleep(1)
            others = 0 if readers else 5
            for kept in (store._marks, control._registry._marks):
                assert sum(by == "eve" for marks in kept.values() for _, by in marks) == others
                assert len(kept) <= 1 + others

    seeded(main, range(2))


# Holds


def test_a_hold_is_taken_again_while_a_child_drains() -> None:
    """A run that leaves a hold and takes it again at once has it, though a child it gave up is not gone yet."""

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


# Whatever breaks


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_error_that_cannot_be_described(raised: type[BaseException]) -> None:
    """Whatever the `__str__` of an agent's error raises, the run has failed and the loop goes on."""

    class Hostile(Exception):
        def __str__(self) -> str:
            raise raised

    async def agent(run: Run, message: Message) -> str:
        if message.text == "one":
            raise Hostile
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            outcome = await control.wait((await control.send("s", "one")).run_id)
            assert (outcome.ending, outcome.error) == (Ending.FAILED, "Hostile: (it cannot be described)")
            assert (await control.wait((await control.send("s", "two")).run_id)).ending is Ending.COMPLETED

    seeded(main, range(2))


class OddRead(MemoryStore):
    """A store with a bug of its own."""

    odd = False

    async def load(self, session: Any, *, principal: Any, key: str | None) -> Any:
        """Break, once."""
        if self.odd:
            self.odd = False
            raise ZeroDivisionError
        return await super().load(session, principal=principal, key=key)


def test_a_store_that_breaks_oddly_blocks_no_line() -> None:
    """A message that a bug of the store kept out leaves its session's line; the next one is taken."""

    async def main() -> None:
        store = OddRead()
        async with open_control(answers, store=store) as control:
            await control.send("s", "wait")
            store.odd = True
            broken = asyncio.create_task(control.send("s", "one", key="k"))
            await asyncio.sleep(0.1)
            following = asyncio.create_task(control.send("s", "two"))
            await answered(broken, following)
            with pytest.raises(Unavailable):
                await broken
            assert (await control.wait((await following).run_id)).ending is Ending.COMPLETED
            again = await control.send("s", "one", key="k")
            assert (await control.wait(again.run_id)).ending is Ending.COMPLETED

    seeded(main)


def test_a_message_that_founded_nothing_leaves_no_text() -> None:
    """Whoever founds a session later cannot read what somebody else tried to say in it before."""

    async def main() -> None:
        async with open_control(answers, store=MemoryStore()) as control:
            await control.stop(message="k", by="bob")
            sent = await control.send("s", "bob's secret", by="bob", key="k")
            await control.wait(sent.run_id, by="bob", drained=True)
            await forgotten(control)
            first = await control.send("s", "hi", by="carol")
            await control.wait(first.run_id, by="carol")
            assert [entry.text for entry in await control.history("s", by="carol")] == ["", "", "hi", "done"]
            assert "secret" not in repr([event async for event in _so_far(control, "s", "carol")])

    seeded(main)


def test_a_turn_between_a_reset_and_its_telling_is_previous_also_later() -> None:
    """What began after a reset and ended before it was told is the next turn's previous one, in the store too."""

    async def main() -> None:
        seen: list[str | None] = []

        async def agent(run: Run, message: Message) -> str:
            seen.append(None if message.previous is None else message.previous.ending.value)
            return await answers(run, message)

        store = MemoryStore(latency_seconds=0.05)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            await control.wait((await control.send("s", "one")).run_id)
            await control.send("s", "wait")
            reset = asyncio.create_task(control.reset("s"))
            await asyncio.sleep(0)
            second = asyncio.create_task(control.send("s", "wait too"))
            await asyncio.sleep(0.01)
            await control.stop(session="s")
            await asyncio.gather(reset, second)
            await forgotten(control)
            await control.wait((await control.send("s", "three")).run_id)
            assert seen[-1] == "stopped"

    seeded(main, jump=0.0)


async def _so_far(control: Control, session: str, by: str) -> AsyncIterator[Event]:
    """What a watcher is given of a session up to now."""
    async with contextlib.aclosing(control.watch(session, by=by)) as events:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                async for event in events:
                    yield event
