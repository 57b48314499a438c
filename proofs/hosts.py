"""The twin of the hosts: a host that is played in control's own loop, over a link with delays.

The bytes on the link are those of a real host, and the same code serves them. A KILL ends the host's code at once, as
the kernel would, and its containment is seen empty a moment later.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from threading import Thread
from typing import Any

from interlock.agent.bodies import DaemonThreads, ThreadBody, Threads
from interlock.agent.order import SpawnFailed
from interlock.agent.pools import Nameless
from interlock.agent.run import Agent
from interlock.core.errors import BadInput
from interlock.core.names import BodyState
from interlock.hosts import link
from interlock.hosts.finding import SERVED
from interlock.hosts.host import Serving
from interlock.hosts.turn import HostTurn
from interlock.processes.base import Grade
from interlock.runtime.handlers import HANDLERS
from interlock.runtime.live import LiveRun

DELAYS_SECONDS = (0.0, 0.0, 0.0, 1e-5, 1e-4, 0.001, 0.003)
LIVES_SECONDS = (0.0, 1e-4, 0.002, 0.02)  # how long a host lives that dies by itself
DEATH_SECONDS = (0.0, 1e-4, 0.003, 0.03)


class _Wire:
    """A link in one direction: messages arrive in order, each a moment later."""

    def __init__(self, hosts: "VirtualHosts", kind: Any, hear: Callable[[Any], None]) -> None:
        self._frames = link.Frames(kind)
        self._hear = hear
        self._hosts = hosts
        self._waiting: deque[bytes] = deque()
        self.cut = False
        self.heard = 0.0  # the last time at which no message was on its way

    def send(self, word: link.Word) -> None:
        """Put a message on its way."""
        if not self.cut:
            self._waiting.append(link.frame(word))
            if len(self._waiting) == 1:
                self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(self._hosts.random.choice(DELAYS_SECONDS), self.deliver)

    def deliver(self) -> None:
        """Let the first message arrive."""
        if self.cut or not self._waiting:
            return
        self._frames.feed(self._waiting.popleft())
        if self._waiting:
            self._later()
        for word in self._frames:
            self._hear(word)
        if not self._waiting:
            self.heard = asyncio.get_running_loop().time()

    @property
    def waiting(self) -> int:
        """Return how many messages are on their way."""
        return len(self._waiting)


class _Link:
    """The host's end."""

    def __init__(self, host: "VirtualHost") -> None:
        self._host = host

    @property
    def full(self) -> bool:
        return self._host.inward.waiting > 8

    def send(self, word: link.Word) -> None:
        self._host.inward.send(word)

    async def room(self) -> None:
        while self.full and not self._host.inward.cut:
            await asyncio.sleep(0.0001)

    def exchange(self, word: link.Ask) -> link.Answer | link.Refusal:
        """Answer from the turn itself: the caller is synchronous and cannot wait for the link."""
        turn = self._host.turn
        assert turn is not None
        try:
            return link.Answer(word.number, link.pack(HANDLERS[type(word.verb)](turn._acting, word.verb)))
        except BadInput as error:
            return link.Refusal(word.number, "BadInput", str(error))


