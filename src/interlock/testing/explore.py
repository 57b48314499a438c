"""Exploration: a seed picks a scenario and a schedule, the real runtime plays it, the oracle judges.

In a scenario a few people send, stop, wait, watch and vanish at random instants, against agents of the hostile kit or
an agent of yours, over a store that may fail, stall or lose its answers. A seed plays the same in every process.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import msgspec

from interlock.agent.message import Message
from interlock.agent.run import Agent, Run
from interlock.app import open_control
from interlock.core.errors import Unknown
from interlock.core.names import RunId, SessionId
from interlock.runtime.driver import Driver
from interlock.runtime.settings import Settings
from interlock.stores.memory import MemoryStore
from interlock.testing.hostile import HELPER, Kit
from interlock.testing.loop import Mode, SeededLoop, run_seeded
from interlock.testing.oracle import Oracle, Violation
from interlock.testing.processes import Book, VirtualProcesses
from interlock.testing.threads import VirtualThreads

SETTINGS = Settings(
    grace_seconds=0.4, drain_seconds=1.0, retry_seconds=0.3, collect_seconds=0.02, ask_seconds=0.3, queue=3
)
PAUSES_SECONDS = (0.0, 0.0, 0.0, 0.0, 1e-5, 1e-4, 0.003, 0.02, 0.05, 0.3, 0.6)
QUICK_SECONDS = (0.0, 0.0, 2e-5, 1e-4, 3e-4, 1e-3, 3e-3)
STRAINED_SECONDS = (0.0, 0.0, 0.0, 0.05, 0.2, 0.3, 0.4)
DEADLINES_SECONDS = (None, None, None, 0.002, 0.05, 0.2)
CHILD_DEADLINES_SECONDS = (0.003, None, 0.03, None, None)  # chosen by the seed
LATENCIES_SECONDS = (0.0, 0.0, 0.001, 0.05)
ADMINS = ("admin",)
PEOPLE = ("alice", "alice", "alice", "bob", "admin")
STRATEGIES = (None, None, None, "queue", "queue", "steer", "collect", "rollback", "reject")
CHARGE_SECONDS = 2e-5
ACTS = (
    *("send",) * 6, *("stop",) * 4, *("wait",) * 2, *("vanish",) * 2, *("twice",) * 2,
    "burst", "reset", "wake", "overtake", "late", "share", "unshare",
)  # fmt: skip
GUESTS = ("alice", "bob", "bob", "mallory")
WATCHERS = ("local", "alice", "bob", "bob", "bob", "mallory", "rita")
OWN_TASKS = ("later", "talk")  # tasks that hostile agents leave behind on purpose


# Makes a driver for an agent and those that it may delegate to.
MakeDriver = Callable[[Agent, Mapping[str, Agent], VirtualThreads], Driver]


class Played(msgspec.Struct, frozen=True):
    """The result of one schedule: the hash of its trace, and its number of steps."""

    seed: int
    trace: str
    steps: int


class Theme(NamedTuple):
    """A kind of scenario: behaviours that meet, and what people do to them."""

    behaviours: tuple[str, ...]
    acts: tuple[str, ...] = ACTS
    strategies: tuple[str | None, ...] = STRATEGIES
    places: str = "ssssst"
    latencies: tuple[float, ...] = LATENCIES_SECONDS
    deadlines: tuple[float | None, ...] = DEADLINES_SECONDS
    crowd: tuple[str, ...] = ()  # who acts; if empty, one or two of PEOPLE
    readers: float = 0.4  # the probability that somebody watches
    strained: bool = False  # the store has faults from the first message on


class Scene:
    """One scenario: people and what they do, chosen by the seed."""

    def __init__(self, random: Random, oracle: Oracle, store: MemoryStore, theme: Theme) -> None:
        self._random = random
        self._oracle = oracle
        self._store = store
        self._theme = theme
        self._known: list[RunId] = []
        self._said = 0
        self._pauses = random.choice((PAUSES_SECONDS, QUICK_SECONDS, QUICK_SECONDS))
        self._meeting = False
        self._vanishing: list[asyncio.Task[Any]] = []
        self._orders = 10
        self._stops = 0
        self.keyed: dict[tuple[str, str], tuple[str, str, RunId]] = {}

    async def play(self) -> None:
        """Let everyone act, then repair the store and stop every session."""
        random = self._random
        crowd = self._theme.crowd or [random.choice(PEOPLE) for _ in range(random.choice((1, 1, 1, 2, 2)))]
        self._meeting = len(crowd) > 1
        person = self._impatient if self._theme.strained else self._person
        people = [person(name) for name in crowd]
        if self._theme.strained:
            people.append(self._strain())
        elif random.random() < 0.4:
            people.append(self._trouble())
        if random.random() < self._theme.readers:
            people.append(self._reader())
        tasks = [asyncio.ensure_future(person) for person in people]
        for task in tasks:
            await task
        self._store.resume()
        await asyncio.gather(*self._vanishing, return_exceptions=True)
        for wake in self._oracle.control._wakes.of(SessionId("s")):
            with contextlib.suppress(Unknown):  # the wake has just fired
                await self._oracle.control.unwake(wake.id)
        for session in self._oracle.sessions:
            await self._oracle.stop(session=session)

    async def _person(self, name: str) -> None:
        await self._send(name)
        if self._meeting and self._random.random() < 0.7:  # without a share they never meet in a session
            await self._share(name)
        await self._go_on(name)

    async def _go_on(self, name: str) -> None:
        random = self._random
        for _ in range(random.choice((1, 1, 2, 2, 3))):
            await asyncio.sleep(random.choice(self._pauses))
            if self._oracle.questions and random.random() < 0.5:
                await self._answer(name)
                continue
            await self._act(random.choice(self._theme.acts), name)

    async def _impatient(self, name: str) -> None:
        """Send, and perhaps act again before the answer, while the session's owner is not decided."""
        random = self._random
        await asyncio.sleep(random.choice(STRAINED_SECONDS))
        first = asyncio.ensure_future(self._send(name))
        if random.random() < 0.5:
            await first
        else:
            self._vanishing.append(first)
            await asyncio.sleep(random.choice(STRAINED_SECONDS))
            if random.random() < 0.7:
                await self._oracle.stop(session="s", by=name)
        await self._go_on(name)

    async def _act(self, what: str, name: str) -> None:
        await getattr(self, f"_{what}")(name)

    async def _trouble(self) -> None:
        """Switch faults of the store on and off."""
        random, store = self._random, self._store
        for _ in range(random.choice((1, 2))):
            await asyncio.sleep(random.choice(self._pauses))
            setattr(store.faults, random.choice(("fail", "stall", "lose")), True)
            await asyncio.sleep(random.choice((0.0, 0.001, 0.1, 0.45, 0.5, 0.55, 0.8)))
            store.resume()

    async def _strain(self) -> None:
        """Give the store a fault at first: until it answers, a session's owner is not decided."""
        random, store = self._random, self._store
        await asyncio.sleep(random.choice((1e-5, 0.001, 0.01)))
        setattr(store.faults, random.choice(("stall", "stall", "stall", "fail", "lose")), True)
        await asyncio.sleep(random.choice((0.3, 0.5, 0.55, 0.6, 0.6, 0.7)))
        store.resume()

    async def _reader(self) -> None:
        """Watch slowly for a while, then leave."""
        await asyncio.sleep(self._random.choice((0.0001, 0.003, 0.02)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.choice((0.1, 1.0))):
                by = self._random.choice(WATCHERS)
                if by == "rita":  # appointed as a reader of everything, and dismissed later
                    self._oracle.appoint(by)
                    self._vanishing.append(asyncio.ensure_future(self._dismiss()))
                await self._oracle.watch("s", pause=self._random.choice((0.0, 0.0, 0.001, 0.03)), by=by)

    async def _dismiss(self) -> None:
        await asyncio.sleep(self._random.choice((1e-4, 0.003, 0.01, 0.05)))
        self._oracle.appoint()

    # What people do

    def _text(self) -> str:
        self._said += 1
        return f"{self._random.choice(self._theme.behaviours)} {self._said}"

    async def _send(
        self, name: str, key: str | None = None, strategy: str | None = None, order: int | None = None
    ) -> None:
        random = self._random
        options: dict[str, Any] = {}
        if order is not None or random.random() < 0.2:
            # The channel numbers the message here; it may arrive later.
            self._orders += 1
            options["order"] = ("channel", order or self._orders - random.choice((0, 0, 2)))
        sent = await self._oracle.send(
            random.choice(self._theme.places),
            self._text(),
            by=name,
            key=key,
            strategy=strategy or random.choice(self._theme.strategies),
            deadline=random.choice(self._theme.deadlines),
            **options,
        )
        if sent is not None:
            self._known.append(sent.run_id)

    async def _burst(self, name: str) -> None:
        """Send several messages to be collected or steered."""
        strategy = self._random.choice(("collect", "collect", "steer"))
        for _ in range(self._random.choice((2, 3))):
            await self._send(name, strategy=strategy)
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.choice((0.0, 0.001, 0.01)))

    async def _answer(self, name: str) -> None:
        """Answer an open question, perhaps by someone without the right, perhaps while stopping."""
        random = self._random
        question = random.choice(list(self._oracle.questions))
        by = random.choice((name, name, "local", "mallory"))
        answer = self._oracle.answer(question, random.random() < 0.7, by=by)
        if random.random() < 0.4:
            await asyncio.gather(answer, self._stop(name))
        else:
            await answer

    async def _overtake(self, name: str) -> None:
        """Stop a message before it is sent."""
        key = f"early {self._said}"
        await self._oracle.stop(message=key, by=name)
        await self._send(name, key=key)

    async def _late(self, name: str) -> None:
        """Stop, and then deliver a message that was written before the stop."""
        self._orders += 2
        await self._oracle.stop(session="s", by=name, order=("channel", self._orders))
        await self._send(name, order=self._orders - 1)

    async def _redeliver(self, name: str) -> None:
        """Stop under a key, and deliver that stop again: at once, or behind newer messages."""
        random, self._stops = self._random, self._stops + 1
        what: dict[str, Any] = {"session": random.choice(("s", "s", "t")), "key": f"stop {self._stops}"}
        if random.random() < 0.3:
            self._orders += 1
            what["order"] = ("channel", self._orders)
        stopping = [asyncio.ensure_future(self._oracle.stop(by=name, **what))]
        for _ in range(random.choice((1, 1, 2))):
            await asyncio.sleep(random.choice(self._pauses))
            if random.random() < 0.6:
                await self._send(name)
            stopping.append(asyncio.ensure_future(self._oracle.stop(by=name, **what)))
        if random.random() < 0.3:
            stopping.pop(0).cancel()
        await asyncio.gather(*stopping)

    async def _program(self, name: str) -> None:
        """Send a message as a program does."""
        sent = await self._oracle.send(
            self._random.choice(self._theme.places), self._text(), by=name, key=None, strategy=None, kind="agent"
        )
        if sent is not None:
            self._known.append(sent.run_id)

    async def _reset(self, name: str) -> None:
        await self._oracle.reset(self._random.choice(("s", "s", "t")), by=name)

    async def _wake(self, name: str) -> None:
        """Schedule a wake of the session in a moment."""
        at = self._oracle.control._clock.wall() + self._random.choice((1e-4, 0.003, 0.02, 0.1))
        await self._oracle.wake("s", self._text(), at=at, by=name)

    async def _share(self, name: str) -> None:
        """Share a session, the caller's own or another's."""
        random = self._random
        who = random.choice([guest for guest in GUESTS if guest != name])
        may = random.choice(("write", "write", "write", "read"))
        await self._oracle.share(random.choice(self._theme.places), who, may, by=name)

    async def _unshare(self, name: str) -> None:
        await self._oracle.share(self._random.choice(self._theme.places), self._random.choice(GUESTS), None, by=name)

    async def _visit(self, name: str) -> None:
        """Share a session, perhaps take the share back, and let the guest try to act at each step."""
        random, oracle = self._random, self._oracle
        guest = "alice" if name == "bob" else "bob"
        await oracle.share("s", guest, random.choice(("write", "write", "read")), by=name)
        await self._send(guest)
        if self._known and random.random() < 0.6:
            seen = oracle.look(random.choice(self._known), by=guest, timeout=random.choice((0.001, 0.05, 0.5)))
            self._vanishing.append(asyncio.ensure_future(seen))
        await asyncio.sleep(random.choice(self._pauses))
        if random.random() < 0.7:
            await oracle.share("s", guest, random.choice((None, None, "read")), by=name)
        if random.random() < 0.5:
            await self._send(guest)
        else:
            mine = [run for run in self._known if oracle.principal(run) == guest]
            await oracle.stop(by=guest, **({"run": random.choice(mine)} if mine else {"session": "s"}))

    def _target(self) -> dict[str, str]:
        random = self._random
        if self._known and random.random() < 0.4:
            return {"run": random.choice(self._known)}
        if random.random() < 0.3:
            return {"message": random.choice(("k1", "k2"))}
        return {"session": random.choice(("s", "s", "s", "t"))}

    async def _stop(self, name: str) -> None:
        by = self._random.choice((name, name, name, "mallory"))
        target: dict[str, Any] = self._target()
        if "session" in target and self._random.random() < 0.3:
            self._orders += 1
            target["order"] = ("channel", self._orders)
        receipt = await self._oracle.stop(by=by, **target)
        if by == "mallory" and any(run.outcome.by == "mallory" for run in receipt.runs):
            raise Violation("P7: mallory stopped something")
        if receipt.runs and self._random.random() < 0.3:
            await self._oracle.stop(by=by, run=receipt.runs[0].id)

    async def _wait(self, name: str) -> None:
        if self._known:
            run_id = self._random.choice(self._known)
            patience = self._random.choice((0.0, 0.01, 0.5))
            await self._oracle.wait(run_id, timeout=patience, drained=self._random.random() < 0.3)

    async def _twice(self, name: str) -> None:
        """Send twice under one key, perhaps at once: there must be one run and one answer."""
        random, oracle = self._random, self._oracle
        key, text, session = random.choice(("k1", "k2")), f"{random.choice(self._theme.behaviours)} k", "s"
        first = asyncio.ensure_future(self._keyed(session, text, name, key))
        if random.random() < 0.5:
            await asyncio.sleep(random.choice(PAUSES_SECONDS))
        second = await self._keyed(session, text, name, key)
        answer = await first
        if answer is not None and second is not None and answer != second:
            raise Violation(f"P5: one key, two runs: {answer} and {second}")
        if answer is not None:
            self._known.append(answer)
            await oracle.wait(answer, timeout=0.0)

    async def _keyed(self, session: str, text: str, name: str, key: str) -> RunId | None:
        sent = await self._oracle.send(session, f"{text}-{name}-{key}", by=name, key=key)
        if sent is not None:
            self.keyed[name, key] = (session, f"{text}-{name}-{key}", sent.run_id)
        return None if sent is None else sent.run_id

    async def _vanish(self, name: str) -> None:
        """Ask for something and leave before the answer."""
        random = self._random
        wanted: Coroutine[Any, Any, Any] = random.choice((self._send, self._stop, self._stop, self._wait))(name)
        task = asyncio.ensure_future(wanted)
        await asyncio.sleep(random.choice((0.0, 0.0, 1e-5, 0.001)))
        task.cancel()
        self._vanishing.append(task)


