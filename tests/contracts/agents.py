"""Agents and tools that use every verb of a run: imported by name, in this process or in a host.

A message names a scene and a file: the scene plays its part and notes down what it saw, a line of JSON each. The
test can read the file wherever the agent ran, also after the run's end.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import interlock
from interlock import Message, Run, SpawnFailed, Stale
from interlock.agent.bounds import QUESTION_BYTES, REPLY_BYTES

BOUND_SECONDS = 60.0
# A timeout of an agent's own: short, and never measured.
SOON_SECONDS = 0.05
# A limit on a program, which takes a while to begin on a busy machine.
BEGUN_SECONDS = 0.5
KEPT: list[str] = []
"""What this process remembers of its turns."""


class Notes:
    """The notes of a scene, in a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def add(self, what: str, value: Any = None) -> None:
        """Append a note, at once and whole."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, value]) + "\n")

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return str(self._path)


Scene = Callable[[Run, Message, Notes], Awaitable[Any]]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    """Register a scene under its name."""
    SCENES[function.__name__] = function
    return function


async def agent(run: Run, message: Message) -> Any:
    """Play the scene that the message names."""
    name, path = message.text.split()[:2]
    return await SCENES[name](run, message, Notes(path))


async def child(run: Run, message: Message) -> str | None:
    """Answer, fail, or wait for ever, as a child."""
    match message.text.split():
        case ["fail"]:
            raise LookupError("nothing there")
        case ["idle"]:
            await asyncio.sleep(3600)
        case ["hold", path]:
            async with run.hold("the child's"):
                Path(path).touch()
                await asyncio.sleep(3600)
        case ["told"]:
            return f"{message.instructions}"
        case ["who"]:
            return f"{message.by} {message.session == run.session} {message.run_id == run.id}"
    await run.say("a piece ")
    return f"of {message.text}"


async def tried(work: Awaitable[Any]) -> Any:
    """Await something; return its result, or the error as text."""
    try:
        return await work
    except (Exception, Stale) as error:
        return described(error)


def described(error: BaseException) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}"


async def until(seen: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not seen():
            await asyncio.sleep(0.002)


async def gives_it_up(run: Run, work: Awaitable[Any], begun: Callable[[], Any] = lambda: True) -> None:
    """Await work under a timeout of the agent's own, which expires once control knows that the work is under way."""

    async def expires() -> None:
        await asyncio.sleep(SOON_SECONDS)
        await until(begun)
        for _ in range(10):  # control has heard every earlier request when it has answered this often
            await run.check()
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        TASKS.add(asyncio.create_task(expires()))
        await work


TASKS: set[asyncio.Task[None]] = set()


# Tools

DONE: list[str] = []
"""Which tools have begun to wait, or have added, in this process."""


async def adds(a: int, b: int) -> int:
    """Add two numbers, as an async tool."""
    await asyncio.sleep(0)
    DONE.append("adds")
    return a + b


def joins(words: list[str], *, by: str = " ") -> dict[str, Any]:
    """Join texts, as a synchronous tool."""
    return {"joined": by.join(words), "count": len(words)}


@interlock.tool(name="digest", thread=True)
def digests(text: str) -> str:
    """Reverse a text, as a synchronous tool that wants a thread."""
    return f"{text[::-1]} {threading.current_thread() is threading.main_thread()}"


async def breaks(why: str) -> None:
    """Raise, as an async tool."""
    raise KeyError(why)


def snaps(why: str) -> None:
    """Raise, as a synchronous tool."""
    raise ValueError(why)


@interlock.tool(thread=True)
def frays(why: str) -> None:
    """Raise, as a tool in a thread."""
    raise LookupError(why)


class Torn(Exception):
    """An error of this module's own."""


def tears(how: str) -> Any:
    """Return or raise something that is not plain data, as a synchronous tool."""
    match how:
        case "pair":
            return {"pair": (1, (2, 3))}
        case "own":
            raise Torn("all over")
        case "exit":
            raise SystemExit(6)
    return object()


async def exits(code: int) -> None:
    """Raise SystemExit, as a tool."""
    raise SystemExit(code)


async def hands_out() -> object:
    """Return an object that no wire can hold."""
    return object()


