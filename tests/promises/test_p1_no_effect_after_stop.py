"""P1. After a stop or takeover is acknowledged, no effect of the old run is **admitted** anywhere: delta, block,
typing, progress, final, tool call, tool result into the transcript, question, child run, process spawn. A tool body
that control had already permitted is cut and named in the receipt as `interrupted, effect unknown`; after `drained` it
has no effect at all.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from itertools import product
from random import Random
from typing import Any

import pytest

from interlock import Control, Ending, MemoryStore, Message, Run, Settings, Stale, ToolState, open_control, tool
from interlock.core.names import BodyState, Drain, Effect, EventKind
from interlock.testing import VirtualProcesses, VirtualThreads, run_seeded

from .scene import AGENTS, VERBS, Sink, harmless, pester, seeded, swallowed, told

INSTANTS = (0.0, 1e-5, 0.0005, 0.001, 0.0042)  # when the stop comes, counted from the start

ENDS: dict[str, Callable[[Control, str], Awaitable[Any]]] = {
    "run stop": lambda control, run: control.stop(run=run),
    "session stop": lambda control, run: control.stop(session="s"),
    "takeover": lambda control, run: control.send("s", "next"),
}

Speak = Callable[[Run], Awaitable[object]]
Caller = Callable[[Run, Speak, list[BaseException], bool], Awaitable[None]]


async def by_the_agent(run: Run, verb: Speak, errors: list[BaseException], swallow: bool) -> None:
    """The agent itself speaks."""
    await pester(run, verb, errors, times=20, swallow=swallow)


async def by_a_task(run: Run, verb: Speak, errors: list[BaseException], swallow: bool) -> None:
    """A task that the agent made, and that nobody can cancel, speaks."""
    own = asyncio.create_task(swallowed(pester(run, verb, errors, times=20, swallow=swallow)), name="own task")
    assert not own.done()
    await asyncio.sleep(60)


async def by_a_late_callback(run: Run, verb: Speak, errors: list[BaseException], swallow: bool) -> None:
    """Timers that the agent set speak, before the end and long after it."""

    tasks: list[object] = []

    def fire() -> None:
        speaking = swallowed(pester(run, verb, errors, times=1, swallow=swallow))
        tasks.append(asyncio.create_task(speaking, name="own callback"))

    for n in range(12):
        asyncio.get_running_loop().call_later(0.0006 * n * n, fire)
    await asyncio.sleep(60)


CALLERS: tuple[Caller, ...] = (by_the_agent, by_a_task, by_a_late_callback)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("effect", VERBS)
def test_nothing_is_admitted_after_the_ack(effect: Effect, caller: Caller, end: str) -> None:
    """Whatever the effect, whoever asks for it, whether or not it swallows the cancel: after the ack none arrives."""
    errors: list[BaseException] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text != "next":
            await caller(run, VERBS[effect], errors, swallow)

    async def main() -> None:
        errors.clear()
        async with open_control(agent, agents=AGENTS, processes=VirtualProcesses(Random(1))) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            await asyncio.sleep(instant)
            await ENDS[end](control, sent.run_id)
            before = len(sink.of(sent.run_id))
            refused = [type(error) for error in errors]
            receipt = await drained(control, sent.run_id)
            await asyncio.sleep(1)
            later = sink.of(sent.run_id)[before:]
            assert [event.kind for event in later] in ([], [EventKind.ENDED])
            assert sink.kinds(sent.run_id)[-1] == "ended"
            assert {type(error) for error in errors[len(refused) :]} <= {Stale, asyncio.CancelledError}
            if caller is by_the_agent:  # all it tried was before the drain
                stale = sum(isinstance(error, Stale) for error in errors)
                assert sum(n for kind, n in receipt.refused.items() if kind is not Effect.FINAL) == stale
                assert not swallow or stale > 0
            assert set(receipt.refused) <= {effect, Effect.RESULT, Effect.FINAL}

    cases = list(product(INSTANTS, (False, True)))
    for seed in range(len(cases)):
        instant, swallow = cases[seed]
        seeded(main, (seed,))


async def drained(control: Control, run_id: str) -> Any:
    """The receipt of a run when nothing of it is left."""
    assert (await control.wait(run_id, timeout=60, drained=True)).drained
    return await control.receipt(run_id)


@pytest.mark.parametrize("end", ENDS)
def test_no_result_reaches_the_transcript_after_the_ack(end: str) -> None:
    """A tool that swallows its cancel and returns in the face of the stop leaves `interrupted`, not its result."""

    async def slow() -> str:
        await swallowed(asyncio.sleep(0.001))
        await swallowed(asyncio.sleep(0.001))
        return "too late"

    async def agent(run: Run, message: Message) -> str:
        return message.text if message.text == "next" else str(await run.call(slow))

    async def main() -> None:
        async with open_control(agent) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.TOOL)
            while [e.data.state for e in sink.of(sent.run_id) if e.kind is EventKind.TOOL][-1] != ToolState.RUNNING:
                await asyncio.sleep(0)
            await ENDS[end](control, sent.run_id)
            receipt = await drained(control, sent.run_id)
            assert [(each.name, each.state) for each in receipt.tools] == [("slow", ToolState.INTERRUPTED)]
            assert receipt.refused == {Effect.RESULT: 1}
            results = [entry for entry in await control.history("s") if entry.role == "result"]
            assert [(entry.state, "unknown" in entry.text) for entry in results] == [(ToolState.INTERRUPTED, True)]
            assert "too late" not in repr(sink.events)

    seeded(main, range(12))


@pytest.mark.parametrize("end", ENDS)
def test_no_final_text_after_the_ack(end: str) -> None:
    """A reply that is returned after the stop is refused and counted as `final`; nobody is shown it."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "next":
            return "next reply"
        await swallowed(asyncio.sleep(60))
        return "too late"

    async def main() -> None:
        async with open_control(agent) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            await ENDS[end](control, sent.run_id)
            receipt = await drained(control, sent.run_id)
            assert receipt.refused == {Effect.FINAL: 1}
            assert "too late" not in repr(sink.events) + repr(await control.history("s"))
            assert (await control.wait(sent.run_id)).text == ""

    seeded(main)


