"""The gate before a tool: which calls are permitted, which are skipped, and that every call has exactly one result."""

import asyncio
import math
import threading

import anyio
import pytest

from interlock import BadInput, Ending, Entry, MemoryStore, Message, Run, Stale, Unavailable, open_control, tool
from interlock.agent.bodies import THREADS
from interlock.core.decision import Decision
from interlock.core.names import EventKind

from .scene import QUICK, log_of, raises, seeded, started, swallowed, told


def valid_for_a_model(history: list[Entry]) -> None:
    """Assert that every call has exactly one result, and that no other entry stands between them."""
    calls = [entry.call_id for entry in history if entry.role == "call"]
    results = [entry.call_id for entry in history if entry.role == "result"]
    assert len(set(calls)) == len(calls)
    assert sorted(calls) == sorted(results)
    open_calls: set[str] = set()
    for entry in history:
        if entry.role == "call":
            open_calls.add(entry.call_id or "")
        elif entry.role == "result":
            open_calls.remove(entry.call_id or "")
        else:
            assert not open_calls, f"{entry.role} {entry.text!r} stands between a call and its result"


def states(history: list[Entry]) -> list[tuple[str, str]]:
    return [(entry.tool or "", (entry.state or "").split(".")[-1]) for entry in history if entry.role == "result"]


async def doubles(number: int) -> int:
    """Return twice the number."""
    return 2 * number


async def fails(why: str) -> None:
    """Raise a ValueError."""
    raise ValueError(why)


async def hangs() -> None:
    """Never return."""
    await anyio.sleep_forever()


async def rests(seconds: float, name: str = "") -> str:
    """Return the name after this many seconds."""
    await anyio.sleep(seconds)
    return name


def test_a_call_returns_what_the_tool_returned() -> None:
    """A permitted call is recorded, run and given its result, in that order."""

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(doubles, number=21))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "42"
            tools = [event.data for event in await log_of(control, "s") if event.kind is EventKind.TOOL]
            assert [(each.name, each.state.value) for each in tools] == [
                ("doubles", "pending"),
                ("doubles", "running"),
                ("doubles", "finished"),
            ]
            assert (tools[0].arguments, tools[2].result) == ('{"number":21}', "42")
            history = await control.history("s")
            valid_for_a_model(history)
            assert [entry.role for entry in history] == ["user", "call", "result", "assistant"]

    seeded(main)


def test_a_call_closes_the_open_block() -> None:
    """Deltas said before a call become a block that stands before it."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("let me ")
        await run.say("see")
        await run.call(doubles, number=1)
        return "2"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "let me see\n\n2"
            texts = [(entry.role, entry.text) for entry in await control.history("s")]
            assert texts == [
                ("user", "hello"),
                ("assistant", "let me see"),
                ("call", ""),
                ("result", "2"),
                ("assistant", "2"),
            ]

    seeded(main)


def test_a_tool_that_raises() -> None:
    """An error that a tool raises reaches the agent and is the call's result; the run goes on."""

    async def agent(run: Run, message: Message) -> str:
        with pytest.raises(ValueError, match="no such file"):
            await run.call(fails, why="no such file")
        return "went on"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "went on"
            history = await control.history("s")
            valid_for_a_model(history)
            [result] = [entry for entry in history if entry.role == "result"]
            assert (result.state, result.text) == ("failed", "ValueError: no such file")

    seeded(main)


def test_wrong_arguments_are_the_call_s_result() -> None:
    """Arguments that the function does not accept are an error of the call, which the model must see."""

    async def agent(run: Run, message: Message) -> str:
        with pytest.raises(TypeError, match="nombre"):
            await run.call(doubles, nombre=1)
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "ok"
            assert states(await control.history("s")) == [("doubles", "failed")]

    seeded(main)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_batch_answers_in_order(parallel: bool) -> None:
    """Results of a batch come in the order of its calls, and an error of one does not stop the others."""

    async def agent(run: Run, message: Message) -> str:
        results = await run.batch(
            [
                (rests, {"seconds": 0.3, "name": "slow"}),
                (fails, {"why": "broken"}),
                (rests, {"seconds": 0.1, "name": "quick"}),
            ],
            parallel=parallel,
        )
        assert [result.state.value for result in results] == ["finished", "failed", "finished"]
        assert [result.value for result in results] == ["slow", None, "quick"]
        assert isinstance(results[1].error, ValueError)
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "ok"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert [entry.tool for entry in history if entry.role == "call"] == ["rests", "fails", "rests"]

    seeded(main)