def play(seed: int, *, agent: Agent, messages: tuple[str, ...] = ("hello",), mode: Mode | None = None) -> Played:
    """Play one seed against an agent of yours; raise Violation, Stuck, or any error of the runtime."""
    random = Random(seed)
    return perform(seed, random, mode or mode_of(random), Theme(messages), agent=agent)


def mode_of(random: Random) -> Mode:
    """Choose how the loop orders ready callbacks."""
    return random.choice((Mode.ORDERED, Mode.ORDERED, Mode.ORDERED, Mode.FIFO))


def perform(
    seed: int,
    random: Random,
    mode: Mode,
    theme: Theme,
    *,
    agent: Agent | None = None,
    driver: MakeDriver | None = None,
    prepare: Callable[[Scene, Oracle, MemoryStore], None] = lambda *_: None,
) -> Played:
    """Play one scenario, against the hostile kit unless an agent is given; call `prepare` before it begins."""
    judged: list[Oracle] = []

    def on_close(loop: SeededLoop) -> None:
        if judged[0].finished:  # an error before that is reported instead
            _no_leaks(loop)
        judged[0].trace.append(("steps", loop.steps))

    async def main() -> None:
        kit = Kit()
        store = MemoryStore(latency_seconds=random.choice(theme.latencies))
        processes = VirtualProcesses(random)
        played, agents = kit.agent if agent is None else _judged(kit, agent), {HELPER: kit.agent}
        threads = VirtualThreads(random)
        async with open_control(
            played,
            agents=agents,
            driver="inline" if driver is None else driver(played, agents, threads),
            store=store,
            settings=SETTINGS,
            child_deadline=CHILD_DEADLINES_SECONDS[seed % len(CHILD_DEADLINES_SECONDS)],
            admins=ADMINS,
            threads=threads,
            processes=processes,
        ) as control:
            kit.control, kit.oracle = control, Oracle(control, store, admins=ADMINS, hosted=driver is not None)
            processes.book = Book(kit.oracle)
            judged.append(kit.oracle)
            scene = Scene(random, kit.oracle, store, theme)
            prepare(scene, kit.oracle, store)
            await scene.play()
            await kit.oracle.finish()
            await processes.book.close()

    try:
        with quiet_log():
            run_seeded(main, seed, mode=mode, charge=CHARGE_SECONDS, on_close=on_close)
    except BaseException:
        if judged and judged[0].violation is not None:
            raise judged[0].violation from None  # the first violation, not an error that followed from it
        raise
    oracle = judged[0]
    if oracle.violation is not None:
        raise oracle.violation
    *trace, (_, steps) = oracle.trace
    digest = hashlib.blake2b(msgspec.msgpack.encode(trace), digest_size=8).hexdigest()
    return Played(seed, digest, int(str(steps)))


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Turn our log off: faults of the store are part of the scenario."""
    log = logging.getLogger("interlock")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _judged(kit: Kit, agent: Agent) -> Agent:
    """Wrap an agent so that the oracle knows when it begins and returns."""

    async def judged(run: Run, message: Message) -> str | None:
        assert kit.oracle is not None
        for part in message.parts:
            kit.oracle.begun(run.id, part.text)
        text = await agent(run, message)
        kit.oracle.returned(run.id)
        return text

    return judged


def _no_leaks(loop: SeededLoop) -> None:
    """Report a task of control that outlived it; tasks that a hostile agent left behind (OWN_TASKS) are its own."""
    for task in loop.leaked_tasks():
        name = getattr(task.get_coro(), "__name__", "")
        if name not in OWN_TASKS:
            raise Violation(f"a task was left behind: {task!r}")


def check_agent(agent: Agent, *, messages: tuple[str, ...] = ("hello",), seeds: int = 200) -> int:
    """Judge an agent of yours under many schedules of stops, takeovers and deadlines; return how many traces differed.

    A Violation, or any other error, carries the seed as a note; `play(seed, agent=…, messages=…)` plays it again.
    """
    traces = set()
    for seed in range(seeds):
        try:
            traces.add(play(seed, agent=agent, messages=messages).trace)
        except BaseException as error:
            error.add_note(f"seed {seed}: play it again with interlock.testing.play({seed}, agent=..., messages=...)")
            raise
    return len(traces)


__all__ = ["Played", "check_agent", "play"]
