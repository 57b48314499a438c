"""Runs that do nothing, as many as go: 64 connections, each of a principal of its own, each the next when one is over.

1. Every side is up all the time and is driven by turns, in rounds, by the same process over raw sockets. A ratio is
   the median of the ratios of the rounds, so that both sides of it met the same minutes.
2. Ours and the commit before are `interlock serve` with SQLite (FULL), inline and host. The commit before (`--before`)
   is served from its own source tree, its helper, zygote and hosts too.
3. LangGraph's in-memory server (`bench.langgraph`) runs a graph that does nothing, and writes nothing to a disk.
"""

import contextlib
import select
import socket
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

from bench import langgraph
from bench.durable import AtLeast, directory
from bench.result import Result, absent
from bench.scale import Scale
from bench.served import PATIENCE_SECONDS, ROOT, Served, Server, principals, serve, tree_at
from bench.wire import Lost, Wire

CONNECTIONS = 64
DRIVERS = ("inline", "host")
BEFORE_GOALS = {"inline": 4.0, "host": 3.0}
LANGGRAPH_GOAL = 10.0
WARM_SECONDS = 1.0  # of every turn: LangGraph's idle queue sleeps half a second
FINAL = b'"state":"final"'


class Connection(Protocol):
    """A client that has one run at a time."""

    socket: socket.socket
    refused: int

    def begin(self) -> None:
        """Send the next run."""

    def over(self) -> bool:
        """Read what there is; return whether the end of the run has come."""


class Sender:
    """A client of a gateway, with a session of its own."""

    def __init__(self, wire: Wire) -> None:
        self.socket = wire.socket
        self.refused = 0
        self._wire, self._number = wire, 0

    def begin(self) -> None:
        """Send the next run."""
        self._number += 1
        name = f"noop {self.socket.getsockname()[1]}"
        self._wire.ask("chat.send", sessionKey=name, message="nothing", idempotencyKey=f"{name} {self._number}")

    def over(self) -> bool:
        """Read what there is; return whether the end of the run has come."""
        came = self._wire.read()
        if b'"ok":false' in came:
            self.refused += 1
            self.begin()
        return FINAL in came


class Load:
    """The connections to one server, and the rates that they have had."""

    def __init__(self, server: Server, connections: Sequence[Connection]) -> None:
        self.server = server
        self.rates: list[float] = []  # runs per second
        self.loop: list[float] = []  # seconds of the server's loop per run
        self.other: list[float] = []  # seconds of the server's other threads per run
        self._by_fd = {each.socket.fileno(): each for each in connections}
        self._ready = select.epoll()
        for fd in self._by_fd:
            self._ready.register(fd, select.EPOLLIN)

    def take(self, seconds: float) -> None:
        """Send runs for so long, after a warm-up; return when the last is over."""
        for each in self._by_fd.values():
            each.begin()
        self._drive(WARM_SECONDS)
        began, loop, used = perf_counter(), self.server.cpu, self.server.all_cpu
        runs = self._drive(seconds)
        took, loop, used = perf_counter() - began, self.server.cpu - loop, self.server.all_cpu - used
        self.rates.append(runs / took)
        self.loop.append(loop / max(1, runs))
        self.other.append((used - loop) / max(1, runs))
        self._drain()

    def first(self, count: int) -> "Load":
        """Return the load of only so many of the connections."""
        return Load(self.server, list(self._by_fd.values())[:count])

    def forget(self) -> None:
        """Forget the rates of a warm-up."""
        for each in (self.rates, self.loop, self.other):
            each.clear()

    def attend(self) -> None:
        """Read what has come while others had their turn: a client that does not answer pings is taken for dead."""
        for fd, _ in self._ready.poll(0):
            self._by_fd[fd].over()

    def _drive(self, seconds: float) -> int:
        """Send the next run wherever one is over, for so long; return how many were."""
        done, end = 0, perf_counter() + seconds
        while (left := end - perf_counter()) > 0:
            for fd, _ in self._ready.poll(left):
                if self._by_fd[fd].over():
                    done += 1
                    self._by_fd[fd].begin()
        return done

    def _drain(self) -> None:
        """Wait until every connection's last run is over."""
        left, end = set(self._by_fd), perf_counter() + PATIENCE_SECONDS
        while left:
            if perf_counter() > end:
                raise Lost(f"{len(left)} runs were not over within {PATIENCE_SECONDS:.0f} s")
            left -= {fd for fd, _ in self._ready.poll(1) if self._by_fd[fd].over()}

    def __str__(self) -> str:
        refused = sum(each.refused for each in self._by_fd.values())
        rates = ", ".join(f"{each:,.0f}" for each in self.rates)
        return (
            f"{rates} runs/s; {_us(self.loop):,.0f} us of the loop, {_us(self.other):,.0f} us of its other threads "
            f"each; {refused} refused"
        )


