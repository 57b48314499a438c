"""A session's founder is the sender of its first admitted message; a refused or born-stopped one founds nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from interlock import Control, Event, MemoryStore, Unavailable, Unknown, open_control

from .scene import answers, forgotten, seeded


async def so_far(control: Control, session: str, by: str) -> AsyncIterator[Event]:
    """Yield the events that a watcher gets of a session up to now."""
    async with contextlib.aclosing(control.watch(session, by=by)) as events:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                async for event in events:
                    yield event


def test_a_refused_first_message_founds_nothing() -> None:
    """The sender of a first message that was refused owns nothing, though another's ending is stored meanwhile."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.6)  # longer than a commit may take
        async with open_control(answers, store=store) as control:
            refused = asyncio.create_task(control.send("s", "one", by="alice"))
            await asyncio.sleep(0.02)
            stopped = asyncio.create_task(control.send("s", "two", by="bob", key="k"))
            await asyncio.sleep(0.05)
            assert (await control.stop(message="k", by="bob")).aborted
            with pytest.raises(Unavailable):
                await refused
            await stopped
            store.latency_seconds = 0.0
            await forgotten(control)
            assert await store.session("s") is None
            await control.wait((await control.send("s", "three", by="carol")).run_id, by="carol")
            with pytest.raises(Unknown):
                await control.history("s", by="alice")
            row = await store.session("s")
            assert row is not None and row.owner == "carol"

    seeded(main, jump=0.0)


def test_a_message_that_founded_nothing_leaves_no_text() -> None:
    """The founder of a session cannot read a message that another sender tried to put there before."""

    async def main() -> None:
        async with open_control(answers, store=MemoryStore()) as control:
            await control.stop(message="k", by="bob")
            sent = await control.send("s", "bob's secret", by="bob", key="k")
            await control.wait(sent.run_id, by="bob", drained=True)
            await forgotten(control)
            first = await control.send("s", "hi", by="carol")
            await control.wait(first.run_id, by="carol")
            assert [entry.text for entry in await control.history("s", by="carol")] == ["", "", "hi", "done"]
            assert "secret" not in repr([event async for event in so_far(control, "s", "carol")])

    seeded(main)
