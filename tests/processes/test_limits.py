"""Limits on processes and memory, the agent's user, and stops of runs at a limit."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from interlock.agent.order import SpawnFailed
from interlock.core.errors import BadInput
from interlock.processes import kernel
from interlock.processes.base import Confinement, Grade
from interlock.processes.local import LocalProcesses

from .test_spawn import (
    BOUND_SECONDS,
    Witness,
    both_grades,
    ended,
    members,
    order,
    pids_in,
    play,
    python,
    room,
    tree,
    until,
)

PIDS = 40
BOMB = """
import os, signal, sys
refused = 0
for _ in range(400):  # a budget of its own, should nothing stop it
    try:
        child = os.fork()
    except OSError as error:
        refused = error.errno
        break
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        while True:
            signal.pause()
    with open(sys.argv[1], "a") as file:
        print(child, file=file)
with open(sys.argv[2], "w") as file:
    print(refused, file=file)
while True:
    signal.pause()
"""


def need_root(why: str) -> None:
    """Skip where the test needs root."""
    if os.geteuid() != 0:
        pytest.skip(why)


@both_grades
def test_a_fork_bomb_hits_the_limit_and_is_stopped(grade: Grade, tmp_path: Path) -> None:
    """Race 70: a run at its limit of processes cannot start another, gets a clean refusal, and is stopped as any."""
    need_root("a limit of processes for one run needs a pids cgroup, which root can make")

    async def main() -> None:
        async with room(grade, pids=PIDS) as processes:
            assert processes.machine is not None and processes.machine.pids in ("v1", "v2")
            containment = processes.contain("run r-1.g1")
            bomb = containment.spawn(python(BOMB, str(tmp_path / "pids"), str(tmp_path / "refused")))
            await bomb.started()
            assert await pids_in(tmp_path / "refused", 1) == [errno.EAGAIN]
            forked = [int(line) for line in (tmp_path / "pids").read_text().split()]
            assert PIDS - 3 <= len(forked) < PIDS
            with pytest.raises(SpawnFailed, match="this run's limit of processes") as failed:
                await containment.spawn(order("true")).started()
            assert failed.value.errno == errno.EAGAIN
            other = processes.contain("run r-2.g1")
            assert await ended(other.spawn(order("echo", "free"))) == "free\n"
            with Witness(forked) as witness:
                containment.cut()
                async with asyncio.timeout(BOUND_SECONDS):
                    await containment.done.wait()
                assert witness.alive() == []
            assert containment.ended >= len(forked)

    play(main())


@both_grades
def test_a_limit_is_the_whole_run_s(grade: Grade, tmp_path: Path) -> None:
    """The containments of one run share its limit of processes; another run has its own."""
    need_root("a limit of processes for one run needs a pids cgroup, which root can make")

    async def main() -> None:
        async with room(grade, pids=8) as processes:
            first, second = processes.contain("run r-1.g1"), processes.contain("run r-1.g1")
            for containment in (first, second, first, second, first, second, first):
                await containment.spawn(order("sleep", "1000")).started()
            for containment in (first, second):
                with pytest.raises(SpawnFailed) as failed:
                    await containment.spawn(order("true")).started()
                assert failed.value.errno == errno.EAGAIN
            assert await ended(processes.contain("run r-1.g2").spawn(order("echo", "free"))) == "free\n"

    play(main())


@both_grades
def test_a_memory_limit_kills_only_in_its_run(grade: Grade) -> None:
    """A run that takes more memory than it may loses that process; its keeper, another run and control go on."""
    need_root("a limit of memory for one run needs a memory cgroup, which root can make")

    async def main() -> None:
        async with room(grade, memory=64 * 1024 * 1024) as processes:
            assert processes.machine is not None and processes.machine.memory in ("v1", "v2")
            greedy, modest = processes.contain("run r-1.g1"), processes.contain("run r-2.g1")
            bystander = modest.spawn(order("sleep", "1000"))
            await bystander.started()
            process = greedy.spawn(python("kept = [b'x' * 1000000 for _ in range(400)]; print(len(kept))"))
            async with asyncio.timeout(BOUND_SECONDS):
                assert await ended(process) == ""
            assert process.status == -signal.SIGKILL
            assert not bystander.exited.is_set()
            assert await ended(greedy.spawn(order("echo", "on"))) == "on\n"
            assert await ended(modest.spawn(order("echo", "on"))) == "on\n"

    play(main())


def test_leaves_carry_run_and_generation(tmp_path: Path) -> None:
    """The names of cgroups tell a person which run of which control a process belongs to."""
    need_root("the cgroup grade needs root, or a cgroup that was delegated to us")

    async def main() -> None:
        async with room(Grade.CGROUP, memory=1 << 30) as processes:
            assert processes.machine is not None
            containment = processes.contain("run r-17.g3")
            pids = await tree(containment, tmp_path / "pids")
            base = f"{kernel.MARK}{processes._owner}/run_r-17.g3"
            assert containment.leaf == f"{processes.machine.home}/{base}/k{containment.number}"
            for pid in pids:
                lines = kernel.read(f"/proc/{pid}/cgroup").splitlines()
                assert any(line.startswith("0::") and line.endswith(f"{base}/k{containment.number}") for line in lines)
                for what in ("pids", "memory"):
                    if getattr(processes.machine, what) == "v1":
                        assert any(f":{what}:" in line and line.endswith(base) for line in lines), lines
            keeper = kernel.read(f"/proc/{containment.keeper}/cgroup")
            assert kernel.MARK not in keeper
            containment.cut()
            await containment.done.wait()
            await until(lambda: not Path(containment.leaf or "").parent.exists(), "the run's directory removed")

    play(main())


WHO = """
read wait
id -u; id -g; id -G
echo "$HOME $USER $LOGNAME"
grep -E 'Uid|Gid|NoNewPrivs|CapEff|CapPrm' /proc/self/status | tr '\\n' ' '; echo
for pid in "$@"; do kill -0 "$pid" 2>/dev/null && echo reached "$pid"; done
echo end
"""


@both_grades
def test_the_agent_s_user(grade: Grade) -> None:
    """A process under agent_user has that user's ids, groups, HOME and USER, no way to privilege or its keeper."""
    need_root("only root can give rights away")
    entry = pwd.getpwnam("nobody")
    uid, gid = str(entry.pw_uid), str(entry.pw_gid)

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("true", cwd="/")))
            assert processes._helper is not None and containment.keeper is not None
            above = [str(pid) for pid in (containment.keeper, processes._helper.process.pid, os.getpid())]
            os.kill(containment.keeper, 0)
            process = containment.spawn(order("sh", "-c", WHO, "sh", *above, cwd="/", input=b"go\n"))
            seen = (await ended(process)).splitlines()
            groups = [str(group) for group in os.getgrouplist("nobody", entry.pw_gid)]
            assert seen[:2] == [uid, gid]
            assert sorted(seen[2].split()) == sorted(groups)
            assert seen[3] == f"{entry.pw_dir} nobody nobody"
            none = "0000000000000000"
            ids = ["Uid:", *[uid] * 4, "Gid:", *[gid] * 4]
            assert seen[4].split() == [*ids, "CapPrm:", none, "CapEff:", none, "NoNewPrivs:", "1"]
            assert seen[5:] == ["end"]
            terminal = containment.spawn(order("tty", pty=True, cwd="/"))
            assert (await ended(terminal)).startswith("/dev/pts/")
            with pytest.raises(SpawnFailed) as failed:
                await containment.spawn(order("no-such-program", cwd="/")).started()
            assert failed.value.errno == errno.ENOENT
            status = kernel.read(f"/proc/{containment.keeper}/status")
            assert "Uid:\t0\t0\t0\t0" in status and "Gid:\t0\t0\t0\t0" in status

    play(main())


