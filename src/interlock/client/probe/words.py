"""The kind of end that a gateway's words tell, so that the words of two surfaces can be compared. No I/O.

1. The published words are those of core/projection: its table is read backwards.
2. Other words of a gateway are read by their plain meaning; a word that may mean two kinds agrees with both.
3. `running` is a kind too: a surface that says so contradicts one that told an end.
"""

from enum import StrEnum
from typing import Any, Final

from interlock.core.names import Ending
from interlock.core.projection import TABLE, TYPED


class Kind(StrEnum):
    """How a run ended, as exactly as this wire tells."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    TIMEOUT = "timeout"
    RUNNING = "running"


Kinds = frozenset[Kind]
NO_WORD: Final[Kinds] = frozenset()
STOPPED: Final[Kinds] = frozenset({Kind.STOPPED})
TIMEOUT: Final[Kinds] = frozenset({Kind.TIMEOUT})
RUNNING: Final[Kinds] = frozenset({Kind.RUNNING})
TERMINAL_STATES: Final = frozenset(row.chat.state for row in TABLE.values())
TERMINAL_PHASES: Final = frozenset(row.lifecycle.phase for row in TABLE.values())

KIND_OF: Final = {
    Ending.COMPLETED: Kind.COMPLETED,
    Ending.FAILED: Kind.FAILED,
    Ending.STOPPED: Kind.STOPPED,
    Ending.SUPERSEDED: Kind.STOPPED,
    Ending.TIMED_OUT: Kind.TIMEOUT,
    Ending.PARENT_ENDED: Kind.STOPPED,
    Ending.SHUTDOWN: Kind.STOPPED,
    Ending.LOST: Kind.FAILED,
}
FOREIGN: Final = {
    **dict.fromkeys(("ok", "done", "completed", "succeeded"), Kind.COMPLETED),
    **dict.fromkeys(("abort", "aborted", "cancel", "cancelled", "canceled", "stopped", "killed"), Kind.STOPPED),
    **dict.fromkeys(("interrupted", "superseded", "rpc", "restart"), Kind.STOPPED),
    **dict.fromkeys(("failed", "failure"), Kind.FAILED),
    **dict.fromkeys(("timeout", "timed_out", "timed-out", "timedout", "deadline"), Kind.TIMEOUT),
    **dict.fromkeys(("pending", "running", "started", "accepted", "in_flight"), Kind.RUNNING),
}
SURE: Final = frozenset({"final", "ok", "timeout"})  # a second word beside these does not change their kind
# A wait that answers `timeout` without any of these has itself timed out, and the run may still go on.
SOFT: Final = ("endedAt", "timeoutPhase", "stopReason")

Words = dict[tuple[str, str | None], Kinds]


def _words(pairs: list[tuple[str, str | None, Ending]]) -> Words:
    found: Words = {}
    for word, more, ending in pairs:
        found[word, more] = found.get((word, more), NO_WORD) | {KIND_OF[ending]}
    return found


CHAT: Final = _words([(row.chat.state, row.chat.error_kind or row.chat.stop_reason, e) for e, row in TABLE.items()])
LIFECYCLE: Final = _words([(row.lifecycle.phase, row.lifecycle.status, e) for e, row in TABLE.items()])
WAIT: Final = _words(
    [(row.wait.status, row.wait.stop_reason, e) for e, row in TABLE.items()] + [("error", TYPED, Ending.STOPPED)]
)


def _read(words: Words, word: str, more: str | None) -> Kinds:
    if (word, more) in words:
        return words[word, more]
    if word not in SURE and more in FOREIGN:
        return frozenset({FOREIGN[more]})
    near = [kinds for (known, _), kinds in words.items() if known == word]
    if near:
        return frozenset().union(*near)
    return frozenset({FOREIGN[word]}) if word in FOREIGN else NO_WORD


def _text(value: Any) -> str | None:
    return value.lower()[:80] if isinstance(value, str) and value else None


def said(*parts: Any) -> str:
    """Return a surface's words as they are shown: `aborted rpc`."""
    return " ".join(part for part in map(_text, parts) if part)


def of_chat(payload: dict[str, Any]) -> tuple[str, Kinds]:
    """Return the words of a terminal `chat` event, and the kinds that they tell."""
    state, more = _text(payload.get("state")) or "", payload.get("errorKind") or payload.get("stopReason")
    return said(state, more), _read(CHAT, state, _text(more))


def of_lifecycle(data: dict[str, Any]) -> tuple[str, Kinds]:
    """Return the words of a terminal `agent` lifecycle event, and the kinds that they tell."""
    phase = _text(data.get("phase")) or ""
    more = data.get("status") or ("aborted" if data.get("aborted") is True else data.get("stopReason"))
    return said(phase, more), _read(LIFECYCLE, phase, _text(more))


def of_wait(payload: dict[str, Any]) -> tuple[str, Kinds]:
    """Return the words of an answer to `agent.wait`, or of the second answer to `agent`, and their kinds."""
    status, more = _text(payload.get("status")) or "", payload.get("stopReason")
    kinds = _read(WAIT, status, _text(more))
    if status == "timeout" and not any(payload.get(name) for name in SOFT):
        kinds |= RUNNING
    return said(status, more), kinds


def of_abort(payload: dict[str, Any]) -> tuple[str, Kinds]:
    """Return the words of an answer to `chat.abort`, and their kinds: any but stopped if it stopped nothing."""
    if payload.get("aborted") is True:
        return "aborted", STOPPED
    return "nothing aborted", frozenset(Kind) - STOPPED
