"""Tools: plain functions, and the marks that some of them carry."""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

from interlock.agent.bounds import VALUE_BYTES
from interlock.core.errors import BadInput, InterlockError
from interlock.core.events import Json
from interlock.core.names import ToolState
from interlock.core.values import name_of, number_of

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__interlock_tool__"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's name and how it runs."""

    name: str
    thread: bool = False
    grace: float = 0.0
    asks: bool = False  # marked with approval="ask"
    worker: bool = False  # synchronous, so it runs in a worker


class ToolFailed(InterlockError):
    """A tool raised, in its worker, an error that is not one of Python's own; the text begins with the error's name."""


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call of a batch."""

    name: str
    state: ToolState
    value: Any = None
    error: BaseException | None = None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, name: str | None = None, thread: bool = False, grace: float = 0.0, approval: str | None = None
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    thread: bool = False,
    grace: float = 0.0,
    approval: str | None = None,
) -> F | Callable[[F], F]:
    """Mark a tool: its name, whether it runs in a thread, its seconds to clean up, whether a person must allow it."""

    def mark(marked: F) -> F:
        if approval not in (None, "ask", "never"):
            raise BadInput(f"approval= is 'ask' or 'never', not {approval!r:.40}")
        seconds = number_of(grace)
        # A nan fails both comparisons.
        if not 0 <= seconds < math.inf:
            raise BadInput(f"grace must be 0 or more seconds, as a finite number, not {grace!r:.40}")
        if thread and _is_async(marked):
            raise BadInput(f"tool {marked.__name__} is async: drop thread=True, it is cut without a thread")
        worker = not thread and not _is_async(marked)
        called = name_of(name or marked.__name__, "a tool's name")
        spec = ToolSpec(name=called, thread=thread, grace=seconds, asks=approval == "ask", worker=worker)
        setattr(marked, _MARK, spec)
        return marked

    return mark if function is None else mark(function)


def spec_of(function: Callable[..., Any]) -> ToolSpec:
    """Return a tool's spec, or raise why it cannot be called."""
    if not callable(function):
        raise BadInput(f"a tool is a function, not {type(function).__name__}; pass the function itself")
    spec = getattr(function, _MARK, None)
    if not isinstance(spec, ToolSpec):
        name = name_of(getattr(function, "__name__", type(function).__name__), "a tool's name")
        spec = ToolSpec(name=name, worker=not _is_async(function))
    return spec


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


ERROR_CHARACTERS = 2_000


def describe_error(error: BaseException) -> str:
    """Return an error as text, bounded and encodable, whatever its `__str__` does."""
    try:
        said = str(error)
    # SystemExit from a `__str__` would stop the embedder's loop.
    except BaseException:
        said = "(it cannot be described)"
    text = f"{type(error).__name__}: {said}".rstrip(": ")[:ERROR_CHARACTERS]
    return text.encode("utf-8", "replace").decode()


def plain(value: object, what: str) -> Json:
    """Return a value as JSON text, or raise that it cannot cross to control."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadInput(
            f"{what} cannot be serialised ({error}); use plain values: text, numbers, lists, dicts"
        ) from None
    if len(encoded) > VALUE_BYTES:
        raise BadInput(f"{what} has {len(encoded)} bytes, more than {VALUE_BYTES}; write a file")
    return Json(encoded.decode())
