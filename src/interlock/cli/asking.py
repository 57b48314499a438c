"""How a command asks a gateway: one connection, an error told in one line, and an exit code.

A token comes from the data directory or from INTERLOCK_TOKEN, never from the command line.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from interlock.cli.options import HERE
from interlock.cli.printing import fail
from interlock.cli.servers import served_at
from interlock.client.connection import NO_SUCH_TOKEN
from interlock.core.errors import InterlockError, Refused

if TYPE_CHECKING:
    from interlock.client.socket import RemoteClient

T = TypeVar("T")
UNREAD = 141  # a shell's code for a program that SIGPIPE ended


def ask(url: str | None, data: Path, asking: Callable[["RemoteClient"], Awaitable[T]]) -> T:
    """Connect with the token of INTERLOCK_TOKEN or of the data directory, and return what `asking` returns."""

    async def asked() -> T:
        from interlock.client.socket import connect  # noqa: PLC0415 - slow to import

        token = os.environ.get("INTERLOCK_TOKEN") or None
        async with connect(url or served_at(data) or HERE, token, data=None if token else data) as client:
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


def ask_and_tell(url: str | None, data: Path, asking: Callable[["RemoteClient"], Awaitable[int | None]]) -> int:
    """Ask, print an error if there is one, and return the exit code: what `asking` returns, or 0."""
    try:
        return ask(url, data, asking) or 0
    except InterlockError as error:
        return fail(error)
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
