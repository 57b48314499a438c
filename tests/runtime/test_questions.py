"""Questions to people: who may answer, that the first answer stands, and that a fall makes every open one void."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Denied,
    Ending,
    Event,
    InterlockError,
    MemoryStore,
    Message,
    QuestionClosed,
    QuestionInfo,
    QuestionState,
    Refused,
    Run,
    Settings,
    Stale,
    Unavailable,
    Unknown,
    open_control,
    tool,
)
from interlock.core.events import Asked
from interlock.core.names import Effect, EventKind
from interlock.core.outcome import Cause
from interlock.runtime import approvals

from .scene import at_once, idles, kinds, log_of, raises, seeded, started, swallowed, told
from .test_gate import states, valid_for_a_model

MANY = range(30)
VOID = "is void: its run is over, and nothing was done"
OPEN, ANSWERED, EXPIRED = QuestionState.OPEN, QuestionState.ANSWERED, QuestionState.EXPIRED


async def asks(run: Run, message: Message) -> str:
    """Ask, and say what came of it."""
    return f"answer: {await run.ask('Deploy?')}"


async def question_of(control: Control, run: str, number: int = 0) -> Asked:
    """Wait for a question of a run, the first unless another is wanted."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if isinstance(event.data, Asked) and event.data.state is OPEN:
                if number == 0:
                    return event.data
                number -= 1
    raise AssertionError(f"run {run} ended without asking")


async def tried(work: Awaitable[Any]) -> Any:
    """What a call returns, or the error it is refused with."""
    try:
        return await work
    except InterlockError as error:
        return error


async def asked_states(control: Control, session: str = "s") -> list[str]:
    """What watchers of a session were told of its questions."""
    return [event.data.state.value for event in await log_of(control, session) if isinstance(event.data, Asked)]


def guarded(ran: list[str]) -> Callable[..., Coroutine[Any, Any, str]]:
    """A tool that must be allowed first."""

    @tool(approval="ask")
    async def deploy(target: str = "production") -> str:
        ran.append(target)
        return f"deployed to {target}"

    return deploy


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
            last = [event.data for event in await log_of(control, "s") if isinstance(event.data, Asked)][-1]
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
    """An answer that is none is refused with the remedy; nobody is told, and the right one is taken afterwards."""
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
            kept = await store.question(question.question_id)
            assert kept is not None and (kept.state, kept.answer, kept.by) == (OPEN, None, None)
            await control.answer(question.question_id, right)
            assert (await control.wait(sent.run_id)).text == str(right)

    seeded(main, range(2))


@pytest.mark.parametrize("timeout", [5.0, None], ids=["own", "default"])
def test_no_answer_in_time_is_a_no(timeout: float | None) -> None:
    """A question has its own time, half an hour unless it says so; then it is expired, the run goes on with False."""

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


# Void at t0, on every path


class Play:
    """A run with an open question that nobody waits for but a task beside it, and the ways in which it can end."""

    def __init__(self, ran: list[str]) -> None:
        self.leave = asyncio.Event()
        self.store = MemoryStore()
        self.heard: list[BaseException | None] = []
        self._ran = ran
        self.control: Control
        self.run = self.top = self.question = ""

    async def agent(self, run: Run, message: Message) -> str | None:
        """Ask for a tool in a task of its own; end when told to."""
        if message.text == "next":
            return "next"
        if message.text == "delegate":
            return (await run.delegate("child", "ask")).text

        async def wants() -> None:
            self.heard.append(await swallowed(run.call(guarded(self._ran))))

        asking = asyncio.create_task(wants())
        try:
            await self.leave.wait()
            if message.text == "fail":
                raise ValueError("it broke")
            return "done"
        finally:
            assert asking is not None

    async def begin(self, control: Control, end: str) -> None:
        """Bring a run to where its question is open."""
        self.control = control
        texts = {"failure": "fail", "parent ended": "delegate"}
        sent = await control.send("s", texts.get(end, "hello"), by="alice", deadline=5 if end == "deadline" else None)
        self.run = self.top = sent.run_id
        if end == "parent ended":
            self.run = (await told(control, sent.run_id, EventKind.CHILD)).data.child  # type: ignore[union-attr]
        self.question = (await question_of(control, self.run)).question_id

    async def end(self, how: str) -> None:
        """End the run."""
        control = self.control
        match how:
            case "stop session":
                await control.stop(session="s", by="alice")
            case "stop run":
                await control.stop(run=self.run, by="alice")
            case "parent ended":
                await control.stop(run=self.top, by="alice")
            case "takeover" | "rollback":
                strategy = "interrupt" if how == "takeover" else "rollback"
                await tried(control.send("s", "next", by="alice", strategy=strategy))
            case "reset":
                await tried(control.reset("s", by="alice"))
            case "deadline":
                await control.wait(self.run)
            case "completion" | "failure":
                self.leave.set()
                await control.wait(self.run)
            case "shutdown":
                await control.close()


