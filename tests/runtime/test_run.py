"""The run's verbs: what they do, and that after the end every one of them is refused and counted."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from interlock import BadInput, Ending, Message, Refused, Run, Settings, Stale, open_control
from interlock.agent.bounds import QUESTION_BYTES, REFUSALS
from interlock.core.names import Effect, EventKind

from .scene import QUICK, deaf, kinds, log_of, raises, seeded, started, swallowed, told

BOUND_SECONDS = 30.0


async def acts() -> str:
    """A tool that must never run after the end."""
    raise AssertionError("a tool body ran after the end of its run")


async def enter_phase(run: Run) -> None:
    """Enter a phase and leave it."""
    async with run.phase("provider"):
        raise AssertionError("a phase was entered after the end")


async def take_hold(run: Run) -> None:
    """Hold something and let it go."""
    async with run.hold("worktree"):
        raise AssertionError("something was held after the end")


VERBS: dict[str, tuple[Effect | None, Callable[[Run], Awaitable[object]]]] = {
    "say": (Effect.DELTA, lambda run: run.say("late")),
    "post": (Effect.BLOCK, lambda run: run.post("late")),
    "typing": (Effect.TYPING, lambda run: run.typing()),
    "progress": (Effect.PROGRESS, lambda run: run.progress("late", done=1, total=2)),
    "phase": (Effect.PHASE, enter_phase),
    "call": (Effect.TOOL, lambda run: run.call(acts)),
    "batch": (Effect.TOOL, lambda run: run.batch([(acts, {}), (acts, {})])),
    "parallel batch": (Effect.TOOL, lambda run: run.batch([(acts, {}), (acts, {})], parallel=True)),
    "empty batch": (Effect.TOOL, lambda run: run.batch([])),
    "spawn": (Effect.SPAWN, lambda run: run.spawn("true")),
    "ask": (Effect.QUESTION, lambda run: run.ask("really?")),
    "delegate": (Effect.CHILD, lambda run: run.delegate("other", "do it")),
    "hold": (Effect.HOLD, take_hold),
    "check": (None, lambda run: run.check()),
}

ENDS: dict[str, Callable[..., Awaitable[object]]] = {
    "stop": lambda control, run: control.stop(run=run),
    "session stop": lambda control, run: control.stop(session="s"),
    "takeover": lambda control, run: control.send("s", "next"),
    "deadline": lambda control, run: control.wait(run),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_after_the_end(verb: str, end: str) -> None:
    """Every verb of a run that has ended raises Stale, shows nothing and is counted under its kind (race 38)."""
    effect, speak = VERBS[verb]
    errors: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text == "next":
            return
        await swallowed(anyio.sleep_forever())
        assert not run.current
        for _ in range(2):
            errors.append(await swallowed(speak(run)))

    async def main() -> None:
        errors.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", deadline=1 if end == "deadline" else None)
            await started(control, sent.run_id)
            await ENDS[end](control, sent.run_id)
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            expected = {Effect.FINAL: 1}  # the agent's own return came too late as well
            assert receipt.refused == (expected if effect is None else {effect: 2, **expected})
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "started", "ended"]
        assert [type(error) for error in errors] == [Stale, Stale]
        assert sent.run_id in str(errors[0])

    seeded(main, range(3))


def test_every_effect_kind_has_a_verb() -> None:
    """The table above covers every kind of effect but the two that only control makes."""
    covered = {effect for effect, _ in VERBS.values()} - {None}
    assert set(Effect) - covered == {Effect.RESULT, Effect.FINAL}


def test_a_verb_from_a_worker_thread_after_the_end() -> None:
    """A thread that speaks through the loop after the end is refused like everyone else, each kind counted."""
    outcomes: list[BaseException | None] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended, finished = threading.Event(), asyncio.Event()

        async def agent(run: Run, message: Message) -> None:
            def work() -> None:
                ended.wait(BOUND_SECONDS)
                for _, speak in VERBS.values():
                    future = asyncio.run_coroutine_threadsafe(swallowed(speak(run)), loop)
                    outcomes.append(future.result(BOUND_SECONDS))
                loop.call_soon_threadsafe(finished.set)

            threading.Thread(target=work, daemon=True).start()
            await run.say("before")
            await swallowed(anyio.sleep_forever())
            await swallowed(finished.wait())  # stays until the thread has tried everything

        patient = Settings(grace_seconds=BOUND_SECONDS, drain_seconds=BOUND_SECONDS)
        async with open_control(agent, settings=patient) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            ended.set()
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            wanted = [effect for effect, _ in VERBS.values() if effect is not None]
            assert receipt.refused == {effect: wanted.count(effect) for effect in wanted} | {Effect.FINAL: 1}
            assert "late" not in repr(await log_of(control, "s"))
        assert [type(error) for error in outcomes] == [Stale] * len(VERBS)

    asyncio.run(main())


def test_a_verb_from_a_worker_thread_while_current() -> None:
    """A thread may speak for a current run through the loop."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def agent(run: Run, message: Message) -> None:
            spoken = asyncio.Event()

            def work() -> None:
                asyncio.run_coroutine_threadsafe(run.say("from a thread"), loop).result(BOUND_SECONDS)
                loop.call_soon_threadsafe(spoken.set)

            threading.Thread(target=work, daemon=True).start()
            await spoken.wait()

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "from a thread"

    asyncio.run(main())


