"""Many processes at once, and an embedder whose loop and threads are busy."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading

from interlock import Ending, Message, Run
from interlock.processes.base import Grade

from .scene import opened, over
from .test_spawn import BOUND_SECONDS, play

MANY = 400


def test_a_full_executor_holds_nothing_up() -> None:
    """The first spawn and close() need no thread of the loop's pool, which the embedder may have filled."""
    release = threading.Event()

    async def agent(run: Run, message: Message) -> None:
        assert (await run.spawn("true")).ok

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        filled = loop.run_in_executor(None, release.wait, 3 * BOUND_SECONDS)
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                async with opened(agent) as control:
                    assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED
            assert not filled.done()
        finally:
            release.set()
            await filled

    play(main())


def test_many_spawns_at_once_all_succeed() -> None:
    """Requests that exceed a socket's buffer in one step wait for room instead of failing."""

    async def agent(run: Run, message: Message) -> None:
        came = await asyncio.gather(*(run.spawn("true") for _ in range(MANY)))
        assert [each.status for each in came] == [0] * MANY

    async def main() -> None:
        async with opened(agent, Grade.KEEPER) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())
