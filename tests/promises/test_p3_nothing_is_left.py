"""P3. Every process a run started, however deep and hidden, is gone when the receipt says `drained`; the kernel says
so, not a timer.

The same rule holds for code in this process: `drained` means the bodies of a run were observed to have ended, or will
never be resumed; what could not be ended is named.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from random import Random

import pytest

from interlock import Confinement, Ending, Grade, Message, Run, Settings, open_control, tool
from interlock.agent.bodies import DROPPED
from interlock.core.events import Ended
from interlock.core.names import BodyState, Drain, EventKind, ToolState
from interlock.core.receipt import Processes, Receipt
from interlock.testing import run_seeded
from runtime.scene import Sink, swallowed
from runtime.test_spawn import DEAF, TREE, pid_in, there, until

from .scene import seeded

GRACE, DRAIN = 2.0, 5.0  # the library's own settings


async def polite(beats: list[int]) -> None:
    """End with the first cancel."""
    while True:
        await asyncio.sleep(0.1)
        beats.append(1)


async def slow_to_clean_up(beats: list[int]) -> None:
    """Take a second to clean up."""
    try:
        await polite(beats)
    finally:
        await asyncio.sleep(1)
        beats.append(1)


async def swallows_everything(beats: list[int]) -> None:
    """Never end."""
    while True:
        await swallowed(polite(beats))


@pytest.mark.parametrize(
    ("body", "bound"), [(polite, 0.1), (slow_to_clean_up, 1.1), (swallows_everything, GRACE + 0.1)]
)
@pytest.mark.parametrize("where", ["agent", "tool", "batch", "own task"])
def test_drained_means_observed(body: object, bound: float, where: str) -> None:
    """A body no longer acts at `drained`, which comes within its bound, however the body takes its cancel.

    The drain is `observed` if the body ended, and not if it was dropped.
    """
    beats: list[int] = []

    async def work() -> None:
        await body(beats)  # type: ignore[operator]

    async def agent(run: Run, message: Message) -> None:
        if where == "agent":
            await work()
        elif where == "tool":
            await run.call(work)
        elif where == "batch":
            await run.batch([(work, {}), (work, {})], parallel=True)
        else:
            await asyncio.create_task(swallowed(run.call(work)), name="own task")

    async def main() -> None:
        beats.clear()
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            assert beats
            await control.stop(session="s")
            stopped = loop.time()
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.drained and loop.time() - stopped <= bound
            receipt = await control.receipt(sent.run_id)
            assert receipt.drain is (Drain.UNCONFIRMED if receipt.unconfirmed else Drain.OBSERVED)
            assert body is swallows_everything or not receipt.unconfirmed
            assert all(name.endswith(DROPPED) for name in receipt.unconfirmed)
            still = len(beats)
            await asyncio.sleep(60)
            assert len(beats) == still

    for seed in range(4):
        run_seeded(main, seed)


def test_what_cannot_be_ended_is_named() -> None:
    """An agent that waits for a deaf task of its own making is abandoned: `unconfirmed`, by name, within the bounds."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.create_task(swallows_everything([]), name="own task")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            first = await control.stop(session="s")
            assert (first.drain, first.runs[0].body) == (Drain.PENDING, BodyState.CUT)
            stopped = loop.time()
            assert (await control.wait(sent.run_id, drained=True)).drained
            assert loop.time() - stopped == pytest.approx(DRAIN, abs=0.1)  # the grace included
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.UNCONFIRMED, (f"agent of {sent.run_id}",))
            assert receipt.runs[0].body is BodyState.ABANDONED
            assert receipt.runs[0].outcome.ending is Ending.STOPPED

    for seed in range(4):
        run_seeded(main, seed)


