"""The bounds of a control, each with its unit in its name; read once, when it opens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from interlock.core.names import Strategy

SERVED = ""  # stands for the name of the agent that control serves
ARRIVALS = 10_000  # messages of one session that may stand undecided
FALLS = 20_000  # endings that may be told and not yet durable, or not drained
REPLY_BYTES = 4 * 1024 * 1024  # text one run may say
MESSAGE_BYTES = 1024 * 1024  # text one message may hold
INSTRUCTION_BYTES = 256 * 1024  # a message may bring for its agent
VALUE_BYTES = 8 * 1024 * 1024  # JSON of one tool call's arguments, or of its result
INPUT_BYTES = 8 * 1024 * 1024  # a process is given to read
TOOLS_LISTED = 100  # tool calls a receipt names
REFUSALS = 100  # effects a fallen body may try before it is not resumed any more
DEPTH = 8  # generations of children below a run
CHILDREN = 100  # runs alive in one tree, or detached in one session
QUESTIONS = 1_000  # a run may ask
QUESTION_BYTES = 64 * 1024
OPEN_CALLS = 1_000  # tool calls of one run that have no result yet: a fall gives each of them one, in one step
PROGRESS_CHARACTERS = 4_096  # of a text that tells how far work has come, or of a phase; the rest is left out
HOLDS = 100  # names one run may hold or wait for
HOLD_WAITERS = 100_000  # runs that may wait for one name
COLLECTED = 100  # messages that may become one turn
COLLECT_TIMES = 10  # a collected turn waits at most so many times its quiet time
PROCESSES = 1_000  # one run may have at once
COMMAND_CHARACTERS = 200  # of a command that watchers are shown
CRASHES = 3  # in a row, with a run of one session going, and the session is parked
RECOVERED = 256  # sessions that recovery settles at a time
SHARES = 100  # people one session may be shared with
WAKES = 100  # schedules of one session
WAKE_SECONDS = 1.0  # the shortest interval
WATCH_EVENTS = 1_024  # events held for one watcher before it reads from the store instead


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How long things may take and how many may wait."""

    commit_seconds: float = 0.5
    grace_seconds: float = 2.0
    drain_seconds: float = 5.0
    retry_seconds: float = 0.5
    queue: int = 100
    collect_seconds: float = 0.5  # of quiet before collected messages become a turn
    ask_seconds: float = 1_800.0  # a question is open so long unless it says otherwise
    strategy: Strategy = Strategy.INTERRUPT
    deadline: float | None = None  # of a message that says nothing of its own
    child_deadline: float | None = None  # of every child, whatever its caller says
    agent_deadlines: Mapping[str, float] = field(default_factory=dict)  # of every run of an agent, by its name
    idle_limit: float | None = None
    queue_limit: float | None = None
