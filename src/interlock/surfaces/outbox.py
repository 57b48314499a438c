"""The outbox of one line: the items that the line has still to send. An item renders itself, in its own protocol.

1. `put` is synchronous and is called in the step that admits the effect. `pump` alone writes to the line.
2. An item is rendered when it is written. A passing item (a delta, a typing sign) whose source was cut short is never
   rendered: the fence is asked here, so a fall searches no outbox, and the items that it left behind get no
   number.
3. The answer to a stop goes to the head, together with the items of its session that wait, in their order: a reader
   must not see the answer before the events that it follows. Ticks and falls go to the head too, nothing else does.
4. Waiting texts of one stream are joined into one frame. They are written at the gateway's pace, other items when the
   loop next comes round, so that the end of a run, the answer to its stop and the texts before them are one write.
5. The outbox holds at most BUFFER_BYTES. Beyond that the reader is too slow, and its line is closed. A watch, which can
   read its events again later, puts nothing into an outbox that is `full`, and goes on when there is room.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, Protocol

from interlock.core.events import Source
from interlock.core.names import SessionId

# Unwritten bytes of one line.
BUFFER_BYTES: Final = 2 * 1024 * 1024
# A fall cannot take back what the kernel has. Short frames keep small what a stalled reader gets after a fall.
JOINED_CHARACTERS: Final = 2048
WRITE_BYTES: Final = 2048  # handed to the line in one call, unless one frame is larger
# The shortest and the longest pause between two rounds of texts; texts that come in a pause are joined. No reader
# notices the shortest. A pause lasts as long as the round before it, so that many readers do not take all of the loop.
PAUSE_SECONDS: Final = (0.005, 0.05)


class Item(Protocol):
    """A frame to come."""

    @property
    def session(self) -> SessionId | None:
        """The session that the item is about."""
        ...

    @property
    def source(self) -> Source | None:
        """The fence of the item's run."""
        ...

    @property
    def passing(self) -> bool:
        """True if the item counts only while its run goes on."""
        ...

    @property
    def size(self) -> int:
        """The item's bytes, roughly."""
        ...

    @property
    def stream(self) -> Hashable | None:
        """The stream whose waiting texts this one may join; None if the item is no text."""
        ...

    @property
    def characters(self) -> int:
        """The length of the item's text."""
        ...

    def render(self, label: bytes, number: int, joined: Sequence["Item"]) -> bytes:
        """Return the frame. `label` is the reader's own beginning of it, `joined` its stream's items, this one last."""
        ...


class Line(Protocol):
    """A socket or a pipe that says when it takes more."""

    async def room(self) -> None:
        """Wait until the line holds little that is unsent."""
        ...

    async def write(self, frames: list[bytes]) -> None:
        """Hand frames over; raise OSError or RuntimeError if the line is gone."""
        ...


class Held:
    """An item that waits, or the texts of one stream that are sent as one frame, in the place of the first."""

    __slots__ = ("characters", "items", "label", "size")

    def __init__(self, item: Item, label: bytes, size: int) -> None:
        self.items = [item]
        self.label = label
        self.size = size
        self.characters = item.characters

    @property
    def over(self) -> bool:
        """True if the fence forbids to render the item."""
        item = self.items[0]
        source = item.source
        return item.passing and source is not None and source.cause is not None and source.cause.early


class Answer:
    """A frame that is rendered already. An answer about a session keeps its place among that session's items."""

    __slots__ = ("frame", "session", "size")

    over = False

    def __init__(self, frame: bytes, session: SessionId | None) -> None:
        self.frame = frame
        self.session = session
        self.size = min(len(frame), BUFFER_BYTES // 4)


class Pace:
    """Says when waiting texts are written: those of all outboxes of a gateway together, in rounds."""

    def __init__(self) -> None:
        self._waiting: list[Outbox] = []
        self._timer: asyncio.Handle | None = None
        self._pause = PAUSE_SECONDS[0]
        self._last = 0.0  # monotonic time of the last round

    def soon(self, outbox: "Outbox") -> None:
        """Wake an outbox in the next round."""
        self._waiting.append(outbox)
        if self._timer is None:
            loop, rest = asyncio.get_running_loop(), self._last + self._pause - time.monotonic()
            self._timer = loop.call_soon(self._round) if rest <= 0 else loop.call_later(rest, self._round)

    def _round(self) -> None:
        self._last = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for outbox in waiting:
            outbox.wake()
        # This runs behind the pumps that were woken.
        self._timer = asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        """Take as long a pause as the round took."""
        shortest, longest = PAUSE_SECONDS
        now = time.monotonic()
        self._pause = min(longest, max(shortest, now - self._last))
        self._last, self._timer = now, None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._round)


