"""Control's outcomes, runs and questions, and the hello, in the words of the gateway's answers. No I/O.

Endings are told in the words of core/projection, with the native outcome and the generation beside them.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from msgspec.structs import replace

from interlock.core.answers import QuestionInfo, RunInfo, SessionInfo
from interlock.core.events import Entry
from interlock.core.names import Ending, SessionId
from interlock.core.outcome import Outcome
from interlock.core.projection import agent_wait, client_words, native, row
from interlock.core.receipt import Receipt
from interlock.core.scopes import Scope
from interlock.protocol import frames
from interlock.surfaces.outbox import BUFFER_BYTES

AGENT: Final = "interlock"  # the agent's id on the wire
PREVIEW: Final = 200  # characters of a text in a list or an outline

# By scope: its name on the wire.
SCOPES: Final = {scope: f"operator.{'approvals' if scope is Scope.APPROVE else scope}" for scope in Scope}


def hello(by: str, connection: str, scopes: Collection[Scope], *, version: str, uptime: float) -> dict[str, Any]:
    """Return the answer to `connect` that lets a client in."""
    now = int(time.time() * 1000)
    return {
        "type": "hello-ok",
        "protocol": frames.PROTOCOL,
        "server": {"version": version, "connId": connection},
        "features": {
            "methods": sorted(frames.METHODS),
            "events": list(frames.EVENTS),
            "capabilities": [frames.QUIET, frames.OUTLINE],
        },
        "snapshot": {
            # The caller alone: a principal may not see who else is connected.
            "presence": [{"ts": now, "user": {"id": by}}],
            "health": {"ok": True, "ts": now},
            "stateVersion": {"presence": 0, "health": 0},
            "uptimeMs": int(uptime * 1000),
        },
        "auth": {"role": "operator", "scopes": sorted(SCOPES[scope] for scope in scopes)},
        "policy": {
            "maxPayload": frames.FRAME_BYTES,
            "maxBufferedBytes": BUFFER_BYTES,
            "tickIntervalMs": int(frames.TICK_SECONDS * 1000),
        },
    }


def milliseconds(at: float) -> int:
    """Return a time of day as the published protocol has it."""
    return max(0, int(at * 1000))


def approval_request(text: str, tool: str | None, arguments: Any, choices: Any, session: str) -> dict[str, Any]:
    """Return what an approval asks for."""
    command = f"{tool} {arguments or ''}".strip() if tool is not None else text
    asked = {"command": command, "text": text, "sessionKey": session, "tool": tool, "arguments": arguments}
    return {name: value for name, value in asked.items() if value is not None} | (
        {"choices": choices} if choices is not None else {}
    )


def wait_payload(outcome: Outcome) -> dict[str, Any]:
    """Return the answer of `agent.wait`, of `agent`'s second frame and of a used key."""
    words = agent_wait(outcome)
    told: dict[str, Any] = {"runId": outcome.run_id, "status": words.status}
    if not outcome.ended:
        return told
    more = {
        "stopReason": words.stop_reason,
        "timeoutPhase": words.timeout_phase,
        "providerStarted": words.provider_started,
        "startedAt": None if outcome.started_at is None else milliseconds(outcome.started_at),
        "endedAt": None if outcome.ended_at is None else milliseconds(outcome.ended_at),
        "error": client_words(outcome) if words.status != "ok" else None,
        "summary": client_words(outcome),
        "result": {"payloads": [{"text": outcome.text}] if outcome.text else []},
        "outcome": native(outcome),
    }
    return told | {name: value for name, value in more.items() if value is not None}


def status_of(info: RunInfo) -> str:
    """Return a run's status as a task."""
    if info.outcome is not None:
        return row(info.outcome).task
    return "queued" if info.state.waits else "running"


def short(info: RunInfo) -> RunInfo:
    """Return a run for a list, with its message and its reply shortened."""
    outcome, text = info.outcome, info.text[:PREVIEW]
    if outcome is not None and len(outcome.text) > PREVIEW:
        outcome = replace(outcome, text=outcome.text[: PREVIEW - 1] + "…")
    return replace(info, outcome=outcome, text=text)


