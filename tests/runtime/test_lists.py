"""Lists and finding: sessions, runs and questions that a caller may see, alive or stored."""

import asyncio
from random import Random

import anyio
import pytest

from interlock import BadInput, Control, Ending, MemoryStore, Message, QuestionState, Run, RunInfo, open_control, tool
from interlock.core.decision import Decision, QuestionRow, RunRow, SessionRow
from interlock.core.lifecycle import State
from interlock.core.names import EventKind, Principal, QuestionId, RunId, RunKind, SessionId
from interlock.testing.processes import VirtualProcesses

from .scene import echoes, idles, seeded, started, told

PEOPLE = ("alice", "bob", "eve", "mallory")


async def some(control: Control) -> dict[str, str]:
    """Make two sessions of Alice and one of Bob, unshared after Alice spoke in it, and wait until memory is empty."""
    runs = {}
    for session, by in (("a", "alice"), ("b", "bob"), ("a2", "alice"), ("b", "alice")):
        runs[f"{session} {by}"] = (await control.send(session, f"{by} in {session}", by=by)).run_id
        await control.wait(runs[f"{session} {by}"], drained=True)
        if session == "b":
            await (control.share("b", with_="alice") if by == "bob" else control.unshare("b", with_="alice"))
    await anyio.sleep(5)
    assert control._registry.runs == {}
    return runs


# Sessions


def test_sessions_are_those_the_caller_may_see() -> None:
    """A caller's list has the sessions that the caller may see, latest first; the limit counts only those."""

    async def main() -> None:
        async with open_control(echoes, admins=["root"], readers=["eve"]) as control:
            await some(control)
            seen = {by: [info.session.id for info in await control.sessions(by=by)] for by in PEOPLE}
            assert seen == {"alice": ["a2", "a"], "bob": ["b"], "eve": ["b", "a2", "a"], "mallory": []}
            assert [info.session.id for info in await control.sessions(limit=2)] == ["b", "a2"]
            assert [info.session.id for info in await control.sessions(limit=1, by="bob")] == ["b"]
            assert await control.sessions(limit=0) == []
            [info] = await control.sessions(by="bob")
            assert (info.session.owner, info.runs, info.open) == ("bob", 2, 0)
            for wrong in (-1, 1.5, "9", True, None):
                with pytest.raises(BadInput, match="limit="):
                    await control.sessions(limit=wrong)  # type: ignore[arg-type]

    seeded(main, range(3))


def test_a_live_session_is_shown_as_it_is() -> None:
    """A live session is listed as memory has it, before the store has committed that state."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            await started(control, sent.run_id)
            store.latency_seconds = 0.5
            stopping = asyncio.ensure_future(control.stop(session="s", by="alice"))
            while not control._registry.runs[sent.run_id].fallen:
                await asyncio.sleep(0)
            [info] = await control.sessions(by="alice")
            stored = await store.session(sent.session)
            assert stored is not None and info.session.generation > stored.generation
            await stopping

    seeded(main)


# Runs


def test_the_latest_runs_are_those_the_caller_may_see() -> None:
    """`latest` adds stored runs of sessions that the caller owns or that are shared with the caller."""

    async def main() -> None:
        async with open_control(echoes, readers=["eve"]) as control:
            runs = await some(control)
            assert await control.runs() == []
            order = list(runs.values())
            seen = {by: [info.id for info in await control.runs(latest=9, by=by)] for by in PEOPLE}
            bobs = [runs["b bob"], runs["b alice"]]
            alices = [runs["a alice"], runs["a2 alice"]]
            assert seen == {"alice": alices, "bob": bobs, "eve": order, "mallory": []}
            assert [info.id for info in await control.runs(latest=2)] == order[-2:]
            assert [info.id for info in await control.runs(latest=1, by="bob")] == bobs[-1:]
            [last] = await control.runs(latest=1)
            assert (last.text, last.key, last.state, last.admitted_at > 0) == ("alice in b", None, State.ENDED, True)
            with pytest.raises(BadInput, match="latest="):
                await control.runs(latest=-1)

    seeded(main, range(3))


def test_a_live_run_is_not_listed_twice() -> None:
    """A run that is both alive and stored is listed once, as it is now."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one", key="k1")
            second = await control.send("s", "two", key="k2")
            await started(control, second.run_id)
            infos = await control.runs(latest=10)
            assert sorted(info.id for info in infos) == sorted([first.run_id, second.run_id])
            assert [(info.text, info.key, info.state) for info in infos if info.id == second.run_id] == [
                ("two", "k2", State.STARTED)
            ]

    seeded(main)