ENDINGS = {
    "stop session": Ending.STOPPED,
    "stop run": Ending.STOPPED,
    "takeover": Ending.SUPERSEDED,
    "rollback": Ending.SUPERSEDED,
    "reset": Ending.STOPPED,
    "deadline": Ending.TIMED_OUT,
    "completion": Ending.COMPLETED,
    "failure": Ending.FAILED,
    "shutdown": Ending.SHUTDOWN,
    "parent ended": Ending.PARENT_ENDED,
}


@pytest.mark.parametrize("end", ENDINGS)
def test_every_ending_voids_the_question(end: str) -> None:
    """However a run ends, its open question is void on all surfaces, its tool is not run, and the end says so.

    Race 51: the terminal event names it, the receipt counts it, the store keeps it, an answer is told.
    """
    ran: list[str] = []

    async def main() -> None:
        ran.clear()
        play = Play(ran)
        async with open_control(play.agent, agents={"child": play.agent}, store=play.store) as control:
            await play.begin(control, end)
            session = control._registry.runs[play.run].session.id  # type: ignore[index]
            await play.end(end)
            with raises(QuestionClosed, VOID):
                await control.answer(play.question, True, by="alice")
            await control.wait(play.run, drained=True)
            log = [event for event in await log_of(control, session) if event.run_id == play.run]
            assert [event.data.state for event in log if isinstance(event.data, Asked)] == [OPEN]
            terminal = log[-1].data
            assert (terminal.outcome.ending, terminal.void) == (ENDINGS[end], (play.question,))  # type: ignore[union-attr]
            assert [(each.name, each.state) for each in terminal.tools] == [("deploy", "skipped")]  # type: ignore[union-attr]
            receipt = await control.receipt(play.run)
            assert receipt.questions == 1
            kept = await play.store.question(play.question)  # type: ignore[arg-type]
            assert kept is not None and (kept.state, kept.answer, kept.by) == (QuestionState.VOID, None, None)
            if end != "shutdown":
                await anyio.sleep(10)  # nothing of the run is in memory any more
                assert (control._registry.runs, control._registry.questions) == ({}, {})
                with raises(QuestionClosed, VOID):
                    await control.answer(play.question, True, by="alice")
        with raises(QuestionClosed, VOID):  # by a control that is closed
            await control.answer(play.question, True, by="alice")
        async with open_control(idles, store=play.store) as again:
            for answer in (True, False):
                with raises(QuestionClosed, VOID):
                    await again.answer(play.question, answer, by="alice")
        assert ran == []
        assert [type(error) for error in play.heard] == [Stale]

    seeded(main, range(4))


@pytest.mark.parametrize("end", sorted(set(ENDINGS) - {"reset"}))
def test_the_question_is_void_before_the_end_is_told(end: str) -> None:
    """The question goes with the fall itself: while the store has not answered, and nobody is told, it is void."""
    ran: list[str] = []

    async def main() -> None:
        ran.clear()
        play = Play(ran)
        async with open_control(play.agent, agents={"child": play.agent}, store=play.store) as control:
            await play.begin(control, end)
            if end == "deadline":
                await anyio.sleep(4.9)
            live = control._registry.runs[play.run]  # type: ignore[index]
            play.store.faults.stall = True
            ending = asyncio.create_task(play.end(end))
            await anyio.sleep(0.2)
            assert live.fallen and not live.ended.is_set()
            with raises(QuestionClosed, VOID):
                await control.answer(play.question, True, by="alice")
            play.store.resume()
            await ending
            await control.wait(play.run, drained=True)
            assert live.outcome is not None and live.outcome.ending is ENDINGS[end]
            kept = await play.store.question(play.question)  # type: ignore[arg-type]
            assert kept is not None and kept.state is QuestionState.VOID
        assert ran == []

    seeded(main, range(3))


