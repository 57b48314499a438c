"""Races of transport and delivery over the wire: replay, keys, waits, and the end of the server."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import Message, Run
from interlock.surfaces import frames

from .floods import STUBBORN, agent
from .protocol import Frame
from .scene import WireError
from .transport import Served, Serving, Wire, ended, eventually, serving

QUIET = (frames.QUIET,)
RACES = 200


async def chat(wire: Wire, text: str, key: str, session: str = "s") -> Any:
    """Send a message with a key."""
    return await wire.request("chat.send", sessionKey=session, message=text, idempotencyKey=key)


def endings(events: list[Frame]) -> list[str]:
    """The endings that were told."""
    return [event["data"]["outcome"]["ending"] for event in events if event["data"]["type"] == "ended"]


def kept(events: list[Frame]) -> list[Frame]:
    """What a store keeps, up to the last ending: deltas go when a block holds their text."""
    while events[-1]["data"]["type"] != "ended":
        events = events[:-1]
    return [event for event in events if event["data"]["type"] != "delta"]


async def watch_to_the_end(wire: Wire, number: int, count: int, **wanted: Any) -> list[Frame]:
    """Watch until so many endings were told; return all that came."""
    await wire.request("interlock.watch", watch=number, **wanted)
    await wire.until(lambda: len(endings(wire.watched(number))) >= count, f"{count} endings")
    return wire.watched(number)


def in_loop(main: Callable[[Serving], Awaitable[None]], data: Path, body: Any = agent, **options: Any) -> None:
    """Play a test on a server in this loop."""

    async def play() -> None:
        async with serving(data, body, **options) as served:
            await main(served)

    asyncio.run(play())


# Coming back


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
    """Come back somewhere around the end: what was seen and what comes are whole, with one terminal; races 99, 100."""
    random_ = random.Random(7)
    seen: list[int] = []  # how many events each had seen before it came back

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
    """A run belongs to who sent it, not to the connection it came by; a stranger's stop finds nothing; race 101."""

    async def main(served: Serving) -> None:
        token = served.gateway.access.add("ann", ["write"])
        other = served.gateway.access.add("bob", ["write"])
        first = await Wire.dial(served.url, token)
        run = (await chat(first, "wait", "k"))["runId"]
        await first.wait_for(lambda event: event["event"] == "chat")
        await first.vanish()
        await eventually(lambda: not served.connections, "its end")
        async with await Wire.dial(served.url, other) as stranger:
            assert not (await stranger.request("chat.abort", sessionKey="s", runId=run))["aborted"]
        async with await Wire.dial(served.url, token) as again:
            assert again.hello["server"]["connId"] != first.hello["server"]["connId"]
            stop = await again.request("chat.abort", sessionKey="s", runId="k")  # by the key it was sent with
            assert (stop["aborted"], stop["runIds"]) == (True, [run])
            await again.wait_for(ended(run))

    in_loop(main, tmp_path)


# Keys


def test_a_key_over_the_wire(tmp_path: Path) -> None:
    """The same body gets the same run, from any connection of its owner; another body is refused; race 102."""

    async def main(served: Serving) -> None:
        async with await served.dial() as one, await served.dial() as other:
            names = [await wire.ask("chat.send", sessionKey="s", message="wait", idempotencyKey="k")
                     for wire in (one, other, one)]  # fmt: skip
            answers = [await wire.answer(name) for wire, name in zip((one, other, one), names, strict=True)]
            assert len({answer["runId"] for answer in answers}) == 1
            assert not any("superseded" in answer for answer in answers)
            for text, session in (("another", "s"), ("wait", "elsewhere")):
                with pytest.raises(WireError) as refused:
                    await chat(other, text, "k", session)
                assert refused.value.error["code"] == "INVALID_REQUEST"
                assert refused.value.error["details"]["kind"] == "KeyConflict"
            assert (await one.request("agent.wait", runId="k", timeoutMs=1))["status"] == "pending"
            assert len((await one.request("tasks.list"))["tasks"]) == 1
            await one.request("chat.abort", sessionKey="s")
            again = await chat(other, "wait", "k")  # after its end, too
            assert again["runId"] == answers[0]["runId"]

    in_loop(main, tmp_path)


