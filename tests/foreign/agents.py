"""The agent for the foreign client: the first word of a message says what it does, the rest is its input."""

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
        case "say":
            for at, word in enumerate(rest.split()):
                await run.say(f" {word}" if at else word)
        case "more":  # returns more than it streams
            await run.say("Hello")
            return "Hello world, and more."
        case "told":  # returns the message's instructions
            return f"{message.instructions}"
        case "sleep":
            await run.typing()
            await run.say(rest or "begun")
            async with run.phase("provider"):
                await asyncio.sleep(FOREVER_SECONDS)
        case "fail":
            await run.say("so far")
            raise RuntimeError("the kettle is empty")
        case "use":
            found = await run.call(look_up, word=rest)
            shown = await run.spawn("echo", rest)
            return f"{found}, {shown.output.strip()}"
        case "ask":
            return "allowed" if await run.ask(rest) else "denied"
        case "delegate":
            child = await run.delegate("agent", rest)
            return f"it said {child.text}"
        case _:
            return message.text
    return None
