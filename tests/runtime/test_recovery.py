"""Recovery: what the next start makes of a life that was cut short, on both stores and at exact points.

What begins with `place.killed` is a life that is killed where somebody says `die`; `place.life` is the next one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from interlock import (
    Control,
    Drain,
    Ending,
    Event,
    EventKind,
    KeyConflict,
    Message,
    QuestionClosed,
    Refused,
    Run,
    SpawnFailed,
    ToolState,
    Unavailable,
    Unknown,
    tool,
)
from interlock.core.events import Ended
from interlock.core.lifecycle import State
from interlock.core.projection import LOST_RESULT, agent_wait
from interlock.processes.base import Grade, Machine
from interlock.processes.local import LocalProcesses
from interlock.runtime.settings import CRASHES
from interlock.stores.base import StoreFailed, Ticket
from interlock.testing.processes import VirtualProcesses

from .lives import PATIENT, Place, behind, carried_out, kept_out, until
from .scene import at_once, deaf, echoes, idles, kinds, log_of, put_forward, raises, started, story, told


async def for_ever() -> None:
    """What a scene waits for that somebody else ends."""
    await asyncio.Event().wait()


def sends(session: str, text: str, **options: Any) -> Callable[[Control], Awaitable[None]]:
    """A scene that sends one message and leaves the rest to the agent."""

    async def scene(control: Control) -> None:
        await control.send(session, text, **options)
        await for_ever()

    return scene


async def quiet(control: Control) -> None:
    """Wait until nothing of any session is in memory."""
    await until(lambda: not control._registry.sessions)
    assert control._registry.runs == {} and control._registry.keys == {} and control._registry.falls == {}


async def terminal(control: Control, session: str, run: str) -> Ended:
    """The one terminal event of a run; nothing of the run follows it."""
    own = [event for event in await log_of(control, session) if event.run_id == run]
    assert kinds(own).count("ended") == 1, kinds(own)
    assert own[-1].kind is EventKind.ENDED, kinds(own)
    return own[-1].data


async def agreed(control: Control, session: str, run: str) -> tuple[Any, ...]:
    """The story of a run's ending, after every surface was asked for it and said the same."""
    outcome = await control.wait(run, drained=True)
    [listed] = [info for info in await control.runs(session) if info.id == run]
    receipt = await control.receipt(run)
    [fallen] = [each for each in receipt.runs if each.id == run]
    async with aclosing(control.watch(run=run)) as events:
        replayed = [event async for event in events]
    ended = (await terminal(control, session, run)).outcome
    assert listed.state is State.ENDED and listed.outcome is not None
    for other in (listed.outcome, fallen.outcome, ended, replayed[-1].data.outcome):
        assert story(other) == story(outcome)
        assert other.same_story(outcome)
    told_at_last = [entry for entry in await control.history(session) if entry.run_id == run and entry.ending]
    assert [entry.ending for entry in told_at_last] == [outcome.ending]
    assert [m.state for m in await control.timeline(run) if m.what == "ended"] == [outcome.ending]
    assert receipt.drain is Drain.OBSERVED and outcome.drained and outcome.durable
    return story(outcome)


# A run that had begun


def test_a_run_that_had_begun_is_lost_with_what_it_had_said(place: Place) -> None:
    """Its blocks and its open deltas are its text, the cut is marked once, and every surface tells the same."""

    async def agent(run: Run, message: Message) -> None:
        await run.say("al")
        await run.say("pha")
        await run.post("beta")
        await run.say("gam")
        place.die(run.id)

    async def after(control: Control) -> None:
        assert await agreed(control, "s", lost) == (Ending.LOST, "alpha\n\nbeta\n\ngam", None, None)
        entries = [(e.role, e.text, e.cut) for e in await control.history("s")]
        assert entries == [
            ("user", "go", False),
            ("assistant", "alpha", False),
            ("assistant", "beta", False),
            ("assistant", "gam", True),
        ]
        assert [m.what for m in await control.timeline(lost)] == [
            "admitted", "started", "output", "output", "fell", "output", "ended", "drained",
        ]  # fmt: skip
        await quiet(control)

    lost = place.killed(sends("s", "go"), agent)
    place.life(after, echoes)
    place.life(after, echoes)  # and again: nothing is found unsettled a second time


def test_a_run_killed_before_its_agent_s_first_word_is_lost(place: Place) -> None:
    """Once the started mark is in, the message is not begun again, whatever the agent did not get to."""

    def dies_at_the_mark(store: Any) -> None:
        behind(store, "decide", place.die, when=lambda decision: decision.starts)

    async def after(control: Control) -> None:
        [info] = await control.runs("s")
        assert (await agreed(control, "s", info.id))[:2] == (Ending.LOST, "")
        assert [(e.role, e.text, e.ending) for e in await control.history("s")] == [
            ("user", "go", None),
            ("assistant", "", Ending.LOST),
        ]
        await quiet(control)

    place.killed(sends("s", "go"), echoes, before=dies_at_the_mark)
    place.life(after, echoes)


def test_a_tool_that_had_begun_is_told_and_never_run_again(place: Place) -> None:
    """Person and model read "started, outcome unknown"; one that had finished keeps its result, a third is skipped."""
    bodies: list[int] = []

    async def pays(amount: int) -> str:
        bodies.append(amount)
        if amount:
            place.die()
        return "paid nothing"

    async def agent(run: Run, message: Message) -> str:
        if message.text == "pay":
            await run.batch([(pays, {"amount": 0}), (pays, {"amount": 5}), (pays, {"amount": 7})])
        assert message.previous is not None and message.previous.ending is Ending.LOST
        results = [(e.tool, e.state, e.text) for e in await run.history() if e.role == "result"]
        assert results == expected
        return "seen"

    expected = [
        ("pays", ToolState.FINISHED, '"paid nothing"'),
        ("pays", ToolState.INTERRUPTED, LOST_RESULT),
        ("pays", ToolState.SKIPPED, "not run: the server went down"),
    ]

    async def after(control: Control) -> None:
        [info] = await control.runs("s")
        ended = await terminal(control, "s", info.id)
        assert [(t.state, t.error) for t in ended.tools] == [(state, text) for _, state, text in expected[1:]]
        results = [(e.tool, e.state, e.text) for e in await control.history("s") if e.role == "result"]
        assert results == expected
        rows = await control._store.tools(info.id)
        assert [(row.state, row.arguments) for row in rows] == [
            (ToolState.FINISHED, '{"amount":0}'),
            (ToolState.INTERRUPTED, '{"amount":5}'),
            (ToolState.SKIPPED, '{"amount":7}'),
        ]
        states = {(each.name, each.state) for each in (await control.receipt(info.id)).tools}
        assert ("pays", ToolState.INTERRUPTED) in states
        sent = await control.send("s", "and?")
        assert (await control.wait(sent.run_id)).text == "seen"
        assert bodies == []

    place.killed(sends("s", "pay"), agent)
    bodies.clear()
    place.life(after, agent)


