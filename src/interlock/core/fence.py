"""The fence: is this run still current?

1. Current means: not fallen. Each run has one mark for that, and only `Fence.fall` sets it, once.
2. The code that admits an effect tests the mark in the same synchronous step. With an await between the test and the
   effect, a stop could be acknowledged in between, and the effect would follow it.
3. Store writes, buffered output, frames and hosts can outlive the run's object in memory, where the mark is. So each
   carries a generation of its session, and an old number shows that it is old. A session's generation rises on every
   start and on every fall, and never goes back. If only early endings raised it, late output of a completed run would
   pass as its successor's.
4. Control keeps one number, the floor: the highest generation of any session that it has dropped from memory. A session
   that is loaded again starts at the floor, or at the stored number if that is higher. So no session gets the same
   number twice, and memory does not grow with the number of sessions ever seen.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from interlock.core.errors import Stale
from interlock.core.names import Effect, RunId, SessionId
from interlock.core.outcome import Cause

Key = TypeVar("Key", bound=Hashable)


class Fence:
    """The one mark of a run, and the count of the effects it refused."""

    __slots__ = ("cause", "refused", "run_id")

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.cause: Cause | None = None  # the mark: set by `fall`, never cleared
        self.refused: dict[Effect, int] | None = None  # None while nothing was refused, as in most runs

    def fall(self, cause: Cause) -> None:
        """Set the mark. The first cause stands; a second call is a bug in the caller."""
        if self.cause is not None:
            raise AssertionError(f"run {self.run_id} fell twice")
        self.cause = cause

    def check(self, effect: Effect) -> None:
        """Return if the run is current; otherwise count the refused effect and raise Stale."""
        if self.cause is not None:
            raise self.refuse(effect)

    def refuse(self, effect: Effect) -> Stale:
        """Count a refused effect and return the Stale to raise."""
        if self.refused is None:
            self.refused = {}
        self.refused[effect] = self.refused.get(effect, 0) + 1
        assert self.cause is not None
        return Stale(describe(self.run_id, self.cause, effect))


def describe(run_id: RunId, cause: Cause, effect: Effect) -> str:
    """Return why an effect was refused, and what to do instead."""
    if cause.superseded_by is not None:
        return f"{effect} refused: run {run_id} was superseded by {cause.superseded_by}; watch that one instead"
    by = f" by {cause.by}" if cause.by else ""
    return f"{effect} refused: run {run_id} has ended ({cause.ending}{by}); do not catch Stale"


class Generations(Generic[Key]):
    """A number per key that only rises; `is_current` says whether a number is still the latest of its key.

    `rise` gives a key its next number, and from that step on the numbers given before are not current. Only a number
    that `rise` returned, or `StoredGenerations.restore` set, can be current. `forget` bounds the memory: no number of a
    forgotten key is current, and none of its numbers is given again. The numbers of one key may have holes, and two
    keys may have the same number.

    Ask `is_current` in the same step that acts on the answer: no await between, and with threads one lock around both.
    """

    __slots__ = ("_floor", "_now")

    def __init__(self) -> None:
        self._now: dict[Key, int] = {}
        self._floor = 0  # the highest number that any forgotten key had

    def get(self, key: Key) -> int:
        """Return a key's number; a key never seen, or forgotten, has the floor."""
        return self._now.get(key, self._floor)

    def rise(self, key: Key) -> int:
        """Give a key its next number, and return that."""
        raised = self.get(key) + 1
        self._now[key] = raised
        return raised

    def is_current(self, key: Key, generation: int | None) -> bool:
        """Return whether `generation` is the key's latest number; None, and any number of a forgotten key, is not.

        A value that merely equals the number (True, 1.0) is not current: a generation is an int.
        """
        return type(generation) is int and self._now.get(key) == generation

    def forget(self, key: Key) -> None:
        """Drop a key from memory without letting any number be given twice."""
        self._floor = max(self._floor, self._now.pop(key, 0))


class StoredGenerations(Generations[SessionId]):
    """The generations of sessions, which a store keeps as well."""

    __slots__ = ()

    def restore(self, session: SessionId, stored: int) -> None:
        """Raise a session's number to the stored one; never lower it.

        Every fall raised the number above that of the run that fell. So restoring the number makes no fallen run
        current again.
        """
        self._now[session] = max(self.get(session), stored)
