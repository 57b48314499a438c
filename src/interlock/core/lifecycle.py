"""The states of a run, as a table (`MOVES`) with one function that moves along it (`advance`).

1. The table alone says which moves a run may make.
2. `advance` finds the move in the table, or raises. Every change of a run's state goes through `advance`. Other code
   may compare states to choose what to do next, but a move that the table lacks raises all the same.
3. Acked and drained are not states of this table, but separate facts about a run.
"""

from enum import StrEnum

from interlock.core.errors import Refused


class State(StrEnum):
    """Where a run is in its life."""

    ARRIVING = "arriving"  # not decided on yet
    QUEUED = "queued"  # admitted, and waiting for the seat
    SEATED = "seated"  # in the seat; the agent has not begun
    STARTED = "started"  # the agent's code may run
    ENDED = "ended"
    WITHDRAWN = "withdrawn"  # not accepted: refused, or not taken by the store
    ALIASED = "aliased"  # another run absorbed it, or had its key first


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
    """Return the state after a move, or raise Refused if the table has no such move."""
    after = MOVES[state].get(move)
    if after is None:
        raise Refused(f"a run that is {state} cannot {move}; wait for its outcome instead")
    return after


def may(state: State, move: Move) -> bool:
    """Return whether the table has this move."""
    return move in MOVES[state]
