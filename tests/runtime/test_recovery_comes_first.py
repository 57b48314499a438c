"""The next start resolves every run before it takes a message, and comes to the same when it is killed meanwhile."""

import asyncio
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from interlock import Control, Ending, EventKind, Message, Run
from interlock.core.lifecycle import State

from .lives import Place, behind, until
from .scene import echoes, idles, kinds, log_of, without_times


def copied(place: Place, to: Path) -> Place:
    """The same store once more, as it was left."""
    other = Place(place.kind, to)
    if place.kind == "memory":
        other._memory = deepcopy(place._memory)
    else:
        shutil.copytree(place.directory, to)
    return other


async def of_every_sort(place: Place, control: Control) -> dict[str, str]:
    """Leave runs in every state that a kill may find, and return them by what is to become of them."""
    runs = {}
    for session in ("said", "tool", "asks", "tree"):
        sent = await control.send(session, session)
        runs[f"lost {session}"] = sent.run_id
    for n in range(2):
        runs[f"waits {n}"] = (await control.send("said", f"waits {n}", strategy="queue")).run_id
    done = await control.send("done", "done")
    await control.wait(done.run_id)
    runs["done"] = done.run_id
    living = control._registry.runs
    await until(lambda: living[runs["lost said"]].reply.open)
    await until(lambda: [c.state for c in (living[runs["lost tool"]].work.calls or {}).values()] == ["running"])
    await until(lambda: living[runs["lost asks"]].work.questions)
    await until(lambda: any(run.ties.parent is not None and run.reply.open for run in living.values()))
    runs["child"] = next(run.id for run in living.values() if run.ties.parent is not None)
    return runs


async def every_sort(run: Run, message: Message) -> str:
    """An agent whose run comes to the state that its message names, for `of_every_sort`."""

    async def lasts() -> None:
        await asyncio.Event().wait()

    if message.text == "tool":
        await run.call(lasts)
    elif message.text == "asks":
        await run.ask("really?")
    elif message.text == "tree":
        await run.delegate("helper", "said")
    elif message.text == "said":
        await run.say("hello")
        await asyncio.Event().wait()
    return message.text


def test_every_run_is_resolved_before_anything_is_taken(place: Place) -> None:
    """In the first step of the next life nothing is found running that is not, in memory or in the store (race 80)."""

    async def scene(control: Control) -> None:
        place.die(await of_every_sort(place, control))

    async def after(control: Control) -> None:
        answers = {name: await control.wait(run, timeout=0) for name, run in runs.items()}
        endings = {name: outcome.ending for name, outcome in answers.items() if not name.startswith("waits")}
        assert endings == {
            **{name: Ending.LOST for name in runs if name.startswith("lost")},
            "child": Ending.PARENT_ENDED,
            "done": Ending.COMPLETED,
        }
        for name, run in runs.items():
            row = await control._store.run(run)
            assert row.outcome is not None or not row.started or name.startswith("waits")
        assert not [info for info in await control.runs() if info.state is State.STARTED and info.id not in waiting]
        assert [(await control.wait(run)).text for run in waiting] == ["waits 0", "waits 1"]

    runs = place.killed(scene, every_sort, agents={"helper": every_sort})
    waiting = [run for name, run in runs.items() if name.startswith("waits")]
    place.life(after, every_sort)
    assert place.look(lambda store: store.unsettled()) == ()


def test_killed_while_recovering(place: Place, tmp_path: Path) -> None:
    """A second life that dies at any write leaves the third to reach what an undisturbed second reaches (race 82)."""

    async def scene(control: Control) -> None:
        place.die(await of_every_sort(place, control))

    async def after(control: Control) -> dict[str, Any]:
        for run in runs.values():
            await control.wait(run, drained=True)
        found: dict[str, Any] = {}
        for name, run in runs.items():
            row = await control._store.run(run)
            log = await log_of(control, row.session)
            assert kinds(log, run).count("ended") == 1 and kinds(log, run)[-1] == "ended"
            [ended] = [event.data for event in log if event.run_id == run and event.kind is EventKind.ENDED]
            assert ended.outcome.same_story(row.outcome)
            found[name] = without_times(msgspec.structs.replace(ended, void=tuple(sorted(ended.void))))
        crashes = (await control._store.session("said")).crashes, (await control._store.session("tool")).crashes
        await until(lambda: not control._registry.sessions)
        return {**found, "crashes": crashes}

    runs = place.killed(scene, every_sort, agents={"helper": every_sort})
    undisturbed = copied(place, tmp_path / "undisturbed").life(after, echoes)
    assert undisturbed["crashes"] == (0, 1) and undisturbed["waits 1"].outcome.text == "waits 1"

    writes = step = 0
    every = 1 if place.kind == "memory" else 4
    while True:
        step += every
        again = copied(place, tmp_path / f"killed at {step}")
        count = [0]

        def counts(store: Any, again: Place = again, count: list[int] = count, step: int = step) -> None:
            def one() -> None:
                count[0] += 1
                if count[0] == step:
                    again.die(False, written=bool(step // every % 2))

            behind(store, "decide", one)
            behind(store, "append", one)

        async def dies(control: Control, again: Place = again) -> None:
            again.die(True, written=False)

        opened = again.killed(dies, idles, before=counts)
        begun = again.look(lambda store: store.run(runs["waits 0"]))
        found = again.life(after, echoes)
        if begun.started:
            # The message began in the second life, and is lost with that one.
            assert found["waits 0"].outcome.ending is Ending.LOST
            found = {**undisturbed, **{n: e for n, e in found.items() if n not in ("waits 0", "crashes")}}
        assert found == undisturbed, f"killed at write {step}"
        if opened:
            break
        writes += 1
    assert writes >= 20 / every
