"""Puts the packages together: `open_control`, `asgi`, `interlock serve`."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from interlock.agent.bodies import Threads
from interlock.agent.bounds import SERVED
from interlock.agent.run import Agent
from interlock.config import Config
from interlock.core.errors import BadInput
from interlock.core.names import Strategy
from interlock.core.values import name_of, seconds_of, strategy_of
from interlock.hosts.driver import HostDriver
from interlock.hosts.finding import find_agent
from interlock.hosts.forked import ForkedHosts
from interlock.processes.base import ENVIRONMENT, Confinement, Processes
from interlock.processes.local import LocalProcesses
from interlock.runtime.approvals import Policy
from interlock.runtime.control import Control
from interlock.runtime.driver import Driver
from interlock.runtime.inline import InlineDriver
from interlock.runtime.settings import Settings
from interlock.stores.base import Store

if TYPE_CHECKING:
    from interlock.surfaces.gateway.gateway import Gateway

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
YOUNG_OBJECTS = 5_000  # made before they are collected
SQLITE = "sqlite:///"  # followed by a path: sqlite:///here is relative, sqlite:////var/lib/there absolute


@asynccontextmanager
async def open_control(
    agent: Agent | str,
    *,
    agents: Mapping[str, Agent | str] | None = None,
    driver: str | Driver = "inline",
    approval: str | Collection[str] | None = None,
    store: str | Store = "memory://",
    deadline: float | None = None,
    child_deadline: float | None = None,
    agent_deadlines: Mapping[str, float] | None = None,
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
    """Open a control that serves an agent; leaving the block ends every run as `shutdown`.

    `deadline` is for messages that bring none of their own. `child_deadline` bounds every child, and `agent_deadlines`
    every run of an agent, by its name in `agents`, or, for the served agent, by the name of its callable. No caller can
    lengthen these two.
    """
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
        child_deadline=seconds_of(
            child_deadline if child_deadline is not None else base.child_deadline, "child_deadline", None
        ),
        agent_deadlines=_agent_deadlines(
            agent_deadlines if agent_deadlines is not None else base.agent_deadlines, agent, agents or {}
        ),
        idle_limit=seconds_of(idle_limit if idle_limit is not None else base.idle_limit, "idle_limit", None),
        queue_limit=seconds_of(queue_limit if queue_limit is not None else base.queue_limit, "queue_limit", None),
    )
    policy = Policy(approval)
    kept = processes if processes is not None else LocalProcesses(confinement)
    driving = _driver(driver, agent, agents or {}, threads, kept)
    try:
        # The driver opens before the store: an agent that cannot be imported must leave no boot in the store.
        await driving.open()
        opened = _store(store)
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
        from interlock.stores.memory import MemoryStore  # noqa: PLC0415 - a program has one of the two

        return MemoryStore()
    if isinstance(store, str) and store.startswith(SQLITE) and len(store) > len(SQLITE):
        from interlock.stores.sqlite import SqliteStore  # noqa: PLC0415

        return SqliteStore(store.removeprefix(SQLITE))
    if isinstance(store, str) or not hasattr(store, "decide"):
        raise BadInput(f"no store {store!r}; use memory://, sqlite:///DIR, or a store object")
    return store


def _agent_deadlines(wanted: object, agent: Agent | str, agents: Mapping[str, Agent | str]) -> dict[str, float]:
    """Return the deadline of each agent that has one; the served agent is named by its callable."""
    if not isinstance(wanted, Mapping):
        raise BadInput("agent_deadlines= takes names of agents, each with its seconds: {'tester': 600}")
    own = agent.rpartition(":")[2] if isinstance(agent, str) else getattr(agent, "__name__", None)
    known = {**({} if own is None else {own: agent}), **agents}
    found: dict[str, float] = {}
    for name, value in wanted.items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise BadInput(f"no agent {name!r:.80} to give a deadline; there are {there}")
        limit = seconds_of(value, f"the deadline of agent {name!r:.80}", None)
        if limit is None:
            continue
        found[name] = limit
        if name == own and known[name] == agent:
            found[SERVED] = limit
    return found


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


def asgi(
    control: Control,
    *,
    data: str | Path,
    allow_hosts: Collection[str] = (),
    allow_origins: Collection[str] = (),
    name: str | None = None,
    stop_words: Collection[str] = (),
) -> Gateway:
    """Return the gateway of a control as an ASGI application, to be mounted in your own.

    `data` is the directory of its tokens (`interlock token --data`) and its audit. Hosts and origins other than
    loopback are refused unless they are named. `name` is what people call the agent, so that STOP NAME is a stop.
    `stop_words` are further messages that stop.
    """
    from interlock.access.audit import Audit  # noqa: PLC0415 - needs the extra `serve`
    from interlock.access.tokens import Access  # noqa: PLC0415
    from interlock.surfaces.gateway.gateway import Gateway  # noqa: PLC0415

    access = Access(Path(data))
    access.open()
    audit = Audit(access.directory / "audit.jsonl")
    return Gateway(
        control,
        access,
        audit,
        allow_hosts=allow_hosts,
        allow_origins=allow_origins,
        name=name,
        stop_words=stop_words,
    )


class Ready(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="event", tag="ready"):
    """The line that `interlock serve --json` prints once requests are accepted."""

    url: str
    page: str  # a URL that lets the operator's browser in, once and within the hour
    token_file: str
    grade: str

    def __repr__(self) -> str:
        return f"Ready(url={self.url!r})"


async def serve(config: Config, ready: Callable[[Ready], None]) -> None:
    """Serve an agent until a signal comes, and then end every run as `shutdown`; a second signal exits at once."""
    from interlock.access.rows import OPERATOR  # noqa: PLC0415
    from interlock.surfaces.listener import listen, url_of  # noqa: PLC0415

    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Until control is open a signal exits at once: there is no run to end, and while the agent is imported the loop
    # could not handle a signal.
    for number in ENDING:
        signal.signal(number, lambda number, _: os._exit(128 + number))
    listener = listen(config.host, config.port)
    # The server is imported while the zygote starts: each takes a tenth of a second.
    importing = loop.run_in_executor(None, _import_server)
    settings = Settings(drain_seconds=config.drain_seconds, grace_seconds=min(2.0, config.drain_seconds))
    confinement = Confinement(agent_user=config.agent_user, environment=(*ENVIRONMENT, *config.environment))
    processes = LocalProcesses(confinement, subreaper=True)
    opened = open_control(
        config.agent,
        agents={config.agent.rpartition(":")[2]: config.agent, **config.agents},
        driver=config.driver,
        approval=config.approval,
        store=f"{SQLITE}{config.data}",
        deadline=config.deadline,
        child_deadline=config.child_deadline,
        agent_deadlines=config.agent_deadlines,
        strategy=config.strategy,
        idle_limit=config.idle_limit,
        queue_limit=config.queue_limit,
        settings=settings,
        processes=processes,
    )
    async with opened as control:
        server = await importing
        for number in ENDING:
            loop.add_signal_handler(number, _end, number, asked)
        # Our own address with its port: a page from another port belongs to another program.
        here = () if config.host in ("0.0.0.0", "::") else (url_of(listener).partition("//")[2],)
        hosts = (*config.allow_hosts, *here)
        gateway = asgi(
            control,
            data=config.data,
            allow_hosts=hosts,
            allow_origins=config.allow_origins,
            name=config.name or config.agent.rpartition(":")[2],
            stop_words=config.stop_words,
        )
        url, code = url_of(listener), gateway.pair(OPERATOR, ())
        page = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        gateway.access.disk.tell_url(page)
        token_file, grade = str(gateway.access.token), await control.grade()
        served = Ready(url=url, page=f"{page}/#pair={code}", token_file=token_file, grade=grade)

        def started() -> None:
            # Everything imported and made so far stays: a full collection that went through it would hold the loop for
            # tens of milliseconds. An embedder's objects are not ours to freeze, so this is done here alone.
            gc.freeze()
            # Most objects of a run die with it. A collection every 700 objects, as is usual, would look at them before.
            gc.set_threshold(YOUNG_OBJECTS, 10, 10)
            ready(served)

        over = asyncio.Event()
        serving = loop.create_task(server.serve(gateway, listener, started, over), name="serve")
        await asyncio.wait((serving, loop.create_task(asked.wait())), return_when=asyncio.FIRST_COMPLETED)
        closing = loop.create_task(control.close(), name="close")
        await asyncio.wait((closing,), timeout=config.drain_seconds + settings.commit_seconds)
        await gateway.shut()
        over.set()
        await serving
        # If the bound has passed, what is left ends with this process.
        if not closing.done():
            os._exit(1)


def _import_server() -> ModuleType:
    import_module("interlock.stores.sqlite")
    import_module("anyio._backends._asyncio")  # anyio itself imports it at its first use, which would be the recovery's
    return import_module("interlock.surfaces.server")


def _end(number: int, asked: asyncio.Event) -> None:
    if asked.is_set():
        os._exit(128 + number)
    asked.set()
