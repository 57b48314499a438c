"""Interlock: agents that really stop.

Open a control with an agent, send it messages, stop it, and read the receipt. A name is imported when it is first used:
a program, a tool's worker and a host load only what they need.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.agent.message import Child, Hold, Message, Part
    from interlock.agent.notice import Notice, stopping
    from interlock.agent.order import (
        Finished,
        SpawnFailed,  # fmt: skip
    )
    from interlock.agent.process import Running
    from interlock.agent.run import Run
    from interlock.agent.tool import (
        ToolFailed,  # fmt: skip
        ToolResult,
        tool,
    )
    from interlock.app import asgi, open_control
    from interlock.core import events
    from interlock.core.answers import HostsInfo, ProcessInfo, QuestionInfo, RunInfo, Sent, SessionInfo, Wake
    from interlock.core.errors import (  # fmt: skip
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
    from interlock.processes.base import Confinement, Grade
    from interlock.runtime.control import Control
    from interlock.runtime.settings import Settings
    from interlock.stores.memory import MemoryStore
    from interlock.stores.sqlite import SqliteStore

__all__ = [
    # open and drive
    "Confinement", "Control", "Grade", "MemoryStore", "SqliteStore", "Settings", "asgi", "is_stop", "open_control",
    # inside the agent
    "Child", "Finished", "Hold", "Message", "Notice", "Part", "Run", "Running", "Stale", "ToolResult", "stopping",
    "tool",
    # in a pipeline of your own
    "Generations",
    # what you are told
    "Drain", "Effect", "Ending", "Entry", "Event", "EventKind", "HostsInfo", "LimitOf", "Moment", "Outcome",
    "ProcessInfo", "Projection", "QuestionInfo", "QuestionState", "Receipt", "RunInfo", "Sent", "SessionInfo",
    "Strategy", "ToolState", "Wake", "events", "project",
    # what can be refused
    "BadInput", "Denied", "InterlockError", "KeyConflict", "QuestionClosed", "QueueFull", "Refused", "Rejected",
    "SpawnFailed", "ToolFailed", "Unavailable", "Unknown",
]  # fmt: skip

# Where each name of __all__ lives.
_HOMES = {
    "agent.message": "Child Hold Message Part",
    "agent.notice": "Notice stopping",
    "agent.order": "Finished SpawnFailed",
    "agent.process": "Running",
    "agent.run": "Run",
    "agent.tool": "ToolFailed ToolResult tool",
    "app": "asgi open_control",
    "core.answers": "HostsInfo ProcessInfo QuestionInfo RunInfo Sent SessionInfo Wake",
    "core": "events",
    "core.errors": "BadInput Denied InterlockError KeyConflict QuestionClosed QueueFull Refused Rejected"
    " Stale Unavailable Unknown",
    "core.events": "Entry Event",
    "core.fence": "Generations",
    "core.names": "Drain Effect Ending EventKind LimitOf QuestionState Strategy ToolState",
    "core.outcome": "Outcome",
    "core.projection": "Projection project",
    "core.receipt": "Receipt",
    "core.stopwords": "is_stop",
    "core.timeline": "Moment",
    "processes.base": "Confinement Grade",
    "runtime.control": "Control",
    "runtime.settings": "Settings",
    "stores.memory": "MemoryStore",
    "stores.sqlite": "SqliteStore",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(__import__(f"interlock.{_HOME[name]}", fromlist=[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
