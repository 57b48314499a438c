"""Numbers that are never given twice: `boot << 32 | n`.

The store gives a new boot number at each start, so one durable write per start is enough and no number costs a write.
Ids and positions need no randomness, so a seed replays exactly. All sessions share one counter, so the positions of one
session have holes.
"""


class Numbers:
    """Makes the positions, ids and tokens of one boot; they only rise."""

    __slots__ = ("_boot", "_last")

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._last = 0

    def position(self) -> int:
        """Return the next number, higher than any before it, also across restarts."""
        self._last += 1
        return self._boot << 32 | self._last

    def new_id(self, letter: str) -> str:
        """Return an id that no start on this store has given before (race 41)."""
        self._last += 1
        return f"{letter}-{self._boot:x}-{self._last:x}"
