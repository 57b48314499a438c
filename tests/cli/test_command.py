"""The `interlock` command itself: its help, what it says without its extras, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import interlock as package
from interlock.cli.app import MODULES

from .scene import BOUND
from .scene import fresh as interlock


def test_without_the_extra_one_line_says_which() -> None:
    """A command without its extra says the name of the extra in one line, with 125 and no traceback."""
    program = "import sys; sys.modules['typer'] = None; from interlock.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--", "true"], capture_output=True, text=True, check=False, timeout=BOUND
    )
    assert done.returncode == 125
    assert "pip install 'interlock[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_called_alone_it_helps() -> None:
    """`interlock` alone prints its commands; an unknown command gives one line and 125."""
    done = interlock()
    assert done.returncode == 0
    assert "doctor" in done.stdout
    wrong = interlock("run", "--no-such-option", "--", "true")
    assert wrong.returncode == 125
    assert wrong.stderr.count("\n") == 1


# What is loaded

# Rooms and libraries that no verb of the shell needs.
HEAVY = {
    *(f"interlock.{room}" for room in ("access", "app", "hosts", "processes", "runtime", "stores", "surfaces")),
    *("anyio", "cronsim", "pydantic", "rich", "sqlite3", "starlette", "tomllib", "uvicorn", "uvloop"),
}


def loaded(program: str, *words: str) -> set[str]:
    """Return the modules that a program has loaded when it is over."""
    told = (
        "import atexit, json, sys\natexit.register(lambda: print(json.dumps([*sys.modules]), flush=True))\n" + program
    )
    done = subprocess.run(
        [sys.executable, "-c", told, *words], capture_output=True, text=True, check=False, timeout=BOUND
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("words", ["send hello", "stop", "wait r-1-1", "watch", "questions", "receipt r-1-1", "runs"])
def test_a_verb_loads_no_runtime_store_or_server(words: str, tmp_path: Path) -> None:
    """A verb over a gateway loads the client, and neither runtime, stores, hosts nor a server."""
    (tmp_path / "token").write_text("a" * 40)
    where = ("--url", "http://127.0.0.1:9", "--data", str(tmp_path))
    modules = loaded("from interlock.cli import main; main()", *words.split(), *where)
    assert {"interlock.client.client", "websockets"} <= modules
    assert not modules & HEAVY


def test_importing_the_package_loads_next_to_nothing() -> None:
    """`import interlock` loads itself alone; a name loads what it needs, and Run needs no store, host or server."""
    ours = {name for name in loaded("import interlock") if name.startswith("interlock")}
    assert ours == {"interlock"}
    run = loaded("from interlock import Run")
    rooms = {name.split(".")[1] for name in run if name.startswith("interlock.")}
    assert rooms == {"agent", "core"}, "an agent's program loads no other room"
    assert not run & (HEAVY - {"anyio"})


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    """Each name of `__all__` is imported on first use; any other is an AttributeError that says so."""
    assert set(package._HOME) == set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        found = getattr(package, name)
        assert name == "events" or found.__module__.startswith("interlock.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_every_command_is_in_the_module_that_it_is_said_to_be_in() -> None:
    """`interlock --help` lists the commands of the table, each in its module, and no other."""
    said = interlock("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert sorted(line.split()[0] for line in said) == sorted(name for names in MODULES.values() for name in names)
