"""The cost of the gateway on the wire: takeovers, a thousand runs at once, a stalled reader.

The server is the real command, `interlock serve`, in a process of its own with SQLite (FULL). Its clients are raw
sockets (`bench.wire`) that cut frames apart and look for bytes. No timing is left out.
"""

import contextlib
import select
import statistics
import time
from pathlib import Path
from time import perf_counter

from bench.durable import directory
from bench.noops import DRIVERS, FINAL
from bench.result import Result
from bench.sample import Samples
from bench.scale import Scale
from bench.served import PATIENCE_SECONDS, Child, Served, process, serve
from bench.speakers import TEXT
from bench.wire import Wire, answered, read_for

SETTLE_SECONDS = 0.2
PAUSE_SECONDS = 0.01
RUNS, IN_FLIGHT = 1_000, 32
STALLED_BYTES = 800_000  # bytes that another reader has had by the time a stalled one is full
RECALL_GOAL, RECALL_KIB = 0.05, 128.0


def measure(scale: Scale) -> list[Result]:
    """Take every figure of the gateway."""
    return [
        *(result for driver in DRIVERS for result in _takeovers(driver, scale)),
        *_thousand(scale),
        *_beyond(scale),
    ]


# Takeovers


def _takeovers(driver: str, scale: Scale) -> list[Result]:
    """Time from a message that takes over to the first delta of its run."""
    taken = Samples()
    with directory() as data, serve(driver, data) as served:
        wire = served.dial()
        for number in range(scale.rounds(400, 60) + 10):
            word = f"take-{number}."
            began = perf_counter()
            wire.ask("chat.send", sessionKey="taken over", message=f"park {word}", idempotencyKey=word)
            wire.until(b'"%b"' % word.encode())
            if number >= 10:  # the first few warm up
                taken.seconds.append(perf_counter() - began)
            read_for([wire], PAUSE_SECONDS)
        wire.request("chat.abort", sessionKey="taken over")
        wire.close()
    p50, p95, most = (taken.percentile(q) * 1e3 for q in (50, 95, 100))
    small = (f"{driver}, sqlite, one connection: p95 {p95:.2f} ms, max {most:.2f} ms, n {len(taken.seconds)}",)
    name = f"takeover -> first delta of the new run on the wire, {driver}, p50"
    return [Result(name=name, value=p50, unit="ms", small=small)]


# Many runs


def _thousand(scale: Scale) -> list[Result]:
    """Stream a thousand runs at once, all heard by one client."""
    deltas, pace = scale.rounds(40, 20), 0.25
    wrong, words = 0, f"stream {deltas} {pace}"
    with directory() as data, serve("inline", data) as served:
        ear, mouth = served.dial(), served.dial(quiet=True)
        before, ends = rss(served.process.pid), 0
        began = perf_counter()
        for first in range(0, RUNS, IN_FLIGHT):
            numbers = range(first, min(RUNS, first + IN_FLIGHT))
            heard, refused = answered(
                mouth,
                ear,
                (
                    mouth.ask("chat.send", sessionKey=f"many {n}", message=words, idempotencyKey=f"m{n}")
                    for n in numbers
                ),
            )
            ends, wrong = ends + heard.count(FINAL), wrong + refused
        started = perf_counter() - began
        at_once, peak = RUNS - ends, rss(served.process.pid)
        while ends < RUNS and perf_counter() - began < PATIENCE_SECONDS:
            came = ear.read() if select.select((ear.socket,), (), (), 1)[0] else b""
            ends += came.count(FINAL)
            peak = max(peak, rss(served.process.pid))
        took = perf_counter() - began
        read_for([ear], 1.0)
        # Every delta is told three times: as chat, as agent, and in the text of the final event.
        said, after = ear.deltas // 3, rss(served.process.pid)
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
        served = stack.enter_context(serve("inline", stack.enter_context(directory())))
        bare = Child(stack.enter_context(process("-m", "bench.floor", "--plain")))
        command = Wire(bare.url, path="/control")
        for number in range(rounds):
            ours.append(_stalled(served, number))
            stalled = Wire(bare.url)
            command.request("go", frames=[TEXT.rjust(2_000)])
            time.sleep(5 * SETTLE_SECONDS)
            command.request("go", frames=[])
            before = stalled.bytes
            read_for([stalled], 2 * SETTLE_SECONDS)
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


def field(pid: int, file: str, name: str) -> float:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def rss(pid: int) -> float:
    return field(pid, "status", "VmRSS:")
