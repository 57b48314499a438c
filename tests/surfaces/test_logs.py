"""The log of a server: every line is written once and in order, or counted as left out."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from datetime import datetime
from typing import Any

from interlock.surfaces.logs import LINES

PREPARED = """
import logging, sys, threading, time
from interlock.surfaces import logs
finish = logs.set_up_logging("info")
log = logging.getLogger("told")
"""


def told(code: str) -> tuple[list[dict[str, Any]], str]:
    """Run code in a process that logs; return its lines and its output."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + code], capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stderr.splitlines()], done.stdout


def test_lines_are_written_once_and_in_order() -> None:
    """All lines of several bursts are written once and in order before the end."""
    lines, _ = told(
        'for number in range(3_000): log.log(30 if number % 1_000 == 7 else 20, "line", extra={"number": number})\n'
        "finish()"
    )
    assert [line["number"] for line in lines] == list(range(3_000))
    assert (lines[0]["event"], lines[0]["level"], lines[7]["level"]) == ("line", "info", "warning")


def test_lines_of_several_threads_are_all_written() -> None:
    """Lines that threads log at the same time are all written, each thread's in order."""
    lines, _ = told(
        "def burst(by):\n"
        '    for number in range(500): log.info("line", extra={"by": by, "number": number})\n'
        "threads = [threading.Thread(target=burst, args=(by,)) for by in range(4)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "finish()"
    )
    for by in range(4):
        assert [line["number"] for line in lines if line["by"] == by] == list(range(500))


def test_a_warning_is_written_before_the_end() -> None:
    """A warning, and the lines before it, are written while the process goes on."""
    code = PREPARED + 'log.info("first"); log.warning("second"); sys.stdin.read(); finish()'
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        assert [json.loads(process.stderr.readline())["event"] for _ in range(2)] == ["first", "second"]
        process.stdin.close()
        assert process.stderr.read() == ""


def test_a_line_is_as_it_was_when_it_was_logged() -> None:
    """A line has the time and the text of its call, also if the thread writes it later."""
    lines, output = told(
        "names = ['a']\n"
        "before = time.time(); log.info('names: %s', names); after = time.time()\n"
        "names.append('b')\n"
        "finish(); print(before, after)"
    )
    before, after = map(float, output.split())
    assert lines[0]["event"] == "names: ['a']"
    # A time is rounded to microseconds.
    assert before - 1e-6 <= datetime.fromisoformat(lines[0]["timestamp"]).timestamp() <= after + 1e-6


def test_lines_beyond_the_bound_are_counted() -> None:
    """While nobody reads, at most LINES wait; the others are left out, and one line says how many."""
    code = PREPARED + (
        f'for number in range({3 * LINES}): log.info("line", extra={{"number": number}})\n'
        'print("logged", flush=True); sys.stdin.read(); logs.FINISH_SECONDS = 30; finish()'
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "logged\n"
        process.stdin.close()
        lines = [json.loads(line) for line in process.stderr]
    numbers = [line["number"] for line in lines if line["event"] == "line"]
    left_out = [line["count"] for line in lines if line["event"] == "lines left out"]
    assert numbers == sorted(set(numbers)) and LINES <= len(numbers) < 3 * LINES
    assert len(numbers) + sum(left_out) == 3 * LINES


def test_a_line_that_cannot_be_made_hides_no_other() -> None:
    """A line whose arguments do not fit its words is told as an error of logging; the next one is written."""
    code = PREPARED + 'log.info("%d", "x"); log.info("next"); finish()'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "Logging error" in done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "next"


def test_a_line_says_everything_that_was_given() -> None:
    """A line has its words, level, logger and further facts, also those that are no JSON, and the traceback."""
    (line,) = told(
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('no %s', 'luck', extra={'run': 'r-1-1', 'place': {1}})\n"
        "finish()"
    )[0]
    assert {name: line[name] for name in ("event", "level", "logger", "run", "place")} == {
        "event": "no luck", "level": "error", "logger": "told", "run": "r-1-1", "place": "{1}"
    }  # fmt: skip
    assert line["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_terminal_is_told_plain_lines_that_cannot_control_it() -> None:
    """At a terminal a line is plain, and control characters in it are written as escapes."""
    ours, theirs = pty.openpty()
    code = PREPARED + "log.info('red \x1b[31m\\nforged', extra={'run': 'r-1-1'}); finish()"
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, timeout=60)
    os.close(theirs)
    line = os.read(ours, 65_536).decode()
    os.close(ours)
    assert line.endswith(" [info    ] red \\x1b[31m\\nforged [told] run='r-1-1'\r\n")