def test_a_batch_is_recorded_before_its_first_call_begins() -> None:
    """Every call of a batch is in the log before any body runs."""
    recorded_before_first: list[int] = []

    async def agent(run: Run, message: Message) -> None:
        async def first() -> None:
            recorded_before_first.append(len([entry for entry in await run.history() if entry.role == "call"]))

        await run.batch([(first, {}), (doubles, {"number": 1}), (doubles, {"number": 2})])

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED

    seeded(main)
    assert set(recorded_before_first) == {3}


def test_a_stop_between_two_tools_of_a_batch() -> None:
    """A stop skips the rest of a sequential batch, each call with a result, in order (races 7 and 50)."""
    ran: list[str] = []

    async def main() -> None:
        ran.clear()
        reached = asyncio.Event()

        async def step(name: str) -> str:
            ran.append(name)
            if name == "b":
                reached.set()
                await anyio.sleep_forever()
            return name

        async def agent(run: Run, message: Message) -> None:
            await run.batch([(step, {"name": name}) for name in "abcd"])

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await reached.wait()
            receipt = await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            assert ran == ["a", "b"]
            history = await control.history("s")
            valid_for_a_model(history)
            results = [(entry.state, entry.text) for entry in history if entry.role == "result"]
            assert [state for state, _ in results] == ["finished", "interrupted", "skipped", "skipped"]
            assert results[1][1] == "interrupted: stopped by local; its effect is unknown"
            assert results[2][1] == "not run: stopped by local"
            assert sorted(each.state for each in receipt.tools) == ["finished", "interrupted", "skipped", "skipped"]

    seeded(main)


def test_a_stop_within_a_parallel_batch() -> None:
    """A finished sibling keeps its result, a running one is interrupted, and no result comes later (race 8)."""

    async def main() -> None:
        finished = asyncio.Event()
        late: list[str] = []

        async def quick() -> str:
            return "kept"

        async def slow() -> str:
            finished.set()
            await swallowed(anyio.sleep_forever())
            late.append("the body went on")
            return "never shown"

        async def agent(run: Run, message: Message) -> None:
            await run.batch([(quick, {}), (slow, {})], parallel=True)

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await finished.wait()
            while not any(event.data.result for event in await log_of(control, "s") if event.kind is EventKind.TOOL):
                await anyio.sleep(0.01)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("quick", "finished"), ("slow", "interrupted")]
            assert '"kept"' in [entry.text for entry in history]
            assert "never shown" not in repr(await log_of(control, "s"))
            receipt = await control.receipt(sent.run_id)
            assert receipt.refused == {"result": 1}
            assert late

    seeded(main)


def test_a_stop_while_a_call_waits_for_its_permit() -> None:
    """A run that falls while the start of a call is being stored never runs the body (race 5)."""
    ran: list[str] = []

    async def acts() -> None:
        ran.append("acted")

    async def agent(run: Run, message: Message) -> None:
        await run.call(acts)

    async def main() -> None:
        ran.clear()
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.TOOL)
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            await anyio.sleep(5)
            assert states(await control.history("s")) == [("acts", "skipped")]
        assert ran == []

    seeded(main)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_deaf_tool_cannot_reach_the_transcript(parallel: bool) -> None:
    """A tool that swallows the cancel is fenced: its result is refused, and so is the next call (race 38)."""
    ran: list[str] = []

    async def main() -> None:
        ran.clear()
        begun = asyncio.Event()

        async def deaf_tool() -> str:
            begun.set()
            await swallowed(anyio.sleep_forever())
            return "late result"

        async def next_tool() -> None:
            ran.append("next")

        async def agent(run: Run, message: Message) -> None:
            await swallowed(run.batch([(deaf_tool, {})], parallel=parallel))
            await swallowed(run.call(next_tool))
            await run.call(next_tool)

        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await begun.wait()
            await control.stop(run=sent.run_id)
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert receipt.drain == "observed"
            assert receipt.refused["tool"] == 2 and receipt.refused["result"] >= 1
            assert [(each.name, each.state) for each in receipt.tools] == [("deaf_tool", "interrupted")]
            assert "late result" not in repr(await log_of(control, "s"))
        assert ran == []

    seeded(main)


