"""`interlock token` and `interlock pair`: who may use a gateway."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from interlock.access.changes import Changes
from interlock.access.files import AccessFailed
from interlock.access.rows import LOCK_SECONDS, InUse
from interlock.access.tokens import Access, check
from interlock.cli.asking import ask_and_tell
from interlock.cli.options import AsJson, Store, Tokens, Url
from interlock.cli.printing import fail, print_json, print_line, proof
from interlock.core.errors import BadInput, Unknown
from interlock.core.receipt import Receipt
from interlock.core.scopes import Scope
from interlock.protocol.frames import TokenInfo

if TYPE_CHECKING:
    from interlock.client.socket import RemoteClient

T = TypeVar("T")

commands = typer.Typer()
tokens = typer.Typer(help="Say who may use a gateway: make, list and take away tokens.")
commands.add_typer(tokens, name="token")


Server = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Where the server of --data is, if it does not say so itself."),
]


class Principals(msgspec.Struct, frozen=True):
    """The document of `token list`."""

    data: str
    principals: list[TokenInfo]


def _ask(
    data: Path, url: str | None, ask: "Callable[[RemoteClient | Changes], Awaitable[T]]", *, make: bool = False
) -> T:
    """Ask the server that has a directory's tokens, as its operator; where none has them, take them for a moment."""

    async def asking() -> T:
        access = Access(data)
        try:
            access.open(make=make, patience=0 if url else LOCK_SECONDS)
        except InUse as served:
            if not (where := url or served.url):
                raise
        else:
            with contextlib.closing(access):
                return await ask(Changes(access))
        from interlock.client.socket import connect  # noqa: PLC0415 - slow to import

        async with connect(where, data=access.directory) as client:
            return await ask(client)

    return asyncio.run(asking())


@tokens.command("path", short_help="Print where the operator's token is.")
def token_path_command(data: Store) -> None:
    """Print the path of the operator's token; `cat` shows it."""
    path = Access(data).token
    if not path.exists():
        raise AccessFailed(f"there is no {path}; `interlock serve` makes one at its first start")
    print_line(str(path))


@tokens.command("rotate", short_help="Make a new operator's token.")
def token_rotate_command(data: Store, url: Server = None) -> None:
    """Make a new operator's token and print where it is; the old one ends at once, with its connections and pages."""
    _ask(data, url, lambda server: server.rotate_token())
    print_line(str(Access(data).token))


@tokens.command("add", short_help="Make a principal and print its token, once.")
def token_add_command(
    name: Annotated[str, typer.Argument(help="Its name: 1 to 64 of A-Z a-z 0-9 . _ @ -")],
    data: Store,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help=f"One of {', '.join(Scope)}; again, or with commas, for more. [write]"),
    ] = None,
    url: Server = None,
) -> None:
    """Make a principal and print its token, this once: only its hash is kept.

    A name that was used before gets the sessions that its earlier holder owned.
    """
    scopes = _scopes(scope or [Scope.WRITE])
    check(name, scopes)  # a mistake must make no directory
    print_line(_ask(data, url, lambda server: server.add_token(name, scopes), make=True).token)
    fail(f"this is the token of {name} ({', '.join(scopes)}); it is not shown again")


@tokens.command("remove", short_help="Take a principal's token away.")
def token_remove_command(
    name: Annotated[str, typer.Argument(help="Its name.")],
    data: Store,
    url: Server = None,
    stop: Annotated[bool, typer.Option("--stop", help="And stop what it runs.")] = False,
) -> None:
    """Take a principal's token away; a server takes nothing more from it. Its runs go on unless --stop is given.

    With --stop every run in its sessions, whoever sent it, and every run that it started in others' sessions is
    stopped, and the receipts are printed.
    """

    async def remove(server: "RemoteClient | Changes") -> list[Receipt] | None:
        try:
            await server.remove_token(name)
        except Unknown as error:
            if not stop:
                raise
            # The token was removed earlier, but runs of the principal may still go on.
            fail(str(error))
        if isinstance(server, Changes):
            return None
        return await server.stop_all(of=name) if stop else []

    receipts = _ask(data, url, remove)
    for receipt in receipts or ():
        print_line(proof(receipt))
    if not stop:
        fail(f"{name} has no token any more; what {name} runs goes on: `interlock token remove {name} --stop` ends it")
    elif not receipts:
        fail(f"no server has {data}: nothing of {name} runs" if receipts is None else f"nothing of {name} ran")


@tokens.command("list", short_help="List who has a token.")
def token_list_command(data: Store, as_json: AsJson = False, url: Server = None) -> None:
    """List who has a token, and its scopes."""
    listed = _ask(data, url, lambda server: server.tokens())
    if as_json:
        found = Principals(str(data.expanduser()), listed)
        print_json(found)
        return
    wide = max((len(each.name) for each in listed), default=0)
    for each in listed:
        print_line(f"{each.name:<{wide}}  {','.join(each.scopes):<24}  {each.created_at or ''}".rstrip())


def _scopes(given: list[str]) -> list[Scope]:
    wanted = {word.strip() for text in given for word in text.split(",")}
    for word in sorted(wanted - set(Scope)):
        raise BadInput(f"{word[:80]!r} is no scope; write {', '.join(Scope)}")
    return [scope for scope in Scope if scope in wanted]


@commands.command("pair", short_help="Print a URL that lets a browser in, once.")
def pair_command(
    data: Tokens,
    name: Annotated[str | None, typer.Argument(help="Whose page it is; another than yours needs an admin.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Print a URL that opens the page for you, or for a principal that has a token; it works once, within the hour."""

    async def look(client: "RemoteClient") -> None:
        made = await client.pair(name)
        page = f"{client.url.rstrip('/')}/#pair={made.code}"
        print_json({"page": page, "seconds": made.seconds}) if as_json else print_line(page)

    return ask_and_tell(url, data, look)
