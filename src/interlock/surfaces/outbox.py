"""What one connection has still to be sent.

1. `put` is synchronous, in the step that admits the effect; one pump is the only caller of the socket's send.
2. A fall drops the run's unwritten deltas; the connection's `seq` is given at the write, so there is no hole.
3. The answer to a stop, and what its session is told, overtake what others say; within a session order is kept.
4. Deltas that wait are joined to one; a flood of them is written every few milliseconds, everything else at once.
5. What is held is bounded in bytes: beyond it the reader is too slow and let go.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from interlock.core.names import RunId, SessionId
from interlock.surfaces.frames import BUFFER_BYTES, encode
from interlock.surfaces.telling import Item

PAUSE_SECONDS = 0.005  # between two writes of nothing but texts, which are joined meanwhile; no eye sees it
JOINED_CHARACTERS = 2048  # so little that a frame in the kernel's hands is soon gone


class Texts:
    """Texts of one stream that wait: they are sent as one, where the first stands and with the last one's numbers."""

    __slots__ = ("characters", "items", "size")

    def __init__(self, first: Item) -> None:
        self.items = [first]
        self.size = _size(first)
        self.characters = len(first.text or "")

    def add(self, item: Item) -> None:
        """Take one more."""
        self.items.append(item)
        self.size += _size(item)
        self.characters += len(item.text or "")


class Answer(NamedTuple):
    """A whole frame. One that names a session stands among its events: none of them may overtake the other."""

    frame: bytes
    session: SessionId | None


Held = Item | Texts | Answer


class Outbox:
    """The unwritten frames of one connection."""

    def __init__(self, on_overflow: Callable[[], object] = lambda: None) -> None:
        self._on_overflow = on_overflow
        self._items: deque[Held] = deque()
        self._urgent: deque[Held] = deque()
        self._growing: dict[bytes, Texts] = {}  # by stream: its last texts, if nothing came behind them
        self._bytes = 0
        self._seq = 0
        self._news = asyncio.Event()
        self._told = 0.0  # when texts were written last
        self._bell: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self.overflowed = False
        self.closed = False

    def put(self, item: Item) -> None:
        """Take an event."""
        if self.closed or self.overflowed:
            return
        if item.text is None:
            self._growing.clear()
            self._items.append(item)
            self._news.set()
        elif (texts := self._growing.get(item.head)) is not None and texts.characters < JOINED_CHARACTERS:
            texts.add(item)
        else:
            texts = self._growing[item.head] = Texts(item)
            self._items.append(texts)
            self._ring()
        self._account(_size(item))

    def _ring(self) -> None:
        """Have texts written, a moment after the last ones."""
        if self._bell is not None or self._news.is_set():
            return
        now = time.monotonic()
        if now - self._told >= PAUSE_SECONDS:
            self._news.set()
        else:
            self._bell = asyncio.get_running_loop().call_later(self._told + PAUSE_SECONDS - now, self._rung)

    def _rung(self) -> None:
        self._bell = None
        self._news.set()

    def answer(
        self,
        frame: bytes,
        *,
        about: SessionId | None = None,
        hasten: SessionId | None = None,
        urgent: bool = False,
    ) -> None:
        """Take an answer about a session; that of a stop goes first, behind what its session has been told."""
        if self.closed or self.overflowed:
            return
        if hasten is not None:
            mine = [held for held in self._items if _about(held, hasten)]
            if mine:
                self._items = deque(held for held in self._items if not _about(held, hasten))
                self._urgent.extend(mine)
                self._growing.clear()
        answer = Answer(frame, about)
        (self._urgent if urgent or hasten is not None else self._items).append(answer)
        self._news.set()
        self._account(_size(answer))

    def drop(self, run_id: RunId) -> None:
        """Forget what a cut run said and nobody has been sent."""
        for queue in (self._items, self._urgent):
            kept = [held for held in queue if not _said_by(held, run_id)]
            if len(kept) != len(queue):
                self._bytes -= sum(map(_size, queue)) - sum(map(_size, kept))
                queue.clear()
                queue.extend(kept)
                self._growing.clear()

    def keep(self, wanted: Callable[[Item], bool]) -> None:
        """Forget the events that are not wanted any more; answers stay."""
        for queue in (self._items, self._urgent):
            for held in list(queue):
                item = held.items[0] if isinstance(held, Texts) else held
                if isinstance(item, Item) and not wanted(item):
                    queue.remove(held)
                    self._bytes -= _size(held)
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
        while not (self.closed or self.overflowed):
            await self._news.wait()
            if not self.empty:
                break
            self._news.clear()
        return not self.empty

    def take(self, limit: int = 0) -> list[bytes]:
        """Return the frames to write next: one, and more up to a limit; none if what there was has been dropped."""
        frames: list[bytes] = []
        size = 0
        while (self._urgent or self._items) and (size < limit or not frames):
            frames.append(frame := self._take())
            size += len(frame)
        if not (self._urgent or self._items):
            self._news.clear()
        self._drained.set()
        return frames

    def _take(self) -> bytes:
        held = self._urgent.popleft() if self._urgent else self._items.popleft()
        self._bytes -= _size(held)
        if isinstance(held, Answer):
            return held.frame
        self._seq += 1
        if isinstance(held, Item):
            return held.bytes() + b',"seq":%d}' % self._seq
        last = held.items[-1]
        self._told = time.monotonic()
        if self._growing.get(last.head) is held:
            del self._growing[last.head]
        if len(held.items) == 1:
            return last.bytes() + b',"seq":%d}' % self._seq
        text = "".join([each.text or "" for each in held.items])
        return b'%b%b%b,"seq":%d}' % (last.head, encode(text), last.tail, self._seq)

    def _account(self, size: int) -> None:
        self._bytes += size
        if self._bytes > BUFFER_BYTES and len(self._items) + len(self._urgent) > 1:
            self.overflowed = True
            self._bytes = 0
            self._news.set()
            self._on_overflow()
            self._drained.set()
            self._items.clear()
            self._urgent.clear()
            self._growing.clear()


def _size(held: Held) -> int:
    if isinstance(held, Texts):
        return held.size
    # One large frame is never too much by itself, and a few of them are too many.
    return min(len(held.frame) if isinstance(held, Answer) else held.size, BUFFER_BYTES // 4)


def _about(held: Held, session: SessionId) -> bool:
    return (held.items[0] if isinstance(held, Texts) else held).session == session


def _said_by(held: Held, run_id: RunId) -> bool:
    item = held.items[0] if isinstance(held, Texts) else held
    return isinstance(item, Item) and item.passing and item.run_id == run_id
