"""Every surface tells the same single ending of a run, and nothing after it.

Two connections hear the broadcast, one of them also watches in our own words, a third waits; the test also reads the
task list, the session's row, the receipt, the conversation and the store, and compares all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.cli import reading
from interlock.core.names import ErrorKind, RunId
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE, Native, agent_wait, chat_event, native

from .scene import Served, Wire, WireError, served, wire

pytestmark = pytest.mark.long

AGENT = "tests.surfaces.agents:agent"
SESSION = "main"
DRIVERS = ("host", "inline")


class Stories:
    """The ending of one run, as each surface tells it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.told: dict[str, dict[str, Any]] = {}  # surface → the native outcome, or its equivalent
        self.words: dict[str, Any] = {}  # surface → its own words

    def tell(self, surface: str, outcome: dict[str, Any]) -> None:
        """Record an outcome without `drained` and `durable`, which may change later."""
        self.told[surface] = {name: value for name, value in outcome.items() if name not in ("drained", "durable")}

    def broadcast(self, name: str, heard: Wire) -> None:
        """Record what a connection heard: exactly one ending on each stream, and nothing after it."""
        chat, agent = heard.events("chat", self.run), heard.events("agent", self.run)
        ends = [event for event in chat if event["state"] in ("final", "aborted", "error")]
        lives = [event for event in agent if event["stream"] == "lifecycle" and event["data"]["phase"] != "start"]
        assert (len(ends), len(lives)) == (1, 1), f"{name}: {ends} {lives}"
        assert chat[-1] is ends[0] and agent[-1] is lives[0], f"{name}: something follows the end"
        for events in (chat, agent):
            numbers = [event["seq"] for event in events]
            assert numbers == sorted(set(numbers)), f"{name}: numbers fall or come twice"
        typing = [event for event in heard.events("session.typing") if event["sessionKey"] == SESSION]
        assert not typing or not typing[-1]["typing"], f"{name}: it types for ever"
        self.tell(f"{name} chat", ends[0]["message"]["outcome"])
        self.tell(f"{name} agent", lives[0]["data"]["outcome"])
        self.words[f"{name} chat"] = {key: ends[0].get(key) for key in ("state", "stopReason", "errorKind")}
        self.words[f"{name} agent"] = {key: lives[0]["data"].get(key) for key in ("phase", "status")}

    def agree(self) -> Outcome:
        """Assert that every surface tells the same outcome, in the words of the table; return it."""
        first = next(iter(self.told.values()))
        for surface, outcome in self.told.items():
            assert outcome == first, f"{surface} says {outcome}, {next(iter(self.told))} says {first}"
        outcome = _outcome(self.run, first)
        row = TABLE[outcome.ending]
        wait, chat = msgspec.to_builtins(agent_wait(outcome)), msgspec.to_builtins(chat_event(outcome))
        for surface, words in self.words.items():
            if surface.endswith("chat"):
                assert words == {key: chat.get(key) for key in words}, surface
            elif surface.endswith("agent"):
                assert words == {"phase": row.lifecycle.phase, "status": row.lifecycle.status}, surface
            elif surface == "wait":
                assert words == {key: wait.get(key) for key in words}, surface
            else:
                assert words == getattr(row, surface), surface
        return outcome


def _outcome(run: str, told: dict[str, Any]) -> Outcome:
    facts = msgspec.convert(told | {"drained": True, "durable": True}, Native)
    return Outcome(run_id=RunId(run), **{name: getattr(facts, name) for name in Native.__struct_fields__})


def _story_of(outcome: Outcome) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(native(outcome))
    return told


