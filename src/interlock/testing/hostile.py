"""Agents and tools that behave badly, each in one way. The word before the first space of a message picks one.

Use them against your own surface or policy, or copy from them: an agent here is an ordinary async callable.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from interlock.agent.message import Child, Message
from interlock.agent.run import Run
from interlock.agent.tool import tool
from interlock.core.errors import InterlockError, Refused, Stale
from interlock.runtime.control import Control
from interlock.testing.oracle import Oracle

HELPER = "helper"  # the name by which runs delegate to the kit's agent
HEIRS = ("polite", "never", "swallow_all", "sleeper", "obstinate", "reply", "parent", "asker", "holder", "deaf")

Behaviour = Callable[["Kit", Run, Message], Awaitable[str | None]]


class Kit:
    """Hostile agents that report every act to an oracle."""

    def __init__(self) -> None:
        self.oracle: Oracle | None = None
        self.control: Control | None = None
        # Tasks that agents left behind, held here because asyncio may collect a task without a reference.
        self.ghosts: list[asyncio.Future[None]] = []

    async def agent(self, run: Run, message: Message) -> str | None:
        """Behave as the message's first word says."""
        said = [part.text for part in message.parts]
        if self.oracle is not None:
            for part in said:
                self.oracle.begun(run.id, part)
        if message.child is not None and self.oracle is not None:
            self.oracle.announced(run.id, message.child)
        behave = BEHAVIOURS[said[0].split(" ", 1)[0]] if message.child is None else _told_of_a_child(message)
        text = await behave(self, run, message)
        if self.oracle is not None:
            self.oracle.returned(run.id)
        return text

    def act(self, run: Run, what: str, *, begins: bool = False) -> None:
        """Report an irrevocable act to the oracle."""
        if self.oracle is not None:
            self.oracle.acted(run.id, what, begins=begins)

    async def delegate(self, run: Run, text: str, **options: Any) -> Child:
        """Delegate to the kit's agent, which behaves as the text says."""
        if self.oracle is not None and not options.get("detached"):
            self.oracle.delegates(run.id, text)
        return await run.delegate(HELPER, text, **options)

    # Tools, as closures over a run, so that the oracle learns whose they are

    def quick(self, run: Run) -> Callable[..., Coroutine[Any, Any, str]]:
        """A tool that ends at once."""

        async def quick(n: int = 0) -> str:
            self.act(run, "quick", begins=True)
            await asyncio.sleep(0)
            self.act(run, "quick")
            return f"quick {n}"

        return quick

    def slow(self, run: Run) -> Callable[..., Coroutine[Any, Any, str]]:
        """A tool that takes its time and acts at its end."""

        async def slow(n: int = 0) -> str:
            self.act(run, "slow", begins=True)
            await asyncio.sleep(0.02)
            self.act(run, "slow")
            return f"slow {n}"

        return slow

    def stubborn(self, run: Run) -> Callable[..., Coroutine[Any, Any, str]]:
        """A tool that swallows every cancel and acts on."""

        async def stubborn() -> str:
            self.act(run, "stubborn", begins=True)
            for _ in range(20):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.2)
                self.act(run, "stubborn")
            return "at last"

        return stubborn

    def failing(self, run: Run) -> Callable[..., Coroutine[Any, Any, str]]:
        """A tool that raises."""

        async def failing() -> str:
            self.act(run, "failing", begins=True)
            await asyncio.sleep(0)
            raise OSError("no such disk")

        return failing

    def guarded(self, run: Run) -> Callable[..., Coroutine[Any, Any, str]]:
        """A tool that a person must allow."""

        @tool(approval="ask")
        async def guarded() -> str:
            self.act(run, "guarded", begins=True)
            await asyncio.sleep(0)
            self.act(run, "guarded")
            return "allowed"

        return guarded

    def threaded(self, run: Run) -> Callable[..., str]:
        """A synchronous tool in a thread, which cannot be ended."""

        @tool(thread=True)
        def threaded() -> str:
            self.act(run, "threaded", begins=True)
            return "done"

        return threaded


async def polite(kit: Kit, run: Run, message: Message) -> str | None:
    """Say a little and return."""
    await run.say("one ")
    await run.say("two")
    return None


async def reply(kit: Kit, run: Run, message: Message) -> str | None:
    """Return at once."""
    return "reply"


async def flood(kit: Kit, run: Run, message: Message) -> str | None:
    """Say far too much."""
    for n in range(30):
        await run.say(f"{n} ")
    return "flooded"


async def chatter(kit: Kit, run: Run, message: Message) -> str | None:
    """Use every way of showing something."""
    async with run.phase("thinking"):
        await run.typing()
        await run.progress("half", done=1, total=2)
        await run.say("a")
    await run.post("block")
    await run.say("b")
    await asyncio.sleep(0.001)
    await run.history()
    return "bc"


