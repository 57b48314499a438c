"""The codes that let pages in.

1. A code works once, for CODE_SECONDS.
2. Codes live in memory, as digests, and a restart forgets them: none can be stolen from the disk or used twice after a
   crash.
"""

import secrets
from typing import NamedTuple

from interlock.access.tokens import digest_of
from interlock.core.names import Principal

CODE_BYTES = 16
CODE_SECONDS = 3_600.0
CODES = 32  # unused, of one principal


class Pairing(NamedTuple):
    """The page that a code lets in: of which principal, under which digest of its token, and until when."""

    name: Principal
    of: str
    until: float


class Codes:
    """The unused pairing codes. They live in memory, and a restart forgets them."""

    def __init__(self) -> None:
        self._waiting: dict[str, Pairing] = {}  # by digest, the oldest first

    def make(self, name: Principal, of: str, now: float) -> str:
        """Return a new code for a page of a principal whose token has the digest `of`."""
        self._waiting = {digest: each for digest, each in self._waiting.items() if now < each.until}
        mine = [digest for digest, each in self._waiting.items() if each.name == name]
        for digest in mine[: max(0, len(mine) + 1 - CODES)]:
            del self._waiting[digest]
        code = secrets.token_urlsafe(CODE_BYTES)
        self._waiting[digest_of(code)] = Pairing(name, of, now + CODE_SECONDS)
        return code

    def take(self, code: str, now: float) -> Pairing | None:
        """Use up a code and return its pairing; None if it is unknown or too old."""
        found = self._waiting.pop(digest_of(code), None)
        return found if found is not None and now < found.until else None