@pytest.mark.parametrize("effect", [Effect.SPAWN, Effect.QUESTION, Effect.CHILD, Effect.HOLD])
def test_the_fence_comes_first(effect: Effect) -> None:
    """What a run asks of others works while it is current, and is Stale once it is not."""
    errors: list[BaseException | None] = []

    async def agent(run: Run, message: Message) -> None:
        errors.append(await swallowed(VERBS[effect](run)))
        await run.say("asked")
        await swallowed(asyncio.sleep(60))
        errors.append(await swallowed(VERBS[effect](run)))

    async def main() -> None:
        errors.clear()
        async with open_control(agent, agents=AGENTS, processes=VirtualProcesses(Random(1))) as control:
            sent = await control.send("s", "hello")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(run=sent.run_id)
            refused = (await drained(control, sent.run_id)).refused
            assert refused[effect] == 1 and set(refused) <= {effect, Effect.FINAL}
        assert [type(error) for error in errors] == [type(None), Stale]

    seeded(main)


def test_every_kind_of_effect_is_covered() -> None:
    """The tests above cover every effect there is: ten verbs, the result and the final text."""
    assert set(Effect) == {*VERBS, Effect.RESULT, Effect.FINAL}


def test_a_thread_cannot_speak_for_a_run_that_is_over() -> None:
    """A worker thread that hammers every verb through the loop is heard no more once stop() has returned."""
    errors: list[BaseException] = []
    enough, finished = threading.Event(), threading.Event()

    def hammer(run: Run, loop: asyncio.AbstractEventLoop) -> None:
        tries = 0
        while tries < 60:
            for verb in VERBS.values():
                future = asyncio.run_coroutine_threadsafe(pester(run, verb, errors, times=1, swallow=True), loop)
                future.result(60)
            tries += enough.is_set()
            if tries and not isinstance(errors[-1], Stale):
                break
        finished.set()

    async def agent(run: Run, message: Message) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=hammer, args=(run, loop), daemon=True).start()
        await asyncio.sleep(60)

    async def main() -> None:
        quick = Settings(grace_seconds=0.05, drain_seconds=0.1)
        async with open_control(agent, agents=AGENTS, processes=VirtualProcesses(Random(1)), settings=quick) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            while len(sink.of(sent.run_id)) < 30:
                await asyncio.sleep(0.001)
            await control.stop(session="s")
            before = len(sink.events)
            enough.set()
            while not finished.is_set():
                await asyncio.sleep(0.001)
            assert sink.kinds(sent.run_id)[-1] == "ended"
            assert [e.kind for e in sink.events[before:]] == [EventKind.RECEIPT] * len(sink.events[before:])
        assert {type(error) for error in errors} == {Stale}
        assert len(errors) >= 59 * len(VERBS)

    asyncio.run(main())


@pytest.mark.parametrize("end", ENDS)
def test_no_body_begins_after_the_ack(end: str) -> None:
    """Wherever in a turn of calls and batches the end lands, no body begins after it; all acts end with the drain."""
    acts: list[str] = []

    async def act() -> str:
        acts.append("begins")
        for _ in range(3):
            await swallowed(asyncio.sleep(0.0005))
            acts.append("acts")
        return "done"

    async def agent(run: Run, message: Message) -> None:
        if message.text == "next":
            return
        while True:
            with contextlib.suppress(BaseException):
                await run.call(act)
                await run.batch([(act, {}), (act, {})])
                await run.batch([(act, {}), (act, {})], parallel=True)

    async def main() -> None:
        acts.clear()
        random = Random(seed)
        store = MemoryStore(latency_seconds=random.choice((0.0, 0.001)))
        async with open_control(agent, store=store) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.STARTED)
            await asyncio.sleep(random.random() * 0.02)
            await ENDS[end](control, sent.run_id)
            begun = acts.count("begins")
            receipt = await drained(control, sent.run_id)
            assert acts.count("begins") == begun
            assert receipt.drain is not Drain.PENDING
            after = len(acts)
            await asyncio.sleep(30)
            assert len(acts) == after
            states = {each.state for each in receipt.tools}
            assert states <= {ToolState.FINISHED, ToolState.INTERRUPTED, ToolState.SKIPPED}
            running = [row.state for row in store._tools.get(sent.run_id, {}).values()]
            assert ToolState.RUNNING not in running and ToolState.PENDING not in running

    for seed in range(25):
        seeded(main, (seed,))


