"""The published schemas of the gateway, and checks that frames on a wire keep to them.

1. `protocol.schema.json` holds the definitions we speak, word for word as npm `@openclaw/gateway-protocol` publishes
   them (its version and MIT notice are inside); `python tests/surfaces/protocol.py PACKAGE` makes it again.
2. A frame is checked as a frame, then its payload: a request's by its method, an event's by its name, an answer's by
   the method of the request. Our own methods and event are checked by our own schema (`frames.schema()`).
3. An event that neither schema knows is an error. A method without a published answer is checked as a frame only.
4. A `Conversation` watches one connection in both directions. Beyond the shapes: each request is answered once (`agent`
   twice), connection numbers have no holes, a run's numbers rise, and nothing of a run follows its terminal event.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

EXTRACT = Path(__file__).with_name("protocol.schema.json")
PACKAGE = "@openclaw/gateway-protocol"
VERSION = "2026.9.1"

FRAME = "GatewayFrame"
PARAMS = {
    "connect": "ConnectParams",
    "chat.send": "ChatSendParams",
    "chat.abort": "ChatAbortParams",
    "chat.history": "ChatHistoryParams",
    "agent": "AgentParams",
    "agent.wait": "AgentWaitParams",
    "sessions.abort": "SessionsAbortParams",
    "sessions.list": "SessionsListParams",
    "sessions.describe": "SessionsDescribeParams",
    "sessions.reset": "SessionsResetParams",
    "tasks.list": "TasksListParams",
    "tasks.get": "TasksGetParams",
    "tasks.cancel": "TasksCancelParams",
    "exec.approval.resolve": "ExecApprovalResolveParams",
    "exec.approval.list": None,  # published, but without a schema
    "health": None,
}
RESULTS = {
    "connect": "HelloOk",
    "tasks.list": "TasksListResult",
    "tasks.get": "TasksGetResult",
    "tasks.cancel": "TasksCancelResult",
}
EVENTS = {
    "connect.challenge": None,
    "chat": "ChatEvent",
    "agent": "AgentEvent",
    "tick": "TickEvent",
    "shutdown": "ShutdownEvent",
    "session.typing": "SessionTypingEvent",
    "exec.approval.requested": None,
    "exec.approval.resolved": None,
}
DETAILS = {"MISSING_SCOPE": "MissingScopeErrorDetails"}  # by the code in an error's details
SPOKEN = sorted({FRAME, *PARAMS.values(), *RESULTS.values(), *EVENTS.values(), *DETAILS.values()} - {None})  # type: ignore[type-var]

TERMINAL_STATES = ("final", "aborted", "error")
TERMINAL_PHASES = ("end", "error")
AFTER_THE_END = ("receipt", "gap", "correction")  # only these events of the session may follow a run's terminal event

Frame = dict[str, Any]


class Wrong(AssertionError):
    """A frame that does not keep to the protocol."""


@cache
def published(definition: str) -> jsonschema_rs.Draft7Validator:
    """Return the validator of a published definition."""
    return jsonschema_rs.Draft7Validator(json.loads(EXTRACT.read_text("utf-8"))["definitions"][definition])


@cache
def own(group: str, name: str, part: str = "") -> jsonschema_rs.Draft202012Validator | None:
    """Return the validator of a part of one of our own methods or events; None if the name is not ours."""
    from interlock.protocol.frames import schema  # noqa: PLC0415 - the published half works without our own

    ours = schema()
    shape = ours[group].get(name)
    if shape is None:
        return None
    return jsonschema_rs.Draft202012Validator({**(shape[part] if part else shape), "$defs": ours["$defs"]})


def check_frame(raw: str | bytes, *, sent_by_client: bool, asked: str | None = None) -> Frame:
    """Return a frame that keeps to the protocol; `asked` is the method of the request that it answers."""
    frame: Frame = json.loads(raw)
    _check(published(FRAME), frame, "frame")
    if sent_by_client != (frame["type"] == "req"):
        raise Wrong(f"sent by the wrong side: {_short(frame)}")
    match frame["type"]:
        case "req":
            _check_params(frame["method"], frame.get("params", {}))
        case "event":
            _check_event(frame["event"], frame.get("payload"))
        case _:
            _check_answer(frame, asked)
    return frame


def _check_params(method: str, params: Any) -> None:
    if method in PARAMS:
        definition = PARAMS[method]
        if definition is not None:
            _check(published(definition), params, method)
        return
    validator = own("methods", method, "params")
    if validator is None:
        raise Wrong(f"no such method, neither published nor ours: {method}")
    _check(validator, params, method)


def _check_event(name: str, payload: Any) -> None:
    if name in EVENTS:
        definition = EVENTS[name]
        if definition is not None:
            _check(published(definition), payload, name)
        return
    validator = own("events", name)
    if validator is None:
        raise Wrong(f"no such event, neither published nor ours: {name}")
    _check(validator, payload, name)


def _check_answer(frame: Frame, asked: str | None) -> None:
    if frame["ok"] == ("error" in frame):
        raise Wrong(f"either an answer or an error: {_short(frame)}")
    if not frame["ok"]:
        details = frame["error"].get("details")
        definition = DETAILS.get(str(details.get("code"))) if isinstance(details, dict) else None
        if definition is not None:
            _check(published(definition), details, "error.details")
        return
    if asked is None:
        return
    if asked in RESULTS:
        _check(published(RESULTS[asked]), frame.get("payload"), f"answer of {asked}")
    elif asked not in PARAMS and (validator := own("methods", asked, "result")) is not None:
        _check(validator, frame.get("payload"), f"answer of {asked}")


def _check(validator: Any, value: Any, what: str) -> None:
    for error in validator.iter_errors(value):
        where = "/".join(str(step) for step in error.instance_path)
        raise Wrong(f"{what}: {error.message} (at /{where}) in {_short(value)}")


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:2000]


class Conversation:
    """The frames of one connection from its opening; the first that breaks a rule raises Wrong."""

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}  # request id → method, until its answer comes
        self._all: set[str] = set()
        self._seq: int | None = None
        self._latest: dict[tuple[str, Any], int] = {}  # by stream and run
        self._over: dict[str, set[str]] = {}  # run → streams that told its end
        self._watches_over: set[tuple[int, str]] = set()
        self.frames = 0

    def client(self, raw: str | bytes, *, lenient: bool = False) -> Frame:
        """Check a frame that the client sent; a `lenient` one is wrong on purpose: only remember its request."""
        self.frames += 1
        frame: Frame = json.loads(raw) if lenient else check_frame(raw, sent_by_client=True)
        if frame["id"] in self._all:
            raise Wrong(f"an id is used once: {frame['id']}")
        self._all.add(frame["id"])
        self._asked[frame["id"]] = frame["method"]
        return frame

    def server(self, raw: str | bytes) -> Frame:
        """Check a frame that the server sent."""
        self.frames += 1
        frame: Frame = json.loads(raw)
        asked = self._asked.get(frame.get("id", "")) if frame.get("type") == "res" else None
        if frame.get("type") == "res" and asked is None:
            raise Wrong(f"answers what was not asked, or twice: {_short(frame)}")
        check_frame(raw, sent_by_client=False, asked=asked)
        if asked is not None:
            first = asked == "agent" and frame["ok"] and frame["payload"].get("status") == "accepted"
            if not first:
                del self._asked[frame["id"]]
            else:
                self._asked[frame["id"]] = "agent (second frame)"
        else:
            self._order(frame)
        return frame

    @property
    def unanswered(self) -> list[str]:
        """Return the methods whose answer has not come."""
        return sorted(self._asked.values())

    def _order(self, frame: Frame) -> None:
        seq = frame.get("seq")
        if seq is not None:
            if self._seq is not None and seq != self._seq + 1:
                raise Wrong(f"connection number {seq} after {self._seq}")
            self._seq = seq
        payload = frame.get("payload")
        if not isinstance(payload, dict):
            return
        if frame["event"] == "interlock.event":
            self._watched(payload)
        elif "runId" in payload:
            self._told(frame["event"], payload)

    def _told(self, name: str, payload: Frame) -> None:
        run, over = payload["runId"], self._over.setdefault(payload["runId"], set())
        ends = (name == "chat" and payload["state"] in TERMINAL_STATES) or (
            name == "agent" and payload["stream"] == "lifecycle" and payload["data"].get("phase") in TERMINAL_PHASES
        )
        if name in over or (over and not ends):
            raise Wrong(f"something of {run} after its terminal event: {_short(payload)}")
        if ends:
            over.add(name)
        if name in ("chat", "agent"):
            self._rises((name, run), payload["seq"])

    def _watched(self, payload: Frame) -> None:
        event = payload.get("event")
        if event is None:
            return
        # Positions are counted by session, and watch 0 tells of many.
        self._rises(("interlock.event", (payload["watch"], event["session"])), event["position"])
        kind, key = event["data"]["type"], (payload["watch"], event.get("run_id"))
        if key in self._watches_over and kind not in AFTER_THE_END:
            raise Wrong(f"something of {key[1]} after its terminal event: {_short(event)}")
        if kind == "ended":
            self._watches_over.add(key)

    def _rises(self, stream: tuple[str, Any], number: int) -> None:
        if number <= self._latest.get(stream, -1):
            raise Wrong(f"{stream}: number {number} after {self._latest[stream]}")
        self._latest[stream] = number


def extract(package: Path) -> str:
    """Return the extract of an unpacked package: one line for each definition, so that a diff shows a change."""
    version = json.loads((package / "package.json").read_text("utf-8"))["version"]
    whole = json.loads((package / "protocol.schema.json").read_text("utf-8"))
    head = {
        "$comment": f"The definitions Interlock speaks, of protocol.schema.json in npm {PACKAGE} {version}, unchanged.",
        "license": (package / "LICENSE").read_text("utf-8"),
        "version": version,
        "$schema": whole["$schema"],
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    each = [f"{json.dumps(name)}: {json.dumps(whole['definitions'][name])}" for name in SPOKEN]
    return "\n".join(["{", *lines, '"definitions": {', ",\n".join(each), "}", "}", ""])


if __name__ == "__main__":
    EXTRACT.write_text(extract(Path(sys.argv[1])), "utf-8")
