"""Clients that reconnect get exactly the rest and one ending of each run, and still own what they sent."""

import asyncio
import random
from pathlib import Path
from typing import Any

from interlock import Message, Run
from interlock.core.scopes import Scope

from .protocol import Frame
from .transport import QUIET, Serving, Wire, chat, ended, endings, eventually, in_loop

RACES = 200


def kept(events: list[Frame]) -> list[Frame]:
    """Return the events that a store keeps, up to the last ending: no deltas, since a block holds their text."""
    while events[-1]["data"]["type"] != "ended":
        events = events[:-1]
    return [event for event in events if event["data"]["type"] != "delta"]


async def watch_to_the_end(wire: Wire, number: int, count: int, **wanted: Any) -> list[Frame]:
    """Watch until this many endings were told; return all events."""
    await wire.request("interlock.watch", watch=number, **wanted)
    await wire.until(lambda: len(endings(wire.watched(number))) >= count, f"{count} endings")
    return wire.watched(number)


def test_replay_from_any_position(tmp_path: Path) -> None:
    """From every position of a recorded session a new connection gets exactly the rest, with generations; race 99."""

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            for number in range(3):
                run = (await chat(wire, "say 5", f"k{number}"))["runId"]
                await wire.request("agent.wait", runId=run)
            run = (await chat(wire, "wait", "k-stopped"))["runId"]
            await wire.request("chat.abort", sessionKey="s", runId=run)
            await wire.request("interlock.wait", run=run, drained=True)
            await chat(wire, "hello", "k-last")
            whole = kept(await watch_to_the_end(wire, 1, 5, session="s"))
        positions = [event["position"] for event in whole]
        assert positions == sorted(set(positions))
        generations = [event["generation"] for event in whole if event["data"]["type"] == "started"]
        assert generations == sorted(set(generations))
        assert len(generations) >= 4
        async with await served.dial(caps=QUIET) as again:
            for number, after in enumerate([0, *positions[:-1]]):
                expected = [event for event in whole if event["position"] > after]
                rest = await watch_to_the_end(again, number, len(endings(expected)), session="s", after=after)
                assert kept(rest) == expected
                await again.request("interlock.unwatch", watch=number)

    in_loop(main, tmp_path)


def test_a_reconnect_while_the_run_ends(tmp_path: Path) -> None:
    """A client that reconnects around the end of a run gets the whole story, with one ending; races 99, 100."""
    random_ = random.Random(7)
    seen: list[int] = []  # the events each client had seen before it reconnected

    async def talks(run: Run, message: Message) -> None:
        for number in range(12):
            await run.post(f"{number}")
            await asyncio.sleep(0.0005)

    async def once(served: Serving, number: int) -> None:
        session = f"s{number}"
        wire = await served.dial(caps=QUIET)
        run = (await chat(wire, "go", f"k{number}", session))["runId"]
        await wire.ask("interlock.watch", watch=1, session=session)
        await asyncio.sleep(random_.random() * 0.02)
        if number % 3 == 0:
            await wire.request("chat.abort", sessionKey=session)
        await wire.vanish()
        before = wire.watched(1)
        after = before[-1]["position"] if before else 0
        seen.extend([len(before)] if before else [])
        async with await served.dial(caps=QUIET) as again:
            await again.request("interlock.watch", watch=1, session=session, after=after)
            outcome = await again.request("agent.wait", runId=run)
            last = (await chat(again, "last", f"last {number}", session))["runId"]
            await again.until(lambda: any(told["run_id"] == last for told in again.watched(1)), "the run behind it")
            whole = [event for event in before + again.watched(1) if event["run_id"] == run]
            assert endings(whole) == [outcome["outcome"]["ending"]]
            positions = [event["position"] for event in whole]
            assert positions == sorted(set(positions))
            texts = [event["data"]["text"] for event in whole if event["data"]["type"] == "block"]
            assert texts == [f"{at}" for at in range(len(texts))]
            if outcome["outcome"]["ending"] == "completed":
                assert len(texts) == 12

    async def main(served: Serving) -> None:
        for begin in range(0, RACES, 4):
            await asyncio.gather(*(once(served, begin + at) for at in range(4)))
        assert len(seen) > RACES / 4, "hardly anything was seen before"
        assert len(set(seen)) > 3, "always the same moment"

    in_loop(main, tmp_path, talks)


def test_the_owner_comes_back_and_stops(tmp_path: Path) -> None:
    """A run belongs to its sender, not to a connection; a stranger's stop finds nothing; race 101."""

    async def main(served: Serving) -> None:
        token, other = await served.add("ann", Scope.WRITE), await served.add("bob", Scope.WRITE)
        first = await Wire.dial(served.url, token)
        run = (await chat(first, "wait", "k"))["runId"]
        await first.wait_for(lambda event: event["event"] == "chat")
        await first.vanish()
        await eventually(lambda: not served.connections, "its end")
        async with await Wire.dial(served.url, other) as stranger:
            assert not (await stranger.request("chat.abort", sessionKey="s", runId=run))["aborted"]
        async with await Wire.dial(served.url, token) as again:
            assert again.hello["server"]["connId"] != first.hello["server"]["connId"]
            stop = await again.request("chat.abort", sessionKey="s", runId="k")  # named by the message's key
            assert (stop["aborted"], stop["runIds"]) == (True, [run])
            await again.wait_for(ended(run))

    in_loop(main, tmp_path)
