"""Timings, and how they are kept clean.

1. The garbage collector is off while a clock runs and is called by hand between rounds, so that no side pays for the
   other's garbage.
2. If the kernel takes the core away for another process before or during a timing, the timing measures that process.
   Such timings are left out, on every side alike, and counted.
"""

import gc
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter


class Samples:
    """Timings of one thing, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.preempted = 0

    @contextmanager
    def clock(self, since: int | None = None) -> Iterator[None]:
        """Time a block; the timing counts if there were no further `switches` since then, or since it began."""
        before = switches() if since is None else since
        began = perf_counter()
        yield
        took = perf_counter() - began
        if switches() == before:
            self.seconds.append(took)
        else:
            self.preempted += 1

    def percentile(self, q: float) -> float:
        """Return the nearest-rank percentile, q in 0..100."""
        ranked = sorted(self.seconds)
        return ranked[max(0, math.ceil(len(ranked) * q / 100) - 1)]

    def spread(self) -> str:
        """Return p50, p99 and maximum in microseconds, and how many timings there are."""
        p50, p99, most = (self.percentile(q) * 1e6 for q in (50, 99, 100))
        left_out = f" ({self.preempted} left out)" if self.preempted else ""
        return f"p50 {p50:,.0f} us, p99 {p99:,.0f} us, max {most:,.0f} us, n {len(self.seconds):,}{left_out}"


def switches() -> int:
    """Return how often the kernel has taken the core away from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@contextmanager
def still() -> Iterator[None]:
    """Keep the collector away; objects that were alive before are frozen."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
