"""Named holds: one holder at a time, in the order of asking.

1. A place in a line is granted, then taken by its waiter in the step that sees the run current. A grant that was not
   taken passes on at once when its run falls; one that was taken is kept until nothing of the run is left.
2. Everything here is synchronous, and whoever leaves passes the hold on in the same step: no grant is lost or doubled.
3. Tokens only rise: hand yours to whatever you write to, and let that refuse a lower one than it has seen.
"""

from __future__ import annotations

import asyncio

import msgspec

from interlock.core.errors import Refused
from interlock.core.names import RunId
from interlock.runtime.live import LiveRun
from interlock.runtime.numbers import Numbers
from interlock.runtime.settings import HOLD_WAITERS, HOLDS


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold as its holder sees it. `unconfirmed`: a run that had it before was not seen to be gone."""

    name: str
    token: int
    unconfirmed: RunId | None = None


class Place:
    """A run's place in the line for a hold."""

    __slots__ = ("granted", "leaving", "name", "run", "taken", "unconfirmed", "woken")

    def __init__(self, run: LiveRun, name: str) -> None:
        self.run = run
        self.name = name
        self.granted: int | None = None  # the token
        self.taken = False
        self.leaving = False  # as soon as a child that may work under it is gone
        self.unconfirmed: RunId | None = None
        self.woken = asyncio.Event()  # granted, or out of the line


class _Line:
    __slots__ = ("holder", "unconfirmed", "waiting")

    def __init__(self) -> None:
        self.holder: Place | None = None
        self.waiting: dict[Place, None] = {}  # a dict: leaving from the middle costs nothing
        self.unconfirmed: RunId | None = None


class Holds:
    """Every hold of this control."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._lines: dict[str, _Line] = {}

    def enter(self, run: LiveRun, name: str) -> Place:
        """Put a run in the line for a hold; if the hold is free it is granted in this step."""
        if run.holds is None:
            run.holds = {}
        if name in run.holds and run.holds[name].leaving:
            run.holds[name].leaving = False  # it was about to let go, and has not yet
            return run.holds[name]
        if name in run.holds:
            raise Refused(f"this run holds {name!r} or waits for it already; take it once, around everything")
        if len(run.holds) >= HOLDS:
            raise Refused(f"this run has {HOLDS} holds, the most it may have; let some go first")
        self._not_above(run, name)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if len(line.waiting) >= HOLD_WAITERS:
            raise Refused(f"{HOLD_WAITERS} runs wait for {name!r}; try again later")
        place = run.holds[name] = Place(run, name)
        line.waiting[place] = None
        self._grant(name, line)
        return place

    @staticmethod
    def _not_above(run: LiveRun, name: str) -> None:
        """A child that waits for what its parent holds would wait for ever, since the parent waits for it."""
        above = run.parent if not run.detached else None
        while above is not None:
            if above.holds is not None and name in above.holds and above.holds[name].granted is not None:
                raise Refused(f"run {above.id}, which delegated this one, holds {name!r}: work under its hold")
            above = above.parent if not above.detached else None

    def take(self, place: Place) -> Hold:
        """The waiter has seen its grant and its run is current: the hold is its own until the run is gone."""
        assert place.granted is not None, "only what was granted can be taken"
        place.taken = True
        return Hold(name=place.name, token=place.granted, unconfirmed=place.unconfirmed)

    def leave(self, place: Place, *, unconfirmed: bool = False) -> None:
        """Leave the line, or let the hold go, and pass it on in the same step."""
        if (place.run.holds or {}).get(place.name) is not place:
            return  # it left before
        assert place.run.holds is not None
        del place.run.holds[place.name]
        line = self._lines[place.name]
        line.waiting.pop(place, None)
        if line.holder is place:
            line.holder = None
            line.unconfirmed = place.run.id if unconfirmed else None if place.taken else place.unconfirmed
        place.woken.set()
        self._grant(place.name, line)

    def fall(self, run: LiveRun) -> int:
        """A run falls: it leaves the lines and what it has not taken; return how many holds it keeps until drained."""
        for place in list((run.holds or {}).values()):
            if not place.taken:
                self.leave(place)
        return len(run.holds or ())

    def drained(self, run: LiveRun, *, confirmed: bool) -> None:
        """Nothing is left of a run, or a bound ran out: its holds pass on."""
        for place in list((run.holds or {}).values()):
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
        first.granted = self._numbers.position()
        first.unconfirmed = line.unconfirmed
        first.woken.set()
