"""Questions while the store is in trouble: an answer that could not be kept permits nothing and is not lost."""

import asyncio

import anyio
import pytest

from interlock import MemoryStore, Message, QuestionClosed, QuestionState, Run, Unavailable, open_control

from .asking import ANSWERED, OPEN, VOID, asked_states, asks, guarded, question_of, tried
from .scene import raises, seeded


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_an_answer_that_cannot_be_kept(fault: str) -> None:
    """An answer does not count until it is stored: the answerer is told, the question stays open, nothing runs."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(guarded(ran)))

    async def main() -> None:
        ran.clear()
        store, loop = MemoryStore(), asyncio.get_running_loop()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(1)  # the question itself is in the store
            before = loop.time()
            for answer in (True, False):
                setattr(store.faults, fault, True)
                with raises(Unavailable, "the question is still open, answer it again"):
                    await control.answer(question, answer, by="alice")
                store.resume()
                await anyio.sleep(1)
                assert await asked_states(control) == ["open"]
                kept = await store.question(question)
                assert kept is not None and (kept.state, kept.answer, kept.by) == (OPEN, None, None)
                assert ran == []
            assert loop.time() - before <= 2 * (1 + 0.6)
            assert (await control.answer(question, True, by="alice")).state is ANSWERED
            assert (await control.wait(sent.run_id)).text == "deployed to production"
        assert ran == ["production"]

    seeded(main)


def test_an_answer_whose_reply_is_lost() -> None:
    """An answer that the store took, but whose reply was lost, stands and is acted on once."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(guarded(ran)))

    async def main() -> None:
        ran.clear()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            store.faults.lose = True
            info = await control.answer(question, True, by="alice")
            store.resume()
            assert (info.state, info.answer) == (ANSWERED, True)
            assert (await control.wait(sent.run_id)).text == "deployed to production"
            with raises(QuestionClosed, "was answered before, True by alice"):
                await control.answer(question, False, by="alice")
        assert ran == ["production"]

    seeded(main)


def test_a_second_answer_while_the_first_cannot_be_kept() -> None:
    """A second answer gets its turn when the store refuses the first: the first that is stored stands (race 56)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(asks, store=store, admins=["bob"]) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            store.faults.stall = True
            first = asyncio.create_task(tried(control.answer(question, True, by="alice")))
            await anyio.sleep(0.1)
            second = asyncio.create_task(tried(control.answer(question, False, by="bob")))
            await anyio.sleep(0.5)  # the first has run out of time
            store.resume()
            assert isinstance(await first, Unavailable)
            won = await second
            assert (won.state, won.answer, won.by) == (ANSWERED, False, "bob")
            assert (await control.wait(sent.run_id)).text == "answer: False"

    seeded(main)


@pytest.mark.parametrize("fault", ["stall", "fail", "lose"])
def test_a_stop_while_an_answer_is_being_kept(fault: str) -> None:
    """A stop does not wait for an answer that is on its way: the question is void at once, and stays void (race 52)."""
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        await run.call(guarded(ran))

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.3)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(1)  # the question itself is in the store
            setattr(store.faults, fault, True)
            answering = asyncio.create_task(tried(control.answer(question, True, by="alice")))
            await anyio.sleep(0.1)
            receipt = await control.stop(session="s", by="alice")
            assert (receipt.aborted, receipt.questions) == (True, 1)
            refusal = await answering
            assert isinstance(refusal, QuestionClosed) and VOID in str(refusal)
            store.resume()
            await anyio.sleep(10)
            assert control._registry.questions == {}
            kept = await store.question(question)
            assert kept is not None and (kept.state, kept.answer) == (QuestionState.VOID, None)
            with raises(QuestionClosed, VOID):
                await control.answer(question, True, by="alice")
        assert ran == []

    seeded(main)


@pytest.mark.parametrize("fault", ["stall", "fail", "lose"])
def test_a_question_put_while_the_store_is_in_trouble(fault: str) -> None:
    """A question opens without waiting for the store; only its answer must be stored."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            setattr(store.faults, fault, True)
            return f"answer: {await run.ask('Deploy?')}"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            await anyio.sleep(1)
            [question] = control._registry.questions
            store.resume()
            assert (await control.answer(question, True, by="alice")).state is ANSWERED
            assert (await control.wait(sent.run_id)).text == "answer: True"
            kept = await store.question(question)
            assert kept is not None and (kept.state, kept.answer, kept.by) == (ANSWERED, True, "alice")

    seeded(main, range(4))


@pytest.mark.parametrize("kept_in_time", [True, False])
def test_an_answer_given_in_time_does_not_expire(kept_in_time: bool) -> None:
    """An answer that came in time counts if the store takes it; if not, the question is expired."""

    async def agent(run: Run, message: Message) -> str:
        return f"answer: {await run.ask('Deploy?', timeout=1)}"

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            question = (await question_of(control, sent.run_id)).question_id
            await anyio.sleep(0.8)
            store.faults.stall = True
            answering = asyncio.create_task(tried(control.answer(question, True)))
            await anyio.sleep(0.4 if kept_in_time else 0.6)  # the question's own time has passed meanwhile
            store.resume()
            answer = await answering
            outcome = await control.wait(sent.run_id)
            if kept_in_time:
                assert (answer.state, outcome.text) == (ANSWERED, "answer: True")
            else:
                assert isinstance(answer, Unavailable)
                assert outcome.text == "answer: False"
                with raises(QuestionClosed, "has expired"):
                    await control.answer(question, True)

    seeded(main)


def test_an_expiry_that_the_store_refused_is_told_all_the_same() -> None:
    """An expired question is told as expired when its run is gone, also if the store refused the expiry at first."""

    async def main() -> None:
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            store.faults.fail = True
            answer = await run.ask("Deploy?", timeout=1)
            await anyio.sleep(0.1)
            store.resume()
            await run.post("went on")
            return f"answer: {answer}"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "went on\n\nanswer: False"
            [question] = control._registry.questions
            with raises(QuestionClosed, "has expired; the run went on without an answer"):
                await control.answer(question, True)
            await anyio.sleep(10)
            assert control._registry.questions == {}
            with raises(QuestionClosed, "has expired; the run went on without an answer"):
                await control.answer(question, True)

    seeded(main, range(2))


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_a_question_of_a_run_that_is_gone_needs_the_store(fault: str) -> None:
    """An answerer is told that the store cannot say, where only the store knows what became of a question."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(asks, store=store) as control:
            sent = await control.send("s", "hello")
            question = (await question_of(control, sent.run_id)).question_id
            await control.stop(run=sent.run_id)
            await anyio.sleep(10)
            setattr(store.faults, fault, True)
            with raises(Unavailable, "try again"):
                await control.answer(question, True)
            store.resume()
            with raises(QuestionClosed, VOID):
                await control.answer(question, True)

    seeded(main, range(2))
