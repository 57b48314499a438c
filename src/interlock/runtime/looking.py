"""Looking: what a caller is told of runs, sessions, processes and receipts.

A verb that reads the store asks for the right again after the read: another caller may have taken it away meanwhile.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import msgspec

from interlock.core import verbs
from interlock.core.answers import ProcessInfo, QuestionInfo, Remaining, RunInfo, SessionInfo
from interlock.core.authority import Action
from interlock.core.decision import RunRow
from interlock.core.errors import Unavailable, Unknown, UnknownSession
from interlock.core.events import Entry
from interlock.core.names import REPORTS, Ending, Principal, ReceiptId, RunId, RunKind, SessionId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.story import transcript
from interlock.core.timeline import Moment, timeline
from interlock.core.values import count_of, name_of, seconds_of
from interlock.runtime.approvals import Approvals, info_of_question
from interlock.runtime.feed import whole_log
from interlock.runtime.guards import Guard, cut_short
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.listing import as_tree, info_of, info_of_row
from interlock.runtime.live import LiveRun
from interlock.runtime.session_stops import SessionStops
from interlock.runtime.spawning import Spawned
from interlock.stores.base import READ_SECONDS, read

T = TypeVar("T")

# The form of a run's id; any other name is a key.
OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")


class Looking(Inner):
    """Answers the verbs that change nothing."""

    def __init__(self, inside: Inside, *, stopping: SessionStops, approvals: Approvals) -> None:
        super().__init__(inside)
        self._stopping = stopping
        self._approvals = approvals

    # Runs

    async def wait(self, asked: verbs.Wait, by: Principal) -> Outcome:
        """Return how a run ended; `pending` if the timeout passed first, `unknown` if the caller sees no such run."""
        timeout, drained = asked.timeout, asked.drained
        seconds_of(timeout, "timeout", None)
        run_id = await self._named(name_of(asked.run, "run"), by)
        live = self._registry.runs.get(run_id)
        if live is None:
            patience = self._settings.commit_seconds if timeout == 0 else timeout or READ_SECONDS
            with anyio.move_on_after(patience):
                return await self._sight.outcome(run_id, by) or not_ended(run_id, Ending.UNKNOWN)
            return not_ended(run_id, Ending.PENDING)
        if not live.absorber_or_self.ended.is_set() or drained:
            with cut_short(self._guards, lambda gone: guard_of(live, by, gone)):
                if timeout is None:
                    await _over(live, drained)
                else:
                    with anyio.move_on_after(timeout):
                        await _over(live, drained)
        # Ask after the wait: the right may have been taken away meanwhile.
        if not self._sight.may_see(by, live.absorber_or_self):
            return not_ended(run_id, Ending.UNKNOWN)
        return _told(live.absorber_or_self)

    async def _named(self, name: str, by: Principal) -> RunId:
        """Return the id of a run that is named by its id, or by a key of the caller's."""
        if RunId(name) in self._registry.runs or OURS.fullmatch(name):
            return RunId(name)
        found = await self.find(verbs.Find(name=name), by)
        return RunId(name) if found is None else found.id

    async def find(self, asked: verbs.Find, by: Principal) -> RunInfo | None:
        """Return a run the caller may see, by its id or by a key of the caller's; None if there is none."""
        wanted = name_of(asked.name, "name")
        by_key = self._registry.keys.get((by, wanted))
        # The key of an announcement is its child's id, and that id must find the child.
        if by_key is not None and by_key.arrival.kind in REPORTS:
            by_key = None
        for live in (by_key, self._registry.runs.get(RunId(wanted))):
            if live is not None and self._sight.may_see(by, live.absorber_or_self):
                return info_of(live.absorber_or_self)
        key = (await read(self._store.load(SessionId(""), principal=by, key=wanted))).key
        key_run = None if key is None or key.method == RunKind.ANNOUNCE else key.run_id
        for run_id in (key_run, RunId(wanted)):
            row = None if run_id is None else await read(self._sight.row(run_id, by))
            if row is not None:
                # The run may have come to life during the read.
                live = self._registry.runs.get(row.id)
                seen = live is not None and self._sight.may_see(by, live.absorber_or_self)
                return info_of(live.absorber_or_self) if live is not None and seen else info_of_row(row)
        return None

    async def runs(self, asked: verbs.Runs, by: Principal) -> list[RunInfo]:
        """List live runs the caller may see; with a session, its ended ones too, and with `tree` their children."""
        stored, tree = count_of(asked.latest, "latest"), asked.tree
        wanted = None if asked.session is None else SessionId(name_of(asked.session, "session"))
        alive = self._alive(wanted, by, tree=tree)
        rows: list[RunRow] = []
        if wanted is not None:
            rows = await read(self._sight.rows(wanted, by, tree=tree))
        elif stored:
            rows = await read(self._sight.latest(stored, by))
        elif self._store.shared:
            rows = await self.soon(self._sight.elsewhere(by)) or []
        known = {run.id for run in alive}
        # Ask after the reads.
        live = [info_of(run) for run in alive if self._sight.may_see(by, run)]
        ended = [info_of_row(row) for row in rows if row.id not in known and self._sight.still(by, row)]
        if wanted is not None and not live and not ended:
            # Raise if the caller sees no such session.
            await self._sight.owned(wanted, by)
        return as_tree([*ended, *live]) if tree else [*ended, *live]

    async def soon(self, asked: Awaitable[list[T]]) -> list[T] | None:
        """Return what the store knows; None if it does not answer: what is in memory is listed all the same."""
        with anyio.move_on_after(self._settings.commit_seconds), contextlib.suppress(Unavailable):
            return await asked
        return None

    async def questions(self, asked: verbs.Questions, by: Principal) -> list[QuestionInfo]:
        """List open questions that the caller may answer; with a session, those of its runs and their children."""
        wanted = None if asked.session is None else SessionId(name_of(asked.session, "session"))
        here = set(self._registry.questions)
        rows = await self.soon(self._sight.questions_elsewhere(by)) or [] if self._store.shared else []
        others = [info_of_question(row) for row in rows if row.id not in here and wanted in (None, row.session)]
        return [*others, *self._approvals.opened(wanted, by)]

    def _alive(self, session: SessionId | None, by: Principal, *, tree: bool = False) -> list[LiveRun]:
        return [
            run
            for run in self._registry.runs.values()
            if session in (None, run.session.id, run.ties.home.id if tree else None) and self._sight.may_see(by, run)
        ]

    async def processes(self, asked: verbs.Processes, by: Principal) -> list[ProcessInfo]:
        """List live processes of runs the caller may see, and detached ones the caller may stop."""
        wanted = None if asked.session is None else SessionId(name_of(asked.session, "session"))
        found: dict[Spawned, None] = {}
        for run in self._registry.runs.values():
            if run.work.processes is not None and wanted in (None, run.ties.home.id) and self._sight.may_see(by, run):
                found.update(run.work.processes.running)
        for each in self._registry.sessions.values():
            if wanted in (None, each.id):
                found.update(dict.fromkeys(self._stopping.detached(each, by)))
        return [running.info() for running in found if running.running or running.order.detached]

    async def receipt(self, asked: verbs.GetReceipt, by: Principal) -> Receipt:
        """Return a receipt, by its own id or a run's id or key, as it stands now, with the runs the caller may see."""
        name = name_of(asked.of, "receipt")
        wanted = ReceiptId(name) if name.startswith("f-") else ReceiptId(await self._named(name, by))
        run = self._registry.runs.get(RunId(wanted))
        fall = run.absorber_or_self.fall if run is not None else self._registry.falls.get(wanted)
        if fall is not None:
            shown = self._sight.receipt(fall, by)
        else:
            shown = await read(self._sight.kept_receipt(wanted, by))
        if shown is None:
            raise Unknown(f"no receipt {name!r} that {by} may see; receipts are found by their id or a run's")
        return shown

    async def timeline(self, asked: verbs.Timeline, by: Principal) -> list[Moment]:
        """Return what happened in a run, in order, as a few moments that a surface can draw."""
        wanted = await self._named(name_of(asked.run, "run"), by)
        live = self._registry.runs.get(wanted)
        found = await self._sight.seen(wanted if live is None else live.absorber_or_self.id, by)
        if found is None:
            return []
        session_id, run_id = found
        fall = None if live is None else live.absorber_or_self.fall
        kept = None if fall is not None else await read(self._sight.kept_receipt(ReceiptId(run_id), by))
        receipt = kept if fall is None else self._sight.receipt(fall, by)
        log = await whole_log(self._feed.log, session_id)
        # Ask again after the reads.
        await self._sight.seen(run_id, by)
        return timeline(run_id, log, receipt)

    # Sessions

    async def sessions(self, asked: verbs.Sessions, by: Principal) -> list[SessionInfo]:
        """List the sessions that the caller may see, the latest first, without sessions of single runs."""
        infos = await read(self._sight.sessions(count_of(asked.limit, "limit"), by))
        return [self._as_it_is(info) for info in infos]

    async def session(self, asked: verbs.Describe, by: Principal) -> SessionInfo:
        """Return a session as a list shows it."""
        session_id = SessionId(name_of(asked.session, "session"))
        row, runs = await read(self._store.session(session_id)), await read(self._store.runs(session_id))
        # Ask after the reads.
        await self._sight.owned(session_id, by)
        if row is None:
            raise UnknownSession(session_id, by)
        open_ones = sum(run.outcome is None and run.alias is None for run in runs)
        latest = max((run.admitted_at for run in runs), default=None)
        return self._as_it_is(SessionInfo(session=row, runs=len(runs), open=open_ones, latest_at=latest))

    def _as_it_is(self, info: SessionInfo) -> SessionInfo:
        live = self._registry.sessions.get(info.session.id)
        if live is None or live.confirmed_owner is None:
            return info
        return msgspec.structs.replace(info, session=self._registry.session_row(live))

    async def history(self, asked: verbs.History, by: Principal) -> list[Entry]:
        """Return a session's conversation."""
        session_id = SessionId(name_of(asked.session, "session"))
        since = await self._sight.owned(session_id, by)
        log = await whole_log(self._feed.log, session_id, after=since)
        # Ask again after the read.
        await self._sight.owned(session_id, by)
        return transcript(log)

    async def left(self, asked: verbs.Left, by: Principal) -> Remaining:
        """Return what the caller may still stop in a session. It reads memory alone and never waits for the store."""
        return self._stopping.remaining(SessionId(name_of(asked.session, "session")), by)


async def _over(run: LiveRun, drained: bool) -> None:
    await run.ended.wait()
    # An aliased run ends when the run that absorbed it ends.
    while run.ties.alias is not None:
        run = run.ties.alias
        await run.ended.wait()
    if drained and run.fall is not None:
        await run.fall.drained.wait()


def _told(run: LiveRun) -> Outcome:
    if run.state.withdrawn or run.state.aliased:
        return not_ended(run.id, Ending.UNKNOWN)
    if not run.end_published:
        return not_ended(run.id, Ending.PENDING)
    return run.outcome_now or not_ended(run.id, Ending.PENDING)


def not_ended(run_id: RunId, answer: Ending) -> Outcome:
    """Return the answer about a run that has not ended, or that the caller may not see."""
    return Outcome(run_id=run_id, ending=answer)


def guard_of(live: LiveRun, by: Principal, gone: Callable[[], object]) -> Guard:
    """Return a guard of the right to see a live run."""
    run = live.absorber_or_self
    home, whose = run.ties.home.id, run.session.whose
    return Guard(Action.SEE_RUN, by, session=home, whose=whose, principal=run.principal, gone=gone)
