"""The published protocol's methods that stop: `chat.abort`, `sessions.abort`, `sessions.reset`, `tasks.cancel`.

Our own `interlock.stop` is a verb and needs no words of its own (`own_begin` in methods.py).

Each function here stops in the step that calls it, which is the step that reads the frame, and returns an `Answering`,
which waits for the receipt.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from interlock.client.door import Asked
from interlock.core.errors import BadInput
from interlock.core.names import SessionId
from interlock.core.receipt import Receipt
from interlock.core.verbs import Find, Left, Reset, SessionName, Stop
from interlock.protocol import shapes
from interlock.surfaces.gateway import telling
from interlock.surfaces.gateway.context import RequestContext

# The form of a run's id; any other name is a key.
OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")

Answering = Callable[[], Awaitable[Any]]
Begin = Callable[[RequestContext, Any], Answering]


def _stop(on: RequestContext, name: str, *, queue: bool | None = None) -> Asked[Receipt]:
    """Stop a run by its id or its key; control remembers the stop of a key that it has not seen."""
    ours = OURS.fullmatch(name) is not None
    return on.client.ask(Stop(run=name if ours else None, message=None if ours else name, queue=queue))


def chat_abort(on: RequestContext, asked: shapes.ChatAbort) -> Answering:
    # The right to stop a run does not depend on the session that the request names beside it, so that is not read.
    name, session = asked.run_id, asked.session_key
    stop = on.client.ask(Stop(session=session)) if name is None else _stop(on, name)

    async def answer() -> Any:
        receipt = await stop
        if name is None:
            return telling.stop_payload(receipt) | await _left(on, session)
        return telling.stop_payload(receipt) | await _left(on, receipt.session) | _unknown(on, name, receipt)

    return answer


def sessions_abort(on: RequestContext, asked: shapes.SessionsAbort) -> Answering:
    name, key = asked.run_id, asked.key
    if name is not None:
        stop = _stop(on, name, queue=asked.clear_queued or None)
    elif key is None:
        raise BadInput("sessions.abort: name a session by key, or a run by runId")
    else:
        stop = on.client.ask(Stop(session=key, queue=asked.clear_queued))

    async def answer() -> Any:
        receipt = await stop
        stopped = [run.id for run in receipt.runs] if receipt.aborted else []
        told: dict[str, Any] = {"ok": True, "abortedRunId": stopped[0] if stopped else None}
        told |= {"status": "aborted" if receipt.aborted else "no-active-run", "receipt": receipt}
        told |= await _left(on, key if name is None else receipt.session)
        return told | ({} if name is None else _unknown(on, name, receipt))

    return answer


async def _left(on: RequestContext, session: str | None) -> dict[str, Any]:
    """Return what the caller may stop in a session and this stop left running."""
    if session is None:
        return {}
    left = await on.client.ask(Left(session=SessionName(session)))
    return {"remaining": left} if left.running or left.queued or left.detached else {}


def _unknown(on: RequestContext, name: str, receipt: Receipt) -> dict[str, Any]:
    """Return the reason why a stop found no run; it is the same for another's run and for one that never was."""
    if receipt.aborted or receipt.already is not None or receipt.id is not None:
        return {}
    later = "; one that is sent with this key will not run" if not OURS.fullmatch(name) else ""
    return {"reason": f"no run {name!r:.80} that {on.by} may stop{later}"}


def sessions_reset(on: RequestContext, asked: shapes.SessionKey) -> Answering:
    resetting = on.client.ask(Reset(session=asked.key))

    async def answer() -> Any:
        return telling.stop_payload(await resetting) | {"key": on.name(SessionId(asked.key)), "reset": True}

    return answer


def tasks_cancel(on: RequestContext, asked: shapes.TasksCancel) -> Answering:
    stop = _stop(on, asked.task_id)

    async def answer() -> Any:
        receipt = await stop
        info = await on.client.ask(Find(name=asked.task_id))
        told: dict[str, Any] = {"found": info is not None, "cancelled": receipt.aborted}
        if info is None:
            return told | {"reason": "no such task of yours"}
        if receipt.already is not None:
            told["reason"] = f"it had ended already: {receipt.already}"
        return told | {"task": telling.task_of(info, on.name)}

    return answer


STOPS: dict[str, Begin] = {
    "chat.abort": chat_abort,
    "sessions.abort": sessions_abort,
    "sessions.reset": sessions_reset,
    "tasks.cancel": tasks_cancel,
}
