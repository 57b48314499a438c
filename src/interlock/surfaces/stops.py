"""The gateway's stops: words into control's stops, receipts into words.

Each function here stops in the step that calls it, which is the step that reads the frame, and returns an `Answering`,
which waits for the receipt. A typed stop is no message and has no run. `Outcome.typed` says that a person wrote it, and
the wire then tells `stop` instead of `rpc`. Its idempotency key is the stop's own key.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from interlock.core.errors import BadInput, Unknown
from interlock.core.lifecycle import State
from interlock.core.names import SessionId
from interlock.core.receipt import Receipt
from interlock.core.stopwords import normalise
from interlock.runtime.listing import RunInfo
from interlock.runtime.stopping import Answering as Receiving
from interlock.surfaces import shapes, telling
from interlock.surfaces.context import RequestContext

# The form of a run's id; any other name is a key.
OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")
ANEW = frozenset({"/new", "/reset"})
COMMAND_CHARACTERS = 64

Answering = Callable[[], Awaitable[Any]]
Begin = Callable[[RequestContext, Any], Answering]


# Commands


def is_typed(asked: shapes.OwnChat, is_stop: Callable[[str], bool]) -> bool:
    """Return whether a text is a command: a stop word, or `/new` or `/reset`."""
    text, plain = asked.message, asked.suppress_command_interpretation
    anew = len(text) < COMMAND_CHARACTERS and normalise(text) in ANEW
    return not plain and (anew or is_stop(text))


def command(on: RequestContext, asked: shapes.OwnChat) -> Answering:
    """Carry out a typed command. Its key is the stop's own, so a command that is delivered twice ends nothing newer."""
    key = asked.idempotency_key
    if normalise(asked.message) in ANEW:
        return _reset(on, asked.session_key, key)
    return _stopped(on.control.begin_stop(session=asked.session_key, key=key, typed=True, by=on.by))


# Runs and sessions


def _stop(on: RequestContext, name: str) -> Receiving:
    """Stop a run by its id or its key; control remembers the stop of a key that it has not seen."""
    if OURS.fullmatch(name):
        return on.control.begin_stop(run=name, by=on.by)
    return on.control.begin_stop(message=name, by=on.by)


def _stopped(receiving: Receiving) -> Answering:
    async def answer() -> Any:
        return telling.stop_payload(await receiving())

    return answer


def chat_abort(on: RequestContext, asked: shapes.ChatAbort) -> Answering:
    # The right to stop a run does not depend on the session that the request names beside it, so that is not read.
    name, session = asked.run_id, asked.session_key
    stop = on.control.begin_stop(session=session, by=on.by) if name is None else _stop(on, name)

    async def answer() -> Any:
        receipt = await stop()
        if name is None:
            return telling.stop_payload(receipt) | _left(on, session)
        return telling.stop_payload(receipt) | _left(on, receipt.session) | _unknown(on, name, receipt)

    return answer


def sessions_abort(on: RequestContext, asked: shapes.SessionsAbort) -> Answering:
    name, key = asked.run_id, asked.key
    if name is not None:
        named = [
            run for run in on.control.live_runs(by=on.by) if name == run.id or (name, on.by) == (run.key, run.principal)
        ]
        stops = [_stop(on, name)]
        stops += [on.control.begin_stop(session=run.session, by=on.by) for run in named if asked.clear_queued]
    elif key is None:
        raise BadInput("sessions.abort: name a session by key, or a run by runId")
    elif asked.clear_queued:
        stops = [on.control.begin_stop(session=key, by=on.by)]
    else:
        seated = [run for run in on.control.live_runs(key, by=on.by) if _at_work(run)]
        stops = [on.control.begin_stop(run=run.id, by=on.by) for run in seated]

    async def answer() -> Any:
        receipts = [await stop() for stop in stops]
        # The run was not in memory: only its receipt names its session.
        if name is not None and asked.clear_queued and len(stops) == 1 and receipts[0].session is not None:
            receipts.append(await on.control.stop(session=receipts[0].session, by=on.by))
        session_id = key if name is None else receipts[0].session
        stopped = [run.id for receipt in receipts if receipt.aborted for run in receipt.runs]
        told: dict[str, Any] = {"ok": True, "abortedRunId": stopped[0] if stopped else None}
        told["status"] = "aborted" if any(receipt.aborted for receipt in receipts) else "no-active-run"
        told |= {"receipt": receipts[0]} if receipts else {}
        return told | _left(on, session_id) | ({} if name is None else _unknown(on, name, receipts[0]))

    return answer