async def ask_everywhere(stories: Stories, asker: Wire) -> None:
    """Record what each requested surface tells."""
    run = stories.run
    answer = await asker.request("agent.wait", runId=run, timeoutMs=20_000)
    stories.tell("agent.wait", answer["outcome"])
    stories.words["wait"] = {key: answer.get(key) for key in ("status", "stopReason", "timeoutPhase")}
    task = (await asker.request("tasks.get", taskId=run))["task"]
    stories.words["task"] = task["status"]
    listed = (await asker.request("tasks.list", sessionKey=SESSION))["tasks"]
    assert [each["status"] for each in listed if each["id"] == run] == [task["status"]]
    row = (await asker.request("sessions.describe", key=SESSION))["session"]
    if row["lastRunId"] == run:
        stories.words["session"] = row["status"]
    receipt = (await asker.request("receipts.get", runId=run))["receipt"]
    fallen = [each for each in receipt["runs"] if each["id"] == run]
    stories.tell("receipt", _story_of(msgspec.convert(fallen[0]["outcome"], Outcome)))
    native_wait = msgspec.convert(await asker.request("interlock.wait", run=run), Outcome)
    stories.tell("interlock.wait", _story_of(native_wait))
    history = (await asker.request("chat.history", sessionKey=SESSION))["messages"]
    cut = [each for each in history if each["runId"] == run and each.get("cut")]
    assert len(cut) == (0 if native_wait.ending == "completed" else 1), "the partial text is there once, marked as cut"


def ask_the_store(stories: Stories, data: Path) -> None:
    """Record what the store holds, read as another process reads it."""
    shown = reading.look(data, lambda store: reading.show(store, RunId(stories.run)))
    assert shown.run.outcome is not None
    stories.tell("store", _story_of(shown.run.outcome))


Way = Callable[[Wire, str], Awaitable[Any]]


async def by_abort(on: Wire, run: str) -> None:
    """Stop the session, as a stop button does."""
    answer = await on.request("chat.abort", sessionKey=SESSION)
    assert answer["aborted"] and answer["runIds"] == [run]


async def by_run(on: Wire, run: str) -> None:
    """Stop the run by its id."""
    assert (await on.request("sessions.abort", runId=run))["abortedRunId"] == run


async def by_task(on: Wire, run: str) -> None:
    """Stop the run as a task."""
    assert (await on.request("tasks.cancel", taskId=run))["cancelled"]


async def by_word(on: Wire, run: str) -> None:
    """Type a stop word."""
    answer = await on.request("chat.send", sessionKey=SESSION, message="Stop!", idempotencyKey=f"stop {run}")
    assert answer["aborted"] and answer["runIds"] == [run]


async def by_message(on: Wire, run: str) -> None:
    """Send another message, which takes over."""
    answer = await on.request("chat.send", sessionKey=SESSION, message="hello", idempotencyKey=f"new {run}")
    assert answer["superseded"] == run
    await on.ended(answer["runId"])


async def by_itself(on: Wire, run: str) -> None:
    """Do nothing: the run ends by itself."""


ENDS: dict[str, tuple[str, dict[str, Any], Way, str]] = {
    "stopped": ("talk", {}, by_abort, "stopped"),
    "stopped by run": ("talk", {}, by_run, "stopped"),
    "stopped as a task": ("talk", {}, by_task, "stopped"),
    "typed": ("talk", {}, by_word, "stopped"),
    "deaf": ("deaf", {}, by_abort, "stopped"),
    "taken over": ("talk", {}, by_message, "superseded"),
    "timed out": ("talk", {"timeoutMs": 400}, by_itself, "timed_out"),
    "asleep": ("sleep", {"timeoutMs": 300}, by_itself, "timed_out"),
    "failed": ("fail", {}, by_itself, "failed"),
    "completed": ("count 2000", {}, by_itself, "completed"),
}


