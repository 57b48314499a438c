"""A server that is killed around an ending: the next start tells that ending once, with the same story."""

import asyncio
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Ending, Event, EventKind, Message, QuestionClosed, Run, Stale, tool
from interlock.core.decision import EpochRow
from interlock.core.events import Ended
from interlock.core.names import PASSING
from interlock.core.story import transcript
from interlock.core.timeline import timeline

from .lives import Place, began, behind, carried_out, ends, kept_out, until
from .scene import echoes, idles, kinds, log_of, on_screen, told, without_times


class Whole:
    """A turn that ends in a given way, with everything that an ending must tell."""

    def __init__(self, place: Place, how: str) -> None:
        self.place = place
        self.how = how

    async def helper(self, run: Run, message: Message) -> None:
        await run.say("helping")
        await asyncio.Event().wait()

    async def tool(self, number: int) -> int:
        if number:
            await asyncio.Event().wait()
        return number

    async def agent(self, run: Run, message: Message) -> str:
        if message.text != "first":
            return "instead"
        await run.post("block")
        await run.call(self.tool, number=0)
        await run.say("un")
        await run.say("finished")
        if self.how == "completed":
            return "and done"
        if self.how == "failed":
            raise ValueError("no")
        async with asyncio.TaskGroup() as group:
            group.create_task(run.batch([(self.tool, {"number": 1}), (self.tool, {"number": 2})]))
            group.create_task(run.ask("really?"))
            group.create_task(run.delegate("helper", "help"))
        return ""

    async def scene(self, control: Control) -> Ended:
        """Play the turn, and return its terminal event; a life that is killed never returns."""
        self.run = (
            await control.send("s", "first", by="alice", deadline=1.0 if self.how == "timed_out" else None)
        ).run_id
        if self.how in ("stopped", "superseded"):
            await until(lambda: len(control._registry.runs) == 2 and self._all_there(control))
            await (
                control.stop(session="s", by="alice") if self.how == "stopped" else control.send("s", "x", by="alice")
            )
        await control.wait(self.run, drained=True, by="alice")
        return [event.data for event in await log_of(control) if event.run_id == self.run][-1]

    def _all_there(self, control: Control) -> bool:
        run = control._registry.runs[self.run]
        calls = [call.state for call in (run.work.calls or {}).values()]
        child = next(iter((run.ties.children or {}).values()), None)
        return bool(calls == ["running", "pending"] and run.work.questions and child is not None and child.reply.open)


@pytest.mark.parametrize("how", ["completed", "failed", "stopped", "superseded", "timed_out"])
def test_killed_between_the_record_of_an_ending_and_its_telling(place: Place, tmp_path: Path, how: str) -> None:
    """The next start tells the very ending, with tools, questions, children and closing blocks, once (race 77)."""
    whole = Whole(place, how)

    def dies_at_the_ending(store: Any) -> None:
        behind(store, "decide", lambda: place.die(), when=ends(how))

    async def after(control: Control) -> list[Event]:
        log = await log_of(control)
        [info, *_] = await control.runs("s", by="alice")
        outcome = await control.wait(info.id, by="alice")
        listed = (await control.receipt(info.id, by="alice")).runs[0].outcome
        assert outcome.same_story(listed) and outcome.same_story(info.outcome)
        for row in await control._store.runs("s", tree=True):
            if row.outcome is not None and row.session != "s":
                assert kinds(await log_of(control, row.session), row.id).count("ended") == 1
        return [event for event in log if event.run_id == info.id]

    undisturbed = Place(place.kind, tmp_path / "undisturbed")
    live = Whole(undisturbed, how)
    options = {"agents": {"helper": live.helper}}
    expected = undisturbed.life(live.scene, live.agent, **options)
    story = undisturbed.life(after, echoes)

    place.killed(whole.scene, whole.agent, before=dies_at_the_ending, **options)
    again = place.life(after, echoes)
    assert [event.kind for event in again].count(EventKind.ENDED) == 1
    assert without_times(again[-1].data) == without_times(expected)
    shown = [[(e.role, e.text, e.state, e.cut, e.ending) for e in transcript(events)] for events in (again, story)]
    assert shown[0] == shown[1]
    assert place.life(after, echoes) == again  # the ending is not told once more


