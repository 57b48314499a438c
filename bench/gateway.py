"""The cost of the gateway on the wire: deltas to many clients, stops amid a flood, runs, takeovers, memory.

1. The server is the real command, `interlock serve`, in a process of its own with SQLite (FULL). Its clients are raw
   sockets (`bench.wire`) that cut frames apart and look for bytes; crowds of them have a process of their own.
2. The floor of the deltas is `bench.floor`: the same uvicorn, protocol classes and sockets, the same frames, and an
   application that does nothing else. Both servers are up all the time and speak by turns.
3. A delta is counted by its text. A broadcast listener is told it twice (`chat` and `agent`); a quiet client that
   watches is told it once (`interlock.event`). Deltas that wait are joined, so frames are counted besides.
4. No timing is left out. Beside the ratios of rates stand those of the processor time that the two loops took for a
   delta and client: these are the same on a machine that has other work.
"""

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from bench.durable import AtLeast, directory
from bench.result import Result
from bench.sample import Samples
from bench.scale import Scale
from bench.speakers import MARK, TEXT
from bench.wire import QUIET, Wire
from interlock.surfaces.access import Access, Scope

ROOT = Path(__file__).parent.parent
SPEAKERS, DELTAS_PER_SECOND = 4, 10_000
SETTLE_SECONDS = 0.2  # after a flood began, before counting
REST_SECONDS = 0.05
STRETCH_SECONDS = 0.5
PAUSE_SECONDS = 0.002
PATIENCE_SECONDS = 60.0
CONNECTIONS, RUNS, IN_FLIGHT = 64, 1_000, 32
STALLED_BYTES = 800_000  # bytes that another reader has had by the time a stalled one is full
DELTA_GOAL, STOP_GOAL, RECALL_GOAL, RECALL_KIB = 0.5, 1.5, 0.05, 128.0
FINAL = b'"state":"final"'


def measure(scale: Scale) -> list[Result]:
    """Take every figure of the gateway."""
    return [
        *_deltas(scale),
        *(result for driver in ("inline", "host") for result in _with(driver, scale)),
        *_thousand(scale),
        *_beyond(scale),
        *_idle(scale),
    ]


# Processes


class Child:
    """A process that says where it serves, and how much it has used."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.told = json.loads(self.line())
        self.url = self.told.get("url", "")

    def line(self) -> str:
        """Read a line of the process's output."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"{self.process.args!r:.200} ended: {self.process.wait()}")

    @property
    def cpu(self) -> float:
        """Return the seconds of the first thread, which is the loop's."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def rest(self) -> None:
        """Wait until the process's loop is idle."""
        end = perf_counter() + PATIENCE_SECONDS
        while perf_counter() < end:
            before = self.cpu
            time.sleep(REST_SECONDS)
            if self.cpu - before < REST_SECONDS / 10:
                return

    @property
    def rss(self) -> float:
        """Return the resident memory in MiB."""
        return _rss(self.process.pid)


