"""Processes: an agent starts programs, one of them a daemon. The run is stopped, and none of them writes on."""

import asyncio
import tempfile
from pathlib import Path

from interlock import Message, Run, events, open_control

WRITE = "while :; do echo tick >> diary; sleep 0.02; done"
DAEMON = f"setsid sh -c '{WRITE}' & trap '' TERM; echo daemon started; wait"  # own session; the shell ignores TERM
PLACE = tempfile.TemporaryDirectory()


def size() -> int:
    return sum(path.stat().st_size for path in Path(PLACE.name).iterdir())


async def assistant(run: Run, message: Message) -> str:
    """Run a program to its end, one for too long, and one that leaves a daemon."""
    done = await run.spawn("sh", "-c", "echo hello; exit 3")
    await run.post(f"it exited with {done.status} and wrote {done.output!r}")
    slow = await run.spawn("sleep", "30", timeout=0.1)
    await run.post(f"too slow: {slow.timed_out}")
    async with run.spawn("sh", "-c", DAEMON, cwd=PLACE.name) as process:
        async for line in process:
            await run.post(line)
    return "never said"


async def main() -> None:
    """Stop the run once the daemon has written."""
    async with open_control(assistant) as control:
        sent = await control.send("alice", "work")
        async for event in control.watch(run=sent.run_id):
            if isinstance(event.data, events.Block):
                print("agent:", event.data.text)
                if event.data.text == "daemon started":
                    break
        while not size():
            await asyncio.sleep(0.01)
        await control.stop(session="alice")
        await control.wait(sent.run_id, drained=True)  # until the kernel has said that nothing is left
        before, receipt = size(), await control.receipt(sent.run_id)
        print(f"receipt: {receipt.processes.ended} processes ended, drain {receipt.drain}")
        await asyncio.sleep(0.2)
        print(f"the diary has grown by {size() - before} bytes since then")


if __name__ == "__main__":
    asyncio.run(main())
