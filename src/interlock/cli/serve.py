"""`interlock serve`: an agent behind a gateway, until a signal comes."""

import asyncio
import gc
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from interlock.app import Ready, serve
from interlock.cli.printing import fail, print_json, print_line
from interlock.config import Config, data_directory, read
from interlock.core.errors import InterlockError

commands = typer.Typer()


@commands.command("serve", short_help="Serve an agent over WebSocket.")
def serve_command(
    agent: Annotated[str | None, typer.Argument(help="The agent, module:callable. [interlock.demo:agent]")] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agent", metavar="NAME=MODULE:CALLABLE", help="An agent that runs may delegate to; may be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What people call the agent, as in STOP NAME. [its callable]")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where to listen. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Which port; 0 takes a free one. [8719]")] = None,
    public: Annotated[
        bool | None, typer.Option("--public", help="Allow an address that others can reach.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store, tokens and audit. [~/.local/state/interlock]")
    ] = None,
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="What a message does to a busy session.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a run may take. [48h]")] = None,
    child_deadline: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a child may take.")] = None,
    agent_deadlines: Annotated[
        list[str] | None,
        typer.Option("--agent-deadline", metavar="NAME=TIME", help="The longest a run of this agent may take."),
    ] = None,
    idle_limit: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a run may be silent.")] = None,
    queue_limit: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a message may wait.")] = None,
    driver: Annotated[
        str | None, typer.Option(metavar="host|inline", help="Where the agent's code runs. [host]")
    ] = None,
    agent_user: Annotated[str | None, typer.Option(metavar="NAME", help="Run agent and tools as this user.")] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="NAME", help="A variable of ours that the agent sees too, by its name. Repeatable."
        ),
    ] = None,
    approval: Annotated[
        str | None, typer.Option(metavar="TOOLS", help="ask, never, or the tools that need no asking.")
    ] = None,
    stop_words: Annotated[
        list[str] | None,
        typer.Option("--stop-word", metavar="WORD", help="A message that stops, too. Repeatable."),
    ] = None,
    drain_seconds: Annotated[str | None, typer.Option(metavar="TIME", help="For an orderly end. [5]")] = None,
    allow_hosts: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="HOST", help="Also this Host.")
    ] = None,
    allow_origins: Annotated[
        list[str] | None, typer.Option("--allow-origin", metavar="HOST", help="Also pages from there.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Read settings here. [interlock.toml]")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error. [info]")] = None,
    as_json: Annotated[bool | None, typer.Option("--json", help="Print one line of JSON when it serves.")] = None,
) -> int:
    """Serve an agent over WebSocket; without one, the demo that needs no key.

    Every option may stand in interlock.toml, or in the environment as INTERLOCK_PORT and the like. The first TERM or
    Ctrl-C ends what runs as `shutdown` and waits --drain-seconds; a second one ends at once.
    """
    flags = {name: value for name, value in locals().items() if name != "as_json"} | {"json": as_json}
    try:
        settings = read(flags, os.environ, Path.cwd())
        import uvloop  # noqa: PLC0415 - `interlock run` does not need it

        from interlock.surfaces.logs import set_up_logging  # noqa: PLC0415

        # This is the shell user's own token; the served agent must not have it.
        os.environ.pop("INTERLOCK_TOKEN", None)
        finish = set_up_logging(settings.log_level)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - where the agent's module is, as a rule
        gc.disable()  # until it is ready: what is made until then stays
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(settings, lambda ready: _tell_ready(ready, settings)))
        finally:
            finish()
    except ModuleNotFoundError as missing:
        if missing.name not in ("uvloop", "uvicorn", "starlette", "httptools"):
            raise
        return fail(f"serving needs {missing.name}; install it: pip install 'interlock[serve]'")
    except InterlockError as error:
        return fail(error)
    return 0


def _tell_ready(ready: Ready, config: Config) -> None:
    gc.enable()
    if config.json:
        print_json(ready, indent=0)
        return
    where = "" if config.data == data_directory(os.environ).expanduser() else f" --data {config.data}"
    print_line(f"interlock serves {config.agent} at {ready.url} (processes: {ready.grade}; token: {ready.token_file})")
    me = _typed()
    print_line(f"Open {ready.page} in a browser (works once, within the hour; `{me} pair{where}` prints another)")
    if config.agent == "interlock.demo:agent":
        print_line("Try, in another terminal:")
        print_line(f"  {me} send --watch{where} help")
        print_line(f"  {me} send --watch{where} story     # and Ctrl-C: it really stops")
        print_line(f"  {me} send{where} daemon && {me} stop{where} --wait")


def _typed() -> str:
    """Return what a user types to run this command: its name if the shell finds it, else its path from here."""
    mine, found = Path(sys.executable).with_name("interlock"), shutil.which("interlock")
    if not mine.exists() or (found is not None and mine.samefile(found)):
        return "interlock"
    return str(mine.relative_to(Path.cwd()) if mine.is_relative_to(Path.cwd()) else mine)
