"""The words of the system, one per idea: ids are NewTypes, closed vocabularies are StrEnums."""

from enum import StrEnum
from typing import NewType

SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
ReceiptId = NewType("ReceiptId", str)
CallId = NewType("CallId", str)
QuestionId = NewType("QuestionId", str)
WakeId = NewType("WakeId", str)
Principal = NewType("Principal", str)

LOCAL = Principal("local")
"""The embedder itself, which may do all."""


class Effect(StrEnum):
    """Everything a run can do to the world; each passes the fence, each is counted when refused."""

    DELTA = "delta"
    BLOCK = "block"
    TYPING = "typing"
    PROGRESS = "progress"
    PHASE = "phase"
    TOOL = "tool"
    RESULT = "result"
    SPAWN = "spawn"
    QUESTION = "question"
    CHILD = "child"
    HOLD = "hold"
    FINAL = "final"


class EventKind(StrEnum):
    """What a watcher can be told."""

    MESSAGE = "message"
    STARTED = "started"
    DELTA = "delta"
    BLOCK = "block"
    TYPING = "typing"
    PROGRESS = "progress"
    PHASE = "phase"
    TOOL = "tool"
    PROCESS = "process"
    QUESTION = "question"
    CHILD = "child"
    ENDED = "ended"
    # Of the session, not of a run: these alone may follow a run's terminal event.
    RECEIPT = "receipt"
    GAP = "gap"
    CORRECTION = "correction"


PASSING = frozenset({EventKind.DELTA, EventKind.TYPING, EventKind.PROGRESS})
"""Events that count only while their run does: its blocks and its terminal event tell what lasts."""


class Ending(StrEnum):
    """How a run ended. `PENDING` and `UNKNOWN` are answers to a waiter, never endings."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    SUPERSEDED = "superseded"
    TIMED_OUT = "timed_out"
    PARENT_ENDED = "parent_ended"
    SHUTDOWN = "shutdown"
    LOST = "lost"
    PENDING = "pending"
    UNKNOWN = "unknown"


ENDINGS = tuple(ending for ending in Ending if ending not in (Ending.PENDING, Ending.UNKNOWN))
EARLY = frozenset(ENDINGS) - {Ending.COMPLETED, Ending.FAILED}
"""Endings that cut a run short; the other two are the agent's own."""


class KnownPhase(StrEnum):
    """Where a run was when a limit passed, as far as control knows; an agent names phases of its own beside these."""

    QUEUE = "queue"  # it waited for the seat
    START = "start"  # dispatched, and nothing was heard from its agent yet
    AGENT = "agent"  # in the agent's own code, or in the model that it asks
    TOOL = "tool"
    APPROVAL = "approval"  # it waited for a person's answer
    HOLD = "hold"
    CHILD = "child"
    IDLE = "idle"  # met the limit on silence, wherever it was


class LimitOf(StrEnum):
    """Whose limit ended a run: of all that bound it the one that passes first counts."""

    CALLER = "caller"  # of the message, or of the `delegate`
    OPERATOR = "operator"  # of everything served here, of all children, on silence or on waiting
    AGENT = "agent"  # the operator's, for the agent that the run was of
    PARENT = "parent"  # that of the run above, which took this one along


class ErrorKind(StrEnum):
    """Whose failure it was, where a run failed."""

    AGENT = "agent"
    PROVIDER = "provider"
    HOST = "host"
    STORE = "store"


class Strategy(StrEnum):
    """What a message does when the session is busy."""

    INTERRUPT = "interrupt"
    QUEUE = "queue"
    REJECT = "reject"
    STEER = "steer"
    COLLECT = "collect"
    ROLLBACK = "rollback"


class May(StrEnum):
    """What somebody a session is shared with may do in it."""

    WRITE = "write"  # send, and end what they sent themselves
    READ = "read"  # see it, and change nothing


class RunKind(StrEnum):
    """How a run came to be; a wait never answers with another kind's run."""

    CHAT = "chat"
    AGENT = "agent"
    CHILD = "child"
    WAKE = "wake"
    ANNOUNCE = "announce"  # a detached child's ending, told to the session that it belongs to: a turn
    NOTE = "note"  # the same as an entry alone: the next turn reads it


REPORTS = frozenset({RunKind.ANNOUNCE, RunKind.NOTE})
"""What children's endings become in the session at the top; nobody sends these."""


class Announce(StrEnum):
    """How a detached child's ending comes to the session at the top."""

    TURN = "turn"  # offered to the run at work there, else a turn of its own
    NOTE = "note"


class ToolState(StrEnum):
    """Where a tool call stands."""

    PENDING = "pending"  # recorded, not permitted yet
    RUNNING = "running"  # permitted; its body runs
    FINISHED = "finished"
    FAILED = "failed"  # its body raised
    SKIPPED = "skipped"  # never permitted: the run fell first
    INTERRUPTED = "interrupted"  # permitted and cut: effect unknown
    ABANDONED = "abandoned"  # still running, fenced, where we cannot end it


class QuestionState(StrEnum):
    """Where a question stands; only an open one can be answered."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"  # its own time ran out; that counts as no
    VOID = "void"  # its run fell, or nobody wants the answer any more


class ProcessState(StrEnum):
    """Where a process stands, as watchers are told."""

    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"  # it could not be started


class BodyState(StrEnum):
    """What became of the agent's own code."""

    NONE = "none"  # never began
    RUNNING = "running"
    RETURNED = "returned"
    CUT = "cut"
    ABANDONED = "abandoned"
    KILLED = "killed"


class Drain(StrEnum):
    """Whether anything of the run may still be there."""

    PENDING = "pending"
    OBSERVED = "observed"  # seen empty
    UNCONFIRMED = "unconfirmed"  # a bound ran out; the receipt names what
