"""Processes: how long until a tree is gone, what a spawn costs, what a keeper weighs; against floors of the same run.

The floor is one killpg and a wait for ECHILD, in a bare process that is a subreaper: nothing that sees a tree gone can
be faster, and killpg misses processes that left the group. Sides take turns, each on a tree of its own.
"""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.result import Result
from bench.sample import Samples
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.processes.base import Confinement, Grade, SpawnOrder
from interlock.processes.local import LocalProcesses

SIZES = (1, 10, 100, 1000)
GOALS = {Grade.CGROUP: (2.0, 1.5, 1.2, 1.2), Grade.KEEPER: (3.0, 3.0, 1.5, 1.3)}
SPAWN_GOAL, DEATH_GOAL, KEEPER_KIB = 1.6, 100.0, 1024
ACKED = {
    "ended": ("a process that has ended", 1.2),
    "1": ("one process", 1.2),
    "1000": ("a tree of 1,000 processes", 1.5),
}
FEW = 4  # rounds with small trees for each with the large one
TREE = """
import os, sys, _signal as signal
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        signal.pause()
os.write(1, b"!")
signal.pause()
"""
GATEWAY = """
import asyncio, os, sys
from interlock.processes.base import Confinement, Grade, SpawnOrder
from interlock.processes.local import LocalProcesses
async def main():
    processes = LocalProcesses(Confinement(grade=Grade(sys.argv[1])))
    await processes.ready()
    held = processes.contain("bench")
    tree = held.spawn(SpawnOrder(argv=(sys.executable, "-I", "-S", "-c", sys.argv[2], "10"), streamed=True))
    while b"!" not in bytes(tree._output._lines):
        await asyncio.sleep(0.001)
    print(tree.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
FLOOR = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
while os.read(0, 1):
    reading, writing = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-I", "-S", "-c", sys.argv[2], sys.argv[1]], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)], setsid=True,
    )
    os.close(writing)
    os.read(reading, 1)
    began = time.perf_counter()
    os.killpg(pid, signal.SIGKILL)
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        print(time.perf_counter() - began, flush=True)
    os.close(reading)
"""


def measure(scale: Scale) -> list[Result]:
    """Measure processes at both grades."""
    grades = [Grade.CGROUP, Grade.KEEPER] if os.geteuid() == 0 else [Grade.KEEPER]
    results = [result for grade in grades for result in asyncio.run(_gone(grade, scale))]
    results += [_died(grade, scale) for grade in grades]
    results += [result for grade in grades for result in asyncio.run(_spawned(grade, scale))]
    return results + asyncio.run(_acked(scale))


def _trials(size: int, scale: Scale) -> int:
    return scale.rounds({1: 60, 10: 40, 100: 20, 1000: 8}[size], {1: 15, 10: 10, 100: 5, 1000: 2}[size])


async def _gone(grade: Grade, scale: Scale) -> list[Result]:
    """Time from a stop until a tree is gone, against killpg."""
    processes = LocalProcesses(Confinement(grade=grade, pids=8192))
    await processes.ready()
    results = []
    for size, goal in zip(SIZES, GOALS[grade], strict=True):
        trials = _trials(size, scale)
        ours, floor = Samples(), Samples()
        bare = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", FLOOR, str(size), TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert bare.stdin is not None and bare.stdout is not None
        for _ in range(trials):
            bare.stdin.write(b"!")  # the bare side's turn
            floor.seconds.append(float(await bare.stdout.readline()))
            held = processes.contain("bench")
            tree = held.spawn(SpawnOrder(argv=(sys.executable, "-I", "-S", "-c", TREE, str(size)), streamed=True))
            output = tree._output
            assert output is not None
            while b"!" not in output._lines:
                await asyncio.sleep(0.0005)
            began = time.perf_counter()
            held.cut()
            await held.done.wait()
            ours.seconds.append(time.perf_counter() - began)
        bare.stdin.close()
        await bare.wait()
        results.append(
            Result(
                name=f"stop -> tree of {size} gone / killpg, {grade} grade, p50",
                value=ours.percentile(50) / floor.percentile(50),
                goal=goal,
                drawn=(
                    "trees",
                    {f"{grade} {size}": ours.percentile(50) / floor.percentile(50), f"goal {grade} {size}": goal},
                ),
                small=(f"ours {ours.spread()}", f"killpg {floor.spread()}"),
            )
        )
    await processes.close()