def test_a_call_whose_start_is_on_record_and_not_told_is_told(place: Place) -> None:
    """Killed between the record of a start and the permit: it counts as begun, for nobody knows better."""

    async def act() -> None:
        raise AssertionError("the permit never came")

    async def agent(run: Run, message: Message) -> None:
        await run.call(act)

    def dies_at_the_record(store: Any) -> None:
        behind(store, "decide", place.die, when=lambda decision: decision.tools)

    async def after(control: Control) -> None:
        [info] = await control.runs("s")
        ended = await terminal(control, "s", info.id)
        assert [(t.state, t.error) for t in ended.tools] == [(ToolState.INTERRUPTED, LOST_RESULT)]

    place.killed(sends("s", "go"), agent, before=dies_at_the_record)
    place.life(after, echoes)


# Questions, holds


@pytest.mark.parametrize("kind", ["question", "approval"])
def test_what_was_asked_is_void_and_says_why(place: Place, kind: str) -> None:
    """A question of a lost run is void for good; whoever answers it is told that nothing was done."""

    @tool(approval="ask")
    async def risky() -> None:
        raise AssertionError("nobody allowed it")

    async def agent(run: Run, message: Message) -> None:
        await (run.ask("really?") if kind == "question" else run.call(risky))

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        asked = await told(control, sent.run_id, EventKind.QUESTION)
        place.die((sent.run_id, asked.data.question_id))

    async def after(control: Control) -> None:
        ended = await terminal(control, "s", lost)
        assert ended.void == (question,)
        assert [t.state for t in ended.tools] == ([] if kind == "question" else [ToolState.SKIPPED])
        with raises(QuestionClosed, "is void: its run is over, and nothing was done"):
            await control.answer(question, True)
        with raises(Unknown, "no question"):
            await control.answer(question, True, by="mallory")
        row = await control._store.question(question)
        assert row.state == "void"
        assert (await control.receipt(lost)).questions == 1
        states = [(m.what, m.state) for m in await control.timeline(lost) if m.what == "question"]
        assert states == [("question", "open"), ("question", "void")]

    lost, question = place.killed(scene, agent)
    place.life(after, agent)
    place.life(after, agent)


def test_a_named_hold_is_free(place: Place) -> None:
    """What a lost run held is anybody's again."""

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("worktree") as hold:
            if message.text == "die":
                place.die(hold.token)
            return f"{hold.token > before} {hold.unconfirmed}"

    async def after(control: Control) -> None:
        sent = await control.send("other", "take it")
        assert (await control.wait(sent.run_id)).text == "True None"  # and the token is higher

    before = place.killed(sends("s", "die"), agent)
    place.life(after, agent)


# Messages that had not begun


def test_messages_that_waited_go_on_in_order_each_once(place: Place) -> None:
    """Under their own ids and keys, behind the lost run's ending, with one `message` event each."""

    async def first(run: Run, message: Message) -> None:
        await asyncio.Event().wait()

    async def scene(control: Control) -> None:
        running = await control.send("s", "running")
        await started(control, running.run_id)
        waiting = [await control.send("s", f"m{n}", strategy="queue", key=f"k{n}") for n in range(4)]
        place.die((running.run_id, [sent.run_id for sent in waiting]))

    ran: list[tuple[str, str]] = []

    async def agent(run: Run, message: Message) -> str:
        ran.append((run.id, message.text))
        return f"done {message.text}"

    async def after(control: Control) -> None:
        for n, run_id in enumerate(waiting):
            outcome = await control.wait(run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, f"done m{n}")
            assert (await control.send("s", f"m{n}", strategy="queue", key=f"k{n}")).run_id == run_id
            with raises(KeyConflict, "use a new key"):
                await control.send("s", "other", strategy="queue", key=f"k{n}")
        assert ran == [(run_id, f"m{n}") for n, run_id in enumerate(waiting)]
        assert (await control.wait(lost)).ending is Ending.LOST
        log = await log_of(control, "s")
        for run_id in waiting:
            assert kinds(log, run_id) == ["message", "started", "block", "ended"]
        began = [e.position for e in log if e.kind is EventKind.STARTED and e.run_id in waiting]
        ended = [e.position for e in log if e.kind is EventKind.ENDED]
        assert all(over < begin for over, begin in zip(ended, began, strict=False))  # one after another
        await quiet(control)

    lost, waiting = place.killed(scene, first)
    place.life(after, agent)
    assert len(ran) == 4
    place.life(quiet, agent)
    assert len(ran) == 4


def test_a_message_killed_between_its_ack_and_its_first_step_begins_once(place: Place) -> None:
    """It had the seat and was not started: it is admitted again under its own id, and its generation is higher."""

    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        ran.append(run.id)
        return f"generation {run.generation}"

    def dies_before_the_mark(store: Any) -> None:
        real = store.decide

        def decide(decision: Any) -> Any:
            if decision.starts:
                carried_out(store)
                place.die(decision.starts[0], written=False)
            return real(decision)

        store.decide = decide

    async def after(control: Control) -> None:
        outcome = await control.wait(run_id)
        assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "generation 2")
        assert (await control.send("s", "go", key="k")).run_id == run_id
        assert kinds(await log_of(control, "s"), run_id) == ["message", "started", "block", "ended"]
        await quiet(control)

    run_id = place.killed(sends("s", "go", key="k"), agent, before=dies_before_the_mark)
    assert ran == []
    place.life(after, agent)
    assert ran == [run_id]


def test_a_steered_message_that_was_not_taken_in_is_a_turn_of_its_own(place: Place) -> None:
    """Its run is lost before it looked; the message is not."""

    async def scene(control: Control) -> None:
        running = await control.send("s", "running")
        await started(control, running.run_id)
        steered = await control.send("s", "steered", strategy="steer", key="k")
        place.die((running.run_id, steered.run_id))

    async def after(control: Control) -> None:
        assert (await control.wait(lost)).ending is Ending.LOST
        outcome = await control.wait(steered)
        assert (outcome.run_id, outcome.text) == (steered, "steered")
        assert (await control.send("s", "steered", strategy="steer", key="k")).run_id == steered

    lost, steered = place.killed(scene, idles)
    place.life(after, echoes)


def test_a_steered_message_that_was_taken_in_shares_its_run_s_ending(place: Place) -> None:
    """`wait`, `receipt` and `watch` follow it to the run that took it in, and it is not begun again."""

    async def agent(run: Run, message: Message) -> str:
        if message.text != "running":
            return "begun again"
        while not (taken := await run.check()):
            await asyncio.sleep(0.001)
        await run.post("took it in")
        place.die((run.id, taken[0].run_id))
        return ""

    async def scene(control: Control) -> None:
        running = await control.send("s", "running")
        await started(control, running.run_id)
        await control.send("s", "steered", strategy="steer", key="k")
        await for_ever()

    async def after(control: Control) -> None:
        outcome = await control.wait(part)
        assert (outcome.run_id, outcome.ending, outcome.text) == (lost, Ending.LOST, "took it in")
        assert [run.id for run in (await control.receipt(part)).runs] == [lost]
        async with aclosing(control.watch(run=part)) as events:
            replay = [event async for event in events]
        assert {event.run_id for event in replay} == {lost} and replay[-1].kind is EventKind.ENDED
        sent = await control.send("s", "steered", strategy="steer", key="k")
        assert (await control.wait(sent.run_id)).run_id == lost
        assert [e.text for e in await control.history("s") if e.role == "user"] == ["running", "steered"]
        await quiet(control)

    lost, part = place.killed(scene, agent)
    place.life(after, agent)


