"""The cost of a process boundary, and its gain: stops beside a hog, the first delta of a turn, deltas a second.

1. Every figure is set against the same thing inline (or idle, or a bare kill) in the same run, by turns: the sides take
   one timing each, again and again, so that other work of the machine falls on all alike.
2. No timing is left out here, since the process that takes the core away may be a host of ours. The small print gives
   each figure without the timings during which the core was lost.
"""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import perf_counter

from bench import agents
from bench.durable import AtLeast, directory
from bench.ear import Ear
from bench.result import Result
from bench.sample import Samples, still, switches
from bench.scale import Scale
from interlock import Event, open_control
from interlock.client.door import Sink
from interlock.core.fence import Fence
from interlock.core.names import EventKind, RunId, SessionId
from interlock.hosts.driver import HostDriver
from interlock.hosts.forked import ForkedHosts
from interlock.hosts.turn import SETTLE_SECONDS, Host
from interlock.processes.base import Confinement
from interlock.processes.local import LocalProcesses
from interlock.runtime.control import Control

PLAIN, ASSISTANT = "bench.agents:polite", "bench.assistant:assistant"
PAUSE_SECONDS = 0.002  # before each timing, so that all of them begin from rest
SPARE_SECONDS = 0.15  # time for a spare to be made and come to rest
STRETCH_SECONDS = 0.5
DELTAS = 20_000
HOSTS, PACE_SECONDS = 200, 0.1
TOOL_GRACE_SECONDS = 0.3  # the grace of `agents.spin_with_grace`
FOREVER_SECONDS = 3  # a hog's time, longer than anything here waits for it
PATIENCE_SECONDS = 60.0
STOP_GOAL, WARM_GOAL, FRESH_MS, SPARE_GOAL, RATE_GOAL, PRIVATE_MIB, DRAIN_GOAL = 2.0, 3.0, 20.0, 2.0, 0.3, 12.0, 10.0
MIB_PER_HOST = 40  # free memory that many hosts need, each; more than they take


class Timings:
    """Timings of one thing: all of them, and those during which the core was not lost."""

    def __init__(self) -> None:
        self.all, self.kept = Samples(), Samples()

    @contextlib.contextmanager
    def clock(self, since: int) -> Iterator[None]:
        """Time a block."""
        began = perf_counter()
        yield
        took = perf_counter() - began
        self.all.seconds.append(took)
        if switches() == since:
            self.kept.seconds.append(took)

    def p(self, q: float) -> float:
        """Return a percentile in seconds."""
        return self.all.percentile(q)

    def without(self, q: float, other: "Timings") -> str:
        """Return the ratio of a percentile without the timings during which the core was lost, in words."""
        if not self.kept.seconds or not other.kept.seconds:
            return "the core was lost in every timing"
        ratio = self.kept.percentile(q) / other.kept.percentile(q)
        counts = f"{len(self.kept.seconds):,} and {len(other.kept.seconds):,}"
        return f"{ratio:.3g} x over the {counts} timings in which the core was not lost"


class Bare(HostDriver):
    """A host driver without spares: each session's first turn forks."""

    def _prepare_spare(self) -> None:
        """Make no spare."""


class Served:
    """A control whose agents run in hosts, with what the measurements look at."""

    def __init__(self, control: Control, driver: HostDriver, hosts: ForkedHosts) -> None:
        self.control = control
        self._driver = driver
        self._hosts = hosts

    @property
    def hosts(self) -> list[Host]:
        """Return the hosts that have, or had, a turn."""
        return [*self._driver._idle.values(), *self._driver._busy.values()]

    @property
    def spare(self) -> bool:
        """Return whether a spare waits."""
        return self._driver.info.spare

    @property
    def zygote(self) -> int | None:
        """Return the zygote's process id."""
        return None if self._hosts._zygote is None else self._hosts._zygote.process.pid

    @property
    def told(self) -> str:
        """Return the counts of started, reused and killed hosts, in words."""
        info = self._driver.info
        return f"hosts: {info.started} started, {info.reused} turns reused one, {info.killed} killed"


@contextlib.asynccontextmanager
async def served(
    agent: str = PLAIN, *, kind: type[HostDriver] = HostDriver, store: str = "memory://"
) -> AsyncIterator[Served]:
    """Open a control with hosts."""
    processes = LocalProcesses(Confinement())
    hosts = ForkedHosts(agent, {}, processes)
    driver = kind(hosts)
    async with open_control(agent, driver=driver, processes=processes, store=store) as control:
        yield Served(control, driver, hosts)


