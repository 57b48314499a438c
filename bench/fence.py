"""The cost of the fence: one check of a current run against encoding the delta it lets pass.

Two checks are timed: the line that guards every delta, as outlet.py writes it (the mark itself, no call), and the
method that guards the rarer effects.
"""

import timeit

import msgspec

from bench.result import Result
from bench.scale import Scale
from interlock.core.events import Delta, Event
from interlock.core.fence import Fence
from interlock.core.names import Effect, RunId, SessionId

CALLS = 50_000
GOAL = 0.2
RUN = RunId("r-7-1e240")
EVENT = Event(
    position=(7 << 32) + 123_456,
    session=SessionId("alice"),
    run_id=RUN,
    generation=12,
    data=Delta(text="a few words of a reply "),
)


class _Current:
    """A run reduced to its fence."""

    __slots__ = ("fence",)

    def __init__(self) -> None:
        self.fence = Fence(RUN)


def measure(scale: Scale) -> list[Result]:
    """Time the checks and the encodings in turn; `timeit` keeps the collector away."""
    timers = {
        "check": _timer("fence.check(delta)", fence=Fence(RUN), delta=Effect.DELTA),
        "line": timeit.Timer("if run.fence.cause is not None: raise", "run = mine", globals={"mine": _Current()}),
        "json": _timer("encode(event)", encode=msgspec.json.Encoder().encode, event=EVENT),
        "msgpack": _timer("encode(event)", encode=msgspec.msgpack.Encoder().encode, event=EVENT),
    }
    taken: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(scale.rounds(60, 12)):
        for name, timer in timers.items():
            taken[name].append(timer.timeit(CALLS) / CALLS * 1e9)
    ns = {name: min(times) for name, times in taken.items()}
    small = (
        f"run.fence.cause is not None {ns['line']:.0f} ns; Fence.check {ns['check']:.0f} ns; encode "
        f"{ns['json']:.0f} ns JSON, {ns['msgpack']:.0f} ns msgpack; best of {len(taken['check'])} rounds",
    )
    return [
        Result(
            name="fence check / msgspec JSON encode of the delta it guards", value=ns["line"] / ns["json"], goal=GOAL
        ),
        Result(
            name="Fence.check as a method / the same encode", value=ns["check"] / ns["json"], goal=GOAL, small=small
        ),
    ]


def _timer(statement: str, **names: object) -> timeit.Timer:
    """Time a statement whose names are local, as they are in a method."""
    setup = "; ".join(f"{name} = _{name}" for name in names)
    return timeit.Timer(statement, setup, globals={f"_{name}": value for name, value in names.items()})
