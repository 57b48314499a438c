"""The cost of a decision that survives, against the disk's own price: an append and an fdatasync.

The floor is taken in the same run and the same directory, by turns with the decision and after the same pause: as many
bytes as the transaction adds to SQLite's write-ahead log, appended to a file that grows. SQLite reuses its log once it
was copied into the database, and writing over a file costs less than making it grow; so the small print gives the same
figure over a file that is written over, and over one page of 4 KiB.
"""

import asyncio
import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import msgspec

from bench.ear import Ear
from bench.flood import DELTAS_PER_SECOND, SPEAKERS, Speech
from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.core.decision import Decision
from interlock.runtime.control import Control
from interlock.stores.base import Ticket
from interlock.stores.sqlite import SqliteStore

PAUSE_SECONDS = 0.005  # before each timing, so that the disk is equally awake for all of them
PER_ROUND = 25
STRETCH_SECONDS = 0.5
AT_ONCE = 1_000
SESSIONS = 64
PAGE_BYTES = 4096
FILE_BYTES = 16 * 1024 * 1024  # size of the file that is written over
STOP_GOAL, LOUD_GOAL, GROUP_GOAL, SHARE_GOAL, TOGETHER_GOAL = 2.0, 2.5, 15.0, 0.25, 8.0
COUNTED = (10, 40)  # cycles of the two runs under strace, whose difference is counted; too few to copy the log
STRACE_SECONDS = 60


class AtLeast(Result):
    """A figure whose goal is a floor."""

    @property
    def verdict(self) -> str:
        """Return `ok`, `MISS`, or nothing where there is no goal."""
        return "" if self.goal is None else "ok" if self.value >= self.goal else "MISS"

    def lines(self) -> list[str]:
        """Return the line and its small print."""
        head, *small = super().lines()
        return [head.replace("<=", ">="), *small]


class Disk:
    """The floor: append and fdatasync, or write over and fdatasync, beside the database."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        self._grows = os.open(directory / "grows", flags | os.O_APPEND, 0o600)
        self._kept = os.open(directory / "kept", flags, 0o600)
        os.write(self._kept, bytes(FILE_BYTES))
        os.fsync(self._kept)
        self._at = 0

    def append(self, data: bytes) -> None:
        """Append to a file, durably."""
        os.write(self._grows, data)
        os.fdatasync(self._grows)

    def write_over(self, data: bytes) -> None:
        """Write over a part of a file, durably."""
        if self._at + len(data) > FILE_BYTES:
            self._at = 0
        os.pwrite(self._kept, data, self._at)
        os.fdatasync(self._kept)
        self._at += len(data)


class Copies:
    """A decision that control made, repeated as if by other runs of other sessions."""

    def __init__(self, *made: Decision) -> None:
        self._made = [msgspec.json.encode(decision).decode() for decision in made]
        names: set[str] = set()
        for decision in made:
            names |= {row.id for row in decision.sessions} | {row.id for row in decision.admissions}
            names |= {str(receipt.id) for receipt in decision.receipts}
        self._names = sorted(names)
        self._count = 0

    def next(self) -> list[Decision]:
        """Return the decisions under new names."""
        self._count += 1
        texts = self._made
        for name in self._names:
            texts = [text.replace(f'"{name}"', f'"{name}.{self._count}"') for text in texts]
        return [msgspec.json.decode(text, type=Decision) for text in texts]


class Recorder(SqliteStore):
    """A store that notes every decision."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.heard: list[Decision] = []

    def decide(self, decision: Decision) -> Ticket:
        """Enqueue a decision, and note it."""
        self.heard.append(decision)
        return super().decide(decision)


def measure(scale: Scale) -> list[Result]:
    """Return the price of a stop, of many decisions at once, and of whole turns."""
    return [*asyncio.run(_stops(scale)), *asyncio.run(_groups(scale)), *asyncio.run(_cycles(scale))]


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory for a store, on the disk that holds temporary files."""
    with tempfile.TemporaryDirectory(prefix="interlock-bench-") as name:
        yield Path(name)


def filesystem(path: Path) -> str:
    """Return the filesystem of a directory; on a tmpfs there is no disk to wait for."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [(point, kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(fitting, key=lambda each: len(each[0]))[1]


