"""A server that is killed around an ack: each message is known or not known, has one run, and keeps its key."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from interlock import Control, Ending, EventKind, KeyConflict, Message, Run
from interlock.core.lifecycle import State
from interlock.core.projection import agent_wait

from .lives import Place, agreed, began, behind, carried_out, for_ever, kept_out, quiet, sends, until
from .scene import echoes, idles, kinds, log_of, put_forward, raises, started


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
        assert kinds(await log_of(control), ghost) == []
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
        assert kinds(await log_of(control), info.id) == ["message", "started", "block", "ended"]

    place.killed(scene, agent, before=dies_at_the_commit)
    assert ran == []
    place.life(after, agent)


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_the_same_key_after_a_restart(place: Place, how: str) -> None:
    """After a restart a key gives the same id for the same body and refuses another; nothing runs twice (race 104).

    The messages: completed, stopped before it was seen, cut short, and waiting.
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


def test_a_message_that_comes_while_one_is_taken_up_again(place: Place) -> None:
    """A new message takes over the readmitted one, waiting messages stay or go, and one run has the seat (race 81)."""
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


def test_messages_that_waited_go_on_in_order_each_once(place: Place) -> None:
    """Waiting messages keep ids and keys, follow the lost run's ending, and have one `message` event each."""

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
        assert all(over < begin for over, begin in zip(ended, began, strict=False))  # each ends before the next begins
        await quiet(control)

    lost, waiting = place.killed(scene, first)
    place.life(after, agent)
    assert len(ran) == 4
    place.life(quiet, agent)
    assert len(ran) == 4


def test_a_message_killed_between_its_ack_and_its_first_step_begins_once(place: Place) -> None:
    """A message that had the seat and was not started is admitted again under its id, with a higher generation."""

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
    """A steered message whose run is lost before it absorbed the message becomes a turn of its own."""

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
    """`wait`, `receipt` and `watch` of an absorbed message follow the run that absorbed it; it is not begun again."""

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
    """Collected messages are one turn again, with all parts in order, their authors, keys and shortest deadline."""
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
        await until(lambda: parts)  # the turn has begun
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
    """A retry with a lost run's key gets the same answer at once, also if it comes first, while the run is settled."""

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


def test_a_clean_close_keeps_the_queue_and_the_next_start_runs_it(place: Place) -> None:
    """A clean close tells what ran as `shutdown`; the next start runs what waited, and no watcher is told of a gap."""

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


def test_a_steered_message_that_only_the_log_tells_was_taken_in(place: Place) -> None:
    """A steered message that only the log knows as absorbed is told once and ends once, never both part and turn."""

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


def test_who_had_the_seat_goes_before_who_waited_longer(place: Place) -> None:
    """A message that had overtaken another to the seat, and had not begun, still goes first; the other follows."""
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


def test_that_a_stop_was_typed_outlives_a_crash(place: Place) -> None:
    """A typed stop is told as typed, whether it was told before the server died or by the next start."""

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
