"""The gateway's methods: each asks control and words its answer. A new verb of a caller needs no line here.

1. A message is taken, and a stop takes effect, in the step that reads its frame: the handlers in `BEGINS` are plain
   functions that ask control and return what waits for the answer. So a stop right behind a message finds the message,
   and a stop waits for no other request. Every other handler begins in a task of its own, in the order of the frames.
2. `by` is always the connection's principal; control says whether that principal may.
3. A caller names a run by its id, or by the key under which the caller sent it. Control remembers a stop of a key that
   it has not seen, and the message that arrives under that key is born stopped.
"""

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from interlock.access.pairing import CODE_SECONDS
from interlock.client.chat import Handled
from interlock.client.door import Asked
from interlock.core import verbs
from interlock.core.answers import RunInfo, Sent
from interlock.core.errors import BadInput, Unknown
from interlock.core.events import Entry
from interlock.core.names import SessionId
from interlock.core.values import name_of, strategy_of
from interlock.core.verbs import Verb
from interlock.protocol import frames, shapes
from interlock.surfaces.gateway import telling
from interlock.surfaces.gateway.context import RequestContext
from interlock.surfaces.gateway.stops import STOPS, Answering, Begin

STRATEGIES = {"followup": "queue"}  # by the wire's word; the others are the same as ours
SERVED = frozenset({telling.AGENT, "main"})  # names that clients have for the default agent
LATEST = 1_000  # runs read for a list of sessions or tasks
HISTORY_CHARACTERS = 4 * 1024 * 1024  # of a transcript in one answer, from its end
PAGE = 1_000  # entries in one answer


Handler = Callable[[RequestContext, Any], Awaitable[Any]]


# Chat and agent


def chat_send(on: RequestContext, asked: shapes.OwnChat) -> Answering:
    name_of(asked.idempotency_key, "idempotencyKey")
    if not on.typed:
        _no_attachments(asked.attachments)
    handling = on.chat.handle(
        on.client,
        asked.session_key,
        asked.message,
        key=asked.idempotency_key,
        forwarded=asked.suppress_command_interpretation,
        strategy=strategy_of(STRATEGIES.get(asked.queue_mode or "", asked.queue_mode)),
        deadline=None if asked.timeout_ms is None else asked.timeout_ms / 1000,
        agent=_agent(on, asked.agent_id),
    )
    return partial(_chat_handled, on, SessionId(asked.session_key), handling)


async def _chat_handled(on: RequestContext, session: SessionId, handling: Asked[Handled]) -> Any:
    handled = await handling
    if handled.sent is not None:
        return await _chat_sent(on, handled.sent)
    reset = {"key": on.name(session), "reset": handled.receipt is not None} if handled.reset else {}
    if handled.receipt is None:
        return {"ok": True, "aborted": False, "runIds": []} | reset
    return telling.stop_payload(handled.receipt) | reset


async def _chat_sent(on: RequestContext, sent: Sent) -> Any:
    # An ended run has a used key or was born stopped. The timeout of 0 keeps the sender from waiting for a run.
    if sent.state.over:
        outcome = await on.client.wait(sent.run_id, timeout=0)
        if outcome.ended:
            return telling.wait_payload(outcome)
    told: dict[str, Any] = {"runId": sent.run_id, "status": "started", "generation": sent.generation}
    told |= {"sessionKey": on.name(sent.session), "session": sent.session, "owner": sent.owner}
    if sent.superseded is not None:
        told |= {"interruptedActiveRun": True, "superseded": sent.superseded}
    return told | ({"queued": True} if sent.state.queued else {})


def agent(on: RequestContext, asked: shapes.Agent) -> Answering:
    _no_attachments(asked.attachments)
    sending = on.client.ask(
        verbs.Send(
            session=asked.session_key,
            text=asked.message,
            key=asked.idempotency_key,
            deadline=None if asked.timeout is None else float(asked.timeout),
            kind="agent",
            agent=_agent(on, asked.agent_id),
            instructions=asked.extra_system_prompt,
        )
    )
    return partial(_agent_sent, on, sending)


