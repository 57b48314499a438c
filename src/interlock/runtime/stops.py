"""Control reads the verbs Stop, Reset and StopAll here: what each names, and each once per key.

session_stops.py ends a session, run_stops.py one run or message; both end runs through `Fall.add` (fall.py).

1. A stop decides in the step that asks it, however many answers are on their way.
2. A stop may have a key of its own. The key is claimed in memory in the step that decides, before anything is awaited,
   and stored in the Decision with what the stop ended. So two deliveries at once are one stop, and a later delivery
   gets the result of the first and ends nothing newer, also after a restart (races 129 and 130).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from interlock.client.door import Answering
from interlock.core.decision import Decision, StopKey
from interlock.core.errors import BadInput, KeyConflict, UnknownSession
from interlock.core.names import Ending, Principal, ReceiptId, RunId, SessionId
from interlock.core.receipt import Receipt, nothing
from interlock.core.values import name_of, order_of
from interlock.core.verbs import Reset, Stop, StopAll
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.registry import StopCall
from interlock.runtime.run_stops import Receiving
from interlock.runtime.sending import digest
from interlock.runtime.session_stops import SessionStops


class Stops(Inner):
    """Carries out the stops of callers."""

    def __init__(self, inside: Inside, *, stopping: SessionStops) -> None:
        super().__init__(inside)
        self._stopping = stopping

    def stop(self, asked: Stop, by: Principal) -> Receiving:
        """Stop a session's runs, one run, or the message sent under a key (also before that message arrives)."""
        session, run, message = asked.session, asked.run, asked.message
        if [session, run, message].count(None) != 2:
            raise BadInput("stop one thing: session=, run= or message=")
        if asked.order is not None and session is None:
            raise BadInput("order= belongs to the stop of a session")
        place = order_of(asked.order)
        what: list[object] = [None if asked.order is None else tuple(asked.order), session, run, message]
        # Stored digests have no `queue` where it was not asked for.
        what += [] if asked.queue is None else [asked.queue]
        call = _call(by, asked.key, "stop", what, typed=bool(asked.typed) and session is not None)
        if session is not None:
            session_id, queue = SessionId(name_of(session, "session")), asked.queue is not False
            stop = partial(self._stopping.session, session_id, call, place, queue=queue)
            return self._once(call, session_id, stop)
        if run is not None:
            run_id = RunId(name_of(run, "run"))
            stopped = self._once(call, None, lambda: self._stopping.run(run_id, call))
            live = self._registry.runs.get(run_id)
        else:
            sent = name_of(message, "message")
            stopped = self._once(call, None, lambda: self._stopping.message(sent, call))
            live = self._registry.keys.get((by, sent))
        if not asked.queue:
            return stopped
        seen = live is not None and self._sight.may_see(by, live.absorber_or_self)
        rest = self._rest(live.absorber_or_self.session.id, by) if live is not None and seen else None
        return partial(self._with_rest, stopped, rest, by)

    def _rest(self, session: SessionId, by: Principal) -> Receiving:
        return self._stopping.session(session, StopCall(by, method="stop", key=None, digest="", typed=False), None)

    async def _with_rest(self, stopped: Receiving, rest: Receiving | None, by: Principal) -> Receipt:
        """Answer with the receipt of a run; of the rest of its session, if that alone ended something."""
        receipt = await stopped()
        # The run was not in memory: only its receipt names its session.
        if rest is None and receipt.session is not None:
            rest = self._rest(receipt.session, by)
        other = receipt if rest is None else await rest()
        return other if other.aborted and not receipt.aborted else receipt

    def reset(self, asked: Reset, by: Principal) -> Receiving:
        """End everything of a session, detached children and processes too, and begin a new transcript."""
        session_id = SessionId(name_of(asked.session, "session"))
        call = _call(by, asked.key, "reset", [asked.session])
        return self._once(call, session_id, lambda: self._stopping.reset(session_id, call))

    def stop_all(self, asked: StopAll, by: Principal) -> Answering[list[Receipt]]:
        """Stop every session that has a run or a detached process, in one step; a child falls with its home.

        With `of`, stop that principal's sessions, and the runs it started in the sessions of others. What recovery has
        not settled is not in memory: each such session is stopped in the step that would let something of it begin.
        """
        seen = [run for run in self._registry.runs.values() if self._sight.may_see(by, run) and not run.fallen]
        held = [each.id for each in self._registry.sessions.values() if self._stopping.detached(each, by)]
        # A child is stopped through its home. Stopped alone, a detached child would announce its ending there, and the
        # announcement would start a turn.
        recovering = self._registry.recovering
        sessions = dict.fromkeys(each for each in [run.ties.home.id for run in seen] + held if each not in recovering)
        alone: list[RunId] = []
        if asked.of is not None:
            sessions = {each: None for each in sessions if self._registry.whose(each).owner == asked.of}
            alone = [run.id for run in seen if run.principal == asked.of and run.ties.home.id not in sessions]
        stops = [self._rest(session, by) for session in sessions]
        stops += [self.stop(Stop(run=run), by) for run in alone]
        of = None if asked.of is None else Principal(asked.of)
        stops += [self._stopping.unsettled(session, StopCall(by), of) for session in recovering]
        return partial(_receipts_of, stops)

    # Once per key

    def _once(self, call: StopCall, session: SessionId | None, stop: Callable[[], Receiving]) -> Receiving:
        """Stop. If the call's key was used before, end nothing and answer with the result of its first use instead."""
        if call.key is None:
            return stop()
        first = self._registry.stop_of(call.by, call.key)
        if first is None:
            self._registry.claim(call)
            try:
                return stop()
            except BaseException:
                self._stopping.release(call)
                raise
        if (first.method, first.digest) != (call.method, call.digest):
            raise KeyConflict(f"key {call.key!r} was used for another stop; use a new key for this one")
        return partial(self._again, first, call, session, stop)

    async def _again(
        self, first: StopCall, call: StopCall, session: SessionId | None, stop: Callable[[], Receiving]
    ) -> Receipt:
        """Answer with the result of the first use of a key; if that failed, stop now."""
        await first.decided.wait()
        if first.row is not None:
            return await self._told_again(first.row, session)
        return await self._once(call, session, stop)()

    async def _told_again(self, row: StopKey, session: SessionId | None) -> Receipt:
        """Return the result of the first stop with this key, with its receipt as it stands now."""
        if row.already is Ending.UNKNOWN:
            raise UnknownSession(SessionId(session or ""), row.principal)
        told = nothing(session=session, by=row.principal, now=row.at)
        if row.receipt is None:
            kept = await self._stopping.keep(Decision(stops=(row,)), self._stopping.until())
            told = msgspec.structs.replace(told, durable=kept)
        else:
            told = await self._receipt_now(row.receipt, row.principal) or msgspec.structs.replace(told, id=row.receipt)
        return msgspec.structs.replace(told, aborted=row.aborted, already=row.already, again=True)

    async def _receipt_now(self, receipt_id: ReceiptId, by: Principal) -> Receipt | None:
        """Return a receipt as it stands now; None if the store no longer has it, or does not answer."""
        fall = self._registry.falls.get(receipt_id)
        if fall is None:
            return await self._stopping.soon(self._sight.kept_receipt(receipt_id, by), self._stopping.until())
        await fall.ended.wait()
        return self._sight.receipt(fall, by)


async def _receipts_of(stops: Sequence[Receiving]) -> list[Receipt]:
    """Return the receipts of what was ended; a stop that fails does not hide the receipts of the others."""
    told = await asyncio.gather(*(stop() for stop in stops), return_exceptions=True)
    receipts = [each for each in told if isinstance(each, Receipt)]
    if not receipts and told:
        raise next(each for each in told if isinstance(each, BaseException))
    return list({receipt.id: receipt for receipt in reversed(receipts) if receipt.aborted}.values())[::-1]


def _call(by: Principal, key: str | None, method: str, what: Sequence[object], *, typed: bool = False) -> StopCall:
    own = None if key is None else name_of(key, "key")
    return StopCall(by, method=method, key=own, digest="" if own is None else digest(*what), typed=typed)
