"""A store killed at every write and every fsync: `python -m proofs.disk --bare --control`.

Each scene is played again and again, killed before its first call on the store's files, its second, and so on until it
ends unharmed (testing/strace.py). The judge reads the database with plain sqlite3, and what the scene said.
1. A decision that was acknowledged is in the database. Any other is there whole, or not at all.
2. The database is sound, and the next start settles it: no message is lost, none runs twice, none runs on.
3. The next start is killed at every write too.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from interlock.agent.message import Message
from interlock.agent.run import Run
from interlock.app import open_control
from interlock.core.decision import Decision, EpochRow
from interlock.core.events import Event, QuestionData
from interlock.core.names import Ending
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.runtime.control import Control
from interlock.runtime.settings import Settings
from interlock.stores.sqlite import SqliteStore, checkpoints
from proofs.strace import SECONDS, Played, Script, State, done, missing, play, points, read

SHELF = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a kill needs no real disk, and fsync is slow
KINDS = ("lost", "torn", "damaged", "twice", "running", "changed")

Steps = tuple[tuple[str, ...], ...]


# The judge


class Verdict(NamedTuple):
    """The judge's findings of a scene."""

    scene: str
    points: int
    troubles: list[tuple[str, str]]  # each with its kind, and where it was found


def boot(state: State) -> int:
    """Return the number of the last start."""
    return max((row["value"] for row in state.get("facts", []) if row["name"] == "boot"), default=0)


def running(state: State) -> list[str]:
    """Return the runs that have no ending."""
    return [row["id"] for row in state.get("runs", []) if row["ending"] is None and row["alias"] is None]


def crash_bare(scene: str) -> Verdict:
    """Kill one step of the bare store at every write: the step is stored whole, or, if it was not said, not at all."""
    steps = list(BARE)
    given = [] if scene == OPENING else steps[: steps.index(scene)]
    troubles: list[tuple[str, str]] = []
    seen: list[tuple[str, Played, State]] = []
    with tempfile.TemporaryDirectory(dir=SHELF) as made:
        place = Path(made)
        if given:
            play(lambda script: bare(script, given), place / "template")
        for n, directory, played in points(lambda script: bare(script, [scene]), place / "template", place):
            where, state = f"{scene}, {n}", read(directory)
            seen.append((where, played, state))
            play(settle, directory)
            after = read(directory)
            if "damaged" in state or "damaged" in after:
                troubles.append(("damaged", where))
            elif boot(after) != boot(state) + 1:
                troubles.append(("lost", f"{where}: the boot number"))
            troubles += [("running", f"{where}: {run}") for run in running(after)]
    _, whole, last = seen[-1]
    begun = {**last, "facts": [{"name": name, "value": 0} for name in ("boot", "closed", "epoch")]}
    allowed = [whole.before, last, begun] if scene == OPENING else [whole.before, last]
    for where, played, state in seen:
        if played.said and state != last:
            troubles.append(("lost", where))
        elif state not in allowed:
            troubles.append(("torn", where))
    return Verdict(scene, len(seen) - 1, troubles)


def crash_control(scene: str) -> Verdict:
    """Kill a whole control at every write, let another recover, and judge what people were told."""
    troubles: list[tuple[str, str]] = []
    told: list[str] = []
    crashed = 0
    with tempfile.TemporaryDirectory(dir=SHELF) as made:
        place = Path(made)
        template, steps = place / "template", CONTROL[scene]
        if scene == RECOVERY:
            told = play(lambda script: serve(script, steps), template).said
        act = recover if scene == RECOVERY else serve
        for n, directory, played in points(lambda script: act(script, steps), template, place):
            crashed += played.killed
            again = play(lambda script: recover(script, steps), directory).said
            troubles += [(kind, f"{scene}, {n}: {what}") for kind, what in judge(directory, told + played.said, again)]
    return Verdict(scene, crashed, troubles)


def judge(directory: Path, told: list[str], again: list[str]) -> Iterator[tuple[str, str]]:
    """Compare the database with what was said before the crash and after it, and with the effects that were done."""
    state = read(directory)
    if "damaged" in state:
        yield "damaged", str(state)
        return
    runs = {row["id"]: row for row in state["runs"]}
    keys = {row["key"]: row["run_id"] for row in state["keys"]}
    for word, *rest in map(str.split, told + again):
        if word == "sent" and (rest[0] not in keys or keys[rest[0]] != rest[1] or rest[1] not in runs):
            yield "lost", " ".join(rest)
        if word == "ended" and (rest[0] not in runs or runs[rest[0]]["ending"] != rest[1]):
            yield "changed", " ".join(rest)
    for run in running(state):
        yield "running", run
    did = Counter(done(directory))
    for what, times in did.items():
        if times > 1:
            yield "twice", what
    yield from _torn(state, did)


