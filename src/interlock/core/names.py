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
"""The program that embeds Interlock; it may do everything."""


class Effect(StrEnum):
    """Every effect that a run can have; each passes the fence, and a refused one is counted."""

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
    # The next three belong to the session, not to a run. Only they may follow a run's terminal event.
    RECEIPT = "receipt"
    GAP = "gap"
    CORRECTION = "correction"


PASSING = frozenset({EventKind.DELTA, EventKind.TYPING, EventKind.PROGRESS})
"""Events that count only while their run goes on: an ended run's text stands in its blocks and its terminal event."""


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
"""Endings that cut a run short. A run is `completed` if its agent returned, `failed` after an error (`ErrorKind`)."""


class KnownPhase(StrEnum):
    """What a run was doing when a limit passed, as far as control knows. An agent may name phases of its own."""

    QUEUE = "queue"  # the run waited for the seat
    START = "start"  # the run was dispatched, and its agent had not yet called any method of its run
    AGENT = "agent"  # the agent's own code ran, or waited for its model
    TOOL = "tool"
    APPROVAL = "approval"  # the run waited for a person's answer
    HOLD = "hold"
    CHILD = "child"
    IDLE = "idle"  # the limit on silence passed, whatever the run was doing


class LimitOf(StrEnum):
    """Whose limit ended a run. Of several limits the one that passes first counts."""

    CALLER = "caller"  # `send(deadline=)` or `delegate(timeout=)`
    OPERATOR = "operator"  # the control's limit on every run, on children, on silence or on waiting
    AGENT = "agent"  # the operator's limit for the run's agent
    PARENT = "parent"  # a limit ended the parent, and this run fell with the parent


class ErrorKind(StrEnum):
    """Which part failed, where a run's ending is `failed`."""

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
    """What a principal may do in a session that is shared with them."""

    WRITE = "write"  # see it, send to it, stop the runs they started, and answer these runs' questions
    READ = "read"  # see it


class RunKind(StrEnum):
    """What started a run.

    A key that was used for one kind of message is refused for another (race 103). Otherwise a sender would get, and
    wait for, a run of a kind that they did not ask for.
    """

    CHAT = "chat"
    AGENT = "agent"
    CHILD = "child"
    WAKE = "wake"
    ANNOUNCE = "announce"  # the ending of a detached child, told to its home as a turn
    # The ending of a detached child, told only as an entry of the transcript. The next turn reads that entry.
    NOTE = "note"


REPORTS = frozenset({RunKind.ANNOUNCE, RunKind.NOTE})
"""The kinds in which a home is told of its detached children's endings; control makes them, no principal sends them."""


class Announce(StrEnum):
    """How the ending of a detached child is told to its home."""

    TURN = "turn"  # offered to the run in the seat, or else a turn of its own
    NOTE = "note"


class ToolState(StrEnum):
    """Where a tool call stands."""

    PENDING = "pending"  # recorded, not permitted yet
    RUNNING = "running"  # permitted; its body runs
    FINISHED = "finished"
    FAILED = "failed"  # its body raised, or the store did not record its start in time
    # The call was never permitted: the run fell first, or the call was denied or given up.
    SKIPPED = "skipped"
    # The call was permitted and then cut. Its effect is unknown.
    INTERRUPTED = "interrupted"
    # Control could not end the body. It may still run (a thread, say), but its effects are refused.
    ABANDONED = "abandoned"


class QuestionState(StrEnum):
    """Where a question stands; only an open one can be answered."""

    OPEN = "open"
    ANSWERED = "answered"
    # The question's own time ran out, which counts as no.
    EXPIRED = "expired"
    # The run fell, or its agent no longer waits for the answer.
    VOID = "void"


class ProcessState(StrEnum):
    """Where a process stands, as watchers are told."""

    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"  # the process could not be started


class BodyState(StrEnum):
    """What became of a body, or of the processes in a containment."""

    NONE = "none"  # never began
    RUNNING = "running"
    RETURNED = "returned"
    CUT = "cut"
    ABANDONED = "abandoned"
    KILLED = "killed"


class Drain(StrEnum):
    """Whether anything of a fallen run may still be running."""

    PENDING = "pending"
    OBSERVED = "observed"  # control saw everything end
    # Control waited as long as it may and did not see the end, or it stopped resuming a coroutine that would not end.
    # The receipt names the bodies and processes that control did not see end.
    UNCONFIRMED = "unconfirmed"
