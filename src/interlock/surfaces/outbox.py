"""The outbox of one connection: the frames that it has still to be sent.

1. `put` is synchronous and is called in the step that admits the effect. One pump alone calls the socket's send.
2. A fall drops the run's unwritten deltas. A frame gets its connection's `seq` when it is written, so dropped frames
   leave no hole in the numbers.
3. The answer to a stop goes to the head, together with the frames of its session that wait, in their order: a reader
   must not see the answer before the events that it follows. Ticks go to the head too, nothing else does.
4. Waiting deltas of one stream are joined into one frame. A flood of deltas is written every few milliseconds, every
   other frame at once.
5. The outbox holds at most BUFFER_BYTES. Beyond that the reader is too slow, and its connection is closed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from interlock.core.names import RunId, SessionId
from interlock.surfaces.frames import BUFFER_BYTES, encode
from interlock.surfaces.telling import Item

# Two writes of deltas are at least this far apart, so that the deltas between them are joined. No reader notices 5 ms.
PAUSE_SECONDS = 0.005
# A fall cannot drop a frame that the kernel has. Short frames keep small what a stalled reader gets after a fall.
JOINED_CHARACTERS = 2048


class Texts:
    """Waiting deltas of one stream, sent as one frame: in the place of the first, with the position of the last."""

    __slots__ = ("characters", "items", "size")

    def __init__(self, first: Item) -> None:
        self.items = [first]
        self.size = _size(first)
        self.characters = len(first.text or "")

    def add(self, item: Item) -> None:
        """Join one more delta."""
        self.items.append(item)
        self.size += _size(item)
        self.characters += len(item.text or "")


class Answer(NamedTuple):
    """A whole frame. An answer about a session keeps its place among that session's events."""

    frame: bytes
    session: SessionId | None


Held = Item | Texts | Answer


class Outbox:
    """The unwritten frames of one connection."""

    def __init__(self, on_overflow: Callable[[], object] = lambda: None) -> None:
        self._on_overflow = on_overflow
        self._items: deque[Held] = deque()
        self._urgent: deque[Held] = deque()
        # By stream (`Item.head`): the texts that the next delta may join. An event of another kind ends them, because
        # a delta joined to earlier texts would overtake that event.
        self._growing: dict[bytes, Texts] = {}
        self._bytes = 0
        self._seq = 0
        self._news = asyncio.Event()
        self._told = 0.0  # monotonic time of the last write of texts
        self._bell: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self.overflowed = False
        self.closed = False

    def put(self, item: Item) -> None:
        """Add an event; a delta is joined to the texts of its stream that wait."""
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
        """Wake the pump PAUSE_SECONDS after texts were written last."""
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
        """Add an answer.

        about: the session whose events the answer keeps its place among.
        hasten: the session that a stop ended. Its waiting events move to the head of the outbox and the answer follows
        them, so the stop overtakes every other session and its own order stays.
        """
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
        """Remove the unwritten deltas, typing and progress of a run that was cut."""
        for queue in (self._items, self._urgent):
            kept = [held for held in queue if not _said_by(held, run_id)]
            if len(kept) != len(queue):
                self._bytes -= sum(map(_size, queue)) - sum(map(_size, kept))
                queue.clear()
                queue.extend(kept)
                self._growing.clear()

    def keep(self, wanted: Callable[[Item], bool]) -> None:
        """Remove the events that `wanted` refuses; answers stay."""
        for queue in (self._items, self._urgent):
            for held in list(queue):
                item = held.items[0] if isinstance(held, Texts) else held
                if isinstance(item, Item) and not wanted(item):
                    queue.remove(held)
                    self._bytes -= _size(held)
        self._growing.clear()

    async def room(self) -> None:
        """Wait until half of BUFFER_BYTES is free.

        A watch waits here, since it can read its next events from the log later. Events told to all never wait.
        """
        while self._bytes > BUFFER_BYTES // 2 and not self.closed and not self.overflowed:
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Accept no more frames; the pump still sends those that wait."""
        self.closed = True
        self._news.set()
        self._drained.set()

    @property
    def empty(self) -> bool:
        """True if every frame has been handed to the socket."""
        return not self._items and not self._urgent

    async def wait(self) -> bool:
        """Wait until there is a frame to write; False if there will be none."""
        while not (self.closed or self.overflowed):
            await self._news.wait()
            if not self.empty:
                break
            self._news.clear()
        return not self.empty

    def take(self, limit: int = 0) -> list[bytes]:
        """Remove and return the frames to write next: one, and more while they have fewer than `limit` bytes together.

        The list is empty if a fall has dropped what `wait` saw.
        """
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
    # A large frame counts as a quarter of the bound at most: one alone never closes a connection, a few of them do.
    return min(len(held.frame) if isinstance(held, Answer) else held.size, BUFFER_BYTES // 4)


def _about(held: Held, session: SessionId) -> bool:
    return (held.items[0] if isinstance(held, Texts) else held).session == session


def _said_by(held: Held, run_id: RunId) -> bool:
    item = held.items[0] if isinstance(held, Texts) else held
    return isinstance(item, Item) and item.passing and item.run_id == run_id
