"""Every verb of a run, as an agent calls it: before the fall, while it comes, after it, and with wrong values.

A message names a verb, a stage and a file for the notes. The agent is imported by name, in this process or in a host.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.contracts.agents import Notes, adds, gives_it_up, tried, waits

from interlock import Effect, Message, Run
from interlock.agent import verbs
from interlock.agent.verbs import AgentVerb

Does = Callable[[Run, Any], Awaitable[Any]]
HUNG = ("sh", "-c", "echo one; exec sleep 600")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verb: what calls it, what comes before, what it returns, and what refuses it."""

    does: Does
    returns: Any = None
    # What the agent has when the run falls.
    has: Callable[[Run], Awaitable[Any]] | None = None
    # The effect that is refused after the fall. None: the verb passes, and returns this.
    refused: Effect | None = None
    afterwards: Any = None
    # Calls with wrong values; none where no value of the agent's can be wrong.
    bad: Sequence[Callable[[Run], Awaitable[Any]]] = ()


async def enters(context: Any) -> None:
    """Enter a block and leave it."""
    async with context:
        pass


async def steered(run: Run, _: object) -> int:
    """Wait for messages that are steered to the run."""
    while not (messages := await run.check()):
        await asyncio.sleep(0.001)
    return len(messages)


async def histories(run: Run, _: object) -> str:
    """Return who spoke first."""
    return (await run.history())[0].role


async def delegates(run: Run, _: object) -> str:
    """Return what a child said."""
    return (await run.delegate("child", "work")).text


async def spawns(run: Run, *argv: str, **options: Any) -> Any:
    """Run a program to its end."""
    return await run.spawn(*argv, **options)


async def hangs(run: Run) -> Any:
    """Return a process that goes on."""
    return await run.spawn(*HUNG, background=True)


async def streams(run: Run) -> Any:
    """Return a process whose lines are read."""
    return await run.spawn(*HUNG).__aenter__()


async def reads_line(_: Run, process: Any) -> str:
    """Return the next line of a process."""
    return await anext(process.__aiter__())  # type: ignore[no-any-return]


async def waits_for(run: Run, process: Any) -> int:
    """Return the status of a process."""
    return (await (process if process is not None else await run.spawn("true", background=True)).wait()).status  # type: ignore[no-any-return]


async def holds_one(run: Run) -> list[Any]:
    """Return the only reference to a process."""
    return [await hangs(run)]


async def forgets(run: Run, held: list[Any]) -> None:
    """Drop a process; control has heard of it when it has answered."""
    held.clear()
    if run.current:
        await run.check()


async def outputs(run: Run, process: Any) -> str:
    """Return the output of a process, once there is some."""
    while run.current and not process.output:
        await asyncio.sleep(0.001)
    return process.output  # type: ignore[no-any-return]


async def ends(_: Run, process: Any) -> None:
    """End a process without waiting."""
    process.end()


async def stops(_: Run, process: Any) -> None:
    """End a process, and wait until it is gone."""
    await process.stop()


async def gives_up(run: Run, _: object) -> None:
    """Give up a tool call that was permitted."""
    with contextlib.suppress(TimeoutError):
        await gives_it_up(run, run.call(waits, seconds=600))


async def batches(run: Run, _: object) -> list[Any]:
    """Return the results of a batch."""
    return [result.value for result in await run.batch([(adds, {"a": 1, "b": 2}), (adds, {"a": 3, "b": 4})])]


CALL = Case(
    does=lambda run, _: run.call(adds, a=1, b=2),
    returns=3,
    refused=Effect.TOOL,
    bad=[lambda run: run.call(3), lambda run: run.call(adds, a=object(), b=2)],  # type: ignore[arg-type]
)

