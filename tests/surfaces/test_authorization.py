"""The rights over the wire: every method, every kind of caller, everybody's runs.

`rights.TABLE` is complete: a method of the gateway without a row fails the suite, and a name that is not a method is
denied.
"""

import asyncio
import json
import re
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import websockets

from interlock import open_control
from interlock.core.scopes import Scope
from interlock.protocol import frames
from surfaces import busy
from surfaces.raw import BOUND_SECONDS, INTERLOCK, Bytes, Headers, House, Talk, WireError, greeting, house
from surfaces.rights import (
    ASKED,
    CALLERS,
    ROWS,
    SAYS,
    UNKNOWN,
    WATCH,
    Asked,
    People,
    Thing,
    again,
    ask,
    cell,
    key,
    people,
    same,
    state_of,
)
from surfaces.scene import ROOT

pytestmark = pytest.mark.long

SCOPES = {"owner": "write", "other": "write", "approve": "approve", "read": "read"}


@pytest.fixture(
    scope="module", params=[f"{kind} {when}" for kind in ("sqlite", "memory") for when in ("before", "after")]
)
def they(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """Everybody of the table, on each kind of store, before and after the server was closed and opened again."""
    kind, _, when = request.param.partition(" ")
    made = people(kind, tmp_path_factory.mktemp("rights") / "data")
    if when == "after":
        again(made)
    yield made
    for talk in made.talks.values():
        assert talk.conversation.unanswered in ([], ["agent (second frame)"])
    made.leave()
    assert made.server.healthy()
    made.server.close()


def test_every_method_has_a_row() -> None:
    """The rows of the table are exactly the methods of the gateway."""
    assert set(ROWS) == set(frames.METHODS) == set(ASKED)


@pytest.mark.parametrize("method", ROWS)
def test_the_table(they: People, method: str) -> None:
    """Every caller gets what its row says; a denial changes nothing, and a stranger's reveals nothing."""
    for scope, relation in CALLERS:
        talk, expected = they.talks[they.name(scope, relation)], cell(method, scope, relation)
        for asked in ASKED[method]:
            thing = they.busy(scope) if expected != "scope" or not they.things[scope].run else they.things[scope]
            before = they.state(thing) if expected in ("404", "none") and scope is Scope.WRITE else None
            got, raw = ask(talk, method, asked(thing), thing)
            assert got == expected, (scope, relation, asked(thing), raw)
            if before is not None:
                assert they.state(thing) == before, (relation, asked(thing))
            unknown, other = ask(talk, method, asked(UNKNOWN), UNKNOWN)
            assert unknown == ("scope" if expected == "scope" else ROWS[method]["unknown"]), (scope, relation, other)
            names = set(vars(thing).values()) & {*map(str, asked(thing).values())}
            alike = expected == "scope" or (relation == "stranger" and expected in ("404", "none"))
            if alike and (names or method not in SAYS):
                assert same(raw, thing) == same(other, UNKNOWN)


@pytest.mark.parametrize("method", ROWS)
def test_a_removed_token_is_good_for_nothing(they: People, method: str) -> None:
    """A removed token opens no connection, whatever its scope, even while a session is shared with its principal."""
    scopes = list(Scope)
    scope = scopes[list(ROWS).index(method) % len(scopes)]
    assert they.server.refused(they.removed[scope])[1].code == 4001
    with Talk(they.server.url) as talk:
        assert talk.refused(method, **ASKED[method][0](they.busy(scope)))["code"] != "NOT_FOUND"
        assert talk.closed().code in (1008, 4001)


class Scene:
    """A server, a connection of everybody, and a busy session of the owner's."""

    def __init__(self, server: House) -> None:
        self.server = server
        self.tokens = {name: server.add(name, scope) for name, scope in SCOPES.items()}
        self.tokens["operator"] = server.token
        self.talks = {name: server.connect(token) for name, token in self.tokens.items()}
        self._things = 0
        self.thing = self.make()

    def make(self) -> Thing:
        """Make a busy session of the owner's; return it by the names that others use."""
        owner, self._things = self.talks["owner"], self._things + 1
        session = f"a-session-{self._things}"
        stopped = owner.request("chat.send", sessionKey=session, message="sleep", idempotencyKey=key())["runId"]
        receipt = owner.request("chat.abort", sessionKey=session, runId=stopped)["receipt"]["id"]
        run = owner.request("chat.send", sessionKey=session, message="busy", idempotencyKey=key())["runId"]
        question = owner.event("exec.approval.requested", lambda each: each["runId"] == run)["id"]
        owner.request("chat.send", sessionKey=session, message="say", idempotencyKey=key(), queueMode="followup")
        wake = owner.request("interlock.wake", session=session, text="say", at=time.time() + 9_999)["id"]
        return Thing(f"owner/{session}", run, question, wake, stopped, receipt)

    def state(self, thing: Thing) -> Any:
        """Return everything about a session, as the operator sees it."""
        return state_of(self.talks["operator"], thing)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Everybody, connected to a server that allows one host and one origin besides its own."""
    named = ("--allow-host", "good.example", "--allow-origin", "page.example")
    data = tmp_path_factory.mktemp("house") / "data"
    with house(data, "surfaces.busy:agent", "--driver", "inline", *named) as server:
        made = Scene(server)
        yield made
        for talk in made.talks.values():
            assert talk.conversation.unanswered in ([], ["agent (second frame)"])
            talk.close()
        assert server.healthy()


def _answered(talk: Talk, method: str, params: dict[str, Any]) -> str:
    try:
        talk.request(method, **params)
    except WireError as refused:
        return {"FORBIDDEN": "scope"}[refused.error["code"]]
    return "ok"


@pytest.mark.parametrize("method", ["nothing", "Health", "health ", "interlock", "config.set", "__class__", "", "\0"])
def test_what_is_no_method_is_denied(scene: Scene, method: str) -> None:
    """A name that is no method is denied to everybody, the operator included (race 112)."""
    for talk in scene.talks.values():
        assert talk.refused(method)["code"] == "INVALID_REQUEST"


def test_a_missing_scope_is_named(scene: Scene) -> None:
    """A refusal for a missing scope names that scope in the published protocol's words."""
    error = scene.talks["read"].refused("chat.abort", sessionKey="s")
    details = {"code": "MISSING_SCOPE", "missingScope": "operator.write", "requiredScopes": ["operator.write"]}
    assert error == {"code": "FORBIDDEN", "message": "chat.abort needs a token with scope write", "details": details}


# Runs of every origin


def by_chat(owner: Talk) -> str:
    """Begin a run by chat.send."""
    return str(owner.request("chat.send", sessionKey=key(), message="sleep", idempotencyKey=key())["runId"])


def by_agent(owner: Talk) -> str:
    """Begin a run by agent."""
    return str(owner.request("agent", message="sleep", idempotencyKey=key())["runId"])


def by_send(owner: Talk) -> str:
    """Begin a run by interlock.send, in a session of its own."""
    return str(owner.request("interlock.send", session=None, text="sleep")["run_id"])


def by_delegation(owner: Talk) -> str:
    """Begin a child."""
    session = key()
    parent = owner.request("chat.send", sessionKey=session, message="delegate sleep", idempotencyKey=key())["runId"]
    told = owner.event("agent", lambda each: each["runId"] == parent and each["stream"] == "child")
    return str(told["data"]["runId"])


def by_wake(owner: Talk) -> str:
    """Begin a run by a schedule."""
    session = key()
    first = owner.request("chat.send", sessionKey=session, message="say", idempotencyKey=key())["runId"]
    owner.request("agent.wait", runId=first)
    owner.request("interlock.wake", session=session, text="sleep", at=time.time() + 0.2)
    return str(owner.event("chat", lambda each: each["sessionKey"] == session and each["runId"] != first)["runId"])


STOPS: dict[str, Asked] = {
    "chat.abort": ASKED["chat.abort"][2],
    "sessions.abort": ASKED["sessions.abort"][1],
    "tasks.cancel": ASKED["tasks.cancel"][0],
    "interlock.stop": ASKED["interlock.stop"][0],
}


@pytest.mark.parametrize("begin", [by_chat, by_agent, by_send, by_delegation, by_wake])
def test_a_run_of_any_origin_is_stopped_by_those_who_may(scene: Scene, begin: Callable[[Talk], str]) -> None:
    """Every stopping method works for the owner and the operator; for others it changes nothing and the run goes on."""
    run, operator = begin(scene.talks["owner"]), scene.talks["operator"]
    thing = Thing(*([run] * 6))
    for caller, scope in (("other", Scope.WRITE), ("approve", Scope.APPROVE), ("read", Scope.READ)):
        for method, asked in STOPS.items():
            assert ask(scene.talks[caller], method, asked(thing), thing)[0] == cell(method, scope, "stranger")
    assert operator.request("tasks.get", taskId=run)["task"]["status"] == "running"
    for (method, asked), caller in zip(STOPS.items(), ("owner", "operator", "owner", "operator"), strict=True):
        thing = Thing(*([run] * 6))
        assert ask(scene.talks[caller], method, asked(thing), thing)[0] == "ok", (method, caller)
        assert scene.talks[caller].request("agent.wait", runId=run)["stopReason"] == "rpc"
        run = begin(scene.talks["owner"])
    assert operator.request("interlock.stop", run=run)["aborted"]


def share(scene: Scene, thing: Thing, who: str, may: str = "write") -> Any:
    """Share a session of the owner's."""
    return scene.talks["owner"].request("interlock.share", session=thing.session, may=may, **{"with": who})


def unshare(scene: Scene, thing: Thing, who: str) -> Any:
    """Take the share away again."""
    return scene.talks["owner"].request("interlock.unshare", session=thing.session, **{"with": who})


def test_whoever_speaks_in_anothers_session_waits_and_may_stop_itself(scene: Scene) -> None:
    """A writer's message waits and names the owner; the writer's stop of the session ends only that message."""
    thing, other = scene.make(), scene.talks["other"]
    share(scene, thing, "other")
    sent = other.request("chat.send", sessionKey=thing.session, message="sleep", idempotencyKey=key())
    assert sent["queued"] and "interruptedActiveRun" not in sent
    assert (sent["sessionKey"], sent["owner"]) == (thing.session, "owner")
    told = other.request("chat.abort", sessionKey=thing.session)
    assert (told["aborted"], told["runIds"]) == (True, [sent["runId"]])
    assert other.request("chat.abort", sessionKey=thing.session)["aborted"] is False
    assert scene.talks["owner"].request("tasks.get", taskId=thing.run)["task"]["status"] == "running"


@pytest.mark.parametrize("strategy", ["interrupt", "steer", "queue", "collect", "rollback"])
def test_no_strategy_takes_over_what_is_anothers(scene: Scene, strategy: str) -> None:
    """A writer's message waits under every strategy: it cuts, steers and rolls back nothing of the owner's."""
    thing, other = scene.make(), scene.talks["other"]
    share(scene, thing, "other")
    runs = scene.state(thing)[0]
    sent = other.request("interlock.send", session=thing.session, text="say", strategy=strategy)
    assert (sent["state"], sent["superseded"], sent["owner"]) == ("queued", None, "owner")
    after = scene.state(thing)[0]
    assert [run for run in after if run["id"] != sent["run_id"]] == runs
    assert scene.talks["owner"].request("tasks.get", taskId=thing.run)["task"]["status"] == "running"


# Owners of sessions


def test_the_main_of_two_people_are_two_sessions(scene: Scene) -> None:
    """Each of two people finds only their own texts in `main`, by every method, and learns of no other `main`."""
    owner, other, operator = (scene.talks[name] for name in ("owner", "other", "operator"))
    for name, talk in (("owner", owner), ("other", other)):
        sent = talk.request("chat.send", sessionKey="main", message=f"secret of {name}", idempotencyKey=key())
        assert (sent["sessionKey"], sent["owner"]) == ("main", name)
        talk.request("agent.wait", runId=sent["runId"])
        own = talk.request("interlock.send", session="main", text=f"again {name}")
        assert (own["session"], own["owner"]) == (f"{name}/main", name)
        talk.request("agent.wait", runId=own["run_id"])
    for name, talk in (("owner", owner), ("other", other)):
        told = talk.request("chat.history", sessionKey="main")
        said = json.dumps([told, talk.request("interlock.history", session="main")])
        assert said.count(f"secret of {name}") and said.count("secret of") == said.count(f"secret of {name}")
        assert told["sessionKey"] == "main"
        assert talk.request("interlock.history", session=f"{name}/main") == talk.request(
            "interlock.history", session="main"
        )
        keys = [row["key"] for row in talk.request("sessions.list")["sessions"]]
        # The caller's own `main` is listed once; the other keys are sessions shared with the caller.
        assert keys.count("main") == 1 and not [each for each in keys if each.endswith("/main")]
        heard = [each["payload"] for each in talk.events if each["event"] == "chat"]
        assert {each["sessionKey"] for each in heard if "secret" in json.dumps(each)} == {"main"}
        runs = talk.request("tasks.list", sessionKey="main")["tasks"]
        assert {task["ownerKey"] for task in runs} == {name} and {task["sessionKey"] for task in runs} == {"main"}
    keys = {row["key"] for row in operator.request("sessions.list")["sessions"]}
    assert {"owner/main", "other/main"} <= keys
    operator.request("chat.history", sessionKey="owner/main")
    assert "secret" not in json.dumps(operator.request("chat.history", sessionKey="main"))


def test_what_an_earlier_version_and_an_embedder_kept_is_found_by_its_owner(tmp_path: Path) -> None:
    """A session stored without an owner in its id keeps its name for its owner; the embedder's is `local/NAME`."""

    async def fill() -> None:
        async with open_control(busy.agent, store=f"sqlite:///{tmp_path / 'data'}") as control:
            for session, by in (("main", "owner"), ("jobs", "local")):
                await control.wait((await control.send(session, f"kept of {by}", by=by)).run_id, drained=True)

    asyncio.run(fill())
    # The migration of an earlier version's store leaves the row like this.
    with closing(sqlite3.connect(tmp_path / "data" / "interlock.db")) as kept, kept:
        assert kept.execute("UPDATE sessions SET plain = 1 WHERE id = 'main'").rowcount == 1
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        talks = {name: server.connect(server.add(name, "write")) for name in ("owner", "other")}
        owner, other, operator = talks["owner"], talks["other"], server.connect()
        sent = owner.request("interlock.send", session="main", text="say more")
        assert (sent["session"], sent["owner"]) == ("main", "owner")
        owner.request("agent.wait", runId=sent["run_id"])
        for talk, name in ((owner, "main"), (owner, "owner/main"), (operator, "owner/main")):
            assert "kept of owner" in json.dumps(talk.request("chat.history", sessionKey=name)), name
        assert [row["key"] for row in owner.request("sessions.list")["sessions"]] == ["main"]
        assert {row["key"] for row in operator.request("sessions.list")["sessions"]} == {"owner/main", "local/jobs"}
        assert "kept of local" in json.dumps(operator.request("interlock.history", session="local/jobs"))
        for name in ("owner/main", "local/jobs", "local/main", "main"):
            assert other.refused("interlock.history", session=name)["code"] == "NOT_FOUND"
        assert other.request("interlock.send", session="main", text="say mine")["session"] == "other/main"
        assert operator.refused("interlock.history", session="jobs")["code"] == "NOT_FOUND"
        for talk in (*talks.values(), operator):
            talk.close()


def test_a_name_that_is_taken_is_told_like_one_that_is_not(scene: Scene) -> None:
    """A stranger who writes another's session in full gets the same answer, whether that session exists or not."""
    other = scene.talks["other"]
    for method, name in (("chat.send", "sessionKey"), ("agent", "sessionKey"), ("interlock.send", "session")):
        told = []
        for session in (scene.thing.session, "owner/never-was", "nobody/never-was"):
            words = {"text": "say"} if method == "interlock.send" else {"message": "say", "idempotencyKey": key()}
            error = other.refused(method, **{name: session}, **words)
            told.append(json.dumps(error).replace(session, "NAME"))
        assert len(set(told)) == 1 and "NOT_FOUND" in told[0]
    for wrong in ("owner/", "/main", " ", "owner/ "):
        assert other.refused("chat.send", sessionKey=wrong, message="say", idempotencyKey=key())["code"] != "NOT_FOUND"


OLD = Path(__file__).parents[1] / "stores" / "corpus" / "0001.sql"


def test_a_session_that_an_earlier_version_kept_is_told_like_one_that_never_was(tmp_path: Path) -> None:
    """A stranger who writes OWNER/NAME for a session stored as NAME gets the answer for one that never was."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    database = sqlite3.connect(data / "interlock.db")
    database.executescript(OLD.read_text())  # holds a session `talk` of alice's
    database.close()
    with house(data, "surfaces.busy:agent", "--driver", "inline") as server:
        alice, mallory = (server.connect(server.add(name, "write")) for name in ("alice", "mallory"))
        assert alice.request("chat.history", sessionKey="talk")["messages"], "she finds it by its bare name"
        names = ("alice/talk", "alice/never-was", "bob/talk")
        things = [Thing(name, "r-9-1", "q-9-1", "w-9-1", "r-9-2", "f-9-1") for name in names]
        for method, ways in ASKED.items():
            for way in ways if method != "interlock.pair" else ():
                told = {same(ask(mallory, method, way(thing), thing)[1], thing) for thing in things}
                assert len(told) == 1, (method, told)
        alice.close()
        mallory.close()


def test_a_right_that_is_taken_away_is_gone_at_once(scene: Scene) -> None:
    """The end of a share ends the guest's watch and wait in that step; later events and requests are denied (404)."""
    owner, other = scene.talks["owner"], scene.talks["other"]
    session = key()
    full = f"owner/{session}"
    run = owner.request("interlock.send", session=session, text="stream")["run_id"]
    thing = Thing(full, run, "", "", run, run)
    for may in ("write", "read"):
        told = share(scene, thing, "other", may)
        assert (told["session"], told["owner"], told["shares"]) == (full, "owner", {"other": may})
        watches = [next(WATCH), next(WATCH)]
        other.request("interlock.watch", session=full, watch=watches[0])
        other.request("interlock.watch", run=run, watch=watches[1])
        waits = [other.ask("agent.wait", runId=run), other.ask("interlock.wait", run=run)]
        for watch in watches:
            other.event("interlock.event", lambda each, watch=watch: each["watch"] == watch and "event" in each)
        assert unshare(scene, thing, "other")["shares"] == {}
        assert other.answer(waits[0])["status"] == "unknown" and other.answer(waits[1])["ending"] == "unknown"
        for watch in watches:
            over = other.event("interlock.event", lambda each, watch=watch: each["watch"] == watch and "error" in each)
            assert over["error"]["code"] == "NOT_FOUND"
        told_of = len(other.events)
        other.request("health")
        owner.request("health")
        other.request("health")
        assert not [each for each in other.events[told_of:] if run in json.dumps(each)]
        assert other.refused("sessions.describe", key=full)["code"] == "NOT_FOUND"
        assert other.refused("interlock.send", session=full, text="say")["code"] == "NOT_FOUND"
    owner.request("interlock.stop", session=session)
    noted = [
        line for line in scene.server.audit if line["kind"] in ("share", "unshare") and line.get("session") == full
    ]
    assert [(line["kind"], line["by"], line["with_"]) for line in noted] == [
        (kind, "owner", "other") for _ in range(2) for kind in ("share", "unshare")
    ]


def test_a_session_is_shared_with_some_and_not_with_its_owner(scene: Scene) -> None:
    """Sharing with the owner, or with an unknown right, is refused; a repeated share or unshare changes nothing."""
    owner, thing = scene.talks["owner"], scene.make()
    for params in ({"with": "owner"}, {"with": "local"}, {"with": ""}, {"with": "other", "may": "all"}):
        assert owner.refused("interlock.share", session=thing.session, **params)["code"] == "INVALID_REQUEST"
    assert share(scene, thing, "other") == share(scene, thing, "other")
    assert unshare(scene, thing, "other") == unshare(scene, thing, "other")


def test_a_stop_ahead_of_its_message_is_its_callers_own(scene: Scene) -> None:
    """A stop of another's session, ordered far ahead or before the session exists, keeps no message from running."""
    owner, other = scene.talks["owner"], scene.talks["other"]
    for session in (scene.make().session, key()):
        for params in ({"order": ["c", 1e300]}, {}):
            assert other.request("interlock.stop", session=session, **params)["aborted"] is False
        run = owner.request("interlock.send", session=session, text="sleep", order=["c", 5])["run_id"]
        assert owner.request("tasks.get", taskId=run)["task"]["status"] == "running"
        assert owner.request("interlock.stop", session=session)["aborted"] is True


def test_a_key_is_its_callers_own(scene: Scene) -> None:
    """Another's key names nothing, and a stop by that key keeps no message from running."""
    owner, other, mine = scene.talks["owner"], scene.talks["other"], key()
    assert other.request("chat.abort", sessionKey="s", runId=mine)["aborted"] is False
    run = owner.request("chat.send", sessionKey=key(), message="sleep", idempotencyKey=mine)["runId"]
    assert other.request("chat.abort", sessionKey="s", runId=mine)["aborted"] is False
    assert other.request("agent.wait", runId=mine, timeoutMs=0)["status"] == "unknown"
    assert owner.request("agent.wait", runId=mine, timeoutMs=0)["status"] == "pending"
    assert owner.request("chat.abort", sessionKey="s", runId=mine)["runIds"] == [run]


def test_typed_commands_are_as_bound_as_methods(scene: Scene) -> None:
    """A stop word or /new typed into another's session ends nothing that belongs to others (race 29)."""
    thing, other = scene.thing, scene.talks["other"]
    before = scene.state(thing)
    for text in ("stop", "/stop", "/stop@interlock", "/new", "/reset"):
        told = other.request("chat.send", sessionKey=thing.session, message=text, idempotencyKey=key())
        assert (told["aborted"], told["runIds"]) == (False, [])
        assert scene.talks["read"].refused("chat.send", sessionKey=thing.session, message=text, idempotencyKey=key())
    assert scene.state(thing) == before


def test_events_are_told_to_those_who_may_see_them(scene: Scene) -> None:
    """Events go to principals who may see the session; a principal who may only approve hears of questions alone."""
    heard = {name: scene.server.connect(token) for name, token in scene.tokens.items()}
    thing = scene.make()
    for name, talk in heard.items():
        talk.request("health")
        about = [each for each in talk.events if each["payload"].get("runId") == thing.run]
        kinds = {each["event"] for each in about}
        questions = {"exec.approval.requested"}
        if name == "other":
            assert not [each for each in talk.events if thing.session in json.dumps(each)], name
        elif name == "approve":
            assert questions <= kinds and "chat" not in kinds, kinds
            assert "begun" not in json.dumps(talk.events)
        else:
            assert questions | {"chat", "agent"} <= kinds or name == "read", kinds
        talk.close()


# Scopes, tokens, connections


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (["operator.read"], {"operator.read"}),
        (["operator.approvals", "operator.read"], {"operator.approvals", "operator.read"}),
        (["operator.write"], {"operator.write"}),
        (["operator.nonsense"], set()),
        (["operator.admin"], {"operator.admin", "operator.approvals", "operator.read", "operator.write"}),
        ([], {"operator.admin", "operator.approvals", "operator.read", "operator.write"}),
    ],
)
def test_scopes_can_be_narrowed(scene: Scene, asked: list[str], granted: set[str]) -> None:
    """A connection has the scopes it asked for and no more, whatever its token is good for."""
    with scene.server.connect(scene.tokens["operator"], scopes=asked) as talk:
        assert set(talk.hello["auth"]["scopes"]) == granted
        for method, scope in (("chat.abort", "operator.write"), ("sessions.list", "operator.read")):
            allowed = bool(granted & {scope, "operator.write", "operator.admin"})
            params = {"sessionKey": "nowhere"} if method == "chat.abort" else {}
            assert ("ok" if allowed else "scope") == _answered(talk, method, params)


