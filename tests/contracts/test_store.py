"""Every store keeps this contract: one Decision, one transaction, conditional writes, conclusive answers."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from tests.contracts.rows import (
    ALICE,
    BOB,
    S,
    ended,
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

from interlock.core.decision import (
    Decision,
    Tombstone,
)
from interlock.core.names import (
    Ending,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    SessionId,
    Strategy,
    ToolState,
)
from interlock.stores.base import StoreFailed

# Opening


def test_every_start_has_a_higher_boot(kit: Any) -> None:
    """Each opening gets a boot number above all before it, so that positions and ids are never given twice."""

    async def main() -> None:
        store = kit.make()
        boots = []
        for _ in range(3):
            boots.append(await store.open())
            await store.close()
        assert boots == sorted(set(boots)) and boots[0] > 0

    play(kit, main)


def test_a_store_begins_empty(kit: Any) -> None:
    """A fresh store knows no session, run, key, receipt or event, and says so without an error."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        assert await store.session(S) is None
        assert await store.run(RunId("r")) is None
        assert await store.runs(S) == ()
        assert await store.receipt(RunId("r")) is None
        page = await store.events(S, after=0, limit=10)
        assert (page.events, page.lost_to) == ((), 0)
        known = await loaded(store, "k")
        assert (known.session, known.key, known.buried, known.previous) == (None, None, False, None)
        assert known.marks == ()
        assert await store.runs(S, tree=True) == ()
        assert await store.question(QuestionId("q")) is None
        assert await store.wakes() == ()
        assert await store.tools(RunId("r")) == ()

    play(kit, main)


# Decisions


def test_decisions_are_carried_out_in_order(kit: Any) -> None:
    """The store carries decisions out in the order of the calls of `decide`, whichever is awaited first."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        tickets = [store.decide(Decision(admissions=(row(f"r{n}"),))) for n in range(20)]
        assert not any(ticket.answered for ticket in tickets)
        await tickets[-1]
        assert all(ticket.answered for ticket in tickets)
        assert [each.id for each in await store.runs(S)] == [f"r{n}" for n in range(20)]

    play(kit, main)


def test_one_decision_is_one_transaction(kit: Any) -> None:
    """No reader sees a part of a decision without the rest."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(
            Decision(
                sessions=(session(3),),
                admissions=(row("new"),),
                endings=(ended("old", Ending.SUPERSEDED),),
                keys=(key("k", "new"),),
                tombstones=(Tombstone(principal=ALICE, key="t"),),
                receipts=(receipt("f", "old"),),
                tools=(tool_row(),),
                questions=(question(),),
                wakes=(wake("w"),),
                marks=(mark(1.0),),
            )
        )
        seen: list[bool] = []

        async def look() -> None:
            """Check that each read sees all or nothing of what it covers, and later reads see it too."""
            known = await loaded(store, "k")
            whole = {known.session is not None, known.key is not None, known.previous is not None, known.marks != ()}
            assert len(whole) == 1
            seen.extend(whole)
            seen.append((await loaded(store, "t")).buried)
            runs = await store.runs(S)
            assert len(runs) in (0, 2)
            seen.append(len(runs) == 2)
            seen.append(await store.run(RunId("new")) is not None)
            seen.append(await store.receipt(RunId("old")) is not None)
            seen.append(await store.tools(RunId("r")) != ())
            seen.append(await store.question(QuestionId("q")) is not None)
            seen.append(await store.wakes() != ())

        while not ticket.answered:
            await look()
            await asyncio.sleep(0)
        await ticket
        before = len(seen)
        await look()
        assert seen == sorted(seen) and all(seen[before:])
        known = await loaded(store, "k")
        assert known.session == session(3)
        assert known.key == key("k", "new")
        assert known.previous == outcome("old", Ending.SUPERSEDED)

    play(kit, main)


def test_a_failed_decision_leaves_nothing(kit: Any) -> None:
    """A decision that the store refused leaves no part in it, and its ticket says so every time."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.fail(store)
        ticket = store.decide(
            Decision(
                sessions=(session(1),), admissions=(row("r"),), keys=(key("k", "r"),), receipts=(receipt("f", "r"),)
            )
        )
        for _ in range(2):
            with pytest.raises(StoreFailed, match="again"):
                await ticket
        with contextlib.suppress(StoreFailed):  # reads may go on where writes fail
            assert await store.run(RunId("r")) is None
        kit.resume(store)
        assert await store.run(RunId("r")) is None
        assert await store.session(S) is None
        assert await store.receipt(ReceiptId("f")) is None
        assert (await loaded(store, "k")).key is None
        assert await store.withdraw(ticket) is False

    play(kit, main)


def test_a_decision_may_be_handed_over_again(kit: Any) -> None:
    """The same decision twice has the effect of one, and the second meets no objection."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        decision = Decision(
            sessions=(session(2),),
            admissions=(row("a"),),
            endings=(ended("b", Ending.STOPPED, text="part"),),
            keys=(key("k", "a"),),
            tombstones=(Tombstone(principal=ALICE, key="t"),),
            receipts=(receipt("f", "b"),),
            aliases=((RunId("a"), RunId("b")),),
            tools=(tool_row(),),
            questions=(question(QuestionState.ANSWERED, answer=True, by=ALICE),),
            wakes=(wake("w"),),
            marks=(mark(1.0),),
        )
        for _ in range(2):
            assert (await store.decide(decision)).found == ()
        assert [each.id for each in await store.runs(S)] == ["a", "b"]
        assert await store.session(S) == session(2)
        assert await store.tools(RunId("r")) == (tool_row(),)
        assert await store.wakes() == (wake("w"),)
        assert (await loaded(store)).marks == (mark(1.0),)

    play(kit, main)


