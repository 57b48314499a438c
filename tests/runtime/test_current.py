"""`control.is_current`: a sink asks whether a run is current, in the step in which it delivers."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from interlock import BadInput, Control, Ending, Event, MemoryStore, Message, Run, Unavailable, open_control
from interlock.client.door import Sink
from interlock.core.decision import Decision
from interlock.core.fence import Fence
from interlock.core.names import EventKind, RunId
from interlock.stores.base import Ticket

from .scene import echoes, idles, mumbles, raises, seeded, started, told
from .test_steer import Listener, taken_in


class Watchful(MemoryStore):
    """A store that asks, in the step in which an ending is handed to it, whether that run is current."""

    def __init__(self) -> None:
        super().__init__()
        self.control: Control | None = None
        self.answers: dict[RunId, bool] = {}

    def decide(self, decision: Decision) -> Ticket:
        for row in decision.endings:
            if self.control is not None:
                self.answers.setdefault(row.id, self.control.is_current(row.id))
        return super().decide(decision)


async def takes_over(control: Control, run: str) -> None:
    await control.send("s", "else")


async def stops(control: Control, run: str) -> None:
    await control.stop(session="s")


async def resets(control: Control, run: str) -> None:
    await control.reset("s")


async def waits(control: Control, run: str) -> None:
    await control.wait(run)


WAYS: dict[str, tuple[str, float | None, Callable[[Control, str], Any], Ending]] = {
    "stop": ("idle", None, stops, Ending.STOPPED),
    "reset": ("idle", None, resets, Ending.STOPPED),
    "takeover": ("idle", None, takes_over, Ending.SUPERSEDED),
    "deadline": ("idle", 0.5, waits, Ending.TIMED_OUT),
    "return": ("answer", None, waits, Ending.COMPLETED),
    "error": ("fail", None, waits, Ending.FAILED),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_end_counts_in_the_step_of_the_fall(way: str) -> None:
    """A run is current until it falls, and no longer in the very step that settles its ending (race 135)."""
    text, deadline, end, ending = WAYS[way]

    async def agent(run: Run, message: Message) -> str | None:
        await run.say("begun")
        await anyio.sleep(0.1)
        assert run.current and control_of[0].is_current(run.id)
        if message.text == "fail":
            raise ValueError("no")
        return "done" if message.text == "answer" else await idles(run, message)

    control_of: list[Control] = []

    async def main() -> None:
        store = Watchful()
        async with open_control(agent, store=store) as control:
            store.control = control
            control_of[:] = [control]
            sent = await control.send("s", text, deadline=deadline)
            await told(control, sent.run_id, EventKind.DELTA)
            assert control.is_current(sent.run_id)
            await end(control, sent.run_id)
            assert not control.is_current(sent.run_id)
            assert store.answers[sent.run_id] is False, "it was still current when its ending was handed over"
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is ending
            await anyio.sleep(10)
            assert not control.is_current(sent.run_id)
            store.control = None

    seeded(main)


def test_a_stop_counts_before_its_answer() -> None:
    """A stop makes its run stale for every sink before its answer, which a stalled store delays (race 135)."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(mumbles, store=store) as control:
            sent = await control.send("s", "it")
            await told(control, sent.run_id, EventKind.DELTA)
            store.faults.stall = True
            stopping = asyncio.create_task(control.stop(session="s"))
            while control.is_current(sent.run_id):
                assert not stopping.done()
                await asyncio.sleep(0)
            assert not stopping.done()
            assert (await control.wait(sent.run_id, timeout=0)).ending is Ending.PENDING, "nobody was told yet"
            store.resume()
            assert (await stopping).aborted

    seeded(main)


def test_no_subscriber_hears_an_effect_of_a_run_that_is_not_current() -> None:
    """Every effect of a run reaches its sinks in a step in which they find the run current."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            heard: list[tuple[str, bool]] = []

            class Hearing(Sink):
                def take(self, event: Event, source: Fence | None) -> bool:
                    if event.run_id is not None:
                        assert source is not None and (source.cause is None) is control.is_current(event.run_id)
                        heard.append((event.kind.value, control.is_current(event.run_id)))
                    return True

            control.feed.follow_all(Hearing())
            sent = await control.send("s", "it")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.stop(session="s")
            assert heard == [("message", True), ("started", True), ("delta", True), ("ended", False)]

    seeded(main)


def test_a_waiting_run_is_current_until_it_is_stopped() -> None:
    """A waiting message is current, and stays so through its turn until it falls."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            second, third = [await control.send("s", text, strategy="queue") for text in ("two", "three")]
            assert [control.is_current(each.run_id) for each in (first, second, third)] == [True, True, True]
            await control.stop(run=third.run_id)
            assert [control.is_current(each.run_id) for each in (first, second, third)] == [True, True, False]
            await control.stop(run=first.run_id)
            await started(control, second.run_id)
            assert [control.is_current(each.run_id) for each in (first, second, third)] == [False, True, False]

    seeded(main)


def test_a_steered_message_is_as_current_as_the_run_that_took_it() -> None:
    """An absorbed message is current as long as the run that absorbed it."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent, [steer] = await taken_in(agent, control, "more")
            assert steer.run_id != sent.run_id
            assert control.is_current(steer.run_id)
            await control.stop(session="s")
            assert not control.is_current(steer.run_id)

    seeded(main)


def test_a_message_that_was_withdrawn_is_not_current() -> None:
    """A message that the store did not commit is not current once its sender was told so."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.0)
        async with open_control(idles, store=store) as control:
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello"))
            while not (infos := await control.runs()):
                await asyncio.sleep(0)
            with pytest.raises(Unavailable):
                await sending
            assert not control.is_current(infos[0].id)
            store.resume()

    seeded(main)


