"""The gateway's methods: words into control calls, outcomes into words. Control decides everything.

1. A handler calls control before it awaits anything else, so a stop right behind a message finds the message.
2. `by` is always the connection's principal; control says whether that principal may.
3. A caller names a run by its id, or by the key under which the caller sent it. Control remembers a stop of a key that
   it has not seen, and the message that arrives under that key is born stopped.

A typed stop is no message and has no run. `Outcome.typed` says that a person wrote it, and the wire then tells `stop`
instead of `rpc`. Its idempotency key is the stop's own key.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from interlock.core.errors import BadInput, Unknown
from interlock.core.events import Entry
from interlock.core.lifecycle import State
from interlock.core.names import Principal, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.core.stopwords import normalise
from interlock.runtime.control import Control
from interlock.runtime.listing import RunInfo
from interlock.runtime.values import name_of
from interlock.surfaces import frames, shapes, telling
from interlock.surfaces.access import CODE_SECONDS

OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")
ANEW = frozenset({"/new", "/reset"})
STRATEGIES = {"followup": "queue"}  # by the wire's word; the others are the same as ours
COMMAND_CHARACTERS = 64
SERVED = frozenset({telling.AGENT, "main"})  # names that clients have for the default agent
LATEST = 1_000  # runs read for a list of sessions or tasks
HISTORY_CHARACTERS = 4 * 1024 * 1024  # of a transcript in one answer, from its end
PAGE = 1_000  # entries in one answer


class Asker(Protocol):
    """What a handler sees of the connection whose request it answers."""

    control: Control
    by: Principal
    is_stop: Callable[[str], bool]

    def first(self, payload: dict[str, Any], about: SessionId) -> None:
        """Send the first of two answers; the handler returns the second."""
        ...

    def name(self, session: SessionId) -> str:
        """Return a session's name as the caller writes it."""
        ...

    def watch(self, wanted: shapes.OwnWatch) -> None:
        """Begin a watch: send the connection a session's or a run's events."""
        ...

    def unwatch(self, number: int) -> None:
        """End a watch."""
        ...

    def pair(self, name: str | None) -> str:
        """Return a code that lets a page in."""
        ...

    async def overview(self) -> frames.Overview:
        """Return the gateway's figures."""
        ...


Handler = Callable[[Asker, Any], Awaitable[Any]]


def is_typed(asked: shapes.OwnChat, is_stop: Callable[[str], bool]) -> bool:
    """Return whether a text is a command: a stop word, or `/new` or `/reset`."""
    text, plain = asked.message, asked.suppress_command_interpretation
    anew = len(text) < COMMAND_CHARACTERS and normalise(text) in ANEW
    return not plain and (anew or is_stop(text))


# Chat and agent


async def chat_send(on: Asker, asked: shapes.OwnChat) -> Any:
    name_of(asked.idempotency_key, "idempotencyKey")
    if is_typed(asked, on.is_stop):
        return await _command(on, asked)
    _no_attachments(asked.attachments)
    sent = await on.control.send(
        asked.session_key,
        asked.message,
        key=asked.idempotency_key,
        strategy=STRATEGIES.get(asked.queue_mode or "", asked.queue_mode),
        deadline=None if asked.timeout_ms is None else asked.timeout_ms / 1000,
        agent=_agent(on, asked.agent_id),
        by=on.by,
    )
    # An ended run has a used key or was born stopped. The timeout of 0 keeps the sender from waiting for a run.
    if sent.state is State.ENDED:
        outcome = await on.control.wait(sent.run_id, timeout=0, by=on.by)
        if outcome.ended:
            return telling.wait_payload(outcome)
    told: dict[str, Any] = {"runId": sent.run_id, "status": "started", "generation": sent.generation}
    told |= {"sessionKey": on.name(sent.session), "session": sent.session, "owner": sent.owner}
    if sent.superseded is not None:
        told |= {"interruptedActiveRun": True, "superseded": sent.superseded}
    return told | ({"queued": True} if sent.state is State.QUEUED else {})


