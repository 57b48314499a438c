"""What Interlock weighs: the memory of an idle server, its start, and the processor time of a verb of the shell.

1. Ours and the commit before (`--before`) take turns, each from its own source tree, compiled before the first turn.
2. A verb is the whole command, `interlock stop` of a session where nothing runs, against a server of its own tree. Its
   floor is Python with the two libraries that every verb needs, typer and the client of websockets.
"""

import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.durable import directory
from bench.gateway import field, rss
from bench.result import Result, absent
from bench.scale import Scale
from bench.served import COMMAND, ROOT, Served, environment, serve, tree_at

SETTLE_SECONDS = 1.0  # until a spare host has been made
DEMO = "interlock.demo:agent"
FLOOR = "import typer, websockets.asyncio.client"
RSS_MIB, START_GOAL, VERB_GOAL = 50.0, 0.6, 1.2


def measure(scale: Scale) -> list[Result]:
    """Weigh ours beside the commit before."""
    try:
        trees = {"ours": ROOT, "before": tree_at(scale.before)}
    except subprocess.CalledProcessError as error:
        return [absent(f"weight / {scale.before}", f"git does not have it: {error}")]
    return [*_idle(scale, trees), *_verbs(scale, trees)]


# A server


def _idle(scale: Scale, trees: dict[str, Path]) -> Iterator[Result]:
    """Time how soon the demo serves, and weigh it when nothing happens."""
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    used: dict[str, list[float]] = {name: [] for name in trees}
    tables: dict[str, list[list[tuple[float, float, str]]]] = {name: [] for name in trees}
    for number in range(scale.rounds(15, 1) + 1):
        for name, tree in trees.items():
            with directory() as data:
                began = perf_counter()
                with serve("host", data, DEMO, tree=tree) as served:
                    took, cpu = perf_counter() - began, served.all_cpu
                    if number:  # the first start compiles
                        time.sleep(SETTLE_SECONDS)
                        seconds[name].append(took)
                        used[name].append(cpu)
                        tables[name].append([_weigh(pid) for pid in _family(served.process.pid)])
    memory = {name: statistics.median(table[0][0] for table in tables[name]) for name in trees}
    last = tables["ours"][-1]
    yield Result(
        name="idle RSS of interlock serve, the server alone",
        value=memory["ours"],
        unit="MiB",
        goal=RSS_MIB,
        small=(
            f"host, sqlite, demo; {scale.before}: {memory['before']:.1f} MiB; ours with its {len(last) - 1} processes "
            f"{sum(each[0] for each in last):.0f} MiB RSS, {sum(each[1] for each in last):.0f} MiB PSS",
            *(f"{name}: {rss:.0f} MiB RSS, {pss:.0f} MiB PSS" for rss, pss, name in last),
        ),
    )
    yield _beside(f"start to ready, interlock serve / {scale.before}", seconds, START_GOAL)
    yield _beside(f"processor time of a start / {scale.before}", used)


def _family(pid: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            below.setdefault(int(rest.split()[1]), []).append(int(name.split()[0]))
    found = [pid]
    for each in found:
        found.extend(below.get(each, ()))
    return found


def _weigh(pid: int) -> tuple[float, float, str]:
    return rss(pid), field(pid, "smaps_rollup", "Pss:"), _called(pid)


def _called(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return " ".join(word.decode(errors="replace")[:40] for word in words if word)[:70]


# A verb


def _verbs(scale: Scale, trees: dict[str, Path]) -> Iterator[Result]:
    """Take the processor time of a verb, and of its floor."""
    used: dict[str, list[float]] = {"floor": [], **{name: [] for name in trees}}
    with contextlib.ExitStack() as stack:
        servers = {}
        for name, tree in trees.items():
            data = stack.enter_context(directory())
            servers[name] = stack.enter_context(serve("host", data, DEMO, tree=tree))
        for number in range(scale.rounds(31, 3) + 1):
            taken = {"floor": _cpu(ROOT, FLOOR)}
            taken |= {name: _verb(trees[name], served) for name, served in servers.items()}
            for name in taken if number else ():
                used[name].append(taken[name])
    yield _beside("processor time, interlock stop / typer and websockets", used, VERB_GOAL, than="floor")
    yield _beside(f"processor time, interlock stop / {scale.before}", used)


def _verb(tree: Path, served: Served) -> float:
    data = str(Path(served.told["tokenFile"]).parent)
    return _cpu(tree, COMMAND, "stop", "--url", served.url, "--data", data)


def _cpu(tree: Path, *program: str) -> float:
    """Return the processor seconds of a Python program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *program], env=environment(tree), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _beside(name: str, taken: dict[str, list[float]], goal: float | None = None, than: str = "before") -> Result:
    medians = {each: statistics.median(values) for each, values in taken.items()}
    small = "; ".join(
        f"{each} {medians[each] * 1e3:.0f} ms ({min(values) * 1e3:.0f} to {max(values) * 1e3:.0f})"
        for each, values in taken.items()
    )
    return Result(name=name, value=medians["ours"] / medians[than], goal=goal, small=(f"medians: {small}",))
