"""What an owner sets for a session: its shares, its strategy, its schedules."""

from interlock.core import verbs
from interlock.core.answers import Shared, Wake
from interlock.core.authority import Action
from interlock.core.decision import Decision, WakeRow
from interlock.core.errors import Unknown, UnknownSession
from interlock.core.names import LOCAL, Principal, SessionId, WakeId
from interlock.core.values import may_of, name_of, strategy_of, text_of
from interlock.runtime.ending import Endings
from interlock.runtime.inbox import Inbox
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.sending import session_name
from interlock.runtime.sharing import Sharing
from interlock.runtime.wakes import Wakes, schedule
from interlock.stores.base import StoreFailed, commit_or_withdraw, read


class Owning(Inner):
    """Changes what an owner sets."""

    def __init__(self, inside: Inside, *, inbox: Inbox, endings: Endings, sharing: Sharing, wakes: Wakes) -> None:
        super().__init__(inside)
        self._inbox = inbox
        self._endings = endings
        self._sharing = sharing
        self._wakes = wakes

    async def share(self, asked: verbs.Share, by: Principal) -> Shared:
        """Let another principal see a session and write in it, or (may="read") only see it; for owners and admins."""
        session_id = SessionId(name_of(asked.session, "session"))
        return await self._sharing.change(session_id, Principal(name_of(asked.with_, "with_")), may_of(asked.may), by)

    async def unshare(self, asked: verbs.Unshare, by: Principal) -> Shared:
        """Take a share away. From this step on, watches and waits that used it show nothing more."""
        session_id = SessionId(name_of(asked.session, "session"))
        return await self._sharing.change(session_id, Principal(name_of(asked.with_, "with_")), None, by)

    async def set_strategy(self, asked: verbs.SetStrategy, by: Principal) -> None:
        """Set what messages do while a session is busy; None is the server's setting. A message may override it."""
        session_id, chosen = await self._mine(asked.session, by), strategy_of(asked.strategy)
        with self._registry.pinned(session_id) as live:
            if not live.loaded:
                self._registry.load(live, await read(self._store.load(session_id, principal=LOCAL, key=None)))
            if not live.stored:
                raise UnknownSession(session_id, by)
            before, live.strategy = live.strategy, chosen
            try:
                await self._keep(Decision(sessions=(self._registry.session_row(live),)))
            except StoreFailed:
                live.strategy = before
                raise

    async def wake(self, asked: verbs.Schedule, by: Principal) -> Wake:
        """Schedule a message, once or repeatedly. A wake that finds the session busy is skipped and not made up for."""
        said, now = text_of(asked.text), self._clock.wall()
        once, seconds, line = schedule(asked.at, asked.every, asked.cron, now)
        row = WakeRow(
            id=WakeId(self._registry.new_id("w")),
            session=await self._mine(session_name(asked.session), by),
            principal=by,
            text=said,
            since=now,
            at=once,
            every=seconds,
            cron=line,
        )
        with self._wakes.room(row.session):
            try:
                await self._keep(Decision(wakes=(row,)))
            # The caller was told of no schedule, so none may stay, also if the caller was cancelled.
            except BaseException:
                self._endings.store_until_in(Decision(unwakes=(row.id,)))
                raise
            return self._wakes.add(row)

    async def unwake(self, asked: verbs.Unschedule, by: Principal) -> None:
        """Remove a schedule; a run that it began goes on."""
        wake_id = WakeId(name_of(asked.wake, "wake"))
        row = self._wakes.get(wake_id)
        try:
            if row is None:
                raise Unknown
            await self._mine(row.session, by)
        except Unknown:
            raise Unknown(f"no wake {asked.wake!r} that {by} may remove; `wakes` lists them") from None
        # The schedule is gone from memory in this step. A slow store is tried again after this call has returned.
        removed = self._wakes.remove(wake_id)
        if removed is not None:
            await removed.within(self._settings.commit_seconds)

    async def wakes(self, asked: verbs.Wakes, by: Principal) -> list[Wake]:
        """List a session's schedules."""
        return self._wakes.of(await self._mine(asked.session, by))

    async def _mine(self, session: str, by: Principal) -> SessionId:
        """Return the session's id if the caller may change its schedules and settings; else raise."""
        session_id = SessionId(name_of(session, "session"))
        await self._sight.owned(session_id, by, Action.WAKE)
        return session_id

    async def _keep(self, decision: Decision) -> None:
        if not await commit_or_withdraw(self._store, self._store.decide(decision), self._settings.commit_seconds):
            raise StoreFailed("the store did not accept the change in time; nothing was kept, try again")
