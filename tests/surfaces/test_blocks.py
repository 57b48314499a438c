"""Streamed and returned text over the wire: a reply is whole before its end, and no part is told twice."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from surfaces.raw import BOUND_SECONDS, House, house

NUMBERS = count()
SAID = {  # message → blocks of the reply
    "more": ["Hello world, and more."],
    "else": ["Hello", "Something else."],
    "parts": ["one", "two", "thr", "four"],
}


@pytest.fixture(scope="module", params=["inline", "host"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway on each driver."""
    data = tmp_path_factory.mktemp("blocks") / "data"
    with house(data, "surfaces.agents:agent", f"--driver={request.param}") as server:
        yield server
        assert server.healthy()


def session() -> str:
    """Return a new session's name."""
    return f"block-{next(NUMBERS)}"


@pytest.mark.parametrize("asked", SAID)
def test_the_published_streams_hold_the_whole_reply_before_its_end(server: House, asked: str) -> None:
    """The joined deltas of `chat`, and those of `agent`, are the reply in the terminal event."""
    whole = "\n\n".join(SAID[asked])
    with server.connect() as talk:
        run = talk.request("chat.send", sessionKey=session(), message=asked, idempotencyKey=session())["runId"]
        final = talk.event("chat", lambda event: event["runId"] == run and event["state"] == "final")
        mine = [event["payload"] for event in talk.events if event["payload"].get("runId") == run]
        chat = [event["deltaText"] for event in mine if event.get("state") == "delta"]
        agent = [event["data"]["delta"] for event in mine if event.get("stream") == "assistant"]
        assert ("".join(chat), "".join(agent)) == (whole, whole)
        assert final["message"]["content"] == [{"type": "text", "text": whole}]
        assert mine[-1] == final


@pytest.mark.parametrize("asked", SAID)
def test_our_own_wording_and_the_conversation_hold_each_block_once(server: House, asked: str) -> None:
    """A block replaces its deltas, and begins with their text."""
    where = session()
    with server.connect(caps=["interlock.quiet.2"]) as talk:
        run = talk.request("interlock.send", session=where, text=asked)["run_id"]
        talk.request("interlock.watch", watch=1, run=run)
        talk.event("interlock.event", lambda told: told.get("event", {}).get("data", {}).get("type") == "ended")
        told = [event["payload"]["event"]["data"] for event in talk.events if event["payload"].get("event")]
        assert [data["text"] for data in told if data["type"] == "block"] == SAID[asked]
        open_text, reply = "", []
        for data in told:
            if data["type"] == "delta":
                open_text += data["text"]
            elif data["type"] == "block":
                assert data["text"].startswith(open_text)
                open_text = ""
                reply.append(data["text"])
        assert (reply, open_text) == (SAID[asked], "")
        history = talk.request("interlock.history", session=where)
        assert [entry["text"] for entry in history if entry["role"] == "assistant"] == SAID[asked]


@pytest.mark.parametrize("asked", SAID)
def test_the_shell_prints_the_reply_once(server: House, asked: str) -> None:
    """`send` prints the reply as it comes and `watch` prints it afterwards, each once."""
    where, whole = session(), "\n\n".join(SAID[asked]) + "\n"
    assert shell(server, "send", asked, "--watch", "--session", where) == whole
    with server.connect(caps=["interlock.quiet.2"]) as talk:
        run = talk.request("interlock.runs", session=where)[0]["id"]
    assert shell(server, "watch", run) == whole


def shell(server: House, *arguments: Any) -> str:
    """Run a verb of the shell and return its output."""
    command = [sys.executable, "-m", "interlock.cli", *arguments, "--url", server.ready["url"]]
    done = subprocess.run(
        [*command, "--data", str(server.data)], capture_output=True, text=True, timeout=2 * BOUND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("stop", "ran", "waited"),
    [
        ("chat.abort", "interrupted: stopped by operator; its effect is unknown", "not run: stopped by operator"),
        (
            "chat.send",
            "interrupted: superseded by a newer message of operator; its effect is unknown",
            "not run: superseded by a newer message of operator",
        ),
    ],
    ids=["stopped", "superseded"],
)
def test_a_call_that_an_end_left_without_a_result_says_which_and_whose(
    server: House, stop: str, ran: str, waited: str
) -> None:
    """The conversation and the terminal event say of each open call whether it ran, what ended its run and by whom."""
    where = session()
    with server.connect(caps=["interlock.quiet.2"]) as talk:
        run = talk.request("chat.send", sessionKey=where, message="call", idempotencyKey=session())["runId"]
        talk.request("interlock.watch", watch=1, run=run)
        talk.event("interlock.event", lambda told: told.get("event", {}).get("data", {}).get("state") == "running")
        more = {} if stop == "chat.abort" else {"message": "hi", "idempotencyKey": session()}
        talk.request(stop, sessionKey=where, **more)
        ended = talk.event("interlock.event", lambda told: told.get("event", {}).get("data", {}).get("type") == "ended")
        assert sorted(tool["error"] for tool in ended["event"]["data"]["tools"]) in ([ran, ran], [ran, waited])
        history = talk.request("chat.history", sessionKey=where)["messages"]
        results = [each["content"][0]["text"] for each in history if each["role"] == "toolResult"]
        assert sorted(results) == sorted(tool["error"] for tool in ended["event"]["data"]["tools"])
