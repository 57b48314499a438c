"""The rights over the wire as one table, and the people who try each of them on a real gateway.

The table is complete: every method of the gateway has a row, and a name that is not a method is denied.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interlock.core.scopes import Scope
from interlock.protocol.frames import QUIET
from surfaces.raw import BOUND_SECONDS, House, Talk, WireError, greeting

# The columns say what a caller gets who asks for something of the owner's. With scope write, the caller is the owner,
# somebody the session is shared with to write in (`writer`) or to read (`guest`), or a `stranger`; for the other scopes
# this makes no difference. Column `unknown`: what every caller gets for a thing that never was. Cells: `ok`; `scope`:
# FORBIDDEN, the token lacks the scope; `404`: NOT_FOUND; `none`: an answer that says there is nothing; `again`:
# INVALID_REQUEST.
TABLE = """
    method                 admin  owner  writer  guest  stranger  approve  read   unknown
    connect                again  again  again   again  again     again    again  again
    health                 ok     ok     ok      ok     ok        ok       ok     ok
    chat.send              ok     ok     ok      404    404       scope    scope  404
    chat.abort             ok     ok     none    none   none      scope    scope  none
    chat.history           ok     ok     ok      ok     none      scope    ok     none
    agent                  ok     ok     ok      404    404       scope    scope  404
    agent.wait             ok     ok     ok      ok     none      scope    ok     none
    sessions.abort         ok     ok     none    none   none      scope    scope  none
    sessions.list          ok     ok     ok      ok     none      scope    ok     none
    sessions.describe      ok     ok     ok      ok     404       scope    ok     404
    sessions.reset         ok     ok     404     404    404       scope    scope  404
    tasks.list             ok     ok     ok      ok     none      scope    ok     none
    tasks.get              ok     ok     ok      ok     404       scope    ok     404
    tasks.cancel           ok     ok     none    none   none      scope    scope  none
    exec.approval.list     ok     ok     none    none   none      ok       scope  none
    exec.approval.resolve  ok     ok     404     404    404       ok       scope  404
    receipts.get           ok     ok     ok      ok     404       scope    ok     404
    runs.timeline          ok     ok     ok      ok     404       scope    ok     404
    interlock.send         ok     ok     ok      404    404       scope    scope  404
    interlock.chat         ok     ok     ok      404    404       scope    scope  404
    interlock.stop         ok     ok     none    none   none      scope    scope  none
    interlock.reset        ok     ok     404     404    404       scope    scope  404
    interlock.wait         ok     ok     ok      ok     none      scope    ok     none
    interlock.watch        ok     ok     ok      ok     404       scope    ok     404
    interlock.unwatch      ok     ok     ok      ok     ok        scope    ok     ok
    interlock.answer       ok     ok     404     404    404       ok       scope  404
    interlock.questions    ok     ok     none    none   none      ok       scope  none
    interlock.runs         ok     ok     ok      ok     404       scope    ok     404
    interlock.find         ok     ok     ok      ok     none      scope    ok     none
    interlock.sessions     ok     ok     ok      ok     none      scope    ok     none
    interlock.processes    ok     ok     ok      ok     none      scope    ok     none
    interlock.history      ok     ok     ok      ok     404       scope    ok     404
    interlock.session      ok     ok     ok      ok     404       scope    ok     404
    interlock.receipt      ok     ok     ok      ok     404       scope    ok     404
    interlock.timeline     ok     ok     ok      ok     404       scope    ok     404
    interlock.strategy     ok     ok     404     404    404       scope    scope  404
    interlock.share        ok     ok     404     404    404       scope    scope  404
    interlock.unshare      ok     ok     404     404    404       scope    scope  404
    interlock.wake         ok     ok     404     404    404       scope    scope  404
    interlock.unwake       ok     ok     404     404    404       scope    scope  404
    interlock.wakes        ok     ok     404     404    404       scope    404    404
    interlock.pair         ok     ok     ok      ok     ok        ok       ok     ok
    interlock.tokens       ok     scope  scope   scope  scope     scope    scope  ok
    interlock.token.add    ok     scope  scope   scope  scope     scope    scope  ok
    interlock.token.remove 404    scope  scope   scope  scope     scope    scope  404
    interlock.token.rotate ok     scope  scope   scope  scope     scope    scope  ok
    interlock.overview     ok     scope  scope   scope  scope     scope    scope  ok
    interlock.stopall      ok     scope  scope   scope  scope     scope    scope  ok
