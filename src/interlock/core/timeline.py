"""A run's life in a few lines, made from the log and the receipt; nothing is stored for the timeline alone.

Events carry `at`, the time of day, for this file. People read the time, and no decision depends on it. Deltas leave the
log when their run ends, so of each text the timeline shows only its length and the time at which it was complete.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from interlock.core.events import (
    Block,
    ChildData,
    Ended,
    Event,
    MessageData,
    Phase,
    ProcessData,
    QuestionData,
    Started,
    Tool,
)
from interlock.core.names import Drain, QuestionId, RunId
from interlock.core.receipt import Receipt


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a timeline. `what` is the kind of moment, for programs.

    `name` is the phase, tool, command, question or agent that the moment is about. For `refused`, `name` is the
    effect; for `admitted` and `joined`, the sender; for `fell`, the principal who ended the run, if one did.
    """

    at: float
    what: str  # admitted, joined, started, phase, tool, process, output, question, child, fell, refused, ended, drained
    name: str = ""
    state: str = ""
    detail: str = ""  # of a question: the answer and its author; of output: its length; of a process: its exit status
    count: int = 1


def timeline(run_id: RunId, events: Iterable[Event], receipt: Receipt | None = None) -> list[Moment]:
    """Return the moments of a run, in order."""
    mine = [event for event in events if event.run_id == run_id]
    asked = {event.data.question_id: event.data.text for event in mine if isinstance(event.data, QuestionData)}
    fell = next((event.data.outcome.ended_at or event.at for event in mine if isinstance(event.data, Ended)), inf)
    moments = [moment for event in mine for moment in _moments(event, fell, receipt, asked)]
    if receipt is not None and receipt.drained_at is not None and receipt.drain is not Drain.PENDING:
        moments.append(Moment(at=receipt.drained_at, what="drained", state=receipt.drain))
    return moments


def _moments(event: Event, fell: float, receipt: Receipt | None, asked: dict[QuestionId, str]) -> list[Moment]:
    # The blocks that close a reply are published at t1, but the fall decided them: date them at the fall.
    at = min(event.at, fell)
    match event.data:
        case MessageData(of=joined):
            return [Moment(at=at, what="admitted" if joined is None else "joined", name=event.data.by)]
        case Started():
            return [Moment(at=at, what="started")]
        case Block(text=text):
            return [Moment(at=at, what="output", state="said", detail=f"{len(text):,} characters")]
        case Phase(name=name):
            return [Moment(at=at, what="phase", name=name or "", state="" if name else "left")]
        case Tool(name=name, state=state):
            return [Moment(at=at, what="tool", name=name, state=state)]
        case ProcessData(command=command, state=state, status=status):
            detail = "" if status is None else str(status)
            return [Moment(at=at, what="process", name=command, state=state, detail=detail)]
        case QuestionData(text=text, state=state, by=by):
            detail = "" if by is None else f"{event.data.answer} by {by}"
            return [Moment(at=at, what="question", name=text, state=state, detail=detail)]
        case ChildData(agent=agent, outcome=outcome):
            return [Moment(at=at, what="child", name=agent, state="begun" if outcome is None else outcome.ending)]
        case Ended():
            return _ending(event.at, fell, event.data, receipt, asked)
        case _:
            return []


def _ending(at: float, fell: float, end: Ended, receipt: Receipt | None, asked: dict[QuestionId, str]) -> list[Moment]:
    moments = [Moment(at=fell, what="fell", name=end.outcome.by or "", state=end.outcome.ending)]
    if end.cut:
        moments.append(Moment(at=fell, what="output", state="cut", detail=f"{len(end.cut):,} characters"))
    moments += [Moment(at=fell, what="tool", name=tool.name, state=tool.state) for tool in end.tools]
    moments += [Moment(at=fell, what="question", name=asked.get(key, key), state="void") for key in end.void]
    moments += [Moment(at=fell, what="child", name=child.agent, state=child.ending) for child in end.children]
    for run in () if receipt is None else receipt.runs:
        if run.id == end.outcome.run_id:
            moments += [Moment(at=at, what="refused", name=kind, count=n) for kind, n in run.refused.items()]
    return [*moments, Moment(at=at, what="ended", state=end.outcome.ending)]
