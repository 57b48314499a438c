"""Agents that tests serve: the first word of a message says what the agent does."""

import asyncio
import os
import signal

from interlock import Message, Run, Stale

FOREVER_SECONDS = 600.0


async def look_up(word: str) -> str:
    """Return at once."""
    return f"found {word}"


async def _lasts() -> None:
    await asyncio.sleep(FOREVER_SECONDS)


async def helper(run: Run, message: Message) -> str:
    """Say which agent this is."""
    return f"helper: {message.text}, {message.instructions}"


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message says."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "talk":  # talks for ever, with everything an agent does
            return await _talk(run)
        case "deaf":
            return await _deaf(run)
        case "count":
            for number in range(int(rest)):
                await run.say(f"{number} ")
            return None
        case "fill":  # like count, a hundred numbers at a time
            for number in range(0, int(rest), 100):
                await run.say("".join(f"{each} " for each in range(number, number + 100)))
            return None
        case "told":  # returns the message's instructions
            return f"{message.instructions}"
        case "more":  # returns more than it streams
            await run.say("Hello")
            return "Hello world, and more."
        case "else":  # returns something else than it streams
            await run.say("Hello")
            return "Something else."
        case "parts":  # replies in parts, streamed and whole
            await run.say("one")
            await run.post("two")
            await run.say("thr")
            await run.call(look_up, word="kettle")
            await run.say("fo")
            return "four"
        case "detach":  # detaches a process and goes on
            await run.spawn("sleep", "600", detached=True)
            await run.say("detached ")
            await asyncio.sleep(FOREVER_SECONDS)
        case "call":  # calls a long tool, and another after it
            await run.batch([(_lasts, {}), (_lasts, {})])
        case "fail":
            await run.say("so far ")
            raise RuntimeError("the kettle is empty")
        case "ask":
            return "allowed" if await run.ask(rest or "May I?") else "denied"
        case "delegate":
            return (await run.delegate("agent", rest)).text
        case "leave":  # leaves a detached child, announced as the next word says
            how, _, text = rest.partition(" ")
            await run.delegate("agent", text, detached=True, announce="note" if how == "note" else "turn")
            return "left"
        case "release":  # leaves a detached child unannounced, and completes
            await run.delegate("agent", rest, detached=True, announce=None)
            return "released"
        case "die":  # kills its own process: on the host driver, a crash of the agent's process
            await run.say("so far ")
            os.kill(os.getpid(), signal.SIGKILL)
        case "listen":  # says again what is steered to it
            await run.say("yes? ")
            while True:
                for part in await run.check():
                    await run.say(part.text)
                await asyncio.sleep(0.005)
        case "sleep":
            async with run.phase("provider"):
                await asyncio.sleep(FOREVER_SECONDS)
        case _:
            return message.text
    return None


async def _talk(run: Run) -> str:
    await run.typing(True)
    await run.call(look_up, word="kettle")
    await run.spawn("sleep", "600", background=True)
    number = 0
    while True:
        number += 1
        await run.say(f"word{number} ")
        if number % 50 == 0:
            await asyncio.sleep(0.002)
        if number % 400 == 0:
            await run.progress(f"{number} words")


async def _deaf(run: Run) -> str:
    while True:
        try:
            await run.say("and another thing, ")
            await asyncio.sleep(0.001)
        except (asyncio.CancelledError, Stale):
            continue
