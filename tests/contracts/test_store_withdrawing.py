"""Withdrawn decisions, and decisions under an old token, are never carried out, however the reply was lost."""

import asyncio
from typing import Any

import anyio
import pytest
from tests.contracts.rows import (
    ALICE,
    S,
    ended,
    in_memory_only,
    key,
    loaded,
    mark,
    outcome,
    play,
    question,
    receipt,
    row,
    session,
    tool_row,
    wake,
)

from interlock.core.decision import Decision, Tombstone, Writer
from interlock.core.names import Ending, QuestionId, ReceiptId, RunId, SessionId, WakeId
from interlock.stores.base import Expelled, StoreFailed


def test_a_withdrawn_decision_never_comes(kit: Any) -> None:
    """A decision withdrawn before it was carried out is answered `never` and stays out; the others go on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.stall(store)
        first, second = (store.decide(Decision(admissions=(row(run),))) for run in ("a", "b"))
        await asyncio.sleep(0)
        assert await store.withdraw(first) is False
        assert first.answered and not second.answered
        with pytest.raises(StoreFailed):
            await first
        kit.resume(store)
        await second
        assert [each.id for each in await store.runs(S)] == ["b"]
        assert await store.withdraw(first) is False
        assert [each.id for each in await store.runs(S)] == ["b"]

    play(kit, main)


def test_a_decision_that_is_in_cannot_be_withdrawn(kit: Any) -> None:
    """A decision that is in answers `in` to every withdrawal, and stays."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(Decision(admissions=(row("r"),)))
        await ticket
        for _ in range(2):
            assert await store.withdraw(ticket) is True
        assert await store.run(RunId("r")) == row("r")

    play(kit, main)


@in_memory_only
def test_withdrawing_settles_a_lost_reply(kit: Any) -> None:
    """`withdraw` finds out that a decision with a lost answer is in, and the ticket answers from then on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.lose(store)
        ticket = store.decide(Decision(admissions=(row("r"),)))
        with anyio.move_on_after(0.01):
            await ticket
        assert not ticket.answered
        assert await store.withdraw(ticket) is True
        assert (await ticket).found == ()
        kit.resume(store)
        assert await store.run(RunId("r")) == row("r")

    play(kit, main)


@in_memory_only
@pytest.mark.parametrize("part", ["ending", "start"])
def test_a_lost_reply_loses_no_objection(kit: Any, part: str) -> None:
    """A lost first answer does not hide the store's objection: otherwise a run that ended would start."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.COMPLETED),)))
        kit.lose(store)
        decision = (
            Decision(endings=(ended("r", Ending.STOPPED),)) if part == "ending" else Decision(starts=(RunId("r"),))
        )
        ticket = store.decide(decision)
        with anyio.move_on_after(0.01):
            await ticket
        assert await store.withdraw(ticket) is True
        assert (await ticket).found == (outcome("r", Ending.COMPLETED),)

    play(kit, main)


def test_a_stalled_store_answers_when_it_resumes(kit: Any) -> None:
    """Decisions wait while the store stalls, and are carried out in order afterwards; a read waits or sees none."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.stall(store)
        tickets = [store.decide(Decision(admissions=(row(f"r{n}"),))) for n in range(3)]
        reading = asyncio.create_task(store.runs(S))
        await asyncio.sleep(0)
        with anyio.move_on_after(0.05):
            assert await asyncio.shield(reading) == ()
        waited = not reading.done()
        assert not any(ticket.answered for ticket in tickets)
        kit.resume(store)
        for ticket in tickets:
            await ticket
        assert [each.id for each in await reading] == (["r0", "r1", "r2"] if waited else [])
        assert [each.id for each in await store.runs(S)] == ["r0", "r1", "r2"]
        await store.decide(Decision(admissions=(row("r3"),)))
        assert await store.run(RunId("r3")) is not None

    play(kit, main)


def test_a_waiter_that_goes_away_leaves_the_decision(kit: Any) -> None:
    """A waiter that gives up on a ticket changes nothing of the decision."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.stall(store)
        ticket = store.decide(Decision(admissions=(row("r"),)))
        with anyio.move_on_after(0.01):
            await ticket
        kit.resume(store)
        await ticket
        assert await store.run(RunId("r")) == row("r")

    play(kit, main)


def test_closing_finishes_what_was_taken(kit: Any) -> None:
    """A decision handed over before the close is in the store after it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(Decision(admissions=(row("r"),)))
        await store.close()
        await ticket
        await store.open()
        assert await store.run(RunId("r")) == row("r")

    play(kit, main)


@pytest.mark.parametrize("generation", [0, 4, 5, 6])
def test_the_writer_right_is_a_token(kit: Any, generation: int) -> None:
    """A write under an older generation than the session's is refused; the session's own or a later is accepted."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(5),)))
        ticket = store.decide(Decision(writer=Writer(S, generation), tools=(tool_row(),)))
        if generation < 5:
            with pytest.raises(Expelled, match="writer right has passed"):
                await ticket
        else:
            assert (await ticket).found == ()
        assert await store.tools(RunId("r")) == (() if generation < 5 else (tool_row(),))
        assert await store.session(S) == session(5)

    play(kit, main)


def test_nothing_under_an_old_token_is_kept(kit: Any) -> None:
    """A decision with an old token is refused whole: no part of it is in the store, then or later."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(5),), admissions=(row("m"),), wakes=(wake("kept"),)))
        ticket = store.decide(
            Decision(
                writer=Writer(S, 4),
                sessions=(session(9), session(1, name=SessionId("other"))),
                admissions=(row("a"),),
                endings=(ended("b", Ending.STOPPED),),
                keys=(key("k", "a"),),
                tombstones=(Tombstone(principal=ALICE, key="t"),),
                starts=(RunId("m"),),
                tools=(tool_row(),),
                receipts=(receipt("f", "m"),),
                aliases=((RunId("m"), RunId("b")),),
                questions=(question(),),
                wakes=(wake("new"),),
                unwakes=(WakeId("kept"),),
                marks=(mark(1.0),),
                rises=(S,),
            )
        )
        for _ in range(2):
            with pytest.raises(Expelled):
                await ticket
        assert await store.withdraw(ticket) is False
        assert await store.session(S) == session(5)
        assert await store.session(SessionId("other")) is None
        assert await store.runs(S) == (row("m"),)
        assert await store.tools(RunId("r")) == ()
        assert await store.receipt(ReceiptId("f")) is None
        assert await store.question(QuestionId("q")) is None
        assert await store.wakes() == (wake("kept"),)
        known = await loaded(store, "k")
        assert (known.key, known.previous, known.marks) == (None, None, ())
        assert not (await loaded(store, "t")).buried

    play(kit, main)


def test_a_token_is_checked_where_it_is_written(kit: Any) -> None:
    """The store's order decides: a write handed over before its session rose is accepted, a later one is not."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(5),)))
        before = store.decide(Decision(writer=Writer(S, 5), tools=(tool_row("r.1"),)))
        store.decide(Decision(sessions=(session(6),)))
        after = store.decide(Decision(writer=Writer(S, 5), tools=(tool_row("r.2"),)))
        await before
        with pytest.raises(Expelled):
            await after
        assert await store.tools(RunId("r")) == (tool_row("r.1"),)

    play(kit, main)


def test_a_token_of_a_session_nobody_knows(kit: Any) -> None:
    """A token of a session without a stored generation is accepted; another session's generation does not matter."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(9, name=SessionId("other")),)))
        assert (await store.decide(Decision(writer=Writer(S, 1), tools=(tool_row(),)))).found == ()

    play(kit, main)
