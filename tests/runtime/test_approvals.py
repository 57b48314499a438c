"""Tools that must be allowed: which calls need an answer, who may answer, and how a run goes on after a no."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import (
    Control,
    Denied,
    Ending,
    MemoryStore,
    Message,
    QuestionClosed,
    QuestionInfo,
    QuestionState,
    Run,
    Settings,
    Unknown,
    open_control,
    tool,
)
from interlock.core.names import EventKind

from .asking import MANY, VOID, asked_states, asks, guarded, question_of, tried
from .scene import raises, seeded, told
from .test_gate import states, valid_for_a_model

# For each case: the server's policy, the tool's own mark, and whether a person is asked.
POLICIES: dict[str, tuple[Any, str | None, bool]] = {
    "nobody says anything": (None, None, False),
    "the tool wants it": (None, "ask", True),
    "the tool wants none": (None, "never", False),
    "the tool wants it and the operator does not": ("never", "ask", False),
    "the tool does not": ("never", "never", False),
    "the server asks": ("ask", None, True),
    "the server asks all the same": ("ask", "never", True),
    "both ask": ("ask", "ask", True),
    "on the list": (["acts", "other"], None, False),
    "on the list, wanting it": (["acts"], "ask", False),
    "not on the list": (["other"], None, True),
    "not on the list, not wanting it": ({"other"}, "never", True),
    "an empty list": ((), None, True),
}


PEOPLE = {
    "owner": ("alice", True),
    "principal": ("bob", True),
    "admin": ("root", True),
    "the embedder": ("local", True),
    "another in the session": ("carol", False),
    "stranger": ("mallory", False),
    "reader": ("rita", False),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_which_tools_are_asked_for(policy: str) -> None:
    """The operator's policy goes before the tool's mark; a call that needs an answer asks once and runs once."""
    server, mark, asked = POLICIES[policy]
    ran: list[int] = []

    @tool(approval=mark)
    async def acts(number: int) -> str:
        ran.append(number)
        return "acted"

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(acts, number=7))

    async def main() -> None:
        ran.clear()
        async with open_control(agent, approval=server) as control:
            sent = await control.send("s", "hello")
            if asked:
                question = await question_of(control, sent.run_id)
                assert (question.text, question.tool, question.arguments) == ("Allow acts?", "acts", '{"number":7}')
                await anyio.sleep(5)
                assert ran == []
                await control.answer(question.question_id, True)
            assert (await control.wait(sent.run_id)).text == "acted"
            assert await asked_states(control) == (["open", "answered"] if asked else [])
            valid_for_a_model(await control.history("s"))
        assert ran == [7]

    seeded(main, range(3))


@pytest.mark.parametrize("why", ["denied", "expired"])
def test_a_tool_that_is_not_allowed(why: str) -> None:
    """A denied call raises Denied, its body never begins, its one result says why, and the run goes on without it."""
    ran: list[str] = []
    words = "denied by bob" if why == "denied" else "nobody allowed it in time"

    async def agent(run: Run, message: Message) -> str:
        with raises(Denied, f"tool deploy was not started: {words}; go on without it"):
            await run.call(guarded(ran), target="the moon")
        return "went on"

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, admins=["bob"], settings=Settings(ask_seconds=5)) as control:
            sent = await control.send("s", "hello")
            question = await question_of(control, sent.run_id)
            if why == "denied":
                await control.answer(question.question_id, False, by="bob")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "went on"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            [result] = [entry for entry in history if entry.role == "result"]
            assert (result.tool, result.state, result.text) == ("deploy", "skipped", f"not started: {words}")
            assert [row.state for row in await store.tools(sent.run_id)] == ["skipped"]
        assert ran == []

    seeded(main)


@pytest.mark.parametrize("parallel", [False, True])
def test_each_call_of_a_batch_is_asked_for(parallel: bool) -> None:
    """A batch asks about each call; a denied call does not hold up the others, and each has one result."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        deploy = guarded(ran)
        results = await run.batch([(deploy, {"target": name}) for name in "abc"], parallel=parallel)
        assert [type(result.error) for result in results] == [type(None), Denied, type(None)]
        return " ".join(str(result.value) for result in results)

    async def main() -> None:
        ran.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            for number in range(3):
                question = await question_of(control, sent.run_id, number)
                assert question.arguments is not None
                await control.answer(question.question_id, '"b"' not in question.arguments)
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "deployed to a None deployed to c", outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert sorted(state for _, state in states(history)) == ["finished", "finished", "skipped"]
        assert sorted(ran) == ["a", "c"]

    seeded(main)


