"""The schema kit: the extract equals the published package, and the checks refuse wrong frames."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from foreign.client import PACKAGE, missing
from surfaces.protocol import EXTRACT, SPOKEN, VERSION, Conversation, Wrong, check_frame, extract, published

CHAT = {"runId": "r-1", "sessionKey": "s", "seq": 1, "state": "delta", "deltaText": "hello"}
LIFECYCLE = {"runId": "r-1", "seq": 9, "stream": "lifecycle", "ts": 1, "data": {"phase": "end"}}


def event(name: str, payload: Any, **more: Any) -> str:
    """Return an event frame."""
    return json.dumps({"type": "event", "event": name, "payload": payload, **more})


def request(number: int, method: str, params: Any) -> str:
    """Return a request frame."""
    return json.dumps({"type": "req", "id": str(number), "method": method, "params": params})


def answer(number: int, payload: Any) -> str:
    """Return an answer."""
    return json.dumps({"type": "res", "id": str(number), "ok": True, "payload": payload})


def test_the_extract_is_what_is_published() -> None:
    """Every definition equals that of the installed package, letter by letter, with its notice and version."""
    absent = missing()
    if absent is not None and os.environ.get("CI"):
        pytest.fail(absent)
    if absent is not None:
        pytest.skip(absent)
    assert extract(PACKAGE) == EXTRACT.read_text("utf-8"), f"run {sys.executable} tests/surfaces/protocol.py {PACKAGE}"


def test_the_extract_stands_alone() -> None:
    """The extract names its version, carries the licence, has all we speak and refers to nothing outside."""
    kept = json.loads(EXTRACT.read_text("utf-8"))
    assert (kept["version"], sorted(kept["definitions"])) == (VERSION, SPOKEN)
    assert "MIT License" in kept["license"]
    assert "$ref" not in EXTRACT.read_text("utf-8")
    for name in SPOKEN:
        published(name)
    pins = json.loads((Path(__file__).parent.parent / "foreign" / "package.json").read_text("utf-8"))["dependencies"]
    assert {pin for name, pin in pins.items() if name.startswith("@openclaw/")} == {VERSION}


@pytest.mark.parametrize(
    ("raw", "by_client"),
    [
        (request(1, "chat.send", {"sessionKey": "s", "message": "hi", "idempotencyKey": "k"}), True),
        (request(1, "agent.wait", {"runId": "r"}), True),
        (request(1, "health", {}), True),
        (request(1, "receipts.get", {"runId": "r"}), True),
        (request(1, "interlock.send", {"session": "s", "text": "hi"}), True),
        (event("chat", CHAT, seq=1), False),
        (event("agent", LIFECYCLE), False),
        (event("tick", {"ts": 1}), False),
        (json.dumps({"type": "res", "id": "1", "ok": False, "error": {"code": "FORBIDDEN", "message": "no"}}), False),
    ],
)
def test_what_is_right_passes(raw: str, by_client: bool) -> None:
    """Right frames of either side, of the published protocol and of our own methods, pass."""
    check_frame(raw, sent_by_client=by_client)


@pytest.mark.parametrize(
    ("raw", "by_client"),
    [
        (event("chat", CHAT), True),
        (request(1, "health", {}), False),
        (request(1, "chat.send", {"sessionKey": "s", "message": "hi"}), True),
        (request(1, "chat.send", {"sessionKey": "s", "message": "hi", "idempotencyKey": "k", "own": 1}), True),
        (request(1, "interlock.send", {"session": "s", "text": "hi", "own": 1}), True),
        (request(1, "interlock.nothing", {}), True),
        (event("chat", {**CHAT, "generation": 1}), False),
        (event("chat", {**CHAT, "state": "stopped"}), False),
        (event("chat", CHAT, seq=None), False),
        (event("agent", {**LIFECYCLE, "outcome": {}}), False),
        (event("interlock.event", {"watch": "one"}), False),
        (event("interlock.nothing", {}), False),
        (event("tick", {}), False),
        (json.dumps({"type": "res", "id": "1", "ok": True, "error": None}), False),
        (json.dumps({"type": "res", "id": "1", "ok": False}), False),
        (json.dumps({"type": "res", "id": "1", "ok": False, "error": {"code": "", "message": "no"}}), False),
    ],
)
def test_what_is_wrong_is_seen(raw: str, by_client: bool) -> None:
    """A wrong side, a missing or unknown field, a null, a word outside the list and an unknown name are refused."""
    with pytest.raises(Wrong):
        check_frame(raw, sent_by_client=by_client)


def test_an_answer_is_checked_by_what_was_asked() -> None:
    """The same payload is right for one method and wrong for another."""
    talk = Conversation()
    talk.client(request(1, "tasks.get", {"taskId": "r"}))
    talk.client(request(2, "tasks.list", {}))
    with pytest.raises(Wrong, match=r"tasks\.get"):
        talk.server(answer(1, {"tasks": []}))
    talk.server(answer(2, {"tasks": []}))
    assert talk.unanswered == ["tasks.get"]


def test_an_answer_comes_once_and_agents_twice() -> None:
    """An answer too many is refused, and so is an answer to no request."""
    talk = Conversation()
    talk.client(request(1, "agent", {"message": "m", "idempotencyKey": "k"}))
    talk.client(request(2, "health", {}))
    talk.server(answer(1, {"runId": "r", "status": "accepted"}))
    talk.server(answer(2, {}))
    talk.server(answer(1, {"runId": "r", "status": "ok"}))
    for number in (1, 2, 3):
        with pytest.raises(Wrong, match="not asked, or twice"):
            talk.server(answer(number, {"runId": "r", "status": "ok"}))


@pytest.mark.parametrize(
    "after",
    [
        ("chat", {**CHAT, "seq": 10}),
        ("chat", {**CHAT, "seq": 10, "state": "final", "deltaText": None}),
        ("agent", {**LIFECYCLE, "seq": 10, "stream": "tool"}),
        ("agent", {**LIFECYCLE, "seq": 10}),
        ("exec.approval.requested", {"id": "q", "runId": "r-1"}),
    ],
)
def test_nothing_of_a_run_follows_its_end(after: tuple[str, dict[str, Any]]) -> None:
    """After its one terminal event on each stream, any further event of a run is refused, on either stream."""
    name, payload = after
    payload = {key: value for key, value in payload.items() if value is not None}
    talk = Conversation()
    talk.server(event("chat", CHAT))
    talk.server(event("agent", LIFECYCLE))
    talk.server(event("chat", {"runId": "r-1", "sessionKey": "s", "seq": 9, "state": "aborted", "stopReason": "rpc"}))
    talk.server(event("chat", {**CHAT, "runId": "r-2"}))
    with pytest.raises(Wrong, match="after its terminal event"):
        talk.server(event(name, payload))


def test_numbers_rise() -> None:
    """A run's numbers may have holes but must rise; a connection's must have no holes."""
    talk = Conversation()
    talk.server(event("chat", {**CHAT, "seq": 5}, seq=1))
    talk.server(event("chat", {**CHAT, "seq": 9}, seq=2))
    with pytest.raises(Wrong, match="number 9 after 9"):
        talk.server(event("chat", {**CHAT, "seq": 9}, seq=3))
    with pytest.raises(Wrong, match="connection number 5 after 3"):
        talk.server(event("tick", {"ts": 1}, seq=5))