def measure(scale: Scale) -> list[Result]:
    """Take every figure of the hosts."""
    results = asyncio.run(_stops(scale))
    for agent, what in ((PLAIN, "plain agent"), (ASSISTANT, "pydantic-ai")):
        results += asyncio.run(_firsts(scale, agent, what, durable=False))
    results += asyncio.run(_firsts(scale, PLAIN, "plain agent, sqlite", durable=True))
    results += asyncio.run(_rates(scale))
    results += asyncio.run(_weight())
    results += asyncio.run(_drains(scale))
    results += asyncio.run(_many(scale))
    return results


async def _begin(control: Control, session: str, text: str) -> RunId:
    """Start a turn and wait for its first delta."""
    ear = Ear(control, session)
    async with asyncio.timeout(PATIENCE_SECONDS):
        sent = await control.send(session, text)
        await ear.first()
    ear.leave()
    return sent.run_id


async def _end(control: Control, run: RunId) -> None:
    """Stop a run and wait until it is drained."""
    await control.stop(run=run)
    await control.wait(run, drained=True)


# Stops beside a hog


async def _stops(scale: Scale) -> list[Result]:
    """Time the ack of another session's stop while a hog runs, and of the hog's own."""
    hogs = {"hog": "a 50 ms hog", "c-hog": "a GIL-holding C hog"}
    beside = {what: Timings() for what in ("", *hogs)}
    own = {what: Timings() for what in ("park", *hogs)}
    async with served() as serving:
        control = serving.control
        with still():
            for number in range(scale.rounds(24, 5) + 1):
                for what, taken in beside.items():
                    hog = await _begin(control, "hog", what) if what else None
                    await _stretch(control, taken if number else Timings())
                    if hog is not None:
                        await _end(control, hog)
                for _ in range(scale.rounds(5, 2)):
                    for what, taken in own.items():
                        await _own_stop(control, what, taken if number else Timings())
                gc.collect()
        told = serving.told
    idle, parked = beside[""], own["park"]
    results = []
    for what, name in hogs.items():
        small = (
            beside[what].without(99, idle),
            f"beside the hog: {beside[what].all.spread()}",
            f"idle:           {idle.all.spread()}",
        )
        ratio = beside[what].p(99) / idle.p(99)
        results.append(
            Result(name=f"stop ack beside {name} / idle, p99", value=ratio, goal=STOP_GOAL, small=(*small, told))
        )
        small = (
            own[what].without(99, parked),
            f"of the hog:      {own[what].all.spread()}",
            f"of a parked run: {parked.all.spread()}",
        )
        ratio = own[what].p(99) / parked.p(99)
        results.append(
            Result(name=f"stop ack of {name} itself / of a parked run, p99", value=ratio, goal=STOP_GOAL, small=small)
        )
    return results


async def _stretch(control: Control, taken: Timings) -> None:
    """Stop runs of a session for a while."""
    end = perf_counter() + STRETCH_SECONDS
    while perf_counter() < end:
        await _own_stop(control, "park", taken, session="timed")


async def _own_stop(control: Control, what: str, taken: Timings, session: str = "own") -> None:
    run = await _begin(control, session, what)
    await asyncio.sleep(PAUSE_SECONDS)
    with taken.clock(switches()):
        await control.stop(session=session)
    await control.wait(run, drained=True)


# The first delta of a turn


async def _firsts(scale: Scale, agent: str, what: str, *, durable: bool) -> list[Result]:
    taken = {name: Timings() for name in ("inline", "warm", "spare", "fresh")}
    async with contextlib.AsyncExitStack() as stack:
        stores = ["memory://"] * 3
        if durable:
            path = stack.enter_context(directory())
            stores = [f"sqlite:///{path / name}" for name in ("inline", "spared", "bare")]
        inline = await stack.enter_async_context(open_control(agent, store=stores[0]))
        spared = await stack.enter_async_context(served(agent, store=stores[1]))
        bare = await stack.enter_async_context(served(agent, kind=Bare, store=stores[2]))
        with still():
            for number in range(scale.rounds(60, 15) + 1):
                counted = taken if number else {name: Timings() for name in taken}
                for _ in range(5):
                    await _first(inline, "warm", counted["inline"])
                    await _first(spared.control, "warm", counted["warm"])
                if not number % 3:
                    while not spared.spare:
                        await asyncio.sleep(PAUSE_SECONDS)
                    await asyncio.sleep(SPARE_SECONDS)
                    await _first(spared.control, f"new {number}", counted["spare"])
                    await asyncio.sleep(SPARE_SECONDS)  # time to make the next spare
                    await _first(bare.control, f"new {number}", counted["fresh"])
                    gc.collect()
    floor = taken["inline"]
    small = tuple(f"{name:<7}{each.all.spread()}" for name, each in taken.items())
    extra = (taken["fresh"].p(50) - floor.p(50)) * 1e3
    results = [
        Result(name=f"first delta, warm host / inline, {what}, p50", value=taken["warm"].p(50) / floor.p(50),
               goal=WARM_GOAL, small=(taken["warm"].without(50, floor),)),
        Result(name=f"first delta, spare / inline, {what}, p50", value=taken["spare"].p(50) / floor.p(50),
               goal=SPARE_GOAL, small=(taken["spare"].without(50, floor),)),
        Result(name=f"first delta, fresh fork - inline, {what}, p50", value=extra, unit="ms", goal=FRESH_MS,
               small=small),
    ]  # fmt: skip
    return results


