"""npm's published gateway client, unmodified, on the node it asks for, against `interlock serve`.

Every frame in both directions is checked against the published schemas or our own, and nothing of a run may follow its
terminal event (see surfaces/protocol.py). The table WORDS has the words of each ending on every surface.
"""

import os
import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foreign.client import PARTS, TICK_SECONDS, Client, Line, Node, Refused, Server, missing
from interlock.core.projection import TIMEOUT_PHASES, UNDER_WAY

pytestmark = pytest.mark.long

keys = count(1)


class Words(NamedTuple):
    """The words of one ending on every surface that this client reads."""

    wait: tuple[str, str | None]  # agent.wait: status, stopReason
    chat: tuple[str, str | None, str | None]  # the chat event: state, stopReason, errorKind
    lifecycle: tuple[str, str | None]  # the agent event: phase, status
    task: str
    shown: str  # the run's state in the client's own projection
    session: str


WORDS = {
    "completed": Words(("ok", None), ("final", None, None), ("end", None), "completed", "completed", "done"),
    "failed": Words(("error", None), ("error", None, "unknown"), ("error", None), "failed", "error", "failed"),
    "stopped": Words(
        ("error", "rpc"), ("aborted", "rpc", None), ("end", "cancelled"), "cancelled", "aborted", "stopped"
    ),
    "typed": Words(
        ("error", "stop"), ("aborted", "stop", None), ("end", "cancelled"), "cancelled", "aborted", "stopped"
    ),
    "superseded": Words(
        ("error", "superseded"),
        ("aborted", "superseded", None),
        ("end", "superseded"),
        "cancelled",
        "aborted",
        "superseded",
    ),
    "timed_out": Words(
        ("timeout", None), ("error", None, "timeout"), ("error", "timeout"), "timed_out", "timeout", "timed_out"
    ),
    "parent_ended": Words(
        ("error", "parent"), ("aborted", "parent", None), ("end", "cancelled"), "cancelled", "aborted", "stopped"
    ),
    "shutdown": Words(
        ("error", "restart"), ("aborted", "restart", None), ("end", "cancelled"), "cancelled", "aborted", "interrupted"
    ),
    "lost": Words(("error", "lost"), ("error", None, "unknown"), ("error", None), "failed", "error", "lost"),
}


@pytest.fixture(scope="module", autouse=True)
def parts() -> None:
    """Fail in CI, and skip elsewhere, if node or the client is not installed."""
    absent = missing()
    if absent is not None and os.environ.get("CI"):
        pytest.fail(absent)
    if absent is not None:
        pytest.skip(absent)


