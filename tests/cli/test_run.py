"""`interlock run`, as a shell sees it: real processes, real signals, and a look from outside at the end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import config
from interlock.cli.run import _bytes
from interlock.core.errors import BadInput

from .scene import BOUND, INTERLOCK, dropped
from .scene import fresh as interlock

TREE = """
import os, signal, sys, time
place = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(name):
    with open(f"{place}/{name}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{place}/{name}.part", f"{place}/{name}.pid")
def stay():
    while True:
        time.sleep(60)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note("daemon")
        stay()
    os._exit(0)
os.wait()
if os.fork() == 0:
    note("child")
    stay()
note("main")
stay()
"""
NAMES = ("main", "child", "daemon")


class Started:
    """A run from the shell with a tree that ignores TERM: a command, its child, and a daemon in its own session."""

    def __init__(self, place: Path, *options: str, prefix: tuple[str, ...] = ()) -> None:
        self.place = place
        place.chmod(0o777)
        self.process = subprocess.Popen(
            [*prefix, *INTERLOCK, "run", *options, "--", sys.executable, "-I", "-S", "-c", TREE, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def up(self) -> bool:
        """True once the whole tree has said that it runs."""
        return all((self.place / f"{name}.pid").exists() for name in NAMES)

    def alive(self) -> list[int]:
        """Return the living processes of the tree, by their command line: a dead one has none."""
        pids = [int(file.read_text()) for file in self.place.glob("*.pid")]
        return [pid for pid in pids if str(self.place) in command_line(pid)]

    def wait(self) -> tuple[int, str]:
        """Return the exit status and the error output."""
        _, said = self.process.communicate(timeout=BOUND)
        return self.process.returncode, said

    def kin(self, name: str) -> list[int]:
        """Find the helper (interlock-help) or the keeper (interlock-keep) below us, whatever their parent is now."""
        found, rest = [], [self.process.pid]
        while rest:
            pid = rest.pop()
            rest += children(pid)
            if fields(pid)[0] == name:
                found.append(pid)
        return found

    def put_away(self) -> None:
        """End every process of the tree, whatever a test found."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=BOUND)
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start trees that are put away at the end.

    The directory is not one of pytest's: a user without rights has to get there, and pytest keeps other users out.
    """
    begun: list[Started] = []

    def begin(*options: str, prefix: tuple[str, ...] = (), up: bool = True) -> Started:
        place = Path(room) / f"tree{len(begun)}"
        place.mkdir()
        tree = Started(place, *options, prefix=prefix)
        begun.append(tree)
        if up:
            eventually(lambda: tree.up or tree.process.poll() is not None, "the tree is up")
            assert tree.process.poll() is None, tree.wait()
        return tree

    with tempfile.TemporaryDirectory(prefix="interlock-") as room:
        Path(room).chmod(0o755)
        yield begin
        for each in begun:
            each.put_away()


def fields(pid: int) -> tuple[str, int]:
    """Return the name and the parent of a process; an empty name if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", 0
    name, _, rest = text[text.index("(") + 1 :].rpartition(") ")
    return name, int(rest.split()[1])


def command_line(pid: int) -> str:
    """Return the command line of a process; nothing if it is dead."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and fields(int(name))[1] == pid]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, bounded."""
    until = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < until, f"not seen: {what}"
        time.sleep(0.005)


def receipt_of(path: Path) -> dict[str, Any]:
    """Read a receipt that a run wrote."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


# Status, input, output


@pytest.mark.parametrize(("line", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_status_is_the_commands_own(line: str, status: int) -> None:
    """A command that ended by itself gives its status, 128+n if a signal ended it, and we print nothing."""
    done = interlock("run", "--", "sh", "-c", line)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_what_cannot_be_started_is_told_as_a_shell_tells_it(tmp_path: Path) -> None:
    """A command that cannot start gives one line and 127 (not found), 126 (not executable) or 125 (our own trouble)."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    cases = [
        (("run", "--", "no-such-command"), 127, "there is no such program"),
        (("run", "--", str(plain)), 126, "may not be executed"),
        (("run", "--cwd", str(tmp_path / "none"), "--", "true"), 125, "cannot be entered"),
        (("run", "--receipt", str(tmp_path / "none" / "r"), "--", "true"), 125, "cannot be written"),
    ]
    for arguments, status, words in cases:
        done = interlock(*arguments)
        assert done.returncode == status, arguments
        assert words in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_bytes_pass_through_untouched() -> None:
    """Ten binary megabytes in on the input come out on the output, and the error output stays apart."""
    data = hashlib.shake_128(b"seed").digest(10 * 1024 * 1024)
    done = interlock("run", "--", "sh", "-c", "cat; printf '\\377\\0' >&2", text=False, input=data)
    assert done.returncode == 0
    assert done.stdout == data
    assert done.stderr == b"\xff\0"


