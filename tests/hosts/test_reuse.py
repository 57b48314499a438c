"""A host that heard of the stop and left nothing behind serves the next turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from interlock import EventKind
from runtime.scene import told

from .test_hogs import unhurried
from .turns import BOUND_SECONDS, opened


def test_a_host_that_waits_for_output_hears_of_the_end() -> None:
    """A stop while a host's loop is blocked by reading a process's output does not cost the host."""

    async def main() -> None:
        async with opened() as control:
            fates = []
            for _ in range(10):
                run = (await control.send("s", "reads")).run_id
                await told(control, run, EventKind.DELTA)
                await control.stop(session="s")
                await control.wait(run, drained=True, timeout=BOUND_SECONDS)
                fates.append((await control.receipt(run)).host)
            assert fates.count("reused") > 5, fates

    with unhurried():
        asyncio.run(main())


def test_an_agent_that_raises_keyboard_interrupt_does_not_take_the_next_message_along() -> None:
    """A KeyboardInterrupt fails the run like any other error, and the host serves the next message."""

    async def main() -> None:
        async with opened() as control:
            for _ in range(5):
                broken = await control.send("s", "interrupts")
                assert (await control.wait(broken.run_id, drained=True)).error == "KeyboardInterrupt"
                assert (await control.wait((await control.send("s", "answers")).run_id)).text == "here"

    asyncio.run(main())


def test_what_a_stopped_turn_left_to_the_collector_is_collected_before_it_is_drained(tmp_path: Path) -> None:
    """A host that is used again has run its turn's finalizers, which are the turn's code, before it is drained."""
    mark = tmp_path / "mark"

    async def main() -> None:
        async with opened() as control:
            sent = await control.send("s", f"cycles {mark}")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).host == "reused"
            assert mark.exists()

    with unhurried():
        asyncio.run(main())
