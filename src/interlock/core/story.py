"""The one reading of a run's events: what each of them changes, and how the run stands after it.

1. `take` returns what an event changed, in the words of events. Transcript, timeline, recovery, the wordings, the
   shell and the page are views of these changes. Were the events read in a second place, two surfaces could tell one
   run in two ways.
2. The joined deltas of the changes are the reply, blank lines between blocks included. A block or a `cut` may be longer
   than the deltas before it: `take` then returns the missing text as one more delta, before the block or the end.
3. `take` returns an end as all that it closes (text, calls, questions, children, typing), and then the end itself.
4. The end seals a story: a later event of the run changes nothing. Only a receipt and a correction may follow.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from interlock.core import events
from interlock.core.events import Data, Delta, Entry, Event
from interlock.core.names import (
    PASSING,
    CallId,
    Ending,
    ProcessState,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.projection import tool_words
from interlock.core.receipt import Receipt

BETWEEN = "\n\n"
"""The blank line between two blocks of a reply."""

OPEN_CALLS = frozenset({ToolState.PENDING, ToolState.RUNNING})
"""The states of a tool call that has no result yet."""

SEALED_RUNS = 4_096  # runs that a conversation has forgotten, and whose late events still change nothing


class Story:
    """One run, as its events tell it so far."""

    __slots__ = (
        "blocks", "calls", "children", "messages", "open", "outcome", "processes", "questions", "receipt", "started_at",
        "typing",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages: list[events.MessageData] = []  # the run's own, and those that it absorbed
        self.started_at: float | None = None
        self.blocks: list[str] = []
        self.open: list[str] = []  # deltas that no block has closed; after the end, the unfinished text
        self.typing = False
        self.calls: dict[CallId, events.Tool] = {}  # an open call with its arguments, a closed one without its result
        self.questions: dict[QuestionId, events.QuestionData] = {}
        self.children: dict[RunId, events.ChildData] = {}
        self.processes: list[events.ProcessData] = []
        self.outcome: Outcome | None = None
        self.receipt: Receipt | None = None  # as it was last published in this session

    @property
    def text(self) -> str:
        """The reply so far."""
        return BETWEEN.join([*self.blocks, "".join(self.open)] if self.open else self.blocks)

    @property
    def between(self) -> str:
        """The beginning of the reply's next text: a blank line if that text begins another block, or else nothing."""
        return BETWEEN if self.blocks and not self.open else ""

    def take(self, event: Event) -> tuple[Data, ...]:
        """Fold an event of the run, or a receipt or correction about it; return what changed, or () for a late event.

        A delta costs no copy of the text so far.
        """
        data = event.data
        if type(data) is Delta and self.outcome is None:
            grown = data if self.open or not self.blocks else Delta(text=BETWEEN + data.text)
            self.open.append(data.text)
            return (grown,)
        match data:
            case events.ReceiptData(receipt=receipt):
                self.receipt = receipt
            case events.Correction(outcome=outcome) if self.outcome is not None:
                self.outcome = outcome
            case _ if self.outcome is not None:
                return ()
            case events.MessageData():
                self.messages.append(data)
            case events.Started():
                self.started_at = event.at
            case events.Block(text=text):
                rest = self._close(text)
                self.blocks.append(text)
                return (*rest, data)
            case events.Typing(on=on):
                self.typing = on
            case events.Tool():
                self._call(data)
            case events.QuestionData(question_id=question):
                self.questions[question] = data
            case events.ChildData(child=child):
                self.children[child] = data
            case events.ProcessData():
                self._process(data)
            case events.Ended():
                return (*self._end(data), data)
        return (data,)

    def _close(self, text: str) -> tuple[Delta, ...]:
        """Close the open text as `text`; return the part of it that no delta held."""
        heard = "".join(self.open)
        # Deltas that were missed: set the whole text apart from those that were heard.
        rest = self.between + text[len(heard) :] if text.startswith(heard) else BETWEEN + text
        self.open.clear()
        return (Delta(text=rest),) if rest else ()

    def _call(self, tool: events.Tool) -> None:
        if tool.state in OPEN_CALLS:
            first = self.calls.get(tool.call_id, tool)
            self.calls[tool.call_id] = replace(first, state=tool.state)
        else:
            self.calls[tool.call_id] = events.Tool(call_id=tool.call_id, name=tool.name, state=tool.state)

    def _process(self, told: events.ProcessData) -> None:
        """Put a process that ended in the place of its start: the start with its pid, or else the first alike."""
        alike = [at for at, begun in enumerate(self.processes) if _ends(told, begun)]
        at = max(alike, key=lambda at: self.processes[at].pid == told.pid, default=len(self.processes))
        self.processes[at : at + 1] = [told]

    def _end(self, ended: events.Ended) -> Iterator[Data]:
        """Seal the story; yield what the end closes."""
        if ended.cut:
            yield from self._close(ended.cut)
        self.open = [ended.cut] if ended.cut else []
        for tool in ended.tools:
            self._call(tool)
            yield tool
        still_open = (each for each, asked in self.questions.items() if asked.state is QuestionState.OPEN)
        for question in dict.fromkeys((*ended.void, *still_open)):
            unknown = events.QuestionData(question_id=question, text="", state=QuestionState.OPEN)
            void = replace(self.questions.get(question, unknown), state=QuestionState.VOID)
            self.questions[question] = void
            yield void
        for end in ended.children:
            began = events.ChildData(child=end.child, session=SessionId(""), agent=end.agent)
            began = self.children.get(end.child, began)
            child = replace(began, outcome=began.outcome or Outcome(run_id=end.child, ending=end.ending))
            self.children[end.child] = child
            yield child
        if self.typing:
            self.typing = False
            yield events.Typing(on=False)
        self.outcome = ended.outcome


