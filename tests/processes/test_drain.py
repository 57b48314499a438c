"""A containment ends at once or after the grace, is seen gone by the kernel's word, and ends no other process."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import anyio
import pytest

from interlock import Ending, Message, Run
from interlock.core.names import BodyState
from interlock.processes import containment as containments
from interlock.processes import kernel
from interlock.processes.base import UNSEEN, Grade
from interlock.processes.containment import LocalContainment, LocalProcess

from .scene import opened, over
from .test_spawn import (
    BOUND_SECONDS,
    Witness,
    both_grades,
    descriptors,
    ended,
    order,
    pids_in,
    play,
    python,
    room,
    tree,
    until,
)

pytestmark = pytest.mark.long

FREEZER = Path("/sys/fs/cgroup/freezer")
GRACE_SECONDS = 0.8
LONG_SECONDS = 120.0  # a grace that no test waits for
UNANSWERED = ("test_a_keeper_that_does_not_answer_", "test_a_stopped_helper_and_keeper_")


@pytest.fixture(autouse=True)
def keepers_have_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no helper replace a keeper that is only slow, because what the keeper saw of its processes would be lost.

    The tests of keepers that never answer are the exception.
    """
    if not request.node.originalname.startswith(UNANSWERED):
        monkeypatch.setattr(containments, "INSIST_SECONDS", BOUND_SECONDS)


async def cut(containment: LocalContainment) -> None:
    """Cut a containment and wait, bounded, until it is done."""
    containment.cut()
    async with asyncio.timeout(BOUND_SECONDS):
        await containment.done.wait()


# KILL, and the grace before it


@both_grades
def test_a_hard_cut_kills_at_once(grade: Grade, tmp_path: Path) -> None:
    """Races 59 and 60: a process without a grace that ignores TERM, in whatever session, is dead when `done` is set."""

    async def main() -> None:
        async with room(grade) as processes:
            for turn in range(3):
                containment = processes.contain(f"run r-{turn}.g1")
                with Witness(await tree(containment, tmp_path / str(turn))) as witness:
                    await cut(containment)
                    assert witness.alive() == []
                    assert containment.ended >= 3
                    assert containment.stuck == ()
                    assert containment.state is BodyState.CUT

    play(main())


@both_grades
def test_term_comes_first_where_a_grace_was_asked_for(grade: Grade, tmp_path: Path) -> None:
    """Race 59: a process with a grace sees TERM first, and is killed if it is still there when the grace is over."""

    async def main() -> None:
        async with room(grade) as processes:
            place, heard = tmp_path / "pids", tmp_path / "heard"
            containment = processes.contain("run r-1.g1", grace=GRACE_SECONDS)
            code = 'trap \'echo x > "$2"\' TERM; echo $$ > "$1"; while :; do sleep 0.01; done'
            process = containment.spawn(order("sh", "-c", code, "sh", str(place), str(heard), grace=GRACE_SECONDS))
            with Witness(await pids_in(place, 1)) as witness:
                began = time.monotonic()
                containment.cut()
                while witness.alive():
                    await asyncio.sleep(0.002)
                assert time.monotonic() - began >= GRACE_SECONDS  # the process lived until the grace was over
                assert heard.exists(), "TERM at the process"
                await containment.done.wait()
                assert witness.alive() == []
                assert process.status == -signal.SIGKILL

    play(main())


@both_grades
@pytest.mark.parametrize("grace", [LONG_SECONDS, 0.0])
def test_a_grace_that_was_asked_for_just_before_the_cut(grade: Grade, grace: float, tmp_path: Path) -> None:
    """A keeper that slept through a grace and the cut obeys the last word on it: TERM first, or KILL at once."""

    async def main() -> None:
        async with room(grade) as processes:
            place = tmp_path / "pids"
            containment = processes.contain("run r-1.g1", grace=LONG_SECONDS - grace, once=True)
            code = "trap 'exit 5' TERM; echo $$ > \"$1\"; while :; do sleep 0.01; done"
            process = containment.spawn(order("sh", "-c", code, "sh", str(place), background=True))
            await pids_in(place, 1)
            keeper = await until(lambda: containment.keeper, "the keeper")
            os.kill(keeper, signal.SIGSTOP)
            await until(lambda: (kernel.stat(keeper) or " ")[0] == "T", "that it sleeps")
            containment.allow(grace)
            containment.cut()
            os.kill(keeper, signal.SIGCONT)
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()
            assert process.status == (5 if grace else -signal.SIGKILL)

    play(main())