def test_scopes_cannot_be_widened(scene: Scene) -> None:
    """A connection that asks for more scopes than its token has gets those of the token."""
    with scene.server.connect(scene.tokens["read"], scopes=["operator.admin", "operator.write"]) as talk:
        assert set(talk.hello["auth"]["scopes"]) <= {"operator.read"}
        assert talk.refused("chat.abort", sessionKey=scene.thing.session)["code"] == "FORBIDDEN"


def test_narrowed_to_approvals_hears_of_questions_only(scene: Scene) -> None:
    """A connection of the operator's, narrowed to approvals, is told what an approver is told."""
    with scene.server.connect(scene.tokens["operator"], scopes=["operator.approvals"]) as talk:
        thing = scene.make()
        talk.event("exec.approval.requested", lambda each: each["runId"] == thing.run)
        assert {each["event"] for each in talk.events} <= {
            "connect.challenge", "exec.approval.requested", "exec.approval.resolved", "tick",
        }  # fmt: skip


def test_the_owner_may_still_stop_after_a_reconnect(scene: Scene) -> None:
    """The right to stop belongs to the principal, not to the connection."""
    with scene.server.connect(scene.tokens["owner"]) as talk:
        run = talk.request("chat.send", sessionKey=key(), message="sleep", idempotencyKey=key())["runId"]
    with scene.server.connect(scene.tokens["other"]) as talk:
        assert talk.request("chat.abort", sessionKey="s", runId=run)["aborted"] is False
    with scene.server.connect(scene.tokens["owner"]) as talk:
        assert talk.request("chat.abort", sessionKey="s", runId=run)["runIds"] == [run]


