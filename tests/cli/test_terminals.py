"""Outputs that close, fill or are terminals: no command crashes, and no text that others wrote steers a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from interlock import Control
from interlock.cli.documents import Runs

from .scene import BOUND, INTERLOCK, document, interlock, serve, told


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with more text than a pipe holds, and texts that a terminal would obey."""
    data = tmp_path_factory.mktemp("long") / "data"

    async def fill(control: Control) -> None:
        for number in range(20):
            sent = await control.send("a\x1b[31mb", f"{number}\n\x1b]0;title\x07\u202e [bold]æ {'x' * 20_000}")
            await control.wait(sent.run_id, drained=True)

    serve(data, fill)
    return data


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65_536)
    except OSError:  # the other end of a terminal is closed
        return b""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_is_no_accident(long: Path, options: tuple[str, ...]) -> None:
    """`interlock runs | head -1` prints a line and complains of nothing."""
    line = f"{' '.join(INTERLOCK)} runs --data {long} {' '.join(options)} | head -1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=BOUND)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    with subprocess.Popen([*INTERLOCK, "runs", "--data", long, *options], stdout=subprocess.PIPE, stderr=-1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_output_that_takes_nothing_is_one_sentence(long: Path) -> None:
    """A full disk under the output is told in a line; a closed output is no error."""
    for options in ((), ("--json",)):
        with open("/dev/full", "w") as full:
            done = interlock("runs", "--data", long, *options, capture_output=False, stdout=full, stderr=-1)
        assert (done.returncode, done.stderr) == (125, "interlock: No space left on device\n")
        line = f"{' '.join(INTERLOCK)} runs --data {long} {' '.join(options)} >&-"
        closed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=BOUND)
        assert (closed.returncode, closed.stderr) == (0, "")


def test_what_others_wrote_cannot_steer_the_terminal(long: Path) -> None:
    """Control characters of a message or a name are shown as such, in one short line; JSON keeps the text as it is."""
    runs = document(Runs, "runs", data=long).runs
    assert runs[0].text.startswith("0\n\x1b]0;title\x07\u202e [bold]æ xxx")
    assert len(runs[0].text) > 20_000
    for text in (told("runs", data=long), told("show", runs[0].id, data=long), told("sessions", data=long)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert all(len(line) < 300 for line in text.splitlines())
    assert "[bold]æ" in told("show", runs[0].id, data=long)
    narrow = interlock("runs", "--data", long, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (narrow.returncode, narrow.stderr) == (0, "")


def test_a_terminal_is_drawn_a_table(long: Path) -> None:
    """A terminal gets the same facts as a table drawn by rich, and no control character of a message."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        [*INTERLOCK, "runs", "--data", long], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        drawn = b""
        while piece := _read(ours):
            drawn += piece
    os.close(ours)
    assert process.returncode == 0
    text = drawn.decode()
    assert "\x1b[1m" in text  # a bold head
    assert text.count("completed") == 20
    assert "[bold]" in text
    assert "\x1b]0;" not in text
    assert "\x1b[31m" not in text
