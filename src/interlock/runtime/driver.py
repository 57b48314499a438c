"""The port of the drivers: where an agent's code runs, and what comes back of it."""

from typing import Protocol

import msgspec

from interlock.core.names import ErrorKind
from interlock.runtime.live import LiveRun
from interlock.runtime.run import Message
from interlock.runtime.verbs import Verbs

PROVIDER = "provider"  # the phase whose failures are the model's provider's


def kind_of(phase: str | None) -> ErrorKind:
    """Return whose failure an agent's error is, by the phase it came from."""
    return ErrorKind.PROVIDER if phase == PROVIDER else ErrorKind.AGENT


class AgentFailed(Exception):
    """An agent's code ended elsewhere with an error, which comes as text."""

    def __init__(self, text: str, kind: ErrorKind) -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


class HostsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the hosts of a control so far. `warm`: they are forked from a zygote; if not, `why`."""

    warm: bool
    why: str = ""
    started: int = 0
    reused: int = 0
    killed: int = 0
    idle: int = 0
    busy: int = 0
    spare: bool = False


class Driver(Protocol):
    """Runs agents. What it runs is in the run's bodies before it begins, so that a fall can cut it."""

    names: tuple[str, ...]  # of agents that a run may delegate to
    port: type[Verbs]  # its side of a run's verbs

    @property
    def info(self) -> HostsInfo | None:
        """What became of its hosts so far, if it has any."""
        ...

    async def open(self) -> None:
        """Make ready, or raise what is wrong with the agent."""
        ...

    async def drive(self, run: LiveRun, verbs: Verbs, message: Message) -> str | None:
        """Run a run's agent and return its reply; raises what it raised, or AgentFailed."""
        ...

    async def close(self) -> None:
        """Let go of everything, bounded."""
        ...
