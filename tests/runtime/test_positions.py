"""Positions rise in every session: over leaving memory, starts, kills, children, prunings and a store that is late."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock import Control, Message, Run, Settings, open_control
from interlock.client.door import Sink
from interlock.core.decision import EpochRow
from interlock.core.events import Event
from interlock.core.fence import Fence
from interlock.core.names import EventKind, SessionId
from interlock.runtime import numbers
from interlock.runtime.numbers import Positions
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SqliteStore

from .lives import Place
from .scene import seeded

BOUND_SECONDS = 60.0
QUICK = Settings(commit_seconds=0.2, retry_seconds=0.05, grace_seconds=0.1, drain_seconds=0.2)


class Ear(Sink):
    """Hears every event of a control; `last` has the last position heard of each session."""

    def __init__(self, last: dict[str, int] | None = None) -> None:
        self.last = last if last is not None else {}
        self.events: list[Event] = []
        self.fallen: list[Event] = []

    def take(self, event: Event, source: Fence | None) -> bool:
        """Note an event, and whether its position fell. Nothing is raised: the feed lets go of a sink that raises."""
        if event.position <= self.last.get(event.session, 0):
            self.fallen.append(event)
        self.last[event.session] = event.position
        self.events.append(event)
        return True


@contextmanager
def hearing(control: Control, last: dict[str, int] | None = None) -> Iterator[Ear]:
    """Hear a control inside the block, and check that positions rose in each session."""
    control.feed.follow_all(ear := Ear(last))
    yield ear
    assert ear.events and ear.fallen == []


async def echo(run: Run, message: Message) -> str:
    await run.say("he")
    if message.text == "delegate":
        await run.delegate("echo", "below")
    return message.text


async def turn(control: Control, session: str, text: str = "hello") -> None:
    await control.wait((await control.send(session, text)).run_id, drained=True)
    while session in control._registry.sessions:
        await asyncio.sleep(0.01)


def epochs(ear: Ear, session: str) -> list[int]:
    return sorted({event.position >> 32 for event in ear.events if event.session == session})


def play(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main(), BOUND_SECONDS))


def test_a_session_that_leaves_memory_goes_on_counting() -> None:
    """A session that left memory and came back has the same epoch, and positions that go on."""

    async def main() -> None:
        async with open_control(echo) as control:
            with hearing(control) as ear:
                for _ in range(3):
                    await turn(control, "s")
        assert epochs(ear, "s") == [1]

    seeded(main)


def test_a_session_that_memory_forgot_has_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """When memory has forgotten the count of a session that left, the epoch after the stored one begins."""
    monkeypatch.setattr(numbers, "LEFT", 0)

    async def main() -> None:
        async with open_control(echo) as control:
            with hearing(control) as ear:
                for _ in range(3):
                    await turn(control, "s")
        assert epochs(ear, "s") == [1, 2, 3]

    seeded(main)


def test_sessions_count_apart_and_children_with_their_home() -> None:
    """Two sessions count from the same number; a child's session continues the count of the session at the top."""

    async def main() -> None:
        async with open_control(echo, agents={"echo": echo}) as control:
            with hearing(control) as ear:
                await turn(control, "one", "delegate")
                await turn(control, "two")
        first = {session: min(e.position for e in ear.events if e.session == session) for session in ("one", "two")}
        assert first == {"one": 1 << 32 | 1, "two": 1 << 32 | 1}
        tree = [event.position for event in ear.events if event.session != "two"]
        assert tree == sorted(set(tree)) and len({event.session for event in ear.events}) == 3

    seeded(main)


def test_positions_rise_over_starts_clean_or_not(place: Place) -> None:
    """A session, and one below it, go on above what an earlier start published, also if that was killed."""
    heard = place.killed(_lives(place), echo, agents={"echo": echo})
    for _ in range(2):
        heard = place.life(_goes_on(dict(heard)), echo, agents={"echo": echo})
    assert len(heard) == 6, "three lives, each with a session below"


def _lives(place: Place) -> Any:
    async def scene(control: Control) -> None:
        place.die(await _speak(control, {}))

    return scene


def _goes_on(last: dict[str, int]) -> Any:
    async def scene(control: Control) -> dict[str, int]:
        return await _speak(control, last)

    return scene


async def _speak(control: Control, last: dict[str, int]) -> dict[str, int]:
    with hearing(control, last):
        for session in ("one", "two", "three"):
            await turn(control, session, "delegate" if session == "one" else "hello")
    return last


class Doomed(SqliteStore):
    """A store that writes no event, and whose server is killed."""

    def append(self, event: Event, epoch: EpochRow | None = None) -> bool:
        return False

    async def close(self, *, clean: bool = True) -> None:
        await super().close(clean=False)


