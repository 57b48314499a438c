"""Random histories of a session, as the runtime would publish them.

A history has several runs, one at a time in the seat: messages that wait, are absorbed or end unrun; texts, tools,
questions, children and processes; ends of every kind; receipts, gaps and corrections. `logs` adds what a store does to
a history: passing events of ended runs leave it, and its beginning may be pruned.
"""

from collections.abc import Callable

from hypothesis import strategies as st

from interlock.core.events import (
    Block,
    ChildData,
    ChildEnd,
    Correction,
    Data,
    Delta,
    Ended,
    Event,
    Gap,
    Json,
    MessageData,
    Phase,
    ProcessData,
    Progress,
    QuestionData,
    ReceiptData,
    Started,
    Tool,
    Typing,
)
from interlock.core.names import (
    EARLY,
    ENDINGS,
    PASSING,
    CallId,
    Drain,
    Ending,
    Principal,
    ProcessState,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt

ALICE, S = Principal("alice"), SessionId("s")
WORDS = ("a", "b\n", "ab", "\n\nc", "ä😀", "<b>x</b>")
CLOSED = (ToolState.FINISHED, ToolState.FAILED, ToolState.SKIPPED, ToolState.INTERRUPTED, ToolState.ABANDONED)


class Run:
    """A run of a history, with all that its end must close."""

    def __init__(self, run_id: RunId) -> None:
        self.id = run_id
        self.generation: int | None = None
        self.text = ""
        self.calls: dict[CallId, bool] = {}  # open ones: whether the call was permitted
        self.questions: list[QuestionId] = []
        self.children: list[RunId] = []
        self.processes: list[ProcessData] = []


class Scribe:
    """Writes a history, one step at a time."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.events: list[Event] = []
        self.seat: Run | None = None
        self.waiting: list[Run] = []
        self.ended: list[tuple[RunId, Outcome]] = []
        self._draw = draw
        self._count = 0
        self._generation = 0

    def name(self, letter: str) -> str:
        """Return a name that is new in this history."""
        self._count += 1
        return f"{letter}-1-{self._count:x}"

    def one(self, *choices: object) -> object:
        """Draw one of the choices."""
        return self._draw(st.sampled_from(choices))

    def tell(self, run: Run | None, data: Data) -> None:
        """Publish an event."""
        place = len(self.events) + 1
        self.events.append(
            Event(
                position=place,
                at=100.0 + place,
                session=S,
                run_id=None if run is None else run.id,
                generation=None if run is None else run.generation,
                data=data,
            )
        )

    # Messages

    def arrive(self) -> None:
        """Accept a message, or the announcement of a child's ending; let it run, or wait."""
        run = Run(RunId(self.name("r")))
        child = RunId(self.name("k")) if self.one(False, False, True) else None
        self.tell(run, MessageData(text=f"to {run.id}", by=ALICE, child=child))
        self.waiting.append(run)
        if self.seat is None:
            self.start()

    def start(self) -> None:
        """Give the seat to the message that waits longest."""
        if self.seat is None and self.waiting:
            self.seat = run = self.waiting.pop(0)
            self._generation += 1
            run.generation = self._generation
            self.tell(run, Started())

    def absorb(self) -> None:
        """Let the seated run, or one that waits, absorb a message: a new one, or one that was told as waiting."""
        takers = [run for run in (self.seat, *self.waiting) if run is not None]
        if takers:
            taker = self._draw(st.sampled_from(takers))
            others = [run for run in self.waiting if run is not taker and taker is self.seat]
            part = RunId(self.name("r"))
            if others and self.one(False, True):
                gone = self._draw(st.sampled_from(others))
                self.waiting.remove(gone)
                part = gone.id
            self.tell(taker, MessageData(text=f"part {part}", by=ALICE, of=part))

    def end_unrun(self) -> None:
        """End a message that waits: it is stopped, or it is a note, which never runs."""
        if self.waiting:
            run = self._draw(st.sampled_from(self.waiting))
            self.waiting.remove(run)
            self._ended(run, Ending(self.one(Ending.STOPPED, Ending.COMPLETED)))

    # Effects of the seated run

    def say(self, run: Run) -> None:
        """Publish a delta."""
        text = str(self.one(*WORDS))
        run.text += text
        self.tell(run, Delta(text=text))

    def close_block(self, run: Run, more: str = "") -> None:
        """Close the open text, which may be longer than its deltas."""
        if run.text + more:
            self.tell(run, Block(text=run.text + more))
        run.text = ""

    def post(self, run: Run) -> None:
        """Publish a whole block."""
        self.close_block(run)
        self.close_block(run, str(self.one(*WORDS)))

    def sign(self, run: Run) -> None:
        """Publish typing, progress or a phase."""
        self.tell(
            run, self.one(Typing(on=True), Typing(on=False), Progress(text="half"), Phase(name="p"), Phase(name=None))
        )

    def call(self, run: Run) -> None:
        """Record one call or a batch."""
        self.close_block(run)
        for _ in range(int(self.one(1, 1, 3))):
            call = CallId(self.name("c"))
            run.calls[call] = False
            self.tell(run, Tool(call_id=call, name="t", state=ToolState.PENDING, arguments=Json('{"n":1}')))

    def result(self, run: Run) -> None:
        """Move an open call: permit it, or give it its result."""
        if run.calls:
            call = self._draw(st.sampled_from(sorted(run.calls)))
            if not run.calls[call] and self.one(True, True, False):
                run.calls[call] = True
                self.tell(run, Tool(call_id=call, name="t", state=ToolState.RUNNING))
                return
            state = self.one(*CLOSED) if run.calls.pop(call) else ToolState.SKIPPED
            told = {ToolState.FINISHED: {"result": Json("1")}, ToolState.FAILED: {"error": "E: x"}}
            self.tell(run, Tool(call_id=call, name="t", state=state, **told.get(state, {})))

    def ask(self, run: Run) -> None:
        """Open a question, or close one."""
        if run.questions and self.one(True, False):
            question = run.questions.pop(0)
            state = self.one(QuestionState.ANSWERED, QuestionState.EXPIRED, QuestionState.VOID)
            told = {"answer": True, "by": ALICE} if state is QuestionState.ANSWERED else {}
            self.tell(run, QuestionData(question_id=question, text=f"{question}?", state=state, **told))
        else:
            run.questions.append(question := QuestionId(self.name("q")))
            self.tell(run, QuestionData(question_id=question, text=f"{question}?", state=QuestionState.OPEN))

    def delegate(self, run: Run) -> None:
        """Begin a child, or end one."""
        if run.children and self.one(True, False):
            child = run.children.pop(0)
            outcome = Outcome(run_id=child, ending=Ending.COMPLETED, text="done")
            self.tell(run, ChildData(child=child, session=SessionId(f"run:{child}"), agent="a", outcome=outcome))
        else:
            child, detached = RunId(self.name("r")), bool(self.one(False, True))
            if not detached:
                run.children.append(child)
            self.tell(run, ChildData(child=child, session=SessionId(f"run:{child}"), agent="a", detached=detached))

    def spawn(self, run: Run) -> None:
        """Start a process, or let one exit."""
        if run.processes and self.one(True, False):
            begun = run.processes.pop(int(self.one(0, -1)))
            state = ProcessState(self.one(ProcessState.EXITED, ProcessState.FAILED))
            exited = ProcessData(command=begun.command, name=begun.name, state=state, pid=7, status=1, tail="bye")
            self.tell(run, exited)
        else:
            command, name = str(self.one("sleep 1", "true")), self.one(None, "n")
            run.processes.append(begun := ProcessData(command=command, name=name, state=ProcessState.RUNNING))
            self.tell(run, begun)

    # Endings

    def end(self, run: Run) -> None:
        """End the seated run; the next message that waits may begin."""
        self.seat = None
        self._ended(run, Ending(self.one(*(sorted(EARLY) if run.calls or run.questions else sorted(ENDINGS)))))
        if self.one(True, True, False):
            self.start()

    def _ended(self, run: Run, ending: Ending) -> None:
        if ending is Ending.COMPLETED:
            self.close_block(run, str(self.one("", "", " and more")) if run.generation else "")
        tools = tuple(
            Tool(call_id=call, name="t", state=ToolState.INTERRUPTED if begun else ToolState.SKIPPED, error="cut")
            for call, begun in run.calls.items()
        )
        ended_at = self.one(None, 100.5 + len(self.events))
        hidden = ending is Ending.SUPERSEDED and bool(self.one(True, False))
        outcome = Outcome(run_id=run.id, ending=ending, text=run.text, ended_at=ended_at, hidden=hidden)  # type: ignore[arg-type]
        children = tuple(ChildEnd(child=child, agent="a", ending=Ending.PARENT_ENDED) for child in run.children)
        void = tuple(run.questions)
        self.tell(run, Ended(outcome=outcome, cut=run.text, tools=tools, void=void, children=children))
        self.ended.append((run.id, outcome))

    # The session's own

    def prove(self) -> None:
        """Publish a receipt: of a fall in this session, or of one in the session's home."""
        if self.ended:
            run_id, outcome = self._draw(st.sampled_from(self.ended))
            home = SessionId(str(self.one(S, S, "home")))
            runs = (FallenRun(id=run_id, outcome=outcome),)
            drain = Drain(self.one(*Drain))
            proof = Receipt(
                id=ReceiptId(f"f-{run_id}"), session=home, cause=outcome.ending, runs=runs, drain=drain, fenced_at=1.0
            )
            self.tell(None, ReceiptData(receipt=proof))

    def correct(self) -> None:
        """Correct an ending."""
        if self.ended:
            run_id, outcome = self._draw(st.sampled_from(self.ended))
            self.tell(None, Correction(outcome=Outcome(run_id=run_id, ending=Ending.LOST, hidden=outcome.hidden)))

    def step(self) -> None:
        """Do something that is possible now."""
        session = (
            self.arrive,
            self.arrive,
            self.start,
            self.absorb,
            self.end_unrun,
            self.prove,
            self.correct,
            self.miss,
        )
        effects = (
            self.say,
            self.say,
            self.say,
            self.close_block,
            self.post,
            self.sign,
            self.call,
            self.result,
            self.result,
        )
        effects += (self.ask, self.delegate, self.spawn, self.end)
        if self.seat is not None and self.one(True, True, True, False):
            self.one(*effects)(self.seat)
        else:
            self.one(*session)()

    def miss(self) -> None:
        """Publish a gap."""
        self.tell(None, Gap(after=max(0, len(self.events) - 1)))


@st.composite
def histories(draw: Callable[..., object], steps: int = 30) -> list[Event]:
    """Return what a subscriber hears that listens from the beginning; the last runs may not have ended."""
    scribe = Scribe(draw)
    for _ in range(draw(st.integers(0, steps))):
        scribe.step()
    return scribe.events


def stored(events: list[Event]) -> list[Event]:
    """Return a history as a store keeps it: without the passing events of runs that have ended."""
    over = {event.run_id for event in events if isinstance(event.data, Ended)}
    return [event for event in events if event.kind not in PASSING or event.run_id not in over]


@st.composite
def logs(draw: Callable[..., object]) -> list[Event]:
    """Return a history as a reader may find it: live or stored, with some deltas missed, with its beginning pruned."""
    events = draw(histories())
    kept = {"live": events, "stored": stored(events), "missed": [e for e in events if not _missed(e)]}
    told = kept[draw(st.sampled_from(sorted(kept)))]
    return told[draw(st.integers(0, len(told) // 2)) :] if draw(st.booleans()) else told


def _missed(event: Event) -> bool:
    return event.kind in PASSING and event.position % 3 == 0
