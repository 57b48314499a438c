"""What a hostile review of the processes found, one rule each: none of it comes back."""

from __future__ import annotations

import array
import asyncio
import concurrent.futures
import errno
import fcntl
import gc
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from interlock import BadInput, Confinement, Control, Drain, Ending, Message, Run, open_control
from interlock.processes import kernel
from interlock.processes.base import LINE_BYTES, UNSEEN, Grade
from interlock.processes.containment import LocalContainment
from interlock.processes.worker import ANSWER_BYTES
from interlock.processes.workers import ToolFailed

from .test_spawn import (
    BOUND_SECONDS,
    Witness,
    both_grades,
    descriptors,
    ended,
    need,
    order,
    play,
    python,
    room,
    tree,
    until,
)

MANY = 400
SENT = 20
LINGER_SECONDS = 20
LATE = "l:" * 50_000
"""A PATH whose search takes a keeper a good part of a second: a long way round to this directory, again and again."""
PLAYED_AGAIN = 25  # times; far more than it takes beside one other half


@asynccontextmanager
async def opened(agent: Any, grade: Grade | None = None) -> AsyncIterator[Control]:
    """Open a control of a grade."""
    need(grade or Grade.KEEPER)
    async with open_control(agent, confinement=Confinement(grade=grade)) as control:
        yield control


async def over(control: Control, run: str) -> Ending:
    """Wait, bounded, until nothing of a run is left; return how it ended."""
    async with asyncio.timeout(3 * BOUND_SECONDS):
        outcome = await control.wait(run, drained=True)
    assert outcome.error is None, outcome.error
    assert outcome.ending is not None
    return outcome.ending


# Leaves, reads and directories


def mine() -> set[Path]:
    """Every cgroup directory that is of a control of this process."""
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
    """The cgroups that a process is in."""
    return set(kernel.read(f"/proc/{pid}/cgroup").splitlines())


def homes() -> list[Path]:
    """The cgroups that ours are made in."""
    found = (kernel.own_cgroup(), kernel.own_cgroup_v1("pids"), kernel.own_cgroup_v1("memory"))
    return [Path(home) for home in found if home is not None]


def test_a_short_read_is_not_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the kernel gives in small pieces, as it does its lists of processes, is read to its end."""
    real = os.read
    text = "".join(f"{number} " for number in range(500))
    (tmp_path / "list").write_text(text)
    monkeypatch.setattr(os, "read", lambda fd, count: real(fd, min(count, 10)))
    assert kernel.read(str(tmp_path / "list")) == text


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


# Workers. Their tools live at the top of a module, where a worker finds them.


def to_control() -> socket.socket:
    """In a worker: its end of the socket to control."""
    for number in range(3, 100):
        try:
            found = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if found.type == socket.SOCK_SEQPACKET:
            return found
    raise LookupError("no socket to control")


def answers() -> int:
    """In a worker: the pipe that its answers go to."""
    for number in range(3, 100):
        try:
            writes = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if writes and stat.S_ISFIFO(os.fstat(number).st_mode):
                return number
        except OSError:
            continue
    raise LookupError("no pipe for answers")


def hands_over(sock: socket.socket, fds: list[int]) -> str:
    """Send descriptors to control; say what came of it."""
    try:
        sock.sendmsg([b"hx"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "sent"


def lingering() -> socket.socket:
    """A connection with unread data in it, whose close() takes long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        _held.append(server.accept()[0])
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(65536))
    except BlockingIOError:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
        return ours


_held: list[socket.socket] = []


def gives_descriptors(at: str) -> list[str]:
    """Hand descriptors to control while it waits for the answer, and again when nobody asks any more."""
    sock, fd = to_control(), os.open(f"{at}/given", os.O_RDONLY)

    def later() -> None:
        while not Path(at, "answered").exists():
            time.sleep(0.002)
        Path(at, "said").write_text(" ".join(hands_over(sock, [fd] * 8) for _ in range(SENT)))

    threading.Thread(target=later, daemon=True).start()
    with lingering() as slow:
        said = [hands_over(sock, [slow.fileno()]), hands_over(sock, [fd] * 8)]
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))  # (we close it as well)
    return said