async def swallow_one(kit: Kit, run: Run, message: Message) -> str | None:
    """Swallow the first cancel and go on."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0.3)
    await run.say("still here")
    await asyncio.sleep(0.3)
    return "late reply"


async def swallow_all(kit: Kit, run: Run, message: Message) -> str | None:
    """Swallow every cancel and every Stale, and keep talking."""
    for _ in range(1000):
        try:
            await asyncio.sleep(0.05)
            await run.say("again")
        except BaseException:
            await asyncio.sleep(0)
    return "survived"


async def hammer(kit: Kit, run: Run, message: Message) -> str | None:
    """Go on calling verbs, and after the end do nothing else."""
    blows = 0
    while True:
        with contextlib.suppress(BaseException):
            await run.say("hammer")
            blows += 1
            if blows > 10:
                # `say` raises after the end, so the loop pauses only before it.
                await asyncio.sleep(0.1)
            await run.call(kit.quick(run))


async def never(kit: Kit, run: Run, message: Message) -> str | None:
    """Never return."""
    await run.say("thinking")
    await asyncio.Event().wait()
    return None


async def raises(kit: Kit, run: Run, message: Message) -> str | None:
    """Fail after saying something."""
    await run.say("part")
    async with run.phase("provider"):
        raise RuntimeError("provider gone")


async def dirty(kit: Kit, run: Run, message: Message) -> str | None:
    """Speak, act and raise while cleaning up."""
    try:
        await asyncio.sleep(0.3)
    finally:
        with contextlib.suppress(Stale):
            await run.say("bye")
        with contextlib.suppress(Stale):
            await run.call(kit.quick(run))
        with contextlib.suppress(Stale):
            await run.post("bye")
        await asyncio.sleep(0.01)
        raise ValueError("in cleanup")


async def haunt(kit: Kit, run: Run, message: Message) -> str | None:
    """Return, and call back after the end: from tasks, at once and later."""

    async def later(seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(Stale):
            await run.say("boo")
        for _ in range(3):
            with contextlib.suppress(Stale):
                await run.call(kit.quick(run))
        with contextlib.suppress(Stale):
            await run.typing()
        with contextlib.suppress(Stale, Refused):
            await kit.delegate(run, f"reply {seconds} below {message.text}")
        with contextlib.suppress(Stale):
            await run.ask("still there?", timeout=0.01)

    for seconds in (0.0, 0.01, 1.0):
        kit.ghosts.append(asyncio.ensure_future(later(seconds)))
    await run.say("alive")
    await asyncio.sleep(0.005)
    return "gone"


async def tools(kit: Kit, run: Run, message: Message) -> str | None:
    """Call tools one after another."""
    await run.say("first ")
    await run.call(kit.quick(run), n=1)
    await run.call(kit.slow(run), n=2)
    with contextlib.suppress(OSError):
        await run.call(kit.failing(run))
    return "used tools"


async def batch(kit: Kit, run: Run, message: Message) -> str | None:
    """Call a batch, one after another."""
    await run.batch([(kit.quick(run), {"n": 1}), (kit.slow(run), {"n": 2}), (kit.quick(run), {"n": 3})])
    return "batched"


async def parallel(kit: Kit, run: Run, message: Message) -> str | None:
    """Call a batch side by side."""
    await run.batch(
        [(kit.quick(run), {"n": 1}), (kit.slow(run), {"n": 2}), (kit.stubborn(run), {}), (kit.failing(run), {})],
        parallel=True,
    )
    return "side by side"


async def obstinate(kit: Kit, run: Run, message: Message) -> str | None:
    """Call a tool that swallows every cancel."""
    await run.call(kit.stubborn(run))
    return "obstinate"


async def thread(kit: Kit, run: Run, message: Message) -> str | None:
    """Call a tool that lives in a thread."""
    return str(await run.call(kit.threaded(run)))


async def impatient(kit: Kit, run: Run, message: Message) -> str | None:
    """Give a tool up by a timeout of its own and go on."""
    try:
        async with asyncio.timeout(0.01):
            await run.call(kit.slow(run))
    except TimeoutError:
        await run.say("gave up")
    await run.call(kit.quick(run))
    return "impatient"


async def suicide(kit: Kit, run: Run, message: Message) -> str | None:
    """Stop the run from inside, then go on as if nothing had happened."""
    await run.say("before")
    if kit.oracle is not None:
        with contextlib.suppress(asyncio.CancelledError):
            await kit.oracle.stop(run=run.id)
    await run.say("after")
    return "suicide"


async def sleeper(kit: Kit, run: Run, message: Message) -> str | None:
    """Return at the instant of a deadline of 0.05 s."""
    async with run.phase("sleep"):
        await asyncio.sleep(0.05)
    return "slept"


async def shrug(kit: Kit, run: Run, message: Message) -> str | None:
    """Swallow the cancel and answer."""
    with contextlib.suppress(asyncio.CancelledError):
        await run.say("wait for it ")
        await asyncio.sleep(0.3)
    return "shrug"


class _Deaf:
    """Drives a coroutine and keeps every cancel from it."""

    def __init__(self, body: Coroutine[Any, Any, Any]) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            try:
                wanted = self._body.send(None)
            except StopIteration as returned:
                return returned.value
            with contextlib.suppress(asyncio.CancelledError):
                yield wanted


async def deaf(kit: Kit, run: Run, message: Message) -> str | None:
    """Go on speaking and acting without ever hearing of a cancel."""

    async def work() -> None:
        for n in range(30):
            await run.say("deaf ")
            await run.call(kit.quick(run))
            if n % 5 == 0:
                await run.post("and ")
                await run.typing()

    await _Deaf(work())
    return "heard nothing"


async def dawdle(kit: Kit, run: Run, message: Message) -> str | None:
    """Be busy until a deadline of 2 ms has just passed, then return without another await."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.002
    while loop.time() < end:
        await asyncio.sleep(0)
    return "just in time?"


