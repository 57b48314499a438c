"""Stops raced against hosts at full rate: nothing is permitted after the ack, and nothing acts after `drained`.

1. The agents speak and call tools as fast as they can, some with a blocked loop, some that swallow whatever ends them.
2. The witness is a file to which the bodies of tools, and the agents between them, append with the time of the
   machine's own clock. Permitted calls are read off the events that watchers got. The fence is never asked.

python -m proofs stops --stops 1000
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
from rich.console import Console

import interlock
from interlock.client.door import Sink
from interlock.core.events import Event, Source, Tool
from interlock.core.names import Drain, EventKind, RunId, SessionId, ToolState
from interlock.processes.base import Confinement, Grade
from proofs.schedules import progress_bar

WITNESS = "INTERLOCK_STOPS_WITNESS"
SESSIONS = 4
STYLES = ("tools", "tools", "talk", "block", "swallow", "sync", "grace")
LATEST_SECONDS = 0.02  # a stop comes at most so long after the start of its run
DRAIN_SECONDS = 20.0


def mark(run_id: str, what: str) -> None:
    """Append a line with the machine's own time."""
    sink = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(sink, f"{time.monotonic_ns()} {run_id} {what}\n".encode())
    finally:
        os.close(sink)


async def act(run_id: str) -> None:
    """Act, wait for a moment, and act again, as a tool."""
    mark(run_id, "body")
    await asyncio.sleep(0.001)
    mark(run_id, "body")


def act_at_once(run_id: str) -> None:
    """Act for a while without letting the loop run, as a synchronous tool."""
    for _ in range(3):
        mark(run_id, "body")
        time.sleep(0.002)


@interlock.tool(grace=0.05)
async def act_gracefully(run_id: str) -> None:
    """Ask for time to clean up, as a tool, and use it."""
    try:
        await asyncio.sleep(0.005)
    finally:
        mark(run_id, "body")


async def agent(run: interlock.Run, message: interlock.Message) -> None:
    """Run without end, in one of several ways."""
    style = message.text.split()[0]
    while True:
        try:
            match style:
                case "talk":
                    await run.say("talk ")
                case "sync":
                    await run.call(act_at_once, run_id=run.id)
                case "grace":
                    await run.call(act_gracefully, run_id=run.id)
                case "block":
                    await run.say("block ")
                    time.sleep(0.003)  # noqa: ASYNC251
                    mark(run.id, "agent")
                case _:
                    await run.say("tools ")
                    await run.call(act, run_id=run.id)
        except (interlock.Stale, asyncio.CancelledError):
            if style != "swallow":
                raise
            mark(run.id, "agent")


class Raced(msgspec.Struct):
    """The results of some stops."""

    stops: int = 0
    permitted_after: int = 0  # calls that were told as running after the ack
    shown_after: int = 0  # events of a run after the ack, except its terminal event
    acted_after: int = 0  # lines of the witness after `drained`
    unconfirmed: int = 0
    endings: Counter[str] = msgspec.field(default_factory=Counter)
    hosts: Counter[str] = msgspec.field(default_factory=Counter)
    tools: Counter[str] = msgspec.field(default_factory=Counter)
    lines: int = 0

    @property
    def broken(self) -> int:
        """Return how often a promise was broken."""
        return self.permitted_after + self.shown_after + self.acted_after + self.unconfirmed


class Book(Sink):
    """A sink of one session, which counts the events of a run after its stop was acked."""

    def __init__(self, control: interlock.Control, session: str, raced: Raced) -> None:
        self.over: set[RunId] = set()
        self._raced = raced
        self._told: dict[tuple[RunId, bool], asyncio.Event] = {}
        control.feed.follow(SessionId(session), self)

    def take(self, event: Event, source: Source | None) -> bool:
        """Count an event of a run whose stop was acked; set the event of `told`."""
        if event.run_id is not None and event.kind in (EventKind.STARTED, EventKind.DELTA, EventKind.TOOL):
            self.told(event.run_id, spoken=event.kind is not EventKind.STARTED).set()
        if event.run_id in self.over and event.kind is not EventKind.ENDED:
            self._raced.shown_after += 1
            self._raced.permitted_after += isinstance(event.data, Tool) and event.data.state is ToolState.RUNNING
        return True

    def told(self, run_id: RunId, *, spoken: bool) -> asyncio.Event:
        """Return the event that is set when a run has started, or when its agent has done something."""
        return self._told.setdefault((run_id, spoken), asyncio.Event())


