"""The documents that `--json` prints, each with every field in it."""

from typing import Any, TypeVar

import msgspec

from interlock.core.decision import QuestionRow, ToolRow
from interlock.core.lifecycle import State
from interlock.core.names import May, Principal, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment

T = TypeVar("T", bound=msgspec.Struct)
LATEST = 20  # runs listed without --all


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. `open` counts its runs without an ending; `shares` says who else may write or read in it."""

    id: SessionId
    owner: Principal
    shares: dict[Principal, May]
    generation: int
    strategy: Strategy | None
    runs: int
    open: int
    latest_at: float | None
    crashes: int
    parked: bool


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. `unsettled`: no server has the directory, and the next start settles this run."""

    id: RunId
    session: SessionId
    principal: Principal
    kind: RunKind
    state: State
    unsettled: bool
    outcome: Outcome | None
    text: str
    admitted_at: float
    started: bool
    generation: int | None
    key: str | None
    deadline: float | None
    parent: RunId | None
    agent: str | None
    detached: bool
    alias: RunId | None
    depth: int


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process that a run started. `state` is `ended` if it was ended with its run or with the server."""

    command: str
    state: str
    name: str | None
    pid: int | None
    status: int | None
    background: bool
    detached: bool


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `interlock sessions --json`."""

    data: str
    in_use: bool
    sessions: tuple[SessionLine, ...]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `interlock runs --json`. `more`: there are older runs that it does not list."""

    data: str
    in_use: bool
    runs: tuple[RunLine, ...]
    more: bool


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `interlock show RUN --json`. `reply` is the run's text so far."""

    data: str
    in_use: bool
    parked: bool
    run: RunLine
    reply: str
    tools: tuple[ToolRow, ...] = ()
    questions: tuple[QuestionRow, ...] = ()
    processes: tuple[ProcessLine, ...] = ()
    receipt: Receipt | None
    timeline: tuple[Moment, ...]


def line_of(kind: type[T], source: object, **more: Any) -> T:
    """Return a line of a list from what a store or a gateway returned; `more` are fields that differ there."""
    names = [name for name in kind.__struct_fields__ if name not in more]
    return kind(**{name: getattr(source, name) for name in names}, **more)