async def _first(control: Control, session: str, taken: Timings) -> None:
    await asyncio.sleep(PAUSE_SECONDS)
    with taken.clock(switches()):
        run = await _begin(control, session, "hello")
    await control.wait(run, drained=True)


# Deltas a second


class Count(Sink):
    """Counts a session's deltas, and notes when the first and the last of them came."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._began = 0.0
        self.heard = 0
        self.took: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def take(self, event: Event, source: Fence | None) -> bool:
        """Count a delta."""
        if event.kind is EventKind.DELTA:
            self.heard += 1
            if self.heard == 1:
                self._began = perf_counter()
            elif self.heard == self._wanted:
                self.took.set_result(perf_counter() - self._began)
        return True


async def _rates(scale: Scale) -> list[Result]:
    taken: dict[str, list[float]] = {"inline": [], "host": []}
    async with open_control(agents.polite) as inline, served() as serving:
        with still():
            for number in range(scale.rounds(15, 4) + 1):
                for name, control in (("inline", inline), ("host", serving.control)):
                    rate = await _rate(control)
                    taken[name] += [rate] if number else []
                gc.collect()
    inlined, hosted = (sorted(rates)[len(rates) // 2] for rates in taken.values())
    ratios = sorted(host / each for host, each in zip(taken["host"], taken["inline"], strict=True))
    small = (
        f"host {hosted:,.0f}/s, inline {inlined:,.0f}/s ({DELTAS:,} deltas of {len(agents.WORDS)} characters, medians)",
        f"{len(ratios)} pairs: {ratios[0]:.2f} to {ratios[-1]:.2f} x",
    )
    return [AtLeast(name="deltas/s through a host / inline", value=hosted / inlined, goal=RATE_GOAL, small=small)]


async def _rate(control: Control) -> float:
    count = Count(DELTAS)
    listening = control.feed.follow(SessionId("rate"), count)
    async with asyncio.timeout(PATIENCE_SECONDS):
        sent = await control.send("rate", f"say {DELTAS}")
        took = await count.took
    listening.close()
    await control.wait(sent.run_id, drained=True)
    return DELTAS / took


# Memory


async def _weight() -> list[Result]:
    """Weigh a host that had one turn of an agent on pydantic-ai, and one that had ten."""
    async with served(ASSISTANT) as serving:
        weights = []
        for turns in (1, 9):
            for _ in range(turns):
                run = await _begin(serving.control, "weighed", "hello")
                await serving.control.wait(run, drained=True)
            await asyncio.sleep(SPARE_SECONDS)
            [host] = serving.hosts
            weights.append((_private(host), _private(host, warden=True)))
        (alone, both), (later, later_both) = weights
        zygote = _status(serving.zygote)
    small = (
        f"with its warden {both:.1f} MiB; after ten turns {later:.1f} MiB, with its warden {later_both:.1f} MiB",
        f"the zygote's RSS: {zygote:.1f} MiB",
    )
    name = "private memory of a host after a turn, pydantic-ai imported"
    return [
        Result(name=name, value=alone, unit="MiB", goal=PRIVATE_MIB, small=small),
        Result(name=f"{name}, + warden", value=both, unit="MiB", goal=PRIVATE_MIB),
    ]


def _private(host: Host, *, warden: bool = False) -> float:
    """Return the MiB that a host (and its warden) shares with nobody."""
    return sum(_rollup(pid) for pid in _pids(host, warden=warden)) / 1024


def _pids(host: Host, *, warden: bool) -> list[int]:
    containment = host.containment
    keeper: int | None = getattr(containment, "keeper", None)
    pid: int | None = getattr(host, "pid", None)
    return [each for each in (pid, keeper if warden else None) if each is not None]


def _rollup(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


def _status(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def _available() -> float:
    """Return the free memory of the machine in MiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024


