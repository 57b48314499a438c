"""After a crash a session is what it was: its owner, schedules, privacy, and whether it is parked."""

import asyncio
import time
from typing import Any

import pytest

from interlock import Control, Ending, KeyConflict, Message, Refused, Run, Unknown
from interlock.core.lifecycle import State
from interlock.runtime.settings import CRASHES

from .lives import Place, behind, carried_out, for_ever, until
from .scene import at_once, echoes, idles, log_of, raises, started


def crash(place: Place, *messages: tuple[str, str]) -> None:
    """Play a life that dies in the first run whose message says so."""

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
        # Due when the run of `often` has killed the server, or is at least going.
        await control.wake("s", "once", at=time.time() + 1.05)
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
    while time.time() <= wakes.get("once", 0.0):
        # The time of `once` passes while nobody serves.
        time.sleep(0.01)
    place.life(after, echoes)
    place.life(last, echoes)


def test_a_wake_that_was_accepted_and_had_not_begun_runs_once(place: Place) -> None:
    """An accepted wake that had not begun runs once, as a message like any other; any message takes it over."""

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


def test_a_session_that_brings_the_server_down_is_parked(place: Place) -> None:
    """A session with runs going in three crashes in a row takes and begins nothing until a reset; others go on."""

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
        place.killed(lambda control: for_ever(), dies)  # the waiting message begins by itself
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


def test_a_message_that_ended_before_its_session_was_anybody_s_leaves_no_text(place: Place) -> None:
    """A message that ended before its session had an owner is hidden from a later owner, also after a crash."""

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
    """The rights to see, stop, answer and watch a run are the same after a restart, lost or waiting."""

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
    """A run without a session that was admitted again can be stopped by its id, its key or its session."""

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
