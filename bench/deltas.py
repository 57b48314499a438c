"""Deltas of one run to many clients, against a bare broadcast of the same frames.

1. The floor is `bench.floor`: the same uvicorn, protocol classes and sockets, the same frames, and an application that
   does nothing else. Both servers are up all the time and speak by turns; each has a crowd of clients of its own.
2. A delta is counted by its text. A broadcast listener is told it twice (`chat` and `agent`); a quiet client that
   watches is told it once (`interlock.event`). Deltas that wait are joined, so frames are counted besides.
3. Beside the ratios of rates stand those of the processor time that the two loops took for a delta and client: these
   are the same on a machine that has other work.
"""

import contextlib
import json
import statistics
import time
from typing import Any

from bench.durable import AtLeast, directory
from bench.noops import FINAL
from bench.result import Result
from bench.scale import Scale
from bench.served import Child, Readers, Served, process, serve
from bench.speakers import MARK
from bench.wire import QUIET, Wire

SETTLE_SECONDS = 0.2  # after a flood began, before counting
# By the number of clients.
QUIET_GOALS, EVERYTHING_GOALS = {1: 0.8, 100: 3.0, 1_000: 3.0}, {1: 0.8, 100: 4.0, 1_000: 1.0}


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


def measure(scale: Scale) -> list[Result]:
    """Flood 1, 100 and 1,000 clients from one run, against a bare broadcast of the same frames."""
    counts = (1, 100, scale.rounds(1_000, 300))
    results = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(serve("inline", stack.enter_context(directory())))
        bare = Child(stack.enter_context(process("-m", "bench.floor")))
        mouth, command = ours.dial(quiet=True), Wire(bare.url, path="/control")
        chat, agent, event = _samples(ours, mouth)
        number = 0
        kinds: tuple[tuple[str, dict[int, float], list[str], dict[str, Any]], ...] = (
            ("listening to everything", EVERYTHING_GOALS, [chat, agent], {}),
            ("quiet, watching the session", QUIET_GOALS, [event], {"caps": list(QUIET)}),
        )
        for kind, goals, frames, how in kinds:
            with Readers.ready() as theirs, Readers.ready() as floors:
                there = 0
                for count in counts:
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
                    name = f"deltas/s to {count:,} {kind} / bare"
                    results.append(_result(name, one, other, frames, goals.get(count)))
        mouth.close()
        command.close()
    return results


def _result(name: str, ours: Side, floor: Side, frames: list[str], goal: float | None) -> Result:
    sizes = " + ".join(str(len(frame)) for frame in frames)
    small = (
        f"inline, sqlite, one run speaks; a delta is {len(frames)} frame{'s'[: len(frames) - 1]} of {sizes} bytes",
        f"ours: {ours}",
        f"bare: {floor}",
        f"{_us(floor.cpu) / _us(ours.cpu):.2f} x by processor time of the two loops",
    )
    value = statistics.median(ours.deltas) / statistics.median(floor.deltas)
    return AtLeast(name=name, value=value, goal=goal, small=small)


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
