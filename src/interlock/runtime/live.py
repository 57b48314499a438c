"""A run while it is alive: its state, its text, and everything that must end when it falls.

1. Everything here is plain state of one loop, without a lock. `fall`, `gate`, `outlet` and `inbox` decide what changes.
2. `LiveRun.fence` is the one mark that says whether a run has fallen. Only `Fall.take` sets it; every effect reads it.
   No other field of a run may decide about an effect.
3. Most lists are None until they are needed: a server holds many runs that never ask, spawn or delegate.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from interlock.core.answers import Sent
from interlock.core.decision import KeyRow, QuestionRow, RunRow
from interlock.core.errors import InterlockError
from interlock.core.events import ChildData, Json
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
from interlock.core.values import Order
from interlock.runtime.flag import Flag, Happening

if TYPE_CHECKING:
    from interlock.processes.base import Containment, Grade, Worker
    from interlock.processes.notice import Notice
    from interlock.runtime.holds import Place
    from interlock.runtime.registry import Session
    from interlock.runtime.spawning import Running
    from interlock.stores.base import Ticket

# The id of a run's own session begins with this. `send` refuses such ids, so only that run is in the session.
RUN_SESSION = "run:"


class Body(Protocol):
    """Code of a run that is being executed: the agent's own, or a tool's. None of these methods waits."""

    name: str
    # Seconds that the tool asked for to clean up.
    grace: float
    state: BodyState

    @property
    def done(self) -> Happening:
        """Set when the code is over."""
        ...

    def cut(self) -> None:
        """Ask the code to end: one cancel, so that it may clean up."""
        ...

    def drop(self) -> None:
        """Never resume the code."""
        ...

    def abandon(self) -> None:
        """Stop waiting for the code. It may still run, fenced, and the receipt names it."""
        ...


class Falling(Protocol):
    """The fall of a run, as the run knows it."""

    id: ReceiptId
    by: Principal | None
    runs: list[LiveRun]
    resets: list[Session]
    ended: Flag
    drained: Flag
    durable: bool

    @property
    def containments(self) -> list[Containment]:
        """The containments of the processes that fell."""
        ...

    @property
    def sessions(self) -> list[Session]:
        """The sessions that the fall touches."""
        ...

    def told(self, run: LiveRun) -> Outcome:
        """Return a run's outcome, with `durable` and `drained` as they are now."""
        ...

    def record(self) -> Receipt:
        """Build the receipt from the facts as they are now."""
        ...

    def receipt(
        self, *, aborted: bool = False, already: Ending | None = None, runs: Sequence[LiveRun] | None = None
    ) -> Receipt:
        """Return the receipt as it was last recorded; with `runs`, of these runs only."""
        ...


