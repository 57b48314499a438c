"""`chat.abort` and `sessions.abort` stop a session alike, and the answer lists what goes on."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from surfaces.raw import BOUND_SECONDS, House, Talk, house

NUMBERS = count()


def key() -> str:
    """Return a name that nobody used."""
    return f"abort-{next(NUMBERS)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with two principals besides the operator."""
    with house(tmp_path_factory.mktemp("aborts") / "data", "surfaces.agents:agent", "--driver=inline") as server:
        yield server
        assert server.healthy()


@pytest.fixture(scope="module")
def alice(server: House) -> Iterator[Talk]:
    """A connection of a principal with scope write."""
    with server.connect(server.add("alice", "write")) as talk:
        yield talk


@pytest.fixture(scope="module")
def bob(server: House) -> Iterator[Talk]:
    """A connection of another principal with scope write."""
    with server.connect(server.add("bob", "write")) as talk:
        yield talk


def busy(talk: Talk) -> tuple[str, str, str]:
    """Start a run that detaches a process, and queue a message; return the session and the two runs."""
    session = key()
    first = talk.request("chat.send", sessionKey=session, message="detach", idempotencyKey=key())["runId"]
    talk.event("chat", lambda event: event["runId"] == first and event["state"] == "delta")
    asked = {"sessionKey": session, "message": "sleep", "idempotencyKey": key(), "queueMode": "followup"}
    second = talk.request("chat.send", **asked)["runId"]
    return session, first, second


def left(talk: Talk, session: str) -> list[str]:
    """Return the processes of a session."""
    return [each["command"] for each in talk.request("interlock.processes", session=session)]


def emptied(talk: Talk, session: str) -> None:
    """Wait until a session has no live run and no process."""
    # Ask again and again: the end of a detached process is no event, so to read on would be to wait for a tick.
    end = time.monotonic() + BOUND_SECONDS
    while left(talk, session):
        assert time.monotonic() < end, "its processes are still there"
        time.sleep(0.01)
    runs = talk.request("interlock.runs", session=session)
    assert all(run["outcome"] is not None for run in runs)


WHOLE: list[tuple[str, Any]] = [
    ("chat.abort", lambda session, run: {"sessionKey": session}),
    ("sessions.abort", lambda session, run: {"key": session, "clearQueued": True}),
    ("sessions.abort", lambda session, run: {"runId": run, "clearQueued": True}),
]


@pytest.mark.parametrize(("method", "asked"), WHOLE)
def test_the_stop_of_a_session_leaves_nothing(alice: Talk, method: str, asked: Any) -> None:
    """The stop of a session ends runs, waiting messages and detached processes; the answer lists none as left."""
    session, first, _ = busy(alice)
    answer = alice.request(method, **asked(session, first))
    assert first in (answer.get("runIds") or [answer["abortedRunId"]])
    assert "remaining" not in answer
    emptied(alice, session)


def test_the_stop_of_what_is_detached_alone_is_a_stop(alice: Talk) -> None:
    """The stop of a session in which only a detached process is left says that something was stopped."""
    session, first, second = busy(alice)
    for run in (second, first):
        alice.request("chat.abort", sessionKey=session, runId=run)
    assert left(alice, session) == ["sleep 600"]
    answer = alice.request("sessions.abort", key=session, clearQueued=True)
    assert (answer["status"], answer["abortedRunId"]) == ("aborted", None)
    emptied(alice, session)


PARTS: list[tuple[str, Any]] = [
    ("chat.abort", lambda session, run: {"sessionKey": session, "runId": run}),
    ("sessions.abort", lambda session, run: {"key": session}),
    ("sessions.abort", lambda session, run: {"runId": run}),
]


@pytest.mark.parametrize(("method", "asked"), PARTS)
def test_the_stop_of_a_run_lists_what_remains(alice: Talk, method: str, asked: Any) -> None:
    """After the stop of one run the queued message runs and the detached process goes on; the answer names both."""
    session, first, second = busy(alice)
    answer = alice.request(method, **asked(session, first))
    assert first in (answer.get("runIds") or [answer["abortedRunId"]])
    assert answer["remaining"] == {"running": [second], "queued": 0, "detached": ["sleep 600"]}
    assert left(alice, session) == ["sleep 600"]
    answer = alice.request("chat.abort", sessionKey=session)
    assert answer["runIds"] == [second]
    assert "remaining" not in answer
    emptied(alice, session)


def test_what_waits_is_counted(alice: Talk) -> None:
    """The stop of one waiting message leaves the run and the other waiting message."""
    session, first, second = busy(alice)
    asked = {"sessionKey": session, "message": "sleep", "idempotencyKey": key(), "queueMode": "followup"}
    alice.request("chat.send", **asked)
    answer = alice.request("chat.abort", sessionKey=session, runId=second)
    assert answer["runIds"] == [second]
    assert answer["remaining"] == {"running": [first], "queued": 1, "detached": ["sleep 600"]}
    alice.request("chat.abort", sessionKey=session)
    emptied(alice, session)


@pytest.mark.parametrize("named", ["its own", "hers", "nobody's"])
def test_a_run_is_stopped_by_who_may_whatever_session_is_named_beside_it(
    alice: Talk, bob: Talk, server: House, named: str
) -> None:
    """A stop by somebody without the right gets the same answer as for a run that never was, and ends nothing."""
    session, first, _ = busy(bob)
    hers, _, _ = busy(alice)
    beside = {"its own": session, "hers": hers, "nobody's": key()}[named]
    refused = alice.request("chat.abort", sessionKey=beside, runId=first)
    never = alice.request("chat.abort", sessionKey=beside, runId="r-1-ffffff")
    assert (refused["aborted"], refused["runIds"]) == (False, [])
    assert refused["reason"] == f"no run {first!r} that alice may stop"
    assert never["reason"] == refused["reason"].replace(first, "r-1-ffffff")
    assert refused.get("remaining") == never.get("remaining")
    assert (bob.request("tasks.get", taskId=first))["task"]["status"] == "running"
    answer = bob.request("chat.abort", sessionKey=beside, runId=first)
    assert (answer["aborted"], answer["runIds"], answer["receipt"]["session"]) == (True, [first], f"bob/{session}")
    for talk, mine in ((alice, hers), (bob, session)):
        talk.request("chat.abort", sessionKey=mine)
        emptied(talk, mine)


def test_a_key_that_was_not_seen_is_kept_and_the_answer_says_so(alice: Talk) -> None:
    """A stop by an unknown key keeps the message that comes later with that key from running."""
    name = key()
    answer = alice.request("chat.abort", sessionKey=key(), runId=name)
    assert (answer["aborted"], "will not run" in answer["reason"]) == (False, True)
    born = alice.request("chat.send", sessionKey=key(), message="hi", idempotencyKey=name)
    assert (born["status"], born["outcome"]["ending"]) == ("error", "stopped")