# A stop


class Sides:
    """The things that are timed by turns, all after the same pause."""

    def __init__(self, control: Control, store: SqliteStore, disk: Disk, copies: Copies, size: int) -> None:
        self._control = control
        self._store = store
        self._copies = copies
        self._disk = disk
        self._data, self._page = os.urandom(size), os.urandom(PAGE_BYTES)

    async def round(self, taken: dict[str, Samples]) -> None:
        """Time each side once."""
        admission, ending = self._copies.next()
        await self._store.decide(admission)
        with await _paused(taken["decide"]):
            await self._store.decide(ending)
        with await _paused(taken["append"]):
            self._disk.append(self._data)
        ear = Ear(self._control, "timed")
        await self._control.send("timed", "go")
        await ear.first()
        ear.leave()
        with await _paused(taken["stop"]):
            await self._control.stop(session="timed")
        with await _paused(taken["write over"]):
            self._disk.write_over(self._data)
        with await _paused(taken["page"]):
            self._disk.append(self._page)


async def _paused(taken: Samples) -> contextlib.AbstractContextManager[None]:
    await asyncio.sleep(PAUSE_SECONDS)
    return _clock(taken)


@contextlib.contextmanager
def _clock(taken: Samples) -> Iterator[None]:
    """Time a block, also when another thread had the core: that may be our own writer."""
    began = perf_counter()
    yield
    taken.seconds.append(perf_counter() - began)


async def _stops(scale: Scale) -> list[Result]:
    speech = Speech()
    quiet, loud = _sides(), _sides()
    with directory() as path:
        store, disk = Recorder(path / "store"), Disk(path)
        async with open_control(speech.agent, store=store) as control:
            copies = await _copies(control, store)
            size = await _bytes_of_stop(store, copies, path / "store" / "interlock.db-wal")
            for n in range(SPEAKERS):
                await control.send(f"speaker {n}", "speak")
            sides = Sides(control, store, disk, copies, size)
            with still():
                for number in range(scale.rounds(12, 3) + 1):
                    for taken, aloud in ((quiet, False), (loud, True)):
                        async with _spoken(speech, aloud=aloud):
                            for _ in range(PER_ROUND):
                                await sides.round(taken if number else _sides())
                    gc.collect()
        kind = filesystem(path)
    rate = speech.said / speech.seconds
    where = f"{size:,} bytes of write-ahead log a stop, {kind}; floor: append of as many bytes + fdatasync"
    return [
        *_stop_results("idle", quiet, (where,), STOP_GOAL),
        *_stop_results(
            f"at {DELTAS_PER_SECOND // 1000}k deltas/s", loud, (f"{rate:,.0f} deltas/s were said",), LOUD_GOAL
        ),
    ]


def _sides() -> dict[str, Samples]:
    return {name: Samples() for name in ("decide", "stop", "append", "write over", "page")}


def _stop_results(when: str, taken: dict[str, Samples], notes: tuple[str, ...], goal: float) -> list[Result]:
    def over(name: str, floor: str, q: float) -> float:
        return taken[name].percentile(q) / taken[floor].percentile(q)

    others = ", ".join(
        f"{over(name, floor, 50):.2f} ({what} / {said})"
        for floor, said in (("write over", "write over + fdatasync"), ("page", "append of 4 KiB + fdatasync"))
        for name, what in (("decide", "decision"), ("stop", "stop()"))
    )
    small = (*notes, f"p50 over other floors: {others}", *(f"{name:<11}{_spread(taken[name])}" for name in taken))
    return [
        Result(name=f"{what} / raw, {when}, p{q}", value=over(name, "append", q), goal=goal, small=shown)
        for name, what in (("decide", "stop's decision, awaited"), ("stop", "control.stop()"))
        for q, shown in ((50, ()), (95, small if name == "stop" else ()))
    ]


