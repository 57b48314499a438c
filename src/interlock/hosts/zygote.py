"""The zygote: a second helper that has imported the agent, and forks hosts that are warm from their first step.

1. It imports once, on its own, before there is any loop. What cannot be forked (threads, sockets, children, a patched
   standard library) is found out by looking, and then it says so and goes: hosts are spawned instead.
2. Like the bare helper it forks a keeper for each containment. That keeper, the warden, forks the one host, born inside
   its leaf and with its user's rights; a fork of a warm process takes its place in nothing else.
3. It runs no agent code after the import, but for what the module has registered to happen at a fork.
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

from interlock.core.errors import BadInput
from interlock.hosts import host
from interlock.processes import wire
from interlock.processes.helper import Helper
from interlock.processes.keeper import Keeper
from interlock.runtime.run import Agent
from interlock.runtime.tool import describe_error

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
        *standard, (_, hears, _) = actions  # the notice stays where it is: what the module opened may be anywhere
        given = {fd for _, fd, _ in standard}
        for _, fd, at in standard:
            os.dup2(fd, at)
        own = {self._sock.fileno(), self._lifeline, self._gateway, self._wake, self._woken, self._events, *given}
        own.update(fd for doors in self._opened for fd in doors)
        own.update(self._space.descriptors if self._space is not None else ())
        for fd in own:
            if fd > 2:
                os.close(fd)
        if resetids:  # the real ids are the user's already; now all of them are
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
        """The directories above those of hosts are the bare helper's to remove: its own are beside them."""
        return []

    def _close_all_but(self, fd: int, lifeline: int) -> None:
        """Let go of our own; what the agent's module has opened belongs to the host."""
        assert self._newest is not None
        kept = [*self._keepers.values(), self._newest]  # whose lifelines nobody but we may hold
        for own in (self._sock.fileno(), self._wake, self._woken, *(each.lifeline for each in kept)):
            os.close(own)


def unfit(sock: socket.socket, before: dict[str, Any]) -> str | None:
    """Say why this process cannot be forked, None if it can."""
    if len(threads := os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        return f"importing it started threads ({len(threads) - 1})"
    if children := [name for name in _children() if name]:
        return f"importing it started processes ({len(children)})"
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # the one we list with
        if target.startswith("socket:") and int(name) not in (sock.fileno(), 0, 1, 2):
            return "importing it opened sockets"
        if target.startswith("anon_inode:[event"):
            return "importing it left an event loop open"
    replaced = [name for name, was in before.items() if primitives().get(name) is not was]
    if replaced:
        return f"importing it replaced parts of the standard library ({', '.join(replaced)})"
    return None


def primitives() -> dict[str, Any]:
    """What a keeper stands on, as it is now."""
    rooms = (os, select, time, signal)
    return {name: getattr(room, name) for room in rooms for name in PRIMITIVES if hasattr(room, name)}


def _children() -> list[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()


def main() -> NoReturn:
    """Be the zygote of a process that gave us one end of a socket, as our standard input."""
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
            traceback.print_exc()  # where in the module it was: the text does not say
        told = {"warm": False, "why": why, "broken": True}
    sys.stdout.flush()  # before there are forks that would say it again
    wire.send(sock, ("ready", told, 0, os.getpid()))
    if why is not None:
        os._exit(0)
    gc.disable()
    try:
        Zygote(sock, os.pidfd_open(gateway), owner, facts).run()
    finally:
        os._exit(0)
