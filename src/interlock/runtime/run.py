"""The run as its agent sees it: the agent's only capability.

1. Every verb begins with a checkpoint, then passes the fence and hands over with no await between. An await in between
   would let a fall come after the check and before the effect.
2. Stale is a BaseException: agents let it pass. Once it was raised, every further effect of the run is refused.
3. Only plain values cross to control (the Port), so that an agent in another process has the same verbs.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import isnan
from os import PathLike, fsencode, fspath
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import anyio
import msgspec

from interlock.core.errors import BadInput, Denied, Stale
from interlock.core.events import Entry, Json
from interlock.core.names import Announce, CallId, Effect, Principal, RunId, SessionId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.values import announce_of, name_of, need_utf8, number_of, seconds_of, text_of
from interlock.processes.base import SpawnFailed, SpawnOrder
from interlock.runtime.holds import Hold
from interlock.runtime.settings import INPUT_BYTES, PROGRESS_CHARACTERS, QUESTION_BYTES
from interlock.runtime.spawning import Finished, Running
from interlock.runtime.ties import Child
from interlock.runtime.tool import ToolResult, ToolSpec, describe_error, plain, spec_of

T = TypeVar("T")


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


Agent = Callable[["Run", Message], Coroutine[Any, Any, str | None]]
"""An agent is one async callable."""


Work = bytes | Callable[[], Any]
"""A tool's body, ready to run: packed for another process, or as a call."""


class Port(Protocol):
    """The requests of a run to control. Arguments are plain values, except for bodies, which stay with the agent."""

    @property
    def current(self) -> bool: ...
    async def checkpoint(self) -> None: ...
    def check(self, effect: Effect) -> None: ...
    def delta(self, text: str) -> None: ...
    def block(self, text: str) -> None: ...
    def typing(self, on: bool) -> None: ...
    def progress(self, text: str, done: float | None, total: float | None) -> None: ...
    def phase(self, name: str | None) -> str | None: ...
    async def steered(self) -> list[Message]: ...
    async def ask(self, text: str, choices: tuple[str, ...] | None, seconds: float | None) -> bool | str: ...
    async def delegate(
        self, agent: str, text: str, deadline: float | None, detached: bool, announce: Announce | None
    ) -> Child: ...
    async def hold(self, name: str) -> Hold: ...
    def release(self, name: str) -> None: ...
    async def spawn(self, order: SpawnOrder) -> Running: ...
    def record(self, wanted: Sequence[tuple[ToolSpec, Json]]) -> list[CallId]: ...
    async def permit(self, call: CallId) -> None: ...
    def finish(self, call: CallId, state: ToolState, result: Json | None, error: str | None) -> None: ...
    def give_up(self, call: CallId) -> None: ...
    def blame(self, phase: str, error: BaseException) -> None: ...
    async def history(self) -> list[Entry]: ...
    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work: ...
    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any: ...
    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None: ...


