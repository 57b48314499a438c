"""How much the stores keep. Beyond a bound the oldest rows are forgotten, but never a run that has not ended.

Keys, tombstones and marks are bounded per principal, so that one principal cannot push out another's.
"""

LOG_EVENTS = 10_000  # per session
PASSING_EVENTS = 10_000  # deltas, typing and progress, per run that has not ended
RUNS_KEPT = 1_000  # ended runs per session, and children per tree
KEYS_KEPT = 10_000  # per principal
RUNLESS_KEPT = 1_000  # receipts of stops that ended detached processes only
STOPS_KEPT = 10_000  # keys of stops, per principal
TOMBSTONES_KEPT = 1_000  # per principal
MARKS_KEPT = 1_000  # per principal