class Served(Child):
    """`interlock serve`, ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(process)
        self.token = Path(self.told["tokenFile"]).read_text("utf-8").strip()

    def dial(self, *, quiet: bool = False, token: str | None = None) -> Wire:
        """Return a client: a listener, or a quiet one that hears only answers."""
        return Wire(self.url, token or self.token, caps=(QUIET,) if quiet else ())


@contextlib.contextmanager
def _process(*command: str, log: int = subprocess.DEVNULL) -> "Iterator[subprocess.Popen[str]]":
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    with subprocess.Popen(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": paths}, text=True, **pipes
    ) as it:
        try:
            yield it
        finally:
            with contextlib.suppress(OSError):
                it.stdin.close()  # type: ignore[union-attr]
            it.send_signal(signal.SIGTERM)
            try:
                it.wait(PATIENCE_SECONDS)
            finally:
                it.kill()


@contextlib.contextmanager
def _served(driver: str, data: Path, agent: str = "bench.speakers:agent") -> Iterator[Served]:
    program = "import sys; from interlock.cli import main; sys.exit(main())"
    options = ("--json", "--port=0", f"--data={data}", f"--driver={driver}", "--drain-seconds=2")
    with (
        (data / "serve.log").open("ab") as log,
        _process("-c", program, "serve", agent, *options, log=log.fileno()) as process,
    ):
        yield Served(process)


class Readers:
    """A crowd of clients in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def ready(cls) -> Iterator[Self]:
        """Start a crowd."""
        with _process("-m", "bench.wire") as process:
            yield cls(process)

    def begin(self, verb: str, **given: Any) -> None:
        """Tell the crowd to do something."""
        assert self._process.stdin is not None
        print(json.dumps([verb, given]), file=self._process.stdin, flush=True)

    def done(self) -> Any:
        """Wait for the crowd's answer."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def tell(self, verb: str, **given: Any) -> Any:
        """Tell the crowd to do something, and wait for its answer."""
        self.begin(verb, **given)
        return self.done()


# Deltas


class Side:
    """The share of a flood that the clients of one server got."""

    def __init__(self) -> None:
        self.deltas: list[float] = []  # per second, all clients together
        self.frames: list[float] = []
        self.cpu: list[float] = []  # seconds of the server's loop per delta and client
        self.readers: list[float] = []
        self.lost = 0

    def take(self, server: Child, readers: Readers, seconds: float, told: int) -> None:
        """Count for a while."""
        before = server.cpu
        came = readers.tell("count", seconds=seconds)
        deltas = max(1.0, came["deltas"] / told)
        self.deltas.append(deltas)
        self.frames.append(came["frames"])
        self.cpu.append((server.cpu - before) / (deltas * came["seconds"]))
        self.readers.append(came["cpu"])
        self.lost = len(came["lost"])

    def __str__(self) -> str:
        rate, frames = statistics.median(self.deltas), statistics.median(self.frames)
        busy = statistics.median(self.readers)
        return (
            f"{rate:,.0f} deltas/s in {frames:,.0f} frames/s, all clients together; {_us(self.cpu):.1f} us of the "
            f"loop each; its readers used {busy:.0%} of a core, {self.lost} were lost"
        )


def _deltas(scale: Scale) -> list[Result]:
    """Flood 1, 100 and 1,000 clients from one run, against a bare broadcast of the same frames."""
    counts = (1, 100, scale.rounds(1_000, 300))
    quiet = counts[: scale.rounds(3, 2)]
    results = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(_served("inline", stack.enter_context(directory())))
        bare = Child(stack.enter_context(_process("-m", "bench.floor")))
        mouth, command = ours.dial(quiet=True), Wire(bare.url, path="/control")
        chat, agent, event = _samples(ours, mouth)
        number = 0
        kinds: tuple[tuple[str, tuple[int, ...], list[str], dict[str, Any]], ...] = (
            ("listening to everything", counts, [chat, agent], {}),
            ("quiet, watching the session", quiet, [event], {"caps": [QUIET]}),
        )
        for kind, sizes, frames, how in kinds:
            with Readers.ready() as theirs, Readers.ready() as floors:
                there = 0
                for count in sizes:
                    theirs.begin("dial", count=count - there, url=ours.url, token=ours.token, **how)
                    floors.tell("dial", count=count - there, url=bare.url)
                    theirs.done()
                    there = count
                    # Use a new session each time: a watcher of an old one would be told all earlier floods.
                    session = f"{kind}, {count}"
                    mouth.request("chat.send", sessionKey=session, message="nothing", idempotencyKey=session)
                    ours.rest()
                    if how:
                        theirs.tell("watch", number=count, session=session)
                    one, other = Side(), Side()
                    for _ in range(scale.rounds(5, 2)):
                        number += 1
                        mouth.request("chat.send", sessionKey=session, message="flood", idempotencyKey=f"f{number}")
                        time.sleep(SETTLE_SECONDS)
                        one.take(ours, theirs, scale.rounds(8, 3) / 10, len(frames))
                        mouth.request("chat.abort", sessionKey=session)
                        ours.rest()
                        command.request("go", frames=frames)
                        time.sleep(SETTLE_SECONDS)
                        other.take(bare, floors, scale.rounds(8, 3) / 10, len(frames))
                        command.request("go", frames=[])
                        bare.rest()
                    results.append(_delta_result(f"deltas/s to {count:,} {kind} / bare", one, other, frames))
        mouth.close()
        command.close()
    return results


def _delta_result(name: str, ours: Side, floor: Side, frames: list[str]) -> Result:
    sizes = " + ".join(str(len(frame)) for frame in frames)
    small = (
        f"inline, sqlite, one run speaks; a delta is {len(frames)} frame{'s'[: len(frames) - 1]} of {sizes} bytes",
        f"ours: {ours}",
        f"bare: {floor}",
        f"{_us(floor.cpu) / _us(ours.cpu):.2f} x by processor time of the two loops",
    )
    value = statistics.median(ours.deltas) / statistics.median(floor.deltas)
    return AtLeast(name=name, value=value, goal=DELTA_GOAL, small=small)


def _us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def _samples(ours: Served, mouth: Wire) -> list[str]:
    """Return the frames that tell one delta: chat, agent, interlock.event."""
    ear, watcher = ours.dial(), ours.dial(quiet=True)
    mouth.request("chat.send", sessionKey="s", message="nothing", idempotencyKey="sample 0")  # makes the session
    ear.until(FINAL)
    watcher.request("interlock.watch", watch=1, session="s")
    mouth.request("chat.send", sessionKey="s", message="stream 1 0.1", idempotencyKey="sample")
    heads = (b'{"type":"event","event":"chat"', b'{"type":"event","event":"agent"', b'{"type":"event","event":"interl')
    came = (ear.until(FINAL), watcher.until(b'"type":"delta"'))
    found = [_with_delta(came[n // 2], head) for n, head in enumerate(heads)]
    ear.close()
    watcher.close()
    return found


def _with_delta(came: bytes, head: bytes) -> str:
    at = -1
    while (at := came.index(head, at + 1)) >= 0:
        text = came[at:].decode(errors="replace")
        _, end = json.JSONDecoder().raw_decode(text)
        if MARK in text[:end]:
            return text[:end]
    raise AssertionError


# Stops, runs and takeovers, of either driver


def _with(driver: str, scale: Scale) -> list[Result]:
    """Take every figure that both drivers have."""
    with directory() as data:
        access = Access(data)
        access.open()
        tokens = [access.add(f"person-{n}", (Scope.WRITE,)) for n in range(CONNECTIONS)]
        with _served(driver, data) as served:
            results = [*_stops(driver, served, scale), *_takeovers(driver, served, scale)]
            for count in (1, CONNECTIONS):
                results.append(_noops(driver, served, tokens[:count], scale.rounds(40, 12) / 10))
        return results


def _stops(driver: str, served: Served, scale: Scale) -> list[Result]:
    """Time the ack of a stop on a connection that also hears other runs say 10,000 deltas a second."""
    silent, loud, said, seconds = Samples(), Samples(), 0, 0.0
    wire, mouth = served.dial(), served.dial(quiet=True)
    number = 0

    def stretch(taken: Samples) -> None:
        nonlocal number
        end = perf_counter() + STRETCH_SECONDS
        while perf_counter() < end:
            number += 1
            _stop(wire, number, taken)

    for round_ in range(scale.rounds(16, 3) + 1):
        stretch(silent if round_ else Samples())
        text = f"speak {DELTAS_PER_SECOND / SPEAKERS} {PATIENCE_SECONDS}"
        _answered(
            mouth,
            wire,
            (
                mouth.ask("chat.send", sessionKey=f"speaker {n}", message=text, idempotencyKey=f"{round_} {n}")
                for n in range(SPEAKERS)
            ),
        )
        _read_for([wire], SETTLE_SECONDS)
        before, began = wire.deltas, perf_counter()
        stretch(loud if round_ else Samples())
        said, seconds = said + wire.deltas - before, seconds + perf_counter() - began
        _answered(mouth, wire, (mouth.ask("chat.abort", sessionKey=f"speaker {n}") for n in range(SPEAKERS)))
        _read_for([wire], SETTLE_SECONDS)
    wire.close()
    mouth.close()
    rate = said / 2 / seconds
    small = (
        f"{driver}, sqlite, one connection that hears all of it; {SPEAKERS} runs spoke, {rate:,.0f} deltas/s arrived",
        f"amid them: {loud.spread()}",
        f"idle:      {silent.spread()}",
    )
    name = f"stop ack over the wire at 10k deltas/s / idle, {driver}"
    return [
        Result(name=f"{name}, p50", value=loud.percentile(50) / silent.percentile(50)),
        Result(name=f"{name}, p99", value=loud.percentile(99) / silent.percentile(99), goal=STOP_GOAL, small=small),
    ]


def _stop(wire: Wire, number: int, taken: Samples) -> None:
    word = f"stop-{number}."
    wire.ask("chat.send", sessionKey="stopped", message=f"park {word}", idempotencyKey=word)
    wire.until(b'"%b"' % word.encode())
    _read_for([wire], PAUSE_SECONDS)
    began = perf_counter()
    wire.until(wire.ask("chat.abort", sessionKey="stopped") + b',"ok":true')
    taken.seconds.append(perf_counter() - began)


def _takeovers(driver: str, served: Served, scale: Scale) -> list[Result]:
    """Time from a message that takes over to the first delta of its run."""
    taken, wire = Samples(), served.dial()
    for number in range(scale.rounds(400, 60) + 10):
        word = f"take-{number}."
        began = perf_counter()
        wire.ask("chat.send", sessionKey="taken over", message=f"park {word}", idempotencyKey=word)
        wire.until(b'"%b"' % word.encode())
        if number >= 10:  # the first few warm up
            taken.seconds.append(perf_counter() - began)
        _read_for([wire], 5 * PAUSE_SECONDS)
    wire.request("chat.abort", sessionKey="taken over")
    wire.close()
    p50, p95, most = (taken.percentile(q) * 1e3 for q in (50, 95, 100))
    small = (f"{driver}, sqlite, one connection: p95 {p95:.2f} ms, max {most:.2f} ms, n {len(taken.seconds)}",)
    name = f"takeover -> first delta of the new run on the wire, {driver}, p50"
    return [Result(name=name, value=p50, unit="ms", small=small)]


def _noops(driver: str, served: Served, tokens: list[str], seconds: float) -> Result:
    """Count runs that do nothing, one after another on each connection, each of a principal of its own."""
    wires = {(wire := served.dial(token=token)).socket.fileno(): wire for token in tokens}
    number, done, ready = 0, 0, select.epoll()

    def send(wire: Wire) -> None:
        nonlocal number
        number += 1
        name = f"noop {len(wires)} {wire.socket.fileno()}"
        wire.ask("chat.send", sessionKey=name, message="nothing", idempotencyKey=f"{name} {number}")

    for wire in wires.values():
        ready.register(wire.socket, select.EPOLLIN)
        send(wire)
    warm, took = 0, 0.0
    began = perf_counter()
    while (took := perf_counter() - began) < seconds * 1.25:
        if took < seconds / 4:
            warm = done
        for fd, _ in ready.poll(1):
            if FINAL in wires[fd].read():
                done += 1
                send(wires[fd])
    for wire in wires.values():
        wire.close()
    many = f"{len(tokens)} connection{'s'[: len(tokens) - 1]}"
    small = (
        f"{driver}, sqlite FULL, {many}, chat.send -> chat final, each the next when it has that; {done - warm} runs",
    )
    return Result(name=f"no-op runs/s over {many}, {driver}", value=(done - warm) / seconds, unit="/s", small=small)


def _answered(mouth: Wire, ear: Wire, asked: Iterable[bytes]) -> tuple[bytes, int]:
    """Wait for answers while another client reads on; return what that client heard, and how many were refused."""
    left, heard, refused = set(asked), b"", 0
    while left:
        for ready in select.select((ear.socket, mouth.socket), (), ())[0]:
            if ready is ear.socket:
                heard += ear.read()
                continue
            came = mouth.read()
            refused += came.count(b'"ok":false')
            left = {answer for answer in left if answer not in came}
    return heard, refused


def _read_for(wires: list[Wire], seconds: float) -> None:
    """Read from all of them for so long."""
    end = perf_counter() + seconds
    while (left := end - perf_counter()) > 0:
        for ready in select.select([wire.socket for wire in wires], (), (), left)[0]:
            next(wire for wire in wires if wire.socket is ready).read()


# Many runs


def _thousand(scale: Scale) -> list[Result]:
    """Stream a thousand runs at once, all heard by one client."""
    deltas, pace = scale.rounds(40, 20), 0.25
    wrong, words = 0, f"stream {deltas} {pace}"
    with directory() as data, _served("inline", data) as served:
        ear, mouth = served.dial(), served.dial(quiet=True)
        before, ends = served.rss, 0
        began = perf_counter()
        for first in range(0, RUNS, IN_FLIGHT):
            numbers = range(first, min(RUNS, first + IN_FLIGHT))
            heard, refused = _answered(
                mouth,
                ear,
                (
                    mouth.ask("chat.send", sessionKey=f"many {n}", message=words, idempotencyKey=f"m{n}")
                    for n in numbers
                ),
            )
            ends, wrong = ends + heard.count(FINAL), wrong + refused
        started = perf_counter() - began
        at_once, peak = RUNS - ends, served.rss
        while ends < RUNS and perf_counter() - began < PATIENCE_SECONDS:
            came = ear.read() if select.select((ear.socket,), (), (), 1)[0] else b""
            ends += came.count(FINAL)
            peak = max(peak, served.rss)
        took = perf_counter() - began
        _read_for([ear], 1.0)
        # Every delta is told three times: as chat, as agent, and in the text of the final event.
        said, after = ear.deltas // 3, served.rss
        ear.close()
        mouth.close()
    errors = wrong + (RUNS - ends) + abs(said - RUNS * deltas)
    small = (
        f"inline, sqlite, sent over one connection within {started:.2f} s, {at_once:,} at once when the last had been "
        f"sent; all of it heard over one other: {said:,} deltas in {took:.1f} s",
        f"{wrong} sends refused, {RUNS - ends} runs without a final event, {RUNS * deltas - said:,} deltas missing",
        f"the server's RSS: {before:.0f} MiB before, {peak:.0f} at its peak, {after:.0f} a second after the last end",
    )
    return [Result(name=f"errors with {RUNS:,} runs streaming at once", value=errors, unit="", goal=0, small=small)]


# A stalled reader


def _beyond(scale: Scale) -> list[Result]:
    """Count the bytes of deltas that a stalled reader gets after a stop's ack, from us and from plain uvicorn."""
    rounds = scale.rounds(5, 2)
    ours, plain = [], []
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(_served("inline", stack.enter_context(directory())))
        bare = Child(stack.enter_context(_process("-m", "bench.floor", "--plain")))
        command = Wire(bare.url, path="/control")
        for number in range(rounds):
            ours.append(_stalled(served, number))
            stalled = Wire(bare.url)
            command.request("go", frames=[TEXT.rjust(2_000)])
            time.sleep(5 * SETTLE_SECONDS)
            command.request("go", frames=[])
            before = stalled.bytes
            _read_for([stalled], 2 * SETTLE_SECONDS)
            plain.append((stalled.bytes - before) / 1024)
            stalled.close()
        command.close()
    most, floor = max(ours), statistics.median(plain)
    small = (
        f"inline, sqlite; ours: {', '.join(f'{each:.0f}' for each in ours)} KiB; "
        f"uvicorn as it comes: {', '.join(f'{each:,.0f}' for each in plain)} KiB",
    )
    return [
        Result(
            name="beyond recall with a stalled reader, at most", value=most, unit="KiB", goal=RECALL_KIB, small=small
        ),
        Result(name="the same / uvicorn as it comes", value=most / floor, goal=RECALL_GOAL),
    ]


