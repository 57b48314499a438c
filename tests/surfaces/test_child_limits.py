"""Limits of children and of agents over the wire: the server's options set them, and every surface names them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surfaces.raw import House, house

OPTIONS = ("--agent=other=surfaces.agents:agent", "--agent-deadline=other=200ms", "--child-deadline=300ms")
INTERLOCK = Path(sys.executable).with_name("interlock")
WAIT_SECONDS = 30.0


@pytest.fixture(scope="module", params=["host", "inline"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway that gives little time to children, and to one of its agents."""
    data = tmp_path_factory.mktemp("limits") / "data"
    with house(data, "surfaces.agents:agent", f"--driver={request.param}", *OPTIONS) as server:
        yield server
        assert server.healthy()


def test_whoever_asks_is_told_whose_limit_ended_a_child(server: House) -> None:
    """Waits, lists, receipts and events all name the limit that ended a child; the parent goes on and completes."""
    with server.connect() as talk:
        run = talk.request("chat.send", sessionKey="s", message="delegate sleep", idempotencyKey="1")["runId"]
        assert talk.request("agent.wait", runId=run, timeoutMs=30_000)["status"] == "ok"
        child, parent = talk.request("tasks.list", sessionKey="s")["tasks"]
        assert (child["parentTaskId"], child["status"], parent["id"]) == (run, "timed_out", run)
        words = "timed out after 300 ms in phase provider (the operator's limit)"
        assert child["terminalSummary"] == words
        waited = talk.request("agent.wait", runId=child["id"])
        assert (waited["status"], waited["error"], waited["outcome"]["limitOf"]) == ("timeout", words, "operator")
        own = talk.request("interlock.wait", run=child["id"])
        assert (own["ending"], own["limit_ms"], own["limit_of"]) == ("timed_out", 300, "operator")
        fallen = talk.request("receipts.get", runId=child["id"])["receipt"]["runs"]
        assert [each["outcome"]["limit_of"] for each in fallen] == ["operator"]
        talk.event("agent", lambda told: told["runId"] == child["id"] and "outcome" in told["data"])
        mine = (told for told in talk.events if told["event"] == "agent" and told["payload"]["runId"] == child["id"])
        assert [told["payload"]["data"].get("outcome", {}).get("limitOf") for told in mine][-1] == "operator"


def test_no_request_lengthens_an_agent_s_limit(server: House) -> None:
    """A request for a minute, or for no limit, does not lengthen the limit that the operator gave the agent."""
    with server.connect() as talk:
        asked: list[tuple[str, dict[str, Any]]] = [("agent", {"timeout": 60}), ("chat.send", {"timeoutMs": 0})]
        for number, (method, more) in enumerate(asked):
            params = {
                "sessionKey": f"a{number}",
                "message": "sleep",
                "idempotencyKey": f"k{number}",
                "agentId": "other",
            }
            run = talk.answer(talk.ask(method, **params, **more))["runId"]
            waited = talk.request("agent.wait", runId=run, timeoutMs=30_000)
            assert (waited["outcome"]["limitMs"], waited["outcome"]["limitOf"]) == (200, "agent")
            assert waited["error"].endswith(" (its agent's limit)")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--agent-deadline=nobody=5", "no agent 'nobody' to give a deadline; there are agent"),
        ("--agent-deadline=agent=soon", "--agent-deadline cannot be 'agent=soon'; write names of agents"),
        ("--child-deadline=-5", "--child-deadline cannot be '-5'; write a time"),
    ],
)
def test_a_wrong_limit_is_one_clear_line(option: str, said: str, tmp_path: Path) -> None:
    """A wrong limit keeps the server from starting; one line says what is wrong and what would be right."""
    command = [str(INTERLOCK), "serve", "surfaces.agents:agent", "--driver=inline", "--port=0", option]
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 125 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
