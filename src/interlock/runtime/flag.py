"""A flag that is set once and waited for. Every run has several, so a flag costs as little as it can.

`asyncio.Event` makes a queue of waiters although most flags of a run are set before a task waits for them.
"""

import asyncio
from typing import Protocol


class Happening(Protocol):
    """Anything that happens once: a Flag, or an event of the loop."""

    def is_set(self) -> bool:
        """Return whether it has happened."""
        ...

    async def wait(self) -> object:
        """Wait until it happens."""
        ...


class Flag:
    """Set once, by code of one loop; waiters wake in the order in which they came."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag, and wake every task that waits for it."""
        self._set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the flag is set."""
        if not self._set:
            await self._wait(asyncio.get_running_loop().create_future())

    async def within(self, seconds: float) -> bool:
        """Wait until the flag is set, at most so many seconds; return whether it is. Cheaper than a cancel scope."""
        if not self._set:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            timer = loop.call_later(seconds, _release, waiter)
            try:
                await self._wait(waiter)
            finally:
                timer.cancel()
        return self._set

    async def _wait(self, waiter: asyncio.Future[None]) -> None:
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            # A waiter that leaves is forgotten; otherwise a flag that is never set would hold every one of them.
            if self._waiters is not None:
                self._waiters.remove(waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
