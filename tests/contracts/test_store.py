"""What every store must keep: one Decision, one transaction, conditional writes, conclusive answers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.core.decision import (
    Decision,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    ShareRow,
    StopKey,
    StopMark,
    Tombstone,
    ToolRow,
    WakeRow,
    Writer,
)
from interlock.core.events import (
    Asked,
    Block,
    ChildEnd,
    Correction,
    Data,
    Delegated,
    Delta,
    Ended,
    Event,
    Gap,
    Json,
    Phase,
    Progress,
    Proof,
    Said,
    Spawned,
    Started,
    Tool,
    Typing,
)
from interlock.core.names import (
    ENDINGS,
    PASSING,
    BodyState,
    CallId,
    Drain,
    Effect,
    Ending,
    ErrorKind,
    May,
    Principal,
    ProcessState,
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
from interlock.core.receipt import FallenRun, FallenTool, Processes, Receipt
from interlock.stores.base import Loaded, OldToken, Pruned, SessionInfo, Store, StoreFailed, Ticket

ALICE, BOB = Principal("alice"), Principal("bob")
S = SessionId("s")


def play(kit: Any, main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(main(), 120)  # type: ignore[arg-type]
        finally:
            await kit.close()

    asyncio.run(whole())


in_memory_only = pytest.mark.parametrize("kit", ["memory"], indirect=True)  # see MemoryKit.lose


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


def mark(
    at: float, *, channel: str = "chat", by: Principal = ALICE, name: SessionId = S, since: float = 1.0
) -> StopMark:
    return StopMark(session=name, channel=channel, by=by, at=at, stopped_at=since)


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
    """`decide` enqueues at once: the order of the calls is the order in the store, whoever is awaited first."""

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
            """Each read alone sees all or nothing of what it covers; what one has seen, all later ones see."""
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
    """A decision the store refused is nowhere in it, in no part, and its ticket says so every time."""

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
        with contextlib.suppress(StoreFailed):  # where nothing can be written, reads may go on
            assert await store.run(RunId("r")) is None
        kit.resume(store)
        assert await store.run(RunId("r")) is None
        assert await store.session(S) is None
        assert await store.receipt(ReceiptId("f")) is None
        assert (await loaded(store, "k")).key is None
        assert await store.withdraw(ticket) is False

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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
    """Only `lost`, a guess, is replaced by the ending that comes after it; never the other way round."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert (await store.decide(Decision(endings=(ended("r", Ending.COMPLETED),)))).found == ()
        verdict = await store.decide(Decision(endings=(ended("r", Ending.LOST),)))
        assert verdict.found == (outcome("r", Ending.COMPLETED),)

    play(kit, main)


def test_drained_and_durable_are_no_other_story(kit: Any) -> None:
    """The same ending with other facts beside it is not an objection."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("r", Ending.STOPPED),)))
        again = ended("r", Ending.STOPPED, drained=True, durable=False)
        assert (await store.decide(Decision(endings=(again,)))).found == ()

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


# Sessions


def test_a_generation_only_rises(kit: Any) -> None:
    """A lower generation that comes late changes nothing; the owner is who came first (race 42)."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for generation in (4, 2, 7, 7, 6):
            await store.decide(Decision(sessions=(session(generation, owner=ALICE if generation == 4 else BOB),)))
        assert await store.session(S) == session(7, owner=ALICE)

    play(kit, main)


def test_a_session_can_be_raised_where_it_is_kept(kit: Any) -> None:
    """`rises` raises a session by one without knowing its number; one that is not there is not made."""

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

    play(kit, main)


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

    play(kit, main)


def test_keys_are_bounded(kit: Any) -> None:
    """The oldest keys are forgotten by count."""

    async def main() -> None:
        store = kit.small(KEYS_KEPT=3)
        await store.open()
        for n in range(5):
            await store.decide(Decision(keys=(key(f"k{n}", f"r{n}"),)))
        await kit.tidy(store)
        assert [(await loaded(store, f"k{n}")).key is not None for n in range(5)] == [False, False, True, True, True]

    play(kit, main)


def test_a_tombstone_is_its_principal_s(kit: Any) -> None:
    """A key that one principal buried is not buried for another."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(tombstones=(Tombstone(principal=ALICE, key="k"),)))
        assert (await loaded(store, "k")).buried
        assert not (await loaded(store, "k", by=BOB)).buried
        assert not (await loaded(store, "j")).buried

    play(kit, main)


def test_tombstones_are_bounded_per_principal(kit: Any) -> None:
    """Who buries many keys pushes out only their own oldest."""

    async def main() -> None:
        store = kit.small(TOMBSTONES_KEPT=3)
        await store.open()
        await store.decide(Decision(tombstones=(Tombstone(principal=BOB, key="k"),)))
        for n in range(5):
            await store.decide(Decision(tombstones=(Tombstone(principal=ALICE, key=f"k{n}"),)))
        await kit.tidy(store)
        assert [(await loaded(store, f"k{n}")).buried for n in range(5)] == [False, False, True, True, True]
        assert (await loaded(store, "k", by=BOB)).buried

    play(kit, main)


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

    play(kit, main)


def test_the_key_of_a_message_that_is_part_of_a_run(kit: Any) -> None:
    """While a message is part of another run its key answers with that run, whatever is said of it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        part = msgspec.structs.replace(row("b", generation=None), alias=RunId("a"))
        await store.decide(Decision(admissions=(row("a"), part), keys=(key("j", "a"),)))
        await store.decide(Decision(keys=(key("j", "b"),)))
        assert (await loaded(store, "j")).key == key("j", "a")

    play(kit, main)


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

    play(kit, main)


def test_a_forgotten_run_takes_no_other_run_s_receipt(kit: Any) -> None:
    """Ended runs are forgotten by count; a receipt stays while one of its runs is still kept."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        both = (ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))
        await store.decide(Decision(endings=both, receipts=(receipt("f", "a", "b"),)))
        await store.decide(Decision(endings=(ended("c", Ending.STOPPED),)))
        await kit.tidy(store)
        assert [each.id for each in await store.runs(S)] == ["b", "c"]
        assert await store.run(RunId("a")) is None
        assert await store.receipt(RunId("b")) == receipt("f", "a", "b")

    play(kit, main)


def test_a_run_that_has_not_ended_is_never_forgotten(kit: Any) -> None:
    """However many runs a session has had, one without an ending stays (P5: an accepted message is never lost)."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        await store.decide(Decision(admissions=(row("waits"),)))
        for n in range(5):
            await store.decide(Decision(endings=(ended(f"r{n}", Ending.COMPLETED),)))
        await kit.tidy(store)
        assert await store.run(RunId("waits")) == row("waits")

    play(kit, main)


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
            await kit.tidy(store)
            assert len(await store.runs(S, tree=True)) <= 4  # it comes on top
        assert await store.run(RunId("lives")) == made("lives")
        await store.decide(Decision(endings=(made("lives", outcome("lives", Ending.STOPPED)),)))
        for n in range(10, 13):
            await store.decide(Decision(endings=(made(f"r{n}", outcome(f"r{n}", Ending.COMPLETED)),)))
        await kit.tidy(store)
        assert [each.id for each in await store.runs(S, tree=True)] == ["r10", "r11", "r12"]
        assert await store.run(RunId("lives")) is None

    play(kit, main)


