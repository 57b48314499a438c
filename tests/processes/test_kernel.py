"""Facts that the kernel tells are read right on every kind of machine, and the names we make are unique."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from interlock.processes import kernel, probe

HYBRID_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:11 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:12 - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:13 - cgroup2 cgroup2 rw,nsdelegate
"""
HYBRID_SELF = """\
9:name=systemd:/user.slice/session-1
8:pids:/user.slice/pids-of-it
4:memory:/user.slice/a:b
1:cpu,cpuacct:/
0::/user.slice/session-1.scope
"""
PURE_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
NESTED_MOUNTS = "812 800 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        pytest.param(
            HYBRID_MOUNTS,
            HYBRID_SELF,
            {
                "": "/sys/fs/cgroup/unified/user.slice/session-1.scope",
                "pids": "/sys/fs/cgroup/pids/user.slice/pids-of-it",
                "memory": "/sys/fs/cgroup/memory/user.slice/a:b",
                "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
                "freezer": None,
            },
            id="hybrid",
        ),
        pytest.param(
            PURE_MOUNTS,
            "0::/system.slice/gateway.service\n",
            {"": "/sys/fs/cgroup/system.slice/gateway.service", "pids": None, "memory": None},
            id="pure version 2",
        ),
        pytest.param(PURE_MOUNTS, "0::/\n", {"": "/sys/fs/cgroup"}, id="the root, as in a cgroup namespace"),
        pytest.param(
            NESTED_MOUNTS,
            "0::/docker/abc/inner\n",
            {"": "/sys/fs/cgroup/inner"},
            id="a container that sees the machine's paths",
        ),
        pytest.param(NESTED_MOUNTS, "0::/docker/abc\n", {"": "/sys/fs/cgroup"}, id="a container's own root"),
        pytest.param(
            NESTED_MOUNTS, "0::/docker/abcdef\n", {"": None}, id="another container whose name begins the same"
        ),
        pytest.param(
            NESTED_MOUNTS + PURE_MOUNTS.replace("/sys/fs/cgroup", "/host/cgroup"),
            "0::/system.slice/x\n",
            {"": "/host/cgroup/system.slice/x"},
            id="two mounts of which one shows our cgroup",
        ),
        pytest.param(
            "30 23 0:26 / /mnt/with\\040space rw - cgroup2 cgroup2 rw\n",
            "0::/a\n",
            {"": "/mnt/with space/a"},
            id="a mount point with a space",
        ),
        pytest.param("23 1 0:1 / / rw - ext4 /dev/vda rw\n", "", {"": None, "pids": None}, id="no cgroups at all"),
        pytest.param(PURE_MOUNTS, "", {"": None}, id="mounted, and we are in none"),
    ],
)
def test_our_cgroup_is_found(
    mounts: str, own: str, expected: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of our own cgroup is found in hybrid, pure and nested trees, and no other is taken for it."""
    texts = {"/proc/self/mountinfo": mounts, "/proc/self/cgroup": own}
    monkeypatch.setattr(kernel, "read", texts.__getitem__)
    for controller, path in expected.items():
        found = kernel.own_cgroup_v1(controller) if controller else kernel.own_cgroup()
        assert found == path, controller


def test_our_cgroup_of_this_machine_holds_us() -> None:
    """The directory that is found on this machine lists this process."""
    places = [place for place in (kernel.own_cgroup(), kernel.own_cgroup_v1("pids")) if place is not None]
    if not places:
        pytest.skip("this machine has no cgroups mounted")
    for place in places:
        assert str(os.getpid()) in (Path(place) / "cgroup.procs").read_text().split()


def test_a_process_is_described_whatever_its_name(tmp_path: Path) -> None:
    """A command with spaces and parentheses does not confuse state, parent and start time."""
    program = tmp_path / ") R 1 (x y"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "1000"])
    try:
        end = time.monotonic() + 30
        while (status := kernel.stat(process.pid)) is None or status[3] != program.name:
            assert time.monotonic() < end, status
        assert status[1] == os.getpid()
        assert status[2] > 0
        assert kernel.describe(process.pid) in {f"process {process.pid} ({program.name}, state {s})" for s in "RSD"}
        assert process.pid in kernel.children()
    finally:
        process.kill()
        process.wait()
    assert kernel.stat(process.pid) is None
    assert kernel.describe(process.pid) == f"process {process.pid}"


def test_an_owner_is_one_process_and_no_other() -> None:
    """An owner with another start time is dead, a zombie is dead, and one of another PID namespace cannot be judged."""
    me = kernel.owner_of(os.getpid())
    space, pid, start = me.split("-")
    assert kernel.owner_lives(me) is True
    assert kernel.owner_lives(f"{me}-4") is True  # this process's fourth control
    assert kernel.owner_lives(f"{space}-{pid}-{int(start) + 1}") is False
    assert kernel.owner_lives(f"{int(space) + 1}-{pid}-{start}") is None
    for nonsense in ("", "trial-1", "1-2", "a-b-c", f"{me}-4-5"):
        assert kernel.owner_lives(nonsense) is None
    process = subprocess.Popen(["sleep", "1000"])
    owner = kernel.owner_of(process.pid)
    assert kernel.owner_lives(owner) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert kernel.owner_lives(owner) is False
    process.wait()
    assert kernel.owner_lives(owner) is False


def test_any_name_becomes_one_directory() -> None:
    """The name of a run becomes a single path component, never the directory itself or its parent."""
    assert kernel.file_name("run r-1.g2") == "run_r-1.g2"
    for text in ("", ".", "..", "../../x", "a/b", "é\0\n", "x" * 500):
        name = kernel.file_name(text)
        assert "/" not in name and "\0" not in name
        assert name not in ("", ".", "..")
        assert len(name.encode()) <= 100


def test_an_emptied_cgroup_counts_as_empty(tmp_path: Path) -> None:
    """A leaf that is gone counts as empty, and removing or killing it again is no error."""
    gone = str(tmp_path / "gone")
    assert kernel.populated(gone) is False
    kernel.kill_cgroup(gone)
    kernel.remove_cgroup(gone)
    kernel.remove_tree(gone)


def test_a_trial_that_is_cut_short_can_be_swept_up() -> None:
    """A trial leaf has the name of the process that tries: the next start can tell whether that process lives."""
    name = os.path.basename(probe.trial_leaf("/home"))
    assert kernel.owner_lives(name.removeprefix(kernel.MARK)) is True


def test_a_short_read_is_not_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the kernel gives in small pieces, as it does its lists of processes, is read to its end."""
    real = os.read
    text = "".join(f"{number} " for number in range(500))
    (tmp_path / "list").write_text(text)
    monkeypatch.setattr(os, "read", lambda fd, count: real(fd, min(count, 10)))
    assert kernel.read(str(tmp_path / "list")) == text