class Child(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of delegated work. For a detached child `outcome` is `pending`: it goes on by itself."""

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
        # The tool is marked with approval="ask".
        self.asks = asks
        self.question: Question | None = None
        self.state = ToolState.PENDING


class Reply:
    """The text of a run so far: closed blocks, and the deltas of the open one."""

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
        # Present while an answer is being committed; set when the store has answered.
        self.answering: Flag | None = None
        self.timer: asyncio.TimerHandle | None = None
        # Both on the wall clock.
        self.asked_at: float | None = None
        self.expires_at: float | None = None
        self.done = Flag()

    def close(self, state: QuestionState) -> None:
        """Close the question, once, and wake the run that waits for it."""
        assert self.state is QuestionState.OPEN, f"question {self.id} was closed twice"
        self.state = state
        if self.timer is not None:
            self.timer.cancel()
        self.done.set()

    def row(self) -> QuestionRow:
        """Return the question's row as it stands now."""
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
    """Messages that wait to become one turn, collected in the run of the first one.

    They are committed one after another, and the turn does not begin while one is being committed. Otherwise a sender
    could be told that the message is part of the turn while the turn began without it.
    """

    __slots__ = ("merging", "parts", "ripe", "timer", "until")

    def __init__(self, until: float) -> None:
        self.parts: list[LiveRun] = []
        # The message that is being committed; the turn must not begin without it.
        self.merging: LiveRun | None = None
        # The session has been quiet for the whole quiet time.
        self.ripe = False
        self.timer: asyncio.TimerHandle | None = None
        self.until = until

    @property
    def ready(self) -> bool:
        """True if the turn may begin."""
        return self.ripe and self.merging is None


class Kept:
    """The processes of a live run (or a session's detached ones), and their containments."""

    __slots__ = ("behind", "containments", "grade", "named", "running", "shared", "workers")

    def __init__(self) -> None:
        # Everything that falls with the run.
        self.containments: list[Containment] = []
        # The grade of the last containment. It stays, for the receipt, when the containment is gone.
        self.grade: Grade | None = None
        # The containment of processes that have none of their own.
        self.shared: Containment | None = None
        self.running: dict[Running, None] = {}
        self.named: dict[str, Running] = {}
        # Idle workers.
        self.workers: list[Worker] = []
        # Containments of earlier runs; the first process of this run waits for them.
        self.behind: list[Containment] | None = None


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
        # The message may found its session if the session has no owner.
        self.begins = begins
        self.principal = principal
        self.text = text
        self.kind = kind
        self.method = method
        self.key = key
        self.digest = digest
        self.strategy = strategy
        # The deadline as the caller gave it. None: the caller said nothing; 0: the caller wants none.
        self.deadline = deadline
        self.admitted_at = admitted_at
        self.order = order
        # None: the agent that control serves.
        self.agent = agent
        self.instructions = instructions
        # The parent if it is alive; its id is known also after the parent has left memory.
        self.parent = parent
        self.parent_id = None if parent is None else parent.id
        # A detached child: how its ending is announced to its home, and to which agent (None: the one control serves).
        self.detached = detached
        self.announce = announce
        self.announce_to: str | None = None
        # An announcement: the child that it announces.
        self.announces: Child | None = None
        # The run may be seated when its turn comes. False for an announcement until the child's ending is public.
        self.due = True
        # The session at the top of the tree.
        self.home: Session = session if parent is None else parent.home
        # Live children, detached or not.
        self.children: dict[RunId, LiveRun] | None = None
        # A child: its ending was published to the parent's watchers.
        self.announced = False
        # Falls of children: published before this run's own ending, and drained with it.
        self.child_falls: list[Falling] | None = None
        # How many runs are alive below this one, without detached ones.
        self.descendants = 0
        self.questions: dict[QuestionId, Question] | None = None
        # How many questions, and how many children or holds, the run waits for now. The idle limit rests meanwhile:
        # the silence is not the run's own.
        self.asking = 0
        self.resting = 0
        # Places in the lines for holds, also those granted or taken.
        self.holds: dict[str, Place] | None = None
        # The run at work that this message is offered to (steer).
        self.steers: LiveRun | None = None
        # Collecting: the messages added to this one, or the message that this one is being added to.
        self.collection: Collection | None = None
        self.joining: LiveRun | None = None
        # The run that absorbed this message, and the ticket of the write that says so.
        self.alias: LiveRun | None = None
        self.alias_ticket: Ticket | None = None
        # Messages that this run absorbed.
        self.absorbed: list[LiveRun] | None = None
        self.fence = Fence(run_id)
        self.state = State.ARRIVING
        self.generation: int | None = None
        # This message founds its session: its sender becomes the owner, unless the message is withdrawn.
        self.founds = False
        self.superseded: RunId | None = None
        # The fall of the run that this message took over, in the Decision that admits the message.
        self.took: Falling | None = None
        self.sent: Sent | None = None
        # The ticket of the Decision that admits this message.
        self.admission: Ticket | None = None
        # True if the run ended before its session had an owner; its text is then shown to nobody.
        self.withheld = False
        # Why the message was refused.
        self.problem: InterlockError | None = None
        # The `message` event, and the terminal event, are published.
        self.said = False
        self.sealed = False
        # How many takeovers of other principals went ahead of this message in the queue.
        self.passed = 0
        self.phase: str | None = None
        # The innermost phase that an error came from, with the error.
        self.blamed: tuple[str, BaseException] | None = None
        self.provider_started = False
        self.limits: tuple[Limit, ...] = ()
        self.timers: list[asyncio.TimerHandle] | None = None
        # The last sign of life, on the loop's clock.
        self.touched = 0.0
        # The agent has called a verb.
        self.heard = False
        # The phases and tools that the run is in, and the questions, holds and children it waits for, innermost last.
        self.within: dict[object, str] | None = None
        self.started_at: float | None = None
        self.reply = Reply()
        # Open tool calls.
        self.calls: dict[CallId, ToolCall] | None = None
        self.finished: deque[ToolCall] | None = None
        self.calls_made = 0
        # Names of tools whose bodies began, also those of ended children.
        self.begun: dict[str, None] | None = None
        # Code that is being executed; the agent's own is the first.
        self.bodies: list[Body] | None = None
        # An agent in a host: reads what the host has sent and control has not read yet.
        self.hear_out: Callable[[], None] | None = None
        # An agent in a host: when it returned, on the machine's monotonic clock.
        self.returned: float | None = None
        self.kept: Kept | None = None
        # `interlock.stopping()` of code in this process; a host has its own.
        self.notice: Notice | None = None
        self.refusal_budget = 0
        # Settled at t0, published at t1.
        self.outcome: Outcome | None = None
        # Present from the fall until the run leaves memory.
        self.fall: Falling | None = None
        # Set when the message is the first in its session's line.
        self.turn: Flag | None = None
        # Set when the sender may be answered.
        self.acked = Flag()
        # Set when the run is seated or has ended.
        self.called = Flag()
        # Set when the outcome is public.
        self.ended = Flag()

    @property
    def fallen(self) -> bool:
        """True once the ending is settled: the fence's one mark."""
        return self.fence.cause is not None

    @property
    def current(self) -> bool:
        """True until the run falls, also while it waits. A withdrawn or aliased run is not current."""
        return self.fence.cause is None and may(self.state, Move.END)

    def standing(self, limit: Limit) -> Limit:
        """Return a limit as it stands now.

        The idle limit moves with every sign of life. It rests while the run waits for a person, a child or a hold,
        because that silence is not the run's own. A deadline never rests.
        """
        if limit.phase != KnownPhase.IDLE:
            return limit
        rests = self.asking or self.resting
        return Limit(math.inf if rests else self.touched + limit.seconds, limit.seconds, KnownPhase.IDLE)

    @property
    def doing(self) -> str:
        """The phase a timeout would name: the innermost that control knows.

        That is a phase the agent named, a tool that began, or a question, hold or child the run waits for. `settle`
        writes it into the outcome. The published protocol has a closed set of phases, so `projection` maps it there.
        """
        if self.state in (State.ARRIVING, State.QUEUED):
            return KnownPhase.QUEUE
        if self.within:
            return next(reversed(self.within.values()))
        return KnownPhase.AGENT if self.heard else KnownPhase.START

    def enter(self, what: object, phase: str) -> None:
        """Enter a phase, inside the one the run is in."""
        if self.within is None:
            self.within = {}
        self.within[what] = phase

    def leave(self, what: object) -> None:
        """Leave a phase; phases that were entered later may go on."""
        if self.within is not None:
            self.within.pop(what, None)

    @property
    def itself(self) -> LiveRun:
        """This run, or the run that absorbed it."""
        run = self
        while run.alias is not None:
            run = run.alias
        return run

    @property
    def outcome_now(self) -> Outcome | None:
        """The outcome, with `drained` and `durable` as they are now; None while the run has none."""
        return self.outcome if self.fall is None else self.fall.told(self)

    @property
    def body_state(self) -> BodyState:
        """The state of the agent's own code, the first of the run's bodies."""
        return self.bodies[0].state if self.bodies else BodyState.NONE

    @property
    def host(self) -> str:
        """The fate of the agent's host: settling, reused or killed; `none` without a host.

        At t1 a polite host has often not said yet that it is clean; until then the receipt says `settling`. `reused`
        means that the host is kept, not that a next turn has come.
        """
        return getattr(self.bodies[0], "fate", "none") if self.bodies else "none"

    @property
    def kept_with_host(self) -> tuple[str, ...]:
        """Processes of earlier turns that stay with a kept host."""
        return getattr(self.bodies[0], "kept", ()) if self.bodies else ()

    def move(self, move: Move) -> None:
        """Move in the lifecycle table, or raise."""
        self.state = advance(self.state, move)

    def row(self) -> RunRow:
        """Return the run's row as it stands now."""
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
        """Return the row of the run's key; None without a key."""
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
    """Return the id of a run's own session."""
    return SessionId(f"{RUN_SESSION}{run_id}")


def delegated(run: LiveRun) -> ChildData:
    """Return a child as its parent's watchers are shown it."""
    return ChildData(
        child=run.id,
        session=run.session.id,
        agent=run.agent or "",
        detached=run.detached,
        outcome=run.outcome,
    )