def test_a_tool_hands_no_descriptors_to_control(tmp_path: Path) -> None:
    """Nothing a worker's tool sends by its socket arrives: no descriptor is left in control, and none freezes it."""
    given = tmp_path / "given"
    given.touch()
    gap = 0.0

    def held() -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and os.path.realpath(link) == str(given) for link in links)

    async def beat() -> None:
        nonlocal gap
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            gap = max(gap, time.monotonic() - began)

    async def agent(run: Run, message: Message) -> None:
        assert await run.call(gives_descriptors, at=str(tmp_path)) == ["EPIPE", "EPIPE"]
        (tmp_path / "answered").touch()
        said = await until(lambda: len(words := read(tmp_path / "said").split()) == SENT and words, "what became of it")
        assert set(said) == {"EPIPE"}
        assert held() == 0

    async def main() -> None:
        before = descriptors()
        beating = asyncio.create_task(beat())
        async with opened(agent) as control:
            sent = await control.send("s", "go")
            assert await over(control, sent.run_id) is Ending.COMPLETED
        assert gap < LINGER_SECONDS / 2
        beating.cancel()
        await until(lambda: descriptors() <= before, "no descriptor more")

    play(main())


def says(raw: bytes) -> None:
    """Write to the pipe of the answers, and never return."""
    view = memoryview(raw)
    while view:
        view = view[os.write(answers(), view) :]
    while True:
        signal.pause()


def returns(size: int) -> str:
    """Return a long text."""
    return "x" * size


def framed(answer: bytes) -> bytes:
    """An answer as a worker frames it."""
    return len(answer).to_bytes(4, "big") + answer


RAW = {
    "garbage": framed(b"\xc1garbage"),
    "a failure without a text": framed(b"\x92\xa6failed\xc0"),
    "nested arrays": framed(b"\x92\xa4done" + b"\x91" * 20_000 + b"\xc0"),
    "too long": (ANSWER_BYTES + 1).to_bytes(4, "big"),
}


def test_a_worker_that_answers_nonsense_fails_the_call() -> None:
    """Garbage, nested arrays or an over-long answer from a worker end the call with an error; the next call works."""
    came: dict[str, BaseException | str] = {}

    async def agent(run: Run, message: Message) -> None:
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                came[message.text] = str(await run.call(says, raw=RAW[message.text]))
        except ToolFailed as error:
            came[message.text] = error
        assert await run.call(returns, size=2) == "xx"  # by another worker

    async def main() -> None:
        async with opened(agent) as control:
            for number, name in enumerate(RAW):
                sent = await control.send(f"s{number}", name)
                assert await over(control, sent.run_id) is Ending.COMPLETED, name
        assert [name for name in RAW if not isinstance(came[name], ToolFailed)] == []

    play(main())


