"""The ack of a stop over the wire: amid 10,000 deltas a second of other runs, and beside sockets of other principals.

1. The stop is sent over the connection that also hears the flood. It is timed from the send of `chat.abort` to its
   answer, which waits for the ending to be on disk.
2. Loud and idle stops, or those with and without the sockets, take turns in blocks on one server, so both meet the same
   minutes. No timing is left out.
3. A p99 rests on a hundredth of the stops: its quarters stand beside it, each from a fourth of them in order of time.
"""

import contextlib
from collections.abc import Iterator
from time import perf_counter

from bench.durable import directory
from bench.noops import DRIVERS
from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from bench.served import PATIENCE_SECONDS, Readers, Served, principals, serve
from bench.wire import Wire, answered, read_for

SPEAKERS, DELTAS_PER_SECOND = 4, 10_000
SETTLE_SECONDS = 0.2  # after a flood began or ended, before the first stop
PAUSE_SECONDS = 0.002  # between a run's first word and its stop
STOPS, BLOCK = 5_000, 100
SOCKETS, BESIDE_STOPS, BESIDE_BLOCK = 1_000, 600, 100
LOUD_GOAL, SOCKETS_GOAL = 1.5, 1.2


def measure(scale: Scale) -> list[Result]:
    """Take the stops amid a flood, then those beside other sockets, with both drivers."""
    return [
        *(result for driver in DRIVERS for result in _amid_deltas(driver, scale)),
        *(result for driver in DRIVERS for result in _beside_sockets(driver, scale)),
    ]


class Stopper:
    """A client that starts a run, waits for its first word, and stops it."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._number = wire, 0

    def block(self, count: int, taken: Samples) -> None:
        """Time so many stops."""
        for _ in range(count):
            self._number += 1
            word = f"stop-{self._number}."
            self._wire.ask("chat.send", sessionKey="stopped", message=f"park {word}", idempotencyKey=word)
            self._wire.until(b'"%b"' % word.encode())
            read_for([self._wire], PAUSE_SECONDS)
            began = perf_counter()
            self._wire.until(self._wire.ask("chat.abort", sessionKey="stopped") + b',"ok":true')
            taken.seconds.append(perf_counter() - began)


def _amid_deltas(driver: str, scale: Scale) -> list[Result]:
    idle, loud, said, seconds = Samples(), Samples(), 0, 0.0
    blocks = scale.rounds(STOPS, 3 * BLOCK) // BLOCK
    with directory() as data, serve(driver, data) as served, still():
        wire, mouth = served.dial(), served.dial(quiet=True)
        stopper = Stopper(wire)
        stopper.block(BLOCK // 2, Samples())  # warms up
        for number in range(blocks):
            stopper.block(BLOCK, idle)
            with _flood(mouth, wire, number):
                before, began = wire.deltas, perf_counter()
                stopper.block(BLOCK, loud)
                # The connection is told every delta twice.
                said, seconds = said + (wire.deltas - before) // 2, seconds + perf_counter() - began
    name = f"stop ack over the wire at 10k deltas/s / idle, {driver}"
    small = (
        f"{driver}, sqlite, one connection that hears all of it; {SPEAKERS} runs spoke, "
        f"{said / seconds:,.0f} deltas/s arrived; {blocks} blocks of {BLOCK} each, by turns",
        f"amid them: {_spread(loud)}",
        f"idle:      {_spread(idle)}",
    )
    return [_ratio(f"{name}, p50", loud, idle, 50), _ratio(f"{name}, p99", loud, idle, 99, LOUD_GOAL, small)]


@contextlib.contextmanager
def _flood(mouth: Wire, ear: Wire, number: int) -> Iterator[None]:
    """Have other runs speak, and stop them afterwards; a client that hears them reads on meanwhile."""
    text = f"speak {DELTAS_PER_SECOND / SPEAKERS} {PATIENCE_SECONDS}"
    names = [f"speaker {n}" for n in range(SPEAKERS)]
    sent = (mouth.ask("chat.send", sessionKey=each, message=text, idempotencyKey=f"{number} {each}") for each in names)
    answered(mouth, ear, sent)
    read_for([ear], SETTLE_SECONDS)
    yield
    answered(mouth, ear, (mouth.ask("chat.abort", sessionKey=each) for each in names))
    read_for([ear], SETTLE_SECONDS)


def _beside_sockets(driver: str, scale: Scale) -> list[Result]:
    alone, beside = Samples(), Samples()
    sockets, blocks = scale.rounds(SOCKETS, 200), scale.rounds(BESIDE_STOPS, BESIDE_BLOCK) // BESIDE_BLOCK
    with directory() as data:
        mine, *others = principals(data, sockets + 1)
        with serve(driver, data) as served, Readers.ready() as crowd, still():
            stopper = Stopper(served.dial(token=mine))
            stopper.block(BESIDE_BLOCK, Samples())  # warms up
            for _ in range(blocks):
                stopper.block(BESIDE_BLOCK, alone)
                with _sockets(served, crowd, others):
                    stopper.block(BESIDE_BLOCK, beside)
    name = f"stop ack with {sockets:,} sockets of others / with none, {driver}"
    small = (
        f"{driver}, sqlite; each socket is of a principal of its own and listens to everything; by turns",
        f"with them: {_spread(beside)}",
        f"with none: {_spread(alone)}",
    )
    goal = SOCKETS_GOAL if sockets == SOCKETS else None
    return [_ratio(f"{name}, p50", beside, alone, 50, goal, small)]


@contextlib.contextmanager
def _sockets(served: Served, crowd: Readers, tokens: list[str]) -> Iterator[None]:
    for token in tokens:
        crowd.tell("dial", count=1, url=served.url, token=token)
    served.rest()
    yield
    crowd.tell("leave")
    served.rest()


def _ratio(
    name: str, one: Samples, other: Samples, q: float, goal: float | None = None, small: tuple[str, ...] = ()
) -> Result:
    return Result(name=name, value=one.percentile(q) / other.percentile(q), goal=goal, small=small)


def _spread(taken: Samples) -> str:
    size = len(taken.seconds)
    parts = [Samples() for _ in range(4)]
    for n, seconds in enumerate(taken.seconds):
        parts[n * 4 // size].seconds.append(seconds)
    quarters = ", ".join(f"{part.percentile(99) * 1e6:,.0f}" for part in parts)
    return f"{taken.spread()}; p99 of its quarters {quarters} us"