def test_runs_that_all_live_are_kept_and_make_room_later(kit: Any) -> None:
    """However many live, none is forgotten; once they have ended, as many are kept as at any time."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=3)
        await store.open()
        for n in range(10):
            await store.decide(Decision(admissions=(row(f"a{n}"),)))
        await kit.tidy(store)
        assert len(await store.runs(S)) == 10
        await store.decide(Decision(endings=tuple(ended(f"a{n}", Ending.STOPPED) for n in range(10))))
        for n in range(3):
            await store.decide(Decision(endings=(ended(f"b{n}", Ending.COMPLETED),)))
        await kit.tidy(store)
        assert [each.id for each in await store.runs(S)] == ["b0", "b1", "b2"]

    play(kit, main)


# Withdrawing


def test_a_withdrawn_decision_never_comes(kit: Any) -> None:
    """What is withdrawn before it was carried out is answered `never`, stays out, and the others go on."""

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
    """Withdrawing what is in answers `in` as often as it is asked and takes nothing back."""

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
    """Where the answer got lost, `withdraw` finds out: it is in, and the ticket answers from then on."""

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
    """What the store held instead is told although the first answer got lost: else a run that ended would start."""

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
    """Decisions wait while the store stalls and are carried out in order afterwards; a read waits or tells of none."""

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
    """Giving up on a ticket changes nothing of what was decided."""

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
    """What was decided before the close is in the store after it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        ticket = store.decide(Decision(admissions=(row("r"),)))
        await store.close()
        await ticket
        await store.open()
        assert await store.run(RunId("r")) == row("r")

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


def test_events_that_were_dropped_are_told(kit: Any) -> None:
    """A log that forgot its beginning says up to where, to readers that missed something and to nobody else."""

    async def main() -> None:
        store = kit.small(LOG_EVENTS=3)
        await store.open()
        for n in range(1, 8):
            store.append(event(n, Block(text=str(n))))
        await kit.tidy(store)
        page = await store.events(S, after=0, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 4)
        assert (await store.events(S, after=3, limit=9)).lost_to == 4
        page = await store.events(S, after=4, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 0)

    play(kit, main)


def test_appending_never_waits(kit: Any) -> None:
    """`append` is a plain call that works while the store stalls or fails; the events are there afterwards."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        faults = [name for name in ("stall", "fail", "lose") if hasattr(kit, name)]
        for number, fault in enumerate(faults, 1):
            getattr(kit, fault)(store)
            store.append(event(number, Block(text=fault)))
            kit.resume(store)
        assert [each.data.text for each in (await store.events(S, after=0, limit=9)).events] == faults

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


def test_a_token_of_a_session_nobody_knows(kit: Any) -> None:
    """Where no generation is kept none can be older; another session's says nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(sessions=(session(9, name=SessionId("other")),)))
        assert (await store.decide(Decision(writer=Writer(S, 1), tools=(tool_row(),)))).found == ()

    play(kit, main)


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

    play(kit, main)


def test_a_question_may_come_closed(kit: Any) -> None:
    """What became of a question is kept although its opening never arrived, and is not opened again by it."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for name, state in (("a", S_.ANSWERED), ("b", S_.VOID), ("c", S_.EXPIRED)):
            await store.decide(Decision(questions=(question(state, name=name),)))
            await store.decide(Decision(questions=(question(name=name),)))
            assert await store.question(QuestionId(name)) == question(state, name=name)

    play(kit, main)


def test_several_questions_are_judged_one_by_one(kit: Any) -> None:
    """Of several questions in one decision each is closed or left as its own state allows."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(questions=(question(name="a"), question(S_.EXPIRED, name="b"))))
        await store.decide(Decision(questions=(question(S_.VOID, name="a"), question(S_.VOID, name="b"))))
        found = [await store.question(QuestionId(name)) for name in "ab"]
        assert [each.state for each in found if each is not None] == [S_.VOID, S_.EXPIRED]

    play(kit, main)


def test_a_question_is_kept_as_it_was_put(kit: Any) -> None:
    """Text, choices, the answer and who gave it are read as they were written."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        put = question(S_.ANSWERED, choices=("staging", "the moon"), answer="the moon", by=BOB)
        await store.decide(Decision(questions=(put,)))
        assert await store.question(QuestionId("q")) == put

    play(kit, main)


def test_questions_are_forgotten_with_their_run(kit: Any) -> None:
    """A run that is forgotten takes its questions along, and nobody else's."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        for run in "abc":
            asked = question(S_.VOID, name=f"q{run}", run=run)
            await store.decide(Decision(endings=(ended(run, Ending.STOPPED),), questions=(asked,)))
        await kit.tidy(store)
        assert await store.question(QuestionId("qa")) is None
        assert await store.question(QuestionId("qb")) == question(S_.VOID, name="qb", run="b")

    play(kit, main)


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

    play(kit, main)


# Stops by their place in a channel


def test_a_mark_only_moves_on(kit: Any) -> None:
    """Of the stops of one person in one channel the last by that channel's order counts, however late others come."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for at in (4.0, 2.0, 7.0, 7.0, 6.0):
            await store.decide(Decision(marks=(mark(at),)))
        assert (await loaded(store)).marks == (mark(7.0),)

    play(kit, main)


def test_a_later_stop_at_an_earlier_place_has_a_mark_beside(kit: Any) -> None:
    """A mark far ahead goes when it has stood for an hour; those of stops that came meanwhile stand on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for at, since in ((1e18, 10.0), (5.0, 20.0), (4.0, 15.0), (7.0, 3_000.0)):
            await store.decide(Decision(marks=(mark(at, since=since),)))
        assert (await loaded(store)).marks == (mark(1e18, since=10.0), mark(7.0, since=3_000.0))
        await store.decide(Decision(marks=(mark(6.0, since=3_611.0),)))
        assert (await loaded(store)).marks == (mark(7.0, since=3_000.0), mark(6.0, since=3_611.0))

    play(kit, main)


def stop_key(name: str, *, by: Principal = ALICE, **more: Any) -> StopKey:
    return StopKey(principal=by, key=name, method="stop", digest="d", at=1.5, **more)


