"""The published protocol's wording of events. No I/O.

1. One event of control becomes at most one `chat` and one `agent` event; both carry its position as `seq`.
2. A run's terminal event is the last of its stream. Typing that is on, and questions that are open, are closed by
   events right before it, in the same step.
3. A delta becomes a piece whose text the outbox can join to the next delta's.
4. Endings are told in the words of core/projection, with the native outcome and the generation beside them.

A block may be longer than its deltas: an agent may stream a part and return the whole. The published protocol knows
deltas alone, so the wording sends what no delta has sent as one more delta, before the terminal event. A reader of our
own events (`interlock.event`) replaces the deltas by the block.
"""

from typing import Any, Final

from interlock.core.events import (
    Block,
    ChildData,
    Data,
    Delta,
    Ended,
    Event,
    MessageData,
    Phase,
    ProcessData,
    Progress,
    QuestionData,
    Source,
    Started,
    Tool,
    Typing,
)
from interlock.core.names import PASSING, Ending, ProcessState, QuestionId, QuestionState, RunId, ToolState
from interlock.core.projection import chat_event, client_words, native, row
from interlock.core.story import Story
from interlock.protocol.frames import encode
from interlock.surfaces.gateway.items import Frame, Piece, Stream, event_frame
from interlock.surfaces.gateway.telling import AGENT, approval_request
from interlock.surfaces.gateway.telling import milliseconds as _ms

_TOOL_PHASES: Final = {ToolState.PENDING: "start", ToolState.RUNNING: "update"}
_DECISIONS: Final = {True: "allow-once", False: "deny", None: "deny"}


class _Telling:
    """A run's story and the streams of its deltas: the published words of its next event depend on them."""

    __slots__ = ("assistant", "chats", "story")

    def __init__(self) -> None:
        self.story = Story()
        self.chats: dict[str, Stream] = {}  # by name of the session
        self.assistant: Stream | None = None

    @property
    def note(self) -> str:
        """The text of an announcement whose run has not started."""
        announced = (said.text for said in self.story.messages if said.of is None and said.child is not None)
        return next(announced, "") if self.story.started_at is None else ""


