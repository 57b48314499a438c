"""A scripted session in the terminal: an agent is stopped, taken over, timed out, stopped against its will, stopped
with a question open and a child at work, and stopped with a daemon that writes a file.

1. Nothing is faked: a real control runs real agents, and what is shown comes from `watch` and from receipts.
2. The script waits for what it hears, never for a time by which something should have happened.
3. After each end it goes on listening, and counts what the old run still said. The count must be 0.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter

import anyio
from anyio.abc import TaskGroup
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from interlock import Control, Event, Message, Moment, Outcome, QuestionClosed, Receipt, Run, Stale, open_control
from interlock.core.events import Asked, Block, Delegated, Delta, Ended, Phase, Said, Spawned, Tool
from interlock.core.names import EventKind, RunId, ToolState
from interlock.core.projection import client_words
from interlock.runtime.settings import REFUSALS

SESSION, ALICE = "alice", "alice"
LISTEN_SECONDS = 1.2  # how long we go on listening after each end
FAST = 0.02  # --fast plays at this fraction of the time
DEADLINE_SECONDS = 1.5

STOPPED = "Book me a flight to Oslo."
LONG = "Tell me all about Norway."
SHORT = "Just the capital, please."
SLOW = "How many fjords are there?"
DEAF = "Talk, and never stop."
ASKING = "Plan the whole trip."
WRITING = "Keep a diary of it."
DAEMON = "setsid sh -c 'while :; do echo tick >> diary; sleep 0.02; done' & trap '' TERM; wait"

pace: ContextVar[float] = ContextVar("pace", default=1.0)  # every pause is multiplied by it
place: ContextVar[str] = ContextVar("place")  # where the diary is written


async def pause(seconds: float) -> None:
    """Let time pass, at the pace of this performance."""
    await anyio.sleep(seconds * pace.get())


# The agents. Each is what an ordinary agent does on a bad day.


async def find_flight(to: str) -> str:
    """A tool that has done its work when the user says stop."""
    await pause(0.6)
    return f"SK 4455 to {to}"


async def book_flight(number: str) -> str:
    """A tool that is at work when the user says stop."""
    await pause(60)
    return f"booked {number}"


async def mail_ticket(to: str) -> str:
    """A tool that has not begun when the user says stop."""
    await pause(0.1)
    return f"sent to {to}"


async def booking(run: Run, message: Message) -> str:
    """Say something, then call three tools one after the other."""
    await stream(run, "I will find a flight, book it and mail you the ticket. ")
    await run.batch(
        [(find_flight, {"to": "Oslo"}), (book_flight, {"number": "SK 4455"}), (mail_ticket, {"to": message.by})]
    )
    return "Your ticket is in the mail."


async def lecture(run: Run, message: Message) -> str:
    """Hold a long speech; ignore the cancel and try to finish the sentence."""
    try:
        while True:
            await stream(run, "Norway is long. Its coast is longer. Its history is longer still. ")
    except asyncio.CancelledError:
        await run.say("But let me finish: in 872 ...")
        return "And that was Norway."


async def answer(run: Run, message: Message) -> str:
    """Answer at once. The agent is told how the last turn ended."""
    ended = message.previous.ending if message.previous else "nothing"
    await stream(run, f"(my last turn was {ended}) ")
    return "Oslo."


async def count_fjords(run: Run, message: Message) -> str:
    """Take longer than the deadline, and then give the answer all the same."""
    async with run.phase("provider"):
        await stream(run, "One ... two ... ")
        try:
            await pause(60)
        except asyncio.CancelledError:
            await run.say("1,190!")
    return "There are 1,190 fjords."


async def deaf(run: Run, message: Message) -> str:
    """Swallow every cancel and every Stale, and go on talking."""
    while True:
        try:
            await stream(run, "and another thing, ")
        except (asyncio.CancelledError, Stale):
            continue


async def planning(run: Run, message: Message) -> str:
    """Let another agent draw a map, and ask a question meanwhile."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.delegate, "cartographer", "the fjords")
        paid = await run.ask("Pay 900 for the boat?")
    return f"The boat is {'' if paid else 'not '}paid."


async def cartographer(run: Run, message: Message) -> str:
    """Draw for a long time: a child run, in a session of its own."""
    await stream(run, f"Drawing {message.text} ")
    await pause(60)
    return "a map"


