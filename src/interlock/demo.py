"""The demo agent: offline, and scripted by what you type. `interlock serve` serves it; `help` lists what it knows.

1. The demo uses what every agent has: the public `interlock` and the standard library. Importing it starts nothing.
2. The demo tells the truth: it reads files and runs programs, and says so where it only plays.
3. Most commands end by themselves at a stop. `deaf`, `daemon` and `hog` do not, and are ended.
4. Every command is bounded: if it is not stopped, it is done after the seconds that it was given.
"""

import ast
import asyncio
import os
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from interlock import Entry, Message, Run, Stale, is_stop

Command = Callable[[Run, Message, str], Awaitable[str | None]]
commands: dict[str, tuple[str, str, Command]] = {}  # by name: usage, description, function

WORD_SECONDS = 0.08
TOOL_SECONDS = 0.8
ANSWER_SECONDS = 120
FOUND = 4  # modules read at most
TEAM = ["code", "file", "trace"]
TEAM_SIZE = 8  # children at most

STEPS = 'i=0; while [ $i -lt $1 ]; do i=$((i + 1)); echo "step $i of $1, by process $$"; sleep 1; done'
WRITE = "echo $$ > pid; while :; do date >> diary; sleep 0.1; done"
HIDE = 'setsid sh -c \'sh -c "$0" &\' "$0"'  # makes an orphan in a session of its own
DAEMON = f"trap '' TERM HUP; {HIDE}; until [ -s pid ]; do sleep 0.02; done; cat pid"

HEROES = ("the lighthouse keeper", "a very small robot", "the baker's cat", "an old postman", "the girl with the kite")
WHEN = ("One morning", "Long after dark", "In the first snow", "On a slow train", "While the soup was cooking")
DEEDS = ("found a door in the hill", "counted every star twice", "taught the wind to whistle", "mended a broken clock")
ENDS = ("nobody was surprised", "the sea said thank you", "there was cake for all", "the lamp burned a little brighter")

TRY = (
    "While I am at work: stop me; or send something else, which takes over; or send it as `queue` or `steer`.",
    "A deadline ends me too. The receipt of each early end says what was ended, and what I still tried.",
)


async def agent(run: Run, message: Message) -> str | None:
    """Run the command that the message names, or list the commands."""
    word, rest = [*message.text.split(maxsplit=1), "", ""][:2]
    known = commands.get(word.strip("/.!?\"'").lower())
    if known is not None:
        return await known[2](run, message, rest)
    if is_stop(message.text):
        return "Nothing else runs in this session."
    return f"I am only a demo, and do not know {word[:40]!r}. {_list()}"


def command(typed: str, does: str) -> Callable[[Command], Command]:
    """Add a function to the commands."""

    def add(function: Command) -> Command:
        commands[typed.partition(" ")[0]] = (typed, does, function)
        return function

    return add


def _list() -> str:
    lines = [f"- `{typed}`: {does}" for typed, does, _ in commands.values()]
    return "\n".join(["Type one of these:", *lines, "", *TRY])


def seconds(rest: str, default: int) -> int:
    """Return the number that was typed, or the default."""
    first = (rest.split() or [""])[0][:4]
    return int(first) if first.isdecimal() else default


# Talking


@command("help", "this list")
async def show_list(run: Run, message: Message, rest: str) -> str:
    """List the commands."""
    return _list()


@command("story [seconds]", "tells a story, word by word, for three minutes")
async def story(run: Run, message: Message, rest: str) -> str:
    """Stream for a long time."""
    await run.typing()
    await asyncio.sleep(0.5)
    end = monotonic() + seconds(rest, 180)
    while monotonic() < end:
        hero, when, deed, last = (random.choice(part) for part in (HEROES, WHEN, DEEDS, ENDS))
        for word in f"{when} {hero} {deed}, and {last}.".split():
            await run.say(f"{word} ")
            await asyncio.sleep(WORD_SECONDS)
    return "The end."