def _spread(samples: Samples) -> str:
    p50, p95, p99 = (samples.percentile(q) * 1e6 for q in (50, 95, 99))
    return f"p50 {p50:,.0f} us, p95 {p95:,.0f} us, p99 {p99:,.0f} us, n {len(samples.seconds):,}"


@contextlib.asynccontextmanager
async def _spoken(speech: Speech, *, aloud: bool) -> AsyncIterator[None]:
    """Let all runs speak for the length of a block, or none."""
    begin = perf_counter()
    if aloud:
        speech.on.set()
    yield
    if aloud:
        speech.on.clear()
        speech.seconds += perf_counter() - begin
        await asyncio.sleep(2 * SPEAKERS / DELTAS_PER_SECOND)  # until the last of them notices


async def _copies(control: Control, store: Recorder) -> Copies:
    """Have control admit a message and stop its run; return both decisions, to be made again."""
    ear = Ear(control, "model")
    await control.send("model", "go")
    await ear.first()
    ear.leave()
    await control.stop(session="model")
    admission = next(decision for decision in store.heard if decision.admissions)
    ending = next(decision for decision in store.heard if decision.endings)
    return Copies(admission, ending)


async def _bytes_of_stop(store: SqliteStore, copies: Copies, wal: Path) -> int:
    """Return how much a stop's transaction adds to the write-ahead log, which only grows here."""
    grown = []
    for _ in range(PER_ROUND):
        admission, ending = copies.next()
        await store.decide(admission)
        await asyncio.sleep(0.1)  # until events of other runs are written
        before = _size(wal)
        await store.decide(ending)
        grown.append(_size(wal) - before)
    return sorted(grown)[len(grown) // 2]


def _size(path: Path) -> int:
    return path.stat().st_size


# Many decisions at once


async def _groups(scale: Scale) -> list[Result]:
    alone, together = [], []
    with directory() as path:
        store = Recorder(path / "store")
        async with open_control(Speech().agent, store=store) as control:
            copies = await _copies(control, store)
            few = AT_ONCE // 10
            for _ in range(scale.rounds(10, 3)):
                with still():
                    alone.append(few / await _in(_one_by_one(store, await _admitted(store, copies, few))))
                    together.append(AT_ONCE / await _in(_all_at_once(store, await _admitted(store, copies, AT_ONCE))))
    one, many = _median(alone), _median(together)
    small = (f"one by one {one:,.0f}/s, {AT_ONCE:,} at once {many:,.0f}/s (stops' decisions, a task each; medians)",)
    return [
        AtLeast(name="awaited decisions, many at once / one by one", value=many / one, goal=GROUP_GOAL, small=small)
    ]


async def _admitted(store: SqliteStore, copies: Copies, count: int) -> list[Decision]:
    """Admit messages; return the decisions that stop them."""
    pairs = [copies.next() for _ in range(count)]
    await _all_at_once(store, [admission for admission, _ in pairs])
    return [ending for _, ending in pairs]


async def _in(work: Coroutine[Any, Any, None]) -> float:
    began = perf_counter()
    await work
    return perf_counter() - began


async def _one_by_one(store: SqliteStore, decisions: list[Decision]) -> None:
    for decision in decisions:
        await store.decide(decision)


async def _all_at_once(store: SqliteStore, decisions: list[Decision]) -> None:
    async def decided(decision: Decision) -> None:
        await store.decide(decision)

    await asyncio.gather(*map(decided, decisions))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


# Whole turns


async def _nothing(run: Run, message: Message) -> None:
    """Do nothing."""


async def _cycle(control: Control, session: str) -> None:
    sent = await control.send(session, "go")
    await control.wait(sent.run_id)


async def _cycles(scale: Scale) -> list[Result]:
    commits, size = _commits_of_cycle()
    data = os.urandom(size)
    rates: dict[str, list[float]] = {"one": [], "many": [], "append": [], "write over": [], "used": []}
    with directory() as path:
        disk = Disk(path)
        async with open_control(_nothing, store=f"sqlite:///{path / 'store'}") as control:
            with still():
                for number in range(scale.rounds(8, 2) + 1):
                    taken = {"append": _written(lambda: disk.append(data))}
                    taken["one"], _ = await _turned(control, 1)
                    taken["write over"] = _written(lambda: disk.write_over(data))
                    taken["many"], taken["used"] = await _turned(control, SESSIONS)
                    for name, rate in taken.items():
                        rates[name] += [rate] if number else []
                    gc.collect()
    one, many, append, over, used = (_median(rates[name]) for name in ("one", "many", "append", "write over", "used"))
    small = (
        f"{one:,.0f} cycles/s, {append:,.0f} appends of {size:,} bytes + fdatasync/s; {commits}",
        f"over {over:,.0f} writes over + fdatasync/s the share is {one / over:.2f}",
    )
    at_once = (
        f"{many:,.0f} cycles/s in {SESSIONS} sessions at once, {used * 1e6:,.0f} us of processor time each: "
        f"one interpreter bounds the ratio at about {1 / used / one:.1f}",
    )
    return [
        AtLeast(name="send, no-op run, end, one after another / raw", value=one / append, goal=SHARE_GOAL, small=small),
        AtLeast(
            name=f"the same, {SESSIONS} sessions at once / one", value=many / one, goal=TOGETHER_GOAL, small=at_once
        ),
    ]


async def _turned(control: Control, sessions: int) -> tuple[float, float]:
    """Return the turns per second for a stretch, and the processor time of a turn."""
    done, end = 0, perf_counter() + STRETCH_SECONDS

    async def turns(session: str) -> None:
        nonlocal done
        while perf_counter() < end:
            await _cycle(control, session)
            done += 1

    began, used = perf_counter(), process_time()
    await asyncio.gather(*(turns(f"turns {n}") for n in range(sessions)))
    rate, each = done / (perf_counter() - began), (process_time() - used) / done
    # Wait out what the last turns still do, so that the next stretch does not pay for it.
    await asyncio.sleep(0.1)
    return rate, each


def _written(write: Callable[[], None]) -> float:
    done, began = 0, perf_counter()
    while perf_counter() - began < STRETCH_SECONDS / 2:
        write()
        done += 1
    return done / (perf_counter() - began)


def _commits_of_cycle() -> tuple[str, int]:
    """Count a cycle's fdatasyncs (by strace) and bytes, from the difference between few cycles and many."""
    if shutil.which("strace") is None:
        return "commits were not counted: there is no strace", PAGE_BYTES
    fewer, more = (_traced(cycles) for cycles in COUNTED)
    cycles = COUNTED[1] - COUNTED[0]
    syncs, written = ((after - before) / cycles for before, after in zip(fewer, more, strict=True))
    size = max(1, round(written / syncs))
    return f"{syncs:.1f} commits (fdatasync, by strace) and {written:,.0f} bytes a cycle", size


def _traced(cycles: int) -> tuple[int, int]:
    with directory() as path:
        out = path / "calls"
        trace = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=fdatasync", "-o", str(out)]
        command = [*trace, sys.executable, "-m", "bench.durable", str(path / "store"), str(cycles)]
        done = subprocess.run(command, check=True, timeout=STRACE_SECONDS, capture_output=True, text=True)
        return out.read_text().count("fdatasync("), int(done.stdout)


async def _only_cycles(store: str, cycles: int) -> None:
    """Print how many bytes some cycles wrote."""
    async with open_control(_nothing, store=f"sqlite:///{store}") as control:
        for _ in range(cycles):
            await _cycle(control, "turns")
        print(_written_bytes())


def _written_bytes() -> str:
    return dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["wchar"]


if __name__ == "__main__":
    asyncio.run(_only_cycles(sys.argv[1], int(sys.argv[2])))
