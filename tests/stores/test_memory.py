"""The memory store's own features: its switches, its latency, and how it forgets."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from interlock import MemoryStore
from interlock.core.decision import Decision, SessionRow
from interlock.core.events import Block, Delta, Event
from interlock.core.names import Principal, QuestionId, RunId, SessionId
from interlock.stores import bounds, memory
from interlock.stores.base import StoreFailed
from interlock.testing.loop import run_seeded

S = SessionId("s")
ROW = SessionRow(id=S, owner=Principal("alice"), generation=1)


def play(main: Callable[[], Awaitable[None]]) -> None:
    for seed in range(3):
        run_seeded(main, seed)  # type: ignore[arg-type]


def test_latency_delays_every_answer() -> None:
    """A store with a latency answers that much later, in order, and not before."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.5)
        await store.open()
        before = asyncio.get_running_loop().time()
        await store.decide(Decision(sessions=(ROW,)))
        assert asyncio.get_running_loop().time() - before >= 0.4

    play(main)


READS = ["session", "run", "runs", "tree", "question", "wakes", "tools", "receipt", "events", "load"]


@pytest.mark.parametrize("read", READS)
def test_every_read_obeys_the_switches(read: str) -> None:
    """No read answers while the store stalls, and each fails while it fails."""

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        reads = {
            "session": lambda: store.session(S),
            "run": lambda: store.run(RunId("r")),
            "runs": lambda: store.runs(S),
            "tree": lambda: store.runs(S, tree=True),
            "question": lambda: store.question(QuestionId("q")),
            "wakes": store.wakes,
            "tools": lambda: store.tools(RunId("r")),
            "receipt": lambda: store.receipt(RunId("r")),
            "events": lambda: store.events(S, after=0, limit=1),
            "load": lambda: store.load(S, principal=Principal("alice"), key="k"),
        }
        store.faults.fail = True
        with pytest.raises(StoreFailed, match="try again later"):
            await reads[read]()
        store.resume()
        store.faults.stall = True
        answered = False
        with anyio.move_on_after(1):
            await reads[read]()
            answered = True
        assert not answered
        reading = asyncio.create_task(reads[read]())  # type: ignore[arg-type]
        await anyio.sleep(1)
        store.resume()
        await reading

    play(main)


def test_resume_clears_every_fault() -> None:
    """After `resume` no switch is on and what waited is carried out."""

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        store.faults.stall = store.faults.lose = True
        ticket = store.decide(Decision(sessions=(ROW,)))
        await asyncio.sleep(0)
        store.resume()
        assert store.faults == memory.Faults()
        await ticket
        assert await store.session(S) == ROW

    play(main)


def test_a_run_s_passing_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that floods deltas keeps the latest; what lasts is not pushed out by them."""
    monkeypatch.setattr(bounds, "PASSING_EVENTS", 3)

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        store.append(Event(position=1, session=S, run_id=RunId("r"), generation=1, data=Block(text="stays")))
        for n in range(2, 12):
            store.append(Event(position=n, session=S, run_id=RunId("r"), generation=1, data=Delta(text=str(n))))
        page = await store.events(S, after=0, limit=100)
        assert [each.position for each in page.events] == [1, 9, 10, 11]

    play(main)


def test_a_closed_store_that_stalls_closes_all_the_same() -> None:
    """A store that stalls, and answers nobody, can be closed at once."""

    async def main() -> None:
        store = MemoryStore()
        await store.open()
        store.faults.stall = True
        store.decide(Decision(sessions=(ROW,)))
        await store.close()

    play(main)
