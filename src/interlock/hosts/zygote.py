"""The zygote: a second helper that has imported the agent, and from which hosts are forked warm.

1. The zygote imports the agents once, before there is any loop, and plays one turn of our own agent, so that everything
   a turn needs is in memory. Then it looks at itself. With threads, sockets, children, an open event loop or a patched
   standard library it cannot be forked: it says so and exits, and hosts are spawned instead.
2. Like the bare helper, the zygote forks a keeper for each containment. That keeper, the warden, forks the one host,
   which is born inside the leaf and with its user's rights.
3. The zygote runs no agent code after the import, except for hooks that the module registered for a fork. It collects
   no garbage, so that its pages stay shared with its forks.
4. The zygote stands below an ordinary keeper. Its death, whatever the cause, ends its wardens and hosts.

    control ── helper ── keeper ── zygote ── warden ── host
       └─────────── a socketpair, pipes, and a pidfd ─────┘
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from interlock.agent.run import Agent
from interlock.agent.tool import describe_error
from interlock.core.errors import BadInput
from interlock.hosts import host
from interlock.processes import wire
from interlock.processes.helper import Helper
from interlock.processes.keeper import Keeper

PRIMITIVES = (
    *("fork", "waitid", "waitpid", "kill", "killpg", "pidfd_open", "pidfd_send_signal", "listdir", "read", "write"),
    *("poll", "sleep", "sigtimedwait", "set_wakeup_fd"),
)


class Warden(Keeper):
    """The keeper of one host, which it forks."""

    agents: Mapping[str, Agent] = {}

    def _exec(self, argv: list[str], env: dict[str, str], actions: list[tuple[Any, ...]], *, resetids: bool) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._become_host(env, actions, resetids)
            finally:
                os._exit(71)
        return pid

    def _become_host(self, env: dict[str, str], actions: list[tuple[Any, ...]], resetids: bool) -> NoReturn:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # The notice keeps its descriptor's number: NOTICE_FD may be in use for a file that the agent's module opened.
        *standard, (_, hears, _) = actions
        given = {fd for _, fd, _ in standard}
        for _, fd, at in standard:
            os.dup2(fd, at)
        own = {self._sock.fileno(), self._lifeline, self._gateway, self._wake, self._woken, self._events, *given}
        own.update(fd for doors in self._opened for fd in doors)
        own.update(self._space.descriptors if self._space is not None else ())
        for fd in own:
            if fd > 2:
                os.close(fd)
        # The real ids are the user's already (`Keeper._as_user`). Make the effective and saved ones the user's too.
        if resetids:
            gid, uid = os.getgid(), os.getuid()
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        os.environ.clear()
        os.environ.update(env)
        gc.enable()
        host.serve(host.take_link(), host.take_pipe(), hears, self.agents)


class Zygote(Helper):
    """Forks wardens."""

    keeper = Warden

    def __init__(self, sock: Any, gateway: int, owner: str, facts: dict[str, Any]) -> None:
        super().__init__(sock, gateway, owner)
        self._facts = facts

    def _bases(self) -> list[str]:
        """Return none: the bare helper removes these directories, since its own are in them too."""
        return []

    def _close_all_but(self, fd: int, lifeline: int) -> None:
        """Close the zygote's own descriptors. Files that the agent's module opened stay open for the host."""
        # Only the zygote may hold the other wardens' lifelines: a fork that held one would hide the zygote's death.
        assert self._newest is not None
        records = [*self._keepers.values(), self._newest]
        for own in (self._sock.fileno(), self._wake, self._woken, *(each.lifeline for each in records)):
            os.close(own)


def unfit(sock: socket.socket, before: dict[str, Any]) -> str | None:
    """Return why this process cannot be forked, None if it can."""
    if len(threads := os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        return f"importing it started threads ({len(threads) - 1})"
    if children := [name for name in _children() if name]:
        return f"importing it started processes ({len(children)})"
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # the descriptor of this listing itself
        if target.startswith("socket:") and int(name) not in (sock.fileno(), 0, 1, 2):
            return "importing it opened sockets"
        if target.startswith("anon_inode:[event"):
            return "importing it left an event loop open"
    replaced = [name for name, was in before.items() if primitives().get(name) is not was]
    if replaced:
        return f"importing it replaced parts of the standard library ({', '.join(replaced)})"
    return None


def primitives() -> dict[str, Any]:
    """Return the functions of the standard library that a keeper needs, as they are now."""
    rooms = (os, select, time, signal)
    return {name: getattr(room, name) for room in rooms for name in PRIMITIVES if hasattr(room, name)}


def _children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()


def main() -> NoReturn:
    """Be the zygote of the control that left one end of a socket as the standard input."""
    sock = host.take_link()
    os.environ["INTERLOCK_WORKER"] = str(os.getpid())
    select.select([sock], [], [])
    received = wire.receive(sock)
    assert received is not None
    _, facts, owner, gateway, wanted = received[0]
    path, agents = wanted
    before = primitives()
    try:
        Warden.agents = host.load_agents(path, agents)
        asyncio.run(host.rehearse())
        why = unfit(sock, before)
        told: dict[str, object] = {"warm": why is None, "why": why or ""}
    except BaseException as error:
        if isinstance(error, BadInput):
            why = str(error)
        else:
            why = describe_error(error)
            # The text does not say where in the module the error was; the traceback does.
            traceback.print_exc()
        told = {"warm": False, "why": why, "broken": True}
    # Flush before the first fork: each fork would write the buffer again.
    sys.stdout.flush()
    wire.send(sock, ("ready", told, 0, os.getpid()))
    if why is not None:
        os._exit(0)
    gc.disable()
    try:
        Zygote(sock, os.pidfd_open(gateway), owner, facts).run()
    finally:
        os._exit(0)
