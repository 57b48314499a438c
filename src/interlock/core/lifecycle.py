"""The states of a run, as a table with one mover.

Rule 1: everything that decides whether a run may move lives in this table.
Rule 2: `advance` looks up or raises; no other place compares states to decide a move.
Acked and drained are facts beside the state, not states.
"""

from enum import StrEnum

from interlock.core.errors import Refused


class State(StrEnum):
    """Where a run is in its life."""

    ARRIVING = "arriving"  # in the session's line; not decided yet
    QUEUED = "queued"  # admitted; waits for the seat
    SEATED = "seated"  # has the seat; the agent has not begun
    STARTED = "started"  # the agent's code may run
    ENDED = "ended"
    WITHDRAWN = "withdrawn"  # never was: its admission did not commit
    ALIASED = "aliased"  # became part of another run


class Move(StrEnum):
    """What can happen to a run."""

    QUEUE = "queue"
    SEAT = "seat"
    START = "start"
    END = "end"
    WITHDRAW = "withdraw"
    ALIAS = "alias"


MOVES: dict[State, dict[Move, State]] = {
    State.ARRIVING: {
        Move.QUEUE: State.QUEUED,
        Move.SEAT: State.SEATED,
        Move.END: State.ENDED,
        Move.WITHDRAW: State.WITHDRAWN,
        Move.ALIAS: State.ALIASED,
    },
    State.QUEUED: {
        Move.SEAT: State.SEATED,
        Move.END: State.ENDED,
        Move.WITHDRAW: State.WITHDRAWN,
        Move.ALIAS: State.ALIASED,
    },
    State.SEATED: {Move.START: State.STARTED, Move.END: State.ENDED, Move.WITHDRAW: State.WITHDRAWN},
    State.STARTED: {Move.END: State.ENDED},
    State.ENDED: {},
    State.WITHDRAWN: {},
    State.ALIASED: {},
}


def advance(state: State, move: Move) -> State:
    """Return the state after a move, or raise Refused naming the move that does not exist."""
    after = MOVES[state].get(move)
    if after is None:
        raise Refused(f"a run that is {state} cannot {move}; wait for its outcome instead")
    return after


def may(state: State, move: Move) -> bool:
    """Return whether the table has this move."""
    return move in MOVES[state]
