"""A detached child's ending is announced to its home once, as a message that ends nobody's turn."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from interlock import BadInput, Control, MemoryStore, Message, Outcome, Run, Settings, open_control
from interlock.core.decision import Decision, RunRow
from interlock.core.events import MessageData
from interlock.core.names import REPORTS, Ending, RunKind
from interlock.core.takeover import ANNOUNCED
from interlock.stores.base import StoreFailed, Ticket
from interlock.testing.loop import Mode

from .lives import Place
from .scene import deaf, idles, log_of, raises, seeded, started


class Nest:
    """Agents with children whose endings the test decides."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Event] = {}
        self.heard: list[Message] = []
        self.read: list[str] = []  # the history that the last turn read
        self.announce: Any = "turn"
        self.rest = asyncio.Event()

    async def agent(self, run: Run, message: Message) -> str | None:
        """Begin a child for "begin NAME", wait for "wait", absorb steers for "listen"; answer an announcement."""
        self.heard.append(message)
        self.read = [entry.text for entry in await run.history()]
        if message.child is not None:
            return f"heard {message.child.outcome.ending} {message.child.text}"
        for word in message.text.split(";"):
            what, _, name = word.strip().partition(" ")
            if what == "begin":
                child = await run.delegate("child", name, detached=True, announce=self.announce)
                assert child.outcome.ending is Ending.PENDING
            elif what == "wait":
                await self.rest.wait()
            elif what == "idle":
                await anyio.sleep_forever()
            elif what == "listen":
                while not (taken := await run.check()):
                    await anyio.sleep(0.01)
                self.heard += taken
        return f"did {message.text}"

    async def child(self, run: Run, message: Message) -> str:
        """End when the test says so: with an error if the name begins with "fail"."""
        await run.say("so far")
        await self.ends.setdefault(message.text, asyncio.Event()).wait()
        if message.text.startswith("fail"):
            raise ValueError("no such branch")
        return f"result of {message.text}"

    def end(self, name: str) -> None:
        """Let a child end."""
        self.ends.setdefault(name, asyncio.Event()).set()

    def open(self, **options: Any) -> Any:
        """Open a control that serves these agents."""
        return open_control(self.agent, agents={"child": self.child, "deaf": deaf}, **options)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, on a real or a virtual clock."""
    for _ in range(20_000):
        if condition():
            return
        await anyio.sleep(0.005)
    raise AssertionError("it never was so")


async def reports(control: Control, session: str = "s") -> list[RunRow]:
    """Return the announcements of a session that the store holds."""
    return [row for row in await control._store.runs(session, tree=False) if row.kind in REPORTS]


async def said(control: Control, session: str = "s") -> list[str]:
    """Return the children whose announcements a session's watchers were told, in order, repetitions included."""
    events = await log_of(control, session)
    return [
        event.data.child
        for event in events
        if isinstance(event.data, MessageData) and event.data.child and not event.data.of
    ]


async def only_child(control: Control, session: str = "s") -> str:
    """Wait for a child below a session and return its id."""
    while True:
        rows = [row for row in await control._store.runs(session, tree=True) if row.kind is RunKind.CHILD]
        if rows:
            return rows[-1].id
        await anyio.sleep(0.005)


def played(scene: Callable[[Nest], Coroutine[Any, Any, None]], seeds: range = range(5)) -> None:
    """Play a scene under several schedules, once for each way of cancelling."""

    async def main() -> None:
        await scene(Nest())

    for mode in Mode:
        seeded(main, seeds, mode=mode)


# A turn


