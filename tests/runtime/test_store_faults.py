"""A store that fails, stalls or loses its answers: nothing is half kept, and a stop never waits for it."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, MemoryStore, Message, Run, Unavailable, open_control
from interlock.core.decision import Decision, RunRow
from interlock.core.lifecycle import State
from interlock.core.names import EventKind
from interlock.core.outcome import Outcome
from interlock.core.projection import channel_words, client_words, native
from interlock.stores.base import Ticket, Unsure

from .scene import Shaky, answered, answers, echoes, idles, kinds, log_of, mumbles, now, seeded, started, story, told

COMMIT_SECONDS = 0.5
SLACK = 0.1  # the virtual clock may run ahead by its horizon


async def other_ending(store: MemoryStore, run: str, ending: Ending, text: str = "") -> Outcome:
    """Write an ending into the store, as another node would."""
    row = await store.run(run)
    assert row is not None
    outcome = Outcome(run_id=row.id, ending=ending, text=text)
    end = RunRow(
        id=row.id,
        session=row.session,
        principal=row.principal,
        kind=row.kind,
        text=row.text,
        admitted_at=row.admitted_at,
        outcome=outcome,
    )
    assert (await store.decide(Decision(endings=(end,)))).found == ()
    return outcome


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("when", ["read", "commit"])
def test_a_message_that_cannot_be_kept(fault: str, when: str) -> None:
    """The sender gets a retryable error in bounded time, nothing is kept, and the same key works afterwards."""

    async def main() -> None:
        store = Shaky()
        async with open_control(echoes, store=store) as control:
            if when == "read":
                setattr(store.faults, fault, True)
            else:
                store.next_fault = fault
            before = now()
            with pytest.raises(Unavailable, match=r"send it again|try again") as caught:
                await control.send("s", "hello", by="alice", key="k")
            assert caught.value.retryable
            assert now() - before <= COMMIT_SECONDS + SLACK
            assert await control.runs() == []
            assert control._registry.sessions == {} and control._registry.keys == {}
            store.resume()
            await anyio.sleep(1)
            assert await store.runs("s") == ()
            assert await log_of(control, "s") == []
            sent = await control.send("s", "hello", by="alice", key="k")
            assert (await control.wait(sent.run_id)).text == "hello"

    seeded(main)


def test_a_lost_reply_is_found_out() -> None:
    """If the store took the message and its answer got lost, the sender is acked and the run goes on."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            store.faults.lose = True
            before = now()
            sent = await control.send("s", "hello", key="k")
            assert now() - before <= COMMIT_SECONDS + SLACK
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "hello")
            store.resume()
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(5)
            assert len(await store.runs("s")) == 1
            assert (await control.send("s", "hello", key="k")).run_id == sent.run_id

    seeded(main)


