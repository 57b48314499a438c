"""Adds, removes (revokes) and rotates tokens, one change at a time.

1. What ends, ends in the step that asks for it, before anything waits for the disk or for another change.
2. A change is carried by a task of its own. A caller that leaves changes nothing: otherwise memory could lack a row
   that is on the disk.
3. The disk is waited for in a thread of its own, so that a stop never waits for it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from interlock.access.audit import now
from interlock.access.rows import OPERATOR, Row
from interlock.access.tokens import ALL_PAGES, PAGES, TOKEN_BYTES, Access, check, digest_of, operators
from interlock.core.errors import BadInput, Refused, Unknown
from interlock.core.names import Principal
from interlock.core.scopes import Scope
from interlock.protocol.frames import NewToken, TokenInfo
from interlock.stores.sqlite.reader import in_thread

P = ParamSpec("P")
T = TypeVar("T")


def carried(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Carry a change in a task of its own, which its caller's end does not end."""

    @wraps(work)
    async def carry(*args: P.args, **named: P.kwargs) -> T:
        task = asyncio.ensure_future(work(*args, **named))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may have left
        return await asyncio.shield(task)

    return carry


class Changes:
    """Makes the changes of one access. Its verbs for tokens are those of the client."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._turn = asyncio.Lock()
        self._closing = False

    def close(self) -> None:
        """Give the tokens back, behind the change that is being made."""
        self._closing = True
        if not self._turn.locked():
            self._access.close()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        async with self._turn:
            try:
                yield
            finally:
                if self._closing:
                    self._access.close()

    async def tokens(self) -> list[TokenInfo]:
        """List who has a token."""
        return self._access.listing()

    @carried
    async def add_token(self, name: str, scopes: Collection[Scope]) -> NewToken:
        """Add a principal; its token counts when this returns. Only its digest is kept."""
        check(name, scopes)
        async with self._alone():
            if self._access.own(name) is not None:
                raise Refused(f"there is a principal {name} already; `interlock token remove {name}` first")
            token, held = secrets.token_urlsafe(TOKEN_BYTES), tuple(scope for scope in Scope if scope in scopes)
            digest = digest_of(token)
            await self._add(Row(digest, Principal(name), digest, held, now()))
        return NewToken(name=name, scopes=held, token=token)

    @carried
    async def add_page(self, name: Principal, of: str) -> str:
        """Add a page of a principal whose token has the digest `of`, and return the page's token."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        async with self._alone():
            if not self._access.valid(of):
                raise Refused(f"the token of {name} has ended; pair a page again")
            pages = self._access.pages()
            mine = [page for page in pages if page.name == name]
            gone = mine[: max(0, len(mine) + 1 - PAGES)] or pages[: max(0, len(pages) + 1 - ALL_PAGES)]
            await self._add(Row(digest_of(token), name, of, (), now()), *gone)
        return token

    async def _add(self, row: Row, *gone: Row) -> None:
        await in_thread(partial(self._access.disk.add, row, *gone))
        self._access.change([row], gone)

    async def remove_token(self, name: str) -> None:
        """Remove a principal's token: it ends in the first step, and cannot come back once this has returned.

        Its runs go on, and its sessions stay its own.
        """
        if name == OPERATOR:
            raise BadInput("the operator stays; `interlock token rotate` makes a new token")
        row = self._access.own(name)
        if row is None:
            raise Unknown(f"there is no principal {name[:80]!r}; `interlock token list` names them")
        self._access.revoke(row)
        await self._remove(row)

    async def remove_page(self, token: str) -> None:
        """Remove a page's token: it ends in the first step."""
        row = self._access.rows.get(digest_of(token))
        if row is None or row.digest == row.token:
            raise Unknown("this is no page's token; `interlock token` takes others away")
        self._access.revoke(row)
        await self._remove(row)

    @carried
    async def _remove(self, row: Row) -> None:
        async with self._alone():
            await in_thread(partial(self._access.disk.remove, row))
            self._access.change(gone=[row])

    @carried
    async def rotate_token(self) -> None:
        """Replace the operator's token; the old one ends in the step in which the new one counts."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        async with self._alone():
            await in_thread(partial(self._access.disk.rotate, token))
            old = self._access.own(OPERATOR)
            self._access.change([operators(token)], [] if old is None else [old])