async def waits(seconds: float) -> str:
    """Sleep for a while, as a tool."""
    DONE.append("waits")
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@interlock.tool(name="deploy", approval="ask")
async def deploys(to: str) -> str:
    """Deploy, as a tool that a person must allow."""
    return f"deployed to {to}"


@interlock.tool(grace=5.0)
async def tidies(path: str) -> None:
    """Wait, as a tool that needs a moment to clean up when it is cut."""
    notes = Notes(path)
    try:
        notes.add("began")
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.01)
        notes.add("tidied")


@interlock.tool(grace=5.0)
def listens(path: str) -> str:
    """Wait for the end of the run and clean up, as a synchronous tool."""
    notes = Notes(path)
    notes.add("began", interlock.stopping().is_set())
    interlock.stopping().wait()
    notes.add("tidied", interlock.stopping().is_set())
    return "a result that comes too late"


# Saying


@scene
async def speaks(run: Run, message: Message, notes: Notes) -> str:
    """Use every verb that shows something to a person."""
    await run.typing()
    await run.say("Hel")
    await run.say("")
    await run.say("lo ☃")
    await run.progress("reading", done=1, total=2.5)
    await run.progress("still reading")
    async with run.phase("outer"):
        async with run.phase("provider"):
            await run.say("!")
        await run.post("A block.")
    await run.typing(False)
    await run.say("And")
    notes.add("run", [run.id == message.run_id, run.session == message.session, run.current, run.generation > 0])
    notes.add("message", [message.by, message.previous is None, [(part.text, part.by) for part in message.parts]])
    return " so on."


@scene
async def hushes(run: Run, message: Message, notes: Notes) -> None:
    """Say nothing."""


@scene
async def trails(run: Run, message: Message, notes: Notes) -> None:
    """Leave deltas open and return nothing."""
    await run.say("the ")
    await run.say("end")


@scene
async def counts(run: Run, message: Message, notes: Notes) -> Any:
    """Return a value that is no text."""
    return 42


@scene
async def halves(run: Run, message: Message, notes: Notes) -> str:
    """Return text that no wire can hold."""
    return "half \ud83d"


class Marked(str):
    """A subclass of str, as libraries make them."""

    __slots__ = ()


@scene
async def marks(run: Run, message: Message, notes: Notes) -> str:
    """Hand over texts and numbers of subclasses, as libraries make them."""
    ratio = type("Ratio", (float,), {})
    notes.add("say", await tried(run.say(Marked("said"))))
    notes.add("post", await tried(run.post(Marked("posted"))))
    notes.add("progress", await tried(run.progress(Marked("far"), done=ratio(0.5), total=1)))
    notes.add("typing", await tried(run.typing(1)))  # type: ignore[arg-type]
    async with run.phase(Marked("phase")):
        notes.add("phase")
    async with run.hold(Marked("thing")) as held:
        notes.add("hold", held.name)
    notes.add("delegate", (await run.delegate(Marked("child"), Marked("work"))).text)
    notes.add("ask", await tried(run.ask(Marked("Well?"), choices=[Marked("a"), "b"], timeout=SOON_SECONDS)))
    notes.add("spawn", (await run.spawn(Marked("echo"), Marked("hi"), name=Marked("it"))).output)
    return Marked("the end")


@scene
async def overflows(run: Run, message: Message, notes: Notes) -> str:
    """Say more than a reply may hold."""
    await run.say("x" * (REPLY_BYTES - 10))
    notes.add("say", await tried(run.say("y" * 11)))
    notes.add("post", await tried(run.post("y" * 11)))
    await run.post("z" * 10)
    notes.add("more", await tried(run.say("y")))
    return "one more"


@scene
async def widens(run: Run, message: Message, notes: Notes) -> None:
    """Say the most characters a reply may hold, each of them wide."""
    await run.say("😀" * REPLY_BYTES)


@scene
async def lengthens(run: Run, message: Message, notes: Notes) -> str:
    """Hand over more than a message of the link may hold, wherever no other limit applies."""
    long = "x" * (17 * 1024 * 1024)

    async def returns() -> str:
        return long

    async def takes(text: str) -> int:
        return len(text)

    notes.add("result", (await tried(run.call(returns)))[:1_000])
    notes.add("argument", await tried(run.call(takes, text=long)))
    notes.add("progress", await tried(run.progress(long)))
    notes.add("command", await tried(run.spawn("true", long)))
    notes.add("environment", await tried(run.spawn("true", env={"LONG": long})))
    notes.add("input", await tried(counted(run, "x" * (9 * 1024 * 1024))))
    return "still here"


