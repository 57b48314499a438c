"""A typed stop word stops its session by every method that reads chat, under every strategy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.names import Strategy

from .scene import Served, Wire, served, wire

pytestmark = pytest.mark.long

AGENT = "tests.surfaces.agents:agent"
NAME = "OpenClaw"
TYPED = ("Do not do that", "Stop don't do anything", "STOP OPENCLAW")
PUBLISHED = (None, "steer", "followup", "collect", "interrupt")
OURS = (*PUBLISHED, "reject", "rollback")
SAYINGS = [("chat.send", mode) for mode in PUBLISHED] + [("interlock.chat", mode) for mode in OURS]
numbers = itertools.count()


@pytest.fixture(scope="module", params=list(Strategy))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for each strategy, which its sessions do not override."""
    options = ("--driver", "inline", "--strategy", request.param, "--name", NAME)
    with served(AGENT, tmp_path_factory.mktemp("typed") / "data", *options) as running:
        yield running


async def say(on: Wire, session: str, message: str, *, method: str = "chat.send", mode: str | None = None) -> Any:
    """Write a message into a session."""
    more = {} if mode is None else {"queueMode": mode}
    return await on.request(method, sessionKey=session, message=message, idempotencyKey=f"m{next(numbers)}", **more)


async def working(on: Wire, session: str) -> str:
    """Begin a run that speaks for ever; return it once it speaks."""
    run: str = (await say(on, session, "talk"))["runId"]
    await on.event("chat", lambda event: event["runId"] == run and event["state"] == "delta")
    return run


def test_what_is_typed_stops_the_run_whatever_the_strategy(server: Served) -> None:
    """Each stop word, by each method and in each mode, ends the running run and the queued ones."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            for number, (text, (method, mode)) in enumerate(itertools.product(TYPED, SAYINGS)):
                session = f"typed {number}"
                run = await working(on, session)
                waits = (await say(on, session, "count 1", mode="followup"))["runId"]
                told = await say(on, session, text, method=method, mode=mode)
                assert told["aborted"] is True and set(told["runIds"]) == {run, waits}, (text, method, mode)
                for each in (run, waits):
                    ended = await on.request("agent.wait", runId=each, timeoutMs=30_000)
                    assert (ended["status"], ended["stopReason"]) == ("error", "stop"), (text, method, mode)
                said = (await on.request("chat.history", sessionKey=session))["messages"]
                assert text not in str(said), "a stop is no message"

    asyncio.run(play())


def test_the_name_and_the_words_are_configured(tmp_path: Path) -> None:
    """An agent without a name answers to its callable's name and to interlock; configured words stop as well."""

    async def play(running: Served, stops: list[str], ordinary: list[str]) -> None:
        async with wire(running.url, running.token) as on:
            for text in stops:
                session = text.replace("/", "")
                run = await working(on, session)
                assert (await say(on, session, text))["runIds"] == [run], text
            for text in ordinary:
                told = await say(on, text.replace("/", ""), text)
                assert told["status"] == "started", text

    with served(AGENT, tmp_path / "unnamed", "--driver", "inline", "--stop-word", "Red light") as running:
        stops = ["stop agent", "STOP INTERLOCK", "/stop@interlock", "red light!", "please, red light"]
        asyncio.run(play(running, stops, ["STOP OPENCLAW", "/stop@openclaw", "the red light"]))
    settings = tmp_path / "interlock.toml"
    settings.write_text(f'name = "{NAME}"\nstop_words = ["rouge", "nero"]\n')
    with served(AGENT, tmp_path / "named", "--driver", "inline", "--config", str(settings)) as running:
        stops = ["STOP OPENCLAW", "openclaw, nero", "/stop@openclaw", "stop interlock", "rouge"]
        asyncio.run(play(running, stops, ["stop rex", "/stop@rex", "stop the music at noon", "don't stop"]))


def test_a_message_that_is_to_be_taken_literally_is_no_stop(tmp_path: Path) -> None:
    """With suppressCommandInterpretation the stop words reach the agent as text."""

    async def play(running: Served) -> None:
        async with wire(running.url, running.token) as on:
            for text in TYPED:
                asked = {"sessionKey": text, "message": text, "idempotencyKey": text}
                told = await on.request("chat.send", **asked, suppressCommandInterpretation=True)
                assert told["status"] == "started"
                assert (await on.ended(told["runId"]))["state"] == "final"

    with served(AGENT, tmp_path / "data", "--driver", "inline", "--name", NAME) as running:
        asyncio.run(play(running))
