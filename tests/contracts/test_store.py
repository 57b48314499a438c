"""What every store must keep: one Decision, one transaction, conditional writes, conclusive answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest

from interlock.core.decision import Decision, KeyRow, RunRow, SessionRow, Tombstone, ToolRow
from interlock.core.events import Block, Data, Delta, Ended, Event, Json, Progress, Said, Started, Typing
from interlock.core.names import CallId, Ending, Principal, ReceiptId, RunId, RunKind, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt
from interlock.stores.base import Store, StoreFailed

ALICE, BOB = Principal("alice"), Principal("bob")
S = SessionId("s")


def play(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 5))  # type: ignore[arg-type]


def session(generation: int, *, owner: Principal = ALICE, name: SessionId = S) -> SessionRow:
    return SessionRow(id=name, owner=owner, generation=generation)


def outcome(run: str, ending: Ending, **more: Any) -> Outcome:
    return Outcome(run_id=RunId(run), ending=ending, **more)


def row(
    run: str,
    ended: Outcome | None = None,
    *,
    text: str = "hello",
    name: SessionId = S,
    generation: int | None = 1,
) -> RunRow:
    return RunRow(
        id=RunId(run),
        session=name,
        principal=ALICE,
        kind=RunKind.CHAT,
        text=text,
        admitted_at=1.0,
        outcome=ended,
        generation=generation,
    )


def ended(run: str, ending: Ending, **more: Any) -> RunRow:
    return row(run, outcome(run, ending, **more))


def key(name: str, run: str, *, by: Principal = ALICE, digest: str = "d") -> KeyRow:
    return KeyRow(principal=by, key=name, method="send", digest=digest, run_id=RunId(run), generation=1)


def receipt(name: str, *runs: str, durable: bool = True) -> Receipt:
    fallen = tuple(FallenRun(id=RunId(run), outcome=outcome(run, Ending.STOPPED)) for run in runs)
    return Receipt(id=ReceiptId(name), session=S, cause=Ending.STOPPED, runs=fallen, fenced_at=1.0, durable=durable)


def event(position: int, data: Data, run: str | None = "r", name: SessionId = S) -> Event:
    return Event(position=position, session=name, run_id=None if run is None else RunId(run), generation=1, data=data)


async def loaded(store: Store, wanted: str | None = None, *, by: Principal = ALICE) -> Any:
    return await store.load(S, principal=by, key=wanted)


# Opening


def test_every_start_has_a_higher_boot(kit: Any) -> None:
    """Each opening gets a number above all before it, so that positions and ids are never given twice."""

    async def main() -> None:
        store = kit.make()
        boots = []
        for _ in range(3):
            boots.append(await store.open())
            await store.close()
        assert boots == sorted(set(boots)) and boots[0] > 0

    play(main)


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

    play(main)


# Decisions


def test_decisions_are_carried_out_in_order(kit: Any) -> None:
    """`decide` enqueues at once: the order of the calls is the order in the store, whoever is awaited first."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        tickets = [store.decide(Decision(admissions=(row(f"r{n}"),))) for n in range(20)]
        assert not any(ticket.answered for ticket in tickets)
        await tickets[-1]
        assert all(ticket.answered for ticket in tickets)
        assert [each.id for each in await store.runs(S)] == [f"r{n}" for n in range(20)]

    play(main)


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
            )
        )
        seen = []
        while not ticket.answered:
            known = await loaded(store, "k")
            parts = [
                known.session is not None,
                known.key is not None,
                (await loaded(store, "t")).buried,
                await store.run(RunId("new")) is not None,
                await store.run(RunId("old")) is not None,
                await store.receipt(RunId("old")) is not None,
            ]
            seen.append(set(parts))
            await asyncio.sleep(0)
        await ticket
        assert all(len(parts) == 1 for parts in seen)
        known = await loaded(store, "k")
        assert known.session == session(3)
        assert known.key == key("k", "new")
        assert known.previous == outcome("old", Ending.SUPERSEDED)

    play(main)