def by_turns(loads: Sequence[Load], rounds: int, seconds: float) -> None:
    """Drive every load so often, one after another."""
    for _ in range(rounds):
        for load in loads:
            load.take(seconds)
            for other in loads:
                other.attend()


def ratio(ours: Load, theirs: Load) -> float:
    """Return how many times as many runs ours had, in the median round."""
    return statistics.median(one / max(other, 1e-9) for one, other in zip(ours.rates, theirs.rates, strict=True))


def _us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


@contextlib.contextmanager
def loaded(driver: str, count: int = CONNECTIONS, *, tree: Path = ROOT) -> Iterator[Load]:
    """Serve the agent that does nothing, from a source tree, and connect so many principals to it."""
    with directory() as data:
        tokens = principals(data, count, tree=tree)
        with serve(driver, data, tree=tree) as served:
            _check(served, tree)
            yield Load(served, [Sender(served.dial(token=token)) for token in tokens])


def _check(served: Served, tree: Path) -> None:
    """Raise RuntimeError unless the agent's process has the package of this tree."""
    wire = served.dial()
    wire.ask("chat.send", sessionKey="where", message="where", idempotencyKey="where")
    told = wire.until(FINAL)
    wire.close()
    if str(tree / "src" / "interlock").encode() not in told:
        raise RuntimeError(f"the agent does not have the package of {tree}: {told[-300:]!r}")


def measure(scale: Scale) -> list[Result]:
    """Take ours, the commit before and LangGraph's server by turns."""
    try:
        tree = tree_at(scale.before)
    except subprocess.CalledProcessError as error:
        return [absent(f"no-op runs/s / {scale.before}", f"git does not have it: {error}")]
    with contextlib.ExitStack() as stack:
        # LangGraph's server comes first: its packages may have to be installed.
        rival, refused = None, ""
        try:
            rival = Load(*stack.enter_context(langgraph.served(CONNECTIONS)))
        except (OSError, subprocess.SubprocessError) as error:
            refused = str(error)
        ours = {driver: stack.enter_context(loaded(driver)) for driver in DRIVERS}
        before = {driver: stack.enter_context(loaded(driver, tree=tree)) for driver in DRIVERS}
        alone = {driver: (ours[driver].first(1), before[driver].first(1)) for driver in DRIVERS}
        loads = [load for driver in DRIVERS for load in (ours[driver], before[driver], *alone[driver])]
        loads += [rival] if rival else []
        by_turns(loads, 1, 1.0)  # starts the hosts, and warms up
        for load in loads:
            load.forget()
        by_turns(loads, scale.rounds(7, 2), scale.rounds(3, 1))
    results = []
    for driver in DRIVERS:
        many, one = f"no-op runs/s, {CONNECTIONS} connections, {driver}", f"no-op runs/s, 1 connection, {driver}"
        results.append(_beside(f"{many} / {scale.before}", ours[driver], before[driver], BEFORE_GOALS[driver]))
        results.append(_beside(f"{one} / {scale.before}", *alone[driver]))
        name = f"{many} / LangGraph in memory"
        results.append(_beside(name, ours[driver], rival, LANGGRAPH_GOAL) if rival else absent(name, refused))
    return results


def _beside(name: str, ours: Load, theirs: Load, goal: float | None = None) -> Result:
    best = statistics.median(ours.rates) / max(theirs.rates)
    small = (
        f"ours:   {ours}",
        f"theirs: {theirs}",
        f"{best:.2f} x by the median of ours and the best round of theirs; "
        f"{_us(theirs.loop) / _us(ours.loop):.2f} x by processor time of the two loops",
    )
    return AtLeast(name=name, value=ratio(ours, theirs), goal=goal, small=small)
