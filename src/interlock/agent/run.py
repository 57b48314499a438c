"""The run as its agent sees it: the agent's only capability.

1. Every verb begins with a checkpoint, then passes the fence and hands over with no await between. An await in between
   would let a fall come after the check and before the effect.
2. Stale is a BaseException: agents let it pass. Once it was raised, every further effect of the run is refused.
3. Only plain values cross to control (verbs.py), so that an agent in another process has the same verbs.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from math import isnan
from os import PathLike
from typing import Any, Literal, overload

from interlock.agent import verbs
from interlock.agent.bounds import OPEN_CALLS, RECORD_CHARACTERS
from interlock.agent.message import Child, Hold, Message
from interlock.agent.order import Finished, SpawnOrder
from interlock.agent.port import Port, Work
from interlock.agent.process import Running, Spawn
from interlock.agent.tool import ToolResult, ToolSpec, describe_error, plain, spec_of
from interlock.core.errors import BadInput, Denied, Refused, Stale
from interlock.core.events import Entry, Json
from interlock.core.names import CallId, RunId, SessionId, ToolState
from interlock.core.values import need_utf8, number_of

Agent = Callable[["Run", Message], Coroutine[Any, Any, str | None]]
"""An agent is one async callable."""


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
        number = next(self._port.numbers)
        messages = await self._port.ask(verbs.Check(number))
        if messages:
            self._port.tell(verbs.Took(number))
        return messages

    async def say(self, text: str) -> None:
        """Stream a piece of the reply."""
        verb = verbs.Say(_need_text(text, "say"))
        await self._port.checkpoint()
        self._port.tell(verb)

    async def post(self, text: str) -> None:
        """Say a whole block of the reply."""
        verb = verbs.Post(_need_text(text, "post"))
        await self._port.checkpoint()
        self._port.tell(verb)

    async def typing(self, on: bool = True) -> None:
        """Show that something is coming; the end of the run switches it off."""
        await self._port.checkpoint()
        self._port.tell(verbs.SetTyping(bool(on)))

    async def progress(self, text: str, *, done: float | None = None, total: float | None = None) -> None:
        """Show how far long work has come."""
        said, so_far, whole = _need_text(text, "progress"), _need_number(done, "done"), _need_number(total, "total")
        verb = verbs.SetProgress(said, so_far, whole).checked()
        await self._port.checkpoint()
        self._port.tell(verb)

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Name what the run is doing, so that a timeout can say where it happened."""
        verb = verbs.SetPhase(_need_text(name, "phase")).checked()
        await self._port.checkpoint()
        self._port.tell(verb)
        before, self._port.phase = self._port.phase, verb.name
        try:
            yield
        except Exception as error:
            self._port.blame(verb.name or "", error)
            raise
        finally:
            # After the fall the phase is not restored: Stale would replace the error that is being raised.
            if self._port.current:
                self._port.phase = before
                self._port.tell(verbs.SetPhase(before))

    async def history(self) -> list[Entry]:
        """Return the conversation so far, valid for a model: every call has a result."""
        await self._port.checkpoint()
        return await self._port.ask(verbs.ReadHistory())

    # Acting

    async def call(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a tool through the gate; return its result or raise its error."""
        spec, values = spec_of(function), plain(arguments, f"the arguments of {_name(function)}")
        work = self._port.prepare(spec, function, arguments)
        await self._port.checkpoint()
        [call] = self._record([(spec, values)])
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
        ids = self._record(values)
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
                self._port.tell(verbs.GiveUp(call))
            raise
        self._port.tell(verbs.EndBatch())
        return [result for result in results if result is not None]

    def _record(self, wanted: Sequence[tuple[ToolSpec, Json]]) -> list[CallId]:
        # Refuse them together: control would refuse one Record after another, with the first calls recorded by then.
        if self._port.current and len(wanted) > OPEN_CALLS:
            raise Refused(f"this run would have more than {OPEN_CALLS} tool calls open; wait for some to end")
        calls = tuple(
            verbs.Wanted(next(self._port.calls), spec.name, values, spec.asks, spec.grace) for spec, values in wanted
        )
        # Each call fits into a message of a host by itself, but all of them together may not.
        size = 1 if sum(len(values) for _, values in wanted) > RECORD_CHARACTERS else OPEN_CALLS
        ids = [CallId(f"{self.id}.{call.number}") for call in calls]
        try:
            for at in range(0, max(1, len(calls)), size):
                self._port.tell(verbs.Record(calls[at : at + size]))
        # The first calls may be recorded although a later one was refused: none of them is made.
        except BaseException:
            for call in ids:
                self._port.tell(verbs.GiveUp(call))
            raise
        return ids

    async def _perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        try:
            await self._port.ask(verbs.Permit(call))
            value = await self._port.perform(call, spec, work)
            result = plain(value, f"what tool {spec.name} returned")
        except Exception as error:
            self._port.tell(verbs.Finish(call, ToolState.FAILED, error=describe_error(error)))
            raise
        # The agent waits no longer, by a timeout of its own for example.
        except BaseException:
            self._port.tell(verbs.GiveUp(call))
            raise
        self._port.tell(verbs.Finish(call, ToolState.FINISHED, result))
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
        verb = verbs.Ask(question, choices, timeout).checked()  # type: ignore[arg-type]
        await self._port.checkpoint()
        return await self._port.ask(verb)

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
        verb = verbs.Delegate(agent, message, timeout, bool(detached), announce).checked()  # type: ignore[arg-type]
        await self._port.checkpoint()
        return await self._port.ask(verb)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Hold]:
        """Hold a named thing, such as a worktree: no other run has it until the block ends, or this run is drained."""
        verb = verbs.TakeHold(next(self._port.numbers), name).checked()
        await self._port.checkpoint()
        held = await self._port.ask(verb)
        try:
            yield held
        finally:
            self._port.tell(verbs.Release(verb.number))

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
    ) -> Spawn[Finished]: ...
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
    ) -> Spawn[Running]: ...
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
    ) -> Spawn[Any]:
        """Run a program that dies with the run: `await` it, or read its lines in an `async with` block.

        Arguments are given one by one; a shell is a program like any other ("sh", "-c", line). The program sees an
        allow-list of the environment and what `env` adds. On a stop it is sent KILL at once, or TERM and `grace`
        seconds later KILL. `background` returns as soon as the program runs; `detached` does too, and leaves it to the
        session. A running program of the same `name` is ended first.
        """
        given: Any = {"cwd": cwd, "env": env, "input": input, "timeout": timeout, "grace": grace, "name": name}
        order = SpawnOrder(argv=argv, pty=pty, background=background, detached=detached, **given)
        return Spawn(self._port, order.checked())


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
