"""Playing planted bugs leaves nothing behind: a test that hangs or leaves processes is cleaned up after."""

import os
from pathlib import Path

import pytest
from proofs.processes import FREEZER, NoScope, scope

from interlock.processes import kernel

from .mutants import apart

LEAVES = """
echo $$ > pids
setsid sleep 1000 & echo $! >> pids
(trap "" TERM; sleep 1000) & echo $! >> pids
"""
FREEZES = """
setsid sleep 1000 &
echo $! > pids
mkdir "$1"
echo $! > "$1/cgroup.procs"
echo FROZEN > "$1/freezer.state"
"""


def gone(place: Path) -> bool:
    """Whether every process that was written down has ended; a zombie has."""
    pids = [int(pid) for pid in (place / "pids").read_text("ascii").split()]
    assert pids
    return all((status := kernel.stat(pid)) is None or status[0] in "ZX" for pid in pids)


@pytest.fixture(autouse=True)
def _scoped() -> None:
    """Skip without a scope: only a process group could be ended then, which is not tested here."""
    try:
        with scope() as directory:
            if directory is None:
                pytest.skip("a scope of its own needs root and a cgroup that counts processes")
    except NoScope as missing:
        pytest.skip(str(missing))


def test_what_a_test_leaves_is_ended(tmp_path: Path) -> None:
    """A test that ends by itself, and leaves a daemon and one that ignores TERM, has its own status; they are gone."""
    script = f"cd {tmp_path}; {LEAVES} echo said; exit 3"
    assert apart(["sh", "-c", script], {}, seconds=60) == (3, "said\n")
    assert gone(tmp_path)


def test_a_test_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """A test that does not end is given up after its seconds, and all its processes are ended."""
    # A machine that is too slow to start a process leaves this pid, which no process has.
    (tmp_path / "pids").write_text(str(2**22), "ascii")
    assert apart(["sh", "-c", f"cd {tmp_path}; {LEAVES} sleep 1000"], {}, seconds=3) == (None, "")
    assert gone(tmp_path)


def test_what_a_test_froze_is_thawed_and_ended(tmp_path: Path) -> None:
    """A process that was left frozen, so that no KILL reaches it, is gone, and its place with it."""
    if os.geteuid() != 0 or not FREEZER.exists():
        pytest.skip("a frozen process needs root and the version 1 freezer at /sys/fs/cgroup/freezer")
    place = FREEZER / f"interlock-test-left-{os.getpid()}"
    assert apart(["sh", "-ec", f"cd {tmp_path}; {FREEZES}", "sh", str(place)], {}, seconds=60) == (0, "")
    assert gone(tmp_path)
    assert not place.exists()