Name = Callable[[SessionId], str]
"""Returns a session's name as the caller writes it."""


def task_of(info: RunInfo, name: Name, *, whole: bool = True) -> dict[str, Any]:
    """Return a run as a task; without `whole` its reply is shortened.

    A child's `sessionKey` is its home, the session at the top of its tree; its own session is `childSessionKey`.
    """
    outcome = info.outcome
    told: dict[str, Any] = {
        "id": info.id, "taskId": info.id, "runId": info.id, "kind": info.kind, "runtime": AGENT,
        "status": status_of(info), "sessionKey": name(info.home or info.session), "ownerKey": info.principal,
        "createdAt": milliseconds(info.admitted_at),
    }  # fmt: skip
    if info.text:
        told["title"] = info.text[:PREVIEW]
    if info.parent is not None:
        told |= {"parentTaskId": info.parent, "childSessionKey": info.session}
    if outcome is not None:
        told |= {"endedAt": milliseconds(outcome.ended_at or 0.0), "terminalSummary": client_words(outcome)}
        if outcome.started_at is not None:
            told["startedAt"] = milliseconds(outcome.started_at)
        if outcome.ending is Ending.FAILED:
            told["error"] = client_words(outcome)
        if outcome.text:
            told["result"] = outcome.text if whole else outcome.text[:PREVIEW]
    return told


def session_of(info: SessionInfo, runs: list[RunInfo], name: Name) -> dict[str, Any]:
    """Return a session's row; `runs` are those of its runs that are known, in order."""
    runs = [run for run in runs if not run.state.aliased]  # an alias ends as the run that absorbed it
    last = runs[-1] if runs else None
    active = next((run for run in runs if run.state.at_work), None)
    status = "running" if active is not None else "queued" if info.open else "done"
    if active is None and not info.open and last is not None and last.outcome is not None:
        status = row(last.outcome).session
    key = name(info.session.id)
    told: dict[str, Any] = {
        "key": key, "sessionId": key, "id": info.session.id, "kind": "direct", "agentId": AGENT, "status": status,
        "updatedAt": None if info.latest_at is None else milliseconds(info.latest_at), "owner": info.session.owner,
        "shares": info.session.shares, "generation": info.session.generation, "runs": info.runs, "open": info.open,
    }  # fmt: skip
    if last is not None:
        told["lastRunId"] = last.id
        if last.outcome is not None:
            told["outcome"] = native(last.outcome)
    if active is not None:
        told["activeRunId"] = active.id
    return told


def message_of(entry: Entry) -> dict[str, Any]:
    """Return an entry of the transcript as a message."""
    told: dict[str, Any] = {"role": entry.role, "runId": entry.run_id}
    told["content"] = [{"type": "text", "text": entry.text}] if entry.text else []
    if entry.role == "call":
        told |= {"role": "assistant", "toolCallId": entry.call_id, "toolName": entry.tool, "args": entry.arguments}
    elif entry.role == "result":
        told |= {"role": "toolResult", "toolCallId": entry.call_id, "toolName": entry.tool, "state": entry.state}
    if entry.cut:
        told |= {"cut": True, "ending": entry.ending}
    if entry.hidden:
        told["hidden"] = True
    return told


def approval_of(question: QuestionInfo, name: Name) -> dict[str, Any]:
    """Return an open question as an approval."""
    request = approval_request(
        question.text, question.tool, question.arguments, question.choices, name(question.session)
    )
    told: dict[str, Any] = {"id": question.id, "runId": question.run_id, "request": request}
    for word, at in (("createdAtMs", question.asked_at), ("expiresAtMs", question.expires_at)):
        if at is not None:
            told[word] = milliseconds(at)
    return told


def stop_payload(receipt: Receipt) -> dict[str, Any]:
    """Return the answer to a stop."""
    runs = [run.id for run in receipt.runs] if receipt.aborted else []
    return {"ok": True, "aborted": receipt.aborted, "runIds": runs, "receipt": receipt}
