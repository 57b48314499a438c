"""Campaigns: `python -m proofs crashes [--kills 2000]`, `disk [--bare] [--control]`, `stops [--stops 1000]`,
`frames [--inputs 1000000]`, `announcements [--kills 200]`."""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from proofs import announcements, crashes, disk, frames, stops
from proofs.processes import NoScope
from proofs.schedules import progress_bar

DIRECTORY_KILLS = 20  # on one directory
ENOUGH_KILLS = 1_000  # so many that every check is made at least once


def kill_servers(first: int, count: int, jobs: int, console: Console) -> int:
    """Kill servers under load, with a progress bar; return how many checks did not hold."""
    checks: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    broken: list[str] = []
    kills, late_ms, began = 0, 0.0, time.perf_counter()
    seeds = range(first, first - (-count // DIRECTORY_KILLS))
    with progress_bar(console) as progress, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("kills", total=len(seeds) * DIRECTORY_KILLS)
        playing = [pool.submit(crashes.play_apart, seed, DIRECTORY_KILLS) for seed in seeds]
        for played in concurrent.futures.as_completed(playing):
            try:
                report = played.result()
            except (NoScope, RuntimeError, subprocess.TimeoutExpired) as error:
                report = crashes.Report(broken=[str(error)])
            checks.update(report.checks)
            seen.update(report.seen)
            broken += report.broken
            kills, late_ms = kills + report.kills, max(late_ms, report.late_ms)
            for what in report.broken:
                console.print(what, markup=False, highlight=False)
            progress.advance(bar, DIRECTORY_KILLS)
    wall = time.perf_counter() - began
    for title, counted in (("checks", checks), ("the load, and how runs ended", seen)):
        table = Table("what", "times", title=title)
        for name, times in sorted(counted.items()):
            table.add_row(name, str(times))
        console.print(table)
    never = [f"never checked: {what}" for what in crashes.CHECKS if what not in checks]
    for what in never:
        console.print(what, markup=False)
    broken += never if kills >= ENOUGH_KILLS else []
    console.print(
        f"{kills} kills (seeds {first} to {seeds[-1]}) in {wall:.1f} s: {kills / wall:.1f}/s on {jobs} cores; "
        f"{sum(checks.values())} checks, {len(broken)} broken; text shown and lost was at most {late_ms:.0f} ms old",
        highlight=False,
    )
    if broken:
        console.print(
            f"play a seed again with\npython -m proofs.crashes --seed SEED --kills {DIRECTORY_KILLS}",
            markup=False,
        )
    return len(broken)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    if arguments[:1] == ["disk"]:
        return disk.main(arguments[1:])
    if arguments[:1] == ["announcements"]:
        return announcements.main(arguments[1:])
    if arguments[:1] == ["stops"]:
        return stops.main(arguments[1:])
    if arguments[:1] == ["frames"]:
        return frames.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m proofs", description=__doc__)
    parser.add_argument("what", choices=("crashes", "disk", "stops", "frames", "announcements"))
    parser.add_argument("--kills", type=int, default=2_000, help="how many servers to kill under load")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args(arguments)
    return min(1, kill_servers(asked.first, asked.kills, asked.jobs, Console()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