@pytest.mark.parametrize("name", ["well", "fail"])
def test_an_ending_becomes_a_turn_of_its_session(name: str) -> None:
    """An announcement tells the child's outcome, text and id, has that id as its key, and stands in the history."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            first = await control.send("s", f"begin {name}", by="alice")
            await control.wait(first.run_id, drained=True)
            child = await only_child(control)
            assert await reports(control) == []
            nest.end(name)
            await until(lambda: len(nest.heard) == 2)
            message = nest.heard[1]
            assert message.child is not None
            outcome = await control.wait(child)
            assert (message.child.run_id, message.child.text) == (child, outcome.text)
            assert message.child.outcome.same_story(outcome)
            assert (message.by, message.session) == ("alice", "s")
            assert child in message.text and outcome.text in message.text
            assert message.previous is not None and message.previous.run_id == first.run_id
            [row] = await reports(control)
            assert (row.kind, row.key, row.id) == (RunKind.ANNOUNCE, child, message.run_id)
            answer = await control.wait(message.run_id, drained=True)
            assert answer.text == f"heard {outcome.ending} {outcome.text}"
            told_of = [(entry.role, entry.child) for entry in await control.history("s")]
            assert told_of == [("user", None), ("assistant", None), ("user", child), ("assistant", None)]

    played(scene)


def test_a_child_that_timed_out_is_announced_while_it_is_being_cleaned_up() -> None:
    """The session gets the announcement as soon as the ending is published, before the child is drained."""

    async def main() -> None:
        heard: list[Message] = []

        async def agent(run: Run, message: Message) -> None:
            heard.append(message)
            if message.child is None:
                await run.delegate("deaf", "work", detached=True, timeout=1)

        async with open_control(agent, agents={"deaf": deaf}) as control:
            await control.send("s", "go")
            await until(lambda: len(heard) == 2)
            assert heard[1].child is not None
            outcome = heard[1].child.outcome
            assert (outcome.ending, outcome.drained) == (Ending.TIMED_OUT, False)
            assert "timeout" in heard[1].text

    seeded(main)


def test_it_comes_to_the_agent_that_the_tree_began_with() -> None:
    """A detached grandchild is announced to the home session, to the named agent that began the tree."""

    async def main() -> None:
        heard: list[tuple[str, Message]] = []

        def named(name: str, below: str | None) -> Any:
            async def agent(run: Run, message: Message) -> str:
                heard.append((name, message))
                if below is not None and message.child is None:
                    await run.delegate(below, "go on", detached=below == "last")
                return name

            return agent

        agents = {"top": named("top", "middle"), "middle": named("middle", "last"), "last": named("last", None)}
        async with open_control(named("served", None), agents=agents) as control:
            await control.send("s", "go", agent="top")
            await until(lambda: any(message.child for _, message in heard))
            [(name, message)] = [(name, message) for name, message in heard if message.child]
            assert (name, message.session, message.text.startswith("last (r-")) == ("top", "s", True)
            assert message.child is not None and message.child.text == "last"

    seeded(main)


# A note


def test_a_note_is_read_by_the_next_turn_and_has_none() -> None:
    """No agent is called for a note; the next turn finds the note in its history."""

    async def scene(nest: Nest) -> None:
        nest.announce = "note"
        async with nest.open() as control:
            await control.send("s", "begin well")
            child = await only_child(control)
            nest.end("well")
            await control.wait(child)
            await until(lambda: not control._registry.runs)
            assert len(nest.heard) == 1
            [row] = await reports(control)
            assert (row.kind, row.started, row.key) == (RunKind.NOTE, False, child)
            assert row.outcome is not None and row.outcome.ending is Ending.COMPLETED
            assert (await control.receipt(row.id)).queued == 0, "nothing took it from the queue"
            sent = await control.send("s", "next")
            await control.wait(sent.run_id)
            assert nest.read[-2:] == [row.text, "next"]
            assert nest.heard[1].previous is not None and nest.heard[1].previous.text == "did begin well"

    played(scene)


def test_nobody_is_told_where_nobody_asked() -> None:
    """With announce=None the session is told nothing of the child's ending."""

    async def scene(nest: Nest) -> None:
        nest.announce = None
        async with nest.open() as control:
            await control.send("s", "begin well")
            child = await only_child(control)
            nest.end("well")
            await control.wait(child, drained=True)
            await anyio.sleep(5)
            assert (len(nest.heard), await reports(control)) == (1, [])

    played(scene)


