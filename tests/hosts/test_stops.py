"""Stops raced against hosts at full rate; `make prove` races 1,000 on each grade (`python -m proofs stops`)."""

import asyncio

import pytest
from proofs.stops import race

from interlock.core.names import Ending
from interlock.processes.base import Grade

STOPS = 120


@pytest.mark.parametrize("grade", [None, Grade.KEEPER], ids=["best", "keeper"])
def test_nothing_is_permitted_after_the_ack_and_nothing_acts_after_drained(grade: Grade | None) -> None:
    """Every receipt agrees with the marks of the bodies and with the events that watchers got."""
    raced = asyncio.run(race(STOPS, seed=1, grade=grade))
    assert (raced.permitted_after, raced.shown_after, raced.acted_after, raced.unconfirmed) == (0, 0, 0, 0)
    assert raced.endings == {Ending.STOPPED: raced.stops}
    assert raced.lines > STOPS, "the bodies did something"
    assert min(raced.hosts["reused"], raced.hosts["killed"]) > 5, raced.hosts
    assert raced.tools["interrupted"] > 5, raced.tools