@both_grades
def test_a_polite_process_ends_by_itself_within_its_grace(grade: Grade, tmp_path: Path) -> None:
    """Race 59: a process that exits at TERM has its own status, and the rest of the grace is not waited for."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1", grace=LONG_SECONDS)
            code = "trap 'exit 7' TERM; echo $$ > \"$1\"; while :; do sleep 0.01; done"
            process = containment.spawn(order("sh", "-c", code, "sh", str(tmp_path / "pids"), grace=LONG_SECONDS))
            await pids_in(tmp_path / "pids", 1)
            await cut(containment)
            assert process.status == 7
            assert not process.lost

    play(main())


@both_grades
def test_a_daemon_does_not_outlive_the_grace_of_its_parent(grade: Grade, tmp_path: Path) -> None:
    """Race 60: a daemon that left the session of a polite process is killed at the end of the grace."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1", grace=0.3)
            with Witness(await tree(containment, tmp_path / "pids", grace=0.3)) as witness:
                await cut(containment)
                assert witness.alive() == []

    play(main())


@both_grades
def test_what_a_worker_leaves_behind_has_no_grace_of_its_own(grade: Grade, tmp_path: Path) -> None:
    """A daemon that ignores TERM has no grace of its own: it is killed when the worker that left it is gone."""

    async def main() -> None:
        async with room(grade) as processes:
            place = tmp_path / "pids"
            containment = processes.contain("run r-1.g1", once=True)
            daemon = "trap '' TERM; echo $$ >> \"$1\"; while :; do sleep 0.01; done"
            code = 'trap \'exit 7\' TERM; setsid sh -c "$2" sh "$1" & echo $$ >> "$1"; while :; do sleep 0.01; done'
            process = containment.spawn(order("sh", "-c", code, "sh", str(place), daemon, background=True))
            containment.allow(LONG_SECONDS)
            with Witness(await pids_in(place, 2)) as witness:
                await cut(containment)
                assert witness.alive() == []
                assert process.status == 7, "it had its grace"

    play(main())


@both_grades
@pytest.mark.parametrize("grace", [0.0, LONG_SECONDS])
def test_a_stopped_process_is_ended(grade: Grade, grace: float, tmp_path: Path) -> None:
    """Race 63: a process under SIGSTOP is ended; with a grace it is woken, so that it can hear TERM."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1", grace=grace)
            process = containment.spawn(order("sleep", "1000", grace=grace))
            await process.started()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            await until(lambda: (kernel.stat(process.pid or 0) or "?")[0] == "T", "a stopped process")
            with Witness([process.pid]) as witness:
                await cut(containment)
                assert witness.alive() == []
            assert process.status == (-signal.SIGTERM if grace else -signal.SIGKILL)

    play(main())


# Stuck


@contextmanager
def frozen(pid: int) -> Iterator[Path]:
    """Yield a process that no KILL reaches, in a frozen cgroup of version 1, like one that waits in the kernel."""
    if os.geteuid() != 0 or not FREEZER.exists():
        pytest.skip("a frozen process needs root and the version 1 freezer at /sys/fs/cgroup/freezer")
    place = FREEZER / f"interlock-test-{os.getpid()}"
    place.mkdir()
    try:
        (place / "cgroup.procs").write_text(str(pid))
        (place / "freezer.state").write_text("FROZEN")
        end = time.monotonic() + BOUND_SECONDS
        while (place / "freezer.state").read_text().strip() != "FROZEN":
            assert time.monotonic() < end
            time.sleep(0.001)
        yield place
    finally:
        (place / "freezer.state").write_text("THAWED")
        end = time.monotonic() + BOUND_SECONDS
        while (place / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.001)
        place.rmdir()


@both_grades
def test_a_process_stuck_in_the_kernel_is_told_as_stuck(grade: Grade) -> None:
    """Race 63: a process that KILL does not end is named with pid, command and state until it is gone."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            process = containment.spawn(order("sleep", "1000"))
            await process.started()
            assert process.pid is not None and containment.keeper is not None
            with Witness([process.pid]) as witness:
                with frozen(process.pid) as place:
                    containment.cut()
                    await until(lambda: containment.stuck, "the stuck process's name")
                    assert len(containment.stuck) == 1
                    named, state = containment.stuck[0].split(", state ")
                    assert named == f"process {process.pid} (sleep"
                    assert state.rstrip(")") in "DSRT"
                    assert not containment.done.is_set()
                    assert witness.alive() == [process.pid]
                    (place / "freezer.state").write_text("THAWED")
                    async with asyncio.timeout(BOUND_SECONDS):
                        await containment.done.wait()
                assert witness.alive() == []
                assert containment.stuck == ()

    play(main())


