"""A store's questions and wakes: a question moves only forward, a wake stays until it is removed."""

from typing import Any

import pytest
from tests.contracts.rows import ALICE, BOB, S_, ended, play, question, wake

from interlock.core.decision import Decision
from interlock.core.names import Ending, QuestionId, QuestionState, WakeId

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
    """Race 56: the first answer stands, void and expired are final, and only a fall undoes an answer."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(questions=(FIRST[first],)))
        assert (await store.decide(Decision(questions=(LATER[later],)))).found == ()
        kept = LATER[later] if (first, later) in MOVES else FIRST[first]
        assert await store.question(QuestionId("q")) == kept

    play(kit, main)


def test_a_question_may_come_closed(kit: Any) -> None:
    """A question that arrives closed is kept although its opening did not arrive; a late opening changes nothing."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        for name, state in (("a", S_.ANSWERED), ("b", S_.VOID), ("c", S_.EXPIRED)):
            await store.decide(Decision(questions=(question(state, name=name),)))
            await store.decide(Decision(questions=(question(name=name),)))
            assert await store.question(QuestionId(name)) == question(state, name=name)

    play(kit, main)


def test_several_questions_are_judged_one_by_one(kit: Any) -> None:
    """Several questions in one decision are each closed or left as their own state allows."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        await store.decide(Decision(questions=(question(name="a"), question(S_.EXPIRED, name="b"))))
        await store.decide(Decision(questions=(question(S_.VOID, name="a"), question(S_.VOID, name="b"))))
        found = [await store.question(QuestionId(name)) for name in "ab"]
        assert [each.state for each in found if each is not None] == [S_.VOID, S_.EXPIRED]

    play(kit, main)


def test_a_question_is_kept_as_it_was_put(kit: Any) -> None:
    """Text, choices, the answer and its giver are read as they were written."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        put = question(S_.ANSWERED, choices=("staging", "the moon"), answer="the moon", by=BOB)
        await store.decide(Decision(questions=(put,)))
        assert await store.question(QuestionId("q")) == put

    play(kit, main)


def test_questions_are_forgotten_with_their_run(kit: Any) -> None:
    """A run that is forgotten takes its own questions along, and no others."""

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


def test_wakes_are_kept_until_they_are_removed(kit: Any) -> None:
    """Every schedule is listed in order; a schedule written again is replaced, and a removed one is gone."""

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
