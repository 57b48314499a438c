"""Starts hosts: forked warm from a zygote, or spawned cold where the agent's module cannot be forked.

1. The zygote imports the agents, once. If that leaves threads, sockets or children, `cold` says so, and every host is
   spawned by a bare keeper and imports for itself.
2. A zygote that was killed is started again when it is next needed. Its hosts died with it.
3. A host speaks on a pipe, not on a socket. A socket can carry descriptors, and closing a descriptor that a host sent
   may block control's loop for as long as the host likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from interlock.agent import notice
from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.core.errors import BadInput
from interlock.hosts import link
from interlock.hosts.finding import SERVED, agent_name
from interlock.hosts.process import HostProcess
from interlock.processes import wire
from interlock.processes.base import ROOT
from interlock.processes.containment import ERRORS
from interlock.processes.local import LocalProcesses, SecondHelper

log = logging.getLogger("interlock")

IMPORT_SECONDS = 60.0
HELLO_SECONDS = 30.0
LINK_BYTES = 256 * 1024  # the size of a host's pipe, where the system allows as much
# No garbage is collected while our own modules are imported: there is none.
BOOT = (
    "import gc, os, sys; gc.disable(); sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from interlock.hosts.{} import main; gc.enable(); main()"
)


class ForkedHosts:
    """Hosts of this machine."""

    def __init__(self, agent: object, agents: Mapping[str, object], processes: LocalProcesses) -> None:
        self._agents = {name: agent_name(each) for name, each in {SERVED: agent, **agents}.items()}
        self.names = tuple(agents)
        self.cold: str | None = None
        self._processes = processes
        self._zygote: SecondHelper | None = None
        self._starting: asyncio.Task[SecondHelper | None] | None = None
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        """Import the agents in the zygote, or raise what is wrong with them."""
        if hasattr(asyncio.get_running_loop(), "wall"):
            raise BadInput("there are no hosts on a virtual clock; use driver='inline'")
        await self._ready()
        if self.cold is not None:
            log.warning("hosts are spawned, not forked warm: %s", self.cold)

    async def _ready(self) -> SecondHelper | None:
        """Return the zygote, started if there is none (all callers wait for the same one); None if hosts are cold."""
        if self.cold is not None:
            return None
        zygote = self._zygote
        # A zygote whose helper is dead is about to be ended by its keeper.
        if zygote is not None and zygote.alive and zygote.containment.helper.alive:
            return zygote
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start_zygote(), name="start the zygote")
        return await asyncio.shield(self._starting)

    async def _start_zygote(self) -> SecondHelper | None:
        wanted = (sys.path, self._agents)
        try:
            zygote = await self._processes.second_helper(self._order("zygote"), wanted, IMPORT_SECONDS)
        except SpawnFailed as failure:
            raise SpawnFailed(
                failure.errno or 0, f"the agent's module could not be imported: {failure.strerror}"
            ) from None
        if zygote.facts["warm"]:
            self._zygote = zygote
            return zygote
        self._processes.drop_second(zygote)
        why = str(zygote.facts["why"])
        if zygote.facts.get("broken"):
            raise BadInput(f"the agent could not be imported: {why}")
        self.cold = why
        return None

    def _order(self, program: str) -> SpawnOrder:
        path = os.pathsep.join([str(Path(ROOT).parent), *sys.path])
        # Without agent_user a host runs the embedder's own code, with the embedder's environment.
        env: dict[str, str | None] = {}
        if self._processes.confinement.agent_user is None:
            env = dict(os.environ)
        return SpawnOrder(argv=(sys.executable, "-c", BOOT.format(program), path), env=env, background=True)

    async def start(self) -> HostProcess:
        """Start a host and wait for its greeting; raise SpawnFailed for every refusal of the system."""
        try:
            return await self._start()
        except OSError as error:
            if isinstance(error, SpawnFailed):
                raise
            raise SpawnFailed(error.errno or errno.EIO, f"no host could be started: {error.strerror}") from None

    async def _start(self) -> HostProcess:
        """Start a host and wait for its greeting."""
        zygote = await self._ready()
        await self._processes.ready()
        limits = (self._processes.confinement.pids, self._processes.confinement.host_memory)
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        # The host speaks on the pipe. Nothing it sends on the socket reaches control, descriptors least of all.
        mine.shutdown(socket.SHUT_RD)
        said, saying = _pipe()
        hears = tells = -1
        containment = None
        try:
            hears, tells = notice.pipe()
            containment = self._processes.contain(
                f"host-{next(self._numbers)}", once=True, helper=zygote, limits=limits
            )
            process = containment.spawn(self._order("host"), stdio=(theirs.fileno(), saying, ERRORS, hears))
        except BaseException:
            mine.close()
            wire.close_all([said, tells])
            if containment is not None:
                containment.cut()
            raise
        finally:
            theirs.close()
            wire.close_all([saying, hears])
        process.tells = tells
        host = HostProcess(containment, process, mine, said)
        try:
            async with asyncio.timeout(HELLO_SECONDS if zygote is not None else IMPORT_SECONDS):
                await process.started()
                host.watch_death()
                if zygote is None:
                    host.send(link.Load(tuple(sys.path), self._agents))
                await host.hello
        except TimeoutError:
            raise SpawnFailed(110, "the host did not greet in time") from None
        finally:
            if not host.hello.done() or host.hello.cancelled() or host.hello.exception() is not None:
                host.kill()
        return host

    async def close(self) -> None:
        """End the zygote, with every process it made."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._zygote is not None:
            await self._processes.close_second(self._zygote)


def _pipe() -> tuple[int, int]:
    """Return both ends of the pipe that a host speaks on."""
    said, saying = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(saying, fcntl.F_SETPIPE_SZ, LINK_BYTES)
    return said, saying
