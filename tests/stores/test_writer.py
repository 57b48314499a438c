"""The writer's thread: every decision is answered, and waiting events are bounded and dropped cheaply."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock import Ending, Message, Run, open_control
from interlock.core.events import Event
from interlock.core.names import SessionId
from interlock.runtime import control as controls
from interlock.stores.base import Ticket, Unsure
from interlock.stores.sqlite import SqliteStore, writer
from interlock.stores.sqlite import store as stores

from .scene import QUICK, SECONDS, S, admit, block, count, database, locked, made, play, until


class Switching(dict[Ticket, None]):
    """A line whose reader is switched out as soon as it has read the whole of it."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def __iter__(self) -> Iterator[Ticket]:
        yield from list(super().__iter__())
        self._meanwhile()


@contextlib.contextmanager
def hanging(store: SqliteStore, text: str) -> Iterator[threading.Event]:
    """The writer hangs in the commit of a text until this is left; what is yielded says that it does."""
    written, hangs, goes_on = threading.Event(), threading.Event(), threading.Event()

    def hang(statement: str) -> None:
        if text in statement:
            written.set()
        elif statement == "COMMIT" and written.is_set():
            hangs.set()
            goes_on.wait(SECONDS)

    assert store._writer is not None
    store._writer._connection.set_trace_callback(hang)
    try:
        yield hangs
    finally:
        goes_on.set()


class Walked(deque[Event]):
    """A line of events that counts how often somebody walks all of it."""

    walks = 0

    def __iter__(self) -> Iterator[Event]:
        self.walks += 1
        return super().__iter__()


def test_a_decision_that_comes_while_the_line_is_taken_is_answered(tmp_path: Path) -> None:
    """The writer has read its line and not yet emptied it, and another decision comes: that one is written next."""

    async def main() -> None:
        loop, came, late = asyncio.get_running_loop(), threading.Event(), list[Ticket]()
        store = made(tmp_path)
        await store.open()

        def come() -> None:
            if not late:
                late.append(store.decide(admit("late")))
            came.set()

        def meanwhile() -> None:  # in the writer's thread
            loop.call_soon_threadsafe(come)
            came.wait(1)  # not for ever: the writer may also keep the other waiting

        assert store._writer is not None
        store._writer._line = Switching(meanwhile)
        await store.decide(admit("first"))
        await until(lambda: bool(late))
        assert await late[0].within(SECONDS), "it was lost, and its sender waits for ever"
        assert {row.id for row in await store.runs(S)} == {"first", "late"}
        await store.close()

    play(main)


def test_who_sends_while_a_hanging_disk_is_closed_is_not_told_that_nothing_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a message hangs while the server closes: its sender hears that nobody knows; and it is in."""
    monkeypatch.setattr(controls, "SLACK_SECONDS", 0.2)

    async def busy(run: Run, message: Message) -> str:
        if message.text == "long":
            await asyncio.Event().wait()
        return "done"

    async def main() -> None:
        store = made(tmp_path)
        async with contextlib.AsyncExitStack() as block:
            control = await block.enter_async_context(open_control(busy, store=store, settings=QUICK))
            await control.send("s", "long")
            hangs = block.enter_context(hanging(store, "pay-the-bill"))
            sent = asyncio.create_task(control.send("s", "pay-the-bill", key="k", strategy="queue"))
            await until(hangs.is_set)
            await control.close()
            with pytest.raises(Unsure, match="not known; send it again with the same key"):
                await sent
        await until(lambda: store._hold is None)
        async with open_control(busy, store=made(tmp_path), settings=QUICK) as control:
            again = await control.send("s", "pay-the-bill", key="k", strategy="queue")
            assert (await control.wait(again.run_id)).ending is Ending.COMPLETED
            assert len(await control.runs("s")) == 2

    play(main)


def test_events_that_nobody_wants_are_passed_over_and_not_searched_for(tmp_path: Path) -> None:
    """To forget events walks no line below the bound, however often; what is forgotten is not written, the rest is."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        line = store._writer._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                store.append(event)
            for event in events[::2]:
                store._writer.forget([event])
            assert line.walks == 0 and store._writer._lasting is line
        await store.decide(admit("r"))
        with database(tmp_path) as other:
            written = [row[0] for row in other.execute("SELECT position FROM events ORDER BY position")]
        assert written == list(range(2, 101, 2))
        assert store._writer._forgotten == set()
        await store.close()

    play(main)


def test_what_is_forgotten_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the lines are walked once, for all that was forgotten until then."""
    monkeypatch.setattr(writer, "FORGOTTEN", 10)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        line = store._writer._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                store.append(event)
            for event in events[:11]:
                store._writer.forget([event])
            assert line.walks == 1 and store._writer._forgotten == set()
            assert len(store._writer._lasting) == 89
        await store.close()

    play(main)


def test_room_for_events_is_made_for_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many wait, a tenth goes at once, also where each session has but one: not a search for each event."""
    monkeypatch.setattr(stores, "PENDING_EVENTS", 100)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            for n in range(100):
                store.append(block(n + 1, SessionId(f"s{n}")))
            store.append(block(101, SessionId("last")))
            assert store._pending_count == 91
            assert len(store._dropped) == 10 and len(store._pending) == 91
        await store.close()
        assert count(tmp_path, "events") == 91

    play(main)