def _torn(state: State, did: Counter[str]) -> Iterator[tuple[str, str]]:
    runs = {row["id"]: row for row in state["runs"]}
    ends = Counter(row["run_id"] for row in state["events"] if '"ended"' in row["data"].split(",")[0])
    for run in runs.values():
        if ends[run["id"]] != 1 or not run["told"]:
            yield "torn", f"{run['id']} is told as ended {ends[run['id']]} times"
        if run["session"] not in {row["id"] for row in state["sessions"]}:
            yield "torn", f"{run['id']} has no session"
        if run["ending"] == "completed" and not did[f"began {run['key']}"]:
            yield "torn", f"{run['id']} never began"
    for table in ("keys", "tools", "questions"):
        for row in state[table]:
            if row["run_id"] not in runs:
                yield "torn", f"{table} without {row['run_id']}"
    for row in state["receipts"]:
        if row["pending"]:
            yield "torn", f"receipt {row['id']} is pending"
    started = {runs[row["run_id"]]["key"] for row in state["tools"] if row["run_id"] in runs}
    for what in did:
        if what.startswith("tool ") and what.removeprefix("tool ") not in started:
            yield "torn", f"{what} without a start on record"


# Scenes of the bare store: each step begins where the steps before it ended

OPENING, REOPENING, CLOSING = "first opening", "later opening", "close"
RUN = {"session": "s", "principal": "local", "kind": "chat", "text": "hello", "admitted_at": 1e10, "generation": 1}
OUTCOME = {"text": "so far", "started_at": 1.0, "ended_at": 2.0}
TOOL = {"call_id": "c", "run_id": "r2", "name": "search", "arguments": "{}"}
QUESTION = {"id": "q", "run_id": "r2", "session": "s", "principal": "local", "text": "Deploy?"}
WAKE = {"id": "w", "session": "s", "principal": "local", "text": "look", "since": 1.0, "every": 60.0}


def _session(generation: int) -> list[dict[str, Any]]:
    return [{"id": "s", "owner": "local", "generation": generation}]


def _message(run: str, **more: Any) -> dict[str, Any]:
    key = {"principal": "local", "key": run, "method": "send", "digest": "d", "run_id": run}
    return {"admissions": [{"id": run, **RUN, "key": run, **more}], "keys": [key]}


def _ended(run: str, ending: str, drain: str = "pending") -> dict[str, Any]:
    outcome = {"run_id": run, "ending": ending, **OUTCOME}
    receipt = {"id": f"f-{run}", "session": "s", "cause": ending, "runs": [{"id": run, "outcome": outcome}]}
    return {
        "endings": [{"id": run, **RUN, "key": run, "outcome": outcome}],
        "receipts": [{**receipt, "fenced_at": 1.0, "drain": drain}],
    }


BARE: dict[str, dict[str, Any]] = {
    OPENING: {},
    REOPENING: {},
    "send": {"sessions": _session(1), **_message("r1")},
    "takeover": {"sessions": _session(3), **_message("r2"), **_ended("r1", "superseded")},
    "start": {"starts": ["r2"]},
    "tool start": {"tools": [{**TOOL, "state": "running"}]},
    "tool end": {"tools": [{**TOOL, "state": "finished"}]},
    "question": {"questions": [{**QUESTION, "state": "open"}]},
    "stop": {
        "sessions": _session(4),
        **_ended("r2", "stopped"),
        "questions": [{**QUESTION, "state": "void"}],
        "tombstones": [{"principal": "local", "key": "late"}],
        "marks": [{"session": "s", "channel": "chat", "by": "local", "at": 7, "stopped_at": 1.0}],
        "shares": [{"session": "s", "principal": "bob", "may": "read", "at": 7}],
        "epochs": [{"session": "s", "epoch": 99}],
        "stops": [{"principal": "local", "key": "k", "method": "stop", "digest": "d", "at": 1.0, "aborted": False}],
    },
    "queue": {"sessions": _session(5), **_message("r3"), "wakes": [WAKE]},
    "collect": {**_message("r4", alias="r3"), "unwakes": ["w"]},
    "final": _ended("r3", "completed", "observed"),
    "deltas": {},
    "checkpoint": {},
    "next": _message("r5"),
    "recovery": _ended("r5", "lost", "observed"),
    "prune": {},
    CLOSING: {},
}


