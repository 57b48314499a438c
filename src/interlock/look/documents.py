"""What is found in a store, as `--json` prints it: one document, with every field in it."""

import msgspec

from interlock.core.decision import QuestionRow, ToolRow
from interlock.core.lifecycle import State
from interlock.core.names import May, Principal, RunId, RunKind, SessionId, Strategy
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment
from interlock.stores.base import Pruned


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. `open` counts runs without an ending, `shares` says who else may write in it or read."""

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
    """A run in a list. `unsettled`: no server has the directory, and the next one has to see to this run."""

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
    """A process that a run started. `state` is `ended` if it went with its run, or with the server."""

    command: str
    state: str
    name: str | None
    pid: int | None
    status: int | None
    background: bool
    detached: bool


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock sessions --json` prints."""

    data: str
    in_use: bool
    sessions: tuple[SessionLine, ...]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock runs --json` prints. `more`: these are only the latest."""

    data: str
    in_use: bool
    runs: tuple[RunLine, ...]
    more: bool


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock show RUN --json` prints. `reply` is what was said so far."""

    data: str
    in_use: bool
    parked: bool
    run: RunLine
    reply: str
    tools: tuple[ToolRow, ...]
    questions: tuple[QuestionRow, ...]
    processes: tuple[ProcessLine, ...]
    receipt: Receipt | None
    timeline: tuple[Moment, ...]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock prune --json` prints."""

    data: str
    dry_run: bool
    older_than_seconds: float
    forgotten: Pruned
