"""Fields of the published protocol: each is used, refused by name, or ignored and listed in the answer."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from interlock.core.values import INSTRUCTION_BYTES
from interlock.protocol import frames
from surfaces.raw import House, Talk, house

NUMBERS = count()
OPTIONS = ("--driver=inline", "--agent=helper=surfaces.agents:helper")
MEANT: dict[str, Any] = {  # unusual values, by field name; "x" for the fields not listed
    "deliver": True, "bestEffortDeliver": True, "intent": {"kind": "session-goal-start"}, "toolBindings": {"a": 1},
    "systemInputProvenance": {"kind": "external_user"}, "inputProvenance": {"kind": "external_user"},
    "expectedToolOverrides": {"mcpServers": {"a": False}}, "modelRun": True, "promptMode": "none",
    "bootstrapContextMode": "lightweight", "sessionEffects": "internal", "disableMessageTool": True,
    "sourceReplyDeliveryMode": "message_tool_only", "internalEvents": [{}], "swarmOutputSchema": {"type": "object"},
    "fastMode": "auto", "fastAutoOnSeconds": 5,
}  # fmt: skip


def key() -> str:
    """Return a new key."""
    return f"field-{next(NUMBERS)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway that serves one agent and has another by name."""
    with house(tmp_path_factory.mktemp("fields") / "data", "surfaces.agents:agent", *OPTIONS) as server:
        yield server
        assert server.healthy()


@pytest.fixture(scope="module")
def talk(server: House) -> Iterator[Talk]:
    """A connection of the operator's."""
    with server.connect() as talk:
        yield talk


def send(method: str, **more: Any) -> dict[str, Any]:
    """Return the params of a message."""
    return {"sessionKey": key(), "message": "told", "idempotencyKey": key(), **more}


def reply(talk: Talk, method: str, **more: Any) -> str:
    """Send a message and return the reply."""
    run = talk.request(method, **send(method, **more))["runId"]
    return str(talk.request("agent.wait", runId=run)["result"]["payloads"][0]["text"])


PAIRS = [(method, name) for method in ("agent", "chat.send") for name in sorted(frames.METHODS[method].refused)]


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_a_field_that_changes_meaning_is_refused_by_name(talk: Talk, method: str, name: str) -> None:
    """A field that asks for something we do not do is refused by name, and nothing runs."""
    asked = send(method, **{name: MEANT.get(name, "x")})
    error = talk.refused(method, **asked)
    assert (error["code"], name in error["message"]) == ("INVALID_REQUEST", True)
    assert talk.request("interlock.find", name=asked["idempotencyKey"]) is None


@pytest.mark.parametrize("method", ["agent", "chat.send"])
def test_what_asks_for_what_is_done_anyway_is_taken(talk: Talk, method: str) -> None:
    """Fields with defaults that clients fill in (null, false, empty, the words for the usual way) are accepted."""
    usual: dict[str, Any] = {name: None for name in frames.METHODS[method].refused}
    usual |= {"deliver": False} | ({"channel": "webchat", "promptMode": "full"} if method == "agent" else {})
    answer = talk.request(method, **send(method, **usual))
    assert answer["status"] in ("accepted", "started")
    assert "ignored" not in answer


@pytest.mark.parametrize("method", ["agent", "chat.send"])
def test_what_clients_always_send_is_listed_as_ignored(talk: Talk, method: str) -> None:
    """The first answer names each field that had no effect."""
    names = sorted(frames.METHODS[method].ignored)
    answer = talk.request(method, **send(method, **{name: MEANT.get(name, "x") for name in names}))
    assert answer["ignored"] == names


def test_a_stop_is_not_refused_for_what_else_it_asks(talk: Talk) -> None:
    """A typed stop and a stop by method work with any other fields, and list those that had no effect."""
    for method, more in (
        ("chat.send", {"message": "stop", "idempotencyKey": key(), "toolBindings": {"a": 1}, "agentId": "nobody"}),
        ("chat.abort", {"agentId": "nobody", "preserveSideRuns": True}),
    ):
        session = key()
        run = talk.request("chat.send", sessionKey=session, message="sleep", idempotencyKey=key())["runId"]
        answer = talk.request(method, sessionKey=session, **more)
        assert (answer["aborted"], answer["runIds"]) == (True, [run])
        assert answer["ignored"] == (["toolBindings"] if method == "chat.send" else ["agentId", "preserveSideRuns"])


def test_instructions_reach_the_agent(talk: Talk) -> None:
    """`extraSystemPrompt`, and `instructions` of our own method, reach the agent with the message."""
    assert reply(talk, "agent", extraSystemPrompt="Be brief.") == "Be brief."
    assert reply(talk, "agent", extraSystemPrompt="") == "None"
    own = talk.request("interlock.send", session=key(), text="told", instructions="Be kind.")["run_id"]
    assert talk.request("interlock.wait", run=own)["text"] == "Be kind."


def test_instructions_are_part_of_what_a_key_stands_for(talk: Talk) -> None:
    """The same key with other instructions is refused; with the same instructions it names the same run."""
    asked = send("agent", extraSystemPrompt="one")
    run = talk.request("agent", **asked)["runId"]
    assert talk.request("agent", **asked)["runId"] == run
    for other in ({"extraSystemPrompt": "two"}, {"extraSystemPrompt": None}, {"agentId": "helper"}):
        assert "used for another message" in talk.refused("agent", **(asked | other))["message"]


def test_instructions_are_bounded(talk: Talk) -> None:
    """Instructions that are too long are refused, and the error names the bound."""
    error = talk.refused("agent", **send("agent", extraSystemPrompt="x" * (INSTRUCTION_BYTES + 1)))
    assert f"more than {INSTRUCTION_BYTES}" in error["message"]


@pytest.mark.parametrize("method", ["agent", "chat.send"])
def test_an_agent_is_named(talk: Talk, method: str) -> None:
    """A known agent answers, the served one also by the names that clients know; another is refused with a list."""
    assert reply(talk, method, agentId="helper", message="hi") == "helper: hi, None"
    for served in ("main", "interlock", "agent"):
        assert reply(talk, method, agentId=served, message="hi") == "hi"
    asked = send(method, agentId="nobody")
    error = talk.refused(method, **asked)
    assert error["code"] == "INVALID_REQUEST"
    assert "'nobody'" in error["message"] and "helper" in error["message"]
    assert talk.request("interlock.find", name=asked["idempotencyKey"]) is None


def test_tasks_are_listed_by_agent(talk: Talk) -> None:
    """An agent's list holds its own runs only; a list of an unknown agent is refused."""
    session = key()
    for agent in ("helper", "main"):
        run = talk.request("chat.send", sessionKey=session, message="hi", idempotencyKey=key(), agentId=agent)["runId"]
        talk.request("agent.wait", runId=run)
        listed = talk.request("tasks.list", sessionKey=session, agentId=agent)["tasks"]
        assert [task["id"] for task in listed] == [run]
    assert talk.refused("tasks.list", agentId="nobody")["code"] == "INVALID_REQUEST"


def test_a_list_says_what_it_did_not_look_at(talk: Talk) -> None:
    """A list names a filter that it ignored, or refuses one that would make the answer a different list."""
    assert talk.request("sessions.list", activeMinutes=5, includeGlobal=False)["ignored"] == ["activeMinutes"]
    assert "cursor" in talk.refused("chat.history", sessionKey=key(), cursor="3")["message"]