@both_grades
def test_a_keeper_that_does_not_answer_is_replaced(grade: Grade, tmp_path: Path) -> None:
    """A stopped keeper does not save its tree: the helper stands in for the keeper, and says when the tree is gone."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            with Witness(await tree(containment, tmp_path / "pids")) as witness:
                assert containment.keeper is not None
                os.kill(containment.keeper, signal.SIGSTOP)
                containment.cut()
                containment.drop()
                async with asyncio.timeout(BOUND_SECONDS):
                    await containment.done.wait()
                assert witness.alive() == []

    play(main())


# One status, and the right process


@both_grades
def test_a_keeper_that_does_not_answer_is_replaced_though_nobody_waits(grade: Grade, tmp_path: Path) -> None:
    """A tree that stops its keeper, ignores TERM and outlasts the drain time is reported as left, then killed."""

    async def main() -> None:
        async with room(grade) as processes:
            place = tmp_path / "pids"
            containment = processes.contain("run r-1.g1", grace=GRACE_SECONDS)
            code = "trap '' TERM; echo $$ > \"$1\"; kill -STOP $PPID; while :; do sleep 0.01; done"
            containment.spawn(order("sh", "-c", code, "sh", str(place), grace=GRACE_SECONDS))
            with Witness(await pids_in(place, 1)) as witness:
                keeper = await until(lambda: containment.keeper, "the keeper")
                await until(lambda: (kernel.stat(keeper) or " ")[0] == "T", "that it sleeps")
                containment.cut()
                containment.abandon()
                async with asyncio.timeout(BOUND_SECONDS):
                    await containment.done.wait()
                assert witness.alive() == []
                assert containment.state is BodyState.ABANDONED, "nobody saw it end in time, and that stays said"

    play(main())


@both_grades
def test_an_exit_in_the_same_moment_as_the_kill(grade: Grade) -> None:
    """Race 64: an exit in the moment of the KILL yields one exit status, which stays; the keeper is not harmed."""

    async def main() -> None:
        async with room(grade) as processes:
            statuses = []
            for turn in range(40):
                containment = processes.contain("run r-1.g1")
                process = containment.spawn(order("sh", "-c", "read x; exit 7", input=b"go\n"))
                await process.started()
                for _ in range(turn % 20):
                    await asyncio.sleep(0)
                before = process.status
                await cut(containment)
                assert process.exited.is_set()
                assert process.status in (7, -signal.SIGKILL)
                assert before is None or process.status == before
                assert not process.lost
                statuses.append(process.status)
            assert len(statuses) == 40
            containment = processes.contain("run r-1.g1")
            last = containment.spawn(order("sh", "-c", "exit 7"))
            await last.exited.wait()
            await cut(containment)
            assert (last.status, last.lost) == (7, False)

    play(main())


@both_grades
def test_a_busy_loop_loses_no_exit_status(grade: Grade, tmp_path: Path) -> None:
    """Race 64: processes that end while the loop is busy keep their own status, whichever the loop hears first."""

    async def main() -> None:
        async with room(grade) as processes:
            containments = [processes.contain("run r-1.g1", once=True) for _ in range(3)]
            code = 'while [ ! -e "$0" ]; do sleep 0.002; done; exit 7'
            places = [tmp_path / str(number) for number in range(3)]
            sent = [
                containment.spawn(order("sh", "-c", code, str(place)))
                for containment, place in zip(containments, places, strict=True)
            ]
            for process in sent:
                await process.started()
            end = time.monotonic() + BOUND_SECONDS
            for containment, place in zip(containments, places, strict=True):  # the loop does not run in this block
                place.touch()
                while Path(f"/proc/{containment.keeper}").exists():
                    assert time.monotonic() < end
            for containment in containments:
                await containment.done.wait()
            assert [(process.status, process.lost) for process in sent] == [(7, False)] * 3
            assert [containment.ended for containment in containments] == [0] * 3

    play(main())


@both_grades
def test_a_pid_that_is_another_process_by_now(grade: Grade) -> None:
    """Race 65: a process that got the pid of one of ours survives every way to end ours."""
    if os.geteuid() != 0:
        pytest.skip("choosing a pid needs root (/proc/sys/kernel/ns_last_pid)")

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1", grace=0.05)
            other = containment.spawn(order("sleep", "1000"))
            await other.started()
            process = containment.spawn(order("true"))
            await process.exited.wait()
            assert process.pid is not None
            stranger = with_pid(process.pid)
            try:
                process.end()
                containment.end_one(process.number)
                # The keeper has served the end, too.
                assert await ended(containment.spawn(order("echo", "served"))) == "served\n"
                await cut(containment)
                assert other.status == -signal.SIGTERM
                with Witness([stranger.pid]) as witness:
                    assert witness.alive(0.05) == [stranger.pid]
            finally:
                stranger.kill()
                stranger.wait()

    play(main())


def with_pid(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that gets a certain pid, in a group and session of its own."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    pytest.fail(f"no process could be given pid {pid}")


@both_grades
def test_no_zombies_however_many_processes(grade: Grade) -> None:
    """Race 71: 300 processes, each with an orphan that comes to the keeper, leave no zombie and no descriptor."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("true")))
            keeper = containment.keeper
            assert keeper is not None
            ours, its = descriptors(), descriptors(keeper)
            for _ in range(15):
                sent = [containment.spawn(order("sh", "-c", "(true & true &) ; exit 3")) for _ in range(20)]
                for process in sent:
                    await process.exited.wait()
                    assert process.status == 3
            # The last orphan dies when nothing else happens.
            await ended(containment.spawn(order("sh", "-c", "(sleep 0.05 > /dev/null 2>&1 &)")))
            children = f"/proc/{keeper}/task/{keeper}/children"
            await until(lambda: kernel.read(children) == "", "a keeper without children")
            await until(lambda: descriptors() <= ours and descriptors(keeper) <= its, "no descriptor more")

    play(main())