async def counted(run: Run, text: str) -> str:
    """Let a program count its input."""
    return (await run.spawn("wc", "-c", input=text)).output


# Failing


@scene
async def fails(run: Run, message: Message, notes: Notes) -> None:
    """Raise."""
    await run.say("so far")
    raise ValueError("it broke")


@scene
async def fails_outside(run: Run, message: Message, notes: Notes) -> None:
    """Raise in the provider's phase."""
    async with run.phase("outer"), run.phase("provider"):
        raise ConnectionError("no answer")


@scene
async def fails_later(run: Run, message: Message, notes: Notes) -> None:
    """Recover from an error of the provider, then raise another."""
    try:
        async with run.phase("provider"):
            raise ConnectionError("no answer")
    except ConnectionError:
        pass
    raise ValueError("our own")


@scene
async def fails_within(run: Run, message: Message, notes: Notes) -> None:
    """Raise an error from an inner phase through the provider's phase."""
    async with run.phase("provider"), run.phase("parsing"):
        raise ValueError("bad words")


class Odd(BaseException):
    """An error that `except Exception` does not catch."""


@scene
async def fails_oddly(run: Run, message: Message, notes: Notes) -> None:
    """Raise a BaseException, in the provider's phase."""
    async with run.phase("provider"):
        raise Odd("not an Exception")


@scene
async def fails_by_exit(run: Run, message: Message, notes: Notes) -> None:
    """Raise SystemExit."""
    raise SystemExit(3)


@scene
async def fails_by_cancel(run: Run, message: Message, notes: Notes) -> None:
    """Raise a CancelledError that control did not send."""
    raise asyncio.CancelledError


@scene
async def fails_by_stale(run: Run, message: Message, notes: Notes) -> None:
    """Raise Stale while the run is current."""
    raise Stale("made up")


@scene
async def fails_in_a_group(run: Run, message: Message, notes: Notes) -> None:
    """Raise from a task group."""
    async with asyncio.TaskGroup() as group:
        group.create_task(breaks("in a task"))


class Mute(Exception):
    """An error that cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError


@scene
async def fails_mutely(run: Run, message: Message, notes: Notes) -> None:
    """Raise an error that cannot be described."""
    raise Mute


# Tools through the gate


@scene
async def calls(run: Run, message: Message, notes: Notes) -> str:
    """Call tools of every kind, failing ones included."""
    await run.say("Now ")
    notes.add("async", await run.call(adds, a=1, b=2))
    notes.add("sync", await run.call(joins, words=["a", "☃"], by="-"))
    notes.add("thread", await run.call(digests, text="abc"))
    notes.add("object", await run.call(partial_of(adds), b=5))
    for name, work in {
        "raises": run.call(breaks, why="missing"),
        "raises in its process": run.call(snaps, why="bad"),
        "raises in its thread": run.call(frays, why="torn"),
        "result": run.call(hands_out),
        "argument": run.call(adds, a=object(), b=1),
        "wrong names": run.call(adds, c=1),
        "wrong names, sync": run.call(joins, c=1),
    }.items():
        notes.add(name, await tried(work))
    try:
        await run.call(exits, code=4)
    except SystemExit as error:
        notes.add("exits", described(error))
    return "done."


@scene
async def calls_what_is_not_plain(run: Run, message: Message, notes: Notes) -> None:
    """Call a synchronous tool that returns or raises something that is not plain data."""
    for how in ("pair", "own", "exit", "object"):
        try:
            notes.add(how, repr(await run.call(tears, how=how)))
        except BaseException as error:
            notes.add(how, described(error))


def partial_of(function: Callable[..., Any]) -> Any:
    """A tool that is an object with an async call."""

    class Half:
        async def __call__(self, **arguments: Any) -> Any:
            return await function(a=1, **arguments)

    return Half()


@scene
async def is_allowed(run: Run, message: Message, notes: Notes) -> None:
    """Call a tool that a person must allow, several times."""
    for place in ("test", "production"):
        notes.add(place, await tried(run.call(deploys, to=place)))
    results = await run.batch([(deploys, {"to": "moon"}), (adds, {"a": 1, "b": 1})])
    notes.add("batch", [(each.name, each.state, each.value, each.error and described(each.error)) for each in results])


@scene
async def batches(run: Run, message: Message, notes: Notes) -> None:
    """Call several tools at once, and one after another."""
    wanted = [(waits, {"seconds": 0.02}), (breaks, {"why": "gone"}), (adds, {"a": 3, "b": 4}), (joins, {"words": []})]
    for parallel in (False, True):
        results = await run.batch(wanted, parallel=parallel)
        told = [(each.name, each.state, each.value, each.error and described(each.error)) for each in results]
        notes.add("parallel" if parallel else "sequential", told)
    notes.add("none", await run.batch([]))


@scene
async def exits_in_a_batch(run: Run, message: Message, notes: Notes) -> None:
    """Call a parallel batch in which a tool raises an error that `except Exception` does not catch."""
    results = await run.batch([(exits, {"code": 5}), (adds, {"a": 1, "b": 1})], parallel=True)
    notes.add("results", [(each.name, each.state, each.value, type(each.error).__name__) for each in results])


@scene
async def gives_up(run: Run, message: Message, notes: Notes) -> None:
    """Give up calls by a timeout of the agent's own."""
    for name, (work, begun) in {
        "call": (run.call(waits, seconds=3600), {"waits"}),
        "sequential": (run.batch([(waits, {"seconds": 3600}), (adds, {"a": 1, "b": 1})]), {"waits"}),
        "parallel": (
            run.batch([(waits, {"seconds": 3600}), (adds, {"a": 1, "b": 1})], parallel=True),
            {"waits", "adds"},
        ),
        "unanswered": (run.call(deploys, to="nowhere"), set[str]()),
    }.items():
        DONE.clear()
        try:
            await gives_it_up(run, work, lambda begun=begun: begun <= set(DONE))  # type: ignore[misc]
        except TimeoutError:
            notes.add(name, run.current)
    notes.add("after", await run.call(adds, a=2, b=2))


