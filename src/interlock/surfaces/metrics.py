"""What Prometheus is told. Counted from events and receipts, so that it says what everybody else is told."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from interlock.core.events import Correction, Ended, Event, Proof
from interlock.core.names import EARLY, Drain
from interlock.runtime.control import Control

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


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
        self.connections = 0
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read what is so now."""
        yield GaugeMetricFamily("interlock_queue_depth", "Messages that wait for a seat.", self._control.queued)
        yield GaugeMetricFamily("interlock_connections", "WebSocket connections.", self.connections)
        hosts = self._control.hosts
        if hosts is not None:
            told = CounterMetricFamily("interlock_hosts", "What became of agent hosts.", labels=["what"])
            for what in ("started", "reused", "killed"):
                told.add_metric([what], getattr(hosts, what))
            yield told

    def fenced(self, seconds: float) -> None:
        """A request that stops was read so long before its fence."""
        self._stops.labels("fenced").observe(max(0.0, seconds))

    def count(self, event: Event) -> None:
        """Count what an event tells."""
        match event.data:
            case Ended(outcome=outcome):
                self._runs.labels(outcome.ending).inc()
            case Correction():
                self._corrections.inc()
            case Proof(receipt=receipt) if receipt.drain is not Drain.PENDING and receipt.session == event.session:
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

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)
