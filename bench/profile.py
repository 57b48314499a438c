"""`python -m bench profile noop|deltas [--driver D] [--seconds S] [--before REV]`: where the server's time goes.

The server is the one of the figures, under the same load. py-spy looks at it from outside, so no function costs more
for being looked at. Each thread has a table of its own: `self` is the share of the samples that a function was at the
top of, `total` the share that it was anywhere in. Above them stands the processor time that the kernel counted.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.durable import directory
from bench.noops import CONNECTIONS, loaded
from bench.served import ROOT, Readers, Server, serve, tree_at
from bench.wire import QUIET

RATE = 400  # samples per second
TOP = 22
LEAST = 0.02  # a thread at work in fewer of the samples has no table
WATCHERS = 100
SETTLE_SECONDS = 0.5


def main(given: list[str]) -> None:
    """Profile what was asked for, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench profile")
    parser.add_argument("load", choices=("noop", "deltas"))
    parser.add_argument("--driver", choices=("inline", "host"), default="inline")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, help=f"connections ({CONNECTIONS}) or quiet watchers ({WATCHERS})")
    parser.add_argument("--before", metavar="REV", help="profile this commit instead of the working tree")
    parser.add_argument("--lines", action="store_true", help="count lines apart, not whole functions")
    asked = parser.parse_args(given)
    tree = tree_at(asked.before) if asked.before else ROOT
    load = _noop if asked.load == "noop" else _deltas
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "samples"
        with load(asked, tree) as (server, drive):
            spy = _spy(server.process.pid, asked.seconds, file, lines=asked.lines)
            words = drive(asked.seconds)
            told = spy.communicate()[0]
        if not file.exists():
            sys.exit(f"py-spy could not look at the server: {told}")
        print(words)
        moments = RATE * max(1, round(asked.seconds))
        for thread, stacks in _threads(file.read_text()).items():
            if stacks.total() >= LEAST * moments:
                print(*_table(thread, stacks, moments), sep="\n")


def _spy(pid: int, seconds: float, file: Path, *, lines: bool) -> "subprocess.Popen[str]":
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        sys.exit("py-spy is not installed: pip install -e '.[bench]'")
    options = ("--format", "raw", "--threads", "--rate", str(RATE), "--duration", f"{max(1, round(seconds))}")
    more = () if lines else ("--function",)
    command = [found, "record", *options, *more, "--pid", str(pid), "--output", str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# Loads

Drive = Callable[[float], str]


@contextlib.contextmanager
def _noop(asked: argparse.Namespace, tree: Path) -> Iterator[tuple[Server, Drive]]:
    with loaded(asked.driver, asked.clients or CONNECTIONS, tree=tree) as load:
        load.take(1.0)  # starts the hosts, and warms the caches
        load.forget()

        def drive(seconds: float) -> str:
            load.take(seconds)
            return f"no-op runs, {asked.driver}: {load}"

        yield load.server, drive


@contextlib.contextmanager
def _deltas(asked: argparse.Namespace, tree: Path) -> Iterator[tuple[Server, Drive]]:
    watchers = asked.clients or WATCHERS
    with directory() as data, serve(asked.driver, data, tree=tree) as served, Readers.ready() as readers:
        mouth = served.dial(quiet=True)
        mouth.request("chat.send", sessionKey="s", message="nothing", idempotencyKey="first")
        served.rest()
        readers.tell("dial", count=watchers, url=served.url, token=served.token, caps=list(QUIET))
        readers.tell("watch", number=1, session="s")

        def drive(seconds: float) -> str:
            loop, used = served.cpu, served.all_cpu
            came = readers.tell("count", seconds=seconds)
            loop, used = served.cpu - loop, served.all_cpu - used
            mouth.request("chat.abort", sessionKey="s")
            deltas = max(1.0, came["deltas"] * came["seconds"])
            return (
                f"deltas of one run, {asked.driver}, to {watchers:,} quiet watchers: {came['deltas']:,.0f} deltas/s in "
                f"{came['frames']:,.0f} frames/s, all together; {loop / deltas * 1e6:.2f} us of the loop, "
                f"{(used - loop) / deltas * 1e6:.2f} us of its other threads for each; {len(came['lost'])} lost"
            )

        mouth.request("chat.send", sessionKey="s", message="flood", idempotencyKey="flood")
        time.sleep(SETTLE_SECONDS)
        yield served, drive


# Tables


def _threads(samples: str) -> dict[str, Counter[str]]:
    """Return the stacks of the threads of each name, the busiest first."""
    threads: dict[str, Counter[str]] = {}
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, _, frames = stack.partition(";")
        threads.setdefault(thread.partition(": ")[2] or thread, Counter())[frames] += int(count)
    return dict(sorted(threads.items(), key=lambda each: -each[1].total()))


def _table(thread: str, stacks: Counter[str], moments: int) -> list[str]:
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for stack, count in stacks.items():
        frames = [_short(frame) for frame in stack.split(";")]
        own[frames[-1]] += count
        for frame in set(frames):
            within[frame] += count
    total = stacks.total()
    heads = [name for name, _ in own.most_common(TOP)]
    # A function that every stack has only led to the thread's work.
    callers = [name for name, count in within.most_common() if name not in heads and count < total][:TOP]
    rows = [f"  {own[name] / total:6.1%} {within[name] / total:6.1%}  {name}" for name in [*heads, *callers]]
    rows.insert(len(heads), "  -- the rest by total")
    return ["", f"{thread}: at work in {total / moments:.0%} of the samples", "    self  total  function", *rows]


def _short(frame: str) -> str:
    file = re.sub(r"^.*?(site-packages/|src/|python3\.\d+/)", "", frame.partition(" (")[2].rstrip(")"))
    return f"{frame.partition(' (')[0]}  {file}"
