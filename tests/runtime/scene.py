"""Helpers for the runtime's tests: agents of simple behaviour, and the seeded loop that plays a test."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

from interlock import Control, Event, MemoryStore, Message, Outcome, Run, Sent, Settings, Unavailable
from interlock.client.door import Sink as FeedSink
from interlock.core.decision import Decision
from interlock.core.events import Ended
from interlock.core.fence import Fence
from interlock.core.names import EventKind, SessionId
from interlock.stores.base import Ticket
from interlock.testing.loop import SeededLoop, run_seeded

SEEDS = range(8)
QUICK = Settings(commit_seconds=0.1, grace_seconds=0.05, drain_seconds=0.1, retry_seconds=0.05)
"""Bounds short enough for a test on the real clock."""
BRIEF = Settings(grace_seconds=0.3, drain_seconds=0.5, retry_seconds=0.1)
"""Bounds that leave a store its usual time, and give cleaning up little."""

Main = Callable[[], Any]


def seeded(main: Main, seeds: Iterable[int] = SEEDS, **options: Any) -> None:
    """Play a test under several schedules on a virtual clock, and assert that no task is left.

    With `jump=0.0` no timer comes early, for a test that must meet a moment between two timers.
    """
    for seed in seeds:
        run_seeded(main, seed, on_close=_nothing_left, **options)


def _nothing_left(loop: SeededLoop) -> None:
    assert loop.leaked_tasks() == []
    assert loop.problems == []


def put_forward(seconds: float) -> None:
    """Put the clock that decides limits forward, so that no test waits for a limit or has to be in time for one."""
    loop: Any = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


async def echoes(run: Run, message: Message) -> str:
    """Answer with the message."""
    return message.text


async def idles(run: Run, message: Message) -> None:
    """Wait for ever, and end at a cancel."""
    await anyio.sleep_forever()


async def mumbles(run: Run, message: Message) -> None:
    """Say something, then wait for ever."""
    await run.say(f"about {message.text}")
    await anyio.sleep_forever()


async def deaf(run: Run, message: Message) -> None:
    """Swallow every cancel, for ever."""
    while True:
        await swallowed(asyncio.sleep(3600))


async def swallowed(work: Awaitable[Any]) -> BaseException | None:
    """Await a call and return its error, if any, whatever it is: cancels and Stale included."""
    try:
        await work
    except GeneratorExit:
        raise
    except BaseException as error:
        return error
    return None


async def at_once(*calls: Awaitable[Any]) -> list[Any]:
    """Make calls in one instant, in this order: each takes its first step before the next begins."""
    begun = [asyncio.Event() for _ in range(len(calls) + 1)]

    async def make(number: int) -> Any:
        await begun[number].wait()
        # The task that waits for this event runs only after this call has taken its first step.
        begun[number + 1].set()
        return await calls[number]

    begun[0].set()
    return await asyncio.gather(*(make(number) for number in range(len(calls))))


async def told(control: Control, run: str, kind: EventKind) -> Event:
    """Wait until a run's watcher gets an event of this kind, and return it."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError(f"run {run} ended without {kind}")


async def started(control: Control, run: str) -> None:
    """Wait until a run's agent begins."""
    await told(control, run, EventKind.STARTED)


async def log_of(control: Control, session: str = "s") -> list[Event]:
    """Return the events of a session that the store holds now."""
    page = await control.feed.log.events(session, after=0, limit=100_000)
    return list(page.events)


def story(outcome: Outcome) -> tuple[str, str, str | None, str | None]:
    """Return the part of an outcome that must be the same wherever the ending is told."""
    return outcome.ending, outcome.text, outcome.by, outcome.superseded_by


def kinds(events: Iterable[Event], run: str | None = None) -> list[str]:
    """Return the kinds of these events, or only of one run's."""
    return [event.kind.value for event in events if run is None or event.run_id == run]


def raises(kind: type[BaseException], match: str) -> Any:
    """Expect an error of this kind whose text matches."""
    return pytest.raises(kind, match=match)


class Sink(FeedSink):
    """A sink that keeps the events of a session in order, and cannot take back one that it has passed on."""

    def __init__(self, control: Control, session: str = "s") -> None:
        self.events: list[Event] = []
        control.feed.follow(SessionId(session), self)

    def take(self, event: Event, source: Fence | None) -> bool:
        """Take an event."""
        self.events.append(event)
        return True

    def of(self, run_id: str) -> list[Event]:
        """Return the events of one run that arrived."""
        return [event for event in self.events if event.run_id == run_id]

    def kinds(self, run_id: str) -> list[str]:
        """Return the kinds of the events of one run that arrived."""
        return [event.kind.value for event in self.of(run_id)]

    async def until(self, run_id: str, kind: EventKind) -> Event:
        """Wait until an event of this kind has arrived, and return it."""
        while not (found := [event for event in self.of(run_id) if event.kind is kind]):
            await asyncio.sleep(0.0001)
        return found[0]


async def harmless() -> str:
    """Do nothing, as a tool."""
    await asyncio.sleep(0)
    return "done"


async def answers(run: Run, message: Message) -> str:
    """Return at once, unless the message begins with "wait"."""
    if message.text.startswith("wait"):
        await asyncio.sleep(3600)
    return "done"


async def forgotten(control: Control) -> None:
    """Wait until memory holds nothing of the runs, so that only the store knows them."""
    here = control._registry
    while here.runs or here.falls or here.sessions:
        await asyncio.sleep(0.05)


async def answered(*calls: asyncio.Task[Any]) -> None:
    """Raise if a call is still not answered long after every bound has passed."""
    _, hanging = await asyncio.wait(calls, timeout=60)
    for call in hanging:
        call.cancel()
    assert not hanging, "a call is never answered"


def on_screen(events: list[Event]) -> str:
    """Return the text on a live watcher's screen: a block replaces the deltas that it closes."""
    blocks: list[str] = []
    unfinished = ""
    for event in events:
        if event.kind is EventKind.DELTA:
            unfinished += event.data.text
        elif event.kind is EventKind.BLOCK:
            if unfinished and not event.data.text.startswith(unfinished):
                blocks.append(unfinished)
            blocks.append(event.data.text)
            unfinished = ""
    return "\n\n".join([*blocks, unfinished] if unfinished else blocks)


def without_times(ended: Ended) -> Ended:
    """Return a terminal event without its times, so that two can be compared."""
    outcome = msgspec.structs.replace(ended.outcome, started_at=None, ended_at=None)
    return msgspec.structs.replace(ended, outcome=outcome)


class Shaky(MemoryStore):
    """A memory store whose fault begins with a coming decision, so that the reads before it still work."""

    next_fault: str | None = None
    skip = 0  # decisions before the fault

    def decide(self, decision: Decision) -> Ticket:
        self.skip -= 1
        if self.next_fault is not None and self.skip < 0:
            setattr(self.faults, self.next_fault, True)
            self.next_fault = None
        return super().decide(decision)

    def mend(self) -> None:
        """End the fault."""
        self.next_fault = None
        self.faults.fail = self.faults.lose = False
        self.resume()


async def gone(control: Control) -> None:
    """Wait until no run is in memory, and assert that no session is either."""
    while control._registry.runs:
        await anyio.sleep(1)
    assert control._registry.sessions == {}


def now() -> float:
    """Return the time of the loop's clock."""
    return asyncio.get_running_loop().time()


async def turns(count: int) -> None:
    """Let the loop go round this many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def sent_or_refused(control: Control, text: str, key: str | None = None) -> Sent | None:
    try:
        return await control.send("s", text, key=key)
    except Unavailable:
        return None
