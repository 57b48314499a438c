"""The command `interlock probe`.

Exit codes: 0 nothing leaked, 1 something did, 2 it could not be tried, 130 and 143 interrupted, 141 the reader of the
output is gone.
"""

import asyncio
import os
import signal
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from interlock.cli import findings
from interlock.cli.asking import unread, why_refused
from interlock.cli.options import HERE, AsJson, Tokens
from interlock.cli.printing import count, fail, note, print_json
from interlock.client.connection import addresses, read_token
from interlock.client.probe.scenes import SCENES, Campaign, Plan, clean, lasts
from interlock.client.probe.verdict import Report
from interlock.client.probe.wire import Wire
from interlock.config import seconds
from interlock.core.errors import BadInput, InterlockError

LEAKED, BAD_USAGE = 1, 2
INTERRUPTED, TERMINATED = 130, 143
TIMES_MOST, SECONDS_MOST = 1_000, 3_600.0
SAY: Final = "Story please: at least two thousand words about a lighthouse keeper, without any tool."
TOOL_SAY: Final = "Build 60 lines in the shell: run `for i in $(seq 60); do echo step $i; sleep 1; done` and show them."

commands = typer.Typer()


@commands.command("probe", short_help="Try how well a gateway stops, ours or another's.")
def probe_command(
    context: typer.Context,
    data: Tokens,
    url: Annotated[str, typer.Argument(metavar="URL", envvar="INTERLOCK_URL", help="Where the gateway is.")] = HERE,
    times: Annotated[str, typer.Option(metavar="N", help="How often each scene is played.")] = "5",
    listen: Annotated[str, typer.Option(metavar="TIME", help="How long to listen after each stop.")] = "2s",
    say: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="What makes the agent talk for long. [a story]")
    ] = SAY,
    tool_say: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="What makes it run a tool for long. [a shell loop]")
    ] = TOOL_SAY,
    patience: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until it talks or works.")] = "30s",
    limit: Annotated[str, typer.Option(metavar="N", help="The time limit that runs are given, whole seconds.")] = "2",
    scene: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"Only this one; repeatable: {', '.join(SCENES)}.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Start runs on a gateway, stop them, take them over and time them out, and say what came after the answer.

    It speaks the published gateway protocol, version 4, and sends messages to the agent: that may cost model tokens.
    Its sessions are its own, and what it started it stops. The token is INTERLOCK_TOKEN; for a gateway on this machine
    also the one in --data.

    Exit status: 0 nothing leaked, 1 something did, 2 it could not be tried, 130 or 143 interrupted, 141 whoever read
    the output was gone.
    """
    given = context.get_parameter_source("data")
    named = given is not None and given.name != "DEFAULT"
    try:
        plan = Plan(
            say=_text(say, "--say"), tool_say=_text(tool_say, "--tool-say"),
            times=_whole(times, "--times", TIMES_MOST), limit=_whole(limit, "--limit", int(SECONDS_MOST)),
            listen=_time(listen, "--listen"), patience=_time(patience, "--patience"),
        )  # fmt: skip
        report = asyncio.run(_probe(url, _token(url, data, named=named), plan, _scenes(scene)))
        print_json(report) if as_json else findings.tell(report)
    except InterlockError as error:
        return fail(why_refused(str(error)), BAD_USAGE)
    except KeyboardInterrupt:
        return fail("interrupted; what was started is stopped", INTERRUPTED)
    except asyncio.CancelledError:
        return fail("terminated; what was started is stopped", TERMINATED)
    except BrokenPipeError:
        return unread()
    if report.broken is not None:
        return fail(report.broken, BAD_USAGE)
    if not report.tried:
        return BAD_USAGE
    return LEAKED if report.leaked else 0


async def _probe(url: str, token: str, plan: Plan, scenes: list[str]) -> Report:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    wire = await Wire.open(url, token)
    campaign = Campaign(wire, plan, scenes)
    try:
        messages = plan.times * sum(SCENES[scene].messages for scene in scenes)
        each = "once" if plan.times == 1 else f"{plan.times} times"
        note(f"probing {wire.url}: {count(len(scenes), 'scene')}, {each} each, about {lasts(plan, scenes)} s")
        note(
            f"it sends {count(messages, 'message')} to the agent, in sessions {campaign.name}-* of its own, and "
            "stops them; they may cost model tokens; Ctrl-C stops all of it"
        )
        with findings.progress(scenes, plan.times) as heard:
            await campaign.play(heard)
        return campaign.report()
    finally:
        await wire.close()
        if campaign.left is not None:
            await _clean_again(url, token, campaign.left)


async def _clean_again(url: str, token: str, session: str) -> None:
    """Stop a session over a new connection, since the connection that began it is gone."""
    try:
        wire = await Wire.open(url, token)
        try:
            await clean(wire, session)
        finally:
            await wire.close()
    except InterlockError:
        note(f"what runs in session {session} could not be stopped; stop it there")


def _token(url: str, data: Path, *, named: bool) -> str:
    """Return the token for a gateway.

    The token in the data directory is sent to another machine only if the caller names that directory.
    """
    shown, _ = addresses(url)
    token = os.environ.get("INTERLOCK_TOKEN")
    if token:
        return token
    if named or _here(urlsplit(shown).hostname or ""):
        return read_token(data)
    raise BadInput(f"no token for {shown}: set INTERLOCK_TOKEN to one of its own; this machine's is not sent there")


def _here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _scenes(names: list[str] | None) -> list[str]:
    for name in names or ():
        if name not in SCENES:
            raise BadInput(f"--scene: there is no {name!r:.60}; write one of {', '.join(SCENES)}")
    return [name for name in SCENES if not names or name in names]


def _whole(text: str, flag: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most:
        raise BadInput(f"{flag}: {text!r:.60} will not do; write a whole number from 1 to {most:,}")
    return int(text[:9])


def _time(text: str, flag: str) -> float:
    try:
        found = seconds(text)
    except BadInput as error:
        raise BadInput(f"{flag}: {error}") from None
    if not 0 < found <= SECONDS_MOST:
        raise BadInput(f"{flag}: {text!r:.60} is out of bounds; write more than 0 and at most 1h")
    return found


def _text(text: str, flag: str) -> str:
    if not text.strip():
        raise BadInput(f"{flag}: say something; an empty message starts nothing")
    return text
