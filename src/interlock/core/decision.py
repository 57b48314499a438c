"""One Decision is one transaction: everything that one synchronous step decided.

No part fails if an earlier Decision is absent. Most parts are conditional: a row is inserted if it is absent, an ending
is written where the store has none or `lost`, a generation only rises. `tools`, `receipts`, `wakes`, `unwakes` and
`rises` are written without a condition. A second write of the same value changes nothing, and a second rise of a
generation does no harm, since generations may have holes. So a Decision may be handed to the store twice, and the store
may take it although an earlier Decision never arrived.

Facts are trees of values that are frozen when they are made, so none can be part of a cycle. They are declared with
`gc=False`: otherwise each collection would walk through every row, event and receipt in memory.
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


class SessionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store keeps of a session. `shares` are filled in on reading; a Decision writes them as `ShareRow`s."""

    id: SessionId
    owner: Principal
    generation: int
    strategy: Strategy | None = None  # None: the server's
    # The transcript begins after this position, which only rises.
    since: int = 0
    # The generation at the last reset. The outcome of a run with this generation or a lower one is not given to the
    # next run as `previous`, because the older run belongs to the time before the reset.
    renewed: int = 0
    crashes: int = 0  # how often in a row the server died while a run of this session was going
    announced: int = 0  # how many turns in a row were begun by announcements
    shares: dict[Principal, May] = {}


class ShareRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A principal's share of a session from position `at` on; `may` is None where the share was taken back.

    The row with the highest `at` counts, so a late write of an earlier share cannot undo a later one.
    """

    session: SessionId
    principal: Principal
    may: May | None
    at: int


class EpochRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The epoch of a tree: positions in a session, and in those of the children below it, are `epoch << 32 | n`."""

    session: SessionId
    epoch: int


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store keeps of a run. `alias` is the run that absorbed the message.

    `outcome` is written once, but an outcome `lost` is replaced by another ending that arrives later.
    """

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
    agent: str | None = None  # None: the agent that this control serves
    detached: bool = False
    alias: RunId | None = None
    generation: int | None = None  # None: the run was never seated
    started: bool = False
    outcome: Outcome | None = None
    cut: str = ""
    told: bool = False  # the run's terminal event is in the log
    instructions: str | None = None  # from the sender to the agent, in addition to the message
    announce: Announce | None = None  # of a detached child: how its home learns of its ending


class KeyRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first use of a message's key: a later message with this key gets the same answer, also after a restart."""

    principal: Principal
    key: str
    method: str
    digest: str
    run_id: RunId
    generation: int | None = None
    superseded: RunId | None = None


class StopKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first use of a stop's key, and its result: a later stop with this key gets that result and ends nothing."""

    principal: Principal
    key: str
    method: str  # stop, or reset
    digest: str
    at: float
    receipt: ReceiptId | None = None  # None: the stop found nothing to end
    aborted: bool = False
    already: Ending | None = None


class Tombstone(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A key that was stopped before its message arrived: the message's run will be born stopped."""

    principal: Principal
    key: str


class ToolRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call. The store has this row before the tool's body begins."""

    call_id: CallId
    run_id: RunId
    name: str
    arguments: Json
    state: ToolState


class QuestionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A question and its state. A void or expired question stays so.

    The first answer stands, unless the run falls before its agent has the answer: then the question becomes void.
    """

    id: QuestionId
    run_id: RunId
    session: SessionId
    principal: Principal
    text: str
    choices: tuple[str, ...] | None = None
    state: QuestionState = QuestionState.OPEN
    answer: bool | str | None = None
    by: Principal | None = None


class WakeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schedule: once, `at` a time; or repeatedly, by `every` (seconds, counted from `since`) or by `cron`."""

    id: WakeId
    session: SessionId
    principal: Principal
    text: str
    since: float
    at: float | None = None
    every: float | None = None
    cron: str | None = None


class StopMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stop's place in its own channel: a message that was written before the stop, and arrives later, is stopped.

    Control learns in which order messages were written only from the channel's own numbers. Neither control's clock nor
    the numbers of another channel say whether a message was written before a stop.
    """

    session: SessionId
    channel: str
    by: Principal
    at: int | float  # the channel's own number, which may be too long for a float
    stopped_at: float  # time of day

    def stands(self, now: float) -> bool:
        """Return whether the mark still counts: a mark counts for MARK_SECONDS after its stop.

        Without that bound, a stop with a much too high `at` would stop every later message of its channel. A mark whose
        `stopped_at` is MARK_SECONDS or more ahead of `now` does not count either: the clock was set back since then.
        """
        return abs(now - self.stopped_at) < MARK_SECONDS

    def covers(self, other: "StopMark") -> bool:
        """Return whether this mark makes `other`, a mark of the same principal and channel, superfluous."""
        return self.at >= other.at and self.stopped_at >= other.stopped_at


MARK_SECONDS = 3_600.0
# The most marks kept for one principal in one channel. A stop normally replaces the older marks. Both marks stay only
# if the newer stop has a smaller `at` than the older one.
MARKS_EACH = 16


def with_mark(marks: tuple[StopMark, ...], new: StopMark) -> tuple[StopMark, ...]:
    """Return one principal's marks in one channel with `new` added, and without those that `new` makes superfluous."""
    standing = tuple(mark for mark in marks if mark.stands(new.stopped_at))
    if any(mark.covers(new) for mark in standing):
        return standing
    return (*(mark for mark in standing if not new.covers(mark)), new)[-MARKS_EACH:]


class Writer(msgspec.Struct, frozen=True, gc=False):
    """The right to write for a session, as a fencing token.

    The store refuses the whole Decision if the session has a higher generation than this one.
    """

    session: SessionId
    generation: int


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one synchronous step decided, for one transaction. The comment at a field says how the store writes it."""

    writer: Writer | None = None
    sessions: tuple[SessionRow, ...] = ()  # insert, or raise the generation
    admissions: tuple[RunRow, ...] = ()  # insert if absent
    endings: tuple[RunRow, ...] = ()  # insert, or set the outcome where there is none or `lost`
    # Insert if absent. If a message was to be absorbed, but ended as a run of its own before that, its key is set to
    # its own run.
    keys: tuple[KeyRow, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()  # insert if absent
    starts: tuple[RunId, ...] = ()  # set where the run has not ended
    told: tuple[RunId, ...] = ()  # set: the run's terminal event is in the log
    tools: tuple[ToolRow, ...] = ()  # insert, or set the state
    receipts: tuple[Receipt, ...] = ()  # insert or replace
    # Pairs of a message's run and the run that absorbed it; set where the message's run has not ended.
    aliases: tuple[tuple[RunId, RunId], ...] = ()
    questions: tuple[QuestionRow, ...] = ()  # insert, or set the state as `QuestionRow` says
    wakes: tuple[WakeRow, ...] = ()  # insert or replace
    unwakes: tuple[WakeId, ...] = ()  # delete
    marks: tuple[StopMark, ...] = ()  # add, as `with_mark` does
    stops: tuple[StopKey, ...] = ()  # insert if absent
    shares: tuple[ShareRow, ...] = ()  # insert or replace, unless the store has a higher `at`
    epochs: tuple[EpochRow, ...] = ()  # insert, or raise the epoch
    rises: tuple[SessionId, ...] = ()  # raise the generation of a session that is not in memory


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The store's answer to a Decision that it took. `found` are other endings that the store already had."""

    found: tuple[Outcome, ...] = ()