def test_a_key_of_another_method_over_the_wire(tmp_path: Path) -> None:
    """chat.send and agent do not share a key's answer; the refused one takes nothing away; race 103."""

    async def main(served: Serving) -> None:
        async with await served.dial() as wire:
            run = (await chat(wire, "wait", "k"))["runId"]
            with pytest.raises(WireError) as refused:
                await wire.request("agent", sessionKey="s", message="wait", idempotencyKey="k")
            assert refused.value.error["details"]["kind"] == "KeyConflict"
            assert (await chat(wire, "wait", "k"))["runId"] == run
            assert (await wire.request("agent.wait", runId=run, timeoutMs=1))["status"] == "pending"
            assert (await wire.request("chat.abort", sessionKey="s", runId="k"))["runIds"] == [run]

    in_loop(main, tmp_path)


def test_a_key_after_the_server_was_killed(tmp_path: Path) -> None:
    """After kill -9 the key still names its run, which is told as lost; it does not run again; races 80, 104."""

    async def before(served: Served) -> str:
        wire = await served.dial()
        done = (await chat(wire, "hello", "done", "other"))["runId"]
        await wire.request("agent.wait", runId=done)
        run = (await chat(wire, "wait", "k"))["runId"]
        await wire.wait_for(lambda event: event["event"] == "chat" and event["payload"]["runId"] == run)
        served.process.kill()
        assert (await wire.gone())[0] == 1006
        return run

    async def after(served: Served, run: str) -> None:
        async with await served.dial() as wire:
            again = await chat(wire, "wait", "k")
            assert again["runId"] == run
            told = await wire.request("agent.wait", runId="k", timeoutMs=30_000)
            assert told["outcome"]["ending"] == "lost"
            with pytest.raises(WireError):
                await chat(wire, "another", "k")
            assert (await wire.request("agent.wait", runId="done"))["outcome"]["ending"] == "completed"
            assert len((await wire.request("tasks.list"))["tasks"]) == 2

    with Served(tmp_path, "--driver=inline") as served:
        run = asyncio.run(before(served))
    with Served(tmp_path, "--driver=inline") as served:
        asyncio.run(after(served, run))


# Waiting


def test_a_wait_after_the_end(tmp_path: Path) -> None:
    """However late and however often it is asked, the same outcome, at once; race 107."""

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
    """Whichever is first, wait or end, every waiter hears it, and hears the same; race 108."""
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
    """Its waits and watches end with it; the run goes on, and others hear its end; race 109."""

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
                await waiter.until(lambda number=number: waiter.watched(number))  # and nothing is left to write
            agents = await waiter.ask("agent", sessionKey="own", message="wait", idempotencyKey="own")
            accepted = await waiter.answer(agents)
            await other.wait_for(lambda e: e["event"] == "chat" and e["payload"]["runId"] == accepted["runId"])
            await waiter.vanish()
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 2, "the waiters' end")  # its own run stays
            for each in (run, accepted["runId"]):
                assert (await other.request("agent.wait", runId=each, timeoutMs=1))["status"] == "pending"
            await other.request("chat.abort", sessionKey="s")
            assert (await other.wait_for(ended(run)))["payload"]["state"] == "aborted"

    in_loop(main, tmp_path)


# The end of the server


def processes_of(pid: int) -> list[int]:
    """The processes below a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            for child in task.read_text().split():
                found += [int(child), *processes_of(int(child))]
    return found


def alive(pid: int) -> bool:
    """Say whether a process is there and no corpse."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def stubborn(served: Served) -> None:
    """Wait until the agent's process lives and ignores TERM; its event is told when it is asked for, before that."""

    def deaf(pid: int) -> bool:
        try:
            status, command = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "cmdline"))
        except OSError:  # it has gone
            return False
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        return STUBBORN in command and bool(ignored >> signal.SIGTERM - 1 & 1)

    await eventually(lambda: any(map(deaf, processes_of(served.pid))), "the process")


