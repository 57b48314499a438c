"""The feed against a simple model: sinks of every speed hear what was published, in order, once, while they may."""

import asyncio
from collections import deque
from random import Random

import pytest

from interlock import Control, Event, InterlockError, Message, Run, Unknown, open_control
from interlock.client.door import Sink, is_over
from interlock.core.fence import Fence
from interlock.core.names import PASSING, EventKind
from interlock.runtime import following
from interlock.runtime.following import Listening

from .scene import Sink as Everything
from .scene import seeded

ROUNDS = 40
LISTENERS = 6


async def chatters(run: Run, message: Message) -> str | None:
    """Say, post and type at random, for as long as the message says."""
    random = Random(message.text)
    for number in range(random.randrange(3, 40)):
        match random.randrange(5):
            case 0:
                await run.post(f"block {number}")
            case 1:
                await run.typing()
            case _:
                await run.say(f"{number} ")
        if random.random() < 0.5:
            await asyncio.sleep(random.random() * 0.01)
    return None


class Slow(Sink):
    """A sink with a small queue, whose reader takes an event now and then."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._room = random.choice((1, 2, 5, 1_000))
        self._queue: deque[tuple[Event, Fence | None]] = deque()
        self.read: list[Event] = []
        self.listening: Listening | None = None
        self.refused = 0
        self.closed: InterlockError | bool | None = None
        self._news_from: int | None = None
        self._last = 0

    def take(self, event: Event, source: Fence | None) -> bool:
        assert self.closed is None, "an event after the end"
        if len(self._queue) >= self._room:
            self.refused += 1
            self._news_from = None
            return False
        assert event.position > self._last, "an event twice, or out of order"
        assert self._news_from is None or event.position > self._news_from
        self._last = event.position
        self._queue.append((event, source))
        return True

    def caught_up(self, position: int) -> None:
        assert self._news_from is None, "caught up, and had not been behind"
        assert position >= self._last
        self._news_from = position

    def fell(self, source: Fence) -> None:
        assert source.cause is not None, "a fall is told before its mark is set"
        assert self.closed is None

    def close(self, error: InterlockError | None) -> None:
        assert self.closed is None, "closed twice"
        self.closed = True if error is None else error
        if error is not None:
            self._queue.clear()

    def read_some(self, most: int) -> None:
        """Read some of what waits, and read on in the log once the queue is empty."""
        for _ in range(min(most, len(self._queue))):
            event, source = self._queue.popleft()
            if not is_over(event, source):
                self.read.append(event)
        if not self._queue and self.listening is not None and self.listening.is_behind:
            self.listening.resume()

    @property
    def is_done(self) -> bool:
        """True if the reader has everything."""
        return not self._queue and (
            self.closed is not None or (self.listening is not None and not self.listening.is_behind)
        )


async def listen(control: Control, random: Random, published: list[Event], by: str) -> tuple[Slow, int]:
    """Begin a listening behind some position."""
    after = random.choice([0, *(event.position for event in published[-5:])])
    slow = Slow(random)
    slow.listening = await control.listen(slow, "s", after=after, by=by)
    assert slow.listening is not None
    slow.listening.resume()
    return slow, after


def check(slow: Slow, after: int, until: int, published: list[Event]) -> None:
    """Assert that a sink was told each lasting event once, and of the others none that it should not have."""
    expected = [event for event in published if after < event.position <= until]
    positions = {event.position: event for event in expected}
    read = [event.position for event in slow.read]
    assert read == sorted(set(read))
    assert all(positions.get(event.position) == event for event in slow.read)
    lasting = [event.position for event in expected if event.kind not in PASSING]
    assert [event.position for event in slow.read if event.kind not in PASSING] == lasting


def test_sinks_of_every_speed_hear_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """With random publications, stalls, closes and lost rights every sink agrees with the model (races 10, 99, 142)."""
    monkeypatch.setattr(following, "WATCH_EVENTS", 3)
    monkeypatch.setattr(following, "PAGE_EVENTS", 4)
    refused, lost = [], []

    def play(seed: int) -> None:
        random = Random(seed)

        async def main() -> None:
            async with open_control(chatters) as control:
                first = await control.send("s", f"{seed} first", by="ann")
                published = Everything(control).events
                early = (await control._store.events("s", after=0, limit=1_000)).events
                published[:0] = [event for event in early if event not in published]
                sinks: list[tuple[Slow, int, str]] = []
                for number in range(ROUNDS):
                    match random.randrange(8):
                        case 0:
                            await control.send("s", f"{seed} {number}", by="ann")
                        case 1:
                            await control.stop(session="s", by="ann")
                        case 2 if len(sinks) < LISTENERS:
                            sinks.append((*await listen(control, random, published, "ann"), "ann"))
                        case 3 if len(sinks) < LISTENERS:
                            await control.share("s", with_="bob", may="read", by="ann")
                            sinks.append((*await listen(control, random, published, "bob"), "bob"))
                        case 4:
                            await control.unshare("s", with_="bob", by="ann")
                            for slow, _, by in sinks:
                                assert by == "ann" or slow.closed is not None
                        case 5 if sinks:
                            slow = random.choice(sinks)[0]
                            assert slow.listening is not None
                            slow.listening.close()
                        case _:
                            await asyncio.sleep(random.random() * 0.02)
                    for slow, _, _ in sinks:
                        slow.read_some(random.randrange(4))
                await control.stop(session="s", by="ann")
                await control.wait(first.run_id, drained=True, by="ann")
                while not all(slow.is_done for slow, _, _ in sinks):
                    for slow, _, _ in sinks:
                        slow.read_some(100)
                    await asyncio.sleep(0.01)
                for slow, after, by in sinks:
                    whole = slow.closed is None
                    until = published[-1].position if whole else slow.read[-1].position if slow.read else 0
                    check(slow, after, until, published)
                    assert by == "bob" or not isinstance(slow.closed, Unknown)
                    refused.append(slow.refused)
                    lost.append(isinstance(slow.closed, Unknown))
                assert [event.position for event in published] == sorted({event.position for event in published})

        seeded(main, (seed,))

    for seed in range(30):
        play(seed)
    assert sum(map(bool, refused)) > 10 and sum(lost) > 5, "hardly anything happened"


def test_a_sink_that_fails_takes_no_other_with_it() -> None:
    """A sink that raises is let go; the others get the event, and a fall still happens."""

    class Broken(Sink):
        def take(self, event: Event, source: Fence | None) -> bool:
            raise RuntimeError("broken")

        def fell(self, source: Fence) -> None:
            raise RuntimeError("broken")

    async def main() -> None:
        async with open_control(chatters) as control:
            control.feed.follow("s", Broken())
            control.feed.follow_all(Broken())
            sink = Everything(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            control.feed.follow("s", Broken())
            receipt = await control.stop(session="s")
            assert sink.kinds(sent.run_id)[-1] == "ended" or receipt.aborted
            assert (await control.wait(sent.run_id)).ended

    seeded(main)
