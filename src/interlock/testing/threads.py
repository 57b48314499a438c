"""The thread port's twin. A virtual clock has no threads, so a thread's work happens at a later instant of the loop."""

import asyncio
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import Any

from interlock.agent.bodies import ThreadBody
from interlock.agent.pools import Nameless

DELAYS_SECONDS = (0.0, 0.001, 0.05, 3.0, 30.0)


class VirtualThreads:
    """Runs a synchronous tool on the loop, after a delay that the seed picks."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def start(self, work: Callable[[], Any], body: ThreadBody) -> None:
        """Do the work later, whether or not a caller still waits for it."""
        asyncio.get_running_loop().call_later(self._random.choice(DELAYS_SECONDS), self._work, work, body)

    def others(self) -> frozenset[Thread | Nameless]:
        """Return no threads: those of the test process are no part of the scenario."""
        return frozenset()

    @staticmethod
    def _work(work: Callable[[], Any], body: ThreadBody) -> None:
        try:
            body.finish(work() if body.begin() else None, None)
        except Exception as error:
            body.finish(None, error)
