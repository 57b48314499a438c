"""What was sent, and what its sender is told.

1. An `Arrival` is a message as it was sent; it never changes.
2. An `Admittance` is what the inbox makes of it, from the line of arrivals to the ack. Only the inbox writes its
   attributes; everybody else calls its methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from interlock.agent.flag import Flag
from interlock.core.answers import Sent
from interlock.core.errors import InterlockError
from interlock.core.names import Announce, Principal, RunId, RunKind, Strategy
from interlock.core.values import Order

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall
    from interlock.runtime.live import LiveRun
    from interlock.stores.base import Ticket


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as it was sent, by a person, a program, a schedule or a parent."""

    principal: Principal
    text: str
    kind: RunKind
    admitted_at: float
    method: str = "send"
    key: str | None = None
    digest: str = ""
    strategy: Strategy | None = None
    # The deadline as the caller gave it. None: the caller said nothing; 0: the caller wants none.
    deadline: float | None = None
    order: Order | None = None
    # None: the agent that control serves.
    agent: str | None = None
    instructions: str | None = None
    # A detached child: how its ending is announced to its home.
    announce: Announce | None = None
    # The message may found its session if the session has no owner.
    begins: bool = True


class Admittance:
    """How the inbox admits a message, and what its sender is told."""

    __slots__ = (
        "acked", "due", "founds", "passed", "problem", "sent", "steers", "superseded", "ticket", "took", "turn",
    )  # fmt: skip

    def __init__(self) -> None:
        # Set when the message is the first in its session's line.
        self.turn: Flag | None = None
        # This message founds its session: its sender becomes the owner, unless the message is withdrawn.
        self.founds = False
        # How many takeovers of other principals went ahead of this message in the queue.
        self.passed = 0
        # The run may be seated when its turn comes. False for an announcement until the child's ending is public.
        self.due = True
        # The run at work that this message is offered to (steer).
        self.steers: LiveRun | None = None
        self.superseded: RunId | None = None
        # The fall of the run that this message took over, in the Decision that admits the message.
        self.took: Fall | None = None
        # The ticket of the Decision that admits this message.
        self.ticket: Ticket | None = None
        self.sent: Sent | None = None
        # Why the message was refused.
        self.problem: InterlockError | None = None
        # Set when the sender may be answered.
        self.acked = Flag()

    def accept(self, sent: Sent) -> None:
        """Tell the sender that the message is accepted, and where it is."""
        self.sent = sent
        self.acked.set()

    def refuse(self, problem: InterlockError) -> None:
        """Tell the sender why the message is not accepted."""
        self.problem = problem
        self.acked.set()

    def wait_for_ending(self) -> None:
        """Keep a report from the seat until the ending that it tells is public."""
        self.due = False

    def offer_to(self, seated: LiveRun | None) -> None:
        """Let a report have its turn from now on, and offer it to a run at work."""
        self.due, self.steers = True, seated

    def forget_takeover(self) -> None:
        """Let go of the fall that the message caused: the fall leaves memory."""
        self.took = None
