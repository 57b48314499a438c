"""A fall makes every open question void in its own step, and an answer in the same tick permits nothing."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from interlock import (
    Control,
    Ending,
    Event,
    MemoryStore,
    Message,
    QuestionClosed,
    QuestionState,
    Run,
    Stale,
    open_control,
    tool,
)
from interlock.client.door import Sink
from interlock.core.events import QuestionData
from interlock.core.fence import Fence
from interlock.core.names import Effect, EventKind
from interlock.core.outcome import Cause

from .asking import ANSWERED, MANY, OPEN, VOID, asked_states, guarded, question_of, tried
from .scene import at_once, idles, kinds, log_of, raises, seeded, started, swallowed, told
from .test_gate import states, valid_for_a_model


class Play:
    """A run whose open question only a task beside it waits for, and the ways in which the run can end."""

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


ORDERS = {"answer first": False, "end first": True}


TICK_ENDS: dict[str, Callable[[Control, str], Awaitable[Any]]] = {
    "stop session": lambda control, run: control.stop(session="s"),
    "stop run": lambda control, run: control.stop(run=run),
    "takeover": lambda control, run: control.send("s", "next"),
}


class Falls(Sink):
    """A sink that ends a run in the very step in which its answer is told."""

    def __init__(self, control: Control, run: str) -> None:
        self._control, self._run = control, run

    def take(self, event: Event, source: Fence | None) -> bool:
        """End the run."""
        if isinstance(event.data, QuestionData) and event.data.state is ANSWERED:
            live = self._control._registry.runs[self._run]  # type: ignore[index]
            self._control._endings.end(live, Cause(ending=Ending.STOPPED))
        return True


@pytest.mark.parametrize("end", ENDINGS)
def test_every_ending_voids_the_question(end: str) -> None:
    """However a run ends, its open question is void on all surfaces, its tool is not run, and the end says so.

    Race 51: the terminal event names the question, the receipt counts it, the store keeps it, an answerer is told.
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
            assert [event.data.state for event in log if isinstance(event.data, QuestionData)] == [OPEN]
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
    """A question is void from the fall itself, while the store has not answered and nobody is told of the end."""
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
    """The terminal event names only the open ones of several questions, in their order; the receipt counts them."""

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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("end", TICK_ENDS)
def test_allow_in_the_same_tick_as_the_end(end: str, order: str) -> None:
    """The end wins over an Allow in one tick, in either order: nothing runs, and the answerer is told (race 52).

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
    """With a store as fast as the tick either may be first; an answerer told void sees nothing done (race 52).

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
        for pause in (0, 1, 2, 3, 5, 8):
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

    seeded(main, range(30))
    assert won == {"end", "answer"}


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
            control.feed.follow("s", Falls(control, sent.run_id))  # type: ignore[arg-type]
            assert (await control.answer(question.question_id, True)).state is ANSWERED
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.STOPPED
            receipt = await control.receipt(sent.run_id)
            assert [(each.name, each.state) for each in receipt.tools] == [("deploy", "skipped")]
            assert receipt.questions == 0  # the question was answered
            if beside:
                assert receipt.refused[Effect.QUESTION] == 1
        assert ran == []
        assert [type(error) for error in heard] == [Stale if beside else asyncio.CancelledError]

    seeded(main)


def test_a_closure_that_outlives_its_run_spawns_nothing() -> None:
    """A closure left with a question open, or between answer and act, does nothing after its run's end (race 54)."""
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
            with raises(Stale, "question refused"):  # `open` itself checks, whoever calls
                control._approvals.open(live, "Deploy?", None, None)
            assert live.fence.refused == {Effect.QUESTION: 3, Effect.TOOL: 1, Effect.FINAL: 1}
            receipt = await control.receipt(sent.run_id)
            # The receipt was complete before the last question.
            assert receipt.refused == {Effect.QUESTION: 2, Effect.TOOL: 1, Effect.FINAL: 1}
            assert receipt.questions == 0
            assert await asked_states(control) == []
            assert (store._questions, control._registry.questions) == ({}, {})
        assert [type(error) for error in errors] == [Stale] * 3
        assert ran == []

    seeded(main)


def test_a_question_in_the_same_tick_as_the_stop() -> None:
    """A question in the same tick as a stop is refused, or was open and is void; it is never left open (race 53)."""
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
