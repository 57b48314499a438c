"""The contract of a listening, over every door: history, news, a sink without room, rights, and lost connections."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.doors import ALICE, BOB, BOUND_SECONDS, House, eventually, open_house

from client.scene import Road
from interlock import BadInput, Ending, InterlockError, Unavailable, Unknown
from interlock.client import connect
from interlock.client.door import Door, Listening, Sees, Sink, is_over
from interlock.client.listening import RemoteListening
from interlock.core.events import Delta, Ended, Event, Source
from interlock.core.names import EventKind
from interlock.core.verbs import Stop

KINDS = ["inside", "socket"]
over_each_door = pytest.mark.parametrize("kind", KINDS)


class Notes(Sink):
    """A sink that keeps what it takes, and has room for so many events."""

    def __init__(self, room: float = float("inf")) -> None:
        self.room = room
        self.events: list[Event] = []
        self.sources: dict[Any, Source] = {}
        self.caught: list[tuple[int, int]] = []  # the position, and how many events were taken by then
        self.fallen: list[str] = []
        self.refusals = 0
        self.closed: list[InterlockError | None] = []
        self.listening: Listening | None = None

    def take(self, event: Event, source: Source | None) -> bool:
        if self.room < 1:
            self.refusals += 1
            return False
        self.room -= 1
        self.events.append(event)
        if source is not None:
            self.sources[source.run_id] = source
        return True

    def caught_up(self, position: int) -> None:
        self.caught.append((position, len(self.events)))

    def fell(self, source: Source) -> None:
        self.fallen.append(source.run_id)

    def take_back(self, sees: Sees) -> None:
        pass

    def close(self, error: InterlockError | None) -> None:
        self.closed.append(error)

    @property
    def positions(self) -> list[int]:
        """Return the positions of the events."""
        return [event.position for event in self.events]

    def ended(self, run: str) -> bool:
        """Return whether the terminal event of a run was taken."""
        return any(event.run_id == run and isinstance(event.data, Ended) for event in self.events)

    async def until(self, fits: Any, what: str) -> None:
        """Wait until a condition is met, and give the sink room for one event whenever it has refused one."""
        while not fits():
            if self.room < 1 and self.listening is not None and self.listening.is_behind and self.refusals:
                self.room = 1
                self.listening.resume()
            await asyncio.sleep(0.001)
        assert fits(), what


def play(main: Any) -> None:
    """Run a test in a loop of its own, within a bound."""
    asyncio.run(asyncio.wait_for(main(), 2 * BOUND_SECONDS))


async def listen(door: Door, sink: Notes, session: str | None, **how: Any) -> Listening:
    """Begin a listening and its reading."""
    wanted = {"run": None, "after": 0, "begin": None} | how
    sink.listening = listening = await door.listen(sink, session, **wanted)
    assert listening is not None
    listening.resume()
    return listening


async def talk(house: House, text: str = "post 5", name: str = "main", by: str = ALICE) -> str:
    """Send a message and wait for its end; return its run."""
    sent = await house.control.send(f"{by}/{name}", text, by=by)
    await house.control.wait(sent.run_id, drained=True)
    return sent.run_id


async def log_of(house: House, name: str = "main") -> list[Event]:
    """Return the events of a session that the log has, without those that pass."""
    return list((await house.control.feed.log.events(f"{ALICE}/{name}", after=0, limit=10_000)).events)


def lasting(events: list[Event]) -> list[Event]:
    """Return the events that a log keeps."""
    return [event for event in events if event.kind not in (EventKind.DELTA, EventKind.TYPING, EventKind.PROGRESS)]


def test_history_then_news_the_same_over_both_doors(tmp_path: Path) -> None:
    """A sink gets what the log has, then `caught_up`, then news; the events are equal over both doors."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door("socket", ALICE) as socket:
            sinks = [Notes(), Notes()]
            for door, sink in zip((house.control.door(ALICE), socket), sinks, strict=True):
                await listen(door, sink, "alice/main")
            for sink in sinks:
                await eventually(lambda sink=sink: sink.caught, "caught_up")
            history = len(sinks[0].events)
            assert sinks[0].caught == sinks[1].caught == [(sinks[0].positions[-1], history)]
            await talk(house)
            log = await log_of(house)
            for sink in sinks:
                await eventually(lambda sink=sink: len(lasting(sink.events)) >= len(log), "the news")
                assert lasting(sink.events) == log and sink.closed == [] and len(sink.caught) == 1
                later = Notes()
                door = house.control.door(ALICE) if sink is sinks[0] else socket
                await listen(door, later, "alice/main", after=log[4].position)
                await eventually(lambda later=later: later.caught, "caught_up")
                assert later.events == log[5:]

    play(main)


