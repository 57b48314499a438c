"""The agent for our own client: the first word of a message says what it does."""

import asyncio

from interlock import Message, Run

FOREVER_SECONDS = 600.0


def look_up(word: str) -> str:
    """Find a word."""
    return f"found {word}"


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message says."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "count":  # a given count of numbers, a few milliseconds apart
            for number in range(int(rest)):
                await run.say(f"{number} ")
                await asyncio.sleep(0.004)
        case "flood":  # a given count of pieces as fast as it can, then silence
            for number in range(int(rest)):
                await run.say(f"{number} ")
            await run.post("that was the flood")
            await asyncio.sleep(FOREVER_SECONDS)
        case "hang":
            await run.say(rest or "begun")
            await asyncio.sleep(FOREVER_SECONDS)
        case "fail":
            raise RuntimeError("the kettle is empty")
        case "use":
            await run.progress("half", done=1, total=2)
            return str(await run.call(look_up, word=rest))
        # Repeat the progress until a steered message says go on, so that a late watcher sees it as well.
        case "work":
            while not await run.check():
                await run.progress("half", done=1, total=2)
                await asyncio.sleep(0.02)
            return str(await run.call(look_up, word=rest))
        case "spawn":
            await run.spawn("sleep", "600")
        case "ask":
            return f"answered {await run.ask('May I?')}"
        case "choose":
            return f"chosen {await run.ask('Which?', choices=['red', 'yes'])}"
        case "paint":
            await run.say("\x1b[31mred\x1b[0m\a\n")
            return "second\x07 part"
        case _:
            return message.text
    return None
