"""P1. After a stop or takeover is acknowledged, no effect of the old run is **admitted** anywhere: delta, block,
typing, progress, final, tool call, tool result into the transcript, question, child run, process spawn. A tool body
that control had already permitted is cut and named in the receipt as `interrupted, effect unknown`; after `drained` it
has no effect at all.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing
from itertools import product
from random import Random
from typing import Any

import pytest

from interlock import Control, Ending, Event, MemoryStore, Message, Run, Settings, Stale, ToolState, open_control, tool
from interlock.core.names import BodyState, Drain, Effect, EventKind
from interlock.testing import VirtualProcesses, VirtualThreads, run_seeded
from runtime.scene import BRIEF, Sink, harmless, swallowed, told

from .scene import AGENTS, VERBS, pester, seeded

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
    """After the ack no effect arrives, whatever its kind, whoever asks, and whether or not cancels are swallowed."""
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
            if caller is by_the_agent:
                # The agent tried all of this before the drain, so the receipt counts every refusal.
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
    """A tool that swallows its cancel and returns after the stop leaves `interrupted`, not its result."""

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
    """A run's requests to others work while it is current, and raise Stale once it is not."""
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
    """No body begins after the end, wherever that lands in a turn of calls and batches; all acts end with the drain."""
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
    """The fence is the run's, not the session's: the run that took over says and does all it wants."""

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


class Deaf:
    """Drives a coroutine and keeps every cancel from it: the fence must hold with cancellation switched off."""

    def __init__(self, body: Coroutine[Any, Any, Any]) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            try:
                wanted = self._body.send(None)
            except StopIteration as returned:
                return returned.value
            with contextlib.suppress(asyncio.CancelledError):
                yield wanted


@pytest.mark.parametrize("latency", [0.0, 0.005])
def test_a_stop_before_the_ack(latency: float) -> None:
    """A stop that comes before the ack ends the message: acked, then told as stopped, and it never runs (race 2)."""
    begun: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        begun.append(message.text)

    async def main() -> None:
        begun.clear()
        random = Random(seed)
        store = MemoryStore(latency_seconds=latency)
        async with open_control(agent, store=store) as control:
            sink = Sink(control)
            acked: list[str] = []

            async def send() -> None:
                sent = await control.send("s", "hello", by="alice", key="k")
                acked.append(sent.run_id)
                assert sent.run_id in store._runs, "registered before the ack"

            sending = asyncio.create_task(send())
            for _ in range(random.choice((1, 2, 3))):
                await asyncio.sleep(0)
            if acked or not control._registry.runs:
                await sending
                return  # in this schedule the two do not meet
            receipt = await control.stop(session="s", by="alice")
            [fallen] = receipt.runs
            await sending
            assert acked == [fallen.id] and fallen.outcome.ending is Ending.STOPPED
            assert sink.kinds(fallen.id) == ["message", "ended"]
            assert begun == []

    for seed in range(30):
        seeded(main, (seed,))


def test_no_body_begins_between_record_and_permit() -> None:
    """A stop while a call's start is being committed, in a task no cancel reaches: its body never begins (race 5)."""
    acts: list[str] = []

    async def act() -> None:
        acts.append("acts")

    async def agent(run: Run, message: Message) -> None:
        own = asyncio.create_task(swallowed(run.call(act)), name="own task")
        await asyncio.sleep(3600)
        assert own.done()

    async def main() -> None:
        acts.clear()
        store = MemoryStore(latency_seconds=0.01)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "hello")
            await sink.until(sent.run_id, EventKind.TOOL)
            await asyncio.sleep(0.002)
            receipt = await control.stop(session="s")
            assert receipt.aborted
            assert [each.state for each in receipt.tools] == [ToolState.SKIPPED]
            await control.wait(sent.run_id, drained=True)
        assert acts == []

    seeded(main, range(12), jump=0.0)