async def bare(script: Script, scenes: list[str]) -> None:
    """Open the store and take steps; strace attaches before the last one."""
    if scenes[-1] in (OPENING, REOPENING):
        script.ready()
    store = SqliteStore(script.directory)
    number = await store.open() << 32
    for scene in scenes:
        number += 1
        if scene == scenes[-1] and scene not in (OPENING, REOPENING):
            script.ready()
        # An event that was appended before a decision must be stored with it.
        if BARE[scene]:
            hello = _event(number, {"type": "message", "text": "hello", "by": "local"})
            store.append(hello, EpochRow(session=hello.session, epoch=number >> 32))
            await store.decide(msgspec.convert(BARE[scene], Decision))
        elif scene == CLOSING:
            await store.close()
        elif scene == "prune":
            await store.prune(before=2e10)
        elif scene in ("deltas", "checkpoint"):
            checkpoints.RESTART_BYTES = 0 if scene == "checkpoint" else checkpoints.RESTART_BYTES
            store.append(_event(number, {"type": "delta", "text": "hel"}, run_id="r3"))
            while not any(row["position"] == number for row in read(script.directory)["passing"]):
                await asyncio.sleep(0.001)
            await store.prune()  # prune waits for the writer
    script.say("done")


def _event(position: int, data: dict[str, Any], run_id: str | None = None) -> Event:
    return msgspec.convert(
        {"position": position, "session": "s", "run_id": run_id, "generation": 1, "data": data}, Event
    )


async def settle(script: Script) -> None:
    """Play the next start of a bare store: every run that has no ending gets one."""
    store = SqliteStore(script.directory)
    await store.open()
    for session in await store.unsettled():
        for run in await store.unsettled_runs(session):
            outcome = run.outcome or Outcome(run_id=run.id, ending=Ending.LOST)
            await store.decide(Decision(endings=(msgspec.structs.replace(run, outcome=outcome),)))
    await store.close()


# Scenes of a whole control: what people do, in order

RECOVERY = "recovery"
QUEUE = "queue"
CONTROL: dict[str, Steps] = {
    "send and final": (("send", "a", "one"), ("wait", "one")),
    "takeover": (("send", "a", "long-one"), ("begun", "long-one"), ("send", "a", "two"), ("wait", "two")),
    "tool": (("send", "a", "tool-one"), ("wait", "tool-one")),
    "question": (("send", "a", "ask-one"), ("answer", "ask-one"), ("wait", "ask-one")),
    "stop": (("send", "a", "long-one"), ("begun", "long-one"), ("send", "a", "two", QUEUE), ("stop", "a")),
    "queue": (("send", "a", "long-one"), ("send", "a", "two", QUEUE), ("cut", "long-one"), ("wait", "two")),
    RECOVERY: (
        *(("send", "a", "one"), ("wait", "one"), ("send", "b", "tool-long-two"), ("send", "c", "ask-three")),
        *(("send", "d", "long-four"), ("send", "d", "five", QUEUE), ("send", "d", "tool-six", QUEUE)),
        *(("begun", "tool-long-two"), ("begun", "long-four"), ("asked", "ask-three"), ("die",)),
    ),
}
# A machine under strace is slow, and no scene may see a message refused for a late commit.
SETTINGS = Settings(commit_seconds=SECONDS / 2)


class Armed(SqliteStore):
    """A store that lets strace attach once it is open, so that its writing thread's calls are counted from there."""

    def __init__(self, script: Script) -> None:
        super().__init__(script.directory)
        self._script = script

    async def open(self) -> int:
        """Open, and wait for strace."""
        boot = await super().open()
        self._script.ready()
        return boot


