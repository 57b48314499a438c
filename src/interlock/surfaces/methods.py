"""The gateway's methods: words into control calls, outcomes into words. Control decides everything.

1. A message is taken, and a stop takes effect, in the step that reads its frame: the handlers in `BEGINS` are plain
   functions that call control and return what waits for the answer. So a stop right behind a message finds the message,
   and a stop waits for no other request. Every other handler begins in a task of its own, in the order of the frames.
2. `by` is always the connection's principal; control says whether that principal may.
3. A caller names a run by its id, or by the key under which the caller sent it. Control remembers a stop of a key that
   it has not seen, and the message that arrives under that key is born stopped.

A typed stop is no message and has no run. `Outcome.typed` says that a person wrote it, and the wire then tells `stop`
instead of `rpc`. Its idempotency key is the stop's own key.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from interlock.core.errors import BadInput, Unknown
from interlock.core.events import Entry
from interlock.core.lifecycle import State
from interlock.core.names import Principal, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.core.stopwords import normalise
from interlock.runtime.control import Control
from interlock.runtime.listing import RunInfo
from interlock.runtime.live import Sent
from interlock.runtime.stopping import Answering as Receiving
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


class Context(Protocol):
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


Handler = Callable[[Context, Any], Awaitable[Any]]
Answering = Callable[[], Awaitable[Any]]
Begin = Callable[[Context, Any], Answering]


def is_typed(asked: shapes.OwnChat, is_stop: Callable[[str], bool]) -> bool:
    """Return whether a text is a command: a stop word, or `/new` or `/reset`."""
    text, plain = asked.message, asked.suppress_command_interpretation
    anew = len(text) < COMMAND_CHARACTERS and normalise(text) in ANEW
    return not plain and (anew or is_stop(text))


# Chat and agent


def chat_send(on: Context, asked: shapes.OwnChat) -> Answering:
    name_of(asked.idempotency_key, "idempotencyKey")
    if is_typed(asked, on.is_stop):
        return _command(on, asked)
    _no_attachments(asked.attachments)
    sending = on.control.begin_send(
        asked.session_key,
        asked.message,
        key=asked.idempotency_key,
        strategy=STRATEGIES.get(asked.queue_mode or "", asked.queue_mode),
        deadline=None if asked.timeout_ms is None else asked.timeout_ms / 1000,
        agent=_agent(on, asked.agent_id),
        by=on.by,
    )
    return partial(_chat_sent, on, sending)


async def _chat_sent(on: Context, sending: Callable[[], Awaitable[Sent]]) -> Any:
    sent = await sending()
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


def _command(on: Context, asked: shapes.OwnChat) -> Answering:
    """Carry out a typed command. Its key is the stop's own, so a command that is delivered twice ends nothing newer."""
    key = asked.idempotency_key
    if normalise(asked.message) in ANEW:
        return _reset(on, asked.session_key, key)
    return _stopped(on.control.begin_stop(session=asked.session_key, key=key, typed=True, by=on.by))


def agent(on: Context, asked: shapes.Agent) -> Answering:
    _no_attachments(asked.attachments)
    sending = on.control.begin_send(
        asked.session_key,
        asked.message,
        key=asked.idempotency_key,
        deadline=None if asked.timeout is None else float(asked.timeout),
        kind="agent",
        agent=_agent(on, asked.agent_id),
        instructions=asked.extra_system_prompt,
        by=on.by,
    )
    return partial(_agent_sent, on, sending)


async def _agent_sent(on: Context, sending: Callable[[], Awaitable[Sent]]) -> Any:
    sent = await sending()
    accepted = {"runId": sent.run_id, "status": "accepted", "acceptedAt": int(time.time() * 1000)}
    accepted |= {"sessionKey": on.name(sent.session), "owner": sent.owner, "generation": sent.generation}
    on.first(accepted, sent.session)
    return telling.wait_payload(await on.control.wait(sent.run_id, by=on.by))


async def agent_wait(on: Context, asked: shapes.AgentWait) -> Any:
    outcome = await on.control.wait(await _run_id(on, asked.run_id), timeout=asked.timeout_ms / 1000, by=on.by)
    return telling.wait_payload(outcome) | {"runId": asked.run_id if not outcome.ended else outcome.run_id}


async def chat_history(on: Context, asked: shapes.ChatHistory) -> Any:
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


def _agent(on: Context, name: str | None) -> str | None:
    """Return an agent's name in control; None for the default agent, which clients call by a name in SERVED."""
    return None if name is None or (name in SERVED and name not in on.control.agents) else name


def _no_attachments(attachments: tuple[Any, ...]) -> None:
    if attachments:
        raise BadInput("attachments are not taken here; put what the agent needs into the message")