def _died(grade: Grade, scale: Scale) -> Result:
    """Time from a kill -9 of control until a tree of ten is gone, against one kill."""
    ours, floor, leaks = Samples(), Samples(), 0
    for _ in range(scale.rounds(15, 4)):
        lone = subprocess.Popen(["sleep", "100"])
        with _watching([lone.pid]) as gone:
            began = time.perf_counter()
            lone.kill()
            gone(5.0)
            floor.seconds.append(time.perf_counter() - began)
        lone.wait()
        gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, str(grade), TREE], stdout=subprocess.PIPE, text=True)
        assert gateway.stdout is not None
        root = int(gateway.stdout.readline())
        with _watching([root, *_below(root)]) as gone:
            began = time.perf_counter()
            gateway.kill()
            leaks += gone(5.0)
            ours.seconds.append(time.perf_counter() - began)
        gateway.wait()
        gateway.stdout.close()
    return Result(
        name=f"control killed -9 -> tree of 10 gone / one kill, {grade} grade",
        value=ours.percentile(50) / floor.percentile(50),
        goal=DEATH_GOAL,
        small=(f"ours {ours.spread()}, leaks {leaks}", f"one kill {floor.spread()}"),
    )


@contextlib.contextmanager
def _watching(pids: list[int]) -> Iterator[Callable[[float], int]]:
    """Hold pidfds of processes; yields a function that waits for all to be gone and returns how many were not."""
    fds = [os.pidfd_open(pid) for pid in pids]

    def gone(seconds: float) -> int:
        left, until = set(fds), time.monotonic() + seconds
        while left and time.monotonic() < until:
            left -= set(select.select(list(left), [], [], 0.5)[0])
        return len(left)

    try:
        yield gone
    finally:
        for fd in fds:
            os.close(fd)


def _below(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def _spawned(grade: Grade, scale: Scale) -> list[Result]:
    """Time a spawn and exit through a keeper, against posix_spawn; weigh the keeper."""
    processes = LocalProcesses(Confinement(grade=grade))
    await processes.ready()
    held = processes.contain("bench")
    order = SpawnOrder(argv=("/bin/true",))
    ours, floor = Samples(), Samples()
    for _ in range(scale.rounds(500, 100)):
        floor.seconds.append(_bare_spawn())
        began = time.perf_counter()
        process = held.spawn(order)
        await process.exited.wait()
        ours.seconds.append(time.perf_counter() - began)
    private = _private(held.keeper)
    await processes.close()
    return [
        Result(
            name=f"spawn + exit through a keeper / posix_spawn, {grade} grade, p50",
            value=ours.percentile(50) / floor.percentile(50),
            goal=SPAWN_GOAL,
            small=(f"ours {ours.spread()}", f"posix_spawn {floor.spread()}"),
        ),
        Result(name=f"a keeper's private memory, {grade} grade", value=private, unit="KiB", goal=KEEPER_KIB),
    ]


def _bare_spawn() -> float:
    began = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
    return time.perf_counter() - began


def _private(pid: int | None) -> int:
    """Return the KiB of memory that a process shares with nobody."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private"))


async def _acked(scale: Scale) -> list[Result]:
    """Time the ack of a stop with processes, against one with none."""

    async def agent(run: Run, message: Message) -> None:
        if message.text == "no":
            ready.set()
            await asyncio.Event().wait()
        if message.text == "ended":
            await run.spawn("/bin/true")
            ready.set()
            await asyncio.Event().wait()
        async with run.spawn(sys.executable, "-I", "-S", "-c", TREE, message.text) as tree:
            while b"!" not in tree._process._output._lines:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
            ready.set()
            await asyncio.Event().wait()

    ready = asyncio.Event()
    taken = {kind: Samples() for kind in ("no", *ACKED)}
    async with open_control(agent, confinement=Confinement(pids=8192)) as control:
        for number in range(scale.rounds(15, 3) * FEW):
            for kind in taken if number % FEW == 0 else ("no", "ended", "1"):
                ready.clear()
                sent = await control.send("s", kind)
                await ready.wait()
                await asyncio.sleep(0.01)
                began = time.perf_counter()
                await control.stop(run=sent.run_id)
                taken[kind].seconds.append(time.perf_counter() - began)
                await control.wait(sent.run_id, drained=True)
    none = taken["no"]
    return [
        Result(
            name=f"stop ack with {what} / with none, p50",
            value=taken[kind].percentile(50) / none.percentile(50),
            goal=goal,
            small=(f"{kind} {taken[kind].spread()}", f"none {none.spread()}"),
        )
        for kind, (what, goal) in ACKED.items()
    ]