def test_a_child_that_somebody_stopped_begins_no_turn() -> None:
    """A stopped child is announced as a note: the session reads it, and the stop starts no agent."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            await control.send("s", "begin well", by="alice")
            child = await only_child(control)
            await control.stop(run=child, by="alice")
            await until(lambda: not control._registry.runs)
            [row] = await reports(control)
            assert (row.kind, len(nest.heard)) == (RunKind.NOTE, 1)
            assert "cancelled" in row.text

    played(scene)


# Announcements and messages of people


def test_it_is_offered_to_the_run_at_work() -> None:
    """A run that absorbs steers absorbs the announcement, which then has no turn of its own."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            sent = await control.send("s", "begin well; listen")
            child = await only_child(control)
            nest.end("well")
            await control.wait(sent.run_id)
            await until(lambda: not control._registry.runs)
            [_, taken] = nest.heard
            assert taken.child is not None and taken.child.run_id == child
            [row] = await reports(control)
            assert (row.alias, row.started) == (sent.run_id, False)
            assert (await control.wait(row.id)).run_id == sent.run_id
            assert [entry.text for entry in await control.history("s")].count(row.text) == 1

    played(scene)


@pytest.mark.parametrize("strategy", [None, "queue", "rollback", "steer", "collect"])
def test_it_waits_behind_whatever_a_person_writes(strategy: str | None) -> None:
    """A person's message goes before a waiting announcement, which stays and takes over nobody (race 138)."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            first = await control.send("s", "begin well; wait", by="alice")
            child = await only_child(control)
            nest.end("well")
            await control.wait(child)
            await until(lambda: control._registry.sessions["s"].queue)
            # The run at work does not absorb the announcement.
            await anyio.sleep(0.1)
            second = await control.send("s", "wait", by="alice", strategy=strategy)
            await anyio.sleep(0.1)
            assert len(nest.heard) == (2 if strategy in (None, "rollback") else 1)
            nest.rest.set()
            await until(lambda: not control._registry.runs)
            heard = [message.child.run_id if message.child else message.run_id for message in nest.heard]
            assert heard == [first.run_id, second.run_id, child]
            assert [row.outcome and row.outcome.ending for row in await reports(control)] == [Ending.COMPLETED]
            assert (await control.wait(first.run_id)).superseded_by in (None, second.run_id)

    played(scene, range(3))


def test_it_takes_no_room_from_people_and_keeps_wakes_away() -> None:
    """Announcements take no room in a queue for people's messages and run after them."""

    async def scene(nest: Nest) -> None:
        async with nest.open(settings=Settings(queue=2)) as control:
            await control.send("s", "begin a; begin b; begin c; wait")
            await until(lambda: len(control._registry.sessions["s"].detached or ()) == 3)
            for name in "abc":
                nest.end(name)
            await until(lambda: len(control._registry.sessions["s"].queue or ()) == 3)
            for number in range(2):
                await control.send("s", f"queued {number}", strategy="queue")
            nest.rest.set()
            await until(lambda: not control._registry.runs)
            assert [message.child is None for message in nest.heard] == [True, True, True, False, False, False]

    played(scene, range(3))


@pytest.mark.parametrize("how", ["stop", "reset"])
def test_an_end_of_the_session_voids_it_at_any_instant(how: str) -> None:
    """After a session's stop or reset is answered, no announcement is published or run in it (race 137)."""

    async def scene(nest: Nest) -> None:
        for number in range(0, 40, 3):
            nest.heard.clear()
            nest.ends.clear()
            session = f"s{number}"
            async with nest.open() as control:
                await control.send(session, "begin well; wait", by="alice")
                child = await only_child(control, session)
                nest.end("well")
                for _ in range(number):
                    await asyncio.sleep(0)
                if how == "stop":
                    await control.stop(session=session, by="alice")
                else:
                    await control.reset(session, by="alice")
                before, events = len(nest.heard), await said(control, session)
                await anyio.sleep(10)
                assert await said(control, session) == events
                assert len(nest.heard) == before
                assert (await control.wait(child)).ended
                assert not control._registry.runs

    played(scene, range(3))