async def diarist(run: Run, message: Message) -> str:
    """Start a shell that ignores TERM; it starts a daemon in a session of its own, which writes a file."""
    await stream(run, "A daemon will write it. ")
    await run.spawn("sh", "-c", DAEMON, cwd=place.get())
    return "The diary is complete."


async def stream(run: Run, text: str) -> None:
    """Say a text word by word."""
    for word in text.split(" "):
        if word:
            await run.say(f"{word} ")
            await pause(0.06)


AGENTS = {
    STOPPED: booking,
    LONG: lecture,
    SHORT: answer,
    SLOW: count_fjords,
    DEAF: deaf,
    ASKING: planning,
    WRITING: diarist,
}
CHILDREN = {"cartographer": cartographer}


async def assistant(run: Run, message: Message) -> str:
    """The one agent that control serves; what it does depends on what it is asked."""
    return await AGENTS[message.text](run, message)


# The audience


class Audience:
    """Listens to the session: shows what it hears, and lets the script wait for it."""

    def __init__(self, console: Console) -> None:
        self.heard: list[Event] = []
        self._console = console
        self._news = anyio.Event()
        self._open = False  # a line of deltas is not finished yet

    async def listen(self, control: Control) -> None:
        """Hear everything from the beginning of the session."""
        async for event in control.watch(SESSION):
            self.heard.append(event)
            self._show(event)
            self._news.set()
            self._news = anyio.Event()

    async def until(self, wanted: Callable[[Event], bool]) -> None:
        """Return when something wanted has been heard."""
        while not any(wanted(event) for event in self.heard):
            await self._news.wait()

    def after_end(self, run_id: RunId) -> int:
        """Count the events of a run that came after its terminal event."""
        kinds = [event.kind for event in self.heard if event.run_id == run_id]
        return len(kinds) - kinds.index(EventKind.ENDED) - 1

    def _show(self, event: Event) -> None:
        match event.data:
            case Delta(text=text):
                self._write(text)
            case Said(text=text, by=by):
                self.user(text, by)
            case Tool(name=name, state=state):
                self._line(f"[yellow]tool[/]   {name}: {state}")
            case Phase(name=str(name)):
                self._line(f"[dim]phase  {name}[/]")
            case Asked(text=text, state=state):
                self._line(f"[yellow]asks[/]   {text} ({state})")
            case Delegated(child=child, agent=agent, outcome=outcome):
                self._line(f"[yellow]child[/]  {child} {agent}: {outcome.ending if outcome else 'begun'}")
            case Spawned(command=command, state=state):
                self._line(f"[yellow]process[/] {escape(_shortened(command))}: {state}")
            case Block(text=text) if not self._open:
                self._line(f"[green]agent[/]  {text}")
            case Ended(outcome=outcome):
                self._line(f"[bold magenta]ended[/]  run {outcome.run_id} {client_words(outcome)}")
            case _:
                self._break()

    def user(self, text: str, by: str = ALICE) -> None:
        """Show what a person says."""
        self._line(f"[bold cyan]{by}[/]  {text}")

    def _write(self, text: str) -> None:
        self._console.print(text if self._open else f"[green]agent[/]  {text}", end="", highlight=False)
        self._open = True

    def _line(self, text: str) -> None:
        self._break()
        self._console.print(text, highlight=False)

    def _break(self) -> None:
        if self._open:
            self._console.print()
            self._open = False


# The script


