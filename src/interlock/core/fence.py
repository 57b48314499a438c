"""The fence: is this run still current?

1. Current means: not fallen. One mark per run says so, and only `fall` sets it, once.
2. The mark is tested in the same synchronous step that admits an effect; there is no await between.
3. Generations guard what outlives memory (store writes, buffers, frames, hosts). A session's generation rises on
   every start and every fall, never goes back, and survives the session being forgotten.
"""

from interlock.core.errors import Stale
from interlock.core.names import Effect, RunId, SessionId
from interlock.core.outcome import Cause


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


class Generations:
    """A number per session that only rises, also across forgetting."""

    __slots__ = ("_floor", "_now")

    def __init__(self) -> None:
        self._now: dict[SessionId, int] = {}
        self._floor = 0  # no session that was forgotten stood higher than this

    def get(self, session: SessionId) -> int:
        """Return the session's generation; one never seen, or forgotten, stands at the floor."""
        return self._now.get(session, self._floor)

    def rise(self, session: SessionId) -> int:
        """Raise the session's generation by one and return it."""
        raised = self.get(session) + 1
        self._now[session] = raised
        return raised

    def restore(self, session: SessionId, stored: int) -> None:
        """Take over what the store remembers; never downwards."""
        self._now[session] = max(self.get(session), stored)

    def is_current(self, session: SessionId, generation: int) -> bool:
        """Return whether a generation is the session's present one."""
        return self._now.get(session) == generation

    def forget(self, session: SessionId) -> None:
        """Drop an idle session from memory without letting any number be given twice."""
        self._floor = max(self._floor, self._now.pop(session, 0))
