"""The host driver: agents in processes of their own, one for each session, kept warm between its turns.

1. Control imports no agent code. What it knows of the agent is its name.
2. A session's host is taken for its next turn if its last one left it clean; else the next turn gets a fresh one at
   once. Nobody waits for an old host, but for a moment: a polite one has settled by then.
3. Idle hosts are bounded in number and age. A spare, forked and started, waits for the first session that has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from typing import Protocol

from interlock.core.errors import BadInput
from interlock.core.names import ErrorKind, SessionId
from interlock.hosts import link
from interlock.hosts.turn import Cut, Host, HostTurn
from interlock.processes.base import SpawnFailed
from interlock.runtime.driver import AgentFailed, HostsInfo
from interlock.runtime.live import RUN_SESSION, LiveRun
from interlock.runtime.run import Message
from interlock.runtime.verbs import Verbs

log = logging.getLogger("interlock")

IDLE_HOSTS = 64
IDLE_SECONDS = 600.0
PATIENCE_SECONDS = 0.01  # for a session's last host to settle
CLOSE_SECONDS = 3.0
SPARE_SECONDS = 0.05  # after one was taken
ATTEMPTS = 3
RETRY_SECONDS = 0.02


class Hosts(Protocol):
    """Where hosts come from."""

    names: tuple[str, ...]  # of agents that a run may delegate to
    cold: str | None  # why they cannot be forked warm

    async def open(self) -> None:
        """Make ready, or raise what is wrong with the agents."""
        ...

    async def start(self) -> Host:
        """Start a host that is ready for a turn, or raise SpawnFailed."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class HostDriver:
    """Runs agents in hosts."""

    port: type[Verbs] = Verbs

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.names = hosts.names
        self._idle: OrderedDict[SessionId, Host] = OrderedDict()
        self._timers: dict[Host, asyncio.TimerHandle] = {}
        self._busy: dict[HostTurn, Host] = {}
        self._last: dict[SessionId, HostTurn] = {}  # the turn that has not settled yet, of each session
        self._spare: Host | None = None
        self._sparing: asyncio.Task[None] | None = None
        self._closed = False
        self._started = self._reused = self._killed = 0

    @property
    def info(self) -> HostsInfo:
        """What became of the hosts so far."""
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
        """Make ready, or raise what is wrong with the agents; a spare is on its way when this returns."""
        await self._hosts.open()
        self._prepare_spare()

    async def _start(self) -> Host:
        for attempt in range(ATTEMPTS):
            try:
                host = await self._hosts.start()
            except SpawnFailed as failure:  # the zygote may just have been killed, and is started again
                if attempt == ATTEMPTS - 1 or self._closed:
                    raise
                log.warning("a host was not started, and is tried again: %s", failure.strerror)
                await asyncio.sleep(RETRY_SECONDS)  # its death must have been heard of, or the same one is asked again
            else:
                self._started += 1
                return host
        raise AssertionError("there is an attempt at least")

    def _prepare_spare(self) -> None:
        if not self._closed and self._spare is None and (self._sparing is None or self._sparing.done()):
            self._sparing = asyncio.get_running_loop().create_task(self._make_spare(), name="prepare a spare host")

    async def _make_spare(self) -> None:
        with contextlib.suppress(SpawnFailed, BadInput):  # whoever needs one is told then
            host = await self._start()
            if self._closed or self._spare is not None:
                host.kill()
            else:
                self._spare = host
                host.rest()  # now, while nobody waits for it
                host.send(link.Rehearse())

    async def _take(self, run: LiveRun) -> Host:
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
                if sparing is not None and not sparing.done():  # it is nearly there
                    await asyncio.wait([sparing])
                    host, self._spare = self._spare, None
            if host is None or not host.alive:
                host = await self._start()
        finally:  # the next one is not to be made while this one says its first word
            asyncio.get_running_loop().call_later(SPARE_SECONDS, self._prepare_spare)
        host.renewed = session.renewed
        host.containment.name = f"the host of {session.id}"
        return host

    async def drive(self, run: LiveRun, verbs: Verbs, message: Message) -> str | None:
        """Have a host run the agent, and return its reply."""
        try:
            host = await self._take(run)
        except SpawnFailed as failure:
            raise AgentFailed(failure.strerror or str(failure), ErrorKind.HOST) from None
        if run.fallen:  # while it was being made
            self._give_back(run, host)
            raise Cut
        host.remember()
        turn = host.turn = HostTurn(host.turns, host, verbs, self._keeps, self._settled)
        self._busy[turn] = host
        self._last[run.session.id] = turn
        run.bodies, run.hear_out = [turn], host.hear_out
        turn.begin(message)
        return await turn.result

    def _keeps(self, turn: HostTurn) -> bool:
        """Return whether the host of a turn that has settled can be kept for its session's next one."""
        return self._last.get(turn.run.session.id) is turn and self._may_rest(turn.run, turn.host)

    def _may_rest(self, run: LiveRun, host: Host) -> bool:
        again = not run.session.id.startswith(RUN_SESSION)  # nothing more comes to a run's own session
        return not self._closed and host.alive and again and run.session.id not in self._idle

    def _give_back(self, run: LiveRun, host: Host) -> None:
        """A run fell before its turn began: one that had turns is its session's, a new one is anybody's."""
        if host.turns and self._may_rest(run, host):
            self._rest(run.session.id, host)
        elif not host.turns and self._spare is None and host.alive and not self._closed:
            self._spare = host
        else:
            host.kill()

    def _settled(self, turn: HostTurn) -> None:
        """A turn is over in every respect, and so is its host unless it is kept."""
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
        asyncio.get_running_loop().call_soon(self._look, session, host)  # not in the step of a fall: it reads files
        self._timers[host] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._retire, session, host)
        while len(self._idle) > IDLE_HOSTS:
            self._retire(*next(iter(self._idle.items())))

    def _look(self, session: SessionId, host: Host) -> None:
        """Have a host that rests see what is there; in one that was taken meanwhile it may be of the next turn."""
        if self._idle.get(session) is host:
            host.rest()

    def _retire(self, session: SessionId, host: Host) -> None:
        """Nobody has needed it for long enough."""
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
