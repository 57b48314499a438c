"""What a new message does to a busy session, as one pure decision.

1. The new message is dominant: by default it takes over the run in the seat.
2. Taking over needs the right to stop that run; without it the message queues.
3. A waiting message of someone else is passed over by a takeover at most once (`overdue` then), so that repeated
   takeovers starve nobody: the old run still falls, but the overdue message gets the seat first.
"""

from enum import StrEnum

from interlock.core.names import Strategy

BUILT = (Strategy.INTERRUPT, Strategy.QUEUE, Strategy.REJECT)


class Admission(StrEnum):
    """How a message comes in."""

    SEAT = "seat"
    TAKE_OVER = "take_over"
    TAKE_OVER_BEHIND = "take_over_behind"  # the old run falls; an overdue message of another is seated first
    QUEUE = "queue"
    FULL = "full"
    REJECT = "reject"


def decide(strategy: Strategy, *, busy: bool, may_stop: bool, waiting: int, capacity: int, overdue: bool) -> Admission:
    """Return how a message comes in. `waiting` counts the messages that would stay ahead of it in the queue."""
    if not busy:
        return Admission.SEAT
    if strategy is Strategy.REJECT:
        return Admission.REJECT
    if strategy is Strategy.INTERRUPT and may_stop:
        return Admission.TAKE_OVER_BEHIND if overdue else Admission.TAKE_OVER
    return Admission.QUEUE if waiting < capacity else Admission.FULL