def test_the_owner_may_still_stop_after_a_restart(tmp_path: Path) -> None:
    """A message that waited in the queue runs in the next process, and only its owner may stop it."""
    data, options = tmp_path / "data", ("surfaces.busy:agent", "--driver", "inline", "--drain-seconds", "1")
    with house(data, *options) as server:
        owner, other = server.add("owner", "write"), server.add("other", "write")
        with server.connect(owner) as talk:
            first = talk.request("chat.send", sessionKey="s", message="sleep", idempotencyKey="1")["runId"]
            second = talk.request(
                "chat.send", sessionKey="s", message="sleep", idempotencyKey="2", queueMode="followup"
            )["runId"]
    with house(data, *options) as server, server.connect(owner) as talk, server.connect(other) as stranger:
        assert talk.request("agent.wait", runId=first)["stopReason"] == "restart"
        talk.until(
            lambda: talk.request("tasks.get", taskId=second)["task"]["status"] == "running", "run of what waited"
        )
        assert stranger.request("chat.abort", sessionKey="s", runId=second)["aborted"] is False
        assert stranger.request("tasks.list", sessionKey="s")["tasks"] == []
        assert talk.request("chat.abort", sessionKey="s")["runIds"] == [second]
        assert server.healthy()


def test_nobody_gets_in_without_a_token(scene: Scene) -> None:
    """A wrong token and a missing one are refused with different errors and the close code 4001."""
    for token, code in (("wrong-token-wrong", "AUTH_TOKEN_MISMATCH"), ("", "AUTH_TOKEN_MISSING")):
        error, closed = scene.server.refused(token)
        assert (error["code"], error["details"]["code"], closed.code) == ("FORBIDDEN", code, 4001)
    error, closed = scene.server.refused(None)
    assert (error["details"]["code"], closed.code) == ("AUTH_TOKEN_MISSING", 4001)


