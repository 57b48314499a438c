"""Timings: percentiles of what was taken, and a collector that keeps out of it.

The garbage collector is off while a clock runs and is called by hand between rounds, so that no side pays for the
other's garbage.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager


def percentile(samples: list[float], q: float) -> float:
    """Return the nearest-rank percentile, q in 0..100."""
    ranked = sorted(samples)
    return ranked[max(0, math.ceil(len(ranked) * q / 100) - 1)]


def spread(seconds: list[float]) -> str:
    """Return p50, p99 and maximum in microseconds."""
    p50, p99, most = (percentile(seconds, q) * 1e6 for q in (50, 99, 100))
    return f"p50 {p50:,.0f} us, p99 {p99:,.0f} us, max {most:,.0f} us, n {len(seconds):,}"


@contextmanager
def still() -> Iterator[None]:
    """Keep the collector away; what was alive before is frozen."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
