"""Agents on a leash: each is ended whatever its code does, and the embedder's loop closes."""

import asyncio
import gc
import time

import anyio
import pytest

from interlock import Control, Ending, Message, Run, Settings, Stale, open_control
from interlock.core.names import EventKind

from .scene import QUICK, deaf, echoes, idles, kinds, log_of, seeded, started, swallowed, told


def test_a_thousand_deaf_agents() -> None:
    """Control and `asyncio.run` close promptly over 1,000 stopped agents that swallow every cancel (race 38)."""
    agents = 1000

    async def main() -> None:
        begun, everyone = 0, asyncio.Event()

        async def agent(run: Run, message: Message) -> None:
            nonlocal begun
            begun += 1
            if begun == agents:
                everyone.set()
            await deaf(run, message)

        async with open_control(agent, settings=QUICK) as control:
            sent = await asyncio.gather(*(control.send(f"s{n}", "hello") for n in range(agents)))
            await everyone.wait()
            receipts = await asyncio.gather(*(control.stop(run=each.run_id) for each in sent))
            assert all(receipt.aborted for receipt in receipts)
            for each in sent:
                assert (await control.wait(each.run_id, drained=True)).drained
            before = time.process_time()
            await asyncio.sleep(0.1)
            assert time.process_time() - before < 0.08, "the loop is kept busy by agents that are over"

    asyncio.run(main())
    assert not asyncio._get_running_loop()


def test_closing_over_deaf_agents() -> None:
    """Closing ends agents that swallow every cancel as shutdown, within the bounds."""

    async def main() -> None:
        before = asyncio.get_running_loop().time()
        async with open_control(deaf) as control:
            sent = [await control.send(f"s{n}", "hello") for n in range(10)]
            await started(control, sent[-1].run_id)
        assert asyncio.get_running_loop().time() - before <= 2 + 0.5
        for each in sent:
            assert (await control.wait(each.run_id)).ending is Ending.SHUTDOWN

    seeded(main, range(3))


def test_a_dropped_agent_is_never_entered_again() -> None:
    """A dropped agent's code is never resumed, not even by the garbage collector."""
    entered: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                entered.append("cancelled")
            finally:
                entered.append("finally")

    async def main() -> None:
        async with open_control(agent, settings=QUICK) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            seen = list(entered)
            assert seen == ["cancelled", "finally"]
        gc.collect()
        assert entered == seen

    asyncio.run(main())
    gc.collect()
    assert entered == ["cancelled", "finally"]


def test_cleanup_within_the_grace_is_awaited() -> None:
    """An agent that cleans up within its grace finishes, and drained waits for it."""
    cleaned: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1.9)
            cleaned.append("done")

    async def main() -> None:
        cleaned.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            assert cleaned == []
            await control.wait(sent.run_id, drained=True)
            assert cleaned == ["done"]

    seeded(main)


def test_cleanup_beyond_the_grace_is_cut() -> None:
    """An agent whose cleanup takes longer than the grace is not resumed, and the receipt completes."""
    cleaned: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(60)
            cleaned.append("done")

    async def main() -> None:
        cleaned.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            before = asyncio.get_running_loop().time()
            await control.wait(sent.run_id, drained=True)
            assert asyncio.get_running_loop().time() - before <= 2.2
            await anyio.sleep(100)
        assert cleaned == []

    seeded(main)


def test_an_agent_that_stops_itself() -> None:
    """An agent that stops its own run or session gets a complete ending although the stop cuts its caller."""
    for scope in ("run", "session"):
        controls: list[Control] = []

        async def agent(run: Run, message: Message, scope: str = scope, controls: list[Control] = controls) -> None:
            await run.say("before")
            await controls[0].stop(**({"run": run.id} if scope == "run" else {"session": run.session}))
            await run.say("after")

        async def main(
            agent: object = agent,
            controls: list[Control] = controls,
        ) -> None:
            async with open_control(agent) as control:  # type: ignore[arg-type]
                controls[:] = [control]
                sent = await control.send("s", "hello")
                outcome = await control.wait(sent.run_id, drained=True)
                assert (outcome.ending, outcome.text) == (Ending.STOPPED, "before")
                assert kinds(await log_of(control, "s"), sent.run_id)[-1] == "ended"

        seeded(main, range(4))


def test_an_agent_that_takes_itself_over() -> None:
    """An agent that sends to its own session is superseded by its message, which then runs."""
    controls: list[Control] = []

    async def agent(run: Run, message: Message) -> str:
        if message.text == "first":
            await controls[0].send(run.session, "second")
        return message.text

    async def main() -> None:
        async with open_control(agent) as control:
            controls[:] = [control]
            first = await control.send("s", "first")
            outcome = await control.wait(first.run_id)
            assert outcome.ending is Ending.SUPERSEDED and outcome.superseded_by
            assert (await control.wait(outcome.superseded_by)).text == "second"

    seeded(main)


def test_an_agent_that_raises_in_cleanup() -> None:
    """An error raised in cleanup changes no ending and reaches nobody."""

    async def agent(run: Run, message: Message) -> None:
        try:
            await anyio.sleep_forever()
        except BaseException as cut:
            raise RuntimeError("cleanup broke") from cut

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await started(control, sent.run_id)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.error, outcome.drained) == (Ending.STOPPED, None, True)

    seeded(main)


