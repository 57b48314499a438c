"""Control's events, runs and questions in the words of the gateway's wire. No I/O.

1. One event of control becomes at most one `chat` and one `agent` event; both carry its position as `seq`.
2. A run's terminal event is the last of its stream. Typing that is on, and questions that are open, are closed by
   events right before it, in the same step.
3. A delta becomes an item whose text the outbox can join to the next delta's.
4. Endings are told in the words of core/projection, with the native outcome and the generation beside them.

A block may be longer than its deltas: an agent may stream a part and return the whole. The published protocol knows
deltas alone, so what no delta has sent goes as one more delta, before the terminal event. A reader of our own events
(`interlock.event`) replaces the deltas by the block.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from interlock.core.events import (
    Block,
    ChildData,
    Data,
    Delta,
    Ended,
    Entry,
    Event,
    MessageData,
    Phase,
    ProcessData,
    Progress,
    QuestionData,
    Started,
    Tool,
    Typing,
)
from interlock.core.lifecycle import State
from interlock.core.names import (
    PASSING,
    Ending,
    EventKind,
    ProcessState,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.core.projection import agent_wait, chat_event, client_words, native, row
from interlock.core.receipt import Receipt
from interlock.core.story import Story
from interlock.runtime.approvals import QuestionInfo
from interlock.runtime.listing import RunInfo, SessionInfo
from interlock.surfaces.frames import Watched, encode

AGENT: Final = "interlock"  # the agent's id on the wire
PREVIEW: Final = 200  # characters of a text in a list or an outline
OUTLINE: Final = frozenset(
    EventKind(kind) for kind in ("message", "started", "question", "child", "ended", "receipt", "correction")
)
LONG: Final = frozenset({"text", "cut", "error", "arguments", "result"})  # fields that an outline shortens

QUESTION: Final = b'{"type":"event","event":"exec.approval.'

_TOOL_PHASES: Final = {ToolState.PENDING: "start", ToolState.RUNNING: "update"}
_DECISIONS: Final = {True: "allow-once", False: "deny", None: "deny"}


class Item:
    """An event frame without its connection's `seq`: head, a text that may grow, tail."""

    __slots__ = ("_frame", "head", "passing", "run_id", "session", "size", "tail", "text")

    def __init__(
        self,
        session: SessionId | None,
        run_id: RunId | None,
        head: bytes,
        *,
        text: str | None = None,
        tail: bytes = b"",
        passing: bool = False,
    ) -> None:
        self.session = session
        self.run_id = run_id
        # Deltas of one stream of a run have the same head; the outbox joins those.
        self.head = head
        self.text = text
        self.tail = tail
        self.passing = passing
        self._frame: bytes | None = None if text is not None else head
        self.size = len(head) + len(tail) + (0 if text is None else len(text))  # approximate bytes

    @property
    def question(self) -> bool:
        """True if this is a question, which approvers are told too."""
        return self.text is None and self.head.startswith(QUESTION)

    def bytes(self) -> bytes:
        """The frame up to the connection's `seq`, encoded once for all connections."""
        if self._frame is None:
            self._frame = self.head + encode(self.text) + self.tail
        return self._frame


def event_item(name: str, payload: Any, *, session: SessionId | None = None, run_id: RunId | None = None) -> Item:
    """Return an event frame without a text that may grow."""
    return Item(session, run_id, b'{"type":"event","event":"%b","payload":%b' % (name.encode(), encode(payload)))


class Watcher:
    """Makes `interlock.event` frames, for watches and outlines; watches with one number share one item."""

    def __init__(self) -> None:
        # The last item made: connections are told one event after another, mostly under the same watch number.
        self._last: tuple[int, Event, Item] | None = None
        self._outlined: tuple[Event, tuple[Item, ...]] | None = None

    def tell(self, watch: int, event: Event) -> Item:
        """Return an event's frame."""
        last = self._last
        if last is not None and last[1] is event and last[0] == watch:
            return last[2]
        item = _delta_item(watch, event, event.data) if isinstance(event.data, Delta) else _event_item(watch, event)
        self._last = watch, event, item
        return item

    def outline(self, event: Event) -> tuple[Item, ...]:
        """Return an event's frame with its texts shortened; none for a kind that is not in OUTLINE."""
        if event.kind not in OUTLINE:
            return ()
        if self._outlined is None or self._outlined[0] is not event:
            told = {"watch": 0, "event": _shortened(msgspec.to_builtins(event))}
            item = event_item("interlock.event", told, session=event.session, run_id=event.run_id)
            self._outlined = event, (item,)
        return self._outlined[1]

    def questions(self, event: Event) -> tuple[Item, ...]:
        """Return the outline for a principal who may only answer: questions, also those that a run's end voids."""
        if isinstance(event.data, QuestionData):
            return self.outline(event)
        void = event.data.void if isinstance(event.data, Ended) else ()
        asked = (QuestionData(question_id=each, text="", state=QuestionState.VOID) for each in void)
        return tuple(item for each in asked for item in self.outline(replace(event, data=each)))


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: each[: PREVIEW - 1] + "…"
        if name in LONG and isinstance(each, str) and len(each) > PREVIEW
        else _shortened(each)
        for name, each in value.items()
    }


