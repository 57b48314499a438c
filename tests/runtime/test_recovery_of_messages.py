"""A server that is killed around an ack: each message is known or not known, has one run, and keeps its key."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from interlock import Control, Ending, EventKind, KeyConflict, Message, Run

from .lives import Place, began, behind, carried_out, kept_out, until
from .scene import echoes, kinds, log_of


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