@pytest.mark.parametrize("apart", [True, False])
@both_grades
def test_the_agent_s_user_is_ended_as_any(grade: Grade, apart: bool) -> None:
    """Race 60: the tree of another user ends with its containment, in a PID namespace too, and is counted."""
    need_root("only root can give rights away")

    async def main() -> None:
        with tempfile.TemporaryDirectory() as made:
            Path(made).chmod(0o777)
            async with room(grade, agent_user="nobody", apart=apart) as processes:
                assert processes.machine is not None and processes.machine.apart is apart
                containment = processes.contain("run r-1.g1")
                await tree(containment, Path(made) / "pids", cwd="/")
                with Witness(held := members(containment)) as witness:
                    containment.cut()
                    await containment.done.wait()
                    assert witness.alive() == []
                assert 3 <= containment.ended <= len(held)

    play(main())


def test_an_agent_s_user_that_cannot_be() -> None:
    """A control with a user who does not exist is refused at the start, with what to do."""
    with pytest.raises(BadInput, match="there is no user 'no-such-user'"):
        LocalProcesses(Confinement(agent_user="no-such-user"))


AS_NOBODY = """
import asyncio, json, os, sys, time
from interlock.processes.base import Confinement
from interlock.agent.order import SpawnFailed
from interlock.agent.order import SpawnOrder
from interlock.processes.local import LocalProcesses
from interlock.core.errors import BadInput

def mine():
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += os.stat(f"/proc/{pid}").st_uid == os.getuid()
        except FileNotFoundError:
            continue
    return count

async def main():
    try:
        LocalProcesses(Confinement(agent_user="root"))
    except BadInput as error:
        refused = str(error)
    processes = LocalProcesses(Confinement(pids=40, memory=1 << 30))
    machine = await processes.ready()
    containment = processes.contain("run r-1.g1")
    process = containment.spawn(SpawnOrder(argv=("cat", "/proc/self/limits")))
    await process.exited.wait()
    limits = process.output()[0].decode()
    code = ("import os, signal\\n"
            "count = 0\\n"
            "try:\\n"
            "    while count < 400:\\n"
            "        if os.fork() == 0: signal.pause()\\n"
            "        count += 1\\n"
            "except OSError as error: print(error.errno, count, flush=True)\\n"
            "signal.pause()\\n")
    bomb = containment.spawn(SpawnOrder(argv=(sys.executable, "-I", "-S", "-c", code), streamed=True))
    line = await bomb.line()
    try:
        await containment.spawn(SpawnOrder(argv=("true",))).started()
        failed = 0
    except SpawnFailed as error:
        failed = error.errno
    containment.cut()
    await containment.done.wait()
    left, until = mine(), time.monotonic() + 30
    while left != 2 and time.monotonic() < until:  # the keeper has said its last word, and goes
        await asyncio.sleep(0.005)
        left = mine()
    told = [machine.grade, machine.why, machine.pids, machine.memory, limits, line.decode(), failed, refused, left]
    print(json.dumps(told))
    await processes.close()

asyncio.run(main())
"""


