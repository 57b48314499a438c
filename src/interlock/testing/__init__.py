"""The test kit: a loop with seeded schedules, a judge, and hostile agents and tools."""

from interlock.testing.explore import Played, check_agent, play
from interlock.testing.hostile import BEHAVIOURS, Kit
from interlock.testing.loop import Mode, SeededLoop, Stuck, ordered_anyio, run_seeded
from interlock.testing.oracle import Oracle, Violation
from interlock.testing.processes import VirtualProcesses
from interlock.testing.threads import VirtualThreads

__all__ = [
    # judge an agent of yours
    "Played",
    "check_agent",
    "play",
    # the parts
    "BEHAVIOURS",
    "Kit",
    "Oracle",
    "Violation",
    "VirtualProcesses",
    "VirtualThreads",
    # the loop
    "Mode",
    "SeededLoop",
    "Stuck",
    "ordered_anyio",
    "run_seeded",
]
