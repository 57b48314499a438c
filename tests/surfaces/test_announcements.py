"""Announcements of detached children over the wire: published clients and our own method see them in the home."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from surfaces.raw import House, house

NUMBERS = count()


@pytest.fixture(scope="module", params=["inline", "host"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway on each driver."""
    data: Path = tmp_path_factory.mktemp("announcements") / "data"
    with house(data, "surfaces.agents:agent", f"--driver={request.param}") as server:
        yield server
        assert server.healthy()


def leave(talk: Any, how: str) -> tuple[str, str]:
    """Begin a child that is announced; return the session's name and the run that began the child."""
    where = f"announced-{next(NUMBERS)}"
    asked = {"sessionKey": where, "message": f"leave {how} echo 42", "idempotencyKey": f"leave-{where}"}
    return where, talk.request("chat.send", **asked)["runId"]


def announces(data: dict[str, Any]) -> bool:
    """Return whether an event belongs to a message that announces a child."""
    return data.get("type") == "message" and data.get("child") is not None


def starts(event: dict[str, Any], run: str) -> bool:
    """Return whether an event is the start of a run."""
    return event.get("run_id") == run and event["data"]["type"] == "started"


def test_published_clients_see_its_turn_as_chat_of_the_session(server: House) -> None:
    """The announcement's reply streams and ends under the session's own name, after the run that began the child."""
    with server.connect() as talk:
        where, first = leave(talk, "turn")
        final = talk.event(
            "chat", lambda event: event["sessionKey"] == where and event["state"] == "final" and event["runId"] != first
        )
        text = final["message"]["content"][0]["text"]
        assert "has ended: ok" in text and text.endswith("echo 42")
        assert final["message"]["role"] == "assistant"
        mine = [event["payload"] for event in talk.events if event["payload"].get("runId") == final["runId"]]
        assert next(event for event in mine if event.get("stream") == "lifecycle")["data"]["sessionKey"] == where
        assert mine[-1] == final
        tasks = {each["id"]: each for each in talk.request("tasks.list", sessionKey=where)["tasks"]}
        task = tasks[final["runId"]]
        assert (task["kind"], task["status"]) == ("announce", "completed")
        assert talk.request("agent.wait", runId=final["runId"])["status"] == "ok"
        history = talk.request("chat.history", sessionKey=where)["messages"]
        assert [each["role"] for each in history] == ["user", "assistant", "user", "assistant"]


def test_published_clients_see_a_note_as_one_final_event(server: House) -> None:
    """A note has no turn: one `chat` event carries its text, as something said to the agent and not by it."""
    with server.connect() as talk:
        where, first = leave(talk, "note")
        final = talk.event("chat", lambda event: event["sessionKey"] == where and event["runId"] != first)
        assert (final["state"], final["message"]["role"]) == ("final", "user")
        assert final["message"]["content"][0]["text"].endswith("echo 42")
        mine = [event for event in talk.events if event["payload"].get("runId") == final["runId"]]
        assert [(event["event"], event["payload"].get("stream")) for event in mine] == [
            ("agent", "lifecycle"),
            ("chat", None),
        ]
        history = talk.request("chat.history", sessionKey=where)["messages"]
        assert [each["role"] for each in history] == ["user", "assistant", "user"]


def test_a_stop_of_everything_begins_nothing(server: House) -> None:
    """A child that falls with its home is not announced: after the stop's answer no turn begins and no note comes."""
    with server.connect() as talk:
        where = f"announced-{next(NUMBERS)}"
        run = talk.request("chat.send", sessionKey=where, message="leave turn sleep", idempotencyKey=where)["runId"]
        assert talk.request("agent.wait", runId=run, timeoutMs=30_000)["status"] == "ok"
        [child] = [each for each in talk.request("tasks.list", sessionKey=where)["tasks"] if each["id"] != run]
        receipts = talk.request("interlock.stopall")
        assert [each["id"] for receipt in receipts for each in receipt["runs"]] == [child["id"]]
        assert talk.request("agent.wait", runId=child["id"], timeoutMs=30_000)["status"] == "error"
        assert len(talk.request("tasks.list", sessionKey=where)["tasks"]) == 2
        assert [each["role"] for each in talk.request("chat.history", sessionKey=where)["messages"]] == [
            "user",
            "assistant",
        ]


def test_our_own_wording_names_the_child(server: House) -> None:
    """A watcher of the session is told which child ended, and can read that run."""
    with server.connect(caps=["interlock.quiet.2"]) as talk:
        where, _ = leave(talk, "turn")
        talk.request("interlock.watch", watch=1, session=where)
        said = talk.event("interlock.event", lambda told: announces(told.get("event", {}).get("data", {})))
        child, announcing = said["event"]["data"]["child"], said["event"]["run_id"]
        # A message is no part of the conversation before its turn begins.
        talk.event("interlock.event", lambda told: starts(told.get("event", {}), announcing))
        runs = {each["id"]: each for each in talk.request("interlock.runs", session=where, tree=True)}
        assert runs[child]["detached"] and runs[child]["outcome"]["text"] == "echo 42"
        assert runs[announcing]["kind"] == "announce"
        entries = talk.request("interlock.history", session=where)
        assert next(entry["text"] for entry in entries if entry.get("child") == child).startswith(f"agent ({child})")
