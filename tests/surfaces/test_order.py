"""Frames are handled in the order in which they come, also if one write carries several."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from .scene import Served, Wire, served, wire

AGENT = "tests.surfaces.agents:agent"
ROUNDS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server for all tests of this file."""
    with served(AGENT, tmp_path_factory.mktemp("order") / "data", "--driver", "inline") as running:
        yield running


async def batch(on: Wire, *requests: tuple[str, dict[str, Any]]) -> list[str]:
    """Send several frames in one write; return their ids."""
    frames, ids = [], []
    for method, params in requests:
        on._next += 1
        ids.append(f"q{on._next}")
        frames.append(json.dumps({"type": "req", "id": ids[-1], "method": method, "params": params}))
        on.conversation.client(frames[-1])
    protocol = on.socket.protocol
    for frame in frames:
        protocol.send_text(frame.encode())
    on.socket.transport.write(b"".join(protocol.data_to_send()))
    return ids


def test_a_stop_in_the_same_batch_ends_the_message_before_it(server: Served) -> None:
    """A message and a stop in one write: the message ends as stopped, and its agent never begins (race 24)."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            for number in range(ROUNDS):
                session = f"batch {number}"
                message = {"sessionKey": session, "message": "talk", "idempotencyKey": session}
                sent, stopped = await batch(on, ("chat.send", message), ("chat.abort", {"sessionKey": session}))
                answer = await on.answer(stopped)
                told = await on.answer(sent)
                assert answer["runIds"] == [told["runId"]] and answer["aborted"]
                await on.ended(told["runId"])
                streams = [event["stream"] for event in on.events("agent", told["runId"])]
                assert streams == ["lifecycle"], "it has an end, and nothing else"

    asyncio.run(play())


def test_a_message_in_the_same_batch_behind_a_stop_runs(server: Served) -> None:
    """A stop and a message in one write: the stop ends what was there, and the message runs."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            for number in range(ROUNDS):
                session = f"behind {number}"
                first = await on.request("chat.send", sessionKey=session, message="talk", idempotencyKey=session)
                message = {"sessionKey": session, "message": "hello", "idempotencyKey": f"{session} next"}
                stopped, sent = await batch(on, ("chat.abort", {"sessionKey": session}), ("chat.send", message))
                assert (await on.answer(stopped))["runIds"] == [first["runId"]]
                ended = await on.ended((await on.answer(sent))["runId"])
                assert ended["message"]["outcome"]["ending"] == "completed"
                assert (await on.ended(first["runId"]))["stopReason"] == "rpc"

    asyncio.run(play())


def test_a_stop_ahead_of_its_message_prevents_it(server: Served) -> None:
    """A stop by a key that is not known yet: the message with that key is born stopped, whenever it comes."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            message = {"sessionKey": "ahead", "message": "talk", "idempotencyKey": "not yet"}
            abort = {"sessionKey": "ahead", "runId": "not yet"}
            stopped, sent = await batch(on, ("chat.abort", abort), ("chat.send", message))
            assert not (await on.answer(stopped))["aborted"]
            told = await on.answer(sent)
            assert (told["status"], told["stopReason"]) == ("error", "rpc")
            agent = {"sessionKey": "ahead", "message": "talk", "idempotencyKey": "nor this"}
            await on.request("chat.abort", sessionKey="ahead", runId="nor this")
            asked = await on.ask("agent", **agent)
            final = await on.answer(asked, 2)
            assert (final["status"], final["stopReason"]) == ("error", "rpc")
            starts = [each for each in on.events("agent") if each["data"].get("phase") == "start"]
            assert not [each for each in starts if each["runId"] in (told["runId"], final["runId"])]

    asyncio.run(play())
