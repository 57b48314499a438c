"""Idempotency keys over the wire: one run per key, method and owner, also after kill -9."""

import asyncio
from pathlib import Path

import pytest

from .scene import WireError
from .transport import Served, Serving, chat, in_loop


def test_a_key_over_the_wire(tmp_path: Path) -> None:
    """A key with the same body gets the same run on any connection of its owner; another body is refused; race 102."""

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
            again = await chat(other, "wait", "k")  # the key answers after the run's end, too
            assert again["runId"] == answers[0]["runId"]

    in_loop(main, tmp_path)


def test_a_key_of_another_method_over_the_wire(tmp_path: Path) -> None:
    """chat.send and agent do not share the answer of a key; a refused use of a key changes nothing; race 103."""

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
    """After kill -9 the key still names its run, which is told as lost and does not run again; races 80, 104."""

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
