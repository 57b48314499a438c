"""A witness of what gets out past the fence; it never asks the runtime what was refused."""

from collections import Counter
from dataclasses import dataclass, field, fields

from interlock import Event
from interlock.client.door import Sink
from interlock.core.events import Ended, ReceiptData
from interlock.core.fence import Fence
from interlock.core.names import Drain, EventKind, RunId

OWN = (EventKind.MESSAGE.value, EventKind.ENDED.value)  # control's own events of a run; others are its effects


@dataclass(slots=True)
class Tally:
    """The counts; those of the second group must stay 0."""

    stops: int = 0
    cut: int = 0  # stops that ended a run; the others came after its end
    events: int = 0  # events of current runs
    bodies: int = 0  # tool bodies begun
    refused: int = 0  # Stale, as the agents saw it

    events_late: Counter[str] = field(default_factory=Counter)  # by kind: events of a run after its stop returned
    bodies_late: int = 0  # tool bodies begun after that
    events_sealed: int = 0  # events of a run after its terminal event
    acts_drained: int = 0  # acts of a permitted tool body after the receipt said drained

    @property
    def untold(self) -> int:
        """Return the count of control's own events of a run after its stop returned, which was then too early."""
        return sum(self.events_late[kind] for kind in OWN)

    @property
    def admitted(self) -> int:
        """Return the count of effects that the fence should have refused."""
        late = self.events_late.total() - self.untold
        return late + self.bodies_late + self.events_sealed + self.acts_drained

    def add(self, other: "Tally") -> None:
        """Add another tally to this one."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Witness(Sink):
    """Watches one session where the outlet hands events over, and the tools its agents call."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._over: set[RunId] = set()
        self._sealed: set[RunId] = set()
        self._drained: set[RunId] = set()

    def over(self, *runs: RunId) -> None:
        """Note that a stop of these runs has returned."""
        self._over.update(runs)

    def take(self, event: Event, source: Fence | None) -> bool:
        """Judge an event by what was known when it came out."""
        run = event.run_id
        if run is None:
            self._note_drained(event)
        elif run in self._over:
            self._tally.events_late[event.kind.value] += 1
        elif run in self._sealed:
            self._tally.events_sealed += 1
        else:
            self._tally.events += 1
            if isinstance(event.data, Ended):
                self._sealed.add(run)
        return True

    def _note_drained(self, event: Event) -> None:
        if isinstance(event.data, ReceiptData) and event.data.receipt.drain is Drain.OBSERVED:
            self._drained.update(run.id for run in event.data.receipt.runs)

    def begin(self, run: RunId) -> None:
        """Count a tool body that begins."""
        self._tally.bodies += 1
        self._tally.bodies_late += run in self._over

    def act(self, run: RunId) -> None:
        """Count an act of a permitted tool body after its run was drained."""
        self._tally.acts_drained += run in self._drained