def test_the_first_use_of_a_stops_key_stands(kit: Any) -> None:
    """Every field of it is kept, over a restart too, and a later use changes nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        first = (
            stop_key("k", receipt=ReceiptId("f"), aborted=True),
            stop_key("k", by=BOB, already=Ending.COMPLETED),
            stop_key("l"),
        )
        await store.decide(Decision(stops=first))
        await store.decide(Decision(stops=(stop_key("k", receipt=ReceiptId("g")),)))
        assert sorted(await store.stops(), key=repr) == sorted(first, key=repr)

    play(kit, main)


def test_keys_of_stops_are_bounded_per_principal(kit: Any) -> None:
    """Who stops often pushes out only their own oldest."""

    async def main() -> None:
        store = kit.small(STOPS_KEPT=3)
        await store.open()
        await store.decide(Decision(stops=(stop_key("k", by=BOB),)))
        for n in range(5):
            await store.decide(Decision(stops=(stop_key(f"k{n}"),)))
        await kit.tidy(store)
        kept = [(each.principal, each.key) for each in await store.stops()]
        assert sorted(kept) == [(ALICE, "k2"), (ALICE, "k3"), (ALICE, "k4"), (BOB, "k")]

    play(kit, main)


def test_marks_are_apart(kit: Any) -> None:
    """Another channel, another person and another session have marks of their own; whoever loads sees them all."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        mine = (mark(9.0), mark(3.0, channel="mail"), mark(1.0, by=BOB))
        await store.decide(Decision(marks=(*mine, mark(5.0, name=SessionId("other")))))
        for by in (ALICE, BOB):
            assert sorted((await loaded(store, by=by)).marks, key=repr) == sorted(mine, key=repr)

    play(kit, main)


def test_marks_are_bounded(kit: Any) -> None:
    """The oldest marks of a session are forgotten by count."""

    async def main() -> None:
        store = kit.small(MARKS_KEPT=3)
        await store.open()
        for n in range(5):
            await store.decide(Decision(marks=(mark(1.0, channel=f"c{n}"),)))
        await kit.tidy(store)
        assert sorted(each.channel for each in (await loaded(store)).marks) == ["c2", "c3", "c4"]

    play(kit, main)


def test_marks_are_bounded_per_principal(kit: Any) -> None:
    """Who stops many sessions pushes out only their own oldest marks, and what was stopped again is not the oldest."""

    async def main() -> None:
        store = kit.small(MARKS_KEPT=3)
        await store.open()
        await store.decide(Decision(marks=(mark(9.0), mark(8.0, channel="mail"), mark(1.0, by=BOB))))
        for n in range(20):
            await store.decide(Decision(marks=(mark(1.0, by=BOB, name=SessionId(f"x{n}")),)))
        await kit.tidy(store)
        assert (await loaded(store)).marks == (mark(9.0), mark(8.0, channel="mail"))
        kept = [(await store.load(SessionId(f"x{n}"), principal=BOB, key=None)).marks for n in range(20)]
        assert [bool(marks) for marks in kept] == [False] * 17 + [True] * 3
        for name in ("x17", "y"):
            await store.decide(Decision(marks=(mark(2.0, by=BOB, name=SessionId(name)),)))
        await kit.tidy(store)
        kept = [(await store.load(SessionId(name), principal=BOB, key=None)).marks for name in ("x17", "x18", "x19")]
        assert [bool(marks) for marks in kept] == [True, False, True]

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


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

    play(kit, main)


# Lists of all sessions


def test_sessions_are_listed_the_latest_first(kit: Any) -> None:
    """A list of sessions says whose they are, how many runs they have and how many of those have not ended."""
    talk, idle, own = SessionId("talk"), SessionId("idle"), SessionId("run:a")

    async def main() -> None:
        store = kit.make()
        await store.open()
        known = (session(2), session(1, owner=BOB, name=talk), session(0, name=idle), session(1, name=own))
        newer = msgspec.structs.replace(row("t", name=talk), admitted_at=7.5)
        taken_in = msgspec.structs.replace(row("r2"), alias=RunId("r"))
        agents = row("a", name=own)  # a run that was sent to no session has one of its own, which is not listed
        await store.decide(Decision(sessions=known, admissions=(row("r"), taken_in, newer, agents)))
        await store.decide(Decision(endings=(ended("r3", Ending.STOPPED),)))
        for later in (False, True):
            store = await kit.reopened(store) if later else store
            assert await store.sessions(limit=5) == (
                SessionInfo(session=known[0], runs=3, open=1, latest_at=1.0),
                SessionInfo(session=known[1], runs=1, open=1, latest_at=7.5),
                SessionInfo(session=known[2], runs=0, open=0, latest_at=None),
            )
            assert [info.session.id for info in await store.sessions(limit=2)] == [S, talk]
            assert [info.session.id for info in await store.sessions(limit=2, of=ALICE)] == [S, idle]
            assert [info.session.id for info in await store.sessions(limit=2, of=BOB)] == [talk]

    play(kit, main)


def test_the_latest_runs_of_all_sessions(kit: Any) -> None:
    """Without a session the latest runs of all are listed, oldest first; for one principal, those it may see."""
    talk = SessionId("talk")

    async def main() -> None:
        store = kit.make()
        await store.open()
        bobs = msgspec.structs.replace(row("b"), principal=BOB)
        known = (session(1), session(1, owner=BOB, name=talk))
        rows = (row("a"), bobs, row("c", name=talk), row("d", name=SessionId("nobody's")))
        await store.decide(Decision(sessions=known, admissions=rows))
        for later in (False, True):
            store = await kit.reopened(store) if later else store
            assert await store.runs(None) == rows
            assert await store.runs(None, limit=2) == rows[2:]
            assert [each.id for each in await store.runs(None, of=BOB)] == ["c"]  # owned
            assert [each.id for each in await store.runs(None, limit=3, of=ALICE)] == ["a", "b"]
            shared = [
                ShareRow(session=talk, principal=ALICE, may=may, at=at)
                for may, at in ((None, 1 + 9 * later), (May.READ, 2 + 9 * later))
            ]
            await store.decide(Decision(shares=tuple(shared)))
            assert [each.id for each in await store.runs(None, limit=2, of=ALICE)] == ["b", "c"]
            assert [each.session.id for each in await store.sessions(limit=9, of=ALICE)] == [talk, S]
            await store.decide(Decision(shares=(msgspec.structs.replace(shared[0], at=3 + 9 * later), shared[1])))
            assert [each.id for each in await store.runs(None, of=ALICE)] == ["a", "b"], "the later word stands"

    play(kit, main)


# Children, again


