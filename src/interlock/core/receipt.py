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
5. The totals of a receipt are sums over its runs (`summed`), so a part of a receipt has totals of its own (`shown`). A
   caller who may see one of two fallen runs gets the same part from memory and from the store, and learns nothing of
   the other run. Only detached processes that a stop ended belong to no run: they count in the whole receipt alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from interlock.core.names import BodyState, Drain, Effect, Ending, Principal, ReceiptId, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome

Key = TypeVar("Key")

GRADES = ("group", "keeper", "cgroup")
"""The grades of containment, the weakest first; a receipt about several containments names the weakest."""

FATES = ("none", "reused", "settling", "killed")
"""What can become of a host, the worst last; a receipt about several hosts names the worst."""


class FallenTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call of a fallen run. An `interrupted` call was permitted and then cut: its effect is unknown."""

    name: str
    state: ToolState
    run_id: RunId


class Processes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many processes of the fallen runs were ended, survived KILL, or go on because they are detached."""

    ended: int = 0
    stuck: int = 0
    detached: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one run adds to the totals of its receipt; `Receipt` explains each field."""

    grade: str = "inline"
    unseen: tuple[str, ...] = ()
    processes: Processes = Processes()
    host: str = "none"
    kept: tuple[str, ...] = ()
    questions: int = 0
    queued: int = 0
    holds: int = 0
    unconfirmed: tuple[str, ...] = ()


class FallenRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run that fell, the state of its agent's code, and what it adds to the receipt's totals."""

    id: RunId
    outcome: Outcome
    body: BodyState = BodyState.NONE
    refused: dict[Effect, int] = {}  # the effects that it tried after its fall
    totals: Totals = Totals()


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    queued: int = 0  # messages without a seat that ended early
    in_flight: int = 0  # always 0; clients of the wire read the field
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


def summed(receipt: Receipt, runs: Iterable[FallenRun], tools: Iterable[FallenTool], *more: Totals) -> Receipt:
    """Return a receipt about these runs and tools, with totals that are sums over the runs and over `more`."""
    fallen = tuple(runs)
    parts = [*(run.totals for run in fallen), *more]
    refused: dict[Effect, int] = {}
    for run in fallen:
        for effect, count in run.refused.items():
            refused[effect] = refused.get(effect, 0) + count
    # Most falls are of one run, whose totals are the sum.
    total = parts[0] if len(parts) == 1 else _sum(parts)
    return msgspec.structs.replace(
        receipt, runs=fallen, tools=tuple(tools), refused=refused, **msgspec.structs.asdict(total)
    )


def _sum(parts: Sequence[Totals]) -> Totals:
    return Totals(
        grade=min((each.grade for each in parts if each.grade in GRADES), key=GRADES.index, default="inline"),
        unseen=tuple(dict.fromkeys(missed for each in parts for missed in each.unseen)),
        processes=Processes(
            ended=sum(each.processes.ended for each in parts),
            stuck=sum(each.processes.stuck for each in parts),
            detached=sum(each.processes.detached for each in parts),
        ),
        host=max((each.host for each in parts), key=FATES.index, default="none"),
        kept=tuple(name for each in parts for name in each.kept),
        questions=sum(each.questions for each in parts),
        queued=sum(each.queued for each in parts),
        holds=sum(each.holds for each in parts),
        unconfirmed=tuple(dict.fromkeys(name for each in parts for name in each.unconfirmed)),
    )


def shown(receipt: Receipt, runs: Collection[RunId]) -> Receipt:
    """Return the part of a receipt about these runs; the whole receipt, if these are all of its runs."""
    return split(receipt, {None: runs})[None]


def split(receipt: Receipt, runs: Mapping[Key, Collection[RunId]]) -> dict[Key, Receipt]:
    """Return parts of a receipt: for each key the part about its runs.

    The receipt is read once, however many parts there are: a stop of 1,600 runs has 1,600 of them.
    """
    fallen = {run.id: run for run in receipt.runs}
    tools: dict[RunId, list[FallenTool]] = {}
    for tool in receipt.tools:
        tools.setdefault(tool.run_id, []).append(tool)
    parts = {}
    for key, wanted in runs.items():
        ids = [run_id for run_id in dict.fromkeys(wanted) if run_id in fallen]
        mine = (tool for run_id in ids for tool in tools.get(run_id, ()))
        whole = len(ids) == len(fallen)
        parts[key] = receipt if whole else summed(receipt, (fallen[run_id] for run_id in ids), mine)
    return parts


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