def test_a_killed_server_s_unwritten_epochs_are_not_given_again(tmp_path: Path) -> None:
    """Events that were published, but not written when the server was killed, had lower positions than any after."""

    async def main() -> None:
        last: dict[str, int] = {}
        for kind in (SqliteStore, Doomed, Doomed, Doomed, SqliteStore):
            async with open_control(echo, store=kind(tmp_path / "state"), settings=QUICK) as control:
                with hearing(control, last):
                    await turn(control, "s")

    play(main)


def test_a_pruned_session_begins_above_its_old_positions(tmp_path: Path) -> None:
    """A watcher that comes back with a position of a session that was pruned sees what its new owner's session says."""

    async def main() -> None:
        last: dict[str, int] = {}
        for _ in range(2):
            async with open_control(echo, store=SqliteStore(tmp_path), settings=QUICK) as control:
                after = last.get("s", 0)
                with hearing(control, last):
                    await turn(control, "s")
                seen = []
                async with aclosing(control.watch("s", after=after)) as events:
                    async for event in events:
                        seen.append(event.position)
                        if event.position == last["s"]:
                            break
                assert min(seen) > after
                assert (await control._store.prune(before=4e9)).sessions == 1

    play(main)


def test_a_message_stopped_while_the_store_cannot_be_read_stands_above_the_log() -> None:
    """Events of a session whose epoch could not be read stand above those of earlier starts, and below later ones."""

    async def main() -> None:
        store, last = MemoryStore(), dict[str, int]()
        for _ in range(3):
            async with open_control(echo, store=store, settings=QUICK) as control:
                with hearing(control, last) as ear:
                    store.faults.stall = True
                    sending = asyncio.ensure_future(control.send("s", "hello", key="k"))
                    while not control._registry.keys:
                        await asyncio.sleep(0.001)
                    await control.stop(message="k")
                    await asyncio.sleep(1)
                    assert EventKind.ENDED in [event.kind for event in ear.events]
                    store.resume()
                    await asyncio.gather(sending, return_exceptions=True)
                    await turn(control, "s")

    seeded(main)


@pytest.mark.parametrize("what", ["reset", "share"])
def test_a_reset_and_a_share_hold_positions_too(what: str) -> None:
    """The position of a reset or a share is below every later event's, also after starts without any event."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echo, store=store) as control:
            await turn(control, "s")
        for _ in range(2):
            async with open_control(echo, store=store) as control:
                if what == "reset":
                    await control.reset("s")
                else:
                    await control.share("s", with_="bob", may="read")
        held = [row.since for row in store._sessions.values()]
        held += [row.at for rows in store._shares.values() for row in rows.values()]
        async with open_control(echo, store=store) as control:
            with hearing(control, {"s": max(held)}):
                await turn(control, "s")
            replies = [entry.text for entry in await control.history("s") if entry.role == "assistant"]
            assert replies[-1] == "hello"

    seeded(main)


STEPS = st.lists(
    st.tuples(
        st.sampled_from((*("load", "tell", "leave") * 5, "decide", "write", "prune", "kill", "close")),
        st.sampled_from(("a", "b", "c")),
    ),
    min_size=40,
    max_size=80,
)


@given(steps=STEPS)
@settings(max_examples=400, deadline=None)
def test_no_order_of_steps_gives_a_position_again(steps: list[tuple[str, str]]) -> None:
    """However trees come, speak, leave, are pruned and the server ends, each position of a tree is above the last."""
    rows: dict[str, int] = {}
    floor = 0
    waiting: dict[str, Any] = {}
    here: set[str] = set()
    last: dict[str, int] = {}
    positions = Positions(0)
    before, numbers.LEFT = numbers.LEFT, 1
    try:
        for step, name in steps:
            root = SessionId(name)
            if step == "load" and name not in here:
                positions.load(root, max(rows.get(name, 0), floor))
                here.add(name)
            # A tree that was not read yet may speak too: the store was late.
            elif step == "tell":
                here.add(name)
                count = positions.of(root)
                position = count.next()
                assert position > last.get(name, 0)
                last[name] = position
                if (row := count.tell()) is not None:
                    waiting[name] = row
            elif step == "decide" and name in here:
                count = positions.of(root)
                last[name] = max(last.get(name, 0), count.next())
                rows[name] = max(rows.get(name, 0), count.row.epoch)
            elif step == "leave" and name in here:
                here.remove(name)
                positions.leave(root)
            elif step == "prune" and name not in here:
                floor = max(floor, rows.pop(name, 0))
            elif step in ("write", "close"):
                for row in waiting.values():
                    rows[row.session] = max(rows.get(row.session, 0), row.epoch)
                    positions.keep(row)
                waiting.clear()
            if step in ("kill", "close"):
                waiting.clear(), here.clear()
                highest = max([floor, *rows.values()])
                floor = highest + 2 if step == "kill" else floor
                positions = Positions(max(floor, highest))
    finally:
        numbers.LEFT = before
