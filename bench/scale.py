"""How much to measure."""

from dataclasses import dataclass

BEFORE = "712f310"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`quick` takes fewer rounds; `raced` stops are tried for at most `seconds`; ours is put beside commit `before`."""

    quick: bool = False
    raced: int = 1_000_000
    seconds: float = 1_800.0
    before: str = BEFORE

    def rounds(self, full: int, quick: int) -> int:
        """Return how many rounds to take."""
        return quick if self.quick else full