# People


@scene
async def asks(run: Run, message: Message, notes: Notes) -> None:
    """Ask a person, in every way."""
    await run.say("Let me ask")
    notes.add("yes", await run.ask("Go on?"))
    notes.add("no", await run.ask("Really?"))
    notes.add("choice", await run.ask("Which?", choices=["red", "blue"]))
    notes.add("expired", await run.ask("Anyone?", timeout=SOON_SECONDS))
    try:
        await gives_it_up(run, run.ask("Hello?", timeout=3600))
    except TimeoutError:
        notes.add("given up")


@scene
async def asks_once(run: Run, message: Message, notes: Notes) -> str:
    """Ask, and wait."""
    return str(await run.ask("Go on?"))


# Children


@scene
async def delegates(run: Run, message: Message, notes: Notes) -> None:
    """Delegate to another agent, in every way."""
    for name, work in {
        "done": run.delegate("child", "work"),
        "failed": run.delegate("child", "fail"),
        "late": run.delegate("child", "idle", timeout=SOON_SECONDS),
        "who": run.delegate("child", "who"),
        "detached": run.delegate("child", "idle", detached=True),
    }.items():
        told = await work
        outcome = told.outcome
        notes.add(name, [outcome.ending, told.text, outcome.error, outcome.error_kind, outcome.limit_ms])
        notes.add("ids", outcome.run_id == told.run_id)
    notes.add("unknown", await tried(run.delegate("nobody", "work")))
    try:
        await gives_it_up(run, run.delegate("child", "idle"))
    except TimeoutError:
        notes.add("given up")


@scene
async def delegates_idly(run: Run, message: Message, notes: Notes) -> None:
    """Wait for a child that waits for ever."""
    await run.delegate("child", "idle")


@scene
async def hears_of_a_child(run: Run, message: Message, notes: Notes) -> None:
    """Leave a child running, and absorb its announcement."""
    begun = await run.delegate("child", "work", detached=True)
    notes.add("refused", await tried(run.delegate("child", "work", detached=True, announce="now")))  # type: ignore[arg-type]
    while not (taken := await run.check()):
        await asyncio.sleep(0.005)
    for each in taken:
        assert each.child is not None
        notes.add("same", each.child.run_id == begun.run_id == each.parts[0].child.run_id)  # type: ignore[union-attr]
        notes.add("child", [each.child.outcome.ending, each.child.text, each.by])
        notes.add("words", each.text.replace(begun.run_id, "ID"))


