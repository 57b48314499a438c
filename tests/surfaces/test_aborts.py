"""`chat.abort` and `sessions.abort`: the same for a session, and an answer that says what was left alone."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from surfaces.raw import House, Talk, house

NUMBERS = count()


def key() -> str:
    """Return a name that nobody used."""
    return f"abort-{next(NUMBERS)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with two people beside the operator."""
    with house(tmp_path_factory.mktemp("aborts") / "data", "surfaces.agents:agent", "--driver=inline") as server:
        yield server
        assert server.healthy()


@pytest.fixture(scope="module")
def alice(server: House) -> Iterator[Talk]:
    """Somebody who may write."""
    with server.connect(server.add("alice", "write")) as talk:
        yield talk


@pytest.fixture(scope="module")
def bob(server: House) -> Iterator[Talk]:
    """Somebody else who may."""
    with server.connect(server.add("bob", "write")) as talk:
        yield talk


def busy(talk: Talk) -> tuple[str, str, str]:
    """Fill a session: a run that has detached a process, and a message that waits; return it and the two runs."""
    session = key()
    first = talk.request("chat.send", sessionKey=session, message="detach", idempotencyKey=key())["runId"]
    talk.event("chat", lambda event: event["runId"] == first and event["state"] == "delta")
    asked = {"sessionKey": session, "message": "sleep", "idempotencyKey": key(), "queueMode": "followup"}
    second = talk.request("chat.send", **asked)["runId"]
    return session, first, second


def left(talk: Talk, session: str) -> list[str]:
    """The processes of a session."""
    return [each["command"] for each in talk.request("interlock.processes", session=session)]


def emptied(talk: Talk, session: str) -> None:
    """Wait until nothing of a session is left."""
    talk.until(lambda: not left(talk, session), "end of its processes")
    runs = talk.request("interlock.runs", session=session)
    assert all(run["outcome"] is not None for run in runs)


WHOLE: list[tuple[str, Any]] = [
    ("chat.abort", lambda session, run: {"sessionKey": session}),
    ("sessions.abort", lambda session, run: {"key": session, "clearQueued": True}),
    ("sessions.abort", lambda session, run: {"runId": run, "clearQueued": True}),
]


@pytest.mark.parametrize(("method", "asked"), WHOLE)
def test_the_stop_of_a_session_leaves_nothing(alice: Talk, method: str, asked: Any) -> None:
    """What runs, what waits and what is detached ends, and so the answer names nothing that remains."""
    session, first, _ = busy(alice)
    answer = alice.request(method, **asked(session, first))
    assert first in (answer.get("runIds") or [answer["abortedRunId"]])
    assert "remaining" not in answer
    emptied(alice, session)


def test_the_stop_of_what_is_detached_alone_is_a_stop(alice: Talk) -> None:
    """Also where no run is left: the answer says that something was stopped."""
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
    """The message that waited runs now; the detached process goes on, and is named."""
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
    """The stop of one message that waits leaves the run and the other one."""
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
    """Whoever may not is told that there is no such run, in the words for one that never was, and nothing ends."""
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
    """The message that comes with it does not run."""
    name = key()
    answer = alice.request("chat.abort", sessionKey=key(), runId=name)
    assert (answer["aborted"], "will not run" in answer["reason"]) == (False, True)
    born = alice.request("chat.send", sessionKey=key(), message="hi", idempotencyKey=name)
    assert (born["status"], born["outcome"]["ending"]) == ("error", "stopped")
