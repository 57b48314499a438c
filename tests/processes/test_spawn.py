"""Spawning in a containment: what a process is given, and that a failed spawn leaves nothing.

The other tests of this directory use the helpers that are defined here (`room`, `tree`, `Witness`).
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.processes import kernel
from interlock.processes.base import Confinement, Grade
from interlock.processes.containment import LocalContainment, LocalProcess
from interlock.processes.local import LocalProcesses
from interlock.processes.wire import PACKET_BYTES

both_grades = pytest.mark.parametrize("grade", [Grade.CGROUP, Grade.KEEPER], ids=["cgroup", "keeper"])
BOUND_SECONDS = 30.0
NEEDS_ROOT = "the cgroup grade needs root, or a cgroup that was delegated to us"

TREE = """
trap '' TERM HUP
setsid sh -c 'trap "" TERM HUP; echo $$ >> "$1"; while :; do sleep 1000; done' sh "$1" &
(sh -c 'echo $$ >> "$1"; exec sleep 1000' sh "$1" &)
echo $$ >> "$1"
while :; do sleep 1000; done
"""
"""A shell that ignores TERM, with a daemon in a session of its own and a child whose parent has exited."""


def play(main: Coroutine[Any, Any, None]) -> None:
    """Run a test on a loop of its own, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(4 * BOUND_SECONDS):
            await main

    asyncio.run(bounded())


async def until(seen: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + BOUND_SECONDS
    while not (found := seen()):
        assert time.monotonic() < end, f"not seen in {BOUND_SECONDS:.0f} s: {what}"
        await asyncio.sleep(0.002)
    return found


def need(grade: Grade) -> None:
    """Skip a test of the cgroup grade where this machine has none."""
    if grade is Grade.CGROUP and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)


@asynccontextmanager
async def room(grade: Grade | None = None, *, subreaper: bool = False, **values: Any) -> AsyncIterator[LocalProcesses]:
    """Yield processes of a grade; check afterwards that no descriptor, child or cgroup of theirs is left."""
    need(grade or Grade.KEEPER)
    before = descriptors()
    directories = cgroups_of(kernel.owner_of(os.getpid()))  # processes that escaped may have left some before
    processes = LocalProcesses(Confinement(grade=grade, **values), subreaper=subreaper)
    machine = await processes.ready()
    assert grade is None or machine.grade is grade, machine.why
    try:
        yield processes
    finally:
        await processes.close()
    assert set(cgroups_of(kernel.owner_of(os.getpid()))) <= set(directories)
    await until(lambda: descriptors() <= before, f"no descriptor more than {before}, now {descriptors()}")


def descriptors(pid: int | str = "self") -> int:
    """Count the open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def leave_descriptors(pid: int, spare: int) -> tuple[int, int]:
    """Lower the limit of a process so that it can open so many more; return the limits it had."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [number for number in range(max(used) + spare + 2) if number not in used]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[spare], hard))
    return soft, hard


def cgroups_of(owner: str) -> list[str]:
    """Return every cgroup directory of an owner, or of all controls of a process, in all hierarchies we use."""
    homes = (kernel.own_cgroup(), kernel.own_cgroup_v1("pids"), kernel.own_cgroup_v1("memory"))
    bases = [base for home in homes if home is not None for base in Path(home).glob(f"{kernel.MARK}{owner}*")]
    return [str(path) for base in bases for path in (base, *base.rglob("*")) if path.is_dir()]


def order(*argv: str, **values: Any) -> SpawnOrder:
    """Return an order for a program."""
    return SpawnOrder(argv=argv, **values)


def python(code: str, *arguments: str, **values: Any) -> SpawnOrder:
    """Return an order for a little Python program."""
    return SpawnOrder(argv=(sys.executable, "-I", "-S", "-c", code, *arguments), **values)


async def ended(process: LocalProcess) -> str:
    """Wait until a process has exited; return all its output."""
    await process.started()
    await process.exited.wait()
    head, left_out, tail = process.output()
    assert left_out == 0
    return (head + tail).decode()


async def tree(containment: LocalContainment, place: Path, **values: Any) -> list[int]:
    """Start the hostile tree; return its pids once all of it runs."""
    process = containment.spawn(order("sh", "-c", TREE, "sh", str(place), **values))
    await process.started()
    return await pids_in(place, 3)


async def pids_in(place: Path, count: int) -> list[int]:
    """Wait until a file names so many pids; return them."""
    return await until(lambda: listed(place) if len(listed(place)) == count else None, f"{count} pids in {place}")


def listed(place: Path) -> list[int]:
    """Return the pids that a file names so far."""
    return [int(line) for line in place.read_text().splitlines()] if place.exists() else []


