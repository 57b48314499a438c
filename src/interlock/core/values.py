"""Checks of what callers pass in: a wrong value raises BadInput, which names it, before anything is changed."""

import math
from datetime import datetime, timedelta

import msgspec

from interlock.core.errors import BadInput
from interlock.core.names import Announce, May, RunKind, Strategy

MESSAGE_BYTES = 1024 * 1024  # text per message
INSTRUCTION_BYTES = 256 * 1024  # instructions per message


class Order(msgspec.Struct, frozen=True, gc=False):
    """A message's place in its channel, by the channel's own number or time; comparable only within that channel."""

    channel: str
    at: int | float


def need_utf8(text: str, what: str) -> None:
    """Refuse text that no wire or file can hold (half a surrogate pair)."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what} holds half a surrogate pair; decode the text properly first") from None


def name_of(value: object, what: str) -> str:
    """Return a name, or raise what is wrong with it."""
    if not isinstance(value, str) or not value.strip() or len(value) > 512:
        raise BadInput(f"{what} must be a name of 1 to 512 characters, not {value!r:.80}")
    need_utf8(value, what)
    return str.__str__(value)


def text_of(value: object, what: str = "the message", limit: int = MESSAGE_BYTES) -> str:
    """Return a text that is not empty and not too long."""
    if not isinstance(value, str):
        raise BadInput(f"{what} is text, not {type(value).__name__}; convert it first")
    if not value.strip():
        raise BadInput(f"{what} is empty; send some text")
    need_utf8(value, what)
    if len(value) > limit:
        raise BadInput(f"{what} has {len(value)} characters, more than {limit}; send a shorter one")
    return str.__str__(value)


def instructions_of(value: object) -> str | None:
    """Return the instructions of a message; None for an empty text."""
    return None if value is None or value == "" else text_of(value, "instructions", INSTRUCTION_BYTES)


def strategy_of(value: str | None) -> Strategy | None:
    """Return a strategy by its name."""
    if value is None:
        return None
    try:
        return Strategy(value)
    except ValueError:
        raise BadInput(f"no strategy {value!r}; use one of {', '.join(Strategy)}") from None


def kind_of(value: object) -> RunKind:
    """Return the kind of a message: chat, or agent for a program's message."""
    for kind in (RunKind.CHAT, RunKind.AGENT):
        if kind == value:
            return kind
    raise BadInput(f"kind= is chat or agent, not {value!r:.40}")


def announce_of(value: object, *, detached: bool) -> Announce | None:
    """Return how a detached child's ending is announced to its session."""
    how = next((each for each in Announce if each == value), None)
    if how is None and value is not None:
        raise BadInput(f"announce= is turn, note or None, not {value!r:.40}")
    if not detached and how is Announce.NOTE:
        raise BadInput("announce= is for a detached child; delegate() returns how this one ended")
    return how if detached else None


def may_of(value: object) -> May:
    """Return what a share allows."""
    for each in May:
        if each == value:
            return each
    raise BadInput(f"may= is write or read, not {value!r:.40}")


def count_of(value: object, what: str) -> int:
    """Return a count for a list."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise BadInput(f"{what}= is how many to list, 0 or more, not {value!r:.40}")
    return value


def seconds_of(value: object, what: str, default: float | None) -> float | None:
    """Return a limit in seconds; None for 0 or infinity, the default for None."""
    if value is None:
        return default or None
    seconds = number_of(value)
    if math.isnan(seconds) or seconds < 0:
        raise BadInput(f"{what} must be 0 or more seconds from now, not {value!r:.40}; leave it out for none")
    return None if seconds in (0, math.inf) else seconds


def order_of(value: object) -> Order | None:
    """Return a message's place in its channel, given as (channel, number)."""
    if value is None:
        return None
    match value:
        case (str() as channel, int() | float() as at) if math.isfinite(number_of(at)):
            return Order(name_of(channel, "the channel"), int(at) if isinstance(at, int) else float(at))
        case _:
            raise BadInput(f"order= is (channel, the channel's own number or time), not {value!r:.60}")


def number_of(value: object) -> float:
    """Return a value as a float; nan if it is not a number."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def time_of(value: datetime | float | None) -> float | None:
    """Return a time to come as seconds since 1970."""
    if not isinstance(value, datetime):
        return value
    try:
        return value.timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"at= is a time to come, not {value!r:.60}") from None


def seconds_every(value: timedelta | float | None) -> float | None:
    """Return an interval in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value
