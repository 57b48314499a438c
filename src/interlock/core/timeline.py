"""A run's life in a few lines, made from the log and the receipt; nothing is stored for the timeline alone.

Events carry `at`, the time of day, for this file. People read the time, and no decision depends on it. Deltas leave the
log when their run ends, so of each text the timeline shows only its length and the time at which it was complete.
"""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from interlock.core import events
from interlock.core.events import Data, Event
from interlock.core.names import Drain, RunId
from interlock.core.receipt import Receipt
from interlock.core.story import Story


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


def timeline(run_id: RunId, log: Iterable[Event], receipt: Receipt | None = None) -> list[Moment]:
    """Return the moments of a run, in order."""
    story = Story()
    moments: list[Moment] = []
    for event in log:
        *closed, last = (story.take(event) if event.run_id == run_id else ()) or (None,)
        if isinstance(last, events.Ended):
            fell = last.outcome.ended_at or event.at
            # The blocks that close a reply are published at t1, but the fall decided them: date them at the fall.
            moments = [replace(moment, at=min(moment.at, fell)) for moment in moments]
            moments += [*_fall(fell, last), *_moments(fell, closed), *_refused(event.at, run_id, receipt)]
            moments.append(Moment(at=event.at, what="ended", state=last.outcome.ending))
        else:
            moments += _moments(event.at, [last])
    if receipt is not None and receipt.drained_at is not None and receipt.drain is not Drain.PENDING:
        moments.append(Moment(at=receipt.drained_at, what="drained", state=receipt.drain))
    return moments


def _fall(at: float, end: events.Ended) -> Iterator[Moment]:
    yield Moment(at=at, what="fell", name=end.outcome.by or "", state=end.outcome.ending)
    if end.cut:
        yield Moment(at=at, what="output", state="cut", detail=f"{len(end.cut):,} characters")


def _refused(at: float, run_id: RunId, receipt: Receipt | None) -> Iterator[Moment]:
    for run in () if receipt is None else receipt.runs:
        if run.id == run_id:
            yield from (Moment(at=at, what="refused", name=kind, count=n) for kind, n in run.refused.items())


def _moments(at: float, changes: Iterable[Data | None]) -> Iterator[Moment]:
    for change in changes:
        match change:
            case events.MessageData(of=joined, by=by):
                yield Moment(at=at, what="admitted" if joined is None else "joined", name=by)
            case events.Started():
                yield Moment(at=at, what="started")
            case events.Block(text=text):
                yield Moment(at=at, what="output", state="said", detail=f"{len(text):,} characters")
            case events.Phase(name=name):
                yield Moment(at=at, what="phase", name=name or "", state="" if name else "left")
            case events.Tool(name=name, state=state):
                yield Moment(at=at, what="tool", name=name, state=state)
            case events.ProcessData(command=command, state=state, status=status):
                detail = "" if status is None else str(status)
                yield Moment(at=at, what="process", name=command, state=state, detail=detail)
            case events.QuestionData(question_id=question, text=text, state=state, by=by):
                detail = "" if by is None else f"{change.answer} by {by}"
                yield Moment(at=at, what="question", name=text or question, state=state, detail=detail)
            case events.ChildData(agent=agent, outcome=outcome):
                yield Moment(at=at, what="child", name=agent, state="begun" if outcome is None else outcome.ending)
