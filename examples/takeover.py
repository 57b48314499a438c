"""Strategies: a new message to a busy session takes over, waits in the queue, or is refused."""

import asyncio

from interlock import Message, Rejected, Run, open_control


async def assistant(run: Run, message: Message) -> str:
    """Answer in a while; say how the turn before ended."""
    before = message.previous.ending if message.previous else "no turn"
    await run.say(f"[after {before}] ")
    await asyncio.sleep(0.15)
    return f"[after {before}] my answer to {message.text!r}"


async def main() -> None:
    """Send four messages, each with another strategy, while the first is at work."""
    async with open_control(assistant) as control:
        first = await control.send("alice", "one", by="alice")
        async for event in control.watch(run=first.run_id):
            if event.kind == "delta":
                break  # the first run has said its first word

        # interrupt, the default: the new message takes over
        second = await control.send("alice", "two", by="alice")
        print(f"two took over one: {second.superseded == first.run_id}")

        # queue: the message waits for the seat, and has no generation until then
        third = await control.send("alice", "three", by="alice", strategy="queue")
        print(f"three is {third.state}, generation {third.generation}")

        # reject: an error, and nothing has changed
        try:
            await control.send("alice", "four", by="alice", strategy="reject")
        except Rejected as refusal:
            print(f"four: {refusal}")

        # A shared session: bob may write, but not stop alice's run. His message queues, whatever its strategy says.
        await control.share("alice", with_="bob", by="alice")
        bob = await control.send("alice", "five", by="bob")
        print(f"bob's is {bob.state}")

        for sent in (first, second, third, bob):
            outcome = await control.wait(sent.run_id)
            print(f"{sent.run_id}: {outcome.ending:10} {outcome.text}")


if __name__ == "__main__":
    asyncio.run(main())
