"""An agent for hosts that does what its message names, and a control that serves it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from interlock import Control, Grade, Message, Run, open_control
from interlock.agent.bounds import OPEN_CALLS
from interlock.agent.verbs import ReadHistory
from interlock.processes import kernel
from interlock.processes.base import Confinement

from .test_hogs import PATIENT

BOUND_SECONDS = 60.0
REQUESTS = 4_000  # of `interlock.hosts.turn`, which no host loads


async def waits() -> None:
    """Sleep, as a slow tool."""
    await asyncio.sleep(60)


async def first() -> str:
    """Return this tool's name."""
    return "first"


async def second() -> str:
    """Return this tool's name."""
    return "second"


class Cycle:
    """An object in a reference cycle, whose finalizer acts: only the collector runs it."""

    def __init__(self, path: str) -> None:
        self.me = self
        self.path = path

    def __del__(self) -> None:
        Path(self.path).write_text("late")


async def agent(run: Run, message: Message) -> str:
    """Do what the message names."""
    if message.text == "interrupts":
        raise KeyboardInterrupt
    if message.text == "answers":
        return "here"
    if message.text.startswith("cycles "):
        Cycle(message.text.removeprefix("cycles "))
        await run.say("made")
        await asyncio.sleep(60)
    if message.text == "leaves":
        child = subprocess.Popen(["sleep", "60"])
        await run.say(str(child.pid))
        return ""
    if message.text == "lingers":
        await run.spawn("sleep", "60", background=True)
        await run.say("spawned")
        time.sleep(60)
    if message.text == "delegates":
        return (await run.delegate("other", "leaves")).text
    if message.text == "reads":
        async with run.spawn("sleep", "60") as process:
            await run.say("reading")
            await run.say(process.output)
            await asyncio.sleep(60)
    if message.text == "gives up":
        for number in range(REQUESTS + 100):
            # The host sends the request and its cancel in one step.
            asked = run._port.ask(ReadHistory())
            asked.send(None)
            with suppress(asyncio.CancelledError):
                asked.throw(asyncio.CancelledError())
            if not number % 100:
                await run.history()
        return "done"
    waiting = [asyncio.create_task(run.call(waits)) for _ in range(OPEN_CALLS)]
    await asyncio.sleep(0.2)
    refused = ""
    try:
        await run.call(first)
    except Exception as error:
        refused = type(error).__name__
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    results = await run.batch([(first, {}), (second, {})])
    return " ".join([refused, *(str(result.value) for result in results)])


@asynccontextmanager
async def opened(grade: Grade | None = None) -> AsyncIterator[Control]:
    """Open a control with these agents in hosts."""
    name = f"{__name__}:agent"
    confinement = Confinement(grade=grade)
    options = {"driver": "host", "confinement": confinement, "settings": PATIENT}
    async with asyncio.timeout(2 * BOUND_SECONDS):
        async with open_control(name, agents={"other": name}, **options) as control:
            yield control


def lives(pid: int) -> bool:
    """Return whether a process is there and not dead."""
    status = kernel.stat(pid)
    return status is not None and status[0] not in "ZX"