def test_a_callback_that_fires_late() -> None:
    """A timer set by the run fires after its end: what it says is refused, and the successor is not touched.

    Races 11, 12 and 13: a typing keep-alive, a progress edit and a clean-up callback of the old run.
    """
    errors: list[BaseException | None] = []

    async def main() -> None:
        errors.clear()
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        async def agent(run: Run, message: Message) -> None:
            if message.text == "two":
                await run.say("mine")
                await anyio.sleep_forever()

            async def tick() -> None:
                errors.append(await swallowed(run.typing(False)))
                errors.append(await swallowed(run.progress("late edit")))
                errors.append(await swallowed(run.post("late")))

            loop.call_later(1.0, lambda: tasks.append(asyncio.create_task(tick())))
            await anyio.sleep_forever()

        async with open_control(agent) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            second = await control.send("s", "two")
            await told(control, second.run_id, EventKind.DELTA)
            await anyio.sleep(3)
            assert [type(error) for error in errors] == [Stale] * 3
            log = await log_of(control, "s")
            assert kinds(log, first.run_id)[-1] == "ended"
            assert kinds(log, second.run_id) == ["message", "started", "delta"]
            assert (await control.wait(second.run_id, timeout=1)).ending is Ending.PENDING
            await asyncio.gather(*tasks)

    seeded(main)


def test_a_verb_from_a_foreign_loop() -> None:
    """A verb awaited on another loop is refused with the remedy, and nothing of it is shown."""
    errors: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> str:
        def elsewhere() -> None:
            for _, speak in VERBS.values():
                errors.append(asyncio.run(_outcome(speak(run))))

        await asyncio.to_thread(elsewhere)
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "done", outcome.error
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "started", "block", "ended"]
        assert [type(error) for error in errors] == [BadInput] * len(VERBS)
        assert all("run_coroutine_threadsafe" in str(error) for error in errors)

    asyncio.run(main())


async def _outcome(work: Awaitable[object]) -> BaseException | None:
    return await swallowed(work)


def test_stale_says_what_to_watch() -> None:
    """The Stale of a superseded run names its successor, that of a stopped one who stopped it."""
    said: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        await swallowed(anyio.sleep_forever())
        said.append(str(await swallowed(run.say("late"))))

    async def main() -> None:
        said.clear()
        async with open_control(agent) as control:
            first = await control.send("s", "one", by="alice")
            await started(control, first.run_id)
            second = await control.send("s", "two", by="alice")
            await started(control, second.run_id)
            await control.stop(session="s", by="alice")
            await control.wait(second.run_id, drained=True)
        assert said == [
            f"delta refused: run {first.run_id} was superseded by {second.run_id}; watch that one instead",
            f"delta refused: run {second.run_id} has ended (stopped by alice); do not catch Stale",
        ]

    seeded(main)


def test_an_agent_that_goes_on_trying_is_not_resumed_for_ever() -> None:
    """A body that answers every Stale with another attempt is dropped after a bounded number of refusals."""

    async def agent(run: Run, message: Message) -> None:
        while True:
            await swallowed(run.say("."))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == ("unconfirmed", (f"agent of {sent.run_id} (never resumed)",))
            assert 0 < receipt.refused[Effect.DELTA] <= REFUSALS + 2

    seeded(main, range(3))


def test_deltas_blocks_and_the_return_make_one_reply() -> None:
    """`post` and the return close an open block; a return that continues the deltas replaces them."""

    async def continues(run: Run, message: Message) -> str:
        await run.say("Hel")
        await run.say("lo")
        return "Hello."

    async def differs(run: Run, message: Message) -> str:
        await run.say("Hello")
        return "Bye"

    async def posts(run: Run, message: Message) -> None:
        await run.say("one")
        await run.post("two")
        await run.say("three")

    async def silent(run: Run, message: Message) -> None:
        await run.typing()

    async def main() -> None:
        for agent, blocks in (
            (continues, ["Hello."]),
            (differs, ["Hello", "Bye"]),
            (posts, ["one", "two", "three"]),
            (silent, []),
        ):
            async with open_control(agent) as control:
                sent = await control.send("s", "hello")
                assert (await control.wait(sent.run_id)).text == "\n\n".join(blocks)
                log = await log_of(control, "s")
                assert [event.data.text for event in log if event.kind is EventKind.BLOCK] == blocks
                history = await control.history("s")
                assert [entry.text for entry in history if entry.role == "assistant"] == blocks

    seeded(main, range(3))


