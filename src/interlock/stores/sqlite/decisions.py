"""Decisions as statements, inside the writer's open transaction; every part is conditional.

`sqlite3` gives the interpreter's lock away several times in each statement, and the loop may keep it for milliseconds.
So decisions of which no two touch the same row are carried out together, each statement with the rows of all of them.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from interlock.core.decision import Decision, RunRow, Verdict
from interlock.core.names import RunId
from interlock.core.outcome import Outcome
from interlock.stores.base import Buried, Expelled, StoreFailed, Taken
from interlock.stores.sqlite import rows
from interlock.stores.sqlite.schema import many, statements

Answer = Verdict | StoreFailed

SQL = {**statements("decisions"), **statements("events")}
IN = Verdict()


def carry_out(db: sqlite3.Connection, decisions: Sequence[Decision]) -> list[Answer]:
    """Write decisions, in their order."""
    return [answer for stretch in _stretches(decisions) for answer in _carry_out(db, stretch)]


def _stretches(decisions: Sequence[Decision]) -> Iterator[list[Decision]]:
    """Cut a batch into stretches of decisions of which no two touch the same row: within one, order means nothing."""
    stretch: list[Decision] = []
    touched: set[str] = set()
    for decision in decisions:
        names = None if _is_unusual(decision) else _names(decision)
        if stretch and (names is None or not touched.isdisjoint(names)):
            yield stretch
            stretch, touched = [], set()
        stretch.append(decision)
        if names is None:
            yield stretch
            stretch = []
        else:
            touched.update(names)
    if stretch:
        yield stretch


def _is_unusual(decision: Decision) -> bool:
    """Return whether a decision holds more than a run's admission, start and ending, and is carried out alone."""
    return bool(
        decision.writer or decision.told or decision.tombstones or decision.tools or decision.aliases
        or decision.questions or decision.wakes or decision.unwakes or decision.marks or decision.stops
        or decision.shares or decision.epochs or decision.rises
    )  # fmt: skip


def _names(decision: Decision) -> list[str]:
    """Return the sessions and runs whose rows a usual decision reads or writes."""
    names: list[str] = [*decision.starts]
    names += [row.id for row in decision.sessions]
    names += [name for run in (*decision.admissions, *decision.endings) for name in (run.id, run.session)]
    names += [name for key in decision.keys for name in (key.run_id, f"{key.principal}\0{key.key}")]
    names += [run.id for receipt in decision.receipts for run in receipt.runs]
    return names


def _carry_out(db: sqlite3.Connection, decisions: list[Decision]) -> list[Answer]:
    """Write decisions of which no two touch the same row."""
    first = decisions[0]
    if first.writer is not None:
        known = db.execute(SQL["writer_right"], (first.writer.session,)).fetchone()
        if known is not None and known[0] > first.writer.generation:
            return [Expelled("the session's writer right has passed to another run; this one is over")]
    many(db, SQL["keep_session"], [rows.of_session(row) for each in decisions for row in each.sessions])
    admitted = [run for each in decisions for run in each.admissions]
    if many(db, SQL["admit_run"], [rows.of_run(run) for run in admitted]) < len(admitted):
        _need_own_keys(db, admitted)
    endings = [run for each in decisions for run in each.endings]
    receipts = [receipt for each in decisions for receipt in each.receipts]
    drained = {run.id for each in receipts for run in each.runs if run.outcome.drained}
    notes = {run.id: (each.id, int(run.id in drained)) for each in receipts for run in each.runs}
    found: dict[RunId, Outcome] = {}
    if many(db, SQL["end_run"], [(*rows.of_run(run), *notes.get(run.id, (None, 0))) for run in endings]) < len(endings):
        told = {run.id: run.outcome for run in endings if run.outcome is not None}
        found = {run: other for run, other in _standing(db, told) if not other.same_story(told[run])}
    else:
        # The usual fall: the statement that wrote its endings has noted its receipt at them.
        for run in endings:
            notes.pop(run.id, None)
    starts = [run_id for each in decisions for run_id in each.starts]
    if many(db, SQL["start_run"], [(run_id,) for run_id in starts]) < len(starts):
        found |= _standing(db, starts)
    many(db, SQL["keep_key"], [rows.of_key(key) for each in decisions for key in each.keys])
    if _is_unusual(first):
        _write_rest(db, first)
    # If a run is not there any more, its receipt may have come after its runs were pruned, and is not kept then.
    if many(db, SQL["receipt_of_run"], [(*note, run_id) for run_id, note in notes.items()]) < len(notes):
        receipts = [each for each in receipts if not each.runs or any(_is_kept(db, run.id) for run in each.runs)]
    many(db, SQL["keep_receipt"], [rows.of_receipt(receipt) for receipt in receipts])
    return [_verdict(each, found) if found else IN for each in decisions]


def _need_own_keys(db: sqlite3.Connection, admitted: Sequence[RunRow]) -> None:
    """Raise if a run was not admitted because its key is another run's, or was stopped.

    A run that was admitted before is not admitted twice, and that is no reason to refuse.
    """
    for run in admitted:
        if run.key is None or _is_kept(db, run.id):
            continue
        used = db.execute(SQL["used_key"], (run.principal, run.key)).fetchone()
        raise Buried(run.key) if used is None else Taken(rows.key_of(used))


def _verdict(decision: Decision, found: dict[RunId, Outcome]) -> Verdict:
    names = dict.fromkeys([*(run.id for run in decision.endings), *decision.starts])
    return Verdict(found=tuple(found[name] for name in names if name in found))


def _standing(db: sqlite3.Connection, runs: Iterable[RunId]) -> Iterator[tuple[RunId, Outcome]]:
    """Yield those runs that have ended, each with its ending."""
    for run_id in runs:
        known = db.execute(SQL["found_outcome"], (run_id,)).fetchone()
        if known is not None and (outcome := rows.outcome_of(known[0], drained=known[1])) is not None:
            yield run_id, outcome


def _is_kept(db: sqlite3.Connection, run_id: RunId) -> bool:
    return db.execute(SQL["found_outcome"], (run_id,)).fetchone() is not None


def _write_rest(db: sqlite3.Connection, decision: Decision) -> None:
    """Write what only an unusual decision holds."""
    execute = db.execute
    for run_id in decision.told:
        execute(SQL["tell_run"], (run_id,))
        execute(SQL["drop_passing_of"], (run_id,))
    for tombstone in decision.tombstones:
        execute(SQL["bury_key"], (tombstone.principal, tombstone.key))
    for tool in decision.tools:
        execute(SQL["keep_tool"], rows.of_tool(tool))
    for message, absorber in decision.aliases:
        execute(SQL["alias_run"], (message, absorber))
    for question in decision.questions:
        execute(SQL["keep_question"], rows.of_question(question))
    for wake in decision.wakes:
        execute(SQL["keep_wake"], (wake.id, rows.text_of(wake)))
    for wake_id in decision.unwakes:
        execute(SQL["remove_wake"], (wake_id,))
    for mark in decision.marks:
        execute(SQL["expire_marks"], rows.expiring(mark))
        execute(SQL["keep_mark"], rows.of_mark(mark))
        execute(SQL["cover_marks"], rows.of_mark(mark)[:3])
    for stop in decision.stops:
        execute(SQL["keep_stop"], rows.of_stop(stop))
    for share in decision.shares:
        execute(SQL["keep_share"], rows.of_share(share))
    for epoch in decision.epochs:
        execute(SQL["keep_epoch"], (epoch.session, epoch.epoch))
    for session_id in decision.rises:
        execute(SQL["raise_session"], (session_id,))