def test_the_outcome_is_kept_though_its_caller_is_cancelled(place: Place) -> None:
    """A cancel while the disk does not take the ending stops neither the write nor the telling (race 40)."""

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        await began(control, sent.run_id)
        carried_out(place.store)
        let_in = kept_out(place.store)
        stopping = asyncio.create_task(control.stop(session="s"))
        await until(lambda: control._registry.runs[sent.run_id].fallen)
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        assert (await control._store.run(sent.run_id)).outcome is None
        let_in()
        outcome = await control.wait(sent.run_id, timeout=5)
        place.die((sent.run_id, outcome), written=False)

    async def after(control: Control) -> None:
        assert (before.ending, before.durable) == (Ending.STOPPED, True)
        outcome = await control.wait(run, drained=True)
        assert outcome.same_story(before) and outcome.drained and outcome.durable
        assert kinds(await log_of(control), run).count("ended") == 1

    run, before = place.killed(scene, idles)
    place.life(after, echoes)


def test_the_generation_never_goes_back(place: Place) -> None:
    """A session's generation only rises: over killed and closed lives, stops while idle, and resets (race 42)."""
    seen: list[int] = []

    async def scene(control: Control) -> list[int]:
        first = await control.send("s", "first")
        await control.stop(session="s")
        second = await control.send("s", "second")
        await began(control, second.run_id)
        await control.stop(session="idle")
        third = await control.send("idle", "third")
        return [first.generation, second.generation, third.generation]

    async def dies(control: Control) -> None:
        place.die(await scene(control))

    async def idle(control: Control) -> None:
        await control.stop(session="idle")
        await control.reset("s")

    for life in range(4):
        first, second, third = place.killed(dies, idles) if life % 2 else place.life(scene, idles)
        seen += [first, second]
        assert first < second
        if life == 2:
            place.life(idle, idles)
        generations = place.look(lambda store: store.session("idle")), place.look(lambda store: store.session("s"))
        assert generations[0].generation >= third and generations[1].generation >= second
    assert seen == sorted(set(seen))
    assert min(after - before for before, after in pairwise(seen)) >= 2  # a fall raises it too


def test_an_approval_is_answered_after_the_restart(place: Place) -> None:
    """An approval open at the kill is void; one given but not acted on is not replayed: no body begins (race 55)."""

    @tool(approval="ask")
    async def risky() -> None:
        raise AssertionError("it began")

    async def agent(run: Run, message: Message) -> str:
        if message.text == "go":
            await run.call(risky)
        return str([(e.role, e.state and e.state.value) for e in await run.history() if e.role == "result"])

    def dies_at_the_answer(store: Any) -> None:
        def given(decision: Any) -> bool:
            return any(question.state == "answered" for question in decision.questions)

        behind(store, "decide", lambda: place.die(asked), when=given)

    asked: dict[str, tuple[str, str]] = {}

    async def scene(control: Control) -> None:
        for session in ("open", "given"):
            sent = await control.send(session, "go", by="alice")
            run = control._registry.runs[sent.run_id]
            await until(lambda run=run: run.work.questions)
            asked[session] = (sent.run_id, next(iter(run.work.questions)))
        await control.answer(asked["given"][1], True, by="alice")
        raise AssertionError("it was answered")

    async def after(control: Control) -> None:
        for session, (run, question) in left.items():
            [ended] = [e.data for e in await log_of(control, session) if e.kind is EventKind.ENDED and e.run_id == run]
            assert ended.outcome.ending is Ending.LOST
            assert [t.state.value for t in ended.tools] == ["skipped"]
            assert ended.void == ((question,) if session == "open" else ())
            sent = await control.send(session, "and?", by="alice")
            assert (await control.wait(sent.run_id, by="alice")).text == "[('result', 'skipped')]"
        with pytest.raises(QuestionClosed, match="is void: its run is over, and nothing was done"):
            await control.answer(left["open"][1], True, by="alice")
        with pytest.raises(QuestionClosed, match="was answered before"):
            await control.answer(left["given"][1], False, by="alice")
        assert (await control._store.question(left["open"][1])).state == "void"

    left = place.killed(scene, agent, before=dies_at_the_answer)
    place.life(after, agent)
    place.life(after, agent)


