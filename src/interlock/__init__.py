"""Interlock: agents that really stop.

Open a control with an agent, send it messages, stop it, and read the receipt.
"""

from interlock.app import open_control
from interlock.core import events
from interlock.core.errors import (
    BadInput,
    InterlockError,
    KeyConflict,
    NotYet,
    QueueFull,
    Refused,
    Rejected,
    Stale,
    Unavailable,
    Unknown,
)
from interlock.core.events import Entry, Event
from interlock.core.names import Drain, Effect, Ending, EventKind, Strategy, ToolState
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.stopwords import is_stop
from interlock.runtime.control import Control, RunInfo
from interlock.runtime.registry import Sent
from interlock.runtime.run import Message, Run
from interlock.runtime.settings import Settings
from interlock.runtime.tool import ToolResult, tool
from interlock.stores.memory import MemoryStore

__all__ = [
    # open and drive
    "Control",
    "MemoryStore",
    "Settings",
    "is_stop",
    "open_control",
    # inside the agent
    "Message",
    "Run",
    "Stale",
    "ToolResult",
    "tool",
    # what you are told
    "Drain",
    "Effect",
    "Ending",
    "Entry",
    "Event",
    "EventKind",
    "Outcome",
    "Receipt",
    "RunInfo",
    "Sent",
    "Strategy",
    "ToolState",
    "events",
    # what can be refused
    "BadInput",
    "InterlockError",
    "KeyConflict",
    "NotYet",
    "QueueFull",
    "Refused",
    "Rejected",
    "Unavailable",
    "Unknown",
]