class PublishedWording:
    """Makes the published protocol's frames of control's events; one object serves all connections.

    `take` is called for every lasting event; deltas that no connection hears need no words. `items` is called in the
    same step, for each name under which a reader writes the session: the owner writes it bare, others with the owner.
    """

    def __init__(self) -> None:
        self._runs: dict[RunId, _Telling] = {}
        self._event: Event | None = None
        self._source: Source | None = None
        self._telling = _Telling()
        self._changes: tuple[Data, ...] = ()
        self._told: dict[str, list[Frame | Piece]] = {}

    def take(self, event: Event, source: Source | None) -> None:
        """Read an event, once; its words depend on those before it."""
        if event is self._event:
            return
        self._event, self._source = event, source
        self._told, self._changes = {}, ()
        run_id = event.run_id
        if run_id is None:
            return
        self._telling = telling = self._runs.get(run_id) or _Telling()
        self._changes = telling.story.take(event)
        match event.data:
            case Ended():
                self._runs.pop(run_id, None)
            case MessageData(of=str(of)):
                self._runs.pop(of, None)
            # A message that waits may be absorbed and have no ending, so the text of an announcement alone is kept.
            case MessageData(child=None):
                pass
            case _:
                self._runs[run_id] = telling

    def items(self, event: Event, source: Source | None, name: str) -> list[Frame | Piece]:
        """Return the frames of an event; the list is empty if the protocol has no word for it."""
        self.take(event, source)
        told = self._told.get(name)
        if told is None:
            told = self._told[name] = self._words(event, name)
        return told

    # Words

    def _words(self, event: Event, name: str) -> list[Frame | Piece]:
        if event.run_id is None:
            return []
        match event.data:
            case Delta() | Block():
                texts = [change.text for change in self._changes if isinstance(change, Delta)]
                return [piece for text in texts for piece in self._texts(event, name, text)]
            # A message has no frames: its sender hears of it by the answer. A steered or collected one is told by the
            # run that absorbed it. The text of an announcement is told with its terminal event.
            case MessageData(of=part):
                return [] if part is None else [self._agent(event, "input", {"phase": "taken", "runId": part})]
            case Typing(on=on):
                return [self._typing(event, name, on)]
            case QuestionData() as asked:
                return self._asked(event, name, asked)
            case Ended() as ended:
                # The terminal event has the results of calls, and the text.
                void = [change for change in self._changes if isinstance(change, QuestionData)]
                typing = [change for change in self._changes if isinstance(change, Typing)]
                return [
                    *(self._resolved(event, each.question_id, each.state, None, None) for each in void),
                    *(self._typing(event, name, each.on) for each in typing),
                    *self._ended(event, name, ended, self._telling.note),
                ]
            case _:
                return self._other(event, name)

    def _texts(self, event: Event, name: str, text: str) -> list[Frame | Piece]:
        told = self._telling
        chat, assistant = told.chats.get(name), told.assistant
        if chat is None:
            head = (
                b'{"type":"event","event":"chat","payload":{"runId":%b,"sessionKey":%b,"state":"delta","deltaText":'
                % (encode(event.run_id), encode(name))
            )
            chat = told.chats[name] = Stream(head, event.session, self._source)
        if assistant is None:
            head = (
                b'{"type":"event","event":"agent","payload":{"runId":%b,"stream":"assistant","data":{"delta":'
                % encode(event.run_id)
            )
            assistant = told.assistant = Stream(head, event.session, self._source)
        seq = b"%d" % event.position
        tail = b',"generation":%b},"ts":%d,"seq":%b}' % (encode(event.generation), event.at * 1000, seq)
        return [Piece(chat, text, b',"seq":%b}' % seq), Piece(assistant, text, tail)]

    def _frame(self, name: str, payload: Any, event: Event, **marks: bool) -> Frame:
        return event_frame(name, payload, session=event.session, source=self._source, **marks)

    def _agent(self, event: Event, stream: str, data: dict[str, Any]) -> Frame:
        data = {**data, "generation": event.generation}
        payload = {"runId": event.run_id, "seq": event.position, "stream": stream, "ts": _ms(event.at), "data": data}
        return self._frame("agent", payload, event, passing=event.kind in PASSING)

    def _typing(self, event: Event, name: str, on: bool) -> Frame:
        payload = {"sessionKey": name, "sessionId": name, "agentId": AGENT, "typing": on}
        payload |= {"actor": {"type": "agent", "id": AGENT}, "ts": _ms(event.at)}
        return self._frame("session.typing", payload, event, passing=on)

    def _asked(self, event: Event, name: str, asked: QuestionData) -> list[Frame | Piece]:
        if asked.state is QuestionState.OPEN:
            payload = {
                "id": asked.question_id,
                "runId": event.run_id,
                "generation": event.generation,
                "createdAtMs": _ms(event.at),
                "request": approval_request(asked.text, asked.tool, asked.arguments, asked.choices, name),
            }
            frame = self._frame("exec.approval.requested", payload, event, question=True)
        else:
            frame = self._resolved(event, asked.question_id, asked.state, asked.answer, asked.by)
        data = {"phase": "requested" if asked.state is QuestionState.OPEN else "resolved", "id": asked.question_id}
        return [frame, self._agent(event, "approval", {**data, "state": asked.state, "answer": asked.answer})]

    def _resolved(
        self, event: Event, question: QuestionId, state: QuestionState, answer: bool | str | None, by: Any
    ) -> Frame:
        decision = answer if isinstance(answer, str) else _DECISIONS[answer]
        payload = {"id": question, "runId": event.run_id, "decision": decision, "state": state, "resolvedBy": by}
        payload |= {"ts": _ms(event.at), "generation": event.generation}
        return self._frame("exec.approval.resolved", payload, event, question=True)

    def _other(self, event: Event, name: str) -> list[Frame | Piece]:
        match event.data:
            case Started():
                data = {"phase": "start", "startedAt": _ms(event.at), "sessionKey": name}
                return [self._agent(event, "lifecycle", data)]
            case Tool() as tool:
                data = {"phase": _TOOL_PHASES.get(tool.state, "result"), "name": tool.name, "toolCallId": tool.call_id}
                data |= {"state": tool.state, "isError": tool.error is not None}
                more = {"args": tool.arguments, "result": tool.result, "error": tool.error}
                return [
                    self._agent(event, "tool", data | {key: each for key, each in more.items() if each is not None})
                ]
            case ProcessData() as process:
                phase = "start" if process.state is ProcessState.RUNNING else "end"
                data = {"phase": phase, "command": process.command, "state": process.state, "pid": process.pid}
                data |= {"output": process.tail} if process.tail else {}
                return [self._agent(event, "command_output", data | {"exitCode": process.status})]
            case Progress() as progress:
                data = {"text": progress.text, "done": progress.done, "total": progress.total}
                return [self._agent(event, "progress", data)]
            case Phase(name=phase_name):
                return [self._agent(event, "progress", {"phase": phase_name})]
            case ChildData() as child:
                data = {"runId": child.child, "sessionKey": child.session, "agent": child.agent}
                data |= {"detached": child.detached}
                ended = {} if child.outcome is None else {"outcome": native(child.outcome)}
                return [self._agent(event, "child", data | ended)]
            case _:
                return []

    def _ended(self, event: Event, name: str, ended: Ended, note: str) -> list[Frame | Piece]:
        """Return the frames of a terminal event.

        A note is an announcement without a turn. The protocol has no word for it, so its terminal event carries its
        text.
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
        payload: dict[str, Any] = {"runId": event.run_id, "sessionKey": name, "seq": event.position}
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
        return [self._agent(event, "lifecycle", data), self._frame("chat", payload, event)]
