"""An absorbed message over the wire: every surface tells, lists and answers it as the run that absorbed it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.events import Delta, Ended, Event, MessageData
from interlock.core.names import Ending, Principal, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.surfaces.gateway.published import PublishedWording

from .scene import Served, Wire, served, wire

AGENT = "tests.surfaces.agents:agent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server for all tests of this file."""
    with served(AGENT, tmp_path_factory.mktemp("steering") / "data", "--driver", "inline") as running:
        yield running


async def send(on: Wire, message: str, session: str, key: str, **more: Any) -> str:
    """Send a message and return its run."""
    return str(
        (await on.request("chat.send", sessionKey=session, message=message, idempotencyKey=key, **more))["runId"]
    )


def test_a_message_that_was_taken_in_is_told_as_its_taker(server: Served) -> None:
    """An absorbed message is no task that runs for ever, and does not hide how its session ended."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            first = await send(on, "listen", "steered", "first")
            await on.event("chat", lambda event: event["runId"] == first)
            taken = await send(on, "hello", "steered", "second", queueMode="steer")
            await on.event("chat", lambda event: event["runId"] == first and "hello" in event.get("deltaText", ""))
            await on.request("chat.abort", sessionKey="steered")
            await on.ended(first)
            tasks = (await on.request("tasks.list", sessionKey="steered"))["tasks"]
            assert [(task["id"], task["status"]) for task in tasks] == [(first, "cancelled")]
            assert (await on.request("tasks.get", taskId=taken))["task"]["id"] == first
            row = (await on.request("sessions.describe", key="steered"))["session"]
            assert (row["status"], row["lastRunId"]) == ("stopped", first)
            assert (await on.request("agent.wait", runId=taken))["stopReason"] == "rpc"

    asyncio.run(play())


def test_the_wording_forgets_every_run_it_told() -> None:
    """The wording forgets an absorbed message with the run that absorbed it: the message has no ending of its own."""

    def event(run: str, data: Any) -> Event:
        return Event(position=1, session=SessionId("s"), run_id=RunId(run), generation=1, data=data)

    wording = PublishedWording()
    for data in (
        event("steered", MessageData(text="hello", by=Principal("me"))),
        event("taker", Delta(text="x")),
        event("taker", Ended(outcome=Outcome(run_id=RunId("taker"), ending=Ending.COMPLETED))),
    ):
        told = [wording.items(data, None, name) for name in ("main", "ann/main")]
        assert len(told[0]) == len(told[1])
    assert wording._runs == {}


def test_the_retry_of_a_message_that_was_taken_in_is_answered_at_once(server: Served) -> None:
    """A retry with an absorbed message's key gets the same answer at once, while the absorbing run goes on."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            taker = await send(on, "listen", "retried", "taker")
            await on.event("chat", lambda event: event["runId"] == taker)
            steer = {"sessionKey": "retried", "message": "hi", "idempotencyKey": "steer", "queueMode": "steer"}
            first = await on.request("chat.send", **steer)
            taken = await on.event("agent", lambda event: event["stream"] == "input" and event["runId"] == taker)
            assert (taken["data"]["phase"], taken["data"]["runId"]) == ("taken", first["runId"])
            assert await on.request("chat.send", **steer) == first
            assert (await on.request("agent.wait", runId=taker, timeoutMs=0))["status"] == "pending"
            await on.request("chat.abort", sessionKey="retried")
            over = await on.request("chat.send", **steer)
            assert (over["status"], over["stopReason"]) == ("error", "rpc")

    asyncio.run(play())
