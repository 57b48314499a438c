"""Agents for the tests of transport: the first word of a message says what the agent does."""

import asyncio
import contextlib
import sys

from interlock import Message, Run

FOREVER_SECONDS = 600.0
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message says."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "flood":  # as fast as it can, until a stop
            text = "x" * int(rest or 1000)
            while True:
                await run.say(text)
        case "flow":  # at a pace that a reader in the same loop can keep
            while True:
                await run.say(rest)
                await asyncio.sleep(0.003)
        case "burst":  # three MiB, with room for others
            for _ in range(1_500):
                await run.say("x" * 2_000)
                await asyncio.sleep(0)
        case "say":  # a given count of numbers
            for number in range(int(rest)):
                await run.say(f"{number} ")
        case "wait":
            await run.say("begun")
            await asyncio.sleep(FOREVER_SECONDS)
        case "deaf":
            await run.say("begun")
            while True:
                with contextlib.suppress(BaseException):
                    await asyncio.sleep(FOREVER_SECONDS)
        case "stubborn":  # a process that ignores TERM
            await run.say("begun")
            await run.spawn(sys.executable, "-c", STUBBORN)
        case _:
            return message.text
    return None
