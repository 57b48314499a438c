"""What a new message does to a busy session, in every combination."""

import itertools

import pytest

from interlock.core.names import Strategy
from interlock.core.takeover import BUILT, Admission, decide

FLAGS = list(itertools.product((False, True), repeat=3))
WAITING = ((0, 3), (2, 3), (3, 3), (4, 3), (0, 0))


def expected(strategy: str, busy: bool, may_stop: bool, waiting: int, capacity: int, overdue: bool) -> str:
    """The rules in the words of the design, one after the other."""
    if not busy:
        return "seat"
    if strategy == "reject":
        return "reject"
    if strategy == "interrupt" and may_stop:
        return "take_over_behind" if overdue else "take_over"
    return "queue" if waiting < capacity else "full"


@pytest.mark.parametrize("strategy", BUILT)
def test_every_combination(strategy: Strategy) -> None:
    """Each combination of strategy, seat, right, queue and fairness has the one admission the design names."""
    for (busy, may_stop, overdue), (waiting, capacity) in itertools.product(FLAGS, WAITING):
        how = decide(strategy, busy=busy, may_stop=may_stop, waiting=waiting, capacity=capacity, overdue=overdue)
        assert how == expected(strategy, busy, may_stop, waiting, capacity, overdue)


@pytest.mark.parametrize("strategy", Strategy)
def test_an_empty_seat_is_taken(strategy: Strategy) -> None:
    """With an empty seat no strategy refuses, queues or ends anything."""
    for may_stop, overdue in itertools.product((False, True), repeat=2):
        how = decide(strategy, busy=False, may_stop=may_stop, waiting=0, capacity=0, overdue=overdue)
        assert how is Admission.SEAT


@pytest.mark.parametrize("strategy", Strategy)
def test_nobody_is_taken_over_without_the_right(strategy: Strategy) -> None:
    """Without the right to stop the run in the seat no strategy ends it."""
    for overdue, (waiting, capacity) in itertools.product((False, True), WAITING):
        how = decide(strategy, busy=True, may_stop=False, waiting=waiting, capacity=capacity, overdue=overdue)
        assert how not in (Admission.TAKE_OVER, Admission.TAKE_OVER_BEHIND, Admission.SEAT)


def test_only_interrupt_takes_over() -> None:
    """Queue and reject never end a run, whatever the rights."""
    for strategy in (Strategy.QUEUE, Strategy.REJECT):
        for overdue, (waiting, capacity) in itertools.product((False, True), WAITING):
            how = decide(strategy, busy=True, may_stop=True, waiting=waiting, capacity=capacity, overdue=overdue)
            assert how not in (Admission.TAKE_OVER, Admission.TAKE_OVER_BEHIND)


def test_a_full_queue_does_not_keep_a_takeover_out() -> None:
    """A message with the right to take over is never refused for want of room."""
    how = decide(Strategy.INTERRUPT, busy=True, may_stop=True, waiting=100, capacity=100, overdue=False)
    assert how is Admission.TAKE_OVER


def test_the_strategies_of_this_release() -> None:
    """Three strategies are built; the others are named and refused elsewhere."""
    assert set(BUILT) == {"interrupt", "queue", "reject"}