def test_a_tool_that_returns_too_much_is_told_so() -> None:
    """A value longer than an answer may be is refused by the worker itself, which goes on serving."""

    async def agent(run: Run, message: Message) -> None:
        assert len(await run.call(returns, size=ANSWER_BYTES // 2)) == ANSWER_BYTES // 2
        with pytest.raises(BadInput, match="write a file"):
            await run.call(returns, size=ANSWER_BYTES)
        assert await run.call(returns, size=2) == "xx"

    async def main() -> None:
        async with opened(agent) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())


INNER = """
import asyncio
import interlock

async def agent(run, message):
    return "served"

async def main():
    async with interlock.open_control(agent) as control:
        sent = await control.send("s", "go")
        print((await control.wait(sent.run_id)).ending)

asyncio.run(main())
"""


def opens_control() -> str:
    """Run a program that opens a control of its own."""
    ran = subprocess.run([sys.executable, "-c", INNER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ran.stdout.strip()


def test_a_program_of_a_tool_is_no_worker() -> None:
    """A program that a synchronous tool starts may open a control: only the worker itself may not."""

    async def agent(run: Run, message: Message) -> None:
        assert await run.call(opens_control) == "completed"

    async def main() -> None:
        async with opened(agent) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())


# A stop


@contextmanager
def late(at: Path) -> Iterator[Path]:
    """A program that a keeper finds only after a long search, and that leaves a trace when it begins."""
    (at / "bin").mkdir()
    program = at / "bin" / "late"
    program.write_text('#!/bin/sh\n: > "$1"\nexec sleep 1000\n')
    program.chmod(0o755)
    (at / "here").mkdir()
    (at / "here" / "l").symlink_to("./" * 150)
    yield at / "here"


def searching(here: Path) -> list[int]:
    """Who is in a directory: a keeper is for as long as it looks for the program, and so is the program."""
    found = []
    for pid in kernel.pids():
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(here):
                found.append(pid)
        except OSError:
            continue
    return found


async def held_in(here: Path) -> int:
    """Stop a keeper in the middle of its search, so that what follows comes before its end; return its pid."""
    [keeper] = await until(lambda: searching(here), "the search")
    os.kill(keeper, signal.SIGSTOP)
    await until(lambda: (kernel.stat(keeper) or "?")[0] == "T", "a stopped keeper")
    assert searching(here) == [keeper], "its search was over already"
    return keeper


@both_grades
def test_a_program_that_is_long_looked_for_does_not_begin_after_the_cut(grade: Grade, tmp_path: Path) -> None:
    """A program whose PATH is still being searched when its containment is cut never begins."""

    async def main() -> None:
        async with room(grade) as processes:
            with late(tmp_path) as here:
                for turn in range(2):
                    trace = tmp_path / f"began-{turn}"
                    containment = processes.contain(f"run r-{turn}.g1")
                    path = LATE + str(tmp_path / "bin")
                    process = containment.spawn(order("late", str(trace), env={"PATH": path}, cwd=str(here)))
                    keeper = await held_in(here)
                    containment.cut()
                    os.kill(keeper, signal.SIGCONT)
                    await containment.done.wait()
                    assert process.failure is not None
                    assert process.failure.errno == errno.ECANCELED
                    assert not trace.exists()

    play(main())


@both_grades
def test_a_detached_process_that_had_not_begun_never_does(grade: Grade, tmp_path: Path) -> None:
    """A detached process still being looked for when the stop of its run returned never begins, and is not listed."""
    trace = tmp_path / "began"

    async def agent(run: Run, message: Message) -> None:
        if message.text == "warm":
            await run.spawn("true")
            return
        path = LATE + str(tmp_path / "bin")
        await run.spawn("late", str(trace), detached=True, env={"PATH": path}, cwd=str(tmp_path / "here"))

    async def main() -> None:
        with late(tmp_path) as here:
            async with opened(agent, grade) as control:
                assert await over(control, (await control.send("s", "warm")).run_id) is Ending.COMPLETED
                sent = await control.send("s", "go")
                keeper = await held_in(here)
                await control.stop(run=sent.run_id)
                os.kill(keeper, signal.SIGCONT)
                assert await over(control, sent.run_id) is Ending.STOPPED
                assert (await control.receipt(sent.run_id)).processes.detached == 0
                await until(lambda: not searching(here), "the end of the search")
                assert await control.processes("s") == []
                assert not trace.exists()

    play(main())


@both_grades
def test_a_stopped_helper_and_keeper_do_not_save_a_tree(grade: Grade, tmp_path: Path) -> None:
    """Processes that stop their keeper and its helper with SIGSTOP are ended all the same, and seen gone."""

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
    """A run whose processes had all ended before its stop has their grade in its receipt, not "inline"."""
    over_now = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        process = await run.spawn("true", background=True)
        await process.containment.done.wait()
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


# Many at once, and a loop that is busy


def test_a_full_executor_holds_nothing_up() -> None:
    """The first spawn and close() need no thread of the loop's pool: the embedder may have filled it."""
    release = threading.Event()

    async def agent(run: Run, message: Message) -> None:
        assert (await run.spawn("true")).ok

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        filled = loop.run_in_executor(None, release.wait, 3 * BOUND_SECONDS)
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                async with opened(agent) as control:
                    assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED
            assert not filled.done()
        finally:
            release.set()
            await filled

    play(main())


def test_many_spawns_at_once_all_succeed() -> None:
    """More requests in one step than a socket holds wait for room instead of failing."""

    async def agent(run: Run, message: Message) -> None:
        came = await asyncio.gather(*(run.spawn("true") for _ in range(MANY)))
        assert [each.status for each in came] == [0] * MANY

    async def main() -> None:
        async with opened(agent, Grade.KEEPER) as control:
            assert await over(control, (await control.send("s", "go")).run_id) is Ending.COMPLETED

    play(main())


# Output and terminals


def test_nothing_is_kept_of_a_process_whose_pipe_was_held(tmp_path: Path) -> None:
    """When the last holder of an exited process's pipe goes, control lets go of the process and of its output."""

    async def exits(containment: LocalContainment) -> weakref.ref[Any]:
        code = '(while [ ! -e "$0" ]; do sleep 0.01; done) & echo out'
        process = containment.spawn(order("sh", "-c", code, str(tmp_path / "go")))
        assert await ended(process) == "out\n"
        return weakref.ref(process)

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            kept = [await exits(containment) for _ in range(3)]
            (tmp_path / "go").touch()
            await until(lambda: gc.collect() >= 0 and not [each for each in kept if each() is not None], "nothing kept")
            assert not containment.done.is_set()

    play(main())


def test_a_process_that_closes_its_terminal_keeps_its_status(tmp_path: Path) -> None:
    """A process that closes its terminal and works on is not hung up on: its work and its exit status are its own."""

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            code = 'echo out; exec <&- >&- 2>&-; : > "$0/closed"; while [ ! -e "$0/go" ]; do sleep 0.01; done; exit 7'
            process = containment.spawn(order("sh", "-c", code, str(tmp_path), pty=True))
            await process.started()
            await until((tmp_path / "closed").exists, "a closed terminal")
            for _ in range(10):  # the loop looks at its descriptors in each turn: it has seen that by then
                await asyncio.sleep(0)
            (tmp_path / "go").touch()
            assert await ended(process) == "out\r\n"
            assert process.status == 7

    play(main())


@pytest.mark.parametrize("given", [b"abc", b"abc\n", b""], ids=["a part of a line", "a line", "nothing"])
def test_input_to_a_terminal_ends(given: bytes) -> None:
    """A reader of a terminal sees the end of its input, also where that does not end with a newline."""

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            process = containment.spawn(order("cat", pty=True, input=given))
            async with asyncio.timeout(BOUND_SECONDS):
                output = await ended(process)
            assert process.status == 0
            assert given.decode().strip() in output

    play(main())


def test_a_carriage_return_where_a_long_line_is_cut_is_kept() -> None:
    """Pieces of a line that is too long lose nothing; only the end of a line is taken off."""
    before = LINE_BYTES - 1
    code = "import sys; sys.stdout.write('x' * int(sys.argv[1]) + '\\ry\\r\\nz\\r\\n')"

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1", once=True)
            process = containment.spawn(python(code, str(before), streamed=True))
            lines = []
            while (line := await process.line()) is not None:
                lines.append(line)
            assert lines == [b"x" * before + b"\r", b"y", b"z"]

    play(main())


# Marks and rights


def test_the_sweep_spares_the_child_of_a_living_service(tmp_path: Path) -> None:
    """Who carries the mark of a dead control but is the child of a living stranger is spared; an orphan is not.

    The next start may be anybody's on this machine, of the other half of the tests too: then it is played again.
    """
    with subprocess.Popen(["sleep", "1000"]) as dead:
        mark = f"{kernel.OWNER}={kernel.owner_of(dead.pid)}-1"
        dead.kill()
    assert kernel.owner_lives(mark.partition("=")[2]) is False
    code = '(env "$1" sleep 1000 & echo $! >> "$0"); env "$1" sleep 1000 & echo $! >> "$0"; wait'
    ours: list[bool] = []

    def marked(pid: int) -> bool:
        try:
            return mark in kernel.read(f"/proc/{pid}/environ").split("\0")
        except OSError:
            return False

    async def main(place: Path, service: int) -> None:
        pids = await until(lambda: len(text := read(place).split()) == 2 and [int(pid) for pid in text], "two pids")
        orphan, child = pids
        with Witness([child]) as spared:
            try:
                with Witness([orphan]) as ended:
                    await until(lambda: marked(child) and (marked(orphan) or not ended.alive()), "two marks")
                    assert (kernel.stat(child) or ("", 0))[1] == service
                    assert (kernel.stat(orphan) or ("", 0))[1] != service
                    left = ended.alive()
                    async with room(Grade.KEEPER) as processes:
                        assert processes.machine is not None
                        assert (ended.alive(BOUND_SECONDS), spared.alive()) == ([], [child])
                        ours.append(bool(left) and processes.machine.leftovers_ended >= 1)
            except ProcessLookupError:
                return  # it was gone before we saw it
            finally:
                spared.signal(signal.SIGKILL)

    for number in range(PLAYED_AGAIN):
        place = tmp_path / f"pids {number}"
        with subprocess.Popen(["sh", "-c", code, str(place), mark]) as service:
            try:
                play(main(place, service.pid))
            finally:
                service.kill()
        if ours[-1:] == [True]:
            return
    pytest.fail("the orphan was never ended by our own start")


def read(place: Path) -> str:
    """What is in a file so far."""
    return place.read_text() if place.exists() else ""


RIGHTS = """
import asyncio, sys
from interlock.processes.base import Confinement, SpawnOrder
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
    """Where processes run as another user they have no capability, also if control was given ambient ones."""
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


DIES = """
import asyncio, os, signal, sys
from interlock.processes.base import Confinement, Grade, SpawnOrder
from interlock.processes.local import LocalProcesses
async def main():
    processes = LocalProcesses(Confinement(grade=Grade.KEEPER))
    await processes.ready()
    held = processes.contain("r")
    kept = held.spawn(SpawnOrder(argv=("env", "-i", "sleep", "60")))
    await kept.started()
    while open(f"/proc/{kept.pid}/comm").read() != "sleep\\n":
        await asyncio.sleep(0.001)
    print(kept.pid, flush=True)
    sys.stdin.readline()
    os.kill(held.keeper, signal.SIGSTOP)
    for pid in (processes._helper.process.pid, held.keeper, os.getpid()):
        os.kill(pid, signal.SIGKILL)
asyncio.run(main())
"""


def test_a_version_1_leaf_tells_the_next_start_who_is_left() -> None:
    """Without a mark and without cgroup v2, what a dead control left is found by its limits' cgroup, and ended.

    The next start may be anybody's on this machine, of the other half of the tests too: then it is played again.
    """
    if os.geteuid() != 0 or kernel.own_cgroup_v1("pids") is None:
        pytest.skip("this needs root and a version 1 pids hierarchy")
    ours: list[bool] = []

    async def main(alive: bool) -> None:
        async with room(Grade.KEEPER) as processes:
            assert processes.machine is not None
            ours.append(alive and processes.machine.leftovers_ended >= 1)

    for _ in range(PLAYED_AGAIN):
        with subprocess.Popen(
            [sys.executable, "-c", DIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as control:
            assert control.stdin is not None and control.stdout is not None
            left = int(control.stdout.readline())
            with Witness([left]) as witness:
                control.stdin.write("die\n")
                control.stdin.close()
                control.wait(BOUND_SECONDS)
                play(main(witness.alive() == [left]))
                assert witness.alive(BOUND_SECONDS) == []
        if ours[-1]:
            return
    pytest.fail("what was left was never seen alive, or never ended by our own start")