def test_collected_messages_are_one_turn_again(place: Place) -> None:
    """All parts, in order, with their authors and the shortest deadline; each key gives the turn's id."""
    collecting = {"strategy": "collect", "admins": ["alice", "bob"]}

    async def scene(control: Control) -> None:
        running = await control.send("s", "running", by="alice", strategy="interrupt")
        await started(control, running.run_id)
        whole = [
            await control.send("s", text, by=by, key=text, deadline=deadline)
            for text, by, deadline in (("a", "alice", None), ("b", "bob", 50), ("c", "alice", 900))
        ]
        place.die([sent.run_id for sent in whole])

    parts: list[Any] = []

    async def agent(run: Run, message: Message) -> None:
        parts.append([(part.by, part.text) for part in message.parts])
        await asyncio.Event().wait()

    async def after(control: Control) -> None:
        again = await asyncio.gather(
            *(
                control.send("s", text, by=by, key=text, deadline=deadline)
                for text, by, deadline in (("a", "alice", None), ("b", "bob", 50), ("c", "alice", 900))
            )
        )
        assert [sent.run_id for sent in again] == ids
        await until(lambda: parts)  # it has begun
        put_forward(50)
        outcome = await control.wait(ids[0], timeout=30, by="alice")
        assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 50_000)
        assert parts == [[("alice", "a"), ("bob", "b"), ("alice", "c")]]
        said = [e.data for e in await log_of(control, "s") if e.kind is EventKind.MESSAGE and e.run_id == ids[0]]
        assert [each.text for each in said] == ["a", "b", "c"]
        await quiet(control)

    ids = place.killed(scene, idles, **collecting)
    assert len(set(ids)) == 1
    place.life(after, agent, **collecting)


def test_a_key_of_a_lost_run_gives_the_same_answer_at_once(place: Place) -> None:
    """Also while the lost run is still being settled: the retry may be the first thing that comes."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go", key="k")
        await started(control, sent.run_id)
        place.die(sent.run_id)

    async def after(control: Control) -> None:
        answers = await asyncio.gather(*(control.send("s", "go", key="k") for _ in range(3)))
        assert [sent.run_id for sent in answers] == [lost] * 3
        with raises(KeyConflict, "use a new key"):
            await control.send("s", "something else", key="k")
        assert len(await control.runs("s")) == 1

    lost = place.killed(scene, idles)
    place.life(after, idles)


# Trees


def test_a_lost_tree(place: Place) -> None:
    """The parent is lost, its children end with it, down to the last; a detached child is lost by itself."""

    async def helper(run: Run, message: Message) -> None:
        if message.text == "deep":
            await run.delegate("helper", "deeper")
        else:
            await run.say(message.text)
        await asyncio.Event().wait()

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("helper", "detached", detached=True, announce=None)
        await run.delegate("helper", "deep")

    async def scene(control: Control) -> None:
        await control.send("s", "go", by="alice")

        async def all_there() -> bool:
            infos = await control.runs("s", tree=True, by="alice")
            return len(infos) == 4 and all(info.state is State.STARTED for info in infos)

        while not await all_there():
            await asyncio.sleep(0.001)
        await until(lambda: all(run.reply.open for run in control._registry.runs.values() if not run.children))
        place.die()

    async def after(control: Control) -> None:
        infos = await control.runs("s", tree=True, by="alice")
        by_text = {(await control._store.run(info.id)).text: info for info in infos}
        assert {text: info.outcome.ending for text, info in by_text.items()} == {
            "go": Ending.LOST,
            "deep": Ending.PARENT_ENDED,
            "deeper": Ending.PARENT_ENDED,
            "detached": Ending.LOST,
        }
        ended = await terminal(control, "s", by_text["go"].id)
        assert [(c.child, c.ending) for c in ended.children] == [(by_text["deep"].id, Ending.PARENT_ENDED)]
        deep = await terminal(control, by_text["deep"].session, by_text["deep"].id)
        assert [c.child for c in deep.children] == [by_text["deeper"].id]
        assert by_text["detached"].outcome.text == "detached"
        assert {text: info.depth for text, info in by_text.items()} == {"go": 0, "detached": 1, "deep": 1, "deeper": 2}
        receipt = await control.receipt(by_text["go"].id, by="alice")
        assert {run.id for run in receipt.runs} == {by_text[text].id for text in ("go", "deep", "deeper")}
        for info in infos:
            outcome = await control.wait(info.id, drained=True, by="alice")
            assert outcome.drained and story(outcome) == story(info.outcome)
            assert (await control.wait(info.id, by="mallory")).ending is Ending.UNKNOWN
        await quiet(control)

    place.killed(scene, agent, agents={"helper": helper})
    place.life(after, echoes)  # which has no helper any more
    place.life(after, echoes)


# What a session is


def test_what_was_said_of_a_session_is_still_so(place: Place) -> None:
    """Strategy, reset, hidden turns, tombstones, stop marks and owners are as they were."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "idle":
            await asyncio.Event().wait()
        return str([e.text for e in await run.history() if e.role == "user"])

    async def scene(control: Control) -> None:
        by = "alice"
        first = await control.send("reset", "forget this", by=by)
        await control.wait(first.run_id, by=by)
        await control.reset("reset", by=by)
        idle = await control.send("hidden", "idle", by=by)
        await until(lambda: control._registry.runs[idle.run_id].state is State.STARTED)
        over = await control.send("hidden", "instead", by=by, strategy="rollback")
        await control.wait(over.run_id, by=by)
        await control.wait((await control.send("strict", "x", by=by)).run_id, by=by)
        await control.set_strategy("strict", "reject", by=by)
        await control.stop(message="never", by=by)
        marked = await control.stop(session="marked", by=by, order=("channel", 7))
        assert marked.durable
        place.die((idle.run_id, first.generation))

    async def after(control: Control) -> None:
        by = "alice"
        assert await control.history("reset", by=by) == []
        sent = await control.send("reset", "fresh", by=by)
        assert (await control.wait(sent.run_id, by=by)).text == "['fresh']"
        assert sent.generation > generation + 1  # the reset raised it too
        entries = await control.history("hidden", by=by)
        assert {e.run_id for e in entries if e.hidden} == {hidden}
        sent = await control.send("hidden", "seen?", by=by)
        assert "idle" not in (await control.wait(sent.run_id, by=by)).text
        busy = await control.send("strict", "idle", by=by)
        with raises(Refused, "is busy"):
            await control.send("strict", "no", by=by)
        await control.stop(run=busy.run_id, by=by)
        born_stopped = await control.send("any", "x", by=by, key="never")
        assert (await control.wait(born_stopped.run_id, by=by)).ending is Ending.STOPPED
        late = await control.send("marked", "late", by=by, order=("channel", 6))
        assert (await control.wait(late.run_id, by=by)).ending is Ending.STOPPED
        later = await control.send("marked", "later", by=by, order=("channel", 8))
        assert (await control.wait(later.run_id, by=by)).ending is Ending.COMPLETED
        for verb in (control.history, control.runs):
            with raises(Unknown, "no session"):
                await verb("hidden", by="mallory")

    hidden, generation = place.killed(scene, agent)
    place.life(after, agent)