@pytest.mark.parametrize("method", [name for name in ROWS if name != "connect"])
def test_nothing_is_answered_before_connect(scene: Scene, method: str) -> None:
    """Every method but connect is refused as a first request."""
    with Talk(scene.server.url) as talk:
        error = talk.refused(method, **ASKED[method][0](scene.thing))
        assert (error["code"], error["message"]) == ("INVALID_REQUEST", "the first request is connect")
        assert talk.closed().code == 1008


def test_tokens_come_and_go_while_it_serves(tmp_path: Path) -> None:
    """Rotating or removing a token closes its sockets with 4001 and ends no run; an added token works at once."""
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        late = server.add("late", "write")
        operator, other = server.connect(), server.connect(late)
        run = other.request("chat.send", sessionKey="s", message="sleep", idempotencyKey="1")["runId"]
        old = server.token
        server.tokens("rotate")
        server.token = Path(server.ready["tokenFile"]).read_text("utf-8").strip()
        assert operator.closed().code == 4001
        error, closed = server.refused(old)
        assert (error["details"]["code"], closed.code) == ("AUTH_TOKEN_MISMATCH", 4001)
        assert server.get("/metrics", (("Authorization", f"Bearer {old}"),))[0] == 401
        assert other.request("agent.wait", runId=run, timeoutMs=0)["status"] == "pending"
        server.tokens("remove", "late")
        assert other.closed().code == 4001
        assert server.refused(late)[1].code == 4001
        with server.connect() as operator:
            assert operator.request("tasks.get", taskId=run)["task"]["status"] == "running"
            late = server.add("late", "write")  # a new principal of the same name owns the sessions of that name
            with server.connect(late) as other:
                assert other.request("chat.abort", sessionKey="s")["runIds"] == [run]
        closings = server.noted(kind="closed", address="127.0.0.1")
        assert [line["by"] for line in closings] == ["operator", "operator", "late"]  # the shell's own is the second
        assert server.healthy()