def test_a_delivery_under_a_used_key_is_the_first_run_s() -> None:
    """A message delivered again under its key has no run of its own; only the first run is current."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "hello", key="k")
            known = set(control._registry.runs)
            again = await control.send("s", "hello", key="k")
            assert again.run_id == first.run_id
            assert control.is_current(first.run_id)
            left = [run for run in set(control._registry.runs) - known if run != first.run_id]
            assert not any(control.is_current(run) for run in left)
            await control.stop(session="s")
            assert not control.is_current(first.run_id)

    seeded(main)


def test_a_child_falls_with_its_parent_for_its_sinks_too() -> None:
    """A parent's stop makes its child stale in the same step; a detached one stays current until the session's stop."""

    async def parent(run: Run, message: Message) -> None:
        await run.delegate("idles", "apart", detached=True)
        await run.delegate("idles", "below")

    async def main() -> None:
        async with open_control(parent, agents={"idles": idles}) as control:
            sent = await control.send("s", "go")
            while len(await control.runs()) < 3:
                await anyio.sleep(0.01)
            infos = {info.id: info for info in await control.runs()}
            apart, below = (
                next(each.id for each in infos.values() if each.parent and each.detached is detached)
                for detached in (True, False)
            )
            await control.stop(run=sent.run_id)
            assert [control.is_current(each) for each in (sent.run_id, below, apart)] == [False, False, True]
            await control.stop(session="s")
            assert not control.is_current(apart)

    seeded(main)


def test_another_s_run_looks_like_none() -> None:
    """A run is current for those who may see it, as long as they may; for anybody else it is not current (P7)."""

    async def main() -> None:
        async with open_control(idles, admins=["root"], readers=["rita"]) as control:
            sent = await control.send("alice/s", "hello", by="alice")

            def who() -> list[str]:
                people = ("local", "alice", "root", "rita", "bob", "mallory")
                return [name for name in people if control.is_current(sent.run_id, by=name)]

            assert who() == ["local", "alice", "root", "rita"]
            await control.share("alice/s", with_="bob", may="read", by="alice")
            assert who() == ["local", "alice", "root", "rita", "bob"]
            taking = asyncio.create_task(control.unshare("alice/s", with_="bob", by="alice"))
            while "bob" in who():
                assert not taking.done(), "the right outlives the answer that it is gone"
                await asyncio.sleep(0)
            await taking
            await control.stop(session="alice/s")
            assert who() == []

    seeded(main)


def test_a_child_is_current_for_those_who_see_its_home() -> None:
    """A child is current for the principals who may see its home session, though it has a session of its own."""

    async def parent(run: Run, message: Message) -> None:
        await run.delegate("idles", "below")

    async def main() -> None:
        async with open_control(parent, agents={"idles": idles}) as control:
            await control.send("alice/s", "go", by="alice")
            while len(infos := await control.runs()) < 2:
                await anyio.sleep(0.01)
            child = next(info.id for info in infos if info.parent)
            assert [control.is_current(child, by=name) for name in ("alice", "bob")] == [True, False]
            await control.share("alice/s", with_="bob", may="read", by="alice")
            assert control.is_current(child, by="bob")

    seeded(main)


def test_what_is_no_run_here_is_not_current() -> None:
    """An unknown id, a key, a session and a receipt are not current, like another principal's run."""

    async def main() -> None:
        async with open_control(echoes) as control:
            sent = await control.send("s", "hello", key="k")
            receipt = await control.receipt((await control.wait(sent.run_id, drained=True)).run_id)
            assert receipt.id is not None
            assert not any(control.is_current(name) for name in ("r-9-9", "k", "s", receipt.id, sent.run_id))

    seeded(main)


@pytest.mark.parametrize("run", [None, 7, b"r-1-1", "", "  ", "r" * 513, ["r-1-1"]])
def test_what_can_be_no_id_is_refused(run: Any) -> None:
    """A value that cannot be a name is refused as bad input, as by every verb."""

    async def main() -> None:
        async with open_control(echoes) as control:
            with raises(BadInput, "run must be a name of 1 to 512 characters"):
                control.is_current(run)
            with raises(BadInput, "by must be a name"):
                control.is_current("r-1-1", by=run)

    seeded(main, range(1))


def test_nothing_is_current_in_a_control_that_closes() -> None:
    """Closing makes every run not current: those at work fall, and those that wait are left for the next start."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            runs = [(await control.send("s", text, strategy="queue")).run_id for text in ("one", "two")]
            assert all(control.is_current(run) for run in runs)
            closing = asyncio.create_task(control.close())
            while any(control.is_current(run) for run in runs):
                assert not closing.done()
                await asyncio.sleep(0)
            assert not closing.done()
            await closing
            assert not any(control.is_current(run) for run in runs)

    seeded(main)


def test_another_thread_is_told_to_ask_on_the_loop() -> None:
    """A question from another thread is refused: a stop could be answered between the question and the delivery."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello")
            said: list[BaseException] = []

            def ask() -> None:
                try:
                    control.is_current(sent.run_id)
                except BaseException as error:
                    said.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join(30)
            assert [type(error) for error in said] == [BadInput]
            assert "belongs to the loop it was opened on; ask there, in the step that delivers" in str(said[0])
            assert "stop" not in str(said[0]), "it was a question"

    asyncio.run(main())