async def _agent_sent(on: RequestContext, sending: Asked[Sent]) -> Any:
    sent = await sending
    accepted = {"runId": sent.run_id, "status": "accepted", "acceptedAt": int(time.time() * 1000)}
    accepted |= {"sessionKey": on.name(sent.session), "owner": sent.owner, "generation": sent.generation}
    on.first(accepted, sent.session)
    return telling.wait_payload(await on.client.wait(sent.run_id))


async def agent_wait(on: RequestContext, asked: shapes.AgentWait) -> Any:
    outcome = await on.client.wait(asked.run_id, timeout=asked.timeout_ms / 1000)
    return telling.wait_payload(outcome) | {"runId": asked.run_id if not outcome.ended else outcome.run_id}


async def chat_history(on: RequestContext, asked: shapes.ChatHistory) -> Any:
    try:
        entries = await on.client.history(asked.session_key)
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


def _agent(on: RequestContext, name: str | None) -> str | None:
    """Return an agent's name in control; None for the default agent, which clients call by a name in SERVED."""
    return None if name is None or (name in SERVED and name not in on.door.agents) else name


def _no_attachments(attachments: tuple[Any, ...]) -> None:
    if attachments:
        raise BadInput("attachments are not taken here; put what the agent needs into the message")


# Looking


async def tasks_list(on: RequestContext, asked: shapes.TasksList) -> Any:
    """Return the runs of a session and all below them, or of all sessions, the latest first."""
    try:
        if asked.session_key:
            runs = sorted(await on.client.runs(asked.session_key, tree=True), key=_admitted)
        else:
            runs = await on.client.runs(latest=LATEST)
    except Unknown:
        runs = []
    wanted = (asked.status,) if isinstance(asked.status, str) else asked.status
    found = [run for run in reversed(runs) if not run.state.aliased]  # listed as the run that absorbed it
    found = [run for run in found if wanted is None or telling.status_of(run) in wanted]
    if asked.agent_id is not None:
        agent = _agent(on, asked.agent_id)
        if agent is not None and agent not in on.door.agents:
            raise BadInput(f"no agent {agent!r:.80} here; the agents are: {', '.join(on.door.agents) or 'none'}")
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


async def tasks_get(on: RequestContext, asked: shapes.TaskId) -> Any:
    info = await on.client.find(asked.task_id)
    if info is None:
        raise Unknown(f"no task {asked.task_id!r:.80} that {on.by} may see; tasks.list lists them")
    return {"task": telling.task_of(info, on.name)}


async def sessions_list(on: RequestContext, asked: shapes.SessionsList) -> Any:
    begin, limit, sought = asked.offset, min(PAGE, max(1, asked.limit)), (asked.search or "").lower()
    infos = await on.client.sessions(limit=PAGE if sought else begin + limit)
    runs: dict[SessionId, list[RunInfo]] = {}
    for run in await on.client.runs(latest=LATEST):
        runs.setdefault(run.session, []).append(run)
    found = [info for info in infos if sought in info.session.id.lower()][begin : begin + limit]
    rows = [telling.session_of(info, runs.get(info.session.id, []), on.name) for info in found]
    return {"ts": int(time.time() * 1000), "count": len(rows), "sessions": rows}


async def sessions_describe(on: RequestContext, asked: shapes.SessionKey) -> Any:
    info = await on.client.session(asked.key)
    return {"session": telling.session_of(info, await on.client.runs(asked.key), on.name)}


async def receipts_get(on: RequestContext, asked: shapes.ReceiptsGet) -> Any:
    if (asked.run_id is None) == (asked.receipt_id is None):
        raise BadInput("receipts.get: name one thing, runId or receiptId")
    wanted = asked.receipt_id if asked.run_id is None else asked.run_id
    return frames.ReceiptResult(receipt=await on.client.ask(verbs.GetReceipt(of=wanted or "")))


async def runs_timeline(on: RequestContext, asked: shapes.RunRef) -> Any:
    found = await on.client.find(asked.run_id)
    run_id = asked.run_id if found is None else found.id
    return frames.TimelineResult(run_id=run_id, moments=await on.client.timeline(run_id))


