"""The contract of a door: every verb, over every way to control, when all is well, refused, cut off or late."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.doors import (
    BOB,
    BOUND_SECONDS,
    CASES,
    NEVER,
    SETTINGS,
    ScriptedDoor,
    cut_off,
    open_house,
    told,
    unnamed,
)

from interlock import Unknown
from interlock.client import Client
from interlock.core.verbs import VERBS, Send, StopAll, Verb

ON_WIRE = [verb for verb in VERBS if verb.method]
CHANGES = {"Send", "Stop", "Reset", "StopAll", "Answer", "SetStrategy", "Share", "Unshare", "Schedule", "Unschedule"}


def play(main: Any) -> None:
    """Run a test in a loop of its own, within a bound."""
    asyncio.run(asyncio.wait_for(main(), 2 * BOUND_SECONDS))


def doors_of(verb: type[Verb[Any]]) -> tuple[str, ...]:
    """Return the doors over which a verb can be asked."""
    return ("inside", "socket") if verb.method else ("inside",)


def each(verbs: Any) -> Any:
    """Walk these verbs."""
    return pytest.mark.parametrize("verb", verbs, ids=lambda verb: verb.__name__)


OVER_DOORS = [pytest.param(verb, kind, id=f"{verb.__name__}-{kind}") for verb in VERBS for kind in doors_of(verb)]


def test_the_table_has_every_verb() -> None:
    """A verb without a row here would be asked by callers and proved by nobody."""
    assert set(CASES) == set(VERBS)


@each(VERBS)
def test_a_client_asks_the_verb_and_passes_on_what_it_is_told(verb: type[Verb[Any]]) -> None:
    """The client's method asks one verb with the right fields, and returns the door's answer or raises its error."""

    async def main() -> None:
        case, has = CASES[verb], NEVER
        answer = object()
        for script in (answer, Unknown("nothing there")):
            door = ScriptedDoor(script)
            client = Client(door)
            asking = client.ask(case.fine(has)) if case.method is None else case.method(client, has)
            try:
                got = await asking
                assert got is (None if verb.answer_type() is type(None) else answer)
            except Unknown as error:
                assert error is script
            assert door.asked == [case.fine(has)]

    play(main)


@each(VERBS)
def test_a_verb_is_answered_alike_over_every_door(verb: type[Verb[Any]], tmp_path: Path) -> None:
    """In houses that are alike, a verb gives the same answer and leaves the same state, whichever door it came by."""
    case = CASES[verb]
    found: list[Any] = []

    async def main(kind: str) -> None:
        async with open_house(tmp_path / kind) as house, house.door(kind, case.by) as door:
            said = await told(door.ask(case.fine(house.alice)))
            assert said[0] == "answer"
            await house.settled()
            found.append((said, await house.state()))

    for kind in doors_of(verb):
        play(lambda kind=kind: main(kind))
    assert found[0] == found[-1]


@each([verb for verb in ON_WIRE if verb.__name__ not in CHANGES])
def test_the_same_state_reads_the_same(verb: type[Verb[Any]], tmp_path: Path) -> None:
    """A verb that changes nothing gives equal values over both doors, times and all."""

    async def main() -> None:
        case = CASES[verb]
        async with open_house(tmp_path) as house, house.door("socket", case.by) as socket:
            asked = case.fine(house.alice)
            assert await socket.ask(asked) == await house.control.door(case.by).ask(asked)

    play(main)


@pytest.mark.parametrize(("verb", "kind"), OVER_DOORS)
def test_wrong_values_are_refused(verb: type[Verb[Any]], kind: str, tmp_path: Path) -> None:
    """A wrong value raises BadInput over every door, and changes nothing."""

    async def main() -> None:
        case = CASES[verb]
        if case.bad is None:
            return
        async with open_house(tmp_path) as house, house.door(kind, case.by) as door:
            before = await house.state()

            async def ask() -> Any:
                return await door.ask(case.bad(house.alice))

            kinds, words = await told(ask())
            assert kinds == "BadInput" and words
            assert await house.state() == before

    play(main)


@pytest.mark.parametrize(("verb", "kind"), OVER_DOORS)
def test_anothers_thing_looks_like_none(verb: type[Verb[Any]], kind: str, tmp_path: Path) -> None:
    """What is bob's is told to alice as what never was: the same error or answer, and nothing of bob's changes."""

    async def main() -> None:
        case = CASES[verb]
        if case.another is None:
            return
        async with open_house(tmp_path) as house, house.door(kind, case.by) as door:
            bobs = await house.state(BOB)
            there = await told(door.ask(case.another(house.bob)))
            never = await told(door.ask(case.another(NEVER)))
            assert unnamed(there, house.bob) == unnamed(never, NEVER)
            assert there[0] in ("answer", "Unknown", "UnknownSession")
            assert await house.state(BOB) == bobs

    play(main)


@each([verb for verb in VERBS if not verb.method])
def test_a_verb_without_a_method_is_refused_over_a_socket(verb: type[Verb[Any]], tmp_path: Path) -> None:
    """A verb that only surfaces ask says so, and asks nothing of the gateway."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door("socket", "alice") as door:
            with pytest.raises(ValueError, match="in the process of control"):
                door.ask(CASES[verb].fine(house.alice))

    play(main)


