"""Who hears everything: rights are asked when they change, not for each event."""

import asyncio
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from interlock import Control, Event, Message, Run, open_control
from interlock.client.door import Sink
from interlock.core.authority import Authority
from interlock.core.fence import Fence
from interlock.core.names import EventKind, Principal, QuestionState
from interlock.core.verbs import Stop
from interlock.runtime.feed import Feed
from interlock.runtime.following import Listening
from interlock.stores.sqlite import SqliteStore

from .scene import forgotten, seeded

DELTAS = 1_000
PEOPLE = [Principal(f"p{number}") for number in range(50)]


async def speaks(run: Run, message: Message) -> str | None:
    """Say as much as the message says; or ask; or echo."""
    if message.text == "ask":
        return str(await run.ask("may I?"))
    if not message.text.isdecimal():
        return message.text
    for _ in range(int(message.text)):
        await run.say("x")
    return None


class Ears(Sink):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def take(self, event: Event, source: Fence | None) -> bool:
        self.heard.append(event)
        return True

    def texts(self) -> list[str]:
        """Return the messages that were told, and forget them."""
        found = [event.data.text for event in self.heard if event.kind is EventKind.MESSAGE]
        self.heard.clear()
        return found


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, calls: list[Any]) -> None:
    """Note each call of a method, which does what it did."""
    method = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return method(*given, **named)

    monkeypatch.setattr(owner, name, call)


def test_rights_are_not_asked_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 50 listeners to everything a thousand deltas ask authority a few times, and only those who may hear do."""
    asked: list[Any] = []
    counted(monkeypatch, Authority, "may", asked)

    async def main() -> None:
        async with open_control(speaks) as control:
            ears = {each: Ears() for each in PEOPLE}
            for each, sink in ears.items():
                control.feed.follow_all(sink, each)
            sent = await control.send("s", str(DELTAS), by=PEOPLE[0])
            await control.share("s", with_=PEOPLE[1], may="read", by=PEOPLE[0])
            while not any(event.kind is EventKind.DELTA for event in ears[PEOPLE[0]].heard):
                await asyncio.sleep(0)
            asked.clear()
            before = len(ears[PEOPLE[0]].heard)
            while len(ears[PEOPLE[0]].heard) < before + DELTAS // 2:
                await asyncio.sleep(0)
            assert len(asked) <= 20
            await control.wait(sent.run_id, by=PEOPLE[0])
            heard = {each for each, sink in ears.items() if sink.heard}
            assert heard == set(PEOPLE[:2])
            deltas = [event for event in ears[PEOPLE[0]].heard if event.kind is EventKind.DELTA]
            assert len(deltas) == DELTAS

    seeded(main, range(2))


async def say(control: Control, text: str, by: str, session: str = "s") -> None:
    """Send a message and wait until its run is over."""
    await control.wait((await control.send(session, text, by=by)).run_id, drained=True, by=by)


def test_the_audience_follows_every_change_of_rights() -> None:
    """Founding, share, unshare and appoint count for listeners to everything from their step on (race 145)."""

    async def main() -> None:
        async with open_control(speaks) as control:
            ann, bob, rita = Ears(), Ears(), Ears()
            for sink, by in ((ann, "ann"), (bob, "bob"), (rita, "rita")):
                control.feed.follow_all(sink, Principal(by))
            await say(control, "founded", "ann")
            assert (ann.texts(), bob.texts(), rita.texts()) == (["founded"], [], [])
            await control.share("s", with_="bob", may="read", by="ann")
            await say(control, "shared", "ann")
            assert (ann.texts(), bob.texts(), rita.texts()) == (["shared"], ["shared"], [])
            await control.unshare("s", with_="bob", by="ann")
            await say(control, "unshared", "ann")
            assert (ann.texts(), bob.texts(), rita.texts()) == (["unshared"], [], [])
            control.appoint(readers=["rita"])
            await say(control, "appointed", "ann")
            assert (ann.texts(), bob.texts(), rita.texts()) == (["appointed"], [], ["appointed"])
            control.appoint()
            await say(control, "dismissed", "ann")
            assert (ann.texts(), bob.texts(), rita.texts()) == (["dismissed"], [], [])

    seeded(main)


def test_a_session_that_is_founded_anew_has_a_new_audience(tmp_path: Path) -> None:
    """After a session was pruned and founded by another, its events are told to the new owner alone (race 145)."""

    async def main() -> None:
        store = SqliteStore(tmp_path)
        async with open_control(speaks, store=store) as control:
            ann, bob = Ears(), Ears()
            control.feed.follow_all(ann, Principal("ann"))
            control.feed.follow_all(bob, Principal("bob"))
            await say(control, "ann's", "ann")
            await forgotten(control)
            assert (ann.texts(), bob.texts()) == (["ann's"], [])
            while not (await store.prune(before=time.time() + 3600)).sessions:
                await asyncio.sleep(0.01)
            await say(control, "bob's", "bob")
            assert (ann.texts(), bob.texts()) == ([], ["bob's"])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_approver_hears_questions_alone_and_only_while_appointed() -> None:
    """An approver is told the questions of runs that it may not see alone, and none once dismissed (race 145)."""

    async def main() -> None:
        async with open_control(speaks) as control:
            ears = Ears()
            control.feed.follow_all(None, Principal("carl"), approver=ears)
            await say(control, "before", "ann")
            assert ears.heard == []
            control.appoint(approvers=["carl"])
            sent = await control.send("s", "ask", by="ann")
            while not ears.heard:
                await anyio.sleep(0.01)
            assert [event.data.state for event in ears.heard] == [QuestionState.OPEN]
            control.appoint()
            ears.heard.clear()
            await control.stop(run=sent.run_id, by="ann")
            await control.send("s", "ask", by="ann")
            await anyio.sleep(1)
            assert ears.heard == []

    seeded(main)


def test_a_fall_asks_nothing_of_those_who_do_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fall tells the sinks of its session, and does nothing for a thousand listeners elsewhere; no right is asked."""
    asked: list[Any] = []
    fell: list[Any] = []

    async def main() -> None:
        async with open_control(speaks) as control:
            for number in range(1_000):
                control.feed.follow_all(Ears(), Principal(f"q{number}"))
                control.feed.follow(f"other {number}", Ears())
            control.feed.follow("s", Ears())
            sent = await control.send("s", "ask", by="ann")
            await anyio.sleep(0.1)
            fell.clear()
            with monkeypatch.context() as patch:
                counted(patch, Sink, "fell", fell)
                counted(patch, Listening, "fell", fell)
                counted(patch, Feed, "sees", asked)
                stop = control.ask(Stop(run=sent.run_id), by="ann")
                assert len(fell) == 2 and asked == []
            assert (await stop).aborted

    seeded(main, range(2))