def test_an_agent_s_own_timeout_around_a_call() -> None:
    """A call that the agent itself gives up is interrupted at once, with a result, and the run goes on."""

    async def agent(run: Run, message: Message) -> str:
        with anyio.move_on_after(1):
            await run.call(hangs)
        valid_for_a_model([entry for entry in await run.history() if entry.role != "user"])
        await run.call(doubles, number=1)
        return "went on"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "went on"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("hangs", "interrupted"), ("doubles", "finished")]

    seeded(main)


@pytest.mark.parametrize("parallel", [False, True])
def test_an_agent_s_own_timeout_around_a_batch(parallel: bool) -> None:
    """A batch that the agent itself gives up leaves every call with a result before the agent goes on (race 50)."""

    async def agent(run: Run, message: Message) -> str:
        with anyio.move_on_after(1):
            await run.batch([(hangs, {}), (hangs, {}), (doubles, {"number": 1})], parallel=parallel)
        await run.post("gave up")
        return "went on"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "gave up\n\nwent on"), outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            others = ["finished", "interrupted"] if parallel else ["skipped", "skipped"]
            assert sorted(state for _, state in states(history)) == sorted(["interrupted", *others])

    seeded(main)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, Stale])
def test_a_tool_that_raises_beyond_exception(error: type[BaseException], parallel: bool) -> None:
    """A tool that raises a BaseException has one result, and its sibling keeps its own."""

    async def wild() -> None:
        raise error("wild")

    async def agent(run: Run, message: Message) -> str:
        results = await run.batch([(wild, {}), (doubles, {"number": 4})], parallel=parallel)
        return " ".join(f"{result.name}:{result.value}" for result in results)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            valid_for_a_model(await control.history("s"))
            # In the other case the error was raised to the agent, as by `call`.
            if outcome.ending is Ending.COMPLETED:
                assert outcome.text == "wild:None doubles:8"
            else:
                assert outcome.ending is Ending.FAILED and error.__name__ in (outcome.error or "")

    seeded(main, range(3))


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, "\ud800", 1j], ids=["object", "key", "surrogate", "complex"])
def test_an_argument_that_cannot_be_serialised(value: object) -> None:
    """An argument that cannot be serialised is refused with the remedy before anything is recorded."""
    ran: list[object] = []

    async def takes(value: object) -> None:
        ran.append(value)

    async def agent(run: Run, message: Message) -> str:
        for attempt in (run.call(takes, value=value), run.batch([(doubles, {"number": 1}), (takes, {"value": value})])):
            with raises(BadInput, "arguments of takes cannot be serialised .* use plain values"):
                await attempt
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            assert [entry.role for entry in await control.history("s")] == ["user", "assistant"]
        assert ran == []

    seeded(main, range(2))


def test_a_result_that_cannot_be_serialised() -> None:
    """A result that cannot be serialised fails the call with the remedy, and the run goes on."""

    async def returns() -> object:
        return object()

    async def agent(run: Run, message: Message) -> str:
        with raises(BadInput, "what tool returns returned cannot be serialised .* use plain values"):
            await run.call(returns)
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("returns", "failed")]

    seeded(main, range(2))


