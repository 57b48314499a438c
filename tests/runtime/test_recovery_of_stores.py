"""A store that is large, unreadable or read-only at the next start, and what it had acknowledged before."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from interlock import Control, Ending, EventKind, Message, Run, Unavailable
from interlock.core.lifecycle import State
from interlock.stores.base import StoreFailed, Ticket

from .lives import PATIENT, Place, kept_out, quiet, terminal, until
from .scene import echoes, idles, kinds, log_of, raises, started, told


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


@pytest.mark.parametrize("read", ["unsettled", "unsettled_runs", "load", "events", "tools", "pending_receipts"])
def test_a_store_that_cannot_be_read_opens_nothing_and_destroys_nothing(place: Place, read: str) -> None:
    """A store that cannot be read opens nothing; a later start finds all: lost runs, waiting messages, the gap."""

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
    """Endings that a start cannot store are told as not durable, and stored later; nothing is told twice."""

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


@pytest.mark.parametrize(
    "verb", ["stop", "order", "absent order", "key", "reset", "strategy", "wake", "unwake", "answer"]
)
def test_what_was_acknowledged_as_durable_is_there(place: Place, verb: str) -> None:
    """The next start knows what a verb called durable, though the server was killed right after that answer."""

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
    """An ending that watchers were told and the store refused is kept by the next start, which adds nothing."""

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
