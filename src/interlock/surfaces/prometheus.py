"""The figures of a gateway as Prometheus reads them. Only a scrape imports this: the library weighs a megabyte."""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from interlock.core.answers import Figures
from interlock.surfaces.metrics import SECONDS, Meters


def text_of(meters: Meters, figures: Figures) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Collected(meters, figures))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, meters: Meters, figures: Figures) -> None:
        self._meters, self._figures = meters, figures

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, read at this instant."""
        meters = self._meters
        yield _counted("interlock_runs", "Runs by how they ended.", "ending", meters.runs)
        stops = HistogramMetricFamily(
            "interlock_stop_seconds",
            "Of early ends: from request to fence, from fence to public end, from fence to nothing left.",
            labels=["to"],
        )
        for mark, spread in meters.stops.items():
            limits = [*map(str, SECONDS), "+Inf"]
            stops.add_metric([mark], list(zip(limits, accumulate(spread.counts), strict=True)), spread.total)
        yield stops
        yield _counted("interlock_refused_effects", "Effects of fallen runs that were refused.", "kind", meters.refused)
        yield _counted("interlock_processes_ended", "Processes ended with their runs.", "grade", meters.processes)
        yield CounterMetricFamily("interlock_corrections", "Endings that the store knew better.", meters.corrections)
        words = "Runs ended by a message that the store then did not keep."
        yield CounterMetricFamily("interlock_unkept_takeovers", words, meters.unkept)
        yield GaugeMetricFamily("interlock_queue_depth", "Messages that wait for a seat.", self._figures.queued)
        yield GaugeMetricFamily("interlock_connections", "WebSocket connections.", meters.connections)
        if (hosts := self._figures.hosts) is not None:
            became = {what: getattr(hosts, what) for what in ("started", "reused", "killed")}
            yield _counted("interlock_hosts", "What became of agent hosts.", "what", became)


def _counted(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    """Return a counter with one label."""
    metric = CounterMetricFamily(name, words, labels=[label])
    for value, count in counts.items():
        metric.add_metric([value], count)
    return metric
