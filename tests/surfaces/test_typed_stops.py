"""Typed stops on a real gateway: redelivered by a network, under keys, and of a program next to a person."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from .scene import Served, Wire, WireError, served, wire

AGENT = "tests.surfaces.agents:agent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server for all tests of this file."""
    with served(AGENT, tmp_path_factory.mktemp("typed") / "data", "--driver", "inline") as running:
        yield running


async def send(on: Wire, message: str, session: str, key: str) -> dict[str, Any]:
    """Send a message to a session."""
    told: dict[str, Any] = await on.request("chat.send", sessionKey=session, message=message, idempotencyKey=key)
    return told


async def lives(on: Wire, run: str) -> bool:
    """Return whether a run has not ended."""
    return bool((await on.request("agent.wait", runId=run, timeoutMs=0))["status"] == "pending")


@pytest.mark.parametrize("word", ["stop", "/new"])
def test_a_typed_word_delivered_again_after_a_restart(word: str, tmp_path: Path) -> None:
    """A typed stop that is redelivered after kill -9 gets its first answer and ends nothing newer (race 130)."""

    async def before(on: Wire) -> tuple[str, dict[str, Any]]:
        old = (await send(on, "talk", "s", "old"))["runId"]
        first = await send(on, word, "s", "typed")
        assert first["aborted"] and first["runIds"] == [old]
        nothing = await send(on, word, "empty", "in vain")
        assert not nothing["aborted"]
        return old, first

    async def after(on: Wire, old: str, first: dict[str, Any]) -> None:
        runs = [(await send(on, "talk", session, f"new in {session}"))["runId"] for session in ("s", "empty")]
        again = await send(on, word, "s", "typed")
        assert (again["aborted"], again["runIds"], again["receipt"]["id"]) == (True, [old], first["receipt"]["id"])
        assert again["receipt"]["again"]
        assert not (await send(on, word, "empty", "in vain"))["aborted"]
        assert [await lives(on, run) for run in runs] == [True, True]

    async def play(step: Any, server: Served, *given: Any) -> Any:
        async with wire(server.url, server.token) as on:
            return await step(on, *given)

    with served(AGENT, tmp_path / "data", "--driver", "inline") as server:
        told = asyncio.run(play(before, server))
        server.kill()
    with served(AGENT, tmp_path / "data", "--driver", "inline") as server:
        asyncio.run(play(after, server, *told))


def test_a_redelivered_stop_is_audited_once(server: Served) -> None:
    """A redelivered stop has one line in the audit."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            await send(on, "talk", "audited", "audited talk")
            for _ in range(3):
                await send(on, "stop", "audited", "audited stop")

    asyncio.run(play())
    audit = [path for path in server.data.rglob("audit*") if path.is_file()]
    lines = [line for path in audit for line in path.read_text("utf-8").splitlines()]
    lines = [line for line in lines if '"stop"' in line and "audited" in line]
    assert len(lines) == 1, lines


def test_a_key_that_a_stop_has_is_no_messages(server: Served) -> None:
    """A message or another command under a stop's key is refused and changes nothing."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            await send(on, "stop", "taken", "taken")
            run = (await send(on, "talk", "taken", "talk"))["runId"]
            for text, session in (("hello", "taken"), ("/new", "taken"), ("stop", "elsewhere")):
                with pytest.raises(WireError, match="was used for"):
                    await send(on, text, session, "taken")
            assert await lives(on, run)

    asyncio.run(play())


def test_a_message_that_was_born_stopped_says_so_in_its_answer(server: Served) -> None:
    """The answer of chat.send says who stopped the message, and that it came after its stop."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            await on.request("chat.abort", sessionKey="born", runId="not yet")
            told = await send(on, "talk", "born", "not yet")
            assert (told["status"], told["stopReason"]) == ("error", "rpc")
            assert told["summary"].startswith("stopped by ") and told["summary"].endswith(" before it came")
            assert told["outcome"]["bornStopped"] is True

    asyncio.run(play())


def test_the_own_method_names_a_message_and_has_a_key(server: Served) -> None:
    """`message` names the key that a message was sent with; `key` is the stop's own."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            run = (await send(on, "talk", "own", "own message"))["runId"]
            stop = {"message": "own message", "key": "own stop"}
            first = await on.request("interlock.stop", **stop)
            assert [each["id"] for each in first["runs"]] == [run] and not first["again"]
            again = await on.request("interlock.stop", **stop)
            assert (again["id"], again["again"]) == (first["id"], True)
            with pytest.raises(WireError, match="session=, run= or message="):
                await on.request("interlock.stop", key="alone")

    asyncio.run(play())


def test_a_program_does_not_end_a_persons_turn(server: Served) -> None:
    """`agent` into a busy session waits; a person's message takes over at once (race 133)."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            person = (await send(on, "talk", "shared", "person"))["runId"]
            asked = await on.ask("agent", sessionKey="shared", message="hello", idempotencyKey="program")
            program = (await on.answer(asked))["runId"]
            assert await lives(on, person) and await lives(on, program)
            own = {"session": "shared", "text": "hello", "kind": "agent", "key": "own program"}
            assert (await on.request("interlock.send", **own))["state"] == "queued"
            taken = await on.request("interlock.send", **own | {"key": "dominant", "strategy": "interrupt"})
            assert taken["superseded"] == person
            assert (await on.answer(asked, 2))["stopReason"] == "superseded"

    asyncio.run(play())


def test_a_typed_stop_whose_caller_left_is_not_repeated_by_its_retry(server: Served) -> None:
    """A typed stop that is sent again after a reconnect gets its first answer, and spares the run begun since."""

    async def play() -> int:
        heard = 0
        for number in range(8):
            session, typed = f"typed {number}", {"message": "stop", "idempotencyKey": f"typed {number}"}
            async with wire(server.url, server.token) as first:
                old = (await send(first, "talk", session, f"old {number}"))["runId"]
                await first.ask("chat.send", sessionKey=session, **typed)
                # The stop is certainly read; otherwise the cut may come before the answer, or before the stop is read.
                if number % 2:
                    async with wire(server.url, server.token) as other:
                        await other.request("agent.wait", runId=old, timeoutMs=20_000)
                first.socket.transport.abort()
            async with wire(server.url, server.token) as again:
                waited = await again.request("agent.wait", runId=old, timeoutMs=1_500)
                # The cut lost the frame before the server had read it.
                if waited["status"] == "pending":
                    await again.request("chat.abort", sessionKey=session)
                    continue
                heard += 1
                assert waited["stopReason"] == "stop"
                new = (await send(again, "talk", session, f"new {number}"))["runId"]
                answer = await again.request("chat.send", sessionKey=session, **typed)
                assert answer["runIds"] == [old]
                assert (await again.request("agent.wait", runId=new, timeoutMs=0))["status"] == "pending"
                await again.request("chat.abort", sessionKey=session)
        return heard

    assert asyncio.run(play()) > 0


def test_a_key_that_a_stop_was_typed_with_still_answers_its_message(server: Served) -> None:
    """A typed stop is never refused for its key; the message with that key gets its first answer again."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            message = {"sessionKey": "one key", "message": "hello", "idempotencyKey": "one"}
            first = await on.request("chat.send", **message)
            await on.ended(first["runId"])
            await on.request("chat.send", **{**message, "message": "stop"})
            assert (await on.request("chat.send", **message))["runId"] == first["runId"]

    asyncio.run(play())
