"""An assistant of pydantic-ai's, with a model of its own that answers at once: the agent of a real host, without a net.

`bench.hosts` takes a host's weight with it, and the time to a turn's first delta.
"""

import asyncio
from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Message, Run


async def _words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    for word in ("a ", "few ", "words"):
        yield word


_model: Agent[None, str] = Agent(FunctionModel(stream_function=_words))


async def assistant(run: Run, message: Message) -> str | None:
    """Stream an answer; for `pace N SECONDS` go on with that many deltas and pauses."""
    async with run.phase("provider"), _model.run_stream(message.text) as reply:
        async for delta in reply.stream_text(delta=True, debounce_by=None):
            await run.say(delta)
    match message.text.split():
        case "pace", count, seconds:
            for _ in range(int(count)):
                await run.say("and more ")
                await asyncio.sleep(float(seconds))
    return None


async def _warm() -> None:
    async with _model.run_stream("hello") as reply:
        async for _ in reply.stream_text(delta=True, debounce_by=None):
            pass


try:
    asyncio.get_running_loop()
# Without a running loop this is a zygote, for example: do here, once for all hosts, what pydantic-ai does once in a
# process.
except RuntimeError:
    asyncio.run(_warm())

# Hosts call this in each spare.
assistant.warm = _warm  # type: ignore[attr-defined]
