"""Values that a database cannot hold: kept as plain ones, or refused where they are given."""

import enum
from pathlib import Path

import pytest

from interlock import BadInput, Ending, Message, Run, open_control, tool

from .scene import ALICE, S, echo, made, play


class Seconds(float):
    """As numpy's are: a number that shows itself otherwise."""

    def __repr__(self) -> str:
        return f"Seconds({float(self)})"


class Level(enum.IntEnum):
    FIVE = 5


@pytest.mark.parametrize("at", [Seconds(5), Level.FIVE], ids=["float", "int"])
def test_a_place_in_a_channel_may_be_of_a_kind_of_number(tmp_path: Path, at: float) -> None:
    """The store keeps such a place as a plain number: otherwise the session could not be loaded after a restart."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            await control.wait((await control.send("s", "hello")).run_id)
            await control.stop(session="s", order=("chat", at))
        async with open_control(echo, store=made(tmp_path)) as control:
            (mark,) = (await control._store.load(S, principal=ALICE, key=None)).marks
            assert mark.at == 5 and type(mark.at) in (int, float)
            before = await control.send("s", "before it", order=("chat", 4))
            behind = await control.send("s", "behind it", order=("chat", 6))
            assert (await control.wait(before.run_id)).ending is Ending.STOPPED
            assert (await control.wait(behind.run_id)).ending is Ending.COMPLETED

    play(main)


def test_a_tool_s_name_is_checked_at_the_door(tmp_path: Path) -> None:
    """A name that no store could hold is refused where it is given, and the run has a durable end."""

    async def plain() -> str:
        return "done"

    with pytest.raises(BadInput, match="a tool's name"):
        tool(name="t\ud800")(plain)

    async def calls(run: Run, message: Message) -> str:
        async def named() -> str:
            return "done"

        named.__name__ = message.text * 1_000_000
        with pytest.raises(BadInput, match="a tool's name"):
            await run.call(named)
        return "refused"

    async def main() -> None:
        async with open_control(calls, store=made(tmp_path)) as control:
            outcome = await control.wait((await control.send("s", "x")).run_id, drained=True)
            assert (outcome.ending, outcome.text, outcome.durable) == (Ending.COMPLETED, "refused", True)

    play(main)


@pytest.mark.parametrize("after", [2**63, 2**200, -1])
def test_a_position_that_no_event_can_have_is_refused(tmp_path: Path, after: int) -> None:
    """A number that the database cannot hold is the caller's mistake, and not the store's failure."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            await control.wait((await control.send("s", "hello")).run_id)
            with pytest.raises(BadInput, match="an event's position"):
                await anext(control.watch("s", after=after))

    play(main)
