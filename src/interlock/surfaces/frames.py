"""The gateway's frames: the methods, who may call them, and how they are answered. No I/O, no clock.

1. A request is closed. A field that the published schema knows is used, refused by name, or ignored and listed in
   the answer; any other is an error.
2. A method that is not in `METHODS` does not exist; each entry names the scopes of which one is needed.
3. Errors name their kind, so that our client raises on its side what control raised on ours.
4. Foreign words (abort, cancel, approval) are the published protocol's; our own methods say what control says.

Fields that change meaning. A client that sends `model` or `deliver` expects that another model answers, or that the
reply is delivered elsewhere; ignoring the field would do something else than it asked. So `Method.refused` names such
fields, and `Method.ignored` those that are hints. A stop is never refused for a field. `extraSystemPrompt` becomes
`Message.instructions`.

Sessions by name. A caller writes `name` for a session of its own and `owner/name` for another's. `resolve` turns names
into ids in the step that reads the request; control knows ids alone. The published methods answer with the name as
their reader writes it, because published clients compare it with what they sent. Our own methods answer with the id.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from interlock.core import errors
from interlock.core.events import Entry, Event
from interlock.core.names import May, RunId, SessionId, Strategy
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment
from interlock.runtime.approvals import QuestionInfo
from interlock.runtime.listing import RunInfo, SessionInfo
from interlock.runtime.live import Sent
from interlock.runtime.sharing import Shared
from interlock.runtime.spawning import ProcessInfo
from interlock.runtime.wakes import Wake
from interlock.surfaces.access import Scope

PROTOCOL: Final = 4
FRAME_BYTES: Final = 1024 * 1024
PRE_AUTH_BYTES: Final = 8 * 1024
DEPTH: Final = 32
TICK_SECONDS: Final = 15.0
# Capabilities that a client declares. QUIET: it is told only what it watches. OUTLINE: it is told besides what a list
# of sessions needs, of everything its principal may see.
QUIET: Final = "interlock.quiet.2"
OUTLINE: Final = "interlock.outline.2"
# What clients declare that were made before positions were counted by session. They would misread positions, so only
# their stops are carried out.
OUTDATED: Final = frozenset({"interlock.quiet", "interlock.outline"})
RELOAD: Final = "this client is older than the server; reload the page, or install the same version on both sides"

# Close codes: RFC 6455's, and 4001 for a token that is unknown or was revoked.
NOT_JSON, NOT_TEXT, BROKEN_RULE, TOO_BIG, RESTART, NO_TOKEN = 1007, 1003, 1008, 1009, 1012, 4001


SessionName = NewType("SessionName", str)
"""A session's name as its caller writes it; `resolve` makes it the id that control knows."""

P = TypeVar("P", bound=Struct)
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exact in every JSON reader


class BadFrame(Exception):
    """The peer sent something that is no request; its connection is closed with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# Requests


class Params(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The parameters of a published method; an unknown field is an error."""


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request frame; its params are read by the method's own class."""

    type: Literal["req"]
    id: str = field(name="id")
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")
    traceparent: str | None = None


class ClientInfo(Params, frozen=True, kw_only=True):
    """The client program that connects."""

    id: str
    version: str
    platform: str
    mode: str
    display_name: str | None = None
    build_id: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    time_zone: str | None = None
    instance_id: str | None = None


class ConnectAuth(Params, frozen=True, kw_only=True):
    """The client's credentials; this server reads `token` alone."""

    token: str | None = None
    bootstrap_token: str | None = None
    device_token: str | None = None
    password: str | None = None
    approval_runtime_token: str | None = None
    agent_runtime_identity_token: str | None = None

    def __repr__(self) -> str:
        return "ConnectAuth()"


class Connect(Params, frozen=True, kw_only=True):
    """The first request of a connection."""

    min_protocol: int
    max_protocol: int
    client: ClientInfo
    caps: tuple[str, ...] = ()
    role: str = "operator"
    scopes: tuple[str, ...] = ()
    auth: ConnectAuth = ConnectAuth()


class Nothing(Params, frozen=True, kw_only=True):
    """No parameters, of a published method."""


