"""After an early end a host keeps nothing that was born in the turn, and nothing that ran in it.

Control asks the kernel, since a host may lie about itself. Every host here is a real process, at both grades.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock import Ending
from interlock.cli.printing import proof
from interlock.processes import kernel

from .test_hogs import Act, Stage, Theatre, living, nothing_acts, theatre, there, unhurried, until

__all__ = ["theatre"]  # the fixture: a stage of each grade


async def before(stage: Stage, name: str, session: str) -> Act:
    """Let a turn complete that leaves something in its host."""
    act = await stage.play(name, session)
    assert (await act.outcome()).ending is Ending.COMPLETED
    assert (await act.drained()).host == "reused"
    return act


@pytest.mark.parametrize("name", ["gives_helper_work", "gives_helper_work_for_later"])
def test_a_helper_that_was_given_work_goes_with_its_turn(theatre: Theatre, name: str) -> None:
    """A process of an earlier turn that a stopped turn gave work does not act after drained, asleep or not."""

    async def main(stage: Stage) -> None:
        for number in range(3):
            session = f"{name}-{number}"
            kept = await before(stage, "keeps_helper", session)
            act = await (await stage.play(name, session)).reached()
            receipt = await act.stop()
            kept.at_end = kept.beats
            assert (receipt.cause, receipt.host) == (Ending.STOPPED, "killed")
            assert receipt.processes.ended >= 1 and not receipt.kept
            assert living([int((await kept.outcome()).text)]) == []
            await nothing_acts([act, kept])

    with unhurried():
        theatre.run(main(theatre.stage))


LIES = [("lies_with_thread", None), ("lies_with_old_thread", "keeps_thread"), ("lies_with_sleeper", "keeps_thread")]


@pytest.mark.parametrize(("name", "first"), LIES)
def test_a_host_that_lies_about_its_threads_is_not_believed(theatre: Theatre, name: str, first: str | None) -> None:
    """An agent that says `settled, clean` in the host's name, with a thread at work, is killed like any other."""

    async def main(stage: Stage) -> None:
        if first is not None:
            await before(stage, first, name)
        act = await (await stage.play(name, name)).reached()
        receipt = await act.stop()
        assert (receipt.cause, receipt.host) == (Ending.STOPPED, "killed")
        await nothing_acts([act])

    with unhurried():
        theatre.run(main(theatre.stage))


def test_what_did_not_run_is_kept_and_named(theatre: Theatre) -> None:
    """A helper and a thread that no turn woke stay with their host, turn after turn; the receipt names the helper."""

    async def main(stage: Stage) -> None:
        await before(stage, "keeps_thread", "idle")
        kept = await before(stage, "keeps_helper", "idle")
        helper, host = int((await kept.outcome()).text), None
        name = f"{kernel.stat(helper)[3]} ({helper})"  # type: ignore[index]
        for _ in range(3):
            act = await (await stage.play("waits", "idle")).reached()
            receipt = await act.stop()
            assert (receipt.cause, receipt.host, receipt.kept) == (Ending.STOPPED, "reused", (name,))
            assert receipt.processes.ended == 0
            assert f"kept with its host: {name}" in proof(receipt)
            assert living([helper]) == [helper]
            host = host or act.pids[0]
            assert act.pids[0] == host
        assert (await stage.hosted_by("idle"))[0] == host
        await stage.control.reset("idle")
        await stage.hosted_by("idle")
        await until(lambda: living([helper]) == [], "it went with its host")

    with unhurried():
        theatre.run(main(theatre.stage))


def test_more_than_control_looks_at_is_not_kept(theatre: Theatre) -> None:
    """A host with more threads than control looks at in one step is not judged: an early end ends the host."""

    async def main(stage: Stage) -> None:
        await before(stage, "keeps_crowd", "crowd")
        act = await (await stage.play("waits", "crowd")).reached()
        receipt = await act.stop()
        assert (receipt.cause, receipt.host) == (Ending.STOPPED, "killed")
        assert there(act.pids) == []

    with unhurried():
        theatre.run(main(theatre.stage))


async def at_rest(pid: int) -> Any:
    """Return the traces of a process once it waits for its input; the process may also sleep on the way there."""
    seen, times = kernel.traces(pid), 0
    while times < 5:
        await asyncio.sleep(0.02)
        again = kernel.traces(pid)
        times = times + 1 if again == seen and again[pid, pid][2] != "R" else 0
        seen = again
    return seen


def test_a_thread_that_sleeps_has_the_same_trace_until_it_runs(tmp_path: Path) -> None:
    """The kernel counts each time a thread leaves its processor: one that ran and sleeps again has a new trace."""

    async def main() -> None:
        child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
        assert child.stdin is not None
        try:
            seen = await at_rest(child.pid)
            for _ in range(20):
                assert kernel.traces(child.pid) == seen
                child.stdin.write(b"\n")
                while kernel.traces(child.pid) == seen:
                    await asyncio.sleep(0.001)
                again = await at_rest(child.pid)
                assert again[child.pid, child.pid][1] > seen[child.pid, child.pid][1]
                seen = again
        finally:
            child.stdin.close()
            await child.wait()

    asyncio.run(main())


def test_what_cannot_be_seen_is_an_error(tmp_path: Path) -> None:
    """A look at a missing process, or at more threads than allowed, raises; it never returns an empty list."""
    with pytest.raises(OSError):
        kernel.below(2**22 + 1, 64)
    with pytest.raises(OSError):
        kernel.traces(2**22 + 1)
    with pytest.raises(OSError, match="more threads than are looked at"):
        kernel.below(1, 0)