def until(met: Callable[[], bool]) -> None:
    """Wait until a condition is met."""
    end = time.monotonic() + BOUND_SECONDS
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [False, True])
def test_a_removed_token_that_does_not_read_has_nothing_more_accepted(tmp_path: Path, stop: bool) -> None:
    """After the server learns of the removal it accepts nothing from the socket; --stop also ends what was running."""
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server, server.connect() as operator:
        sent, over = 0, threading.Event()
        deaf = Bytes(server.port, unread_bytes=4_096)
        deaf.let_in(server.add("late", "write"))

        def flood() -> None:
            nonlocal sent
            while not over.is_set():
                params = {"session": f"s{sent % 50}", "text": "sleep", "strategy": "queue"}
                asked = {"type": "req", "id": f"m{sent}", "method": "interlock.send", "params": params}
                deaf.send(0x81, json.dumps(asked).encode())
                sent += 1
                # A faster flood would make the server close the connection as a reader that is too slow.
                over.wait(0.0 if sent < 200 else 0.004)

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            until(lambda: len(operator.request("interlock.runs")) > 50)
            server.tokens("remove", "late", *(("--stop",) if stop else ()))
            (learnt,) = server.noted(kind="closed", by="late")
            known = sent
            until(lambda: sent > known + 200)
        finally:
            over.set()
            flooding.join(BOUND_SECONDS)
            deaf.socket.close()
        until(lambda: operator.request("interlock.overview")["connections"] == 1)
        at = datetime.fromisoformat(learnt["time"]).timestamp() + 0.001  # the audit's times are exact to a millisecond
        runs = operator.request("interlock.runs", latest=10_000)
        late = [run["admitted_at"] - at for run in runs if run["admitted_at"] > at]
        assert len(runs) > 50 and not late, (len(runs), len(late), late[-1:])
        live = [run for run in runs if run["outcome"] is None]
        assert not live if stop else live  # without --stop the runs go on until an admin stops them
        receipts = operator.request("interlock.stopall", of="late")
        assert bool(receipts) is not stop
        assert not [run for run in operator.request("interlock.runs") if run["outcome"] is None]
        assert server.healthy()


