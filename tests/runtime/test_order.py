"""A message that was written before a stop and arrives after it is stopped, by its place in its channel's order."""

import asyncio
import math
from typing import Any

import anyio
import pytest

from interlock import BadInput, Control, Ending, MemoryStore, Message, Run, open_control
from interlock.core.projection import client_words, native
from interlock.runtime import registry
from interlock.stores import bounds

from .scene import answers, at_once, kinds, log_of, seeded, started

NO_PLACE = r"order= is \(channel|the channel must be"


class Began:
    """An agent that records the messages it began."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def __call__(self, run: Run, message: Message) -> str:
        self.texts.append(message.text)
        if message.text == "long":
            await anyio.sleep_forever()
        return message.text


async def ending(control: Control, text: str, order: tuple[str, float] | None, **options: Any) -> Ending:
    """Send a message and return how it ended."""
    sent = await control.send(options.pop("session", "s"), text, order=order, **options)
    return (await control.wait(sent.run_id)).ending


@pytest.mark.parametrize("busy", [False, True])
def test_a_message_written_before_the_stop_is_stopped(busy: bool) -> None:
    """A message from before the stop ends `stopped` by the stop's caller and never begins; a later one runs."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent) as control:
            first = await control.send("s", "long", by="alice", order=("chat", 1))
            await started(control, first.run_id)
            if not busy:
                await control.stop(run=first.run_id)
            receipt = await control.stop(session="s", by="alice", order=("chat", 5))
            assert receipt.aborted is busy
            late = await control.send("s", "late", by="alice", order=("chat", 4))
            assert (late.state, late.generation, late.superseded) == ("ended", None, None)
            outcome = await control.wait(late.run_id)
            assert (outcome.ending, outcome.by, outcome.started_at) == (Ending.STOPPED, "alice", None)
            assert kinds(await log_of(control, "s"), late.run_id) == ["message", "ended"]
            for number in (5, 5.0, 6, 4.5 + 0.5):
                assert await ending(control, str(number), ("chat", number), by="alice") is Ending.COMPLETED
            assert agent.texts == ["long", "5", "5.0", "6", "5.0"]

    seeded(main)


def test_a_late_message_takes_nobody_over() -> None:
    """A message written before the stop takes over no run that was written after it."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent) as control:
            await control.stop(session="s", order=("chat", 5))
            new = await control.send("s", "long", order=("chat", 6))
            await started(control, new.run_id)
            assert await ending(control, "late", ("chat", 4)) is Ending.STOPPED
            assert (await control.wait(new.run_id, timeout=1)).ending is Ending.PENDING
            assert agent.texts == ["long"]

    seeded(main)


@pytest.mark.parametrize(
    ("session", "order"),
    [("s", ("other", 1)), ("s", None), ("other", ("chat", 1)), ("s", ("Chat", 1))],
    ids=["other channel", "no order", "other session", "another name"],
)
def test_nothing_else_is_compared(session: str, order: tuple[str, float] | None) -> None:
    """A stop's place does not touch other channels, messages without a place, or other sessions."""

    async def main() -> None:
        async with open_control(Began()) as control:
            assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
            await control.stop(session="s", order=("chat", 5))
            assert await ending(control, "second", order, session=session) is Ending.COMPLETED
            assert await ending(control, "third", ("chat", 2)) is Ending.STOPPED

    seeded(main, range(2))


def test_a_stop_without_a_place_marks_nothing() -> None:
    """A stop without a place in a channel does not end messages that arrive later."""

    async def main() -> None:
        async with open_control(Began()) as control:
            assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
            await control.stop(session="s")
            assert await ending(control, "second", ("chat", 0)) is Ending.COMPLETED

    seeded(main, range(2))


