"""What a program starts does not end a person's turn, unless it says so itself."""

import pytest

from interlock import Ending, Rejected, open_control
from interlock.core.lifecycle import State

from .scene import idles, seeded, started


@pytest.mark.parametrize("of_session", [None, "interrupt", "rollback", "steer", "collect", "queue"])
def test_a_program_waits_for_a_persons_turn(of_session: str | None) -> None:
    """It queues whatever the session's strategy is; the person's run goes on, and the next message takes over.

    (race 133)
    """

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "a question", by="alice")
            await started(control, first.run_id)
            await control.set_strategy("s", of_session, by="alice")
            job = await control.send("s", "a job", by="alice", kind="agent")
            assert (job.state, job.superseded) == (State.QUEUED, None)
            assert (await control.wait(first.run_id, timeout=0)).ending is Ending.PENDING
            again = await control.send("s", "another question", by="alice", strategy="interrupt")
            assert again.superseded == first.run_id

    seeded(main)


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_program_takes_over_when_it_says_so(strategy: str) -> None:
    """A strategy of the message's own counts for a program as for anyone."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "a question", by="alice")
            await started(control, first.run_id)
            job = await control.send("s", "a job", by="alice", kind="agent", strategy=strategy)
            assert job.superseded == first.run_id
            assert (await control.wait(first.run_id)).superseded_by == job.run_id

    seeded(main)


def test_a_program_is_turned_away_where_the_session_rejects() -> None:
    """An owner who wants nothing beside a run is obeyed by programs too; by the control's strategy likewise."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "a question", by="alice")
            await started(control, first.run_id)
            await control.set_strategy("s", "reject", by="alice")
            with pytest.raises(Rejected):
                await control.send("s", "a job", by="alice", kind="agent")
        async with open_control(idles, strategy="reject") as control:
            await control.send("s", "a question", by="alice")
            with pytest.raises(Rejected):
                await control.send("s", "a job", by="alice", kind="agent")

    seeded(main)


def test_a_person_takes_over_a_programs_run() -> None:
    """What a person writes is dominant, whoever has the seat."""

    async def main() -> None:
        async with open_control(idles) as control:
            job = await control.send("s", "a job", by="alice", kind="agent")
            await started(control, job.run_id)
            asked = await control.send("s", "a question", by="alice")
            assert asked.superseded == job.run_id

    seeded(main)