def members(containment: LocalContainment) -> frozenset[int]:
    """Return the processes below a keeper, but for the init of its PID namespace."""
    found, rest = set[int](), [containment.keeper or 0]
    while rest:
        below = set(kernel.children_of(rest.pop())) - found
        found |= below
        rest += below
    return frozenset(found - {containment.init})


class Witness:
    """Processes watched from outside through pidfds, which a reused pid does not deceive."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds = {pid: os.pidfd_open(pid) for pid in pids}

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def alive(self, seconds: float = 0.0, among: Iterable[int] | None = None) -> list[int]:
        """Wait until all (or those) are dead, at most so long; return the pids of those that live."""
        end = time.monotonic() + seconds
        left = {pid: self._fds[pid] for pid in (self._fds if among is None else among)}
        while left:
            dead, _, _ = select.select(list(left.values()), [], [], max(0.0, end - time.monotonic()))
            left = {pid: fd for pid, fd in left.items() if fd not in dead}
            if not dead:
                break
        return list(left)

    def signal(self, number: int) -> None:
        """Send a signal to all that live."""
        for pid in self.alive():
            signal.pidfd_send_signal(self._fds[pid], number)


# A request that races the seal


@both_grades
def test_a_spawn_request_that_races_the_seal(grade: Grade, tmp_path: Path) -> None:
    """Race 5: requests sent before and after the cut in the same step never execute once the containment is done."""

    async def main() -> None:
        async with room(grade) as processes:
            outcomes = set()
            for turn in range(25):
                place = tmp_path / f"{turn}"
                containment = processes.contain(f"run r-{turn}.g1")
                if turn % 2:
                    await ended(containment.spawn(order("true")))
                sent = [containment.spawn(order("sh", "-c", 'echo x >> "$0"; sleep 1000', str(place))) for _ in "123"]
                containment.cut()
                with pytest.raises(SpawnFailed) as refused:
                    containment.spawn(order("true"))
                assert refused.value.errno == errno.ECANCELED
                await containment.done.wait()
                written = place.stat().st_size if place.exists() else 0
                for process in sent:
                    assert process.exited.is_set()
                    if process.failure is not None:
                        assert process.failure.errno == errno.ECANCELED
                        assert "it was ended before it began" in str(process.failure)
                    outcomes.add(process.failure is None)
                    assert process.pid is None or not Path(f"/proc/{process.pid}").exists()
                await asyncio.sleep(0)
                assert (place.stat().st_size if place.exists() else 0) == written
            assert False in outcomes

    play(main())


@both_grades
def test_a_request_queued_behind_the_hang_up_is_refused(grade: Grade, tmp_path: Path) -> None:
    """Races 5 and 6: a keeper that wakes to a request and the hang-up serves the hang-up first: nothing executes."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("true")))
            assert containment.keeper is not None
            os.kill(containment.keeper, signal.SIGSTOP)
            late = containment.spawn(order("sh", "-c", 'echo x > "$0"', str(tmp_path / "late")))
            containment.cut()
            os.kill(containment.keeper, signal.SIGCONT)
            await containment.done.wait()
            with pytest.raises(SpawnFailed, match="it was ended before it began") as refused:
                await late.started()
            assert refused.value.errno == errno.ECANCELED
            assert not (tmp_path / "late").exists()

    play(main())


# Spawns that fail


def trouble(place: Path) -> dict[str, tuple[SpawnOrder, int, str]]:
    """Return orders that cannot be met, each with the system's error number and a word of the message."""
    script, text, binary = place / "not-executable", place / "text", place / "orphan-script"
    script.write_text("#!/bin/sh\n")
    text.write_text("no program\n")
    text.chmod(0o755)
    binary.write_text("#!/no/such/interpreter\n")
    binary.chmod(0o755)
    return {
        "ENOENT": (order("no-such-program"), errno.ENOENT, "there is no such program"),
        "ENOENT of a path": (order("/no/such/program"), errno.ENOENT, "there is no such program"),
        "ENOENT of its interpreter": (order(str(binary)), errno.ENOENT, "interpreter that its first line names"),
        "EACCES": (order(str(script)), errno.EACCES, "may not be executed"),
        "EACCES of a directory": (order(str(place)), errno.EACCES, "may not be executed"),
        "ENOEXEC": (order(str(text)), errno.ENOEXEC, "name its interpreter"),
        "no cwd": (order("true", cwd="/no/such"), errno.ENOENT, "its directory /no/such cannot be entered"),
        "cwd is a file": (order("true", cwd=str(text)), errno.ENOTDIR, "cannot be entered"),
        "E2BIG": (order("true", "x" * 3_000_000), errno.E2BIG, "use input= or a file"),
        "a zero byte": (order("true", "a\0b"), errno.EINVAL, "null"),
    }