def test_a_thread_that_outlives_its_run_is_named() -> None:
    """A real thread cannot be ended: the receipt says `unconfirmed`, names it, and its result goes nowhere."""
    release, ran = threading.Event(), threading.Event()

    @tool(thread=True)
    def dig() -> str:
        release.wait(60)
        ran.set()
        return "gold"

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(dig))

    async def main() -> None:
        quick = Settings(grace_seconds=0.02, drain_seconds=0.05)
        async with open_control(agent, settings=quick) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            while ToolState.RUNNING not in [e.data.state for e in sink.events if e.kind is EventKind.TOOL]:
                await asyncio.sleep(0.001)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.UNCONFIRMED, ("thread of tool dig",))
            assert [(each.name, each.state) for each in receipt.tools] == [("dig", ToolState.ABANDONED)]
            release.set()
            assert await asyncio.to_thread(ran.wait, 60)
            await asyncio.sleep(0.01)
            assert "gold" not in repr(sink.events)

    asyncio.run(main())


def test_ended_and_drained_are_two_facts() -> None:
    """The end is public before the cleanup is over: `drained` is false at t1, true later, and the story is the same."""

    async def agent(run: Run, message: Message) -> None:
        await slow_to_clean_up([])

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(Random(seed).choice((0.05, 0.3)))
            at_t1 = await control.stop(session="s")
            assert (at_t1.drain, at_t1.drained_at) == (Drain.PENDING, None)
            early = await control.wait(sent.run_id)
            late = await control.wait(sent.run_id, drained=True)
            assert (early.drained, late.drained) == (False, True)
            assert early.same_story(late)
            at_t3: Receipt = await control.receipt(at_t1.id)
            assert at_t3.fence_to_drained_ms == pytest.approx(1000, abs=10)
            assert at_t3.fence_to_end_ms == at_t1.fence_to_end_ms

    for seed in range(6):
        seeded(main, (seed,))


def test_what_never_began_has_nothing_to_drain() -> None:
    """A message that was stopped while it waited is drained at once, and its body is `none`."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with open_control(agent, strategy="queue") as control:
            await control.send("s", "first")
            waiting = await control.send("s", "second")
            receipt = await control.stop(run=waiting.run_id)
            assert (receipt.drain, receipt.runs[0].body, receipt.queued) == (Drain.OBSERVED, BodyState.NONE, 1)
            assert (receipt.grade, receipt.processes, receipt.host) == ("inline", Processes(), "none")

    seeded(main)


def test_the_new_run_does_not_wait_for_the_old_one_s_cleanup() -> None:
    """The message that takes over is answered while the old body still has its grace."""

    async def agent(run: Run, message: Message) -> str | None:
        return "reply" if message.text == "new" else await swallows_everything([])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            old = await control.send("s", "old")
            await asyncio.sleep(1)
            began = loop.time()
            new = await control.send("s", "new")
            assert (await control.wait(new.run_id)).text == "reply"
            assert loop.time() - began < 0.1
            assert not (await control.wait(old.run_id)).drained
            assert (await control.wait(old.run_id, drained=True)).drained

    seeded(main)


def test_a_thousand_stopped_runs_leave_nothing_alive() -> None:
    """After a thousand runs, stopped by turns politely and not, no run, session, key or task of control's is left."""

    async def agent(run: Run, message: Message) -> None:
        await (polite if int(message.text) % 2 else swallows_everything)([])

    async def main() -> None:
        async with open_control(agent) as control:
            for n in range(1000):
                await control.send(f"s{n}", str(n))
            for n in range(1000):
                await control.stop(session=f"s{n}")
            await asyncio.sleep(GRACE + 1)
            registry = control._registry
            assert (registry.runs, registry.sessions, registry.keys) == ({}, {}, {})
            assert len(control._crew._tasks) == 0
            assert len(asyncio.all_tasks()) == 1

    run_seeded(main, 1)


# Processes