def test_a_withdrawn_run_is_unknown() -> None:
    """A run that never was is unknown to wait, receipt and stop."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.0)
        async with open_control(echoes, store=store) as control:
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello"))
            while not (infos := await control.runs()):
                await asyncio.sleep(0)
            waiting = asyncio.create_task(control.wait(infos[0].id))
            with pytest.raises(Unavailable):
                await sending
            assert (await waiting).ending is Ending.UNKNOWN
            store.resume()
            assert (await control.wait(infos[0].id)).ending is Ending.UNKNOWN
            assert not (await control.stop(run=infos[0].id)).aborted

    seeded(main)


def test_a_watcher_of_a_withdrawn_run_is_let_go() -> None:
    """`watch(run=)` of a run that is then withdrawn ends by itself: no terminal event will ever come."""

    async def main() -> None:
        store = Shaky()
        async with open_control(echoes, store=store) as control:
            store.next_fault = "stall"
            sending = asyncio.create_task(control.send("s", "hello"))
            while not (infos := await control.runs()):
                await asyncio.sleep(0)

            async def watch() -> list[Any]:
                return [event async for event in control.watch(run=infos[0].id)]

            watching = asyncio.create_task(watch())
            with pytest.raises(Unavailable):
                await sending
            store.resume()
            with anyio.move_on_after(20):
                assert await watching == []
            assert watching.done() and not watching.cancelled()

    seeded(main, range(3))


def test_a_withdrawn_message_gives_the_seat_to_the_next() -> None:
    """When a seated message is withdrawn, the queue goes on."""

    async def main() -> None:
        store = Shaky()
        async with open_control(echoes, store=store, strategy="queue") as control:
            store.next_fault = "stall"
            first = asyncio.create_task(control.send("s", "one"))
            await anyio.sleep(0.3)
            second = asyncio.create_task(control.send("s", "two"))
            await anyio.sleep(0.3)
            store.resume()
            with pytest.raises(Unavailable):
                await first
            sent = await second
            assert (await control.wait(sent.run_id)).text == "two"
            assert [row.text for row in await store.runs("s")] == ["two"]

    seeded(main)


def test_a_withdrawn_message_owns_nothing() -> None:
    """The sender of a withdrawn first message does not own the session: the first sender admitted does."""

    async def main() -> None:
        store = Shaky()
        async with open_control(echoes, store=store, strategy="queue") as control:
            store.next_fault = "stall"
            first = asyncio.create_task(control.send("s", "one", by="bob"))
            await anyio.sleep(0.3)
            second = asyncio.create_task(control.send("s", "two", by="alice"))
            await anyio.sleep(0.3)
            store.resume()
            with pytest.raises(Unavailable):
                await first
            await control.wait((await second).run_id)
            row = await store.session("s")
            assert row is not None and row.owner == "alice"

    seeded(main, range(3))


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_a_takeover_whose_commit_fails(fault: str) -> None:
    """The old run is superseded by a message that was not kept, told so once and everywhere; the new one never was.

    The ending is told as not durable, then made durable (race 134).
    """

    async def main() -> None:
        store = Shaky()
        async with open_control(mumbles, store=store) as control:
            old = await control.send("s", "one", by="alice")
            await told(control, old.run_id, EventKind.DELTA)
            waiting = await control.send("s", "wait", by="alice", strategy="queue")
            store.next_fault = fault
            with pytest.raises(Unavailable, match="send it again"):
                await control.send("s", "two", by="alice", key="k")
            for run in (old, waiting):
                outcome = await control.wait(run.run_id)
                assert (outcome.ending, outcome.durable) == (Ending.SUPERSEDED, False)
                assert (outcome.superseded_by, outcome.unkept) == (None, True)
                assert client_words(outcome) == "superseded by a message that was not kept"
                assert channel_words(outcome) is not None and native(outcome).unkept
            assert (await control.receipt(old.run_id)).durable is False
            store.resume()
            await anyio.sleep(2)
            outcome = await control.wait(old.run_id)
            assert outcome.durable and outcome.unkept
            receipt = await control.receipt(old.run_id)
            assert receipt.durable and receipt.runs[0].outcome.unkept
            row = await store.run(old.run_id)
            assert row is not None and row.outcome is not None and row.outcome.same_story(outcome)
            events = await log_of(control, "s")
            proofs = [event.data.receipt.durable for event in events if event.kind is EventKind.RECEIPT]
            assert proofs[0] is False and proofs[-1] is True
            ended = [event.data.outcome for event in events if event.kind is EventKind.ENDED]
            assert [(each.run_id, each.superseded_by, each.unkept) for each in ended] == [
                (run.run_id, None, True) for run in (old, waiting)
            ]
            assert "correction" not in kinds(events)
            again = await control.send("s", "two", by="alice", key="k")
            assert again.superseded is None
            await started(control, again.run_id)

    seeded(main)


def test_a_takeover_that_is_stopped_while_its_commit_fails() -> None:
    """The message was stopped, so it has an ending that is kept: then it is the successor that can be found."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(mumbles, store=store) as control:
            old = await control.send("s", "one", by="alice")
            await told(control, old.run_id, EventKind.DELTA)
            store.faults.stall = True
            sending = asyncio.ensure_future(control.send("s", "two", by="alice"))
            await asyncio.sleep(0.1)
            await control.stop(session="s", by="alice")
            sent = await sending
            outcome = await control.wait(old.run_id)
            assert (outcome.superseded_by, outcome.unkept) == (sent.run_id, False)
            store.resume()
            await asyncio.sleep(2)
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert (await store.run(sent.run_id)) is not None

    seeded(main)