# Holds


@scene
async def holds(run: Run, message: Message, notes: Notes) -> None:
    """Take a hold, release it when a file says so."""
    async with run.hold("worktree") as held:
        notes.add(f"{run.session} has", [held.name, held.token > 0, held.unconfirmed])
        await until(lambda: Path(f"{notes.path}.{run.session}").exists())
        notes.add("again", await tried(enters(run, "worktree")))
        notes.add(f"{run.session} lets go")
    async with run.hold("worktree"):
        notes.add(f"{run.session} has it again")


async def enters(run: Run, name: str) -> str:
    """Take a hold and release it."""
    async with run.hold(name) as held:
        return held.name


@scene
async def gives_a_hold_up(run: Run, message: Message, notes: Notes) -> None:
    """Wait for a hold no longer than the message says, then go on without it."""
    _, _, *seconds = message.text.split()
    try:
        async with asyncio.timeout(float(seconds[0]) if seconds else SOON_SECONDS):
            notes.add("got", await enters(run, "worktree"))
    except TimeoutError:
        notes.add("given up")
    notes.add("another", await enters(run, "other"))


# Processes


@scene
async def spawns(run: Run, message: Message, notes: Notes) -> None:
    """Run programs in every way that waits for them."""
    room = Path(notes.path).parent
    await run.say("Running")
    told = await run.spawn("sh", "-c", "echo out; echo err >&2; exit 3")
    notes.add("status", [told.status, told.output, told.ok, told.left_out, told.timed_out])
    notes.add("signal", (await run.spawn("sh", "-c", "kill -9 $$")).status)
    notes.add("input", [(await run.spawn("cat", input=given)).output for given in ("grüße", b"bytes", None)])
    notes.add("much", len((await run.spawn("cat", input=b"x" * 300_000)).data))
    notes.add("bytes", list((await run.spawn("printf", r"a\377")).data))
    notes.add("cwd", (await run.spawn("pwd", cwd=room)).output.strip() == str(room))
    told = await run.spawn("sh", "-c", "echo $ADDED; echo ${HOME-none}", env={"ADDED": "more", "HOME": None})
    notes.add("env", told.output)
    notes.add("pty", (await run.spawn("tty", pty=True)).output.startswith("/dev/pts/"))
    told = await run.spawn("sleep", "3600", timeout=BEGUN_SECONDS)
    notes.add("timeout", [told.status, told.timed_out])
    told = await run.spawn("sh", "-c", "trap 'echo bye; exit 7' TERM; sleep 3600 & wait", timeout=1, grace=5)
    notes.add("grace", [told.status, told.output, told.timed_out])
    notes.add("not utf-8", list((await run.spawn("printf", "%s", "a\udcffb")).data))
    for name, argv in {"not found": ("no-such-program",), "not allowed": ("/etc/passwd",)}.items():
        try:
            await run.spawn(*argv)
        except SpawnFailed as error:
            notes.add(name, [error.errno, str(error), error.strerror])
    try:
        await run.spawn("true", cwd="/no/such/place")
    except SpawnFailed as error:
        notes.add("no place", [error.errno, str(error)])


@scene
async def streams(run: Run, message: Message, notes: Notes) -> None:
    """Read the lines of a program."""
    async with run.spawn("sh", "-c", "for i in 1 2 3; do echo line $i; done; printf rest") as process:
        notes.add("lines", [line async for line in process])
        notes.add("end", (await process.wait()).status)
    async with run.spawn("sh", "-c", "echo first; exec sleep 3600") as process:
        async for line in process:
            notes.add("line", line)
            break
    notes.add("gone", [process.running, process.status, Path(f"/proc/{process.pid}").exists()])
    background = await run.spawn("true", background=True)
    try:
        async for _ in background:
            pass
    except interlock.BadInput as error:
        notes.add("no lines", str(error))
    await background.wait()
    notes.add("detached", await tried(entered(run.spawn("true", detached=True))))


async def entered(block: Any) -> Any:
    """Enter a block and leave it."""
    async with block as inside:
        return inside


