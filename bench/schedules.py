"""How fast the prover explores, on a machine that has it."""

import importlib.util
import subprocess
import sys
from time import monotonic

from bench.result import Result
from bench.scale import Scale

PROVE = "proofs.schedules"
NAME = "seeded schedules per second"
LIMIT_SECONDS = 120


def measure(scale: Scale) -> list[Result]:
    """Run the prover for some seeds; return nothing where there is none."""
    if importlib.util.find_spec(PROVE) is None:
        return []
    seeds = scale.rounds(5_000, 1_000)
    began = monotonic()
    command = [sys.executable, "-m", PROVE, "--seeds", str(seeds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        note = f"{seeds:,} seeds were not played within {LIMIT_SECONDS} s"
        return [Result(name=NAME, value=0, unit="/s", small=(note,))]
    elapsed = monotonic() - began
    said = [line.strip() for line in done.stdout.strip().splitlines()[-2:]]
    small = (f"{seeds:,} seeds in {elapsed:.1f} s on all cores, start-up included, exit {done.returncode}", *said)
    return [Result(name=NAME, value=seeds / elapsed, unit="/s", small=small)]
