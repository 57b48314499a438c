"""Three more things a message can do to a busy session: steer its run, be collected, or roll its turn back."""

import asyncio

from interlock import Control, Message, Run, Settings, open_control


async def book(city: str) -> str:
    """Book a trip; the effect of this tool remains, even if its turn is rolled back."""
    return f"booked {city}"


async def assistant(run: Run, message: Message) -> str:
    """Work in steps, and look between them for what the user adds."""
    if (last := message.previous) is not None and last.hidden:
        return f"forgotten, but {', '.join(last.tools)} was begun; the model sees {len(await run.history())} entry"
    if len(message.parts) > 1:
        return f"one answer to {[part.text for part in message.parts]}"
    told = [message.text, await run.call(book, city=message.text)]
    for _ in range(20):
        await run.progress("searching")
        await asyncio.sleep(0.02)
        told += [added.text for added in await run.check()]
    return f"done with {' and '.join(told)}"


async def begin(control: Control, session: str, text: str) -> None:
    """Send a message and wait until its run is at work."""
    async for event in control.watch(run=(await control.send(session, text)).run_id):
        if event.kind == "progress":
            return


async def main() -> None:
    """Steer, collect, roll back."""
    async with open_control(assistant, settings=Settings(collect_seconds=0.1)) as control:
        await begin(control, "a", "Oslo")
        added = await control.send("a", "by train", strategy="steer")
        print(f"steer:    {(await control.wait(added.run_id)).text}")  # waits for the run that absorbed the message

        sent = [await control.send("b", text, strategy="collect") for text in ("Bergen", "no, Bodø", "in May")]
        print(f"collect:  {(await control.wait(sent[0].run_id)).text}; {len({one.run_id for one in sent})} run")

        await begin(control, "c", "Rome")
        again = await control.send("c", "forget that", strategy="rollback")
        print(f"rollback: {(await control.wait(again.run_id)).text}")


if __name__ == "__main__":
    asyncio.run(main())
