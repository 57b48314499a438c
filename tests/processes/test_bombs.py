"""Fork bombs that fork faster than they can be killed one by one are ended, without a cgroup too.

Each bomb is played in a process of its own whose number of processes is limited.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from proofs.processes import CASES, NoScope, play_apart

from interlock.processes import kernel
from interlock.processes.base import Grade
from interlock.processes.local import LocalProcesses

from .scene import Witness, bearers
from .test_spawn import BOUND_SECONDS, both_grades, need, play, room, until

BOMBS = ("bomb", "scatter")
PIDS = 200
# The bomb is cut once when it may fork no more, once right after the spawn, and once when it has just begun.
TRIALS = 3


@both_grades
@pytest.mark.parametrize("case", BOMBS)
def test_a_fork_bomb_is_ended(case: str, grade: Grade) -> None:
    """A bomb that replaces every killed part is ended, in one process group or in as many sessions as it has parts.

    Race 70: the parts of a bomb also wake each other as they are stopped.
    """
    need(grade)
    try:
        played = play_apart(grade, seed=1, rounds=TRIALS, names=(case,))
    except NoScope as error:
        pytest.skip(str(error))
    assert played.grade == grade
    assert played.sound, (played.troubles, played.zombies, played.fds, played.leaves, played.left)
    assert played.cells[case].trials == TRIALS
    assert played.cells[case].reached >= 1, "it was always cut before it had forked as often as it may"


def test_the_helper_ends_the_bomb_of_a_keeper_that_was_killed(tmp_path: Path) -> None:
    """The helper inherits the bomb of a dead keeper, and ends the bomb as the keeper would have."""
    if os.getuid() != 0:
        pytest.skip("a limit of processes for one run needs a pids cgroup, which root can make")
    case, witness = CASES["scatter"], Witness(tmp_path)
    token = witness.token(case.name)

    async def main() -> None:
        async with room(Grade.KEEPER, pids=PIDS) as processes:
            containment = processes.contain("run r-1.g1")
            await containment.spawn(case.order(token, witness.sink(token))).started()
            await until(lambda: witness.reached(case, token), "a bomb that may fork no more")
            assert containment.keeper is not None
            before = pidfds(processes)
            os.kill(containment.keeper, signal.SIGKILL)
            async with asyncio.timeout(BOUND_SECONDS):
                await containment.done.wait()
            assert bearers(token) == []
            assert pidfds(processes) <= before, "the helper holds descriptors of what is gone"

    try:
        play(main())
    finally:
        assert witness.release(token)


def pidfds(processes: LocalProcesses) -> int:
    """Count the pidfds that the helper holds."""
    assert processes._helper is not None
    held = Path(f"/proc/{processes._helper.process.pid}/fd")
    return sum("pidfd" in str(each.readlink()) for each in held.iterdir())


def test_a_process_whose_first_thread_has_exited_is_not_taken_for_dead() -> None:
    """A process whose first thread has exited while others live is a zombie by its state, and has threads."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"  # exit of this thread only
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) as process:
        try:

            async def dead_first() -> None:
                await until(lambda: (kernel.stat(process.pid) or "?")[0] == "Z", "a first thread that has exited")

            asyncio.run(dead_first())
            assert kernel.has_threads(process.pid)
        finally:
            process.kill()
