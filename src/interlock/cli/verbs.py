"""The shell's verbs over a gateway: `send stop wait watch answer questions receipt timeline share unshare`.

1. Exit codes are the endings' of core/projection. 125: the command failed, or there is no such run; 75: the run has not
   ended yet; 141: the reader of the output is gone.
2. Ctrl-C during `send --watch` stops the run and prints the receipt; a second one leaves at once.
3. `send` is a chat surface: a text that is a stop word stops the session. `--literal` sends the text as it is.
"""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from interlock.cli.asking import ask_and_tell
from interlock.cli.options import Tokens, Url
from interlock.cli.printing import TROUBLE, fail, line_of, note, print_json, print_line, proof
from interlock.cli.screen import Screen, question_words
from interlock.config import seconds
from interlock.core.errors import BadInput, InterlockError, Unknown
from interlock.core.events import Ended
from interlock.core.names import Drain, Ending, Strategy
from interlock.core.outcome import Outcome
from interlock.core.projection import client_words, row
from interlock.core.receipt import Receipt

if TYPE_CHECKING:
    from interlock.client.socket import RemoteClient
    from interlock.core.answers import Shared

NOT_YET = 75  # EX_TEMPFAIL
LEFT = 130  # a second Ctrl-C
OURS = re.compile(r"r-[0-9a-f]+-[0-9a-f]+")  # a run's id; any other name is a key

commands = typer.Typer()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or a line for each event.")]
SomeRun = Annotated[str | None, typer.Argument(help="A run's id, or the key it was sent with.", show_default=False)]
Run = Annotated[str, typer.Argument(help="The run's id, or the key it was sent with.")]
Session = Annotated[
    str | None, typer.Option(metavar="NAME", help="The session: NAME is your own, OWNER/NAME another's. [main]")
]
Shareable = Annotated[str, typer.Argument(metavar="SESSION", help="NAME is your own, OWNER/NAME another's.")]


@commands.command("send", short_help="Send a message to an agent.")
def send_command(
    text: Annotated[list[str], typer.Argument(help="The message; - reads it from the input.")],
    data: Tokens,
    url: Url = None,
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

    async def sending(client: "RemoteClient") -> int:
        said = sys.stdin.buffer.read().decode("utf-8", "replace") if text == ["-"] else " ".join(text)
        limit, mine = None if deadline is None else seconds(deadline), secrets.token_hex(16) if key is None else key
        stopping = _Stopping(client, mine) if watch else None
        send = client.send if literal else client.chat
        sent = await send(_named(session), said, key=mine, strategy=strategy, deadline=limit)
        if isinstance(sent, Receipt):
            print_json(sent) if as_json else print_line(proof(sent))
            return 0
        if stopping is None:
            print_json(sent) if as_json else print_line(sent.run_id)
            return 0
        note(f"run {sent.run_id} in session {sent.session}" + (", waiting" if sent.state == "queued" else ""))
        code = await _follow(client, run=sent.run_id, as_json=as_json)
        await stopping.over()
        return code

    return ask_and_tell(url, data, sending)


class _Stopping:
    """Handles Ctrl-C: the first stops the run, the second leaves."""

    def __init__(self, client: "RemoteClient", key: str) -> None:
        self._client, self._key = client, key
        self._task: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._pressed)

    def _pressed(self) -> None:
        if self._task is not None:
            os._exit(LEFT)
        sys.stderr.write("\n" if sys.stderr.isatty() else "")  # after the ^C that the terminal shows
        note("stopping; again to leave at once")
        self._task = asyncio.get_running_loop().create_task(self._stop())

    async def _stop(self) -> None:
        try:
            note(proof(await self._client.stop(message=self._key)))
        except InterlockError as error:
            fail(f"not stopped: {error}")

    async def over(self) -> None:
        """Wait until the receipt is printed, if Ctrl-C was pressed."""
        if self._task is not None:
            await self._task