def _stalled(served: Served, number: int) -> float:
    stalled, other, mouth = served.dial(), served.dial(), served.dial(quiet=True)
    mouth.request("chat.send", sessionKey="s", message="flood 200", idempotencyKey=f"stall {number}")
    while other.bytes < STALLED_BYTES:
        other.read()
    answer = mouth.ask("chat.abort", sessionKey="s")
    mouth.until(answer)
    came = stalled.until(b'"state":"aborted"')
    for wire in (stalled, other, mouth):
        wire.close()
    # The terminal event repeats the text, so count only up to it.
    terminal = came.rindex(b'{"type":"event"', 0, came.index(b'"state":"aborted"'))
    return terminal / 1024


# Idle


def _idle(scale: Scale) -> list[Result]:
    """Time how soon the demo serves, and weigh it when nothing happens."""
    seconds, tables = [], []
    for _ in range(scale.rounds(5, 1)):
        with directory() as data:
            began = perf_counter()
            with _served("host", data, "interlock.demo:agent") as served:
                seconds.append(perf_counter() - began)
                time.sleep(5 * SETTLE_SECONDS)  # until a spare has been made
                family = _family(served.process.pid)
                tables.append([(_rss(pid), _pss(pid), _called(pid)) for pid in family])
    last = tables[-1]
    alone = statistics.median(table[0][0] for table in tables)
    small = (
        f"host, sqlite, demo; with its {len(last) - 1} processes {sum(each[0] for each in last):.0f} MiB RSS, "
        f"{sum(each[1] for each in last):.0f} MiB PSS",
        *(f"{name}: {rss:.0f} MiB RSS, {pss:.0f} MiB PSS" for rss, pss, name in last),
    )
    started = ", ".join(f"{each:.2f}" for each in seconds)
    return [
        Result(name="idle RSS of interlock serve, the server alone", value=alone, unit="MiB", small=small),
        Result(
            name="start to ready, interlock serve with the demo, median",
            value=statistics.median(seconds),
            unit="s",
            small=(f"host, sqlite: {started} s",),
        ),
    ]


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


def _field(pid: int, file: str, name: str) -> float:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def _rss(pid: int) -> float:
    return _field(pid, "status", "VmRSS:")


def _pss(pid: int) -> float:
    return _field(pid, "smaps_rollup", "Pss:")


def _called(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return " ".join(word.decode(errors="replace")[:40] for word in words if word)[:70]
