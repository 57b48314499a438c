"""The lifecycle table, cell by cell, against the one of docs/design.md, written down here by hand."""

import ast
import itertools
from pathlib import Path

import pytest

from interlock.core.errors import Refused
from interlock.core.lifecycle import MOVES, Move, State, advance, may

# arriving → queued → seated → started → ended; also withdrawn, and aliased.
DRAWN = """
arriving  queue     queued
arriving  seat      seated
arriving  end       ended
arriving  withdraw  withdrawn
arriving  alias     aliased
queued    seat      seated
queued    end       ended
queued    withdraw  withdrawn
queued    alias     aliased
seated    start     started
seated    end       ended
seated    withdraw  withdrawn
started   end       ended
"""
ARROWS = {(State(a), Move(m)): State(b) for a, m, b in (line.split() for line in DRAWN.strip().splitlines())}
OVER = {State.ENDED, State.WITHDRAWN, State.ALIASED}


def reachable(start: State) -> set[State]:
    """Return every state a run can be in after being in this one."""
    found: set[State] = set()
    ahead = list(MOVES[start].values())
    while ahead:
        state = ahead.pop()
        if state not in found:
            found.add(state)
            ahead.extend(MOVES[state].values())
    return found


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_every_cell(state: State, move: Move) -> None:
    """Every state and move either has its drawn arrow or is refused in words that name both."""
    if (state, move) in ARROWS:
        assert may(state, move)
        assert advance(state, move) is ARROWS[state, move]
    else:
        assert not may(state, move)
        with pytest.raises(Refused, match=rf"\b{state}\b.*\b{move}\b"):
            advance(state, move)


def test_the_table_is_total() -> None:
    """Every state has a row, so a lookup can never fail with anything but Refused."""
    assert set(MOVES) == set(State)


def test_what_is_over_stays_over() -> None:
    """Exactly the ended, withdrawn and aliased states have no moves."""
    assert {state for state in State if not MOVES[state]} == OVER


def test_every_state_can_be_reached() -> None:
    """From arriving, a run can come to every other state: the table has no dead rows."""
    assert reachable(State.ARRIVING) == set(State) - {State.ARRIVING}


def test_nothing_comes_back() -> None:
    """No run is ever in the same state twice."""
    assert all(state not in reachable(state) for state in State)


def test_every_run_can_end() -> None:
    """Every state that is not over can end in one move, so a stop never finds a run it cannot end."""
    assert all(advance(state, Move.END) is State.ENDED for state in set(State) - OVER)


def test_only_started_runs_were_seated() -> None:
    """The agent's code cannot begin without the seat: the only way to started is from seated."""
    assert {state for state in State if State.STARTED in MOVES[state].values()} == {State.SEATED}


def test_a_started_run_cannot_be_undone() -> None:
    """Once the agent's code may run, the run can neither be withdrawn nor become part of another."""
    assert set(MOVES[State.STARTED]) == {Move.END}


def test_only_the_table_compares_states() -> None:
    """Elsewhere a state's own predicates are asked, so a new state is sorted in here and nowhere else."""
    root = Path(__file__).parents[2]
    places = [*(root / "src").rglob("*.py"), *(root / "proofs").rglob("*.py")]
    table = root / "src" / "interlock" / "core" / "lifecycle.py"
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in places
        if path != table
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Compare) and any(map(_names_a_state, (node.left, *node.comparators)))
    ]
    assert found == []


def _names_a_state(side: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "State"
        and node.attr in State.__members__
        for node in ast.walk(side)
    )
