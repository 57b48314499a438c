"""A late loop makes no timeout of an answer that was finished in time, and a host gains nothing by lying.

The tests block the loop past the deadlines of runs whose agents return meanwhile, each in a process of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from interlock import Control, Ending, Outcome, Settings
from interlock.agent import verbs
from interlock.hosts import link
from interlock.hosts.forked import LINK_BYTES
from interlock.processes.base import Grade

from .test_hogs import BOUND_SECONDS, Act, Stage, staged, until
from .test_link import Peer, opened

pytestmark = pytest.mark.long

ROUNDS = 10
LIMIT_SECONDS = 2.0
LATE_SECONDS = 0.1
SPLICE_F_NONBLOCK = 2
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
both_loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)


def limit_of(control: Control, run: str) -> float:
    """Return the instant of a run's deadline."""
    return control._registry.runs[run].limits.armed[0].at  # type: ignore[index]


def line_of(control: Control, run: str) -> int:
    """Return control's end of the pipe in which a run's host speaks."""
    turn: Any = control._registry.runs[run].work.bodies[0]  # type: ignore[index]
    line: int = turn.host._said
    return line


def lying_in(line: int) -> bytes:
    """Return the unread bytes in a pipe, and leave them there."""
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, LINK_BYTES)
        found: int = ctypes.CDLL(None).tee(line, writing, LINK_BYTES, SPLICE_F_NONBLOCK)
        return os.read(reading, found) if found > 0 else b""
    finally:
        os.close(reading)
        os.close(writing)


def said(line: int, word: bytes) -> bool:
    """True if a whole word lies unread in a link."""
    data = lying_in(line)
    at = data.rfind(word)
    if at < 0:
        return False
    frames = link.Frames(link.Said)
    frames.feed(data)
    return type(list(frames)[-1]).__name__.encode() == word


def runs(act: Act) -> bool:
    """True while a run has not ended."""
    live = act.control._registry.runs.get(act.run)  # type: ignore[call-overload]
    return live is not None and not live.fallen


async def begun(stage: Stage, name: str) -> list[Act]:
    """Begin plays that wait for a word, in warm hosts; on a slow machine some are over before they begin."""
    sessions = [f"{name}-{number}" for number in range(ROUNDS)]
    await asyncio.gather(*(stage.hosted_by(session) for session in sessions))
    places = [stage._places / f"{session}-{time.monotonic_ns()}" for session in sessions]
    for place in places:
        place.mkdir()
    acts = []
    for session, place in zip(sessions, places, strict=True):
        sent = await stage.control.send(session, f"{name} {place}", deadline=LIMIT_SECONDS)
        acts.append(Act(stage.control, session, sent.run_id, place))
    await until(lambda: all(b"!" in act.beats or not runs(act) for act in acts), "all have begun")
    return [act for act in acts if runs(act)]


def block(acts: list[Act], word: bytes, *, late: bool) -> list[Act]:
    """Block the loop past the deadlines while agents return; give back the runs whose agents were in time (or late)."""
    limits = {act.run: limit_of(act.control, act.run) for act in acts}
    lines = {act.run: line_of(act.control, act.run) for act in acts}
    time.sleep(max(0.0, max(limits.values()) - time.monotonic()) if late else 0.0)
    for act in acts:
        (act.place / "go").touch()
    found: list[Act] = []
    end = time.monotonic() + BOUND_SECONDS if late else min(limits.values())
    while len(found) < len(acts) and time.monotonic() < end:
        found += [act for act in acts if act not in found and said(lines[act.run], word)]
        time.sleep(0.001)
    time.sleep(max(0.0, max(limits.values()) + LATE_SECONDS - time.monotonic()))
    return found


def rounds(
    loop: Callable[[], asyncio.AbstractEventLoop], places: Path, name: str, word: bytes, *, late: bool = False
) -> list[Outcome]:
    """Return the outcomes of runs whose agents returned in time (or late) while the loop was blocked."""

    async def main() -> list[Outcome]:
        outcomes: list[Outcome] = []
        async with staged(Grade.KEEPER, places) as stage:
            end = time.monotonic() + 4 * BOUND_SECONDS
            # On a slow machine some returns come too late to count.
            while len(outcomes) < ROUNDS and time.monotonic() < end:
                acts = await begun(stage, name)
                outcomes += [await act.outcome() for act in (block(acts, word, late=late) if acts else [])]
        return outcomes

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


@both_loops
@pytest.mark.parametrize("name", ["answers_when_told", "talks_when_told"])
def test_an_answer_that_was_finished_in_time_is_no_timeout(
    loop: Callable[[], asyncio.AbstractEventLoop], name: str, tmp_path: Path
) -> None:
    """A return that lay in the link before the deadline completes the run, whenever the loop reads its text."""
    outcomes = rounds(loop, tmp_path, name, b"Returned")
    assert len(outcomes) >= ROUNDS
    assert {(outcome.ending, outcome.text[-4:]) for outcome in outcomes} == {(Ending.COMPLETED, "done")}