GRADES = [pytest.param(None, id="as the machine gives"), pytest.param(Grade.KEEPER, id="keeper")]
HOP = "import os\nopen({at!r}, 'w').write('up')\nwhile True:\n    if os.fork(): os._exit(0)\n"
DAEMON = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open({at!r}, 'w').write('up')
time.sleep(600)
"""
HIDING = {
    "tree": ("sh", "-c", "sh -c 'sleep 600 & echo up > {at}; wait' & sleep 600"),
    "deaf": ("sh", "-c", "trap '' TERM HUP INT; echo up > {at}; while :; do sleep 0.05; done"),
    "own session": ("sh", "-c", "setsid sh -c 'echo up > {at}; exec sleep 600' & exec sleep 600"),
    "child of an exited shell": ("sh", "-c", "sh -c 'sh -c \"echo up > {at}; exec sleep 600\" &' ; exec sleep 600"),
    "stopped": ("sh", "-c", "sh -c 'echo up > {at}; kill -STOP $$' & sleep 600"),
    "daemon": (sys.executable, "-S", "-c", DAEMON),
    "hopper": (sys.executable, "-S", "-c", HOP),
}
"""Ways to be overlooked; each writes a file when it is well hidden."""


def marked(witness: str) -> list[int]:
    """Look for processes, dead ones that keep their environment included, whose environment holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if witness.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def seen(path: Path) -> None:
    """Wait for a file with something in it."""
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("hidden", HIDING)
@pytest.mark.parametrize("grade", GRADES)
def test_no_process_is_left_at_drained(grade: Grade | None, hidden: str, tmp_path: Path) -> None:
    """No process that carries the run's mark is left at `drained`, however it hides."""
    witness, at = uuid.uuid4().hex, tmp_path / "up"
    *argv, last = HIDING[hidden]

    async def agent(run: Run, message: Message) -> None:
        await run.spawn(*argv, last.format(at=str(at)), env={"WITNESS": witness})
        await asyncio.sleep(3600)

    async def main() -> None:
        confinement = Confinement(grade=grade, pids=200)
        async with open_control(agent, confinement=confinement) as control:
            sent = await control.send("s", "go")
            await seen(at)
            assert hidden == "hopper" or marked(witness)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            assert marked(witness) == []
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.OBSERVED, ())
            assert receipt.processes.ended >= 1 and receipt.processes.stuck == 0

    asyncio.run(main())


def compute(at: str) -> None:
    """A tool that starts a shell and never returns."""
    os.system(f"setsid sh -c 'echo up > {at}; exec sleep 600' &")
    while True:
        time.sleep(1)


@pytest.mark.parametrize("grade", GRADES)
def test_everything_a_run_started_goes_together(grade: Grade | None, tmp_path: Path) -> None:
    """A stop ends foreground, background and streamed processes, a tool's and a child run's, with one receipt."""
    witness = uuid.uuid4().hex

    def sleeper(run: Run, name: str, **options: bool) -> object:
        line = f"echo up > {tmp_path / name}; exec sleep 600"
        return run.spawn("sh", "-c", line, env={"WITNESS": witness}, **options)  # type: ignore[call-overload]

    async def streams(run: Run) -> None:
        async with sleeper(run, "streamed") as process:  # type: ignore[attr-defined]
            async for _ in process:
                pass

    async def agent(run: Run, message: Message) -> None:
        await sleeper(run, "background", background=True)  # type: ignore[misc]
        await asyncio.gather(
            sleeper(run, "foreground"),  # type: ignore[call-overload]
            streams(run),
            run.call(compute, at=str(tmp_path / "tool")),
            run.delegate("child", "go"),
        )

    async def child(run: Run, message: Message) -> None:
        await sleeper(run, "child")  # type: ignore[misc]

    async def main() -> None:
        os.environ["WITNESS_TOOL"] = witness  # a worker has the embedder's own environment
        try:
            async with open_control(agent, agents={"child": child}, confinement=Confinement(grade=grade)) as control:
                sent = await control.send("s", "go")
                for name in ("background", "foreground", "streamed", "tool", "child"):
                    await seen(tmp_path / name)
                await control.stop(session="s")
                await control.wait(sent.run_id, drained=True)
                spare = {control._processes._workers._spare}  # type: ignore[attr-defined]
                left = [pid for pid in marked(witness) if pid != os.getpid()]
                assert len(left) <= len(spare)  # the warm worker of the next run
                receipt = await control.receipt(sent.run_id)
                assert receipt.drain is Drain.OBSERVED and receipt.processes.ended >= 6
        finally:
            del os.environ["WITNESS_TOOL"]
        assert [pid for pid in marked(witness) if pid != os.getpid()] == []

    asyncio.run(main())


