"""`agent.wait` over the wire: the same outcome at any time, no ending missed, nothing left of a waiter that goes."""

import asyncio
from pathlib import Path

from interlock import Message, Run

from .transport import QUIET, Serving, Wire, chat, ended, eventually, in_loop

RACES = 200


def test_a_wait_after_the_end(tmp_path: Path) -> None:
    """A wait after the end gets the same outcome at once, however late and however often; race 107."""

    async def main(served: Serving) -> None:
        async with await served.dial() as wire, await served.dial(caps=QUIET) as other:
            for text, key in (("hello", "k1"), ("wait", "k2")):
                run = (await chat(wire, text, key, key))["runId"]
                if text == "wait":
                    await wire.request("chat.abort", sessionKey=key)
                await wire.wait_for(ended(run))
                asked = [(each, name) for each in (wire, other) for name in (run, key)]
                told = [await each.request("agent.wait", runId=name, timeoutMs=0) for each, name in asked]
                assert all(each == told[0] for each in told)
                assert told[0]["status"] == ("ok" if text == "hello" else "error") or told[0]["stopReason"]
                assert told[0]["runId"] == run

    in_loop(main, tmp_path)


def test_a_wait_in_the_tick_of_the_end(tmp_path: Path) -> None:
    """Every waiter gets the same ending, whether the wait or the end came first; race 108."""
    gates: dict[str, asyncio.Event] = {}

    async def gated(run: Run, message: Message) -> str:
        await gates[message.text].wait()
        return "done"

    async def once(served: Serving, wire: Wire, number: int) -> None:
        gate = gates[f"{number}"] = asyncio.Event()
        run = (await chat(wire, f"{number}", f"k{number}", f"s{number}"))["runId"]
        loop = asyncio.get_running_loop()
        loop.call_later(number % 20 * 0.0001, gate.set)
        names = []
        for _ in range(3):
            names.append(await wire.ask("agent.wait", runId=run, timeoutMs=60_000))
            await asyncio.sleep(0.0005)
        told = [await wire.answer(name) for name in names]
        assert all(each == told[0] for each in told)
        assert told[0]["outcome"]["ending"] == "completed"

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            for begin in range(0, RACES, 8):
                await asyncio.gather(*(once(served, wire, begin + at) for at in range(8)))

    in_loop(main, tmp_path, gated)


def test_a_waiter_that_disconnects(tmp_path: Path) -> None:
    """The waits and watches of a lost connection end with it; the run goes on, and others hear its end; race 109."""

    async def main(served: Serving) -> None:
        async with await served.dial() as other:
            run = (await chat(other, "wait", "k"))["runId"]
            await other.wait_for(lambda event: event["event"] == "chat")
            tasks = len(asyncio.all_tasks())
            waiter = await served.dial(caps=QUIET)
            for _ in range(20):
                await waiter.ask("agent.wait", runId=run, timeoutMs=60_000)
                await waiter.ask("interlock.wait", run=run, drained=True)
            for number in range(20):
                await waiter.request("interlock.watch", watch=number, run=run)
                await waiter.until(lambda number=number: waiter.watched(number))  # nothing is left to write
            agents = await waiter.ask("agent", sessionKey="own", message="wait", idempotencyKey="own")
            accepted = await waiter.answer(agents)
            await other.wait_for(lambda e: e["event"] == "chat" and e["payload"]["runId"] == accepted["runId"])
            await waiter.vanish()
            # The waiter's own run stays.
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2, "the waiters' end")
            for each in (run, accepted["runId"]):
                assert (await other.request("agent.wait", runId=each, timeoutMs=1))["status"] == "pending"
            await other.request("chat.abort", sessionKey="s")
            assert (await other.wait_for(ended(run)))["payload"]["state"] == "aborted"

    in_loop(main, tmp_path)
