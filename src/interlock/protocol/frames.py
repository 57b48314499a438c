"""The gateway's frames: the methods, who may call them, and how they are answered. No I/O, no clock.

1. A request is closed. A field that the published schema knows is used, refused by name, or ignored and listed in
   the answer; any other is an error.
2. A method that is not in `METHODS` does not exist; each entry names the scopes of which one is needed.
3. Errors name their kind, so that our client raises on its side what control raised on ours.
4. Foreign words (abort, cancel, approval) are the published protocol's; our own methods say what control says.
5. A frame is bounded in bytes, depth and elements before any of its values is made, so that no frame holds the loop
   for more than a few milliseconds. Only the values of known fields are made: any other would be a way to spend time.

Fields that change meaning. A client that sends `model` or `deliver` expects that another model answers, or that the
reply is delivered elsewhere; ignoring the field would do something else than it asked. So `Method.refused` names such
fields, and `Method.ignored` those that are hints. A stop is never refused for a field. `extraSystemPrompt` becomes
`Message.instructions`.

Sessions by name. A caller writes `name` for a session of its own and `owner/name` for another's. `resolve` turns names
into ids in the step that reads the request; control knows ids alone. The published methods answer with the name as
their reader writes it, because published clients compare it with what they sent. Our own methods answer with the id.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from interlock.core import errors
from interlock.core.events import Event
from interlock.core.names import RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.core.scopes import Scope
from interlock.core.timeline import Moment
from interlock.core.verbs import ADMIN, ANSWER, CHANGE, LOOK, VERBS, SessionName, Verb
from interlock.protocol import shapes

PROTOCOL: Final = 4
FRAME_BYTES: Final = 1024 * 1024
PRE_AUTH_BYTES: Final = 8 * 1024
DEPTH: Final = 32  # lists and objects inside each other, in a request's params
ELEMENTS: Final = 10_000  # entries of lists and objects in a request's params; an empty one counts as one
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


P = TypeVar("P", bound=Struct)


class BadFrame(Exception):
    """The peer sent something that is no request; its connection is closed with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request frame; its params are read by the method's own class."""

    type: Literal["req"]
    id: str
    method: str
    params: Raw = Raw(b"{}")
    traceparent: str | None = None


# What our own methods answer


class PairCode(Struct, frozen=True, kw_only=True):
    """A code that lets a page in once, for `seconds` seconds."""

    code: str
    seconds: float

    def __repr__(self) -> str:
        return "PairCode()"


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A principal that has a token; the operator's has no date."""

    name: str
    scopes: tuple[Scope, ...]
    created_at: str | None = None


class NewToken(Struct, frozen=True, kw_only=True):
    """A principal and its token, which is told this once."""

    name: str
    scopes: tuple[Scope, ...]
    token: str

    def __repr__(self) -> str:
        return f"NewToken(name={self.name!r})"


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


_ANYONE = frozenset(Scope)


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
USUAL_BYTES: Final = 64  # a longer value of an unused field is not read: it asks for something
# Values of refused fields that ask for what this server does anyway. Null, false and empty values do so too.
_USUAL: Final[Mapping[str, str]] = {
    "channel": "webchat", "replyChannel": "webchat", "originatingChannel": "webchat",  # this gateway
    "promptMode": "full", "bootstrapContextMode": "full", "bootstrapContextRunKind": "default",
    "sessionEffects": "visible", "sourceReplyDeliveryMode": "automatic",
}  # fmt: skip


def _method(verb: type[Verb[Any]]) -> Method:
    return Method(verb, verb.scopes, stops=verb.stops, result=verb.answer_type())