# The audit


def test_refusals_stops_and_answers_are_written_down(tmp_path: Path) -> None:
    """The audit names who and from where for each refusal, stop and answer, also before a caller has a name."""
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        scene = Scene(server)
        owner, other, approver, reader = (scene.talks[name] for name in ("owner", "other", "approve", "read"))
        thing, run = scene.thing, scene.make().run
        owner.request("chat.abort", sessionKey="s", runId=run)
        other.request("chat.abort", sessionKey="s", runId=thing.run)
        other.refused("sessions.reset", key=thing.session)
        other.refused("interlock.answer", question=thing.question, answer=True)
        approver.request("exec.approval.resolve", id=thing.question, decision="deny")
        reader.refused("chat.abort", sessionKey=thing.session)
        server.refused("wrong-token-wrong")
        server.refused(None)
        server.get("/health", (("Host", "evil.example"),), host=False)
        server.get("/health", (("Origin", "http://evil.example"),))
        server.get("/metrics")
        here = {"address": "127.0.0.1"}
        expected: list[dict[str, Any]] = [
            {"kind": "stop", "by": "owner", "aborted": True, "runs": run, "method": "chat.abort"},
            {"kind": "stop", "by": "other", "aborted": False, "method": "chat.abort"},
            {"kind": "refused", "by": "other", "method": "interlock.answer", "question": thing.question},
            {"kind": "answer", "by": "approve", "id": thing.question, "decision": "deny"},
            {"kind": "refused", "by": "read", "why": "chat.abort needs a token with scope write"},
            {"kind": "refused", "by": "", "why": "AUTH_TOKEN_MISMATCH"},
            {"kind": "refused", "by": "", "why": "AUTH_TOKEN_MISSING"},
        ]
        for facts in expected:
            assert server.noted(**facts, **here), (facts, server.audit)
        assert len(server.noted(kind="refused", by="", why="AUTH_TOKEN_MISSING", **here)) == 2  # connect, /metrics
        refused = server.noted(kind="refused", by="other", **here)
        assert any("session" in line["why"] for line in refused)
        assert len(server.noted(kind="refused", by="", path="/health", **here)) == 2
        assert (server.data / "audit.jsonl").stat().st_mode & 0o777 == 0o600
        for talk in scene.talks.values():
            talk.close()


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "auth.password": lambda token: {"auth": {"password": token}},
    "auth.deviceToken": lambda token: {"auth": {"deviceToken": token}},
    "an unknown field of auth": lambda token: {"auth": {"tokn": token}},
    "a wrong type": lambda token: {"minProtocol": token},
    "auth itself": lambda token: {"auth": token},
    "role": lambda token: {"role": token},
    "scopes": lambda token: {"scopes": [token]},
    "device": lambda token: {"device": {"id": token}},
    "client": lambda token: {"client": {"id": token, "version": token, "platform": token, "mode": token}},
    "locale": lambda token: {"locale": token, "userAgent": token, "caps": [token]},
}


