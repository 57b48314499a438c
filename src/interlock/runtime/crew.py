"""Tasks that control owns: whoever asked for the work may vanish, the work goes on.

They are root tasks: no cancel scope of a caller is above them, and their context is control's own.
"""

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

import anyio

log = logging.getLogger("interlock")


class Crew:
    """The tasks of one control."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._cut = False
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict, not a set: order must not depend on addresses

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None] | None:
        """Start a root task; once the crew was cut there are no more."""
        if self._cut:
            work.close()
            return None
        task = self._loop.create_task(work, name=name, context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of control failed: %s", task.get_name(), exc_info=error)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that are at work."""
        return list(self._tasks)

    async def wait(self, seconds: float) -> None:
        """Wait for every task, at most so long."""
        with anyio.move_on_after(seconds):
            while self._tasks:
                await asyncio.wait(list(self._tasks))

    def cut(self) -> None:
        """Cancel whatever is left."""
        self._cut = True
        for task in list(self._tasks):
            task.cancel()