def _event_item(watch: int, event: Event) -> Item:
    item = event_item("interlock.event", Watched(watch=watch, event=event), session=event.session, run_id=event.run_id)
    item.passing = event.kind in PASSING
    return item


def _delta_item(watch: int, event: Event, delta: Delta) -> Item:
    head = b'{"type":"event","event":"interlock.event","payload":{"watch":%d,"event":{"session":%b,"run_id":%b,' % (
        watch,
        encode(event.session),
        encode(event.run_id),
    )
    head += b'"generation":%b,"data":{"type":"delta","text":' % encode(event.generation)
    tail = b'},"position":%d,"at":%b}}' % (event.position, encode(event.at))
    return Item(event.session, event.run_id, head, text=delta.text, tail=tail, passing=True)


class _Telling:
    """What the published words of a run's next event depend on: its story, and the heads of its deltas."""

    __slots__ = ("_chat", "assistant", "story")

    def __init__(self, event: Event) -> None:
        self._chat: dict[str, bytes] = {}
        self.assistant = (
            b'{"type":"event","event":"agent","payload":{"runId":%b,"stream":"assistant","data":{"delta":'
            % encode(event.run_id)
        )
        self.story = Story()

    @property
    def note(self) -> str:
        """The text of an announcement whose run has not started."""
        announced = (said.text for said in self.story.messages if said.of is None and said.child is not None)
        return next(announced, "") if self.story.started_at is None else ""

    def chat(self, event: Event) -> bytes:
        """Return the head of the run's `chat` deltas under the event's name of the session."""
        head = self._chat.get(event.session)
        if head is None:
            head = self._chat[event.session] = (
                b'{"type":"event","event":"chat","payload":{"runId":%b,"sessionKey":%b,"state":"delta","deltaText":'
                % (encode(event.run_id), encode(event.session))
            )
        return head


class Teller:
    """Makes the published protocol's events of control's; one object serves all connections."""

    def __init__(self) -> None:
        self._runs: dict[RunId, _Telling] = {}

    def tell(self, event: Event, names: Collection[str]) -> dict[str, list[Item]]:
        """Return the frames of an event by name of its session; the list is empty if the protocol has no word for it.

        The owner writes a session's name bare, others write it with the owner, so one event may need two wordings.
        """
        if event.run_id is None:
            return {name: [] for name in names}
        told, data = self._runs.get(event.run_id), event.data
        if told is None:
            told = self._runs[event.run_id] = _Telling(event)
        changes = told.story.take(event)
        if isinstance(data, MessageData) and data.of is not None:
            self._runs.pop(data.of, None)
        # A message that waits may be absorbed and have no ending, so of messages only an announcement is kept.
        elif isinstance(data, Ended) or (isinstance(data, MessageData) and data.child is None):
            del self._runs[event.run_id]
        wordings = {name: _words(told, replace(event, session=SessionId(name)), changes) for name in names}
        for items in wordings.values():
            for item in items:
                item.session = event.session
        return wordings


def _words(told: _Telling, event: Event, changes: tuple[Data, ...]) -> list[Item]:
    match event.data:
        case Delta() | Block():
            return _texts(told, event, changes)
        case Ended():
            # The terminal event has the results of calls, and the text.
            void = [change for change in changes if isinstance(change, QuestionData)]
            items = [_resolved(event, each.question_id, each.state, None, None) for each in void]
            items += [_typing(event, change.on) for change in changes if isinstance(change, Typing)]
            return [*items, *_ended(event, event.data, told.note)]
        # A message has no frames: its sender hears of it by the answer. A steered or collected one is told by the run
        # that absorbed it. The text of an announcement is told with its terminal event.
        case MessageData(of=of):
            return [] if of is None else [_agent(event, "input", {"phase": "taken", "runId": of})]
        case Typing(on=on):
            return [_typing(event, on)]
        case QuestionData() as asked:
            return _asked(event, asked)
        case _:
            return _other(event)


