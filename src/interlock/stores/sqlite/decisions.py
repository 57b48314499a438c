"""One Decision as statements, inside the writer's open transaction; every part is conditional."""

import sqlite3

from interlock.core.decision import Decision, Verdict
from interlock.core.names import Drain, RunId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.stores.base import OldToken, StoreFailed
from interlock.stores.sqlite import rows
from interlock.stores.sqlite.schema import statements

Answer = Verdict | StoreFailed

SQL = {**statements("decisions"), **statements("events")}
IN = Verdict()


def carry_out(db: sqlite3.Connection, decision: Decision) -> Answer:
    """Write one decision."""
    execute = db.execute
    if decision.writer is not None:
        known = execute(SQL["writer_right"], (decision.writer.session,)).fetchone()
        if known is not None and known[0] > decision.writer.generation:
            return OldToken("the session's writer right has passed to another run; this one is over")
    for session in decision.sessions:
        execute(SQL["keep_session"], rows.of_session(session))
    for run in decision.admissions:
        execute(SQL["admit_run"], rows.of_run(run))
    found: list[Outcome] = []
    # The usual fall: its one receipt is noted at its runs by the statements that write their endings.
    usual = decision.receipts[0] if len(decision.receipts) == 1 and not decision.starts else None
    fallen = {} if usual is None else {run.id: (usual.id, int(run.outcome.drained)) for run in usual.runs}
    noted: set[RunId] = set()
    for run in decision.endings:
        assert run.outcome is not None
        if execute(SQL["end_run"], (*rows.of_run(run), *fallen.get(run.id, (None, 0)))).rowcount:
            noted.update({run.id} & fallen.keys())
        elif (other := _standing(db, run.id)) is not None and not other.same_story(run.outcome):
            found.append(other)
    for run_id in decision.starts:
        if not execute(SQL["start_run"], (run_id,)).rowcount and (other := _standing(db, run_id)) is not None:
            found.append(other)
    for run_id in decision.told:
        execute(SQL["tell_run"], (run_id,))
        execute(SQL["drop_passing_of"], (run_id,))
    for key in decision.keys:
        execute(SQL["keep_key"], rows.of_key(key))
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
    for receipt in decision.receipts:
        _store_receipt(db, receipt, noted)
    for epoch in decision.epochs:
        execute(SQL["keep_epoch"], (epoch.session, epoch.epoch))
    for session_id in decision.rises:
        execute(SQL["raise_session"], (session_id,))
    return Verdict(found=tuple(found)) if found else IN


def _standing(db: sqlite3.Connection, run_id: RunId) -> Outcome | None:
    known = db.execute(SQL["found_outcome"], (run_id,)).fetchone()
    return None if known is None else rows.outcome_of(known[0], drained=known[1])


def _store_receipt(db: sqlite3.Connection, receipt: Receipt, noted: set[RunId]) -> None:
    """Keep a receipt, and note it at its other runs."""
    known = [
        run.id in noted or db.execute(SQL["receipt_of_run"], (receipt.id, int(run.outcome.drained), run.id)).rowcount
        for run in receipt.runs
    ]
    if receipt.runs and not any(known):
        # The receipt came after its runs were pruned.
        return
    pending, runless = int(receipt.drain is Drain.PENDING), int(not receipt.runs)
    db.execute(SQL["keep_receipt"], (receipt.id, pending, runless, rows.text_of(receipt)))