async def _command(on: Asker, asked: shapes.OwnChat) -> Any:
    """Carry out a typed command. Its key is the stop's own, so a command that is delivered twice ends nothing newer."""
    key = asked.idempotency_key
    if normalise(asked.message) in ANEW:
        return await _reset(on, asked.session_key, key)
    return telling.stop_payload(await on.control.stop(session=asked.session_key, key=key, typed=True, by=on.by))


async def agent(on: Asker, asked: shapes.Agent) -> Any:
    _no_attachments(asked.attachments)
    sent = await on.control.send(
        asked.session_key,
        asked.message,
        key=asked.idempotency_key,
        deadline=None if asked.timeout is None else float(asked.timeout),
        kind="agent",
        agent=_agent(on, asked.agent_id),
        instructions=asked.extra_system_prompt,
        by=on.by,
    )
    accepted = {"runId": sent.run_id, "status": "accepted", "acceptedAt": int(time.time() * 1000)}
    accepted |= {"sessionKey": on.name(sent.session), "owner": sent.owner, "generation": sent.generation}
    on.first(accepted, sent.session)
    return telling.wait_payload(await on.control.wait(sent.run_id, by=on.by))


async def agent_wait(on: Asker, asked: shapes.AgentWait) -> Any:
    outcome = await on.control.wait(await _run_id(on, asked.run_id), timeout=asked.timeout_ms / 1000, by=on.by)
    return telling.wait_payload(outcome) | {"runId": asked.run_id if not outcome.ended else outcome.run_id}


async def chat_history(on: Asker, asked: shapes.ChatHistory) -> Any:
    try:
        entries = await on.control.history(asked.session_key, by=on.by)
    except Unknown:
        # A session that has no message yet is empty, and another's must look the same.
        entries = []
    end = max(0, len(entries) - asked.offset)
    chosen: list[dict[str, Any]] = []
    room = max(1, asked.max_chars)
    for entry in reversed(entries[max(0, end - min(PAGE, max(1, asked.limit))) : end]):
        room -= len(entry.text) + len(entry.arguments or "")
        if room < 0 and chosen:
            break
        chosen.append(telling.message_of(entry))
    named = on.name(SessionId(asked.session_key))
    told = {"sessionKey": named, "sessionId": named, "messages": chosen[::-1]}
    return told | {"hasMore": len(chosen) < end}


def _agent(on: Asker, name: str | None) -> str | None:
    """Return an agent's name in control; None for the default agent, which clients call by a name in SERVED."""
    return None if name is None or (name in SERVED and name not in on.control.agents) else name


def _no_attachments(attachments: tuple[Any, ...]) -> None:
    if attachments:
        raise BadInput("attachments are not taken here; put what the agent needs into the message")


async def _run_id(on: Asker, name: str) -> RunId:
    if OURS.fullmatch(name):
        return RunId(name)
    info = await on.control.find(name, by=on.by)
    return RunId(name) if info is None else info.id


# Stopping


async def _stop(on: Asker, name: str) -> Receipt:
    """Stop a run by its id or its key; control remembers the stop of a key that it has not seen."""
    if OURS.fullmatch(name):
        return await on.control.stop(run=name, by=on.by)
    return await on.control.stop(message=name, by=on.by)


async def chat_abort(on: Asker, asked: shapes.ChatAbort) -> Any:
    if asked.run_id is None:
        receipt = await on.control.stop(session=asked.session_key, by=on.by)
        return telling.stop_payload(receipt) | _left(on, asked.session_key)
    # The right to stop a run does not depend on the session that the request names beside it, so that is not read.
    receipt = await _stop(on, asked.run_id)
    return telling.stop_payload(receipt) | _left(on, receipt.session) | _unknown(on, asked.run_id, receipt)