class _Threads:
    """Threads that end with their host."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.bodies: list[ThreadBody] = []

    def start(self, work: Callable[[], Any], body: ThreadBody) -> None:
        self.bodies = [*(each for each in self.bodies if not each.done.is_set()), body]
        self._threads.start(work, body)

    def others(self) -> frozenset[Thread | Nameless]:
        return self._threads.others()


class _Containment:
    """The containment of a virtual host: empty a moment after the KILL."""

    def __init__(self, random: Random) -> None:
        self.name = "a virtual host"
        self.grade = Grade.KEEPER
        self.grace = 0.0
        self.state = BodyState.RUNNING
        self.done = asyncio.Event()
        self.ended = 0
        self.stuck: tuple[str, ...] = ()
        self._random = random

    def spawn(self, order: object) -> Any:
        raise SpawnFailed(errno.ECANCELED, "a host starts no process here")

    def cut(self) -> None:
        """Be empty a moment later."""
        if self.state is BodyState.RUNNING:
            self.state = BodyState.CUT
            asyncio.get_running_loop().call_later(self._random.choice(DEATH_SECONDS), self._empty)

    def _empty(self) -> None:
        self.ended = 1
        self.done.set()

    def drop(self) -> None:
        """Do nothing: a cut always empties this containment."""

    def abandon(self) -> None:
        """Note the state only: no process here is ever stuck."""
        self.state = BodyState.ABANDONED


class VirtualHost:
    """A host that is played in this loop."""

    def __init__(self, hosts: "VirtualHosts") -> None:
        self.turns = 0
        self.renewed = 0
        self.turn: HostTurn | None = None
        self.containment = _Containment(hosts.random)
        self.alive = True
        self._run: LiveRun | None = None  # the run of its last turn
        self._left: frozenset[object] = frozenset()  # objects that the last turn left at work
        self._started: frozenset[int] = frozenset()  # processes that the last turn left
        self._hosts = hosts
        self._threads = _Threads(hosts.threads)
        self._serving = Serving(_Link(self), hosts.agents, self._threads, self._at_work, collect=lambda: None)
        self.outward = _Wire(hosts, link.Told, self._serving.hear)
        self.inward = _Wire(hosts, link.Said, self._hear)

    def _at_work(self) -> frozenset[object]:
        return self._left

    def _hear(self, word: link.Said) -> None:
        if self.turn is not None and isinstance(word, link.OfTurn):
            self.turn.hear(word)

    @property
    def heard(self) -> float:
        """Return when everything that the host had said had arrived."""
        return self.inward.heard

    def hear_out(self) -> None:
        """Let everything that the host has said arrive."""
        while self.inward.waiting and not self.inward.cut:
            self.inward.deliver()

    def look(self) -> tuple[str, ...] | None:
        """Return None if the last turn left a process, as a real host does."""
        return None if self._started else ()

    def remember(self) -> None:
        """Count a turn, and draw by lot whether it leaves something in its host, looked for or not."""
        random, untidy = self._hosts.random, self._hosts.untidy
        cause = None if self._run is None else self._run.fence.cause
        if cause is not None and cause.early and (self._left or self._started):
            self._hosts.broken = "P1: a host in which something of a stopped turn was left had another turn"
        self.turns += 1
        self.inward.heard = asyncio.get_running_loop().time()
        self._left = frozenset([object()] if random.random() < untidy else ())
        self._started = frozenset([self.turns] if random.random() < untidy else ())
        if random.random() < untidy / 4:
            asyncio.get_running_loop().call_later(random.choice(LIVES_SECONDS), self.die)

    def rest(self) -> None:
        """Do nothing: a virtual host has no baseline to take."""

    def send(self, word: link.Word) -> None:
        """Put a message on its way."""
        if isinstance(word, link.Begin) and self.turn is not None:
            self._run = self.turn.run
        if not isinstance(word, link.Rehearse):  # a virtual host needs no warming
            self.outward.send(word)

    def notify(self) -> None:
        """Set the notice directly: between two parts of one loop there is no pipe."""
        if (port := self._serving._port) is not None and self.turn is not None and port.turn.number == self.turn.number:
            port.turn.notice.tell()

    def kill(self) -> None:
        """End the host's code at once."""
        if not self.alive:
            return
        self.alive = False
        self.outward.cut = self.inward.cut = True
        if (port := self._serving._port) is not None:
            for body in port.turn.bodies:
                body.drop()
        for thread in self._threads.bodies:
            thread.cut()
        for task in self._serving._crew.tasks:
            task.cancel()
        self.containment.cut()

    def die(self) -> None:
        """Die as by a segfault; messages that the host has sent still arrive."""
        if not self.alive:
            return
        while self.inward.waiting:
            self.inward.deliver()
        turn = self.turn
        self.kill()
        if turn is not None:
            turn.lost("the host died of SIGSEGV")


class VirtualHosts:
    """Hosts of a control on a virtual clock, or of one whose agents are closures of a test."""

    cold: str | None = None

    def __init__(
        self,
        agent: Agent,
        agents: Mapping[str, Agent],
        random: Random,
        threads: Threads | None = None,
        *,
        untidy: float = 0.2,  # how often a turn leaves something in its host
    ) -> None:
        self.agents = {SERVED: agent, **agents}
        self.names = tuple(agents)
        self.random = random
        self.untidy = untidy
        self.broken: str | None = None  # the broken promise, in the words of an oracle
        self.threads = threads or DaemonThreads()

    async def open(self) -> None:
        """Do nothing: a virtual host imports nothing."""

    async def start(self) -> VirtualHost:
        """Start a host, in a moment."""
        await asyncio.sleep(self.random.choice(DELAYS_SECONDS))
        return VirtualHost(self)

    async def close(self) -> None:
        """Do nothing: virtual hosts hold nothing."""
