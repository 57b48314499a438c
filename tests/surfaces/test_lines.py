"""Another protocol over the same outbox and pump: lines of JSON through a pipe, without a gateway."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from interlock.core.fence import Fence
from interlock.core.names import Ending, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.surfaces.outbox import Item, Outbox, Pace, pump

S = SessionId("s")


class JsonLine:
    """A line of JSON: a delta of a run, or any other event of it."""

    def __init__(self, source: Fence, *, text: str = "", end: bool = False) -> None:
        self.session = S
        self.source = source
        self.passing = not end
        self.text = text
        self.size = self.characters = len(text)
        self.stream = None if end else source.run_id

    def render(self, label: bytes, number: int, joined: Sequence[Item]) -> bytes:
        """Return the line."""
        text = "".join(item.text for item in joined)  # type: ignore[attr-defined]
        told: dict[str, Any] = {"id": number, "run": self.source.run_id}
        told |= {"delta": text} if self.passing else {"end": True}
        return label + json.dumps(told).encode() + b"\n"


class Pipe:
    """A pipe whose reader decides when there is room."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.open = asyncio.Event()
        self.waiting = asyncio.Event()

    async def room(self) -> None:
        """Wait until the reader reads."""
        self.waiting.set()
        await self.open.wait()

    async def write(self, frames: list[bytes]) -> None:
        """Hand lines over."""
        self.lines += [json.loads(line) for line in b"".join(frames).splitlines()]


def test_lines_of_json_use_the_outbox_as_it_is() -> None:
    """An item class and a line of another protocol get joined deltas, no delta of a cut run, numbers and an end."""

    async def main() -> None:
        outbox, pipe = Outbox(Pace()), Pipe()
        kept, cut = Fence(RunId("kept")), Fence(RunId("cut"))
        pumping = asyncio.create_task(pump(outbox, pipe))
        for word in ("one ", "two ", "three"):
            outbox.put(JsonLine(kept, text=word))
            outbox.put(JsonLine(cut, text=word))
        await asyncio.wait_for(pipe.waiting.wait(), 30)
        # Both runs fall while the line has no room: one was cut short, the other is complete.
        cut.fall(Cause(ending=Ending.STOPPED))
        kept.fall(Cause(ending=Ending.COMPLETED))
        outbox.put(JsonLine(cut, end=True))
        outbox.put(JsonLine(kept, end=True))
        outbox.answer(b'{"id": 0}\n')
        pipe.open.set()
        outbox.close()
        await asyncio.wait_for(pumping, 30)
        assert pipe.lines == [
            {"id": 1, "run": "kept", "delta": "one two three"},
            {"id": 2, "run": "cut", "end": True},
            {"id": 3, "run": "kept", "end": True},
            {"id": 0},
        ]

    asyncio.run(main())


def test_a_pipe_that_breaks_ends_the_pump() -> None:
    """A line that is gone raises out of the pump, and what waits is not handed over."""

    class Broken(Pipe):
        async def write(self, frames: list[bytes]) -> None:
            raise BrokenPipeError

    async def main() -> None:
        outbox, pipe = Outbox(Pace()), Broken()
        pipe.open.set()
        outbox.put(JsonLine(Fence(RunId("r")), end=True))
        outbox.put(JsonLine(Fence(RunId("r")), end=True))
        done = await asyncio.wait_for(asyncio.gather(pump(outbox, pipe), return_exceptions=True), 30)
        assert isinstance(done[0], BrokenPipeError) and pipe.lines == []

    asyncio.run(main())
