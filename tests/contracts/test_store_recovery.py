"""Recovery asks a store what is unsettled, what was published, and whether the last server closed the store."""

from typing import Any

import msgspec
import pytest
from tests.contracts.rows import (
    ALICE,
    BOB,
    S_,
    S,
    end_of,
    ended,
    event,
    key,
    loaded,
    outcome,
    play,
    question,
    receipt,
    row,
    session,
    told,
)

from interlock.core.decision import Decision, SessionRow
from interlock.core.events import MessageData
from interlock.core.names import Drain, Ending, RunId, SessionId, Strategy
from interlock.core.receipt import FallenRun


def test_what_is_unsettled(kit: Any) -> None:
    """A run is unsettled until it has an ending and the log has it too; an absorbed message is not unsettled itself."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        other = SessionId("other")
        await store.decide(Decision(admissions=(row("x", name=other), row("a"), row("b"), row("c"), row("d"))))
        await store.decide(Decision(aliases=((RunId("d"), RunId("a")),), admissions=(row("e"),)))
        await store.decide(Decision(endings=(ended("b", Ending.STOPPED), ended("c", Ending.STOPPED))))
        store.append(end_of("c"))
        store.append(end_of("e", 2))  # published, but the ending never came
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
        await store.decide(Decision(endings=(ended("d", Ending.STOPPED),)))  # an absorbed message that ended by itself
        assert [each.id for each in await store.unsettled_runs(S)] == ["a", "b", "d", "e"]

    play(kit, main)


def test_sessions_are_unsettled_in_the_order_they_came(kit: Any) -> None:
    """Recovery begins with the session that waits longest, also after a restart."""

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
    """A close writes what was appended: the next start finds nothing to publish again."""

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
    """Recovery marks a run whose ending the log has and the row does not; the mark of an unknown run does nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED), ended("b", Ending.STOPPED))))
        await store.decide(Decision(told=(RunId("a"), RunId("nobody"))))
        assert [each.told for each in await store.runs(S)] == [True, False]
        assert await store.run(RunId("nobody")) is None

    play(kit, main)


def test_the_parts_of_a_run(kit: Any) -> None:
    """The messages that a run absorbed are listed in order, without those that ended by themselves."""

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
    """The questions of a run are listed in order, whatever became of them, and no other run's."""

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
    """Receipts that are not drained are listed, oldest first; an unconfirmed one is not, since it stays so."""

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
    """A server that could not settle everything closes the store as not clean; every decision is kept."""

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
    """A decision that was answered, and the lasting events appended before it, outlive a kill (P5)."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.append(event(1, MessageData(text="hi", by=ALICE)))
        await store.decide(Decision(sessions=(session(1),), admissions=(row("r"),), keys=(key("k", "r"),)))
        store = await kit.killed(store)
        assert await store.runs(S) == (row("r"),)
        assert (await loaded(store, "k")).key == key("k", "r")
        assert (await store.events(S, after=0, limit=9)).events == (event(1, MessageData(text="hi", by=ALICE)),)

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
    """A session's rows merge: owner and rising numbers stay, strategy and crashes are the latest generation's."""

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
