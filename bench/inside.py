"""The processor time of a no-op run in process, beside an earlier commit's in the same run.

Each turn is a process of its own that loads the package from its own source tree, and runs 64 sessions at once; all
threads count, so a busy machine changes little.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.durable import directory
from bench.result import Result, absent
from bench.scale import Scale
from bench.served import ROOT, tree_at

BEFORE = "a2ac386"
GOAL = 0.5
RUNS = 3_000
TURN = """
import asyncio, sys, time
from interlock import open_control
async def agent(run, message):
    pass
async def main(store, runs, sessions=64):
    async def turns(session, count):
        for _ in range(count):
            sent = await control.send(session, "go")
            await control.wait(sent.run_id)
    async with open_control(agent, store=store) as control:
        await asyncio.gather(*(turns(f"s{n}", 5) for n in range(sessions)))
        began = time.process_time()
        await asyncio.gather(*(turns(f"s{n}", runs // sessions) for n in range(sessions)))
        print((time.process_time() - began) / (runs // sessions * sessions) * 1e6)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def measure(scale: Scale) -> list[Result]:
    """Take ours and the earlier commit by turns, with both stores."""
    try:
        trees = {"ours": ROOT, "before": tree_at(BEFORE)}
    except subprocess.CalledProcessError as error:
        return [absent(f"no-op run in process / {BEFORE}", f"git does not have it: {error}")]
    results = []
    for store in ("memory", "SQLite"):
        taken: dict[str, list[float]] = {side: [] for side in trees}
        for _ in range(scale.rounds(7, 3)):
            for side, tree in trees.items():
                taken[side].append(_turn(tree, store, RUNS if not scale.quick else RUNS // 3))
        ours, before = (statistics.median(taken[side]) for side in trees)
        small = (f"ours {ours:,.0f} us, {BEFORE} {before:,.0f} us (medians of {len(taken['ours'])} by turns)",)
        name = f"processor time, no-op run in process / {BEFORE}, {store}"
        results.append(Result(name=name, value=ours / before, goal=GOAL, small=small))
    return results


def _turn(tree: Path, store: str, runs: int) -> float:
    """Return the microseconds of processor time that a run takes."""
    with directory() as path:
        where = "memory://" if store == "memory" else f"sqlite:///{path / 'store'}"
        env = {**os.environ, "PYTHONPATH": str(tree / "src")}
        command = [sys.executable, "-c", TURN, where, str(runs)]
        return float(subprocess.check_output(command, env=env, text=True))
