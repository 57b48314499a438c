"""Questions to people: who may answer, that the first answer stands, and that a fall makes every open one void."""

import asyncio

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Ending,
    MemoryStore,
    Message,
    QuestionClosed,
    QuestionInfo,
    QuestionState,
    Refused,
    Run,
    open_control,
    tool,
)
from interlock.core.events import QuestionData
from interlock.core.names import EventKind
from interlock.runtime import approvals

from .asking import ANSWERED, EXPIRED, MANY, OPEN, VOID, asked_states, asks, guarded, question_of, tried
from .scene import at_once, idles, kinds, log_of, raises, seeded, swallowed, told
from .test_gate import states, valid_for_a_model

# Asking and answering


@pytest.mark.parametrize(
    ("choices", "answer"), [(None, True), (None, False), (["blue", "green"], "green")], ids=["yes", "no", "choice"]
)
def test_an_answer_is_what_ask_returns(choices: list[str] | None, answer: bool | str) -> None:
    """The agent gets the answer as it was given; watchers are told, the answerer sees the question as it stands."""

    async def agent(run: Run, message: Message) -> str:
        given = await (run.ask("Which?") if choices is None else run.ask("Which?", choices=choices))
        return repr(given)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", by="alice")
            question = await question_of(control, sent.run_id)
            offered = None if choices is None else tuple(choices)
            assert (question.text, question.choices, question.tool) == ("Which?", offered, None)
            info = await control.answer(question.question_id, answer, by="alice")
            assert info == QuestionInfo(
                id=question.question_id,
                run_id=sent.run_id,
                session="s",
                text="Which?",
                state=ANSWERED,
                choices=offered,
                answer=answer,
                by="alice",
            )
            assert (await control.wait(sent.run_id)).text == repr(answer)
            last = [event.data for event in await log_of(control, "s") if isinstance(event.data, QuestionData)][-1]
            assert (last.state, last.answer, last.by) == (ANSWERED, answer, "alice")
            receipt = await control.receipt(sent.run_id)
            assert (receipt.questions, receipt.refused) == (0, {})

    seeded(main)


