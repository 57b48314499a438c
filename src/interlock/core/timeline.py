"""A run's life in a few lines, told again from the log and the receipt; nothing is recorded for it alone."""

from collections.abc import Iterable

import msgspec

from interlock.core.events import Asked, Delegated, Ended, Event, Phase, Said, Spawned, Started, Tool
from interlock.core.names import Drain, QuestionId, RunId
from interlock.core.receipt import Receipt


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run. `what` is a word for a program, `name` what it happened to."""

    at: float
    what: str  # admitted, joined, started, phase, tool, process, question, child, fell, refused, ended, drained
    name: str = ""
    state: str = ""
    detail: str = ""  # of an answer: what it was, and whose
    count: int = 1


def timeline(run_id: RunId, events: Iterable[Event], receipt: Receipt | None = None) -> list[Moment]:
    """Return what happened in a run, in order."""
    moments: list[Moment] = []
    asked: dict[QuestionId, str] = {}
    for event in events:
        if event.run_id == run_id:
            if isinstance(event.data, Asked):
                asked[event.data.question_id] = event.data.text
            moments.extend(_moments(event, receipt, asked))
    if receipt is not None and receipt.drained_at is not None and receipt.drain is not Drain.PENDING:
        moments.append(Moment(at=receipt.drained_at, what="drained", state=receipt.drain))
    return moments


def _moments(event: Event, receipt: Receipt | None, asked: dict[QuestionId, str]) -> list[Moment]:
    at = event.at
    match event.data:
        case Said(of=joined):
            return [Moment(at=at, what="admitted" if joined is None else "joined", name=event.data.by)]
        case Started():
            return [Moment(at=at, what="started")]
        case Phase(name=name):
            return [Moment(at=at, what="phase", name=name or "", state="" if name else "left")]
        case Tool(name=name, state=state):
            return [Moment(at=at, what="tool", name=name, state=state)]
        case Spawned(command=command, state=state, status=status):
            detail = "" if status is None else str(status)
            return [Moment(at=at, what="process", name=command, state=state, detail=detail)]
        case Asked(text=text, state=state, by=by):
            detail = "" if by is None else f"{event.data.answer} by {by}"
            return [Moment(at=at, what="question", name=text, state=state, detail=detail)]
        case Delegated(agent=agent, outcome=outcome):
            return [Moment(at=at, what="child", name=agent, state="begun" if outcome is None else outcome.ending)]
        case Ended():
            return _ending(at, event.data, receipt, asked)
        case _:
            return []


def _ending(at: float, ended: Ended, receipt: Receipt | None, asked: dict[QuestionId, str]) -> list[Moment]:
    fell = ended.outcome.ended_at or at
    moments = [Moment(at=fell, what="fell", name=ended.outcome.by or "", state=ended.outcome.ending)]
    moments += [Moment(at=fell, what="tool", name=tool.name, state=tool.state) for tool in ended.tools]
    moments += [
        Moment(at=fell, what="question", name=asked.get(question, question), state="void") for question in ended.void
    ]
    moments += [Moment(at=fell, what="child", name=child.agent, state=child.ending) for child in ended.children]
    for run in () if receipt is None else receipt.runs:
        if run.id == ended.outcome.run_id:
            moments += [Moment(at=at, what="refused", name=kind, count=n) for kind, n in run.refused.items()]
    return [*moments, Moment(at=at, what="ended", state=ended.outcome.ending)]
