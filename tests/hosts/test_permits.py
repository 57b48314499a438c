"""A permit is for the call that it names: a host runs no other call under it."""

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
