"""Section D of tests/races.md, and what D means for A, B, E and G: the server is killed, and started again.

A life that `place.killed` plays is killed where somebody says `die` (on sqlite with -9); `place.life` is the next one.
"""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock import Control, Ending, Event, EventKind, KeyConflict, Message, QuestionClosed, Run, Stale, tool
from interlock.core.events import Ended, transcript
from interlock.core.lifecycle import State
from interlock.core.names import PASSING
from interlock.core.timeline import timeline
from runtime.lives import Place, behind, carried_out, ends, kept_out

from .scene import told


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store of either kind."""
    return Place(request.param, tmp_path / "data")


def copied(place: Place, to: Path) -> Place:
    """The same store once more, as it was left."""
    other = Place(place.kind, to)
    if place.kind == "memory":
        other._memory = deepcopy(place._memory)
    else:
        shutil.copytree(place.directory, to)
    return other


async def echoes(run: Run, message: Message) -> str:
    """Answer with the message."""
    return message.text


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


async def until(true: Callable[[], Any]) -> Any:
    """Wait for a condition; the life's own bound is the bound."""
    while not (found := true()):
        await asyncio.sleep(0.001)
    return found


async def began(control: Control, run: str) -> None:
    """Wait until a run's agent has begun."""
    await until(lambda: control._registry.runs[run].state is State.STARTED)


async def log_of(control: Control, session: str = "s") -> list[Event]:
    """What the store holds of a session's events."""
    return list((await control._store.events(session, after=0, limit=100_000)).events)


def of(events: list[Event], run: str) -> list[str]:
    """The kinds of one run's events."""
    return [event.kind.value for event in events if event.run_id == run]


# Accepted, and then killed


