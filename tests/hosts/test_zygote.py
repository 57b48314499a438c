"""The zygote: its imports, the modules that it refuses to fork, and what a host inherits from it."""

import asyncio
import json
import logging
import os
import pwd
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from interlock import BadInput, Confinement, Control, Ending, EventKind, open_control
from interlock.core.names import ErrorKind
from interlock.hosts import turn
from interlock.hosts.doctor import examine_agent
from interlock.hosts.driver import HostDriver
from interlock.hosts.forked import ForkedHosts
from interlock.processes import kernel
from interlock.processes.base import Grade

from .turns import BOUND_SECONDS, opened

AGENT = """
async def agent(run, message):
    return "here"
"""
COLD = {
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads",
    ),
    "sockets": ("import socket\npair = socket.socketpair()", "sockets"),
    "children": ("import subprocess\nchild = subprocess.Popen(['sleep', '60'])", "processes"),
    "event loop": ("import asyncio\nloop = asyncio.new_event_loop()", "sockets|event loop"),
    "poll": ("import select\npoll = select.epoll()", "event loop"),
    "patched": ("import time, os\ntime.sleep = lambda seconds: None", r"standard library \(sleep\)"),
}
BROKEN = {
    "no module": ("nowhere:agent", None, "no module 'nowhere'"),
    "a name missing": ("written:other", AGENT, "has no 'other'"),
    "not async": ("written:agent", "def agent(run, message): pass", "one async callable"),
    "raising": ("written:agent", "raise OSError('no licence')", "OSError: no licence"),
    "a module missing inside": ("written:agent", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
    "exiting": ("written:agent", "import sys; sys.exit(3)", "SystemExit: 3"),
    "dying": ("written:agent", "import os; os._exit(3)", "could not be imported"),
    "serving itself": (
        "written:agent",
        "import asyncio, interlock\nasync def main():\n    async with interlock.open_control('x:y'): pass\n"
        "asyncio.run(main())",
        "under `if __name__",
    ),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write an agent's module where it can be imported; return the agent's name."""

    def write(source: str, name: str = "written") -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return f"{name}:agent"

    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def hosting(
    agent: str, use: Callable[[Control], Coroutine[Any, Any, None]], confinement: Confinement | None = None
) -> None:
    """Open a control with hosts, use it, and check that nothing is left."""
    before = set(os.listdir("/proc/self/fd"))

    async def main() -> None:
        async with open_control(agent, driver="host", confinement=confinement) as control:
            await use(control)

    asyncio.run(main())
    end = time.monotonic() + 30
    while (len(os.listdir("/proc/self/fd")) > len(before) or kernel.children()) and time.monotonic() < end:
        time.sleep(0.01)  # a thread reaps a helper that did not start
    assert len(os.listdir("/proc/self/fd")) <= len(before), "descriptors were left open"
    assert kernel.children() == []


async def reply(control: Control, text: str = "hello", session: str = "s") -> str:
    """Send a message and return the reply."""
    sent = await control.send(session, text)
    outcome = await control.wait(sent.run_id, timeout=60)
    assert outcome.ending is Ending.COMPLETED, outcome
    return outcome.text


@pytest.mark.parametrize("why", COLD)
def test_what_cannot_be_forked_is_spawned(
    why: str, module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Threads, sockets, children, a loop or a patched library make hosts spawned; the log says why, and they work."""
    source, words = COLD[why]
    agent = module(source + AGENT)

    async def use(control: Control) -> None:
        assert control.hosts is not None
        assert not control.hosts.warm
        assert await reply(control) == "here"
        assert await reply(control) == "here"
        assert control.hosts.reused == 1

    with caplog.at_level(logging.WARNING, logger="interlock"):
        hosting(agent, use)
    [said] = [record.getMessage() for record in caplog.records if "not forked warm" in record.getMessage()]
    assert re.search(words, said), said


@pytest.mark.parametrize("trouble", BROKEN)
def test_an_agent_that_cannot_be_imported(
    trouble: str, module: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Opening a control says what is wrong with an agent that cannot be imported, and leaves nothing."""
    agent, source, words = BROKEN[trouble]
    if source is not None:
        module(source)

    async def use(control: Control) -> None:
        raise AssertionError("it must not open")

    with pytest.raises((BadInput, OSError), match=words):
        hosting(agent, use)


@pytest.mark.parametrize("given", ["agent", "a b:agent", "module:", ":agent", "__main__:agent", "module:1x"])
def test_a_name_that_is_none(given: str) -> None:
    """Opening a control refuses a name that cannot be an agent's before any process is started."""

    async def use(control: Control) -> None:
        raise AssertionError("it must not open")

    with pytest.raises(BadInput, match=r"module:name|own name"):
        hosting(given, use)


def test_a_callable_is_not_enough() -> None:
    """Opening a control with a function is refused with the name to give instead: a host imports by name."""

    async def main() -> None:
        async with open_control(reply, driver="host"):  # type: ignore[arg-type]
            raise AssertionError("it must not open")

    with pytest.raises(BadInput, match="as text, 'module:name'"):
        asyncio.run(main())


def test_the_agent_is_imported_once_and_control_does_not(module: Callable[[str], str], tmp_path: Path) -> None:
    """The zygote imports the agent once, whatever is forked later; control's own modules stay as they were."""
    agent = module(
        """
        import os
        with open(os.environ["IMPORTS"], "a") as file:
            file.write("imported\\n")
        async def agent(run, message):
            return str(os.getpid())
        """
    )
    os.environ["IMPORTS"] = str(tmp_path / "imports")

    async def use(control: Control) -> None:
        pids = {await reply(control, session=session) for session in "abc"}
        assert len(pids) == 3
        assert str(os.getpid()) not in pids

    try:
        hosting(agent, use)
    finally:
        del os.environ["IMPORTS"]
    assert (tmp_path / "imports").read_text() == "imported\n"
    assert "written" not in sys.modules


@pytest.mark.parametrize("grade", [None, Grade.KEEPER], ids=["best", "keeper"])
def test_a_host_has_no_descriptor_but_its_own(module: Callable[[str], str], grade: Grade | None) -> None:
    """A host has what its module opened, and nothing of zygote, warden or others: a held pipe would hide a death."""
    agent = module(
        """
        import json, os
        opened = open(__file__)
        async def agent(run, message):
            kinds = []
            for name in sorted(set(os.listdir("/proc/self/fd")) - {"1", "2"}):
                try:
                    kinds.append(os.readlink(f"/proc/self/fd/{name}").split("[")[0])
                except OSError:
                    pass
            return json.dumps([sorted(kinds), opened.read(1)])
        """
    )

    async def use(control: Control) -> None:
        for session in "abcd":
            kinds = ["socket:"] * 6
            while kinds.count("socket:") > 3:  # a spare may still rehearse over a pair of its own
                kinds, _ = json.loads(await reply(control, session=session))
            assert kinds.count("socket:") == 3, kinds  # the one it hears on, and the loop's own pair
            assert kinds.count("pipe:") == 2, kinds  # the one it speaks in, and its notice
            assert not [kind for kind in kinds if "pidfd" in kind], kinds

    hosting(agent, use, Confinement(grade=grade))


def test_random_numbers_and_signals_are_a_host_s_own(module: Callable[[str], str]) -> None:
    """Two forks draw different random numbers, and have no handler, mask or wake-up descriptor of the zygote."""
    agent = module(
        """
        import json, os, random, signal
        async def agent(run, message):
            mask = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            child = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
            return json.dumps([random.random(), mask, child, os.getsid(0) == os.getpid(), os.getcwd()])
        """
    )

    async def use(control: Control) -> None:
        first, second = [json.loads(await reply(control, session=session)) for session in "ab"]
        assert first[0] != second[0]
        assert first[1:] == second[1:] == [[], True, True, os.getcwd()]

    hosting(agent, use)


@pytest.mark.parametrize("apart", [True, False])
def test_a_host_has_its_user_s_rights_and_no_more(apart: bool, module: Callable[[str], str]) -> None:
    """A host under agent_user has only that user's ids and no capability, and cannot reach its warden."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give rights away")
    agent = module(
        """
        import json, os
        async def agent(run, message):
            try:
                reach = os.getppid() != 0  # 0 is a parent outside of our PID namespace
                os.kill(os.getppid(), 0)
            except PermissionError:
                reach = False
            with open("/proc/self/status") as file:
                caps = [line.split()[1] for line in file if line.startswith(("CapEff", "CapPrm", "CapAmb"))]
            seen = [os.environ["HOME"], "IMPORTS" in os.environ]
            return json.dumps([os.getresuid(), os.getresgid(), caps, reach, *seen])
        """
    )
    nobody = pwd.getpwnam("nobody")

    async def use(control: Control) -> None:
        uids, gids, caps, reach, home, leaked = json.loads(await reply(control))
        assert set(uids) == {nobody.pw_uid}
        assert set(gids) == {nobody.pw_gid}
        assert set(caps) == {"0" * 16}
        assert (reach, home, leaked) == (False, nobody.pw_dir, False)

    os.environ["IMPORTS"] = "secret"
    try:
        hosting(agent, use, Confinement(agent_user="nobody", apart=apart))
    finally:
        del os.environ["IMPORTS"]


def test_the_doctor_says_how_an_agent_does(module: Callable[[str], str]) -> None:
    """The doctor says whether an agent is warm and why not, what it weighs, and why one cannot be imported."""
    warm = {fact.name: fact for fact in asyncio.run(examine_agent(module(AGENT)))}
    assert warm["hosts"].good
    assert "forked warm" in warm["hosts"].found
    assert "MiB" in warm["memory of a host"].found
    cold = {fact.name: fact for fact in asyncio.run(examine_agent(module(COLD["threads"][0] + AGENT, "chilly")))}
    assert cold["hosts"].good is False
    assert "started threads" in cold["hosts"].found
    assert cold["hosts"].change
    [broken] = asyncio.run(examine_agent("nowhere:agent"))
    assert broken.good is False
    assert "no module" in broken.found
    assert kernel.children() == []


def test_hosts_are_bounded_in_number(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The host that was idle longest is ended when there are too many; its session gets a fresh one."""
    monkeypatch.setattr("interlock.hosts.driver.IDLE_HOSTS", 2)
    agent = module(
        "import os\nturns = 0\nasync def agent(run, message):\n    global turns; turns += 1; return str(turns)"
    )

    async def use(control: Control) -> None:
        assert [await reply(control, session=session) for session in "abc"] == ["1", "1", "1"]
        assert control.hosts is not None
        assert control.hosts.idle == 2
        assert [await reply(control, session=session) for session in "cba"] == ["2", "2", "1"]

    hosting(agent, use)


def test_hosts_are_bounded_in_age(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that no message needs is ended after a while."""
    monkeypatch.setattr("interlock.hosts.driver.IDLE_SECONDS", 0.05)
    agent = module("import os\nasync def agent(run, message):\n    return str(os.getpid())")

    async def use(control: Control) -> None:
        pid = int(await reply(control))
        async with asyncio.timeout(30):
            while kernel.stat(pid) is not None:
                await asyncio.sleep(0.01)
        assert int(await reply(control)) != pid

    hosting(agent, use)


def test_a_reset_session_gets_a_fresh_host(module: Callable[[str], str]) -> None:
    """A reset ends a session's host, so that an agent's memory of a conversation goes with the conversation."""
    agent = module("turns = 0\nasync def agent(run, message):\n    global turns; turns += 1; return str(turns)")

    async def use(control: Control) -> None:
        assert [await reply(control), await reply(control)] == ["1", "2"]
        await control.reset("s")
        assert await reply(control) == "1"

    hosting(agent, use)


def test_a_host_s_death_is_told_with_its_signal(module: Callable[[str], str]) -> None:
    """A host killed by a signal fails its run as the host's failure, and the reason names the signal."""
    agent = module("import os, signal\nasync def agent(run, message):\n    os.kill(os.getpid(), signal.SIGBUS)")

    async def use(control: Control) -> None:
        sent = await control.send("s", "hello")
        outcome = await control.wait(sent.run_id, timeout=60)
        assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.HOST)
        assert signal.SIGBUS.name in (outcome.error or "")

    hosting(agent, use)


def test_a_loop_that_does_not_show_its_timers_is_not_judged_clean(module: Callable[[str], str], tmp_path: Path) -> None:
    """A stop of an agent on uvloop that set a timer ends the host, and nothing acts after drained."""
    agent = module(
        """
        import asyncio, pathlib, uvloop
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

        async def agent(run, message):
            place = pathlib.Path(message.text)
            asyncio.get_running_loop().call_later(0.5, (place / "late").touch)
            (place / "begun").touch()
            await asyncio.sleep(120)
        """
    )

    async def use(control: Control) -> None:
        sent = await control.send("s", str(tmp_path))
        async with asyncio.timeout(30):
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
        receipt = await control.receipt(sent.run_id)
        late = (tmp_path / "late").exists()  # on a slow machine the timer fires before the end
        assert receipt.host == "killed"
        await asyncio.sleep(1.0)
        assert (tmp_path / "late").exists() is late

    hosting(agent, use)


def test_a_task_of_an_earlier_turn_that_was_given_work_goes_with_its_turn(
    module: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of an earlier turn that a stopped turn woke does not act after drained; a task at rest is kept."""
    agent = module(
        """
        import asyncio, pathlib
        work = task = None

        async def works(reader, writer):
            while True:
                place = await work.get()
                writer.write(b"asked\\n")
                await reader.readline()
                (place / "late").touch()

        async def agent(run, message):
            global work, task
            what, _, rest = message.text.partition(" ")
            if what == "keep":
                work = asyncio.Queue()
                task = asyncio.create_task(works(*await asyncio.open_connection("127.0.0.1", int(rest))))
                await asyncio.sleep(0.05)
                return "kept"
            if what == "work":
                work.put_nowait(pathlib.Path(rest))
            await run.say("begun")
            await asyncio.sleep(120)
        """
    )
    monkeypatch.setattr(turn, "SETTLE_SECONDS", 30.0)  # a host that settles is in time, however slow the machine
    asked, answer = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            asked.set()
            await answer.wait()
            writer.write(b"answered\n")
        writer.close()

    async def stopped(control: Control, text: str) -> str | None:
        sent = await control.send("s", text)
        async with aclosing(control.watch(run=sent.run_id)) as events:
            async for event in events:
                if event.kind is EventKind.DELTA:
                    break
        if text.startswith("work"):
            await asked.wait()
        await control.stop(session="s")
        await control.wait(sent.run_id, drained=True)
        return (await control.receipt(sent.run_id)).host

    async def use(control: Control) -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with asyncio.timeout(60):
            assert await reply(control, f"keep {server.sockets[0].getsockname()[1]}") == "kept"
            assert await stopped(control, "rest") == "reused"
            assert await stopped(control, f"work {tmp_path}") == "killed"
        answer.set()
        await asyncio.sleep(0.5)
        assert not (tmp_path / "late").exists()
        server.close()

    hosting(agent, use)


def test_a_dead_zygote_that_nobody_has_heard_of_costs_no_run() -> None:
    """The driver hears of a zygote's death while the loop was busy before it spends its attempts to fork."""

    async def main() -> None:
        async with opened() as control:
            driver = control._driver
            assert isinstance(driver, HostDriver)
            assert isinstance(driver._hosts, ForkedHosts)
            assert driver._hosts._zygote is not None
            pid = driver._hosts._zygote.process.pid
            os.kill(pid, 9)
            until = time.monotonic() + BOUND_SECONDS
            while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
                time.sleep(0.001)
            host = await driver._start()
            assert host.alive
            host.kill()

    asyncio.run(main())
