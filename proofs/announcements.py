"""kill -9 right after a detached child's end: however much was written, the next start announces the end once.

A server begins a detached child, lets it return, and is killed some microseconds after the ending and its announcement
were handed to the store. The next server, on the same directory, comes to rest. Then the judge reads the database with
plain sqlite3: there is one announcement, published once and given to an agent at most once.

python -m proofs announcements --kills 200
"""

import argparse
import asyncio
import concurrent.futures
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

import interlock
from interlock import Message, Run
from interlock.core.decision import Decision
from interlock.stores.sqlite import SqliteStore
from proofs.schedules import progress_bar

LATEST_SECONDS = 0.004  # after the hand-over; the commit is about in the middle
REST_SECONDS = 60.0
HOW = ("turn", "note")


class Found(msgspec.Struct):
    """The state of a directory after the second start."""

    ending: str
    announced: int  # messages that announce the child
    told: int  # times that watchers of the session were told of the end
    taken_up: int  # times that an agent was given the announcement, over both starts
    durable: bool  # the first start's ending was in the database when it was killed


async def _serve(directory: Path, how: str, at: float) -> None:
    """Play the first start, to its death."""
    child: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        if message.child is not None:
            _mark(directory)
            return "heard"
        begun = await run.delegate("child", "work", detached=True, announce=how)  # type: ignore[arg-type]
        child.append(begun.run_id)
        return "begun"

    async def work(run: Run, message: Message) -> str:
        while not child:
            await asyncio.sleep(0)
        return "child result 42"

    store = SqliteStore(directory / "data")
    handed_over = store.decide

    def decide(decision: Decision) -> Any:
        ticket = handed_over(decision)
        if child and any(row.id == child[0] for row in decision.endings):
            threading.Thread(target=_die, args=(time.perf_counter() + at,), daemon=True).start()
        return ticket

    store.decide = decide  # type: ignore[method-assign]
    async with interlock.open_control(agent, agents={"child": work}, store=store) as control:
        await control.send("s", "go", by="alice")
        await asyncio.sleep(REST_SECONDS)
    raise AssertionError("it outlived its death")


def _die(at: float) -> None:
    while time.perf_counter() < at:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def _recover(directory: Path) -> None:
    """Play the second start, until every run has ended."""

    async def agent(run: Run, message: Message) -> str:
        if message.child is not None:
            _mark(directory)
        return "heard"

    store = SqliteStore(directory / "data")
    async with (
        asyncio.timeout(REST_SECONDS),
        interlock.open_control(agent, agents={"child": agent}, store=store) as control,
    ):
        while any(info.outcome is None for info in await control.runs("s", tree=True)):
            await asyncio.sleep(0.005)


def _mark(directory: Path) -> None:
    with (directory / "heard").open("a") as file:
        file.write("x")


def _ended(directory: Path) -> bool:
    with sqlite3.connect(directory / "data" / "interlock.db") as db:
        return bool(db.execute("SELECT count(*) FROM runs WHERE kind = 'child' AND ending IS NOT NULL").fetchone()[0])


def play(seed: int) -> Found:
    """Kill one server, start another, and read what the directory holds."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="interlock-announcements-") as name:
        directory = Path(name)
        how, at = chance.choice(HOW), chance.uniform(0, LATEST_SECONDS)
        command = [sys.executable, "-m", __name__, name]
        killed = subprocess.run([*command, how, str(at)], capture_output=True, text=True, check=False, timeout=120)
        if killed.returncode != -signal.SIGKILL:
            raise RuntimeError(f"seed {seed}: the first start ended with {killed.returncode}: {killed.stderr[-500:]}")
        durable = _ended(directory)
        again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if again.returncode != 0:
            raise RuntimeError(f"seed {seed}: the second start failed: {again.stderr[-500:]}")
        heard = directory / "heard"
        with sqlite3.connect(directory / "data" / "interlock.db") as db:
            [(child, ending)] = db.execute("SELECT id, ending FROM runs WHERE kind = 'child'")
            [(announced,)] = db.execute(
                "SELECT count(*) FROM runs WHERE kind IN ('announce', 'note') AND key = ?", [child]
            )
            said = "SELECT count(*) FROM events WHERE data ->> '$.type' = 'message' AND data ->> '$.child' = ?"
            [(told,)] = db.execute(said, [child])
        return Found(ending, announced, told, len(heard.read_text()) if heard.exists() else 0, durable)


def wrong(found: Found) -> str | None:
    """Return what is wrong with a directory, None if nothing is."""
    if found.announced != 1 or found.told != 1 or found.taken_up > 1:
        return f"announced {found.announced}, told {found.told}, taken up {found.taken_up} times ({found.ending})"
    if found.ending not in ("completed", "lost") or found.durable != (found.ending == "completed"):
        return f"ended {found.ending}, and in the database when it was killed: {found.durable}"
    return None


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs announcements")
    parser.add_argument("--kills", type=int, default=200, help="how many servers to kill at a child's end")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args(arguments)
    console, broken, endings = Console(), 0, Counter[str]()
    began = time.perf_counter()
    seeds = range(asked.first, asked.first + asked.kills)
    with progress_bar(console) as progress, concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        bar = progress.add_task("kills", total=len(seeds))
        playing = {pool.submit(play, seed): seed for seed in seeds}
        for played in concurrent.futures.as_completed(playing):
            found = played.result()
            endings[found.ending] += 1
            if (why := wrong(found)) is not None:
                broken += 1
                console.print(f"seed {playing[played]}: {why}", markup=False, highlight=False)
            progress.advance(bar)
    told = ", ".join(f"{times} {ending}" for ending, times in sorted(endings.items()))
    console.print(
        f"{len(seeds)} kills in {time.perf_counter() - began:.1f} s: {told}; {broken} broken", highlight=False
    )
    return min(1, broken)


if __name__ == "__main__":
    place, *rest = sys.argv[1:]
    asyncio.run(_serve(Path(place), rest[0], float(rest[1])) if rest else _recover(Path(place)))
