"""Named holds: one holder at a time, in the order of asking.

1. A hold has two steps. A place in the line is granted; its waiter takes the grant in the step that sees the run
   current. A grant that was not taken passes on in the step in which its run falls (races 31 and 33). A taken one stays
   until the run is drained: the run's bodies may still work under it.
2. Everything here is synchronous, and a place that leaves passes the hold on in the same step, so no grant is lost or
   given twice.
3. Tokens only rise, across restarts too. A holder hands its token to the thing it writes to,
   which can refuse a token lower than one it has seen.
"""

from __future__ import annotations

from interlock.agent.flag import Flag
from interlock.agent.message import Hold
from interlock.core.errors import Refused
from interlock.core.names import RunId
from interlock.runtime.live import LiveRun
from interlock.runtime.numbers import Numbers
from interlock.runtime.settings import HOLD_WAITERS, HOLDS
from interlock.runtime.work import Work


class Place:
    """A run's place in the line for a hold."""

    __slots__ = ("granted", "leaving", "name", "run", "taken", "unconfirmed", "woken")

    def __init__(self, run: LiveRun, name: str) -> None:
        self.run = run
        self.name = name
        # The token.
        self.granted: int | None = None
        self.taken = False
        # The holder has released the hold; it passes on when a child that may work under it is drained.
        self.leaving = False
        self.unconfirmed: RunId | None = None
        # Set when the place is granted, or has left the line.
        self.woken = Flag()


class _Line:
    __slots__ = ("holder", "unconfirmed", "waiting")

    def __init__(self) -> None:
        self.holder: Place | None = None
        # A dict, because a place may leave from the middle.
        self.waiting: dict[Place, None] = {}
        self.unconfirmed: RunId | None = None


class Holds:
    """Every hold of this control."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._lines: dict[str, _Line] = {}

    def enter(self, run: LiveRun, name: str) -> Place:
        """Put a run in the line for a hold; grant it in this step if it is free."""
        mine = run.work.holds or {}
        # The run has released the hold, but a child keeps it from passing on: the run has it again.
        if name in mine and mine[name].leaving:
            mine[name].leaving = False
            return mine[name]
        if name in mine:
            raise Refused(f"this run holds {name!r} or waits for it already; take it once, around everything")
        if len(mine) >= HOLDS:
            raise Refused(f"this run has {HOLDS} holds, the most it may have; let some go first")
        self._not_above(run, name)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if len(line.waiting) >= HOLD_WAITERS:
            raise Refused(f"{HOLD_WAITERS} runs wait for {name!r}; try again later")
        place = Place(run, name)
        run.work.stand_in_line(place)
        line.waiting[place] = None
        self._grant(name, line)
        return place

    @staticmethod
    def _not_above(run: LiveRun, name: str) -> None:
        """Refuse a hold that a run above has: the child would wait for its parent, which waits for the child."""
        above = run.ties.parent if not run.ties.detached else None
        while above is not None:
            if above.work.holds is not None and name in above.work.holds and above.work.holds[name].granted is not None:
                raise Refused(f"run {above.id}, which delegated this one, holds {name!r}: work under its hold")
            above = above.ties.parent if not above.ties.detached else None

    def take(self, place: Place) -> Hold:
        """Take a granted place. The caller has just seen that the run is current; the hold is its own until drained."""
        assert place.granted is not None, "only what was granted can be taken"
        place.taken = True
        return Hold(name=place.name, token=place.granted, unconfirmed=place.unconfirmed)

    def leave(self, place: Place, *, unconfirmed: bool = False) -> None:
        """Leave the line, or free the hold, and grant it to the next place in the same step."""
        # The place has left before.
        if (place.run.work.holds or {}).get(place.name) is not place:
            return
        assert place.run.work.holds is not None
        del place.run.work.holds[place.name]
        line = self._lines[place.name]
        line.waiting.pop(place, None)
        if line.holder is place:
            line.holder = None
            line.unconfirmed = place.run.id if unconfirmed else None if place.taken else place.unconfirmed
        place.woken.set()
        self._grant(place.name, line)

    def fall(self, work: Work) -> int:
        """Take a fallen run out of every line and grant; return how many holds it keeps until it is drained."""
        for place in list((work.holds or {}).values()):
            if not place.taken:
                self.leave(place)
        return len(work.holds or ())

    def drained(self, run: LiveRun, *, confirmed: bool) -> None:
        """Pass on the holds of a run that is drained, or whose drain ran out of time (not `confirmed`)."""
        for place in list((run.work.holds or {}).values()):
            self.leave(place, unconfirmed=not confirmed)

    def _grant(self, name: str, line: _Line) -> None:
        if line.holder is not None:
            return
        first = next(iter(line.waiting), None)
        if first is None:
            if line.unconfirmed is None:
                del self._lines[name]
            return
        del line.waiting[first]
        line.holder = first
        first.granted = self._numbers.token()
        first.unconfirmed = line.unconfirmed
        first.woken.set()
