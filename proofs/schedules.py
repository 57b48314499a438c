"""`make prove`: play seeds for as long as you like, on every core, and print the results.

python -m proofs.schedules --seeds 100000     explore
python -m proofs.schedules --seed 4711        replay one seed exactly, and print its trace
python -m proofs.schedules --processes 10000  cut hostile processes, and look for what is left
"""

import argparse
import concurrent.futures
import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from interlock.processes.base import Grade
from interlock.testing.loop import ordered_anyio
from proofs.processes import CASES, DROPPED_UID, Batch, Cell, NoScope, play_apart
from proofs.scenarios import play

CHUNK_SEEDS = 200
COLLECT_SEEDS = 10  # the garbage of so few schedules stays in the processor's cache
CHUNKS_PER_PROCESS = 10
BATCH_ROUNDS = 20  # rounds of every case, in one process
BATCH_WIDTH = 3  # trials at a time in one process, which wait more than they work


class Chunk(NamedTuple):
    """The results of a stretch of seeds."""

    seeds: int
    steps: int
    traces: frozenset[str]
    broken: tuple[tuple[int, str], ...]  # (seed, the error)
    seconds: float


def explore(first: int, count: int, *, until_found: bool = False) -> Chunk:
    """Play seeds one after another in this process."""
    traces, broken, steps = set(), [], 0
    began = time.perf_counter()
    played = 0
    # A schedule runs without the collector anyway; a collection every few schedules is enough.
    gc.disable()
    with ordered_anyio():
        for seed in range(first, first + count):
            played += 1
            if played % COLLECT_SEEDS == 0:
                gc.collect()
                # Coroutines that must never be resumed are kept for good: freeze them, so that no collection visits
                # them again.
                gc.freeze()
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
    # A process is replaced now and then, because coroutines that must never be resumed stay in its memory.
    # This is a Pool because ProcessPoolExecutor's max_tasks_per_child deadlocks on 3.11.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(_explore, zip(starts, sizes, strict=True))


def progress_bar(console: Console) -> Progress:
    """Return a progress bar for long work."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def prove(first: int, count: int, jobs: int, console: Console) -> int:
    """Explore with a progress bar; return the number of broken seeds."""
    traces: set[str] = set()
    broken: list[tuple[int, str]] = []
    steps, busy, began = 0, 0.0, time.perf_counter()
    with progress_bar(console) as progress:
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
    """Play one seed and print its trace."""
    try:
        result = play(seed)
    except Exception as error:
        console.print_exception()
        console.print(f"seed {seed}: {type(error).__name__}: {error}", markup=False)
        return 1
    console.print(f"seed {seed}: trace {result.trace}, {result.steps} steps, nothing broken", highlight=False)
    return 0


# Hostile processes


class Setting(NamedTuple):
    """The grade under which, and the user as whom, a batch is played."""

    grade: Grade | None
    uid: int | None = None

    def __str__(self) -> str:
        return f"uid {self.uid}" if self.uid is not None else str(self.grade)


def _settings(console: Console) -> list[Setting]:
    """Return the settings that can be played here; print those that cannot, and why."""
    machine = play_apart(None, seed=0, rounds=0)
    settings = []
    if machine.grade == Grade.CGROUP:
        settings.append(Setting(Grade.CGROUP))
    else:
        console.print(f"no trials with cgroups: {machine.why}", markup=False)
    if machine.grade != Grade.GROUP:
        settings.append(Setting(Grade.KEEPER))
    if os.getuid() == 0:
        settings.append(Setting(None, DROPPED_UID))
    return settings


def prove_processes(first: int, count: int, jobs: int, console: Console) -> int:
    """Cut every hostile case again and again, with a progress bar; return how much was left, of every kind."""
    try:
        settings = _settings(console)
    except NoScope as error:
        console.print(str(error), markup=False)
        return 1
    if not settings:
        console.print("this machine gives process groups only, and those promise nothing here")
        return 1
    batches: dict[Setting, list[Batch]] = {setting: [] for setting in settings}
    broken: list[str] = []
    # Batches of one setting take turns: the kernel's limit of processes counts all of a user's.
    apart = {setting: threading.Lock() for setting in settings}
    per_batch = BATCH_ROUNDS * len(CASES)
    asked = [(settings[n % len(settings)], first + n) for n in range(-(-count // per_batch))]
    began = time.perf_counter()
    with progress_bar(console) as progress, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("hostile processes", total=len(asked) * per_batch)

        def play(one: Setting, seed: int) -> Batch:
            with apart[one]:
                return play_apart(one.grade, seed=seed, rounds=BATCH_ROUNDS, width=BATCH_WIDTH, uid=one.uid)

        playing = {pool.submit(play, one, seed): one for one, seed in asked}
        for played in concurrent.futures.as_completed(playing):
            setting = playing[played]
            try:
                batch = played.result()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                said = [str(error)]
            else:
                batches[setting].append(batch)
                said = [*batch.troubles, *batch.zombies, *batch.fds, *batch.leaves, *batch.left]
            for what in said:
                console.print(f"{setting}: {what}", markup=False, highlight=False)
            broken += said
            progress.advance(bar, per_batch)
    wall = time.perf_counter() - began
    for setting in settings:
        console.print(_table(setting, batches[setting]))
    trials = sum(batch.trials for played in batches.values() for batch in played)
    console.print(
        f"{trials} trials (seeds {first} to {first + len(asked) - 1}) in {wall:.1f} s: {trials / wall:.0f}/s on "
        f"{jobs} cores; {len(broken)} broken",
        highlight=False,
    )
    if broken:
        console.print(
            "a trial is named case-seed-number; play it again, in a scope that limits it, with\n"
            "python -m proofs.processes --grade GRADE --case CASE --seed SEED "
            f"--rounds {BATCH_ROUNDS} --width {BATCH_WIDTH}",
            markup=False,
        )
    return len(broken)


def _table(setting: Setting, batches: list[Batch]) -> Table:
    """Sum up batches, case by case, with what was left at the end."""
    grades = " ".join(sorted({batch.grade for batch in batches}))
    left = {kind: sum(len(getattr(batch, kind)) for batch in batches) for kind in ("zombies", "fds", "leaves", "left")}
    table = Table(
        title=f"{setting}: grade {grades or 'unknown'}",
        caption="after all: {zombies} zombies, {fds} descriptors, {leaves} cgroups, {left} processes".format(**left),
    )
    table.add_column("case")
    counted = [name for name in Cell.__struct_fields__ if name != "slowest"]
    for name in (*counted, "slowest, ms"):
        table.add_column("beats after" if name == "late" else name, justify="right")
    for case in CASES:
        cells = [batch.cells[case] for batch in batches if case in batch.cells]
        slowest = max((cell.slowest for cell in cells), default=0.0)
        table.add_row(case, *(str(sum(getattr(cell, name) for cell in cells)) for name in counted), f"{slowest:.0f}")
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="proofs.schedules", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000, help="how many schedules to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--processes", type=int, help="cut so many hostile processes instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--until-found", action="store_true", help="one process, stop at the first broken seed")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.seed is not None:
        return replay(asked.seed, console)
    if asked.processes is not None:
        return min(1, prove_processes(asked.first, asked.processes, asked.jobs, console))
    if asked.until_found:
        chunk = explore(asked.first, asked.seeds, until_found=True)
        for seed, what in chunk.broken:
            console.print(f"seed {seed}: {what}", markup=False, soft_wrap=True)
        return min(1, len(chunk.broken))
    return min(1, prove(asked.first, asked.seeds, asked.jobs, console))


if __name__ == "__main__":
    sys.exit(main())
