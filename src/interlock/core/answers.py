"""What callers are told: the answers to the verbs of a caller, as values."""

import msgspec

from interlock.core.decision import SessionRow
from interlock.core.events import Json
from interlock.core.lifecycle import State
from interlock.core.names import May, Principal, QuestionId, QuestionState, RunId, RunKind, SessionId, WakeId
from interlock.core.outcome import Outcome


class Sent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to the sender of a message. `generation` is None while the message waits for the seat.

    `state` says where the message stood at the ack: `seated`, `queued`, or `ended` (it was born stopped, it was stopped
    before it began, or its key was used before and that run is over).
    """

    run_id: RunId
    session: SessionId
    # The session's owner; None where a used key is answered from the store alone.
    owner: Principal | None = None
    generation: int | None = None
    superseded: RunId | None = None
    state: State = State.SEATED
    # The principal who stopped the message before its admission.
    stopped_by: Principal | None = None
    # The stop came before the message: its key has a tombstone, or a stop stands after it in its channel.
    born_stopped: bool = False


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a list shows it."""

    id: RunId
    session: SessionId
    principal: Principal
    kind: RunKind
    state: State
    generation: int | None = None
    phase: str | None = None
    outcome: Outcome | None = None
    parent: RunId | None = None
    # For a child: the session at the top of its tree.
    home: SessionId | None = None
    agent: str | None = None
    detached: bool = False
    depth: int = 0  # below the session's own runs
    text: str = ""
    admitted_at: float = 0.0
    key: str | None = None


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a list shows it."""

    session: SessionRow
    runs: int
    # How many of the runs have not ended.
    open: int
    # When the latest message was admitted.
    latest_at: float | None = None


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A session's owner and shares. `durable` False: the change counts, but the store does not have it yet."""

    session: SessionId
    owner: Principal
    shares: dict[Principal, May]
    durable: bool = True


class QuestionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A question as it stands."""

    id: QuestionId
    run_id: RunId
    session: SessionId
    text: str
    state: QuestionState
    choices: tuple[str, ...] | None = None
    answer: bool | str | None = None
    by: Principal | None = None
    # The fields below are set only for an open question, as `questions` lists it; the store has none of them.
    tool: str | None = None
    arguments: Json | None = None
    asked_at: float | None = None  # wall clock
    expires_at: float | None = None  # wall clock


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live process as a list shows it."""

    pid: int | None
    command: str
    run_id: RunId
    started_at: float
    # The session whose stop ends the process.
    session: SessionId = SessionId("")
    name: str | None = None
    detached: bool = False
    # The end of the output.
    tail: str = ""


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as its owner sees it. `skipped` counts the wakes that were skipped since the server started."""

    id: WakeId
    session: SessionId
    text: str
    by: Principal
    next_at: float | None = None
    at: float | None = None
    every: float | None = None
    cron: str | None = None
    skipped: int = 0


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """What of a session goes on after a stop: its runs, the number of waiting messages, its detached work."""

    running: list[RunId]
    queued: int
    # Child runs by their ids, processes by their commands.
    detached: list[str]


class HostsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a control's hosts. `warm`: they are forked from a zygote; if not, `why` says the reason."""

    warm: bool
    why: str = ""
    started: int = 0
    reused: int = 0
    killed: int = 0
    idle: int = 0
    busy: int = 0
    spare: bool = False


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Control's own figures: the grade of containment, how many messages wait for a seat, and its hosts."""

    grade: str
    queued: int
    hosts: HostsInfo | None = None