async def sessions_abort(on: Asker, asked: shapes.SessionsAbort) -> Any:
    if asked.run_id is not None:
        receipts = [await _stop(on, asked.run_id)]
        session = receipts[0].session if asked.clear_queued else None
        if session is not None:
            receipts.append(await on.control.stop(session=session, by=on.by))
    elif asked.key is None:
        raise BadInput("sessions.abort: name a session by key, or a run by runId")
    elif asked.clear_queued:
        receipts = [await on.control.stop(session=asked.key, by=on.by)]
    else:
        seated = [
            run for run in await on.control.runs(by=on.by) if run.session == SessionId(asked.key) and _at_work(run)
        ]
        receipts = [await on.control.stop(run=run.id, by=on.by) for run in seated]
    session_id = asked.key if asked.run_id is None else receipts[0].session
    stopped = [run.id for receipt in receipts if receipt.aborted for run in receipt.runs]
    told: dict[str, Any] = {"ok": True, "abortedRunId": stopped[0] if stopped else None}
    told["status"] = "aborted" if any(receipt.aborted for receipt in receipts) else "no-active-run"
    told |= {"receipt": receipts[0]} if receipts else {}
    return told | _left(on, session_id) | ({} if asked.run_id is None else _unknown(on, asked.run_id, receipts[0]))


def _left(on: Asker, session: str | None) -> dict[str, Any]:
    """Return what the caller may stop in a session and this stop left running."""
    left = None if session is None else on.control.remaining(session, by=on.by)
    return {} if left is None or not any(left) else {"remaining": left._asdict()}


def _unknown(on: Asker, name: str, receipt: Receipt) -> dict[str, Any]:
    """Return the reason why a stop found no run; it is the same for another's run and for one that never was."""
    if receipt.aborted or receipt.already is not None or receipt.id is not None:
        return {}
    later = "; one that is sent with this key will not run" if not OURS.fullmatch(name) else ""
    return {"reason": f"no run {name!r:.80} that {on.by} may stop{later}"}


def _at_work(run: RunInfo) -> bool:
    return run.state in (State.ARRIVING, State.SEATED, State.STARTED)


async def _reset(on: Asker, session: str, key: str) -> dict[str, Any]:
    try:
        receipt = await on.control.reset(session, key=key, by=on.by)
    except Unknown:  # the session has no message yet, or is another's
        return {"ok": True, "key": on.name(SessionId(session)), "reset": False, "aborted": False, "runIds": []}
    return telling.stop_payload(receipt) | {"key": on.name(SessionId(session)), "reset": True}


async def sessions_reset(on: Asker, asked: shapes.SessionKey) -> Any:
    receipt = await on.control.reset(asked.key, by=on.by)
    return telling.stop_payload(receipt) | {"key": on.name(SessionId(asked.key)), "reset": True}


async def tasks_cancel(on: Asker, asked: shapes.TasksCancel) -> Any:
    receipt = await _stop(on, asked.task_id)
    info = await on.control.find(asked.task_id, by=on.by)
    told: dict[str, Any] = {"found": info is not None, "cancelled": receipt.aborted}
    if info is None:
        return told | {"reason": "no such task of yours"}
    if receipt.already is not None:
        told["reason"] = f"it had ended already: {receipt.already}"
    return told | {"task": telling.task_of(info, on.name)}


# Looking


async def tasks_list(on: Asker, asked: shapes.TasksList) -> Any:
    """Return the runs of a session and all below them, or of all sessions, the latest first."""
    try:
        if asked.session_key:
            runs = sorted(await on.control.runs(asked.session_key, tree=True, by=on.by), key=_admitted)
        else:
            runs = await on.control.runs(latest=LATEST, by=on.by)
    except Unknown:
        runs = []
    wanted = (asked.status,) if isinstance(asked.status, str) else asked.status
    found = [run for run in reversed(runs) if run.state is not State.ALIASED]  # listed as the run that absorbed it
    found = [run for run in found if wanted is None or telling.status_of(run) in wanted]
    if asked.agent_id is not None:
        agent = on.control.named(_agent(on, asked.agent_id))
        found = [run for run in found if run.agent == agent]
    begin = _cursor(asked.cursor)
    end = begin + min(PAGE, max(1, asked.limit))
    tasks = [telling.task_of(run, on.name, whole=False) for run in found[begin:end]]
    return {"tasks": tasks} | ({"nextCursor": str(end)} if end < len(found) else {})


def _admitted(run: RunInfo) -> tuple[int, ...]:
    """Return a sort key for the order of admission: a run's id holds the boot and a counter, which only rise."""
    return tuple(int(part, 16) for part in run.id.split("-")[1:])