def test_children_are_forgotten_by_count(kit: Any) -> None:
    """The oldest ended children of a tree are forgotten, with the session that was theirs; one that lives stays."""

    async def main() -> None:
        store = kit.small(RUNS_KEPT=2)
        await store.open()
        for name in "abc":
            done = child(name, ended=outcome(name, Ending.COMPLETED))
            await store.decide(Decision(sessions=(session(1, name=SessionId(f"run:{name}")),), endings=(done,)))
        await kit.tidy(store)
        assert [each.id for each in await store.runs(S, tree=True)] == ["b", "c"]
        assert await store.run(RunId("a")) is None
        assert await store.session(SessionId("run:a")) is None
        assert await store.session(SessionId("run:b")) is not None
        await store.decide(Decision(admissions=(child("lives"),)))
        for name in "defg":
            done = child(name, ended=outcome(name, Ending.COMPLETED))
            await store.decide(Decision(endings=(done,)))
        await kit.tidy(store)
        assert await store.run(RunId("lives")) == child("lives")

    play(kit, main)


# What recovery asks


async def told(store: Store, run: str) -> None:
    """Wait until a store has it on record that a run's end was told."""
    while True:
        kept = await store.run(RunId(run))
        if kept is not None and kept.told:
            return
        await asyncio.sleep(0.005)


def end_of(run: str, position: int = 1, name: SessionId = S) -> Event:
    return event(position, Ended(outcome=outcome(run, Ending.STOPPED)), run, name)


def test_what_is_unsettled(kit: Any) -> None:
    """A run is unsettled until it has an ending and the log tells it; one that another run took in is not its own."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        other = SessionId("other")
        await store.decide(Decision(admissions=(row("x", name=other), row("a"), row("b"), row("c"), row("d"))))
        await store.decide(Decision(aliases=((RunId("d"), RunId("a")),), admissions=(row("e"),)))
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED), ended("c", Ending.STOPPED))))
        store.append(end_of("c"))
        store.append(end_of("e", 2))  # told, but its ending never came
        await told(store, "c")
        await told(store, "e")
        assert await store.unsettled() == (other, S)
        assert [each.id for each in await store.unsettled_runs(S)] == ["a", "b", "e"]
        assert await store.unsettled_runs(other) == (row("x", name=other),)
        await store.decide(Decision(endings=(row("x", outcome("x", Ending.LOST), name=other),)))
        store.append(end_of("x", 3, other))
        await told(store, "x")
        assert await store.unsettled() == (S,)
        assert await store.unsettled_runs(other) == ()
        await store.decide(Decision(endings=(ended("d", Ending.STOPPED),)))  # a message that ended by itself after all
        assert [each.id for each in await store.unsettled_runs(S)] == ["a", "b", "d", "e"]

    play(kit, main)


def test_sessions_are_unsettled_in_the_order_they_came(kit: Any) -> None:
    """Recovery begins with whoever waits longest, also after a restart."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        names = [SessionId(name) for name in "zaym"]
        for n, name in enumerate(names):
            await store.decide(Decision(admissions=(row(f"r{n}", name=name),)))
        await store.decide(Decision(admissions=(row("again", name=names[0]),)))
        assert await store.unsettled() == tuple(names)
        store = await kit.reopened(store)
        assert await store.unsettled() == tuple(names)

    play(kit, main)


def test_a_run_s_end_that_was_told_is_on_record(kit: Any) -> None:
    """The `ended` event marks its run, before its ending row or after it, and over a restart."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("a"), row("b")), endings=(ended("c", Ending.STOPPED),)))
        store.append(end_of("a"))
        store.append(end_of("c", 2))
        await told(store, "a")
        await told(store, "c")
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),)))
        for _ in range(2):
            kept = {each.id: (each.told, each.outcome is not None) for each in await store.runs(S)}
            assert kept == {"a": (True, True), "b": (False, False), "c": (True, True)}
            store = await kit.reopened(store)

    play(kit, main)


def test_an_end_told_just_before_the_close_is_on_record(kit: Any) -> None:
    """Closing writes what was appended: the next start finds nothing to tell again."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),)))
        store.append(end_of("a"))
        store = await kit.reopened(store)
        assert await store.unsettled() == ()
        assert (await store.events(S, after=0, limit=9)).events == (end_of("a"),)

    play(kit, main)


def test_a_decision_may_say_that_an_end_was_told(kit: Any) -> None:
    """Recovery puts the mark where the log tells an ending and the run does not know; of no run it says nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))))
        await store.decide(Decision(told=(RunId("a"), RunId("nobody"))))
        assert [each.told for each in await store.runs(S)] == [True, False]
        assert await store.run(RunId("nobody")) is None

    play(kit, main)


def test_the_parts_of_a_run(kit: Any) -> None:
    """The messages that a run took in are listed in order, without those that ended by themselves."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=tuple(row(name) for name in "rcabd")))
        await store.decide(Decision(aliases=tuple((RunId(name), RunId("r")) for name in "bac")))
        await store.decide(Decision(aliases=((RunId("d"), RunId("a")),), endings=(ended("a", Ending.STOPPED),)))
        assert [each.id for each in await store.parts(RunId("r"))] == ["c", "b"]
        assert [each.id for each in await store.parts(RunId("a"))] == ["d"]
        assert await store.parts(RunId("b")) == ()

    play(kit, main)


def test_the_questions_of_a_run(kit: Any) -> None:
    """What a run has asked is listed in order, whatever became of it, and no other run's."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        asked = (question(name="z"), question(S_.ANSWERED, name="a", answer=True, by=BOB), question(name="m"))
        await store.decide(Decision(questions=(*asked, question(name="x", run="other"))))
        await store.decide(Decision(questions=(question(S_.VOID, name="z"),)))
        assert await store.questions(RunId("r")) == (question(S_.VOID, name="z"), *asked[1:])
        assert await store.questions(RunId("nobody")) == ()

    play(kit, main)


def test_receipts_are_pending_until_drained(kit: Any) -> None:
    """Those that do not say drained are listed, oldest first; an unconfirmed one is as good as it gets."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=tuple(ended(run, Ending.STOPPED) for run in "abc")))
        waiting = [receipt(f"f{run}", run) for run in "cab"]
        await store.decide(Decision(receipts=(*waiting, receipt("f0"))))
        assert await store.pending_receipts() == (*waiting, receipt("f0"))
        for each, drain in ((waiting[1], Drain.OBSERVED), (waiting[2], Drain.UNCONFIRMED)):
            await store.decide(Decision(receipts=(msgspec.structs.replace(each, drain=drain),)))
        assert await store.pending_receipts() == (waiting[0], receipt("f0"))

    play(kit, main)