def test_a_token_is_found_nowhere(tmp_path: Path) -> None:
    """A token, sent rightly or wrongly, is not in output, log, audit, metrics, health, errors, closes or the store."""
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline", "--log-level", "debug") as server:
        planted = (server.token, server.add("owner", "write"))
        told: list[str] = []
        for token in planted:
            for headers in ((("Authorization", f"Bearer {token}"),), (("Cookie", token), ("User-Agent", token))):
                told += [server.get(f"{path}?token={token}", headers)[1] for path in ("/", "/health", "/metrics", "/x")]
            told.append(server.get(f"/health?{token}", (("Host", f"{token}.example"),), host=False)[1])
            told.append(server.get(f"/health?{token}", (("Origin", f"http://{token}.example"),))[1])
            for place in PLACES.values():
                with Talk(
                    f"{server.url}/?token={token}", additional_headers={"Authorization": f"Bearer {token}"}
                ) as talk:
                    try:
                        talk.request("connect", **(greeting(None) | place(token)))
                    except WireError as refused:
                        told.append(json.dumps(refused.error))
                        told.append(talk.closed().reason)
            for raw in (token, json.dumps({"type": token, "id": "1", "method": "connect"}), json.dumps([token])):
                with Talk(server.url) as talk:
                    talk.socket.send(raw)
                    told.append(talk.closed().reason)
            with server.connect(token) as talk:
                talk.request("health")
                message = f"say my token is {token}"
                run = talk.request("chat.send", sessionKey="s", message=message, idempotencyKey=key())["runId"]
                talk.request("agent.wait", runId=run)
                told.append(json.dumps(talk.refused("chat.send", sessionKey="s", message=message)))
                talk.refused("health", **{token: token})
                talk.socket.send(json.dumps({"type": token, "id": "1", "method": token}))
                talk.closed()
        assert server.get("/metrics", (("Authorization", f"Bearer {planted[0]}"),))[0] == 200
        told.append(server.get("/metrics", (("Authorization", f"Bearer {planted[0]}"),))[1])
        server.process.terminate()
        assert server.process.stdout is not None
        told += [json.dumps(server.ready), server.process.stdout.read().decode()]
        server.close()
        told += [server.log(), (server.data / "audit.jsonl").read_text("utf-8")]
        for at, token in enumerate(planted):
            assert not [text[:300] for text in told if token in text], at
        places = [path for path in server.data.rglob("*") if path.is_file() and path.name != "token"]
        # A token that a person writes into a message is stored as it was written.
        for path in places:
            kept = path.read_bytes()
            for token in planted:
                assert kept.count(token.encode()) == kept.count(f"my token is {token}".encode()), path


# Hosts and origins

