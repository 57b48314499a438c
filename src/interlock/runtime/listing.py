"""Runs as lists show them, alive or stored."""

import msgspec

from interlock.core.answers import RunInfo
from interlock.core.answers import SessionInfo as SessionInfo  # noqa: PLC0414 - told on
from interlock.core.decision import RunRow
from interlock.core.lifecycle import State
from interlock.core.names import RunId
from interlock.runtime.live import LiveRun


def info_of(run: LiveRun) -> RunInfo:
    """Return a live run as a list shows it."""
    return RunInfo(
        id=run.id,
        session=run.session.id,
        principal=run.principal,
        kind=run.arrival.kind,
        state=run.state,
        generation=run.generation,
        phase=run.phase,
        outcome=run.outcome_now if run.end_published else None,
        parent=run.ties.parent_id,
        home=None if run.ties.parent_id is None else run.ties.home.id,
        agent=run.arrival.agent,
        detached=run.ties.detached,
        text="" if run.withheld else run.arrival.text,
        admitted_at=run.arrival.admitted_at,
        key=run.arrival.key,
    )


def info_of_row(row: RunRow) -> RunInfo:
    """Return a stored run as a list shows it."""
    state = State.ENDED if row.outcome is not None else State.STARTED if row.started else State.QUEUED
    if row.outcome is None and row.alias is not None:
        state = State.ALIASED
    return RunInfo(
        id=row.id,
        session=row.session,
        principal=row.principal,
        kind=row.kind,
        state=state,
        generation=row.generation,
        outcome=row.outcome,
        parent=row.parent,
        home=row.home,
        agent=row.agent,
        detached=row.detached,
        text=row.text,
        admitted_at=row.admitted_at,
        key=row.key,
    )


def as_tree(runs: list[RunInfo]) -> list[RunInfo]:
    """Return the runs with children right below their parents, each with its depth."""
    below: dict[RunId | None, list[RunInfo]] = {}
    known = {run.id for run in runs}
    for run in runs:
        below.setdefault(run.parent if run.parent in known else None, []).append(run)
    ordered: list[RunInfo] = []
    rest = [(run, 0) for run in reversed(below.get(None, []))]
    while rest:
        run, depth = rest.pop()
        ordered.append(msgspec.structs.replace(run, depth=depth))
        rest += [(child, depth + 1) for child in reversed(below.get(run.id, []))]
    return ordered
