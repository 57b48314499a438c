"""/metrics agrees with the other surfaces: endings, receipts, refusals, processes, hosts."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .scene import Served, served, wire

AGENT = "tests.surfaces.agents:agent"


def metrics(server: Served) -> dict[tuple[str, str], float]:
    """Return the figures of /metrics, by name and the one label's value."""
    asked = urllib.request.Request(
        f"{server.ready['url']}/metrics", headers={"Authorization": f"Bearer {server.token}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name, next((value for name, value in sample.labels.items() if name != "le"), "")): sample.value
        for sample in samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


def test_the_figures_are_those_of_the_receipts(tmp_path: Path) -> None:
    """After runs with each ending, the counts, histograms and gauges agree with the receipts."""

    async def play(server: Served) -> list[dict[str, object]]:
        async with wire(server.url, server.token) as on:

            async def send(message: str, session: str = "s", **more: object) -> str:
                key = f"{message} {session}"
                sent = await on.request("chat.send", sessionKey=session, message=message, idempotencyKey=key, **more)
                return str(sent["runId"])

            await on.ended(await send("count 3"))
            await on.ended(await send("fail"))
            late = await send("sleep", timeoutMs=200)
            await on.ended(late)
            first = await send("talk")
            await on.event("chat", lambda event: event["runId"] == first)  # the run's process has begun by then
            await on.ended(await send("hello"))  # the message takes over
            deaf = await send("deaf", "elsewhere")
            await on.event("chat", lambda event: event["runId"] == deaf)
            waiting = await send("count 1", "elsewhere", queueMode="followup")
            assert metrics(server)["interlock_queue_depth", ""] == 1
            await on.request("chat.abort", sessionKey="elsewhere")
            await on.ended(waiting)
            for run in (late, first, deaf):
                await on.request("interlock.wait", run=run, drained=True)
            return [(await on.request("receipts.get", runId=run))["receipt"] for run in (first, deaf)]

    with served(AGENT, tmp_path / "data", "--driver", "host") as server:
        taken_over, stopped = asyncio.run(play(server))
        told, end = metrics(server), time.monotonic() + 30
        # The server notices a moment later that the client has left.
        while told["interlock_connections", ""] and time.monotonic() < end:
            told = metrics(server)
        endings = {ending: told.get(("interlock_runs_total", ending), 0) for ending in ENDINGS}
        assert endings == ENDINGS
        assert told["interlock_stop_seconds_count", "fenced"] == 1, "one stop was asked for"
        assert told["interlock_stop_seconds_count", "ended"] == 3, "a deadline, a takeover and a stop"
        assert told["interlock_stop_seconds_count", "drained"] == 3
        assert told["interlock_processes_ended_total", server.ready["grade"]] == taken_over["processes"]["ended"] == 1
        for kind, times in stopped["refused"].items():
            assert told["interlock_refused_effects_total", kind] >= times
        killed = [receipt["host"] for receipt in (taken_over, stopped)].count("killed")
        assert told["interlock_hosts_total", "killed"] == killed
        assert told["interlock_hosts_total", "started"] >= 2 and told["interlock_hosts_total", "reused"] >= 1
        assert (told["interlock_queue_depth", ""], told["interlock_connections", ""]) == (0, 0)
        assert told["interlock_corrections_total", ""] == 0


ENDINGS = {"completed": 2, "failed": 1, "timed_out": 1, "superseded": 1, "stopped": 2, "lost": 0, "shutdown": 0}