def test_a_failed_decision_leaves_nothing(kit: Any) -> None:
    """A decision the store refused is nowhere in it, in no part, and its ticket says so every time."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.faults.fail = True
        ticket = store.decide(
            Decision(
                sessions=(session(1),), admissions=(row("r"),), keys=(key("k", "r"),), receipts=(receipt("f", "r"),)
            )
        )
        for _ in range(2):
            with pytest.raises(StoreFailed, match="send it again"):
                await ticket
        with pytest.raises(StoreFailed):
            await store.run(RunId("r"))
        store.resume()
        assert await store.run(RunId("r")) is None
        assert await store.session(S) is None
        assert await store.receipt(ReceiptId("f")) is None
        assert (await loaded(store, "k")).key is None
        assert await store.withdraw(ticket) is False

    play(main)


def test_a_decision_may_be_handed_over_again(kit: Any) -> None:
    """The same decision twice is the same as once, and the second finds nothing to object to."""

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
        )
        for _ in range(2):
            assert (await store.decide(decision)).found == ()
        assert [each.id for each in await store.runs(S)] == ["a", "b"]
        assert await store.session(S) == session(2)

    play(main)


# Endings


def test_an_ending_is_written_where_none_stands(kit: Any) -> None:
    """The first ending of a run stays; a later other one changes nothing and is answered with what stands."""

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

    play(main)


def test_an_ending_keeps_the_admission(kit: Any) -> None:
    """Ending an admitted run sets its outcome and what was cut, and leaves the message as it was admitted."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("r", text="the message"),)))
        end = msgspec.structs.replace(ended("r", Ending.STOPPED), text="another text", cut="half")
        await store.decide(Decision(endings=(end,)))
        kept = await store.run(RunId("r"))
        assert kept is not None and (kept.text, kept.cut) == ("the message", "half")

    play(main)


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

    play(main)


def test_lost_yields_to_a_real_ending(kit: Any) -> None:
    """Only `lost`, a guess, is replaced by the ending that comes after it; never the other way round."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert (await store.decide(Decision(endings=(ended("r", Ending.COMPLETED),)))).found == ()
        verdict = await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert verdict.found == (outcome("r", Ending.COMPLETED),)

    play(main)


def test_drained_and_durable_are_no_other_story(kit: Any) -> None:
    """The same ending with other facts beside it is not an objection."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.STOPPED),)))
        again = ended("r", Ending.STOPPED, drained=True, durable=False)
        assert (await store.decide(Decision(endings=(again,)))).found == ()

    play(main)


def test_several_endings_are_judged_one_by_one(kit: Any) -> None:
    """Of several endings in one decision those that stand are answered, the others are written."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.FAILED, error="x"),)))
        verdict = await store.decide(Decision(endings=(ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))))
        assert verdict.found == (outcome("a", Ending.FAILED, error="x"),)
        kept = await store.run(RunId("b"))
        assert kept is not None and kept.outcome == outcome("b", Ending.STOPPED)

    play(main)


def test_the_last_turn_of_a_session_is_remembered(kit: Any) -> None:
    """`load` tells how the session's last turn ended, not what never had the seat, nor another session's."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.COMPLETED, text="1"),)))
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED, text="2"),)))
        elsewhere = row("c", outcome("c", Ending.FAILED), name=SessionId("other"))
        waited = row("d", outcome("d", Ending.STOPPED, text="3"), generation=None)
        await store.decide(Decision(endings=(elsewhere, waited)))
        assert (await loaded(store)).previous == outcome("b", Ending.STOPPED, text="2")

    play(main)


# Sessions