def test_a_question_closes_the_open_block() -> None:
    """Deltas said before a question become a block that stands before it."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("About to ")
        await run.say("deploy.")
        return str(await run.ask("Deploy?"))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await control.answer((await question_of(control, sent.run_id)).question_id, True)
            assert (await control.wait(sent.run_id)).text == "About to deploy.\n\nTrue"
            told_of = [kind for kind in kinds(await log_of(control, "s"), sent.run_id) if kind != "delta"]
            assert told_of == ["message", "started", "block", "question", "question", "block", "ended"]

    seeded(main, range(3))


WRONG_ANSWERS: dict[str, tuple[list[str] | None, object, str]] = {
    "text for yes": (None, "yes", "yes-or-no question: answer True or False, not 'yes'"),
    "one for yes": (None, 1, "answer True or False, not 1"),
    "nothing": (None, None, "answer True or False, not None"),
    "no choice of these": (["blue", "green"], "red", "one of 'blue', 'green', not 'red'"),
    "yes for a choice": (["blue", "green"], True, "one of 'blue', 'green', not True"),
    "a list": (["blue", "green"], ["blue"], "one of 'blue', 'green', not"),
    "a case apart": (["blue", "green"], "Blue", "one of 'blue', 'green', not 'Blue'"),
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_a_wrong_answer_leaves_the_question_open(wrong: str) -> None:
    """A wrong answer is refused with the remedy; nobody is told of it, and the right one is taken afterwards."""
    choices, answer, words = WRONG_ANSWERS[wrong]
    right: bool | str = True if choices is None else "blue"

    async def agent(run: Run, message: Message) -> str:
        return str(await (run.ask("Which?") if choices is None else run.ask("Which?", choices=choices)))

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            question = await question_of(control, sent.run_id)
            with raises(BadInput, words):
                await control.answer(question.question_id, answer)  # type: ignore[arg-type]
            assert await asked_states(control) == ["open"]
            while (kept := await store.question(question.question_id)) is None:
                await asyncio.sleep(0)
            assert (kept.state, kept.answer, kept.by) == (OPEN, None, None)
            await control.answer(question.question_id, right)
            assert (await control.wait(sent.run_id)).text == str(right)

    seeded(main, range(2))


@pytest.mark.parametrize("timeout", [5.0, None], ids=["own", "default"])
def test_no_answer_in_time_is_a_no(timeout: float | None) -> None:
    """A question has its own time, half an hour by default; then it is expired, and the run goes on with False."""

    async def agent(run: Run, message: Message) -> str:
        return str(await run.ask("Deploy?", timeout=timeout))

    async def main() -> None:
        store, loop = MemoryStore(), asyncio.get_running_loop()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            question = await question_of(control, sent.run_id)
            before = loop.time()
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "False")
            assert loop.time() - before == pytest.approx(timeout or 1800, abs=0.1)
            assert await asked_states(control) == ["open", "expired"]
            with raises(QuestionClosed, "has expired; the run went on without an answer"):
                await control.answer(question.question_id, True)
            kept = await store.question(question.question_id)
            assert kept is not None and kept.state is EXPIRED
            assert (await control.receipt(sent.run_id)).questions == 0

    seeded(main, range(4), limit_seconds=4000)


def test_questions_of_one_run_are_apart() -> None:
    """Several questions may be open at once; each has its own answer, in whatever order they come."""

    async def agent(run: Run, message: Message) -> str:
        given = await asyncio.gather(*(run.ask(f"{name}?", choices=["x", name]) for name in "abc"))
        return " ".join(map(str, given))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            questions = [await question_of(control, sent.run_id, number) for number in range(3)]
            for question in sorted(questions, key=lambda each: each.text, reverse=True):
                await control.answer(question.question_id, question.text[0])
            assert (await control.wait(sent.run_id)).text == "a b c"

    seeded(main)


# Closed is closed


def test_two_people_answer() -> None:
    """The first of an Allow and a Deny at once stands, for the agent too; the other person is told which (race 56)."""

    async def main() -> None:
        for first, second in (((True, "alice"), (False, "bob")), ((False, "bob"), (True, "alice"))):
            store = MemoryStore()
            async with open_control(asks, store=store, admins=["bob"]) as control:
                sent = await control.send("s", "hello", by="alice")
                question = (await question_of(control, sent.run_id)).question_id
                won, lost = await at_once(
                    control.answer(question, first[0], by=first[1]),
                    tried(control.answer(question, second[0], by=second[1])),
                )
                assert (won.state, won.answer, won.by) == (ANSWERED, *first)
                words = f"question {question} was answered before, {first[0]} by {first[1]}; that answer stands"
                assert isinstance(lost, QuestionClosed) and str(lost) == words
                assert (await control.wait(sent.run_id)).text == f"answer: {first[0]}"
                kept = await store.question(question)
                assert kept is not None and (kept.state, kept.answer, kept.by) == (ANSWERED, *first)
                assert await asked_states(control) == ["open", "answered"]

    seeded(main, MANY)


def test_a_crowd_answers() -> None:
    """Exactly one of many answers in any order stands, and everyone else is told that very one (race 56)."""

    async def main() -> None:
        people = [f"p{number}" for number in range(8)]
        async with open_control(asks, admins=people, store=MemoryStore(latency_seconds=0.2)) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            answers = [tried(control.answer(question, n % 2 == 0, by=by)) for n, by in enumerate(people)]
            results = await asyncio.gather(*answers)
            [won] = [result for result in results if isinstance(result, QuestionInfo)]
            told_others = {str(result) for result in results if isinstance(result, QuestionClosed)}
            assert told_others == {
                f"question {question} was answered before, {won.answer} by {won.by}; that answer stands"
            }
            assert sum(isinstance(result, QuestionClosed) for result in results) == 7
            assert (await control.wait(sent.run_id)).text == f"answer: {won.answer}"

    seeded(main)


@pytest.mark.parametrize("when", ["at once", "after it", "ended", "forgotten", "second control"])
def test_the_same_answer_again(when: str) -> None:
    """The same answer by the same person is accepted at any time; another person or answer is told what stands."""

    async def agent(run: Run, message: Message) -> None:
        await run.ask("Deploy?")
        if when in ("at once", "after it"):
            await anyio.sleep_forever()

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, admins=["bob"]) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id

            async def once_more(asked: Control) -> None:
                assert await asked.answer(question, True, by="alice") == info
                for answer, by in ((True, "bob"), (False, "bob"), (False, "alice")):
                    with raises(QuestionClosed, "was answered before, True by alice; that answer stands"):
                        await asked.answer(question, answer, by=by)

            if when == "at once":
                info, same = await at_once(*(control.answer(question, True, by="alice") for _ in range(2)))
                assert same == info
            else:
                info = await control.answer(question, True, by="alice")
            if when in ("ended", "forgotten", "second control"):
                await control.wait(sent.run_id, drained=True)
            if when == "forgotten":
                await anyio.sleep(10)
                assert control._registry.questions == {}
            if when != "second control":
                await once_more(control)
            assert await asked_states(control) == ["open", "answered"]
        if when == "second control":
            async with open_control(idles, store=store, admins=["bob"]) as again:
                await once_more(again)

    seeded(main, range(4))


@pytest.mark.parametrize("place", ["memory", "store", "second control"])
def test_an_expired_question_says_so(place: str) -> None:
    """An answer to an expired question is told that it came too late, also when the run is long gone."""

    async def agent(run: Run, message: Message) -> None:
        await run.ask("Deploy?", timeout=1)
        if place == "memory":
            await anyio.sleep_forever()

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(20)
            assert (question in control._registry.questions) == (place == "memory")
            if place != "second control":
                with raises(QuestionClosed, "has expired; the run went on without an answer"):
                    await control.answer(question, True, by="alice")
        if place == "second control":
            async with open_control(idles, store=store) as again:
                with raises(QuestionClosed, "has expired; the run went on without an answer"):
                    await again.answer(question, True, by="alice")

    seeded(main, range(3))


# A run that goes on


def test_a_run_that_goes_on_keeps_its_question() -> None:
    """A question that a task asks beside the work stays open while the run takes its steps, and can be answered."""
    ran: list[str] = []

    async def works(name: str) -> None:
        ran.append(name)

    async def agent(run: Run, message: Message) -> str:
        asking = asyncio.create_task(run.ask("Deploy?"))
        for step in ("one", "two"):
            await run.post(step)
            await run.call(works, name=step)
            await anyio.sleep(1)
        async with run.phase("waiting"):
            return f"answer: {await asking}"

    async def main() -> None:
        ran.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(5)
            assert ran == ["one", "two"]
            assert (await control.answer(question, True)).state is ANSWERED
            assert (await control.wait(sent.run_id)).text == "one\n\ntwo\n\nanswer: True"

    seeded(main)


@pytest.mark.parametrize("answered", [True, False])
def test_a_run_that_gave_up_waiting_keeps_its_question(answered: bool) -> None:
    """An agent's own timeout around `ask` ends the waiting, not the question: it stays until answered or the end."""

    async def agent(run: Run, message: Message) -> str:
        given = None
        with anyio.move_on_after(1):
            given = await run.ask("Deploy?")
        assert given is None
        await run.post("went on")
        await anyio.sleep(5)
        return "done"

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(3)
            kept = await store.question(question)
            assert kept is not None and kept.state is OPEN
            if answered:
                assert (await control.answer(question, True, by="alice")).state is ANSWERED
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "went on\n\ndone"), outcome.error
            assert (await control.receipt(sent.run_id)).questions == (0 if answered else 1)
            kept = await store.question(question)
            assert kept is not None and kept.state is (ANSWERED if answered else QuestionState.VOID)

    seeded(main)