WELCOME: list[tuple[list[str], list[str]]] = [
    (["127.0.0.1:PORT"], []),
    (["localhost:PORT"], []),
    (["LOCALHOST"], []),
    (["[::1]:PORT"], []),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT"]),
    (["127.0.0.1:PORT"], ["http://localhost:PORT"]),
    (["good.example"], []),
    (["good.example:8443"], ["https://good.example:8443"]),
    (["127.0.0.1:PORT"], ["https://page.example"]),
]
UNWELCOME: list[tuple[list[str], list[str]]] = [
    (["evil.example"], []),
    (["evil.example:PORT"], ["http://evil.example:PORT"]),  # DNS rebinding: a foreign name that points to this machine
    (["127.0.0.1.evil.example"], []),
    (["localhost.evil.example:PORT"], []),
    (["evil.example@127.0.0.1"], []),
    (["127.0.0.1@evil.example"], []),
    (["good.example.evil.example"], []),
    (["sub.good.example"], []),
    (["page.example"], []),
    (["localhost."], []),
    (["0.0.0.0:PORT"], []),
    (["127.1"], []),
    (["127.0.0.1:99999"], []),
    ([""], []),
    ([], []),
    (["127.0.0.1:PORT", "evil.example"], []),
    (["127.0.0.1:PORT", "127.0.0.1:PORT"], []),
    (["127.0.0.1:PORT, evil.example"], []),
    (["127.0.0.1:PORT"], ["null"]),
    (["127.0.0.1:PORT"], [""]),
    (["127.0.0.1:PORT"], ["http://evil.example"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:1"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT.evil.example"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT@evil.example"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT/page"]),
    (["127.0.0.1:PORT"], ["file://"]),
    (["127.0.0.1:PORT"], ["chrome-extension://abcdef"]),
    (["127.0.0.1:PORT"], ["https://sub.page.example"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT", "http://evil.example"]),
    (["127.0.0.1:PORT"], ["http://127.0.0.1:PORT http://evil.example"]),
]
ROUTES = {"/": (200, 101), "/health": (200, 403), "/metrics": (401, 403), "/unknown": (404, 403)}
ROUTES |= {"/web/endings.js": (200, 403), "/pair": (405, 403), "/timeline/r-1-1.svg": (401, 403)}


def knock(server: House, path: str, hosts: list[str], origins: list[str], *, upgrade: bool) -> int:
    """Request a path, as a WebSocket if `upgrade`; return the status."""
    pairs: Headers = tuple(("Host", host) for host in hosts) + tuple(("Origin", origin) for origin in origins)
    lines = "".join(f"{name}: {value}\r\n".replace("PORT", str(server.port)) for name, value in pairs)
    if upgrade:
        lines += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        lines += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    with Bytes(server.port, upgrade=False) as wire:
        wire.socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        return int(wire.until(b"\r\n").split()[1])


@pytest.mark.parametrize(("hosts", "origins"), WELCOME)
def test_ours_and_what_was_named_is_served(scene: Scene, hosts: list[str], origins: list[str]) -> None:
    """Every route, plain or as a WebSocket, serves our own hosts and origins and those that the operator named."""
    for path, statuses in ROUTES.items():
        assert knock(scene.server, path, hosts, origins, upgrade=False) == statuses[0], path
    assert knock(scene.server, "/", hosts, origins, upgrade=True) == 101


@pytest.mark.parametrize(("hosts", "origins"), UNWELCOME)
def test_everything_else_is_refused(scene: Scene, hosts: list[str], origins: list[str]) -> None:
    """Every route, plain or as a WebSocket, refuses other hosts and origins before it looks anything up."""
    for path in ROUTES:
        for upgrade in (False, True):
            assert knock(scene.server, path, hosts, origins, upgrade=upgrade) in (400, 403), (path, upgrade)


def test_a_page_of_another_port_is_another_programs(scene: Scene) -> None:
    """A server allows pages from its own address and port, not from every port of the machine."""

    async def play(origin: str) -> int:
        try:
            async with websockets.connect(scene.server.url, origin=origin) as socket:  # type: ignore[arg-type]
                await socket.recv()
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(play(f"http://127.0.0.1:{scene.server.port}")) == 101
    assert asyncio.run(play("http://127.0.0.1:1")) == 403


def test_metrics_need_a_token_that_may_read(scene: Scene) -> None:
    """/metrics accepts a token as a bearer only, not in the URL."""
    for name, status in (("operator", 200), ("read", 200), ("approve", 403), ("owner", 403)):
        token = scene.tokens[name]
        assert scene.server.get("/metrics", (("Authorization", f"Bearer {token}"),))[0] == status, name
        assert scene.server.get(f"/metrics?token={token}")[0] == 401
    body = scene.server.get("/metrics", (("Authorization", f"Bearer {scene.tokens['read']}"),))[1]
    assert "interlock_runs_total" in body


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_can_reach_must_be_wanted(tmp_path: Path, host: str) -> None:
    """Without --public the command refuses to serve on such an address, and says so."""
    command = [str(INTERLOCK), "serve", "--host", host, "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
    assert done.returncode != 0 and "--public" in done.stderr and not done.stdout


def test_nobody_founds_a_session_of_the_embedder_s(tmp_path: Path) -> None:
    """A stranger who writes the embedder's session `jobs` gets 404, whether the session exists or not."""
    with (
        house(tmp_path / "data", "surfaces.agents:agent") as server,
        server.connect(server.add("ann", "write")) as ann,
        server.connect(server.add("bob", "write")) as bob,
    ):
        for method, more in (
            ("chat.send", {"sessionKey": "local/jobs", "message": "mine", "idempotencyKey": "one"}),
            ("agent", {"sessionKey": "local/jobs", "message": "mine", "idempotencyKey": "two"}),
            ("interlock.send", {"session": "local/jobs", "text": "mine"}),
        ):
            first, second = ann.refused(method, **more), bob.refused(method, **more)
            assert first["code"] == second["code"] == "NOT_FOUND"
            assert first["message"].replace("for ann;", "for bob;") == second["message"]
        assert ann.request("sessions.list")["sessions"] == []


def test_nobody_learns_the_names_of_sessions_that_an_earlier_version_kept(tmp_path: Path) -> None:
    """A stranger gets the same 404 for an id that names no owner as for an id that never was."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "interlock.db")) as kept:
        kept.executescript((ROOT / "tests" / "stores" / "corpus" / "0001.sql").read_text("utf-8"))
    (data / "interlock.db").chmod(0o600)

    def told(talk: Talk, name: str) -> str:
        session, answers = f"alice/{name}", []
        for number, (method, field) in enumerate(
            (
                ("interlock.history", "session"), ("interlock.stop", "session"), ("chat.abort", "sessionKey"),
                ("sessions.abort", "key"), ("sessions.describe", "key"), ("sessions.reset", "key"),
                ("chat.history", "sessionKey"), ("interlock.wakes", "session"), ("interlock.runs", "session"),
            )
        ):  # fmt: skip
            try:
                answers.append(talk.request(method, **{field: session}))
            except WireError as refused:
                answers.append(refused.error)
            typed = {"sessionKey": session, "message": "stop", "idempotencyKey": f"{name} {number}"}
            answers.append(talk.request("chat.send", **typed))
        answers.append(talk.refused("chat.send", sessionKey=session, message="hello", idempotencyKey=name))
        number = len(talk.events)
        talk.request("interlock.watch", watch=number, session=session)
        answers.append(talk.event("interlock.event", lambda event: event["watch"] == number)["error"])
        return re.sub(r"[0-9]{9,}(\.[0-9]+)?", "T", json.dumps(answers)).replace(name, "NAME")

    with house(data, "surfaces.agents:agent") as server, server.connect(server.add("carol", "write")) as carol:
        assert told(carol, "talk") == told(carol, "hush")


def test_a_replay_is_whole_whatever_is_shared_meanwhile(tmp_path: Path) -> None:
    """A share elsewhere takes back no event that waits for a slow reader, of a session that is not in memory."""
    quiet, runs = {"caps": [frames.QUIET]}, 60
    with house(tmp_path / "data", "surfaces.agents:agent") as server:
        token = server.add("ann", "write")
        with server.connect(token, **quiet) as ann:
            ann.request("interlock.send", session="main", text="hello")
            for number in range(runs):
                sent = ann.request("interlock.send", session="long", text=f"{number} " + "x" * 60_000)
                ann.request("interlock.wait", run=sent["run_id"])
    with house(tmp_path / "data", "surfaces.agents:agent") as server, server.connect(token, **quiet) as ann:
        slow = Bytes(server.port)
        for number, (method, params) in enumerate(
            (("connect", greeting(token, **quiet)), ("interlock.watch", {"watch": 1, "session": "long"}))
        ):
            request = {"type": "req", "id": str(number), "method": method, "params": params}
            slow.send(0x81, json.dumps(request).encode())
        heard = [json.loads(slow.frame()[1])]
        # Wait until the replay has begun; from here on nobody reads.
        while "watch" not in json.dumps(heard[-1].get("payload", {})):
            heard.append(json.loads(slow.frame()[1]))
        for _ in range(20):
            ann.request("interlock.share", session="main", **{"with": "bob", "may": "read"})
            ann.request("interlock.unshare", session="main", **{"with": "bob"})
        ended, until = 0, time.monotonic() + BOUND_SECONDS
        while ended < runs:
            opcode, payload = slow.frame()
            assert opcode not in (-1, 8) and time.monotonic() < until, f"{ended} of {runs} were told"
            if opcode != 1:  # a ping
                continue
            event = json.loads(payload).get("payload", {}).get("event") or {}
            ended += event.get("data", {}).get("type") == "ended"
        slow.socket.close()