async def _run_id(on: Context, name: str) -> RunId:
    if OURS.fullmatch(name):
        return RunId(name)
    info = await on.control.find(name, by=on.by)
    return RunId(name) if info is None else info.id


# Stopping


def _stop(on: Context, name: str) -> Receiving:
    """Stop a run by its id or its key; control remembers the stop of a key that it has not seen."""
    if OURS.fullmatch(name):
        return on.control.begin_stop(run=name, by=on.by)
    return on.control.begin_stop(message=name, by=on.by)


def _stopped(receiving: Receiving) -> Answering:
    async def answer() -> Any:
        return telling.stop_payload(await receiving())

    return answer


def chat_abort(on: Context, asked: shapes.ChatAbort) -> Answering:
    # The right to stop a run does not depend on the session that the request names beside it, so that is not read.
    name, session = asked.run_id, asked.session_key
    stop = on.control.begin_stop(session=session, by=on.by) if name is None else _stop(on, name)

    async def answer() -> Any:
        receipt = await stop()
        if name is None:
            return telling.stop_payload(receipt) | _left(on, session)
        return telling.stop_payload(receipt) | _left(on, receipt.session) | _unknown(on, name, receipt)

    return answer


def sessions_abort(on: Context, asked: shapes.SessionsAbort) -> Answering:
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


def _left(on: Context, session: str | None) -> dict[str, Any]:
    """Return what the caller may stop in a session and this stop left running."""
    left = None if session is None else on.control.remaining(session, by=on.by)
    return {} if left is None or not any(left) else {"remaining": left._asdict()}


def _unknown(on: Context, name: str, receipt: Receipt) -> dict[str, Any]:
    """Return the reason why a stop found no run; it is the same for another's run and for one that never was."""
    if receipt.aborted or receipt.already is not None or receipt.id is not None:
        return {}
    later = "; one that is sent with this key will not run" if not OURS.fullmatch(name) else ""
    return {"reason": f"no run {name!r:.80} that {on.by} may stop{later}"}


def _at_work(run: RunInfo) -> bool:
    return run.state in (State.ARRIVING, State.SEATED, State.STARTED)


def _reset(on: Context, session: str, key: str) -> Answering:
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


def sessions_reset(on: Context, asked: shapes.SessionKey) -> Answering:
    resetting = on.control.begin_reset(asked.key, by=on.by)

    async def answer() -> Any:
        return telling.stop_payload(await resetting()) | {"key": on.name(SessionId(asked.key)), "reset": True}

    return answer


def tasks_cancel(on: Context, asked: shapes.TasksCancel) -> Answering:
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


# Looking


async def tasks_list(on: Context, asked: shapes.TasksList) -> Any:
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


async def tasks_get(on: Context, asked: shapes.TaskId) -> Any:
    info = await on.control.find(asked.task_id, by=on.by)
    if info is None:
        raise Unknown(f"no task {asked.task_id!r:.80} that {on.by} may see; tasks.list lists them")
    return {"task": telling.task_of(info, on.name)}


async def sessions_list(on: Context, asked: shapes.SessionsList) -> Any:
    begin, limit, sought = asked.offset, min(PAGE, max(1, asked.limit)), (asked.search or "").lower()
    infos = await on.control.sessions(limit=PAGE if sought else begin + limit, by=on.by)
    runs: dict[SessionId, list[RunInfo]] = {}
    for run in await on.control.runs(latest=LATEST, by=on.by):
        runs.setdefault(run.session, []).append(run)
    found = [info for info in infos if sought in info.session.id.lower()][begin : begin + limit]
    rows = [telling.session_of(info, runs.get(info.session.id, []), on.name) for info in found]
    return {"ts": int(time.time() * 1000), "count": len(rows), "sessions": rows}


async def sessions_describe(on: Context, asked: shapes.SessionKey) -> Any:
    info = await on.control.session(asked.key, by=on.by)
    return {"session": telling.session_of(info, await on.control.runs(asked.key, by=on.by), on.name)}


async def receipts_get(on: Context, asked: shapes.ReceiptsGet) -> Any:
    if (asked.run_id is None) == (asked.receipt_id is None):
        raise BadInput("receipts.get: name one thing, runId or receiptId")
    wanted = asked.receipt_id if asked.run_id is None else await _run_id(on, asked.run_id)
    return frames.ReceiptResult(receipt=await on.control.receipt(wanted, by=on.by))


async def runs_timeline(on: Context, asked: shapes.RunRef) -> Any:
    run_id = await _run_id(on, asked.run_id)
    return frames.TimelineResult(run_id=run_id, moments=await on.control.timeline(run_id, by=on.by))


