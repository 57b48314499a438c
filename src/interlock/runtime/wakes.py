"""Wakes: messages that a schedule sends.

1. A wake arrives by the same way as any message, and only into a session without a running or waiting one; else it is
   skipped and not made up for. Any message takes it over.
2. A stop ends the run, not the schedule; a reset of the session leaves its schedules too. A timer whose schedule is
   gone or was replaced does nothing.
3. Nothing is written when a wake fires. The next time follows from the clock: `every` counts from the schedule's
   creation, `cron` from local time. So a restart, or a clock that was set, needs no repair.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from cronsim import CronSim, CronSimError

from interlock.core.answers import Wake
from interlock.core.decision import Decision, WakeRow
from interlock.core.errors import BadInput, InterlockError, Refused
from interlock.core.names import RunId, RunKind, SessionId, WakeId
from interlock.core.values import number_of
from interlock.runtime.arrival import Arrival
from interlock.runtime.delegation import Starter
from interlock.runtime.ending import Endings
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.settings import WAKE_SECONDS, WAKES
from interlock.stores.base import Ticket

log = logging.getLogger("interlock")

# A timer looks at the wall clock at least this often, because the clock may be set.
LONGEST_TIMER_SECONDS = 86_400.0


class _Armed:
    __slots__ = ("last", "next_at", "row", "skipped", "timer")

    def __init__(self, row: WakeRow) -> None:
        self.row = row
        self.timer: asyncio.TimerHandle | None = None
        self.next_at: float | None = None
        self.last: LiveRun | None = None
        self.skipped = 0

    def count(self) -> None:
        """Count the last wake if it was skipped."""
        if self.last is not None and self.last.admittance.acked.is_set():
            self.skipped += self.last.admittance.problem is not None
            self.last = None


class Wakes(Inner):
    """Every schedule of this control."""

    def __init__(self, inside: Inside, *, stage: Starter, endings: Endings) -> None:
        super().__init__(inside)
        self._stage = stage
        self._endings = endings
        self._loop = asyncio.get_running_loop()
        self._armed: dict[WakeId, _Armed] = {}
        # Schedules on their way into the inside.store.
        self._making: Counter[SessionId] = Counter()

    @contextmanager
    def room(self, session: SessionId) -> Iterator[None]:
        """Reserve a place for one schedule while it is being stored; raise if the session has WAKES already."""
        made = sum(armed.row.session == session for armed in self._armed.values()) + self._making[session]
        if made >= WAKES:
            raise Refused(f"session {session} has {WAKES} wakes, the most it may have; remove one first")
        self._making[session] += 1
        try:
            yield
        finally:
            self._making[session] -= 1
            if not self._making[session]:
                del self._making[session]

    def add(self, row: WakeRow) -> Wake:
        """Arm a schedule."""
        armed = self._armed[row.id] = _Armed(row)
        self._arm(armed, self._clock.wall())
        return _shown(armed)

    def get(self, wake_id: WakeId) -> WakeRow | None:
        """Return a schedule."""
        armed = self._armed.get(wake_id)
        return None if armed is None else armed.row

    def of(self, session: SessionId) -> list[Wake]:
        """List a session's schedules."""
        return [_shown(armed) for armed in self._armed.values() if armed.row.session == session]

    def remove(self, wake_id: WakeId) -> Ticket | None:
        """Remove a schedule, in memory at once and in the store until it is done."""
        armed = self._armed.pop(wake_id, None)
        if armed is None:
            return None
        if armed.timer is not None:
            armed.timer.cancel()
        return self._endings.store_until_in(Decision(unwakes=(wake_id,)))

    def close(self) -> None:
        """Fire no more; the schedules stay in the store."""
        for armed in self._armed.values():
            if armed.timer is not None:
                armed.timer.cancel()
        self._armed.clear()

    def _arm(self, armed: _Armed, after: float) -> None:
        armed.next_at = next_time(armed.row, after)
        # A schedule with one time has passed it, here or while no server ran.
        if armed.next_at is None:
            self.remove(armed.row.id)
            return
        seconds = min(max(0.0, armed.next_at - self._clock.wall()), LONGEST_TIMER_SECONDS)
        armed.timer = self._loop.call_later(seconds, self._fire, armed)

    def _fire(self, armed: _Armed) -> None:
        row, due = armed.row, armed.next_at
        # The schedule is gone or was replaced (rule 2).
        if self._armed.get(row.id) is not armed or due is None or self._registry.closing:
            return
        # The timer is bounded by LONGEST_TIMER_SECONDS, or the clock was set back: it is not due yet.
        if self._clock.wall() < due - 0.001:
            self._arm_again(armed, due)
            return
        self._wake(armed)
        self._arm(armed, max(due, self._clock.wall()))

    def _arm_again(self, armed: _Armed, due: float) -> None:
        seconds = min(due - self._clock.wall(), LONGEST_TIMER_SECONDS)
        armed.timer = self._loop.call_later(seconds, self._fire, armed)

    def _wake(self, armed: _Armed) -> None:
        row = armed.row
        run = LiveRun(
            RunId(self._registry.new_id("r")),
            self._registry.session(row.session),
            Arrival(
                principal=row.principal,
                text=row.text,
                kind=RunKind.WAKE,
                method="wake",
                admitted_at=self._clock.wall(),
            ),
        )
        armed.count()
        armed.last = run
        try:
            self._stage.begin(run)
        except InterlockError as refusal:
            log.warning("wake %s of session %s was skipped: %s", row.id, row.session, refusal)
            run.admittance.refuse(refusal)


def next_time(row: WakeRow, after: float) -> float | None:
    """Return when a schedule is due next after an instant; None if never."""
    if row.at is not None:
        return row.at if row.at > after else None
    if row.every is not None:
        times = (after - row.since) // row.every + 1
        due = row.since + row.every * times
        # A product of floats may be rounded down to `after` itself; the next one is due then.
        return due if due > after else row.since + row.every * (times + 1)
    assert row.cron is not None
    # By local time, so that "9 o'clock" stays 9 o'clock in summer and winter.
    for local in CronSim(row.cron, datetime.fromtimestamp(after)):
        if (due := local.timestamp()) > after:
            return due
    return None


def schedule(
    at: float | None, every: float | None, cron: str | None, now: float
) -> tuple[float | None, float | None, str | None]:
    """Return (at, every, cron) with one of them set, as numbers and text, or raise what is wrong."""
    if [at, every, cron].count(None) != 2:
        raise BadInput("a wake has one schedule: at=, every= or cron=")
    if cron is not None:
        try:
            next(CronSim(str(cron), datetime.fromtimestamp(now).astimezone()))
        except (CronSimError, StopIteration) as error:
            raise BadInput(f"cron {cron!r:.80} is not a schedule ({error}); an example: '0 9 * * mon-fri'") from None
        return None, None, str(cron)
    if every is not None:
        seconds = number_of(every)
        if not WAKE_SECONDS <= seconds < 10 * 366 * 86_400:
            raise BadInput(f"every= is {WAKE_SECONDS} or more seconds, not {every!r:.40}")
        return None, seconds, None
    instant = number_of(at)
    if not now < instant < now + 100 * 366 * 86_400:
        raise BadInput(f"at= is a time to come, not {at!r:.60}")
    return instant, None, None


def _shown(armed: _Armed) -> Wake:
    row = armed.row
    armed.count()
    return Wake(
        id=row.id,
        session=row.session,
        text=row.text,
        by=row.principal,
        next_at=armed.next_at,
        at=row.at,
        every=row.every,
        cron=row.cron,
        skipped=armed.skipped,
    )