class OwnChat(Params, frozen=True, kw_only=True):
    """`interlock.chat`: `chat.send` with every strategy.

    The published `chat.send` has no word for `reject` and `rollback`, and `interlock.send` reads no stop words. A chat
    surface such as the page needs both: a stop that a person types counts whatever the strategy.
    """

    session_key: SessionName
    message: str
    idempotency_key: str
    queue_mode: Literal["steer", "followup", "collect", "interrupt", "reject", "rollback"] | None = None
    timeout_ms: Whole | None = None
    attachments: tuple[Any, ...] = ()
    suppress_command_interpretation: bool = False
    agent_id: str | None = None


class ChatSend(OwnChat, frozen=True, kw_only=True):
    """A message of a person, with the published strategies."""

    queue_mode: Literal["steer", "followup", "collect", "interrupt"] | None = None


class ChatAbort(Params, frozen=True, kw_only=True):
    """Stop a session's runs, or one run."""

    session_key: SessionName
    run_id: str | None = None


class ChatHistory(Params, frozen=True, kw_only=True):
    """Return the transcript, or its latest part."""

    session_key: SessionName
    limit: Whole = 200
    offset: Whole = 0
    max_chars: Whole = 500_000


class Agent(Params, frozen=True, kw_only=True):
    """Start a run on behalf of a program."""

    message: str
    idempotency_key: str
    session_key: SessionName | None = None
    timeout: Whole | None = None
    attachments: tuple[Any, ...] = ()
    agent_id: str | None = None
    extra_system_prompt: str | None = None


class AgentWait(Params, frozen=True, kw_only=True):
    """Wait until a run has ended."""

    run_id: str
    timeout_ms: Whole = 30_000


class SessionsAbort(Params, frozen=True, kw_only=True):
    """Stop the run in a session's seat, or one run; with clearQueued also the messages that wait."""

    key: SessionName | None = None
    run_id: str | None = None
    clear_queued: bool = False


class SessionsList(Params, frozen=True, kw_only=True):
    """List sessions, the latest first."""

    limit: Whole = 100
    offset: Whole = 0
    search: str | None = None


class SessionKey(Params, frozen=True, kw_only=True):
    """One session."""

    key: SessionName


class TasksList(Params, frozen=True, kw_only=True):
    """List runs as tasks."""

    status: str | tuple[str, ...] | None = None
    session_key: SessionName | None = None
    limit: Whole = 100
    cursor: str | None = None
    agent_id: str | None = None


class TaskId(Params, frozen=True, kw_only=True):
    """One run as a task."""

    task_id: str


class TasksCancel(TaskId, frozen=True, kw_only=True):
    """Stop one run as a task; `reason` is accepted and not used."""

    reason: str | None = None


class ApprovalResolve(Params, frozen=True, kw_only=True):
    """Answer a question in the published words; a question with choices is answered by the text of one."""

    id: str
    decision: str


class ReceiptsGet(Params, frozen=True, kw_only=True):
    """Return a receipt, by its id or a run's."""

    run_id: str | None = None
    receipt_id: str | None = None


class RunRef(Params, frozen=True, kw_only=True):
    """One run."""

    run_id: str


# Our own methods: control's verbs, in control's words.


