"""The agents that `bench.hosts` serves, in hosts and inline: polite ones, and two kinds of hog.

A host finds its agents by name and weighs what their module imports, so this is a module of its own that imports next
to nothing.
"""

import asyncio
import ctypes
import time

from interlock import Message, Run, tool

BLOCK_SECONDS = 0.05
WORDS = "a few words "

_libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL during a call


async def polite(run: Run, message: Message) -> str | None:
    """Do what the message says: `hello`, `park`, `say N`, `pace N SECONDS`, `hog`, `c-hog`, `spin`, `tool`, `grace`."""
    what, *given = message.text.split()
    if what == "say":
        for _ in range(int(given[0])):
            await run.say(WORDS)
        return None
    if what == "pace":
        for _ in range(int(given[0])):
            await run.say(WORDS)
            await asyncio.sleep(float(given[1]))
        return None
    await run.say("here")
    await asyncio.sleep(0)  # sends the word before this agent blocks
    if what == "park":
        await asyncio.Event().wait()
    while what == "hog":  # blocks the loop for a moment, lets it go round once, and blocks again
        _spin(BLOCK_SECONDS)
        await asyncio.sleep(0)
    while what == "c-hog":
        _libc.usleep(int(BLOCK_SECONDS * 1e6))
        await asyncio.sleep(0)
    if what == "spin":
        _spin(float(given[0]))
    if what in ("tool", "grace"):
        await run.call(spin if what == "tool" else spin_with_grace, seconds=float(given[0]))
    return None


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@tool
def spin(seconds: float) -> None:
    """Burn a core."""
    _spin(seconds)


@tool(grace=0.3)
def spin_with_grace(seconds: float) -> None:
    """Burn a core, and ask for a moment to clean up first."""
    _spin(seconds)