def test_a_receipt_says_that_its_runs_are_drained(kit: Any) -> None:
    """The outcome in a run's row says drained once its receipt does, and is durable: it is in the store."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))))
        fallen = tuple(
            FallenRun(id=RunId(run), outcome=outcome(run, Ending.STOPPED, drained=run == "a", durable=False))
            for run in "ab"
        )
        await store.decide(Decision(receipts=(msgspec.structs.replace(receipt("f"), runs=fallen),)))
        kept = {each.id: each.outcome for each in await store.runs(S)}
        assert kept == {"a": outcome("a", Ending.STOPPED, drained=True), "b": outcome("b", Ending.STOPPED)}

    play(kit, main)


def test_a_store_knows_whether_it_was_closed(kit: Any) -> None:
    """`clean` is true of a new store and after a close, and false after a start that was killed."""

    async def main() -> None:
        store = kit.make()
        boots = [await store.open()]
        assert store.clean
        await store.decide(Decision(admissions=(row("r"),)))
        store = await kit.reopened(store)
        assert store.clean
        store = await kit.killed(store)
        assert not store.clean
        assert await store.run(RunId("r")) == row("r")
        store = await kit.killed(store)
        assert not store.clean
        store = await kit.reopened(store)
        assert store.clean
        await store.close()
        boots.append(await store.open())
        assert boots == [1, 6] and store.clean

    play(kit, main)


def test_a_store_may_be_closed_as_not_clean(kit: Any) -> None:
    """Whoever could not settle what was left says so at the close; what was decided is kept all the same."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(admissions=(row("r"),)))
        for clean in (False, True):
            await store.close(clean=clean)
            await store.open()
            assert store.clean is clean
            assert await store.run(RunId("r")) == row("r")

    play(kit, main)


def test_what_was_answered_outlives_a_kill(kit: Any) -> None:
    """A decision that was answered, and the lasting events appended before it, are there after a kill (P5)."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.append(event(1, Said(text="hi", by=ALICE)))
        await store.decide(Decision(sessions=(session(1),), admissions=(row("r"),), keys=(key("k", "r"),)))
        store = await kit.killed(store)
        assert await store.runs(S) == (row("r"),)
        assert (await loaded(store, "k")).key == key("k", "r")
        assert (await store.events(S, after=0, limit=9)).events == (event(1, Said(text="hi", by=ALICE)),)

    play(kit, main)


@pytest.mark.parametrize(
    ("later", "kept"),
    [
        (SessionRow(id=S, owner=BOB, generation=4, since=9, renewed=3, crashes=1), {"since": 9, "renewed": 3}),
        (SessionRow(id=S, owner=BOB, generation=5), {"strategy": None, "crashes": 0}),
        (
            SessionRow(id=S, owner=BOB, generation=6, strategy=Strategy.STEER, since=1, renewed=1, crashes=3),
            {"generation": 6, "strategy": Strategy.STEER, "crashes": 3},
        ),
    ],
    ids=["older", "same", "newer"],
)
def test_a_session_row_is_merged(kit: Any, later: SessionRow, kept: dict[str, Any]) -> None:
    """Owner and numbers that only rise stay; strategy and crashes are those of the latest generation."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        first = SessionRow(id=S, owner=ALICE, generation=5, strategy=Strategy.QUEUE, since=7, renewed=2, crashes=2)
        await store.decide(Decision(sessions=(first,)))
        assert await store.session(S) == first
        await store.decide(Decision(sessions=(later,)))
        assert await store.session(S) == msgspec.structs.replace(first, **kept)
        store = await kit.reopened(store)
        assert await store.session(S) == msgspec.structs.replace(first, **kept)

    play(kit, main)


def test_pruning_spares_what_is_within_the_bounds(kit: Any) -> None:
    """Where nothing is too much or too old, nothing is forgotten, and that is what is said."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.append(event(1, Said(text="hi", by=ALICE)))
        decision = Decision(
            sessions=(session(1),),
            admissions=(row("r"), child("c")),
            endings=(ended("old", Ending.STOPPED),),
            keys=(key("k", "r"),),
            tombstones=(Tombstone(principal=ALICE, key="t"),),
            receipts=(receipt("f", "old"), receipt("g")),
            tools=(tool_row(),),
            questions=(question(),),
            wakes=(wake("w"),),
            marks=(mark(1.0),),
        )
        await store.decide(decision)
        before = await everything(store)
        assert await store.prune() == Pruned()
        assert await everything(store) == before

    play(kit, main)


def test_runless_receipts_are_bounded(kit: Any) -> None:
    """Receipts of stops that took detached processes only are forgotten by count, and no others."""

    async def main() -> None:
        store = kit.small(RUNLESS_KEPT=2)
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),), receipts=(receipt("f", "a"),)))
        for n in range(4):
            await store.decide(Decision(receipts=(receipt(f"g{n}"),)))
        await kit.tidy(store)
        found = [await store.receipt(ReceiptId(name)) is not None for name in ("f", "g0", "g1", "g2", "g3")]
        assert found == [True, False, False, True, True]

    play(kit, main)


# Every field


async def everything(store: Store, *, live: bool = False) -> dict[str, Any]:
    """All that the port tells of the names used here; `live`: without the told marks, which may come a little later."""
    asked: dict[Any, Awaitable[Any]] = {
        "wakes": store.wakes(),
        "stops": store.stops(),
        "unsettled": store.unsettled(),
        "pending": store.pending_receipts(),
        "sessions": store.sessions(limit=9),
        "two sessions": store.sessions(limit=2),
        "no sessions": store.sessions(limit=0),
        "latest": store.runs(None),
        "latest two": store.runs(None, limit=2),
        "none of the latest": store.runs(None, limit=0),
    }
    for who in (ALICE, BOB):
        asked["sessions of", who] = store.sessions(limit=9, of=who)
        asked["latest of", who] = store.runs(None, limit=3, of=who)
    for name in SESSIONS:
        asked["load", name] = store.load(name, principal=ALICE, key=None)
        asked["session", name] = store.session(name)
        asked["runs", name] = store.runs(name)
        asked["tree", name] = store.runs(name, tree=True)
        asked["events", name] = store.events(name, after=0, limit=1_000)
        asked["later events", name] = store.events(name, after=3, limit=2)
        asked["unsettled", name] = store.unsettled_runs(name)
    for by in (ALICE, BOB):
        asked |= {("key", by, wanted): store.load(S, principal=by, key=wanted) for wanted in "klt"}
    for run_id in map(RunId, "abcder"):
        asked["run", run_id] = store.run(run_id)
        asked["tools", run_id] = store.tools(run_id)
        asked["questions", run_id] = store.questions(run_id)
        asked["parts", run_id] = store.parts(run_id)
    asked |= {("receipt", wanted): store.receipt(ReceiptId(wanted)) for wanted in "fghabcde"}
    asked |= {("question", wanted): store.question(QuestionId(wanted)) for wanted in "qpo"}
    found = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
    found["wakes"] = sorted(found["wakes"], key=lambda each: each.id)  # they are in no order
    found["stops"] = sorted(found["stops"], key=repr)  # of several principals neither
    for what, value in found.items():
        if isinstance(value, Loaded):
            found[what] = msgspec.structs.replace(value, marks=tuple(sorted(value.marks, key=repr)))  # nor are these
    if live:
        return {what: _untold(value) for what, value in found.items() if "unsettled" not in what}
    return found


def _untold(value: Any) -> Any:
    if isinstance(value, RunRow):
        return msgspec.structs.replace(value, told=False)
    return tuple(map(_untold, value)) if isinstance(value, tuple) else value


SESSIONS = (S, SessionId("other"), SessionId("run:d"))
TEXTS = {
    "plain": "hello",
    "empty": "",
    "many scripts": "halt \u505c \u0633\u062a\u0648\u067e \U0001f6d1 e\u0301 \u202e",
    "nul and controls": "a\x00b\x01\x1f\x7f\r\n\t\u2028\ufeff\ufffe",
    "quotes": """'; DROP TABLE runs; -- " \\ %s ? {}""",
    "a megabyte": "\u00df" * 500_000,
}


