"""`python -m bench [NAME ...] [--quick] [--raced N] [--seconds S]`: measure, print the table, never fail."""

import argparse
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from bench import (
    crowd,
    durable,
    family,
    fence,
    flood,
    gateway,
    hosts,
    memory,
    page,
    raced,
    recovery,
    schedules,
    survivors,
    takeover,
    trees,
)
from bench.picture import draw
from bench.result import Result, table
from bench.scale import Scale

MEASURES: dict[str, Callable[[Scale], list[Result]]] = {
    "fence": fence.measure,
    "takeover": takeover.measure,
    "flood": flood.measure,
    "crowd": crowd.measure,
    "family": family.measure,
    "memory": memory.measure,
    "durable": durable.measure,
    "recovery": recovery.measure,
    "schedules": schedules.measure,
    "trees": trees.measure,
    "survivors": survivors.measure,
    "hosts": hosts.measure,
    "gateway": gateway.measure,
    "page": page.measure,
    "raced": raced.measure,
}


def main() -> None:
    """Take the figures that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="everything small, under a minute")
    parser.add_argument("--raced", type=int, help="how many stops to race (1,000,000; quick: 20,000)")
    parser.add_argument("--seconds", type=float, default=1_800.0, help="race at most so long (1,800)")
    parser.add_argument("--draw", metavar="FILE", help="draw trees and survivors as SVG")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MEASURES):
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    scale = Scale(quick=asked.quick, raced=asked.raced or (20_000 if asked.quick else 1_000_000), seconds=asked.seconds)
    load = os.getloadavg()[0]
    results: list[Result] = []
    for name in asked.names or MEASURES:
        began = monotonic()
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        results += MEASURES[name](scale)
        gc.collect()
        print(f"measured {name} in {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(results, load))
    if asked.draw:
        draw(results, Path(asked.draw))


if __name__ == "__main__":
    main()
