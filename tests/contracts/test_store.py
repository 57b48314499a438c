"""What every store must keep: one Decision, one transaction, conditional writes, conclusive answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest

from interlock.core.decision import (
    Decision,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StopMark,
    Tombstone,
    ToolRow,
    WakeRow,
    Writer,
)
from interlock.core.events import Block, Data, Delta, Ended, Event, Json, Progress, Said, Started, Typing
from interlock.core.names import (
    CallId,
    Ending,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
    WakeId,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt
from interlock.stores.base import OldToken, Store, StoreFailed

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


def tool_row(call: str = "r.1", state: ToolState = ToolState.RUNNING) -> ToolRow:
    return ToolRow(call_id=CallId(call), run_id=RunId("r"), name="t", arguments=Json("{}"), state=state)


def question(state: QuestionState = QuestionState.OPEN, *, name: str = "q", run: str = "r", **more: Any) -> QuestionRow:
    return QuestionRow(
        id=QuestionId(name), run_id=RunId(run), session=S, principal=ALICE, text="Deploy?", state=state, **more
    )


def wake(name: str, *, every: float = 60.0) -> WakeRow:
    return WakeRow(id=WakeId(name), session=S, principal=ALICE, text="look", since=1.0, every=every)


def mark(at: float, *, channel: str = "chat", by: Principal = ALICE, name: SessionId = S) -> StopMark:
    return StopMark(session=name, channel=channel, by=by, at=at)


def child(run: str, *, ended: Outcome | None = None, home: SessionId = S) -> RunRow:
    plain = row(run, ended, name=SessionId(f"run:{run}"))
    return msgspec.structs.replace(plain, kind=RunKind.CHILD, parent=RunId("r"), home=home, agent="other")


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
        assert known.marks == ()
        assert await store.runs(S, tree=True) == ()
        assert await store.question(QuestionId("q")) is None
        assert await store.wakes() == ()
        assert await store.tools(RunId("r")) == ()

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
                tools=(tool_row(),),
                questions=(question(),),
                wakes=(wake("w"),),
                marks=(mark(1.0),),
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
                await store.tools(RunId("r")) != (),
                await store.question(QuestionId("q")) is not None,
                await store.wakes() != (),
                known.marks != (),
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


def test_the_key_of_a_message_that_ended_by_itself(kit: Any) -> None:
    """A message that was to be part of another run and ended alone is what its key answers with, from then on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        joining = msgspec.structs.replace(row("b", generation=None), alias=RunId("a"))
        await store.decide(Decision(admissions=(row("a"), joining), keys=(key("j", "a"),)))
        alone = msgspec.structs.replace(joining, alias=None, outcome=outcome("b", Ending.STOPPED))
        for _ in range(2):
            await store.decide(Decision(endings=(alone,), keys=(key("j", "b"),)))
            assert (await loaded(store, "j")).key == key("j", "b")
        for other in ("a", "c"):  # and nobody else's
            await store.decide(Decision(keys=(key("j", other),)))
        assert (await loaded(store, "j")).key == key("j", "b")

    play(main)


def test_the_key_of_a_message_that_is_part_of_a_run(kit: Any) -> None:
    """While a message is part of another run its key answers with that run, whatever is said of it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        part = msgspec.structs.replace(row("b", generation=None), alias=RunId("a"))
        await store.decide(Decision(admissions=(row("a"), part), keys=(key("j", "a"),)))
        await store.decide(Decision(keys=(key("j", "b"),)))
        assert (await loaded(store, "j")).key == key("j", "a")

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


@pytest.mark.parametrize("kin", ["session", "tree"])
def test_runs_are_bounded_though_the_oldest_lives(kit: Any, kin: str) -> None:
    """One run that lives keeps no other from being forgotten, and is forgotten in its turn when it has ended."""

    def made(name: str, ended: Outcome | None = None) -> RunRow:
        return row(name, ended) if kin == "session" else child(name, ended=ended)

    async def main() -> None:
        store = kit.small(RUNS_KEPT=3)
        await store.open()
        await store.decide(Decision(admissions=(made("lives"),)))
        for n in range(10):
            await store.decide(Decision(endings=(made(f"r{n}", outcome(f"r{n}", Ending.COMPLETED)),)))
            assert len(await store.runs(S, tree=True)) <= 4  # it comes on top
        assert await store.run(RunId("lives")) == made("lives")
        await store.decide(Decision(endings=(made("lives", outcome("lives", Ending.STOPPED)),)))
        for n in range(10, 13):
            await store.decide(Decision(endings=(made(f"r{n}", outcome(f"r{n}", Ending.COMPLETED)),)))
        assert [each.id for each in await store.runs(S, tree=True)] == ["r10", "r11", "r12"]
        assert await store.run(RunId("lives")) is None

    play(main)


def test_runs_that_all_live_are_kept_and_make_room_later(kit: Any) -> None:
    """However many live, none is forgotten; once they have ended, as many are kept as at any time."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=3)
        await store.open()
        for n in range(10):
            await store.decide(Decision(admissions=(row(f"a{n}"),)))
        assert len(await store.runs(S)) == 10
        await store.decide(Decision(endings=tuple(ended(f"a{n}", Ending.STOPPED) for n in range(10))))
        for n in range(3):
            await store.decide(Decision(endings=(ended(f"b{n}", Ending.COMPLETED),)))
        assert [each.id for each in await store.runs(S)] == ["b0", "b1", "b2"]

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


