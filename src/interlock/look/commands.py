"""The commands `sessions`, `runs`, `show` and `prune`, and their options."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from interlock.config import data_directory
from interlock.core.names import RunId
from interlock.look import reading, telling
from interlock.look.forgetting import age, forget
from interlock.stores.sqlite.store import KEEP_DAYS

commands = typer.Typer()


Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="INTERLOCK_DATA",
        default_factory=lambda: data_directory(os.environ),
        show_default="~/.local/state/interlock",
        help="The store's directory.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask a gateway, with the token in --data or INTERLOCK_TOKEN.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@commands.command("sessions", short_help="List the sessions of a store.")
def sessions_command(data: Data, as_json: AsJson = False) -> None:
    """List the sessions of a store, the latest first; also while a server has it."""
    found = reading.look(data, reading.sessions)
    telling.tell_json(found) if as_json else telling.tell_sessions(found)


@commands.command("runs", short_help="List the runs of a store.")
def runs_command(
    data: Data,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this session's: OWNER/NAME, or NAME.")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="With child runs, each below its parent.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help=f"Every run that is kept, not only the latest {reading.LATEST}.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List runs in the order they were admitted, with how they ended; also while a server has the store."""
    if url is not None:
        from interlock.look import asking  # noqa: PLC0415 - imports the client, which a store does not need

        found = asking.runs(url, data, session, tree=tree, every=every)
    else:
        found = reading.look(data, lambda store: reading.runs(store, session, tree=tree, every=every))
    telling.tell_json(found) if as_json else telling.tell_runs(found, session)


@commands.command("show", short_help="Show one run: how it ended, what it did, its receipt.")
def show_command(
    run: Annotated[str, typer.Argument(help="The run's id, as `interlock runs` lists it.")],
    data: Data,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its outcome, tools, questions, processes, receipt and timeline; also while it goes on."""
    if url is not None:
        from interlock.look import asking  # noqa: PLC0415

        found = asking.show(url, data, run)
    else:
        found = reading.look(data, lambda store: reading.show(store, RunId(run)))
    telling.tell_json(found) if as_json else telling.tell_run(found)


@commands.command("prune", short_help="Forget what is too old or too much.")
def prune_command(
    data: Data,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Forget sessions in which nobody wrote for so long: 12h, 30d, 8w.")
    ] = f"{KEEP_DAYS:.0f}d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be forgotten.")] = False,
    as_json: AsJson = False,
) -> None:
    """Forget old sessions, and of others what is beyond the bounds; never what runs, waits or is scheduled.

    A server does this by itself every hour; this is for a directory that none has.
    """
    found = asyncio.run(forget(data, age(older_than), dry_run=dry_run))
    telling.tell_json(found) if as_json else telling.tell_forgotten(found)