"""
HEAD, *LINES = (line.split() for line in TABLE.strip().splitlines())
ROWS = {line[0]: dict(zip(HEAD[1:], line[1:], strict=True)) for line in LINES}
RELATIONS = ("owner", "writer", "guest", "stranger")
CALLERS = [(scope, relation) for scope in Scope for relation in RELATIONS]


def cell(method: str, scope: Scope, relation: str) -> str:
    """Return a cell of the table."""
    return ROWS[method][relation if scope is Scope.WRITE else scope]


@dataclass
class Thing:
    """A busy session with everything that can be in one, or names of things that never were."""

    session: str
    run: str
    question: str
    wake: str
    stopped: str  # an earlier run of the session
    receipt: str


UNKNOWN = Thing("nobody/nothing", "r-1-fffff", "q-1-fffff", "w-1-fffff", "r-1-ffffe", "f-1-ffffe")
Asked = Callable[[Thing], dict[str, Any]]
KEY, WATCH = iter(range(1_000_000)), iter(range(1, 1_000_000))


def key() -> str:
    """Return a key that nobody used."""
    return f"key-{next(KEY)}"


# The params by which each method names its subject; some methods have several ways.
ASKED: dict[str, tuple[Asked, ...]] = {
    "connect": (lambda t: greeting("x"),),
    "health": (lambda t: {},),
    "chat.send": (lambda t: {"sessionKey": t.session, "message": "say", "idempotencyKey": key()},),
    "chat.abort": (
        lambda t: {"sessionKey": t.session, "runId": t.run},
        lambda t: {"sessionKey": t.session},
        lambda t: {"sessionKey": "elsewhere", "runId": t.run},
    ),
    "chat.history": (lambda t: {"sessionKey": t.session},),
    "agent": (lambda t: {"sessionKey": t.session, "message": "say", "idempotencyKey": key()},),
    "agent.wait": (lambda t: {"runId": t.run, "timeoutMs": 0},),
    "sessions.abort": (
        lambda t: {"key": t.session},
        lambda t: {"runId": t.run},
        lambda t: {"key": t.session, "clearQueued": True},
        lambda t: {"runId": t.run, "clearQueued": True},
    ),
    "sessions.list": (lambda t: {}, lambda t: {"search": t.session}),
    "sessions.describe": (lambda t: {"key": t.session},),
    "sessions.reset": (lambda t: {"key": t.session},),
    "tasks.list": (lambda t: {}, lambda t: {"sessionKey": t.session}),
    "tasks.get": (lambda t: {"taskId": t.run},),
    "tasks.cancel": (lambda t: {"taskId": t.run},),
    "exec.approval.list": (lambda t: {},),
    "exec.approval.resolve": (lambda t: {"id": t.question, "decision": "allow-once"},),
    "receipts.get": (lambda t: {"runId": t.stopped}, lambda t: {"receiptId": t.receipt}),
    "runs.timeline": (lambda t: {"runId": t.run}, lambda t: {"runId": t.stopped}),
    "interlock.send": (lambda t: {"session": t.session, "text": "say", "key": key()},),
    "interlock.chat": (lambda t: {"sessionKey": t.session, "message": "say", "idempotencyKey": key()},),
    "interlock.stop": (lambda t: {"run": t.run}, lambda t: {"session": t.session}),
    "interlock.reset": (lambda t: {"session": t.session},),
    "interlock.wait": (lambda t: {"run": t.run, "timeout": 0}, lambda t: {"run": t.stopped}),
    "interlock.watch": (lambda t: {"session": t.session}, lambda t: {"run": t.run}),
    "interlock.unwatch": (lambda t: {"watch": 1},),
    "interlock.answer": (lambda t: {"question": t.question, "answer": True},),
    "interlock.questions": (lambda t: {}, lambda t: {"session": t.session}),
    "interlock.runs": (lambda t: {"session": t.session}, lambda t: {"session": t.session, "tree": True}),
    "interlock.find": (lambda t: {"name": t.run}, lambda t: {"name": t.stopped}),
    "interlock.sessions": (lambda t: {},),
    "interlock.processes": (lambda t: {}, lambda t: {"session": t.session}),
    "interlock.history": (lambda t: {"session": t.session},),
    "interlock.session": (lambda t: {"session": t.session},),
    "interlock.receipt": (lambda t: {"of": t.stopped}, lambda t: {"of": t.receipt}),
    "interlock.timeline": (lambda t: {"run": t.run}, lambda t: {"run": t.stopped}),
    "interlock.strategy": (lambda t: {"session": t.session, "strategy": None},),
    "interlock.share": (lambda t: {"session": t.session, "with": "somebody", "may": "read"},),
    "interlock.unshare": (lambda t: {"session": t.session, "with": "somebody"},),
    "interlock.wake": (lambda t: {"session": t.session, "text": "say", "at": time.time() + 9_999},),
    "interlock.unwake": (lambda t: {"wake": t.wake},),
    "interlock.wakes": (lambda t: {"session": t.session},),
    "interlock.pair": (lambda t: {},),
    "interlock.tokens": (lambda t: {},),
    "interlock.token.add": (lambda t: {"name": key()},),
    "interlock.token.remove": (lambda t: {"name": "nobody"},),
    "interlock.token.rotate": (lambda t: {},),
    "interlock.overview": (lambda t: {},),
    "interlock.stopall": (lambda t: {}, lambda t: {"of": t.session.partition("/")[0]}),
}

# For methods whose answer may say that there is nothing: what the answer says if there is something.
SAYS: dict[str, Callable[[Any, Thing], object]] = {
    "chat.abort": lambda p, t: p["aborted"],
    "chat.history": lambda p, t: p["messages"],
    "agent.wait": lambda p, t: p["status"] != "unknown",
    "sessions.abort": lambda p, t: p["abortedRunId"],
    "sessions.list": lambda p, t: [row for row in p["sessions"] if row["id"] == t.session],
    "tasks.list": lambda p, t: [task for task in p["tasks"] if task["id"] == t.run],
    "tasks.cancel": lambda p, t: p["cancelled"],
    "exec.approval.list": lambda p, t: [each for each in p["approvals"] if each["id"] == t.question],
    "interlock.stop": lambda p, t: p["aborted"],
    "interlock.wait": lambda p, t: p["ending"] != "unknown",
    "interlock.questions": lambda p, t: [each for each in p if each["id"] == t.question],
    "interlock.find": lambda p, t: p is not None,
    "interlock.sessions": lambda p, t: [each for each in p if each["session"]["id"] == t.session],
    "interlock.processes": lambda p, t: [each for each in p if each["run_id"] == t.run],
}


class Lasting(House):
    """The same gateway over a store in memory, which outlives the gateway."""

    command = (sys.executable, "-m", "surfaces.lasting")

    def again(self) -> None:
        """Close the gateway in order, and open it anew over the same store."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"again\n")
        self.process.stdin.flush()
        self.read_ready()