def test_an_end_of_the_run_at_work_does_not() -> None:
    """A stop of one run leaves the announcements that wait in its session."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            sent = await control.send("s", "begin well; idle")
            child = await only_child(control)
            nest.end("well")
            await control.wait(child)
            await anyio.sleep(0.1)
            await control.stop(run=sent.run_id)
            await until(lambda: len(nest.heard) == 2)
            assert nest.heard[1].child is not None and nest.heard[1].child.run_id == child

    played(scene)


def test_turns_in_a_row_are_bounded() -> None:
    """After ANNOUNCED announced turns a session gets notes only, until a person writes (race 140)."""

    async def main() -> None:
        heard: list[Message] = []

        async def agent(run: Run, message: Message) -> str:
            heard.append(message)
            await run.delegate("child", f"{len(heard)}", detached=True)
            return "and again"

        async def child(run: Run, message: Message) -> str:
            return message.text

        async with open_control(agent, agents={"child": child}) as control:
            for times in (1, 2):
                await control.send("s", "go")
                await until(lambda: not control._registry.runs)
                assert len(heard) == times * (1 + ANNOUNCED)
                kinds = [row.kind for row in await reports(control)]
                assert kinds == [*([RunKind.ANNOUNCE] * ANNOUNCED), RunKind.NOTE] * times

    seeded(main)


def test_a_run_without_a_session_reads_it_and_has_no_second_turn() -> None:
    """A run's own session has one turn only, so the ending of its child is a note there."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            sent = await control.send(None, "begin well; wait", kind="agent")
            child = await only_child(control, sent.session)
            nest.end("well")
            await control.wait(child)
            await until(lambda: control._registry.runs.keys() == {sent.run_id})
            nest.rest.set()
            await control.wait(sent.run_id)
            [row] = await reports(control, sent.session)
            assert (row.kind, len(nest.heard)) == (RunKind.NOTE, 1)

    played(scene)


def test_whoever_may_no_longer_write_there_begins_no_turn() -> None:
    """A guest's child is not announced after the guest lost the right to write in the session."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            first = await control.send("s", "hello", by="alice")
            await control.wait(first.run_id)
            await control.share("s", with_="bob", may="write", by="alice")
            await control.send("s", "begin well", by="bob")
            child = await only_child(control)
            await control.unshare("s", with_="bob", by="alice")
            nest.end("well")
            await control.wait(child, drained=True)
            await anyio.sleep(5)
            assert (await reports(control), len(nest.heard)) == ([], 2)

    played(scene)


def test_a_guest_s_child_does_not_get_into_the_owner_s_turn() -> None:
    """The owner's run absorbs only announcements of principals who may stop it; the guest's has a turn of its own."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            first = await control.send("s", "hello", by="alice")
            await control.wait(first.run_id)
            await control.share("s", with_="bob", may="write", by="alice")
            second = await control.send("s", "begin guest", by="bob")
            await control.wait(second.run_id)
            third = await control.send("s", "begin mine; listen", by="alice")
            await until(lambda: len(control._registry.sessions["s"].detached or ()) == 2)
            nest.end("guest")
            await until(lambda: control._registry.sessions["s"].queue)
            await anyio.sleep(0.2)  # the owner's run listens all the time
            assert not (await control.wait(third.run_id, timeout=0)).ended
            nest.end("mine")
            await until(lambda: not control._registry.runs)
            told_of = [
                (message.by, message.child.text.split()[-1]) for message in nest.heard if message.child is not None
            ]
            assert told_of == [("alice", "mine"), ("bob", "guest")]

    played(scene)


