"""The verbs of an agent, as values: what a run asks of control.

1. A verb is spelled once, here: its fields and their bounds (`checked`), the type of its answer, and the effect that
   the fence refuses after the fall. Inline it is handed to its handler (runtime/handlers.py); a host sends it as it is,
   and control calls the same handler.
2. `Run` checks a verb before its checkpoint. Control checks it again if a host sent it: control trusts nothing that a
   host says.
3. The agent's side alone gives numbers: to tool calls, processes, holds and offers. Two counts that must agree could
   give a permit to another call than the one that was asked for.
4. A telling is carried out in the step that says it. A request has an answer. A request in a host that is given up on
   its way may have been granted meanwhile; `undo` is what takes the grant back.
5. A new verb is a struct here, a method in run.py, a handler with its row in runtime/handlers.py, and a case in
   tests/contracts/verb_cases.py; link and ports carry it as it is. A new effect or event begins in core/names.py and
   core/events.py. An event without words in gateway/published.py, cli/screen.py or core/timeline.py is left out there.
"""

import os
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from interlock.agent.bounds import ARGUMENTS, CHOICES, OPEN_CALLS, PROGRESS_CHARACTERS, QUESTION_BYTES
from interlock.agent.message import Child, Hold, Message
from interlock.agent.order import Finished, SpawnOrder
from interlock.agent.tool import ERROR_CHARACTERS
from interlock.core.errors import BadInput
from interlock.core.events import Entry, Json
from interlock.core.names import Announce, CallId, Effect, ToolState
from interlock.core.values import announce_of, name_of, seconds_of, text_of

T = TypeVar("T")

GRACE_SECONDS = 3_600.0  # the longest grace of a tool


