"""Control keeps no descriptor of a run that is over, whatever its processes had written or left unread."""

import asyncio
from pathlib import Path

import pytest

from interlock import Confinement, Control, Drain, open_control
from interlock.processes.base import Grade

from . import floods
from .test_spawn import BOUND_SECONDS, both_grades, descriptors, need, play, until

pytestmark = pytest.mark.long

STOPS = 60
HOWS = ("lines", "terminal", "background", "detached", "awaited", "input", "worker")


async def stopped(control: Control, how: str, place: Path) -> None:
    """Begin one run, stop it when its process is far ahead, and check that it is drained."""
    place.unlink(missing_ok=True)
    sent = await control.send("s", f"{how} {place}")
    await until(place.exists, f"a process that is far ahead ({how})")
    await control.stop(session="s")
    async with asyncio.timeout(BOUND_SECONDS):
        await control.wait(sent.run_id, drained=True)
    receipt = await control.receipt(sent.run_id)
    assert receipt.drain is Drain.OBSERVED, receipt.unconfirmed


async def leaks_nothing(control: Control, how: str, place: Path, stops: int) -> None:
    """Check that runs after the first two leave no descriptor each. (A spare worker or host may have some more.)"""
    for _ in range(2):  # the first run starts the helper, and a spare worker
        await stopped(control, how, place)
    first = descriptors()
    for _ in range(stops):
        await stopped(control, how, place)
    await until(lambda: descriptors() < first + stops // 2, f"about {first} descriptors, now {descriptors()}")


@both_grades
def test_stops_amid_lines_that_are_not_read_leak_nothing(grade: Grade, tmp_path: Path) -> None:
    """Sixty runs stopped while a process is more than a mebibyte ahead of the reader of its lines leave no pipe."""
    need(grade)

    async def main() -> None:
        async with open_control(floods.agent, confinement=Confinement(grade=grade)) as control:
            await leaks_nothing(control, "lines", tmp_path / "ahead", STOPS)

    play(main())


@both_grades
@pytest.mark.parametrize("how", HOWS)
def test_no_way_to_hold_a_pipe_leaks_it(how: str, grade: Grade, tmp_path: Path) -> None:
    """A stopped run leaves no terminal, collected or detached output, unread input or worker's pipe open."""
    need(grade)

    async def main() -> None:
        async with open_control(floods.agent, confinement=Confinement(grade=grade)) as control:
            await leaks_nothing(control, how, tmp_path / "ahead", 8)

    play(main())


@pytest.mark.parametrize("how", ["lines", "background", "worker"])
def test_a_host_s_processes_leak_nothing_either(how: str, tmp_path: Path) -> None:
    """A stopped run of an agent in a host, killed or kept, leaves no descriptor."""

    async def main() -> None:
        async with open_control("tests.processes.floods:agent", driver="host") as control:
            # A spare host comes and goes with four descriptors.
            await leaks_nothing(control, how, tmp_path / "ahead", 24)

    play(main())


def test_what_was_written_before_the_exit_is_read_to_its_end() -> None:
    """A reader that is far behind when its process and containment are gone still gets every line."""
    lines = 60_000

    async def reads(run: floods.Run, message: floods.Message) -> str:
        got = 0
        async with run.spawn("sh", "-c", f"yes 'a line of some length' | head -n {lines}") as process:
            async for _ in process:
                if not got:
                    await asyncio.sleep(0.3)  # the process gets as far ahead as it may
                got += 1
        return str(got)

    async def main() -> None:
        async with open_control(reads, confinement=Confinement(grade=Grade.KEEPER)) as control:
            sent = await control.send("s", "go")
            async with asyncio.timeout(BOUND_SECONDS):
                outcome = await control.wait(sent.run_id)
            assert outcome.text == str(lines)

    play(main())
