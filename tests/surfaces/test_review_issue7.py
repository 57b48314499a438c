"""What a hostile reader of the gateway found, each with a test that failed before it was mended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import websockets

from interlock import Message, Run, asgi, open_control
from interlock.core.events import Delta, Ended, Event, Said
from interlock.core.names import Ending, Principal, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.surfaces.server import listen, serve, url_of
from interlock.surfaces.telling import Teller

from .scene import Served, Wire, served, wire

AGENT = "tests.surfaces.agents:agent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all."""
    with served(AGENT, tmp_path_factory.mktemp("review") / "data", "--driver", "inline") as running:
        yield running


async def send(on: Wire, message: str, session: str, key: str, **more: Any) -> str:
    """Send a message and return its run."""
    return str(
        (await on.request("chat.send", sessionKey=session, message=message, idempotencyKey=key, **more))["runId"]
    )


def test_a_message_that_was_taken_in_is_told_as_its_taker(server: Served) -> None:
    """A steered message is no task of its own that runs for ever, and does not hide how its session ended."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            first = await send(on, "listen", "steered", "first")
            await on.event("chat", lambda event: event["runId"] == first)
            taken = await send(on, "hello", "steered", "second", queueMode="steer")
            await on.event("chat", lambda event: event["runId"] == first and "hello" in event.get("deltaText", ""))
            await on.request("chat.abort", sessionKey="steered")
            await on.ended(first)
            tasks = (await on.request("tasks.list", sessionKey="steered"))["tasks"]
            assert [(task["id"], task["status"]) for task in tasks] == [(first, "cancelled")]
            assert (await on.request("tasks.get", taskId=taken))["task"]["id"] == first
            row = (await on.request("sessions.describe", key="steered"))["session"]
            assert (row["status"], row["lastRunId"]) == ("stopped", first)
            assert (await on.request("agent.wait", runId=taken))["stopReason"] == "rpc"

    asyncio.run(play())


def test_a_typed_stop_whose_caller_left_is_not_repeated_by_its_retry(server: Served) -> None:
    """The same key again, after a reconnect and a new message: the same answer, and the new run goes on."""

    async def play() -> int:
        heard = 0
        for number in range(8):
            session, typed = f"typed {number}", {"message": "stop", "idempotencyKey": f"typed {number}"}
            async with wire(server.url, server.token) as first:
                old = await send(first, "talk", session, f"old {number}")
                await first.ask("chat.send", sessionKey=session, **typed)
                if number % 2:  # it is read for certain; else it may be cut before the answer, or before it is read
                    async with wire(server.url, server.token) as other:
                        await other.request("agent.wait", runId=old, timeoutMs=20_000)
                first.socket.transport.abort()
            async with wire(server.url, server.token) as again:
                waited = await again.request("agent.wait", runId=old, timeoutMs=1_500)
                if waited["status"] == "pending":  # the cut took the frame along, before the server had read it
                    await again.request("chat.abort", sessionKey=session)
                    continue
                heard += 1
                assert waited["stopReason"] == "stop"
                new = await send(again, "talk", session, f"new {number}")
                answer = await again.request("chat.send", sessionKey=session, **typed)
                assert answer["runIds"] == [old]
                assert (await again.request("agent.wait", runId=new, timeoutMs=0))["status"] == "pending"
                await again.request("chat.abort", sessionKey=session)
        return heard

    assert asyncio.run(play()) > 0


def test_a_teller_forgets_every_run_it_told() -> None:
    """Also a message that was taken in by another run: it has no end of its own."""

    def event(run: str, data: Any) -> Event:
        return Event(position=1, session=SessionId("s"), run_id=RunId(run), generation=1, data=data)

    teller = Teller()
    for names in (("s",), ("main", "ann/main")):
        teller.tell(event("steered", Said(text="hello", by=Principal("me"))), names)
        teller.tell(event("taker", Delta(text="x")), names)
        teller.tell(event("taker", Ended(outcome=Outcome(run_id=RunId("taker"), ending=Ending.COMPLETED))), names)
    assert teller._runs == {}


@pytest.mark.parametrize("driver", ["host", "inline"])
def test_a_signal_is_heard_while_the_agent_is_imported(tmp_path: Path, driver: str) -> None:
    """There is nothing to end in order yet: it is simply over."""
    begun = tmp_path / "begun"
    module = "import time, pathlib\npathlib.Path({!r}).touch()\ntime.sleep(60)\nasync def agent(run, message): ...\n"
    (tmp_path / "slowly.py").write_text(module.format(str(begun)))
    command = [str(Path(sys.executable).with_name("interlock")), "serve", "slowly:agent", "--port", "0"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data"), "--driver", driver], cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as process:
        for _ in range(3_000):
            if begun.exists():
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_page_of_another_port_is_another_programs(server: Served) -> None:
    """Serving on an address allows that address with its port, not every page of the machine."""

    async def play(origin: str) -> int:
        try:
            async with websockets.connect(server.url, origin=origin) as socket:  # type: ignore[arg-type]
                await socket.recv()
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    assert asyncio.run(play(f"http://127.0.0.1:{server.port}")) == 101
    assert asyncio.run(play("http://127.0.0.1:1")) == 403


def test_the_retry_of_a_message_that_was_taken_in_is_answered_at_once(server: Served) -> None:
    """The same key again while its taker runs: the same answer; nobody waits for a run there."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            taker = await send(on, "listen", "retried", "taker")
            await on.event("chat", lambda event: event["runId"] == taker)
            steer = {"sessionKey": "retried", "message": "hi", "idempotencyKey": "steer", "queueMode": "steer"}
            first = await on.request("chat.send", **steer)
            taken = await on.event("agent", lambda event: event["stream"] == "input" and event["runId"] == taker)
            assert (taken["data"]["phase"], taken["data"]["runId"]) == ("taken", first["runId"])
            assert await on.request("chat.send", **steer) == first
            assert (await on.request("agent.wait", runId=taker, timeoutMs=0))["status"] == "pending"
            await on.request("chat.abort", sessionKey="retried")
            over = await on.request("chat.send", **steer)
            assert (over["status"], over["stopReason"]) == ("error", "rpc")

    asyncio.run(play())