def test_what_an_adapter_has_not_sent_is_dropped() -> None:
    """A slow channel sends no delta after the stop; what was on the wire has a lower position than the end (race 9)."""

    async def agent(run: Run, message: Message) -> None:
        for n in range(30):
            await run.say(f"{n} ")
        await asyncio.sleep(3600)

    async def main() -> None:
        random = Random(seed)
        wire: list[tuple[Event, bool]] = []
        stopped = False
        async with open_control(agent, settings=BRIEF) as control:
            sent = await control.send("s", "hello")

            async def channel() -> None:
                async for event in control.watch(run=sent.run_id):
                    wire.append((event, stopped))
                    await asyncio.sleep(0.01)

            sending = asyncio.create_task(channel())
            await asyncio.sleep(random.choice((0.015, 0.05, 0.12)))
            await control.stop(session="s")
            stopped = True
            await sending
        *before, (end, _) = wire
        assert end.kind is EventKind.ENDED
        assert [event.kind for event, late in before if late and event.kind is EventKind.DELTA] == []
        assert all(event.position < end.position for event, _ in before)
        sent_text = "".join(event.data.text for event, _ in before if event.kind is EventKind.DELTA)
        assert end.data.outcome.text.startswith(sent_text)

    for seed in range(8):
        seeded(main, (seed,))


@pytest.mark.parametrize("phase", ["preflight", "provider", "compaction", "memory flush"])
def test_no_phase_follows_a_stop(phase: str) -> None:
    """A stop in any phase is the end: async work that goes on enters no other, and no run overlaps (race 34)."""
    entered: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        if message.text == "new":
            return
        async with run.phase(phase):
            await swallowed(asyncio.sleep(3600))
        for following in ("compaction", "memory flush", "post_turn"):
            with contextlib.suppress(Stale):
                async with run.phase(following):
                    entered.append(following)

    async def main() -> None:
        entered.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            sent = await control.send("s", "old")
            await sink.until(sent.run_id, EventKind.PHASE)
            await control.stop(session="s")
            new = await control.send("s", "new")
            await control.wait(new.run_id)
            await control.wait(sent.run_id, drained=True)
            kinds = [(event.run_id, event.kind) for event in sink.events if event.run_id]
            assert kinds.index((sent.run_id, EventKind.ENDED)) < kinds.index((new.run_id, EventKind.STARTED))
            assert (await control.receipt(sent.run_id)).refused["phase"] == 3
        assert entered == []

    seeded(main)


@pytest.mark.parametrize("fallback", [False, True])
def test_no_model_is_asked_after_a_stop(fallback: bool) -> None:
    """A retry loop, or a switch to another model, that takes a cancel for an error asks nobody again (races 35, 36)."""
    asked: list[str] = []

    async def ask(model: str) -> str:
        asked.append(model)
        await asyncio.sleep(0.01)
        raise ConnectionError("overloaded")

    async def agent(run: Run, message: Message) -> str:
        for attempt in range(20):
            try:
                async with run.phase("provider"):
                    return await ask(f"model {attempt}" if fallback else "model")
            except (Exception, asyncio.CancelledError):
                await swallowed(asyncio.sleep(0.005))
        return "none answered"

    async def main() -> None:
        asked.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sent = await control.send("s", "hello")
            await asyncio.sleep(Random(seed).choice((0.03, 0.035, 0.04, 0.05)))
            await control.stop(session="s")
            before = len(asked)
            assert before > 1
            await control.wait(sent.run_id, drained=True)
            await asyncio.sleep(5)
            assert len(asked) == before

    for seed in range(12):
        seeded(main, (seed,), jump=0.0)


def test_a_provider_stream_that_goes_on_sending() -> None:
    """The run discards what a stream brings after the stop, and closes a stream that can be closed (race 37)."""
    closed: list[str] = []

    async def stream() -> AsyncIterator[str]:
        try:
            for n in range(60):
                await swallowed(asyncio.sleep(0.001))
                yield f"{n} "
        finally:
            closed.append("closed")

    async def agent(run: Run, message: Message) -> None:
        async def pump() -> None:
            async with aclosing(stream()) as deltas:
                async for delta in deltas:
                    await (swallowed(run.say(delta)) if message.text == "deaf" else run.say(delta))

        await (Deaf(pump()) if message.text == "deaf" else pump())

    async def main() -> None:
        closed.clear()
        async with open_control(agent, settings=BRIEF) as control:
            sink = Sink(control)
            for text in ("deaf", "polite"):
                sent = await control.send("s", text)
                await sink.until(sent.run_id, EventKind.DELTA)
                await control.stop(session="s")
                shown = len(sink.of(sent.run_id))
                await control.wait(sent.run_id, drained=True)
                assert len(sink.of(sent.run_id)) == shown
                outcome = await control.wait(sent.run_id)
                said = "".join(e.data.text for e in sink.of(sent.run_id) if e.kind is EventKind.DELTA)
                assert outcome.text == said
        assert closed == ["closed", "closed"]

    seeded(main, range(12))
