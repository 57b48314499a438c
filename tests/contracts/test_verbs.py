"""The contract of each verb, on each driver: before the fall, while it comes, after it, and with wrong values.

The tests go through `HANDLERS`: a verb without a case fails. What only one verb does is in test_run.py.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Drain, Ending, EventKind, QuestionState, Receipt, Settings, Stale, open_control
from interlock.agent.verbs import REQUESTS, TELLINGS, AgentVerb, Took
from interlock.core.events import QuestionData
from interlock.core.names import PASSING
from interlock.hosts import turn
from interlock.runtime.handlers import HANDLERS

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # `pytest` alone does not add it; a host gets this path
    sys.path.insert(0, ROOT)

from tests.contracts.test_run import read  # noqa: E402
from tests.contracts.verb_cases import CASES  # noqa: E402

MODULE = "tests.contracts.verb_cases"
BOUND_SECONDS = 60.0
PATIENT = Settings(grace_seconds=BOUND_SECONDS, drain_seconds=BOUND_SECONDS)
BAD: dict[type[AgentVerb], list[Any]] = {}
"""What a driver said of wrong values, for the next to be compared with."""


class Stage:
    """A control on a driver, and a loop that runs while a verb is played."""

    def __init__(self, driver: str, room: Path, runner: asyncio.Runner) -> None:
        self.driver = driver
        self.control: Control
        self._room = room
        self._runner = runner
        self._numbers = itertools.count(1)

    def do(self, work: Any) -> Any:
        """Run something on the stage's loop, bounded in time."""

        async def bounded() -> Any:
            async with asyncio.timeout(BOUND_SECONDS):
                return await work

        return self._runner.run(bounded())

    async def begun(self, verb: type[AgentVerb], stage: str) -> tuple[str, Path]:
        """Send a message that plays a stage of a verb; return the run and the file of its notes."""
        path = self._room / f"notes-{next(self._numbers)}"
        sent = await self.control.send(f"{self.driver} {path.name}", f"{verb.__name__} {stage} {path}")
        return sent.run_id, path

    async def stopped(self, run: str, path: Path) -> Receipt:
        """Stop a run whose agent is ready; return its receipt when it is drained. Nothing follows the ack."""
        while not any(word == "ready" for word, _ in read(path)):
            await asyncio.sleep(0.002)
        receipt = await self.control.stop(run=run)
        assert receipt.aborted
        said = [event async for event in self.seen(run) if event.kind not in PASSING]
        outcome = await self.control.wait(run, drained=True)
        assert outcome.ending is Ending.STOPPED
        assert said == [event async for event in self.seen(run) if event.kind not in PASSING]
        assert said[-1].kind is EventKind.ENDED
        return await self.control.receipt(run)

    async def seen(self, run: str) -> AsyncIterator[Any]:
        """Yield the events of a run, until its end."""
        async with aclosing(self.control.watch(run=run)) as events:
            async for event in events:
                yield event

    async def help(self, run: str, *, steer: bool) -> None:
        """Answer the questions of a run, or steer a message to it."""
        if steer:
            session = (await self.control.find(run)).session  # type: ignore[union-attr]
            await self.control.send(session, "more", strategy="steer")
        async for event in self.seen(run):
            if isinstance(event.data, QuestionData) and event.data.state is QuestionState.OPEN:
                await self.control.answer(event.data.question_id, True, by="local")


@pytest.fixture(scope="module", params=("inline", "host"))
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a stage on each driver; a host has time to try verbs after the fall."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setattr(turn, "SETTLE_SECONDS", BOUND_SECONDS)
        stage = Stage(request.param, tmp_path_factory.mktemp(request.param), runner)
        agents = {"child": "tests.contracts.agents:child"}
        opening = open_control(f"{MODULE}:agent", agents=agents, driver=request.param, settings=PATIENT)
        stage.control = stage.do(opening.__aenter__())
        try:
            yield stage
        finally:
            stage.do(opening.__aexit__(None, None, None))


each_verb = pytest.mark.parametrize("verb", HANDLERS, ids=lambda verb: verb.__name__)


def test_every_verb_has_a_handler_and_a_case() -> None:
    """A verb has a handler, and cases for every driver."""
    assert set(HANDLERS) == {*TELLINGS, *REQUESTS} == set(CASES)


@each_verb
def test_a_verb_of_a_current_run_is_carried_out(
    stage: Stage, verb: type[AgentVerb], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent gets the verb's answer, and the verb's own handler gave it."""
    handler, handled = HANDLERS[verb], []

    def counted(acting: Any, asked: Any) -> Any:
        handled.append(asked)
        return handler(acting, asked)

    async def play() -> None:
        run, path = await stage.begun(verb, "before")
        helping = asyncio.create_task(stage.help(run, steer=verb is Took))
        outcome = await stage.control.wait(run, drained=True)
        helping.cancel()
        assert outcome.ending is Ending.COMPLETED, outcome
        assert read(path)[-1] == ["did", CASES[verb].returns]

    monkeypatch.setitem(HANDLERS, verb, counted)
    stage.do(play())
    assert handled and all(type(asked) is verb for asked in handled)


@each_verb
def test_a_verb_that_the_fall_meets_has_no_effect_afterwards(stage: Stage, verb: type[AgentVerb]) -> None:
    """A run that falls amid a verb is seen to end, whether the verb was waiting, on its way, or not yet called."""

    async def play() -> None:
        receipt = await stage.stopped(*await stage.begun(verb, "during"))
        assert receipt.drain is Drain.OBSERVED, receipt

    stage.do(play())


@each_verb
def test_a_verb_after_the_fall_is_refused_and_counted(stage: Stage, verb: type[AgentVerb]) -> None:
    """A fallen run's verb raises Stale and is counted once, unless it has no effect."""
    case = CASES[verb]

    async def play() -> None:
        run, path = await stage.begun(verb, "after")
        receipt = await stage.stopped(run, path)
        (did,) = [value for word, value in read(path) if word == "did"]
        if case.refused is not None:
            assert did.startswith(f"{Stale.__name__}: {case.refused} refused"), did
            assert receipt.refused.get(case.refused) == 1
        else:
            assert did == case.afterwards or did.startswith(f"{case.afterwards}:"), did

    stage.do(play())


@each_verb
def test_a_verb_with_wrong_values_says_so_and_the_run_goes_on(stage: Stage, verb: type[AgentVerb]) -> None:
    """Wrong values raise BadInput, with the same words on every driver, and nothing was done."""

    async def play() -> None:
        run, path = await stage.begun(verb, "bad")
        outcome = await stage.control.wait(run, drained=True)
        assert outcome.ending is Ending.COMPLETED, outcome
        said = [value for _, value in read(path)]
        assert len(said) == len(CASES[verb].bad)
        assert all(each.startswith("BadInput: ") for each in said), said
        assert said == BAD.setdefault(verb, said)

    stage.do(play())