class Outbox:
    """The items and answers that one line has still to send."""

    def __init__(self, pace: Pace, on_overflow: Callable[[], object] = lambda: None) -> None:
        self._pace = pace
        self._on_overflow = on_overflow
        self._held: deque[Held | Answer] = deque()
        self._urgent: deque[Held | Answer] = deque()
        # By stream and label: the texts that the next one may join. An item of another kind ends them, because a text
        # joined to earlier ones would overtake that item.
        self._growing: dict[tuple[Hashable, bytes], Held] = {}
        self._bytes = 0
        self._number = 0
        self._paced = False  # the pace will wake this outbox
        self._due = False  # there is something to write
        self._waking = False  # the loop will wake this outbox when it next comes round
        self._waiter: asyncio.Future[None] | None = None
        # Called when there is room again.
        self._short: list[Callable[[], object]] = []
        self.overflowed = False
        self.closed = False

    # Putting

    def put(self, item: Item, label: bytes = b"", *, urgent: bool = False) -> None:
        """Add an item; a text is joined to those of its stream that wait. An urgent item, no text, goes to the head."""
        if self.closed or self.overflowed:
            return
        stream = item.stream
        # A large item counts as a quarter of the bound at most: one alone never closes a line, a few of them do.
        size = min(item.size, BUFFER_BYTES // 4)
        if stream is None:
            self._growing.clear()
            (self._urgent if urgent else self._held).append(Held(item, label, size))
            self._wake_soon()
        elif (held := self._growing.get((stream, label))) is not None and held.characters < JOINED_CHARACTERS:
            held.items.append(item)
            held.characters += item.characters
            held.size += size
        else:
            held = self._growing[stream, label] = Held(item, label, size)
            self._held.append(held)
            if not self._paced and not self._due:
                self._paced = True
                self._pace.soon(self)
        self._bytes += size
        if self._bytes > BUFFER_BYTES:
            self._overflow()

    def answer(
        self,
        frame: bytes,
        *,
        about: SessionId | None = None,
        hasten: Collection[SessionId] = (),
        urgent: bool = False,
    ) -> None:
        """Add an answer.

        about: the session whose items the answer keeps its place among.
        hasten: the sessions in which a stop ended runs. Their waiting items move to the head of the outbox and the
        answer follows them, so the stop overtakes every other session and their own order stays.
        """
        if self.closed or self.overflowed:
            return
        if hasten:
            mine = [held for held in self._held if _session_of(held) in hasten]
            if mine:
                self._held = deque(held for held in self._held if _session_of(held) not in hasten)
                self._urgent.extend(mine)
                self._growing.clear()
        if about is not None:
            self._growing.clear()
        answer = Answer(frame, about)
        (self._urgent if urgent or hasten else self._held).append(answer)
        self._bytes += answer.size
        self._wake_soon()
        if self._bytes > BUFFER_BYTES:
            self._overflow()

    def keep(self, wanted: Callable[[Item, bytes], bool]) -> None:
        """Remove the items that `wanted` refuses; answers stay."""
        self._filter(lambda held: isinstance(held, Answer) or wanted(held.items[0], held.label))

    def clear(self) -> None:
        """Remove everything, answers too: the line's reader has lost every right."""
        self._filter(lambda held: False)

    def _filter(self, wanted: Callable[[Held | Answer], bool]) -> None:
        for queue in (self._held, self._urgent):
            kept = [held for held in queue if wanted(held)]
            if len(kept) != len(queue):
                queue.clear()
                queue.extend(kept)
        self._growing.clear()
        self._bytes = sum(held.size for queue in (self._held, self._urgent) for held in queue)

    def _overflow(self) -> None:
        # Items that a fall left behind are never rendered, so they must not close the line.
        self._filter(lambda held: not held.over)
        if self._bytes <= BUFFER_BYTES or len(self._held) + len(self._urgent) <= 1:
            return
        self.overflowed = True
        self._filter(lambda held: False)
        self._on_overflow()
        self.wake()
        self._make_room()

    # Room

    @property
    def full(self) -> bool:
        """True if half of BUFFER_BYTES waits: a watch puts nothing more."""
        return self._bytes > BUFFER_BYTES // 2 and not self.closed and not self.overflowed

    def when_room(self, call: Callable[[], object]) -> None:
        """Call once when no more than a quarter of BUFFER_BYTES waits, or the outbox is closed."""
        self._short.append(call)

    def _make_room(self) -> None:
        calls, self._short = self._short, []
        for call in calls:
            call()

    # Writing

    def close(self) -> None:
        """Accept no more; the pump still sends what waits."""
        self.closed = True
        self.wake()
        self._make_room()

    @property
    def empty(self) -> bool:
        """True if everything was handed to the line."""
        return not self._held and not self._urgent

    def wake(self) -> None:
        """Have the pump write."""
        self._due = True
        self._paced = self._waking = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake_soon(self) -> None:
        """Have the pump write when the loop next comes round."""
        self._due = True
        self._paced = False
        if not self._waking and self._waiter is not None and not self._waiter.done():
            self._waking = True
            self._waiter.get_loop().call_soon(self.wake)

    async def wait(self) -> bool:
        """Wait until there is something to write; False if there will be nothing."""
        while not (self.closed or self.overflowed):
            if self._due and not self.empty:
                return True
            self._due = False
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return not self.empty

    def pop(self, limit: int = 0) -> list[bytes]:
        """Remove and return the frames to write next: one, and more while they have fewer than `limit` bytes together.

        The list is empty if nothing is left that may be rendered.
        """
        frames: list[bytes] = []
        size = 0
        while (self._urgent or self._held) and (size < limit or not frames):
            held = self._urgent.popleft() if self._urgent else self._held.popleft()
            self._bytes -= held.size
            if isinstance(held, Answer):
                frame = held.frame
            else:
                last = held.items[-1]
                if last.stream is not None and self._growing.get((last.stream, held.label)) is held:
                    del self._growing[last.stream, held.label]
                if held.over:
                    continue
                self._number += 1
                frame = last.render(held.label, self._number, held.items)
            frames.append(frame)
            size += len(frame)
        self._due = not self.empty
        if self._short and self._bytes <= BUFFER_BYTES // 4:
            self._make_room()
        return frames


def _session_of(held: Held | Answer) -> SessionId | None:
    return held.session if isinstance(held, Answer) else held.items[0].session


async def pump(outbox: Outbox, line: Line) -> None:
    """Write an outbox to its line until it is closed and sent; the only writer of the line."""
    while await outbox.wait():
        # Take frames only when the line has room: the fence still rules those in the outbox.
        await line.room()
        if frames := outbox.pop(WRITE_BYTES):
            await line.write(frames)