@pytest.mark.parametrize("value", [42, b"bytes", ["list"], object()], ids=["int", "bytes", "list", "object"])
def test_an_agent_that_returns_no_text(value: object) -> None:
    """A reply that is no text fails the run with the remedy, and keeps the text said before."""

    async def agent(run: Run, message: Message) -> object:
        await run.say("said")
        return value

    async def main() -> None:
        async with open_control(agent) as control:  # type: ignore[arg-type]
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.error_kind, outcome.text) == (Ending.FAILED, "agent", "said")
            assert "return the reply as text, or None" in (outcome.error or "")

    seeded(main, range(2))


@pytest.mark.parametrize("phase", [None, "provider"])
def test_an_agent_that_fails(phase: str | None) -> None:
    """An error of the agent is the run's ending, told with its type and whose failure it was."""

    async def agent(run: Run, message: Message) -> None:
        await run.say("half")
        if phase is not None:
            async with run.phase(phase):
                raise ConnectionError("refused")
        raise ConnectionError("refused")

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.error) == (Ending.FAILED, "ConnectionError: refused")
            assert outcome.error_kind == (phase or "agent")
            assert outcome.text == "half"
            history = await control.history("s")
            assert (history[-1].text, history[-1].cut, history[-1].ending) == ("half", True, Ending.FAILED)

    seeded(main, range(3))


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, Stale])
def test_an_agent_that_raises_beyond_exception(error: type[BaseException]) -> None:
    """A current run whose agent raises a BaseException of its own has failed; the loop and control go on."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "wild":
            raise error("wild")
        return message.text

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "wild")
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.FAILED and error.__name__ in (outcome.error or "")
            again = await control.send("s", "fine")
            assert (await control.wait(again.run_id)).text == "fine"

    seeded(main, range(2))


def test_stale_inside_an_agent_s_task_group() -> None:
    """A Stale that arrives in an ExceptionGroup changes nothing, since the ending was already decided."""
    groups: list[BaseException] = []

    async def agent(run: Run, message: Message) -> None:
        async def talks() -> None:
            while True:
                await run.say(".")
                await asyncio.sleep(0.01)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(talks())
        except BaseException as error:
            groups.append(error)
            raise

    async def main() -> None:
        groups.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.error) == (Ending.STOPPED, None)
            assert kinds(await log_of(control, "s"), sent.run_id)[-1] == "ended"

    seeded(main)
    assert groups


def test_stale_inside_an_anyio_task_group() -> None:
    """An agent built on anyio's task groups is cut, fenced and drained like any other."""

    async def agent(run: Run, message: Message) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(talks, run)

    async def talks(run: Run) -> None:
        while True:
            await swallowed(run.say("."))
            await anyio.sleep(0.01)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            outcome = await control.wait(sent.run_id, drained=True)
            assert (outcome.ending, outcome.drained) == (Ending.STOPPED, True)

    seeded(main, range(4))


def test_a_swallowed_cancel_does_not_revive() -> None:
    """An agent that catches its one cancel and goes on is fenced from its first effect on."""
    turns: list[str] = []

    async def agent(run: Run, message: Message) -> str:
        for turn in ("one", "two", "three"):
            await run.say(turn)
            turns.append(turn)
            await swallowed(anyio.sleep(60))
        return "all done"

    async def main() -> None:
        turns.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            assert (await control.wait(sent.run_id, drained=True)).text == "one"
        assert turns == ["one"]

    seeded(main)


def test_agents_are_not_in_the_caller_s_scope() -> None:
    """A cancel scope around a `send` does not reach the agent, since the run is control's own."""

    async def main() -> None:
        async with open_control(idles) as control:
            with anyio.move_on_after(1):
                sent = await control.send("s", "hello")
                await anyio.sleep_forever()
            assert (await control.wait(sent.run_id, timeout=5)).ending is Ending.PENDING

    seeded(main, range(3))


def test_callable_objects_are_agents() -> None:
    """An object with an async `__call__` and a method are agents like a function."""

    class Assistant:
        async def __call__(self, run: Run, message: Message) -> str:
            return "object"

        async def method(self, run: Run, message: Message) -> str:
            return "method"

    async def main() -> None:
        for agent, text in ((Assistant(), "object"), (Assistant().method, "method")):
            async with open_control(agent) as control:
                sent = await control.send("s", "hello")
                assert (await control.wait(sent.run_id)).text == text

    seeded(main, range(1))


def test_many_sessions_at_once() -> None:
    """Runs of many sessions go on at the same time and leave nothing in the registry."""

    async def main() -> None:
        async with open_control(echoes, settings=Settings()) as control:
            sent = await asyncio.gather(*(control.send(f"s{n}", f"m{n}") for n in range(100)))
            for n, each in enumerate(sent):
                assert (await control.wait(each.run_id, drained=True)).text == f"m{n}"
            await anyio.sleep(1)
            assert control._registry.runs == {} and control._registry.sessions == {}

    seeded(main, range(2))