def _left(on: RequestContext, session: str | None) -> dict[str, Any]:
    """Return what the caller may stop in a session and this stop left running."""
    left = None if session is None else on.control.remaining(session, by=on.by)
    return {} if left is None or not any(left) else {"remaining": left._asdict()}


def _unknown(on: RequestContext, name: str, receipt: Receipt) -> dict[str, Any]:
    """Return the reason why a stop found no run; it is the same for another's run and for one that never was."""
    if receipt.aborted or receipt.already is not None or receipt.id is not None:
        return {}
    later = "; one that is sent with this key will not run" if not OURS.fullmatch(name) else ""
    return {"reason": f"no run {name!r:.80} that {on.by} may stop{later}"}


def _at_work(run: RunInfo) -> bool:
    return run.state in (State.ARRIVING, State.SEATED, State.STARTED)


def _reset(on: RequestContext, session: str, key: str) -> Answering:
    nothing = {"ok": True, "key": on.name(SessionId(session)), "reset": False, "aborted": False, "runIds": []}
    resetting: Receiving | None = None
    # Unknown: the session has no message yet, or is another's.
    with contextlib.suppress(Unknown):
        resetting = on.control.begin_reset(session, key=key, by=on.by)

    async def answer() -> Any:
        with contextlib.suppress(Unknown):
            if resetting is not None:
                return telling.stop_payload(await resetting()) | {"key": on.name(SessionId(session)), "reset": True}
        return nothing

    return answer


def sessions_reset(on: RequestContext, asked: shapes.SessionKey) -> Answering:
    resetting = on.control.begin_reset(asked.key, by=on.by)

    async def answer() -> Any:
        return telling.stop_payload(await resetting()) | {"key": on.name(SessionId(asked.key)), "reset": True}

    return answer


def tasks_cancel(on: RequestContext, asked: shapes.TasksCancel) -> Answering:
    stop = _stop(on, asked.task_id)

    async def answer() -> Any:
        receipt = await stop()
        info = await on.control.find(asked.task_id, by=on.by)
        told: dict[str, Any] = {"found": info is not None, "cancelled": receipt.aborted}
        if info is None:
            return told | {"reason": "no such task of yours"}
        if receipt.already is not None:
            told["reason"] = f"it had ended already: {receipt.already}"
        return told | {"task": telling.task_of(info, on.name)}

    return answer


# Our own


def own_stop(on: RequestContext, asked: shapes.OwnStop) -> Receiving:
    return on.control.begin_stop(
        session=asked.session, run=asked.run, message=asked.message, key=asked.key, order=asked.order,
        typed=asked.typed, by=on.by,
    )  # fmt: skip


def own_reset(on: RequestContext, asked: shapes.OwnReset) -> Receiving:
    return on.control.begin_reset(asked.session, key=asked.key, by=on.by)


def own_stopall(on: RequestContext, asked: shapes.OwnStopAll) -> Answering:
    """Stop every session that has a run or a detached process, in one step; a child falls with its home.

    With `of`, stop that principal's sessions, and the runs it started in the sessions of others.
    """
    runs = [run for run in on.control.live_runs(by=on.by) if run.outcome is None]
    held = [each.session for each in on.control.live_processes(by=on.by)]
    # A child is stopped through its home. Stopped alone, a detached child would announce its ending there, and the
    # announcement would start a turn.
    sessions = dict.fromkeys([run.home or run.session for run in runs] + held)
    alone: list[RunInfo] = []
    if asked.of is not None:
        sessions = {each: None for each in sessions if on.control.whose(each).owner == asked.of}
        alone = [run for run in runs if run.principal == asked.of and (run.home or run.session) not in sessions]
    stops = [on.control.begin_stop(session=session, by=on.by) for session in sessions]
    stops += [on.control.begin_stop(run=run.id, by=on.by) for run in alone]

    async def answer() -> list[Receipt]:
        # A stop that fails does not hide the receipts of the others.
        told = await asyncio.gather(*(stop() for stop in stops), return_exceptions=True)
        receipts = [each for each in told if isinstance(each, Receipt)]
        if not receipts and told:
            raise next(each for each in told if isinstance(each, BaseException))
        return list({receipt.id: receipt for receipt in reversed(receipts) if receipt.aborted}.values())[::-1]

    return answer


STOPS: dict[str, Begin] = {
    "chat.abort": chat_abort,
    "sessions.abort": sessions_abort,
    "sessions.reset": sessions_reset,
    "tasks.cancel": tasks_cancel,
    "interlock.stop": own_stop,
    "interlock.reset": own_reset,
    "interlock.stopall": own_stopall,
}