def test_schedules_go_on_and_nothing_is_made_up(place: Place) -> None:
    """A wake that was due while nobody served is not run; the others stand, and a lost wake is lost."""

    async def agent(run: Run, message: Message) -> None:
        if message.text == "often":
            place.die((run.id, {wake.text: wake.at for wake in await place.control.wakes("s")}))

    async def scene(control: Control) -> None:
        await control.wait((await control.send("s", "found")).run_id)
        await control.wake("s", "later", at=time.time() + 3_600)
        await control.wake("s", "cron", cron="0 9 * * *")
        await control.wake("s", "often", every=1)
        await control.wake("s", "once", at=time.time() + 1.05)  # when the run of `often` is dead, or at least going
        await for_ever()

    async def after(control: Control) -> None:
        assert {wake.text for wake in await control.wakes("s")} == {"later", "cron", "often"}
        row = await control._store.run(lost)
        assert (row.kind, row.outcome.ending) == ("wake", Ending.LOST)
        assert "once" not in [run.text for run in await control._store.runs("s")]
        for wake in await control.wakes("s"):
            await control.unwake(wake.id)

    async def last(control: Control) -> None:
        assert await control.wakes("s") == []

    lost, wakes = place.killed(scene, agent)
    while time.time() <= wakes.get("once", 0.0):  # it passes while nobody serves
        time.sleep(0.01)
    place.life(after, echoes)
    place.life(last, echoes)


def test_a_wake_that_was_accepted_and_had_not_begun_runs_once(place: Place) -> None:
    """It is a message like any other by then; whatever comes takes it over."""

    def dies_before_the_mark(store: Any) -> None:
        real = store.decide

        def decide(decision: Any) -> Any:
            if decision.starts and not place_started:
                place_started.append(True)
            elif decision.starts:
                carried_out(store)
                place.die(decision.starts[0], written=False)
            return real(decision)

        store.decide = decide

    place_started: list[bool] = []

    async def scene(control: Control) -> None:
        await control.wait((await control.send("s", "found")).run_id)
        await control.wake("s", "woken", at=time.time() + 0.1)
        await for_ever()

    async def after(control: Control) -> None:
        [_, info] = await control.runs("s")
        assert (info.id, info.kind) == (woken, "wake")
        assert (await control.wait(woken)).text == "woken"
        assert await control.wakes("s") == []

    woken = place.killed(scene, echoes, before=dies_before_the_mark)
    place.life(after, echoes)


# Crash loops


def crash(place: Place, *messages: tuple[str, str]) -> None:
    """A life that dies in the first run that is told to."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "die":
            place.die()
        return "alive"

    async def scene(control: Control) -> None:
        for session, text in messages:
            sent = await control.send(session, text, strategy="queue")
            if text != "die":
                await control.wait(sent.run_id)
        await for_ever()

    place.killed(scene, agent)


def test_a_session_that_brings_the_server_down_is_parked(place: Place) -> None:
    """Three times in a row: it takes nothing and begins nothing, others go on, and a reset frees it."""

    sent: list[str] = []

    async def scene(control: Control) -> None:
        for n in range(CRASHES + 2):
            sent.append((await control.send("bad", "die", strategy="queue", key=f"k{n}")).run_id)
        await for_ever()

    async def waits_and_dies(run: Run, message: Message) -> None:
        await until(lambda: len(sent) == CRASHES + 2)
        place.die()

    async def dies(run: Run, message: Message) -> None:
        place.die()

    began: list[str] = []

    async def counts(run: Run, message: Message) -> str:
        began.append(message.text)
        return "alive"

    async def parked(control: Control) -> None:
        with raises(Refused, r"is parked: the server went down 3 times in a row.*reset it to go on"):
            await control.send("bad", "hello")
        sent = await control.send("good", "hello")
        assert (await control.wait(sent.run_id)).text == "alive"
        states = [info.state for info in await control.runs("bad")]
        assert states.count(State.ENDED) == CRASHES and states.count(State.QUEUED) == 2
        assert [run.outcome.ending for run in await control._store.runs("bad") if run.outcome] == [Ending.LOST] * 3
        assert began == ["hello"]

    async def freed(control: Control) -> None:
        await control.reset("bad")
        assert [run.outcome.ending for run in await control._store.runs("bad")][CRASHES:] == [Ending.STOPPED] * 2
        sent = await control.send("bad", "hello")
        assert (await control.wait(sent.run_id)).text == "alive"

    place.killed(scene, waits_and_dies)
    for _ in range(CRASHES - 1):
        place.killed(lambda control: for_ever(), dies)  # what waits begins by itself
    place.life(parked, counts)
    began.clear()
    place.life(parked, counts)  # a restart does not free it
    place.life(freed, counts)
    place.life(lambda control: control.send("bad", "hello again"), counts)


@pytest.mark.parametrize("between", ["completed", "stopped", "shutdown", "other"])
def test_only_a_row_of_crashes_parks_a_session(place: Place, between: str) -> None:
    """A run of the session that ended otherwise begins the count anew; one of another session does not."""

    async def interlude(control: Control) -> None:
        sent = await control.send("bad" if between != "other" else "good", "alive" if between != "stopped" else "idle")
        if between in ("completed", "other"):
            await control.wait(sent.run_id)
        elif between == "stopped":
            await control.stop(session="bad")
        else:
            await started(control, sent.run_id)

    async def agent(run: Run, message: Message) -> str:
        if between in ("stopped", "shutdown"):
            await asyncio.Event().wait()
        return "alive"

    async def after(control: Control) -> None:
        if between == "other":
            with raises(Refused, "is parked"):
                await control.send("bad", "hello")
        else:
            assert (await control.send("bad", "hello")).run_id

    for _ in range(CRASHES - 1):
        crash(place, ("bad", "die"))
    place.life(interlude, agent)
    crash(place, ("bad", "die"))
    place.life(after, echoes)


# Closing in good order


def test_a_clean_close_keeps_the_queue_and_the_next_start_runs_it(place: Place) -> None:
    """What ran is told as `shutdown`, what waited goes on, and no watcher is told of a gap."""

    async def scene(control: Control) -> list[str]:
        running = await control.send("s", "running")
        await started(control, running.run_id)
        return [running.run_id] + [(await control.send("s", f"m{n}", strategy="queue")).run_id for n in range(3)]

    async def after(control: Control) -> None:
        for n, run_id in enumerate(waiting):
            assert (await control.wait(run_id)).text == f"m{n}"
        assert (await control.wait(running)).ending is Ending.SHUTDOWN
        assert EventKind.GAP not in [event.kind for event in await log_of(control, "s")]
        assert (await control._store.session("s")).crashes == 0
        await quiet(control)

    running, *waiting = place.life(scene, idles)
    place.life(after, echoes)
    assert place.look(lambda store: store.unsettled()) == ()


# Watching across a crash


def test_a_watcher_goes_on_where_it_was(place: Place) -> None:
    """Behind its position come each event once, in order, one gap, and nothing of a run behind its end."""

    async def agent(run: Run, message: Message) -> str:
        await run.post("one")
        await run.say("two")
        if message.text == "die":
            carried_out(place.store)
            seen = await log_of(place.control, "s")
            place.die(seen)
        return "three"

    async def scene(control: Control) -> None:
        await control.wait((await control.send("s", "hello")).run_id, drained=True)
        await control.send("s", "die")
        await for_ever()

    async def after(control: Control) -> None:
        sent = await control.send("s", "last")
        await control.wait(sent.run_id, drained=True)
        log = await log_of(control, "s")
        for event in seen:
            tail: list[Event] = []
            async with aclosing(control.watch("s", after=event.position)) as events:
                async for each in events:
                    tail.append(each)
                    if each.position == log[-1].position:
                        break
            positions = [each.position for each in tail]
            assert positions == sorted(set(positions)) and all(p > event.position for p in positions)
            assert positions == [
                e.position for e in log if e.position > event.position and e.kind is not EventKind.DELTA
            ]
            lasting = [each.position for each in seen if each.kind is not EventKind.DELTA]
            assert [each.data.after for each in tail if each.kind is EventKind.GAP] == lasting[-1:]
            over: set[str] = set()
            for each in tail:
                assert each.run_id is None or each.run_id not in over
                over |= {each.run_id} if each.kind is EventKind.ENDED and each.run_id else set()
        assert log[-1].position >> 32 == 2 and seen[-1].position >> 32 == 1

    seen = place.killed(scene, agent)
    assert kinds(seen)[-2:] == ["block", "delta"]
    place.life(after, agent)


def test_a_session_of_which_nothing_was_cut_short_has_no_gap(place: Place) -> None:
    """Another session's crash is not its own."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "die":
            place.die()
        return "done"

    async def scene(control: Control) -> None:
        await control.wait((await control.send("calm", "hello")).run_id, drained=True)
        await until(lambda: "calm" not in control._registry.sessions)
        carried_out(place.store)
        await asyncio.sleep(0)
        await control.send("s", "die")
        await for_ever()

    async def after(control: Control) -> None:
        assert "gap" not in kinds(await log_of(control, "calm"))
        assert kinds(await log_of(control, "s")).count("gap") == 1

    place.killed(scene, agent)
    place.life(after, agent)


