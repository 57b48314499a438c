"""Interlock: agents that really stop.

Open a control with an agent, send it messages, stop it, and read the receipt.
"""

from interlock.app import asgi, open_control
from interlock.core import events
from interlock.core.errors import (
    BadInput,
    Denied,
    InterlockError,
    KeyConflict,
    QuestionClosed,
    QueueFull,
    Refused,
    Rejected,
    Stale,
    Unavailable,
    Unknown,
)
from interlock.core.events import Entry, Event
from interlock.core.fence import Generations
from interlock.core.names import Drain, Effect, Ending, EventKind, LimitOf, QuestionState, Strategy, ToolState
from interlock.core.outcome import Outcome
from interlock.core.projection import Projection, project
from interlock.core.receipt import Receipt
from interlock.core.stopwords import is_stop
from interlock.core.timeline import Moment
from interlock.processes.base import Confinement, Grade, SpawnFailed
from interlock.processes.notice import Notice, stopping
from interlock.processes.workers import ToolFailed
from interlock.runtime.approvals import QuestionInfo
from interlock.runtime.control import Control
from interlock.runtime.driver import HostsInfo
from interlock.runtime.holds import Hold
from interlock.runtime.listing import RunInfo
from interlock.runtime.live import Child, Sent
from interlock.runtime.run import Message, Part, Run
from interlock.runtime.settings import Settings
from interlock.runtime.spawning import Finished, ProcessInfo, Running
from interlock.runtime.tool import ToolResult, tool
from interlock.runtime.wakes import Wake
from interlock.stores.base import SessionInfo
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SqliteStore

__all__ = [
    # open and drive
    "Confinement",
    "Control",
    "Grade",
    "MemoryStore",
    "SqliteStore",
    "Settings",
    "asgi",
    "is_stop",
    "open_control",
    # inside the agent
    "Child",
    "Finished",
    "Hold",
    "Message",
    "Notice",
    "Part",
    "Run",
    "Running",
    "Stale",
    "ToolResult",
    "stopping",
    "tool",
    # in a pipeline of your own
    "Generations",
    # what you are told
    "Drain",
    "Effect",
    "Ending",
    "Entry",
    "Event",
    "EventKind",
    "HostsInfo",
    "LimitOf",
    "Moment",
    "Outcome",
    "ProcessInfo",
    "Projection",
    "QuestionInfo",
    "QuestionState",
    "Receipt",
    "RunInfo",
    "Sent",
    "SessionInfo",
    "Strategy",
    "ToolState",
    "Wake",
    "events",
    "project",
    # what can be refused
    "BadInput",
    "Denied",
    "InterlockError",
    "KeyConflict",
    "QuestionClosed",
    "QueueFull",
    "Refused",
    "Rejected",
    "SpawnFailed",
    "ToolFailed",
    "Unavailable",
    "Unknown",
]