@command("listen [seconds]", "hears what is steered to it while it runs; `done` ends it")
async def listen(run: Run, message: Message, rest: str) -> str:
    """Take in steered messages without being taken over."""
    end = monotonic() + seconds(rest, 60)
    await run.post("I listen. Send something with the strategy `steer`, and I take it in and go on.")
    while monotonic() < end:
        for heard in await run.check():
            if heard.text.strip().lower() == "done":
                return "Thank you, I am done."
            await run.post(f"I heard {heard.text[:200]!r}.")
        await asyncio.sleep(0.05)
    return "I have listened long enough."


@command("last", "says how its last turn ended, and what was said before")
async def last(run: Run, message: Message, rest: str) -> str:
    """Tell how the last turn ended, and what was said."""
    before = message.previous
    if before is None:
        return "This is our first turn. Try `story`, stop it, and ask me again."
    said = [entry for entry in await run.history() if entry.run_id != run.id][-6:]
    by = f", by {before.by}" if before.by else f", in phase {before.phase}" if before.phase else ""
    return "\n".join([f"My last turn ended as {before.ending}{by}. What I remember:", *map(_line, said)])


def _line(entry: Entry) -> str:
    told = " ".join(part for part in (entry.tool, repr(entry.text[:60]) if entry.text else None) if part)
    return f"  {entry.role}: {told}{f' (cut: {entry.ending})' if entry.cut else ''}"


# Tools


async def search(word: str) -> list[str]:
    """Find modules of Python's own library by a word in their name."""
    await asyncio.sleep(TOOL_SECONDS)
    return [name for name in sorted(sys.stdlib_module_names) if word in name and name[0] != "_"][:FOUND]


def read(module: str) -> str:
    """Return the first line of a module's docstring. This is a plain function, so a stop ends its process."""
    sleep(TOOL_SECONDS)
    library = Path(sysconfig.get_path("stdlib"))
    files = [file for file in (library / f"{module}.py", library / module / "__init__.py") if file.exists()]
    if not files:
        return f"{module}: not written in Python"
    said = ast.get_docstring(ast.parse(files[0].read_text("utf-8"))) or "says nothing of itself"
    return f"{module}: {said.splitlines()[0]}"


async def write(lines: list[str]) -> str:
    """Return findings as a list in one text."""
    await asyncio.sleep(TOOL_SECONDS)
    return "\n".join(f"  - {line}" for line in lines)


async def rehearse(step: str) -> str:
    """Play a step of a deployment."""
    await asyncio.sleep(TOOL_SECONDS)
    return f"{step}: played"


async def findings(run: Run, word: str) -> list[str]:
    """Search, then read what was found."""
    names: list[str] = await run.call(search, word=word)
    lines = []
    for number, name in enumerate(names):
        await run.progress(f"reading {name}", done=number, total=len(names))
        lines.append(await run.call(read, module=name))
    return lines


@command("work [word]", "searches Python's library for a word, reads and writes, a tool at a time")
async def work(run: Run, message: Message, rest: str) -> str:
    """Call several tools, one after the other."""
    word = rest.strip()[:40] or "file"
    await run.post(f"I look for {word!r} in Python's own library.")
    note = await run.call(write, lines=await findings(run, word))
    return f"What I found:\n{note}" if note else f"No module has {word!r} in its name."


@command("deploy", "asks for your approval, then plays a deployment")
async def deploy(run: Run, message: Message, rest: str) -> str:
    """Ask a person, and act on the answer."""
    await run.post("I need your word for this.")
    if not await run.ask("Deploy? It is only played: nothing leaves this machine.", timeout=ANSWER_SECONDS):
        return f"Not deployed: the answer was no, or nobody answered for {ANSWER_SECONDS} s."
    done = await run.batch([(rehearse, {"step": step}) for step in ("check", "upload", "switch over")])
    return f"You said yes. {', '.join(str(result.value) for result in done)}."


