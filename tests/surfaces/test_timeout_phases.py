"""A wait on a timed-out run names a phase of the published set, whatever phase the agent named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from .scene import Served, Wire, served, wire

pytestmark = pytest.mark.long

AGENT = "tests.contracts.lingering:agent"
LIMITS_MS = (300, 3_000, 20_000)  # a run needs to reach its point within one of these limits
POINTS = {  # message → our phase, published phase
    "silent": ("start", "preflight"),
    "spoken": ("agent", "provider"),
    "phase": ("research", "provider"),
    "in_tool": ("tool", "provider"),
    "asks": ("approval", "provider"),
    "holds": ("hold", "provider"),
    "delegates": ("child", "provider"),
}


@pytest.fixture(scope="module", params=["inline", "host"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on each driver."""
    place = tmp_path_factory.mktemp("late") / "data"
    options = ("--driver", request.param, "--agent", f"child={AGENT}", "--queue-limit", "1s")
    with served(AGENT, place, *options) as running:
        yield running


async def late(on: Wire, point: str, **more: Any) -> dict[str, Any]:
    """Let a run exceed its limit; return the answer of its wait."""
    sent = await on.request("chat.send", sessionKey=point, message=point, idempotencyKey=f"{point} {more}", **more)
    told: dict[str, Any] = await on.request("agent.wait", runId=sent["runId"], timeoutMs=30_000)
    return told


def test_whoever_waits_is_told_a_phase(server: Served) -> None:
    """`agent.wait` names each phase; a run that began is never told as queued, which would invite a retry."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            holder = {"sessionKey": "holder", "message": "holds", "idempotencyKey": "holder"}
            run = (await on.request("chat.send", **holder))["runId"]
            await on.event("chat", lambda event: event["runId"] == run and event["state"] == "delta")
            for point, (ours, published) in POINTS.items():
                for limit in LIMITS_MS:
                    told = await late(on, point, timeoutMs=limit)
                    assert told["status"] == "timeout" and told["timeoutPhase"] in ("preflight", "provider"), point
                    if told["outcome"]["phase"] == ours:
                        break
                assert (told["outcome"]["phase"], told["timeoutPhase"]) == (ours, published), point

    asyncio.run(play())


def test_what_never_began_was_queued(server: Served) -> None:
    """A message that waited too long for the seat times out in phase `queue`, with no provider started."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            first = {"sessionKey": "silent", "message": "silent", "idempotencyKey": "before"}
            await on.request("chat.send", **first)
            told = await late(on, "silent", queueMode="followup")
            assert (told["status"], told["timeoutPhase"], told["providerStarted"]) == ("timeout", "queue", False)
            assert told["outcome"]["phase"] == "queue" and "startedAt" not in told

    asyncio.run(play())
