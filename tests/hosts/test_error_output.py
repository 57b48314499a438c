"""Hosts, workers and their processes share no descriptor with control, which reads and logs the lines they write."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock import Confinement, Control
from interlock.processes import error_output
from interlock.processes.error_output import ErrorOutput, Source

from .test_zygote import hosting, module, reply

__all__ = ["module"]

BOUND_SECONDS = 30.0
ATTACK = """
import json, os, sys
import interlock

SHELL = '''
for fd in 1 2; do
    test "$(stat -L -c %i /proc/self/fd/$fd)" = "$1" && : > /proc/self/fd/$fd && echo "a shell, by $fd"
done
'''

@interlock.tool
def attack(log: int, whose: str) -> list[str]:
    done = []
    for fd in range(64):
        for path in (f"/proc/self/fd/{fd}", f"/proc/{os.getppid()}/fd/{fd}"):
            try:
                if os.stat(path).st_ino == log:
                    done.append(f"{whose}, by {path}")
                    os.truncate(path if "self" not in path else fd, 0)
            except OSError:
                pass
    print("printed by", whose, file=sys.stderr, flush=True)
    return done

async def agent(run, message):
    driver, user, log = message.text.split(",")
    found = []
    if driver == "host":  # (inline, the agent is the server's own process)
        found += attack(int(log), "the agent")
    if not user:  # (this Python may be where another user cannot find it)
        found += await run.call(attack, log=int(log), whose="a worker")
    found += (await run.spawn("sh", "-c", SHELL, "sh", log, cwd="/")).output.splitlines()
    return json.dumps(found)
"""
SERVES = """
import asyncio, os, sys
from interlock import Confinement, open_control

async def main():
    print("the log's first line", file=sys.stderr, flush=True)
    driver, user = sys.argv[1:]
    rights = Confinement(agent_user=user or None)
    async with open_control("written:agent", driver=driver, confinement=rights) as control:
        sent = await control.send("s", f"{driver},{user},{os.fstat(2).st_ino}", by="ann")
        outcome = await control.wait(sent.run_id)
        print(outcome.text or outcome.error)
    print("the log's last line", file=sys.stderr, flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("user", ["", "nobody"], ids=["same user", "another user"])
@pytest.mark.parametrize("driver", ["host", "inline"])
def test_nothing_can_truncate_the_log(driver: str, user: str, module: Callable[[str], str], tmp_path: Path) -> None:
    """No descriptor of an agent, its tools and its processes leads to the file that the server writes its errors to."""
    if user and os.geteuid() != 0:
        pytest.skip("needs root, to give rights away")
    module(ATTACK)
    log = tmp_path / "log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-c", SERVES, driver, user],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd="/",
            check=False,
            timeout=BOUND_SECONDS,
        )
    lines = log.read_text().splitlines()
    assert done.stdout == b"[]\n", lines
    assert lines[0] == "the log's first line" and lines[-1] == "the log's last line", lines
    told = [line for line in lines if ": printed by " in line]
    assert len(told) == (driver == "host") + (not user), lines


def test_a_flood_is_bounded_and_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """A writer without end gets a burst of lines logged, and a count of the rest; other writers are logged in full."""
    errors = ErrorOutput()
    flood, quiet = errors.pipe(lambda: "the flood"), errors.pipe(lambda: "the quiet one")
    size = 3 * error_output.BURST_BYTES
    code = f"import sys; sys.stderr.write(('x' * 99 + '\\n') * ({size} // 100)); sys.stderr.write('the end')"
    began = time.monotonic()
    try:
        subprocess.run([sys.executable, "-c", code], stderr=flood, check=True, timeout=BOUND_SECONDS)
        subprocess.run(["sh", "-c", "echo here >&2"], stderr=quiet, check=True, timeout=BOUND_SECONDS)
    finally:
        os.close(flood)
        os.close(quiet)
        errors.close()
        errors.join()  # until the last gap is logged
    lines = capfd.readouterr().err.splitlines()
    assert "the quiet one: here" in lines
    told = [line for line in lines if line.startswith("the flood: x")]
    earned = (time.monotonic() - began) * error_output.BYTES_PER_SECOND
    assert error_output.BURST_BYTES // 100 <= len(told) <= (error_output.BURST_BYTES + earned) // 100 + 1
    gaps = [line for line in lines if line.endswith("left out here: it wrote too much)")]
    left_out = sum(int(line.removeprefix("the flood: (").split()[0]) for line in gaps)
    assert len(told) * 100 + left_out in (size // 100 * 100, size // 100 * 100 + len("the end") + 1)


def test_nobody_forges_a_line_of_the_log() -> None:
    """Every logged line begins with its writer's name, and spells out characters that move a cursor or split a line."""
    source = Source(-1, lambda: "the host of a\nb")
    told = source.feed(b'{"event": "ended"}\r\n\x1b[2Jgone\xff\n\xc2\x85next\rover\nbegun')
    assert told == [
        'the host of a\\nb: {"event": "ended"}\n',
        "the host of a\\nb: \\x1b[2Jgone\\xff\n",
        "the host of a\\nb: \\x85next\\rover\n",
    ]
    assert source.feed(b"") == ["the host of a\\nb: begun\n"]


def test_a_line_without_an_end_is_told_in_pieces() -> None:
    """A line that is too long is logged as several, so that control keeps no line for ever."""
    source = Source(-1, lambda: "w")
    long = b"y" * (2 * error_output.LINE_BYTES + 5)
    assert [len(line) for line in source.feed(long)] == [error_output.LINE_BYTES + 4] * 2
    assert source.feed(b"z\n") == ["w: yyyyyz\n"]
    assert len(source.feed(long + b"\n")) == 3


def test_whoever_does_not_read_our_error_output_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process still writes and ends while our own error output is a full pipe, and the close is bounded."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while os.write(writing, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(writing, True)
    monkeypatch.setattr(error_output, "OURS", writing)
    errors = ErrorOutput()
    pipe = errors.pipe(lambda: "it")
    try:
        subprocess.run(["sh", "-c", "yes | head -n 200000 >&2"], stderr=pipe, check=True, timeout=BOUND_SECONDS)
    finally:
        os.close(pipe)
        errors.close()
        errors.join()
        os.close(reading)
        os.close(writing)


def test_another_user_writes_to_its_error_output_by_name(module: Callable[[str], str]) -> None:
    """An agent of another user can open `/dev/stderr`, since the pipe belongs to that user."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give rights away")
    agent = module("async def agent(run, message):\n    open('/dev/stderr', 'w').write('by name')\n    return 'done'")

    async def use(control: Control) -> None:
        assert await reply(control) == "done"

    hosting(agent, use, Confinement(agent_user="nobody"))
