"""The shell's verbs over a gateway: `send stop wait watch answer questions receipt timeline share unshare pair`.

1. The text of a run goes to the output; everything else about it goes to the error output, in lines of its own.
2. No text of a run can control the terminal: control characters are replaced.
3. Exit codes are the endings' of core/projection. 125: the command failed, or there is no such run; 75: the run has not
   ended yet; 141: the reader of the output is gone.
4. Ctrl-C during `send --watch` stops the run and prints the receipt; a second one leaves at once.
5. A token comes from the data directory or from INTERLOCK_TOKEN, never from the command line.
6. `send` is a chat surface: a text that is a stop word stops the session. `--literal` sends the text as it is.
"""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from interlock.client.connection import NO_SUCH_TOKEN
from interlock.config import DEFAULT_PORT, data_directory, seconds
from interlock.core import events
from interlock.core.errors import BadInput, InterlockError, Refused, Unknown
from interlock.core.names import Drain, Ending, QuestionState, Strategy, ToolState
from interlock.core.outcome import Outcome
from interlock.core.projection import client_words, row
from interlock.core.receipt import Receipt
from interlock.core.story import Conversation

if TYPE_CHECKING:
    from interlock.client.client import Client
    from interlock.runtime.sharing import Shared

T = TypeVar("T")
TROUBLE, NOT_YET = 125, 75  # 125 as env and timeout exit; 75 is EX_TEMPFAIL
LEFT = 130  # a second Ctrl-C
UNREAD = 141  # a shell's code for a program that SIGPIPE ended
NOTE_CHARACTERS = 200
OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")  # a run's id; any other name is a key

commands = typer.Typer()

Url = Annotated[str, typer.Option(metavar="URL", envvar="INTERLOCK_URL", help="Where the gateway is.")]
Data = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="INTERLOCK_DATA",
        default_factory=lambda: data_directory(os.environ),
        show_default="~/.local/state/interlock",
        help="Where its token is read, unless INTERLOCK_TOKEN holds one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or a line for each event.")]
SomeRun = Annotated[str | None, typer.Argument(help="A run's id, or the key it was sent with.", show_default=False)]
Run = Annotated[str, typer.Argument(help="The run's id, or the key it was sent with.")]
Session = Annotated[
    str | None, typer.Option(metavar="NAME", help="The session: NAME is your own, OWNER/NAME another's. [main]")
]
Shareable = Annotated[str, typer.Argument(metavar="SESSION", help="NAME is your own, OWNER/NAME another's.")]
HERE = f"http://127.0.0.1:{DEFAULT_PORT}"


def ask(url: str, data: Path, asking: Callable[["Client"], Awaitable[T]]) -> T:
    """Connect with the token of INTERLOCK_TOKEN or of the data directory, and return what `asking` returns."""

    async def asked() -> T:
        from interlock.client.client import connect  # noqa: PLC0415 - slow to import

        token = os.environ.get("INTERLOCK_TOKEN") or None
        async with connect(url, token, data=None if token else data) as client:
            return await asking(client)

    try:
        return asyncio.run(asked())
    except Refused as error:
        raise Refused(why_refused(str(error))) from None


def why_refused(words: str) -> str:
    """Return why a gateway refused, in words for a shell's user, who chose a token and knows no method names."""
    if os.environ.get("INTERLOCK_TOKEN"):
        words = words.replace(NO_SUCH_TOKEN, f"{NO_SUCH_TOKEN.partition(';')[0]}; unset or change INTERLOCK_TOKEN")
    scope = re.search(r"needs a token with scope (\w+)", words)
    if scope is None:
        return words
    return f"this token may not do that; `interlock token add NAME --scope {scope[1]}` makes one with scope {scope[1]}"


def _ask(url: str, data: Path, asking: Callable[["Client"], Awaitable[int]]) -> int:
    """Ask, print an error if there is one, and return the exit code."""
    # "replace" is for a terminal whose encoding cannot show every character.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return ask(url, data, asking)
    except InterlockError as error:
        _note(str(error), "interlock: ")
        return TROUBLE
    except BrokenPipeError:
        return unread()