# Finding


def test_a_run_is_found_by_its_id_and_by_its_key() -> None:
    """A run is found by id for those who may see it and by key for its principal alone, alive or only stored."""

    async def main() -> None:
        async with open_control(idles, readers=["eve"]) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            await started(control, sent.run_id)

            async def found() -> list[RunInfo]:
                infos = [await control.find(name, by="alice") for name in ("k", sent.run_id)]
                infos += [await control.find(sent.run_id, by="eve"), await control.find(sent.run_id)]
                for name, by in (("k", "eve"), ("k", "bob"), (sent.run_id, "bob"), ("x", "alice")):
                    assert await control.find(name, by=by) is None, (name, by)
                return [info for info in infos if info is not None]

            assert [(info.id, info.state, info.text) for info in await found()] == [
                (sent.run_id, State.STARTED, "hello")
            ] * 4
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(5)
            assert control._registry.runs == {}
            infos = await found()
            assert [(info.id, info.key, info.outcome and info.outcome.ending) for info in infos] == [
                (sent.run_id, "k", Ending.STOPPED)
            ] * 4

    seeded(main)


def test_what_is_alive_is_found_without_waiting() -> None:
    """A live run is found in the step that asks, though the store answers nothing."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            store.faults.stall = True
            for name in ("k", sent.run_id):
                finding = control.find(name, by="alice")
                # The call ends in its first step, without giving way to any other task.
                with pytest.raises(StopIteration) as over:
                    finding.send(None)
                assert over.value.value.id == sent.run_id
            store.resume()

    seeded(main)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_message_that_was_taken_in_is_found_as_the_run_that_took_it(forgotten: bool) -> None:
    """A key or an id of a collected message finds the one turn that answers it."""

    async def main() -> None:
        async with open_control(echoes, strategy="collect") as control:
            first = asyncio.ensure_future(control.send("s", "one", by="alice", key="k1"))
            second = await control.send("s", "two", by="alice", key="k2")
            turn = (await first).run_id
            assert second.run_id == turn
            ids = [info.id for info in await control.runs("s", by="alice")]
            if forgotten:
                await control.wait(turn, drained=True)
                await anyio.sleep(5)
                assert control._registry.runs == {}
            for name in ("k1", "k2", *ids):
                info = await control.find(name, by="alice")
                assert info is not None and info.id == turn, name

    seeded(main, range(3))


# Questions


@tool(approval="ask")
async def deploy(where: str) -> str:
    """Return the place, as a tool that a person must allow."""
    return where


def test_open_questions_are_listed_for_those_who_may_answer() -> None:
    """An open question is listed with session, text, tool, arguments and times; an answered one is not listed."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "ask":
            return str(await run.ask("Really?", choices=["yes", "no"], timeout=60))
        return str(await run.call(deploy, where="here"))

    async def main() -> None:
        async with open_control(agent) as control:
            control.appoint(approvers=["carol"])
            asking = await control.send("a", "ask", by="alice")
            await told(control, asking.run_id, EventKind.QUESTION)
            calling = await control.send("b", "call", by="bob")
            await told(control, calling.run_id, EventKind.QUESTION)
            [alices] = await control.questions(by="alice")
            assert (alices.run_id, alices.session, alices.text) == (asking.run_id, "a", "Really?")
            assert (alices.choices, alices.state, alices.tool) == (("yes", "no"), QuestionState.OPEN, None)
            assert alices.asked_at is not None and alices.expires_at == alices.asked_at + 60
            [bobs] = await control.questions("b", by="bob")
            assert (bobs.tool, bobs.arguments) == ("deploy", '{"where":"here"}')
            assert await control.questions(by="mallory") == [] == await control.questions("b", by="alice")
            assert await control.questions(by="carol") == [alices, bobs] == await control.questions()
            await control.answer(bobs.id, True, by="carol")
            assert (await control.wait(calling.run_id)).text == "here"
            assert await control.questions() == [alices]
            await control.stop(session="a", by="alice")
            assert await control.questions() == []

    seeded(main)


