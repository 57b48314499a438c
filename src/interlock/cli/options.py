"""Options that several commands have."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from interlock.config import DEFAULT_PORT, data_directory

HERE = f"http://127.0.0.1:{DEFAULT_PORT}"


def _directory(words: str) -> Any:
    return typer.Option(
        "--data",
        metavar="DIR",
        envvar="INTERLOCK_DATA",
        default_factory=lambda: data_directory(os.environ),
        show_default="~/.local/state/interlock",
        help=words,
    )


Store = Annotated[Path, _directory("The store's directory.")]
Tokens = Annotated[Path, _directory("Where its token is read, unless INTERLOCK_TOKEN holds one.")]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="INTERLOCK_URL",
        show_default=f"where the server of --data is, else {HERE}",
        help="Where the gateway is.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
