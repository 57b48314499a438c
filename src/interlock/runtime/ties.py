"""What a run is tied to: the run above it, the runs below it, its home, and the messages that are one turn with it.

The registry writes the ties of a tree; everybody else calls the methods here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from interlock.agent.message import Child
from interlock.core.names import RunId

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall
    from interlock.runtime.live import LiveRun
    from interlock.runtime.session import Session
    from interlock.stores.base import Ticket


class Collection:
    """Messages that wait to become one turn, collected in the run of the first one.

    They are committed one after another, and the turn does not begin while one is being committed. Otherwise a sender
    could be told that the message is part of the turn while the turn began without it.
    """

    __slots__ = ("merging", "parts", "quiet_over", "timer", "until")

    def __init__(self, until: float) -> None:
        self.parts: list[LiveRun] = []
        # The message that is being committed; the turn must not begin without it.
        self.merging: LiveRun | None = None
        # The session has been quiet for the whole quiet time.
        self.quiet_over = False
        self.timer: asyncio.TimerHandle | None = None
        self.until = until

    @property
    def ready(self) -> bool:
        """True if the turn may begin."""
        return self.quiet_over and self.merging is None


class Ties:
    """The runs that a run belongs to, or that belong to it."""

    __slots__ = (
        "absorbed", "alias", "alias_ticket", "announce_to", "announced", "announces", "child_falls", "children",
        "collection", "descendants", "detached", "home", "joining", "parent", "parent_id",
    )  # fmt: skip

    def __init__(self, session: Session, parent: LiveRun | None, *, detached: bool) -> None:
        # The parent if it is alive; its id is known also after the parent has left memory.
        self.parent = parent
        self.parent_id = None if parent is None else parent.id
        # The session at the top of the tree.
        self.home: Session = session if parent is None else parent.ties.home
        self.detached = detached
        # Live children, detached or not.
        self.children: dict[RunId, LiveRun] | None = None
        # How many runs are alive below this one, without detached ones.
        self.descendants = 0
        # Falls of children: published before this run's own ending, and drained with it.
        self.child_falls: list[Fall] | None = None
        # A child: its ending was published to the parent's watchers.
        self.announced = False
        # A child: the agent that its ending is announced to if it is detached (None: the one control serves).
        self.announce_to: str | None = None
        if parent is not None:
            above = parent.ties
            self.announce_to = parent.arrival.agent if above.parent is None else above.announce_to
        # An announcement: the child that it announces.
        self.announces: Child | None = None
        # Collecting: the messages added to this one, or the message that this one is being added to.
        self.collection: Collection | None = None
        self.joining: LiveRun | None = None
        # The run that absorbed this message, and the ticket of the write that says so.
        self.alias: LiveRun | None = None
        self.alias_ticket: Ticket | None = None
        # Messages that this run absorbed.
        self.absorbed: list[LiveRun] | None = None

    def child_fell(self, fall: Fall) -> None:
        """Let this run's ending follow a child's; falls of children that are drained are let go."""
        draining = [other for other in self.child_falls or () if not other.drained.is_set()]
        self.child_falls = draining if fall in draining else [*draining, fall]

    def told_parent(self) -> None:
        """Note that this child's ending was published to the parent's watchers."""
        self.announced = True

    def announce(self, child: Child) -> None:
        """Set the child that this run announces, or its ending as it is known now."""
        self.announces = child

    # Messages that are one turn

    def collect(self, *, until: float) -> None:
        """Let this message collect others."""
        self.collection = Collection(until)

    def join(self, run: LiveRun, into: LiveRun) -> None:
        """Begin to add this message, that of `run`, to another; the turn does not begin meanwhile."""
        assert into.ties.collection is not None
        into.ties.collection.merging, into.ties.collection.quiet_over = run, False
        self.joining = into

    def joined(self, run: LiveRun | None) -> None:
        """Finish adding this message: it is that of `run`, or not added after all (None)."""
        assert self.joining is not None
        collection, self.joining = self.joining.ties.collection, None
        assert collection is not None
        collection.merging = None
        if run is not None:
            collection.parts.append(run)

    def alias_written(self, ticket: Ticket) -> None:
        """Set the ticket of the write that says which run absorbed this message."""
        self.alias_ticket = ticket

    @property
    def collected(self) -> Sequence[LiveRun]:
        """The messages that were added to this one, to be one turn with it."""
        return () if self.collection is None else self.collection.parts