def test_a_tool_given_up_while_it_is_asked_for() -> None:
    """A call that the agent gives up before anybody allows it is skipped; its question is void, and the run goes on."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        with anyio.move_on_after(1):
            await run.call(guarded(ran))
        await run.post("gave up")
        await anyio.sleep(5)
        return "done"

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(3)
            assert await asked_states(control) == ["open", "void"]
            with raises(QuestionClosed, "is void"):
                await control.answer(question, True, by="alice")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "gave up\n\ndone"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("deploy", "skipped")]
            assert (await control.receipt(sent.run_id)).questions == 0  # the question was void before the end
            kept = await store.question(question)
            assert kept is not None and kept.state is QuestionState.VOID
        assert ran == []

    seeded(main)


def test_a_void_question_of_a_run_that_goes_on_is_not_told_as_its_end() -> None:
    """An answer to the question of a call that was given up is refused without saying that the run is over."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        with anyio.move_on_after(1):
            await run.call(guarded(ran))
        await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(3)
            refusal = await tried(control.answer(question, True))
            assert isinstance(refusal, QuestionClosed)
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            assert "its run is over" not in str(refusal), refusal

    seeded(main, range(1))


def test_allow_in_the_same_tick_as_giving_up() -> None:
    """When an Allow meets the agent's own timeout, the body begins with an accepted answer or not at all (race 52)."""
    ran: list[str] = []
    seen: set[str] = set()

    async def main() -> None:
        ran.clear()
        heard: list[str] = []

        async def agent(run: Run, message: Message) -> str:
            with anyio.move_on_after(1):
                heard.append(await run.call(guarded(ran)))
            return "went on"

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            question = (await question_of(control, sent.run_id)).question_id
            begun = control._registry.runs[sent.run_id].limits.touched
            await anyio.sleep(begun + 1 - asyncio.get_running_loop().time())
            answer = await tried(control.answer(question, True))
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "went on"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            if isinstance(answer, QuestionClosed):
                assert (ran, heard) == ([], [])
            [(_, state)] = states(history)
            assert {"finished": 1, "interrupted": 1, "skipped": 0}[state] == len(ran)
            seen.add(type(answer).__name__)

    seeded(main, MANY)
    assert "QuestionClosed" in seen


@pytest.mark.parametrize("place", ["memory", "store", "second control"])
@pytest.mark.parametrize("who", PEOPLE)
def test_who_may_answer(who: str, place: str) -> None:
    """The session's owner, the run's principal and an admin may answer; others are told of no such question."""
    by, may = PEOPLE[who]

    async def agent(run: Run, message: Message) -> None:
        if message.text == "ask":
            await run.ask("Deploy?")

    async def main() -> None:
        store = MemoryStore()
        options: dict[str, Any] = {"store": store, "admins": ["root"], "readers": ["rita"]}

        async def judged(control: Control) -> None:
            answer = await tried(control.answer(question, True, by=by))
            if may and place == "memory":
                assert isinstance(answer, QuestionInfo) and answer.by == by
            elif may:
                assert isinstance(answer, QuestionClosed) and VOID in str(answer)
            else:
                absent = await tried(control.answer("q-9-9", True, by=by))
                wrong = await tried(control.answer(question, "no answer at all", by=by))
                assert [type(each) for each in (answer, absent, wrong)] == [Unknown] * 3
                texts = {str(each).replace(question, "X").replace("q-9-9", "X") for each in (answer, absent, wrong)}
                assert texts == {f"no question 'X' that {by} may answer; watch the session for its questions"}

        async with open_control(agent, **options) as control:
            for other in ("alice", "carol"):
                before = await control.send("s", "hello", by=other)
                await control.wait(before.run_id, drained=True)
                for guest in ("bob", "carol"):
                    await control.share("s", with_=guest)
            sent = await control.send("s", "ask", by="bob")
            question = (await question_of(control, sent.run_id)).question_id
            if place != "memory":
                await control.stop(run=sent.run_id)
                await anyio.sleep(10)
                assert control._registry.questions == {}
            if place != "second control":
                await judged(control)
            if place == "memory" and not may:
                assert await asked_states(control) == ["open"]
                assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
        if place == "second control":
            async with open_control(agent, **options) as again:
                await judged(again)

    seeded(main, range(2))


def test_the_owner_answers_for_a_child() -> None:
    """A child's question can be answered by the principals who may answer its parent's, and by nobody else."""

    async def parent(run: Run, message: Message) -> str:
        return (await run.delegate("child", "ask")).text

    async def main() -> None:
        async with open_control(parent, agents={"child": asks}) as control:
            sent = await control.send("s", "hello", by="alice")
            child = (await told(control, sent.run_id, EventKind.CHILD)).data.child  # type: ignore[union-attr]
            question = (await question_of(control, child)).question_id
            with raises(Unknown, "no question"):
                await control.answer(question, True, by="mallory")
            info = await control.answer(question, True, by="alice")
            assert (info.run_id, info.session) == (child, f"run:{child}")
            assert (await control.wait(sent.run_id)).text == "answer: True"

    seeded(main)
