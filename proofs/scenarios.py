"""Scenarios of our own: what a seed plays against the hostile kit, and the lives after the server died on the way.

The same seed plays the same schedule in any process. `interlock.testing` plays it, with the people, agents and
schedules that ship there.
"""

from collections.abc import Mapping
from random import Random

from interlock.agent.run import Agent
from interlock.hosts.driver import HostDriver
from interlock.stores.memory import MemoryStore
from interlock.testing.explore import (
    CHARGE_SECONDS,
    SETTINGS,
    Played,
    Scene,
    Theme,
    mode_of,
    perform,
    quiet_log,
)
from interlock.testing.hostile import BEHAVIOURS
from interlock.testing.loop import Mode, run_seeded
from interlock.testing.oracle import Oracle, Violation
from interlock.testing.threads import VirtualThreads
from proofs.hosts import VirtualHosts
from proofs.restart import Death, Life, Reaper

THEMES = (
    Theme(
        ("holder", "miser", "hasty", "mole", "mole"), ("send", "send", "stop", "reset", "wait"), (None, "queue"), "st"
    ),
    Theme(("listener", "listener", "asker"), ("send", "burst", "burst", "stop", "vanish"), ("steer", None, "queue")),
    Theme(
        ("reply", "polite", "tools"),
        ("burst", "burst", "send", "stop", "wait"),
        ("collect", "collect", "queue"),
        latencies=(0.0, 0.01, 0.05),
    ),
    Theme(("asker", "guarded", "gambler"), ("send", "stop", "wait", "reset")),
    Theme(("parent", "litter", "cuckoo", "orphan", "absentee"), latencies=(0.0, 0.001, 0.05, 0.05)),
    Theme(
        ("dawdle", "dawdle", "sleeper"),
        ("send", "wait", "wait", "stop"),
        ("queue", "queue", None),
        deadlines=(None, 0.002, 0.002, 0.05),
    ),
    Theme(
        ("never", "polite", "swallow_all"),
        ("vanish", "vanish", "stop", "twice", "overtake", "late"),
        latencies=(0.0, 0.001, 0.05),
    ),
)

PROCESSES = Theme(
    ("spawner", "daemon", "daemon", "leaver", "cruncher", "cruncher"),
    ("send", "send", "stop", "stop"),
    (None,),
    "s",
    (0.0, 0.0, 0.001),
    crowd=("alice", "alice"),
)
HOSTS = Theme(
    ("tools", "deaf", "listener", "listener", "swallow_one", "parallel"),
    ("send", "send", "burst", "burst", "stop", "stop"),
    (None, None, "steer", "queue"),
    "s",
    (0.0, 0.0, 0.001),
)
DELIVERIES = Theme(
    ("reply", "polite", "never", "tools", "parent"),
    ("redeliver", "redeliver", "redeliver", "program", "program", "send", "late", "stop"),
    (None, None, "queue", "steer"),
)
FOUNDING = Theme(
    ("polite", "never", "reply", "tools"),
    ("send", "send", "stop", "stop", "stop", "overtake", "late", "vanish"),
    (None, None, "queue", "collect"),
    "s",
    (0.0, 0.05, 0.05),
    crowd=("alice", "bob"),
    strained=True,
)  # the owner depends on messages that the store refuses
SHARED = Theme(
    ("polite", "never", "never", "chatter"),
    ("visit", "visit", "visit", "send", "stop"),
    (None, "queue", "queue"),
    "s",
    (0.0, 0.0, 0.001),
    deadlines=(None,),
    crowd=("alice", "alice"),
    readers=1.0,
)  # a session that its owner shares with somebody, and then does not any more
REPORTS = Theme(
    ("cuckoo", "nester", "nester", "listener", "polite"),
    ("send", "send", "stop", "reset", "wait", "wait", "program"),
    (None, None, "queue", "steer", "collect"),
    "s",
    (0.0, 0.001, 0.05),
)  # children that announce how they ended
OTHERS = tuple(name for name in BEHAVIOURS if name not in PROCESSES.behaviours)
PROCESS_SEEDS = 8  # every so many seeds play with processes
SHARED_SEEDS = 16  # every so many seeds a session is shared, and later not any more
REPORT_SEEDS = 16  # every so many seeds children announce how they ended, and in every other the server dies as well
FOUNDING_SEEDS = 16  # every so many seeds begin with a store in trouble
HOST_SEEDS = 8  # every so many seeds the agents run in hosts
DELIVERY_SEEDS = 8  # every so many seeds stops are delivered twice, and programs start something
DEATH_SEEDS = 8  # every so many seeds the server dies on the way, and is started again
DEATHS = 3  # in a row, at most


def play(seed: int, *, mode: Mode | None = None, deaths: bool = True) -> Played:
    """Play one seed; raises Violation, Stuck, or the error of whatever broke."""
    random = Random(seed)
    chosen = mode or mode_of(random)
    hosted: list[VirtualHosts] = []
    reapers: list[Reaper] = []

    def driver(agent: Agent, agents: Mapping[str, Agent], threads: VirtualThreads) -> HostDriver:
        hosted.append(VirtualHosts(agent, agents, random, threads))
        return HostDriver(hosted[0])

    def prepare(scene: Scene, oracle: Oracle, store: MemoryStore) -> None:
        if seed % DEATH_SEEDS == 2 or seed % (2 * REPORT_SEEDS) == 29:
            reapers.append(Reaper(oracle, store, Random(f"death {seed}")))
            reapers[0].wait(scene.keyed)

    theme = _theme(seed, random)
    in_hosts = driver if seed % HOST_SEEDS == 4 else None
    played = perform(seed, random, chosen, theme, driver=in_hosts, prepare=prepare)
    if hosted and hosted[0].broken is not None:
        raise Violation(hosted[0].broken)
    if deaths and reapers:
        with quiet_log():
            _live_again(seed, random, chosen, reapers[0].death)
    return played


def _theme(seed: int, random: Random) -> Theme:
    theme = Theme(tuple(random.sample(OTHERS, random.choice((1, 2, 2, 3)))))
    if random.random() < 0.6:
        theme = random.choice(THEMES)
    if seed % PROCESS_SEEDS == 6:
        theme = PROCESSES
    if seed % DELIVERY_SEEDS == 5:
        theme = DELIVERIES
    if seed % FOUNDING_SEEDS == 9:
        theme = FOUNDING
    if seed % SHARED_SEEDS == 1:
        theme = SHARED
    if seed % REPORT_SEEDS == 13:
        theme = REPORTS
    if seed % HOST_SEEDS == 4 and random.random() < 0.7:
        theme = HOSTS
    return theme


def _live_again(seed: int, random: Random, mode: Mode, death: Death | None) -> None:
    """Start on what survived, again and again as long as the server dies."""
    for life in range(1, DEATHS + 1):
        if death is None:
            return
        next_life = Life(death, random, SETTINGS)
        run_seeded(next_life.live, seed + life, mode=mode, charge=CHARGE_SECONDS)
        death = next_life.next