def test_a_generation_only_rises(kit: Any) -> None:
    """A lower generation that comes late changes nothing; the owner is who came first (race 42)."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for generation in (4, 2, 7, 7, 6):
            await store.decide(Decision(sessions=(session(generation, owner=ALICE if generation == 4 else BOB),)))
        assert await store.session(S) == session(7, owner=ALICE)

    play(main)


def test_a_session_can_be_raised_where_it_is_kept(kit: Any) -> None:
    """`rises` raises a session by one without knowing its number; one that is not there is not made."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(4),)))
        await store.decide(Decision(rises=(S, SessionId("nowhere"))))
        assert await store.session(S) == session(5)
        assert await store.session(SessionId("nowhere")) is None

    play(main)


# Starts


def test_a_start_is_marked_where_the_run_has_not_ended(kit: Any) -> None:
    """A run that ended is not started again: the decision is answered with its ending."""

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

    play(main)


# Keys and tombstones


def test_a_key_keeps_its_first_use(kit: Any) -> None:
    """A key answers with its first row for ever; another principal's key of the same name is another key."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(keys=(key("k", "first"),)))
        await store.decide(Decision(keys=(key("k", "second", digest="e"), key("k", "bobs", by=BOB))))
        assert (await loaded(store, "k")).key == key("k", "first")
        assert (await loaded(store, "k", by=BOB)).key == key("k", "bobs", by=BOB)
        assert (await loaded(store, None)).key is None

    play(main)


def test_keys_are_bounded(kit: Any) -> None:
    """The oldest keys are forgotten by count."""

    async def main() -> None:
        store = kit.small(KEYS_KEPT=3)
        await store.open()
        for n in range(5):
            await store.decide(Decision(keys=(key(f"k{n}", f"r{n}"),)))
        assert [(await loaded(store, f"k{n}")).key is not None for n in range(5)] == [False, False, True, True, True]

    play(main)


def test_a_tombstone_is_its_principal_s(kit: Any) -> None:
    """A key that one principal buried is not buried for another."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(tombstones=(Tombstone(principal=ALICE, key="k"),)))
        assert (await loaded(store, "k")).buried
        assert not (await loaded(store, "k", by=BOB)).buried
        assert not (await loaded(store, "j")).buried

    play(main)


def test_tombstones_are_bounded_per_principal(kit: Any) -> None:
    """Who buries many keys pushes out only their own oldest."""

    async def main() -> None:
        store = kit.small(TOMBSTONES_KEPT=3)
        await store.open()
        await store.decide(Decision(tombstones=(Tombstone(principal=BOB, key="k"),)))
        for n in range(5):
            await store.decide(Decision(tombstones=(Tombstone(principal=ALICE, key=f"k{n}"),)))
        assert [(await loaded(store, f"k{n}")).buried for n in range(5)] == [False, False, True, True, True]
        assert (await loaded(store, "k", by=BOB)).buried

    play(main)


# Receipts


def test_a_receipt_is_found_by_its_id_and_by_its_runs(kit: Any) -> None:
    """A receipt answers to its own id and to each run in it, and the newest version stands."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=tuple(ended(run_id, Ending.STOPPED) for run_id in "abc")))
        await store.decide(Decision(receipts=(receipt("f1", "a", "b", durable=False),)))
        await store.decide(Decision(receipts=(receipt("f2", "c"),)))
        await store.decide(Decision(receipts=(receipt("f1", "a", "b"),)))
        for wanted in ("f1", "a", "b"):
            assert await store.receipt(RunId(wanted)) == receipt("f1", "a", "b")
        assert await store.receipt(RunId("c")) == receipt("f2", "c")
        assert await store.receipt(RunId("d")) is None

    play(main)


def test_a_forgotten_run_takes_no_other_run_s_receipt(kit: Any) -> None:
    """Ended runs are forgotten by count; a receipt stays while one of its runs is still kept."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        both = (ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))
        await store.decide(Decision(endings=both, receipts=(receipt("f", "a", "b"),)))
        await store.decide(Decision(endings=(ended("c", Ending.STOPPED),)))
        assert [each.id for each in await store.runs(S)] == ["b", "c"]
        assert await store.run(RunId("a")) is None
        assert await store.receipt(RunId("b")) == receipt("f", "a", "b")

    play(main)


