"""Inside a host: the port of a run, which sends every verb of the agent to control as one message, whichever it is.

1. The fence is control's. A fall that the host knows of it applies at once, which saves messages; an effect of a fall
   that it does not know yet is refused by control.
2. A verb without an answer is sent in the caller's step. If control could not do it, the run's next verb raises why.
3. A tool's body runs here, after control's permit. Before the body begins, the notice is asked: the fall may be told
   there while its message still waits behind a blocked loop.
"""

import asyncio
import errno
import itertools
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from interlock.agent.bodies import Bodies, Body, Threads
from interlock.agent.bounds import ARGUMENT_BYTES, REFUSALS, REPLY_BYTES
from interlock.agent.crew import Crew
from interlock.agent.flag import Flag
from interlock.agent.notice import Notice
from interlock.agent.order import SpawnFailed
from interlock.agent.port import ANOTHER_LOOP, Port, Work
from interlock.agent.tool import ToolFailed, ToolSpec, describe_error
from interlock.agent.verbs import ForgetProcess, Post, Request, Say, StartProcess, Telling
from interlock.core import errors
from interlock.core.errors import BadInput, InterlockError, Stale
from interlock.core.fence import describe
from interlock.core.names import CallId, Effect
from interlock.core.outcome import Cause
from interlock.hosts import link

T = TypeVar("T")


class Link(Protocol):
    """The host's end of the link."""

    @property
    def full(self) -> bool:
        """True if control is behind with reading."""
        ...

    def send(self, word: link.Word) -> None:
        """Send a message in this step, or as soon as there is room."""
        ...

    async def room(self) -> None:
        """Wait until control has read most of what was sent."""
        ...

    def exchange(self, word: link.Ask) -> link.Answer | link.Refusal:
        """Send a request and block until its answer is there."""
        ...


class Turn:
    """One turn of the session, as the host sees it."""

    def __init__(self, number: int, hears: int = -1) -> None:
        self.number = number
        self.notice = Notice(hears)
        self.before: frozenset[object] = frozenset()  # the baseline: what was at work when the turn began
        self.bodies: list[Body] = []
        self.over = Flag()  # set when the agent's own code has ended

    @property
    def quiet(self) -> bool:
        """True if no body of the turn runs."""
        return all(body.done.is_set() for body in self.bodies)