async def health(on: RequestContext, asked: shapes.Nothing) -> Any:
    return {"ok": True, "ts": int(time.time() * 1000)}


# Questions


async def approval_list(on: RequestContext, asked: shapes.Nothing) -> Any:
    return {"approvals": [telling.approval_of(question, on.name) for question in await on.client.questions()]}


async def approval_resolve(on: RequestContext, asked: shapes.ApprovalResolve) -> Any:
    words: dict[str, bool | str] = {"allow-once": True, "allow-always": True, "deny": False}
    asked_now = (question for question in await on.client.questions() if question.id == asked.id)
    choices = next((question.choices for question in asked_now), None)
    # A question that is not open any more has no choices here; `answer` then says what became of it.
    answer = asked.decision if choices is not None else words.get(asked.decision, asked.decision)
    info = await on.client.answer(asked.id, answer)
    return {"ok": True, "id": info.id, "decision": asked.decision, "state": info.state}


# Our own methods: verbs, as they are


async def own_verb(on: RequestContext, asked: Verb[Any]) -> Any:
    return await on.client.ask(asked)


async def own_runs(on: RequestContext, asked: verbs.Runs) -> list[RunInfo]:
    """Return runs with shortened texts; `wait` and `find` return the whole."""
    return [telling.short(run) for run in await on.client.ask(asked)]


async def own_history(on: RequestContext, asked: verbs.History) -> list[Entry]:
    """Return the latest part of a transcript, at most HISTORY_CHARACTERS."""
    entries, room = await on.client.ask(asked), HISTORY_CHARACTERS
    for at in range(len(entries) - 1, -1, -1):
        room -= len(entries[at].text) + len(entries[at].arguments or "")
        if room < 0:
            return entries[max(at + 1, 0) :] or entries[-1:]
    return entries


def own_begin(on: RequestContext, asked: Verb[Any]) -> Answering:
    begun = on.client.ask(asked)

    async def answer() -> Any:
        return await begun

    return answer


async def own_watch(on: RequestContext, asked: shapes.OwnWatch) -> Any:
    on.connection.watch(asked, on.error)
    return {"watch": asked.watch}


async def own_unwatch(on: RequestContext, asked: shapes.OwnUnwatch) -> Any:
    on.connection.unwatch(asked.watch)
    return {"watch": asked.watch}


async def own_pair(on: RequestContext, asked: shapes.OwnPair) -> frames.PairCode:
    code = on.connection.gateway.pair(on.by, on.connection.scopes, asked.name)
    return frames.PairCode(code=code, seconds=CODE_SECONDS)


async def own_tokens(on: RequestContext, asked: shapes.OwnNothing) -> list[frames.TokenInfo]:
    return on.connection.gateway.access.listing()


async def own_token_add(on: RequestContext, asked: shapes.OwnTokenAdd) -> frames.NewToken:
    return await on.connection.gateway.tokens.add_token(asked.name, asked.scopes)


async def own_token_remove(on: RequestContext, asked: shapes.OwnTokenRemove) -> None:
    await on.connection.gateway.tokens.remove_token(asked.name)


async def own_token_rotate(on: RequestContext, asked: shapes.OwnNothing) -> None:
    with on.parting(None):
        await on.connection.gateway.tokens.rotate_token()


async def own_overview(on: RequestContext, asked: shapes.OwnNothing) -> frames.Overview:
    return await on.connection.gateway.overview()


BEGINS: dict[str, Begin] = {
    "chat.send": chat_send,
    "agent": agent,
    "interlock.chat": chat_send,
    **STOPS,
    **{verb.method: own_begin for verb in verbs.VERBS if verb.stops or verb is verbs.Send},
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
    **{verb.method: own_verb for verb in verbs.VERBS if verb.method},
    "interlock.runs": own_runs,
    "interlock.history": own_history,
    "interlock.watch": own_watch,
    "interlock.unwatch": own_unwatch,
    "interlock.pair": own_pair,
    "interlock.tokens": own_tokens,
    "interlock.token.add": own_token_add,
    "interlock.token.remove": own_token_remove,
    "interlock.token.rotate": own_token_rotate,
    "interlock.overview": own_overview,
}