@scene
async def runs_behind(run: Run, message: Message, notes: Notes) -> None:
    """Run programs in the background."""
    go = f"{notes.path}.go"
    process = await run.spawn(
        "sh", "-c", f"echo begun; until [ -e {go} ]; do sleep 0.01; done; exit 5", background=True
    )
    await until(lambda: process.output)
    notes.add("begun", [process.output, process.running, process.status, process.name, process.pid is not None])
    Path(go).touch()
    await asyncio.wait_for(process.exited(), BOUND_SECONDS)
    notes.add("exited", [process.running, process.status])
    done = await process.wait()
    notes.add("waited", [done.status, done.output, process.running, process.status, process.output])
    process = await run.spawn("sleep", "3600", background=True, name="sleeper")
    other = await run.spawn("sleep", "3600", background=True, name="sleeper")
    notes.add("replaced", [process.running, process.status, other.running, other.name])
    await other.stop()
    notes.add("stopped", [other.running, other.status, Path(f"/proc/{other.pid}").exists()])
    await other.stop()
    other.end()
    notes.add("stopped again", (await other.wait()).status)
    limited = await run.spawn("sleep", "3600", background=True, timeout=BEGUN_SECONDS)
    told = await limited.wait()
    notes.add("limited", [told.status, told.timed_out, limited.timed_out])


@scene
async def leaves_running(run: Run, message: Message, notes: Notes) -> str:
    """Leave a process in the background, and a detached one."""
    process = await run.spawn("sleep", "3600", background=True)
    kept = await run.spawn("sleep", "3600", detached=True, name="kept")
    notes.add("pids", [process.pid, kept.pid])
    return "left"


@scene
async def gives_a_process_up(run: Run, message: Message, notes: Notes) -> None:
    """Give up a program that has said its pid, once control knows that the program runs."""
    said, known = Path(f"{notes.path}.pid"), Path(f"{notes.path}.known")
    program = run.spawn("sh", "-c", f"echo $$ > {said}; exec sleep 3600")
    try:
        await gives_it_up(run, program, lambda: known.exists() and said.exists() and said.read_text().endswith("\n"))
    except TimeoutError:
        pid = int(said.read_text())
        notes.add("gone", not Path(f"/proc/{pid}").exists())


# The conversation


@scene
async def is_steered(run: Run, message: Message, notes: Notes) -> str:
    """Absorb the messages that are steered to this run."""
    notes.add("nothing yet", await run.check())
    await run.say("ready")
    taken: list[Message] = []

    async with asyncio.timeout(BOUND_SECONDS):
        while not taken:
            await asyncio.sleep(0.002)
            taken = await run.check()
    notes.add("taken", [(each.text, each.by, each.session == run.session, each.run_id != run.id) for each in taken])
    notes.add("parts", [[(part.text, part.by) for part in each.parts] for each in taken])
    notes.add("history", [(entry.role, entry.text) for entry in await run.history()][1:])
    return "steered"


@scene
async def recalls(run: Run, message: Message, notes: Notes) -> str:
    """Note down the conversation so far, and how the last turn ended."""
    entries = await run.history()
    notes.add("history", [(each.role, each.text, each.tool, each.state, each.cut, each.ending) for each in entries])
    before = message.previous
    if before is not None:
        notes.add("previous", [before.ending, before.text, before.by, before.error, before.error_kind, before.phase])
    return "recalled"


@scene
async def mumbles(run: Run, message: Message, notes: Notes) -> None:
    """Say something and wait for ever, politely."""
    await run.say("well, ")
    await asyncio.sleep(3600)


@scene
async def remembers(run: Run, message: Message, notes: Notes) -> str:
    """Return this process's pid, and what the process remembers."""
    KEPT.append(run.session)
    notes.add("pid", os.getpid())
    return ",".join(KEPT)


# After the end


@scene
async def leaves_a_task(run: Run, message: Message, notes: Notes) -> str:
    """Leave a task that tries to go on after the end."""
    TASKS.add(asyncio.create_task(goes_on(run, notes)))
    return "the end"


@scene
async def fails_with_a_task(run: Run, message: Message, notes: Notes) -> str:
    """Leave a task, and raise."""
    TASKS.add(asyncio.create_task(goes_on(run, notes)))
    raise ValueError("it broke")


