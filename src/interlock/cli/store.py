"""`interlock sessions`, `runs` and `show`: what a store holds, or for the last two what a gateway tells."""

from typing import Annotated

import typer

from interlock.cli import tables
from interlock.cli.documents import LATEST
from interlock.cli.options import AsJson, Store
from interlock.cli.printing import print_json
from interlock.core.names import RunId

commands = typer.Typer()


Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask a gateway, with the token in --data or INTERLOCK_TOKEN.", show_default=False),
]


@commands.command("sessions", short_help="List the sessions of a store.")
def sessions_command(data: Store, as_json: AsJson = False) -> None:
    """List the sessions of a store, the latest first; also while a server has it."""
    from interlock.cli import reading  # noqa: PLC0415 - imports the store, which a gateway's caller does not need

    found = reading.look(data, reading.sessions)
    print_json(found) if as_json else tables.tell_sessions(found)


@commands.command("runs", short_help="List the runs of a store.")
def runs_command(
    data: Store,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this session's: OWNER/NAME, or NAME.")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="With child runs, each below its parent.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help=f"Every run that is kept, not only the latest {LATEST}.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List runs in the order they were admitted, with how they ended; also while a server has the store."""
    if url is not None:
        from interlock.cli import remote  # noqa: PLC0415 - imports the client, which a store does not need

        found = remote.runs(url, data, session, tree=tree, every=every)
    else:
        from interlock.cli import reading  # noqa: PLC0415

        found = reading.look(data, lambda store: reading.runs(store, session, tree=tree, every=every))
    print_json(found) if as_json else tables.tell_runs(found, session)


@commands.command("show", short_help="Show one run: how it ended, what it did, its receipt.")
def show_command(
    run: Annotated[str, typer.Argument(help="The run's id, as `interlock runs` lists it.")],
    data: Store,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its outcome, tools, questions, processes, receipt and timeline; also while it goes on."""
    if url is not None:
        from interlock.cli import remote  # noqa: PLC0415

        found = remote.show(url, data, run)
    else:
        from interlock.cli import reading  # noqa: PLC0415

        found = reading.look(data, lambda store: reading.show(store, RunId(run)))
    print_json(found) if as_json else tables.tell_run(found)