@over_each_door
def test_a_sink_without_room_loses_nothing_and_gets_nothing_twice(kind: str, tmp_path: Path) -> None:
    """A sink that refuses every second event, in history and in news, is given each event once, in order."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door(kind, ALICE) as door:
            await talk(house, "post 20")
            sink = Notes(room=1)
            await listen(door, sink, "alice/main")
            sending = asyncio.ensure_future(talk(house, "post 20"))
            await sink.until(lambda: sending.done() and sink.caught, "the history")
            log = await log_of(house)
            await sink.until(lambda: len(lasting(sink.events)) >= len(log), "the rest")
            assert lasting(sink.events) == log and sink.refusals >= 20
            assert sink.positions == sorted(set(sink.positions))
            assert all(at == len([each for each in sink.positions if each <= position]) for position, at in sink.caught)

    play(main)


@over_each_door
@pytest.mark.parametrize("room", [1, 1000])
def test_a_right_that_is_taken_away_closes_with_an_error(kind: str, room: int, tmp_path: Path) -> None:
    """A sink is closed when its principal may not see the session any more, also while it has no room."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door(kind, BOB) as door:
            await house.control.share("alice/main", with_=BOB, by=ALICE)
            sink = Notes(room=room)
            await listen(door, sink, "alice/main")
            await eventually(lambda: sink.refusals or sink.caught, "the history")
            await house.control.unshare("alice/main", with_=BOB, by=ALICE)
            await eventually(lambda: sink.closed, "the end")
            assert isinstance(sink.closed[0], Unknown) and len(sink.closed) == 1
            taken = len(sink.events)
            sink.room = 1000
            assert sink.listening is not None
            sink.listening.resume()
            await talk(house)
            assert len(sink.events) == taken

    play(main)


@over_each_door
def test_what_is_not_the_callers_is_refused(kind: str, tmp_path: Path) -> None:
    """Another's session or run, and one that never was, are refused alike where the listening is asked for."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door(kind, ALICE) as door:
            for session, run in (("bob/main", None), ("never", None), (None, house.bob.done), (None, "r-7-77")):
                sink = Notes()
                with pytest.raises(Unknown):
                    await door.listen(sink, session, run=run, after=0, begin=None)
                assert sink.events == [] and sink.closed == []
            with pytest.raises(BadInput):
                await door.listen(Notes(), "main", run=house.alice.done, after=0, begin=None)

    play(main)


@over_each_door
def test_a_listening_to_a_run_ends_with_it(kind: str, tmp_path: Path) -> None:
    """A listening to a run hears that run alone, ends after its terminal event, and also ends if that is refused."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door(kind, ALICE) as door:
            other = await talk(house)
            for room in (1000, 1):
                sink = Notes(room=room)
                await listen(door, sink, None, run=house.alice.done)
                await sink.until(lambda sink=sink: sink.closed, "its end")
                assert sink.closed == [None] and isinstance(sink.events[-1].data, Ended)
                assert other not in {event.run_id for event in sink.events}
            behind = Notes()
            await listen(door, behind, None, run=house.alice.done, after=sink.positions[-1])
            await eventually(lambda: behind.closed, "its end")
            assert behind.closed == [None] and behind.events == []

    play(main)


@over_each_door
def test_a_sink_may_close_its_listening_while_it_takes(kind: str, tmp_path: Path) -> None:
    """A listening that its sink closes within `take` gives nothing more, whether or not the sink took the event."""

    async def main() -> None:
        class Closing(Notes):
            def take(self, event: Event, source: Source | None) -> bool:
                taken = super().take(event, source)
                if len(self.events) + self.refusals == 3:
                    assert self.listening is not None
                    self.listening.close()
                return taken

        async with open_house(tmp_path) as house, house.door(kind, ALICE) as door:
            await talk(house)
            for room in (1000, 2):
                sink = Closing(room=room)
                await listen(door, sink, "alice/main")
                await eventually(lambda sink=sink: sink.closed, "the end")
                sink.room = 1000
                assert sink.listening is not None
                sink.listening.resume()
                await talk(house)
                assert sink.closed == [None] and len(sink.events) == (3 if room > 3 else 2)

    play(main)


# Over a socket alone


@asynccontextmanager
async def over_a_road(house: House, **how: Any) -> Any:
    """Open a client over a road that can be cut."""
    port = int(house.served.url.rpartition(":")[2])
    async with Road(port) as road, connect(road.url, house.tokens[ALICE], **how) as client:
        yield road, client._socket


@pytest.mark.parametrize("room", [1, 3, 1000])
def test_cuts_lose_nothing_and_repeat_nothing(room: int, tmp_path: Path) -> None:
    """However often the connection is cut, also while an event is refused, each event is given once, in order."""

    async def main() -> None:
        async with open_house(tmp_path) as house, over_a_road(house) as (road, door):
            sink = Notes(room=room)
            await listen(door, sink, "alice/main")
            for _ in range(4):
                before = len(sink.events) + sink.refusals
                sending = asyncio.ensure_future(talk(house))
                await eventually(lambda before=before: len(sink.events) + sink.refusals > before, "an event")
                road.cut()
                await sending
                sink.room = room
                assert sink.listening is not None
                sink.listening.resume()
            log = await log_of(house)
            await sink.until(lambda: len(lasting(sink.events)) >= len(log), "everything")
            assert lasting(sink.events) == log
            assert sink.positions == sorted(set(sink.positions))

    play(main)


