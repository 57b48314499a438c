"""What one connection has still to be sent.

1. `put` is synchronous, in the step that admits the effect; one pump is the only caller of the socket's send.
2. A fall drops the run's unwritten deltas; the connection's `seq` is given at the write, so there is no hole.
3. The answer to a stop, and what its session is told, overtake what others say; within a session order is kept.
4. Deltas that wait are joined to one. What is held is bounded in bytes: beyond it the reader is too slow and let go.
"""

import asyncio
from collections import deque

from interlock.core.names import RunId, SessionId
from interlock.surfaces.frames import BUFFER_BYTES, encode
from interlock.surfaces.telling import Item

Held = Item | list[Item] | bytes  # an event, the texts of one that grows, or an answer


class Outbox:
    """The unwritten frames of one connection."""

    def __init__(self) -> None:
        self._items: deque[Held] = deque()
        self._urgent: deque[Held] = deque()
        self._growing: dict[bytes, list[Item]] = {}  # by stream: its last texts, if nothing came behind them
        self._bytes = 0
        self._seq = 0
        self._news = asyncio.Event()
        self._drained = asyncio.Event()
        self.overflowed = False
        self.closed = False

    def put(self, item: Item) -> None:
        """Take an event."""
        if self.closed:
            return
        if item.text is None:
            self._growing.clear()
            self._items.append(item)
        elif (texts := self._growing.get(item.head)) is not None:
            texts.append(item)
        else:
            texts = self._growing[item.head] = [item]
            self._items.append(texts)
        self._account(item.size)

    def answer(self, frame: bytes, *, hasten: SessionId | None = None, urgent: bool = False) -> None:
        """Take an answer; that of a stop goes first, behind what its session has been told."""
        if self.closed:
            return
        if hasten is not None:
            mine = [held for held in self._items if _about(held, hasten)]
            if mine:
                self._items = deque(held for held in self._items if not _about(held, hasten))
                self._urgent.extend(mine)
                self._growing.clear()
        (self._urgent if urgent or hasten is not None else self._items).append(frame)
        self._account(len(frame))

    def drop(self, run_id: RunId) -> None:
        """Forget what a cut run said and nobody has been sent."""
        kept = deque(held for held in self._items if not _said_by(held, run_id))
        if len(kept) != len(self._items):
            self._bytes -= sum(map(_size, self._items)) - sum(map(_size, kept))
            self._items = kept
            self._growing.clear()

    async def room(self) -> None:
        """Wait until half of the bound is free: for those who can read again what they do not put in now."""
        while self._bytes > BUFFER_BYTES // 2 and not self.closed and not self.overflowed:
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Nothing more is taken; what is held is still sent."""
        self.closed = True
        self._news.set()
        self._drained.set()

    @property
    def empty(self) -> bool:
        """True if everything has been handed to the socket."""
        return not self._items and not self._urgent

    async def wait(self) -> bool:
        """Wait until there is something to write; False if there will be nothing."""
        while self.empty and not self.closed and not self.overflowed:
            self._news.clear()
            await self._news.wait()
        return not self.empty

    def take(self) -> bytes | None:
        """Return the next frame to write; None if what there was has been dropped."""
        if self.empty:
            return None
        held = self._urgent.popleft() if self._urgent else self._items.popleft()
        self._bytes -= _size(held)
        self._drained.set()
        if isinstance(held, bytes):
            return held
        self._seq += 1
        if isinstance(held, Item):
            return held.bytes() + b',"seq":%d}' % self._seq
        last = held[-1]
        if self._growing.get(last.head) is held:
            del self._growing[last.head]
        text = last.text or "" if len(held) == 1 else "".join([each.text or "" for each in held])
        return b'%b%b%b,"seq":%d}' % (last.head, encode(text), last.tail, self._seq)

    def _account(self, size: int) -> None:
        self._bytes += size
        self._news.set()
        if self._bytes > BUFFER_BYTES and len(self._items) + len(self._urgent) > 1:
            self.overflowed = True
            self._drained.set()
            self._items.clear()
            self._urgent.clear()
            self._growing.clear()


def _size(held: Held) -> int:
    if isinstance(held, list):
        return sum(item.size for item in held)
    return held.size if isinstance(held, Item) else len(held)


def _about(held: Held, session: SessionId) -> bool:
    item = held[0] if isinstance(held, list) else held
    return isinstance(item, Item) and item.session == session


def _said_by(held: Held, run_id: RunId) -> bool:
    item = held[0] if isinstance(held, list) else held
    return isinstance(item, Item) and item.passing and item.run_id == run_id
