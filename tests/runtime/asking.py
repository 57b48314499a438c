"""What tests of questions share: an agent that asks, and what became of a question."""

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
    """Ask, and say what came of it."""
    return f"answer: {await run.ask('Deploy?')}"


async def question_of(control: Control, run: str, number: int = 0) -> QuestionData:
    """Wait for a question of a run, the first unless another is wanted."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if isinstance(event.data, QuestionData) and event.data.state is OPEN:
                if number == 0:
                    return event.data
                number -= 1
    raise AssertionError(f"run {run} ended without asking")


async def tried(work: Awaitable[Any]) -> Any:
    """What a call returns, or the error it is refused with."""
    try:
        return await work
    except InterlockError as error:
        return error


async def asked_states(control: Control, session: str = "s") -> list[str]:
    """What watchers of a session were told of its questions."""
    return [event.data.state.value for event in await log_of(control, session) if isinstance(event.data, QuestionData)]


def guarded(ran: list[str]) -> Callable[..., Coroutine[Any, Any, str]]:
    """A tool that must be allowed first."""

    @tool(approval="ask")
    async def deploy(target: str = "production") -> str:
        ran.append(target)
        return f"deployed to {target}"

    return deploy