def test_history_inside_a_run() -> None:
    """An agent sees the conversation so far: earlier turns, why they were cut, and its own message."""
    seen: list[list[tuple[str, str, str | None]]] = []

    async def agent(run: Run, message: Message) -> None:
        seen.append([(entry.role, entry.text, entry.ending) for entry in await run.history()])
        await run.say("partial")
        await anyio.sleep_forever()

    async def main() -> None:
        seen.clear()
        async with open_control(agent) as control:
            first = await control.send("s", "one")
            await told(control, first.run_id, EventKind.DELTA)
            second = await control.send("s", "two")
            await told(control, second.run_id, EventKind.DELTA)
        assert seen[1] == [("user", "one", None), ("assistant", "partial", "superseded"), ("user", "two", None)]

    seeded(main)


def test_phases_nest() -> None:
    """Leaving a phase names the one outside it again, and the last leaving names none."""

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("outer"), run.phase("inner"):
            pass

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await control.wait(sent.run_id)
            phases = [event.data.name for event in await log_of(control, "s") if event.kind is EventKind.PHASE]
            assert phases == ["outer", "inner", "outer", None]

    seeded(main, range(3))


def test_a_phase_left_after_the_end_hides_nothing() -> None:
    """Leaving a phase after the end neither raises Stale over another error nor counts as an effect."""

    async def agent(run: Run, message: Message) -> None:
        async with run.phase("provider"):
            await anyio.sleep_forever()

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.PHASE)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).refused == {}

    seeded(main)


async def enter(run: Run, name: object) -> None:
    """Hold what must not be held."""
    async with run.hold(name):  # type: ignore[arg-type]
        raise AssertionError(f"{name!r} was held")


async def twice(run: Run) -> None:
    """Hold one thing twice."""
    async with run.hold("worktree"), run.hold("worktree"):
        raise AssertionError("it was held twice")


WRONG: dict[str, tuple[Callable[[Run], Awaitable[object]], type[Exception], str]] = {
    "ask nothing": (lambda run: run.ask(""), BadInput, "the question is empty"),
    "ask a number": (lambda run: run.ask(7), BadInput, "the question is text, not int; convert it first"),
    "ask half a pair": (lambda run: run.ask("half \ud800"), BadInput, "decode the text properly first"),
    "ask too long": (lambda run: run.ask("x" * (QUESTION_BYTES + 1)), BadInput, "send a shorter one"),
    "choices as text": (lambda run: run.ask("x", choices="ab"), BadInput, "1 to 100 different texts"),
    "no choices": (lambda run: run.ask("x", choices=[]), BadInput, "1 to 100 different texts"),
    "twice one choice": (lambda run: run.ask("x", choices=["a", "a"]), BadInput, "1 to 100 different texts"),
    "many choices": (lambda run: run.ask("x", choices=[*map(str, range(101))]), BadInput, "1 to 100 different texts"),
    "an empty choice": (lambda run: run.ask("x", choices=["a", ""]), BadInput, "a choice is empty"),
    "numbers to choose": (lambda run: run.ask("x", choices=[1, 2]), BadInput, "a choice is text, not int"),
    "lists to choose": (lambda run: run.ask("x", choices=[["a"], ["b"]]), BadInput, "choice"),
    "a number as choices": (lambda run: run.ask("x", choices=5), BadInput, "1 to 100 different texts"),
    "ask backwards": (lambda run: run.ask("x", timeout=-1), BadInput, "timeout must be 0 or more seconds"),
    "ask soon": (lambda run: run.ask("x", timeout="soon"), BadInput, "timeout must be 0 or more seconds"),
    "delegate to nobody": (lambda run: run.delegate("nobody", "x"), BadInput, "no agent 'nobody'.*has other"),
    "delegate nameless": (lambda run: run.delegate("", "x"), BadInput, "agent must be a name"),
    "delegate to a number": (lambda run: run.delegate(5, "x"), BadInput, "agent must be a name"),
    "delegate nothing": (lambda run: run.delegate("other", " "), BadInput, "the message is empty"),
    "delegate bytes": (lambda run: run.delegate("other", b"x"), BadInput, "the message is text, not bytes"),
    "delegate backwards": (lambda run: run.delegate("other", "x", timeout=-1), BadInput, "0 or more seconds"),
    "hold nothing": (lambda run: enter(run, ""), BadInput, "hold must be a name"),
    "hold a number": (lambda run: enter(run, 5), BadInput, "hold must be a name"),
    "hold twice": (twice, Refused, "take it once, around everything"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_in_a_run(wrong: str) -> None:
    """Asking, delegating and holding refuse a wrong value with the remedy; nothing is begun and the run goes on."""
    attempt, error, words = WRONG[wrong]

    async def agent(run: Run, message: Message) -> str:
        with raises(error, words):
            await attempt(run)
        return "went on"

    async def main() -> None:
        async with open_control(agent, agents={"other": agent}) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id, timeout=60)
            assert outcome.text == "went on", outcome.error
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "started", "block", "ended"]
            assert [info.id for info in await control.runs("s", tree=True)] == [sent.run_id]
            receipt = await control.receipt(sent.run_id)
            assert (receipt.questions, receipt.holds, receipt.refused) == (0, 0, {})

    seeded(main, range(2))