@pytest.mark.parametrize("announce", ["now", 1, "", True, ["turn"]])
def test_an_unknown_way_is_refused(announce: Any) -> None:
    """An unknown `announce=` is refused with the list of allowed values, and no child begins."""

    async def main() -> None:
        async def agent(run: Run, message: Message) -> None:
            with raises(BadInput, "announce= is turn, note or None"):
                await run.delegate("child", "x", detached=True, announce=announce)
            with raises(BadInput, "for a detached child"):
                await run.delegate("child", "x", announce="note")

        async with open_control(agent, agents={"child": idles}) as control:
            sent = await control.send("s", "go")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            assert len(await control.runs("s", tree=True)) == 1

    seeded(main, range(1))


@pytest.mark.parametrize("announce", ["turn", "note"])
def test_a_child_s_id_names_the_child_though_it_is_the_key_of_its_announcement(announce: str) -> None:
    """A lookup by the child's id finds the child and not the announcement, in memory as in the store."""

    async def scene(nest: Nest) -> None:
        nest.announce = announce
        async with nest.open() as control:
            await control.send("s", "begin fail", by="alice")
            child = await only_child(control)
            nest.end("fail")
            for _ in range(40):
                found = await control.find(child, by="alice")
                assert found is not None and (found.id, found.kind) == (child, RunKind.CHILD)
                await anyio.sleep(0.001)
            await until(lambda: not control._registry.runs)
            found = await control.find(child, by="alice")
            assert found is not None and found.id == child and found.outcome is not None
            assert found.outcome.ending is Ending.FAILED

    played(scene, range(2))


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_a_store_in_trouble_when_its_turn_is_to_begin_does_not_use_it_up(fault: str) -> None:
    """An announcement waits for a broken store and then has its turn: no sender could send it again."""

    async def scene(nest: Nest) -> None:
        store = MemoryStore()
        async with nest.open(store=store) as control:
            decide = store.decide

            def breaks(decision: Decision) -> Ticket:
                if any(control._registry.runs[each].arrival.kind is RunKind.ANNOUNCE for each in decision.starts):
                    store.decide = decide  # type: ignore[method-assign]
                    setattr(store.faults, fault, True)
                    asyncio.get_running_loop().call_later(2.0, repaired)
                return decide(decision)

            def repaired() -> None:
                store.faults.fail = False
                store.resume()

            await control.send("s", "begin well")
            child = await only_child(control)
            store.decide = breaks  # type: ignore[method-assign]
            nest.end("well")
            await until(lambda: len(nest.heard) == 2)
            assert nest.heard[1].child is not None and nest.heard[1].child.run_id == child
            await until(lambda: not control._registry.runs)
            assert [row.outcome and row.outcome.ending for row in await reports(control)] == [Ending.COMPLETED]

    played(scene, range(3))


def test_a_rolled_back_turn_keeps_what_the_child_had_to_say() -> None:
    """A rollback of the announced turn hides its answer from the model, but not the announcement."""

    async def main() -> None:
        read: list[list[str]] = []

        async def agent(run: Run, message: Message) -> None:
            read.append([entry.text for entry in await run.history()])
            if message.text == "go":
                await run.delegate("child", "x", detached=True)
            elif message.child is not None:
                await anyio.sleep_forever()

        async def child(run: Run, message: Message) -> str:
            return "42"

        async with open_control(agent, agents={"child": child}) as control:
            await control.send("s", "go")
            await until(lambda: len(read) == 2)
            await control.send("s", "no", strategy="rollback")
            await until(lambda: len(read) == 3)
            assert any(text.endswith("42") for text in read[2])

    seeded(main)


