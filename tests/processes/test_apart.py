"""Processes of one user in different containments do not see, signal or trace each other or each other's keepers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from interlock import Control, Drain, Ending, Message, Run
from interlock.agent.order import SpawnFailed
from interlock.processes import kernel
from interlock.processes.base import Grade
from interlock.processes.doctor import examine

from .scene import opened, over
from .test_limits import need_root
from .test_spawn import BOUND_SECONDS, Witness, both_grades, ended, leave_descriptors, members, order, play, room, until

REACH = """
cd /proc
for pid in "$@"; do
    test -e /proc/$pid && echo "sees $pid"
    kill -0 $pid 2>/dev/null && echo "signals $pid"
    cat /proc/$pid/environ >/dev/null 2>&1 && echo "reads $pid"
done
kill -KILL -1 2>/dev/null
kill -0 1 2>/dev/null && echo "signals its init"
cat /proc/1/environ >/dev/null 2>&1 && echo "reads its init"
echo $(echo [0-9]*)
"""


@both_grades
def test_processes_of_one_user_do_not_reach_each_other(grade: Grade) -> None:
    """A process of one containment cannot see, signal or read another's process, its keeper, the helper or control."""
    need_root("only root can give rights away, and make PID namespaces")

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            assert processes.machine is not None and processes.machine.apart, processes.machine
            victim, hostile = processes.contain("run r-1.g1"), processes.contain("run r-2.g1")
            sleeping = victim.spawn(order("sleep", "1000", cwd="/"))
            await sleeping.started()
            await ended(hostile.spawn(order("true", cwd="/")))
            assert processes._helper is not None
            others = [sleeping.pid, victim.keeper, victim.init, hostile.keeper, processes._helper.process.pid]
            assert None not in others
            words = [str(pid) for pid in (*others, os.getpid())]
            spy = hostile.spawn(order("sh", "-c", REACH, "sh", *words, cwd="/"))
            said = (await ended(spy)).splitlines()
            assert len(said) == 1 and said[0].split()[0] == "1" and len(said[0].split()) <= 3, said
            assert not sleeping.exited.is_set()
            again = await ended(hostile.spawn(order("echo", "again", cwd="/")))
            assert again == "again\n"

    play(main())


@both_grades
def test_what_a_process_leaves_inside_goes_on_until_the_end(grade: Grade) -> None:
    """A daemon in a PID namespace outlives the program that left it, and is ended and counted with the rest."""
    need_root("only root can make PID namespaces")

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            containment = processes.contain("run r-1.g1")
            assert await ended(containment.spawn(order("sh", "-c", "setsid sleep 1000 & echo left", cwd="/")))
            left = await until(lambda: one if len(one := members(containment)) == 1 else None, "one is left")
            with Witness(left) as witness:
                assert await ended(containment.spawn(order("echo", "next", cwd="/"))) == "next\n"
                assert witness.alive() == list(left)
                containment.cut()
                await containment.done.wait()
                assert witness.alive() == []
            assert containment.ended == 1

    play(main())


@both_grades
def test_a_containment_that_serves_once_goes_by_itself(grade: Grade) -> None:
    """A containment that serves one program is done when the last process is gone, a daemon of the program included."""
    need_root("only root can make PID namespaces")

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            containment = processes.contain("run r-1.g1", once=True)
            process = containment.spawn(order("sh", "-c", "read go <&0 & sleep 1000 & echo $!", cwd="/"))
            await process.exited.wait()
            [left] = await until(lambda: one if len(one := members(containment)) == 1 else None, "one is left")
            assert not containment.done.is_set()
            os.kill(left, signal.SIGKILL)
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()
            assert containment.ended == 0

    play(main())


@both_grades
@pytest.mark.parametrize("who", ["keeper", "helper", "init"])
def test_the_death_of_who_keeps_it_ends_a_namespace(who: str, grade: Grade) -> None:
    """A KILL of a keeper, a helper or an init ends everything in its PID namespace, and the next spawn works."""
    need_root("only root can make PID namespaces")

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            containment = processes.contain("run r-1.g1")
            script = "trap '' TERM; setsid sleep 1000 & echo up; wait"
            process = containment.spawn(order("sh", "-c", script, cwd="/", streamed=True))
            assert await process.line() == b"up"
            assert processes._helper is not None
            pids = {"keeper": containment.keeper, "helper": processes._helper.process.pid, "init": containment.init}
            with Witness(members(containment)) as witness:
                os.kill(pids[who] or 0, signal.SIGKILL)
                assert await until(lambda: not witness.alive(), "all of it is gone") is True
            containment.cut()
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()
            await processes.ready()
            assert await ended(processes.contain("run r-2.g1").spawn(order("echo", "up", cwd="/"))) == "up\n"

    play(main())


@both_grades
def test_a_grace_inside_a_namespace(grade: Grade) -> None:
    """A program with a grace in a PID namespace may catch TERM and need not be killed, since it is no init."""
    need_root("only root can make PID namespaces")

    async def main() -> None:
        async with room(grade, agent_user="nobody") as processes:
            catching = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"
            for script, status in ((catching, 7), ("echo up; exec sleep 1000", -15)):
                containment = processes.contain("run r-1.g1", grace=BOUND_SECONDS, once=True)
                process = containment.spawn(order("sh", "-c", script, cwd="/", streamed=True, grace=BOUND_SECONDS))
                assert await process.line() == b"up"
                containment.cut()
                async with asyncio.timeout(BOUND_SECONDS):
                    await containment.done.wait()
                assert process.status == status

    play(main())