# Receipts


def test_receipts_that_were_pending_are_completed(place: Place) -> None:
    """What was still being drained went down with the server; `wait(drained=True)` on it returns, at once and true."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        await started(control, sent.run_id)
        receipt = await control.stop(session="s")
        assert receipt.drain is Drain.PENDING
        place.die((sent.run_id, receipt))

    async def after(control: Control) -> None:
        outcome = await control.wait(run_id, drained=True)
        assert (outcome.ending, outcome.drained, outcome.durable) == (Ending.STOPPED, True, True)
        for receipt in (await control.receipt(run_id), await control.receipt(acked.id)):
            assert receipt.drain is Drain.OBSERVED and receipt.drained_at is not None
            assert (receipt.fenced_at, receipt.ended_at) == (acked.fenced_at, acked.ended_at)
            assert all(run.outcome.drained for run in receipt.runs)
        proofs = [e.data.receipt for e in await log_of(control, "s") if e.kind is EventKind.RECEIPT]
        assert [proof.drain for proof in proofs] == [Drain.PENDING, Drain.OBSERVED]
        assert await control._store.pending_receipts() == ()
        assert (await terminal(control, "s", run_id)).outcome.same_story(outcome)

    slow = {"settings": type(PATIENT)(commit_seconds=10, grace_seconds=60, drain_seconds=60)}
    run_id, acked = place.killed(scene, deaf, **slow)
    place.life(after, echoes)


def test_when_a_stop_was_told_is_not_made_up(place: Place) -> None:
    """A server that went down before the log told of a stop leaves nobody who knows when that was."""

    def dies_at_the_ending(store: Any) -> None:
        behind(store, "decide", place.die, when=lambda decision: decision.endings)

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go", key="k")
        await started(control, sent.run_id)
        await control.stop(session="s")

    async def after(control: Control) -> None:
        [info] = await control.runs("s")
        receipt = await control.receipt(info.id)
        assert (receipt.cause, receipt.drain, receipt.ended_at) == (Ending.STOPPED, Drain.OBSERVED, None)
        assert receipt.fence_to_end_ms is None and receipt.drained_at is not None

    place.killed(scene, deaf, before=dies_at_the_ending)
    place.life(after, echoes)


class Helpless(VirtualProcesses):
    """Processes whose helper cannot be started."""

    async def ready(self) -> Any:
        raise SpawnFailed(11, "no helper today")


class Haunted(VirtualProcesses):
    """Processes whose helper found one of an earlier start that no KILL ends."""

    async def ready(self) -> Machine:
        return Machine(grade=Grade.KEEPER, left=("process 77 (sleep, state D)",))


@pytest.mark.parametrize("processes", [Helpless, Haunted])
def test_processes_that_are_not_seen_gone_are_not_called_gone(place: Place, processes: type[VirtualProcesses]) -> None:
    """What an earlier start left could not be looked for, or not ended: its receipts say unconfirmed, and name it."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        await started(control, sent.run_id)
        place.die(sent.run_id)

    async def after(control: Control) -> None:
        assert (await control.wait(lost, drained=True)).ending is Ending.LOST
        receipt = await control.receipt(lost)
        assert receipt.drain is Drain.UNCONFIRMED and receipt.unconfirmed

    lost = place.killed(scene, idles)
    place.life(after, echoes, processes=processes(Random(0)))


def test_a_process_that_was_left_is_gone_before_anything_is_taken(tmp_path: Path) -> None:
    """With real processes: what a lost run had spawned does not outlive the next start's opening."""
    place = Place("sqlite", tmp_path / "data")

    async def agent(run: Run, message: Message) -> None:
        running = await run.spawn("sleep", "1000", background=True)
        place.die((run.id, running.pid))

    async def after(control: Control) -> None:
        assert not Path(f"/proc/{pid}").exists()
        assert (await agreed(control, "s", lost))[0] is Ending.LOST

    lost, pid = place.killed(sends("s", "go"), agent, processes=LocalProcesses())
    place.life(after, echoes, processes=LocalProcesses())