class People:
    """For every scope: an owner of a busy session, a writer, a guest, a stranger, and a principal that was removed."""

    def __init__(self, server: House) -> None:
        self.server = server
        self.tokens = {self.name(*each): self._token(*each) for each in CALLERS}
        self.removed = {scope: server.add(f"removed-{scope}", scope) for scope in Scope}
        self.talks: dict[str, Talk] = {}
        self.things: dict[Scope, Thing] = {}
        self.connect()
        gone = [server.connect(token, caps=[QUIET]) for token in self.removed.values()]
        for scope in Scope:
            self.things[scope] = self._found(scope)
        # Founding needs the scope write. From here on each founder has the scope under test.
        for name, scope in self._founders.items():
            server.remove(name)
            self.tokens[name] = server.add(name, scope)
            self.talks.pop(name).closed()
        self.connect()
        for scope, talk in zip(Scope, gone, strict=True):
            server.remove(f"removed-{scope}")
            assert talk.closed().code == 4001

    def name(self, scope: Scope, relation: str) -> str:
        """Return the name of a principal."""
        return f"{relation}-{scope}"

    def _token(self, scope: Scope, relation: str) -> str:
        founds = relation == "owner" and scope is not Scope.WRITE
        return self.server.add(self.name(scope, relation), Scope.WRITE if founds else scope)

    @property
    def _founders(self) -> dict[str, Scope]:
        return {f"owner-{scope}": scope for scope in Scope if scope is not Scope.WRITE}

    def connect(self) -> None:
        """Connect everybody who is not connected, and forget connections that are closed."""
        for name, token in {**self.tokens, "operator": self.server.token}.items():
            if name not in self.talks:
                self.talks[name] = self.server.connect(token, caps=[QUIET])

    @property
    def operator(self) -> Talk:
        """The operator's connection, made anew if the operator's token was rotated."""
        if self.server.operator_token != self.server.token:
            self.server.token = self.server.operator_token
            self.talks.pop("operator").close()
            self.connect()
        return self.talks["operator"]

    def leave(self) -> None:
        """Disconnect everybody."""
        for talk in self.talks.values():
            talk.close()
        self.talks.clear()

    def _found(self, scope: Scope) -> Thing:
        """Begin and share a session of the owner's, who keeps it whatever scope the owner's token has later."""
        owner, session = self.talks[f"owner-{scope}"], f"owner-{scope}/thing"
        stopped = owner.request("interlock.send", session="thing", text="sleep", key=key())["run_id"]
        receipt = owner.request("interlock.stop", run=stopped)["id"]
        for who, may in ((f"writer-{scope}", "write"), (f"guest-{scope}", "read"), (f"removed-{scope}", "write")):
            told = owner.request("interlock.share", session="thing", **{"with": who}, may=may)
        assert (told["session"], told["owner"], len(told["shares"])) == (session, f"owner-{scope}", 3)
        return Thing(session, "", "", "", stopped, receipt)

    def busy(self, scope: Scope) -> Thing:
        """Return an owner's session, and make it busy again if it is not any more."""
        thing, talk = self.things[scope], self.operator
        runs = talk.request("interlock.runs", session=thing.session)
        live = [run["id"] for run in runs if run["outcome"] is None]
        wakes = [each["id"] for each in talk.request("interlock.wakes", session=thing.session)]
        asked = [each["id"] for each in talk.request("interlock.questions", session=thing.session)]
        if len(live) != 2 or live[0] != thing.run or thing.wake not in wakes or thing.question not in asked:
            talk.request("interlock.stop", session=thing.session)
            # Wait for the drain: a run that drained later would look like a change of state.
            for run in talk.request("interlock.runs", session=thing.session):
                if not run["outcome"].get("drained"):
                    talk.request("interlock.wait", run=run["id"], drained=True, timeout=BOUND_SECONDS)
            thing.run = talk.request("interlock.send", session=thing.session, text="busy", key=key())["run_id"]
            thing.question = self._question(talk, thing)
            talk.request("interlock.send", session=thing.session, text="say", key=key(), strategy="queue")
            for wake in wakes:
                talk.request("interlock.unwake", wake=wake)
            after = time.time() + 9_999
            thing.wake = talk.request("interlock.wake", session=thing.session, text="say", at=after)["id"]
        return thing

    def _question(self, talk: Talk, thing: Thing) -> str:
        end = time.monotonic() + BOUND_SECONDS
        while time.monotonic() < end:
            for each in talk.request("interlock.questions", session=thing.session):
                if each["run_id"] == thing.run:
                    return str(each["id"])
            time.sleep(0.002)
        raise AssertionError("the run asked nothing")

    def state(self, thing: Thing) -> Any:
        """Return everything about a session, as the operator sees it."""
        return state_of(self.operator, thing)