class Own(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of one of our own methods; an unknown field is an error."""


class OwnSend(Own, frozen=True, kw_only=True):
    """`Control.send`."""

    session: SessionName | None
    text: str
    key: str | None = None
    strategy: Strategy | None = None
    deadline: float | None = None
    order: tuple[str, float] | None = None
    kind: Literal["chat", "agent"] = "chat"
    agent: str | None = None
    instructions: str | None = None


class OwnStop(Own, frozen=True, kw_only=True):
    """`Control.stop`."""

    session: SessionName | None = None
    run: str | None = None
    message: str | None = None  # the key under which a message was sent
    key: str | None = None  # the stop's own key
    order: tuple[str, float] | None = None
    typed: bool = False


class OwnReset(Own, frozen=True, kw_only=True):
    """`Control.reset`."""

    session: SessionName
    key: str | None = None  # the reset's own key


class OwnWait(Own, frozen=True, kw_only=True):
    """`Control.wait`."""

    run: str
    timeout: float | None = None
    drained: bool = False


class OwnWatch(Own, frozen=True, kw_only=True):
    """`Control.watch`; its events carry `watch`, the number given here."""

    watch: Whole
    session: SessionName | None = None
    run: str | None = None
    after: Whole = 0


class OwnUnwatch(Own, frozen=True, kw_only=True):
    """End a watch."""

    watch: int


class OwnAnswer(Own, frozen=True, kw_only=True):
    """`Control.answer`."""

    question: str
    answer: bool | str


class OwnList(Own, frozen=True, kw_only=True):
    """`Control.runs`, `.questions`, `.processes`, `.sessions`: of one session, or of all."""

    session: SessionName | None = None
    tree: bool = False
    latest: Whole = 0
    limit: Whole = 100


class OwnSession(Own, frozen=True, kw_only=True):
    """One session."""

    session: SessionName


class OwnStrategy(Own, frozen=True, kw_only=True):
    """`Control.set_strategy`."""

    session: SessionName
    strategy: Strategy | None


class OwnShare(Own, frozen=True, kw_only=True):
    """`Control.share`."""

    session: SessionName
    with_: str = field(name="with")
    may: May = May.WRITE


class OwnUnshare(Own, frozen=True, kw_only=True):
    """`Control.unshare`."""

    session: SessionName
    with_: str = field(name="with")


class OwnWake(Own, frozen=True, kw_only=True):
    """`Control.wake`; times are seconds."""

    session: SessionName
    text: str
    at: float | None = None
    every: float | None = None
    cron: str | None = None


class OwnName(Own, frozen=True, kw_only=True):
    """`Control.find`: a run by its id, or by a key of the caller's."""

    name: str


class OwnUnwake(Own, frozen=True, kw_only=True):
    """`Control.unwake`."""

    wake: str


class OwnPair(Own, frozen=True, kw_only=True):
    """Return a code that lets in a page of the caller; an admin may name another principal."""

    name: str | None = None


class OwnStopAll(Own, frozen=True, kw_only=True):
    """Stop everything; with `of` only the sessions of one principal, and what it started in others'."""

    of: str | None = None


class OwnNothing(Own, frozen=True, kw_only=True):
    """No parameters, of one of our own methods."""


# What our own methods answer


class PairCode(Struct, frozen=True, kw_only=True):
    """A code that lets a page in once, for `seconds` seconds."""

    code: str
    seconds: float

    def __repr__(self) -> str:
        return "PairCode()"


class Hosts(Struct, frozen=True, kw_only=True):
    """How many agent hosts were started, reused and killed."""

    started: int
    reused: int
    killed: int


class Minute(Struct, frozen=True, kw_only=True):
    """How many runs ended in one minute, by ending; `at` is its beginning, in seconds since 1970."""

    at: int
    endings: dict[str, int]


class Spread(Struct, frozen=True, kw_only=True):
    """A histogram of seconds: how many took up to each limit, and last how many took longer."""

    limits: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    total_seconds: float


class Overview(Struct, frozen=True, kw_only=True):
    """The figures of a gateway; counts begin when it starts."""

    grade: str
    uptime_seconds: float
    connections: int
    queued: int
    hosts: Hosts | None
    corrections: int
    endings: dict[str, int]
    minutes: tuple[Minute, ...]
    stops: dict[str, Spread]
    refused: dict[str, int]
    processes: dict[str, int]


class Fell(Struct, frozen=True, kw_only=True):
    """A run that fell. After an `early` end its deltas count no more; its terminal event follows."""

    run_id: RunId
    early: bool


class Watched(Struct, frozen=True, kw_only=True):
    """The payload of `interlock.event`: an event of a watch, or a word about the watch itself.

    An event with `replay` is history; the events behind `caught_up`, which names a position, are news. `fell` says in
    the step of a fall that a run is not current any more. With `over` the watch is over; `error` says why it failed.
    """

    watch: int
    replay: bool = False
    event: Event | None = None
    caught_up: int | UnsetType = UNSET
    fell: Fell | UnsetType = UNSET
    over: bool = False
    error: dict[str, Any] | UnsetType = UNSET


class ReceiptResult(Struct, frozen=True, kw_only=True):
    """A receipt as it stands."""

    receipt: Receipt


class TimelineResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """A run's life in a few lines."""

    run_id: str
    moments: list[Moment]


class Method(NamedTuple):
    """A method: its parameters, the scopes of which a caller needs one, and whether it stops something.

    ignored: published fields that this server has no use for; the answer lists those that were given.
    refused: published fields that are an error, unless their value asks for what this server does anyway.
    result: of our own methods, the type of the answer, for `schema`.
    """

    params: type[Struct]
    scopes: frozenset[Scope]
    ignored: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    stops: bool = False
    result: Any = None


_LOOK = frozenset({Scope.READ, Scope.WRITE})
_CHANGE = frozenset({Scope.WRITE})
_ANSWER = frozenset({Scope.WRITE, Scope.APPROVE})
_ANYONE = frozenset(Scope)
_ADMIN = frozenset({Scope.ADMIN})


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Published fields that this server does not use. REFUSED: the sender asks for something that would not be done, so the
# request is an error. IGNORED: clients send the field with every request, or it is a hint; the answer lists it.
_SEND_IGNORED = _names("sessionId thinking fastMode fastAutoOnSeconds")
_SEND_REFUSED = _names(
    "intent deliver originatingChannel originatingTo originatingAccountId originatingThreadId replyToId toolBindings "
    "systemInputProvenance systemProvenanceReceipt expectedLeafEntryId expectedSessionRoutingContract "
    "expectedPermissionMode expectedToolOverrides"
)
_AGENT_IGNORED = _names("sessionId thinking lane label inputProvenance voiceWakeTrigger cleanupBundleMcpOnRunEnd")
_AGENT_REFUSED = _names(
    "provider model cwd deliver bestEffortDeliver channel to accountId threadId groupId groupChannel groupSpace "
    "replyTo replyChannel replyAccountId sourceReplyDeliveryMode disableMessageTool expectedExistingSessionId modelRun "
    "promptMode bootstrapContextMode bootstrapContextRunKind acpTurnSource internalRuntimeHandoffId "
    "internalExecutionIdentityRetry internalExecutionIdentityRecoveryAttempt execApprovalFollowupExpectedSessionId "
    "internalEvents suppressPromptPersistence sessionEffects swarmCollector swarmOutputSchema forceRestartSafeTools "
    "forceCodeModeTools"
)
_HISTORY_REFUSED = _names("cursor pendingBefore inputRunIds messageId")
_LIST_IGNORED = _names(
    "activeMinutes requireLastInteraction sortBy includeGlobal includeUnknown configuredAgentsOnly "
    "includeDerivedTitles includeLastMessage label boardFace creatorId ownerId ownerFirst involvingMe "
    "involvingProfileId includePeople spawnedBy agentId archived"
)
# Values of refused fields that ask for what this server does anyway. Null, false and empty values do so too.
_USUAL: Final[Mapping[str, str]] = {
    "channel": "webchat", "replyChannel": "webchat", "originatingChannel": "webchat",  # this gateway
    "promptMode": "full", "bootstrapContextMode": "full", "bootstrapContextRunKind": "default",
    "sessionEffects": "visible", "sourceReplyDeliveryMode": "automatic",
}  # fmt: skip

METHODS: Final[Mapping[str, Method]] = {
    "connect": Method(
        Connect, _ANYONE, _names("commands computerUse workerRuns permissions pathEnv device locale userAgent")
    ),
    "health": Method(Nothing, _ANYONE, _names("probe includeSensitive")),
    "chat.send": Method(ChatSend, _CHANGE, _SEND_IGNORED, _SEND_REFUSED),
    "chat.abort": Method(ChatAbort, _CHANGE, _names("agentId preserveSideRuns"), stops=True),
    "chat.history": Method(ChatHistory, _LOOK, _names("agentId sessionId"), _HISTORY_REFUSED),
    "agent": Method(Agent, _CHANGE, _AGENT_IGNORED, _AGENT_REFUSED),
    "agent.wait": Method(AgentWait, _LOOK),
    "sessions.abort": Method(SessionsAbort, _CHANGE, _names("agentId"), stops=True),
    "sessions.list": Method(SessionsList, _LOOK, _LIST_IGNORED),
    "sessions.describe": Method(SessionKey, _LOOK, _names("includeDerivedTitles includeLastMessage")),
    "sessions.reset": Method(SessionKey, _CHANGE, _names("agentId reason"), stops=True),
    "tasks.list": Method(TasksList, _LOOK),
    "tasks.get": Method(TaskId, _LOOK),
    "tasks.cancel": Method(TasksCancel, _CHANGE, stops=True),
    "exec.approval.list": Method(Nothing, _ANSWER),
    "exec.approval.resolve": Method(ApprovalResolve, _ANSWER, _names("reviewer grantExpiresInDays")),
    "receipts.get": Method(ReceiptsGet, _LOOK, result=ReceiptResult),
    "runs.timeline": Method(RunRef, _LOOK, result=TimelineResult),
    "interlock.send": Method(OwnSend, _CHANGE, result=Sent),
    "interlock.chat": Method(OwnChat, _CHANGE, result=dict[str, Any]),
    "interlock.stop": Method(OwnStop, _CHANGE, stops=True, result=Receipt),
    "interlock.reset": Method(OwnReset, _CHANGE, stops=True, result=Receipt),
    "interlock.wait": Method(OwnWait, _LOOK, result=Outcome),
    "interlock.watch": Method(OwnWatch, _LOOK, result=dict[str, int]),
    "interlock.unwatch": Method(OwnUnwatch, _LOOK, result=dict[str, int]),
    "interlock.answer": Method(OwnAnswer, _ANSWER, result=QuestionInfo),
    "interlock.questions": Method(OwnList, _ANSWER, result=list[QuestionInfo]),
    "interlock.runs": Method(OwnList, _LOOK, result=list[RunInfo]),
    "interlock.find": Method(OwnName, _LOOK, result=RunInfo | None),
    "interlock.sessions": Method(OwnList, _LOOK, result=list[SessionInfo]),
    "interlock.processes": Method(OwnList, _LOOK, result=list[ProcessInfo]),
    "interlock.history": Method(OwnSession, _LOOK, result=list[Entry]),
    "interlock.strategy": Method(OwnStrategy, _CHANGE, result=None),
    "interlock.share": Method(OwnShare, _CHANGE, result=Shared),
    "interlock.unshare": Method(OwnUnshare, _CHANGE, result=Shared),
    "interlock.wake": Method(OwnWake, _CHANGE, result=Wake),
    "interlock.unwake": Method(OwnUnwake, _CHANGE, result=None),
    "interlock.wakes": Method(OwnSession, _LOOK, result=list[Wake]),
    "interlock.pair": Method(OwnPair, _ANYONE, result=PairCode),
    "interlock.overview": Method(OwnNothing, _ADMIN, result=Overview),
    "interlock.stopall": Method(OwnStopAll, _ADMIN, stops=True, result=list[Receipt]),
}
EVENTS: Final = (
    "connect.challenge", "tick", "shutdown", "chat", "agent", "session.typing",
    "exec.approval.requested", "exec.approval.resolved", "interlock.event",
)  # fmt: skip

_request = msgspec.json.Decoder(Request)
_any = msgspec.json.Decoder()


def read_request(data: str) -> Request:
    """Return a request frame, or raise BadFrame: without a request's id there is nothing to answer."""
    try:
        request = _request.decode(data)
    except msgspec.ValidationError:
        # The error's text is not passed on: it may quote a token that was put into the wrong field.
        raise BadFrame(BROKEN_RULE, "not a request frame") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BadFrame(NOT_JSON, "not JSON") from None
    if not 0 < len(request.id) <= 256 or not request.id.isprintable():
        raise BadFrame(BROKEN_RULE, "a request's id is 1 to 256 printable characters")
    return request


class Read(NamedTuple):
    """A method's parameters, and the names of the given fields that it ignores or refuses."""

    params: Any
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def read_params(request: Request, method: Method) -> Read:
    """Return a method's parameters, or raise BadInput that says what is wrong with them."""
    raw = bytes(request.params)
    try:
        if raw.count(b"{") + raw.count(b"[") > DEPTH and _depth(_any.decode(raw)) > DEPTH:
            raise errors.BadInput(f"{request.method}: params are nested deeper than {DEPTH}; send plain values")
        given = msgspec.json.decode(raw, type=dict[str, Any])
        unused = method.ignored | method.refused
        meant = [name for name, value in given.items() if name in unused and value and value != _USUAL.get(name)]
        params = msgspec.convert({k: v for k, v in given.items() if k not in unused}, method.params, strict=True)
        ignored = tuple(sorted(method.ignored.intersection(meant)))
        return Read(params, ignored, tuple(sorted(method.refused.intersection(meant))))
    except msgspec.ValidationError as wrong:
        raise errors.BadInput(f"{request.method}: {wrong}"[:300]) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.BadInput(f"{request.method}: params are not JSON of a reasonable depth") from None


def resolve(params: P, id_of: Callable[[str], SessionId]) -> P:
    """Return parameters in which sessions are named by their ids instead of as their callers write them."""
    named = {name: getattr(params, name) for name in _sessions_in(type(params))}
    ids = {name: id_of(value) for name, value in named.items() if value is not None}
    return msgspec.structs.replace(params, **ids) if ids else params


@cache
def _sessions_in(kind: type[Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if hints[name] in (SessionName, SessionName | None))


def not_done(request: Request, names: tuple[str, ...]) -> errors.BadInput:
    """Return the error for a request with refused fields."""
    words = f"{request.method}: {', '.join(names)}: not done here; leave it out, or configure the agent itself"
    return errors.BadInput(words[:300])


def _depth(value: Any) -> int:
    deepest, rest = 0, [(value, 1)]
    while rest:
        here, depth = rest.pop()
        children: Iterable[Any] = here.values() if isinstance(here, dict) else here if isinstance(here, list) else ()
        if isinstance(here, dict | list):
            deepest = max(deepest, depth)
            if depth > DEPTH:
                break
        rest.extend((child, depth + 1) for child in children)
    return deepest


# Answers

_CODES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (errors.Unknown, "NOT_FOUND"),
    (errors.Unavailable, "UNAVAILABLE"),
    (errors.QueueFull, "UNAVAILABLE"),
    (errors.InterlockError, "INVALID_REQUEST"),
)
ERRORS: Final[Mapping[str, type[errors.InterlockError]]] = {
    kind.__name__: kind
    for kind in (
        errors.BadInput, errors.Unknown, errors.Refused, errors.Rejected, errors.QueueFull, errors.KeyConflict,
        errors.QuestionClosed, errors.Denied, errors.Unavailable,
    )
}  # fmt: skip


def error_of(error: errors.InterlockError) -> dict[str, Any]:
    """Return the wire's error for one of ours; it names its kind."""
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS), "BadInput")
    code = next(code for cause, code in _CODES if isinstance(error, cause))
    told = fault(code, str(error) or kind, kind=kind)
    if code == "UNAVAILABLE":
        told["retryable"] = True
    return told


