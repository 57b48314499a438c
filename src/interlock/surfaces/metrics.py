"""The figures for Prometheus and the overview: one set, counted from events and receipts."""

import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from interlock.core.events import Correction, Ended, Event, ReceiptData
from interlock.core.names import EARLY, Drain
from interlock.runtime.control import Control
from interlock.surfaces.shapes import Hosts, Minute, Overview, Spread

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
MARKS = ("fenced", "ended", "drained")
MINUTES = 60


class Meters(Collector):
    """The figures of one gateway."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._registry = CollectorRegistry()
        self._runs = Counter("interlock_runs", "Runs by how they ended.", ["ending"], registry=self._registry)
        self._stops = Histogram(
            "interlock_stop_seconds",
            "Of early ends: from request to fence, from fence to public end, from fence to nothing left.",
            ["to"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._refused = Counter(
            "interlock_refused_effects", "Effects of fallen runs that were refused.", ["kind"], registry=self._registry
        )
        self._processes = Counter(
            "interlock_processes_ended", "Processes ended with their runs.", ["grade"], registry=self._registry
        )
        self._corrections = Counter(
            "interlock_corrections", "Endings that the store knew better.", registry=self._registry
        )
        self._unkept = Counter(
            "interlock_unkept_takeovers",
            "Runs ended by a message that the store then did not keep.",
            registry=self._registry,
        )
        for mark in MARKS:
            self._stops.labels(mark)  # makes the series exist while it is empty
        self._minutes: deque[tuple[int, dict[str, int]]] = deque(maxlen=MINUTES)
        self.connections = 0
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, read at this instant."""
        yield GaugeMetricFamily("interlock_queue_depth", "Messages that wait for a seat.", self._control.queued)
        yield GaugeMetricFamily("interlock_connections", "WebSocket connections.", self.connections)
        hosts = self._control.hosts
        if hosts is not None:
            told = CounterMetricFamily("interlock_hosts", "What became of agent hosts.", labels=["what"])
            for what in ("started", "reused", "killed"):
                told.add_metric([what], getattr(hosts, what))
            yield told

    def fenced(self, seconds: float) -> None:
        """Count a stop by the seconds from its request to its fence."""
        self._stops.labels("fenced").observe(max(0.0, seconds))

    def count(self, event: Event) -> None:
        """Count an event: endings, corrections and drained receipts."""
        match event.data:
            case Ended(outcome=outcome):
                self._runs.labels(outcome.ending).inc()
                self._unkept.inc(outcome.unkept)
                self._count_minute(int(event.at // 60) * 60, outcome.ending)
            case Correction(outcome=outcome):
                self._corrections.inc()
                self._unkept.inc(outcome.unkept)
            case ReceiptData(receipt=receipt) if (
                receipt.drain is not Drain.PENDING and receipt.session == event.session
            ):
                if receipt.cause in EARLY and receipt.fence_to_end_ms is not None:
                    self._stops.labels("ended").observe(receipt.fence_to_end_ms / 1000)
                if receipt.cause in EARLY and receipt.fence_to_drained_ms is not None:
                    self._stops.labels("drained").observe(receipt.fence_to_drained_ms / 1000)
                for kind, times in receipt.refused.items():
                    self._refused.labels(kind).inc(times)
                if receipt.processes.ended:
                    self._processes.labels(receipt.grade).inc(receipt.processes.ended)
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
            corrections=sum(_counts(self._corrections).values()),
            endings=_counts(self._runs),
            minutes=tuple(Minute(at=at, endings=dict(counts)) for at, counts in self._minutes if at > since),
            stops={mark: _spread(self._stops.labels(mark)) for mark in MARKS},
            refused=_counts(self._refused),
            processes=_counts(self._processes),
        )

    def text(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)


def _counts(counter: Counter) -> dict[str, int]:
    """Return a counter's figures by its one label."""
    samples = [sample for metric in counter.collect() for sample in metric.samples]
    return {"".join(each.labels.values()): int(each.value) for each in samples if each.name.endswith("_total")}


def _spread(histogram: Any) -> Spread:
    """Return a histogram's counts per bucket; Prometheus' own buckets are cumulative."""
    samples = [sample for metric in histogram.collect() for sample in metric.samples]
    below = [int(each.value) for each in samples if each.name.endswith("_bucket")]
    total = sum(each.value for each in samples if each.name.endswith("_sum"))
    counts = tuple(upper - lower for lower, upper in pairwise([0, *below]))
    return Spread(limits=SECONDS, counts=counts, count=below[-1], total_seconds=total)