def test_a_cut_body_is_named_and_never_acts_again() -> None:
    """A body that swallows every cancel has its grace, is named `interrupted`, and after `drained` is still."""
    acts: list[float] = []

    async def act() -> None:
        while True:
            await swallowed(asyncio.sleep(0.1))
            acts.append(asyncio.get_running_loop().time())

    async def agent(run: Run, message: Message) -> None:
        await run.call(act)

    async def main() -> None:
        acts.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(1)
            receipt = await control.stop(session="s")
            assert receipt.drain is Drain.PENDING
            assert [(each.name, each.state) for each in receipt.tools] == [("act", ToolState.INTERRUPTED)]
            before = len(acts)
            receipt = await drained(control, sent.run_id)
            assert len(acts) > before, "it had its grace"
            assert receipt.unconfirmed == (f"agent of {sent.run_id} (never resumed)",)
            assert (receipt.drain, receipt.runs[0].body) == (Drain.UNCONFIRMED, BodyState.ABANDONED)
            after = len(acts)
            await asyncio.sleep(60)
            assert len(acts) == after

    seeded(main)


def test_a_thread_that_has_not_begun_does_not_begin() -> None:
    """A synchronous tool whose thread comes late does not begin after the stop; one that has begun is named."""
    acts: list[str] = []

    @tool(thread=True)
    def act() -> None:
        acts.append("acts")

    async def agent(run: Run, message: Message) -> None:
        await run.call(act)

    async def main() -> None:
        acts.clear()
        async with open_control(agent, threads=VirtualThreads(Random(seed))) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.TOOL)
            await asyncio.sleep(0.0005)
            receipt = await control.stop(session="s")
            begun = len(acts)
            await asyncio.sleep(60)
            assert len(acts) == begun
            ended = (await control.wait(sent.run_id)).ending
            assert (receipt.aborted, ended) in ((True, Ending.STOPPED), (False, Ending.COMPLETED))

    for seed in range(20):
        run_seeded(main, seed)


def test_what_waits_in_a_buffer_is_not_passed_on() -> None:
    """A slow watcher is given no delta, typing or progress of the old run once the stop is acknowledged."""
    given: list[tuple[str, bool]] = []

    async def agent(run: Run, message: Message) -> None:
        for _ in range(20):
            await run.typing()
            await run.say("d")
            await run.progress("p")
        await asyncio.sleep(60)

    async def main() -> None:
        given.clear()
        over = False
        async with open_control(agent) as control:
            sent = await control.send("s", "hello")

            async def watch() -> None:
                async for event in control.watch(run=sent.run_id):
                    given.append((event.kind, over))
                    await asyncio.sleep(0.01)

            watcher = asyncio.create_task(watch())
            await asyncio.sleep(Random(seed).choice((0.001, 0.03, 0.1)))
            await control.stop(session="s")
            over = True
            await watcher
        late = [kind for kind, after in given if after]
        assert given[-1][0] == "ended"
        assert not {"delta", "typing", "progress"} & set(late)

    for seed in range(10):
        seeded(main, (seed,))


def test_the_new_run_is_untouched() -> None:
    """The fence is the run's, not the session's: the message that took over says and does all it wants."""

    async def agent(run: Run, message: Message) -> str:
        if message.text == "old":
            errors: list[BaseException] = []
            await pester(run, VERBS[Effect.DELTA], errors, times=90, swallow=True)
        await run.say("new ")
        await run.call(harmless)
        return "reply"

    async def main() -> None:
        async with open_control(agent) as control:
            sink = Sink(control)
            old = await control.send("s", "old")
            await sink.until(old.run_id, EventKind.STARTED)
            await asyncio.sleep(0.003)
            new = await control.send("s", "new")
            outcome = await control.wait(new.run_id, timeout=5)
            assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "new \n\nreply")
            shown = sink.kinds(new.run_id)
            assert shown == ["message", "started", "delta", "block", "tool", "tool", "tool", "block", "ended"]
            assert (await control.wait(old.run_id, drained=True)).superseded_by == new.run_id
            assert (await control.receipt(new.run_id)).refused == {}

    seeded(main)