def test_the_command_sees_the_shells_environment_and_place(tmp_path: Path) -> None:
    """The command sees the caller's environment, its directory or the one asked for, and its arguments unchanged."""
    env = {**os.environ, "SOME_TOKEN": "a b", "ODD": b"\xff".decode("utf-8", "surrogateescape")}
    program = "import os, sys; print(ascii([os.environ['SOME_TOKEN'], os.environ['ODD'], os.getcwd(), sys.argv[1:]]))"
    for options, place in (((), "/"), (("--cwd", str(tmp_path)), str(tmp_path))):
        done = interlock("run", *options, "--", sys.executable, "-c", program, "--deadline", "-x", env=env, cwd="/")
        assert done.stdout.strip() == ascii(["a b", "\udcff", place, ["--deadline", "-x"]]), done.stderr


def test_a_closed_input_is_no_accident() -> None:
    """A command whose shell closed the input gets an empty input, and no descriptor of ours in its place."""
    line = f"{' '.join(INTERLOCK)} run -- sh -c 'cat; readlink /proc/self/fd/0' <&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=BOUND)
    assert (done.returncode, done.stdout.strip()) == (0, "/dev/null"), done.stderr


# Endings


def test_background_children_end_with_the_command(tmp_path: Path) -> None:
    """A process that a command leaves in the background, in its own session, is gone when `interlock run` exits."""
    line = 'setsid sh -c "echo \\$\\$ >$0/pid; exec sleep 300" & while ! test -s $0/pid; do :; done; exit 4'
    paper = tmp_path / "receipt"
    done = interlock("run", "--receipt", str(paper), "--", "sh", "-c", line, str(tmp_path))
    assert (done.returncode, done.stderr) == (4, "")
    assert command_line(int((tmp_path / "pid").read_text())) == ""
    receipt = receipt_of(paper)
    assert (receipt["cause"], receipt["drain"], receipt["processes"]["ended"]) == ("completed", "observed", 1)
    assert receipt["runs"][0]["outcome"]["text"] == "exited with 4"


def test_the_deadline_ends_a_daemon_that_ignores_term(start: Start) -> None:
    """A deadline ends the command with 124 and one line, and nothing of the tree is left at the exit."""
    # The tree has to be up before the deadline: on a busy machine the test gives it more time.
    for seconds in (1, 4, 16):
        tree = start("--deadline", f"{seconds}s", up=False)
        status, said = tree.wait()
        if tree.up:
            break
    assert (status, tree.up, tree.alive()) == (124, True, [])
    words = rf"interlock: timed out after {seconds} s: 3 processes ended, grade \w+, drained in [\d.]+ ms\n"
    assert re.fullmatch(words, said), said


def test_ctrl_c_stops_it(start: Start, tmp_path: Path) -> None:
    """Ctrl-C gives 130, and a receipt that says what was ended and seen gone and that only its owner can read."""
    paper = tmp_path / "receipt"
    paper.write_text("older and longer" * 1000)
    paper.chmod(0o644)
    tree = start("--receipt", str(paper))
    tree.process.send_signal(signal.SIGINT)
    status, said = tree.wait()
    assert (status, tree.alive()) == (130, [])
    assert said.startswith("interlock: stopped: 3 processes ended, grade ")
    receipt = receipt_of(paper)
    assert (receipt["cause"], receipt["drain"], receipt["unconfirmed"]) == ("stopped", "observed", [])
    assert (receipt["processes"]["ended"], receipt["processes"]["stuck"]) == (3, 0)
    assert paper.stat().st_mode & 0o777 == 0o600


