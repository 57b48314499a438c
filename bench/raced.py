"""Effects admitted after stop() returned, over many stops raced with hostile agents: there may be none.

Each process, one per core, plays waves of sessions. Each session sends, lets some loop cycles pass, stops, and goes on
in the same session while the old run still tries. Stops come by session, by run and by key, before the ack, before the
start, amid tools, at the end. Processes are short-lived: a body that had to be dropped is kept for ever.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import sys
from collections.abc import Iterator
from time import monotonic
from typing import NamedTuple

from bench.hostile import LATE_SECONDS, Voice, World
from bench.result import Result
from bench.scale import Scale
from bench.witness import Tally
from interlock import MemoryStore, Receipt, Settings, open_control
from interlock.core.names import RunId, SessionId
from interlock.runtime.control import Control


class Shape(NamedTuple):
    """How wide a wave is, how long, and how slow its store."""

    sessions: int
    turns: int
    latency_seconds: float


SHAPES = (Shape(200, 10, 0.0), Shape(200, 10, 0.005), Shape(20, 100, 0.0), Shape(20, 100, 0.001))
CHUNK = 10_000  # stops in one process
PROCESSES = 2
BOUNDS = Settings(grace_seconds=0.05, drain_seconds=0.5)


def measure(scale: Scale) -> list[Result]:
    """Race stops until there are enough or the time is up."""
    total, began = Tally(), monotonic()
    for tally in _chunks(scale, began + scale.seconds):
        total.add(tally)
        _progress(total, scale, monotonic() - began)
    return _results(total, scale, monotonic() - began)


def _chunks(scale: Scale, until: float) -> Iterator[Tally]:
    """Yield what each process counted, as they finish, until the time is up."""
    size = min(CHUNK, max(100, scale.raced // PROCESSES))
    jobs = [(seed, size) for seed in range(-(-scale.raced // size))]
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES, maxtasksperchild=1) as pool:  # the end of the block ends the processes that still run
        counted = pool.imap_unordered(_chunk, jobs)
        with contextlib.suppress(StopIteration, multiprocessing.TimeoutError):
            while True:
                yield counted.next(timeout=max(0.0, until - monotonic()))


def _chunk(job: tuple[int, int]) -> Tally:
    seed, stops = job
    return asyncio.run(_play_chunk(seed, stops))


async def _play_chunk(seed: int, stops: int) -> Tally:
    world = World(seed)
    # A dropped body may hold an async generator open; asyncio.run complains of each when it closes.
    world.loop.set_exception_handler(lambda loop, context: None)
    gc.freeze()
    # With the usual thresholds a third of the time would go into visiting live objects.
    gc.set_threshold(20_000, 50, 100)
    voice = Voice(world)
    voice.start()
    while world.tally.stops < stops:
        await _wave(world, stops)
    voice.hush()
    return world.tally


async def _wave(world: World, stops: int) -> None:
    world.witnesses.clear()
    shape = world.dice.choice(SHAPES)
    store = MemoryStore(latency_seconds=shape.latency_seconds)
    async with open_control(world.agent, store=store, settings=BOUNDS) as control:
        names = [f"s{n}" for n in range(shape.sessions)]
        await asyncio.gather(*(_session(world, control, name, shape.turns, stops) for name in names))
        await asyncio.sleep(2 * LATE_SECONDS)
    await asyncio.sleep(2 * LATE_SECONDS)  # for agents that are late even for the close


async def _session(world: World, control: Control, session: str, turns: int, stops: int) -> None:
    witness = world.witness(session)
    control.feed.follow(SessionId(session), witness)
    for turn in range(turns):
        if world.tally.stops >= stops:
            return
        if world.dice.random() < 0.2:
            await _stop_arriving(world, control, session, f"{session}.{turn}")
        else:
            sent = await control.send(session, "go")
            await _cycles(world.dice.randint(0, 24))
            await _stop(world, control, session, run=sent.run_id)


async def _stop_arriving(world: World, control: Control, session: str, key: str) -> None:
    """Stop a message while it arrives, or even before."""
    sending = asyncio.create_task(control.send(session, "go", key=key))
    await _cycles(world.dice.choice((0, 0, 0, 1, 2, 4, 6)))
    await _stop(world, control, session, key=key)
    sent = await sending
    await _stop(world, control, session, run=sent.run_id)


async def _stop(world: World, control: Control, session: str, *, run: str | None = None, key: str = "") -> None:
    if world.dice.random() < 0.5:
        receipt = await control.stop(session=session)
    elif run is not None:
        receipt = await control.stop(run=run)
    else:
        receipt = await control.stop(message=key)
    _returned(world, session, receipt, run)


def _returned(world: World, session: str, receipt: Receipt, run: str | None) -> None:
    """Count a stop in the very step in which it returned."""
    known = () if run is None else (RunId(run),)
    world.witness(session).over(*known, *(fallen.id for fallen in receipt.runs))
    world.tally.stops += 1
    world.tally.cut += receipt.aborted


async def _cycles(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _progress(total: Tally, scale: Scale, elapsed: float) -> None:
    rate = total.stops / elapsed
    line = (
        f"raced {total.stops:,} of {scale.raced:,} stops, {total.admitted} + {total.untold} violations, {rate:,.0f}/s"
    )
    end = "\r" if sys.stderr.isatty() and total.stops < scale.raced else "\n"
    print(line, end=end, file=sys.stderr, flush=True)


def _results(total: Tally, scale: Scale, elapsed: float) -> list[Result]:
    short = "" if total.stops >= scale.raced else f"; {scale.raced:,} were asked for, the time was up"
    late = ", ".join(f"{count} {kind}" for kind, count in total.events_late.items()) or "0"
    small = (
        f"{total.stops / elapsed:,.0f} stops/s on {PROCESSES} processes, {elapsed:,.0f} s{short}",
        f"{total.cut:,} stops cut a run; before their stop returned {total.events:,} events and "
        f"{total.bodies:,} tool bodies were seen; {total.refused:,} attempts met Stale",
        f"late events {late}; late tool bodies {total.bodies_late}; events after the terminal one "
        f"{total.events_sealed}; acts of tool bodies after drained {total.acts_drained}",
    )
    name = f"effects admitted after stop() returned, {total.stops:,} raced stops"
    untold = "control's own events (message, ended) after stop() returned"
    return [
        Result(name=name, value=total.admitted, unit="", goal=0),
        Result(name=untold, value=total.untold, unit="", goal=0, small=small),
    ]