@pytest.mark.parametrize("grade", GRADES)
def test_a_stop_at_any_instant_of_a_spawn(grade: Grade | None, tmp_path: Path) -> None:
    """A stop at any instant of a spawn leaves no process at `drained`, and none comes later."""
    witness, trace = uuid.uuid4().hex, tmp_path / "trace"

    async def agent(run: Run, message: Message) -> None:
        line = f"setsid sh -c 'while :; do echo x >> {trace}; sleep 0.01; done' & wait"
        await swallowed(run.spawn("sh", "-c", line, env={"WITNESS": witness}))

    async def main() -> None:
        random = Random(4)
        async with open_control(agent, confinement=Confinement(grade=grade)) as control:
            for turn in range(25):
                sent = await control.send("s", "go")
                if turn % 2:
                    await asyncio.sleep(random.random() * 0.02)
                else:
                    for _ in range(random.randrange(30)):
                        await asyncio.sleep(0)
                await control.stop(run=sent.run_id)
                assert (await control.wait(sent.run_id, drained=True)).drained
                assert marked(witness) == []
                size = trace.stat().st_size if trace.exists() else 0
                receipt = await control.receipt(sent.run_id)
                assert (receipt.drain, receipt.processes.stuck) == (Drain.OBSERVED, 0)
                assert (trace.stat().st_size if trace.exists() else 0) == size
            assert control._registry.runs == {} or await control.processes() == []

    asyncio.run(main())


def test_a_batch_of_which_one_still_runs_a_process(tmp_path: Path) -> None:
    """Race 8: the result of a batch's finished tool stays, and the other tool's process is gone."""
    at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        async def quick() -> str:
            return "done"

        async def slow() -> str:
            own = asyncio.ensure_future(spawn_in_vain(run, TREE.format(at=at) + "wait"))  # a task that nobody cuts
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


async def spawn_in_vain(run: Run, script: str) -> None:
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
        own = asyncio.ensure_future(spawn_in_vain(run, DEAF.format(at=at)))
        await asyncio.wait([own])

    async def main() -> None:
        async with open_control(parent, agents={"worker": worker}) as control:
            # Try longer timeouts until the child gets as far as having a process.
            for seconds in (0.3, 2, 10):
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
    """Race 58: a grandchild run's process in a session of its own dies with the top, whatever rights the run takes."""
    at = tmp_path / "pid"

    async def top(run: Run, message: Message) -> None:
        await run.delegate("middle", "work")

    async def middle(run: Run, message: Message) -> None:
        await run.delegate("bottom", "work")

    async def bottom(run: Run, message: Message) -> None:
        own = asyncio.ensure_future(spawn_in_vain(run, TREE.format(at=at) + "wait"))
        await asyncio.wait([own])

    async def main() -> None:
        async with open_control(top, agents={"middle": middle, "bottom": bottom}) as control:
            sent = await control.send("s", "go")
            pid = await pid_in(at)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert not there(pid)

    asyncio.run(main())


SOCKET_DAEMON = """
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


SOCKET_CLIENT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(9); s.recv(9)"


def test_what_a_daemon_starts_for_a_tool_is_not_claimed(tmp_path: Path) -> None:
    """Race 73: the local client is gone at `drained`; what another daemon started lives, and is called unseen."""
    path, at = tmp_path / "socket", tmp_path / "pid"
    daemon = subprocess.Popen([sys.executable, "-c", SOCKET_DAEMON, str(path), str(at)])

    async def agent(run: Run, message: Message) -> None:
        await run.spawn(sys.executable, "-c", SOCKET_CLIENT, str(path))

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