def full(text: str) -> Decision:
    """A decision in which every field of every row is set, with the text in all that may hold any."""
    whole = Outcome(
        run_id=RunId("a"), ending=Ending.TIMED_OUT, text=text, by=BOB, superseded_by=RunId("z"), phase=text,
        limit_ms=2**40, error=text, error_kind=ErrorKind.PROVIDER, hidden=True, typed=True, tools=("t", text),
        started_at=1e9 + 0.1, ended_at=1e9 + 0.2, drained=True,
    )  # fmt: skip
    fallen = FallenRun(id=RunId("a"), outcome=whole, body=BodyState.KILLED, refused={Effect.DELTA: 3, Effect.TOOL: 1})
    proof = Receipt(
        id=ReceiptId("f"), session=S, cause=Ending.TIMED_OUT, by=BOB, runs=(fallen,), fenced_at=1.1, ended_at=1.2,
        drained_at=1.3, drain=Drain.UNCONFIRMED, durable=False, grade="process", unseen=(text,),
        refused={Effect.SPAWN: 2}, tools=(FallenTool(name=text, state=ToolState.INTERRUPTED, run_id=RunId("a")),),
        processes=Processes(ended=1, stuck=2, detached=3), host="killed", questions=1, queued=2, in_flight=3, holds=4,
        unconfirmed=(text,), aborted=True, already=Ending.STOPPED,
    )  # fmt: skip
    run = RunRow(
        id=RunId("a"), session=S, principal=BOB, kind=RunKind.CHILD, text=text, admitted_at=1e9 + 1e-6, key="k",
        deadline=1e9 + 7.25, parent=RunId("p"), home=SessionId("other"), agent=text, detached=True, alias=RunId("z"),
        generation=2**53 + 1, started=True, outcome=whole, cut=text, told=True,
    )  # fmt: skip
    asked = QuestionRow(
        id=QuestionId("q"), run_id=RunId("a"), session=S, principal=BOB, text=text, choices=(text, "no"),
        state=QuestionState.ANSWERED, answer=text, by=ALICE,
    )  # fmt: skip
    return Decision(
        sessions=(
            SessionRow(
                id=S, owner=BOB, generation=2**53 + 2, strategy=Strategy.COLLECT, since=2**62, renewed=3, crashes=2
            ),
        ),
        admissions=(run,),
        keys=(
            KeyRow(
                principal=BOB, key="k", method="send", digest="d" * 64, run_id=RunId("a"), generation=2**53,
                superseded=RunId("z"),
            ),
        ),
        tombstones=(Tombstone(principal=BOB, key="t"),),
        tools=(
            ToolRow(
                call_id=CallId("a.1"), run_id=RunId("a"), name=text, arguments=Json(text), state=ToolState.ABANDONED
            ),
        ),
        receipts=(proof,),
        questions=(asked,),
        wakes=(
            WakeRow(
                id=WakeId("w"), session=S, principal=BOB, text=text, since=1.1, at=2.2, every=3.3, cron="* * * * *"
            ),
        ),
        marks=(StopMark(session=S, channel=text, by=BOB, at=123_456_789_012_345_678_901_234_567_890, stopped_at=1.5),),
    )  # fmt: skip


def bare() -> Decision:
    """A decision in which no field is set that need not be."""
    run = RunRow(id=RunId("b"), session=S, principal=ALICE, kind=RunKind.CHAT, text="", admitted_at=0.0)
    over = RunRow(
        id=RunId("c"), session=S, principal=ALICE, kind=RunKind.WAKE, text="", admitted_at=0.0,
        outcome=Outcome(run_id=RunId("c"), ending=Ending.COMPLETED),
    )  # fmt: skip
    other = SessionId("other")
    fallen = FallenRun(id=RunId("c"), outcome=Outcome(run_id=RunId("c"), ending=Ending.COMPLETED))
    return Decision(
        sessions=(SessionRow(id=other, owner=ALICE, generation=0),),
        admissions=(run,),
        endings=(over,),
        keys=(KeyRow(principal=ALICE, key="l", method="", digest="", run_id=RunId("b")),),
        tools=(
            ToolRow(call_id=CallId("b.1"), run_id=RunId("b"), name="", arguments=Json(""), state=ToolState.PENDING),
        ),
        receipts=(
            Receipt(id=ReceiptId("g"), session=other, cause=Ending.COMPLETED, runs=(fallen,), fenced_at=0.0),
            Receipt(id=ReceiptId("h"), session=None, cause=None, fenced_at=0.0),
        ),
        questions=(
            QuestionRow(id=QuestionId("p"), run_id=RunId("b"), session=S, principal=ALICE, text=""),
            QuestionRow(
                id=QuestionId("o"), run_id=RunId("b"), session=S, principal=ALICE, text="",
                state=QuestionState.ANSWERED, answer=False,
            ),
        ),
        wakes=(WakeRow(id=WakeId("v"), session=S, principal=ALICE, text="", since=0.0),),
        marks=(StopMark(session=other, channel="c", by=ALICE, at=-0.5, stopped_at=0.0),),
    )  # fmt: skip


