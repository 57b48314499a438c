"""Numbers that are never given twice.

1. Ids and the tokens of holds begin with the boot number: `boot << 32 | n`. The store gives a new one at each start, so
   one durable write per start is enough. Ids need no randomness, so a seed replays exactly.
2. Positions of events are `epoch << 32 | n`, counted for a tree: a session, and the sessions of the children below it.
   A tree that comes into memory gets the epoch after the stored one. The store writes an epoch with the first event
   under it, or with the first Decision that holds a position of it.
3. Memory keeps the count of a tree that has left: always while its epoch is not written, and then as one of the last
   LEFT. So a session that comes and goes does not use up an epoch each time.
4. If the store could not be asked for a tree's epoch, the tree gets an epoch above all that are written. So an event
   that is published under it stands above the earlier ones of its session. After an unclean end the store gives no
   epoch that may have been published and not written (`Store.epoch`).
"""

from collections import OrderedDict

from interlock.core.decision import EpochRow
from interlock.core.names import SessionId

# Counts that memory keeps of trees that have left.
LEFT = 10_000


class Numbers:
    """Makes the ids and tokens of one boot; they only rise."""

    __slots__ = ("_boot", "_last")

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._last = 0

    def token(self) -> int:
        """Return the next number, higher than any before it, also across restarts."""
        self._last += 1
        return self._boot << 32 | self._last

    def new_id(self, letter: str) -> str:
        """Return an id that no start on this store has given before (race 41)."""
        self._last += 1
        return f"{letter}-{self._boot:x}-{self._last:x}"

    def is_ours(self, name: str) -> bool:
        """Return whether an id was given by this start."""
        return name.split("-")[1:2] == [f"{self._boot:x}"]


class Count:
    """The positions of one tree under one epoch."""

    __slots__ = ("_last", "here", "row", "told", "written")

    def __init__(self, row: EpochRow) -> None:
        self.row = row
        self._last = row.epoch << 32
        # True while the tree is in memory.
        self.here = True
        # An event has a position under this epoch; the store has written the epoch.
        self.told = self.written = False

    def next(self) -> int:
        """Return the next position."""
        self._last += 1
        return self._last

    def tell(self) -> EpochRow | None:
        """Return the epoch's row, to be written with the first event under it; None for every later event."""
        if self.told:
            return None
        self.told = True
        return self.row


class Positions:
    """The counts of the trees in memory, and of those that left."""

    def __init__(self, highest: int) -> None:
        self._highest = highest
        self._counts: dict[SessionId, Count] = {}
        self._left: OrderedDict[SessionId, Count] = OrderedDict()

    def load(self, root: SessionId, stored: int) -> None:
        """Count a tree that comes into memory, on from its last position if memory has it."""
        self._highest = max(self._highest, stored)
        count = self._counts.get(root) or self._left.pop(root, None)
        if count is None:
            count = Count(EpochRow(session=root, epoch=stored + 1))
        count.here = True
        self._counts[root] = count

    def of(self, root: SessionId) -> Count:
        """Return the count of a tree (rule 4 if the store was not asked for its epoch)."""
        count = self._counts.get(root)
        if count is None:
            self.load(root, self._highest)
            count = self._counts[root]
        return count

    def leave(self, root: SessionId) -> None:
        """Note that a tree has left memory."""
        if (count := self._counts.get(root)) is not None:
            count.here = False
            self._put_aside(count)

    def keep(self, row: EpochRow) -> None:
        """Note that the store has written an epoch."""
        self._highest = max(self._highest, row.epoch)
        count = self._counts.get(row.session)
        if count is not None and count.row.epoch <= row.epoch:
            count.written = True
            self._put_aside(count)

    def _put_aside(self, count: Count) -> None:
        """Put the count of a tree that has left aside, unless it has events and its epoch is not written."""
        if not count.here and (count.written or not count.told):
            # A Decision may have written the epoch, although no event was published under it.
            self._highest = max(self._highest, count.row.epoch)
            del self._counts[count.row.session]
            self._left[count.row.session] = count
            if len(self._left) > LEFT:
                self._left.popitem(last=False)