METHODS: Final[Mapping[str, Method]] = {
    "connect": Method(
        shapes.Connect, _ANYONE, _names("commands computerUse workerRuns permissions pathEnv device locale userAgent")
    ),
    "health": Method(shapes.Nothing, _ANYONE, _names("probe includeSensitive")),
    "chat.send": Method(shapes.ChatSend, CHANGE, _SEND_IGNORED, _SEND_REFUSED),
    "chat.abort": Method(shapes.ChatAbort, CHANGE, _names("agentId preserveSideRuns"), stops=True),
    "chat.history": Method(shapes.ChatHistory, LOOK, _names("agentId sessionId"), _HISTORY_REFUSED),
    "agent": Method(shapes.Agent, CHANGE, _AGENT_IGNORED, _AGENT_REFUSED),
    "agent.wait": Method(shapes.AgentWait, LOOK),
    "sessions.abort": Method(shapes.SessionsAbort, CHANGE, _names("agentId"), stops=True),
    "sessions.list": Method(shapes.SessionsList, LOOK, _LIST_IGNORED),
    "sessions.describe": Method(shapes.SessionKey, LOOK, _names("includeDerivedTitles includeLastMessage")),
    "sessions.reset": Method(shapes.SessionKey, CHANGE, _names("agentId reason"), stops=True),
    "tasks.list": Method(shapes.TasksList, LOOK),
    "tasks.get": Method(shapes.TaskId, LOOK),
    "tasks.cancel": Method(shapes.TasksCancel, CHANGE, stops=True),
    "exec.approval.list": Method(shapes.Nothing, ANSWER),
    "exec.approval.resolve": Method(shapes.ApprovalResolve, ANSWER, _names("reviewer grantExpiresInDays")),
    "receipts.get": Method(shapes.ReceiptsGet, LOOK, result=ReceiptResult),
    "runs.timeline": Method(shapes.RunRef, LOOK, result=TimelineResult),
    "interlock.chat": Method(shapes.OwnChat, CHANGE, result=dict[str, Any]),
    "interlock.watch": Method(shapes.OwnWatch, LOOK, result=dict[str, int]),
    "interlock.unwatch": Method(shapes.OwnUnwatch, LOOK, result=dict[str, int]),
    "interlock.pair": Method(shapes.OwnPair, _ANYONE, result=PairCode),
    "interlock.tokens": Method(shapes.OwnNothing, ADMIN, result=list[TokenInfo]),
    "interlock.token.add": Method(shapes.OwnTokenAdd, ADMIN, result=NewToken),
    "interlock.token.remove": Method(shapes.OwnTokenRemove, ADMIN, result=None),
    "interlock.token.rotate": Method(shapes.OwnNothing, ADMIN, result=None),
    "interlock.overview": Method(shapes.OwnNothing, ADMIN, result=Overview),
    **{each.method: _method(each) for each in VERBS if each.method},
}
EVENTS: Final = (
    "connect.challenge", "tick", "shutdown", "chat", "agent", "session.typing",
    "exec.approval.requested", "exec.approval.resolved", "interlock.event",
)  # fmt: skip

_request: Final = msgspec.json.Decoder(Request)
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_shape: Final = cache(msgspec.json.Decoder)  # one for each type of params


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
        _within_bounds(request.method, raw)
        given = _fields.decode(raw)
        unused = [name for name in given if name in method.ignored or name in method.refused]
        meant = sorted([name for name in unused if _asks(name, bytes(given.pop(name)))])
        params = _shape(method.params).decode(encode(given))
        refused = tuple(name for name in meant if name in method.refused)
        return Read(params, tuple(name for name in meant if name in method.ignored), refused)
    except msgspec.ValidationError as wrong:
        raise errors.BadInput(f"{request.method}: {wrong}"[:300]) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.BadInput(f"{request.method}: params are not JSON of a reasonable depth") from None


def _asks(name: str, raw: bytes) -> bool:
    """Return whether the value of an unused field asks for something else than this server does anyway."""
    if len(raw) > USUAL_BYTES:
        return True
    value = msgspec.json.decode(raw)
    return bool(value) and value != _USUAL.get(name)


def _within_bounds(name: str, raw: bytes) -> None:
    """Raise BadInput for params with more than ELEMENTS, or deeper than DEPTH.

    Each element has a comma or an opening bracket of its own, so few of both are within either bound. If there are
    more, the texts are left out of the count, because a long message may well have ten thousand commas.
    """
    if len(raw.translate(None, _NO_ELEMENT)) <= DEPTH:
        return
    # Without escaped backslashes and then escaped quotes, every second piece between quotes is a text. More texts than
    # the split makes pieces of cannot be in params within the bound: an entry has two of them, a key and a value.
    pieces = raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 4 * ELEMENTS + 4)
    bare = b"".join(pieces[::2])
    if len(bare.translate(None, _NO_ELEMENT)) > ELEMENTS:
        raise errors.BadInput(f"{name}: params have more than {ELEMENTS:,} elements; send fewer, or send them as text")
    if max(accumulate(map(_STEPS.__getitem__, bare.translate(None, _NO_BRACKET))), default=0) > DEPTH:
        raise errors.BadInput(f"{name}: params are nested deeper than {DEPTH}; send plain values")


_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKET: Final = bytes({*range(256)} - {*_STEPS})
_NO_ELEMENT: Final = bytes({*range(256)} - {*b",[{"})


def resolve(params: P, id_of: Callable[[str], SessionId]) -> P:
    """Return parameters in which sessions are named by their ids instead of as their callers write them."""
    fields = _sessions_in(type(params))
    ids = {name: id_of(value) for name in fields if (value := getattr(params, name)) is not None}
    return msgspec.structs.replace(params, **ids) if ids else params


@cache
def _sessions_in(kind: type[Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if hints[name] in (SessionName, SessionName | None))


def not_done(request: Request, names: tuple[str, ...]) -> errors.BadInput:
    """Return the error for a request with refused fields."""
    words = f"{request.method}: {', '.join(names)}: not done here; leave it out, or configure the agent itself"
    return errors.BadInput(words[:300])


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
    found, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    pairs = list(found)[1:]
    return {
        "$defs": components,
        "events": {"interlock.event": next(iter(found))},
        "methods": {name: {"params": pairs[2 * at], "result": pairs[2 * at + 1]} for at, name in enumerate(own)},
    }


PUBLISHED: Final = frozenset(
    name for name in METHODS if not name.startswith("interlock.") and name not in ("receipts.get", "runs.timeline")
)
