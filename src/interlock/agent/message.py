"""What an agent is handed: messages, the endings of children, and holds."""

import msgspec

from interlock.core.names import Principal, RunId, SessionId
from interlock.core.outcome import Outcome


class Child(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of delegated work. For a detached child `outcome` is `pending`: it goes on by itself."""

    run_id: RunId
    outcome: Outcome
    text: str = ""


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One of the messages collected into a turn."""

    text: str
    by: Principal
    child: Child | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to an agent. `previous` says how the session's last turn ended; `parts` are the collected messages.

    `instructions` come from the sender beside the message, like a system prompt. `child` is set where no person or
    program wrote the message: it announces how that detached child ended.
    """

    text: str
    by: Principal
    session: SessionId
    run_id: RunId
    previous: Outcome | None = None
    parts: tuple[Part, ...] = ()
    instructions: str | None = None
    child: Child | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold as its holder sees it. `unconfirmed` names a previous holder that was not seen to be drained."""

    name: str
    token: int
    unconfirmed: RunId | None = None
