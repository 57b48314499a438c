"""One Decision is one transaction: everything that was decided in one synchronous step.

Every part is self-contained and conditional, so that a Decision may be handed over again, or after another that never
arrived: a row is inserted if absent, an ending is written where none stands, a generation only rises.
"""

import msgspec

from interlock.core.events import Json
from interlock.core.names import (
    Announce,
    CallId,
    Ending,
    May,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
    WakeId,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a session. Its `shares` are read here and written as rows of their own."""

    id: SessionId
    owner: Principal
    generation: int
    strategy: Strategy | None = None  # None: the server's
    since: int = 0  # the transcript begins behind this position; only rises
    renewed: int = 0  # the generation at its last reset: a turn up to there is no previous one
    crashes: int = 0  # times in a row that the server died while a run of it was going
    announced: int = 0  # turns in a row that announcements began
    shares: dict[Principal, May] = {}


class ShareRow(msgspec.Struct, frozen=True, kw_only=True):
    """With whom a session is shared from position `at` on; `may` None: no longer. The latest stands."""

    session: SessionId
    principal: Principal
    may: May | None
    at: int


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a run. `outcome` is written once; `alias` is the run that took the message in."""

    id: RunId
    session: SessionId
    principal: Principal
    kind: RunKind
    text: str
    admitted_at: float
    key: str | None = None
    deadline: float | None = None
    parent: RunId | None = None
    home: SessionId | None = None  # of a child: the session at the top of its tree
    agent: str | None = None  # who does the work; None: the one that is served
    detached: bool = False
    alias: RunId | None = None
    generation: int | None = None  # None: it never had the seat
    started: bool = False
    outcome: Outcome | None = None
    cut: str = ""
    told: bool = False  # its terminal event is in the log
    instructions: str | None = None  # of its sender to the agent, beside the message
    announce: Announce | None = None  # of a detached child: how its ending comes to its home


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """The first use of a key: it answers every later one, also after a restart."""

    principal: Principal
    key: str
    method: str
    digest: str
    run_id: RunId
    generation: int | None = None
    superseded: RunId | None = None


class StopKey(msgspec.Struct, frozen=True, kw_only=True):
    """The first use of a stop's key, and what came of it: it answers every later one, which ends nothing more."""

    principal: Principal
    key: str
    method: str  # stop, or reset
    digest: str
    at: float
    receipt: ReceiptId | None = None  # None: it found nothing to end
    aborted: bool = False
    already: Ending | None = None


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was stopped before it was seen: its run will be born stopped."""

    principal: Principal
    key: str


class ToolRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call whose start is on record before its body runs."""

    call_id: CallId
    run_id: RunId
    name: str
    arguments: Json
    state: ToolState


class QuestionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and what became of it. The first answer stands; void and expired are for good."""

    id: QuestionId
    run_id: RunId
    session: SessionId
    principal: Principal
    text: str
    choices: tuple[str, ...] | None = None
    state: QuestionState = QuestionState.OPEN
    answer: bool | str | None = None
    by: Principal | None = None


class WakeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: once `at`, or again and again by `every` (seconds, counted from `since`) or `cron`."""

    id: WakeId
    session: SessionId
    principal: Principal
    text: str
    since: float
    at: float | None = None
    every: float | None = None
    cron: str | None = None


class StopMark(msgspec.Struct, frozen=True, kw_only=True):
    """A stop's place in its own channel: what was written before it and arrives after it is stopped too."""

    session: SessionId
    channel: str
    by: Principal
    at: int | float  # the channel's own number, which may be too long for a float
    stopped_at: float  # by the clock on the wall: it stands for MARK_SECONDS

    def stands(self, now: float) -> bool:
        """Return whether it still counts; one from beyond the next hour is of a clock that was set back, and does not.

        So a stop whose place lies far in the future does not stop every later message of its channel for good.
        """
        return abs(now - self.stopped_at) < MARK_SECONDS

    def covers(self, other: "StopMark") -> bool:
        """Return whether another mark of the same stopper in the same channel adds nothing to this one."""
        return self.at >= other.at and self.stopped_at >= other.stopped_at


MARK_SECONDS = 3_600.0
MARKS_EACH = 16  # of one stopper in one channel: only a later stop at an earlier place adds one


def with_mark(marks: tuple[StopMark, ...], new: StopMark) -> tuple[StopMark, ...]:
    """Return the marks of one stopper in one channel with one more, without those that count no more beside it."""
    standing = tuple(mark for mark in marks if mark.stands(new.stopped_at))
    if any(mark.covers(new) for mark in standing):
        return standing
    return (*(mark for mark in standing if not new.covers(mark)), new)[-MARKS_EACH:]


class Writer(msgspec.Struct, frozen=True):
    """The writer right as a fencing token: a write under an older generation than the session's is refused whole."""

    session: SessionId
    generation: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What one synchronous step decided, for one transaction."""

    writer: Writer | None = None
    sessions: tuple[SessionRow, ...] = ()  # insert, or raise the generation
    admissions: tuple[RunRow, ...] = ()  # insert if absent
    endings: tuple[RunRow, ...] = ()  # insert, or set the outcome where there is none
    keys: tuple[KeyRow, ...] = ()  # insert if absent
    tombstones: tuple[Tombstone, ...] = ()
    starts: tuple[RunId, ...] = ()  # where neither started nor ended
    told: tuple[RunId, ...] = ()  # their terminal events are in the log
    tools: tuple[ToolRow, ...] = ()
    receipts: tuple[Receipt, ...] = ()  # insert or replace
    aliases: tuple[tuple[RunId, RunId], ...] = ()  # a message and the run that took it in; where it has not ended
    questions: tuple[QuestionRow, ...] = ()
    wakes: tuple[WakeRow, ...] = ()
    unwakes: tuple[WakeId, ...] = ()
    marks: tuple[StopMark, ...] = ()
    stops: tuple[StopKey, ...] = ()  # insert if absent
    shares: tuple[ShareRow, ...] = ()  # where no later one stands
    rises: tuple[SessionId, ...] = ()  # raise a session that nobody has in memory


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of a Decision it has taken: endings it already held that differ from those proposed."""

    found: tuple[Outcome, ...] = ()
