"""A run while it is alive: what it is, what it has said, and what of it must go when it falls.

Everything here is plain state; what may be done with it is decided elsewhere (`fall`, `gate`, `outlet`, `inbox`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from interlock.core.decision import KeyRow, QuestionRow, RunRow
from interlock.core.errors import InterlockError
from interlock.core.events import Delegated, Json
from interlock.core.fence import Fence
from interlock.core.lifecycle import Move, State, advance, may
from interlock.core.names import (
    Announce,
    BodyState,
    CallId,
    Ending,
    KnownPhase,
    Principal,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
)
from interlock.core.outcome import Limit, Outcome
from interlock.core.receipt import Receipt

if TYPE_CHECKING:
    from interlock.processes.base import Containment, Grade, Worker
    from interlock.processes.notice import Notice
    from interlock.runtime.holds import Place
    from interlock.runtime.registry import Session
    from interlock.runtime.spawning import Running
    from interlock.stores.base import Ticket

RUN_SESSION = "run:"  # what the name of a run's own session begins with: nobody else can send to it


class Body(Protocol):
    """Code of a run that is being executed: the agent's own, or a tool's. None of these methods waits."""

    name: str
    grace: float  # seconds it asked for to clean up, beyond what everyone has
    state: BodyState
    done: asyncio.Event

    def cut(self) -> None:
        """Ask it to end: one cancel, so that it may clean up."""
        ...

    def drop(self) -> None:
        """Never resume it."""
        ...

    def abandon(self) -> None:
        """Give it up: it may still run, fenced, and the receipt names it."""
        ...


class Falling(Protocol):
    """What a run knows of the fall that took it."""

    id: ReceiptId
    by: Principal | None
    runs: list[LiveRun]
    resets: list[Session]
    ended: asyncio.Event
    drained: asyncio.Event
    durable: bool

    @property
    def containments(self) -> list[Containment]:
        """What holds processes that fell."""
        ...

    @property
    def sessions(self) -> list[Session]:
        """The sessions that the fall touches."""
        ...

    def told(self, run: LiveRun) -> Outcome:
        """Return a run's outcome with the facts beside it as they are now."""
        ...

    def receipt(
        self, *, aborted: bool = False, already: Ending | None = None, runs: Sequence[LiveRun] | None = None
    ) -> Receipt:
        """Return the receipt as it stands now, of these runs only if they are given."""
        ...


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender of a message is told. `generation` is None while the message waits for the seat."""

    run_id: RunId
    session: SessionId
    owner: Principal | None = None  # whose session it is; None where a used key is answered from the store alone
    generation: int | None = None
    superseded: RunId | None = None
    state: State = State.SEATED
    stopped_by: Principal | None = None  # who stopped it before it was taken
    born_stopped: bool = False  # and that before it came: its key was stopped, or a stop stood behind it in its channel


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """What became of delegated work. `outcome` is `pending` for a detached child, which goes on by itself."""

    run_id: RunId
    outcome: Outcome
    text: str = ""


class ToolCall:
    """A tool call of a live run."""

    __slots__ = ("arguments", "asks", "id", "name", "question", "state")

    def __init__(self, call_id: CallId, name: str, arguments: Json, *, asks: bool = False) -> None:
        self.id = call_id
        self.name = name
        self.arguments = arguments
        self.asks = asks  # the tool itself wants to be allowed first
        self.question: Question | None = None
        self.state = ToolState.PENDING


class Reply:
    """What a run has said: closed blocks, and the deltas of the one still open."""

    __slots__ = ("_open", "blocks", "bytes")

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self._open: list[str] | None = None
        self.bytes = 0

    @property
    def open(self) -> str:
        """The text of the block that is not closed yet."""
        return "" if self._open is None else "".join(self._open)

    @property
    def text(self) -> str:
        """Everything said so far."""
        unfinished = self.open
        return "\n\n".join([*self.blocks, unfinished] if unfinished else self.blocks)

    def add(self, delta: str) -> None:
        """Add to the open block."""
        if self._open is None:
            self._open = []
        self._open.append(delta)
        self.bytes += len(delta)

    def close(self, text: str) -> None:
        """Put a whole block in the place of the open one."""
        self.bytes += len(text) - sum(len(delta) for delta in self._open or ())
        self._open = None
        self.blocks.append(text)


class Order(msgspec.Struct, frozen=True):
    """A message's place in its own channel, by the channel's own number or time; comparable only within it."""

    channel: str
    at: int | float


class Question:
    """A question of a live run."""

    __slots__ = (
        "answer", "answering", "arguments", "asked_at", "by", "choices", "done", "expires_at", "id", "run", "state",
        "text", "timer", "tool",
    )  # fmt: skip

    def __init__(
        self,
        question_id: QuestionId,
        run: LiveRun,
        text: str,
        choices: tuple[str, ...] | None,
        *,
        tool: str | None = None,
        arguments: Json | None = None,
    ) -> None:
        self.id = question_id
        self.run = run
        self.text = text
        self.choices = choices
        self.tool = tool
        self.arguments = arguments
        self.state = QuestionState.OPEN
        self.answer: bool | str | None = None
        self.by: Principal | None = None
        self.answering: asyncio.Event | None = None  # an answer is being committed; set when it is decided
        self.timer: asyncio.TimerHandle | None = None
        self.asked_at: float | None = None  # as people read time, and so is the next
        self.expires_at: float | None = None
        self.done = asyncio.Event()

    def close(self, state: QuestionState) -> None:
        """Leave the open state, for good."""
        assert self.state is QuestionState.OPEN, f"question {self.id} was closed twice"
        self.state = state
        if self.timer is not None:
            self.timer.cancel()
        self.done.set()

    def row(self) -> QuestionRow:
        """What the store keeps of it."""
        return QuestionRow(
            id=self.id,
            run_id=self.run.id,
            session=self.run.session.id,
            principal=self.run.principal,
            text=self.text,
            choices=self.choices,
            state=self.state,
            answer=self.answer,
            by=self.by,
        )


class Collection:
    """Messages that wait to be one turn: the first one's run, and what was added to it."""

    __slots__ = ("merging", "parts", "ripe", "timer", "until")

    def __init__(self, until: float) -> None:
        self.parts: list[LiveRun] = []
        self.merging: LiveRun | None = None  # is being committed; the turn must not begin without it
        self.ripe = False  # it has been quiet for long enough
        self.timer: asyncio.TimerHandle | None = None
        self.until = until

    @property
    def ready(self) -> bool:
        """True if the turn may begin."""
        return self.ripe and self.merging is None


