"""A client sends a message again under its key, for a while, if a stalled store did not store it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from client.scene import play
from interlock import Ending, MemoryStore, Message, Run, Settings, Unavailable, asgi, open_control
from interlock.client import Client, connect
from interlock.core.answers import Figures
from interlock.core.decision import Decision
from interlock.core.projection import client_words
from interlock.stores.base import Ticket
from interlock.surfaces.listener import listen, url_of
from interlock.surfaces.server import serve

SETTINGS = Settings(commit_seconds=0.2, retry_seconds=0.1)


class Stalling(MemoryStore):
    """A store that stalls from its next decision on, but not for the reads before it."""

    armed = False

    def decide(self, decision: Decision) -> Ticket:
        self.faults.stall = self.faults.stall or self.armed
        self.armed = False
        return super().decide(decision)


async def agent(run: Run, message: Message) -> str:
    """Wait for ever, or reply."""
    if message.text == "wait":
        await anyio.sleep_forever()
    return f"heard {message.text}"


@asynccontextmanager
async def served(data: Path, store: MemoryStore, *, patience: float = 30.0) -> AsyncIterator[tuple[Client, object]]:
    """Serve on a store that can be made to stall; yield a client over a real socket."""
    async with open_control(agent, store=store, settings=SETTINGS) as control:
        gateway = asgi(control, data=data)
        listener, over = listen("127.0.0.1", 0), asyncio.Event()
        serving = asyncio.create_task(serve(gateway, listener, lambda: None, over))
        try:
            token = gateway.access.token.read_text().strip()
            async with connect(url_of(listener), token, patience=patience) as client:
                yield client, gateway
        finally:
            store.resume()
            over.set()
            await serving


async def refused_once(client: Client, run: str) -> None:
    """Wait until the taken-over run was told as ended: by then the message was refused for the first time."""
    assert (await client.wait(run)).ending is Ending.SUPERSEDED


def test_a_message_gets_in_once_the_store_breathes(tmp_path: Path) -> None:
    """The superseded run says that its successor was not stored, metrics count it, and the message runs (race 134)."""

    async def main() -> None:
        store = Stalling()
        async with served(tmp_path / "data", store) as (client, gateway):
            old = await client.send("s", "wait")
            store.armed = True
            sending = asyncio.create_task(client.send("s", "hello", key="k"))
            await refused_once(client, old.run_id)
            outcome = await client.wait(old.run_id)
            assert (outcome.superseded_by, outcome.unkept) == (None, True)
            assert client_words(outcome) == "superseded by a message that was not kept"
            await asyncio.sleep(SETTINGS.commit_seconds)
            assert not sending.done()
            store.resume()
            sent = await sending
            assert (await client.wait(sent.run_id)).text == "heard hello"
            assert [info.text for info in await client.runs("s")] == ["wait", "hello"]
            assert b"interlock_unkept_takeovers_total 1.0" in gateway.meters.text(Figures(grade="", queued=0))  # type: ignore[attr-defined]

    play(main())


def test_patience_ends(tmp_path: Path) -> None:
    """A store that stays stalled makes the send raise, and nothing is stored."""

    async def main() -> None:
        store = Stalling()
        async with served(tmp_path / "data", store, patience=1.0) as (client, _):
            await client.wait((await client.send("s", "hello")).run_id)
            store.armed = True
            with pytest.raises(Unavailable, match="send it again"):
                await client.send("s", "again", key="k")
            store.resume()
            assert await client.find("k") is None

    play(main())


@pytest.mark.parametrize("how", ["session", "message"])
def test_a_stop_means_what_waits_to_be_sent_again(how: str, tmp_path: Path) -> None:
    """A stop while the client insists also stops that message: it does not run when the store works again."""

    async def main() -> None:
        store = Stalling()
        async with served(tmp_path / "data", store) as (client, _):
            old = await client.send("s", "wait")
            store.armed = True
            sending = asyncio.create_task(client.send("s", "hello", key="k"))
            await refused_once(client, old.run_id)
            await (client.stop(session="s") if how == "session" else client.stop(message="k"))
            store.resume()
            try:
                outcome = await client.wait((await sending).run_id)
                assert (outcome.ending, outcome.started_at) == (Ending.STOPPED, None)
            except Unavailable:
                assert how == "session"
            assert "heard hello" not in [entry.text for entry in await client.history("s")]

    play(main())
