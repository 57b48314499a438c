"""Exploring: a seed plays the same again, an agent of yours is judged, and what is bad about it is said."""

import asyncio
import contextlib
import subprocess
import sys

import pytest
from proofs.scenarios import play
from proofs.schedules import explore, main

from interlock import Message, Run, Stale
from interlock.testing import BEHAVIOURS, Mode, Violation, check_agent
from interlock.testing import play as play_agent


async def polite(run: Run, message: Message) -> str:
    """An ordinary agent."""

    async def search(query: str) -> str:
        await asyncio.sleep(0.001)
        return query.upper()

    async with run.phase("provider"):
        await run.say("thinking ")
        await asyncio.sleep(0.005)
    found = await run.call(search, query=message.text)
    return f"found {found}"


def test_a_polite_agent_passes() -> None:
    """An ordinary agent keeps every promise under many schedules, and most of them differ."""
    assert check_agent(polite, seeds=60) > 30


def test_an_agent_that_swallows_everything_passes_too() -> None:
    """An agent that swallows cancels and Stale passes too: the fence holds, so nothing is broken."""

    async def agent(run: Run, message: Message) -> str:
        for _ in range(40):
            with contextlib.suppress(asyncio.CancelledError, Stale):
                await run.say("again ")
                await asyncio.sleep(0.01)
        return "late"

    assert check_agent(agent, seeds=40) > 10


def test_an_agent_that_fails_passes() -> None:
    """An agent that raises has failed runs, which is an ending like any other."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("part")
        raise RuntimeError("no")

    assert check_agent(agent, seeds=40) > 10


def test_an_agent_that_leaves_tasks_behind_is_told() -> None:
    """A task that an agent starts and forgets is found when everything is over, and named."""
    forgotten: list[object] = []

    async def linger() -> None:
        await asyncio.sleep(500)

    async def agent(run: Run, message: Message) -> str:
        forgotten.append(asyncio.ensure_future(linger()))
        return "reply"

    with pytest.raises(Violation, match=r"a task was left behind: .*linger") as raised:
        check_agent(agent, seeds=20)
    (note,) = raised.value.__notes__
    seed = int(note.removeprefix("seed ").partition(":")[0])
    assert f"interlock.testing.play({seed}, agent=..., messages=...)" in note
    with pytest.raises(Violation, match=r"a task was left behind: .*linger"):
        play_agent(seed, agent=agent)


def test_a_schedule_of_an_agent_of_yours_plays_the_same_again() -> None:
    """The seed decides the trace and the steps of an agent's schedule, in whichever mode."""
    for mode in (None, Mode.ORDERED, Mode.FIFO):
        first = play_agent(3, agent=polite, messages=("hello", "deploy it"), mode=mode)
        assert first == play_agent(3, agent=polite, messages=("hello", "deploy it"), mode=mode)
        assert first.steps > 10


def test_a_seed_plays_the_same_again() -> None:
    """The seed decides the trace and the number of steps, whatever was played before it; other seeds play otherwise."""
    first = [play(seed) for seed in range(40)]
    again = [play(seed) for seed in reversed(range(40))][::-1]
    assert first == again
    assert len({played.trace for played in first}) > 35


def test_every_mode_plays() -> None:
    """Both schedules that keep the order of callbacks can be asked for, and play the same scenario otherwise."""
    for seed in range(5):
        assert play(seed, mode=Mode.ORDERED) == play(seed, mode=Mode.ORDERED)
        assert play(seed, mode=Mode.FIFO).seed == seed


def test_explore_counts_what_it_played() -> None:
    """A stretch of seeds is played once each, with nothing broken in the source as it is."""
    chunk = explore(100, 30)
    assert (chunk.seeds, chunk.broken) == (30, ())
    assert chunk.steps > 30 and len(chunk.traces) > 20


def test_explore_stops_at_the_first_broken_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken seed is named with what broke; with `until_found` it is the last one played."""

    def broken(seed: int) -> object:
        if seed in (3, 5):
            raise Violation(f"P1: seed {seed}")
        return play(seed)

    monkeypatch.setattr("proofs.schedules.play", broken)
    assert explore(0, 8).broken == ((3, "Violation: P1: seed 3"), (5, "Violation: P1: seed 5"))
    stopped = explore(0, 8, until_found=True)
    assert (stopped.seeds, stopped.broken) == (4, ((3, "Violation: P1: seed 3"),))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints rate, seeds and distinct traces, replays one seed, and exits 0 when nothing broke."""
    assert main(["--seeds", "20", "--first", "7", "--jobs", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "20 schedules (seeds 7 to 26)" in said and "/s per core" in said
    assert "distinct traces, 0 broken" in said
    assert main(["--seed", "7"]) == 0
    assert f"trace {play(7).trace}" in capsys.readouterr().out
    assert main(["--seeds", "5", "--until-found"]) == 0


def test_a_broken_seed_is_an_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken seed is printed with its clause and makes the exit status 1, replayed or explored."""

    def broken(seed: int) -> object:
        raise Violation("P2: two terminal events")

    monkeypatch.setattr("proofs.schedules.play", broken)
    for arguments in (["--seeds", "3", "--until-found"], ["--seeds", "3", "--jobs", "1"], ["--seed", "1"]):
        assert main(arguments) == 1
        assert "P2: two terminal events" in capsys.readouterr().out


def test_a_seed_replays_in_another_process() -> None:
    """`--seed n` prints the trace this process has for it."""
    command = [sys.executable, "-m", "proofs.schedules", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"trace {play(11).trace}, {play(11).steps} steps" in done.stdout


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_hostile_behaviour_can_be_explored(behaviour: str) -> None:
    """Each agent of the kit is picked by some seed's scenario and explained by one sentence."""
    assert (BEHAVIOURS[behaviour].__doc__ or "").endswith(".")
