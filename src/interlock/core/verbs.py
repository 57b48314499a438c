"""The verbs of a caller, as values: what a client asks, and control carries out.

1. A verb is spelled once, here: its fields, the type of its answer, the scopes of which its caller needs one, whether
   it stops something, and whether it may be asked twice. The gateway reads it off the wire as it is.
2. A field that a verb does not name is an error, and no field may be of any type: values that nobody reads would be
   made all the same.
3. A caller over the wire writes a session's name; the gateway makes it the id that control knows (`SessionName`).
4. A new verb is a struct here, a method in client/caller.py, and a row in the tables of runtime/control.py.
"""

from typing import Annotated, Any, ClassVar, Generic, Literal, NewType, TypeVar

import msgspec
from msgspec import Struct, field

from interlock.core.answers import (
    Figures,
    ProcessInfo,
    QuestionInfo,
    Remaining,
    RunInfo,
    Sent,
    SessionInfo,
    Shared,
    Wake,
)
from interlock.core.events import Entry
from interlock.core.names import May, Strategy
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.scopes import Scope
from interlock.core.timeline import Moment

T = TypeVar("T")

SessionName = NewType("SessionName", str)
"""A session's name as its caller writes it, or its id."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exact in every JSON reader

LOOK = frozenset({Scope.READ, Scope.WRITE})
CHANGE = frozenset({Scope.WRITE})
ANSWER = frozenset({Scope.WRITE, Scope.APPROVE})
ADMIN = frozenset({Scope.ADMIN})


class Verb(Struct, Generic[T], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something asked of control, as a value; T is the type of its answer."""

    method: ClassVar[str] = ""
    """Its name on the wire; empty for a verb that only surfaces in the process of control ask."""
    scopes: ClassVar[frozenset[Scope]] = LOOK
    """A caller needs one of these."""
    stops: ClassVar[bool] = False
    """A stop is never refused, and counts in the step that reads it."""
    again: ClassVar[bool] = True
    """A client that lost its connection may ask a second time: that changes nothing more."""

    @classmethod
    def answer_type(cls) -> Any:
        """Return the type of the answer."""
        return cls.__orig_bases__[0].__args__[0]  # type: ignore[attr-defined]


class Send(Verb[Sent], frozen=True, kw_only=True):
    """Send a message; the answer comes once the store has it. Without a session the run has one of its own."""

    method = "interlock.send"
    scopes = CHANGE

    session: SessionName | None
    text: str
    key: str | None = None
    strategy: Strategy | None = None
    deadline: float | None = None
    # The channel, and the channel's own number or time.
    order: tuple[str, float] | None = None
    kind: Literal["chat", "agent"] = "chat"
    agent: str | None = None
    instructions: str | None = None


class Stop(Verb[Receipt], frozen=True, kw_only=True):
    """Stop a session's runs, one run, or the message sent under a key, also before that message arrives."""

    method = "interlock.stop"
    scopes = CHANGE
    stops = True

    session: SessionName | None = None
    run: str | None = None
    # The key under which a message was sent.
    message: str | None = None
    # The stop's own key: a second delivery gets the same receipt and ends nothing newer.
    key: str | None = None
    # The stop's own place in its channel: messages of the session that were written after it are spared.
    order: tuple[str, float] | None = None
    # A person typed the stop as a message to the session.
    typed: bool = False
    # Whether the session's waiting messages and detached work end too; None: with a session they do, with a run they
    # do not.
    queue: bool | None = None


class Reset(Verb[Receipt], frozen=True, kw_only=True):
    """End everything of a session, detached work too, and begin a new transcript."""

    method = "interlock.reset"
    scopes = CHANGE
    stops = True

    session: SessionName
    # The reset's own key.
    key: str | None = None


class StopAll(Verb[list[Receipt]], frozen=True, kw_only=True):
    """Stop everything; with `of`, only the sessions of one principal, and what it started in others'."""

    method = "interlock.stopall"
    scopes = ADMIN
    stops = True
    again = False

    of: str | None = None


class Left(Verb[Remaining], frozen=True, kw_only=True):
    """Tell what of a session goes on and the caller may stop."""

    session: SessionName


