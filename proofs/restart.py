"""The server dies: a copy of what a disk would hold at that instant, and the next start on it.

At a random step the reaper copies everything that would survive: decisions that were carried out, the events that
went with them and some of the later ones, never the events that only memory had. It also copies what everybody had
been told by then. A new control opens on the copy, perhaps dies itself, and in the end everything is compared:
 P4  an ending that was told as durable is the same; every run has one, and one terminal event with the text it shows
 P5  an accepted message is there; one that had begun does not begin again, one that had not begins once
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from interlock.agent.message import Message
from interlock.agent.run import Run
from interlock.app import open_control
from interlock.core.decision import RunRow
from interlock.core.events import Block, Ended, Event
from interlock.core.names import REPORTS, Ending, ReceiptId, RunId, RunKind, SessionId
from interlock.core.outcome import Outcome
from interlock.core.story import transcript
from interlock.runtime.control import Control
from interlock.runtime.settings import CRASHES, Settings
from interlock.stores.memory import MemoryStore
from interlock.testing.hostile import HELPER
from interlock.testing.oracle import Oracle, Violation
from interlock.testing.processes import VirtualProcesses
from interlock.testing.threads import VirtualThreads

PAUSES_SECONDS = (0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.05)
QUIET_SECONDS = 10.0  # bound for every run of a life to end
UNWRITTEN_SHARE = 0.5  # share of deaths that lose every event no decision took along


class Death:
    """The instant of a death: what a disk held, and what had been told."""

    def __init__(self, store: MemoryStore, random: Random) -> None:
        self.store = surviving(store, random)
        self.started = {row.id for row in self.store._runs.values() if row.started}
        self.known: set[RunId] = set()  # accepted messages
        self.told: dict[RunId, Outcome] = {}  # endings that were told as durable
        self.begun: set[str] = set()  # texts that an agent was given
        self.keyed: dict[tuple[str, str], tuple[str, str, RunId]] = {}  # by principal and key: session, text, run


class Reaper:
    """Copies what a disk holds at some instant of a first life, which goes on and does not notice."""

    def __init__(self, oracle: Oracle, store: MemoryStore, random: Random) -> None:
        self._oracle = oracle
        self._store = store
        self._random = random
        self.death: Death | None = None

    def wait(self, keyed: dict[tuple[str, str], tuple[str, str, RunId]]) -> None:
        """Strike after so many stored decisions and noted events, so also between a decision and its answer."""
        left = self._random.randrange(1, 70)

        def passes(after: Callable[..., Any]) -> Callable[..., Any]:
            def passed(*given: Any) -> Any:
                nonlocal left
                result = after(*given)
                left -= 1
                if left == 0:
                    self.death = self._strike()
                    self.death.keyed = dict(keyed)
                return result

            return passed

        self._store._carry_out = passes(self._store._carry_out)  # type: ignore[method-assign]
        self._oracle._note = passes(self._oracle._note)  # type: ignore[method-assign]

    def _strike(self) -> Death:
        oracle, death = self._oracle, Death(self._store, self._random)
        unsure = {run_id for run_id, outcome in oracle._told.items() if not outcome.durable}  # at that instant
        death.known = set(oracle._accepted) - unsure
        death.told = {run_id: outcome for run_id, outcome in oracle._told.items() if outcome.durable}
        # A run absorbs a message before that is written down, and everything the run records waits for that write.
        loose = {row.text for row in death.store._runs.values() if row.alias is None and not row.started}
        death.begun = set(oracle._begun) - (oracle._handed & loose)
        return death


def surviving(store: MemoryStore, random: Random) -> MemoryStore:
    """Return a store that holds what a disk would: no waiting decision, of unwritten events only the first."""
    copy = MemoryStore(latency_seconds=store.latency_seconds)
    for name, value in vars(store).items():
        if isinstance(value, dict) and name != "_lost":
            setattr(copy, name, _copied(value))
    copy._boot, copy._closed_boot, copy._floor = store._boot, 0, store._floor
    homes = {row.session: row.home for row in store._runs.values() if row.home is not None}
    trees: dict[SessionId, list[SessionId]] = {}
    for session in store._logs:
        trees.setdefault(homes.get(session, session), []).append(session)
    for root, sessions in trees.items():
        _cut(copy, store, root, sessions, random)
    for row in list(copy._runs.values()):
        told = any(isinstance(e.data, Ended) and e.run_id == row.id for e in _lasting(copy, row.session))
        marked = told and random.random() < 0.7  # the mark is written after the event
        copy._runs[row.id] = msgspec.structs.replace(row, told=marked)
    return copy


def _cut(copy: MemoryStore, store: MemoryStore, root: SessionId, tree: list[SessionId], random: Random) -> None:
    """Keep of the logs of a tree, whose positions are one count, what a disk would have."""
    written = max(store._logs[session].written_to for session in tree)
    newest = max((log.lasting[-1].position for log in map(store._logs.__getitem__, tree) if log.lasting), default=0)
    if newest > written and random.random() > UNWRITTEN_SHARE:
        written = random.randint(written, newest)
    for session in tree:
        log = store._logs[session]
        kept = copy._logs[session] = type(log)()
        kept.lost_to, kept.written_to = log.lost_to, written
        kept.lasting = deque(event for event in log.lasting if event.position <= written)
        deltas = random.choice((0, written, newest))
        kept.passing = {
            run_id: deque((event for event in passing if event.position <= deltas), maxlen=passing.maxlen)
            for run_id, passing in log.passing.items()
        }
    row = store._sessions.get(root)
    # No event under the last epoch is on disk, and no reset: neither is the epoch, which was one above the stored one.
    if root in copy._epochs and copy._epochs[root] << 32 > max(written, 0 if row is None else row.since):
        copy._epochs[root] -= 1


def _copied(value: Any) -> Any:
    """Copy containers, however deep; the values in them never change."""
    if isinstance(value, dict):
        return type(value)((key, _copied(each)) for key, each in value.items())
    return list(value) if isinstance(value, list) else value


def _lasting(store: MemoryStore, session: Any) -> list[Event]:
    log = store._logs.get(session)
    return [] if log is None else list(log.lasting)


class Life:
    """A later life of the server, on what survived."""

    def __init__(self, death: Death, random: Random, settings: Settings) -> None:
        self._death = death
        self._random = random
        self._settings = settings
        self._begun: Counter[str] = Counter()
        self._sent: set[RunId] = set()
        self._violation: Violation | None = None
        waiting = [row for row in death.store._runs.values() if row.outcome is None and not row.started]
        waiting = [row for row in waiting if row.kind is not RunKind.NOTE]
        self._line = [row.id for row in sorted(waiting, key=_place)]
        self.next: Death | None = None

    async def live(self) -> None:
        """Open, let the remaining runs go on, send a little more, and judge; perhaps die on the way."""
        random, store = self._random, self._death.store
        dying = asyncio.ensure_future(self._die()) if random.random() < 0.5 else None
        async with open_control(
            self._agent,
            agents={HELPER: self._agent},
            store=store,
            settings=self._settings,
            admins=("admin",),
            threads=VirtualThreads(random),
            processes=VirtualProcesses(random),
        ) as control:
            if dying is not None:
                await dying
            await self._compare(control)
            await self._meddle(control)
            await self._until_quiet(control)
            for run_id in self._death.known | self._sent:
                await self._ended(control, run_id)
        if self._violation is not None:
            raise self._violation
        self._judge(store)

    async def _die(self) -> None:
        for _ in range(self._random.randrange(60)):
            await asyncio.sleep(0)
        await asyncio.sleep(self._random.choice(PAUSES_SECONDS))
        death = self.next = Death(self._death.store, self._random)
        death.known = self._death.known | self._sent
        death.told, death.keyed = self._death.told, self._death.keyed
        death.begun = self._death.begun | set(self._begun)

    async def _agent(self, run: Run, message: Message) -> str:
        for part in message.parts:
            self._begun[part.text] += 1
            if self._begun[part.text] > 1 or part.text in self._death.begun:
                self._fail(f"P5: message {part.text!r} began again after the server died")
        row = self._death.store._runs.get(run.id)
        if row is None or not row.started:
            self._fail(f"P5: {run.id} began before its started mark was in the store")
        elif run.id in self._line:
            ahead = self._line[: self._line.index(run.id)]
            late = [each for each in ahead if self._waits_before(each, row)]
            if late:
                self._fail(f"P5: {run.id} began before {late}, which had been accepted before it")
        await run.say("a")
        await asyncio.sleep(self._random.choice(PAUSES_SECONDS))
        return "again"

    def _waits_before(self, run_id: RunId, row: RunRow) -> bool:
        """Return whether a message of the same session, accepted before another, still waits."""
        other = self._death.store._runs[run_id]
        same = other.session == row.session and other.outcome is None and other.alias is None
        # An announcement may never begin: one too many in a row becomes a note.
        if other.kind in REPORTS:
            return False
        return same and not other.started

    def _fail(self, text: str) -> None:
        """Remember a violation: raised in an agent, it would only make a failed run."""
        self._violation = self._violation or _broken(text)

    async def _compare(self, control: Control) -> None:
        """Check that everything that was told before is told again."""
        for run_id in self._death.known:
            if await control.wait(run_id, timeout=0) == Outcome(run_id=run_id, ending=Ending.UNKNOWN):
                raise _broken(f"P5: {run_id} was accepted and is unknown after the server died")
        for run_id, outcome in self._death.told.items():
            again = await control.wait(run_id, timeout=0)
            if not outcome.same_story(again):
                raise _broken(f"P4: {run_id} was told as {outcome}, after the server died as {again}")
        for (by, key), (session, text, run_id) in self._death.keyed.items():
            sent = await control.send(session, text, by=by, key=key)
            if sent.run_id != run_id:
                raise _broken(f"P5: key {key} of {by} was {run_id}, after the server died {sent.run_id}")

    async def _meddle(self, control: Control) -> None:
        """Take over the runs that go on again, stop them, or leave them alone."""
        for what in self._random.sample(("send", "stop", "nothing", "nothing"), 2):
            if what == "send":
                if not self._parked(control, SessionId("s")):
                    text = f"later {self._random.random()}"
                    self._sent.add((await control.send("s", text)).run_id)
            elif what == "stop":
                await control.stop(session="s")
            await asyncio.sleep(self._random.choice(PAUSES_SECONDS))

    def _parked(self, control: Control, session_id: SessionId) -> bool:
        """Return whether a session is parked; for a session that is not in memory the store says so."""
        session, row = control._registry.sessions.get(session_id), self._death.store._sessions.get(session_id)
        if session is not None and session.loaded:
            return session.parked
        return row is not None and row.crashes >= CRASHES

    async def _until_quiet(self, control: Control) -> None:
        async with asyncio.timeout(QUIET_SECONDS):
            while control._registry.runs:
                for session in list(control._registry.sessions.values()):
                    if session.parked:
                        await control.reset(session.id)
                await asyncio.sleep(0.01)

    async def _ended(self, control: Control, run_id: RunId) -> None:
        outcome = await control.wait(run_id, drained=True)
        if not outcome.ended or not outcome.drained:
            raise _broken(f"P5: {run_id} was accepted and never ended: {outcome}")
        if outcome.ending is Ending.LOST and outcome.run_id not in self._death.started:
            row = self._death.store._runs[outcome.run_id]
            if row.parent is None and row.outcome is not None:
                raise _broken(f"P5: {run_id} is lost and had not begun")

    # In the end

    def _judge(self, store: MemoryStore) -> None:
        for row in store._runs.values():
            if row.outcome is None and row.alias is None:
                raise _broken(f"P5: {row.id} was left without an ending")
        for session, log in store._logs.items():
            self._judge_log(store, session, list(log.lasting))
            if any(log.passing.values()):
                raise _broken(f"P2: deltas of {list(log.passing)} outlived their runs")

        reports = Counter(row.key for row in store._runs.values() if row.kind in REPORTS)
        for row in store._runs.values():
            if reports[row.id] > 1:
                raise _broken(f"P4: {row.id} was announced {reports[row.id]} times")
            owner = None if row.home is None else store._sessions[row.home].owner
            receipt = store._receipts.get(store._receipt_of.get(row.id, ReceiptId("")))
            # A stop of the home session took the child along, whatever the child's ending.
            with_home = receipt is not None and receipt.session == row.home
            if row.announce is not None and row.principal == owner and not with_home and not reports[row.id]:
                raise _broken(f"P5: {row.id} ended and was not announced")

    @staticmethod
    def _judge_log(store: MemoryStore, session: str, events: list[Event]) -> None:
        ended: dict[RunId, Outcome] = {}
        blocks: dict[RunId, list[str]] = {}
        before = 0
        for event in events:
            if event.position <= before:
                raise _broken(f"P2: position {event.position} of {session} does not rise")
            before = event.position
            if event.run_id in ended:
                raise _broken(f"P2: {event.kind} of {event.run_id} after its terminal event")
            if event.run_id is not None and isinstance(event.data, Block):
                blocks.setdefault(event.run_id, []).append(event.data.text)
            if event.run_id is not None and isinstance(event.data, Ended):
                ended[event.run_id] = event.data.outcome
                parts = [*blocks.get(event.run_id, []), *([event.data.cut] if event.data.cut else [])]
                if "\n\n".join(parts) != event.data.outcome.text:
                    raise _broken(f"P1: {event.run_id} is told with {event.data.outcome.text!r}, and shows {parts}")
        for row in store._runs.values():
            if row.session != session or row.outcome is None:
                continue
            if row.id not in ended or not ended[row.id].same_story(row.outcome):
                raise _broken(f"P4: {row.id} is {row.outcome} in the store, {ended.get(row.id)} in the log")
            if not row.told:
                raise _broken(f"P2: the end of {row.id} is in the log and not marked as told")
        results = Counter(entry.call_id for entry in transcript(events) if entry.role == "result")
        for entry in transcript(events):
            if entry.role == "call" and results[entry.call_id] != 1:
                raise _broken(f"P1: call {entry.call_id} has {results[entry.call_id]} results in the transcript")


def _place(row: RunRow) -> tuple[bool, bool]:
    """Return the order of waiting messages after a start: the one that had the seat first, announcements last."""
    return row.kind in REPORTS, row.generation is None


def _broken(text: str) -> Violation:
    return Violation(text)