def test_a_synchronous_tool_needs_a_thread() -> None:
    """A synchronous tool without thread=True is refused with an error that names it, and nothing is recorded."""

    def blocks() -> None:
        raise AssertionError("never called")

    async def agent(run: Run, message: Message) -> str:
        for attempt in (run.call(blocks), run.batch([(doubles, {"number": 1}), (blocks, {})])):
            with raises(BadInput, r"tool blocks is synchronous.*thread=True"):
                await attempt
        with raises(BadInput, "pass the function itself"):
            await run.call("blocks")  # type: ignore[arg-type]
        return "ok"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "ok"
            assert [entry.role for entry in await control.history("s")] == ["user", "assistant"]

    seeded(main, range(2))


def test_what_is_said_about_a_tool() -> None:
    """`@tool` names a tool, and refuses wrong options with the remedy."""

    @tool(name="search the web")
    async def search(query: str) -> str:
        return query

    async def agent(run: Run, message: Message) -> str:
        return str(await run.call(search, query="x"))

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "x"
            assert {entry.tool for entry in await control.history("s")} == {None, "search the web"}

    seeded(main, range(1))
    with raises(BadInput, "drop thread=True"):
        tool(thread=True)(search)
    for grace in (-1, math.nan, math.inf, -math.inf, 10**400, "5", None, True):
        with raises(BadInput, "grace must be 0 or more seconds, as a finite number, not "):
            tool(grace=grace)(search)  # type: ignore[arg-type]
    with raises(BadInput, "approval= is 'ask' or 'never', not 'always'"):
        tool(approval="always")(search)
    assert tool(search) is search


def test_a_tool_in_a_thread() -> None:
    """A synchronous tool marked thread=True runs in another thread; its value and its error come back."""
    here = threading.get_ident()

    @tool(thread=True)
    def where(fail: bool) -> bool:
        if fail:
            raise KeyError("gone")
        return threading.get_ident() != here

    async def agent(run: Run, message: Message) -> str:
        with pytest.raises(KeyError, match="gone"):
            await run.call(where, fail=True)
        results = await run.batch([(where, {"fail": False}), (where, {"fail": True})], parallel=True)
        return f"{await run.call(where, fail=False)} {[result.state.value for result in results]}"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "True ['finished', 'failed']", outcome.error

    asyncio.run(main())


def test_a_thread_that_outlives_its_run_is_abandoned() -> None:
    """A thread that outlives its run is fenced, and the receipt names it as abandoned and unconfirmed."""
    begun, release, returned = threading.Event(), threading.Event(), threading.Event()

    @tool(thread=True)
    def stubborn() -> str:
        begun.set()
        release.wait(60)
        returned.set()
        return "late result"

    async def agent(run: Run, message: Message) -> None:
        await run.call(stubborn)

    async def main() -> None:
        async with open_control(agent, settings=QUICK) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.TOOL)
            while not begun.is_set():
                await asyncio.sleep(0)
            receipt = await control.stop(run=sent.run_id)
            assert [(each.name, each.state) for each in receipt.tools] == [("stubborn", "interrupted")]
            await control.wait(sent.run_id, drained=True)
            final = await control.receipt(sent.run_id)
            assert [(each.name, each.state) for each in final.tools] == [("stubborn", "abandoned")]
            assert (final.drain, final.unconfirmed) == ("unconfirmed", ("thread of tool stubborn",))
            release.set()
            while not returned.is_set():
                await asyncio.sleep(0)
            again = await control.send("s", "again")
            await started(control, again.run_id)
            assert "late result" not in repr(
                [event for event in await log_of(control, "s") if event.run_id == sent.run_id]
            )

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_a_thread_that_ends_within_the_grace_is_observed() -> None:
    """A thread that returns while the run drains leaves nothing unconfirmed, and its result is fenced."""
    begun, release = threading.Event(), threading.Event()

    @tool(thread=True)
    def finishes() -> str:
        begun.set()
        release.wait(60)
        return "late result"

    async def agent(run: Run, message: Message) -> None:
        await run.call(finishes)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            while not begun.is_set():
                await asyncio.sleep(0)
            await control.stop(run=sent.run_id)
            release.set()
            await control.wait(sent.run_id, drained=True)
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == ("observed", ())
            assert "late result" not in repr(await log_of(control, "s"))

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_threads_are_bounded() -> None:
    """A synchronous tool beyond THREADS at once is refused with the remedy, and leaves nothing to drain."""
    release = threading.Event()

    @tool(thread=True)
    def waits() -> None:
        release.wait(60)

    async def agent(run: Run, message: Message) -> str:
        batch = asyncio.create_task(run.batch([(waits, {})] * (THREADS + 1), parallel=True))
        while not any(entry.state == "failed" for entry in await run.history()):
            await asyncio.sleep(0)
        release.set()
        [refused] = [result for result in await batch if result.error is not None]
        return str(refused.error)

    async def main() -> None:
        async with open_control(agent, settings=QUICK) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id, drained=True)
            assert "make this one async or wait" in outcome.text, outcome.error
            receipt = await control.receipt(sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == ("observed", ())

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_a_tool_the_store_cannot_record_does_not_run() -> None:
    """A body whose start the store does not commit never begins, and the agent is told."""
    ran: list[str] = []

    async def acts() -> None:
        ran.append("acted")

    async def main() -> None:
        ran.clear()
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            store.faults.stall = True
            with raises(Unavailable, "acts was not started.*try again"):
                await run.call(acts)
            store.resume()
            store.faults.fail = True
            with raises(Unavailable, "acts was not started"):
                await run.call(acts)
            store.resume()
            await run.call(acts)
            return "ok"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("acts", "failed"), ("acts", "failed"), ("acts", "finished")]
        assert ran == ["acted"]

    seeded(main)