def _cursor(text: str | None) -> int:
    if text is not None and not re.fullmatch(r"[0-9]{1,9}", text):
        raise BadInput("cursor: use the nextCursor of the answer before")
    return int(text or 0)


async def tasks_get(on: Asker, asked: shapes.TaskId) -> Any:
    info = await on.control.find(asked.task_id, by=on.by)
    if info is None:
        raise Unknown(f"no task {asked.task_id!r:.80} that {on.by} may see; tasks.list lists them")
    return {"task": telling.task_of(info, on.name)}


async def sessions_list(on: Asker, asked: shapes.SessionsList) -> Any:
    begin, limit, sought = asked.offset, min(PAGE, max(1, asked.limit)), (asked.search or "").lower()
    infos = await on.control.sessions(limit=PAGE if sought else begin + limit, by=on.by)
    runs: dict[SessionId, list[RunInfo]] = {}
    for run in await on.control.runs(latest=LATEST, by=on.by):
        runs.setdefault(run.session, []).append(run)
    found = [info for info in infos if sought in info.session.id.lower()][begin : begin + limit]
    rows = [telling.session_of(info, runs.get(info.session.id, []), on.name) for info in found]
    return {"ts": int(time.time() * 1000), "count": len(rows), "sessions": rows}


async def sessions_describe(on: Asker, asked: shapes.SessionKey) -> Any:
    info = await on.control.session(asked.key, by=on.by)
    return {"session": telling.session_of(info, await on.control.runs(asked.key, by=on.by), on.name)}


async def receipts_get(on: Asker, asked: shapes.ReceiptsGet) -> Any:
    if (asked.run_id is None) == (asked.receipt_id is None):
        raise BadInput("receipts.get: name one thing, runId or receiptId")
    wanted = asked.receipt_id if asked.run_id is None else await _run_id(on, asked.run_id)
    return frames.ReceiptResult(receipt=await on.control.receipt(wanted, by=on.by))


async def runs_timeline(on: Asker, asked: shapes.RunRef) -> Any:
    run_id = await _run_id(on, asked.run_id)
    return frames.TimelineResult(run_id=run_id, moments=await on.control.timeline(run_id, by=on.by))


async def health(on: Asker, asked: shapes.Nothing) -> Any:
    return {"ok": True, "ts": int(time.time() * 1000)}


# Questions


async def approval_list(on: Asker, asked: shapes.Nothing) -> Any:
    return {"approvals": [telling.approval_of(question, on.name) for question in await on.control.questions(by=on.by)]}


async def approval_resolve(on: Asker, asked: shapes.ApprovalResolve) -> Any:
    words: dict[str, bool | str] = {"allow-once": True, "allow-always": True, "deny": False}
    asked_now = (question for question in await on.control.questions(by=on.by) if question.id == asked.id)
    choices = next((question.choices for question in asked_now), None)
    # A question that is not open any more has no choices here; `answer` then says what became of it.
    answer = asked.decision if choices is not None else words.get(asked.decision, asked.decision)
    info = await on.control.answer(asked.id, answer, by=on.by)
    return {"ok": True, "id": info.id, "decision": asked.decision, "state": info.state}


# Our own methods: control's verbs by their own names


def _verb(name: str, *fields: str) -> Handler:
    async def ask(on: Asker, asked: Any) -> Any:
        return await getattr(on.control, name)(**{field: getattr(asked, field) for field in fields}, by=on.by)

    return ask


async def own_runs(on: Asker, asked: shapes.OwnList) -> list[RunInfo]:
    """Return runs with shortened texts; `wait` and `find` return the whole."""
    return [
        telling.short(run)
        for run in await on.control.runs(asked.session, tree=asked.tree, latest=asked.latest, by=on.by)
    ]


async def own_history(on: Asker, asked: shapes.OwnSession) -> list[Entry]:
    """Return the latest part of a transcript, at most HISTORY_CHARACTERS."""
    entries, room = await on.control.history(asked.session, by=on.by), HISTORY_CHARACTERS
    for at in range(len(entries) - 1, -1, -1):
        room -= len(entries[at].text) + len(entries[at].arguments or "")
        if room < 0:
            return entries[max(at + 1, 0) :] or entries[-1:]
    return entries


