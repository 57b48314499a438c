"""Closing a control: running agents end as shutdown, waiting messages stay stored, and every caller is released."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, Event, MemoryStore, Message, Run, Unavailable, open_control
from interlock.core.lifecycle import State
from interlock.core.names import EventKind

from .scene import QUICK, answered, deaf, echoes, idles, kinds, mumbles, seeded, started, told


def test_what_runs_ends_as_shutdown() -> None:
    """Closing ends running agents as `shutdown`, durable and drained, with their partial text."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(mumbles, store=store) as control:
            sent = [await control.send(f"s{n}", "hello") for n in range(3)]
            for each in sent:
                await told(control, each.run_id, EventKind.DELTA)
        for each in sent:
            row = await store.run(each.run_id)
            assert row is not None and row.outcome is not None
            assert (row.outcome.ending, row.outcome.text, row.outcome.by) == (Ending.SHUTDOWN, "about hello", None)
            receipt = await store.receipt(each.run_id)
            assert receipt is not None and (receipt.drain, receipt.cause) == ("observed", Ending.SHUTDOWN)
            assert (await control.wait(each.run_id)).ending is Ending.SHUTDOWN
            events = (await store.events(each.session, after=0, limit=100)).events
            assert kinds(events, each.run_id)[-1] == "ended"

    seeded(main)


def test_the_queue_is_kept() -> None:
    """Messages that wait for the seat stay in the store without an ending, and none begins while control closes."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)
        await anyio.sleep_forever()

    async def main() -> None:
        began.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, strategy="queue") as control:
            sent = [await control.send("s", text) for text in "abc"]
            await started(control, sent[0].run_id)
        first, *rest = await store.runs("s")
        assert first.outcome is not None and first.outcome.ending is Ending.SHUTDOWN
        assert [(row.text, row.outcome, row.started) for row in rest] == [("b", None, False), ("c", None, False)]
        assert began == ["a"]

    seeded(main)


def test_waiters_are_released() -> None:
    """Waiters of a running run are told shutdown, those of a waiting message `pending`, and none is left waiting."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            first, second = await control.send("s", "a"), await control.send("s", "b")
            await started(control, first.run_id)
            waiting = [
                asyncio.create_task(control.wait(run, drained=drained))
                for run in (first.run_id, second.run_id)
                for drained in (False, True)
            ]
            await anyio.sleep(1)
        outcomes = [(await task).ending for task in waiting]
        assert outcomes == [Ending.SHUTDOWN, Ending.SHUTDOWN, Ending.PENDING, Ending.PENDING]

    seeded(main)


def test_watchers_end() -> None:
    """Every watcher sees the last events and then the end of its stream."""

    async def main() -> None:
        seen: list[list[Event]] = [[], [], []]

        async def watch(control: Control, number: int, **what: str) -> None:
            async for event in control.watch(**what):
                seen[number].append(event)

        async with open_control(idles, strategy="queue") as control:
            first, second = await control.send("s", "a"), await control.send("s", "b")
            watching = [
                asyncio.create_task(watch(control, 0, session="s")),
                asyncio.create_task(watch(control, 1, run=first.run_id)),
                asyncio.create_task(watch(control, 2, run=second.run_id)),
            ]
            await started(control, first.run_id)
        for task in watching:
            await task
        assert kinds(seen[0], first.run_id)[-1] == "ended" and "receipt" in kinds(seen[0])
        assert kinds(seen[1])[-1] == "ended"
        assert kinds(seen[2]) == ["message"]

    seeded(main)


def test_a_watch_after_the_close_ends() -> None:
    """A watcher that comes after the close gets the stored events, and its stream ends."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id, drained=True)
        events: list[Event] = []
        finished = False
        with anyio.move_on_after(20):
            async for event in control.watch("s"):
                events.append(event)
            finished = True
        assert kinds(events, sent.run_id) == ["message", "started", "block", "ended"]
        assert finished

    seeded(main, range(2))


def test_a_closed_control_takes_nothing() -> None:
    """A message to a control that closes or has closed is refused with a retryable error."""

    async def main() -> None:
        async with open_control(deaf) as control:
            await started(control, (await control.send("s", "hello")).run_id)
            closing = asyncio.create_task(control.close())
            await anyio.sleep(0.1)
            assert not closing.done()
            with pytest.raises(
                Unavailable, match="this control is closing; nothing was kept, send the message again after the restart"
            ):
                await control.send("s", "late")
            await closing
        with pytest.raises(Unavailable, match="closing"):
            await control.send("s", "later")
        await control.close()

    seeded(main)


def test_an_arrival_while_closing() -> None:
    """A message that is undecided when the close begins is refused, and its sender is not left waiting."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello"))
            while not await control.runs():
                await asyncio.sleep(0)
            closing = asyncio.create_task(control.close())
            await anyio.sleep(0.1)
            store.resume()
            with pytest.raises(Unavailable):
                await sending
            await closing
        assert await store.runs("s") == ()

    seeded(main)


def test_a_cancelled_block_closes_all_the_same() -> None:
    """An embedder whose block is cancelled still ends its runs as shutdown, in bounded time (race 40)."""

    async def main() -> None:
        store = MemoryStore()
        sent = []

        async def embedder() -> None:
            async with open_control(mumbles, store=store) as control:
                sent.append(await control.send("s", "hello"))
                await anyio.sleep_forever()

        task = asyncio.create_task(embedder())
        while not sent:
            await anyio.sleep(0.01)
        await anyio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        row = await store.run(sent[0].run_id)
        assert row is not None and row.outcome is not None and row.outcome.ending is Ending.SHUTDOWN

    seeded(main)