class AgentVerb(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Something that an agent asks of control."""

    effect: ClassVar[Effect | None] = None
    """The effect that the fence refuses after the fall; None: the fence lets the verb pass."""

    def checked(self) -> Self:
        """Return the verb with plain values within their bounds, or raise what is wrong with them."""
        return self


class Telling(AgentVerb, frozen=True):
    """A verb without an answer."""


class Request(AgentVerb, Generic[T], frozen=True):
    """A verb with an answer of type T."""

    @classmethod
    def answer_type(cls) -> Any:
        """Return the type of the answer."""
        return cls.__orig_bases__[0].__args__[0]  # type: ignore[attr-defined]

    def undo(self) -> Telling | None:
        """Return what takes back the answer of a request that the agent gave up."""
        return None


# Saying


class Say(Telling, frozen=True, gc=False):
    """Stream a piece of the reply."""

    effect = Effect.DELTA
    text: str


class Post(Telling, frozen=True, gc=False):
    """Say a whole block."""

    effect = Effect.BLOCK
    text: str


class SetTyping(Telling, frozen=True, gc=False):
    """Show that something is coming, or no longer."""

    effect = Effect.TYPING
    on: bool


class SetProgress(Telling, frozen=True, gc=False):
    """Show how far long work has come."""

    effect = Effect.PROGRESS
    text: str
    done: float | None = None
    total: float | None = None

    def checked(self) -> Self:
        """Return the verb with a text of bounded length."""
        return replace(self, text=self.text[:PROGRESS_CHARACTERS])


class SetPhase(Telling, frozen=True, gc=False):
    """Name what the run is doing; None if it leaves its phase."""

    effect = Effect.PHASE
    name: str | None

    def checked(self) -> Self:
        """Return the verb with a name of bounded length."""
        return self if self.name is None else replace(self, name=self.name[:PROGRESS_CHARACTERS])


class ReadHistory(Request[list[Entry]], frozen=True):
    """Return the conversation so far. Reading is no effect: the fence lets it pass."""


# Steering, people, children, holds


class Check(Request[list[Message]], frozen=True):
    """Return the messages that are steered to the run; `Took` with the same number makes them part of it."""

    effect = Effect.PHASE
    number: int

    def undo(self) -> Telling:
        """Let the messages be offered again."""
        return Took(self.number, handed=False)


class Took(Telling, frozen=True):
    """The agent was handed the messages of a Check, or (`handed` is false) gave up before."""

    effect = Effect.PHASE
    number: int
    handed: bool = True


class Ask(Request[bool | str], frozen=True):
    """Ask a person."""

    effect = Effect.QUESTION
    text: str
    choices: Annotated[tuple[str, ...], msgspec.Meta(max_length=CHOICES)] | None = None
    seconds: float | None = None

    def checked(self) -> Self:
        """Return the question with choices that differ."""
        return replace(
            self,
            text=text_of(self.text, "the question", QUESTION_BYTES),
            choices=None if self.choices is None else _choices(self.choices),
            seconds=seconds_of(self.seconds, "timeout", None),
        )


class Delegate(Request[Child], frozen=True):
    """Hand work to another agent."""

    effect = Effect.CHILD
    agent: str
    text: str
    deadline: float | None = None
    detached: bool = False
    announce: Announce | None = None

    def checked(self) -> Self:
        """Return the verb with a name, a text and a deadline."""
        return replace(
            self,
            text=text_of(self.text, "the message"),
            deadline=seconds_of(self.deadline, "timeout", None),
            announce=announce_of(self.announce, detached=self.detached),
            agent=name_of(self.agent, "agent"),
        )


class TakeHold(Request[Hold], frozen=True):
    """Take a hold; `Release` with the same number frees it."""

    effect = Effect.HOLD
    number: int
    name: str

    def checked(self) -> Self:
        """Return the verb with a name."""
        return replace(self, name=name_of(self.name, "hold"))

    def undo(self) -> Telling:
        """Free the hold."""
        return Release(self.number)


class Release(Telling, frozen=True):
    """Free a hold."""

    number: int


# Processes


class StartProcess(Request[int | None], frozen=True):
    """Start a process under a number; the answer is its pid. Arguments and environment are bytes: not all are UTF-8."""

    effect = Effect.SPAWN
    number: int
    order: SpawnOrder
    argv: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=ARGUMENTS)]
    env: Annotated[dict[bytes, bytes | None], msgspec.Meta(max_length=ARGUMENTS)]

    @classmethod
    def of(cls, number: int, order: SpawnOrder) -> Self:
        """Return the verb that starts what an order says."""
        env = {os.fsencode(name): None if value is None else os.fsencode(value) for name, value in order.env.items()}
        return cls(number, replace(order, argv=(), env={}), tuple(map(os.fsencode, order.argv)), env)

    @property
    def whole(self) -> SpawnOrder:
        """The order with its arguments and environment."""
        env = {os.fsdecode(name): None if value is None else os.fsdecode(value) for name, value in self.env.items()}
        return replace(self.order, argv=tuple(map(os.fsdecode, self.argv)), env=env)

    def checked(self) -> Self:
        """Return the verb, or raise what is wrong with its order."""
        if self.order.inherit:
            raise BadInput("a process of a host cannot have control's own descriptors")
        return type(self).of(self.number, self.whole.checked())

    def undo(self) -> Telling:
        """End the process."""
        return EndProcess(self.number)


class WaitProcess(Request[Finished], frozen=True):
    """Wait for a process, and return how it ended."""

    effect = Effect.RESULT
    number: int


class ReadLine(Request[bytes | None], frozen=True):
    """Return the next line of a process, None at the end."""

    effect = Effect.RESULT
    number: int


class ReadOutput(Request[str], frozen=True):
    """Return what a process has written so far."""

    number: int


class StopProcess(Request[None], frozen=True):
    """End a process; the answer comes when it was seen gone. No end of a process is refused."""

    number: int


class EndProcess(Telling, frozen=True):
    """End a process, without waiting."""

    number: int


class ForgetProcess(Telling, frozen=True):
    """Ask about a process no more: the agent has dropped it."""

    number: int


# Tools


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """One tool call of a Record. Its number is higher than that of every call before it."""

    number: int
    name: str
    arguments: Json
    asks: bool = False
    grace: float = 0.0


class Record(Telling, frozen=True):
    """Tool calls are about to be made."""

    effect = Effect.TOOL
    calls: Annotated[tuple[Wanted, ...], msgspec.Meta(max_length=OPEN_CALLS)]

    def checked(self) -> Self:
        """Return the verb with names, graces within their bound, and arguments that are JSON."""
        return replace(self, calls=tuple(map(_wanted, self.calls)))


class Permit(Request[None], frozen=True):
    """Wait until a recorded call may begin."""

    effect = Effect.TOOL
    call: CallId


class Finish(Telling, frozen=True):
    """A permitted call has ended, with this result or error."""

    effect = Effect.RESULT
    call: CallId
    state: ToolState
    result: Json | None = None
    error: str | None = None

    def checked(self) -> Self:
        """Return the verb with a result that is JSON and an error of bounded length."""
        result = None if self.result is None else _json(self.result)
        return replace(self, result=result, error=None if self.error is None else self.error[:ERROR_CHARACTERS])


class GiveUp(Telling, frozen=True):
    """The agent no longer waits for a call."""

    call: CallId


class EndBatch(Telling, frozen=True):
    """The agent goes on with the results of a batch."""

    effect = Effect.RESULT


TELLINGS: tuple[type[Telling], ...] = tuple(Telling.__subclasses__())
REQUESTS: tuple[type[Request[Any]], ...] = tuple(Request.__subclasses__())


def _choices(choices: object) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not 1 <= len(choices) <= CHOICES:
        raise BadInput(f"choices= takes 1 to {CHOICES} different texts, not {choices!r:.40}")
    offered = tuple(text_of(choice, "a choice", QUESTION_BYTES) for choice in choices)
    if len(set(offered)) != len(offered):
        raise BadInput(f"choices= takes 1 to {CHOICES} different texts, not {choices!r:.40}")
    return offered


def _wanted(call: Wanted) -> Wanted:
    grace = min(seconds_of(call.grace, "grace", None) or 0.0, GRACE_SECONDS)
    return replace(call, name=name_of(call.name, "a tool's name"), arguments=_json(call.arguments), grace=grace)


def _json(text: Json) -> Json:
    """Return the text, or raise BadInput if it is not JSON; its values are not built."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        raise BadInput("arguments and results of tools are JSON") from None
    return text
