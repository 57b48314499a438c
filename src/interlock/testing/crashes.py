"""kill -9 at random moments under load, and a judge that knows what had been told.

1. A server under load tells a pipe whatever its clients are told, each line before it goes on; agents and tools leave
   their marks in a file outside. Both outlive it, so after each kill the judge knows what was promised and what began.
2. The judge asks the next server through its verbs, and looks at a copy of the database with plain sqlite3.
3. How often each check was made is counted: one that never was proves nothing.

python -m interlock.testing.crashes --seed 7 --kills 10     play one directory here, unlimited; print JSON
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import interlock
from interlock.core.errors import InterlockError, KeyConflict, QuestionClosed, Unavailable, Unknown
from interlock.core.events import Asked, Block, Delta, Ended, Event, Gap, Tool
from interlock.core.names import PASSING, Ending, QuestionState, ToolState
from interlock.core.outcome import Outcome
from interlock.runtime.control import Control
from interlock.runtime.run import Message, Run
from interlock.runtime.settings import CRASHES, Settings
from interlock.runtime.watch import whole_log
from interlock.stores.sqlite import SqliteStore
from interlock.testing.hostile.processes import children, emptied, entered, scope

SESSIONS = ("s0", "s1", "s2", "s3")
LANES = 4
LOAD_SECONDS = 0.3  # within which most kills come
OPEN_SECONDS = 0.12  # within which those come that are to hit opening and recovery
CLOSE_SECONDS = 0.08  # and those that are to hit closing
START_SECONDS = 30.0  # for a server to recover and be asked
GONE_SECONDS = 5.0
LOSS_SECONDS = 2.0  # of text that was shown and not written: a twentieth of a second, on a machine that is not busy
AUDITED = 25  # older runs that are asked about again after each kill
MARK = "INTERLOCK_CRASH"
PROGRAMS = (
    "exec sleep 60",
    "trap '' TERM HUP INT; sleep 60 & wait",
    "setsid sh -c 'sleep 60 & sleep 60' & wait",
    "(setsid setsid sleep 60 &); sleep 60",
)
SCRIPTS = "s ss p t tt b a c d P D z k sl tl al cl Pl Dl kzkzk stzs szszszszsz ptcs zzf hz hl".split()  # noqa: SIM905


class Report(msgspec.Struct):
    """What became of some kills."""

    kills: int = 0
    seconds: float = 0.0
    checks: dict[str, int] = {}
    seen: dict[str, int] = {}  # what the load did, so that a load that does nothing is seen
    broken: list[str] = []
    late_ms: float = 0.0  # the oldest text that was shown and lost


# The server


class Server:
    """One start: recover, be asked, then carry a load until killed."""

    def __init__(self, place: Path, book: "Book", told: int, *, closes: bool, last: bool) -> None:
        self._book, self._told, self._closes, self._last = book, told, closes, last
        self._chance = random.Random(f"{book.seed} {book.start}")
        self._store = SqliteStore(place / "data")
        self._witness = os.open(place / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._mark = f"{book.mark}-{book.start}"
        self._sent = 0
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._asked: list[str] = []

    def tell(self, *line: object) -> None:
        """Let the judge know; it has it before anything else happens."""
        rest = msgspec.json.encode(line) + b"\n"
        while rest:
            rest = rest[os.write(self._told, rest) :]

    def witness(self, *line: object) -> None:
        """Leave a mark in the world."""
        os.write(self._witness, json.dumps(line).encode() + b"\n")

    async def serve(self) -> None:
        """Everything, from opening to the end."""
        settings = Settings(collect_seconds=0.02, grace_seconds=0.2)
        async with interlock.open_control(
            self.agent, agents={"child": self.agent}, store=self._store, settings=settings
        ) as control:
            self.tell("ready")
            for session in self._book.events:
                await self._watch(control, session)
            await self._audit(control)
            self.tell("asked")
            if self._last:
                await self._finish(control)
            else:
                lanes = [asyncio.create_task(self._lane(control, lane)) for lane in range(LANES)]
                await asyncio.wait(lanes, timeout=self._chance.uniform(0, LOAD_SECONDS) if self._closes else None)
                self.tell("closing")
        self.tell("closed")

    # Agents

    async def agent(self, run: Run, message: Message) -> str | None:
        """Do what the message says, letter by letter."""
        self.witness("begin", run.id, [part.text for part in message.parts])
        for number, letter in enumerate(message.text.split("\n")[0].partition(":")[2]):
            await self._act(run, letter, f"{run.id}/{number}")
        return self._chance.choice((None, f"{run.id} done"))

    async def _act(self, run: Run, letter: str, name: str) -> None:
        match letter:
            case "s":
                for piece in range(5):
                    await run.say(f"{name}.{piece} ")
            case "p":
                await run.post(name)
            case "t":
                await run.call(self.effect, name=name)
            case "b":
                await run.batch([(self.effect, {"name": f"{name}.{n}"}) for n in range(3)], parallel=True)
            case "a":
                await run.ask(name)
            case "c" | "d":
                await run.delegate(
                    "child", f"{name}:{self._chance.choice(('s', 't', 'l', 'a'))}", detached=letter == "d"
                )
            case "P" | "D":
                program = self._chance.choice(PROGRAMS)
                await run.spawn("sh", "-c", program, env={MARK: self._mark}, background=True, detached=letter == "D")
            case "k":
                for steered in await run.check():
                    await run.call(self.effect, name=f"{name} {steered.text}")  # on record, and so is that it was taken
                    self.witness("begin", run.id, [steered.text])
            case "h":
                async with run.hold("it"):
                    await asyncio.sleep(0.005)
            case "z":
                await asyncio.sleep(self._chance.uniform(0, 0.03))
            case "l":
                await asyncio.sleep(60)
            case "f":
                raise RuntimeError(name)

    async def effect(self, name: str) -> str:
        """A tool whose effect is seen outside."""
        self.witness("effect", name)
        await asyncio.sleep(self._chance.choice((0, 0.003)))
        return name

    # Clients

    async def _lane(self, control: Control, lane: int) -> None:
        verbs: list[Callable[[Control], Awaitable[None]]] = []
        for verb, weight in (
            (self._send, 12), (self._stop, 3), (self._answer, 3), (self._wait, 3), (self._again, 2), (self._wake, 1),
            (self._reset, 1), (self._bury, 1), (self._prune, 1), (self._choose, 1),
        ):  # fmt: skip
            verbs += [verb] * weight
        while True:
            try:
                await self._chance.choice(verbs)(control)
            except InterlockError as error:
                self.tell("refused", type(error).__name__)
            except Exception as error:
                self.tell("broken", f"a verb raised {type(error).__name__}: {error}")
            await asyncio.sleep(self._chance.uniform(0, 0.012))

    async def _send(self, control: Control, key: str | None = None, session: str | None = None) -> None:
        self._sent += 1
        chance, place = self._chance, f"{self._book.start}.{self._sent}"
        text = f"{place}:{chance.choice(SCRIPTS)}"
        session = session or chance.choice((*SESSIONS, f"q{self._book.start}"))
        key = key or chance.choice((None, f"k{place}"))
        strategy = chance.choice((None, None, "interrupt", "queue", "queue", "steer", "collect", "rollback", "reject"))
        deadline = chance.choice((None, None, None, 0.02))
        asked = {"session": session, "text": text, "key": key, "strategy": strategy, "deadline": deadline}
        self.tell("sending", asked)
        try:
            sent = await control.send(**asked)
        except InterlockError as error:
            self.tell("turned away", text, type(error).__name__, str(error))
            if "parked" in str(error):
                self.tell("parked", session)
                if chance.random() < 0.7:
                    self.tell("receipt", await control.reset(session))
            return
        self.tell("ack", text, sent.run_id)
        self._book.acked[text] = sent.run_id
        self._book.sent[text] = asked
        await self._watch(control, session)

    async def _watch(self, control: Control, session: str) -> None:
        async def follow() -> None:
            with contextlib.suppress(Unknown):  # it was pruned
                async for event in control.watch(session, after=self._book.last(session)):
                    self.tell("event", event, time.monotonic())
                    if isinstance(event.data, Asked) and event.data.state is QuestionState.OPEN:
                        self._asked.append(event.data.question_id)

        if session not in self._watched:
            self._watched[session] = asyncio.create_task(follow())

    def _some_run(self) -> str | None:
        return self._chance.choice(list(self._book.acked.values())[-30:]) if self._book.acked else None

    async def _stop(self, control: Control) -> None:
        if self._chance.random() < 0.5 and (run := self._some_run()) is not None:
            self.tell("receipt", await control.stop(run=run))
        else:
            self.tell("receipt", await control.stop(session=self._chance.choice(SESSIONS)))

    async def _bury(self, control: Control) -> None:
        self._sent += 1
        key = f"b{self._book.start}.{self._sent}"
        await control.stop(key=key)
        self.tell("buried", key)
        self._book.buried.add(key)

    async def _answer(self, control: Control) -> None:
        if self._asked:
            question = self._chance.choice(self._asked[-5:])
            answered = await control.answer(question, True)
            self.tell("answered", question, answered.state)

    async def _wait(self, control: Control) -> None:
        if (run := self._some_run()) is not None:
            self.tell("outcome", run, await control.wait(run, timeout=0.02, drained=self._chance.random() < 0.3))

    async def _again(self, control: Control) -> None:
        """Use a key again: with the same body, with another, or one that was stopped before it was seen."""
        used = [text for text, asked in self._book.sent.items() if asked["key"] is not None]
        if used and self._chance.random() < 0.7:
            await self._retry(control, self._chance.choice(used))
        elif self._book.buried:
            await self._send(control, key=self._chance.choice(sorted(self._book.buried)), session="s0")

    async def _retry(self, control: Control, text: str) -> None:
        asked = self._book.sent[text]
        self.tell("again", text, (await control.send(**asked)).run_id)
        try:
            await control.send(**{**asked, "text": "another"})
        except KeyConflict:
            self.tell("conflict", text)
        else:
            self.tell("broken", f"key {asked['key']} was taken for another message")

    async def _wake(self, control: Control) -> None:
        self._sent += 1
        await control.wake(self._chance.choice(SESSIONS), f"{self._book.start}.{self._sent}:s", at=time.time() + 0.05)

    async def _reset(self, control: Control) -> None:
        session = self._chance.choice(SESSIONS)
        self.tell("resetting", session)
        self.tell("receipt", await control.reset(session))

    async def _choose(self, control: Control) -> None:
        await control.set_strategy(self._chance.choice(SESSIONS), self._chance.choice((None, "queue", "collect")))

    async def _prune(self, control: Control) -> None:
        self.tell("pruning")
        await self._store.prune(before=self._book.began)

    # What this start says of those before

    async def _audit(self, control: Control) -> None:
        """Answer for what was told earlier, by every verb; the judge compares."""
        book, chance = self._book, self._chance
        runs = book.to_ask if self._last else chance.sample(book.to_ask, min(AUDITED, len(book.to_ask))) + book.fresh
        for session, ids in book.by_session(runs).items():
            await self._say(control, session, ids)
        for question in book.questions if self._last else book.questions[-3:]:
            try:
                await control.answer(question, True)
            except QuestionClosed:
                self.tell("void", question)
            except Unknown:
                pass  # forgotten with its session
        used = [text for text, asked in book.sent.items() if asked["key"] is not None and text in book.acked]
        for text in chance.sample(used, min(3, len(used))):
            with contextlib.suppress(Unavailable):
                await self._retry(control, text)

    async def _say(self, control: Control, session: str, ids: list[str]) -> None:
        try:
            listed = {info.id: info for info in await control.runs(session)}
            entries = {entry.run_id: entry for entry in await control.history(session) if entry.role == "assistant"}
        except Unknown:
            return
        log = [event for event in await whole_log(self._store, session) if event.kind not in PASSING]  # type: ignore[arg-type]
        replayed: list[Event] = []
        if log:
            async for event in control.watch(session):
                replayed.append(event)
                if event.position >= log[-1].position:
                    break
        self.tell("replay", session, replayed)
        for run in ids:
            said: dict[str, Any] = {"wait": await control.wait(run, timeout=0)}
            if run in listed and listed[run].outcome is not None:
                said["runs"] = listed[run].outcome
            with contextlib.suppress(Unknown):
                said["receipt"] = next(
                    (each.outcome for each in (await control.receipt(run)).runs if each.id == run), None
                )
                said["timeline"] = [moment.state for moment in await control.timeline(run) if moment.what == "ended"]
            if run in entries and entries[run].ending is not None:
                said["history"] = entries[run].ending
            self.tell("says", run, said)

    async def _finish(self, control: Control) -> None:
        """Let everything come to its end, and answer for it."""
        for session in self._book.sessions:
            with contextlib.suppress(Unknown):
                await (control.reset if self._chance.random() < 0.5 else self._stopped(control))(session)
        for info in await control.runs():
            self.tell("outcome", info.id, await control.wait(info.id, timeout=START_SECONDS, drained=True))
        for session, ids in self._book.by_session(list(self._book.acked.values())).items():
            await self._say(control, session, ids)

    def _stopped(self, control: Control) -> Callable[[str], Awaitable[object]]:
        return lambda session: control.stop(session=session)


# The judge


class Row(msgspec.Struct):
    """A run as the database has it."""

    id: str
    session: str
    text: str
    started: bool
    alias: str | None
    parent: str | None
    outcome: Outcome | None


class Book:
    """What the judge knows; a server is forked with it, and so knows what to answer for."""

    def __init__(self, seed: int, mark: str) -> None:
        self.seed, self.mark, self.start, self.began = seed, mark, 0, time.time()
        self.acked: dict[str, str] = {}  # text: run
        self.sent: dict[str, dict[str, Any]] = {}  # text: how it was sent
        self.turned_away: set[str] = set()
        self.buried: set[str] = set()
        self.pruned = 0  # the last start that pruned
        self.events: dict[str, dict[int, Event]] = {}  # as live watchers were told
        self.endings: dict[str, Outcome] = {}  # told as durable
        self.shown: dict[str, list[tuple[str, float]]] = defaultdict(list)  # run: pieces of its text, and when
        self.questions: list[str] = []
        self.rows: dict[str, Row] = {}  # as the last look at the database found them
        self.fresh: list[str] = []  # runs of the last start
        self.sessions: list[str] = []

    @property
    def to_ask(self) -> list[str]:
        """Runs whose ending stands, or was told."""
        return [run for run, row in self.rows.items() if row.outcome is not None or run in self.endings]

    def last(self, session: str) -> int:
        """The last position a watcher was told."""
        return max(self.events.get(session, {}), default=0)

    def by_session(self, runs: list[str]) -> dict[str, list[str]]:
        """Runs in the sessions that they are in."""
        found: dict[str, list[str]] = {}
        for run in dict.fromkeys(runs):
            if run in self.rows:
                found.setdefault(self.rows[run].session, []).append(run)
        return found


class Judge:
    """Starts servers on one directory, kills them, and compares what they tell."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place = place
        self._chance = random.Random(seed)
        self._book = Book(seed, f"{os.getpid()}-{time.monotonic_ns():x}")
        self._killed: list[float] = []  # when
        self._over: set[str] = set()  # runs that this start told as ended
        self._now: set[int] = set()  # positions that this start told
        self._checks: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self.report = Report()

    def check(self, what: str, holds: object, detail: object = "") -> None:
        """Count a check; note it if it does not hold."""
        self._checks[what] += 1
        if not holds and len(self.report.broken) < 20:
            self.report.broken.append(f"seed {self._book.seed}, start {self._book.start}: {what}: {detail}")

    def play(self, kills: int) -> Report:
        """Kill so many times, then let one server finish in peace."""
        began = time.perf_counter()
        while self.report.kills < kills and not self.report.broken:
            self._one(self._chance.choices(("load", "open", "close"), (75, 15, 10))[0])
        if not self.report.broken:
            self._one("last")
        self.report.checks, self.report.seen = dict(self._checks), dict(self._seen)
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _one(self, moment: str) -> None:
        book = self._book
        book.start, book.began = book.start + 1, time.time()
        self._over.clear()
        self._now.clear()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _serve(Server(self._place, book, writing, closes=moment == "close", last=moment == "last"), writing)
        os.close(writing)
        try:
            lines = self._listen(pid, reading, moment)
        finally:
            os.close(reading)
        self._read(lines)
        self._look(last=moment == "last")
        if moment == "last" or self._chance.random() < 0.5:  # else the next start finds keepers at work
            self._gone(book.start, GONE_SECONDS)

    def _listen(self, pid: int, reading: int, moment: str) -> list[bytes]:
        """Take what a server tells, and kill it when its time has come."""
        at = time.monotonic() + (self._chance.uniform(0, OPEN_SECONDS) if moment == "open" else START_SECONDS)
        cues = {"load": (b'["asked"]', LOAD_SECONDS), "close": (b'["closing"]', CLOSE_SECONDS)}
        cue, within = cues.get(moment, (b"", 0.0))
        heard, killed = b"", False
        while True:
            ready, _, _ = select.select([reading], [], [], max(0.0, at - time.monotonic()))
            if not ready:
                self.check("a server is ready in time", moment == "open" or (cue and cue in heard), heard[-2000:])
                self._kill(pid)
                killed = True
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            if b'["ready"]\n' in piece:
                self._gone(self._book.start - 1, 0.0)
            heard += piece
            if cue and cue in piece:
                at = time.monotonic() + self._chance.uniform(0, within)
            if killed:
                at = time.monotonic() + START_SECONDS
        _, status = os.waitpid(pid, 0)
        self.report.kills += os.WIFSIGNALED(status)
        self.check("a server ends only when killed or done", killed or b'["closed"]' in heard, heard[-2000:])
        return heard.split(b"\n")[:-1]

    def _kill(self, pid: int) -> None:
        helpers = [one.pid for one in children(pid)] if self._chance.random() < 0.15 else []
        self._killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
        for helper in helpers:
            with contextlib.suppress(OSError):
                os.kill(helper, signal.SIGKILL)
        self._seen["helpers killed too"] += len(helpers)

    def _gone(self, start: int, seconds: float) -> None:
        """No process that a start up to this one began is alive."""
        marks = [f"{MARK}={self._book.mark}-{n}\0".encode() for n in range(1, start + 1)]
        until = time.monotonic() + seconds
        while left := [name for name in os.listdir("/proc") if name.isdigit() and _carries(int(name), marks)]:
            if time.monotonic() >= until:
                break
            time.sleep(0.005)
        self.check("no process is left", not left, [_words(int(pid)) for pid in left])

    # What was told

    def _read(self, lines: list[bytes]) -> None:
        book, before = self._book, set(self._book.endings)
        for line in lines:
            kind, *given = msgspec.json.decode(line)
            self._seen[kind] += 1
            getattr(self, "_on_" + kind.replace(" ", "_"), lambda *_: None)(*given)
        book.fresh = [run for run in book.endings if run not in before]

    def _on_broken(self, what: str) -> None:
        self.check("verbs do not break", False, what)

    def _on_sending(self, asked: dict[str, Any]) -> None:
        self._book.sent[asked["text"]] = asked
        if asked["session"] not in self._book.sessions:
            self._book.sessions.append(asked["session"])

    def _on_ack(self, text: str, run: str) -> None:
        self._book.acked[text] = run
        self._seen[f"sent {self._book.sent[text]['strategy']}"] += 1

    def _on_turned_away(self, text: str, error: str, words: str) -> None:
        self._book.turned_away.add(text)
        self._book.sent.pop(text)
        self._seen[f"turned away {error}"] += 1

    def _on_buried(self, key: str) -> None:
        self._book.buried.add(key)

    def _on_pruning(self) -> None:
        self._book.pruned = self._book.start

    def _on_again(self, text: str, run: str) -> None:
        self.check("a used key gets the answer it got", run == self._book.acked.get(text, run), (text, run))

    def _on_outcome(self, run: str, outcome: object) -> None:
        told = msgspec.convert(outcome, Outcome)
        self._ends(told.run_id, told)

    def _on_receipt(self, receipt: dict[str, Any]) -> None:
        for fallen in receipt["runs"]:
            self._ends(fallen["id"], msgspec.convert(fallen["outcome"], Outcome))

    def _on_parked(self, session: str) -> None:
        ends = [
            (event.position >> 32, event.data.outcome)
            for event in self._book.events.get(session, {}).values()
            if isinstance(event.data, Ended) and event.generation is not None
        ]
        lately = {boot for boot, outcome in ends[-CRASHES:] if outcome.ending is Ending.LOST}
        self.check("only what crashed three times is parked", len(lately) >= CRASHES, (session, ends[-CRASHES:]))

    def _ends(self, run: str, outcome: Outcome) -> None:
        """An ending was told: if as durable, it is the one for good."""
        if not outcome.ended:
            return
        told = self._book.endings.get(run)
        if told is not None:
            self.check("an ending told stays the same", told.same_story(outcome), (told, outcome))
        if outcome.durable:
            self._book.endings[run] = outcome
        self._seen[f"ended {outcome.ending}"] += told is None

    def _on_event(self, told: object, at: float) -> None:
        event = msgspec.convert(told, Event)
        known = self._book.events.setdefault(event.session, {})
        self.check("positions rise", event.position > self._book.last(event.session), event)
        known[event.position] = event
        self._now.add(event.position)
        run = event.run_id
        if run is None:
            return
        self.check("nothing of a run follows its end", run not in self._over, event)
        match event.data:
            case Ended(outcome=outcome):
                self._over.add(run)
                self._ends(run, outcome)
            case Asked(question_id=question, state=QuestionState.OPEN):
                self._book.questions.append(question)
            case Delta(text=text):
                self._book.shown[run].append((text, at))
            case Block(text=text):
                pieces = self._book.shown[run]
                shown = "".join(piece for piece, _ in pieces)
                rest = text if not text.startswith(_open(shown)) or not _open(shown) else text[len(_open(shown)) :]
                pieces.append((rest + "\n\n", at))

    def _on_replay(self, session: str, told: list[object]) -> None:
        events = [msgspec.convert(event, Event) for event in told]
        positions = [event.position for event in events]
        self.check("a replay rises", positions == sorted(set(positions)), session)
        have = dict(zip(positions, events, strict=True))
        live = self._book.events.get(session, {})
        lasting = [event.position for event in events if event.kind not in PASSING]
        gaps = [event for event in events if isinstance(event.data, Gap)]
        for position, event in live.items():
            if position in have:
                self.check("a position has one event", have[position] == event, (have[position], event))
            elif position in self._now or event.kind in PASSING:
                continue  # it came behind the replay; or it counted only while its run did
            elif not (self._book.pruned and position < min(positions, default=0)):
                kept = [each for each in lasting if each >> 32 == position >> 32 and each > position]
                self.check("only the tail of a log is lost", not kept, (event, kept[:3]))
                told_so = [gap for gap in gaps if gap.position > position and gap.data.after < position]
                self.check("what is lost leaves a gap", told_so, event)
        self._one_end(events, gaps)

    def _one_end(self, events: list[Event], gaps: list[Event]) -> None:
        over: set[str] = set()
        calls: dict[str, list[ToolState]] = {}
        for event in events:
            run, data = event.run_id, event.data
            if run is None:
                continue
            self.check("one end in a replay, and nothing behind it", run not in over, event)
            for tool in (data,) if isinstance(data, Tool) else data.tools if isinstance(data, Ended) else ():
                calls.setdefault(tool.call_id, []).append(tool.state)
            if isinstance(data, Ended):
                over.add(run)
                self._ends(run, data.outcome)
                if data.outcome.ending is Ending.LOST:
                    boot = event.position >> 32
                    self.check("a lost run is behind a gap", any(gap.position >> 32 == boot for gap in gaps), event)
                    self._kept_text(run, data.outcome.text)
        for call, states in calls.items():
            closed = [state for state in states if state not in (ToolState.PENDING, ToolState.RUNNING)]
            self.check("a call has one result at most", len(closed) <= 1, (call, states))

    def _kept_text(self, run: str, text: str) -> None:
        """What a watcher had seen of a lost run is kept, but for what had just been said."""
        shown = "".join(piece for piece, _ in self._book.shown.get(run, ())).removesuffix("\n\n")
        missing = len(shown) - len(text)
        self.check("text shown is kept", shown.startswith(text) or text.startswith(shown), (run, shown, text))
        if missing > 0:
            at = 0
            for piece, when in self._book.shown[run]:
                at += len(piece)
                if at > len(text):
                    late = min((kill for kill in self._killed if kill > when), default=when) - when
                    self.report.late_ms = max(self.report.late_ms, late * 1000)
                    self.check("only the latest text is lost", late < LOSS_SECONDS, (run, late))
                    break

    def _on_says(self, run: str, said: dict[str, Any]) -> None:
        """Every surface tells one ending."""
        told = self._book.endings.get(run)
        waited = msgspec.convert(said["wait"], Outcome)
        if told is not None and waited.ending is not Ending.UNKNOWN:
            self.check("an ending outlives a kill", told.same_story(waited), (told, waited))
        if not waited.ended or waited.run_id != run:
            return
        self._ends(run, waited)
        for surface in ("runs", "receipt"):
            if said.get(surface) is not None:
                other = msgspec.convert(said[surface], Outcome)
                self.check(f"{surface} and wait agree", waited.same_story(other), (waited, other))
        if said.get("timeline"):
            self.check("timeline and wait agree", said["timeline"] == [waited.ending], (said["timeline"], waited))
        if said.get("history") is not None:
            self.check("history and wait agree", said["history"] == waited.ending, (said["history"], waited))

    # What is there

    def _look(self, *, last: bool) -> None:
        """Look at a copy of the database and at the marks in the world."""
        book = self._book
        marks = [json.loads(line) for line in _lines(self._place / "witness")]
        begun = Counter(text for kind, *rest in marks if kind == "begin" for text in rest[1])
        effects = Counter(rest[0] for kind, *rest in marks if kind == "effect")
        with _copy(self._place) as db:
            if db is None:
                return
            self.check("integrity", db.execute("PRAGMA integrity_check").fetchall() == [("ok",)])
            rows = {row.id: row for row in _rows(db)}
            tools = {json.loads(given).get("name"): state for given, state in db.execute("SELECT arguments, state FROM tools")}
            questions = dict(db.execute("SELECT id, state FROM questions"))
            pending = db.execute("SELECT count(*) FROM receipts WHERE pending = 1").fetchone()[0]
            passing = db.execute("SELECT count(*) FROM passing").fetchone()[0]
        texts = {row.text: row for row in rows.values()}
        self._forget(texts)
        for text, run in book.acked.items():
            self.check("an acked message is there", text in texts, (text, run))
        for text in book.turned_away:
            self.check("a message turned away is not", text not in texts and not begun[text], text)
        for text, count in begun.items():
            self.check("nothing runs twice", count == 1, (text, count))
        for kind, *rest in marks:
            if kind == "begin" and (row := rows.get(rest[0])) is not None:
                self.check("a start is on record first", row.started, row)
        for name, count in effects.items():
            self.check("no tool runs twice", count == 1, (name, count))
            if name.split("/")[0] in rows:
                self.check("a tool's start is on record first", tools.get(name, "pending") != "pending", name)
        for run, row in rows.items():
            old = book.rows.get(run)
            if old is not None and old.outcome is not None:
                self.check("an ending in the store stands", row.outcome and row.outcome.same_story(old.outcome), (old, row))
            if row.outcome is not None and row.outcome.ending is Ending.LOST:
                self.check("only what had begun is lost", row.started or row.parent is not None, row)
            if row.outcome is not None and row.outcome.ending is Ending.COMPLETED:
                self.check("what completed had begun", begun[row.text] == 1, row)
        for run, told in book.endings.items():
            if run in rows:
                kept = rows[run].outcome
                self.check("an ending told is in the store", kept is not None and kept.same_story(told), (told, rows[run]))
        for text, asked in book.sent.items():
            if asked["key"] in book.buried:
                self.check("what was stopped before it was seen never runs", not begun[text], text)
        book.rows = rows
        if last:
            for row in rows.values():
                while row.outcome is None and row.alias is not None:
                    row = rows[row.alias]
                self.check("every run has an ending", row.outcome is not None, row)
            for question, state in questions.items():
                self.check("no question stays open", state != "open", question)
            self.check("every receipt is complete", pending == 0, pending)
            self.check("deltas do not stay", passing == 0, passing)

    def _forget(self, texts: dict[str, Row]) -> None:
        """Messages of sessions that were pruned: a session is forgotten as a whole, up to some message, or not."""
        book = self._book
        for session in book.sessions:
            mine = [text for text in book.acked if book.sent[text]["session"] == session and _start(text) < book.pruned]
            gone = [text for text in mine if text not in texts]
            if gone:
                kept = min((_start(text) for text in mine if text in texts), default=book.pruned)
                self.check("a session is forgotten whole", _start(gone[-1]) < kept, (session, gone, kept))
            for text in gone:
                self._seen["forgotten"] += 1
                self._book.acked.pop(text)
                self._book.sent.pop(text)