async def nested(kit: Kit, run: Run, message: Message) -> str | None:
    """Work in a task group of its own, so that Stale comes in a group."""

    async def talk() -> None:
        for _ in range(5):
            await run.say("x")
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(talk())
        group.create_task(talk())
    return "nested"


async def asker(kit: Kit, run: Run, message: Message) -> str | None:
    """Ask a person, then act."""
    allowed = await run.ask("go on?", timeout=0.2)
    if kit.oracle is not None:
        kit.oracle.came_back(run.id, "ask")
    if allowed:
        await run.call(kit.quick(run))
    return f"was told {allowed}"


async def guarded(kit: Kit, run: Run, message: Message) -> str | None:
    """Call a tool that must be allowed, and go on if it is not."""
    with contextlib.suppress(Refused):
        await run.call(kit.guarded(run))
    return "guarded"


async def gambler(kit: Kit, run: Run, message: Message) -> str | None:
    """Ask, swallow the answer or the error, and act in any case."""
    for _ in range(3):
        with contextlib.suppress(BaseException):
            await run.ask("double or nothing?", timeout=0.05)
            if kit.oracle is not None:
                kit.oracle.came_back(run.id, "ask")
        with contextlib.suppress(BaseException):
            await run.call(kit.guarded(run))
    return "gambled"


async def parent(kit: Kit, run: Run, message: Message) -> str | None:
    """Delegate, with a deadline or without one, and say something after it."""
    await _delegate(kit, run, message, timeout=(None, 0.02, 0.05)[len(message.text) % 3])
    await run.say("heard")
    return "parent"


async def litter(kit: Kit, run: Run, message: Message) -> str | None:
    """Delegate twice at once, in tasks of its own."""

    async def talk(number: int) -> None:
        await _delegate(kit, run, message, number=number)

    async with asyncio.TaskGroup() as group:
        group.create_task(talk(1))
        group.create_task(talk(2))
    return "litter"


async def cuckoo(kit: Kit, run: Run, message: Message) -> str | None:
    """Leave a detached child behind, which may be announced."""
    announce = (None, "note", "turn", "turn")[zlib.crc32(message.text.encode()) % 4]
    await _delegate(kit, run, message, detached=True, announce=announce)
    await asyncio.sleep(0.01)
    return "gone"


async def nester(kit: Kit, run: Run, message: Message) -> str | None:
    """Leave quick detached children behind; their announcements may start this again, for ever."""
    for number in range(1 + len(message.text) % 2):
        await kit.delegate(run, f"reply {number} below {message.text[:20]} {run.id}", detached=True)
    await _take_in(kit, run)
    return "nested"


def _told_of_a_child(message: Message) -> Behaviour:
    """Choose how an agent behaves in a turn that an announcement began."""
    return (reply, nester, listener, polite)[zlib.crc32(message.text.encode()) % 4]


async def absentee(kit: Kit, run: Run, message: Message) -> str | None:
    """Delegate in a task that is never cut, and return meanwhile."""

    async def talk() -> None:
        with contextlib.suppress(Stale, InterlockError):
            await _delegate(kit, run, message)

    kit.ghosts.append(asyncio.ensure_future(talk()))
    await asyncio.sleep(0.03)
    return "elsewhere"


async def orphan(kit: Kit, run: Run, message: Message) -> str | None:
    """Go on delegating without ever hearing of a cancel."""

    async def work() -> None:
        for number in range(4):
            with contextlib.suppress(InterlockError):
                await _delegate(kit, run, message, number=number, timeout=0.02)

    await _Deaf(work())
    return "orphan"