def _texts(told: _Telling, event: Event, changes: tuple[Data, ...]) -> list[Item]:
    items: list[Item] = []
    seq = b"%d" % event.position
    tail = b',"generation":%b},"ts":%d,"seq":%b}' % (encode(event.generation), event.at * 1000, seq)
    for change in changes:
        if isinstance(change, Delta):
            text, end = change.text, b',"seq":%b}' % seq
            items.append(Item(event.session, event.run_id, told.chat(event), text=text, tail=end, passing=True))
            items.append(Item(event.session, event.run_id, told.assistant, text=text, tail=tail, passing=True))
    return items


def _asked(event: Event, asked: QuestionData) -> list[Item]:
    if asked.state is QuestionState.OPEN:
        payload = {
            "id": asked.question_id,
            "runId": event.run_id,
            "generation": event.generation,
            "createdAtMs": _ms(event.at),
            "request": _request(asked.text, asked.tool, asked.arguments, asked.choices, event.session),
        }
        item = event_item("exec.approval.requested", payload, session=event.session, run_id=event.run_id)
    else:
        item = _resolved(event, asked.question_id, asked.state, asked.answer, asked.by)
    data = {"phase": "requested" if asked.state is QuestionState.OPEN else "resolved", "id": asked.question_id}
    return [item, _agent(event, "approval", {**data, "state": asked.state, "answer": asked.answer})]


def _agent(event: Event, stream: str, data: dict[str, Any]) -> Item:
    data = {**data, "generation": event.generation}
    payload = {"runId": event.run_id, "seq": event.position, "stream": stream, "ts": _ms(event.at), "data": data}
    item = event_item("agent", payload, session=event.session, run_id=event.run_id)
    item.passing = event.kind in PASSING
    return item


def _other(event: Event) -> list[Item]:
    match event.data:
        case Started():
            data = {"phase": "start", "startedAt": _ms(event.at), "sessionKey": event.session}
            return [_agent(event, "lifecycle", data)]
        case Tool() as tool:
            data = {"phase": _TOOL_PHASES.get(tool.state, "result"), "name": tool.name, "toolCallId": tool.call_id}
            data |= {"state": tool.state, "isError": tool.error is not None}
            more = {"args": tool.arguments, "result": tool.result, "error": tool.error}
            return [_agent(event, "tool", data | {name: value for name, value in more.items() if value is not None})]
        case ProcessData() as process:
            phase = "start" if process.state is ProcessState.RUNNING else "end"
            data = {"phase": phase, "command": process.command, "state": process.state, "pid": process.pid}
            data |= {"output": process.tail} if process.tail else {}
            return [_agent(event, "command_output", data | {"exitCode": process.status})]
        case Progress() as progress:
            return [_agent(event, "progress", {"text": progress.text, "done": progress.done, "total": progress.total})]
        case Phase(name=name):
            return [_agent(event, "progress", {"phase": name})]
        case ChildData() as child:
            data = {"runId": child.child, "sessionKey": child.session, "agent": child.agent, "detached": child.detached}
            ended = {} if child.outcome is None else {"outcome": native(child.outcome)}
            return [_agent(event, "child", data | ended)]
        case _:
            return []


def _ended(event: Event, ended: Ended, note: str) -> list[Item]:
    """Return the frames of a terminal event.

    A note is an announcement without a turn. The protocol has no word for it, so its terminal event carries its text.
    """
    outcome, noted = ended.outcome, ended.outcome.ending is Ending.COMPLETED and note
    text = outcome.text or (note if noted else "")
    words, chat = row(outcome).lifecycle, chat_event(outcome)
    data: dict[str, Any] = {"phase": words.phase, "outcome": native(outcome)}
    if words.status is not None:
        data["status"] = words.status
    if outcome.started_at is not None:
        data["startedAt"] = _ms(outcome.started_at)
    data["endedAt"] = _ms(outcome.ended_at or event.at)
    payload: dict[str, Any] = {"runId": event.run_id, "sessionKey": event.session, "seq": event.position}
    payload["state"] = chat.state
    payload["message"] = {
        "role": "user" if noted else "assistant",
        "content": [{"type": "text", "text": text}] if text else [],
        "timestamp": _ms(event.at),
        "outcome": native(outcome),
        "generation": event.generation,
        "cut": bool(ended.cut),
    }
    if chat.stop_reason is not None:
        data["stopReason"] = payload["stopReason"] = chat.stop_reason
    if chat.error_kind is not None:
        payload["errorKind"] = chat.error_kind
        data["error"] = payload["errorMessage"] = client_words(outcome)
    last = event_item("chat", payload, session=event.session, run_id=event.run_id)
    return [_agent(event, "lifecycle", data), last]