def test_a_second_ctrl_c_changes_nothing(start: Start) -> None:
    """Two Ctrl-C in a row end the command like one, during a grace too."""
    tree = start("--grace", "0.3s", "--quiet")
    tree.process.send_signal(signal.SIGINT)
    time.sleep(0.05)  # any distance will do
    tree.process.send_signal(signal.SIGINT)
    assert tree.wait() == (130, "")
    assert tree.alive() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_shutdown_ends_it_as_well(start: Start, number: signal.Signals) -> None:
    """TERM, or the loss of the terminal, ends the command with 143, and the line says which."""
    tree = start()
    tree.process.send_signal(number)
    status, said = tree.wait()
    assert (status, tree.alive()) == (143, [])
    assert said.startswith(f"interlock: interrupted by {number.name}: 3 processes ended, grade ")


def test_nohup_is_respected(start: Start) -> None:
    """A hang-up that the shell had us ignore ends nothing."""
    tree = start(prefix=("nohup",))
    tree.process.send_signal(signal.SIGHUP)
    tree.process.send_signal(signal.SIGINT)
    assert tree.wait()[0] == 130


def test_grace_lets_a_command_finish(tmp_path: Path) -> None:
    """A command that gets TERM has its grace to clean up, and the ending is `stopped` all the same."""
    line = 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.01; done'
    with subprocess.Popen(
        [*INTERLOCK, "run", "--grace", "10s", "--", "sh", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        output, said = process.communicate(timeout=BOUND)
    assert (process.returncode, output) == (130, b"bye\n")
    assert b"stopped: " in said


def test_the_group_grade_says_what_it_cannot_reach() -> None:
    """The line of the group grade names what may be left."""
    done = interlock("run", "--grade", "group", "--deadline", "0.2", "--", "sleep", "300")
    assert done.returncode == 124
    assert "grade group" in done.stderr
    assert "out of reach: processes that left their process group" in done.stderr


# Deaths


def test_killed_with_9_it_leaves_nothing(start: Start) -> None:
    """A kill -9 of `interlock run` ends its tree too."""
    tree = start()
    tree.process.kill()
    assert tree.wait()[0] == -signal.SIGKILL
    eventually(lambda: not tree.alive(), "the tree is gone")


@pytest.mark.parametrize(
    ("grade", "who"),
    [
        ("cgroup", ("help",)),
        ("cgroup", ("help", "keep")),
        ("keeper", ("keep",)),
        ("keeper", ("help", "keep")),
    ],
)
def test_helper_and_keeper_killed_leave_nothing(start: Start, grade: str, who: tuple[str, ...]) -> None:
    """A kill of the helper, of the keeper or of both leaves nothing of the tree; we exit with 125 and the reason."""
    prefix = dropped() if grade == "keeper" else ()
    options = ("--grade", grade) if grade == "keeper" or os.geteuid() == 0 else ()
    tree = start(*options, prefix=prefix)
    victims = [pid for name in who for pid in tree.kin(f"interlock-{name}")]
    assert len(victims) == len(who)
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)  # none of them may act before all are killed
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    status, said = tree.wait()
    assert tree.alive() == []
    assert status == 125, said
    assert re.fullmatch(r"interlock: \S+ was ended: its (helper|keeper) was killed(: .*)?\n", said), said


def test_times_and_sizes_are_read_as_people_write_them() -> None:
    """A time without a unit is in seconds, a size is in powers of 1024, anything else is refused with an example."""
    times = {"90": 90.0, "1.5s": 1.5, "200ms": 0.2, "2m": 120.0, "1h": 3600.0, " 3 s ": 3.0, ".5": 0.5}
    assert {text: config.seconds(text) for text in times} == times
    sizes = {"4096": 4096, "512M": 512 << 20, "2g": 2 << 30, "1.5KiB": 1536, "1MB": 1 << 20}
    assert {text: _bytes(text) for text in sizes} == sizes
    for text in ("soon", "1y", "-1", "", "1 2", "inf", "nan"):
        with pytest.raises(BadInput, match="write 90"):
            config.seconds(text)
    for text in ("much", "0", "-1M", "", "1P"):
        with pytest.raises(BadInput, match="512M"):
            _bytes(text)
