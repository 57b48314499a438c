"""The work of a run: its tool calls, questions, holds, bodies and processes.

1. `Work.close` closes all of it in one step, when the run falls. A thing of a run that is not recorded here would
   outlive the run.
2. Most lists are None until they are needed: a server holds many runs that never ask, spawn or delegate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from interlock.agent.bodies import Body
from interlock.agent.bounds import REFUSALS
from interlock.agent.flag import Flag
from interlock.agent.verbs import Wanted
from interlock.core.decision import QuestionRow
from interlock.core.events import Json
from interlock.core.names import BodyState, CallId, Principal, QuestionId, QuestionState, RunId, ToolState
from interlock.runtime.settings import TOOLS_LISTED

if TYPE_CHECKING:
    from interlock.agent.notice import Notice
    from interlock.processes.base import Containment, Grade, Worker
    from interlock.runtime.holds import Holds, Place
    from interlock.runtime.live import LiveRun
    from interlock.runtime.spawning import Spawned

log = logging.getLogger("interlock")


class ToolCall:
    """A tool call of a live run."""

    __slots__ = ("arguments", "asks", "grace", "id", "name", "question", "state")

    def __init__(self, call_id: CallId, name: str, arguments: Json, *, asks: bool = False, grace: float = 0.0) -> None:
        self.id = call_id
        self.name = name
        self.arguments = arguments
        # The tool is marked with approval="ask".
        self.asks = asks
        # Seconds that the tool asked for to clean up.
        self.grace = grace
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
        self.running: dict[Spawned, None] = {}
        self.named: dict[str, Spawned] = {}
        # Idle workers.
        self.workers: list[Worker] = []
        # Containments of earlier runs; the first process of this run waits for them.
        self.behind: list[Containment] | None = None

    def cut_unborn(self) -> None:
        """Let detached processes that were only asked for fall with the run, and drop containments that are empty.

        A detached process belongs to the session once it has a pid. Without a pid the process still belongs to the run
        and is ended with it: otherwise it would begin after the stop was acknowledged.
        """
        unborn = [each.containment for each in self.running if each.order.detached and each.pid is None]
        self.containments = [each for each in (*self.containments, *unborn) if not each.done.is_set()]


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
        # The highest number of a call; the agent's side gives the numbers.
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

    # Calls

    def record(self, run_id: RunId, wanted: Wanted) -> ToolCall:
        """Record a call that the agent is about to make."""
        call_id = CallId(f"{run_id}.{wanted.number}")
        call = ToolCall(call_id, wanted.name, wanted.arguments, asks=wanted.asks, grace=wanted.grace)
        if self.calls is None:
            self.calls = {}
        self.calls[call_id], self.calls_made = call, wanted.number
        return call

    def begin(self, call: ToolCall) -> None:
        """Note that the body of a call begins."""
        call.state = ToolState.RUNNING
        if self.begun is None:
            self.begun = {}
        if len(self.begun) < TOOLS_LISTED:
            self.begun[call.name] = None

    def finish(self, call: ToolCall, state: ToolState) -> bool:
        """Note how a call ended; False if it has a result already."""
        if self.calls is None or self.calls.pop(call.id, None) is None:
            return False
        call.state = state
        if self.finished is None:
            self.finished = deque(maxlen=TOOLS_LISTED)
        self.finished.append(call)
        return True

    def count_begun(self, below: Work) -> None:
        """Count the tools that a child began as begun by its parent."""
        if below.begun:
            self.begun = {**(self.begun or {}), **below.begun}

    # Questions, holds, bodies

    def ask(self, question: Question) -> None:
        """Add an open question."""
        if self.questions is None:
            self.questions = {}
        self.questions[question.id] = question

    def stand_in_line(self, place: Place) -> None:
        """Add a place in the line for a hold."""
        if self.holds is None:
            self.holds = {}
        self.holds[place.name] = place

    def run_bodies(self, bodies: list[Body], notice: Notice | None = None) -> None:
        """Set the list of code that is being executed, and the notice by which it hears of the fall."""
        self.bodies, self.notice = bodies, notice

    def forget_bodies(self) -> None:
        """Let the bodies go: the run leaves memory, and no receipt names them any more."""
        self.bodies = None

    # The fall

    def close(self, run_id: RunId, holds: Holds, *, started: bool) -> tuple[tuple[QuestionId, ...], int]:
        """Close everything, in the step of the fall; return the questions that were open, and the holds that stay.

        Open questions go void. Places in lines for holds are left; a taken hold stays until the run is drained. Every
        open call is closed: as skipped if it was not permitted yet, else as interrupted. If the agent had started, its
        bodies and processes are cut.
        """
        opened = [question for question in (self.questions or {}).values() if question.state is QuestionState.OPEN]
        for question in opened:
            question.close(QuestionState.VOID)
        kept = holds.fall(self)
        for call in (self.calls or {}).values():
            call.state = ToolState.SKIPPED if call.state is ToolState.PENDING else ToolState.INTERRUPTED
        if started:
            self._cut(run_id)
        return tuple(question.id for question in opened), kept

    def _cut(self, run_id: RunId) -> None:
        """Set the run's notice, end its processes, and throw one cancel into each body.

        A body that swallows the cancel goes on, but the fence refuses its effects. Control no longer resumes the body
        after its grace, or after REFUSALS refused verbs: otherwise a loop of `say` that swallows Stale would spin until
        its grace is over.
        """
        self.refusal_budget = REFUSALS
        if self.notice is not None:
            self.notice.tell()
            # The notice closes its file descriptors when its last reference is gone, which may be in a tool that still
            # runs.
            self.notice = None
        if self.processes is not None:
            self.processes.cut_unborn()
        for body in (*self.containments, *(self.bodies or ())):
            # A body may wait for something that raises when it is cancelled. Go on with the next: the fence does not
            # depend on the cut.
            try:
                body.cut()
            except Exception:
                log.exception("a body of %s could not be cut", run_id)

    def spend_refusal(self) -> bool:
        """Count a refused effect of a fallen run; return True when it has used up its budget (REFUSALS)."""
        self.refusal_budget -= 1
        return self.refusal_budget < 0

    # As receipts name it

    @property
    def containments(self) -> list[Containment]:
        """The containments of the run's processes."""
        return [] if self.processes is None else self.processes.containments

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
