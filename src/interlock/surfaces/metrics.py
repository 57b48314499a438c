"""The figures for Prometheus and the overview: one set, counted from events and receipts.

Every event is counted in the step that publishes it, so counting is an addition to a number of Python's own. The
metrics of Prometheus are made of these when they are read (surfaces/prometheus.py).
"""

import time
from bisect import bisect_left
from collections import Counter, deque

from interlock.core.answers import Figures
from interlock.core.events import Correction, Ended, Event, ReceiptData
from interlock.core.names import EARLY, Drain
from interlock.protocol.frames import Hosts, Minute, Overview, Spread

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
MARKS = ("fenced", "ended", "drained")
MINUTES = 60


class _Histogram:
    """How many took up to each of SECONDS, and last how many took longer."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds

    def told(self) -> Spread:
        counts = tuple(self.counts)
        return Spread(limits=SECONDS, counts=counts, count=sum(counts), total_seconds=self.total)


class Meters:
    """The figures of one gateway."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.processes: Counter[str] = Counter()
        self.corrections = self.unkept = 0
        self.stops = {mark: _Histogram() for mark in MARKS}
        self._minutes: deque[tuple[int, dict[str, int]]] = deque(maxlen=MINUTES)
        self.connections = 0

    def fenced(self, seconds: float) -> None:
        """Count a stop by the seconds from its request to its fence."""
        self.stops["fenced"].add(max(0.0, seconds))

    def count(self, event: Event) -> None:
        """Count an event: endings, corrections and drained receipts."""
        match event.data:
            case Ended(outcome=outcome):
                self.runs[outcome.ending] += 1
                self.unkept += outcome.unkept
                self._count_minute(int(event.at // 60) * 60, outcome.ending)
            case Correction(outcome=outcome):
                self.corrections += 1
                self.unkept += outcome.unkept
            case ReceiptData(receipt=receipt) if (
                receipt.drain is not Drain.PENDING and receipt.session == event.session
            ):
                if receipt.cause in EARLY and receipt.fence_to_end_ms is not None:
                    self.stops["ended"].add(receipt.fence_to_end_ms / 1000)
                if receipt.cause in EARLY and receipt.fence_to_drained_ms is not None:
                    self.stops["drained"].add(receipt.fence_to_drained_ms / 1000)
                self.refused.update(receipt.refused)
                if receipt.processes.ended:
                    self.processes[receipt.grade] += receipt.processes.ended
            case _:
                pass

    def _count_minute(self, minute: int, ending: str) -> None:
        # A clock that was set back counts into the latest minute, so that the minutes stay in order.
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, {}))
        counts = self._minutes[-1][1]
        counts[ending] = counts.get(ending, 0) + 1

    def overview(self, figures: Figures, *, uptime_seconds: float) -> Overview:
        """Return the same figures for the overview."""
        hosts = figures.hosts
        since = time.time() - MINUTES * 60
        return Overview(
            grade=figures.grade,
            uptime_seconds=uptime_seconds,
            connections=self.connections,
            queued=figures.queued,
            hosts=None if hosts is None else Hosts(started=hosts.started, reused=hosts.reused, killed=hosts.killed),
            corrections=self.corrections,
            endings=dict(self.runs),
            minutes=tuple(Minute(at=at, endings=dict(counts)) for at, counts in self._minutes if at > since),
            stops={mark: spread.told() for mark, spread in self.stops.items()},
            refused=dict(self.refused),
            processes=dict(self.processes),
        )

    def text(self, figures: Figures) -> bytes:
        """Return the text that Prometheus reads."""
        from interlock.surfaces.prometheus import text_of  # noqa: PLC0415 - nobody may ever ask

        return text_of(self, figures)
