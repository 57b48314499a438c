"""A run that was sent to no session has a session of its own, and is a run like any other."""

from typing import Any

import anyio
import pytest

from interlock import BadInput, Ending, KeyConflict, Message, Run, Unknown, open_control
from interlock.core.names import RunKind

from .scene import at_once, echoes, idles, kinds, log_of, seeded, started


def test_a_run_has_a_session_of_its_own() -> None:
    """A run sent to no session is told, found and stored under a session of its own, to which nobody else can send."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send(None, "hello", by="alice", kind="agent")
            assert sent.session == f"run:{sent.run_id}" and sent.generation == 1
            outcome = await control.wait(sent.run_id, drained=True, by="alice")
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "hello")
            assert kinds(await log_of(control, sent.session)).count("ended") == 1
            [info] = await control.runs(sent.session, by="alice")
            assert (info.kind, info.parent, info.text) == (RunKind.AGENT, None, "hello")
            assert [entry.text for entry in await control.history(sent.session, by="alice")] == ["hello", "hello"]
            with pytest.raises(BadInput, match="belongs to that run alone"):
                await control.send(sent.session, "more", by="alice")
            with pytest.raises(Unknown):
                await control.history(sent.session, by="bob")
            assert (await control.wait(sent.run_id, by="bob")).ending is Ending.UNKNOWN

    seeded(main)


def test_runs_without_a_session_take_nobody_over() -> None:
    """Runs sent to no session run at the same time; each can be stopped by its id, its key or its session."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = [await control.send(None, "go", by="alice", key=f"k{n}", kind="agent") for n in range(3)]
            for each in sent:
                await started(control, each.run_id)
            assert len({each.session for each in sent}) == 3
            await control.stop(run=sent[0].run_id, by="alice")
            await control.stop(message="k1", by="alice")
            assert [(await control.wait(each.run_id, timeout=0)).ending for each in sent] == [
                Ending.STOPPED,
                Ending.STOPPED,
                Ending.PENDING,
            ]
            assert not (await control.stop(session=sent[2].session, by="bob")).aborted
            assert (await control.stop(session=sent[2].session, by="alice")).aborted

    seeded(main)


def test_a_stop_in_the_same_instant_prevents_the_run() -> None:
    """A message whose key is stopped while it arrives, or before, is never dispatched."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        ran.append(message.text)

    async def main() -> None:
        async with open_control(agent) as control:
            sent, _ = await at_once(
                control.send(None, "one", key="k", by="alice", kind="agent"), control.stop(message="k", by="alice")
            )
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED
            await control.stop(message="later", by="alice")
            late = await control.send(None, "two", key="later", by="alice", kind="agent")
            assert (await control.wait(late.run_id)).ending is Ending.STOPPED
        assert ran == []

    seeded(main)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_duplicate_joins_the_first(forgotten: bool) -> None:
    """A second message with the same key and body joins the first run, though neither was sent to a session."""

    async def main() -> None:
        async with open_control(echoes) as control:
            first = await control.send(None, "hello", by="alice", key="k", kind="agent")
            if forgotten:
                await control.wait(first.run_id, drained=True)
                await anyio.sleep(5)
                assert control._registry.sessions == {}
            again = await control.send(None, "hello", by="alice", key="k", kind="agent")
            assert (again.run_id, again.session) == (first.run_id, first.session)
            for changed in ({"text": "other"}, {"kind": "chat"}, {"session": "s"}, {"deadline": 5.0}):
                body: dict[str, Any] = {"session": None, "text": "hello", "kind": "agent", **changed}
                with pytest.raises(KeyConflict):
                    await control.send(body.pop("session"), body.pop("text"), by="alice", key="k", **body)
            await anyio.sleep(5)
            assert control._registry.sessions == {} and control._registry.runs == {}

    seeded(main, range(3))


@pytest.mark.parametrize("kind", ["child", "wake", "", None, 7, ["chat"]])
def test_only_chat_and_agent_are_sent(kind: Any) -> None:
    """A sender may give the kinds chat and agent only; the other kinds are control's own."""

    async def main() -> None:
        async with open_control(echoes) as control:
            with pytest.raises(BadInput, match="chat or agent"):
                await control.send("s", "hello", kind=kind)

    seeded(main, (0,))
