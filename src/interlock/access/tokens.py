"""The tokens of a server, in memory: who has one, what it may, and when it ends.

1. A token is kept as its digest. Only the operator's is on the disk in plain text, for the shell on this machine; no
   token is in a repr, a log, an error or an argument.
2. A token is found by its digest, so no comparison runs along a secret, and timing tells nothing about it.
3. A server asks memory, never the disk. A token counts once its row is on the disk, and ends in the step that revokes
   it, before its row is gone. If that row cannot be removed, the token stays revoked until the server restarts, and the
   caller is told that it failed.
4. A page's token stands on its principal's token and ends with it.
5. Memory changes in the loop alone, each time in one step (changes.py).
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from interlock.access import files
from interlock.access.files import AccessFailed
from interlock.access.rows import LOCK_SECONDS, OPERATOR, Row, Rows, is_name
from interlock.core.errors import BadInput
from interlock.core.names import Principal
from interlock.core.scopes import Scope
from interlock.protocol.frames import TokenInfo

TOKEN_BYTES = 32
# An operator may write a token by hand; a short one could be guessed.
TOKEN = re.compile(rb"[!-~]{16,512}")
PAGES = 64  # of one principal; beyond it the oldest is revoked
ALL_PAGES = 512


class Holder(msgspec.Struct, frozen=True):
    """The principal and the scopes of a token."""

    name: Principal
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Return whether the token has a scope; `admin` includes every other."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def digest_of(token: str) -> str:
    """Return the digest by which a token is kept."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check(name: str, scopes: Collection[Scope]) -> None:
    """Refuse a name or scopes that no principal may have."""
    if not is_name(name):
        raise BadInput(
            f"{name[:80]!r} is no name for a principal, or reserved; choose another: 1 to 64 of A-Z a-z 0-9 . _ @ -"
        )
    if not scopes:
        raise BadInput(f"a principal needs a scope: {', '.join(Scope)}")


class Access:
    """The tokens of a gateway, under its data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser()
        self.token = self.directory / "token"
        # Called in each step in which tokens begin or cease to count.
        self.heard: Callable[[], None] = lambda: None
        self._disk: Rows | None = None
        self.rows: dict[str, Row] = {}  # by digest, the oldest first, and the operator's
        self._revoked: set[str] = set()  # digests whose rows are still there
        self._holders: dict[str, Holder] = {}  # by digest: the tokens that count

    def open(self, *, make: bool = True, patience: float = LOCK_SECONDS) -> None:
        """Take the directory's tokens; raise InUse if another process has them.

        With `make` the first start creates the directory and the operator's token. Without it a missing directory is an
        error, and an operator's token that is missing or broken counts for nobody.
        """
        if make:
            files.make_directory(self.directory)
        files.close_directory(self.directory)
        self._disk = disk = Rows(self.directory, patience)
        try:
            if make and not self.token.exists():
                disk.rotate(secrets.token_urlsafe(TOKEN_BYTES))
            rows = {row.digest: row for row in disk.found}
            found = (files.read(self.token) or b"").strip()
            if TOKEN.fullmatch(found) is not None:
                operator = operators(found.decode())
                rows[operator.digest] = operator
            elif make:
                raise AccessFailed(f"{self.token} holds no token; `interlock token rotate` makes a new one")
            disk.remove(*(row for row in rows.values() if row.token not in rows))
        except BaseException:
            self.close()
            raise
        self.rows = {digest: row for digest, row in rows.items() if row.token in rows}
        self._count()

    def close(self) -> None:
        """Give the directory's tokens to another process. Memory answers on: connections may still be closing."""
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()

    @property
    def disk(self) -> Rows:
        """The rows on the disk, while this process has them."""
        if self._disk is None:
            raise AccessFailed("the tokens are closed: the server ends, or has not begun; try again")
        return self._disk

    def who(self, token: str) -> Holder | None:
        """Return the caller whose token this is."""
        return self._holders.get(digest_of(token))

    def valid(self, digest: str) -> bool:
        """Return whether the token of this digest still counts."""
        return digest in self._holders

    @property
    def callers(self) -> dict[Principal, Holder]:
        """Every principal that has a token, by name."""
        return {caller.name: caller for caller in self._holders.values()}

    def own(self, name: str) -> Row | None:
        """Return the row of a principal's own token, on which its pages stand."""
        return next((row for row in self.rows.values() if row.name == name and row.digest == row.token), None)

    def pages(self) -> list[Row]:
        """Return the rows of pages, the oldest first."""
        return [row for row in self.rows.values() if row.digest != row.token]

    def listing(self) -> list[TokenInfo]:
        """Return every principal that has a row: the operator first, then by name."""
        own = [row for row in self.rows.values() if row.digest == row.token]
        own.sort(key=lambda row: (row.name != OPERATOR, row.name))
        return [TokenInfo(name=row.name, scopes=row.scopes, created_at=row.created_at or None) for row in own]

    # Changing, each in one step

    def revoke(self, row: Row) -> None:
        """Let a token, and the pages that stand on it, count no more, although its row is still there."""
        self._revoked.add(row.digest)
        self._count()

    def change(self, new: Collection[Row] = (), gone: Collection[Row] = ()) -> None:
        """Let tokens count whose rows were written, and forget those whose rows were removed, with their pages."""
        digests = {row.digest for row in gone}
        rows = self.rows | {row.digest: row for row in new}
        self.rows = {digest: row for digest, row in rows.items() if digests.isdisjoint((digest, row.token))}
        self._revoked -= digests
        self._count()

    def _count(self) -> None:
        """Compute the tokens that count."""
        own = {row.digest: Holder(row.name, frozenset(row.scopes)) for row in self.rows.values() if row.scopes}
        standing = (row for row in self.rows.values() if self._revoked.isdisjoint((row.digest, row.token)))
        self._holders = {row.digest: own[row.token] for row in standing if row.token in own}
        self.heard()


def operators(token: str) -> Row:
    """Return the row of the operator's token, which is on the disk as a file."""
    digest = digest_of(token)
    return Row(digest, OPERATOR, digest, (Scope.ADMIN,))
