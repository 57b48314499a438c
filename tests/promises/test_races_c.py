"""Races between runs and their processes, through the whole control: rows 8, 47, 58 and 73 of tests/races.md."""

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.test_spawn import DEAF, TREE, pid_in, there, until

from interlock import Ending, Message, Run, ToolState, open_control
from interlock.core.events import Ended


def test_a_batch_of_which_one_still_runs_a_process(tmp_path: Path) -> None:
    """Race 8: of a parallel batch the finished tool's result stays, and the other's process is gone."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        async def quick() -> str:
            return "done"

        async def slow() -> str:
            own = asyncio.ensure_future(_spawn(run, TREE.format(at=at) + "wait"))  # a task that nobody cuts
            await asyncio.wait([own])
            return "never"

        await run.batch([(quick, {}), (slow, {})], parallel=True)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            assert not there(pid)
            results = [entry for entry in await control.history("s") if entry.role == "result"]
            assert [entry.text for entry in results if entry.tool == "quick"] == ['"done"']
            receipt = await control.receipt(sent.run_id)
            states = {tool.name: tool.state for tool in receipt.tools}
            assert states == {"quick": ToolState.FINISHED, "slow": ToolState.INTERRUPTED}

    asyncio.run(main())


async def _spawn(run: Run, script: str) -> None:
    with contextlib.suppress(BaseException):
        await run.spawn("sh", "-c", script)


def test_a_child_that_timed_out_while_its_process_lived(tmp_path: Path) -> None:
    """Race 47: the child's timeout is told once, at once, and its process is gone when the child has drained."""
    at = tmp_path / "pid"
    heard: list[Ending] = []

    async def parent(run: Run, message: Message) -> None:
        child = await run.delegate("worker", "work", timeout=float(message.text))
        heard.append(child.outcome.ending)

    async def worker(run: Run, message: Message) -> None:
        own = asyncio.ensure_future(_spawn(run, DEAF.format(at=at)))
        await asyncio.wait([own])

    async def main() -> None:
        async with open_control(parent, agents={"worker": worker}) as control:
            for seconds in (0.3, 2, 10):  # the first in which it comes so far as to have a process
                sent = await control.send("s", str(seconds))
                await control.wait(sent.run_id, drained=True)
                if at.exists() and at.read_text():
                    break
            pid = await pid_in(at)
            assert set(heard) == {Ending.TIMED_OUT}
            assert not there(pid)
            [child] = [run for run in await control.runs("s", tree=True) if run.parent == sent.run_id]
            told = [event async for event in control.watch(run=child.id) if isinstance(event.data, Ended)]
            assert [event.data.outcome.ending for event in told] == [Ending.TIMED_OUT]

    asyncio.run(main())


def test_a_grandchild_run_s_hidden_process(tmp_path: Path) -> None:
    """Race 58: whatever rights a grandchild run gives itself, its process in a session of its own dies with the top."""
    at = tmp_path / "pid"

    async def top(run: Run, message: Message) -> None:
        await run.delegate("middle", "work")

    async def middle(run: Run, message: Message) -> None:
        await run.delegate("bottom", "work")

    async def bottom(run: Run, message: Message) -> None:
        own = asyncio.ensure_future(_spawn(run, TREE.format(at=at) + "wait"))
        await asyncio.wait([own])

    async def main() -> None:
        async with open_control(top, agents={"middle": middle, "bottom": bottom}) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert not there(pid)

    asyncio.run(main())


DAEMON = """
import os, socket, subprocess, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
client, _ = server.accept()
child = subprocess.Popen(["sleep", "30"])
open(sys.argv[2], "w").write(str(child.pid))
client.sendall(b"started")
child.wait()
"""
CLIENT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(9); s.recv(9)"


def test_what_a_daemon_starts_for_a_tool_is_not_claimed(tmp_path: Path) -> None:
    """Race 73: the local client is gone at `drained`; what another daemon started lives, and is called unseen."""
    path, at = tmp_path / "socket", tmp_path / "pid"
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, str(path), str(at)])

    async def agent(run: Run, message: Message) -> None:
        await run.spawn(sys.executable, "-c", CLIENT, str(path))

    async def main() -> None:
        async with open_control(agent) as control:
            await until(path.exists)
            sent = await control.send("s", "go")
            remote = await pid_in(at)
            [client] = [each.pid for each in await control.processes("s")]
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert not there(client)
            assert there(remote)
            assert any("docker" in missed for missed in receipt.unseen)
            os.kill(remote, 9)

    try:
        asyncio.run(main())
    finally:
        daemon.kill()
        daemon.wait()
