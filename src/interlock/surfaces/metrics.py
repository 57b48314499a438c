"""The figures for Prometheus and the overview: one set, counted from events and receipts.

Every event is counted in the step that publishes it, so counting is an addition to a number of Python's own. The
metrics of Prometheus are made of these when they are read.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from interlock.core.events import Correction, Ended, Event, ReceiptData
from interlock.core.names import EARLY, Drain
from interlock.runtime.control import Control
from interlock.surfaces.frames import Hosts, Minute, Overview, Spread

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


class Meters(Collector):
    """The figures of one gateway."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._runs: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._processes: Counter[str] = Counter()
        self._corrections = self._unkept = 0
        self._stops = {mark: _Histogram() for mark in MARKS}
        self._minutes: deque[tuple[int, dict[str, int]]] = deque(maxlen=MINUTES)
        self.connections = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, read at this instant."""
        yield _counted("interlock_runs", "Runs by how they ended.", "ending", self._runs)
        stops = HistogramMetricFamily(
            "interlock_stop_seconds",
            "Of early ends: from request to fence, from fence to public end, from fence to nothing left.",
            labels=["to"],
        )
        for mark, spread in self._stops.items():
            limits = [*map(str, SECONDS), "+Inf"]
            stops.add_metric([mark], list(zip(limits, accumulate(spread.counts), strict=True)), spread.total)
        yield stops
        yield _counted("interlock_refused_effects", "Effects of fallen runs that were refused.", "kind", self._refused)
        yield _counted("interlock_processes_ended", "Processes ended with their runs.", "grade", self._processes)
        yield CounterMetricFamily("interlock_corrections", "Endings that the store knew better.", self._corrections)
        words = "Runs ended by a message that the store then did not keep."
        yield CounterMetricFamily("interlock_unkept_takeovers", words, self._unkept)
        yield GaugeMetricFamily("interlock_queue_depth", "Messages that wait for a seat.", self._control.queued)
        yield GaugeMetricFamily("interlock_connections", "WebSocket connections.", self.connections)
        if (hosts := self._control.hosts) is not None:
            became = {what: getattr(hosts, what) for what in ("started", "reused", "killed")}
            yield _counted("interlock_hosts", "What became of agent hosts.", "what", became)

    def fenced(self, seconds: float) -> None:
        """Count a stop by the seconds from its request to its fence."""
        self._stops["fenced"].add(max(0.0, seconds))

    def count(self, event: Event) -> None:
        """Count an event: endings, corrections and drained receipts."""
        match event.data:
            case Ended(outcome=outcome):
                self._runs[outcome.ending] += 1
                self._unkept += outcome.unkept
                self._count_minute(int(event.at // 60) * 60, outcome.ending)
            case Correction(outcome=outcome):
                self._corrections += 1
                self._unkept += outcome.unkept
            case ReceiptData(receipt=receipt) if (
                receipt.drain is not Drain.PENDING and receipt.session == event.session
            ):
                if receipt.cause in EARLY and receipt.fence_to_end_ms is not None:
                    self._stops["ended"].add(receipt.fence_to_end_ms / 1000)
                if receipt.cause in EARLY and receipt.fence_to_drained_ms is not None:
                    self._stops["drained"].add(receipt.fence_to_drained_ms / 1000)
                self._refused.update(receipt.refused)
                if receipt.processes.ended:
                    self._processes[receipt.grade] += receipt.processes.ended
            case _:
                pass

    def _count_minute(self, minute: int, ending: str) -> None:
        # A clock that was set back counts into the latest minute, so that the minutes stay in order.
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, {}))
        counts = self._minutes[-1][1]
        counts[ending] = counts.get(ending, 0) + 1

    def overview(self, *, grade: str, uptime_seconds: float) -> Overview:
        """Return the same figures for the overview."""
        hosts = self._control.hosts
        since = time.time() - MINUTES * 60
        return Overview(
            grade=grade,
            uptime_seconds=uptime_seconds,
            connections=self.connections,
            queued=self._control.queued,
            hosts=None if hosts is None else Hosts(started=hosts.started, reused=hosts.reused, killed=hosts.killed),
            corrections=self._corrections,
            endings=dict(self._runs),
            minutes=tuple(Minute(at=at, endings=dict(counts)) for at, counts in self._minutes if at > since),
            stops={mark: spread.told() for mark, spread in self._stops.items()},
            refused=dict(self._refused),
            processes=dict(self._processes),
        )

    def text(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)


def _counted(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    """Return a counter with one label."""
    metric = CounterMetricFamily(name, words, labels=[label])
    for value, count in counts.items():
        metric.add_metric([value], count)
    return metric
