"""What is alive in this process: sessions, runs, keys, generations.

1. A session has one seat. Who has it is `session.seat`; nobody else is driven.
2. Clean up only what is yours: an entry is removed only by the object that put it there (identity, not key).
3. A run leaves when it is drained and its ending is durable; a session when nothing of it is left here. Its generation
   survives that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from interlock.core.decision import KeyRow, RunRow, SessionRow, Tombstone
from interlock.core.errors import InterlockError
from interlock.core.events import Json
from interlock.core.fence import Fence, Generations
from interlock.core.lifecycle import Move, State, advance
from interlock.core.names import (
    BodyState,
    CallId,
    Ending,
    Principal,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
)
from interlock.core.outcome import Limit, Outcome
from interlock.core.receipt import Receipt

IDLE, QUEUE = "idle", "queue"  # what a limit on silence, or on waiting, is told as
TOMBSTONES = 1_000  # per principal; the store keeps as many


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

    runs: list[LiveRun]
    ended: asyncio.Event
    drained: asyncio.Event
    durable: bool

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
    generation: int | None = None
    superseded: RunId | None = None
    state: State = State.SEATED


class ToolCall:
    """A tool call of a live run."""

    __slots__ = ("arguments", "id", "name", "state")

    def __init__(self, call_id: CallId, name: str, arguments: Json) -> None:
        self.id = call_id
        self.name = name
        self.arguments = arguments
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


class LiveRun:
    """A run that is not yet both durable and drained."""

    __slots__ = (
        "acked",
        "admitted_at",
        "blamed",
        "bodies",
        "called",
        "calls",
        "calls_made",
        "deadline",
        "digest",
        "ended",
        "fall",
        "fence",
        "finished",
        "generation",
        "id",
        "key",
        "kind",
        "limits",
        "method",
        "outcome",
        "passed",
        "phase",
        "principal",
        "problem",
        "provider_started",
        "refusal_budget",
        "reply",
        "said",
        "sealed",
        "sent",
        "session",
        "started_at",
        "state",
        "strategy",
        "superseded",
        "text",
        "timers",
        "touched",
        "turn",
    )

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
        strategy: Strategy,
        deadline: float | None,
        admitted_at: float,
    ) -> None:
        self.id = run_id
        self.session = session
        self.principal = principal
        self.text = text
        self.kind = kind
        self.method = method
        self.key = key
        self.digest = digest
        self.strategy = strategy
        self.deadline = deadline
        self.admitted_at = admitted_at
        self.fence = Fence(run_id)
        self.state = State.ARRIVING
        self.generation: int | None = None
        self.superseded: RunId | None = None
        self.sent: Sent | None = None
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
        self.started_at: float | None = None
        self.reply = Reply()
        self.calls: dict[CallId, ToolCall] | None = None  # open ones
        self.finished: deque[ToolCall] | None = None
        self.calls_made = 0
        self.bodies: list[Body] | None = None
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

    def standing(self, limit: Limit) -> Limit:
        """Return a limit as it stands now: the one on silence moves with every sign of life."""
        return Limit(self.touched + limit.seconds, limit.seconds, IDLE) if limit.phase == IDLE else limit

    @property
    def body_state(self) -> BodyState:
        """What became of the agent's own code, the first of the run's bodies."""
        return self.bodies[0].state if self.bodies else BodyState.NONE

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
            generation=self.generation,
            started=self.started_at is not None,
            outcome=self.outcome,
            cut=self.reply.open if self.fallen else "",
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
            run_id=self.id,
            generation=self.generation,
            superseded=self.superseded,
        )


class Session:
    """A conversation: one seat, a line of arrivals, a queue. Its lists are made when first needed."""

    __slots__ = ("falls", "id", "line", "live", "loaded", "owner", "previous", "seat", "stored", "waiting")

    def __init__(self, session_id: SessionId) -> None:
        self.id = session_id
        self.owner: Principal | None = None
        self.loaded = False
        self.stored = False  # the store has it
        self.seat: LiveRun | None = None
        self.line: deque[LiveRun] | None = None  # arrivals, not decided yet
        self.waiting: list[LiveRun] | None = None  # admitted, without the seat
        self.falls: list[Falling] | None = None  # from t0 until nothing is left of them
        self.previous: Outcome | None = None
        self.live = 0  # runs of this session in the registry

    @property
    def confirmed_owner(self) -> Principal | None:
        """The owner, once the store knows it; whoever is only about to own a session has no right to it yet."""
        return self.owner if self.stored else None


class Registry:
    """Everything alive in this control."""

    def __init__(self, boot: int) -> None:
        self.boot = boot
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, LiveRun] = {}
        self.falls: dict[ReceiptId, Falling] = {}
        self.keys: dict[tuple[Principal, str], LiveRun] = {}
        self.generations = Generations()
        self.closing = False  # nothing new is taken
        self.closed = False  # nothing is told any more
        self._tombstones: dict[Principal, OrderedDict[str, None]] = {}
        self._numbers = 0

    def number(self) -> int:
        """Return the next number of this boot; positions and ids are made of it and never reused."""
        self._numbers += 1
        return self._numbers

    def position(self) -> int:
        """Return the next event position."""
        return self.boot << 32 | self.number()

    def new_id(self, letter: str) -> str:
        """Return an id that this store has never seen."""
        return f"{letter}-{self.boot:x}-{self.number():x}"

    # Sessions

    def session(self, session_id: SessionId) -> Session:
        """Return a session, made if it is not here."""
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    def session_row(self, session: Session) -> SessionRow:
        """What the store keeps of a session now."""
        assert session.owner is not None
        return SessionRow(id=session.id, owner=session.owner, generation=self.generations.get(session.id))

    def seat(self, run: LiveRun) -> None:
        """Give a run its session's empty seat; the generation rises with it."""
        session = run.session
        assert session.seat is None, "the seat is taken"
        run.move(Move.SEAT)
        session.seat = run
        run.generation = self.generations.rise(session.id)
        run.called.set()

    def unseat(self, run: LiveRun) -> None:
        """Free the seat if this very run has it."""
        if run.session.seat is run:
            run.session.seat = None

    def dequeue(self, run: LiveRun) -> None:
        """Take a run out of its session's queue if it waits there."""
        waiting = run.session.waiting
        if waiting is not None and run in waiting:
            waiting.remove(run)

    # Runs

    def register(self, run: LiveRun) -> None:
        """Make a run findable: from here on it can be stopped."""
        self.runs[run.id] = run
        run.session.live += 1
        if run.key is not None:
            self.keys.setdefault((run.principal, run.key), run)

    def release_key(self, run: LiveRun) -> None:
        """Free a run's key if it is this run's."""
        if run.key is not None and self.keys.get((run.principal, run.key)) is run:
            del self.keys[run.principal, run.key]

    def retire(self, run: LiveRun) -> None:
        """Drop a run that is over in every respect, and its session if nothing else of it is here."""
        if self.runs.get(run.id) is not run:
            return
        del self.runs[run.id]
        self.release_key(run)
        run.session.live -= 1
        self.forget_if_quiet(run.session)

    def forget_if_quiet(self, session: Session) -> None:
        """Drop a session of which nothing is alive here; its generation is never given again."""
        if session.live == 0 and self.sessions.get(session.id) is session:
            del self.sessions[session.id]
            self.generations.forget(session.id)

    # Tombstones

    def bury(self, tombstone: Tombstone) -> None:
        """Remember that a key was stopped before it was seen."""
        kept = self._tombstones.setdefault(tombstone.principal, OrderedDict())
        kept[tombstone.key] = None
        if len(kept) > TOMBSTONES:
            kept.popitem(last=False)

    def buried(self, principal: Principal, key: str | None) -> bool:
        """Return whether a key has a tombstone here."""
        return key is not None and key in self._tombstones.get(principal, ())
