"""A permit is for the call that it names, and a request that is given up is forgotten."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from interlock import EventKind

from .turns import BOUND_SECONDS, opened


def test_a_permit_is_for_the_call_it_names_also_behind_one_that_was_refused() -> None:
    """A call too many is refused as inline; a later call is permitted, run and published under its own name."""

    async def main() -> None:
        async with opened() as control:
            run = (await control.send("s", "refused")).run_id
            assert (await control.wait(run, timeout=BOUND_SECONDS)).text == "Refused first second"
            async with aclosing(control.watch(run=run)) as events:
                told = {
                    e.data.name: str(e.data.result) async for e in events if e.kind is EventKind.TOOL and e.data.result
                }
            assert told == {"first": '"first"', "second": '"second"'}

    asyncio.run(main())


def test_requests_that_are_given_up_at_once_are_forgotten() -> None:
    """An agent may give up more requests, each in the step that makes it, than may be open together."""

    async def main() -> None:
        async with opened() as control:
            run = (await control.send("s", "gives up")).run_id
            assert (await control.wait(run, timeout=BOUND_SECONDS)).text == "done"

    asyncio.run(main())
