"""Helpers for tests of questions: an agent that asks, and functions that tell how a question ended."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from interlock import Control, InterlockError, Message, QuestionState, Run, tool
from interlock.core.events import QuestionData

from .scene import log_of

MANY = range(30)


VOID = "is void: its run is over, and nothing was done"


OPEN, ANSWERED, EXPIRED = QuestionState.OPEN, QuestionState.ANSWERED, QuestionState.EXPIRED


async def asks(run: Run, message: Message) -> str:
    """Ask one question and answer with its answer."""
    return f"answer: {await run.ask('Deploy?')}"


async def question_of(control: Control, run: str, number: int = 0) -> QuestionData:
    """Wait for an open question of a run and return it: the first, or the one with this number."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if isinstance(event.data, QuestionData) and event.data.state is OPEN:
                if number == 0:
                    return event.data
                number -= 1
    raise AssertionError(f"run {run} ended without asking")


async def tried(work: Awaitable[Any]) -> Any:
    """Return the result of a call, or the error that refuses it."""
    try:
        return await work
    except InterlockError as error:
        return error


async def asked_states(control: Control, session: str = "s") -> list[str]:
    """Return the states of a session's questions, in the order in which watchers were told."""
    return [event.data.state.value for event in await log_of(control, session) if isinstance(event.data, QuestionData)]


def guarded(ran: list[str]) -> Callable[..., Coroutine[Any, Any, str]]:
    """Return a tool that a person must allow."""

    @tool(approval="ask")
    async def deploy(target: str = "production") -> str:
        ran.append(target)
        return f"deployed to {target}"

    return deploy