def all_data(text: str) -> list[Data]:
    """Every sort of event, with all it can hold."""
    decision = full(text)
    over, proof = decision.admissions[0].outcome, decision.receipts[0]
    assert over is not None
    tool = Tool(
        call_id=CallId("a.1"), name=text, state=ToolState.FAILED, arguments=Json(text), result=Json(text), error=text
    )
    return [
        Said(text=text, by=ALICE, of=RunId("z")), Said(text=text, by=ALICE), Started(), Delta(text=text),
        Block(text=text), Typing(on=True), Typing(on=False), Progress(text=text, done=0.5, total=2.0),
        Progress(text=text), Phase(name=text), Phase(name=None), tool,
        Tool(call_id=CallId("a.2"), name="", state=ToolState.PENDING),
        Spawned(
            command=text, state=ProcessState.EXITED, name=text, pid=2**31, status=-9, background=True, detached=True,
            beside=(text,),
        ),
        Spawned(command="", state=ProcessState.FAILED),
        Asked(
            question_id=QuestionId("q"), text=text, state=QuestionState.ANSWERED, choices=(text,), tool=text,
            arguments=Json(text), answer=text, by=BOB,
        ),
        Asked(question_id=QuestionId("q"), text="", state=QuestionState.ANSWERED, answer=True),
        Asked(question_id=QuestionId("q"), text="", state=QuestionState.OPEN),
        Delegated(child=RunId("d"), session=S, agent=text, detached=True, outcome=over),
        Delegated(child=RunId("d"), session=S, agent=""), Proof(receipt=proof), Gap(after=2**62),
        Correction(outcome=over),
        Ended(
            outcome=over, cut=text, tools=(tool,), void=(QuestionId("q"),),
            children=(ChildEnd(child=RunId("d"), agent=text, ending=Ending.PARENT_ENDED),),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_every_row_is_kept_field_by_field(kit: Any, text: str) -> None:
    """What was written is what is read, of every sort of row, over a close and an opening, whatever the text holds."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        most, least = full(TEXTS[text]), bare()
        await store.decide(most)
        await store.decide(least)
        for _ in range(2):
            assert await store.session(S) == most.sessions[0]
            assert await store.session(SessionId("other")) == least.sessions[0]
            assert await store.runs(S) == (*most.admissions, *least.admissions, *least.endings)
            assert await store.runs(SessionId("other"), tree=True) == most.admissions
            assert (await loaded(store, "k", by=BOB)).key == most.keys[0]
            assert (await loaded(store, "l")).key == least.keys[0]
            assert (await loaded(store, "t", by=BOB)).buried
            assert await store.tools(RunId("a")) == most.tools
            assert await store.tools(RunId("b")) == least.tools
            assert [await store.receipt(ReceiptId(name)) for name in "fgh"] == [*most.receipts, *least.receipts]
            assert [await store.question(QuestionId(name)) for name in "qpo"] == [*most.questions, *least.questions]
            assert sorted(await store.wakes(), key=lambda each: each.id) == [*least.wakes, *most.wakes]
            assert (await loaded(store)).marks == most.marks
            found = (await store.load(SessionId("other"), principal=ALICE, key=None)).marks
            assert found == least.marks and type(found[0].at) is float
            store = await kit.reopened(store)

    play(kit, main)


@pytest.mark.parametrize("text", TEXTS)
def test_every_event_is_kept_field_by_field(kit: Any, text: str) -> None:
    """What was appended is what is read, of every sort of event, over a close and an opening."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        events = [
            Event(position=(7 << 32) + n, at=1e9 + 0.1, session=S, run_id=RunId("a"), generation=2**53 + 1, data=data)
            for n, data in enumerate(all_data(TEXTS[text])[:-1], 1)
        ]
        events.append(Event(position=8 << 32, session=S, run_id=None, generation=None, data=Gap(after=0)))
        for each in events:
            store.append(each)
        for _ in range(2):
            assert (await store.events(S, after=0, limit=99)).events == tuple(events)
            store = await kit.reopened(store)
        end = Event(position=9 << 32, session=S, run_id=RunId("a"), generation=1, data=all_data(TEXTS[text])[-1])
        store.append(end)
        store = await kit.reopened(store)
        lasting = tuple(each for each in events if each.kind not in PASSING)
        assert (await store.events(S, after=0, limit=99)).events == (*lasting, end)

    play(kit, main)


LONG = {"0": 0, "-1": -1, "2^53+1": 2**53 + 1, "-2^53-1": -(2**53) - 1, "10^300+1": 10**300 + 1, "-10^300": -(10**300)}
FINE = {"0.1": 0.1, "-0.1": -0.1, "1e300": 1e300, "-1e300": -1e300, "5e-300": 5e-300}


@pytest.mark.parametrize("at", [*LONG.values(), *FINE.values()], ids=[*LONG, *FINE])
def test_a_mark_of_any_length_is_exact(kit: Any, at: float) -> None:
    """A channel's number is kept to the last digit and compared as a number, one more and one less of it too."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        step = 1 if isinstance(at, int) else abs(at) / 2
        for value, kept in ((at, at), (at - step, at), (at + step, at + step), (at, at + step)):
            await store.decide(Decision(marks=(mark(value),)))
            found = (await loaded(store)).marks
            assert found == (mark(kept),), (value, kept)
        store = await kit.reopened(store)
        assert (await loaded(store)).marks == (mark(at + step),)

    play(kit, main)


# The twins

HOMES = {"a": S, "b": S, "e": S, "c": SessionId("other"), "d": SessionId("run:d")}  # the session of each run
SEATS = {"a": 1, "b": 2, "e": 4, "c": 2, "d": 1}  # a seat is had once: no two runs of a session have the same
Drawn = st.DrawFn


def some(what: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.one_of(st.just(()), st.lists(what, max_size=most).map(tuple))


names = st.sampled_from("abcde")
people = st.sampled_from([ALICE, BOB])
keys_ = st.sampled_from("klt")
whatever = st.text(alphabet="x\x00\u00df\U0001f6d1'", max_size=3)
outcomes = st.builds(
    outcome,
    names,
    st.sampled_from(ENDINGS),
    text=whatever,
    error=st.none() | whatever,
    drained=st.booleans(),
    typed=st.booleans(),
)


@st.composite
def run_rows(draw: Drawn, *, over: bool) -> RunRow:
    name = draw(names)
    told = draw(outcomes)
    return RunRow(
        id=RunId(name),
        session=HOMES[name],
        principal=draw(people),
        kind=RunKind.CHILD if name == "d" else RunKind.CHAT,
        text=draw(whatever),
        admitted_at=draw(st.floats(0, 1e10)),
        key=draw(st.none() | keys_),
        deadline=draw(st.none() | st.floats(0, 1e10)),
        parent=RunId("a") if name == "d" else None,
        home=S if name == "d" else None,
        alias=draw(st.sampled_from([None, None, RunId("a")])) if name in "be" else None,
        generation=draw(st.sampled_from([None, SEATS[name]])),
        started=draw(st.booleans()),
        outcome=msgspec.structs.replace(told, run_id=RunId(name)) if over else None,
        cut=draw(whatever) if over else "",
        instructions=draw(st.none() | whatever),
    )


@st.composite
def session_rows(draw: Drawn) -> SessionRow:
    generation = draw(st.integers(0, 5))
    return SessionRow(
        id=draw(st.sampled_from(SESSIONS)),
        owner=draw(people),
        generation=generation,
        strategy=draw(st.none() | st.sampled_from(Strategy)),
        since=draw(st.integers(0, 9)),
        renewed=draw(st.integers(0, generation)),
        crashes=draw(st.integers(0, 3)),
    )


@st.composite
def receipts_(draw: Drawn) -> Receipt:
    name = draw(st.sampled_from("fgh"))
    fallen = tuple(
        FallenRun(id=RunId(run), outcome=outcome(run, Ending.STOPPED, drained=draw(st.booleans())))
        for run in {"f": "ab", "g": "c", "h": ""}[name]
    )
    drain = draw(st.sampled_from(Drain))
    return Receipt(id=ReceiptId(name), session=S, cause=Ending.STOPPED, runs=fallen, fenced_at=1.0, drain=drain)


@st.composite
def questions_(draw: Drawn) -> QuestionRow:
    name, state = draw(st.sampled_from("qpo")), draw(st.sampled_from(QuestionState))
    answer = draw(st.booleans() | whatever) if state is QuestionState.ANSWERED else None
    by = draw(people) if state is QuestionState.ANSWERED else None
    return question(state, name=name, run={"q": "a", "p": "a", "o": "c"}[name], answer=answer, by=by)


@st.composite
def tools_(draw: Drawn) -> ToolRow:
    run = draw(names)
    call = CallId(f"{run}.{draw(st.integers(1, 2))}")
    state = draw(st.sampled_from(ToolState))
    return ToolRow(call_id=call, run_id=RunId(run), name="t", arguments=Json("{}"), state=state)


places = st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
marks_ = st.builds(
    StopMark, session=st.sampled_from(SESSIONS), channel=st.sampled_from(["chat", "mail"]), by=people, at=places,
    stopped_at=st.sampled_from([0.0, 100.0, 3_600.0, 5_000.0]),
)  # fmt: skip
stops_ = st.builds(
    StopKey, principal=people, key=keys_, method=st.sampled_from(["stop", "reset"]), digest=whatever,
    at=st.floats(0, 9),
    receipt=st.none() | st.sampled_from("fg").map(ReceiptId), aborted=st.booleans(),
    already=st.none() | st.sampled_from(Ending),
)  # fmt: skip
decisions = st.builds(
    Decision,
    writer=st.none() | st.builds(Writer, st.sampled_from(SESSIONS), st.integers(0, 6)),
    sessions=some(session_rows()),
    admissions=some(run_rows(over=False)),
    endings=some(run_rows(over=True)),
    keys=some(
        st.builds(
            KeyRow,
            principal=people,
            key=keys_,
            method=st.just("send"),
            digest=whatever,
            run_id=names.map(RunId),
            generation=st.none() | st.integers(0, 9),
            superseded=st.none() | names.map(RunId),
        )
    ),
    tombstones=some(st.builds(Tombstone, principal=people, key=keys_)),
    starts=some(names.map(RunId)),
    tools=some(tools_()),
    receipts=some(receipts_()),
    aliases=some(st.tuples(st.sampled_from("be").map(RunId), st.sampled_from("ac").map(RunId))),
    questions=some(questions_()),
    wakes=some(st.builds(wake, st.sampled_from("vw"), every=st.floats(1, 9))),
    unwakes=some(st.sampled_from("vw").map(WakeId)),
    marks=some(marks_),
    stops=some(stops_),
    rises=some(st.sampled_from(SESSIONS)),
    told=some(names.map(RunId), 1),
)
tellings = st.tuples(
    names,
    st.one_of(
        st.builds(Delta, text=whatever),
        st.builds(Typing, on=st.booleans()),
        st.builds(Block, text=whatever),
        st.just(Started()),
        st.builds(Ended, outcome=outcomes, cut=whatever),
    ),
)
steps = st.lists(st.one_of(decisions, decisions, tellings, st.just("reopen")), max_size=12)


class Twins:
    """Two stores that are told the same."""

    def __init__(self, kits: tuple[Any, ...]) -> None:
        self.kits = kits
        self.stores = [each.make() for each in kits]
        self.tickets: list[list[Ticket]] = []
        self.position = 0
        self.over: set[str] = set()
        self.spoken: set[str] = (
            set()
        )  # since the last start: only recovery says that an end was told, of runs before it

    async def do(self, step: Any) -> None:
        """Do the same with both."""
        if step == "reopen":
            await self.compare(live=True)
            self.stores = [await kit.reopened(store) for kit, store in zip(self.kits, self.stores, strict=True)]
            await self.compare(live=False)
            self.spoken.clear()
        elif isinstance(step, Decision):
            told = tuple(run for run in step.told if run not in self.spoken)
            step = msgspec.structs.replace(step, told=told)
            self.tickets.append([store.decide(step) for store in self.stores])
        else:
            await self.tell(*step)

    async def tell(self, run: str, data: Data) -> None:
        """An outlet tells of a run only what comes before its end, and its end once, when the run is on record."""
        if self.tickets:
            await asyncio.gather(self.tickets[-1][0], return_exceptions=True)  # the other may be behind
        if run in self.over or await self.stores[0].run(RunId(run)) is None:
            return
        if isinstance(data, Ended):
            self.over.add(run)
        self.position += 1
        self.spoken.add(run)
        for store in self.stores:
            store.append(event(self.position, data, run, HOMES[run]))

    async def compare(self, *, live: bool) -> None:
        """See that both have answered the same, and that every read is the same."""
        for each in self.tickets:
            answers = await asyncio.gather(*each, return_exceptions=True)
            assert repr(answers[0]) == repr(answers[1])
        self.tickets.clear()
        one, other = [await everything(store, live=live) for store in self.stores]
        differing = {what: (one[what], other[what]) for what in one if one[what] != other[what]}
        assert differing == {} and one.keys() == other.keys()


@given(script=steps)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_memory_and_sqlite_are_twins(kits: tuple[Any, Any], script: list[Any]) -> None:
    """Whatever is decided and told, in whatever order and over whatever restarts, both stores tell the same."""

    async def main() -> None:
        twins = Twins(kits)
        for store in twins.stores:
            await store.open()
        for step in [*script, "reopen"]:
            await twins.do(step)

    play(kits[1], main)
