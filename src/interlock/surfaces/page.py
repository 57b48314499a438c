"""The page over HTTP: its files, its pairing, and a run's picture.

1. A file is served if its name is in a table that is read when the gateway starts; no part of a request becomes a path.
2. Every answer carries the same headers: only our own scripts and styles run, no site may frame the page, and browsers
   guess no content type.
3. A code comes in the body of a request, works once, and is exchanged for a token. Neither is in a URL, a log or the
   audit. A wrong code counts as a wrong token.
4. Waiting for the disk and drawing happen in a thread, so that a stop never waits for them. A token that was revoked
   meanwhile gets nothing.

The page is one more client. It calls the gateway's own methods, draws the events of `watch`, and decides nothing. Its
model seals a run at the terminal event, so a later frame of that run is not drawn. The words for endings come from
core/projection, which `read_files` serves as the module `endings.js`; the timeline is drawn here, by the renderer that
the shell uses.

Pairing instead of a password or a cookie. A browser sends a cookie to every port of a host name, and a token in a URL
ends up in logs. `interlock pair` puts a one-time code into the fragment of a URL, which browsers send to no server. The
page exchanges it for a token of its own, kept on the server as a digest and revoked with its principal's token.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from interlock.access.failures import RATE_LIMITED
from interlock.access.files import AccessFailed
from interlock.access.tokens import Holder
from interlock.core.errors import InterlockError, Refused, Unknown
from interlock.core.names import EARLY
from interlock.core.projection import TABLE, WHOSE
from interlock.core.scopes import Scope
from interlock.core.verbs import Timeline
from interlock.protocol.drawing import draw

if TYPE_CHECKING:
    from interlock.surfaces.gateway.gateway import Gateway

WEB: Final = Path(__file__).parent / "web"
PAIR_BYTES: Final = 1024
TYPES: Final = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript",
    ".svg": "image/svg+xml", ".txt": "text/plain",
}  # fmt: skip
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types interlock dompurify",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
SECRET: Final = HEADERS | {"Cache-Control": "no-store"}
USED: Final = "this code does not work: it was used, is too old, or never was one; `interlock pair` prints a new one"

log = logging.getLogger("interlock.gateway")


class File(NamedTuple):
    """A file of the page."""

    data: bytes
    type: str
    etag: str


def read_files(directory: Path = WEB) -> dict[str, File]:
    """Return the page's files by name, with `endings.js`, a module made of our own tables."""
    tables: dict[bytes, object] = {
        b"ENDINGS": {ending: row.client for ending, row in TABLE.items()},
        b"EARLY": [ending for ending in TABLE if ending in EARLY],
        b"WHOSE": WHOSE,
    }
    lines = (b"export const %b = %b;\n" % (name, msgspec.json.encode(table)) for name, table in tables.items())
    found = {"endings.js": b"".join(lines)}
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.suffix in TYPES and path.is_file() and not path.is_symlink():
            found[path.name] = path.read_bytes()
    return {
        name: File(data, f"{TYPES[Path(name).suffix]}; charset=utf-8", f'"{hashlib.sha256(data).hexdigest()[:32]}"')
        for name, data in found.items()
    }


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a pairing request."""

    code: str

    def __repr__(self) -> str:
        return "Code()"


class Page:
    """The page of a gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._files = read_files()
        # One picture at a time: several drawing threads would take the interpreter from the loop, and delay a stop.
        self._drawing = asyncio.Semaphore(1)
        self.routes = [
            Route("/", self._file),
            Route("/web/{name:path}", self._file),
            Route("/pair", self._pair, methods=["POST"]),
            Route("/pair", self._leave, methods=["DELETE"]),
            Route("/timeline/{run}.svg", self._timeline),
        ]

    async def _file(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("name", "index.html"))
        if file is None:
            return _say(404, "there is no such file; the page is at /")
        headers = HEADERS | {"ETag": file.etag}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers | {"Content-Type": file.type})

    async def _pair(self, request: Request) -> Response:
        gateway, address, body = self._gateway, address_of(request.scope), b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > PAIR_BYTES:
                    return _say(413, f"a code is no longer than {PAIR_BYTES} bytes")
            code = msgspec.json.decode(body, type=Code).code
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ClientDisconnect):
            return _say(400, 'send {"code": …} as JSON')
        found = gateway.codes.take(code, time.monotonic())
        if found is None or not gateway.access.valid(found.of):
            wrong = gateway.wrong_token(address, code)
            return _say(429 if wrong == RATE_LIMITED else 403, USED)
        try:
            caller = gateway.access.who(token := await gateway.tokens.add_page(found.name, found.of))
        except AccessFailed as error:
            log.error("a page could not be paired: %s", error)
            return _say(503, "the pairing could not be kept, the log says why; then `interlock pair` prints a new code")
        except Refused:
            caller = None
        if caller is None:  # the principal's token was revoked meanwhile
            return _say(403, USED)
        gateway.audit.note("paired", by=caller.name, address=address)
        told = {"token": token, "name": caller.name, "scopes": sorted(caller.scopes)}
        return JSONResponse(told, headers=SECRET)

    async def _leave(self, request: Request) -> Response:
        token, caller = bearer(request), self.caller(request)
        if isinstance(caller, Response):
            return caller
        try:
            await self._gateway.tokens.remove_page(token)
        except Unknown as error:
            return _say(403, str(error))
        except AccessFailed as error:
            log.error("a page could not be forgotten: %s", error)
            return _say(503, "the token could not be forgotten, the log says why; try again")
        self._gateway.audit.note("unpaired", by=caller.name, address=address_of(request.scope))
        return Response(status_code=204, headers=SECRET)

    async def _timeline(self, request: Request) -> Response:
        caller, run = self.caller(request), request.path_params["run"]
        if isinstance(caller, Response):
            return caller
        if not (caller.may(Scope.READ) or caller.may(Scope.WRITE)):
            return _say(403, "this token may not read; use one with scope read or write")
        async with self._drawing:
            try:
                moments = await self._gateway.house.door(caller.name).ask(Timeline(run=run))
            except InterlockError:
                moments = []
            if not moments:
                return _say(404, "there is no such run for you; the conversation names its runs")
            picture = await asyncio.to_thread(draw, moments, title=f"run {run}")
        if isinstance(gone := self.caller(request), Response):  # the token was revoked while the picture was drawn
            return gone
        return Response(picture, media_type="image/svg+xml", headers=SECRET)

    def caller(self, request: Request) -> Holder | Response:
        """Return the caller whose token a request bears, or the response that refuses it."""
        if self._gateway.closing:  # another process may have the tokens
            return _say(503, "the server is closing; try again")
        token = bearer(request)
        caller = self._gateway.access.who(token) if token else None
        if caller is not None:
            return caller
        code = self._gateway.wrong_token(address_of(request.scope), token)
        words = "send Authorization: Bearer and a token that may read"
        return _say(429 if code == RATE_LIMITED else 401, words, code=code)


async def refuse(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, or with a method that its path does not have."""
    return _say(getattr(error, "status_code", 404), "there is nothing like that here; the page is at /")


def bearer(request: Request) -> str:
    """Return the token a request bears; empty if it bears none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def address_of(scope: MutableMapping[str, Any]) -> str:
    """Return the address of a request's sender."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _say(status: int, words: str, **more: str) -> Response:
    return JSONResponse({"error": words, **more}, status, headers=SECRET)