# Tools


def test_tool_starts_are_taken(kit: Any) -> None:
    """A decision that holds only a tool's start is carried out and answered; what became of the call replaces it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        assert (await store.decide(Decision(tools=(tool_row("r.1"), tool_row("r.2"))))).found == ()
        await store.decide(Decision(tools=(tool_row("r.1", ToolState.FINISHED),)))
        assert await store.tools(RunId("r")) == (tool_row("r.1", ToolState.FINISHED), tool_row("r.2"))
        assert await store.tools(RunId("other")) == ()

    play(main)


# The writer right


@pytest.mark.parametrize("generation", [0, 4, 5, 6])
def test_the_writer_right_is_a_token(kit: Any, generation: int) -> None:
    """A write under an older generation than the session's is refused; the session's own and a later one are taken."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(5),)))
        ticket = store.decide(Decision(writer=Writer(S, generation), tools=(tool_row(),)))
        if generation < 5:
            with pytest.raises(OldToken, match="writer right has passed"):
                await ticket
        else:
            assert (await ticket).found == ()
        assert await store.tools(RunId("r")) == (() if generation < 5 else (tool_row(),))
        assert await store.session(S) == session(5)

    play(main)


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
            with pytest.raises(OldToken):
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

    play(main)


def test_a_token_is_checked_where_it_is_written(kit: Any) -> None:
    """The order in the store decides: a write that was handed over before its session rose is taken, one after not."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(5),)))
        before = store.decide(Decision(writer=Writer(S, 5), tools=(tool_row("r.1"),)))
        store.decide(Decision(sessions=(session(6),)))
        after = store.decide(Decision(writer=Writer(S, 5), tools=(tool_row("r.2"),)))
        await before
        with pytest.raises(OldToken):
            await after
        assert await store.tools(RunId("r")) == (tool_row("r.1"),)

    play(main)


def test_a_token_of_a_session_nobody_knows(kit: Any) -> None:
    """Where no generation is kept none can be older; another session's says nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(9, name=SessionId("other")),)))
        assert (await store.decide(Decision(writer=Writer(S, 1), tools=(tool_row(),)))).found == ()

    play(main)


# Messages that another run took in


def test_an_alias_names_the_run_that_took_a_message_in(kit: Any) -> None:
    """A message that another run took in says which, and the rest of its row is as it was admitted."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("a"), row("b", text="part"))))
        await store.decide(Decision(aliases=((RunId("b"), RunId("a")), (RunId("nobody"), RunId("a")))))
        assert await store.run(RunId("b")) == msgspec.structs.replace(row("b", text="part"), alias=RunId("a"))
        assert await store.run(RunId("a")) == row("a")
        assert await store.run(RunId("nobody")) is None

    play(main)


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

    play(main)


# Questions

S_ = QuestionState
FIRST = {
    S_.OPEN: question(),
    S_.ANSWERED: question(S_.ANSWERED, answer=True, by=ALICE),
    S_.EXPIRED: question(S_.EXPIRED),
    S_.VOID: question(S_.VOID),
}
LATER = {
    S_.OPEN: question(),
    S_.ANSWERED: question(S_.ANSWERED, answer=False, by=BOB),
    S_.EXPIRED: question(S_.EXPIRED),
    S_.VOID: question(S_.VOID),
}
MOVES = {
    (S_.OPEN, S_.ANSWERED),
    (S_.OPEN, S_.EXPIRED),
    (S_.OPEN, S_.VOID),
    (S_.ANSWERED, S_.VOID),  # the run fell before the answer was acted on
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("first", FIRST)
def test_what_becomes_of_a_question(kit: Any, first: QuestionState, later: QuestionState) -> None:
    """The first answer stands, void and expired are for good; only a fall undoes an answer (race 56)."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(questions=(FIRST[first],)))
        assert (await store.decide(Decision(questions=(LATER[later],)))).found == ()
        kept = LATER[later] if (first, later) in MOVES else FIRST[first]
        assert await store.question(QuestionId("q")) == kept

    play(main)