def unread() -> int:
    """Discard the rest of the output, whose reader is gone, and return the exit code.

    Typer would exit with 1, which would say that the run failed or that a probe found a leak.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)  # Python flushes both when it exits
    return UNREAD


@commands.command("send", short_help="Send a message to an agent.")
def send_command(
    text: Annotated[list[str], typer.Argument(help="The message; - reads it from the input.")],
    data: Data,
    url: Url = HERE,
    session: Session = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print the reply as it comes; Ctrl-C stops the run.")] = False,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The same key is the same message, once.")] = None,
    strategy: Annotated[Strategy | None, typer.Option(help="What it does while the session is busy.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="End it after this time: 90, 2m, 1h.")] = None,
    literal: Annotated[bool, typer.Option("--literal", help="Send it as it is, also if it says stop.")] = False,
    as_json: AsJson = False,
) -> int:
    """Send a message and print its run's id; with --watch print the reply as it comes, and exit as it ends.

    A message that says stop and nothing else stops the session, and its receipt is printed.
    """

    async def sending(client: "Client") -> int:
        said = sys.stdin.buffer.read().decode("utf-8", "replace") if text == ["-"] else " ".join(text)
        limit, mine = None if deadline is None else seconds(deadline), secrets.token_hex(16) if key is None else key
        stopping = _Stopping(client, mine) if watch else None
        send = client.send if literal else client.chat
        sent = await send(_named(session), said, key=mine, strategy=strategy, deadline=limit)
        if isinstance(sent, Receipt):
            _json(sent) if as_json else _print(proof(sent))
            return 0
        if stopping is None:
            _json(sent) if as_json else _print(sent.run_id)
            return 0
        _note(f"run {sent.run_id} in session {sent.session}" + (", waiting" if sent.state == "queued" else ""))
        code = await _follow(client, run=sent.run_id, as_json=as_json)
        await stopping.over()
        return code

    return _ask(url, data, sending)


class _Stopping:
    """Handles Ctrl-C: the first stops the run, the second leaves."""

    def __init__(self, client: "Client", key: str) -> None:
        self._client, self._key = client, key
        self._task: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._pressed)

    def _pressed(self) -> None:
        if self._task is not None:
            os._exit(LEFT)
        sys.stderr.write("\n" if sys.stderr.isatty() else "")  # after the ^C that the terminal shows
        _note("stopping; again to leave at once")
        self._task = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        try:
            _note(proof(await self._client.stop(message=self._key)))
        except InterlockError as error:
            _note(f"not stopped: {error}", "interlock: ")

    async def over(self) -> None:
        """Wait until the receipt is printed, if Ctrl-C was pressed."""
        if self._task is not None:
            await self._task


@commands.command("stop", short_help="Stop a session's runs, or one run.")
def stop_command(
    data: Data,
    run: SomeRun = None,
    url: Url = HERE,
    session: Session = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing of it is left.")] = False,
    as_json: AsJson = False,
) -> int:
    """Stop and print the receipt. With --wait: exit 0 if everything was seen gone, 1 if not."""

    async def stop(client: "Client") -> int:
        _name_one(session, run)
        ours = OURS.fullmatch(run or "") is not None
        if run is not None:
            _need_name(run)
            receipt = await client.stop(run=run if ours else None, message=None if ours else run)
        else:
            receipt = await client.stop(session=_named(session))
        if wait and receipt.id is not None:
            async with _progress(f"{len(receipt.runs)} stopped, waiting for what is left"):
                for each in receipt.runs:
                    await client.wait(each.id, drained=True)
            now = await client.receipt(receipt.id)
            receipt = msgspec.structs.replace(now, aborted=receipt.aborted, already=receipt.already)
        _json(receipt) if as_json else _print(proof(receipt))
        if run is not None and receipt.id is None and receipt.already is None:
            _note(f"no run {_line(run)} of yours is known" if ours else "a message with this key will not run")
        return 1 if wait and receipt.drain is not Drain.OBSERVED else 0

    return _ask(url, data, stop)


@asynccontextmanager
async def _progress(words: str) -> AsyncIterator[None]:
    """Show the seconds that pass, if the error output is a terminal."""

    async def tell() -> None:
        began = time.monotonic()
        while sys.stderr.isatty():
            await asyncio.sleep(0.2)
            sys.stderr.write(f"\r{words}: {time.monotonic() - began:.1f} s\x1b[K")
            sys.stderr.flush()

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        sys.stderr.write("\r\x1b[K" if sys.stderr.isatty() else "")


@commands.command("wait", short_help="Wait for a run's end.")
def wait_command(
    run: Run,
    data: Data,
    url: Url = HERE,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Not longer than this: 90, 2m.")] = None,
    drained: Annotated[bool, typer.Option("--drained", help="Until nothing of it is left.")] = False,
    as_json: AsJson = False,
) -> int:
    """Wait for a run's end and say how it ended; exit as it did, or with 75 if it has not ended in time."""

    async def wait(client: "Client") -> int:
        _need_name(run)
        limit = None if timeout is None else seconds(timeout)
        async with _progress(f"waiting for {_line(run)}"):
            outcome = await client.wait(run, timeout=limit, drained=drained)
        if as_json:
            _json(outcome)
        elif outcome.ending is Ending.UNKNOWN:
            raise Unknown(_no_run(run))
        else:
            _print(_line(client_words(outcome)))
        return _code(outcome)

    return _ask(url, data, wait)


