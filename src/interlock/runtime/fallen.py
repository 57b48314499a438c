"""Reads runs that fell: the rows and the lines of the receipt that fall.py makes of each. Decides nothing.

1. Every function reads a run in one step and changes nothing.
2. A parent's receipt also names the bodies of children that fell before it and were not seen to end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from interlock.agent.bodies import Body
from interlock.core.decision import QuestionRow, ToolRow
from interlock.core.names import BodyState, QuestionId, QuestionState
from interlock.core.outcome import Outcome
from interlock.core.receipt import GRADES, FallenRun, FallenTool, Processes, Totals
from interlock.processes.base import UNSEEN, Containment, Grade
from interlock.runtime.live import LiveRun
from interlock.runtime.settings import TOOLS_LISTED
from interlock.runtime.work import ToolCall

if TYPE_CHECKING:
    from interlock.runtime.spawning import Spawned

NOTHING = Totals()


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The open things of a run that its fall closed."""

    blocks: tuple[str, ...]  # the blocks that complete its reply
    void: tuple[QuestionId, ...]  # the questions that were open
    holds: int  # the named holds that it keeps until it is drained
    queued: bool  # a message without a seat that ended early
    decided: bool  # the inbox had decided on the message


def fallen(run: LiveRun, outcome: Outcome, closed: Closed, swept: Collection[Spawned]) -> FallenRun:
    """Return a run that fell, with this outcome; `swept` are detached processes that its fall ended."""
    return FallenRun(
        id=run.id,
        outcome=outcome,
        body=run.work.body_state,
        refused=dict(run.fence.refused or {}),
        totals=_totals_of(run, closed, swept),
    )


def _totals_of(run: LiveRun, closed: Closed, swept: Collection[Spawned]) -> Totals:
    held, processes = NOTHING, NOTHING.processes
    if run.work.processes is not None:
        holding = run.work.processes.containments
        held = totals(holding, run.work.processes.grade) if holding else _totals_of_grade(run.work.processes.grade)
        left = (each for each in run.work.processes.running if each.order.detached and each not in swept)
        detached = sum(each.containment not in holding for each in left)
        processes = msgspec.structs.replace(held.processes, detached=detached) if detached else held.processes
    return Totals(
        grade=held.grade,
        unseen=held.unseen,
        processes=processes,
        host=run.work.host,
        kept=run.work.kept_with_host,
        questions=len(closed.void),
        queued=int(closed.queued),
        holds=closed.holds,
        unconfirmed=tuple(dict.fromkeys([*held.unconfirmed, *(body.name for body in _abandoned(run))])),
    )


def totals(holding: Sequence[Containment], more: Grade | None = None) -> Totals:
    """Return what containments add to a receipt; `more` is the grade of containments that are over."""
    grades = [*(each.grade for each in holding), *(() if more is None else (more,))]
    return Totals(
        grade=min(grades, key=GRADES.index, default="inline"),
        unseen=tuple(dict.fromkeys(missed for grade in grades for missed in UNSEEN[grade])),
        processes=Processes(ended=sum(each.ended for each in holding), stuck=sum(len(each.stuck) for each in holding)),
        unconfirmed=tuple(each.name for each in holding if each.state is BodyState.ABANDONED),
    )


@cache
def _totals_of_grade(grade: Grade | None) -> Totals:
    return totals((), grade)


def listed(run: LiveRun) -> list[FallenTool]:
    """Return the calls that a receipt names: the open ones first, then the latest that finished."""
    calls: list[ToolCall] = [*(run.work.calls or {}).values(), *(run.work.finished or ())]
    return [FallenTool(name=call.name, state=call.state, run_id=run.id) for call in calls]


def with_children(runs: Sequence[LiveRun]) -> Sequence[LiveRun]:
    """Return the runs, and the children that fell before them and may not be drained yet.

    A parent is drained only when these children are.
    """
    if all(run.ties.child_falls is None for run in runs):
        return runs
    found, rest = [], list(reversed(runs))
    while rest:
        run = rest.pop()
        found.append(run)
        rest += [child for earlier in run.ties.child_falls or () for child in earlier.runs]
    return found


def _abandoned(run: LiveRun) -> list[Body]:
    """Return the abandoned bodies of a run.

    Of a child that ended before its parent, return only bodies that were dropped or still run. The child's own receipt
    named its other bodies as abandoned, but control has seen them end since.
    """
    found = [body for body in run.work.bodies or () if body.state is BodyState.ABANDONED]
    for fall in run.ties.child_falls or ():
        below = (body for child in with_children(fall.runs) for body in child.work.bodies or ())
        given_up = (body for body in below if body.state is BodyState.ABANDONED)
        found += [body for body in given_up if was_dropped(body) or not body.done.is_set()]
    return found


def was_dropped(body: Body) -> bool:
    """Return whether a body counts as over only because it is never resumed; control did not see it end."""
    return body.state is BodyState.ABANDONED and getattr(body, "dropped", False)


def begun(run: LiveRun) -> dict[str, None]:
    """Return the names of the tools whose bodies began, in a run and in its children that are not detached.

    The effects of these tools remain.
    """
    names = dict(run.work.begun or {})
    for child in (run.ties.children or {}).values():
        if not child.ties.detached:
            names.update(begun(child))
    return names


def names_of(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, TOOLS_LISTED at most."""
    return tuple(dict.fromkeys(name for group in groups for name in group))[:TOOLS_LISTED]


def closed_rows(run: LiveRun) -> list[QuestionRow]:
    """Return the rows of the questions without an answer.

    Questions that were closed before the fall are among them: control did not wait for that write, and it may have
    failed.
    """
    questions = (run.work.questions or {}).values()
    return [question.row() for question in questions if question.state is not QuestionState.ANSWERED]


def tool_rows(run: LiveRun) -> list[ToolRow]:
    """Return the rows of the open tool calls."""
    return [
        ToolRow(call_id=call.id, run_id=run.id, name=call.name, arguments=call.arguments, state=call.state)
        for call in (run.work.calls or {}).values()
    ]