class Kept:
    """The processes of a live run, and what holds them."""

    __slots__ = ("behind", "containments", "grade", "named", "running", "shared", "workers")

    def __init__(self) -> None:
        self.containments: list[Containment] = []  # all that fall with the run
        self.grade: Grade | None = None  # how they were held, also those that are over
        self.shared: Containment | None = None  # where a process goes that has none of its own
        self.running: dict[Running, None] = {}
        self.named: dict[str, Running] = {}
        self.workers: list[Worker] = []  # idle ones
        self.behind: list[Containment] | None = None  # of earlier runs, waited for before the first


class LiveRun:
    """A run that is not yet both durable and drained."""

    __slots__ = (
        "absorbed", "acked", "admission", "admitted_at", "agent", "alias", "alias_ticket", "announce", "announce_to",
        "announced", "announces", "asking", "begins", "begun", "blamed", "bodies", "called", "calls", "calls_made",
        "child_falls", "children", "collection", "deadline", "descendants", "detached", "digest", "due", "ended",
        "fall", "fence", "finished", "founds", "generation", "hear_out", "heard", "holds", "home", "id", "instructions",
        "joining", "kept", "key", "kind", "limits", "method", "notice", "order", "outcome", "parent", "parent_id",
        "passed", "phase", "principal", "problem", "provider_started", "questions", "refusal_budget", "reply",
        "resting", "returned", "said", "sealed", "sent", "session", "started_at", "state", "steers", "strategy",
        "superseded", "text", "timers", "took", "touched", "turn", "withheld", "within",
    )  # fmt: skip

    def __init__(
        self,
        run_id: RunId,
        session: Session,
        *,
        principal: Principal,
        text: str,
        kind: RunKind,
        method: str,
        key: str | None,
        digest: str,
        strategy: Strategy | None,
        deadline: float | None,
        admitted_at: float,
        order: Order | None = None,
        agent: str | None = None,
        instructions: str | None = None,
        parent: LiveRun | None = None,
        detached: bool = False,
        announce: Announce | None = None,
        begins: bool = True,
    ) -> None:
        self.id = run_id
        self.session = session
        self.begins = begins  # it may found its session, if nobody has
        self.principal = principal
        self.text = text
        self.kind = kind
        self.method = method
        self.key = key
        self.digest = digest
        self.strategy = strategy
        self.deadline = deadline  # as its caller has it; None: nothing was said, 0: none
        self.admitted_at = admitted_at
        self.order = order
        self.agent = agent  # None: the one that control serves
        self.instructions = instructions
        self.parent = parent
        self.parent_id = None if parent is None else parent.id  # known also where the parent is long gone
        self.detached = detached
        self.announce = announce  # of a detached child: how its ending comes to its home
        self.announce_to: str | None = None  # and which agent answers it there; None: the one that control serves
        self.announces: Child | None = None  # of such a report: what it tells
        self.due = True  # it may take the seat when its turn comes
        self.home: Session = session if parent is None else parent.home  # at the top of its tree
        self.children: dict[RunId, LiveRun] | None = None  # alive ones, detached or not
        self.announced = False  # of a child: its parent was told how it ended
        self.child_falls: list[Falling] | None = None  # of children: told before its own, drained with it
        self.descendants = 0  # alive below this run, detached ones not counted
        self.questions: dict[QuestionId, Question] | None = None
        self.asking = 0  # those that it waits for now
        self.resting = 0  # waits of its own for a child or a hold: silence that is not its own
        self.holds: dict[str, Place] | None = None  # in whose lines it stands, or is first
        self.steers: LiveRun | None = None  # the run that may take this message in
        self.collection: Collection | None = None
        self.joining: LiveRun | None = None  # one that it is being added to
        self.alias: LiveRun | None = None  # the run that took it in
        self.alias_ticket: Ticket | None = None  # whether the store knows that
        self.absorbed: list[LiveRun] | None = None  # messages this run took in
        self.fence = Fence(run_id)
        self.state = State.ARRIVING
        self.generation: int | None = None
        self.founds = False  # its session is its sender's by this message, and nobody's if it is withdrawn
        self.superseded: RunId | None = None
        self.took: Falling | None = None  # what it took over, in the Decision that admits it
        self.sent: Sent | None = None
        self.admission: Ticket | None = None  # whether the store has it
        self.withheld = False  # it ended before its session was anybody's: whoever founds that must not read it
        self.problem: InterlockError | None = None  # why the message was not taken
        self.said = False  # its `message` event is out
        self.sealed = False  # its terminal event is out
        self.passed = 0  # takeovers of others that went ahead of it in the queue
        self.phase: str | None = None
        self.blamed: tuple[str, BaseException] | None = None  # the phase an error came from
        self.provider_started = False
        self.limits: tuple[Limit, ...] = ()
        self.timers: list[asyncio.TimerHandle] | None = None
        self.touched = 0.0
        self.heard = False  # a verb of its agent has come
        self.within: dict[object, str] | None = None  # what it is in, innermost last: phases, tools, waits
        self.started_at: float | None = None
        self.reply = Reply()
        self.calls: dict[CallId, ToolCall] | None = None  # open ones
        self.finished: deque[ToolCall] | None = None
        self.calls_made = 0
        self.begun: dict[str, None] | None = None  # names of tools whose bodies began, those of ended children too
        self.bodies: list[Body] | None = None
        self.hear_out: Callable[[], None] | None = None  # takes what an agent elsewhere has said and nobody has read
        self.returned: float | None = None  # when an agent elsewhere returned; None: it has not, or it is here
        self.kept: Kept | None = None
        self.notice: Notice | None = None  # what its code asks here whether it is over; a host has its own
        self.refusal_budget = 0
        self.outcome: Outcome | None = None  # decided at t0, told at t1
        self.fall: Falling | None = None
        self.turn: asyncio.Event | None = None  # set when it heads its session's line
        self.acked = asyncio.Event()  # the sender may be told
        self.called = asyncio.Event()  # it has the seat, or has ended
        self.ended = asyncio.Event()  # the outcome is public

    @property
    def fallen(self) -> bool:
        """True once the ending is decided: the fence's one mark."""
        return self.fence.cause is not None

    @property
    def current(self) -> bool:
        """True until it falls, also while it waits; what was withdrawn or answered by another run is not current."""
        return self.fence.cause is None and may(self.state, Move.END)

    def standing(self, limit: Limit) -> Limit:
        """Return a limit as it stands now: the one on silence moves with every sign of life, and rests at times."""
        if limit.phase != KnownPhase.IDLE:
            return limit
        rests = self.asking or self.resting
        return Limit(math.inf if rests else self.touched + limit.seconds, limit.seconds, KnownPhase.IDLE)

    @property
    def doing(self) -> str:
        """The phase a limit would be met in: the innermost that is known, the agent's own names among them."""
        if self.state in (State.ARRIVING, State.QUEUED):
            return KnownPhase.QUEUE
        if self.within:
            return next(reversed(self.within.values()))
        return KnownPhase.AGENT if self.heard else KnownPhase.START

    def enter(self, what: object, phase: str) -> None:
        """Be in something, inside whatever it is in already."""
        if self.within is None:
            self.within = {}
        self.within[what] = phase

    def leave(self, what: object) -> None:
        """Be in it no longer; what was entered later may go on."""
        if self.within is not None:
            self.within.pop(what, None)

    @property
    def itself(self) -> LiveRun:
        """This run, or the one that took it in."""
        run = self
        while run.alias is not None:
            run = run.alias
        return run

    @property
    def body_state(self) -> BodyState:
        """What became of the agent's own code, the first of the run's bodies."""
        return self.bodies[0].state if self.bodies else BodyState.NONE

    @property
    def host(self) -> str:
        """What becomes of the host that the agent's code runs in, if it has one: settling, reused or killed."""
        return getattr(self.bodies[0], "fate", "none") if self.bodies else "none"

    @property
    def kept_with_host(self) -> tuple[str, ...]:
        """Processes of earlier turns that stay with that host."""
        return getattr(self.bodies[0], "kept", ()) if self.bodies else ()

    def move(self, move: Move) -> None:
        """Move in the lifecycle table, or raise."""
        self.state = advance(self.state, move)

    def row(self) -> RunRow:
        """What the store keeps of this run."""
        return RunRow(
            id=self.id,
            session=self.session.id,
            principal=self.principal,
            kind=self.kind,
            text=self.text,
            admitted_at=self.admitted_at,
            key=self.key,
            deadline=self.deadline,
            parent=self.parent_id,
            home=None if self.parent_id is None else self.home.id,
            agent=self.agent,
            detached=self.detached,
            alias=None if self.alias is None else self.alias.id,
            generation=self.generation,
            started=self.started_at is not None,
            outcome=self.outcome,
            cut=self.reply.open if self.fallen else "",
            told=self.sealed,
            instructions=self.instructions,
            announce=self.announce,
        )

    def key_row(self) -> KeyRow | None:
        """What the store keeps of this run's key."""
        if self.key is None:
            return None
        return KeyRow(
            principal=self.principal,
            key=self.key,
            method=self.method,
            digest=self.digest,
            run_id=self.itself.id,
            generation=self.generation,
            superseded=self.superseded,
        )


def own_session(run_id: RunId) -> SessionId:
    """Return the name of the session that a run has for itself."""
    return SessionId(f"{RUN_SESSION}{run_id}")


def delegated(run: LiveRun) -> Delegated:
    """What a parent's watchers are told of a child as it stands."""
    return Delegated(
        child=run.id,
        session=run.session.id,
        agent=run.agent or "",
        detached=run.detached,
        outcome=run.outcome,
    )
