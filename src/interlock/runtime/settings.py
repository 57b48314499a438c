"""The bounds of a control, each with its unit in its name; read once, when the control opens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from interlock.core.names import Strategy

SERVED = ""  # in `agent_deadlines`: the agent that control serves
ARRIVALS = 10_000  # undecided messages per session
FALLS = 20_000  # falls that are not yet durable and drained
REPLY_BYTES = 4 * 1024 * 1024  # text per run
VALUE_BYTES = 8 * 1024 * 1024  # JSON of one tool call's arguments, or of its result
INPUT_BYTES = 8 * 1024 * 1024  # input per process
TOOLS_LISTED = 100  # tool calls in one receipt
REFUSALS = 100  # refused effects of a fallen body; after these it is not resumed
DEPTH = 8  # generations of children below a run
CHILDREN = 100  # live runs per tree, and detached children per session
QUESTIONS = 1_000  # per run
QUESTION_BYTES = 64 * 1024
OPEN_CALLS = 1_000  # tool calls without a result, per run; a fall closes them all in one step
PROGRESS_CHARACTERS = 4_096  # of a progress text or a phase; the rest is left out
HOLDS = 100  # holds that one run has or waits for
HOLD_WAITERS = 100_000  # runs that wait for one hold
COLLECTED = 100  # messages in one collected turn
COLLECT_TIMES = 10  # a collected turn waits at most this many quiet times
PROCESSES = 1_000  # live processes per run
COMMAND_CHARACTERS = 200  # of a command line, as watchers see it
CRASHES = 3  # crashes in a row with a run of one session going; then the session is parked
RECOVERED = 32  # sessions that recovery settles at a time
START_SECONDS = 5.0  # how long a start waits until the sessions that an earlier one left are settled
SHARES = 100  # per session
WAKES = 100  # schedules per session
WAKE_SECONDS = 1.0  # the shortest interval of a schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How long things may take and how many may wait."""

    commit_seconds: float = 0.5
    grace_seconds: float = 2.0
    drain_seconds: float = 5.0
    retry_seconds: float = 0.5
    queue: int = 100
    collect_seconds: float = 0.5  # quiet time before collected messages become a turn
    ask_seconds: float = 1_800.0  # timeout of a question that names none
    strategy: Strategy = Strategy.INTERRUPT
    deadline: float | None = None  # for messages that bring none
    child_deadline: float | None = None  # for every child, whatever its caller asks
    agent_deadlines: Mapping[str, float] = field(default_factory=dict)  # for every run of an agent, by its name
    idle_limit: float | None = None
    queue_limit: float | None = None