# A connection that is lost


@each(ON_WIRE)
def test_a_lost_answer(verb: type[Verb[Any]], tmp_path: Path) -> None:
    """A verb whose answer was lost with its connection is asked again if that changes nothing; it has one effect."""
    case = CASES[verb]

    async def main() -> None:
        async with open_house(tmp_path / "twin") as twin, twin.door("socket", case.by) as door:
            once = await told(door.ask(case.fine(twin.alice)))
            await twin.settled()
            after = await twin.state()
        async with open_house(tmp_path / "house") as house, cut_off(house, case.by) as (door, lose):
            said = await lose(door.ask(case.fine(house.alice)))
            await house.settled()
            assert await house.state() == after
            if verb.again:
                assert once_more(said) == once_more(once)
            else:
                assert said[0] == "Unavailable" and "look before you try again" in said[1]

    play(main)


def once_more(said: tuple[str, Any]) -> Any:
    """Return an answer without what tells a second request from the first, and how far a cleanup has come."""
    kind, answer = said
    if isinstance(answer, dict):
        for name in ("again", "state", "drain", "drained_at", "runs"):
            answer.pop(name, None)
    return kind, answer


# A store that stalls


@pytest.mark.parametrize(("verb", "kind"), OVER_DOORS)
def test_a_store_that_stalls(verb: type[Verb[Any]], kind: str, tmp_path: Path) -> None:
    """A stop counts at once and is answered as not durable; any other verb is answered when the store is, or raises."""

    async def main() -> None:
        case = CASES[verb]
        async with open_house(tmp_path) as house, house.door(kind, case.by) as door:
            house.store.faults.stall = True
            asking = asyncio.ensure_future(told(door.ask(case.fine(house.alice))))
            if verb.stops:
                said, answer = await asking
                receipts = answer if verb is StopAll else [answer]
                assert said == "answer" and receipts
                assert {receipt["durable"] for receipt in receipts} == {False}
                assert not house.control.is_current(house.alice.hangs)
                return
            await asyncio.wait([asking], timeout=2 * SETTINGS.commit_seconds)
            house.store.resume()
            said, words = await asking
            assert said in ("answer", "Unavailable"), words

    play(main)


def test_a_stop_holds_in_the_step_that_asks_it(tmp_path: Path) -> None:
    """Every stop over the door in process ends its run before anything is awaited, also while the store stalls."""

    async def main() -> None:
        for verb in [verb for verb in VERBS if verb.stops]:
            async with open_house(tmp_path / verb.__name__) as house:
                house.store.faults.stall = True
                assert house.control.is_current(house.alice.hangs)
                house.control.door(CASES[verb].by).ask(CASES[verb].fine(house.alice))
                assert not house.control.is_current(house.alice.hangs)

    play(main)


@each([verb for verb in ON_WIRE if verb.stops or verb is Send])
def test_what_begins_needs_no_waiter(verb: type[Verb[Any]], tmp_path: Path) -> None:
    """A message or a stop takes effect over a socket although nobody awaits its answer, or waits only for a moment."""

    async def main(leaves: bool) -> None:
        case = CASES[verb]
        async with open_house(tmp_path / str(leaves)) as house, house.door("socket", case.by) as door:
            asked = door.ask(case.fine(house.alice))
            if leaves:
                waiter = asyncio.ensure_future(told(asked))
                await asyncio.sleep(0)
                waiter.cancel()
            if verb is Send:
                while await house.control.find("k", by="alice") is None:
                    await asyncio.sleep(0.001)
            else:
                assert (await house.control.wait(house.alice.hangs)).ending == "stopped"

    for leaves in (False, True):
        play(lambda leaves=leaves: main(leaves))