async def _delegate(kit: Kit, run: Run, message: Message, *, number: int = 0, **options: Any) -> None:
    heir = HEIRS[(zlib.crc32(message.text.encode()) + number) % len(HEIRS)]
    if message.text.count("below") >= 2:
        heir = "reply"
    child = await kit.delegate(run, f"{heir} {number} below {message.text}", **options)
    if kit.oracle is not None and not options.get("detached"):
        kit.oracle.heard_of(run.id, child.run_id)


async def holder(kit: Kit, run: Run, message: Message) -> str | None:
    """Take a hold for a while."""
    async with run.hold("tree") as hold:
        if kit.oracle is not None:
            kit.oracle.holds(run.id, "tree", hold.token)
        try:
            await asyncio.sleep(0.005)
            await run.say("mine")
            await asyncio.sleep(0.02)
        finally:
            if kit.oracle is not None:
                kit.oracle.lets_go(run.id, "tree")
    return "held"


async def mole(kit: Kit, run: Run, message: Message) -> str | None:
    """Wait for a hold without ever hearing of a cancel."""
    await _Deaf(holder(kit, run, message))
    return "dug"


async def miser(kit: Kit, run: Run, message: Message) -> str | None:
    """Take a hold, and use it in a tool that swallows every cancel."""
    async with run.hold("tree") as hold:
        if kit.oracle is not None:
            kit.oracle.holds(run.id, "tree", hold.token)
        try:
            await run.call(kit.stubborn(run))
        finally:
            if kit.oracle is not None:
                kit.oracle.lets_go(run.id, "tree")
    return "let go"


async def hasty(kit: Kit, run: Run, message: Message) -> str | None:
    """Wait for a hold, but not for long."""
    try:
        async with asyncio.timeout(0.003):
            return await holder(kit, run, message)
    except TimeoutError:
        return "too long"


async def listener(kit: Kit, run: Run, message: Message) -> str | None:
    """Take in every steered message."""
    for _ in range(8):
        for taken in await _take_in(kit, run):
            await run.say(f"and {taken.text}")
        await asyncio.sleep(0.002)
    return "listened"


async def _take_in(kit: Kit, run: Run) -> list[Message]:
    steered = await run.check()
    for taken in steered:
        if kit.oracle is not None:
            kit.oracle.took_in(run.id, taken.text)
        if kit.oracle is not None and taken.child is not None:
            kit.oracle.announced(run.id, taken.child)
    return steered


async def spawner(kit: Kit, run: Run, message: Message) -> str | None:
    """Run a program, and one in a block, and one for too long."""
    await run.spawn("work", run.id, "0.006")
    async with run.spawn("work", run.id, "1"):
        await asyncio.sleep(0.003)
    done = await run.spawn("work", run.id, "1", timeout=0.01)
    return f"spawned {done.timed_out}"


async def daemon(kit: Kit, run: Run, message: Message) -> str | None:
    """Go on starting programs in the background, in a task that is never cut."""

    async def later() -> None:
        with contextlib.suppress(Stale):
            for number in range(6):
                with contextlib.suppress(InterlockError):
                    await run.spawn("work", run.id, "9", background=True, name=f"d{number % 2}")

    kit.ghosts.append(asyncio.ensure_future(later()))
    await asyncio.sleep(0.1)
    return "daemon"


async def leaver(kit: Kit, run: Run, message: Message) -> str | None:
    """Leave a detached program behind."""
    await run.spawn("work", run.id, "3", detached=True, name="left")
    await run.spawn("work", run.id, "0.1", background=True)
    return "left"


def crunch(run_id: str) -> str:
    """A synchronous tool."""
    return f"crunched for {run_id}"


async def cruncher(kit: Kit, run: Run, message: Message) -> str | None:
    """Call synchronous tools: one with a short timeout, some in a task that is never cut."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.002):
            await run.call(crunch, run_id=run.id)

    async def later() -> None:
        with contextlib.suppress(Stale):
            for _ in range(4):
                await run.call(crunch, run_id=run.id)

    kit.ghosts.append(asyncio.ensure_future(later()))
    await asyncio.sleep(0.05)
    return "crunched"


BEHAVIOURS: dict[str, Behaviour] = {
    behave.__name__: behave
    for behave in (
        polite, reply, flood, chatter, deaf, dawdle, shrug, swallow_one, swallow_all, hammer, never, raises, dirty,
        haunt, tools, batch, parallel, obstinate, thread, impatient, suicide, sleeper, nested, asker, guarded, gambler,
        parent, litter, cuckoo, nester, absentee, orphan, holder, mole, miser, hasty, listener,
        spawner, daemon, leaver, cruncher,
    )
}  # fmt: skip
