"""A program that a keeper is still looking for when its containment is cut never begins."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock import Ending, Message, Run
from interlock.processes import kernel
from interlock.processes.base import Grade

from .scene import opened, over
from .test_spawn import both_grades, order, play, room, until

LATE = "l:" * 50_000
"""A PATH whose search takes a keeper a good part of a second: a long way round to this directory, again and again."""


@contextmanager
def late(at: Path) -> Iterator[Path]:
    """Return a program that a keeper finds only after a long search, and that leaves a trace when it begins."""
    (at / "bin").mkdir()
    program = at / "bin" / "late"
    program.write_text('#!/bin/sh\n: > "$1"\nexec sleep 1000\n')
    program.chmod(0o755)
    (at / "here").mkdir()
    (at / "here" / "l").symlink_to("./" * 150)
    yield at / "here"


def searching(here: Path) -> list[int]:
    """Return the pids in a directory: the keeper during its search for the program, and the program."""
    found = []
    for pid in kernel.pids():
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(here):
                found.append(pid)
        except OSError:
            continue
    return found


async def held_in(here: Path) -> int:
    """Stop a keeper in the middle of its search, so that the test's next steps come first; return the keeper's pid."""
    [keeper] = await until(lambda: searching(here), "the search")
    os.kill(keeper, signal.SIGSTOP)
    await until(lambda: (kernel.stat(keeper) or "?")[0] == "T", "a stopped keeper")
    assert searching(here) == [keeper], "its search was over already"
    return keeper


@both_grades
def test_a_program_that_is_long_looked_for_does_not_begin_after_the_cut(grade: Grade, tmp_path: Path) -> None:
    """A program whose PATH is still being searched when its containment is cut never begins."""

    async def main() -> None:
        async with room(grade) as processes:
            with late(tmp_path) as here:
                for turn in range(2):
                    trace = tmp_path / f"began-{turn}"
                    containment = processes.contain(f"run r-{turn}.g1")
                    path = LATE + str(tmp_path / "bin")
                    process = containment.spawn(order("late", str(trace), env={"PATH": path}, cwd=str(here)))
                    keeper = await held_in(here)
                    containment.cut()
                    os.kill(keeper, signal.SIGCONT)
                    await containment.done.wait()
                    assert process.failure is not None
                    assert process.failure.errno == errno.ECANCELED
                    assert not trace.exists()

    play(main())


@both_grades
def test_a_detached_process_that_had_not_begun_never_does(grade: Grade, tmp_path: Path) -> None:
    """A detached process that a keeper still looks for when the stop returns never begins, and is not listed."""
    trace = tmp_path / "began"

    async def agent(run: Run, message: Message) -> None:
        if message.text == "warm":
            await run.spawn("true")
            return
        path = LATE + str(tmp_path / "bin")
        await run.spawn("late", str(trace), detached=True, env={"PATH": path}, cwd=str(tmp_path / "here"))

    async def main() -> None:
        with late(tmp_path) as here:
            async with opened(agent, grade) as control:
                assert await over(control, (await control.send("s", "warm")).run_id) is Ending.COMPLETED
                sent = await control.send("s", "go")
                keeper = await held_in(here)
                await control.stop(run=sent.run_id)
                os.kill(keeper, signal.SIGCONT)
                assert await over(control, sent.run_id) is Ending.STOPPED
                assert (await control.receipt(sent.run_id)).processes.detached == 0
                await until(lambda: not searching(here), "the end of the search")
                assert await control.processes("s") == []
                assert not trace.exists()

    play(main())
