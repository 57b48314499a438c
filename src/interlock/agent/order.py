"""A process as an agent orders it, and how it ended."""

from collections.abc import Mapping
from os import PathLike, fsencode, fspath
from typing import Annotated, Any

import msgspec

from interlock.agent.bounds import ARGUMENTS, INPUT_BYTES
from interlock.core.errors import BadInput, InterlockError
from interlock.core.values import name_of, need_utf8, seconds_of, text_of


class SpawnFailed(InterlockError, OSError):
    """A process could not be started; nothing of it is left. `errno` is the system's own number."""


class SpawnOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One process to be started. The values are plain, so that an order can come from another process."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(max_length=ARGUMENTS)]
    cwd: str | None = None
    env: Annotated[dict[str, str | None], msgspec.Meta(max_length=ARGUMENTS)] = {}
    input: bytes | None = None
    timeout: float | None = None
    grace: float = 0.0
    pty: bool = False
    background: bool = False
    detached: bool = False
    name: str | None = None
    streamed: bool = False  # the agent reads its lines as they come
    # The process gets control's own descriptors 0, 1 and 2. Only `interlock run` sets this; an agent may not.
    inherit: bool = False

    @property
    def alone(self) -> bool:
        """True if the process can be ended by itself, and so has a keeper of its own."""
        bound = self.timeout is not None or self.grace > 0 or self.name is not None
        return bound or self.background or self.detached or self.streamed

    def checked(self) -> "SpawnOrder":
        """Return the order with plain values, or raise what is wrong with them."""
        return SpawnOrder(
            argv=_argv(self.argv),
            cwd=_cwd(self.cwd),
            env=_environment(self.env),
            input=_input(self.input),
            timeout=seconds_of(self.timeout, "timeout", None),
            grace=seconds_of(self.grace, "grace", None) or 0.0,
            pty=bool(self.pty),
            background=bool(self.background),
            detached=bool(self.detached),
            name=None if self.name is None else name_of(self.name, "name"),
            streamed=self.streamed,
            inherit=self.inherit,
        )


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. A negative status is the signal that ended it, as everywhere in Python."""

    status: int
    # The beginning and the end of the output. If bytes are missing, a line between the two says how many.
    data: bytes = b""
    # Bytes of output that were not kept.
    left_out: int = 0
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """True if the process exited with 0."""
        return self.status == 0

    @property
    def output(self) -> str:
        """Output and error output, as text."""
        return self.data.decode("utf-8", "replace")


def _argv(argv: tuple[object, ...]) -> tuple[str, ...]:
    if not argv or not all(isinstance(part, str) for part in argv):
        raise BadInput('spawn takes a program and its arguments as texts: run.spawn("make", "test")')
    if any("\0" in str(part) for part in argv):
        raise BadInput("an argument of a program cannot hold a NUL character")
    if not argv[0]:
        raise BadInput("the name of the program is empty")
    return tuple(_encodable(part, "an argument of a program") for part in argv)


def _cwd(cwd: object) -> str | None:
    if cwd is None:
        return None
    path = text_of(fspath(cwd) if isinstance(cwd, PathLike) else cwd, "cwd")
    if "\0" in path:
        raise BadInput("cwd cannot hold a NUL character")
    return path


def _input(given: object) -> bytes | None:
    if isinstance(given, str):
        need_utf8(given, "input")
        given = given.encode()
    if given is not None and not isinstance(given, bytes):
        raise BadInput(f"input= takes text or bytes, not {type(given).__name__}")
    if given is not None and len(given) > INPUT_BYTES:
        raise BadInput(f"input= has {len(given)} bytes, more than {INPUT_BYTES}; write a file")
    return given


def _environment(env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    if env is not None and not isinstance(env, Mapping):
        raise BadInput(f"env= takes names and values, not {type(env).__name__}")
    given = dict(env or {})
    for name, value in given.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise BadInput(f"{name!r:.40} is no name of an environment variable")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise BadInput(f"env[{name!r:.40}] takes text, or None to leave the variable out")
    what = "an environment variable"
    return {_encodable(name, what): None if value is None else _encodable(value, what) for name, value in given.items()}


def _encodable(text: Any, what: str) -> str:
    """Return a text that a program can be given; surrogate escapes for bytes that are not UTF-8 are allowed."""
    plain_text = str.__str__(text)
    try:
        fsencode(plain_text)
    except UnicodeEncodeError:
        raise BadInput(f"{what} holds half a surrogate pair; decode the text properly first") from None
    return plain_text
