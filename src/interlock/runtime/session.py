"""A conversation in memory: its seat, its arrivals, its queue, and whose it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from interlock.agent.flag import Flag
from interlock.core.authority import NOBODYS, Whose
from interlock.core.names import May, Principal, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Outcome
from interlock.runtime.settings import CRASHES

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall
    from interlock.runtime.live import LiveRun
    from interlock.runtime.work import ProcessTable


class Session:
    """A conversation: one seat, a line of arrivals, a queue. Its lists are made when first needed."""

    __slots__ = (
        "announced", "arrivals", "crashes", "detached", "falls", "home", "id", "live", "loaded", "owner", "previous",
        "processes", "queue", "reading", "renewed", "seat", "shares", "since", "stored", "strategy",
    )  # fmt: skip

    def __init__(self, session_id: SessionId) -> None:
        self.id = session_id
        self.owner: Principal | None = None
        self.shares: dict[Principal, May] = {}
        # For a child's session: the session at the top of the tree, whose shares count here too.
        self.home: Session | None = None
        # `owner`, `shares` and the rest were read from the store, or the store has no row.
        self.loaded = False
        # The store has a row of this session; until then its owner is not confirmed.
        self.stored = False
        self.seat: LiveRun | None = None
        # Arrivals that the inbox has not decided on yet, in order.
        self.arrivals: deque[LiveRun] | None = None
        # One event for each stop that must read before it decides, set when the stop has read.
        self.reading: set[Flag] | None = None
        # Admitted runs that wait for the seat.
        self.queue: list[LiveRun] | None = None
        # Falls of this session, each from t0 until it is drained and stored.
        self.falls: list[Fall] | None = None
        # Detached children of this tree that are alive.
        self.detached: dict[RunId, LiveRun] | None = None
        # Detached processes.
        self.processes: ProcessTable | None = None
        self.previous: Outcome | None = None
        self.strategy: Strategy | None = None
        # The transcript begins after this position.
        self.since = 0
        # The generation of the last reset.
        self.renewed = 0
        # How many times in a row the server died while a run of this session was going.
        self.crashes = 0
        # How many turns in a row were begun by announcements.
        self.announced = 0
        # Runs of this session in the registry, detached children and processes of its tree, and pins. A session leaves
        # memory at 0.
        self.live = 0

    @property
    def parked(self) -> bool:
        """True if the server died CRASHES times in a row with a run of this session going.

        A parked session may be the reason for the crashes, so no run of it begins until it is reset.
        """
        return self.crashes >= CRASHES

    def count_turn(self, kind: RunKind) -> None:
        """Count turns that announcements begin in a row; a person's message sets the count back to 0."""
        if kind is RunKind.ANNOUNCE:
            self.announced += 1
        elif kind is RunKind.CHAT:
            self.announced = 0

    @property
    def confirmed_owner(self) -> Principal | None:
        """The owner, once the store has the session's row.

        Before that the first message may still be withdrawn, and its sender would own nothing.
        """
        return self.owner if self.stored else None

    @property
    def whose(self) -> Whose:
        """Owner and shares, once the store has the session's row; a child's session has the shares of its home."""
        shares = self.shares if self.home is None else self.home.shares
        return Whose(self.owner, shares) if self.stored else NOBODYS

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Decide on no arrival of this session, and give its seat to nobody, while a stop is about to decide."""
        reading = Flag()
        self.reading = {*(self.reading or ()), reading}
        try:
            yield
        finally:
            self.reading.discard(reading)
            reading.set()
