"""Sight: which runs and receipts a caller may see, alive or stored.

1. A run that the caller may not see is answered like one that does not exist: None.
2. One fall may take runs of several principals (an owner stops the session). Each caller is shown the runs of the
   receipt that it may see, and no sums over the others.
3. `owned` and `seen` bound how long the store may take; of the others, the verbs that call them do.
"""

import msgspec

from interlock.core.answers import SessionInfo
from interlock.core.authority import NOBODYS, Action, Authority, Whose
from interlock.core.decision import QuestionRow, RunRow
from interlock.core.errors import Unknown, UnknownSession
from interlock.core.names import Drain, Ending, Principal, ReceiptId, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt, shown
from interlock.runtime.fall import Fall
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import Registry
from interlock.stores.base import Store, read


class Sight:
    """Shows runs and receipts to those who may see them."""

    def __init__(self, authority: Authority, registry: Registry, store: Store) -> None:
        self._authority = authority
        self._registry = registry
        self._store = store

    def may_see(self, by: Principal, run: LiveRun) -> bool:
        """Return whether the caller may see a live run."""
        return self._authority.may(Action.SEE_RUN, by, whose=run.session.whose, principal=run.principal)

    async def session(self, session_id: SessionId) -> tuple[Whose, int]:
        """Return a session's owner and shares and where its transcript begins, from memory or else from the store."""
        live = self._registry.sessions.get(session_id)
        row = None
        if live is None or not live.stored:
            row = await self._store.session(session_id)
            live = self._registry.sessions.get(session_id)
        # Memory goes before the store, also if the session came to life during the read.
        if live is not None and live.stored:
            return live.whose, live.since
        return (
            (NOBODYS, 0) if row is None else (self._registry.fresher(row.id, Whose(row.owner, row.shares)), row.since)
        )

    async def whose(self, session_id: SessionId) -> Whose:
        """Return a session's owner and shares."""
        return (await self.session(session_id))[0]

    async def owned(self, session_id: SessionId, by: Principal, action: Action = Action.SEE_SESSION) -> int:
        """Return where a session's transcript begins; raise if there is none on which the caller may act."""
        whose, since = await read(self.session(session_id))
        if whose.owner is None or not self._authority.may(action, by, whose=whose):
            raise UnknownSession(session_id, by)
        return since

    async def seen(self, run_id: RunId, by: Principal) -> tuple[SessionId, RunId] | None:
        """Return session and id of a run the caller may see (of its absorber, if aliased); None if it was withdrawn."""
        live = self._registry.runs.get(run_id)
        if live is not None and self.may_see(by, live):
            # Until the ack nothing of a run is public, and it may still be withdrawn.
            await live.admittance.acked.wait()
            return None if live.state.withdrawn else (live.session.id, live.absorber_or_self.id)
        row = await read(self.row(run_id, by)) if live is None else None
        if row is None:
            raise Unknown(f"no run {run_id!r} that {by} may see; `runs` lists them")
        return row.session, row.id

    async def may_see_row(self, by: Principal, row: RunRow) -> bool:
        """Return whether the caller may see a stored run; for a child, the rights of its home count."""
        if self._authority.may(Action.SEE_RUN, by):
            return True
        whose = await self.whose(row.home or row.session)
        return self._authority.may(Action.SEE_RUN, by, whose=whose, principal=row.principal)

    def still(self, by: Principal, row: RunRow) -> bool:
        """Return whether the caller may still see a stored run after a read, as far as memory knows."""
        whose = self._registry.whose(row.home or row.session)
        return whose.owner is None or self._authority.may(Action.SEE_RUN, by, whose=whose, principal=row.principal)

    async def may_answer_row(self, by: Principal, row: QuestionRow) -> bool:
        """Return whether the caller may answer a question whose run is no longer in memory."""
        run = await self._store.run(row.run_id)
        whose = await self.whose(row.session if run is None else run.home or run.session)
        return self._authority.may(Action.ANSWER, by, whose=whose, principal=row.principal)

    async def row(self, run_id: RunId, by: Principal) -> RunRow | None:
        """Return a stored run, or the run that absorbed it; None if the caller may not see it."""
        row = await self._store.run(run_id)
        while row is not None and row.outcome is None and row.alias is not None:
            row = await self._store.run(row.alias)
        return row if row is not None and await self.may_see_row(by, row) else None

    async def outcome(self, run_id: RunId, by: Principal) -> Outcome | None:
        """Return how a stored run ended; `pending` if it has not."""
        row = await self.row(run_id, by)
        if row is None:
            return None
        if row.outcome is None:
            return Outcome(run_id=row.id, ending=Ending.PENDING)
        receipt = await self._store.receipt(row.id)
        if not self.still(by, row):
            return None
        over = receipt is None or receipt.drain is not Drain.PENDING
        return msgspec.structs.replace(row.outcome, drained=over, durable=True)

    def receipt(
        self, fall: Fall, by: Principal, *, aborted: bool = False, already: Ending | None = None
    ) -> Receipt | None:
        """Return a live receipt as it stands now, with the runs the caller may see; None if it may see none."""
        if not fall.drained.is_set():
            fall.record()
        # A stop that ended detached processes only has a receipt for its own caller.
        if not fall.runs:
            own = self._authority.may(Action.SEE_RUN, by, principal=fall.by)
            return fall.receipt(aborted=aborted, already=already) if own else None
        seen = [run for run in fall.runs if self.may_see(by, run)]
        return fall.receipt(aborted=aborted, already=already, runs=seen) if seen else None

    async def rows(self, session: SessionId, by: Principal, *, tree: bool = False) -> list[RunRow]:
        """Return a session's stored runs that the caller may see; with `tree` the children below them too."""
        return [row for row in await self._store.runs(session, tree=tree) if await self.may_see_row(by, row)]

    async def latest(self, limit: int, by: Principal) -> list[RunRow]:
        """Return the latest stored runs of all sessions that the caller may see."""
        of = None if self._authority.may(Action.SEE_RUN, by) else by
        return [row for row in await self._store.runs(None, limit=limit, of=of) if await self.may_see_row(by, row)]

    async def elsewhere(self, by: Principal) -> list[RunRow]:
        """Return stored runs without an ending that another control has, and that the caller may see.

        Memory knows all of this control's, and each of those as it is now.
        """
        of = None if self._authority.may(Action.SEE_RUN, by) else by
        rows = [row for row in await self._store.open_runs(of=of) if not self._is_here(row.id, row.home or row.session)]
        return [row for row in rows if await self.may_see_row(by, row)]

    async def questions_elsewhere(self, by: Principal) -> list[QuestionRow]:
        """Return stored open questions of runs that another control has, and that the caller may answer."""
        rows = [row for row in await self._store.open_questions() if not self._is_here(row.run_id, row.session)]
        return [row for row in rows if await self.may_answer_row(by, row)]

    def _is_here(self, run_id: RunId, session: SessionId) -> bool:
        """Return whether this control has a run or has had it; one that is not in memory is over."""
        registry = self._registry
        return run_id in registry.runs or registry.numbers.is_ours(run_id) or session in registry.recovering

    async def sessions(self, limit: int, by: Principal) -> list[SessionInfo]:
        """Return stored sessions that the caller may see, the latest first."""
        of = None if self._authority.may(Action.SEE_SESSION, by) else by
        infos = await self._store.sessions(limit=limit, of=of)
        return [info for info in infos if self._authority.may(Action.SEE_SESSION, by, whose=self._now(info))]

    def _now(self, info: SessionInfo) -> Whose:
        return self._registry.fresher(info.session.id, Whose(info.session.owner, info.session.shares))

    async def kept_receipt(self, wanted: ReceiptId, by: Principal) -> Receipt | None:
        """Return a stored receipt by its id or a run's."""
        kept = await self._store.receipt(wanted)
        if kept is None and (row := await self.row(RunId(wanted), by)) is not None:
            # `row` may be the run that absorbed the wanted one.
            kept = await self._store.receipt(row.id)
        return None if kept is None else await self.stored_receipt(kept, by)

    async def stored_receipt(self, receipt: Receipt, by: Principal) -> Receipt | None:
        """Return a stored receipt with the runs the caller may see."""
        if not receipt.runs and not self._authority.may(Action.SEE_RUN, by, principal=receipt.by):
            return None
        seen = {run.id for run in receipt.runs if await self.row(run.id, by) is not None}
        return shown(receipt, seen) if seen or not receipt.runs else None