@pytest.mark.parametrize("last", ["killed", "closed"])
def test_the_story_told_again_from_the_store_is_the_one_that_was_told(place: Place, last: str) -> None:
    """For every prefix of the log: transcript and timeline are those of what was told live, in every life (race 126).

    Two lives, the first of them killed; stops, takeovers, tools, questions, a body that goes on after its end.
    """
    live: list[Event] = []

    def listens(store: Any) -> None:
        real = store.append

        def append(event: Event, epoch: EpochRow | None = None) -> Any:
            live.append(event)
            return real(event, epoch)

        store.append = append

    async def lasts() -> None:
        await asyncio.Event().wait()

    async def agent(run: Run, message: Message) -> str:
        await run.say("one")
        await run.say(" two")
        if message.text == "deaf":
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            with suppress(Stale):
                await run.post("behind the end")
        if message.text == "asks":
            await run.ask("really?")
        await run.post("three")
        if message.text == "tool":
            await run.call(lasts)
        if message.text == "idle":
            await run.say("four")
            await asyncio.Event().wait()
        return "five"

    async def turns(control: Control) -> None:
        await control.wait((await control.send("s", "plain")).run_id)
        deaf = await control.send("s", "deaf")
        await began(control, deaf.run_id)
        await until(lambda: control._registry.runs[deaf.run_id].reply.open == "one two")
        await control.stop(session="s")
        await control.wait(deaf.run_id, drained=True)
        asks = await control.send("s", "asks")
        question = await told(control, asks.run_id, EventKind.QUESTION)
        await control.answer(question.data.question_id, True)
        await control.wait(asks.run_id)
        tools = await control.send("s", "tool")
        await until(
            lambda: [c.state for c in (control._registry.runs[tools.run_id].work.calls or {}).values()] == ["running"]
        )
        over = await control.send("s", "idle", strategy="rollback")
        await until(lambda: control._registry.runs[over.run_id].reply.open == "four")
        await control.send("s", "waits", strategy="queue")

    async def first(control: Control) -> None:
        await turns(control)
        carried_out(place.store)
        await asyncio.sleep(0)
        place.die(list(live), written=True)

    async def second(control: Control) -> list[Event]:
        await until(lambda: not control._registry.sessions)
        await turns(control)
        if last == "killed":
            place.die(list(live))
        return live

    async def third(control: Control) -> tuple[list[Event], dict[str, Any]]:
        await until(lambda: not control._registry.sessions)
        log = await log_of(control)
        shown = {run: await control.timeline(run) for run in {e.run_id for e in log if e.run_id}}
        assert await control.history("s") == transcript(log)
        return log, shown

    told_live = place.killed(first, agent, before=listens)
    live.clear()
    told_live += (
        place.killed(second, agent, before=listens) if last == "killed" else place.life(second, agent, before=listens)
    )
    if place.kind == "memory":
        vars(place._memory).pop("append", None)
    live.clear()
    log, shown = place.life(third, agent, before=listens)
    told_live = list({event.position: event for event in [*told_live, *live]}.values())
    assert log == [event for event in told_live if event.kind not in PASSING]
    for length in range(len(log) + 1):
        until_there = log[length - 1].position if length else 0
        prefix = [event for event in told_live if event.position <= until_there]
        assert transcript(log[:length]) == transcript(prefix)
        for run in shown:
            assert timeline(run, log[:length]) == timeline(run, prefix)
    for run, moments in shown.items():
        assert [m for m in moments if m.what not in ("drained", "refused")] == timeline(run, told_live)
        own = [event for event in log if event.run_id == run]
        assert own[-1].kind is EventKind.ENDED and kinds(log, run).count("ended") == 1
        blocks = [event.data.text for event in own if event.kind is EventKind.BLOCK]
        text = "\n\n".join([*blocks, own[-1].data.cut] if own[-1].data.cut else blocks)
        assert text == own[-1].data.outcome.text == on_screen([event for event in told_live if event.run_id == run])
