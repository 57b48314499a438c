"""A control that lapses ends everything in one step, tells and keeps nothing more, and leaves the rest to the next."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Ending, EventKind, Message, Run, Settings, Stale, Unavailable, open_control, stopping
from interlock.core.verbs import Stop

from .lives import Place, kept_out, until
from .scene import kinds, log_of, raises, started

BRIEF = Settings(commit_seconds=10.0, grace_seconds=0.05, drain_seconds=0.2, retry_seconds=0.05)


class Stubborn:
    """An agent with a task of its own that nobody cuts, and that goes on talking; it notes what was admitted."""

    def __init__(self) -> None:
        self.admitted: list[str] = []
        self.go_on = True

    async def __call__(self, run: Run, message: Message) -> str:
        self.aside = asyncio.create_task(self._talk(run, message))
        await asyncio.Event().wait()
        return "never"

    async def _talk(self, run: Run, message: Message) -> None:
        while self.go_on:
            await asyncio.sleep(0.001)
            with contextlib.suppress(Stale):
                await run.say("word ")
                self.admitted.append(message.session)


def test_nothing_is_told_or_kept_after_a_lapse(place: Place) -> None:
    """No event reaches a watcher, no decision the store; callers are told; the next start finds the runs lost."""
    agent = Stubborn()
    seen: list[Any] = []
    problems: list[BaseException] = []
    runs: list[str] = []

    async def scene(control: Control) -> None:
        async def watch() -> None:
            try:
                async for event in control.watch("s"):
                    seen.append(event)
            except Unavailable as lapsed:
                problems.append(lapsed)

        sent = await control.send("s", "go", key="k1")
        waits = await control.send("s", "waits", strategy="queue", key="k2")
        runs.extend((sent.run_id, waits.run_id))
        watching = asyncio.create_task(watch())
        await until(lambda: any(event.kind is EventKind.DELTA for event in seen))
        asking = [
            asyncio.create_task(coroutine)
            for coroutine in (control.wait(sent.run_id), control.wait(waits.run_id, drained=True))
        ]
        await asyncio.sleep(0)
        lapsing = asyncio.create_task(control.lapse())
        await asyncio.sleep(0)
        told, admitted = len(seen), len(agent.admitted)
        assert not control.is_current(sent.run_id)
        await lapsing
        await asyncio.sleep(0.05)
        for each in asking:
            with raises(Unavailable, "has lapsed"):
                await each
        await watching
        assert len(problems) == 1 and "has lapsed" in str(problems[0])
        assert len(seen) == told and len(agent.admitted) == admitted
        assert "ended" not in kinds(seen, sent.run_id)
        with raises(Unavailable, "lapsed|closing"):
            await control.send("s", "more")
        with raises(Unavailable, "lapsed"):
            await control.stop(session="s")
        await control.close()
        agent.go_on = False

    async def after(control: Control) -> None:
        assert (await control.wait(runs[0])).ending is Ending.LOST
        assert (await control.wait(runs[1])).text == "waits"
        log = await log_of(control, "s")
        assert "gap" in kinds(log) and kinds(log, runs[0]).count("ended") == 1

    async def says(run: Run, message: Message) -> str:
        return message.text

    place.life(scene, agent)
    place.life(after, says)


def test_an_ending_on_its_way_is_not_told(place: Place) -> None:
    """A stop that the store has not answered when control lapses is not told, and its caller gets an error."""
    agent, seen = Stubborn(), []
    runs: list[str] = []

    async def scene(control: Control) -> None:
        sent = await control.send("s", "go")
        runs.append(sent.run_id)
        await started(control, sent.run_id)
        control.feed.follow("s", Notes(seen))
        let_in = kept_out(place.store)
        stopping = asyncio.ensure_future(control.stop(session="s"))
        await asyncio.sleep(0.05)
        lapsing = asyncio.ensure_future(control.lapse())
        await asyncio.sleep(0)
        let_in()
        told = list(seen)
        with raises(Unavailable, "has lapsed"):
            await stopping
        await lapsing
        assert seen == told and "ended" not in [event.kind.value for event in seen]
        agent.go_on = False

    async def after(control: Control) -> None:
        assert (await control.wait(runs[0])).ending is Ending.LOST

    async def idle(run: Run, message: Message) -> None:
        await asyncio.Event().wait()

    place.life(scene, agent)
    place.life(after, idle)


class Notes:
    """A sink that keeps what it is given."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def take(self, event: Any, source: Any) -> bool:
        self.seen.append(event)
        return True

    def caught_up(self, position: int) -> None:
        pass

    def fell(self, source: Any) -> None:
        pass

    def close(self, error: Any) -> None:
        pass


class Stuck(asyncio.Future[None]):
    """A future that raises when it is cancelled, until it is let go."""

    held = True

    def cancel(self, msg: Any = None) -> bool:
        if self.held:
            raise RuntimeError("this cannot be cancelled")
        return super().cancel(msg)


def test_every_caller_is_told_and_every_body_is_cut(place: Place) -> None:
    """A stop and an answer that begin in the step of the lapse are told, a later answer too, and code is notified.

    One agent waits for something that raises when it is cancelled, which keeps the lapse from nothing.
    """
    notices: list[Any] = []
    stuck: list[Stuck] = []

    async def agent(run: Run, message: Message) -> None:
        notices.append(stopping())
        if message.text == "stuck":
            stuck.append(Stuck())
            await stuck[0]
        await run.ask("go on?")

    async def scene(control: Control) -> None:
        for session in ("stuck", "a", "b"):
            await control.send(session, session)
        await until(lambda: len(notices) == 3 and len(control._registry.questions) == 2)
        first, second = control._registry.questions
        answer = asyncio.create_task(control.answer(first, True))
        while control._registry.questions[first].answering is None:
            await asyncio.sleep(0)
        stop = control.ask(Stop(session="other", key="k"))
        await control.lapse()
        assert all(notice.is_set() for notice in notices)
        for asked in (answer, stop, control.answer(second, True)):
            with raises(Unavailable, "has lapsed"):
                await asyncio.wait_for(asked, 30)
        stuck[0].held = False

    place.life(scene, agent)


SHRUGS = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').write('up')\n"
    "while True: time.sleep(0.01)"
)


@pytest.mark.parametrize("driver", ["inline", "host"])
def test_processes_are_killed_without_a_grace(tmp_path: Path, driver: str) -> None:
    """A process that ignores TERM and has a long grace is gone when the lapse is over, and so is the agent's host."""
    place = tmp_path / "data"

    async def main() -> None:
        brief = Settings(grace_seconds=60.0, drain_seconds=60.0)
        up = tmp_path / "up"
        async with open_control(
            f"{__name__}:spawns", driver=driver, store=f"sqlite:///{place}", settings=brief
        ) as control:
            sent = await control.send("s", str(up))
            while not up.exists():
                await asyncio.sleep(0.01)
            [process] = await control.processes()
            await asyncio.wait_for(control.lapse(), 30)
            assert not Path(f"/proc/{process.pid}").exists()
        async with open_control(f"{__name__}:spawns", driver="inline", store=f"sqlite:///{place}") as control:
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.LOST

    asyncio.run(asyncio.wait_for(main(), 60))


async def spawns(run: Run, message: Message) -> None:
    """Run a process that ignores TERM."""
    await run.spawn(sys.executable, "-c", SHRUGS, message.text, grace=60)