CASES: dict[type[AgentVerb], Case] = {
    verbs.Say: Case(does=lambda run, _: run.say("x"), refused=Effect.DELTA, bad=[lambda run: run.say(3)]),  # type: ignore[arg-type]
    verbs.Post: Case(does=lambda run, _: run.post("x"), refused=Effect.BLOCK, bad=[lambda run: run.post("\ud800")]),
    verbs.SetTyping: Case(does=lambda run, _: run.typing(), refused=Effect.TYPING),
    verbs.SetProgress: Case(
        does=lambda run, _: run.progress("x", done=1),
        refused=Effect.PROGRESS,
        bad=[lambda run: run.progress("x", done="1"), lambda run: run.progress(None)],  # type: ignore[arg-type]
    ),
    verbs.SetPhase: Case(
        does=lambda run, _: enters(run.phase("x")),
        refused=Effect.PHASE,
        bad=[lambda run: enters(run.phase(b"x"))],  # type: ignore[arg-type]
    ),
    verbs.ReadHistory: Case(does=histories, returns="user", afterwards="user"),
    # `check` asks nothing of control once the run is known to have fallen, and so counts as no try.
    verbs.Check: Case(does=lambda run, _: run.check(), returns=[], afterwards="Stale"),
    verbs.Took: Case(does=steered, returns=1, afterwards="Stale"),
    verbs.Ask: Case(
        does=lambda run, _: run.ask("so?"),
        returns=True,
        refused=Effect.QUESTION,
        bad=[
            lambda run: run.ask(" "),
            lambda run: run.ask("so?", choices=["a", "a"]),
            lambda run: run.ask("so?", choices="ab"),
            lambda run: run.ask("so?", timeout=-1),
        ],
    ),
    verbs.Delegate: Case(
        does=delegates,
        returns="a piece \n\nof work",
        refused=Effect.CHILD,
        bad=[
            lambda run: run.delegate("child", ""),
            lambda run: run.delegate("", "work"),
            lambda run: run.delegate("nobody", "work"),
            lambda run: run.delegate("child", "work", timeout=float("nan")),
            lambda run: run.delegate("child", "work", announce="note"),
        ],
    ),
    verbs.TakeHold: Case(
        does=lambda run, _: enters(run.hold(f"of {run.id}")),
        refused=Effect.HOLD,
        bad=[lambda run: enters(run.hold("")), lambda run: enters(run.hold("x" * 600))],
    ),
    verbs.Release: Case(does=lambda run, _: enters(run.hold(f"of {run.id}")), refused=Effect.HOLD),
    verbs.StartProcess: Case(
        does=lambda run, _: waits_for(run, None),
        returns=0,
        refused=Effect.SPAWN,
        bad=[
            lambda run: spawns(run),
            lambda run: spawns(run, ""),
            lambda run: spawns(run, "a\0"),
            lambda run: spawns(run, "true", env={"=": "1"}),
            lambda run: spawns(run, "true", input="x" * 9_000_000),
        ],
    ),
    verbs.WaitProcess: Case(does=waits_for, returns=0, has=hangs, refused=Effect.RESULT),
    verbs.ReadLine: Case(does=reads_line, returns="one", has=streams, refused=Effect.RESULT),
    verbs.ReadOutput: Case(does=outputs, returns="one\n", has=hangs, afterwards=""),
    verbs.StopProcess: Case(does=stops, has=hangs),
    verbs.EndProcess: Case(does=ends, has=hangs),
    verbs.ForgetProcess: Case(does=forgets, has=holds_one),
    verbs.Record: CALL,
    verbs.Permit: CALL,
    verbs.Finish: CALL,
    verbs.GiveUp: Case(does=gives_up, refused=Effect.TOOL),
    verbs.EndBatch: Case(
        does=batches,
        returns=[3, 7],
        refused=Effect.TOOL,
        bad=[lambda run: run.batch([(None, {})])],  # type: ignore[list-item]
    ),
}
NAMED = {verb.__name__: case for verb, case in CASES.items()}


async def agent(run: Run, message: Message) -> None:
    """Play a stage of a verb."""
    # A message that is steered to this run is not played.
    name, stage, path = message.text.split()
    case, notes = NAMED[name], Notes(path)
    if stage == "bad":
        for bad in case.bad:
            notes.add("bad", await tried(bad(run)))
        return
    # Nothing hung is waited for to its end.
    alone = stage == "before" and case.does is waits_for
    has = None if case.has is None or alone else await case.has(run)
    notes.add("ready")
    if stage == "after":
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        notes.add("did", await tried(case.does(run, has)))
    elif stage == "during":
        while True:
            await case.does(run, has)
            await asyncio.sleep(0.001)
    else:
        notes.add("did", await tried(case.does(run, has)))
