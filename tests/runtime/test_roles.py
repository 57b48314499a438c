"""Roles that change while control is open, and who sees which event."""

from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Ending,
    Event,
    EventKind,
    Message,
    QuestionState,
    Rejected,
    Run,
    Unknown,
    open_control,
)
from interlock.client.door import Sink as FeedSink
from interlock.core.errors import InterlockError
from interlock.core.events import Delta
from interlock.core.fence import Fence
from interlock.core.names import SessionId
from interlock.runtime import registry

from .scene import echoes, idles, kinds, log_of, seeded, started, told

EVERYONE = ("local", "alice", "bob", "carol", "eve", "root", "mallory")


def sees(control: Control, by: str, event: Event) -> bool:
    """Whether somebody may see an event now."""
    live = control._registry.runs.get(event.run_id)
    principal = None if live is None else live.principal
    return control.feed.sees(by, event.session, principal, question=event.kind is EventKind.QUESTION)


class Sink(FeedSink):
    """Someone who is told of everything."""

    def __init__(self, control: Control | None = None) -> None:
        self.control = control
        self.told: list[Any] = []
        self.seen: dict[str, list[Event]] = {by: [] for by in EVERYONE}
        self.closed = False

    def take(self, event: Event, source: Fence | None) -> bool:
        """Take an event, and note who may see it in this step."""
        self.told.append(event)
        for by in EVERYONE if self.control is not None else ():
            if self.control is not None and sees(self.control, by, event):
                self.seen[by].append(event)
        return True

    def fell(self, source: Fence) -> None:
        """Note who fell."""
        self.told.append(source.run_id)

    def close(self, error: InterlockError | None) -> None:
        """Note the end."""
        self.closed = True


# Appointing


def test_roles_may_change_while_control_is_open() -> None:
    """A role counts from its appointment until the next one leaves the name out; those named at first stay."""

    async def main() -> None:
        async with open_control(idles, readers=["carol"]) as control:
            control.appoint(readers=["eve"])
            sent = await control.send("s", "hello", by="alice")
            assert (await control.wait(sent.run_id, timeout=0, by="eve")).ending is Ending.PENDING
            control.appoint(readers=["bob"])
            assert (await control.wait(sent.run_id, timeout=0, by="eve")).ending is Ending.UNKNOWN
            for by in ("bob", "carol"):
                assert (await control.wait(sent.run_id, timeout=0, by=by)).ending is Ending.PENDING
            assert not (await control.stop(run=sent.run_id, by="root")).aborted
            control.appoint(admins=["root"])
            assert (await control.stop(run=sent.run_id, by="root")).aborted
            for wrong in ({"admins": "root"}, {"readers": "eve"}, {"writers": "eve"}, {"approvers": "carol"}):
                with pytest.raises(BadInput, match="a list of names"):
                    control.appoint(**wrong)  # type: ignore[arg-type]

    seeded(main)


def test_an_approver_answers_and_does_nothing_else() -> None:
    """An appointed approver may answer every question; seeing, stopping and taking over stay what they were."""

    async def agent(run: Run, message: Message) -> str:
        return str(await run.ask("Really?"))

    async def main() -> None:
        async with open_control(agent, strategy="reject") as control:
            sent = await control.send("s", "hello", by="alice")
            asked = await told(control, sent.run_id, EventKind.QUESTION)
            question = asked.data.question_id  # type: ignore[union-attr]
            with pytest.raises(Unknown):
                await control.answer(question, True, by="carol")
            control.appoint(approvers=["carol"])
            assert (await control.wait(sent.run_id, timeout=0, by="carol")).ending is Ending.UNKNOWN
            assert not (await control.stop(run=sent.run_id, by="carol")).aborted
            with pytest.raises(Unknown):
                await control.history("s", by="carol")
            with pytest.raises(Unknown):
                await control.send("s", "hello", by="carol")
            await control.share("s", with_="carol", by="alice")
            with pytest.raises(Rejected):
                await control.send("s", "hello", by="carol")
            await control.unshare("s", with_="carol", by="alice")
            info = await control.answer(question, True, by="carol")
            assert (info.state, info.by) == (QuestionState.ANSWERED, "carol")
            assert (await control.wait(sent.run_id, by="alice")).text == "True"

    seeded(main)


# The feed of everything