@command("team [words]", "has a child at work on each of three words at once, each a run of its own")
async def team(run: Run, message: Message, rest: str) -> str:
    """Delegate to this agent itself, by the name under which it is served."""
    words = rest.split()[:TEAM_SIZE] or TEAM
    await run.post(f"We are {len(words)}, and look for {', '.join(words)}.")
    found = await asyncio.gather(*(run.delegate("agent", f"research {word}") for word in words))
    told = [child.text or f"{child.outcome.ending} {child.outcome.error or ''}" for child in found]
    return "\n".join(f"{word}: {text}" for word, text in zip(words, told, strict=True))


@command("research [word]", "what each of the team does")
async def research(run: Run, message: Message, rest: str) -> str:
    """Search, read, and return the findings in one line."""
    return "; ".join(await findings(run, rest.strip()[:40] or "file")) or "nothing"


# Programs


@command("build [steps]", "runs a shell script and shows its lines as they come")
async def build(run: Run, message: Message, rest: str) -> str:
    """Run a program, which dies with the run."""
    async with run.spawn("sh", "-c", STEPS, "build", str(seconds(rest, 10))) as process:
        async for line in process:
            await run.say(f"{line}\n")
        done = await process.wait()
    return f"The script exited with {done.status}."


@command("daemon [seconds]", "starts a daemon that hides, ignores TERM and writes a file; stop me and watch the file")
async def daemon(run: Run, message: Message, rest: str) -> str:
    """Start a daemon that would outlive most agents."""
    diary = Path(tempfile.mkdtemp(prefix="interlock-demo-")) / "diary"
    end = monotonic() + seconds(rest, 120)
    async with run.spawn("sh", "-c", DAEMON, WRITE, cwd=diary.parent) as process:
        pid = await anext(aiter(process))
        await run.post(f"Daemon {pid} writes to {diary} ten times a second. Stop me, and look for both.")
        while monotonic() < end:
            await asyncio.sleep(0.5)
            await run.progress(f"{diary} has {diary.stat().st_size if diary.exists() else 0} bytes")
    shutil.rmtree(diary.parent)
    return "Nobody stopped me. The daemon was ended as I left, and its file is deleted."


# Trouble


@command("slow [seconds]", "waits in phase `provider` for a minute: send it with a deadline")
async def slow(run: Run, message: Message, rest: str) -> str:
    """Wait in a phase, which the outcome names if a deadline passes."""
    wanted = seconds(rest, 60)
    async with run.phase("provider"):
        await asyncio.sleep(wanted)
    return f"I have waited {wanted} s, and no deadline came."


@command("fail", "raises an error")
async def fail(run: Run, message: Message, rest: str) -> str:
    """Fail."""
    await run.say("Here it comes. ")
    raise RuntimeError("you asked me to fail, and I did")


@command("deaf [seconds]", "swallows every cancel and goes on: the receipt counts what it was refused")
async def deaf(run: Run, message: Message, rest: str) -> str:
    """Swallow every cancel; once stopped, try to call a tool and start a process as well."""
    verbs: list[Callable[[], Awaitable[object]]] = [lambda: run.say("La la la. ")]
    after = [*verbs, lambda: run.call(rehearse, step="late"), lambda: run.spawn("true")]
    end, pause = monotonic() + seconds(rest, 60), 0.2
    while monotonic() < end:
        for verb in verbs:
            try:
                await verb()
            except (asyncio.CancelledError, Stale):
                verbs, pause = after, 0.02
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(pause)
    return "Nobody stopped me."


def process_id() -> int:
    """Return the process in which a synchronous tool runs: the agent's own in a host, a worker inline."""
    return os.getpid()


@command("hog [seconds]", "computes without a pause and hears nothing: its process is ended")
async def hog(run: Run, message: Message, rest: str) -> str:
    """Compute without yielding; inline this is refused, since it would block the whole server."""
    if await run.call(process_id) != os.getpid():
        return "I share a loop with the server here (driver `inline`), and would hold up all of it. Serve me by `host`."
    wanted = seconds(rest, 60)
    await run.post(f"I hog a processor for {wanted} s now, and hear nothing. Stop me.")
    end = monotonic() + wanted
    while monotonic() < end:
        pass
    return "Nobody stopped me."
