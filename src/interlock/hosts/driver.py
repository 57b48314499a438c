"""The host driver: agents run in processes of their own, one for each session, kept warm between its turns.

1. Control imports no agent code. It knows an agent by name only.
2. A session has one host. The host takes the session's next turn if the last turn left it clean; otherwise the next
   turn gets the spare, or a new host.
3. Idle hosts are bounded in number and age. A child's host is not kept.
4. One spare is forked and greeted before any session needs it. It belongs to no session until one takes it, and its
   leaf has a name of its own for that reason.

A takeover follows its stop at once, when the old host has often not settled yet. The next turn waits PATIENCE_SECONDS
for it, since a polite host settles by then and is worth keeping. After that the turn takes the spare, and the late host
is killed when it settles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import Protocol

from interlock.agent.message import Message
from interlock.agent.order import SpawnFailed
from interlock.core.answers import HostsInfo
from interlock.core.errors import BadInput
from interlock.core.names import ErrorKind, SessionId
from interlock.hosts import link
from interlock.hosts.turn import Cut, Host, HostTurn
from interlock.runtime.driver import AgentFailed
from interlock.runtime.handlers import Acting
from interlock.runtime.live import RUN_SESSION, LiveRun

log = logging.getLogger("interlock")

IDLE_HOSTS = 64
IDLE_SECONDS = 600.0
PATIENCE_SECONDS = 0.01  # the wait for a session's last host to settle
CLOSE_SECONDS = 3.0
SPARE_SECONDS = 0.05  # from the use of one spare to the start of the next
ATTEMPTS = 3
RETRY_SECONDS = 0.02


class Hosts(Protocol):
    """Starts hosts."""

    names: tuple[str, ...]  # the agents that a run may delegate to
    cold: str | None  # why hosts cannot be forked warm

    async def open(self) -> None:
        """Import the agents, or raise what is wrong with them."""
        ...

    async def start(self) -> Host:
        """Start a host that is ready for a turn, or raise SpawnFailed."""
        ...

    async def close(self) -> None:
        """End the zygote."""
        ...


class HostDriver:
    """Runs agents in hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.names = hosts.names
        self._idle: OrderedDict[SessionId, Host] = OrderedDict()
        self._timers: dict[Host, asyncio.TimerHandle] = {}
        self._busy: dict[HostTurn, Host] = {}
        self._last: dict[SessionId, HostTurn] = {}  # the last turn of each session, until it has settled
        self._spare: Host | None = None
        self._sparing: asyncio.Task[None] | None = None
        self._closed = False
        self._started = self._reused = self._killed = 0

    @property
    def info(self) -> HostsInfo:
        """The state of the hosts, and how many were started, reused and killed so far."""
        return HostsInfo(
            warm=self._hosts.cold is None,
            why=self._hosts.cold or "",
            started=self._started,
            reused=self._reused,
            killed=self._killed,
            idle=len(self._idle),
            busy=len(self._busy),
            spare=self._spare is not None,
        )

    async def open(self) -> None:
        """Import the agents, or raise what is wrong with them; a spare is being started when this returns."""
        await self._hosts.open()
        self._prepare_spare()

    async def _start(self) -> Host:
        for attempt in range(ATTEMPTS):
            try:
                host = await self._hosts.start()
            # The zygote may just have been killed; the next attempt starts a new one.
            except SpawnFailed as failure:
                if attempt == ATTEMPTS - 1 or self._closed:
                    raise
                log.warning("a host was not started; control tries again: %s", failure.strerror)
                # Control must have read of the zygote's death by then, or it would ask the dead one again.
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._started += 1
                return host
        raise AssertionError("there is an attempt at least")

    def _prepare_spare(self) -> None:
        if not self._closed and self._spare is None and (self._sparing is None or self._sparing.done()):
            self._sparing = asyncio.get_running_loop().create_task(self._make_spare(), name="prepare a spare host")

    async def _make_spare(self) -> None:
        # An error here is not raised: the next turn that needs a host meets it again, and is told.
        with contextlib.suppress(SpawnFailed, BadInput):
            host = await self._start()
            if self._closed or self._spare is not None:
                host.kill()
            else:
                self._spare = host
                host.rest()  # take the baseline now, while no turn waits
                host.send(link.Rehearse())

    async def _host_for(self, run: LiveRun) -> Host:
        """Return a host for a run: its session's own, the spare, or a new one."""
        session = run.session
        last = self._last.get(session.id)
        if last is not None and not last.killed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await last.done.wait()
        host = self._idle.pop(session.id, None)
        if host is not None:
            self._timers.pop(host).cancel()
            if host.alive and host.renewed == session.renewed:
                self._reused += 1
                return host
            host.kill()
        host, self._spare = self._spare, None
        try:
            if host is None or not host.alive:
                sparing = self._sparing
                # A spare that is being started is ready sooner than a new host.
                if sparing is not None and not sparing.done():
                    await asyncio.wait([sparing])
                    host, self._spare = self._spare, None
            if host is None or not host.alive:
                host = await self._start()
        # The next spare is started later, so that it does not compete with the first step of this turn.
        finally:
            asyncio.get_running_loop().call_later(SPARE_SECONDS, self._prepare_spare)
        host.renewed = session.renewed
        host.containment.name = f"the host of {session.id}"
        return host

    async def drive(self, acting: Acting, message: Message) -> str | None:
        """Run the agent in a host, and return its reply."""
        run = acting.run
        try:
            host = await self._host_for(run)
        except SpawnFailed as failure:
            raise AgentFailed(failure.strerror or str(failure), ErrorKind.HOST) from None
        # The run fell while its host was being made.
        if run.fallen:
            self._give_back(run, host)
            raise Cut
        host.remember()
        turn = host.turn = HostTurn(host.turns, host, acting, self._keeps, self._settled)
        self._busy[turn] = host
        self._last[run.session.id] = turn
        run.work.run_bodies([turn])
        run.limits.of_host(host.hear_out)
        turn.begin(message)
        return await turn.result

    def _keeps(self, turn: HostTurn) -> bool:
        """Return whether the host of a settled turn can be kept for the session's next turn."""
        return self._last.get(turn.run.session.id) is turn and self._may_rest(turn.run, turn.host)

    def _may_rest(self, run: LiveRun, host: Host) -> bool:
        # A run's own session (a child's) takes no further message, so its host is of no more use.
        again = not run.session.id.startswith(RUN_SESSION)
        return not self._closed and host.alive and again and run.session.id not in self._idle

    def _give_back(self, run: LiveRun, host: Host) -> None:
        """Put back a host whose turn did not begin: with earlier turns it is its session's, without any a spare."""
        if host.turns and self._may_rest(run, host):
            self._rest(run.session.id, host)
        elif not host.turns and self._spare is None and host.alive and not self._closed:
            self._spare = host
        else:
            host.kill()

    def _settled(self, turn: HostTurn) -> None:
        """Count the host of a turn that is done as killed, or let it rest for the session's next turn."""
        host, session = self._busy.pop(turn), turn.run.session.id
        host.turn = None
        if self._last.get(session) is turn:
            del self._last[session]
        if turn.killed:
            self._killed += 1
        else:
            self._rest(session, host)

    def _rest(self, session: SessionId, host: Host) -> None:
        self._idle[session] = host
        # The baseline is taken in a later step: it reads files, and this may be the step of a fall.
        asyncio.get_running_loop().call_soon(self._look, session, host)
        self._timers[host] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._retire, session, host)
        while len(self._idle) > IDLE_HOSTS:
            self._retire(*next(iter(self._idle.items())))

    def _look(self, session: SessionId, host: Host) -> None:
        """Take the baseline of a host that rests; in a host that was taken meanwhile, work may be the next turn's."""
        if self._idle.get(session) is host:
            host.rest()

    def _retire(self, session: SessionId, host: Host) -> None:
        """Kill an idle host: it was not needed for IDLE_SECONDS, or there are more than IDLE_HOSTS."""
        if self._idle.get(session) is host:
            del self._idle[session]
            self._timers.pop(host).cancel()
            host.kill()

    async def close(self) -> None:
        """End every host, then the zygote; bounded."""
        self._closed = True
        if self._sparing is not None and not self._sparing.done():
            self._sparing.cancel()
            await asyncio.wait([self._sparing])
        hosts = [*self._idle.values(), *([self._spare] if self._spare is not None else [])]
        hosts += self._busy.values()
        for timer in self._timers.values():
            timer.cancel()
        for host in hosts:
            host.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for host in hosts:
                    await host.containment.done.wait()
        await self._hosts.close()