def test_the_end_names_open_questions_only() -> None:
    """Of several questions the terminal event names the open ones in their order, and the receipt counts them."""

    async def agent(run: Run, message: Message) -> None:
        async def ask(name: str, timeout: float | None) -> None:
            await swallowed(run.ask(name, timeout=timeout))

        tasks = [
            asyncio.create_task(ask(name, 1 if name == "expires" else None)) for name in ("a", "expires", "b", "c")
        ]
        await asyncio.gather(*tasks)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            questions = [await question_of(control, sent.run_id, number) for number in range(4)]
            by_name = {question.text: question.question_id for question in questions}
            await anyio.sleep(2)
            await control.answer(by_name["b"], True)
            receipt = await control.stop(session="s")
            assert receipt.questions == 2
            ended = (await told(control, sent.run_id, EventKind.ENDED)).data
            assert ended.void == tuple(each.question_id for each in questions if each.text in "ac")  # type: ignore[union-attr]

    seeded(main)


# In the same tick


ORDERS = {"answer first": False, "end first": True}
TICK_ENDS: dict[str, Callable[[Control, str], Awaitable[Any]]] = {
    "stop session": lambda control, run: control.stop(session="s"),
    "stop run": lambda control, run: control.stop(run=run),
    "takeover": lambda control, run: control.send("s", "next"),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("end", TICK_ENDS)
def test_allow_in_the_same_tick_as_the_end(end: str, order: str) -> None:
    """Allow and the end in one tick, in either order: the end wins, nothing runs, the answerer is told (race 52).

    With a store that takes any time at all an answer is never in before the end.
    """
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text != "next":
            await run.call(guarded(ran))

    async def main() -> None:
        ran.clear()
        store = MemoryStore(latency_seconds=0.2)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            question = await question_of(control, sent.run_id)
            await anyio.sleep(1)  # nothing is on its way to the store
            calls = [
                tried(control.answer(question.question_id, True, by="alice")),
                TICK_ENDS[end](control, sent.run_id),
            ]
            results = await at_once(*(reversed(calls) if ORDERS[order] else calls))
            refusal = results[1 if ORDERS[order] else 0]
            assert isinstance(refusal, QuestionClosed) and VOID in str(refusal)
            await control.wait(sent.run_id, drained=True)
            kept = await store.question(question.question_id)
            assert kept is not None and kept.state is QuestionState.VOID
            assert await asked_states(control) == ["open"]
            receipt = await control.receipt(sent.run_id)
            assert receipt.questions == 1
            assert [(each.name, each.state) for each in receipt.tools] == [("deploy", "skipped")]
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("deploy", "skipped")]
        assert ran == []

    seeded(main, MANY)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("end", TICK_ENDS)
def test_allow_and_the_end_by_any_schedule(end: str, order: str) -> None:
    """With a store that is as fast as the tick either may be first; who is told void sees nothing done (race 52).

    No body begins once its run has fallen, and what everyone is told fits what was done.
    """
    began: list[bool] = []
    won: set[str] = set()

    async def agent(run: Run, message: Message) -> None:
        @tool(approval="ask")
        async def acts() -> None:
            began.append(run.current)

        if message.text != "next":
            await run.call(acts)

    async def main() -> None:
        for pause in (0, 1, 2, 3, 5):
            began.clear()
            store = MemoryStore()
            async with open_control(agent, store=store) as control:
                sent = await control.send("s", "hello", by="alice")
                question = await question_of(control, sent.run_id)

                async def ends(run: str = sent.run_id, ticks: int = pause) -> None:
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    await TICK_ENDS[end](control, run)

                calls = [tried(control.answer(question.question_id, True, by="alice")), ends()]
                results = await at_once(*(reversed(calls) if ORDERS[order] else calls))
                answer = results[1 if ORDERS[order] else 0]
                outcome = await control.wait(sent.run_id, drained=True)
                kept = await store.question(question.question_id)
                assert kept is not None
                assert all(began), "a body began after its run fell"
                if isinstance(answer, QuestionClosed):
                    assert VOID in str(answer)
                    assert (began, kept.state) == ([], QuestionState.VOID)
                    won.add("end")
                else:
                    assert (answer.state, kept.state) == (ANSWERED, ANSWERED)
                    won.add("answer")
                if outcome.ending is Ending.COMPLETED:
                    assert began == [True]
                on_record = [row.state.value for row in await store.tools(sent.run_id)]
                assert on_record in ([["skipped"]] if not began else [["finished"], ["interrupted"]])
                valid_for_a_model(await control.history("s"))

    seeded(main, range(15))
    assert won == {"end", "answer"}