def test_a_run_that_has_not_ended_is_never_forgotten(kit: Any) -> None:
    """However many runs a session has had, one without an ending stays (P5: an accepted message is never lost)."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        await store.decide(Decision(admissions=(row("waits"),)))
        for n in range(5):
            await store.decide(Decision(endings=(ended(f"r{n}", Ending.COMPLETED),)))
        assert await store.run(RunId("waits")) == row("waits")

    play(main)


# Withdrawing


def test_a_withdrawn_decision_never_comes(kit: Any) -> None:
    """What is withdrawn before it was carried out is answered `never`, stays out, and the others go on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.faults.stall = True
        first, second = (store.decide(Decision(admissions=(row(run),))) for run in ("a", "b"))
        await asyncio.sleep(0)
        assert await store.withdraw(first) is False
        assert first.answered and not second.answered
        with pytest.raises(StoreFailed):
            await first
        store.resume()
        await second
        assert [each.id for each in await store.runs(S)] == ["b"]
        assert await store.withdraw(first) is False
        assert [each.id for each in await store.runs(S)] == ["b"]

    play(main)


def test_a_decision_that_is_in_cannot_be_withdrawn(kit: Any) -> None:
    """Withdrawing what is in answers `in` as often as it is asked and takes nothing back."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(Decision(admissions=(row("r"),)))
        await ticket
        for _ in range(2):
            assert await store.withdraw(ticket) is True
        assert await store.run(RunId("r")) == row("r")

    play(main)


def test_withdrawing_settles_a_lost_reply(kit: Any) -> None:
    """Where the answer got lost, `withdraw` finds out: it is in, and the ticket answers from then on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.faults.lose = True
        ticket = store.decide(Decision(admissions=(row("r"),)))
        with anyio.move_on_after(0.01):
            await ticket
        assert not ticket.answered
        assert await store.withdraw(ticket) is True
        assert (await ticket).found == ()
        store.resume()
        assert await store.run(RunId("r")) == row("r")

    play(main)


@pytest.mark.parametrize("part", ["ending", "start"])
def test_a_lost_reply_loses_no_objection(kit: Any, part: str) -> None:
    """What the store held instead is told although the first answer got lost: else a run that ended would start."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.COMPLETED),)))
        store.faults.lose = True
        decision = (
            Decision(endings=(ended("r", Ending.STOPPED),)) if part == "ending" else Decision(starts=(RunId("r"),))
        )
        ticket = store.decide(decision)
        with anyio.move_on_after(0.01):
            await ticket
        assert await store.withdraw(ticket) is True
        assert (await ticket).found == (outcome("r", Ending.COMPLETED),)

    play(main)


def test_a_stalled_store_answers_when_it_resumes(kit: Any) -> None:
    """Decisions and reads wait while the store stalls and are carried out in order afterwards."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.faults.stall = True
        tickets = [store.decide(Decision(admissions=(row(f"r{n}"),))) for n in range(3)]
        reading = asyncio.create_task(store.runs(S))
        await asyncio.sleep(0)
        assert not reading.done() and not any(ticket.answered for ticket in tickets)
        store.resume()
        for ticket in tickets:
            await ticket
        assert [each.id for each in await reading] == ["r0", "r1", "r2"]
        await store.decide(Decision(admissions=(row("r3"),)))
        assert await store.run(RunId("r3")) is not None

    play(main)


def test_a_waiter_that_goes_away_leaves_the_decision(kit: Any) -> None:
    """Giving up on a ticket changes nothing of what was decided."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.faults.stall = True
        ticket = store.decide(Decision(admissions=(row("r"),)))
        with anyio.move_on_after(0.01):
            await ticket
        store.resume()
        await ticket
        assert await store.run(RunId("r")) == row("r")

    play(main)


def test_closing_finishes_what_was_taken(kit: Any) -> None:
    """What was decided before the close is in the store after it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(Decision(admissions=(row("r"),)))
        await store.close()
        await ticket
        await store.open()
        assert await store.run(RunId("r")) == row("r")

    play(main)


