"""A store's keys, tombstones and marks of stops: the first use stands, and each principal has bounds of its own."""

from typing import Any

import msgspec
import pytest
from tests.contracts.rows import ALICE, BOB, S, ended, key, loaded, mark, outcome, play, row, session

from interlock.core.decision import Decision, RunRow, StopKey, Tombstone, Verdict
from interlock.core.names import Ending, Principal, ReceiptId, RunId, SessionId
from interlock.stores.base import Buried, Taken


def keyed(run: str, name: str, *, of: SessionId = S) -> RunRow:
    return msgspec.structs.replace(row(run, name=of), key=name)


def stop_key(name: str, *, by: Principal = ALICE, **more: Any) -> StopKey:
    return StopKey(principal=by, key=name, method="stop", digest="d", at=1.5, **more)


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
    """A principal who buries many keys pushes out only their own oldest."""

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
    """A message that was to be part of another run and ended alone is the answer of its key from then on."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        joining = msgspec.structs.replace(row("b", generation=None), alias=RunId("a"))
        await store.decide(Decision(admissions=(row("a"), joining), keys=(key("j", "a"),)))
        alone = msgspec.structs.replace(joining, alias=None, outcome=outcome("b", Ending.STOPPED))
        for _ in range(2):
            await store.decide(Decision(endings=(alone,), keys=(key("j", "b"),)))
            assert (await loaded(store, "j")).key == key("j", "b")
        for other in ("a", "c"):  # no other run may replace the answer
            await store.decide(Decision(keys=(key("j", other),)))
        assert (await loaded(store, "j")).key == key("j", "b")

    play(kit, main)


def test_the_key_of_a_message_that_is_part_of_a_run(kit: Any) -> None:
    """The key of a message that is part of another run answers with that run, whatever a later decision says."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        part = msgspec.structs.replace(row("b", generation=None), alias=RunId("a"))
        await store.decide(Decision(admissions=(row("a"), part), keys=(key("j", "a"),)))
        await store.decide(Decision(keys=(key("j", "b"),)))
        assert (await loaded(store, "j")).key == key("j", "a")

    play(kit, main)


def test_a_mark_only_moves_on(kit: Any) -> None:
    """The last stop of one person in one channel, by that channel's order, counts, however late others come."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for at in (4.0, 2.0, 7.0, 7.0, 6.0):
            await store.decide(Decision(marks=(mark(at),)))
        assert (await loaded(store)).marks == (mark(7.0),)

    play(kit, main)


def test_a_later_stop_at_an_earlier_place_has_a_mark_beside(kit: Any) -> None:
    """A mark far ahead is dropped after an hour; the marks of stops that came meanwhile stay."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for at, since in ((1e18, 10.0), (5.0, 20.0), (4.0, 15.0), (7.0, 3_000.0)):
            await store.decide(Decision(marks=(mark(at, since=since),)))
        assert (await loaded(store)).marks == (mark(1e18, since=10.0), mark(7.0, since=3_000.0))
        await store.decide(Decision(marks=(mark(6.0, since=3_611.0),)))
        assert (await loaded(store)).marks == (mark(7.0, since=3_000.0), mark(6.0, since=3_611.0))

    play(kit, main)


def test_the_first_use_of_a_stops_key_stands(kit: Any) -> None:
    """The first use of a stop's key is kept in every field, over a restart too, and a later use changes nothing."""

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
    """A principal who stops often pushes out only their own oldest keys."""

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
    """Another channel, person or session has a mark of its own; `load` returns all marks of its session."""

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
    """A principal who stops many sessions pushes out only their own oldest marks; a new stop renews a mark."""

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


@pytest.mark.parametrize("alone", [True, False])
def test_a_key_of_another_run_refuses_the_whole_decision(kit: Any, alone: bool) -> None:
    """An admission under a key that another run has is refused with the row of that run, and leaves nothing.

    Decisions that wait with it are carried out.
    """

    async def main() -> None:
        store = kit.make()
        await store.open()
        first = Decision(sessions=(session(1),), admissions=(keyed("a", "k"),), keys=(key("k", "a"),))
        await store.decide(first)
        kit.stall(store)
        others = [] if alone else [store.decide(Decision(admissions=(row(name),))) for name in ("x", "y")]
        refused = store.decide(
            Decision(
                sessions=(session(7),),
                admissions=(row("before"), keyed("b", "k")),
                keys=(key("k", "b"),),
                endings=(ended("old", Ending.SUPERSEDED),),
            )
        )
        again = store.decide(first)
        kit.resume(store)
        with pytest.raises(Taken, match="was used before") as told:
            await refused
        assert told.value.row == key("k", "a")
        assert (await again).found == ()
        assert [await ticket for ticket in others] == [Verdict() for _ in others]
        assert {each.id for each in await store.runs(S)} == ({"a"} if alone else {"a", "x", "y"})
        assert await store.session(S) == session(1)
        assert (await loaded(store, "k")).key == key("k", "a")
        assert await store.withdraw(refused) is False

    play(kit, main)


def test_a_stopped_key_refuses_the_admission_and_no_ending(kit: Any) -> None:
    """An admission under a key with a tombstone is refused, but not a run admitted before it, or one that ended."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        before = Decision(admissions=(keyed("a", "k"),), keys=(key("k", "a"),))
        await store.decide(before)
        stopped = tuple(Tombstone(principal=ALICE, key=name) for name in ("k", "t"))
        await store.decide(Decision(tombstones=stopped))
        ticket = store.decide(Decision(admissions=(keyed("b", "t"),), keys=(key("t", "b"),)))
        with pytest.raises(Buried, match="was stopped before"):
            await ticket
        await store.decide(before)
        born_stopped = msgspec.structs.replace(ended("c", Ending.STOPPED), key="t")
        await store.decide(Decision(endings=(born_stopped,), keys=(key("t", "c"),)))
        assert {each.id for each in await store.runs(S)} == {"a", "c"}
        assert (await loaded(store, "t")).key == key("t", "c")

    play(kit, main)


def test_two_runs_with_one_key_in_one_batch(kit: Any) -> None:
    """Of two admissions under one key that wait together the first is in, also in another session."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        kit.stall(store)
        first, second = (
            store.decide(Decision(admissions=(keyed(run, "k", of=SessionId(run)),), keys=(key("k", run),)))
            for run in ("a", "b")
        )
        kit.resume(store)
        await first
        with pytest.raises(Taken):
            await second
        assert await store.run(RunId("b")) is None

    play(kit, main)
