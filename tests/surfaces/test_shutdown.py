"""The end of a server, by a signal, by kill -9 or with its control: clients are told, no process is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interlock import Message, Run, asgi, open_control
from interlock.surfaces.listener import listen, url_of
from interlock.surfaces.server import serve

from . import scene
from .floods import STUBBORN
from .transport import Served, chat, ended, eventually

pytestmark = pytest.mark.long


async def echo(run: Run, message: Message) -> str:
    """Reply with the message's text."""
    return message.text


def processes_of(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the process may have exited meanwhile
            for child in task.read_text().split():
                found += [int(child), *processes_of(int(child))]
    return found


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def stubborn(served: Served) -> None:
    """Wait until the agent's process ignores TERM; its event comes earlier, when the run asks for the process."""

    def deaf(pid: int) -> bool:
        try:
            status, command = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "cmdline"))
        except OSError:  # the process has exited
            return False
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        return STUBBORN in command and bool(ignored >> signal.SIGTERM - 1 & 1)

    await eventually(lambda: any(map(deaf, processes_of(served.pid))), "the process")


async def gone(pids: list[int]) -> None:
    await eventually(lambda: not any(alive(pid) for pid in pids), "the end of what it left")


@pytest.mark.parametrize("driver", ["host", "inline"])
def test_a_signal_is_heard_while_the_agent_is_imported(tmp_path: Path, driver: str) -> None:
    """A signal during the import ends the server at once, since nothing is open yet."""
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


def test_a_mounted_gateway_ends_with_its_control(tmp_path: Path) -> None:
    """A mounted gateway, which no server closes, ends with its control and leaves no task."""

    async def play() -> list[str]:
        async with open_control(echo) as control:
            gateway = asgi(control, data=tmp_path / "data")
            listener = listen("127.0.0.1", 0)
            over = asyncio.Event()
            serving = asyncio.create_task(serve(gateway, listener, lambda: None, over))
            token = gateway.access.token.read_text().strip()
            async with scene.wire(url_of(listener).replace("http", "ws"), token) as on:
                await on.request("chat.send", sessionKey="s", message="hello", idempotencyKey="k")
                await control.close()
                await on.event("shutdown")
            over.set()
            await serving
        return [task.get_name() for task in asyncio.all_tasks() if "gateway" in task.get_name()]

    assert asyncio.run(play()) == []


@pytest.mark.parametrize(("driver", "text"), [("inline", "wait"), ("host", "deaf"), ("host", "stubborn")])
def test_a_terminated_server_tells_everybody(driver: str, text: str, tmp_path: Path) -> None:
    """After TERM, runs end as `shutdown`, watchers hear it, sockets close with 1012 in time, and no process is left."""

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
    """A second signal ends the server before the drain; the next start tells the ending and ends what was left."""

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
    """No process that the killed server started holds its port or directory; the next start gets both; race 68."""

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
        asyncio.run(gone(below))