def test_a_sink_without_room_hears_the_fall(tmp_path: Path) -> None:
    """A run that is cut while the sink has no room is told as fallen, and its refused delta is never given."""

    async def main() -> None:
        async with open_house(tmp_path) as house, house.door("socket", ALICE) as door:
            sink = Notes()
            await listen(door, sink, "alice/busy")
            await eventually(lambda: sink.caught, "caught_up")
            assert door.is_current(house.alice.hangs)
            sent = await house.control.send("alice/busy", "talk 3", by=ALICE)
            run = sent.run_id
            await eventually(lambda: sink.events[-1].kind == EventKind.STARTED, "its start")
            sink.room = 1
            house.go_on.set()
            await eventually(lambda: sink.refusals, "a refusal")
            assert isinstance(sink.events[-1].data, Delta)
            assert door.is_current(run) and not is_over(sink.events[-1], sink.sources[run])
            await house.control.stop(run=run, by=ALICE)
            await eventually(lambda: run in sink.fallen, "the fall")
            assert not door.is_current(run) and is_over(sink.events[-1], sink.sources[run])
            deltas = sum(event.kind == EventKind.DELTA for event in sink.events)
            sink.room = 1000
            assert sink.listening is not None
            sink.listening.resume()
            await eventually(lambda: sink.ended(run), "the end")
            assert sum(event.kind == EventKind.DELTA for event in sink.events) == deltas

    play(main)


def test_current_after_a_drop(tmp_path: Path) -> None:
    """A run is not current without a connection; it is again once it is heard of, and never if it fell meanwhile."""

    async def main() -> None:
        async with open_house(tmp_path) as house, over_a_road(house) as (road, door):
            sink, other = Notes(), Notes()
            await listen(door, sink, "alice/busy")
            await eventually(lambda: sink.caught, "caught_up")
            run = (await house.control.send("alice/busy", "talk 3", by=ALICE)).run_id
            await eventually(lambda: door.is_current(run), "its start")
            await listen(door, other, "alice/busy")
            assert door.is_current(run), "another listening that begins does not hide it"
            await eventually(lambda: other.caught, "caught_up")
            assert door.is_current(run)
            road.cut()
            await eventually(lambda: not door.is_current(run), "the drop")
            await eventually(lambda: len(sink.caught) == len(other.caught) == 2, "the next connection")
            house.go_on.set()
            await eventually(lambda: door.is_current(run), "news of it")
            source, delta = sink.sources[run], next(event for event in sink.events if event.kind == EventKind.DELTA)
            road.close()
            await eventually(lambda: not door.is_current(run), "the drop")
            house.control.ask(Stop(run=run), by=ALICE)
            assert (await house.control.wait(run)).ending is Ending.STOPPED
            assert not is_over(delta, source), "nobody has said so here"

    play(main)


def test_a_cut_that_came_meanwhile_ends_what_waits(tmp_path: Path) -> None:
    """Deltas that wait in a sink are over once the next connection tells that their run was cut."""

    async def main() -> None:
        async with open_house(tmp_path) as house, over_a_road(house) as (road, door):
            sink = Notes()
            await listen(door, sink, "alice/busy")
            await eventually(lambda: any(event.kind == EventKind.DELTA for event in sink.events), "a delta")
            delta = next(event for event in sink.events if event.kind == EventKind.DELTA)
            road.lost_down = True
            await house.control.stop(run=house.alice.hangs, by=ALICE)
            road.cut()
            await eventually(lambda: sink.ended(house.alice.hangs), "the end")
            assert is_over(delta, sink.sources[house.alice.hangs]) and not door.is_current(house.alice.hangs)

    play(main)


def test_patience_ends_a_listening(tmp_path: Path) -> None:
    """A listening without a connection is closed as Unavailable after the client's patience, once."""

    async def main() -> None:
        async with open_house(tmp_path) as house, over_a_road(house, patience=0.2) as (road, door):
            sink = Notes()
            await listen(door, sink, "alice/main")
            await eventually(lambda: sink.caught, "caught_up")
            road.close()
            await eventually(lambda: sink.closed, "the end")
            assert isinstance(sink.closed[0], Unavailable) and len(sink.closed) == 1

    play(main)


def test_more_listenings_than_the_gateway_takes_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listenings whose requests a busy gateway refuses ask again; none is closed."""
    monkeypatch.setattr("interlock.surfaces.gateway.connection.REQUESTS", 2)

    async def main() -> None:
        async with open_house(tmp_path) as house, over_a_road(house) as (road, door):
            sinks = [Notes() for _ in range(12)]
            for sink in sinks:
                assert isinstance(await listen(door, sink, "alice/main"), RemoteListening)
            for times in (1, 2):
                await eventually(lambda times=times: all(len(sink.caught) == times for sink in sinks), "caught_up")
                road.cut()
            assert [sink.closed for sink in sinks] == [[]] * 12
            assert all(lasting(sink.events) == lasting(sinks[0].events) for sink in sinks)

    play(main)