def test_a_store_that_cannot_say_whether_a_takeover_is_in() -> None:
    """An end is told soon after COMMIT_SECONDS though the store cannot say; if that says never, a correction tells."""

    class Hanging(MemoryStore):
        """A store whose withdrawal waits, like a disk that is being written to."""

        async def withdraw(self, ticket: Ticket) -> bool:
            await asyncio.sleep(3)
            return await super().withdraw(ticket)

    async def main() -> None:
        store = Hanging()
        loop = asyncio.get_running_loop()
        async with open_control(mumbles, store=store) as control:
            old = await control.send("s", "one", by="alice")
            await told(control, old.run_id, EventKind.DELTA)
            store.faults.stall = True
            began = loop.time()
            sending = asyncio.ensure_future(control.send("s", "two", by="alice"))
            first = await control.wait(old.run_id)
            assert loop.time() - began < 0.7 and first.superseded_by is not None and not first.durable
            with pytest.raises(Unsure, match="send it again with the same key"):
                await sending
            await asyncio.sleep(1)
            store.resume()
            await asyncio.sleep(5)
            after = await control.wait(old.run_id)
            assert (after.superseded_by, after.unkept, after.durable) == (None, True, True)
            corrected = [
                event.data.outcome for event in await log_of(control, "s") if event.kind is EventKind.CORRECTION
            ]
            assert [(each.run_id, each.unkept) for each in corrected] == [(old.run_id, True)]

    seeded(main, range(4))


def test_a_store_that_does_not_say_whether_it_has_a_message() -> None:
    """The sender is told in bounded time that it is not known; the same key gets the one run when the store answers."""

    class Silent(MemoryStore):
        """A store that writes admissions under a key for as long as that takes, and can take none back."""

        def __init__(self) -> None:
            super().__init__()
            self.writing: list[Ticket] = []

        def decide(self, decision: Decision) -> Ticket:
            if not decision.keys:
                return super().decide(decision)
            self.writing.append(Ticket(decision))
            return self.writing[-1]

        async def withdraw(self, ticket: Ticket) -> bool:
            return await ticket.certain()

        def answer(self) -> None:
            for ticket in self.writing:
                ticket.accept(self._carry_out(ticket.decision))

    async def main() -> None:
        store = Silent()
        async with open_control(echoes, store=store) as control:
            await control.wait((await control.send("s", "found")).run_id, drained=True)
            with pytest.raises(Unsure, match="send it again with the same key"):
                await control.send("s", "once", key="k")
            again = asyncio.ensure_future(control.send("s", "once", key="k"))
            await asyncio.sleep(1)
            store.answer()
            outcome = await control.wait((await again).run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "once")
            assert [run.text for run in await store.runs("s")] == ["found", "once"]

    seeded(main, range(4))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
