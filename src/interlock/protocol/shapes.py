"""The shapes of the gateway's requests: the parameters of each method that is no verb (core/verbs.py).

Published names are camel case on the wire, our own are written as in control. A field that a shape does not name is an
error. No parameter may be of any type: values that nobody reads would be made all the same.
"""

from typing import Literal

from msgspec import Raw, Struct

from interlock.core.scopes import Scope
from interlock.core.verbs import SessionName, Whole

# Parameters


class Params(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The parameters of a published method; an unknown field is an error."""


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
    attachments: tuple[Raw, ...] = ()
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
    attachments: tuple[Raw, ...] = ()
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


# Our own methods that are no verbs of control's: those are in core/verbs.


class Own(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of one of our own methods; an unknown field is an error."""


class OwnWatch(Own, frozen=True, kw_only=True):
    """`Control.watch`; its events carry `watch`, the number given here.

    `begin` names a run of the session: its first event is the first that is told.
    """

    watch: Whole
    session: SessionName | None = None
    run: str | None = None
    after: Whole = 0
    begin: str | None = None


class OwnUnwatch(Own, frozen=True, kw_only=True):
    """End a watch."""

    watch: int


class OwnPair(Own, frozen=True, kw_only=True):
    """Return a code that lets in a page of the caller; an admin may name another principal."""

    name: str | None = None


class OwnTokenAdd(Own, frozen=True, kw_only=True):
    """Add a principal with a token of its own."""

    name: str
    scopes: tuple[Scope, ...] = (Scope.WRITE,)


class OwnTokenRemove(Own, frozen=True, kw_only=True):
    """Take a principal's token away."""

    name: str


class OwnNothing(Own, frozen=True, kw_only=True):
    """No parameters, of one of our own methods."""
