"""Processes that a host's turn started are gone when the receipt says drained, and the receipt counts them."""

from __future__ import annotations

import asyncio

from interlock import Drain, Ending, EventKind, Grade
from runtime.scene import told

from .test_hogs import both_grades
from .turns import BOUND_SECONDS, lives, opened


@both_grades
def test_a_stop_right_behind_a_return_leaves_nothing(grade: Grade) -> None:
    """A stop between an agent's return and the run's end also ends the processes that the agent left."""

    async def main() -> None:
        stopped = 0
        async with opened(grade) as control:
            for number in range(20):
                run = (await control.send(f"s{number}", "leaves")).run_id
                pid = int((await told(control, run, EventKind.DELTA)).data.text)
                await control.stop(session=f"s{number}")
                outcome = await control.wait(run, drained=True, timeout=BOUND_SECONDS)
                stopped += outcome.ending is Ending.STOPPED
                assert not (outcome.ending is Ending.STOPPED and lives(pid))
        assert stopped

    asyncio.run(main())


@both_grades
def test_a_childs_host_is_seen_gone_before_the_child_is_drained(grade: Grade) -> None:
    """A child's host is not kept: once the child's receipt says drained, nothing of that host is there."""

    async def main() -> None:
        async with opened(grade) as control:
            for number in range(5):
                run = (await control.send(f"s{number}", "delegates")).run_id
                child = (await told(control, run, EventKind.CHILD)).data.child
                outcome = await control.wait(child, drained=True, timeout=BOUND_SECONDS)
                assert not lives(int(outcome.text))
                receipt = await control.receipt(child)
                assert (receipt.host, receipt.drain, receipt.processes.ended) == ("killed", Drain.OBSERVED, 1)

    asyncio.run(main())


@both_grades
def test_the_receipt_counts_what_ended_before_the_host_was_killed(grade: Grade) -> None:
    """A process that is gone long before its host is killed still counts as ended by the stop."""

    async def main() -> None:
        async with opened(grade) as control:
            run = (await control.send("s", "lingers")).run_id
            await told(control, run, EventKind.DELTA)
            await control.stop(session="s")
            await control.wait(run, drained=True, timeout=BOUND_SECONDS)
            receipt = await control.receipt(run)
            assert (receipt.host, receipt.processes.ended, receipt.grade) == ("killed", 1, grade)

    asyncio.run(main())