def test_an_error_that_came_in_time_is_no_timeout(tmp_path: Path) -> None:
    """An error that the agent raised before the deadline is the ending of the run."""
    outcomes = rounds(asyncio.new_event_loop, tmp_path, "raises_when_told", b"Raised")
    assert len(outcomes) >= ROUNDS
    assert {(outcome.ending, outcome.error) for outcome in outcomes} == {(Ending.FAILED, "ValueError: done")}


@both_loops
def test_an_answer_that_came_too_late_is_a_timeout(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """A return after the deadline changes nothing, although it lies in the link when the timer looks."""
    outcomes = rounds(loop, tmp_path, "answers_when_told", b"Returned", late=True)
    assert len(outcomes) >= ROUNDS
    assert {(outcome.ending, outcome.text) for outcome in outcomes} == {(Ending.TIMED_OUT, "")}


def test_a_host_that_lies_about_the_time_is_not_believed() -> None:
    """Control believes a host's time of a return only if it is after the last word read, and not in the future."""
    now = time.monotonic
    stamps: dict[str, tuple[Callable[[float, float], float], Ending]] = {
        "in time": (lambda heard, limit: (heard + limit) / 2, Ending.COMPLETED),
        "before the last word": (lambda heard, limit: heard - 0.001, Ending.TIMED_OUT),
        "before the turn": (lambda heard, limit: 0.0, Ending.TIMED_OUT),
        "at the limit": (lambda heard, limit: limit, Ending.TIMED_OUT),
        "late": (lambda heard, limit: now(), Ending.TIMED_OUT),
        "in the future": (lambda heard, limit: now() + 60, Ending.TIMED_OUT),
        "never": (lambda heard, limit: math.nan, Ending.TIMED_OUT),
        "at the end of time": (lambda heard, limit: math.inf, Ending.TIMED_OUT),
    }
    peers: dict[str, Peer] = {}

    async def play(peer: Peer, begin: link.Begin) -> None:
        await peer.say(link.Tell(peer.turn, verbs.Say("a word")))
        peers[begin.message.text] = peer
        await peer.settle()

    async def tried(control: Control, deadline: float) -> dict[str, Ending]:
        peers.clear()
        sent = {name: (await control.send(name, name, deadline=deadline)).run_id for name in stamps}
        lives = [control._registry.runs[run] for run in sent.values()]
        await until(lambda: all(live.reply.text or live.fallen for live in lives), "every host was heard")
        if any(live.fallen for live in lives):
            return {}
        limits = {name: limit_of(control, run) for name, run in sent.items()}
        time.sleep(max(limits.values()) + LATE_SECONDS - now())
        for name, (stamp, _) in stamps.items():
            peer = peers[name]
            at = stamp(peer.host.heard, limits[name])
            peer.sock.send(link.frame(link.Returned(peer.turn, "a word", True, at)))
        return {name: (await control.wait(run, timeout=BOUND_SECONDS)).ending for name, run in sent.items()}

    async def main() -> None:
        async with opened(play, settings=Settings()) as (control, _):
            endings: dict[str, Ending] = {}
            # The longer deadlines are for a machine that is too slow for the first.
            for deadline in (LIMIT_SECONDS, 4 * LIMIT_SECONDS, 16 * LIMIT_SECONDS):
                endings = endings or await tried(control, deadline)
            assert endings == {name: ending for name, (_, ending) in stamps.items()}

    asyncio.run(main())


@both_loops
def test_a_return_that_lies_unread_is_no_silence(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Control reads what a host has said before it judges the limit on silence, whichever the loop comes to first."""
    peers: list[Peer] = []

    async def play(peer: Peer, begin: link.Begin) -> None:
        await peer.say(link.Tell(peer.turn, verbs.Say("a word")))
        peers.append(peer)
        await peer.settle()

    async def main() -> Outcome:
        async with opened(play, settings=Settings(idle_limit=LIMIT_SECONDS)) as (control, _):
            sent = await control.send("s", "hello")
            live = control._registry.runs[sent.run_id]
            await until(lambda: live.reply.text or live.fallen, "the host was heard")
            (peer,) = peers
            peer.sock.send(link.frame(link.Returned(peer.turn, "a word", True, time.monotonic())))
            time.sleep(LIMIT_SECONDS + LATE_SECONDS)
            return await control.wait(sent.run_id, timeout=BOUND_SECONDS)

    with asyncio.Runner(loop_factory=loop) as runner:
        outcome = runner.run(main())
    assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "a word")