@scene
async def leaves_waiters(run: Run, message: Message, notes: Notes) -> str:
    """Leave tasks that wait for something of the run."""
    await run.delegate("child", f"hold {notes.path}.held", detached=True)
    await until(lambda: Path(f"{notes.path}.held").exists())
    sleeper = await run.spawn("sleep", "3600", background=True)
    for name, work in {
        "ask": run.ask("Anyone?"),
        "delegate": run.delegate("child", "idle"),
        "hold": enters(run, "the child's"),
        "call": run.call(deploys, to="nowhere"),
        "wait": sleeper.wait(),
    }.items():
        TASKS.add(asyncio.create_task(notes_down(name, work, notes)))
    for _ in range(10):  # every task waits when control has answered this often
        await run.check()
    return "the end"


async def notes_down(name: str, work: Awaitable[Any], notes: Notes) -> None:
    """Note down the result of something."""
    notes.add(name, await tried(work))


async def goes_on(run: Run, notes: Notes) -> None:
    """Try every verb once the run has ended and its end was published."""
    await until(lambda: Path(f"{notes.path}.ended").exists())
    notes.add("current", run.current)
    for name, work in tries(run):
        notes.add(name, await tried(work))
    notes.add("done")


def tries(run: Run) -> list[tuple[str, Awaitable[Any]]]:
    """Return every verb, ready to be tried."""
    return [
        ("say", run.say("late")),
        ("say nothing", run.say("")),
        ("post", run.post("late")),
        ("typing", run.typing()),
        ("progress", run.progress("late")),
        ("phase", entered(run.phase("late"))),
        ("call", run.call(adds, a=1, b=1)),
        ("batch", run.batch([(adds, {"a": 1, "b": 1})])),
        ("ask", run.ask("Late?")),
        ("delegate", run.delegate("child", "late")),
        ("hold", enters(run, "late")),
        ("spawn", run.spawn("true")),
        ("lines", entered(run.spawn("true"))),
        ("check", run.check()),
    ]


@scene
async def goes_on_after_a_stop(run: Run, message: Message, notes: Notes) -> str:
    """Swallow the cancel and try every verb."""
    await run.say("first")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        notes.add("current", run.current)
        for name, work in tries(run):
            notes.add(name, await tried(work))
        notes.add("done")
    return "too late"


@scene
async def is_cut_in_a_tool(run: Run, message: Message, notes: Notes) -> None:
    """Be cut in tools: one done, one running, one not begun."""
    await run.call(adds, a=1, b=1)
    notes.add("began")
    await run.batch([(waits, {"seconds": 3600}), (adds, {"a": 2, "b": 2})])


@scene
async def is_cut_in_a_tidy_tool(run: Run, message: Message, notes: Notes) -> None:
    """Be cut in a tool that has a grace."""
    await run.call(tidies, path=notes.path)


@scene
async def is_cut_in_a_tool_that_listens(run: Run, message: Message, notes: Notes) -> None:
    """Be cut in a synchronous tool that has a grace and asks for the notice."""
    await run.call(listens, path=notes.path)
    notes.add("went on")


@scene
async def is_cut_in_a_phase(run: Run, message: Message, notes: Notes) -> None:
    """Wait for ever in a phase."""
    async with run.phase("provider"), run.phase("thinking"):
        notes.add("began")
        await asyncio.sleep(3600)


# Limit on silence


@scene
async def is_heard(run: Run, message: Message, notes: Notes) -> str:
    """Use one verb alone, for longer than the limit on silence."""
    _, _, seconds, *words = message.text.split()
    verb: Callable[[], Awaitable[Any]] = {
        "say": partial(run.say, "."),
        "say nothing": partial(run.say, ""),
        "post nothing": partial(run.post, ""),
        "typing": run.typing,
        "progress": partial(run.progress, "on"),
        "phase": lambda: entered(run.phase("on")),
        "call": partial(run.call, adds, a=1, b=1),
        "check": run.check,
        "history": run.history,
        "hold": lambda: enters(run, run.id),
    }[" ".join(words)]
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        await verb()
        await asyncio.sleep(float(seconds) / 15)
    return "heard"


@scene
async def is_silent(run: Run, message: Message, notes: Notes) -> None:
    """Work without a verb."""
    async with run.phase("thinking"):
        while True:
            await asyncio.sleep(0.01)


