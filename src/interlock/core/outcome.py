"""How a run ended: `settle` decides it once, and every surface tells the same.

A firing timer does not decide that a run timed out: `settle` compares the run's limits with the clock. So a timer that
fires late or early changes no ending. Limits are instants on the monotonic clock, so a change of the time of day
neither ends a run nor keeps one alive (race 90).

1. If a limit has passed at the instant of the decision, the ending is `timed_out`, whatever cause the caller gives.
   For an agent that has returned, the instant is that of its return: work that finished in time is no timeout, however
   late control reads of it. Of several limits the earliest counts, and the outcome says whose it was.
2. Otherwise the first caller's cause stands.
"""

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from interlock.core.names import EARLY, Ending, ErrorKind, LimitOf, Principal, RunId


class Cause(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a run ends, as data. A run whose fence has a cause has fallen."""

    ending: Ending
    by: Principal | None = None
    superseded_by: RunId | None = None
    phase: str | None = None
    limit_ms: int | None = None
    limit_of: LimitOf | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    hidden: bool = False  # rolled back: the model no longer reads this turn
    typed: bool = False  # a person stopped the run by a message, not by a call
    born_stopped: bool = False  # the stop came before the message, which never ran

    @property
    def early(self) -> bool:
        """True where the run was cut short and did not finish by itself."""
        return self.ending in EARLY


class Limit(msgspec.Struct, frozen=True, gc=False):
    """An instant on the monotonic clock after which a run is `timed_out`."""

    at: float
    seconds: float
    phase: str | None = None  # None: the phase in which the run is then
    of: LimitOf = LimitOf.OPERATOR


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a run ended, as everyone is told. The comment at a field is its line in docs/endings.md (`make endings`)."""

    run_id: RunId  # the run that ended
    ending: Ending  # how it ended; `pending` and `unknown` are answers to a waiter, not endings
    text: str = ""  # the reply, or the part of it that was said
    by: Principal | None = None  # who stopped it, or whose message took over
    superseded_by: RunId | None = None  # the run that took over
    phase: str | None = None  # what it was doing when a limit passed: a known phase, or one that the agent named
    limit_ms: int | None = None  # the limit that passed
    limit_of: LimitOf | None = None  # whose limit ended it; `parent`: it fell with a parent that a limit had ended
    error: str | None = None  # why it failed, in full
    error_kind: ErrorKind | None = None  # whose failure it was: `agent`, `provider`, `host` or `store`
    hidden: bool = False  # rolled back: the model no longer reads this turn
    typed: bool = False  # a person stopped it by a message, not by a call
    born_stopped: bool = False  # the stop came before the message, which never ran
    unkept: bool = False  # superseded by a message that the store did not take, so there is no run to name
    # A run that never started repeats the names of the turn before it.
    tools: tuple[str, ...] = ()  # tools that began in a rolled-back turn: their effects remain
    started_at: float | None = None  # when its agent began; None: it never did
    ended_at: float | None = None  # when it fell; no effect of it was admitted after that
    drained: bool = False  # its cleanup is over; the receipt's `drain` says whether all was seen to end
    durable: bool = True  # the store has the ending; False where it was published before the store had it

    @property
    def ended(self) -> bool:
        """False only for `pending` and `unknown`, which are answers and not endings."""
        return self.ending not in (Ending.PENDING, Ending.UNKNOWN)

    def same_story(self, other: "Outcome") -> bool:
        """Return whether both tell the same ending; `drained` and `durable` are separate facts and may differ."""
        return bool(_story(self) == _story(other))


_story = attrgetter(*(name for name in Outcome.__struct_fields__ if name not in ("drained", "durable")))


def cause_of(outcome: Outcome) -> Cause:
    """Return the cause of an outcome that the store holds."""
    return Cause(**{name: getattr(outcome, name) for name in Cause.__struct_fields__})


def returned_at(told: float, *, heard: float, now: float) -> float:
    """Return when the agent in a host returned: `told`, the instant the host names, if that is possible; else `now`.

    At `heard` control had read everything that the host had sent, and no return was in it. So an instant before `heard`
    is a lie, and so is an instant in the future. A host that lies can date its return back at most to `heard`.
    """
    return told if heard <= told <= now else now


def passed_limit(now: float, limits: Iterable[Limit]) -> Limit | None:
    """Return the earliest of the limits that have passed, or None."""
    passed = [limit for limit in limits if now >= limit.at]
    return min(passed, key=lambda limit: limit.at) if passed else None


def settle(cause: Cause, *, now: float, limits: Iterable[Limit] = (), phase: str | None = None) -> Cause:
    """Return the cause that stands: `timed_out` if a limit had passed at `now`, else `cause`.

    `now` is the instant of the decision, or of the agent's return if the agent has returned.
    """
    passed = passed_limit(now, limits)
    if passed is None:
        return cause
    limit_ms = round(passed.seconds * 1000)
    return Cause(
        ending=Ending.TIMED_OUT,
        phase=passed.phase or phase,
        limit_ms=limit_ms,
        limit_of=passed.of,
        hidden=cause.hidden,
    )