class Run:
    """A turn of the conversation. Every effect of the agent goes through a verb here, and is refused after the fall."""

    __slots__ = ("_port", "generation", "id", "session")

    def __init__(self, port: Port, *, run_id: RunId, session: SessionId, generation: int) -> None:
        self._port = port
        self.id = run_id
        self.session = session
        self.generation = generation

    # Saying

    @property
    def current(self) -> bool:
        """True while this run may have effects. A hint only: every verb reads the fence itself."""
        return self._port.current

    async def check(self) -> list[Message]:
        """Raise Stale if the run has fallen; return the messages steered to it, which are part of it from here."""
        await self._port.checkpoint()
        if not self._port.current:
            raise Stale(f"run {self.id} has ended; do not catch Stale")
        return await self._port.steered()

    async def say(self, text: str) -> None:
        """Stream a piece of the reply."""
        said = _need_text(text, "say")
        await self._port.checkpoint()
        self._port.delta(said)

    async def post(self, text: str) -> None:
        """Say a whole block of the reply."""
        said = _need_text(text, "post")
        await self._port.checkpoint()
        self._port.block(said)

    async def typing(self, on: bool = True) -> None:
        """Show that something is coming; the end of the run switches it off."""
        await self._port.checkpoint()
        self._port.typing(bool(on))

    async def progress(self, text: str, *, done: float | None = None, total: float | None = None) -> None:
        """Show how far long work has come."""
        said = _need_text(text, "progress")[:PROGRESS_CHARACTERS]
        so_far, whole = _need_number(done, "done"), _need_number(total, "total")
        await self._port.checkpoint()
        self._port.progress(said, so_far, whole)

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Name what the run is doing, so that a timeout can say where it happened."""
        named = _need_text(name, "phase")[:PROGRESS_CHARACTERS]
        await self._port.checkpoint()
        before = self._port.phase(named)
        try:
            yield
        except Exception as error:
            self._port.blame(named, error)
            raise
        finally:
            # After the fall the phase is not restored: Stale would replace the error that is being raised.
            if self._port.current:
                self._port.phase(before)

    async def history(self) -> list[Entry]:
        """Return the conversation so far, valid for a model: every call has a result."""
        await self._port.checkpoint()
        return await self._port.history()

    # Acting

    async def call(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a tool through the gate; return its result or raise its error."""
        spec, values = spec_of(function), plain(arguments, f"the arguments of {_name(function)}")
        work = self._port.prepare(spec, function, arguments)
        await self._port.checkpoint()
        [call] = self._port.record([(spec, values)])
        return await self._perform(call, spec, work)

    async def batch(
        self, calls: Sequence[tuple[Callable[..., Any], dict[str, Any]]], *, parallel: bool = False
    ) -> list[ToolResult]:
        """Record several tool calls together, then run them; return results in order. An error stops no other call."""
        specs = [spec_of(function) for function, _ in calls]
        given = list(zip(specs, calls, strict=True))
        values = [(spec, plain(arguments, f"the arguments of {spec.name}")) for spec, (_, arguments) in given]
        works = [self._port.prepare(spec, function, arguments) for spec, (function, arguments) in given]
        await self._port.checkpoint()
        ids = self._port.record(values)
        results: list[ToolResult | None] = [None] * len(ids)

        async def one(index: int) -> None:
            spec = specs[index]
            try:
                value = await self._perform(ids[index], spec, works[index])
                results[index] = ToolResult(name=spec.name, state=ToolState.FINISHED, value=value)
            except Exception as error:
                state = ToolState.SKIPPED if isinstance(error, Denied) else ToolState.FAILED
                results[index] = ToolResult(name=spec.name, state=state, error=error)
            except BaseException as error:
                # A cancel of the agent's own task, by a timeout of its own for example, ends the batch.
                if not parallel:
                    raise
                results[index] = ToolResult(name=spec.name, state=ToolState.INTERRUPTED, error=error)

        try:
            if parallel:
                await self._port.side_by_side([(ids[i], specs[i], one(i)) for i in range(len(ids))])
            else:
                for index in range(len(ids)):
                    await one(index)
        except BaseException:
            for call in ids:
                self._port.give_up(call)
            raise
        self._port.check(Effect.RESULT)
        return [result for result in results if result is not None]

    async def _perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        try:
            await self._port.permit(call)
            value = await self._port.perform(call, spec, work)
            result = plain(value, f"what tool {spec.name} returned")
        except Exception as error:
            self._port.finish(call, ToolState.FAILED, None, describe_error(error))
            raise
        # The agent waits no longer, by a timeout of its own for example.
        except BaseException:
            self._port.give_up(call)
            raise
        self._port.finish(call, ToolState.FINISHED, result, None)
        return value

    # People, children, holds

    @overload
    async def ask(self, question: str, *, timeout: float | None = None) -> bool: ...
    @overload
    async def ask(
        self, question: str, *, choices: Sequence[str], timeout: float | None = None
    ) -> str | Literal[False]: ...
    async def ask(
        self, question: str, *, choices: Sequence[str] | None = None, timeout: float | None = None
    ) -> bool | str:
        """Ask a person; return True or False, or one of the choices; False without an answer in time (half an hour)."""
        text = text_of(question, "the question", QUESTION_BYTES)
        offered = None if choices is None else check_choices(choices)
        seconds = seconds_of(timeout, "timeout", None)
        await self._port.checkpoint()
        return await self._port.ask(text, offered, seconds)

    async def delegate(
        self,
        agent: str,
        message: str,
        *,
        timeout: float | None = None,
        detached: bool = False,
        announce: Literal["turn", "note"] | None = "turn",
    ) -> Child:
        """Hand work to another agent and return how that child run ended. The child falls with this run.

        `timeout` is the child's deadline. The child's ending is returned, never raised. A detached child is not waited
        for and ends with the session instead. Its ending comes to the session as one message: offered to the run at
        work there, else as a turn of its own (`turn`); or as an entry that the next turn reads (`note`); or not at all
        (None).
        """
        text = text_of(message, "the message")
        deadline = seconds_of(timeout, "timeout", None)
        how = announce_of(announce, detached=bool(detached))
        await self._port.checkpoint()
        return await self._port.delegate(name_of(agent, "agent"), text, deadline, bool(detached), how)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Hold]:
        """Hold a named thing, such as a worktree: no other run has it until the block ends, or this run is drained."""
        wanted = name_of(name, "hold")
        await self._port.checkpoint()
        held = await self._port.hold(wanted)
        try:
            yield held
        finally:
            self._port.release(wanted)

    # Processes

    @overload
    def spawn(
        self,
        *argv: str,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        grace: float = 0.0,
        pty: bool = False,
        background: Literal[False] = False,
        detached: Literal[False] = False,
        name: str | None = None,
    ) -> "Spawn[Finished]": ...
    @overload
    def spawn(
        self,
        *argv: str,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        grace: float = 0.0,
        pty: bool = False,
        background: bool = False,
        detached: bool = False,
        name: str | None = None,
    ) -> "Spawn[Running]": ...
    def spawn(
        self,
        *argv: str,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        timeout: float | None = None,
        grace: float = 0.0,
        pty: bool = False,
        background: bool = False,
        detached: bool = False,
        name: str | None = None,
    ) -> "Spawn[Any]":
        """Run a program that dies with the run: `await` it, or read its lines in an `async with` block.

        Arguments are given one by one; a shell is a program like any other ("sh", "-c", line). The program sees an
        allow-list of the environment and what `env` adds. On a stop it is sent KILL at once, or TERM and `grace`
        seconds later KILL. `background` returns as soon as the program runs; `detached` does too, and leaves it to the
        session. A running program of the same `name` is ended first.
        """
        order = SpawnOrder(
            argv=_argv(argv),
            cwd=_cwd(cwd),
            env=_environment(env),
            input=_input(input),
            timeout=seconds_of(timeout, "timeout", None),
            grace=seconds_of(grace, "grace", None) or 0.0,
            pty=bool(pty),
            background=bool(background),
            detached=bool(detached),
            name=None if name is None else name_of(name, "name"),
        )
        return Spawn(self._port, order)


