"""A text that was said in a session before it had an owner stays hidden from its owner, also after a crash."""

import asyncio
from pathlib import Path

import pytest

from interlock import Ending, open_control
from interlock.core.events import MessageData

from .scene import S, database, echo, made, play


@pytest.mark.parametrize("when", ["before it came", "while it came"])
def test_what_ended_before_its_session_was_anybody_s_leaves_no_text_after_a_crash(tmp_path: Path, when: str) -> None:
    """The next start does not tell Bob, who founded the session later, what Alice's stopped message said."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            if when == "before it came":
                await control.stop(message="k", by="alice")
            first = asyncio.create_task(control.send("s", "ALICE-SECRET", by="alice", key="k"))
            await asyncio.sleep(0)  # Alice's message is the first in the session's line
            if when == "while it came":
                await control.stop(message="k", by="alice")
            second = await control.send("s", "hello", by="bob")
            ended = await control.wait((await first).run_id)
            await control.wait(second.run_id, by="bob", drained=True)
            assert ended.ending is Ending.STOPPED
        with database(tmp_path) as other:
            # The rows look as if the server had been killed before these were written.
            gone = other.execute("DELETE FROM events WHERE run_id = ?", (ended.run_id,)).rowcount
            other.execute("UPDATE runs SET told = 0 WHERE id = ?", (ended.run_id,))
            assert gone > 0
        async with open_control(echo, store=made(tmp_path)) as control:
            page = await control.feed.log.events(S, after=0, limit=1_000)
            told = {each.data.by: each.data.text for each in page.events if isinstance(each.data, MessageData)}
            assert told == {"alice": "", "bob": "hello"}
            assert "ALICE-SECRET" not in repr(page)
            assert "ALICE-SECRET" not in repr(
                [*await control.history("s", by="bob"), *await control.runs("s", by="bob")]
            )

    play(main)
