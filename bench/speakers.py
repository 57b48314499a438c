"""The agent that `bench.gateway` serves, in hosts and inline: the first word of a message says what it does.

`MARK` stands once in every delta: a client that counts it in what a connection receives has counted deltas, however
they were joined.
"""

import asyncio
import random
import time

import interlock
from interlock import Message, Run

MARK = "words^"
TEXT = f"a few {MARK}"
LATE_SECONDS = 0.05  # so much delay is made up for; a longer one, on a busy machine, is not


async def agent(run: Run, message: Message) -> str | None:
    """Do `nothing`, `where`, `flood [BYTES]`, `park WORD`, `speak PER_SECOND SECONDS` or `stream DELTAS SECONDS`."""
    what, *given = message.text.split()
    if what == "where":  # the package that the agent's process has loaded
        return interlock.__file__
    if what == "flood":
        text = TEXT.rjust(int(given[0])) if given else TEXT
        while True:
            await run.say(text)
    if what == "park":
        await run.say(given[0])
        await asyncio.Event().wait()
    if what == "speak":
        pace, end = 1 / float(given[0]), time.monotonic() + float(given[1])
        due = time.monotonic() + pace * random.random()  # not all at the same instant
        while (now := time.monotonic()) < end:
            await run.say(TEXT)
            due = max(due + pace, now - LATE_SECONDS)
            if due > now:
                await asyncio.sleep(due - now)
    if what == "stream":
        for _ in range(int(given[0])):
            await run.say(TEXT)
            await asyncio.sleep(float(given[1]))
    return None
