"""A program's message does not end a person's turn, unless the message itself says so."""

import pytest

from interlock import Ending, Rejected, open_control
from interlock.core.lifecycle import State

from .scene import idles, seeded, started


@pytest.mark.parametrize("of_session", [None, "interrupt", "rollback", "steer", "collect", "queue"])
def test_a_program_waits_for_a_persons_turn(of_session: str | None) -> None:
    """A program's message is queued whatever the session's strategy; a person's next message takes over (race 133)."""

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
    """A program's message takes over if it brings such a strategy of its own."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "a question", by="alice")
            await started(control, first.run_id)
            job = await control.send("s", "a job", by="alice", kind="agent", strategy=strategy)
            assert job.superseded == first.run_id
            assert (await control.wait(first.run_id)).superseded_by == job.run_id

    seeded(main)


def test_a_program_is_turned_away_where_the_session_rejects() -> None:
    """A program's message is rejected where the session's or the control's strategy is `reject`."""

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
    """A person's message takes over a program's run."""

    async def main() -> None:
        async with open_control(idles) as control:
            job = await control.send("s", "a job", by="alice", kind="agent")
            await started(control, job.run_id)
            asked = await control.send("s", "a question", by="alice")
            assert asked.superseded == job.run_id

    seeded(main)
