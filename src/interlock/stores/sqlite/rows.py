"""Records into rows, and rows into records.

Whole values (outcomes, receipts, event data) are JSON text, which any tool can read. `of_…` returns a record as the
parameters of a statement, `…_of` a row of a query as a record; each names its statement in sql/. Parameters are plain
values: for a bool or an enum sqlite3 searches for an adapter, which costs more than the rest of the binding.
"""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from interlock.core.decision import (
    MARK_SECONDS,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    ShareRow,
    StopKey,
    StopMark,
    ToolRow,
    WakeRow,
)
from interlock.core.events import Data, Event
from interlock.core.names import Drain, Principal, SessionId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.stores.base import Loaded

Row = tuple[Any, ...]
R = TypeVar("R", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode
_outcome = msgspec.json.Decoder(Outcome).decode
_data = msgspec.json.Decoder(Data).decode
_passing = msgspec.json.Decoder(list[tuple[int, float, int | None, Data]]).decode
_receipt = msgspec.json.Decoder(Receipt).decode
_wake = msgspec.json.Decoder(WakeRow).decode


def text_of(value: Any) -> str:
    """Return a value as JSON text."""
    return _encode(value).decode()


def _record(kind: type[R], row: Row) -> R:
    """Return a row as a record; its columns stand in the order of the record's fields."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)


def of_session(row: SessionRow) -> Row:
    """Return the parameters of `keep_session`."""
    strategy = None if row.strategy is None else row.strategy.value
    return (row.id, row.owner, row.generation, strategy, row.since, row.renewed, row.crashes, row.announced)


def session_of(row: Row) -> SessionRow:
    """Return a row of `session` as a record."""
    *kept, shares = row
    return _record(SessionRow, (*kept, msgspec.json.decode(shares)))


def of_share(row: ShareRow) -> Row:
    """Return the parameters of `keep_share`."""
    return (row.session, row.principal, None if row.may is None else row.may.value, row.at)


def of_run(row: RunRow) -> Row:
    """Return the parameters of `admit_run` and `end_run`."""
    ending, outcome = (None, None) if row.outcome is None else (row.outcome.ending.value, text_of(row.outcome))
    return (
        row.id, row.session, row.principal, row.kind.value, row.text, row.admitted_at, row.key, row.deadline,
        row.parent, row.home, row.agent, int(row.detached), row.alias, row.generation, int(row.started), ending,
        outcome, row.cut, int(row.told), row.instructions, None if row.announce is None else row.announce.value,
    )  # fmt: skip


def run_of(row: Row) -> RunRow:
    """Return a row of `run` as a record; the last column says whether the run has drained."""
    *kept, drained = row
    fields = dict(zip(RunRow.__struct_fields__, kept, strict=True))
    fields |= {name: bool(fields[name]) for name in ("detached", "started", "told")}
    return msgspec.convert({**fields, "outcome": outcome_of(fields["outcome"], drained=drained)}, RunRow)


def outcome_of(text: str | None, *, drained: int = 0) -> Outcome | None:
    """Return an outcome from its text, marked durable because it comes from the store."""
    if text is None:
        return None
    outcome = _outcome(text)
    return msgspec.structs.replace(outcome, drained=outcome.drained or bool(drained), durable=True)


def of_key(row: KeyRow) -> Row:
    """Return the parameters of `keep_key`."""
    return (row.principal, row.key, row.method, row.digest, row.run_id, row.generation, row.superseded)


def key_of(row: Row) -> KeyRow:
    """Return a row of `key` as a record."""
    return _record(KeyRow, row)


def of_tool(row: ToolRow) -> Row:
    """Return the parameters of `keep_tool`."""
    return (row.call_id, row.run_id, row.name, row.arguments, row.state)


def tool_of(row: Row) -> ToolRow:
    """Return a row of `tools` as a record."""
    return _record(ToolRow, row)


def of_question(row: QuestionRow) -> Row:
    """Return the parameters of `keep_question`."""
    return (
        row.id, row.run_id, row.session, row.principal, row.text,
        None if row.choices is None else text_of(row.choices), row.state,
        None if row.answer is None else text_of(row.answer), row.by,
    )  # fmt: skip


def question_of(row: Row) -> QuestionRow:
    """Return a row of `question` as a record."""
    *asked, choices, state, answer, by = row
    read = [None if text is None else msgspec.json.decode(text) for text in (choices, answer)]
    return _record(QuestionRow, (*asked, read[0], state, read[1], by))


def of_mark(row: StopMark) -> Row:
    """Return the parameters of `keep_mark`."""
    return (row.session, row.channel, row.by, _place(row.at), repr(row.at), row.stopped_at)


def expiring(row: StopMark) -> Row:
    """Return the parameters of `expire_marks`."""
    return (row.session, row.channel, row.by, row.stopped_at, MARK_SECONDS)


def _place(number: int | float) -> str:
    """Return a number as text that sorts as the number does.

    The length of the whole part stands before the digits. For a negative number every digit is turned (0 to 9, 1 to 8
    and so on), so that the larger amount sorts first.
    """
    whole, _, rest = format(Decimal(number).copy_abs(), "f").partition(".")
    text = f"{len(whole):04}{whole}.{rest.rstrip('0')}"
    return f"1{text}" if number >= 0 else f"0{text.translate(_TURNED)}~"


_TURNED = str.maketrans("0123456789", "9876543210")


def mark_of(row: Row) -> StopMark:
    """Return a row of `marks` as a record."""
    session, channel, by, at, stopped_at = row
    exact = int(at) if at.lstrip("-").isdecimal() else float(at)
    return StopMark(session=SessionId(session), channel=channel, by=Principal(by), at=exact, stopped_at=stopped_at)


def of_stop(row: StopKey) -> Row:
    """Return the parameters of `keep_stop`."""
    return (row.principal, row.key, row.method, row.digest, row.at, row.receipt, row.aborted, row.already)


def stop_of(row: Row) -> StopKey:
    """Return a row of `stops` as a record."""
    *kept, aborted, already = row
    return _record(StopKey, (*kept, bool(aborted), already))


def loaded_of(session: SessionId, found: list[Row]) -> Loaded:
    """Return the rows of `load`, one for each mark or a single one, as a record."""
    row = found[0]
    return Loaded(
        session=None if row[0] is None else session_of(row[:9]),
        key=None if row[9] is None else key_of(row[9:16]),
        buried=row[16] is not None,
        previous=outcome_of(row[17], drained=row[18]),
        marks=tuple(mark_of((session, *each[19:23])) for each in found if each[19] is not None),
        epoch=row[23],
    )


def wake_of(row: Row) -> WakeRow:
    """Return a row of `wakes` as a record."""
    return _wake(row[0])


def receipt_of(row: Row) -> Receipt:
    """Return a row of `receipt` as a record."""
    return _receipt(row[0])


def of_receipt(receipt: Receipt) -> Row:
    """Return the parameters of `keep_receipt`."""
    return (receipt.id, int(receipt.drain is Drain.PENDING), int(not receipt.runs), text_of(receipt))


def of_event(event: Event) -> Row:
    """Return the parameters of `add_event`."""
    return (event.session, event.position, event.at, event.run_id, event.generation, text_of(event.data))


def events_of(session: SessionId, found: Iterable[Row]) -> list[Event]:
    """Return the rows of `events` as events."""
    return [
        Event(position=position, at=at, session=session, run_id=run_id, generation=generation, data=_data(data))
        for position, at, run_id, generation, data in found
    ]


def of_passing(events: list[Event]) -> Row:
    """Return the parameters of `add_passing`: one row for events of one run."""
    last, said = events[-1], [(each.position, each.at, each.generation, each.data) for each in events]
    return (last.session, last.position, last.run_id, text_of(said))


def passing_of(session: SessionId, after: int, found: Iterable[Row]) -> list[Event]:
    """Return the rows of `passing` as events."""
    return [
        Event(position=position, at=at, session=session, run_id=run_id, generation=generation, data=data)
        for run_id, events in found
        for position, at, generation, data in _passing(events)
        if position > after
    ]