class Answer(Verb[QuestionInfo], frozen=True, kw_only=True):
    """Answer a question with True or False, or one of its choices."""

    method = "interlock.answer"
    scopes = ANSWER

    question: str
    answer: bool | str


class Questions(Verb[list[QuestionInfo]], frozen=True, kw_only=True):
    """List the open questions that the caller may answer; with a session, also those of the children below it."""

    method = "interlock.questions"
    scopes = ANSWER

    session: SessionName | None = None


class Wait(Verb[Outcome], frozen=True, kw_only=True):
    """Wait until a run has ended; `pending` if the timeout passed first."""

    method = "interlock.wait"

    run: str
    timeout: float | None = None
    drained: bool = False


class GetReceipt(Verb[Receipt], frozen=True, kw_only=True):
    """Return a receipt as it stands now, by its own id, or a run's id or key."""

    method = "interlock.receipt"

    of: str


class Timeline(Verb[list[Moment]], frozen=True, kw_only=True):
    """Return what happened in a run, in order, as a few moments that a surface can draw."""

    method = "interlock.timeline"

    run: str


class History(Verb[list[Entry]], frozen=True, kw_only=True):
    """Return a session's conversation."""

    method = "interlock.history"

    session: SessionName


class Runs(Verb[list[RunInfo]], frozen=True, kw_only=True):
    """List live runs; with a session its ended ones too, and with `tree` their children."""

    method = "interlock.runs"

    session: SessionName | None = None
    tree: bool = False
    # Without a session: how many of the latest stored runs are added.
    latest: Whole = 0


class Find(Verb[RunInfo | None], frozen=True, kw_only=True):
    """Find a run by its id, or by a key of the caller's."""

    method = "interlock.find"

    name: str


class Sessions(Verb[list[SessionInfo]], frozen=True, kw_only=True):
    """List the sessions that the caller may see, the latest first."""

    method = "interlock.sessions"

    limit: Whole = 100


class Describe(Verb[SessionInfo], frozen=True, kw_only=True):
    """Return one session as a list shows it."""

    method = "interlock.session"

    session: SessionName


class Processes(Verb[list[ProcessInfo]], frozen=True, kw_only=True):
    """List live processes of runs that the caller may see, and detached ones that the caller may stop."""

    method = "interlock.processes"

    session: SessionName | None = None


class SetStrategy(Verb[None], frozen=True, kw_only=True):
    """Set what messages do while a session is busy; None is the server's setting."""

    method = "interlock.strategy"
    scopes = CHANGE

    session: SessionName
    strategy: Strategy | None


class Share(Verb[Shared], frozen=True, kw_only=True):
    """Let another principal see a session and write in it, or only see it."""

    method = "interlock.share"
    scopes = CHANGE

    session: SessionName
    with_: str = field(name="with")
    may: May = May.WRITE


class Unshare(Verb[Shared], frozen=True, kw_only=True):
    """Take a share away."""

    method = "interlock.unshare"
    scopes = CHANGE

    session: SessionName
    with_: str = field(name="with")


class Schedule(Verb[Wake], frozen=True, kw_only=True):
    """Schedule a message, once or repeatedly; times are seconds."""

    method = "interlock.wake"
    scopes = CHANGE
    again = False

    session: SessionName
    text: str
    at: float | None = None
    every: float | None = None
    cron: str | None = None


class Unschedule(Verb[None], frozen=True, kw_only=True):
    """Remove a schedule; a run that it began goes on."""

    method = "interlock.unwake"
    scopes = CHANGE
    again = False

    wake: str


class Wakes(Verb[list[Wake]], frozen=True, kw_only=True):
    """List a session's schedules."""

    method = "interlock.wakes"

    session: SessionName


class Measure(Verb[Figures], frozen=True, kw_only=True):
    """Return control's own figures."""

    scopes = ADMIN


VERBS: tuple[type[Verb[Any]], ...] = (
    Send, Stop, Reset, StopAll, Left, Answer, Questions, Wait, GetReceipt, Timeline, History, Runs, Find, Sessions,
    Describe, Processes, SetStrategy, Share, Unshare, Schedule, Unschedule, Wakes, Measure,
)  # fmt: skip