def test_killed_between_accept_and_fsync(place: Place) -> None:
    """The sender had no ack and nothing is known of the message; the retry with its key is a run like any (race 75)."""

    async def scene(control: Control) -> None:
        await control.wait((await control.send("s", "found")).run_id, drained=True)
        carried_out(place.store)
        kept_out(place.store)
        place.store.decide = decide(place.store.decide)
        await control.send("s", "go", key="k")

    def decide(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def dies(decision: Any) -> Any:
            real(decision)
            if decision.admissions:
                place.die(decision.admissions[0].id, written=False)

        return dies

    async def after(control: Control) -> None:
        assert (await control.wait(ghost)).ending is Ending.UNKNOWN
        assert len(await control.runs("s")) == 1
        assert of(await log_of(control), ghost) == []
        first, again = await asyncio.gather(*(control.send("s", "go", key="k") for _ in range(2)))
        assert first.run_id == again.run_id != ghost
        assert (await control.wait(first.run_id)).text == "go"
        assert [entry.text for entry in await control.history("s") if entry.role == "user"] == ["found", "go"]

    ghost = place.killed(scene, echoes)
    place.life(after, echoes)


def test_killed_between_fsync_and_ack(place: Place) -> None:
    """The sender had no ack but the message is in: the retry gets its run's id, and it runs once (race 76)."""
    ran: list[str] = []

    def dies_at_the_commit(store: Any) -> None:
        behind(store, "decide", place.die, when=lambda decision: decision.admissions)

    async def scene(control: Control) -> None:
        await control.send("s", "go", key="k")
        raise AssertionError("it was acked")

    async def agent(run: Run, message: Message) -> str:
        ran.append(run.id)
        return message.text

    async def after(control: Control) -> None:
        first, again = await asyncio.gather(*(control.send("s", "go", key="k") for _ in range(2)))
        [info] = await control.runs("s")
        assert first.run_id == again.run_id == info.id
        assert (await control.wait(info.id)).text == "go"
        assert ran == [info.id]
        assert of(await log_of(control), info.id) == ["message", "started", "block", "ended"]

    place.killed(scene, agent, before=dies_at_the_commit)
    assert ran == []
    place.life(after, agent)


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_the_same_key_after_a_restart(place: Place, how: str) -> None:
    """Whatever became of the first: the same body gets its id, another body is refused, nothing runs twice (race 104).

    Completed, stopped before it was seen, cut short, and waiting.
    """
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        ran.append(message.text)
        if message.text == "cut":
            await asyncio.Event().wait()
        return message.text

    async def scene(control: Control) -> dict[str, str]:
        sent = {"done": (await control.send("a", "done", key="done")).run_id}
        await control.wait(sent["done"])
        sent["cut"] = (await control.send("b", "cut", key="cut")).run_id
        await began(control, sent["cut"])
        sent["waits"] = (await control.send("b", "waits", key="waits", strategy="queue")).run_id
        if how == "killed":
            place.die(sent)
        return sent

    async def after(control: Control) -> None:
        for name, session in (("done", "a"), ("cut", "b"), ("waits", "b")):
            strategy = "queue" if name == "waits" else None
            assert (await control.send(session, name, key=name, strategy=strategy)).run_id == sent[name]
            with pytest.raises(KeyConflict, match="use a new key"):
                await control.send(session, "another body", key=name, strategy=strategy)
            await control.share(session, with_="another")
            another = await control.send(session, name, key=name, by="another", strategy="queue")
            assert another.run_id != sent[name]  # keys are their principal's
            await control.stop(run=another.run_id, by="another")
        assert (await control.wait(sent["waits"])).ending is Ending.COMPLETED
        assert ran.count("waits") == 1
        assert [row.id for row in await control._store.runs("b") if row.key and row.principal == "local"] == [
            sent["cut"],
            sent["waits"],
        ]

    sent = place.killed(scene, agent) if how == "killed" else place.life(scene, agent)
    ran.clear()
    place.life(after, agent)
    ran.clear()
    sent.pop("waits")
    place.life(lambda control: control.send("a", "done", key="done"), agent)
    assert ran == []


# Ended, and then killed


class Whole:
    """One turn that ends in every way there is, with everything an ending must tell."""

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
        """Play it, and return the terminal event; in a life that is killed nobody gets so far."""
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
        calls = [call.state for call in (run.calls or {}).values()]
        child = next(iter((run.children or {}).values()), None)
        return bool(calls == ["running", "pending"] and run.questions and child is not None and child.reply.open)


def without_times(ended: Ended) -> Ended:
    """A terminal event as it is told of any day."""
    outcome = msgspec.structs.replace(ended.outcome, started_at=None, ended_at=None)
    return msgspec.structs.replace(ended, outcome=outcome)


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
                assert of(await log_of(control, row.session), row.id).count("ended") == 1
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
    assert place.life(after, echoes) == again  # and it is not told once more


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
        assert of(await log_of(control), run).count("ended") == 1

    run, before = place.killed(scene, idles)
    place.life(after, echoes)


# Numbers


def test_the_generation_never_goes_back(place: Place) -> None:
    """Over lives that are killed or closed, stops of idle sessions and resets, it rises, and only rises (race 42)."""
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


# Questions


def test_an_approval_is_answered_after_the_restart(place: Place) -> None:
    """One that was open is void; one that was given and not acted on is not replayed; no body begins (race 55)."""

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
            await until(lambda run=run: run.questions)
            asked[session] = (sent.run_id, next(iter(run.questions)))
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


# Settled before anyone is let in


async def of_every_sort(place: Place, control: Control) -> dict[str, str]:
    """Leave runs in every state that a kill may find, and return them by what is to become of them."""
    runs = {}
    for session in ("said", "tool", "asks", "tree"):
        sent = await control.send(session, session)
        runs[f"lost {session}"] = sent.run_id
    for n in range(2):
        runs[f"waits {n}"] = (await control.send("said", f"waits {n}", strategy="queue")).run_id
    done = await control.send("done", "done")
    await control.wait(done.run_id)
    runs["done"] = done.run_id
    living = control._registry.runs
    await until(lambda: living[runs["lost said"]].reply.open)
    await until(lambda: [c.state for c in (living[runs["lost tool"]].calls or {}).values()] == ["running"])
    await until(lambda: living[runs["lost asks"]].questions)
    await until(lambda: any(run.parent is not None and run.reply.open for run in living.values()))
    runs["child"] = next(run.id for run in living.values() if run.parent is not None)
    return runs


async def every_sort(run: Run, message: Message) -> str:
    """An agent for that."""

    async def lasts() -> None:
        await asyncio.Event().wait()

    if message.text == "tool":
        await run.call(lasts)
    elif message.text == "asks":
        await run.ask("really?")
    elif message.text == "tree":
        await run.delegate("helper", "said")
    elif message.text == "said":
        await run.say("hello")
        await asyncio.Event().wait()
    return message.text


def test_every_run_is_resolved_before_anything_is_taken(place: Place) -> None:
    """In the first step of the next life nothing is found running that is not, in memory or in the store (race 80)."""

    async def scene(control: Control) -> None:
        place.die(await of_every_sort(place, control))

    async def after(control: Control) -> None:
        answers = {name: await control.wait(run, timeout=0) for name, run in runs.items()}
        endings = {name: outcome.ending for name, outcome in answers.items() if not name.startswith("waits")}
        assert endings == {
            **{name: Ending.LOST for name in runs if name.startswith("lost")},
            "child": Ending.PARENT_ENDED,
            "done": Ending.COMPLETED,
        }
        for name, run in runs.items():
            row = await control._store.run(run)
            assert row.outcome is not None or not row.started or name.startswith("waits")
        assert not [info for info in await control.runs() if info.state is State.STARTED and info.id not in waiting]
        assert [(await control.wait(run)).text for run in waiting] == ["waits 0", "waits 1"]

    runs = place.killed(scene, every_sort, agents={"helper": every_sort})
    waiting = [run for name, run in runs.items() if name.startswith("waits")]
    place.life(after, every_sort)
    assert place.look(lambda store: store.unsettled()) == ()


def test_a_message_that_comes_while_one_is_taken_up_again(place: Place) -> None:
    """One run has the seat: what comes takes over what was admitted again, and what waits stays or goes (race 81)."""
    at_work: list[str] = []
    most: list[int] = []
    finished: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        at_work.append(run.id)
        most.append(len(at_work))
        try:
            for _ in range(20 if message.text != "running" else 1_000_000):
                await run.check()
                await asyncio.sleep(0.001)
            finished.append(message.text)
            return message.text
        finally:
            at_work.remove(run.id)

    async def scene(control: Control) -> None:
        for session in ("now", "later"):
            running = await control.send(session, "running")
            await began(control, running.run_id)
            for n in range(2):
                await control.send(session, f"waits {n}", strategy="queue")
        place.die()

    async def after(control: Control) -> None:
        sent = await control.send("now", "inbound")
        assert (await control.wait(sent.run_id)).text == "inbound"
        endings = [(row.text, row.outcome.ending.value) for row in await control._store.runs("now")]
        assert endings == [
            ("running", "lost"),
            ("waits 0", "superseded"),
            ("waits 1", "superseded"),
            ("inbound", "completed"),
        ]
        await until(lambda: "later" not in control._registry.sessions)
        assert finished.count("inbound") == 1 and sorted(finished) == ["inbound", "waits 0", "waits 1"]
        for session in ("now", "later"):
            going: str | None = None
            for event in await log_of(control, session):
                if event.kind is EventKind.STARTED:
                    assert going is None, "two runs of one session were going"
                    going = event.run_id
                elif event.kind is EventKind.ENDED and going == event.run_id:
                    going = None

    place.killed(scene, agent)
    most.clear()
    at_work.clear()
    finished.clear()
    place.life(after, agent)
    assert most and max(most) <= 2  # the two sessions


def test_killed_while_recovering(place: Place, tmp_path: Path) -> None:
    """At whatever write the second life dies: the third comes to what an undisturbed second comes to (race 82)."""

    async def scene(control: Control) -> None:
        place.die(await of_every_sort(place, control))

    async def after(control: Control) -> dict[str, Any]:
        for run in runs.values():
            await control.wait(run, drained=True)
        found: dict[str, Any] = {}
        for name, run in runs.items():
            row = await control._store.run(run)
            log = await log_of(control, row.session)
            assert of(log, run).count("ended") == 1 and of(log, run)[-1] == "ended"
            [ended] = [event.data for event in log if event.run_id == run and event.kind is EventKind.ENDED]
            assert ended.outcome.same_story(row.outcome)
            found[name] = without_times(msgspec.structs.replace(ended, void=tuple(sorted(ended.void))))
        crashes = (await control._store.session("said")).crashes, (await control._store.session("tool")).crashes
        await until(lambda: not control._registry.sessions)
        return {**found, "crashes": crashes}

    runs = place.killed(scene, every_sort, agents={"helper": every_sort})
    undisturbed = copied(place, tmp_path / "undisturbed").life(after, echoes)
    assert undisturbed["crashes"] == (0, 1) and undisturbed["waits 1"].outcome.text == "waits 1"

    writes = step = 0
    every = 1 if place.kind == "memory" else 4
    while True:
        step += every
        again = copied(place, tmp_path / f"killed at {step}")
        count = [0]

        def counts(store: Any, again: Place = again, count: list[int] = count, step: int = step) -> None:
            def one() -> None:
                count[0] += 1
                if count[0] == step:
                    again.die(False, written=bool(step // every % 2))

            behind(store, "decide", one)
            behind(store, "append", one)

        async def dies(control: Control, again: Place = again) -> None:
            again.die(True, written=False)

        opened = again.killed(dies, idles, before=counts)
        begun = again.look(lambda store: store.run(runs["waits 0"]))
        found = again.life(after, echoes)
        if begun.started:  # it began in the second life, and is lost with that one
            assert found["waits 0"].outcome.ending is Ending.LOST
            found = {**undisturbed, **{n: e for n, e in found.items() if n not in ("waits 0", "crashes")}}
        assert found == undisturbed, f"killed at write {step}"
        if opened:
            break
        writes += 1
    assert writes >= 20 / every


# One story


@pytest.mark.parametrize("last", ["killed", "closed"])
def test_the_story_told_again_from_the_store_is_the_one_that_was_told(place: Place, last: str) -> None:
    """For every prefix of the log: transcript and timeline are those of what was told live, in every life (race 126).

    Two lives, the first of them killed; stops, takeovers, tools, questions, a body that goes on behind its end.
    """
    live: list[Event] = []

    def listens(store: Any) -> None:
        real = store.append

        def append(event: Event) -> None:
            live.append(event)
            real(event)

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
            lambda: [c.state for c in (control._registry.runs[tools.run_id].calls or {}).values()] == ["running"]
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
        assert own[-1].kind is EventKind.ENDED and of(log, run).count("ended") == 1
        blocks = [event.data.text for event in own if event.kind is EventKind.BLOCK]
        text = "\n\n".join([*blocks, own[-1].data.cut] if own[-1].data.cut else blocks)
        assert text == own[-1].data.outcome.text == shown_live([event for event in told_live if event.run_id == run])


def shown_live(events: list[Event]) -> str:
    """What a watcher has on the screen when a run ends: blocks take the place of the deltas they close."""
    blocks: list[str] = []
    unfinished = ""
    for event in events:
        if event.kind is EventKind.DELTA:
            unfinished += event.data.text
        elif event.kind is EventKind.BLOCK:
            if unfinished and event.data.text != unfinished:
                blocks.append(unfinished)
            blocks.append(event.data.text)
            unfinished = ""
    return "\n\n".join([*blocks, unfinished] if unfinished else blocks)