def test_without_root_the_limits_are_rlimits() -> None:
    """A control of a user without rights has the keeper grade, says why, and bounds its runs by rlimits."""
    need_root("only root can become another user")
    user = "64321"  # no other process has this user, so the test can count
    if shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs setpriv (Debian: util-linux)")
    # With this capability the user can execute a Python that is installed under /root; it opens nothing else.
    reading = "+dac_read_search"
    become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps", reading]
    command = [*become, "--ambient-caps", reading, sys.executable, "-c", AS_NOBODY]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=4 * BOUND_SECONDS)
    assert done.returncode == 0, done.stderr
    grade, why, pids, memory, limits, line, failed, refused, left = json.loads(done.stdout)
    assert (grade, pids, memory) == ("keeper", "rlimit", "rlimit")
    assert "no cgroup" in why
    rows = {row[:26].strip(): row[26:].split() for row in limits.splitlines()}
    assert rows["Max address space"][:2] == [str(1 << 30)] * 2
    assert 40 <= int(rows["Max processes"][0]) <= 60
    number, count = line.split()
    assert int(number) == errno.EAGAIN and 30 <= int(count) <= 60
    assert failed == errno.EAGAIN
    assert "needs root" in refused
    assert left == 2  # control and its helper


RIGHTS = """
import asyncio, sys
from interlock.processes.base import Confinement
from interlock.agent.order import SpawnOrder
from interlock.processes.local import LocalProcesses

async def main():
    print(*[line for line in open("/proc/self/status") if line.startswith("CapAmb")], sep="", end="")
    processes = LocalProcesses(Confinement(agent_user="nobody"))
    await processes.ready()
    process = processes.contain("r").spawn(SpawnOrder(argv=("cat", "/proc/self/status"), cwd="/"))
    await process.started()
    await process.exited.wait()
    lines = process.output()[0].decode().splitlines()
    print(*[line for line in lines if line.startswith(("Uid", "CapAmb", "CapPrm", "CapEff"))], sep=chr(10))
    await processes.close()

asyncio.run(main())
"""


def test_ambient_capabilities_do_not_pass_to_another_user() -> None:
    """Processes of another user have no capability, also if control was given ambient ones."""
    if os.geteuid() != 0:
        pytest.skip("ambient capabilities and another user need root")
    grant = ["setpriv", "--inh-caps", "+chown", "--ambient-caps", "+chown"]
    try:
        ran = subprocess.run([*grant, sys.executable, "-c", RIGHTS], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("ambient capabilities are given with setpriv, of util-linux")
    ours, user, *theirs = ran.stdout.splitlines()
    assert int(ours.split()[1], 16) & 1, ran.stderr
    assert "0" not in user.split()[1:]
    assert {line.split()[0]: int(line.split()[1], 16) for line in theirs} == {"CapPrm:": 0, "CapEff:": 0, "CapAmb:": 0}
