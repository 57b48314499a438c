"""How a run ended: decided once, by `settle`, and told the same everywhere.

1. If a limit has passed at the instant of the decision, the ending is `timed_out`, whoever calls. Of an agent that has
   returned, the instant is that of its return: what was finished in time is no timeout, however late it is read.
   Of several limits the earliest counts, and the outcome says whose it was.
2. Otherwise the first caller's cause stands.
"""

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from interlock.core.names import EARLY, Ending, ErrorKind, LimitOf, Principal, RunId


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run ends, as data. Its presence on a run is the fence's one mark."""

    ending: Ending
    by: Principal | None = None
    superseded_by: RunId | None = None
    phase: str | None = None
    limit_ms: int | None = None
    limit_of: LimitOf | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    hidden: bool = False  # rolled back: the turn is no part of the model's context any more
    typed: bool = False  # a person stopped it by a message, not by a call
    born_stopped: bool = False  # the stop was there before the message, which never ran

    @property
    def early(self) -> bool:
        """True where the run was cut short rather than finishing by itself."""
        return self.ending in EARLY


class Limit(msgspec.Struct, frozen=True):
    """An instant on the monotonic clock after which a run is `timed_out`."""

    at: float
    seconds: float
    phase: str | None = None  # None: the phase the run is in
    of: LimitOf = LimitOf.OPERATOR


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended, as everyone is told. The comment at a field is its line in docs/endings.md."""

    run_id: RunId  # the run that ended
    ending: Ending  # how; `pending` and `unknown` are answers to a waiter, not endings
    text: str = ""  # the reply, or the part of it that was said
    by: Principal | None = None  # who stopped it, or whose message took over
    superseded_by: RunId | None = None  # the run that took over
    phase: str | None = None  # where a limit was met: a known phase, or one that the agent named
    limit_ms: int | None = None  # the limit that passed
    limit_of: LimitOf | None = None  # whose limit ended it; `parent`: it fell with a parent that a limit had ended
    error: str | None = None  # why it failed, in full
    error_kind: ErrorKind | None = None  # whose failure it was: `agent`, `provider`, `host` or `store`
    hidden: bool = False  # rolled back: the turn is no part of the model's context any more
    typed: bool = False  # a person stopped it by a message, not by a call
    born_stopped: bool = False  # the stop was there before the message, which never ran
    unkept: bool = False  # superseded by a message that could not be kept, so there is no run to name
    tools: tuple[str, ...] = ()  # of a hidden turn: the tools that were started, since their effects remain
    started_at: float | None = None  # when its agent began; None: it never did
    ended_at: float | None = None  # when it fell: nothing of it was admitted from then on
    drained: bool = False  # nothing of it is left; a fact beside the ending, and it comes later
    durable: bool = True  # the store has it; told as False where it had not answered in time

    @property
    def ended(self) -> bool:
        """False only for the two answers that are not endings: pending and unknown."""
        return self.ending not in (Ending.PENDING, Ending.UNKNOWN)

    def same_story(self, other: "Outcome") -> bool:
        """True if both tell the same ending; `drained` and `durable` are facts beside it and may differ."""
        return bool(_story(self) == _story(other))


_story = attrgetter(*(name for name in Outcome.__struct_fields__ if name not in ("drained", "durable")))


def cause_of(outcome: Outcome) -> Cause:
    """Return the cause behind an ending that was found in the store."""
    return Cause(**{name: getattr(outcome, name) for name in Cause.__struct_fields__})


def returned_at(told: float, *, heard: float, now: float) -> float:
    """Return when an agent elsewhere returned: as its host tells it, if that can be true, else now.

    It cannot be before `heard`, when control had read all that the host had said until then, and not in the future. So
    a host that lies gains no more than the time for which control did not read.
    """
    return told if heard <= told <= now else now


def passed_limit(now: float, limits: Iterable[Limit]) -> Limit | None:
    """Return the earliest of the limits that have passed."""
    return min((limit for limit in limits if now >= limit.at), key=lambda limit: limit.at, default=None)


def settle(cause: Cause, *, now: float, limits: Iterable[Limit] = (), phase: str | None = None) -> Cause:
    """Return the cause that stands if the run ends at `now`, or its agent returned then: a passed limit beats it."""
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
