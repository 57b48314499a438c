"""The receipt: what an ending ended, and the proof of it.

One per fall. It is returned when the end is public (t1) and grows until everything is drained (t3).
"""

import msgspec

from interlock.core.names import BodyState, Drain, Effect, Ending, Principal, ReceiptId, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome


class FallenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that fell, and what became of its agent's code."""

    id: RunId
    outcome: Outcome
    body: BodyState = BodyState.NONE
    refused: dict[Effect, int] = {}  # what it tried after its fall


class FallenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a fallen run. `interrupted` means permitted, then cut: its effect is unknown."""

    name: str
    state: ToolState
    run_id: RunId


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the processes of the fallen runs."""

    ended: int = 0
    stuck: int = 0
    detached: int = 0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of an ending. `aborted`, `already` and `again` speak of the one call that returned it."""

    id: ReceiptId | None  # None: the stop found nothing, so there is nothing to look up later
    session: SessionId | None
    cause: Ending | None
    by: Principal | None = None
    runs: tuple[FallenRun, ...] = ()
    fenced_at: float
    ended_at: float | None = None
    drained_at: float | None = None
    drain: Drain = Drain.PENDING
    durable: bool = True
    grade: str = "inline"
    unseen: tuple[str, ...] = ()  # what this grade cannot reach
    refused: dict[Effect, int] = {}
    tools: tuple[FallenTool, ...] = ()
    processes: Processes = Processes()
    host: str = "none"
    kept: tuple[str, ...] = ()  # processes of earlier turns that stay with a host that is used again, by name and pid
    questions: int = 0
    queued: int = 0
    in_flight: int = 0
    holds: int = 0
    unconfirmed: tuple[str, ...] = ()  # what a bound ran out on, by name
    aborted: bool = False
    already: Ending | None = None
    again: bool = False  # the stop's key was used before: this is what came of it then, and nothing was ended now

    @property
    def fence_to_drained_ms(self) -> float | None:
        """How long from the fence until nothing was left, in milliseconds."""
        return None if self.drained_at is None else (self.drained_at - self.fenced_at) * 1000

    @property
    def fence_to_end_ms(self) -> float | None:
        """How long from the fence to the public end, in milliseconds."""
        return None if self.ended_at is None else (self.ended_at - self.fenced_at) * 1000


def nothing(
    *, session: SessionId | None, by: Principal, now: float, already: Ending | None = None, durable: bool = True
) -> Receipt:
    """Return the receipt of a stop that ended nothing; it is not stored."""
    return Receipt(
        id=None,
        session=session,
        cause=None,
        by=by,
        fenced_at=now,
        ended_at=now,
        drained_at=now,
        drain=Drain.OBSERVED,
        durable=durable,
        already=already,
    )