def fault(code: str, message: str, /, **details: Any) -> dict[str, Any]:
    """Return the wire's error."""
    return {"code": code, "message": message, **({"details": details} if details else {})}


encode: Final = msgspec.json.Encoder().encode


def response(request_id: str, payload: Any) -> bytes:
    """Return the frame of an answer."""
    return b'{"type":"res","id":%b,"ok":true,"payload":%b}' % (encode(request_id), encode(payload))


def refusal(request_id: str, error: dict[str, Any]) -> bytes:
    """Return the frame of an error."""
    return b'{"type":"res","id":%b,"ok":false,"error":%b}' % (encode(request_id), encode(error))


def schema() -> dict[str, Any]:
    """Return the JSON schema of our own methods, parameters and answers, and of our event."""
    own = {name: method for name, method in METHODS.items() if name not in PUBLISHED}
    types = [Watched, *(kind for each in own.values() for kind in (each.params, each.result))]
    shapes, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    pairs = list(shapes)[1:]
    return {
        "$defs": components,
        "events": {"interlock.event": next(iter(shapes))},
        "methods": {name: {"params": pairs[2 * at], "result": pairs[2 * at + 1]} for at, name in enumerate(own)},
    }


PUBLISHED: Final = frozenset(
    name for name in METHODS if not name.startswith("interlock.") and name not in ("receipts.get", "runs.timeline")
)