def test_strangers_mark_only_what_they_may_stop() -> None:
    """A guest's stop reaches the guest's own late messages only; the owner's reaches everyone's."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent, admins=["root"], readers=["rita"]) as control:
            assert await ending(control, "first", None, by="alice") is Ending.COMPLETED
            await control.share("s", with_="bob")
            await control.share("s", with_="carol")
            for by in ("bob", "rita"):
                await control.stop(session="s", by=by, order=("chat", 5))
            assert await ending(control, "alice's", ("chat", 1), by="alice") is Ending.COMPLETED
            assert await ending(control, "carol's", ("chat", 1), by="carol") is Ending.COMPLETED
            assert await ending(control, "bob's", ("chat", 1), by="bob") is Ending.STOPPED
            await control.stop(session="s", by="alice", order=("chat", 3))
            late = await control.send("s", "carol's again", by="carol", order=("chat", 2))
            outcome = await control.wait(late.run_id)
            assert (outcome.ending, outcome.by) == (Ending.STOPPED, "alice")
            assert await ending(control, "carol's last", ("chat", 4), by="carol") is Ending.COMPLETED
            await control.stop(session="s", by="root", order=("chat", 9))
            assert await ending(control, "late", ("chat", 8), by="alice") is Ending.STOPPED

    seeded(main)


def test_strangers_cannot_push_an_owners_stop_out() -> None:
    """The owner's stop stands, however many places others mark."""

    async def main() -> None:
        async with open_control(Began()) as control:
            assert await ending(control, "first", None, by="alice") is Ending.COMPLETED
            await control.stop(session="s", by="alice", order=("chat", 5))
            for n in range(40):
                await control.stop(session="s", by="bob", order=(f"bob's {n}", 1))
            assert await ending(control, "late", ("chat", 4), by="alice") is Ending.STOPPED

    seeded(main, range(2))


def test_a_stop_before_the_session_exists() -> None:
    """A stop reaches a late first message of a session, which does not make its sender the owner."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent) as control:
            await control.stop(session="s", by="alice", order=("chat", 5))
            assert await ending(control, "bob's", ("chat", 6), by="bob", session="other") is Ending.COMPLETED
            assert await ending(control, "late", ("chat", 4), by="alice") is Ending.STOPPED
            assert await ending(control, "bob's", ("chat", 4), by="bob") is Ending.COMPLETED
            assert agent.texts == ["bob's", "bob's"]
            # Bob's message was the first one that was admitted.
            assert len(await control.history("s", by="bob")) > 0

    seeded(main)


@pytest.mark.parametrize("seen", [False, True])
def test_the_next_control_remembers(seen: bool) -> None:
    """The next control remembers a stop's place, also of a session that had never been seen."""

    async def main() -> None:
        store, agent = MemoryStore(), Began()
        async with open_control(agent, store=store) as control:
            if seen:
                assert await ending(control, "first", ("chat", 1), by="alice") is Ending.COMPLETED
            await control.stop(session="s", by="alice", order=("chat", 5))
        async with open_control(agent, store=store) as control:
            assert await ending(control, "late", ("chat", 4), by="alice") is Ending.STOPPED
            assert await ending(control, "later", ("chat", 5), by="alice") is Ending.COMPLETED
            assert "late" not in agent.texts

    seeded(main)


def test_a_place_is_kept_although_the_store_was_in_trouble() -> None:
    """A stop does not wait for a failing store to commit its place, which is stored as soon as the store works."""

    async def main() -> None:
        for fault in ("fail", "stall", "lose"):
            store, agent = MemoryStore(), Began()
            async with open_control(agent, store=store) as control:
                assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
                setattr(store.faults, fault, True)
                await control.stop(session="s", order=("chat", 5))
                store.faults.fail = store.faults.lose = False
                store.resume()
                assert await ending(control, "late", ("chat", 4)) is Ending.STOPPED
                await anyio.sleep(5)
            async with open_control(agent, store=store) as control:
                assert await ending(control, "late", ("chat", 4)) is Ending.STOPPED
            assert agent.texts == ["first"]

    seeded(main, range(4))


def test_only_ever_later() -> None:
    """An older stop that comes later moves no place back, in memory or in the store."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(Began(), store=store) as control:
            assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
            for number in (5, 3, 4):
                await control.stop(session="s", order=("chat", number))
            assert await ending(control, "late", ("chat", 4)) is Ending.STOPPED
        async with open_control(Began(), store=store) as control:
            await control.stop(session="s", order=("chat", 2))
            assert await ending(control, "late", ("chat", 4)) is Ending.STOPPED
            assert await ending(control, "later", ("chat", 5)) is Ending.COMPLETED

    seeded(main)


def test_only_ever_later_in_memory() -> None:
    """An older stop that comes later moves no place back while the session stays in memory."""

    async def main() -> None:
        async with open_control(Began()) as control:
            long = await control.send("s", "long", by="alice")
            await started(control, long.run_id)
            await control.share("s", with_="bob")
            for number in (5, 3, 4):
                await control.stop(session="s", by="bob", order=("chat", number))
            late = await control.send("s", "late", by="bob", order=("chat", 4))
            assert (await control.wait(late.run_id)).ending is Ending.STOPPED
            assert (await control.wait(long.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main, range(3))


def test_a_stop_and_its_late_message_at_once() -> None:
    """A message written before a stop is stopped, whichever of the two arrives first."""

    async def main() -> None:
        for turned in (False, True):
            agent = Began()
            async with open_control(agent) as control:
                assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
                calls = [control.stop(session="s", order=("chat", 5)), ending(control, "late", ("chat", 4))]
                answers = await at_once(*(reversed(calls) if turned else calls))
                assert Ending.STOPPED in answers
                await asyncio.sleep(5)
                assert agent.texts == ["first"]

    seeded(main)


def test_a_late_messages_key() -> None:
    """A retry of a late message with the same key gets the same answer, also from the next control."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(Began(), store=store) as control:
            assert await ending(control, "first", ("chat", 1)) is Ending.COMPLETED
            await control.stop(session="s", order=("chat", 5))
            late = await control.send("s", "late", order=("chat", 4), key="k")
            assert (await control.send("s", "late", order=("chat", 4), key="k")).run_id == late.run_id
        async with open_control(Began(), store=store) as control:
            again = await control.send("s", "late", order=("chat", 4), key="k")
            assert again.run_id == late.run_id
            assert (await control.wait(again.run_id)).ending is Ending.STOPPED

    seeded(main)