# What is private stays so


def test_a_message_that_ended_before_its_session_was_anybody_s_leaves_no_text(place: Place) -> None:
    """Whoever founds the session later must not read it, also where its ending is told by the next start."""

    def dies_at_the_ending(store: Any) -> None:
        behind(store, "decide", place.die, when=lambda decision: decision.endings)

    async def scene(control: Control) -> None:
        await at_once(control.send("s", "a secret", by="alice", key="k"), control.stop(message="k", by="alice"))
        await for_ever()

    async def after(control: Control) -> None:
        sent = await control.send("s", "mine", by="mallory")
        await control.wait(sent.run_id, by="mallory")
        seen = [event.data for event in await log_of(control, "s")]
        assert "a secret" not in repr(seen)
        assert "a secret" not in repr(await control.history("s", by="mallory"))

    place.killed(scene, echoes, before=dies_at_the_ending)
    place.life(after, echoes)


def test_runs_of_others_stay_hidden(place: Place) -> None:
    """Who may see, stop, answer and watch a run is the same after a restart, lost or waiting."""

    async def scene(control: Control) -> None:
        running = await control.send("s", "running", by="alice")
        await until(lambda: control._registry.runs[running.run_id].state is State.STARTED)
        waiting = await control.send("s", "waiting", by="alice", strategy="queue")
        place.die((running.run_id, waiting.run_id))

    async def after(control: Control) -> None:
        for run_id in (lost, waiting):
            assert (await control.wait(run_id, by="mallory", timeout=0)).ending is Ending.UNKNOWN
            assert not (await control.stop(run=run_id, by="mallory")).aborted
            with raises(Unknown, "no receipt"):
                await control.receipt(run_id, by="mallory")
            with raises(Unknown, "no run"):
                await control.timeline(run_id, by="mallory")
        for verb in (control.history, control.runs):
            with raises(Unknown, "no session"):
                await verb("s", by="mallory")
        assert await control.runs(by="mallory") == []
        assert not (await control.stop(session="s", by="mallory")).aborted
        assert (await control.stop(run=waiting, by="alice")).aborted
        assert (await control.wait(waiting, by="alice")).ending is Ending.STOPPED

    lost, waiting = place.killed(scene, idles)
    place.life(after, idles)


# Bounds and faults


def test_nothing_is_left_in_memory(place: Place) -> None:
    """Many sessions of every sort are settled, and when nothing waits nothing of them is in memory."""
    sessions = 40

    async def scene(control: Control) -> None:
        for n in range(sessions):
            await control.send(f"s{n}", f"go {n}", key=f"k{n}")
            if n % 2:
                await control.send(f"s{n}", f"more {n}", strategy="queue")
        await until(lambda: sum(run.state is State.STARTED for run in control._registry.runs.values()) == sessions)
        place.die()

    async def after(control: Control) -> None:
        await quiet(control)
        assert control._registry.questions == {}
        for n in range(sessions):
            endings = [info.outcome.ending for info in await control.runs(f"s{n}")]
            assert endings == [Ending.LOST] + [Ending.COMPLETED] * (n % 2)

    place.killed(scene, idles)
    place.life(after, echoes)
    assert place.look(lambda store: store.unsettled()) == ()
    assert place.look(lambda store: store.pending_receipts()) == ()


def test_a_thousand_runs_at_once(place: Place) -> None:
    """A thousand runs that had begun, each in its session, are lost in one start, and all of them are told."""
    many = 1_000

    async def scene(control: Control) -> None:
        await asyncio.gather(*(control.send(f"s{n}", "go") for n in range(many)))
        await until(lambda: sum(run.state is State.STARTED for run in control._registry.runs.values()) == many)
        place.die()

    async def after(control: Control) -> None:
        rows = [row for n in range(many) for row in await control._store.runs(f"s{n}")]
        assert len(rows) == many and {row.outcome.ending for row in rows} == {Ending.LOST}
        await quiet(control)

    place.killed(scene, idles)
    place.life(after, echoes)
    assert place.look(lambda store: store.unsettled()) == ()


class Unreadable:
    """Makes a store's reads fail from the nth on."""

    def __init__(self, store: Any, name: str, good: int) -> None:
        self.left, self.real = good, getattr(store, name)
        setattr(store, name, self.ask)

    async def ask(self, *given: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StoreFailed("the store cannot be read; try again later")
        return await self.real(*given, **named)


@pytest.mark.parametrize("read", ["unsettled", "unsettled_runs", "load", "events", "tools", "pending_receipts"])
def test_a_store_that_cannot_be_read_opens_nothing_and_destroys_nothing(place: Place, read: str) -> None:
    """The error says so; a later start finds the same: lost is lost, what waited waits, and the gap is told."""

    async def agent(run: Run, message: Message) -> None:
        if message.text == "tool":
            await run.call(asyncio.Event().wait)
        await asyncio.Event().wait()

    async def scene(control: Control) -> None:
        runs = []
        for session in ("a", "b"):
            running = await control.send(session, "running")
            await started(control, running.run_id)
            waiting = await control.send(session, f"waits in {session}", strategy="queue")
            runs.append((running.run_id, waiting.run_id))
        seat = await control.send("c", "running")
        await started(control, seat.run_id)
        await control.send("c", "taken over", strategy="queue")
        place.die(runs)

    ran: list[str] = []

    async def counts(run: Run, message: Message) -> str:
        ran.append(message.text)
        return message.text

    async def never(control: Control) -> None:
        raise AssertionError("it opened")

    async def after(control: Control) -> None:
        for session, (lost, waiting) in zip("ab", runs, strict=True):
            assert (await control.wait(lost)).ending is Ending.LOST
            outcome = await control.wait(waiting)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, f"waits in {session}")
            log = await log_of(control, session)
            assert kinds(log, lost).count("ended") == kinds(log, waiting).count("ended") == 1
            assert "gap" in kinds(log)
        assert sorted(ran) == ["taken over", "waits in a", "waits in b"]

    runs = place.killed(scene, agent)
    good = {"unsettled": 0, "unsettled_runs": 2, "load": 2, "events": 2, "tools": 2, "pending_receipts": 0}[read]
    with raises(Unavailable, "cannot be read"):
        place.life(never, counts, before=lambda store: Unreadable(store, read, good) and None)
    if place.kind == "memory":
        vars(place.store).pop(read)
    place.life(after, counts)


