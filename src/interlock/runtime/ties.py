"""What a run is tied to: the run above it, the runs below it, its home, and the messages that are one turn with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from interlock.core.names import RunId
from interlock.core.outcome import Outcome

if TYPE_CHECKING:
    from interlock.runtime.fall import Fall
    from interlock.runtime.live import LiveRun
    from interlock.runtime.registry import Session
    from interlock.stores.base import Ticket


class Child(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of delegated work. For a detached child `outcome` is `pending`: it goes on by itself."""

    run_id: RunId
    outcome: Outcome
    text: str = ""


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
        # A detached child: the agent that its ending is announced to (None: the one control serves).
        self.announce_to: str | None = None
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

    @property
    def collected(self) -> Sequence[LiveRun]:
        """The messages that were added to this one, to be one turn with it."""
        return () if self.collection is None else self.collection.parts
