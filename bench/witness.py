"""Sees what gets out, beside the fence: it never asks the runtime what it refused."""

from collections import Counter
from dataclasses import dataclass, field, fields

from interlock import Event
from interlock.core.events import Ended, ReceiptData
from interlock.core.names import Drain, EventKind, RunId

OWN = (EventKind.MESSAGE.value, EventKind.ENDED.value)  # what control says of a run; all else is the run's effect


@dataclass(slots=True)
class Tally:
    """What was counted; the second group must stay 0."""

    stops: int = 0
    cut: int = 0  # stops that ended something; the others came after the end
    events: int = 0  # of runs, while they were current
    bodies: int = 0  # tool bodies begun
    refused: int = 0  # Stale, as the agents saw it

    events_late: Counter[str] = field(
        default_factory=Counter
    )  # of a run, by kind, after the stop that ended it returned
    bodies_late: int = 0  # begun after that
    events_sealed: int = 0  # of a run, after its terminal event
    acts_drained: int = 0  # of a permitted tool body, after the receipt said drained

    @property
    def untold(self) -> int:
        """Events of control's own, about a run whose stop had returned: it returned before the end was told."""
        return sum(self.events_late[kind] for kind in OWN)

    @property
    def admitted(self) -> int:
        """Effects that should not have been."""
        late = self.events_late.total() - self.untold
        return late + self.bodies_late + self.events_sealed + self.acts_drained

    def add(self, other: "Tally") -> None:
        """Add another tally to this one."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Witness:
    """Watches one session where the outlet hands events over, and the tools its agents call."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._over: set[RunId] = set()
        self._sealed: set[RunId] = set()
        self._drained: set[RunId] = set()

    def over(self, *runs: RunId) -> None:
        """A stop of these runs has returned."""
        self._over.update(runs)

    def put(self, event: Event) -> None:
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

    def _note_drained(self, event: Event) -> None:
        if isinstance(event.data, ReceiptData) and event.data.receipt.drain is Drain.OBSERVED:
            self._drained.update(run.id for run in event.data.receipt.runs)

    def begin(self, run: RunId) -> None:
        """A tool body begins."""
        self._tally.bodies += 1
        self._tally.bodies_late += run in self._over

    def act(self, run: RunId) -> None:
        """A tool body that was permitted goes on."""
        self._tally.acts_drained += run in self._drained

    def drop(self, run_id: RunId) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Nothing is held here."""
