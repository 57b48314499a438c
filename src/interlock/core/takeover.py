"""What a new message does to a busy session, as one pure decision.

1. What a person writes is dominant: by default it takes over the run in the seat. What a program starts ends nobody's
   turn unless it says so itself: by default it queues (`strategy_of`).
2. Taking over needs the right to stop that run; without it the message queues.
3. A waiting message of someone else is passed over by a takeover at most once (`overdue` then), so that repeated
   takeovers starve nobody: the old run still falls, but the overdue message gets the seat first.
4. A wake yields: it is skipped while anything is there, and any message takes it over.
5. An announcement ends nobody's turn and is ended by nobody's message: it waits behind whatever people and programs
   send (`place`). So many turns in a row begin by announcements alone, then they are notes (`report_kind`): children
   that announce to a parent which begins new ones would else go on for ever with nobody there.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from interlock.core.names import REPORTS, Announce, RunKind, Strategy

ANNOUNCED = 8  # turns in a row that announcements may begin without a message of a person
PROGRAMS = frozenset({RunKind.AGENT})  # kinds that programs start; a wake has a rule of its own


class Admission(StrEnum):
    """How a message comes in."""

    SEAT = "seat"
    TAKE_OVER = "take_over"
    TAKE_OVER_BEHIND = "take_over_behind"  # the old run falls; an overdue message of another is seated first
    QUEUE = "queue"
    STEER = "steer"  # waits, and the run in the seat may take it in
    COLLECT = "collect"  # waits until it is quiet, for others to be added
    MERGE = "merge"  # is added to one that waits like that
    FULL = "full"
    REJECT = "reject"
    SKIP = "skip"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a message finds. `waiting` counts the messages that would stay ahead of it in the queue."""

    seated: bool = False
    wake_seated: bool = False
    may_stop: bool = False  # the run in the seat; where nobody has it, there is nobody to object
    waiting: int = 0
    capacity: int = 0
    overdue: bool = False
    collecting: bool = False  # one waits that this may be added to


def strategy_of(kind: RunKind, own: Strategy | None, *, session: Strategy | None, server: Strategy) -> Strategy:
    """Return the strategy that counts: the message's own, else its session's, else the server's.

    A program that names none queues, or is turned away where its session rejects: what the owner chose for the session
    was chosen for what people write, and nothing of it lets a program end, or get into, a person's turn.
    """
    chosen = own or session or server
    if own is None and kind in PROGRAMS and chosen is not Strategy.REJECT:
        return Strategy.QUEUE
    return chosen


def report_kind(wish: Announce, *, in_a_row: int, stopped: bool) -> RunKind:
    """Return what a child's ending becomes at the top; a stop of the child begins no turn there either."""
    turn = wish is Announce.TURN and not stopped and in_a_row < ANNOUNCED
    return RunKind.ANNOUNCE if turn else RunKind.NOTE


def place(kind: RunKind, waiting: Sequence[RunKind]) -> int:
    """Return where in the queue a message stands: announcements last."""
    ahead = sum(other not in REPORTS for other in waiting)
    return len(waiting) if kind in REPORTS else ahead


def decide(strategy: Strategy, scene: Scene, *, wake: bool = False) -> Admission:
    """Return how a message comes in."""
    busy = scene.seated or scene.waiting > 0
    if wake:
        return Admission.SKIP if busy else Admission.SEAT
    if not busy:
        return Admission.COLLECT if strategy is Strategy.COLLECT else Admission.SEAT
    if scene.wake_seated or (strategy in (Strategy.INTERRUPT, Strategy.ROLLBACK) and scene.may_stop):
        return Admission.TAKE_OVER_BEHIND if scene.overdue else Admission.TAKE_OVER
    if strategy is Strategy.REJECT:
        return Admission.REJECT
    if strategy is Strategy.COLLECT and scene.collecting:
        return Admission.MERGE
    if scene.waiting >= scene.capacity:
        return Admission.FULL
    if strategy is Strategy.STEER and scene.seated and scene.may_stop:
        return Admission.STEER
    return Admission.COLLECT if strategy is Strategy.COLLECT else Admission.QUEUE