def test_a_question_may_come_closed(kit: Any) -> None:
    """What became of a question is kept although its opening never arrived, and is not opened again by it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for name, state in (("a", S_.ANSWERED), ("b", S_.VOID), ("c", S_.EXPIRED)):
            await store.decide(Decision(questions=(question(state, name=name),)))
            await store.decide(Decision(questions=(question(name=name),)))
            assert await store.question(QuestionId(name)) == question(state, name=name)

    play(main)


def test_several_questions_are_judged_one_by_one(kit: Any) -> None:
    """Of several questions in one decision each is closed or left as its own state allows."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(questions=(question(name="a"), question(S_.EXPIRED, name="b"))))
        await store.decide(Decision(questions=(question(S_.VOID, name="a"), question(S_.VOID, name="b"))))
        found = [await store.question(QuestionId(name)) for name in "ab"]
        assert [each.state for each in found if each is not None] == [S_.VOID, S_.EXPIRED]

    play(main)


def test_a_question_is_kept_as_it_was_put(kit: Any) -> None:
    """Text, choices, the answer and who gave it are read as they were written."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        put = question(S_.ANSWERED, choices=("staging", "the moon"), answer="the moon", by=BOB)
        await store.decide(Decision(questions=(put,)))
        assert await store.question(QuestionId("q")) == put

    play(main)


def test_questions_are_forgotten_with_their_run(kit: Any) -> None:
    """A run that is forgotten takes its questions along, and nobody else's."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        for run in "abc":
            asked = question(S_.VOID, name=f"q{run}", run=run)
            await store.decide(Decision(endings=(ended(run, Ending.STOPPED),), questions=(asked,)))
        assert await store.question(QuestionId("qa")) is None
        assert await store.question(QuestionId("qb")) == question(S_.VOID, name="qb", run="b")

    play(main)


# Wakes


def test_wakes_are_kept_until_they_are_removed(kit: Any) -> None:
    """Every schedule is listed in its order; one that is written again is replaced, one that is removed is gone."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(wakes=(wake("a"), wake("b"), wake("c"))))
        await store.decide(Decision(wakes=(wake("b", every=5.0),)))
        assert sorted(await store.wakes(), key=lambda each: each.id) == [wake("a"), wake("b", every=5.0), wake("c")]
        for _ in range(2):
            await store.decide(Decision(unwakes=(WakeId("a"), WakeId("nothing"))))
            assert sorted(each.id for each in await store.wakes()) == ["b", "c"]
        await store.close()
        await store.open()
        assert sorted(each.id for each in await store.wakes()) == ["b", "c"]

    play(main)


# Stops by their place in a channel


def test_a_mark_only_moves_on(kit: Any) -> None:
    """Of the stops of one person in one channel the last by that channel's order counts, however late others come."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for at in (4.0, 2.0, 7.0, 7.0, 6.0):
            await store.decide(Decision(marks=(mark(at),)))
        assert (await loaded(store)).marks == (mark(7.0),)

    play(main)


