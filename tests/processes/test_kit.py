"""The kit of hostile processes: no case leaves anything, in every grade that promises so.

Each batch is played once, in a process of its own whose number of processes is limited, and these tests judge the
result. They judge the witness too: it must report survivors of process groups, and processes left for it to find.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from proofs.processes import CASES, CUT_SECONDS, plan

from interlock import Confinement, Grade, Message, Run, open_control
from interlock.processes.base import UNSEEN

from .scene import ROUNDS, Witness, batch, bearers, children, emptied, end_bearers, entered, scope, zombies

pytestmark = pytest.mark.long

SOUND = ("cgroup", "keeper", "dropped")
BOUND_SECONDS = 30


def until(what: object, seconds: float = BOUND_SECONDS) -> bool:
    """Wait, bounded, until a condition holds."""
    assert callable(what)
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


# Nothing survives


@pytest.mark.parametrize("setting", SOUND)
@pytest.mark.parametrize("case", CASES)
def test_nothing_of_a_case_survives(case: str, setting: str) -> None:
    """A case that is cut at any moment is gone when its containment is done: none is seen, and none beats later."""
    cell = batch(setting).cells[case]
    assert cell.sound, batch(setting).troubles
    assert cell.trials == ROUNDS[setting]
    assert cell.reached >= 1, "it was always cut before it had done anything"


@pytest.mark.parametrize("setting", SOUND)
def test_nothing_else_is_left(setting: str) -> None:
    """A batch leaves no zombie, descriptor, cgroup, helper or keeper, and nothing that the kernel still counts."""
    played = batch(setting)
    assert (played.troubles, played.zombies, played.fds, played.leaves, played.left) == ([], [], [], [], [])
    assert played.sound


def test_the_kit_is_played_often_enough() -> None:
    """The kit plays at least 200 trials, at least 3 in every cell, with cuts from 0 to 50 ms after the spawn."""
    assert all(rounds >= 3 for rounds in ROUNDS.values())
    assert sum(ROUNDS[setting] for setting in SOUND) * len(CASES) >= 200
    for setting in SOUND:
        trials = list(plan(0, ROUNDS[setting]))
        assert {trial.since for trial in trials} == {"request", "start", "ready"}
        delays = sorted(trial.delay for trial in trials)
        assert delays[0] == 0.0
        assert CUT_SECONDS * 0.9 < delays[-1] <= CUT_SECONDS


@pytest.mark.parametrize("setting", ["cgroup", "keeper"])
def test_a_grade_that_is_asked_for_is_the_grade_that_was_tried(setting: str) -> None:
    """Every trial of a grade ran in that grade."""
    assert batch(setting).grade == setting


def test_a_user_without_rights_gets_the_keeper() -> None:
    """A user who may not make cgroups gets the keeper's grade, with the reason why not a better one."""
    played = batch("dropped")
    assert played.uid != 0
    assert played.grade == Grade.KEEPER
    assert "cgroup" in played.why


# Process groups reach less, and say so


@pytest.mark.parametrize("case", CASES)
def test_a_process_group_reaches_what_stayed_in_it(case: str) -> None:
    """The least grade ends every case that stays in its process group; the witness sees the others survive."""
    cell = batch("group").cells[case]
    assert cell.undrained == 0
    assert cell.reached >= 1
    if CASES[case].leaves_group:
        # The witness proves here that it can see survivors: there must be some.
        assert cell.survivors + cell.late >= 1
        assert not cell.sound
        assert any(trouble.startswith(f"{case}-") for trouble in batch("group").troubles)
    else:
        assert cell.sound, batch("group").troubles


def test_a_process_group_leaves_nothing_else() -> None:
    """The least grade leaves nothing but the processes that escaped, which the witness ends."""
    played = batch("group")
    assert played.grade == Grade.GROUP
    assert (played.zombies, played.fds, played.leaves, played.left) == ([], [], [], [])


def test_the_receipt_names_what_a_process_group_cannot_reach(tmp_path: Path) -> None:
    """The receipt of a run whose daemon escaped says `group`, and names sessions and daemons as unseen."""
    case, witness = CASES["setsid"], Witness(tmp_path)
    token = witness.token(case.name)

    async def agent(run: Run, message: Message) -> None:
        await run.spawn(*case.order(token, witness.sink(token)).argv)

    async def main() -> None:
        async with open_control(agent, confinement=Confinement(grade=Grade.GROUP, pids=16)) as control:
            sent = await control.send("s", "go")
            with anyio.fail_after(BOUND_SECONDS):
                while not witness.reached(case, token):
                    await anyio.sleep(0.002)
                await control.stop(session="s")
                await control.wait(sent.run_id, drained=True)
            assert len(bearers(token)) == 1, "the child in another session, and only that"
            receipt = await control.receipt(sent.run_id)
            assert receipt.grade == Grade.GROUP
            assert set(UNSEEN[Grade.GROUP]) <= set(receipt.unseen)
            assert any("setsid" in line and "daemons" in line for line in receipt.unseen)

    try:
        anyio.run(main)
    finally:
        assert witness.release(token)


# The witness can fail


def test_the_witness_sees_what_a_killpg_leaves(tmp_path: Path) -> None:
    """The witness sees a child in a new session survive a KILL of its process group, and sees it beat on."""
    case, witness = CASES["setsid"], Witness(tmp_path)
    token = witness.token(case.name)
    with subprocess.Popen(case.order(token, witness.sink(token)).argv, start_new_session=True) as process:
        try:
            assert until(lambda: witness.reached(case, token))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert bearers(token)
            assert witness.outside(token), "it is in no leaf of ours"
            witness.ended(token)
            assert until(lambda: witness.late() == [token])
        finally:
            assert end_bearers(token)
    witness.ended(token)
    assert witness.late() == []
    assert bearers(token) == []


def test_the_witness_sees_a_zombie() -> None:
    """The witness counts a child that was not waited for until its parent reaps it."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        assert until(lambda: process.pid in [one.pid for one in zombies({os.getpid()})])
        assert process.pid in [one.pid for one in children(os.getpid())]
    assert process.pid not in [one.pid for one in zombies({os.getpid()})]


def test_the_scope_sees_and_limits_whoever_is_in_it(tmp_path: Path) -> None:
    """A scope names and ends the processes left in it, and allows no more processes than its limit."""
    if os.getuid() != 0:
        pytest.skip("a scope is a cgroup only for root; others are limited by RLIMIT_NPROC")
    many = "import os, time\nfor _ in range(20):\n  if not os.fork():\n    time.sleep(20)\n    os._exit(0)\n"
    with scope(pids=8) as directory:
        assert directory is not None
        argv = [sys.executable, "-I", "-S", "-c", many]
        with (tmp_path / "said").open("wb") as said:  # processes that are left would hold a pipe open
            subprocess.run(entered(argv, directory), stderr=said, check=False, timeout=BOUND_SECONDS)
        assert "BlockingIOError" in (tmp_path / "said").read_text()
        left = emptied(directory, seconds=0.05)
        assert len(left) == 7
        assert emptied(directory) == []
    assert not directory.exists()