@both_grades
def test_a_spawn_that_fails_says_why_and_leaves_nothing(grade: Grade, tmp_path: Path) -> None:
    """Race 69: each failure is a SpawnFailed with the system's number and a remedy, and the containment goes on."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("true")))
            assert containment.keeper is not None
            ours, its = descriptors(), descriptors(containment.keeper)
            for name, (wanted, number, sentence) in trouble(tmp_path).items():
                with pytest.raises(SpawnFailed) as failed:
                    await containment.spawn(wanted).started()
                assert failed.value.errno == number, name
                assert sentence in str(failed.value), name
                assert wanted.argv[0][:80] in str(failed.value), name
            keeper = containment.keeper
            await until(lambda: descriptors() <= ours and descriptors(keeper) <= its, "no descriptor more")
            assert kernel.read(f"/proc/{containment.keeper}/task/{containment.keeper}/children") == ""
            assert containment.leaf is None or not kernel.populated(containment.leaf)
            assert await ended(containment.spawn(order("echo", "still here"))) == "still here\n"

    play(main())


@both_grades
def test_a_failed_spawn_of_a_containment_of_its_own_ends_that(grade: Grade) -> None:
    """Race 69: a containment for one process is done, with nothing left, when that process cannot be started."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1", once=True)
            process = containment.spawn(order("no-such-program"))
            with pytest.raises(SpawnFailed):
                await process.started()
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()

    play(main())


NO_DESCRIPTORS = """
import asyncio, errno, json, os, resource, sys
from interlock.processes.base import Confinement, Grade
from interlock.agent.order import SpawnFailed
from interlock.agent.order import SpawnOrder
from interlock.processes.local import LocalProcesses

def fds():
    return len(os.listdir("/proc/self/fd"))

async def main():
    processes = LocalProcesses(Confinement(grade=Grade(sys.argv[1])))
    await processes.ready()
    containment = processes.contain("run r-1.g1")
    await containment.spawn(SpawnOrder(argv=("true",))).exited.wait()
    told, before = [], fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    for spare in range(5):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            pass
        for fd in taken[:spare]:
            os.close(fd)
        for values in ({"input": b"x"}, {"pty": True}, {"env": {"LONG": "x" * 50_000}}):
            try:
                process = containment.spawn(SpawnOrder(argv=("true",), **values))
                await process.started()
                await process.exited.wait()
            except SpawnFailed as error:
                told.append((error.errno, str(error)))
        try:
            processes.contain("run r-2.g1").cut()
        except SpawnFailed as error:
            told.append((error.errno, str(error)))
        for fd in taken[spare:]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await asyncio.sleep(0.05)
    process = containment.spawn(SpawnOrder(argv=("true",)))
    await process.exited.wait()
    while len(processes._containments) > 1:
        await asyncio.sleep(0.001)
    print(json.dumps([before, fds(), process.status, told]))
    await processes.close()

asyncio.run(main())
"""


@both_grades
def test_control_without_descriptors(grade: Grade) -> None:
    """Race 69: a spawn by a control with 0 to 4 descriptors left works or fails as EMFILE, and none is lost."""
    need(grade)
    command = [sys.executable, "-c", NO_DESCRIPTORS, str(grade)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * BOUND_SECONDS)
    assert done.returncode == 0, done.stderr
    before, after, status, told = json.loads(done.stdout)
    assert after == before
    assert status == 0
    assert len(told) >= 8
    assert {number for number, _ in told} == {errno.EMFILE}
    assert all("descriptors" in sentence or "Too many open files" in sentence for _, sentence in told), told


