"""A stop delivered twice: its own key gives the first receipt again and ends nothing newer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Ending, KeyConflict, MemoryStore, Settings, Unknown, open_control
from interlock.core.lifecycle import State

from .scene import at_once, echoes, idles, seeded, started

FAULTS = ("fail", "stall", "lose")
STOPS: dict[str, Any] = {
    "session": lambda control, run, key: control.stop(session="s", by="alice", key=key),
    "run": lambda control, run, key: control.stop(run=run, by="alice", key=key),
    "message": lambda control, run, key: control.stop(message="k", by="alice", key=key),
    "reset": lambda control, run, key: control.reset("s", by="alice", key=key),
}


async def running(control: Control, text: str = "go", **options: Any) -> str:
    """Send a message and wait until its agent begins."""
    sent = await control.send("s", text, by="alice", **options)
    await started(control, sent.run_id)
    return sent.run_id


async def lives(control: Control, run: str) -> bool:
    """Return whether a run has not ended."""
    return (await control.wait(run, timeout=0)).ending is Ending.PENDING


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_delivered_twice_ends_nothing_newer(stop: str) -> None:
    """Stop, a new message, the same stop again: the same receipt, and the new run goes on (race 129)."""

    async def main() -> None:
        async with open_control(idles) as control:
            old = await running(control, key="k")
            first = await STOPS[stop](control, old, "x")
            assert (first.aborted, first.again, [run.id for run in first.runs]) == (True, False, [old])
            new = await running(control)
            again = await STOPS[stop](control, old, "x")
            assert (again.id, again.aborted, again.again) == (first.id, True, True)
            assert [run.id for run in again.runs] == [old]
            assert await lives(control, new)
            if stop == "session":
                assert [run.id for run in (await STOPS[stop](control, old, "y")).runs] == [new]

    seeded(main)


def test_a_stop_delivered_twice_at_once_is_one() -> None:
    """A second delivery joins the first before that has an answer, also with a message between them."""

    async def main() -> None:
        async with open_control(idles) as control:
            old = await running(control)
            first, sent, second = await at_once(
                control.stop(session="s", by="alice", key="x"),
                control.send("s", "next", by="alice"),
                control.stop(session="s", by="alice", key="x"),
            )
            assert first.id == second.id and [run.id for run in second.runs] == [old]
            assert (first.again, second.again) == (False, True)
            await started(control, sent.run_id)
            assert await lives(control, sent.run_id)

    seeded(main, range(20))


@pytest.mark.parametrize("known", [False, True])
def test_a_stop_that_found_nothing_finds_nothing_again(known: bool) -> None:
    """A stop that found nothing is answered the same when something runs, whether or not the session was known."""

    async def main() -> None:
        async with open_control(echoes) as control:
            if known:
                await control.wait((await control.send("s", "before", by="alice")).run_id, drained=True)
                await asyncio.sleep(5)  # the session has left memory
            first = await control.stop(session="s", by="alice", key="x")
            assert (first.aborted, first.id) == (False, None)
        async with open_control(idles) as control:
            first = await control.stop(session="s", by="alice", key="x")
            new = await running(control)
            again = await control.stop(session="s", by="alice", key="x")
            assert (again.aborted, again.id, again.runs, again.already) == (False, None, (), first.already)
            assert again.again and await lives(control, new)

    seeded(main)


def test_a_reset_that_found_no_session_begins_none_anew() -> None:
    """A reset that was refused is refused again under its key, though there is a session by then."""

    async def main() -> None:
        async with open_control(idles) as control:
            for _ in range(2):
                with pytest.raises(Unknown):
                    await control.reset("s", by="alice", key="x")
                await running(control, "hello", key="k")
            assert [entry.text for entry in await control.history("s")] == ["hello"]

    seeded(main)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stop", ["session", "run", "message"])
def test_a_stop_by_its_key_waits_for_no_store(stop: str, fault: str) -> None:
    """The fence falls, and the key is used, in the step of the call, whatever the store does."""

    async def main() -> None:
        store, settings = MemoryStore(), Settings(commit_seconds=0.3, retry_seconds=0.1)
        loop = asyncio.get_running_loop()
        async with open_control(idles, store=store, settings=settings) as control:
            old = await running(control, key="k")
            live = control._registry.runs[old]
            setattr(store.faults, fault, True)
            began = loop.time()
            stopping = asyncio.ensure_future(STOPS[stop](control, old, "x"))
            await asyncio.sleep(0)
            while not live.fallen:
                assert loop.time() - began < 0.01
                await asyncio.sleep(0)
            assert [run.id for run in (await stopping).runs] == [old]
            again = await STOPS[stop](control, old, "x")
            assert loop.time() - began < 0.7 and not again.durable and again.again
            store.resume()
            await asyncio.sleep(2)
            assert (await STOPS[stop](control, old, "x")).durable

    seeded(main, range(4))


def test_a_stop_by_its_key_goes_on_without_its_caller() -> None:
    """A caller that leaves before the answer has used the key: delivered again, it ends nothing newer."""

    async def main() -> None:
        for known in (True, False):
            async with open_control(idles, store=MemoryStore(latency_seconds=0.05)) as control:
                old = await running(control) if known else None
                leaving = asyncio.ensure_future(control.stop(session="s", by="alice", key="x"))
                await asyncio.sleep(0.001)
                leaving.cancel()
                new = await running(control, strategy="queue")
                again = await control.stop(session="s", by="alice", key="x")
                assert [run.id for run in again.runs] == ([old] if known else [])
                assert again.again and await lives(control, new)

    seeded(main)


def test_a_key_is_for_one_stop() -> None:
    """A key used for another target, or for a message, is refused; the same key of somebody else is another key."""

    async def main() -> None:
        async with open_control(idles) as control:
            old = await running(control)
            await control.stop(session="s", by="alice", key="x", order=("chat", 1))
            for other in (
                control.stop(session="t", by="alice", key="x"),
                control.stop(session="s", by="alice", key="x"),
                control.stop(run=old, by="alice", key="x"),
                control.reset("s", by="alice", key="x"),
                control.send("s", "hello", by="alice", key="x"),
            ):
                with pytest.raises(KeyConflict, match="key 'x' was used for"):
                    await other
            assert not (await control.stop(session="s", by="bob", key="x")).again
            with pytest.raises(KeyConflict):
                await control.send("t", "hello", by="bob", key="x")
            assert (await control.send("t", "hello", by="carol", key="x")).state is not State.ENDED

    seeded(main)


def test_a_stop_is_not_refused_for_a_key_that_a_message_has() -> None:
    """A stop under a key that a message has is carried out, and the message keeps its answer."""

    async def main() -> None:
        async with open_control(idles) as control:
            old = await running(control, key="k")
            assert (await control.stop(session="s", by="alice", key="k")).aborted
            assert (await control.send("s", "go", by="alice", key="k")).run_id == old

    seeded(main)


def test_keys_of_stops_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal that stops often pushes only its own oldest keys out of memory."""
    monkeypatch.setattr("interlock.runtime.registry.STOPS", 3)

    async def main() -> None:
        async with open_control(idles) as control:
            await control.stop(session="s", by="bob", key="k0")
            for n in range(5):
                await control.stop(session="s", by="alice", key=f"k{n}")
            assert (await control.stop(session="s", by="bob", key="k0")).again
            assert [(await control.stop(session="s", by="alice", key=f"k{n}")).again for n in (4, 3, 2)] == [True] * 3
            assert not (await control.stop(session="s", by="alice", key="k0")).again

    seeded(main)


@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_delivered_again_after_a_restart(stop: str, tmp_path: Path) -> None:
    """The key is in the store with what it ended: the next start gives the same receipt and ends nothing newer.

    (race 130)
    """

    async def main() -> None:
        store = f"sqlite:///{tmp_path / stop}"
        async with open_control(idles, store=store) as control:
            old = await running(control, key="k")
            first = await STOPS[stop](control, old, "x")
            nothing = await control.stop(session="elsewhere", by="alice", key="z")
            await control.wait(old, drained=True)
        async with open_control(idles, store=store) as control:
            new = await running(control)
            again = await STOPS[stop](control, old, "x")
            assert (again.id, again.aborted, again.again) == (first.id, True, True)
            assert [(run.id, run.outcome.ending) for run in again.runs] == [(old, Ending.STOPPED)]
            assert again.drained_at is not None
            same = await control.stop(session="elsewhere", by="alice", key="z")
            assert (same.id, same.again, same.fenced_at) == (None, True, nothing.fenced_at)
            with pytest.raises(KeyConflict):
                await control.send("s", "hello", by="alice", key="x")
            assert await lives(control, new)

    asyncio.run(asyncio.wait_for(main(), 60))
