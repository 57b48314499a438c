"""What a client elsewhere knows of a run: current until the gateway says that it fell, ahead of everything else."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

from interlock import Event, MemoryStore, Message, Run, Settings
from interlock.client import connect
from interlock.client.connection import Connection
from interlock.client.listening import RemoteListening
from interlock.client.socket import SocketDoor
from interlock.client.watch import Watch
from interlock.core.events import Delta, Ended
from interlock.core.names import Ending, EventKind, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.core.verbs import Stop
from interlock.protocol.frames import Fell, Watched

from .transport import Serving, eventually, in_loop

R = RunId("r-1-1")
ASKED = {"session": "s", "run": None, "begin": None}


async def words(run: Run, message: Message) -> str | None:
    """Say twenty words; then wait, or return."""
    for number in range(20):
        await run.say(f"{number} ")
        await asyncio.sleep(0.001)
    if message.text == "wait":
        await asyncio.sleep(600)
    return None


async def until(events: Any, kind: EventKind) -> Event:
    """Read up to an event of a kind."""
    async for event in events:
        if event.kind is kind:
            return event
    raise AssertionError(f"no {kind}")


def test_a_fall_is_told_ahead_of_its_terminal_event(tmp_path: Path) -> None:
    """A client's run and its events stop being current while the store still keeps the ending back (race 144)."""
    store = MemoryStore()

    async def main(served: Serving) -> None:
        async with connect(served.url, served.token) as client:
            sent = await client.send("s", "wait")
            assert not client.is_current(sent.run_id), "it is not watched"
            async with aclosing(client.watch("s")) as events:
                event = await until(events, EventKind.DELTA)
                await eventually(lambda: client.is_current(sent.run_id), "the end of the replay")
                assert event.current
                store.faults.stall = True
                stop = served.control.ask(Stop(run=sent.run_id))
                await eventually(lambda: not client.is_current(sent.run_id), "the news of the fall")
                assert not event.current
                assert (await served.control.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
                store.resume()
                assert (await stop).aborted
                ended = await until(events, EventKind.ENDED)
                assert not ended.current and not client.is_current(sent.run_id)

    # Without a bound on the commit: a machine that stands still for its seconds would let the ending be told.
    in_loop(main, tmp_path, words, store=store, settings=Settings(commit_seconds=600.0))


def test_a_delta_that_waits_in_the_client_is_not_read_after_the_fall(tmp_path: Path) -> None:
    """Deltas in a client's queue are not yielded once it heard of a cut; those of a completed run are (race 144)."""
    heard = asyncio.Event()

    async def waits(run: Run, message: Message) -> str | None:
        await run.say("first ")
        await heard.wait()
        return await words(run, message)

    async def main(served: Serving) -> None:
        async with connect(served.url, served.token) as client:
            for text, cut in (("wait", True), ("return", False)):
                heard.clear()
                sent = await client.send("s", text)
                async with aclosing(client.watch(run=sent.run_id)) as events:
                    first = await until(events, EventKind.DELTA)
                    await eventually(lambda sent=sent: client.is_current(sent.run_id), "the end of the replay")
                    heard.set()
                    listening = next(iter(client._socket.connection._link._listenings.values()))
                    if cut:
                        await eventually(lambda watch=listening._sink: len(watch._events) > 1, "deltas that wait")
                        await served.control.stop(run=sent.run_id)
                    await eventually(lambda sent=sent: not client.is_current(sent.run_id), "the news of the fall")
                    rest = [event async for event in events]
                    said = [event.data.text for event in (first, *rest) if isinstance(event.data, Delta)]
                    assert isinstance(rest[-1].data, Ended)
                    if cut:
                        assert said == [first.data.text]
                    else:
                        assert "".join(said).split() == ["first", *(str(number) for number in range(20))]

    in_loop(main, tmp_path, waits)


def told(data: Any, position: int, *, replay: bool) -> Watched:
    """Return an event of a watch."""
    event = Event(position=position, at=0.0, session=SessionId("s"), run_id=R, generation=1, data=data)
    return Watched(watch=1, replay=replay, event=event)


def test_a_run_of_the_past_is_not_current_while_it_is_replayed() -> None:
    """A run that fell before the watch is never current; one that goes on is once the replay is over (race 144)."""
    ended = Ended(outcome=Outcome(run_id=R, ending=Ending.STOPPED))

    async def main() -> None:
        for over in (True, False):
            watch = Watch()
            feed = RemoteListening(
                SocketDoor(Connection("http://127.0.0.1:1", "t", data=None, patience=1)), watch, ASKED, 0
            )
            feed.put(told(Delta(text="old"), 1, replay=True))
            assert not feed.sources, "the reading has not begun"
            feed._give_early()
            source = feed.sources[R]
            assert source.cause is not None
            if over:
                feed.put(told(ended, 2, replay=True))
            feed.put(Watched(watch=1, caught_up=2))
            assert (source.cause is None) is not over
            read = await watch.next()
            assert read is not None and read.current is not over
            feed.put(Watched(watch=1, fell=Fell(run_id=R, early=True)))
            assert source.cause is not None

    asyncio.run(main())
