"""How often control builds the receipt of a fall: whatever a receipt costs, a fall pays that many times.

A receipt counts as built if a function of the package returns one that no function had returned before, on the loop's
thread. The bench looks at every return, so it finds a receipt wherever and by whatever rule it is made. A copy with the
same runs (an answer says besides whether the stop ended anything) is counted apart.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bench.durable import directory
from bench.result import Result
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.core.receipt import Receipt
from interlock.runtime.control import Control

FALLS = 100
GOAL = 2.0


def measure(scale: Scale) -> list[Result]:
    """Count the receipts of a stop and of a completion, with both stores."""
    results = []
    for store in ("memory", "sqlite"):
        with directory() as path:
            where = "memory://" if store == "memory" else f"sqlite:///{path / 'store'}"
            results += asyncio.run(_measure(store, where, scale.rounds(FALLS, 20)))
    return results


async def _measure(store: str, where: str, falls: int) -> list[Result]:
    results = []
    begun = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        begun.set()
        if message.text == "stop":
            await asyncio.Event().wait()

    async def fall(control: Control, kind: str) -> None:
        begun.clear()
        sent = await control.send("s", kind)
        await begun.wait()
        if kind == "stop":
            await control.stop(session="s")
        await control.wait(sent.run_id, drained=True)

    async with open_control(agent, store=where) as control:
        for kind in ("stop", "completion"):
            await fall(control, kind)  # loads what is loaded once
            with Built().counting() as built:
                for _ in range(falls):
                    await fall(control, kind)
            each = round(sum(built.by.values()) / falls, 1)
            makers = ", ".join(f"{name} {count / falls:.3g}" for name, count in built.by.most_common())
            copies = f"{built.copies / falls:.3g} copies"
            small = (f"inline, {falls} falls, until drained; built by {makers}; {copies}",)
            results.append(
                Result(name=f"receipts built per {kind}, {store}", value=each, unit="", goal=GOAL, small=small)
            )
    return results


class Built:
    """The receipts that were built, by the function that first returned them."""

    def __init__(self) -> None:
        self.by: Counter[str] = Counter()
        self.copies = 0
        self._seen: dict[int, Receipt] = {}  # kept, so that no id is used twice
        self._runs: set[int] = set()

    @contextmanager
    def counting(self) -> Iterator["Built"]:
        """Count on this thread."""
        sys.setprofile(self._look)
        try:
            yield self
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and type(value) is Receipt and id(value) not in self._seen:
            self._seen[id(value)] = value
            if id(value.runs) in self._runs:
                self.copies += 1
            else:
                self._runs.add(id(value.runs))
                self.by[frame.f_code.co_qualname] += 1
