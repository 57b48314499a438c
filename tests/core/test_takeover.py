"""How a new message enters a busy session, in every combination."""

import itertools
from collections.abc import Iterator

import pytest

from interlock.core.names import RunKind, Strategy
from interlock.core.takeover import Admission, Scene, decide, strategy_of

A = Admission
FLAGS = ("seated", "wake_seated", "may_stop", "overdue", "collecting")
ROOM = ((0, 3), (2, 3), (3, 3), (4, 3), (0, 0))
"""Messages that wait, and how many may: none, some, full, more than full, and a queue without a place."""


def scenes(**fixed: bool) -> Iterator[Scene]:
    """Every scene there can be, with some facts given: a wake in the seat is a run in the seat."""
    for values in itertools.product((False, True), repeat=len(FLAGS)):
        facts = dict(zip(FLAGS, values, strict=True))
        if (facts["wake_seated"] and not facts["seated"]) or not fixed.items() <= facts.items():
            continue
        for waiting, capacity in ROOM:
            yield Scene(**facts, waiting=waiting, capacity=capacity)


# The whole table: a column is the scene, a row what the message wants.
#                            nothing    | a wake      | mine        | another's | only a queue
TABLE: dict[str, tuple[Admission, ...]] = {
    "interrupt": (A.SEAT, A.TAKE_OVER, A.TAKE_OVER, A.QUEUE, A.QUEUE),
    "rollback": (A.SEAT, A.TAKE_OVER, A.TAKE_OVER, A.QUEUE, A.QUEUE),
    "steer": (A.SEAT, A.TAKE_OVER, A.STEER, A.QUEUE, A.QUEUE),
    "collect": (A.COLLECT, A.TAKE_OVER, A.COLLECT, A.COLLECT, A.COLLECT),
    "queue": (A.SEAT, A.TAKE_OVER, A.QUEUE, A.QUEUE, A.QUEUE),
    "reject": (A.SEAT, A.TAKE_OVER, A.REJECT, A.REJECT, A.REJECT),
}
NOTHING = Scene(capacity=3)
A_WAKE = Scene(seated=True, wake_seated=True, capacity=3)
MINE = Scene(seated=True, may_stop=True, capacity=3)
ANOTHERS = Scene(seated=True, capacity=3)
A_QUEUE = Scene(waiting=2, capacity=3)


def expected(strategy: str, scene: Scene) -> str:
    """The rules in the words of the design, one after the other."""
    if not scene.seated and scene.waiting == 0:
        return "collect" if strategy == "collect" else "seat"
    takes_over = strategy in ("interrupt", "rollback") and scene.may_stop
    if scene.wake_seated or takes_over:
        return "take_over_behind" if scene.overdue else "take_over"
    if strategy == "reject":
        return "reject"
    if strategy == "collect" and scene.collecting:
        return "merge"  # a merged message takes no place of its own
    if scene.waiting >= scene.capacity:
        return "full"
    if strategy == "steer" and scene.seated and scene.may_stop:
        return "steer"
    return "collect" if strategy == "collect" else "queue"


def test_the_table() -> None:
    """Each strategy in each plain scene has the one admission that the design names."""
    assert set(TABLE) == set(Strategy)
    for strategy, row in TABLE.items():
        found = tuple(decide(Strategy(strategy), scene) for scene in (NOTHING, A_WAKE, MINE, ANOTHERS, A_QUEUE))
        assert found == row, strategy


@pytest.mark.parametrize("strategy", Strategy)
def test_every_combination(strategy: Strategy) -> None:
    """Each combination of strategy, seat, right, queue, fairness and collection has one admission."""
    seen = list(scenes())
    assert len(seen) == len(set(map(repr, seen))) == 24 * len(ROOM)
    for scene in seen:
        assert decide(strategy, scene) == expected(strategy, scene), scene


@pytest.mark.parametrize("strategy", Strategy)
def test_an_empty_seat_is_taken(strategy: Strategy) -> None:
    """With nothing there no strategy refuses, queues or ends anything; collect waits for more, without a place."""
    for scene in scenes(seated=False):
        if scene.waiting == 0:
            how = decide(strategy, scene)
            assert how is (Admission.COLLECT if strategy is Strategy.COLLECT else Admission.SEAT)


@pytest.mark.parametrize("strategy", Strategy)
def test_nobody_is_taken_over_without_the_right(strategy: Strategy) -> None:
    """Without the right to stop the run in the seat no strategy ends it, enters it or gets ahead of it."""
    for scene in scenes(seated=True, wake_seated=False, may_stop=False):
        how = decide(strategy, scene)
        assert how in (Admission.QUEUE, Admission.COLLECT, Admission.MERGE, Admission.FULL, Admission.REJECT)


