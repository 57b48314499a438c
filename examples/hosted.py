"""Hosts: an agent is stuck in a C call that never yields. Others are served, and a stop ends the agent at once."""

import asyncio
import re

from interlock import Control, Message, Run, events, open_control

turns = 0  # turns of one session: its process keeps this variable from turn to turn


async def assistant(run: Run, message: Message) -> str:
    """Run in a process of this session's own; get stuck if asked to."""
    global turns
    turns += 1
    for number in range(20):
        await run.say(f"{number} ")
        await asyncio.sleep(0.01)
        if message.text == "get stuck" and number == 2:
            re.match("(a+)+$", "a" * 60 + "b")  # takes years, and holds Python's one lock all the while
    return f"turn {turns} of {message.session}"


async def reply(control: Control, session: str, text: str) -> str:
    """Send a message and wait for the reply's last block."""
    sent = await control.send(session, text)
    return (await control.wait(sent.run_id)).text.rpartition("\n")[2]


async def main() -> None:
    """Stop the stuck agent, while another session is served."""
    async with open_control("hosted:assistant", driver="host") as control:  # a name, because a host imports the agent
        print("alice:  ", await reply(control, "alice", "hello"))
        stuck = await control.send("alice", "get stuck")
        async for event in control.watch(run=stuck.run_id):
            if isinstance(event.data, events.Delta) and event.data.text == "2 ":
                break
        print("bob:    ", await reply(control, "bob", "hello"), "(meanwhile)")
        receipt = await control.stop(session="alice")
        print(f"stop:    {receipt.cause}, public {receipt.fence_to_end_ms:.2f} ms after the fence")
        await control.wait(stuck.run_id, drained=True)
        receipt = await control.receipt(stuck.run_id)
        print(f"receipt: host {receipt.host}, drain {receipt.drain} after {receipt.fence_to_drained_ms:.0f} ms")
        print("alice:  ", await reply(control, "alice", "hello"), "(a fresh process)")
        print("bob:    ", await reply(control, "bob", "hello"), "(still his own)")


if __name__ == "__main__":
    asyncio.run(main())