def test_a_child_s_question_is_listed_under_the_session_at_the_top() -> None:
    """A session's list of questions includes those of the child runs below it."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("other", "ask")

    async def other(run: Run, message: Message) -> None:
        await run.ask("May I?")

    async def main() -> None:
        async with open_control(agent, agents={"other": other}) as control:
            await control.send("s", "go", by="alice")
            while not (listed := await control.questions("s", by="alice")):
                await anyio.sleep(0.01)
            assert [info.session.startswith("run:") for info in listed] == [True]

    seeded(main, range(3))


# Gauges


def test_how_many_wait() -> None:
    """`queued` counts the messages without a seat over all sessions."""

    async def main() -> None:
        async with open_control(idles, strategy="queue") as control:
            assert control.queued == 0
            for n in range(6):
                await control.send(f"s{n % 2}", "hello")
            assert control.queued == 4
            await control.stop(session="s0")
            assert control.queued == 2
            await control.stop(session="s1")
            assert control.queued == 0

    seeded(main)


def test_the_grade_is_what_receipts_say() -> None:
    """`grade` says how processes are held here, in the receipts' word, or `inline` where none can be started."""

    async def main() -> None:
        processes = VirtualProcesses(Random(0))
        async with open_control(idles, processes=processes) as control:
            assert await control.grade() == (await processes.ready()).grade
            assert await control.grade() in ("cgroup", "keeper", "group")

    seeded(main, (0,))


def test_what_another_control_runs_is_listed_from_the_store() -> None:
    """Runs and questions that only the store knows are listed to those who may see them, also beside our own."""

    async def main() -> None:
        store = MemoryStore()
        store.shared = True
        theirs = RunRow(
            id=RunId("r-9-1"), session=SessionId("b"), principal=Principal("bob"), kind=RunKind.CHAT, text="theirs",
            admitted_at=1.0, generation=1, started=True,
        )  # fmt: skip
        asked = QuestionRow(
            id=QuestionId("q-9-2"), run_id=theirs.id, session=theirs.session, principal=theirs.principal, text="Well?"
        )
        async with open_control(idles, store=store) as control:
            row = SessionRow(id=theirs.session, owner=theirs.principal, generation=1)
            await store.decide(Decision(sessions=(row,), admissions=(theirs,), questions=(asked,)))
            ours = await control.send("a", "ours", by="alice")
            assert [info.id for info in await control.runs()] == [theirs.id, ours.run_id]
            assert [info.id for info in await control.runs(by="bob")] == [theirs.id]
            assert [info.id for info in await control.runs(by="alice")] == [ours.run_id]
            assert [info.id for info in await control.questions(by="bob")] == [asked.id]
            assert await control.questions(by="alice") == [] == await control.questions("a")
            store.faults.stall = True
            assert [info.id for info in await control.runs()] == [ours.run_id]
            assert await control.questions() == []
            store.resume()
            await control.stop(session="a", by="alice")
            assert [info.id for info in await control.runs(by="bob")] == [theirs.id]

    seeded(main, range(3))
