"""One ending, every surface: the words each surface has for how a run ended.

1. The store holds facts (`Outcome`); this file turns them into words, and no surface chooses its own words.
2. `TABLE` is total: for every ending every surface has a word, or says nothing on purpose.
3. Words of foreign protocols (aborted, cancelled, end_turn) stand here, and in the surface that speaks the protocol.
4. `pending` and `unknown` are answers to a waiter, not endings. No surface tells them as a timeout.
5. People program against these words. A changed cell needs a line in the changelog (`make endings` asks for it).

The words are a function of the outcome alone, and `settle` decides the outcome once. So an exception, a signal from the
cleanup or a closed connection cannot change what any surface tells (races 21 and 125), and a server that starts again
tells from the store what the server before it told from memory (race 126). A surface that chose words by what it saw
itself would tell a stop as a failure, or a timeout as a stop.
"""

from typing import Final

import msgspec

from interlock.core.errors import BadInput
from interlock.core.names import Ending, ErrorKind, KnownPhase, LimitOf, Principal, RunId, ToolState
from interlock.core.outcome import Outcome

# How much of an error's first line people are told; `native` has the whole error.
WHY_CHARS: Final = 200


class AgentWait(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The words with which the gateway tells a waiter how a run ended.

    The words stand in the answer of `agent.wait`, in the second frame with which the gateway answers the method
    `agent`, and in the answer to a message whose key was used before.
    """

    status: str
    stop_reason: str | None = None
    timeout_phase: str | None = None
    provider_started: bool | None = None


class ChatEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The words of the gateway's terminal `chat` event."""

    state: str
    stop_reason: str | None = None
    error_kind: str | None = None


class Lifecycle(msgspec.Struct, frozen=True, omit_defaults=True):
    """The words of the gateway's terminal `agent` lifecycle event."""

    phase: str
    status: str | None = None


class Responses(msgspec.Struct, frozen=True):
    """How a response object ends: its status, its last stream event, and the HTTP and error codes if not streamed.

    Every ending but a completion is 422. After 408, 409, 429 and 5xx clients send the request again by themselves, and
    without a key. After 200 they would hand the partial text to their program as the finished answer.
    """

    status: str
    last_event: str
    http: int
    # The code of the HTTP error, and of the response object's own error where the status is `failed`.
    error_code: str | None = None
    # Set only where the status is `incomplete`: clients fail on it elsewhere.
    incomplete_reason: str | None = None


class Completions(msgspec.Struct, frozen=True, kw_only=True):
    """How a chat completion ends: a finish reason, or the code of an error object."""

    finish_reason: str | None = None
    error_code: str | None = None


class Acp(msgspec.Struct, frozen=True):
    """How an ACP prompt is answered: by a stop reason, or by a JSON-RPC error where ACP v1 has no stop reason for it.

    A normal answer carries the outcome in `_meta`; a JSON-RPC error carries it in `data`. The error code is never
    -32603: after that code a client sends its prompt again.
    """

    stop_reason: str | None = None
    error_code: int | None = None


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """One ending on every surface.

    In `TABLE` a name in braces stands for a fact of the outcome. `project` puts the fact there, or nothing if the
    outcome does not have it.
    """

    wait: AgentWait
    chat: ChatEvent
    lifecycle: Lifecycle
    responses: Responses
    completions: Completions
    acp: Acp
    task: str
    session: str
    parent: str | None  # None: the parent has itself ended
    client: str
    channel: str | None  # None: the channel says nothing
    tool: str  # why a tool call of the run has no result
    exit_code: int


# fmt: off
TABLE: Final[dict[Ending, Projection]] = {
    Ending.COMPLETED: Projection(
        wait=AgentWait("ok"), chat=ChatEvent("final"),
        lifecycle=Lifecycle("end"), completions=Completions(finish_reason="stop"),
        responses=Responses("completed", "response.completed", 200), acp=Acp("end_turn"),
        task="completed", session="done", parent="ok", exit_code=0,
        client="completed", tool="its run had completed", channel="{text}",
    ),
    Ending.FAILED: Projection(
        wait=AgentWait("error"), chat=ChatEvent("error", error_kind="unknown"),
        lifecycle=Lifecycle("error"), completions=Completions(error_code="server_error"),
        responses=Responses("failed", "response.failed", 422, "server_error"), acp=Acp(error_code=-32010),
        task="failed", session="failed", parent="error{why}", exit_code=1,
        client="failed{why}", tool="its run failed{why}", channel="Failed{why}",
    ),
    Ending.STOPPED: Projection(
        wait=AgentWait("error", "rpc"), chat=ChatEvent("aborted", "rpc"),
        lifecycle=Lifecycle("end", "cancelled"), completions=Completions(error_code="stopped"),
        responses=Responses("cancelled", "response.incomplete", 422, "stopped"), acp=Acp("cancelled"),
        task="cancelled", session="stopped", parent="cancelled", exit_code=130,
        client="stopped{by}{unseen}", tool="stopped{by}", channel="Stopped{unseen}.{receipt}",
    ),
    Ending.SUPERSEDED: Projection(
        wait=AgentWait("error", "superseded"), chat=ChatEvent("aborted", "superseded"),
        lifecycle=Lifecycle("end", "superseded"), completions=Completions(error_code="superseded"),
        responses=Responses("incomplete", "response.incomplete", 422, "superseded", "superseded"), acp=Acp("cancelled"),
        task="cancelled", session="superseded", parent="cancelled (superseded{successor})", exit_code=130,
        # The channel says nothing: the reply to the newer message follows.
        client="superseded{successor}", tool="superseded by a newer message{of}", channel=None,
    ),
    Ending.TIMED_OUT: Projection(
        wait=AgentWait("timeout"), chat=ChatEvent("error", error_kind="timeout"),
        lifecycle=Lifecycle("error", "timeout"), completions=Completions(error_code="timeout"),
        responses=Responses("failed", "response.failed", 422, "timeout"), acp=Acp(error_code=-32800),
        task="timed_out", session="timed_out", parent="timeout{phase}{whose}", exit_code=124,
        client="timed out{after}{phase}{whose}", tool="timed out{after}{phase}{whose}", channel="Timed out{after}.",
    ),
    Ending.PARENT_ENDED: Projection(
        wait=AgentWait("error", "parent"), chat=ChatEvent("aborted", "parent"),
        lifecycle=Lifecycle("end", "cancelled"), completions=Completions(error_code="stopped"),
        responses=Responses("cancelled", "response.incomplete", 422, "stopped"), acp=Acp("cancelled"),
        task="cancelled", session="stopped", parent=None, exit_code=130,
        client="ended with its parent{whose}", tool="ended with its parent{whose}", channel=None,
    ),
    Ending.SHUTDOWN: Projection(
        wait=AgentWait("error", "restart"), chat=ChatEvent("aborted", "restart"),
        lifecycle=Lifecycle("end", "cancelled"), completions=Completions(error_code="restart"),
        responses=Responses("incomplete", "response.incomplete", 422, "restart", "restart"), acp=Acp("cancelled"),
        task="cancelled", session="interrupted", parent="interrupted", exit_code=143,
        client="interrupted by a restart", tool="the server was ended", channel="Restarting; this answer was cut.",
    ),
    Ending.LOST: Projection(
        wait=AgentWait("error", "lost"), chat=ChatEvent("error", error_kind="unknown"),
        lifecycle=Lifecycle("error"), completions=Completions(error_code="lost"),
        responses=Responses("failed", "response.failed", 422, "lost"), acp=Acp(error_code=-32010),
        task="failed", session="lost", parent="lost", exit_code=1,
        client="lost in a crash", tool="the server went down",
        channel="The server stopped while answering; your message is kept.",
    ),
}
# fmt: on

# The gateway's published schema closes the set of timeout phases and the set of error kinds; our own words travel in
# `native`. The schema's error kinds cannot say which part failed (agent, provider, host or store), so every `failed`
# run is told as `unknown`.
TIMEOUT_PHASES: Final = {"queue": False, "preflight": False, "provider": True, "post_turn": True}  # provider started?
# If a run had begun, and the schema has no word for the phase it was in, this phase is told instead. Some phase is
# always told, because clients take a timeout without a phase for a soft timeout.
UNDER_WAY: Final = "provider"
WHOSE: Final[dict[LimitOf, str]] = {
    LimitOf.CALLER: " (its caller's limit)",
    LimitOf.OPERATOR: " (the operator's limit)",
    LimitOf.AGENT: " (its agent's limit)",
    LimitOf.PARENT: " (its parent's limit)",
}
LOST_RESULT: Final = "started, outcome unknown: the server went down while it ran; it was not run again"
NOT_KEPT: Final = " by a message that was not kept"
# After a takeover a channel normally says nothing, because the reply to the newer message follows. If the newer message
# was not kept, no reply follows, so the channel says this.
UNKEPT: Final = "Ended by a message that was not kept; send it again."
# The error code over HTTP where the model's provider failed, not the agent.
PROVIDER_ERROR: Final = "provider_error"
# The stop reason where a person typed the stop. Where a call stopped the run, it is `rpc`.
TYPED: Final = "stop"


class Native(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The outcome in our own words; it travels wherever a foreign protocol has a place for it."""

    ending: Ending
    by: Principal | None = None
    superseded_by: RunId | None = None
    phase: str | None = None
    limit_ms: int | None = None
    limit_of: LimitOf | None = None
    error: str | None = None
    typed: bool = False
    born_stopped: bool = False
    unkept: bool = False
    # These four have no default and are therefore always sent. `started_at` is null where the run never started.
    started_at: float | None
    ended_at: float | None
    drained: bool
    durable: bool


def native(outcome: Outcome) -> Native:
    """Return the outcome's wire object."""
    return Native(**{name: getattr(outcome, name) for name in Native.__struct_fields__})


def project(outcome: Outcome, *, steered: bool = False) -> Projection:
    """Return how every surface tells this outcome: its words, HTTP codes and exit code, with the facts filled in.

    `steered` is as in `responses`. `pending` and `unknown` raise BadInput.
    """
    found = row(outcome)
    return msgspec.structs.replace(
        found,
        wait=agent_wait(outcome),
        chat=chat_event(outcome),
        responses=responses(outcome, steered=steered),
        completions=completions(outcome),
        parent=parent_word(outcome),
        client=client_words(outcome),
        channel=channel_words(outcome),
        tool=_fill(found.tool, outcome),
    )


def row(outcome: Outcome) -> Projection:
    """Return the row of `TABLE` for an outcome, before the outcome's facts are filled in."""
    if not isinstance(outcome, Outcome):
        raise BadInput(f"expected an Outcome, as `wait` returns it, not {type(outcome).__name__}")
    found = TABLE.get(outcome.ending)
    if found is None:
        unknown = outcome.ending is Ending.UNKNOWN
        next_step = "name one that `runs` lists" if unknown else "ask again once it has ended"
        raise BadInput(f"run {outcome.run_id} is {outcome.ending}, which is not an ending; {next_step}")
    return found


def agent_wait(outcome: Outcome, *, provider_started: bool | None = None) -> AgentWait:
    """Return what a waiter on the gateway is told; `provider_started` is left out where control does not know it."""
    if not outcome.ended:
        return AgentWait(outcome.ending.value)
    answer = row(outcome).wait
    if outcome.ending is Ending.STOPPED and outcome.typed:
        return msgspec.structs.replace(answer, stop_reason=TYPED)
    if outcome.ending is Ending.TIMED_OUT:
        phase = _timeout_phase(outcome)
        if provider_started is None and outcome.started_at is None:
            provider_started = False
        # Deduce it only if the phase told is the one that the agent named. UNDER_WAY, which this table puts in, does
        # not show that the provider had started.
        elif provider_started is None and phase == outcome.phase:
            provider_started = TIMEOUT_PHASES[phase]
        return msgspec.structs.replace(answer, timeout_phase=phase, provider_started=provider_started)
    return answer


def _timeout_phase(outcome: Outcome) -> str:
    """Return the published word for the phase in which a limit passed.

    `queue` tells a client that nothing had begun and that sending again is safe. So a run that had begun is never told
    as `queue`, even if its agent named a phase so.
    """
    if outcome.started_at is None:
        return "queue" if outcome.phase == KnownPhase.QUEUE else "preflight"
    if outcome.phase == KnownPhase.START:
        return "preflight"
    return outcome.phase if outcome.phase in TIMEOUT_PHASES and outcome.phase != KnownPhase.QUEUE else UNDER_WAY


def chat_event(outcome: Outcome) -> ChatEvent:
    """Return the words of the terminal `chat` event."""
    event = row(outcome).chat
    typed = outcome.ending is Ending.STOPPED and outcome.typed
    return msgspec.structs.replace(event, stop_reason=TYPED) if typed else event


def responses(outcome: Outcome, *, steered: bool = False) -> Responses:
    """Return how a response object ends.

    `steered` says that the message that took over came as a steer of the Responses WebSocket protocol. Such a steer
    ends the response, and the protocol calls the reason `steered`. Interlock's own strategy `steer` ends no run.
    """
    answer = row(outcome).responses
    if _provider_failed(outcome):
        return msgspec.structs.replace(answer, error_code=PROVIDER_ERROR)
    if outcome.ending is Ending.SUPERSEDED and steered:
        return msgspec.structs.replace(answer, incomplete_reason="steered")
    return answer


def completions(outcome: Outcome) -> Completions:
    """Return how a chat completion ends."""
    answer = row(outcome).completions
    return msgspec.structs.replace(answer, error_code=PROVIDER_ERROR) if _provider_failed(outcome) else answer


def _provider_failed(outcome: Outcome) -> bool:
    return outcome.ending is Ending.FAILED and outcome.error_kind is ErrorKind.PROVIDER


def parent_word(outcome: Outcome) -> str | None:
    """Return what the parent of a child run is told, or None where the parent has itself ended."""
    return _fill(row(outcome).parent, outcome)


def announcement(outcome: Outcome, agent: str, limit: int) -> str:
    """Return what a home is told of its detached child: which child, how it ended, and what it said.

    The text of a child that ended early is introduced as "It had said so far": otherwise a model would take it for the
    result. `limit` is the most characters that the message may have: a longer reply is cut, and a line says so.
    """
    ended = f"{agent or 'a child'} ({outcome.run_id}), which was started here, has ended: {parent_word(outcome)}"
    said = outcome.text
    if not said:
        return ended
    ended = f"{ended.removesuffix('.')}. {'It said' if outcome.ending is Ending.COMPLETED else 'It had said so far'}:"
    room = limit - len(ended) - 100
    if len(said) > room:
        said = f"{said[:room]}\n\n(cut here: it said {len(said):,} characters)"
    return f"{ended}\n\n{said}"


def client_words(outcome: Outcome) -> str:
    """Return what our client, the page and the terminal say."""
    if not outcome.ended:
        return "still running" if outcome.ending is Ending.PENDING else "no such run"
    return _fill(row(outcome).client, outcome) or ""


def channel_words(outcome: Outcome, receipt_line: str | None = None) -> str | None:
    """Return what a chat channel says, or None where it says nothing."""
    if outcome.unkept:
        return UNKEPT
    return _fill(row(outcome).channel, outcome, receipt=f" {receipt_line}" if receipt_line else "") or None


def tool_words(state: ToolState, outcome: Outcome | None = None, *, why: str = "") -> str:
    """Return the result of a tool call that was skipped or interrupted: by which ending, and by whom."""
    if outcome is not None:
        if outcome.ending is Ending.LOST and state is ToolState.INTERRUPTED:
            return LOST_RESULT
        why = _fill(row(outcome).tool, outcome) or ""
    cause = f": {why}" if why else ""
    return f"not run{cause}" if state is ToolState.SKIPPED else f"interrupted{cause}; its effect is unknown"


def _fill(words: str | None, outcome: Outcome, *, receipt: str = "") -> str | None:
    if words is None:
        return None
    return words.format(
        text=outcome.text,
        by=f" by {outcome.by}" if outcome.by else "",
        of=f" of {outcome.by}" if outcome.by else "",
        unseen=" before it came" if outcome.born_stopped else "",
        successor=f" by {outcome.superseded_by}" if outcome.superseded_by else NOT_KEPT if outcome.unkept else "",
        after=f" after {_duration(outcome.limit_ms)}" if outcome.limit_ms is not None else "",
        phase=f" in phase {outcome.phase}" if outcome.phase else "",
        whose=WHOSE[outcome.limit_of] if outcome.limit_of is not None else "",
        why=f": {why}" if (why := _first_line(outcome.error or "")) else "",
        receipt=receipt,
    )


def _duration(ms: int) -> str:
    for unit, word in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms and ms % unit == 0:
            return f"{ms // unit} {word}"
    return f"{ms / 1000} s" if ms > 1_000 else f"{ms} ms"


def _first_line(text: str) -> str:
    # An error text may have a megabyte or many lines. A channel takes one line, and IRC ends a line at a bare \r.
    line = next(iter(text.lstrip()[: WHY_CHARS + 1].splitlines()), "").rstrip()
    return line if len(line) <= WHY_CHARS else line[: WHY_CHARS - 1] + "…"