def _typing(event: Event, on: bool) -> Item:
    payload = {"sessionKey": event.session, "sessionId": event.session, "agentId": AGENT, "typing": on}
    payload |= {"actor": {"type": "agent", "id": AGENT}, "ts": _ms(event.at)}
    item = event_item("session.typing", payload, session=event.session, run_id=event.run_id)
    item.passing = on
    return item


def _resolved(event: Event, question: QuestionId, state: QuestionState, answer: bool | str | None, by: Any) -> Item:
    decision = answer if isinstance(answer, str) else _DECISIONS[answer]
    payload = {"id": question, "runId": event.run_id, "decision": decision, "state": state, "resolvedBy": by}
    payload |= {"ts": _ms(event.at), "generation": event.generation}
    return event_item("exec.approval.resolved", payload, session=event.session, run_id=event.run_id)


def _request(text: str, tool: str | None, arguments: Any, choices: Any, session: str) -> dict[str, Any]:
    command = f"{tool} {arguments or ''}".strip() if tool is not None else text
    asked = {"command": command, "text": text, "sessionKey": session, "tool": tool, "arguments": arguments}
    return {name: value for name, value in asked.items() if value is not None} | (
        {"choices": choices} if choices is not None else {}
    )


def _ms(at: float) -> int:
    return max(0, int(at * 1000))


# Answers


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
        "startedAt": None if outcome.started_at is None else _ms(outcome.started_at),
        "endedAt": None if outcome.ended_at is None else _ms(outcome.ended_at),
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
    return "queued" if info.state in (State.ARRIVING, State.QUEUED) else "running"


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
        "createdAt": _ms(info.admitted_at),
    }  # fmt: skip
    if info.text:
        told["title"] = info.text[:PREVIEW]
    if info.parent is not None:
        told |= {"parentTaskId": info.parent, "childSessionKey": info.session}
    if outcome is not None:
        told |= {"endedAt": _ms(outcome.ended_at or 0.0), "terminalSummary": client_words(outcome)}
        if outcome.started_at is not None:
            told["startedAt"] = _ms(outcome.started_at)
        if outcome.ending is Ending.FAILED:
            told["error"] = client_words(outcome)
        if outcome.text:
            told["result"] = outcome.text if whole else outcome.text[:PREVIEW]
    return told


def session_of(info: SessionInfo, runs: list[RunInfo], name: Name) -> dict[str, Any]:
    """Return a session's row; `runs` are those of its runs that are known, in order."""
    runs = [run for run in runs if run.state is not State.ALIASED]  # an alias ends as the run that absorbed it
    last = runs[-1] if runs else None
    active = next((run for run in runs if run.state in (State.SEATED, State.STARTED)), None)
    status = "running" if active is not None else "queued" if info.open else "done"
    if active is None and not info.open and last is not None and last.outcome is not None:
        status = row(last.outcome).session
    key = name(info.session.id)
    told: dict[str, Any] = {
        "key": key, "sessionId": key, "id": info.session.id, "kind": "direct", "agentId": AGENT, "status": status,
        "updatedAt": None if info.latest_at is None else _ms(info.latest_at), "owner": info.session.owner,
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
    request = _request(question.text, question.tool, question.arguments, question.choices, name(question.session))
    told: dict[str, Any] = {"id": question.id, "runId": question.run_id, "request": request}
    for word, at in (("createdAtMs", question.asked_at), ("expiresAtMs", question.expires_at)):
        if at is not None:
            told[word] = _ms(at)
    return told


def stop_payload(receipt: Receipt) -> dict[str, Any]:
    """Return the answer to a stop."""
    runs = [run.id for run in receipt.runs] if receipt.aborted else []
    return {"ok": True, "aborted": receipt.aborted, "runIds": runs, "receipt": receipt}