class Falls:
    """A subscriber that ends a run in the very step in which its answer is told."""

    def __init__(self, control: Control, run: str) -> None:
        self._control, self._run = control, run

    def put(self, event: Event) -> None:
        """End it."""
        if isinstance(event.data, Asked) and event.data.state is ANSWERED:
            live = self._control._registry.runs[self._run]  # type: ignore[index]
            self._control._endings.end(live, Cause(ending=Ending.STOPPED))

    def drop(self, run_id: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("beside", [False, True], ids=["the agent", "a task beside it"])
def test_the_gate_looks_again_after_the_answer(beside: bool) -> None:
    """An accepted Allow permits nothing once the run has fallen, however shortly after (race 54)."""
    ran: list[str] = []
    heard: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> None:
        async def wants() -> None:
            heard.append(await swallowed(run.call(guarded(ran))))

        if beside:
            task = asyncio.create_task(wants())
            await swallowed(anyio.sleep_forever())
            await task
        else:
            await wants()

    async def main() -> None:
        ran.clear()
        heard.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            question = await question_of(control, sent.run_id)
            control.feed.subscribe("s", Falls(control, sent.run_id))  # type: ignore[arg-type]
            assert (await control.answer(question.question_id, True)).state is ANSWERED
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.STOPPED
            receipt = await control.receipt(sent.run_id)
            assert [(each.name, each.state) for each in receipt.tools] == [("deploy", "skipped")]
            assert receipt.questions == 0  # it was answered
            if beside:
                assert receipt.refused[Effect.QUESTION] == 1
        assert ran == []
        assert [type(error) for error in heard] == [Stale if beside else asyncio.CancelledError]

    seeded(main)


def test_a_closure_that_outlives_its_run_spawns_nothing() -> None:
    """What a run left behind with a question open, or between answer and act, does nothing after the end (race 54)."""
    ran: list[str] = []
    errors: list[BaseException | None] = []

    async def main() -> None:
        ran.clear()
        errors.clear()
        go, tasks = asyncio.Event(), []

        async def agent(run: Run, message: Message) -> str:
            async def closure() -> None:
                if await run.ask("Deploy?"):
                    await go.wait()
                    errors.append(await swallowed(run.call(guarded(ran))))
                    errors.append(await swallowed(run.post("deployed")))
                    errors.append(await swallowed(run.ask("And now?")))

            tasks.append(asyncio.create_task(closure()))
            await anyio.sleep(1)
            return "went on"

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            question = await question_of(control, sent.run_id)
            await control.answer(question.question_id, True)
            assert (await control.wait(sent.run_id, drained=True)).text == "went on"
            go.set()
            await asyncio.gather(*tasks)
            assert kinds(await log_of(control, "s"), sent.run_id)[-1] == "ended"
            assert await asked_states(control) == ["open", "answered"]
        assert ran == []
        assert [type(error) for error in errors] == [Stale] * 3

    seeded(main)


@pytest.mark.parametrize("end", TICK_ENDS)
def test_a_question_after_the_fall_is_refused(end: str) -> None:
    """A question that is put after the fall is never registered: Stale, counted, nothing told or kept (race 53)."""
    errors: list[BaseException | None] = []
    ran: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text == "next":
            return
        await swallowed(anyio.sleep_forever())
        errors.append(await swallowed(run.ask("Deploy?")))
        errors.append(await swallowed(run.ask("Where?", choices=["here", "there"], timeout=1)))
        errors.append(await swallowed(run.call(guarded(ran))))

    async def main() -> None:
        errors.clear()
        store = MemoryStore()
        async with open_control(agent, store=store, approval="ask") as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            live = control._registry.runs[sent.run_id]
            await TICK_ENDS[end](control, sent.run_id)
            await control.wait(sent.run_id, drained=True)
            with raises(Stale, "question refused"):  # by its own check, whoever calls
                control._approvals.open(live, "Deploy?", None, None)
            receipt = live.fall.receipt() if live.fall is not None else None
            assert receipt is not None
            assert receipt.refused == {Effect.QUESTION: 3, Effect.TOOL: 1, Effect.FINAL: 1}
            assert receipt.questions == 0
            assert await asked_states(control) == []
            assert (store._questions, control._registry.questions) == ({}, {})
        assert [type(error) for error in errors] == [Stale] * 3
        assert ran == []

    seeded(main)


def test_a_question_in_the_same_tick_as_the_stop() -> None:
    """Asking and stopping in one tick: the question is refused, or was open and is void; never left open (race 53)."""
    seen: set[str] = set()

    async def main(ticks: int) -> None:
        go = asyncio.Event()
        heard: list[BaseException | None] = []

        async def agent(run: Run, message: Message) -> None:
            async def asking() -> None:
                await go.wait()
                heard.append(await swallowed(run.ask("Deploy?")))

            task = asyncio.create_task(asking())
            await swallowed(anyio.sleep_forever())
            await task

        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            go.set()
            for _ in range(ticks):
                await asyncio.sleep(0)
            receipt = await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert [type(error) for error in heard] == [Stale]
            assert [row.state for row in store._questions.values()] == [QuestionState.VOID] * receipt.questions
            ended = (await told(control, sent.run_id, EventKind.ENDED)).data
            assert len(ended.void) == receipt.questions  # type: ignore[union-attr]
            seen.add("void" if receipt.questions else "refused")

    for ticks in range(6):
        seeded(functools.partial(main, ticks))
    assert seen == {"void", "refused"}


# Closed is closed


def test_two_people_answer() -> None:
    """Of an Allow and a Deny at once the first stands, for the agent too, and the other is told which (race 56)."""

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
    """Of many answers in any order exactly one stands; everyone else is told that very one (race 56)."""

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
    """The same answer by the same person is fine at any time; by another, or another answer, is told what stands."""

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
    """A question asked beside the work stays open while the run takes step after step, and is answered for it."""
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


# Tools that must be allowed


POLICIES: dict[str, tuple[Any, str | None, bool]] = {  # what the server says, what the tool says, whether it is asked
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


@pytest.mark.parametrize("policy", POLICIES)
def test_which_tools_are_asked_for(policy: str) -> None:
    """What the operator says beats what a tool says; an allowed call is asked for once and runs once."""
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
    """A batch asks for each call; one that is denied does not keep the others, and each has one result."""
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
    """A call the agent gives up while nobody has allowed it is skipped; its question is void, and the run goes on."""
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
            assert (await control.receipt(sent.run_id)).questions == 0  # it was void before the end
            kept = await store.question(question)
            assert kept is not None and kept.state is QuestionState.VOID
        assert ran == []

    seeded(main)


def test_a_void_question_of_a_run_that_goes_on_is_not_told_as_its_end() -> None:
    """Whoever answers a call that was given up is told that; the run is not over, and the text does not say so."""
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
    """An agent's own timeout and an Allow at once: the body begins with an accepted answer or not at all (race 52)."""
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
            begun = control._registry.runs[sent.run_id].touched
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


# Who may answer


PEOPLE = {
    "owner": ("alice", True),
    "principal": ("bob", True),
    "admin": ("root", True),
    "the embedder": ("local", True),
    "another in the session": ("carol", False),
    "stranger": ("mallory", False),
    "reader": ("rita", False),
}


@pytest.mark.parametrize("place", ["memory", "store", "second control"])
@pytest.mark.parametrize("who", PEOPLE)
def test_who_may_answer(who: str, place: str) -> None:
    """The owner of the session, who began the run, and an admin may answer; for others there is no such question."""
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
    """A child's question is answered by whoever may answer its parent's, and by nobody else."""

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
    """Once nothing is asked any more the phase is the one the run is in."""

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
    """An Allow in the very instant of the deadline permits nothing once that has passed (race 52)."""
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
            [limit] = control._registry.runs[sent.run_id].limits
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
                await anyio.sleep(10)  # one is still open
                assert (await control.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
                await control.answer(questions[1].question_id, True)
            else:
                await anyio.sleep(30.5)
            closed = loop.time()
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "idle", 3000)
            assert 2 <= loop.time() - closed <= 3.1

    seeded(main, range(4))


# A store in trouble


@pytest.mark.parametrize("fault", ["stall", "fail"])
def test_an_answer_that_cannot_be_kept(fault: str) -> None:
    """Until the store has it an answer does not count: the answerer is told, the question stays open, nothing runs."""
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
    """Where the store took the answer and its reply got lost, the answer stands, and is acted on once."""
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
    """Whoever waits behind an answer that the store refuses is asked in turn: the first that is in stands (race 56)."""

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
    """Asking does not wait for the store; the question is open here, and the answer is what must be kept."""

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
    """An answer that came before the question's time was up counts if the store takes it; if not, it is expired."""

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
    """What became of a question is the same story when its run is gone, whatever the store did in between."""

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
    """Where only the store knows what became of a question and cannot say, that is what the answerer is told."""

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


# Answerers that go away


def test_an_answerer_that_vanishes_loses_nothing() -> None:
    """Whoever answered and went away before being told has answered; whoever had not begun has not."""

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
    """The one who waits behind the other may go away, or the other may: the first answer stands and all are told."""

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
    """Beyond its bound a question is refused with the remedy, also one for a tool, whose body then does not begin."""
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
    """A run that is over in every respect leaves no question, timer or task of one behind."""

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