async def own_wait(on: Asker, asked: shapes.OwnWait) -> Any:
    run_id = await _run_id(on, asked.run)
    return await on.control.wait(run_id, timeout=asked.timeout, drained=asked.drained, by=on.by)


async def own_watch(on: Asker, asked: shapes.OwnWatch) -> Any:
    on.watch(asked)
    return {"watch": asked.watch}


async def own_unwatch(on: Asker, asked: shapes.OwnUnwatch) -> Any:
    on.unwatch(asked.watch)
    return {"watch": asked.watch}


async def own_pair(on: Asker, asked: shapes.OwnPair) -> frames.PairCode:
    return frames.PairCode(code=on.pair(asked.name), seconds=CODE_SECONDS)


async def own_overview(on: Asker, asked: shapes.OwnNothing) -> frames.Overview:
    return await on.overview()


async def own_stopall(on: Asker, asked: shapes.OwnStopAll) -> list[Receipt]:
    """Stop every session that has a run or a detached process, concurrently; a child falls with its home.

    With `of`, stop that principal's sessions, and the runs it started in the sessions of others.
    """
    runs = [run for run in await on.control.runs(by=on.by) if run.outcome is None]
    held = [each.session for each in await on.control.processes(by=on.by)]
    # A child is stopped through its home. Stopped alone, a detached child would announce its ending there, and the
    # announcement would start a turn.
    sessions = dict.fromkeys([run.home or run.session for run in runs] + held)
    alone: list[RunInfo] = []
    if asked.of is not None:
        sessions = {each: None for each in sessions if on.control.whose(each).owner == asked.of}
        alone = [run for run in runs if run.principal == asked.of and (run.home or run.session) not in sessions]
    stops = [on.control.stop(session=session, by=on.by) for session in sessions]
    stops += [on.control.stop(run=run.id, by=on.by) for run in alone]
    # A stop that fails does not hide the receipts of the others.
    told = await asyncio.gather(*stops, return_exceptions=True)
    receipts = [each for each in told if isinstance(each, Receipt)]
    if not receipts and told:
        raise next(each for each in told if isinstance(each, BaseException))
    return list({receipt.id: receipt for receipt in reversed(receipts) if receipt.aborted}.values())[::-1]


HANDLERS: dict[str, Handler] = {
    "health": health,
    "chat.send": chat_send,
    "chat.abort": chat_abort,
    "chat.history": chat_history,
    "agent": agent,
    "agent.wait": agent_wait,
    "sessions.abort": sessions_abort,
    "sessions.list": sessions_list,
    "sessions.describe": sessions_describe,
    "sessions.reset": sessions_reset,
    "tasks.list": tasks_list,
    "tasks.get": tasks_get,
    "tasks.cancel": tasks_cancel,
    "exec.approval.list": approval_list,
    "exec.approval.resolve": approval_resolve,
    "receipts.get": receipts_get,
    "runs.timeline": runs_timeline,
    "interlock.send": _verb("send", *shapes.OwnSend.__struct_fields__),
    "interlock.chat": chat_send,
    "interlock.stop": _verb("stop", "session", "run", "message", "key", "order", "typed"),
    "interlock.reset": _verb("reset", "session", "key"),
    "interlock.wait": own_wait,
    "interlock.watch": own_watch,
    "interlock.unwatch": own_unwatch,
    "interlock.answer": _verb("answer", "question", "answer"),
    "interlock.questions": _verb("questions", "session"),
    "interlock.runs": own_runs,
    "interlock.find": _verb("find", "name"),
    "interlock.sessions": _verb("sessions", "limit"),
    "interlock.processes": _verb("processes", "session"),
    "interlock.history": own_history,
    "interlock.strategy": _verb("set_strategy", "session", "strategy"),
    "interlock.share": _verb("share", "session", "with_", "may"),
    "interlock.unshare": _verb("unshare", "session", "with_"),
    "interlock.wake": _verb("wake", "session", "text", "at", "every", "cron"),
    "interlock.unwake": _verb("unwake", "wake"),
    "interlock.wakes": _verb("wakes", "session"),
    "interlock.pair": own_pair,
    "interlock.overview": own_overview,
    "interlock.stopall": own_stopall,
}