def test_a_store_that_takes_no_writes_while_it_is_opened(place: Place) -> None:
    """The endings are told, not as durable, and are in when the store takes them again; nothing is told twice."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        await started(control, sent.run_id)
        await control.send("s", "next", strategy="queue", key="k")
        place.die(sent.run_id)

    held: list[Callable[[], None]] = []

    async def after(control: Control) -> None:
        assert (await control.wait(lost)).ending is Ending.LOST
        assert not (await control.wait(lost)).durable
        assert not (await control.receipt(lost)).durable
        held.pop()()
        await until(lambda: lost not in control._registry.runs)
        outcome = await control.wait(lost, drained=True)
        assert outcome.durable and outcome.drained
        await terminal(control, "s", lost)
        [_, following] = await control.runs("s")
        assert (await control.wait(following.id)).ended

    def no_writes(store: Any) -> None:
        real = store.unsettled

        async def unsettled() -> Any:
            found = await real()
            held.append(kept_out(store))
            return found

        store.unsettled = unsettled

    lost = place.killed(scene, idles)
    brief = type(PATIENT)(commit_seconds=0.2, retry_seconds=0.1, grace_seconds=0.1, drain_seconds=0.2)
    place.life(after, echoes, before=no_writes, settings=brief)


# What was acknowledged


@pytest.mark.parametrize(
    "verb", ["stop", "order", "absent order", "key", "reset", "strategy", "wake", "unwake", "answer"]
)
def test_what_was_acknowledged_as_durable_is_there(place: Place, verb: str) -> None:
    """Killed right behind the answer to a verb that said durable: the next start knows of it."""

    async def agent(run: Run, message: Message) -> str:
        return str(await run.ask("which?")) if message.text == "idle" else "done"

    async def scene(control: Control) -> None:
        await control.wait((await control.send("s", "found")).run_id, drained=True)
        await until(lambda: not control._registry.sessions)
        told_so, wake = True, None
        if verb in ("stop", "order", "answer"):
            idle = await control.send("s", "idle")
            asked = await told(control, idle.run_id, EventKind.QUESTION)
        if verb == "stop":
            told_so = (await control.stop(session="s")).durable
        elif verb == "order":
            told_so = (await control.stop(session="s", order=("channel", 7))).durable
        elif verb == "absent order":
            told_so = (await control.stop(session="new", order=("channel", 7))).durable
        elif verb == "key":
            told_so = (await control.stop(message="k")).durable
        elif verb == "reset":
            told_so = (await control.reset("s")).durable
        elif verb == "strategy":
            await control.set_strategy("s", "reject")
        elif verb in ("wake", "unwake"):
            wake = (await control.wake("s", "later", every=3_600)).id
            if verb == "unwake":
                await control.unwake(wake)
        elif verb == "answer":
            await control.answer(asked.data.question_id, True)
            wake = asked.data.question_id
        place.die((told_so, wake), written=False)

    async def after(control: Control) -> None:
        last = [info.outcome.ending for info in await control.runs("s")][-1]
        if verb == "stop":
            assert last is Ending.STOPPED
        elif verb in ("order", "absent order"):
            late = await control.send("s" if verb == "order" else "new", "late", order=("channel", 6))
            assert (await control.wait(late.run_id)).ending is Ending.STOPPED
        elif verb == "key":
            assert (await control.wait((await control.send("s", "x", key="k")).run_id)).ending is Ending.STOPPED
        elif verb == "reset":
            assert await control.history("s") == []
        elif verb == "strategy":
            assert (await control._store.session("s")).strategy == "reject"
        elif verb in ("wake", "unwake"):
            assert [wake.id for wake in await control.wakes("s")] == ([made] if verb == "wake" else [])
        else:
            assert (await control._store.question(made)).state == "answered"

    durable, made = place.killed(scene, agent)
    assert durable
    place.life(after, agent)


def test_an_ending_that_was_told_and_not_kept_is_the_one_that_stands(place: Place) -> None:
    """The store refused the record, the watchers were told: the next start keeps what they heard, and adds nothing."""

    def refuses_endings(store: Any) -> None:
        real = store.decide

        def decide(decision: Any) -> Any:
            if not decision.endings:
                return real(decision)
            ticket = Ticket(decision)
            ticket.refuse(StoreFailed("no room"))
            return ticket

        store.decide = decide

    async def agent(run: Run, message: Message) -> None:
        await run.say("partly")
        await asyncio.Event().wait()

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go", by="alice")
        await until(lambda: control._registry.runs[sent.run_id].reply.open)
        receipt = await control.stop(session="s", by="alice")
        assert not receipt.durable
        place.die((sent.run_id, await control.wait(sent.run_id, by="alice")))

    async def after(control: Control) -> None:
        outcome = await control.wait(run_id, timeout=0, by="alice")
        assert outcome.same_story(before)
        assert (outcome.ending, outcome.by, outcome.text) == (Ending.STOPPED, "alice", "partly")
        [info] = await control.runs("s", by="alice")
        assert info.outcome is not None and info.outcome.same_story(before)
        assert (await terminal(control, "s", run_id)).outcome.same_story(before)
        assert (await control._store.session("s")).crashes == 0
        await quiet(control)

    run_id, before = place.killed(scene, agent, before=refuses_endings)
    place.life(after, echoes)
    place.life(after, echoes)
    assert place.look(lambda store: store.unsettled()) == ()


def test_a_steered_message_that_only_the_log_tells_was_taken_in(place: Place) -> None:
    """Killed before the store knew: it is told of once, and ends once; it is never both part and turn."""

    async def agent(run: Run, message: Message) -> str:
        if message.text != "running":
            return "a turn of its own"
        while not (taken := await run.check()):
            await asyncio.sleep(0.001)
        place.die((run.id, taken[0].run_id), written=False)
        return ""

    async def scene(control: Control) -> None:
        running = await control.send("s", "running")
        await started(control, running.run_id)
        await control.send("s", "steered", strategy="steer")
        await for_ever()

    async def after(control: Control) -> None:
        outcome = await control.wait(part)
        assert outcome.ended
        assert (await control.wait(lost)).ending is Ending.LOST
        users = [entry.text for entry in await control.history("s") if entry.role == "user"]
        assert users == ["running", "steered"]
        await quiet(control)

    lost, part = place.killed(scene, agent)
    place.life(after, agent)


def test_a_detached_child_whose_parent_was_done_is_lost(place: Place) -> None:
    """It is told, listed below its session and drained; the session it came from is not blamed for the crash."""

    async def helper(run: Run, message: Message) -> None:
        await run.say("alone")
        await asyncio.Event().wait()

    async def agent(run: Run, message: Message) -> str:
        return (await run.delegate("helper", "go on", detached=True, announce=None)).run_id

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        outcome = await control.wait(sent.run_id, drained=True)
        await until(lambda: control._registry.runs[outcome.text].reply.open)
        place.die((sent.run_id, outcome.text))

    async def after(control: Control) -> None:
        outcome = await control.wait(child, drained=True)
        assert (outcome.ending, outcome.text, outcome.drained) == (Ending.LOST, "alone", True)
        assert (await control.wait(parent)).ending is Ending.COMPLETED
        [above, below] = await control.runs("s", tree=True)
        assert (above.id, below.id, below.parent, below.detached) == (parent, child, parent, True)
        assert (await terminal(control, "s", parent)).children == ()
        await terminal(control, below.session, child)
        assert (await control._store.session("s")).crashes == 0
        await quiet(control)

    parent, child = place.killed(scene, agent, agents={"helper": helper})
    place.life(after, echoes)


def test_limits_count_anew(place: Place) -> None:
    """A message that waits again has the queue's whole time and its own deadline, and is told where it ran out."""

    async def scene(control: Control) -> None:
        for session in ("a", "b"):
            running = await control.send(session, "running")
            await started(control, running.run_id)
            await control.send(session, "first", strategy="queue", deadline=0.1 if session == "a" else None)
            await control.send(session, "second", strategy="queue")
        place.die()

    async def after(control: Control) -> None:
        [_, first, _] = await control.runs("a")
        outcome = await control.wait(first.id)
        assert (outcome.ending, outcome.limit_ms, outcome.phase) == (Ending.TIMED_OUT, 100, "start")
        [_, holder, waits] = await control.runs("b")
        outcome = await control.wait(waits.id)
        assert (outcome.ending, outcome.limit_ms, outcome.phase) == (Ending.TIMED_OUT, 1_000, "queue")
        assert (await control.wait(holder.id, timeout=0)).ending is Ending.PENDING

    place.killed(scene, idles)
    place.life(after, idles, queue_limit=1.0)


