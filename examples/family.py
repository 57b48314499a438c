"""A run hands work to other agents. They fall with it, and its receipt names them; a detached one stays."""

import asyncio

from interlock import Control, Message, Run, events, open_control


async def lead(run: Run, message: Message) -> str:
    """Delegate with a deadline, leave one child detached, then wait for the others."""
    quick = await run.delegate("worker", "guess", timeout=0.1)  # at its deadline the child ends; this run goes on
    await run.post(f"the guess: {quick.outcome.ending}, it had said {quick.text!r}")
    await run.delegate("worker", "watch the site", detached=True)
    done = await run.delegate("worker", "search")
    return f"the search: {done.text}"


async def worker(run: Run, message: Message) -> str:
    """Work for longer than anyone here will wait, with a hold that no other run may have meanwhile."""
    async with run.hold(f"folder for {message.text}"):
        await run.say(f"{message.text} ... ")
        await asyncio.sleep(30)
    return "found"


async def show(control: Control) -> None:
    """Print the session's runs, children below their parents."""
    for run in await control.runs("alice", tree=True):
        name = f"{run.agent or 'lead'}{' (detached)' if run.detached else ''}"
        print(f"  {'  ' * run.depth}{name}: {run.outcome.ending if run.outcome else 'at work'}")


async def main() -> None:
    """Stop the parent, then the session."""
    async with open_control(lead, agents={"worker": worker}) as control:
        sent, begun = await control.send("alice", "find it"), 0
        async for event in control.watch(run=sent.run_id):
            begun += isinstance(event.data, events.ChildData) and event.data.outcome is None
            if begun == 3:
                break
        await show(control)
        receipt = await control.stop(run=sent.run_id)
        print("stopped the run:", ", ".join(f"{run.id} {run.outcome.ending}" for run in receipt.runs))
        await show(control)
        receipt = await control.stop(session="alice")
        print("stopped the session:", ", ".join(f"{run.id} {run.outcome.ending}" for run in receipt.runs))


if __name__ == "__main__":
    asyncio.run(main())