@pytest.mark.parametrize(("driver", "text"), [("inline", "wait"), ("host", "deaf"), ("host", "stubborn")])
def test_a_terminated_server_tells_everybody(driver: str, text: str, tmp_path: Path) -> None:
    """TERM: runs end as `shutdown`, watchers are told, sockets close with 1012, in time; no process is left."""

    async def main(served: Served) -> str:
        one, other = await served.dial(), await served.dial()
        run = str((await chat(one, text, "k"))["runId"])
        for wire in (one, other):
            await wire.wait_for(lambda event: event["event"] == "chat" and event["payload"]["runId"] == run)
        if text == "stubborn":
            await stubborn(served)
        below = processes_of(served.pid)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        for wire in (one, other):
            told = (await wire.wait_for(ended(run)))["payload"]
            assert told["message"]["outcome"]["ending"] == "shutdown"
            assert (await wire.gone())[0] == 1012
            assert wire.events[-1]["event"] == "shutdown"
            assert len(wire.chats(run, "final", "aborted", "error")) == 1
        status = await asyncio.to_thread(served.process.wait, 30)
        assert time.monotonic() - began < 2 + 20, "longer than --drain-seconds and its allowances, on a busy machine"
        assert status in (0, 1)
        await eventually(lambda: not any(alive(pid) for pid in below), "the end of its processes")
        return run

    with Served(tmp_path, f"--driver={driver}", "--drain-seconds=2") as served:
        run = asyncio.run(main(served))

    async def after(served: Served) -> None:
        async with await served.dial() as wire:
            told = await wire.request("agent.wait", runId=run)
            assert told["outcome"]["ending"] == "shutdown"
            assert (await chat(wire, "hello", "k2"))["status"] == "started"

    with Served(tmp_path, "--driver=inline") as served:
        asyncio.run(after(served))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    """Who asks twice does not wait for the drain; the next start tells how it ended, and leaves nothing behind."""

    async def main(served: Served) -> tuple[str, list[int]]:
        wire = await served.dial()
        run = str((await chat(wire, "deaf", "k"))["runId"])
        await wire.wait_for(lambda event: event["event"] == "chat" and event["payload"]["runId"] == run)
        below = processes_of(served.pid)
        began = time.monotonic()
        served.process.send_signal(number)
        await eventually(lambda: wire.chats(run, "aborted", "error", "final"), "its end")
        served.process.send_signal(number)
        status = await asyncio.to_thread(served.process.wait, 60)
        assert status in (128 + number, -number)
        assert time.monotonic() - began < 40, "it waited for the drain"
        await wire.vanish()
        return run, below

    with Served(tmp_path, "--driver=host", "--drain-seconds=90") as served:
        run, below = asyncio.run(main(served))

    async def after(served: Served) -> None:
        async with await served.dial() as wire:
            told = await wire.request("agent.wait", runId=run)
            assert told["outcome"]["ending"] in ("shutdown", "lost")
            await eventually(lambda: not any(alive(pid) for pid in below), "the end of what it left")

    with Served(tmp_path, "--driver=inline") as served:
        asyncio.run(after(served))


def test_the_port_is_free_after_a_kill(tmp_path: Path) -> None:
    """Nothing that the killed server started holds its port or its directory; the next start takes both; race 68."""

    async def main(served: Served) -> tuple[str, list[int]]:
        wire = await served.dial()
        run = str((await chat(wire, "stubborn", "k"))["runId"])
        await stubborn(served)
        below = processes_of(served.pid)
        served.process.kill()
        assert (await wire.gone())[0] == 1006
        return run, below

    async def after(served: Served, run: str) -> None:
        async with await served.dial() as wire:
            assert (await wire.request("agent.wait", runId=run))["outcome"]["ending"] == "lost"

    with Served(tmp_path, "--driver=host") as served:
        port = served.url.rpartition(":")[2]
        run, below = asyncio.run(main(served))
    with Served(tmp_path, "--driver=host", f"--port={port}") as served:
        asyncio.run(after(served, run))
        asyncio.run(_gone(below))


async def _gone(pids: list[int]) -> None:
    await eventually(lambda: not any(alive(pid) for pid in pids), "the end of what it left")