class People:
    """The users of a control: they send and stop, and remember only what they were told."""

    def __init__(self, script: Script, control: Control) -> None:
        self.script = script
        self.control = control
        self.runs: dict[str, str] = {}

    async def send(self, session: str, text: str, strategy: str | None = None) -> None:
        """Send a message; its text is its key."""
        sent = await self.control.send(session, text, key=text, strategy=strategy)
        self.runs[text] = sent.run_id
        self.script.say("sent", text, sent.run_id)

    async def wait(self, text: str) -> None:
        """Wait for an end."""
        outcome = await self.control.wait(self.runs[text])
        if outcome.durable:
            self.script.say("ended", outcome.run_id, outcome.ending)

    async def stop(self, session: str) -> None:
        """Stop a session."""
        self._heard(await self.control.stop(session=session))

    async def cut(self, text: str) -> None:
        """Stop one run."""
        self._heard(await self.control.stop(run=self.runs[text]))

    def _heard(self, receipt: Receipt) -> None:
        for run in receipt.runs if receipt.durable else ():
            self.script.say("ended", run.id, run.outcome.ending)

    async def begun(self, text: str) -> None:
        """Wait until an agent has begun, or its tool."""
        while not any(text in line for line in done(self.script.directory)):
            await asyncio.sleep(0.001)

    async def asked(self, text: str) -> str:
        """Wait for a question."""
        async for event in self.control.watch(run=self.runs[text]):
            if isinstance(event.data, QuestionData):
                return event.data.question_id
        raise RuntimeError(f"{text} ended and had not asked")

    async def answer(self, text: str) -> None:
        """Answer the question."""
        await self.control.answer(await self.asked(text), True)

    async def die(self) -> None:
        """Kill this process, with every run at work."""
        os.kill(os.getpid(), signal.SIGKILL)


def _opened(script: Script) -> contextlib.AbstractAsyncContextManager[Control]:
    async def tool(text: str) -> None:
        script.effect("tool", text)
        if "long" in text:
            await asyncio.Event().wait()

    async def agent(run: Run, message: Message) -> str:
        script.effect("began", message.text)
        await run.say("so ")
        await run.say("far")
        if "tool" in message.text:
            await run.call(tool, text=message.text)
        elif "ask" in message.text:
            await run.ask("Really?")
        elif "long" in message.text:
            await asyncio.Event().wait()
        return "done"

    return open_control(agent, store=Armed(script), settings=SETTINGS)


async def serve(script: Script, steps: Steps) -> None:
    """Do what people do; the control is closed at the end."""
    async with _opened(script) as control:
        people = People(script, control)
        for verb, *given in steps:
            await getattr(people, verb)(*given)
    script.say("done")


async def recover(script: Script, steps: Steps) -> None:
    """Play the next start: every message is sent again with its key, and ends."""
    async with _opened(script) as control:
        people = People(script, control)
        for verb, *given in steps:
            if verb == "send":
                await people.send(*given)
        for text in people.runs:
            await (people.cut(text) if "long" in text or "ask" in text else people.wait(text))
    script.say("done")


# The command line


def campaign(scenes: list[tuple[str, str]], jobs: int) -> Iterator[Verdict]:
    """Play scenes, several at a time, each in the order of its writes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_crash, scenes)


def _crash(asked: tuple[str, str]) -> Verdict:
    kind, scene = asked
    return crash_bare(scene) if kind == "bare" else crash_control(scene)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0 if nothing was broken."""
    parser = argparse.ArgumentParser(prog="proofs.disk", description=__doc__)
    parser.add_argument("--bare", action="store_true", help="the store alone")
    parser.add_argument("--control", action="store_true", help="a whole control")
    parser.add_argument("--scene", help="this scene only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args(arguments)
    console = Console()
    if lacks := missing():
        console.print(lacks, markup=False)
        return 1
    chosen = [("bare", scene) for scene in BARE if asked.bare] + [
        ("control", scene) for scene in CONTROL if asked.control
    ]
    began, broken, crashed = time.monotonic(), 0, 0
    table = Table("scene", title="killed at every write and every fsync")
    for name in ("crash points", *KINDS):
        table.add_column(name, justify="right")
    for verdict in campaign([each for each in chosen if asked.scene in (None, each[1])], asked.jobs):
        counts = Counter(kind for kind, _ in verdict.troubles)
        console.print(f"{verdict.scene}: {verdict.points} crash points, {len(verdict.troubles)} troubles", markup=False)
        for kind, where in verdict.troubles[:10]:
            console.print(f"  {kind}: {where}", markup=False)
        table.add_row(verdict.scene, str(verdict.points), *(str(counts[kind]) for kind in KINDS))
        broken, crashed = broken + len(verdict.troubles), crashed + verdict.points
    console.print(table)
    console.print(f"{crashed} crash points in {time.monotonic() - began:.1f} s on {asked.jobs} cores; {broken} broken")
    return min(1, broken)


if __name__ == "__main__":
    sys.exit(main())