@both_grades
@pytest.mark.parametrize("size", [1, 2 * PACKET_BYTES], ids=["in a packet", "in a memfd"])
def test_a_keeper_without_descriptors(grade: Grade, size: int) -> None:
    """Race 69: a keeper that can open no descriptor refuses the spawn as EMFILE, and its processes live on."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            first = containment.spawn(order("sleep", "1000"))
            await first.started()
            await ended(containment.spawn(order("true")))  # the keeper has closed the descriptors of the first
            assert containment.keeper is not None and first.pid is not None
            before = descriptors(containment.keeper)
            limits = leave_descriptors(containment.keeper, 0)
            with Witness([first.pid]) as witness:
                with pytest.raises(SpawnFailed, match="descriptors") as failed:
                    await containment.spawn(order("true", env={"LONG": "x" * size})).started()
                assert failed.value.errno == errno.EMFILE
                resource.prlimit(containment.keeper, resource.RLIMIT_NOFILE, limits)
                assert await ended(containment.spawn(order("echo", "again"))) == "again\n"
                assert witness.alive() == [first.pid]
                keeper = containment.keeper
                await until(lambda: descriptors(keeper) <= before, "no descriptor of the keeper's more")

    play(main())


def test_a_keeper_whose_first_spawn_found_no_descriptors() -> None:
    """Race 69: a process that is started later is inside the leaf, however few descriptors the first spawn found."""
    need(Grade.CGROUP)

    async def main() -> None:
        async with room(Grade.CGROUP, memory=1 << 30) as processes:
            for spare in range(8):
                containment = processes.contain("run r-1.g1")
                keeper = await until(lambda held=containment: held.keeper, "the keeper's first word")
                limits = leave_descriptors(keeper, spare)
                try:
                    await containment.spawn(order("true")).started()
                except SpawnFailed as error:
                    assert error.errno == errno.EMFILE
                resource.prlimit(keeper, resource.RLIMIT_NOFILE, limits)
                inside = await ended(containment.spawn(order("cat", "/proc/self/cgroup")))
                run = f"/{kernel.MARK}{processes._owner}/run_r-1.g1"
                assert f"{run}/k{containment.number}\n" in inside, spare
                # The leaves of pids and memory too.
                assert inside.count(run) == 3 or processes.machine.memory == "v2", spare
                assert kernel.MARK not in kernel.read(f"/proc/{keeper}/cgroup")
                containment.cut()
                await containment.done.wait()

    play(main())


def test_an_order_too_large_for_any_packet() -> None:
    """An order whose arguments exceed a memfd's limit is refused as E2BIG before it is sent, and the rest goes on."""

    async def main() -> None:
        async with room(Grade.KEEPER) as processes:
            containment = processes.contain("run r-1.g1")
            first = containment.spawn(order("sleep", "1000"))
            await first.started()
            with pytest.raises(SpawnFailed, match="use input= or a file") as failed:
                await containment.spawn(order("true", "x" * (64 * 1024 * 1024))).started()
            assert failed.value.errno == errno.E2BIG
            assert not first.exited.is_set()
            assert await ended(containment.spawn(order("echo", "again"))) == "again\n"

    play(main())


# Input, environment, arguments, descriptors and terminal of a process


@both_grades
def test_standard_input_is_closed_unless_given(grade: Grade) -> None:
    """A process that reads sees the end at once; a process that is given input, however much, reads all of it."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            assert await ended(containment.spawn(order("cat"))) == ""
            assert await ended(containment.spawn(order("readlink", "/proc/self/fd/0"))) == "/dev/null\n"
            assert await ended(containment.spawn(order("wc", "-c", input=b"x" * 3_000_000))) == "3000000\n"
            unread = containment.spawn(order("true", input=b"x" * 3_000_000))
            assert await ended(unread) == ""
            assert unread.status == 0

    play(main())


def test_the_environment_is_what_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process sees no secret of ours, but the variables given to it; None removes any but the owner mark."""
    monkeypatch.setenv("SECRET_KEY", "hidden")
    monkeypatch.setenv("LC_TIME", "C")

    async def main() -> None:
        async with room(Grade.KEEPER) as processes:
            containment = processes.contain("run r-1.g1")
            given = {"GIVEN": "a b", "TERM": None, kernel.OWNER: None}
            seen = await ended(containment.spawn(order("env", "-0", env=given)))
            names = dict(line.split("=", 1) for line in seen.split("\0") if line)
            assert "SECRET_KEY" not in names and "hidden" not in seen
            assert names["GIVEN"] == "a b" and names["LC_TIME"] == "C" and names["PATH"]
            assert "TERM" not in names
            assert names[kernel.OWNER].startswith(kernel.owner_of(os.getpid()) + "-")
            allowed = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "GIVEN"}
            assert {name for name in names if not name.startswith("LC_")} <= {*allowed, kernel.OWNER}

    play(main())


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    """Spaces, quotes, line ends, other scripts and invalid UTF-8 arrive unchanged, as does more than a packet holds."""

    async def main() -> None:
        async with room(Grade.KEEPER) as processes:
            containment = processes.contain("run r-1.g1")
            odd = ["", "a b", "$HOME `id`", "'\"\\", "line\nend", "Grüße 日本語 🛑", "\udcff\udcfe"]
            long = "é" * PACKET_BYTES
            code = "import sys; print(ascii(sys.argv[1:]))"
            wanted = python(code, *odd, long, env={"LC_ALL": "C.UTF-8"}, cwd=str(tmp_path))
            assert await ended(containment.spawn(wanted)) == ascii([*odd, long]) + "\n"
            named = tmp_path / "dir with spaces é"
            named.mkdir()
            assert await ended(containment.spawn(order("pwd", cwd=str(named)))) == f"{named}\n"

    play(main())


