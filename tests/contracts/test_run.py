"""The contract of a run's verbs: the same agent, by name, sees and shows the same on every driver.

Every scene of `agents.py` is played on each driver. A test says what the result must be, and compares each driver's
account (events, ending, receipt, timeline, and the agent's notes) with that of the other, word for word.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock import (
    Control,
    Drain,
    Effect,
    Ending,
    Event,
    EventKind,
    Outcome,
    QuestionState,
    Receipt,
    ToolState,
    open_control,
)
from interlock.agent.bounds import REPLY_BYTES
from interlock.core.events import ChildData, MessageData, ProcessData, QuestionData, Tool
from interlock.core.names import EARLY, PASSING, ErrorKind, RunKind

ROOT = str(Path(__file__).resolve().parents[2])
MODULE = "tests.contracts.agents"
AGENT, AGENTS = f"{MODULE}:agent", {"child": f"{MODULE}:child"}
DRIVERS = ("inline", "host")
BOUND_SECONDS = 60.0
ID = re.compile(r"\b([rqf])-[0-9a-f]+-[0-9a-f]+")
WHEN = {"at", "started_at", "ended_at", "fenced_at", "drained_at", "position", "pid", "generation"}
WHERE = {"grade", "host", "unseen", "body", "processes"}
"""Of a receipt: where the agent and its synchronous tools ran, and so how their code was ended."""

if ROOT not in sys.path:  # `pytest` alone does not add it; a host gets this path
    sys.path.insert(0, ROOT)


# The repr of a task that is done holds all of its result, which may be long.
@dataclass(repr=False)
class Played:
    """The result of a scene."""

    run: str
    session: str
    events: list[Event]
    outcome: Outcome
    receipt: Receipt
    notes: list[Any]
    timeline: list[Any]
    acted: Any = None

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the run's events, in order."""
        return [event.kind.value for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the data of the run's events of a kind."""
        return [event.data for event in self.events if isinstance(event.data, kind)]

    def tools(self) -> list[tuple[str, str]]:
        """Return the moves of the run's tool calls."""
        return [(tool.name, tool.state.value) for tool in self.of(Tool)]

    def noted(self, what: str) -> Any:
        """Return what the agent noted last under a word."""
        return [value for word, value in self.notes if word == what][-1]

    @property
    def story(self) -> dict[str, Any]:
        """Return everything that must be the same on every driver."""
        told = {
            # A watcher may, or may not, have read a delta before its run was cut.
            "events": [
                msgspec.to_builtins(event)
                for event in self.events
                if event.kind not in PASSING or self.outcome.ending not in EARLY
            ],
            "outcome": msgspec.to_builtins(self.outcome),
            "receipt": msgspec.to_builtins(self.receipt),
            "notes": self.notes,
            "timeline": [(moment.what, moment.name, moment.state, moment.count) for moment in self.timeline],
        }
        return _plain(told, {}, self.session)


def _plain(value: Any, names: dict[str, str], session: str) -> Any:
    """Leave out times and places, and number ids in order of appearance."""
    if isinstance(value, dict):
        return {name: _plain(each, names, session) for name, each in value.items() if name not in WHEN | WHERE}
    if isinstance(value, list | tuple):
        return [_plain(each, names, session) for each in value]
    if isinstance(value, str):
        value = value[:2_000].replace(session, "SESSION")
        value = ID.sub(lambda found: names.setdefault(found[0], f"{found[1]}{len(names)}"), value)
        return re.sub(r"/\S+/(?:notes-\d+|(?:inline|host)\d+\b)", "PLACE", value)
    return value


ORDERED = {"events", "timeline", "receipt"}  # calls that run side by side end in any order
STORIES: dict[str, tuple[str, dict[str, Any]]] = {}
"""What a driver told of a scene, for the next to be compared with."""

Act = Callable[["Stage", str], Awaitable[Any]]


class Stage:
    """A control on a driver, open for the whole module, and a loop that runs while a scene is played."""

    def __init__(self, driver: str, room: Path, runner: asyncio.Runner) -> None:
        self.driver = driver
        self.room = room
        self._run = runner.run
        self._numbers = itertools.count(1)
        self.control: Control

    def do(self, work: Any) -> Any:
        """Run something on the stage's loop, bounded in time."""

        async def bounded() -> Any:
            async with asyncio.timeout(BOUND_SECONDS):
                return await work

        return self._run(bounded())

    def play(
        self,
        scene: str,
        act: Act | None = None,
        *,
        same: bool = True,
        leave_out: Collection[str] = (),
        label: str = "",
        **options: Any,
    ) -> Played:
        """Play a scene; compare its story with another driver's, all of it or without some parts."""
        played: Played = self.do(self.played(scene, act, **options))
        if same:
            self.compare(label or scene, played, leave_out)
        return played

    def compare(self, label: str, played: Played, leave_out: Collection[str] = ()) -> None:
        """Compare a story with another driver's."""
        other, story = STORIES.setdefault(label, (self.driver, played.story))
        for part, told in played.story.items():
            assert part in leave_out or told == story[part], f"{part} of {label}: {self.driver} is not as {other}"

    async def played(
        self,
        scene: str,
        act: Act | None = None,
        *,
        session: str | None = None,
        notes: Path | None = None,
        rest: str = "",
        control: Control | None = None,
        **options: Any,
    ) -> Played:
        """Play a scene until its run is drained."""
        control = control or self.control
        path = notes or self.notes()
        sent = await control.send(session or f"{self.driver} {path.name}", f"{scene} {path} {rest}".strip(), **options)
        run = sent.run_id
        acting = asyncio.ensure_future(act(self, run)) if act is not None else None
        try:
            async with aclosing(control.watch(run=run)) as watched:
                events = [event async for event in watched]
            outcome = await control.wait(run, drained=True)
            acted = await acting if acting is not None else None
        finally:
            if acting is not None:
                acting.cancel()
        return Played(
            run,
            sent.session,
            events,
            outcome,
            await control.receipt(run),
            read(path),
            await control.timeline(run),
            acted,
        )

    def notes(self) -> Path:
        """Return a file for a scene's notes."""
        return self.room / f"notes-{next(self._numbers)}"


def read(path: Path) -> list[Any]:
    """Return the notes in a file so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


async def until(seen: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not seen():
            await asyncio.sleep(0.002)


async def told(control: Control, run: str, wanted: Callable[[Event], Any]) -> Event:
    """Wait until a run's watcher gets an event."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if wanted(event):
                return event
    raise AssertionError(f"run {run} ended before that")


def stops(kind: EventKind, more: Callable[[Event], Any] = lambda _: True) -> Act:
    """Stop a run once a certain event was published."""

    async def act(stage: Stage, run: str) -> Receipt:
        await told(stage.control, run, lambda event: event.kind is kind and more(event))
        return await stage.control.stop(run=run)

    return act


def stops_when(word: str, notes: Path) -> Act:
    """Stop a run once its agent has noted a word."""

    async def act(stage: Stage, run: str) -> Receipt:
        await until(lambda: any(each[0] == word for each in read(notes)))
        return await stage.control.stop(run=run)

    return act


def answers(*given: bool | str) -> Act:
    """Answer a run's questions in order."""

    async def act(stage: Stage, run: str) -> None:
        waiting = list(given)
        async with aclosing(stage.control.watch(run=run)) as events:
            async for event in events:
                if waiting and isinstance(event.data, QuestionData) and event.data.state is QuestionState.OPEN:
                    await stage.control.answer(event.data.question_id, waiting.pop(0), by="local")

    return act


@asynccontextmanager
async def opened(driver: str, **options: Any) -> Any:
    """Open a control on a driver, with the contract's agents by name."""
    async with open_control(AGENT, agents=AGENTS, driver=driver, **options) as control:
        yield control


@pytest.fixture(scope="module", params=DRIVERS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a stage on each driver."""
    with asyncio.Runner() as runner:
        stage = Stage(request.param, tmp_path_factory.mktemp(request.param), runner)
        opening = opened(request.param)
        stage.control = stage.do(opening.__aenter__())
        try:
            yield stage
        finally:
            stage.do(opening.__aexit__(None, None, None))


# Saying


def test_every_word_is_told_in_order(stage: Stage) -> None:
    """A watcher gets what a run shows whole and in order, with blocks closed where they must be."""
    played = stage.play("speaks")
    assert played.kinds == [
        "message", "started", "typing", "delta", "delta", "progress", "progress", "phase", "phase", "delta", "phase",
        "block", "block", "phase", "typing", "delta", "block", "block", "ended",
    ]  # fmt: skip
    assert played.outcome.ending is Ending.COMPLETED
    assert played.outcome.text == "Hello ☃!\n\nA block.\n\nAnd\n\n so on."
    assert played.noted("run") == [True, True, True, True]
    by, first, parts = played.noted("message")
    assert (by, first, len(parts)) == ("local", True, 1)
    assert played.receipt.drain is Drain.OBSERVED and played.receipt.refused == {}


@pytest.mark.parametrize(("scene", "text"), [("hushes", ""), ("trails", "the end")])
def test_nothing_returned(stage: Stage, scene: str, text: str) -> None:
    """An agent that returns None has as its reply what it said."""
    played = stage.play(scene)
    assert (played.outcome.ending, played.outcome.text) == (Ending.COMPLETED, text)


@pytest.mark.parametrize(
    ("scene", "text", "kind", "error"),
    [
        ("counts", "", ErrorKind.AGENT, "BadInput: the agent returned int; return the reply as text, or None"),
        (
            "halves",
            "",
            ErrorKind.AGENT,
            "BadInput: the reply holds half a surrogate pair; decode the text properly first",
        ),
        ("fails", "so far", ErrorKind.AGENT, "ValueError: it broke"),
        ("fails_outside", "", ErrorKind.PROVIDER, "ConnectionError: no answer"),
        ("fails_later", "", ErrorKind.AGENT, "ValueError: our own"),
        ("fails_within", "", ErrorKind.AGENT, "ValueError: bad words"),
        ("fails_oddly", "", ErrorKind.AGENT, "Odd: not an Exception"),
        ("fails_by_exit", "", ErrorKind.AGENT, "SystemExit: 3"),
        ("fails_by_cancel", "", ErrorKind.AGENT, "CancelledError"),
        ("fails_by_stale", "", ErrorKind.AGENT, "Stale: made up"),
        (
            "fails_in_a_group",
            "",
            ErrorKind.AGENT,
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        ),
        ("fails_mutely", "", ErrorKind.AGENT, "Mute: (it cannot be described)"),
    ],
)
def test_failing(stage: Stage, scene: str, text: str, kind: ErrorKind, error: str) -> None:
    """A run whose agent's code fails in any way ends `failed`, with the error and whose it was."""
    outcome = stage.play(scene).outcome
    assert (outcome.ending, outcome.text, outcome.error_kind, outcome.error) == (Ending.FAILED, text, kind, error)


def test_the_next_turn_is_served_after_each_failure(stage: Stage) -> None:
    """A failed turn leaves a session that can be used, and the next turn learns how the last ended."""
    for scene in ("fails", "fails_by_exit", "counts", "fails_by_cancel"):
        session = f"{stage.driver} after {scene}"
        stage.play(scene, session=session, same=False)
        after = stage.play("recalls", session=session, label=f"recalls after {scene}")
        assert after.outcome.text == "recalled"
        assert after.noted("previous")[0] == "failed"


def test_texts_of_a_kind_of_their_own(stage: Stage) -> None:
    """Texts and numbers of subclasses, as libraries make them, work like plain ones."""
    played = stage.play("marks")
    assert played.outcome.ending is Ending.COMPLETED, played.outcome.error
    assert played.outcome.text.endswith("the end")
    assert [word for word, _ in played.notes] == [
        "say", "post", "progress", "typing", "phase", "hold", "delegate", "ask", "spawn",
    ]  # fmt: skip
    assert played.noted("spawn") == "hi\n"


def test_a_reply_that_is_too_long(stage: Stage) -> None:
    """A text that exceeds what a reply can hold is refused at the verb, and the text before it stands."""
    played = stage.play("overflows")
    too_long = f"BadInput: this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
    assert [played.noted(word) for word in ("say", "post", "more")] == [too_long] * 3
    assert (played.outcome.ending, played.outcome.error) == (Ending.FAILED, too_long)
    assert len(played.outcome.text) == REPLY_BYTES + len("\n\n")


def test_the_longest_reply(stage: Stage) -> None:
    """A reply of exactly the most characters is accepted, however wide each of them is."""
    outcome = stage.play("widens", same=False).outcome
    told = (outcome.ending, outcome.error, len(outcome.text))
    assert told == (Ending.COMPLETED, None, REPLY_BYTES)


def test_long_values(stage: Stage) -> None:
    """A long result, argument, command, input or note of progress may be refused, and does not end the run."""
    played = stage.play("lengthens", leave_out={"events", "timeline"})
    assert (played.outcome.ending, played.outcome.text) == (Ending.COMPLETED, "still here"), played.outcome.error


# Tools


def test_calls(stage: Stage) -> None:
    """Tools of every kind return their result; their errors, and values that cannot cross, raise at the call."""
    played = stage.play("calls")
    cannot = "cannot be serialised (Encoding objects of type object is unsupported); use plain values"
    assert played.notes[:4] == [
        ["async", 3],
        ["sync", {"joined": "a-☃", "count": 2}],
        ["thread", "cba False"],
        ["object", 6],
    ]
    assert played.noted("raises") == "KeyError: 'missing'"
    assert played.noted("raises in its process") == "ValueError: bad"
    assert played.noted("raises in its thread") == "LookupError: torn"
    assert played.noted("result").startswith(f"BadInput: what tool hands_out returned {cannot}")
    assert played.noted("argument").startswith(f"BadInput: the arguments of adds {cannot}")
    assert played.noted("wrong names").startswith("TypeError: adds() got an unexpected keyword argument")
    assert played.noted("wrong names, sync").startswith("TypeError: joins() got an unexpected keyword argument")
    assert played.noted("exits") == "SystemExit: 4"
    ends = [state for _, state in played.tools() if state not in ("pending", "running")]
    assert ends == ["finished"] * 4 + ["failed"] * 4 + ["failed"] * 2 + ["interrupted"]
    assert played.of(Tool)[0].arguments == '{"a":1,"b":2}' and played.of(Tool)[2].result == "3"
    assert played.outcome.text == "Now \n\ndone."


def test_a_synchronous_tool_gives_plain_values(stage: Stage) -> None:
    """A synchronous tool runs where it can be ended: plain values come back, and errors of its own kind by name."""
    played = stage.play("calls_what_is_not_plain")
    assert played.notes[:3] == [
        ["pair", "{'pair': [1, [2, 3]]}"],
        ["own", "ToolFailed: Torn: all over"],
        ["exit", "ToolFailed: RuntimeError: the tool raised SystemExit"],
    ]
    assert played.noted("object").startswith("BadInput: the tool's result cannot be sent")


def test_a_tool_that_must_be_allowed(stage: Stage) -> None:
    """A tool that asks begins when a person allows it; otherwise its call is Denied and published as skipped."""
    played = stage.play("is_allowed", answers(True, False, False))
    assert played.noted("test") == "deployed to test"
    denied = "Denied: tool deploy was not started: denied by local; go on without it"
    assert played.noted("production") == denied
    assert played.noted("batch") == [["deploy", "skipped", None, denied], ["adds", "finished", 2, None]]
    asked = [(each.tool, each.state.value, each.answer) for each in played.of(QuestionData)]
    assert asked == [
        ("deploy", "open", None), ("deploy", "answered", True),
        ("deploy", "open", None), ("deploy", "answered", False),
        ("deploy", "open", None), ("deploy", "answered", False),
    ]  # fmt: skip
    assert [state for name, state in played.tools() if name == "deploy"] == [
        "pending", "running", "finished", "pending", "skipped", "pending", "skipped",
    ]  # fmt: skip


def test_batches(stage: Stage) -> None:
    """The results of a batch come in order, side by side or one after another; an error does not stop the others."""
    played = stage.play("batches", leave_out=ORDERED)
    wanted = [
        ["waits", "finished", "waited 0.02", None],
        ["breaks", "failed", None, "KeyError: 'gone'"],
        ["adds", "finished", 7, None],
        ["joins", "finished", {"joined": "", "count": 0}, None],
    ]
    assert played.noted("sequential") == wanted
    assert played.noted("parallel") == wanted
    assert played.noted("none") == []
    names = ["waits", "breaks", "adds", "joins"]
    moves = played.tools()
    assert moves[:4] == [(name, "pending") for name in names]  # all are on record before the first begins
    assert [name for name, state in moves[4:12] if state in ("finished", "failed")] == names
    assert sorted(moves[12:]) == sorted(moves[:12])


def test_an_exit_in_a_batch(stage: Stage) -> None:
    """A tool that raises past `except Exception` is interrupted, and ends neither the others nor the program."""
    played = stage.play("exits_in_a_batch", leave_out=ORDERED)
    assert played.noted("results") == [
        ["exits", "interrupted", None, "SystemExit"],
        ["adds", "finished", 2, "NoneType"],
    ]
    assert sorted(state for _, state in played.tools() if state not in ("pending", "running")) == [
        "finished", "interrupted",
    ]  # fmt: skip


def test_calls_that_are_given_up(stage: Stage) -> None:
    """A timeout of the agent's own gives calls up: running ones are interrupted, those not begun are skipped."""
    played = stage.play("gives_up", leave_out=ORDERED)
    assert [played.noted(each) for each in ("call", "sequential", "parallel", "unanswered")] == [True] * 4
    assert played.noted("after") == 4
    ends = [(name, state) for name, state in played.tools() if state not in ("pending", "running")]
    assert ends[:3] == [("waits", "interrupted"), ("waits", "interrupted"), ("adds", "skipped")]
    assert sorted(ends[3:5]) == [("adds", "finished"), ("waits", "interrupted")]
    assert ends[5:] == [("deploy", "skipped"), ("adds", "finished")]
    assert [each.state.value for each in played.of(QuestionData)] == ["open", "void"]
    assert played.outcome.ending is Ending.COMPLETED


# People


def test_questions(stage: Stage) -> None:
    """A question is answered yes, no or with a choice, expires, or is given up by the agent itself."""
    played = stage.play("asks", answers(True, False, "blue"))
    assert [played.noted(each) for each in ("yes", "no", "choice", "expired")] == [True, False, "blue", False]
    assert played.notes[-1] == ["given up", None]
    told = [(each.text, each.state.value, each.answer, each.by) for each in played.of(QuestionData)]
    assert told[:8] == [
        ("Go on?", "open", None, None), ("Go on?", "answered", True, "local"),
        ("Really?", "open", None, None), ("Really?", "answered", False, "local"),
        ("Which?", "open", None, None), ("Which?", "answered", "blue", "local"),
        ("Anyone?", "open", None, None), ("Anyone?", "expired", None, None),
    ]  # fmt: skip
    assert played.of(QuestionData)[4].choices == ("red", "blue")
    assert played.kinds[2:5] == ["delta", "block", "question"]
    assert played.outcome.ending is Ending.COMPLETED


def test_a_question_goes_void_with_its_run(stage: Stage) -> None:
    """A run that is stopped while it asks is cut, and the receipt counts the question."""
    played = stage.play("asks_once", stops(EventKind.QUESTION))
    assert (played.outcome.ending, played.outcome.by) == (Ending.STOPPED, "local")
    assert (played.receipt.questions, played.receipt.runs[0].body.value) == (1, "cut")
    assert played.receipt.drain is Drain.OBSERVED


# Children


def test_children(stage: Stage) -> None:
    """A child's ending comes back as data, whatever it is; only a child that cannot begin is an error."""
    played = stage.play("delegates", same=False)
    assert played.noted("done") == ["completed", "a piece \n\nof work", None, None, None]
    assert played.noted("failed") == ["failed", "", "LookupError: nothing there", "agent", None]
    assert played.noted("late") == ["timed_out", "", None, None, 50]
    assert played.noted("who") == ["completed", "local True True", None, None, None]
    assert played.noted("detached") == ["pending", "", None, None, None]
    assert played.noted("unknown") == "BadInput: no agent 'nobody' to delegate to; open_control(agents=...) has child"
    assert played.notes[-1] == ["given up", None]
    assert [each for each in played.notes if each[0] == "ids"] == [["ids", True]] * 5
    endings = [each.outcome.ending.value for each in played.of(ChildData) if each.outcome is not None]
    assert endings[:4] == ["completed", "failed", "timed_out", "completed"]
    assert endings[4:] in ([], ["stopped"])  # the child given up, if its end is published before its parent's
    given_up = played.of(ChildData)[-1].child
    assert stage.do(stage.control.wait(given_up)).ending is Ending.STOPPED
    assert played.outcome.ending is Ending.COMPLETED
    detached = next(each.child for each in played.of(ChildData) if each.detached)
    assert stage.do(stage.control.wait(detached, timeout=0)).ending is Ending.PENDING
    stage.do(stage.control.stop(session=played.session))
    assert stage.do(stage.control.wait(detached, drained=True)).ending is Ending.STOPPED


def test_a_child_falls_with_its_parent(stage: Stage) -> None:
    """A stop of a run ends the child that the run waits for, in the same fall."""

    async def act(stage: Stage, run: str) -> Receipt:
        event = await told(stage.control, run, lambda event: event.kind is EventKind.CHILD)
        await told(stage.control, event.data.child, lambda event: event.kind is EventKind.STARTED)
        return await stage.control.stop(run=run)

    played = stage.play("delegates_idly", act)
    assert [each.outcome.ending.value for each in played.receipt.runs] == ["stopped", "parent_ended"]
    assert played.receipt.drain is Drain.OBSERVED


def test_a_run_at_work_is_handed_what_a_child_announces(stage: Stage) -> None:
    """A run at work absorbs a child's announcement once, with the outcome, the text and the id of the child."""
    played = stage.play("hears_of_a_child", same=False)
    assert played.noted("refused") == "BadInput: announce= is turn, note or None, not 'now'"
    assert played.noted("same") is True
    assert played.noted("child") == ["completed", "a piece \n\nof work", "local"]
    assert played.noted("words") == "child (ID), which was started here, has ended: ok. It said:\n\na piece \n\nof work"
    assert played.outcome.ending is Ending.COMPLETED
    [announced] = [each for each in stage.do(stage.control.runs(played.session)) if each.kind is RunKind.ANNOUNCE]
    assert stage.do(stage.control.wait(announced.id)).run_id == played.outcome.run_id


# Holds


def test_holds_in_turn(stage: Stage) -> None:
    """Two runs have a hold one after the other, in the order of asking, and neither has it twice."""
    path = stage.notes()
    first, second = f"{stage.driver}-first", f"{stage.driver}-second"

    async def both() -> tuple[Played, Played]:
        holder = asyncio.ensure_future(stage.played("holds", session=first, notes=path))
        await until(lambda: read(path))
        waiter = asyncio.ensure_future(stage.played("holds", session=second, notes=path))
        await until(lambda: any(in_line(stage, run) for run in runs_of(stage, second)))
        Path(f"{path}.{first}").touch()
        await until(lambda: any(word == f"{second} has" for word, _ in read(path)))
        await until(lambda: any(in_line(stage, run) for run in runs_of(stage, first)))  # the first run waits again
        Path(f"{path}.{second}").touch()
        return await holder, await waiter

    for played in stage.do(both()):
        assert played.outcome.ending is Ending.COMPLETED, played.outcome.error
    words = [[word.removeprefix(f"{stage.driver}-"), value] for word, value in read(path)]
    twice = "Refused: this run holds 'worktree' or waits for it already; take it once, around everything"
    assert words == [
        ["first has", ["worktree", True, None]],
        ["again", twice],
        ["first lets go", None],
        ["second has", ["worktree", True, None]],
        ["again", twice],
        ["second lets go", None],
        ["first has it again", None],
        ["second has it again", None],
    ]


def runs_of(stage: Stage, session: str) -> list[str]:
    """Return the live runs of a session."""
    return [run.id for run in stage.control._registry.runs.values() if run.session.id == session]


def in_line(stage: Stage, run: str) -> bool:
    """True if a run has the hold, or waits for it."""
    live = stage.control._registry.runs.get(run)
    return live is not None and "worktree" in (live.work.holds or {})


def test_waiting_for_a_hold(stage: Stage) -> None:
    """A waiter that gives up or is stopped leaves the line for a hold, and the next gets it at once."""
    path = stage.notes()
    session = f"{stage.driver}-holder"

    async def act() -> tuple[Played, Outcome, Played, Played]:
        holder = asyncio.ensure_future(stage.played("holds", session=session, notes=path))
        await until(lambda: read(path))
        gave_up = await stage.played("gives_a_hold_up")
        sent = await stage.control.send("a waiter", f"gives_a_hold_up {stage.notes()}")
        stopped = await stage.control.send("another", f"holds {stage.notes()}")
        await until(lambda: in_line(stage, stopped.run_id))
        await stage.control.stop(run=stopped.run_id)
        outcome = await stage.control.wait(stopped.run_id, drained=True)
        await stage.control.wait(sent.run_id)
        Path(f"{path}.{session}").touch()
        played = await holder
        return gave_up, outcome, played, await stage.played("gives_a_hold_up", rest=str(BOUND_SECONDS))

    gave_up, outcome, holder, after = stage.do(act())
    assert gave_up.notes == [["given up", None], ["another", "other"]]
    assert (outcome.ending, outcome.drained) == (Ending.STOPPED, True)
    assert holder.outcome.ending is Ending.COMPLETED
    assert after.notes == [["got", "worktree"], ["another", "other"]]
    assert stage.control._registry.holds._lines == {}


# Processes


def test_processes(stage: Stage) -> None:
    """A program has a status, output, input, directory and environment; a failed start says why."""
    played = stage.play("spawns")
    assert played.outcome.ending is Ending.COMPLETED, played.outcome.error
    assert played.noted("status") == [3, "out\nerr\n", False, 0, False]
    assert played.noted("signal") == -9
    assert played.noted("input") == ["grüße", "bytes", ""]
    assert played.noted("much") == 300_000
    assert played.noted("bytes") == [97, 255]
    assert played.noted("not utf-8") == [97, 255, 98]
    assert played.noted("cwd") is True
    assert played.noted("env") == "more\nnone\n"
    assert played.noted("pty") is True
    assert played.noted("timeout") == [-9, True]
    assert played.noted("grace") == [7, "bye\n", True]
    number, text, reason = played.noted("not found")
    assert number == errno.ENOENT and "no-such-program" in text and text == f"[Errno {number}] {reason}"
    assert played.noted("not allowed")[0] == errno.EACCES
    assert played.noted("no place")[0] == errno.ENOENT
    assert played.kinds[2:5] == ["delta", "block", "process"]
    told = [(each.state.value, each.status) for each in played.of(ProcessData)]
    assert told[:4] == [("running", None), ("exited", 3), ("running", None), ("exited", -9)]


def test_lines(stage: Stage) -> None:
    """Lines come as they are written; leaving the block ends the program and waits until it is gone."""
    played = stage.play("streams")
    assert played.noted("lines") == ["line 1", "line 2", "line 3", "rest"]
    assert played.noted("end") == 0
    assert played.noted("line") == "first"
    assert played.noted("gone") == [False, -9, False]
    assert played.noted("no lines") == "lines are read in a block: `async with run.spawn(...) as process`"
    assert played.noted("detached") == "BadInput: a detached process outlives the block; await it instead"


def test_in_the_background(stage: Stage) -> None:
    """A background program shows its output so far, whether it runs, and its status; it can be stopped and limited."""
    played = stage.play("runs_behind")
    assert played.outcome.ending is Ending.COMPLETED, played.outcome.error
    assert played.noted("begun") == ["begun\n", True, None, None, True]
    assert played.noted("exited") == [False, 5]
    assert played.noted("waited") == [5, "begun\n", False, 5, "begun\n"]
    assert played.noted("replaced") == [False, -9, True, "sleeper"]
    assert played.noted("stopped") == [False, -9, False]
    assert played.noted("stopped again") == -9
    assert played.noted("limited") == [-9, True, True]


def test_what_is_left_running(stage: Stage) -> None:
    """The end of a run ends its background processes; detached ones stay with the session until a stop."""
    played = stage.play("leaves_running", same=False)
    mine, kept = played.noted("pids")
    assert not Path(f"/proc/{mine}").exists() and Path(f"/proc/{kept}").exists()
    assert (played.receipt.processes.ended, played.receipt.processes.stuck, played.receipt.processes.detached) == (
        1, 0, 1,
    )  # fmt: skip
    [info] = stage.do(stage.control.processes(played.session))
    assert (info.pid, info.name, info.detached, info.command) == (kept, "kept", True, "sleep 3600")
    stage.do(stage.control.stop(session=played.session))
    stage.do(until(lambda: not Path(f"/proc/{kept}").exists()))


def test_a_process_that_is_given_up(stage: Stage) -> None:
    """A timeout of the agent's own around a program ends the program before the agent goes on."""
    notes = stage.notes()

    async def act(stage: Stage, run: str) -> None:
        event = await told(stage.control, run, lambda event: isinstance(event.data, ProcessData))
        while not any(each.pid for each in await stage.control.processes(event.session)):
            await asyncio.sleep(0.002)
        Path(f"{notes}.known").touch()

    played = stage.play("gives_a_process_up", act, notes=notes)
    assert played.notes == [["gone", True]]
    assert played.outcome.ending is Ending.COMPLETED


# The conversation


def test_steering(stage: Stage) -> None:
    """A message steered to a run is absorbed by `check`, once, and is part of its conversation from then on."""

    async def act(stage: Stage, run: str) -> Outcome:
        event = await told(stage.control, run, lambda event: event.kind is EventKind.DELTA)
        sent = await stage.control.send(event.session, "more of it", strategy="steer", by="local")
        return await stage.control.wait(sent.run_id)

    played = stage.play("is_steered", act)
    assert played.notes == [
        ["nothing yet", []],
        ["taken", [["more of it", "local", True, True]]],
        ["parts", [[["more of it", "local"]]]],
        ["history", [["assistant", "ready"], ["user", "more of it"]]],
    ]
    assert played.acted.run_id == played.run and played.acted.text == "ready\n\nsteered"


def test_history_and_the_last_turn(stage: Stage) -> None:
    """A turn reads what was said before it, cut texts and tools included, and how the last turn ended."""
    session = f"{stage.driver} conversation"
    stage.play("calls", session=session, same=False)
    stage.play("mumbles", stops(EventKind.DELTA), session=session, same=False)
    played = stage.play("recalls", session=session, label="recalls after a stop")
    history = [[role, tool, state, cut, ending] for role, _, tool, state, cut, ending in played.noted("history")]
    assert history[:4] == [
        ["user", None, None, False, None], ["assistant", None, None, False, None],
        ["call", "adds", None, False, None], ["result", "adds", "finished", False, None],
    ]  # fmt: skip
    assert history[-3:] == [
        ["user", None, None, False, None], ["assistant", None, None, True, "stopped"],
        ["user", None, None, False, None],
    ]  # fmt: skip
    assert played.noted("previous") == ["stopped", "well, ", "local", None, None, None]


# The end


@pytest.mark.parametrize("scene", ["leaves_a_task", "fails_with_a_task"])
def test_after_the_end(stage: Stage, scene: str) -> None:
    """A task that outlives its run gets Stale from every verb, and the session goes on."""
    played = stage.play(scene, same=False)
    path = Path(played.of(MessageData)[0].text.split()[1])
    Path(f"{path}.ended").touch()
    stage.do(until(lambda: any(word == "done" for word, _ in read(path))))
    tried = dict(read(path))
    assert tried.pop("current") is False and tried.pop("done") is None
    ending = played.outcome.ending
    check = tried.pop("check")
    assert check == f"Stale: run {played.run} has ended; do not catch Stale"
    assert tried == {
        word: f"Stale: {effect} refused: run {played.run} has ended ({ending}); do not catch Stale"
        for word, effect in REFUSED
    }
    after = stage.play("recalls", session=played.session, label=f"recalls after {scene}")
    assert after.noted("previous")[0] == ending


def test_a_task_that_waits_as_the_run_ends(stage: Stage) -> None:
    """A task that waits for something of its run when the run ends gets Stale; it does not wait for ever."""
    played = stage.play("leaves_waiters", same=False)
    path = Path(played.of(MessageData)[0].text.split()[1])
    stage.do(until(lambda: len(read(path)) == 5))
    stage.do(stage.control.stop(session=played.session))
    for _, said in read(path):
        assert re.fullmatch(rf"Stale: .*run {played.run} has ended \(completed\); do not catch Stale", said)


REFUSED = [
    ("say", "delta"), ("say nothing", "delta"), ("post", "block"), ("typing", "typing"), ("progress", "progress"),
    ("phase", "phase"), ("call", "tool"), ("batch", "tool"), ("ask", "question"), ("delegate", "child"),
    ("hold", "hold"), ("spawn", "spawn"), ("lines", "spawn"),
]  # fmt: skip
REFUSALS = {Effect(effect): len(list(group)) for effect, group in itertools.groupby(effect for _, effect in REFUSED)}


def test_an_agent_that_goes_on_after_a_stop(stage: Stage) -> None:
    """An agent that swallows its cancel gets Stale from every verb; the receipt counts each, its return too."""
    notes = stage.notes()
    played = stage.play("goes_on_after_a_stop", stops(EventKind.DELTA), notes=notes)
    tried = dict(read(notes))
    assert tried.pop("current") is False and tried.pop("done") is None
    assert tried.pop("check") == f"Stale: run {played.run} has ended; do not catch Stale"
    assert tried == {
        word: f"Stale: {effect} refused: run {played.run} has ended (stopped by local); do not catch Stale"
        for word, effect in REFUSED
    }
    assert played.receipt.refused == {**REFUSALS, Effect.FINAL: 1}
    assert played.receipt.runs[0].refused == played.receipt.refused
    assert (played.outcome.text, played.receipt.runs[0].body.value) == ("first", "cut")
    assert played.receipt.drain is Drain.OBSERVED


def test_the_receipt_names_tools(stage: Stage) -> None:
    """The receipt of a run that is stopped in a tool names the tools that were done, cut and never begun."""

    def at_work(event: Event) -> bool:
        return isinstance(event.data, Tool) and (event.data.name, event.data.state) == ("waits", ToolState.RUNNING)

    played = stage.play("is_cut_in_a_tool", stops(EventKind.TOOL, at_work))
    assert [(tool.name, tool.state.value) for tool in played.receipt.tools] == [
        ("waits", "interrupted"), ("adds", "skipped"), ("adds", "finished"),
    ]  # fmt: skip
    assert played.acted.aborted and played.receipt.drain is Drain.OBSERVED
    assert played.receipt.runs[0].body.value == {"inline": "cut", "host": "killed"}[stage.driver]
    assert played.receipt.host == {"inline": "none", "host": "killed"}[stage.driver]


def test_a_tool_with_a_grace(stage: Stage) -> None:
    """A tool that declared a grace may clean up, and counts as interrupted like any other."""
    notes = stage.notes()
    played = stage.play("is_cut_in_a_tidy_tool", stops_when("began", notes), notes=notes)
    assert played.notes == [["began", None], ["tidied", None]]
    assert [(tool.name, tool.state.value) for tool in played.receipt.tools] == [("tidies", "interrupted")]
    assert played.receipt.runs[0].body.value == "cut"
    assert played.receipt.drain is Drain.OBSERVED


def test_a_synchronous_tool_that_listens(stage: Stage) -> None:
    """A synchronous tool with a grace hears of the end and cleans up; its result goes nowhere, its agent no further."""
    notes = stage.notes()
    played = stage.play("is_cut_in_a_tool_that_listens", stops_when("began", notes), notes=notes)
    assert played.notes == [["began", False], ["tidied", True]]
    assert [(tool.name, tool.state.value) for tool in played.receipt.tools] == [("listens", "interrupted")]
    assert (played.receipt.runs[0].body.value, played.receipt.refused) == ("cut", {})
    assert played.receipt.host == {"inline": "none", "host": "reused"}[stage.driver]
    assert played.receipt.drain is Drain.OBSERVED


def test_a_deadline_says_where(stage: Stage) -> None:
    """A run that is past its deadline ends `timed_out`, in the phase it was in."""
    for seconds in (0.4, 2, 10):  # until one is long enough for the phase to begin
        played = stage.do(stage.played("is_cut_in_a_phase", deadline=seconds))
        if played.notes:
            break
    stage.compare(f"is_cut_in_a_phase {seconds}", played)
    outcome = played.outcome
    assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "thinking", seconds * 1000)


def test_a_takeover(stage: Stage) -> None:
    """A message that takes over ends the turn before it, and learns so."""
    session = f"{stage.driver} taken over"

    async def act(stage: Stage, run: str) -> Played:
        await told(stage.control, run, lambda event: event.kind is EventKind.DELTA)
        return await stage.played("recalls", session=session)

    played = stage.play("mumbles", act, session=session)
    assert (played.outcome.ending, played.outcome.superseded_by) == (Ending.SUPERSEDED, played.acted.run)
    assert played.acted.noted("previous")[:2] == ["superseded", "well, "]


# Limit on silence


VERBS = ("say", "say nothing", "post nothing", "typing", "progress", "phase", "call", "check", "history", "hold")


def test_silence(stage: Stage) -> None:
    """Every verb is a sign of life; a run without one times out, but not while it waits for a person."""
    limit = 2.0

    async def play() -> list[Played]:
        async with opened(stage.driver, idle_limit=limit) as control:
            scenes = [
                stage.played("is_silent", control=control),
                stage.played("is_busy_elsewhere", control=control, rest=str(limit * 1.5)),
                *(stage.played("is_heard", control=control, rest=f"{limit * 1.5} {verb}") for verb in VERBS),
            ]
            return await asyncio.gather(*scenes)

    silent, busy, *heard = stage.do(play())
    assert [verb for verb, each in zip(VERBS, heard, strict=True) if each.outcome.ending is Ending.TIMED_OUT] == []
    assert {each.outcome.ending for each in heard} == {Ending.COMPLETED}
    outcome = silent.outcome
    assert (outcome.ending, outcome.phase, outcome.limit_ms) == (Ending.TIMED_OUT, "idle", round(limit * 1000))
    assert (busy.outcome.ending, busy.outcome.text) == (Ending.COMPLETED, "False"), busy.outcome


# Agent and instructions of a message


def test_a_message_names_its_agent_and_brings_instructions(stage: Stage) -> None:
    """A message can name another agent than the served one, which gets the message's instructions, or None."""

    async def play() -> list[str]:
        texts = []
        for instructions in ("Be brief. \u2603", None):
            sent = await stage.control.send(
                f"{stage.driver} told {instructions}", "told", agent="child", instructions=instructions
            )
            texts.append((await stage.control.wait(sent.run_id)).text)
        return texts

    assert stage.do(play()) == ["Be brief. \u2603", "None"]


# Threads and bad input


def test_from_a_thread(stage: Stage) -> None:
    """A thread reaches the verbs through the agent's loop, and gets an error where it goes around the loop."""
    played = stage.play("speaks_from_a_thread")
    assert played.noted("rightly") == 7
    wrongly = (
        "BadInput: a run's verbs belong to the loop that its agent runs on; "
        "from a thread use asyncio.run_coroutine_threadsafe(run.say(...), loop)"
    )
    assert [line.partition(": ")[2] for line in played.noted("wrongly")] == [wrongly] * 14
    assert played.outcome.text == "from afar"


def test_bad_input(stage: Stage) -> None:
    """A verb refuses a bad argument as BadInput, in the same words everywhere; nothing is done, the run goes on."""
    played = stage.play("errs")
    assert (played.outcome.ending, played.outcome.text) == (Ending.COMPLETED, "none the worse"), played.outcome.error
    wrong = [[verb, said] for verb, said in played.notes if not str(said).startswith("BadInput: ")]
    assert wrong == []
    assert played.kinds == ["message", "started", "block", "ended"]


# Processes of the agent


def test_control_never_imports_the_agent() -> None:
    """On the host driver a control that has served a turn has not imported the agent's module, or any tool of it."""
    script = f"""
import asyncio, os, sys
from interlock import open_control

async def main():
    async with open_control({AGENT!r}, agents={AGENTS!r}, driver="host") as control:
        sent = await control.send("s", "remembers " + sys.argv[1])
        outcome = await control.wait(sent.run_id, drained=True)
        print(outcome.ending, outcome.text, [name for name in sys.modules if name.startswith("tests")])

asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", script, "/dev/null"],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("completed s []\n", 0), done.stderr


@pytest.mark.parametrize("driver", ["host"])
def test_a_warm_host(driver: str, tmp_path: Path) -> None:
    """A session's host keeps its memory between turns; another session's host does not see it."""

    async def play() -> tuple[list[str], list[int]]:
        texts = []
        notes = tmp_path / "notes"
        async with opened(driver) as control:
            for session in ("a", "b", "a", "b", "a"):
                sent = await control.send(session, f"remembers {notes}")
                texts.append((await control.wait(sent.run_id, drained=True)).text)
        return texts, [value for _, value in read(notes)]

    texts, pids = asyncio.run(play())
    assert texts == ["a", "b", "a,a", "b,b", "a,a,a"]
    assert pids[0] == pids[2] == pids[4] != pids[1] == pids[3] and os.getpid() not in pids