def test_lists_hold_the_beginning_of_a_reply_and_one_run_the_whole(server: Served) -> None:
    """One large reply makes no list too large to be read, and is there where it is asked for."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            run = await send(on, "fill 100000", "large", "large")
            whole = (await on.ended(run))["message"]["content"][0]["text"]
            assert len(whole) > 500_000
            for method in ("tasks.list", "interlock.runs"):
                name = "sessionKey" if method == "tasks.list" else "session"
                asked = await on.ask(method, **{name: "large"})
                await on.answer(asked)
                frame = next(frame for frame in on.heard if frame.get("id") == asked)
                assert len(str(frame)) < 5_000
            assert (await on.request("tasks.get", taskId=run))["task"]["result"] == whole
            assert (await on.request("interlock.find", name=run))["outcome"]["text"] == whole

    asyncio.run(play())


def test_a_key_that_a_stop_was_typed_with_still_answers_its_message(server: Served) -> None:
    """A stop is never refused, whatever its key; the message with that key is answered as before."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            message = {"sessionKey": "one key", "message": "hello", "idempotencyKey": "one"}
            first = await on.request("chat.send", **message)
            await on.ended(first["runId"])
            await on.request("chat.send", **{**message, "message": "stop"})
            assert (await on.request("chat.send", **message))["runId"] == first["runId"]

    asyncio.run(play())


def test_a_mounted_gateway_ends_with_its_control(tmp_path: Path) -> None:
    """Nobody calls its end there: control's end is enough, and no task of it is left."""

    async def play() -> list[str]:
        async with open_control(echo) as control:
            gateway = asgi(control, data=tmp_path / "data")
            listener = listen("127.0.0.1", 0)
            over = asyncio.Event()
            serving = asyncio.create_task(serve(gateway, listener, lambda: None, over))
            token = gateway.access.token.read_text().strip()
            async with wire(url_of(listener).replace("http", "ws"), token) as on:
                await on.request("chat.send", sessionKey="s", message="hello", idempotencyKey="k")
                await control.close()
                await on.event("shutdown")
            over.set()
            await serving
        return [task.get_name() for task in asyncio.all_tasks() if "gateway" in task.get_name()]

    assert asyncio.run(play()) == []


async def echo(run: Run, message: Message) -> str:
    """Say it again."""
    return message.text