class Play:
    """An ordinary turn, and six that end early."""

    def __init__(self, control: Control, tasks: TaskGroup, console: Console) -> None:
        self._control = control
        self._tasks = tasks
        self._console = console
        self._audience = Audience(console)
        self._runs: list[RunId] = []

    async def ordinary(self) -> None:
        """A turn that ends by itself. A session begins with its first message, so the audience comes in here."""
        self._title("An ordinary turn", "alice asks, the agent answers.")
        run_id = await self._send(SHORT)
        self._tasks.start_soon(self._audience.listen, self._control)
        await self._audience.until(_ended(run_id))
        await pause(0.8)

    async def stopped(self) -> None:
        """The user says stop while the second of three tools runs."""
        self._title("1. Stopped", "alice says stop while the second of three tools is at work.")
        run_id = await self._send(STOPPED)
        await self._audience.until(_tool_runs(run_id, "book_flight"))
        await pause(0.5)
        await self._stop(run_id)

    async def taken_over(self) -> None:
        """The user simply says something else."""
        self._title("2. Taken over", "alice just says something else. The old agent ignores the cancel.")
        old = await self._send(LONG)
        await self._audience.until(_says(old))
        await pause(1.0)
        begin = perf_counter()
        new = await self._send(SHORT)
        await self._audience.until(_says(new))
        first = (perf_counter() - begin) * 1000
        await self._control.wait(new)
        await self._prove(old, note=("new run", f"{new}: its first word came {first:.1f} ms after alice's message"))

    async def timed_out(self) -> None:
        """The run has a deadline, and an answer that comes too late."""
        deadline = DEADLINE_SECONDS * max(pace.get(), 0.1)
        self._title("3. Timed out", f"A deadline of {deadline:g} s. The agent answers after it.")
        run_id = await self._send(SLOW, deadline=deadline)
        await self._control.wait(run_id)
        await self._prove(run_id)

    async def deaf(self) -> None:
        """The agent swallows everything that could end it; in the end its code is simply not resumed."""
        self._title("4. Deaf", "This agent swallows every cancel and goes on talking. alice says stop.")
        run_id = await self._send(DEAF)
        await self._audience.until(_says(run_id))
        await pause(1.0)
        await self._stop(run_id, note=("its code", f"was not resumed any more after {REFUSALS} refusals"))

    async def asking(self) -> None:
        """A question is open and a child is at work. Both fall with the run; a late answer changes nothing."""
        self._title("5. Question and child", "A question is open and a child is at work when alice says stop.")
        run_id = await self._send(ASKING)
        await self._audience.until(_of(run_id, EventKind.CHILD))
        await self._audience.until(_of(run_id, EventKind.QUESTION))
        await pause(1.0)
        await self._stop(run_id)
        await self._answer_late(run_id)
        self._console.print(_timeline(await self._control.timeline(run_id, by=ALICE)))

    async def writing(self) -> None:
        """A daemon writes a file. When the receipt says drained it is gone, and the file grows no more."""
        self._title("6. Processes", "A shell ignores TERM, and its daemon writes a file. alice says stop.")
        run_id = await self._send(WRITING)
        await self._audience.until(_of(run_id, EventKind.PROCESS))
        while not _written():
            await anyio.sleep(0.01)
        await pause(1.0)
        self._console.print(f"[yellow]diary[/]  {_written()} bytes so far", highlight=False)
        self._audience.user("[bold red]stop[/]")
        await self._control.stop(session=SESSION, by=ALICE)
        await self._control.wait(run_id, drained=True)
        written = _written()
        await self._prove(run_id)
        grown = _written() - written
        words = f"the diary has grown by {grown} bytes since the receipt said drained"
        self._console.print(f"[yellow]diary[/]  {words}", highlight=False)

    async def _answer_late(self, run_id: RunId) -> None:
        asked = [event.data for event in self._audience.heard if event.run_id == run_id]
        for question in [data for data in asked if isinstance(data, Asked)]:
            self._audience.user("yes, pay")
            try:
                await self._control.answer(question.question_id, True, by=ALICE)
            except QuestionClosed as refusal:
                self._console.print(f"[bold red]no[/]     {refusal}", highlight=False)

    def curtain(self) -> int:
        """Sum up; return how many events of an old run came after its end in the whole play."""
        late = sum(self._audience.after_end(run_id) for run_id in self._runs)
        words = f"{len(self._runs)} runs ended. Events of a run after its terminal event: {late}."
        self._console.print(Panel(words, border_style="green" if late == 0 else "red", expand=False))
        return late

    async def _send(self, text: str, *, deadline: float | None = None) -> RunId:
        sent = await self._control.send(SESSION, text, by=ALICE, deadline=deadline)
        self._runs.append(sent.run_id)
        return sent.run_id

    async def _stop(self, run_id: RunId, *, note: tuple[str, str] | None = None) -> None:
        self._audience.user("[bold red]stop[/]")
        await self._control.stop(session=SESSION, by=ALICE)
        await self._prove(run_id, note=note)

    async def _prove(self, run_id: RunId, *, note: tuple[str, str] | None = None) -> None:
        """Wait until nothing of the run is left, listen on, and show the receipt with what was heard."""
        outcome = await self._control.wait(run_id, drained=True)
        await self._audience.until(_ended(run_id))
        await pause(LISTEN_SECONDS)
        rows = receipt_rows(await self._control.receipt(run_id), outcome)
        late = self._audience.after_end(run_id)
        rows.append(("afterwards", f"[bold]{late} events[/] of {run_id} after its terminal event"))
        self._console.print(_panel([*rows, note] if note else rows))
        await pause(0.8)

    def _title(self, title: str, words: str) -> None:
        self._console.print()
        self._console.rule(f"[bold]{title}[/]", align="left")
        self._console.print(f"[dim]{words}[/]\n", highlight=False)