def test_who_had_the_seat_goes_before_who_waited_longer(place: Place) -> None:
    """A message that had taken the seat past another's, and had not begun, still goes first; the other follows."""
    order: list[str] = []

    def dies_before_the_second_mark(store: Any) -> None:
        real, marks = store.decide, []

        def decide(decision: Any) -> Any:
            marks.extend(decision.starts)
            if len(marks) == 2:
                carried_out(store)
                place.die(written=False)
            return real(decision)

        store.decide = decide

    async def scene(control: Control) -> None:
        await control.send("s", "bob 1", by="bob")
        await until(lambda: any(run.state is State.STARTED for run in control._registry.runs.values()))
        await control.send("s", "carol", by="carol", strategy="queue")
        await control.send("s", "bob 2", by="bob")
        await for_ever()

    async def agent(run: Run, message: Message) -> str:
        order.append(message.text)
        return message.text

    async def after(control: Control) -> None:
        await quiet(control)
        assert order == ["bob 2", "carol"]

    async def owned(control: Control) -> None:
        await control.wait((await control.send("s", "alice's", by="alice")).run_id, by="alice")
        for guest in ("bob", "carol"):
            await control.share("s", with_=guest, by="alice")

    place.life(owned, echoes)
    place.killed(scene, idles, before=dies_before_the_second_mark)
    place.life(after, agent)


def test_a_parked_session_is_left_alone_by_its_schedules(place: Place) -> None:
    """A wake of a session that is parked is skipped, and what waits there does not begin."""

    async def made(control: Control) -> None:
        await control.wait((await control.send("bad", "found")).run_id)
        await control.wake("bad", "woken", every=1)

    async def after(control: Control) -> None:
        await until(lambda: control._wakes.of("bad")[0].skipped)
        assert all(row.outcome is not None for row in await control._store.runs("bad"))
        assert "woken" not in [row.text for row in await control._store.runs("bad")]

    place.life(made, echoes)
    for _ in range(CRASHES):
        crash(place, ("bad", "die"))
    place.life(after, echoes)


# A stop that a person typed


def test_that_a_stop_was_typed_outlives_a_crash(place: Place) -> None:
    """Whether it was told before the server died or is told by the next start, it is told as typed."""

    async def scene(control: Control) -> None:
        sent = [(await control.send(session, "go")).run_id for session in ("told", "untold")]
        for run_id in sent:
            await started(control, run_id)
        await control.stop(session="told", typed=True)
        behind(place.store, "decide", lambda: place.die(sent), when=lambda decision: decision.endings)
        await control.stop(session="untold", typed=True)

    async def after(control: Control) -> None:
        for session, run_id in zip(("told", "untold"), runs, strict=True):
            assert (await agreed(control, session, run_id))[0] is Ending.STOPPED
            outcome = await control.wait(run_id)
            assert outcome.typed and agent_wait(outcome).stop_reason == "stop"

    runs = place.killed(scene, idles)
    place.life(after, echoes)
    place.life(after, echoes)


# A run that was sent to no session


def test_a_run_without_a_session_is_admitted_again(place: Place) -> None:
    """A run that had not begun when the server died begins at the next start, under its own id and key."""

    async def scene(control: Control) -> None:
        behind(place.store, "decide", lambda: place.die(list(control._registry.runs)), when=lambda d: d.admissions)
        await control.send(None, "go", by="alice", key="k", kind="agent")

    async def after(control: Control) -> None:
        info = await control.find("k", by="alice")
        assert info is not None and (info.id, info.kind, info.session) == (run_id, "agent", f"run:{run_id}")
        outcome = await control.wait(run_id, drained=True, by="alice")
        assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "go")
        again = await control.send(None, "go", by="alice", key="k", kind="agent")
        assert (again.run_id, again.session) == (run_id, f"run:{run_id}")
        with pytest.raises(KeyConflict):
            await control.send(None, "go", by="alice", key="k")

    [run_id] = place.killed(scene, idles)
    place.life(after, echoes)


def test_a_run_without_a_session_is_lost_once_it_had_begun(place: Place) -> None:
    """A run that had begun is lost, found by its id and key, and counts against no session's crashes."""

    async def scene(control: Control) -> None:
        sent = await control.send(None, "go", by="alice", key="k", kind="agent")
        await started(control, sent.run_id)
        place.die(sent.run_id)

    async def after(control: Control) -> None:
        assert (await control.wait(run_id, by="alice")).ending is Ending.LOST
        found = await control.find("k", by="alice")
        assert found is not None and (found.id, found.state) == (run_id, State.ENDED)
        assert [info.id for info in await control.runs(latest=9, by="alice")] == [run_id]
        assert (await control.stop(run=run_id, by="alice")).already is Ending.LOST
        row = await control._store.session(found.session)
        assert row is not None and row.crashes == 0
        assert await control.sessions(by="alice") == []

    run_id = place.killed(scene, idles)
    place.life(after, echoes)
    place.life(after, echoes)


def test_a_run_without_a_session_that_is_admitted_again_can_be_stopped(place: Place) -> None:
    """What was admitted again can be stopped by its id, its key or its session, as before."""

    async def scene(control: Control) -> None:
        sent = [await control.send(None, f"go {n}", by="alice", key=f"k{n}", kind="agent") for n in range(2)]
        behind(place.store, "decide", lambda: place.die([each.run_id for each in sent]), when=lambda d: d.admissions)
        await control.send(None, "last", by="alice", key="k2", kind="agent")

    async def agent(run: Run, message: Message) -> None:
        await for_ever()

    async def after(control: Control) -> None:
        assert (await control.stop(message="k2", by="alice")).aborted
        third = await control.find("k2", by="alice")
        assert third is not None and (await control.wait(third.id)).ending is Ending.STOPPED

    assert len(place.killed(scene, agent)) == 2
    place.life(after, agent)
