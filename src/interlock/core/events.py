"""What a watcher is told, and the lines of the transcript that is made from it.

1. The log is the stored events of a session. When a run ends, its passing events (deltas, typing, progress) leave the
   log. The transcript is not stored: core/story.py computes it from the log, for `run.history`, `control.history` and
   every other reader. Events of the kinds `message`, `started`, `block`, `tool` and `ended` carry everything that the
   transcript needs.
2. A position is `epoch << 32 | n`: a number that rises when the session comes into memory, then a counter. Both belong
   to the session at the top of a tree. Positions rise within a session, also across restarts; there may be holes.
3. A run's `ended` event is its last. `receipt`, `gap` and `correction` belong to the session and may follow it.
4. A block holds the whole text of the deltas before it, so a log without deltas tells the same conversation. The block
   can be longer than its deltas: an agent may stream a part of its reply and then return the whole.
"""

from typing import ClassVar, NewType, Protocol

import msgspec

from interlock.core.names import (
    CallId,
    Ending,
    EventKind,
    Principal,
    ProcessState,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt


class Fallen(Protocol):
    """Why a run fell."""

    @property
    def early(self) -> bool:
        """True if the run was cut short: its deltas count no more."""
        ...


class Source(Protocol):
    """The run behind an event, as a listener sees it: its fence, or what another process said of that."""

    @property
    def run_id(self) -> RunId:
        """The run's id."""
        ...

    @property
    def cause(self) -> Fallen | None:
        """Why the run fell; None while it is current."""
        ...


Json = NewType("Json", str)
"""A plain value as JSON text: what crosses between agent and control."""


class _Data(msgspec.Struct, frozen=True, kw_only=True, tag=str.lower, gc=False):
    kind: ClassVar[EventKind]


class MessageData(_Data, frozen=True, tag="message"):
    """A message was accepted.

    `of` is the message's own run id, where another run absorbed it (steered or collected). `child` is the run whose
    ending this message announces. It is set only on announcements, which control writes.
    """

    kind: ClassVar[EventKind] = EventKind.MESSAGE
    text: str
    by: Principal
    of: RunId | None = None
    child: RunId | None = None


class Started(_Data, frozen=True, tag="started"):
    """The agent begins."""

    kind: ClassVar[EventKind] = EventKind.STARTED


class Delta(_Data, frozen=True, tag="delta"):
    """A piece of the reply."""

    kind: ClassVar[EventKind] = EventKind.DELTA
    text: str


class Block(_Data, frozen=True, tag="block"):
    """A whole part of the reply; it begins with the deltas before it and stands in their place."""

    kind: ClassVar[EventKind] = EventKind.BLOCK
    text: str


class Typing(_Data, frozen=True, tag="typing"):
    """The agent shows that it is about to say something, or no longer is."""

    kind: ClassVar[EventKind] = EventKind.TYPING
    on: bool


class Progress(_Data, frozen=True, tag="progress"):
    """How far long work has come."""

    kind: ClassVar[EventKind] = EventKind.PROGRESS
    text: str
    done: float | None = None
    total: float | None = None


class Phase(_Data, frozen=True, tag="phase"):
    """The run entered a phase; `name` is None where it left the outermost one."""

    kind: ClassVar[EventKind] = EventKind.PHASE
    name: str | None


class Tool(_Data, frozen=True, tag="tool"):
    """A tool call changed its state."""

    kind: ClassVar[EventKind] = EventKind.TOOL
    call_id: CallId
    name: str
    state: ToolState
    arguments: Json | None = None
    result: Json | None = None
    error: str | None = None


class ProcessData(_Data, frozen=True, tag="process"):
    """A process started, or exited by itself. A process that ends with its run is counted in the receipt instead."""

    kind: ClassVar[EventKind] = EventKind.PROCESS
    command: str
    state: ProcessState
    name: str | None = None
    pid: int | None = None
    status: int | None = None
    background: bool = False
    detached: bool = False
    beside: tuple[str, ...] = ()  # processes of an earlier run that were still there when this one started
    tail: str = ""  # of an exit: the end of the output


class QuestionData(_Data, frozen=True, tag="question"):
    """A question changed its state. A question that goes void with its run is named in the terminal event instead."""

    kind: ClassVar[EventKind] = EventKind.QUESTION
    question_id: QuestionId
    text: str
    state: QuestionState
    choices: tuple[str, ...] | None = None  # None: yes or no
    tool: str | None = None  # the tool that needs to be allowed
    arguments: Json | None = None
    answer: bool | str | None = None
    by: Principal | None = None


class ChildData(_Data, frozen=True, tag="child"):
    """A child run began (`outcome` is None), or ended."""

    kind: ClassVar[EventKind] = EventKind.CHILD
    child: RunId
    session: SessionId
    agent: str
    detached: bool = False
    outcome: Outcome | None = None


class ChildEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a child ended, where no `child` event tells it.

    The child fell with its parent, or its ending was not public yet when the parent fell.
    """

    child: RunId
    agent: str
    ending: Ending


class Ended(_Data, frozen=True, tag="ended"):
    """The run's terminal event. `cut` is the text that an ending other than `completed` left unfinished."""

    kind: ClassVar[EventKind] = EventKind.ENDED
    outcome: Outcome
    cut: str = ""
    tools: tuple[Tool, ...] = ()  # a result for every call that had none
    void: tuple[QuestionId, ...] = ()  # questions that were still open
    # The children whose endings no `child` event told. A detached child that goes on is not among them.
    children: tuple[ChildEnd, ...] = ()


class ReceiptData(_Data, frozen=True, tag="receipt"):
    """A receipt as it stands now."""

    kind: ClassVar[EventKind] = EventKind.RECEIPT
    receipt: Receipt


class Gap(_Data, frozen=True, tag="gap"):
    """Events after position `after` may be missing: the store forgot them, or a crash took them."""

    kind: ClassVar[EventKind] = EventKind.GAP
    after: int


class Correction(_Data, frozen=True, tag="correction"):
    """The ending published before was wrong; this outcome is the true one."""

    kind: ClassVar[EventKind] = EventKind.CORRECTION
    outcome: Outcome


Data = (
    MessageData
    | Started
    | Delta
    | Block
    | Typing
    | Progress
    | Phase
    | Tool
    | ProcessData
    | QuestionData
    | ChildData
    | Ended
    | ReceiptData
    | Gap
    | Correction
)


class Event(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One thing that happened in a session."""

    position: int
    # The time of day, for people to read. No decision depends on it.
    at: float = 0.0
    session: SessionId
    run_id: RunId | None
    generation: int | None
    data: Data

    @property
    def kind(self) -> EventKind:
        """What sort of event this is."""
        return self.data.kind

    def of(self, source: Source | None) -> "Event":
        """Return this event, with the run that it came from; the source is neither stored nor sent."""
        if source is not None:
            self.__dict__["source"] = source
        return self

    @property
    def current(self) -> bool:
        """True while the event's run has not fallen; it is read from the run's own mark, in the step that asks.

        An event of a run that is over, or that this process does not know, is not current; nor is a session's event.
        """
        source: Source | None = self.__dict__.get("source")
        return source is not None and source.cause is None


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of the transcript, ready for a model.

    Every call has a result. Every ending other than `completed` makes one entry that is marked `cut`. This entry holds
    the text that the ending left unfinished, which may be empty.
    """

    role: str  # user, assistant, call, result
    run_id: RunId
    text: str = ""
    by: Principal | None = None
    call_id: CallId | None = None
    tool: str | None = None
    arguments: Json | None = None
    state: ToolState | None = None
    cut: bool = False
    ending: Ending | None = None
    # The turn was rolled back: people see this entry, the model does not.
    hidden: bool = False
    child: RunId | None = None  # of an announcement: the child whose ending it tells
