"""An agent is stopped before its tool call. The agent ignores the cancel and calls the tool all the same: refused."""

import asyncio

from interlock import Message, Run, open_control

REPLY = "Certainly. I will write to all your customers now."


async def send_mail(to: str) -> str:
    """Send the mail that must not be sent."""
    print(f"MAIL SENT to {to}")
    return "sent"


async def assistant(run: Run, message: Message) -> str:
    """Announce a mail, word by word, then send it."""
    try:
        for word in REPLY.split():
            await run.say(word + " ")
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        pass  # a bad habit, and a common one
    await run.call(send_mail, to="all customers")
    return "Done."


async def main() -> None:
    """Send a message, stop it, and read the receipt."""
    async with open_control(assistant) as control:
        sent = await control.send("alice", "Write to customer 7", by="alice")
        async for event in control.watch(run=sent.run_id):
            if event.kind == "delta":
                break  # the agent has said its first word
        await control.stop(session="alice", by="alice")

        outcome = await control.wait(sent.run_id, drained=True)
        receipt = await control.receipt(sent.run_id)
        print(f"ending:  {outcome.ending}, by {outcome.by}")
        print(f"said:    {outcome.text!r}")
        print(f"refused: {[f'{count} {effect}' for effect, count in receipt.refused.items()]}")
        print(f"drain:   {receipt.drain}, {receipt.fence_to_end_ms:.2f} ms from the fence to the public end")


if __name__ == "__main__":
    asyncio.run(main())
