"""A server under a load of everything at once, which is killed; the judge is in `crashes.py`.

1. Everything that its clients are told is written to a pipe too, each line before anything else happens.
2. Its agents and tools leave marks in a file outside: the judge counts there what began, and how often.
3. The server is forked with the judge's book, and first answers, through every verb, for what earlier starts told.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import interlock
from interlock.agent.message import Message
from interlock.agent.run import Run
from interlock.core.errors import InterlockError, KeyConflict, QuestionClosed, Unavailable, Unknown
from interlock.core.events import Event, QuestionData
from interlock.core.names import PASSING, QuestionState, SessionId
from interlock.processes.base import Confinement, Grade, Machine
from interlock.processes.local import LocalProcesses
from interlock.runtime.control import Control
from interlock.runtime.feed import whole_log
from interlock.runtime.settings import Settings
from interlock.stores.sqlite import SqliteStore
from proofs.crashbook import Book

SESSIONS = ("s0", "s1", "s2")
# No client stops or takes over this session: its runs end by kills only, until the session is parked.
STUBBORN = "stubborn"
LANES = 5
LOAD_SECONDS = 0.3  # after this time a server closes that is to be killed while it closes
FINISH_SECONDS = 30.0  # bound for every run to end
AUDITED = 20  # older runs that are asked about again after each kill
MARK = "INTERLOCK_CRASH"
ACTOR = "INTERLOCK_CRASH_ACTOR"
# Every so many seeds the agents run in hosts, and hosts, wardens, zygote and helper are killed as well.
HOSTED_SEEDS = 4
PROGRAMS = (
    "exec sleep 60",
    "trap '' TERM HUP INT; sleep 60 & wait",
    "setsid sh -c 'sleep 60 & sleep 60' & wait",
    "(setsid setsid sleep 60 &); sleep 60",
)
SCRIPTS = "s ss p t tt b a c d P D z k sl tl al cl Pl Dl kzkzk stzs szszszszsz ptcs zzf hz hl".split()  # noqa: SIM905
LONG_SCRIPTS = "sl tl al cl Pl Dl kzkzl szszszl".split()  # noqa: SIM905
STRATEGIES = (None, None, "interrupt", "queue", "queue", "steer", "collect", "rollback", "reject")


class Announced(LocalProcesses):
    """Processes that tell the judge when those of an earlier start are gone; recovery goes on from there."""

    def __init__(self, tell: Callable[[str, str], None], grade: Grade | None) -> None:
        super().__init__(Confinement(grade=grade))
        self._announce = tell

    async def ready(self) -> Machine:
        """Be ready, and tell the judge so."""
        machine = await super().ready()
        self._announce("recovering", machine.grade)
        return machine


class Actor:
    """The agents and tools of a server, inline or in hosts."""

    def __init__(self, place: Path, mark: str, chance: random.Random) -> None:
        self._chance = chance
        self._mark = mark
        self._witness = os.open(place / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def witness(self, *line: object) -> None:
        """Leave a mark in the world."""
        os.write(self._witness, json.dumps(line).encode() + b"\n")

    async def agent(self, run: Run, message: Message) -> str | None:
        """Do what the message says, letter by letter."""
        self.witness("begin", run.id, *(part.text for part in message.parts))
        if message.child is not None:
            await run.call(self.effect, name=f"{run.id}/{message.child.run_id}")
            return "heard"
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
                    "child",
                    f"{name}:{self._chance.choice(('s', 't', 'l', 'a'))}",
                    detached=letter == "d",
                    announce=self._chance.choice(("turn", "note")) if letter == "d" else None,
                )
            case "P" | "D":
                program = self._chance.choice(PROGRAMS)
                await run.spawn("sh", "-c", program, env={MARK: self._mark}, background=True, detached=letter == "D")
            case "k":
                for steered in await run.check():
                    # The tool call stores its start, and with it that the run absorbed the steered message.
                    await run.call(self.effect, name=f"{name} {steered.text}")
                    self.witness("begin", run.id, steered.text)
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
        """Leave a mark outside, as a tool."""
        self.witness("effect", name)
        await asyncio.sleep(self._chance.choice((0, 0.003)))
        return name


_actors: list[Actor] = []


async def hosted(run: Run, message: Message) -> str | None:
    """Play the agent in a host."""
    if not _actors:
        place, mark = os.environ[ACTOR].split("|")
        _actors.append(Actor(Path(place), mark, random.Random(f"{mark} {os.getpid()}")))
    return await _actors[0].agent(run, message)


class Server:
    """A start: recover, be asked, then carry a load until killed."""

    def __init__(self, place: Path, book: Book, told: int, *, closes: bool, last: bool) -> None:
        self._book, self._told, self._closes, self._last = book, told, closes, last
        self._chance = random.Random(f"{book.seed} {book.start}")
        self._store = SqliteStore(place / "data")
        self._actor = Actor(place, f"{book.mark}-{book.start}", self._chance)
        self._hosted = book.seed % HOSTED_SEEDS == 1
        os.environ[ACTOR] = f"{place}|{book.mark}-{book.start}"
        self._sent = 0
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._asked: list[str] = []

    def tell(self, *line: object) -> None:
        """Write a line for the judge, who has it before anything else happens."""
        rest = msgspec.json.encode(line) + b"\n"
        while rest:
            rest = rest[os.write(self._told, rest) :]

    async def serve(self) -> None:
        """Serve, from opening to the end."""
        settings = Settings(collect_seconds=0.02, grace_seconds=0.2)
        processes = Announced(self.tell, self._chance.choice((None, None, Grade.KEEPER)))
        agent: Any = "proofs.crashing:hosted" if self._hosted else self._actor.agent
        async with interlock.open_control(
            agent,
            agents={"child": agent},
            driver="host" if self._hosted else "inline",
            store=self._store,
            settings=settings,
            processes=processes,
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

    # Clients

    async def _lane(self, control: Control, lane: int) -> None:
        verbs: list[Callable[[Control], Awaitable[None]]] = []
        for verb, weight in (
            (self._send, 12), (self._stop, 3), (self._answer, 3), (self._wait, 3), (self._again, 2), (self._wake, 1),
            (self._reset, 1), (self._bury, 1), (self._prune, 1), (self._choose, 1), (self._share, 2),
            (self._murder, int(self._hosted)),
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

    async def _send(self, control: Control, key: str | None = None) -> None:
        chance = self._chance
        self._sent += 1
        place = f"{self._book.start}.{self._sent}"
        stubborn = key is None and chance.random() < 0.1
        asked: dict[str, Any] = {
            "session": STUBBORN if stubborn else chance.choice((*SESSIONS, f"q{self._book.start}")),
            "text": f"{place}:{chance.choice(LONG_SCRIPTS if stubborn else SCRIPTS)}",
            "by": "local" if key is not None else chance.choice(("local", "local", "ann")),
            "key": key or chance.choice((None, f"k{place}")),
            "strategy": "queue" if stubborn else chance.choice(STRATEGIES),
            "deadline": None if stubborn else chance.choice((None, None, None, 0.02)),
        }
        self.tell("sending", asked)
        try:
            sent = await control.send(**asked)
        except InterlockError as error:
            self.tell("turned away", asked["text"], type(error).__name__)
            if "parked" in str(error):
                self.tell("parked", asked["session"])
                self.tell("receipt", await control.reset(asked["session"]))
            return
        self.tell("ack", asked["text"], sent.run_id)
        self._book.acked[asked["text"]] = sent.run_id
        self._book.sent[asked["text"]] = asked
        await self._watch(control, asked["session"])

    async def _watch(self, control: Control, session: str) -> None:
        async def follow() -> None:
            with contextlib.suppress(Unknown):  # the session was pruned
                async for event in control.watch(session, after=self._book.last(session)):
                    self.tell("event", event, time.monotonic())
                    if isinstance(event.data, QuestionData) and event.data.state is QuestionState.OPEN:
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
        if (await control.stop(message=key)).durable:
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
        """Use a key again: with the same body, with another, or after a stop that came before its message."""
        used = [text for text, asked in self._book.sent.items() if asked["key"] is not None]
        if used and self._chance.random() < 0.7:
            await self._retry(control, self._chance.choice(used))
        elif self._book.buried:
            await self._send(control, key=self._chance.choice(sorted(self._book.buried)))

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

    async def _share(self, control: Control) -> None:
        """Let somebody else write in a session for good."""
        await control.share(self._chance.choice((*SESSIONS, STUBBORN)), with_="ann", may="write")

    async def _murder(self, control: Control) -> None:
        """Kill a process that serves control: a host, its warden, the zygote, the helper."""
        processes = control._processes
        assert isinstance(processes, LocalProcesses)
        held = list(processes._containments.values())
        victims = [each.keeper for each in held if each.name.startswith("the host of")]
        victims += [process.pid for each in held for process in each._requested.values() if "host" in each.name]
        helper = processes._helper
        if self._chance.random() < 0.1 and helper is not None and helper.alive:
            victims = [helper.process.pid, *(each.helper.process.pid for each in held if each.helper is not helper)]
        if victims and (pid := self._chance.choice(victims)) is not None:
            self.tell("murdered", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _prune(self, control: Control) -> None:
        self.tell("pruning")
        await self._store.prune(before=self._book.began)

    # Answers for earlier starts

    async def _audit(self, control: Control) -> None:
        """Answer through every verb for what earlier starts told; the judge compares."""
        book, chance = self._book, self._chance
        runs = book.to_ask if self._last else chance.sample(book.to_ask, min(AUDITED, len(book.to_ask))) + book.fresh
        for session, ids in book.by_session(runs).items():
            await self._say(control, session, ids)
        for question in book.questions if self._last else book.questions[-3:]:
            try:
                await control.answer(question, False)  # the same answer again would be no error
                self.tell("broken", f"question {question} of a run that is no more was answered")
            except QuestionClosed:
                self.tell("void", question)
            except Unknown:
                pass  # the question was forgotten with its session
        used = [text for text, asked in book.sent.items() if asked["key"] is not None and text in book.acked]
        for text in chance.sample(used, min(3, len(used))):
            with contextlib.suppress(Unavailable):
                await self._retry(control, text)

    async def _say(self, control: Control, session: str, ids: list[str]) -> None:
        try:
            listed = {str(info.id): info for info in await control.runs(session)}
            entries = {
                str(entry.run_id): entry for entry in await control.history(session) if entry.role == "assistant"
            }
        except Unknown:
            return
        log = [event for event in await whole_log(self._store, SessionId(session)) if event.kind not in PASSING]
        replayed: list[Event] = []
        if log:
            async for event in control.watch(session):
                replayed.append(event)
                if event.position >= log[-1].position:
                    break
        self.tell("replay", session, replayed)
        for run in ids:
            said: dict[str, Any] = {"wait": await control.wait(run, timeout=0)}
            if run in listed:
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
        """Let every run come to its end, and answer for each."""
        for session in self._book.sessions:
            with contextlib.suppress(Unknown):
                if self._chance.random() < 0.5:
                    await control.reset(session)
                else:
                    await control.stop(session=session)
        for info in await control.runs():
            self.tell("outcome", info.id, await control.wait(info.id, timeout=FINISH_SECONDS, drained=True))
        for session, ids in self._book.by_session(list(self._book.acked.values())).items():
            await self._say(control, session, ids)


def serve(server: Server) -> NoReturn:
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
