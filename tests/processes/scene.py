"""For the other tests here: batches of the kit, each played once in a limited process of its own, and a witness."""

import asyncio
import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from proofs.processes import (
    DROPPED_UID,
    Batch,
    NoScope,
    Witness,
    bearers,
    children,
    descriptors,
    emptied,
    end_bearers,
    entered,
    inhabitants,
    play_apart,
    scope,
    zombies,
)

from interlock import Confinement, Control, Ending, open_control
from interlock.processes.base import Grade

from .test_spawn import BOUND_SECONDS, need

__all__ = [
    # the kit, played
    "SETTINGS",
    "batch",
    # a command in a scope: `with scope() as s: Popen(entered(argv, s, uid=...))`, then `emptied(s)`
    "emptied",
    "entered",
    "inhabitants",
    "scope",
    # a witness
    "Witness",
    "bearers",
    "children",
    "descriptors",
    "end_bearers",
    "zombies",
]

SETTINGS: dict[str, tuple[Grade | None, int | None]] = {
    "cgroup": (Grade.CGROUP, None),
    "keeper": (Grade.KEEPER, None),
    "dropped": (None, DROPPED_UID),  # another user gets the best grade that the machine gives: the keeper
    "group": (Grade.GROUP, None),
}
ROUNDS = {"cgroup": 5, "keeper": 5, "dropped": 4, "group": 3}
SEED, WIDTH = 4, 2


def batch(setting: str) -> Batch:
    """Return the result of a batch of the kit; skip, with what is missing, where the batch cannot be played."""
    played = _play(setting)
    if isinstance(played, str):
        pytest.skip(played)
    return played


@functools.cache
def _play(setting: str) -> Batch | str:
    grade, uid = SETTINGS[setting]
    if uid is not None and os.getuid() != 0:
        return "only root can become another user; the keeper's cells run as you already"
    try:
        if grade is Grade.CGROUP:
            tried = play_apart(None, seed=0, rounds=0)
            if tried.grade != Grade.CGROUP:
                return f"this machine gives no cgroups to uid {tried.uid}: {tried.why}"
        return play_apart(grade, seed=SEED, rounds=ROUNDS[setting], width=WIDTH, uid=uid)
    except NoScope as error:
        return str(error)


@asynccontextmanager
async def opened(agent: Any, grade: Grade | None = None) -> AsyncIterator[Control]:
    """Open a control of a grade."""
    need(grade or Grade.KEEPER)
    async with open_control(agent, confinement=Confinement(grade=grade)) as control:
        yield control


async def over(control: Control, run: str) -> Ending:
    """Wait, bounded, until a run is drained; return how the run ended."""
    async with asyncio.timeout(3 * BOUND_SECONDS):
        outcome = await control.wait(run, drained=True)
    assert outcome.error is None, outcome.error
    assert outcome.ending is not None
    return outcome.ending


def read(place: Path) -> str:
    """Return what a file holds so far."""
    return place.read_text() if place.exists() else ""
