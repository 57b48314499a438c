"""Every run that times out names its phase, on every driver, also where its agent named none."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Ending, Outcome, open_control
from interlock.core.names import RunId
from interlock.core.projection import agent_wait

ROOT = str(Path(__file__).resolve().parents[2])
AGENT = "tests.contracts.lingering:agent"
DEADLINE = 3600.0  # the tests put the clock forward to it, so no machine is too slow
BOUND_SECONDS = 60.0
POLL_SECONDS = 0.01

if ROOT not in sys.path:  # `pytest` alone does not add it; a host gets this path
    sys.path.insert(0, ROOT)

POINTS = {
    "silent": "start",
    "spoken": "agent",
    "phase": "research",
    "phase_left": "agent",
    "phase_outside": "outer",
    "in_tool": "tool",
    "tool_in_phase": "tool",
    "phase_in_tool": "upload",
    "tool_left": "agent",
    "asks": "approval",
    "asks_for_tool": "approval",
    "holds": "hold",  # another run has the hold
    "delegates": "child",
}


@asynccontextmanager
async def opened(driver: str, **options: Any) -> AsyncIterator[Control]:
    async with open_control(AGENT, agents={"child": AGENT}, driver=driver, **options) as control:
        yield control


async def comes_to(control: Control, run: str, phase: str) -> None:
    """Wait until a run has come to its point."""
    live = control._registry.runs[RunId(run)]
    async with asyncio.timeout(BOUND_SECONDS):
        while live.started_at is None or live.doing != phase:
            await asyncio.sleep(POLL_SECONDS)


def put_forward(seconds: float) -> None:
    """Put the loop's clock forward, by which control judges limits."""
    loop: Any = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


def told(outcome: Outcome) -> tuple[str | None, str | None]:
    assert outcome.ending is Ending.TIMED_OUT
    return outcome.phase, agent_wait(outcome).timeout_phase


@pytest.mark.parametrize("driver", ["inline", "host"])
def test_a_deadline_is_told_with_where_the_run_was(driver: str) -> None:
    """A timeout names the innermost: the agent's phase, a tool, a question, a hold, a child, or how far it came."""

    async def main() -> dict[str, Any]:
        found = {}
        async with opened(driver) as control:
            holder = await control.send("holder", "holds")
            await comes_to(control, holder.run_id, "agent")
            sent = {point: await control.send(point, point, deadline=DEADLINE) for point in POINTS}
            for point, phase in POINTS.items():
                await comes_to(control, sent[point].run_id, phase)
            put_forward(DEADLINE)
            for point in POINTS:
                found[point] = told(await control.wait(sent[point].run_id))
        return found

    published = {"start": "preflight"}
    assert asyncio.run(main()) == {point: (phase, published.get(phase, "provider")) for point, phase in POINTS.items()}


@pytest.mark.parametrize("driver", ["inline", "host"])
def test_limits_on_waiting_and_on_silence_have_words_of_their_own(driver: str) -> None:
    """A message that waited too long for the seat ends in `queue` and never began; a silent run ends in `idle`."""

    async def main() -> None:
        async with opened(driver, queue_limit=DEADLINE, idle_limit=2 * DEADLINE) as control:
            first = await control.send("s", "spoken")
            await comes_to(control, first.run_id, "agent")
            second = await control.send("s", "spoken", strategy="queue")
            put_forward(DEADLINE)
            outcome = await control.wait(second.run_id)
            assert told(outcome) == ("queue", "queue") and outcome.started_at is None
            put_forward(DEADLINE)
            assert told(await control.wait(first.run_id)) == ("idle", "provider")

    asyncio.run(main())