def test_a_stop_that_spares_a_message_spares_what_its_child_announces() -> None:
    """A stop that comes late by its place in the channel ends neither a later message nor that message's child."""

    async def scene(nest: Nest) -> None:
        async with nest.open() as control:
            await control.send("s", "begin well; wait", order=("channel", 6))
            child = await only_child(control)
            await control.stop(session="s", order=("channel", 5))
            assert not (await control.wait(child, timeout=0)).ended
            nest.end("well")
            await control.wait(child)
            await anyio.sleep(0.1)
            await control.stop(session="s", order=("channel", 5))
            nest.rest.set()
            await until(lambda: len(nest.heard) == 2)
            assert nest.heard[1].child is not None

    played(scene, range(3))


def test_it_may_wait_for_longer_than_a_message() -> None:
    """The queue's time limit does not end an announcement: it is for messages, whose senders are told."""

    async def scene(nest: Nest) -> None:
        async with nest.open(queue_limit=0.5) as control:
            await control.send("s", "begin well; wait")
            child = await only_child(control)
            nest.end("well")
            await control.wait(child)
            await anyio.sleep(2)
            nest.rest.set()
            await until(lambda: len(nest.heard) == 2)

    played(scene, range(2))


# Over a restart


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Any) -> Place:
    """Return a store that outlives its controls."""
    return Place(request.param, tmp_path / "store")


async def _after(control: Control, nest: Nest, child: str, ending: Ending) -> None:
    """Assert that this start announces the child once, with the ending that everybody is told."""
    await until(lambda: not control._registry.runs)
    outcome: Outcome = await control.wait(child)
    assert outcome.ending is ending
    [row] = await reports(control)
    assert (row.key, row.outcome and row.outcome.ending) == (child, Ending.COMPLETED)
    assert await said(control) == [child]
    turns = [message.child for message in nest.heard if message.child is not None]
    assert [turn.outcome.ending for turn in turns if turn.run_id == child] == [ending]


@pytest.mark.parametrize("parent", ["begin well; idle", "begin well"])
def test_a_child_that_a_crash_took_is_announced_by_the_next_start(place: Place, parent: str) -> None:
    """The next start announces a child that a crash ended as lost, whether or not its parent was lost too."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", parent, by="alice")
        child = await only_child(control)
        await started(control, child)
        if "idle" not in parent:
            await control.wait(sent.run_id, drained=True)
        place.die(child)

    nest = Nest()
    child = place.killed(scene, nest.agent, agents={"child": nest.child})
    again = Nest()
    place.life(lambda control: _after(control, again, child, Ending.LOST), again.agent, agents={"child": again.child})
    once_more = Nest()

    async def nothing_new(control: Control) -> None:
        await control.send("s", "hello", by="alice")
        await until(lambda: not control._registry.runs)
        assert len(await reports(control)) == 1 and not any(message.child for message in once_more.heard)

    place.life(nothing_new, once_more.agent, agents={"child": once_more.child})


@pytest.mark.parametrize("kind", ["turn", "note"])
def test_a_crash_at_the_child_s_end_announces_it_once(place: Place, kind: str) -> None:
    """A crash in the step that decides the child's ending, or soon after it, leaves one announcement (race 139)."""
    for number in range(0, 12, 3):
        here = Place(place.kind, place.directory.with_name(f"{kind}{number}"))

        nest = Nest()
        nest.announce = kind

        async def scene(control: Control, here: Place = here, number: int = number, nest: Nest = nest) -> None:
            await control.send("s", "begin well", by="alice")
            child = await only_child(control)
            await started(control, child)
            steps = 0
            decide = control._store.decide

            def counted(decision: Any) -> Any:
                ticket = decide(decision)
                if any(row.id == child for row in decision.endings):
                    asyncio.get_running_loop().call_soon(step)
                return ticket

            def step() -> None:
                nonlocal steps
                steps += 1
                if steps > number:
                    here.die(child, written=bool(number % 2))
                asyncio.get_running_loop().call_soon(step)

            control._store.decide = counted  # type: ignore[method-assign]
            nest.end("well")
            await anyio.sleep_forever()

        child = here.killed(scene, nest.agent, agents={"child": nest.child})
        again = Nest()

        async def after(control: Control, child: str = child, again: Nest = again) -> None:
            await until(lambda: not control._registry.runs)
            assert [row.key for row in await reports(control)] == [child]
            assert await said(control) == [child]
            assert len([message for message in again.heard if message.child]) <= 1

        here.life(after, again.agent, agents={"child": again.child})