def test_text_that_is_no_text() -> None:
    """A verb that takes text refuses anything else with the remedy, and nothing is shown."""

    async def agent(run: Run, message: Message) -> str:
        for speak in (run.say, run.post, run.progress):
            with raises(BadInput, "takes text, not int; convert it first"):
                await speak(3)
        with raises(BadInput, "phase takes text"):
            async with run.phase(None):
                pass
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            assert kinds(await log_of(control, "s"), sent.run_id) == ["message", "started", "block", "ended"]

    seeded(main, range(2))


def test_text_that_cannot_be_serialised() -> None:
    """Text with half a surrogate pair cannot cross any wire: it is refused where it is said, with the remedy."""

    async def agent(run: Run, message: Message) -> str:
        for speak in (run.say, run.post, run.progress):
            with raises(BadInput, "."):
                await speak("half \ud800 pair")
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error

    seeded(main, range(1))


def test_a_reply_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that floods its reply is refused aloud at the bound, for deltas, blocks and what it returns."""
    monkeypatch.setattr("interlock.runtime.outlet.REPLY_BYTES", 100)

    async def agent(run: Run, message: Message) -> None:
        await run.say("x" * 60)
        with raises(BadInput, "end it or write a file"):
            await run.say("x" * 60)
        with raises(BadInput, "end it or write a file"):
            await run.post("x" * 60)

    async def posts(run: Run, message: Message) -> None:
        await run.post("x" * 60)
        with raises(BadInput, "end it or write a file"):
            await run.post("x" * 60)

    async def main() -> None:
        for each in (agent, posts):
            async with open_control(each) as control:
                sent = await control.send("s", "hello")
                outcome = await control.wait(sent.run_id)
                assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "x" * 60), outcome.error

    seeded(main, range(1))


def test_current_is_a_hint() -> None:
    """`run.current` is true while the run may have effects and false from the fall on."""
    seen: list[bool] = []

    async def agent(run: Run, message: Message) -> None:
        seen.append(run.current)
        await swallowed(anyio.sleep_forever())
        seen.append(run.current)

    async def main() -> None:
        seen.clear()
        async with open_control(agent, settings=QUICK) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
        assert seen == [True, False]

    seeded(main)


def test_a_deaf_agent_s_run_object_stays_refused() -> None:
    """A run kept beyond its drained receipt is refused as before: there is no way back."""
    kept: list[Run] = []

    async def agent(run: Run, message: Message) -> None:
        kept.append(run)
        await deaf(run, message)

    async def main() -> None:
        kept.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(10)
            assert control._registry.runs == {}
            for effect, speak in VERBS.values():
                with pytest.raises(Stale, match=effect):
                    await speak(kept[0])

    seeded(main, range(3))


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_error_that_cannot_be_described(raised: type[BaseException]) -> None:
    """The run has failed and the loop goes on, whatever the `__str__` of the agent's error raises."""

    class Hostile(Exception):
        def __str__(self) -> str:
            raise raised

    async def agent(run: Run, message: Message) -> str:
        if message.text == "one":
            raise Hostile
        return "done"

    async def main() -> None:
        async with open_control(agent) as control:
            outcome = await control.wait((await control.send("s", "one")).run_id)
            assert (outcome.ending, outcome.error) == (Ending.FAILED, "Hostile: (it cannot be described)")
            assert (await control.wait((await control.send("s", "two")).run_id)).ending is Ending.COMPLETED

    seeded(main, range(2))
