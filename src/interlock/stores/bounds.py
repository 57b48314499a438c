"""How much the stores keep; what is beyond is forgotten, oldest first, and never something that lives."""

LOG_EVENTS = 10_000  # kept per session
PASSING_EVENTS = 10_000  # deltas, typing and progress kept per run while it lives
RUNS_KEPT = 1_000  # ended runs kept per session, and children per tree
KEYS_KEPT = 10_000  # per principal, so that nobody can push out another's
RUNLESS_KEPT = 1_000  # receipts of stops that took detached processes only
STOPS_KEPT = 10_000  # keys of stops, per principal
TOMBSTONES_KEPT = 1_000  # per principal
MARKS_KEPT = 1_000  # per principal
