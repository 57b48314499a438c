"""Where the rooms are wired together: `open_control`."""

import inspect
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from interlock.core.errors import BadInput, NotYet
from interlock.core.names import Strategy
from interlock.runtime.control import Control, _seconds, _strategy
from interlock.runtime.inline import Threads
from interlock.runtime.run import Agent
from interlock.runtime.settings import Settings
from interlock.stores.base import Store
from interlock.stores.memory import MemoryStore


@asynccontextmanager
async def open_control(
    agent: Agent,
    *,
    agents: Mapping[str, Agent] | None = None,
    store: str | Store = "memory://",
    deadline: float | None = None,
    strategy: str | None = None,
    admins: Collection[str] = (),
    readers: Collection[str] = (),
    idle_limit: float | None = None,
    queue_limit: float | None = None,
    settings: Settings | None = None,
    threads: Threads | None = None,
) -> AsyncIterator[Control]:
    """Open a control that serves an agent; leaving the block ends what runs as `shutdown`."""
    if not callable(agent) or not _is_async(agent):
        raise BadInput("an agent is one async callable: `async def agent(run, message)`")
    if agents:
        raise NotYet("agents= comes with delegation; until then serve one agent")
    if isinstance(admins, str) or isinstance(readers, str):
        raise BadInput("admins= and readers= take a list of names, not one text")
    base = settings or Settings()
    chosen = Settings(
        commit_seconds=base.commit_seconds,
        grace_seconds=base.grace_seconds,
        drain_seconds=base.drain_seconds,
        retry_seconds=base.retry_seconds,
        queue=base.queue,
        strategy=_strategy(strategy if strategy is not None else base.strategy, Strategy.INTERRUPT),
        deadline=_seconds(deadline if deadline is not None else base.deadline, "deadline", None),
        idle_limit=_seconds(idle_limit if idle_limit is not None else base.idle_limit, "idle_limit", None),
        queue_limit=_seconds(queue_limit if queue_limit is not None else base.queue_limit, "queue_limit", None),
    )
    opened = _store(store)
    control = Control(
        agent=agent,
        store=opened,
        boot=await opened.open(),
        settings=chosen,
        admins=admins,
        readers=readers,
        threads=threads,
    )
    try:
        yield control
    finally:
        await control.close()


def _store(store: str | Store) -> Store:
    if store == "memory://":
        return MemoryStore()
    if isinstance(store, str) or not hasattr(store, "decide"):
        raise BadInput(f"no store {store!r}; use memory://, or a store object")
    return store


def _is_async(agent: object) -> bool:
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
