"""A message to somebody else's session leaves no trace in it, whatever stops it before it is refused."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, MemoryStore, Unknown, open_control
from interlock.core.names import SessionId

from .scene import echoes, seeded

Stop = Callable[[Control, str], Awaitable[Any]]

STOPS: dict[str, Stop] = {
    "by its key": lambda control, session: control.stop(message="k", by="bob"),
    "by its session": lambda control, session: control.stop(session=session, by="bob"),
    "by an admin": lambda control, session: control.stop(session=session, by="ada"),
    "by the owner": lambda control, session: control.stop(session=session, by="alice"),
    "with a key of its own": lambda control, session: control.stop(session=session, key="s", by="bob"),
    "by a reset": lambda control, session: control.reset(session, by="alice"),
}


@pytest.mark.parametrize("session", ["alice/main", "alice/never"])
@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("present", [False, True])
def test_a_stranger_s_message_that_is_stopped_while_it_arrives(name: str, session: str, present: bool) -> None:
    """A stranger's message is refused as if the session did not exist, and the owner's transcript has nothing of it."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store, admins=["ada"]) as control:
            await control.wait((await control.send("alice/main", "hello", by="alice")).run_id, drained=True)
            await control.wait((await control.send("alice/main", "again", by="alice")).run_id, drained=True)
            await anyio.sleep(5)
            assert control._registry.sessions == {}
            # Something of the session is alive, so control knows its rights.
            if present:
                await control.share("alice/main", with_="eve", by="alice")
                keep = control._registry.pinned(SessionId("alice/main"))
                keep.__enter__()
                await control.set_strategy("alice/main", "queue", by="alice")
            sending = asyncio.create_task(control.send(session, "injected", by="bob", key="k"))
            stopping = asyncio.ensure_future(STOPS[name](control, session))
            results = await asyncio.gather(sending, stopping, return_exceptions=True)
            assert isinstance(results[0], Unknown), results[0]
            assert not getattr(results[1], "aborted", False)
            await anyio.sleep(5)
            said = [entry.text for entry in await control.history("alice/main", by="alice")]
            assert "injected" not in said
            assert {run.principal for run in await control.runs("alice/main", by="alice")} == {"alice"}
            with pytest.raises(Unknown):
                await control.runs(session, by="bob")
            assert await control.runs(latest=10, by="bob") == []

    seeded(main)


def test_a_guest_s_arrival_can_be_stopped_at_once() -> None:
    """A guest of a shared session can stop their own message before control has decided on it."""

    async def main() -> None:
        async with open_control(echoes) as control:
            await control.wait((await control.send("alice/main", "hello", by="alice")).run_id, drained=True)
            await control.share("alice/main", with_="bob", by="alice")
            await anyio.sleep(5)
            sending = asyncio.create_task(control.send("alice/main", "mine", by="bob", key="k"))
            stopping = asyncio.create_task(control.stop(message="k", by="bob"))
            sent, receipt = await asyncio.gather(sending, stopping)
            outcome = await control.wait(sent.run_id, by="bob")
            assert (outcome.ending, outcome.started_at) == (Ending.STOPPED, None)
            assert receipt.aborted or sent.born_stopped

    seeded(main)


def test_a_stop_whose_caller_leaves_while_it_reads_counts() -> None:
    """Control finishes a stop whose caller leaves while control still reads about the arrival."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(echoes, store=store) as control:
            await control.wait((await control.send("alice/main", "hello", by="alice")).run_id, drained=True)
            await control.share("alice/main", with_="bob", by="alice")
            await anyio.sleep(5)
            sending = asyncio.create_task(control.send("alice/main", "mine", by="bob", key="k"))
            while not await control.runs(by="bob"):
                await asyncio.sleep(0)
            begun = asyncio.Event()

            async def stop() -> None:
                begun.set()
                await control.stop(session="alice/main", by="bob")

            stopping = asyncio.create_task(stop())
            # Wait until the stop has been called, so that the cancel below cannot come first.
            await begun.wait()
            await asyncio.sleep(0.01)
            stopping.cancel()
            sent = await sending
            outcome = await control.wait(sent.run_id, by="bob")
            assert (outcome.ending, outcome.started_at) == (Ending.STOPPED, None)

    seeded(main)
