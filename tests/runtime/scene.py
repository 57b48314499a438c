"""A stage for the runtime's tests: agents that do as told, and the two loops they play on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

from interlock import Control, Event, MemoryStore, Message, Outcome, Run, Sent, Settings, Unavailable
from interlock.core.decision import Decision
from interlock.core.events import Ended
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
    """Play a test under several schedules on a virtual clock; nothing may be left behind.

    With `jump=0.0` no timer comes early: for a test that must meet a moment between two timers.
    """
    for seed in seeds:
        run_seeded(main, seed, on_close=_nothing_left, **options)


def _nothing_left(loop: SeededLoop) -> None:
    assert loop.leaked_tasks() == []
    assert loop.problems == []


def put_forward(seconds: float) -> None:
    """Put the loop's clock forward, by which limits are decided: nobody has to be in time for one, nor wait for it."""
    loop: Any = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


async def echoes(run: Run, message: Message) -> str:
    """Answer with the message."""
    return message.text


async def idles(run: Run, message: Message) -> None:
    """Wait for ever, politely."""
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
    """Await something and go on whatever it raises, cancels and Stale included."""
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
        begun[number + 1].set()  # whoever waits for it runs after the first step of the call
        return await calls[number]

    begun[0].set()
    return await asyncio.gather(*(make(number) for number in range(len(calls))))


async def told(control: Control, run: str, kind: EventKind) -> Event:
    """Wait until a run's watcher is told of a kind of event."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError(f"run {run} ended without {kind}")


async def started(control: Control, run: str) -> None:
    """Wait until a run's agent begins."""
    await told(control, run, EventKind.STARTED)


async def log_of(control: Control, session: str = "s") -> list[Event]:
    """What the store holds of a session's events now."""
    page = await control._store.events(session, after=0, limit=100_000)
    return list(page.events)


def story(outcome: Outcome) -> tuple[str, str, str | None, str | None]:
    """What must be the same wherever an ending is told."""
    return outcome.ending, outcome.text, outcome.by, outcome.superseded_by


def kinds(events: Iterable[Event], run: str | None = None) -> list[str]:
    """The kinds of a list of events, or of one run's."""
    return [event.kind.value for event in events if run is None or event.run_id == run]


def raises(kind: type[BaseException], match: str) -> Any:
    """An error of a kind whose text names what to do."""
    return pytest.raises(kind, match=match)


class Sink:
    """A subscriber: what arrived in a session, in order; what was passed on cannot be taken back."""

    def __init__(self, control: Control, session: str = "s") -> None:
        self.events: list[Event] = []
        control.feed.subscribe(SessionId(session), self)

    def put(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)

    def drop(self, run_id: str) -> None:
        """Too late."""

    def close(self) -> None:
        """Nothing to do."""

    def of(self, run_id: str) -> list[Event]:
        """What arrived of one run."""
        return [event for event in self.events if event.run_id == run_id]

    def kinds(self, run_id: str) -> list[str]:
        """The kinds of what arrived of one run."""
        return [event.kind.value for event in self.of(run_id)]

    async def until(self, run_id: str, kind: EventKind) -> Event:
        """Wait until an event of this kind has arrived."""
        while not (found := [event for event in self.of(run_id) if event.kind is kind]):
            await asyncio.sleep(0.0001)
        return found[0]


async def harmless() -> str:
    """A tool."""
    await asyncio.sleep(0)
    return "done"


async def answers(run: Run, message: Message) -> str:
    """Be done at once, unless told to wait."""
    if message.text.startswith("wait"):
        await asyncio.sleep(3600)
    return "done"


async def forgotten(control: Control) -> None:
    """Wait until nothing is left in memory: from here on the store alone knows."""
    here = control._registry
    while here.runs or here.falls or here.sessions:
        await asyncio.sleep(0.05)


async def answered(*calls: asyncio.Task[Any]) -> None:
    """Raise if one of these calls is not answered long after every bound has passed."""
    _, hanging = await asyncio.wait(calls, timeout=60)
    for call in hanging:
        call.cancel()
    assert not hanging, "a call is never answered"


def on_screen(events: list[Event]) -> str:
    """What a live watcher has on the screen: blocks take the place of the deltas they close."""
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
    """A terminal event as it is told of any day."""
    outcome = msgspec.structs.replace(ended.outcome, started_at=None, ended_at=None)
    return msgspec.structs.replace(ended, outcome=outcome)


class Shaky(MemoryStore):
    """A memory store that begins to misbehave with the next decision, not with the reads before it."""

    next_fault: str | None = None
    skip = 0  # decisions before that

    def decide(self, decision: Decision) -> Ticket:
        self.skip -= 1
        if self.next_fault is not None and self.skip < 0:
            setattr(self.faults, self.next_fault, True)
            self.next_fault = None
        return super().decide(decision)

    def mend(self) -> None:
        """Behave again."""
        self.next_fault = None
        self.faults.fail = self.faults.lose = False
        self.resume()


async def gone(control: Control) -> None:
    """Wait until nothing is in memory any more."""
    while control._registry.runs:
        await anyio.sleep(1)
    assert control._registry.sessions == {}


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


async def turns(count: int) -> None:
    """Let the loop go round some times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def sent_or_refused(control: Control, text: str, key: str | None = None) -> Sent | None:
    try:
        return await control.send("s", text, key=key)
    except Unavailable:
        return None
