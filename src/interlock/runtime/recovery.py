"""Recovery: settle what an earlier server left of a session, before anything new of that session is accepted.

1. `recover` settles one session with the children below it. A run that had begun is `lost`: it is put back on its seat
   (`restoring.py`) and falls by `Fall.add`, with the same Decision, terminal event and receipt as any other fall. So
   recovery has no second set of rules for endings.
2. Until then the session has a gate (`Registry.recovering`): its seat is given to nobody, arrivals wait, a stop waits
   before it decides. So a message that was accepted before the crash does not run before the lost run of its session
   has ended (race 81), and no caller finds a run that says `running` for ever (race 80).
3. A start settles every unsettled session before control accepts anything, for at most START_SECONDS; the others behind
   that, each behind its gate. A verb that names a session has that session settled next.
4. Recovery may be killed and done again: a settled run is not found unsettled a second time (race 82).
5. The store records a clean end of a start (`Store.clean`). Only after any other end does recovery look for leftover
   processes, and publish a `gap`. The processes are ended before any receipt says whether they are gone (race 67).
6. A session during whose runs the server went down CRASHES times in a row is parked: it takes no message until it is
   reset.
"""

import asyncio
import logging
from collections import deque
from itertools import groupby
from operator import attrgetter

from interlock.core.errors import Unavailable
from interlock.core.names import Ending, RunId, SessionId
from interlock.core.outcome import Cause
from interlock.core.receipt import Receipt
from interlock.processes.base import Processes
from interlock.runtime.ending import Endings
from interlock.runtime.fall import seat_next
from interlock.runtime.flag import Flag
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import RUN_SESSION
from interlock.runtime.reporting import Reporting
from interlock.runtime.restoring import Restoring
from interlock.runtime.retelling import Retelling, Tree
from interlock.runtime.settings import RECOVERED, START_SECONDS
from interlock.runtime.stage import Stage
from interlock.stores.base import read

log = logging.getLogger("interlock")

LOST = Cause(ending=Ending.LOST)