async def race(stops: int, *, seed: int = 0, grade: Grade | None = None, on_stop: object = None) -> Raced:
    """Race stops, in several sessions at once, and compare what watchers were told with the witness."""
    raced, chance, drained = Raced(), random.Random(seed), dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="interlock-stops-") as place:
        os.environ[WITNESS] = f"{place}/witness"
        Path(os.environ[WITNESS]).touch(0o600)  # noqa: ASYNC240
        async with interlock.open_control(
            "proofs.stops:agent", driver="host", confinement=Confinement(grade=grade)
        ) as control:

            async def lane(session: str) -> None:
                book = Book(control, session, raced)
                while raced.stops < stops:
                    raced.stops += 1
                    sent = await control.send(session, chance.choice(STYLES))
                    await book.told(sent.run_id, spoken=chance.random() < 0.8).wait()
                    await asyncio.sleep(chance.uniform(0, LATEST_SECONDS) * chance.choice((0, 1, 1)))
                    if chance.random() < 0.5:
                        await control.stop(session=session)
                    else:
                        await control.stop(run=sent.run_id)
                    book.over.add(sent.run_id)
                    # Otherwise the next message comes while the old host is still at work.
                    watching = chance.random() < 0.5
                    task = asyncio.create_task(settle(sent.run_id))
                    if watching:
                        await task
                    waiting.append(task)
                    if callable(on_stop):
                        on_stop()

            async def settle(run_id: str) -> None:
                outcome = await control.wait(run_id, drained=True, timeout=DRAIN_SECONDS)
                drained[run_id] = time.monotonic_ns()
                receipt = await control.receipt(run_id)
                raced.unconfirmed += receipt.drain is not Drain.OBSERVED
                raced.endings[outcome.ending] += 1
                raced.hosts[receipt.host] += 1
                raced.tools.update(tool.state for tool in receipt.tools)

            waiting: list[asyncio.Task[None]] = []
            await asyncio.gather(*(lane(f"s{number}") for number in range(SESSIONS)))
            await asyncio.gather(*waiting)
            await asyncio.sleep(0.05)  # anything that still lives would act within this time
        for line in Path(os.environ[WITNESS]).read_text("ascii").splitlines():  # noqa: ASYNC240
            at, run_id, _ = line.split()
            raced.lines += 1
            raced.acted_after += int(at) > drained.get(run_id, sys.maxsize)
    return raced


def main(arguments: list[str]) -> int:
    """Race stops on both grades, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m proofs stops")
    parser.add_argument("--stops", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    console, broken = Console(highlight=False), 0
    for grade in (None, Grade.KEEPER):
        began = time.perf_counter()
        with progress_bar(console) as progress:
            bar = progress.add_task(f"stops ({grade or 'best grade'})", total=asked.stops)
            raced = asyncio.run(
                race(asked.stops, seed=asked.seed, grade=grade, on_stop=lambda bar=bar: progress.advance(bar))
            )
        wall = time.perf_counter() - began
        console.print(
            f"{grade or 'best grade'}: {raced.stops} stops of hosts in {wall:.1f} s; permitted after the ack "
            f"{raced.permitted_after}, shown after the ack {raced.shown_after}, acted after drained "
            f"{raced.acted_after} of {raced.lines}, not confirmed {raced.unconfirmed}; "
            f"hosts {dict(raced.hosts)}, tools {dict(raced.tools)}, endings {dict(raced.endings)}"
        )
        broken += raced.broken
    return min(1, broken)
