"""The oracle: keeps books at the sinks and fails on the first broken promise.

The oracle does not ask the fence what the fence did. It looks where effects arrive (a session's subscribers, a slow
watcher, the bodies of tools, the store) and at what callers were told, and compares:
 P1  nothing of a run arrives after its end was acknowledged; no tool body begins, and after `drained` none acts;
     `is_current`, as a sink asks it, is False from the step of the fall on, and True while a run speaks
 P2  one terminal event, nothing of the run after it, positions only rise
 P4  everyone is told the same ending, and a passed deadline is told as timed out, a child's limit too
 P5  an acknowledged message runs at most once and ends; a refused one never runs; a tool body begins only after its
     start is on record
 P6  stop answers in time, whatever the store does
 P7  principals end, answer, see and send only where they have the right, by the oracle's own book (rights.py)
and of questions, children and holds: a verb that waits returns to its run before the run's end, or never; a child ends
with its parent; a hold has one holder; an absorbed message is handed to an agent once.
"""

import asyncio
import contextlib
from contextlib import aclosing
from typing import Any

from interlock.agent.bodies import DROPPED
from interlock.agent.message import Child
from interlock.client.door import Sink
from interlock.core.answers import Sent
from interlock.core.decision import Decision
from interlock.core.errors import InterlockError, Unavailable, Unknown
from interlock.core.events import (
    Block,
    ChildData,
    Correction,
    Delta,
    Ended,
    Event,
    MessageData,
    QuestionData,
    ReceiptData,
    Source,
    Started,
    Tool,
)
from interlock.core.names import (
    PASSING,
    Drain,
    Ending,
    EventKind,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.takeover import ANNOUNCED
from interlock.runtime.control import Control
from interlock.stores.base import Buried, Taken, Ticket
from interlock.stores.memory import MemoryStore
from interlock.testing.rights import EVERYWHERE, READ, Act, Deed, Rights

STOP_SLACK_SECONDS = 0.2
# From a child's end until its parent hears of it. This is shorter than a body's grace, for which no parent waits.
CLEANUP_SECONDS = 0.25


class Violation(AssertionError):
    """A promise was broken; the text says which, and what was seen."""


class _Sink(Sink):
    """Where a session's effects arrive."""

    def __init__(self, oracle: "Oracle") -> None:
        self._oracle = oracle

    def take(self, event: Event, source: Source | None) -> bool:
        self._oracle.arrived(event)
        return True


class Oracle:
    """The books of one control. Use its `send`, `stop`, `wait` and `watch` in place of the control's."""

    def __init__(
        self, control: Control, store: MemoryStore, *, admins: tuple[str, ...] = (), hosted: bool = False
    ) -> None:
        self.control = control
        # In a host the agent hears of an end a moment later. Control's permits do not depend on that.
        self._hosted = hosted
        self.violation: Violation | None = None
        self.judging = asyncio.current_task()  # the task that plays the scenario
        self.finished = False
        self.trace: list[tuple[object, ...]] = []
        self._store = store
        self.rights = Rights(store, admins=admins)
        self._loop = asyncio.get_running_loop()
        self._decide = store.decide
        store.decide = self._handed_over  # type: ignore[method-assign]
        self._settled: set[RunId] = set()  # runs whose endings were handed to the store
        self._numbers: dict[str, int] = {}  # ids by order of appearance, so that traces compare across runs
        self._principals: dict[RunId, str] = {}
        self._texts: dict[RunId, list[str]] = {}
        self._over: set[RunId] = set()  # runs whose end was acknowledged to a caller
        self._terminal: dict[RunId, Outcome] = {}
        self._told: dict[RunId, Outcome] = {}
        self._drained: set[RunId] = set()
        self._started: dict[RunId, float] = {}
        self._deadlines: dict[RunId, float | None] = {}
        self._begun: dict[str, int] = {}
        self._handed: set[str] = set()  # texts steered to a run and handed to its agent
        self._refused: set[str] = set()
        self._accepted: dict[RunId, str] = {}
        self._positions: dict[SessionId, int] = {}
        self._generations: dict[SessionId, int] = {}
        self._shown: dict[RunId, tuple[tuple[str, ...], str]] = {}
        self._keys: set[tuple[str, str | None]] = set()
        self._buried: set[tuple[str, str]] = set()  # keys stopped before they were seen
        self._stillborn: set[RunId] = set()
        self._calls: dict[str, ToolState] = {}
        self._sinks: dict[str, _Sink] = {}
        self._home: dict[RunId, str] = {}  # the session at the top of a run's tree
        self._parents: dict[RunId, RunId] = {}  # of children that share their parent's fate
        self._children: dict[RunId, list[RunId]] = {}
        self._delegated: dict[RunId, None] = {}
        self._announced: set[RunId] = set()  # children whose endings were published to their parents' watchers
        self._detached: dict[RunId, str] = {}  # detached children, each with its home
        self._reports: dict[RunId, RunId] = {}  # by child: the message that announced it
        self._in_a_row: dict[SessionId, int] = {}  # turns begun by announcements since the last message
        self._void: set[RunId] = set()  # children whose home was stopped or reset before their announcement
        self._excused: set[RunId] = set()  # children whose home a caller tried to stop or reset
        self._heirs: dict[str, RunId] = {}  # by a child's message: the run that delegated it
        self._ended_at: dict[RunId, float] = {}
        self._joined: set[RunId] = set()
        self._wakes: set[str] = set()  # texts of schedules
        self._superseded: dict[RunId, RunId] = {}
        self._said: dict[RunId, tuple[str, str]] = {}
        self._renewed: set[str] = set()  # sessions that were reset
        self._allowed: set[RunId] = set()
        self._holders: dict[str, tuple[RunId, int]] = {}
        self._gone: set[RunId] = set()  # runs that are drained, or whose drain was given up
        self._readers: set[str] = set()  # the readers last appointed
        self._marked: dict[str, float] = {}  # by session: the place of its last acknowledged stop in the channel
        self._late: set[RunId] = set()
        self._places: dict[RunId, float | None] = {}  # by run: the place of its message in the channel
        self._stops: dict[tuple[str, str], tuple[object, ...]] = {}  # by a stop's key: its first answer
        self.questions: dict[QuestionId, RunId] = {}  # questions published as open

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions to which a message was sent."""
        return tuple(self._sinks)

    def principal(self, run_id: RunId) -> str | None:
        """Return who started a run."""
        return self._principals.get(run_id)

    # Sinks

    def follow(self, session: str) -> None:
        """Judge every event of a session from here on."""
        if session not in self._sinks:
            self._sinks[session] = sink = _Sink(self)
            self.control.feed.follow(SessionId(session), sink)

    def _handed_over(self, decision: Decision) -> Ticket:
        """Judge a decision that is handed to the store: no tool of a run may be recorded after the run's ending."""
        self.rights.offered(decision)
        ending = {row.id for row in decision.endings}
        for tool in decision.tools:
            if tool.run_id in self._settled - ending:
                self._fail(f"P1: {tool.name} of {tool.run_id} was recorded as {tool.state} after the run's end was")
        for run_id in ending:
            self._check_current(run_id, "was handed to the store")
        self._settled |= ending
        return self._decide(decision)

    def arrived(self, event: Event) -> None:
        """Judge an event that reached a subscriber."""
        run_id, data = event.run_id, event.data
        self._note(event.kind, run_id, *([data.outcome.ending] if isinstance(data, Ended) else []))
        if event.position <= self._positions.get(event.session, 0):
            self._fail(f"P2: position {event.position} does not rise ({event.kind})")
        self._positions[event.session] = event.position
        if isinstance(data, ReceiptData):
            self._receipt(data.receipt)
        # An ending may have to be published before the store says that the takeover's message was not kept.
        if isinstance(data, Correction) and data.outcome.unkept:
            self._told[data.outcome.run_id] = data.outcome
            self._superseded.pop(data.outcome.run_id, None)
        if run_id is None or isinstance(data, Correction):
            return
        if run_id in self._terminal:
            self._fail(f"P2: {event.kind} of {run_id} after its terminal event")
        if run_id in self._over and not isinstance(data, Ended | MessageData):
            self._fail(f"P1: {event.kind} of {run_id} arrived after its end was acknowledged")
        if self._parents.get(run_id) in self._terminal and not isinstance(data, Ended | MessageData):
            self._fail(f"P1: {event.kind} of {run_id} arrived after its parent's end was told")
        self._check_shown(run_id, data)
        self._check_holds()
        if isinstance(data, Started | Delta) and not self.control.is_current(run_id):
            self._fail(f"P1: {run_id} is at work, and a sink that asks is told that it is not current")
        match data:
            case MessageData():
                self._home.setdefault(run_id, event.session)
                if data.child is not None:
                    self._reported(data.child, data.of or run_id)
                else:
                    self._in_a_row[event.session] = 0
                if data.of is None:
                    self._principals.setdefault(run_id, data.by)
                    self._said[run_id] = (event.session, data.text)
                else:
                    self._joined.add(data.of)
                    self._steered(run_id, data.text)
            case Started():
                self._began(event, run_id)
            case Ended():
                self._terminal[run_id] = data.outcome
                if run_id in self._reports.values() and event.generation is None and data.outcome.superseded_by:
                    self._fail(f"P5: the announcement {run_id} was taken over while it waited")
                self._ended_at[run_id] = self._loop.time()
                for question in data.void:
                    self.questions.pop(question, None)
                if data.outcome.superseded_by is not None:
                    self._superseded[run_id] = data.outcome.superseded_by
                self.rights.stands(run_id)
                self._ended_by(data.outcome, since=self._loop.time() - self._patience)
                self._check_child_limit(data.outcome)
                self._ended(data.outcome, "its terminal event")
            case Tool():
                self._tool(run_id, data)
            case QuestionData():
                self._asked(run_id, data)
            case ChildData():
                if data.child not in self._delegated:
                    self._born(run_id, data)
                if data.outcome is not None:
                    self._announced_once(data.child)
                    self._ended(data.outcome, "what its parent was told")
            case _:
                pass

    def _check_shown(self, run_id: RunId, data: object) -> None:
        """Add up the text that was shown; at the end it must equal the outcome's text."""
        shown, unfinished = self._shown.get(run_id, ((), ""))
        match data:
            case Delta():
                unfinished += data.text
            case Block():
                shown, unfinished = (*shown, data.text), ""
            case Ended():
                text = "\n\n".join([*shown, unfinished] if unfinished else shown)
                if text != data.outcome.text:
                    self._fail(f"P1: {run_id} was told with {data.outcome.text!r}, but {text!r} was shown")
            case _:
                return
        self._shown[run_id] = (shown, unfinished)

    def _steered(self, run_id: RunId, text: str) -> None:
        if self._hosted and run_id in self._started:  # a collected message joins before the start
            if text not in self._handed:
                self._fail(f"P5: {text!r} was taken in by a run whose agent does not have it")
            self._begun[text] = self._begun.get(text, 0) + 1

    def _began(self, event: Event, run_id: RunId) -> None:
        if run_id in self._started:
            self._fail(f"P5: {run_id} started twice")
        generation = event.generation or 0
        if generation < self._generations.get(event.session, -1) + 2:
            self._fail(f"P1: {run_id} started in generation {generation}; a fall and a start raise it by one each")
        self._generations[event.session] = generation
        self._started[run_id] = self._loop.time()
        if run_id in self._reports.values():
            self._in_a_row[event.session] = self._in_a_row.get(event.session, 0) + 1
            if self._in_a_row[event.session] > ANNOUNCED:
                self._fail(f"P7: {run_id} is the {self._in_a_row[event.session]}th announced turn in a row")

    def _tool(self, run_id: RunId, tool: Tool) -> None:
        before = self._calls.get(tool.call_id)
        order = [ToolState.PENDING, ToolState.RUNNING]
        if before is not None and (before not in order or tool.state == before):
            self._fail(f"P5: call {tool.call_id} of {run_id} went from {before} to {tool.state}")
        self._calls[tool.call_id] = tool.state

    def _asked(self, run_id: RunId, data: QuestionData) -> None:
        if data.state is QuestionState.OPEN:
            self.questions[data.question_id] = run_id
            return
        if self.questions.pop(data.question_id, None) is None:
            self._fail(f"P4: question {data.question_id} was closed twice")
        if data.tool is not None and data.answer is True:
            self._allowed.add(run_id)

    def _born(self, parent: RunId, data: ChildData) -> None:
        child = data.child
        self._delegated[child] = None
        self._home[child] = self._home[parent]
        self._principals[child] = self._principals.get(parent, "")
        self._deadlines[child] = self.control.settings.child_deadline
        if data.detached:
            self._detached[child] = self._home[parent]
        else:
            self._parents[child] = parent
            self._children.setdefault(parent, []).append(child)
        self.follow(data.session)

    def _reported(self, child: RunId, report: RunId) -> None:
        """Judge an announcement of a detached child: it comes once, after the child's ending, and not after a stop."""
        if self._reports.setdefault(child, report) != report:
            self._fail(f"P4: the ending of {child} was announced twice")
        if child in self._void:
            self._fail(f"P1: {child} was announced after its session was stopped or reset")
        if child in self._delegated and child not in self._terminal:
            self._fail(f"P4: {child} was announced before its ending was public")

    def announced(self, run_id: RunId, child: Child) -> None:
        """Judge an announcement that an agent was handed: it was published, with the same ending."""
        if self._reports.get(child.run_id) is None:
            self._fail(f"P4: {run_id} was handed an announcement of {child.run_id} that nobody was told")
        self._ended(child.outcome, "an announcement")

    def _unannounced(self, session: str) -> list[RunId]:
        return [child for child, home in self._detached.items() if home == session and child not in self._reports]

    def _announced_once(self, child: RunId) -> None:
        if child in self._announced:
            self._fail(f"P4: the ending of {child} was told to its parent twice")
        self._announced.add(child)

    def _mark_over(self, run_id: RunId) -> None:
        """Note that a run's end was acknowledged; its attached children are over with it."""
        if run_id not in self._over:
            self._over.add(run_id)
            self._check_current(run_id, "was acknowledged")
            for child in self._children.get(run_id, ()):
                self._mark_over(child)

    def _check_current(self, run_id: RunId, since: str) -> None:
        """Fail if `is_current` is True for a run that has fallen."""
        if self.control.is_current(run_id):
            self._fail(f"P1: a sink that asks is told that {run_id} is current, and its end {since}")

    def _check_holds(self) -> None:
        """Fail if a hold is free while a run waits for it, or is granted to a run that is over."""
        for name, line in self.control._registry.holds._lines.items():
            holder = line.holder
            if holder is None and line.waiting:
                self._fail(f"P5: {name} is free and somebody waits for it")
            if any(place.run.fallen for place in line.waiting):
                self._fail(f"P1: a run that is over waits for {name}")
            if holder is not None and holder.run.fallen and not holder.taken:
                self._fail(f"P1: {name} was granted to {holder.run.id}, which is over")

    # What the agent and its tools do

    def _unaware(self, run_id: RunId) -> bool:
        """Return whether a run's host may not have heard of its end; once the receipt says drained, it has."""
        return self._hosted and run_id not in self._drained

    def came_back(self, run_id: RunId, what: str) -> None:
        """Judge a verb that waited and has returned to its agent."""
        self._note("came back", run_id, what)
        if self._hosted:
            # The answer may have been sent before the fall; the fence refuses what the agent does with it.
            return
        if run_id in self._over or run_id in self._terminal:
            self._fail(f"P1: {what} returned to {run_id} after its end was told")

    def delegates(self, run_id: RunId, text: str) -> None:
        """Note that a run is about to delegate."""
        self._heirs[text] = run_id

    def heard_of(self, run_id: RunId, child: RunId) -> None:
        """Judge a child's ending that `delegate` returned: it is public, and the parent did not wait for cleanup."""
        self.came_back(run_id, "delegate")
        told = self._ended_at.get(child)
        if child not in self._delegated:
            # The parent is detached and was never announced, so the oracle does not follow this child's session.
            return
        if told is None:
            self._fail(f"P4: {run_id} heard of an ending of {child} that was not told")
        elif self._loop.time() > told + CLEANUP_SECONDS:
            self._fail(f"P6: {run_id} waited for the cleanup of {child}")

    def took_in(self, run_id: RunId, text: str) -> None:
        """Judge a steered message that an agent was handed: it is handed over once."""
        self.came_back(run_id, "check")
        self._handed.add(text)
        if self._hosted:
            # `_steered` counts it when control hears of it; if the run falls first, the message may run again.
            return
        self._begun[text] = self._begun.get(text, 0) + 1
        if self._begun[text] > 1:
            self._fail(f"P5: message {text!r} was handed over twice")

    def holds(self, run_id: RunId, name: str, token: int) -> None:
        """Judge a hold that a run got: its last holder is gone, and its token rises."""
        self.came_back(run_id, "hold")
        before, last = self._holders.get(name, (None, 0))
        if before is not None and before not in self._gone:
            self._fail(f"P1: {name} was given to {run_id} while {before} had it")
        if token <= last:
            self._fail(f"P1: the token of {name} did not rise")
        self._holders[name] = (run_id, token)

    def lets_go(self, run_id: RunId, name: str) -> None:
        """Note that a run frees a hold, if it has not ended."""
        holder, token = self._holders[name]
        if holder == run_id and run_id not in self._over:
            self._holders[name] = (RunId(""), token)
            self._gone.add(RunId(""))

    def begun(self, run_id: RunId, text: str) -> None:
        """Judge an agent's first step."""
        self._note("begun", run_id)
        self._begun[text] = self._begun.get(text, 0) + 1
        if self._begun[text] > 1:
            self._fail(f"P5: message {text!r} was run twice")
        if text in self._refused:
            self._fail(f"P5: message {text!r} was refused and runs")
        if run_id in self._over and not self._unaware(run_id):
            self._fail(f"P1: {run_id} began after its end was acknowledged")
        if self._heirs.get(text) in self._over and not self._unaware(run_id):
            self._fail(f"P1: {run_id} began after its parent's end was acknowledged")
        row = self._store._runs.get(run_id)
        if row is None or not row.started:
            self._fail(f"P5: {run_id} began before its started mark was in the store")

    def acted(self, run_id: RunId, what: str, *, begins: bool = False) -> None:
        """Judge an irrevocable act of a tool body; `begins` if it is the body's first."""
        self._note("acted", run_id, what)
        if run_id in self._drained:
            self._fail(f"P1: {what} of {run_id} acted after the receipt said drained")
        if begins and what == "guarded" and run_id not in self._allowed:
            self._fail(f"P1: {what} of {run_id} began and nobody had allowed it")
        if begins and run_id in self._over:
            self._fail(f"P1: {what} of {run_id} began after its end was acknowledged")
        if begins and not any(row.name == what for row in self._store._tools.get(run_id, {}).values()):
            self._fail(f"P5: {what} of {run_id} began before its start was on record")

    def returned(self, run_id: RunId) -> None:
        """Note that the agent is about to return, and whether its deadline has passed."""
        deadline, started = self._deadlines.get(run_id), self._started.get(run_id)
        if deadline and started is not None and self._loop.time() >= started + deadline:
            self._deadlines[run_id] = -1.0  # passed: the run may not end as completed

    # Verbs

    async def send(self, session: str, text: str, *, by: str = "local", **options: Any) -> Sent | None:
        """Send, and keep the books; return None if the message was refused."""
        self.follow(session)
        asked = self._loop.time()
        late = options.get("order", ("", 1e9))[1] < self._marked.get(session, 0.0)
        stillborn = (by, options.get("key")) in self._buried
        try:
            sent = await self.control.send(session, text, by=by, **options)
        except InterlockError as refusal:
            self._note("refused", None, type(refusal).__name__)
            # The store's own guard is for what another control has written: one control alone knows the key before.
            if isinstance(refusal, Buried | Taken):
                self._fail(f"P1: control admitted {text!r} and the store refused its key: {refusal}")
            if isinstance(refusal, Unknown):
                self.rights.turn_away(by, session)
            if options.get("key") is None:
                self._refused.add(text)
                self.rights.refuse(text)
                if text in self._begun:
                    self._fail(f"P5: message {text!r} was refused after it ran")
            return None
        self._note("sent", sent.run_id, sent.state)
        self._principals.setdefault(sent.run_id, by)
        self._home.setdefault(sent.run_id, session)
        self.rights.stands(sent.run_id)
        # An ended run was stopped before its right was checked.
        if not sent.state.over and sent.run_id not in self._accepted:
            self._check_right(Deed.SEND, by, session, asked, f"P7: a message of {by} was taken in session {session}")
        self._accepted.setdefault(sent.run_id, session)
        if stillborn:
            self._stillborn.add(sent.run_id)
        if late:
            self._late.add(sent.run_id)
        self._keys.add((by, options.get("key")))
        texts = self._texts.setdefault(sent.run_id, [])
        if text not in texts:
            texts.append(text)
        self._deadlines.setdefault(sent.run_id, options.get("deadline"))
        self._places.setdefault(sent.run_id, options["order"][1] if "order" in options else None)
        if sent.superseded is not None:
            self._mark_over(sent.superseded)
            self._check_takeover(sent, options)
        return sent

    def _check_takeover(self, sent: Sent, options: dict[str, Any]) -> None:
        """Fail if a program without a strategy took over a turn; a wake yields to every message."""
        said = options.get("kind", "chat") != "agent" or options.get("strategy") is not None
        if not said and self._said.get(sent.superseded or RunId(""), ("", ""))[1] not in self._wakes:
            self._fail(f"P7: a program that named no strategy took over {sent.superseded}")

    async def answer(self, question: QuestionId, answer: bool, *, by: str) -> None:
        """Answer a question; an answer may not be accepted after the end of its run."""
        run_id, asked = self.questions.get(question), self._loop.time()
        try:
            await self.control.answer(question, answer, by=by)
        except InterlockError as refusal:
            self._note("answer refused", run_id, type(refusal).__name__)
            return
        self._note("answered", run_id, answer)
        if run_id is not None and run_id in self._over and question in self.questions:
            self._fail(f"P1: question {question} of {run_id} was answered after its end was acknowledged")
        if run_id is not None:
            home = self._home.get(run_id, "")
            self._check_right(Deed.END, by, home, asked, f"P7: {by} answered a question of {run_id}", run_id=run_id)

    async def reset(self, session: str, *, by: str = "local") -> None:
        """Reset a session, and judge that every run in it, at every depth, is over."""
        before, asked = self._living(session), self._loop.time()
        unannounced = self._unannounced(session)
        self._excused.update(unannounced)
        self._renewed.add(session)
        try:
            receipt = await self.control.reset(session, by=by)
        except InterlockError as refusal:
            self._note("reset refused", None, type(refusal).__name__)
            return
        self._note("reset", None, len(receipt.runs))
        self._check_right(Deed.OWN, by, session, asked, f"P7: {by} reset session {session}")
        self._receipt(receipt)
        self._check_all_ended(session, before)
        self._excused.update(self._unannounced(session))
        self._void.update(child for child in unannounced if child not in self._reports)

    async def wake(self, session: str, text: str, *, at: float, by: str) -> None:
        """Schedule a wake, and remember its text."""
        self._wakes.add(text)
        asked = self._loop.time()
        with contextlib.suppress(InterlockError):
            await self.control.wake(session, text, at=at, by=by)
            self._check_right(Deed.OWN, by, session, asked, f"P7: {by} has session {session} woken")

    async def share(self, session: str, who: str, may: str | None, *, by: str) -> None:
        """Share a session, or take the share back (None); the old right counts until the acknowledgement."""
        asked = self._loop.time()
        word = self.rights.say(session, who, may, asked)
        try:
            if may is None:
                await self.control.unshare(session, with_=who, by=by)
            else:
                await self.control.share(session, with_=who, may=may, by=by)
        except InterlockError as refusal:
            self._note("share refused", None, type(refusal).__name__)
            if not isinstance(refusal, Unavailable):  # after Unavailable the change may still come
                word.refuse()
            return
        self._note("shared", None, who, may)
        word.acknowledge(self._loop.time())
        self._check_right(Deed.OWN, by, session, asked, f"P7: {by} shared session {session} with {who}")

    def appoint(self, *readers: str) -> None:
        """Appoint the readers of everything; it counts at once."""
        now = self._loop.time()
        self.control.appoint(readers=readers)
        for who in self._readers.union(readers):
            self.rights.say(EVERYWHERE, who, READ if who in readers else None, now).acknowledge(now)
        self._readers = set(readers)

    def _living(self, session: str) -> list[RunId]:
        """Return the runs of a session's tree that are known to be alive."""
        taken_in = self._joined
        return [run for run, home in self._home.items() if home == session and run not in {*self._terminal, *taken_in}]

    def _check_all_ended(self, session: str, before: list[RunId]) -> None:
        for run_id in before:
            if run_id not in self._terminal and run_id not in self._joined:
                self._fail(f"P1: {run_id} outlived the end of session {session}")

    async def stop(self, **what: Any) -> Receipt:
        """Stop, and judge every later event by the receipt."""
        asked, by = self._loop.time(), what.get("by", "local")
        unseen = "message" in what and self._healthy() and (by, what["message"]) not in self._keys
        ended_before = set(self._terminal)
        before = self._living(what["session"]) if "session" in what and self.rights.is_admin(by) else []
        unannounced = self._unannounced(what.get("session", ""))
        self._excused.update(unannounced)
        if "order" in what:  # the stop spares messages that were written after it
            before = [run for run in before if run in self._places and (self._places[run] or 0) <= what["order"][1]]
        receipt = await self.control.stop(**what)
        if receipt.aborted and not receipt.again:
            self._check_all_ended(what.get("session", ""), before)
        self._excused.update(self._unannounced(what.get("session", "")))
        if not receipt.again and self.rights.is_admin(by) and "order" not in what:
            self._void.update(child for child in unannounced if child not in self._reports)
        if "key" in what:
            came_to = (receipt.id, receipt.aborted, receipt.already)
            if self._stops.setdefault((by, what["key"]), came_to) != came_to:
                self._fail(f"P1: a stop delivered again came to something else: {came_to}")
        session = what.get("session", "")
        if "order" in what and (self.rights.is_admin(by) or by == self.rights.owner(session)):
            self._marked[session] = max(self._marked.get(session, 0), what["order"][1])
        if unseen and not receipt.runs and receipt.already is None and self._healthy():
            self._buried.add((by, what["message"]))
        took = self._loop.time() - asked
        if took > self._patience:
            self._fail(f"P6: stop took {took:.3f} s, more than {self._patience} s")
        self._note("stopped", None, receipt.aborted, len(receipt.runs))
        stopped = any(run.outcome.ending is Ending.STOPPED for run in receipt.runs)
        # At another grade than inline the stop may have ended detached processes alone.
        if receipt.aborted and not (stopped or receipt.again) and receipt.grade == "inline":
            self._fail("P1: the receipt says aborted, and nothing was stopped")
        for run in receipt.runs:
            self._mark_over(run.id)
            if run.outcome.by == by and run.id not in ended_before:
                self._ended_by(run.outcome, since=asked)
        self._receipt(receipt)
        return receipt

    def _healthy(self) -> bool:
        return not (self._store.faults.fail or self._store.faults.stall or self._store.faults.lose)

    async def wait(self, run_id: RunId, **options: Any) -> Outcome:
        """Wait, and compare the outcome with what was told before."""
        try:
            outcome = await self.control.wait(run_id, **options)
        except Unavailable:  # the store has a fault; finish() waits again
            return Outcome(run_id=run_id, ending=Ending.PENDING)
        self._note("waited", run_id, outcome.ending)
        if outcome.ending is Ending.UNKNOWN:
            self._fail(f"P5: {run_id} was accepted and is unknown")
        if outcome.ended:
            self._mark_over(outcome.run_id)
            self._ended(outcome, "wait")
        return outcome

    async def look(self, run_id: RunId, *, by: str, timeout: float) -> None:
        """Wait as a principal who may have no right: an answer needs the right at the instant it is given."""
        self._check_may_ask_current(run_id, by)
        with contextlib.suppress(Unavailable):
            outcome = await self.control.wait(run_id, by=by, timeout=timeout)
            self._note("looked", run_id, outcome.ending)
            # `pending` tells nothing: while the store is silent it is the answer for unknown runs too.
            if outcome.ended:
                told, home = f"P7: {by} was told how {run_id} ended", self._home.get(run_id, "")
                self._check_right(Deed.LOOK, by, home, self._loop.time(), told, run_id=run_id)
        self._check_may_ask_current(run_id, by)

    def _check_may_ask_current(self, run_id: RunId, by: str) -> None:
        if self.control.is_current(run_id, by=by):
            told, home = f"P7: {by} was told that {run_id} is current", self._home.get(run_id, "")
            self._check_right(Deed.LOOK, by, home, self._loop.time(), told, run_id=run_id)

    async def watch(self, session: str, *, pause: float = 0.0, by: str = "local") -> None:
        """Watch as a slow reader, and judge that no delta of a run is read after its acknowledged end."""
        seen = 0
        finished: set[RunId] = set()
        try:
            async with aclosing(self.control.watch(session, by=by)) as events:
                async for event in events:
                    if event.position <= seen:
                        self._fail(f"P2: a watcher was given position {event.position} after {seen}")
                    seen = event.position
                    self._watched(event, finished)
                    told = f"P7: {by} was given {event.kind} of session {session}"
                    self._check_right(Deed.SEE, by, session, self._loop.time(), told)
                    await asyncio.sleep(pause)
        except InterlockError as refusal:
            self._note("watch refused", None, type(refusal).__name__)

    def _watched(self, event: Event, finished: set[RunId]) -> None:
        if event.run_id in finished:
            self._fail(f"P2: a watcher was given {event.kind} of {event.run_id} after its terminal event")
        if event.kind in PASSING and event.run_id in self._over and self._cut(event.run_id):
            self._fail(f"P1: a watcher was given a {event.kind} of {event.run_id} after its end")
        if event.kind is EventKind.ENDED and event.run_id is not None:
            finished.add(event.run_id)

    def _cut(self, run_id: RunId | None) -> bool:
        outcome = self._told.get(run_id) if run_id is not None else None
        return outcome is not None and outcome.ending not in (Ending.COMPLETED, Ending.FAILED)

    # Endings

    def _ended(self, outcome: Outcome, where: str) -> None:
        known = self._told.setdefault(outcome.run_id, outcome)
        if not known.same_story(outcome):
            self._fail(f"P4: {where} tells {outcome}, earlier it was {known}")
        if outcome.ending is Ending.COMPLETED and self._deadlines.get(outcome.run_id) == -1.0:
            self._fail(f"P4: {outcome.run_id} returned after its deadline and is told as completed")

    def _check_child_limit(self, outcome: Outcome) -> None:
        """Fail if a child that passed the limit of all children is not told as timed out.

        A child is excused if its parent's limit was earlier, or if it had returned in time in its host.
        """
        limit, began, over = self.control.settings.child_deadline, outcome.started_at, outcome.ended_at
        if outcome.run_id not in self._delegated or limit is None or began is None or over is None:
            return
        excused = outcome.limit_of is not None or (self._hosted and outcome.ending in (Ending.COMPLETED, Ending.FAILED))
        if over - began > limit and not excused:
            self._fail(f"P4: {outcome.run_id} went on for longer than a child may and is told as {outcome.ending}")

    def _receipt(self, receipt: Receipt) -> None:
        for run in receipt.runs:
            self._ended(run.outcome, "a receipt")
            if receipt.drain is Drain.OBSERVED or _only_dropped(receipt):
                self._drained.add(run.id)
            if receipt.drain is not Drain.PENDING:
                self._gone.add(run.id)

    # Rights

    @property
    def _patience(self) -> float:
        """The seconds that a stop may take; so a right that an event needs may have been checked that long ago."""
        return 2 * self.control.settings.commit_seconds + STOP_SLACK_SECONDS

    def _check_right(
        self, deed: Deed, by: str, session: str, since: float, told: str, run_id: RunId | None = None
    ) -> None:
        """Fail if a principal did or saw something without having the right at some instant from `since` on."""
        principal = None if run_id is None else self._principals.get(run_id, by)
        wrong = self.rights.wrong(Act(deed, by, session, since, self._loop.time(), told, run_id, principal))
        if wrong is not None:
            self._fail(wrong)

    def _ended_by(self, outcome: Outcome, since: float) -> None:
        """Judge who stopped a run or took it over; a wake yields to every message."""
        run_id, by = outcome.run_id, outcome.by
        taken_over = outcome.ending is Ending.SUPERSEDED and self._said.get(run_id, ("", ""))[1] not in self._wakes
        if by is None or not (outcome.ending is Ending.STOPPED or taken_over):
            return
        principal, home = self._principals.get(run_id, by), self._home.get(run_id, "")
        told = f"P7: {by} {'took over' if taken_over else 'stopped'} {run_id} of {principal}"
        self._check_right(Deed.END, by, home, since, told, run_id=run_id)

    # The end

    async def finish(self) -> None:
        """Judge, after the scenario, that every accepted message ended, once and everywhere the same."""
        for run_id in [*self._accepted, *self._delegated]:
            outcome = await self.wait(run_id, drained=True)  # the loop raises Stuck if this waits for ever
            if not outcome.ended:
                self._fail(f"P5: {run_id} was accepted and never ended")
            if outcome.run_id != run_id:
                self._check_absorbed(run_id)
                continue
            if run_id in self._late and outcome.ending is not Ending.STOPPED:
                self._fail(f"P1: {run_id} was written before a stop, came after it, and ended {outcome.ending}")
            if run_id not in self._terminal:
                self._fail(f"P2: {run_id} ended and had no terminal event")
            if run_id in self._stillborn and outcome.ending is not Ending.STOPPED:
                self._fail(f"P1: the key of {run_id} was stopped before it was seen, and it ended {outcome.ending}")
            row = self._store._runs.get(run_id)
            if row is not None and row.outcome is not None:
                self._ended(row.outcome, "the store")
            if outcome.ending is Ending.COMPLETED:
                for text in self._texts.get(run_id, ()):
                    if self._begun.get(text) != 1:
                        self._fail(f"P5: {run_id} completed, and {text!r} was seen {self._begun.get(text, 0)} times")
            again = await self.control.receipt(run_id)
            self._receipt(again)
        for session in self._sinks:
            await self._check_transcript(session)
        for old, new in self._superseded.items():
            if self._said.get(new, ("", ""))[1] in self._wakes:
                self._fail(f"P1: a wake took over {old}")
            if new in self._reports.values():
                self._fail(f"P7: the announcement {new} took over {old}")
            if not (await self.control.wait(new, timeout=0)).ended:
                self._fail(f"P4: {old} was told as superseded by {new}, which nobody can find")
        self._check_holds()
        await self._check_announcements()
        # After this time the end of every message that founded a session is published.
        await asyncio.sleep(self._patience)
        if (wrong := self.rights.wrong_in_the_end()) is not None:
            self._fail(wrong)
        self.finished = True

    async def _check_announcements(self) -> None:
        """Judge that every wanted announcement that no stop voided was made, and that every announcement has ended."""
        for child, home in self._detached.items():
            row = self._store._runs.get(child)
            wanted = row is not None and row.announce is not None and child not in self._excused
            sure = self._principals.get(child) == self.rights.owner(home)  # another's right may be gone by then
            if wanted and sure and child not in self._reports:
                self._fail(f"P5: {child} ended and was not announced in {home}")
        for report in self._reports.values():
            if not (await self.wait(report, drained=True)).ended:
                self._fail(f"P5: the announcement {report} never ended")

    def _check_absorbed(self, run_id: RunId) -> None:
        """Judge that an absorbed message was handed to the absorbing run's agent once."""
        for text in self._texts[run_id]:
            if self._begun.get(text) != 1:
                self._fail(f"P5: {text!r} was taken in by another run and seen {self._begun.get(text, 0)} times")

    async def _check_transcript(self, session: str) -> None:
        """Judge that a model can read the transcript: every call has one result, behind it; no run is cut twice."""
        if self._store._sessions.get(SessionId(session)) is None:
            return
        calls: dict[object, int] = {}
        cuts: set[RunId] = set()
        history = await self.control.history(session)
        if session not in self._renewed:
            told = {(entry.run_id, entry.text) for entry in history}
            for run_id, (where, text) in self._said.items():
                if where == session and run_id not in self._joined and (run_id, text) not in told:
                    self._fail(f"P5: {text!r} is missing in the transcript of {session}")
        for entry in history:
            if entry.role == "call":
                calls[entry.call_id] = 0
            elif entry.role == "result":
                if entry.call_id not in calls:
                    self._fail(f"P1: a result of {entry.call_id} without its call")
                calls[entry.call_id] += 1
            if entry.cut and entry.run_id in cuts:
                self._fail(f"P2: the partial text of {entry.run_id} stands twice")
            if entry.cut:
                cuts.add(entry.run_id)
        for call, results in calls.items():
            if results != 1:
                self._fail(f"P1: call {call} has {results} results in the transcript")

    def _note(self, what: object, run_id: RunId | None, *more: object) -> None:
        number = None if run_id is None else self._numbers.setdefault(run_id, len(self._numbers))
        self.trace.append((what, number, *more))

    def _fail(self, text: str) -> None:
        """Keep the first violation, then raise it: code further up may swallow the exception."""
        violation = Violation(text)
        if self.violation is None:
            self.violation = violation
            if self.judging is not None:
                self.judging.cancel()  # the scenario might wait for an answer that never comes
        raise violation


__all__ = ["Oracle", "Violation"]


def _only_dropped(receipt: Receipt) -> bool:
    """Return whether only dropped code is unconfirmed: it is never resumed, so it acts no more either."""
    return bool(receipt.unconfirmed) and all(name.endswith(DROPPED) for name in receipt.unconfirmed)