# Events


def test_events_come_in_order_behind_a_position(kit: Any) -> None:
    """Events are read in order, behind `after`, at most `limit` at a time, of one session only."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for n in range(1, 11):
            store.append(event(n, Block(text=str(n))))
        store.append(event(11, Block(text="x"), name=SessionId("other")))
        assert [each.position for each in (await store.events(S, after=0, limit=100)).events] == list(range(1, 11))
        assert [each.position for each in (await store.events(S, after=4, limit=3)).events] == [5, 6, 7]
        assert (await store.events(S, after=10, limit=3)).events == ()
        pages, after = [], 0
        while (page := await store.events(S, after=after, limit=4)).events:
            pages.append([each.position for each in page.events])
            after = page.events[-1].position
        assert pages == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

    play(main)


def test_what_was_appended_is_read_at_once(kit: Any) -> None:
    """Reads see what was appended, committed or not, in the very values that were appended."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        events = [event(1, Said(text="hi", by=ALICE)), event(2, Started()), event(3, Delta(text="a"))]
        for each in events:
            store.append(each)
            assert (await store.events(S, after=each.position - 1, limit=1)).events == (each,)
        assert (await store.events(S, after=0, limit=9)).events == tuple(events)

    play(main)


def test_deltas_leave_the_log_with_the_end(kit: Any) -> None:
    """A run's `ended` takes its deltas, typing and progress out of the log, and nobody else's."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.append(event(1, Said(text="hi", by=ALICE), "a"))
        store.append(event(2, Delta(text="x"), "a"))
        store.append(event(3, Delta(text="y"), "b"))
        store.append(event(4, Typing(on=True), "a"))
        store.append(event(5, Progress(text="p"), "a"))
        store.append(event(6, Block(text="x"), "a"))
        assert [each.position for each in (await store.events(S, after=0, limit=9)).events] == [1, 2, 3, 4, 5, 6]
        assert [each.position for each in (await store.events(S, after=1, limit=3)).events] == [2, 3, 4]
        store.append(event(7, Ended(outcome=outcome("a", Ending.COMPLETED)), "a"))
        page = await store.events(S, after=0, limit=9)
        assert [each.position for each in page.events] == [1, 3, 6, 7]
        assert page.lost_to == 0

    play(main)


def test_events_that_were_dropped_are_told(kit: Any) -> None:
    """A log that forgot its beginning says up to where, to readers that missed something and to nobody else."""

    async def main() -> None:
        store = kit.small(LOG_EVENTS=3)
        await store.open()
        for n in range(1, 8):
            store.append(event(n, Block(text=str(n))))
        page = await store.events(S, after=0, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 4)
        assert (await store.events(S, after=3, limit=9)).lost_to == 4
        page = await store.events(S, after=4, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 0)

    play(main)


def test_appending_never_waits(kit: Any) -> None:
    """`append` is a plain call that works while the store stalls or fails; the events are there afterwards."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for number, fault in enumerate(("stall", "fail", "lose"), 1):
            setattr(store.faults, fault, True)
            store.append(event(number, Block(text=fault)))
            store.resume()
        assert [each.data.text for each in (await store.events(S, after=0, limit=9)).events] == [
            "stall",
            "fail",
            "lose",
        ]

    play(main)


def test_tool_starts_are_taken(kit: Any) -> None:
    """A decision that holds only a tool's start is carried out and answered."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        start = ToolRow(
            call_id=CallId("r.1"), run_id=RunId("r"), name="t", arguments=Json("{}"), state=ToolState.RUNNING
        )
        assert (await store.decide(Decision(tools=(start,)))).found == ()

    play(main)