@commands.command("watch", short_help="Follow a session, or one run to its end.")
def watch_command(
    data: Data,
    run: SomeRun = None,
    url: Url = HERE,
    session: Session = None,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only what is behind this position.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Print what is said as it comes. With a run: up to its end, and exit as it ended. Ctrl-C only leaves."""

    async def watch(client: "Client") -> int:
        _name_one(session, run)
        if run is None:
            return await _follow(client, session=_named(session), after=after, as_json=as_json)
        _need_name(run)
        found = await client.find(run)
        if found is None and not OURS.fullmatch(run):
            raise Unknown(f"{_no_run(run)}; if it is a session, write --session")
        return await _follow(client, run=run if found is None else found.id, after=after, as_json=as_json)

    return _ask(url, data, watch)


@commands.command("answer", short_help="Answer a question of a run.")
def answer_command(
    question: Annotated[str, typer.Argument(help="The question's id.")],
    answer: Annotated[str, typer.Argument(metavar="yes|no|CHOICE", help="The answer.")],
    data: Data,
    url: Url = HERE,
    as_json: AsJson = False,
) -> int:
    """Answer a question that a run asks; `interlock questions` lists them."""

    async def say(client: "Client") -> int:
        choices = next((each.choices for each in await client.questions() if each.id == question), None)
        words: dict[str, bool | str] = {} if choices else {"yes": True, "y": True, "no": False, "n": False}
        found = await client.answer(question, words.get(answer.lower(), answer))
        _json(found) if as_json else _print(f"{found.state}: {_line(answer)}")
        return 0

    return _ask(url, data, say)


@commands.command("questions", short_help="List the questions that wait for an answer.")
def questions_command(
    data: Data,
    url: Url = HERE,
    session: Annotated[str | None, typer.Option(metavar="NAME", help="Only this session's.")] = None,
    as_json: AsJson = False,
) -> int:
    """List the open questions that you may answer."""

    async def look(client: "Client") -> int:
        found = await client.questions(session)
        if as_json:
            _json({"questions": found})
        for each in () if as_json else found:
            _print(f"{each.id}  {_line(each.session)}  {_question(each.text, each.choices, each.tool)}")
        if not found and not as_json:
            _note("no questions")
        return 0

    return _ask(url, data, look)


@commands.command("receipt", short_help="Show the proof of an ending.")
def receipt_command(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="The receipt's id, or a run's id or key.")],
    data: Data,
    url: Url = HERE,
    as_json: AsJson = False,
) -> int:
    """Show a receipt as it stands now."""

    async def look(client: "Client") -> int:
        _need_name(wanted)
        receipt = await client.receipt(wanted)
        if as_json:
            _json(receipt)
            return 0
        _print(proof(receipt))
        for run in receipt.runs:
            refused = ", ".join(f"{count} {kind}" for kind, count in run.refused.items())
            _print(f"  {run.id} {_line(client_words(run.outcome))}" + (f"; refused {refused}" if refused else ""))
        return 0

    return _ask(url, data, look)


@commands.command("timeline", short_help="Tell or draw what happened in a run.")
def timeline_command(
    run: Run,
    data: Data,
    url: Url = HERE,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.svg", help="Draw it there; - is the output.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Tell what happened in a run, in order; with -o draw it."""

    async def look(client: "Client") -> int:
        _need_name(run)
        moments = await client.timeline(run)
        if output is not None:
            from interlock.surfaces.drawing import draw  # noqa: PLC0415

            drawn = draw(moments, title=f"run {run}")
            _print(drawn) if str(output) == "-" else output.write_text(drawn, "utf-8")
        elif as_json:
            _json({"run": run, "moments": moments})
        else:
            for each in moments:
                words = (each.what, each.name, each.state, each.detail, f"{each.count} times" if each.count > 1 else "")
                _print(f"+{max(0.0, each.at - moments[0].at):.3f} s  {_line(' '.join(filter(None, words)))}")
        return 0

    return _ask(url, data, look)


@commands.command("share", short_help="Let somebody else see a session, or write in it.")
def share_command(
    session: Shareable,
    with_: Annotated[str, typer.Option("--with", metavar="NAME", help="With whom; `interlock token list` has names.")],
    data: Data,
    url: Url = HERE,
    read: Annotated[bool, typer.Option("--read", help="To see it and change nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Let somebody see a session and write in it (with --read: only see it), and print who may now.

    Somebody who may write takes turns with the others in it, and can stop only runs of their own messages.
    """

    async def give(client: "Client") -> int:
        return _tell_shared(await client.share(session, with_=with_, may="read" if read else "write"), as_json)

    return _ask(url, data, give)


@commands.command("unshare", short_help="Take a share of a session back.")
def unshare_command(
    session: Shareable,
    with_: Annotated[str, typer.Option("--with", metavar="NAME", help="From whom it is taken.")],
    data: Data,
    url: Url = HERE,
    as_json: AsJson = False,
) -> int:
    """Take away what `interlock share` gave, and print who may still; what they watch ends at once."""

    async def take(client: "Client") -> int:
        return _tell_shared(await client.unshare(session, with_=with_), as_json)

    return _ask(url, data, take)


def _tell_shared(shared: "Shared", as_json: bool) -> int:
    if as_json:
        _json(shared)
        return 0
    others = ", ".join(f"{who} may {may}" for who, may in sorted(shared.shares.items())) or "shared with nobody"
    _print(_line(f"{shared.session} of {shared.owner}: {others}"))
    if not shared.durable:
        _note("it counts, and the server has yet to keep it: after a crash look again")
    return 0


def stop_all_of(name: str, url: str, data: Path, *, served: bool) -> int:
    """Stop what a principal runs and print the receipts, as the operator; `served`: a server has the directory."""

    async def stop() -> list[Receipt]:
        from interlock.client.client import connect  # noqa: PLC0415

        async with connect(url, data=data) as client:  # the server reads its token files again before it answers
            return await client.stop_all(of=name)

    try:
        receipts = asyncio.run(stop())
    except InterlockError as error:
        if served:
            _note(f"not stopped: {error}; a server has {data}, name it with --url", "interlock: ")
            return TROUBLE
        _note(f"no server has {data}: nothing of {name} runs", "interlock: ")
        return 0
    for receipt in receipts:
        _print(proof(receipt))
    if not receipts:
        _note(f"nothing of {name} ran", "interlock: ")
    return 0


@commands.command("pair", short_help="Print a URL that lets a browser in, once.")
def pair_command(
    data: Data,
    name: Annotated[str | None, typer.Argument(help="Whose page it is; another than yours needs an admin.")] = None,
    url: Url = HERE,
    as_json: AsJson = False,
) -> int:
    """Print a URL that opens the page for you, or for a principal that has a token; it works once, within the hour."""

    async def look(client: "Client") -> int:
        made = await client.pair(name)
        page = f"{client.url.rstrip('/')}/#pair={made.code}"
        _json({"page": page, "seconds": made.seconds}) if as_json else _print(page)
        return 0

    return _ask(url, data, look)


# Following


class Reply:
    """Prints a reply as it comes."""

    def __init__(self) -> None:
        self._inside = False  # the cursor is inside a line

    def more(self, text: str, between: str) -> None:
        """Print what the reply grew by; a new block, which begins with `between`, is set apart by one blank line."""
        _write(text if self._inside else text.removeprefix(between[:1]))
        self._inside = not text.endswith("\n")

    def pause(self) -> None:
        """Begin a new line for a note, if output and notes share a terminal."""
        if self._inside and sys.stdout.isatty():
            _write("\n")
            self._inside = False

    def over(self) -> None:
        """End the reply and its line."""
        if self._inside:
            _write("\n")
        self._inside = False


async def _follow(
    client: "Client", *, session: str | None = None, run: str | None = None, after: int = 0, as_json: bool
) -> int:
    reply, told = Reply(), Conversation()
    async for event in client.watch(session, run=run, after=after):
        if as_json:
            _print(msgspec.json.encode(event).decode())
        else:
            _tell(event, reply, told, alone=run is not None)
        if isinstance(event.data, events.Ended):
            if run is not None:
                return _code(event.data.outcome)
            told.forget(event.data.outcome.run_id)
    return _code(await client.wait(run or "", timeout=0))  # the terminal event is no longer kept


def _tell(event: events.Event, reply: Reply, told: Conversation, *, alone: bool) -> None:
    """Print for a person what an event changes."""
    between = told.between(event.run_id)
    for change in told.take(event):
        match change:
            case events.Delta(text=text):
                reply.more(text, between)
            case events.Ended(outcome=outcome):
                reply.over()
                if outcome.ending is not Ending.COMPLETED or not alone:
                    _note(f"{event.run_id} {client_words(outcome)}")
            case events.MessageData(text=text, child=child) if child is not None:
                reply.pause()
                _note(text, "> ")
            case events.MessageData(text=text, by=by) if not alone:
                _note(f"{by} to {event.run_id}: {text}", "> ")
            case _:
                if words := _words(change):
                    reply.pause()
                    _note(words)


def _words(data: object) -> str:
    match data:
        case events.Tool(name=name, state=state, error=error) if state is not ToolState.PENDING:
            return f"tool {name} {state}" + (f": {error}" if error else "")
        case events.ProcessData(command=command, state=state, status=status):
            return f"process {state}{'' if status is None else f' {status}'}: {command}"
        case events.QuestionData(question_id=question, text=text, state=QuestionState.OPEN, choices=choices, tool=tool):
            return f"question {question}: {_question(text, choices, tool)}"
        case events.QuestionData(question_id=question, state=state, answer=answer, by=by):
            words = ("no", "yes")[answer] if isinstance(answer, bool) else answer
            return f"question {question} {state}" + ("" if by is None else f": {words} by {by}")
        case events.Progress(text=text, done=done, total=total):
            return text + ("" if done is None else f" {done:g}" + ("" if total is None else f"/{total:g}"))
        case events.Phase(name=str(name)):
            return f"phase {name}"
        case events.ChildData(agent=agent, child=child, outcome=outcome):
            return f"child {child} ({agent}) {'begun' if outcome is None else client_words(outcome)}"
        case events.ReceiptData(receipt=receipt) if receipt.drain is Drain.UNCONFIRMED:
            return proof(receipt)
        case events.Gap():
            return "what was said before is no longer kept"
        case events.Correction(outcome=outcome):
            return f"{outcome.run_id} really {client_words(outcome)}"
    return ""


def _question(text: str, choices: tuple[str, ...] | None, tool: str | None) -> str:
    return _line(f"{text} ({'|'.join(choices or ('yes', 'no'))})" + (f" for tool {tool}" if tool else ""))


def proof(receipt: Receipt) -> str:
    """Return a receipt in one line."""
    already = f" it had ended already, {receipt.already}" if receipt.already else ""
    if receipt.id is None:
        return f"nothing to stop{already and ':'}{already}"
    runs = ", ".join(run.id for run in receipt.runs)
    ended, took = receipt.processes.ended, receipt.fence_to_drained_ms
    said = [f"{receipt.id}: {runs} {receipt.cause}" + (f" by {receipt.by}" if receipt.by else "")]
    said += [already.strip()] if already else []
    said += [f"{ended} process{'' if ended == 1 else 'es'} ended, grade {receipt.grade}"] if ended else []
    said += [f"refused {', '.join(f'{n} {kind}' for kind, n in receipt.refused.items())}"] if receipt.refused else []
    said += ["its host killed"] if receipt.host == "killed" else []
    said += [f"kept with its host: {', '.join(receipt.kept)}"] if receipt.kept else []
    said += ["not drained yet" if took is None else f"drained after {took / 1000:.3f} s"]
    said += [f"not seen gone: {', '.join(receipt.unconfirmed)}"] if receipt.unconfirmed else []
    return _line("; ".join(said))


def _code(outcome: Outcome) -> int:
    if outcome.ended:
        return row(outcome).exit_code
    return NOT_YET if outcome.ending is Ending.PENDING else TROUBLE


def _no_run(name: str) -> str:
    return f"no run or key {_line(name)!r:.80} that you may see; `interlock runs --url URL` lists them"


def _need_name(run: str) -> None:
    if not run.strip():
        raise BadInput("name the run, by its id or its key; `interlock runs --url URL` lists them")


def _named(session: str | None) -> str:
    return "main" if session is None else session  # an empty name is a mistake, not the main session


def _name_one(session: str | None, run: str | None) -> None:
    if session is not None and run is not None:
        raise BadInput(f"name one thing: the session {session}, or the run {run}")


# Printing


def _shown(text: str) -> str:
    """Return a text without control characters other than newlines and tabs."""
    return re.sub(r"[^\x20-\x7e\n\t]", lambda found: found[0] if found[0].isprintable() else "\ufffd", text)


def _line(text: str) -> str:
    line = _shown(" ".join(text[: 4 * NOTE_CHARACTERS].split()))
    return line if len(line) <= NOTE_CHARACTERS else line[: NOTE_CHARACTERS - 1] + "…"


def _write(text: str) -> None:
    sys.stdout.write(_shown(text))
    sys.stdout.flush()


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _note(text: str, mark: str = "· ") -> None:
    sys.stderr.write(f"{mark}{_line(text)}\n")
    sys.stderr.flush()


def _json(document: object) -> None:
    _print(msgspec.json.format(msgspec.json.encode(document)).decode())