def _ends(told: events.ProcessData, begun: events.ProcessData) -> bool:
    """Return whether an event ends a process. The event of its start had no pid, so command and name are compared."""
    if told.state is ProcessState.RUNNING or begun.state is not ProcessState.RUNNING:
        return False
    return (told.command, told.name, told.background) == (begun.command, begun.name, begun.background)


class Conversation:
    """A session's stories, each where its turn began."""

    def __init__(self) -> None:
        self.stories: dict[RunId, Story] = {}
        self._turns: dict[RunId, list[Entry]] = {}  # in the order in which they began
        self._waiting: dict[RunId, list[Entry]] = {}  # messages of turns that have not begun
        self._called: dict[RunId, set[CallId]] = {}  # calls that have an entry
        self._sealed: dict[RunId, None] = {}  # runs that were forgotten
        self._generation = 0  # the lowest generation whose passing events still count

    def take(self, event: Event) -> tuple[Data, ...]:
        """Fold an event; return what changed, or () for an event that comes too late to count.

        A delta, typing or progress counts only while its run has the seat: not behind the start of a newer run.
        """
        run_id, data = event.run_id, event.data
        if run_id is None:
            for about in _runs_about(data) & self.stories.keys():
                self.stories[about].take(event)
            return (data,)
        passing, generation = data.kind in PASSING, event.generation or 0
        late = passing and event.generation is not None and generation < self._generation
        if late or run_id in self._sealed:
            return ()
        story = self.stories.get(run_id)
        if story is None:
            story = self.stories[run_id] = Story()
        changes = story.take(event)
        if isinstance(data, events.Started | events.Ended) and changes:
            self._generation = max(self._generation, generation + isinstance(data, events.Ended))
        for change in () if passing else changes:
            self._record(run_id, change)
        return changes

    def between(self, run_id: RunId | None) -> str:
        """Return the beginning of a run's next text: a blank line if that text begins another block."""
        return "" if run_id is None or run_id not in self.stories else self.stories[run_id].between

    def entries(self) -> list[Entry]:
        """Return the transcript. Entries of a rolled-back turn are marked `hidden`, not left out."""
        return [entry for run_id, turn in self._turns.items() for entry in self._shown(run_id, turn)]

    def forget(self, run_id: RunId) -> None:
        """Drop a run that has ended; its late events still change nothing."""
        for runs in (self.stories, self._turns, self._waiting, self._called):
            runs.pop(run_id, None)
        self._sealed[run_id] = None
        if len(self._sealed) > SEALED_RUNS:
            del self._sealed[next(iter(self._sealed))]

    def _record(self, run_id: RunId, change: Data) -> None:
        match change:
            case events.MessageData(of=of):
                said = Entry(role="user", run_id=run_id, text=change.text, by=change.by, child=change.child)
                # A message that a turn absorbs after it has begun (a steered message) stands right here. Any other
                # message waits until its turn begins.
                if of is not None and run_id not in self._waiting:
                    self._waiting.pop(of, None)
                    self._add(run_id, said)
                else:
                    self._waiting.setdefault(run_id, []).append(said)
            case events.Started():
                self._add(run_id)
            case events.Block(text=text):
                self._add(run_id, Entry(role="assistant", run_id=run_id, text=text))
            case events.Tool(state=ToolState.PENDING):
                call, given = change.call_id, change.arguments
                self._called.setdefault(run_id, set()).add(call)
                self._add(run_id, Entry(role="call", run_id=run_id, call_id=call, tool=change.name, arguments=given))
            # Leave out a result whose call is not in this part of the log: a model refuses a result without its call.
            case events.Tool(state=state) if state not in OPEN_CALLS and change.call_id in self._called.get(run_id, ()):
                self._add(run_id, _result(run_id, change))
            case events.Ended(outcome=outcome, cut=cut):
                self._add(run_id)
                if cut or outcome.ending is not Ending.COMPLETED:
                    last = Entry(role="assistant", run_id=run_id, text=cut, cut=True, ending=outcome.ending)
                    self._add(run_id, last)

    def _add(self, run_id: RunId, *entries: Entry) -> None:
        self._turns.setdefault(run_id, []).extend([*self._waiting.pop(run_id, []), *entries])

    def _shown(self, run_id: RunId, turn: list[Entry]) -> list[Entry]:
        outcome = self.stories[run_id].outcome
        hidden = outcome is not None and outcome.hidden
        return [replace(entry, hidden=True) for entry in turn] if hidden else turn


def _runs_about(data: Data) -> set[RunId]:
    """Return the runs that an event of the session is about."""
    if isinstance(data, events.ReceiptData):
        return {run.id for run in data.receipt.runs}
    return {data.outcome.run_id} if isinstance(data, events.Correction) else set()


def _result(run_id: RunId, tool: events.Tool) -> Entry:
    nothing = tool_words(tool.state) if tool.state in (ToolState.SKIPPED, ToolState.INTERRUPTED) else ""
    text = tool.error or tool.result or nothing
    return Entry(role="result", run_id=run_id, call_id=tool.call_id, tool=tool.name, text=text, state=tool.state)


def transcript(log: Iterable[Event]) -> list[Entry]:
    """Return the conversation that a log tells. The log may lack its deltas, or its oldest part.

    A turn stands where it began: a message that waits is no part of the conversation yet. A message that a running turn
    absorbed stands inside that turn, where it was absorbed.
    """
    told = Conversation()
    for event in log:
        told.take(event)
    return told.entries()