def test_a_tool_under_an_old_writer_right_does_not_run() -> None:
    """A call whose session another node has raised is refused by its token, and the body does not begin."""
    ran: list[str] = []

    async def acts() -> None:
        ran.append("acted")

    async def main() -> None:
        ran.clear()
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> str:
            await run.call(acts)
            await store.decide(Decision(rises=(run.session,)))
            with raises(Unavailable, "acts was not started"):
                await run.call(acts)
            return "ok"

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            outcome = await control.wait(sent.run_id)
            assert outcome.text == "ok", outcome.error
            history = await control.history("s")
            valid_for_a_model(history)
            assert states(history) == [("acts", "finished"), ("acts", "failed")]
            assert [row.state for row in await store.tools(sent.run_id)] == ["finished"]
        assert ran == ["acted"]

    seeded(main)


def test_a_lost_reply_does_not_run_a_tool_twice() -> None:
    """A body runs once though the store's answer to its committed start is lost."""
    ran: list[str] = []

    async def acts() -> None:
        ran.append("acted")

    async def main() -> None:
        ran.clear()
        store = MemoryStore()

        async def agent(run: Run, message: Message) -> None:
            store.faults.lose = True
            await run.call(acts)
            store.resume()

        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
        assert ran == ["acted"]

    seeded(main)


def test_a_cut_run_leaves_a_valid_transcript_whenever_it_falls() -> None:
    """A stop at any point of a turn with text, calls and batches leaves a transcript valid for a model (race 50)."""

    async def agent(run: Run, message: Message) -> str:
        await run.say("thinking ")
        await run.call(rests, seconds=0.02, name="a")
        await run.say("more")
        await run.batch([(rests, {"seconds": 0.02}), (fails, {"why": "x"}), (rests, {"seconds": 0.01})])
        await run.batch([(rests, {"seconds": 0.02}), (rests, {"seconds": 0.01})], parallel=True)
        return "done"

    async def main() -> None:
        for number in range(14):
            async with open_control(agent) as control:
                sent = await control.send("s", "hello")
                await anyio.sleep(number * 0.008)
                await control.stop(run=sent.run_id)
                outcome = await control.wait(sent.run_id, drained=True)
                history = await control.history("s")
                valid_for_a_model(history)
                said = [entry.text for entry in history if entry.role == "assistant" and entry.text]
                assert "\n\n".join(said) == outcome.text
                cuts = [entry.ending for entry in history if entry.cut]
                assert cuts == ([] if outcome.ending is Ending.COMPLETED else [Ending.STOPPED])

    seeded(main, range(4))