def _written() -> int:
    """Return how long the diary is."""
    return sum(path.stat().st_size for path in Path(place.get()).iterdir())


def _tool_runs(run_id: RunId, name: str) -> Callable[[Event], bool]:
    def runs(event: Event) -> bool:
        data = event.data
        return event.run_id == run_id and isinstance(data, Tool) and (data.name, data.state) == (name, "running")

    return runs


def _of(run_id: RunId, *kinds: EventKind) -> Callable[[Event], bool]:
    return lambda event: event.run_id == run_id and event.kind in kinds


def _ended(run_id: RunId) -> Callable[[Event], bool]:
    return _of(run_id, EventKind.ENDED)


def _says(run_id: RunId) -> Callable[[Event], bool]:
    return _of(run_id, EventKind.DELTA, EventKind.BLOCK)


# The receipt, for people


def receipt_rows(receipt: Receipt, outcome: Outcome) -> list[tuple[str, str]]:
    """Return what a receipt says, line by line."""
    fell = "\n".join(f"{run.id} {run.outcome.ending}, its code {run.body}" for run in receipt.runs)
    return [
        ("fell", fell),
        ("ending", client_words(outcome)),
        ("fence to end", f"{receipt.fence_to_end_ms or 0:.2f} ms"),
        ("drained", _drained(receipt)),
        ("tools", " · ".join(_tool(tool.name, tool.state) for tool in receipt.tools) or "none"),
        ("questions", f"{receipt.questions} void" if receipt.questions else "none"),
        ("processes", _processes(receipt)),
        ("refused", _refused(receipt)),
        ("kept text", repr(_shortened(outcome.text))),
        ("durable", "yes, in the memory store" if receipt.durable else "not yet"),
    ]


def _drained(receipt: Receipt) -> str:
    if receipt.drained_at is None:
        return "not yet"
    left = f": {', '.join(receipt.unconfirmed)}" if receipt.unconfirmed else ""
    return f"{(receipt.drained_at - receipt.fenced_at) * 1000:.2f} ms, {receipt.drain}{left}"


def _tool(name: str, state: ToolState) -> str:
    return f"{name} {state}" + (" (effect unknown)" if state is ToolState.INTERRUPTED else "")


def _processes(receipt: Receipt) -> str:
    if receipt.grade == "inline":
        return "none"
    stuck = f", {receipt.processes.stuck} stuck" if receipt.processes.stuck else ""
    return f"{receipt.processes.ended} ended{stuck}, grade {receipt.grade}"


def _refused(receipt: Receipt) -> str:
    tried = ", ".join(f"{count} {effect}" for effect, count in receipt.refused.items())
    return tried or "nothing"


def _shortened(text: str, most: int = 44) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _panel(rows: Sequence[tuple[str, str]]) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Panel(table, title="receipt", title_align="left", border_style="blue", expand=False)


def _timeline(moments: Sequence[Moment]) -> Panel:
    """Draw a run's life, a line for each moment, in milliseconds since its first."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", justify="right")
    for moment in moments:
        table.add_row(f"{(moment.at - moments[0].at) * 1000:.1f}", moment.what, moment.name, moment.state)
    return Panel(table, title="timeline, in ms", title_align="left", border_style="blue", expand=False)


async def perform(console: Console) -> int:
    """Play every act; return how many late events were heard."""
    with tempfile.TemporaryDirectory() as directory:
        place.set(directory)
        async with open_control(assistant, agents=CHILDREN) as control, anyio.create_task_group() as tasks:
            play = Play(control, tasks, console)
            early = (play.stopped, play.taken_over, play.timed_out, play.deaf, play.asking, play.writing)
            for act in (play.ordinary, *early):
                await act()
            tasks.cancel_scope.cancel()
        return play.curtain()


def main(argv: Sequence[str] | None = None) -> int:
    """Play the session in this terminal."""
    global pace
    parser = argparse.ArgumentParser(prog="python -m interlock.demo", description="Play a scripted session.")
    parser.add_argument("--fast", action="store_true", help="play without pauses")
    if parser.parse_args(argv).fast:
        pace.set(FAST)
    return 1 if anyio.run(perform, Console(highlight=False)) else 0


if __name__ == "__main__":
    sys.exit(main())
