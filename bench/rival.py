"""The OpenAI Agents SDK with a model in this process: no network, no tracing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, RunResultStreaming, set_tracing_disabled
from openai.types.responses import ResponseTextDeltaEvent

set_tracing_disabled(True)

DELTA = ResponseTextDeltaEvent(
    content_index=0,
    delta="word ",
    item_id="item",
    logprobs=[],
    output_index=0,
    sequence_number=0,
    type="response.output_text.delta",
)


class OneWord(Model):
    """Says one word, then waits for ever, like a slow model."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        raise NotImplementedError("only streams are measured")

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield DELTA
        await asyncio.Event().wait()


class Rival:
    """A conversation: a run at a time, each cancelled before the next."""

    def __init__(self) -> None:
        self._agent = Agent(name="rival", model=OneWord())
        self._run: RunResultStreaming | None = None
        self._events: AsyncIterator[Any] | None = None

    async def turn(self) -> None:
        """Cancel the current run, start another, and return at its first word."""
        if self._run is not None:
            self._run.cancel()
        self._run = Runner.run_streamed(self._agent, "hello")
        self._events = self._run.stream_events()
        async for event in self._events:
            if event.type == "raw_response_event" and event.data.type == DELTA.type:
                return

    async def close(self) -> None:
        """Cancel the last run."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.sleep(0.01)
