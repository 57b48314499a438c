"""The suites of the runtime and of the promises on hosts: the real link and both its ends, in the test's own loop.

Their agents are closures, which no other process can import, so the hosts are those of `proofs/hosts.py`. What real
processes add is tested beside this file, and with the same agents on both drivers in tests/contracts/test_run.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
LISTED = [
    line for line in (Path(__file__).parent / "inline_only.txt").read_text("utf-8").splitlines() if line[0] != "#"
]
# Suites whose names begin so are not played here: they are about the inline driver, processes, recovery or crashes.
ABOUT_OTHERS = ("inline", "strangers", "workers", "spawn", "recovery", "p3_nothing_is_left", "crashes")
# `make prove` plays all suites; `make test` plays the promises and what a message, a stop or a fall goes through.
ALL = bool(os.environ.get("INTERLOCK_ALL_SUITES"))
ALWAYS = (
    *("authority", "close", "collect", "deadlines", "founding", "gate", "holds", "keys", "order", "queue", "reset"),
    *("rollback", "run", "send", "steer", "stop", "store_faults", "timeline", "wait", "wakes", "watch"),
)
PLAYED = 600  # at least, since a suite that is not found plays nothing


def test_the_suites_hold_on_hosts() -> None:
    """Every suite that does not reach into the agent's own loop passes unchanged on hosts."""
    files = [
        path.relative_to(ROOT).as_posix()
        for room in ("runtime", "promises")
        for path in sorted((ROOT / "tests" / room).glob("test_*.py"))
        if not path.stem.removeprefix("test_").startswith(ABOUT_OTHERS)
    ]
    known = {test.partition("::")[0] for test in LISTED}
    assert known <= set(files), "a file that is listed is not played"
    always = {f"tests/runtime/test_{name}.py" for name in ALWAYS}
    assert always <= set(files), "a suite that is always played has another name"
    chosen = files if ALL else [file for file in files if "promises" in file or file in always]
    listed = [f"--deselect={test}" for test in LISTED if test.partition("::")[0] in chosen]
    command = [sys.executable, "-m", "pytest", "--tb=short", *chosen, *listed]
    environment = {**os.environ, "INTERLOCK_TEST_DRIVER": "virtual"}
    played = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert played.returncode == 0, played.stdout[-6000:]
    passed = re.search(r"(\d+) passed", played.stdout)
    assert passed is not None
    assert int(passed[1]) > PLAYED