@pytest.fixture(scope="module")
def server(parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server; stopped without a live run, it exits with status 0."""
    serving = Server(tmp_path_factory.mktemp("foreign"))
    try:
        yield serving
    finally:
        status = serving.end()
    assert status == 0


@pytest.fixture(scope="module")
def node(server: Server) -> Iterator[Node]:
    """A node process; at the end every frame to it was right and every request of it was answered."""
    with Node(TOKEN=server.token, WRONG="not-the-token") as node:
        yield node
    all_was_right(node)


def all_was_right(node: Node) -> None:
    """Require that no frame broke a rule and that every request was answered."""
    assert not node.wrong
    assert node.conversations
    assert not [method for talk in node.conversations.values() for method in talk.unanswered]


@pytest.fixture(scope="module")
def client(node: Node, server: Server) -> Client:
    """A foreign client, connected."""
    client = Client(node, "main")
    client.open(server.url)
    return client


@pytest.fixture(scope="module", autouse=True)
def idle(node: Node, server: Server) -> Client:
    """A client that requests nothing and subscribes to nothing, from its connection on."""
    client = Client(node, "idle")
    client.open(server.url, caps=["interlock.quiet.2"])
    return client


@pytest.fixture
def session() -> str:
    """Return a new session's name."""
    return f"session-{next(keys)}"


def send(client: Client, session: str, text: str, *, key: str | None = None, **more: Any) -> str:
    """Send a chat message and return the id of its run."""
    key = key or f"key-{next(keys)}"
    told = client.ask("chat.send", sessionKey=session, message=text, idempotencyKey=key, **more)
    assert told["status"] == "started", told
    return str(told["runId"])


def begun(client: Client, session: str, text: str = "sleep", **more: Any) -> str:
    """Send a message, and return its run once the agent has said its first word."""
    run = send(client, session, text, **more)
    client.event("chat", lambda chat: chat["runId"] == run and chat["state"] == "delta")
    return run


def ended(client: Client, run: str, word: str, *, text: str | None = None, session: str | None = None) -> Line:
    """Assert that every surface this client reads tells this ending of a run; return its outcome."""
    words, ending = WORDS[word], "stopped" if word == "typed" else word
    waited = client.ask("agent.wait", runId=run, timeoutMs=30_000)
    assert (waited["runId"], waited["status"], waited.get("stopReason")) == (run, *words.wait)
    outcome: Line = waited["outcome"]
    assert outcome["ending"] == ending

    last = client.event("chat", lambda chat: chat["runId"] == run and chat["state"] not in ("delta", "status"))
    assert (last["state"], last.get("stopReason"), last.get("errorKind")) == words.chat
    assert last["message"]["outcome"]["ending"] == ending
    if text is not None:
        assert [part["text"] for part in last["message"]["content"]] == [text]
        deltas = [chat["deltaText"] for chat in client.events("chat", run) if chat["state"] == "delta"]
        assert "".join(deltas) == text
    life = client.events("agent", run)[-1]
    assert (life["stream"], life["data"]["phase"], life["data"].get("status")) == ("lifecycle", *words.lifecycle)
    assert life["data"]["outcome"] == last["message"]["outcome"]
    assert client.shown(run)["status"] == words.shown

    assert client.ask("tasks.get", taskId=run)["task"]["status"] == words.task
    if session is not None:
        assert client.ask("sessions.describe", key=session)["session"]["status"] == words.session
    return outcome


def test_it_connects(client: Client) -> None:
    """The hello has what the client needs: protocol, methods, events, policy, its own rights."""
    hello = client.reported("hello")
    assert (hello["type"], hello["protocol"]) == ("hello-ok", 4)
    assert {"chat.send", "chat.abort", "agent", "agent.wait", "receipts.get"} <= set(hello["features"]["methods"])
    assert {"chat", "agent", "tick", "exec.approval.requested"} <= set(hello["features"]["events"])
    assert hello["policy"]["tickIntervalMs"] == TICK_SECONDS * 1000
    assert hello["auth"]["role"] == "operator"
    assert client.ask("health")["ok"] is True


def test_a_message_is_answered(client: Client, session: str) -> None:
    """A message gets deltas, then one final event with the whole text; the history holds message and reply."""
    run = send(client, session, "say one two three")
    outcome = ended(client, run, "completed", text="one two three", session=session)
    assert {"startedAt", "endedAt"} <= outcome.keys()
    told = client.ask("chat.history", sessionKey=session)["messages"]
    assert [(each["role"], each["content"][0]["text"]) for each in told] == [
        ("user", "say one two three"),
        ("assistant", "one two three"),
    ]


def test_a_reply_is_whole_before_its_end(client: Client, session: str) -> None:
    """The joined deltas hold all of a reply, even if the agent returns more than it streamed."""
    ended(client, send(client, session, "more"), "completed", text="Hello world, and more.", session=session)


def test_what_a_message_asks_for_is_done_refused_or_listed(client: Client, session: str) -> None:
    """Instructions reach the agent; a field with another meaning is refused by name; a hint is listed as ignored."""
    asked = {"sessionKey": session, "message": "told", "extraSystemPrompt": "Be brief.", "thinking": "high"}
    begun = client.begin("agent", final=True, idempotencyKey=f"key-{next(keys)}", deliver=False, **asked)
    assert client.accepted(begun)["ignored"] == ["thinking"]
    assert client.answer(begun)["result"]["payloads"] == [{"text": "Be brief."}]
    for more in ({"model": "large"}, {"agentId": "nobody"}, {"deliver": True}):
        with pytest.raises(Refused, match=r"model|nobody|deliver"):
            client.ask("agent", idempotencyKey=f"key-{next(keys)}", **asked, **more)


def test_tools_and_processes_are_told(client: Client, session: str) -> None:
    """A tool call and a command appear on the agent's stream, and the run completes."""
    run = send(client, session, "use tea")
    ended(client, run, "completed", text="found tea, tea")
    streams = [(event["stream"], event["data"].get("phase")) for event in client.events("agent", run)]
    assert [each for each in streams if each[0] == "lifecycle"] == [("lifecycle", "start"), ("lifecycle", "end")]
    assert ("tool", "start") in streams
    assert ("tool", "result") in streams
    assert "command_output" in dict(streams)


def test_a_failure_says_why(client: Client, session: str) -> None:
    """An agent that raises makes an error with a message, and keeps the text said so far."""
    run = send(client, session, "fail")
    ended(client, run, "failed", text="so far", session=session)
    last = client.events("chat", run)[-1]
    assert "kettle" in last["errorMessage"]
    assert "kettle" in client.shown(run)["errorMessage"]


@pytest.mark.parametrize("named", ["by its key", "by its id", "by its session"])
def test_a_stop(client: Client, session: str, named: str) -> None:
    """`chat.abort` by each name of the run: one ending everywhere, a receipt, and a second stop that finds it ended."""
    key = f"stop-{next(keys)}"
    run = begun(client, session, key=key)
    name = {"by its key": {"runId": key}, "by its id": {"runId": run}, "by its session": {}}[named]
    stopped = client.ask("chat.abort", sessionKey=session, **name)
    assert (stopped["ok"], stopped["aborted"], stopped["runIds"]) == (True, True, [run])
    outcome = ended(client, run, "stopped", text="begun", session=session)
    assert outcome["by"]
    assert [each["id"] for each in client.ask("receipts.get", runId=run)["receipt"]["runs"]] == [run]
    again = client.ask("chat.abort", sessionKey=session, **name)
    assert (again["ok"], again["aborted"], again["runIds"]) == (True, False, [])
    moments = client.ask("runs.timeline", runId=run)["moments"]
    assert moments
    typing = [each["typing"] for each in typed_in(client, session)]
    assert typing == [True, False]


def typed_in(client: Client, session: str) -> list[Line]:
    """Return the typing events of a session."""
    lines = [line["event"] for line in client.node.lines() if line.get("as") == client.name and "event" in line]
    return [
        each["payload"]
        for each in lines
        if each["event"] == "session.typing" and each["payload"]["sessionKey"] == session
    ]


def test_nothing_to_stop_is_no_error(client: Client, session: str) -> None:
    """A stop that finds nothing says so, and is no error."""
    told = client.ask("chat.abort", sessionKey=session)
    assert (told["ok"], told["aborted"], told["runIds"]) == (True, False, [])
    assert client.ask("chat.abort", sessionKey=session, runId="nobody")["aborted"] is False


def test_a_typed_stop(client: Client, session: str) -> None:
    """The message `stop` stops the run, and the agent does not answer it."""
    run = begun(client, session)
    told = client.ask("chat.send", sessionKey=session, message="Stop!", idempotencyKey=f"key-{next(keys)}")
    assert (told["ok"], told["aborted"], told["runIds"]) == (True, True, [run])
    ended(client, run, "typed", text="begun", session=session)
    assert [task["runId"] for task in client.ask("tasks.list", sessionKey=session)["tasks"]] == [run]


def test_a_second_message_takes_over(client: Client, session: str) -> None:
    """The second message supersedes the first run and is answered; its answer names the run it interrupted."""
    first = begun(client, session)
    told = client.ask("chat.send", sessionKey=session, message="say tea", idempotencyKey=f"key-{next(keys)}")
    assert told["interruptedActiveRun"] is True
    outcome = ended(client, first, "superseded", text="begun")
    assert outcome["supersededBy"] == told["runId"]
    ended(client, told["runId"], "completed", text="tea", session=session)


def test_a_message_that_waits_its_turn(client: Client, session: str) -> None:
    """A message with queueMode followup interrupts nothing, and runs after a stop of the run before it."""
    first = begun(client, session)
    second = send(client, session, "say tea", queueMode="followup")
    assert client.ask("tasks.get", taskId=second)["task"]["status"] == "queued"
    assert client.ask("chat.abort", sessionKey=session, runId=first)["runIds"] == [first]
    ended(client, first, "stopped")
    ended(client, second, "completed", text="tea")


def test_a_run_out_of_time(client: Client, session: str) -> None:
    """A run beyond its timeoutMs ends with an error of kind timeout that names the phase."""
    for limit in (300, 3_000, 20_000):  # the run needs to reach its phase within one of these limits
        run = send(client, session, "sleep", timeoutMs=limit)
        if client.ask("agent.wait", runId=run, timeoutMs=30_000)["outcome"].get("phase") == "provider":
            break
    outcome = ended(client, run, "timed_out", text="begun", session=session)
    assert (outcome["limitMs"], outcome["phase"]) == (limit, "provider")
    waited = client.ask("agent.wait", runId=run)
    assert (waited["timeoutPhase"], waited["providerStarted"]) == ("provider", True)


def test_the_phases_of_a_timeout_are_published_ones() -> None:
    """Every word that we tell as timeoutPhase is in the closed set of the published schema."""
    source = PARTS / "node_modules" / "@openclaw" / "gateway-protocol" / "dist" / "index.d.mts"
    found = re.findall(r"timeoutPhase\?: ([^;]+);", source.read_text("utf-8"))
    assert found
    for union in found:
        assert {*TIMEOUT_PHASES, UNDER_WAY} <= set(re.findall(r'"(\w+)"', union))


def test_a_child_ends_with_its_parent(client: Client, session: str) -> None:
    """A stop of the parent ends the child, which is told as parent_ended."""
    run = send(client, session, "delegate sleep")
    child = client.event("chat", lambda chat: chat["state"] == "delta" and told_child(client, run) == chat["runId"])
    stopped = client.ask("chat.abort", sessionKey=session, runId=run)
    assert set(stopped["runIds"]) == {run, child["runId"]}
    ended(client, child["runId"], "parent_ended", text="begun")
    ended(client, run, "stopped")


def told_child(client: Client, run: str) -> str | None:
    """Return the child that a run's events name."""
    named = (event["data"]["runId"] for event in client.events("agent", run) if event["stream"] == "child")
    return next(named, None)


def test_agent_answers_twice(client: Client, session: str) -> None:
    """`agent` answers `accepted` at once, then the ending under the same id, in the words of agent.wait."""
    number = client.begin("agent", final=True, message="say tea", idempotencyKey="agent-1", sessionKey=session)
    first, last = client.accepted(number), client.answer(number)
    assert first["status"] == "accepted"
    assert isinstance(first["acceptedAt"], int)
    assert (last["runId"], last["status"], last["outcome"]["ending"]) == (first["runId"], "ok", "completed")
    ended(client, first["runId"], "completed", text="tea")


@pytest.mark.parametrize("word", ["stopped", "superseded", "timed_out", "failed"])
def test_agents_second_answer_tells_the_ending(client: Client, session: str, word: str) -> None:
    """The second answer of `agent` tells each ending."""
    more = {"timeout": 1} if word == "timed_out" else {}
    text = "fail" if word == "failed" else "sleep"
    key = f"key-{next(keys)}"
    number = client.begin("agent", final=True, message=text, idempotencyKey=key, sessionKey=session, **more)
    run = client.accepted(number)["runId"]
    if word != "timed_out":  # on a slow machine this run times out before its first word
        client.event("chat", lambda chat: chat["runId"] == run and chat["state"] == "delta")
    if word == "stopped":
        assert client.ask("sessions.abort", runId=key)["abortedRunId"] == run
    elif word == "superseded":
        send(client, session, "say tea")
    last = client.answer(number)
    assert (last["status"], last.get("stopReason")) == WORDS[word].wait
    ended(client, run, word)


def test_a_stop_right_behind_the_request(client: Client, session: str) -> None:
    """A stop sent right after the request wins: the agent never begins, and both answers come."""
    number = client.begin("agent", final=True, message="sleep", idempotencyKey="gap-1", sessionKey=session)
    stop = client.begin("chat.abort", sessionKey=session)
    stopped, last = client.answer(stop), client.answer(number)
    assert stopped["runIds"] == [last["runId"]]
    assert (last["status"], last["stopReason"]) == ("error", "rpc")
    assert not [each for each in client.events("chat", last["runId"]) if each["state"] == "delta"]


def test_a_stop_that_comes_first(client: Client, session: str) -> None:
    """A message whose key was stopped before is born stopped."""
    key = f"key-{next(keys)}"
    assert client.ask("chat.abort", sessionKey=session, runId=key)["aborted"] is False
    told = client.ask("chat.send", sessionKey=session, message="say tea", idempotencyKey=key)
    waited = client.ask("agent.wait", runId=told["runId"])
    assert (waited["status"], waited["stopReason"]) == ("error", "rpc")


def test_a_waiter_may_give_up(client: Client, session: str) -> None:
    """A wait that runs out gets `pending`, and a run that never was is `unknown`; neither is told as a timeout."""
    run = begun(client, session)
    assert client.ask("agent.wait", runId=run, timeoutMs=0)["status"] == "pending"
    assert client.ask("agent.wait", runId="nobody", timeoutMs=0)["status"] == "unknown"
    waiting = client.begin("agent.wait", runId=run, timeoutMs=10_000)
    client.ask("sessions.abort", key=session)
    assert client.answer(waiting)["status"] == "error"


def test_a_key_is_used_once(client: Client, session: str) -> None:
    """A repeated key with the same body gets the same answer; with another body it gets an error."""
    body = {"sessionKey": session, "message": "say tea", "idempotencyKey": f"key-{next(keys)}"}
    run = client.ask("chat.send", **body)["runId"]
    ended(client, run, "completed", text="tea")
    again = client.ask("chat.send", **body)
    assert (again["runId"], again["status"]) == (run, "ok")
    with pytest.raises(Refused) as refused:
        client.ask("chat.send", **{**body, "message": "say coffee"})
    assert refused.value.code == "INVALID_REQUEST"


def test_sessions(client: Client, session: str) -> None:
    """Sessions are listed, described, stopped with their queue, and reset."""
    first = begun(client, session)
    second = send(client, session, "say tea", queueMode="followup")
    assert session in [row["key"] for row in client.ask("sessions.list")["sessions"]]
    ended(client, send(client, f"{session}, later", "say tea"), "completed")
    found = client.ask("sessions.list", search=session.upper(), limit=1, offset=1)["sessions"]
    assert [row["key"] for row in found] == [session], "what is sought is found behind the newest, too"
    row = client.ask("sessions.describe", key=session)["session"]
    assert (row["status"], row["activeRunId"]) == ("running", first)
    told = client.ask("sessions.abort", key=session, clearQueued=True)
    assert (told["ok"], told["abortedRunId"]) == (True, first)
    ended(client, first, "stopped")
    assert client.ask("agent.wait", runId=second)["stopReason"] == "rpc"
    assert client.ask("sessions.abort", key=session)["abortedRunId"] is None
    assert client.ask("chat.history", sessionKey=session)["messages"]
    client.ask("sessions.reset", key=session)
    assert not client.ask("chat.history", sessionKey=session)["messages"]


def test_tasks(client: Client, session: str) -> None:
    """A run is a task that is listed by state, read, and cancelled once."""
    run = begun(client, session)
    listed = client.ask("tasks.list", sessionKey=session, status="running")["tasks"]
    assert [task["id"] for task in listed] == [run]
    told = client.ask("tasks.cancel", taskId=run)
    assert (told["found"], told["cancelled"], told["task"]["status"]) == (True, True, "cancelled")
    ended(client, run, "stopped")
    again = client.ask("tasks.cancel", taskId=run)
    assert (again["found"], again["cancelled"]) == (True, False)
    nobody = client.ask("tasks.cancel", taskId="nobody")
    assert (nobody["found"], nobody["cancelled"]) == (False, False)
    assert not client.ask("tasks.list", sessionKey=session, status="running")["tasks"]


def test_children_are_tasks_of_the_session_that_asked(client: Client, session: str) -> None:
    """A session's list has its runs' children and grandchildren, each with its parent task."""
    root = send(client, session, "delegate delegate sleep")
    below = root
    for _ in range(2):
        told = client.event("agent", lambda event, above=below: (event["runId"], event["stream"]) == (above, "child"))
        below = told["data"]["runId"]
    leaf, child, first = client.ask("tasks.list", sessionKey=session)["tasks"]
    assert first["id"] == root and "parentTaskId" not in first
    assert (child["parentTaskId"], leaf["parentTaskId"], leaf["id"]) == (root, child["id"], below)
    assert {task["sessionKey"] for task in (first, child, leaf)} == {session}
    client.ask("tasks.cancel", taskId=root)
    assert {task["status"] for task in client.ask("tasks.list", sessionKey=session)["tasks"]} == {"cancelled"}


@pytest.mark.parametrize(("decision", "reply"), [("allow-once", "allowed"), ("deny", "denied")])
def test_a_question_is_answered(client: Client, session: str, decision: str, reply: str) -> None:
    """A question is told, listed, decided and told as resolved; the first answer stands."""
    run = send(client, session, "ask Deploy?")
    asked = client.event("exec.approval.requested", lambda each: each["runId"] == run)
    listed = client.ask("exec.approval.list")
    assert asked["id"] in [each["id"] for each in (listed if isinstance(listed, list) else listed["approvals"])]
    client.ask("exec.approval.resolve", id=asked["id"], decision=decision)
    resolved = client.event("exec.approval.resolved", lambda each: each["id"] == asked["id"])
    assert (resolved["runId"], resolved["decision"]) == (run, decision)
    ended(client, run, "completed", text=reply)
    with pytest.raises(Refused):
        client.ask("exec.approval.resolve", id=asked["id"], decision="deny" if reply == "allowed" else "allow-once")


def test_a_question_is_void_when_its_run_falls(client: Client, session: str) -> None:
    """A stop voids an open question before the run's terminal event; a later answer is refused."""
    run = send(client, session, "ask Deploy?")
    asked = client.event("exec.approval.requested", lambda each: each["runId"] == run)
    client.ask("chat.abort", sessionKey=session)
    ended(client, run, "stopped")
    assert client.event("exec.approval.resolved", lambda each: each["id"] == asked["id"])["runId"] == run
    with pytest.raises(Refused) as refused:
        client.ask("exec.approval.resolve", id=asked["id"], decision="allow-once")
    assert refused.value.code


def kind_of(told: dict[str, Any]) -> str | None:
    """Return the kind of the event in a frame of a watch; None if the frame is about the watch itself."""
    return told.get("event", {}).get("data", {}).get("type")


def test_our_own_methods_by_a_stranger(client: Client, session: str) -> None:
    """The foreign client can call our own methods, for which the published protocol has no word."""
    run = client.ask("interlock.send", session=session, text="sleep", key="own-1", strategy="reject")["run_id"]
    assert client.ask("interlock.watch", watch=7, session=session) == {"watch": 7}
    client.event("interlock.event", lambda each: each["watch"] == 7 and kind_of(each) == "delta")
    with pytest.raises(Refused):
        client.ask("interlock.send", session=session, text="say tea", strategy="reject")
    assert [each["id"] for each in client.ask("interlock.runs", session=session)] == [run]
    assert client.ask("interlock.find", name="own-1")["id"] == run
    assert client.ask("interlock.stop", run=run)["aborted"] is True
    ended(client, run, "stopped", text="begun")
    outcome = client.ask("interlock.wait", run=run, drained=True)
    assert outcome["ending"] == "stopped"
    receipt = client.event("interlock.event", lambda each: kind_of(each) == "receipt")
    assert receipt["watch"] == 7
    assert [each["role"] for each in client.ask("interlock.history", session=session)][:2] == ["user", "assistant"]
    for method in ("interlock.sessions", "interlock.questions", "interlock.processes"):
        client.ask(method)
    wake = client.ask("interlock.wake", session=session, text="say tea", every=3600)
    assert [each["id"] for each in client.ask("interlock.wakes", session=session)] == [wake["id"]]
    client.ask("interlock.unwake", wake=wake["id"])
    client.ask("interlock.strategy", session=session, strategy="queue")
    client.ask("interlock.unwatch", watch=7)


def test_two_clients_see_the_same(client: Client, node: Node, server: Server, session: str) -> None:
    """A second connection of the same principal is told the same run, and may stop it."""
    other = Client(node, "other")
    other.open(server.url)
    run = begun(client, session)
    other.event("chat", lambda chat: chat["runId"] == run)
    assert other.ask("chat.abort", sessionKey=session)["runIds"] == [run]
    ended(client, run, "stopped", text="begun")
    last = client.events("chat", run)[-1]
    assert other.event("chat", lambda chat: chat["runId"] == run and chat["state"] == "aborted") == last
    other.close()


def test_what_is_wrong_is_refused(client: Client, node: Node, session: str) -> None:
    """An unknown method, an unknown field, a wrong type and an attachment get typed errors; the connection goes on."""
    wrong: list[tuple[str, Line]] = [
        ("no.such.method", {}),
        ("chat.send", {"sessionKey": session, "message": "hi", "idempotencyKey": "w-1", "own": 1}),
        ("chat.send", {"sessionKey": session, "message": 7, "idempotencyKey": "w-2"}),
        (
            "chat.send",
            {"sessionKey": session, "message": "hi", "idempotencyKey": "w-3", "attachments": [{"type": "image"}]},
        ),
        ("agent.wait", {}),
    ]
    node.on_purpose |= {method for method, _ in wrong}
    try:
        for method, params in wrong:
            with pytest.raises(Refused) as refused:
                client.ask(method, **params)
            assert refused.value.code == "INVALID_REQUEST", (method, params)
    finally:
        node.on_purpose.clear()
    assert client.ask("health")["ok"] is True
    assert client.count("closed") == 0


@pytest.mark.parametrize("token", ["WRONG", "NOTHING"])
def test_a_wrong_token_is_told_once(node: Node, server: Server, token: str) -> None:
    """A client with a wrong token, or none, gets an error at which it gives up, instead of dialling for ever."""
    stranger = Client(node, f"stranger-{token}")
    stranger.dial(server.url, token=token)
    paused = stranger.reported("paused")
    assert paused["detailCode"] == {"WRONG": "AUTH_TOKEN_MISMATCH", "NOTHING": "AUTH_TOKEN_MISSING"}[token]
    assert stranger.count("hello") == 0


def test_another_protocol_is_refused(node: Node, server: Server) -> None:
    """A client of another version is told the version that is spoken here, and gives up."""
    old = Client(node, "old")
    old.dial(server.url, minProtocol=3, maxProtocol=3)
    assert old.reported("paused")["detailCode"] == "PROTOCOL_MISMATCH"


def test_ticks_keep_it_alive(node: Node, idle: Client) -> None:
    """Ticks keep a client connected that would leave after two intervals of silence."""
    node.until(lambda lines: [each for each in told_to(idle, lines) if each != "tick"] or ticked(idle, lines), "a tick")
    assert set(told_to(idle, node.lines())) == {"tick"}
    assert idle.count("closed") == 0


def told_to(client: Client, lines: list[Line]) -> list[str]:
    """Return the names of the events that a client received."""
    return [line["event"]["event"] for line in lines if line.get("as") == client.name and "event" in line]


def ticked(client: Client, lines: list[Line]) -> bool | None:
    """Return whether ticks came for longer than the client bears silence; None if it is too early to tell."""
    return told_to(client, lines).count("tick") >= 4 or None


def test_a_restart(tmp_path: Path, parts: None) -> None:
    """After a kill and a TERM the client reconnects by itself, each key has its answer, and nothing runs twice."""
    server = Server(tmp_path)
    try:
        with Node(TOKEN=server.token) as node:
            client = Client(node, "main")
            client.open(server.url)
            done = {"sessionKey": "done", "message": "say tea", "idempotencyKey": "done-1"}
            first = client.ask("chat.send", **done)["runId"]
            ended(client, first, "completed", text="tea")
            lost = begun(client, "lost", key="cut-lost")
            server.end(signal.SIGKILL)
            server = Server(tmp_path, port=server.port)
            client.reported("hello", times=2)
            after_a_restart(client, lost, "lost")
            cut = begun(client, "shutdown", key="cut-shutdown")
            server.end(signal.SIGTERM)
            last = client.event("chat", lambda chat: chat["runId"] == cut and chat["state"] != "delta")
            assert (last["state"], last["stopReason"]) == WORDS["shutdown"].chat[:2]
            client.node.until(
                lambda lines: [1012 for line in lines if line.get("closed", [0])[0] == 1012] or None, "1012"
            )
            server = Server(tmp_path, port=server.port)
            # A new client: the first would reconnect as well, but dials less and less often.
            later = Client(node, "later")
            later.open(server.url)
            after_a_restart(later, cut, "shutdown")
            for each, run, word in ((done, first, "completed"), (body("lost"), lost, "lost")):
                again = later.ask("chat.send", **each)
                assert (again["runId"], again["status"], again.get("stopReason")) == (run, *WORDS[word].wait)
        all_was_right(node)
    finally:
        server.end()


def body(word: str) -> Line:
    """Return the message whose run a restart cuts."""
    return {"sessionKey": word, "message": "sleep", "idempotencyKey": f"cut-{word}"}


def after_a_restart(client: Client, run: str, word: str) -> None:
    """Assert that every surface tells how a restart ended a run."""
    again = client.ask("chat.send", **body(word))
    assert (again["runId"], again["status"], again["stopReason"]) == (run, *WORDS[word].wait)
    waited = client.ask("agent.wait", runId=f"cut-{word}")
    assert (waited["runId"], waited["outcome"]["ending"]) == (run, word)
    assert client.ask("tasks.get", taskId=run)["task"]["status"] == WORDS[word].task
    assert client.ask("sessions.describe", key=word)["session"]["status"] == WORDS[word].session
    with pytest.raises(Refused) as refused:
        client.ask("chat.send", **{**body(word), "message": "say coffee"})
    assert refused.value.code == "INVALID_REQUEST"