# Endings


def test_an_ending_is_written_where_none_stands(kit: Any) -> None:
    """The first ending of a run stays; a later, different one changes nothing and is answered with the first."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("r"),)))
        assert (await store.decide(Decision(endings=(ended("r", Ending.COMPLETED, text="hi"),)))).found == ()
        for other in Ending:
            if other in (Ending.COMPLETED, Ending.PENDING, Ending.UNKNOWN):
                continue
            verdict = await store.decide(Decision(endings=(ended("r", other),)))
            assert verdict.found == (outcome("r", Ending.COMPLETED, text="hi"),)
        kept = await store.run(RunId("r"))
        assert kept is not None and kept.outcome == outcome("r", Ending.COMPLETED, text="hi")

    play(kit, main)


def test_an_ending_keeps_the_admission(kit: Any) -> None:
    """Ending an admitted run sets its outcome and the cut text, and leaves the message as it was admitted."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("r", text="the message"),)))
        end = msgspec.structs.replace(ended("r", Ending.STOPPED), text="another text", cut="half")
        await store.decide(Decision(endings=(end,)))
        kept = await store.run(RunId("r"))
        assert kept is not None and (kept.text, kept.cut) == ("the message", "half")

    play(kit, main)


def test_an_ending_may_come_without_its_admission(kit: Any) -> None:
    """An ending whose admission never arrived inserts the run, and a late admission does not reopen it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        assert (await store.decide(Decision(endings=(ended("r", Ending.STOPPED),)))).found == ()
        await store.decide(Decision(admissions=(row("r"),)))
        kept = await store.run(RunId("r"))
        assert kept is not None and kept.outcome == outcome("r", Ending.STOPPED)
        assert [each.id for each in await store.runs(S)] == ["r"]

    play(kit, main)


def test_lost_yields_to_a_real_ending(kit: Any) -> None:
    """A later ending replaces `lost`, which is a guess; `lost` never replaces another ending."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert (await store.decide(Decision(endings=(ended("r", Ending.COMPLETED),)))).found == ()
        verdict = await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert verdict.found == (outcome("r", Ending.COMPLETED),)

    play(kit, main)


def test_drained_and_durable_are_no_other_story(kit: Any) -> None:
    """The same ending with other values of drained and durable meets no objection."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.STOPPED),)))
        again = ended("r", Ending.STOPPED, drained=True, durable=False)
        assert (await store.decide(Decision(endings=(again,)))).found == ()

    play(kit, main)


def test_several_endings_are_judged_one_by_one(kit: Any) -> None:
    """Several endings in one decision are judged apart: the store answers those that stand, writes the others."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.FAILED, error="x"),)))
        verdict = await store.decide(Decision(endings=(ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))))
        assert verdict.found == (outcome("a", Ending.FAILED, error="x"),)
        kept = await store.run(RunId("b"))
        assert kept is not None and kept.outcome == outcome("b", Ending.STOPPED)

    play(kit, main)


def test_the_last_turn_of_a_session_is_remembered(kit: Any) -> None:
    """`load` returns how the session's last turn ended, not a run that was never seated, nor another session's."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.COMPLETED, text="1"),)))
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED, text="2"),)))
        elsewhere = row("c", outcome("c", Ending.FAILED), name=SessionId("other"))
        waited = row("d", outcome("d", Ending.STOPPED, text="3"), generation=None)
        await store.decide(Decision(endings=(elsewhere, waited)))
        assert (await loaded(store)).previous == outcome("b", Ending.STOPPED, text="2")

    play(kit, main)


# Sessions


def test_a_generation_only_rises(kit: Any) -> None:
    """Race 42: a lower generation that comes late changes nothing; the owner is the principal who came first."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for generation in (4, 2, 7, 7, 6):
            await store.decide(Decision(sessions=(session(generation, owner=ALICE if generation == 4 else BOB),)))
        assert await store.session(S) == session(7, owner=ALICE)

    play(kit, main)