def test_what_a_close_cut_short_is_announced_by_the_next_start(place: Place) -> None:
    """The next start announces a child that a clean shutdown ended."""
    nest = Nest()

    async def scene(control: Control) -> str:
        sent = await control.send("s", "begin well", by="alice")
        child = await only_child(control)
        await started(control, child)
        await control.wait(sent.run_id, drained=True)
        return child

    child = place.life(scene, nest.agent, agents={"child": nest.child})
    again = Nest()
    place.life(
        lambda control: _after(control, again, child, Ending.SHUTDOWN), again.agent, agents={"child": again.child}
    )


def test_turns_in_a_row_are_bounded_over_a_restart(place: Place) -> None:
    """The next start announces ANNOUNCED of many children that a shutdown ended as turns, and the rest as notes."""
    nest, many = Nest(), ANNOUNCED + 4

    async def scene(control: Control) -> None:
        await control.send("s", "; ".join(f"begin {number}" for number in range(many)), by="alice")
        await until(lambda: len(control._registry.sessions["s"].detached or ()) == many)
        for run in list(control._registry.runs.values()):
            if run.arrival.kind is RunKind.CHILD:
                await started(control, run.id)

    place.life(scene, nest.agent, agents={"child": nest.child})
    again = Nest()

    async def after(control: Control) -> None:
        await until(lambda: not control._registry.runs)
        assert len([message for message in again.heard if message.child]) == ANNOUNCED
        assert len(await said(control)) == many

    place.life(after, again.agent, agents={"child": again.child})


def test_an_ending_that_was_told_and_not_kept_is_announced_after_a_crash(place: Place) -> None:
    """The next start announces a child whose ending the store refused, since the written log has that ending."""
    nest = Nest()

    async def scene(control: Control) -> None:
        await control.send("s", "begin well", by="alice")
        child = await only_child(control)
        await started(control, child)
        decide = control._store.decide

        def refuses(decision: Decision) -> Ticket:
            if any(row.id == child for row in decision.endings):
                ticket = Ticket(decision)
                ticket.refuse(StoreFailed("there is no room"))
                return ticket
            return decide(decision)

        control._store.decide = refuses  # type: ignore[method-assign]
        nest.end("well")
        assert not (await control.wait(child)).durable
        sent = await control.send("other", "hello", by="bob")  # the store writes the log along with it
        await control.wait(sent.run_id)
        place.die(child)

    child = place.killed(scene, nest.agent, agents={"child": nest.child})
    again = Nest()

    async def after(control: Control) -> None:
        await _after(control, again, child, Ending.COMPLETED)

    place.life(after, again.agent, agents={"child": again.child})


def test_a_stop_is_not_forgotten_over_a_restart(place: Place) -> None:
    """A waiting announcement that a stop voided stays void after a crash."""
    nest = Nest()

    async def scene(control: Control) -> None:
        await control.send("s", "begin well; wait", by="alice")
        child = await only_child(control)
        nest.end("well")
        await control.wait(child)
        await control.stop(session="s", by="alice")
        place.die(child)

    place.killed(scene, nest.agent, agents={"child": nest.child})
    again = Nest()

    async def after(control: Control) -> None:
        await until(lambda: not control._registry.runs)
        assert [row.outcome and row.outcome.ending for row in await reports(control)] == [Ending.STOPPED]
        assert again.heard == []

    place.life(after, again.agent, agents={"child": again.child})