def state_of(operator: Talk, thing: Thing) -> Any:
    """Return everything about a session."""
    look, session = operator.request, {"session": thing.session}
    return (
        look("interlock.runs", **session),
        look("interlock.questions", **session),
        look("interlock.processes", **session),
        look("interlock.wakes", **session),
        look("sessions.describe", key=thing.session)["session"],
        look("interlock.history", **session),
    )


def ask(talk: Talk, method: str, params: dict[str, Any], thing: Thing) -> tuple[str, str]:
    """Return what a caller gets: as the table's word, and as the raw answer."""
    if method == "interlock.watch":
        params = params | {"watch": next(WATCH)}
    asked = talk.ask(method, **params)
    try:
        payload = talk.answer(asked)
    except WireError as refused:
        words = {"NOT_FOUND": "404", "FORBIDDEN": "scope", "INVALID_REQUEST": "again"}
        return words[refused.error["code"]], json.dumps(refused.error)
    if method == "interlock.watch":
        told = talk.event("interlock.event", lambda each: each["watch"] == params["watch"])
        if "error" in told:
            return {"NOT_FOUND": "404"}[told["error"]["code"]], json.dumps(told["error"])
        talk.request("interlock.unwatch", watch=params["watch"])
    something = SAYS.get(method, lambda p, t: True)(payload, thing)
    return ("ok" if something else "none"), json.dumps(payload)


def same(raw: str, thing: Thing) -> str:
    """Return an answer without the names that were asked for, and without the time."""
    for name in sorted(filter(None, vars(thing).values()), key=len, reverse=True):
        raw = raw.replace(name, "NAME")
    return re.sub(r'("ts"|"[a-z]+_at"): [0-9.]+', r"\1: 0", raw)


def people(kind: str, data: Path) -> People:
    """Serve `surfaces.busy` over a store of this kind, with everybody connected."""
    if kind == "memory":
        return People(Lasting("surfaces.busy:agent", data, env={"PYTHONPATH": TESTS}))
    return People(House("surfaces.busy:agent", data, *OPTIONS, env={"PYTHONPATH": TESTS}))


def again(they: People) -> None:
    """Close the server in order, and open it anew over its store."""
    they.leave()
    if isinstance(they.server, Lasting):
        they.server.again()
    else:
        they.server.close()
        they.server = House("surfaces.busy:agent", they.server.data, *OPTIONS, env={"PYTHONPATH": TESTS})
    they.connect()


TESTS = str(Path(__file__).parent.parent)
OPTIONS = ("--driver", "inline", "--drain-seconds", "1")
