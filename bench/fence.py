"""What the fence costs: one check of a current run against encoding the delta it lets pass."""

import statistics
import timeit

import msgspec

from bench.result import Result
from bench.scale import Scale
from interlock.core.events import Delta, Event
from interlock.core.fence import Fence
from interlock.core.names import Effect, RunId, SessionId

CALLS = 50_000
GOAL = 0.2


def measure(scale: Scale) -> list[Result]:
    """Take the check and the encoding in turn; `timeit` keeps the collector away."""
    event = Event(
        position=(7 << 32) + 123_456,
        session=SessionId("alice"),
        run_id=RunId("r-7-1e240"),
        generation=12,
        data=Delta(text="a few words of a reply "),
    )
    names = {"fence": Fence(RunId("r-7-1e240")), "effect": Effect.DELTA, "event": event}
    timers = {
        "check": timeit.Timer("check(effect)", "check = fence.check", globals=names),
        "attribute": timeit.Timer("fence.check(effect)", globals=names),
        "json": _encoding(msgspec.json.Encoder(), event),
        "msgpack": _encoding(msgspec.msgpack.Encoder(), event),
    }
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(scale.rounds(60, 12)):
        for name, timer in timers.items():
            taken[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    ns = {name: statistics.median(times) for name, times in taken.items()}
    return [
        Result(
            name="fence check / msgspec JSON encode of the delta it guards",
            value=ns["attribute"] / ns["json"],
            goal=GOAL,
            small=(
                f"fence.check(effect) {ns['attribute']:.0f} ns ({ns['check']:.0f} bound beforehand); "
                f"encode {ns['json']:.0f} ns JSON, {ns['msgpack']:.0f} msgpack; loop included, medians",
            ),
        )
    ]


def _encoding(encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder, event: Event) -> timeit.Timer:
    return timeit.Timer("encode(event)", globals={"encode": encoder.encode, "event": event})
