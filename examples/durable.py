"""Durable: a server is killed in the middle of a tool call. The next one says how every run ended."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile

from interlock import Message, Run, events, open_control


async def book(city: str) -> None:  # an effect that must not happen twice
    await asyncio.sleep(60)


async def assistant(run: Run, message: Message) -> str:
    if message.text.startswith("Book"):
        await run.say("Booking.")
        await run.call(book, city="Oslo")
    return f"an answer to {message.text!r}"


async def killed(store: str) -> None:
    """Serve two messages; die once the tool of the first has begun."""
    async with open_control(assistant, store=store) as control:
        sent = await control.send("alice", "Book Oslo", key="k1")
        await control.send("alice", "Is it warm?", strategy="queue")
        async for event in control.watch(run=sent.run_id):
            if isinstance(event.data, events.Tool) and event.data.state == "running":
                os.kill(os.getpid(), signal.SIGKILL)


async def started_again(store: str) -> None:
    async with open_control(assistant, store=store) as control:  # settles the runs of the killed server first
        for run in await control.runs("alice"):
            outcome = await control.wait(run.id, drained=True)
            print(f"{run.id} {outcome.ending}: {outcome.text!r}")
        print("key k1 is", (await control.send("alice", "Book Oslo", key="k1")).run_id)
        print(*(f"  {e.role}: {e.text or e.tool or e.ending}" for e in await control.history("alice")), sep="\n")


if __name__ == "__main__" and len(sys.argv) > 1:
    asyncio.run(killed(sys.argv[1]))
elif __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, __file__, f"sqlite:///{place}/data"], check=False)
        asyncio.run(started_again(f"sqlite:///{place}/data"))
