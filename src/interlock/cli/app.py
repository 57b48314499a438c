"""The commands, by name, each with the module that it is in: a command imports its own module and no other's."""

import gc
import os
import sys
from importlib import import_module

import typer

from interlock.cli.printing import TROUBLE, fail
from interlock.core.errors import InterlockError

MODULES = {  # in the order of `interlock --help`
    "run": ("run",),
    "doctor": ("doctor",),
    "serve": ("serve",),
    "store": ("sessions", "runs", "show"),
    "prune": ("prune",),
    "verbs": ("send", "stop", "wait", "watch", "answer", "questions", "receipt", "timeline", "share", "unshare"),
    "tokens": ("pair", "token"),
    "probe": ("probe",),
}
INTERRUPTED = 130  # the exit code of `stopped` in core/projection
NOTHING_TO_SEE = 1  # the directory cannot be read, or the run is not there
BAD_USAGE = {"probe": 2}  # else TROUBLE


def command_line(name: str = "") -> typer.Typer:
    """Return the command line with one command; with all of them if there is none of this name, to tell the nearest."""
    app = typer.Typer(
        name="interlock",
        help="Agents that really stop.",
        callback=_begin,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    every = not any(name in names for names in MODULES.values())
    for module, names in MODULES.items():
        if every or name in names:
            commands = import_module(f"interlock.cli.{module}").commands
            # Typer reads the signature of every command that it is given, so it is given the one.
            app.registered_commands += [each for each in commands.registered_commands if every or each.name == name]
            app.registered_groups += commands.registered_groups
    return app


def _begin() -> None:
    gc.enable()
    # "replace" is for a terminal whose encoding cannot show every character.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def run(words: list[str]) -> int:
    """Run a command and return its exit code."""
    try:
        status = command_line(*words[:1])(words or ["--help"], prog_name="interlock", standalone_mode=False)
    except typer.TyperException as wrong:  # wrong usage
        said = wrong.format_message()
        command = "" if said.startswith("No such command") else f" {words[0]}"
        return fail(f"{said.rstrip('.')}; interlock{command} --help tells more", BAD_USAGE.get(words[0], TROUBLE))
    except InterlockError as error:
        return fail(error, NOTHING_TO_SEE)
    except KeyboardInterrupt:  # before a run was started
        return INTERRUPTED
    except OSError as error:  # the output cannot be written; discard the rest of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return TROUBLE
        return fail(": ".join(str(each) for each in (error.filename, error.strerror or error) if each))
    return status if isinstance(status, int) else 0
