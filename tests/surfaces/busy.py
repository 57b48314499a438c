"""An agent that is busy in every way at once, for tests in which others try to take its session from the owner."""

import asyncio

from interlock import Message, Run

FOREVER_SECONDS = 600.0


async def agent(run: Run, message: Message) -> str | None:
    """Do what the first word says."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "busy":  # text, a process, and a question nobody has answered
            await run.say("begun")
            await run.spawn("sleep", str(int(FOREVER_SECONDS)), background=True)
            return "allowed" if await run.ask("may I?") else "denied"
        case "sleep":
            await run.say("begun")
            await asyncio.sleep(FOREVER_SECONDS)
        case "stream":
            for at in range(int(FOREVER_SECONDS / 0.01)):
                await run.say(f" {at}")
                await asyncio.sleep(0.01)
        case "delegate":
            await run.say("begun")
            return (await run.delegate("agent", rest)).text
        case _:
            return message.text
    return None
