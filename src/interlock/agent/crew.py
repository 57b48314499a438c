"""Tasks that control owns: the work goes on although its caller is cancelled or gone.

They are root tasks: no cancel scope of a caller encloses them, and they run in control's own context.
"""

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

log = logging.getLogger("interlock")


class Crew:
    """The tasks of one control."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._cut = False
        # A dict, not a set: the order of a set depends on addresses, and a seed would not replay.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T] | None:
        """Start a root task; return None if the crew was cut."""
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
        """The tasks that are not done."""
        return list(self._tasks)

    async def wait(self, seconds: float) -> None:
        """Wait for every task, at most so many seconds."""
        with anyio.move_on_after(seconds):
            while self._tasks:
                await asyncio.wait(list(self._tasks))

    def cut(self) -> None:
        """Cancel the tasks that are left, and start no more."""
        self._cut = True
        for task in list(self._tasks):
            # A task may wait for something of an agent that raises when it is cancelled; the others are cut all the
            # same.
            try:
                task.cancel()
            except Exception:
                log.exception("a task of control could not be cut: %s", task.get_name())
