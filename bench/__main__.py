"""`python -m bench [NAME ...] [--quick] [--raced N] [--seconds S] [--before REV]`: measure, print the table.

The bench never fails: a missed goal says MISS, a figure that cannot be taken says why. `python -m bench profile
noop|deltas` shows where the server's time goes instead.
"""

import argparse
import gc
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from time import monotonic

from bench.picture import draw
from bench.result import Result, absent, table
from bench.scale import BEFORE, Scale

# Each is a module with `measure(scale)`, imported when it is asked for: some need packages that others do not.
MEASURES = (
    *("fence", "takeover", "flood", "crowd", "many", "family", "memory", "receipts", "durable", "busy", "recovery"),
    *("schedules", "trees", "survivors", "hosts", "inside", "noops", "deltas", "stops", "gateway", "verbs", "weight"),
    *("page", "raced"),
)


def main() -> None:
    """Take the figures that were asked for."""
    if sys.argv[1:2] == ["profile"]:
        import_module("bench.profile").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="everything small, under a minute")
    parser.add_argument("--raced", type=int, help="how many stops to race (1,000,000; quick: 20,000)")
    parser.add_argument("--seconds", type=float, default=1_800.0, help="race at most so long (1,800)")
    parser.add_argument(
        "--before", metavar="REV", default=BEFORE, help=f"the commit of noops, verbs and weight ({BEFORE})"
    )
    parser.add_argument("--draw", metavar="FILE", help="draw trees and survivors as SVG")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MEASURES):
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    how_many = asked.raced or (20_000 if asked.quick else 1_000_000)
    scale = Scale(quick=asked.quick, raced=how_many, seconds=asked.seconds, before=asked.before)
    load = os.getloadavg()[0]
    results: list[Result] = []
    for name in asked.names or MEASURES:
        began = monotonic()
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            results += import_module(f"bench.{name}").measure(scale)
        except Exception as error:
            traceback.print_exc()
            results.append(absent(name, f"{type(error).__name__}: {error}"))
        gc.collect()
        print(f"measured {name} in {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(results, load))
    if asked.draw:
        draw(results, Path(asked.draw))


if __name__ == "__main__":
    main()