@scene
async def is_busy_elsewhere(run: Run, message: Message, notes: Notes) -> str:
    """Wait for a person, longer than the limit on silence: the run itself is not silent."""
    return str(await run.ask("Well?", timeout=float(message.text.split()[2])))


# Threads and bad input


@scene
async def speaks_from_a_thread(run: Run, message: Message, notes: Notes) -> None:
    """Use the verbs from a thread, rightly and wrongly."""
    loop = asyncio.get_running_loop()

    def rightly() -> Any:
        asyncio.run_coroutine_threadsafe(run.say("from afar"), loop).result(BOUND_SECONDS)
        return asyncio.run_coroutine_threadsafe(run.call(adds, a=3, b=4), loop).result(BOUND_SECONDS)

    def wrongly() -> list[str]:
        async def each() -> list[str]:
            return [f"{name}: {await tried(work)}" for name, work in tries(run)]

        return asyncio.run(each())

    notes.add("rightly", await asyncio.to_thread(rightly))
    notes.add("wrongly", await asyncio.to_thread(wrongly))


@scene
async def errs(run: Run, message: Message, notes: Notes) -> str:
    """Give every verb an argument that it refuses."""
    half = "half \ud83d"
    for name, make in {
        "say": [lambda: run.say(1), lambda: run.say(None), lambda: run.say(b"x"), lambda: run.say(half)],
        "post": [lambda: run.post(1), lambda: run.post(half)],
        "progress": [
            lambda: run.progress(1),
            lambda: run.progress(half),
            lambda: run.progress("x", done="half"),
            lambda: run.progress("x", total=[1]),
            lambda: run.progress("x", done=10**400),
        ],
        "phase": [lambda: entered(run.phase(1)), lambda: entered(run.phase(half))],
        "ask": [
            lambda: run.ask(1),
            lambda: run.ask(" "),
            lambda: run.ask(half),
            lambda: run.ask("x" * (QUESTION_BYTES + 1)),
            lambda: run.ask("x", choices="ab"),
            lambda: run.ask("x", choices=[]),
            lambda: run.ask("x", choices=["a", "a"]),
            lambda: run.ask("x", choices=["a", 1]),
            lambda: run.ask("x", timeout=-1),
            lambda: run.ask("x", timeout="soon"),
            lambda: run.ask("x", timeout=True),
        ],
        "delegate": [
            lambda: run.delegate("", "x"),
            lambda: run.delegate(1, "x"),
            lambda: run.delegate("child", ""),
            lambda: run.delegate("child", half),
            lambda: run.delegate("child", 1),
            lambda: run.delegate("child", "x", timeout=-1),
            lambda: run.delegate("nobody", "x"),
        ],
        "hold": [lambda: enters(run, ""), lambda: enters(run, 1), lambda: enters(run, half)],
        "call": [
            lambda: run.call(1),
            lambda: run.call(adds, a={1: object()}),
            lambda: run.call(adds, a=half),
            lambda: run.batch([(adds, {"a": object()})]),
            lambda: run.batch([(1, {})]),
        ],
        "spawn": [
            lambda: entered(run.spawn()),
            lambda: entered(run.spawn(1)),
            lambda: entered(run.spawn("")),
            lambda: entered(run.spawn("a\0b")),
            lambda: entered(run.spawn(half)),
            lambda: entered(run.spawn("true", cwd=1)),
            lambda: entered(run.spawn("true", cwd="")),
            lambda: entered(run.spawn("true", cwd="a\0b")),
            lambda: entered(run.spawn("true", cwd=half)),
            lambda: entered(run.spawn("true", env=[1])),
            lambda: entered(run.spawn("true", env={"": "x"})),
            lambda: entered(run.spawn("true", env={"A": 1})),
            lambda: entered(run.spawn("true", env={"A": half})),
            lambda: entered(run.spawn("true", input=1)),
            lambda: entered(run.spawn("true", input=half)),
            lambda: entered(run.spawn("true", timeout=-1)),
            lambda: entered(run.spawn("true", grace="long")),
            lambda: entered(run.spawn("true", name="")),
        ],
    }.items():
        for each in make:
            notes.add(name, await tried(made(each)))
    return "none the worse"


async def made(make: Callable[[], Awaitable[Any]]) -> Any:
    """Make something and await it; raise what either raises."""
    return await make()
