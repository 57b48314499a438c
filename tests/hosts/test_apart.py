"""An agent under `agent_user` reaches neither another session's host, nor that host's children, nor its warden."""

import asyncio
import json
import os
import pwd
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock import Confinement, Control, Message, Run, open_control
from interlock.processes.base import ENVIRONMENT, Grade
from interlock.processes.containment import LocalContainment
from interlock.processes.local import LocalProcesses
from processes.test_spawn import members

from .test_zygote import hosting, module, reply

__all__ = ["module"]

both_grades = pytest.mark.parametrize("grade", [None, Grade.KEEPER], ids=["best", "keeper"])
AGENT = """
import asyncio, ctypes, json, os, signal, subprocess
turns, children = 0, []

def reach(pid):
    done = []
    if os.path.exists(f"/proc/{pid}"):
        done.append("sees")
    for name in ("environ", "mem", "fd", "maps"):
        try:
            path = f"/proc/{pid}/{name}"
            os.listdir(path) if name == "fd" else open(path, "rb").read(0 if name == "mem" else 1)
            done.append("reads " + name)
        except OSError:
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) == 0:  # PTRACE_ATTACH
        done.append("traces")
        os.waitpid(pid, 0x40000000)
        libc.ptrace(17, pid, None, None)
    for number in (0, signal.SIGCONT, signal.SIGKILL):
        try:
            os.kill(pid, number)
            done.append(f"signals {number}")
        except OSError:
            pass
    return done

async def agent(run, message):
    global turns
    turns += 1
    if message.text == "start":
        children.append(subprocess.Popen(["sleep", "1000"]))
        server = await run.spawn("sleep", "1000", cwd="/", detached=True, name="server")
        return json.dumps([server.pid, turns])
    if message.text == "count":
        return json.dumps([turns, [child.poll() for child in children], os.getresuid()])
    return json.dumps([found for pid in json.loads(message.text) if (found := [pid, *reach(pid)])[1:]])
"""


def need_root() -> None:
    """Skip where this process may not give rights away."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give rights away and make PID namespaces")


def containments(control: Control) -> list[LocalContainment]:
    """Return every containment there is."""
    assert isinstance(control._processes, LocalProcesses)
    return list(control._processes._containments.values())


@both_grades
def test_one_session_s_agent_reaches_nothing_of_another_s(grade: Grade | None, module: Callable[[str], str]) -> None:
    """An agent cannot see, signal, trace or read another session's host, its child, its processes or its keepers."""
    need_root()
    agent = module(AGENT)

    async def use(control: Control) -> None:
        await reply(control, "start", session="victim")
        assert json.loads(await reply(control, "count", session="hostile"))[0] == 1
        keepers = [each.keeper for each in containments(control) if each.keeper is not None]
        inits = [each.init for each in containments(control) if each.init is not None]
        victims = [each for each in containments(control) if "victim" in each.name]
        held = [pid for each in victims for pid in members(each)]
        assert len(victims) == 2 and len(held) == 3  # a host with a child, and a process
        assert isinstance(control._processes, LocalProcesses) and control._processes._helper is not None
        others = [*held, *keepers, *inits, control._processes._helper.process.pid, os.getpid()]
        assert json.loads(await reply(control, json.dumps(others), session="hostile")) == []
        turns, children, uids = json.loads(await reply(control, "count", session="victim"))
        assert (turns, children, set(uids)) == (2, [None], {pwd.getpwnam("nobody").pw_uid})

    hosting(agent, use, Confinement(agent_user="nobody", grade=grade))


@both_grades
def test_a_host_in_a_namespace_is_stopped_kept_and_replaced(grade: Grade | None, module: Callable[[str], str]) -> None:
    """A session's host serves the next turn; a stop ends a busy host with all it started; a new host serves then."""
    need_root()
    agent = module(
        """
        import asyncio, os, subprocess
        async def agent(run, message):
            if message.text == "busy":
                subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 1000 & wait"])
                await run.say("begun")
                await asyncio.sleep(1000)
            return str(os.getpid())
        """
    )

    async def use(control: Control) -> None:
        first = await reply(control)
        assert control.hosts is not None
        assert await reply(control) == first and control.hosts.reused == 1
        sent = await control.send("s", "busy")
        async for event in control.watch("s"):
            if "begun" in str(event):
                break
        held = {pid for each in containments(control) if each.name == "the host of s" for pid in members(each)}
        assert len(held) >= 2
        await control.stop(run=sent.run_id)
        await control.wait(sent.run_id, timeout=30, drained=True)
        assert not [pid for pid in held if Path(f"/proc/{pid}").exists()]
        assert await reply(control)

    hosting(agent, use, Confinement(agent_user="nobody", grade=grade))


def test_files_are_the_agent_user_s_whichever_host_wrote_them(module: Callable[[str], str]) -> None:
    """A host of a session can change the files that an earlier host wrote: processes are apart, files are not."""
    need_root()
    agent = module(
        """
        import os
        async def agent(run, message):
            path = os.environ["SCRATCH"] + "/notes"
            with open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(message.text)
            if message.text == "die":
                os._exit(1)
            return open(file.name).read()
        """
    )

    async def use(control: Control) -> None:
        assert await reply(control, "one,") == "one,"
        sent = await control.send("s", "die")
        await control.wait(sent.run_id, timeout=30)
        assert await reply(control, "two") in ("one,two", "one,dietwo")

    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        os.chown(scratch, pwd.getpwnam("nobody").pw_uid, -1)
        patch.setenv("SCRATCH", scratch)
        hosting(agent, use, Confinement(agent_user="nobody", environment=(*ENVIRONMENT, "SCRATCH")))


def test_a_host_that_imports_for_itself_is_apart(module: Callable[[str], str]) -> None:
    """A host that is spawned, since its module cannot be forked warm, has a PID namespace of its own too."""
    need_root()
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    agent = module(
        f"{threads}import json, os\nasync def agent(run, message):\n"
        "    return json.dumps(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))"
    )

    async def use(control: Control) -> None:
        assert control.hosts is not None and not control.hosts.warm
        for session in "ab":
            pids = json.loads(await reply(control, session=session))
            assert len(pids) == 2 and pids[0] == 1, pids

    # Root can find this Python, wherever it is installed.
    hosting(agent, use, Confinement(agent_user=pwd.getpwuid(0).pw_name))


def processes_seen() -> list[int]:
    """Return which processes this tool sees."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


async def counting(run: Run, message: Message) -> str:
    """Call the tool `processes_seen`."""
    return json.dumps(await run.call(processes_seen))


def test_a_worker_is_apart() -> None:
    """A synchronous tool of an inline agent sees its worker and no other process."""
    need_root()

    async def main() -> None:
        rights = Confinement(agent_user=pwd.getpwuid(0).pw_name)
        async with open_control(counting, confinement=rights) as control:
            for _ in range(3):
                pids = json.loads(await reply(control))
                assert len(pids) == 2 and pids[0] == 1, pids

    asyncio.run(main())