@commands.command("stop", short_help="Stop a session's runs, or one run.")
def stop_command(
    data: Tokens,
    run: SomeRun = None,
    url: Url = None,
    session: Session = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing of it is left.")] = False,
    as_json: AsJson = False,
) -> int:
    """Stop and print the receipt. With --wait: exit 0 if everything was seen gone, 1 if not."""

    async def stop(client: "RemoteClient") -> int:
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
        print_json(receipt) if as_json else print_line(proof(receipt))
        if run is not None and receipt.id is None and receipt.already is None:
            note(f"no run {line_of(run)} of yours is known" if ours else "a message with this key will not run")
        return 1 if wait and receipt.drain is not Drain.OBSERVED else 0

    return ask_and_tell(url, data, stop)


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
    data: Tokens,
    url: Url = None,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Not longer than this: 90, 2m.")] = None,
    drained: Annotated[bool, typer.Option("--drained", help="Until nothing of it is left.")] = False,
    as_json: AsJson = False,
) -> int:
    """Wait for a run's end and say how it ended; exit as it did, or with 75 if it has not ended in time."""

    async def wait(client: "RemoteClient") -> int:
        _need_name(run)
        limit = None if timeout is None else seconds(timeout)
        async with _progress(f"waiting for {line_of(run)}"):
            outcome = await client.wait(run, timeout=limit, drained=drained)
        if as_json:
            print_json(outcome)
        elif outcome.ending is Ending.UNKNOWN:
            raise Unknown(_no_run(run))
        else:
            print_line(line_of(client_words(outcome)))
        return _code(outcome)

    return ask_and_tell(url, data, wait)


@commands.command("watch", short_help="Follow a session, or one run to its end.")
def watch_command(
    data: Tokens,
    run: SomeRun = None,
    url: Url = None,
    session: Session = None,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only what is behind this position.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Print what is said as it comes. With a run: up to its end, and exit as it ended. Ctrl-C only leaves."""

    async def watch(client: "RemoteClient") -> int:
        _name_one(session, run)
        if run is None:
            return await _follow(client, session=_named(session), after=after, as_json=as_json)
        _need_name(run)
        found = await client.find(run)
        if found is None and not OURS.fullmatch(run):
            raise Unknown(f"{_no_run(run)}; if it is a session, write --session")
        return await _follow(client, run=run if found is None else found.id, after=after, as_json=as_json)

    return ask_and_tell(url, data, watch)


@commands.command("answer", short_help="Answer a question of a run.")
def answer_command(
    question: Annotated[str, typer.Argument(help="The question's id.")],
    answer: Annotated[str, typer.Argument(metavar="yes|no|CHOICE", help="The answer.")],
    data: Tokens,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Answer a question that a run asks; `interlock questions` lists them."""

    async def answering(client: "RemoteClient") -> None:
        choices = next((each.choices for each in await client.questions() if each.id == question), None)
        words: dict[str, bool | str] = {} if choices else {"yes": True, "y": True, "no": False, "n": False}
        found = await client.answer(question, words.get(answer.lower(), answer))
        print_json(found) if as_json else print_line(f"{found.state}: {line_of(answer)}")

    return ask_and_tell(url, data, answering)


@commands.command("questions", short_help="List the questions that wait for an answer.")
def questions_command(
    data: Tokens,
    url: Url = None,
    session: Annotated[str | None, typer.Option(metavar="NAME", help="Only this session's.")] = None,
    as_json: AsJson = False,
) -> int:
    """List the open questions that you may answer."""

    async def look(client: "RemoteClient") -> None:
        found = await client.questions(session)
        if as_json:
            print_json({"questions": found})
        for each in () if as_json else found:
            print_line(f"{each.id}  {line_of(each.session)}  {question_words(each.text, each.choices, each.tool)}")
        if not found and not as_json:
            note("no questions")

    return ask_and_tell(url, data, look)


@commands.command("receipt", short_help="Show the proof of an ending.")
def receipt_command(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="The receipt's id, or a run's id or key.")],
    data: Tokens,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Show a receipt as it stands now."""

    async def look(client: "RemoteClient") -> None:
        _need_name(wanted)
        receipt = await client.receipt(wanted)
        if as_json:
            print_json(receipt)
            return
        print_line(proof(receipt))
        for run in receipt.runs:
            refused = ", ".join(f"{count} {kind}" for kind, count in run.refused.items())
            print_line(f"  {run.id} {line_of(client_words(run.outcome))}" + (f"; refused {refused}" if refused else ""))

    return ask_and_tell(url, data, look)


@commands.command("timeline", short_help="Tell or draw what happened in a run.")
def timeline_command(
    run: Run,
    data: Tokens,
    url: Url = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.svg", help="Draw it there; - is the output.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Tell what happened in a run, in order; with -o draw it."""

    async def look(client: "RemoteClient") -> None:
        _need_name(run)
        moments = await client.timeline(run)
        if output is not None:
            from interlock.protocol.drawing import draw  # noqa: PLC0415

            drawn = draw(moments, title=f"run {run}")
            print_line(drawn) if str(output) == "-" else output.write_text(drawn, "utf-8")
        elif as_json:
            print_json({"run": run, "moments": moments})
        else:
            for each in moments:
                words = (each.what, each.name, each.state, each.detail, f"{each.count} times" if each.count > 1 else "")
                print_line(f"+{max(0.0, each.at - moments[0].at):.3f} s  {line_of(' '.join(filter(None, words)))}")

    return ask_and_tell(url, data, look)


