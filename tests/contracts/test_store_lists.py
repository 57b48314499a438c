"""A store's receipts, trees and lists: found by name, the latest first, and bounded where nothing lives."""

from typing import Any

import msgspec
import pytest
from tests.contracts.rows import ALICE, BOB, S, child, ended, outcome, play, question, receipt, row, session

from interlock.core.answers import SessionInfo
from interlock.core.decision import Decision, RunRow, ShareRow
from interlock.core.names import Ending, May, QuestionState, RunId, SessionId
from interlock.core.outcome import Outcome


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
    """A run without an ending stays, however many runs its session has had (P5: no accepted message is lost)."""

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
    """A live run keeps no other from being forgotten, and is forgotten in its turn when it has ended."""

    def made(name: str, ended: Outcome | None = None) -> RunRow:
        return row(name, ended) if kin == "session" else child(name, ended=ended)

    async def main() -> None:
        store = kit.small(RUNS_KEPT=3)
        await store.open()
        await store.decide(Decision(admissions=(made("lives"),)))
        for n in range(10):
            await store.decide(Decision(endings=(made(f"r{n}", outcome(f"r{n}", Ending.COMPLETED)),)))
            await kit.tidy(store)
            assert len(await store.runs(S, tree=True)) <= 4  # the live run is the fourth
        assert await store.run(RunId("lives")) == made("lives")
        await store.decide(Decision(endings=(made("lives", outcome("lives", Ending.STOPPED)),)))
        for n in range(10, 13):
            await store.decide(Decision(endings=(made(f"r{n}", outcome(f"r{n}", Ending.COMPLETED)),)))
        await kit.tidy(store)
        assert [each.id for each in await store.runs(S, tree=True)] == ["r10", "r11", "r12"]
        assert await store.run(RunId("lives")) is None

    play(kit, main)


def test_runs_that_all_live_are_kept_and_make_room_later(kit: Any) -> None:
    """Live runs are never forgotten, however many; once they have ended, the usual number is kept."""

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


def test_a_tree_holds_the_children(kit: Any) -> None:
    """A child is in a session of its own; `tree` lists the child with its home, and with no other session."""

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


def test_sessions_are_listed_the_latest_first(kit: Any) -> None:
    """A list of sessions says whose they are, how many runs they have and how many of those have not ended."""
    talk, idle, own = SessionId("talk"), SessionId("idle"), SessionId("run:a")

    async def main() -> None:
        store = kit.make()
        await store.open()
        known = (session(2), session(1, owner=BOB, name=talk), session(0, name=idle), session(1, name=own))
        newer = msgspec.structs.replace(row("t", name=talk), admitted_at=7.5)
        taken_in = msgspec.structs.replace(row("r2"), alias=RunId("r"))
        # A run that was sent to no session has one of its own, which is not listed.
        agents = row("a", name=own)
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
    """A list without a session has the latest runs of all, oldest first; for one principal, those they may see."""
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
            assert [each.id for each in await store.runs(None, of=BOB)] == ["c"]  # as owner
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


def test_children_are_forgotten_by_count(kit: Any) -> None:
    """The oldest ended children of a tree are forgotten, with their sessions; a live child stays."""

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


def test_what_is_open_in_all_sessions(kit: Any) -> None:
    """Runs without an ending and open questions are listed over all sessions, oldest first."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        other = SessionId("other")
        rows = (row("x", name=other), row("a"), row("b"), row("c"))
        await store.decide(Decision(sessions=(session(1), session(1, owner=BOB, name=other)), admissions=rows))
        asked = [question(name=name, run=run) for name, run in (("z", "a"), ("y", "x"), ("v", "a"))]
        await store.decide(
            Decision(aliases=((RunId("c"), RunId("a")),), endings=(ended("b", Ending.STOPPED),), questions=tuple(asked))
        )
        await store.decide(Decision(questions=(question(QuestionState.VOID, name="v", run="a"),)))
        assert [each.id for each in await store.open_runs()] == ["x", "a"]
        assert [each.id for each in await store.open_runs(of=BOB)] == ["x"]
        assert [each.id for each in await store.open_runs(of=ALICE)] == ["a"]
        assert await store.open_questions() == tuple(asked[:2])

    play(kit, main)
