"""The port of the drivers: where an agent's code runs, and how its result comes back.

To the fall a host's turn is a body like any other: something to cut, with a name, a state and an end that is awaited.
So receipts, drains, holds and takeovers have one rule for both drivers.
"""

from typing import Protocol

from interlock.agent.message import Message
from interlock.core.answers import HostsInfo
from interlock.core.names import ErrorKind
from interlock.runtime.handlers import Acting

# Errors in this phase are the model provider's.
PROVIDER = "provider"


def kind_of(phase: str | None) -> ErrorKind:
    """Return the kind of an agent's error, by the phase it came from."""
    return ErrorKind.PROVIDER if phase == PROVIDER else ErrorKind.AGENT


class AgentFailed(Exception):
    """An agent raised an error, which is told as text."""

    def __init__(self, text: str, kind: ErrorKind) -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


class Driver(Protocol):
    """Runs agents. The driver adds code to the run's bodies before the code begins, so that a fall can cut it."""

    # Names of agents that a run may delegate to.
    names: tuple[str, ...]

    @property
    def info(self) -> HostsInfo | None:
        """Counts of the hosts; None without hosts."""
        ...

    async def open(self) -> None:
        """Get ready to run agents, or raise what is wrong with the agent."""
        ...

    async def drive(self, acting: Acting, message: Message) -> str | None:
        """Run a run's agent and return its reply; raise the agent's error, or AgentFailed."""
        ...

    async def close(self) -> None:
        """Close everything, bounded."""
        ...
