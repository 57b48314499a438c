"""Numbers that are never given twice: `boot << 32 | n`, one durable write per start and none per number."""


class Numbers:
    """The numbers of one boot; positions, ids and tokens are made of them and only rise."""

    __slots__ = ("_boot", "_last")

    def __init__(self, boot: int) -> None:
        self._boot = boot
        self._last = 0

    def position(self) -> int:
        """Return the next number, higher than any before it, also across restarts."""
        self._last += 1
        return self._boot << 32 | self._last

    def new_id(self, letter: str) -> str:
        """Return an id that this store has never seen."""
        self._last += 1
        return f"{letter}-{self._boot:x}-{self._last:x}"
