"""`make prove`: play seeds for as long as you like, on every core, and print what was seen.

python -m interlock.testing.prove --seeds 100000     explore
python -m interlock.testing.prove --seed 4711        replay one seed exactly, and print its trace
"""

import argparse
import gc
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from interlock.testing.explore import play
from interlock.testing.loop import ordered_anyio

CHUNK_SEEDS = 200
COLLECT_SEEDS = 100
CHUNKS_PER_PROCESS = 10


class Chunk(NamedTuple):
    """What a stretch of seeds came to."""

    seeds: int
    steps: int
    traces: frozenset[str]
    broken: tuple[tuple[int, str], ...]  # seed, what broke
    seconds: float


def explore(first: int, count: int, *, until_found: bool = False) -> Chunk:
    """Play seeds one after another in this process."""
    traces, broken, steps = set(), [], 0
    began = time.perf_counter()
    played = 0
    gc.disable()  # the collector rests during a schedule anyway; between them, now and then is enough
    with ordered_anyio():
        for seed in range(first, first + count):
            played += 1
            if played % COLLECT_SEEDS == 0:
                gc.collect()
                gc.freeze()  # coroutines that must never be resumed are kept for good: do not look at them again
            try:
                result = play(seed)
            except Exception as error:
                broken.append((seed, f"{type(error).__name__}: {error}"))
                if until_found:
                    break
            else:
                traces.add(result.trace)
                steps += result.steps
    gc.enable()
    return Chunk(played, steps, frozenset(traces), tuple(broken), time.perf_counter() - began)


def _explore(stretch: tuple[int, int]) -> Chunk:
    return explore(*stretch)


def _chunks(first: int, count: int, jobs: int) -> Iterator[Chunk]:
    starts = range(first, first + count, CHUNK_SEEDS)
    sizes = [min(CHUNK_SEEDS, first + count - start) for start in starts]
    if jobs == 1:
        yield from itertools.starmap(explore, zip(starts, sizes, strict=True))
        return
    # A process is replaced now and then, because what must never be resumed stays in its memory.
    # (A Pool, because ProcessPoolExecutor's max_tasks_per_child deadlocks on 3.11.)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(_explore, zip(starts, sizes, strict=True))


def prove(first: int, count: int, jobs: int, console: Console) -> int:
    """Explore with a progress bar; return the number of broken seeds."""
    traces: set[str] = set()
    broken: list[tuple[int, str]] = []
    steps, busy, began = 0, 0.0, time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("schedules", total=count)
        for chunk in _chunks(first, count, jobs):
            traces |= chunk.traces
            broken += chunk.broken
            steps, busy = steps + chunk.steps, busy + chunk.seconds
            progress.advance(bar, chunk.seeds)
            for seed, what in chunk.broken:
                console.print(f"seed {seed}: {what}", markup=False)
    wall = time.perf_counter() - began
    console.print(
        f"{count} schedules (seeds {first} to {first + count - 1}) in {wall:.1f} s: "
        f"{count / wall:.0f}/s on {jobs} cores, "
        f"{count / busy:.0f}/s per core; {steps} steps, {len(traces)} distinct traces, {len(broken)} broken",
        highlight=False,
    )
    return len(broken)


def replay(seed: int, console: Console) -> int:
    """Play one seed and say what was seen."""
    try:
        result = play(seed)
    except Exception as error:
        console.print_exception()
        console.print(f"seed {seed}: {type(error).__name__}: {error}", markup=False)
        return 1
    console.print(f"seed {seed}: trace {result.trace}, {result.steps} steps, nothing broken", highlight=False)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="interlock.testing.prove", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000, help="how many schedules to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--until-found", action="store_true", help="one process, stop at the first broken seed")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.seed is not None:
        return replay(asked.seed, console)
    if asked.until_found:
        chunk = explore(asked.first, asked.seeds, until_found=True)
        for seed, what in chunk.broken:
            console.print(f"seed {seed}: {what}", markup=False, soft_wrap=True)
        return min(1, len(chunk.broken))
    return min(1, prove(asked.first, asked.seeds, asked.jobs, console))


if __name__ == "__main__":
    sys.exit(main())
