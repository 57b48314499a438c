"""The work of a run: its tool calls, questions, holds, bodies and processes, all of which end when it falls.

Most lists are None until they are needed: a server holds many runs that never ask, spawn or delegate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from interlock.core.decision import QuestionRow
from interlock.core.events import Json
from interlock.core.names import BodyState, CallId, Principal, QuestionId, QuestionState, ToolState
from interlock.runtime.flag import Flag, Happening

if TYPE_CHECKING:
    from interlock.processes.base import Containment, Grade, Worker
    from interlock.processes.notice import Notice
    from interlock.runtime.holds import Place
    from interlock.runtime.live import LiveRun
    from interlock.runtime.spawning import Running


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


class ProcessTable:
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


class Work:
    """Everything of a run that goes on, and that its fall closes."""

    __slots__ = (
        "begun", "bodies", "calls", "calls_made", "finished", "holds", "notice", "processes", "questions",
        "refusal_budget",
    )  # fmt: skip

    def __init__(self) -> None:
        # Open tool calls.
        self.calls: dict[CallId, ToolCall] | None = None
        self.finished: deque[ToolCall] | None = None
        self.calls_made = 0
        # Names of tools whose bodies began, also those of ended children.
        self.begun: dict[str, None] | None = None
        self.questions: dict[QuestionId, Question] | None = None
        # Places in the lines for holds, also those granted or taken.
        self.holds: dict[str, Place] | None = None
        # Code that is being executed; the agent's own is the first.
        self.bodies: list[Body] | None = None
        self.processes: ProcessTable | None = None
        # `interlock.stopping()` of code in this process; a host has its own.
        self.notice: Notice | None = None
        self.refusal_budget = 0

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