@pytest.mark.parametrize("scope", ["run", "session", "key"])
def test_a_stop_never_waits_for_the_store(fault: str, scope: str) -> None:
    """A stop returns within COMMIT_SECONDS with `durable: false`, and its ending is made durable later (race 89)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(mumbles, store=store) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            await told(control, sent.run_id, EventKind.DELTA)
            setattr(store.faults, fault, True)
            before = now()
            wanted: dict[str, Any] = {"run": {"run": sent.run_id}, "session": {"session": "s"}, "key": {"message": "k"}}
            receipt = await control.stop(**wanted[scope], by="alice")
            assert now() - before <= COMMIT_SECONDS + SLACK
            assert (receipt.aborted, receipt.durable, receipt.cause) == (True, False, Ending.STOPPED)
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.durable) == (Ending.STOPPED, False)
            await anyio.sleep(3)
            if fault != "lose":
                assert (await control.wait(sent.run_id)).durable is False
            store.resume()
            await anyio.sleep(3)
            assert (await control.wait(sent.run_id)).durable is True
            row = await store.run(sent.run_id)
            assert row is not None and row.outcome is not None and story(row.outcome) == story(outcome)
            assert (await control.receipt(sent.run_id)).durable is True
            assert (await control.receipt(sent.run_id)).drain == "observed"

    seeded(main, range(4))


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("scope", ["run", "session", "key"])
def test_a_stop_of_what_has_left_memory_never_waits(fault: str, scope: str) -> None:
    """A stop of a run that is only in the store is neither refused nor kept waiting by a store that is down."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(2)
            assert control._registry.runs == {}
            setattr(store.faults, fault, True)
            before = now()
            wanted: dict[str, Any] = {"run": {"run": sent.run_id}, "session": {"session": "s"}, "key": {"message": "k"}}
            receipt = None
            with anyio.move_on_after(30):
                receipt = await control.stop(**wanted[scope], by="alice")
            assert receipt is not None and not receipt.aborted
            assert now() - before <= 2 * COMMIT_SECONDS + SLACK
            store.resume()

    seeded(main, range(3))


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_a_wait_keeps_its_timeout_when_the_store_is_down(fault: str) -> None:
    """A wait for a run that left memory ends with its own timeout although the store does not answer."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(2)
            setattr(store.faults, fault, True)
            before = now()
            with anyio.move_on_after(30):
                try:
                    outcome = await control.wait(sent.run_id, timeout=1)
                    assert outcome.ending is Ending.PENDING
                except Unavailable:
                    assert fault == "fail"
            assert now() - before <= 1 + SLACK
            store.resume()

    seeded(main, range(3))


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_effects_do_not_wait_for_the_store(fault: str) -> None:
    """A run that has begun goes on saying things while the store is down, and its end is made durable later."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            setattr(store.faults, fault, True)
            for word in ("one ", "two ", "three"):
                await run.say(word)
            return "one two three"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text, outcome.durable) == (Ending.COMPLETED, "one two three", False)
            store.resume()
            await anyio.sleep(3)
            assert (await control.wait(sent.run_id)).durable

    seeded(main)


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_a_start_that_cannot_be_recorded(fault: str) -> None:
    """An agent whose start is not on record does not begin; the run is told as failed by the store."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)

    async def main() -> None:
        began.clear()
        store = Shaky()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            setattr(store.faults, fault, True)
            if (await control.runs())[0].state is State.STARTED:
                return  # the schedule had it started before the fault
            outcome = await control.wait(sent.run_id)
            store.resume()
            if outcome.ending is Ending.FAILED:
                assert outcome.error_kind == "store" and "send it again" in (outcome.error or "")
                assert began == []

    seeded(main)


def test_a_message_stopped_while_it_cannot_be_kept() -> None:
    """A message that is stopped while the store stalls is told as stopped, and its key stays used for good."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)

    async def main() -> None:
        began.clear()
        store = Shaky()
        async with open_control(agent, store=store) as control:
            store.next_fault = "stall"
            sending = asyncio.create_task(control.send("s", "hello", by="alice", key="k"))
            await anyio.sleep(0.2)
            receipt = await control.stop(session="s", by="alice")
            assert receipt.aborted and not receipt.durable
            sent = await sending
            assert sent.state is State.ENDED and receipt.runs[0].id == sent.run_id
            await anyio.sleep(3)
            store.resume()
            await anyio.sleep(5)
            assert control._registry.runs == {}
            again = await control.send("s", "hello", by="alice", key="k")
            assert again.run_id == sent.run_id
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            await anyio.sleep(1)
        assert began == []

    seeded(main)


def test_a_tombstone_survives_a_store_that_is_down() -> None:
    """A key that is stopped while the store stalls is buried at once in memory, and in the store afterwards."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            store.faults.stall = True
            before = now()
            await control.stop(message="k", by="alice")
            assert now() - before <= 2 * COMMIT_SECONDS + SLACK
            store.resume()
            sent = await control.send("s", "hello", by="alice", key="k")
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert (await store.load("s", principal="alice", key="k")).buried

    seeded(main)


def test_an_ending_the_store_already_holds_is_told() -> None:
    """An ending that another node stored first is the one everybody is told, and no correction is needed."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await other_ending(store, sent.run_id, Ending.COMPLETED, "elsewhere")
            receipt = await control.stop(run=sent.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.COMPLETED)
            assert receipt.runs[0].outcome.text == "elsewhere"
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "elsewhere")
            log = await log_of(control, "s")
            [ended] = [event for event in log if event.kind is EventKind.ENDED]
            assert story(ended.data.outcome) == story(outcome)
            assert "correction" not in kinds(log)

    seeded(main)