class Spawn(Generic[T]):
    """A process to be started: `await` it for its end, or read its lines in an `async with` block.

    `await` shares the run's keeper. If the agent gives up waiting, by a timeout of its own for example, the process is
    ended with its process group, and processes that left the group stay until the run ends. `timeout=` ends exactly
    what the process started, because it gives the process a keeper of its own.
    """

    __slots__ = ("_order", "_port", "_running")

    def __init__(self, port: Port, order: SpawnOrder) -> None:
        self._port = port
        self._order = order
        self._running: Running | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        await self._port.checkpoint()
        running = await self._port.spawn(self._order)
        if self._order.background or self._order.detached:
            return running
        try:
            return await running.wait()
        # No code will read the result. The agent's next step must not meet the process, so wait until it is gone.
        except BaseException:
            running.end()
            if self._port.current:
                with anyio.CancelScope(shield=True), suppress(SpawnFailed):
                    await running.stop()
            raise

    async def __aenter__(self) -> Running:
        if self._order.detached:
            raise BadInput("a detached process outlives the block; await it instead")
        await self._port.checkpoint()
        self._running = await self._port.spawn(msgspec.structs.replace(self._order, streamed=True))
        return self._running

    async def __aexit__(self, *raised: object) -> None:
        assert self._running is not None
        self._running.end()
        if self._port.current:
            await self._running.stop()


def check_order(order: SpawnOrder) -> SpawnOrder:
    """Return an order that came from a host, or raise what is wrong with it."""
    _argv(order.argv)
    _cwd(order.cwd)
    _environment(order.env)
    seconds_of(order.timeout, "timeout", None)
    seconds_of(order.grace, "grace", None)
    if order.name is not None:
        name_of(order.name, "name")
    if order.inherit:
        raise BadInput("a process of a host cannot have control's own descriptors")
    return order


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


def check_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Return the choices of a question, or raise what is wrong with them."""
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not 1 <= len(choices) <= 100:
        raise BadInput(f"choices= takes 1 to 100 different texts, not {choices!r:.40}")
    offered = tuple(text_of(choice, "a choice", QUESTION_BYTES) for choice in choices)
    if len(set(offered)) != len(offered):
        raise BadInput(f"choices= takes 1 to 100 different texts, not {choices!r:.40}")
    return offered


def _need_text(text: object, verb: str) -> str:
    if not isinstance(text, str):
        raise BadInput(f"{verb} takes text, not {type(text).__name__}; convert it first")
    need_utf8(text, verb)
    # A plain str: a subclass cannot cross to another process.
    return str.__str__(text)


def _need_number(value: object, name: str) -> float | None:
    if value is None:
        return None
    number = number_of(value)
    if isnan(number) and not isinstance(value, float):
        raise BadInput(f"{name}= takes a number, not {value!r:.40}")
    return number


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