class Recovery(Inner):
    """Settles sessions that an earlier server left unsettled."""

    def __init__(
        self,
        inside: Inside,
        *,
        endings: Endings,
        stage: Stage,
        reporting: Reporting,
        processes: Processes,
    ) -> None:
        super().__init__(inside)
        self._endings = endings
        self._reporting = reporting
        self._processes = processes
        self._retelling = Retelling(inside, endings=endings)
        self._restoring = Restoring(inside, stage=stage, reporting=reporting, retelling=self._retelling)
        self._leftovers_ended = True
        # Sessions to settle, and by session the receipts that are still pending.
        self._next: deque[SessionId] = deque()
        self._pending: dict[SessionId, list[Receipt]] = {}
        # Sessions settled by a start that is not over; their gates open together. None once it is over.
        self._settled: list[SessionId] | None = []
        self._failure: Exception | None = None

    async def start(self) -> None:
        """Settle what an earlier start left; return when every ending is public, or after START_SECONDS.

        Raise if the store fails meanwhile: nothing has begun then, and the next start finds the same runs.
        """
        if not self._store.clean:
            self._leftovers_ended = await self._end_leftovers()
        unsettled = await read(self._store.unsettled())
        for receipt in await read(self._store.pending_receipts()):
            self._pending.setdefault(await self._top_of(receipt), []).append(receipt)
        if unsettled and not self._store.clean:
            log.warning("the last start was cut short; sessions settled now: %d", len(unsettled))
        self._next.extend(dict.fromkeys([*unsettled, *self._pending]))
        self._registry.recovering.update((session, Flag()) for session in self._next)
        workers = [self._crew.start(self._work(), name="recovery") for _ in range(min(len(self._next), RECOVERED))]
        if workers:
            await asyncio.wait([worker for worker in workers if worker is not None], timeout=START_SECONDS)
        if self._failure is not None:
            raise self._failure
        settled, self._settled = self._settled or [], None
        for session in settled:
            self._open(session)

    async def _end_leftovers(self) -> bool:
        """End processes that the last start left; return whether control saw that none is left."""
        try:
            # The helper ends these processes before it says that it is ready.
            machine = await self._processes.ready()
        except Exception as error:
            log.warning("processes that an earlier start left could not be looked for: %s", error)
            return False
        return not machine.left

    async def _top_of(self, receipt: Receipt) -> SessionId:
        """Return the session at the top of the tree in which a receipt's runs fell."""
        row = await read(self._store.run(receipt.runs[0].id)) if receipt.runs else None
        top = receipt.session if row is None else row.home or row.session
        return top or SessionId("")

    async def _work(self) -> None:
        while self._next and self._failure is None and not self._registry.closing:
            session = self._next.popleft()
            try:
                await self.recover(session)
            except Exception as error:
                self._fail(session, error)
            else:
                self._open(session)

    def _fail(self, session: SessionId, error: Exception) -> None:
        """Leave a session that cannot be settled to the next start; a start that is not over yet fails."""
        log.error("session %s could not be settled, and takes nothing before the next start: %s", session, error)
        if self._settled is not None:
            self._failure = self._failure or error
        self._registry.recovering[session].set()

    def _open(self, session: SessionId) -> None:
        """Open a session's gate: its seat may be given, and arrivals and stops go on."""
        if self._settled is not None:
            self._settled.append(session)
            return
        self._registry.recovering.pop(session).set()
        if (live := self._registry.sessions.get(session)) is not None:
            seat_next(self._registry, live)

    async def recover(self, session: SessionId) -> None:
        """Settle a session and the children below it; return when every ending is public and handed to the store."""
        tree = Tree(leftovers_ended=self._leftovers_ended)
        tree.pending.update((receipt.id, receipt) for receipt in self._pending.pop(session, ()))
        # The reports keep their homes in memory until they are queued there.
        with tree.homes, self._registry.pinned(session):
            for child, rows in groupby(await read(self._store.unsettled_runs(session)), attrgetter("session")):
                await self._restoring.put_back(tree, child, list(rows))
            # A run without a fall of its own falls with its parent.
            falls = [fall for run in tree.living.values() if (fall := self._endings.end(run, LOST)) is not None]
            for fall in falls:
                await fall.ended.wait()
            await self._retelling.complete_receipts(tree)
            for ticket in tree.written:
                await ticket.within(self._settings.commit_seconds)
            for report in tree.reports:
                self._reporting.resume(report)

    async def settled_for(self, session: str | None, run: str | None) -> None:
        """Wait until the session that a verb names, or that of the run which it names, is settled."""
        if session is None and run is not None:
            if RunId(run) in self._registry.runs:
                return
            row = await read(self._store.run(RunId(run)))
            session = None if row is None else row.home or row.session
        await self.settled(None if session is None else SessionId(session))

    async def settled(self, session: SessionId | None) -> None:
        """Wait until a session is settled, which is settled next; without one, until all are.

        Raise if the session could not be settled. A child's session, and a run's own, is settled with its tree.
        """
        recovering = self._registry.recovering
        if session is not None and not session.startswith(RUN_SESSION):
            if session in self._next:
                self._next.remove(session)
                self._next.appendleft(session)
            gates = [session] if session in recovering else []
        else:
            gates = list(recovering)
        for each in gates:
            if (gate := recovering.get(each)) is not None:
                await gate.wait()
        if session in recovering:
            raise unsettled_still(session)

    @property
    def unfinished(self) -> bool:
        """True while something is left to the next start, which must then look for it as this one did."""
        return self._settled is not None or bool(self._registry.recovering)

    def close(self) -> None:
        """Let go of everything that waits for a session to be settled: this control is closing."""
        for gate in self._registry.recovering.values():
            gate.set()


def unsettled_still(session: SessionId) -> Unavailable:
    """Return the error about a session that could not be settled."""
    return Unavailable(f"session {session} could not be settled after the restart; try again after the next one")