def test_a_process_that_has_ended_is_not_kept_in_memory() -> None:
    """Race 71: a containment that lives long forgets processes that have ended, and their outputs."""

    async def main() -> None:
        async with room(Grade.KEEPER) as processes:
            containment = processes.contain("run r-1.g1")
            kept: list[weakref.ref[LocalProcess]] = []
            for _ in range(20):
                process = containment.spawn(order("echo", "x"))
                assert await ended(process) == "x\n"
                kept.append(weakref.ref(process))
            del process
            await asyncio.sleep(0)
            gc.collect()
            assert sum(reference() is not None for reference in kept) <= 1

    play(main())


# Pipes


@both_grades
@pytest.mark.parametrize("streamed", [False, True])
def test_a_grandchild_that_holds_the_pipe_holds_nobody(grade: Grade, streamed: bool, tmp_path: Path) -> None:
    """Race 61: output ends with its process though a daemon holds the pipe; the daemon ends with the containment."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            code = 'setsid sh -c "echo \\$\\$ > $1; exec sleep 1000" & while [ ! -s "$1" ]; do :; done; echo out'
            process = containment.spawn(order("sh", "-c", code, "sh", str(tmp_path / "pids"), streamed=streamed))
            async with asyncio.timeout(BOUND_SECONDS):
                await process.exited.wait()
                if streamed:
                    assert [await process.line(), await process.line()] == [b"out", None]
                else:
                    assert process.output() == (b"out\n", 0, b"")
            with Witness(await pids_in(tmp_path / "pids", 1)) as witness:
                assert len(witness.alive()) == 1
                await cut(containment)
                assert witness.alive() == []

    play(main())


WRITER = "import os, sys\nfor n in range(int(sys.argv[1])): os.write(1, b'%07d\\n' % (n % 10000000) * 8192)"


def test_a_writer_of_a_gigabyte_a_second() -> None:
    """Race 62: output at any rate takes bounded memory: bytes are counted, both ends are kept, the loop goes on."""

    async def main() -> None:
        async with room(Grade.KEEPER, output_bytes=256 * 1024) as processes:
            containment = processes.contain("run r-1.g1")
            await ended(containment.spawn(order("true")))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            blocks = 4000  # 64 KiB each
            process = containment.spawn(python(WRITER, str(blocks)))
            gaps, last = list[float](), time.monotonic()
            while not process.exited.is_set():
                await asyncio.sleep(0.001)
                now = time.monotonic()
                gaps.append(now - last)
                last = now
            head, left_out, tail = process.output()
            assert process.status == 0
            assert len(head) + left_out + len(tail) == blocks * 65536
            assert head[:16] == b"0000000\n0000000\n"
            assert tail[-8:] == b"%07d\n" % (blocks - 1)
            assert len(head) + len(tail) <= 256 * 1024
            assert len(gaps) >= 20 and median(gaps) < 0.25  # one gap may be longer on a loaded machine
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024

    play(main())


def test_a_writer_that_is_read_line_by_line_is_held_back() -> None:
    """Race 62: a writer whose lines are streamed waits for its reader; unread lines are not taken into memory."""

    async def main() -> None:
        async with room(Grade.KEEPER, output_bytes=64 * 1024) as processes:
            containment = processes.contain("run r-1.g1")
            process = containment.spawn(python(WRITER, "100", streamed=True))
            assert await process.line() == b"0000000"
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert process.pid is not None
            await until(lambda: "pipe_write" in wchan(process.pid) or state(process.pid) == "S", "a writer that waits")
            assert not process.exited.is_set()
            count = 1
            while await process.line() is not None:
                count += 1
            await process.exited.wait()
            assert count == 100 * 8192
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024

    play(main())


def wchan(pid: int | None) -> str:
    """Return where a process waits in the kernel, if that can be seen."""
    try:
        return kernel.read(f"/proc/{pid}/wchan")
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ESRCH, errno.EPERM)
        return ""


def state(pid: int | None) -> str:
    """Return the state of a process, as one letter."""
    found = kernel.stat(pid or 0)
    return "?" if found is None else found[0]


# Stopped keepers, and grades of ended processes


@both_grades
def test_a_stopped_helper_and_keeper_do_not_save_a_tree(grade: Grade, tmp_path: Path) -> None:
    """Processes that stop their keeper and its helper with SIGSTOP are ended like others, and seen gone."""

    async def main() -> None:
        async with room(grade) as processes:
            containment = processes.contain("run r-1.g1")
            with Witness(await tree(containment, tmp_path / "pids")) as witness:
                stops = 'helper=$(cut -d" " -f4 /proc/$PPID/stat); kill -STOP $PPID $helper; sleep 1000'
                containment.spawn(order("sh", "-c", stops))
                assert containment.keeper is not None
                keeper, helper = containment.keeper, (kernel.stat(containment.keeper) or ("", 0))[1]
                for pid in (keeper, helper):
                    await until(lambda pid=pid: (kernel.stat(pid) or "?")[0] == "T", f"process {pid} stopped")
                containment.cut()
                async with asyncio.timeout(BOUND_SECONDS):
                    await containment.done.wait()
                assert witness.alive() == []
                assert containment.stuck == ()

    play(main())


def test_a_receipt_tells_the_grade_of_processes_that_are_over() -> None:
    """The receipt of a run whose processes had all ended before the stop has their grade, not "inline"."""
    over_now = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        process = await run.spawn("true", background=True)
        await process.exited()
        await process.stop()
        over_now.set()
        await anyio.sleep_forever()

    async def main() -> None:
        async with opened(agent, Grade.KEEPER) as control:
            sent = await control.send("s", "go")
            async with asyncio.timeout(BOUND_SECONDS):
                await over_now.wait()
            await control.stop(session="s")
            assert await over(control, sent.run_id) is Ending.STOPPED
            receipt = await control.receipt(sent.run_id)
            assert (receipt.grade, receipt.unseen) == (Grade.KEEPER, UNSEEN[Grade.KEEPER])
            assert receipt.processes.ended == 0

    play(main())
