"""What a new message does to a busy session, as one pure decision.

1. A person's message is dominant: by default it takes over the run in the seat. A program's message queues by default
   (`strategy_of`): a program ends a person's turn only if its message names a strategy that does (race 133).
2. A message takes over only if its sender may stop the run in the seat, or if a wake started that run (rule 4).
   Otherwise such a message goes into the queue, or is refused if the queue is full.
3. In a shared session, a takeover can meet a waiting message that the sender of the takeover has no right to stop. A
   takeover goes ahead of such a message at most once; then the message is `overdue`. At the next takeover the old run
   falls all the same, but the overdue message is seated first and the new message queues. Otherwise repeated takeovers
   would starve the waiting message. (The owner and the admins may stop every waiting message, so their takeover ends
   it.)
4. A wake is skipped while the session is busy. Any other message takes over the run of a wake, with any strategy.
5. An announcement takes over no run, and a takeover ends no waiting announcement. Announcements stand in the queue
   after all messages of people and programs (`place`; race 138).
6. At most ANNOUNCED turns in a row are begun by announcements; further ones become notes (`report_kind`), until a
   person writes. Otherwise a parent that begins a new child for every announcement would go on for ever (race 140).
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from interlock.core.names import REPORTS, Announce, RunKind, Strategy

ANNOUNCED = 8  # turns
PROGRAMS = frozenset({RunKind.AGENT})  # kinds that programs start


class Admission(StrEnum):
    """What is done with a message."""

    SEAT = "seat"
    TAKE_OVER = "take_over"
    # The old run falls, and an overdue message is seated before this one.
    TAKE_OVER_BEHIND = "take_over_behind"
    QUEUE = "queue"
    # The message waits, and the run in the seat may absorb it.
    STEER = "steer"
    # The message waits for a quiet moment, and others may be added to it.
    COLLECT = "collect"
    # The message is added to a waiting message that collects.
    MERGE = "merge"
    FULL = "full"
    REJECT = "reject"
    SKIP = "skip"


class Scene(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of the session that a message finds."""

    seated: bool = False
    wake_seated: bool = False
    may_stop: bool = False  # the sender may stop the run in the seat, or the seat is free
    waiting: int = 0  # messages that would be ahead of this one in the queue
    capacity: int = 0
    overdue: bool = False  # a takeover has gone ahead of a message that this sender may not stop (rule 3)
    collecting: bool = False  # a waiting message collects, and this one may be added to it


def strategy_of(kind: RunKind, own: Strategy | None, *, session: Strategy | None, server: Strategy) -> Strategy:
    """Return the strategy that counts: the message's own, else its session's, else the server's.

    For a program's message without a strategy of its own, the choice of the session or the server counts only if it is
    `reject`; otherwise the message queues. The owner made that choice for people's messages: a program's message does
    not end a person's turn, and is not steered into that turn, unless the message itself names such a strategy.
    """
    chosen = own or session or server
    if own is None and kind in PROGRAMS and chosen is not Strategy.REJECT:
        return Strategy.QUEUE
    return chosen


def report_kind(wish: Announce, *, in_a_row: int, stopped: bool) -> RunKind:
    """Return the kind of message by which a home learns of a child's ending; a stopped child begins no turn there."""
    turn = wish is Announce.TURN and not stopped and in_a_row < ANNOUNCED
    return RunKind.ANNOUNCE if turn else RunKind.NOTE


def place(kind: RunKind, waiting: Sequence[RunKind]) -> int:
    """Return the place of a message in the queue: announcements stand after all others."""
    ahead = sum(other not in REPORTS for other in waiting)
    return len(waiting) if kind in REPORTS else ahead


def decide(strategy: Strategy, scene: Scene, *, wake: bool = False) -> Admission:
    """Return what is done with a message that finds this scene."""
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
