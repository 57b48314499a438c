"""Detached processes belong to the session, outlive its runs, and end with a stop of the session or with control."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from interlock import Control, Drain, Ending, Message, Run, Settings, open_control
from interlock.core.names import SessionId

from .scene import echoes, idles, put_forward
from .test_spawn import DEAF, TREE, at_each_grade, confined, descriptors, pid_in, there, until

SECONDS = 30.0
DEADLINE = 300.0  # seconds of a run on the loop's clock, which tests put forward


class Server:
    """An agent that detaches a deaf process with a hidden child, and then stays or returns as the message says."""

    def __init__(self, at: Path, *, name: str | None = None) -> None:
        self.main = at / "main"
        self.child = at / "child"
        self.name = name

    async def __call__(self, run: Run, message: Message) -> str | None:
        if message.text.startswith("echo"):
            return await echoes(run, message)
        script = TREE.format(at=self.child) + DEAF.format(at=self.main)
        await run.spawn("sh", "-c", script, detached=True, name=self.name)
        return await idles(run, message) if message.text == "stay" else "detached"

    async def pids(self) -> list[int]:
        """Wait until both processes have begun, and return their pids."""
        return [await pid_in(self.main), await pid_in(self.child)]


async def _listed(control: Control, pid: int) -> None:
    """Wait until control lists a process, which may have begun before that."""
    async with asyncio.timeout(SECONDS):
        while pid not in [each.pid for each in await control.processes()]:
            await asyncio.sleep(0.002)


async def _complete(control: Control, run: str) -> None:
    """Do nothing: the agent returns by itself."""


async def _time_out(control: Control, run: str) -> None:
    put_forward(DEADLINE)


async def _take_over(control: Control, run: str) -> None:
    await control.send("s", "echo")


async def _stop_run(control: Control, run: str) -> None:
    assert (await control.stop(run=run)).aborted


@pytest.mark.parametrize(
    ("text", "end", "ending", "deadline"),
    [
        ("go", _complete, Ending.COMPLETED, None),
        ("stay", _take_over, Ending.SUPERSEDED, None),
        ("stay", _stop_run, Ending.STOPPED, None),
        ("stay", _time_out, Ending.TIMED_OUT, DEADLINE),
    ],
    ids=["completion", "takeover", "stop of the run", "deadline"],
)
def test_it_outlives_its_run(
    text: str, end: Callable[[Control, str], Awaitable[None]], ending: Ending, deadline: float | None, tmp_path: Path
) -> None:
    """A detached process survives its run, is in its receipt and listed, and ends with its session's stop (race 57)."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent, deadline=deadline) as control:
            sent = await control.send("s", text)
            pids = await agent.pids()
            await _listed(control, pids[0])
            await end(control, sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert outcome.ending is ending
            assert (receipt.processes.detached, receipt.processes.ended) == (1, 0)
            assert [there(pid) for pid in pids] == [True, True]
            [listed] = await control.processes("s")
            assert (listed.pid, listed.detached, listed.run_id) == (pids[0], True, sent.run_id)
            stopped = await control.stop(session="s")
            assert stopped.aborted
            await until(lambda: not any(there(pid) for pid in pids))

    asyncio.run(main())


def test_a_stop_of_the_run_while_it_starts(tmp_path: Path) -> None:
    """A detached process that had not begun when its run was stopped never does, and no receipt calls it detached."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent) as control:
            warm = await control.send("s", "go")
            await control.wait(warm.run_id, drained=True)
            [first] = await control.processes("s")
            sent = await control.send("s", "stay")
            async with asyncio.timeout(SECONDS):
                # The list has the process from the step that asks for it, before it has begun.
                while len(await control.processes("s")) < 2:
                    await asyncio.sleep(0)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.processes.detached, receipt.drain) == (0, Drain.OBSERVED)
            assert [each.pid for each in await control.processes("s")] == [first.pid]
            assert there(first.pid)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["stop", "reset"])
@at_each_grade
def test_a_stop_of_the_session_ends_it(grade: None, how: str, tmp_path: Path) -> None:
    """A stop or reset of a session without a run ends its detached processes, and has a receipt of its own."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            pids = await agent.pids()
            first = await (control.stop(session="s") if how == "stop" else control.reset("s"))
            assert (first.runs, first.aborted, first.cause) == ((), True, Ending.STOPPED)
            assert first.id is not None
            assert await _drained(control, first.id) == Drain.OBSERVED
            assert [there(pid) for pid in pids] == [False, False]
            last = await control.receipt(first.id)
            assert last.processes.ended >= 2 and last.processes.stuck == 0 and last.grade != "inline"
            again = await control.stop(session="s")
            assert (again.aborted, again.runs) == (False, ())
            assert await control.processes() == []

    asyncio.run(main())


async def _drained(control: Control, receipt: str) -> Drain:
    async with asyncio.timeout(SECONDS):
        while (found := (await control.receipt(receipt)).drain) is Drain.PENDING:
            await asyncio.sleep(0.002)
    return found


def test_a_stop_of_run_and_session_together(tmp_path: Path) -> None:
    """A stop of the session during the run ends the run and its detached processes in one fall with one receipt."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "stay")
            pids = await agent.pids()
            receipt = await control.stop(session="s")
            assert [run.id for run in receipt.runs] == [sent.run_id]
            await control.wait(sent.run_id, drained=True)
            assert [there(pid) for pid in pids] == [False, False]
            last = await control.receipt(sent.run_id)
            assert (last.processes.detached, last.drain) == (0, Drain.OBSERVED) and last.processes.ended >= 2

    asyncio.run(main())


@at_each_grade
def test_closing_control_ends_it(grade: None, tmp_path: Path) -> None:
    """Closing control ends every detached process promptly and gives every descriptor back."""
    agent = Server(tmp_path)

    async def main() -> None:
        await asyncio.to_thread(int)
        before = descriptors()
        long = Settings(grace_seconds=2 * SECONDS, drain_seconds=4 * SECONDS)
        async with open_control(agent, settings=long, confinement=confined(grade)) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            pids = await agent.pids()
            began = time.monotonic()
        took = time.monotonic() - began
        assert [there(pid) for pid in pids] == [False, False]
        await until(lambda: descriptors() <= before)
        assert took < SECONDS, f"nothing had a grace, yet closing took {took:.1f} s"

    asyncio.run(main())


def test_whose_it_is(tmp_path: Path) -> None:
    """A detached process is seen and ended by its principal, the session's owner and an admin only."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent, admins=["root"]) as control:
            sent = await control.send("s", "go", by="ann")
            await control.wait(sent.run_id, by="ann", drained=True)
            pids = await agent.pids()
            assert await control.processes(by="eve") == []
            assert await control.processes("s", by="eve") == []
            refused = await control.stop(session="s", by="eve")
            assert (refused.aborted, refused.runs) == (False, ())
            assert [there(pid) for pid in pids] == [True, True]
            for who in ("ann", "root", "local"):
                assert [each.pid for each in await control.processes("s", by=who)] == [pids[0]]
            ended = await control.stop(session="s", by="ann")
            assert ended.aborted and ended.id is not None
            assert await _drained(control, ended.id) is Drain.OBSERVED
            assert not any(there(pid) for pid in pids)
            assert (await control.receipt(ended.id, by="ann")).processes.ended >= 2

    asyncio.run(main())


def test_each_ends_what_is_theirs(tmp_path: Path) -> None:
    """A guest's stop of a shared session ends the processes that the guest detached, and leaves the owner's."""
    made: dict[str, int | None] = {}

    async def agent(run: Run, message: Message) -> str:
        made[message.by] = (await run.spawn("sleep", "100", detached=True)).pid
        return "up"

    async def main() -> None:
        async with open_control(agent) as control:
            for who in ("ann", "ben"):
                sent = await control.send("s", "go", by=who)
                await control.wait(sent.run_id, by=who, drained=True)
                if who == "ann":
                    await control.share("s", with_="ben")
            assert [each.pid for each in await control.processes("s", by="ben")] == [made["ben"]]
            assert (await control.stop(session="s", by="ben")).aborted
            await until(lambda: not there(made["ben"]))
            assert there(made["ann"])
            assert (await control.stop(session="s", by="ann")).aborted
            await until(lambda: not there(made["ann"]))

    asyncio.run(main())


def test_the_session_is_kept_while_it_lives(tmp_path: Path) -> None:
    """A session stays in memory while its detached process lives, and gives its descriptors back when that ends."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def agent(run: Run, message: Message) -> str | None:
        if message.text == "warm":
            await run.spawn("true")
            return None
        return str((await run.spawn("sh", "-c", f"read line < {fifo}", detached=True, name="reader")).pid)

    async def main() -> None:
        async with open_control(agent) as control:
            warm = await control.send("other", "warm")
            await control.wait(warm.run_id, drained=True)
            registry = control._registry
            await until(lambda: not registry.sessions)
            before = descriptors()
            sent = await control.send("s", "go")
            pid = int((await control.wait(sent.run_id, drained=True)).text)
            await until(lambda: not registry.runs)
            assert list(registry.sessions) == [SessionId("s")]
            assert [(each.pid, each.name) for each in await control.processes("s")] == [(pid, "reader")]
            await asyncio.to_thread(fifo.write_text, "go on\n")
            await until(lambda: not registry.sessions)
            assert not there(pid)
            assert await control.processes() == []
            await until(lambda: descriptors() <= before)

    asyncio.run(main())


def test_the_session_is_forgotten_after_a_stop(tmp_path: Path) -> None:
    """A session whose stop ended only detached processes leaves nothing in memory."""
    agent = Server(tmp_path)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            await agent.pids()
            await control.stop(session="s")
            registry = control._registry
            await until(lambda: not registry.sessions)
            await until(lambda: not registry.falls)
            assert registry.runs == {}
            await until(lambda: not control._crew._tasks)

    asyncio.run(main())


def test_a_later_run_replaces_it_by_name(tmp_path: Path) -> None:
    """A detached process is ended and seen gone before a later run of the session starts another of the same name."""
    lock, clash = tmp_path / "lock", tmp_path / "clash"
    script = f"exec 9> {lock}; flock -n 9 || {{ echo > {clash}; exit 9; }}; setsid sleep 100 & exec sleep 100"
    before: list[bool] = []

    async def agent(run: Run, message: Message) -> str:
        old = message.previous
        server = await run.spawn("sh", "-c", script, detached=True, name="server")
        if old is not None:
            before.append(there(int(old.text)))
        return str(server.pid)

    async def main() -> None:
        async with open_control(agent) as control:
            for _ in range(3):
                sent = await control.send("s", "go")
                pid = int((await control.wait(sent.run_id, drained=True)).text)
                assert [(each.pid, each.name) for each in await control.processes("s")] == [(pid, "server")]
        assert before == [False, False]
        assert not clash.exists()

    asyncio.run(main())


def test_it_has_its_grace(tmp_path: Path) -> None:
    """A detached process with a grace gets TERM first when its session is stopped; the stop's answer does not wait."""
    up, bye = tmp_path / "up", tmp_path / "bye"
    script = f"trap 'echo > {bye}; exit 0' TERM; echo $$ > {up}; while :; do sleep 0.01; done"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", script, detached=True, grace=SECONDS)

    async def main() -> None:
        async with open_control(agent, settings=Settings(drain_seconds=2 * SECONDS)) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            pid = await pid_in(up)
            receipt = await control.stop(session="s")
            assert receipt.id is not None
            assert await _drained(control, receipt.id) == Drain.OBSERVED
            assert bye.exists() and not there(pid)

    asyncio.run(main())


def test_a_child_s_detached_process_belongs_to_the_session(tmp_path: Path) -> None:
    """A process that a child run detached outlives both runs, and is listed and ended with the parent's session."""
    child = Server(tmp_path)

    async def agent(run: Run, message: Message) -> str:
        return (await run.delegate("child", "go")).text or ""

    async def main() -> None:
        async with open_control(agent, agents={"child": child}) as control:
            sent = await control.send("s", "go")
            assert (await control.wait(sent.run_id, drained=True)).text == "detached"
            pids = await child.pids()
            assert [each.pid for each in await control.processes("s")] == [pids[0]]
            assert (await control.stop(session="s")).aborted
            await until(lambda: not any(there(pid) for pid in pids))

    asyncio.run(main())


def test_its_own_timeout(tmp_path: Path) -> None:
    """A detached process with a timeout ends when that time is over, though its run is long gone."""
    agent_at = tmp_path / "pid"

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sh", "-c", DEAF.format(at=agent_at), detached=True, timeout=DEADLINE)

    async def main() -> None:
        async with open_control(agent, settings=Settings(grace_seconds=0.05)) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            pid = await pid_in(agent_at)
            await _listed(control, pid)
            put_forward(DEADLINE)
            await until(lambda: not there(pid))
            await until(lambda: not control._registry.sessions)

    asyncio.run(main())