UNABLE = """
import asyncio, logging, sys
from interlock.processes.base import Confinement
from interlock.processes.doctor import examine
from interlock.processes.local import LocalProcesses
logging.basicConfig(format="%(message)s")

async def main():
    processes = LocalProcesses(Confinement(agent_user="nobody"))
    machine = await processes.ready()
    print(machine.apart, machine.together)
    await processes.close()
    for fact in (await examine()).facts:
        if fact.name == "agents apart":
            print(fact.good, fact.found, fact.change)

asyncio.run(main())
"""


def test_a_machine_that_keeps_nobody_apart() -> None:
    """A machine that refuses PID namespaces is reported at the start and by the doctor, with what to change."""
    need_root("a capability is taken away, and rights are given away")
    try:
        done = subprocess.run(
            ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", sys.executable, "-c", UNABLE],
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("a capability is taken away with setpriv, of util-linux")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("False no PID namespace can be made") and "not permitted" in first
    assert second.startswith("False no") and "SYS_ADMIN" in second
    assert "agents of user nobody can reach each other's processes" in done.stderr


def test_the_doctor_says_whether_agents_are_apart() -> None:
    """The doctor, as root, tries whether agents are apart."""
    facts = {fact.name: fact for fact in asyncio.run(examine()).facts}
    if os.geteuid() == 0:
        assert facts["agents apart"].good and "PID namespace" in facts["agents apart"].found
    else:
        assert "agents apart" not in facts


def test_whoever_wants_no_namespaces_gets_none() -> None:
    """Processes under Confinement(apart=False) have the machine's own pids."""
    need_root("only root can give rights away")

    async def main() -> None:
        async with room(agent_user="nobody", apart=False) as processes:
            process = processes.contain("run r-1.g1").spawn(order("sh", "-c", "echo $$", cwd="/"))
            assert int(await ended(process)) == process.pid

    play(main())


def test_a_namespace_that_cannot_be_made_fails_one_spawn() -> None:
    """A spawn that lacks descriptors for a PID namespace is refused with that reason, and nothing is left."""
    need_root("only root can make PID namespaces")

    async def main() -> None:
        async with room(agent_user="nobody") as processes:
            containment = processes.contain("run r-1.g1", once=True)
            keeper = await until(lambda: containment.keeper, "the keeper is there")
            leave_descriptors(keeper, 2)
            with pytest.raises(SpawnFailed, match=r"no PID namespace could be made for it \(Too many"):
                await containment.spawn(order("true", cwd="/")).started()
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()
            assert await ended(processes.contain("run r-2.g1").spawn(order("echo", "up", cwd="/"))) == "up\n"

    play(main())


def test_a_process_is_not_taken_for_the_worker_that_asked_for_it() -> None:
    """A process does not inherit the mark of a worker or host: the mark is a pid, which another namespace reuses."""

    async def main() -> None:
        async with room() as processes:
            env = {"INTERLOCK_WORKER": "2", "OTHER": "kept"}
            process = processes.contain("run r-1.g1").spawn(order("sh", "-c", "echo $INTERLOCK_WORKER$OTHER", env=env))
            assert await ended(process) == "kept\n"

    play(main())


def mine() -> set[Path]:
    """Return every cgroup directory of this process's controls."""
    return {path for home in homes() for path in home.glob(f"{kernel.MARK}{kernel.owner_of(os.getpid())}*")}


@both_grades
def test_two_controls_of_one_process_share_no_leaf(grade: Grade) -> None:
    """Runs of the same name in two controls of one process are held apart: a stop in one spares the other's process."""

    async def agent(run: Run, message: Message) -> None:
        await run.spawn("sleep", "1000", background=True)
        await anyio.sleep_forever()

    async def runs(control: Control) -> int:
        async with asyncio.timeout(BOUND_SECONDS):
            while not [each for each in await control.processes() if each.pid is not None]:
                await asyncio.sleep(0.002)
        [listed] = await control.processes()
        assert listed.pid is not None
        return listed.pid

    before = mine()

    async def main() -> None:
        async with opened(agent, grade) as one, opened(agent, grade) as other:
            first, second = await one.send("s", "go"), await other.send("s", "go")
            pids = [await runs(one), await runs(other)]
            places = [cgroups(pid) - cgroups(os.getpid()) for pid in pids]
            assert grade is not Grade.CGROUP or all(places)
            assert not places[0] & places[1]
            with Witness(pids) as witness:
                await one.stop(session="s")
                assert await over(one, first.run_id) is Ending.STOPPED
                receipt = await one.receipt(first.run_id)
                assert (receipt.drain, receipt.processes.ended) == (Drain.OBSERVED, 1)
                assert witness.alive() == [pids[1]]
                await other.stop(session="s")
                assert await over(other, second.run_id) is Ending.STOPPED
                assert witness.alive() == []
        assert mine() <= before

    play(main())


def cgroups(pid: int) -> set[str]:
    """Return the cgroups of a process."""
    return set(kernel.read(f"/proc/{pid}/cgroup").splitlines())


def homes() -> list[Path]:
    """Return the cgroups in which ours are made."""
    found = (kernel.own_cgroup(), kernel.own_cgroup_v1("pids"), kernel.own_cgroup_v1("memory"))
    return [Path(home) for home in found if home is not None]