@pytest.fixture(scope="module", params=DRIVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server for each driver."""
    data = tmp_path_factory.mktemp(request.param) / "data"
    with served(AGENT, data, "--driver", request.param) as running:
        yield running
        assert "Traceback" not in running.log()


async def play(server: Served, way: str, instant: float) -> Stories:
    """Begin a run, watch it on every surface, end it, and record what each surface tells."""
    text, options, end, _ = ENDS[way]
    async with contextlib.AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(wire(server.url, server.token)) for _ in range(3)]
        sent = await first.request(
            "chat.send", sessionKey=SESSION, message=text, idempotencyKey=f"{way} {instant}", **options
        )
        run = sent["runId"]
        await second.request("interlock.watch", watch=1, session=SESSION, after=0)
        waiting = await third.ask("agent.wait", runId=run, timeoutMs=20_000)
        await asyncio.sleep(instant)
        await end(random.choice((first, second, third)), run)
        stories = Stories(run)
        stories.tell("the waiter", (await third.answer(waiting))["outcome"])
        for each in (first, second, third):
            await each.ended(run)
        await second.event("interlock.event", lambda e: _is_receipt_of(e, run))
        await ask_everywhere(stories, first)
        for name, each in (("first", first), ("second", second), ("third", third)):
            await each.request("health")  # anything sent after the ending has arrived with this answer
            stories.broadcast(name, each)
        told = [e["event"] for e in second.events("interlock.event") if (e.get("event") or {}).get("run_id") == run]
        ends = [event for event in told if event["data"]["type"] == "ended"]
        assert len(ends) == 1 and told[-1] is ends[0], "in our own words, too, nothing follows the one end"
        stories.tell("watched", _story_of(msgspec.convert(ends[0]["data"]["outcome"], Outcome)))
    return stories


def story(server: Served, way: str, instant: float) -> Outcome:
    """Play one ending and return the outcome that all surfaces and the store agree on."""
    stories = asyncio.run(play(server, way, instant))
    ask_the_store(stories, server.data)
    return stories.agree()


def _is_receipt_of(watched: dict[str, Any], run: str) -> bool:
    data = (watched.get("event") or {}).get("data", {})
    return data.get("type") == "receipt" and run in [each["id"] for each in data["receipt"]["runs"]]


@pytest.mark.parametrize("way", ENDS)
def test_every_surface_tells_the_same_end(server: Served, way: str) -> None:
    """Each way to end a run, at any instant: one terminal event per stream, nothing after it, one same outcome."""
    instants = random.Random(way)
    for _ in range(2):
        outcome = story(server, way, instants.uniform(0.02, 0.2))
        assert outcome.ending == ENDS[way][3]
        assert outcome.error_kind in (None, ErrorKind.AGENT)


def test_a_host_that_dies_is_told_as_failed_everywhere(tmp_path: Path) -> None:
    """A run whose agent's process was killed is told as failed on every surface."""
    ENDS["killed"] = ("die", {}, by_itself, "failed")
    try:
        with served(AGENT, tmp_path / "data", "--driver", "host") as running:
            outcome = story(running, "killed", 0.0)
    finally:
        del ENDS["killed"]
    assert outcome.ending == "failed" and "SIGKILL" in (outcome.error or "")


@pytest.mark.parametrize(("how", "ending"), [("term", "shutdown"), ("kill", "lost")])
@pytest.mark.parametrize("driver", DRIVERS)
def test_after_a_restart_the_story_is_the_same(tmp_path: Path, driver: str, how: str, ending: str) -> None:
    """After an orderly stop the next server tells the same outcome; after a kill it tells what can be known."""
    data, stories = tmp_path / "data", Stories("")
    with served(AGENT, data, "--driver", driver) as running:
        heard = asyncio.run(_die(running, how, stories))
    with served(AGENT, data, "--driver", driver) as running:
        asyncio.run(_ask_again(running, stories))
    ask_the_store(stories, data)
    assert stories.agree().ending == ending
    assert heard == ("final" if how == "never" else "aborted" if how == "term" else None)


async def _die(server: Served, how: str, stories: Stories) -> str | None:
    """Begin a run, end the server, and return the state that the wire told, if any."""
    async with wire(server.url, server.token) as first:
        sent = await first.request("chat.send", sessionKey=SESSION, message="talk", idempotencyKey="k")
        stories.run = sent["runId"]
        await first.event("chat", lambda event: event["state"] == "delta")
        if how == "kill":
            server.kill()
            return None
        server.process.terminate()
        ended = await first.ended(stories.run)
        stories.tell("before", ended["message"]["outcome"])
        await first.event("shutdown")
        return str(ended["state"])


async def _ask_again(server: Served, stories: Stories) -> None:
    async with wire(server.url, server.token) as asker:
        again = await asker.request("chat.send", sessionKey=SESSION, message="talk", idempotencyKey="k")
        assert again["runId"] == stories.run, "the same key, the same answer, also after a restart"
        with pytest.raises(WireError, match="key"):
            await asker.request("chat.send", sessionKey=SESSION, message="other", idempotencyKey="k")
        await ask_everywhere(stories, asker)