class HostPort(Port):
    """The side of an agent in a host: its verbs are sent to control."""

    def __init__(self, begin: link.Begin, turn: Turn, line: Link, *, crew: Crew, threads: Threads) -> None:
        super().__init__(begin.run_id, Bodies(begin.run_id, turn.bodies, crew=crew, threads=threads))
        self.cause: Cause | None = None
        self.turn = turn
        self._link = line
        self._requests = itertools.count(begin.turn << 32)
        self._answers: dict[int, asyncio.Future[link.Answer]] = {}
        self._said = 0
        self._problem: BaseException | None = None
        self._refusals = REFUSALS

    # The fence, as far as it is known here

    @property
    def current(self) -> bool:
        """True while control has not said that the run has fallen."""
        return self.cause is None

    def fall(self, cause: Cause) -> None:
        """Apply a fall: control has said so, or the agent has returned. Control answers no open request any more."""
        if self.cause is None:
            self.cause = cause
            self.turn.notice.tell()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(Stale(f"run {self.run_id} has ended ({cause.ending}); do not catch Stale"))
                    # Mark the exception as retrieved: its waiter may be gone, and asyncio would then log it as lost.
                    answer.exception()

    async def checkpoint(self) -> None:
        """Let other tasks run, and wait while control is behind with reading."""
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput(ANOTHER_LOOP)
        await asyncio.sleep(0)
        if self._link.full:
            await self._link.room()
        if self.cause is not None:
            self._refusals -= 1
            if self._refusals < 0:
                self.bodies.drop()
        else:
            self.raise_problem()

    def raise_problem(self) -> None:
        """Raise the error of an earlier verb that had no answer."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def refuse(self, effect: Effect) -> NoReturn:
        """Raise Stale: the run is known to have fallen. Control is told of the try, and counts it."""
        assert self.cause is not None
        self._link.send(link.Tried(self.turn.number, effect))
        raise Stale(describe(self.run_id, self.cause, effect))

    def measure(self, text: str) -> None:
        """Refuse text beyond REPLY_BYTES, as control would."""
        if self._said + len(text) > REPLY_BYTES:
            raise BadInput(
                f"this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
            )
        self._said += len(text)

    # Verbs

    def tell(self, verb: Telling) -> None:
        """Send a verb in this step. After the fall nothing is sent: control has closed calls, holds and processes."""
        if self.cause is not None:
            if verb.effect is not None:
                self.refuse(verb.effect)
            return
        # An empty delta is sent too: it is a sign of life, which the idle limit counts.
        if isinstance(verb, Say | Post):
            self.measure(verb.text)
        self._link.send(link.Tell(self.turn.number, verb))

    async def ask(self, verb: Request[T]) -> T:
        """Send a verb in this step, and wait for its answer."""
        self._need_current(verb)
        if isinstance(verb, StartProcess):
            _need_room(verb)
        # Control answers no request after the turn.
        if self.turn.over.is_set():
            raise Stale(f"run {self.run_id} has ended; do not catch Stale")
        number = next(self._requests)
        answer = self._answers[number] = self._loop.create_future()
        try:
            self._link.send(link.Ask(self.turn.number, number, verb))
            value = (await answer).value
        except asyncio.CancelledError:
            self._link.send(link.Cancel(self.turn.number, number))
            if (undo := verb.undo()) is not None:
                self._link.send(link.Tell(self.turn.number, undo))
            raise
        except BadInput:
            # Control may know nothing of this verb because it refused an earlier one. Raise that reason instead.
            self.raise_problem()
            raise
        finally:
            del self._answers[number]
        # Answer and fall may both have arrived by now; the fall then counts.
        self._need_current(verb)
        return _unpack(value, verb)

    def _need_current(self, verb: Request[Any]) -> None:
        if self.cause is not None and verb.effect is not None:
            self.refuse(verb.effect)

    def look(self, verb: Request[T]) -> T:
        """Send a verb, and block the loop until its answer is there."""
        answer = self._link.exchange(link.Ask(self.turn.number, next(self._requests), verb))
        if isinstance(answer, link.Refusal):
            raise _error(answer.kind, answer.text, answer.errno)
        return _unpack(answer.value, verb)

    def forget(self, number: int) -> None:
        """Tell control that the agent has dropped a process."""
        if self.current and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.tell, ForgetProcess(number))

    def hear(self, word: link.Answer | link.Refusal) -> None:
        """Hand the answer of a request to its waiter, if there still is one."""
        answer = self._answers.get(word.number)
        if answer is None or answer.done():
            return
        if isinstance(word, link.Answer):
            answer.set_result(word)
        else:
            answer.set_exception(_error(word.kind, word.text, word.errno))

    def trouble(self, word: link.Problem) -> None:
        """Remember the first error of a verb without an answer; the next verb raises it."""
        self._problem = self._problem or _error(word.kind, word.text)

    # Tools

    def prepare(self, spec: ToolSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Work:
        """Return the call as it is: it runs in this process, which can be killed, so nothing is packed."""
        return partial(function, **arguments)

    async def perform(self, call: CallId, spec: ToolSpec, work: Work) -> Any:
        """Run the body of a tool that was permitted; a synchronous one simply runs.

        Another tool may have blocked the loop since the permit. The notice knows of a fall whose message is not read
        yet: the body must not begin then, and the agent must not go on behind a body that heard the notice first.
        """
        assert not isinstance(work, bytes)
        await self._catch_up()
        if self.cause is not None:
            self.refuse(Effect.TOOL)
        try:
            if spec.thread:
                return await self.bodies.in_thread(spec.name, work)
            if spec.worker:
                return _plainly(work)
            return await self.bodies.in_place(spec, work())
        finally:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Wait for the cut if the notice says that the run fell: nothing begins or goes on before the cut."""
        while self.cause is None and self.turn.notice.is_set():
            await asyncio.sleep(0)

    async def side_by_side(self, bodies: Sequence[tuple[CallId, ToolSpec, Coroutine[Any, Any, None]]]) -> None:
        """Run the bodies of a batch in parallel."""
        await self.bodies.side_by_side([(spec, body) for _, spec, body in bodies], [None] * len(bodies))


def _need_room(verb: StartProcess) -> None:
    size = sum(map(len, verb.argv)) + sum(len(name) + len(value or b"") for name, value in verb.env.items())
    if size > ARGUMENT_BYTES:
        why = "its arguments or environment are too long; use input= or a file"
        raise SpawnFailed(errno.E2BIG, f"{verb.whole.argv[0]!r:.100} was not started: {why}")


def _unpack(value: msgspec.Raw, verb: Request[T]) -> T:
    answer: T = msgspec.msgpack.decode(value, type=verb.answer_type())
    return answer


def _plainly(work: Callable[[], Any]) -> Any:
    """Run a synchronous tool with the results of a worker: plain values, Python's own errors, and others by name."""
    try:
        value = work()
    except SystemExit:
        raise ToolFailed("RuntimeError: the tool raised SystemExit") from None
    except Exception as error:
        if type(error).__module__ == "builtins" or isinstance(error, BadInput):
            raise
        raise ToolFailed(describe_error(error)) from error
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadInput(f"the tool's result cannot be sent ({error}); return plain values") from None


_ERRORS: dict[str, type[InterlockError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, InterlockError)
}


def _error(kind: str, text: str, errno: int | None = None) -> BaseException:
    if kind == Stale.__name__:
        return Stale(text)
    if kind == SpawnFailed.__name__:
        return SpawnFailed(errno or 0, text)
    return _ERRORS.get(kind, InterlockError)(text)