@pytest.mark.parametrize("strategy", sorted(set(Strategy) - {Strategy.INTERRUPT, Strategy.ROLLBACK}))
def test_only_two_take_over(strategy: Strategy) -> None:
    """Steer, queue, collect and reject never end a run that a person began, whatever the rights."""
    for scene in scenes(seated=True, wake_seated=False):
        assert decide(strategy, scene) not in (Admission.TAKE_OVER, Admission.TAKE_OVER_BEHIND)


def test_rollback_comes_in_as_interrupt_does() -> None:
    """Rollback differs in what becomes of the old turn, not in who may take over."""
    for scene in scenes():
        assert decide(Strategy.ROLLBACK, scene) is decide(Strategy.INTERRUPT, scene)


@pytest.mark.parametrize("strategy", [Strategy.INTERRUPT, Strategy.ROLLBACK])
def test_a_full_queue_does_not_keep_a_takeover_out(strategy: Strategy) -> None:
    """A message with the right to take over is never refused for want of room."""
    for scene in scenes(seated=True, may_stop=True):
        how = decide(strategy, scene)
        assert how is (Admission.TAKE_OVER_BEHIND if scene.overdue else Admission.TAKE_OVER)


@pytest.mark.parametrize("strategy", Strategy)
def test_whoever_needs_a_place_is_refused_when_there_is_none(strategy: Strategy) -> None:
    """A full queue takes no message, by any strategy; a merged message needs no place."""
    for scene in scenes(wake_seated=False):
        if scene.waiting >= scene.capacity and scene.waiting > 0:
            how = decide(strategy, scene)
            assert how not in (Admission.QUEUE, Admission.STEER, Admission.COLLECT, Admission.SEAT)


def test_a_merge_needs_one_to_merge_with() -> None:
    """Only collect merges, only into a waiting message that collects, and never in an idle session."""
    for strategy, scene in itertools.product(Strategy, scenes()):
        if decide(strategy, scene) is Admission.MERGE:
            assert strategy is Strategy.COLLECT and scene.collecting
            assert scene.seated or scene.waiting > 0


def test_only_a_run_is_steered() -> None:
    """A message steers the run in the seat, never one that waits, and only by the right to stop it."""
    for strategy, scene in itertools.product(Strategy, scenes()):
        if decide(strategy, scene) is Admission.STEER:
            assert strategy is Strategy.STEER and scene.seated and scene.may_stop and not scene.wake_seated


# Wakes


@pytest.mark.parametrize("strategy", Strategy)
def test_a_wake_yields(strategy: Strategy) -> None:
    """A wake is skipped while anything runs or waits, whatever the strategy and the rights, and else has the seat."""
    for scene in scenes():
        idle = not scene.seated and scene.waiting == 0
        assert decide(strategy, scene, wake=True) is (Admission.SEAT if idle else Admission.SKIP)


@pytest.mark.parametrize("strategy", Strategy)
def test_any_message_takes_a_wake_over(strategy: Strategy) -> None:
    """A wake in the seat gives way to every message, by any strategy, without a right and with a full queue."""
    for scene in scenes(wake_seated=True):
        how = decide(strategy, scene)
        assert how is (Admission.TAKE_OVER_BEHIND if scene.overdue else Admission.TAKE_OVER)


@pytest.mark.parametrize("strategy", Strategy)
def test_only_a_wake_is_skipped(strategy: Strategy) -> None:
    """A person's message is never skipped: control admits it, or refuses it aloud."""
    for scene in scenes():
        assert decide(strategy, scene) is not Admission.SKIP


def test_every_admission_is_reached() -> None:
    """Each admission is the answer to some scene."""
    messages = {decide(strategy, scene) for strategy, scene in itertools.product(Strategy, scenes())}
    wakes = {decide(strategy, scene, wake=True) for strategy, scene in itertools.product(Strategy, scenes())}
    assert messages | wakes == set(Admission)


@pytest.mark.parametrize("kind", RunKind)
def test_whose_strategy_counts(kind: RunKind) -> None:
    """The nearest strategy counts, of message, session and server; a program without its own queues or is rejected."""
    for own, session, server in itertools.product((None, *Strategy), (None, *Strategy), Strategy):
        nearest = own or session or server
        counts = strategy_of(kind, own, session=session, server=server)
        if kind is RunKind.AGENT and own is None:
            assert counts is (Strategy.REJECT if nearest is Strategy.REJECT else Strategy.QUEUE)
        else:
            assert counts is nearest
