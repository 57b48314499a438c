"""A run while it is alive: where it is in its life, its text, its ending, and its five parts.

1. Everything here is plain state of one loop, without a lock. `fall`, `gate`, `outlet` and `inbox` decide what changes.
2. `LiveRun.fence` is the one mark that says whether a run has fallen. `Fall.add` sets it, and so does a lapse of the
   whole control, which decides no ending. Every effect reads it; no other field of a run may decide about an effect.
3. Each part has a file of its own, and only that file writes its attributes: `arrival` (what was sent; it never
   changes), `admittance` (what the inbox makes of it), `limits`, `ties` and `work`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.agent.flag import Flag
from interlock.core.decision import KeyRow, RunRow
from interlock.core.events import ChildData
from interlock.core.fence import Fence
from interlock.core.lifecycle import Move, State, advance, may
from interlock.core.names import KnownPhase, Principal, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.runtime.arrival import Admittance, Arrival
from interlock.runtime.limits import Limits
from interlock.runtime.ties import Ties
from interlock.runtime.work import Work

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall
    from interlock.runtime.session import Session

# The id of a run's own session begins with this. `send` refuses such ids, so only that run is in the session.
RUN_SESSION = "run:"


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


class LiveRun:
    """A run that is not yet both durable and drained."""

    __slots__ = (
        "admittance", "arrival", "end_published", "ended", "fall", "fence", "generation", "id", "limits",
        "message_published", "outcome", "phase", "reply", "seated_or_over", "session", "started_at", "state", "ties",
        "withheld", "work",
    )  # fmt: skip

    def __init__(
        self,
        run_id: RunId,
        session: Session,
        arrival: Arrival,
        *,
        parent: LiveRun | None = None,
        detached: bool = False,
    ) -> None:
        self.id = run_id
        self.session = session
        self.arrival = arrival
        self.admittance = Admittance()
        self.limits = Limits()
        self.ties = Ties(session, parent, detached=detached)
        self.work = Work()
        self.fence = Fence(run_id)
        self.state = State.ARRIVING
        self.generation: int | None = None
        self.started_at: float | None = None
        self.reply = Reply()
        self.phase: str | None = None
        # True if the run ended before its session had an owner; its text is then shown to nobody.
        self.withheld = False
        # The `message` event, and the terminal event, are published.
        self.message_published = False
        self.end_published = False
        # Settled at t0, published at t1.
        self.outcome: Outcome | None = None
        # Present from the fall until the run leaves memory.
        self.fall: Fall | None = None
        self.seated_or_over = Flag()
        # Set when the outcome is public.
        self.ended = Flag()

    @property
    def principal(self) -> Principal:
        """The principal that started the run."""
        return self.arrival.principal

    @property
    def fallen(self) -> bool:
        """True once the ending is settled: the fence's one mark."""
        return self.fence.cause is not None

    @property
    def current(self) -> bool:
        """True until the run falls, also while it waits. A withdrawn or aliased run is not current."""
        return self.fence.cause is None and may(self.state, Move.END)

    @property
    def doing(self) -> str:
        """The phase a timeout would name: the innermost that control knows.

        That is a phase the agent named, a tool that began, or a question, hold or child the run waits for. `settle`
        writes it into the outcome. The published protocol has a closed set of phases, so `projection` maps it there.
        """
        if self.state.waits:
            return KnownPhase.QUEUE
        if self.limits.within:
            return next(reversed(self.limits.within.values()))
        return KnownPhase.AGENT if self.limits.heard else KnownPhase.START

    @property
    def absorber_or_self(self) -> LiveRun:
        """This run, or the run that absorbed it."""
        run = self
        while run.ties.alias is not None:
            run = run.ties.alias
        return run

    @property
    def outcome_now(self) -> Outcome | None:
        """The outcome, with `drained` and `durable` as they are now; None while the run has none."""
        return self.outcome if self.fall is None else self.fall.told(self)

    def move(self, move: Move) -> None:
        """Move in the lifecycle table, or raise."""
        self.state = advance(self.state, move)

    def row(self) -> RunRow:
        """Return the run's row as it stands now."""
        return RunRow(
            id=self.id,
            session=self.session.id,
            principal=self.principal,
            kind=self.arrival.kind,
            text=self.arrival.text,
            admitted_at=self.arrival.admitted_at,
            key=self.arrival.key,
            deadline=self.arrival.deadline,
            parent=self.ties.parent_id,
            home=None if self.ties.parent_id is None else self.ties.home.id,
            agent=self.arrival.agent,
            detached=self.ties.detached,
            alias=None if self.ties.alias is None else self.ties.alias.id,
            generation=self.generation,
            started=self.started_at is not None,
            outcome=self.outcome,
            cut=self.reply.open if self.fallen else "",
            told=self.end_published,
            instructions=self.arrival.instructions,
            announce=self.arrival.announce,
        )

    def key_row(self) -> KeyRow | None:
        """Return the row of the run's key; None without a key."""
        if self.arrival.key is None:
            return None
        return KeyRow(
            principal=self.principal,
            key=self.arrival.key,
            method=self.arrival.method,
            digest=self.arrival.digest,
            run_id=self.absorber_or_self.id,
            generation=self.generation,
            superseded=self.admittance.superseded,
        )


def own_session(run_id: RunId) -> SessionId:
    """Return the id of a run's own session."""
    return SessionId(f"{RUN_SESSION}{run_id}")


def delegated(run: LiveRun) -> ChildData:
    """Return a child as its parent's watchers are shown it."""
    return ChildData(
        child=run.id,
        session=run.session.id,
        agent=run.arrival.agent or "",
        detached=run.ties.detached,
        outcome=run.outcome,
    )
