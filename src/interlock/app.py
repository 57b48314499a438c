"""Where the rooms are wired together: `open_control`."""

import dataclasses
import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from interlock.core.errors import BadInput
from interlock.core.names import Strategy
from interlock.hosts.driver import HostDriver
from interlock.hosts.finding import find_agent
from interlock.hosts.forked import ForkedHosts
from interlock.processes.base import Confinement, Processes
from interlock.processes.local import LocalProcesses
from interlock.runtime.approvals import Policy
from interlock.runtime.control import Control
from interlock.runtime.driver import Driver
from interlock.runtime.inline import Threads
from interlock.runtime.port import InlineDriver
from interlock.runtime.run import Agent
from interlock.runtime.settings import Settings
from interlock.runtime.values import name_of, seconds_of, strategy_of
from interlock.stores.base import Store
from interlock.stores.memory import MemoryStore
from interlock.stores.sqlite import SqliteStore

SQLITE = "sqlite:///"  # and a path, as other libraries write it: sqlite:///here, sqlite:////var/lib/there


@asynccontextmanager
async def open_control(
    agent: Agent | str,
    *,
    agents: Mapping[str, Agent | str] | None = None,
    driver: str | Driver = "inline",
    approval: str | Collection[str] | None = None,
    store: str | Store = "memory://",
    deadline: float | None = None,
    strategy: str | None = None,
    admins: Collection[str] = (),
    readers: Collection[str] = (),
    idle_limit: float | None = None,
    queue_limit: float | None = None,
    settings: Settings | None = None,
    threads: Threads | None = None,
    confinement: Confinement | None = None,
    processes: Processes | None = None,
) -> AsyncIterator[Control]:
    """Open a control that serves an agent; leaving the block ends what runs as `shutdown`."""
    if os.environ.get("INTERLOCK_WORKER") == str(os.getpid()):
        raise BadInput(
            "this is a worker or a host, which imports your module to find a tool or the agent; "
            "open control under `if __name__ == '__main__':`"
        )
    if agents is not None and not isinstance(agents, Mapping):
        raise BadInput("agents= takes names and agents: {'tester': tester}")
    for name in agents or {}:
        name_of(name, "an agent's name")
    if isinstance(admins, str) or isinstance(readers, str):
        raise BadInput("admins= and readers= take a list of names, not one text")
    base = settings or Settings()
    chosen = dataclasses.replace(
        base,
        strategy=strategy_of(strategy if strategy is not None else base.strategy) or Strategy.INTERRUPT,
        deadline=seconds_of(deadline if deadline is not None else base.deadline, "deadline", None),
        idle_limit=seconds_of(idle_limit if idle_limit is not None else base.idle_limit, "idle_limit", None),
        queue_limit=seconds_of(queue_limit if queue_limit is not None else base.queue_limit, "queue_limit", None),
    )
    policy = Policy(approval)
    opened = _store(store)
    kept = processes if processes is not None else LocalProcesses(confinement)
    driving = _driver(driver, agent, agents or {}, threads, kept)
    try:
        await driving.open()  # first: an agent that cannot be imported has nothing to do with the store
        boot = await opened.open()
    except BaseException:
        await driving.close()
        await kept.close()
        raise
    try:
        control = Control(
            driver=driving,
            policy=policy,
            store=opened,
            boot=boot,
            settings=chosen,
            admins=admins,
            readers=readers,
            processes=kept,
        )
    except BaseException:
        await opened.close(clean=opened.clean)
        await driving.close()
        await kept.close()
        raise
    try:
        await control.recover()
        yield control
    finally:
        await control.close()


def _store(store: str | Store) -> Store:
    if store == "memory://":
        return MemoryStore()
    if isinstance(store, str) and store.startswith(SQLITE) and len(store) > len(SQLITE):
        return SqliteStore(store.removeprefix(SQLITE))
    if isinstance(store, str) or not hasattr(store, "decide"):
        raise BadInput(f"no store {store!r}; use memory://, sqlite:///DIR, or a store object")
    return store


def _driver(
    driver: str | Driver,
    agent: Agent | str,
    agents: Mapping[str, Agent | str],
    threads: Threads | None,
    processes: Processes,
) -> Driver:
    if not isinstance(driver, str):
        return driver
    if driver == "host":
        if not isinstance(processes, LocalProcesses):
            raise BadInput("driver='host' needs processes of this machine; leave processes= out")
        return HostDriver(ForkedHosts(agent, agents, processes))
    if driver != "inline":
        raise BadInput(f"no driver {driver!r:.40}; use 'inline' (in this loop) or 'host' (in a process of its own)")
    return InlineDriver(find_agent(agent), {name: find_agent(each) for name, each in agents.items()}, threads)