def _serve(server: Server, told: int) -> None:
    """Be the server; never returns."""
    logging.disable(logging.ERROR)
    code = 1
    try:
        asyncio.run(server.serve())
        code = 0
    except BaseException as error:
        server.tell("broken", f"the server failed: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _open(shown: str) -> str:
    return shown.rpartition("\n\n")[2]


def _start(text: str) -> int:
    return int(text.partition(".")[0])


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _carries(pid: int, marks: list[bytes]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(mark in environment for mark in marks)


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r} {Path(f'/proc/{pid}/stat').read_text()[:40]}"
    return f"{pid} just gone"


@contextlib.contextmanager
def _copy(place: Path) -> Iterator[sqlite3.Connection | None]:
    """Open a copy of the database as it is, with its write-ahead log."""
    source, copy = place / "data", place / "copy"
    copy.mkdir(exist_ok=True)
    for name in ("interlock.db", "interlock.db-wal"):
        (copy / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, copy / name)
    (copy / "interlock.db-shm").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(copy / "interlock.db")) as db:
        made = db.execute("PRAGMA user_version").fetchone()[0]
        yield db if made else None


def _rows(db: sqlite3.Connection) -> Iterator[Row]:
    for run, session, text, started, alias, parent, outcome in db.execute(
        "SELECT id, session, text, started, alias, parent, outcome FROM runs ORDER BY serial"
    ):
        ended = None if outcome is None else msgspec.json.decode(outcome, type=Outcome)
        yield Row(run, session, text, bool(started), alias, parent, ended)


# A directory in a process of its own, where it can do no harm


def play(seed: int, kills: int) -> Report:
    """Play one directory here."""
    with tempfile.TemporaryDirectory(prefix="interlock-crashes-") as directory:
        return Judge(Path(directory), seed).play(kills)


def play_apart(seed: int, kills: int) -> Report:
    """Play one directory in a process of its own, limited; whoever is left there is counted by the kernel."""
    argv = [sys.executable, "-m", __name__, f"--seed={seed}", f"--kills={kills}"]
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    env |= {"PYTHONPATH": str(Path(interlock.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    with scope() as directory:
        done = subprocess.run(
            entered(argv, directory), env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=60 + 10 * kills,
        )  # fmt: skip
        left = emptied(directory) if directory is not None else []
    if done.returncode != 0:
        raise RuntimeError(f"seed {seed} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')[-4000:]}")
    report = msgspec.json.decode(done.stdout, type=Report)
    report.broken += [f"seed {seed}: {what}" for what in left]
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=__name__)
    parser.add_argument("--seed", type=int, default=0, help="which moments")
    parser.add_argument("--kills", type=int, default=10, help="how many")
    asked = parser.parse_args(arguments)
    report = play(asked.seed, asked.kills)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