def test_an_error_in_the_block_closes_all_the_same() -> None:
    """An error that leaves the block is the embedder's own and comes out unchanged, after the close."""

    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(ZeroDivisionError):
            async with open_control(idles, store=store) as control:
                sent = await control.send("s", "hello")
                await started(control, sent.run_id)
                raise ZeroDivisionError
        row = await store.run(sent.run_id)
        assert row is not None and row.outcome is not None and row.outcome.ending is Ending.SHUTDOWN

    seeded(main, range(3))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_closing_over_a_store_that_is_down(fault: str) -> None:
    """A store that does not answer delays the close by its bounds and no longer; waiters still get the endings."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(deaf, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            setattr(store.faults, fault, True)
            before = asyncio.get_running_loop().time()
        bounds = control.settings
        longest = 2 * bounds.commit_seconds + bounds.grace_seconds + bounds.drain_seconds + 2 + 0.5
        assert asyncio.get_running_loop().time() - before <= longest
        assert (await control.wait(sent.run_id)).ending is Ending.SHUTDOWN
        store.resume()

    seeded(main)


def test_a_stop_while_closing_is_answered() -> None:
    """A stop that comes while control closes is not refused, and returns the ending it found."""

    async def main() -> None:
        async with open_control(deaf) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            closing = asyncio.create_task(control.close())
            await anyio.sleep(0.1)
            receipt = await control.stop(run=sent.run_id)
            assert (receipt.aborted, receipt.already) == (False, Ending.SHUTDOWN)
            assert not (await control.stop(session="s")).aborted
            assert not (await control.stop(message="k")).aborted
            await closing

    seeded(main)


def test_nothing_is_left_of_an_idle_control() -> None:
    """Opening and closing without a message leaves no task, and the store is opened once."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store):
            pass
        assert await store.open() == 2

    seeded(main, range(2))


def test_the_next_control_is_told_of_the_shutdown() -> None:
    """The session's next turn, under the next control, is told that the last one was cut by a shutdown."""
    previous: list[object] = []

    async def agent(run: Run, message: Message) -> None:
        previous.append(None if message.previous is None else message.previous.ending)
        if message.text == "long":
            await anyio.sleep_forever()

    async def main() -> None:
        previous.clear()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            await started(control, (await control.send("s", "long")).run_id)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "short")
            await control.wait(sent.run_id)
        assert previous == [None, Ending.SHUTDOWN]

    seeded(main, range(3))


@contextlib.asynccontextmanager
async def open_until_closed(store: MemoryStore) -> AsyncIterator[Control]:
    """Open a control that the test itself closes while it goes on asking."""
    async with open_control(idles, store=store, settings=QUICK) as control:
        yield control


def test_a_stop_while_an_arrival_is_turned_away() -> None:
    """A stop is answered, and nobody hangs, though a message that the close withdrew is still among the arrivals."""

    async def main() -> None:
        store = MemoryStore()
        async with open_until_closed(store) as control:
            await control.send("s", "one", by="alice")
            queued = await control.send("s", "two", by="alice", strategy="queue")
            await asyncio.sleep(0.1)
            # Stall the store, so that the next message is still reading its key when the close begins.
            store.faults.stall = True
            turned_away = asyncio.create_task(control.send("s", "three", by="alice", key="k"))
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(control.close())
            [arriving] = control._registry.sessions["s"].arrivals or ()
            while arriving.state is not State.WITHDRAWN:
                await asyncio.sleep(0.001)
            assert list(control._registry.sessions["s"].arrivals or ()) == [arriving]
            assert (await control.stop(session="s", by="alice")).session == "s"
            await answered(
                asyncio.create_task(control.stop(run=queued.run_id, by="alice")),
                asyncio.create_task(control.wait(queued.run_id, drained=True, by="alice")),
                closing,
            )
            with pytest.raises(Unavailable):
                await turned_away

    seeded(main, jump=0.0)


@pytest.mark.parametrize("fault", ["fail", "stall"])
@pytest.mark.parametrize("verb", ["session", "run", "reset"])
def test_no_call_hangs_around_the_end_of_a_close(fault: str, verb: str) -> None:
    """No run falls after a close has cut the bodies, so a call that waits for a fall is answered by then."""

    async def main(early: bool) -> None:
        store = MemoryStore()
        async with open_until_closed(store) as control:
            await control.send("s", "one", by="alice")
            queued = await control.send("s", "two", by="alice", strategy="queue")
            await asyncio.sleep(0.1)
            setattr(store.faults, fault, True)
            call = {
                "session": lambda: control.stop(session="s", by="alice"),
                "run": lambda: control.stop(run=queued.run_id, by="alice"),
                "reset": lambda: control.reset("s", by="alice"),
            }[verb]
            calls: list[asyncio.Task[Any]] = []
            cut = control._crew.cut

            def cut_and_call() -> None:
                cut()
                calls.append(asyncio.create_task(call()))

            control._crew.cut = cut_and_call  # type: ignore[method-assign]
            closing = asyncio.create_task(control.close())
            while not closing.done():
                await asyncio.sleep(0.02)
                if early or calls:
                    calls.append(asyncio.create_task(call()))
            await answered(*calls)
            await asyncio.gather(*calls, return_exceptions=True)

    for early in (False, True):
        seeded(partial(main, early), range(3))


def test_a_stop_and_a_reset_after_the_close() -> None:
    """A closed control ends nothing: a stop says so, and a reset is refused at once."""

    async def main() -> None:
        async with open_until_closed(MemoryStore()) as control:
            await control.send("s", "one", by="alice")
            await control.send("s", "two", by="alice", strategy="queue")
            await control.close()
            assert not (await control.stop(session="s", by="alice")).aborted
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(control.reset("s", by="alice"), 20)

    seeded(main)