def test_a_session_can_be_raised_where_it_is_kept(kit: Any) -> None:
    """`rises` raises a stored session's generation by one without knowing it; an unknown session is not made."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(4),)))
        await store.decide(Decision(rises=(S, SessionId("nowhere"))))
        assert await store.session(S) == session(5)
        assert await store.session(SessionId("nowhere")) is None

    play(kit, main)


# Starts


def test_a_start_is_marked_where_the_run_has_not_ended(kit: Any) -> None:
    """A run that ended is not started again: the store answers with its ending."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("a"), row("b"))))
        assert (await store.decide(Decision(starts=(RunId("a"),)))).found == ()
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED),)))
        verdict = await store.decide(Decision(starts=(RunId("b"),)))
        assert verdict.found == (outcome("b", Ending.STOPPED),)
        first, second = await store.runs(S)
        assert (first.started, second.started) == (True, False)

    play(kit, main)


# Tool calls


def test_tool_starts_are_taken(kit: Any) -> None:
    """A decision that holds only a tool's start is carried out and answered; the call's result replaces the start."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        assert (await store.decide(Decision(tools=(tool_row("r.1"), tool_row("r.2"))))).found == ()
        await store.decide(Decision(tools=(tool_row("r.1", ToolState.FINISHED),)))
        assert await store.tools(RunId("r")) == (tool_row("r.1", ToolState.FINISHED), tool_row("r.2"))
        assert await store.tools(RunId("other")) == ()

    play(kit, main)


# Messages that another run absorbed


def test_an_alias_names_the_run_that_took_a_message_in(kit: Any) -> None:
    """A message that another run absorbed names that run, and the rest of its row is as it was admitted."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("a"), row("b", text="part"))))
        await store.decide(Decision(aliases=((RunId("b"), RunId("a")), (RunId("nobody"), RunId("a")))))
        assert await store.run(RunId("b")) == msgspec.structs.replace(row("b", text="part"), alias=RunId("a"))
        assert await store.run(RunId("a")) == row("a")
        assert await store.run(RunId("nobody")) is None

    play(kit, main)


def test_a_message_that_has_ended_is_not_taken_in(kit: Any) -> None:
    """An alias that comes after the ending changes nothing: the ending stands."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("a"), row("b"))))
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED),)))
        await store.decide(Decision(aliases=((RunId("b"), RunId("a")),)))
        kept = await store.run(RunId("b"))
        assert kept is not None and (kept.alias, kept.outcome) == (None, outcome("b", Ending.STOPPED))

    play(kit, main)


# Other facts of a session


def test_a_session_s_strategy_is_the_latest(kit: Any) -> None:
    """A strategy gives way to one of the same or a later generation; an older write that comes late changes nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()

        async def write(generation: int, strategy: Strategy | None) -> Strategy | None:
            row = msgspec.structs.replace(session(generation), strategy=strategy)
            await store.decide(Decision(sessions=(row,)))
            kept = await store.session(S)
            assert kept is not None
            return kept.strategy

        assert await write(2, Strategy.QUEUE) is Strategy.QUEUE
        assert await write(2, Strategy.STEER) is Strategy.STEER
        assert await write(1, Strategy.REJECT) is Strategy.STEER
        assert await write(3, Strategy.COLLECT) is Strategy.COLLECT
        assert await write(4, None) is None

    play(kit, main)


def test_a_transcript_begins_anew(kit: Any) -> None:
    """`since` only rises, whatever the generation; a turn that ended before it is no previous turn."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(1),), endings=(ended("a", Ending.COMPLETED),)))
        await store.decide(Decision(sessions=(msgspec.structs.replace(session(2), since=40, renewed=2),)))
        known = await loaded(store)
        assert (known.session.since, known.session.generation, known.previous) == (40, 2, None)
        late = msgspec.structs.replace(session(3), since=7)
        await store.decide(Decision(sessions=(late,)))
        assert (await loaded(store)).session == msgspec.structs.replace(session(3), since=40, renewed=2)
        again = row("b", outcome("b", Ending.STOPPED), generation=4)
        await store.decide(Decision(endings=(again,)))
        assert (await loaded(store)).previous == outcome("b", Ending.STOPPED)

    play(kit, main)


def test_a_turn_that_ended_after_the_reset_stays_the_previous_one(kit: Any) -> None:
    """A turn that began after a reset stays the previous turn, though the row of the reset comes after its ending."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(1),), endings=(ended("a", Ending.COMPLETED),)))
        new = row("b", outcome("b", Ending.STOPPED), generation=3)
        await store.decide(Decision(sessions=(session(4),), endings=(new,)))
        await store.decide(Decision(sessions=(msgspec.structs.replace(session(4), since=40, renewed=2),)))
        assert (await loaded(store)).previous == outcome("b", Ending.STOPPED)

    play(kit, main)


def test_a_late_ending_of_an_old_transcript_is_no_previous_turn(kit: Any) -> None:
    """An ending of a turn before the reset, written after the reset, is kept, but is not the previous turn."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(1),), admissions=(row("a"),)))
        await store.decide(Decision(sessions=(msgspec.structs.replace(session(3), since=40, renewed=3),)))
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),)))
        kept = await store.run(RunId("a"))
        assert kept is not None and kept.outcome == outcome("a", Ending.STOPPED)
        assert (await loaded(store)).previous is None

    play(kit, main)
