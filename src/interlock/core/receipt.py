"""The receipt: what one fall ended, and what control saw of it.

1. Each fall has one receipt (`Fall.receipt`). `stop()` returns it when the ending is public (t1). It grows until
   everything of the fall is drained (t3).
2. The receipt is made from what the fall decided, never from what the caller asked. Otherwise a stop that came after a
   completion would be answered with `aborted: true` (races 14 and 128).
3. The ending and the drain are separate facts. `drain` is `observed` only if control saw every body and every process
   end; a sent signal proves nothing. If the two were one fact, a run would be told as gone while its process lives
   (race 127). `unconfirmed` names the bodies and processes that control did not see end.
4. `aborted`, `already` and `again` speak of the one call that returned the receipt; the stored receipt is without them.
   A second stop of a run gets the same receipt with `aborted: false`. A stop that ended nothing gets a receipt without
   an id (`nothing`).
"""

import msgspec

from interlock.core.names import BodyState, Drain, Effect, Ending, Principal, ReceiptId, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome


class FallenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that fell, and the state of its agent's code."""

    id: RunId
    outcome: Outcome
    body: BodyState = BodyState.NONE
    refused: dict[Effect, int] = {}  # the effects that it tried after its fall


class FallenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a fallen run. An `interrupted` call was permitted and then cut: its effect is unknown."""

    name: str
    state: ToolState
    run_id: RunId


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes of the fallen runs were ended, survived KILL, or go on because they are detached."""

    ended: int = 0
    stuck: int = 0
    detached: int = 0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one fall ended, as it stands now."""

    id: ReceiptId | None  # None: the stop found nothing, so nothing is stored
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
    unseen: tuple[str, ...] = ()  # kinds of processes that this grade cannot reach
    refused: dict[Effect, int] = {}
    tools: tuple[FallenTool, ...] = ()
    processes: Processes = Processes()
    # One of none, settling, reused, killed. At t1 a host is often still `settling`; in a drained receipt it never is.
    # `reused` means that the host was kept for the session's next turn, not that such a turn came.
    host: str = "none"
    kept: tuple[str, ...] = ()  # processes of earlier turns that stay with a reused host, by name and pid
    questions: int = 0  # open questions that went void
    queued: int = 0  # messages that ended early before they had the seat
    in_flight: int = 0  # always 0: control counts nothing here
    holds: int = 0  # named holds that the fallen runs keep until they are drained
    unconfirmed: tuple[str, ...] = ()  # bodies and processes that control did not see end, by name
    aborted: bool = False  # this call ended something
    already: Ending | None = None  # the ending that this call found
    # The stop's key was used before: this is the receipt of that first stop, and this call ended nothing.
    again: bool = False

    @property
    def fence_to_drained_ms(self) -> float | None:
        """The milliseconds from the fall (t0) until everything was drained (t3)."""
        return None if self.drained_at is None else (self.drained_at - self.fenced_at) * 1000

    @property
    def fence_to_end_ms(self) -> float | None:
        """The milliseconds from the fall (t0) until the ending was public (t1)."""
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
