"""Recovery: a run that was cut short is lost, with everything it had said, asked, begun and delegated.

`place.killed` plays a life that is killed where somebody says `die`; `place.life` plays the next one.
"""

import asyncio
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
    Message,
    QuestionClosed,
    Run,
    SpawnFailed,
    ToolState,
    Unknown,
    tool,
)
from interlock.core.lifecycle import State
from interlock.core.projection import LOST_RESULT
from interlock.processes.base import Grade, Machine
from interlock.processes.local import LocalProcesses
from interlock.testing.processes import VirtualProcesses

from .lives import PATIENT, Place, agreed, behind, carried_out, for_ever, quiet, sends, terminal, until
from .scene import deaf, echoes, idles, kinds, log_of, raises, started, story, told

# A run that had begun


def test_a_run_that_had_begun_is_lost_with_what_it_had_said(place: Place) -> None:
    """A lost run's blocks and open deltas are its text, the cut is marked once, and every surface tells the same."""

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
    # A second start finds nothing unsettled.
    place.life(after, echoes)


def test_a_run_killed_before_its_agent_s_first_word_is_lost(place: Place) -> None:
    """A message whose started mark is stored is not begun again, however little its agent did."""

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
    """A call whose start was recorded when the server died before the permit counts as begun: nobody knows better."""

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
    """A question of a lost run is void for good; an answerer is told that nothing was done."""

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
    """A hold of a lost run is free for anybody."""

    async def agent(run: Run, message: Message) -> str:
        async with run.hold("worktree") as hold:
            if message.text == "die":
                place.die(hold.token)
            return f"{hold.token > before} {hold.unconfirmed}"

    async def after(control: Control) -> None:
        sent = await control.send("other", "take it")
        assert (await control.wait(sent.run_id)).text == "True None"  # the token is higher

    before = place.killed(sends("s", "die"), agent)
    place.life(after, agent)


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
        await until(lambda: all(run.reply.open for run in control._registry.runs.values() if not run.ties.children))
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
    place.life(after, echoes)  # this life has no helper agent
    place.life(after, echoes)


# Watching across a crash


def test_a_watcher_goes_on_where_it_was(place: Place) -> None:
    """After its position a watcher gets each event once, in order, one gap, and nothing of a run after its end."""

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
        assert log[-1].position >> 32 > seen[-1].position >> 32 == 1

    seen = place.killed(scene, agent)
    assert kinds(seen)[-2:] == ["block", "delta"]
    place.life(after, agent)


def test_a_session_of_which_nothing_was_cut_short_has_no_gap(place: Place) -> None:
    """A crash in another session leaves no gap in this one."""

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
    """A receipt that was pending at the crash is completed: `wait(drained=True)` on it returns, at once and true."""

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
    """A stop that the log had not told when the server died has no time of ending: nobody knows when that was."""

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
    """A receipt says unconfirmed and names the process, if the next start could not look for it or not end it."""

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
    """A real process that a lost run had spawned is gone when the next start has opened."""
    place = Place("sqlite", tmp_path / "data")

    async def agent(run: Run, message: Message) -> None:
        running = await run.spawn("sleep", "1000", background=True)
        place.die((run.id, running.pid))

    async def after(control: Control) -> None:
        assert not Path(f"/proc/{pid}").exists()
        assert (await agreed(control, "s", lost))[0] is Ending.LOST

    lost, pid = place.killed(sends("s", "go"), agent, processes=LocalProcesses())
    place.life(after, echoes, processes=LocalProcesses())


# Detached children, and limits


def test_a_detached_child_whose_parent_was_done_is_lost(place: Place) -> None:
    """A detached child of a finished parent is told as lost, listed and drained; its home is not blamed."""

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