@pytest.mark.parametrize(
    "order",
    [
        5,
        "chat",
        ("chat",),
        ("chat", 1, 2),
        ("", 1),
        ("chat", "5"),
        ("chat", None),
        ("chat", True),
        ("chat", math.nan),
        ("chat", math.inf),
        ("chat", 10**400),
        (5, "chat"),
    ],
    ids=repr,
)
def test_bad_places_are_named(order: Any) -> None:
    """A value that is no place in a channel is refused, and nothing happens."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent) as control:
            first = await control.send("s", "long")
            await started(control, first.run_id)
            with pytest.raises(BadInput, match=NO_PLACE):
                await control.send("s", "x", order=order)
            with pytest.raises(BadInput, match=NO_PLACE):
                await control.stop(session="s", order=order)
            assert (await control.wait(first.run_id, timeout=1)).ending is Ending.PENDING
            assert agent.texts == ["long"]

    seeded(main, range(1))


def test_a_place_belongs_to_the_stop_of_a_session() -> None:
    """A place is refused in the stop of a run or a message, since only a session has messages still to come."""

    async def main() -> None:
        async with open_control(Began()) as control:
            for what in ({"run": "r-1-1"}, {"message": "k"}):
                with pytest.raises(BadInput, match="belongs to the stop of a session"):
                    await control.stop(order=("chat", 1), **what)

    seeded(main, range(1))


def test_a_stop_spares_what_was_written_after_it() -> None:
    """A stop that comes late or twice ends messages written before it, and none written after it (race 131)."""

    async def main() -> None:
        agent = Began()
        async with open_control(agent) as control:
            old = await control.send("s", "long", by="alice", order=("chat", 1))
            await started(control, old.run_id)
            new = await control.send("s", "long", by="alice", order=("chat", 4))
            waiting = [
                await control.send("s", text, by="alice", order=order, strategy="queue")
                for text, order in (
                    ("before", ("chat", 2)), ("after", ("chat", 5)), ("elsewhere", ("mail", 9)), ("unnumbered", None)
                )
            ]  # fmt: skip
            await started(control, new.run_id)
            for ended in ({waiting[0].run_id, waiting[2].run_id, waiting[3].run_id}, set()):
                receipt = await control.stop(session="s", by="alice", order=("chat", 3))
                assert ({run.id for run in receipt.runs} if receipt.aborted else set()) == ended
            assert (await control.wait(new.run_id, timeout=0)).ending is Ending.PENDING
            await control.stop(run=new.run_id)
            assert (await control.wait(waiting[1].run_id)).ending is Ending.COMPLETED

    seeded(main)


def test_a_stop_spares_a_message_that_is_just_coming_in() -> None:
    """A stop spares an arrival that was written after it, and ends one that was written before it."""

    async def main() -> None:
        async with open_control(Began()) as control:
            later, earlier, receipt = await at_once(
                control.send("s", "later", by="alice", order=("chat", 7)),
                control.send("s", "earlier", by="alice", order=("chat", 5)),
                control.stop(session="s", by="alice", order=("chat", 6)),
            )
            assert [run.id for run in receipt.runs] == [earlier.run_id]
            assert (earlier.stopped_by, earlier.born_stopped) == ("alice", False)
            assert (await control.wait(later.run_id)).ending is Ending.COMPLETED

    seeded(main)


def pass_by(control: Control, seconds: float) -> None:
    """Put the wall clock forward, or back."""
    wall = control._clock.wall
    control._clock.wall = lambda: wall() + seconds


def test_a_mark_stands_for_an_hour() -> None:
    """A stop far ahead in its channel stops messages that come within an hour, and none after that (race 132)."""

    async def main() -> None:
        async with open_control(Began()) as control:
            await control.stop(session="s", by="alice", order=("chat", 1e18))
            pass_by(control, 1_800)
            assert await ending(control, "one", ("chat", 7), by="alice") is Ending.STOPPED
            await control.stop(session="s", by="alice", order=("chat", 8))  # does not renew the first mark
            pass_by(control, 1_799)
            assert await ending(control, "two", ("chat", 9), by="alice") is Ending.STOPPED
            pass_by(control, 2)
            assert await ending(control, "three", ("chat", 9), by="alice") is Ending.COMPLETED
            assert await ending(control, "four", ("chat", 7), by="alice") is Ending.STOPPED, "the second stands"
            pass_by(control, 1_800)
            assert await ending(control, "five", ("chat", 7), by="alice") is Ending.COMPLETED

    seeded(main, range(2))


def test_a_mark_from_before_the_clock_was_set_back_does_not_stand_for_good() -> None:
    """A mark less than an hour ahead of the clock counts; one further ahead was made by a wrong clock and does not."""

    async def main() -> None:
        async with open_control(Began()) as control:
            await control.stop(session="s", by="alice", order=("chat", 5))
            pass_by(control, -3_000)
            assert await ending(control, "near", ("chat", 4), by="alice") is Ending.STOPPED
            pass_by(control, -700)
            assert await ending(control, "far", ("chat", 4), by="alice") is Ending.COMPLETED

    seeded(main, range(2))


def test_a_message_that_was_born_stopped_says_so() -> None:
    """A message that was born stopped says so to its sender and its waiters alike, with the name of who stopped it."""

    async def main() -> None:
        async with open_control(Began()) as control:
            await control.send("s", "hello", by="alice")
            await control.share("s", with_="bob", may="write", by="alice")
            await control.stop(session="s", by="alice", order=("chat", 5))
            await control.stop(message="k", by="bob")
            for sent, by in (
                (await control.send("s", "late", by="bob", order=("chat", 4)), "alice"),
                (await control.send("s", "early", by="bob", key="k"), "bob"),
            ):
                assert (sent.state, sent.stopped_by, sent.born_stopped) == ("ended", by, True)
                outcome = await control.wait(sent.run_id)
                assert (outcome.born_stopped, outcome.by) == (True, by)
                assert client_words(outcome) == f"stopped by {by} before it came"
                assert native(outcome).born_stopped
            usual = await control.send("s", "hello", by="alice")
            assert (usual.stopped_by, usual.born_stopped) == (None, False)

    seeded(main)


@pytest.mark.parametrize("readers", [(), ("eve",)])
@pytest.mark.parametrize("alive", [True, False])
def test_nobody_pushes_out_another_s_stop(
    monkeypatch: pytest.MonkeyPatch, readers: tuple[str, ...], alive: bool
) -> None:
    """Stops by strangers and readers push no owner's stop out: a message written before that stop stays stopped."""
    monkeypatch.setattr(registry, "MARKS", 5)
    monkeypatch.setattr(bounds, "MARKS_KEPT", 5)

    async def main() -> None:
        store, ran = MemoryStore(), []

        async def agent(run: Run, message: Message) -> None:
            ran.append(message.text)
            await answers(run, message)

        async with open_control(agent, store=store, readers=readers) as control:
            await control.wait((await control.send("s", "one", by="alice", order=("chat", 1))).run_id)
            await control.stop(session="s", by="alice", order=("chat", 10))
            if alive:
                await control.send("s", "wait", by="alice", order=("chat", 20))
            for n in range(50):
                await control.stop(session=f"x{n}", by="eve", order=("chat", 1))
                await control.stop(session="s", by="eve", order=(f"chat{n}", 1))
            late = await control.send("s", "late", by="alice", order=("chat", 5))
            assert (await control.wait(late.run_id, by="alice")).ending is Ending.STOPPED
            assert "late" not in ran
            await asyncio.sleep(1)
            others = 0 if readers else 5
            for kept in (store._marks, control._registry._marks):
                assert sum(by == "eve" for marks in kept.values() for _, by in marks) == others
                assert len(kept) <= 1 + others

    seeded(main, range(2))