def test_the_next_turn_hears_of_the_ending_that_stands() -> None:
    """`message.previous` is the ending the store held, not the one we had meant to write."""
    seen: list[Outcome | None] = []

    async def agent(run: Run, message: Message) -> None:
        seen.append(message.previous)
        await anyio.sleep_forever()

    async def main() -> None:
        seen.clear()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await other_ending(store, sent.run_id, Ending.COMPLETED, "elsewhere")
            await control.stop(run=sent.run_id)
            second = await control.send("s", "next")
            await started(control, second.run_id)
        assert seen[1] is not None and seen[1].ending is Ending.COMPLETED

    seeded(main)


def test_an_ending_found_late_is_corrected() -> None:
    """If the store answers with another ending after ours was told as not durable, a correction says so."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            store.faults.stall = True
            writing = asyncio.create_task(_other_first(store, sent.run_id))
            await asyncio.sleep(0)
            receipt = await control.stop(run=sent.run_id)
            assert (receipt.aborted, receipt.durable) == (True, False)
            store.resume()
            found = await writing
            await anyio.sleep(3)
            log = await log_of(control, "s")
            [correction] = [event for event in log if event.kind is EventKind.CORRECTION]
            assert correction.run_id is None and story(correction.data.outcome) == story(found)
            outcome = await control.wait(sent.run_id)
            assert story(outcome) == story(found) and outcome.durable
            assert kinds(log).count("ended") == 1

    async def _other_first(store: MemoryStore, run: str) -> Outcome:
        # A read would stall, so this takes the row itself; the other node writes before us.
        row = store._runs[run]
        outcome = Outcome(run_id=row.id, ending=Ending.FAILED, error="elsewhere")
        end = RunRow(
            id=row.id,
            session=row.session,
            principal=row.principal,
            kind=row.kind,
            text=row.text,
            admitted_at=row.admitted_at,
            outcome=outcome,
        )
        ticket = store.decide(Decision(endings=(end,)))
        assert (await ticket).found == ()
        return outcome

    seeded(main, range(3), late=0.0)


def test_a_run_that_ended_elsewhere_does_not_start() -> None:
    """A start mark that finds an ending in the store begins nothing and tells that ending."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)
        await anyio.sleep_forever()

    async def main() -> None:
        began.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, strategy="queue") as control:
            first, second = await control.send("s", "one"), await control.send("s", "two")
            await started(control, first.run_id)
            await other_ending(store, second.run_id, Ending.STOPPED)
            await control.stop(run=first.run_id)
            outcome = await control.wait(second.run_id)
            assert (outcome.ending, outcome.started_at) == (Ending.STOPPED, None)
        assert began == ["one"]

    seeded(main)


async def hammer(control: Control, store: MemoryStore, number: int) -> None:
    """Send and stop, again and again."""
    for n in range(12):
        try:
            await control.send(f"s{number}", f"m{n}", by="alice", key=f"{number}-{n}")
        except Unavailable:
            await anyio.sleep(0.3)
            continue
        await control.stop(session=f"s{number}", by="alice")


def test_a_store_that_comes_and_goes() -> None:
    """However the store fails, stalls and loses replies, every kept run gets one durable ending (races 84 and 89)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(mumbles, store=store) as control:

            async def weather() -> None:
                for fault in ("fail", "stall", "lose", "stall", "fail"):
                    setattr(store.faults, fault, True)
                    await anyio.sleep(0.7)
                    store.resume()
                    await anyio.sleep(0.2)

            await asyncio.gather(weather(), *(hammer(control, store, n) for n in range(4)))
            await anyio.sleep(20)
            assert control._registry.runs == {}
            for n in range(4):
                rows = await store.runs(f"s{n}")
                assert rows and all(row.outcome is not None for row in rows)
                log = await log_of(control, f"s{n}")
                for row in rows:
                    assert kinds(log, row.id).count("ended") == 1
                    receipt = await store.receipt(row.id)
                    assert receipt is not None and receipt.durable and receipt.drain == "observed"

    seeded(main, range(6))


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