def test_marks_are_apart(kit: Any) -> None:
    """Another channel, another person and another session have marks of their own; whoever loads sees them all."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        mine = (mark(9.0), mark(3.0, channel="mail"), mark(1.0, by=BOB))
        await store.decide(Decision(marks=(*mine, mark(5.0, name=SessionId("other")))))
        for by in (ALICE, BOB):
            assert sorted((await loaded(store, by=by)).marks, key=repr) == sorted(mine, key=repr)

    play(main)


def test_marks_are_bounded(kit: Any) -> None:
    """The oldest marks of a session are forgotten by count."""

    async def main() -> None:
        store = kit.small(MARKS_KEPT=3)
        await store.open()
        for n in range(5):
            await store.decide(Decision(marks=(mark(1.0, channel=f"c{n}"),)))
        assert sorted(each.channel for each in (await loaded(store)).marks) == ["c2", "c3", "c4"]

    play(main)


def test_marks_are_bounded_per_principal(kit: Any) -> None:
    """Who stops many sessions pushes out only their own oldest marks, and what was stopped again is not the oldest."""

    async def main() -> None:
        store = kit.small(MARKS_KEPT=3)
        await store.open()
        await store.decide(Decision(marks=(mark(9.0), mark(8.0, channel="mail"), mark(1.0, by=BOB))))
        for n in range(20):
            await store.decide(Decision(marks=(mark(1.0, by=BOB, name=SessionId(f"x{n}")),)))
        assert (await loaded(store)).marks == (mark(9.0), mark(8.0, channel="mail"))
        kept = [(await store.load(SessionId(f"x{n}"), principal=BOB, key=None)).marks for n in range(20)]
        assert [bool(marks) for marks in kept] == [False] * 17 + [True] * 3
        for name in ("x17", "y"):
            await store.decide(Decision(marks=(mark(2.0, by=BOB, name=SessionId(name)),)))
        kept = [(await store.load(SessionId(name), principal=BOB, key=None)).marks for name in ("x17", "x18", "x19")]
        assert [bool(marks) for marks in kept] == [True, False, True]

    play(main)


# What else is known of a session


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

    play(main)


def test_a_transcript_begins_anew(kit: Any) -> None:
    """`since` only rises, whatever the generation; what ended before it is no previous turn any more."""

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

    play(main)


def test_a_turn_that_ended_after_the_reset_stays_the_previous_one(kit: Any) -> None:
    """The row of a reset may come behind the ending of a turn that began after it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(1),), endings=(ended("a", Ending.COMPLETED),)))
        new = row("b", outcome("b", Ending.STOPPED), generation=3)
        await store.decide(Decision(sessions=(session(4),), endings=(new,)))
        await store.decide(Decision(sessions=(msgspec.structs.replace(session(4), since=40, renewed=2),)))
        assert (await loaded(store)).previous == outcome("b", Ending.STOPPED)

    play(main)


def test_a_late_ending_of_an_old_transcript_is_no_previous_turn(kit: Any) -> None:
    """An ending of a turn before the transcript began anew, written after it, is kept and not told as previous."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(1),), admissions=(row("a"),)))
        await store.decide(Decision(sessions=(msgspec.structs.replace(session(3), since=40, renewed=3),)))
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),)))
        kept = await store.run(RunId("a"))
        assert kept is not None and kept.outcome == outcome("a", Ending.STOPPED)
        assert (await loaded(store)).previous is None

    play(main)


# Children


def test_a_tree_holds_the_children(kit: Any) -> None:
    """A child is in a session of its own; `tree` lists it with the session at the top, and no other does."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("r"), child("c"), child("d"))))
        await store.decide(Decision(admissions=(child("e", home=SessionId("other")),)))
        assert await store.runs(S) == (row("r"),)
        assert await store.runs(S, tree=True) == (row("r"), child("c"), child("d"))
        assert await store.runs(SessionId("run:c")) == (child("c"),)
        assert await store.runs(SessionId("other"), tree=True) == (child("e", home=SessionId("other")),)

    play(main)


def test_children_are_forgotten_by_count(kit: Any) -> None:
    """The oldest ended children of a tree are forgotten, with the session that was theirs; one that lives stays."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        for name in "abc":
            done = child(name, ended=outcome(name, Ending.COMPLETED))
            await store.decide(Decision(sessions=(session(1, name=SessionId(f"run:{name}")),), endings=(done,)))
        assert [each.id for each in await store.runs(S, tree=True)] == ["b", "c"]
        assert await store.run(RunId("a")) is None
        assert await store.session(SessionId("run:a")) is None
        assert await store.session(SessionId("run:b")) is not None
        await store.decide(Decision(admissions=(child("lives"),)))
        for name in "defg":
            done = child(name, ended=outcome(name, Ending.COMPLETED))
            await store.decide(Decision(endings=(done,)))
        assert await store.run(RunId("lives")) == child("lives")

    play(main)