def test_a_sink_of_everything_is_told_of_every_session() -> None:
    """A sink of everything gets all events in one order; one of a session hears besides of each fall, in its step."""

    async def agent(run: Run, message: Message) -> None:
        await run.say("hm")
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            everything, own = Sink(), Sink()
            listening = control.feed.follow_all(everything)
            control.feed.follow(SessionId("a"), own)
            sent = [await control.send(session, "hello") for session in ("a", "b")]
            for each in sent:
                await told(control, each.run_id, EventKind.DELTA)
            await control.stop(session="a")
            await control.stop(session="b")
            for each in sent:
                await control.wait(each.run_id, drained=True)
            events = everything.told
            for session in {event.session for event in events}:
                positions = [event.position for event in events if event.session == session]
                assert positions == sorted(positions)
            for session in ("a", "b"):
                logged = await log_of(control, session)
                told_of = [event for event in events if event.session == session and not isinstance(event.data, Delta)]
                assert told_of == logged and "ended" in kinds(logged)
            [end] = [at for at, event in enumerate(own.told) if event == sent[0].run_id]
            assert own.told[:end] + own.told[end + 1 :] == [event for event in events if event.session == "a"]
            assert own.told[end + 1].kind is EventKind.ENDED
            listening.close()
            count = len(everything.told)
            await control.wait((await control.send("c", "hello", deadline=1)).run_id)
            assert len(everything.told) == count and not everything.closed
            control.feed.follow_all(everything)
        assert everything.closed

    seeded(main)


@pytest.mark.parametrize("fails", ["take", "fell"])
def test_a_sink_that_fails_keeps_nobody_from_being_told(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """A sink that fails is let go; the fall it failed in, and everyone else, go on."""

    async def main() -> None:
        async with open_control(idles) as control:
            broken, other = Sink(), Sink()
            setattr(broken, fails, lambda *_: 1 / 0)
            control.feed.follow(SessionId("s"), broken)
            control.feed.follow_all(broken)
            control.feed.follow_all(other)
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            assert (await control.stop(session="s")).aborted
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            assert not control.feed._following
            assert [each.sink for each in control.feed._everything["local"]] == [broken] * (fails == "fell") + [other]
            assert kinds(other.told).count("ended") == 1

    seeded(main, range(2))
    assert "a sink of session s failed" in caplog.text


# Seeing


def test_who_sees_which_event() -> None:
    """A session's owner, those it is shared with and readers see all of it; an approver sees questions."""

    async def agent(run: Run, message: Message) -> None:
        await run.ask("Really?")

    async def main() -> None:
        async with open_control(agent, admins=["root"], strategy="queue") as control:
            control.appoint(readers=["eve"], approvers=["carol"])
            sink = Sink(control)
            control.feed.follow_all(sink)
            runs = [(await control.send("s", "hello", by="alice")).run_id]
            await control.share("s", with_="bob")
            runs.append((await control.send("s", "hello", by="bob")).run_id)
            for run in runs:
                asked = await told(control, run, EventKind.QUESTION)
                await control.answer(asked.data.question_id, True)  # type: ignore[union-attr]
                await control.wait(run, drained=True)
            events = [event for event in sink.told if isinstance(event, Event)]
            for by in ("local", "alice", "eve", "root"):
                assert sink.seen[by] == events, by
            assert sink.seen["bob"] == events[-len(sink.seen["bob"]) :]
            assert {event.run_id for event in sink.seen["bob"]} >= {runs[1]}
            assert sink.seen["carol"] == [event for event in events if event.kind is EventKind.QUESTION]
            assert kinds(sink.seen["carol"]) == ["question"] * 4
            assert sink.seen["mallory"] == []
            control.appoint(readers=["mallory"])
            assert sees(control, "mallory", events[0]) and not sees(control, "eve", events[0])

    seeded(main)


def test_an_owner_sees_what_is_told_after_the_run_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner sees late events for a while after the session left memory; then only those who see all see them."""
    monkeypatch.setattr(registry, "LEFT", 2)

    async def main() -> None:
        async with open_control(echoes, readers=["eve"]) as control:
            for session in ("a", "b", "c"):
                await control.wait((await control.send(session, "hello", by="alice")).run_id, drained=True)
                await anyio.sleep(5)
            assert control._registry.sessions == {}
            logs = {session: await log_of(control, session) for session in ("a", "b", "c")}
            seen = {session: {by for by in EVERYONE if sees(control, by, log[-1])} for session, log in logs.items()}
            assert seen == {
                "a": {"local", "eve"},
                "b": {"local", "eve", "alice"},
                "c": {"local", "eve", "alice"},
            }
            assert len(control._registry._left) == 2

    seeded(main, range(3))
