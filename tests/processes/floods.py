"""An agent that holds pipes when it is stopped; both drivers can import it. A message is `how place`."""

import asyncio
import os
import sys
import time
from pathlib import Path

from interlock import Message, Run

# Control takes so many bytes of unread lines; the rest stays in the pipe.
KEPT_BYTES = 1024 * 1024
AHEAD_BYTES = KEPT_BYTES + 48 * 1024
LINE = b"a line of some length\n"
LINES = {"terminal": (KEPT_BYTES + 2048) // (len(LINE) + 1)}  # a terminal holds little, and adds a carriage return
WRITER = f"""
import os, sys, time
rest = {LINE!r} * int(sys.argv[2])
while rest:
    rest = rest[os.write(1, rest):]
open(sys.argv[1], "w").close()
time.sleep(1000)
"""


async def agent(run: Run, message: Message) -> None:
    """Start a process that writes far ahead of its reader, in the way that the message names."""
    how, place = message.text.split(" ", 1)
    writer = (sys.executable, "-I", "-S", "-c", WRITER, place, str(LINES.get(how, AHEAD_BYTES // len(LINE))))
    reader = ("sh", "-c", '>"$0"; exec sleep 1000', place)  # reads nothing
    if how in ("lines", "terminal"):
        async with run.spawn(*writer, pty=how == "terminal") as process:
            async for _ in process:
                await asyncio.sleep(1000)
    elif how == "background":
        await run.spawn(*writer, background=True)
    elif how == "detached":
        await run.spawn(*writer, detached=True)
    elif how == "awaited":
        await run.spawn(*writer)
    elif how == "input":
        process = await run.spawn(*reader, input=b"x" * AHEAD_BYTES, background=True)
        await process.wait()
    else:
        await run.call(crunch, place=place)
    await asyncio.sleep(1000)


def crunch(place: str) -> None:
    """Print something, as a synchronous tool that runs in a worker."""
    Path(place).touch()
    os.write(1, b"x")  # a tool's output is not its answer
    time.sleep(1000)