async def health(on: Context, asked: shapes.Nothing) -> Any:
    return {"ok": True, "ts": int(time.time() * 1000)}


# Questions


async def approval_list(on: Context, asked: shapes.Nothing) -> Any:
    return {"approvals": [telling.approval_of(question, on.name) for question in await on.control.questions(by=on.by)]}


async def approval_resolve(on: Context, asked: shapes.ApprovalResolve) -> Any:
    words: dict[str, bool | str] = {"allow-once": True, "allow-always": True, "deny": False}
    asked_now = (question for question in await on.control.questions(by=on.by) if question.id == asked.id)
    choices = next((question.choices for question in asked_now), None)
    # A question that is not open any more has no choices here; `answer` then says what became of it.
    answer = asked.decision if choices is not None else words.get(asked.decision, asked.decision)
    info = await on.control.answer(asked.id, answer, by=on.by)
    return {"ok": True, "id": info.id, "decision": asked.decision, "state": info.state}


# Our own methods: control's verbs by their own names


def _verb(name: str, *fields: str) -> Handler:
    async def ask(on: Context, asked: Any) -> Any:
        return await getattr(on.control, name)(**{field: getattr(asked, field) for field in fields}, by=on.by)

    return ask


async def own_runs(on: Context, asked: shapes.OwnList) -> list[RunInfo]:
    """Return runs with shortened texts; `wait` and `find` return the whole."""
    return [
        telling.short(run)
        for run in await on.control.runs(asked.session, tree=asked.tree, latest=asked.latest, by=on.by)
    ]


async def own_history(on: Context, asked: shapes.OwnSession) -> list[Entry]:
    """Return the latest part of a transcript, at most HISTORY_CHARACTERS."""
    entries, room = await on.control.history(asked.session, by=on.by), HISTORY_CHARACTERS
    for at in range(len(entries) - 1, -1, -1):
        room -= len(entries[at].text) + len(entries[at].arguments or "")
        if room < 0:
            return entries[max(at + 1, 0) :] or entries[-1:]
    return entries


async def own_wait(on: Context, asked: shapes.OwnWait) -> Any:
    run_id = await _run_id(on, asked.run)
    return await on.control.wait(run_id, timeout=asked.timeout, drained=asked.drained, by=on.by)


async def own_watch(on: Context, asked: shapes.OwnWatch) -> Any:
    on.watch(asked)
    return {"watch": asked.watch}


async def own_unwatch(on: Context, asked: shapes.OwnUnwatch) -> Any:
    on.unwatch(asked.watch)
    return {"watch": asked.watch}


async def own_pair(on: Context, asked: shapes.OwnPair) -> frames.PairCode:
    return frames.PairCode(code=on.pair(asked.name), seconds=CODE_SECONDS)


async def own_overview(on: Context, asked: shapes.OwnNothing) -> frames.Overview:
    return await on.overview()


def own_send(on: Context, asked: shapes.OwnSend) -> Answering:
    given = {field: getattr(asked, field) for field in shapes.OwnSend.__struct_fields__}
    return on.control.begin_send(**given, by=on.by)


def own_stop(on: Context, asked: shapes.OwnStop) -> Receiving:
    return on.control.begin_stop(
        session=asked.session, run=asked.run, message=asked.message, key=asked.key, order=asked.order,
        typed=asked.typed, by=on.by,
    )  # fmt: skip


def own_reset(on: Context, asked: shapes.OwnReset) -> Receiving:
    return on.control.begin_reset(asked.session, key=asked.key, by=on.by)


def own_stopall(on: Context, asked: shapes.OwnStopAll) -> Answering:
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


BEGINS: dict[str, Begin] = {
    "chat.send": chat_send,
    "agent": agent,
    "interlock.send": own_send,
    "interlock.chat": chat_send,
    "chat.abort": chat_abort,
    "sessions.abort": sessions_abort,
    "sessions.reset": sessions_reset,
    "tasks.cancel": tasks_cancel,
    "interlock.stop": own_stop,
    "interlock.reset": own_reset,
    "interlock.stopall": own_stopall,
}
HANDLERS: dict[str, Handler] = {
    "health": health,
    "chat.history": chat_history,
    "agent.wait": agent_wait,
    "sessions.list": sessions_list,
    "sessions.describe": sessions_describe,
    "tasks.list": tasks_list,
    "tasks.get": tasks_get,
    "exec.approval.list": approval_list,
    "exec.approval.resolve": approval_resolve,
    "receipts.get": receipts_get,
    "runs.timeline": runs_timeline,
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
}
