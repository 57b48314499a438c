"""The fence: is this run still current?

1. Current means: not fallen. One mark per run says so, and only `fall` sets it, once.
2. The mark is tested in the same synchronous step that admits an effect; there is no await between.
3. Generations guard what outlives memory (store writes, buffers, frames, hosts). A session's generation rises on
   every start and every fall, never goes back, and survives the session being forgotten.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from interlock.core.errors import Stale
from interlock.core.names import Effect, RunId, SessionId
from interlock.core.outcome import Cause

Key = TypeVar("Key", bound=Hashable)


class Fence:
    """The one mark of a run, and the count of what it turned away."""

    __slots__ = ("cause", "refused", "run_id")

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.cause: Cause | None = None  # the mark: set by `fall`, never cleared
        self.refused: dict[Effect, int] | None = None  # made lazily: most runs refuse nothing

    def fall(self, cause: Cause) -> None:
        """Set the mark. The first cause stands; a second call is a defect in the caller."""
        if self.cause is not None:
            raise AssertionError(f"run {self.run_id} fell twice")
        self.cause = cause

    def check(self, effect: Effect) -> None:
        """Let an effect of a current run pass; refuse, count and name any other."""
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
    """Say why an effect was refused, and what to watch instead."""
    if cause.superseded_by is not None:
        return f"{effect} refused: run {run_id} was superseded by {cause.superseded_by}; watch that one instead"
    by = f" by {cause.by}" if cause.by else ""
    return f"{effect} refused: run {run_id} has ended ({cause.ending}{by}); let Stale pass"


class Generations(Generic[Key]):
    """A number per key that only rises. Whoever is given one may ask, until the next, whether it is still the present.

    `rise` gives a key's next number, and what was given before is current no more, from that step on. Only a number
    that `rise` gave can be current. `forget` keeps memory bounded: of a forgotten key no number is current, and none
    that it ever had is given again. The numbers of one key have holes and two keys may have the same.

    Ask in the same step that acts: no await between, and among threads one lock around both.
    """

    __slots__ = ("_floor", "_now")

    def __init__(self) -> None:
        self._now: dict[Key, int] = {}
        self._floor = 0  # no key that was forgotten stood higher than this

    def get(self, key: Key) -> int:
        """Return where a key stands; one never seen, or forgotten, stands at the floor."""
        return self._now.get(key, self._floor)

    def rise(self, key: Key) -> int:
        """Give the key its next number, and return it."""
        raised = self.get(key) + 1
        self._now[key] = raised
        return raised

    def is_current(self, key: Key, generation: int | None) -> bool:
        """Return whether a number is the key's present one; of a key that is not here, and of None, it is not.

        What merely equals it (True, 1.0) was never given: whoever has such a thing has mixed something up.
        """
        return type(generation) is int and self._now.get(key) == generation

    def forget(self, key: Key) -> None:
        """Drop a key from memory without letting any number be given twice."""
        self._floor = max(self._floor, self._now.pop(key, 0))


class StoredGenerations(Generations[SessionId]):
    """Those of sessions, which a store remembers beyond memory."""

    __slots__ = ()

    def restore(self, session: SessionId, stored: int) -> None:
        """Take over what the store remembers; never downwards.

        A fall raises the number as a start does, so a number that comes back is one that no run holds.
        """
        self._now[session] = max(self.get(session), stored)