@both_grades
def test_a_process_has_a_session_group_and_signals_of_its_own(grade: Grade, tmp_path: Path) -> None:
    """Race 66: a signal that a process sends to its own group never hits us, its keeper, helper or a sibling."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            sibling = containment.spawn(order("sleep", "1000"))
            await sibling.started()
            hit = []
            before = signal.signal(signal.SIGUSR1, lambda *_: hit.append("control"))
            try:
                code = (
                    "import os, signal; "
                    "print(os.getpid(), os.getpgid(0), os.getsid(0), signal.pthread_sigmask(0, []), "
                    "signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL or 'python', flush=True); "
                    "os.kill(0, signal.SIGUSR1)"
                )
                process = containment.spawn(python(code))
                pid, group, session, *rest = (await ended(process)).split(maxsplit=3)
            finally:
                signal.signal(signal.SIGUSR1, before)
            assert int(pid) == int(group) == int(session) == process.pid
            assert rest[0].startswith("set()")
            assert process.status == -signal.SIGUSR1
            assert hit == []
            assert not sibling.exited.is_set()
            status = kernel.read(f"/proc/{sibling.pid}/status")
            assert "SigBlk:\t0000000000000000" in status
            ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
            assert ignored & ~(0b11 << 31) == 0  # 32 and 33 are the C library's own
            assert await ended(containment.spawn(order("echo", "kept"))) == "kept\n"

    play(main())


def test_a_process_has_only_the_descriptors_it_was_given() -> None:
    """A process has descriptors 0, 1 and 2 open, and none of control, helper or keeper."""

    async def main() -> None:
        async with room(Grade.KEEPER) as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("cat", input=b"x" * 300_000)))
            process = containment.spawn(order("sleep", "1000"))
            await process.started()
            # The kernel lets the keeper go on before it has closed the process's other descriptors.
            async with asyncio.timeout(BOUND_SECONDS):
                while sorted(os.listdir(f"/proc/{process.pid}/fd")) != ["0", "1", "2"]:
                    await asyncio.sleep(0.001)

    play(main())


@both_grades
def test_a_terminal_of_its_own(grade: Grade) -> None:
    """A process with pty= has one controlling terminal of 80 columns as 0, 1 and 2; input= is typed there and ended."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            code = (
                "import os; print([os.isatty(fd) for fd in (0, 1, 2)], os.get_terminal_size().columns, "
                "os.tcgetpgrp(0) == os.getpgid(0), os.ttyname(0) == os.ttyname(1)); "
                "os.close(os.open('/dev/tty', os.O_RDWR))"
            )
            process = containment.spawn(python(code, pty=True))
            assert await ended(process) == "[True, True, True] 80 True True\r\n"
            assert process.status == 0
            typed = containment.spawn(order("sh", "-c", "stty -echo; cat", pty=True, input=b"hello\n"))
            assert "hello" in await ended(typed)

    play(main())


@both_grades
def test_a_terminal_that_closes_hangs_up(grade: Grade, tmp_path: Path) -> None:
    """Race 72: a terminal that closes sends its processes HUP; a process that ignores HUP ends with the containment."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            place, heard = tmp_path / "pids", tmp_path / "heard"
            polite = 'trap \'echo x > "$2"; exit\' HUP; echo $$ >> "$1"; while :; do sleep 0.01; done'
            rude = 'trap "" HUP TERM; echo $$ >> "$1"; while :; do sleep 1000; done'
            first = containment.spawn(order("sh", "-c", polite, "sh", str(place), str(heard), pty=True))
            second = containment.spawn(order("sh", "-c", rude, "sh", str(place), pty=True))
            with Witness(await pids_in(place, 2)) as witness:
                first.close()
                second.close()
                await until(heard.exists, "HUP at the process whose terminal was closed")
                await until(lambda: first.exited.is_set(), "the polite one's exit")
                assert witness.alive() == [second.pid]
                containment.cut()
                await containment.done.wait()
                assert witness.alive() == []

    play(main())


def test_a_relative_directory_is_relative_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative cwd= begins at control's own directory, not at the keeper's."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            told = [await ended(containment.spawn(order("pwd", cwd=cwd))) for cwd in ("inner", ".", "inner/..")]
            assert told == [f"{tmp_path}/inner\n", f"{tmp_path}\n", f"{tmp_path}\n"]

    play(main())
