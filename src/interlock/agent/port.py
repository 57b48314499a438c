"""The port: an agent's side of its run, inline or in a host.

1. Verbs leave by `tell` and `ask` alone, as plain values. Bodies of tools stay on this side.
2. The driver hands over what the agent's side is told: the fall, and the exits of processes.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from interlock.agent.bodies import Bodies
from interlock.agent.tool import ToolSpec
from interlock.agent.verbs import Request, Telling
from interlock.core.names import CallId, RunId

if TYPE_CHECKING:
    from interlock.agent.process import Running

T = TypeVar("T")

ANOTHER_LOOP = (
    "a run's verbs belong to the loop that its agent runs on; "
    "from a thread use asyncio.run_coroutine_threadsafe(run.say(...), loop)"
)

Work = bytes | Callable[[], Any]
"""A tool's body, ready to run: packed for another process, or as a call."""


class Processes(WeakValueDictionary[int, "Running"]):
    """The processes of a run that its agent has not dropped."""

    def exited(self, number: int, status: int | None, timed_out: bool) -> None:
        """Note that a process has exited."""
        if (running := self.get(number)) is not None:
            running.on_exit(status, timed_out)


class Port(ABC):
    """An agent's side of one run."""

    def __init__(self, run_id: RunId, bodies: Bodies) -> None:
        self.run_id = run_id
        self.bodies = bodies
        # The next number of a tool call, and of anything else that this side numbers.
        self.calls = itertools.count(1)
        self.numbers = itertools.count(1)
        self.processes = Processes()
        self.phase: str | None = None
        self._blamed: tuple[str, BaseException] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    @abstractmethod
    def current(self) -> bool:
        """True while the run may have effects, as far as this side knows."""

    @abstractmethod
    async def checkpoint(self) -> None:
        """Let other tasks run, as every verb does first."""

    @abstractmethod
    def tell(self, verb: Telling) -> None:
        """Hand a verb over, in this step."""

    @abstractmethod
    async def ask(self, verb: Request[T]) -> T:
        """Hand a verb over, in this step, and wait for its answer."""

    @abstractmethod
    def look(self, verb: Request[T]) -> T:
        """Return the answer of a verb that control has at once; this blocks the loop."""

    @abstractmethod
    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Return a tool's work, ready to run."""

    @abstractmethod
    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a permitted tool call."""

    @abstractmethod
    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch next to each other."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Let control forget a process that the agent has dropped. The garbage collector calls this, in any thread."""

    def blame(self, phase: str, error: BaseException) -> None:
        """Remember the innermost phase that an error came from."""
        if self._blamed is None or self._blamed[1] is not error:
            self._blamed = (phase, error)

    def phase_of(self, error: BaseException) -> str | None:
        """Return the phase that an error came from."""
        blamed, self._blamed = self._blamed, None
        return blamed[0] if blamed is not None and blamed[1] is error else self.phase