# A hog's end


async def _drains(scale: Scale) -> list[Result]:
    """Time how long after its grace a hog is gone, in kills of a bare process."""
    cases = {
        "between tools": (f"spin {FOREVER_SECONDS}", SETTLE_SECONDS),
        "in a tool without a grace": (f"tool {FOREVER_SECONDS}", 0.0),
        "in a tool with a grace": (f"grace {FOREVER_SECONDS}", TOOL_GRACE_SECONDS),
    }
    floor, forked, ours = Samples(), Samples(), {case: Samples() for case in cases}
    async with served() as serving:
        control = serving.control
        for number in range(scale.rounds(25, 6) + 1):
            for case, (what, _) in cases.items():
                run = await _begin(control, "hog", what)
                await asyncio.sleep(0.03)  # until its tool has begun
                began = perf_counter()
                await _end(control, run)
                ours[case].seconds += [perf_counter() - began] if number else []
                await asyncio.sleep(SPARE_SECONDS)
                floor.seconds += [_killed(_sleeper())] if number else []
                forked.seconds += [_killed(_fork())] if number else []
    results = []
    for case, (_, grace) in cases.items():
        over = ours[case].percentile(50) - grace
        small = (
            f"stop -> drained {ours[case].spread()}; its grace {grace:.1f} s",
            f"kill floor (KILL and waitpid of a bare `sleep`) {floor.spread()}",
            f"over the same of a fork of this process ({_status(os.getpid()):.0f} MiB) it is "
            f"{over / forked.percentile(50):.3g} x: {forked.spread()}",
        )
        value = over / floor.percentile(50)
        name = f"a hog {case}: (drained - grace) / kill floor, p50"
        results.append(Result(name=name, value=value, goal=DRAIN_GOAL, small=small))
    return results


def _sleeper() -> int:
    return os.posix_spawn("/bin/sleep", ["sleep", "100"], os.environ)


def _fork() -> int:
    """Fork this process, which is about as large as a host: the time that a kill takes depends on the memory."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def _killed(pid: int) -> float:
    """Kill a bare process and wait for it."""
    time.sleep(0.005)  # until it sleeps, as a host does
    began = perf_counter()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return perf_counter() - began


# Many at once


async def _many(scale: Scale) -> list[Result]:
    """Let many hosts stream at once: all begin, all say something again and again, all return."""
    wanted, free = scale.rounds(HOSTS, HOSTS // 4), _available()
    count = min(wanted, int(free / MIB_PER_HOST))
    small = () if count == wanted else (f"only {count}: {free:,.0f} MiB are free, {MIB_PER_HOST} are wanted for each",)
    deltas = scale.rounds(100, 40)
    async with served(ASSISTANT) as serving:
        control = serving.control
        began = perf_counter()
        counts = [_listen(control, f"many {n}", deltas) for n in range(count)]
        started = await asyncio.gather(
            *(_begin(control, f"many {n}", f"pace {deltas} {PACE_SECONDS}") for n in range(count)),
            return_exceptions=True,
        )
        took = perf_counter() - began
        at_once, private = len(serving.hosts), sum(_private(host, warden=True) for host in serving.hosts)
        left = _available()
        outcomes = await asyncio.gather(*(_outcome(control, run) for run in started))
        heard = [each.heard for each in counts]
        told = serving.told
    errors = sum(outcome != "completed" or n < deltas for outcome, n in zip(outcomes, heard, strict=True))
    bad = sorted({outcome for outcome in outcomes if outcome != "completed"})[:3]
    small += (
        f"all had said something after {took:.2f} s ({took / count * 1e3:.1f} ms each); {sum(heard):,} deltas heard",
        f"{at_once} at once: {private:,.0f} MiB private with their wardens ({private / max(1, at_once):.1f} each); the "
        f"machine had {free:,.0f} MiB available before, {left:,.0f} with them",
        *(bad or ("every run completed",)),
        told,
    )
    name = f"errors with {count} hosts at once, each streaming"
    return [Result(name=name, value=errors, unit="", goal=0, small=small)]


def _listen(control: Control, session: str, deltas: int) -> Count:
    count = Count(deltas)
    control.feed.follow(SessionId(session), count)
    return count


async def _outcome(control: Control, run: RunId | BaseException) -> str:
    if isinstance(run, BaseException):
        return f"{type(run).__name__}: {run}"
    outcome = await control.wait(run, drained=True)
    return f"{outcome.ending}" + (f": {outcome.error}" if outcome.error else "")