# Limits while asking


@pytest.mark.parametrize("what", ["question", "tool"])
def test_the_deadline_goes_on_while_asking(what: str) -> None:
    """A deadline met while a question is open is told in phase `approval`; the question is void, the tool skipped."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("provider"):
            if what == "question":
                await run.ask("Deploy?")
            else:
                await run.call(guarded(ran))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent) as control:
            before = loop.time()
            sent = await control.send("s", "hello", deadline=5)
            question = (await question_of(control, sent.run_id)).question_id
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "approval", 5000)
            assert loop.time() - before == pytest.approx(5, abs=0.1)
            with raises(QuestionClosed, VOID):
                await control.answer(question, True)
            ended = (await told(control, sent.run_id, EventKind.ENDED)).data
            assert ended.void == (question,)  # type: ignore[union-attr]
        assert ran == []

    seeded(main)


def test_after_the_answer_a_limit_is_told_in_the_run_s_own_phase() -> None:
    """A limit that passes when no question is open any more is told in the phase the run is in."""

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("provider"):
            await run.ask("Deploy?")
            await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=5)
            await control.answer((await question_of(control, sent.run_id)).question_id, True)
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase) == (Ending.TIMED_OUT, "provider")

    seeded(main)


def test_an_answer_and_the_deadline_in_one_instant() -> None:
    """An Allow in the very instant of the deadline permits nothing once the deadline has passed (race 52)."""
    ran: list[bool] = []

    async def main() -> None:
        ran.clear()

        async def agent(run: Run, message: Message) -> None:
            @tool(approval="ask")
            async def acts() -> None:
                ran.append(run.current)

            await run.call(acts)

        store = MemoryStore(latency_seconds=0.2)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", deadline=5)
            question = (await question_of(control, sent.run_id)).question_id
            [limit] = control._registry.runs[sent.run_id].limits.armed
            await anyio.sleep(limit.at - asyncio.get_running_loop().time())
            answer = await tried(control.answer(question, True))
            outcome = await control.wait(sent.run_id)
            assert outcome.ending is Ending.TIMED_OUT
            assert isinstance(answer, QuestionClosed) and VOID in str(answer)
        assert ran == []

    seeded(main, MANY)


@pytest.mark.parametrize("closed_by", ["answer", "its own time"])
def test_the_idle_limit_rests_while_asking(closed_by: str) -> None:
    """Silence is not counted while a question is open, and is counted from its closing on."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.gather(run.ask("a", timeout=30), run.ask("b", timeout=40))
        await anyio.sleep_forever()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_control(agent, idle_limit=3) as control:
            sent = await control.send("s", "hello")
            questions = [(await question_of(control, sent.run_id, number)) for number in range(2)]
            await anyio.sleep(10)
            assert (await control.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
            if closed_by == "answer":
                await control.answer(questions[0].question_id, True)
                await anyio.sleep(10)  # a second question is still open
                assert (await control.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
                await control.answer(questions[1].question_id, True)
            else:
                await anyio.sleep(30.5)
            closed = loop.time()
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "idle", 3000)
            assert 2 <= loop.time() - closed <= 3.1

    seeded(main, range(4))


# Answerers that go away


def test_an_answerer_that_vanishes_loses_nothing() -> None:
    """An answerer that vanishes before being told has answered; one cancelled before the answer began has not."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.3)
        async with open_control(asks, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            early = asyncio.create_task(control.answer(question, False, by="alice"))
            early.cancel()
            assert isinstance(await swallowed(early), asyncio.CancelledError)
            await anyio.sleep(1)
            assert await asked_states(control) == ["open"]
            with anyio.move_on_after(0.1):
                await control.answer(question, True, by="alice")
                raise AssertionError("it was told before the store had it")
            assert (await control.wait(sent.run_id)).text == "answer: True"
            kept = await store.question(question)
            assert kept is not None and (kept.state, kept.answer, kept.by) == (ANSWERED, True, "alice")

    seeded(main)


def test_one_of_two_answerers_vanishes() -> None:
    """Either of two answerers may go away, also the one who waits: the first answer stands and all are told."""

    async def main() -> None:
        for vanishing in (0, 1):
            async with open_control(asks, store=MemoryStore(latency_seconds=0.4), admins=["bob"]) as control:
                sent = await control.send("s", "hello", by="alice")
                question = (await question_of(control, sent.run_id)).question_id
                await anyio.sleep(1)
                first = asyncio.create_task(control.answer(question, True, by="alice"))
                await anyio.sleep(0.1)
                second = asyncio.create_task(tried(control.answer(question, False, by="bob")))
                await anyio.sleep(0.1)
                (first, second)[vanishing].cancel()
                if vanishing == 0:
                    assert "True by alice" in str(await second)
                else:
                    assert (await first).answer is True
                await asyncio.wait([first, second])
                assert (await control.wait(sent.run_id)).text == "answer: True"

    seeded(main)


# How many


def test_a_run_may_ask_so_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question beyond the run's bound is refused with the remedy; if it is for a tool, the body does not begin."""
    monkeypatch.setattr(approvals, "QUESTIONS", 3)
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        for _ in range(3):
            assert await run.ask("Deploy?", timeout=1) is False
        with raises(Refused, "has asked 3 questions, the most it may; end it and begin another"):
            await run.ask("Deploy?")
        with raises(Refused, "has asked 3 questions"):
            await run.call(guarded(ran))
        return "went on"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "went on", outcome.error
            assert await asked_states(control) == ["open", "expired"] * 3
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("deploy", "failed")]
        assert ran == []

    seeded(main, range(2))


def test_questions_leave_memory_with_their_run() -> None:
    """A run that is over and drained leaves no question, and no timer or task of a question, in memory."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.gather(*(swallowed(run.ask(f"{n}?")) for n in range(20)))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await question_of(control, sent.run_id, 19)
            timers = [question.timer for question in control._registry.questions.values()]
            assert len(timers) == 20
            await control.stop(session="s")
            await anyio.sleep(10)
            assert (control._registry.questions, control._registry.runs) == ({}, {})
            assert all(timer is not None and timer.cancelled() for timer in timers)
            assert [task for task in control._crew._tasks if task.get_name().startswith("answer")] == []

    seeded(main, range(3))
