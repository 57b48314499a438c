"""The states of a run, as a table (`MOVES`) with one function that moves along it (`advance`).

1. The table alone says which moves a run may make.
2. `advance` finds the move in the table, or raises. Every change of a run's state goes through `advance`. Other code
   compares no states: it asks a state's own predicates, so that a new state is sorted in here and nowhere else.
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

    @property
    def undecided(self) -> bool:
        """True until the inbox has decided on the message."""
        return self is State.ARRIVING

    @property
    def queued(self) -> bool:
        """True while the run is admitted and waits for the seat."""
        return self is State.QUEUED

    @property
    def waits(self) -> bool:
        """True while the run has no seat yet and may get one."""
        return self in (State.ARRIVING, State.QUEUED)

    @property
    def started(self) -> bool:
        """True while the agent's code may run."""
        return self is State.STARTED

    @property
    def at_work(self) -> bool:
        """True while the run has the seat, whether or not its agent has begun."""
        return self in (State.SEATED, State.STARTED)

    @property
    def over(self) -> bool:
        """True once the run has an ending."""
        return self is State.ENDED

    @property
    def withdrawn(self) -> bool:
        """True of a message that was not accepted."""
        return self is State.WITHDRAWN

    @property
    def aliased(self) -> bool:
        """True of a message that another run answers for."""
        return self is State.ALIASED


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
    if move not in MOVES[state]:
        raise Refused(f"a run that is {state} cannot {move}; wait for its outcome instead")
    return MOVES[state][move]


def may(state: State, move: Move) -> bool:
    """Return whether the table has this move."""
    return move in MOVES[state]