@commands.command("share", short_help="Let somebody else see a session, or write in it.")
def share_command(
    session: Shareable,
    with_: Annotated[str, typer.Option("--with", metavar="NAME", help="With whom; `interlock token list` has names.")],
    data: Tokens,
    url: Url = None,
    read: Annotated[bool, typer.Option("--read", help="To see it and change nothing.")] = False,
    as_json: AsJson = False,
) -> int:
    """Let somebody see a session and write in it (with --read: only see it), and print who may now.

    Somebody who may write takes turns with the others in it, and can stop only runs of their own messages.
    """

    async def give(client: "RemoteClient") -> int:
        return _tell_shared(await client.share(session, with_=with_, may="read" if read else "write"), as_json)

    return ask_and_tell(url, data, give)


@commands.command("unshare", short_help="Take a share of a session back.")
def unshare_command(
    session: Shareable,
    with_: Annotated[str, typer.Option("--with", metavar="NAME", help="From whom it is taken.")],
    data: Tokens,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Take away what `interlock share` gave, and print who may still; what they watch ends at once."""

    async def take(client: "RemoteClient") -> int:
        return _tell_shared(await client.unshare(session, with_=with_), as_json)

    return ask_and_tell(url, data, take)


def _tell_shared(shared: "Shared", as_json: bool) -> int:
    if as_json:
        print_json(shared)
        return 0
    others = ", ".join(f"{who} may {may}" for who, may in sorted(shared.shares.items())) or "shared with nobody"
    print_line(line_of(f"{shared.session} of {shared.owner}: {others}"))
    if not shared.durable:
        note("it counts, and the server has yet to keep it: after a crash look again")
    return 0


# Following


async def _follow(
    client: "RemoteClient", *, session: str | None = None, run: str | None = None, after: int = 0, as_json: bool
) -> int:
    screen = Screen(alone=run is not None)
    async for event in client.watch(session, run=run, after=after):
        if as_json:
            print_json(event, indent=0)
        else:
            screen.tell(event)
        if run is not None and isinstance(event.data, Ended):
            return _code(event.data.outcome)
    return _code(await client.wait(run or "", timeout=0))  # the terminal event is no longer kept


def _code(outcome: Outcome) -> int:
    if outcome.ended:
        return row(outcome).exit_code
    return NOT_YET if outcome.ending is Ending.PENDING else TROUBLE


def _no_run(name: str) -> str:
    return f"no run or key {line_of(name)!r:.80} that you may see; `interlock runs --url URL` lists them"


def _need_name(run: str) -> None:
    if not run.strip():
        raise BadInput("name the run, by its id or its key; `interlock runs --url URL` lists them")


def _named(session: str | None) -> str:
    return "main" if session is None else session  # an empty name is a mistake, not the main session


def _name_one(session: str | None, run: str | None) -> None:
    if session is not None and run is not None:
        raise BadInput(f"name one thing: the session {session}, or the run {run}")
